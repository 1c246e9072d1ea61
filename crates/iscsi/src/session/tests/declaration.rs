//! MaxRecvDataSegmentLength that this side declares anew (11.9.1 event 4, 13.12).

use super::*;

const HALF_A_MINUTE: Duration = Duration::from_secs(30);

/// Parameters of the Asynchronous Messages with event 4 among what was sent since the last call.
fn asked(bench: &mut Bench) -> Vec<[u16; 3]> {
    let sent = bench.sent().into_iter();
    sent.filter_map(|pdu| match pdu {
        TargetPdu::AsynchronousMessage(pdu) => (pdu.event == 4).then_some(pdu.parameters),
        _ => None,
    })
    .collect()
}

fn declare(bench: &mut Bench, bytes: u32) {
    bench.session.declare_anew(bench.now, bytes, &mut bench.outbox);
}

/// A Text Response has gone out that declares `bytes`; answers what holds until it has arrived.
fn respond(bench: &mut Bench, bytes: u32) -> u32 {
    let flags = (true, false, TargetTransferTag::RESERVED);
    bench.session.send_text(CID, InitiatorTaskTag(7), flags, Vec::new(), &mut bench.outbox);
    bench.session.has_declared(CID, bytes, &mut bench.outbox);
    segment_max(bench).expect("the longer one holds")
}

fn segment_max(bench: &mut Bench) -> Option<u32> {
    let events = std::mem::take(&mut bench.outbox.events);
    events.into_iter().find_map(|event| match event {
        Event::SegmentLength { cid: CID, bytes } => Some(bytes),
        _ => None,
    })
}

/// What a PDU of the initiator's does that has seen everything before `exp_stat_sn`.
fn acknowledge(bench: &mut Bench, exp_stat_sn: u32) -> Option<u32> {
    let nop = NopOut {
        immediate: true,
        initiator_task_tag: InitiatorTaskTag::RESERVED,
        target_transfer_tag: TargetTransferTag::RESERVED,
        exp_stat_sn: StatSn(exp_stat_sn),
        ..NopOut::default()
    };
    bench.request(&nop.encode(0), &[]);
    segment_max(bench)
}

#[test]
fn an_initiator_is_asked_for_a_negotiation_twice_and_then_left_alone() {
    let mut bench = Bench::new(SessionType::Normal);
    bench.session.settings.nop_interval = None;
    declare(&mut bench, 8192);
    assert!(asked(&mut bench).is_empty(), "it was told so at the login");
    declare(&mut bench, 65536);
    declare(&mut bench, 65536);
    assert_eq!((asked(&mut bench), bench.session.owed_declaration(CID)), (vec![[0, 0, 30]], Some(65536)));
    assert!(bench.tick_after(HALF_A_MINUTE - SECOND).is_empty() && asked(&mut bench).is_empty());
    bench.tick_after(SECOND);
    assert_eq!((asked(&mut bench).len(), bench.session.owed_declaration(CID)), (1, Some(65536)));
    bench.tick_after(HALF_A_MINUTE);
    bench.tick_after(HALF_A_MINUTE);
    assert_eq!((asked(&mut bench).len(), bench.session.owed_declaration(CID)), (0, None));
    assert!(!bench.session.is_closing(), "what it was told at its login goes on to hold");
    // Another length is another matter.
    declare(&mut bench, 4096);
    assert_eq!(asked(&mut bench).len(), 1);
    declare(&mut bench, 8192);
    assert_eq!((asked(&mut bench).len(), bench.session.owed_declaration(CID)), (0, None), "as it was");
}

#[test]
fn a_shorter_length_holds_once_it_has_arrived() {
    let mut bench = Bench::new(SessionType::Normal);
    declare(&mut bench, 512);
    // The message has StatSN 1, the response 2.
    assert_eq!(respond(&mut bench, 512), 8192);
    assert_eq!(bench.session.owed_declaration(CID), None);
    assert_eq!(acknowledge(&mut bench, 2), None, "what it sends may still be longer");
    assert_eq!(acknowledge(&mut bench, 3), Some(512));
    assert_eq!(acknowledge(&mut bench, 3), None);
    // A longer one holds at once; until the last one has arrived, all that was said before may be taken for true.
    declare(&mut bench, 4096);
    assert_eq!(respond(&mut bench, 4096), 4096);
    declare(&mut bench, 1024);
    assert_eq!(respond(&mut bench, 1024), 4096);
    declare(&mut bench, 2048);
    assert_eq!(respond(&mut bench, 2048), 4096);
    assert_eq!(acknowledge(&mut bench, 8), None);
    assert_eq!(acknowledge(&mut bench, 9), Some(2048));
}

#[test]
fn a_length_that_changes_during_the_exchange_is_still_to_be_told() {
    let mut bench = Bench::new(SessionType::Normal);
    declare(&mut bench, 4096);
    declare(&mut bench, 2048);
    respond(&mut bench, 4096);
    assert_eq!(bench.session.owed_declaration(CID), Some(2048));
}

#[test]
fn a_discovery_session_and_one_that_leaves_are_asked_nothing() {
    let mut discovery = Bench::new(SessionType::Discovery);
    declare(&mut discovery, 65536);
    assert!(asked(&mut discovery).is_empty() && discovery.session.owed_declaration(CID).is_none());
    let mut leaving = Bench::new(SessionType::Normal);
    leaving.session.request_logout(leaving.now, SECOND, &mut leaving.outbox);
    declare(&mut leaving, 65536);
    assert!(asked(&mut leaving).is_empty());
}
