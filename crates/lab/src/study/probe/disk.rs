//! A workload or a trace on a disk: behind a link, or in memory of this process.

use std::sync::Arc;
use std::time::Duration;

use lunette_block::{StoreSpec, Volume, VolumeSpec};
use lunette_initiator::{Lun, Options, Wishes};
use lunette_link::Shape;
use lunette_workload::{Arrivals, Kind, Pace, Range, Sizes, Trace, Workload};

use super::model::{self, Driven};
use super::tcp_facts::{self, Looks, Watched};
use super::{Design, Duty, Keys, Metric, Place, Run, both_units, disk_busy};
use crate::bench::fill;
use crate::bench::monitor::Phase;
use crate::endpoint::{Endpoint, Local};
use crate::host::DiskTime;
use crate::study::LatencyParts;
use crate::study::image::Image;
use crate::study::recorded::Recorded;
use crate::study::service::{self, Service};
use crate::study::setting::{self, Key, Setting};
use crate::study::site::{self, BLOCK_BYTES, RANGE_BYTES, Site, TARGET};
use crate::{
    Carried, Disk, Ending, Further, LabError, Measured, Monitor, Plan, Times, Until, Work, WriteMode, bench,
};

/// Of a trace, where it is to be quick.
const QUICK_TRACE_COUNT: u64 = 2000;

/// A part of a unit is a multiple of this, and so of every size, in bytes.
const UNIT_STEP_BYTES: u64 = 1 << 20;

/// Longer than anything here takes.
const ENDLESS: Duration = Duration::from_secs(3600);
/// Of what a line carries while it is measured.
const LUMP_SHARE: f64 = 0.01;
/// How often more time is given to a run in which nothing ended.
const TRIES: u32 = 4;
/// Operations on a cold image, where it is not to be quick (Fujita and Ogawara, 4.3).
const COLD_COUNT: u64 = 50_000;

/// How long an image is in bytes: nothing is read twice in order.
const fn image_bytes(duty: Duty) -> u64 {
    if duty.is_quick { 256 << 20 } else { 2 << 30 }
}

/// What is done on a disk, and what is told of it.
#[derive(Debug, Clone)]
pub(crate) struct DiskProbe {
    pub(crate) load: Load,
    pub(crate) depth: u32,
    pub(crate) keys: Keys,
    /// Connections of the session.
    pub(crate) connections: u16,
    pub(crate) metric: Metric,
    /// What TCP's buffers hold at most, in bytes; none: what the system finds out.
    pub(crate) tcp_buffer_bytes: Option<usize>,
    /// A target with an image on a disk, all caches cold; none: the one with memory.
    pub(crate) design: Option<Design>,
    /// Units of the target, of which an operation finds one by chance.
    pub(crate) units: u16,
    /// What TCP let be under way is told, too.
    pub(crate) tells_tcp: bool,
    /// What a user has set in the place of `keys`.
    pub(crate) set: Vec<Setting>,
}

/// Operations.
#[derive(Debug, Clone)]
pub(crate) enum Load {
    Workload(Workload),
    /// One after the other, without think time.
    Trace(Arc<Trace>),
}

/// The one size and the share of reads that the model knows.
pub(crate) struct Mix {
    pub(crate) size_bytes: u32,
    pub(crate) read_share: f64,
}

impl DiskProbe {
    /// A workload on a session with one connection and the keys that are best.
    pub(crate) fn new(workload: Workload, depth: u32, metric: Metric) -> Self {
        let load = Load::Workload(workload);
        let keys = Keys::default();
        Self {
            load,
            depth,
            keys,
            connections: 1,
            metric,
            tcp_buffer_bytes: None,
            design: None,
            units: 1,
            tells_tcp: false,
            set: Vec::new(),
        }
    }

    /// Sets keys, depth, connections, sizes and buffers in the place of what the study chooses.
    pub(crate) fn set(&mut self, settings: &[Setting]) {
        self.depth = setting::find(settings, Key::Depth).unwrap_or(self.depth);
        let connections = setting::find(settings, Key::MaxConnections);
        let connections = connections.and_then(|number| u16::try_from(number).ok());
        self.connections = connections.unwrap_or(self.connections);
        self.tcp_buffer_bytes = setting::tcp_buffer(settings).or(self.tcp_buffer_bytes);
        if let (Some(size_bytes), Load::Workload(workload)) =
            (setting::find(settings, Key::RequestBytes), &mut self.load)
        {
            workload.sizes = Sizes::one(size_bytes);
            if let Keys::Unsolicited { request_bytes } = &mut self.keys {
                *request_bytes = size_bytes;
            }
        }
        self.set = settings.to_vec();
    }

    pub(crate) fn mix(&self) -> Mix {
        match &self.load {
            Load::Workload(workload) => Mix {
                size_bytes: workload.sizes.largest(),
                read_share: f64::from(workload.read.get()) / 100.0,
            },
            Load::Trace(trace) => {
                let operations = || trace.records().iter().map(|record| &record.operation);
                let count = operations().count().max(1);
                let bytes: u64 = operations().map(|operation| u64::from(operation.length_bytes)).sum();
                let reads = operations().filter(|operation| operation.kind == Kind::Read).count();
                let size_bytes = u32::try_from(bytes / count as u64).unwrap_or(u32::MAX);
                Mix { size_bytes, read_share: reads as f64 / count as f64 }
            }
        }
    }

    /// Whether it needs no target of its own, and sets nothing of TCP.
    pub(crate) fn is_plain(&self) -> bool {
        self.design.is_none() && self.units == 1 && self.tcp_buffer_bytes.is_none()
    }

    /// What is under way of it at once; TCP's buffers may be the smaller limit.
    pub(crate) fn outstanding_bytes(&self) -> u64 {
        let buffered = self.tcp_buffer_bytes.map_or(u64::MAX, |bytes| bytes as u64);
        (u64::from(self.depth) * u64::from(self.mix().size_bytes)).min(buffered)
    }

    /// Whether its writes wait to be asked for all of their data, if the target agrees.
    pub(super) fn asks_for_all(&self) -> bool {
        let mut wishes = Wishes::default();
        self.keys.wish(&self.set, &mut wishes);
        wishes.initial_r2t && !wishes.immediate_data
    }

    /// How many round trips a command takes: two where it may have to wait for R2Ts.
    pub(super) fn round_trips(&self) -> u32 {
        let Mix { size_bytes, read_share } = self.mix();
        let goes_unasked = match self.keys {
            // It may, and waiting too long for it costs time alone.
            _ if !self.set.is_empty() => false,
            // The default of FirstBurstLength (RFC 7143, 13.14); no target here has less.
            Keys::Defaults => size_bytes <= 64 << 10,
            Keys::Unsolicited { .. } => true,
            Keys::Solicited | Keys::Fujita => false,
        };
        if goes_unasked || read_share >= 1.0 { 1 } else { 2 }
    }

    /// On the site's target, until somebody ends it.
    pub(super) fn endless(&self, site: &Site, duty: Duty) -> Result<Plan, LabError> {
        let (options, lun) = site.options()?;
        let plan = self.plan(self.unit(options, lun), duty);
        site.write_once(&self.read_ranges(&plan), duty.seed)?;
        Ok(Plan { warm_up: Duration::ZERO, until: Until::Time(ENDLESS), ..plan })
    }

    pub(super) fn plan(&self, disk: Disk, duty: Duty) -> Plan {
        let (work, length_bytes, warm_up, until) = match &self.load {
            Load::Workload(workload) if self.design.is_some() => {
                let work = Work::Workload { workload: workload.clone(), arrivals: Arrivals::Closed };
                // What is cold at the beginning is measured from there on.
                let until = if duty.is_quick { Until::Time(duty.time) } else { Until::Count(COLD_COUNT) };
                (work, image_bytes(duty), Duration::ZERO, until)
            }
            Load::Workload(workload) => {
                let work = Work::Workload { workload: workload.clone(), arrivals: Arrivals::Closed };
                let length_bytes = self.unit_bytes() * u64::from(self.units);
                (work, length_bytes, duty.warm_up, Until::Time(duty.time))
            }
            Load::Trace(trace) => {
                let name = "lu-du".to_owned();
                let work = Work::Trace { name, trace: Arc::clone(trace), pace: Pace::None };
                let all = trace.records().len() as u64;
                let count = if duty.is_quick { all.min(QUICK_TRACE_COUNT) } else { all };
                (work, trace.end_bytes(), Duration::ZERO, Until::Count(count))
            }
        };
        Plan {
            disk,
            block_bytes: BLOCK_BYTES,
            transfer_bytes_max: None,
            range: Range { offset_bytes: 0, length_bytes },
            work,
            depth: self.depth,
            workers: 1,
            warm_up,
            until,
            verify: false,
            target_times: None,
            seed: duty.seed,
            interval: Duration::from_secs(1),
            patience: Some(duty.patience),
        }
    }
}

impl DiskProbe {
    /// The units that it uses, the first of which is this one, and how many bytes of each.
    fn units(&self, first: Lun) -> (Vec<Lun>, u64) {
        if self.units == 1 {
            return (vec![first], u64::MAX);
        }
        ((0..self.units).map(|number| Lun::new(number).unwrap_or_default()).collect(), self.unit_bytes())
    }

    /// How many bytes of each unit are used: of all together as many as of one that is alone.
    const fn unit_bytes(&self) -> u64 {
        RANGE_BYTES / self.units as u64 / UNIT_STEP_BYTES * UNIT_STEP_BYTES
    }

    /// The configuration of a target with all of them.
    fn target(&self) -> String {
        let bytes = self.unit_bytes();
        let unit = |number: u16| {
            format!("[[target.lun]]\nnumber = {number}\nstore = \"mem:{bytes}\"\nwrite = \"back\"\n\n")
        };
        format!("[[target]]\nname = \"{TARGET}\"\n\n{}", (0..self.units).map(unit).collect::<String>())
    }

    /// A session as the probe wants it.
    pub(super) fn session(&self, mut options: Options) -> Options {
        options.connections = self.connections;
        self.keys.wish(&self.set, &mut options.wishes);
        options
    }

    /// The same with its units.
    fn unit(&self, options: Options, lun: Lun) -> Disk {
        let options = Box::new(self.session(options));
        if self.units == 1 {
            return Disk::Unit { options, lun };
        }
        let (luns, unit_bytes) = self.units(lun);
        Disk::Units { options, luns, unit_bytes }
    }
}

/// The image that all designs have in turn, cold, and the share of it that is in memory.
fn cold_image(place: Place<'_>, duty: Duty) -> Result<(&Image, Option<f64>), LabError> {
    let image = match place.image.get() {
        Some(image) => image,
        None => {
            let made = Image::make(place.scratch, image_bytes(duty))?;
            place.image.get_or_init(|| made)
        }
    };
    let cached = image.cool()?;
    Ok((image, cached))
}

/// Runs it; the monitor tells how far it is. Its model has the round trip of a command in it, for want of plain TCP's.
pub(super) fn run(
    place: Place<'_>,
    probe: &DiskProbe,
    duty: Duty,
    monitor: &Monitor,
) -> Result<Run, LabError> {
    let Some((site, link)) = place.over else { return local(probe, duty, monitor) };
    let mut cached = None;
    // Where the figure is a time, the target is to tell its part of it.
    // It listens at another port, for which a reservation has to be, too.
    let reserves = |shape: &Shape| shape.reserved.is_none() || shape.iscsi_ports.has(service::PORT);
    let is_alike = [&link.up, &link.down].into_iter().all(reserves);
    let is_a_time = probe.metric == Metric::MeanMilliseconds && probe.design.is_none();
    let tells = is_a_time && site.is_ours() && is_alike && !site.is_proxied();
    let recorded = tells.then(|| Recorded::start(site, place.binary, place.scratch)).transpose()?;
    let (service, (options, lun)) = match probe.design {
        Some(design) => {
            let (image, share) = cold_image(place, duty)?;
            cached = share;
            let path = image.path().to_string_lossy();
            let target = Service::target(TARGET, &path, &design.lines()) + probe.keys.limits();
            (Some(Service::start(site, place.binary, &target, &[])?), Service::options()?)
        }
        None if probe.units > 1 => {
            (Some(Service::start(site, place.binary, &probe.target(), &[])?), Service::options()?)
        }
        None if recorded.is_some() => (None, Service::options()?),
        None => (None, site.options()?),
    };
    let beside = options.clone();
    let mut plan = probe.plan(probe.unit(options, lun), duty);
    let read = probe.read_ranges(&plan);
    if service.is_some() || recorded.is_some() {
        let (luns, unit_bytes) = probe.units(lun);
        site.write_units((&beside, luns, unit_bytes), &read, duty.seed)?;
    } else {
        site.write_once(&read, duty.seed)?;
    }
    plan.target_times = recorded.as_ref().map(Recorded::times);
    let control = site.congestion_control()?;
    let disk_before = probe.design.and_then(|_| DiskTime::now(place.scratch));
    let port = if service.is_some() { service::PORT } else { site::PORT };
    let watched = watched(probe, port, Driven { link, congestion_control: &control });
    let line_bytes_per_s = watched.line_bytes_per_s;
    let may_be_lumps = line_bytes_per_s.is_some_and(|line| moves_in_lumps(probe, line, duty));
    let is_watched = (probe.tells_tcp || may_be_lumps) && !site.is_proxied();
    let work = || {
        let carry = || patiently(plan, |plan| site.near(|| bench(plan, monitor))?);
        if !is_watched {
            return (carry(), None);
        }
        let is_measuring = || monitor.phase() == Phase::Measuring;
        let (carried, looks) = tcp_facts::watch(site, watched, &is_measuring, carry);
        (carried, Some(looks))
    };
    let (carried, looks) = match probe.tcp_buffer_bytes {
        Some(bytes) => site.with_tcp_buffers(bytes, work)?,
        None => work(),
    };
    let busy = disk_busy(place.scratch, disk_before);
    let mut carried = carried?;
    drop((service, recorded));
    if moves_in_lumps(probe, carried.measured.bytes_per_s, duty)
        && let Some((stream_bytes_per_s, agreed)) =
            looks.as_ref().and_then(Looks::bytes_per_s).zip(carried.negotiated.as_ref())
    {
        let data_bytes_per_s = stream_bytes_per_s * model::data_share(probe, agreed);
        carried.measured.operations_per_s = data_bytes_per_s / f64::from(probe.mix().size_bytes);
        carried.measured.bytes_per_s = data_bytes_per_s;
    }
    let mut run = figure(&carried.measured, &carried.ending, probe)?;
    if let Some(agreed) = &carried.negotiated {
        let driven = Driven { link, congestion_control: &control };
        run.model = model::disk(driven, probe, agreed, None).map(|modelled| modelled.expected);
        run.round_trips = model::round_trips(driven, probe, agreed);
    }
    if let Some(looks) = looks.filter(|_| probe.tells_tcp) {
        run.further.extend(looks.told());
    }
    let parts = carried.measured.stages.told_apart.as_ref().map(LatencyParts::of);
    run.further.extend(busy);
    Ok(Run { negotiated: carried.negotiated, parts, cached, ..run })
}

/// The connections of a session at this port; what is there beside the data of the larger part is commands and answers.
fn watched(probe: &DiskProbe, port: u16, driven: Driven<'_>) -> Watched {
    let to_target = probe.mix().read_share < 0.5;
    let shape = if to_target { &driven.link.up } else { &driven.link.down };
    let round_trip = driven.link.round_trip();
    let path = model::path(driven, shape, round_trip, None);
    Watched { port, to_target, line_bytes_per_s: path.payload_bytes_per_s(), round_trip }
}

/// Whether commands that happen to end before or behind the time are more than [`LUMP_SHARE`] of what moves in it at this rate, so that
/// bytes are to be counted in their place. Those of one direction and one size: what both carry together no counter tells apart.
fn moves_in_lumps(probe: &DiskProbe, bytes_per_s: f64, duty: Duty) -> bool {
    let is_bytes = matches!(probe.metric, Metric::MegabytesPerSecond | Metric::MebibytesPerSecond);
    let is_one_way = [0.0, 1.0].contains(&probe.mix().read_share);
    let is_of_one_size = |workload: &Workload| workload.sizes.iter().count() == 1;
    let is_for_a_time =
        matches!(&probe.load, Load::Workload(workload) if is_of_one_size(workload)) && probe.design.is_none();
    // Far below what a double holds exactly.
    let is_much = probe.outstanding_bytes() as f64 > bytes_per_s * duty.time.as_secs_f64() * LUMP_SHARE;
    is_bytes && is_one_way && is_for_a_time && is_much
}

/// Carries out a plan, with more time where this machine was so busy that nothing ended in it.
fn patiently(
    mut plan: Plan,
    carry_out: impl Fn(&Plan) -> Result<Carried, LabError>,
) -> Result<Carried, LabError> {
    for _ in 0..TRIES {
        let carried = carry_out(&plan)?;
        match &mut plan.until {
            Until::Time(time) if carried.measured.operations == 0 && carried.ending == Ending::Complete => {
                *time *= 4;
            }
            _ => return Ok(carried),
        }
    }
    Err(LabError::NotReady("nothing ends; this machine is too busy to measure anything".to_owned()))
}

/// On memory of this process.
fn local(probe: &DiskProbe, duty: Duty, monitor: &Monitor) -> Result<Run, LabError> {
    let size_bytes = match &probe.load {
        Load::Workload(_) => RANGE_BYTES,
        Load::Trace(trace) => trace.end_bytes(),
    };
    let spec = VolumeSpec {
        block_length_bytes: BLOCK_BYTES,
        ..VolumeSpec::new("memory", StoreSpec::Memory { size_bytes })
    };
    let volume = Volume::open(&spec).map_err(|error| LabError::NotReady(error.to_string()))?;
    // Nothing makes memory stable.
    let write = WriteMode::Back;
    let plan = probe.plan(Disk::Local { volume: Arc::clone(&volume), write }, duty);
    let mut local = Local::open(&volume, write)?;
    fill(&mut local, &probe.read_ranges(&plan), plan.transfers(), duty.seed, &Monitor::default())?;
    local.close();
    let carried = patiently(plan, |plan| bench(plan, monitor));
    // It has nothing to lose.
    let _ = volume.close();
    let carried = carried?;
    figure(&carried.measured, &carried.ending, probe)
}

/// What a command took, in milliseconds: the mean of reads and writes.
fn mean_ms(measured: &Measured) -> f64 {
    let parts = [&measured.read, &measured.write].into_iter().flatten();
    let sum: f64 = parts.map(|part| part.mean * part.operations as f64).sum();
    sum / measured.operations.max(1) as f64 / 1e3
}

fn figure(measured: &Measured, ending: &Ending, probe: &DiskProbe) -> Result<Run, LabError> {
    let (metric, is_trace) = (probe.metric, matches!(probe.load, Load::Trace(_)));
    if let Ending::Mismatch(what) | Ending::Refused(what) | Ending::Lost(what) = ending {
        return Err(LabError::NotReady(what.clone()));
    }
    let measured_figure = match metric {
        Metric::MegabytesPerSecond => measured.bytes_per_s / 1e6,
        Metric::MebibytesPerSecond => measured.bytes_per_s / f64::from(1 << 20),
        Metric::OperationsPerSecond => measured.operations_per_s,
        Metric::MeanMilliseconds => mean_ms(measured),
    };
    let further = match metric {
        Metric::MebibytesPerSecond | Metric::OperationsPerSecond => {
            both_units(metric, measured.operations_per_s, measured.bytes_per_s).1
        }
        // A trace is told by both, which are to be of one run.
        Metric::MegabytesPerSecond if is_trace => vec![Further::new("response", mean_ms(measured), "ms")],
        Metric::MeanMilliseconds if is_trace => {
            vec![Further::new("carried", measured.bytes_per_s / 1e6, "MB/s")]
        }
        Metric::MegabytesPerSecond | Metric::MeanMilliseconds => Vec::new(),
    };
    // Reads and writes together have none.
    let times = match (&measured.read, &measured.write) {
        (Some(latency), None) | (None, Some(latency)) if metric == Metric::MeanMilliseconds => {
            Some(Times::of(latency))
        }
        _ => None,
    };
    Ok(Run { further, times, ..Run::of(measured_figure, None) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::study::probe::Turn;
    use lunette_workload::{Percent, Spread};

    #[test]
    fn bytes_are_counted_where_commands_come_in_lumps() {
        let counts = |bytes_per_s, size_bytes, depth, change: &dyn Fn(&mut DiskProbe)| {
            let sizes = Sizes::one(size_bytes);
            let workload =
                Workload { sizes, read: Percent::ALL, random: Percent::ZERO, spread: Spread::Uniform };
            let mut probe = DiskProbe::new(workload, depth, Metric::MegabytesPerSecond);
            change(&mut probe);
            let turn = Turn { outstanding_bytes: probe.outstanding_bytes(), round_trips: 1, losses: None };
            moves_in_lumps(&probe, bytes_per_s, Duty::on(Duration::ZERO, turn, 1, true))
        };
        let as_it_is = &|_: &mut DiskProbe| ();
        // 2 MiB of the 9 that the line carries in half a second, and 64 KiB.
        assert!(counts(18.7e6, 64 << 10, 32, as_it_is));
        assert!(!counts(18.7e6, 64 << 10, 1, as_it_is) && !counts(18.7e6, 1 << 10, 32, as_it_is));
        // Half of them did not end in the time.
        assert!(counts(0.25e6, 64 << 10, 4, as_it_is) && counts(0.0, 64 << 10, 1, as_it_is));
        // TCP lets less be under way; the figure is a time; both directions count together.
        assert!(!counts(18.7e6, 64 << 10, 32, &|probe| probe.tcp_buffer_bytes = Some(64 << 10)));
        assert!(!counts(18.7e6, 64 << 10, 32, &|probe| probe.metric = Metric::MeanMilliseconds));
        let half = &|probe: &mut DiskProbe| {
            if let Load::Workload(workload) = &mut probe.load {
                workload.read = Percent::new(50);
            }
        };
        assert!(!counts(18.7e6, 64 << 10, 32, half));
    }

    #[test]
    fn a_size_that_is_set_still_goes_unasked() {
        let workload = Workload {
            sizes: Sizes::one(1024),
            read: Percent::ZERO,
            random: Percent::ZERO,
            spread: Spread::Uniform,
        };
        let plain = DiskProbe::new(workload, 1, Metric::MegabytesPerSecond);
        let mut probe = DiskProbe { keys: Keys::Unsolicited { request_bytes: 1024 }, ..plain };
        let settings =
            ["request_bytes=524288", "tcp_buffer_bytes=65536"].map(|one| one.parse().expect("a setting"));
        probe.set(&settings);
        assert_eq!(probe.keys, Keys::Unsolicited { request_bytes: 512 << 10 });
        assert_eq!((probe.mix().size_bytes, probe.tcp_buffer_bytes), (512 << 10, Some(64 << 10)));
        assert!(!probe.is_plain(), "through a proxy TCP has no buffers of the link's");
    }
}
