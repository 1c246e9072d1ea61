//! What comes to the initiator: taken in any order, kept until it is whole, and acknowledged then (RFC 7143, 7.9).

use lunette_wire::frame::Digests;
use lunette_wire::target::{LoginResponse, Numbers, ReadyToTransfer, Reject, RejectReason, ScsiDataIn};
use lunette_wire::{InitiatorPdu, InitiatorTaskTag, Opcode, TargetPdu, TargetTransferTag};

use super::{DIGESTS, FIRST_BURST, Recovering, Request, SEGMENT, SLOT_BLOCKS};
use crate::double::BLOCK;
use crate::double::frame::decode;

impl Recovering {
    /// Moves one PDU to the initiator; it may get lost, unless it belongs to a login.
    pub(super) fn receive(&mut self, lost: u32) -> bool {
        let first = self.rng.below(self.links.len().max(1) as u32) as usize;
        for offset in 0..self.links.len() {
            let at = (first + offset) % self.links.len();
            let Some(bytes) = self.target.next_to_send(self.links[at].wire) else { continue };
            let is_login = Opcode::from_byte(bytes[0]) == Some(Opcode::LoginResponse);
            if !is_login && self.rng.one_in(lost) {
                return true;
            }
            let digests = if is_login { Digests::default() } else { DIGESTS };
            let received = decode(&bytes, digests, 1 << 16);
            let pdu = TargetPdu::decode(&received.bhs).expect("a target's PDU");
            self.take(at, &pdu, &received.data);
            return true;
        }
        false
    }

    fn take(&mut self, at: usize, pdu: &TargetPdu, data: &[u8]) {
        match pdu {
            TargetPdu::LoginResponse(pdu) => self.take_login(at, pdu),
            TargetPdu::ScsiDataIn(pdu) => self.take_data_in(at, pdu, data),
            TargetPdu::ScsiResponse(pdu) => {
                assert_eq!((pdu.response, pdu.status), (0, 0), "{pdu:?}");
                let tag = pdu.initiator_task_tag.0;
                if let Some(task) = self.tasks.get_mut(&tag).filter(|task| task.link == at) {
                    task.count = Some(pdu.exp_data_sn.0);
                }
                self.status(at, pdu.numbers, Some(tag));
            }
            TargetPdu::ReadyToTransfer(pdu) => self.take_r2t(at, pdu),
            TargetPdu::TaskManagementResponse(pdu) => {
                let request = self.links[at].requests.remove(&pdu.initiator_task_tag.0);
                if let Some(Request::Reassign(task)) = request {
                    assert_eq!(pdu.response, 0, "task {task} is lost");
                }
                self.status(at, pdu.numbers, None);
            }
            TargetPdu::LogoutResponse(pdu) => {
                self.status(at, pdu.numbers, None);
                let request = self.links[at].requests.remove(&pdu.initiator_task_tag.0);
                if let Some(Request::Remove(lost)) = request {
                    // 1: another request, whose answer went with its connection, has removed it.
                    assert!(pdu.response <= 1, "{pdu:?}");
                    self.removed(lost);
                }
            }
            TargetPdu::NopIn(pdu) if pdu.initiator_task_tag == InitiatorTaskTag::RESERVED => {
                self.count(pdu.numbers);
            }
            TargetPdu::NopIn(pdu) => {
                self.links[at].requests.remove(&pdu.initiator_task_tag.0);
                self.status(at, pdu.numbers, None);
            }
            TargetPdu::Reject(pdu) => self.take_reject(at, pdu, data),
            TargetPdu::AsynchronousMessage(pdu) => {
                assert_eq!(pdu.event, 2);
                self.status(at, pdu.numbers, None);
            }
            TargetPdu::TextResponse(_) => panic!("nobody asked"),
        }
    }

    fn take_login(&mut self, at: usize, pdu: &LoginResponse) {
        assert_eq!(pdu.status_class, 0, "refused: {:02x}", pdu.status_detail);
        self.tsih = pdu.tsih;
        let link = &mut self.links[at];
        (link.is_up, link.exp_stat_sn) = (true, pdu.numbers.stat_sn.next());
        link.requests.clear();
        self.count(pdu.numbers);
        // It takes the place of one that broke (6.3.4).
        let cid = self.links[at].cid;
        for old in 0..at {
            if self.links[old].cid == cid && self.links[old].is_lost {
                self.removed(old);
            }
        }
    }

    fn take_data_in(&mut self, at: usize, pdu: &ScsiDataIn, data: &[u8]) {
        self.count(pdu.numbers);
        let tag = pdu.initiator_task_tag.0;
        if let Some(task) = self.tasks.get_mut(&tag).filter(|task| task.link == at) {
            let range = pdu.buffer_offset as usize..pdu.buffer_offset as usize + data.len();
            assert_eq!(data, &task.data[range], "other data than was written");
            assert_eq!(pdu.buffer_offset, pdu.data_sn.0 * SEGMENT, "another cut");
            task.came.insert(pdu.data_sn.0);
            if pdu.status.is_some() {
                task.count = Some(pdu.data_sn.0 + 1);
            }
        }
        if let Some(status) = pdu.status {
            assert_eq!(status, 0);
            self.status(at, pdu.numbers, Some(tag));
        }
        self.acknowledge(at);
    }

    fn take_r2t(&mut self, at: usize, pdu: &ReadyToTransfer) {
        self.count(pdu.numbers);
        let tag = pdu.initiator_task_tag.0;
        let Some(task) = self.tasks.get_mut(&tag).filter(|task| task.link == at) else { return };
        // One that was lost on the way has been given up by the target, which never repeats a number.
        if pdu.r2t_sn.0 >= task.next_r2t_sn {
            task.next_r2t_sn = pdu.r2t_sn.0 + 1;
            let range = pdu.buffer_offset..pdu.buffer_offset + pdu.desired_length;
            self.send_data(tag, pdu.target_transfer_tag, range);
        }
    }

    fn take_reject(&mut self, at: usize, pdu: &Reject, data: &[u8]) {
        let is_news = self.status(at, pdu.numbers, None);
        let tag = u32::from_be_bytes([data[16], data[17], data[18], data[19]]);
        let is_command = Opcode::from_byte(data[0]) == Some(Opcode::ScsiCommand);
        if is_news && is_command && self.tasks.get(&tag).is_some_and(|task| task.link == at) {
            assert_eq!(pdu.reason, RejectReason::DataDigestError as u8);
            self.send_command_alone(tag, at);
        }
    }

    /// The command's PDU was rejected for its data: it goes out again; what followed it is on its way.
    fn send_command_alone(&mut self, tag: u32, link: usize) {
        let task = &self.tasks[&tag];
        let (command, length) = (task.command, task.data.len() as u32);
        let data = task.data[..self.immediate(length) as usize].to_vec();
        self.links[link].outbound.push_back((InitiatorPdu::ScsiCommand(command), data));
        if !command.is_final {
            self.send_data(tag, TargetTransferTag::RESERVED, self.immediate(length)..length.min(FIRST_BURST));
        }
    }

    fn count(&mut self, numbers: Numbers) {
        if self.exp_cmd_sn.precedes(numbers.exp_cmd_sn) {
            self.exp_cmd_sn = numbers.exp_cmd_sn;
        }
        if self.max_cmd_sn.precedes(numbers.max_cmd_sn) {
            self.max_cmd_sn = numbers.max_cmd_sn;
        }
    }

    /// Notes a status, and acknowledges as many as are there without a gap and whose data has come (7.9). False for one
    /// that came before.
    fn status(&mut self, at: usize, numbers: Numbers, task: Option<u32>) -> bool {
        self.count(numbers);
        let link = &mut self.links[at];
        let is_news =
            !numbers.stat_sn.precedes(link.exp_stat_sn) && !link.statuses.contains_key(&numbers.stat_sn.0);
        if is_news {
            link.statuses.insert(numbers.stat_sn.0, task);
        }
        self.acknowledge(at);
        is_news
    }

    fn acknowledge(&mut self, at: usize) {
        while let Some(&task) = self.links[at].statuses.get(&self.links[at].exp_stat_sn.0) {
            if let Some(tag) = task
                && let Some(open) = self.tasks.get(&tag).filter(|task| task.link == at)
            {
                if !open.is_whole() {
                    break;
                }
                self.conclude(tag);
            }
            let link = &mut self.links[at];
            link.statuses.remove(&link.exp_stat_sn.0);
            link.exp_stat_sn = link.exp_stat_sn.next();
        }
    }

    fn conclude(&mut self, tag: u32) {
        let task = self.tasks.remove(&tag).expect("it is open");
        let slot = &mut self.slots[task.slot as usize];
        slot.0 = false;
        if task.command.write {
            slot.1[..task.data.len()].copy_from_slice(&task.data);
            let start = (task.slot * SLOT_BLOCKS * BLOCK) as usize;
            assert_eq!(
                &self.target.disk()[start..start + slot.1.len()],
                &slot.1[..],
                "what was answered is there"
            );
        }
        self.answered += 1;
    }

    /// A broken connection is removed for recovery: its tasks can be had.
    fn removed(&mut self, at: usize) {
        self.links[at].is_lost = false;
        for task in self.tasks.values_mut().filter(|task| task.link == at) {
            task.waits = true;
        }
    }
}
