//! Writes, several at once, and flushes behind them that do not stop them.

use lunette_scsi::client::medium::{self, BlockRange, Caching, CdbForm, SameBlock};
use lunette_scsi::client::{Command, Transfer, Unfit};

use super::super::disk::Disk;
use super::flow::Flow;
use super::flush_command;
use super::pipeline::{Pipeline, does_not_fit};
use crate::failure::Failure;

/// How often a flush is sent again where nothing can be lost by that: what ends it may end each of them. A session that is lost at each
/// ends two, and is given up before.
const RESENT_MAX: u32 = 32;

/// A flush behind which writes go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Barrier {
    /// None was asked for, or it is answered.
    Open,
    /// It waits for the commands with smaller tags.
    Waits {
        below: u64,
    },
    UnderWay {
        tag: u64,
    },
}

/// In which sessions that was answered which no good flush has covered. A target with a write cache that was restarted may have
/// lost what it answered in an earlier session, and need not tell so: only a flush of the same session proves anything.
#[derive(Debug, Default)]
struct Unflushed {
    /// Commands with smaller tags do not count: a flush has failed since, and they are written again if anybody wants them.
    from_tag: u64,
    /// The oldest session of what the flush that was begun is to cover.
    covered: Option<u32>,
    /// The same of what came behind it.
    later: Option<u32>,
}

impl Unflushed {
    /// A command has ended well.
    fn note(&mut self, tag: u64, session: u32, is_covered: bool) {
        if tag >= self.from_tag {
            let oldest = if is_covered { &mut self.covered } else { &mut self.later };
            *oldest = Some(oldest.map_or(session, |oldest| oldest.min(session)));
        }
    }

    /// A flush is begun, which covers all that has ended, and more that is under way.
    fn begin(&mut self) {
        self.covered = self.covered.into_iter().chain(self.later.take()).min();
    }

    /// It is answered in this session. False if it proves nothing.
    fn flushed(&mut self, session: u32) -> bool {
        self.covered.take().is_none_or(|oldest| oldest >= session)
    }

    /// A flush has failed: nothing counts that was begun before the command with this tag.
    fn forget(&mut self, next_tag: u64) {
        *self = Self { from_tag: next_tag, ..Self::default() };
    }
}

/// Writes pieces, several at once.
pub(crate) struct WriteStream {
    pipeline: Pipeline,
    barrier: Barrier,
    /// How often the flush was sent again.
    resent: u32,
    unflushed: Unflushed,
    /// Each write is stable when it is answered, although the unit may have a cache (FUA).
    is_through: bool,
    block_bytes: u32,
    piece_blocks: u32,
    caching: Caching,
}

impl WriteStream {
    pub(crate) fn new(disk: &Disk, block_bytes: u32, flow: Flow, caching: Caching) -> WriteStream {
        let has_fua = disk.facts.mode.as_ref().is_some_and(|mode| mode.dpo_fua);
        WriteStream {
            pipeline: Pipeline::new(flow),
            barrier: Barrier::Open,
            resent: 0,
            unflushed: Unflushed::default(),
            is_through: caching.force_unit_access && has_fua,
            block_bytes,
            piece_blocks: disk.transfer_blocks_max(),
            caching,
        }
    }

    /// The length of a piece that takes one command, in bytes.
    pub(crate) fn piece_bytes(&self) -> usize {
        self.piece_blocks as usize * self.block_bytes as usize
    }

    /// A buffer for a piece.
    pub(crate) fn buffer(&mut self, length: usize) -> Vec<u8> {
        self.pipeline.buffer(length)
    }

    /// Writes `data`, which is of whole blocks and at most a piece, at `lba`, by as many commands as suit the way; it may still be
    /// under way afterwards.
    ///
    /// # Errors
    /// The session, or what the target said, of this write or an earlier one.
    pub(crate) fn write(&mut self, disk: &mut Disk, lba: u64, data: Vec<u8>) -> Result<(), Failure> {
        let mut at = 0;
        loop {
            let blocks = self.pipeline.piece_blocks(self.block_bytes, self.piece_blocks) as usize;
            let end = data.len().min(at + blocks * self.block_bytes as usize);
            if at == 0 && end == data.len() {
                return self.write_one(disk, lba, data);
            }
            let mut part = self.buffer(end - at);
            part.copy_from_slice(&data[at..end]);
            self.write_one(disk, lba + (at / self.block_bytes as usize) as u64, part)?;
            at = end;
            if at == data.len() {
                self.pipeline.recycle(data);
                return Ok(());
            }
        }
    }

    fn write_one(&mut self, disk: &mut Disk, lba: u64, data: Vec<u8>) -> Result<(), Failure> {
        while !self.pipeline.has_room() {
            self.finish_one(disk)?;
        }
        let blocks = (data.len() / self.block_bytes as usize) as u32;
        let range = BlockRange { lba, blocks, block_length_bytes: self.block_bytes };
        let command = medium::write(range.form(), range, self.caching).map_err(does_not_fit)?;
        self.pipeline.start(disk, lba, command, data).map(drop)
    }

    /// Writes zeros, for units that do not know WRITE SAME; they may still be under way afterwards.
    ///
    /// # Errors
    /// As [`WriteStream::write`].
    pub(crate) fn write_zeros(&mut self, disk: &mut Disk, lba: u64, blocks: u64) -> Result<(), Failure> {
        let (mut lba, end) = (lba, lba + blocks);
        while lba < end {
            let blocks = (end - lba).min(self.piece_blocks.into());
            let mut data = self.buffer(blocks as usize * self.block_bytes as usize);
            data.fill(0);
            self.write(disk, lba, data)?;
            lba += blocks;
        }
        Ok(())
    }

    /// Has the unit write `block` to a range (WRITE SAME); it may still be under way afterwards.
    ///
    /// # Errors
    /// As [`WriteStream::write`].
    pub(crate) fn write_same(
        &mut self,
        disk: &mut Disk,
        range: BlockRange,
        same: SameBlock,
        block: &[u8],
    ) -> Result<(), Failure> {
        let command = medium::write_same(CdbForm::Sixteen, range, same).map_err(does_not_fit)?;
        self.start_other(disk, range, command, block.to_vec())
    }

    /// Sends a command that works on a range and moves next to nothing, when there is room among [`super::OTHERS_MAX`] of them and
    /// [`super::OTHERS_BYTES_MAX`]; it may still be under way afterwards. `data` is its Data-Out, unless that is its own parameter list.
    ///
    /// # Errors
    /// As [`WriteStream::write`].
    pub(crate) fn start_other(
        &mut self,
        disk: &mut Disk,
        range: BlockRange,
        command: Command,
        data: Vec<u8>,
    ) -> Result<(), Failure> {
        let bytes = u64::from(range.blocks) * u64::from(range.block_length_bytes);
        while !self.pipeline.has_room_for_other(bytes) {
            self.finish_one(disk)?;
        }
        let data = match command.transfer() {
            Transfer::List(list) => list.clone(),
            _ => data,
        };
        self.pipeline.start_unmeasured(disk, range.lba, command, data, bytes).map(drop)
    }

    fn finish_one(&mut self, disk: &mut Disk) -> Result<(), Failure> {
        let ended = match self.pipeline.finish(disk) {
            Ok(ended) => ended,
            Err(failure) => {
                let (true, Barrier::UnderWay { tag }) = (failure.is_unflushed(), self.barrier) else {
                    return Err(failure);
                };
                self.pipeline.forget(tag);
                let is_over = failure.tag().is_none();
                // Nothing of what it was to cover can have been lost, and the session goes on.
                if self.unflushed.covered.is_none() && !is_over && self.resent < RESENT_MAX {
                    self.resent += 1;
                    self.barrier = Barrier::Waits { below: tag };
                    return self.push_barrier(disk);
                }
                self.barrier = Barrier::Open;
                self.unflushed.forget(self.pipeline.next_tag());
                return if is_over { Err(failure) } else { self.forgo_flush(disk, failure) };
            }
        };
        let is_flush = self.barrier == Barrier::UnderWay { tag: ended.tag };
        if is_flush {
            self.barrier = Barrier::Open;
        }
        match ended.result {
            // Without a cache there is nothing to flush, and a unit need not know how.
            Err(failure) if is_flush && disk.has_no_cache() && failure.unfit() == Some(Unfit::Command) => {}
            result => self.pipeline.recycle(result?),
        }
        if is_flush && !self.unflushed.flushed(ended.session) {
            self.unflushed.forget(self.pipeline.next_tag());
            return self.forgo_flush(disk, Failure::flushed_too_late(&disk.name));
        }
        if !is_flush && !self.is_through {
            let is_covered = matches!(self.barrier, Barrier::Waits { below } if ended.tag < below);
            self.unflushed.note(ended.tag, ended.session, is_covered);
        }
        self.push_barrier(disk)
    }

    /// A flush has proved nothing, which is told unless the disk has no write cache: all that it has answered is stable then. It may have
    /// got one since it was opened, and so is asked again, when nothing else is under way.
    fn forgo_flush(&mut self, disk: &mut Disk, failure: Failure) -> Result<(), Failure> {
        if !disk.told_no_cache() {
            return Err(failure);
        }
        while !self.pipeline.slots.is_empty() {
            self.finish_one(disk)?;
        }
        if disk.still_has_no_cache()? { Ok(()) } else { Err(failure) }
    }

    /// Waits for all commands, and for a flush that was begun.
    ///
    /// # Errors
    /// As [`WriteStream::write`]; a flush that fails may be the reason, with writes still under way.
    pub(crate) fn drain(&mut self, disk: &mut Disk) -> Result<(), Failure> {
        self.push_barrier(disk)?;
        while !self.pipeline.slots.is_empty() {
            self.finish_one(disk)?;
        }
        Ok(())
    }

    /// Begins a flush of all that was written before. It is sent when that is answered; writes go on meanwhile. One that was begun
    /// before must have been answered.
    ///
    /// # Errors
    /// As [`WriteStream::write`].
    pub(crate) fn begin_flush(&mut self, disk: &mut Disk) -> Result<(), Failure> {
        self.barrier = Barrier::Waits { below: self.pipeline.next_tag() };
        self.resent = 0;
        self.unflushed.begin();
        self.push_barrier(disk)
    }

    /// Whether the flush that was begun last is answered.
    pub(crate) fn has_flushed(&self) -> bool {
        self.barrier == Barrier::Open
    }

    /// Sends the flush that waits, if what is before it is answered.
    fn push_barrier(&mut self, disk: &mut Disk) -> Result<(), Failure> {
        let Barrier::Waits { below } = self.barrier else { return Ok(()) };
        if !self.pipeline.has_ended_before(below) {
            return Ok(());
        }
        let tag = self.pipeline.start_unmeasured(disk, 0, flush_command()?, Vec::new(), 0)?;
        self.barrier = Barrier::UnderWay { tag };
        Ok(())
    }

    /// Waits for all writes, and makes them stable.
    ///
    /// # Errors
    /// As [`WriteStream::write`]; or the session was lost after something was written, and nobody knows whether the target still
    /// has it.
    pub(crate) fn flush(&mut self, disk: &mut Disk) -> Result<(), Failure> {
        self.drain(disk)?;
        self.begin_flush(disk)?;
        self.drain(disk)
    }
}
