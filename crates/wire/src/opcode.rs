//! Operation codes (RFC 7143, 11.2.1.2).

/// The operation code of a PDU, without the immediate bit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
#[allow(missing_docs, reason = "the names are the clause's own titles")]
pub enum Opcode {
    NopOut = 0x00,
    ScsiCommand = 0x01,
    TaskManagementRequest = 0x02,
    LoginRequest = 0x03,
    TextRequest = 0x04,
    ScsiDataOut = 0x05,
    LogoutRequest = 0x06,
    SnackRequest = 0x10,
    NopIn = 0x20,
    ScsiResponse = 0x21,
    TaskManagementResponse = 0x22,
    LoginResponse = 0x23,
    TextResponse = 0x24,
    ScsiDataIn = 0x25,
    LogoutResponse = 0x26,
    ReadyToTransfer = 0x31,
    AsynchronousMessage = 0x32,
    Reject = 0x3f,
}

/// Bit 6 of byte 0 of a request: deliver at once, outside the command window (11.2.1.1).
pub const IMMEDIATE: u8 = 0x40;

impl Opcode {
    /// The opcode in the low six bits of byte 0, if it is one that the RFC defines.
    #[must_use]
    pub const fn from_byte(byte: u8) -> Option<Self> {
        Some(match byte & 0x3f {
            0x00 => Self::NopOut,
            0x01 => Self::ScsiCommand,
            0x02 => Self::TaskManagementRequest,
            0x03 => Self::LoginRequest,
            0x04 => Self::TextRequest,
            0x05 => Self::ScsiDataOut,
            0x06 => Self::LogoutRequest,
            0x10 => Self::SnackRequest,
            0x20 => Self::NopIn,
            0x21 => Self::ScsiResponse,
            0x22 => Self::TaskManagementResponse,
            0x23 => Self::LoginResponse,
            0x24 => Self::TextResponse,
            0x25 => Self::ScsiDataIn,
            0x26 => Self::LogoutResponse,
            0x31 => Self::ReadyToTransfer,
            0x32 => Self::AsynchronousMessage,
            0x3f => Self::Reject,
            _ => return None,
        })
    }
}
