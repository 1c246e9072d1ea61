//! PDUs that a target sends (RFC 7143, clauses 11.4, 11.6 to 11.9, 11.11, 11.13, 11.15, 11.17, 11.19).
//!
//! `decode` reads the basic header segment only. `encode` takes the length of the data segment that will follow,
//! in bytes.

mod control;
mod negotiation;
mod scsi;

use crate::fields::{put, put_data_length, u32_at};
use crate::{BHS_LENGTH, Bhs, CmdSn, DecodeError, Opcode, StatSn};

pub use control::{
    AsynchronousMessage, LogoutResponse, NopIn, Reject, RejectReason, TaskManagementOutcome,
    TaskManagementResponse,
};
pub use negotiation::{LoginResponse, TextResponse};
pub use scsi::{ReadyToTransfer, Residual, ScsiDataIn, ScsiResponse};

const FINAL: u8 = 0x80;
const CONTINUE: u8 = 0x40;

/// A PDU from a target, decoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs, reason = "each variant is the struct of the same name")]
pub enum TargetPdu {
    NopIn(NopIn),
    ScsiResponse(ScsiResponse),
    TaskManagementResponse(TaskManagementResponse),
    LoginResponse(LoginResponse),
    TextResponse(TextResponse),
    ScsiDataIn(ScsiDataIn),
    LogoutResponse(LogoutResponse),
    ReadyToTransfer(ReadyToTransfer),
    AsynchronousMessage(AsynchronousMessage),
    Reject(Reject),
}

impl TargetPdu {
    /// Decodes a header that an initiator received.
    ///
    /// # Errors
    /// [`DecodeError::Opcode`] for anything a target may not send, [`DecodeError::Field`] for a reserved value.
    pub fn decode(bhs: &Bhs) -> Result<Self, DecodeError> {
        Ok(match Opcode::from_byte(bhs[0]) {
            Some(Opcode::NopIn) => Self::NopIn(NopIn::decode(bhs)),
            Some(Opcode::ScsiResponse) => Self::ScsiResponse(ScsiResponse::decode(bhs)),
            Some(Opcode::TaskManagementResponse) => {
                Self::TaskManagementResponse(TaskManagementResponse::decode(bhs))
            }
            Some(Opcode::LoginResponse) => Self::LoginResponse(LoginResponse::decode(bhs)?),
            Some(Opcode::TextResponse) => Self::TextResponse(TextResponse::decode(bhs)),
            Some(Opcode::ScsiDataIn) => Self::ScsiDataIn(ScsiDataIn::decode(bhs)),
            Some(Opcode::LogoutResponse) => Self::LogoutResponse(LogoutResponse::decode(bhs)),
            Some(Opcode::ReadyToTransfer) => Self::ReadyToTransfer(ReadyToTransfer::decode(bhs)),
            Some(Opcode::AsynchronousMessage) => Self::AsynchronousMessage(AsynchronousMessage::decode(bhs)),
            Some(Opcode::Reject) => Self::Reject(Reject::decode(bhs)),
            _ => return Err(DecodeError::Opcode(bhs[0] & 0x3f)),
        })
    }

    /// Encodes the header; see the structs for what each carries.
    #[must_use]
    pub fn encode(&self, data_length: usize) -> Bhs {
        match self {
            Self::NopIn(pdu) => pdu.encode(data_length),
            Self::ScsiResponse(pdu) => pdu.encode(data_length),
            Self::TaskManagementResponse(pdu) => pdu.encode(),
            Self::LoginResponse(pdu) => pdu.encode(data_length),
            Self::TextResponse(pdu) => pdu.encode(data_length),
            Self::ScsiDataIn(pdu) => pdu.encode(data_length),
            Self::LogoutResponse(pdu) => pdu.encode(),
            Self::ReadyToTransfer(pdu) => pdu.encode(),
            Self::AsynchronousMessage(pdu) => pdu.encode(data_length),
            Self::Reject(pdu) => pdu.encode(data_length),
        }
    }
}

/// The three numbers that nearly every PDU of a target carries at bytes 24 to 35.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Numbers {
    /// Status sequence number; zero (reserved) in a Data-In without status.
    pub stat_sn: StatSn,
    /// The next CmdSN that the target expects.
    pub exp_cmd_sn: CmdSn,
    /// The last CmdSN that the target would take now.
    pub max_cmd_sn: CmdSn,
}

impl Numbers {
    fn decode(bhs: &Bhs) -> Self {
        Self {
            stat_sn: StatSn(u32_at(bhs, 24)),
            exp_cmd_sn: CmdSn(u32_at(bhs, 28)),
            max_cmd_sn: CmdSn(u32_at(bhs, 32)),
        }
    }

    #[inline]
    fn put(self, bhs: &mut Bhs) {
        put(bhs, 24, self.stat_sn.0.to_be_bytes());
        put(bhs, 28, self.exp_cmd_sn.0.to_be_bytes());
        put(bhs, 32, self.max_cmd_sn.0.to_be_bytes());
    }
}

#[inline]
fn header(opcode: Opcode, flags: u8, data_length: usize) -> Bhs {
    let mut bhs = [0; BHS_LENGTH];
    bhs[0] = opcode as u8;
    bhs[1] = flags;
    put_data_length(&mut bhs, data_length);
    bhs
}
