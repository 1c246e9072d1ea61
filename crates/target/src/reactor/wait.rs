//! Waiting for events: asleep, or awake for a moment where that has lately paid.
//!
//! Waking a processor that fell idle takes longer than answering a command from the page cache. An initiator with one
//! command outstanding sends the next one a few tens of microseconds after its answer; who is still awake then saves
//! the waking. The price is processor time, so [`super::gaps`] learns whether the gaps are short enough, and how long to
//! wait; an idle reactor sleeps. Each time round the processor is offered to others, and whoever takes it ends the wait
//! awake. Where several commands come at a time, [`super::trial`] finds out which is better: awake, or asleep while they
//! gather.

use std::ffi::c_long;
use std::io;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use nix::sys::resource::{UsageWho, getrusage};
use rustix::buffer::spare_capacity;
use rustix::event::{Timespec, epoll};
use rustix::io::Errno;
use rustix::thread::sched_yield;

use super::gaps::{AWAKE_MAX, Gaps, OTHERS_RAN, Waited, others_ran};
use super::trial::Trial;
use crate::config::Poll;

/// More PDUs than this in one turn are a queue, not one command after the other.
const SHALLOW_MAX: usize = 2;

/// How a reactor waits.
#[derive(Debug, Default)]
pub(super) struct Vigil {
    gaps: Gaps,
    trial: Trial,
    rivals: Rivals,
    /// When the wait before this one began.
    began_last: Option<Instant>,
    poll: Poll,
}

impl Vigil {
    pub(super) fn new(poll: Poll) -> Self {
        Self { poll, ..Self::default() }
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
            self.gaps.forget();
            return poll(epoll, events, limit);
        }
        let patience = if is_queue { self.gaps.patience_for_a_queue() } else { self.gaps.patience() };
        let (mut awake, mut stolen, mut taken) = (Duration::ZERO, Duration::ZERO, Duration::ZERO);
        while awake < patience && taken.is_zero() {
            poll(epoll, events, Duration::ZERO)?;
            let took = began.elapsed() - awake - stolen;
            if !others_ran(took) {
                awake += took;
            } else if self.rivals.ran() {
                awake += took;
                taken = took;
            } else {
                awake += OTHERS_RAN;
                stolen += took - OTHERS_RAN;
            }
            if !events.is_empty() {
                // Where the event came soon, whoever had the processor may have been the initiator itself.
                let taken = if awake > AWAKE_MAX { taken } else { Duration::ZERO };
                self.gaps.learn(Waited { gap: awake, in_vain: Duration::ZERO, taken });
                return Ok(());
            }
            sched_yield();
        }
        poll(epoll, events, limit)?;
        self.gaps.learn(Waited { gap: began.elapsed() - stolen, in_vain: awake - taken, taken });
        Ok(())
    }
}

/// Whom else the scheduler gives this thread's processor to. The host of a virtual machine takes it, too, but for nobody here:
/// sleeping would give nothing to those who run beside us.
#[derive(Debug, Default)]
struct Rivals {
    /// How often this thread has had to give way, as it last looked.
    switches: c_long,
}

impl Rivals {
    /// Whether the thread that calls this had to give way since it called this last.
    fn ran(&mut self) -> bool {
        // It fails for no thread that exists.
        let switches =
            getrusage(UsageWho::RUSAGE_THREAD).map_or(0, |usage| usage.involuntary_context_switches());
        std::mem::replace(&mut self.switches, switches) != switches
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
    use std::sync::atomic::{AtomicBool, Ordering};

    use rustix::thread::{CpuSet, sched_getaffinity};
    use rustix::time::{ClockId, clock_gettime};

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
    fn a_program_on_the_same_processor_is_seen() {
        let allowed = sched_getaffinity(None).unwrap();
        let core = (0..CpuSet::MAX_CPU).find(|core| allowed.is_set(*core)).unwrap();
        let (is_over, began) = (AtomicBool::new(false), Instant::now());
        let stays = || super::super::stay_on(core);
        let seen = std::thread::scope(|scope| {
            scope.spawn(|| {
                stays();
                while !is_over.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
            let waits = scope.spawn(|| {
                stays();
                let mut rivals = Rivals::default();
                rivals.ran();
                while !rivals.ran() && began.elapsed() < Duration::from_secs(20) {
                    std::hint::spin_loop();
                }
                is_over.store(true, Ordering::Relaxed);
                began.elapsed() < Duration::from_secs(20)
            });
            waits.join().unwrap()
        });
        assert!(seen);
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
