//! What the initiator sends: commands with their data as negotiated, requests, and PDUs that break rules.

use lunette_wire::initiator::{
    LoginRequest, NopOut, ScsiCommand, ScsiDataOut, TaskManagementFunction, TaskManagementRequest,
    TextRequest,
};
use lunette_wire::{Cid, CmdSn, DataSn, InitiatorPdu, InitiatorTaskTag, LunField, StatSn, TargetTransferTag};

use super::{Initiator, Kind, Outgoing, Request, Task};
use crate::double::BLOCK;
use crate::double::frame::encode;
use crate::double::target::{READ_10, TEST_UNIT_READY, UNIT, WRITE_10};

impl Initiator {
    /// The bytes of the next PDU on a connection.
    pub(crate) fn next_to_send(&mut self, link: usize) -> Option<Vec<u8>> {
        let outgoing = self.links[link].queue.pop_front()?;
        Some(self.leave(link, outgoing))
    }

    /// Queues a PDU on the present connection.
    fn queue(&mut self, pdu: InitiatorPdu, data: Vec<u8>) {
        self.links[self.on].queue.push_back(Outgoing::Pdu(pdu, data));
    }

    /// Queues a request that is not a SCSI command and is to be answered.
    pub(super) fn ask(
        &mut self,
        tag: InitiatorTaskTag,
        cmd_sn: Option<CmdSn>,
        kind: Kind,
        pdu: InitiatorPdu,
        data: Vec<u8>,
    ) {
        self.requests.insert(tag.0, Request { link: self.on, cmd_sn, kind });
        self.queue(pdu, data);
    }

    pub(super) fn exp_stat_sn(&self) -> StatSn {
        self.links[self.on].exp_stat_sn.unwrap_or_default()
    }

    /// The bytes of a PDU that leaves now; the last one for an R2T ends it.
    fn leave(&mut self, link: usize, outgoing: Outgoing) -> Vec<u8> {
        let (pdu, data) = match outgoing {
            Outgoing::Pdu(pdu, data) => (pdu, data),
            Outgoing::Raw(bytes) => return bytes,
        };
        if let InitiatorPdu::ScsiDataOut(out) = &pdu
            && out.is_final
            && out.target_transfer_tag != TargetTransferTag::RESERVED
            && let Some(task) = self.tasks.get_mut(&out.initiator_task_tag.0)
        {
            task.r2ts_open -= 1;
        }
        encode(&pdu.encode(data.len()), &data, self.links[link].connection.digests)
    }

    /// Queues a PDU as it is, without any check.
    pub(crate) fn send_raw(&mut self, pdu: InitiatorPdu, data: &[u8]) {
        let bytes = encode(&pdu.encode(data.len()), data, self.links[self.on].connection.digests);
        self.links[self.on].queue.push_back(Outgoing::Raw(bytes));
    }

    /// Flips a bit in the last PDU in the queue, `back` bytes from its end.
    pub(crate) fn spoil_last(&mut self, back: usize) {
        let last = self.links[self.on].queue.pop_back().expect("a PDU is queued");
        let mut bytes = self.leave(self.on, last);
        let at = bytes.len() - back;
        bytes[at] ^= 1;
        self.links[self.on].queue.push_back(Outgoing::Raw(bytes));
    }

    /// Queues a command with as much data as may go unsolicited. `expected` is its expected data transfer length.
    pub(crate) fn command(
        &mut self,
        cdb: [u8; 16],
        lun: LunField,
        expected: u32,
        out: Option<Vec<u8>>,
    ) -> u32 {
        self.pick_link();
        let tag = self.tag();
        let is_write = out.is_some();
        let out = out.unwrap_or_default();
        let (immediate, unsolicited) = self.unsolicited(&out);
        let command = ScsiCommand {
            is_final: unsolicited.is_empty(),
            read: !is_write && expected > 0,
            write: is_write,
            lun,
            initiator_task_tag: tag,
            expected_data_transfer_length: expected,
            cmd_sn: self.next_cmd_sn(),
            cdb,
            ..ScsiCommand::default()
        };
        let first = out[..immediate as usize].to_vec();
        self.queue(InitiatorPdu::ScsiCommand(command), first);
        self.tasks.insert(tag.0, Task::new(self.on, command, out, unsolicited.end));
        if !unsolicited.is_empty() {
            self.queue_data(tag, lun, TargetTransferTag::RESERVED, unsolicited);
        }
        tag.0
    }

    /// How many bytes go into the command PDU, and which ones follow it unasked (4.2.5.2, 13.10, 13.11).
    fn unsolicited(&mut self, out: &[u8]) -> (u32, std::ops::Range<u32>) {
        let first_burst = self.session.first_burst_length.min(out.len() as u32);
        let segment = self.links[self.on].connection.max_send_data_segment_length;
        let immediate = if self.session.immediate_data && self.manners.uses_immediate_data {
            first_burst.min(segment)
        } else {
            0
        };
        if self.session.initial_r2t || !self.manners.uses_unsolicited_data {
            return (immediate, immediate..immediate);
        }
        (immediate, immediate..first_burst)
    }

    pub(super) fn queue_data(
        &mut self,
        tag: InitiatorTaskTag,
        lun: LunField,
        target_transfer_tag: TargetTransferTag,
        range: std::ops::Range<u32>,
    ) {
        let link = self.tasks[&tag.0].link;
        let segment_max = self.links[link].connection.max_send_data_segment_length;
        let mut offset = range.start;
        let mut data_sn = DataSn(0);
        while offset < range.end {
            // Segments of any length, now and then.
            let most = (range.end - offset).min(segment_max);
            let length = if self.rng.one_in(4) { 1 + self.rng.below(most) } else { most };
            let pdu = ScsiDataOut {
                is_final: offset + length == range.end,
                lun,
                initiator_task_tag: tag,
                target_transfer_tag,
                exp_stat_sn: self.links[link].exp_stat_sn.unwrap_or_default(),
                data_sn,
                buffer_offset: offset,
            };
            let data = self.tasks[&tag.0].out[offset as usize..][..length as usize].to_vec();
            self.links[link].queue.push_back(Outgoing::Pdu(InitiatorPdu::ScsiDataOut(pdu), data));
            offset += length;
            data_sn = data_sn.next();
        }
    }

    pub(crate) fn write(&mut self, block: u32, data: Vec<u8>) -> u32 {
        let expected = data.len() as u32;
        self.command(cdb(WRITE_10, block, expected / BLOCK), UNIT, expected, Some(data))
    }

    pub(crate) fn read(&mut self, block: u32, blocks: u32) -> u32 {
        self.command(cdb(READ_10, block, blocks), UNIT, blocks * BLOCK, None)
    }

    pub(crate) fn test_unit_ready(&mut self) -> u32 {
        self.command(cdb(TEST_UNIT_READY, 0, 0), UNIT, 0, None)
    }

    /// Queues a ping; immediate ones take no number.
    pub(crate) fn ping(&mut self, immediate: bool, data: Vec<u8>) -> u32 {
        self.pick_link();
        let tag = self.tag();
        let cmd_sn = if immediate { self.cmd_sn } else { self.next_cmd_sn() };
        let pdu = NopOut {
            immediate,
            initiator_task_tag: tag,
            target_transfer_tag: TargetTransferTag::RESERVED,
            cmd_sn,
            ..NopOut::default()
        };
        let number = (!immediate).then_some(cmd_sn);
        self.ask(tag, number, Kind::Ping(data.clone()), InitiatorPdu::NopOut(pdu), data);
        tag.0
    }

    pub(crate) fn text(&mut self, text: &[u8]) -> u32 {
        let tag = self.tag();
        let pdu = TextRequest {
            immediate: true,
            is_final: true,
            initiator_task_tag: tag,
            target_transfer_tag: TargetTransferTag::RESERVED,
            cmd_sn: self.cmd_sn,
            ..TextRequest::default()
        };
        self.ask(tag, None, Kind::Text, InitiatorPdu::TextRequest(pdu), text.to_vec());
        tag.0
    }

    /// Makes up a write whose PDUs the test sends by itself.
    pub(crate) fn expect_write(&mut self, length: u32) -> u32 {
        let tag = self.tag();
        let command = ScsiCommand {
            write: true,
            lun: UNIT,
            expected_data_transfer_length: length,
            cmd_sn: self.cmd_sn,
            ..ScsiCommand::default()
        };
        self.tasks.insert(tag.0, Task::new(self.on, command, vec![0xee; length as usize], 0));
        tag.0
    }

    /// Makes up an empty ping that the test sends by itself.
    pub(crate) fn expect_ping(&mut self) -> u32 {
        let tag = self.tag();
        self.requests.insert(tag.0, Request { link: self.on, cmd_sn: None, kind: Kind::Ping(Vec::new()) });
        tag.0
    }

    /// The test has answered a task's R2T by itself.
    pub(crate) fn answered_by_hand(&mut self, tag: u32) {
        self.tasks.get_mut(&tag).expect("the task is open").r2ts_open -= 1;
    }

    /// The transfer tag of the last R2T that came.
    pub(crate) const fn last_r2t(&self) -> TargetTransferTag {
        self.last_r2t
    }

    /// Makes the next task's tag this one, which must be free.
    pub(crate) fn use_next_tag(&mut self, tag: u32) {
        self.next_tag = tag - 1;
    }

    /// Data under a transfer tag that has had its day.
    pub(crate) fn send_stale_data(&mut self, tag: u32, stale: TargetTransferTag, data: &[u8]) {
        let pdu = ScsiDataOut {
            is_final: true,
            lun: UNIT,
            initiator_task_tag: InitiatorTaskTag(tag),
            target_transfer_tag: stale,
            ..ScsiDataOut::default()
        };
        self.send_raw(InitiatorPdu::ScsiDataOut(pdu), data);
    }

    /// A second login where there may be none.
    pub(crate) fn log_in_again(&mut self) {
        let request = LoginRequest { cid: Cid(1), cmd_sn: self.cmd_sn, ..LoginRequest::default() };
        self.send_raw(InitiatorPdu::LoginRequest(request), b"");
    }

    pub(crate) fn abort(&mut self, task: u32) -> u32 {
        let command = self.tasks.get(&task).map(|task| &task.command);
        let (ref_cmd_sn, lun) = command.map_or((self.cmd_sn, UNIT), |of| (of.cmd_sn, of.lun));
        self.manage(TaskManagementFunction::AbortTask, lun, InitiatorTaskTag(task), ref_cmd_sn)
    }

    /// Queues an immediate function; it acts on the commands that were queued before it.
    pub(crate) fn manage(
        &mut self,
        function: TaskManagementFunction,
        lun: LunField,
        referenced_task_tag: InitiatorTaskTag,
        ref_cmd_sn: CmdSn,
    ) -> u32 {
        let affected: Vec<u32> = self
            .tasks
            .iter()
            .filter(|(tag, task)| match function {
                TaskManagementFunction::AbortTask => **tag == referenced_task_tag.0,
                TaskManagementFunction::TargetWarmReset => true,
                _ => task.command.lun == lun,
            })
            .map(|(tag, _)| *tag)
            .collect();
        if !self.manners.sends_for_aborted {
            self.forget_queued_data(&affected);
        }
        self.pick_link();
        let tag = self.tag();
        let pdu = TaskManagementRequest {
            immediate: true,
            function,
            lun,
            initiator_task_tag: tag,
            referenced_task_tag,
            cmd_sn: self.cmd_sn,
            exp_stat_sn: self.exp_stat_sn(),
            ref_cmd_sn,
            exp_data_sn: DataSn(0),
        };
        self.ask(tag, None, Kind::Management(affected), InitiatorPdu::TaskManagementRequest(pdu), Vec::new());
        tag.0
    }

    /// Answers to R2Ts of these tasks will not be sent. Unsolicited data still is: without it, that of later commands
    /// would be out of order (4.2.5.2).
    pub(super) fn forget_queued_data(&mut self, tags: &[u32]) {
        for link in &mut self.links {
            link.queue.retain(|outgoing| match outgoing {
                Outgoing::Pdu(InitiatorPdu::ScsiDataOut(pdu), _) => {
                    pdu.target_transfer_tag == TargetTransferTag::RESERVED
                        || !tags.contains(&pdu.initiator_task_tag.0)
                }
                _ => true,
            });
        }
    }

    /// A task termination (11.9.1): no more data for the unit on this connection, and the LUN comes back. When a function
    /// of its own ends the tasks, an initiator knows which ones: what it sent later may have overtaken the function on
    /// another connection and wants its data.
    pub(super) fn end_data(&mut self, at: usize, lun: LunField) {
        self.terminations += 1;
        let own: Vec<&Vec<u32>> = self
            .requests
            .values()
            .filter_map(|request| match &request.kind {
                Kind::Management(tags) => Some(tags),
                _ => None,
            })
            .collect();
        let affected: Vec<u32> = self
            .tasks
            .iter()
            .filter(|(_, task)| task.command.lun == lun && task.link == at)
            .map(|(tag, _)| *tag)
            .filter(|tag| own.is_empty() || own.iter().any(|tags| tags.contains(tag)))
            .collect();
        self.forget_queued_data(&affected);
        let link = &mut self.links[at];
        let answer = NopOut {
            immediate: true,
            lun,
            initiator_task_tag: InitiatorTaskTag::RESERVED,
            target_transfer_tag: TargetTransferTag::RESERVED,
            cmd_sn: self.cmd_sn,
            exp_stat_sn: link.exp_stat_sn.unwrap_or_default(),
        };
        link.queue.push_back(Outgoing::Pdu(InitiatorPdu::NopOut(answer), Vec::new()));
    }

    pub(crate) fn log_out(&mut self) -> u32 {
        self.log_out_of(None)
    }
}

/// A 10-byte read or write, or whatever has block and count at the same places.
pub(crate) fn cdb(operation: u8, block: u32, blocks: u32) -> [u8; 16] {
    let mut cdb = [0; 16];
    cdb[0] = operation;
    cdb[2..6].copy_from_slice(&block.to_be_bytes());
    cdb[7..9].copy_from_slice(&(blocks as u16).to_be_bytes());
    cdb
}
