//! READ and WRITE (SBC-3; the six-byte commands SBC-2).

use super::range::{BlockRange, ByteRange};
use super::verify::{Compare, Verify};
use super::{Context, Progress, State, Step, good, protected, written};
use crate::bytes::Cdb;
use crate::codes::opcode::{READ_6, READ_10, READ_12, READ_16, WRITE_6, WRITE_10, WRITE_12, WRITE_16};
use crate::io::{Direction, Io};
use crate::protection::ProtectField;
use crate::sense::{AdditionalSense, SenseData};
use crate::task::{DataIn, Event};
use crate::unit::LogicalUnit;

/// FUA, or FUA_NV of SBC-2: storage that keeps its data without power is stable storage.
const FORCE_UNIT_ACCESS: u8 = 0x0a;

pub(super) fn read_6(context: &Context<'_>, cdb: &Cdb) -> Progress {
    Read::start(context, cdb, BlockRange::of_6(cdb), false)
}

pub(super) fn read_10(context: &Context<'_>, cdb: &Cdb) -> Progress {
    Read::start(context, cdb, BlockRange::of_10(cdb), is_forced(cdb))
}

pub(super) fn read_12(context: &Context<'_>, cdb: &Cdb) -> Progress {
    Read::start(context, cdb, BlockRange::of_12(cdb), is_forced(cdb))
}

pub(super) fn read_16(context: &Context<'_>, cdb: &Cdb) -> Progress {
    Read::start(context, cdb, BlockRange::of_16(cdb), is_forced(cdb))
}

pub(super) fn write_6(context: &Context<'_>, cdb: &Cdb) -> Progress {
    Write::start(context, cdb, BlockRange::of_6(cdb), false, None)
}

pub(super) fn write_10(context: &Context<'_>, cdb: &Cdb) -> Progress {
    Write::start(context, cdb, BlockRange::of_10(cdb), is_forced(cdb), None)
}

pub(super) fn write_12(context: &Context<'_>, cdb: &Cdb) -> Progress {
    Write::start(context, cdb, BlockRange::of_12(cdb), is_forced(cdb), None)
}

pub(super) fn write_16(context: &Context<'_>, cdb: &Cdb) -> Progress {
    Write::start(context, cdb, BlockRange::of_16(cdb), is_forced(cdb), None)
}

/// True where the data must be on the medium before the command is answered.
pub(super) fn is_forced(cdb: &Cdb) -> bool {
    cdb[1] & FORCE_UNIT_ACCESS != 0
}

/// True where newer data than the medium's may be in a volatile cache, and could be written out: what was answered where the unit
/// has one, and in any case what others write at this moment, which can be read before it is flushed and answered.
#[inline]
pub(super) fn may_be_unstable(context: &Context<'_>) -> bool {
    !context.unit().config().read_only
}

/// What the CDB of a READ or WRITE asks for, unchecked.
pub(crate) struct Wanted {
    blocks: BlockRange,
    writes: bool,
    force_unit_access: bool,
}

impl Wanted {
    /// `None` for other commands.
    #[inline]
    pub(crate) fn of(cdb: &Cdb) -> Option<Wanted> {
        let (blocks, has_flags) = match cdb[0] {
            READ_10 | WRITE_10 => (BlockRange::of_10(cdb), true),
            READ_16 | WRITE_16 => (BlockRange::of_16(cdb), true),
            READ_12 | WRITE_12 => (BlockRange::of_12(cdb), true),
            READ_6 | WRITE_6 => (BlockRange::of_6(cdb), false),
            _ => return None,
        };
        // The codes of all four lengths differ in the same bit.
        let writes = cdb[0] & (READ_6 ^ WRITE_6) != 0;
        Some(Wanted { blocks, writes, force_unit_access: has_flags && is_forced(cdb) })
    }

    /// `None`: it is not within the unit, or too long for it.
    #[inline]
    pub(crate) fn range(&self, unit: &LogicalUnit) -> Option<ByteRange> {
        self.blocks.transfer(unit).ok()
    }

    /// The one thing that it does on the medium. `None`: it is refused, does nothing, or has more to do.
    #[inline]
    pub(super) fn plainly(&self, context: &Context<'_>) -> Option<Transfer> {
        let (unit, writes) = (context.unit(), self.writes);
        let range = self.range(unit)?;
        let flushes_first = !writes && self.force_unit_access && may_be_unstable(context);
        if unit.protection().is_some() || range.length_bytes == 0 || flushes_first {
            return None;
        }
        let stable = writes && (self.force_unit_access || !unit.write_cache_enabled());
        Some(Transfer { range, writes, stable })
    }
}

/// A READ or WRITE that goes to the medium once, with its data as it is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Transfer {
    pub(crate) range: ByteRange,
    pub(crate) writes: bool,
    /// What is written has to be stable before it is answered.
    pub(crate) stable: bool,
}

impl Transfer {
    /// What is kept of it while the medium works.
    pub(crate) fn under_way(self) -> State {
        let Transfer { range, writes, stable } = self;
        if writes {
            State::Write(Write { range, stable, writing: true, verify: None })
        } else {
            State::Read(Read { range, flushing: false })
        }
    }
}

/// A READ that waits for its flush or for its data.
#[derive(Debug)]
pub(crate) struct Read {
    range: ByteRange,
    flushing: bool,
}

impl Read {
    /// With FUA the data comes from the medium, so what the volatile cache holds must get there first (SBC-3, caches).
    fn start(context: &Context<'_>, cdb: &Cdb, blocks: BlockRange, force_unit_access: bool) -> Progress {
        let range = blocks.transfer(context.unit())?;
        if let Some(protection) = context.unit().protection() {
            let flush_first = force_unit_access && may_be_unstable(context);
            return protected::read(protection, ProtectField::of(cdb)?, range, flush_first);
        }
        if range.length_bytes == 0 {
            return good();
        }
        if force_unit_access && may_be_unstable(context) {
            return Ok((State::Read(Read { range, flushing: true }), Step::Io(Io::Flush)));
        }
        Ok(Read::from_medium(range))
    }

    fn from_medium(range: ByteRange) -> (State, Step) {
        let ByteRange { offset_bytes, length_bytes } = range;
        let io = Io::Read { offset_bytes, length_bytes, inspected: false };
        (State::Read(Read { range, flushing: false }), Step::Io(io))
    }

    pub(super) fn resume(self, context: &Context<'_>, event: Event<'_>) -> Progress {
        if self.flushing {
            event.io(Direction::Write, context.unit())?;
            return Ok(Read::from_medium(self.range));
        }
        event.io(Direction::Read, context.unit())?;
        Ok((State::Finished, Step::Done(DataIn::Medium { length_bytes: self.range.length_bytes })))
    }
}

/// A WRITE that waits for its data or for the medium, and may be verified afterwards.
#[derive(Debug)]
pub(crate) struct Write {
    range: ByteRange,
    /// FUA; and once the data is there, also true without a write cache.
    stable: bool,
    writing: bool,
    verify: Option<Compare>,
}

impl Write {
    pub(super) fn start(
        context: &Context<'_>,
        cdb: &Cdb,
        blocks: BlockRange,
        force_unit_access: bool,
        verify: Option<Compare>,
    ) -> Progress {
        let range = blocks.transfer(context.unit())?;
        if let Some(protection) = context.unit().protection() {
            return protected::write(protection, ProtectField::of(cdb)?, range, force_unit_access, verify);
        }
        if range.length_bytes == 0 {
            return good();
        }
        let write = Write { range, stable: force_unit_access, writing: false, verify };
        Ok((State::Write(write), Step::DataOut(range.length_bytes)))
    }

    /// Whether what it has asked for is all that its data is needed for.
    pub(crate) fn is_all(&self) -> bool {
        self.writing && self.verify.is_none()
    }

    pub(super) fn resume(self, context: &Context<'_>, event: Event<'_>) -> Progress {
        if !self.writing {
            return self.data_came(context, event);
        }
        event.io(Direction::Write, context.unit())?;
        match self.verify {
            None => written(context, self.stable),
            Some(compare) => Ok(Verify::after_write(self.range, compare)),
        }
    }

    /// An initiator may announce less data than the CDB asks for; the transport reports the rest as a residual.
    /// Whole blocks are written and the command is good. Part of a block cannot be written alone, so then nothing is.
    fn data_came(self, context: &Context<'_>, event: Event<'_>) -> Progress {
        let length_bytes = event.data_out(self.range.length_bytes)?.len() as u32;
        if !length_bytes.is_multiple_of(context.unit().block_length_bytes()) {
            return Err(SenseData::illegal(AdditionalSense::INVALID_FIELD_IN_COMMAND_INFORMATION_UNIT));
        }
        if length_bytes == 0 {
            return good();
        }
        let range = ByteRange { length_bytes, ..self.range };
        // A MODE SELECT may have turned the cache off while the data was waited for.
        let stable = self.stable || !context.unit().write_cache_enabled();
        let io = Io::WriteDataOut { offset_bytes: range.offset_bytes, start: 0, length_bytes, stable };
        Ok((State::Write(Write { range, stable, writing: true, ..self }), Step::Io(io)))
    }
}
