//! What a check finds, and who is told of it where it is of what a unit has stored: data that comes is its sender's to look
//! after, data that is stored, the driver's.

use std::fmt;

use crate::sense::{AdditionalSense, SenseData, SenseKey};

/// A check that can fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Check {
    /// The guard does not fit the data.
    Guard,
    /// The reference tag is not that of the block's address.
    ReferenceTag,
}

impl fmt::Display for Check {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Check::Guard => "guard",
            Check::ReferenceTag => "reference tag",
        })
    }
}

/// A block whose protection information is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Damage {
    /// Its address.
    pub lba: u64,
    /// The first check that it fails.
    pub check: Check,
}

impl From<Damage> for SenseData {
    /// ABORTED COMMAND that says what is wrong and where.
    fn from(Damage { lba, check }: Damage) -> SenseData {
        let code = match check {
            Check::Guard => AdditionalSense::GUARD_CHECK_FAILED,
            Check::ReferenceTag => AdditionalSense::REFERENCE_TAG_CHECK_FAILED,
        };
        SenseData::new(SenseKey::AbortedCommand, code).with_information(Some(lba))
    }
}

/// Who is told when stored data is found damaged.
pub trait DamageWatch: fmt::Debug + Send + Sync {
    /// A block that was read from the store is not what was written. It is told each time that it is read, and the command
    /// waits for this.
    fn stored_data_is_damaged(&self, damage: Damage);
}
