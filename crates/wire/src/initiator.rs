//! PDUs that an initiator sends (RFC 7143, clauses 11.3, 11.5, 11.7, 11.10, 11.12, 11.14, 11.16, 11.18).
//!
//! `decode` reads the basic header segment only; data segments and additional headers belong to the caller.
//! `encode` takes the length of the data segment that will follow, in bytes.

use crate::fields::{bit, bytes_at, put, put_data_length, u16_at, u32_at};
use crate::opcode::IMMEDIATE;
use crate::{
    BHS_LENGTH, Bhs, Cid, CmdSn, DataSn, DecodeError, InitiatorTaskTag, Isid, LunField, Opcode, StatSn,
    TargetTransferTag, Tsih,
};

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

/// Task attribute of a SCSI command (11.3.1.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[allow(missing_docs, reason = "SAM-5's names")]
pub enum TaskAttribute {
    Untagged = 0,
    #[default]
    Simple = 1,
    Ordered = 2,
    HeadOfQueue = 3,
    Aca = 4,
}

/// SCSI Command (11.3).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ScsiCommand {
    /// Deliver outside the command window.
    pub immediate: bool,
    /// F bit: no unsolicited Data-Out PDU follows this one.
    pub is_final: bool,
    /// R bit: the command is expected to bring data in.
    pub read: bool,
    /// W bit: the command is expected to take data out.
    pub write: bool,
    /// How the task set orders this task.
    pub attribute: TaskAttribute,
    /// The logical unit.
    pub lun: LunField,
    /// Names the task until its status is acknowledged.
    pub initiator_task_tag: InitiatorTaskTag,
    /// Bytes that the initiator will send or can take.
    pub expected_data_transfer_length: u32,
    /// Position in the session's command order.
    pub cmd_sn: CmdSn,
    /// All statuses before this one have arrived.
    pub exp_stat_sn: StatSn,
    /// The first 16 bytes of the command descriptor block.
    pub cdb: [u8; 16],
}

impl ScsiCommand {
    fn decode(bhs: &Bhs) -> Result<Self, DecodeError> {
        let attribute = match bhs[1] & 7 {
            0 => TaskAttribute::Untagged,
            1 => TaskAttribute::Simple,
            2 => TaskAttribute::Ordered,
            3 => TaskAttribute::HeadOfQueue,
            4 => TaskAttribute::Aca,
            other => return Err(DecodeError::Field { field: "ATTR", value: other.into() }),
        };
        Ok(Self {
            immediate: is_immediate(bhs),
            is_final: bhs[1] & FINAL != 0,
            read: bhs[1] & 0x40 != 0,
            write: bhs[1] & 0x20 != 0,
            attribute,
            lun: LunField(bytes_at(bhs, 8)),
            initiator_task_tag: InitiatorTaskTag(u32_at(bhs, 16)),
            expected_data_transfer_length: u32_at(bhs, 20),
            cmd_sn: CmdSn(u32_at(bhs, 24)),
            exp_stat_sn: StatSn(u32_at(bhs, 28)),
            cdb: bytes_at(bhs, 32),
        })
    }

    /// The header for a command with `data_length` bytes of immediate data and no additional headers.
    #[must_use]
    pub fn encode(&self, data_length: usize) -> Bhs {
        let flags =
            bit(self.is_final, FINAL) | bit(self.read, 0x40) | bit(self.write, 0x20) | self.attribute as u8;
        let mut bhs = header(Opcode::ScsiCommand, self.immediate, flags, data_length);
        put(&mut bhs, 8, self.lun.0);
        put(&mut bhs, 16, self.initiator_task_tag.0.to_be_bytes());
        put(&mut bhs, 20, self.expected_data_transfer_length.to_be_bytes());
        put(&mut bhs, 24, self.cmd_sn.0.to_be_bytes());
        put(&mut bhs, 28, self.exp_stat_sn.0.to_be_bytes());
        put(&mut bhs, 32, self.cdb);
        bhs
    }
}

/// Functions of a Task Management Function Request (11.5.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "the clause's names")]
pub enum TaskManagementFunction {
    AbortTask,
    AbortTaskSet,
    ClearAca,
    ClearTaskSet,
    LogicalUnitReset,
    TargetWarmReset,
    TargetColdReset,
    TaskReassign,
    /// A code that RFC 7143 does not define.
    Other(u8),
}

impl TaskManagementFunction {
    /// The function with this code.
    #[must_use]
    pub const fn from_code(code: u8) -> Self {
        match code {
            1 => Self::AbortTask,
            2 => Self::AbortTaskSet,
            3 => Self::ClearAca,
            4 => Self::ClearTaskSet,
            5 => Self::LogicalUnitReset,
            6 => Self::TargetWarmReset,
            7 => Self::TargetColdReset,
            8 => Self::TaskReassign,
            other => Self::Other(other),
        }
    }

    /// The function's code.
    #[must_use]
    pub const fn code(self) -> u8 {
        match self {
            Self::AbortTask => 1,
            Self::AbortTaskSet => 2,
            Self::ClearAca => 3,
            Self::ClearTaskSet => 4,
            Self::LogicalUnitReset => 5,
            Self::TargetWarmReset => 6,
            Self::TargetColdReset => 7,
            Self::TaskReassign => 8,
            Self::Other(code) => code & 0x7f,
        }
    }
}

/// Task Management Function Request (11.5).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TaskManagementRequest {
    /// Deliver outside the command window.
    pub immediate: bool,
    /// What to do.
    pub function: TaskManagementFunction,
    /// The logical unit, where the function has one.
    pub lun: LunField,
    /// Names this request.
    pub initiator_task_tag: InitiatorTaskTag,
    /// The task that the function is about, or reserved.
    pub referenced_task_tag: InitiatorTaskTag,
    /// Position in the session's command order.
    pub cmd_sn: CmdSn,
    /// All statuses before this one have arrived.
    pub exp_stat_sn: StatSn,
    /// CmdSN of the referenced task (ABORT TASK).
    pub ref_cmd_sn: CmdSn,
    /// Next DataSN the initiator expects (TASK REASSIGN).
    pub exp_data_sn: DataSn,
}

impl TaskManagementRequest {
    fn decode(bhs: &Bhs) -> Self {
        Self {
            immediate: is_immediate(bhs),
            function: TaskManagementFunction::from_code(bhs[1] & 0x7f),
            lun: LunField(bytes_at(bhs, 8)),
            initiator_task_tag: InitiatorTaskTag(u32_at(bhs, 16)),
            referenced_task_tag: InitiatorTaskTag(u32_at(bhs, 20)),
            cmd_sn: CmdSn(u32_at(bhs, 24)),
            exp_stat_sn: StatSn(u32_at(bhs, 28)),
            ref_cmd_sn: CmdSn(u32_at(bhs, 32)),
            exp_data_sn: DataSn(u32_at(bhs, 36)),
        }
    }

    /// The header; this PDU has no data segment.
    #[must_use]
    pub fn encode(&self) -> Bhs {
        let flags = FINAL | self.function.code();
        let mut bhs = header(Opcode::TaskManagementRequest, self.immediate, flags, 0);
        put(&mut bhs, 8, self.lun.0);
        put(&mut bhs, 16, self.initiator_task_tag.0.to_be_bytes());
        put(&mut bhs, 20, self.referenced_task_tag.0.to_be_bytes());
        put(&mut bhs, 24, self.cmd_sn.0.to_be_bytes());
        put(&mut bhs, 28, self.exp_stat_sn.0.to_be_bytes());
        put(&mut bhs, 32, self.ref_cmd_sn.0.to_be_bytes());
        put(&mut bhs, 36, self.exp_data_sn.0.to_be_bytes());
        bhs
    }
}

/// SCSI Data-Out (11.7).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ScsiDataOut {
    /// F bit: the last PDU of this sequence.
    pub is_final: bool,
    /// The logical unit; meaningful with a transfer tag.
    pub lun: LunField,
    /// The task that the data belongs to.
    pub initiator_task_tag: InitiatorTaskTag,
    /// The R2T that is answered; reserved for unsolicited data.
    pub target_transfer_tag: TargetTransferTag,
    /// All statuses before this one have arrived.
    pub exp_stat_sn: StatSn,
    /// Position in this sequence.
    pub data_sn: DataSn,
    /// Where the segment belongs in the task's buffer, in bytes.
    pub buffer_offset: u32,
}

impl ScsiDataOut {
    /// Reads the header of a PDU that is known to be a SCSI Data-Out.
    #[must_use]
    pub fn decode(bhs: &Bhs) -> Self {
        Self {
            is_final: bhs[1] & FINAL != 0,
            lun: LunField(bytes_at(bhs, 8)),
            initiator_task_tag: InitiatorTaskTag(u32_at(bhs, 16)),
            target_transfer_tag: TargetTransferTag(u32_at(bhs, 20)),
            exp_stat_sn: StatSn(u32_at(bhs, 28)),
            data_sn: DataSn(u32_at(bhs, 36)),
            buffer_offset: u32_at(bhs, 40),
        }
    }

    /// The header for a segment of `data_length` bytes.
    #[must_use]
    pub fn encode(&self, data_length: usize) -> Bhs {
        let mut bhs = header(Opcode::ScsiDataOut, false, bit(self.is_final, FINAL), data_length);
        put(&mut bhs, 8, self.lun.0);
        put(&mut bhs, 16, self.initiator_task_tag.0.to_be_bytes());
        put(&mut bhs, 20, self.target_transfer_tag.0.to_be_bytes());
        put(&mut bhs, 28, self.exp_stat_sn.0.to_be_bytes());
        put(&mut bhs, 36, self.data_sn.0.to_be_bytes());
        put(&mut bhs, 40, self.buffer_offset.to_be_bytes());
        bhs
    }
}

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
    fn decode(bhs: &Bhs) -> Self {
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

/// Why an initiator logs out (11.14.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[allow(missing_docs, reason = "the clause's names")]
pub enum LogoutReason {
    #[default]
    CloseSession = 0,
    CloseConnection = 1,
    RemoveConnectionForRecovery = 2,
}

/// Logout Request (11.14).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LogoutRequest {
    /// Deliver outside the command window.
    pub immediate: bool,
    /// What is to be closed, and why.
    pub reason: LogoutReason,
    /// Names this request.
    pub initiator_task_tag: InitiatorTaskTag,
    /// The connection, unless the session is closed.
    pub cid: Cid,
    /// Position in the session's command order.
    pub cmd_sn: CmdSn,
    /// All statuses before this one have arrived.
    pub exp_stat_sn: StatSn,
}

impl LogoutRequest {
    fn decode(bhs: &Bhs) -> Result<Self, DecodeError> {
        let reason = match bhs[1] & 0x7f {
            0 => LogoutReason::CloseSession,
            1 => LogoutReason::CloseConnection,
            2 => LogoutReason::RemoveConnectionForRecovery,
            other => return Err(DecodeError::Field { field: "Reason Code", value: other.into() }),
        };
        Ok(Self {
            immediate: is_immediate(bhs),
            reason,
            initiator_task_tag: InitiatorTaskTag(u32_at(bhs, 16)),
            cid: Cid(u16_at(bhs, 20)),
            cmd_sn: CmdSn(u32_at(bhs, 24)),
            exp_stat_sn: StatSn(u32_at(bhs, 28)),
        })
    }

    /// The header; this PDU has no data segment.
    #[must_use]
    pub fn encode(&self) -> Bhs {
        let mut bhs = header(Opcode::LogoutRequest, self.immediate, FINAL | self.reason as u8, 0);
        put(&mut bhs, 16, self.initiator_task_tag.0.to_be_bytes());
        put(&mut bhs, 20, self.cid.0.to_be_bytes());
        put(&mut bhs, 24, self.cmd_sn.0.to_be_bytes());
        put(&mut bhs, 28, self.exp_stat_sn.0.to_be_bytes());
        bhs
    }
}

/// SNACK Request (11.16).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SnackRequest {
    /// Type: 0 Data/R2T, 1 Status, 2 DataACK, 3 R-Data; others are reserved.
    pub kind: u8,
    /// The logical unit.
    pub lun: LunField,
    /// The task, or reserved for a status SNACK.
    pub initiator_task_tag: InitiatorTaskTag,
    /// Target Transfer Tag, or SNACK Tag for R-Data.
    pub target_transfer_tag: TargetTransferTag,
    /// All statuses before this one have arrived.
    pub exp_stat_sn: StatSn,
    /// BegRun: the first number that is missed.
    pub begin_run: u32,
    /// RunLength: how many; zero means all from there on.
    pub run_length: u32,
}

impl SnackRequest {
    fn decode(bhs: &Bhs) -> Self {
        Self {
            kind: bhs[1] & 0x0f,
            lun: LunField(bytes_at(bhs, 8)),
            initiator_task_tag: InitiatorTaskTag(u32_at(bhs, 16)),
            target_transfer_tag: TargetTransferTag(u32_at(bhs, 20)),
            exp_stat_sn: StatSn(u32_at(bhs, 28)),
            begin_run: u32_at(bhs, 40),
            run_length: u32_at(bhs, 44),
        }
    }

    /// The header; this PDU has no data segment.
    #[must_use]
    pub fn encode(&self) -> Bhs {
        let mut bhs = header(Opcode::SnackRequest, false, FINAL | self.kind & 0x0f, 0);
        put(&mut bhs, 8, self.lun.0);
        put(&mut bhs, 16, self.initiator_task_tag.0.to_be_bytes());
        put(&mut bhs, 20, self.target_transfer_tag.0.to_be_bytes());
        put(&mut bhs, 28, self.exp_stat_sn.0.to_be_bytes());
        put(&mut bhs, 40, self.begin_run.to_be_bytes());
        put(&mut bhs, 44, self.run_length.to_be_bytes());
        bhs
    }
}

/// NOP-Out (11.18).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct NopOut {
    /// Deliver outside the command window.
    pub immediate: bool,
    /// Echo of the NOP-In's LUN that is answered.
    pub lun: LunField,
    /// Names a ping; reserved when no answer is wanted.
    pub initiator_task_tag: InitiatorTaskTag,
    /// Echo of the NOP-In's tag that is answered, or reserved.
    pub target_transfer_tag: TargetTransferTag,
    /// Position in the session's command order.
    pub cmd_sn: CmdSn,
    /// All statuses before this one have arrived.
    pub exp_stat_sn: StatSn,
}

impl NopOut {
    fn decode(bhs: &Bhs) -> Self {
        Self {
            immediate: is_immediate(bhs),
            lun: LunField(bytes_at(bhs, 8)),
            initiator_task_tag: InitiatorTaskTag(u32_at(bhs, 16)),
            target_transfer_tag: TargetTransferTag(u32_at(bhs, 20)),
            cmd_sn: CmdSn(u32_at(bhs, 24)),
            exp_stat_sn: StatSn(u32_at(bhs, 28)),
        }
    }

    /// The header for `data_length` bytes of ping data.
    #[must_use]
    pub fn encode(&self, data_length: usize) -> Bhs {
        let mut bhs = header(Opcode::NopOut, self.immediate, FINAL, data_length);
        put(&mut bhs, 8, self.lun.0);
        put(&mut bhs, 16, self.initiator_task_tag.0.to_be_bytes());
        put(&mut bhs, 20, self.target_transfer_tag.0.to_be_bytes());
        put(&mut bhs, 24, self.cmd_sn.0.to_be_bytes());
        put(&mut bhs, 28, self.exp_stat_sn.0.to_be_bytes());
        bhs
    }
}
