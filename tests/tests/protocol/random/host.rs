//! One session of the wild commands: what it has sent, what may have become of it, and what its blocks may hold.

mod losses;

use std::collections::{HashMap, HashSet};

use lunette_tests::in_process::InProcess;
use lunette_tests::initiator::LoginOptions;
use lunette_tests::random::Random;
use lunette_tests::raw::{BLOCK_BYTES, Raw, read, write};
use lunette_wire::frame::Digests;
use lunette_wire::initiator::{
    LogoutReason, NopOut, ScsiCommand, TaskAttribute, TaskManagementFunction as Function,
};
use lunette_wire::target::RejectReason;
use lunette_wire::{InitiatorPdu, InitiatorTaskTag, TargetPdu, TargetTransferTag};

use crate::allegiance::{ACA_ACTIVE, BUSY};
use crate::{CHECK_CONDITION, COMPLETE};

/// Blocks of one session on each unit.
pub(super) const BLOCKS: u64 = 64;
pub(super) const UNITS: u8 = 2;
/// Its failed commands abort those of their own session.
const QUEUE_ERROR_UNIT: u8 = 0;
const NACA: u8 = 4;
/// A command moves so many blocks at most.
const LENGTH_MAX: u64 = 16;
/// FirstBurstLength: what of its data a command may bring unasked.
const FIRST_BURST_BYTES: usize = 1024;
/// Response "task does not exist" (11.6.1): its answer was on its way.
const NO_SUCH_TASK: u8 = 1;
/// What a connection may take: reads come in many PDUs, or in one.
const SEGMENTS: [(&str, &str); 2] =
    [("MaxRecvDataSegmentLength", "512"), ("MaxRecvDataSegmentLength", "262144")];

/// What a block may hold: its last settled content first, then what later writes may have left, whose end is not known.
type Block = Vec<[u8; BLOCK_BYTES]>;

/// A command whose end has not come.
struct Open {
    command: ScsiCommand,
    lun: u8,
    lba: u64,
    /// What it writes; empty for a read.
    data: Vec<u8>,
    /// What a read has brought, in how many PDUs.
    got: Vec<u8>,
    got_pdus: u32,
    /// As much of that in bytes and PDUs as the target knows.
    acknowledged: (usize, u32),
    /// Another of its session and unit has failed: only who asks hears whether it was aborted for that.
    is_doubtful: bool,
}

impl Open {
    fn new(command: ScsiCommand, lun: u8, lba: u64, data: Vec<u8>) -> Open {
        let got = Vec::new();
        Open { command, lun, lba, data, got, got_pdus: 0, acknowledged: (0, 0), is_doubtful: false }
    }
}

/// See the module's documentation.
pub(super) struct Host {
    port: u8,
    pub(super) raw: Raw,
    /// The CID of its connection.
    cid: u16,
    /// ErrorRecoveryLevel. At 2 its connections may be lost.
    level: u8,
    /// InitialR2T and ImmediateData.
    unasked: (bool, bool),
    /// Those of its connection.
    digests: Digests,
    /// Data-Out PDUs that it has spoilt, and of which it has not heard.
    spoilt: usize,
    rng: Random,
    /// What it sends does not arrive.
    is_cut_off: bool,
    open: HashMap<InitiatorTaskTag, Open>,
    /// Requests of CLEAR ACA.
    clearing: HashSet<InitiatorTaskTag>,
    /// By unit and block.
    blocks: Vec<Vec<Block>>,
}

impl Host {
    pub(super) fn new(target: &InProcess, port: u8, rng: &mut Random) -> Host {
        let unit = || (0..BLOCKS).map(|_| vec![[0; BLOCK_BYTES]]).collect();
        let (level, digests) = (Host::any_level(rng), any_digests(rng));
        let unasked = (rng.below(2) == 0, rng.below(2) == 0);
        Host {
            port,
            raw: Host::login(target, port, (level, digests, unasked), rng),
            cid: 0,
            level,
            unasked,
            digests,
            spoilt: 0,
            rng: Random::new(rng.next()),
            is_cut_off: false,
            open: HashMap::new(),
            clearing: HashSet::new(),
            blocks: (0..UNITS).map(|_| unit()).collect(),
        }
    }

    /// Half of the sessions can lose connections.
    fn any_level(rng: &mut Random) -> u8 {
        [0, 1, 2, 2][rng.below(4) as usize]
    }

    fn login(
        target: &InProcess,
        port: u8,
        (level, digests, (initial_r2t, immediate_data)): (u8, Digests, (bool, bool)),
        rng: &mut Random,
    ) -> Raw {
        let yes_or_no = |value| if value { "Yes" } else { "No" };
        let keys = [
            ("ErrorRecoveryLevel", ["0", "1", "2"][usize::from(level)]),
            ("MaxConnections", "2"),
            ("DefaultTime2Wait", "0"),
            ("DefaultTime2Retain", "3600"),
            SEGMENTS[rng.below(2) as usize],
            ("InitialR2T", yes_or_no(initial_r2t)),
            ("ImmediateData", yes_or_no(immediate_data)),
            ("FirstBurstLength", &FIRST_BURST_BYTES.to_string()),
            ("MaxBurstLength", ["2048", "65536"][rng.below(2) as usize]),
            ("MaxOutstandingR2T", ["1", "4"][rng.below(2) as usize]),
        ];
        let options = LoginOptions { digests, ..target.options_with(port, &keys) };
        let mut raw = Raw::login(target.portal(), &options).expect("a login");
        (0..UNITS).for_each(|lun| settle_attentions(&mut raw, lun));
        raw
    }

    pub(super) fn submit(&mut self, rng: &mut Random) {
        let lun = rng.below(UNITS.into()) as u8;
        let start = rng.below(BLOCKS);
        let blocks = 1 + rng.below(LENGTH_MAX.min(BLOCKS - start));
        // Two commands of one session on one block would have no order.
        let meets = |open: &Open| {
            let end = open.lba + u64::from(open.command.expected_data_transfer_length) / BLOCK_BYTES as u64;
            open.lun == lun && open.lba < start + blocks && start < end
        };
        if self.open.values().any(meets) {
            return;
        }
        let place = u64::from(self.port) * BLOCKS + start;
        let attribute = match rng.below(8) {
            0 => TaskAttribute::Ordered,
            1 => TaskAttribute::HeadOfQueue,
            _ => TaskAttribute::Simple,
        };
        let (command, data) = if rng.below(2) == 0 {
            let data: Vec<u8> = (0..blocks).flat_map(|_| [rng.next() as u8; BLOCK_BYTES]).collect();
            (write(lun, place, data.len()), data)
        } else {
            (read(lun, place, blocks as u32), Vec::new())
        };
        let mut command = self.raw.number(&ScsiCommand { attribute, ..command });
        command.cdb[15] = [NACA, 0, 0, 0][rng.below(4) as usize];
        let tag = command.initiator_task_tag;
        self.open.insert(tag, Open::new(command, lun, start, data));
        if !self.is_cut_off {
            self.send(tag);
        }
    }

    /// Sends a command, with some or none of the data that may come unasked (4.2.5.2): in its own PDU, behind it, or both.
    fn send(&mut self, tag: InitiatorTaskTag) {
        let (initial_r2t, immediate_data) = self.unasked;
        let open = &self.open[&tag];
        let unasked = open.data.len().min(FIRST_BURST_BYTES);
        let immediate = if immediate_data { self.rng.below(1 + unasked as u64) as usize & !3 } else { 0 };
        let follows = !initial_r2t && immediate < unasked && self.rng.below(2) == 0;
        let command =
            ScsiCommand { is_final: !follows, exp_stat_sn: self.raw.acknowledged(), ..open.command };
        self.raw.send(&InitiatorPdu::ScsiCommand(command), &open.data[..immediate]).expect("sent");
        if follows {
            let rest = &open.data[immediate..unasked];
            self.raw.sequence((tag, TargetTransferTag::RESERVED), immediate, rest, 512).expect("sent");
        }
    }

    /// Reads all its blocks of a unit; nothing else is open.
    pub(super) fn read_back(&mut self, lun: u8) {
        for lba in (0..BLOCKS).step_by(LENGTH_MAX as usize) {
            let place = u64::from(self.port) * BLOCKS + lba;
            let command = self.raw.number(&read(lun, place, LENGTH_MAX as u32));
            self.raw.send(&InitiatorPdu::ScsiCommand(command), &[]).expect("sent");
            self.open.insert(command.initiator_task_tag, Open::new(command, lun, lba, Vec::new()));
            self.finish();
        }
    }

    fn block(&mut self, lun: u8, lba: u64) -> &mut Block {
        &mut self.blocks[usize::from(lun)][lba as usize]
    }

    /// A command has ended, or will never be heard of again.
    fn ended(&mut self, tag: InitiatorTaskTag, is_good: bool) {
        let Some(open) = self.open.remove(&tag) else { panic!("an answer to nothing: {tag:?}") };
        let length = open.command.expected_data_transfer_length as usize;
        assert!(
            !is_good || open.data.len().max(open.got.len()) == length,
            "a short answer without a residual"
        );
        let bytes = if open.command.write { &open.data } else { &open.got };
        for (index, bytes) in bytes.chunks_exact(BLOCK_BYTES).enumerate() {
            let block = self.block(open.lun, open.lba + index as u64);
            let bytes: [u8; BLOCK_BYTES] = bytes.try_into().expect("a block");
            match (open.command.write, is_good) {
                (true, true) => *block = vec![bytes],
                (true, false) => block.push(bytes),
                (false, true) => {
                    assert!(block.contains(&bytes), "nobody wrote that");
                    *block = vec![bytes];
                }
                (false, false) => {}
            }
        }
    }

    /// All that is open will never be heard of again.
    fn forget(&mut self) {
        let open: Vec<_> = self.open.keys().copied().collect();
        open.into_iter().for_each(|tag| self.ended(tag, false));
        self.clearing.clear();
    }

    /// A command has failed, or may have before it was aborted: others of its session may be gone, or kept out.
    pub(super) fn may_have_failed(&mut self, lun: u8) {
        let open = self.open.values_mut().filter(|open| open.lun == lun && lun == QUEUE_ERROR_UNIT);
        open.for_each(|open| open.is_doubtful = true);
        self.clearing.insert(self.raw.manage(Function::ClearAca, lun).expect("sent"));
    }

    /// Takes one PDU; answers R2Ts. `Some` for what is no part of a command.
    fn take(&mut self) -> Option<TargetPdu> {
        let (pdu, data) = self.raw.receive().expect("a PDU");
        match pdu {
            TargetPdu::ReadyToTransfer(r2t) => {
                let open = self.open.get(&r2t.initiator_task_tag).expect("an R2T of an open command");
                if self.digests.data && self.rng.below(4) == 0 {
                    self.spoilt += 1;
                    self.raw.answer_r2t_badly(&r2t, &open.data, 1024).expect("sent");
                } else {
                    self.raw.answer_r2t(&r2t, &open.data, 1024).expect("sent");
                }
            }
            TargetPdu::ScsiDataIn(pdu) => {
                let open = self.open.get_mut(&pdu.initiator_task_tag).expect("data of an open command");
                assert_eq!((pdu.buffer_offset as usize, pdu.data_sn.0), (open.got.len(), open.got_pdus));
                open.got.extend(data);
                open.got_pdus += 1;
                if pdu.status.is_some() {
                    self.ended(pdu.initiator_task_tag, true);
                }
            }
            TargetPdu::ScsiResponse(pdu) => {
                match pdu.status {
                    CHECK_CONDITION => self.may_have_failed(self.open[&pdu.initiator_task_tag].lun),
                    other => assert!(matches!(other, 0 | BUSY | ACA_ACTIVE), "{pdu:?}"),
                }
                self.ended(pdu.initiator_task_tag, pdu.status == 0);
            }
            TargetPdu::TaskManagementResponse(pdu) if self.clearing.remove(&pdu.initiator_task_tag) => {
                assert_eq!(pdu.response, COMPLETE);
            }
            // At level 2 the target asks for what it may forget.
            TargetPdu::NopIn(pdu) if pdu.target_transfer_tag != TargetTransferTag::RESERVED => {
                let nop = NopOut {
                    immediate: true,
                    lun: pdu.lun,
                    initiator_task_tag: InitiatorTaskTag::RESERVED,
                    target_transfer_tag: pdu.target_transfer_tag,
                    cmd_sn: self.raw.cmd_sn,
                    exp_stat_sn: self.raw.exp_stat_sn,
                };
                self.raw.send(&InitiatorPdu::NopOut(nop), &[]).expect("sent");
            }
            // Above level 0 an R2T for what was lost follows, else the end of the command (7.8).
            TargetPdu::Reject(pdu)
                if pdu.reason == RejectReason::DataDigestError as u8 && self.spoilt > 0 =>
            {
                self.spoilt -= 1;
            }
            TargetPdu::Reject(pdu) => panic!("reason {}: {data:02x?}", pdu.reason),
            other => return Some(other),
        }
        None
    }

    /// Takes what comes until a ping is answered: all that was sent before has been taken in.
    pub(super) fn reach(&mut self) {
        let tag = self.raw.ping(b"here").expect("sent");
        loop {
            match self.take() {
                Some(TargetPdu::NopIn(pdu)) if pdu.initiator_task_tag == tag => return,
                None => {}
                Some(other) => panic!("{other:?}"),
            }
        }
    }

    /// Nothing is open that surely has an end.
    fn is_settled(&self) -> bool {
        self.clearing.is_empty() && self.open.values().all(|open| open.is_doubtful)
    }

    pub(super) fn finish(&mut self) {
        while !self.is_settled() {
            assert_eq!(self.take(), None);
        }
        if let Some(&doubtful) = self.open.keys().next() {
            self.abort_task(doubtful);
            self.finish();
        }
    }

    pub(super) fn abort(&mut self, rng: &mut Random) {
        let mut open: Vec<_> = self.open.keys().copied().collect();
        open.sort_unstable_by_key(|tag| tag.0);
        if open.is_empty() {
            return;
        }
        self.abort_task(open[rng.below(open.len() as u64) as usize]);
    }

    fn abort_task(&mut self, tag: InitiatorTaskTag) {
        let Some(open) = self.open.get(&tag) else { return };
        let (lun, cmd_sn) = (open.lun, open.command.cmd_sn);
        let request = self.raw.manage_task(Function::AbortTask, lun, tag, cmd_sn).expect("sent");
        match self.managed(request) {
            COMPLETE => self.may_have_failed(lun),
            NO_SUCH_TASK => {
                // What has aborted it may yet be told.
                assert!(lun == QUEUE_ERROR_UNIT || !self.open.contains_key(&tag), "it was answered");
            }
            other => panic!("response {other}"),
        }
        if self.open.contains_key(&tag) {
            self.ended(tag, false);
        }
    }

    /// The tasks on a unit have been ended by a function; none was answered since.
    pub(super) fn aborted_on(&mut self, lun: u8) {
        let gone: Vec<_> =
            self.open.iter().filter(|(_, open)| open.lun == lun).map(|(&tag, _)| tag).collect();
        gone.into_iter().for_each(|tag| self.ended(tag, false));
    }

    /// Its session ends in some way, and it logs in again: whatever was not answered has ended by then.
    pub(super) fn come_again(&mut self, target: &InProcess, rng: &mut Random) {
        match rng.below(3) {
            0 => self.log_out(),
            1 => self.cut(),
            // The new session replaces one that is alive (6.3.5).
            _ => {}
        }
        let (level, digests) = (Host::any_level(rng), any_digests(rng));
        let unasked = (rng.below(2) == 0, rng.below(2) == 0);
        let new = Host::login(target, self.port, (level, digests, unasked), rng);
        (self.raw, self.cid, self.level, self.unasked) = (new, 0, level, unasked);
        (self.digests, self.spoilt) = (digests, 0);
        self.forget();
    }

    /// Its connection breaks, by itself or because the target finds a header whose digest is wrong (7.8).
    fn cut(&mut self) {
        if self.digests.header && self.rng.below(2) == 0 {
            let nop = InitiatorPdu::NopOut(NopOut::default());
            let mut bytes = self.raw.connection().encode(&nop, &[]);
            *bytes.last_mut().expect("a digest") ^= 1;
            self.raw.connection().send_bytes(&bytes).expect("sent");
        } else {
            self.raw.connection().shut().expect("a connection");
        }
    }

    /// Ends its session.
    pub(super) fn log_out(&mut self) {
        let request = self.raw.log_out(LogoutReason::CloseSession, 0).expect("sent");
        loop {
            // R2Ts are of no use any more: nothing may come behind a logout (11.14).
            match self.raw.receive().expect("a PDU") {
                (TargetPdu::LogoutResponse(pdu), _) if pdu.initiator_task_tag == request => {
                    return assert_eq!(pdu.response, 0);
                }
                (
                    TargetPdu::NopIn(_)
                    | TargetPdu::ScsiDataIn(_)
                    | TargetPdu::ScsiResponse(_)
                    | TargetPdu::ReadyToTransfer(_)
                    | TargetPdu::TaskManagementResponse(_)
                    | TargetPdu::Reject(_),
                    _,
                ) => {}
                (other, _) => panic!("{other:?}"),
            }
        }
    }

    pub(super) fn managed(&mut self, request: InitiatorTaskTag) -> u8 {
        loop {
            match self.take() {
                Some(TargetPdu::TaskManagementResponse(pdu)) if pdu.initiator_task_tag == request => {
                    return pdu.response;
                }
                None => {}
                Some(other) => panic!("{other:?}"),
            }
        }
    }
}

/// Digests of one connection.
fn any_digests(rng: &mut Random) -> Digests {
    Digests { header: rng.below(2) == 0, data: rng.below(2) == 0 }
}

/// TEST UNIT READY until nothing is left to be told.
pub(super) fn settle_attentions(raw: &mut Raw, lun: u8) {
    const ATTENTIONS_MAX: usize = 8;
    let is_ready = |raw: &mut Raw| loop {
        match raw.test_unit_ready(lun).expect("an answer").status {
            // Whoever keeps others out hears of it, and clears that.
            BUSY => {}
            status => return status == 0,
        }
    };
    assert!((0..ATTENTIONS_MAX).any(|_| is_ready(raw)), "no end of unit attentions");
}
