//! PDUs that carry text: Text Request and Login Request (RFC 7143, 11.10, 11.12).

use super::{CONTINUE, FINAL, header, is_immediate};
use crate::fields::{bit, bytes_at, put, u16_at, u32_at};
use crate::{
    Bhs, Cid, CmdSn, DecodeError, InitiatorTaskTag, Isid, LunField, Opcode, StatSn, TargetTransferTag, Tsih,
};

/// Text Request (11.10).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TextRequest {
    /// Deliver outside the command window.
    pub immediate: bool,
    /// F bit: the initiator has said all.
    pub is_final: bool,
    /// C bit: the text goes on in the next PDU.
    pub is_continued: bool,
    /// Repeats the LUN of a response whose transfer tag is echoed.
    pub lun: LunField,
    /// Names this negotiation.
    pub initiator_task_tag: InitiatorTaskTag,
    /// Echo of the response's tag, or reserved at the start.
    pub target_transfer_tag: TargetTransferTag,
    /// Position in the session's command order.
    pub cmd_sn: CmdSn,
    /// All statuses before this one have arrived.
    pub exp_stat_sn: StatSn,
}

impl TextRequest {
    pub(super) fn decode(bhs: &Bhs) -> Self {
        Self {
            immediate: is_immediate(bhs),
            is_final: bhs[1] & FINAL != 0,
            is_continued: bhs[1] & CONTINUE != 0,
            lun: LunField(bytes_at(bhs, 8)),
            initiator_task_tag: InitiatorTaskTag(u32_at(bhs, 16)),
            target_transfer_tag: TargetTransferTag(u32_at(bhs, 20)),
            cmd_sn: CmdSn(u32_at(bhs, 24)),
            exp_stat_sn: StatSn(u32_at(bhs, 28)),
        }
    }

    /// The header for `data_length` bytes of text.
    #[must_use]
    pub fn encode(&self, data_length: usize) -> Bhs {
        let flags = bit(self.is_final, FINAL) | bit(self.is_continued, CONTINUE);
        let mut bhs = header(Opcode::TextRequest, self.immediate, flags, data_length);
        put(&mut bhs, 8, self.lun.0);
        put(&mut bhs, 16, self.initiator_task_tag.0.to_be_bytes());
        put(&mut bhs, 20, self.target_transfer_tag.0.to_be_bytes());
        put(&mut bhs, 24, self.cmd_sn.0.to_be_bytes());
        put(&mut bhs, 28, self.exp_stat_sn.0.to_be_bytes());
        bhs
    }
}

/// The stages of a connection as CSG and NSG code them (11.12.3).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LoginStage {
    /// SecurityNegotiation.
    #[default]
    Security = 0,
    /// LoginOperationalNegotiation.
    Operational = 1,
    /// FullFeaturePhase.
    FullFeature = 3,
}

impl LoginStage {
    /// The stage with this two-bit code; 2 is reserved.
    #[must_use]
    pub const fn from_code(code: u8) -> Option<Self> {
        match code & 3 {
            0 => Some(Self::Security),
            1 => Some(Self::Operational),
            3 => Some(Self::FullFeature),
            _ => None,
        }
    }
}

/// Login Request (11.12).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LoginRequest {
    /// T bit: ready to go to `next_stage`.
    pub transit: bool,
    /// C bit: the text goes on in the next PDU.
    pub is_continued: bool,
    /// CSG.
    pub current_stage: LoginStage,
    /// NSG; only meaningful with the T bit.
    pub next_stage: LoginStage,
    /// Highest protocol version that the initiator speaks.
    pub version_max: u8,
    /// Lowest protocol version that the initiator speaks.
    pub version_min: u8,
    /// Initiator part of the session identifier.
    pub isid: Isid,
    /// The session to join, or zero.
    pub tsih: Tsih,
    /// One tag for the whole login.
    pub initiator_task_tag: InitiatorTaskTag,
    /// Names the connection in its session.
    pub cid: Cid,
    /// First CmdSN of the session, or the next one on a further connection.
    pub cmd_sn: CmdSn,
    /// Zero on a leading login, then the next status that is expected.
    pub exp_stat_sn: StatSn,
}

impl LoginRequest {
    /// Reads the header of a PDU that is known to be a Login Request.
    ///
    /// # Errors
    /// [`DecodeError::Field`] for a reserved stage.
    pub fn decode(bhs: &Bhs) -> Result<Self, DecodeError> {
        let stage = |field, code: u8| {
            LoginStage::from_code(code).ok_or(DecodeError::Field { field, value: (code & 3).into() })
        };
        let transit = bhs[1] & FINAL != 0;
        Ok(Self {
            transit,
            is_continued: bhs[1] & CONTINUE != 0,
            current_stage: stage("CSG", bhs[1] >> 2)?,
            // Without the T bit NSG is reserved, and reserved fields are not looked at (11.2).
            next_stage: if transit { stage("NSG", bhs[1])? } else { LoginStage::Security },
            version_max: bhs[2],
            version_min: bhs[3],
            isid: Isid(bytes_at(bhs, 8)),
            tsih: Tsih(u16_at(bhs, 14)),
            initiator_task_tag: InitiatorTaskTag(u32_at(bhs, 16)),
            cid: Cid(u16_at(bhs, 20)),
            cmd_sn: CmdSn(u32_at(bhs, 24)),
            exp_stat_sn: StatSn(u32_at(bhs, 28)),
        })
    }

    /// The header for `data_length` bytes of text.
    #[must_use]
    pub fn encode(&self, data_length: usize) -> Bhs {
        let flags = bit(self.transit, FINAL)
            | bit(self.is_continued, CONTINUE)
            | (self.current_stage as u8) << 2
            | if self.transit { self.next_stage as u8 } else { 0 };
        let mut bhs = header(Opcode::LoginRequest, true, flags, data_length);
        put(&mut bhs, 2, [self.version_max, self.version_min]);
        put(&mut bhs, 8, self.isid.0);
        put(&mut bhs, 14, self.tsih.0.to_be_bytes());
        put(&mut bhs, 16, self.initiator_task_tag.0.to_be_bytes());
        put(&mut bhs, 20, self.cid.0.to_be_bytes());
        put(&mut bhs, 24, self.cmd_sn.0.to_be_bytes());
        put(&mut bhs, 28, self.exp_stat_sn.0.to_be_bytes());
        bhs
    }
}
