//! What nobody answers: functions, reassignments, and pings for which there is no room.

use super::*;
use lunette_wire::target::RejectReason;

const TIMEOUT: Duration = Duration::from_secs(60);

impl World {
    fn tick(&mut self, now: Duration) {
        self.session.tick(now, &mut self.outbox);
    }

    /// The target is heard of, and so alive.
    fn is_heard(&mut self, now: Duration) {
        let nop = NopIn {
            lun: LunField::default(),
            initiator_task_tag: InitiatorTaskTag::RESERVED,
            target_transfer_tag: TargetTransferTag::RESERVED,
            numbers: numbers(0),
        };
        self.session.received(now, self.id, &TargetPdu::NopIn(nop), &Segment::NONE, &mut self.outbox);
    }
}

#[test]
fn a_function_that_nobody_answers_ends_the_connection_that_was_asked() {
    let mut world = world();
    world.session.manage(NOW, Function::LogicalUnitReset(LunField::default()), &mut world.outbox).unwrap();
    let late = NOW + TIMEOUT * 2;
    world.is_heard(late);
    world.tick(late);
    assert_eq!(world.outbox.events, [], "it has not left yet");
    world.session.transmit(late, world.id, usize::MAX, &mut world.outbox);
    let due = late + TIMEOUT;
    world.is_heard(due);
    assert_eq!(world.session.next_deadline(), Some(due));
    world.tick(due - Duration::from_millis(1));
    assert_eq!(world.outbox.events, []);
    world.tick(due);
    let loss = Loss::FunctionOverdue(60_000);
    assert_eq!(world.outbox.events.last(), Some(&Event::SessionLost { loss }));
}

#[test]
fn times_without_end_do_not_end() {
    let mut world = world();
    let for_ever = Duration::MAX;
    (world.session.settings.function_timeout, world.session.settings.logout_timeout) = (for_ever, for_ever);
    (world.session.settings.nop_interval, world.session.settings.nop_timeout) = (Some(for_ever), for_ever);
    world.session.manage(NOW, Function::LogicalUnitReset(LunField::default()), &mut world.outbox).unwrap();
    world.session.transmit(NOW, world.id, usize::MAX, &mut world.outbox);
    let late = NOW + TIMEOUT * 1000;
    assert_eq!(world.session.next_deadline(), Some(for_ever));
    world.tick(late);
    assert_eq!(world.outbox.events, []);
}

/// Its answer may be behind that data; but not for ever.
#[test]
fn the_answer_to_a_function_is_waited_for_while_data_comes() {
    let mut world = world();
    world.session.manage(NOW, Function::LogicalUnitReset(LunField::default()), &mut world.outbox).unwrap();
    world.session.transmit(NOW, world.id, usize::MAX, &mut world.outbox);
    world.session.connections[0].data_at = NOW + TIMEOUT / 2;
    world.is_heard(NOW + TIMEOUT);
    world.tick(NOW + TIMEOUT);
    assert_eq!(world.outbox.events, []);
    assert_eq!(world.session.function_due(world.id, NOW), NOW + TIMEOUT * 3 / 2);
    world.session.connections[0].data_at = NOW + TIMEOUT * 11;
    assert_eq!(world.session.function_due(world.id, NOW), NOW + TIMEOUT * 10);
}

#[test]
fn without_room_for_a_ping_silence_is_counted_and_the_clock_is_not_asked_again_and_again() {
    let mut world = world();
    while world.session.nop(NOW, world.id, b"").is_ok() {}
    let (interval, timeout) = (Settings::default().nop_interval.unwrap(), Settings::default().nop_timeout);
    assert_eq!(world.session.next_deadline(), Some(NOW + interval + timeout));
    world.tick(NOW + interval);
    assert_eq!(world.outbox.events, []);
    world.tick(NOW + interval + timeout);
    assert_eq!(world.outbox.events.last(), Some(&Event::SessionLost { loss: Loss::Silent(10_000) }));
}

/// Counted from when they moved; and what is acknowledged only while an answer is waited for, and not without end.
#[test]
fn bytes_that_move_put_off_the_end() {
    let mut world = world();
    let (interval, timeout) = (Settings::default().nop_interval.unwrap(), Settings::default().nop_timeout);
    let asked = NOW + interval;
    world.session.saw_progress(world.id, None, Some(asked));
    assert_eq!(world.session.next_deadline(), Some(asked), "nobody was asked");
    world.tick(asked);
    let due = asked + timeout;
    assert_eq!(world.session.next_deadline(), Some(due));
    let moved = due - timeout / 2;
    for (received_at, acknowledged_at) in [(Some(moved), None), (None, Some(moved + timeout))] {
        world.session.saw_progress(world.id, received_at, acknowledged_at);
        let due = acknowledged_at.or(received_at).unwrap() + timeout;
        assert_eq!(world.session.next_deadline(), Some(due));
        world.tick(due - Duration::from_millis(1));
        assert_eq!(world.outbox.events, []);
    }
    world.session.saw_progress(world.id, None, Some(asked + timeout * 100));
    let due = asked + timeout * 11;
    assert_eq!(world.session.next_deadline(), Some(due));
    world.tick(due);
    assert_eq!(world.outbox.events.last(), Some(&Event::SessionLost { loss: Loss::Silent(5_000) }));
}

#[test]
fn a_time_to_wait_that_is_too_long_is_not_waited() {
    for (default_time2wait_s, is_over) in [(60, false), (61, true), (3600, true)] {
        let mut world = world_with(SessionParameters {
            error_recovery_level: 2,
            default_time2wait_s,
            ..SessionParameters::default()
        });
        world.session.connection_lost(world.id, Loss::Transport, &mut world.outbox);
        let is_lost = |event: &Event| matches!(event, Event::SessionLost { loss: Loss::Transport });
        assert_eq!(world.outbox.events.iter().any(is_lost), is_over, "{default_time2wait_s} s");
    }
}

#[test]
fn a_session_that_is_given_up_ends_at_every_level() {
    for level in 0..=2 {
        let mut world = world_at(level);
        world.session.give_up(&mut world.outbox);
        let ends = world
            .outbox
            .events
            .iter()
            .filter(|event| matches!(event, Event::Ended { end: End::Unknown, .. }));
        assert_eq!(ends.count(), 2);
        assert_eq!(world.outbox.events.last(), Some(&Event::SessionLost { loss: Loss::GivenUp }));
    }
}

/// A connection was lost at ErrorRecoveryLevel 2, has been replaced, and its two tasks are to go on.
fn reinstated() -> World {
    let mut world = world_at(2);
    let taken = world.data_in();
    world.take(TargetPdu::ScsiDataIn(taken), &segment(512));
    world.sent();
    world.session.connection_lost(world.id, Loss::Transport, &mut world.outbox);
    let (cid, _) = world.session.lost_connections().next().expect("it is kept");
    let login = LoggedIn {
        cid,
        parameters: ConnectionParameters::default(),
        exp_stat_sn: STAT_SN,
        exp_cmd_sn: CMD_SN.plus(2),
        max_cmd_sn: CMD_SN.plus(5),
    };
    world.id = world.session.add_connection(NOW, &login).unwrap();
    world.tick(NOW + Duration::from_secs(5));
    world.outbox.events.clear();
    world
}

#[test]
fn a_reassignment_that_is_rejected_for_ever_is_given_up() {
    let mut world = reinstated();
    let (mut rejected, mut stat_sn) = (0, 0);
    loop {
        let asked: Vec<_> = world.sent().into_iter().filter(is_reassignment).collect();
        if asked.is_empty() {
            break;
        }
        for pdu in asked {
            let InitiatorPdu::TaskManagementRequest(request) = pdu else { continue };
            let reason = RejectReason::ImmediateCommandReject as u8;
            let reject = Reject { reason, numbers: numbers(stat_sn), data_sn: DataSn(0) };
            world.take(TargetPdu::Reject(reject), &Segment::of(&request.encode()));
            (rejected, stat_sn) = (rejected + 1, stat_sn + 1);
        }
        assert!(rejected < 100, "it goes on for ever");
    }
    let ends =
        world.outbox.events.iter().filter(|event| matches!(event, Event::Ended { end: End::Unknown, .. }));
    assert_eq!((rejected, ends.count()), (2 * 9, 2), "both tasks, each nine times");
}

fn is_reassignment(pdu: &InitiatorPdu) -> bool {
    use lunette_wire::initiator::TaskManagementFunction;
    matches!(pdu, InitiatorPdu::TaskManagementRequest(request)
        if request.function == TaskManagementFunction::TaskReassign)
}

/// Both tasks are refused, as LIO does when it goes on with them.
fn both_are_refused() -> World {
    let mut world = reinstated();
    let asked: Vec<_> = world.sent().into_iter().filter(is_reassignment).collect();
    assert_eq!(asked.len(), 2);
    for (pdu, stat_sn) in asked.iter().zip(0..) {
        let InitiatorPdu::TaskManagementRequest(request) = pdu else { continue };
        let refusal = TaskManagementResponse {
            response: 255,
            initiator_task_tag: request.initiator_task_tag,
            numbers: numbers(stat_sn),
            ..TaskManagementResponse::default()
        };
        world.take(TargetPdu::TaskManagementResponse(refusal), &Segment::NONE);
    }
    world
}

/// It could come behind what is written later, which the target prevents before it lets a new session in.
#[test]
fn a_write_that_the_target_refuses_to_go_on_with_ends_with_its_session() {
    let mut world = both_are_refused();
    let given_up = NOW + Duration::from_secs(20);
    world.is_heard(given_up);
    world.tick(given_up);
    assert_eq!(world.outbox.events.last(), Some(&Event::SessionLost { loss: Loss::NotReassigned }));
    let is_unknown = |event: &&Event| matches!(event, Event::Ended { end: End::Unknown, .. });
    assert_eq!(world.outbox.events.iter().filter(is_unknown).count(), 2);
}

#[test]
fn a_task_that_the_target_refuses_to_go_on_with_may_go_on_all_the_same() {
    let mut world = both_are_refused();
    let given_up = NOW + Duration::from_secs(20);
    assert!(world.session.next_deadline() <= Some(given_up));
    let r2t = ReadyToTransfer { numbers: numbers(2), ..world.r2t() };
    world.take(TargetPdu::ReadyToTransfer(r2t), &Segment::NONE);
    world.is_heard(given_up);
    world.tick(given_up - Duration::from_millis(1));
    assert_eq!(world.outbox.events, []);
    world.tick(given_up);
    let ended = Event::Ended { task: world.read, end: End::Unknown };
    assert_eq!(world.outbox.events, [ended], "the write goes on");
}

/// The target asks for data before it rejects the request for the task: what is asked for anew counts once.
#[test]
fn what_was_asked_for_before_a_reassignment_is_rejected_is_forgotten() {
    let mut world = reinstated();
    let tag = world.write.initiator_task_tag();
    let request = world.sent().into_iter().find_map(|pdu| match pdu {
        InitiatorPdu::TaskManagementRequest(request) if request.referenced_task_tag == tag => Some(request),
        _ => None,
    });
    let request = request.expect("a reassignment");
    world.take(TargetPdu::ReadyToTransfer(world.r2t()), &Segment::NONE);
    let reason = RejectReason::ImmediateCommandReject as u8;
    let reject = Reject { reason, numbers: numbers(0), data_sn: DataSn(0) };
    world.take(TargetPdu::Reject(reject), &Segment::of(&request.encode()));
    let sent = world.sent();
    assert!(
        matches!(sent[..], [InitiatorPdu::TaskManagementRequest(again)] if again.referenced_task_tag == tag)
    );
    for (r2t_sn, buffer_offset) in [(1, 1024), (2, 2048), (3, 3072)] {
        let r2t_sn = DataSn(r2t_sn);
        let r2t = ReadyToTransfer { r2t_sn, buffer_offset, numbers: numbers(1), ..world.r2t() };
        world.take(TargetPdu::ReadyToTransfer(r2t), &Segment::NONE);
        assert!(
            matches!(world.sent()[..], [InitiatorPdu::ScsiDataOut(data)] if data.buffer_offset == buffer_offset)
        );
    }
    assert_eq!(world.outbox.events, []);
}

#[test]
fn a_task_that_the_target_does_not_have_ends_at_once() {
    let mut world = reinstated();
    let asked = world.sent().into_iter().find(is_reassignment);
    let Some(InitiatorPdu::TaskManagementRequest(request)) = asked else { panic!("nothing is asked") };
    let gone = TaskManagementResponse {
        response: 1,
        initiator_task_tag: request.initiator_task_tag,
        numbers: numbers(0),
        ..TaskManagementResponse::default()
    };
    world.take(TargetPdu::TaskManagementResponse(gone), &Segment::NONE);
    assert_eq!(world.end(), &End::Unknown);
}
