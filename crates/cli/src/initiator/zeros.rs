//! Blocks that are to read as zeros: WRITE SAME in pieces that the unit takes, several at once, giving the space back where it
//! reads as zeros then.

use lunette_scsi::client::SameBlocks;
use lunette_scsi::client::medium::{BlockRange, SameBlock};

use super::disk::Disk;
use super::stream::WriteStream;
use crate::failure::Failure;

/// How it is done on one unit.
pub(crate) struct Zeros {
    limit: SameBlocks,
    /// The longest that the unit has taken.
    taken_blocks: u32,
    same: SameBlock,
    block: Vec<u8>,
}

impl Zeros {
    pub(crate) fn of(disk: &Disk, block_bytes: u32) -> Zeros {
        let provisioning = disk.facts.provisioning;
        let unmaps = provisioning.write_same_16 && provisioning.reads_zeros;
        Zeros {
            limit: SameBlocks::of(&disk.facts.limits),
            taken_blocks: 0,
            same: if unmaps { SameBlock::DataOrUnmap } else { SameBlock::Data },
            block: vec![0; block_bytes as usize],
        }
    }

    /// Zeros blocks up to `end`, which may still be under way afterwards; answers where the unit stops taking it and ordinary writes
    /// have to begin, which is `end` where nothing is left.
    ///
    /// A WRITE SAME that is longer than all before it is waited for, and alone on its way, so that a refusal is that of no other.
    ///
    /// # Errors
    /// The session, or another refusal, of one of these or of an earlier write of the stream.
    pub(crate) fn fill(
        &mut self,
        disk: &mut Disk,
        stream: &mut WriteStream,
        lba: u64,
        end: u64,
    ) -> Result<u64, Failure> {
        let mut lba = lba;
        while lba < end {
            let Some(most) = self.limit.blocks() else { break };
            // No more than the limit's 32 bits.
            let blocks = (end - lba).min(most.into()) as u32;
            let range = BlockRange { lba, blocks, block_length_bytes: self.block.len() as u32 };
            if blocks <= self.taken_blocks {
                stream.write_same(disk, range, self.same, &self.block)?;
            } else {
                stream.drain(disk)?;
                stream.write_same(disk, range, self.same, &self.block)?;
                if let Err(failure) = stream.drain(disk) {
                    self.limit.refused(failure.unfit().ok_or(failure)?);
                    continue;
                }
                self.taken_blocks = blocks;
            }
            lba += u64::from(blocks);
        }
        Ok(lba)
    }
}

#[cfg(test)]
mod tests {
    use lunette_scsi::client::medium::Caching;

    use super::super::stream::tests::{disk_with_short_same, disk_without};
    use super::super::stream::{Depth, Flow, OTHERS_MAX};
    use super::*;

    fn stream(disk: &Disk) -> WriteStream {
        WriteStream::new(disk, 512, Flow::new(Depth::Measured), Caching::default())
    }

    #[test]
    fn a_limit_that_is_not_told_is_kept_to_once_it_is_known() {
        let (mut disk, seen) = disk_with_short_same(4096);
        let (mut zeros, mut stream) = (Zeros::of(&disk, 512), stream(&disk));
        // The first fits by chance.
        assert_eq!(zeros.fill(&mut disk, &mut stream, 7, 107).unwrap(), 107);
        assert_eq!(
            zeros.fill(&mut disk, &mut stream, 1 << 20, (1 << 20) + 5 * 4095).unwrap(),
            (1 << 20) + 5 * 4095
        );
        stream.drain(&mut disk).unwrap();
        let seen = seen.lock().unwrap();
        assert_eq!((seen.refused, seen.good, seen.good_bytes), (1, 6, 6 * 512), "asked for too much once");
    }

    #[test]
    fn several_are_under_way_once_one_was_taken() {
        let (mut disk, seen) = disk_with_short_same(0xffff);
        let (mut zeros, mut stream) = (Zeros::of(&disk, 512), stream(&disk));
        let end = 100 * 0xffff;
        assert_eq!(zeros.fill(&mut disk, &mut stream, 0, end).unwrap(), end);
        assert_eq!(seen.lock().unwrap().most_under_way, OTHERS_MAX, "and no more");
        stream.drain(&mut disk).unwrap();
        assert_eq!(seen.lock().unwrap().good, 100);
    }

    #[test]
    fn a_unit_that_takes_hardly_any_gets_ordinary_writes() {
        let (mut disk, seen) = disk_with_short_same(1);
        let (mut zeros, mut stream) = (Zeros::of(&disk, 512), stream(&disk));
        assert_eq!(zeros.fill(&mut disk, &mut stream, 3, 1 << 20).unwrap(), 3);
        assert_eq!(zeros.fill(&mut disk, &mut stream, 0, 1).unwrap(), 0, "it is not asked again");
        assert_eq!(seen.lock().unwrap().refused, 3);
        let (mut disk, seen) = disk_without(0x93);
        assert_eq!(Zeros::of(&disk, 512).fill(&mut disk, &mut stream, 0, 8).unwrap(), 0);
        assert_eq!(seen.lock().unwrap().refused, 1);
    }
}
