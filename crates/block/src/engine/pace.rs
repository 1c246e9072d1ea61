//! What a volume's recent calls took, and whether the submitting thread may make the next one itself.

use std::sync::LazyLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_getres};

use crate::store::coarse_ms;

/// A reactor may wait this long for a disk while it has nothing else to do: several times what a solid-state disk
/// takes, and less than a tenth of the rotation of a spinning one.
const QUICK: Duration = Duration::from_millis(1);

/// An inline write into the page cache that took longer than this did not just copy.
const SLOW_WRITE: Duration = Duration::from_millis(2);

/// For so many milliseconds writes go to the pool after a slow one: half of the 200 ms for which the kernel pauses a writer at most
/// each time that too many pages are dirty.
const DETOUR_MS: u64 = 100;

/// A moving average of durations, in which each new one counts a quarter. Updates that race lose one of them, which
/// an average bears.
#[derive(Debug, Default)]
pub(crate) struct Average {
    /// 0 while nothing is known.
    ns: AtomicU64,
}

impl Average {
    pub(crate) fn note(&self, took: Duration) {
        // 2^64 nanoseconds are centuries.
        let took = took.as_nanos() as u64;
        let average = match self.ns.load(Ordering::Relaxed) {
            0 => took,
            before => before - before / 4 + took / 4,
        };
        self.ns.store(average.max(1), Ordering::Relaxed);
    }

    /// Whether the next one is known to be short enough for a reactor to wait for.
    pub(crate) fn is_quick(&self) -> bool {
        let ns = self.ns.load(Ordering::Relaxed);
        ns != 0 && u128::from(ns) <= QUICK.as_nanos()
    }
}

/// Decides whether a volume's writes into the page cache may be done inline, and remembers what waiting for its device
/// takes.
///
/// Once the share of dirty pages passes `vm.dirty_ratio`, the kernel lets writers sleep until the disk has caught
/// up. A reactor that sleeps holds up every session on its core, so the pool's threads do the sleeping for a while.
///
/// Its clock is the coarse one, which costs a fraction of the other and moves every one to ten milliseconds. Where it has moved over a
/// copy, the next one is timed exactly: who is made to sleep is so more than once.
#[derive(Debug)]
pub(crate) struct Pace {
    detour_until_ms: AtomicU64,
    /// The clock has moved over the last copy.
    is_suspect: AtomicBool,
    /// Reads and writes that waited for the device.
    pub(crate) calls: Average,
}

impl Pace {
    pub(crate) fn new() -> Self {
        Self {
            detour_until_ms: AtomicU64::new(0),
            is_suspect: AtomicBool::new(false),
            calls: Average::default(),
        }
    }

    pub(super) fn inline_allowed(&self) -> bool {
        // Most volumes have never been slow.
        let until_ms = self.detour_until_ms.load(Ordering::Relaxed);
        until_ms == 0 || coarse_ms() >= until_ms
    }

    /// Copies, and notes whether that took too long.
    pub(super) fn watch_copy<T>(&self, copy: impl FnOnce() -> T) -> T {
        let began = self.is_suspect.load(Ordering::Relaxed).then(Instant::now);
        let began_ms = coarse_ms();
        let copied = copy();
        let ended_ms = coarse_ms();
        if let Some(began) = began {
            self.is_suspect.store(false, Ordering::Relaxed);
            self.note_copy(ended_ms, began.elapsed());
        } else if ended_ms != began_ms {
            self.is_suspect.store(true, Ordering::Relaxed);
            // As long at least.
            self.note_copy(ended_ms, Duration::from_millis((ended_ms - began_ms).saturating_sub(tick_ms())));
        }
        copied
    }

    fn note_copy(&self, ended_ms: u64, took: Duration) {
        if took > SLOW_WRITE {
            self.detour_until_ms.store(ended_ms + DETOUR_MS, Ordering::Relaxed);
        }
    }
}

/// By so much the coarse clock moves at a time, in whole milliseconds.
fn tick_ms() -> u64 {
    static TICK_MS: LazyLock<u64> = LazyLock::new(|| {
        let tick = clock_getres(ClockId::MonotonicCoarse);
        tick.tv_sec.unsigned_abs() * 1000 + tick.tv_nsec.unsigned_abs().div_ceil(1_000_000)
    });
    *TICK_MS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slow_write_sends_the_next_ones_to_the_pool_for_a_while() {
        let pace = Pace::new();
        assert!(pace.inline_allowed());
        pace.watch_copy(|| {});
        assert!(pace.inline_allowed());
        // On a virtual machine whose host has other work the coarse clock stands still for more than a tick.
        let until_it_has_moved_by = |ms| {
            let began_ms = coarse_ms();
            while coarse_ms() < began_ms + ms {
                std::thread::sleep(Duration::from_millis(1));
            }
        };
        let takes_a_detour = |pace: &Pace| pace.detour_until_ms.load(Ordering::Relaxed) != 0;
        pace.watch_copy(|| until_it_has_moved_by(2 * tick_ms() + 3));
        assert!(takes_a_detour(&pace), "that was more than two milliseconds by any clock");
        let pace = Pace::new();
        // That may have been a tick and no time at all; the next one is known to be long.
        pace.watch_copy(|| until_it_has_moved_by(1));
        pace.watch_copy(|| std::thread::sleep(Duration::from_millis(3)));
        assert!(takes_a_detour(&pace));
        until_it_has_moved_by(DETOUR_MS + tick_ms());
        assert!(pace.inline_allowed());
    }

    #[test]
    fn one_slow_call_is_remembered_for_a_while() {
        let average = Average::default();
        assert!(!average.is_quick(), "nothing is known yet");
        average.note(Duration::from_micros(200));
        assert!(average.is_quick());
        average.note(Duration::from_millis(30));
        assert!(!average.is_quick());
        (0..6).for_each(|_| average.note(Duration::from_micros(200)));
        assert!(!average.is_quick());
        (0..6).for_each(|_| average.note(Duration::from_micros(200)));
        assert!(average.is_quick(), "and forgotten again");
    }
}
