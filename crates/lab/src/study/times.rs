//! How long single operations took, beside the figure of a cell, and where their time went.

use serde::{Deserialize, Serialize};

use super::statistics::{deviation, mean, median};
use crate::{Latency, Stage, ToldApart};

/// How long single operations took, or logins, in milliseconds. What is not known is missing.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Times {
    /// How many.
    pub of: Option<u64>,
    /// The shortest.
    pub min: Option<f64>,
    /// The median.
    pub p50: Option<f64>,
    /// The mean.
    pub mean: Option<f64>,
    /// Nine of ten took no longer.
    pub p90: Option<f64>,
    /// 99 of a hundred.
    pub p99: Option<f64>,
    /// 999 of a thousand.
    pub p999: Option<f64>,
    /// The longest.
    pub max: Option<f64>,
    /// The standard deviation.
    pub standard_deviation: Option<f64>,
}

impl Times {
    pub(crate) fn of(latency: &Latency) -> Self {
        let ms = |us: f64| Some(us / 1e3);
        Self {
            of: Some(latency.operations),
            min: ms(latency.min),
            p50: ms(latency.p50),
            mean: ms(latency.mean),
            p90: ms(latency.p90),
            p99: ms(latency.p99),
            p999: ms(latency.p999),
            max: ms(latency.max),
            standard_deviation: ms(latency.standard_deviation),
        }
    }

    /// Of a few times, of which there are no percentiles.
    pub(crate) fn of_few(times: &[f64]) -> Self {
        if times.is_empty() {
            return Self::default();
        }
        Self {
            of: Some(times.len() as u64),
            min: times.iter().copied().reduce(f64::min),
            p50: median(times.to_vec()),
            mean: Some(mean(times)),
            max: times.iter().copied().reduce(f64::max),
            standard_deviation: Some(deviation(times)),
            ..Self::default()
        }
    }

    /// With their names, in the order of their size as a rule.
    pub(crate) const fn named(&self) -> [(&'static str, Option<f64>); 8] {
        [
            ("min", self.min),
            ("50 %", self.p50),
            ("mean", self.mean),
            ("90 %", self.p90),
            ("99 %", self.p99),
            ("99.9 %", self.p999),
            ("max", self.max),
            ("deviation", self.standard_deviation),
        ]
    }
}

/// The mean parts of a latency in milliseconds, as `lunette bench --target-times` tells them apart.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct LatencyParts {
    /// Until the command left.
    pub command_window: f64,
    /// The way there and back.
    pub network: f64,
    /// Until the data was there that R2Ts had asked for.
    pub r2t_wait: f64,
    /// At the target besides.
    pub target_queue: f64,
    /// In the store.
    pub store: f64,
    /// From the answer's first byte to its last.
    pub reply: f64,
    /// All of them together.
    #[serde(default)]
    pub whole: f64,
    /// How many operations these are the means of: those that both sides have written down.
    #[serde(default)]
    pub operations: u64,
    /// Of how many that were measured.
    #[serde(default)]
    pub of: u64,
}

impl LatencyParts {
    pub(crate) fn of(told: &ToldApart) -> Self {
        let ms = |stage: &Stage| stage.mean / 1e3;
        Self {
            command_window: ms(&told.command_window),
            network: ms(&told.network),
            r2t_wait: ms(&told.r2t_wait),
            target_queue: ms(&told.target_queue),
            store: ms(&told.store),
            reply: ms(&told.reply),
            whole: ms(&told.whole),
            operations: told.operations,
            of: told.of,
        }
    }

    /// With their names, in the order of time.
    pub(crate) const fn named(&self) -> [(&'static str, f64); 6] {
        [
            ("command window", self.command_window),
            ("network", self.network),
            ("R2T wait", self.r2t_wait),
            ("target queue", self.target_queue),
            ("store", self.store),
            ("reply", self.reply),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_few_times_have_a_mean_and_no_percentiles() {
        let times = Times::of_few(&[1.0, 2.0, 6.0]);
        assert_eq!((times.of, times.min, times.p50, times.mean), (Some(3), Some(1.0), Some(2.0), Some(3.0)));
        let deviation = times.standard_deviation.expect("a deviation");
        assert!((deviation - (14.0_f64 / 3.0).sqrt()).abs() < 1e-9 && times.p99.is_none(), "{times:?}");
        assert_eq!(Times::of_few(&[]), Times::default());
    }
}
