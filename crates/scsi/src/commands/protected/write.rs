//! WRITE, and the writing of WRITE AND VERIFY, on a unit with protection information. Nothing is written of a command
//! whose check fails.

use super::verify::Verify;
use super::{Protected, Transfer, wrong_amount};
use crate::commands::range::ByteRange;
use crate::commands::verify::Compare;
use crate::commands::{Context, Progress, State, Step, good, written};
use crate::io::{Direction, Io};
use crate::protection::{ProtectField, Protection};
use crate::task::Event;

/// A WRITE that waits for its data or for the medium, and may be verified afterwards.
#[derive(Debug)]
pub(crate) struct Write {
    transfer: Transfer,
    /// FUA; and once the data is there, also true without a write cache.
    stable: bool,
    writing: bool,
    /// Data that is on the medium, in bytes.
    position: u32,
    verify: Option<Compare>,
}

/// Asks for the data.
#[cold]
pub(in crate::commands) fn write(
    protection: Protection,
    field: ProtectField,
    range: ByteRange,
    force_unit_access: bool,
    verify: Option<Compare>,
) -> Progress {
    if range.length_bytes == 0 {
        return good();
    }
    let transfer = Transfer::new(protection, field, range);
    let write = Write { transfer, stable: force_unit_access, writing: false, position: 0, verify };
    Ok(Protected::Write(write).goes_on(Step::DataOut(transfer.bytes(range.length_bytes))))
}

impl Write {
    pub(super) fn resume(mut self, context: &Context<'_>, event: Event<'_>) -> Progress {
        let Transfer { range, field, .. } = self.transfer;
        if !self.writing {
            return self.data_came(context, event);
        }
        let done = event.io(Direction::Write, context.unit())?;
        // With its information all of it went at once.
        self.position = match field.is_transferred() {
            true => range.length_bytes,
            false => self.position + self.transfer.piece(self.position).length_bytes,
        };
        if self.position < range.length_bytes {
            return self.next_piece(done.data_out);
        }
        match self.verify {
            None => written(context, self.stable),
            Some(compare) => Ok(Verify::after_write(self.transfer, compare)),
        }
    }

    /// Whole blocks are written, as many as came; part of a block cannot be written alone.
    fn data_came(mut self, context: &Context<'_>, event: Event<'_>) -> Progress {
        let data_out = event.data_out(self.transfer.bytes(self.transfer.range.length_bytes))?;
        let block_bytes = self.transfer.block_bytes();
        let length_bytes = data_out.len() as u32;
        if !length_bytes.is_multiple_of(block_bytes) {
            return Err(wrong_amount());
        }
        if length_bytes == 0 {
            return good();
        }
        let Transfer { protection, field, lba, .. } = self.transfer;
        self.transfer.range.length_bytes = length_bytes / block_bytes * protection.block_length_bytes;
        // A MODE SELECT may have turned the cache off while the data was waited for.
        self.stable |= !context.unit().write_cache_enabled();
        self.writing = true;
        if !field.is_transferred() {
            return self.next_piece(data_out);
        }
        protection.check(data_out, lba, field.checks())?;
        let (offset_bytes, stable) = (self.transfer.range.offset_bytes, self.stable);
        let io = Io::WriteDataOut { offset_bytes, start: 0, length_bytes, stable };
        Ok(self.goes_on(io))
    }

    /// Writes data that came without information, with what is generated for it.
    fn next_piece(self, data_out: &[u8]) -> Progress {
        let piece = self.transfer.piece(self.position);
        let data = self.transfer.part(data_out, self.position, &piece)?;
        let bytes = self.transfer.protection.protect(data, piece.lba);
        let (offset_bytes, stable) = (piece.offset_bytes, self.stable);
        Ok(self.goes_on(Io::WriteOwned { offset_bytes, bytes, stable }))
    }

    fn goes_on(self, io: Io) -> (State, Step) {
        Protected::Write(self).goes_on(Step::Io(io))
    }
}
