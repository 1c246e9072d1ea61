//! Zeros and space that is given back: WRITE SAME and UNMAP in pieces that the unit takes, ordinary writes where it takes
//! neither.

use std::sync::{MutexGuard, PoisonError};

use lunette_scsi::client::SameBlocks;
use lunette_scsi::client::medium::{self, BlockRange, CdbForm, SameBlock};

use super::error::DiskError;
use super::journal::Change;
use super::unit::{Unit, does_not_fit, pieces};

/// The most blocks of one UNMAP where the unit has no limit: 512 MiB of 512-byte blocks.
const BLOCKS_MAX: u32 = 1 << 20;
/// The most blocks that nobody else may use while they are made zero where the unit has no WRITE SAME: 32 MiB of 512-byte blocks.
const WRITTEN_BLOCKS_MAX: u32 = 0xffff;
/// How much of ordinary writes of zeros goes out at once, in bytes.
const BATCH_BYTES: u64 = 8 << 20;

impl Unit {
    /// Has these bytes read as zeros, giving space back where that can be and `may_unmap` allows it; with `fua` they are stable
    /// when this returns.
    ///
    /// # Errors
    /// [`DiskError`]: what of it is zero is not known.
    pub(super) fn zero(&self, offset: u64, length: u64, may_unmap: bool, fua: bool) -> Result<(), DiskError> {
        self.permit()?;
        self.cover(offset, length)?;
        let block = u64::from(self.block_bytes);
        let end = offset + length;
        let (first, last) = (offset.next_multiple_of(block), end - end % block);
        if first >= last {
            // Within one block, or parts of two. Less than two blocks, so it fits.
            return self.write(offset, vec![0; length as usize], fua);
        }
        for (from, to) in [(offset, first), (last, end)] {
            if from < to {
                self.write(from, vec![0; (to - from) as usize], fua)?;
            }
        }
        let (lba, blocks) = (first / block, (last - first) / block);
        let most = self.same().blocks().unwrap_or(WRITTEN_BLOCKS_MAX);
        for range in pieces(lba, blocks, u64::from(most), self.block_bytes) {
            self.make_room()?;
            let _held = self.ranges.hold(range.lba, u64::from(range.blocks));
            self.zero_blocks(range, may_unmap)?;
        }
        if fua { self.flush() } else { Ok(()) }
    }

    /// Gives the space of these bytes back, as far as they are whole blocks; what is read there is not said. With `fua` that is
    /// stable when this returns. A unit that cannot do it does nothing.
    ///
    /// # Errors
    /// [`DiskError`]
    pub(super) fn discard(&self, offset: u64, length: u64, fua: bool) -> Result<(), DiskError> {
        self.permit()?;
        self.cover(offset, length)?;
        if !self.facts.provisioning.unmap {
            return Ok(());
        }
        let block = u64::from(self.block_bytes);
        let (first, last) = (offset.div_ceil(block), (offset + length) / block);
        // 0 is not told; all ones is no limit.
        let limit = match self.facts.limits.unmap_blocks_max {
            0 => BLOCKS_MAX,
            limit => limit.min(BLOCKS_MAX),
        };
        for range in pieces(first, last.saturating_sub(first), u64::from(limit), self.block_bytes) {
            let _held = self.ranges.hold(range.lba, u64::from(range.blocks));
            let _open = self.gate.read().unwrap_or_else(PoisonError::into_inner);
            let command = medium::unmap(&[(range.lba, range.blocks)], false).map_err(does_not_fit)?;
            self.link.run(&command, Vec::new())?;
        }
        if fua { self.flush() } else { Ok(()) }
    }

    /// Zeroing these bytes costs less than writing them: the unit gives their space back.
    pub(super) fn zeroes_fast(&self, offset: u64, length: u64, may_unmap: bool) -> bool {
        let block = u64::from(self.block_bytes);
        may_unmap && self.unmaps_zeros() && offset.is_multiple_of(block) && length.is_multiple_of(block)
    }

    fn unmaps_zeros(&self) -> bool {
        self.facts.provisioning.write_same_16 && self.facts.provisioning.reads_zeros
    }

    fn same(&self) -> MutexGuard<'_, SameBlocks> {
        self.same.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Zeros blocks and keeps what may be lost. The range is held.
    fn zero_blocks(&self, range: BlockRange, may_unmap: bool) -> Result<(), DiskError> {
        let _open = self.gate.read().unwrap_or_else(PoisonError::into_inner);
        let BlockRange { lba, blocks, .. } = range;
        let session = self.send_zeros(lba, blocks, may_unmap)?;
        self.link.journal().push(session, Change::Zeros { lba, blocks, may_unmap });
        Ok(())
    }

    /// Zeros blocks; tells the oldest session in which a part was answered.
    pub(super) fn send_zeros(&self, lba: u64, blocks: u32, may_unmap: bool) -> Result<u32, DiskError> {
        let same = if may_unmap && self.unmaps_zeros() { SameBlock::DataOrUnmap } else { SameBlock::Data };
        let (mut lba, mut left, mut oldest) = (lba, blocks, u32::MAX);
        while left > 0 {
            let most = self.same().blocks();
            let Some(blocks) = most.map(|most| most.min(left)) else {
                return Ok(oldest.min(self.write_zeros(lba, left)?));
            };
            let range = BlockRange { lba, blocks, block_length_bytes: self.block_bytes };
            let command = medium::write_same(CdbForm::Sixteen, range, same).map_err(does_not_fit)?;
            match self.link.run(&command, vec![0; self.block_bytes as usize]) {
                Ok(done) => {
                    oldest = oldest.min(done.session);
                    (lba, left) = (lba + u64::from(blocks), left - blocks);
                }
                Err(DiskError::Unfit(unfit, _)) => {
                    let mut limit = self.same();
                    // Others may have heard of it before.
                    if limit.blocks() == most {
                        limit.refused(unfit);
                    }
                }
                Err(error) => return Err(error),
            }
        }
        Ok(oldest)
    }

    fn write_zeros(&self, lba: u64, blocks: u32) -> Result<u32, DiskError> {
        let batch = BATCH_BYTES / u64::from(self.block_bytes);
        let mut oldest = u32::MAX;
        for range in pieces(lba, u64::from(blocks), batch, self.block_bytes) {
            // No longer than a batch.
            let zeros = vec![0; range.blocks as usize * self.block_bytes as usize];
            oldest = oldest.min(self.send_blocks(range.lba, zeros, false)?.0);
        }
        Ok(oldest)
    }
}
