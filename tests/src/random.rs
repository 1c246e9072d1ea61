//! Seeded numbers for tests that must replay: SplitMix64 (Steele, Lea, Flood 2014). Nothing secret comes from it.

use std::time::{SystemTime, UNIX_EPOCH};

/// A sequence that its seed determines.
#[derive(Debug, Clone)]
pub struct Random(u64);

impl Random {
    /// The sequence of `seed`.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next number.
    #[expect(clippy::should_implement_trait, reason = "an endless sequence is no useful iterator here")]
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `bound`, which is small enough for the bias not to matter.
    ///
    /// # Panics
    /// `bound` is 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }
}

/// A seed that differs from run to run; print it.
#[must_use]
pub fn fresh_seed() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |age| age.as_nanos());
    Random::new(now as u64 ^ u64::from(std::process::id())).next()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_is_a_sequence() {
        // The first number of seed 0, as published with the generator.
        assert_eq!(Random::new(0).next(), 0xe220_a839_7b1d_cdaf);
        let (mut one, mut same, mut other) = (Random::new(1), Random::new(1), Random::new(2));
        let numbers: Vec<u64> = (0..8).map(|_| one.next()).collect();
        assert!(numbers.iter().all(|number| *number == same.next()));
        assert!(numbers.iter().any(|number| *number != other.next()));
        assert!((0..100).all(|_| one.below(7) < 7));
    }
}
