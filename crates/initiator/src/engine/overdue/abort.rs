//! The first step: ABORT TASK (RFC 7143, 11.5.1), of a few commands at a time. Where many are late at once, it is mostly one
//! store that stands still; and a target need not take more than one immediate function on a connection (4.2.2.1).

use std::time::Duration;

use lunette_iscsi::initiator::session::{Abort, RequestError, RequestHandle, TaskHandle};
use lunette_wire::LunField;

use super::super::table::Pending;
use super::super::{Engine, EngineEvent};
use super::{Overdue, PAUSE, Remedy, Reply};

/// How many are asked for at the same time.
const ABORTS_MAX: usize = 4;

/// Whether an abort is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Asked {
    /// Not before then.
    NotBefore(Duration),
    Request(RequestHandle),
    /// The caller has asked for it before, and has no answer either.
    ByCaller,
}

/// The ABORT TASK of a command that is overdue.
#[derive(Debug)]
pub(super) struct Aborting {
    place: u32,
    task: TaskHandle,
    lun: LunField,
    asked: Asked,
    /// When it was asked for first, and when it may be late.
    waited_for: Option<(Duration, Duration)>,
}

impl Aborting {
    const fn is_asked(&self) -> bool {
        !matches!(self.asked, Asked::NotBefore(_))
    }
}

impl Overdue {
    fn has_room(&self) -> bool {
        let asked = self.aborting.iter().filter(|abort| matches!(abort.asked, Asked::Request(_)));
        asked.count() < ABORTS_MAX
    }

    pub(super) fn abort_deadline(&self) -> Option<Duration> {
        let has_room = self.has_room();
        let next = self.aborting.iter().filter_map(|abort| match abort.asked {
            Asked::NotBefore(at) => has_room.then_some(at),
            Asked::Request(_) | Asked::ByCaller => None,
        });
        let late = self.aborting.iter().filter_map(|abort| abort.waited_for.map(|(_, until)| until));
        next.chain(late).min()
    }

    /// A reset takes the place of the aborts that nobody has asked for yet.
    pub(super) fn leave_to_reset(&mut self, lun: LunField) {
        self.aborting.retain(|abort| abort.lun != lun || abort.is_asked());
    }

    /// The unit was reset: there is nothing left of these.
    pub(super) fn forget_aborts(&mut self, lun: LunField) {
        self.aborting.retain(|abort| abort.lun != lun);
    }
}

impl Engine {
    /// Has a command be aborted, in its turn.
    pub(super) fn abort_overdue(&mut self, place: u32) {
        let Some(pending) = self.table.get_mut(place) else { return };
        let Some(task) = pending.task else { return };
        pending.remedy = Some(Remedy::AbortTask);
        let (lun, asked) = (pending.command.lun, Asked::NotBefore(self.now));
        self.overdue.aborting.push(Aborting { place, task, lun, asked, waited_for: None });
    }

    /// Asks for as many aborts as may be under way.
    pub(super) fn ask_aborts(&mut self) {
        let now = self.now;
        let is_next = |abort: &Aborting| matches!(abort.asked, Asked::NotBefore(at) if now >= at);
        while self.overdue.has_room()
            && let Some(at) = self.overdue.aborting.iter().position(is_next)
        {
            let abort = &self.overdue.aborting[at];
            let (task, lun) = (abort.task, abort.lun);
            let asked = match self.session.abort(now, task, &mut self.outbox) {
                Ok(Abort::Requested(request)) => Asked::Request(request),
                Err(RequestError::AbortUnderWay) => Asked::ByCaller,
                Err(RequestError::Full) => Asked::NotBefore(now.saturating_add(PAUSE)),
                Ok(Abort::Done) | Err(RequestError::NoTask) => {
                    self.overdue.aborting.remove(at);
                    continue;
                }
                Err(_) => return self.give_up(lun),
            };
            let until = now.saturating_add(self.options.timing.abort);
            let abort = &mut self.overdue.aborting[at];
            abort.asked = asked;
            abort.waited_for.get_or_insert((now, until));
        }
    }

    /// Looks at the clock: what is not aborted in its time has its unit be reset.
    pub(super) fn look_at_aborts(&mut self) {
        let (now, limit, flow) = (self.now, self.options.timing.abort, self.table.flow);
        let is_late = |abort: &mut Aborting| {
            let Some((since, until)) = &mut abort.waited_for else { return false };
            if now < *until {
                return false;
            }
            let due = flow.due(now, *since, limit);
            *until = due.unwrap_or(*until);
            due.is_none()
        };
        let late: Vec<_> = self.overdue.aborting.extract_if(.., is_late).collect();
        for abort in late {
            if self.is_there(&abort) {
                self.reset_unit(abort.lun);
            }
        }
        self.ask_aborts();
    }

    /// Whether a task that was to be aborted is still there.
    fn is_there(&self, abort: &Aborting) -> bool {
        let is_it = |pending: &Pending| pending.task == Some(abort.task) && !pending.has_ended();
        self.table.get(abort.place).is_some_and(is_it)
    }

    /// What has become of an ABORT TASK. True if it was one of these.
    pub(super) fn is_of_abort(&mut self, request: RequestHandle, reply: Reply) -> bool {
        let is_it = |abort: &Aborting| abort.asked == Asked::Request(request);
        let Some(at) = self.overdue.aborting.iter().position(is_it) else { return false };
        // The session has ended the task before, if the target has.
        let is_there = self.is_there(&self.overdue.aborting[at]);
        if is_there && reply.is_for_now() {
            self.overdue.aborting[at].asked = Asked::NotBefore(self.now.saturating_add(PAUSE));
            return true;
        }
        let lun = self.overdue.aborting.remove(at).lun;
        let is_last = !(self.overdue.aborting.iter())
            .any(|other| other.lun == lun && (other.is_asked() || self.is_there(other)));
        if self.session.is_over() {
            return true;
        }
        if is_there {
            self.reset_unit(lun);
        } else if is_last && matches!(reply, Reply::Response(_)) && !self.is_resetting(lun) {
            self.events.push_back(EngineEvent::Ended { lun, remedy: Remedy::AbortTask });
        }
        self.ask_aborts();
        true
    }
}
