//! PDUs of SCSI commands: the command, its Data-Out, SNACK (RFC 7143, 11.3, 11.7, 11.16).

use super::{FINAL, header, is_immediate};
use crate::fields::{bit, bytes_at, put, u32_at};
use crate::{Bhs, CmdSn, DataSn, DecodeError, InitiatorTaskTag, LunField, Opcode, StatSn, TargetTransferTag};

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
    /// Command priority, 0 (none) or 1 (first) to 15 (RFC 7144; SAM-5). Reserved at iSCSIProtocolLevel 1.
    pub priority: u8,
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
    /// Decodes the header of a PDU with this opcode.
    ///
    /// # Errors
    /// [`DecodeError::Field`] for a reserved task attribute.
    #[inline]
    pub fn decode(bhs: &Bhs) -> Result<Self, DecodeError> {
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
            priority: bhs[2] >> 4,
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
        bhs[2] = self.priority << 4;
        put(&mut bhs, 8, self.lun.0);
        put(&mut bhs, 16, self.initiator_task_tag.0.to_be_bytes());
        put(&mut bhs, 20, self.expected_data_transfer_length.to_be_bytes());
        put(&mut bhs, 24, self.cmd_sn.0.to_be_bytes());
        put(&mut bhs, 28, self.exp_stat_sn.0.to_be_bytes());
        put(&mut bhs, 32, self.cdb);
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
    pub(super) fn decode(bhs: &Bhs) -> Self {
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
