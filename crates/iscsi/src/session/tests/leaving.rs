//! Connections that have been logged out while the session goes on (11.14).

use super::order::{OTHER, Pair};
use super::*;
use crate::parameters::TaskReporting;
use lunette_wire::initiator::LogoutReason;

/// A session of two connections, of which the second has been logged out while a command of it is in a store.
fn leaving() -> (Pair, TaskId) {
    let mut pair = Pair::new(TaskReporting::ResponseFence, 1);
    let in_store = pair.command(OTHER, false);
    request(&mut pair, &log_out().encode());
    assert_eq!(pair.sent(), []);
    pair.bench.outbox.events.clear();
    (pair, in_store)
}

fn log_out() -> LogoutRequest {
    LogoutRequest {
        immediate: true,
        reason: LogoutReason::CloseConnection,
        cid: OTHER,
        initiator_task_tag: InitiatorTaskTag(0x200),
        cmd_sn: CmdSn(2),
        exp_stat_sn: StatSn(1),
    }
}

fn request(pair: &mut Pair, bhs: &Bhs) {
    let bench = &mut pair.bench;
    bench.session.request(bench.now, OTHER, bhs, &[], &mut bench.outbox);
}

/// It has nothing more to say: nobody asks it anything, and its silence is no failure of the session.
#[test]
fn the_silence_of_a_connection_that_leaves_ends_nothing() {
    let (mut pair, in_store) = leaving();
    for _ in 0..200 {
        pair.acknowledge(CID, LunField::default());
        assert_eq!(pair.bench.tick_after(SECOND), []);
        assert!(pair.bench.outbox.pdus.drain(..).all(|pdu| pdu.cid == CID), "it was asked");
    }
    pair.complete(in_store, false);
    assert!(matches!(pair.sent()[..], [(OTHER, TargetPdu::LogoutResponse(_))]));
    assert!(!pair.bench.session.is_closing());
}

/// What it says that nobody understands ends it, and nothing else.
#[test]
fn a_connection_that_leaves_fails_alone() {
    let (mut pair, in_store) = leaving();
    let mut nonsense = log_out().encode();
    nonsense[1] = 0xff;
    request(&mut pair, &nonsense);
    let events = std::mem::take(&mut pair.bench.outbox.events);
    assert!(
        matches!(events[..], [Event::Close { cid: OTHER, reason: CloseReason::Format(_) }]),
        "{events:?}"
    );
    pair.bench.session.connection_lost(OTHER, false, &mut pair.bench.outbox);
    pair.complete(in_store, false);
    assert!(!pair.bench.session.is_closing());
    assert_eq!(pair.sent(), []);
}
