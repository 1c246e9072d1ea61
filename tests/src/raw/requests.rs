//! What goes out: requests with the session's numbers filled in.

use anyhow::{Context, Result};
use lunette_wire::initiator::{
    LogoutReason, LogoutRequest, NopOut, ScsiCommand, ScsiDataOut, TaskManagementFunction,
    TaskManagementRequest, TextRequest,
};
use lunette_wire::target::ReadyToTransfer;
use lunette_wire::{Cid, CmdSn, DataSn, InitiatorPdu, InitiatorTaskTag, LunField, TargetTransferTag};

use super::{BLOCK_BYTES, Raw};
use crate::initiator::cdb;

impl Raw {
    /// Sends a command as [`Self::number`] numbers it, with immediate data.
    ///
    /// # Errors
    /// The connection broke.
    pub fn command(&mut self, command: &ScsiCommand, data: &[u8]) -> Result<InitiatorTaskTag> {
        let command = self.number(command);
        self.send(&InitiatorPdu::ScsiCommand(command), data)?;
        Ok(command.initiator_task_tag)
    }

    /// Sends a READ (16).
    ///
    /// # Errors
    /// The connection broke.
    pub fn read(&mut self, lun: u8, lba: u64, blocks: u32) -> Result<InitiatorTaskTag> {
        self.command(&read(lun, lba, blocks), &[])
    }

    /// Sends a WRITE (16) of whole blocks, all of it as immediate data.
    ///
    /// # Errors
    /// The connection broke.
    pub fn write(&mut self, lun: u8, lba: u64, data: &[u8]) -> Result<InitiatorTaskTag> {
        self.command(&write(lun, lba, data.len()), data)
    }

    /// Sends Data-Out PDUs that answer an R2T with the right part of `data`, in segments of at most `segment_max`.
    ///
    /// # Errors
    /// The connection broke; or the R2T asks for more than there is.
    pub fn answer_r2t(&mut self, r2t: &ReadyToTransfer, data: &[u8], segment_max: usize) -> Result<()> {
        let start = r2t.buffer_offset as usize;
        let wanted =
            data.get(start..start + r2t.desired_length as usize).context("an R2T beyond the data")?;
        let tags = (r2t.initiator_task_tag, r2t.target_transfer_tag);
        self.data_out(r2t.lun, tags, (start, wanted), segment_max)
    }

    /// As [`Self::answer_r2t`], on a connection with data digests, of which the first one is wrong.
    ///
    /// # Errors
    /// As there.
    pub fn answer_r2t_badly(&mut self, r2t: &ReadyToTransfer, data: &[u8], segment_max: usize) -> Result<()> {
        self.spoils_next = true;
        self.answer_r2t(r2t, data, segment_max)
    }

    /// Sends one sequence of Data-Out PDUs for unit 0.
    ///
    /// # Errors
    /// The connection broke.
    pub fn sequence(
        &mut self,
        tags: (InitiatorTaskTag, TargetTransferTag),
        start: usize,
        data: &[u8],
        segment_max: usize,
    ) -> Result<()> {
        self.data_out(lun_field(0), tags, (start, data), segment_max)
    }

    fn data_out(
        &mut self,
        lun: LunField,
        (initiator_task_tag, target_transfer_tag): (InitiatorTaskTag, TargetTransferTag),
        (start, data): (usize, &[u8]),
        segment_max: usize,
    ) -> Result<()> {
        for (index, chunk) in data.chunks(segment_max).enumerate() {
            let pdu = ScsiDataOut {
                is_final: (index + 1) * segment_max >= data.len(),
                lun,
                initiator_task_tag,
                target_transfer_tag,
                exp_stat_sn: self.acknowledged(),
                data_sn: DataSn(u32::try_from(index)?),
                buffer_offset: u32::try_from(start + index * segment_max)?,
            };
            let mut bytes = self.connection.encode(&InitiatorPdu::ScsiDataOut(pdu), chunk);
            if std::mem::take(&mut self.spoils_next) {
                bytes.last_mut().into_iter().for_each(|last| *last ^= 1);
            }
            self.connection.send_bytes(&bytes)?;
        }
        Ok(())
    }

    /// Sends an immediate task management request about a unit.
    ///
    /// # Errors
    /// The connection broke.
    pub fn manage(&mut self, function: TaskManagementFunction, lun: u8) -> Result<InitiatorTaskTag> {
        self.manage_task(function, lun, InitiatorTaskTag::RESERVED, CmdSn(0))
    }

    /// Sends an immediate task management request about a task.
    ///
    /// # Errors
    /// The connection broke.
    pub fn manage_task(
        &mut self,
        function: TaskManagementFunction,
        lun: u8,
        referenced_task_tag: InitiatorTaskTag,
        ref_cmd_sn: CmdSn,
    ) -> Result<InitiatorTaskTag> {
        let request = TaskManagementRequest {
            immediate: true,
            function,
            lun: lun_field(lun),
            initiator_task_tag: self.new_tag(),
            referenced_task_tag,
            cmd_sn: self.cmd_sn,
            exp_stat_sn: self.acknowledged(),
            ref_cmd_sn,
            exp_data_sn: DataSn(0),
        };
        self.send(&InitiatorPdu::TaskManagementRequest(request), &[])?;
        Ok(request.initiator_task_tag)
    }

    /// Sends an immediate ping.
    ///
    /// # Errors
    /// The connection broke.
    pub fn ping(&mut self, data: &[u8]) -> Result<InitiatorTaskTag> {
        let nop = NopOut {
            immediate: true,
            initiator_task_tag: self.new_tag(),
            target_transfer_tag: TargetTransferTag::RESERVED,
            cmd_sn: self.cmd_sn,
            exp_stat_sn: self.acknowledged(),
            ..NopOut::default()
        };
        self.send(&InitiatorPdu::NopOut(nop), data)?;
        Ok(nop.initiator_task_tag)
    }

    /// Acknowledges all that has come, by a NOP-Out that wants no answer; `lun` is that of a task termination (11.9.1).
    ///
    /// # Errors
    /// The connection broke.
    pub fn acknowledge(&mut self, lun: LunField) -> Result<()> {
        let nop = NopOut {
            immediate: true,
            lun,
            initiator_task_tag: InitiatorTaskTag::RESERVED,
            target_transfer_tag: TargetTransferTag::RESERVED,
            cmd_sn: self.cmd_sn,
            exp_stat_sn: self.exp_stat_sn,
        };
        self.send(&InitiatorPdu::NopOut(nop), &[])
    }

    /// Sends an immediate Text Request that is to be the last one of its exchange; `target_transfer_tag` is that of the answer
    /// that it goes on with, or the reserved one.
    ///
    /// # Errors
    /// The connection broke.
    pub fn text(&mut self, target_transfer_tag: TargetTransferTag, text: &[u8]) -> Result<InitiatorTaskTag> {
        let request = TextRequest {
            immediate: true,
            is_final: true,
            initiator_task_tag: self.new_tag(),
            target_transfer_tag,
            cmd_sn: self.cmd_sn,
            exp_stat_sn: self.acknowledged(),
            ..TextRequest::default()
        };
        self.send(&InitiatorPdu::TextRequest(request), text)?;
        Ok(request.initiator_task_tag)
    }

    /// Sends an immediate logout request.
    ///
    /// # Errors
    /// The connection broke.
    pub fn log_out(&mut self, reason: LogoutReason, cid: u16) -> Result<InitiatorTaskTag> {
        let request = LogoutRequest {
            immediate: true,
            reason,
            initiator_task_tag: self.new_tag(),
            cid: Cid(cid),
            cmd_sn: self.cmd_sn,
            exp_stat_sn: self.acknowledged(),
        };
        self.send(&InitiatorPdu::LogoutRequest(request), &[])?;
        Ok(request.initiator_task_tag)
    }
}

/// A command without data, TEST UNIT READY unless told otherwise.
#[must_use]
pub fn plain() -> ScsiCommand {
    ScsiCommand { is_final: true, ..ScsiCommand::default() }
}

/// READ (16), without numbers.
#[must_use]
pub fn read(lun: u8, lba: u64, blocks: u32) -> ScsiCommand {
    ScsiCommand {
        read: true,
        lun: lun_field(lun),
        expected_data_transfer_length: blocks * BLOCK_BYTES as u32,
        cdb: cdb::read(lba, blocks),
        ..plain()
    }
}

/// WRITE (16) of `length` bytes, which are whole blocks, without numbers.
#[must_use]
pub fn write(lun: u8, lba: u64, length: usize) -> ScsiCommand {
    ScsiCommand {
        write: true,
        lun: lun_field(lun),
        expected_data_transfer_length: length as u32,
        cdb: cdb::write(lba, (length / BLOCK_BYTES) as u32),
        ..plain()
    }
}

/// A single-level LUN with peripheral addressing (SAM-5, 4.7.7.2).
#[must_use]
pub fn lun_field(lun: u8) -> LunField {
    LunField([0, lun, 0, 0, 0, 0, 0, 0])
}
