//! RFC 7144 (iSCSIProtocolLevel 2) and FastAbort (RFC 7143, 4.2.3.4) through the whole stack: queries, I_T NEXUS RESET, and
//! what other sessions are told of an abort.

use lunette_block::OperationKind;
use lunette_tests::in_process::InProcess;
use lunette_tests::raw::{Raw, lun_field, write};
use lunette_wire::initiator::{ScsiDataOut, TaskManagementFunction as Function};
use lunette_wire::{InitiatorPdu, InitiatorTaskTag, TargetPdu};

use crate::{
    A_WHILE, BUS_DEVICE_RESET, COMPLETE, DISK, SECOND_DISK, expect_attention, expect_on_disk, expect_ready,
};

const NOT_SUPPORTED: u8 = 5;
const SUCCEEDED: u8 = 7;
const LUN_DOES_NOT_EXIST: u8 = 2;
const IT_NEXUS_LOSS: (u8, u8, u8) = (6, 0x29, 0x07);
/// AsyncEvent "task termination".
const TASK_TERMINATION: u8 = 5;

fn login(target: &InProcess, port: u8, keys: &[(&str, &str)]) -> Raw {
    let mut session = Raw::ready(target.portal(), &target.options_with(port, keys), 0).expect("a login");
    session.make_ready(1).expect("a ready unit");
    session
}

/// Response code and additional response information of the next PDU, which must answer `tag`.
fn answered(session: &mut Raw, tag: InitiatorTaskTag) -> (u8, [u8; 3]) {
    match session.receive().expect("an answer").0 {
        TargetPdu::TaskManagementResponse(pdu) if pdu.initiator_task_tag == tag => {
            (pdu.response, pdu.additional)
        }
        other => panic!("{other:?}"),
    }
}

/// RFC 7143: 13.24, 7144; SAM-5: 7.8 QUERY TASK, QUERY TASK SET.
#[test]
fn queries_are_answered_where_protocol_level_2_was_agreed_on() {
    let target = InProcess::start(&[DISK, SECOND_DISK]);
    let mut session = login(&target, 1, &[("iSCSIProtocolLevel", "2")]);
    let ask = |session: &mut Raw, function, lun| {
        let tag = session.manage(function, lun).expect("sent");
        answered(session, tag)
    };
    assert_eq!(ask(&mut session, Function::QueryTaskSet, 0), (COMPLETE, [0; 3]));
    target.hold(0, OperationKind::Read);
    let cmd_sn = session.cmd_sn;
    let read = session.read(0, 0, 1).expect("sent");
    target.wait_for_calls(0, OperationKind::Read, 1);
    assert_eq!(ask(&mut session, Function::QueryTaskSet, 0), (SUCCEEDED, [0; 3]));
    assert_eq!(ask(&mut session, Function::QueryTaskSet, 1), (COMPLETE, [0; 3]));
    for (referenced, expected) in [(read, SUCCEEDED), (InitiatorTaskTag(0x7777), COMPLETE)] {
        let tag = session.manage_task(Function::QueryTask, 0, referenced, cmd_sn).expect("sent");
        assert_eq!(answered(&mut session, tag), (expected, [0; 3]));
    }
    target.faults(0).clear();
    session.data_in(read).expect("a query harms no task");
    // Another session's reset is an event, until a command has reported it.
    assert_eq!(ask(&mut session, Function::QueryAsynchronousEvent, 0), (COMPLETE, [0; 3]));
    let mut other = login(&target, 2, &[]);
    let tag = other.manage(Function::LogicalUnitReset, 0).expect("sent");
    assert_eq!(other.managed(tag).expect("an answer"), COMPLETE);
    for _ in 0..2 {
        assert_eq!(ask(&mut session, Function::QueryAsynchronousEvent, 0), (SUCCEEDED, [0x16, 0x29, 0x03]));
    }
    assert_eq!(ask(&mut session, Function::QueryAsynchronousEvent, 1), (COMPLETE, [0; 3]));
    expect_attention(&mut session, 0, BUS_DEVICE_RESET);
    assert_eq!(ask(&mut session, Function::QueryAsynchronousEvent, 0), (COMPLETE, [0; 3]));
    for function in [Function::QueryTask, Function::QueryTaskSet, Function::QueryAsynchronousEvent] {
        assert_eq!(ask(&mut session, function, 9), (LUN_DOES_NOT_EXIST, [0; 3]));
        assert_eq!(ask(&mut other, function, 0), (NOT_SUPPORTED, [0; 3]), "level 1");
    }
}

/// RFC 7143: 7144; SAM-5: 7.6 I_T NEXUS RESET.
#[test]
fn an_it_nexus_reset_ends_the_tasks_of_its_session_on_all_units() {
    let target = InProcess::start(&[DISK, SECOND_DISK]);
    let mut session = login(&target, 1, &[("iSCSIProtocolLevel", "2")]);
    let mut other = login(&target, 2, &[("iSCSIProtocolLevel", "2")]);
    for lun in [0, 1] {
        target.hold(lun, OperationKind::Read);
        session.read(lun as u8, 0, 1).expect("sent");
        target.wait_for_calls(lun, OperationKind::Read, 1);
    }
    let kept = other.read(1, 8, 1).expect("sent");
    target.wait_for_calls(1, OperationKind::Read, 2);
    let tag = session.manage(Function::ItNexusReset, 0).expect("sent");
    session.silent().expect("tasks are in the stores");
    target.faults(0).clear();
    session.waits(A_WHILE).expect("a task of the second unit is in its store");
    target.faults(1).clear();
    assert_eq!(session.managed(tag).expect("no read is answered before"), COMPLETE);
    other.data_in(kept).expect("tasks of others go on");
    for lun in [0, 1] {
        expect_attention(&mut session, lun, IT_NEXUS_LOSS);
        expect_ready(&mut other, lun);
    }
}

/// 4.2.3.4, 4.2.3.5: who agreed on FastAbort is told of a reset by another session; who did not is told nothing.
#[test]
fn a_reset_is_told_to_sessions_that_agreed_on_fast_abort() {
    let target = InProcess::start(&[DISK, SECOND_DISK]);
    let solicited = [("InitialR2T", "Yes"), ("ImmediateData", "No")];
    let with = |reporting| [("TaskReporting", reporting), solicited[0], solicited[1]];
    let mut fast = login(&target, 1, &with("FastAbort,ResponseFence,RFC3720"));
    let mut plain = login(&target, 2, &with("RFC3720"));
    let mut asking = login(&target, 3, &[]);
    let mut asked = Vec::new();
    for session in [&mut fast, &mut plain] {
        let tag = session.command(&write(0, 0, 1024), &[]).expect("sent");
        asked.push((tag, session.r2t(tag).expect("an R2T")));
    }
    let tag = asking.manage(Function::LogicalUnitReset, 0).expect("sent");
    assert_eq!(asking.managed(tag).expect("no data is waited for"), COMPLETE);
    match fast.receive().expect("an Asynchronous Message").0 {
        TargetPdu::AsynchronousMessage(pdu) => {
            assert_eq!((pdu.event, pdu.lun, pdu.parameters), (TASK_TERMINATION, lun_field(0), [0; 3]));
        }
        other => panic!("{other:?}"),
    }
    plain.silent().expect("nothing is told");
    // What crosses the message is thrown away without a word.
    let (tag, r2t) = &asked[0];
    let late = ScsiDataOut {
        is_final: true,
        lun: lun_field(0),
        initiator_task_tag: *tag,
        target_transfer_tag: r2t.target_transfer_tag,
        ..ScsiDataOut::default()
    };
    fast.send(&InitiatorPdu::ScsiDataOut(late), &[0xee; 1024]).expect("sent");
    fast.acknowledge(lun_field(0)).expect("sent");
    for session in [&mut fast, &mut plain] {
        expect_attention(session, 0, BUS_DEVICE_RESET);
    }
    expect_on_disk(&mut fast, 0, &[0; 1024]);
    fast.silent().expect("alive");
}

/// 4.2.3.4: the session that asks owes no data any more.
#[test]
fn with_fast_abort_nobody_waits_for_data_that_is_owed() {
    let target = InProcess::start(&[DISK, SECOND_DISK]);
    let keys = [("TaskReporting", "FastAbort"), ("InitialR2T", "Yes"), ("ImmediateData", "No")];
    let mut session = login(&target, 1, &keys);
    let tag = session.command(&write(0, 0, 1024), &[]).expect("sent");
    session.r2t(tag).expect("an R2T");
    let abort = session.manage(Function::AbortTaskSet, 0).expect("sent");
    assert_eq!(session.managed(abort).expect("an answer at once"), COMPLETE);
    // An abort of one task is none of this.
    let cmd_sn = session.cmd_sn;
    let tag = session.command(&write(0, 0, 1024), &[]).expect("sent");
    let r2t = session.r2t(tag).expect("an R2T");
    let abort = session.manage_task(Function::AbortTask, 0, tag, cmd_sn).expect("sent");
    session.waits(A_WHILE).expect("its data is owed");
    session.answer_r2t(&r2t, &[0xee; 1024], 1024).expect("sent");
    assert_eq!(session.managed(abort).expect("an answer"), COMPLETE);
    expect_on_disk(&mut session, 0, &[0; 1024]);
}
