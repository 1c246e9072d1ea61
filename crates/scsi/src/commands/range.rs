//! Ranges of logical blocks: taking them out of CDBs and checking them (SBC-3).

use crate::bytes::{Cdb, cdb16, cdb32, cdb64};
use crate::sense::{AdditionalSense, SenseData};
use crate::unit::LogicalUnit;

/// What a CDB asks for, unchecked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BlockRange {
    pub(super) lba: u64,
    pub(super) blocks: u32,
    /// Where the CDB tells the number of blocks, for the field pointer.
    blocks_at: u16,
}

/// A checked range in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ByteRange {
    pub(crate) offset_bytes: u64,
    pub(crate) length_bytes: u32,
}

impl BlockRange {
    /// Commands of six bytes: 21-bit LBA; a length of 0 means 256 blocks (SBC-2).
    pub(super) fn of_6(cdb: &Cdb) -> BlockRange {
        let lba = cdb32::<0>(cdb) & 0x001f_ffff;
        let blocks = if cdb[4] == 0 { 256 } else { u32::from(cdb[4]) };
        BlockRange { lba: lba.into(), blocks, blocks_at: 4 }
    }

    /// Commands of ten bytes.
    pub(super) fn of_10(cdb: &Cdb) -> BlockRange {
        BlockRange { lba: cdb32::<2>(cdb).into(), blocks: cdb16::<7>(cdb).into(), blocks_at: 7 }
    }

    /// Commands of twelve bytes.
    pub(super) fn of_12(cdb: &Cdb) -> BlockRange {
        BlockRange { lba: cdb32::<2>(cdb).into(), blocks: cdb32::<6>(cdb), blocks_at: 6 }
    }

    /// Commands of sixteen bytes.
    pub(super) fn of_16(cdb: &Cdb) -> BlockRange {
        BlockRange { lba: cdb64::<2>(cdb), blocks: cdb32::<10>(cdb), blocks_at: 10 }
    }

    /// COMPARE AND WRITE: 64-bit LBA, and a length of one byte.
    pub(super) fn of_compare_and_write(cdb: &Cdb) -> BlockRange {
        BlockRange { lba: cdb64::<2>(cdb), blocks: cdb[13].into(), blocks_at: 13 }
    }

    /// WRITE ATOMIC (16): 64-bit LBA, and a length of two bytes.
    pub(super) fn of_write_atomic(cdb: &Cdb) -> BlockRange {
        BlockRange { lba: cdb64::<2>(cdb), blocks: cdb16::<12>(cdb).into(), blocks_at: 12 }
    }

    /// The blocks from `lba` to the end of the medium; refuses a range that goes past it.
    pub(super) fn blocks_left(&self, unit: &LogicalUnit) -> Result<u64, SenseData> {
        match unit.blocks().checked_sub(self.lba) {
            Some(left) if u64::from(self.blocks) <= left => Ok(left),
            _ => Err(SenseData::illegal(AdditionalSense::LBA_OUT_OF_RANGE)),
        }
    }

    /// The range in bytes, if it is inside the medium and no longer than MAXIMUM TRANSFER LENGTH (SBC-3, Block Limits page).
    pub(super) fn transfer(&self, unit: &LogicalUnit) -> Result<ByteRange, SenseData> {
        self.blocks_left(unit)?;
        if self.blocks > unit.max_transfer_blocks() {
            return Err(self.wrong_length());
        }
        let block_length = unit.block_length_bytes();
        // The product fits: the maximum in blocks was made from a maximum in bytes of 32 bits.
        Ok(ByteRange {
            offset_bytes: self.lba * u64::from(block_length),
            length_bytes: self.blocks * block_length,
        })
    }

    /// INVALID FIELD IN CDB that points at the number of blocks.
    pub(super) fn wrong_length(&self) -> SenseData {
        SenseData::invalid_cdb_field(self.blocks_at, 7)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::unit::LogicalUnitConfig;
    use crate::unit::tests::{config, unit_of};

    #[test]
    fn fields_of_every_length() {
        let cdb = |bytes: &[u8]| {
            let mut cdb: Cdb = [0; 16];
            cdb[..bytes.len()].copy_from_slice(bytes);
            cdb
        };
        let six = BlockRange::of_6(&cdb(&[8, 0xff, 0xfe, 0xfd, 3, 0]));
        assert_eq!((six.lba, six.blocks), (0x1f_fefd, 3));
        assert_eq!(BlockRange::of_6(&cdb(&[8, 0, 0, 0, 0, 0])).blocks, 256);
        let ten = BlockRange::of_10(&cdb(&[0x28, 0, 1, 2, 3, 4, 0xff, 5, 6, 0]));
        assert_eq!((ten.lba, ten.blocks), (0x0102_0304, 0x0506));
        let twelve = BlockRange::of_12(&cdb(&[0xa8, 0, 1, 2, 3, 4, 5, 6, 7, 8, 0xff, 0]));
        assert_eq!((twelve.lba, twelve.blocks), (0x0102_0304, 0x0506_0708));
        let sixteen = BlockRange::of_16(&cdb(&[0x88, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 0xff, 0]));
        assert_eq!((sixteen.lba, sixteen.blocks), (0x0102_0304_0506_0708, 0x090a_0b0c));
    }

    #[test]
    fn ranges_end_with_the_medium() {
        let unit = unit_of(LogicalUnitConfig {
            max_transfer_bytes: 4096,
            atomic_writes: None,
            optimal_transfer_bytes: 0,
            ..config()
        });
        let transfer = |lba, blocks| BlockRange { lba, blocks, blocks_at: 7 }.transfer(&unit);
        let out_of_range = Err(SenseData::illegal(AdditionalSense::LBA_OUT_OF_RANGE));
        assert_eq!(transfer(2047, 1), Ok(ByteRange { offset_bytes: 2047 * 512, length_bytes: 512 }));
        assert_eq!(transfer(2048, 0), Ok(ByteRange { offset_bytes: 2048 * 512, length_bytes: 0 }));
        assert_eq!(transfer(2047, 2), out_of_range);
        assert_eq!(transfer(2049, 0), out_of_range);
        assert_eq!(transfer(u64::MAX, u32::MAX), out_of_range);
        assert_eq!(transfer(0, 9), Err(SenseData::invalid_cdb_field(7, 7)));
        assert!(transfer(0, 8).is_ok());
    }
}
