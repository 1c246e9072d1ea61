//! Whether a volume's long reads are to be sent from the page cache without a copy.
//!
//! The page cache says that it has a page from the moment on that it begins to read it. So whoever reads a cold disk from one end to
//! the other finds that the kernel's read-ahead has just begun with what he wants, and his thread, on which others depend, waits in
//! `sendfile` for the disk. To ask about each page costs a tenth of the sending. So it is noticed when the thread has slept, and the
//! reads are left to the engine, which waits elsewhere, for some time.

use std::sync::LazyLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::pauses::Pauses;
use crate::usage;

/// No system call takes so long that only copies, but one may that was interrupted: then the next ones are watched.
const SUSPICIOUS: Duration = Duration::from_millis(1);

/// How long sends are watched after a suspicious one.
const WATCH_MS: u64 = 1000;

/// See the module's documentation. Threads that change it at once may each undo what the other noted: it is noted again.
#[derive(Debug, Default)]
pub(crate) struct Uncopied {
    /// The data could not be brought once; see [`crate::SendError::Store`].
    has_failed: AtomicBool,
    /// Their clock is that of [`epoch`].
    pauses: Pauses,
    /// Milliseconds since [`epoch`].
    watched_until_ms: AtomicU64,
}

fn epoch() -> Instant {
    static EPOCH: LazyLock<Instant> = LazyLock::new(Instant::now);
    *EPOCH
}

/// How a send went, as far as it was looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Send {
    took: Duration,
    /// How often its thread slept, if that was looked at.
    sleeps: Option<i64>,
}

impl Uncopied {
    /// Whether the next read may be sent so.
    pub(crate) fn is_allowed(&self) -> bool {
        !self.has_failed.load(Ordering::Relaxed)
            && (self.pauses.are_none() || self.pauses.are_over(milliseconds(epoch().elapsed())))
    }

    /// Not until the volume has another size. Answers whether that is news.
    pub(crate) fn fail(&self) -> bool {
        !self.has_failed.swap(true, Ordering::Relaxed)
    }

    /// The volume has another size: what had failed may have been cut, and is there again, or is not asked for any more.
    pub(crate) fn begin_anew(&self) {
        self.has_failed.store(false, Ordering::Relaxed);
    }

    /// Sends, and notes whether that made the thread wait.
    pub(crate) fn watch<T>(&self, send: impl FnOnce() -> T) -> T {
        let began = Instant::now();
        let since_epoch = began.saturating_duration_since(epoch());
        let is_watched = milliseconds(since_epoch) < self.watched_until_ms.load(Ordering::Relaxed);
        let slept_before = is_watched.then(sleeps);
        let sent = send();
        let slept = slept_before.map(|before| sleeps() - before);
        self.note(milliseconds(since_epoch), Send { took: began.elapsed(), sleeps: slept });
        sent
    }

    fn note(&self, now_ms: u64, send: Send) {
        if send.took < SUSPICIOUS {
            return;
        }
        match send.sleeps {
            None => self.watched_until_ms.store(now_ms + WATCH_MS, Ordering::Relaxed),
            Some(0) => {}
            Some(_) => {
                // What comes next is suspicious from its beginning.
                self.watched_until_ms.store(self.pauses.begin(now_ms) + WATCH_MS, Ordering::Relaxed);
            }
        }
    }
}

fn milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// How often this thread has given up its processor to wait for something, and not because others wanted it.
fn sleeps() -> i64 {
    usage::of_this_thread().map_or(0, |usage| usage.ru_nvcsw)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LATE: Duration = Duration::from_millis(5);

    fn late(sleeps: Option<i64>) -> Send {
        Send { took: LATE, sleeps }
    }

    fn pause(uncopied: &Uncopied) -> u64 {
        uncopied.pauses.until_ms()
    }

    #[test]
    fn a_send_that_was_interrupted_has_the_next_ones_watched_and_nothing_more() {
        let uncopied = Uncopied::default();
        uncopied.note(10_000, late(None));
        assert_eq!((pause(&uncopied), uncopied.watched_until_ms.load(Ordering::Relaxed)), (0, 11_000));
        uncopied.note(10_100, late(Some(0)));
        uncopied.note(10_200, Send { took: Duration::from_micros(900), sleeps: Some(3) });
        assert_eq!(pause(&uncopied), 0);
        assert!(uncopied.is_allowed());
    }

    #[test]
    fn pauses_double_while_the_disk_is_cold_and_begin_anew_later() {
        let uncopied = Uncopied::default();
        let mut now_ms = 10_000;
        for expected_ms in [1000, 2000, 4000, 8000, 16_000, 16_000] {
            uncopied.note(now_ms, late(Some(1)));
            assert_eq!(pause(&uncopied), now_ms + expected_ms);
            assert!(uncopied.watched_until_ms.load(Ordering::Relaxed) > pause(&uncopied));
            now_ms = pause(&uncopied) + 100;
        }
        now_ms += 60_000;
        uncopied.note(now_ms, late(Some(1)));
        assert_eq!(pause(&uncopied), now_ms + 1000);
    }

    #[test]
    fn a_thread_that_sleeps_is_noticed_once_it_is_watched() {
        let uncopied = Uncopied::default();
        assert!(uncopied.is_allowed());
        // A thread that is off the processor for long is no longer watched.
        for _ in 0..3 {
            (0..2).for_each(|_| uncopied.watch(|| std::thread::sleep(LATE)));
            if pause(&uncopied) != 0 {
                break;
            }
        }
        assert!(pause(&uncopied) != 0);
        uncopied.pauses.begin(milliseconds(epoch().elapsed()) + 60_000);
        assert!(!uncopied.is_allowed());
        let other = Uncopied::default();
        assert!(other.fail() && !other.fail() && !other.is_allowed());
        other.begin_anew();
        assert!(other.is_allowed());
    }
}
