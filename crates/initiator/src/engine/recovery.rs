//! What happens when a session is lost: a new login with the same identifier (RFC 7143, 6.3.5), and what of the commands goes
//! on in it. Further connections of a session come in the same way. Logins run on a thread of their own, so that the
//! engine's goes on.

use std::sync::Arc;
use std::time::Duration;

use lunette_iscsi::initiator::login::Purpose;
use lunette_wire::{Cid, Tsih};

use super::event::unanswered;
use super::{Engine, EngineEvent, State, ghost, new_session};
use crate::Error;
use crate::connect::{Connected, Connector, Goal, LoginRecord};

/// The first wait between tries, which doubles from one to the next.
const WAIT_MIN: Duration = Duration::from_millis(500);
/// The longest.
const WAIT_MAX: Duration = Duration::from_secs(10);

/// What a login on another thread came to.
#[derive(Debug)]
pub(super) enum Job {
    /// A new session.
    Leading(LoginRecord, Box<Result<Connected, Error>>),
    /// Another connection of the session that came after so many lost ones.
    Joining(u64, LoginRecord, Box<Result<Connected, Error>>),
}

/// A session that is lost and is to come back.
#[derive(Debug)]
pub(super) struct Down {
    since: Duration,
    next_try: Duration,
    tries: u32,
    is_trying: bool,
    reason: String,
}

/// A connection that is to take the place of one that was lost, at ErrorRecoveryLevel 2.
#[derive(Debug)]
pub(super) struct Rejoin {
    next_try: Duration,
    tries: u32,
    /// The lost one's name.
    cid: Cid,
}

impl Rejoin {
    /// It is lost.
    pub(super) fn new(now: Duration, cid: Cid) -> Self {
        Self { next_try: now, tries: 0, cid }
    }

    pub(super) fn deadline(&self) -> Duration {
        self.next_try
    }
}

/// How long to wait after this many tries.
fn wait(tries: u32) -> Duration {
    WAIT_MIN.saturating_mul(1 << tries.saturating_sub(1).min(10)).min(WAIT_MAX)
}

impl Down {
    pub(super) fn deadline(&self) -> Option<Duration> {
        (!self.is_trying).then_some(self.next_try)
    }
}

impl Engine {
    /// The session is lost.
    pub(super) fn lost(&mut self, reason: String) {
        self.silence_all_links();
        self.close_all_links();
        self.drop_check();
        self.drop_held(&reason);
        self.is_joining = false;
        self.lost_sessions += 1;
        self.aborts.clear();
        self.overdue.forget();
        (self.rejoin, self.detail) = (None, None);
        if self.is_closing || self.options.timing.recovery.is_zero() {
            return self.over(reason);
        }
        if !self.is_up() {
            return;
        }
        tracing::warn!(%reason, "the session is lost");
        self.events.push_back(EngineEvent::Lost { reason: reason.clone() });
        // Whatever the target wants, what comes after the time for all tries would be too late.
        let wait = Duration::from_secs(self.session.parameters().default_time2wait_s.into());
        let wait = wait.min(self.options.timing.recovery / 2);
        self.state = State::Down(Down {
            since: self.now,
            next_try: self.now + wait,
            tries: 0,
            is_trying: false,
            reason,
        });
        self.is_moving = false;
    }

    /// The session is over for good, and all its commands are.
    pub(super) fn over(&mut self, reason: String) {
        if self.is_over() {
            return;
        }
        self.close_all_links();
        self.drop_check();
        self.drop_held(&reason);
        self.state = State::Over(reason.clone());
        self.backlog.clear();
        for place in self.table.places() {
            let may_have_run =
                self.table.get(place).is_some_and(|pending| pending.may_have_run || pending.task.is_some());
            self.end(place, (Err(unanswered(may_have_run, &reason)), 0));
        }
        self.events.push_back(EngineEvent::Over { reason });
    }

    /// Takes what logins have come to, and begins the next try when it is due.
    pub(super) fn recover(&mut self) {
        while let Ok(job) = self.jobs.1.try_recv() {
            match job {
                Job::Leading(record, result) => {
                    self.record = record;
                    self.came_back(*result);
                }
                Job::Joining(lost_sessions, record, result) => {
                    self.record.add(record);
                    // One for a session that was lost since ends with that: its own is still under way.
                    if lost_sessions != self.lost_sessions {
                        continue;
                    }
                    self.is_joining = false;
                    if !self.is_up() {
                        continue;
                    }
                    if self.joined(*result) {
                        self.rejoin = None;
                        self.join_more();
                    } else if let Some(rejoin) = &mut self.rejoin {
                        rejoin.next_try = self.now + wait(rejoin.tries);
                    }
                }
            }
        }
        let State::Down(down) = &mut self.state else { return };
        if down.is_trying || self.now < down.next_try {
            return;
        }
        down.is_trying = true;
        down.tries += 1;
        // Where the lost one was first: that is where what is left of it can be ended.
        let first = self.way + down.tries as usize - 1;
        let goal = Goal::leading(Purpose::Normal(self.options.target.clone()), self.isid);
        self.log_in_beside(goal, first, Job::Leading);
    }

    /// Has another connection take the place of a lost one: with its name where it was the last one (6.3.4), with a new one where
    /// another can log it out. The session says when it is too late.
    pub(super) fn replace_lost(&mut self) {
        let Some(Rejoin { next_try, cid, .. }) = self.rejoin else { return };
        if !self.is_up() || self.session.is_over() || self.is_closing {
            self.rejoin = None;
        } else if !self.is_joining && self.now >= next_try {
            let Some(mut goal) = self.next_join() else {
                self.rejoin = None;
                return;
            };
            if self.links.is_empty() {
                goal.cid = cid;
                let lost = self.session.lost_connections().find(|(lost, _)| *lost == cid);
                goal.exp_stat_sn = lost.map(|(_, exp_stat_sn)| exp_stat_sn);
            }
            if let Some(rejoin) = &mut self.rejoin {
                rejoin.tries = rejoin.tries.saturating_add(1);
            }
            self.join(goal);
        }
    }

    /// Runs a login on another thread.
    fn log_in_beside(
        &self,
        goal: Goal,
        first: usize,
        job: impl Fn(LoginRecord, Box<Result<Connected, Error>>) -> Job + Clone + Send + 'static,
    ) {
        let (options, learnt) = (Arc::clone(&self.options), self.learnt.clone());
        let (sender, waker, tell) = (self.jobs.0.clone(), self.waker(), job.clone());
        let (ghost, way) = (self.ghost.clone().filter(|_| goal.tsih == Tsih(0)), self.way);
        let run = move || {
            let mut record = LoginRecord::default();
            let result = match &ghost {
                Some(ghost) => ghost::log_in((&options, &learnt, &mut record), &goal, (first, way), ghost),
                None => Connector::new(&options, &learnt, &mut record).log_in(&goal, first),
            };
            // Where the engine has gone meanwhile, the connection is closed.
            let _ = sender.send(tell(record, Box::new(result)));
            waker.wake();
        };
        if let Err(source) = std::thread::Builder::new().name("iscsi-login".into()).spawn(run) {
            let error = Error::System { what: "a thread", source };
            let _ = self.jobs.0.send(job(LoginRecord::default(), Box::new(Err(error))));
            self.waker.wake();
        }
    }

    /// A try to have the session again has ended.
    fn came_back(&mut self, result: Result<Connected, Error>) {
        let State::Down(down) = &mut self.state else { return };
        down.is_trying = false;
        let connected = match result {
            Ok(connected) => connected,
            Err(error) => {
                // A refusal may be of a target that was restarted and is not configured yet.
                let is_hopeless = error.is_for_good();
                down.next_try = self.now + wait(down.tries);
                let is_too_late = down.next_try > down.since.saturating_add(self.options.timing.recovery);
                if is_hopeless || is_too_late {
                    let reason = format!("{}; the last try: {error}; {}", down.reason, error.advice());
                    return self.over(reason);
                }
                return self.events.push_back(EngineEvent::TryFailed { reason: error.to_string() });
            }
        };
        let after = self.now.saturating_sub(down.since);
        let portal = connected.portal.clone();
        *self.leading = connected.outcome.clone();
        (self.target_end, self.way, self.ghost) = (connected.target_end(), connected.way, None);
        self.session = new_session(&self.options, &self.leading);
        self.state = State::Up;
        self.table.next_session();
        if let Err(error) = self.add_link(connected) {
            return self.over(error.to_string());
        }
        self.events.push_back(EngineEvent::Reconnected { portal, after });
        self.go_on();
        self.begin_checks();
        self.join_more();
    }

    /// Commands of the old session go on in the new one, in the order in which they were submitted.
    fn go_on(&mut self) {
        let table = &self.table;
        let places = self.backlog.make_contiguous();
        places.sort_by_key(|place| table.get(*place).map(|pending| pending.serial));
    }

    /// What the next connection of the session is to be; none when there are enough.
    pub(super) fn next_join(&self) -> Option<Goal> {
        let wanted = self.options.connections.min(self.session.parameters().max_connections);
        (self.is_up() && self.links.len() < usize::from(wanted)).then(|| Goal {
            purpose: Purpose::Normal(self.options.target.clone()),
            isid: self.isid,
            tsih: self.leading.tsih,
            cid: self.session.free_cid(),
            cmd_sn: self.session.cmd_sn(),
            exp_stat_sn: None,
        })
    }

    /// The portal that it begins at: each connection has the next one, as far as the target has them in one group.
    pub(super) fn next_way(&self) -> usize {
        self.way + self.links.len()
    }

    fn join_more(&mut self) {
        if let Some(goal) = self.next_join() {
            self.join(goal);
        }
    }

    fn join(&mut self, goal: Goal) {
        self.is_joining = true;
        let session = self.lost_sessions;
        let job = move |record, result| Job::Joining(session, record, result);
        self.log_in_beside(goal, self.next_way(), job);
    }

    /// Takes another connection; false where it could not be had.
    pub(super) fn joined(&mut self, result: Result<Connected, Error>) -> bool {
        let added = result.and_then(|connected| {
            if connected.outcome.tsih != self.leading.tsih {
                return Err(Error::Ended);
            }
            self.add_link(connected)
        });
        if let Err(error) = &added {
            if self.rejoin.as_ref().is_some_and(|rejoin| rejoin.tries > 1) {
                // It was told, and may go on for ever.
                tracing::debug!(%error, "a connection of the session cannot be had again yet");
                return false;
            }
            tracing::warn!(%error, "a further connection of the session could not be had");
            self.events.push_back(EngineEvent::ConnectionMissing { reason: error.to_string() });
        }
        added.is_ok()
    }
}

#[cfg(test)]
mod tests {
    use lunette_iscsi::initiator::login::Trace;

    use super::*;
    use crate::{Attempt, Portal};

    #[test]
    fn tries_are_as_far_apart_as_is_said() {
        let waits: Vec<u64> = (1..8).map(|tries| wait(tries).as_millis() as u64).collect();
        assert_eq!(waits, [500, 1000, 2000, 4000, 8000, 10_000, 10_000]);
        assert_eq!(wait(u32::MAX), WAIT_MAX);
    }

    #[test]
    fn the_last_tries_to_log_in_are_kept() {
        let attempt = |began| Attempt {
            portal: Portal::new("192.0.2.1", 3260),
            address: None,
            began: Duration::from_secs(began),
            resolved: None,
            connected: None,
            ended: Duration::ZERO,
            trace: Trace::default(),
            end: String::new(),
        };
        let mut record = LoginRecord::default();
        for began in 0..100 {
            record.add(LoginRecord { attempts: vec![attempt(began)], ..LoginRecord::default() });
        }
        let kept: Vec<u64> = record.attempts.iter().map(|attempt| attempt.began.as_secs()).collect();
        assert_eq!(kept, (68..100).collect::<Vec<_>>());
    }
}
