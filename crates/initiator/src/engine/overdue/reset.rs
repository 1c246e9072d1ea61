//! The second and the third step: LOGICAL UNIT RESET (RFC 7143, 11.5.1), and a new session (6.3.5).

use std::time::Duration;

use lunette_iscsi::initiator::session::{Function, RequestError, RequestHandle};
use lunette_wire::LunField;

use super::super::{Engine, EngineEvent, replay};
use super::{PAUSE, Remedy, Reply};

/// A LOGICAL UNIT RESET that is under way.
#[derive(Debug)]
pub(super) struct Resetting {
    lun: LunField,
    /// None: it is asked for at `ask_at`.
    request: Option<RequestHandle>,
    ask_at: Duration,
    /// When it was asked for first, and when it may be late.
    since: Duration,
    until: Duration,
}

impl Resetting {
    pub(super) fn deadline(&self) -> Duration {
        if self.request.is_some() { self.until } else { self.until.min(self.ask_at) }
    }
}

impl Engine {
    pub(super) fn is_resetting(&self, lun: LunField) -> bool {
        self.overdue.resetting.iter().any(|reset| reset.lun == lun)
    }

    /// Resets a logical unit that ends no command otherwise.
    pub(super) fn reset_unit(&mut self, lun: LunField) {
        if self.is_resetting(lun) {
            return;
        }
        self.overdue.leave_to_reset(lun);
        let places = self.tasks_of(lun);
        let (since, until) = (self.now, self.now.saturating_add(self.options.timing.reset));
        self.overdue.resetting.push(Resetting { lun, request: None, ask_at: since, since, until });
        self.ask_resets();
        if !self.is_resetting(lun) {
            // The session is given up.
            return;
        }
        let commands = places.len();
        let waited =
            places.iter().filter_map(|place| self.table.get(*place)).map(|pending| pending.waited).max();
        let (waited, remedy) = (waited.unwrap_or_default(), Remedy::LogicalUnitReset);
        self.events.push_back(EngineEvent::Overdue { lun, commands, waited, remedy });
    }

    /// What there is of a unit is ended by its reset. What came since one that was put off is, too.
    fn leave_to_reset(&mut self, lun: LunField) {
        for place in self.tasks_of(lun) {
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
    }

    fn ask_resets(&mut self) {
        let now = self.now;
        let is_next = |reset: &Resetting| reset.request.is_none() && now >= reset.ask_at;
        while let Some(at) = self.overdue.resetting.iter().position(is_next) {
            let lun = self.overdue.resetting[at].lun;
            self.leave_to_reset(lun);
            match self.session.manage(now, Function::LogicalUnitReset(lun), &mut self.outbox) {
                Ok(request) => {
                    self.overdue.resetting[at].request = Some(request);
                    // From now on it may be carried out, whether it is answered or not.
                    self.note_attention(lun, replay::Attention::Reset);
                }
                Err(RequestError::Full) => self.overdue.resetting[at].ask_at = now.saturating_add(PAUSE),
                Err(_) => return self.give_up(lun),
            }
        }
    }

    /// Looks at the clock: where a reset does not come to an end in its time, the session does.
    pub(super) fn look_at_resets(&mut self) {
        let (now, limit, flow) = (self.now, self.options.timing.reset, self.table.flow);
        let mut late = None;
        for reset in self.overdue.resetting.iter_mut().filter(|reset| now >= reset.until) {
            match flow.due(now, reset.since, limit) {
                Some(due) => reset.until = due,
                None => late = late.or(Some(reset.lun)),
            }
        }
        match late {
            Some(lun) => self.give_up(lun),
            None => self.ask_resets(),
        }
    }

    /// Nothing that can be asked for within the session has helped.
    pub(super) fn give_up(&mut self, lun: LunField) {
        let unit = lunette_scsi::Lun::from_bytes(lun.0);
        let reason = format!(
            "the target is there, but neither answers a command to LUN {unit} nor ends it when asked to"
        );
        // Those that have left may be carried out until the session has ended, behind what was written meanwhile.
        let left: Vec<_> = (self.overdue.resetting.iter())
            .filter(|reset| reset.request.is_some())
            .map(|reset| reset.lun)
            .collect();
        if !left.is_empty() {
            // As any reset that comes late, it would end what is newer.
            self.haunt();
        }
        left.into_iter().for_each(|lun| self.note_attention(lun, replay::Attention::Reset));
        self.overdue.forget();
        for place in self.tasks_of(lun) {
            if let Some(pending) = self.table.get_mut(place).filter(|pending| pending.overdue > 0) {
                pending.remedy = Some(Remedy::Reinstatement);
            }
        }
        self.detail = Some(reason);
        self.session.give_up(&mut self.outbox);
    }

    /// What has become of a LOGICAL UNIT RESET. True if it was one of these.
    pub(super) fn is_of_reset(&mut self, request: RequestHandle, reply: Reply) -> bool {
        let is_it = |reset: &Resetting| reset.request == Some(request);
        let Some(at) = self.overdue.resetting.iter().position(is_it) else { return false };
        let lun = self.overdue.resetting[at].lun;
        if reply.is_for_now() {
            let reset = &mut self.overdue.resetting[at];
            (reset.request, reset.ask_at) = (None, self.now.saturating_add(PAUSE));
            return true;
        }
        self.overdue.resetting.remove(at);
        // What was written since it left may have come before it.
        self.note_attention(lun, replay::Attention::Reset);
        if reply == Reply::Response(0) {
            self.overdue.forget_aborts(lun);
            self.events.push_back(EngineEvent::Ended { lun, remedy: Remedy::LogicalUnitReset });
            // What left behind the reset is looked at again.
            for place in self.tasks_of(lun) {
                if let Some(pending) = self.table.get_mut(place) {
                    pending.remedy = None;
                }
            }
            self.overdue.look_at = Some(self.now);
            self.ask_aborts();
        } else if !self.session.is_over() {
            self.give_up(lun);
        } else {
            self.has_late_function = true;
        }
        true
    }
}
