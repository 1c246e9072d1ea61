//! SANITIZE and FORMAT UNIT over real sockets: who waits, who is kept out, and what goes on when the one who asked is gone
//! (SBC-3, SANITIZE command, FORMAT UNIT command).

use std::fs;

use lunette_block::OperationKind;
use lunette_block::fault::{Effect, Errno, Rule, When};
use lunette_tests::in_process::{InProcess, wait_until};
use lunette_tests::initiator::{Command, Completion, Initiator};
use lunette_tests::raw::{BLOCK_BYTES, Raw, lun_field, plain};
use lunette_wire::initiator::{ScsiCommand, TaskManagementFunction};
use tempfile::TempDir;

use super::{TEST_UNIT_READY, code, padded, run, session};
use crate::{A_WHILE, FUNCTION_COMPLETE};

const SIZE_BYTES: usize = 8 << 20;
const GOOD: (u8, u8, u8) = (0, 0, 0);
const IN_PROGRESS: (u8, u8, u8) = (2, 0x04, 0x1b);
const FORMATTING: (u8, u8, u8) = (2, 0x04, 0x04);

/// SANITIZE, OVERWRITE once with bytes of 5ah.
fn overwrite(immediate: bool) -> Command {
    let action = if immediate { 0x81 } else { 0x01 };
    Command {
        cdb: padded(&[0x48, action, 0, 0, 0, 0, 0, 0, 5, 0]),
        data_out: vec![1, 0, 0, 1, 0x5a],
        ..Command::default()
    }
}

/// FORMAT UNIT with bytes of 5ah in every block, answered at once.
fn format() -> Command {
    let data_out = vec![0, 0x8a, 0, 0, 0, 1, 0, 1, 0x5a];
    Command { cdb: padded(&[0x04, 0x10]), data_out, ..Command::default() }
}

fn ready(session: &mut Initiator) -> Completion {
    run(session, &TEST_UNIT_READY, 0)
}

fn wait_for_the_end(session: &mut Initiator) {
    wait_until("the end of SANITIZE or FORMAT UNIT", || {
        let now = code(&ready(session));
        assert!([GOOD, IN_PROGRESS, FORMATTING].contains(&now), "{now:02x?}");
        now == GOOD
    });
}

fn expect_wiped(session: &mut Initiator) {
    let blocks = 2048u32;
    for lba in (0..(SIZE_BYTES / BLOCK_BYTES) as u64).step_by(blocks as usize) {
        let cdb = lunette_tests::initiator::cdb::read(lba, blocks);
        let read = Command { cdb, data_in_bytes: blocks * BLOCK_BYTES as u32, ..Command::default() };
        assert!(session.execute_good(read).expect("data").iter().all(|&byte| byte == 0x5a), "from {lba}");
    }
}

#[test]
fn an_immediate_one_goes_on_behind_its_status() {
    let target = InProcess::start(&["0=mem:8M", "1=mem:8M"]);
    let (mut first, mut second) = (session(&target, 1), session(&target, 2));
    target.hold(0, OperationKind::Write);
    first.execute_good(overwrite(true)).expect("GOOD at once");
    for session in [&mut first, &mut second] {
        let sense = ready(session);
        assert_eq!(code(&sense), IN_PROGRESS);
        assert_eq!(sense.sense[15] & 0x80, 0x80, "a progress indication");
    }
    // The other unit is nobody's concern.
    let other =
        Command { lun: 1, cdb: padded(&[0x12, 0, 0, 0, 36]), data_in_bytes: 36, ..Command::default() };
    second.execute_good(other).expect("INQUIRY");
    target.faults(0).clear();
    wait_for_the_end(&mut second);
    expect_wiped(&mut first);
}

#[test]
fn any_other_is_answered_at_its_end() {
    let target = InProcess::start(&["0=mem:8M"]);
    let mut session = session(&target, 1);
    session.execute_good(overwrite(false)).expect("GOOD");
    assert_eq!(code(&ready(&mut session)), GOOD);
    expect_wiped(&mut session);
    let format = Command { cdb: padded(&[0x04]), ..Command::default() };
    session.execute_good(format).expect("GOOD");
    let read = run(&mut session, &lunette_tests::initiator::cdb::read(0, 8), 4096);
    assert_eq!(read.data_in, vec![0; 4096]);
}

#[test]
fn a_failure_is_told_to_who_waits_and_to_all_others() {
    let target = InProcess::start(&["0=mem:8M"]);
    let (mut first, mut second) = (session(&target, 1), session(&target, 2));
    target.faults(0).add(Rule::new(OperationKind::Write, When::Nth(3), Effect::Fail(Errno::IO)));
    assert_eq!(code(&first.execute(overwrite(false)).expect("an answer")), (3, 0x31, 0x03));
    assert_eq!(code(&ready(&mut second)), (3, 0x31, 0x03));
    second.execute_good(overwrite(false)).expect("the second try is not disturbed");
    expect_wiped(&mut first);
}

/// Neither an abort nor the loss of the nexus ends a sanitize operation.
#[test]
fn it_goes_on_when_the_one_who_asked_is_gone() {
    let target = InProcess::start(&["0=mem:8M"]);
    let mut watcher = session(&target, 1);
    for loses_connection in [false, true] {
        target.hold(0, OperationKind::Write);
        let mut asker = Raw::ready(target.portal(), &target.options(2), 0).expect("a session");
        let Command { cdb, data_out, .. } = overwrite(false);
        let command = ScsiCommand {
            write: true,
            lun: lun_field(0),
            expected_data_transfer_length: data_out.len() as u32,
            cdb,
            ..plain()
        };
        let tag = asker.command(&command, &data_out).expect("sent");
        wait_until("the begin", || code(&ready(&mut watcher)) == IN_PROGRESS);
        asker.waits(A_WHILE).expect("no answer before the end");
        if loses_connection {
            drop(asker);
        } else {
            let abort =
                asker.manage_task(TaskManagementFunction::AbortTask, 0, tag, asker.cmd_sn).expect("sent");
            assert_eq!(asker.managed(abort).expect("it does not wait for the work"), FUNCTION_COMPLETE);
        }
        assert_eq!(code(&ready(&mut watcher)), IN_PROGRESS);
        target.faults(0).clear();
        wait_for_the_end(&mut watcher);
        expect_wiped(&mut watcher);
    }
}

/// What a crash leaves is the image and the state beside it, here as copies of both at a moment in the middle.
/// SBC-3: FORMAT UNIT.
#[test]
fn it_goes_on_after_a_crash() {
    for (begin, meanwhile) in [(overwrite(true), IN_PROGRESS), (format(), FORMATTING)] {
        let directory = TempDir::new().expect("a directory");
        let place = |name: &str| directory.path().join(name);
        let flag = |name: &str| format!("0=file:{},size=8M,serial=crash", place(name).display());
        {
            let target = InProcess::start(&[&flag("before")]);
            let mut session = session(&target, 1);
            let middle = Rule::new(OperationKind::Write, When::Every, Effect::Hold).within(4 << 20..5 << 20);
            target.faults(0).add(middle);
            session.execute_good(begin).expect("GOOD at once");
            target.wait_for_calls(0, OperationKind::Write, 5);
            expect_half_done(&mut session, meanwhile);
            for suffix in ["", ".lunette-state"] {
                fs::copy(place(&format!("before{suffix}")), place(&format!("after{suffix}")))
                    .expect("a copy");
            }
        }
        let target = InProcess::start_held(&[&flag("after")], OperationKind::Write);
        let mut session = session_in_sanitize(&target);
        assert_eq!(code(&ready(&mut session)), meanwhile);
        target.faults(0).clear();
        wait_for_the_end(&mut session);
        expect_wiped(&mut session);
    }
}

/// Four of eight pieces are written: the progress indication says half, of 65536 parts (SPC-4, 4.5.2.4.4).
fn expect_half_done(session: &mut Initiator, meanwhile: (u8, u8, u8)) {
    let sense = ready(session);
    assert_eq!(code(&sense), meanwhile);
    assert_eq!(sense.sense[15..18], [0x80, 0x80, 0]);
}

fn session_in_sanitize(target: &InProcess) -> Initiator {
    let mut session = Initiator::login(target.portal(), &target.options(1)).expect("a session");
    assert_eq!(code(&ready(&mut session)), (6, 0x29, 0));
    session
}

#[test]
fn a_drain_in_the_middle_loses_nothing() {
    let directory = TempDir::new().expect("a directory");
    let path = directory.path().join("disk");
    let flag = format!("0=file:{},size=8M,serial=drain", path.display());
    let target = InProcess::start(&[&flag]);
    target.hold(0, OperationKind::Write);
    let mut asker = session(&target, 1);
    asker.execute_good(overwrite(true)).expect("GOOD at once");
    asker.logout().expect("a logout");
    target.drain();
    target.faults(0).clear();
    assert!(target.end().expect("an end").is_ok());
    let target = InProcess::start(&[&flag]);
    let mut session = session_in_sanitize(&target);
    wait_for_the_end(&mut session);
    expect_wiped(&mut session);
}
