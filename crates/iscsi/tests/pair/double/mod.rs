//! Both ends of a connection in one thread and virtual time: an initiator that speaks the wire format, and a driver
//! around this crate's login and session with a disk in memory. A seed decides what happens next.
//!
//! The initiator checks all that it receives and panics at the first thing that RFC 7143 does not allow.

pub(crate) mod frame;
pub(crate) mod initiator;
pub(crate) mod target;

use std::time::Duration;

use lunette_iscsi::parameters::TargetLimits;
use lunette_iscsi::session::SessionSettings;

use initiator::{Initiator, Wish};
use target::Target;

/// Bytes in a block of the double's disk.
pub(crate) const BLOCK: u32 = 512;

/// A small generator of seeded numbers (splitmix64).
#[derive(Debug, Clone)]
pub(crate) struct Rng(pub(crate) u64);

impl Rng {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    /// A number below `end`, which is not zero.
    pub(crate) fn below(&mut self, end: u32) -> u32 {
        (self.next() % u64::from(end)) as u32
    }

    /// True once in `n` times.
    pub(crate) fn one_in(&mut self, n: u32) -> bool {
        self.below(n) == 0
    }

    pub(crate) fn bytes(&mut self, length: u32) -> Vec<u8> {
        (0..length).map(|_| self.next() as u8).collect()
    }
}

/// A target, its initiators, and what is on the wires between them. Initiator `n` uses connection `n`.
pub(crate) struct World {
    pub(crate) now: Duration,
    pub(crate) rng: Rng,
    pub(crate) target: Target,
    pub(crate) initiators: Vec<Initiator>,
}

impl World {
    pub(crate) fn new(seed: u64, limits: TargetLimits, settings: SessionSettings) -> Self {
        Self {
            now: Duration::from_secs(1000),
            rng: Rng(seed),
            target: Target::new(limits, settings),
            initiators: Vec::new(),
        }
    }

    /// A world with the target's defaults and one initiator that has logged in.
    pub(crate) fn with(seed: u64, wish: Wish) -> Self {
        let mut world = Self::new(seed, TargetLimits::default(), SessionSettings::default());
        world.connect(wish);
        world
    }

    /// Adds an initiator and lets it log in.
    pub(crate) fn connect(&mut self, wish: Wish) -> usize {
        let index = self.start(wish);
        self.settle();
        assert!(self.initiators[index].is_logged_in(), "the login went wrong");
        index
    }

    /// Adds an initiator whose first request waits to be sent.
    pub(crate) fn start(&mut self, wish: Wish) -> usize {
        let index = self.target.connect();
        self.initiators.push(Initiator::new(wish, self.rng.next()));
        assert_eq!(self.initiators.len(), index + 1);
        index
    }

    /// The first initiator, which most tests have alone.
    pub(crate) fn initiator(&mut self) -> &mut Initiator {
        &mut self.initiators[0]
    }

    /// Moves one PDU of the initiator's to the target.
    pub(crate) fn send(&mut self, index: usize) -> bool {
        let Some(bytes) = self.initiators[index].next_to_send() else { return false };
        self.target.receive(self.now, index, bytes);
        true
    }

    /// Moves one PDU of the target's to the initiator.
    pub(crate) fn receive(&mut self, index: usize) -> bool {
        let Some(bytes) = self.target.next_to_send(index) else { return false };
        self.initiators[index].receive(&bytes);
        true
    }

    /// Lets the disk end one operation, whichever the seed picks.
    pub(crate) fn work(&mut self) -> bool {
        let waiting = self.target.operations() as u32;
        if waiting == 0 {
            return false;
        }
        let pick = self.rng.below(waiting) as usize;
        self.target.work(pick);
        true
    }

    /// Does one thing that can be done, at random; false when there is nothing.
    pub(crate) fn step(&mut self) -> bool {
        let choices = 2 * self.initiators.len() as u32 + 1;
        let first = self.rng.below(choices);
        (0..choices).any(|offset| match (first + offset) % choices {
            0 => self.work(),
            choice if choice % 2 == 1 => self.send(choice as usize / 2),
            choice => self.receive(choice as usize / 2 - 1),
        })
    }

    /// Goes on until nothing is left to do.
    pub(crate) fn settle(&mut self) {
        while self.step() {}
    }

    /// Moves PDUs until the wires are empty, and leaves the disk's operations where they are.
    pub(crate) fn exchange(&mut self) {
        let count = self.initiators.len();
        while (0..count).any(|index| self.receive(index) || self.send(index)) {}
    }

    /// Lets time pass, a second at a time, as a driver does.
    pub(crate) fn pass(&mut self, seconds: u64) {
        for _ in 0..seconds {
            self.now += Duration::from_secs(1);
            self.target.tick(self.now);
            self.exchange();
        }
    }

    /// Ends the test: everything was answered once, nothing is kept, no number is missing.
    pub(crate) fn finish(&mut self) {
        self.settle();
        for index in 0..self.initiators.len() {
            let initiator = &mut self.initiators[index];
            if initiator.is_logged_in() && !initiator.logged_out && self.target.closed(index).is_none() {
                // Fetches the numbers as they are now.
                initiator.ping(true, Vec::new());
            }
        }
        self.settle();
        for (index, initiator) in self.initiators.iter().enumerate() {
            initiator.assert_all_concluded();
            self.target.assert_clean(index, initiator);
        }
        assert_eq!(self.target.operations(), 0);
    }
}
