//! PDUs that an initiator sends (RFC 7143, clauses 11.3, 11.5, 11.7, 11.10, 11.12, 11.14, 11.16, 11.18).
//!
//! `decode` reads the basic header segment only; data segments and additional headers belong to the caller.
//! `encode` takes the length of the data segment that will follow, in bytes.

mod control;
mod negotiation;
mod scsi;

use crate::fields::{bit, put_data_length};
use crate::opcode::IMMEDIATE;
use crate::{BHS_LENGTH, Bhs, DecodeError, Opcode};

pub use control::{LogoutReason, LogoutRequest, NopOut, TaskManagementFunction, TaskManagementRequest};
pub use negotiation::{LoginRequest, LoginStage, TextRequest};
pub use scsi::{ScsiCommand, ScsiDataOut, SnackRequest, TaskAttribute};

const FINAL: u8 = 0x80;
const CONTINUE: u8 = 0x40;

/// A PDU from an initiator, decoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs, reason = "each variant is the struct of the same name")]
pub enum InitiatorPdu {
    NopOut(NopOut),
    ScsiCommand(ScsiCommand),
    TaskManagementRequest(TaskManagementRequest),
    LoginRequest(LoginRequest),
    TextRequest(TextRequest),
    ScsiDataOut(ScsiDataOut),
    LogoutRequest(LogoutRequest),
    SnackRequest(SnackRequest),
}

impl InitiatorPdu {
    /// Decodes a header that a target received.
    ///
    /// # Errors
    /// [`DecodeError::Opcode`] for anything an initiator may not send, [`DecodeError::Field`] for a value that
    /// the PDU's clause reserves.
    pub fn decode(bhs: &Bhs) -> Result<Self, DecodeError> {
        Ok(match Opcode::from_byte(bhs[0]) {
            Some(Opcode::NopOut) => Self::NopOut(NopOut::decode(bhs)),
            Some(Opcode::ScsiCommand) => Self::ScsiCommand(ScsiCommand::decode(bhs)?),
            Some(Opcode::TaskManagementRequest) => {
                Self::TaskManagementRequest(TaskManagementRequest::decode(bhs))
            }
            Some(Opcode::LoginRequest) => Self::LoginRequest(LoginRequest::decode(bhs)?),
            Some(Opcode::TextRequest) => Self::TextRequest(TextRequest::decode(bhs)),
            Some(Opcode::ScsiDataOut) => Self::ScsiDataOut(ScsiDataOut::decode(bhs)),
            Some(Opcode::LogoutRequest) => Self::LogoutRequest(LogoutRequest::decode(bhs)?),
            Some(Opcode::SnackRequest) => Self::SnackRequest(SnackRequest::decode(bhs)),
            _ => return Err(DecodeError::Opcode(bhs[0] & 0x3f)),
        })
    }

    /// Encodes the header; see the structs for what each carries.
    #[must_use]
    pub fn encode(&self, data_length: usize) -> Bhs {
        match self {
            Self::NopOut(pdu) => pdu.encode(data_length),
            Self::ScsiCommand(pdu) => pdu.encode(data_length),
            Self::TaskManagementRequest(pdu) => pdu.encode(),
            Self::LoginRequest(pdu) => pdu.encode(data_length),
            Self::TextRequest(pdu) => pdu.encode(data_length),
            Self::ScsiDataOut(pdu) => pdu.encode(data_length),
            Self::LogoutRequest(pdu) => pdu.encode(),
            Self::SnackRequest(pdu) => pdu.encode(),
        }
    }
}

fn header(opcode: Opcode, immediate: bool, flags: u8, data_length: usize) -> Bhs {
    let mut bhs = [0; BHS_LENGTH];
    bhs[0] = opcode as u8 | bit(immediate, IMMEDIATE);
    bhs[1] = flags;
    put_data_length(&mut bhs, data_length);
    bhs
}

const fn is_immediate(bhs: &Bhs) -> bool {
    bhs[0] & IMMEDIATE != 0
}
