//! Whether a volume's device has lately answered anybody who waits for it.
//!
//! What has become slow is noticed when it has ended ([`super::Pace`]); on a disk that hangs nothing ends. A copy into the page cache may
//! then wait as long as the disk does, for a journal or for a page that is being written back, and a reactor that makes it stops with
//! all of its sessions. So it is noted since when calls have been waiting, on whatever thread, and who must not wait asks before.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::store::coarse_ms;

/// After so many milliseconds without an answer a disk hangs, as far as a reactor is concerned. A busy one may need as long for a flush:
/// others make the copies then.
const HANG_MS: u64 = 100;

/// See the module's documentation. Times are of the coarse clock, in milliseconds; 0 stands for none.
#[derive(Debug, Default)]
pub(crate) struct Waits {
    /// When the flush began that is running.
    flush_since_ms: AtomicU64,
    /// When the last of the calls that others make had ended, or the first one begun, while there are any.
    calls_since_ms: AtomicU64,
    calls: Mutex<usize>,
}

impl Waits {
    /// Flushes; there is one at a time.
    pub(crate) fn flush<T>(&self, flush: impl FnOnce() -> T) -> T {
        self.flush_since_ms.store(coarse_ms(), Ordering::Relaxed);
        let flushed = flush();
        self.flush_since_ms.store(0, Ordering::Relaxed);
        flushed
    }

    /// Makes a call that may wait for the device.
    pub(super) fn call<T>(&self, call: impl FnOnce() -> T) -> T {
        self.count(|calls| *calls += 1, |calls| calls == 1);
        let called = call();
        self.count(|calls| *calls -= 1, |_| true);
        called
    }

    /// Any that ends shows that the device answers.
    fn count(&self, change: impl FnOnce(&mut usize), is_news: impl FnOnce(usize) -> bool) {
        let mut calls = self.calls.lock().unwrap_or_else(PoisonError::into_inner);
        change(&mut calls);
        if is_news(*calls) {
            let since_ms = if *calls == 0 { 0 } else { coarse_ms() };
            self.calls_since_ms.store(since_ms, Ordering::Relaxed);
        }
    }

    /// Nobody who waits has had an answer for long.
    pub(super) fn are_long(&self) -> bool {
        let flush_ms = self.flush_since_ms.load(Ordering::Relaxed);
        let calls_ms = self.calls_since_ms.load(Ordering::Relaxed);
        flush_ms | calls_ms != 0 && [flush_ms, calls_ms].into_iter().any(is_long_ago)
    }
}

fn is_long_ago(since_ms: u64) -> bool {
    since_ms != 0 && coarse_ms().saturating_sub(since_ms) > HANG_MS
}

#[cfg(test)]
mod tests {
    use std::thread;
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_flush_or_calls_without_an_end_are_long_and_calls_that_end_are_not() {
        const LONG: Duration = Duration::from_millis(HANG_MS + 50);
        let waits = Waits::default();
        assert!(!waits.are_long());
        waits.flush(|| {
            assert!(!waits.are_long());
            thread::sleep(LONG);
            assert!(waits.are_long());
        });
        assert!(!waits.are_long());
        waits.call(|| {
            thread::sleep(LONG);
            assert!(waits.are_long());
            waits.call(|| assert!(waits.are_long(), "another one begins"));
            assert!(!waits.are_long(), "and ends");
            thread::sleep(LONG);
            assert!(waits.are_long());
        });
        assert!(!waits.are_long());
    }
}
