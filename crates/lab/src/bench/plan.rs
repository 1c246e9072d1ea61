//! What is to be measured.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use lunette_block::Volume;
use lunette_initiator::{Lun, Options};
use lunette_workload::{
    Arrivals, GRAINS_MAX, Generator, Ledger, Pace, Percent, Range, Trace, Workload, WorkloadError,
};

use super::Transfers;
use super::recorder::STEPS_MAX;
use super::source::Source;
use crate::{LabError, WriteMode};

/// The most operations under way of one worker: what a session of the initiator holds.
pub const DEPTH_MAX: u32 = 4096;
/// The most workers; each is a thread.
pub const WORKERS_MAX: u32 = 64;

/// The most that the operations under way at once of all workers may hold, in bytes: both ends keep it in memory.
pub(crate) const REQUESTS_BYTES_MAX: u64 = 1 << 30;

/// Where operations go.
#[derive(Debug, Clone)]
pub enum Disk {
    /// A logical unit; each worker has a session with its target.
    Unit {
        /// How each session is to be.
        options: Box<Options>,
        /// The unit.
        lun: Lun,
    },
    /// Several units of a target, one behind the other: an operation goes to the unit that has its place. Each worker has one session for
    /// all of them.
    Units {
        /// How each session is to be.
        options: Box<Options>,
        /// The units, in the order of places.
        luns: Vec<Lun>,
        /// How many bytes of each there are; no operation crosses from one to the next.
        unit_bytes: u64,
    },
    /// A file, a block device or memory of this machine.
    Local {
        /// The file, device or memory.
        volume: Arc<Volume>,
        /// When its writes have ended.
        write: WriteMode,
    },
}

/// How long is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Until {
    /// For this time.
    Time(Duration),
    /// For so many operations of all workers together, one of each at least.
    Count(u64),
}

/// What is done, and when.
#[derive(Debug, Clone)]
pub enum Work {
    /// What a workload says.
    Workload {
        /// What.
        workload: Workload,
        /// When each operation begins.
        arrivals: Arrivals,
    },
    /// What was once done elsewhere. It cannot be verified: the trace does not say what was there before.
    Trace {
        /// How it is called.
        name: String,
        /// What; it lies in the plan's range ([`Trace::fit`]). Workers take turns.
        trace: Arc<Trace>,
        /// When.
        pace: Pace,
    },
}

/// Everything about one measurement.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Where.
    pub disk: Disk,
    /// The length of the disk's logical blocks in bytes.
    pub block_bytes: u32,
    /// The most that one command of the disk moves, in bytes: what is written besides the workload is not longer. None: it says nothing.
    pub transfer_bytes_max: Option<u32>,
    /// Which part of it, whole blocks.
    pub range: Range,
    /// What.
    pub work: Work,
    /// Operations under way at once of each worker, 1 to [`DEPTH_MAX`]. In an open loop what arrives beyond them waits, and its
    /// latency counts. What all workers have under way takes 1 GiB of memory at most.
    pub depth: u32,
    /// Workers, 1 to [`WORKERS_MAX`].
    pub workers: u32,
    /// How long the workload runs before anything counts.
    pub warm_up: Duration,
    /// How long is measured; a trace ends in any case.
    pub until: Until,
    /// The range is written first, and everything that is read is compared with what was written last, so something is to be read. Workers
    /// have a part of the range each.
    pub verify: bool,
    /// Where a target of ours writes down the times of this unit's tasks (`TARGET.LUN.times`), which tells more parts of each
    /// latency apart.
    pub target_times: Option<PathBuf>,
    /// Where all that is left to chance begins.
    pub seed: u64,
    /// The length of the steps of the time series. A time has 1,048,576 of them at most; where a number of operations takes longer
    /// than that, they become longer.
    pub interval: Duration,
    /// How long what is under way at the end is waited for, which counts no more where there was a time; then its session ends
    /// without a word. None: until all of it is over.
    pub patience: Option<Duration>,
}

impl Plan {
    /// Holds the plan against what can be carried out.
    ///
    /// # Errors
    /// A sentence that says what is wrong with it.
    pub fn check(&self) -> Result<(), LabError> {
        let within = |what: &str, value: u32, max: u32| {
            let fault = || LabError::Plan(format!("{what} is a number from 1 to {max}"));
            (1..=max).contains(&value).then_some(()).ok_or_else(fault)
        };
        within("the depth", self.depth, DEPTH_MAX)?;
        within("the number of workers", self.workers, WORKERS_MAX)?;
        if self.interval.is_zero() {
            return Err(LabError::Plan("the steps of the time series have a length".into()));
        }
        if matches!(self.until, Until::Count(0)) || self.until == Until::Time(Duration::ZERO) {
            return Err(LabError::Plan("nothing is to be measured".into()));
        }
        self.check_memory()?;
        if let Until::Count(count) = self.until
            && count < u64::from(self.workers)
        {
            return Err(LabError::Plan(format!(
                "{} workers cannot share {count} operations: give a greater --count, or fewer --workers",
                self.workers
            )));
        }
        if let Until::Time(time) = self.until {
            let steps = time.as_nanos().div_ceil(self.interval.as_nanos());
            if steps > u128::from(STEPS_MAX) {
                return Err(LabError::Plan(format!(
                    "the time series would have {steps} steps, and {STEPS_MAX} are the most: give a longer --interval, or a shorter --time"
                )));
            }
        }
        if let Work::Trace { trace, .. } = &self.work {
            let end_bytes = self.range.offset_bytes + self.range.length_bytes;
            if trace.end_bytes() > end_bytes || self.verify {
                let fault =
                    if self.verify { "a trace cannot be verified" } else { "the trace is not of this range" };
                return Err(LabError::Plan(fault.into()));
            }
        }
        if let Work::Workload { workload, .. } = &self.work
            && self.verify
            && workload.read == Percent::ZERO
        {
            return Err(LabError::Plan(
                "--verify compares what is read with what was written, and nothing would be read: give a --read of more than 0, or leave \
                 out --verify"
                    .into(),
            ));
        }
        if let Disk::Units { luns, unit_bytes, .. } = &self.disk {
            let all_bytes = unit_bytes.saturating_mul(luns.len() as u64);
            if *unit_bytes == 0 || self.range.offset_bytes + self.range.length_bytes > all_bytes {
                return Err(LabError::Plan("the range is longer than all units".into()));
            }
            if self.target_times.is_some() {
                return Err(LabError::Plan("the times of a target's tasks are those of one unit".into()));
            }
        }
        self.check_shares()?;
        self.check_ledgers()?;
        self.source(0)?;
        self.ledger(0).map(drop)
    }

    /// Where each worker has a part of the range, it has room for each operation that the whole range has room for.
    fn check_shares(&self) -> Result<(), LabError> {
        let Work::Workload { workload, .. } = &self.work else { return Ok(()) };
        let (share_bytes, largest_bytes) = (self.share(0).length_bytes, workload.sizes.largest());
        let is_short = |bytes: u64| bytes < u64::from(largest_bytes);
        if !self.verify || !is_short(share_bytes) || is_short(self.range.length_bytes) {
            return Ok(());
        }
        Err(LabError::Plan(format!(
            "each of {} workers verifies {share_bytes} of the {} bytes of the range, which has no room for an operation of {largest_bytes}: \
             give a greater --length, or fewer --workers",
            self.workers, self.range.length_bytes
        )))
    }

    /// What all workers remember together is no more than one may remember.
    fn check_ledgers(&self) -> Result<(), LabError> {
        let grains = self.range.length_bytes / u64::from(self.grain_bytes().max(1));
        if self.verify && grains > GRAINS_MAX {
            return Err(WorkloadError::Grains { grains, max: GRAINS_MAX }.into());
        }
        Ok(())
    }

    /// Holds what is under way at once against the memory that it may have.
    fn check_memory(&self) -> Result<(), LabError> {
        let largest_bytes = match &self.work {
            Work::Workload { workload, .. } => workload.sizes.largest(),
            Work::Trace { trace, .. } => trace.longest_bytes(),
        };
        let buffer_bytes = match self.disk {
            // Buffers of volumes are so long.
            Disk::Local { .. } => u64::from(largest_bytes).next_power_of_two(),
            Disk::Unit { .. } | Disk::Units { .. } => largest_bytes.into(),
        };
        let buffers = u64::from(self.depth) * u64::from(self.workers);
        if buffer_bytes.saturating_mul(buffers) <= REQUESTS_BYTES_MAX {
            return Ok(());
        }
        Err(LabError::Plan(format!(
            "{} operations of {largest_bytes} bytes under way of each of {} workers take more than {} GiB of memory: give a lesser size, \
             --depth or --workers",
            self.depth,
            self.workers,
            REQUESTS_BYTES_MAX >> 30
        )))
    }

    /// The operations of one worker.
    pub(crate) fn source(&self, worker: u32) -> Result<Source, LabError> {
        let (workload, arrivals) = match &self.work {
            Work::Trace { trace, pace, .. } => {
                return Ok(Source::taken(Arc::clone(trace), *pace, worker, self.workers));
            }
            Work::Workload { workload, arrivals } => (workload, *arrivals),
        };
        let (range, place) =
            if self.verify { (self.share(worker), (0, 1)) } else { (self.range, (worker, self.workers)) };
        // Workers with a range of their own still draw from streams of their own.
        let seed = if self.verify { self.seed.wrapping_add(u64::from(worker) << 32) } else { self.seed };
        let generator = Generator::new(workload, range, self.block_bytes, seed, place)?;
        Ok(Source::made(generator, arrivals, self.seed, [worker, self.workers]))
    }

    /// What one worker remembers of its part of the range; nothing unless everything is verified.
    pub(crate) fn ledger(&self, worker: u32) -> Result<Option<Ledger>, LabError> {
        let ledger = self.verify.then(|| Ledger::new(self.share(worker), self.grain_bytes())).transpose();
        Ok(ledger?)
    }

    /// What one command of the disk moves.
    pub(crate) const fn transfers(&self) -> Transfers {
        Transfers { block_bytes: self.block_bytes, longest_bytes: self.transfer_bytes_max }
    }

    /// The part of the range that one worker verifies.
    pub(crate) fn share(&self, worker: u32) -> Range {
        self.range.share(worker, self.workers, self.grain_bytes())
    }

    fn grain_bytes(&self) -> u32 {
        match &self.work {
            Work::Workload { workload, .. } => workload.sizes.grain_bytes(),
            Work::Trace { .. } => self.block_bytes.max(1),
        }
    }

    /// How many operations this worker has to do, where they are counted.
    pub(crate) fn count(&self, worker: u32) -> Option<u64> {
        match self.until {
            Until::Time(_) => None,
            Until::Count(count) => {
                let (each, rest) = (count / u64::from(self.workers), count % u64::from(self.workers));
                Some(each + u64::from(u64::from(worker) < rest))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use lunette_block::{StoreSpec, VolumeSpec};
    use lunette_workload::{Sizes, Spread};

    use super::*;

    /// Of 4 KiB at random on memory of a megabyte, verified.
    fn verified(read: u8) -> Plan {
        let store = StoreSpec::Memory { size_bytes: 1 << 20 };
        let volume = Volume::open(&VolumeSpec::new("memory", store)).expect("a volume");
        let sizes = Sizes::one(4096);
        let workload =
            Workload { sizes, read: Percent::new(read), random: Percent::ALL, spread: Spread::Uniform };
        Plan {
            disk: Disk::Local { volume, write: WriteMode::Back },
            block_bytes: 512,
            transfer_bytes_max: None,
            range: Range { offset_bytes: 0, length_bytes: 1 << 20 },
            work: Work::Workload { workload, arrivals: Arrivals::Closed },
            depth: 1,
            workers: 1,
            warm_up: Duration::ZERO,
            until: Until::Count(1),
            verify: true,
            target_times: None,
            seed: 1,
            interval: Duration::from_secs(1),
            patience: None,
        }
    }

    #[test]
    fn who_reads_nothing_verifies_nothing() {
        let refused = |read: u8| verified(read).check().err().map(|error| error.to_string());
        assert!(refused(0).is_some_and(|told| told.contains("nothing would be read: give a --read of more")));
        assert_eq!(refused(1), None);
    }

    #[test]
    fn what_is_remembered_is_bounded_for_all_workers_together() {
        let range = Range { offset_bytes: 0, length_bytes: (GRAINS_MAX + 4) * 4096 };
        let plan = Plan { range, workers: 4, until: Until::Count(4), ..verified(50) };
        let refused = plan.check().err().map(|error| error.to_string());
        assert!(refused.is_some_and(|told| told.contains(&GRAINS_MAX.to_string())));
        assert!(Plan { verify: false, ..plan }.check().is_ok(), "nothing is remembered");
    }
}
