//! Whether a queue is better waited for awake, which is tried now and then.
//!
//! Pure: it is told how many PDUs came in which time, and has no clock. A queue hides the waking of who serves it only if it
//! keeps him busy. Where an initiator sends several commands, sleeps until they are answered and sends several more, each
//! round has two wakings; where it is the slower side, or commands come at times of their own, the target saves nothing by staying
//! awake, and it handles fewer of them at a time. Which of these it is, nothing tells but the rate of both manners.

use std::time::Duration;

/// Time is looked at in pieces of this length: some fifty rounds with an initiator. A trial is one.
const PIECE: Duration = Duration::from_millis(5);

/// Trials begin after so many pieces of the better manner at most, so that a twentieth of the time goes to them.
const TERM_MAX: u32 = 20;

/// The weight of the latest trial: one part in so many.
const WEIGHT: f32 = 8.0;

/// One trial counts as twice as much at most, or half: whoever lost the processor in one of the two pieces has proved nothing.
const LOG2_RATIO_MAX: f32 = 1.0;

/// Awake has to bring a tenth more for its price, the processor.
const LOG2_WORTH_MIN: f32 = 0.1375;

/// What trials have shown so far.
#[derive(Debug)]
pub(super) struct Trial {
    /// The rate of who waits awake, divided by that of who sleeps, as its binary logarithm: so a gain and the same loss are even.
    worth: f32,
    is_trying: bool,
    /// Pieces from one trial to the next: few while trials surprise.
    term: u32,
    /// Pieces until a trial begins.
    left: u32,
    /// PDUs a second in the piece before this one.
    rate_before: f32,
    /// PDUs of this piece, and how long it has taken so far.
    pdus: usize,
    time: Duration,
}

impl Default for Trial {
    fn default() -> Self {
        Self {
            worth: 0.0,
            is_trying: false,
            term: 1,
            left: 1,
            rate_before: 0.0,
            pdus: 0,
            time: Duration::ZERO,
        }
    }
}

impl Trial {
    /// Whether a queue is waited for awake now.
    pub(super) fn is_awake(&self) -> bool {
        (self.worth > LOG2_WORTH_MIN) != self.is_trying
    }

    /// So many PDUs came in the time since the call before, which is one wait and one turn.
    pub(super) fn note(&mut self, pdus: usize, time: Duration) {
        if time >= PIECE {
            // Nothing was to be done, or the processor was lost: what this interrupts begins anew. Behind a long pause comes
            // something else.
            let is_long = time >= PIECE * TERM_MAX;
            self.begin_term(if is_long { 1 } else { self.term });
            (self.pdus, self.time) = (0, Duration::ZERO);
            return;
        }
        self.pdus += pdus;
        self.time += time;
        if self.time < PIECE {
            return;
        }
        let rate = std::mem::take(&mut self.pdus) as f32 / std::mem::take(&mut self.time).as_secs_f32();
        if self.is_trying {
            let is_as_expected = self.learn(rate);
            self.begin_term(if is_as_expected { self.term * 2 } else { self.term / 4 });
        } else {
            self.rate_before = rate;
            self.left -= 1;
            self.is_trying = self.left == 0;
        }
    }

    fn begin_term(&mut self, pieces: u32) {
        self.is_trying = false;
        self.term = pieces.clamp(1, TERM_MAX);
        self.left = self.term;
    }

    /// A trial had this rate. Says whether that is as what was thought.
    fn learn(&mut self, rate: f32) -> bool {
        let thought_awake = !self.is_awake();
        let (awake, asleep) = if thought_awake { (self.rate_before, rate) } else { (rate, self.rate_before) };
        if awake <= 0.0 || asleep <= 0.0 {
            return true;
        }
        let ratio = (awake / asleep).log2().clamp(-LOG2_RATIO_MAX, LOG2_RATIO_MAX);
        self.worth += (ratio - self.worth) / WEIGHT;
        (ratio > LOG2_WORTH_MIN) == thought_awake
    }
}

#[cfg(test)]
mod tests {
    use lunette_cases::cases;
    use proptest::prelude::*;

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
            let share = serve(&mut trial, SECOND, || now);
            assert_eq!(share > 0.5, now[0] > now[1], "{share}");
            serve(&mut trial, SECOND, || before);
            trial.note(0, SECOND);
            let share = serve(&mut trial, 24 * PIECE, || now);
            assert_eq!(share > 0.5, now[0] > now[1], "behind a pause: {share}");
        }
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
        let worth = trial.worth;
        while !trial.is_trying {
            trial.note(TURN, Duration::from_micros(40));
        }
        assert!(!trial.is_awake());
        trial.note(TURN, PIECE);
        assert!(trial.is_awake() && trial.worth == worth, "a pause: {trial:?}");
        while !trial.is_trying {
            trial.note(TURN, Duration::from_micros(40));
        }
        while trial.is_trying {
            trial.note(100 * TURN, Duration::from_micros(80));
        }
        assert!(trial.is_awake(), "one trial gave fifty times as much: {trial:?}");
    }

    proptest! {
        #![proptest_config(cases(32))]

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
