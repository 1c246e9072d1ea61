//! Any seed: sessions on several reactors with commands, aborts, resets, logouts and broken connections at any moment, over
//! stores that delay and fail. Every task ends as its clause says, the data is what it can be, no number is missing, and no
//! buffer is kept. Sessions have each ErrorRecoveryLevel, and digests or none; some of what they send is spoilt (7.8). At level 2
//! they lose connections with commands in them, and go on (RFC 7143, 7.2.2, 11.5.1). On one unit a failed command takes others of
//! its session with it (SPC-4, QERR), and on both some keep all others out until that is cleared (SAM-5, ACA).
//!
//! Each round sends at random, then takes what comes until everything has its end; so what a test sees does not depend on who
//! is faster. Blocks belong to one session each: what it knows of them is all that can be known.

mod host;

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use lunette_block::OperationKind;
use lunette_block::fault::{Effect, Errno, Rule, When};
use lunette_cases::{Config, cases};
use lunette_tests::in_process::InProcess;
use lunette_tests::random::Random;
use lunette_wire::initiator::TaskManagementFunction as Function;
use proptest::prelude::*;

use crate::COMPLETE;
use crate::allegiance::select;
use host::{Host, UNITS, settle_attentions};

const SESSIONS: usize = 4;
/// QERR: of its own session.
const OWN_SESSION: u8 = 3;

struct World {
    target: InProcess,
    hosts: Vec<Host>,
    rng: Random,
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
            config.limits.error_recovery_level = 2;
            config.limits.time2retain_s = 3600;
        });
        select(&mut target.session(SESSIONS as u8), OWN_SESSION, false);
        let hosts = (0..SESSIONS as u8).map(|port| Host::new(&target, port, &mut rng)).collect();
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
        match self.rng.below(10) {
            0 | 1 => self.hosts[host].abort(&mut self.rng),
            2 => self.reset(host),
            3 => self.come_again(host),
            4 => self.disturb(),
            5 | 6 => self.lose(host),
            _ => {}
        }
        // A command may wait for one of any other session.
        if self.rng.below(3) == 0 {
            self.finish();
        }
    }

    /// One session ends its own tasks on a unit, those of all sessions there, or all on all units, while the others go on.
    fn reset(&mut self, asking: usize) {
        let lun = self.rng.below(UNITS.into()) as u8;
        let (function, of_all) = [
            (Function::AbortTaskSet, false),
            (Function::ClearTaskSet, true),
            (Function::LogicalUnitReset, true),
            (Function::TargetWarmReset, true),
        ][self.rng.below(4) as usize];
        let units = if function == Function::TargetWarmReset { 0..UNITS } else { lun..lun + 1 };
        // Every command has come before it.
        self.hosts.iter_mut().for_each(Host::reach);
        let work = |host: &mut Host| {
            let request = host.raw.manage(function, lun).expect("sent");
            assert_eq!(host.managed(request), COMPLETE);
            units.clone().for_each(|lun| host.aborted_on(lun));
            units.clone().for_each(|lun| host.may_have_failed(lun));
        };
        let afterwards = |other: &mut Host| {
            if of_all {
                units.clone().for_each(|lun| other.aborted_on(lun));
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

    /// Its connection is lost, and its session goes on.
    fn lose(&mut self, losing: usize) {
        let mut rng = Random::new(self.rng.next());
        let target = &self.target;
        let work = |host: &mut Host| host.lose(target, &mut rng);
        go_on(&mut self.hosts, losing, work, |_| {});
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
            (0..UNITS).for_each(|lun| host.read_back(lun));
            host.reach();
            assert_eq!(host.raw.exp_cmd_sn(), host.raw.cmd_sn, "a number is missing");
            assert_eq!(host.raw.max_cmd_sn(), host.raw.cmd_sn.plus(127), "the window has leaked");
        }
        // A session that may recover would wait for its initiator.
        self.hosts.iter_mut().for_each(Host::log_out);
        drop(self.hosts);
        self.target.wait_for_its_buffers();
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
