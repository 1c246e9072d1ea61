//! Reads of a range, in its order.

use lunette_scsi::client::medium::{self, BlockRange, Caching};

use super::super::amount::Span;
use super::super::disk::Disk;
use super::flow::Flow;
use super::pipeline::{Pipeline, does_not_fit};
use crate::failure::Failure;

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

    /// Waits for what is under way, when nobody wants it any more.
    ///
    /// # Errors
    /// As [`ReadStream::next`].
    pub(crate) fn abandon(mut self, disk: &mut Disk) -> Result<(), Failure> {
        while self.pipeline.slots.iter().any(|slot| slot.data.is_none()) {
            let (index, _) = self.pipeline.finish(disk)?;
            self.pipeline.slots.remove(index);
        }
        Ok(())
    }

    /// Takes a buffer back.
    pub(crate) fn recycle(&mut self, buffer: Vec<u8>) {
        self.pipeline.recycle(buffer);
    }
}
