//! READ LONG and WRITE LONG (SBC-3).
//!
//! A volume has no error correction bytes to give or to take, so a long block is the block, with its protection information
//! if it has any, which comes and goes unchecked. What is left of the commands is
//! what software uses them for: blocks marked as unreadable ([`crate::marks`]), which only units have that can keep the
//! marks over a restart.

use std::ops::Range;

use super::{Context, Progress, State, Step, good, save};
use crate::bytes::{Cdb, cdb16, cdb32, cdb64};
use crate::io::{BlockLengths, Direction, Io};
use crate::marks::Mark;
use crate::sense::{AdditionalSense, SenseData};
use crate::task::{DataIn, Event};
use crate::unit::LogicalUnit;

/// Of WRITE LONG, in byte 1.
const CORRECTION_DISABLED: u8 = 0x80;
const WRITE_UNCORRECTABLE: u8 = 0x40;
const WRITE_PHYSICAL_BLOCK: u8 = 0x20;

/// The block, or the physical block, that a command is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct LongBlock {
    lba: u64,
    blocks: u32,
    lengths: BlockLengths,
}

impl LongBlock {
    /// A physical block that the medium's end cuts is as long as there is medium.
    fn of(unit: &LogicalUnit, lba: u64, physical: bool) -> Result<LongBlock, SenseData> {
        let capacity = unit.blocks();
        if lba >= capacity {
            return Err(SenseData::illegal(AdditionalSense::LBA_OUT_OF_RANGE));
        }
        let exponent = if physical { unit.config().physical_block_exponent } else { 0 };
        let first = lba >> exponent << exponent;
        // The exponent is at most 15.
        let blocks = (capacity - first).min(1 << exponent) as u32;
        Ok(LongBlock { lba: first, blocks, lengths: unit.block_lengths() })
    }

    fn lbas(self) -> Range<u64> {
        self.lba..self.lba + u64::from(self.blocks)
    }

    fn offset_bytes(self) -> u64 {
        self.lba * self.lengths.data
    }

    /// On the way to and from the initiator: with the protection information, if there is any.
    fn length_bytes(self) -> u32 {
        // A block has at most 4104 bytes, and a physical block 2^15 blocks.
        self.blocks * self.lengths.stored as u32
    }

    fn data_bytes(self) -> u32 {
        self.blocks * self.lengths.data as u32
    }

    /// Another length than the block's: ILI, and in INFORMATION how much more or less was asked for.
    fn check_length(self, asked_bytes: u16) -> Result<(), SenseData> {
        let difference = i64::from(asked_bytes) - i64::from(self.length_bytes());
        if difference == 0 {
            return Ok(());
        }
        Err(SenseData::illegal(AdditionalSense::INVALID_FIELD_IN_CDB).with_wrong_length(difference))
    }
}

pub(super) fn read_10(context: &Context<'_>, cdb: &Cdb) -> Progress {
    read(context, cdb32::<2>(cdb).into(), cdb16::<7>(cdb), cdb[1] & 0x04 != 0, cdb[1] & 0x02 != 0)
}

pub(super) fn read_16(context: &Context<'_>, cdb: &Cdb) -> Progress {
    read(context, cdb64::<2>(cdb), cdb16::<12>(cdb), cdb[14] & 0x02 != 0, cdb[14] & 0x01 != 0)
}

/// With `corrected` (CORRCT) a marked block fails as in READ; without it the block comes as it is.
fn read(context: &Context<'_>, lba: u64, asked_bytes: u16, physical: bool, corrected: bool) -> Progress {
    let block = LongBlock::of(context.unit(), lba, physical)?;
    if asked_bytes == 0 {
        return good();
    }
    block.check_length(asked_bytes)?;
    let (offset_bytes, length_bytes) = (block.offset_bytes(), block.data_bytes());
    let io = Io::Read { offset_bytes, length_bytes, inspected: false };
    Ok((State::ReadLong(ReadLong { length_bytes: block.length_bytes(), corrected }), Step::Io(io)))
}

/// A READ LONG that waits for its block.
#[derive(Debug)]
pub(crate) struct ReadLong {
    length_bytes: u32,
    pub(super) corrected: bool,
}

impl ReadLong {
    pub(super) fn resume(self, context: &Context<'_>, event: Event<'_>) -> Progress {
        event.io(Direction::Read, context.unit())?;
        Ok((State::Finished, Step::Done(DataIn::Medium { length_bytes: self.length_bytes })))
    }
}

pub(super) fn write_10(context: &Context<'_>, cdb: &Cdb) -> Progress {
    write(context, cdb[1], cdb32::<2>(cdb).into(), cdb16::<7>(cdb))
}

pub(super) fn write_16(context: &Context<'_>, cdb: &Cdb) -> Progress {
    write(context, cdb[1], cdb64::<2>(cdb), cdb16::<12>(cdb))
}

/// With WR_UNCOR the block is marked and nothing is written; COR_DIS alone writes it and marks it then. Either way it is
/// alone at the medium, so that nobody reads or writes the block meanwhile.
fn write(context: &Context<'_>, flags: u8, lba: u64, given_bytes: u16) -> Progress {
    let block = LongBlock::of(context.unit(), lba, flags & WRITE_PHYSICAL_BLOCK != 0)?;
    let mark = match (flags & CORRECTION_DISABLED != 0, flags & WRITE_UNCORRECTABLE != 0) {
        (true, _) => Some(Mark::ByClient),
        (false, true) => Some(Mark::Uncorrectable),
        (false, false) => None,
    };
    if flags & WRITE_UNCORRECTABLE != 0 {
        return Ok((State::WriteLong(WriteLong { block, mark, waiting: Waiting::Turn }), Step::Alone));
    }
    if given_bytes == 0 {
        return good();
    }
    block.check_length(given_bytes)?;
    let write = WriteLong { block, mark, waiting: Waiting::Data };
    Ok((State::WriteLong(write), Step::DataOutThenAlone(block.length_bytes())))
}

/// A WRITE LONG that waits for its turn, its data or the medium.
#[derive(Debug)]
pub(crate) struct WriteLong {
    block: LongBlock,
    mark: Option<Mark>,
    waiting: Waiting,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Waiting {
    Turn,
    Data,
    Write,
}

impl WriteLong {
    pub(super) fn resume(self, context: &Context<'_>, event: Event<'_>) -> Progress {
        let unit = context.unit();
        match self.waiting {
            Waiting::Turn => {
                event.data_out(0)?;
                self.mark(unit)
            }
            Waiting::Data => {
                let length_bytes = self.block.length_bytes();
                if event.data_out(length_bytes)?.len() as u32 != length_bytes {
                    let code = AdditionalSense::INVALID_FIELD_IN_COMMAND_INFORMATION_UNIT;
                    return Err(SenseData::illegal(code));
                }
                // Not when it is written: it would be good then, and the command is refused. It is alone, so the room stays.
                if self.mark.is_some() && !unit.marks().has_room(&self.block.lbas()) {
                    return Err(no_room());
                }
                let io = Io::WriteDataOut {
                    offset_bytes: self.block.offset_bytes(),
                    start: 0,
                    length_bytes,
                    stable: true,
                };
                Ok((State::WriteLong(WriteLong { waiting: Waiting::Write, ..self }), Step::Io(io)))
            }
            Waiting::Write => {
                event.io(Direction::Write, unit)?;
                self.mark(unit)
            }
        }
    }

    /// The mark outlives a restart before the command is answered.
    fn mark(self, unit: &LogicalUnit) -> Progress {
        let Some(mark) = self.mark else { return good() };
        unit.set_marks(self.block.lbas(), mark).map_err(|_| no_room())?;
        save(unit)
    }
}

/// As many blocks are marked as can be.
fn no_room() -> SenseData {
    SenseData::illegal(AdditionalSense::INSUFFICIENT_RESOURCES)
}
