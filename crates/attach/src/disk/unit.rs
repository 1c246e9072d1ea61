//! A logical unit as a range of bytes, from any thread; nothing is kept of it but what is not flushed.
//!
//! Bytes become blocks here (a part of a block is read, changed and written back while nobody else changes it), long ranges
//! become commands of a length that the unit takes, and a lost session is nothing that a caller hears of, as long as the
//! session comes back in time. The rule of durability is POSIX's: what was answered before [`Unit::flush`] began is stable when
//! it returns, whatever has happened to the target in between.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError, RwLock};
use std::time::Duration;

use lunette_initiator::{CommandError, Completion, EngineEvent, Error, Notice, Submitted, blocking};
use lunette_scsi::client::medium::{self, BlockRange, Caching, CdbForm};
use lunette_scsi::client::{Command, DoesNotFit, SameBlocks, Sense, UnitFacts};

use super::error::DiskError;
use super::journal::Change;
use super::link::{Done, Link, TRIES_MAX};
use super::ranges::Ranges;

/// The most that one command transfers, in bytes, whatever the unit allows: what most targets and links do best with.
const TRANSFER_BYTES_MAX: u32 = 1 << 20;
/// Sessions that may be lost during one operation before it is given up.
const SESSIONS_MAX: u32 = 16;
/// How often one flush may not be answered in time: each takes many minutes, and most cost the unit a reset.
const OVERDUE_MAX: u32 = 2;

/// See the module's documentation.
#[derive(Debug)]
pub(super) struct Unit {
    pub(super) link: Link,
    pub(super) facts: UnitFacts,
    /// How many are served: they become more, and never fewer.
    pub(super) blocks: AtomicU64,
    /// How many the unit has, as it has said.
    pub(super) told_blocks: AtomicU64,
    pub(super) block_bytes: u32,
    pub(super) is_read_only: bool,
    pub(super) same: Mutex<SameBlocks>,
    /// It says which blocks have space.
    pub(super) tells_space: AtomicBool,
    pub(super) ranges: Ranges,
    /// Held alone by who makes changes again, so that nobody reads what is half-way.
    pub(super) gate: RwLock<()>,
    /// How often changes were begun to be made again, or were.
    pub(super) repairs: AtomicU64,
}

/// A read that nobody waits for yet.
#[derive(Debug)]
pub(super) struct Prefetch {
    blocks: Range<u64>,
    command: Command,
    submitted: Submitted,
    repairs: u64,
}

/// What it brought.
#[derive(Debug)]
pub(super) struct Fetched {
    blocks: Range<u64>,
    session: u32,
    repairs: u64,
    /// When it was asked for and when it was there, by the session's clock, whenever somebody came for it.
    pub(super) asked: Duration,
    pub(super) came: Duration,
    pub(super) data: Vec<u8>,
}

/// Blocks that hold a range of bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Cover {
    lba: u64,
    blocks: u64,
    /// Bytes before the range in the first block.
    head: usize,
}

impl Cover {
    const fn range(self) -> Range<u64> {
        self.lba..self.lba + self.blocks
    }
}

impl Unit {
    /// The size in bytes.
    pub(super) fn size_bytes(&self) -> u64 {
        self.blocks.load(Ordering::SeqCst) * u64::from(self.block_bytes)
    }

    /// The size that the unit has said to have, in bytes: less than what is served once it has shrunk.
    pub(super) fn told_bytes(&self) -> u64 {
        self.told_blocks.load(Ordering::SeqCst) * u64::from(self.block_bytes)
    }

    /// The length of a block in bytes.
    pub(super) const fn block_bytes(&self) -> u32 {
        self.block_bytes
    }

    /// True if nothing can be changed.
    pub(super) const fn is_read_only(&self) -> bool {
        self.is_read_only
    }

    /// What is known of the unit.
    pub(super) const fn facts(&self) -> &UnitFacts {
        &self.facts
    }

    /// Reads bytes.
    ///
    /// # Errors
    /// [`DiskError`]
    pub(super) fn read(&self, offset: u64, length: usize) -> Result<Vec<u8>, DiskError> {
        let cover = self.cover(offset, length as u64)?;
        let mut data = self.settled(&cover.range(), || self.read_blocks(cover.lba, cover.blocks))?;
        if cover.head > 0 {
            data.drain(..cover.head);
        }
        data.truncate(length);
        Ok(data)
    }

    /// Writes bytes; with `fua` they are stable when this returns.
    ///
    /// # Errors
    /// [`DiskError`]: what of it is written is not known.
    pub(super) fn write(&self, offset: u64, data: Vec<u8>, fua: bool) -> Result<(), DiskError> {
        self.permit()?;
        let cover = self.cover(offset, data.len() as u64)?;
        self.make_room()?;
        let held = self.ranges.hold(cover.lba, cover.blocks);
        let data = self.merged(cover, data)?;
        self.write_blocks(cover.lba, data, fua)?;
        drop(held);
        // A unit that cannot write through is flushed.
        if fua && !self.has_fua() { self.flush() } else { Ok(()) }
    }

    /// Has everything stable that was answered before.
    ///
    /// # Errors
    /// [`DiskError`]: it may not be stable.
    pub(super) fn flush(&self) -> Result<(), DiskError> {
        let range = BlockRange { lba: 0, blocks: 0, block_length_bytes: self.block_bytes };
        let command = medium::synchronize_cache(CdbForm::Ten, range).map_err(does_not_fit)?;
        let (mut overdue, mut repairs) = (0, 0);
        for _ in 0..TRIES_MAX {
            let mark = self.link.journal().mark();
            let ended = self.link.once(&command, Vec::new());
            match &ended.result {
                // Its completion counts the reset.
                Err(CommandError::ResetSinceFlush) => {}
                Err(error) if !self.is_lost() && may_flush_again(error, &mut overdue) => continue,
                _ if !self.needs_no_flush(&ended) && !self.link.is_good(&command, &ended)? => continue,
                _ if self.link.journal().flushed(mark, ended.session) => return Ok(()),
                _ => {}
            }
            self.make_again(ended.session)?;
            repairs += 1;
            if repairs > SESSIONS_MAX {
                let text = "what is answered is lost again and again before it is flushed";
                return Err(DiskError::Io(text.into()));
            }
        }
        Err(DiskError::Io("no flush is answered, however often it is tried".into()))
    }

    /// A flush was refused as unknown by a unit that says that it has no write cache: what it has answered is stable.
    fn needs_no_flush(&self, ended: &Completion) -> bool {
        let sense = ended.result.as_ref().ok().and_then(|status| Sense::decode(&status.sense));
        !self.facts.has_write_cache()
            && !self.is_exchanged()
            && sense.is_some_and(|sense| sense.is_unknown_command())
    }

    /// What has happened to the session since the last call.
    pub(super) fn events(&self) -> Vec<EngineEvent> {
        let events = self.link.session.handle().events();
        for event in &events {
            match event {
                EngineEvent::UnitChanged { .. } => self.link.note_exchange(),
                EngineEvent::UnitGrown { .. } => self.link.note_resize(),
                EngineEvent::Notice(Notice::ScsiEvent { lun, sense })
                | EngineEvent::Attention { lun, sense }
                    if *lun == self.link.lun.field() =>
                {
                    self.link.told(sense);
                }
                _ => {}
            }
        }
        events
    }

    /// True when another disk was found in this one's place, here or in [`Self::events`]: nothing is read or written any more.
    pub(super) fn is_exchanged(&self) -> bool {
        self.link.is_exchanged()
    }

    /// True when the session is lost for good.
    pub(super) fn is_lost(&self) -> bool {
        self.link.session.handle().is_over()
    }

    /// Flushes and logs out.
    ///
    /// # Errors
    /// The flush's; [`DiskError::GhostLeft`].
    pub(super) fn close(&self) -> Result<(), DiskError> {
        let flushed = if self.is_read_only { Ok(()) } else { self.flush() };
        self.link.session.log_out();
        let left = self.link.session.handle().ghost_left().map(|portal| Error::GhostLeft { portal });
        flushed.and(left.map_or(Ok(()), |error| Err(DiskError::GhostLeft(error.to_string()))))
    }

    /// Flushes if so much is kept that nothing may be added.
    pub(super) fn make_room(&self) -> Result<(), DiskError> {
        let is_full = self.link.journal().is_full();
        if is_full { self.flush() } else { Ok(()) }
    }

    pub(super) fn permit(&self) -> Result<(), DiskError> {
        if self.is_read_only {
            return Err(DiskError::NotPermitted("the disk is attached read-only".into()));
        }
        Ok(())
    }

    fn has_fua(&self) -> bool {
        self.facts.mode.as_ref().is_some_and(|mode| mode.dpo_fua)
    }

    pub(super) fn cover(&self, offset: u64, length: u64) -> Result<Cover, DiskError> {
        let end = offset.checked_add(length).filter(|end| *end <= self.size_bytes());
        let end = end.ok_or(DiskError::Beyond)?;
        let block = u64::from(self.block_bytes);
        let lba = offset / block;
        // Less than a block.
        let head = (offset % block) as usize;
        Ok(Cover { lba, blocks: if length == 0 { 0 } else { end.div_ceil(block) - lba }, head })
    }

    /// Does something that reads these blocks, and does it again where a target that lost its cache may have given old data. What was
    /// lost elsewhere and cannot be made again is no reason to refuse them.
    pub(super) fn settled<T>(
        &self,
        blocks: &Range<u64>,
        work: impl Fn() -> Result<(T, u32), DiskError>,
    ) -> Result<T, DiskError> {
        for _ in 0..SESSIONS_MAX {
            let open = self.gate.read().unwrap_or_else(PoisonError::into_inner);
            let (result, session) = work()?;
            if !self.link.journal().is_doubtful(session, blocks, self.block_bytes) {
                return Ok(result);
            }
            drop(open);
            let made = self.make_again(session);
            if self.link.journal().is_doubtful(session, blocks, self.block_bytes) {
                made?;
            }
        }
        Err(DiskError::Io("the session is lost again and again before a read is answered".into()))
    }

    /// Makes all changes again that were not flushed and may be lost where this session answers, in their order.
    ///
    /// # Errors
    /// The first one of those that could not be made again. The others were, unless the target no longer answers.
    fn make_again(&self, session: u32) -> Result<(), DiskError> {
        let _closed = self.gate.write().unwrap_or_else(PoisonError::into_inner);
        if !self.link.journal().is_in_doubt(session) {
            // Another has done it, or only the flush came too early.
            return Ok(());
        }
        self.repairs.fetch_add(1, Ordering::SeqCst);
        tracing::warn!("the target may have lost what was not flushed: it is written again");
        // The journal is not locked while the target works, and nobody adds to it.
        let mut parts = self.link.journal().uncovered(session, self.block_bytes).into_iter();
        let (mut oldest, mut failed, mut failure) = (None, BTreeSet::new(), None);
        while let Some((serial, blocks)) = parts.next() {
            let part = self.link.journal().part(serial, &blocks, self.block_bytes);
            let answered = match part {
                Some(Change::Data { lba, data }) => self.send_blocks(lba, data, false).map(|sent| sent.0),
                Some(Change::Zeros { lba, blocks, may_unmap }) => self.send_zeros(lba, blocks, may_unmap),
                Some(Change::Stable { .. }) | None => continue,
            };
            match answered {
                Ok(answered) => oldest = Some(oldest.unwrap_or(answered).min(answered)),
                Err(error) if self.is_lost() || self.is_exchanged() => return Err(error),
                Err(error) => {
                    failed.insert(serial);
                    if let DiskError::Unanswered(_) = error {
                        // Everybody waits meanwhile, and the next ones would take as long.
                        failed.extend(parts.by_ref().map(|(serial, _)| serial));
                    }
                    failure.get_or_insert(error);
                }
            }
        }
        self.link.journal().made_again(session, oldest.unwrap_or(session), &failed);
        self.repairs.fetch_add(1, Ordering::SeqCst);
        failure.map_or(Ok(()), Err)
    }

    /// Blocks in pieces that one command can have.
    fn pieces(&self, lba: u64, blocks: u64) -> impl Iterator<Item = BlockRange> {
        let blocks_max = u64::from(self.facts.transfer_blocks_max(TRANSFER_BYTES_MAX));
        pieces(lba, blocks, blocks_max, self.block_bytes)
    }

    /// Reads blocks; tells the newest session that a part of them is from.
    fn read_blocks(&self, lba: u64, blocks: u64) -> Result<(Vec<u8>, u32), DiskError> {
        let commands = self.pieces(lba, blocks).map(|range| {
            let command = medium::read(range.form(), range, Caching::default()).map_err(does_not_fit)?;
            let length = command.data_in_bytes() as usize;
            Ok((command, vec![0; length]))
        });
        let mut parts = self.link.run_all(commands.collect::<Result<_, DiskError>>()?)?;
        let session = parts.iter().map(|part| part.session).max().unwrap_or(0);
        if parts.len() == 1 {
            return Ok((parts.remove(0).data, session));
        }
        let mut all = Vec::with_capacity(parts.iter().map(|part| part.data.len()).sum());
        parts.iter().for_each(|part| all.extend_from_slice(&part.data));
        Ok((all, session))
    }

    /// Begins to read whole blocks that one command can have; nobody waits for it.
    pub(super) fn begin_read(&self, range: &Range<u64>) -> Result<Prefetch, DiskError> {
        let block = u64::from(self.block_bytes);
        let blocks = u32::try_from((range.end - range.start) / block).map_err(|_| DiskError::Beyond)?;
        let lba = range.start / block;
        let range = BlockRange { lba, blocks, block_length_bytes: self.block_bytes };
        let command = medium::read(range.form(), range, Caching::default()).map_err(does_not_fit)?;
        let repairs = self.repairs.load(Ordering::SeqCst);
        let buffer = vec![0; command.data_in_bytes() as usize];
        let submitted = self.link.begin(&command, buffer);
        Ok(Prefetch { blocks: lba..lba + u64::from(blocks), command, submitted, repairs })
    }

    /// Waits for what was begun. `None`: it did not end well at once, and is read again in the usual way if somebody wants it.
    pub(super) fn finish_read(&self, prefetch: Prefetch) -> Option<Fetched> {
        let Prefetch { blocks, command, submitted, repairs } = prefetch;
        let ended = blocking::wait(submitted);
        self.link.overhear(&ended);
        let is_whole = ended.is_good() && ended.received == command.data_in_bytes();
        let (asked, came) = (ended.times.queued, ended.times.done);
        is_whole.then_some(Fetched {
            blocks,
            session: ended.session,
            repairs,
            asked,
            came,
            data: ended.buffer,
        })
    }

    /// Whether what was read then is what would be read now, as far as the target and we are concerned.
    pub(super) fn is_current(&self, fetched: &Fetched) -> bool {
        !self.is_exchanged()
            && fetched.repairs == self.repairs.load(Ordering::SeqCst)
            && !self.link.journal().is_doubtful(fetched.session, &fetched.blocks, self.block_bytes)
    }

    /// The longest read or write of one command, in bytes.
    pub(super) fn transfer_bytes_max(&self) -> u64 {
        u64::from(self.facts.transfer_blocks_max(TRANSFER_BYTES_MAX)) * u64::from(self.block_bytes)
    }

    /// Whole blocks of what begins or ends within one. The range is held.
    fn merged(&self, cover: Cover, data: Vec<u8>) -> Result<Vec<u8>, DiskError> {
        let block = self.block_bytes as usize;
        let tail = (block - (cover.head + data.len()) % block) % block;
        if data.is_empty() || (cover.head == 0 && tail == 0) {
            return Ok(data);
        }
        let block_at = |lba| self.settled(&(lba..lba + 1), || self.read_blocks(lba, 1));
        let first = block_at(cover.lba)?;
        let last = if cover.blocks > 1 && tail > 0 {
            block_at(cover.lba + cover.blocks - 1)?
        } else {
            first.clone()
        };
        Ok([&first[..cover.head], &data, &last[block - tail..]].concat())
    }

    /// Writes blocks and keeps what may be lost. The range is held.
    fn write_blocks(&self, lba: u64, data: Vec<u8>, fua: bool) -> Result<(), DiskError> {
        let _open = self.gate.read().unwrap_or_else(PoisonError::into_inner);
        let is_stable = fua && self.has_fua();
        let (session, data) = self.send_blocks(lba, data, is_stable)?;
        let blocks = data.len() as u64 / u64::from(self.block_bytes);
        let change = if is_stable { Change::Stable { lba, blocks } } else { Change::Data { lba, data } };
        self.link.journal().push(session, change);
        Ok(())
    }

    /// Writes blocks; tells the oldest session in which a part was answered, and gives the data back.
    pub(super) fn send_blocks(
        &self,
        lba: u64,
        data: Vec<u8>,
        fua: bool,
    ) -> Result<(u32, Vec<u8>), DiskError> {
        let blocks = data.len() as u64 / u64::from(self.block_bytes);
        let caching = Caching { force_unit_access: fua, ..Caching::default() };
        let ranges: Vec<BlockRange> = self.pieces(lba, blocks).collect();
        let command = |range: &BlockRange| medium::write(range.form(), *range, caching).map_err(does_not_fit);
        if let [range] = ranges[..] {
            let Done { data, session } = self.link.run(&command(&range)?, data)?;
            return Ok((session, data));
        }
        let mut rest = &data[..];
        let mut commands: Vec<(Command, Vec<u8>)> = Vec::with_capacity(ranges.len());
        for range in &ranges {
            let command = command(range)?;
            let (piece, behind) = rest.split_at(command.data_out_bytes() as usize);
            commands.push((command, piece.to_vec()));
            rest = behind;
        }
        let done = self.link.run_all(commands)?;
        Ok((done.iter().map(|done| done.session).min().unwrap_or(0), data))
    }
}

/// Whether a flush that ended so may be sent again: it speaks of nothing but what was answered before it. `overdue` counts how
/// often it was not answered.
fn may_flush_again(error: &CommandError, overdue: &mut u32) -> bool {
    match error {
        CommandError::NotSent(_) | CommandError::Unknown(_) => true,
        CommandError::Overdue { .. } => {
            *overdue += 1;
            *overdue < OVERDUE_MAX
        }
        _ => false,
    }
}

/// Blocks in pieces of at most `blocks_max`.
pub(super) fn pieces(
    lba: u64,
    blocks: u64,
    blocks_max: u64,
    block_length_bytes: u32,
) -> impl Iterator<Item = BlockRange> {
    let end = lba + blocks;
    // None is longer than a command can say.
    let blocks_max = blocks_max.clamp(1, u64::from(u32::MAX));
    let starts = std::iter::successors(Some(lba), move |lba| lba.checked_add(blocks_max));
    starts.take_while(move |lba| *lba < end).map(move |lba| BlockRange {
        lba,
        blocks: (end - lba).min(blocks_max) as u32,
        block_length_bytes,
    })
}

pub(super) fn does_not_fit(error: DoesNotFit) -> DiskError {
    DiskError::Io(error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flush_that_is_not_answered_is_given_up_after_the_second_time() {
        let ended_by = lunette_initiator::Remedy::LogicalUnitReset;
        let late = CommandError::Overdue { waited: std::time::Duration::from_secs(600), ended_by };
        let unknown = CommandError::Unknown("the session is lost".into());
        let mut overdue = 0;
        assert!(may_flush_again(&late, &mut overdue));
        assert!(may_flush_again(&unknown, &mut overdue), "a lost session is no fault of the unit");
        assert!(!may_flush_again(&late, &mut overdue));
        assert!(!may_flush_again(&CommandError::Aborted, &mut 0));
    }

    #[test]
    fn pieces_cover_a_range_once() {
        let told = |lba, blocks, max| -> Vec<(u64, u32)> {
            pieces(lba, blocks, max, 512).map(|range| (range.lba, range.blocks)).collect()
        };
        assert_eq!(told(5, 0, 4), []);
        assert_eq!(told(5, 4, 4), [(5, 4)]);
        assert_eq!(told(5, 9, 4), [(5, 4), (9, 4), (13, 1)]);
        assert_eq!(told(0, 1 << 33, 0xffff_ffff_ffff).len(), 3);
    }
}
