//! An initiator that works at ErrorRecoveryLevel 2 over wires that lose things: it looks for what is missing whenever
//! nothing moves, asks for it by SNACK, and takes the tasks of broken connections to others.
//!
//! It checks less of each PDU than `initiator` does, which speaks over wires that lose nothing.

mod receive;
mod send;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use lunette_iscsi::parameters::TargetLimits;
use lunette_iscsi::session::SessionSettings;
use lunette_wire::frame::Digests;
use lunette_wire::initiator::ScsiCommand;
use lunette_wire::{Cid, CmdSn, InitiatorPdu, InitiatorTaskTag, StatSn, Tsih};

use super::target::Target;
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
}
