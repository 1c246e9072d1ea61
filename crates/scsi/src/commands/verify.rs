//! VERIFY, and the verification after WRITE AND VERIFY (SBC-3).
//!
//! The medium is read in pieces, so that a long verification holds little memory.

use super::range::{BlockRange, ByteRange};
use super::read_write::{Write, may_be_unstable};
use super::{Context, Progress, State, Step, good, protected};
use crate::bytes::Cdb;
use crate::io::{Direction, Io, PIECE_BYTES};
use crate::protection::ProtectField;
use crate::sense::{AdditionalSense, SenseData, SenseKey};
use crate::task::Event;

/// What the medium is compared with (the BYTCHK field).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Compare {
    /// 00b: nothing; it is enough that the blocks can be read.
    Nothing,
    /// 01b: the Data-Out buffer, byte by byte.
    Bytes,
    /// 11b: the one block of the Data-Out buffer, with every block.
    OneBlock,
}

/// The BYTCHK field; 10b is reserved.
fn compare_of(cdb: &Cdb) -> Result<Compare, SenseData> {
    match cdb[1] >> 1 & 0x03 {
        0 => Ok(Compare::Nothing),
        1 => Ok(Compare::Bytes),
        3 => Ok(Compare::OneBlock),
        _ => Err(SenseData::invalid_cdb_field(1, 2)),
    }
}

pub(super) fn verify_10(context: &Context<'_>, cdb: &Cdb) -> Progress {
    Verify::start(context, cdb, BlockRange::of_10(cdb))
}

pub(super) fn verify_12(context: &Context<'_>, cdb: &Cdb) -> Progress {
    Verify::start(context, cdb, BlockRange::of_12(cdb))
}

pub(super) fn verify_16(context: &Context<'_>, cdb: &Cdb) -> Progress {
    Verify::start(context, cdb, BlockRange::of_16(cdb))
}

pub(super) fn write_10(context: &Context<'_>, cdb: &Cdb) -> Progress {
    write_and_verify(context, cdb, BlockRange::of_10(cdb))
}

pub(super) fn write_12(context: &Context<'_>, cdb: &Cdb) -> Progress {
    write_and_verify(context, cdb, BlockRange::of_12(cdb))
}

pub(super) fn write_16(context: &Context<'_>, cdb: &Cdb) -> Progress {
    write_and_verify(context, cdb, BlockRange::of_16(cdb))
}

/// The data goes to the medium, not only to a cache, before it is verified. BYTCHK 11b is reserved here.
fn write_and_verify(context: &Context<'_>, cdb: &Cdb, blocks: BlockRange) -> Progress {
    match compare_of(cdb)? {
        Compare::OneBlock => Err(SenseData::invalid_cdb_field(1, 2)),
        compare => Write::start(context, cdb, blocks, true, Some(compare)),
    }
}

/// A verification that waits for its data, its flush, or a piece of the medium.
#[derive(Debug)]
pub(crate) struct Verify {
    range: ByteRange,
    compare: Compare,
    waiting: Waiting,
    /// How much has been verified, in bytes.
    position: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Waiting {
    DataOut,
    Flush,
    Piece,
}

impl Verify {
    fn start(context: &Context<'_>, cdb: &Cdb, blocks: BlockRange) -> Progress {
        let compare = compare_of(cdb)?;
        let range = blocks.transfer(context.unit())?;
        if let Some(protection) = context.unit().protection() {
            let flush_first = may_be_unstable(context);
            return protected::verify(protection, ProtectField::of(cdb)?, range, compare, flush_first);
        }
        if range.length_bytes == 0 {
            return good();
        }
        let verify = Verify { range, compare, waiting: Waiting::DataOut, position: 0 };
        match verify.data_out_bytes(context) {
            0 => Ok(verify.flush_first(context)),
            length_bytes => Ok((State::Verify(verify), Step::DataOut(length_bytes))),
        }
    }

    /// Reads back what a WRITE AND VERIFY has just put on the medium.
    pub(super) fn after_write(range: ByteRange, compare: Compare) -> (State, Step) {
        Verify { range, compare, waiting: Waiting::Piece, position: 0 }.next_piece()
    }

    fn data_out_bytes(&self, context: &Context<'_>) -> u32 {
        match self.compare {
            Compare::Nothing => 0,
            Compare::Bytes => self.range.length_bytes,
            Compare::OneBlock => context.unit().block_length_bytes(),
        }
    }

    /// The medium is verified, not the volatile cache before it (SBC-3, caches).
    fn flush_first(self, context: &Context<'_>) -> (State, Step) {
        if may_be_unstable(context) {
            (State::Verify(Verify { waiting: Waiting::Flush, ..self }), Step::Io(Io::Flush))
        } else {
            self.next_piece()
        }
    }

    fn piece_bytes(&self) -> u32 {
        (self.range.length_bytes - self.position).min(PIECE_BYTES)
    }

    fn next_piece(self) -> (State, Step) {
        let io = Io::Read {
            offset_bytes: self.range.offset_bytes + u64::from(self.position),
            length_bytes: self.piece_bytes(),
            inspected: true,
        };
        (State::Verify(Verify { waiting: Waiting::Piece, ..self }), Step::Io(io))
    }

    pub(super) fn resume(self, context: &Context<'_>, event: Event<'_>) -> Progress {
        match self.waiting {
            Waiting::DataOut => {
                let needed = self.data_out_bytes(context);
                if event.data_out(needed)?.len() as u32 != needed {
                    return Err(SenseData::illegal(
                        AdditionalSense::INVALID_FIELD_IN_COMMAND_INFORMATION_UNIT,
                    ));
                }
                Ok(self.flush_first(context))
            }
            Waiting::Flush => {
                event.io(Direction::Write, context.unit())?;
                Ok(self.next_piece())
            }
            Waiting::Piece => {
                let done = event.io(Direction::Read, context.unit())?;
                self.piece_came(context, done.data_out, done.medium)
            }
        }
    }

    fn piece_came(self, context: &Context<'_>, data_out: &[u8], medium: &[u8]) -> Progress {
        let piece = self.piece_bytes();
        let medium = medium.get(..piece as usize).ok_or(SenseData::internal())?;
        if let Some(offset) = self.first_difference(context, data_out, medium)? {
            return Err(miscompare_at(offset));
        }
        let position = self.position + piece;
        if position == self.range.length_bytes {
            return good();
        }
        Ok(Verify { position, ..self }.next_piece())
    }

    /// Where in the Data-Out buffer this piece of the medium first differs from it.
    fn first_difference(
        &self,
        context: &Context<'_>,
        data_out: &[u8],
        medium: &[u8],
    ) -> Result<Option<u64>, SenseData> {
        match self.compare {
            Compare::Nothing => Ok(None),
            Compare::Bytes => {
                let start = self.position as usize;
                let expected = data_out.get(start..start + medium.len()).ok_or(SenseData::internal())?;
                Ok(difference(expected, medium).map(|at| (start + at) as u64))
            }
            Compare::OneBlock => {
                let block_length = context.unit().block_length_bytes() as usize;
                let expected = data_out.get(..block_length).ok_or(SenseData::internal())?;
                Ok(medium
                    .chunks(block_length)
                    .find_map(|block| difference(expected, block))
                    .map(|at| at as u64))
            }
        }
    }
}

/// MISCOMPARE DURING VERIFY OPERATION with the offset of the first byte that differs in INFORMATION, if one does.
pub(super) fn miscompare(expected: &[u8], actual: &[u8]) -> Option<SenseData> {
    difference(expected, actual).map(|at| miscompare_at(at as u64))
}

/// MISCOMPARE DURING VERIFY OPERATION at a byte of the Data-Out buffer.
pub(super) fn miscompare_at(offset: u64) -> SenseData {
    SenseData::new(SenseKey::Miscompare, AdditionalSense::MISCOMPARE_DURING_VERIFY)
        .with_information(Some(offset))
}

/// The first place where two equally long slices differ. Equal ones, the usual case, are found by one comparison.
pub(super) fn difference(expected: &[u8], actual: &[u8]) -> Option<usize> {
    if expected == actual {
        None
    } else {
        expected.iter().zip(actual).position(|(left, right)| left != right)
    }
}
