//! Any seed: random parameters, commands over one to eight connections, aborts, resets, pings, connections that join, are
//! replaced and leave, and disk order end with every task answered exactly once or ended as its clause says, the data where
//! it belongs, no CmdSN missing and nothing kept.

use lunette_cases::cases;
use lunette_iscsi::parameters::TargetLimits;
use lunette_iscsi::session::SessionSettings;
use lunette_wire::InitiatorTaskTag;
use lunette_wire::initiator::TaskManagementFunction;
use proptest::prelude::*;

use crate::double::initiator::{End, Wish, cdb};
use crate::double::target::{NO_UNIT, UNIT, WRITE_10};
use crate::double::{BLOCK, Rng, World};

/// Blocks that one command may use; each command has a place on the disk of its own, used again when it is free.
const SLOT_BLOCKS: u32 = 48;
const SLOTS: usize = 40;
/// As many as the target takes unless told otherwise.
const CONNECTIONS_MAX: u16 = 8;

/// What a place on the disk must hold.
enum Slot {
    /// Known, and nobody is writing.
    Settled(Vec<u8>),
    Writing {
        tag: u32,
        data: Vec<u8>,
        before: Vec<u8>,
    },
    Reading {
        tag: u32,
        blocks: u32,
        content: Vec<u8>,
    },
}

fn wish(rng: &mut Rng) -> Wish {
    let length = |rng: &mut Rng| match rng.below(4) {
        0 => 512,
        1 => 512 + rng.below(2000),
        2 => 4096,
        _ => 65536,
    };
    Wish {
        initial_r2t: rng.one_in(2),
        immediate_data: rng.one_in(2),
        max_burst_length: length(rng),
        first_burst_length: length(rng),
        max_outstanding_r2t: 1 + rng.below(5) as u16,
        max_recv_data_segment_length: length(rng),
        header_digest: rng.one_in(3),
        data_digest: rng.one_in(3),
        max_connections: CONNECTIONS_MAX,
        task_reporting: [None, Some("ResponseFence,RFC3720"), Some("FastAbort,ResponseFence,RFC3720")]
            [rng.below(3) as usize],
        ..Wish::default()
    }
}

struct Workload {
    world: World,
    slots: Vec<Slot>,
}

impl Workload {
    fn new(seed: u64) -> Self {
        let mut rng = Rng(seed);
        let depth = 1 + rng.below(20) as u16;
        let limits = TargetLimits {
            command_window: depth.into(),
            max_recv_data_segment_length: 512 + rng.below(9000),
            ..TargetLimits::default()
        };
        let settings = SessionSettings { window_depth: depth, ..SessionSettings::default() };
        let mut world = World::new(rng.next(), limits, settings);
        world.connect(wish(&mut rng));
        if !rng.one_in(3) {
            for _ in 0..rng.below(CONNECTIONS_MAX.into()) {
                world.join();
                world.settle();
            }
            world.initiator().spreads = true;
        }
        world.initiator().manners.uses_immediate_data = !rng.one_in(4);
        world.initiator().manners.uses_unsolicited_data = !rng.one_in(4);
        world.initiator().manners.sends_for_aborted = !rng.one_in(3) && !world.initiator().aborts_fast();
        world.target.fences = rng.one_in(3);
        world.target.answers_at_once = !world.target.fences && !rng.one_in(3);
        let empty = || Slot::Settled(vec![0; (SLOT_BLOCKS * BLOCK) as usize]);
        Self { world, slots: (0..SLOTS).map(|_| empty()).collect() }
    }

    /// Queues something, if there is room for it.
    fn submit(&mut self) {
        let slot = self.world.rng.below(SLOTS as u32) as usize;
        let choice = self.world.rng.below(22);
        if self.world.initiators[0].up().is_empty() {
            return;
        }
        let initiator = &mut self.world.initiators[0];
        if choice < 16 && !initiator.may_send() {
            return;
        }
        match choice {
            0..6 => self.write(slot),
            6..12 => self.read(slot),
            12 | 13 => drop(initiator.test_unit_ready()),
            14 => {
                let data = vec![3; 3000];
                initiator.command(cdb(WRITE_10, 0, 6), NO_UNIT, 3000, Some(data));
            }
            15 => drop(initiator.ping(false, vec![1; 40])),
            16 => drop(initiator.ping(true, vec![2; 3])),
            17 | 18 => self.abort(),
            19 | 20 => self.shake(),
            _ => self.reset(),
        }
    }

    fn write(&mut self, slot: usize) {
        let Slot::Settled(before) = &self.slots[slot] else { return };
        let before = before.clone();
        let blocks = 1 + self.world.rng.below(SLOT_BLOCKS);
        let data = self.world.rng.bytes(blocks * BLOCK);
        let tag = self.world.initiators[0].write(slot as u32 * SLOT_BLOCKS, data.clone());
        self.slots[slot] = Slot::Writing { tag, data, before };
    }

    fn read(&mut self, slot: usize) {
        let Slot::Settled(content) = &self.slots[slot] else { return };
        let content = content.clone();
        let blocks = 1 + self.world.rng.below(SLOT_BLOCKS);
        let tag = self.world.initiators[0].read(slot as u32 * SLOT_BLOCKS, blocks);
        self.slots[slot] = Slot::Reading { tag, blocks, content };
    }

    fn abort(&mut self) {
        let open = self.world.initiators[0].open_tasks();
        if !open.is_empty() {
            let pick = self.world.rng.below(open.len() as u32) as usize;
            self.world.initiators[0].abort(open[pick]);
        }
    }

    fn reset(&mut self) {
        if self.world.rng.one_in(6) {
            let cmd_sn = self.world.initiators[0].cmd_sn;
            let function = if self.world.rng.one_in(2) {
                TaskManagementFunction::LogicalUnitReset
            } else {
                TaskManagementFunction::AbortTaskSet
            };
            self.world.initiators[0].manage(function, UNIT, InitiatorTaskTag::RESERVED, cmd_sn);
        }
    }

    /// Has a connection join, leave, or replaced, one at a time.
    fn shake(&mut self) {
        let up = self.world.initiators[0].up();
        if !self.world.initiators[0].spreads || !self.world.initiators[0].is_steady() {
            return;
        }
        let pick = |world: &mut World| up[world.rng.below(up.len() as u32) as usize];
        let (link, other) = (pick(&mut self.world), pick(&mut self.world));
        if self.world.initiators[0].has_function_on(link) {
            return;
        }
        match self.world.rng.below(3) {
            0 if up.len() < CONNECTIONS_MAX.into() => drop(self.world.join()),
            1 if up.len() > 1 => {
                self.world.initiators[0].on = other;
                self.world.initiators[0].log_out_of(Some(link));
            }
            _ => drop(self.world.reinstate(link)),
        }
    }

    /// Looks at what has ended.
    fn check(&mut self) {
        for (index, slot) in self.slots.iter_mut().enumerate() {
            let ends = &self.world.initiators[0].ends;
            match slot {
                Slot::Writing { tag, data, before } => match ends.get(tag) {
                    Some(End::Answered { status, .. }) => {
                        assert_eq!(*status, 0);
                        before[..data.len()].copy_from_slice(data);
                        let start = index * before.len();
                        assert_eq!(&self.world.target.disk()[start..start + before.len()], &before[..]);
                        *slot = Slot::Settled(std::mem::take(before));
                    }
                    // Done or not; but once the abort has been answered, it must not change any more.
                    Some(End::Aborted) => {
                        let start = index * before.len();
                        let found = &self.world.target.disk()[start..start + before.len()];
                        *slot = Slot::Settled(found.to_vec());
                    }
                    None => {}
                },
                Slot::Reading { tag, blocks, content } => match ends.get(tag) {
                    Some(End::Answered { status, data, .. }) => {
                        assert_eq!(*status, 0);
                        assert_eq!(&content[..(*blocks * BLOCK) as usize], &data[..]);
                        *slot = Slot::Settled(std::mem::take(content));
                    }
                    Some(End::Aborted) => *slot = Slot::Settled(std::mem::take(content)),
                    None => {}
                },
                Slot::Settled(_) => {}
            }
        }
    }

    fn run(&mut self, steps: u32) {
        for _ in 0..steps {
            if self.world.rng.one_in(3) {
                self.submit();
            }
            let moves = self.world.rng.below(6);
            for _ in 0..moves {
                self.world.step();
            }
            self.check();
        }
        // Whoever sends no more data for aborted tasks is waited for, but not for ever.
        self.world.settle();
        self.world.pass(4);
        self.world.finish();
        self.check();
        assert!(self.world.initiators[0].is_idle());
        assert!(self.slots.iter().all(|slot| matches!(slot, Slot::Settled(_))));
    }
}

proptest! {
    #![proptest_config(cases(300))]

    #[test]
    fn every_task_is_answered_once_and_nothing_leaks(seed: u64) {
        Workload::new(seed).run(200);
    }

    #[test]
    fn a_logout_or_a_loss_at_any_moment_leaves_nothing(seed: u64, steps in 0u32..80, logs_out: bool) {
        let mut workload = Workload::new(seed);
        for _ in 0..steps {
            workload.submit();
            workload.world.step();
        }
        while !workload.world.initiator().is_steady() {
            assert!(workload.world.step());
        }
        let up = workload.world.initiator().up();
        let link = up[workload.world.rng.below(up.len() as u32) as usize];
        if logs_out {
            workload.world.initiator().on = link;
            workload.world.initiator().log_out();
        } else {
            let wire = workload.world.wire_of(link);
            workload.world.target.disconnect(wire);
            workload.world.initiator().give_up();
        }
        workload.world.finish();
        prop_assert!(workload.world.target.session(0).unwrap().has_ended());
        prop_assert_eq!(workload.world.initiator().logged_out, logs_out);
    }
}
