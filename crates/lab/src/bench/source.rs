//! What one worker does next, and when: made of a workload, or taken from a trace.

use std::sync::Arc;
use std::time::Duration;

use lunette_workload::{Arrivals, Generator, Operation, Pace, Record, Schedule, Trace};

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
#[derive(Debug)]
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

    /// How many of the next ones are to begin before this time after the start. Very many random ones are an estimate
    /// ([`Schedule::count_before`]).
    pub(crate) fn count_before(&self, time: Duration) -> u64 {
        let is_before = |arrival| matches!(arrival, Arrival::At(at) if at < time);
        match self {
            Self::Made { arrival, .. } if !is_before(*arrival) => 0,
            Self::Made { schedule, .. } => 1 + schedule.clone().count_before(time),
            Self::Taken { trace, next, workers, pace } => {
                let own = trace.records().iter().skip(*next).step_by(*workers);
                own.take_while(|record| is_before(of_record(record, *pace))).count() as u64
            }
        }
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
