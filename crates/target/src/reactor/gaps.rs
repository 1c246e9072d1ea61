//! Whether it pays to wait awake, learnt from the gaps between events.
//!
//! Pure: it is told how long waits took, and has no clock. Waiting awake saves the waking, [`WAKING`], and costs the gap.
//! So three things hold, whatever comes when:
//!
//! - No wait is awake for more than [`AWAKE_MAX`], twice what it can save; where [`super::probe`] has found that more is saved, for
//!   twice that; for a queue and in a probe, [`AWAKE_MAX_TRIED`].
//! - Time awake in vain is at most one part in [`VAIN_SHARE`] of the time waited, and [`OWED_MAX`] once.
//! - Time that others took while we were awake is paid for in the same way, [`RIVAL_FACTOR`] times.

use std::time::Duration;

use super::probe::{Probe, Spent};

/// What waking a processor that fell idle takes: 45 to 65 µs on the virtual machines that were measured (docs/decisions/0008).
const WAKING: Duration = Duration::from_micros(50);

/// The longest gap that is spent awake where waking is as usual, and the longest learnt gap with which any is. Twice the waking, since
/// an initiator that sleeps has one too: who does not keep it waiting saves his own part of each round of two.
pub(super) const AWAKE_MAX: Duration = WAKING.saturating_mul(2);

/// The longest gap that is spent awake where nothing but trying tells whether that pays: for a queue, all of which an initiator answers
/// first, and in a probe. It is long enough for both ends to wake where the host gives the processors of who sleeps to others: who
/// gives up before falls asleep, and keeps the other asleep.
pub(super) const AWAKE_MAX_TRIED: Duration = Duration::from_millis(2);

/// Where even short gaps are given this long: it is what going to sleep too early costs.
const AWAKE_MIN: Duration = WAKING;

/// Longer gaps count as so many times the longest that is spent awake: a single one between short ones is forgiven, two are not.
const GAP_MAX_FACTOR: u32 = 2;

/// The weight of the latest gap: one part in so many.
const WEIGHT: u32 = 4;

/// How much of the time may be spent awake in vain: one part in so many.
const VAIN_SHARE: u32 = 8;

/// How much time awake in vain is allowed in a row.
const OWED_MAX: Duration = Duration::from_millis(4);

/// A moment awake that took longer than this was somebody else's: it takes a microsecond or two otherwise.
const OTHERS_RAN: Duration = Duration::from_micros(20);

/// Who offers a processor to a program that needs it waits for that program's whole turn. What was lost so costs this
/// many times as much as what was spent in vain, so it is lost in one part in `VAIN_SHARE * RIVAL_FACTOR` of the time.
const RIVAL_FACTOR: u32 = 8;

/// The most that is ever owed, so that it is paid back in less than a second.
const DEBT_MAX: Duration = Duration::from_millis(100);

/// What the gaps were like lately, and what waiting awake has cost in vain.
#[derive(Debug)]
pub(super) struct Gaps {
    /// The average of the latest gaps.
    typical: Duration,
    /// Time spent in vain that has not been paid back by time that went by.
    owed: Duration,
    probe: Probe,
}

/// How a wait has been spent so far, awake.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Awake {
    /// All of it but what the host of this virtual machine took.
    pub(super) time: Duration,
    /// What that took: it would have taken it all the same, so it says nothing of the gap, and costs nothing.
    pub(super) stolen: Duration,
    /// Of the time, what others had of this processor.
    pub(super) taken: Duration,
}

impl Awake {
    /// Another moment of it, up to `elapsed` since the wait began. `gave_way` says whether the scheduler had us give way to others;
    /// it is asked only where somebody must have had the processor. Who counts as the host may be an interrupt that took long.
    pub(super) fn moment(&mut self, elapsed: Duration, gave_way: impl FnOnce() -> bool) {
        let took = elapsed.saturating_sub(self.time + self.stolen);
        if took <= OTHERS_RAN {
            self.time += took;
        } else if gave_way() {
            self.time += took;
            self.taken = took;
        } else {
            // So much of it counts, so that even a host that takes all leaves no wait without an end.
            self.time += OTHERS_RAN;
            self.stolen += took - OTHERS_RAN;
        }
    }
}

/// One wait, from its beginning to its event.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Waited {
    /// All of it.
    pub(super) gap: Duration,
    /// Its event came while we were awake.
    pub(super) was_awake: bool,
    /// How much of it we were awake; zero if an event came then.
    pub(super) in_vain: Duration,
    /// How long others had the processor that we offered; zero if the event came soon all the same.
    pub(super) taken: Duration,
    /// What the host took while we were awake: of a wait asleep nobody knows it, and it is in the gap.
    pub(super) stolen: Duration,
    /// It was for a queue, which says nothing of the gaps between single commands.
    pub(super) is_queue: bool,
}

impl Waited {
    fn spent(&self) -> Spent {
        if self.was_awake && self.taken.is_zero() {
            Spent::Awake
        } else if self.in_vain + self.taken > Duration::ZERO {
            Spent::InVain
        } else {
            Spent::Asleep
        }
    }
}

impl Default for Gaps {
    fn default() -> Self {
        Self { typical: AWAKE_MAX * GAP_MAX_FACTOR, owed: Duration::ZERO, probe: Probe::default() }
    }
}

impl Gaps {
    /// How long the next wait may be awake. Zero: not at all.
    pub(super) fn patience(&self) -> Duration {
        if self.probe.is_on() {
            return self.patience_to_try();
        }
        let awake_max = self.awake_max();
        let patience = if self.probe.has_taught() {
            // Where waking is dear, who gives up too early pays more than who waits.
            awake_max * 2
        } else {
            (2 * self.typical).clamp(AWAKE_MIN, awake_max)
        };
        let may_be = self.typical <= awake_max && self.owed + patience <= OWED_MAX;
        if may_be { patience } else { Duration::ZERO }
    }

    /// The longest gap that is spent awake for one command, and the longest typical one with which any is.
    pub(super) fn awake_max(&self) -> Duration {
        self.probe.awake_max()
    }

    /// How long the next wait may be awake where it is tried whether that pays, or has been.
    pub(super) fn patience_to_try(&self) -> Duration {
        if self.owed + AWAKE_MAX_TRIED <= OWED_MAX { AWAKE_MAX_TRIED } else { Duration::ZERO }
    }

    /// Learns how a wait went.
    pub(super) fn learn(&mut self, waited: Waited) {
        let gap_max = self.awake_max() * GAP_MAX_FACTOR;
        self.typical = (self.typical * (WEIGHT - 1) + waited.gap.min(gap_max)) / WEIGHT;
        if !waited.is_queue {
            self.probe.learn(waited.gap + waited.stolen, waited.spent());
        }
        let spent = waited.in_vain + waited.taken.min(DEBT_MAX) * RIVAL_FACTOR;
        self.owed = (self.owed.saturating_sub(waited.gap / VAIN_SHARE) + spent).min(DEBT_MAX);
    }

    /// A queue is waited for asleep: what gaps there are between its commands, one after the other, is not known any more.
    pub(super) fn forget(&mut self) {
        self.probe = Probe::default();
        self.typical = AWAKE_MAX * GAP_MAX_FACTOR;
    }

    /// Whether time spent in vain has not been paid back.
    pub(super) fn is_owing(&self) -> bool {
        !self.owed.is_zero()
    }

    /// A wait was asleep from its beginning.
    pub(super) fn pay_back(&mut self, waited: Duration) {
        self.owed = self.owed.saturating_sub(waited / VAIN_SHARE);
    }
}

#[cfg(test)]
mod tests {
    use lunette_cases::cases;
    use proptest::prelude::*;

    use super::*;

    const fn us(microseconds: u64) -> Duration {
        Duration::from_micros(microseconds)
    }

    /// What became of waits in virtual time.
    #[derive(Debug, Default, PartialEq, Eq)]
    struct Sum {
        time: Duration,
        in_vain: Duration,
        well_spent: Duration,
        wakings_saved: u32,
        taken: Duration,
    }

    impl Sum {
        /// Waits for an event that comes after `gap`. `rival`: others want the processor, and keep it so long.
        fn wait(&mut self, gaps: &mut Gaps, gap: Duration, rival: Option<Duration>) {
            let patience = gaps.patience();
            let most = match (gaps.probe.is_on(), gaps.probe.has_taught()) {
                (true, _) => AWAKE_MAX_TRIED,
                (false, true) => gaps.awake_max() * 2,
                (false, false) => AWAKE_MAX.min((2 * gaps.typical).max(AWAKE_MIN)),
            };
            assert!(patience <= most, "{patience:?} {gaps:?}");
            self.wait_for(gaps, Waited { gap, ..Waited::default() }, rival, patience);
        }

        fn wait_for_a_queue(&mut self, gaps: &mut Gaps, gap: Duration, rival: Option<Duration>) {
            let patience = gaps.patience_to_try();
            assert!(patience <= AWAKE_MAX_TRIED);
            self.wait_for(gaps, Waited { gap, is_queue: true, ..Waited::default() }, rival, patience);
        }

        fn wait_for(
            &mut self,
            gaps: &mut Gaps,
            mut waited: Waited,
            rival: Option<Duration>,
            patience: Duration,
        ) {
            match rival {
                Some(taken) if patience > Duration::ZERO => {
                    let mut awake = Awake::default();
                    awake.moment(taken, || true);
                    assert_eq!(awake.taken, taken, "it would not be noticed");
                    waited = Waited { gap: waited.gap.max(taken), was_awake: true, taken, ..waited };
                }
                _ if waited.gap <= patience => {
                    self.well_spent += waited.gap;
                    self.wakings_saved += 1;
                    waited.was_awake = true;
                }
                _ => waited.in_vain = patience,
            }
            gaps.learn(waited);
            self.time += waited.gap;
            self.in_vain += waited.in_vain;
            self.taken += waited.taken;
        }
    }

    fn steady(gap: Duration, count: u32) -> Sum {
        let (mut gaps, mut sum) = (Gaps::default(), Sum::default());
        (0..count).for_each(|_| sum.wait(&mut gaps, gap, None));
        sum
    }

    #[test]
    fn short_steady_gaps_are_spent_awake_and_long_ones_asleep() {
        for gap in [us(5), us(20), us(60), us(90)] {
            let sum = steady(gap, 1000);
            assert!(sum.wakings_saved >= 980, "{gap:?}: {sum:?}");
            assert_eq!(sum.in_vain, Duration::ZERO, "{gap:?}");
        }
        for gap in [us(101), us(140), us(300), us(499)] {
            let sum = steady(gap, 10_000);
            assert!(sum.well_spent > Duration::ZERO, "no probe: {gap:?}");
            assert!(sum.well_spent < sum.time / 40 && sum.in_vain.is_zero(), "probes: {gap:?}: {sum:?}");
        }
        for gap in [us(500), us(1_000_000)] {
            assert_eq!(steady(gap, 1000), Sum { time: gap * 1000, ..Sum::default() });
        }
    }

    /// Serves single commands for so many waits on a machine whose gaps are so long awake, and asleep.
    fn serve(gaps: &mut Gaps, count: u32, [awake, asleep]: [Duration; 2]) -> Sum {
        let mut sum = Sum::default();
        for _ in 0..count {
            let gap = if gaps.patience().is_zero() { asleep } else { awake };
            sum.wait(gaps, gap, None);
        }
        sum
    }

    #[test]
    fn where_both_ends_sleep_for_each_other_neither_does_for_long() {
        for machine in [[us(80), us(330)], [us(150), us(400)]] {
            let mut gaps = Gaps::default();
            serve(&mut gaps, 200, machine);
            let sum = serve(&mut gaps, 10_000, machine);
            assert!(sum.wakings_saved > 9_500, "{machine:?}: {sum:?}");
        }
    }

    #[test]
    fn queues_and_rivals_teach_a_probe_nothing() {
        let mut gaps = Gaps::default();
        let on = |gaps: &mut Gaps| {
            (0..1_000).for_each(|_| {
                if !gaps.probe.is_on() {
                    Sum::default().wait(gaps, us(300), None);
                }
            });
            assert!(gaps.probe.is_on(), "{gaps:?}");
        };
        on(&mut gaps);
        (0..100).for_each(|_| Sum::default().wait_for_a_queue(&mut gaps, us(30), None));
        assert!(gaps.probe.is_on() && !gaps.probe.has_taught(), "{gaps:?}");
        Sum::default().wait(&mut gaps, us(30), Some(us(3_000)));
        assert!(!gaps.probe.is_on() && !gaps.probe.has_taught(), "{gaps:?}");
        gaps.pay_back(us(1_000_000));
        on(&mut gaps);
        gaps.forget();
        assert!(!gaps.probe.is_on());
    }

    #[test]
    fn what_the_host_takes_is_nobodys() {
        let mut awake = Awake::default();
        awake.moment(us(2), || panic!("nobody had the processor"));
        awake.moment(us(3_002), || false);
        assert_eq!(awake, Awake { time: us(22), stolen: us(2_980), taken: us(0) });
        awake.moment(us(3_004), || panic!("nobody had the processor"));
        awake.moment(us(4_004), || true);
        assert_eq!(awake, Awake { time: us(1_024), stolen: us(2_980), taken: us(1_000) });
    }

    #[test]
    fn debts_are_paid_back_asleep_too() {
        let mut gaps = Gaps::default();
        gaps.learn(Waited { gap: us(3_000), taken: us(3_000), ..Waited::default() });
        assert!(gaps.is_owing() && gaps.patience_to_try().is_zero());
        gaps.pay_back(us(192_000));
        assert_eq!((gaps.is_owing(), gaps.patience_to_try()), (false, AWAKE_MAX_TRIED));
    }

    #[test]
    fn a_long_gap_is_forgiven_and_a_second_one_is_not() {
        let mut gaps = Gaps::default();
        let learn = |gaps: &mut Gaps, gap| gaps.learn(Waited { gap, ..Waited::default() });
        (0..10).for_each(|_| learn(&mut gaps, us(25)));
        learn(&mut gaps, us(1_000_000));
        assert!(gaps.patience() > Duration::ZERO);
        learn(&mut gaps, us(1_000_000));
        assert_eq!(gaps.patience(), Duration::ZERO);
        (0..2).for_each(|_| learn(&mut gaps, us(25)));
        assert!(gaps.patience() > Duration::ZERO, "and is made up for");
        gaps.forget();
        assert_eq!(gaps.patience(), Duration::ZERO);
    }

    #[test]
    fn who_had_to_give_way_sleeps_for_a_while() {
        let (mut gaps, mut sum) = (Gaps::default(), Sum::default());
        (0..10).for_each(|_| sum.wait(&mut gaps, us(25), None));
        sum.wait(&mut gaps, us(25), Some(us(3000)));
        let before = sum.wakings_saved;
        // 3 ms, times 8 for the rival, times 8 for the share.
        (0..4000).for_each(|_| sum.wait(&mut gaps, us(25), None));
        assert_eq!(sum.wakings_saved, before, "{gaps:?}");
        (0..5000).for_each(|_| sum.wait(&mut gaps, us(25), None));
        assert!(sum.wakings_saved > before, "{gaps:?}");
    }

    fn a_gap() -> impl Strategy<Value = Duration> {
        prop_oneof![0..30_u64, 30..130_u64, 90..220_u64, 100..3_000_000_u64].prop_map(us)
    }

    proptest! {
        #![proptest_config(cases(64))]

        /// Also where somebody chooses each gap as what was waited for is over.
        #[test]
        fn little_is_spent_in_vain(
            arrivals in proptest::collection::vec((a_gap(), any::<bool>(), any::<bool>(), 1..200_u32), 1..40),
        ) {
            let (mut gaps, mut sum) = (Gaps::default(), Sum::default());
            for (gap, is_mean, is_queue, times) in arrivals {
                for _ in 0..times {
                    let patience = if is_queue { gaps.patience_to_try() } else { gaps.patience() };
                    let gap = if is_mean { patience + us(1) } else { gap };
                    if is_queue {
                        sum.wait_for_a_queue(&mut gaps, gap, None);
                    } else {
                        sum.wait(&mut gaps, gap, None);
                    }
                    prop_assert!(sum.in_vain <= sum.time / VAIN_SHARE + OWED_MAX, "{sum:?}");
                    prop_assert!(sum.well_spent <= AWAKE_MAX_TRIED * sum.wakings_saved, "{sum:?}");
                }
            }
        }

        /// A program that needs the processor always gets it, and is seldom waited for.
        #[test]
        fn others_are_seldom_waited_for(
            arrivals in proptest::collection::vec((a_gap(), 21..12_000_u64, any::<bool>()), 1..400),
        ) {
            let (mut gaps, mut sum) = (Gaps::default(), Sum::default());
            for (gap, taken, is_queue) in arrivals {
                if is_queue {
                    sum.wait_for_a_queue(&mut gaps, gap, Some(us(taken)));
                } else {
                    sum.wait(&mut gaps, gap, Some(us(taken)));
                }
                let bound = sum.time / (VAIN_SHARE * RIVAL_FACTOR) + OWED_MAX / RIVAL_FACTOR + us(12_000);
                prop_assert!(sum.taken <= bound, "{sum:?}");
                prop_assert_eq!((sum.well_spent, sum.in_vain), (Duration::ZERO, Duration::ZERO));
            }
        }
    }
}
