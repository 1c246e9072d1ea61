//! What a session under load sends: commands, their data, and data that an R2T asks for (RFC 7143, 11.3, 11.7, 11.8).

use anyhow::{Result, bail, ensure};
use lunette_wire::initiator::{ScsiCommand, ScsiDataOut};
use lunette_wire::target::ReadyToTransfer;
use lunette_wire::{DataSn, InitiatorTaskTag, LunField, TargetTransferTag};

use super::session::{Session, Shared, Task, Work};
use crate::login::Agreed;

const READ_16: u8 = 0x88;
const WRITE_16: u8 = 0x8a;
const SYNCHRONIZE_CACHE_10: u8 = 0x35;

/// A sequence of Data-Out: bytes `from` to `to` of a command's data.
struct Sequence {
    lun: LunField,
    target_transfer_tag: TargetTransferTag,
    from: u32,
    to: u32,
}

impl Session {
    /// Queues the command of a task, with what may be sent unasked.
    pub(super) fn command(&mut self, slot: u32, shared: &Shared) -> Result<()> {
        let exp_stat_sn = self.connection_of(slot).link.exp_stat_sn.0;
        let mut pdu = ScsiCommand {
            is_final: true,
            lun: self.lun,
            initiator_task_tag: InitiatorTaskTag(slot),
            cmd_sn: self.window.cmd_sn,
            exp_stat_sn,
            ..ScsiCommand::default()
        };
        self.window.cmd_sn = self.window.cmd_sn.next();
        self.in_flight += 1;
        let Work::Transfer(transfer) = self.tasks[slot as usize].work else {
            pdu.cdb[0] = SYNCHRONIZE_CACHE_10;
            self.connection_of(slot).push_head(&pdu.encode(0));
            return Ok(());
        };
        (pdu.read, pdu.write) = (transfer.is_read, !transfer.is_read);
        pdu.expected_data_transfer_length = transfer.bytes;
        pdu.cdb[0] = if transfer.is_read { READ_16 } else { WRITE_16 };
        pdu.cdb[2..10].copy_from_slice(&transfer.lba.to_be_bytes());
        pdu.cdb[10..14].copy_from_slice(&transfer.blocks.to_be_bytes());
        if transfer.is_read {
            self.connection_of(slot).push_head(&pdu.encode(0));
            return Ok(());
        }
        let Agreed { immediate_data, initial_r2t, first_burst_bytes, segment_max_bytes, .. } = self.agreed;
        let first_burst = first_burst_bytes.min(transfer.bytes);
        let immediate = if immediate_data { first_burst.min(segment_max_bytes) } else { 0 };
        let unsolicited = if initial_r2t { immediate } else { first_burst };
        pdu.is_final = unsolicited == immediate;
        self.connection_of(slot).push(&pdu.encode(immediate as usize), immediate, &shared.pattern)?;
        self.tasks[slot as usize].moved = immediate;
        if immediate < unsolicited {
            let rest = Sequence {
                lun: self.lun,
                target_transfer_tag: TargetTransferTag::RESERVED,
                from: immediate,
                to: unsolicited,
            };
            self.data_out(slot, &rest, &shared.pattern)?;
        }
        Ok(())
    }

    /// Queues what an R2T asks for (11.8).
    pub(super) fn solicited(&mut self, r2t: &ReadyToTransfer, pattern: &[u8]) -> Result<()> {
        let slot = r2t.initiator_task_tag.0;
        let Some(Task { work: Work::Transfer(transfer), moved, .. }) = self.tasks.get(slot as usize) else {
            bail!("an R2T for a task that does not exist")
        };
        let is_due = !transfer.is_read && r2t.buffer_offset == *moved && r2t.desired_length > 0;
        ensure!(is_due && r2t.desired_length <= transfer.bytes - *moved, "an R2T that was not due: {r2t:?}");
        let sequence = Sequence {
            lun: r2t.lun,
            target_transfer_tag: r2t.target_transfer_tag,
            from: r2t.buffer_offset,
            to: r2t.buffer_offset + r2t.desired_length,
        };
        self.data_out(slot, &sequence, pattern)
    }

    /// Queues a sequence of Data-Out PDUs (11.7).
    fn data_out(&mut self, slot: u32, sequence: &Sequence, pattern: &[u8]) -> Result<()> {
        let (mut offset, mut data_sn) = (sequence.from, DataSn(0));
        while offset < sequence.to {
            let length = self.agreed.segment_max_bytes.min(sequence.to - offset);
            let pdu = ScsiDataOut {
                is_final: offset + length == sequence.to,
                lun: sequence.lun,
                initiator_task_tag: InitiatorTaskTag(slot),
                target_transfer_tag: sequence.target_transfer_tag,
                exp_stat_sn: self.connection_of(slot).link.exp_stat_sn.0,
                data_sn,
                buffer_offset: offset,
            };
            self.connection_of(slot).push(&pdu.encode(length as usize), length, pattern)?;
            (offset, data_sn) = (offset + length, data_sn.next());
        }
        self.tasks[slot as usize].moved = sequence.to;
        Ok(())
    }
}
