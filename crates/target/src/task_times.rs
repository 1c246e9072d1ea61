//! Where the time of one task goes, as far as its target can tell: from when its command had come until its answer was ready.
//!
//! A task is in one stage at any time, so that the stages add up to the whole. There are times only where the target records them
//! ([`crate::recorder`]), and none are taken elsewhere. The same of a login, which is no task. What the network makes of it is
//! not for the target to know.

use std::fmt;
use std::time::{Duration, Instant};

use lunette_scsi::Io;
use lunette_wire::{InitiatorTaskTag, Isid, Tsih};

use crate::recorder::Recorder;

/// What a task is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stage {
    /// It waits for its data: what goes unasked, or what R2Ts have asked for.
    Data,
    /// Its store has it.
    Store,
    /// All else: commands before it, others of its unit, the target's own work.
    Rest,
}

/// Stages that there are.
const STAGES: usize = 3;

/// The stages of one task. Times are of any clock that does not go back.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TaskTimes {
    stage: Stage,
    since: Duration,
    spent: [Duration; STAGES],
    /// The unit whose store had it last.
    naa: Option<u64>,
}

impl TaskTimes {
    /// Of a command that has come now.
    pub(crate) const fn new(now: Duration) -> Self {
        Self { stage: Stage::Rest, since: now, spent: [Duration::ZERO; STAGES], naa: None }
    }

    /// It goes on in another stage; answers which one that was before.
    pub(crate) fn enter(&mut self, now: Duration, stage: Stage) -> Stage {
        self.spent[self.stage as usize] += now.saturating_sub(self.since);
        self.since = now;
        std::mem::replace(&mut self.stage, stage)
    }

    /// It reaches the store of this unit.
    pub(crate) const fn reaches(&mut self, naa: u64) {
        self.naa = Some(naa);
    }

    /// Its answer is ready: how long it was in each stage, if a store had it.
    pub(crate) fn end(mut self, now: Duration) -> Option<Spent> {
        self.enter(now, Stage::Rest);
        let [data, store, rest] = self.spent;
        Some(Spent { naa: self.naa?, data, store, rest })
    }
}

/// How long a task was in each stage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Spent {
    pub(crate) naa: u64,
    pub(crate) data: Duration,
    pub(crate) store: Duration,
    pub(crate) rest: Duration,
}

/// By which both sides know a session.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SessionName {
    pub(crate) isid: Isid,
    pub(crate) tsih: Tsih,
}

impl fmt::Display for SessionName {
    /// Both in hexadecimal.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.isid.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))?;
        write!(f, " {:04x}", self.tsih.0)
    }
}

/// What a target took of a login: from when each Login Request had come until its answer was ready. A wait for another session that
/// has to end first is in it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct LoginTimes {
    /// Answers so far.
    pub(crate) answers: u32,
    /// All of them together.
    pub(crate) own: Duration,
}

impl LoginTimes {
    /// Another answer is ready.
    pub(crate) fn add(&mut self, took: Duration) {
        self.answers += 1;
        self.own += took;
    }
}

/// By which both sides know a task.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TaskName {
    pub(crate) session: SessionName,
    pub(crate) tag: InitiatorTaskTag,
}

/// A command that ends before it becomes a task, and its recorder. Nothing of it is carried out where nobody records.
pub(crate) struct Watch<'a> {
    recorder: &'a Recorder,
    io: Option<Io>,
    /// Where times are recorded.
    timed: Option<(Instant, TaskTimes)>,
}

impl<'a> Watch<'a> {
    #[cold]
    pub(crate) fn begin(recorder: &'a Recorder) -> Self {
        let timed = recorder.has_times().then(|| (Instant::now(), TaskTimes::new(Duration::ZERO)));
        Self { recorder, io: None, timed }
    }

    /// Its unit's store has it, to do this.
    #[cold]
    pub(crate) fn enters_store(&mut self, io: Io) {
        self.io = Some(io);
        if let Some((clock, times)) = &mut self.timed {
            times.enter(clock.elapsed(), Stage::Store);
        }
    }

    /// The store of the unit with this NAA identifier has done it, and it is answered.
    #[cold]
    pub(crate) fn end(self, naa: u64, name: TaskName) {
        if let Some(io) = &self.io {
            self.recorder.record(naa, io);
        }
        let Some((clock, mut times)) = self.timed else { return };
        times.enter(clock.elapsed(), Stage::Rest);
        times.reaches(naa);
        if let Some(spent) = times.end(clock.elapsed()) {
            self.recorder.record_times(name, spent);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MS: fn(u64) -> Duration = Duration::from_millis;

    #[test]
    fn a_write_is_in_one_stage_after_the_other() {
        let mut times = TaskTimes::new(MS(5));
        times.enter(MS(7), Stage::Data);
        times.enter(MS(57), Stage::Rest);
        times.reaches(9);
        times.enter(MS(58), Stage::Store);
        times.enter(MS(78), Stage::Rest);
        let spent = Spent { naa: 9, data: MS(50), store: MS(20), rest: MS(2 + 1 + 3) };
        assert_eq!(times.end(MS(81)), Some(spent));
    }

    #[test]
    fn what_reached_no_store_is_not_told() {
        assert_eq!(TaskTimes::new(MS(5)).end(MS(9)), None);
    }

    proptest! {
        #![proptest_config(lunette_cases::cases(256))]

        #[test]
        fn stages_add_up_to_the_whole(steps in prop::collection::vec((0_u64..1 << 40, 0_usize..STAGES), 0..20)) {
            let stages = [Stage::Data, Stage::Store, Stage::Rest];
            let (mut now, mut expected) = (Duration::ZERO, [Duration::ZERO; STAGES]);
            let mut times = TaskTimes::new(now);
            times.reaches(1);
            let mut stage = Stage::Rest as usize;
            for (ns, next) in steps {
                let step = Duration::from_nanos(ns);
                now += step;
                expected[stage] += step;
                times.enter(now, stages[next]);
                stage = next;
            }
            let spent = times.end(now).expect("a store had it");
            prop_assert_eq!([spent.data, spent.store, spent.rest], expected);
            prop_assert_eq!(spent.data + spent.store + spent.rest, now);
        }
    }
}
