//! What the clock has to do with an engine: how long it may wait, and what is due.

use std::mem::MaybeUninit;
use std::time::Duration;

use rustix::event::epoll;

use super::recovery::Rejoin;
use super::{EVENTS_MAX, Engine, State};
use crate::Error;

impl Engine {
    /// The time of this turn, or when something was read in it.
    pub(super) fn last_time(&self) -> Duration {
        self.now.max(self.read_at)
    }

    /// Waits for something to happen, until something is due at most.
    pub(super) fn wait(&mut self, timeout: Option<Duration>) -> Result<(), Error> {
        let limit = match (timeout, self.deadline()) {
            (Some(timeout), Some(deadline)) => Some(timeout.min(deadline.saturating_sub(self.now))),
            (Some(timeout), None) => Some(timeout),
            (None, deadline) => deadline.map(|deadline| deadline.saturating_sub(self.now)),
        };
        let limit = limit.and_then(|limit| rustix::event::Timespec::try_from(limit).ok());
        self.ready.clear();
        // An event has a pointer in it, which would keep the engine on one thread.
        let mut events = [const { MaybeUninit::uninit() }; EVENTS_MAX];
        match epoll::wait(&self.epoll, &mut events, limit.as_ref()) {
            Ok((events, _)) => {
                self.ready.extend(events.iter().map(|event| (event.data.u64(), event.flags)));
                Ok(())
            }
            Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(Error::System { what: "waiting for events", source: error.into() }),
        }
    }

    /// When there is something to do even if nothing comes.
    pub(super) fn deadline(&self) -> Option<Duration> {
        let session = if self.is_up() { self.session.next_deadline() } else { None };
        let leaving = self.links.iter().filter_map(|link| link.leave_by);
        let recovery = match &self.state {
            State::Down(down) => down.deadline(),
            State::Up | State::Over(_) => None,
        };
        let check = self.check_deadline();
        let rejoin = self.rejoin.as_ref().filter(|_| self.is_up() && !self.is_joining).map(Rejoin::deadline);
        let overdue = if self.is_up() { self.overdue.deadline() } else { None };
        let others = [session, recovery, rejoin, check, overdue, self.refill_at()];
        others.into_iter().flatten().chain(leaving).min()
    }

    pub(super) fn tick(&mut self) {
        if self.is_up() {
            if self.session.next_deadline().is_some_and(|deadline| deadline <= self.now) {
                self.look_for_progress();
            }
            self.session.tick(self.now, &mut self.outbox);
            self.settle();
        }
        if self.is_up() {
            self.look_for_overdue();
            self.leave_when_asked();
            self.check_later();
        }
        self.recover();
        self.replace_lost();
    }
}
