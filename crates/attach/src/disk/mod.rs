//! A logical unit as a range of bytes: what NBD and FUSE need of it, from any thread.
//!
//! [`unit`] has what the target is asked for, and what is kept until it is stable. Here is what is done before anybody asks, and after
//! they were answered: who reads in order has more read ahead of them ([`ahead`]), and writes to a disk with a write cache are
//! answered before they are sent ([`behind`]), as the disk itself answers them before they are stable. The rule of durability is
//! POSIX's: what was answered before [`Disk::flush`] began is stable when it returns, whatever has happened to the target in between.

mod ahead;
mod behind;
mod error;
mod identity;
mod journal;
mod link;
mod open;
mod ranges;
mod resize;
mod space;
mod unit;
mod zeros;

use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Instant;

use lunette_initiator::blocking::Session;
use lunette_initiator::{EngineEvent, Lun, Merging};
use lunette_scsi::client::UnitFacts;
use lunette_scsi::client::mode::ModeParameters;

pub use error::{DiskError, OpenError};
pub use resize::Resize;
pub use space::{Extent, Space};

use ahead::Ahead;
use behind::{Behind, Held};
use unit::{Fetched, Prefetch, Unit};

/// How many runs are written behind at the same time: as many of the longest as may wait.
const WRITERS: usize = 32;

/// How a disk is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DiskOptions {
    /// Nothing is changed. Default: false.
    pub read_only: bool,
    /// Who reads in order has more read ahead of them. Default: true.
    pub read_ahead: bool,
    /// Writes are answered before they are sent, if the disk has a write cache. Default: true.
    pub write_behind: bool,
    /// Small requests that wait to be sent and lie beside each other are sent as one. Default: true.
    pub merge: bool,
}

impl Default for DiskOptions {
    fn default() -> Self {
        Self { read_only: false, read_ahead: true, write_behind: true, merge: true }
    }
}

/// A disk that is attached.
#[derive(Debug)]
pub struct Disk {
    unit: Arc<Unit>,
    ahead: Option<Mutex<Ahead<Piece>>>,
    behind: Option<Arc<Behind>>,
}

/// What was asked for ahead of a reader.
#[derive(Debug)]
struct Piece {
    asked_at: Instant,
    state: Mutex<State>,
}

#[derive(Debug)]
enum State {
    UnderWay(Prefetch),
    There(Fetched),
    /// It cannot be used.
    Void,
}

impl Disk {
    /// Asks the unit everything that has to be known.
    ///
    /// # Errors
    /// [`OpenError`]
    pub fn open(session: Session, lun: Lun, options: DiskOptions) -> Result<Disk, OpenError> {
        let unit = Arc::new(Unit::open(session, lun, options.read_only)?);
        let block = u64::from(unit.block_bytes());
        let ahead = options
            .read_ahead
            .then(|| Mutex::new(Ahead::new(unit.size_bytes(), block, unit.transfer_bytes_max())));
        if options.merge {
            let bytes_max = u32::try_from(unit.transfer_bytes_max()).unwrap_or(u32::MAX);
            let merging = Merging { block_length_bytes: unit.block_bytes(), command_bytes_max: bytes_max };
            unit.link.session.handle().merge(lun, Some(merging));
        }
        let mut disk = Disk { unit, ahead, behind: None };
        // Only where the disk says so: its own answers mean no more then.
        let mode = disk.facts().mode.as_ref();
        let has_cache = mode.and_then(ModeParameters::write_cache_enabled) == Some(true);
        if options.write_behind && has_cache && !disk.is_read_only() {
            disk.behind = Some(disk.start_writers()?);
        }
        Ok(disk)
    }

    /// The size in bytes. It may grow ([`Self::look_at_size`]), and never shrinks.
    #[must_use]
    pub fn size_bytes(&self) -> u64 {
        self.unit.size_bytes()
    }

    /// The length of a block in bytes.
    #[must_use]
    pub fn block_bytes(&self) -> u32 {
        self.unit.block_bytes()
    }

    /// True if nothing can be changed.
    #[must_use]
    pub fn is_read_only(&self) -> bool {
        self.unit.is_read_only()
    }

    /// What is known of the unit.
    #[must_use]
    pub fn facts(&self) -> &UnitFacts {
        self.unit.facts()
    }

    /// Reads bytes.
    ///
    /// # Errors
    /// [`DiskError`]
    pub fn read(&self, offset: u64, length: usize) -> Result<Vec<u8>, DiskError> {
        let range = self.blocks_of(offset, length as u64)?;
        self.settle(&range)?;
        let Some(ahead) = &self.ahead else { return self.unit.read(offset, length) };
        let end = offset + length as u64;
        self.read_ahead(ahead, &(offset..end));
        let mut data = Vec::new();
        let mut at = offset;
        while at < end {
            let found = lock(ahead).find(at, end);
            match found {
                Ok((range, piece)) => at += self.take_of(ahead, &range, &piece, at..end, &mut data),
                Err(stop) => {
                    let part = self.unit.read(at, (stop - at) as usize)?;
                    // What is read in one go is not copied.
                    data = if data.is_empty() { part } else { [data, part].concat() };
                    at = stop;
                }
            }
        }
        Ok(data)
    }

    /// Writes bytes; with `fua` they are stable when this returns.
    ///
    /// # Errors
    /// [`DiskError`]: what of it is written is not known.
    pub fn write(&self, offset: u64, data: Vec<u8>, fua: bool) -> Result<(), DiskError> {
        let bytes = offset..offset.saturating_add(data.len() as u64);
        let range = self.blocks_of(offset, data.len() as u64)?;
        let written = match &self.behind {
            Some(behind)
                if !fua
                    && bytes == range
                    && data.len() <= behind::WRITE_BYTES_MAX
                    // What is not there any more the unit is to refuse before anybody is answered.
                    && range.end <= self.unit.told_bytes() =>
            {
                behind.put(offset, data)
            }
            _ => self.hold(&range).and_then(|_held| self.unit.write(offset, data, fua)),
        };
        self.changed(&range);
        written
    }

    /// Has everything stable that was answered before.
    ///
    /// # Errors
    /// [`DiskError`]: it may not be stable. Where a write failed after it was answered, every flush fails from then on.
    pub fn flush(&self) -> Result<(), DiskError> {
        if let Some(behind) = &self.behind {
            behind.drain()?;
        }
        self.unit.flush()
    }

    /// Has these bytes read as zeros, giving space back where that can be and `may_unmap` allows it; with `fua` they are stable
    /// when this returns.
    ///
    /// # Errors
    /// [`DiskError`]: what of it is zero is not known.
    pub fn zero(&self, offset: u64, length: u64, may_unmap: bool, fua: bool) -> Result<(), DiskError> {
        let range = self.blocks_of(offset, length)?;
        let _held = self.hold(&range)?;
        let zeroed = self.unit.zero(offset, length, may_unmap, fua);
        self.changed(&range);
        zeroed
    }

    /// Gives the space of these bytes back, as far as they are whole blocks; what is read there is not said. With `fua` that is
    /// stable when this returns. A unit that cannot do it does nothing.
    ///
    /// # Errors
    /// [`DiskError`]
    pub fn discard(&self, offset: u64, length: u64, fua: bool) -> Result<(), DiskError> {
        let range = self.blocks_of(offset, length)?;
        let _held = self.hold(&range)?;
        let discarded = self.unit.discard(offset, length, fua);
        self.changed(&range);
        discarded
    }

    /// What these bytes have: extents that begin with the first of them and join, and end with the last of them or before it, as it can
    /// be told without much ado; at least one, if there is a byte.
    ///
    /// # Errors
    /// [`DiskError`]
    pub fn extents(&self, offset: u64, length: u64) -> Result<Vec<Extent>, DiskError> {
        let range = self.blocks_of(offset, length)?;
        self.settle(&range)?;
        self.unit.extents(offset..offset + length)
    }

    /// Zeroing these bytes costs less than writing them: the unit gives their space back.
    #[must_use]
    pub fn zeroes_fast(&self, offset: u64, length: u64, may_unmap: bool) -> bool {
        self.unit.zeroes_fast(offset, length, may_unmap)
    }

    /// What has happened to the session since the last call.
    #[must_use]
    pub fn events(&self) -> Vec<EngineEvent> {
        self.unit.events()
    }

    /// Asks the unit how large it is, if it has said that its capacity has changed; a larger one is served as a whole from then on.
    /// `None`: there is nothing new.
    ///
    /// # Errors
    /// [`DiskError`]: the unit does not say it now. The next call asks again.
    pub fn look_at_size(&self) -> Result<Option<Resize>, DiskError> {
        let resize = self.unit.look_at_size()?;
        if let (Some(ahead), Some(_)) = (&self.ahead, resize) {
            lock(ahead).grow(self.size_bytes());
        }
        Ok(resize)
    }

    /// Asks the unit who it is, if it has said that it tells something else about itself.
    ///
    /// # Errors
    /// [`DiskError`]: it is another one ([`Self::is_exchanged`]), or does not say it now. The next call asks again.
    pub fn look_at_identity(&self) -> Result<(), DiskError> {
        self.unit.look_at_identity()
    }

    /// True when another disk was found in this one's place, here or in [`Self::events`]: nothing is read or written any more.
    #[must_use]
    pub fn is_exchanged(&self) -> bool {
        self.unit.is_exchanged()
    }

    /// True when the session is lost for good.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.unit.is_lost()
    }

    /// Flushes and logs out.
    ///
    /// # Errors
    /// The flush's; or everything is stable, and what a lost path has left may still be carried out over it.
    pub fn close(&self) -> Result<(), DiskError> {
        let written = self.behind.as_ref().map_or(Ok(()), |behind| behind.drain());
        let closed = self.unit.close();
        written.and(closed)
    }

    /// Starts the threads that write what was answered.
    fn start_writers(&self) -> Result<Arc<Behind>, OpenError> {
        let behind = Arc::new(Behind::default());
        let start = Instant::now();
        for _ in 0..WRITERS {
            let (unit, from) = (Arc::clone(&self.unit), Arc::clone(&behind));
            let run = move || {
                while let Some(run) = from.take() {
                    let (serial, sent) = (run.serial(), start.elapsed());
                    let written = unit.write(run.offset, run.data, false);
                    from.ended(serial, written, sent, start.elapsed());
                }
            };
            if let Err(error) = thread::Builder::new().name("write-behind".into()).spawn(run) {
                behind.close();
                return Err(OpenError::NoDisk(format!("no thread for writes: {error}")));
            }
        }
        Ok(behind)
    }

    /// The bytes of all blocks that hold some of these.
    fn blocks_of(&self, offset: u64, length: u64) -> Result<Range<u64>, DiskError> {
        let end =
            offset.checked_add(length).filter(|end| *end <= self.size_bytes()).ok_or(DiskError::Beyond)?;
        let block = u64::from(self.block_bytes());
        Ok(offset / block * block..end.next_multiple_of(block))
    }

    /// Waits until all that was answered before is written here.
    fn settle(&self, range: &Range<u64>) -> Result<(), DiskError> {
        self.behind.as_ref().map_or(Ok(()), |behind| behind.wait_for(range))
    }

    /// The same before these bytes are changed in another way, and what is written here later waits: not where a write has failed.
    fn hold(&self, range: &Range<u64>) -> Result<Option<Held<'_>>, DiskError> {
        self.behind.as_ref().map(|behind| behind.hold(range)).transpose()
    }

    /// These bytes are not what they were when they were read ahead.
    fn changed(&self, range: &Range<u64>) {
        if let Some(ahead) = &self.ahead {
            lock(ahead).forget(range);
        }
    }

    /// Somebody reads this: perhaps what comes after it will be wanted soon.
    fn read_ahead(&self, ahead: &Mutex<Ahead<Piece>>, range: &Range<u64>) {
        let mut ahead = lock(ahead);
        for piece in ahead.read(range) {
            // Whoever puts a write there from now on finds the piece and has it forgotten.
            let is_dirty = |behind: &Arc<Behind>| behind.has(&piece);
            if self.behind.as_ref().is_some_and(is_dirty) {
                continue;
            }
            let asked_at = Instant::now();
            if let Ok(prefetch) = self.unit.begin_read(&piece) {
                let state = Mutex::new(State::UnderWay(prefetch));
                ahead.insert(piece, Arc::new(Piece { asked_at, state }));
            }
        }
    }

    /// Copies what a piece has of the bytes that are wanted, and tells how many it has.
    fn take_of(
        &self,
        ahead: &Mutex<Ahead<Piece>>,
        range: &Range<u64>,
        piece: &Piece,
        wanted: Range<u64>,
        data: &mut Vec<u8>,
    ) -> u64 {
        // As of now: what is changed from here on need not be seen. What came is younger than the request for it.
        let age = piece.asked_at.elapsed();
        if !lock(ahead).may_use(wanted.start, age) {
            return 0;
        }
        let mut state = lock(&piece.state);
        if let State::UnderWay(_) = &*state
            && let State::UnderWay(prefetch) = std::mem::replace(&mut *state, State::Void)
            && let Some(fetched) = self.unit.finish_read(prefetch)
        {
            lock(ahead).came(fetched.asked, fetched.came, fetched.data.len() as u64);
            *state = State::There(fetched);
        }
        let bytes = match &*state {
            State::There(fetched) if self.unit.is_current(fetched) => {
                let from = (wanted.start - range.start) as usize;
                let to = (wanted.end.min(range.end) - range.start) as usize;
                fetched.data.get(from..to)
            }
            _ => None,
        };
        match bytes {
            Some(bytes) => {
                data.extend_from_slice(bytes);
                lock(ahead).used(range.start, bytes.len() as u64);
                bytes.len() as u64
            }
            None => {
                lock(ahead).forget(range);
                0
            }
        }
    }
}

impl Drop for Disk {
    /// The writers end when nothing is left.
    fn drop(&mut self) {
        if let Some(behind) = &self.behind {
            behind.close();
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
