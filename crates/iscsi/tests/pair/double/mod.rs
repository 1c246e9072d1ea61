//! Both ends of a connection in one thread and virtual time: an initiator that speaks the wire format, and a driver
//! around this crate's login and session with a disk in memory. A seed decides what happens next.
//!
//! The initiator checks all that it receives and panics at the first thing that RFC 7143 does not allow.

mod at_once;
pub(crate) mod core;
pub(crate) mod frame;
pub(crate) mod initiator;
pub(crate) mod recovering;
mod rules;
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

/// A target, its initiators, and what is on the wires between them. The first connections of initiators have the wires
/// with the initiators' numbers, unless another joins before.
pub(crate) struct World {
    pub(crate) now: Duration,
    pub(crate) rng: Rng,
    pub(crate) target: Target,
    pub(crate) initiators: Vec<Initiator>,
    /// Initiator and connection at the other end of each of the target's; none when it has been given up.
    wires: Vec<Option<(usize, usize)>>,
}

impl World {
    pub(crate) fn new(seed: u64, limits: TargetLimits, settings: SessionSettings) -> Self {
        Self {
            now: Duration::from_secs(1000),
            rng: Rng(seed),
            target: Target::new(limits, settings),
            initiators: Vec::new(),
            wires: Vec::new(),
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
        let index = self.initiators.len();
        self.initiators.push(Initiator::new(wish, self.rng.next()));
        self.wire(index, 0);
        index
    }

    fn wire(&mut self, initiator: usize, link: usize) -> usize {
        self.wires.push(Some((initiator, link)));
        let wire = self.target.connect();
        assert_eq!(wire, self.wires.len() - 1);
        wire
    }

    /// Adds a connection to the first initiator's session; answers its wire, while its login is under way.
    pub(crate) fn join(&mut self) -> usize {
        let link = self.initiators[0].join();
        self.wire(0, link)
    }

    /// Has a connection of the first initiator replaced (6.3.4): what is on its wire is lost.
    pub(crate) fn reinstate(&mut self, link: usize) -> usize {
        self.unwire(link);
        self.initiators[0].reinstate(link);
        self.wire(0, link)
    }

    /// The wire of a connection of the first initiator.
    pub(crate) fn wire_of(&self, link: usize) -> usize {
        self.wires.iter().position(|wire| *wire == Some((0, link))).expect("the connection is there")
    }

    fn unwire(&mut self, link: usize) {
        let wire = self.wire_of(link);
        self.wires[wire] = None;
    }

    /// The first initiator, which most tests have alone.
    pub(crate) fn initiator(&mut self) -> &mut Initiator {
        &mut self.initiators[0]
    }

    /// Moves one PDU of the initiator's to the target.
    pub(crate) fn send(&mut self, wire: usize) -> bool {
        let Some((initiator, link)) = self.wires[wire] else { return false };
        let Some(bytes) = self.initiators[initiator].next_to_send(link) else { return false };
        self.target.receive(self.now, wire, bytes);
        true
    }

    /// Moves one PDU of the target's to the initiator.
    pub(crate) fn receive(&mut self, wire: usize) -> bool {
        let Some(bytes) = self.target.next_to_send(wire) else { return false };
        if let Some((initiator, link)) = self.wires[wire]
            && !self.initiators[initiator].links[link].is_gone
        {
            self.initiators[initiator].receive(link, &bytes);
        }
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
        let choices = 2 * self.wires.len() as u32 + 1;
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
        let count = self.wires.len();
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
        for initiator in &mut self.initiators {
            if let Some(&up) = initiator.up().first() {
                // Fetches the numbers as they are now.
                initiator.on = up;
                initiator.ping(true, Vec::new());
            }
        }
        self.settle();
        for initiator in &self.initiators {
            initiator.assert_all_concluded();
        }
        for (wire, end) in self.wires.iter().enumerate() {
            self.target.assert_clean(wire);
            if let Some((initiator, _)) = end.filter(|_| self.target.closed(wire).is_none()) {
                self.initiators[initiator].assert_window(self.target.window_depth());
            }
        }
        assert_eq!(self.target.operations(), 0);
    }
}
