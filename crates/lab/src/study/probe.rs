//! One run of a cell: what is measured, and what the model expects.

use std::sync::Arc;
use std::time::Duration;

use lunette_block::{EngineKind, IdentityOverride, Provisioning, StoreSpec, Volume, VolumeSpec};
use lunette_link::{Link, Shape};
use lunette_workload::model::{self, Limit, NetworkPath, Settings};
use lunette_workload::{Arrivals, Kind, Range, Workload};

use super::site::{BLOCK_BYTES, RANGE_BYTES, Site};
use super::tcp;
use super::{Keys, Metric, Probe};
use crate::host::ProcessorTime;
use crate::{Disk, Ending, LabError, Measured, Monitor, Negotiated, Plan, Until, Work, bench};

/// What one run gave.
#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) measured: f64,
    pub(crate) model: Option<(f64, Limit)>,
    pub(crate) processor: f64,
    /// The share of all processors that nobody used meanwhile.
    pub(crate) idle: f64,
    pub(crate) negotiated: Option<Negotiated>,
}

/// How long one run is measured, and what comes before.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Duty {
    pub(crate) warm_up: Duration,
    pub(crate) time: Duration,
    pub(crate) seed: u64,
}

impl Duty {
    /// Long enough for so many round trips that TCP has found its way, and that one command more or less does not show.
    pub(crate) fn on(round_trip: Duration, seed: u64, is_quick: bool) -> Self {
        let ms = Duration::from_millis;
        if is_quick {
            Self { warm_up: ms(200) + round_trip * 12, time: ms(500) + round_trip * 20, seed }
        } else {
            Self { warm_up: ms(500) + round_trip * 20, time: ms(2500) + round_trip * 40, seed }
        }
    }
}

/// Runs a cell, over a link where it has one, and looks how busy the machine was meanwhile.
pub(crate) fn run_once(over: Option<(&Site, &Link)>, probe: &Probe, duty: Duty) -> Result<Run, LabError> {
    let before = ProcessorTime::now();
    let mut run = match over {
        Some((site, link)) => over_link(site, link, probe, duty),
        None => local(probe, duty),
    }?;
    if let (Some(before), Some(after)) = (before, ProcessorTime::now()) {
        run.idle = after.idle_since(before);
    }
    Ok(run)
}

fn over_link(site: &Site, link: &Link, probe: &Probe, duty: Duty) -> Result<Run, LabError> {
    match probe {
        Probe::Tcp { to_target, buffer_bytes } => {
            let bytes_per_s = tcp::carry(site, *to_target, *buffer_bytes, (duty.warm_up, duty.time))?;
            let shape = if *to_target { &link.up } else { &link.down };
            let window = buffer_bytes.map(|bytes| bytes as u64);
            let path = path(link, shape, link.round_trip(), window);
            let limits = [
                (path.payload_bytes_per_s(), Limit::Link),
                (path.tcp_window_limit(), Limit::TcpWindow),
                (path.loss_limit(), Limit::Loss),
            ];
            let limits =
                limits.into_iter().filter_map(|(value, limit)| value.map(|value| (value / 1e6, limit)));
            let model = limits.min_by(|one, other| one.0.total_cmp(&other.0));
            Ok(Run { measured: bytes_per_s / 1e6, model, processor: 0.0, idle: 1.0, negotiated: None })
        }
        Probe::Disk { workload, depth, keys, metric } => {
            let (mut options, lun) = site.options()?;
            let wishes = &mut options.wishes;
            match keys {
                Keys::Defaults => {}
                Keys::Solicited => (wishes.initial_r2t, wishes.immediate_data) = (true, false),
                Keys::Unsolicited { request_bytes } => {
                    wishes.first_burst_length = wishes.first_burst_length.max(*request_bytes);
                }
            }
            let disk = Disk::Unit { options: Box::new(options), lun };
            let plan = plan(disk, workload, *depth, duty);
            let carried = site.near(|| bench(&plan, &Monitor::default()))??;
            let mut run = figure(&carried.measured, &carried.ending, *metric)?;
            if let Some(agreed) = &carried.negotiated {
                run.model = model(link, workload, *depth, agreed, *metric);
            }
            Ok(Run { negotiated: carried.negotiated, ..run })
        }
    }
}

/// On memory of this process.
fn local(probe: &Probe, duty: Duty) -> Result<Run, LabError> {
    let Probe::Disk { workload, depth, metric, .. } = probe else {
        return Err(LabError::Plan("there is no TCP without a network".to_owned()));
    };
    let spec = VolumeSpec {
        name: "memory".to_owned(),
        store: StoreSpec::Memory { size_bytes: RANGE_BYTES },
        read_only: false,
        provisioning: Provisioning::Thin,
        engine: EngineKind::Auto,
        identity: IdentityOverride::default(),
        block_length_bytes: BLOCK_BYTES,
        protection: None,
    };
    let volume = Volume::open(&spec).map_err(|error| LabError::NotReady(error.to_string()))?;
    let carried =
        bench(&plan(Disk::Local(Arc::clone(&volume)), workload, *depth, duty), &Monitor::default())?;
    // It has nothing to lose.
    let _ = volume.close();
    figure(&carried.measured, &carried.ending, *metric)
}

fn plan(disk: Disk, workload: &Workload, depth: u32, duty: Duty) -> Plan {
    Plan {
        disk,
        block_bytes: BLOCK_BYTES,
        range: Range { offset_bytes: 0, length_bytes: RANGE_BYTES },
        work: Work::Workload { workload: workload.clone(), arrivals: Arrivals::Closed },
        depth,
        workers: 1,
        warm_up: duty.warm_up,
        until: Until::Time(duty.time),
        verify: false,
        seed: duty.seed,
        interval: Duration::from_secs(1),
    }
}

fn figure(measured: &Measured, ending: &Ending, metric: Metric) -> Result<Run, LabError> {
    if let Ending::Mismatch(what) | Ending::Refused(what) | Ending::Lost(what) = ending {
        return Err(LabError::NotReady(what.clone()));
    }
    let measured_figure = match metric {
        Metric::MegabytesPerSecond => measured.bytes_per_s / 1e6,
        Metric::MebibytesPerSecond => measured.bytes_per_s / f64::from(1 << 20),
        Metric::OperationsPerSecond => measured.operations_per_s,
        Metric::MeanMilliseconds => {
            let parts = [&measured.read, &measured.write];
            let sum: f64 = parts
                .iter()
                .filter_map(|part| part.as_ref())
                .map(|part| part.mean * part.operations as f64)
                .sum();
            sum / measured.operations.max(1) as f64 / 1e3
        }
    };
    let processor = measured.processor_s / measured.seconds.max(1e-9);
    Ok(Run { measured: measured_figure, model: None, processor, idle: 1.0, negotiated: None })
}

fn path(link: &Link, shape: &Shape, round_trip: Duration, tcp_window_bytes: Option<u64>) -> NetworkPath {
    NetworkPath {
        // Bits per second are far below what a double holds exactly.
        rate_bits_per_s: shape.rate.map(|rate| rate.bits_per_s() as f64),
        round_trip,
        mtu_bytes: link.mtu,
        overhead_bytes: shape.overhead_bytes,
        loss: shape.loss.mean(),
        tcp_window_bytes,
    }
}

/// What is to be expected of a workload: of its reads and writes by their shares, each with a direction of the line of its own.
fn model(
    link: &Link,
    workload: &Workload,
    depth: u32,
    agreed: &Negotiated,
    metric: Metric,
) -> Option<(f64, Limit)> {
    let size_bytes = workload.sizes.largest();
    let round_trip = Duration::try_from_secs_f64(agreed.idle_round_trip_us / 1e6).ok()?;
    let expect = |kind, shape, max_recv_data_segment_length| {
        let settings = Settings {
            initial_r2t: agreed.initial_r2t,
            immediate_data: agreed.immediate_data,
            first_burst_length: agreed.first_burst_length,
            max_burst_length: agreed.max_burst_length,
            max_outstanding_r2t: agreed.max_outstanding_r2t,
            max_recv_data_segment_length,
            connections: u16::try_from(agreed.connections).unwrap_or(u16::MAX),
            window: depth,
        };
        model::expect(&path(link, shape, round_trip, None), &settings, kind, size_bytes)
    };
    let read = expect(Kind::Read, &link.down, agreed.max_recv_data_segment_length);
    let write = expect(Kind::Write, &link.up, agreed.target_max_recv_data_segment_length);
    let reads = f64::from(workload.read.get()) / 100.0;
    let (bytes_per_s, limit) = model::mixed(&read, &write, reads);
    let command_ms =
        (read.command_time.as_secs_f64() * reads + write.command_time.as_secs_f64() * (1.0 - reads)) * 1e3;
    let figure = match metric {
        Metric::MegabytesPerSecond => bytes_per_s / 1e6,
        Metric::MebibytesPerSecond => bytes_per_s / f64::from(1 << 20),
        Metric::OperationsPerSecond => bytes_per_s / f64::from(size_bytes),
        Metric::MeanMilliseconds => command_ms,
    };
    Some((figure, limit))
}
