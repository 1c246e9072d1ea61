//! What is told of a measurement: one object, which programs read.

use std::fmt;

use lunette_initiator::{ConnectionInfo, Session, SessionParameters};
use lunette_workload::{Arrivals, Pace, Percent};
use serde::{Deserialize, Serialize};

use crate::bench::recorder::{Recorder, Step};
use crate::{Carried, Host, Latency, Plan, Stages, Until, Work, WriteMode};

/// Everything about one measurement. Times are in microseconds unless their name says otherwise.
#[derive(Debug, Serialize)]
pub struct BenchResult {
    /// The form of this object; it changes when a field changes its meaning.
    pub form: u32,
    /// Where and when.
    pub host: Host,
    /// What was measured.
    pub disk: DiskFacts,
    /// The emulated link that it was measured over, if there was one.
    pub link: Option<String>,
    /// What is wrong with the figures because the machine did not keep up with that link, if anything is; also that nobody says whether
    /// it did. A proxy, which its link names, has nobody to say so.
    pub link_doubt: Option<String>,
    /// Why the target's times are not in the figures, or not those of all operations, if that is known.
    pub times_doubt: Option<String>,
    /// Where chance began.
    pub seed: u64,
    /// What the content of all that was written follows from, where it is verified; another one each time.
    pub content_seed: Option<u64>,
    /// What was done.
    pub workload: WorkloadFacts,
    /// What was agreed with the target.
    pub negotiated: Option<Negotiated>,
    /// Why it ended.
    pub ending: Ending,
    /// The figures.
    pub measured: Measured,
}

/// The disk.
#[derive(Debug, Clone, Serialize)]
pub struct DiskFacts {
    /// How it was named, without secrets.
    pub name: String,
    /// `iscsi`, or what of this machine it is, and its engine.
    pub kind: String,
    /// Who waits for what of this machine it is (`sync`, `threads`, `direct`, `uring`). None of what its target has.
    pub engine: Option<String>,
    /// When a write to what of this machine it is has ended. None where nothing is written, and of what its target has: that decides.
    pub write: Option<WriteMode>,
    /// What its target says that it is: vendor, product and revision of its INQUIRY data. None of what this machine has itself.
    pub model: Option<String>,
    /// Its length in bytes.
    pub capacity_bytes: u64,
    /// The length of its logical blocks in bytes.
    pub block_bytes: u32,
}

/// What was done.
#[derive(Debug, Serialize)]
pub struct WorkloadFacts {
    #[serde(flatten)]
    work: WorkFacts,
    offset_bytes: u64,
    length_bytes: u64,
    depth: u32,
    workers: u32,
    warm_up_s: f64,
    time_s: Option<f64>,
    count: Option<u64>,
    verified: bool,
    /// What is written: `incompressible`, data that never comes a second time; `verifiable`, which is as random, and in which each 512
    /// bytes name their place. None where nothing is written.
    content: Option<&'static str>,
}

/// What was agreed with the target (RFC 7143, chapter 13). Lengths are in bytes.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Negotiated {
    /// InitialR2T
    pub initial_r2t: bool,
    /// ImmediateData
    pub immediate_data: bool,
    /// FirstBurstLength
    pub first_burst_length: u32,
    /// MaxBurstLength
    pub max_burst_length: u32,
    /// MaxOutstandingR2T
    pub max_outstanding_r2t: u16,
    /// MaxConnections
    pub max_connections: u16,
    /// ErrorRecoveryLevel
    pub error_recovery_level: u8,
    /// MaxRecvDataSegmentLength of this side.
    pub max_recv_data_segment_length: u32,
    /// MaxRecvDataSegmentLength of the target.
    pub target_max_recv_data_segment_length: u32,
    /// HeaderDigest is CRC32C.
    pub header_digest: bool,
    /// DataDigest is CRC32C.
    pub data_digest: bool,
    /// Connections that the session had.
    pub connections: usize,
    /// What TEST UNIT READY took before the workload, one after the other for 50 ms and at least five: the network and what every
    /// command costs both ends. The mean of those that took less than ten times the median, or the median of fewer than twenty.
    /// None where nobody has looked.
    #[serde(default)]
    pub idle_round_trip_us: Option<f64>,
    /// How many commands the target let be under way at once, before the workload (MaxCmdSN; RFC 7143, 4.2.2.1). None where nobody has
    /// looked.
    #[serde(default)]
    pub command_window: Option<u32>,
}

/// What was made of a workload, or taken from a trace.
#[derive(Debug, Serialize)]
#[serde(untagged)]
enum WorkFacts {
    Workload {
        profile: Option<&'static str>,
        sizes: String,
        read_percent: u8,
        random_percent: u8,
        spread: String,
        /// `closed`, `even` or `poisson`.
        arrivals: &'static str,
        rate_per_s: Option<f64>,
    },
    Trace {
        trace: String,
        operations: usize,
        pace: String,
    },
}

impl WorkFacts {
    fn of(work: &Work, profile: Option<&'static str>) -> Self {
        match work {
            Work::Workload { workload, arrivals } => {
                let (arrivals, rate_per_s) = match arrivals {
                    Arrivals::Closed => ("closed", None),
                    Arrivals::Even(rate) => ("even", Some(*rate)),
                    Arrivals::Poisson(rate) => ("poisson", Some(*rate)),
                };
                Self::Workload {
                    profile,
                    sizes: workload.sizes.to_string(),
                    read_percent: workload.read.get(),
                    random_percent: workload.random.get(),
                    spread: workload.spread.to_string(),
                    arrivals,
                    rate_per_s,
                }
            }
            Work::Trace { name, trace, pace } => {
                Self::Trace { trace: name.clone(), operations: trace.records().len(), pace: pace.to_string() }
            }
        }
    }
}

impl fmt::Display for WorkloadFacts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.work {
            WorkFacts::Workload {
                profile,
                sizes,
                read_percent,
                random_percent,
                spread,
                arrivals,
                rate_per_s,
            } => {
                if let Some(profile) = profile {
                    write!(f, "{profile}: ")?;
                }
                write!(f, "{sizes}, {read_percent} % reads, {random_percent} % random ({spread})")?;
                match rate_per_s {
                    Some(rate) => write!(f, ", {arrivals} arrivals, {rate}/s")?,
                    None => write!(f, ", {arrivals} loop")?,
                }
            }
            WorkFacts::Trace { trace, operations, pace } => {
                write!(f, "trace {trace}, {operations} operations, pace {pace}")?;
            }
        }
        write!(f, ", depth {}", self.depth)?;
        if self.workers > 1 {
            write!(f, ", {} workers", self.workers)?;
        }
        f.write_str(if self.verified { ", verified" } else { "" })
    }
}

impl fmt::Display for Negotiated {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = |is_so| if is_so { "Yes" } else { "No" };
        write!(
            f,
            "InitialR2T={} ImmediateData={} FirstBurstLength={} MaxBurstLength={} MaxOutstandingR2T={} \
             MaxRecvDataSegmentLength={}/{}, {} of {} connections, digests {}",
            word(self.initial_r2t),
            word(self.immediate_data),
            self.first_burst_length,
            self.max_burst_length,
            self.max_outstanding_r2t,
            self.max_recv_data_segment_length,
            self.target_max_recv_data_segment_length,
            self.connections,
            self.max_connections,
            match (self.header_digest, self.data_digest) {
                (false, false) => "none",
                (true, false) => "header",
                (false, true) => "data",
                (true, true) => "both",
            },
        )?;
        if let Some(commands) = self.command_window {
            write!(f, ", {commands} commands at once")?;
        }
        self.idle_round_trip_us.map_or(Ok(()), |us| write!(f, ", {us:.0} us there and back"))
    }
}

#[cfg(test)]
impl Negotiated {
    /// Something to differ from: unasked data of up to 64 KiB, one connection.
    pub(crate) const fn of_tests() -> Self {
        Self {
            initial_r2t: false,
            immediate_data: true,
            first_burst_length: 64 << 10,
            max_burst_length: 64 << 10,
            max_outstanding_r2t: 1,
            max_connections: 1,
            error_recovery_level: 0,
            max_recv_data_segment_length: 8192,
            target_max_recv_data_segment_length: 8192,
            header_digest: false,
            data_digest: false,
            connections: 1,
            idle_round_trip_us: None,
            command_window: None,
        }
    }
}

impl Negotiated {
    /// The same but for the time that a command takes.
    pub(crate) fn is_like(&self, other: &Self) -> bool {
        let keys = |agreed: &Self| {
            (
                [agreed.initial_r2t, agreed.immediate_data, agreed.header_digest, agreed.data_digest],
                [agreed.first_burst_length, agreed.max_burst_length],
                [agreed.max_recv_data_segment_length, agreed.target_max_recv_data_segment_length],
                [agreed.max_outstanding_r2t, agreed.max_connections, u16::from(agreed.error_recovery_level)],
                agreed.connections,
            )
        };
        keys(self) == keys(other)
    }

    /// What a session has agreed on. How long its commands take is not known.
    #[must_use]
    pub fn of_session(session: &Session) -> Self {
        Self::of(&session.parameters(), &session.connections())
    }

    /// By what the keys say.
    pub(crate) fn of(session: &SessionParameters, connections: &[ConnectionInfo]) -> Self {
        let connection = connections.first().map(|connection| connection.parameters).unwrap_or_default();
        Self {
            initial_r2t: session.initial_r2t,
            immediate_data: session.immediate_data,
            first_burst_length: session.first_burst_length,
            max_burst_length: session.max_burst_length,
            max_outstanding_r2t: session.max_outstanding_r2t,
            max_connections: session.max_connections,
            error_recovery_level: session.error_recovery_level,
            max_recv_data_segment_length: connection.max_recv_data_segment_length,
            target_max_recv_data_segment_length: connection.max_send_data_segment_length,
            header_digest: connection.digests.header,
            data_digest: connection.digests.data,
            connections: connections.len(),
            idle_round_trip_us: None,
            command_window: None,
        }
    }
}

/// Why a measurement ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Ending {
    /// As planned.
    Complete,
    /// It was stopped; the figures are of what was done by then.
    Interrupted,
    /// It was stopped while the range was written for [`Plan::verify`]; a part of the range may be written, and nothing was measured.
    InterruptedFilling,
    /// Something that was read is not what was written; the figures are of what was done before.
    Mismatch(String),
    /// The target or the store refused an operation.
    Refused(String),
    /// The session could not be had again, or this system failed.
    Lost(String),
    /// As planned, but nothing counted; with the reason, and what to do.
    NothingMeasured(String),
}

impl Ending {
    /// The same, which says so where a plan was carried out and nothing counted.
    fn of(self, plan: &Plan, measured: &Measured) -> Self {
        if self != Self::Complete || measured.operations > 0 {
            return self;
        }
        let warm_up_s = plan.warm_up.as_secs_f64();
        let (is_trace, is_open) = match &plan.work {
            Work::Trace { pace, .. } => (true, *pace != Pace::None),
            Work::Workload { arrivals, .. } => (false, *arrivals != Arrivals::Closed),
        };
        Self::NothingMeasured(match (is_trace && measured.seconds <= 0.0, measured.seconds) {
            (true, _) => {
                format!("the trace was over before the warm-up of {warm_up_s} s: give a shorter --warm-up")
            }
            (false, seconds) if is_open && measured.unserved == 0 && measured.under_way_at_end == 0 => {
                format!(
                    "no operation was to begin in the {seconds} s after the warm-up: give a longer --time"
                )
            }
            (false, seconds) => format!(
                "no operation counted in the {seconds} s after the warm-up; {} were under way at the end, and {} waited for room: give a \
                 longer --time, or more --depth",
                measured.under_way_at_end, measured.unserved
            ),
        })
    }
}

/// The figures.
#[derive(Debug, Serialize)]
pub struct Measured {
    /// How long was measured, in seconds: what rates are of. In an open loop with a time until the last moment in which operations were
    /// to begin, or began where that was later. Of a trace that is over before its time until then.
    pub seconds: f64,
    /// How long after that the last operation that counts ended, in seconds; 0 in a closed loop, and where there is no time.
    pub drain_s: f64,
    /// Operations that counted.
    pub operations: u64,
    /// Bytes that they moved.
    pub bytes: u64,
    /// Bytes that were read, in the warm-up too, and are what was written there last; 0 where nothing is verified.
    pub verified_bytes: u64,
    /// Operations per second.
    pub operations_per_s: f64,
    /// Bytes per second.
    pub bytes_per_s: f64,
    /// Of those that read.
    pub read: Option<Latency>,
    /// Of those that wrote.
    pub write: Option<Latency>,
    /// Where the time went, as far as that is known on this side.
    pub stages: Stages,
    /// Processor time of this process while it was measured, in seconds.
    pub processor_s: f64,
    /// Times that the unit had no room for a command.
    pub busy: u64,
    /// Times that it had something else to tell first.
    pub again: u64,
    /// Arrivals of an open loop that were to begin while it was measured and never did; [`Latency`] has what they waited. Of random ones of
    /// a worker those beyond some 1,100,000 are as many as come on average.
    pub unserved: u64,
    /// Times that a session was lost and had again.
    pub session_losses: u64,
    /// Operations that were under way at the end and did not count: in a closed loop what had not ended by then, in an open one what
    /// was no longer waited for, of which [`Latency`] has the time until then, or was still of the warm-up.
    pub under_way_at_end: u64,
    /// The longest time that one of those took, until it ended or was no longer waited for, in microseconds; 0 if there were none.
    pub under_way_longest_us: f64,
    /// The time series.
    pub series: Series,
}

/// What happened when.
#[derive(Debug, Serialize)]
pub struct Series {
    /// The length of each step in seconds: what was asked for, or so many times doubled that there are 1,048,576 steps at most.
    pub interval_s: f64,
    /// The steps from the beginning of what counts until its end, which may be within the last one, and the drain of an open loop:
    /// operations that ended then, bytes, mean and largest latency in microseconds.
    pub steps: Vec<(u64, u64, f64, f64)>,
}

impl Measured {
    pub(crate) fn of(sum: &Recorder) -> Self {
        let seconds = sum.measured.as_secs_f64();
        let rate = |count: u64| if seconds > 0.0 { count as f64 / seconds } else { 0.0 };
        let bytes = sum.read.bytes + sum.write.bytes;
        let step = |step: &Step| {
            let mean = step.latency_sum_ns as f64 / step.operations.max(1) as f64 / 1e3;
            (step.operations, step.bytes, mean, step.latency_max_ns as f64 / 1e3)
        };
        Self {
            seconds,
            drain_s: sum.drained.as_secs_f64(),
            operations: sum.operations(),
            bytes,
            verified_bytes: sum.verified_bytes,
            operations_per_s: rate(sum.operations()),
            bytes_per_s: rate(bytes),
            read: Latency::of(&sum.read),
            write: Latency::of(&sum.write),
            stages: Stages::of(&sum.split),
            processor_s: sum.processor.as_secs_f64(),
            busy: sum.busy,
            again: sum.again,
            unserved: sum.unserved,
            session_losses: sum.losses,
            under_way_at_end: sum.under_way,
            under_way_longest_us: sum.under_way_longest.as_secs_f64() * 1e6,
            series: Series {
                interval_s: sum.interval().as_secs_f64(),
                steps: sum.steps.iter().map(step).collect(),
            },
        }
    }
}

/// What kind of data a plan writes.
fn content(plan: &Plan) -> Option<&'static str> {
    let writes = match &plan.work {
        Work::Workload { workload, .. } => workload.read != Percent::ALL,
        Work::Trace { trace, .. } => trace.writes(),
    };
    match (plan.verify, writes) {
        (true, _) => Some("verifiable"),
        (false, true) => Some("incompressible"),
        (false, false) => None,
    }
}

impl BenchResult {
    /// Puts together what is told; `profile` is the workload's name, if it has one.
    #[must_use]
    pub fn new(
        plan: &Plan,
        carried: Carried,
        disk: DiskFacts,
        host: Host,
        link: Option<String>,
        profile: Option<&'static str>,
    ) -> Self {
        let (time_s, count) = match plan.until {
            Until::Time(time) => (Some(time.as_secs_f64()), None),
            // A trace that is replayed to its end.
            Until::Count(u64::MAX) if matches!(plan.work, Work::Trace { .. }) => (None, None),
            Until::Count(count) => (None, Some(count)),
        };
        let workload = WorkloadFacts {
            work: WorkFacts::of(&plan.work, profile),
            offset_bytes: plan.range.offset_bytes,
            length_bytes: plan.range.length_bytes,
            depth: plan.depth,
            workers: plan.workers,
            warm_up_s: plan.warm_up.as_secs_f64(),
            time_s,
            count,
            verified: plan.verify,
            content: content(plan),
        };
        Self {
            form: 2,
            host,
            disk,
            link,
            link_doubt: None,
            times_doubt: carried.times_doubt,
            seed: plan.seed,
            content_seed: carried.content_seed,
            workload,
            negotiated: carried.negotiated,
            ending: carried.ending.of(plan, &carried.measured),
            measured: carried.measured,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use lunette_block::{StoreSpec, Volume, VolumeSpec};
    use lunette_workload::{Range, Trace};

    use super::*;
    use crate::Disk;

    #[test]
    fn a_trace_that_is_replayed_to_its_end_has_no_count() {
        let told = |until| {
            let store = StoreSpec::Memory { size_bytes: 1 << 20 };
            let volume = Volume::open(&VolumeSpec::new("memory", store)).expect("a volume");
            let trace = Arc::new(Trace::lu_du(1).expect("a trace"));
            let plan = Plan {
                disk: Disk::Local { volume, write: WriteMode::Back },
                block_bytes: 512,
                transfer_bytes_max: None,
                range: Range { offset_bytes: 0, length_bytes: 1 << 20 },
                work: Work::Trace { name: "lu-du".into(), trace, pace: Pace::None },
                depth: 1,
                workers: 1,
                warm_up: Duration::ZERO,
                until,
                verify: false,
                target_times: None,
                seed: 1,
                interval: Duration::from_secs(1),
                patience: None,
            };
            let carried = Carried {
                measured: Measured::of(&Recorder::new(plan.interval)),
                ending: Ending::Complete,
                negotiated: None,
                content_seed: None,
                times_doubt: None,
            };
            let disk = DiskFacts {
                name: "memory".into(),
                kind: "memory".into(),
                engine: None,
                write: None,
                model: None,
                capacity_bytes: 1 << 20,
                block_bytes: 512,
            };
            let result = BenchResult::new(&plan, carried, disk, Host::look(), None, None);
            serde_json::to_value(result.workload).expect("JSON")["count"].clone()
        };
        assert_eq!(told(Until::Count(u64::MAX)), serde_json::Value::Null);
        assert_eq!(told(Until::Count(20)), 20);
    }
}
