//! What one worker does next, and when: made of a workload, or taken from a trace.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use lunette_workload::{Arrivals, Generator, Kind, Operation, Pace, Record, Schedule, Trace};

/// So many of those that are left are made to tell what they are and when they were to begin; it takes some hundredths of a second.
const MADE_MAX: u64 = 1 << 16;
/// Others are told in so many groups.
const GROUPS: u32 = 1000;

/// When the next operation is to begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Arrival {
    /// As soon as there is room.
    Now,
    /// So long after the start.
    At(Duration),
    /// There is none.
    Never,
}

/// See the module's documentation.
#[derive(Debug, Clone)]
pub(crate) enum Source {
    Made { generator: Box<Generator>, schedule: Schedule, arrival: Arrival },
    Taken { trace: Arc<Trace>, next: usize, workers: usize, pace: Pace },
}

impl Source {
    pub(crate) fn made(
        generator: Generator,
        arrivals: Arrivals,
        seed: u64,
        [worker, workers]: [u32; 2],
    ) -> Self {
        let mut schedule = Schedule::new(arrivals, seed, worker, workers);
        let arrival = schedule.next_arrival().map_or(Arrival::Now, Arrival::At);
        Self::Made { generator: Box::new(generator), schedule, arrival }
    }

    /// Each of several workers has every so many-th operation.
    pub(crate) const fn taken(trace: Arc<Trace>, pace: Pace, worker: u32, workers: u32) -> Self {
        Self::Taken { trace, next: worker as usize, workers: workers as usize, pace }
    }

    /// Whether operations begin at times that are fixed beforehand.
    pub(crate) fn is_open(&self) -> bool {
        match self {
            Self::Made { arrival, .. } => matches!(arrival, Arrival::At(_)),
            Self::Taken { pace, .. } => matches!(pace, Pace::Times(_)),
        }
    }

    /// When the next one is to begin.
    pub(crate) fn arrival(&self) -> Arrival {
        match self {
            Self::Made { arrival, .. } => *arrival,
            Self::Taken { trace, next, pace, .. } => {
                trace.records().get(*next).map_or(Arrival::Never, |record| of_record(record, *pace))
            }
        }
    }

    /// The next one; nothing at the end of a trace.
    pub(crate) fn take(&mut self) -> Option<Operation> {
        match self {
            Self::Made { generator, schedule, arrival } => {
                *arrival = schedule.next_arrival().map_or(Arrival::Now, Arrival::At);
                Some(generator.generate())
            }
            Self::Taken { trace, next, workers, .. } => {
                let operation = trace.records().get(*next)?.operation;
                *next += *workers;
                Some(operation)
            }
        }
    }

    /// Leaves out what is made to begin before this time after the start; a trace has all of its operations.
    pub(crate) fn skip_before(&mut self, time: Duration) {
        if let Self::Made { schedule, arrival, .. } = self
            && matches!(arrival, Arrival::At(at) if *at < time)
        {
            schedule.skip_before(time);
            *arrival = schedule.next_arrival().map_or(Arrival::Now, Arrival::At);
        }
    }

    /// Tells of those that are still to begin in these times after the start: what they do, when at the latest, and how many it is said of.
    /// Of a workload with very many the others lie evenly in the rest of the time, with as many reads among them as among those before, and
    /// of random ones there may be as many as come on average ([`Schedule::count_before`]).
    pub(crate) fn left(&self, times: Range<Duration>, mut tell: impl FnMut(Kind, Duration, u64)) {
        let mut rest = self.clone();
        rest.skip_before(times.start);
        let (mut made, mut reads) = (0, 0);
        while let Arrival::At(at) = rest.arrival()
            && at < times.end
        {
            if let Self::Made { schedule, .. } = &rest
                && made == MADE_MAX
            {
                let count = 1 + schedule.clone().count_before(times.end);
                return tell_groups(count, reads, at..times.end, tell);
            }
            let Some(Operation { kind, .. }) = rest.take() else { return };
            if at >= times.start {
                made += 1;
                reads += u64::from(kind == Kind::Read);
                tell(kind, at, 1);
            }
        }
    }
}

/// So many arrivals at equal distances, with so many reads of [`MADE_MAX`].
fn tell_groups(count: u64, reads: u64, times: Range<Duration>, mut tell: impl FnMut(Kind, Duration, u64)) {
    // A part of a count is no greater than it.
    let part =
        |of: u64, part: u64, whole: u64| (u128::from(of) * u128::from(part) / u128::from(whole)) as u64;
    let until = |group: u32| {
        let all = part(count, group.into(), GROUPS.into());
        let reads = part(all, reads, MADE_MAX);
        [reads, all - reads]
    };
    let long = (times.end - times.start) / GROUPS;
    for group in 0..GROUPS {
        let at = times.end - long * (GROUPS - 1 - group);
        let (before, then) = (until(group), until(group + 1));
        tell(Kind::Read, at, then[0] - before[0]);
        tell(Kind::Write, at, then[1] - before[1]);
    }
}

fn of_record(record: &Record, pace: Pace) -> Arrival {
    match pace {
        Pace::None => Arrival::Now,
        Pace::Times(times) => {
            let seconds = record.at.as_secs_f64() / times;
            Arrival::At(Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX))
        }
    }
}

#[cfg(test)]
mod tests {
    use lunette_workload::{Percent, Sizes, Spread, Workload};

    use super::*;

    #[test]
    fn very_many_that_are_left_are_told_in_groups_none_of_them_too_early() {
        let read = "25".parse::<Percent>().expect("a share");
        let workload =
            Workload { sizes: Sizes::one(512), read, random: Percent::ALL, spread: Spread::Uniform };
        let range = lunette_workload::Range { offset_bytes: 0, length_bytes: 1 << 20 };
        let (begin, end) = (Duration::from_secs(10), Duration::from_secs(20));
        for (arrivals, all) in [(Arrivals::Even(1e6), 10_000_000), (Arrivals::Even(1e3), 10_000)] {
            let generator = Generator::new(&workload, range, 512, 5, (0, 1)).expect("a workload");
            let source = Source::made(generator, arrivals, 5, [0, 1]);
            let (mut counts, mut told, mut last) = ([0, 0], 0, begin);
            source.left(begin..end, |kind, at, count| {
                counts[usize::from(kind == Kind::Write)] += count;
                told += 1;
                // So many were to begin until then at the most.
                let due = ((at - begin).as_secs_f64() * all as f64 / 10.0).ceil() as u64 + 1;
                assert!(at >= last && at <= end && counts[0] + counts[1] <= due, "{counts:?} at {at:?}");
                last = at;
            });
            assert_eq!(counts[0] + counts[1], all);
            let share = counts[0] as f64 / all as f64;
            assert!((share - 0.25).abs() < 0.02, "{share}");
            assert!(told <= MADE_MAX + 2 * u64::from(GROUPS), "{told}");
        }
    }
}
