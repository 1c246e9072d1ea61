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
