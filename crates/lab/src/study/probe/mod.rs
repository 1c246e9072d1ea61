//! What can be done in a cell, and one run of it. What is measured how is in the files beside this one.

mod disk;
mod model;
mod tcp;

use std::time::Duration;

use lunette_link::Link;
use lunette_workload::model::Limit;

use super::site::Site;
use crate::host::ProcessorTime;
use crate::{LabError, Negotiated};

pub(crate) use disk::{DiskProbe, Load};

/// What is done in a cell.
#[derive(Debug, Clone)]
pub(crate) enum Probe {
    /// Plain TCP, with so much buffer at each end; none: what the system finds out.
    Tcp { to_target: bool, buffer_bytes: Option<usize> },
    /// A workload or a trace on a disk.
    Disk(DiskProbe),
}

/// What a session is to agree on, where that is not up to both sides' defaults.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Keys {
    /// Whatever is best.
    #[default]
    Defaults,
    /// Each write waits for an R2T: InitialR2T=Yes, ImmediateData=No.
    Solicited,
    /// A write's data goes with it: FirstBurstLength is at least this request.
    Unsolicited { request_bytes: u32 },
}

/// What is told of a workload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Metric {
    /// Data, in 10^6 bytes per second.
    MegabytesPerSecond,
    /// Data, in 2^20 bytes per second.
    MebibytesPerSecond,
    /// Operations per second.
    OperationsPerSecond,
    /// The mean latency, in milliseconds.
    MeanMilliseconds,
}

impl Metric {
    pub(crate) const fn unit(self) -> &'static str {
        match self {
            Self::MegabytesPerSecond => "MB/s",
            Self::MebibytesPerSecond => "MiB/s",
            Self::OperationsPerSecond => "IOPS",
            Self::MeanMilliseconds => "ms",
        }
    }
}

impl Probe {
    pub(crate) const fn unit(&self) -> &'static str {
        match self {
            Self::Tcp { .. } => Metric::MegabytesPerSecond.unit(),
            Self::Disk(disk) => disk.metric.unit(),
        }
    }

    /// What is to be under way at once, in bytes, as far as that is known.
    pub(crate) fn outstanding_bytes(&self) -> u64 {
        match self {
            Self::Tcp { .. } => u64::MAX,
            Self::Disk(disk) => disk.outstanding_bytes(),
        }
    }
}

/// What one run gave.
#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) measured: f64,
    pub(crate) model: Option<(f64, Limit)>,
    /// The share of one processor that this process had.
    pub(crate) processor: f64,
    /// The share of all processors that nobody used meanwhile.
    pub(crate) idle: f64,
    pub(crate) negotiated: Option<Negotiated>,
}

impl Run {
    /// A figure for which there is no session.
    pub(crate) fn of(measured: f64, model: Option<(f64, Limit)>) -> Self {
        Self { measured, model, processor: 0.0, idle: 1.0, negotiated: None }
    }
}

/// Where a run is.
#[derive(Clone, Copy)]
pub(crate) struct Place<'a> {
    /// The link and what is at its ends; none without a network.
    pub(crate) over: Option<(&'a Site, &'a Link)>,
}

/// How long one run is measured, and what comes before.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Duty {
    pub(crate) warm_up: Duration,
    pub(crate) time: Duration,
    pub(crate) seed: u64,
    pub(crate) is_quick: bool,
}

/// What TCP sends in its first round trip: ten segments (RFC 6928), here of 1448 bytes.
const FIRST_WINDOW_BYTES: u64 = 14_480;

impl Duty {
    /// Long enough that TCP has found its way, and that one command more or less does not show.
    ///
    /// A window doubles with each turn of the workload, and a command with R2Ts turns in two round trips. What was begun together
    /// then still comes in a burst with gaps behind it, for as long again.
    pub(crate) fn on(round_trip: Duration, outstanding_bytes: u64, seed: u64, is_quick: bool) -> Self {
        let ms = Duration::from_millis;
        // More than this is under way on no link here.
        let doublings = (outstanding_bytes.clamp(1, 16 << 20) / FIRST_WINDOW_BYTES + 1).ilog2();
        let growth = round_trip * (4 * doublings + 8);
        if is_quick {
            Self { warm_up: ms(200) + growth, time: ms(500) + round_trip * 20, seed, is_quick }
        } else {
            Self { warm_up: ms(500) + growth * 2, time: ms(2500) + round_trip * 40, seed, is_quick }
        }
    }
}

/// Runs a cell and looks how busy the machine was meanwhile.
pub(crate) fn run_once(place: Place<'_>, probe: &Probe, duty: Duty) -> Result<Run, LabError> {
    let before = ProcessorTime::now();
    let mut run = match (probe, place.over) {
        (Probe::Tcp { to_target, buffer_bytes }, Some((site, link))) => {
            tcp::run(site, link, *to_target, *buffer_bytes, duty)
        }
        (Probe::Disk(disk), _) => disk::run(place, disk, duty),
        (Probe::Tcp { .. }, None) => Err(LabError::Plan("there is no TCP without a network".to_owned())),
    }?;
    if let (Some(before), Some(after)) = (before, ProcessorTime::now()) {
        run.idle = after.idle_since(before);
    }
    Ok(run)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tcp_has_time_to_grow() {
        let on = |outstanding| Duty::on(Duration::from_millis(50), outstanding, 1, true);
        // One small command: nothing has to grow.
        assert_eq!(on(1024).warm_up, Duration::from_millis(600));
        // 2 MiB are eight doublings from ten segments, of two round trips each, and as many again.
        assert_eq!(on(2 << 20).warm_up, Duration::from_millis(600 + 7 * 4 * 50));
        assert_eq!(on(u64::MAX).warm_up, on(16 << 20).warm_up);
    }
}
