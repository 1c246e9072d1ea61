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
    /// The model of Gilbert (1960) and Elliott (1963): the wire is good or bad, and each packet may turn it.
    Bursts {
        /// That a packet finds a good wire turned bad.
        to_bad: Probability,
        /// That a packet finds a bad wire turned good: bursts have 1 / `to_good` packets in the mean.
        to_good: Probability,
        /// That a bad wire loses a packet.
        bad: Probability,
        /// That a good one does; in Gilbert's form of the model never.
        good: Probability,
    },
}

impl Loss {
    /// The share of packets that are lost in the long run.
    #[must_use]
    pub fn mean(&self) -> f64 {
        match self {
            Self::None => 0.0,
            Self::Independent(probability) => probability.get(),
            Self::Bursts { to_bad, to_good, bad, good } => {
                let is_bad = share_of_bad(*to_bad, *to_good);
                bad.get() * is_bad + good.get() * (1.0 - is_bad)
            }
        }
    }

    /// The variance of the share that is lost of so many packets, of so many that the wire has turned often among them.
    #[must_use]
    pub fn variance(&self, packets: f64) -> f64 {
        let mean = self.mean();
        let alone = mean * (1.0 - mean);
        let together = match self {
            Self::Bursts { to_bad, to_good, bad, good } => {
                let is_bad = share_of_bad(*to_bad, *to_good);
                // Neighbours share the wire's state, which a packet later is correlated by so much.
                let correlation = (1.0 - to_bad.get() - to_good.get()).min(1.0 - f64::EPSILON);
                let states = is_bad * (1.0 - is_bad) * (bad.get() - good.get()).powi(2);
                2.0 * states * correlation / (1.0 - correlation)
            }
            _ => 0.0,
        };
        (alone + together).max(0.0) / packets.max(1.0)
    }
}

/// In the long run. A wire that never turns stays as it began: good.
fn share_of_bad(to_bad: Probability, to_good: Probability) -> f64 {
    let turns = to_bad.get() + to_good.get();
    if turns > 0.0 { to_bad.get() / turns } else { 0.0 }
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
            Loss::Bursts { to_bad, to_good, bad, good } => {
                let turn = if self.is_bad { to_good } else { to_bad };
                self.is_bad ^= chance.happens(*turn);
                // A number is taken either way: which packets are lost does not depend on how many were before.
                chance.happens(if self.is_bad { *bad } else { *good })
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

    fn bursts(percentages: [f64; 4]) -> Loss {
        let [to_bad, to_good, bad, good] = percentages.map(percent);
        Loss::Bursts { to_bad, to_good, bad, good }
    }

    fn lost_of(loss: &Loss, count: usize) -> f64 {
        losses(loss, count).into_iter().filter(|lost| *lost).count() as f64 / count as f64
    }

    #[test]
    fn as_many_are_lost_as_the_closed_form_says() {
        for (loss, mean) in [
            (Loss::None, 0.0),
            (Loss::Independent(percent(1.0)), 0.01),
            // 0.8 * 0.005 / 0.205
            (bursts([0.5, 20.0, 80.0, 0.0]), 0.019_512_195),
            // And 0.02 * 0.2 / 0.205 of the good wire.
            (bursts([0.5, 20.0, 80.0, 2.0]), 0.039_024_390),
            // A wire that turns more often than not, and one that is the better for being bad.
            (bursts([90.0, 60.0, 50.0, 10.0]), 0.34),
            (bursts([10.0, 10.0, 0.0, 50.0]), 0.25),
        ] {
            assert!((loss.mean() - mean).abs() < 1e-8, "{loss:?}: {}", loss.mean());
            let count = 2_000_000;
            let deviation = loss.variance(count as f64).sqrt();
            let lost = lost_of(&loss, count);
            assert!((lost - mean).abs() <= 4.0 * deviation, "{loss:?}: {lost}, {deviation}");
        }
    }

    #[test]
    fn shares_vary_as_much_as_the_closed_form_says() {
        for loss in [
            Loss::Independent(percent(10.0)),
            bursts([5.0, 20.0, 80.0, 0.0]),
            bursts([5.0, 20.0, 80.0, 5.0]),
            bursts([90.0, 60.0, 50.0, 10.0]),
        ] {
            let (runs, packets) = (2000, 1000);
            let lost = losses(&loss, runs * packets);
            let squares: f64 = lost
                .chunks(packets)
                .map(|run| run.iter().filter(|lost| **lost).count() as f64 / packets as f64)
                .map(|share| (share - loss.mean()).powi(2))
                .sum();
            let variance = squares / runs as f64;
            // The variance of so many has a deviation of itself: sqrt(2 / 2000), of which this is four and more.
            let ratio = variance / loss.variance(packets as f64);
            assert!((0.86..1.14).contains(&ratio), "{loss:?}: {ratio}");
        }
    }

    #[test]
    fn bursts_are_as_long_as_they_should_be() {
        let lost = losses(&bursts([1.0, 25.0, 100.0, 0.0]), 1_000_000);
        let bursts = lost.windows(2).filter(|pair| !pair[0] && pair[1]).count() as f64;
        let mean = lost.iter().filter(|lost| **lost).count() as f64 / bursts;
        assert!((3.8..4.2).contains(&mean), "{mean}");
    }

    #[test]
    fn a_wire_that_never_turns_is_good() {
        let loss = bursts([0.0, 0.0, 100.0, 0.0]);
        assert!(loss.mean().abs() < f64::EPSILON && !losses(&loss, 1000).contains(&true));
        let loss = bursts([0.0, 0.0, 100.0, 5.0]);
        assert!((loss.mean() - 0.05).abs() < 1e-12);
        assert!((loss.variance(100.0) - 0.05 * 0.95 / 100.0).abs() < 1e-12);
    }

    #[test]
    fn a_good_wire_that_loses_too_loses_what_one_that_does_not_has_lost() {
        let gilbert = losses(&bursts([1.0, 10.0, 50.0, 0.0]), 10_000);
        let elliott = losses(&bursts([1.0, 10.0, 50.0, 1.0]), 10_000);
        assert!(gilbert.iter().zip(&elliott).all(|(one, other)| *other || !*one), "the same chances");
        let count = |lost: &[bool]| lost.iter().filter(|lost| **lost).count();
        assert!(count(&elliott) > count(&gilbert));
    }
}
