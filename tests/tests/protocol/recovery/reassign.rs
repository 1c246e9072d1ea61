//! TASK REASSIGN of tasks in every state (RFC 7143, 7.2.2, 11.5.1, 11.5.6, 11.6).

use lunette_block::OperationKind;
use lunette_tests::in_process::InProcess;
use lunette_tests::raw::{BLOCK_BYTES, Raw, write};
use lunette_wire::initiator::{
    LogoutReason, ScsiCommand, ScsiDataOut, SnackRequest, TaskManagementFunction as Function,
};
use lunette_wire::target::ReadyToTransfer;
use lunette_wire::{CmdSn, DataSn, InitiatorPdu, InitiatorTaskTag, TargetPdu, TargetTransferTag};

use super::connections::{DOES_NOT_EXIST, connect, level_2, lose, remove};
use super::{R_DATA, ask, next, reassign, snack, target};
use crate::{COMPLETE, expect_on_disk, expect_ready, pattern};

/// Response "function rejected" (11.6.1).
const REJECTED: u8 = 255;

/// Two connections of one session; the second one, with CID 1, is there to be lost.
struct Pair {
    first: Raw,
    second: Raw,
}

fn pair(target: &InProcess, keys: &[(&str, &str)]) -> Pair {
    let first = level_2(target, keys);
    let second = connect(target, &first, 1).expect("a login");
    Pair { first, second }
}

impl Pair {
    /// Loses the second connection and has it removed for recovery.
    fn lose(mut self) -> Raw {
        self.first.cmd_sn = self.second.cmd_sn;
        lose(self.second, 1, &mut self.first);
        remove(&mut self.first, 1);
        self.first
    }
}

/// Asks for a task, which there must be.
fn take_over(first: &mut Raw, tag: InitiatorTaskTag, exp_data_sn: u32) {
    let request = reassign(first, tag, exp_data_sn);
    assert_eq!(first.managed(request).expect("an answer"), COMPLETE);
}

/// 7.2.2: a status that was sent and not acknowledged is sent again, under a number of the new connection.
#[test]
fn a_status_that_was_sent_is_sent_again() {
    let target = target(2, 60);
    let mut pair = pair(&target, &[]);
    pair.second.acknowledged = Some(pair.second.exp_stat_sn);
    let tag = pair.second.write(0, 0, &[0xaa; BLOCK_BYTES]).expect("sent");
    pair.second.good(tag).expect("a write");
    let mut first = pair.lose();
    take_over(&mut first, tag, 0);
    first.good(tag).expect("the same answer");
    // Acknowledged, it is over.
    let request = reassign(&mut first, tag, 0);
    assert_eq!(first.managed(request).expect("an answer"), DOES_NOT_EXIST);
    expect_on_disk(&mut first, 0, &[0xaa; BLOCK_BYTES]);
}

/// One that was acknowledged before the connection went is over, also where the Logout is what acknowledges it (11.14.4).
#[test]
fn a_status_that_was_acknowledged_is_over() {
    let target = target(2, 60);
    let mut pair = pair(&target, &[]);
    let tag = pair.second.read(0, 0, 1).expect("sent");
    pair.second.data_in(tag).expect("a read");
    pair.second.silent().expect("which acknowledges it");
    pair.second.acknowledged = Some(pair.second.exp_stat_sn);
    let late = pair.second.read(0, 0, 1).expect("sent");
    pair.second.data_in(late).expect("a read");
    let last = pair.second.exp_stat_sn;
    pair.first.cmd_sn = pair.second.cmd_sn;
    lose(pair.second, 1, &mut pair.first);
    pair.first.acknowledged = Some(last);
    remove(&mut pair.first, 1);
    pair.first.acknowledged = None;
    for tag in [tag, late, InitiatorTaskTag(0x7777)] {
        let request = reassign(&mut pair.first, tag, 0);
        assert_eq!(pair.first.managed(request).expect("an answer"), DOES_NOT_EXIST);
    }
}

/// 11.5.6: a read goes on from ExpDataSN; 0 and what cannot be leave it where it was. The new connection takes longer
/// segments.
#[test]
fn a_read_goes_on_from_where_it_stood() {
    let keys = [("MaxRecvDataSegmentLength", "1024"), ("MaxBurstLength", "65536")];
    for (exp_data_sn, from) in [(0, 0), (3, 3), (8, 8), (9, 0)] {
        let target = target(2, 60);
        let mut pair = pair(&target, &[("MaxBurstLength", "65536")]);
        let data = pattern(16 * BLOCK_BYTES);
        let tag = pair.first.write(0, 0, &data).expect("sent");
        pair.first.good(tag).expect("a write");
        // The second connection, with short segments, is one that joins anew.
        let options = lunette_tests::initiator::LoginOptions {
            tsih: pair.first.tsih,
            cid: lunette_wire::Cid(2),
            first_cmd_sn: pair.first.cmd_sn,
            ..target.options_with(1, &keys[..1])
        };
        let mut short = Raw::login(target.portal(), &options).expect("a login");
        short.acknowledged = Some(short.exp_stat_sn);
        let tag = short.read(0, 0, 16).expect("sent");
        assert_eq!(short.data_in(tag).expect("a read").0, data);
        pair.first.cmd_sn = short.cmd_sn;
        lose(short, 2, &mut pair.first);
        remove(&mut pair.first, 2);
        take_over(&mut pair.first, tag, exp_data_sn);
        if from == 8 {
            let (TargetPdu::ScsiResponse(response), _) = pair.first.receive().expect("a response") else {
                panic!("all data was acknowledged")
            };
            assert_eq!((response.status, response.exp_data_sn.0, response.snack_tag), (0, 8, 0));
        } else {
            let (TargetPdu::ScsiDataIn(pdu), bytes) = pair.first.receive().expect("data") else {
                panic!("no data")
            };
            assert_eq!((pdu.data_sn.0, pdu.buffer_offset, pdu.status), (from, from * 1024, Some(0)));
            assert_eq!(bytes, data[from as usize * 1024..]);
        }
        pair.first.silent().expect("and nothing else");
    }
}

/// 7.2.2: a SNACK Tag belongs to the connection that it came on; on the next one the status is as if there had been none.
#[test]
fn a_snack_tag_does_not_move_to_another_connection() {
    let target = target(2, 60);
    let mut pair = pair(&target, &[]);
    let first_status = pair.second.exp_stat_sn;
    pair.second.acknowledged = Some(first_status);
    let tag = pair.second.read(0, 0, 2).expect("sent");
    pair.second.data_in(tag).expect("a read");
    target.hold(0, OperationKind::Read);
    let held = pair.second.read(0, 8, 2).expect("sent");
    target.wait_for_calls(0, OperationKind::Read, 2);
    for tag in [tag, held] {
        let again = SnackRequest { target_transfer_tag: TargetTransferTag(7), ..snack(R_DATA, tag, 0, 0) };
        ask(&mut pair.second, first_status, again);
    }
    assert!(matches!(next(&mut pair.second).0, TargetPdu::ScsiDataIn(pdu) if pdu.status.is_none()));
    assert!(matches!(next(&mut pair.second).0, TargetPdu::ScsiResponse(pdu) if pdu.snack_tag == 7));
    let mut first = pair.lose();
    take_over(&mut first, tag, 0);
    assert_eq!(first.data_in(tag).expect("the read, with its status in the data").0.len(), 2 * BLOCK_BYTES);
    take_over(&mut first, held, 0);
    target.faults(0).clear();
    assert_eq!(first.data_in(held).expect("the same").0.len(), 2 * BLOCK_BYTES);
}

/// A read that is still in the store when its connection goes is answered on the other one alone, when it is asked for.
/// RFC 7143: 7.2.2, 11.14.
#[test]
fn a_read_in_the_store_is_answered_where_it_is_asked_for() {
    let target = target(2, 60);
    let mut pair = pair(&target, &[]);
    target.hold(0, OperationKind::Read);
    let tags = [0, 8].map(|lba| pair.second.read(0, lba, 8).expect("sent"));
    target.wait_for_calls(0, OperationKind::Read, 2);
    let mut first = pair.lose();
    take_over(&mut first, tags[0], 0);
    first.silent().expect("it is in the store");
    target.faults(0).clear();
    assert_eq!(first.data_in(tags[0]).expect("the read").0, [0; 8 * BLOCK_BYTES]);
    first.silent().expect("the other one is kept back");
    take_over(&mut first, tags[1], 0);
    assert_eq!(first.data_in(tags[1]).expect("the read").0, [0; 8 * BLOCK_BYTES]);
}

fn data_out(
    session: &Raw,
    r2t: &ReadyToTransfer,
    data: &[u8],
    offset: usize,
    length: usize,
) -> (InitiatorPdu, Vec<u8>) {
    let pdu = ScsiDataOut {
        is_final: offset + length == (r2t.buffer_offset + r2t.desired_length) as usize,
        initiator_task_tag: r2t.initiator_task_tag,
        target_transfer_tag: r2t.target_transfer_tag,
        exp_stat_sn: session.exp_stat_sn,
        data_sn: DataSn(0),
        buffer_offset: offset as u32,
        ..ScsiDataOut::default()
    };
    (InitiatorPdu::ScsiDataOut(pdu), data[offset..offset + length].to_vec())
}

/// A write whose data is on its way: what has come is not asked for again, the rest is, under the R2TSN that the initiator
/// expects; nothing of it is asked for while nobody has the task.
/// RFC 7143: 7.2.2, 11.5.1.
#[test]
fn a_write_goes_on_with_the_data_that_is_missing() {
    // Bytes that came for the first R2T; ExpDataSN; what is asked for then.
    for (came, exp_data_sn, expected) in
        [(0, 0, (0, 0, 4096)), (0, 1, (1, 0, 4096)), (1024, 0, (1, 1024, 3072)), (1024, 1, (1, 1024, 3072))]
    {
        let target = target(2, 60);
        let keys = [("InitialR2T", "Yes"), ("ImmediateData", "No"), ("MaxBurstLength", "4096")];
        let mut pair = pair(&target, &keys);
        let data = pattern(8192);
        let tag = pair.second.command(&write(0, 0, data.len()), &[]).expect("sent");
        let r2t = pair.second.r2t(tag).expect("an R2T");
        if came > 0 {
            let (pdu, bytes) = data_out(&pair.second, &r2t, &data, 0, came);
            pair.second.send(&pdu, &bytes).expect("sent");
            pair.second.silent().expect("taken");
        }
        let mut first = pair.lose();
        first.silent().expect("nobody has it");
        take_over(&mut first, tag, exp_data_sn);
        let r2t = first.r2t(tag).expect("an R2T for the rest");
        let found = (r2t.r2t_sn.0, r2t.buffer_offset as usize, r2t.desired_length as usize);
        assert_eq!(found, expected, "{came} bytes came, ExpDataSN {exp_data_sn}");
        first.answer_r2t(&r2t, &data, 1024).expect("sent");
        let last = first.r2t(tag).expect("the second half");
        assert_eq!((last.r2t_sn, last.buffer_offset), (r2t.r2t_sn.next(), 4096));
        first.answer_r2t(&last, &data, 4096).expect("sent");
        first.good(tag).expect("the write");
        expect_on_disk(&mut first, 0, &data);
    }
}

/// 11.14: the connection may be in good health when it is removed; nothing more comes on it, and what it was asked for is asked
/// for again.
#[test]
fn a_write_goes_on_after_its_connection_was_removed() {
    let target = target(2, 60);
    let keys = [("InitialR2T", "Yes"), ("ImmediateData", "No"), ("MaxBurstLength", "4096")];
    for removes_itself in [false, true] {
        let Pair { mut first, mut second } = pair(&target, &keys);
        let data = pattern(8192);
        let tag = second.command(&write(0, 0, data.len()), &[]).expect("sent");
        let r2t = second.r2t(tag).expect("an R2T");
        first.cmd_sn = second.cmd_sn;
        remove(if removes_itself { &mut second } else { &mut first }, 1);
        second.ends().expect("a closed connection, without another word");
        take_over(&mut first, tag, 0);
        let again = first.r2t(tag).expect("an R2T");
        assert_eq!((again.r2t_sn, again.buffer_offset, again.desired_length), (r2t.r2t_sn, 0, 4096));
        first.answer_r2t(&again, &data, 4096).expect("sent");
        let last = first.r2t(tag).expect("the second half");
        first.answer_r2t(&last, &data, 4096).expect("sent");
        first.good(tag).expect("the write");
        expect_on_disk(&mut first, 0, &data);
    }
}

/// Unsolicited data that was announced and did not come is asked for by R2T.
#[test]
fn a_write_whose_unsolicited_data_did_not_come_asks_for_it() {
    let target = target(2, 60);
    let keys = [("InitialR2T", "No"), ("ImmediateData", "Yes"), ("FirstBurstLength", "4096")];
    let mut pair = pair(&target, &keys);
    let data = pattern(4096);
    let command = ScsiCommand { is_final: false, ..write(0, 0, data.len()) };
    let tag = pair.second.command(&command, &data[..512]).expect("sent");
    pair.second.silent().expect("the rest is to come");
    let mut first = pair.lose();
    take_over(&mut first, tag, 0);
    let r2t = first.r2t(tag).expect("an R2T");
    assert_eq!((r2t.r2t_sn.0, r2t.buffer_offset, r2t.desired_length), (0, 512, 3584));
    first.answer_r2t(&r2t, &data, 512).expect("sent");
    first.good(tag).expect("the write");
    expect_on_disk(&mut first, 0, &data);
}

/// 7.14, 11.5.1: immediate commands are not recovered, nor are other requests; those that are open elsewhere are refused.
#[test]
fn what_is_no_task_of_a_numbered_command_is_not_reassigned() {
    let target = target(2, 60);
    let mut pair = pair(&target, &[]);
    target.hold(0, OperationKind::Write);
    let data = [0xaa; BLOCK_BYTES];
    let immediate = ScsiCommand { immediate: true, ..write(0, 0, BLOCK_BYTES) };
    let immediate = pair.second.command(&immediate, &data).expect("sent");
    let held = pair.first.write(0, 8, &data).expect("sent");
    target.wait_for_calls(0, OperationKind::Write, 2);
    pair.second.cmd_sn = pair.first.cmd_sn;
    let function = pair.first.manage_task(Function::AbortTask, 0, held, held_number(&pair)).expect("sent");
    let request = reassign(&mut pair.first, function, 0);
    assert_eq!(pair.first.managed(request).expect("an answer"), REJECTED);
    let mut first = pair.lose();
    let request = reassign(&mut first, immediate, 0);
    assert_eq!(first.managed(request).expect("an answer"), DOES_NOT_EXIST);
    target.faults(0).clear();
    assert_eq!(first.managed(function).expect("the abort"), COMPLETE);
    expect_ready(&mut first, 0);
}

fn held_number(pair: &Pair) -> CmdSn {
    CmdSn(pair.first.cmd_sn.0.wrapping_sub(1))
}

/// 11.5.1: a task that waits for a new connection may be aborted instead, on any; a status that was on its way comes first.
#[test]
fn a_task_that_waits_can_be_aborted() {
    let target = target(2, 60);
    let mut pair = pair(&target, &[]);
    pair.second.acknowledged = Some(pair.second.exp_stat_sn);
    let number = pair.second.cmd_sn;
    let answered = pair.second.write(0, 0, &[0xaa; BLOCK_BYTES]).expect("sent");
    pair.second.good(answered).expect("a write");
    target.hold(0, OperationKind::Write);
    let held = pair.second.write(0, 8, &[0xbb; BLOCK_BYTES]).expect("sent");
    target.wait_for_calls(0, OperationKind::Write, 2);
    let mut first = pair.lose();
    let abort = first.manage_task(Function::AbortTask, 0, answered, number).expect("sent");
    first.good(answered).expect("the status");
    assert_eq!(first.managed(abort).expect("an answer"), COMPLETE);
    let abort = first.manage_task(Function::AbortTask, 0, held, number.next()).expect("sent");
    first.silent().expect("it is in the store");
    let request = reassign(&mut first, held, 0);
    assert_eq!(first.managed(request).expect("an answer"), DOES_NOT_EXIST);
    target.faults(0).clear();
    assert_eq!(first.managed(abort).expect("an answer"), COMPLETE);
    expect_ready(&mut first, 0);
}

/// Commands that the target could not begin, because one before them was missing, are not there after the logout: they are
/// sent anew (11.14).
#[test]
fn commands_that_had_not_begun_are_sent_anew() {
    let target = target(2, 60);
    let mut pair = pair(&target, &[]);
    let missing = pair.second.cmd_sn;
    pair.second.cmd_sn = missing.next();
    let early = pair.second.write(0, 0, &[0xaa; BLOCK_BYTES]).expect("sent");
    pair.second.silent().expect("one before it is missing");
    let mut first = pair.lose();
    let request = reassign(&mut first, early, 0);
    assert_eq!(first.managed(request).expect("an answer"), DOES_NOT_EXIST);
    first.cmd_sn = missing;
    expect_ready(&mut first, 0);
    first.silent().expect("the early one is not there");
    assert_eq!(first.exp_cmd_sn(), missing.next());
    let again = ScsiCommand { initiator_task_tag: early, ..write(0, 0, BLOCK_BYTES) };
    let tag = first.command(&again, &[0xaa; BLOCK_BYTES]).expect("sent");
    first.good(tag).expect("the write");
}

/// A session that is logged out while tasks wait for a connection ends all of them.
#[test]
fn a_logout_of_the_session_ends_what_waits() {
    let target = target(2, 60);
    let mut pair = pair(&target, &[]);
    target.hold(0, OperationKind::Write);
    pair.second.write(0, 0, &[0xaa; BLOCK_BYTES]).expect("sent");
    target.wait_for_calls(0, OperationKind::Write, 1);
    let mut first = pair.lose();
    let tag = first.log_out(LogoutReason::CloseSession, 0).expect("sent");
    first.is_quiet(crate::A_WHILE).expect("a write is in the store");
    target.faults(0).clear();
    assert_eq!(first.logged_out(tag).expect("an answer"), 0);
    first.ends().expect("a closed connection");
    target.session(1).silent().expect("the identity is free");
}
