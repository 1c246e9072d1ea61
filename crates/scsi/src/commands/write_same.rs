//! WRITE SAME (SBC-3).
//!
//! Zeros are left to the store where it can make them; any other pattern is written in pieces.

use super::protected::Pattern;
use super::range::BlockRange;
use super::{Context, Progress, State, Step, protected, written};
use crate::bytes::Cdb;
use crate::io::{Direction, Io, IoError, PIECE_BYTES};
use crate::protection::{ProtectField, Protection};
use crate::sense::{AdditionalSense, SenseData};
use crate::task::Event;

const UNMAP: u8 = 0x08;
/// With UNMAP: the blocks keep their space, or get it.
const ANCHOR: u8 = 0x10;
/// NDOB, only in the sixteen-byte command: no Data-Out buffer, the pattern is zeros.
const NO_DATA_OUT_BUFFER: u8 = 0x01;

pub(super) fn write_same_10(context: &Context<'_>, cdb: &Cdb) -> Progress {
    start(context, cdb, BlockRange::of_10(cdb))
}

pub(super) fn write_same_16(context: &Context<'_>, cdb: &Cdb) -> Progress {
    start(context, cdb, BlockRange::of_16(cdb))
}

fn start(context: &Context<'_>, cdb: &Cdb, range: BlockRange) -> Progress {
    let unit = context.unit();
    let unmap = cdb[1] & UNMAP != 0;
    if unmap && !unit.config().provisioning.unmap {
        return Err(SenseData::invalid_cdb_field(1, 3));
    }
    let anchor = cdb[1] & ANCHOR != 0;
    if anchor && !(unmap && unit.config().provisioning.anchors) {
        return Err(SenseData::invalid_cdb_field(1, 4));
    }
    range.blocks_left(unit)?;
    // WSNZ is 1: no blocks does not mean "to the end". The longest length would forbid that on all but tiny volumes.
    if range.blocks == 0 || range.blocks > unit.write_same_blocks_max() {
        return Err(range.wrong_length());
    }
    // Zeros that are written without being unmapped have space, whoever has written them.
    let unmap = unmap && !anchor;
    if let Some(protection) = unit.protection() {
        return start_protected(context, protection, cdb, range, unmap);
    }
    let block_length = unit.block_length_bytes();
    let write_same = WriteSame {
        offset_bytes: range.lba * u64::from(block_length),
        length_bytes: u64::from(range.blocks) * u64::from(block_length),
        unmap,
        first_piece: true,
        waiting: Waiting::DataOut,
    };
    if cdb[1] & NO_DATA_OUT_BUFFER == 0 && context.announced_bytes.is_some_and(|bytes| bytes != block_length)
    {
        return Err(SenseData::illegal(AdditionalSense::INVALID_FIELD_IN_COMMAND_INFORMATION_UNIT));
    }
    if cdb[1] & NO_DATA_OUT_BUFFER != 0 {
        return Ok(write_same.pattern_known(context, vec![0; block_length as usize]));
    }
    Ok((State::WriteSame(write_same), Step::DataOut(block_length)))
}

/// Begins one on a unit with protection information, after all other checks.
#[cold]
fn start_protected(
    context: &Context<'_>,
    protection: Protection,
    cdb: &Cdb,
    range: BlockRange,
    unmap: bool,
) -> Progress {
    let field = ProtectField::of(cdb)?;
    let has_block = cdb[1] & NO_DATA_OUT_BUFFER == 0;
    let needed = protected::block_of_write_same_bytes(protection, field);
    if has_block && context.announced_bytes.is_some_and(|bytes| bytes != needed) {
        return Err(SenseData::illegal(AdditionalSense::INVALID_FIELD_IN_COMMAND_INFORMATION_UNIT));
    }
    let pattern = if has_block { Pattern::DataOut(field) } else { Pattern::Zeros };
    Ok(protected::write_same(protection, (range.lba, range.blocks), pattern, unmap, context))
}

/// A WRITE SAME that waits for its block or for the medium.
#[derive(Debug)]
pub(crate) struct WriteSame {
    offset_bytes: u64,
    /// What is left to write.
    length_bytes: u64,
    unmap: bool,
    /// Nothing has been written yet.
    first_piece: bool,
    waiting: Waiting,
}

#[derive(Debug)]
enum Waiting {
    DataOut,
    Zero { stable: bool },
    Piece { pattern: Vec<u8>, stable: bool },
}

impl WriteSame {
    /// Begins to write zeros to blocks that are inside the medium, and gives their space back where that is possible.
    pub(super) fn zeros(context: &Context<'_>, lba: u64, blocks: u32) -> (State, Step) {
        if let Some(protection) = context.unit().protection() {
            let unmap = context.unit().config().provisioning.unmap;
            return protected::write_same(protection, (lba, blocks), Pattern::Zeros, unmap, context);
        }
        let block_length = context.unit().block_length_bytes();
        let write_same = WriteSame {
            offset_bytes: lba * u64::from(block_length),
            length_bytes: u64::from(blocks) * u64::from(block_length),
            unmap: context.unit().config().provisioning.unmap,
            first_piece: true,
            waiting: Waiting::DataOut,
        };
        write_same.pattern_known(context, vec![0; block_length as usize])
    }

    pub(super) fn resume(mut self, context: &Context<'_>, event: Event<'_>) -> Progress {
        let unit = context.unit();
        let block_length = unit.block_length_bytes();
        match std::mem::replace(&mut self.waiting, Waiting::DataOut) {
            Waiting::DataOut => {
                let pattern = event.data_out(block_length)?;
                if pattern.len() as u32 != block_length {
                    return Err(SenseData::illegal(
                        AdditionalSense::INVALID_FIELD_IN_COMMAND_INFORMATION_UNIT,
                    ));
                }
                Ok(self.pattern_known(context, pattern.to_vec()))
            }
            Waiting::Zero { stable } => match event.io_result()? {
                Ok(_) => written(context, stable),
                Err(IoError::Unsupported) => Ok(self.next_piece(context, vec![0; block_length as usize])),
                Err(error) => Err(error.sense(Direction::Write, unit)),
            },
            Waiting::Piece { pattern, stable } => {
                event.io(Direction::Write, unit)?;
                let done = self.length_bytes.min(PIECE_BYTES.into());
                self.offset_bytes += done;
                self.length_bytes -= done;
                if self.length_bytes > 0 {
                    return Ok(self.next_piece(context, pattern));
                }
                written(context, stable)
            }
        }
    }

    /// With UNMAP, blocks of zeros may be unmapped because they read as zeros then (LBPRZ); a block of anything else
    /// is written, as if UNMAP had not been set.
    fn pattern_known(self, context: &Context<'_>, pattern: Vec<u8>) -> (State, Step) {
        let provisioning = context.unit().config().provisioning;
        let store_can_zero = provisioning.write_zeroes || self.unmap && provisioning.unmap;
        if !store_can_zero || pattern.iter().any(|&byte| byte != 0) {
            return self.next_piece(context, pattern);
        }
        let stable = !context.unit().write_cache_enabled();
        let io = Io::Zero {
            offset_bytes: self.offset_bytes,
            length_bytes: self.length_bytes,
            unmap: self.unmap,
            stable,
        };
        (State::WriteSame(WriteSame { waiting: Waiting::Zero { stable }, ..self }), Step::Io(io))
    }

    /// Without a write cache a single piece is written as stable; of several, the last is followed by one flush.
    fn next_piece(self, context: &Context<'_>, pattern: Vec<u8>) -> (State, Step) {
        let single = self.first_piece && self.length_bytes <= u64::from(PIECE_BYTES);
        let stable = single && !context.unit().write_cache_enabled();
        let blocks = self.length_bytes.min(PIECE_BYTES.into()) as usize / pattern.len();
        let io = Io::WriteOwned { offset_bytes: self.offset_bytes, bytes: pattern.repeat(blocks), stable };
        let waiting = Waiting::Piece { pattern, stable };
        (State::WriteSame(WriteSame { waiting, first_piece: false, ..self }), Step::Io(io))
    }
}
