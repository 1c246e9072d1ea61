//! Waiting for events: asleep, or awake for a moment where that has lately paid.
//!
//! Waking a processor that fell idle takes longer than answering a command from the page cache. An initiator with one
//! command outstanding sends the next one a few tens of microseconds after its answer; who is still awake then saves
//! the waking. The price is processor time, so [`super::gaps`] learns whether the gaps are short enough, and how long to
//! wait, and [`super::probe`] whether they are long only because both ends sleep; an idle reactor sleeps. Each time round
//! the processor is offered to others, and whoever takes it ends the wait awake. Where several commands come at a time,
//! [`super::trial`] finds out which is better: awake, or asleep while they gather.

use std::io;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use lunette_block::usage::times_given_way;
use rustix::buffer::spare_capacity;
use rustix::event::{Timespec, epoll};
use rustix::io::Errno;
use rustix::thread::sched_yield;

use super::gaps::{AWAKE_MAX, Awake, Gaps, Waited};
use super::trial::{Manner, Trial};
use crate::config::Poll;

/// More PDUs than this in one turn are a queue, not one command after the other.
const SHALLOW_MAX: usize = 2;

/// For so many turns that bring PDUs after a queue, more of it is thought to be on its way.
const TURNS_WITH_QUEUE: u8 = 16;

/// An initiator needs the processor for no longer than this to answer a queue.
const SOON_IN_QUEUE: Duration = AWAKE_MAX.saturating_mul(2);

/// A moment awake without anybody else takes no longer.
const BRIEF: Duration = Duration::from_micros(4);

/// How a reactor waits.
#[derive(Debug, Default)]
pub(super) struct Vigil {
    gaps: Gaps,
    trial: Trial,
    /// When the wait before this one began.
    began_last: Option<Instant>,
    poll: Poll,
    /// Turns for which a queue is expected.
    queue_left: u8,
}

impl Vigil {
    pub(super) fn new(poll: Poll) -> Self {
        Self { poll, ..Self::default() }
    }

    /// Whether one command comes after the other: neither this turn, which has brought so many PDUs so far, nor one of the last had a
    /// queue. The first of a queue may have come while the others lie in the socket.
    pub(super) const fn is_shallow(&self, pdus: usize) -> bool {
        pdus <= SHALLOW_MAX && self.queue_left == 0
    }

    /// Waits for events at most `limit` (not at all if it is zero), and puts them into `events`; none when time ran out or a
    /// signal came. `pdus` says how many PDUs the turn before brought.
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
        match pdus {
            0 => {}
            1..=SHALLOW_MAX => self.queue_left = self.queue_left.saturating_sub(1),
            _ => self.queue_left = TURNS_WITH_QUEUE,
        }
        let began = Instant::now();
        if let Some(before) = self.began_last.replace(began) {
            self.trial.note(pdus, began - before);
        }
        if limit.is_zero() || self.poll == Poll::Never {
            return poll(epoll, events, limit);
        }
        if self.poll == Poll::Always {
            while events.is_empty() && began.elapsed() < limit {
                poll(epoll, events, Duration::ZERO)?;
            }
            return Ok(());
        }
        let is_queue = pdus > SHALLOW_MAX;
        if is_queue && !self.trial.is_awake() {
            self.trial.waits(Manner::Asleep);
            self.gaps.forget();
            poll(epoll, events, limit)?;
            if self.gaps.is_owing() {
                self.gaps.pay_back(began.elapsed());
            }
            return Ok(());
        }
        let (patience, soon) = if is_queue {
            let patience = self.gaps.patience_to_try();
            self.trial.waits(if patience.is_zero() { Manner::Indebted } else { Manner::Awake });
            (patience, SOON_IN_QUEUE)
        } else {
            (self.gaps.patience(), self.gaps.awake_max())
        };
        let patience = patience.min(limit);
        let mut awake = Awake::default();
        let mut given_way = None;
        while awake.time < patience && awake.taken.is_zero() {
            poll(epoll, events, Duration::ZERO)?;
            let before = awake.time;
            awake.moment(began.elapsed(), || given_way.is_some_and(|before| times_given_way() != before));
            if awake.time - before > BRIEF {
                // Others may have had a little of it, which is not what the host takes later.
                given_way = None;
            }
            if !events.is_empty() {
                // Where the event came soon, whoever had the processor may have been the initiator itself.
                let taken = if awake.time > soon { awake.taken } else { Duration::ZERO };
                self.gaps.learn(Waited {
                    gap: awake.time,
                    was_awake: true,
                    in_vain: Duration::ZERO,
                    taken,
                    stolen: awake.stolen,
                    is_queue,
                });
                return Ok(());
            }
            given_way.get_or_insert_with(times_given_way);
            sched_yield();
        }
        poll(epoll, events, limit.saturating_sub(awake.time + awake.stolen))?;
        let gap = began.elapsed().saturating_sub(awake.stolen);
        self.gaps.learn(Waited {
            gap,
            was_awake: false,
            in_vain: awake.time - awake.taken,
            taken: awake.taken,
            stolen: awake.stolen,
            is_queue,
        });
        Ok(())
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
    use rustix::time::{ClockId, clock_gettime};

    use super::super::gaps::AWAKE_MAX_TRIED;
    use super::*;

    #[test]
    fn events_are_found_awake_and_asleep() {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
        let ready = rustix::event::eventfd(1, rustix::event::EventfdFlags::CLOEXEC).unwrap();
        let mut events = Vec::with_capacity(4);
        let mut asleep = Vigil::default();
        asleep.wait(&epoll, &mut events, Duration::from_millis(1), 1).unwrap();
        assert!(events.is_empty());
        epoll::add(&epoll, &ready, epoll::EventData::new_u64(7), epoll::EventFlags::IN).unwrap();
        for mut vigil in [asleep, Vigil::new(Poll::Never), Vigil::new(Poll::Always), learnt(&epoll)] {
            vigil.wait(&epoll, &mut events, Duration::from_secs(10), 1).unwrap();
            assert_eq!(events.len(), 1);
            assert_eq!(events[0].data.u64(), 7);
        }
        let mut busy = learnt(&epoll);
        busy.wait(&epoll, &mut events, Duration::from_secs(10), SHALLOW_MAX + 1).unwrap();
        assert_eq!(
            (events.len(), busy.gaps.patience()),
            (1, Duration::ZERO),
            "a queue is not waited for awake"
        );
    }

    #[test]
    fn behind_a_queue_more_of_it_is_expected_for_some_turns() {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
        let mut events = Vec::with_capacity(4);
        let mut vigil = Vigil::default();
        assert!(vigil.is_shallow(SHALLOW_MAX) && !vigil.is_shallow(SHALLOW_MAX + 1));
        let mut turn =
            |vigil: &mut Vigil, pdus| vigil.wait(&epoll, &mut events, Duration::ZERO, pdus).unwrap();
        turn(&mut vigil, SHALLOW_MAX + 1);
        for _ in 0..TURNS_WITH_QUEUE {
            // A turn in which a disk was heard of says nothing.
            turn(&mut vigil, 0);
            assert!(!vigil.is_shallow(1));
            turn(&mut vigil, 1);
        }
        assert!(vigil.is_shallow(1));
    }

    #[test]
    fn who_waits_in_vain_soon_sleeps() {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
        let ready = rustix::event::eventfd(1, rustix::event::EventfdFlags::CLOEXEC).unwrap();
        epoll::add(&epoll, &ready, epoll::EventData::new_u64(7), epoll::EventFlags::IN).unwrap();
        let mut vigil = learnt(&epoll);
        epoll::delete(&epoll, &ready).unwrap();
        let mut events = Vec::with_capacity(4);
        let (began, busy) = (Instant::now(), clock_gettime(ClockId::ThreadCPUTime));
        vigil.wait(&epoll, &mut events, Duration::from_millis(200), 1).unwrap();
        let busy = clock_gettime(ClockId::ThreadCPUTime) - busy;
        assert!(events.is_empty() && began.elapsed() >= Duration::from_millis(200));
        assert!(Duration::try_from(busy).unwrap() < Duration::from_millis(20), "{busy:?}");
    }

    #[test]
    fn a_queue_is_waited_for_awake_where_that_has_paid() {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
        let mut events = Vec::with_capacity(4);
        let mut wait = || {
            let mut vigil = Vigil { trial: Trial::awake(), ..Vigil::default() };
            let (began, busy) = (Instant::now(), clock_gettime(ClockId::ThreadCPUTime));
            vigil.wait(&epoll, &mut events, Duration::from_millis(10), SHALLOW_MAX + 1).unwrap();
            assert!(began.elapsed() >= Duration::from_millis(10) && vigil.gaps.is_owing(), "{vigil:?}");
            Duration::try_from(clock_gettime(ClockId::ThreadCPUTime) - busy).unwrap()
        };
        // A host's stop may count as ours, but not each time.
        let busy = (0..5).map(|_| wait()).min().unwrap();
        assert!(busy < AWAKE_MAX_TRIED * 2, "{busy:?}");
        let mut never = Vigil { trial: Trial::awake(), ..Vigil::new(Poll::Never) };
        never.wait(&epoll, &mut events, Duration::from_millis(10), SHALLOW_MAX + 1).unwrap();
        assert!(!never.gaps.is_owing());
    }

    /// One that has learnt that events come at once, as they do from what is in `epoll`.
    fn learnt(epoll: &impl AsFd) -> Vigil {
        let (mut vigil, mut events) = (Vigil::default(), Vec::with_capacity(4));
        for _ in 0..1000 {
            vigil.wait(epoll, &mut events, Duration::from_secs(10), 1).unwrap();
            if vigil.gaps.patience() > Duration::ZERO {
                return vigil;
            }
        }
        panic!("it never learns: {vigil:?}");
    }
}
