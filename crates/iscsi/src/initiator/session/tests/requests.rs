//! Answers to requests that are no SCSI commands, what a target says unasked, and what this side refuses to send.

use super::*;

#[test]
fn answers_to_nothing_are_refused() {
    let initiator_task_tag = InitiatorTaskTag(0x8000_0007);
    let nop = NopIn {
        lun: LunField::default(),
        initiator_task_tag,
        target_transfer_tag: TargetTransferTag::RESERVED,
        numbers: numbers(0),
    };
    let pdus = [
        TargetPdu::NopIn(nop),
        TargetPdu::TextResponse(TextResponse {
            is_final: true,
            initiator_task_tag,
            numbers: numbers(0),
            ..TextResponse::default()
        }),
        TargetPdu::LogoutResponse(LogoutResponse {
            initiator_task_tag,
            numbers: numbers(0),
            ..LogoutResponse::default()
        }),
        TargetPdu::TaskManagementResponse(TaskManagementResponse {
            initiator_task_tag,
            numbers: numbers(0),
            ..TaskManagementResponse::default()
        }),
    ];
    for pdu in pdus {
        assert_eq!(world().refused(pdu, &Segment::NONE), "11.2.1.8");
    }
    let both = NopIn { target_transfer_tag: TargetTransferTag(1), ..nop };
    assert_eq!(world().refused(TargetPdu::NopIn(both), &Segment::NONE), "7.7");
    let login = lunette_wire::target::LoginResponse {
        transit: true,
        is_continued: false,
        current_stage: lunette_wire::initiator::LoginStage::Operational,
        next_stage: lunette_wire::initiator::LoginStage::FullFeature,
        version_max: 0,
        version_active: 0,
        isid: lunette_wire::Isid::default(),
        tsih: lunette_wire::Tsih(1),
        initiator_task_tag,
        numbers: numbers(0),
        status_class: 0,
        status_detail: 0,
    };
    assert_eq!(world().refused(TargetPdu::LoginResponse(login), &Segment::NONE), "4.2.4");
}

#[test]
fn an_answer_of_the_wrong_kind_is_refused() {
    let mut world = world();
    let id = world.id;
    let RequestHandle(initiator_task_tag) = world.session.nop(NOW, id, b"").unwrap();
    let pdu = LogoutResponse { initiator_task_tag, numbers: numbers(0), ..LogoutResponse::default() };
    assert_eq!(world.refused(TargetPdu::LogoutResponse(pdu), &Segment::NONE), "11.15");
}

#[test]
fn pings_are_answered_with_their_tag_and_unit_and_not_without_end() {
    let mut world = world();
    let ping = NopIn {
        lun: LunField([0, 3, 0, 0, 0, 0, 0, 0]),
        initiator_task_tag: InitiatorTaskTag::RESERVED,
        target_transfer_tag: TargetTransferTag(0x1234),
        numbers: numbers(0),
    };
    world.take(TargetPdu::NopIn(ping), &Segment::NONE);
    // One without a tag only brings numbers, and has no answer (11.18).
    let quiet = NopIn { target_transfer_tag: TargetTransferTag::RESERVED, ..ping };
    world.take(TargetPdu::NopIn(quiet), &Segment::NONE);
    let [InitiatorPdu::NopOut(answer)] = world.sent()[..] else { panic!() };
    assert!(answer.immediate && answer.initiator_task_tag == InitiatorTaskTag::RESERVED);
    assert_eq!((answer.target_transfer_tag, answer.lun), (TargetTransferTag(0x1234), ping.lun));
    assert_eq!((answer.cmd_sn, answer.exp_stat_sn), (CMD_SN.plus(2), STAT_SN));
    for _ in 0..32 {
        world.take(TargetPdu::NopIn(ping), &Segment::NONE);
    }
    assert_eq!(world.refused(TargetPdu::NopIn(ping), &Segment::NONE), "11.19");
}

#[test]
fn asynchronous_messages_are_told() {
    let message = |event, parameters, stat_sn| {
        TargetPdu::AsynchronousMessage(AsynchronousMessage {
            lun: LunField([0, 2, 0, 0, 0, 0, 0, 0]),
            numbers: numbers(stat_sn),
            event,
            vendor_code: 8,
            parameters,
        })
    };
    let mut world = world();
    let lun = LunField([0, 2, 0, 0, 0, 0, 0, 0]);
    world.take(message(0, [0; 3], 0), &Segment::of(&[0, 2, 0x72, 5]));
    world.take(message(4, [0, 0, 30], 1), &Segment::NONE);
    world.take(message(255, [1, 2, 3], 2), &Segment::of(&[0, 1, 7, 6, 5]));
    world.take(message(5, [0; 3], 3), &Segment::NONE);
    world.take(message(1, [0, 0, 9], 4), &Segment::NONE);
    let connection = world.id;
    let notices = [
        Notice::ScsiEvent { lun, sense: vec![0x72, 5] },
        Notice::NegotiationRequest { within_s: 30 },
        Notice::Vendor { event: 255, code: 8, parameters: [1, 2, 3], data: vec![6, 5] },
        Notice::TasksTerminated { lun },
    ];
    let mut expected: Vec<_> = notices.map(|notice| Event::Notice { connection, notice }).into();
    expected.push(Event::LogoutRequested { connection, within_s: 9 });
    assert_eq!(world.outbox.events, expected);
    // The end of tasks is acknowledged with its unit (11.9.1).
    let [InitiatorPdu::TextRequest(negotiation), InitiatorPdu::NopOut(answer)] = world.sent()[..] else {
        panic!()
    };
    assert!(negotiation.is_final && negotiation.target_transfer_tag == TargetTransferTag::RESERVED);
    assert_eq!((answer.lun, answer.target_transfer_tag), (lun, TargetTransferTag::RESERVED));
    let late = world.session.submit(&Command::default()).unwrap();
    assert!(world.session.is_waiting(late), "nothing new goes on a connection that is to be logged out");
    world.take(message(3, [0; 3], 5), &Segment::NONE);
    assert!(matches!(world.outbox.events.last(), Some(Event::SessionLost { loss: Loss::Dropped })));
}

#[test]
fn a_rejected_command_has_not_begun_and_its_number_goes_alone() {
    let mut world = world();
    let mut header = [0; 48];
    header[0] = 1;
    header[16..20].copy_from_slice(&world.write.initiator_task_tag().0.to_be_bytes());
    let numbers = Numbers { exp_cmd_sn: CMD_SN.plus(1), ..numbers(0) };
    let reject = Reject { reason: 9, numbers, data_sn: DataSn(0) };
    world.take(TargetPdu::Reject(reject), &Segment::of(&header));
    assert!(world.outbox.events.contains(&Event::Ended { task: world.write, end: End::NotSent }));
    let sent = world.sent();
    let [InitiatorPdu::NopOut(plug)] = sent[..] else { panic!("{sent:?}") };
    assert_eq!((plug.immediate, plug.cmd_sn), (false, CMD_SN.plus(1)));
    let answer = NopIn {
        lun: LunField::default(),
        initiator_task_tag: plug.initiator_task_tag,
        target_transfer_tag: TargetTransferTag::RESERVED,
        numbers: Numbers { stat_sn: STAT_SN.next(), ..numbers },
    };
    world.take(TargetPdu::NopIn(answer), &Segment::NONE);
    assert!(!world.session.is_over(), "nobody waits for its answer, and it is no fault");
    let cut =
        TargetPdu::Reject(Reject { numbers: Numbers { stat_sn: STAT_SN.plus(2), ..numbers }, ..reject });
    assert_eq!(world.refused(cut, &Segment::of(&header[..47])), "11.17");
}

#[test]
fn text_without_end_is_refused() {
    let mut world = world();
    let id = world.id;
    let RequestHandle(initiator_task_tag) = world.session.text(NOW, id, b"SendTargets=All\0").unwrap();
    assert_eq!(world.session.text(NOW, id, b"a=b\0"), Err(RequestError::TextUnderWay));
    world.sent();
    let part = |stat_sn| TextResponse {
        is_final: false,
        is_continued: true,
        initiator_task_tag,
        target_transfer_tag: TargetTransferTag(3),
        numbers: numbers(stat_sn),
        ..TextResponse::default()
    };
    let text = vec![b'a'; 8192];
    let rounds = (Settings::default().text_length_max / text.len()) as u32;
    for round in 0..rounds {
        world.take(TargetPdu::TextResponse(part(round)), &Segment::of(&text));
        let [InitiatorPdu::TextRequest(next)] = world.sent()[..] else { panic!() };
        assert_eq!(next.target_transfer_tag, TargetTransferTag(3));
        assert_eq!((next.initiator_task_tag, next.is_final), (initiator_task_tag, true));
    }
    assert_eq!(world.refused(TargetPdu::TextResponse(part(rounds)), &Segment::of(&text)), "11.11");
}

#[test]
fn what_cannot_be_sent_is_not_taken() {
    let mut world = world();
    let command = Command { cdb: &[], ..Command::default() };
    assert_eq!(world.session.submit(&command), Err(SubmitError::CdbLength(0)));
    let command = Command { cdb: &[0; CDB_LENGTH_MAX + 1], ..Command::default() };
    assert_eq!(world.session.submit(&command), Err(SubmitError::CdbLength(CDB_LENGTH_MAX + 1)));
    let too_long = RequestError::TooLong { length: 8193, max: 8192 };
    let id = world.id;
    assert_eq!(world.session.nop(NOW, id, &[0; 8193]), Err(too_long));
    assert_eq!(world.session.text(NOW, id, &[b'x'; 8193]), Err(too_long));
    let waiting = (0..).take_while(|_| world.session.submit(&Command::default()).is_ok()).count();
    assert_eq!(waiting + 2, Settings::default().tasks_max);
    let ended = world.read;
    world.take(TargetPdu::ScsiDataIn(ScsiDataIn { is_final: true, ..world.data_in() }), &segment(1024));
    let last = ScsiDataIn {
        is_final: true,
        status: Some(0),
        data_sn: DataSn(1),
        buffer_offset: 1024,
        ..world.data_in()
    };
    world.take(TargetPdu::ScsiDataIn(last), &segment(1024));
    assert_eq!(world.session.abort(NOW, ended, &mut world.outbox), Err(RequestError::NoTask));
}

/// LIO has no room for data of a command that waits for another connection's, unless some came with it.
#[test]
fn data_goes_unasked_behind_a_command_without_data_only_where_no_other_connection_is() {
    let agreed = SessionParameters {
        initial_r2t: false,
        immediate_data: false,
        max_connections: 2,
        ..SessionParameters::default()
    };
    let mut world = world_with(agreed);
    let of_write = |sent: Vec<InitiatorPdu>| {
        let command = sent.iter().find_map(|pdu| match pdu {
            InitiatorPdu::ScsiCommand(command) => Some(command.is_final),
            _ => None,
        });
        (command, sent.iter().filter(|pdu| matches!(pdu, InitiatorPdu::ScsiDataOut(_))).count())
    };
    let write = Command { write_length: 512, ..Command::default() };
    world.session.submit(&write).unwrap();
    assert_eq!(of_write(world.sent()), (Some(false), 1));
    let second = LoggedIn {
        cid: Cid(2),
        parameters: ConnectionParameters::default(),
        exp_stat_sn: STAT_SN,
        exp_cmd_sn: CMD_SN,
        max_cmd_sn: CMD_SN.plus(5),
    };
    world.id = world.session.add_connection(NOW, &second).unwrap();
    world.session.submit(&write).unwrap();
    assert_eq!(of_write(world.sent()), (Some(true), 0));
}

/// RFC 7144, 7: below level 2 the field is reserved, and so it is zero.
#[test]
fn priorities_are_sent_where_they_were_agreed_on() {
    for (protocol_level, expected) in [(1, 0), (2, 11)] {
        let mut world = world_with(SessionParameters { protocol_level, ..SessionParameters::default() });
        world.session.submit(&Command { priority: 11, ..Command::default() }).unwrap();
        let sent = world.sent();
        let [InitiatorPdu::ScsiCommand(command)] = sent[..] else { panic!("{sent:?}") };
        assert_eq!(command.priority, expected);
    }
}

/// A session with two connections, of which the first carries the tasks and is logged out: its request.
fn leaving(error_recovery_level: u8) -> (World, ConnectionId, InitiatorTaskTag) {
    let mut world = world_with(SessionParameters {
        error_recovery_level,
        max_connections: 2,
        ..SessionParameters::default()
    });
    let login = LoggedIn {
        cid: Cid(2),
        parameters: ConnectionParameters::default(),
        exp_stat_sn: STAT_SN,
        exp_cmd_sn: CMD_SN.plus(2),
        max_cmd_sn: CMD_SN.plus(5),
    };
    let other = world.session.add_connection(NOW, &login).unwrap();
    let logout = Logout::Connection(world.id);
    let RequestHandle(tag) = world.session.logout(NOW, logout, &mut world.outbox).unwrap();
    (world, other, tag)
}

/// 11.15.1: the cleanup has failed.
fn failed(initiator_task_tag: InitiatorTaskTag, stat_sn: u32) -> TargetPdu {
    let numbers = numbers(stat_sn);
    TargetPdu::LogoutResponse(LogoutResponse {
        response: 3,
        initiator_task_tag,
        numbers,
        ..LogoutResponse::default()
    })
}

/// It could come behind its own second time, which only the end of the session prevents (6.3.5).
#[test]
fn a_write_whose_connection_is_not_cleaned_up_ends_with_the_session() {
    let (mut world, _, tag) = leaving(0);
    world.sent();
    world.take(failed(tag, 0), &Segment::NONE);
    assert_eq!(world.outbox.events.last(), Some(&Event::SessionLost { loss: Loss::LogoutRefused(3) }));
    let is_unknown = |event: &&Event| matches!(event, Event::Ended { end: End::Unknown, .. });
    assert_eq!(world.outbox.events.iter().filter(is_unknown).count(), 2);
}

#[test]
fn a_read_whose_connection_is_not_cleaned_up_ends_alone() {
    let (mut world, _, tag) = leaving(0);
    let written = world.response(world.write);
    world.take(TargetPdu::ScsiResponse(written), &Segment::NONE);
    world.sent();
    world.outbox.events.clear();
    world.take(failed(tag, 1), &Segment::NONE);
    let ended = Event::Ended { task: world.read, end: End::Unknown };
    assert_eq!(world.outbox.events, [ended, Event::LoggedOut { connection: world.id }]);
    assert!(!world.session.is_over());
}

/// At level 2 the connection breaks behind its own Logout Request, and the target does not remove it for recovery.
#[test]
fn a_write_whose_leaving_connection_is_not_removed_ends_with_the_session() {
    for writes in [true, false] {
        let (mut world, other, _) = leaving(2);
        if !writes {
            let written = world.response(world.write);
            world.take(TargetPdu::ScsiResponse(written), &Segment::NONE);
        }
        world.sent();
        world.session.connection_lost(world.id, Loss::Transport, &mut world.outbox);
        // Time2Wait begins with the first look at the clock.
        for later in [0, 5] {
            world.session.tick(NOW + Duration::from_secs(later), &mut world.outbox);
        }
        world.id = other;
        let removal = world.sent().into_iter().find_map(|pdu| match pdu {
            InitiatorPdu::LogoutRequest(request) => Some(request.initiator_task_tag),
            _ => None,
        });
        world.take(failed(removal.expect("a removal"), 0), &Segment::NONE);
        assert_eq!(world.session.is_over(), writes, "{:?}", world.outbox.events);
        let unknown = Event::Ended { task: world.read, end: End::Unknown };
        assert!(world.outbox.events.contains(&unknown), "{:?}", world.outbox.events);
    }
}
