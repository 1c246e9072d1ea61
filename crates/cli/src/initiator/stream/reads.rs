//! Reads of ranges, in their order.

use std::collections::VecDeque;
use std::ops::Range;

use lunette_scsi::client::Command;
use lunette_scsi::client::medium::{self, BlockRange, Caching};

use super::super::amount::Span;
use super::super::disk::Disk;
use super::flow::Flow;
use super::pipeline::{Pipeline, does_not_fit};
use crate::failure::Failure;

/// Reads ranges in order, without a stop between them.
pub(crate) struct ReadStream {
    pipeline: Pipeline,
    /// The blocks that are still to be asked for, in order; neighbours are one.
    ranges: VecDeque<Range<u64>>,
    /// How many that are.
    ahead_blocks: u64,
    /// What was asked for, in order.
    reads: VecDeque<Read>,
    block_bytes: u32,
    piece_blocks: u32,
}

/// A read that was begun.
struct Read {
    tag: u64,
    lba: u64,
    /// What was read, once it is there.
    data: Option<Vec<u8>>,
}

/// What a stream comes to next.
pub(crate) enum Step {
    /// The next piece: its place on the disk in bytes, and its data.
    Data(u64, Vec<u8>),
    /// The answer to a question with this tag, or why there is none.
    Answer(u64, Result<Vec<u8>, Failure>),
    /// Nothing is under way, and nothing is to be read.
    Idle,
}

impl ReadStream {
    /// Of one range.
    pub(crate) fn new(disk: &Disk, span: Span, flow: Flow) -> ReadStream {
        let mut stream = ReadStream::empty(disk, span.block_bytes, flow);
        stream.push(span.lba..span.lba + span.blocks);
        stream
    }

    /// Of those that are added.
    pub(crate) fn empty(disk: &Disk, block_bytes: u32, flow: Flow) -> ReadStream {
        ReadStream {
            pipeline: Pipeline::new(flow),
            ranges: VecDeque::new(),
            ahead_blocks: 0,
            reads: VecDeque::new(),
            block_bytes,
            piece_blocks: disk.transfer_blocks_max(),
        }
    }

    /// What is known of the way now, for the next stream.
    pub(crate) fn into_flow(self) -> Flow {
        self.pipeline.flow
    }

    /// Adds blocks behind those that are to be read.
    pub(crate) fn push(&mut self, blocks: Range<u64>) {
        self.ahead_blocks += blocks.end - blocks.start;
        match self.ranges.back_mut() {
            Some(last) if last.end == blocks.start => last.end = blocks.end,
            _ if blocks.is_empty() => {}
            _ => self.ranges.push_back(blocks),
        }
    }

    /// How many blocks should be known to be read and not asked for yet, so that the way is busy until an answer comes that says of more:
    /// it comes behind what is under way then, and so much is read meanwhile.
    pub(crate) fn lacks_blocks(&self) -> u64 {
        let piece_bytes = u64::from(self.piece_blocks) * u64::from(self.block_bytes);
        let commands_bytes = piece_bytes.saturating_mul(self.pipeline.depth_max as u64);
        let bytes = self.pipeline.flow.window_bytes().min(commands_bytes) * 2;
        (bytes / u64::from(self.block_bytes)).saturating_sub(self.ahead_blocks)
    }

    /// Sends a command whose answer says what is to be read, if there is room for one more, and tells its tag.
    ///
    /// # Errors
    /// The session.
    pub(crate) fn ask(
        &mut self,
        disk: &mut Disk,
        lba: u64,
        command: Command,
    ) -> Result<Option<u64>, Failure> {
        if !self.pipeline.has_room_for_question() {
            return Ok(None);
        }
        let buffer = vec![0; command.data_in_bytes() as usize];
        self.pipeline.start_unmeasured(disk, lba, command, buffer, 0).map(Some)
    }

    /// The next piece: its place on the disk in bytes, and its data. `None` at the end of the ranges.
    ///
    /// # Errors
    /// The session, or what the target said.
    pub(crate) fn next(&mut self, disk: &mut Disk) -> Result<Option<(u64, Vec<u8>)>, Failure> {
        loop {
            match self.step(disk)? {
                Step::Data(offset_bytes, data) => return Ok(Some((offset_bytes, data))),
                Step::Answer(..) => {}
                Step::Idle => return Ok(None),
            }
        }
    }

    /// What comes next.
    ///
    /// # Errors
    /// The session, or what the target said of a read.
    pub(crate) fn step(&mut self, disk: &mut Disk) -> Result<Step, Failure> {
        loop {
            self.begin(disk)?;
            if let Some(Read { lba, data: Some(data), .. }) =
                self.reads.pop_front_if(|read| read.data.is_some())
            {
                return Ok(Step::Data(lba * u64::from(self.block_bytes), data));
            }
            if self.pipeline.slots.is_empty() {
                return Ok(Step::Idle);
            }
            let ended = self.pipeline.finish(disk)?;
            match self.reads.iter_mut().find(|read| read.tag == ended.tag) {
                Some(read) => read.data = Some(ended.result?),
                None => return Ok(Step::Answer(ended.tag, ended.result)),
            }
        }
    }

    /// Begins as many reads as there is room for. What was read waits for its turn, and counts.
    fn begin(&mut self, disk: &mut Disk) -> Result<(), Failure> {
        while self.pipeline.has_room()
            && self.reads.len() < self.pipeline.depth_max
            && let Some(range) = self.ranges.front_mut()
        {
            let lba = range.start;
            let most = self.pipeline.piece_blocks(self.block_bytes, self.piece_blocks);
            let blocks = (range.end - lba).min(most) as u32;
            range.start += u64::from(blocks);
            self.ahead_blocks -= u64::from(blocks);
            if range.is_empty() {
                self.ranges.pop_front();
            }
            let range = BlockRange { lba, blocks, block_length_bytes: self.block_bytes };
            let command = medium::read(range.form(), range, Caching::default()).map_err(does_not_fit)?;
            let buffer = self.pipeline.buffer(command.data_in_bytes() as usize);
            let tag = self.pipeline.start(disk, lba, command, buffer)?;
            self.reads.push_back(Read { tag, lba, data: None });
        }
        Ok(())
    }

    /// Waits for what is under way, when nobody wants it any more, however it ends.
    ///
    /// # Errors
    /// The session.
    pub(crate) fn settle(&mut self, disk: &mut Disk) -> Result<(), Failure> {
        let mut failed = None;
        while !self.pipeline.slots.is_empty() {
            let Err(failure) = self.pipeline.finish(disk) else { continue };
            match failure.tag() {
                Some(tag) => self.pipeline.forget(tag),
                // In a session that is over commands end without a name: none is left.
                None if failure.is_internal() => return Err(failed.unwrap_or(failure)),
                None => failed = failed.or(Some(failure)),
            }
        }
        self.reads.clear();
        failed.map_or(Ok(()), Err)
    }

    /// Takes a buffer back.
    pub(crate) fn recycle(&mut self, buffer: Vec<u8>) {
        self.pipeline.recycle(buffer);
    }
}
