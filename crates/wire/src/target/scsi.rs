//! PDUs of SCSI commands: the response, Data-In, R2T (RFC 7143, 11.4, 11.7, 11.8).

use super::{FINAL, Numbers, header};
use crate::fields::{bit, bytes_at, put, u16_at, u32_at};
use crate::{Bhs, DataSn, InitiatorTaskTag, LunField, Opcode, TargetTransferTag};

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
    #[inline]
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

    /// The flags of a bidirectional read residual, o and u, lie so far above O and U.
    const BIDIRECTIONAL_SHIFT: u32 = 2;

    #[inline]
    const fn flags(self) -> u8 {
        match self {
            Self::None => 0,
            Self::Overflow(_) => Self::OVERFLOW,
            Self::Underflow(_) => Self::UNDERFLOW,
        }
    }

    #[inline]
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

/// SCSI Response (11.4).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ScsiResponse {
    /// Expected against transferred bytes; of a bidirectional command, those that were written.
    pub residual: Residual,
    /// Expected against transferred bytes of what a bidirectional command reads.
    pub bidirectional_read_residual: Residual,
    /// 0: completed at the target; 1: target failure (11.4.3).
    pub response: u8,
    /// SAM status code; valid with response 0.
    pub status: u8,
    /// Status qualifier (RFC 7144; SAM-5): more about the status. Zero at iSCSIProtocolLevel 1.
    pub status_qualifier: u16,
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
    pub(super) fn decode(bhs: &Bhs) -> Self {
        Self {
            residual: Residual::from_parts(bhs[1], u32_at(bhs, 44)),
            bidirectional_read_residual: Residual::from_parts(
                bhs[1] >> Residual::BIDIRECTIONAL_SHIFT,
                u32_at(bhs, 40),
            ),
            response: bhs[2],
            status: bhs[3],
            status_qualifier: u16_at(bhs, 8),
            initiator_task_tag: InitiatorTaskTag(u32_at(bhs, 16)),
            snack_tag: u32_at(bhs, 20),
            numbers: Numbers::decode(bhs),
            exp_data_sn: DataSn(u32_at(bhs, 36)),
        }
    }

    /// The header for `data_length` bytes of sense and response data.
    #[inline]
    #[must_use]
    pub fn encode(&self, data_length: usize) -> Bhs {
        let read_flags = self.bidirectional_read_residual.flags() << Residual::BIDIRECTIONAL_SHIFT;
        let mut bhs = header(Opcode::ScsiResponse, FINAL | read_flags | self.residual.flags(), data_length);
        put(&mut bhs, 2, [self.response, self.status]);
        put(&mut bhs, 8, self.status_qualifier.to_be_bytes());
        put(&mut bhs, 16, self.initiator_task_tag.0.to_be_bytes());
        put(&mut bhs, 20, self.snack_tag.to_be_bytes());
        self.numbers.put(&mut bhs);
        put(&mut bhs, 36, self.exp_data_sn.0.to_be_bytes());
        put(&mut bhs, 40, self.bidirectional_read_residual.count().to_be_bytes());
        put(&mut bhs, 44, self.residual.count().to_be_bytes());
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
    pub(super) fn decode(bhs: &Bhs) -> Self {
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
    #[inline]
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
    pub(super) fn decode(bhs: &Bhs) -> Self {
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
