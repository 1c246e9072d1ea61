//! Whether a logical unit is still the one that it was, after its session was lost: asked before any of its commands goes on.
//! A target that was configured anew may have another medium behind the same number.

use std::time::Duration;

use lunette_iscsi::initiator::session::{Answer, End};
use lunette_scsi::client::{Command as Asked, Next, Probe, Reply, Ticket, UnitIdentity};
use lunette_wire::LunField;

use super::{Engine, EngineEvent, replay};
use crate::{Command, CommandError, CommandId, Lun, Replay};

/// How long a unit that does not say what it is, is left alone before it is asked again.
const PAUSE: Duration = Duration::from_millis(500);

/// A unit whose identity the caller knows.
#[derive(Debug)]
pub(super) struct Guard {
    lun: LunField,
    identity: UnitIdentity,
    /// What is different now.
    changed: Option<String>,
}

/// The look at the guarded units, one after the other.
#[derive(Debug)]
pub(super) struct Check {
    /// Which guard's.
    at: usize,
    probe: Probe,
    /// The commands that are under way.
    commands: Vec<(CommandId, Ticket)>,
    /// What is clear already, and done when no command is under way any more.
    finding: Option<Finding>,
    /// When the next command is sent, if the unit has to be left alone before.
    later: Option<Duration>,
    /// When this unit was first asked.
    since: Duration,
}

/// What has come of a look at a unit before its end.
#[derive(Debug)]
enum Finding {
    /// It is another one.
    Differs(String),
    /// It does not say what it is.
    Unclear(String),
}

impl Check {
    fn of(at: usize, now: Duration) -> Self {
        let (commands, finding) = Default::default();
        Self { at, probe: Probe::new(), commands, finding, later: None, since: now }
    }
}

impl Engine {
    /// Says which logical unit this is. After each loss of the session the engine asks the unit again before anything else is
    /// sent to any unit. If it is another one by then, or has another capacity, [`EngineEvent::UnitChanged`] tells it, and
    /// all its commands end as [`CommandError::Changed`] until it is guarded anew. One that may be larger
    /// ([`UnitIdentity::growing`]) goes on, and [`EngineEvent::UnitGrown`] tells that it is. A unit that does not say what it is (it
    /// is busy, or not there yet after a restart) is asked again for [`crate::Timing::recovery`] before that is taken for
    /// a change; one with the same names that is just formatted or sanitized need not tell its capacity.
    pub fn guard(&mut self, lun: Lun, identity: UnitIdentity) {
        let lun = lun.field();
        let guard = Guard { lun, identity, changed: None };
        match self.guards.iter_mut().find(|guard| guard.lun == lun) {
            Some(old) => *old = guard,
            None => self.guards.push(guard),
        }
    }

    /// What is different at a unit that has changed.
    pub(super) fn change_of(&self, lun: LunField) -> Option<&String> {
        self.guards.iter().find(|guard| guard.lun == lun)?.changed.as_ref()
    }

    /// Looks at all guarded units of a new session; commands wait until that is through.
    pub(super) fn begin_checks(&mut self) {
        self.check = Some(Check::of(0, self.now));
        self.ask_on();
    }

    /// The session is lost, or over: whatever was asked is not answered.
    pub(super) fn drop_check(&mut self) {
        let commands = self.check.take().map(|check| check.commands).unwrap_or_default();
        for (id, _) in commands {
            if let Some(place) = self.table.find(id) {
                self.backlog.retain(|waiting| *waiting != place);
                self.table.remove(place);
            }
        }
    }

    pub(super) fn check_deadline(&self) -> Option<Duration> {
        self.check.as_ref().and_then(|check| check.later)
    }

    /// Asks a unit again that had to be left alone.
    pub(super) fn check_later(&mut self) {
        if let Some(check) = &mut self.check
            && check.later.take_if(|later| self.now >= *later).is_some()
        {
            check.probe.rested();
            self.ask_on();
        }
    }

    /// Asks what can be asked now; when all is answered, draws the conclusion. Not while ends of tasks are still to be handled,
    /// as in [`Self::begin_waiting`].
    pub(super) fn ask_on(&mut self) {
        let now = self.now;
        loop {
            let Some(check) = &mut self.check else { return };
            let Some(guard) = self.guards.get(check.at) else {
                self.check = None;
                return self.begin_waiting();
            };
            if guard.changed.is_some() {
                // Nothing is sent to it, not even a question.
                *check = Check::of(check.at + 1, now);
                continue;
            }
            if let Some(finding) = check.finding.take_if(|_| check.commands.is_empty()) {
                match finding {
                    Finding::Differs(what) => self.differs(what),
                    Finding::Unclear(what) => self.look_again(what),
                }
            } else if check.finding.is_some() || check.later.is_some() {
                return;
            } else {
                match check.probe.proceed() {
                    Next::Send(ticket, command) => self.send_question(ticket, &command),
                    Next::Wait => return,
                    Next::Pause => check.later = Some(now + PAUSE),
                    Next::Done => self.compare(),
                }
            }
        }
    }

    fn send_question(&mut self, ticket: Ticket, command: &Asked) {
        let Some(check) = &mut self.check else { return };
        let Some(guard) = self.guards.get(check.at) else { return };
        let own = Command { lun: guard.lun, replay: Replay::Never, ..Command::of(Lun::default(), command) };
        let id = self.table.insert(self.now, own);
        check.commands.push((id, ticket));
        self.begin(id.place);
    }

    /// True for a command of the look at the units, whose end is handled.
    pub(super) fn is_of_check(&mut self, place: u32, end: &End) -> bool {
        let Some(check) = &mut self.check else { return false };
        let is_this = |(id, _): &(CommandId, Ticket)| self.table.find(*id) == Some(place);
        let Some(at) = check.commands.iter().position(is_this) else { return false };
        let (_, ticket) = check.commands.swap_remove(at);
        let is_doubted = self.table.get(place).is_some_and(|pending| pending.doubted_at.is_some());
        let data = self.table.remove(place);
        match end {
            End::Answered(answer) => self.check_answered(ticket, answer, &data),
            // The session's end follows.
            _ if self.session.is_over() || self.is_moving || self.is_closing => {}
            // Another question's failure has ended it.
            End::Aborted | End::Unknown if is_doubted && check.probe.again(ticket) => {}
            _ if check.probe.failed(ticket) => {}
            end => self.find(Finding::Unclear(format!("it does not say what it is ({end:?})"))),
        }
        true
    }

    fn check_answered(&mut self, ticket: Ticket, answer: &Answer, data: &[u8]) {
        let Some(check) = &mut self.check else { return };
        let lun = self.guards[check.at].lun;
        let data = data.get(..answer.received as usize).unwrap_or(data);
        let status = lunette_scsi::Status::from_code(answer.status);
        let attention = replay::attention(&answer.sense);
        // A question that was not carried out since an earlier command had failed is no answer.
        if attention != Some(replay::Attention::Deferred) || !check.probe.again(ticket) {
            check.probe.answered(ticket, Reply { status, sense: &answer.sense, data });
        }
        if let Some(attention) = attention {
            self.note_attention(lun, attention);
            self.events.push_back(EngineEvent::Attention { lun, sense: answer.sense.clone() });
        }
        if attention == Some(replay::Attention::Medium) {
            self.find(Finding::Differs("its medium may have been changed".to_owned()));
        }
    }

    /// Notes a finding. That the unit is another one is the last word.
    fn find(&mut self, finding: Finding) {
        if let Some(check) = &mut self.check
            && !matches!(check.finding, Some(Finding::Differs(_)))
        {
            check.finding = Some(finding);
        }
    }

    /// True while the unit may be asked again.
    fn has_time(&self) -> bool {
        self.check.as_ref().is_some_and(|check| self.now < check.since + self.options.timing.recovery)
    }

    /// Nothing is known of the unit, which need not be its last word: it is asked again from the beginning, as long as a
    /// lost session is tried to be had again.
    fn look_again(&mut self, what: String) {
        if !self.has_time() {
            return self.differs(what);
        }
        let Some(check) = &mut self.check else { return };
        tracing::info!(what, "a guarded unit is asked again");
        (check.probe, check.later) = (Probe::new(), Some(self.now + PAUSE));
    }

    /// All is known of the unit.
    fn compare(&mut self) {
        let Some(check) = &self.check else { return };
        if let Err(error) = check.probe.check() {
            return self.look_again(error.to_string());
        }
        let (at, facts) = (check.at, check.probe.facts());
        let now = UnitIdentity::of(facts);
        let difference = self.guards[at].identity.difference(&now);
        match (&facts.not_ready, difference) {
            (Some(sense), None) if sense.becomes_ready() && self.has_time() => {
                self.look_again(format!("it is not ready ({sense})"));
            }
            (_, None) => {
                let guard = &mut self.guards[at];
                if guard.identity.grow(&now) {
                    self.events.push_back(EngineEvent::UnitGrown { lun: guard.lun });
                }
                self.next_unit();
            }
            // It tells its capacity when that is done, and until then has no block for anybody.
            (Some(sense), Some(difference)) if difference.is_of_work(sense) => self.next_unit(),
            // What it says of itself then need not be all.
            (Some(sense), Some(_)) => self.look_again(format!("it is not ready ({sense})")),
            (None, Some(difference)) => self.differs(difference.to_string()),
        }
    }

    /// Nothing more is sent to this unit.
    fn differs(&mut self, what: String) {
        let Some(check) = &self.check else { return };
        let guard = &mut self.guards[check.at];
        let lun = guard.lun;
        guard.changed = Some(what.clone());
        for place in self.table.places() {
            if self.table.get(place).is_some_and(|pending| pending.command.lun == lun && !pending.has_ended())
            {
                self.backlog.retain(|waiting| *waiting != place);
                self.end(place, (Err(CommandError::Changed(what.clone())), 0));
            }
        }
        self.events.push_back(EngineEvent::UnitChanged { lun, what });
        self.next_unit();
    }

    fn next_unit(&mut self) {
        if let Some(check) = &mut self.check {
            *check = Check::of(check.at + 1, self.now);
        }
    }
}
