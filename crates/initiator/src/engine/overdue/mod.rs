//! Commands that a living target does not answer: how long each is waited for, and what is done to end it. SAM-5 leaves the time
//! to the application client; the functions are RFC 7143's (11.5), their order is the one that Linux and others have.
//!
//! First the command is aborted (ABORT TASK). If that is refused or not answered in its time either, its logical unit is reset
//! (LOGICAL UNIT RESET), and if that fails, the session is given up and a new one takes its place, before which the target ends
//! what is left of it (6.3.5). What was ended in one of these ways goes on by the rules for lost sessions, once.

mod abort;
mod doubt;
mod flow;
mod limit;
mod look;
mod reset;

use std::time::Duration;

use lunette_iscsi::initiator::session::RequestHandle;
use lunette_wire::LunField;
use lunette_wire::target::RejectReason;

use super::table::Pending;
use super::{Engine, EngineEvent, replay};
use crate::{Command, CommandError};
use abort::Aborting;
pub(super) use flow::Flow;
use look::{Late, Look, Waiting};
use reset::Resetting;

/// How often a command that was not answered in time is sent again: what has stopped it once may be over.
const REPEATS_MAX: u32 = 1;
/// How long a target is left alone that has no room for a function now.
const PAUSE: Duration = Duration::from_millis(250);

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

/// What has become of a function that was asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reply {
    /// It was answered, with this response code (11.6.1).
    Response(u8),
    /// It was rejected, for this reason (11.17.1).
    Rejected(u8),
    /// It will not be answered: its connection has gone.
    None,
}

impl Reply {
    /// The target has too many immediate requests, and may take it later (4.2.2.1).
    fn is_for_now(self) -> bool {
        self == Self::Rejected(RejectReason::ImmediateCommandReject as u8)
    }
}

/// What an engine knows of commands that may be overdue.
#[derive(Debug, Default)]
pub(super) struct Overdue {
    /// When the commands are looked at next; no command can be overdue before.
    look_at: Option<Duration>,
    /// In the order in which they are asked for.
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
        let resetting = self.resetting.iter().map(Resetting::deadline);
        resetting.chain(self.abort_deadline()).chain(self.look_at).min()
    }
}

impl Engine {
    /// How long this command may take; none: as long as it wants.
    fn limit_of(&self, command: &Command) -> Option<Duration> {
        let usual = || self.options.timing.command.map(|usual| usual.saturating_mul(limit::factor(command)));
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
        self.look_at_aborts();
        self.look_at_resets();
    }

    /// Finds the commands that are overdue, and when the next one may be.
    fn look_at_commands(&mut self) {
        let mut look = Look::new(self.now, self.table.moved_at, self.table.flow);
        for place in self.table.places() {
            let Some(pending) = self.table.get(place).filter(|pending| pending.task.is_some()) else {
                continue;
            };
            look.at(Waiting {
                place,
                limit: self.limit_by_now(pending),
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
                self.ask_aborts();
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

    /// The commands of a unit that are tasks, by their age.
    fn tasks_of(&self, lun: LunField) -> Vec<u32> {
        let is_such = |pending: &Pending| pending.command.lun == lun && pending.task.is_some();
        self.table.places().into_iter().filter(|place| self.table.get(*place).is_some_and(is_such)).collect()
    }

    /// What has become of a function. True if it was one of these.
    pub(super) fn is_of_overdue(&mut self, request: RequestHandle, reply: Reply) -> bool {
        self.is_of_abort(request, reply) || self.is_of_reset(request, reply)
    }

    /// A task that was to be ended has ended: it goes on once more where that may be, or its caller hears what was done.
    pub(super) fn overdue_ended(&mut self, place: u32, remedy: Remedy) {
        let Some(pending) = self.table.get_mut(place) else { return };
        // A question that was ended because another one had failed is about this session.
        let recovers = pending.doubted_at.is_some() || !self.options.timing.recovery.is_zero();
        let recovers = recovers && !self.is_closing;
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

/// Whether a command may be sent again, for all the times that it was not answered, and for its caller.
pub(super) const fn may_repeat(pending: &Pending) -> bool {
    pending.overdue <= REPEATS_MAX && !pending.is_aborted
}
