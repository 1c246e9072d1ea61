//! What goes out: logins, commands with their data, and the requests that recovery is made of.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use lunette_wire::frame::Digests;
use lunette_wire::initiator::{
    LoginRequest, LoginStage, LogoutReason, LogoutRequest, NopOut, ScsiCommand, ScsiDataOut, SnackRequest,
    TaskManagementFunction, TaskManagementRequest,
};
use lunette_wire::text::push;
use lunette_wire::{
    Cid, CmdSn, DataSn, InitiatorPdu, InitiatorTaskTag, LunField, StatSn, TargetTransferTag, Tsih,
};

use super::{DIGESTS, FIRST_BURST, Link, Recovering, Request, SEGMENT, SLOT_BLOCKS, SLOTS, Task};
use crate::double::BLOCK;
use crate::double::frame::encode;
use crate::double::initiator::cdb;
use crate::double::target::{READ_10, TARGET_NAME, UNIT, WRITE_10};

impl Recovering {
    /// Begins a login, of a new connection or in the place of a broken one.
    pub(super) fn log_in(&mut self, cid: Cid) {
        let mut text = Vec::new();
        push(&mut text, "InitiatorName", "iqn.2026-11.io.lunette:recovering");
        push(&mut text, "TargetName", TARGET_NAME);
        if self.tsih == Tsih(0) {
            let (connections, initial) =
                (self.connections.to_string(), if self.unsolicited { "No" } else { "Yes" });
            for (key, value) in [
                ("ErrorRecoveryLevel", "2"),
                ("DefaultTime2Wait", "0"),
                ("DefaultTime2Retain", "3600"),
                ("MaxConnections", connections.as_str()),
                ("InitialR2T", initial),
                ("ImmediateData", "Yes"),
                ("MaxBurstLength", "4096"),
                ("FirstBurstLength", "2048"),
                ("MaxOutstandingR2T", "4"),
            ] {
                push(&mut text, key, value);
            }
        }
        push(&mut text, "MaxRecvDataSegmentLength", &SEGMENT.to_string());
        push(&mut text, "DataDigest", "CRC32C");
        let request = LoginRequest {
            transit: true,
            current_stage: LoginStage::Operational,
            next_stage: LoginStage::FullFeature,
            tsih: self.tsih,
            cid,
            cmd_sn: self.cmd_sn,
            isid: lunette_wire::Isid([0x80, 0, 0, 0, 0, 1]),
            ..LoginRequest::default()
        };
        let tag = request.initiator_task_tag.0;
        self.links.push(Link {
            wire: self.target.connect(),
            cid,
            is_up: false,
            is_lost: false,
            exp_stat_sn: StatSn(0),
            statuses: BTreeMap::new(),
            outbound: VecDeque::from([(InitiatorPdu::LoginRequest(request), text)]),
            requests: BTreeMap::from([(tag, Request::Login)]),
        });
    }

    pub(super) fn submit(&mut self) {
        let slot = self.rng.below(SLOTS);
        let Some(link) = self.pick() else { return };
        if self.slots[slot as usize].0 || self.max_cmd_sn.precedes(self.cmd_sn) {
            return;
        }
        let blocks = 1 + self.rng.below(SLOT_BLOCKS);
        let is_write = self.rng.one_in(2);
        let data = if is_write {
            self.rng.bytes(blocks * BLOCK)
        } else {
            self.slots[slot as usize].1[..(blocks * BLOCK) as usize].to_vec()
        };
        let length = data.len() as u32;
        let tag = self.tag();
        let command = ScsiCommand {
            is_final: !is_write || !self.unsolicited || self.immediate(length) == length.min(FIRST_BURST),
            read: !is_write,
            write: is_write,
            lun: UNIT,
            initiator_task_tag: InitiatorTaskTag(tag),
            expected_data_transfer_length: length,
            cmd_sn: self.cmd_sn,
            cdb: cdb(if is_write { WRITE_10 } else { READ_10 }, slot * SLOT_BLOCKS, blocks),
            ..ScsiCommand::default()
        };
        self.cmd_sn = self.cmd_sn.next();
        self.slots[slot as usize].0 = true;
        let task = Task {
            command,
            slot,
            link,
            waits: false,
            data,
            came: BTreeSet::new(),
            count: None,
            next_r2t_sn: 0,
        };
        self.tasks.insert(tag, task);
        self.send_command(tag, link);
    }

    /// Bytes of a write that go into its command's PDU.
    pub(super) fn immediate(&self, length: u32) -> u32 {
        length.min(FIRST_BURST).min(self.segment_out)
    }

    /// Sends a command, for the first time or again (7.2.1).
    pub(super) fn send_command(&mut self, tag: u32, link: usize) {
        let Some(task) = self.tasks.get_mut(&tag) else { return };
        task.link = link;
        task.next_r2t_sn = 0;
        let (command, length) = (task.command, task.data.len() as u32);
        let immediate = if command.write { self.immediate(length) } else { 0 };
        let data = self.tasks[&tag].data[..immediate as usize].to_vec();
        self.links[link].outbound.push_back((InitiatorPdu::ScsiCommand(command), data));
        if !command.is_final {
            self.send_data(tag, TargetTransferTag::RESERVED, immediate..length.min(FIRST_BURST));
        }
    }

    pub(super) fn send_data(
        &mut self,
        tag: u32,
        target_transfer_tag: TargetTransferTag,
        range: std::ops::Range<u32>,
    ) {
        let link = self.tasks[&tag].link;
        let (mut offset, mut data_sn) = (range.start, DataSn(0));
        while offset < range.end {
            let length = (range.end - offset).min(self.segment_out);
            let pdu = ScsiDataOut {
                is_final: offset + length == range.end,
                lun: UNIT,
                initiator_task_tag: InitiatorTaskTag(tag),
                target_transfer_tag,
                data_sn,
                buffer_offset: offset,
                ..ScsiDataOut::default()
            };
            let data = self.tasks[&tag].data[offset as usize..][..length as usize].to_vec();
            self.links[link].outbound.push_back((InitiatorPdu::ScsiDataOut(pdu), data));
            offset += length;
            data_sn = data_sn.next();
        }
    }

    pub(super) fn ask(&mut self, link: usize, tag: u32, request: Request) {
        let initiator_task_tag = InitiatorTaskTag(tag);
        let pdu = match request {
            Request::Login => return,
            Request::Ping => InitiatorPdu::NopOut(NopOut {
                immediate: true,
                initiator_task_tag,
                target_transfer_tag: TargetTransferTag::RESERVED,
                cmd_sn: self.cmd_sn,
                ..NopOut::default()
            }),
            Request::Remove(lost) => InitiatorPdu::LogoutRequest(LogoutRequest {
                immediate: true,
                reason: LogoutReason::RemoveConnectionForRecovery,
                initiator_task_tag,
                cid: self.links[lost].cid,
                cmd_sn: self.cmd_sn,
                // Of the connection that it closes (11.14.4).
                exp_stat_sn: self.links[lost].exp_stat_sn,
            }),
            Request::Reassign(task) => {
                let task_tag = InitiatorTaskTag(task);
                let task = self.tasks.get_mut(&task).expect("an open task");
                task.link = link;
                task.waits = false;
                let exp_data_sn = if task.command.write { task.next_r2t_sn } else { task.first_missing() };
                task.came.retain(|&data_sn| data_sn < exp_data_sn);
                task.count = None;
                InitiatorPdu::TaskManagementRequest(TaskManagementRequest {
                    immediate: true,
                    function: TaskManagementFunction::TaskReassign,
                    lun: LunField::default(),
                    initiator_task_tag,
                    referenced_task_tag: task_tag,
                    cmd_sn: self.cmd_sn,
                    exp_stat_sn: StatSn(0),
                    ref_cmd_sn: CmdSn(0),
                    exp_data_sn: DataSn(exp_data_sn),
                })
            }
        };
        self.links[link].requests.insert(tag, request);
        self.links[link].outbound.push_back((pdu, Vec::new()));
    }

    pub(super) fn snack(
        &mut self,
        at: usize,
        kind: u8,
        initiator_task_tag: InitiatorTaskTag,
        run: (u32, u32),
    ) {
        let pdu = SnackRequest {
            kind,
            initiator_task_tag,
            target_transfer_tag: TargetTransferTag::RESERVED,
            begin_run: run.0,
            run_length: run.1,
            ..SnackRequest::default()
        };
        self.links[at].outbound.push_back((InitiatorPdu::SnackRequest(pdu), Vec::new()));
    }

    /// Moves one PDU to the target; its data may be spoilt on the way, and solicited data may be lost.
    pub(super) fn send(&mut self, lost: u32) -> bool {
        let busy: Vec<usize> =
            (0..self.links.len()).filter(|&at| !self.links[at].outbound.is_empty()).collect();
        if busy.is_empty() {
            return false;
        }
        let at = busy[self.rng.below(busy.len() as u32) as usize];
        let link = &mut self.links[at];
        let (pdu, data) = link.outbound.pop_front().expect("it is busy");
        let digests = if link.is_up { DIGESTS } else { Digests::default() };
        let mut bhs = pdu.encode(data.len());
        let is_about_another = matches!(pdu, InitiatorPdu::LogoutRequest(_) | InitiatorPdu::LoginRequest(_));
        if !is_about_another {
            bhs[28..32].copy_from_slice(&link.exp_stat_sn.0.to_be_bytes());
        }
        let mut bytes = encode(&bhs, &data, digests);
        let wire = link.wire;
        if link.is_up && !data.is_empty() && self.rng.one_in(lost) {
            let is_solicited = matches!(&pdu, InitiatorPdu::ScsiDataOut(pdu)
                if pdu.target_transfer_tag != TargetTransferTag::RESERVED);
            if is_solicited && self.rng.one_in(2) {
                return true;
            }
            *bytes.last_mut().expect("a digest") ^= 1;
        }
        self.target.receive(self.now, wire, bytes);
        true
    }
}
