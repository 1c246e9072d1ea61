//! TASK REASSIGN (RFC 7143, 7.2.2, 11.5.1, 11.5.6): a task whose connection was removed for recovery goes on over another.

use std::time::Duration;

use lunette_wire::initiator::{TaskManagementFunction, TaskManagementRequest};
use lunette_wire::target::{RejectReason, TaskManagementOutcome};
use lunette_wire::{CmdSn, DataSn, InitiatorTaskTag, StatSn};

use super::super::requests::Kind;
use super::super::{End, Loss, Outbox, Session};

/// How often the target may have no room for the request.
const REJECTS_MAX: u8 = 8;

/// A task that is to have another connection.
#[derive(Debug, Clone, Copy)]
pub(in super::super) struct Reassign {
    task: InitiatorTaskTag,
    /// How often the request was rejected.
    rejects: u8,
}

impl Session {
    /// Takes a task to the connection with the fewest bytes under way.
    pub(in super::super) fn reassign(&mut self, now: Duration, tag: InitiatorTaskTag, outbox: &mut Outbox) {
        self.ask_reassign(now, Reassign { task: tag, rejects: 0 }, outbox);
    }

    fn ask_reassign(&mut self, now: Duration, reassign: Reassign, outbox: &mut Outbox) {
        let tag = reassign.task;
        let Some(at) = self.least_loaded() else { return self.give_up_task(tag, outbox) };
        self.settle_doubt(tag);
        // What the target has asked for after an earlier request for the same is asked for anew.
        for connection in &mut self.connections {
            connection.solicited.retain(|data| data.task != tag);
        }
        let in_order = self.parameters.data_pdu_in_order && self.parameters.data_sequence_in_order;
        let connection = &mut self.connections[at];
        let id = connection.id;
        let Some(task) = self.tasks.get_mut(tag) else { return };
        if task.connection != id {
            connection.load += task.load();
        }
        task.connection = id;
        let (lun, exp_data_sn) = (task.lun, task.rest(in_order));
        let cmd_sn = self.cmd_sn;
        let asked = self.ask(now, id, Kind::Reassign(reassign), &[], |initiator_task_tag| {
            let request = TaskManagementRequest {
                immediate: true,
                function: TaskManagementFunction::TaskReassign,
                lun,
                initiator_task_tag,
                referenced_task_tag: tag,
                cmd_sn,
                exp_stat_sn: StatSn(0),
                ref_cmd_sn: CmdSn(0),
                exp_data_sn: DataSn(exp_data_sn),
            };
            request.encode()
        });
        if asked.is_err() {
            self.give_up_task(tag, outbox);
        }
    }

    /// The target does not go on with a task, and does not say that it has ended it. What only reads ends alone. What may write
    /// ends with the session: it could otherwise come behind what is written later, its own second time included, which a
    /// new session is safe from (6.3.5).
    fn give_up_task(&mut self, tag: InitiatorTaskTag, outbox: &mut Outbox) {
        match self.tasks.get(tag) {
            None => {}
            Some(task) if task.read_length > 0 && task.write_length == 0 => {
                self.end_task(tag, End::Unknown, outbox);
            }
            Some(_) => self.fail(Loss::NotReassigned, outbox),
        }
    }

    /// The answer: the task goes on, or is not there. LIO says "rejected" of those that go on (docs/decisions/0033), so that
    /// one that is refused is waited for until the target has forgotten it in any case (7.5).
    pub(in super::super) fn reassigned(
        &mut self,
        now: Duration,
        Reassign { task, .. }: Reassign,
        response: u8,
        outbox: &mut Outbox,
    ) {
        if response == TaskManagementOutcome::TaskDoesNotExist as u8 {
            self.end_task(task, End::Unknown, outbox);
        } else if response != TaskManagementOutcome::FunctionComplete as u8 {
            let retain = Duration::from_secs(self.parameters.default_time2retain_s.into());
            self.doubted.push((task, now.saturating_add(retain)));
        }
    }

    /// The target shows that it goes on with a task, or is asked for it once more.
    pub(in super::super) fn settle_doubt(&mut self, tag: InitiatorTaskTag) {
        self.doubted.retain(|(doubted, _)| *doubted != tag);
    }

    /// Gives up the tasks that the target refused to go on with, and has not gone on with.
    pub(in super::super) fn tick_doubted(&mut self, now: Duration, outbox: &mut Outbox) {
        let overdue: Vec<_> = self.doubted.extract_if(.., |(_, until)| now >= *until).collect();
        for (tag, _) in overdue {
            self.give_up_task(tag, outbox);
        }
    }

    /// The request was rejected: for a moment only, if the target has too many immediate ones (11.17.1).
    pub(in super::super) fn reassign_rejected(
        &mut self,
        now: Duration,
        Reassign { task, rejects }: Reassign,
        reason: u8,
        outbox: &mut Outbox,
    ) {
        if reason == RejectReason::ImmediateCommandReject as u8 && rejects < REJECTS_MAX {
            self.ask_reassign(now, Reassign { task, rejects: rejects + 1 }, outbox);
        } else {
            self.give_up_task(task, outbox);
        }
    }
}
