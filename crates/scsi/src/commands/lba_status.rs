//! GET LBA STATUS (SBC-3).

use std::ops::Range;

use super::{Context, Progress, State, Step, parameter_data};
use crate::bytes::{Cdb, cdb32, cdb64};
use crate::io::{Allocation, Direction, Extent, Io, IoError, IoOutcome};
use crate::sense::{AdditionalSense, SenseData};
use crate::task::Event;
use crate::unit::LogicalUnit;

/// How much of the medium one command looks at: bounds the extents that a fragmented store can bring. The standard
/// lets the answer end anywhere; a host asks again from there.
const WINDOW_BYTES: u64 = 1 << 30;

pub(super) fn get_lba_status(context: &Context<'_>, cdb: &Cdb) -> Progress {
    let unit = context.unit();
    let block_length = u64::from(unit.block_length_bytes());
    let lba = cdb64::<2>(cdb);
    let Some(left) = unit.blocks().checked_sub(lba).filter(|&left| left > 0) else {
        return Err(SenseData::illegal(AdditionalSense::LBA_OUT_OF_RANGE));
    };
    let blocks = left.min(WINDOW_BYTES / block_length);
    let status = LbaStatus { lba, blocks, allocation_length: cdb32::<10>(cdb) };
    // Without provisioning management every block is mapped (SBC-3, logical block provisioning).
    if !unit.config().provisioning.unmap {
        return status.answer(unit, &[Run { blocks, allocation: Allocation::Mapped }]);
    }
    let io = Io::Extents { offset_bytes: lba * block_length, length_bytes: blocks * block_length };
    Ok((State::LbaStatus(status), Step::Io(io)))
}

/// A GET LBA STATUS that waits for the extents.
#[derive(Debug)]
pub(crate) struct LbaStatus {
    lba: u64,
    blocks: u64,
    allocation_length: u32,
}

/// Blocks in a row with the same status; never none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Run {
    blocks: u64,
    allocation: Allocation,
}

impl LbaStatus {
    pub(super) fn resume(self, context: &Context<'_>, event: Event<'_>) -> Progress {
        let extents = match event.io_result()? {
            Ok(done) => match done.outcome {
                IoOutcome::Extents(extents) => extents,
                IoOutcome::Done => return Err(SenseData::internal()),
            },
            // What is not known counts as mapped.
            Err(IoError::Unsupported) => Vec::new(),
            Err(error) => return Err(error.sense(Direction::Read, context.unit())),
        };
        let runs = self.runs(context.unit(), &extents);
        self.answer(context.unit(), &runs)
    }

    /// A block is deallocated where it lies in holes as a whole, and anchored where it lies in such space. Extents outside
    /// the range asked for, or out of order, are the driver's fault and do no harm.
    fn runs(&self, unit: &LogicalUnit, extents: &[Extent]) -> Vec<Run> {
        let block_length = u64::from(unit.block_length_bytes());
        let end = self.told_end(block_length, extents);
        let mut runs: Vec<Run> = Vec::new();
        let mut push = |blocks: u64, allocation: Allocation| match runs.last_mut() {
            _ if blocks == 0 => {}
            Some(last) if last.allocation == allocation => last.blocks += blocks,
            _ => runs.push(Run { blocks, allocation }),
        };
        let mut at = self.lba;
        for (start, stop, allocation) in unwritten(extents) {
            let first = start.div_ceil(block_length).clamp(at, end);
            let stop = (stop / block_length).clamp(first, end);
            push(first - at, Allocation::Mapped);
            push(stop - first, allocation);
            at = stop;
        }
        push(end - at, Allocation::Mapped);
        runs
    }

    /// The block at which the store's answer ends, if that is inside the range.
    fn told_end(&self, block_length: u64, extents: &[Extent]) -> u64 {
        let end = self.lba + self.blocks;
        let told =
            extents.last().map(|last| last.offset_bytes.saturating_add(last.length_bytes) / block_length);
        told.filter(|&told| told > self.lba).map_or(end, |told| told.min(end))
    }

    fn answer(&self, unit: &LogicalUnit, runs: &[Run]) -> Progress {
        let mut data = vec![0; 8];
        let mut lba = self.lba;
        for run in runs {
            for (blocks, is_marked) in marked_parts(unit, lba..lba + run.blocks) {
                // The window keeps every run below 2^32 blocks.
                data.extend(lba.to_be_bytes());
                data.extend((blocks as u32).to_be_bytes());
                // PROVISIONING STATUS, and ADDITIONAL STATUS of SBC-4: there may be unrecovered errors.
                data.extend([run.allocation.code(), u8::from(is_marked), 0, 0]);
                lba += blocks;
            }
        }
        let length = (data.len() - 4) as u32;
        data[..4].copy_from_slice(&length.to_be_bytes());
        parameter_data(data, self.allocation_length)
    }
}

/// A range in parts of which all blocks are marked as unreadable or none is, each with its length in blocks.
fn marked_parts(unit: &LogicalUnit, blocks: Range<u64>) -> Vec<(u64, bool)> {
    let mut parts: Vec<(u64, bool)> = Vec::new();
    let mut push = |blocks: u64, is_marked: bool| match parts.last_mut() {
        _ if blocks == 0 => {}
        Some((last, same)) if *same == is_marked => *last += blocks,
        _ => parts.push((blocks, is_marked)),
    };
    let mut at = blocks.start;
    while let Some((lba, _)) = unit.marks().first(at..blocks.end) {
        push(lba - at, false);
        push(1, true);
        at = lba + 1;
    }
    push(blocks.end - at, false);
    parts
}

/// What is not mapped, as start and end in bytes; neighbours of one kind are one.
fn unwritten(extents: &[Extent]) -> Vec<(u64, u64, Allocation)> {
    let mut parts: Vec<(u64, u64, Allocation)> = Vec::new();
    for extent in extents.iter().filter(|extent| extent.allocation != Allocation::Mapped) {
        let end = extent.offset_bytes.saturating_add(extent.length_bytes);
        match parts.last_mut() {
            Some((_, last, same)) if (*last, *same) == (extent.offset_bytes, extent.allocation) => {
                *last = end;
            }
            _ => parts.push((extent.offset_bytes, end, extent.allocation)),
        }
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::unit::tests::{config, unit_of};

    const M: Allocation = Allocation::Mapped;
    const D: Allocation = Allocation::Deallocated;
    const A: Allocation = Allocation::Anchored;

    fn runs(lba: u64, blocks: u64, extents: &[(u64, u64, Allocation)]) -> Vec<(u64, Allocation)> {
        let unit = unit_of(config());
        let extents: Vec<_> = extents
            .iter()
            .map(|&(offset_bytes, length_bytes, allocation)| Extent {
                offset_bytes,
                length_bytes,
                allocation,
            })
            .collect();
        let status = LbaStatus { lba, blocks, allocation_length: 0 };
        status.runs(&unit, &extents).iter().map(|run| (run.blocks, run.allocation)).collect()
    }

    #[test]
    fn holes_become_deallocated_blocks() {
        assert_eq!(runs(0, 8, &[]), [(8, M)]);
        assert_eq!(runs(0, 8, &[(0, 4096, D)]), [(8, D)]);
        assert_eq!(runs(2, 6, &[(1024, 512, D), (1536, 512, M), (2048, 2048, D)]), [(1, D), (1, M), (4, D)]);
        assert_eq!(runs(0, 8, &[(0, 512, D), (512, 512, D), (1024, 3072, M)]), [(2, D), (6, M)]);
    }

    #[test]
    fn a_block_partly_in_a_hole_is_mapped() {
        assert_eq!(runs(0, 4, &[(0, 100, M), (100, 1436, D), (1536, 512, M)]), [(1, M), (2, D), (1, M)]);
        assert_eq!(runs(0, 4, &[(0, 100, M), (100, 300, D), (400, 1648, M)]), [(4, M)]);
        assert_eq!(runs(0, 4, &[(0, 256, D), (256, 256, D), (512, 1536, M)]), [(1, D), (3, M)]);
    }

    #[test]
    fn the_answer_ends_where_the_stores_answer_ends() {
        assert_eq!(runs(0, 8, &[(0, 512, D), (512, 1000, M)]), [(1, D), (1, M)]);
        assert_eq!(runs(4, 4, &[(2048, 100, D)]), [(4, M)], "not one whole block is told");
    }

    #[test]
    fn extents_outside_the_range_do_no_harm() {
        assert_eq!(runs(4, 4, &[(0, 4096, D)]), [(4, D)]);
        assert_eq!(runs(0, 4, &[(u64::MAX - 5, 100, D)]), [(4, M)]);
        assert_eq!(runs(0, 4, &[(1024, 512, D), (0, 2048, D)]), [(2, M), (2, D)]);
    }

    #[test]
    fn a_block_is_anchored_where_all_of_it_is() {
        let extents = [(0, 512, A), (512, 1024, A), (1536, 100, D), (1636, 412, A), (2048, 1024, D)];
        assert_eq!(runs(0, 8, &extents[..2]), [(3, A)]);
        assert_eq!(runs(0, 6, &extents), [(3, A), (1, M), (2, D)], "half a hole is no promise");
    }
}
