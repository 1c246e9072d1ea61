//! PDUs that steer a session: task management, logout, NOP-Out (RFC 7143, 11.5, 11.14, 11.18).

use super::{FINAL, header, is_immediate};
use crate::fields::{bytes_at, put, u16_at, u32_at};
use crate::{
    Bhs, Cid, CmdSn, DataSn, DecodeError, InitiatorTaskTag, LunField, Opcode, StatSn, TargetTransferTag,
};

/// Functions of a Task Management Function Request (11.5.1; from 9 on RFC 7144).
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
    QueryTask,
    QueryTaskSet,
    ItNexusReset,
    QueryAsynchronousEvent,
    /// A code that neither RFC defines.
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
            9 => Self::QueryTask,
            10 => Self::QueryTaskSet,
            11 => Self::ItNexusReset,
            12 => Self::QueryAsynchronousEvent,
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
            Self::QueryTask => 9,
            Self::QueryTaskSet => 10,
            Self::ItNexusReset => 11,
            Self::QueryAsynchronousEvent => 12,
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
    pub(super) fn decode(bhs: &Bhs) -> Self {
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
    pub(super) fn decode(bhs: &Bhs) -> Result<Self, DecodeError> {
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
    pub(super) fn decode(bhs: &Bhs) -> Self {
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
