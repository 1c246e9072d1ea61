//! Error recovery above level 0 (RFC 7143, chapter 7 and 11.16), end to end: what is lost within a command or a connection,
//! and connections that are lost with their tasks. The initiators at hand (Linux', libiscsi's) are level 0 only, so the
//! byte-level initiator is the one peer that this has.

mod connections;
mod data_in;
mod data_out;
mod reassign;
mod statuses;

use lunette_tests::in_process::InProcess;
use lunette_tests::initiator::LoginOptions;
use lunette_tests::raw::Raw;
use lunette_wire::frame::Digests;
use lunette_wire::initiator::{SnackRequest, TaskManagementFunction as Function, TaskManagementRequest};
use lunette_wire::target::Numbers;
use lunette_wire::{
    CmdSn, DataSn, InitiatorPdu, InitiatorTaskTag, LunField, StatSn, TargetPdu, TargetTransferTag,
};

use crate::{DISK, SECOND_DISK};

/// SNACK types (11.16.1).
const DATA_OR_R2T: u8 = 0;
const STATUS: u8 = 1;
const DATA_ACK: u8 = 2;
const R_DATA: u8 = 3;

/// A target that agrees to this level and keeps what is lost for `retain_s` seconds at level 2.
fn target(level: u8, retain_s: u16) -> InProcess {
    InProcess::start_with(&[DISK, SECOND_DISK], |config| {
        config.limits.error_recovery_level = level;
        config.limits.time2retain_s = retain_s;
        // What is lost is found by the tests themselves.
        config.limits.nop_interval_s = 0;
    })
}

/// How to log in at this level, with further keys.
fn options(target: &InProcess, level: u8, keys: &[(&str, &str)]) -> LoginOptions {
    let level = level.to_string();
    let mut all = vec![
        ("ErrorRecoveryLevel", level.as_str()),
        ("DefaultTime2Wait", "0"),
        ("DefaultTime2Retain", "3600"),
        ("MaxConnections", "4"),
    ];
    all.extend(keys);
    target.options_with(1, &all)
}

/// A session of one connection at level 1 that is ready.
fn level_1(target: &InProcess, keys: &[(&str, &str)]) -> Raw {
    Raw::ready(target.portal(), &options(target, 1, keys), 0).expect("a login")
}

/// As [`level_1`], with digests of data.
fn level_1_with_digests(target: &InProcess, keys: &[(&str, &str)]) -> Raw {
    let digests = Digests { header: false, data: true };
    let options = LoginOptions { digests, ..options(target, 1, keys) };
    Raw::ready(target.portal(), &options, 0).expect("a login")
}

/// A SNACK of this type for a run, with the task that it is about.
fn snack(kind: u8, initiator_task_tag: InitiatorTaskTag, begin_run: u32, run_length: u32) -> SnackRequest {
    SnackRequest {
        kind,
        lun: LunField::default(),
        initiator_task_tag,
        target_transfer_tag: TargetTransferTag::RESERVED,
        exp_stat_sn: StatSn(0),
        begin_run,
        run_length,
    }
}

/// Sends a SNACK that acknowledges statuses before `exp_stat_sn`; answers its header.
fn ask(session: &mut Raw, exp_stat_sn: StatSn, snack: SnackRequest) -> Vec<u8> {
    let snack = SnackRequest { exp_stat_sn, ..snack };
    session.send(&InitiatorPdu::SnackRequest(snack), &[]).expect("sent");
    snack.encode().to_vec()
}

/// The next PDU, whatever its numbers are.
fn next(session: &mut Raw) -> (TargetPdu, Vec<u8>) {
    session.connection().receive().expect("a PDU")
}

/// A PDU without what may differ in a copy of it: ExpCmdSN and MaxCmdSN, and the StatSN of an R2T (11.16).
fn copy((mut pdu, data): (TargetPdu, Vec<u8>)) -> (TargetPdu, Vec<u8>) {
    let strip = |numbers: &mut Numbers| (numbers.exp_cmd_sn, numbers.max_cmd_sn) = (CmdSn(0), CmdSn(0));
    match &mut pdu {
        TargetPdu::ScsiDataIn(pdu) => strip(&mut pdu.numbers),
        TargetPdu::ScsiResponse(pdu) => strip(&mut pdu.numbers),
        TargetPdu::NopIn(pdu) => strip(&mut pdu.numbers),
        TargetPdu::Reject(pdu) => strip(&mut pdu.numbers),
        TargetPdu::TextResponse(pdu) => strip(&mut pdu.numbers),
        TargetPdu::TaskManagementResponse(pdu) => strip(&mut pdu.numbers),
        TargetPdu::ReadyToTransfer(pdu) => pdu.numbers = Numbers::default(),
        other => panic!("never sent again here: {other:?}"),
    }
    (pdu, data)
}

/// A TASK REASSIGN request.
fn reassign(session: &mut Raw, referenced_task_tag: InitiatorTaskTag, exp_data_sn: u32) -> InitiatorTaskTag {
    let request = TaskManagementRequest {
        immediate: true,
        function: Function::TaskReassign,
        lun: LunField::default(),
        initiator_task_tag: session.new_tag(),
        referenced_task_tag,
        cmd_sn: session.cmd_sn,
        exp_stat_sn: session.acknowledged(),
        ref_cmd_sn: CmdSn(0),
        exp_data_sn: DataSn(exp_data_sn),
    };
    session.send(&InitiatorPdu::TaskManagementRequest(request), &[]).expect("sent");
    request.initiator_task_tag
}
