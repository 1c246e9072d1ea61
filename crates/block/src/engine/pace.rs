//! What a volume's recent calls took, and whether the submitting thread may make the next one itself.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// A reactor may wait this long for a disk while it has nothing else to do: several times what a solid-state disk
/// takes, and less than a tenth of the rotation of a spinning one.
const QUICK: Duration = Duration::from_millis(1);

/// An inline write into the page cache that took longer than this did not just copy.
const SLOW_WRITE: Duration = Duration::from_millis(2);

/// How long writes go to the pool after a slow one: half of the 200 ms for which the kernel pauses a writer at most
/// each time that too many pages are dirty.
const DETOUR: Duration = Duration::from_millis(100);

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
#[derive(Debug)]
pub(crate) struct Pace {
    created: Instant,
    detour_until_us: AtomicU64,
    /// Reads and writes that waited for the device.
    pub(crate) calls: Average,
}

impl Pace {
    pub(crate) fn new() -> Self {
        Self { created: Instant::now(), detour_until_us: AtomicU64::new(0), calls: Average::default() }
    }

    /// Microseconds since the volume was opened; 2^64 of them are half a million years.
    fn us(&self, now: Instant) -> u64 {
        now.duration_since(self.created).as_micros() as u64
    }

    pub(super) fn inline_allowed(&self, now: Instant) -> bool {
        self.us(now) >= self.detour_until_us.load(Ordering::Relaxed)
    }

    pub(super) fn note_copy(&self, began: Instant, ended: Instant) {
        if ended.duration_since(began) > SLOW_WRITE {
            self.detour_until_us.store(self.us(ended + DETOUR), Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slow_write_sends_the_next_ones_to_the_pool_for_a_while() {
        let pace = Pace::new();
        let start = Instant::now();
        assert!(pace.inline_allowed(start));
        pace.note_copy(start, start + Duration::from_micros(1900));
        assert!(pace.inline_allowed(start + Duration::from_millis(2)));
        let ended = start + Duration::from_millis(3);
        pace.note_copy(start, ended);
        assert!(!pace.inline_allowed(ended + Duration::from_millis(99)));
        assert!(pace.inline_allowed(ended + Duration::from_millis(101)));
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
