//! The commands of the medium on a unit with protection information (SBC-3): what is transferred, checked, compared and
//! generated. Ranges and flags are taken apart by the modules of the commands, which come here for such units.
//!
//! Offsets and lengths of medium operations count data; the buffers have 8 bytes more behind each block.

mod modify;
mod read;
mod verify;
mod write;
mod write_same;

pub(super) use modify::{compare_and_write, or_write};
pub(super) use read::read;
pub(super) use verify::verify;
pub(super) use write::write;
pub(super) use write_same::{Pattern, block_bytes as block_of_write_same_bytes, write_same};

use super::range::ByteRange;
use super::{Context, Progress, State, Step};
use crate::io::{Io, PIECE_BYTES};
use crate::protection::{ProtectField, Protection};
use crate::sense::{AdditionalSense, SenseData};
use crate::task::Event;

/// What a command keeps while the driver works for it.
#[derive(Debug)]
pub(crate) enum Protected {
    Read(read::Read),
    Write(write::Write),
    Verify(verify::Verify),
    WriteSame(write_same::WriteSame),
    Modify(modify::Modify),
}

impl Protected {
    #[cold]
    pub(super) fn resume(self, context: &Context<'_>, event: Event<'_>) -> Progress {
        match self {
            Protected::Read(read) => read.resume(context, event),
            Protected::Write(write) => write.resume(context, event),
            Protected::Verify(verify) => verify.resume(context, event),
            Protected::WriteSame(write_same) => write_same.resume(context, event),
            Protected::Modify(modify) => modify.resume(context, event),
        }
    }

    fn goes_on(self, step: Step) -> (State, Step) {
        (State::Protected(Box::new(self)), step)
    }
}

/// A checked range of a command, with what its protect field says.
#[derive(Clone, Copy, Debug)]
struct Transfer {
    range: ByteRange,
    lba: u64,
    protection: Protection,
    field: ProtectField,
}

impl Transfer {
    fn new(protection: Protection, field: ProtectField, range: ByteRange) -> Transfer {
        let lba = range.offset_bytes / u64::from(protection.block_length_bytes);
        Transfer { range, lba, protection, field }
    }

    /// The length of a block between initiator and device server.
    fn block_bytes(&self) -> u32 {
        if self.field.is_transferred() {
            self.protection.stored_block_bytes()
        } else {
            self.protection.block_length_bytes
        }
    }

    /// The length of so many bytes of data between initiator and device server.
    fn bytes(&self, data_bytes: u32) -> u32 {
        data_bytes / self.protection.block_length_bytes * self.block_bytes()
    }

    /// The piece of the range that begins behind `position` bytes of data.
    fn piece(&self, position: u32) -> Piece {
        let length_bytes = (self.range.length_bytes - position).min(PIECE_BYTES);
        Piece {
            offset_bytes: self.range.offset_bytes + u64::from(position),
            length_bytes,
            lba: self.lba + u64::from(position / self.protection.block_length_bytes),
        }
    }

    /// What `data_out` has for a piece behind `position` bytes of data, in the form in which it came.
    fn part<'a>(&self, data_out: &'a [u8], position: u32, piece: &Piece) -> Result<&'a [u8], SenseData> {
        let start = self.bytes(position) as usize;
        let end = start + self.bytes(piece.length_bytes) as usize;
        data_out.get(start..end).ok_or(SenseData::internal())
    }
}

/// A part of a range, in bytes of data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Piece {
    offset_bytes: u64,
    length_bytes: u32,
    lba: u64,
}

impl Piece {
    fn read(&self) -> Io {
        Io::Read { offset_bytes: self.offset_bytes, length_bytes: self.length_bytes, inspected: true }
    }

    /// What the medium has of it, with the information.
    fn of_medium<'a>(&self, protection: Protection, medium: &'a [u8]) -> Result<&'a [u8], SenseData> {
        medium.get(..protection.stored_bytes(self.length_bytes) as usize).ok_or(SenseData::internal())
    }
}

/// INVALID FIELD IN COMMAND INFORMATION UNIT: the initiator has another amount of data than the CDB calls for.
fn wrong_amount() -> SenseData {
    SenseData::illegal(AdditionalSense::INVALID_FIELD_IN_COMMAND_INFORMATION_UNIT)
}
