//! iSCSI PDUs as typed values (RFC 7143, clause 11), with digests, text keys and serial numbers.
//!
//! This crate turns bytes into values and back. It does not negotiate, keep state, or perform I/O, and it
//! knows no SCSI: a CDB, a LUN and sense data are bytes here.
//!
//! Decoding is total: any 48 bytes give a value or a [`DecodeError`], never a panic, and a length field is only
//! believed after it has been compared with a bound ([`frame::Frame::of`]).

#![forbid(unsafe_code)]

pub mod ahs;
pub mod digest;
mod fields;
pub mod frame;
pub mod initiator;
pub mod opcode;
pub mod serial;
pub mod target;
pub mod text;

pub use ahs::{AhsError, AhsList};
pub use frame::{BHS_LENGTH, Bhs, Frame, FrameError};
pub use initiator::InitiatorPdu;
pub use opcode::Opcode;
pub use serial::{CmdSn, DataSn, StatSn};
pub use target::TargetPdu;

/// Why 48 bytes are not the PDU that was asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// The opcode is not one that this role may receive.
    #[error("opcode {0:#04x} is not one that this side may receive")]
    Opcode(u8),
    /// A field has a value that the clause for this PDU does not allow.
    #[error("{field} has the reserved or invalid value {value:#x}")]
    Field {
        /// The field's name as RFC 7143 spells it.
        field: &'static str,
        /// The value that was found.
        value: u64,
    },
}

/// Initiator Task Tag (11.2.1.8): chosen by the initiator, unique among its outstanding tasks in the session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct InitiatorTaskTag(pub u32);

impl InitiatorTaskTag {
    /// The value that stands for "no task".
    pub const RESERVED: Self = Self(0xffff_ffff);
}

/// Target Transfer Tag (11.7.4): chosen by the target, echoed by the initiator.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct TargetTransferTag(pub u32);

impl TargetTransferTag {
    /// The value that stands for "no transfer" or "no answer is wanted".
    pub const RESERVED: Self = Self(0xffff_ffff);
}

/// The eight bytes of a LUN field (11.2.1.7); their structure is SCSI's affair (SAM-5, clause 4.7).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct LunField(pub [u8; 8]);

/// Initiator part of the session identifier (11.12.5): six bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, PartialOrd, Ord)]
pub struct Isid(pub [u8; 6]);

impl std::fmt::Display for Isid {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// Target Session Identifying Handle (11.12.6); zero asks for a new session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Tsih(pub u16);

/// Connection ID (11.12.7), unique within its session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Cid(pub u16);
