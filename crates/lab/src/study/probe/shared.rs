//! iSCSI and bulk TCP on one link, from the initiator's end to the target's.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use lunette_link::Link;
use lunette_wan::Bulk;
use lunette_workload::model::Limit;

use super::disk::{self, DiskProbe};
use super::model::{self, Driven};
use super::{Duty, Metric, Place, Run, tcp};
use crate::bench::monitor::Phase;
use crate::{Further, LabError, Monitor};

/// From this share of its rate on, a link is full.
const IN_USE: f64 = 0.9;
/// How often is looked how far the disk is.
const STEP: Duration = Duration::from_millis(1);

/// What shares the link, and what of it is told.
#[derive(Debug, Clone)]
pub(crate) struct SharedProbe {
    /// Connections beside the session, each with as much to send as it can.
    pub(crate) flows: u32,
    pub(crate) disk: DiskProbe,
    /// The figure is what those connections carry together, not the disk's.
    pub(crate) tells_bulk: bool,
}

/// Runs both, and tells one of them, with the other one beside it: what they have of a link is to be seen from one run.
pub(super) fn run(
    place: Place<'_>,
    probe: &SharedProbe,
    duty: Duty,
    monitor: &Monitor,
) -> Result<Run, LabError> {
    let Some((site, link)) = place.over else {
        return Err(LabError::Plan("without a network there is nothing to be shared".to_owned()));
    };
    let emulator = site.emulator()?;
    let flows = (0..probe.flows).map(|_| Bulk::connect(emulator, true, None));
    let flows = flows.collect::<Result<Vec<_>, _>>().map_err(LabError::system(tcp::CONNECTION))?;
    let carried = AtomicU64::new(0);
    let (mut run, bulk_mb_per_s) = thread::scope(|scope| -> Result<_, LabError> {
        for flow in &flows {
            scope.spawn(|| flow.carry_on(&carried));
        }
        let is_over = AtomicBool::new(false);
        let (run, bulk) = thread::scope(|inner| {
            let counting = inner.spawn(|| while_measured(&carried, monitor, duty.time, &is_over));
            let run = disk::run(place, &probe.disk, duty, monitor);
            is_over.store(true, Ordering::Relaxed);
            (run, counting.join())
        });
        flows.iter().for_each(Bulk::end);
        Ok((run?, bulk.map_err(|_| LabError::Panicked)?))
    })?;
    let driven = Driven { link, congestion_control: &site.congestion_control()? };
    let whole = model::path(driven, &link.up, link.round_trip(), None).payload_bytes_per_s();
    let whole_mb_per_s = whole.map(|whole| whole / 1e6);
    let is_used = whole_mb_per_s.is_some_and(|whole| {
        probe.flows > 0 && iscsi_mb_per_s(&probe.disk, run.measured) + bulk_mb_per_s >= whole * IN_USE
    });
    run.limit = is_used.then_some("shared-link");
    run.model = share(whole_mb_per_s, link, probe)
        .or(run.model)
        .filter(|_| probe.flows == 0 || link.up.reserved.is_some());
    let carried = iscsi_mb_per_s(&probe.disk, run.measured);
    if probe.tells_bulk || probe.disk.metric == Metric::MeanMilliseconds {
        run.further.push(Further::new("iscsi", carried, "MB/s"));
    }
    if probe.tells_bulk {
        run.measured = bulk_mb_per_s;
    } else if probe.flows > 0 {
        run.further.push(Further::new("bulk", bulk_mb_per_s, "MB/s"));
    }
    Ok(run)
}

/// What bulk TCP carries while the disk is measured, in 10^6 bytes per second: not what it has before, when the link is its own.
fn while_measured(carried: &AtomicU64, monitor: &Monitor, time: Duration, is_over: &AtomicBool) -> f64 {
    let waits = || !is_over.load(Ordering::Relaxed);
    while waits() && monitor.phase() < Phase::Measuring {
        thread::sleep(STEP);
    }
    let (began, before) = (Instant::now(), carried.load(Ordering::Relaxed));
    while waits() && began.elapsed() < time {
        thread::sleep(STEP);
    }
    let bytes = carried.load(Ordering::Relaxed) - before;
    bytes as f64 / 1e6 / began.elapsed().as_secs_f64().max(1e-9)
}

/// What the disk carries, in 10^6 bytes per second, by what is told of it.
fn iscsi_mb_per_s(disk: &DiskProbe, measured: f64) -> f64 {
    if disk.metric == Metric::MeanMilliseconds {
        let outstanding_bytes = f64::from(disk.depth) * f64::from(disk.mix().size_bytes);
        outstanding_bytes / 1e3 / measured.max(1e-9)
    } else {
        measured
    }
}

/// What a reservation leaves each of them, in 10^6 bytes per second, of the whole.
fn share(whole: Option<f64>, link: &Link, probe: &SharedProbe) -> Option<(f64, Limit)> {
    let reserved = link.up.reserved.map(|share| share.get()).filter(|_| probe.flows > 0);
    let share = reserved.map(|share| if probe.tells_bulk { 1.0 - share } else { share });
    whole.zip(share).map(|(whole, share)| (whole * share, Limit::Link)).filter(|_| probe.disk.depth > 1)
}
