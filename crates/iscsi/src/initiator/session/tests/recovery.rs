//! Recovery from losses that cannot be mended, and acknowledgements (RFC 7143, 7.8, 11.16).

use super::*;

#[test]
fn a_data_ack_waits_until_nothing_is_missing() {
    let mut world = world_at(1);
    let wanted = ScsiDataIn {
        acknowledge: true,
        lun: LunField([4; 8]),
        target_transfer_tag: TargetTransferTag(9),
        data_sn: DataSn(1),
        buffer_offset: 512,
        ..world.data_in()
    };
    world.take(TargetPdu::ScsiDataIn(wanted), &segment(512));
    let sent = world.sent();
    let [InitiatorPdu::SnackRequest(missing)] = sent[..] else { panic!("{sent:?}") };
    assert_eq!((missing.kind, missing.begin_run, missing.run_length), (0, 0, 1));
    assert_eq!(missing.initiator_task_tag, world.read.initiator_task_tag());
    assert_eq!(missing.target_transfer_tag, TargetTransferTag::RESERVED);
    world.take(TargetPdu::ScsiDataIn(world.data_in()), &segment(512));
    let sent = world.sent();
    let [InitiatorPdu::SnackRequest(ack)] = sent[..] else { panic!("{sent:?}") };
    assert_eq!((ack.kind, ack.begin_run, ack.run_length), (2, 2, 0));
    assert_eq!(ack.initiator_task_tag, InitiatorTaskTag::RESERVED);
    assert_eq!((ack.target_transfer_tag, ack.lun), (TargetTransferTag(9), LunField([4; 8])));
    // What was acknowledged is not asked for again: of the next two only the first is missing (11.16.2).
    let behind = ScsiDataIn { data_sn: DataSn(3), buffer_offset: 1536, ..world.data_in() };
    world.take(TargetPdu::ScsiDataIn(behind), &segment(512));
    let sent = world.sent();
    let [InitiatorPdu::SnackRequest(missing)] = sent[..] else { panic!("{sent:?}") };
    assert_eq!((missing.kind, missing.begin_run, missing.run_length), (0, 2, 1));
}

/// 11.7.2: without recovery nobody asks for an acknowledgement, and the bit means nothing.
#[test]
fn at_level_0_a_wish_for_an_acknowledgement_is_ignored() {
    let mut world = world_at(0);
    let wanted =
        ScsiDataIn { acknowledge: true, target_transfer_tag: TargetTransferTag(9), ..world.data_in() };
    world.take(TargetPdu::ScsiDataIn(wanted), &segment(512));
    assert!(world.sent().is_empty() && world.outbox.events.is_empty());
}

#[test]
fn data_that_cannot_be_had_again_is_a_fault_of_its_task() {
    let mut world = world_at(1);
    world.take(TargetPdu::ScsiDataIn(world.data_in()), &Segment { is_intact: false, ..segment(512) });
    let sent = world.sent();
    let [InitiatorPdu::SnackRequest(request)] = sent[..] else { panic!("{sent:?}") };
    let reject = Reject { reason: 3, numbers: numbers(0), data_sn: DataSn(0) };
    world.take(TargetPdu::Reject(reject), &Segment::of(&request.encode()));
    // The target ends the command by itself (7.8, a.1).
    let pdu = ScsiResponse { status: 2, numbers: numbers(1), ..world.response(world.read) };
    world.take(TargetPdu::ScsiResponse(pdu), &Segment::of(&[0, 1, 0x70]));
    assert!(matches!(world.end(), End::Faulty(answer, AnswerFault::DataDigest) if answer.status == 2));
}

#[test]
fn a_status_that_cannot_be_had_again_costs_the_session() {
    let mut world = world_at(1);
    let later = ScsiResponse {
        residual: Residual::Underflow(2048),
        numbers: numbers(1),
        ..world.response(world.read)
    };
    world.take(TargetPdu::ScsiResponse(later), &Segment::NONE);
    assert_eq!(world.outbox.events, [], "those before it come first");
    let sent = world.sent();
    let [InitiatorPdu::SnackRequest(request)] = sent[..] else { panic!("{sent:?}") };
    assert_eq!((request.kind, request.begin_run, request.run_length), (1, STAT_SN.0, 1));
    let reject = Reject { reason: 3, numbers: numbers(2), data_sn: DataSn(0) };
    world.take(TargetPdu::Reject(reject), &Segment::of(&request.encode()));
    // The Reject has a number too, but cannot wait for its turn.
    assert_eq!(world.outbox.events.last(), Some(&Event::SessionLost { loss: Loss::StatusGone }));
}

/// 11.14: behind a Logout Request nothing is sent, so a status that is missing cannot be asked for; the answer is taken without it.
#[test]
fn a_logout_does_not_wait_for_a_status_that_is_missing() {
    let mut world = world_at(2);
    world.session.logout(NOW, Logout::Connection(world.id), &mut world.outbox).unwrap();
    let tag = world.sent().into_iter().find_map(|pdu| match pdu {
        InitiatorPdu::LogoutRequest(request) => Some(request.initiator_task_tag),
        _ => None,
    });
    let answer = LogoutResponse {
        initiator_task_tag: tag.expect("a Logout Request"),
        numbers: numbers(1),
        ..LogoutResponse::default()
    };
    world.take(TargetPdu::LogoutResponse(answer), &Segment::NONE);
    assert_eq!(world.outbox.events.last(), Some(&Event::SessionEnded));
}

/// 4.2.2.1: a command that was sent again is in the window's way until it has arrived, however many commands wait behind it.
#[test]
fn nothing_passes_a_number_that_is_missing_by_more_than_the_window() {
    let mut world = world();
    let reject =
        Reject { reason: 2, numbers: Numbers { exp_cmd_sn: CMD_SN, ..numbers(0) }, data_sn: DataSn(0) };
    let mut header = [0; 48];
    header[0] = 1;
    header[16..20].copy_from_slice(&world.read.initiator_task_tag().0.to_be_bytes());
    for _ in 0..100 {
        world.session.submit(&Command::default()).unwrap();
    }
    world.take(TargetPdu::Reject(reject), &Segment::of(&header));
    let cmd_sns: Vec<_> = (world.sent().into_iter())
        .filter_map(|pdu| match pdu {
            InitiatorPdu::ScsiCommand(command) => Some(command.cmd_sn),
            _ => None,
        })
        .collect();
    let last = numbers(0).max_cmd_sn;
    assert!(cmd_sns.contains(&CMD_SN), "it is sent again: {cmd_sns:?}");
    assert_eq!(cmd_sns.iter().filter(|number| last.precedes(**number)).count(), 0);
    assert_eq!((world.session.cmd_sn(), world.session.window()), (last.next(), 0));
}
