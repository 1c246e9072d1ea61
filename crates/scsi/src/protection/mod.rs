//! Protection information (SBC-3, protection information model): the 8 bytes behind the data of a block, what they must
//! be, and which command has them checked.
//!
//! Where it is kept is the store's part. Application tags belong to the application (ATO is one), so they are kept and
//! compared, and checked by nobody; FFFFh in one says that the block is not to be checked.

mod damage;
mod fields;

use crc_fast::CrcAlgorithm;

pub use damage::{Check, Damage, DamageWatch};
pub(crate) use fields::{Checks, ProtectField};

/// Bytes of protection information behind each block.
pub(crate) const INFORMATION_BYTES: usize = 8;

/// The protection information of one block as bytes.
pub(crate) type InformationBytes = [u8; INFORMATION_BYTES];

/// What blocks have whose data was never written, or was unmapped or formatted: it is not checked.
pub(crate) const UNCHECKED: InformationBytes = [0xff; INFORMATION_BYTES];

/// The type of protection of a logical unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ProtectionType {
    /// Type 1: the reference tag is the low half of the logical block address.
    Type1,
    /// Type 3: the reference tag is the application's.
    Type3,
}

impl ProtectionType {
    /// The type of that number, if there is such a one here.
    pub const fn from_number(number: u8) -> Option<Self> {
        match number {
            1 => Some(ProtectionType::Type1),
            3 => Some(ProtectionType::Type3),
            _ => None,
        }
    }

    /// 1 or 3.
    pub const fn number(self) -> u8 {
        match self {
            ProtectionType::Type1 => 1,
            ProtectionType::Type3 => 3,
        }
    }

    /// P_TYPE and PROT_EN, as READ CAPACITY (16) tells them.
    pub(crate) const fn capacity_byte(self) -> u8 {
        (self.number() - 1) << 1 | 1
    }

    /// SPT, GRD_CHK, APP_CHK and REF_CHK of the Extended INQUIRY Data page: guards are checked, and reference tags where
    /// they mean something to the device server.
    pub(crate) const fn inquiry_byte(self) -> u8 {
        match self {
            ProtectionType::Type1 => 0x05,
            ProtectionType::Type3 => 0x04 << 3 | 0x04,
        }
    }

    /// What FORMAT UNIT has to ask for to get what there is: FMTPINFO and PROTECTION FIELD USAGE.
    pub(crate) const fn format_fields(self) -> (u8, u8) {
        match self {
            ProtectionType::Type1 => (2, 0),
            ProtectionType::Type3 => (3, 1),
        }
    }
}

/// The protection information of one block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Information {
    pub(crate) guard: u16,
    pub(crate) application_tag: u16,
    pub(crate) reference_tag: u32,
}

impl Information {
    pub(crate) fn from_bytes(bytes: InformationBytes) -> Information {
        let [g0, g1, a0, a1, r0, r1, r2, r3] = bytes;
        Information {
            guard: u16::from_be_bytes([g0, g1]),
            application_tag: u16::from_be_bytes([a0, a1]),
            reference_tag: u32::from_be_bytes([r0, r1, r2, r3]),
        }
    }

    pub(crate) fn to_bytes(self) -> InformationBytes {
        let ([g0, g1], [a0, a1]) = (self.guard.to_be_bytes(), self.application_tag.to_be_bytes());
        let [r0, r1, r2, r3] = self.reference_tag.to_be_bytes();
        [g0, g1, a0, a1, r0, r1, r2, r3]
    }
}

/// CRC-16 T10-DIF of a block's data (SBC-3, CRC generation).
pub(crate) fn guard(data: &[u8]) -> u16 {
    // It has 16 bits.
    crc_fast::checksum(CrcAlgorithm::Crc16T10Dif, data) as u16
}

/// Which protection information some blocks have: a type, and how long their data is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Protection {
    pub(crate) kind: ProtectionType,
    pub(crate) block_length_bytes: u32,
}

impl Protection {
    /// The length of a block with its information.
    pub(crate) const fn stored_block_bytes(self) -> u32 {
        self.block_length_bytes + INFORMATION_BYTES as u32
    }

    /// The length of so many bytes of data with the information of their blocks.
    pub(crate) const fn stored_bytes(self, data_bytes: u32) -> u32 {
        data_bytes / self.block_length_bytes * self.stored_block_bytes()
    }

    /// Blocks with their information, parted.
    pub(crate) fn blocks(self, stored: &[u8]) -> impl Iterator<Item = (&[u8], Information)> {
        stored.chunks_exact(self.stored_block_bytes() as usize).filter_map(|block| {
            let (data, bytes) = block.split_last_chunk()?;
            Some((data, Information::from_bytes(*bytes)))
        })
    }

    /// What the device server writes for data that came without: the guard, application tag 0, and the reference tag that
    /// the type calls for (SBC-3, WRPROTECT 000b).
    pub(crate) fn generate(self, data: &[u8], lba: u64) -> Information {
        let reference_tag = match self.kind {
            // Its low half.
            ProtectionType::Type1 => lba as u32,
            ProtectionType::Type3 => u32::MAX,
        };
        Information { guard: guard(data), application_tag: 0, reference_tag }
    }

    /// The blocks of `data`, the first of which is at `lba`, with information generated for them.
    pub(crate) fn protect(self, data: &[u8], lba: u64) -> Vec<u8> {
        let mut stored = Vec::with_capacity(self.stored_bytes(data.len() as u32) as usize);
        for (block, lba) in data.chunks_exact(self.block_length_bytes as usize).zip(lba..) {
            stored.extend_from_slice(block);
            stored.extend(self.generate(block, lba).to_bytes());
        }
        stored
    }

    /// The data of blocks without their information.
    pub(crate) fn strip(self, stored: &[u8]) -> Vec<u8> {
        self.blocks(stored).flat_map(|(data, _)| data).copied().collect()
    }

    /// True for a block that says that it is not to be checked (SBC-3, application tag).
    fn is_unchecked(self, information: Information) -> bool {
        information.application_tag == u16::MAX
            && (self.kind == ProtectionType::Type1 || information.reference_tag == u32::MAX)
    }

    /// Checks blocks, the first of which is at `lba`.
    ///
    /// # Errors
    /// The first block that is wrong. Where it is stored data, [`crate::LogicalUnit::check_stored`] is to be asked.
    pub(crate) fn check(self, stored: &[u8], lba: u64, checks: Checks) -> Result<(), Damage> {
        if checks == Checks::NONE {
            return Ok(());
        }
        for ((data, information), lba) in self.blocks(stored).zip(lba..) {
            if self.is_unchecked(information) {
                continue;
            }
            // Of its low half.
            let reference_is_wrong =
                self.kind == ProtectionType::Type1 && information.reference_tag != lba as u32;
            let check = if checks.guard && information.guard != guard(data) {
                Check::Guard
            } else if checks.reference_tag && reference_is_wrong {
                Check::ReferenceTag
            } else {
                continue;
            };
            return Err(Damage { lba, check });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TYPE_1: Protection = Protection { kind: ProtectionType::Type1, block_length_bytes: 512 };
    const TYPE_3: Protection = Protection { kind: ProtectionType::Type3, block_length_bytes: 512 };

    /// SBC-3, CRC test cases: 32 bytes each.
    #[test]
    fn guards_of_the_standard() {
        let up: Vec<u8> = (0..32).collect();
        assert_eq!(guard(&[0; 32]), 0);
        assert_eq!(guard(&[0xff; 32]), 0xa293);
        assert_eq!(guard(&up), 0x0224);
        assert_eq!(guard(&[&[0xff, 0xff][..], &[0; 30]].concat()), 0x21b8);
    }

    /// Bit by bit, as the polynomial 8BB7h says.
    #[test]
    fn guards_are_remainders() {
        let slow = |data: &[u8]| {
            data.iter().fold(0u16, |crc, &byte| {
                (0..8).fold(crc ^ u16::from(byte) << 8, |crc, _| {
                    crc << 1 ^ if crc >> 15 == 1 { 0x8bb7 } else { 0 }
                })
            })
        };
        let data: Vec<u8> = (0..4096u32).map(|index| ((index * index) >> 3) as u8).collect();
        for length in [1, 7, 8, 15, 64, 511, 512, 4096] {
            assert_eq!(guard(&data[..length]), slow(&data[..length]), "{length}");
        }
    }

    #[test]
    fn fields_are_where_the_standard_has_them() {
        let bytes = [0x12, 0x34, 0x56, 0x78, 0x9a, 0xbc, 0xde, 0xf0];
        let information = Information { guard: 0x1234, application_tag: 0x5678, reference_tag: 0x9abc_def0 };
        assert_eq!(Information::from_bytes(bytes), information);
        assert_eq!(information.to_bytes(), bytes);
        assert_eq!(ProtectionType::Type1.capacity_byte(), 0x01);
        assert_eq!(ProtectionType::Type3.capacity_byte(), 0x05);
        assert_eq!(ProtectionType::Type1.inquiry_byte(), 0x05, "SPT 000b, guards and reference tags");
        assert_eq!(ProtectionType::Type3.inquiry_byte(), 0x24, "SPT 100b, guards");
    }

    #[test]
    fn what_is_generated_passes_every_check() {
        let data: Vec<u8> = (0..1536u32).map(|index| (index / 3) as u8).collect();
        for protection in [TYPE_1, TYPE_3] {
            let lba = 0xffff_ffff;
            let stored = protection.protect(&data, lba);
            assert_eq!(stored.len(), 3 * 520);
            assert_eq!(protection.check(&stored, lba, Checks::ALL), Ok(()));
            assert_eq!(protection.strip(&stored), data);
        }
        let tags: Vec<u32> = TYPE_1
            .blocks(&TYPE_1.protect(&data, 0xffff_ffff))
            .map(|(_, information)| information.reference_tag)
            .collect();
        assert_eq!(tags, [0xffff_ffff, 0, 1], "the low half of the address");
    }

    #[test]
    fn what_is_wrong_is_told_with_its_address() {
        let failed = |check, lba| Err(Damage { lba, check });
        let stored = TYPE_1.protect(&[7; 1024], 9);
        let mut wrong = stored.clone();
        wrong[520 + 100] ^= 1;
        assert_eq!(TYPE_1.check(&wrong, 9, Checks::ALL), failed(Check::Guard, 10));
        let no_guard = Checks { guard: false, ..Checks::ALL };
        assert_eq!(TYPE_1.check(&wrong, 9, no_guard), Ok(()));
        let reference = failed(Check::ReferenceTag, 8);
        assert_eq!(TYPE_1.check(&stored, 8, Checks::ALL), reference);
        assert_eq!(TYPE_1.check(&stored, 8, Checks { reference_tag: false, ..Checks::ALL }), Ok(()));
        assert_eq!(TYPE_3.check(&stored, 8, Checks::ALL), Ok(()), "it means nothing there");
        assert_eq!(TYPE_1.check(&wrong, 3, Checks::NONE), Ok(()));
    }

    #[test]
    fn a_block_can_say_that_it_is_not_checked() {
        let block = |application_tag, reference_tag| {
            let information = Information { guard: 0xdead, application_tag, reference_tag };
            [&[1; 512][..], &information.to_bytes()].concat()
        };
        let is_wrong =
            |protection: Protection, block: &[u8]| protection.check(block, 5, Checks::ALL).is_err();
        assert!(is_wrong(TYPE_1, &block(0xfffe, 5)));
        assert!(!is_wrong(TYPE_1, &block(0xffff, 5)));
        assert!(!is_wrong(TYPE_1, &block(0xffff, 77)));
        assert!(is_wrong(TYPE_3, &block(0xffff, 5)));
        assert!(!is_wrong(TYPE_3, &block(0xffff, 0xffff_ffff)));
        assert!(is_wrong(TYPE_3, &block(0xfffe, 0xffff_ffff)));
    }
}
