//! Auto contingent allegiance over sessions, connections and reactors (SAM-5, 5.9; RFC 7143, 4.2.2.3.4 and 10.2), and what a
//! failed command does to others (SPC-4, QERR).

use lunette_block::OperationKind;
use lunette_tests::in_process::InProcess;
use lunette_tests::raw::{BLOCK_BYTES, Ending, Raw, plain, read, write};
use lunette_wire::initiator::{ScsiCommand, TaskAttribute, TaskManagementFunction as Function};
use lunette_wire::{CmdSn, InitiatorTaskTag};

use crate::connections::Session;
use crate::management::taken_in;
use crate::{
    A_WHILE, BUS_DEVICE_RESET, CHECK_CONDITION, COMMANDS_CLEARED, COMPLETE, DISK, SECOND_DISK,
    expect_attention, expect_ready, ready_session,
};

pub(crate) const BUSY: u8 = 0x08;
pub(crate) const ACA_ACTIVE: u8 = 0x30;
const TASK_ABORTED: u8 = 0x40;
const OUT_OF_RANGE: (u8, u8, u8) = (5, 0x21, 0);
const MODE_CHANGED: (u8, u8, u8) = (6, 0x2a, 1);
/// TEST UNIT READY with NACA in its CONTROL byte.
const READY_NACA: [u8; 16] = [0, 0, 0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];

/// A read beyond the end, with NACA if that is wanted.
fn wrong(naca: bool) -> ScsiCommand {
    let mut command = read(0, 1 << 40, 1);
    command.cdb[15] = u8::from(naca) << 2;
    command
}

fn aca(command: ScsiCommand) -> ScsiCommand {
    ScsiCommand { attribute: TaskAttribute::Aca, ..command }
}

fn run(session: &mut Raw, command: &ScsiCommand) -> Ending {
    let tag = session.command(command, &[]).expect("sent");
    session.ending(tag).expect("an answer")
}

fn status(session: &mut Raw, command: &ScsiCommand) -> u8 {
    run(session, command).status
}

/// The session establishes an allegiance.
fn establish(session: &mut Raw) {
    let ending = run(session, &wrong(true));
    assert_eq!((ending.status, ending.codes()), (CHECK_CONDITION, OUT_OF_RANGE));
}

/// The allegiance of another session stands.
fn expect_kept_out(session: &mut Raw) {
    assert_eq!(status(session, &plain()), BUSY);
    assert_eq!(status(session, &ScsiCommand { cdb: READY_NACA, ..plain() }), ACA_ACTIVE);
}

/// Two sessions; the second one has a write in the store, which is held there, when the first establishes an allegiance.
fn blocked_write() -> (InProcess, Raw, Raw, InitiatorTaskTag) {
    let target = InProcess::start(&[DISK, SECOND_DISK]);
    let (mut first, mut second) = (ready_session(&target, 1), ready_session(&target, 2));
    target.hold(0, OperationKind::Write);
    let blocked = second.write(0, 0, &[0xaa; BLOCK_BYTES]).expect("sent");
    target.wait_for_calls(0, OperationKind::Write, 1);
    establish(&mut first);
    (target, first, second, blocked)
}

/// RFC 7143: 10.2; SAM-5: 5.3.1 status, 5.9.2 establishing, 7.4 CLEAR ACA.
#[test]
fn an_allegiance_blocks_all_sessions_until_it_is_cleared() {
    let (target, mut first, mut second, blocked) = blocked_write();
    target.faults(0).clear();
    second.waits(A_WHILE).expect("its write is blocked, though the store is through with it");
    expect_kept_out(&mut second);
    assert_eq!(status(&mut first, &plain()), ACA_ACTIVE);
    assert_eq!(status(&mut first, &read(0, 0, 1)), ACA_ACTIVE);
    // Another unit is another task set.
    expect_ready(&mut second, 1);
    expect_ready(&mut first, 1);
    assert_eq!(status(&mut first, &aca(plain())), 0);
    let looks = first.command(&aca(read(0, 0, 1)), &[]).expect("sent");
    assert_eq!(first.data_in(looks).expect("an ACA command").0, [0xaa; BLOCK_BYTES]);
    let not_theirs = second.manage(Function::ClearAca, 0).expect("sent");
    assert_eq!(second.managed(not_theirs).expect("an answer"), COMPLETE);
    expect_kept_out(&mut second);
    let clear = first.manage(Function::ClearAca, 0).expect("sent");
    assert_eq!(first.managed(clear).expect("an answer"), COMPLETE);
    second.good(blocked).expect("its write goes on");
    expect_ready(&mut first, 0);
    expect_ready(&mut second, 0);
}

/// SAM-5: 6.3.4 I_T nexus loss.
#[test]
fn an_allegiance_ends_with_its_session() {
    let (target, first, mut second, blocked) = blocked_write();
    target.faults(0).clear();
    second.waits(A_WHILE).expect("its write is blocked");
    drop(first);
    second.good(blocked).expect("its write goes on");
    expect_ready(&mut second, 0);
}

/// SAM-5: 5.9.5 clearing.
#[test]
fn a_reset_by_another_session_ends_an_allegiance() {
    let (target, mut first, mut second, _) = blocked_write();
    target.faults(0).clear();
    second.waits(A_WHILE).expect("its write is blocked");
    let reset = second.manage(Function::LogicalUnitReset, 0).expect("sent");
    assert_eq!(second.managed(reset).expect("its blocked write is aborted"), COMPLETE);
    expect_attention(&mut second, 0, BUS_DEVICE_RESET);
    expect_attention(&mut first, 0, BUS_DEVICE_RESET);
}

/// A blocked command that is aborted is not answered, and does not come back when the allegiance ends.
/// SAM-5: 7.2 ABORT TASK.
#[test]
fn blocked_commands_can_be_aborted() {
    let (target, mut first, mut second, blocked) = blocked_write();
    let cmd_sn = second.cmd_sn;
    let collecting = second.command(&write(0, 8, BLOCK_BYTES), &[]).expect("sent");
    assert_eq!(second.ending(collecting).expect("an answer").status, BUSY);
    target.faults(0).clear();
    second.waits(A_WHILE).expect("its write is blocked");
    let abort = second.manage_task(Function::AbortTask, 0, blocked, cmd_sn).expect("sent");
    assert_eq!(second.managed(abort).expect("at once"), COMPLETE);
    let clear = first.manage(Function::ClearAca, 0).expect("sent");
    assert_eq!(first.managed(clear).expect("an answer"), COMPLETE);
    expect_ready(&mut second, 0);
}

/// SAM-5, CLEAR ACA: for commands with the ACA attribute it is what ABORT TASK is.
#[test]
fn clear_aca_aborts_the_aca_command() {
    let target = InProcess::start(&[DISK]);
    let mut session = target.session(1);
    establish(&mut session);
    target.hold(0, OperationKind::Read);
    session.command(&aca(read(0, 0, 1)), &[]).expect("sent");
    target.wait_for_calls(0, OperationKind::Read, 1);
    assert_eq!(status(&mut session, &aca(plain())), ACA_ACTIVE, "there is one already");
    let clear = session.manage(Function::ClearAca, 0).expect("sent");
    session.waits(A_WHILE).expect("a read is in the store");
    target.faults(0).clear();
    assert_eq!(session.managed(clear).expect("an answer to nothing else"), COMPLETE);
    expect_ready(&mut session, 0);
    let ending = run(&mut session, &aca(plain()));
    assert_eq!(ending.codes(), (5, 0x49, 0), "INVALID MESSAGE ERROR");
}

/// RFC 7143, 4.2.2.3.4: the nexus is one, whatever connection a command takes, and the beginning and the end of its
/// allegiance keep their place among all answers.
#[test]
fn an_allegiance_is_that_of_all_connections_of_a_session() {
    let target = InProcess::start(&[DISK]);
    let mut session = Session::open(&target, 1, 2);
    establish(session.on(0));
    session.acknowledge_all();
    let tag = session.on(1).command(&plain(), &[]).expect("sent");
    assert_eq!(session.on(1).ending(tag).expect("an answer").status, ACA_ACTIVE);
    session.acknowledge_all();
    let tag = session.on(1).command(&aca(plain()), &[]).expect("sent");
    session.on(1).good(tag).expect("an ACA command");
    session.acknowledge_all();
    let clear = session.on(1).manage(Function::ClearAca, 0).expect("sent");
    assert_eq!(session.on(1).managed(clear).expect("an answer"), COMPLETE);
    session.acknowledge_all();
    let tag = session.on(0).command(&plain(), &[]).expect("sent");
    session.on(0).good(tag).expect("it is over");
    session.acknowledge_all();
    session.expect_open_window();
}

/// MODE SELECT (6) of the control page: QERR, TAS, and queue algorithm modifier 1.
pub(crate) fn select(session: &mut Raw, queue_error: u8, task_aborted: bool) {
    let byte = 0x10 | queue_error << 1;
    let list = [0, 0, 0, 0, 0x0a, 0x0a, 0, byte, 0, u8::from(task_aborted) << 6, 0, 0, 0, 0, 0, 0];
    let cdb = [0x15, 0x10, 0, 0, 16, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let select = ScsiCommand { write: true, expected_data_transfer_length: 16, cdb, ..plain() };
    let tag = session.command(&select, &list).expect("sent");
    session.good(tag).expect("changeable bits");
}

/// Two sessions of a unit with these bits, whose reads are held in the store.
fn held_reads(queue_error: u8, task_aborted: bool) -> (InProcess, Raw, Raw) {
    let target = InProcess::start(&[DISK]);
    let (mut first, mut second) = (target.session(1), target.session(2));
    expect_ready(&mut first, 0);
    expect_ready(&mut second, 0);
    select(&mut first, queue_error, task_aborted);
    expect_attention(&mut second, 0, MODE_CHANGED);
    target.hold(0, OperationKind::Read);
    (target, first, second)
}

/// The first session's command fails while it and the second have a read each in the store.
fn fail_amid_reads(queue_error: u8, task_aborted: bool) -> (InProcess, [Raw; 2], [InitiatorTaskTag; 3]) {
    let (target, mut first, mut second) = held_reads(queue_error, task_aborted);
    let of_second = second.read(0, 0, 1).expect("sent");
    let of_first = first.read(0, 0, 1).expect("sent");
    target.wait_for_calls(0, OperationKind::Read, 2);
    let fails = first.command(&wrong(false), &[]).expect("sent");
    (target, [first, second], [fails, of_first, of_second])
}

fn expect_failure(session: &mut Raw, tag: InitiatorTaskTag) {
    let ending = session.ending(tag).expect("an answer to nothing else");
    assert_eq!((ending.status, ending.codes()), (CHECK_CONDITION, OUT_OF_RANGE));
}

/// QERR 00b: nobody else is concerned.
#[test]
fn a_failed_command_leaves_others_alone() {
    let (target, [mut first, mut second], [fails, of_first, of_second]) = fail_amid_reads(0, true);
    expect_failure(&mut first, fails);
    target.faults(0).clear();
    first.data_in(of_first).expect("a read");
    second.data_in(of_second).expect("a read");
}

/// QERR 01b: the commands of all nexuses are aborted before the failure is told.
/// SPC-4: 0Ah Control: QERR; SAM-5: 5.9.2 QERR 01b.
#[test]
fn a_failed_command_may_abort_those_of_all_sessions() {
    let (target, [mut first, mut second], [fails, ..]) = fail_amid_reads(1, false);
    taken_in(&mut first, &mut second);
    target.faults(0).clear();
    expect_failure(&mut first, fails);
    expect_attention(&mut second, 0, COMMANDS_CLEARED);
    expect_ready(&mut first, 0);
}

/// The same with TAS: who has not failed gets a status instead.
/// SPC-4: 0Ah Control: QERR.
#[test]
fn a_failed_command_may_end_those_of_others_with_a_status() {
    let (target, [mut first, mut second], [fails, _, of_second]) = fail_amid_reads(1, true);
    taken_in(&mut first, &mut second);
    target.faults(0).clear();
    expect_failure(&mut first, fails);
    assert_eq!(second.ending(of_second).expect("an answer").status, TASK_ABORTED);
    expect_ready(&mut second, 0);
    expect_ready(&mut first, 0);
}

/// QERR 11b: those of the same nexus only.
/// SAM-5: 5.9.2 QERR 11b.
#[test]
fn a_failed_command_may_abort_those_of_its_own_session() {
    let (target, [mut first, mut second], [fails, _, of_second]) = fail_amid_reads(3, false);
    taken_in(&mut first, &mut second);
    target.faults(0).clear();
    expect_failure(&mut first, fails);
    second.data_in(of_second).expect("a read");
    expect_ready(&mut first, 0);
}

/// A command fails while another one that has failed waits for the end of those that it aborts: both are told.
/// SPC-4: 0Ah Control: QERR.
#[test]
fn failed_commands_of_a_session_do_not_abort_each_other() {
    let (target, [mut first, mut second], [fails, _, of_second]) = fail_amid_reads(3, false);
    let fails_too = first.command(&wrong(false), &[]).expect("sent");
    taken_in(&mut first, &mut second);
    target.faults(0).clear();
    expect_failure(&mut first, fails);
    expect_failure(&mut first, fails_too);
    second.data_in(of_second).expect("a read");
    expect_ready(&mut first, 0);
}

/// The same over sessions; who has lost nothing but what it is told of has no unit attention either.
#[test]
fn failed_commands_of_sessions_do_not_abort_each_other() {
    let (target, mut first, mut second) = held_reads(1, false);
    first.read(0, 0, 1).expect("sent");
    target.wait_for_calls(0, OperationKind::Read, 1);
    let fails = second.command(&wrong(false), &[]).expect("sent");
    taken_in(&mut second, &mut first);
    let told = first.command(&plain(), &[]).expect("sent");
    taken_in(&mut first, &mut second);
    target.faults(0).clear();
    let ending = first.ending(told).expect("an answer to nothing else");
    assert_eq!((ending.status, ending.codes()), (CHECK_CONDITION, COMMANDS_CLEARED));
    expect_failure(&mut second, fails);
    expect_ready(&mut second, 0);
    expect_ready(&mut first, 0);
}

/// A command that has failed and whose status has yet to be told exists (SAM-5, 5.5): ABORT TASK ends it without a status, and
/// waits for none of those that it aborts, which end all the same.
#[test]
fn a_failed_command_can_be_aborted_before_it_is_told() {
    const DOES_NOT_EXIST: u8 = 1;
    let (target, [mut first, mut second], [fails, ..]) = fail_amid_reads(1, false);
    taken_in(&mut first, &mut second);
    let abort = |session: &mut Raw| {
        let cmd_sn = session.cmd_sn;
        let tag = session
            .manage_task(Function::AbortTask, 0, fails, CmdSn(cmd_sn.0.wrapping_sub(1)))
            .expect("sent");
        session.managed(tag).expect("at once")
    };
    assert_eq!(abort(&mut first), COMPLETE);
    assert_eq!(abort(&mut first), DOES_NOT_EXIST);
    target.faults(0).clear();
    expect_attention(&mut second, 0, COMMANDS_CLEARED);
    expect_ready(&mut first, 0);
}

fn abort_last(session: &mut Raw, tag: InitiatorTaskTag) {
    let cmd_sn = CmdSn(session.cmd_sn.0.wrapping_sub(1));
    let abort = session.manage_task(Function::AbortTask, 0, tag, cmd_sn).expect("sent");
    assert_eq!(session.managed(abort).expect("an answer"), COMPLETE);
}

/// Who is not told of a failure cannot know of the allegiance that it has brought about, nor clear it: that ends with the command.
#[test]
fn an_allegiance_ends_with_a_command_that_is_aborted_before_its_failure_is_told() {
    // It waits for the end of those that it aborts.
    let (target, mut first, mut second) = held_reads(1, false);
    second.read(0, 0, 1).expect("sent");
    target.wait_for_calls(0, OperationKind::Read, 1);
    let fails = first.command(&wrong(true), &[]).expect("sent");
    taken_in(&mut first, &mut second);
    abort_last(&mut first, fails);
    target.faults(0).clear();
    expect_attention(&mut second, 0, COMMANDS_CLEARED);
    expect_ready(&mut first, 0);
    // It waits for data that its initiator owes it.
    let options = target.options_with(3, &[("InitialR2T", "No"), ("ImmediateData", "Yes")]);
    let mut third = Raw::ready(target.portal(), &options, 0).expect("a session");
    let mut beyond = ScsiCommand { is_final: false, ..write(0, 1 << 40, 2 * BLOCK_BYTES) };
    beyond.cdb[15] = 4;
    let fails = third.command(&beyond, &[1; BLOCK_BYTES]).expect("sent");
    third.silent().expect("its answer waits for the rest of its data");
    assert_eq!(status(&mut first, &plain()), BUSY, "the allegiance stands");
    let cmd_sn = CmdSn(third.cmd_sn.0.wrapping_sub(1));
    let abort = third.manage_task(Function::AbortTask, 0, fails, cmd_sn).expect("sent");
    let tags = (fails, lunette_wire::TargetTransferTag::RESERVED);
    third.sequence(tags, BLOCK_BYTES, &[1; BLOCK_BYTES], BLOCK_BYTES).expect("sent");
    assert_eq!(third.managed(abort).expect("an answer"), COMPLETE);
    expect_ready(&mut first, 0);
    expect_ready(&mut third, 0);
}

/// ABORTED COMMAND, WRITE ERROR - NOT ENOUGH UNSOLICITED DATA.
const INCORRECT_AMOUNT_OF_DATA: (u8, u8, u8) = (0x0b, 0x0c, 0x0d);

/// A session for which immediate data is a protocol error (RFC 7143, 11.4.7.2 and 13.11).
fn without_immediate_data(target: &InProcess) -> Raw {
    let options = target.options_with(3, &[("ImmediateData", "No")]);
    Raw::ready(target.portal(), &options, 0).expect("a session")
}

fn expect_spoilt(session: &mut Raw, tag: InitiatorTaskTag) {
    const UNEXPECTED_UNSOLICITED_DATA: (u8, u8, u8) = (0x0b, 0x0c, 0x0c);
    let ending = session.ending(tag).expect("an answer");
    assert_eq!((ending.status, ending.codes()), (CHECK_CONDITION, UNEXPECTED_UNSOLICITED_DATA));
}

/// What the transport finds wrong is a CHECK CONDITION like any other (SAM-5, 5.9.1), whether the command waits for its data or
/// has ended.
#[test]
fn a_command_that_the_transport_spoils_establishes_an_allegiance() {
    let target = InProcess::start(&[DISK]);
    let mut other = target.session(2);
    let mut session = without_immediate_data(&target);
    let mut spoilt = write(0, 0, BLOCK_BYTES);
    spoilt.cdb[15] = 4;
    let ended = ScsiCommand { cdb: READY_NACA, ..spoilt };
    for command in [spoilt, ended] {
        let tag = session.command(&command, &[0; BLOCK_BYTES]).expect("sent");
        expect_spoilt(&mut session, tag);
        assert_eq!(status(&mut session, &plain()), ACA_ACTIVE);
        expect_kept_out(&mut other);
        let clear = session.manage(Function::ClearAca, 0).expect("sent");
        assert_eq!(session.managed(clear).expect("an answer"), COMPLETE);
        expect_ready(&mut other, 0);
        expect_ready(&mut session, 0);
    }
}

/// It is itself blocked by the allegiance of another nexus (SAM-5, 5.9.2).
#[test]
fn a_command_that_the_transport_spoils_is_told_after_an_allegiance() {
    let target = InProcess::start(&[DISK]);
    let mut faulted = target.session(1);
    let mut session = target.session(2);
    let tag = session.command(&write(0, 0, BLOCK_BYTES), &[]).expect("sent");
    let r2t = session.r2t(tag).expect("an R2T");
    establish(&mut faulted);
    session.sequence((tag, r2t.target_transfer_tag), 0, &[0; 4], BLOCK_BYTES).expect("sent");
    session.waits(A_WHILE).expect("blocked");
    let clear = faulted.manage(Function::ClearAca, 0).expect("sent");
    assert_eq!(faulted.managed(clear).expect("an answer"), COMPLETE);
    let ending = session.ending(tag).expect("an answer");
    assert_eq!((ending.status, ending.codes()), (CHECK_CONDITION, INCORRECT_AMOUNT_OF_DATA));
}

/// SPC-4, QERR 01b.
#[test]
fn a_command_that_the_transport_spoils_may_abort_those_of_others() {
    let (target, mut first, mut second) = held_reads(1, false);
    let mut session = without_immediate_data(&target);
    for other in [&mut first, &mut second] {
        other.read(0, 0, 1).expect("sent");
    }
    target.wait_for_calls(0, OperationKind::Read, 2);
    let tag = session.command(&write(0, 0, BLOCK_BYTES), &[0; BLOCK_BYTES]).expect("sent");
    session.waits(A_WHILE).expect("reads are in the store");
    for other in [&mut first, &mut second] {
        other.silent().expect("its reactor knows");
    }
    target.faults(0).clear();
    expect_spoilt(&mut session, tag);
    for other in [&mut first, &mut second] {
        expect_attention(other, 0, COMMANDS_CLEARED);
    }
}
