//! Whether a queue is better waited for awake, which is tried now and then.
//!
//! Pure: it is told how many PDUs came in which time, and has no clock. A queue hides the waking of who serves it only if it
//! keeps him busy. Where an initiator sends several commands, sleeps until they are answered and sends several more, each
//! round has two wakings; where it is the slower side, or commands come at times of their own, the target saves nothing by staying
//! awake, and it handles fewer of them at a time. Which of these it is, nothing tells but the rate of both manners.

use std::time::Duration;

/// Time is looked at in pieces of this length: some fifty rounds with an initiator. A trial is one.
const PIECE: Duration = Duration::from_millis(5);

/// Where rounds are long a piece is, too, up to this length; what has too few of them by then tells nothing.
const PIECE_MAX: Duration = PIECE.saturating_mul(4);

/// Waits for a queue that a piece asleep has to have, or it tells nothing.
const ROUNDS_MIN: u32 = 16;

/// Turns with PDUs that one awake has to have. Many of its waits are no longer for a queue: it has come one by one.
const TURNS_MIN: u32 = 8;

/// Trials begin after so many times [`PIECE`] of the better manner at most: where rates are steady a twentieth of the time goes to them.
const TERM_MAX: u32 = 20;

/// A rate this many times the one before, in the same manner, or the other way round: the host has come, or gone.
const SURPRISE: f32 = 2.0;

/// The weight of the latest trial: one part in so many.
const WEIGHT: f32 = 4.0;

/// One trial counts as 1.7 times as much at most, or as little: whoever lost the processor in one of the two pieces has proved nothing.
const LOG2_RATIO_MAX: f32 = 0.75;

/// Awake has to bring a seventh more for its price, the processor.
const LOG2_WORTH_MIN: f32 = 0.2;

const _: () = assert!(LOG2_RATIO_MAX / WEIGHT < LOG2_WORTH_MIN, "one trial is not enough");

/// How a queue was waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Manner {
    Awake,
    Asleep,
    /// Asleep, because there was too much time in vain that had not been paid back.
    Indebted,
}

/// What trials have shown so far.
#[derive(Debug)]
pub(super) struct Trial {
    /// The rate of who waits awake, divided by that of who sleeps, as its binary logarithm: so a gain and the same loss are even.
    worth: f32,
    is_trying: bool,
    /// Time from one trial to the next, in [`PIECE`]s: short while trials surprise.
    term: u32,
    /// Time until a trial begins.
    left: u32,
    /// PDUs a second in the piece before this one; `None` if it told nothing.
    rate_before: Option<f32>,
    piece: Piece,
}

#[derive(Debug, Clone, Copy, Default)]
struct Piece {
    time: Duration,
    pdus: usize,
    /// Waits for a queue.
    rounds: u32,
    /// Turns with PDUs.
    turns: u32,
    is_indebted: bool,
}

impl Default for Trial {
    fn default() -> Self {
        Self { worth: 0.0, is_trying: false, term: 1, left: 1, rate_before: None, piece: Piece::default() }
    }
}

impl Trial {
    #[cfg(test)]
    pub(super) fn awake() -> Self {
        Self { worth: LOG2_RATIO_MAX, ..Self::default() }
    }

    /// Whether a queue is waited for awake now.
    pub(super) fn is_awake(&self) -> bool {
        self.pays() != self.is_trying
    }

    fn pays(&self) -> bool {
        self.worth > LOG2_WORTH_MIN
    }

    /// A queue is waited for in this manner.
    pub(super) fn waits(&mut self, manner: Manner) {
        self.piece.rounds += 1;
        self.piece.is_indebted |= manner == Manner::Indebted;
    }

    /// So many PDUs came in the time since the call before, which is one wait and one turn.
    pub(super) fn note(&mut self, pdus: usize, time: Duration) {
        if time >= PIECE {
            self.pause(time);
            return;
        }
        self.piece.pdus += pdus;
        self.piece.time += time;
        self.piece.turns += u32::from(pdus > 0);
        let has_rounds =
            if self.is_awake() { self.piece.turns >= TURNS_MIN } else { self.piece.rounds >= ROUNDS_MIN };
        if self.piece.time < if has_rounds { PIECE } else { PIECE_MAX } {
            return;
        }
        let Piece { time, pdus, rounds, is_indebted, .. } = std::mem::take(&mut self.piece);
        let rate = (has_rounds && !is_indebted && pdus > 0).then(|| pdus as f32 / time.as_secs_f32());
        if !self.is_trying {
            if let Some((now, before)) = rate.zip(self.rate_before)
                && now.max(before) > SURPRISE * now.min(before)
            {
                self.left = self.left.min(self.term.div_ceil(4));
            }
            self.rate_before = rate;
            self.left = self.left.saturating_sub((time.as_micros() / PIECE.as_micros()) as u32);
            self.is_trying = self.left == 0 && rate.is_some();
            if self.is_trying || self.left > 0 {
                return;
            }
        } else if let Some((now, before)) = rate.zip(self.rate_before) {
            let was_as_expected = self.learn(now / before);
            self.begin_term(if was_as_expected { self.term * 2 } else { self.term / 4 });
            return;
        }
        // Queues come, and nothing can be told of them: they are too few, or awake waits for them too often in vain.
        if rounds > 0 {
            self.doubt();
        }
        self.begin_term(self.term * 2);
    }

    /// Nothing speaks for being awake any more, unless trials do.
    fn doubt(&mut self) {
        if self.pays() {
            self.worth -= self.worth / WEIGHT;
        }
    }

    /// Nothing was to be done, or the processor was lost: the piece that this interrupts begins anew.
    fn pause(&mut self, time: Duration) {
        self.piece = Piece::default();
        // Where each burst is followed by one there are no trials.
        self.doubt();
        if time >= PIECE * TERM_MAX {
            // What comes now is something else.
            self.begin_term(1);
        } else if self.is_trying {
            (self.is_trying, self.left) = (false, 1);
        }
    }

    fn begin_term(&mut self, pieces: u32) {
        self.is_trying = false;
        // It may be of the other manner.
        self.rate_before = None;
        self.term = pieces.clamp(1, TERM_MAX);
        self.left = self.term;
    }

    /// A trial had so many times the rate of the piece before. Says whether that is as what was thought.
    fn learn(&mut self, ratio: f32) -> bool {
        let pays = self.pays();
        let of_awake = if pays { -ratio.log2() } else { ratio.log2() };
        let of_awake = of_awake.clamp(-LOG2_RATIO_MAX, LOG2_RATIO_MAX);
        self.worth += (of_awake - self.worth) / WEIGHT;
        (of_awake > LOG2_WORTH_MIN) == pays
    }
}

#[cfg(test)]
mod tests {
    use lunette_cases::cases;
    use proptest::prelude::*;

    use super::super::gaps::{Gaps, Waited};
    use super::*;

    /// PDUs of each turn.
    const TURN: usize = 8;

    /// Serves for so long what comes at these rates, awake and asleep, in PDUs a second, and says which part of it was spent awake.
    fn serve(trial: &mut Trial, time: Duration, mut rates: impl FnMut() -> [f64; 2]) -> f64 {
        let (mut gone, mut awake) = (Duration::ZERO, Duration::ZERO);
        while gone < time {
            let rate = rates()[usize::from(!trial.is_awake())];
            let turn = Duration::from_secs_f64(TURN as f64 / rate);
            if trial.is_awake() {
                awake += turn;
            }
            trial.waits(if trial.is_awake() { Manner::Awake } else { Manner::Asleep });
            trial.note(TURN, turn);
            gone += turn;
        }
        awake.as_secs_f64() / gone.as_secs_f64()
    }

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_queue_that_keeps_its_initiator_waiting_is_waited_for_awake_and_no_other() {
        for (rates, least, most) in [
            ([180e3, 100e3], 0.9, 1.0),
            ([125e3, 100e3], 0.8, 1.0),
            ([105e3, 100e3], 0.0, 0.07),
            ([100e3, 100e3], 0.0, 0.07),
            ([75e3, 100e3], 0.0, 0.07),
        ] {
            let share = serve(&mut Trial::default(), SECOND, || rates);
            assert!((least..=most).contains(&share), "{rates:?}: {share}");
        }
    }

    #[test]
    fn who_has_just_come_is_served_awake_soon() {
        let mut trial = Trial::default();
        serve(&mut trial, 5 * PIECE, || [180e3, 100e3]);
        assert!(trial.worth > LOG2_WORTH_MIN, "{trial:?}");
    }

    #[test]
    fn another_load_is_noticed_in_the_time_of_two_terms() {
        for (before, now) in [([75e3, 100e3], [180e3, 100e3]), ([180e3, 100e3], [75e3, 100e3])] {
            let mut trial = Trial::default();
            serve(&mut trial, SECOND, || before);
            serve(&mut trial, 2 * TERM_MAX * PIECE, || now);
            assert_eq!(trial.pays(), now[0] > now[1], "{trial:?}");
            serve(&mut trial, SECOND, || before);
            trial.note(0, SECOND);
            serve(&mut trial, 24 * PIECE, || now);
            assert_eq!(trial.pays(), now[0] > now[1], "behind a pause: {trial:?}");
        }
    }

    #[test]
    fn a_host_that_makes_waking_dear_is_noticed_before_the_term_is_over() {
        let mut trial = Trial::default();
        serve(&mut trial, SECOND, || [500e3, 500e3]);
        while trial.left < TERM_MAX - 1 {
            serve(&mut trial, PIECE, || [500e3, 500e3]);
        }
        serve(&mut trial, 14 * PIECE, || [200e3, 70e3]);
        assert!(trial.pays(), "{trial:?}");
    }

    #[test]
    fn what_no_longer_pays_ends_and_what_pays_begins() {
        let mut trial = Trial::default();
        serve(&mut trial, SECOND, || [200e3, 100e3]);
        for (rates, least, most) in
            [([90e3, 100e3], 0.0, 0.07), ([100e3, 100e3], 0.0, 0.06), ([150e3, 100e3], 0.9, 1.0)]
        {
            serve(&mut trial, SECOND, || rates);
            let share = serve(&mut trial, SECOND, || rates);
            assert!((least..=most).contains(&share), "{rates:?}: {share}");
        }
    }

    #[test]
    fn one_lost_trial_proves_nothing_and_a_pause_ends_one() {
        let mut trial = Trial::default();
        serve(&mut trial, SECOND, || [180e3, 100e3]);
        let serve_while = |trial: &mut Trial, pdus, is_trying| {
            while trial.is_trying == is_trying {
                trial.waits(Manner::Asleep);
                trial.note(pdus, Duration::from_micros(40));
            }
        };
        serve_while(&mut trial, TURN, false);
        assert!(!trial.is_awake());
        trial.note(TURN, PIECE);
        assert!(trial.is_awake() && !trial.is_trying, "a pause: {trial:?}");
        serve_while(&mut trial, TURN, false);
        serve_while(&mut trial, 50 * TURN, true);
        assert!(trial.is_awake(), "one trial gave fifty times as much: {trial:?}");
    }

    #[test]
    fn a_debt_is_no_verdict_but_a_doubt() {
        let mut trial = Trial::default();
        serve(&mut trial, SECOND, || [180e3, 100e3]);
        let indebted = |trial: &mut Trial, time: Duration| {
            for _ in 0..time.as_micros() / 80 {
                trial.waits(if trial.is_awake() { Manner::Indebted } else { Manner::Asleep });
                trial.note(TURN, Duration::from_micros(80));
            }
        };
        indebted(&mut trial, SECOND / 5);
        assert!(trial.pays(), "a fifth of a second: {trial:?}");
        indebted(&mut trial, 4 * SECOND);
        assert!(!trial.pays(), "four seconds: {trial:?}");
        serve(&mut trial, SECOND, || [180e3, 100e3]);
        assert!(trial.pays());
    }

    #[test]
    fn queues_that_come_too_seldom_to_be_told_of_are_soon_slept_for() {
        let trials = 0.08;
        for (distance, share_max) in [(300, trials), (1_000, trials), (3_000, 0.01)] {
            let distance = Duration::from_micros(distance);
            let (mut trial, mut gaps) = (Trial::default(), Gaps::default());
            serve(&mut trial, SECOND, || [180e3, 100e3]);
            let mut spent = [Duration::ZERO; 2];
            let mut all_in_vain = Duration::ZERO;
            for turn in 0..40_000_u32 {
                let is_late = turn >= 20_000;
                let patience = gaps.patience_to_try();
                let manner = match (trial.is_awake(), patience.is_zero()) {
                    (false, _) => Manner::Asleep,
                    (true, true) => Manner::Indebted,
                    (true, false) => Manner::Awake,
                };
                trial.waits(manner);
                if manner == Manner::Asleep {
                    gaps.pay_back(distance);
                } else {
                    let in_vain = if patience < distance { patience } else { Duration::ZERO };
                    let was_awake = patience >= distance;
                    gaps.learn(Waited { gap: distance, was_awake, in_vain, ..Waited::default() });
                    if is_late {
                        all_in_vain += in_vain;
                    }
                    spent[usize::from(is_late)] += patience.min(distance);
                }
                trial.note(TURN, distance);
            }
            assert!(!trial.pays(), "{distance:?}: {trial:?}");
            let share = spent[1].as_secs_f64() / (20_000.0 * distance.as_secs_f64());
            assert!(share < share_max, "{distance:?}: {share} of the time awake");
            assert!(all_in_vain < 200 * distance, "{distance:?}: {all_in_vain:?} in vain");
        }
    }

    #[test]
    fn long_commands_are_slept_for_unless_trials_tell_more() {
        let mut trial = Trial::default();
        serve(&mut trial, SECOND, || [180e3, 100e3]);
        for _ in 0..4_000 {
            trial.waits(if trial.is_awake() { Manner::Awake } else { Manner::Asleep });
            trial.note(TURN, Duration::from_micros(1500));
        }
        assert!(!trial.pays(), "{trial:?}");
    }

    #[test]
    fn one_command_after_the_other_proves_nothing_of_queues() {
        for rates in [[180e3, 100e3], [75e3, 100e3]] {
            let mut trial = Trial::default();
            serve(&mut trial, SECOND, || rates);
            let worth = trial.worth;
            for number in 0..100_000_u64 {
                trial.note(1, Duration::from_micros(20 + number % 50));
            }
            assert_eq!(trial.worth > LOG2_WORTH_MIN, worth > LOG2_WORTH_MIN, "{worth} {trial:?}");
        }
    }

    #[test]
    fn a_queue_that_comes_now_and_then_is_soon_slept_for() {
        let mut trial = Trial::default();
        serve(&mut trial, SECOND, || [180e3, 100e3]);
        for _ in 0..20 {
            trial.waits(Manner::Awake);
            trial.note(TURN, Duration::from_micros(100));
            trial.note(TURN, PIECE + Duration::from_millis(1));
        }
        assert!(!trial.is_awake(), "{trial:?}");
    }

    #[test]
    fn a_host_that_often_stops_this_machine_does_not_stop_trials() {
        let mut trial = Trial::default();
        serve(&mut trial, SECOND, || [100e3, 100e3]);
        for _ in 0..50 {
            serve(&mut trial, 8 * PIECE, || [180e3, 100e3]);
            trial.note(TURN, 2 * PIECE);
        }
        assert!(trial.worth > LOG2_WORTH_MIN, "{trial:?}");
    }

    proptest! {
        #![proptest_config(cases(32))]

        /// Queues that come by chance, from 500 to 20,000 a second, are answered as quickly either way.
        #[test]
        fn chance_decides_little(seed: u64, per_second in 500.0..20e3_f64) {
            let mut state = seed | 1;
            let mut rates = || {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                let even = (state >> 11) as f64 / (1_u64 << 53) as f64;
                [TURN as f64 * per_second / -(1.0 - even).ln().min(-1e-3); 2]
            };
            let mut trial = Trial::default();
            let share = serve(&mut trial, 20 * SECOND, &mut rates);
            prop_assert!(share < 0.25, "{share}");
        }

        /// A processor that others take for a while, now and then, changes little.
        #[test]
        fn much_that_disturbs_evenly_decides_nothing(seed: u64, awake in prop_oneof![Just(60e3), Just(180e3)]) {
            let mut state = seed | 1;
            let mut disturbed = || {
                // xorshift64
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                let share = if state % 8 == 0 { 0.1 } else { 1.0 };
                [awake * share, 100e3 * share]
            };
            let mut trial = Trial::default();
            serve(&mut trial, SECOND, &mut disturbed);
            let share = serve(&mut trial, 4 * SECOND, &mut disturbed);
            prop_assert_eq!(share > 0.5, awake > 100e3, "{}", share);
        }
    }
}
