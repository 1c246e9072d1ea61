//! A disk as an end of a copy.

use lunette_scsi::client::medium::Caching;
use lunette_scsi::client::{UnitIdentity, lba_status};

use super::super::amount::Span;
use super::super::disk::Disk;
use super::super::stream::{Depth, Flow, ReadStream, WriteStream};
use super::super::zeros::Zeros;
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
    zeros: Zeros,
}

impl DiskEnd {
    pub(super) fn open(disk: Disk, depth: Depth) -> Result<DiskEnd, Failure> {
        let capacity = disk.capacity()?;
        let block_bytes = capacity.block_length_bytes;
        let writes = WriteStream::new(&disk, block_bytes, Flow::new(depth), Caching::default());
        let tells_space = capacity.details.provisioning_managed && capacity.details.reads_zeros;
        let whole = Span { lba: 0, blocks: capacity.blocks, block_bytes };
        let (reads, known) = (Flow::new(depth), Vec::new());
        let zeros = Zeros::of(&disk, block_bytes);
        Ok(DiskEnd { disk, whole, reads, writes, known, tells_space, zeros })
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
        let (lba, end) = (at / self.block(), (at + length_bytes) / self.block());
        let from = self.zeros.fill(&mut self.disk, &mut self.writes, lba, end)?;
        self.writes.write_zeros(&mut self.disk, from, end - from)
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
    use super::super::super::stream::tests::disk_without;
    use super::*;

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
