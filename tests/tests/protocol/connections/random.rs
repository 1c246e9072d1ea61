//! Any seed: sessions of several connections each write and read over all of them, with data in the command, behind it and
//! on request, while tasks are aborted one by one and all together. Every task has its end, the data is what it can be, no
//! number is missing and no buffer is kept (RFC 7143, 4.2.2.1, 4.2.2.3, 4.2.3.3, 4.2.5, 11.5).
//!
//! One thread takes whatever comes on any connection of any session, so that nothing waits for who is not looked at.

use std::collections::HashMap;

use lunette_cases::{Config, cases};
use lunette_tests::in_process::InProcess;
use lunette_tests::random::Random;
use lunette_tests::raw::{BLOCK_BYTES, Raw, read, write};
use lunette_wire::initiator::{NopOut, ScsiCommand, TaskAttribute, TaskManagementFunction as Function};
use lunette_wire::{InitiatorPdu, InitiatorTaskTag, TargetPdu, TargetTransferTag};
use proptest::prelude::*;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::Session;
use crate::{CHECK_CONDITION, COMPLETE};

const SESSIONS: usize = 2;
const CONNECTIONS: usize = 3;
/// Blocks of one session.
const BLOCKS: u64 = 64;
const LENGTH_MAX: u64 = 16;
const FIRST_BURST_BYTES: usize = 1024;
/// Response "task does not exist" (11.6.1).
const NO_SUCH_TASK: u8 = 1;
/// How long something that must come may take.
const PATIENCE: Timespec = Timespec { tv_sec: 20, tv_nsec: 0 };

/// A command whose end has not come.
struct Open {
    link: usize,
    command: ScsiCommand,
    lba: u64,
    /// What it writes, or what a read has brought so far.
    data: Vec<u8>,
}

/// One session: what it has sent, and what its blocks may hold.
struct Host {
    session: Session,
    /// The first of its blocks.
    base: u64,
    open: HashMap<InitiatorTaskTag, Open>,
    /// Its last settled content first, then what later writes may have left, whose end is not known.
    blocks: Vec<Vec<[u8; BLOCK_BYTES]>>,
    /// Answers to pings (0) and to task management.
    answers: HashMap<InitiatorTaskTag, u8>,
}

impl Host {
    fn new(target: &InProcess, number: usize) -> Host {
        let first_burst = FIRST_BURST_BYTES.to_string();
        let keys = [("InitialR2T", "No"), ("FirstBurstLength", &first_burst), ("MaxBurstLength", "2048")];
        Host {
            session: Session::open_with(target, 1 + number as u8, CONNECTIONS as u16, &keys),
            base: number as u64 * BLOCKS,
            open: HashMap::new(),
            blocks: vec![vec![[0; BLOCK_BYTES]]; BLOCKS as usize],
            answers: HashMap::new(),
        }
    }

    fn submit(&mut self, rng: &mut Random) {
        let lba = rng.below(BLOCKS);
        let blocks = 1 + rng.below(LENGTH_MAX.min(BLOCKS - lba));
        // Two commands of one session on one block would have no order.
        let meets = |open: &Open| {
            let end = open.lba + u64::from(open.command.expected_data_transfer_length) / BLOCK_BYTES as u64;
            open.lba < lba + blocks && lba < end
        };
        if self.open.values().any(meets) {
            return;
        }
        let attribute = [TaskAttribute::Ordered, TaskAttribute::HeadOfQueue, TaskAttribute::Simple]
            [rng.below(3) as usize];
        let link = rng.below(CONNECTIONS as u64) as usize;
        if rng.below(2) == 0 {
            return self.read(link, (lba, blocks), attribute);
        }
        let data: Vec<u8> = (0..blocks).flat_map(|_| [rng.next() as u8; BLOCK_BYTES]).collect();
        let unasked = data.len().min(FIRST_BURST_BYTES);
        let immediate = rng.below(1 + unasked as u64) as usize & !3;
        let follows = immediate < unasked && rng.below(2) == 0;
        let command = ScsiCommand { attribute, is_final: !follows, ..write(0, self.base + lba, data.len()) };
        let raw = self.session.on(link);
        let command = raw.number(&command);
        let tag = command.initiator_task_tag;
        raw.send(&InitiatorPdu::ScsiCommand(command), &data[..immediate]).expect("sent");
        if follows {
            let rest = &data[immediate..unasked];
            raw.sequence((tag, TargetTransferTag::RESERVED), immediate, rest, 512).expect("sent");
        }
        self.open.insert(tag, Open { link, command, lba, data });
    }

    fn read(&mut self, link: usize, (lba, blocks): (u64, u64), attribute: TaskAttribute) {
        let raw = self.session.on(link);
        let command = raw.number(&ScsiCommand { attribute, ..read(0, self.base + lba, blocks as u32) });
        raw.send(&InitiatorPdu::ScsiCommand(command), &[]).expect("sent");
        self.open.insert(command.initiator_task_tag, Open { link, command, lba, data: Vec::new() });
    }

    /// A command has ended, or will never be heard of again.
    fn ended(&mut self, tag: InitiatorTaskTag, is_good: bool) {
        let Some(open) = self.open.remove(&tag) else { panic!("an answer to nothing: {tag:?}") };
        let length = open.command.expected_data_transfer_length as usize;
        assert!(!is_good || open.data.len() == length, "a short answer without a residual");
        for (index, bytes) in open.data.chunks_exact(BLOCK_BYTES).enumerate() {
            let block = &mut self.blocks[open.lba as usize + index];
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

    fn all_ended(&mut self) {
        let open: Vec<_> = self.open.keys().copied().collect();
        open.into_iter().for_each(|tag| self.ended(tag, false));
    }

    /// Takes one PDU that has come on a connection.
    fn take(&mut self, link: usize) {
        let raw = self.session.on(link);
        let (pdu, data) = raw.receive_any().expect("a PDU");
        match pdu {
            TargetPdu::ReadyToTransfer(r2t) => {
                let open = self.open.get(&r2t.initiator_task_tag).expect("an R2T of an open command");
                assert_eq!(open.link, link, "allegiance");
                raw.answer_r2t(&r2t, &open.data, 512).expect("sent");
            }
            TargetPdu::ScsiDataIn(pdu) => {
                let open = self.open.get_mut(&pdu.initiator_task_tag).expect("data of an open command");
                assert_eq!((open.link, open.data.len()), (link, pdu.buffer_offset as usize));
                open.data.extend(data);
                if pdu.status.is_some() {
                    self.ended(pdu.initiator_task_tag, true);
                }
            }
            TargetPdu::ScsiResponse(pdu) => {
                assert!(matches!(pdu.status, 0 | CHECK_CONDITION), "{pdu:?}");
                assert_eq!(self.open[&pdu.initiator_task_tag].link, link, "allegiance");
                self.ended(pdu.initiator_task_tag, pdu.status == 0);
            }
            TargetPdu::TaskManagementResponse(pdu) => {
                self.answers.insert(pdu.initiator_task_tag, pdu.response);
            }
            // An answer to a ping, or news of the window alone (11.19), which nobody waits for.
            TargetPdu::NopIn(pdu) if pdu.target_transfer_tag == TargetTransferTag::RESERVED => {
                self.answers.insert(pdu.initiator_task_tag, 0);
            }
            // A response on another connection waits until what came on this one is acknowledged (4.2.2.3).
            TargetPdu::NopIn(pdu) => {
                let nop = NopOut {
                    immediate: true,
                    lun: pdu.lun,
                    initiator_task_tag: InitiatorTaskTag::RESERVED,
                    target_transfer_tag: pdu.target_transfer_tag,
                    cmd_sn: raw.cmd_sn,
                    exp_stat_sn: raw.exp_stat_sn,
                };
                raw.send(&InitiatorPdu::NopOut(nop), &[]).expect("sent");
            }
            other => panic!("{other:?}"),
        }
    }
}

struct World {
    target: InProcess,
    hosts: Vec<Host>,
    rng: Random,
}

impl World {
    fn new(seed: u64) -> World {
        let target = InProcess::start_with(&["0=mem:1M"], |config| config.reactors.count = Some(3));
        let hosts = (0..SESSIONS).map(|number| Host::new(&target, number)).collect();
        World { target, hosts, rng: Random::new(seed) }
    }

    /// Waits until something comes on any connection, and takes one PDU from each that has something.
    fn take(&mut self) {
        let links = self.hosts.iter_mut().flat_map(|host| &mut host.session.links);
        let connections: Vec<_> = links.map(Raw::connection).collect();
        let mut fds: Vec<_> =
            connections.iter().map(|connection| PollFd::new(&**connection, PollFlags::IN)).collect();
        assert_ne!(poll(&mut fds, Some(&PATIENCE)).expect("a poll"), 0, "nothing comes any more");
        let ready: Vec<_> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
        for (index, _) in ready.iter().enumerate().filter(|(_, ready)| **ready) {
            self.hosts[index / CONNECTIONS].take(index % CONNECTIONS);
        }
    }

    fn answer_to(&mut self, host: usize, request: InitiatorTaskTag) -> u8 {
        loop {
            if let Some(answer) = self.hosts[host].answers.remove(&request) {
                return answer;
            }
            self.take();
        }
    }

    /// All that was sent has come, and all that was sent before that has been taken.
    fn reach(&mut self) {
        for (host, link) in (0..SESSIONS).flat_map(|host| (0..CONNECTIONS).map(move |link| (host, link))) {
            let ping = self.hosts[host].session.on(link).ping(b"here").expect("sent");
            self.answer_to(host, ping);
        }
    }

    fn finish(&mut self) {
        while self.hosts.iter().any(|host| !host.open.is_empty()) {
            self.take();
        }
    }

    fn round(&mut self) {
        for _ in 0..self.rng.below(20) {
            let host = self.rng.below(SESSIONS as u64) as usize;
            self.hosts[host].submit(&mut self.rng);
        }
        let host = self.rng.below(SESSIONS as u64) as usize;
        match self.rng.below(6) {
            0 | 1 => self.abort_task(host),
            2 => self.abort_all(host),
            3 => self.finish(),
            _ => {}
        }
    }

    /// On the task's own connection (11.5.1).
    fn abort_task(&mut self, host: usize) {
        let mut open: Vec<_> = self.hosts[host].open.keys().copied().collect();
        open.sort_unstable_by_key(|tag| tag.0);
        if open.is_empty() {
            return;
        }
        let tag = open[self.rng.below(open.len() as u64) as usize];
        let Open { link, command, .. } = &self.hosts[host].open[&tag];
        let (link, cmd_sn) = (*link, command.cmd_sn);
        let raw = self.hosts[host].session.on(link);
        let request = raw.manage_task(Function::AbortTask, 0, tag, cmd_sn).expect("sent");
        match self.answer_to(host, request) {
            COMPLETE => {
                if self.hosts[host].open.contains_key(&tag) {
                    self.hosts[host].ended(tag, false);
                }
            }
            NO_SUCH_TASK => assert!(!self.hosts[host].open.contains_key(&tag), "it was answered"),
            other => panic!("response {other}"),
        }
    }

    /// One session's tasks on all its connections, or those of all sessions.
    fn abort_all(&mut self, asking: usize) {
        self.reach();
        let (function, of_all) = [
            (Function::AbortTaskSet, false),
            (Function::ClearTaskSet, true),
            (Function::LogicalUnitReset, true),
        ][self.rng.below(3) as usize];
        let link = self.rng.below(CONNECTIONS as u64) as usize;
        let request = self.hosts[asking].session.on(link).manage(function, 0).expect("sent");
        assert_eq!(self.answer_to(asking, request), COMPLETE);
        // What was answered before has come on the asking session (4.2.3.3); on the other it may be on its way.
        self.hosts[asking].all_ended();
        self.reach();
        if of_all {
            self.hosts.iter_mut().for_each(Host::all_ended);
        }
    }

    /// All data is what it can be, no number is missing, no buffer is held.
    fn check(mut self) {
        const ATTENTIONS_MAX: usize = 4;
        self.finish();
        for (host, lba) in (0..SESSIONS).flat_map(|host| (0..BLOCKS).step_by(16).map(move |lba| (host, lba)))
        {
            let settled =
                |host: &Host| host.blocks[lba as usize..][..16].iter().all(|block| block.len() == 1);
            for attempt in 0.. {
                assert!(attempt < ATTENTIONS_MAX, "no end of unit attentions");
                self.hosts[host].read(0, (lba, 16), TaskAttribute::Simple);
                self.finish();
                if attempt > 1 && settled(&self.hosts[host]) {
                    break;
                }
            }
        }
        self.reach();
        for host in &self.hosts {
            let (next, link) = (host.session.cmd_sn(), &host.session.links[CONNECTIONS - 1]);
            assert_eq!(link.exp_cmd_sn(), next, "a number is missing");
            assert_eq!(link.max_cmd_sn(), next.plus(127), "the window has leaked");
        }
        drop(self.hosts);
        self.target.wait_for_its_buffers();
    }
}

proptest! {
    // A seed does not get simpler by being smaller.
    #![proptest_config(Config { max_shrink_iters: 0, ..cases(12) })]

    /// RFC 7143: 4.2.3.3, 4.2.5.1.
    #[test]
    fn every_task_on_any_connection_has_its_end(seed: u64) {
        let mut world = World::new(seed);
        (0..20).for_each(|_| world.round());
        world.check();
    }
}
