//! What becomes of commands, and of disks, while the state of a disk cannot be stored: the file beside the image hangs, or
//! cannot be written (SPC-4, MODE SELECT with SP; SBC-3, SANITIZE; RFC 7143, 11.5.1).

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use lunette_block::OperationKind;
use lunette_target::config::WriteMode;
use lunette_tests::in_process::{InProcess, wait_until};
use lunette_tests::initiator::{Command, Initiator, cdb};
use lunette_tests::raw::{Raw, lun_field, plain};
use lunette_wire::initiator::{ScsiCommand, TaskManagementFunction};
use rustix::fs::{CWD, FileType, Mode, OFlags, mknodat};
use tempfile::TempDir;

use super::{TEST_UNIT_READY, code, padded, run, session};
use crate::FUNCTION_COMPLETE;

const GOOD: (u8, u8, u8) = (0, 0, 0);
const IN_PROGRESS: (u8, u8, u8) = (2, 0x04, 0x1b);
const SAVED_CACHING: [u8; 5] = [0x1a, 0x08, 0xc8, 0, 255];

/// An image that is to be served, and the file that its state is written to before that takes its place.
struct Place {
    directory: TempDir,
}

impl Place {
    fn new() -> Place {
        Place { directory: TempDir::new().expect("a directory") }
    }

    fn flag(&self) -> String {
        self.flag_of(0)
    }

    fn flag_of(&self, lun: u8) -> String {
        let path = self.directory.path().join("disk");
        format!("{lun}=file:{},size=8M,serial=saving-{lun}", path.display())
    }

    fn written_first(&self) -> PathBuf {
        self.directory.path().join("disk.lunette-state.new")
    }

    /// From now on who writes the state waits.
    fn hang(&self) -> Hung {
        let path = self.written_first();
        mknodat(CWD, &path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).expect("a pipe");
        Hung { path }
    }
}

/// A pipe without a reader in the place of a file.
struct Hung {
    path: PathBuf,
}

impl Hung {
    /// Lets the one who waits go on. He cannot make a pipe stable: the state is not stored.
    fn release(self) {
        drop(reader(&self.path));
        // The one who writes takes it away.
        wait_until("the end of the pipe", || reader(&self.path).is_none());
    }
}

fn reader(path: &Path) -> Option<File> {
    OpenOptions::new().read(true).custom_flags(OFlags::NONBLOCK.bits() as i32).open(path).ok()
}

/// SANITIZE, BLOCK ERASE.
fn erase(immediate: bool) -> [u8; 16] {
    padded(&[0x48, if immediate { 0x82 } else { 0x02 }])
}

fn write_something(session: &mut Initiator) {
    session
        .execute_good(Command { cdb: cdb::write(0, 8), data_out: vec![7; 4096], ..Command::default() })
        .expect("a write");
}

fn read_something(session: &mut Initiator) -> Vec<u8> {
    run(session, &cdb::read(0, 8), 4096).data_in
}

/// Sends `cdb`, and has it aborted, or its session end, while the state is about to be stored for it.
fn end_while_it_waits(target: &InProcess, hung: Hung, command: (&[u8; 16], &[u8]), loses_connection: bool) {
    let mut asker = Raw::ready(target.portal(), &target.options(2), 0).expect("a session");
    let (cdb, data_out) = command;
    let pdu = ScsiCommand {
        write: !data_out.is_empty(),
        read: false,
        lun: lun_field(0),
        expected_data_transfer_length: data_out.len() as u32,
        cdb: *cdb,
        ..plain()
    };
    let tag = asker.command(&pdu, data_out).expect("sent");
    expect_read(&mut asker);
    if loses_connection {
        drop(asker);
        hung.release();
        return;
    }
    let abort = asker.manage_task(TaskManagementFunction::AbortTask, 0, tag, asker.cmd_sn).expect("sent");
    expect_read(&mut asker);
    hung.release();
    assert_eq!(asker.managed(abort).expect("an answer"), FUNCTION_COMPLETE);
}

/// All that was sent before has been looked at.
fn expect_read(asker: &mut Raw) {
    let tag = asker.ping(b"there").expect("sent");
    asker.pinged(tag, b"there").expect("an answer");
}

/// SANITIZE (SBC-3) and ABORT TASK (RFC 7143, 11.5.1), or the loss of the I_T nexus (SAM-5).
#[test]
fn an_erasure_that_is_given_up_before_it_begins_closes_nothing_and_erases_nothing() {
    for loses_connection in [false, true] {
        for immediate in [false, true] {
            let place = Place::new();
            let target = InProcess::start(&[&place.flag()]);
            let mut watcher = session(&target, 1);
            write_something(&mut watcher);
            end_while_it_waits(&target, place.hang(), (&erase(immediate), &[]), loses_connection);
            wait_until("a free medium", || code(&run(&mut watcher, &TEST_UNIT_READY, 0)) == GOOD);
            drop(target);
            let target = InProcess::start(&[&place.flag()]);
            let mut watcher = session(&target, 1);
            assert_eq!(read_something(&mut watcher), vec![7; 4096]);
        }
    }
}

/// A SANITIZE that could not be begun for want of a place for its note (SBC-3).
#[test]
fn an_erasure_whose_note_was_surely_not_stored_closes_nothing() {
    let place = Place::new();
    let target = InProcess::start(&[&place.flag()]);
    let mut asker = session(&target, 1);
    write_something(&mut asker);
    // A directory, which nobody takes away, is no file to write.
    fs::create_dir(place.written_first()).expect("a directory");
    for immediate in [false, true] {
        assert_eq!(code(&run(&mut asker, &erase(immediate), 0)), (4, 0x44, 0));
        assert_eq!(read_something(&mut asker), vec![7; 4096], "nothing is closed, and nothing erased");
    }
    fs::remove_dir(place.written_first()).expect("it is empty");
    drop(target);
    let target = InProcess::start(&[&place.flag()]);
    assert_eq!(read_something(&mut session(&target, 1)), vec![7; 4096]);
}

/// MODE SELECT with SP, whose values are in effect from then on.
#[test]
fn a_change_is_stored_although_its_command_was_aborted() {
    for loses_connection in [false, true] {
        let place = Place::new();
        let target = InProcess::start(&[&place.flag()]);
        let mut watcher = session(&target, 1);
        let mut page = run(&mut watcher, &SAVED_CACHING, 255).data_in[4..].to_vec();
        assert_eq!(page[2], 0);
        // WCE.
        page[2] = 0x04;
        let list = [&[0; 4][..], &page].concat();
        let select = padded(&[0x15, 0x11, 0, 0, list.len() as u8]);
        end_while_it_waits(&target, place.hang(), (&select, &list), loses_connection);
        let state = place.directory.path().join("disk.lunette-state");
        wait_until("a stored state", || state.exists());
        drop(target);
        let target = InProcess::start(&[&place.flag()]);
        assert_eq!(run(&mut session(&target, 1), &SAVED_CACHING, 255).data_in[4 + 2], 0x04);
    }
}

/// The write mode that is told is the one that holds (SBC-3, WCE), whatever the configuration says.
#[test]
fn a_write_cache_that_a_host_has_saved_is_told_and_one_that_it_has_not_is_configured() {
    let control = [0x0a, 0x0a, 0, 0x10, 0, 0, 0, 0, 0, 0, 0, 0];
    for chooses in [false, true] {
        let place = Place::new();
        let start = |mode: &str| InProcess::start(&[&format!("{},write={mode}", place.flag())]);
        let target = start("back");
        let mut host = session(&target, 1);
        let caching = run(&mut host, &SAVED_CACHING, 255).data_in[4..].to_vec();
        let list = [&[0; 4][..], if chooses { &caching } else { &control }].concat();
        let select = Command {
            cdb: padded(&[0x15, 0x11, 0, 0, list.len() as u8]),
            data_out: list,
            ..Command::default()
        };
        host.execute_good(select).expect("saved");
        assert_eq!(target.unit_report(0).write_mode, WriteMode::Back);
        drop(target);
        let target = start("through");
        let wce = run(&mut session(&target, 1), &SAVED_CACHING, 255).data_in[4 + 2] & 0x04 != 0;
        let (told, warnings) =
            (target.unit_report(0).write_mode, target.log_with("a host has saved write=back"));
        let place = place.directory.path().display().to_string();
        let is_warned = warnings.iter().any(|line| line.contains(&place));
        assert_eq!((wce, told == WriteMode::Back, is_warned), (chooses, chooses, chooses), "{warnings:?}");
    }
}

/// After a restart the note in the file would have it erased again.
#[test]
fn what_was_erased_is_open_when_the_file_has_no_note_of_it() {
    let place = Place::new();
    let target = InProcess::start(&[&place.flag()]);
    let mut session = session(&target, 1);
    target.hold(0, OperationKind::Zero);
    session.execute_good(Command { cdb: erase(true), ..Command::default() }).expect("GOOD at once");
    target.wait_for_calls(0, OperationKind::Zero, 1);
    // A directory, which nobody takes away, is no file to write.
    fs::create_dir(place.written_first()).expect("a directory");
    target.faults(0).clear();
    let failure = "the state of a logical unit cannot be stored";
    let path = place.directory.path().display().to_string();
    wait_until("a failure", || target.log_with(&path).iter().any(|line| line.contains(failure)));
    assert_eq!(code(&run(&mut session, &TEST_UNIT_READY, 0)), IN_PROGRESS);
    fs::remove_dir(place.written_first()).expect("it is empty");
    wait_until("the end", || code(&run(&mut session, &TEST_UNIT_READY, 0)) == GOOD);
}

/// SANITIZE without IMMED ends with HARDWARE ERROR if it cannot be begun (SBC-3).
#[test]
fn a_file_that_hangs_holds_up_its_own_unit_alone() {
    let (place, other) = (Place::new(), Place::new());
    let target = InProcess::start(&[&place.flag_of(0), &other.flag_of(1)]);
    let hung = place.hang();
    let mut waiting = Raw::ready(target.portal(), &target.options(1), 0).expect("a session");
    let command = ScsiCommand { read: false, lun: lun_field(0), cdb: erase(false), ..plain() };
    let tag = waiting.command(&command, &[]).expect("sent");
    expect_read(&mut waiting);
    let mut session = Initiator::login(target.portal(), &target.options(2)).expect("a session");
    session.make_ready(1).expect("a ready unit");
    for _ in 0..2 {
        session.execute_good(Command { lun: 1, cdb: erase(false), ..Command::default() }).expect("GOOD");
    }
    hung.release();
    assert_eq!(waiting.ending(tag).expect("an answer").codes(), (4, 0x44, 0));
}
