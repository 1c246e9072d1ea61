//! Blocks that are to read as zeros: WRITE SAME in pieces that the unit takes, giving the space back where it reads as zeros then.

use lunette_scsi::client::SameBlocks;
use lunette_scsi::client::medium::{self, BlockRange, CdbForm, SameBlock};

use super::disk::Disk;
use crate::failure::Failure;

/// How it is done on one unit.
pub(crate) struct Zeros {
    limit: SameBlocks,
    same: SameBlock,
    block: Vec<u8>,
}

impl Zeros {
    pub(crate) fn of(disk: &Disk, block_bytes: u32) -> Zeros {
        let provisioning = disk.facts.provisioning;
        let unmaps = provisioning.write_same_16 && provisioning.reads_zeros;
        Zeros {
            limit: SameBlocks::of(&disk.facts.limits),
            same: if unmaps { SameBlock::DataOrUnmap } else { SameBlock::Data },
            block: vec![0; block_bytes as usize],
        }
    }

    /// Zeros blocks up to `end`; answers where the unit stops taking it and ordinary writes have to begin, which is `end` where
    /// all is done.
    ///
    /// # Errors
    /// The session, or another refusal.
    pub(crate) fn fill(&mut self, disk: &mut Disk, lba: u64, end: u64) -> Result<u64, Failure> {
        let mut lba = lba;
        while lba < end {
            let Some(most) = self.limit.blocks() else { break };
            // No more than the limit's 32 bits.
            let blocks = (end - lba).min(most.into()) as u32;
            let range = BlockRange { lba, blocks, block_length_bytes: self.block.len() as u32 };
            let command = medium::write_same(CdbForm::Sixteen, range, self.same)
                .map_err(|error| Failure::internal(&error.to_string()))?;
            match disk.run(&command, &self.block) {
                Ok(_) => lba += u64::from(blocks),
                Err(failure) => self.limit.refused(failure.unfit().ok_or(failure)?),
            }
        }
        Ok(lba)
    }
}

#[cfg(test)]
mod tests {
    use super::super::stream::tests::disk_with_short_same;
    use super::*;

    #[test]
    fn a_limit_that_is_not_told_is_kept_to_once_it_is_known() {
        let (mut disk, seen) = disk_with_short_same(4096);
        let mut zeros = Zeros::of(&disk, 512);
        assert_eq!(zeros.fill(&mut disk, 7, 5 * 4095).unwrap(), 5 * 4095);
        assert_eq!(zeros.fill(&mut disk, 0, 7).unwrap(), 7);
        let seen = seen.lock().unwrap();
        assert_eq!((seen.refused, seen.good), (1, 6), "asked for too much once");
    }

    #[test]
    fn a_unit_that_takes_hardly_any_gets_ordinary_writes() {
        let (mut disk, seen) = disk_with_short_same(1);
        let mut zeros = Zeros::of(&disk, 512);
        assert_eq!(zeros.fill(&mut disk, 3, 1 << 20).unwrap(), 3);
        assert_eq!(zeros.fill(&mut disk, 0, 1).unwrap(), 0, "it is not asked again");
        assert_eq!(seen.lock().unwrap().refused, 3);
    }
}
