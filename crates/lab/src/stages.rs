//! Where the time of operations went: what this side sees by itself, and what the target's times tell apart.

use std::time::Duration;

use hdrhistogram::Histogram;
use serde::Serialize;

use crate::bench::recorder;
use crate::bench::split::{Split, Sum};

/// One part of the latency, in microseconds.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Stage {
    /// Of all operations that had it.
    pub mean: f64,
    /// The median.
    pub p50: f64,
    /// The 99th percentile.
    pub p99: f64,
    /// The largest.
    pub max: f64,
}

impl Stage {
    fn of(histogram: &Histogram<u64>) -> Option<Self> {
        let us = |ns: u64| ns as f64 / 1e3;
        (!histogram.is_empty()).then(|| Self {
            mean: histogram.mean() / 1e3,
            p50: us(histogram.value_at_quantile(0.5)),
            p99: us(histogram.value_at_quantile(0.99)),
            max: us(histogram.max()),
        })
    }

    /// With a mean that has not gone through a histogram, so that means add up as the parts do.
    fn exact(sum: &Sum) -> Option<Self> {
        let us = |time: Duration| time.as_secs_f64() * 1e6;
        Self::of(&sum.ns).map(|stage| Self { mean: us(sum.sum) / sum.ns.len() as f64, ..stage })
    }
}

/// Where operations spent their time.
#[derive(Debug, Serialize)]
pub struct Stages {
    /// From the intended time until the operation was begun, of those in an open loop that were late.
    pub schedule: Option<Stage>,
    /// Until its first byte left: the command window, and what was queued before it on this side.
    pub command_window: Option<Stage>,
    /// Until the first byte of the answer: what [`Self::not_told_apart`] lists.
    pub network_and_target: Option<Stage>,
    /// Until the answer was complete.
    pub reply: Option<Stage>,
    /// Parts of `network_and_target` that only the target could tell from each other, where it did not.
    pub not_told_apart: Vec<&'static str>,
    /// The same with the target's times of its tasks, where there are some.
    pub told_apart: Option<ToldApart>,
}

/// Parts of the operations of which the target's times are known. The means of the parts add up to that of the whole.
#[derive(Debug, Serialize)]
pub struct ToldApart {
    /// How many those are.
    pub operations: u64,
    /// Of how many.
    pub of: u64,
    /// Until its first byte left: the command window, and what was queued before it on this side.
    pub command_window: Stage,
    /// The way there and back, and what both systems did on it.
    pub network: Stage,
    /// From when the target was ready for its data until the data was there, of writes that need R2Ts: a round trip at least.
    pub r2t_wait: Stage,
    /// At the target, and neither waiting for data nor in the store.
    pub target_queue: Stage,
    /// In the store.
    pub store: Stage,
    /// From the first byte of the answer until it was complete.
    pub reply: Stage,
    /// From when it was begun until it was complete.
    pub whole: Stage,
}

impl Stages {
    pub(crate) fn of(split: &recorder::Split) -> Self {
        Self {
            schedule: Stage::of(&split.schedule),
            command_window: Stage::of(&split.window),
            network_and_target: Stage::of(&split.away),
            reply: Stage::of(&split.reply),
            not_told_apart: vec!["network", "r2t_wait", "target_queue", "store"],
            told_apart: None,
        }
    }

    /// The target has told its part.
    pub(crate) fn tell_apart(&mut self, split: &Split) {
        self.told_apart = ToldApart::of(split);
        if self.told_apart.is_some() {
            self.not_told_apart.clear();
        }
    }
}

impl ToldApart {
    /// Nothing where nothing could be joined.
    fn of(split: &Split) -> Option<Self> {
        let [window, network, r2t_wait, queue, store, reply] = split.parts.each_ref().map(Stage::exact);
        Some(Self {
            operations: split.whole.ns.len(),
            of: split.of,
            command_window: window?,
            network: network?,
            r2t_wait: r2t_wait?,
            target_queue: queue?,
            store: store?,
            reply: reply?,
            whole: Stage::exact(&split.whole)?,
        })
    }
}
