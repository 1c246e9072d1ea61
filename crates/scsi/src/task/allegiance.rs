//! A command and an auto contingent allegiance: how it brings one about, and what becomes of it while one stands
//! (SAM-5, 5.9), and what else its CHECK CONDITION does to other commands (SPC-4, QERR).
//!
//! Who is blocked and for how long is [`crate::task_set`]'s matter.

use super::{Completion, Event, Next, Place, Task, Terms};
use crate::bytes::{Cdb, asks_for_allegiance};
use crate::commands::{self, Context, State, Step, is_preempt_and_abort};
use crate::io::Io;
use crate::lun::Lun;
use crate::mode::QueueErrorManagement;
use crate::nexus::Nexus;
use crate::paths::Path;
use crate::sense::{AdditionalSense, SenseData, SenseKey};
use crate::status::Status;
use crate::task_set::{Attribute, Blocked, Entry, Manner, Refusal, Ticket};

impl Task {
    pub(super) fn manner(&self, path: &Path) -> Manner {
        Manner {
            attribute: self.attribute,
            // Who may only read decides nothing for others.
            naca: !path.read_only && asks_for_allegiance(&self.cdb),
            preempts: is_preempt_and_abort(&self.cdb),
        }
    }

    /// The command was not let into the task set.
    #[cold]
    pub(super) fn refused(&mut self, refusal: Refusal, nexus: &Nexus, path: &Path) -> Next {
        match refusal {
            Refusal::Status(status) => {
                path.note_refusal(status);
                Next::Done(Completion::status(status))
            }
            Refusal::NoAllegiance => {
                self.attribute = Attribute::Simple;
                self.check_condition(SenseData::illegal(AdditionalSense::INVALID_MESSAGE), nexus, path)
            }
        }
    }

    /// Ends a command that waits for its data with CHECK CONDITION for a reason of the driver's, as that its transport has spoilt the
    /// data. It takes effect on other commands like any other.
    #[cold]
    pub fn fail(&mut self, nexus: &Nexus, (key, asc, ascq): (SenseKey, u8, u8)) -> Next {
        let sense = SenseData::new(key, AdditionalSense::new(asc, ascq));
        let Some(path) = self.path.and_then(|index| nexus.path(index)) else {
            return self.advance_outside(Err(sense));
        };
        std::mem::replace(&mut self.state, State::Finished).abandon(&path.unit);
        self.check_condition(sense, nexus, path)
    }

    /// The same for a command that has ended, and is to end otherwise before its initiator knows.
    #[cold]
    pub fn failed(
        nexus: &Nexus,
        lun: Lun,
        cdb: &Cdb,
        terms: &Terms,
        cause: (SenseKey, u8, u8),
    ) -> (Task, Next) {
        let mut task = Task::new(*cdb, terms);
        if let Some((index, path)) = nexus.find(lun) {
            (task.path, task.unit) = (Some(index), Some(path.place));
        }
        let next = task.fail(nexus, cause);
        (task, next)
    }

    /// The command ends with CHECK CONDITION.
    #[cold]
    pub(super) fn check_condition(&mut self, sense: SenseData, nexus: &Nexus, path: &Path) -> Next {
        self.end(nexus, path);
        let completion = Completion::from_sense(sense, path.unit.mode().descriptor_sense());
        self.fault(completion, nexus, path)
    }

    /// The command has left the task set, and its CHECK CONDITION takes effect on others; or is itself blocked.
    fn fault(&mut self, completion: Completion, nexus: &Nexus, path: &Path) -> Next {
        let (manner, tasks) = (self.manner(path), path.unit.tasks());
        let is_concerned = manner.naca || manner.attribute == Attribute::Aca || tasks.is_blocking();
        if is_concerned
            && let Entry::Waits(ticket) = tasks.fault(&path.member, manner, path.itl.name(), self.turn(nexus))
        {
            return self.wait_as_ended(Next::Done(completion), ticket);
        }
        let nexuses = match path.unit.mode().queue_error_management() {
            QueueErrorManagement::Nobody => return Next::Done(completion),
            QueueErrorManagement::Everybody if !path.read_only => path.unit.nexus_names(),
            QueueErrorManagement::Everybody | QueueErrorManagement::OwnNexus => vec![nexus.name().clone()],
        };
        self.held = Some(Box::new(Next::Done(completion)));
        Next::Io(Io::AbortTasks { nexuses, is_told: true })
    }

    /// As [`Task::advance`], while an allegiance stands. A command that is alone at the medium goes on until it is through
    /// with it: what it does is to be seen as one.
    #[cold]
    pub(super) fn advance_blocked(
        &mut self,
        progress: Result<(State, Step), SenseData>,
        nexus: &Nexus,
        path: &Path,
    ) -> Next {
        let turn = self.turn(nexus);
        let looks_itself = turn.passes_allegiance || progress.is_err();
        let next = self.advance(progress, nexus, path);
        let has_ended = match &next {
            _ if looks_itself => return next,
            Next::Done(_) => true,
            Next::Io(_) if self.stands() == Place::Running => false,
            // A piece of a copy waits in the task set of its own unit, and data may come.
            _ => return next,
        };
        let how = match has_ended {
            true if self.sends_later => Blocked::Unsent,
            true => Blocked::Ended,
            false => Blocked::Running,
        };
        match path.unit.tasks().block(&path.member, how, turn) {
            Entry::Waits(ticket) if has_ended => self.wait_as_ended(next, ticket),
            Entry::Waits(ticket) => {
                (self.place, self.ticket, self.held) = (Place::Stalled, ticket, Some(Box::new(next)));
                Next::Wait
            }
            _ => self.release(next, nexus, path),
        }
    }

    /// It has left the task set with whatever order it had, and is there again with its answer alone.
    fn wait_as_ended(&mut self, next: Next, ticket: Ticket) -> Next {
        self.attribute = Attribute::Simple;
        (self.place, self.ticket, self.held) = (Place::Stalled, ticket, Some(Box::new(next)));
        Next::Wait
    }

    /// What the command waited for with its next step may be over.
    #[cold]
    pub(super) fn resume_held(&mut self, nexus: &Nexus, path: &Path, event: &Event<'_>) -> Next {
        let is_blocked = self.place == Place::Stalled;
        match event {
            Event::Turn { .. } if is_blocked && path.unit.tasks().take_turn(self.ticket) => {}
            Event::Turn { .. } if is_blocked => return Next::Wait,
            // Those that it aborts are gone, as far as that could be done.
            Event::Io { .. } if !is_blocked => {}
            _ => return self.advance_outside(Err(SenseData::internal())),
        }
        let Some(next) = self.held.take() else {
            return self.advance_outside(Err(SenseData::internal()));
        };
        if is_blocked { self.release(*next, nexus, path) } else { *next }
    }

    /// A step that was held back may be taken. What a write meets is looked at anew: a command with the ACA attribute may have stopped,
    /// protected, reserved or begun to erase the unit meanwhile, marked blocks, made a token of them, or turned the write cache off.
    fn release(&mut self, next: Next, nexus: &Nexus, path: &Path) -> Next {
        // It has done nothing yet.
        self.mending = None;
        self.place = Place::Running;
        let completion = match next {
            Next::Done(completion) => completion,
            Next::Io(mut io) => {
                let context = Context { nexus, path, announced_bytes: None };
                if io.changes(path.unit.block_lengths()).is_some()
                    && let Some(refusal) = commands::refused_after_wait(&context, &self.state, &self.cdb)
                {
                    std::mem::replace(&mut self.state, State::Finished).abandon(&path.unit);
                    return self.advance(refusal, nexus, path);
                }
                if !path.unit.write_cache_enabled() {
                    io.make_stable();
                }
                let is_looked_at = path.unit.watch().is_armed();
                return if is_looked_at { self.look_at(nexus, &path.unit, io, false) } else { Next::Io(io) };
            }
            other => return other,
        };
        self.end(nexus, path);
        if completion.status == Status::CheckCondition {
            return self.fault(completion, nexus, path);
        }
        Next::Done(completion)
    }
}
