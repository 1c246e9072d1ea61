//! COMPARE AND WRITE and ORWRITE (SBC-3): what is written depends on what is there.
//!
//! Nothing comes between their reading and their writing: the command table has them run alone at the medium.

use super::range::{BlockRange, ByteRange};
use super::read_write::is_forced;
use super::verify::miscompare;
use super::{Context, Progress, State, Step, good, protected, written};
use crate::bytes::Cdb;
use crate::io::{Direction, Io, PIECE_BYTES};
use crate::protection::ProtectField;
use crate::sense::{AdditionalSense, SenseData};
use crate::task::Event;

/// The Data-Out buffer holds the expected blocks, then the new ones.
pub(super) fn compare_and_write(context: &Context<'_>, cdb: &Cdb) -> Progress {
    let unit = context.unit();
    let blocks = BlockRange::of_compare_and_write(cdb);
    blocks.blocks_left(unit)?;
    if blocks.blocks > u32::from(unit.compare_and_write_blocks_max()) {
        return Err(blocks.wrong_length());
    }
    let range = blocks.transfer(unit)?;
    if range.length_bytes == 0 {
        // Data for no blocks: the number has one byte, and was meant to be larger.
        let has_data = context.announced_bytes.is_some_and(|bytes| bytes > 0);
        return if has_data { Err(blocks.wrong_length()) } else { good() };
    }
    if let Some(protection) = unit.protection() {
        let field = ProtectField::of(cdb)?;
        return protected::compare_and_write(context, protection, field, range, is_forced(cdb));
    }
    // The limit leaves room for twice the length.
    let data_out_bytes = 2 * range.length_bytes;
    if context.announced_bytes.is_some_and(|bytes| bytes != data_out_bytes) {
        return Err(wrong_amount());
    }
    Ok(start(cdb, range, What::CompareAndWrite, data_out_bytes))
}

pub(super) fn or_write(context: &Context<'_>, cdb: &Cdb) -> Progress {
    let range = BlockRange::of_16(cdb).transfer(context.unit())?;
    if range.length_bytes == 0 {
        return good();
    }
    if let Some(protection) = context.unit().protection() {
        return Ok(protected::or_write(protection, ProtectField::of(cdb)?, range, is_forced(cdb)));
    }
    Ok(start(cdb, range, What::Or, range.length_bytes))
}

fn start(cdb: &Cdb, range: ByteRange, what: What, data_out_bytes: u32) -> (State, Step) {
    let stable = is_forced(cdb);
    let command = ReadModifyWrite { range, what, stable, position: 0, waiting: Waiting::DataOut };
    (State::ReadModifyWrite(command), Step::DataOut(data_out_bytes))
}

/// INVALID FIELD IN COMMAND INFORMATION UNIT: the initiator has another amount of data than the CDB calls for.
fn wrong_amount() -> SenseData {
    SenseData::illegal(AdditionalSense::INVALID_FIELD_IN_COMMAND_INFORMATION_UNIT)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum What {
    CompareAndWrite,
    Or,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Waiting {
    DataOut,
    Read,
    Write,
}

/// A command that waits for its data or for the medium.
#[derive(Debug)]
pub(crate) struct ReadModifyWrite {
    range: ByteRange,
    what: What,
    /// FUA; and once the data is there, also true without a write cache.
    stable: bool,
    /// How much of the range is done, in bytes.
    position: u32,
    waiting: Waiting,
}

impl ReadModifyWrite {
    pub(super) fn resume(self, context: &Context<'_>, event: Event<'_>) -> Progress {
        let unit = context.unit();
        match self.waiting {
            Waiting::DataOut => {
                let needed = match self.what {
                    What::CompareAndWrite => 2 * self.range.length_bytes,
                    What::Or => self.range.length_bytes,
                };
                if event.data_out(needed)?.len() as u32 != needed {
                    return Err(wrong_amount());
                }
                // A MODE SELECT may have turned the cache off while the data was waited for.
                let stable = self.stable || !unit.write_cache_enabled();
                Ok(ReadModifyWrite { stable, ..self }.read())
            }
            Waiting::Read => {
                let done = event.io(Direction::Read, unit)?;
                match self.what {
                    What::CompareAndWrite => self.compare(done.data_out, done.medium),
                    What::Or => self.or(done.data_out, done.medium),
                }
            }
            Waiting::Write => {
                event.io(Direction::Write, unit)?;
                self.piece_written(context)
            }
        }
    }

    /// A COMPARE AND WRITE is one piece, because its limit is no more than one.
    fn piece_bytes(&self) -> u32 {
        (self.range.length_bytes - self.position).min(PIECE_BYTES)
    }

    fn offset_bytes(&self) -> u64 {
        self.range.offset_bytes + u64::from(self.position)
    }

    fn goes_on(self, waiting: Waiting, io: Io) -> (State, Step) {
        (State::ReadModifyWrite(ReadModifyWrite { waiting, ..self }), Step::Io(io))
    }

    fn read(self) -> (State, Step) {
        let (offset_bytes, length_bytes) = (self.offset_bytes(), self.piece_bytes());
        self.goes_on(Waiting::Read, Io::Read { offset_bytes, length_bytes, inspected: true })
    }

    fn compare(self, data_out: &[u8], medium: &[u8]) -> Progress {
        let length_bytes = self.range.length_bytes;
        let length = length_bytes as usize;
        let (expected, medium) =
            data_out.get(..length).zip(medium.get(..length)).ok_or(SenseData::internal())?;
        if let Some(sense) = miscompare(expected, medium) {
            return Err(sense);
        }
        let io = Io::WriteDataOut {
            offset_bytes: self.range.offset_bytes,
            start: length_bytes,
            length_bytes,
            stable: self.stable,
        };
        Ok(self.goes_on(Waiting::Write, io))
    }

    /// With several pieces, one flush at the end makes all of them stable.
    fn or(self, data_out: &[u8], medium: &[u8]) -> Progress {
        let (start, length) = (self.position as usize, self.piece_bytes() as usize);
        let given = data_out.get(start..start + length).ok_or(SenseData::internal())?;
        let medium = medium.get(..length).ok_or(SenseData::internal())?;
        let bytes = given.iter().zip(medium).map(|(left, right)| left | right).collect();
        let stable = self.stable && self.range.length_bytes <= PIECE_BYTES;
        let offset_bytes = self.offset_bytes();
        Ok(self.goes_on(Waiting::Write, Io::WriteOwned { offset_bytes, bytes, stable }))
    }

    fn piece_written(self, context: &Context<'_>) -> Progress {
        let position = self.position + self.piece_bytes();
        let is_over = self.what == What::CompareAndWrite || position == self.range.length_bytes;
        if !is_over {
            return Ok(ReadModifyWrite { position, ..self }.read());
        }
        if self.stable && self.range.length_bytes > PIECE_BYTES {
            return Ok((State::Flush, Step::Io(Io::Flush)));
        }
        written(context, self.stable)
    }
}
