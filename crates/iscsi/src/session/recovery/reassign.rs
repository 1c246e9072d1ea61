//! TASK REASSIGN (RFC 7143, 7.2.2, 11.5.1, 11.5.6, 11.6): a task whose connection was removed for recovery is given to
//! the one that asks for it, and goes on from where it stood.

use lunette_wire::initiator::TaskManagementRequest;
use lunette_wire::target::{TaskManagementOutcome as Outcome, TaskManagementResponse};
use lunette_wire::{Cid, DataSn, InitiatorTaskTag};

use super::super::management::Management;
use super::super::task::{Allegiance, Phase, TaskId};
use super::super::{Outbox, Session, Share};
use super::answers::{AnswerId, ReadData};

/// What a tag names that may be given another connection.
#[derive(Debug, Clone, Copy)]
enum Found {
    /// The driver, its store or the initiator still has to do something for it.
    Task(TaskId),
    /// It has ended, and the initiator does not know.
    Answer(AnswerId),
}

impl<D: Share> Session<D> {
    /// Answers a request, then lets the new allegiance take effect (11.6).
    pub(in super::super) fn reassign(
        &mut self,
        &Management { request, cid }: &Management,
        outbox: &mut Outbox<D>,
    ) {
        let found = self.find_for_reassignment(request.referenced_task_tag);
        let response = found.map_or_else(|outcome| outcome, |_| Outcome::FunctionComplete) as u8;
        let initiator_task_tag = request.initiator_task_tag;
        self.send_status(cid, Vec::new(), outbox, |numbers| {
            TaskManagementResponse {
                response,
                initiator_task_tag,
                numbers,
                ..TaskManagementResponse::default()
            }
            .encode()
        });
        match found {
            Ok(Found::Task(id)) => self.resume_task(id, cid, &request, outbox),
            Ok(Found::Answer(id)) => self.resume_answer(id, cid, request.exp_data_sn, outbox),
            Err(_) => {}
        }
    }

    fn find_for_reassignment(&mut self, tag: InitiatorTaskTag) -> Result<Found, Outcome> {
        if self.parameters.error_recovery_level < 2 {
            return Err(Outcome::TaskAllegianceReassignmentNotSupported);
        }
        if self.is_other_request(tag) {
            return Err(Outcome::FunctionRejected);
        }
        if let Some(id) = self.tasks.find(tag) {
            return match self.tasks.get(id) {
                Some(task) if task.aborted || task.phase == Phase::Draining => Err(Outcome::TaskDoesNotExist),
                Some(task) if task.allegiance.cid().is_some() => Err(Outcome::TaskStillAllegiant),
                _ => Ok(Found::Task(id)),
            };
        }
        let id = self.recovery.answers.find(tag).ok_or(Outcome::TaskDoesNotExist)?;
        let answer = self.recovery.answers.get(id).ok_or(Outcome::TaskDoesNotExist)?;
        if answer.allegiance.cid().is_some() {
            return Err(Outcome::TaskStillAllegiant);
        }
        if answer.data.as_ref().is_some_and(ReadData::is_forgotten) {
            // There is nothing left to conclude it with.
            self.recovery.answers.remove(id);
            return Err(Outcome::TaskDoesNotExist);
        }
        Ok(Found::Answer(id))
    }

    /// A task management, text or logout task has this tag: none of them is reassigned (11.5.1).
    fn is_other_request(&self, tag: InitiatorTaskTag) -> bool {
        self.is_function(tag)
            || self.is_logout(tag)
            || self.connections.iter().any(|connection| connection.text == Some(tag))
    }

    /// A task that has not ended: if it waits for data, that is asked for again.
    fn resume_task(&mut self, id: TaskId, cid: Cid, request: &TaskManagementRequest, outbox: &mut Outbox<D>) {
        let Some(task) = self.tasks.get_mut(id) else { return };
        task.allegiance = Allegiance::To(cid);
        // The next R2T has the number that the initiator expects. It tells by ExpDataSN; by 0, where that says nothing
        // new (11.5.6), an R2T that it may never have got is numbered again.
        let unsure = task.recovery.as_mut().and_then(|recovery| {
            recovery.snack_tag = 0;
            recovery.unsure_r2t_sn.take()
        });
        let first_unacknowledged = unsure.unwrap_or(task.sent_data_sn);
        let exp_data_sn = request.exp_data_sn;
        let is_within =
            !exp_data_sn.precedes(first_unacknowledged) && !task.sent_data_sn.precedes(exp_data_sn);
        if exp_data_sn != DataSn(0) && is_within {
            task.sent_data_sn = exp_data_sn;
        } else if exp_data_sn == DataSn(0) {
            task.sent_data_sn = first_unacknowledged;
        }
        self.advance(id, outbox);
        self.settle(outbox);
    }

    /// A command that has ended: unacknowledged data, cut for the new connection, and the status.
    fn resume_answer(&mut self, id: AnswerId, cid: Cid, exp_data_sn: DataSn, outbox: &mut Outbox<D>) {
        let total = self.recovery.answers.get(id).and_then(|answer| answer.data.as_ref());
        let cut = self.cut(Some(cid), total.map_or(0, |data| data.cut.total));
        let Some(answer) = self.recovery.answers.get_mut(id) else { return };
        answer.allegiance = Allegiance::To(cid);
        answer.response.snack_tag = 0;
        let mut is_acknowledged = false;
        if let Some(data) = &mut answer.data {
            // 0 leaves what was acknowledged as it is; so does a number that cannot be (11.5.6).
            data.acknowledge(exp_data_sn);
            data.cut = cut;
            is_acknowledged = data.is_acknowledged();
        }
        if is_acknowledged {
            self.recovery.answers.drop_data(id);
        }
        self.send_answer(id, outbox);
        self.settle(outbox);
    }

    /// ABORT TASK of a command that has ended and waits for a new allegiance: it needs none any more, and a status that
    /// was on its way once is sent again before the function is answered (11.5.1). True when there was one.
    pub(in super::super) fn abort_answer(
        &mut self,
        tag: InitiatorTaskTag,
        cid: Cid,
        outbox: &mut Outbox<D>,
    ) -> bool {
        let Some(id) = self.recovery.answers.find(tag) else { return false };
        let Some(answer) = self.recovery.answers.get_mut(id) else { return false };
        if answer.allegiance.cid().is_some() {
            return false;
        }
        let was_sent = std::mem::take(&mut answer.was_sent);
        answer.allegiance = Allegiance::To(cid);
        self.recovery.answers.drop_data(id);
        if was_sent {
            self.send_answer(id, outbox);
        } else {
            self.recovery.answers.remove(id);
        }
        true
    }
}
