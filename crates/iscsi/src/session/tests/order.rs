//! The response fence, FastAbort and the queries of RFC 7144, on a session of two connections.

use lunette_wire::initiator::ScsiDataOut;
use lunette_wire::{DataSn, InitiatorPdu};

use super::*;
use crate::parameters::TaskReporting;

pub(super) const OTHER: Cid = Cid(1);
const UNIT: LunField = LunField([0, 5, 0, 0, 0, 0, 0, 0]);

/// A session of two connections, and the numbers that its initiator has used.
pub(super) struct Pair {
    pub(super) bench: Bench,
    next_cmd_sn: u32,
    /// The newest StatSN that was seen on each connection, and one.
    pub(super) exp_stat_sn: [u32; 2],
}

impl Pair {
    pub(super) fn new(task_reporting: TaskReporting, protocol_level: u8) -> Self {
        let mut bench = Bench::new(SessionType::Normal);
        bench.session.parameters.task_reporting = task_reporting;
        bench.session.parameters.protocol_level = protocol_level;
        bench.session.parameters.max_connections = 2;
        bench.session.join(bench.now, OTHER, ConnectionParameters::default(), StatSn(1));
        Self { bench, next_cmd_sn: 1, exp_stat_sn: [1, 1] }
    }

    pub(super) fn command(&mut self, cid: Cid, write: bool) -> TaskId {
        let cmd_sn = CmdSn(self.next_cmd_sn);
        self.next_cmd_sn += 1;
        self.numbered(cid, write, (cmd_sn, cmd_sn.0)).expect("in the window")
    }

    fn numbered(&mut self, cid: Cid, write: bool, (cmd_sn, tag): (CmdSn, u32)) -> Option<TaskId> {
        let pdu = ScsiCommand {
            is_final: true,
            write,
            expected_data_transfer_length: if write { 512 } else { 0 },
            lun: UNIT,
            initiator_task_tag: InitiatorTaskTag(tag),
            cmd_sn,
            exp_stat_sn: StatSn(self.exp_stat_sn[cid.0 as usize]),
            ..ScsiCommand::default()
        };
        let (now, bhs) = (self.bench.now, pdu.encode(0));
        self.bench.session.command(now, cid, (&bhs, &pdu, &[]), 0, &mut self.bench.outbox)
    }

    pub(super) fn complete(&mut self, id: TaskId, fenced: bool) {
        let status = if fenced { 2 } else { 0 };
        let ended =
            Completion { status, status_qualifier: 0x1234, sense: &[], transfer: Transfer::None, fenced };
        self.bench.session.complete(id, ended, &mut self.bench.outbox);
    }

    pub(super) fn manage(&mut self, function: TaskManagementFunction, referenced: u32) {
        let request = TaskManagementRequest {
            immediate: true,
            function,
            lun: UNIT,
            initiator_task_tag: InitiatorTaskTag(0x100 + self.next_cmd_sn),
            referenced_task_tag: InitiatorTaskTag(referenced),
            cmd_sn: CmdSn(self.next_cmd_sn),
            exp_stat_sn: StatSn(self.exp_stat_sn[0]),
            ref_cmd_sn: CmdSn(referenced),
            exp_data_sn: DataSn(0),
        };
        self.bench.request(&request.encode(), &[]);
    }

    /// Lets the driver carry out the one function that it was told of.
    pub(super) fn carry_out(&mut self) {
        let is_function = |event: &mut Event| matches!(event, Event::Manage { .. });
        let events: Vec<Event> = self.bench.outbox.events.extract_if(.., is_function).collect();
        let [Event::Manage { id, .. }] = events[..] else { panic!("one function, not {events:?}") };
        let outcome = lunette_wire::target::TaskManagementOutcome::FunctionComplete;
        self.bench.session.management_done(id, outcome, &mut self.bench.outbox);
    }

    /// What was sent: connection and PDU, pings apart. They arrive, and are acknowledged with the next PDU.
    pub(super) fn sent(&mut self) -> Vec<(Cid, TargetPdu)> {
        let mut sent = Vec::new();
        for outgoing in self.bench.outbox.pdus.drain(..) {
            let pdu = TargetPdu::decode(&outgoing.bhs).expect("our own PDU");
            if let TargetPdu::NopIn(_) = pdu {
                continue;
            }
            self.exp_stat_sn[outgoing.cid.0 as usize] += 1;
            sent.push((outgoing.cid, pdu));
        }
        sent
    }

    /// Tags and connections of the responses that were sent.
    pub(super) fn responses(&mut self) -> Vec<(u16, u32)> {
        let tag = |pdu: &TargetPdu| match pdu {
            TargetPdu::ScsiResponse(pdu) => pdu.initiator_task_tag.0,
            TargetPdu::TaskManagementResponse(pdu) => pdu.initiator_task_tag.0,
            other => panic!("{other:?}"),
        };
        self.sent().iter().map(|(cid, pdu)| (cid.0, tag(pdu))).collect()
    }

    /// The initiator acknowledges all that it has seen on a connection.
    pub(super) fn acknowledge(&mut self, cid: Cid, lun: LunField) {
        let pdu = NopOut {
            immediate: true,
            lun,
            initiator_task_tag: InitiatorTaskTag::RESERVED,
            target_transfer_tag: TargetTransferTag::RESERVED,
            cmd_sn: CmdSn(self.next_cmd_sn),
            exp_stat_sn: StatSn(self.exp_stat_sn[cid.0 as usize]),
        };
        let now = self.bench.now;
        self.bench.session.request(now, cid, &pdu.encode(0), &[], &mut self.bench.outbox);
    }
}

const ABORT_TASK_SET: TaskManagementFunction = TaskManagementFunction::AbortTaskSet;

/// 4.2.2.3.2: nothing overtakes the response to a function on several tasks, on any connection.
#[test]
fn responses_behind_a_function_wait_until_its_own_has_arrived() {
    for task_reporting in [TaskReporting::Rfc3720, TaskReporting::ResponseFence, TaskReporting::FastAbort] {
        let mut pair = Pair::new(task_reporting, 1);
        pair.manage(ABORT_TASK_SET, u32::MAX);
        pair.carry_out();
        let behind = [pair.command(OTHER, false), pair.command(CID, false), pair.command(OTHER, false)];
        assert_eq!(pair.responses(), [(0, 0x101)]);
        behind.iter().for_each(|&id| pair.complete(id, false));
        pair.acknowledge(OTHER, LunField::default());
        assert_eq!(pair.responses(), [], "the function's response is not acknowledged");
        pair.acknowledge(CID, LunField::default());
        assert_eq!(pair.responses(), [(1, 1), (0, 2), (1, 3)], "in the order of their ends");
    }
}

/// 4.2.2.3.2 and 4.2.2.3.3, step b: it overtakes nothing either, and with a fence agreed on, its own connection counts.
#[test]
fn a_fenced_response_waits_until_all_before_it_have_arrived() {
    let orders = [
        (TaskReporting::Rfc3720, [OTHER, CID]),
        (TaskReporting::ResponseFence, [OTHER, CID]),
        (TaskReporting::ResponseFence, [CID, OTHER]),
    ];
    for (task_reporting, order) in orders {
        let mut pair = Pair::new(task_reporting, 1);
        let (first, second) = (pair.command(OTHER, false), pair.command(CID, false));
        let (fenced, behind) = (pair.command(CID, false), pair.command(OTHER, false));
        pair.complete(first, false);
        pair.complete(second, false);
        pair.complete(fenced, true);
        pair.complete(behind, false);
        assert_eq!(pair.responses(), [(1, 1), (0, 2)]);
        pair.acknowledge(order[0], LunField::default());
        if task_reporting != TaskReporting::Rfc3720 {
            assert_eq!(pair.responses(), [], "one connection has not acknowledged");
            pair.acknowledge(order[1], LunField::default());
        }
        assert_eq!(pair.responses(), [(0, 3)]);
        pair.acknowledge(OTHER, LunField::default());
        assert_eq!(pair.responses(), []);
        pair.acknowledge(CID, LunField::default());
        assert_eq!(pair.responses(), [(1, 4)]);
    }
}

/// Without a keepalive, too, a connection that a fence waits for is found to be dead.
#[test]
fn a_fence_does_not_wait_for_an_initiator_that_is_gone() {
    let mut pair = Pair::new(TaskReporting::ResponseFence, 1);
    pair.bench.session.settings.nop_interval = None;
    let (first, fenced) = (pair.command(OTHER, false), pair.command(CID, false));
    pair.complete(first, false);
    pair.complete(fenced, true);
    assert_eq!(pair.responses(), [(1, 1)]);
    pair.bench.outbox.events.clear();
    assert!(pair.bench.tick_after(SECOND).is_empty(), "it has been asked");
    let timeout = pair.bench.session.settings.nop_timeout;
    let events = pair.bench.tick_after(timeout);
    assert!(
        matches!(events[..], [Event::Close { cid: OTHER, reason: CloseReason::Silent(_) }, ..]),
        "{events:?}"
    );
}

#[test]
fn fences_follow_one_another() {
    let mut pair = Pair::new(TaskReporting::ResponseFence, 1);
    let ids = [OTHER, CID, OTHER].map(|cid| pair.command(cid, false));
    pair.complete(ids[0], true);
    pair.manage(ABORT_TASK_SET, u32::MAX);
    pair.carry_out();
    assert_eq!(pair.responses(), [(1, 1)]);
    // The abort has ended the other two; what they bring goes nowhere.
    pair.complete(ids[1], false);
    pair.complete(ids[2], true);
    assert_eq!(pair.responses(), []);
    pair.acknowledge(OTHER, LunField::default());
    assert_eq!(pair.responses(), [(0, 0x104)]);
    pair.acknowledge(CID, LunField::default());
    assert!(!pair.bench.session.fence.is_up());
    assert_eq!(pair.bench.session.open_tasks(), 0);
}

/// A dead initiator must not keep other sessions' functions waiting for a task that only the fence holds.
#[test]
fn what_the_fence_holds_back_can_be_aborted_at_once() {
    let mut pair = Pair::new(TaskReporting::ResponseFence, 1);
    let (fenced, behind) = (pair.command(CID, false), pair.command(OTHER, false));
    pair.complete(fenced, true);
    pair.complete(behind, false);
    assert_eq!(pair.responses(), [(0, 1)]);
    assert_eq!(pair.bench.session.abort_tasks(None, &[], false, &mut pair.bench.outbox), []);
    assert_eq!(pair.bench.session.open_tasks(), 0);
    pair.acknowledge(CID, LunField::default());
    assert_eq!(pair.responses(), []);
}

/// Whatever the fence waits for may leave: then it waits for that no longer.
#[test]
fn a_fence_does_not_outlive_its_connections() {
    for (function, cid) in [(false, CID), (false, OTHER), (true, CID), (true, OTHER)] {
        let mut pair = Pair::new(TaskReporting::ResponseFence, 1);
        let (before, held) = (pair.command(OTHER, false), pair.command(CID, false));
        pair.complete(before, false);
        if function {
            pair.manage(TaskManagementFunction::ClearTaskSet, u32::MAX);
            pair.carry_out();
            pair.complete(held, false);
        } else {
            pair.complete(held, true);
        }
        let behind = pair.command(if cid == CID { OTHER } else { CID }, false);
        pair.complete(behind, false);
        assert_eq!(pair.responses().len(), 1, "the response before");
        assert!(pair.bench.session.fence.is_up());
        pair.bench.session.reinstate(cid, StatSn(0), &mut pair.bench.outbox);
        assert!(!pair.bench.session.fence.is_up());
        let left = pair.responses();
        assert!(left.contains(&(1 - cid.0, 3)), "{left:?}");
        assert_eq!(left.len(), if cid == CID { 1 } else { 2 }, "{left:?}");
    }
}

#[test]
fn a_session_that_ends_forgets_its_fence() {
    let mut pair = Pair::new(TaskReporting::FastAbort, 1);
    let (fenced, behind) = (pair.command(CID, false), pair.command(OTHER, false));
    pair.complete(fenced, true);
    pair.complete(behind, false);
    pair.bench.session.connection_lost(CID, true, &mut pair.bench.outbox);
    assert_eq!(pair.bench.outbox.events.last(), Some(&Event::Ended));
}

/// A write of which an R2T is outstanding; answers its transfer tag.
fn asked_for_data(pair: &mut Pair, cid: Cid) -> (TaskId, TargetTransferTag) {
    let id = pair.command(cid, true);
    assert_eq!(pair.bench.session.solicit(id, 512, &mut pair.bench.outbox), 512);
    let Some(Outgoing { bhs, .. }) = pair.bench.outbox.pdus.pop() else { panic!("an R2T") };
    let Ok(TargetPdu::ReadyToTransfer(r2t)) = TargetPdu::decode(&bhs) else { panic!("an R2T") };
    (id, r2t.target_transfer_tag)
}

fn send_data(pair: &mut Pair, cid: Cid, tag: u32, target_transfer_tag: TargetTransferTag) {
    let pdu = ScsiDataOut {
        is_final: true,
        lun: UNIT,
        initiator_task_tag: InitiatorTaskTag(tag),
        target_transfer_tag,
        exp_stat_sn: StatSn(pair.exp_stat_sn[cid.0 as usize]),
        ..ScsiDataOut::default()
    };
    let (now, bhs) = (pair.bench.now, InitiatorPdu::ScsiDataOut(pdu).encode(512));
    pair.bench.session.data_out_arrived(now, cid, (&bhs, &pdu), 512, true, &mut pair.bench.outbox);
}

/// 4.2.3.4: no data is waited for; all connections but that of the request are told, once for a unit; and what they sent
/// before they knew is thrown away until they acknowledge.
#[test]
fn fast_abort_waits_for_no_data_and_tells_the_other_connections() {
    let mut pair = Pair::new(TaskReporting::FastAbort, 1);
    asked_for_data(&mut pair, CID);
    let (_, late) = asked_for_data(&mut pair, OTHER);
    asked_for_data(&mut pair, OTHER);
    pair.manage(TaskManagementFunction::LogicalUnitReset, u32::MAX);
    pair.carry_out();
    let sent = pair.sent();
    let [(OTHER, TargetPdu::AsynchronousMessage(message))] = sent[..] else { panic!("{sent:?}") };
    assert_eq!((message.event, message.lun, message.parameters), (5, UNIT, [0; 3]));
    assert_eq!(pair.bench.session.open_tasks(), 0);
    // The tag may be used again as soon as the response has come, while old data is under way elsewhere.
    pair.acknowledge(OTHER, UNIT);
    pair.exp_stat_sn[1] -= 1;
    assert_eq!(pair.responses(), [(0, 0x104)]);
    pair.acknowledge(CID, LunField::default());
    let again = pair.numbered(CID, true, (CmdSn(4), 2)).expect("in the window");
    assert!(pair.bench.session.task(again).is_some());
    send_data(&mut pair, OTHER, 2, late);
    let [(OTHER, TargetPdu::Reject(_))] = pair.sent()[..] else { panic!("it was acknowledged") };
}

#[test]
fn data_that_crosses_a_task_termination_is_expected() {
    let mut pair = Pair::new(TaskReporting::FastAbort, 1);
    let (_, late) = asked_for_data(&mut pair, OTHER);
    assert_eq!(
        pair.bench.session.abort_tasks(None, &[], false, &mut pair.bench.outbox),
        [],
        "another session's reset"
    );
    let [(OTHER, TargetPdu::AsynchronousMessage(message))] = pair.sent()[..] else { panic!("one message") };
    assert_eq!((message.event, message.lun), (5, UNIT));
    // The tag is used again, on either connection: what comes late harms neither task.
    for cid in [CID, OTHER] {
        let cmd_sn = CmdSn(pair.next_cmd_sn);
        pair.next_cmd_sn += 1;
        let again = pair.numbered(cid, true, (cmd_sn, 1)).expect("in the window");
        send_data(&mut pair, OTHER, 1, late);
        pair.complete(again, false);
        assert_eq!(pair.responses(), [(cid.0, 1)], "no Reject, and the task goes on");
    }
    // Another unit's LUN acknowledges nothing.
    pair.acknowledge(OTHER, LunField::default());
    assert_eq!(pair.bench.session.connection_mut(OTHER).unwrap().terminations.len(), 1);
    pair.acknowledge(OTHER, UNIT);
    assert!(pair.bench.session.connection_mut(OTHER).unwrap().terminations.is_empty());
}

/// 11.9.1: event 5 is for sessions that agreed on FastAbort; others are waited for (4.2.3.3, 4.2.3.5).
#[test]
fn without_fast_abort_no_task_termination_is_told() {
    for task_reporting in [TaskReporting::Rfc3720, TaskReporting::ResponseFence] {
        let mut pair = Pair::new(task_reporting, 2);
        let (_, tag) = asked_for_data(&mut pair, OTHER);
        pair.manage(TaskManagementFunction::LogicalUnitReset, u32::MAX);
        pair.carry_out();
        assert_eq!(pair.responses(), [], "data is owed");
        send_data(&mut pair, OTHER, 1, tag);
        assert_eq!(pair.responses(), [(0, 0x102)]);
        pair.acknowledge(CID, LunField::default());
        asked_for_data(&mut pair, OTHER);
        assert_eq!(pair.bench.session.abort_tasks(None, &[], false, &mut pair.bench.outbox), []);
        assert_eq!(pair.responses(), []);
    }
}

#[test]
fn terminations_that_nobody_acknowledges_are_bounded() {
    let mut pair = Pair::new(TaskReporting::FastAbort, 1);
    for _ in 0..5000 {
        asked_for_data(&mut pair, OTHER);
        pair.bench.session.abort_tasks(None, &[], false, &mut pair.bench.outbox);
        pair.bench.outbox = Outbox::default();
    }
    let held = pair.bench.session.connection_mut(OTHER).unwrap().terminations.len();
    assert_eq!(held, 2048, "with a tag each");
}

/// The outcome of a function that the driver had nothing against.
fn outcome(pair: &mut Pair, function: TaskManagementFunction, referenced: u32) -> u8 {
    pair.manage(function, referenced);
    if pair.bench.outbox.events.iter().any(|event| matches!(event, Event::Manage { .. })) {
        pair.carry_out();
    }
    let sent = pair.sent();
    let [(CID, TargetPdu::TaskManagementResponse(response))] = sent[..] else { panic!("{sent:?}") };
    pair.acknowledge(CID, LunField::default());
    response.response
}

const NOT_SUPPORTED: u8 = 5;
const SUCCEEDED: u8 = 7;

/// RFC 7144: what is asked for is there, or not.
#[test]
fn queries_tell_of_tasks() {
    use TaskManagementFunction::{QueryAsynchronousEvent, QueryTask, QueryTaskSet};
    let mut pair = Pair::new(TaskReporting::Rfc3720, 2);
    assert_eq!(outcome(&mut pair, QueryTaskSet, u32::MAX), 0);
    let id = pair.command(OTHER, false);
    assert_eq!(outcome(&mut pair, QueryTask, 1), SUCCEEDED);
    assert_eq!(outcome(&mut pair, QueryTask, 2), 0);
    assert_eq!(outcome(&mut pair, QueryTaskSet, u32::MAX), SUCCEEDED);
    assert_eq!(outcome(&mut pair, QueryAsynchronousEvent, u32::MAX), 0);
    pair.complete(id, false);
    assert_eq!(pair.responses(), [(1, 1)]);
    assert_eq!(outcome(&mut pair, QueryTask, 1), 0);
    assert_eq!(outcome(&mut pair, QueryTaskSet, u32::MAX), 0);
}

#[test]
fn an_it_nexus_reset_ends_all_tasks_of_its_session() {
    let mut pair = Pair::new(TaskReporting::Rfc3720, 2);
    let ids = [CID, OTHER].map(|cid| pair.command(cid, false));
    pair.manage(TaskManagementFunction::ItNexusReset, u32::MAX);
    pair.carry_out();
    assert_eq!(pair.responses(), [], "both are in a store");
    ids.iter().for_each(|&id| pair.complete(id, false));
    assert_eq!(pair.responses(), [(0, 0x103)]);
}

/// RFC 7144: below iSCSIProtocolLevel 2 none of it is there, and its fields are reserved.
#[test]
fn rfc_7144_has_to_be_agreed_on() {
    use TaskManagementFunction::{ItNexusReset, QueryAsynchronousEvent, QueryTask, QueryTaskSet};
    let mut pair = Pair::new(TaskReporting::Rfc3720, 1);
    for function in [QueryTask, QueryTaskSet, ItNexusReset, QueryAsynchronousEvent] {
        assert_eq!(outcome(&mut pair, function, 1), NOT_SUPPORTED);
    }
    for (level, qualifier, priority) in [(1, 0, 0), (2, 0x1234, 9)] {
        pair.bench.session.parameters.protocol_level = level;
        let id = pair.command(CID, false);
        pair.bench.session.tasks.get_mut(id).unwrap().command.priority = 9;
        assert_eq!(pair.bench.session.task(id).unwrap().priority, priority);
        pair.complete(id, false);
        let [(CID, TargetPdu::ScsiResponse(response))] = pair.sent()[..] else { panic!("one response") };
        assert_eq!(response.status_qualifier, qualifier);
    }
}
