//! Any seed: random parameters, commands, aborts, resets, pings, digest errors both ways, up to 32 connections that join, leave
//! and break, lengths that the target declares anew, at each ErrorRecoveryLevel. Every task ends once and as its clause says, the
//! data is right, no number is missing and nothing is kept.

use lunette_iscsi::initiator::session::{
    AnswerFault, Command, ConnectionId, End, Event, Function, Logout, TaskHandle,
};
use lunette_iscsi::parameters::TargetLimits;
use lunette_iscsi::session::SessionSettings;
use proptest::prelude::*;

use crate::double::core::{CoreWorld, Losses, Offer};
use crate::double::target::{NO_UNIT, UNIT};
use crate::double::{BLOCK, Rng};

/// Blocks that one command may use; each command has a place on the disk of its own, used again when it is free.
const SLOT_BLOCKS: u32 = 48;
const SLOTS: usize = 40;
/// Connections of a session: mostly few, and at times all that there may be.
const CONNECTIONS_FEW: u32 = 6;
const CONNECTIONS_MAX: u32 = lunette_iscsi::parameters::CONNECTIONS_MAX as u32;

/// What a place on the disk must hold.
enum Slot {
    Settled(Vec<u8>),
    Writing {
        task: TaskHandle,
        data: Vec<u8>,
        before: Vec<u8>,
    },
    Reading {
        task: TaskHandle,
        content: Vec<u8>,
        blocks: u32,
    },
    /// A write that nobody knows the end of: it may still be carried out.
    Unsure,
}

fn offer(rng: &mut Rng, level: u32, connections_max: u32) -> Offer {
    let yes_or_no = |rng: &mut Rng| if rng.one_in(2) { "Yes" } else { "No" }.to_owned();
    let length = |rng: &mut Rng| {
        match rng.below(4) {
            0 => 512,
            1 => 512 + rng.below(2000),
            2 => 4096,
            _ => 65536,
        }
        .to_string()
    };
    let reporting = ["RFC3720", "ResponseFence,RFC3720", "FastAbort,ResponseFence,RFC3720"];
    let mut offer = vec![
        ("ErrorRecoveryLevel", level.to_string()),
        ("DefaultTime2Wait", "0".to_owned()),
        ("DefaultTime2Retain", "3600".to_owned()),
        ("MaxConnections", connections_max.to_string()),
        ("InitialR2T", yes_or_no(rng)),
        ("ImmediateData", yes_or_no(rng)),
        ("MaxBurstLength", length(rng)),
        ("FirstBurstLength", length(rng)),
        ("MaxOutstandingR2T", (1 + rng.below(5)).to_string()),
        ("DataPDUInOrder", yes_or_no(rng)),
        ("DataSequenceInOrder", yes_or_no(rng)),
        ("TaskReporting", reporting[rng.below(3) as usize].to_owned()),
        ("MaxRecvDataSegmentLength", length(rng)),
        ("DataDigest", "CRC32C,None".to_owned()),
    ];
    if rng.one_in(3) {
        offer.push(("HeaderDigest", "CRC32C,None".to_owned()));
    }
    offer
}

/// What happens now and then: once in so many moves.
#[derive(Debug, Clone, Copy)]
struct Faults {
    spoilt: u32,
    broken: u32,
    /// Functions that end several tasks, and connections that leave.
    shaken: u32,
}

struct Workload {
    world: CoreWorld,
    slots: Vec<Slot>,
    faults: Faults,
    level: u32,
    connections_max: u32,
    /// Connections that a logout was asked for. The last one stays: a session that ends is joined by nobody.
    leaving: Vec<ConnectionId>,
    answered: u32,
}

impl Workload {
    fn new(seed: u64, level: u32, faults: Faults) -> Self {
        let mut rng = Rng(seed);
        let depth = 1 + rng.below(20) as u16;
        let connections_max = if rng.one_in(8) { CONNECTIONS_MAX } else { CONNECTIONS_FEW };
        let limits = TargetLimits {
            command_window: depth.into(),
            max_recv_data_segment_length: 512 + rng.below(9000),
            error_recovery_level: level as u8,
            default_time2retain_s: 3600,
            max_connections: connections_max as u16,
            ..TargetLimits::default()
        };
        let settings =
            SessionSettings { window_depth: depth, nop_interval: None, ..SessionSettings::default() };
        let keys = offer(&mut rng, level, connections_max);
        let mut world = CoreWorld::new(rng.next(), limits, settings, keys);
        if !rng.one_in(3) {
            for _ in 0..rng.below(connections_max) {
                world.join();
            }
        }
        world.losses = Losses { spoilt: faults.spoilt };
        let empty = || Slot::Settled(vec![0; (SLOT_BLOCKS * BLOCK) as usize]);
        let slots = (0..SLOTS).map(|_| empty()).collect();
        Self { world, slots, faults, level, connections_max, leaving: Vec::new(), answered: 0 }
    }

    fn submit(&mut self) {
        if self.world.session.is_over() {
            return;
        }
        let at = self.world.rng.below(SLOTS as u32) as usize;
        match self.world.rng.below(24) {
            0..8 => self.write(at),
            8..16 => self.read(at),
            16 => drop(self.world.test_unit_ready(NO_UNIT)),
            17 => {
                let command = Command {
                    lun: NO_UNIT,
                    cdb: &[0x2a, 0, 0, 0, 0, 0, 0, 0, 6, 0],
                    write_length: 3000,
                    ..Command::default()
                };
                self.world.submit(&command, vec![3; 3000]);
            }
            18 => {
                if let Some(&at) = self.world.up().first() {
                    let id = self.world.links[at].id;
                    let _ = self.world.session.nop(self.world.now, id, &[2; 3]);
                }
            }
            19 | 20 => self.abort(),
            21 if self.world.rng.one_in(self.faults.shaken) => {
                let function = if self.world.rng.one_in(2) {
                    Function::LogicalUnitReset(UNIT)
                } else {
                    Function::AbortTaskSet(UNIT)
                };
                let _ = self.world.session.manage(self.world.now, function, &mut self.world.outbox);
                self.world.look();
            }
            22 if self.world.rng.one_in(self.faults.shaken) => self.shake(),
            23 if self.world.rng.one_in(4) => {
                let bytes = 512 + self.world.rng.below(9000);
                self.world.target.declare_anew(bytes);
            }
            _ => {}
        }
    }

    fn write(&mut self, at: usize) {
        let Slot::Settled(before) = &self.slots[at] else { return };
        let before = before.clone();
        let blocks = 1 + self.world.rng.below(SLOT_BLOCKS);
        let data = self.world.rng.bytes(blocks * BLOCK);
        let task = self.world.write(at as u32 * SLOT_BLOCKS, data.clone());
        self.slots[at] = Slot::Writing { task, data, before };
    }

    fn read(&mut self, at: usize) {
        let Slot::Settled(content) = &self.slots[at] else { return };
        let content = content.clone();
        let blocks = 1 + self.world.rng.below(SLOT_BLOCKS);
        let task = self.world.read(at as u32 * SLOT_BLOCKS, blocks);
        self.slots[at] = Slot::Reading { task, content, blocks };
    }

    fn abort(&mut self) {
        let open: Vec<TaskHandle> = (self.slots.iter())
            .filter_map(|slot| match slot {
                Slot::Writing { task, .. } | Slot::Reading { task, .. } => Some(*task),
                _ => None,
            })
            .collect();
        if !open.is_empty() {
            let task = open[self.world.rng.below(open.len() as u32) as usize];
            let _ = self.world.session.abort(self.world.now, task, &mut self.world.outbox);
            self.world.look();
        }
    }

    /// A connection joins or leaves.
    fn shake(&mut self) {
        let up = self.world.up();
        if up.len() < self.connections_max as usize && self.world.rng.one_in(2) {
            if self.world.session.lost_connections().next().is_none() {
                self.world.join();
            }
            return;
        }
        let ids = up.into_iter().map(|at| self.world.links[at].id);
        let staying: Vec<ConnectionId> = ids.filter(|id| !self.leaving.contains(id)).collect();
        if staying.len() > 1 {
            let id = staying[self.world.rng.below(staying.len() as u32) as usize];
            self.leaving.push(id);
            let _ = self.world.session.logout(self.world.now, Logout::Connection(id), &mut self.world.outbox);
            self.world.look();
        }
    }

    fn break_one(&mut self) {
        let up = self.world.up();
        if !up.is_empty() {
            let at = up[self.world.rng.below(up.len() as u32) as usize];
            self.world.break_link(at);
        }
    }

    /// Looks at what has ended.
    fn check(&mut self) {
        let level = self.level;
        let is_intact = self.faults.spoilt == u32::MAX;
        let is_whole = self.faults.broken == u32::MAX;
        let is_unanswered = self.world.events.iter().any(|event| matches!(event, Event::Unanswered { .. }));
        for (at, slot) in self.slots.iter_mut().enumerate() {
            let (Slot::Writing { task, .. } | Slot::Reading { task, .. }) = slot else { continue };
            let Some((end, read)) = self.world.ends.get(task) else { continue };
            match end {
                End::Answered(answer) if answer.status != 0 => {
                    assert!(level == 0 && !is_intact, "{answer:?}");
                }
                End::Answered(_) => self.answered += 1,
                End::Aborted | End::LoggedOut | End::NotSent => {}
                End::Faulty(_, fault) => {
                    assert!(!is_intact, "{end:?}");
                    assert!(level == 0 || !matches!(fault, AnswerFault::DataDigest), "{end:?}");
                }
                // A function whose connection was logged out has no answer, and nobody knows what it has done.
                End::Unknown => assert!(!is_whole || !is_intact || is_unanswered, "{end:?}"),
                End::TargetFailure { .. } => panic!("{end:?}"),
            }
            let is_good = matches!(end, End::Answered(answer) if answer.status == 0);
            *slot = match std::mem::replace(slot, Slot::Unsure) {
                Slot::Writing { task, data, mut before } => {
                    let start = at * before.len();
                    let found = &self.world.target.disk()[start..start + before.len()];
                    match end {
                        _ if is_good => {
                            before[..data.len()].copy_from_slice(&data);
                            assert!(found == before, "answered, and not written: {task:?}");
                            Slot::Settled(before)
                        }
                        End::NotSent => {
                            assert!(found == before, "written, though it never left: {task:?}");
                            Slot::Settled(before)
                        }
                        // Done or not; but it does not change any more.
                        End::Aborted | End::LoggedOut | End::Answered(_) => Slot::Settled(found.to_vec()),
                        _ => Slot::Unsure,
                    }
                }
                Slot::Reading { task, content, blocks } => {
                    if is_good {
                        assert!(
                            read[..] == content[..(blocks * BLOCK) as usize],
                            "other data was read: {task:?}"
                        );
                    }
                    Slot::Settled(content)
                }
                other => other,
            };
        }
    }

    fn run(&mut self, steps: u32) {
        for _ in 0..steps {
            if self.world.rng.one_in(3) {
                self.submit();
            }
            for _ in 0..self.world.rng.below(6) {
                self.world.step();
            }
            if self.world.rng.one_in(self.faults.broken) {
                self.break_one();
            }
            if self.world.up().is_empty() && self.world.rng.one_in(4) {
                self.world.reinstate();
            }
            if self.world.rng.one_in(40) {
                self.world.pass(1);
            }
            self.check();
        }
        self.world.losses = Losses { spoilt: u32::MAX };
        for _ in 0..100 {
            self.world.settle();
            if self.world.up().is_empty() {
                self.world.reinstate();
            }
            if self.world.session.open_tasks() == 0 && self.world.session.lost_connections().next().is_none()
            {
                break;
            }
            // The target looks for R2Ts without an answer, and for data of aborted tasks, by the clock.
            self.world.pass(5);
        }
        // Aborted tasks whose data was on a connection that has gone are waited for, but not for ever.
        self.world.pass(5);
        self.world.finish();
        self.check();
        let is_open = |slot: &Slot| matches!(slot, Slot::Writing { .. } | Slot::Reading { .. });
        assert!(!self.slots.iter().any(is_open));
        if self.level > 1 {
            assert!(!self.world.events.iter().any(|event| matches!(event, Event::SessionLost { .. })));
        }
    }
}

proptest! {
    #![proptest_config(lunette_cases::cases(60))]

    #[test]
    fn without_losses_every_task_is_answered_or_ended_as_asked(seed: u64, level in 0u32..3) {
        Workload::new(seed, level, Faults { spoilt: u32::MAX, broken: u32::MAX, shaken: 3 }).run(200);
    }

    #[test]
    fn at_level_0_a_loss_is_never_taken_for_data(seed: u64) {
        Workload::new(seed, 0, Faults { spoilt: 40, broken: 100, shaken: 6 }).run(200);
    }

    #[test]
    fn at_level_1_what_was_spoilt_is_had_again(seed: u64) {
        Workload::new(seed, 1, Faults { spoilt: 10, broken: u32::MAX, shaken: u32::MAX }).run(200);
    }

    #[test]
    fn at_level_2_what_a_broken_connection_leaves_goes_on(seed: u64) {
        Workload::new(seed, 2, Faults { spoilt: u32::MAX, broken: 30, shaken: u32::MAX }).run(200);
    }

    #[test]
    fn at_level_2_everything_at_once_is_recovered(seed: u64) {
        Workload::new(seed, 2, Faults { spoilt: 15, broken: 50, shaken: 8 }).run(200);
    }
}
