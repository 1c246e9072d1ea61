//! An initiator that works at ErrorRecoveryLevel 2 over wires that lose things: it looks for what is missing whenever
//! nothing moves, asks for it by SNACK, and takes the tasks of broken connections to others.
//!
//! It checks less of each PDU than `initiator` does, which speaks over wires that lose nothing.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use lunette_iscsi::parameters::TargetLimits;
use lunette_iscsi::session::SessionSettings;
use lunette_wire::frame::Digests;
use lunette_wire::initiator::{
    LoginRequest, LoginStage, LogoutReason, LogoutRequest, NopOut, ScsiCommand, ScsiDataOut, SnackRequest,
    TaskManagementFunction, TaskManagementRequest,
};
use lunette_wire::target::{Numbers, RejectReason};
use lunette_wire::text::push;
use lunette_wire::{
    Cid, CmdSn, DataSn, InitiatorPdu, InitiatorTaskTag, LunField, Opcode, StatSn, TargetPdu,
    TargetTransferTag, Tsih,
};

use super::frame::{decode, encode};
use super::initiator::cdb;
use super::target::{READ_10, TARGET_NAME, Target, UNIT, WRITE_10};
use super::{BLOCK, Rng};
use crate::recovery::Faults;

const DIGESTS: Digests = Digests { header: false, data: true };
const SEGMENT: u32 = 1024;
const FIRST_BURST: u32 = 2048;
const SLOT_BLOCKS: u32 = 24;
const SLOTS: u32 = 16;
const DATA_OR_R2T: u8 = 0;
const STATUS: u8 = 1;

#[derive(Debug)]
struct Task {
    command: ScsiCommand,
    slot: u32,
    /// The place of its connection, which may be gone.
    link: usize,
    /// That connection was removed for recovery, and nobody has asked for the task since.
    waits: bool,
    /// What a write sends, or a read has to bring.
    data: Vec<u8>,
    /// DataSNs that came; their number, once the status has come.
    came: BTreeSet<u32>,
    count: Option<u32>,
    /// The next R2TSN.
    next_r2t_sn: u32,
}

impl Task {
    fn first_missing(&self) -> u32 {
        (0..).find(|data_sn| !self.came.contains(data_sn)).expect("fewer than all numbers")
    }

    fn is_whole(&self) -> bool {
        self.count.is_some_and(|count| self.first_missing() >= count)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Request {
    Login,
    Ping,
    /// Removes the connection at this place for recovery.
    Remove(usize),
    Reassign(u32),
}

#[derive(Debug)]
struct Link {
    wire: usize,
    cid: Cid,
    is_up: bool,
    /// It broke, and has not been removed for recovery.
    is_lost: bool,
    exp_stat_sn: StatSn,
    /// Statuses that came and are not acknowledged, with the task that each ends.
    statuses: BTreeMap<u32, Option<u32>>,
    outbound: VecDeque<(InitiatorPdu, Vec<u8>)>,
    requests: BTreeMap<u32, Request>,
}

pub(crate) struct Recovering {
    target: Target,
    rng: Rng,
    now: Duration,
    depth: u16,
    segment_out: u32,
    connections: u16,
    unsolicited: bool,
    tsih: Tsih,
    links: Vec<Link>,
    cmd_sn: CmdSn,
    exp_cmd_sn: CmdSn,
    max_cmd_sn: CmdSn,
    next_tag: u32,
    tasks: BTreeMap<u32, Task>,
    slots: Vec<(bool, Vec<u8>)>,
    /// Commands that were answered.
    answered: u32,
}

impl Recovering {
    pub(crate) fn new(seed: u64, limits: TargetLimits, settings: SessionSettings, connections: u16) -> Self {
        let mut rng = Rng(seed);
        let cmd_sn = CmdSn(u32::MAX - rng.below(8));
        let unsolicited = rng.one_in(2);
        let mut world = Self {
            target: Target::new(limits, settings),
            rng,
            now: Duration::from_secs(1000),
            depth: settings.window_depth,
            segment_out: limits.max_recv_data_segment_length & !3,
            connections,
            unsolicited,
            tsih: Tsih(0),
            links: Vec::new(),
            cmd_sn,
            exp_cmd_sn: cmd_sn,
            max_cmd_sn: cmd_sn,
            next_tag: 0,
            tasks: BTreeMap::new(),
            slots: vec![(false, vec![0; (SLOT_BLOCKS * BLOCK) as usize]); SLOTS as usize],
            answered: 0,
        };
        for cid in 0..connections {
            world.log_in(Cid(cid));
            world.settle();
        }
        world
    }

    /// Begins a login, of a new connection or in the place of a broken one.
    fn log_in(&mut self, cid: Cid) {
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

    /// So many moves, with faults.
    pub(crate) fn go(&mut self, moves: u32, faults: Faults) {
        for _ in 0..moves {
            if self.rng.one_in(faults.broken) {
                self.break_one();
            }
            match self.rng.below(8) {
                0 => self.submit(),
                1 => self.work(),
                2..5 => drop(self.send(faults.lost)),
                _ => drop(self.receive(faults.lost)),
            }
            if self.rng.one_in(30) {
                self.look_for_the_lost();
            }
        }
    }

    /// Without further faults everything ends, and nothing is left.
    pub(crate) fn finish(&mut self) {
        for _ in 0..100 {
            self.settle();
            if self.tasks.is_empty()
                && self.links.iter().all(|link| !link.is_lost && link.requests.is_empty())
            {
                break;
            }
            // Time passes: the target looks for R2Ts without an answer.
            for _ in 0..2 {
                self.now += Duration::from_secs(31);
                self.target.tick(self.now);
            }
            self.look_for_the_lost();
        }
        assert!(self.tasks.is_empty(), "without an answer: {:?}", self.tasks.keys());
        if self.up().is_empty() {
            self.log_in(Cid(0));
            self.settle();
        }
        // Fetches the numbers as they are now, and acknowledges the last statuses.
        for _ in 0..2 {
            for link in self.up() {
                let tag = self.tag();
                self.ask(link, tag, Request::Ping);
            }
            self.settle();
        }
        assert_eq!(self.exp_cmd_sn, self.cmd_sn, "a CmdSN is missing at the target");
        assert_eq!(self.max_cmd_sn.since(self.cmd_sn) + 1, u32::from(self.depth), "the window has leaked");
        let link = &self.links[self.up()[0]];
        self.target.assert_nothing_kept(link.wire);
        assert!(self.answered > 0 || self.cmd_sn == self.exp_cmd_sn);
    }

    fn settle(&mut self) {
        loop {
            let mut moved = false;
            while self.send(u32::MAX) || self.receive(u32::MAX) {
                moved = true;
            }
            if self.target.operations() > 0 {
                self.work();
            } else if !moved {
                return;
            }
        }
    }

    fn work(&mut self) {
        let waiting = self.target.operations() as u32;
        if waiting > 0 {
            let pick = self.rng.below(waiting) as usize;
            self.target.work(pick);
        }
    }

    fn up(&self) -> Vec<usize> {
        (0..self.links.len()).filter(|&at| self.links[at].is_up).collect()
    }

    fn pick(&mut self) -> Option<usize> {
        let up = self.up();
        if up.is_empty() { None } else { Some(up[self.rng.below(up.len() as u32) as usize]) }
    }

    fn tag(&mut self) -> u32 {
        self.next_tag += 1;
        self.next_tag
    }

    fn submit(&mut self) {
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
    fn immediate(&self, length: u32) -> u32 {
        length.min(FIRST_BURST).min(self.segment_out)
    }

    /// Sends a command, for the first time or again (7.2.1).
    fn send_command(&mut self, tag: u32, link: usize) {
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

    fn send_data(&mut self, tag: u32, target_transfer_tag: TargetTransferTag, range: std::ops::Range<u32>) {
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

    fn ask(&mut self, link: usize, tag: u32, request: Request) {
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

    /// Lets a connection break, on both sides; what is on its wires is lost.
    fn break_one(&mut self) {
        let Some(at) = self.pick() else { return };
        let link = &mut self.links[at];
        (link.is_up, link.is_lost) = (false, true);
        link.outbound.clear();
        link.requests.clear();
        link.statuses.clear();
        let wire = link.wire;
        self.target.disconnect(wire);
    }

    /// Nothing moves, or not enough: asks for statuses and data that are missing, and for tasks whose connections are gone.
    fn look_for_the_lost(&mut self) {
        for at in self.up() {
            self.snack(at, STATUS, InitiatorTaskTag::RESERVED, (0, 0));
            let holes: Vec<(u32, u32)> = (self.tasks.iter())
                .filter(|(_, task)| {
                    task.link == at && !task.waits && task.count.is_some() && !task.is_whole()
                })
                .map(|(&tag, task)| (tag, task.first_missing()))
                .collect();
            for (tag, missing) in holes {
                self.snack(at, DATA_OR_R2T, InitiatorTaskTag(tag), (missing, 1));
            }
        }
        let lost: Vec<usize> = (0..self.links.len()).filter(|&at| self.links[at].is_lost).collect();
        for at in lost {
            let is_asked =
                self.links.iter().any(|link| link.requests.values().any(|of| *of == Request::Remove(at)));
            let cid = self.links[at].cid;
            let is_coming =
                self.links.iter().any(|link| link.requests.values().any(|of| *of == Request::Login));
            match self.pick() {
                Some(other) if !is_asked => {
                    let tag = self.tag();
                    self.ask(other, tag, Request::Remove(at));
                }
                None if !is_coming => self.log_in(cid),
                _ => {}
            }
        }
        let waiting: Vec<u32> =
            self.tasks.iter().filter(|(_, task)| task.waits).map(|(&tag, _)| tag).collect();
        for task in waiting {
            let Some(link) = self.pick() else { return };
            if self.tasks[&task].command.cmd_sn.precedes(self.exp_cmd_sn) {
                let tag = self.tag();
                self.ask(link, tag, Request::Reassign(task));
            } else {
                self.tasks.get_mut(&task).expect("it is open").waits = false;
                self.send_command(task, link);
            }
        }
    }

    fn snack(&mut self, at: usize, kind: u8, initiator_task_tag: InitiatorTaskTag, run: (u32, u32)) {
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
    fn send(&mut self, lost: u32) -> bool {
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

    /// Moves one PDU to the initiator; it may get lost, unless it belongs to a login.
    fn receive(&mut self, lost: u32) -> bool {
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
            TargetPdu::LoginResponse(pdu) => {
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
            TargetPdu::ScsiDataIn(pdu) => {
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
            TargetPdu::ScsiResponse(pdu) => {
                assert_eq!((pdu.response, pdu.status), (0, 0), "{pdu:?}");
                let tag = pdu.initiator_task_tag.0;
                if let Some(task) = self.tasks.get_mut(&tag).filter(|task| task.link == at) {
                    task.count = Some(pdu.exp_data_sn.0);
                }
                self.status(at, pdu.numbers, Some(tag));
            }
            TargetPdu::ReadyToTransfer(pdu) => {
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
            TargetPdu::Reject(pdu) => {
                let is_news = self.status(at, pdu.numbers, None);
                let tag = u32::from_be_bytes([data[16], data[17], data[18], data[19]]);
                let is_command = Opcode::from_byte(data[0]) == Some(Opcode::ScsiCommand);
                if is_news && is_command && self.tasks.get(&tag).is_some_and(|task| task.link == at) {
                    assert_eq!(pdu.reason, RejectReason::DataDigestError as u8);
                    self.send_command_alone(tag, at);
                }
            }
            TargetPdu::AsynchronousMessage(pdu) => {
                assert_eq!(pdu.event, 2);
                self.status(at, pdu.numbers, None);
            }
            TargetPdu::TextResponse(_) => panic!("nobody asked"),
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
