//! SYNCHRONIZE CACHE and PRE-FETCH (SBC-3).

use super::range::BlockRange;
use super::{Context, Progress, State, Step, good};
use crate::bytes::Cdb;
use crate::io::{Direction, Io, IoError};
use crate::sense::SenseData;
use crate::task::Event;

pub(super) fn synchronize_10(context: &Context<'_>, cdb: &Cdb) -> Progress {
    synchronize(context, BlockRange::of_10(cdb))
}

pub(super) fn synchronize_16(context: &Context<'_>, cdb: &Cdb) -> Progress {
    synchronize(context, BlockRange::of_16(cdb))
}

/// Flushes the whole volume, which covers any range. IMMED is taken and the status waits all the same: a flush that
/// fails is then told in its own command instead of being lost between two.
fn synchronize(context: &Context<'_>, blocks: BlockRange) -> Progress {
    blocks.blocks_left(context.unit())?;
    if context.unit().config().read_only {
        return good();
    }
    Ok((State::Flush, Step::Io(Io::Flush)))
}

pub(super) fn prefetch_10(context: &Context<'_>, cdb: &Cdb) -> Progress {
    prefetch(context, BlockRange::of_10(cdb))
}

pub(super) fn prefetch_16(context: &Context<'_>, cdb: &Cdb) -> Progress {
    prefetch(context, BlockRange::of_16(cdb))
}

/// Asks for at most one maximum transfer; a length of 0 means to the end. The status is GOOD, which says that not all
/// of the range need be in the cache, and not CONDITION MET, which would promise it.
fn prefetch(context: &Context<'_>, blocks: BlockRange) -> Progress {
    let unit = context.unit();
    let left = blocks.blocks_left(unit)?;
    let wanted = if blocks.blocks == 0 { left } else { u64::from(blocks.blocks) };
    let block_length = u64::from(unit.block_length_bytes());
    let length_bytes = wanted.min(unit.max_transfer_blocks().into()) * block_length;
    if length_bytes == 0 {
        return good();
    }
    Ok((State::Prefetch, Step::Io(Io::Prefetch { offset_bytes: blocks.lba * block_length, length_bytes })))
}

/// A store without read-ahead is no error.
pub(super) fn prefetched(context: &Context<'_>, event: Event<'_>) -> Result<(State, Step), SenseData> {
    match event.io_result()? {
        Ok(_) | Err(IoError::Unsupported) => good(),
        Err(error) => Err(error.sense(Direction::Read, context.unit())),
    }
}
