//! Requirements of RFC 7143 that stand by themselves: each test is one clause or two, on the wire.

use std::time::Duration;

use lunette_block::OperationKind;
use lunette_target::config::{Config, TargetConfig};
use lunette_tests::in_process::InProcess;
use lunette_tests::initiator::{Initiator, LoginOptions};
use lunette_tests::raw::{Raw, plain, write};
use lunette_wire::initiator::{
    LogoutReason, ScsiCommand, ScsiDataOut, TaskManagementFunction as Function, TextRequest,
};
use lunette_wire::target::RejectReason;
use lunette_wire::{CmdSn, InitiatorPdu, LunField, TargetPdu, TargetTransferTag};

use crate::{COMPLETE, DISK, SECOND_DISK, expect_on_disk, expect_ready, ready_session};

const LIMIT: Duration = Duration::from_secs(60);

fn login(target: &InProcess, port: u8, keys: &[(&str, &str)]) -> Raw {
    Raw::ready(target.portal(), &target.options_with(port, keys), 0).expect("a session")
}

fn discovery(target: &InProcess, portal: usize, port: u8) -> Raw {
    let options = LoginOptions { target_name: None, ..target.options(port) };
    Raw::login(target.portals()[portal], &options).expect("a discovery session")
}

/// 4.2.2.1: no response goes out ahead of the acknowledgement of its command, whatever order commands come in.
#[test]
fn an_answer_acknowledges_its_command_or_comes_behind_that() {
    let target = InProcess::start(&[DISK]);
    let mut session = target.session(1);
    let mut commands: Vec<ScsiCommand> = (0..8).map(|_| session.number(&plain())).collect();
    commands.reverse();
    for command in &commands {
        session.send(&InitiatorPdu::ScsiCommand(*command), &[]).expect("sent");
    }
    for _ in &commands {
        let (TargetPdu::ScsiResponse(pdu), _) = session.receive().expect("an answer") else {
            panic!("no answer")
        };
        let of = commands.iter().find(|command| command.initiator_task_tag == pdu.initiator_task_tag);
        let cmd_sn = of.expect("one of them").cmd_sn;
        assert!(cmd_sn.precedes(pdu.numbers.exp_cmd_sn), "{cmd_sn:?}: {pdu:?}");
    }
}

/// 4.2.3.3, 4.2.3.4: who asks for an abort does not wait for commands that another session has not sent yet.
#[test]
fn a_reset_does_not_wait_for_the_missing_commands_of_others() {
    for reporting in ["RFC3720", "FastAbort"] {
        let target = InProcess::start(&[DISK]);
        let mut other = login(&target, 1, &[("TaskReporting", reporting)]);
        let mut asking = login(&target, 2, &[("TaskReporting", reporting)]);
        // The command before this one does not come.
        let mut early = other.number(&plain());
        early.cmd_sn = CmdSn(early.cmd_sn.0.wrapping_add(1));
        other.send(&InitiatorPdu::ScsiCommand(early), &[]).expect("sent");
        other.silent().expect("it waits for its turn");
        let reset = asking.manage(Function::LogicalUnitReset, 0).expect("sent");
        assert_eq!(asking.managed(reset).expect("an answer"), COMPLETE, "{reporting}");
    }
}

/// 4.3: a discovery session ends by "close the session", and by no other reason.
#[test]
fn a_discovery_session_is_logged_out_as_a_whole() {
    let target = InProcess::start(&[DISK]);
    let mut session = discovery(&target, 0, 1);
    session.log_out(LogoutReason::CloseConnection, 0).expect("sent");
    let (TargetPdu::Reject(reject), _) = session.receive().expect("an answer") else { panic!("no Reject") };
    assert_eq!(reject.reason, RejectReason::CommandNotSupported as u8);
    let tag = session.log_out(LogoutReason::CloseSession, 0).expect("sent");
    assert_eq!(session.logged_out(tag).expect("an answer"), 0);
}

/// 4.4.3, 6.3.1: the handle that a session was given is that of all its logins, and of no other session.
#[test]
fn a_session_keeps_its_handle() {
    let target = InProcess::start(&[DISK]);
    let options = target.options_with(1, &[("MaxConnections", "4")]);
    let leading = Initiator::login(target.portal(), &options).expect("a session");
    let other = Initiator::login(target.portal(), &target.options(2)).expect("another");
    assert_ne!(leading.tsih(), other.tsih());
    let mut kept = Vec::new();
    for cid in [1, 2, 1] {
        let joining = LoginOptions {
            tsih: leading.tsih(),
            cid: lunette_wire::Cid(cid),
            first_cmd_sn: leading.cmd_sn(),
            ..target.options(1)
        };
        let joined =
            Initiator::login(target.portal(), &joining).expect("a connection, the last time in place of one");
        assert_eq!(joined.tsih(), leading.tsih());
        // It stays until the next login takes its place.
        kept.push(joined);
    }
}

/// 7.4.2.1: each portal has a discovery session for one initiator port, and none of them ends another's.
#[test]
fn discovery_sessions_at_two_portals_are_independent() {
    let target = InProcess::start_with(&[DISK], |config: &mut Config| {
        config.portals.push("127.0.0.2:0".parse().expect("an address"));
    });
    let mut first = discovery(&target, 0, 1);
    let mut second = discovery(&target, 1, 1);
    let mut again = discovery(&target, 1, 1);
    assert_eq!(second.connection().drain(LIMIT).expect("it is replaced"), 0);
    for session in [&mut first, &mut again] {
        let tag = session.log_out(LogoutReason::CloseSession, 0).expect("sent");
        assert_eq!(session.logged_out(tag).expect("it was still there"), 0);
    }
}

/// 11.10: an initiator has one Text Request under way. One that sends hundreds at once does not fill the target's memory with answers.
#[test]
fn many_text_requests_at_once_are_answered_as_far_as_there_is_room() {
    const REQUESTS: usize = 400;
    /// What is queued for a connection, and one answer more.
    const ROOM_BYTES: usize = (256 << 10) + ANSWER_BYTES_MAX;
    const ANSWER_BYTES_MAX: usize = 64 << 10;
    let target = InProcess::start_with(&[DISK], |config: &mut Config| {
        let first = config.targets[0].clone();
        config.targets.extend((0..200).map(|number| TargetConfig {
            name: format!("{}-{number}", first.name),
            units: Vec::new(),
            ..first.clone()
        }));
    });
    let keys = [("MaxRecvDataSegmentLength", "16777215")];
    let options = LoginOptions { target_name: None, ..target.options_with(1, &keys) };
    let mut session = Raw::login(target.portal(), &options).expect("a discovery session");
    let answers = ask_together(&mut session, REQUESTS, b"SendTargets=All\0");
    let (answered_bytes, longest) = (answers.iter().sum::<usize>(), answers.iter().max().copied());
    let longest = longest.expect("one is answered");
    assert!((10_000..ANSWER_BYTES_MAX).contains(&longest), "{longest}");
    // The bytes may come in several reads, each of which finds what the ones before have left.
    let answered = answers.len();
    assert!(answered < REQUESTS / 2 && answered_bytes < 4 * ROOM_BYTES, "{answered}, {answered_bytes}");
    // What is to be looked at costs as much where nothing comes of it.
    let answers = ask_together(&mut session, REQUESTS, b"SendTargets=iqn.2026-11.io.lunette:nobody\0");
    assert!(
        (1..REQUESTS / 2).contains(&answers.len()) && answers.iter().all(|length| *length == 0),
        "{answers:?}"
    );
    let tag = session.text(TargetTransferTag::RESERVED, b"SendTargets=All\0").expect("sent");
    let (pdu, text) = session.receive().expect("an answer");
    assert!(matches!(pdu, TargetPdu::TextResponse(pdu) if pdu.initiator_task_tag == tag));
    assert_eq!(text.len(), longest);
}

/// Sends so many Text Requests with one write; how long the answers were of those that were not rejected.
fn ask_together(session: &mut Raw, count: usize, text: &[u8]) -> Vec<usize> {
    let mut bytes = Vec::new();
    for _ in 0..count {
        let request = TextRequest {
            immediate: true,
            is_final: true,
            initiator_task_tag: session.new_tag(),
            target_transfer_tag: TargetTransferTag::RESERVED,
            cmd_sn: session.cmd_sn,
            exp_stat_sn: session.acknowledged(),
            ..TextRequest::default()
        };
        bytes.extend(session.connection().encode(&InitiatorPdu::TextRequest(request), text));
    }
    session.connection().send_bytes(&bytes).expect("sent");
    let answer = |_| match session.receive().expect("an answer") {
        (TargetPdu::TextResponse(_), text) => Some(text.len()),
        (TargetPdu::Reject(reject), _) => {
            assert_eq!(reject.reason, RejectReason::ImmediateCommandReject as u8);
            None
        }
        (pdu, _) => panic!("{pdu:?}"),
    };
    (0..count).filter_map(answer).collect()
}

/// 7.14: what a failed connection has asked for at once ends with it, in the store or before.
#[test]
fn immediate_commands_of_a_failed_connection_end() {
    let target = InProcess::start(&[DISK]);
    let mut session = target.session(1);
    target.hold(0, OperationKind::Read);
    let mut command = session.number(&lunette_tests::raw::read(0, 0, 1));
    command.immediate = true;
    session.send(&InitiatorPdu::ScsiCommand(command), &[]).expect("sent");
    target.wait_for_calls(0, OperationKind::Read, 1);
    drop(session);
    let waiting = target.options(1);
    let portal = target.portal();
    let login = std::thread::spawn(move || Raw::login(portal, &waiting).map(drop));
    // The next session of this identity begins when the last command of the old one has gone (6.3.5).
    target.faults(0).clear();
    login.join().expect("a thread").expect("a login");
    target.wait_for_its_buffers();
}

/// 11.1: padding is zero, which the tests' connection checks of every PDU; here are data segments of each length.
#[test]
fn data_of_any_length_is_padded_with_zeroes() {
    let target = InProcess::start(&[DISK]);
    for digests in [false, true] {
        let digests = lunette_wire::frame::Digests { header: digests, data: digests };
        let options = LoginOptions { digests, ..target.options(1) };
        let mut session = Raw::ready(target.portal(), &options, 0).expect("a session");
        for length in 5..=9 {
            let cdb = [0x12, 0, 0, 0, length, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
            let inquiry =
                ScsiCommand { read: true, expected_data_transfer_length: length.into(), cdb, ..plain() };
            let tag = session.command(&inquiry, &[]).expect("sent");
            assert_eq!(session.data_in(tag).expect("data").0.len(), usize::from(length));
        }
    }
}

/// 11.7.2: nobody is asked to acknowledge data at ErrorRecoveryLevel 0.
#[test]
fn no_acknowledgement_is_asked_for_at_level_0() {
    let target = InProcess::start(&[DISK]);
    let mut session = login(&target, 1, &[("MaxRecvDataSegmentLength", "512"), ("MaxBurstLength", "4096")]);
    let tag = session.read(0, 0, 64).expect("sent");
    for at in 0..64 {
        let (TargetPdu::ScsiDataIn(pdu), _) = session.receive().expect("data") else { panic!("no data") };
        assert_eq!((pdu.initiator_task_tag, pdu.data_sn.0, pdu.acknowledge), (tag, at, false));
    }
}

/// 11.7.7: data PDUs without data are taken wherever they come, and change nothing.
#[test]
fn empty_data_is_taken() {
    let target = InProcess::start(&[DISK]);
    for solicited in [true, false] {
        let keys = [("InitialR2T", if solicited { "Yes" } else { "No" }), ("ImmediateData", "No")];
        let mut session = login(&target, 1, &keys);
        let command = ScsiCommand { is_final: solicited, ..write(0, 0, 1024) };
        let tag = session.command(&command, &[]).expect("sent");
        let mut target_transfer_tag = TargetTransferTag::RESERVED;
        if solicited {
            target_transfer_tag = session.r2t(tag).expect("an R2T").target_transfer_tag;
        }
        let mut offset = 0;
        let pieces: [&[u8]; 5] = [&[], &[0x5a; 512], &[], &[0x5b; 512], &[]];
        for (number, piece) in pieces.into_iter().enumerate() {
            let pdu = ScsiDataOut {
                is_final: number == 4,
                lun: command.lun,
                initiator_task_tag: tag,
                target_transfer_tag,
                exp_stat_sn: session.acknowledged(),
                data_sn: lunette_wire::DataSn(number as u32),
                buffer_offset: offset,
            };
            session.send(&InitiatorPdu::ScsiDataOut(pdu), piece).expect("sent");
            offset += piece.len() as u32;
        }
        session.good(tag).expect("written");
        expect_on_disk(&mut session, 0, &[[0x5a; 512], [0x5b; 512]].concat());
    }
}

/// 11.10.4, 11.11: an answer that goes on has a transfer tag and a LUN, with which the next request comes.
#[test]
fn an_answer_that_goes_on_has_a_lun_with_its_transfer_tag() {
    let target = InProcess::start_with(&[DISK], |config: &mut Config| {
        config.portals = vec![config.portals[0]; 16];
    });
    let mut session = login(&target, 1, &[("MaxRecvDataSegmentLength", "512")]);
    let first = session.text(TargetTransferTag::RESERVED, b"SendTargets=\0").expect("sent");
    let (TargetPdu::TextResponse(pdu), _) = session.receive().expect("an answer") else { panic!("no text") };
    assert_eq!((pdu.initiator_task_tag, pdu.is_final, pdu.lun), (first, false, LunField::default()));
    assert_ne!(pdu.target_transfer_tag, TargetTransferTag::RESERVED);
}

/// 4.2.3.6: a unit attention about an abort does not overtake the responses of the tasks that it ended.
#[test]
fn a_unit_attention_comes_behind_the_responses_of_what_was_aborted() {
    let target = InProcess::start(&[DISK, SECOND_DISK]);
    let (mut asking, mut other) = (ready_session(&target, 1), ready_session(&target, 2));
    target.hold(0, OperationKind::Read);
    let read = other.read(0, 0, 1).expect("sent");
    target.wait_for_calls(0, OperationKind::Read, 1);
    let reset = asking.manage(Function::LogicalUnitReset, 0).expect("sent");
    asking.silent().expect("a task is in its store");
    // As long as a task may still be answered nobody is told.
    let query = other.test_unit_ready(0).expect("an answer");
    assert_eq!(query.status, 0, "{query:?}");
    target.faults(0).clear();
    assert_eq!(asking.managed(reset).expect("an answer"), COMPLETE);
    crate::expect_attention(&mut other, 0, crate::BUS_DEVICE_RESET);
    let again = other.command(&ScsiCommand { initiator_task_tag: read, ..plain() }, &[]).expect("sent");
    other.good(again).expect("the tag is free: its read has no answer");
    expect_ready(&mut other, 1);
}
