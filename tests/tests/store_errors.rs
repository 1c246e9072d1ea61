//! Stores that fail, wait or shrink under a running target: the right sense data, a log line with the volume's name,
//! and no harm to anything else (SBC-3, error reporting).

use std::fs::OpenOptions;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::Duration;

use lunette_block::OperationKind;
use lunette_block::fault::{Effect, Errno, Rule, When};
use lunette_tests::in_process::InProcess;
use lunette_tests::initiator::{self, Initiator};
use lunette_tests::raw::{BLOCK_BYTES, Ending, Raw, plain};
use lunette_tests::skip;
use lunette_wire::InitiatorPdu;
use lunette_wire::initiator::{LogoutReason, ScsiCommand, TaskManagementFunction};
use lunette_wire::target::RejectReason;

const CHECK_CONDITION: u8 = 2;

const UNRECOVERED_READ_ERROR: (u8, u8, u8) = (3, 0x11, 0);
const WRITE_ERROR: (u8, u8, u8) = (3, 0x0c, 0);
const INTERNAL_TARGET_FAILURE: (u8, u8, u8) = (4, 0x44, 0);
const PERIPHERAL_DEVICE_WRITE_FAULT: (u8, u8, u8) = (4, 0x03, 0);
const SPACE_ALLOCATION_FAILED: (u8, u8, u8) = (7, 0x27, 7);
const HARDWARE_ERROR: u8 = 4;

const DATA: [u8; 4096] = [0xaa; 4096];
const BLOCKS: u32 = (DATA.len() / BLOCK_BYTES) as u32;

/// Two units, the first with this write mode.
fn start(mode: &str) -> InProcess {
    InProcess::start(&[&format!("0=mem:8M,write={mode}"), "1=mem:8M"])
}

fn login(target: &InProcess, port: u8) -> Raw {
    let mut session = target.session(port);
    session.make_ready(1).expect("a ready unit");
    session
}

fn fail(target: &InProcess, kind: OperationKind, when: When, errno: Errno) {
    target.faults(0).add(Rule::new(kind, when, Effect::Fail(errno)));
}

fn read(session: &mut Raw, lun: u8, lba: u64) -> Ending {
    let tag = session.read(lun, lba, BLOCKS).expect("sent");
    session.ending(tag).expect("a failure without data")
}

fn expect_read(session: &mut Raw, lun: u8, lba: u64, byte: u8) {
    let tag = session.read(lun, lba, BLOCKS).expect("sent");
    let (bytes, _) = session.data_in(tag).expect("a read");
    assert!(bytes.len() == DATA.len() && bytes.iter().all(|found| *found == byte), "LUN {lun}, LBA {lba}");
}

fn write(session: &mut Raw, lun: u8, lba: u64) -> Ending {
    let tag = session.write(lun, lba, &DATA).expect("sent");
    session.ending(tag).expect("an answer")
}

fn expect_write(session: &mut Raw, lun: u8, lba: u64) {
    let ending = write(session, lun, lba);
    assert_eq!(ending.status, 0, "LUN {lun}, LBA {lba}: {:?}", ending.codes());
}

fn synchronize_cache(session: &mut Raw) -> Ending {
    let cdb = lunette_tests::initiator::cdb::synchronize_cache();
    let tag = session.command(&ScsiCommand { cdb, ..plain() }, &[]).expect("sent");
    session.ending(tag).expect("an answer")
}

#[track_caller]
fn expect_codes(ending: &Ending, codes: (u8, u8, u8)) {
    assert_eq!((ending.status, ending.codes()), (CHECK_CONDITION, codes));
}

/// Exactly one line of the log is an error and names the volume.
#[track_caller]
fn expect_one_error(target: &InProcess, lun: u16) -> String {
    let lines: Vec<_> =
        target.log_with(&target.volume(lun)).into_iter().filter(|line| line.starts_with("ERROR")).collect();
    assert_eq!(lines.len(), 1, "{lines:#?}");
    lines[0].clone()
}

/// Everything but LUN 0 is served, in both sessions.
fn expect_no_harm(sessions: [&mut Raw; 2]) {
    for (session, lba) in sessions.into_iter().zip([0, 64]) {
        expect_write(session, 1, lba);
        expect_read(session, 1, lba, DATA[0]);
    }
}

/// RFC 7143: 4.6.1.2, 10.2, 11.4.7; SAM-5: 5.13 sense data.
#[test]
fn a_bad_sector_is_a_medium_error_with_its_address() {
    const LBA: u64 = 80;
    let target = start("back");
    let (mut session, mut other) = (login(&target, 1), login(&target, 2));
    let sector = LBA * BLOCK_BYTES as u64..(LBA + 1) * BLOCK_BYTES as u64;
    let rule = Rule::new(OperationKind::Read, When::Every, Effect::Fail(Errno::IO)).within(sector.clone());
    target.faults(0).add(rule);
    let ending = read(&mut session, 0, LBA);
    expect_codes(&ending, UNRECOVERED_READ_ERROR);
    assert_eq!(ending.information(), Some(LBA as u32));
    let line = expect_one_error(&target, 0);
    assert!(line.contains("operation=read") && line.contains("offset=40960"), "{line}");
    // Neighbours can be read, and the sector can be written.
    expect_read(&mut session, 0, LBA - u64::from(BLOCKS), 0);
    expect_read(&mut other, 0, LBA + 1, 0);
    expect_write(&mut session, 0, LBA);
    expect_no_harm([&mut session, &mut other]);
    target.faults(0).clear();
    expect_read(&mut session, 0, LBA, DATA[0]);
    expect_one_error(&target, 0);
}

#[test]
fn a_write_error_is_a_medium_error_with_its_address() {
    const LBA: u64 = 80;
    for mode in ["through", "back"] {
        let target = start(mode);
        let (mut session, mut other) = (login(&target, 1), login(&target, 2));
        fail(&target, OperationKind::Write, When::Nth(1), Errno::IO);
        let ending = write(&mut session, 0, LBA);
        expect_codes(&ending, WRITE_ERROR);
        assert_eq!(ending.information(), Some(LBA as u32), "{mode}");
        let line = expect_one_error(&target, 0);
        assert!(line.contains("operation=write"), "{line}");
        expect_read(&mut session, 0, LBA, 0);
        expect_write(&mut session, 0, LBA);
        expect_read(&mut other, 0, LBA, DATA[0]);
        expect_no_harm([&mut session, &mut other]);
    }
}

#[test]
fn a_device_that_is_gone_is_a_hardware_error() {
    for kind in [OperationKind::Read, OperationKind::Write] {
        let target = start("back");
        let (mut session, mut other) = (login(&target, 1), login(&target, 2));
        fail(&target, kind, When::Nth(1), Errno::NODEV);
        let ending = match kind {
            OperationKind::Read => read(&mut session, 0, 0),
            _ => write(&mut session, 0, 0),
        };
        expect_codes(&ending, INTERNAL_TARGET_FAILURE);
        assert_eq!(ending.information(), None, "{kind}");
        expect_one_error(&target, 0);
        expect_no_harm([&mut session, &mut other]);
    }
}

#[test]
fn a_store_without_space_is_write_protected_for_that() {
    let target = start("back");
    let (mut session, mut other) = (login(&target, 1), login(&target, 2));
    fail(&target, OperationKind::Write, When::Nth(1), Errno::NOSPC);
    expect_codes(&write(&mut session, 0, 0), SPACE_ALLOCATION_FAILED);
    expect_one_error(&target, 0);
    expect_read(&mut session, 0, 0, 0);
    expect_write(&mut session, 0, 0);
    expect_no_harm([&mut session, &mut other]);
}

/// A file system of its own; unmounted when dropped.
struct Mount(tempfile::TempDir);

impl Mount {
    /// `None` where nothing can be mounted: it takes root.
    fn tmpfs(size: &str) -> Option<Self> {
        let directory = tempfile::tempdir().expect("a directory");
        let options = format!("size={size}");
        let output = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &options, "tmpfs"])
            .arg(directory.path())
            .output()
            .ok()?;
        output.status.success().then(|| Self(directory))
    }

    fn path(&self) -> &Path {
        self.0.path()
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        // Lazily, for a test that failed has the image still open.
        let unmounted = Command::new("umount").arg("--lazy").arg(self.path()).status();
        if !unmounted.is_ok_and(|status| status.success()) {
            eprintln!("{} is still mounted", self.path().display());
        }
    }
}

#[test]
fn a_full_file_system_fails_only_what_needs_space() {
    let Some(mount) = Mount::tmpfs("1M") else { skip!("nothing can be mounted here; it takes root") };
    let image = mount.path().join("disk.img");
    for mode in ["through", "back"] {
        let lun = format!("0={},size=8M,write={mode}", image.display());
        let target = InProcess::start(&[&lun, "1=mem:8M"]);
        let (mut session, mut other) = (login(&target, 1), login(&target, 2));
        let mut written: Vec<u64> = Vec::new();
        let refused = loop {
            let lba = written.len() as u64 * u64::from(BLOCKS);
            assert!(lba < 16384, "8 MiB went into 1 MiB");
            let ending = write(&mut session, 0, lba);
            if ending.status != 0 {
                break ending;
            }
            written.push(lba);
        };
        assert!(written.len() > 64, "{}", written.len());
        expect_codes(&refused, SPACE_ALLOCATION_FAILED);
        expect_one_error(&target, 0);
        // What is there stays there, and can be written again in place.
        for lba in &written {
            expect_read(&mut other, 0, *lba, DATA[0]);
        }
        expect_write(&mut session, 0, written[0]);
        let beyond = written.len() as u64 * u64::from(BLOCKS);
        expect_read(&mut session, 0, beyond, 0);
        expect_no_harm([&mut session, &mut other]);
        // With space again it is as if nothing had been.
        let unmap = unmap_command(&[(0, BLOCKS)]);
        let tag = session.command(&unmap.0, &unmap.1).expect("sent");
        session.good(tag).expect("an UNMAP");
        expect_write(&mut session, 0, beyond);
        drop([session, other]);
        target.drain();
        target.end().expect("an end").expect("a clean one: no flush has failed");
        std::fs::remove_file(&image).expect("it is there");
    }
}

/// UNMAP (SBC-3) of some ranges, with its parameter list.
fn unmap_command(ranges: &[(u64, u32)]) -> (ScsiCommand, Vec<u8>) {
    let length = 16 * ranges.len() as u8;
    let mut list = vec![0, length + 6, 0, length, 0, 0, 0, 0];
    for (lba, blocks) in ranges {
        list.extend([&lba.to_be_bytes()[..], &blocks.to_be_bytes(), &[0; 4]].concat());
    }
    let mut cdb = [0; 16];
    cdb[0] = 0x42;
    cdb[8] = list.len() as u8;
    let command =
        ScsiCommand { write: true, expected_data_transfer_length: list.len() as u32, cdb, ..plain() };
    (command, list)
}

/// A command for so many blocks from the first one on, and its data.
fn changing(operation: u8, blocks: u32, data: Vec<u8>) -> (ScsiCommand, Vec<u8>) {
    let mut cdb = [0; 16];
    cdb[0] = operation;
    cdb[10..14].copy_from_slice(&blocks.to_be_bytes());
    let command =
        ScsiCommand { write: true, expected_data_transfer_length: data.len() as u32, cdb, ..plain() };
    (command, data)
}

/// So many blocks are done by WRITE SAME or ORWRITE in three pieces.
const BLOCKS_OF_PIECES: u32 = 3 * 2048;

/// WRITE SAME (16) of one block that is not zeros.
fn write_same() -> (ScsiCommand, Vec<u8>) {
    changing(0x93, BLOCKS_OF_PIECES, vec![0xab; BLOCK_BYTES])
}

/// A unit in the page cache in one of these write modes, and one beside it.
fn start_on_file(directory: &Path, mode: &str) -> InProcess {
    let path = directory.join(format!("{mode}.img"));
    InProcess::start(&[&format!("0={},size=8M,write={mode}", path.display()), "1=mem:8M"])
}

/// SBC-3, WCE: without a write cache nobody takes what can be read for volatile, and no other flush comes.
#[test]
fn what_a_failed_command_has_changed_is_made_stable_where_no_write_cache_is_declared() {
    let directory = tempfile::tempdir().expect("a directory");
    let ored = vec![0xab; BLOCKS_OF_PIECES as usize * BLOCK_BYTES];
    let commands = [
        (changing(0x8a, BLOCKS, DATA.to_vec()), OperationKind::Write, 1),
        (write_same(), OperationKind::Write, 2),
        (unmap_command(&[(0, 8), (64, 8)]), OperationKind::Unmap, 2),
        // ORWRITE, whose last success is a read.
        (changing(0x8b, BLOCKS_OF_PIECES, ored), OperationKind::Write, 2),
    ];
    for (mode, flushes) in [("through", 1), ("back", 0)] {
        let target = start_on_file(directory.path(), mode);
        let mut session = Initiator::login(target.portal(), &target.options(1)).expect("a login");
        session.make_ready(0).expect("a ready unit");
        for ((command, data), kind, fails) in &commands {
            let before = target.faults(0).calls(OperationKind::Flush);
            fail(&target, *kind, When::Nth(*fails), Errno::IO);
            let (cdb, data_out) = (command.cdb, data.clone());
            let completion = session.execute(initiator::Command { cdb, data_out, ..Default::default() });
            assert_eq!(completion.expect("an answer").status, CHECK_CONDITION, "{:#x}", cdb[0]);
            target.wait_for_calls(0, OperationKind::Flush, before + flushes);
            target.faults(0).clear();
            assert_eq!(target.faults(0).calls(OperationKind::Flush), before + flushes, "{:#x}", cdb[0]);
        }
    }
}

/// Past the page cache nothing of it waits for a flush, and one that fails with the device would end all writes.
#[test]
fn a_device_that_was_away_for_a_while_is_written_again() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("disk.img");
    let target = InProcess::start(&[&format!("0={},size=8M,engine=direct", path.display()), "1=mem:8M"]);
    let mut session = login(&target, 1);
    for kind in [OperationKind::Write, OperationKind::Flush] {
        fail(&target, kind, When::Every, Errno::IO);
    }
    assert_eq!(write(&mut session, 0, 0).status, CHECK_CONDITION);
    assert_eq!(target.faults(0).calls(OperationKind::Flush), 0);
    target.faults(0).clear();
    assert_eq!(write(&mut session, 0, 0).status, 0);
}

#[test]
fn what_an_aborted_command_has_changed_is_made_stable_where_no_write_cache_is_declared() {
    const SECOND_PIECE: std::ops::Range<u64> = 1 << 20..2 << 20;
    let directory = tempfile::tempdir().expect("a directory");
    for mode in ["through", "back"] {
        let target = start_on_file(directory.path(), mode);
        let mut other = login(&target, 2);
        for (round, end) in [(1, "abort"), (2, "reset"), (3, "loss")] {
            let mut session = login(&target, 1);
            let before = target.faults(0).calls(OperationKind::Flush);
            let held = Rule::new(OperationKind::Write, When::Every, Effect::Hold);
            target.faults(0).add(held.within(SECOND_PIECE));
            let cmd_sn = session.cmd_sn;
            let (command, data) = write_same();
            let tag = session.command(&command, &data).expect("sent");
            target.wait_for_calls(0, OperationKind::Write, 2 * round);
            let asked = match end {
                "abort" => Some(session.manage_task(TaskManagementFunction::AbortTask, 0, tag, cmd_sn)),
                "reset" => Some(other.manage(TaskManagementFunction::LogicalUnitReset, 0)),
                _ => None,
            };
            let by = if end == "abort" { &mut session } else { &mut other };
            by.silent().expect("a piece is in the store");
            if end == "loss" {
                let peer = session.connection().local_address().expect("an address");
                drop(session);
                assert!(!target.log_about(peer, "closed by the initiator").is_empty());
                target.faults(0).clear();
                // It waits for the end of the old one.
                drop(login(&target, 1));
            } else {
                target.faults(0).clear();
                let asked = asked.expect("a function").expect("sent");
                assert_eq!(by.managed(asked).expect("an answer"), 0, "{end}");
            }
            let flushes = u64::from(mode == "through");
            target.wait_for_calls(0, OperationKind::Flush, before + flushes);
            assert_eq!(target.faults(0).calls(OperationKind::Flush), before + flushes, "{mode}, {end}");
        }
    }
}

/// After a failed flush: writes are refused, reads served, others not harmed, and the end is no clean one.
fn expect_faulted(target: InProcess, mut session: Raw, mut other: Raw) {
    for session in [&mut session, &mut other] {
        expect_codes(&write(session, 0, 256), PERIPHERAL_DEVICE_WRITE_FAULT);
        expect_codes(&synchronize_cache(session), PERIPHERAL_DEVICE_WRITE_FAULT);
        expect_read(session, 0, 256, 0);
    }
    expect_no_harm([&mut session, &mut other]);
    let line = expect_one_error(&target, 0);
    assert!(line.contains("operation=\"flush\""), "{line}");
    drop([session, other]);
    let name = target.volume(0);
    target.drain();
    let error = target.end().expect("an end").expect_err("no clean one").to_string();
    assert!(error.contains(&name), "{error}");
}

#[test]
fn a_failed_flush_of_a_write_through_volume_stops_its_writes() {
    for errno in [Errno::IO, Errno::NOSPC, Errno::NODEV] {
        let target = start("through");
        let (mut session, other) = (login(&target, 1), login(&target, 2));
        fail(&target, OperationKind::Flush, When::First(1), errno);
        let ending = write(&mut session, 0, 0);
        assert_eq!((ending.status, ending.codes().0), (CHECK_CONDITION, HARDWARE_ERROR), "{ending:?}");
        assert_eq!(ending.information(), None, "a flush has no address");
        expect_faulted(target, session, other);
    }
}

#[test]
fn a_failed_synchronize_cache_stops_the_writes_of_a_write_back_volume() {
    let target = start("back");
    let (mut session, other) = (login(&target, 1), login(&target, 2));
    fail(&target, OperationKind::Flush, When::First(1), Errno::IO);
    expect_write(&mut session, 0, 0);
    let ending = synchronize_cache(&mut session);
    assert_eq!((ending.status, ending.codes().0), (CHECK_CONDITION, HARDWARE_ERROR), "{ending:?}");
    assert_eq!(ending.information(), None, "a flush has no address");
    expect_faulted(target, session, other);
}

#[test]
fn the_last_flush_of_all_decides_how_the_server_ends() {
    let target = start("back");
    let mut session = login(&target, 1);
    expect_write(&mut session, 0, 0);
    fail(&target, OperationKind::Flush, When::Every, Errno::IO);
    let tag = session.log_out(LogoutReason::CloseSession, 0).expect("sent");
    assert_eq!(session.logged_out(tag).expect("an answer"), 0);
    let name = target.volume(0);
    target.drain();
    let error = target.end().expect("an end").expect_err("acknowledged data is not stable").to_string();
    assert!(error.contains(&name), "{error}");
}

#[test]
fn a_slow_store_is_waited_for_by_abort_and_logout_alone() {
    const A_WHILE: Duration = Duration::from_millis(100);
    let target = start("back");
    let (mut session, mut other) = (login(&target, 1), login(&target, 2));
    target.hold(0, OperationKind::Write);
    let cmd_sn = session.cmd_sn;
    let tag = session.write(0, 0, &DATA).expect("sent");
    target.wait_for_calls(0, OperationKind::Write, 1);
    let abort = session.manage_task(TaskManagementFunction::AbortTask, 0, tag, cmd_sn).expect("sent");
    // Nobody else waits, not even on this connection.
    session.silent().expect("a ping is answered meanwhile");
    expect_read(&mut session, 1, 0, 0);
    expect_read(&mut other, 0, 64, 0);
    target.faults(0).clear();
    assert_eq!(session.managed(abort).expect("an answer"), 0);
    expect_write(&mut session, 0, 128);
    target.hold(0, OperationKind::Write);
    session.write(0, 0, &DATA).expect("sent");
    target.wait_for_calls(0, OperationKind::Write, 3);
    let logout = session.log_out(LogoutReason::CloseSession, 0).expect("sent");
    let late = session.number(&plain());
    session.send(&InitiatorPdu::ScsiCommand(late), &[]).expect("sent");
    let header = InitiatorPdu::ScsiCommand(late).encode(0);
    let reason = session.rejected(&header).expect("the logout was taken in, and waits");
    assert_eq!(reason, RejectReason::WaitingForLogout as u8);
    expect_read(&mut other, 0, 64, 0);
    target.faults(0).clear();
    assert_eq!(session.logged_out(logout).expect("the write is not answered"), 0);
    session.ends().expect("closed");
    // The write is over: what another session writes now stays.
    let tag = other.write(0, 0, &[0xbb; 4096]).expect("sent");
    other.good(tag).expect("a write");
    thread::sleep(A_WHILE);
    expect_read(&mut other, 0, 0, 0xbb);
}

fn image(directory: &Path) -> (PathBuf, String) {
    let path = directory.join("disk.img");
    let lun = format!("0={},size=8M,write=back", path.display());
    (path, lun)
}

#[test]
fn an_image_that_became_shorter_has_medium_errors_and_no_zeroes() {
    const KEPT_BYTES: u64 = 1 << 20;
    let directory = tempfile::tempdir().expect("a directory");
    let (path, lun) = image(directory.path());
    let target = InProcess::start(&[&lun, "1=mem:8M"]);
    let (mut session, mut other) = (login(&target, 1), login(&target, 2));
    let end = KEPT_BYTES / BLOCK_BYTES as u64;
    for lba in [0, end - 4, end, 8192] {
        expect_write(&mut session, 0, lba);
    }
    let file = OpenOptions::new().write(true).open(&path).expect("the image");
    file.set_len(KEPT_BYTES).expect("it becomes shorter");
    // Across the new end, behind it, and far behind it.
    for lba in [end - 4, end, 8192] {
        let ending = read(&mut session, 0, lba);
        expect_codes(&ending, UNRECOVERED_READ_ERROR);
        let bad = u64::from(ending.information().expect("an address"));
        assert!((lba..lba + u64::from(BLOCKS)).contains(&bad), "{bad}");
    }
    // A long read that is only in part behind the end.
    let tag = session.read(0, 0, end as u32 + 1).expect("sent");
    expect_codes(&session.ending(tag).expect("a failure without data"), UNRECOVERED_READ_ERROR);
    expect_read(&mut session, 0, 0, DATA[0]);
    // Nor does a write make it longer again, which would hide what is lost.
    for lba in [end, 8192, end - 4] {
        expect_codes(&write(&mut session, 0, lba), WRITE_ERROR);
    }
    assert_eq!(file.metadata().expect("the image").len(), KEPT_BYTES);
    expect_write(&mut session, 0, 0);
    expect_no_harm([&mut session, &mut other]);
    assert!(!target.log_with(&target.volume(0)).iter().all(|line| !line.starts_with("ERROR")));
}
