//! How long operations took, those among them of which nobody knows the end.

use hdrhistogram::Histogram;
use serde::Serialize;

use crate::bench::recorder::{Counted, SIGNIFICANT_DIGITS};

/// Latencies, counted from the intended beginning; in microseconds.
///
/// In an open loop they are of all operations that were to begin in the measured time. One that was given up before it ended, or before it
/// began, counts with what it had taken by then. It would have taken longer, so figures that reach so far are lower bounds, and
/// `at_least` names them.
#[derive(Debug, Serialize)]
pub struct Latency {
    /// How many ended.
    pub operations: u64,
    /// What they moved.
    pub bytes: u64,
    /// How many others of an open loop were given up.
    pub given_up: u64,
    /// The figures from `min` to `max` that are lower bounds, by their names here.
    pub at_least: Vec<&'static str>,
    /// The shortest.
    pub min: f64,
    /// The mean.
    pub mean: f64,
    /// The standard deviation of those that ended.
    pub standard_deviation: f64,
    /// The median.
    pub p50: f64,
    /// Nine of ten took no longer.
    pub p90: f64,
    /// 95 of a hundred.
    pub p95: f64,
    /// 99 of a hundred.
    pub p99: f64,
    /// 999 of a thousand.
    pub p999: f64,
    /// 9,999 of ten thousand.
    pub p9999: f64,
    /// The longest.
    pub max: f64,
    /// Decimal digits of the histograms' values.
    pub significant_digits: u8,
    /// The raw histogram of those that ended: nanoseconds, and how many operations took so long.
    pub histogram_ns: Vec<(u64, u64)>,
    /// The raw histogram of those that were given up: nanoseconds, and how many had taken so long by then.
    pub given_up_ns: Vec<(u64, u64)>,
}

impl Latency {
    /// Nothing if there were none.
    pub(crate) fn of(counted: &Counted) -> Option<Self> {
        let (ended, given_up) = (&counted.latency_ns, &counted.given_up_ns);
        let mut all = ended.clone();
        // Both have the same bounds.
        all.add(given_up).expect("equal bounds");
        if all.is_empty() {
            return None;
        }
        // What is shorter than all that was given up is known.
        let known_until_ns = if given_up.is_empty() { u64::MAX } else { given_up.min() };
        let mut at_least = Vec::new();
        let mut figure = |name, ns: u64| {
            let is_known = ns < known_until_ns;
            if !is_known {
                at_least.push(name);
            }
            // A value stands for some beside it, of which a bound is the least.
            (if is_known { ns } else { all.lowest_equivalent(ns) }) as f64 / 1e3
        };
        let quantile = |share| all.value_at_quantile(share);
        let (min, p50) = (figure("min", all.min()), figure("p50", quantile(0.5)));
        let (p90, p95) = (figure("p90", quantile(0.9)), figure("p95", quantile(0.95)));
        let (p99, p999) = (figure("p99", quantile(0.99)), figure("p999", quantile(0.999)));
        let (p9999, max) = (figure("p9999", quantile(0.9999)), figure("max", all.max()));
        if !given_up.is_empty() {
            at_least.push("mean");
        }
        Some(Self {
            operations: ended.len(),
            bytes: counted.bytes,
            given_up: given_up.len(),
            at_least,
            min,
            mean: all.mean() / 1e3,
            standard_deviation: ended.stdev() / 1e3,
            p50,
            p90,
            p95,
            p99,
            p999,
            p9999,
            max,
            significant_digits: SIGNIFICANT_DIGITS,
            histogram_ns: rows(ended),
            given_up_ns: rows(given_up),
        })
    }
}

fn rows(histogram: &Histogram<u64>) -> Vec<(u64, u64)> {
    histogram.iter_recorded().map(|row| (row.value_iterated_to(), row.count_at_value())).collect()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use lunette_workload::Kind;

    use super::*;
    use crate::bench::recorder::Recorder;
    use crate::endpoint::Moments;

    /// What took so many milliseconds, and what was given up after so many.
    fn latency(ended_ms: &[u64], given_up_ms: &[(u64, u64)]) -> Option<Latency> {
        let ms = Duration::from_millis;
        let mut recorder = Recorder::new(ms(1000));
        for took in ended_ms {
            let moments = Moments { done: ms(*took), ..Moments::default() };
            recorder.record(Kind::Read, 512, ms(0), &moments, ms(*took));
        }
        for (took, count) in given_up_ms {
            recorder.give_up(Kind::Read, ms(*took), *count);
        }
        Latency::of(&recorder.read)
    }

    #[test]
    fn who_was_given_up_is_of_the_percentiles() {
        let fast = [1; 90];
        let all_known = latency(&fast, &[]).expect("a latency");
        assert_eq!((all_known.at_least, all_known.given_up), (vec![], 0));
        // Of 1000 arrivals 900 were given up after one to two seconds.
        let told = latency(&[1; 100], &[(1000, 450), (2000, 450)]).expect("a latency");
        let ms = [told.min, told.p50, told.p90, told.max].map(|us| (us / 1e3).round());
        assert_eq!(ms, [1.0, 1000.0, 2000.0, 2000.0]);
        assert_eq!(told.at_least, ["p50", "p90", "p95", "p99", "p999", "p9999", "max", "mean"]);
        assert!((told.mean / 1350.1e3 - 1.0).abs() < 0.001, "{}", told.mean);
        assert!([told.p50, told.p90].iter().zip([1e6, 2e6]).all(|(us, most)| *us <= most), "{told:?}");
        // The raw histograms stay apart.
        assert_eq!((told.operations, told.given_up), (100, 900));
        let counts = |rows: &[(u64, u64)]| rows.iter().map(|(_, count)| *count).collect::<Vec<_>>();
        assert_eq!((counts(&told.histogram_ns), counts(&told.given_up_ns)), (vec![100], vec![450, 450]));
        // Some took longer than others had waited when they were given up: these may have taken as long.
        let told = latency(&[5000; 60], &[(1000, 40)]).expect("a latency");
        assert_eq!((told.at_least[0], (told.p50 / 1e3).round()), ("min", 5000.0));
    }

    #[test]
    fn where_none_ended_all_is_bounds() {
        let told = latency(&[], &[(1000, 7)]).expect("a latency");
        assert_eq!((told.operations, told.given_up, told.at_least.len()), (0, 7, 9));
        assert!(latency(&[], &[]).is_none());
    }
}
