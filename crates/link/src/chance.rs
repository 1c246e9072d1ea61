//! Probabilities, and the random numbers that decide them.
//!
//! Each kind of bad luck draws from a stream of its own, so that a link with jitter loses the same packets as one without.

use std::fmt;
use std::str::FromStr;

use rand_xoshiro::Xoshiro256StarStar;
use rand_xoshiro::rand_core::{Rng, SeedableRng};

use crate::quantity::QuantityError;

/// A probability from 0 to 1. It reads and prints as a percentage, `0.01%`.
#[derive(Debug, Clone, Copy, PartialEq, PartialOrd, Default)]
pub struct Probability {
    percent: f64,
}

impl Probability {
    /// It never happens.
    pub const NEVER: Self = Self { percent: 0.0 };

    /// From a number between 0 and 1.
    ///
    /// # Errors
    /// [`QuantityError::Probability`] for another one.
    pub fn new(value: f64) -> Result<Self, QuantityError> {
        Self::from_percent(value * 100.0)
    }

    /// What is read is kept as it is, so that it prints alike.
    fn from_percent(percent: f64) -> Result<Self, QuantityError> {
        if (0.0..=100.0).contains(&percent) { Ok(Self { percent }) } else { Err(QuantityError::Probability) }
    }

    /// A number between 0 and 1.
    #[must_use]
    pub const fn get(self) -> f64 {
        self.percent / 100.0
    }
}

impl FromStr for Probability {
    type Err = QuantityError;

    fn from_str(text: &str) -> Result<Self, QuantityError> {
        let number = text.strip_suffix('%').ok_or(QuantityError::Probability)?;
        // What a number of Rust's may be besides digits, a percentage is not.
        if !number.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.') {
            return Err(QuantityError::Probability);
        }
        Self::from_percent(number.parse().map_err(|_| QuantityError::Probability)?)
    }
}

impl fmt::Display for Probability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}%", self.percent)
    }
}

/// What a stream of random numbers is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    Loss = 1,
    Duplication,
    Corruption,
    Reordering,
    Jitter,
}

/// A stream of random numbers.
#[derive(Debug, Clone)]
pub(crate) struct Chance(Xoshiro256StarStar);

impl Chance {
    pub(crate) fn new(seed: u64, purpose: Purpose) -> Self {
        // The generator's own seeding spreads neighbouring numbers.
        Self(Xoshiro256StarStar::seed_from_u64(seed.wrapping_mul(8).wrapping_add(purpose as u64)))
    }

    /// True as often as `probability` says. Takes one number from the stream, whatever the probability.
    pub(crate) fn happens(&mut self, probability: Probability) -> bool {
        self.fraction() < probability.get()
    }

    /// Even between 0 and 1, the latter not included.
    pub(crate) fn fraction(&mut self) -> f64 {
        (self.0.next_u64() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Even from 0 to `end`, the latter not included; 0 for an `end` of 0.
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        ((u128::from(self.0.next_u64()) * u128::from(end)) >> 64) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentages_are_read_as_they_are_printed() {
        for text in ["0%", "0.01%", "0.07%", "12.5%", "100%"] {
            assert_eq!(text.parse::<Probability>().unwrap().to_string(), text);
        }
        for wrong in ["", "%", "1", "101%", "-1%", "NaN%", "inf%", "1e1%", "1.2.3%"] {
            assert_eq!(wrong.parse::<Probability>(), Err(QuantityError::Probability), "{wrong}");
        }
    }

    #[test]
    fn chances_come_as_often_as_they_say() {
        let mut chance = Chance::new(7, Purpose::Loss);
        for percent in [0.0, 0.5, 20.0, 100.0] {
            let probability = Probability::new(percent / 100.0).unwrap();
            let count = 200_000;
            let happened = (0..count).filter(|_| chance.happens(probability)).count() as f64;
            // Four standard deviations of the binomial distribution.
            let deviation = (f64::from(count) * probability.get() * (1.0 - probability.get())).sqrt();
            assert!(
                (happened - f64::from(count) * probability.get()).abs() <= 4.0 * deviation,
                "{percent}: {happened}"
            );
        }
        assert_eq!(chance.below(0), 0);
        assert!((0..1000).all(|_| chance.below(3) < 3));
    }

    #[test]
    fn purposes_and_seeds_have_streams_of_their_own() {
        let first = |seed, purpose| Chance::new(seed, purpose).below(u64::MAX);
        let mut seen: Vec<u64> = (0..100)
            .flat_map(|seed| [Purpose::Loss, Purpose::Jitter].map(|purpose| first(seed, purpose)))
            .collect();
        seen.sort_unstable();
        seen.dedup();
        assert_eq!(seen.len(), 200);
    }
}
