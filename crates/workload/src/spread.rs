//! How random addresses are distributed over the places of a range.
//!
//! Zipf's law is drawn by rejection and inversion (Hörmann and Derflinger, 1996): in constant time and memory for any number of
//! places. The rank of a place and where it lies have nothing to do with each other, as on a disk.

use std::fmt;
use std::str::FromStr;

use crate::quantity::Percent;
use crate::random::Random;
use crate::{WorkloadError, random};

/// Where random operations go.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Spread {
    /// Everywhere alike.
    Uniform,
    /// The place of rank k is met in proportion to k^-exponent; above 0, at most 5.
    Zipf {
        /// The exponent.
        exponent: f64,
    },
    /// The first `share` of the range has `hits` of the operations; within it and behind it they are even.
    Hot {
        /// How much of the range is hot; 1 to 99.
        share: Percent,
        /// How much of what happens is there.
        hits: Percent,
    },
}

const EXPONENT_MAX: f64 = 5.0;

impl FromStr for Spread {
    type Err = WorkloadError;

    fn from_str(text: &str) -> Result<Self, WorkloadError> {
        let wrong = || WorkloadError::Spread(text.to_owned());
        match text.split_once(':') {
            None if text == "uniform" => Ok(Self::Uniform),
            Some(("zipf", exponent)) => {
                let is_plain = exponent.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
                let exponent: f64 = exponent.parse().ok().filter(|_| is_plain).ok_or_else(wrong)?;
                let fits = exponent > 0.0 && exponent <= EXPONENT_MAX;
                if fits { Ok(Self::Zipf { exponent }) } else { Err(wrong()) }
            }
            Some(("hot", parts)) => {
                let (share, hits) = parts.split_once('/').ok_or_else(wrong)?;
                let percent = |part: &str| part.parse::<Percent>().map_err(|_| wrong());
                let (share, hits) = (percent(share)?, percent(hits)?);
                if (1..100).contains(&share.get()) { Ok(Self::Hot { share, hits }) } else { Err(wrong()) }
            }
            _ => Err(wrong()),
        }
    }
}

impl fmt::Display for Spread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Uniform => f.write_str("uniform"),
            Self::Zipf { exponent } => write!(f, "zipf:{exponent}"),
            Self::Hot { share, hits } => write!(f, "hot:{share}/{hits}"),
        }
    }
}

/// A distribution over a number of places.
#[derive(Debug, Clone)]
pub(crate) enum Places {
    Uniform { count: u64 },
    Zipf { ranks: Zipf, stride: u64 },
    Hot { count: u64, hot: u64, hits: Percent },
}

impl Places {
    /// Over `count` places, at least 1.
    pub(crate) fn new(spread: Spread, count: u64) -> Self {
        match spread {
            Spread::Zipf { exponent } if count > 1 => {
                Self::Zipf { ranks: Zipf::new(count, exponent), stride: stride(count) }
            }
            Spread::Hot { share, hits } if count > 1 => {
                let hot = (u128::from(count) * u128::from(share.get()) / 100) as u64;
                Self::Hot { count, hot: hot.clamp(1, count - 1), hits }
            }
            _ => Self::Uniform { count: count.max(1) },
        }
    }

    /// One place, below the count.
    pub(crate) fn pick(&self, random: &mut Random) -> u64 {
        match self {
            Self::Uniform { count } => random.below(*count),
            Self::Zipf { ranks, stride } => {
                let rank = ranks.pick(random) - 1;
                (u128::from(rank) * u128::from(*stride) % u128::from(ranks.count)) as u64
            }
            Self::Hot { count, hot, hits } => {
                if random.below(100) < u64::from(hits.get()) {
                    random.below(*hot)
                } else {
                    hot + random.below(count - hot)
                }
            }
        }
    }
}

/// A number without a common divisor with `count`: multiples of it visit every place once.
fn stride(count: u64) -> u64 {
    let mut stride = random::scrambled(count) | 1;
    loop {
        let (mut one, mut other) = (stride, count);
        while other > 0 {
            (one, other) = (other, one % other);
        }
        if one == 1 {
            return stride;
        }
        stride = stride.wrapping_add(2);
    }
}

/// Ranks from 1 to `count` after Zipf's law.
#[derive(Debug, Clone)]
pub(crate) struct Zipf {
    count: u64,
    exponent: f64,
    /// The integral of the density at its two ends.
    integral_low: f64,
    integral_high: f64,
    /// Within this distance below a rank nothing has to be rejected.
    sure: f64,
}

impl Zipf {
    fn new(count: u64, exponent: f64) -> Self {
        let mut zipf = Self { count, exponent, integral_low: 0.0, integral_high: 0.0, sure: 0.0 };
        zipf.integral_low = zipf.integral(1.5) - 1.0;
        zipf.integral_high = zipf.integral(count as f64 + 0.5);
        zipf.sure = 2.0 - zipf.inverse(zipf.integral(2.5) - zipf.density(2.0));
        zipf
    }

    fn density(&self, x: f64) -> f64 {
        x.powf(-self.exponent)
    }

    /// From 1 to `x`; the logarithm is the limit at an exponent of 1.
    fn integral(&self, x: f64) -> f64 {
        let power = 1.0 - self.exponent;
        let logarithm = x.ln();
        if power.abs() < 1e-9 { logarithm } else { (power * logarithm).exp_m1() / power }
    }

    fn inverse(&self, integral: f64) -> f64 {
        let power = 1.0 - self.exponent;
        // Below -1 there is nothing; rounding may lead there.
        if power.abs() < 1e-9 { integral.exp() } else { ((integral * power).max(-1.0).ln_1p() / power).exp() }
    }

    fn pick(&self, random: &mut Random) -> u64 {
        loop {
            let point = self.integral_high + random.unit() * (self.integral_low - self.integral_high);
            let x = self.inverse(point);
            // A number that is too large or none becomes one of the ends.
            let rank = (x + 0.5) as u64;
            let rank = rank.clamp(1, self.count);
            let distance = rank as f64 - x;
            if distance <= self.sure || point >= self.integral(rank as f64 + 0.5) - self.density(rank as f64)
            {
                return rank;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Purpose;

    const DRAWS: u32 = 200_000;

    fn counts(spread: &str, count: u64) -> Vec<u32> {
        let places = Places::new(spread.parse().unwrap(), count);
        let mut random = Random::new(11, 0, Purpose::Place);
        let mut counts = vec![0; count as usize];
        for _ in 0..DRAWS {
            counts[places.pick(&mut random) as usize] += 1;
        }
        counts
    }

    /// Pearson's statistic against probabilities, and what it may be: its mean and five standard deviations.
    fn chi_squared(counts: &[u32], probability: impl Fn(usize) -> f64) -> (f64, f64) {
        let expected = |at| probability(at) * f64::from(DRAWS);
        let statistic = counts.iter().enumerate().map(|(at, count)| {
            let expected = expected(at);
            (f64::from(*count) - expected).powi(2) / expected
        });
        let freedom = (counts.len() - 1) as f64;
        (statistic.sum(), freedom + 5.0 * (2.0 * freedom).sqrt())
    }

    #[test]
    fn spreads_are_read_as_they_are_printed() {
        for text in ["uniform", "zipf:0.99", "zipf:1.2", "hot:10%/90%"] {
            assert_eq!(text.parse::<Spread>().unwrap().to_string(), text);
        }
        for text in [
            "",
            "zipf",
            "zipf:0",
            "zipf:-1",
            "zipf:nan",
            "zipf:inf",
            "zipf:6",
            "hot:10%",
            "hot:0%/9%",
            "hot:100%/1%",
        ] {
            assert!(text.parse::<Spread>().is_err(), "{text}");
        }
    }

    #[test]
    fn uniform_places_are_met_alike() {
        let (statistic, limit) = chi_squared(&counts("uniform", 100), |_| 0.01);
        assert!(statistic < limit, "{statistic}");
    }

    #[test]
    fn zipf_follows_its_law_at_every_rank() {
        for exponent in [0.5, 0.99, 1.0, 1.5, 3.0] {
            let mut counts = counts(&format!("zipf:{exponent}"), 50);
            // The ranks are scattered: the most frequent place has rank 1.
            counts.sort_unstable_by(|one, other| other.cmp(one));
            let total: f64 = (1..=50).map(|rank| f64::from(rank).powf(-exponent)).sum();
            let probability = |at: usize| ((at + 1) as f64).powf(-exponent) / total;
            // Where sorting could exchange neighbours that are met seldom, it makes the fit look better, not worse.
            let (statistic, limit) = chi_squared(&counts, probability);
            assert!(statistic < limit, "{exponent}: {statistic}");
        }
    }

    #[test]
    fn the_first_ranks_of_many_places_have_their_share() {
        let zipf = Zipf::new(1 << 40, 1.0);
        let mut random = Random::new(3, 0, Purpose::Place);
        let first = (0..DRAWS).filter(|_| zipf.pick(&mut random) == 1).count() as f64 / f64::from(DRAWS);
        // The harmonic number of 2^40: its logarithm and Euler's constant.
        let expected = 1.0 / (40.0 * std::f64::consts::LN_2 + 0.577_215_664_9);
        let deviation = (expected * (1.0 - expected) / f64::from(DRAWS)).sqrt();
        assert!((first - expected).abs() < 5.0 * deviation, "{first} instead of {expected}");
    }

    #[test]
    fn ranks_are_scattered_over_all_places() {
        for count in [2_u64, 3, 10, 4096, 99_991] {
            let stride = stride(count);
            let mut seen = vec![false; count as usize];
            for rank in 0..count {
                seen[(u128::from(rank) * u128::from(stride) % u128::from(count)) as usize] = true;
            }
            assert!(seen.iter().all(|seen| *seen), "{count}");
        }
    }

    #[test]
    fn the_hot_part_has_its_hits() {
        let counts = counts("hot:20%/90%", 100);
        let (statistic, limit) = chi_squared(&counts, |at| if at < 20 { 0.9 / 20.0 } else { 0.1 / 80.0 });
        assert!(statistic < limit, "{statistic}");
    }
}
