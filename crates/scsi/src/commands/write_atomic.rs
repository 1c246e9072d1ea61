//! WRITE ATOMIC (16) (SBC-4): all of its blocks are written or none, whatever happens, and no other command sees a part.
//!
//! That no command sees a part is seen to by the command table, which has it run alone at the medium. That a loss of
//! power leaves no part is the store's promise; without it the command does not exist (docs/decisions/0023).

use super::range::{BlockRange, ByteRange};
use super::read_write::is_forced;
use super::{Context, Progress, State, Step, good, written};
use crate::bytes::{Cdb, cdb16};
use crate::io::{Direction, Io};
use crate::sense::{AdditionalSense, SenseData};
use crate::task::Event;
use crate::unit::{AtomicWrites, LogicalUnit};

const LBA_AT: u16 = 2;
const ATOMIC_BOUNDARY_AT: u16 = 10;

pub(super) fn write_atomic_16(context: &Context<'_>, cdb: &Cdb) -> Progress {
    let unit = context.unit();
    let blocks = BlockRange::of_write_atomic(cdb);
    let range = blocks.transfer(unit)?;
    check_limits(unit, &blocks, cdb16::<10>(cdb))?;
    if range.length_bytes == 0 {
        return good();
    }
    let write = WriteAtomic { range, stable: is_forced(cdb), writing: false };
    Ok((State::WriteAtomic(write), Step::DataOut(range.length_bytes)))
}

/// Holds a command against the limits that the Block Limits page tells. A boundary asks for less than is given: that
/// each part of so many blocks be atomic.
fn check_limits(unit: &LogicalUnit, range: &BlockRange, boundary: u16) -> Result<(), SenseData> {
    let limits = unit.config().atomic_writes;
    let AtomicWrites { granularity_blocks, blocks_max } =
        limits.ok_or(SenseData::illegal(AdditionalSense::INVALID_COMMAND_OPERATION_CODE))?;
    let granularity = u64::from(granularity_blocks.get());
    if !range.lba.is_multiple_of(granularity) {
        return Err(SenseData::invalid_cdb_field(LBA_AT, 7));
    }
    if boundary > blocks_max || !u64::from(boundary).is_multiple_of(granularity) {
        return Err(SenseData::invalid_cdb_field(ATOMIC_BOUNDARY_AT, 7));
    }
    if range.blocks > u32::from(blocks_max) || !u64::from(range.blocks).is_multiple_of(granularity) {
        return Err(range.wrong_length());
    }
    Ok(())
}

/// A WRITE ATOMIC that waits for its data or for the medium.
#[derive(Debug)]
pub(crate) struct WriteAtomic {
    range: ByteRange,
    /// FUA; and once the data is there, also true without a write cache.
    stable: bool,
    writing: bool,
}

impl WriteAtomic {
    pub(super) fn resume(self, context: &Context<'_>, event: Event<'_>) -> Progress {
        let unit = context.unit();
        if self.writing {
            event.io(Direction::Write, unit)?;
            return written(context, self.stable);
        }
        let ByteRange { offset_bytes, length_bytes } = self.range;
        // Less data than the CDB asks for would be a part of it.
        if event.data_out(length_bytes)?.len() as u32 != length_bytes {
            return Err(SenseData::illegal(AdditionalSense::INVALID_FIELD_IN_COMMAND_INFORMATION_UNIT));
        }
        let stable = self.stable || !unit.write_cache_enabled();
        let io = Io::WriteAtomic { offset_bytes, length_bytes, stable };
        Ok((State::WriteAtomic(WriteAtomic { stable, writing: true, ..self }), Step::Io(io)))
    }
}
