//! For how long something is not tried that has not paid: each time for twice as long, if it is soon after the last.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// The first pause, and how soon after a pause the next one has to begin to be twice as long, beside the pause itself.
pub(crate) const PAUSE_MS_MIN: u32 = 1000;

/// What was of no use may be so now, which nobody tells: it has to be tried.
pub(crate) const PAUSE_MS_MAX: u32 = 16_000;

/// Times are of any one clock, in milliseconds. Threads that change it at once may each undo what the other noted: it is noted again.
#[derive(Debug, Default)]
pub(crate) struct Pauses {
    until_ms: AtomicU64,
    /// The latest one.
    length_ms: AtomicU32,
}

impl Pauses {
    /// Whether there has never been one.
    pub(crate) fn are_none(&self) -> bool {
        self.until_ms() == 0
    }

    pub(crate) fn are_over(&self, now_ms: u64) -> bool {
        now_ms >= self.until_ms()
    }

    /// Begins one; answers when it ends.
    pub(crate) fn begin(&self, now_ms: u64) -> u64 {
        let last_ms = self.length_ms.load(Ordering::Relaxed);
        let is_close = now_ms < self.until_ms() + u64::from(PAUSE_MS_MIN + last_ms);
        let length_ms = if is_close { (2 * last_ms).clamp(PAUSE_MS_MIN, PAUSE_MS_MAX) } else { PAUSE_MS_MIN };
        self.length_ms.store(length_ms, Ordering::Relaxed);
        let until_ms = now_ms + u64::from(length_ms);
        self.until_ms.store(until_ms, Ordering::Relaxed);
        until_ms
    }

    /// When the latest one ends; zero if there has been none.
    pub(crate) fn until_ms(&self) -> u64 {
        self.until_ms.load(Ordering::Relaxed)
    }
}
