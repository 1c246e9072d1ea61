//! Many reads or writes under way at once: what is read comes in the order of the disk.

mod flow;

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use lunette_scsi::client::medium::{self, BlockRange, Caching};
use lunette_scsi::client::{Command, DoesNotFit};

use super::amount::Span;
use super::disk::{Disk, Verdict, judge, pause};
use super::port::Done;
use crate::failure::Failure;

use self::flow::Sent;
pub(crate) use self::flow::{Depth, Flow};

/// The most commands under way that may be asked for.
pub(crate) const DEPTH_MAX: u32 = 1024;

/// Buffers that are kept to be used again.
const SPARE_MAX: usize = 64;

/// One command under way.
struct Slot {
    tag: u64,
    lba: u64,
    command: Command,
    tries: u32,
    sent: Sent,
    /// What was read, once it is there.
    data: Option<Vec<u8>>,
}

/// Commands under way on one disk.
struct Pipeline {
    flow: Flow,
    began: Instant,
    slots: VecDeque<Slot>,
    next_tag: u64,
    /// How many are with the unit.
    under_way: usize,
    /// Refused for the moment (BUSY, TASK SET FULL): sent again when another one has ended.
    deferred: VecDeque<(u64, Vec<u8>)>,
    /// How many the unit takes at once, as it has shown; at least 1, and no more than were asked for.
    depth: usize,
    depth_max: usize,
    /// Commands that ended well since the depth was changed.
    good: usize,
    /// Buffers to be used again.
    spare: Vec<Vec<u8>>,
}

impl Pipeline {
    fn new(flow: Flow) -> Pipeline {
        let depth = flow.commands_max();
        Pipeline {
            flow,
            began: Instant::now(),
            slots: VecDeque::new(),
            next_tag: 0,
            under_way: 0,
            deferred: VecDeque::new(),
            depth,
            depth_max: depth,
            good: 0,
            spare: Vec::new(),
        }
    }

    /// Another command may be begun.
    fn has_room(&self) -> bool {
        self.under_way + self.deferred.len() < self.depth && self.flow.has_room()
    }

    /// How many blocks a command should move, of at most `most`.
    fn piece_blocks(&self, block_bytes: u32, most: u32) -> u64 {
        (self.flow.piece_bytes() / u64::from(block_bytes)).clamp(1, most.into())
    }

    fn now(&self) -> Duration {
        self.began.elapsed()
    }

    fn buffer(&mut self, length: usize) -> Vec<u8> {
        let mut buffer = self.spare.pop().unwrap_or_default();
        buffer.resize(length, 0);
        buffer
    }

    /// Takes a buffer back.
    fn recycle(&mut self, buffer: Vec<u8>) {
        if self.spare.len() < SPARE_MAX {
            self.spare.push(buffer);
        }
    }

    fn start(&mut self, disk: &mut Disk, lba: u64, command: Command, data: Vec<u8>) -> Result<(), Failure> {
        let tag = self.next_tag;
        self.next_tag += 1;
        let sent = self.flow.sent(self.now(), data.len() as u64);
        disk.port.start(disk.lun, tag, &command, data)?;
        self.under_way += 1;
        self.slots.push_back(Slot { tag, lba, command, tries: 0, sent, data: None });
        Ok(())
    }

    /// Sends a command again.
    fn resend(&mut self, disk: &mut Disk, tag: u64, mut data: Vec<u8>) -> Result<(), Failure> {
        let now = self.now();
        let slot = self.slots.iter_mut().find(|slot| slot.tag == tag);
        let slot = slot.ok_or_else(|| Failure::internal("a command is sent again that has ended"))?;
        data.resize(slot.command.data_in_bytes().max(slot.command.data_out_bytes()) as usize, 0);
        slot.sent = self.flow.sent(now, data.len() as u64);
        disk.port.start(disk.lun, tag, &slot.command, data)?;
        self.under_way += 1;
        Ok(())
    }

    /// The unit has no room for more than there are: a narrower way, which widens again as long as all goes well.
    fn narrow(&mut self) {
        (self.depth, self.good) = (self.under_way.max(1), 0);
    }

    fn widen(&mut self) {
        self.good += 1;
        if self.good > self.depth && self.depth < self.depth_max {
            (self.depth, self.good) = (self.depth + 1, 0);
        }
    }

    /// Waits until one more command has ended well, and gives its place among the slots and its buffer.
    fn finish(&mut self, disk: &mut Disk) -> Result<(usize, Vec<u8>), Failure> {
        loop {
            if self.under_way == 0
                && let Some((tag, data)) = self.deferred.pop_front()
            {
                // It was refused although nothing of ours was there: whoever fills the unit needs a moment.
                pause();
                if let Some(slot) = self.slots.iter_mut().find(|slot| slot.tag == tag) {
                    slot.tries += 1;
                }
                self.resend(disk, tag, data)?;
            }
            let done = disk.port.finish()?;
            let now = self.now();
            self.under_way -= 1;
            let index = self.slots.iter().position(|slot| slot.tag == done.tag);
            let index = index.ok_or_else(|| Failure::internal("a command ended that was not sent"))?;
            let slot = &mut self.slots[index];
            match judge(&disk.name, &slot.command, &done, slot.tries) {
                Verdict::Good => {
                    self.flow.done(now, slot.sent);
                    self.widen();
                    if let Some((tag, data)) = self.deferred.pop_front() {
                        self.resend(disk, tag, data)?;
                    }
                    return Ok((index, whole(&disk.name, &self.slots[index].command, done)?));
                }
                Verdict::Again => {
                    self.flow.refused(slot.sent);
                    slot.tries += 1;
                    self.resend(disk, done.tag, done.data)?;
                }
                Verdict::Later => {
                    self.flow.refused(slot.sent);
                    self.narrow();
                    self.deferred.push_back((done.tag, done.data));
                }
                Verdict::Failed(failure) => return Err(at(failure, slot.lba)),
            }
        }
    }
}

/// Says where on the disk it was.
fn at(failure: Failure, lba: u64) -> Failure {
    failure.with_place(&format!("at block {lba}"))
}

/// The data of a read, if all of it came: GOOD with less is an error, never a short file.
fn whole(name: &str, command: &Command, done: Done) -> Result<Vec<u8>, Failure> {
    let wanted = command.data_in_bytes() as usize;
    if done.data.len() < wanted {
        let came = done.data.len();
        let message = format!(
            "{name}: the target answered {} with GOOD, but sent {came} of {wanted} bytes",
            command.name()
        );
        return Err(Failure::scsi(message, Some("the target does not follow the standard here".to_owned())));
    }
    Ok(done.data)
}

fn does_not_fit(error: DoesNotFit) -> Failure {
    Failure::internal(&error.to_string())
}

/// Reads a range in order.
pub(crate) struct ReadStream {
    pipeline: Pipeline,
    next_lba: u64,
    end_lba: u64,
    block_bytes: u32,
    piece_blocks: u32,
}

impl ReadStream {
    pub(crate) fn new(disk: &Disk, span: Span, flow: Flow) -> ReadStream {
        ReadStream {
            pipeline: Pipeline::new(flow),
            next_lba: span.lba,
            end_lba: span.lba + span.blocks,
            block_bytes: span.block_bytes,
            piece_blocks: disk.transfer_blocks_max(),
        }
    }

    /// What is known of the way now, for the next stream.
    pub(crate) fn into_flow(self) -> Flow {
        self.pipeline.flow
    }

    /// The next piece: its place on the disk in bytes, and its data. `None` at the end of the range.
    ///
    /// # Errors
    /// The session, or what the target said.
    pub(crate) fn next(&mut self, disk: &mut Disk) -> Result<Option<(u64, Vec<u8>)>, Failure> {
        loop {
            // What was read waits for its turn, and counts.
            while self.pipeline.has_room()
                && self.pipeline.slots.len() < self.pipeline.depth_max
                && self.next_lba < self.end_lba
            {
                let left = self.end_lba - self.next_lba;
                let blocks = left.min(self.pipeline.piece_blocks(self.block_bytes, self.piece_blocks)) as u32;
                let range = BlockRange { lba: self.next_lba, blocks, block_length_bytes: self.block_bytes };
                let command = medium::read(range.form(), range, Caching::default()).map_err(does_not_fit)?;
                let buffer = self.pipeline.buffer(command.data_in_bytes() as usize);
                self.pipeline.start(disk, self.next_lba, command, buffer)?;
                self.next_lba += u64::from(blocks);
            }
            match self.pipeline.slots.front_mut() {
                None => return Ok(None),
                Some(slot) if slot.data.is_some() => {
                    let slot = self.pipeline.slots.pop_front();
                    let read = slot.and_then(|slot| Some((slot.lba, slot.data?)));
                    return Ok(read.map(|(lba, data)| (lba * u64::from(self.block_bytes), data)));
                }
                Some(_) => {
                    let (index, data) = self.pipeline.finish(disk)?;
                    self.pipeline.slots[index].data = Some(data);
                }
            }
        }
    }

    /// Takes a buffer back.
    pub(crate) fn recycle(&mut self, buffer: Vec<u8>) {
        self.pipeline.recycle(buffer);
    }
}

/// Writes pieces, several at once.
pub(crate) struct WriteStream {
    pipeline: Pipeline,
    block_bytes: u32,
    piece_blocks: u32,
    caching: Caching,
}

impl WriteStream {
    pub(crate) fn new(disk: &Disk, block_bytes: u32, flow: Flow, caching: Caching) -> WriteStream {
        WriteStream {
            pipeline: Pipeline::new(flow),
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
        self.pipeline.start(disk, lba, command, data)
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

    fn finish_one(&mut self, disk: &mut Disk) -> Result<(), Failure> {
        let (index, buffer) = self.pipeline.finish(disk)?;
        self.pipeline.slots.remove(index);
        self.pipeline.recycle(buffer);
        Ok(())
    }

    /// Waits for all writes.
    ///
    /// # Errors
    /// As [`WriteStream::write`].
    pub(crate) fn drain(&mut self, disk: &mut Disk) -> Result<(), Failure> {
        while !self.pipeline.slots.is_empty() {
            self.finish_one(disk)?;
        }
        Ok(())
    }

    /// Waits for all writes, and makes them stable.
    ///
    /// # Errors
    /// As [`WriteStream::write`].
    pub(crate) fn flush(&mut self, disk: &mut Disk) -> Result<(), Failure> {
        self.drain(disk)?;
        flush(disk)
    }
}

/// SYNCHRONIZE CACHE of the whole disk, unless every write is stable when it is answered.
///
/// # Errors
/// The session, or what the target said.
pub(crate) fn flush(disk: &mut Disk) -> Result<(), Failure> {
    if !disk.facts.has_write_cache() {
        return Ok(());
    }
    let all = BlockRange { lba: 0, blocks: 0, block_length_bytes: 0 };
    let command = medium::synchronize_cache(medium::CdbForm::Ten, all).map_err(does_not_fit)?;
    disk.run(&command, &[]).map(drop)
}

#[cfg(test)]
pub(crate) mod tests;
