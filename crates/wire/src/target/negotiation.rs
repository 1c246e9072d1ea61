//! PDUs that carry text: Text Response and Login Response (RFC 7143, 11.11, 11.13).

use super::{CONTINUE, FINAL, Numbers, header};
use crate::fields::{bit, bytes_at, put, u16_at, u32_at};
use crate::initiator::LoginStage;
use crate::{Bhs, DecodeError, InitiatorTaskTag, Isid, LunField, Opcode, TargetTransferTag, Tsih};

/// Text Response (11.11).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TextResponse {
    /// F bit: the target has said all.
    pub is_final: bool,
    /// C bit: the text goes on in the next PDU.
    pub is_continued: bool,
    /// The LUN that the initiator repeats with the tag.
    pub lun: LunField,
    /// The negotiation.
    pub initiator_task_tag: InitiatorTaskTag,
    /// A tag when more is to come, reserved in the last response.
    pub target_transfer_tag: TargetTransferTag,
    /// Status and command numbers.
    pub numbers: Numbers,
}

impl TextResponse {
    pub(super) fn decode(bhs: &Bhs) -> Self {
        Self {
            is_final: bhs[1] & FINAL != 0,
            is_continued: bhs[1] & CONTINUE != 0,
            lun: LunField(bytes_at(bhs, 8)),
            initiator_task_tag: InitiatorTaskTag(u32_at(bhs, 16)),
            target_transfer_tag: TargetTransferTag(u32_at(bhs, 20)),
            numbers: Numbers::decode(bhs),
        }
    }

    /// The header for `data_length` bytes of text.
    #[must_use]
    pub fn encode(&self, data_length: usize) -> Bhs {
        let flags = bit(self.is_final, FINAL) | bit(self.is_continued, CONTINUE);
        let mut bhs = header(Opcode::TextResponse, flags, data_length);
        put(&mut bhs, 8, self.lun.0);
        put(&mut bhs, 16, self.initiator_task_tag.0.to_be_bytes());
        put(&mut bhs, 20, self.target_transfer_tag.0.to_be_bytes());
        self.numbers.put(&mut bhs);
        bhs
    }
}

/// Login Response (11.13).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LoginResponse {
    /// T bit: the target agrees to go to `next_stage`.
    pub transit: bool,
    /// C bit: the text goes on in the next PDU.
    pub is_continued: bool,
    /// CSG.
    pub current_stage: LoginStage,
    /// NSG; only meaningful with the T bit.
    pub next_stage: LoginStage,
    /// Highest protocol version that the target speaks.
    pub version_max: u8,
    /// The version in use.
    pub version_active: u8,
    /// Echo of the request's ISID.
    pub isid: Isid,
    /// The session's handle in the final response, else the request's.
    pub tsih: Tsih,
    /// The login.
    pub initiator_task_tag: InitiatorTaskTag,
    /// Status and command numbers.
    pub numbers: Numbers,
    /// Status-Class (11.13.5): 0 success, 1 redirection, 2 initiator error, 3 target error.
    pub status_class: u8,
    /// Status-Detail.
    pub status_detail: u8,
}

impl LoginResponse {
    pub(super) fn decode(bhs: &Bhs) -> Result<Self, DecodeError> {
        let stage = |field, code: u8| {
            LoginStage::from_code(code).ok_or(DecodeError::Field { field, value: (code & 3).into() })
        };
        let transit = bhs[1] & FINAL != 0;
        Ok(Self {
            transit,
            is_continued: bhs[1] & CONTINUE != 0,
            current_stage: stage("CSG", bhs[1] >> 2)?,
            next_stage: if transit { stage("NSG", bhs[1])? } else { LoginStage::Security },
            version_max: bhs[2],
            version_active: bhs[3],
            isid: Isid(bytes_at(bhs, 8)),
            tsih: Tsih(u16_at(bhs, 14)),
            initiator_task_tag: InitiatorTaskTag(u32_at(bhs, 16)),
            numbers: Numbers::decode(bhs),
            status_class: bhs[36],
            status_detail: bhs[37],
        })
    }

    /// The header for `data_length` bytes of text.
    #[must_use]
    pub fn encode(&self, data_length: usize) -> Bhs {
        let flags = bit(self.transit, FINAL)
            | bit(self.is_continued, CONTINUE)
            | (self.current_stage as u8) << 2
            | if self.transit { self.next_stage as u8 } else { 0 };
        let mut bhs = header(Opcode::LoginResponse, flags, data_length);
        put(&mut bhs, 2, [self.version_max, self.version_active]);
        put(&mut bhs, 8, self.isid.0);
        put(&mut bhs, 14, self.tsih.0.to_be_bytes());
        put(&mut bhs, 16, self.initiator_task_tag.0.to_be_bytes());
        self.numbers.put(&mut bhs);
        put(&mut bhs, 36, [self.status_class, self.status_detail]);
        bhs
    }
}
