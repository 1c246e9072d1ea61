//! Asynchronous Messages that a target sends when its operator wants it to (RFC 7143, 11.9.1): SCSI events, and a request for a
//! negotiation. Logout requests and drops are in `drain`, `sessions` and `recovery`, terminated tasks in `queries`.

use lunette_target::config::AccessState;
use lunette_tests::in_process::InProcess;
use lunette_tests::raw::{Raw, lun_field, write};
use lunette_wire::initiator::TaskManagementFunction as Function;
use lunette_wire::target::AsynchronousMessage;
use lunette_wire::{InitiatorPdu, LunField, TargetPdu, TargetTransferTag};

use crate::{
    BUS_DEVICE_RESET, COMPLETE, DISK, SECOND_DISK, expect_attention, expect_on_disk, expect_ready, pattern,
    ready_session,
};

const SCSI_EVENT: u8 = 0;
const NEGOTIATION_REQUEST: u8 = 4;
const STATE_CHANGED: (u8, u8, u8) = (6, 0x2a, 6);

/// The next PDU, which must be an Asynchronous Message.
fn message(session: &mut Raw) -> (AsynchronousMessage, Vec<u8>) {
    match session.receive().expect("an Asynchronous Message") {
        (TargetPdu::AsynchronousMessage(pdu), data) => (pdu, data),
        other => panic!("{other:?}"),
    }
}

/// The next PDU must tell of a condition of this unit: the sense data behind its length (11.9.4), in fixed format.
fn expect_event(session: &mut Raw, lun: u8, codes: (u8, u8, u8)) {
    let (pdu, data) = message(session);
    assert_eq!((pdu.event, pdu.vendor_code, pdu.parameters), (SCSI_EVENT, 0, [0; 3]));
    assert_eq!(pdu.lun, lun_field(lun));
    let (length, sense) = data.split_at(2);
    assert_eq!(usize::from(u16::from_be_bytes([length[0], length[1]])), sense.len());
    assert_eq!((sense[0], (sense[2] & 0x0f, sense[12], sense[13])), (0x70, codes));
}

/// Event 0: who wants them is told of unit attentions as they come up, each once, and they wait for a command all the same.
/// RFC 7143: 11.9.3.
#[test]
fn unit_attentions_are_told_as_they_come_up() {
    let told = InProcess::start_with(&[DISK, SECOND_DISK], |config| config.targets[0].scsi_events = true);
    let (mut first, mut second) = (ready_session(&told, 1), ready_session(&told, 2));
    let reset = first.manage(Function::LogicalUnitReset, 0).expect("sent");
    expect_event(&mut second, 0, BUS_DEVICE_RESET);
    // Its own reset is told to who has asked for it, before or behind the answer.
    let is_event =
        |pdu: &TargetPdu| matches!(pdu, TargetPdu::AsynchronousMessage(pdu) if pdu.event == SCSI_EVENT);
    let both = [first.receive().expect("two PDUs").0, first.receive().expect("two PDUs").0];
    assert_eq!(both.iter().filter(|pdu| is_event(pdu)).count(), 1, "{both:?}");
    let answer = both.iter().find_map(|pdu| match pdu {
        TargetPdu::TaskManagementResponse(pdu) => Some((pdu.initiator_task_tag, pdu.response)),
        _ => None,
    });
    assert_eq!(answer, Some((reset, COMPLETE)));
    let again = first.manage(Function::LogicalUnitReset, 0).expect("sent");
    assert_eq!(first.managed(again).expect("an answer, and nothing that was told before"), COMPLETE);
    second.silent().expect("it is pending, and was told");
    told.set_access_state(1, AccessState::ActiveNonOptimized);
    for session in [&mut first, &mut second] {
        expect_event(session, 0, STATE_CHANGED);
        expect_event(session, 1, STATE_CHANGED);
        let ending = session.test_unit_ready(0).expect("an answer");
        assert_eq!(ending.codes(), BUS_DEVICE_RESET, "it waits all the same");
        expect_attention(session, 0, STATE_CHANGED);
        expect_attention(session, 1, STATE_CHANGED);
    }
    // Once a command has reported it, it can come up again.
    told.set_access_state(1, AccessState::ActiveOptimized);
    expect_event(&mut first, 0, STATE_CHANGED);
}

/// Whether a PDU tells of another access state of unit 1.
fn is_told(pdu: &TargetPdu, data: &[u8]) -> bool {
    let changed = [STATE_CHANGED.1, STATE_CHANGED.2];
    matches!(pdu, TargetPdu::AsynchronousMessage(pdu) if pdu.event == SCSI_EVENT && pdu.lun == lun_field(1))
        && data.get(14..16) == Some(&changed[..])
}

/// Has unit 1 in another access state, which `witness` is told of; before that it is reset, so that the condition is a new one to
/// all others too.
fn change_anew(target: &InProcess, witness: &mut Raw, state: AccessState) {
    let reset = witness.manage(Function::LogicalUnitReset, 1).expect("sent");
    loop {
        match witness.receive().expect("an answer") {
            (TargetPdu::TaskManagementResponse(pdu), _) if pdu.initiator_task_tag == reset => break,
            (TargetPdu::AsynchronousMessage(_), _) => {}
            other => panic!("{other:?}"),
        }
    }
    target.set_access_state(1, state);
    loop {
        let (pdu, data) = witness.receive().expect("an event");
        if is_told(&pdu, &data) {
            return;
        }
    }
}

/// One initiator can make conditions for all others without end. Who does not take what it was sent is not told of them: nothing
/// piles up for it, and its next command brings the condition.
#[test]
fn who_does_not_read_is_not_told_and_who_does_is() {
    const READS: u32 = 64;
    const BLOCKS: u32 = 2048;
    let target = InProcess::start_with(&["0=mem:64M", "1=mem:1M"], |config| {
        config.limits.buffer_memory_bytes = 192 << 20;
        config.reactors.count = Some(1);
        config.targets[0].scsi_events = true;
    });
    let (mut slow, mut other) = (ready_session(&target, 1), ready_session(&target, 2));
    for index in 0..READS {
        slow.read(0, u64::from(index % 32 * BLOCKS), BLOCKS).expect("sent");
    }
    // The one thread has served `slow` in each of these turns too, so its socket has long been full.
    for _ in 0..400 {
        let tag = other.read(1, 0, 256).expect("sent");
        other.data_in(tag).expect("the other is served");
    }
    for _ in 0..20 {
        change_anew(&target, &mut other, AccessState::ActiveNonOptimized);
        change_anew(&target, &mut other, AccessState::ActiveOptimized);
    }
    let (mut ended, mut told) = (0, 0);
    while ended < READS {
        let (pdu, data) = slow.receive().expect("data");
        told += u32::from(is_told(&pdu, &data));
        ended += u32::from(matches!(pdu, TargetPdu::ScsiDataIn(pdu) if pdu.status == Some(0)));
    }
    assert_eq!(told, 0);
    slow.silent().expect("nothing is kept back");
    assert_eq!(slow.test_unit_ready(1).expect("an answer").codes(), BUS_DEVICE_RESET);
    change_anew(&target, &mut other, AccessState::ActiveNonOptimized);
    expect_event(&mut slow, 1, BUS_DEVICE_RESET);
    expect_event(&mut slow, 1, STATE_CHANGED);
}

/// An initiator has one of them for each condition, whatever connections it has.
#[test]
fn a_session_of_two_connections_is_told_once() {
    let target = InProcess::start_with(&[DISK], |config| config.targets[0].scsi_events = true);
    let options = target.options_with(1, &[("MaxConnections", "2")]);
    let mut first = Raw::ready(target.portal(), &options, 0).expect("a session");
    let mut other = target.session(2);
    let joining = lunette_tests::initiator::LoginOptions {
        tsih: first.tsih,
        cid: lunette_wire::Cid(1),
        keys: Vec::new(),
        ..options
    };
    let mut second = Raw::login(target.portal(), &joining).expect("a second connection");
    other.manage(Function::LogicalUnitReset, 0).expect("sent");
    expect_event(&mut first, 0, BUS_DEVICE_RESET);
    second.cmd_sn = first.cmd_sn;
    second.silent().expect("nothing here");
    first.silent().expect("nothing more");
}

/// Nobody has to put up with them: a target is silent unless it was told otherwise.
/// RFC 7143: 11.9.3.
#[test]
fn unit_attentions_are_not_told_by_default() {
    let target = InProcess::start(&[DISK, SECOND_DISK]);
    let (mut first, mut second) = (ready_session(&target, 1), ready_session(&target, 2));
    let reset = first.manage(Function::LogicalUnitReset, 0).expect("sent");
    assert_eq!(first.managed(reset).expect("the answer alone"), COMPLETE);
    second.silent().expect("nothing is told");
    expect_attention(&mut second, 0, BUS_DEVICE_RESET);
}

const KEY: &str = "MaxRecvDataSegmentLength";

fn set_length(target: &mut InProcess, bytes: u32) {
    let change = target.reload(|config| config.limits.max_recv_data_segment_length_bytes = bytes);
    let change = change.expect("a good configuration");
    assert_eq!((change.applied.len(), change.waiting.len()), (1, 0), "{change:?}");
}

fn expect_request(session: &mut Raw) {
    let (pdu, data) = message(session);
    assert_eq!((pdu.event, pdu.parameters, data.len()), (NEGOTIATION_REQUEST, [0, 0, 30], 0));
    assert_eq!(pdu.lun, LunField::default(), "reserved but for event 0 (11.9.3)");
}

/// An empty Text Request must be answered with this declaration.
fn expect_declaration(session: &mut Raw, bytes: u32) {
    let tag = session.text(TargetTransferTag::RESERVED, b"").expect("sent");
    match session.receive().expect("an answer") {
        (TargetPdu::TextResponse(pdu), text) => {
            assert_eq!((pdu.initiator_task_tag, pdu.is_final), (tag, true));
            assert_eq!(text, format!("{KEY}={bytes}\0").into_bytes());
        }
        other => panic!("{other:?}"),
    }
}

fn write_at_once(session: &mut Raw, lba: u64, data: &[u8]) {
    let tag = session.write(0, lba, data).expect("sent");
    session.good(tag).expect("it is taken");
}

/// Event 4, 6.4, 13.12: a reload with another MaxRecvDataSegmentLength has every session declare it anew.
#[test]
fn another_segment_length_is_declared_while_sessions_go_on() {
    let mut target = InProcess::start_with(&[DISK], |config| {
        config.limits.max_recv_data_segment_length_bytes = 4096;
        config.limits.first_burst_length_bytes = 65536;
    });
    let mut session = target.session(1);
    let mut quiet = target.session(2);
    set_length(&mut target, 65536);
    [&mut session, &mut quiet].into_iter().for_each(expect_request);
    expect_declaration(&mut session, 65536);
    let data = pattern(65536);
    write_at_once(&mut session, 0, &data);
    expect_on_disk(&mut session, 0, &data);
    // Who does not answer goes on with what it was told before.
    write_at_once(&mut quiet, 0, &data[..4096]);
    // A login is told at once, and by nothing else.
    let options = target.options_with(3, &[(KEY, "8192")]);
    let late = lunette_tests::initiator::Initiator::login(target.portal(), &options).expect("a login");
    assert_eq!(late.negotiated(KEY), Some("65536"));
    late.logout().expect("a logout");
    set_length(&mut target, 8192);
    [&mut session, &mut quiet].into_iter().for_each(expect_request);
    expect_declaration(&mut session, 8192);
    // By its ExpStatSN this was on its way before the declaration came.
    session.acknowledged = Some(lunette_wire::StatSn(session.exp_stat_sn.0.wrapping_sub(1)));
    write_at_once(&mut session, 0, &data);
    session.acknowledged = None;
    expect_ready(&mut session, 0);
    // From here on it has no excuse.
    let command = session.number(&write(0, 0, 65536));
    session.send(&InitiatorPdu::ScsiCommand(command), &data).expect("sent");
    session.ends().expect("a segment longer than was declared breaks the format (7.7)");
    write_at_once(&mut quiet, 0, &data[..4096]);
}

/// What was changed and changed back has not changed, and what is asked for in vain does not end a session.
#[test]
fn a_negotiation_that_is_not_wanted_any_more_declares_nothing() {
    let mut target = InProcess::start(&[DISK]);
    let options = target.options_with(1, &[(KEY, "8192")]);
    let mut session = Raw::ready(target.portal(), &options, 0).expect("a session");
    set_length(&mut target, 512);
    expect_request(&mut session);
    set_length(&mut target, 256 << 10);
    session.silent().expect("nothing more is asked for");
    let tag = session.text(TargetTransferTag::RESERVED, b"").expect("sent");
    match session.receive().expect("an answer") {
        (TargetPdu::TextResponse(pdu), text) => {
            assert_eq!((pdu.initiator_task_tag, text), (tag, Vec::new()));
        }
        other => panic!("{other:?}"),
    }
    let again = target.reload(|_| {}).expect("a good configuration");
    assert!(again.applied.is_empty(), "{again:?}");
    session.silent().expect("nothing is asked for");
}
