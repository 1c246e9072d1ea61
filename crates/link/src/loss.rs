//! Which packets the wire loses: each by its own bad luck, or many in a row.

use crate::chance::{Chance, Probability};

/// How a wire loses packets.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub enum Loss {
    /// It loses none.
    #[default]
    None,
    /// Each packet with this probability, whatever became of the others.
    Independent(Probability),
    /// The model of Gilbert and Elliott: the wire is good or bad, and each packet may turn it.
    Bursts {
        /// That a packet finds a good wire turned bad.
        to_bad: Probability,
        /// That a packet finds a bad wire turned good: bursts have 1 / `to_good` packets in the mean.
        to_good: Probability,
        /// That a bad wire loses a packet. A good one loses none.
        bad: Probability,
    },
}

impl Loss {
    /// The share of packets that are lost in the long run.
    #[must_use]
    pub fn mean(&self) -> f64 {
        match self {
            Self::None => 0.0,
            Self::Independent(probability) => probability.get(),
            Self::Bursts { to_bad, to_good, bad } => {
                let turns = to_bad.get() + to_good.get();
                // A wire that never turns stays as it began: good.
                if turns > 0.0 { bad.get() * to_bad.get() / turns } else { 0.0 }
            }
        }
    }
}

/// A wire with its memory.
#[derive(Debug, Clone, Default)]
pub(crate) struct Wire {
    is_bad: bool,
}

impl Wire {
    /// Whether the next packet is lost.
    pub(crate) fn loses(&mut self, loss: &Loss, chance: &mut Chance) -> bool {
        match loss {
            Loss::None => false,
            Loss::Independent(probability) => chance.happens(*probability),
            Loss::Bursts { to_bad, to_good, bad } => {
                let turn = if self.is_bad { to_good } else { to_bad };
                self.is_bad ^= chance.happens(*turn);
                // A number is taken either way: which packets are lost does not depend on how many were before.
                let is_lost = chance.happens(*bad);
                self.is_bad && is_lost
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chance::Purpose;

    fn percent(value: f64) -> Probability {
        Probability::new(value / 100.0).unwrap()
    }

    fn losses(loss: &Loss, count: usize) -> Vec<bool> {
        let (mut wire, mut chance) = (Wire::default(), Chance::new(11, Purpose::Loss));
        (0..count).map(|_| wire.loses(loss, &mut chance)).collect()
    }

    #[test]
    fn as_many_are_lost_as_the_closed_form_says() {
        let bursts = Loss::Bursts { to_bad: percent(0.5), to_good: percent(20.0), bad: percent(80.0) };
        for (loss, mean) in [
            (Loss::None, 0.0),
            (Loss::Independent(percent(1.0)), 0.01),
            // 0.8 * 0.005 / 0.205
            (bursts, 0.019_512_195),
        ] {
            assert!((loss.mean() - mean).abs() < 1e-8);
            let count = 2_000_000;
            let lost = losses(&loss, count).into_iter().filter(|lost| *lost).count() as f64 / count as f64;
            assert!((lost - mean).abs() <= mean * 0.03, "{loss:?}: {lost}");
        }
    }

    #[test]
    fn bursts_are_as_long_as_they_should_be() {
        let loss = Loss::Bursts { to_bad: percent(1.0), to_good: percent(25.0), bad: percent(100.0) };
        let lost = losses(&loss, 1_000_000);
        let bursts = lost.windows(2).filter(|pair| !pair[0] && pair[1]).count() as f64;
        let mean = lost.iter().filter(|lost| **lost).count() as f64 / bursts;
        assert!((3.8..4.2).contains(&mean), "{mean}");
    }

    #[test]
    fn a_wire_that_never_turns_is_good() {
        let loss = Loss::Bursts { to_bad: percent(0.0), to_good: percent(0.0), bad: percent(100.0) };
        assert!(loss.mean().abs() < f64::EPSILON && !losses(&loss, 1000).contains(&true));
    }
}
