//! The core against a world in virtual time: paths that die, targets that carry out what a dead path has left at the worst
//! moment, logins and resets that end it. What is written is never overwritten by something older, and every command ends once.

mod scenarios;

use lunette_cases::cases;
use proptest::prelude::*;

use super::*;

const TIMING: PathTiming = PathTiming {
    failback: Duration::from_secs(5),
    check: Duration::from_secs(5),
    recovery: Duration::from_secs(120),
    ghost: Duration::from_secs(60),
};
const BLOCKS: u64 = 4;

/// A write that a target has, or that is on its way to it.
#[derive(Debug, Clone, Copy)]
struct Flying {
    key: usize,
    serial: u64,
    block: u64,
    /// When the connection that carries it was broken off.
    broken_at: Option<Duration>,
}

/// A session as the target sees it; the name of an old one may still have something under way.
#[derive(Debug, Default)]
struct Far {
    flying: Vec<Flying>,
    /// The connection has been lost on this side.
    is_ghost: bool,
}

struct World {
    core: Core<u64>,
    now: Duration,
    /// Per path, its sessions: the last is the present one.
    far: Vec<Vec<Far>>,
    groups: Vec<u16>,
    is_cut: Vec<bool>,
    /// Which write each block holds.
    blocks: [u64; BLOCKS as usize],
    submitted: u64,
    ended: u64,
    opening: Vec<usize>,
    fencing: Vec<(usize, usize)>,
    resetting: Option<usize>,
    looking: Vec<usize>,
    is_over: bool,
}

impl World {
    fn new(groups: &[u16]) -> Self {
        Self::with(groups, TIMING)
    }

    fn with(groups: &[u16], timing: PathTiming) -> Self {
        let core = Core::new(groups.len(), Policy::RoundRobin, timing);
        let far = groups.iter().map(|_| Vec::new()).collect();
        let is_cut = groups.iter().map(|_| false).collect();
        let mut world = Self {
            core,
            now: Duration::ZERO,
            far,
            groups: groups.to_vec(),
            is_cut,
            blocks: [0; BLOCKS as usize],
            submitted: 0,
            ended: 0,
            opening: Vec::new(),
            fencing: Vec::new(),
            resetting: None,
            looking: Vec::new(),
            is_over: false,
        };
        world.core.tick(world.now);
        world.settle();
        world
    }

    fn write(&mut self, block: u64) {
        // As the callers that vouch for their writes do: no two of the same block at once.
        let is_busy = self
            .core
            .entries
            .iter()
            .any(|(_, entry)| entry.facts.extent.meets(Extent::Blocks { start: block, end: block + 1 }));
        if is_busy || self.is_over {
            return;
        }
        let extent = Extent::Blocks { start: block, end: block + 1 };
        let facts = Facts { kind: Kind::Writes, replay: Replay::Always, extent };
        self.submitted += 1;
        self.core.submit(self.now, facts, block);
        self.settle();
    }

    /// The target carries out one write: what is older than what the block holds must not come any more.
    fn carry_out(&mut self, write: Flying) {
        let held = &mut self.blocks[write.block as usize];
        assert!(
            write.serial >= *held,
            "write {} comes after write {held} of block {}",
            write.serial,
            write.block
        );
        *held = write.serial;
    }

    /// The target of a path gets on with its `at`-th write.
    fn serve(&mut self, path: usize, at: usize) {
        let now = self.now;
        let alive: Vec<usize> = (0..self.far[path].len()).collect();
        for session in alive {
            let far = &mut self.far[path][session];
            if far.flying.is_empty() {
                continue;
            }
            let write = far.flying.remove(at % far.flying.len());
            let is_ghost = far.is_ghost;
            // Nothing is on its way for longer than this; what the target has taken by then, it may still carry out.
            self.carry_out(write);
            if !is_ghost && !self.is_cut[path] {
                self.answer(now, write, Outcome::Good);
            } else if !is_ghost {
                // The answer is lost.
                self.far[path][session].flying.push(write);
            }
        }
        self.settle();
    }

    fn answer(&mut self, now: Duration, write: Flying, outcome: Outcome) {
        if self.core.ended(now, write.key, outcome) != Verdict::Kept {
            self.over(write.key);
        }
    }

    fn over(&mut self, key: usize) {
        assert!(self.core.take(key).is_some(), "it ends once");
        self.ended += 1;
    }

    /// A path dies; some of what was sent has not left, and the rest stays with the target.
    fn cut(&mut self, path: usize, unsent: usize) {
        if !self.core.paths[path].is_up() {
            return;
        }
        self.is_cut[path] = true;
        let now = self.now;
        let Some(far) = self.far[path].last_mut() else { return };
        far.is_ghost = true;
        let all = far.flying.clone();
        far.flying.truncate(all.len() - unsent.min(all.len()));
        far.flying.iter_mut().for_each(|write| write.broken_at = Some(now));
        let left = far.flying.len();
        for (at, write) in all.into_iter().enumerate() {
            self.answer(now, write, if at < left { Outcome::Unknown } else { Outcome::NotSent });
        }
        self.core.lost(now, path, Duration::ZERO);
        self.settle();
    }

    fn settle(&mut self) {
        while let Some(action) = self.core.actions.pop_front() {
            match action {
                Action::Send { key, path } => {
                    let entry = &self.core.entries[key];
                    let write = Flying { key, serial: entry.serial, block: entry.payload, broken_at: None };
                    self.far[path].last_mut().expect("a session").flying.push(write);
                }
                Action::Fail { key, .. } => self.over(key),
                Action::Open { path } => self.opening.push(path),
                Action::Fence { path, via } => self.fencing.push((path, via)),
                Action::Reset { via } => self.resetting = Some(via),
                Action::GiveUp => {
                    self.is_over = true;
                    let keys: Vec<_> = self.core.entries.iter().map(|(key, _)| key).collect();
                    keys.into_iter().for_each(|key| self.over(key));
                }
                // A question for states is answered at once.
                Action::Check { path } if !self.is_cut[path] => self.core.has_answered(path, self.now),
                Action::Check { .. } => {}
                Action::Look { path } => self.looking.push(path),
            }
        }
    }

    /// What was begun comes to its end.
    fn finish(&mut self) {
        for path in std::mem::take(&mut self.opening) {
            if self.is_cut[path] {
                self.core.open_failed(self.now, path, false, None);
                continue;
            }
            // The login ends the sessions of the same name.
            self.far[path].clear();
            self.far[path].push(Far::default());
            self.core.opened(self.now, path, Some(self.groups[path]), false);
        }
        for (path, via) in std::mem::take(&mut self.fencing) {
            let is_done = !self.is_cut[via] && self.groups[path] == self.groups[via];
            if is_done {
                self.far[path].clear();
            }
            self.core.fenced(self.now, path, is_done);
        }
        if let Some(via) = self.resetting.take() {
            let is_done = !self.is_cut[via];
            if is_done {
                self.reset();
            }
            self.core.reset(self.now, is_done);
        }
        self.settle();
    }

    /// The unit is reset: all that it has is ended, and all that is on its way was cut off long enough ago.
    fn reset(&mut self) {
        let now = self.now;
        let mut ended = Vec::new();
        for far in self.far.iter_mut().flatten() {
            let is_young = |write: &Flying| write.broken_at.is_some_and(|at| now < at + TIMING.ghost);
            let (young, old): (Vec<_>, Vec<_>) = far.flying.drain(..).partition(is_young);
            far.flying = young;
            ended.extend(old.into_iter().filter(|_| !far.is_ghost));
        }
        for write in ended {
            self.answer(now, write, Outcome::Aborted);
        }
    }

    fn pass(&mut self, seconds: u64) {
        self.now += Duration::from_secs(seconds);
        self.core.tick(self.now);
        self.settle();
    }

    /// With all paths there again, everything comes to its end.
    fn end(mut self) {
        self.is_cut.fill(false);
        for _ in 0..200 {
            self.pass(3);
            self.finish();
            for path in 0..self.groups.len() {
                for _ in 0..self.far[path].iter().map(|far| far.flying.len()).sum() {
                    self.serve(path, 0);
                }
            }
            if self.core.entries.is_empty() {
                break;
            }
        }
        assert_eq!((self.core.entries.len(), self.ended), (0, self.submitted), "nothing is lost or doubled");
    }
}

#[derive(Debug, Clone, Copy)]
enum Step {
    Write(u64),
    Serve(usize, usize),
    Cut(usize, usize),
    Mend(usize),
    Finish,
    Pass(u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => (0..BLOCKS).prop_map(Step::Write),
        4 => (0..4usize, 0..8usize).prop_map(|(path, at)| Step::Serve(path, at)),
        2 => (0..4usize, 0..3usize).prop_map(|(path, unsent)| Step::Cut(path, unsent)),
        1 => (0..4usize).prop_map(Step::Mend),
        3 => Just(Step::Finish),
        2 => prop_oneof![Just(0u64), Just(1), Just(10), Just(61)].prop_map(Step::Pass),
    ];
    prop::collection::vec(step, 1..120)
}

proptest! {
    #![proptest_config(cases(400))]

    #[test]
    fn nothing_older_comes_after_something_newer(
        groups in prop::collection::vec(1..3u16, 1..5), steps in steps()
    ) {
        let mut world = World::new(&groups);
        world.finish();
        for step in steps {
            let of = |path: usize| path % groups.len();
            match step {
                Step::Write(block) => world.write(block),
                Step::Serve(path, at) => world.serve(of(path), at),
                Step::Cut(path, unsent) => world.cut(of(path), unsent),
                Step::Mend(path) => world.is_cut[of(path)] = false,
                Step::Finish => world.finish(),
                Step::Pass(seconds) => world.pass(seconds),
            }
        }
        world.end();
    }
}
