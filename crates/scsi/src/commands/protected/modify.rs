//! COMPARE AND WRITE and ORWRITE on a unit with protection information. Both check the medium as well as what they were
//! given, by the same field, before they write.
//!
//! COMPARE AND WRITE compares data, and no information. What ORWRITE writes has the guard of its result, and the tags that
//! came with the data, or generated ones.

use super::{Piece, Protected, Transfer, wrong_amount};
use crate::commands::range::ByteRange;
use crate::commands::verify::{difference, miscompare_at};
use crate::commands::{Context, Progress, State, Step, written};
use crate::io::{Direction, Io};
use crate::protection::{Information, ProtectField, Protection, guard};
use crate::sense::SenseData;
use crate::task::Event;

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
pub(crate) struct Modify {
    transfer: Transfer,
    what: What,
    /// FUA; and once the data is there, also true without a write cache.
    stable: bool,
    /// Data that is done, in bytes.
    position: u32,
    waiting: Waiting,
}

/// Begins a COMPARE AND WRITE of a range that is not empty.
#[cold]
pub(in crate::commands) fn compare_and_write(
    context: &Context<'_>,
    protection: Protection,
    field: ProtectField,
    range: ByteRange,
    stable: bool,
) -> Progress {
    let command = Modify::new(protection, field, range, What::CompareAndWrite, stable);
    if context.announced_bytes.is_some_and(|bytes| bytes != command.data_out_bytes()) {
        return Err(wrong_amount());
    }
    Ok(command.begin())
}

/// Begins an ORWRITE of a range that is not empty.
#[cold]
pub(in crate::commands) fn or_write(
    protection: Protection,
    field: ProtectField,
    range: ByteRange,
    stable: bool,
) -> (State, Step) {
    Modify::new(protection, field, range, What::Or, stable).begin()
}

impl Modify {
    fn new(
        protection: Protection,
        field: ProtectField,
        range: ByteRange,
        what: What,
        stable: bool,
    ) -> Modify {
        let transfer = Transfer::new(protection, field, range);
        Modify { transfer, what, stable, position: 0, waiting: Waiting::DataOut }
    }

    fn begin(self) -> (State, Step) {
        let length_bytes = self.data_out_bytes();
        Protected::Modify(self).goes_on(Step::DataOut(length_bytes))
    }

    /// The blocks to compare with come before those to write; the limit leaves room for both.
    fn data_out_bytes(&self) -> u32 {
        let once = self.transfer.bytes(self.transfer.range.length_bytes);
        match self.what {
            What::CompareAndWrite => 2 * once,
            What::Or => once,
        }
    }

    pub(super) fn resume(self, context: &Context<'_>, event: Event<'_>) -> Progress {
        let unit = context.unit();
        match self.waiting {
            Waiting::DataOut => {
                let needed = self.data_out_bytes();
                let data_out = event.data_out(needed)?;
                if data_out.len() as u32 != needed {
                    return Err(wrong_amount());
                }
                self.check_data_out(data_out)?;
                let stable = self.stable || !unit.write_cache_enabled();
                Ok(Modify { stable, ..self }.read())
            }
            Waiting::Read => {
                let done = event.io(Direction::Read, unit)?;
                self.piece_came(context, done.data_out, done.medium)
            }
            Waiting::Write => {
                event.io(Direction::Write, unit)?;
                let position = self.position + self.piece().length_bytes;
                if position == self.transfer.range.length_bytes {
                    return written(context, self.stable);
                }
                Ok(Modify { position, ..self }.read())
            }
        }
    }

    fn check_data_out(&self, data_out: &[u8]) -> Result<(), SenseData> {
        let Transfer { protection, field, lba, range } = self.transfer;
        if !field.is_transferred() {
            return Ok(());
        }
        let once = self.transfer.bytes(range.length_bytes) as usize;
        data_out.chunks(once).try_for_each(|part| protection.check(part, lba, field.checks()))?;
        Ok(())
    }

    /// A COMPARE AND WRITE is one piece, because its limit is no more than one.
    fn piece(&self) -> Piece {
        self.transfer.piece(self.position)
    }

    fn read(self) -> (State, Step) {
        let io = self.piece().read();
        Protected::Modify(Modify { waiting: Waiting::Read, ..self }).goes_on(Step::Io(io))
    }

    fn piece_came(self, context: &Context<'_>, data_out: &[u8], medium: &[u8]) -> Progress {
        let piece = self.piece();
        let Transfer { protection, field, .. } = self.transfer;
        let medium = piece.of_medium(protection, medium)?;
        context.unit().check_stored(protection, medium, piece.lba, field.checks())?;
        let io = match self.what {
            What::CompareAndWrite => self.compare(&piece, data_out, medium)?,
            What::Or => {
                let bytes = self.or(&piece, self.transfer.part(data_out, self.position, &piece)?, medium);
                Io::WriteOwned { offset_bytes: piece.offset_bytes, bytes, stable: self.stable }
            }
        };
        Ok(Protected::Modify(Modify { waiting: Waiting::Write, ..self }).goes_on(Step::Io(io)))
    }

    fn compare(&self, piece: &Piece, data_out: &[u8], medium: &[u8]) -> Result<Io, SenseData> {
        let Transfer { protection, field, .. } = self.transfer;
        let once = self.transfer.bytes(piece.length_bytes);
        let (expected, new) = data_out.split_at_checked(once as usize).ok_or(SenseData::internal())?;
        let block_bytes = self.transfer.block_bytes() as usize;
        for (index, (expected, (data, _))) in
            expected.chunks_exact(block_bytes).zip(protection.blocks(medium)).enumerate()
        {
            let expected = expected.get(..data.len()).ok_or(SenseData::internal())?;
            if let Some(offset) = difference(expected, data) {
                return Err(miscompare_at((index * block_bytes + offset) as u64));
            }
        }
        let (offset_bytes, stable) = (piece.offset_bytes, self.stable);
        Ok(if field.is_transferred() {
            Io::WriteDataOut { offset_bytes, start: once, length_bytes: once, stable }
        } else {
            Io::WriteOwned { offset_bytes, bytes: protection.protect(new, piece.lba), stable }
        })
    }

    fn or(&self, piece: &Piece, given: &[u8], medium: &[u8]) -> Vec<u8> {
        let Transfer { protection, .. } = self.transfer;
        let given = given.chunks_exact(self.transfer.block_bytes() as usize);
        let mut bytes = Vec::with_capacity(medium.len());
        for ((given, (data, _)), lba) in given.zip(protection.blocks(medium)).zip(piece.lba..) {
            let start = bytes.len();
            bytes.extend(given.iter().zip(data).map(|(left, right)| left | right));
            let result = &bytes[start..];
            let information = match given.get(data.len()..).and_then(|bytes| bytes.try_into().ok()) {
                Some(tags) => Information { guard: guard(result), ..Information::from_bytes(tags) },
                None => protection.generate(result, lba),
            };
            bytes.extend(information.to_bytes());
        }
        bytes
    }
}
