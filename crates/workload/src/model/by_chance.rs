//! Commands of several kinds that take turns on both directions of a line, and of which each is of a kind by chance: a closed network,
//! simulated.
//!
//! Where a line and the commands under way are about the same limit, what formulas say of such a network is off by up to a fifth: mean
//! value analysis knows no lines that serve alike commands evenly, and Kingman's formula none whose commands come back. So it is played
//! through, in virtual time and always with the same chances.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::random::{Purpose, Random};

/// So many commands are counted: their kinds are as often as their shares say to within half of a hundredth.
const COUNTED: u64 = 50_000;
/// So many rounds go before, in which those that began together spread.
const ROUNDS_BEFORE: u64 = 20;
/// Any number would do; it is the same each time.
const SEED: u64 = 1;
/// Times are whole numbers of these.
const PER_SECOND: f64 = 1e12;

/// One of the ways in which a command is carried out.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Class {
    /// The share of all commands, 0 to 1.
    pub(super) share: f64,
    /// The directions that it takes one after the other, and for how long each is its own, in seconds.
    pub(super) hops: Vec<(usize, f64)>,
    /// What it takes behind each of them until the next, in seconds.
    pub(super) pause_s: f64,
}

/// Commands per second of so many under way; infinite where they take no time.
pub(super) fn by_chance(commands: u32, classes: &[Class]) -> f64 {
    let turn_s = |class: &Class| {
        class.hops.iter().map(|hop| hop.1).sum::<f64>() + class.pause_s * class.hops.len() as f64
    };
    let takes_time = classes.iter().any(|class| class.share > 0.0 && turn_s(class) > 0.0);
    if !takes_time {
        return f64::INFINITY;
    }
    // Far less than the whole numbers that there are.
    let whole = |seconds: f64| (seconds * PER_SECOND) as u64;
    let mut random = Random::new(SEED, 0, Purpose::Kind);
    let mut next_class = || {
        let mut rest = random.unit();
        let chosen = classes.iter().position(|class| {
            rest -= class.share;
            rest < 0.0
        });
        chosen.unwrap_or(classes.len() - 1)
    };
    let mut free_at = [0_u64; 2];
    // Each waits for its next hop: when, in which order it came, of which class, which hop.
    let mut waiting = BinaryHeap::new();
    let mut came = 0_u64;
    for _ in 0..commands.max(1) {
        waiting.push(Reverse((0, came, next_class(), 0)));
        came += 1;
    }
    let before = ROUNDS_BEFORE * u64::from(commands.max(1));
    let (mut done, mut began) = (0_u64, 0_u64);
    while let Some(Reverse((at, _, class, hop))) = waiting.pop() {
        let Class { hops, pause_s, .. } = &classes[class];
        let Some(&(way, line_s)) = hops.get(hop) else {
            done += 1;
            if done == before {
                began = at;
            } else if done == before + COUNTED {
                return COUNTED as f64 * PER_SECOND / (at.saturating_sub(began).max(1)) as f64;
            }
            waiting.push(Reverse((at, came, next_class(), 0)));
            came += 1;
            continue;
        };
        let line = &mut free_at[way];
        *line = at.max(*line).saturating_add(whole(line_s));
        waiting.push(Reverse((line.saturating_add(whole(*pause_s)), came, class, hop + 1)));
        came += 1;
    }
    f64::INFINITY
}

#[cfg(test)]
mod tests {
    use super::*;

    fn near(value: f64, wanted: f64) {
        assert!((value / wanted - 1.0).abs() < 0.01, "{value}, {wanted}");
    }

    #[test]
    fn alike_commands_reach_the_least_of_both_bounds() {
        let read = Class { share: 1.0, hops: vec![(0, 0.0), (1, 0.001)], pause_s: 0.0045 };
        for (commands, rate) in [(1, 100.0), (5, 500.0), (9, 900.0), (10, 1000.0), (100, 1000.0)] {
            near(by_chance(commands, std::slice::from_ref(&read)), rate);
        }
    }

    #[test]
    fn what_goes_either_way_by_chance_fills_neither_with_few_under_way() {
        let line_s = 0.001;
        let of = |commands, share, pause_s| {
            let both = [
                Class { share, hops: vec![(0, 0.0), (1, line_s)], pause_s },
                Class { share: 1.0 - share, hops: vec![(0, line_s), (1, 0.0)], pause_s },
            ];
            by_chance(commands, &both)
        };
        near(of(1, 0.5, 0.0), 1000.0);
        near(of(64, 0.8, 0.001), 1250.0);
        // Two that never pause: one of two lines is idle as long as both are of one kind.
        near(of(2, 0.5, 0.0), 4.0 / 3.0 * 1000.0);
        let few = of(12, 0.6, 0.00225);
        assert!((0.9..0.98).contains(&(few / 1667.0)), "{few}");
        assert_eq!(of(12, 0.6, 0.00225), few, "always the same chances");
    }

    #[test]
    fn what_takes_no_time_has_no_end() {
        let none = Class { share: 1.0, hops: vec![(0, 0.0)], pause_s: 0.0 };
        assert!(by_chance(3, &[none]).is_infinite() && by_chance(3, &[]).is_infinite());
        let never = Class { share: 0.0, hops: vec![(0, 1.0)], pause_s: 1.0 };
        assert!(by_chance(3, &[never]).is_infinite());
    }
}
