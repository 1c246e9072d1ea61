//! When operations are to begin.
//!
//! In an open loop they begin at times that were fixed beforehand, whether earlier ones have ended or not, and latency counts from
//! there: a disk that stands still for a second is not asked less often for it (no coordinated omission).

use std::time::Duration;

use crate::WorkloadError;
use crate::random::{Purpose, Random};

/// When operations begin.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Arrivals {
    /// When another one has ended (closed loop).
    Closed,
    /// At equal distances; operations per second, 0.001 to 10,000,000.
    Even(f64),
    /// At random distances with this mean rate, independent of each other (a Poisson process).
    Poisson(f64),
}

/// So many random distances are drawn to count arrivals; it takes some hundredths of a second.
const DRAWN_MAX: u64 = 1 << 20;
const RATE_MIN: f64 = 0.001;
const RATE_MAX: f64 = 1e7;

impl Arrivals {
    /// A rate in operations per second.
    ///
    /// # Errors
    /// It is none, or not from 0.001 to 10,000,000.
    pub fn parse_rate(text: &str) -> Result<f64, WorkloadError> {
        let is_plain = text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
        let rate = text.parse::<f64>().ok().filter(|rate| is_plain && (RATE_MIN..=RATE_MAX).contains(rate));
        rate.ok_or_else(|| WorkloadError::Rate(text.to_owned()))
    }
}

/// The times of one worker's operations.
#[derive(Debug, Clone)]
pub struct Schedule {
    /// Of all workers.
    arrivals: Arrivals,
    worker: u32,
    workers: u32,
    random: Random,
    count: u64,
    /// When the last one was, in seconds.
    last_s: f64,
}

impl Schedule {
    /// The schedule of one of several workers, counted from 0, of operations that begin like that by all of them together. At equal
    /// distances they take turns.
    #[must_use]
    pub fn new(arrivals: Arrivals, seed: u64, worker: u32, workers: u32) -> Self {
        let random = Random::new(seed, worker, Purpose::Arrival);
        Self { arrivals, worker, workers: workers.max(1), random, count: 0, last_s: 0.0 }
    }

    /// When the next operation is to begin, from the start; `None` in a closed loop: as soon as there is room.
    pub fn next_arrival(&mut self) -> Option<Duration> {
        let at_s = match self.arrivals {
            Arrivals::Closed => return None,
            // Not a sum, which would add up its errors.
            Arrivals::Even(rate) => self.even_s(rate, self.count),
            // Independent processes are one of the sum of their rates.
            Arrivals::Poisson(rate) => {
                self.last_s - (1.0 - self.random.unit()).ln() / (rate / f64::from(self.workers))
            }
        };
        self.count += 1;
        self.last_s = at_s;
        Some(duration(at_s))
    }

    /// Goes on with the first one that is not to begin before this time, from the start.
    pub fn skip_before(&mut self, time: Duration) {
        match self.arrivals {
            Arrivals::Closed => {}
            Arrivals::Even(rate) => self.count = self.count.max(self.first_even_from(rate, time)),
            // What comes does not depend on what has come.
            Arrivals::Poisson(_) => self.last_s = self.last_s.max(time.as_secs_f64()),
        }
    }

    /// How many of the next ones are to begin before this time, from the start; 0 in a closed loop.
    ///
    /// At random distances more than 1,048,576 are an estimate: the others are as many as come in the rest of the time on average.
    #[must_use]
    pub fn count_before(mut self, time: Duration) -> u64 {
        match self.arrivals {
            Arrivals::Closed => 0,
            Arrivals::Even(rate) => self.first_even_from(rate, time).saturating_sub(self.count),
            Arrivals::Poisson(rate) => {
                let drawn = (0..DRAWN_MAX).take_while(|_| self.next_arrival() < Some(time)).count() as u64;
                if drawn < DRAWN_MAX {
                    return drawn;
                }
                let left_s = (time.as_secs_f64() - self.last_s).max(0.0);
                drawn + (left_s * rate / f64::from(self.workers)).round() as u64
            }
        }
    }

    /// Which one is the first, of those at equal distances, that does not begin before this time.
    fn first_even_from(&self, rate: f64, time: Duration) -> u64 {
        let is_before = |count| duration(self.even_s(rate, count)) < time;
        let of_all = time.as_secs_f64() * rate - f64::from(self.worker);
        // Rounding may make it one too many or too few.
        let about = (of_all / f64::from(self.workers)) as u64;
        let first = (about.saturating_sub(1)..=about.saturating_add(2)).find(|count| !is_before(*count));
        first.unwrap_or(about)
    }

    fn even_s(&self, rate: f64, count: u64) -> f64 {
        (count as f64 * f64::from(self.workers) + f64::from(self.worker)) / rate
    }
}

fn duration(s: f64) -> Duration {
    Duration::try_from_secs_f64(s).unwrap_or(Duration::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arrivals(arrivals: Arrivals, count: usize) -> Vec<Duration> {
        let mut schedule = Schedule::new(arrivals, 5, 0, 1);
        (0..count).map_while(|_| schedule.next_arrival()).collect()
    }

    #[test]
    fn a_closed_loop_has_no_schedule() {
        assert!(arrivals(Arrivals::Closed, 10).is_empty());
    }

    #[test]
    fn even_arrivals_do_not_drift() {
        let times = arrivals(Arrivals::Even(3.0), 3_000_001);
        assert_eq!(times[0], Duration::ZERO);
        assert_eq!(times[3_000_000], Duration::from_secs(1_000_000));
    }

    #[test]
    fn who_skips_goes_on_where_he_would_have_been() {
        let time = Duration::from_millis(2500);
        for worker in 0..3 {
            let mut all = Schedule::new(Arrivals::Even(10.0), 5, worker, 3);
            let mut skipping = all.clone();
            skipping.skip_before(time);
            let next = std::iter::from_fn(|| all.next_arrival()).find(|at| *at >= time);
            assert_eq!(skipping.next_arrival(), next);
            // Never back.
            skipping.skip_before(Duration::ZERO);
            assert_eq!(skipping.next_arrival(), all.next_arrival());
        }
        let mut random = Schedule::new(Arrivals::Poisson(1000.0), 5, 0, 1);
        random.skip_before(time);
        let (mut last, mut count) = (time, 0);
        while let Some(at) = random.next_arrival().filter(|at| *at < time * 2) {
            assert!(at > last);
            (last, count) = (at, count + 1);
        }
        assert!((2200..2800).contains(&count), "{count} in 2.5 s");
    }

    #[test]
    fn random_arrivals_are_exponential() {
        let count = 100_000;
        let times = arrivals(Arrivals::Poisson(1000.0), count);
        let mut before = Duration::ZERO;
        let mut distances: Vec<f64> = times
            .iter()
            .map(|time| {
                let distance = *time - before;
                before = *time;
                distance.as_secs_f64() * 1000.0
            })
            .collect();
        // Kolmogorov and Smirnov: the greatest distance of the two distributions; 1.95 / sqrt(n) is met once in a thousand.
        distances.sort_unstable_by(f64::total_cmp);
        let greatest = distances.iter().enumerate().map(|(at, distance)| {
            let expected = 1.0 - (-distance).exp();
            (expected - (at + 1) as f64 / count as f64).abs()
        });
        let greatest = greatest.fold(0.0, f64::max);
        assert!(greatest < 1.95 / (count as f64).sqrt(), "{greatest}");
    }

    #[test]
    fn what_comes_before_a_time_is_counted_without_all_of_it() {
        let schedule = |kind, worker, begun| {
            let mut schedule = Schedule::new(kind, 5, worker, 3);
            for _ in 0..begun {
                schedule.next_arrival();
            }
            schedule
        };
        let times = [0.0, 1e-9, 0.001, 0.3, 1.0, 1.7, 2.0].map(Duration::from_secs_f64);
        for kind in
            [Arrivals::Even(1000.0), Arrivals::Even(0.7), Arrivals::Even(12_345.6), Arrivals::Poisson(3000.0)]
        {
            for (worker, begun) in [(0, 0), (1, 0), (2, 7), (0, 100)] {
                for time in times {
                    let mut one_by_one = schedule(kind, worker, begun);
                    let expected =
                        std::iter::from_fn(|| one_by_one.next_arrival()).take_while(|at| *at < time).count();
                    let counted = schedule(kind, worker, begun).count_before(time);
                    assert_eq!(counted, expected as u64, "{kind:?}, {worker}, {begun}, {time:?}");
                }
            }
        }
        assert_eq!(schedule(Arrivals::Closed, 0, 0).count_before(Duration::MAX), 0);
        // Years of the highest rate.
        let years = Duration::from_secs(100_000_000);
        assert_eq!(schedule(Arrivals::Even(3e6), 0, 5).count_before(years), 100_000_000_000_000 - 5);
        let random = schedule(Arrivals::Poisson(3e6), 0, 0).count_before(years) as f64;
        assert!((random / 1e14 - 1.0).abs() < 1e-6, "{random}");
    }

    #[test]
    fn rates_are_read() {
        for (text, rate) in [("1000", 1000.0), ("0.5", 0.5), ("10000000", 1e7)] {
            assert!((Arrivals::parse_rate(text).unwrap() - rate).abs() < 1e-9);
        }
        for text in ["", "0", "-1", "inf", "nan", "1e3", "10000001", "."] {
            assert!(Arrivals::parse_rate(text).is_err(), "{text}");
        }
    }

    #[test]
    fn workers_share_a_rate_and_take_turns_at_equal_distances() {
        let mut times: Vec<Duration> = (0..4)
            .flat_map(|worker| {
                let mut schedule = Schedule::new(Arrivals::Even(1000.0), 5, worker, 4);
                (0..25).map_while(move |_| schedule.next_arrival()).collect::<Vec<_>>()
            })
            .collect();
        times.sort_unstable();
        let expected: Vec<Duration> = (0..100).map(Duration::from_millis).collect();
        assert_eq!(times, expected);

        let mut schedule = Schedule::new(Arrivals::Poisson(1000.0), 5, 3, 4);
        let last = (0..10_000).map_while(|_| schedule.next_arrival()).last().expect("a time");
        assert!((last.as_secs_f64() / 40.0 - 1.0).abs() < 0.05, "{last:?}: a quarter of the rate");
    }
}
