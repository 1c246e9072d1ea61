//! What is read of memory is written before: what was never written is a page of zeroes, which a processor has in its cache.
//!
//! It is written from where the target is, so that nothing of it goes over the link.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use lunette_initiator::{Lun, Options};
use lunette_workload::{Kind, Range, Trace};

use super::site::{BLOCK_BYTES, Site};
use crate::bench::{Filled, Transfers, fill, read_back};
use crate::endpoint::{Endpoint, Session, SessionDisk};
use crate::{LabError, Monitor};

/// What was written on the disks of a site.
#[derive(Debug, Default)]
pub(super) struct Written {
    /// On that of its own target, each time that somebody wanted to read there.
    ranges: Mutex<Vec<Vec<Range>>>,
    read_back_bytes: AtomicU64,
}

impl Written {
    /// How much of it was read back, and was right, in bytes.
    pub(super) fn read_back_bytes(&self) -> u64 {
        self.read_back_bytes.load(Ordering::Relaxed)
    }
}

/// What the first operations of a trace read, in order, each place once.
pub(super) fn read_by(trace: &Trace, count: u64) -> Vec<Range> {
    let count = usize::try_from(count).unwrap_or(usize::MAX);
    let operations = trace.records().iter().take(count).map(|record| record.operation);
    let mut places: Vec<(u64, u64)> = operations
        .filter(|operation| operation.kind == Kind::Read)
        .map(|operation| (operation.offset_bytes, operation.offset_bytes + u64::from(operation.length_bytes)))
        .collect();
    places.sort_unstable();
    let mut ranges: Vec<Range> = Vec::new();
    for (offset_bytes, end) in places {
        match ranges.last_mut() {
            Some(last) if offset_bytes <= last.offset_bytes + last.length_bytes => {
                last.length_bytes = last.length_bytes.max(end - last.offset_bytes);
            }
            _ => ranges.push(Range { offset_bytes, length_bytes: end - offset_bytes }),
        }
    }
    ranges
}

impl Site {
    /// Has these ranges of the disk of this site's own target written, unless they are already. LIO's disk has its memory from the
    /// beginning.
    pub(super) fn write_once(&self, ranges: &[Range], seed: u64) -> Result<(), LabError> {
        let mut written = self.written().ranges.lock().unwrap_or_else(PoisonError::into_inner);
        if ranges.is_empty() || self.has_memory() || written.iter().any(|known| known == ranges) {
            return Ok(());
        }
        let (options, lun) = self.options_at_target()?;
        self.write_at_target(&SessionDisk::one(&options, lun, BLOCK_BYTES), ranges, seed)?;
        written.push(ranges.to_vec());
        Ok(())
    }

    /// Has these ranges of units written that a further target at the far end has.
    pub(super) fn write_units(
        &self,
        (options, luns, unit_bytes): (&Options, Vec<Lun>, u64),
        ranges: &[Range],
        seed: u64,
    ) -> Result<(), LabError> {
        if ranges.is_empty() {
            return Ok(());
        }
        let disk = SessionDisk { options, luns, unit_bytes, block_bytes: BLOCK_BYTES };
        self.write_at_target(&disk, ranges, seed)
    }

    /// A sample of it is read back: a target that answers with something else has no figure here.
    fn write_at_target(&self, disk: &SessionDisk<'_>, ranges: &[Range], seed: u64) -> Result<(), LabError> {
        self.at_target(|| {
            let mut session = Session::open(disk)?;
            // No target of a study takes less in one command than is written at once.
            let transfers = Transfers { block_bytes: disk.block_bytes, longest_bytes: None };
            let filled = fill(&mut session, ranges, transfers, seed, &Monitor::default())?;
            if filled != Filled::Whole {
                return Err(LabError::NotReady("a disk is not written".to_owned()));
            }
            let right_bytes = read_back(&mut session, ranges, transfers, seed)?;
            session.close();
            self.written().read_back_bytes.fetch_add(right_bytes, Ordering::Relaxed);
            Ok(())
        })?
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use lunette_workload::Operation;

    use super::*;

    #[test]
    fn what_a_trace_reads_is_each_place_once() {
        let trace = Trace::lu_du(1).expect("a trace");
        let all = read_by(&trace, u64::MAX);
        let lies_within = |operation: &Operation| {
            let end = operation.offset_bytes + u64::from(operation.length_bytes);
            all.iter().any(|range| {
                range.offset_bytes <= operation.offset_bytes && end <= range.offset_bytes + range.length_bytes
            })
        };
        let is_read = |operation: &&Operation| operation.kind == Kind::Read;
        let operations = || trace.records().iter().map(|record| &record.operation);
        assert!(operations().filter(is_read).all(lies_within));
        assert!(
            all.windows(2).all(|pair| pair[0].offset_bytes + pair[0].length_bytes < pair[1].offset_bytes)
        );
        let bytes = |ranges: &[Range]| ranges.iter().map(|range| range.length_bytes).sum::<u64>();
        let read: u64 = operations().filter(is_read).map(|operation| u64::from(operation.length_bytes)).sum();
        assert!(bytes(&all) <= read && bytes(&all) > read * 8 / 10, "{} of {read}", bytes(&all));
        assert!(bytes(&read_by(&trace, 100)) < bytes(&all) / 20);
        assert!(trace.records()[0].at == Duration::ZERO && read_by(&trace, 0).is_empty());
    }
}
