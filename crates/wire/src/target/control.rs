//! PDUs that steer a session: task management, asynchronous messages, logout, Reject, NOP-In (RFC 7143, 11.6, 11.9, 11.15, 11.17, 11.19).

use super::{FINAL, Numbers, header};
use crate::fields::{bytes_at, put, u16_at, u32_at};
use crate::{Bhs, DataSn, InitiatorTaskTag, LunField, Opcode, TargetTransferTag};

/// Outcomes of a task management function (11.6.1; 7 is RFC 7144's).
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
    FunctionSucceeded = 7,
    FunctionRejected = 255,
}

/// Task Management Function Response (11.6).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TaskManagementResponse {
    /// The response code, see [`TaskManagementOutcome`].
    pub response: u8,
    /// Additional Response Information (RFC 7144; SAM-5): what a query found. Zero at iSCSIProtocolLevel 1.
    pub additional: [u8; 3],
    /// The request that is answered.
    pub initiator_task_tag: InitiatorTaskTag,
    /// Status and command numbers.
    pub numbers: Numbers,
}

impl TaskManagementResponse {
    pub(super) fn decode(bhs: &Bhs) -> Self {
        Self {
            response: bhs[2],
            additional: bytes_at(bhs, 8),
            initiator_task_tag: InitiatorTaskTag(u32_at(bhs, 16)),
            numbers: Numbers::decode(bhs),
        }
    }

    /// The header; this PDU has no data segment.
    #[must_use]
    pub fn encode(&self) -> Bhs {
        let mut bhs = header(Opcode::TaskManagementResponse, FINAL, 0);
        bhs[2] = self.response;
        put(&mut bhs, 8, self.additional);
        put(&mut bhs, 16, self.initiator_task_tag.0.to_be_bytes());
        self.numbers.put(&mut bhs);
        bhs
    }
}

/// Asynchronous Message (11.9).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct AsynchronousMessage {
    /// The logical unit, for a SCSI event and a task termination.
    pub lun: LunField,
    /// Status and command numbers.
    pub numbers: Numbers,
    /// AsyncEvent (11.9.1): 0 SCSI event, 1 logout request, 2 connection drop, 3 session drop, 4 negotiation request, 5 task
    /// termination, 248 to 255 a vendor's.
    pub event: u8,
    /// AsyncVCode: vendor's code, for event 255.
    pub vendor_code: u8,
    /// Parameter1 to Parameter3; their meaning depends on the event.
    pub parameters: [u16; 3],
}

impl AsynchronousMessage {
    pub(super) fn decode(bhs: &Bhs) -> Self {
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
    pub(super) fn decode(bhs: &Bhs) -> Self {
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
    pub(super) fn decode(bhs: &Bhs) -> Self {
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
    pub(super) fn decode(bhs: &Bhs) -> Self {
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
