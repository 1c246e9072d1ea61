//! A disk as an end of a copy.

use std::ops::Range;
use std::time::Duration;

use lunette_initiator::TargetUrl;
use lunette_scsi::client::medium::Caching;
use lunette_scsi::client::vpd::identification::Association;
use lunette_scsi::client::{UnitFacts, UnitIdentity};

use super::super::amount::Span;
use super::super::disk::Disk;
use super::super::stream::{Depth, Flow, WriteStream};
use super::super::zeros::Zeros;
use super::endpoint::{Endpoint, Taker};
use super::pieces::{Piece, Pieces};
use super::sparse::SparseReads;
use crate::failure::Failure;

pub(super) struct DiskEnd {
    disk: Disk,
    identity: String,
    whole: Span,
    /// What is known of the way from it.
    reads: Flow,
    writes: WriteStream,
    /// The unit tells which blocks have space, and the others read as zeros.
    tells_space: bool,
    zeros: Zeros,
}

impl DiskEnd {
    pub(super) fn open(disk: Disk, url: &TargetUrl, depth: Depth) -> Result<DiskEnd, Failure> {
        let capacity = disk.capacity()?;
        let block_bytes = capacity.block_length_bytes;
        let writes = WriteStream::new(&disk, block_bytes, Flow::new(depth), Caching::default());
        let tells_space = capacity.details.provisioning_managed && capacity.details.reads_zeros;
        let whole = Span { lba: 0, blocks: capacity.blocks, block_bytes };
        let (reads, zeros) = (Flow::new(depth), Zeros::of(&disk, block_bytes));
        let identity = identity(&disk.facts, url);
        Ok(DiskEnd { disk, identity, whole, reads, writes, tells_space, zeros })
    }

    fn block(&self) -> u64 {
        self.whole.block_bytes.into()
    }

    /// Hands over what comes, in pieces of `piece_bytes`.
    fn hand_over(
        &mut self,
        reads: &mut SparseReads,
        piece_bytes: usize,
        take: Taker<'_>,
    ) -> Result<(), Failure> {
        // What came in other pieces than were asked for.
        let (mut rest_at, mut rest) = (0, Vec::new());
        loop {
            let next = reads.next(&mut self.disk)?;
            let (offset_bytes, data) = match next {
                Some(Piece::Data { offset_bytes, data }) => (offset_bytes, data),
                other => {
                    if !rest.is_empty() {
                        take(Piece::Data { offset_bytes: rest_at, data: std::mem::take(&mut rest) })?;
                    }
                    match other {
                        Some(piece) => take(piece)?,
                        None => return Ok(()),
                    }
                    continue;
                }
            };
            if rest.is_empty() {
                rest_at = offset_bytes;
                if data.len() == piece_bytes {
                    take(Piece::Data { offset_bytes, data })?;
                    continue;
                }
            }
            rest.extend_from_slice(&data);
            reads.recycle(data);
            while rest.len() >= piece_bytes {
                let more = rest.split_off(piece_bytes);
                take(Piece::Data { offset_bytes: rest_at, data: std::mem::replace(&mut rest, more) })?;
                rest_at += piece_bytes as u64;
            }
        }
    }
}

/// A name that is unique in the world; of a disk that has none what it says of itself, and where it is. Its port is left out: the
/// same target may come back at another. Its host is not, since some targets give their disks, and themselves, the same names on
/// each.
fn identity(facts: &UnitFacts, url: &TargetUrl) -> String {
    if let Some(name) = facts.designations.iter().find(|name| name.is_world_wide()) {
        return name.designator.to_string();
    }
    let of_unit = facts.designations.iter().filter(|name| name.association == Association::LogicalUnit);
    let names: Vec<_> = of_unit.map(|name| name.designator.to_string()).collect();
    format!(
        "{} {} {} ({}), LUN {} of {} at {}",
        facts.inquiry.vendor,
        facts.inquiry.product,
        facts.serial,
        names.join(", "),
        url.lun,
        url.target.as_str(),
        url.portal.host.to_lowercase()
    )
}

impl Endpoint for DiskEnd {
    fn name(&self) -> String {
        self.disk.name.clone()
    }

    fn identity(&self) -> Result<String, Failure> {
        Ok(self.identity.clone())
    }

    fn unit(&self) -> Option<UnitIdentity> {
        Some(UnitIdentity::of(&self.disk.facts))
    }

    fn changed_at(&self) -> Option<String> {
        None
    }

    fn check_unchanged(&self) -> Result<(), Failure> {
        Ok(())
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

    fn read(&mut self, bytes: Range<u64>, pieces: Pieces, take: Taker<'_>) -> Result<(), Failure> {
        let (block_bytes, tells_space) = (self.whole.block_bytes, self.tells_space && pieces.sparse);
        let mut reads =
            SparseReads::new(&self.disk, &bytes, block_bytes, pieces, tells_space, self.reads.clone());
        let handed = self.hand_over(&mut reads, pieces.piece_bytes, take);
        if let Err(failure) = handed {
            // What is left is not in the way of what is asked for next; the first failure that is none of the other side's is told.
            let settled = reads.settle(&mut self.disk);
            return if failure.is_internal() { settled.and(Err(failure)) } else { Err(failure) };
        }
        let (flow, is_told) = reads.into_parts();
        self.reads = flow;
        // One that was not asked has not said that it does not tell.
        self.tells_space &= is_told || !tells_space;
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

    fn attend(&mut self) -> Result<Duration, Failure> {
        self.disk.port.attend()
    }

    fn settle(&mut self) -> Result<(), Failure> {
        self.writes.drain(&mut self.disk)
    }

    fn close(self: Box<Self>) -> Result<(), Failure> {
        self.disk.close()
    }
}

#[cfg(test)]
mod tests {
    use lunette_scsi::client::vpd::identification::{Designation, Designator};

    use super::super::super::stream::tests::disk_without;
    use super::*;

    #[test]
    fn only_a_unique_name_is_the_whole_identity() {
        let of = |name: Designator, url: &str| {
            let name =
                Designation { association: Association::LogicalUnit, protocol: None, designator: name };
            let facts = UnitFacts { designations: vec![name], ..UnitFacts::default() };
            identity(&facts, &url.parse().unwrap())
        };
        // What tgtd gives its first disk on every host, and what is assigned locally.
        for naa in
            [vec![0x60, 0, 0, 0, 0, 0, 0, 0, 0x0e, 0, 0, 0, 0, 1, 0, 1], vec![0x33, 0, 0, 0, 0, 0, 0, 1]]
        {
            let name = Designator::Naa(naa);
            let one = of(name.clone(), "iscsi://192.0.2.1/iqn.2001-04.com.example:disk/1");
            assert!(one.contains(&name.to_string()), "{one}");
            assert_eq!(one, of(name.clone(), "iscsi://192.0.2.1:860/iqn.2001-04.com.example:disk/1"));
            for url in [
                "iscsi://192.0.2.2/iqn.2001-04.com.example:disk/1",
                "iscsi://192.0.2.1/iqn.2001-04.com.example:b/1",
                "iscsi://192.0.2.1/iqn.2001-04.com.example:disk/2",
            ] {
                assert_ne!(one, of(name.clone(), url));
            }
        }
        let name = Designator::Uuid([1; 16]);
        assert_eq!(of(name.clone(), "iscsi://192.0.2.1/iqn.2001-04.com.example:disk/1"), name.to_string());
    }

    #[test]
    fn holes_are_written_where_the_unit_does_not_know_write_same() {
        const WRITE_SAME_16: u8 = 0x93;
        let (disk, seen) = disk_without(WRITE_SAME_16);
        let url = "iscsi://192.0.2.1/iqn.2001-04.com.example:disk/1".parse().unwrap();
        let mut end = DiskEnd::open(disk, &url, Depth::Commands(4)).unwrap();
        end.empty(0, 1 << 20).unwrap();
        end.empty(4 << 20, 3 << 20).unwrap();
        end.settle().unwrap();
        let seen = seen.lock().unwrap();
        assert_eq!((seen.refused, seen.good), (1, 4), "it is asked once, and then written to");
    }
}
