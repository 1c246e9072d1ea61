//! What was counted, and the object that is printed at the end.

use hdrhistogram::Histogram;
use serde::Serialize;

use crate::link;

/// Latencies beyond a minute count as a minute.
const LATENCY_MAX_NS: u64 = 60_000_000_000;

/// What one thread counts.
#[derive(Debug, Clone)]
pub(crate) struct Statistics {
    latency_ns: Histogram<u64>,
    pub(crate) operations: u64,
    pub(crate) bytes: u64,
    pub(crate) busy: u64,
    pub(crate) flushes: u64,
    window_min: u32,
    window_max: u32,
}

impl Statistics {
    pub(crate) fn new() -> Self {
        // The bounds are constants that the histogram takes.
        let latency_ns = Histogram::new_with_bounds(1, LATENCY_MAX_NS, 3).expect("valid bounds");
        Self { latency_ns, operations: 0, bytes: 0, busy: 0, flushes: 0, window_min: u32::MAX, window_max: 0 }
    }

    /// A read or write ended well.
    pub(crate) fn operation(&mut self, latency_ns: u64, bytes: u32) {
        self.operations += 1;
        self.bytes += u64::from(bytes);
        self.latency_ns.saturating_record(latency_ns);
    }

    /// Looks at how wide the command window is.
    pub(crate) fn window(&mut self, window: &link::Window) {
        let width = window.max_cmd_sn.next().since(window.exp_cmd_sn);
        self.window_min = self.window_min.min(width);
        self.window_max = self.window_max.max(width);
    }

    /// Adds what another thread counted.
    pub(crate) fn add(&mut self, other: &Self) {
        // Both have the same bounds.
        self.latency_ns.add(&other.latency_ns).expect("equal bounds");
        self.operations += other.operations;
        self.bytes += other.bytes;
        self.busy += other.busy;
        self.flushes += other.flushes;
        self.window_min = self.window_min.min(other.window_min);
        self.window_max = self.window_max.max(other.window_max);
    }

    fn latency(&self) -> Latency {
        let us = |ns: u64| ns as f64 / 1e3;
        let quantile = |quantile| us(self.latency_ns.value_at_quantile(quantile));
        Latency {
            min: us(self.latency_ns.min()),
            median: quantile(0.5),
            p90: quantile(0.9),
            p99: quantile(0.99),
            p999: quantile(0.999),
            max: us(self.latency_ns.max()),
            mean: self.latency_ns.mean() / 1e3,
        }
    }
}

/// What is told about the time that commands took, in microseconds.
#[derive(Debug, Serialize)]
struct Latency {
    min: f64,
    median: f64,
    p90: f64,
    p99: f64,
    p999: f64,
    max: f64,
    mean: f64,
}

#[derive(Debug, Serialize)]
struct PerSession {
    count: usize,
    slowest_operations_per_s: f64,
    mean_operations_per_s: f64,
    fastest_operations_per_s: f64,
}

/// Of durations in microseconds.
#[derive(Debug, Clone, Copy, Serialize)]
pub(crate) struct Times {
    pub(crate) median: f64,
    pub(crate) p99: f64,
    pub(crate) max: f64,
}

impl Times {
    pub(crate) fn of(samples_us: &[f64]) -> Self {
        Self {
            median: quantile(samples_us, 0.5),
            p99: quantile(samples_us, 0.99),
            max: quantile(samples_us, 1.0),
        }
    }
}

/// The smallest sample that this share of all samples does not exceed; zero without any.
pub(crate) fn quantile(samples: &[f64], share: f64) -> f64 {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    let rank = (share * sorted.len() as f64).ceil() as usize;
    sorted.get(rank.saturating_sub(1)).copied().unwrap_or_default()
}

#[derive(Debug, Serialize)]
struct Window {
    min: u32,
    max: u32,
}

/// The object that `load` prints.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    operations: u64,
    seconds: f64,
    operations_per_s: f64,
    bytes_per_s: f64,
    busy: u64,
    flushes: u64,
    latency_us: Latency,
    per_session: PerSession,
    login_us: Times,
    first_block_us: Times,
    window: Window,
    processor_s: f64,
    /// Sessions that the target closed instead of answering their logout.
    logouts_unanswered: u64,
}

/// What is measured beside the commands themselves.
#[derive(Debug)]
pub(crate) struct Frame<'a> {
    pub(crate) seconds: f64,
    pub(crate) processor_s: f64,
    /// Operations of each session.
    pub(crate) sessions: &'a [u64],
    pub(crate) login_us: &'a [f64],
    pub(crate) first_block_us: &'a [f64],
    pub(crate) logouts_unanswered: u64,
}

impl Report {
    pub(crate) fn new(statistics: &Statistics, frame: &Frame<'_>) -> Self {
        let rate = |count: u64| count as f64 / frame.seconds;
        let fewest = frame.sessions.iter().min().copied().unwrap_or_default();
        let most = frame.sessions.iter().max().copied().unwrap_or_default();
        Self {
            operations: statistics.operations,
            seconds: frame.seconds,
            operations_per_s: rate(statistics.operations),
            bytes_per_s: rate(statistics.bytes),
            busy: statistics.busy,
            flushes: statistics.flushes,
            latency_us: statistics.latency(),
            per_session: PerSession {
                count: frame.sessions.len(),
                slowest_operations_per_s: rate(fewest),
                mean_operations_per_s: rate(statistics.operations) / frame.sessions.len() as f64,
                fastest_operations_per_s: rate(most),
            },
            login_us: Times::of(frame.login_us),
            first_block_us: Times::of(frame.first_block_us),
            window: Window {
                min: statistics.window_min.min(statistics.window_max),
                max: statistics.window_max,
            },
            processor_s: frame.processor_s,
            logouts_unanswered: frame.logouts_unanswered,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lunette_wire::CmdSn;

    #[test]
    fn quantiles_are_samples() {
        let samples = [30.0, 10.0, 20.0, 40.0];
        let equal = |a: f64, b: f64| (a - b).abs() < 1e-9;
        assert!(equal(quantile(&samples, 0.5), 20.0));
        assert!(equal(quantile(&samples, 0.99), 40.0));
        assert!(equal(quantile(&samples, 0.0), 10.0));
        assert!(equal(quantile(&[], 0.5), 0.0));
    }

    #[test]
    fn a_target_that_refuses_everything_is_reported_in_numbers() {
        let mut refused = Statistics::new();
        refused.busy = 7;
        let frame = Frame {
            seconds: 1.0,
            processor_s: 0.5,
            sessions: &[0, 0],
            login_us: &[5.0],
            first_block_us: &[6.0],
            logouts_unanswered: 0,
        };
        let report = serde_json::to_value(Report::new(&refused, &frame)).unwrap();
        assert_eq!((report["busy"].as_u64(), report["operations"].as_u64()), (Some(7), Some(0)));
        for number in ["min", "median", "p99", "max", "mean"] {
            assert_eq!(report["latency_us"][number].as_f64(), Some(0.0), "{number}: {report}");
        }
        assert_eq!(report["per_session"]["mean_operations_per_s"].as_f64(), Some(0.0));
    }

    #[test]
    fn the_report_adds_up() {
        let (mut one, mut other) = (Statistics::new(), Statistics::new());
        for latency_us in 1..=100 {
            one.operation(latency_us * 1000, 4096);
        }
        other.operation(200_000, 8192);
        other.busy = 3;
        let number = |n| CmdSn(n);
        other.window(&link::Window {
            cmd_sn: number(5),
            exp_cmd_sn: number(0xffff_fffe),
            max_cmd_sn: number(1),
        });
        one.add(&other);
        let frame = Frame {
            seconds: 2.0,
            processor_s: 0.5,
            sessions: &[100, 1],
            login_us: &[5.0, 7.0, 6.0],
            first_block_us: &[1.0],
            logouts_unanswered: 2,
        };
        let report = serde_json::to_value(Report::new(&one, &frame)).unwrap();
        assert_eq!(report["operations"], 101);
        assert_eq!(report["operations_per_s"], 50.5);
        assert_eq!(report["bytes_per_s"], (100.0 * 4096.0 + 8192.0) / 2.0);
        assert_eq!(report["busy"], 3);
        assert_eq!(report["logouts_unanswered"], 2);
        assert_eq!(report["per_session"]["slowest_operations_per_s"], 0.5);
        assert_eq!(report["per_session"]["mean_operations_per_s"], 25.25);
        assert_eq!(report["login_us"]["median"], 6.0);
        assert_eq!(report["login_us"]["p99"], 7.0);
        assert_eq!(report["window"]["min"], 4);
        assert_eq!(report["window"]["max"], 4);
        let median = report["latency_us"]["median"].as_f64().unwrap();
        assert!((50.0..52.0).contains(&median), "{median}");
        assert!(report["latency_us"]["max"].as_f64().unwrap() >= 200.0);
    }
}
