//! A disk as an end of a copy.

use lunette_scsi::client::medium::{BlockRange, Caching, SameBlock};
use lunette_scsi::client::{SameBlocks, UnitIdentity, lba_status};

use super::super::amount::Span;
use super::super::disk::Disk;
use super::super::stream::{Depth, Flow, ReadStream, WriteStream};
use super::endpoint::{Endpoint, Extent, Taker};
use crate::failure::Failure;

pub(super) struct DiskEnd {
    disk: Disk,
    whole: Span,
    /// What is known of the way from it.
    reads: Flow,
    writes: WriteStream,
    /// What GET LBA STATUS told last, to be used up.
    known: Vec<lba_status::LbaExtent>,
    /// The unit tells which blocks have space, and the others read as zeros.
    tells_space: bool,
    /// How long a WRITE SAME may be, and the longest that it has taken.
    same: SameBlocks,
    same_taken: u32,
}

impl DiskEnd {
    pub(super) fn open(disk: Disk, depth: Depth) -> Result<DiskEnd, Failure> {
        let capacity = disk.capacity()?;
        let block_bytes = capacity.block_length_bytes;
        let writes = WriteStream::new(&disk, block_bytes, Flow::new(depth), Caching::default());
        let tells_space = capacity.details.provisioning_managed && capacity.details.reads_zeros;
        let whole = Span { lba: 0, blocks: capacity.blocks, block_bytes };
        let (reads, known) = (Flow::new(depth), Vec::new());
        let same = SameBlocks::of(&disk.facts.limits);
        Ok(DiskEnd { disk, whole, reads, writes, known, tells_space, same, same_taken: 0 })
    }

    fn block(&self) -> u64 {
        self.whole.block_bytes.into()
    }

    /// Hands over what a stream from `at` on brings, in pieces of `piece_bytes`; the last may be shorter.
    fn hand_over(
        &mut self,
        stream: &mut ReadStream,
        at: u64,
        piece_bytes: usize,
        take: Taker<'_>,
    ) -> Result<(), Failure> {
        // What came in other pieces than were asked for.
        let (mut rest_at, mut rest) = (at, Vec::new());
        while let Some((offset_bytes, data)) = stream.next(&mut self.disk)? {
            if rest.is_empty() && data.len() == piece_bytes {
                take(offset_bytes, data)?;
                rest_at = offset_bytes + piece_bytes as u64;
                continue;
            }
            rest.extend_from_slice(&data);
            stream.recycle(data);
            while rest.len() >= piece_bytes {
                let more = rest.split_off(piece_bytes);
                take(rest_at, std::mem::replace(&mut rest, more))?;
                rest_at += piece_bytes as u64;
            }
        }
        if rest.is_empty() { Ok(()) } else { take(rest_at, rest) }
    }

    /// Has the unit write zeros; false if it does not take that. One that is longer than all before is waited for, and alone on its
    /// way, so that a refusal is that of no other.
    fn empty_range(&mut self, range: BlockRange) -> Result<bool, Failure> {
        let provisioning = self.disk.facts.provisioning;
        let unmaps = provisioning.write_same_16 && provisioning.reads_zeros;
        let same = if unmaps { SameBlock::DataOrUnmap } else { SameBlock::Data };
        let zeros = vec![0; self.whole.block_bytes as usize];
        if range.blocks <= self.same_taken {
            return self.writes.write_same(&mut self.disk, range, same, &zeros).map(|()| true);
        }
        self.settle()?;
        self.writes.write_same(&mut self.disk, range, same, &zeros)?;
        match self.settle() {
            Ok(()) => self.same_taken = range.blocks,
            Err(failure) => {
                self.same.refused(failure.unfit().ok_or(failure)?);
                return Ok(false);
            }
        }
        Ok(true)
    }
}

impl Endpoint for DiskEnd {
    fn name(&self) -> String {
        self.disk.name.clone()
    }

    fn identity(&self) -> String {
        let facts = &self.disk.facts;
        let world_wide = facts.designations.iter().find(|name| name.is_world_wide());
        world_wide.map_or_else(
            || format!("{} {} {}", facts.inquiry.vendor, facts.inquiry.product, facts.serial),
            |name| name.designator.to_string(),
        )
    }

    fn unit(&self) -> Option<UnitIdentity> {
        Some(UnitIdentity::of(&self.disk.facts))
    }

    fn changed_at(&self) -> Option<String> {
        None
    }

    fn size_bytes(&self) -> u64 {
        self.whole.length_bytes()
    }

    fn block_bytes(&self) -> u32 {
        self.whole.block_bytes
    }

    fn piece_bytes(&self) -> usize {
        self.writes.piece_bytes()
    }

    fn extent(&mut self, at: u64, end: u64) -> Result<Extent, Failure> {
        let rest = Extent { length_bytes: end - at, is_empty: false };
        if !self.tells_space {
            return Ok(rest);
        }
        let lba = at / self.block();
        let covers = |extent: &&lba_status::LbaExtent| extent.lba <= lba && lba < extent.end();
        if self.known.iter().find(covers).is_none() {
            match self.disk.ask_optional(&lba_status::get_lba_status(lba))? {
                Some(extents) => self.known = extents,
                None => {
                    self.tells_space = false;
                    return Ok(rest);
                }
            }
        }
        // The answer begins at the LBA that was asked.
        let Some(extent) = self.known.iter().find(covers) else { return Ok(rest) };
        let extent_end = extent.end().saturating_mul(self.block()).min(end);
        Ok(Extent { length_bytes: extent_end - at, is_empty: extent.status.holds_nothing() })
    }

    fn read(
        &mut self,
        at: u64,
        length_bytes: u64,
        piece_bytes: usize,
        take: Taker<'_>,
    ) -> Result<(), Failure> {
        let block = self.block();
        let span =
            Span { lba: at / block, blocks: length_bytes / block, block_bytes: self.whole.block_bytes };
        let mut stream = ReadStream::new(&self.disk, span, self.reads.clone());
        match self.hand_over(&mut stream, at, piece_bytes, take) {
            Ok(()) => self.reads = stream.into_flow(),
            Err(failure) => {
                // What is left must not be taken for what is asked for next; the first failure is the one to tell.
                let _ = stream.abandon(&mut self.disk);
                return Err(failure);
            }
        }
        Ok(())
    }

    fn write(&mut self, at: u64, data: Vec<u8>) -> Result<(), Failure> {
        let lba = at / self.block();
        self.writes.write(&mut self.disk, lba, data)
    }

    fn empty(&mut self, at: u64, length_bytes: u64) -> Result<(), Failure> {
        let (mut lba, end) = (at / self.block(), (at + length_bytes) / self.block());
        while lba < end {
            let Some(most) = self.same.blocks() else {
                return self.writes.write_zeros(&mut self.disk, lba, end - lba);
            };
            // No more than the limit's 32 bits.
            let blocks = (end - lba).min(most.into()) as u32;
            let range = BlockRange { lba, blocks, block_length_bytes: self.whole.block_bytes };
            if self.empty_range(range)? {
                lba += u64::from(blocks);
            }
        }
        Ok(())
    }

    fn begin_flush(&mut self) -> Result<(), Failure> {
        self.writes.begin_flush(&mut self.disk)
    }

    fn has_flushed(&mut self, waits: bool) -> Result<bool, Failure> {
        if waits {
            self.settle()?;
        }
        Ok(self.writes.has_flushed())
    }

    fn settle(&mut self) -> Result<(), Failure> {
        self.writes.drain(&mut self.disk)
    }

    fn close(self: Box<Self>) {
        self.disk.close();
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::stream::tests::{disk_with_short_same, disk_without};
    use super::*;

    #[test]
    fn a_limit_that_is_not_told_is_kept_to_once_it_is_known() {
        let (disk, seen) = disk_with_short_same(4096);
        let mut end = DiskEnd::open(disk, Depth::Commands(4)).unwrap();
        // The first fits by chance.
        end.empty(0, 100 * 512).unwrap();
        end.empty(1 << 20, 5 * 4095 * 512).unwrap();
        end.settle().unwrap();
        let seen = seen.lock().unwrap();
        assert_eq!((seen.refused, seen.good, seen.good_bytes), (1, 6, 6 * 512), "no zeros are written out");
    }

    #[test]
    fn holes_are_written_where_the_unit_does_not_know_write_same() {
        const WRITE_SAME_16: u8 = 0x93;
        let (disk, seen) = disk_without(WRITE_SAME_16);
        let mut end = DiskEnd::open(disk, Depth::Commands(4)).unwrap();
        end.empty(0, 1 << 20).unwrap();
        end.empty(4 << 20, 3 << 20).unwrap();
        end.settle().unwrap();
        let seen = seen.lock().unwrap();
        assert_eq!((seen.refused, seen.good), (1, 4), "it is asked once, and then written to");
    }
}
