//! Moves a range from one unit to another, piece by piece: what third-party copies are made of.
//!
//! Which range, and what its failure means, is said by the command that moves it.

use std::ops::Range;
use std::sync::Arc;

use super::{Progress, Step, end, good, is_not_ready, refuses_copy, third_party_failure};
use crate::copy::{Outcome, Running};
use crate::io::{self, Direction, Io};
use crate::paths::Path;
use crate::protection::Checks;
use crate::sense::SenseData;
use crate::status::Status;
use crate::task::Event;
use crate::unit::LogicalUnit;

/// The most moved at once. More than what engines copy on the thread of the reactor, so that others do it, and little
/// enough that an abort does not wait for long.
const PIECE_BYTES: u64 = 2 << 20;

/// The way by which the initiator of a copy reaches a unit. What it may do there is looked at for each piece.
#[derive(Clone, Debug)]
pub(super) struct Way {
    pub(super) path: Path,
    /// [`crate::attention::ItlNexus::copies_ended`] when the copy began.
    copies_ended: u32,
}

impl Way {
    /// For a copy that begins now.
    pub(super) fn new(path: Path) -> Way {
        Way { copies_ended: path.itl.copies_ended(), path }
    }

    /// Why the next piece may not be done. A reset of the unit ends the copy's commands there (SAM-5), and there are none
    /// after it: who has reset a unit may rely on nothing old being written to it any more.
    pub(super) fn refuses(&self, writes: bool) -> Option<SenseData> {
        if self.path.itl.copies_ended() != self.copies_ended {
            return Some(third_party_failure());
        }
        refuses_copy(&self.path, writes)
    }
}

/// A place on a medium.
#[derive(Clone, Debug)]
pub(super) struct Place {
    unit: Arc<LogicalUnit>,
    /// None where a token stands for it.
    way: Option<Way>,
    offset_bytes: u64,
}

impl Place {
    /// A place that the initiator reaches.
    pub(super) fn of(way: Way, offset_bytes: u64) -> Place {
        Place { unit: Arc::clone(&way.path.unit), way: Some(way), offset_bytes }
    }

    /// A place that a token lets anybody read, if only the unit is ready.
    pub(super) fn unchecked(unit: &Arc<LogicalUnit>, offset_bytes: u64) -> Place {
        Place { unit: Arc::clone(unit), way: None, offset_bytes }
    }

    /// A token's reads are not counted: what they may meet is a write, which has revoked the token.
    fn step(&self, io: Io) -> Step {
        let path = self.way.as_ref().map(|way| way.path.clone());
        Step::IoOn { unit: Arc::clone(&self.unit), path, io }
    }

    fn refuses(&self, writes: bool) -> Option<SenseData> {
        match &self.way {
            Some(way) => way.refuses(writes),
            None => is_not_ready(&self.unit),
        }
    }
}

/// How a copy ends once what it has written is as stable as its unit declares. It tells how much it has moved, whether it fails or
/// not, and its initiator may go on from there.
#[derive(Debug)]
pub(super) enum Ending {
    Completed,
    Failed(SenseData),
    /// COPY OPERATION ABORT.
    Aborted,
}

impl Ending {
    /// The end of a command of `unit`.
    pub(super) fn take_effect(self, running: Option<Running>, unit: &LogicalUnit) -> Progress {
        let outcome = match &self {
            Ending::Completed => Outcome::Completed,
            Ending::Failed(sense) => Outcome::Failed(sense.encode(unit.mode().descriptor_sense())),
            Ending::Aborted => Outcome::Aborted,
        };
        if let Some(running) = running {
            running.end(outcome);
        }
        match self {
            Ending::Completed => good(),
            Ending::Failed(sense) => Err(sense),
            Ending::Aborted => end(Status::TaskAborted),
        }
    }
}

/// What an operation of a range has come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Moved {
    /// A piece was read.
    Read,
    /// A piece was written, by which so many bytes more of the range have been moved from its beginning on, without a gap.
    Written { bytes: u64 },
}

impl Moved {
    /// How much more counts as moved.
    pub(super) fn bytes(self) -> u64 {
        match self {
            Moved::Read => 0,
            Moved::Written { bytes } => bytes,
        }
    }
}

/// Why a range does not move on: the unit at one of its ends has failed, or cannot be reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Failure {
    Source(SenseData),
    Destination(SenseData),
}

impl Failure {
    /// What the unit says of it.
    pub(super) fn sense(&self) -> &SenseData {
        let (Failure::Source(sense) | Failure::Destination(sense)) = self;
        sense
    }
}

/// A range on its way. Both places and the length are whole blocks of their units and inside their capacities.
#[derive(Debug)]
pub(super) struct Mover {
    source: Place,
    destination: Place,
    length_bytes: u64,
    moved_bytes: u64,
    /// The range overlaps itself and moves up: its end goes first, so that nothing is overwritten before it is read.
    backwards: bool,
    /// The piece is in the medium buffer.
    is_read: bool,
    /// The piece in the form that the destination takes, where that is not the source's.
    converted: Option<Vec<u8>>,
    /// A piece was not written as stable.
    is_volatile: bool,
}

impl Mover {
    pub(super) fn new(source: Place, destination: Place, length_bytes: u64) -> Mover {
        let (from, to) = (source.offset_bytes, destination.offset_bytes);
        let backwards = Arc::ptr_eq(&source.unit, &destination.unit) && from < to && to - from < length_bytes;
        Mover {
            source,
            destination,
            length_bytes,
            moved_bytes: 0,
            backwards,
            is_read: false,
            converted: None,
            is_volatile: false,
        }
    }

    /// Where the data goes.
    pub(super) fn destination(&self) -> &Arc<LogicalUnit> {
        &self.destination.unit
    }

    /// The blocks that it writes.
    pub(super) fn writes(&self) -> Range<u64> {
        self.blocks_at_destination(0..self.length_bytes)
    }

    /// Those that it writes before all of it is read.
    pub(super) fn writes_before_last_read(&self) -> Range<u64> {
        let last_bytes = match self.length_bytes % self.largest_piece_bytes() {
            0 => self.largest_piece_bytes().min(self.length_bytes),
            rest => rest,
        };
        self.blocks_at_destination(if self.backwards {
            last_bytes..self.length_bytes
        } else {
            0..self.length_bytes - last_bytes
        })
    }

    /// The blocks of a part of the range.
    fn blocks_at_destination(&self, Range { start, end }: Range<u64>) -> Range<u64> {
        let lba =
            |at| (self.destination.offset_bytes + at) / u64::from(self.destination.unit.block_length_bytes());
        lba(start)..lba(end)
    }

    /// What to do next, and on which unit; `None` when all is moved. Units may have changed since the last piece, or
    /// since the same one was asked for.
    ///
    /// # Errors
    /// Why a unit cannot be reached now.
    pub(super) fn next(&mut self) -> Result<Option<Step>, Failure> {
        if self.moved_bytes == self.length_bytes {
            return Ok(None);
        }
        let length = self.piece_bytes();
        let at = self.piece_at();
        // A piece is at most PIECE_BYTES.
        let length_bytes = length as u32;
        let (place, io) = if self.is_read {
            let offset_bytes = self.destination.offset_bytes + at;
            // Several pieces share one flush, which is for the command to ask for.
            let stable = length == self.length_bytes && !self.destination.unit.write_cache_enabled();
            self.is_volatile |= !stable;
            let io = match &self.converted {
                Some(bytes) => Io::WriteOwned { offset_bytes, bytes: bytes.clone(), stable },
                None => Io::WriteMedium { offset_bytes, length_bytes, stable },
            };
            (&self.destination, io)
        } else {
            let offset_bytes = self.source.offset_bytes + at;
            (&self.source, Io::Read { offset_bytes, length_bytes, inspected: true })
        };
        match place.refuses(self.is_read) {
            Some(sense) if self.is_read => Err(Failure::Destination(sense)),
            Some(sense) => Err(Failure::Source(sense)),
            None => Ok(Some(place.step(io))),
        }
    }

    /// The last operation has ended.
    ///
    /// # Errors
    /// How the unit failed.
    pub(super) fn ended(&mut self, event: Event<'_>) -> Result<Moved, Failure> {
        if !self.is_read {
            let done = event.io(Direction::Read, &self.source.unit);
            let converted = done.and_then(|done| self.convert(done.medium));
            self.converted = converted.map_err(Failure::Source)?;
            self.is_read = true;
            return Ok(Moved::Read);
        }
        event.io(Direction::Write, &self.destination.unit).map_err(Failure::Destination)?;
        let length = self.piece_bytes();
        self.is_read = false;
        self.moved_bytes += length;
        let is_whole = self.moved_bytes == self.length_bytes;
        // The piece at the beginning is the last that goes backwards.
        let bytes = match (self.backwards, is_whole) {
            (false, _) => length,
            (true, false) => 0,
            (true, true) => self.length_bytes,
        };
        Ok(Moved::Written { bytes })
    }

    /// True when what was written so far still needs a flush to be stable, in so far as its unit wants that.
    pub(super) fn left_volatile(&self) -> bool {
        self.moved_bytes > 0 && self.is_volatile
    }

    /// Protection information is checked where data is read, and generated where it is written, as if a host had
    /// copied the data with commands that transfer none. `None`: neither unit has any.
    fn convert(&self, medium: &[u8]) -> Result<Option<Vec<u8>>, SenseData> {
        let lba = |place: &Place| {
            (place.offset_bytes + self.piece_at()) / u64::from(place.unit.block_length_bytes())
        };
        let length = self.piece_bytes() as usize;
        let data = match self.source.unit.protection() {
            Some(protection) => {
                self.source.unit.check_stored(protection, medium, lba(&self.source), Checks::ALL)?;
                protection.strip(medium)
            }
            None if self.destination.unit.protection().is_none() => return Ok(None),
            None => medium.to_vec(),
        };
        let data = data.get(..length).ok_or(SenseData::internal())?;
        Ok(Some(match self.destination.unit.protection() {
            Some(protection) => protection.protect(data, lba(&self.destination)),
            None => data.to_vec(),
        }))
    }

    /// Where the piece begins in the range.
    fn piece_at(&self) -> u64 {
        if self.backwards {
            self.length_bytes - self.moved_bytes - self.piece_bytes()
        } else {
            self.moved_bytes
        }
    }

    fn piece_bytes(&self) -> u64 {
        self.largest_piece_bytes().min(self.length_bytes - self.moved_bytes)
    }

    fn largest_piece_bytes(&self) -> u64 {
        let units = [&self.source.unit, &self.destination.unit];
        let transfer = |unit: &&Arc<LogicalUnit>| {
            u64::from(unit.max_transfer_blocks()) * u64::from(unit.block_length_bytes())
        };
        let granule = units.map(|unit| u64::from(unit.block_length_bytes()));
        let granule = granule[0].max(granule[1]);
        let is_converted = units.iter().any(|unit| unit.protection().is_some());
        // What a device server makes itself is bounded.
        let largest = if is_converted { io::PIECE_BYTES.into() } else { PIECE_BYTES };
        let largest = units.iter().map(transfer).min().unwrap_or(largest).min(largest);
        (largest / granule * granule).max(granule)
    }
}
