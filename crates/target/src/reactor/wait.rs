//! Waiting for events: asleep, or awake for a moment where that has lately paid.
//!
//! Waking a processor that fell idle takes longer than answering a command from the page cache. An initiator with one
//! command outstanding sends the next one a few tens of microseconds after its answer; who is still awake then saves
//! the waking. The price is processor time, so it is only paid after short gaps have been seen, and a gap that was
//! waited for in vain takes half of that experience away: an idle reactor sleeps. Where several commands come at a
//! time it sleeps too: they hide the waking, and what gathers meanwhile is handled with fewer system calls.

use std::io;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use rustix::buffer::spare_capacity;
use rustix::event::{Timespec, epoll};
use rustix::io::Errno;
use rustix::thread::sched_yield;

/// The longest gap that is spent awake: about twice what it takes to wake the initiator's processor and ours, so more
/// could not pay.
const AWAKE_MAX: Duration = Duration::from_micros(150);

/// More PDUs than this in one turn are a queue, not one command after the other.
const SHALLOW_MAX: usize = 2;

/// Short gaps in a row after which the next one is spent awake, and the most that are remembered.
const EXPERIENCE_NEEDED: u8 = 4;
const EXPERIENCE_MAX: u8 = 8;

/// Remembers whether the gaps between events have lately been short.
#[derive(Debug, Default)]
pub(super) struct Vigil {
    experience: u8,
    is_sleepless: bool,
}

impl Vigil {
    /// One that stays awake always, for those who have a processor to spend.
    pub(super) fn sleepless() -> Self {
        Self { is_sleepless: true, ..Self::default() }
    }

    /// Waits for events at most `limit` (not at all if it is zero), and puts them into `events`; none when time ran out or a signal came. `pdus`
    /// says how many PDUs the turn before brought.
    ///
    /// # Errors
    /// When the kernel refuses to wait.
    pub(super) fn wait(
        &mut self,
        epoll: &impl AsFd,
        events: &mut Vec<epoll::Event>,
        limit: Duration,
        pdus: usize,
    ) -> io::Result<()> {
        events.clear();
        let began = Instant::now();
        if limit.is_zero() {
            return poll(epoll, events, limit);
        }
        if self.is_sleepless {
            while events.is_empty() && began.elapsed() < limit {
                poll(epoll, events, Duration::ZERO)?;
            }
            return Ok(());
        }
        if pdus > SHALLOW_MAX {
            self.experience = 0;
            return poll(epoll, events, limit);
        }
        if self.experience >= EXPERIENCE_NEEDED {
            while began.elapsed() < AWAKE_MAX {
                poll(epoll, events, Duration::ZERO)?;
                if !events.is_empty() {
                    self.learn(began.elapsed());
                    return Ok(());
                }
                // Whoever else wants this core gets it.
                sched_yield();
            }
        }
        poll(epoll, events, limit)?;
        self.learn(began.elapsed());
        Ok(())
    }

    fn learn(&mut self, gap: Duration) {
        if gap <= AWAKE_MAX {
            self.experience = EXPERIENCE_MAX.min(self.experience + 1);
        } else {
            self.experience /= 2;
        }
    }
}

fn poll(epoll: &impl AsFd, events: &mut Vec<epoll::Event>, limit: Duration) -> io::Result<()> {
    // A timeout of a second fits both fields.
    let limit = Timespec { tv_sec: limit.as_secs() as i64, tv_nsec: limit.subsec_nanos().into() };
    match epoll::wait(epoll, spare_capacity(events), Some(&limit)) {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_run_of_short_gaps_keeps_it_awake() {
        let mut vigil = Vigil::default();
        let is_awake = |vigil: &Vigil| vigil.experience >= EXPERIENCE_NEEDED;
        for _ in 0..EXPERIENCE_NEEDED - 1 {
            vigil.learn(AWAKE_MAX);
        }
        assert!(!is_awake(&vigil));
        vigil.learn(Duration::ZERO);
        assert!(is_awake(&vigil));
        // However long it went well, two gaps in vain are enough.
        (0..100).for_each(|_| vigil.learn(Duration::ZERO));
        vigil.learn(Duration::from_millis(1));
        vigil.learn(Duration::from_millis(1));
        assert!(!is_awake(&vigil));
    }

    #[test]
    fn events_are_found_awake_and_asleep() {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
        let ready = rustix::event::eventfd(1, rustix::event::EventfdFlags::CLOEXEC).unwrap();
        let mut events = Vec::with_capacity(4);
        let mut asleep = Vigil::default();
        asleep.wait(&epoll, &mut events, Duration::from_millis(1), 1).unwrap();
        assert!(events.is_empty());
        epoll::add(&epoll, &ready, epoll::EventData::new_u64(7), epoll::EventFlags::IN).unwrap();
        let mut busy = Vigil { experience: EXPERIENCE_MAX, ..Vigil::default() };
        busy.wait(&epoll, &mut events, Duration::from_secs(10), SHALLOW_MAX + 1).unwrap();
        assert_eq!((events.len(), busy.experience), (1, 0), "a queue is not waited for awake");
        for mut vigil in
            [asleep, Vigil::sleepless(), Vigil { experience: EXPERIENCE_MAX, ..Vigil::default() }]
        {
            vigil.wait(&epoll, &mut events, Duration::from_secs(10), 1).unwrap();
            assert_eq!(events.len(), 1);
            assert_eq!(events[0].data.u64(), 7);
        }
    }
}
