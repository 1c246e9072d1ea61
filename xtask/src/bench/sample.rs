//! Rounds in which the sides take turns, and what is made of their samples: median and spread, of values and of ratios.

use anyhow::Result;
use serde::{Deserialize, Serialize};

/// What several rounds gave.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Samples {
    pub(crate) median: f64,
    /// (largest - smallest) / median; 0 for a single sample.
    pub(crate) spread: f64,
    /// One a round.
    pub(crate) samples: Vec<f64>,
}

impl Samples {
    /// Nothing of nothing.
    pub(crate) fn of(samples: Vec<f64>) -> Option<Self> {
        let mut sorted = samples.clone();
        sorted.sort_by(f64::total_cmp);
        let (smallest, largest) = (*sorted.first()?, *sorted.last()?);
        let middle = sorted.len() / 2;
        let median = if sorted.len() % 2 == 1 {
            sorted[middle]
        } else {
            f64::midpoint(sorted[middle - 1], sorted[middle])
        };
        let spread = if median == 0.0 { 0.0 } else { (largest - smallest) / median.abs() };
        Some(Self { median, spread, samples })
    }

    /// The ratios of each round: the two sides of one round met the machine in the same mood, so their ratio varies less
    /// than the values do.
    pub(crate) fn ratio(above: &[f64], below: &[f64]) -> Option<Self> {
        let pairs = above.iter().zip(below).filter(|(_, below)| **below > 0.0);
        Self::of(pairs.map(|(above, below)| above / below).collect())
    }
}

/// Runs every row in every round, in a row every side once; a side goes first as often as any other. The answer has
/// the results by row, side and round.
pub(crate) fn interleave<T>(
    rounds: usize,
    rows: usize,
    sides: usize,
    mut run: impl FnMut(usize, usize) -> Result<T>,
) -> Result<Vec<Vec<Vec<T>>>> {
    let mut results: Vec<Vec<Vec<T>>> =
        (0..rows).map(|_| (0..sides).map(|_| Vec::with_capacity(rounds)).collect()).collect();
    for round in 0..rounds {
        for (row, results) in results.iter_mut().enumerate() {
            for turn in 0..sides {
                let side = (round + turn) % sides;
                results[side].push(run(row, side)?);
            }
            eprint!(".");
        }
    }
    eprintln!();
    Ok(results)
}

/// The same after every side of every row has run once for nothing: whatever is slow only at first is over then.
pub(crate) fn interleave_warm<T>(
    rounds: usize,
    rows: usize,
    sides: usize,
    mut run: impl FnMut(usize, usize) -> Result<T>,
) -> Result<Vec<Vec<Vec<T>>>> {
    for row in 0..rows {
        for side in 0..sides {
            run(row, side)?;
        }
    }
    interleave(rounds, rows, sides, run)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn median_and_spread() {
        let odd = Samples::of(vec![30.0, 10.0, 20.0]).expect("samples");
        assert!((odd.median - 20.0).abs() < 1e-9 && (odd.spread - 1.0).abs() < 1e-9);
        let even = Samples::of(vec![10.0, 20.0]).expect("samples");
        assert!((even.median - 15.0).abs() < 1e-9);
        assert_eq!(Samples::of(vec![0.0]).expect("a sample").spread, 0.0);
        assert_eq!(Samples::of(Vec::new()), None);
    }

    #[test]
    fn a_ratio_is_taken_round_by_round() {
        // The machine doubled its speed after the first round; ours was twice as fast in both.
        let ratio = Samples::ratio(&[20.0, 40.0], &[10.0, 20.0]).expect("samples");
        assert!((ratio.median - 2.0).abs() < 1e-9 && ratio.spread.abs() < 1e-9);
        assert_eq!(Samples::ratio(&[1.0], &[0.0]), None);
    }

    #[test]
    fn everybody_goes_first_in_turn() {
        let mut order = Vec::new();
        let results = interleave(3, 1, 3, |_, side| {
            order.push(side);
            Ok(side)
        });
        assert_eq!(order, [0, 1, 2, 1, 2, 0, 2, 0, 1]);
        assert_eq!(results.expect("no error"), [[[0, 0, 0], [1, 1, 1], [2, 2, 2]]]);
    }

    #[test]
    fn what_warms_up_is_not_counted() {
        let mut runs = 0;
        let results = interleave_warm(2, 1, 2, |_, _| {
            runs += 1;
            Ok(runs)
        });
        assert_eq!(results.expect("no error"), [[[3, 6], [4, 5]]]);
    }
}
