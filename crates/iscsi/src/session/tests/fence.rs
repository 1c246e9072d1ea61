//! What the response fence keeps from others, and for how long.

use super::order::{OTHER, Pair};
use super::*;
use crate::parameters::TaskReporting;

/// Another session's reset has to have a command end, with TASK ABORTED, that is in a store. Once it has, only its own initiator
/// still waits, and may let the fence stand.
#[test]
fn a_task_that_only_the_fence_keeps_is_over_for_others() {
    let mut pair = Pair::new(TaskReporting::ResponseFence, 1);
    let (fenced, behind) = (pair.command(CID, false), pair.command(OTHER, false));
    pair.complete(fenced, true);
    assert_eq!(pair.responses(), [(0, 1)]);
    assert_eq!(pair.bench.session.abort_tasks(None, &[], true, &mut pair.bench.outbox), [behind]);
    assert!(pair.bench.session.is_open(behind), "a store has it");
    pair.complete(behind, false);
    assert_eq!(pair.responses(), [], "the fence stands");
    assert!(!pair.bench.session.is_open(behind));
    pair.acknowledge(CID, LunField::default());
    let sent = pair.sent();
    let [(OTHER, TargetPdu::ScsiResponse(response))] = sent[..] else { panic!("one response, not {sent:?}") };
    assert_eq!(response.status, 0x40, "TASK ABORTED");
}

/// The seconds until a connection is given up because of the fence, while its initiator sends something every second. It
/// acknowledges one status more at each of `acknowledged_at`.
fn stands_for_s(pair: &mut Pair, cid: Cid, acknowledged_at: &[u32]) -> Option<u32> {
    pair.bench.outbox.events.clear();
    // The other connection says nothing.
    pair.bench.session.settings.nop_interval = None;
    (1..300).find(|second| {
        if acknowledged_at.contains(second) {
            pair.exp_stat_sn[cid.0 as usize] += 1;
        }
        pair.acknowledge(cid, LunField::default());
        let events = pair.bench.tick_after(SECOND);
        if let Some(event) = events.first() {
            let reason = CloseReason::Unacknowledged(60_000);
            assert_eq!(*event, Event::Close { cid, reason });
        }
        !events.is_empty()
    })
}

/// 4.2.2.1: behind a fence, too, a session has so many functions and no more. Those that it has are answered in their order.
#[test]
fn functions_behind_a_fence_are_bounded() {
    const TOO_MANY: u8 = RejectReason::ImmediateCommandReject as u8;
    let mut pair = Pair::new(TaskReporting::Rfc3720, 1);
    let before = pair.command(OTHER, false);
    pair.complete(before, false);
    assert_eq!(pair.responses(), [(1, 1)]);
    pair.manage(TaskManagementFunction::AbortTaskSet, u32::MAX);
    pair.carry_out();
    assert_eq!(pair.sent(), [], "the answer on the other connection is not acknowledged");
    let ask = |pair: &mut Pair, cid: Cid, tag: u32| {
        let request = TaskManagementRequest {
            immediate: true,
            function: TaskManagementFunction::AbortTask,
            initiator_task_tag: InitiatorTaskTag(tag),
            referenced_task_tag: InitiatorTaskTag(77),
            lun: LunField::default(),
            cmd_sn: CmdSn(2),
            exp_stat_sn: StatSn(1),
            ref_cmd_sn: CmdSn(0),
            exp_data_sn: lunette_wire::DataSn(0),
        };
        let bench = &mut pair.bench;
        bench.session.request(bench.now, cid, &request.encode(), &[], &mut bench.outbox);
        reject_reasons(&pair.sent().into_iter().map(|(_, pdu)| pdu).collect::<Vec<_>>())
    };
    let most = MANAGEMENT_MAX as u32;
    for tag in 1..most {
        assert_eq!(ask(&mut pair, CID, tag), [], "function {tag}");
    }
    for _ in 0..1000 {
        assert_eq!(ask(&mut pair, CID, 5000), [TOO_MANY]);
    }
    assert_eq!(ask(&mut pair, OTHER, most), [], "the only one of its connection");
    assert_eq!(ask(&mut pair, OTHER, 5000), [TOO_MANY]);
    assert_eq!(pair.bench.session.open_functions(), MANAGEMENT_MAX + 1);
    pair.acknowledge(OTHER, LunField::default());
    assert_eq!(pair.responses(), [(0, 0x102)], "the fenced one");
    pair.acknowledge(CID, LunField::default());
    let expected: Vec<_> = (1..most).map(|tag| (0, tag)).chain([(1, most)]).collect();
    assert_eq!(pair.responses(), expected);
    assert_eq!(pair.bench.session.open_functions(), 0);
}

/// Signs of life are not what the fence waits for.
#[test]
fn a_fence_does_not_wait_for_ever_for_an_acknowledgement() {
    // The fenced response itself has gone out.
    let mut pair = Pair::new(TaskReporting::ResponseFence, 1);
    let (fenced, behind) = (pair.command(CID, false), pair.command(OTHER, false));
    pair.complete(fenced, true);
    assert_eq!(pair.responses(), [(0, 1)]);
    pair.exp_stat_sn = [1, 1];
    assert_eq!(stands_for_s(&mut pair, CID, &[]), None, "nobody waits for it");
    pair.complete(behind, false);
    assert_eq!(stands_for_s(&mut pair, CID, &[]), Some(61));
    assert!(pair.bench.session.is_closing());

    // It waits for three others, which are acknowledged slowly.
    for (acknowledged_at, given_up) in [(&[][..], Some(61)), (&[50, 100], Some(160)), (&[50, 100, 150], None)]
    {
        let mut pair = Pair::new(TaskReporting::Rfc3720, 1);
        let ids = [OTHER, OTHER, OTHER, CID].map(|cid| pair.command(cid, false));
        ids.iter().for_each(|&id| pair.complete(id, id == ids[3]));
        assert_eq!(pair.responses(), [(1, 1), (1, 2), (1, 3)]);
        pair.exp_stat_sn = [1, 1];
        assert_eq!(stands_for_s(&mut pair, OTHER, acknowledged_at), given_up, "{acknowledged_at:?}");
    }
}
