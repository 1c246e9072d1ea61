//! What a logical unit is made from, and what of that cannot be.
//!
//! Where it comes from, a file or a command line, is the driver's affair.

use std::num::NonZeroU16;

use crate::identity::Identity;
use crate::protection::{Protection, ProtectionType};
use crate::saved::SavedFault;

/// What the store can do for thin provisioning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Provisioning {
    /// The store can give space back and such ranges then read as zeros (LBPME, LBPU, LBPWS, LBPWS10, LBPRZ).
    pub unmap: bool,
    /// OPTIMAL UNMAP GRANULARITY in blocks; 0: not told.
    pub granularity_blocks: u32,
    /// The store can zero a range without being sent the zeros.
    pub write_zeroes: bool,
    /// What is zeroed and not unmapped has space afterwards, and [`crate::Io::Extents`] tells such space (ANC_SUP).
    pub anchors: bool,
}

/// Which writes the store does whole or not at all, even if power is lost. Offsets are held to the granularity too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AtomicWrites {
    /// ATOMIC ALIGNMENT and ATOMIC TRANSFER LENGTH GRANULARITY in blocks.
    pub granularity_blocks: NonZeroU16,
    /// MAXIMUM ATOMIC TRANSFER LENGTH in blocks: a multiple of the granularity, and no more than one transfer.
    pub blocks_max: u16,
}

impl AtomicWrites {
    pub(super) fn is_possible(self, max_transfer_blocks: u32) -> bool {
        self.blocks_max >= self.granularity_blocks.get()
            && self.blocks_max.is_multiple_of(self.granularity_blocks.get())
            && u32::from(self.blocks_max) <= max_transfer_blocks
    }
}

/// What a logical unit is made from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogicalUnitConfig {
    /// The unit's names.
    pub identity: Identity,
    /// 512 or 4096.
    pub block_length_bytes: u32,
    /// The capacity in blocks at the start: at least 1, and at most 2^63 - 1 bytes in all.
    pub blocks: u64,
    /// A physical block is two to this power logical blocks; at most 15.
    pub physical_block_exponent: u8,
    /// The medium is write-protected.
    pub read_only: bool,
    /// The default of the write cache enabled bit. False: every write is stable before it is answered.
    pub write_cache: bool,
    /// What the store can do for thin provisioning.
    pub provisioning: Provisioning,
    /// Which writes can be atomic; `None`: none.
    pub atomic_writes: Option<AtomicWrites>,
    /// MAXIMUM TRANSFER LENGTH: at least one block; what is not a whole block is cut off.
    pub max_transfer_bytes: u32,
    /// OPTIMAL TRANSFER LENGTH; 0: not told; at most the maximum.
    pub optimal_transfer_bytes: u32,
    /// The medium can be ejected and loaded.
    pub removable: bool,
    /// True: a non-rotating medium; false: nothing is told.
    pub solid_state: bool,
    /// The type of the protection information that the store keeps with each block. With one, what is read and written
    /// has 8 bytes behind the data of each block ([`crate::Io`]), which count for the longest transfer too.
    pub protection: Option<ProtectionType>,
}

impl LogicalUnitConfig {
    /// What protection information the blocks have.
    #[inline]
    pub(crate) fn protection(&self) -> Option<Protection> {
        let block_length_bytes = self.block_length_bytes;
        self.protection.map(|kind| Protection { kind, block_length_bytes })
    }
}

/// Why a configuration is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ConfigError {
    /// The world-wide name is not of NAA format 3h.
    Naa(u64),
    /// A name has a wrong length or a character outside 20h to 7Eh.
    Name {
        /// Which field.
        field: &'static str,
        /// The shortest length taken, in bytes.
        length_min: usize,
        /// The longest length taken, in bytes.
        length_max: usize,
    },
    /// The block length is neither 512 nor 4096.
    BlockLength(u32),
    /// The capacity is zero or more than 2^63 - 1 bytes.
    Capacity(u64),
    /// The physical block exponent is above 15.
    PhysicalBlockExponent(u8),
    /// The maximum transfer length is less than a block, or the optimal one is more than the maximum.
    TransferLength,
    /// The longest atomic write is not a multiple of the granularity, or longer than a transfer; or the blocks have
    /// protection information, with which only single blocks are written all or none.
    AtomicWrites,
    /// A LUN is not a single-level one.
    Lun(crate::Lun),
    /// Two units have the same number.
    DuplicateLun(u16),
    /// A view names a unit that the device does not have.
    NoSuchUnit(crate::Lun),
    /// A view shows a unit under two numbers.
    UnitMappedTwice(crate::Lun),
    /// The target name is empty or longer than 223 bytes (RFC 7143 4.2.7.1).
    TargetName,
    /// A portal group tag is 0, which is no relative port identifier (SPC-4, relative target port designator), or there
    /// is none.
    PortalGroupTag,
    /// What was kept of the unit's state cannot be used.
    SavedState(SavedFault),
}

impl std::fmt::Display for ConfigError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            ConfigError::Naa(naa) => write!(f, "NAA identifier 0x{naa:016x} does not begin with 3"),
            ConfigError::Name { field, length_min, length_max } => {
                write!(f, "{field} must be {length_min} to {length_max} printable ASCII characters")
            }
            ConfigError::BlockLength(bytes) => write!(f, "block length {bytes} is neither 512 nor 4096"),
            ConfigError::Capacity(blocks) => write!(f, "{blocks} blocks are no possible capacity"),
            ConfigError::PhysicalBlockExponent(exponent) => {
                write!(f, "physical block exponent {exponent} is above 15")
            }
            ConfigError::TransferLength => {
                write!(f, "transfer lengths must be one block <= maximum, optimal <= maximum")
            }
            ConfigError::AtomicWrites => {
                write!(
                    f,
                    "the longest atomic write must be a multiple of the granularity and one transfer, without protection information"
                )
            }
            ConfigError::Lun(lun) => write!(f, "LUN {lun} is not a single-level one"),
            ConfigError::DuplicateLun(number) => write!(f, "LUN {number} is given twice"),
            ConfigError::NoSuchUnit(lun) => write!(f, "there is no logical unit {lun}"),
            ConfigError::UnitMappedTwice(lun) => write!(f, "logical unit {lun} is shown twice"),
            ConfigError::TargetName => write!(f, "the target name must have 1 to 223 bytes"),
            ConfigError::PortalGroupTag => write!(f, "there must be a portal group tag, and none may be 0"),
            ConfigError::SavedState(fault) => write!(f, "its saved state cannot be used: {fault}"),
        }
    }
}

impl std::error::Error for ConfigError {}

pub(super) fn check_capacity(blocks: u64, block_length_bytes: u32) -> Result<(), ConfigError> {
    let bytes = blocks.checked_mul(u64::from(block_length_bytes));
    if blocks == 0 || bytes.is_none_or(|bytes| bytes > i64::MAX as u64) {
        return Err(ConfigError::Capacity(blocks));
    }
    Ok(())
}
