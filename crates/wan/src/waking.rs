//! How long packets wait for the thread that takes them in, which they do not tell themselves: the device gives them no time.
//!
//! A thread that has something to do and no processor is known to the scheduler (`run_delay` in `schedstat` of proc(5)). One that
//! is stopped is not: it sees by the clock that it has slept for longer than it asked to.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::Duration;

/// The thread that reads it: nanoseconds on a processor, nanoseconds of waiting for one, and how often it got one.
const STATISTICS: &str = "/proc/thread-self/schedstat";

/// The longest sleep: whoever is stopped for longer is seen to be.
pub(crate) const SLEEP_MAX: Duration = Duration::from_millis(20);

/// Who has slept for so much longer than he asked to was kept from running; the scheduler's times say the rest.
const STOPPED_MIN: Duration = Duration::from_millis(1);

/// How often the scheduler is asked at most.
const ASK_AFTER: Duration = Duration::from_millis(5);

/// What the scheduler says of a thread.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Waited {
    /// How long it has waited for a processor.
    for_ns: u64,
    /// How often it got one.
    times: u64,
}

impl Waited {
    fn parse(text: &str) -> Option<Self> {
        let mut numbers = text.split_ascii_whitespace().skip(1).map(str::parse);
        Some(Self { for_ns: numbers.next()?.ok()?, times: numbers.next()?.ok()? })
    }

    fn read(file: &File) -> Option<Self> {
        // Three numbers of up to 20 digits.
        let mut text = [0; 64];
        let length = file.read_at(&mut text, 0).ok()?;
        Self::parse(str::from_utf8(text.get(..length)?).ok()?)
    }

    /// How long it took since then from having something to do to a processor, on average.
    fn since(self, before: Self) -> Duration {
        let times = self.times.saturating_sub(before.times).max(1);
        Duration::from_nanos(self.for_ns.saturating_sub(before.for_ns) / times)
    }
}

/// Packets that have waited, and how long each of them.
pub(crate) type Lateness = (u64, Duration);

/// What a thread knows of its own lateness.
#[derive(Debug)]
pub(crate) struct Waking {
    /// `None` where the kernel does not tell (it is built without CONFIG_SCHED_INFO).
    statistics: Option<File>,
    before: Waited,
    asked_at: Duration,
    /// Packets that were taken in since then.
    taken: u64,
}

impl Waking {
    /// Of the thread that calls this.
    pub(crate) fn new() -> Self {
        let statistics = File::open(STATISTICS).ok();
        let before = statistics.as_ref().and_then(Waited::read).unwrap_or_default();
        Self { statistics, before, asked_at: Duration::ZERO, taken: 0 }
    }

    /// So many packets were taken in after a sleep that was so much too long. `now` is any clock's time. Gives what is known of
    /// packets so far: of those behind a stop the longest that they can have waited, of others what the scheduler says of some
    /// milliseconds.
    pub(crate) fn take(&mut self, taken: u64, overslept: Duration, now: Duration) -> Option<Lateness> {
        if overslept >= STOPPED_MIN {
            return (taken > 0).then_some((taken, overslept));
        }
        self.taken += taken;
        if self.taken == 0 || now.saturating_sub(self.asked_at) < ASK_AFTER {
            return None;
        }
        self.asked_at = now;
        let waited = self.statistics.as_ref().and_then(Waited::read).unwrap_or(self.before);
        let lateness = waited.since(self.before);
        self.before = waited;
        Some((std::mem::take(&mut self.taken), lateness))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn what_the_scheduler_says_is_shared_by_those_that_were_woken_for() {
        let of = |text| Waited::parse(text);
        assert_eq!(of("1592712 0 2\n"), Some(Waited { for_ns: 0, times: 2 }));
        for wrong in ["", "1", "1 2", "1 2 x", "1 -2 3"] {
            assert_eq!(of(wrong), None, "{wrong}");
        }
        let (before, now) = (Waited { for_ns: 500, times: 7 }, Waited { for_ns: 4500, times: 9 });
        assert_eq!(now.since(before), Duration::from_nanos(2000));
        assert_eq!((before.since(before), before.since(now)), (Duration::ZERO, Duration::ZERO));
    }

    #[test]
    fn packets_behind_a_stop_are_late_and_others_wait_for_the_scheduler() {
        let mut waking = Waking { statistics: None, ..Waking::new() };
        assert_eq!(waking.take(3, MS / 2, MS), None, "it is asked later");
        assert_eq!(waking.take(2, 300 * MS, 302 * MS), Some((2, 300 * MS)));
        assert_eq!(waking.take(0, Duration::ZERO, 303 * MS), Some((3, Duration::ZERO)));
        assert_eq!(waking.take(0, 300 * MS, 700 * MS), None, "no packet has waited");
        assert_eq!(waking.take(1, Duration::ZERO, 307 * MS), None);
    }

    #[test]
    fn the_kernel_tells_of_this_thread() {
        let waking = Waking::new();
        let Some(file) = &waking.statistics else {
            return lunette_skip::record_lacking("the kernel does not tell how long threads wait");
        };
        std::thread::sleep(MS);
        let waited = Waited::read(file).expect("three numbers");
        assert!(waited.times > waking.before.times, "{waited:?}");
    }
}
