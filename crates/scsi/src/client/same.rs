//! How many blocks one WRITE SAME may have: what the unit tells of it (VPD page B0h), or, where it tells nothing, what it turns
//! out to take. LIO, for one, has a limit and may leave out the part of the page that would tell it.

use super::sense::Unfit;
use super::vpd::block::BlockLimits;

/// The most blocks where the unit has no limit: 512 MiB of 512-byte blocks.
const BLOCKS_MAX: u32 = 1 << 20;
/// The same where it does not say whether it has one: what most units take.
const UNTOLD_BLOCKS_MAX: u32 = 0xffff;
/// What a limit that is not told becomes with each refusal: after three, plain writes cost no more.
const SHORTER_BITS: u32 = 4;
/// Below this a WRITE SAME is not worth it.
const BLOCKS_MIN: u32 = 16;

/// See the module's documentation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SameBlocks {
    /// 0: the unit has no WRITE SAME.
    blocks: u32,
    is_told: bool,
}

impl SameBlocks {
    /// What these limits say.
    pub fn of(limits: &BlockLimits) -> Self {
        let told = u32::try_from(limits.write_same_blocks_max).unwrap_or(u32::MAX).min(BLOCKS_MAX);
        if told == 0 {
            Self { blocks: UNTOLD_BLOCKS_MAX, is_told: false }
        } else {
            Self { blocks: told, is_told: true }
        }
    }

    /// The same of a unit that does not have the command.
    pub const fn none() -> Self {
        Self { blocks: 0, is_told: true }
    }

    /// The most blocks of one command; none where ordinary writes have to do.
    pub fn blocks(&self) -> Option<u32> {
        Some(self.blocks).filter(|blocks| *blocks > 0)
    }

    /// The unit refused one as unfit: it gets shorter ones, or none any more.
    pub fn refused(&mut self, unfit: Unfit) {
        let shorter = self.blocks >> SHORTER_BITS;
        let may_be_length = unfit == Unfit::Field && !self.is_told && shorter >= BLOCKS_MIN;
        self.blocks = if may_be_length { shorter } else { 0 };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(write_same_blocks_max: u64) -> SameBlocks {
        SameBlocks::of(&BlockLimits { write_same_blocks_max, ..BlockLimits::default() })
    }

    #[test]
    fn what_is_told_holds() {
        let blocks = |max| told(max).blocks();
        assert_eq!(
            (blocks(4096), blocks(1 << 20), blocks(u64::MAX)),
            (Some(4096), Some(1 << 20), Some(1 << 20))
        );
        let mut limit = told(4096);
        limit.refused(Unfit::Field);
        assert_eq!(limit.blocks(), None, "its length was right");
        assert_eq!(SameBlocks::none().blocks(), None);
    }

    #[test]
    fn what_is_not_told_is_found_out() {
        let mut limit = told(0);
        let mut tried = Vec::new();
        while let Some(blocks) = limit.blocks() {
            tried.push(blocks);
            limit.refused(Unfit::Field);
        }
        assert_eq!(tried, [65535, 4095, 255]);
        let mut limit = told(0);
        limit.refused(Unfit::Command);
        assert_eq!(limit.blocks(), None);
    }
}
