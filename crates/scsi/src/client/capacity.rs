//! READ CAPACITY and REPORT LUNS: how large, and what there is (SBC-3, SPC-4).

use super::answer::{Fields, Malformed};
use super::command::{Allocation, Command, Query};
use crate::codes::opcode;
use crate::lun::Lun;

const CAPACITY_16_BYTES: u32 = 32;
/// READ CAPACITY (16) had twelve bytes in SBC-2.
const CAPACITY_16_BYTES_MIN: usize = 12;
/// A list of 511 LUNs at first.
const LUNS_ASKED_BYTES: u32 = 4096;

/// A logical block length that a disk may have: no less than a word, no more than 1 MiB. It is multiplied with numbers of
/// blocks, so it is bounded here.
const BLOCK_BYTES: std::ops::RangeInclusive<u32> = 4..=1 << 20;

/// The capacity of a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capacity {
    /// How many logical blocks there are; at least 1. The product with the block length fits 64 bits.
    pub blocks: u64,
    /// Bytes of user data in a block, from 4 to 1,048,576.
    pub block_length_bytes: u32,
    /// What READ CAPACITY (16) tells besides; zeros and false where READ CAPACITY (10) was asked.
    pub details: CapacityDetails,
}

/// What READ CAPACITY (16) tells besides the capacity.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CapacityDetails {
    /// A physical block is two to this power logical blocks; at most 15.
    pub physical_block_exponent: u8,
    /// LOWEST ALIGNED LOGICAL BLOCK ADDRESS: the first one at which a physical block begins.
    pub lowest_aligned_lba: u16,
    /// LBPME: blocks can be given back.
    pub provisioning_managed: bool,
    /// LBPRZ: blocks without space read as zeros.
    pub reads_zeros: bool,
    /// The type of protection information: 1, 2 or 3; 0 where there is none.
    pub protection_type: u8,
    /// P_I_EXPONENT: there are two to this power protection information intervals in a block.
    pub protection_interval_exponent: u8,
}

impl Capacity {
    /// The size in bytes.
    pub fn bytes(&self) -> u64 {
        self.blocks.saturating_mul(self.block_length_bytes.into())
    }

    fn checked(
        fields: Fields<'_>,
        last_lba: u64,
        block_length_bytes: u32,
        details: CapacityDetails,
    ) -> Result<Capacity, Malformed> {
        if !BLOCK_BYTES.contains(&block_length_bytes) {
            return Err(fields.wrong("LOGICAL BLOCK LENGTH", "it is below 4 or above 1,048,576 bytes"));
        }
        let blocks = last_lba
            .checked_add(1)
            .filter(|blocks| blocks.checked_mul(block_length_bytes.into()).is_some())
            .ok_or_else(|| fields.wrong("RETURNED LOGICAL BLOCK ADDRESS", "no medium has 2^64 bytes"))?;
        Ok(Capacity { blocks, block_length_bytes, details })
    }
}

/// READ CAPACITY (10). `None` is answered where the medium has too many blocks for it: ask [`read_capacity_16`].
pub fn read_capacity_10() -> Query<Option<Capacity>> {
    Query::fixed(Command::new(opcode::READ_CAPACITY_10), 8, |_, data| {
        let fields = Fields::new("READ CAPACITY(10)", data);
        let block_length_bytes = fields.be32(4, "LOGICAL BLOCK LENGTH")?;
        let last_lba = fields.be32(0, "RETURNED LOGICAL BLOCK ADDRESS")?;
        if last_lba == u32::MAX {
            return Ok(None);
        }
        Capacity::checked(fields, last_lba.into(), block_length_bytes, CapacityDetails::default()).map(Some)
    })
}

/// READ CAPACITY (16).
pub fn read_capacity_16() -> Query<Capacity> {
    let command = Command::with_action(opcode::READ_CAPACITY_16);
    Query::new(command, Allocation { at: 10, width: 4 }, CAPACITY_16_BYTES, |_, data| {
        let fields = Fields::new("READ CAPACITY(16)", data);
        fields.part(0, CAPACITY_16_BYTES_MIN, "LOGICAL BLOCK LENGTH")?;
        let protection = fields.u8_told(12);
        let details = CapacityDetails {
            physical_block_exponent: fields.u8_told(13) & 0x0f,
            lowest_aligned_lba: fields.be16_told(14) & 0x3fff,
            provisioning_managed: fields.bit_told(14, 0x80),
            reads_zeros: fields.bit_told(14, 0x40),
            // PROT_EN, then P_TYPE, which counts from type 1.
            protection_type: if protection & 0x01 != 0 { (protection >> 1 & 0x07) + 1 } else { 0 },
            protection_interval_exponent: fields.u8_told(13) >> 4,
        };
        Capacity::checked(fields, fields.be64_told(0), fields.be32_told(8), details)
    })
}

/// REPORT LUNS: the units that this initiator may see, without well-known ones.
pub fn report_luns() -> Query<Vec<Lun>> {
    let command = Command::new(opcode::REPORT_LUNS);
    Query::new(command, Allocation { at: 6, width: 4 }, LUNS_ASKED_BYTES, |_, data| {
        let fields = Fields::new("REPORT LUNS", data);
        let length = fields.be32(0, "LUN LIST LENGTH")?;
        if length % 8 != 0 {
            return Err(fields.wrong("LUN LIST LENGTH", "it is no multiple of 8"));
        }
        let list = fields.part(8, length as usize, "the LUN list")?;
        list.parts(0, 8)
            .map(|entry| entry.be64(0, "LUN").map(|lun| Lun::from_bytes(lun.to_be_bytes())))
            .collect()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capacities_of_either_length() {
        let mut data = vec![0; 32];
        data[4..16].copy_from_slice(&[0, 0, 7, 255, 0, 0, 16, 0, 0x05, 0x13, 0xc0, 0x01]);
        let capacity = read_capacity_16().decode(&data).unwrap();
        assert_eq!((capacity.blocks, capacity.block_length_bytes, capacity.bytes()), (2048, 4096, 8 << 20));
        assert_eq!(
            capacity.details,
            CapacityDetails {
                physical_block_exponent: 3,
                lowest_aligned_lba: 1,
                provisioning_managed: true,
                reads_zeros: true,
                protection_type: 3,
                protection_interval_exponent: 1,
            }
        );
        assert_eq!(
            read_capacity_16().decode(&data[..12]).unwrap().details,
            CapacityDetails::default(),
            "SBC-2"
        );
        let ten = read_capacity_10().decode(&data[4..12]).unwrap().unwrap();
        assert_eq!((ten.blocks, ten.block_length_bytes), (2048, 4096));
        assert_eq!(read_capacity_10().decode(&[255, 255, 255, 255, 0, 0, 2, 0]), Ok(None));
    }

    #[test]
    fn capacities_that_cannot_be() {
        let with = |last_lba: u64, length: u32| {
            let data = [&last_lba.to_be_bytes()[..], &length.to_be_bytes()].concat();
            read_capacity_16().decode(&data).map(|capacity| capacity.blocks)
        };
        assert_eq!(with(0, 512), Ok(1));
        assert!(with(u64::MAX, 512).is_err());
        assert!(with(u64::MAX / 512, 512).is_err());
        assert_eq!(with(u64::MAX / 512 - 1, 512), Ok(u64::MAX / 512));
        assert!(with(1, 0).is_err() && with(1, u32::MAX).is_err());
        assert_eq!(read_capacity_16().decode(&[0; 11]).unwrap_err().needed_bytes(), Some(12));
        assert!(read_capacity_10().decode(&[0; 7]).is_err());
    }

    #[test]
    fn luns() {
        let mut data = vec![0; 24];
        data[3] = 16;
        data[17] = 5;
        assert_eq!(report_luns().command().cdb(), [0xa0, 0, 0, 0, 0, 0, 0, 0, 16, 0, 0, 0]);
        let luns = report_luns().decode(&data).unwrap();
        assert_eq!(luns, [Lun::from_number(0), Lun::from_number(5)]);
        data[3] = 15;
        assert!(report_luns().decode(&data).is_err());
        data[2] = 0x20;
        data[3] = 0;
        let error = report_luns().decode(&data).unwrap_err();
        assert_eq!(error.needed_bytes(), Some(8 + 0x2000));
        assert_eq!(report_luns().longer(&error).unwrap().command().data_in_bytes(), 8 + 0x2000);
        data[0] = 255;
        assert!(
            report_luns().longer(&report_luns().decode(&data).unwrap_err()).is_none(),
            "too long to hold"
        );
    }
}
