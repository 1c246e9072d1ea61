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

/// 11.14.4: a Logout has the number of the connection that it closes, and says nothing about its own, at every level.
#[test]
fn a_logout_acknowledges_for_the_connection_that_it_closes() {
    const THIRD: Cid = Cid(2);
    let mut pair = Pair::new(TaskReporting::Rfc3720, 1);
    pair.bench.session.parameters.max_connections = 3;
    pair.bench.session.join(pair.bench.now, THIRD, ConnectionParameters::default(), StatSn(1));
    let send = |pair: &mut Pair, cid: Cid, bhs: &Bhs| {
        let bench = &mut pair.bench;
        bench.session.request(bench.now, cid, bhs, &[], &mut bench.outbox);
    };
    let ping = |pair: &mut Pair, cid: Cid, exp_stat_sn: u32| {
        let initiator_task_tag = InitiatorTaskTag(0x300);
        let exp_stat_sn = StatSn(exp_stat_sn);
        let pdu = NopOut { immediate: true, initiator_task_tag, exp_stat_sn, ..NopOut::default() };
        send(pair, cid, &pdu.encode(0));
    };
    (0..3).for_each(|_| ping(&mut pair, CID, 1));
    (1..5).for_each(|exp_stat_sn| ping(&mut pair, OTHER, exp_stat_sn));
    pair.bench.outbox.pdus.clear();
    let abort = TaskManagementRequest {
        immediate: true,
        function: TaskManagementFunction::AbortTaskSet,
        lun: LunField::default(),
        initiator_task_tag: InitiatorTaskTag(7),
        referenced_task_tag: InitiatorTaskTag::RESERVED,
        cmd_sn: CmdSn(1),
        exp_stat_sn: StatSn(1),
        ref_cmd_sn: CmdSn(0),
        exp_data_sn: lunette_wire::DataSn(0),
    };
    send(&mut pair, THIRD, &abort.encode());
    pair.carry_out();
    assert_eq!(pair.sent(), [], "two connections have not acknowledged");
    // All that was sent on the one that is closed, where its own has not acknowledged any of its three.
    let exp_stat_sn = StatSn(4);
    send(&mut pair, CID, &LogoutRequest { cmd_sn: CmdSn(1), exp_stat_sn, ..log_out() }.encode());
    let sent: Vec<_> = pair.bench.outbox.pdus.drain(..).map(|pdu| (pdu.cid, pdu.bhs[0] & 0x3f)).collect();
    assert_eq!(sent, [(CID, 0x26)], "the Logout Response alone");
    ping(&mut pair, CID, 5);
    let sent: Vec<_> = pair.bench.outbox.pdus.drain(..).map(|pdu| (pdu.cid, pdu.bhs[0] & 0x3f)).collect();
    assert_eq!(sent, [(THIRD, 0x22), (CID, 0x20)]);
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
