//! Any seed: sessions on several reactors with commands, aborts, resets, logouts and broken connections at any moment, over
//! stores that delay and fail. Every task ends as its clause says, the data is what it can be, no number is missing, and no
//! buffer is kept.
//!
//! Each round sends at random, then takes what comes until everything has its end; so what a test sees does not depend on who
//! is faster. Blocks belong to one session each: what it knows of them is all that can be known.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use lunette_block::OperationKind;
use lunette_block::fault::{Effect, Errno, Rule, When};
use lunette_cases::{Config, cases};
use lunette_tests::in_process::{InProcess, wait_until};
use lunette_tests::random::Random;
use lunette_tests::raw::{BLOCK_BYTES, Raw, read, write};
use lunette_wire::initiator::{LogoutReason, ScsiCommand, TaskAttribute, TaskManagementFunction as Function};
use lunette_wire::{InitiatorPdu, InitiatorTaskTag, TargetPdu};
use proptest::prelude::*;

use crate::{CHECK_CONDITION, COMPLETE};

const SESSIONS: usize = 4;
/// Blocks of one session on each unit.
const BLOCKS: u64 = 64;
const UNITS: u8 = 2;
/// A command moves so many blocks at most.
const LENGTH_MAX: u64 = 16;
/// Response "task does not exist" (11.6.1): its answer was on its way.
const NO_SUCH_TASK: u8 = 1;

/// What a block may hold: its last settled content first, then what later writes may have left, whose end is not known.
type Block = Vec<[u8; BLOCK_BYTES]>;

/// A command whose end has not come.
struct Open {
    command: ScsiCommand,
    lun: u8,
    lba: u64,
    /// What it writes; empty for a read.
    data: Vec<u8>,
    /// What a read has brought.
    got: Vec<u8>,
}

struct Host {
    port: u8,
    raw: Raw,
    open: HashMap<InitiatorTaskTag, Open>,
    /// By unit and block.
    blocks: Vec<Vec<Block>>,
}

struct World {
    target: InProcess,
    hosts: Vec<Host>,
    rng: Random,
}

impl Host {
    fn login(target: &InProcess, port: u8, rng: &mut Random) -> Raw {
        let keys = [
            ("InitialR2T", ["Yes", "No"][rng.below(2) as usize]),
            ("ImmediateData", ["Yes", "No"][rng.below(2) as usize]),
            ("FirstBurstLength", "1024"),
            ("MaxBurstLength", ["2048", "65536"][rng.below(2) as usize]),
            ("MaxOutstandingR2T", ["1", "4"][rng.below(2) as usize]),
        ];
        let mut raw = Raw::login(target.portal(), &target.options_with(port, &keys)).expect("a login");
        (0..UNITS).for_each(|lun| settle_attentions(&mut raw, lun));
        raw
    }

    fn submit(&mut self, rng: &mut Random) {
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
        // All data is asked for by R2T: what else there may be, others test.
        let command = self.raw.number(&ScsiCommand { attribute, ..command });
        self.raw.send(&InitiatorPdu::ScsiCommand(command), &[]).expect("sent");
        let tag = command.initiator_task_tag;
        self.open.insert(tag, Open { command, lun, lba: start, data, got: Vec::new() });
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
    }

    /// Takes one PDU; answers R2Ts. `Some` for what is no part of a command.
    fn take(&mut self) -> Option<TargetPdu> {
        let (pdu, data) = self.raw.receive().expect("a PDU");
        match pdu {
            TargetPdu::ReadyToTransfer(r2t) => {
                let open = self.open.get(&r2t.initiator_task_tag).expect("an R2T of an open command");
                self.raw.answer_r2t(&r2t, &open.data, 1024).expect("sent");
            }
            TargetPdu::ScsiDataIn(pdu) => {
                let open = self.open.get_mut(&pdu.initiator_task_tag).expect("data of an open command");
                assert_eq!(pdu.buffer_offset as usize, open.got.len());
                open.got.extend(data);
                if pdu.status.is_some() {
                    self.ended(pdu.initiator_task_tag, true);
                }
            }
            TargetPdu::ScsiResponse(pdu) => {
                assert!(matches!(pdu.status, 0 | CHECK_CONDITION), "{pdu:?}");
                self.ended(pdu.initiator_task_tag, pdu.status == 0);
            }
            TargetPdu::Reject(pdu) => panic!("reason {}: {data:02x?}", pdu.reason),
            other => return Some(other),
        }
        None
    }

    /// Takes what comes until a ping is answered: all that was sent before has been taken in.
    fn reach(&mut self) {
        let tag = self.raw.ping(b"here").expect("sent");
        loop {
            match self.take() {
                Some(TargetPdu::NopIn(pdu)) if pdu.initiator_task_tag == tag => return,
                None => {}
                Some(other) => panic!("{other:?}"),
            }
        }
    }

    fn finish(&mut self) {
        while !self.open.is_empty() {
            assert_eq!(self.take(), None);
        }
    }

    fn abort(&mut self, rng: &mut Random) {
        let mut open: Vec<_> = self.open.keys().copied().collect();
        open.sort_unstable_by_key(|tag| tag.0);
        if open.is_empty() {
            return;
        }
        let tag = open[rng.below(open.len() as u64) as usize];
        let (lun, cmd_sn) = (self.open[&tag].lun, self.open[&tag].command.cmd_sn);
        let request = self.raw.manage_task(Function::AbortTask, lun, tag, cmd_sn).expect("sent");
        match self.managed(request) {
            COMPLETE => {
                if self.open.contains_key(&tag) {
                    self.ended(tag, false);
                }
            }
            NO_SUCH_TASK => assert!(!self.open.contains_key(&tag), "it was answered"),
            other => panic!("response {other}"),
        }
    }

    /// The tasks on a unit have been ended by a function; none was answered since.
    fn aborted_on(&mut self, lun: u8) {
        let gone: Vec<_> =
            self.open.iter().filter(|(_, open)| open.lun == lun).map(|(&tag, _)| tag).collect();
        gone.into_iter().for_each(|tag| self.ended(tag, false));
    }

    /// Its session ends in some way, and it logs in again: whatever was not answered has ended by then.
    fn come_again(&mut self, target: &InProcess, rng: &mut Random) {
        match rng.below(3) {
            0 => self.log_out(),
            1 => self.raw.connection().shut().expect("a connection"),
            // The new session replaces one that is alive (6.3.5).
            _ => {}
        }
        let new = Host::login(target, self.port, rng);
        self.raw = new;
        self.forget();
    }

    fn log_out(&mut self) {
        let request = self.raw.log_out(LogoutReason::CloseSession, 0).expect("sent");
        loop {
            // R2Ts are of no use any more: nothing may come behind a logout (11.14).
            match self.raw.receive().expect("a PDU") {
                (TargetPdu::LogoutResponse(pdu), _) if pdu.initiator_task_tag == request => {
                    return assert_eq!(pdu.response, 0);
                }
                (
                    TargetPdu::ScsiDataIn(_) | TargetPdu::ScsiResponse(_) | TargetPdu::ReadyToTransfer(_),
                    _,
                ) => {}
                (other, _) => panic!("{other:?}"),
            }
        }
    }

    fn managed(&mut self, request: InitiatorTaskTag) -> u8 {
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

/// TEST UNIT READY until nothing is left to be told.
fn settle_attentions(raw: &mut Raw, lun: u8) {
    const ATTENTIONS_MAX: usize = 8;
    let is_ready = |raw: &mut Raw| raw.test_unit_ready(lun).expect("an answer").status == 0;
    assert!((0..ATTENTIONS_MAX).any(|_| is_ready(raw)), "no end of unit attentions");
}

/// One does something, while all others take what comes for them and answer it, since its commands may wait for theirs; in the
/// end each of them does something `afterwards`.
fn go_on(
    hosts: &mut [Host],
    index: usize,
    work: impl FnOnce(&mut Host),
    afterwards: impl Fn(&mut Host) + Sync,
) {
    let is_over = AtomicBool::new(false);
    let (before, rest) = hosts.split_at_mut(index);
    let (host, behind) = rest.split_first_mut().expect("a host");
    let go_on = |other: &mut Host| {
        while !is_over.load(Ordering::Acquire) {
            other.reach();
        }
        other.reach();
        afterwards(other);
    };
    thread::scope(|scope| {
        for other in before.iter_mut().chain(behind) {
            scope.spawn(|| go_on(other));
        }
        // The others end with it, however it ends.
        let outcome = catch_unwind(AssertUnwindSafe(|| work(host)));
        is_over.store(true, Ordering::Release);
        if let Err(panic) = outcome {
            resume_unwind(panic);
        }
    });
}

impl World {
    fn new(seed: u64) -> World {
        let mut rng = Random::new(seed);
        let target = InProcess::start_with(&["0=mem:1M,write=back", "1=mem:1M"], |config| {
            config.reactors.count = Some(3);
        });
        let unit = || (0..BLOCKS).map(|_| vec![[0; BLOCK_BYTES]]).collect();
        let hosts = (0..SESSIONS as u8).map(|port| Host {
            port,
            raw: Host::login(&target, port, &mut rng),
            open: HashMap::new(),
            blocks: (0..UNITS).map(|_| unit()).collect(),
        });
        let hosts = hosts.collect();
        let mut world = World { target, hosts, rng };
        world.disturb();
        world
    }

    /// Some of the next calls of the stores take longer, or fail.
    fn disturb(&mut self) {
        for lun in 0..u16::from(UNITS) {
            self.target.faults(lun).clear();
            for kind in [OperationKind::Read, OperationKind::Write] {
                for _ in 0..4 {
                    let effect = match self.rng.below(3) {
                        0 => Effect::Fail(Errno::IO),
                        _ => Effect::Delay(Duration::from_micros(self.rng.below(1500))),
                    };
                    let when = When::Nth(1 + self.rng.below(40));
                    self.target.faults(lun).add(Rule::new(kind, when, effect));
                }
            }
        }
    }

    fn round(&mut self) {
        for _ in 0..self.rng.below(24) {
            let host = self.rng.below(SESSIONS as u64) as usize;
            self.hosts[host].submit(&mut self.rng);
        }
        let host = self.rng.below(SESSIONS as u64) as usize;
        match self.rng.below(8) {
            0 | 1 => self.hosts[host].abort(&mut self.rng),
            2 => self.reset(host),
            3 => self.come_again(host),
            4 => self.disturb(),
            _ => {}
        }
        // A command may wait for one of any other session.
        if self.rng.below(3) == 0 {
            self.finish();
        }
    }

    /// One session resets a unit, or ends its own tasks there, while the others go on.
    fn reset(&mut self, asking: usize) {
        let lun = self.rng.below(UNITS.into()) as u8;
        let of_all = self.rng.below(2) == 0;
        let function = if of_all { Function::LogicalUnitReset } else { Function::AbortTaskSet };
        // Every command has come before it.
        self.hosts.iter_mut().for_each(Host::reach);
        let work = |host: &mut Host| {
            let request = host.raw.manage(function, lun).expect("sent");
            assert_eq!(host.managed(request), COMPLETE);
            host.aborted_on(lun);
        };
        let afterwards = |other: &mut Host| {
            if of_all {
                other.aborted_on(lun);
            }
        };
        go_on(&mut self.hosts, asking, work, afterwards);
    }

    /// Its session ends in some way, and it logs in again.
    fn come_again(&mut self, coming: usize) {
        let mut rng = Random::new(self.rng.next());
        let target = &self.target;
        let work = |host: &mut Host| host.come_again(target, &mut rng);
        go_on(&mut self.hosts, coming, work, |_| {});
    }

    /// Everything that is open ends.
    fn finish(&mut self) {
        thread::scope(|scope| {
            for host in &mut self.hosts {
                scope.spawn(|| host.finish());
            }
        });
    }

    /// All data is what it can be, no number is missing, no buffer is held.
    fn check(mut self) {
        self.finish();
        (0..u16::from(UNITS)).for_each(|lun| self.target.faults(lun).clear());
        for host in &mut self.hosts {
            (0..UNITS).for_each(|lun| settle_attentions(&mut host.raw, lun));
            for (lun, start) in (0..UNITS).flat_map(|lun| (0..BLOCKS).step_by(16).map(move |at| (lun, at))) {
                let place = u64::from(host.port) * BLOCKS + start;
                let command = host.raw.number(&read(lun, place, LENGTH_MAX as u32));
                host.raw.send(&InitiatorPdu::ScsiCommand(command), &[]).expect("sent");
                let open = Open { command, lun, lba: start, data: Vec::new(), got: Vec::new() };
                host.open.insert(command.initiator_task_tag, open);
                host.finish();
            }
            host.reach();
            assert_eq!(host.raw.exp_cmd_sn(), host.raw.cmd_sn, "a number is missing");
            assert_eq!(host.raw.max_cmd_sn(), host.raw.cmd_sn.plus(127), "the window has leaked");
        }
        drop(self.hosts);
        wait_until("all buffers are given back", || self.target.buffer_bytes_in_use() == 0);
    }
}

proptest! {
    // A seed does not get simpler by being smaller.
    #![proptest_config(Config { max_shrink_iters: 0, ..cases(12) })]

    #[test]
    fn every_task_has_its_end_and_nothing_is_kept(seed: u64) {
        let mut world = World::new(seed);
        (0..20).for_each(|_| world.round());
        world.check();
    }
}
