//! What others can bring about as often as they like is logged now and then: a flood must not become one of log lines.

use std::time::{Duration, Instant};

/// How often one thing is logged at most, with its number.
const LOG_INTERVAL: Duration = Duration::from_secs(1);

/// Counts what would be logged too often.
#[derive(Debug, Default)]
pub(crate) struct Seldom {
    told_at: Option<Instant>,
    untold: u64,
}

impl Seldom {
    /// Once more; the number of times that are to be told now, if it is time to tell.
    pub(crate) fn note(&mut self, now: Instant) -> Option<u64> {
        self.untold += 1;
        let is_time = self.told_at.is_none_or(|at| now.saturating_duration_since(at) >= LOG_INTERVAL);
        is_time.then(|| {
            self.told_at = Some(now);
            std::mem::take(&mut self.untold)
        })
    }
}

/// Lines that differ, each of which counts: some at once, and then one in each interval.
#[derive(Debug)]
pub(crate) struct Ration {
    interval: Duration,
    at_once: u32,
    /// When all that was told stops counting, if each line counts for one interval and one after the other.
    spent_until: Option<Instant>,
    untold: u64,
}

impl Default for Ration {
    /// 60 lines at once, and one a second.
    fn default() -> Self {
        Self { interval: LOG_INTERVAL, at_once: 60, spent_until: None, untold: 0 }
    }
}

impl Ration {
    /// Ten times as much as is usual, for lines that have had to pass another ration.
    pub(crate) const fn large() -> Self {
        Self { interval: Duration::from_millis(100), at_once: 600, spent_until: None, untold: 0 }
    }

    /// One more line; the number of those before it that were not told, if this one may be.
    pub(crate) fn take(&mut self, now: Instant) -> Option<u64> {
        self.take_after(now, 0)
    }

    /// As [`Self::take`], where so many before it were left out by another ration.
    pub(crate) fn take_after(&mut self, now: Instant, left_out: u64) -> Option<u64> {
        let until = self.spent_until.unwrap_or(now).max(now) + self.interval;
        if until.saturating_duration_since(now) > self.interval * self.at_once {
            self.untold += left_out + 1;
            return None;
        }
        self.spent_until = Some(until);
        Some(std::mem::take(&mut self.untold) + left_out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_is_told_now_and_then_with_its_number() {
        let mut seldom = Seldom::default();
        let start = Instant::now();
        assert_eq!(seldom.note(start), Some(1));
        assert!((1..10).all(|tenth| seldom.note(start + LOG_INTERVAL * tenth / 10).is_none()));
        assert_eq!(seldom.note(start + LOG_INTERVAL), Some(10));
    }

    #[test]
    fn lines_that_differ_are_told_until_there_are_too_many() {
        for new in [Ration::default, Ration::large] {
            let mut ration = new();
            let (start, interval, at_once) = (Instant::now(), ration.interval, ration.at_once);
            assert!((0..at_once).all(|_| ration.take(start) == Some(0)));
            assert_eq!((ration.take(start), ration.take_after(start, 4)), (None, None));
            assert_eq!(ration.take_after(start + interval, 2), Some(8));
            assert_eq!(ration.take(start + interval), None);
            assert!((0..at_once).all(|_| ration.take(start + interval * (at_once + 1)).is_some()));
        }
    }
}
