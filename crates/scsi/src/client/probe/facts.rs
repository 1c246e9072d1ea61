//! What a probe is told and what it finds out.

use super::super::answer::Malformed;
use super::super::capacity::Capacity;
use super::super::inquiry::StandardInquiry;
use super::super::mode::ModeParameters;
use super::super::port_groups::PortGroup;
use super::super::sense::Sense;
use super::super::vpd::ExtendedInquiry;
use super::super::vpd::block::{BlockDeviceCharacteristics, BlockLimits, Provisioning};
use super::super::vpd::identification::Designation;
use super::ATTENTIONS_MAX;
use crate::status::Status;

/// How a command of the probe ended, as the driver saw it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reply<'a> {
    /// The status, where it is one that is known.
    pub status: Option<Status>,
    /// Sense data as it came; empty where none did.
    pub sense: &'a [u8],
    /// Data-In as it came.
    pub data: &'a [u8],
}

/// Why a unit cannot be opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProbeError {
    /// A command that every unit has to know failed.
    Refused {
        /// The command.
        command: &'static str,
        /// How it ended.
        status: Option<Status>,
        /// What the unit said.
        sense: Option<Box<Sense>>,
    },
    /// The answer to a command that every unit has to know cannot be read.
    Malformed(Malformed),
    /// There is no logical unit with this number.
    NoUnit,
    /// It has more unit attentions than can be.
    EndlessAttentions,
}

impl std::fmt::Display for ProbeError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            ProbeError::Refused { command, status, sense } => {
                write!(f, "the target refused {command}: ")?;
                match (sense, status) {
                    (Some(sense), _) => write!(f, "{sense}"),
                    (None, Some(status)) => f.write_str(status.name()),
                    (None, None) => f.write_str("a status that is not known"),
                }
            }
            ProbeError::Malformed(malformed) => write!(f, "{malformed}"),
            ProbeError::NoUnit => f.write_str("the target has no logical unit with this number"),
            ProbeError::EndlessAttentions => {
                write!(f, "the unit reported more than {ATTENTIONS_MAX} unit attentions in a row")
            }
        }
    }
}

impl std::error::Error for ProbeError {}

/// What is known of a unit. What a target does not tell has its default, which promises nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UnitFacts {
    /// Standard INQUIRY data.
    pub inquiry: StandardInquiry,
    /// VPD pages that the target lists.
    pub pages: Vec<u8>,
    /// Unit Serial Number; empty where it is not told.
    pub serial: String,
    /// Device Identification.
    pub designations: Vec<Designation>,
    /// Extended INQUIRY data, where there is any.
    pub extended: Option<ExtendedInquiry>,
    /// Block Limits.
    pub limits: BlockLimits,
    /// Block Device Characteristics.
    pub characteristics: BlockDeviceCharacteristics,
    /// Logical Block Provisioning.
    pub provisioning: Provisioning,
    /// Why the unit is not ready, if it is not. Its capacity may be unknown then.
    pub not_ready: Option<Sense>,
    /// The capacity; `None`: the unit is no disk, is not ready, or has more blocks than the only command that it knows can
    /// tell.
    pub capacity: Option<Capacity>,
    /// Mode parameters: the header, and the pages that have no subpage.
    pub mode: Option<ModeParameters>,
    /// The unit has WRITE SAME(16); false where that was not asked.
    pub has_write_same: bool,
    /// The target port groups with their states; none where the target does not tell them, or was not asked.
    pub port_groups: Vec<PortGroup>,
    /// Unit attentions that were reported on the way, in the order of the answers.
    pub attentions: Vec<Sense>,
}

impl UnitFacts {
    /// The unit refuses writes of this initiator, as far as it tells.
    pub fn is_write_protected(&self) -> bool {
        self.mode.as_ref().is_some_and(|mode| mode.write_protected)
    }

    /// Writes may be answered before they are stable: flush before relying on them. True where nothing is told.
    pub fn has_write_cache(&self) -> bool {
        self.mode.as_ref().and_then(ModeParameters::write_cache_enabled).unwrap_or(true)
    }

    /// The longest transfer in blocks that both the unit and a limit of `bytes_max` allow; at least 1.
    pub fn transfer_blocks_max(&self, bytes_max: u32) -> u32 {
        let block = self.capacity.map_or(512, |capacity| capacity.block_length_bytes);
        let wanted = (bytes_max / block).max(1);
        match self.limits.transfer_blocks_max {
            0 => wanted,
            limit => wanted.min(limit),
        }
    }
}
