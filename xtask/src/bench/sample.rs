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

/// What one side gave: what it did, and what that took of its processors.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Run {
    /// Operations, or of large blocks bytes, a second.
    pub(crate) rate: f64,
    /// For each operation, where it is known.
    pub(crate) processor_us: Option<f64>,
}

impl Run {
    pub(crate) fn rates(runs: &[Self]) -> Vec<f64> {
        runs.iter().map(|run| run.rate).collect()
    }

    pub(crate) fn processor_us(runs: &[Self]) -> Vec<f64> {
        runs.iter().filter_map(|run| run.processor_us).collect()
    }

    /// Several that took equally long, as one; nothing of nothing.
    pub(crate) fn together(runs: &[Self]) -> Option<Self> {
        let rates: f64 = runs.iter().map(|run| run.rate).sum();
        let spent: Option<f64> = runs.iter().map(|run| Some(run.processor_us? * run.rate)).sum();
        let processor_us = spent.filter(|_| rates > 0.0).map(|spent| spent / rates);
        (!runs.is_empty()).then(|| Self { rate: rates / runs.len() as f64, processor_us })
    }
}

/// Like [`interleave_warm`] in so many times the rounds, of which `turns` in a row count as one: what a host gives to others for a moment
/// is missing to all sides of a round alike. A side that does not run in a row (`None`) has no rounds there.
pub(crate) fn interleave_turns(
    rounds: usize,
    turns: usize,
    rows: usize,
    sides: usize,
    mut run: impl FnMut(usize, usize) -> Result<Option<Run>>,
) -> Result<Vec<Vec<Vec<Run>>>> {
    // As long as a round.
    for _ in 1..turns {
        for row in 0..rows {
            for side in 0..sides {
                run(row, side)?;
            }
        }
    }
    let results = interleave_warm(rounds * turns, rows, sides, run)?;
    let together =
        |runs: &[Option<Run>]| Run::together(&runs.iter().copied().flatten().collect::<Vec<Run>>());
    let rounds = |runs: Vec<Option<Run>>| runs.chunks(turns.max(1)).filter_map(together).collect();
    Ok(results.into_iter().map(|sides| sides.into_iter().map(rounds).collect()).collect())
}

/// [`interleave`] after every side of every row has run once for nothing: whatever is slow only at first is over then.
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
    fn turns_of_a_round_are_one() {
        let run = |rate, processor_us| Run { rate, processor_us: Some(processor_us) };
        let mut turn = 0.0;
        // One side alone; the first two are to warm up.
        let results = interleave_turns(2, 2, 1, 2, |_, side| {
            turn += f64::from(u8::from(side == 0));
            Ok((side == 0).then(|| run(10.0 * turn, 1.0 + turn)))
        });
        let sides = results.expect("no error").remove(0);
        let rates: Vec<f64> = sides[0].iter().map(|run| run.rate).collect();
        assert_eq!((rates, sides[1].len()), (vec![35.0, 55.0], 0));
        let spent = Run::together(&[run(10.0, 4.0), run(30.0, 8.0)]).and_then(|run| run.processor_us);
        assert!(spent.is_some_and(|spent| (spent - 7.0).abs() < 1e-9), "by operations: {spent:?}");
        let unknown = Run { rate: 1.0, processor_us: None };
        assert!(Run::together(&[unknown, run(1.0, 1.0)]).is_some_and(|run| run.processor_us.is_none()));
        assert!(Run::together(&[]).is_none());
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
