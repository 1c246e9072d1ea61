//! ABORT TASK (11.5.1, 11.6.1): in a store, while its data is coming, before its turn, before it has come.

use std::thread;

use lunette_block::OperationKind;
use lunette_tests::in_process::InProcess;
use lunette_tests::raw::{BLOCK_BYTES, Raw, plain, read, write};
use lunette_wire::initiator::{
    ScsiCommand, ScsiDataOut, TaskAttribute, TaskManagementFunction as Function, TaskManagementRequest,
};
use lunette_wire::target::ReadyToTransfer;
use lunette_wire::{DataSn, InitiatorPdu, InitiatorTaskTag, TargetPdu, TargetTransferTag};

use crate::{A_WHILE, COMPLETE, DISK, expect_on_disk, expect_ready};

#[test]
fn an_aborted_command_in_a_store_is_over_when_the_abort_is_answered() {
    let target = InProcess::start(&[DISK]);
    let mut session = target.session(1);
    target.hold(0, OperationKind::Write);
    let cmd_sn = session.cmd_sn;
    let tag = session.write(0, 0, &[0xaa; BLOCK_BYTES]).expect("sent");
    target.wait_for_calls(0, OperationKind::Write, 1);
    let abort = session.manage_task(Function::AbortTask, 0, tag, cmd_sn).expect("sent");
    session.waits(A_WHILE).expect("the write is in the store");
    target.faults(0).clear();
    assert_eq!(session.managed(abort).expect("the write is not answered"), COMPLETE);
    let tag = session.write(0, 0, &[0xbb; BLOCK_BYTES]).expect("sent");
    session.good(tag).expect("a write");
    thread::sleep(A_WHILE);
    let tag = session.read(0, 0, 1).expect("sent");
    assert!(session.data_in(tag).expect("a read").0 == [0xbb; BLOCK_BYTES], "an aborted write came last");
}

/// A write of 16 KiB of which nothing has been sent but the command, and an abort of it.
fn abort_while_collecting(target: &InProcess) -> (Raw, [InitiatorTaskTag; 2], ReadyToTransfer) {
    let options = target.options_with(1, &[("InitialR2T", "Yes"), ("ImmediateData", "No")]);
    let mut session = Raw::ready(target.portal(), &options, 0).expect("a login");
    let cmd_sn = session.cmd_sn;
    let tag = session.command(&write(0, 0, 16384), &[]).expect("sent");
    let r2t = session.r2t(tag).expect("an R2T");
    let abort = session.manage_task(Function::AbortTask, 0, tag, cmd_sn).expect("sent");
    (session, [tag, abort], r2t)
}

/// RFC 7143: 4.2.3.3.
#[test]
fn an_abort_waits_for_the_data_that_was_asked_for() {
    let target = InProcess::start(&[DISK]);
    let (mut session, [tag, abort], r2t) = abort_while_collecting(&target);
    session.waits(A_WHILE).expect("an R2T is not answered yet (4.2.3.3)");
    session.answer_r2t(&r2t, &[0xaa; 16384], 4096).expect("sent");
    assert_eq!(session.managed(abort).expect("an answer"), COMPLETE);
    // The tag is free again, and nothing of the old command is left under it.
    let again =
        session.command(&ScsiCommand { initiator_task_tag: tag, ..read(0, 0, 32) }, &[]).expect("sent");
    assert!(session.data_in(again).expect("a read").0.iter().all(|byte| *byte == 0));
    assert_eq!(target.faults(0).calls(OperationKind::Write), 0);
}

/// RFC 7143: 10.7.
#[test]
fn an_abort_does_not_wait_for_ever_for_data() {
    let target = InProcess::start(&[DISK]);
    let (mut session, [_, abort], r2t) = abort_while_collecting(&target);
    assert_eq!(session.managed(abort).expect("an answer although no data comes"), COMPLETE);
    // What comes after all is thrown away.
    session.answer_r2t(&r2t, &[0xaa; 16384], 4096).expect("sent");
    session.silent().expect("no answer to it");
    expect_ready(&mut session, 0);
    assert_eq!(target.faults(0).calls(OperationKind::Write), 0);
}

/// RFC 7143: 7.11.
#[test]
fn an_aborted_command_that_comes_later_is_ignored() {
    let target = InProcess::start(&[DISK]);
    let mut session = target.session(1);
    let late = session.number(&write(0, 0, BLOCK_BYTES));
    let abort =
        session.manage_task(Function::AbortTask, 0, late.initiator_task_tag, late.cmd_sn).expect("sent");
    assert_eq!(session.managed(abort).expect("an answer"), COMPLETE);
    session.send(&InitiatorPdu::ScsiCommand(late), &[0xaa; BLOCK_BYTES]).expect("sent");
    session.silent().expect("it counts as received already");
    expect_ready(&mut session, 0);
    assert_eq!(target.faults(0).calls(OperationKind::Write), 0);
}

#[test]
fn an_aborted_command_that_waits_for_its_turn_never_has_it() {
    let target = InProcess::start(&[DISK]);
    let mut session = target.session(1);
    let first = session.number(&plain());
    let second = session.number(&write(0, 0, BLOCK_BYTES));
    let third = session.number(&plain());
    session.send(&InitiatorPdu::ScsiCommand(second), &[0xaa; BLOCK_BYTES]).expect("sent");
    session.send(&InitiatorPdu::ScsiCommand(third), &[]).expect("sent");
    let abort =
        session.manage_task(Function::AbortTask, 0, second.initiator_task_tag, second.cmd_sn).expect("sent");
    assert_eq!(session.managed(abort).expect("an answer"), COMPLETE);
    session.send(&InitiatorPdu::ScsiCommand(first), &[]).expect("sent");
    session.good(first.initiator_task_tag).expect("the first");
    session.good(third.initiator_task_tag).expect("the third");
    session.silent().expect("and not the second");
    assert_eq!(target.faults(0).calls(OperationKind::Write), 0);
}

#[test]
fn long_reads_that_let_others_go_first_are_aborted_like_any() {
    const READS: u64 = 8;
    const BLOCKS: u32 = 1024;
    // One reactor, on which the two sessions take turns.
    let target = InProcess::start_with(&[DISK], |config| config.reactors.count = Some(1));
    let (mut session, mut other) = (target.session(1), target.session(2));
    for round in 0..20 {
        other.silent().expect("it is served");
        let mut open: Vec<_> =
            (0..READS).map(|index| session.read(0, index, BLOCKS).expect("sent")).collect();
        let abort = session.manage(Function::AbortTaskSet, 0).expect("sent");
        other.silent().expect("it is served");
        // Reads that had begun are answered; the others are not, and nothing comes after the answer to the abort.
        loop {
            match session.receive().expect("an answer") {
                (TargetPdu::ScsiDataIn(pdu), _) if pdu.status.is_some() => {
                    open.retain(|tag| *tag != pdu.initiator_task_tag);
                }
                (TargetPdu::ScsiDataIn(_), _) => {}
                (TargetPdu::TaskManagementResponse(pdu), _) => {
                    assert_eq!((pdu.initiator_task_tag, pdu.response), (abort, COMPLETE), "round {round}");
                    break;
                }
                (pdu, _) => panic!("round {round}: {pdu:?}"),
            }
        }
        session.silent().expect("nothing of them is left");
        let tag = session.read(0, 0, BLOCKS).expect("sent");
        assert_eq!(session.data_in(tag).expect("a read").0.len(), BLOCKS as usize * BLOCK_BYTES);
    }
}

/// 4.2.3.3: until the function is answered an initiator may send the unsolicited data of a write that it aborts; nothing of it lands.
#[test]
fn unsolicited_data_of_an_aborted_write_is_taken_without_a_word() {
    let target = InProcess::start(&[DISK]);
    let options = target.options_with(1, &[("InitialR2T", "No"), ("ImmediateData", "No")]);
    let mut session = Raw::ready(target.portal(), &options, 0).expect("a session");
    let cmd_sn = session.cmd_sn;
    let command = ScsiCommand { is_final: false, ..write(0, 0, 1024) };
    let tag = session.command(&command, &[]).expect("sent");
    let abort = session.manage_task(Function::AbortTask, 0, tag, cmd_sn).expect("sent");
    session.sequence((tag, TargetTransferTag::RESERVED), 0, &[0xaa; 1024], 512).expect("sent");
    assert_eq!(session.managed(abort).expect("its answer, and no Reject"), COMPLETE);
    expect_on_disk(&mut session, 0, &[0; 1024]);
}

/// An early function that becomes due within the same segment ends a write whose place the next command takes at once: nothing is left of
/// it that others would wait for (6.2.1 of RFC 7143 has functions wait for the commands before them).
#[test]
fn a_place_that_is_taken_again_at_once_leaves_no_command_behind() {
    let target = InProcess::start(&[DISK]);
    let keys = [("InitialR2T", "Yes"), ("ImmediateData", "No")];
    let mut session = Raw::ready(target.portal(), &target.options_with(1, &keys), 0).expect("a login");
    let mut other = target.session(2);
    let ref_cmd_sn = session.cmd_sn;
    let writing = session.command(&write(0, 0, 512), &[]).expect("sent");
    let r2t = session.r2t(writing).expect("an R2T");

    let first = session.number(&plain());
    let abort = session.number(&plain());
    let second = session.number(&plain());
    let abort = TaskManagementRequest {
        immediate: false,
        function: Function::AbortTask,
        lun: first.lun,
        initiator_task_tag: abort.initiator_task_tag,
        referenced_task_tag: writing,
        cmd_sn: abort.cmd_sn,
        exp_stat_sn: abort.exp_stat_sn,
        ref_cmd_sn,
        exp_data_sn: DataSn(0),
    };
    session.send(&InitiatorPdu::TaskManagementRequest(abort), &[]).expect("sent");
    let data = ScsiDataOut {
        is_final: true,
        lun: first.lun,
        initiator_task_tag: writing,
        target_transfer_tag: r2t.target_transfer_tag,
        exp_stat_sn: first.exp_stat_sn,
        data_sn: DataSn(0),
        buffer_offset: 0,
    };
    let pdus = [
        (InitiatorPdu::ScsiCommand(first), &[][..]),
        (InitiatorPdu::ScsiDataOut(data), &[0; 512]),
        (InitiatorPdu::ScsiCommand(second), &[]),
    ];
    let bytes = pdus.map(|(pdu, data)| session.connection().encode(&pdu, data)).concat();
    session.connection().send_bytes(&bytes).expect("sent");
    assert_eq!(session.managed(abort.initiator_task_tag).expect("an answer"), COMPLETE);
    session.good(first.initiator_task_tag).expect("carried out");
    session.good(second.initiator_task_tag).expect("carried out");
    // An ordered command waits for all before it.
    let ordered = ScsiCommand { attribute: TaskAttribute::Ordered, ..plain() };
    let tag = other.command(&ordered, &[]).expect("sent");
    other.good(tag).expect("nothing is before it");
}
