//! Random numbers of a seed. Each purpose draws from a stream of its own, so that a workload with another mix of sizes still
//! reads and writes in the same order.

use rand_xoshiro::Xoshiro256StarStar;
use rand_xoshiro::rand_core::{Rng, SeedableRng};

/// What a stream is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    Kind = 1,
    Size,
    Order,
    Place,
    Arrival,
    // 6 and 7 were purposes of what there is no more: the streams of the others stay as they are.
    FileChoice = 8,
}

/// A stream of random numbers.
#[derive(Debug, Clone)]
pub(crate) struct Random(Xoshiro256StarStar);

impl Random {
    /// The stream of one worker for one purpose.
    pub(crate) fn new(seed: u64, worker: u32, purpose: Purpose) -> Self {
        let stream = scrambled(u64::from(worker) << 8 | purpose as u64);
        Self(Xoshiro256StarStar::seed_from_u64(scrambled(seed) ^ stream))
    }

    /// Below `bound`, evenly but for what 64 bits do not divide by it; 0 below 0.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.0.next_u64()) * u128::from(bound)) >> 64) as u64
    }

    /// From 0 to 1, without 1.
    pub(crate) fn unit(&mut self) -> f64 {
        // 53 bits, which a double holds exactly.
        (self.0.next_u64() >> 11) as f64 / (1_u64 << 53) as f64
    }
}

/// The output function of SplitMix64 (Steele, Lea and Flood, 2014): neighbours become far apart.
pub(crate) const fn scrambled(value: u64) -> u64 {
    let value = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let value = (value ^ value >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ value >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ value >> 31
}
