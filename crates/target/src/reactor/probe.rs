//! Whether it pays to wait awake for gaps that are longer than a waking usually takes, which is tried now and then.
//!
//! Pure, as [`super::gaps`] is. On a machine whose host makes waking dear, gaps are long because both ends sleep: each waits for the
//! other's waking, too. No gap that was slept for tells that; a few that are spent awake do.

use std::time::Duration;

use super::gaps::AWAKE_MAX;

/// Gaps that one probe spends awake, if they do not show before that it does not pay.
const WAITS: u32 = 12;

/// What a probe may teach at most.
const TAUGHT_MAX: Duration = Duration::from_micros(250);

/// Longer gaps count as this one, and are not probed for if they are so long on average: as much has to be saved as is spent.
const GAP_MAX: Duration = TAUGHT_MAX.saturating_mul(2);

/// The weight of the latest gap that was slept for: one part in so many.
const WEIGHT: u32 = 8;

/// Time between two probes: short behind one that taught something.
const TERM_MIN: Duration = Duration::from_millis(20);
const TERM_MAX: Duration = TERM_MIN.saturating_mul(8);

/// For so long what was taught is believed: at first shortly, since gaps that have become shorter by themselves teach it, too, and
/// twice as long each time that it has been taught again.
const BELIEVED_MIN: Duration = Duration::from_millis(100);
const DOUBLINGS_MAX: u32 = 4;

/// How a wait was spent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Spent {
    /// Its event came while we were awake.
    Awake,
    /// Awake at first, and then asleep, or others had the processor meanwhile.
    InVain,
    Asleep,
}

#[derive(Debug)]
pub(super) struct Probe {
    /// The average of gaps that were slept for.
    asleep: Duration,
    /// Gaps of this probe that are still to come, and the sum of those that came.
    left: u32,
    awake: Duration,
    /// Time from probe to probe, and what is left of it.
    term: Duration,
    until_next: Duration,
    /// How many probes in a row have taught something.
    agreed: u32,
    /// What the last of them has taught, and how long that is believed.
    taught: Duration,
    believed: Duration,
}

impl Default for Probe {
    fn default() -> Self {
        Self {
            asleep: GAP_MAX,
            left: 0,
            awake: Duration::ZERO,
            term: TERM_MIN,
            until_next: TERM_MIN,
            agreed: 0,
            taught: AWAKE_MAX,
            believed: Duration::ZERO,
        }
    }
}

impl Probe {
    /// Whether the next wait is one of a probe: awake, whatever gaps have been like.
    pub(super) const fn is_on(&self) -> bool {
        self.left > 0
    }

    /// The longest gap that is worth being awake for.
    pub(super) fn awake_max(&self) -> Duration {
        if self.has_taught() { self.taught } else { AWAKE_MAX }
    }

    /// Whether the last probe has taught that waking is dear here.
    pub(super) const fn has_taught(&self) -> bool {
        !self.believed.is_zero()
    }

    /// A wait took so long.
    pub(super) fn learn(&mut self, gap: Duration, spent: Spent) {
        self.believed = self.believed.saturating_sub(gap);
        let gap = gap.min(GAP_MAX);
        match (self.is_on(), spent) {
            (true, Spent::Awake) => {
                self.awake += gap;
                self.left -= 1;
                // As much is saved as is spent, which is what AWAKE_MAX says of a waking as it usually is.
                if self.awake > self.asleep * WAITS / 2 {
                    self.fail();
                } else if self.left == 0 {
                    self.succeed();
                }
            }
            (true, Spent::InVain) => self.fail(),
            (false, Spent::Asleep) => {
                self.asleep = (self.asleep * (WEIGHT - 1) + gap) / WEIGHT;
                self.until_next = self.until_next.saturating_sub(gap);
                if self.until_next.is_zero() && AWAKE_MAX < self.asleep && self.asleep < GAP_MAX {
                    (self.left, self.awake) = (WAITS, Duration::ZERO);
                }
            }
            // A debt forbids to be awake. Until it is paid back, gaps may have become others.
            (true, Spent::Asleep) => self.end(),
            (false, Spent::Awake | Spent::InVain) => {}
        }
    }

    fn succeed(&mut self) {
        let saved = self.asleep - self.awake / WAITS;
        self.taught = saved.clamp(AWAKE_MAX, TAUGHT_MAX);
        self.believed = BELIEVED_MIN * (1 << self.agreed.min(DOUBLINGS_MAX));
        self.agreed += 1;
        self.term = TERM_MIN;
        self.end();
    }

    fn fail(&mut self) {
        self.agreed = 0;
        self.term = (self.term * 2).min(TERM_MAX);
        self.end();
    }

    fn end(&mut self) {
        self.left = 0;
        self.until_next = self.term;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn us(microseconds: u64) -> Duration {
        Duration::from_micros(microseconds)
    }

    /// Waits of so much time, each as long as this says when it is spent awake, or asleep; returns which part was awake.
    fn wait(probe: &mut Probe, time: Duration, [awake, asleep]: [Duration; 2]) -> f64 {
        let (mut gone, mut spent) = (Duration::ZERO, Duration::ZERO);
        while gone < time {
            let is_awake = probe.is_on() || awake <= probe.awake_max();
            let gap = if is_awake { awake } else { asleep };
            probe.learn(gap, if is_awake { Spent::Awake } else { Spent::Asleep });
            gone += gap;
            spent += if is_awake { gap } else { Duration::ZERO };
        }
        spent.as_secs_f64() / gone.as_secs_f64()
    }

    #[test]
    fn where_waking_is_dear_longer_gaps_are_spent_awake() {
        for (awake, asleep) in [(110, 330), (150, 300), (200, 450)] {
            let mut probe = Probe::default();
            wait(&mut probe, us(60_000), [us(awake), us(asleep)]);
            assert!(probe.awake_max() >= us(awake), "{awake} {asleep}: {probe:?}");
            let share = wait(&mut probe, us(10_000_000), [us(awake), us(asleep)]);
            assert!(share > 0.9, "{awake} {asleep}: {share} {probe:?}");
        }
    }

    #[test]
    fn where_less_is_saved_than_spent_they_are_not() {
        for (awake, asleep) in
            [(140, 140), (140, 240), (300, 300), (300, 400), (260, 499), (499, 499), (900, 1000)]
        {
            let mut probe = Probe::default();
            let share = wait(&mut probe, us(10_000_000), [us(awake), us(asleep)]);
            assert!(share < 0.025, "{awake} {asleep}: {share} {probe:?}");
            assert_eq!(probe.awake_max(), AWAKE_MAX);
        }
    }

    #[test]
    fn what_was_taught_is_forgotten() {
        let mut probe = Probe::default();
        wait(&mut probe, us(500_000), [us(110), us(330)]);
        assert!(probe.has_taught() && probe.awake_max() > us(140), "{probe:?}");
        let share = wait(&mut probe, us(10_000_000), [us(140), us(200)]);
        assert!(share < 0.06, "{share}");
        assert!(!probe.has_taught());
    }

    /// Nothing is saved by being awake; whoever compares before and behind may think so.
    #[test]
    fn gaps_that_change_by_themselves_teach_little() {
        for (long, short, each) in [(400, 120, 20), (400, 120, 7), (499, 200, 50), (300, 110, 12)] {
            let mut probe = Probe::default();
            let (mut gone, mut spent) = (Duration::ZERO, Duration::ZERO);
            for turn in 0..100_000_u32 {
                let gap = us(if turn / each % 2 == 0 { long } else { short });
                let is_awake = probe.is_on() || probe.has_taught() && gap <= probe.awake_max();
                probe.learn(gap, if is_awake { Spent::Awake } else { Spent::Asleep });
                gone += gap;
                spent += if is_awake { gap } else { Duration::ZERO };
            }
            assert!(spent < gone / 8, "{long} {short} {each}: {spent:?} of {gone:?}");
        }
    }

    #[test]
    fn a_probe_that_is_left_waiting_ends() {
        let mut probe = Probe::default();
        let turns = (1..1_000).find(|_| {
            probe.learn(us(300), Spent::Asleep);
            probe.is_on()
        });
        assert!(turns.is_some(), "{probe:?}");
        let mut in_debt = Probe { ..probe };
        in_debt.learn(us(300), Spent::Asleep);
        assert!(!in_debt.is_on() && in_debt.until_next == TERM_MIN, "{in_debt:?}");
        probe.learn(us(1_000_000), Spent::InVain);
        assert!(!probe.is_on(), "{probe:?}");
    }
}
