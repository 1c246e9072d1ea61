//! How tasks are aborted (RFC 7143, 4.2.3.2, 4.2.3.3): where each stands, and what it still waits for.
//!
//! Which tasks a function aborts, and when it is answered, is in [`super::management`].

use lunette_wire::{Cid, LunField};

use super::data_in::{Completion, GOOD, TASK_ABORTED};
use super::task::{Phase, Task, TaskId};
use super::{Event, Outbox, Session, Share};
impl<D: Share> Session<D> {
    /// Aborts this session's tasks on a logical unit, or on all, but those that are `spared`, because another session asked
    /// for it (4.2.3.2), or because one of them has failed. Returns the tasks that are still in a store. They end without an answer,
    /// or with status TASK ABORTED where they are to be `answered`.
    pub fn abort_tasks(
        &mut self,
        lun: Option<LunField>,
        spared: &[TaskId],
        answered: bool,
        outbox: &mut Outbox<D>,
    ) -> Vec<TaskId> {
        let same_unit = self.settings.same_unit;
        let mut affected = self.tasks.ids(|task| {
            task.phase != Phase::Parked && lun.is_none_or(|lun| same_unit(task.command.lun, lun))
        });
        affected.retain(|id| !spared.contains(id));
        self.announce_termination(&affected, None, outbox);
        let abort = |&id: &TaskId| {
            if answered { self.abort_answered(id, outbox) } else { self.abort(id, None, outbox) }
        };
        let left = affected.into_iter().filter(abort).collect();
        self.settle(outbox);
        left
    }

    /// As [`Self::abort`], for another session, with an answer. What has its outcome keeps it.
    fn abort_answered(&mut self, id: TaskId, outbox: &mut Outbox<D>) -> bool {
        let Some(task) = self.tasks.get_mut(id) else { return false };
        if task.phase == Phase::Executing
            && let Some(status) = self.fence.forget(id)
        {
            // The driver is through with it.
            self.note_untold(id, status, outbox);
            self.complete(id, Completion::status(TASK_ABORTED), outbox);
            return false;
        }
        let Some(task) = self.tasks.get_mut(id) else { return false };
        match task.phase {
            Phase::Executing if !task.aborted => {
                let is_left = self.abort(id, None, outbox);
                if let Some(task) = self.tasks.get_mut(id) {
                    task.abort_is_answered = true;
                }
                is_left
            }
            Phase::Collecting => {
                outbox.event(Event::Dropped(id));
                self.complete(id, Completion::status(TASK_ABORTED), outbox);
                false
            }
            Phase::Executing => true,
            Phase::Parked | Phase::Held | Phase::Draining => false,
        }
    }

    /// True while a command for a logical unit, but those that are `spared`, has begun, and has neither ended nor been aborted.
    #[must_use]
    pub fn has_tasks(&self, lun: LunField, spared: &[TaskId]) -> bool {
        let same_unit = self.settings.same_unit;
        let begun = self.tasks.ids(|task| {
            let is_over = task.aborted || matches!(task.phase, Phase::Parked | Phase::Draining);
            !is_over && same_unit(task.command.lun, lun)
        });
        begun.iter().any(|id| !spared.contains(id))
    }

    /// True while a task that [`Self::abort_tasks`] named has not ended. One whose answer waits for something, its initiator's data
    /// or the fence, has: others need not wait for that.
    #[must_use]
    pub fn is_open(&self, id: TaskId) -> bool {
        let is_at_work = |task: &Task| !matches!(task.phase, Phase::Draining | Phase::Held);
        self.tasks.get(id).is_some_and(is_at_work) && !self.fence.keeps(id)
    }

    /// Aborts a task. True when it has not ended yet: it is in a store, or its initiator, who asked for the abort
    /// on `asked_on`, still owes data.
    pub(super) fn abort(&mut self, id: TaskId, asked_on: Option<Cid>, outbox: &mut Outbox<D>) -> bool {
        if let Some(status) = self.fence.forget(id) {
            // The driver is through with it.
            self.note_untold(id, status, outbox);
            self.forget(id);
            return false;
        }
        let closing = self.closing;
        let Some(task) = self.tasks.get_mut(id) else { return false };
        let wait_for_data = asked_on.is_some() && !closing && !task.is_quiet();
        match task.phase {
            Phase::Executing => {
                task.aborted = true;
                task.abort_is_answered = false;
                outbox.event(Event::Aborted(id));
                true
            }
            Phase::Parked => {
                // Its number stays in the window and delivers nothing.
                outbox.event(Event::Dropped(id));
                self.forget(id);
                false
            }
            Phase::Collecting | Phase::Held | Phase::Draining => {
                if task.phase == Phase::Collecting {
                    outbox.event(Event::Dropped(id));
                }
                let outcome = task.held.take();
                if wait_for_data {
                    task.phase = Phase::Draining;
                }
                if let Some(outcome) = outcome {
                    self.note_untold(id, outcome.status, outbox);
                }
                if !wait_for_data {
                    self.forget(id);
                }
                wait_for_data
            }
        }
    }

    /// A command has ended, and its initiator is not told of it.
    fn note_untold(&self, id: TaskId, status: u8, outbox: &mut Outbox<D>) {
        if let Some(task) = self.tasks.get(id).filter(|_| status != GOOD && !self.closing) {
            let (lun, cdb) = (task.command.lun, task.command.cdb);
            outbox.event(Event::Untold { lun, cdb, status });
        }
    }
}
