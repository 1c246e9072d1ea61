//! READ on a unit with protection information. What is read is checked even where the initiator has not asked for the
//! information (RDPROTECT 000b), so that a damaged medium is never taken for data.

use super::{Protected, Transfer};
use crate::commands::range::ByteRange;
use crate::commands::{Context, Progress, State, Step, good};
use crate::io::{Direction, Io};
use crate::protection::{ProtectField, Protection};
use crate::task::{DataIn, Event};

/// A READ that waits for its flush or for its data.
#[derive(Debug)]
pub(crate) struct Read {
    transfer: Transfer,
    flushing: bool,
}

/// With `flush_first` what the volatile cache holds has to get to the medium before.
#[cold]
pub(in crate::commands) fn read(
    protection: Protection,
    field: ProtectField,
    range: ByteRange,
    flush_first: bool,
) -> Progress {
    if range.length_bytes == 0 {
        return good();
    }
    let transfer = Transfer::new(protection, field, range);
    if flush_first {
        return Ok(Protected::Read(Read { transfer, flushing: true }).goes_on(Step::Io(Io::Flush)));
    }
    Ok(Read::from_medium(transfer))
}

impl Read {
    fn from_medium(transfer: Transfer) -> (State, Step) {
        let ByteRange { offset_bytes, length_bytes } = transfer.range;
        let io = Io::Read { offset_bytes, length_bytes, inspected: true };
        Protected::Read(Read { transfer, flushing: false }).goes_on(Step::Io(io))
    }

    pub(super) fn resume(self, context: &Context<'_>, event: Event<'_>) -> Progress {
        let Transfer { range, lba, protection, field } = self.transfer;
        if self.flushing {
            event.io(Direction::Write, context.unit())?;
            return Ok(Read::from_medium(self.transfer));
        }
        let done = event.io(Direction::Read, context.unit())?;
        let whole = super::Piece { offset_bytes: range.offset_bytes, length_bytes: range.length_bytes, lba };
        let stored = whole.of_medium(protection, done.medium)?;
        context.unit().check_stored(protection, stored, lba, field.checks())?;
        let data_in = if field.is_transferred() {
            DataIn::Medium { length_bytes: protection.stored_bytes(range.length_bytes) }
        } else {
            DataIn::MediumData {
                length_bytes: range.length_bytes,
                block_length_bytes: protection.block_length_bytes,
            }
        };
        Ok((State::Finished, Step::Done(data_in)))
    }
}
