//! PDUs that a target sends (RFC 7143, clauses 11.4, 11.6 to 11.9, 11.11, 11.13, 11.15, 11.17, 11.19).
//!
//! `decode` reads the basic header segment only. `encode` takes the length of the data segment that will follow,
//! in bytes.

use crate::fields::{bit, bytes_at, put, put_data_length, u16_at, u32_at};
use crate::initiator::LoginStage;
use crate::{
    BHS_LENGTH, Bhs, CmdSn, DataSn, DecodeError, InitiatorTaskTag, Isid, LunField, Opcode, StatSn,
    TargetTransferTag, Tsih,
};

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

    fn put(self, bhs: &mut Bhs) {
        put(bhs, 24, self.stat_sn.0.to_be_bytes());
        put(bhs, 28, self.exp_cmd_sn.0.to_be_bytes());
        put(bhs, 32, self.max_cmd_sn.0.to_be_bytes());
    }
}

fn header(opcode: Opcode, flags: u8, data_length: usize) -> Bhs {
    let mut bhs = [0; BHS_LENGTH];
    bhs[0] = opcode as u8;
    bhs[1] = flags;
    put_data_length(&mut bhs, data_length);
    bhs
}

/// How the transferred length differs from the expected one (11.4.5).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Residual {
    /// Exactly the expected bytes.
    #[default]
    None,
    /// This many bytes more were there than the initiator expected.
    Overflow(u32),
    /// This many expected bytes were not transferred.
    Underflow(u32),
}

impl Residual {
    const OVERFLOW: u8 = 0x04;
    const UNDERFLOW: u8 = 0x02;

    /// Compares what a command would move (`actual`, bytes) with what the initiator expected.
    #[must_use]
    pub fn between(expected: u32, actual: u64) -> Self {
        match u64::from(expected).cmp(&actual) {
            std::cmp::Ordering::Equal => Self::None,
            std::cmp::Ordering::Less => {
                Self::Overflow(u32::try_from(actual - u64::from(expected)).unwrap_or(u32::MAX))
            }
            // The difference is at most `expected`, which has 32 bits.
            std::cmp::Ordering::Greater => Self::Underflow((u64::from(expected) - actual) as u32),
        }
    }

    const fn flags(self) -> u8 {
        match self {
            Self::None => 0,
            Self::Overflow(_) => Self::OVERFLOW,
            Self::Underflow(_) => Self::UNDERFLOW,
        }
    }

    const fn count(self) -> u32 {
        match self {
            Self::None => 0,
            Self::Overflow(count) | Self::Underflow(count) => count,
        }
    }

    const fn from_parts(flags: u8, count: u32) -> Self {
        if flags & Self::OVERFLOW != 0 {
            Self::Overflow(count)
        } else if flags & Self::UNDERFLOW != 0 {
            Self::Underflow(count)
        } else {
            Self::None
        }
    }
}

/// SCSI Response (11.4); unidirectional commands only, so the bidirectional residual is always zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ScsiResponse {
    /// Expected against transferred bytes.
    pub residual: Residual,
    /// 0: completed at the target; 1: target failure (11.4.3).
    pub response: u8,
    /// SAM status code; valid with response 0.
    pub status: u8,
    /// The task.
    pub initiator_task_tag: InitiatorTaskTag,
    /// SNACK Tag; zero at ErrorRecoveryLevel 0.
    pub snack_tag: u32,
    /// Status and command numbers.
    pub numbers: Numbers,
    /// How many Data-In PDUs and R2Ts the target sent for the command.
    pub exp_data_sn: DataSn,
}

impl ScsiResponse {
    fn decode(bhs: &Bhs) -> Self {
        Self {
            residual: Residual::from_parts(bhs[1], u32_at(bhs, 44)),
            response: bhs[2],
            status: bhs[3],
            initiator_task_tag: InitiatorTaskTag(u32_at(bhs, 16)),
            snack_tag: u32_at(bhs, 20),
            numbers: Numbers::decode(bhs),
            exp_data_sn: DataSn(u32_at(bhs, 36)),
        }
    }

    /// The header for `data_length` bytes of sense and response data.
    #[must_use]
    pub fn encode(&self, data_length: usize) -> Bhs {
        let mut bhs = header(Opcode::ScsiResponse, FINAL | self.residual.flags(), data_length);
        put(&mut bhs, 2, [self.response, self.status]);
        put(&mut bhs, 16, self.initiator_task_tag.0.to_be_bytes());
        put(&mut bhs, 20, self.snack_tag.to_be_bytes());
        self.numbers.put(&mut bhs);
        put(&mut bhs, 36, self.exp_data_sn.0.to_be_bytes());
        put(&mut bhs, 44, self.residual.count().to_be_bytes());
        bhs
    }
}

/// Outcomes of a task management function (11.6.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[allow(missing_docs, reason = "the clause's names")]
pub enum TaskManagementOutcome {
    #[default]
    FunctionComplete = 0,
    TaskDoesNotExist = 1,
    LunDoesNotExist = 2,
    TaskStillAllegiant = 3,
    TaskAllegianceReassignmentNotSupported = 4,
    FunctionNotSupported = 5,
    AuthorizationFailed = 6,
    FunctionRejected = 255,
}

/// Task Management Function Response (11.6).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TaskManagementResponse {
    /// The response code, see [`TaskManagementOutcome`].
    pub response: u8,
    /// The request that is answered.
    pub initiator_task_tag: InitiatorTaskTag,
    /// Status and command numbers.
    pub numbers: Numbers,
}

impl TaskManagementResponse {
    fn decode(bhs: &Bhs) -> Self {
        Self {
            response: bhs[2],
            initiator_task_tag: InitiatorTaskTag(u32_at(bhs, 16)),
            numbers: Numbers::decode(bhs),
        }
    }

    /// The header; this PDU has no data segment.
    #[must_use]
    pub fn encode(&self) -> Bhs {
        let mut bhs = header(Opcode::TaskManagementResponse, FINAL, 0);
        bhs[2] = self.response;
        put(&mut bhs, 16, self.initiator_task_tag.0.to_be_bytes());
        self.numbers.put(&mut bhs);
        bhs
    }
}

/// SCSI Data-In (11.7).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ScsiDataIn {
    /// F bit: the last PDU of this sequence.
    pub is_final: bool,
    /// A bit: an acknowledgement is wanted (ErrorRecoveryLevel above 0).
    pub acknowledge: bool,
    /// The SCSI status when the S bit is set (phase collapse), else none; then `numbers.stat_sn` is reserved.
    pub status: Option<u8>,
    /// Only meaningful with a status.
    pub residual: Residual,
    /// The logical unit; needed with the A bit only.
    pub lun: LunField,
    /// The task.
    pub initiator_task_tag: InitiatorTaskTag,
    /// Tag for the acknowledgement, else reserved.
    pub target_transfer_tag: TargetTransferTag,
    /// Status and command numbers.
    pub numbers: Numbers,
    /// Position among this command's Data-In PDUs.
    pub data_sn: DataSn,
    /// Where the segment belongs in the task's buffer, in bytes.
    pub buffer_offset: u32,
}

impl ScsiDataIn {
    fn decode(bhs: &Bhs) -> Self {
        Self {
            is_final: bhs[1] & FINAL != 0,
            acknowledge: bhs[1] & 0x40 != 0,
            status: (bhs[1] & 1 != 0).then_some(bhs[3]),
            residual: Residual::from_parts(bhs[1], u32_at(bhs, 44)),
            lun: LunField(bytes_at(bhs, 8)),
            initiator_task_tag: InitiatorTaskTag(u32_at(bhs, 16)),
            target_transfer_tag: TargetTransferTag(u32_at(bhs, 20)),
            numbers: Numbers::decode(bhs),
            data_sn: DataSn(u32_at(bhs, 36)),
            buffer_offset: u32_at(bhs, 40),
        }
    }

    /// The header for a segment of `data_length` bytes.
    #[must_use]
    pub fn encode(&self, data_length: usize) -> Bhs {
        let flags = bit(self.is_final, FINAL)
            | bit(self.acknowledge, 0x40)
            | bit(self.status.is_some(), 1)
            | self.residual.flags();
        let mut bhs = header(Opcode::ScsiDataIn, flags, data_length);
        bhs[3] = self.status.unwrap_or(0);
        put(&mut bhs, 8, self.lun.0);
        put(&mut bhs, 16, self.initiator_task_tag.0.to_be_bytes());
        put(&mut bhs, 20, self.target_transfer_tag.0.to_be_bytes());
        self.numbers.put(&mut bhs);
        put(&mut bhs, 36, self.data_sn.0.to_be_bytes());
        put(&mut bhs, 40, self.buffer_offset.to_be_bytes());
        put(&mut bhs, 44, self.residual.count().to_be_bytes());
        bhs
    }
}

/// Ready To Transfer (11.8).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ReadyToTransfer {
    /// The logical unit.
    pub lun: LunField,
    /// The task.
    pub initiator_task_tag: InitiatorTaskTag,
    /// To be echoed in the Data-Out PDUs; never the reserved value.
    pub target_transfer_tag: TargetTransferTag,
    /// The next StatSN (not consumed), and the command numbers.
    pub numbers: Numbers,
    /// R2TSN: position among this command's R2Ts.
    pub r2t_sn: DataSn,
    /// First byte of the task's buffer that is wanted.
    pub buffer_offset: u32,
    /// Desired Data Transfer Length in bytes; never zero.
    pub desired_length: u32,
}

impl ReadyToTransfer {
    fn decode(bhs: &Bhs) -> Self {
        Self {
            lun: LunField(bytes_at(bhs, 8)),
            initiator_task_tag: InitiatorTaskTag(u32_at(bhs, 16)),
            target_transfer_tag: TargetTransferTag(u32_at(bhs, 20)),
            numbers: Numbers::decode(bhs),
            r2t_sn: DataSn(u32_at(bhs, 36)),
            buffer_offset: u32_at(bhs, 40),
            desired_length: u32_at(bhs, 44),
        }
    }

    /// The header; this PDU has no data segment.
    #[must_use]
    pub fn encode(&self) -> Bhs {
        let mut bhs = header(Opcode::ReadyToTransfer, FINAL, 0);
        put(&mut bhs, 8, self.lun.0);
        put(&mut bhs, 16, self.initiator_task_tag.0.to_be_bytes());
        put(&mut bhs, 20, self.target_transfer_tag.0.to_be_bytes());
        self.numbers.put(&mut bhs);
        put(&mut bhs, 36, self.r2t_sn.0.to_be_bytes());
        put(&mut bhs, 40, self.buffer_offset.to_be_bytes());
        put(&mut bhs, 44, self.desired_length.to_be_bytes());
        bhs
    }
}

/// Asynchronous Message (11.9).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct AsynchronousMessage {
    /// The logical unit, for a SCSI event.
    pub lun: LunField,
    /// Status and command numbers.
    pub numbers: Numbers,
    /// AsyncEvent (11.9.1): 0 SCSI event, 1 logout request, 2 connection drop, 3 session drop, 4 negotiation.
    pub event: u8,
    /// AsyncVCode: vendor's code, for event 255.
    pub vendor_code: u8,
    /// Parameter1 to Parameter3; their meaning depends on the event.
    pub parameters: [u16; 3],
}

impl AsynchronousMessage {
    fn decode(bhs: &Bhs) -> Self {
        Self {
            lun: LunField(bytes_at(bhs, 8)),
            numbers: Numbers::decode(bhs),
            event: bhs[36],
            vendor_code: bhs[37],
            parameters: [u16_at(bhs, 38), u16_at(bhs, 40), u16_at(bhs, 42)],
        }
    }

    /// The header for `data_length` bytes of sense and event data.
    #[must_use]
    pub fn encode(&self, data_length: usize) -> Bhs {
        let mut bhs = header(Opcode::AsynchronousMessage, FINAL, data_length);
        put(&mut bhs, 8, self.lun.0);
        put(&mut bhs, 16, InitiatorTaskTag::RESERVED.0.to_be_bytes());
        self.numbers.put(&mut bhs);
        put(&mut bhs, 36, [self.event, self.vendor_code]);
        for (index, parameter) in self.parameters.iter().enumerate() {
            put(&mut bhs, 38 + 2 * index, parameter.to_be_bytes());
        }
        bhs
    }
}

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
    fn decode(bhs: &Bhs) -> Self {
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
    fn decode(bhs: &Bhs) -> Result<Self, DecodeError> {
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

/// Logout Response (11.15).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LogoutResponse {
    /// 0 closed, 1 no such CID, 2 recovery not supported, 3 clean-up failed (11.15.1).
    pub response: u8,
    /// The request that is answered.
    pub initiator_task_tag: InitiatorTaskTag,
    /// Status and command numbers.
    pub numbers: Numbers,
    /// Seconds before a reconnection makes sense.
    pub time2wait_s: u16,
    /// Seconds after that for which tasks can be reassigned.
    pub time2retain_s: u16,
}

impl LogoutResponse {
    fn decode(bhs: &Bhs) -> Self {
        Self {
            response: bhs[2],
            initiator_task_tag: InitiatorTaskTag(u32_at(bhs, 16)),
            numbers: Numbers::decode(bhs),
            time2wait_s: u16_at(bhs, 40),
            time2retain_s: u16_at(bhs, 42),
        }
    }

    /// The header; this PDU has no data segment.
    #[must_use]
    pub fn encode(&self) -> Bhs {
        let mut bhs = header(Opcode::LogoutResponse, FINAL, 0);
        bhs[2] = self.response;
        put(&mut bhs, 16, self.initiator_task_tag.0.to_be_bytes());
        self.numbers.put(&mut bhs);
        put(&mut bhs, 40, self.time2wait_s.to_be_bytes());
        put(&mut bhs, 42, self.time2retain_s.to_be_bytes());
        bhs
    }
}

/// Why a PDU is rejected (11.17.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs, reason = "the clause's names")]
pub enum RejectReason {
    DataDigestError = 0x02,
    SnackReject = 0x03,
    ProtocolError = 0x04,
    CommandNotSupported = 0x05,
    ImmediateCommandReject = 0x06,
    TaskInProgress = 0x07,
    InvalidDataAck = 0x08,
    InvalidPduField = 0x09,
    LongOperationReject = 0x0a,
    NegotiationReset = 0x0b,
    WaitingForLogout = 0x0c,
}

/// Reject (11.17); its data segment is the header of the PDU at fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Reject {
    /// The reason code, see [`RejectReason`].
    pub reason: u8,
    /// Status and command numbers.
    pub numbers: Numbers,
    /// Next DataSN or R2TSN, where the reason is about data.
    pub data_sn: DataSn,
}

impl Reject {
    fn decode(bhs: &Bhs) -> Self {
        Self { reason: bhs[2], numbers: Numbers::decode(bhs), data_sn: DataSn(u32_at(bhs, 36)) }
    }

    /// The header for `data_length` bytes, normally the 48 of the rejected header.
    #[must_use]
    pub fn encode(&self, data_length: usize) -> Bhs {
        let mut bhs = header(Opcode::Reject, FINAL, data_length);
        bhs[2] = self.reason;
        put(&mut bhs, 16, InitiatorTaskTag::RESERVED.0.to_be_bytes());
        self.numbers.put(&mut bhs);
        put(&mut bhs, 36, self.data_sn.0.to_be_bytes());
        bhs
    }
}

/// NOP-In (11.19).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct NopIn {
    /// The LUN that the answer repeats.
    pub lun: LunField,
    /// The NOP-Out that is answered, or reserved for a ping of the target's.
    pub initiator_task_tag: InitiatorTaskTag,
    /// A tag when an answer is wanted, else reserved.
    pub target_transfer_tag: TargetTransferTag,
    /// Status and command numbers; StatSN is consumed only when a NOP-Out is answered.
    pub numbers: Numbers,
}

impl NopIn {
    fn decode(bhs: &Bhs) -> Self {
        Self {
            lun: LunField(bytes_at(bhs, 8)),
            initiator_task_tag: InitiatorTaskTag(u32_at(bhs, 16)),
            target_transfer_tag: TargetTransferTag(u32_at(bhs, 20)),
            numbers: Numbers::decode(bhs),
        }
    }

    /// The header for `data_length` bytes of ping data.
    #[must_use]
    pub fn encode(&self, data_length: usize) -> Bhs {
        let mut bhs = header(Opcode::NopIn, FINAL, data_length);
        put(&mut bhs, 8, self.lun.0);
        put(&mut bhs, 16, self.initiator_task_tag.0.to_be_bytes());
        put(&mut bhs, 20, self.target_transfer_tag.0.to_be_bytes());
        self.numbers.put(&mut bhs);
        bhs
    }
}
