//! Commands that a living target does not answer: how long each is waited for, and what is done to end it. SAM-5 leaves the time
//! to the application client; the functions are RFC 7143's (11.5), their order is the one that Linux and others have.
//!
//! First the command is aborted (ABORT TASK). If that is refused or not answered in its time either, its logical unit is reset
//! (LOGICAL UNIT RESET), and if that fails, the session is given up and a new one takes its place, before which the target ends
//! what is left of it (6.3.5). What was ended in one of these ways goes on by the rules for lost sessions, once.

mod look;

use std::time::Duration;

use lunette_iscsi::initiator::session::{Abort, Function, RequestError, RequestHandle, TaskHandle};
use lunette_wire::LunField;

use super::table::Pending;
use super::{Engine, EngineEvent, replay};
use crate::{Command, CommandError};
use look::{Late, Look, Waiting};

/// How often a command that was not answered in time is sent again: what has stopped it once may be over.
const REPEATS_MAX: u32 = 1;
/// How many times the usual limit a command has that may work on more than it transfers: flushes, UNMAP, WRITE SAME.
const LONG_WORK: u32 = 2;

/// What ends a command that is not answered in time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Remedy {
    /// ABORT TASK: this command alone.
    AbortTask,
    /// LOGICAL UNIT RESET: all commands of its logical unit, other initiators' too.
    LogicalUnitReset,
    /// A new session, before which the target ends the old one with all its commands.
    Reinstatement,
}

impl std::fmt::Display for Remedy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::AbortTask => "ABORT TASK",
            Self::LogicalUnitReset => "LOGICAL UNIT RESET",
            Self::Reinstatement => "a new session",
        })
    }
}

/// The ABORT TASK of a command that is overdue; without a request it is one that the caller has asked for.
#[derive(Debug)]
struct Aborting {
    place: u32,
    task: TaskHandle,
    lun: LunField,
    request: Option<RequestHandle>,
    until: Duration,
}

/// A LOGICAL UNIT RESET that is under way.
#[derive(Debug)]
struct Resetting {
    lun: LunField,
    request: RequestHandle,
    until: Duration,
}

/// What an engine knows of commands that may be overdue.
#[derive(Debug, Default)]
pub(super) struct Overdue {
    /// When the commands are looked at next; no command can be overdue before.
    look_at: Option<Duration>,
    aborting: Vec<Aborting>,
    resetting: Vec<Resetting>,
}

impl Overdue {
    /// The session is lost: nothing of it is waited for.
    pub(super) fn forget(&mut self) {
        self.aborting.clear();
        self.resetting.clear();
    }

    pub(super) fn deadline(&self) -> Option<Duration> {
        let aborting = self.aborting.iter().map(|abort| abort.until);
        let resetting = self.resetting.iter().map(|reset| reset.until);
        aborting.chain(resetting).chain(self.look_at).min()
    }
}

impl Engine {
    /// How long this command may take; none: as long as it wants.
    fn limit_of(&self, command: &Command) -> Option<Duration> {
        let factor = if replay::may_take_long(command) { LONG_WORK } else { 1 };
        let usual = || self.options.timing.command.map(|usual| usual.saturating_mul(factor));
        command.time_limit.or_else(usual)
    }

    /// A command becomes a task now, and will have to be looked at.
    pub(super) fn watch_for_answer(&mut self, place: u32) {
        let Some(limit) = self.table.get(place).and_then(|pending| self.limit_of(&pending.command)) else {
            return;
        };
        let due = self.table.get(place).and_then(|pending| pending.begun_at.checked_add(limit));
        self.overdue.look_at = [self.overdue.look_at, due].into_iter().flatten().min();
    }

    /// Looks at the clock.
    pub(super) fn look_for_overdue(&mut self) {
        if self.overdue.look_at.is_some_and(|at| self.now >= at) {
            self.look_at_commands();
        }
        let now = self.now;
        let late: Vec<_> = self.overdue.aborting.extract_if(.., |abort| now >= abort.until).collect();
        for abort in late {
            if self.is_there(&abort) {
                self.reset_unit(abort.lun);
            }
        }
        if let Some(reset) = self.overdue.resetting.iter().find(|reset| now >= reset.until) {
            self.give_up(reset.lun);
        }
    }

    /// Finds the commands that are overdue, and when the next one may be.
    fn look_at_commands(&mut self) {
        let mut look = Look::new(self.now, self.table.moved_at);
        for place in self.table.places() {
            let Some(pending) = self.table.get(place).filter(|pending| pending.task.is_some()) else {
                continue;
            };
            look.at(Waiting {
                place,
                limit: self.limit_of(&pending.command),
                begun_at: pending.begun_at,
                moved_at: pending.moved_at,
                is_being_ended: pending.remedy.is_some(),
            });
        }
        let (late, next) = look.result();
        self.overdue.look_at = next;
        match late {
            Late::Answers(places) => {
                self.note_overdue(&places, Some(Remedy::AbortTask));
                places.into_iter().for_each(|place| self.abort_overdue(place));
            }
            Late::Window(place) => {
                self.note_overdue(&[place], None);
                if let Some(lun) = self.table.get(place).map(|pending| pending.command.lun) {
                    self.give_up(lun);
                }
            }
        }
    }

    /// Tells, once for each unit, that commands are overdue.
    fn note_overdue(&mut self, places: &[u32], remedy: Option<Remedy>) {
        let mut units: Vec<(LunField, usize, Duration)> = Vec::new();
        for &place in places {
            let Some(pending) = self.table.get(place) else { continue };
            let (lun, waited) = (pending.command.lun, self.now.saturating_sub(pending.begun_at));
            let Some(pending) = self.table.get_mut(place) else { continue };
            (pending.overdue, pending.waited) = (pending.overdue + 1, waited);
            match units.iter_mut().find(|(of, ..)| *of == lun) {
                Some((_, count, longest)) => (*count, *longest) = (*count + 1, waited.max(*longest)),
                None => units.push((lun, 1, waited)),
            }
        }
        for (lun, commands, waited) in units {
            tracing::warn!(?lun, commands, ?waited, "commands are not answered");
            if let Some(remedy) = remedy {
                self.events.push_back(EngineEvent::Overdue { lun, commands, waited, remedy });
            }
        }
    }

    fn abort_overdue(&mut self, place: u32) {
        let Some(pending) = self.table.get_mut(place) else { return };
        let Some(task) = pending.task else { return };
        pending.remedy = Some(Remedy::AbortTask);
        let lun = pending.command.lun;
        let until = self.now + self.options.timing.abort;
        let request = match self.session.abort(self.now, task, &mut self.outbox) {
            Ok(Abort::Done) | Err(RequestError::NoTask) => return,
            Ok(Abort::Requested(request)) => Some(request),
            // By the caller, and with no answer either.
            Err(RequestError::AbortUnderWay) => None,
            Err(_) => return self.give_up(lun),
        };
        self.overdue.aborting.push(Aborting { place, task, lun, request, until });
    }

    /// Whether a task that was to be aborted is still there.
    fn is_there(&self, abort: &Aborting) -> bool {
        let is_it = |pending: &Pending| pending.task == Some(abort.task) && !pending.has_ended();
        self.table.get(abort.place).is_some_and(is_it)
    }

    /// Resets a logical unit that ends no command otherwise.
    fn reset_unit(&mut self, lun: LunField) {
        if self.overdue.resetting.iter().any(|reset| reset.lun == lun) {
            return;
        }
        let places = self.tasks_of(lun);
        for &place in &places {
            let Some(task) = self.table.get(place).and_then(|pending| pending.task) else { continue };
            let is_waiting = self.session.is_waiting(task);
            if let Some(pending) = self.table.get_mut(place) {
                (pending.remedy, pending.is_withdrawn) = (Some(Remedy::LogicalUnitReset), is_waiting);
            }
            if is_waiting {
                // It has not left, and has nothing to do with this. It ends at once, and goes on behind the reset.
                let _ = self.session.abort(self.now, task, &mut self.outbox);
            }
        }
        let asked = self.session.manage(self.now, Function::LogicalUnitReset(lun), &mut self.outbox);
        let Ok(request) = asked else { return self.give_up(lun) };
        let until = self.now + self.options.timing.reset;
        self.overdue.resetting.push(Resetting { lun, request, until });
        let commands = places.len();
        let waited =
            places.iter().filter_map(|place| self.table.get(*place)).map(|pending| pending.waited).max();
        let (waited, remedy) = (waited.unwrap_or_default(), Remedy::LogicalUnitReset);
        self.events.push_back(EngineEvent::Overdue { lun, commands, waited, remedy });
    }

    /// The commands of a unit that are tasks, by their age.
    fn tasks_of(&self, lun: LunField) -> Vec<u32> {
        let is_such = |pending: &Pending| pending.command.lun == lun && pending.task.is_some();
        self.table.places().into_iter().filter(|place| self.table.get(*place).is_some_and(is_such)).collect()
    }

    /// Nothing that can be asked for within the session has helped.
    fn give_up(&mut self, lun: LunField) {
        let unit = lunette_scsi::Lun::from_bytes(lun.0);
        let reason = format!(
            "the target is there, but neither answers a command to LUN {unit} nor ends it when asked to"
        );
        self.overdue.forget();
        for place in self.tasks_of(lun) {
            if let Some(pending) = self.table.get_mut(place).filter(|pending| pending.overdue > 0) {
                pending.remedy = Some(Remedy::Reinstatement);
            }
        }
        self.detail = Some(reason);
        self.session.give_up(&mut self.outbox);
    }

    /// A function was answered (with a response code), or will not be. True if it was one of these.
    pub(super) fn is_of_overdue(&mut self, request: RequestHandle, response: Option<u8>) -> bool {
        if let Some(at) = self.overdue.aborting.iter().position(|abort| abort.request == Some(request)) {
            let abort = self.overdue.aborting.remove(at);
            let is_last = self.overdue.aborting.iter().all(|other| other.lun != abort.lun);
            // The session has ended the task before, if the target has.
            if self.is_there(&abort) {
                self.reset_unit(abort.lun);
            } else if is_last
                && response.is_some()
                && self.overdue.resetting.iter().all(|reset| reset.lun != abort.lun)
            {
                self.events.push_back(EngineEvent::Ended { lun: abort.lun, remedy: Remedy::AbortTask });
            }
            return true;
        }
        let Some(at) = self.overdue.resetting.iter().position(|reset| reset.request == request) else {
            return false;
        };
        let reset = self.overdue.resetting.remove(at);
        if response == Some(0) {
            self.note_attention(reset.lun, replay::Attention::Reset);
            self.overdue.aborting.retain(|abort| abort.lun != reset.lun);
            self.events.push_back(EngineEvent::Ended { lun: reset.lun, remedy: Remedy::LogicalUnitReset });
            // What left behind the reset is looked at again.
            for place in self.tasks_of(reset.lun) {
                if let Some(pending) = self.table.get_mut(place) {
                    pending.remedy = None;
                }
            }
            self.overdue.look_at = Some(self.now);
        } else if !self.session.is_over() {
            self.give_up(reset.lun);
        }
        true
    }

    /// A task that was to be ended has ended: it goes on once more where that may be, or its caller hears what was done.
    pub(super) fn overdue_ended(&mut self, place: u32, remedy: Remedy) {
        let recovers = !self.is_closing && !self.options.timing.recovery.is_zero();
        let Some(pending) = self.table.get_mut(place) else { return };
        pending.remedy = None;
        if std::mem::take(&mut pending.is_withdrawn) && !self.is_closing {
            // It was not sent.
            (pending.task, pending.attempts) = (None, pending.attempts.saturating_sub(1));
            return self.backlog.push_back(place);
        }
        pending.may_have_run = true;
        if recovers && may_repeat(pending) && replay::may_go_on(&pending.command, true) {
            pending.task = None;
            return self.backlog.push_back(place);
        }
        let error = pending.overdue_error(remedy).unwrap_or_else(|| {
            CommandError::Unknown(format!(
                "{remedy} ended it, since the target did not answer another command"
            ))
        });
        self.end(place, (Err(error), 0));
    }
}

/// Whether a command may be sent again, for all the times that it was not answered.
pub(super) const fn may_repeat(pending: &Pending) -> bool {
    pending.overdue <= REPEATS_MAX
}
