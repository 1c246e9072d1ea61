//! Negotiations that a target asks for in full feature phase (6.4, 11.9.1 event 4).

use super::*;

fn request(stat_sn: u32) -> TargetPdu {
    TargetPdu::AsynchronousMessage(AsynchronousMessage {
        numbers: numbers(stat_sn),
        event: 4,
        parameters: [0, 0, 30],
        ..AsynchronousMessage::default()
    })
}

fn response(tag: InitiatorTaskTag, stat_sn: u32, is_final: bool) -> TargetPdu {
    let target_transfer_tag = if is_final { TargetTransferTag::RESERVED } else { TargetTransferTag(9) };
    TargetPdu::TextResponse(TextResponse {
        is_final,
        initiator_task_tag: tag,
        target_transfer_tag,
        numbers: numbers(stat_sn),
        ..TextResponse::default()
    })
}

/// The tag of the request that is sent, which must be the only one.
fn asked(world: &mut World) -> InitiatorTaskTag {
    let [InitiatorPdu::TextRequest(request)] = world.sent()[..] else { panic!("no Text Request") };
    request.initiator_task_tag
}

fn world_asked() -> (World, InitiatorTaskTag) {
    let mut world = world();
    world.take(request(0), &Segment::NONE);
    let tag = asked(&mut world);
    world.outbox.events.clear();
    (world, tag)
}

#[test]
fn what_a_target_declares_holds_for_what_is_made_from_then_on() {
    let (mut world, tag) = world_asked();
    world.take(response(tag, 1, true), &Segment::of(b"TargetAlias=x\0MaxRecvDataSegmentLength=512\0"));
    let notice = Notice::SegmentLength { bytes: 512 };
    assert_eq!(world.outbox.events, [Event::Notice { connection: world.id, notice }], "no text is told");
    let too_long = RequestError::TooLong { length: 513, max: 512 };
    assert_eq!(world.session.nop(NOW, world.id, &[0; 513]), Err(too_long));
    // Nothing has to change.
    world.take(request(2), &Segment::NONE);
    let tag = asked(&mut world);
    world.take(response(tag, 3, true), &Segment::NONE);
    assert!(world.session.nop(NOW, world.id, &[0; 512]).is_ok());
}

#[test]
fn what_a_target_brings_up_is_answered() {
    let (mut world, tag) = world_asked();
    let first = b"X-com.example.a=1\0MaxBurstLength=512\0MaxRecvDataSegmentLength=4096\0";
    world.take(response(tag, 1, false), &Segment::of(first));
    world.session.transmit(NOW, world.id, usize::MAX, &mut world.outbox);
    let answers: Vec<_> = world.outbox.pdus.drain(..).map(|pdu| pdu.payload).collect();
    let expected = b"X-com.example.a=NotUnderstood\0MaxBurstLength=Reject\0";
    assert_eq!(answers, [Payload::Bytes(expected[..].into())]);
    // The second part alone is answered, and nothing in it wants an answer.
    world.take(response(tag, 2, false), &Segment::of(b"TargetAlias=x\0"));
    assert_eq!(asked(&mut world), tag);
    world.take(response(tag, 3, true), &Segment::NONE);
    let notice = Notice::SegmentLength { bytes: 4096 };
    assert_eq!(world.outbox.events, [Event::Notice { connection: world.id, notice }]);
}

#[test]
fn what_no_target_may_say_is_refused() {
    let more_than_fits = format!("{}=b\0", "a".repeat(63)).repeat(110);
    let cases: [(bool, &[u8], &str); 6] = [
        (true, b"MaxRecvDataSegmentLength=511\0", "13.12"),
        (true, b"MaxRecvDataSegmentLength=512\0MaxRecvDataSegmentLength=512\0", "6.2"),
        (true, b"text\0", "6.1"),
        (false, b"text\0", "6.1"),
        (false, b"X-a=NotUnderstood\0", "6.2"),
        (false, more_than_fits.as_bytes(), "6.2"),
    ];
    for (is_final, text, clause) in cases {
        let (world, tag) = world_asked();
        assert_eq!(world.refused(response(tag, 1, is_final), &Segment::of(text)), clause);
    }
}

#[test]
fn it_waits_for_the_exchange_that_is_under_way() {
    let mut world = world();
    let RequestHandle(tag) = world.session.text(NOW, world.id, b"SendTargets=\0").unwrap();
    assert_eq!(asked(&mut world), tag);
    world.take(request(0), &Segment::NONE);
    world.take(request(1), &Segment::NONE);
    assert!(world.sent().is_empty(), "one exchange at a time (11.10)");
    world.outbox.events.clear();
    world.take(response(tag, 2, true), &Segment::of(b"TargetName=iqn.x\0"));
    let own = asked(&mut world);
    assert_ne!(own, tag);
    let text = Event::Text { request: RequestHandle(tag), text: b"TargetName=iqn.x\0".to_vec() };
    assert_eq!(world.outbox.events, [text]);
    world.take(response(own, 3, true), &Segment::NONE);
    assert!(world.sent().is_empty());
    // A declaration in an exchange of the driver's counts as well.
    let RequestHandle(tag) = world.session.text(NOW, world.id, b"X-a=b\0").unwrap();
    world.take(response(tag, 4, true), &Segment::of(b"MaxRecvDataSegmentLength=600\0"));
    let notice = Notice::SegmentLength { bytes: 600 };
    assert_eq!(world.outbox.events.last(), Some(&Event::Notice { connection: world.id, notice }));
}

#[test]
fn a_target_that_rejects_what_it_has_asked_for_may_ask_again() {
    let (mut world, tag) = world_asked();
    let mut header = [0; 48];
    header[0] = 4;
    header[16..20].copy_from_slice(&tag.0.to_be_bytes());
    let reject = Reject { reason: 4, numbers: numbers(1), data_sn: DataSn(0) };
    world.take(TargetPdu::Reject(reject), &Segment::of(&header));
    assert!(world.outbox.events.is_empty() && world.sent().is_empty(), "nobody waits for it");
    world.take(request(2), &Segment::NONE);
    asked(&mut world);
}
