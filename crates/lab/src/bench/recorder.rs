//! What one worker counts.

use std::time::Duration;

use hdrhistogram::Histogram;
use lunette_workload::Kind;

use crate::endpoint::Moments;

/// No operation takes longer: 416 days, and the longest measurement is a year. What took longer would count as so much. A histogram
/// takes 376 KiB of memory so, and those of a worker 3 MiB.
const LATENCY_MAX_NS: u64 = 1 << 55;
/// Decimal digits of a latency that are kept.
pub(crate) const SIGNIFICANT_DIGITS: u8 = 3;
/// More steps of a time series than anybody looks at; where there would be more, all of them become longer.
pub(crate) const STEPS_MAX: u64 = 1 << 20;

pub(crate) fn histogram() -> Histogram<u64> {
    // The bounds are constants that the histogram takes.
    Histogram::new_with_bounds(1, LATENCY_MAX_NS, SIGNIFICANT_DIGITS).expect("valid bounds")
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// Operations of one kind.
#[derive(Debug, Clone)]
pub(crate) struct Counted {
    pub(crate) bytes: u64,
    pub(crate) latency_ns: Histogram<u64>,
    /// What those of an open loop had taken by then that were given up before they ended, or before they began: they take longer.
    pub(crate) given_up_ns: Histogram<u64>,
}

/// One step of the time series.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Step {
    pub(crate) operations: u64,
    pub(crate) bytes: u64,
    pub(crate) latency_sum_ns: u64,
    pub(crate) latency_max_ns: u64,
}

impl Step {
    fn add(&mut self, other: &Self) {
        self.operations += other.operations;
        self.bytes += other.bytes;
        self.latency_sum_ns = self.latency_sum_ns.saturating_add(other.latency_sum_ns);
        self.latency_max_ns = self.latency_max_ns.max(other.latency_max_ns);
    }
}

/// Where operations spent their time.
#[derive(Debug, Clone)]
pub(crate) struct Split {
    pub(crate) schedule: Histogram<u64>,
    pub(crate) window: Histogram<u64>,
    pub(crate) away: Histogram<u64>,
    pub(crate) reply: Histogram<u64>,
}

/// See the module's documentation.
#[derive(Debug, Clone)]
pub(crate) struct Recorder {
    interval_ns: u64,
    pub(crate) read: Counted,
    pub(crate) write: Counted,
    /// Bytes that were read and are what was written there last, those of the warm-up among them.
    pub(crate) verified_bytes: u64,
    pub(crate) split: Split,
    pub(crate) steps: Vec<Step>,
    pub(crate) busy: u64,
    pub(crate) again: u64,
    /// Arrivals that were to begin while it was measured, and never did.
    pub(crate) unserved: u64,
    pub(crate) losses: u64,
    /// Operations under way at the end that did not count.
    pub(crate) under_way: u64,
    /// The longest time that one of them took.
    pub(crate) under_way_longest: Duration,
    /// How long was measured.
    pub(crate) measured: Duration,
    /// How long after that the last operation that counts ended.
    pub(crate) drained: Duration,
    /// Processor time of the whole process meanwhile; 0 with all but the last worker.
    pub(crate) processor: Duration,
}

impl Recorder {
    pub(crate) fn new(interval: Duration) -> Self {
        let counted = || Counted { bytes: 0, latency_ns: histogram(), given_up_ns: histogram() };
        let split =
            Split { schedule: histogram(), window: histogram(), away: histogram(), reply: histogram() };
        Self {
            interval_ns: nanoseconds(interval).max(1),
            read: counted(),
            write: counted(),
            verified_bytes: 0,
            split,
            steps: Vec::new(),
            busy: 0,
            again: 0,
            unserved: 0,
            losses: 0,
            under_way: 0,
            under_way_longest: Duration::ZERO,
            measured: Duration::ZERO,
            drained: Duration::ZERO,
            processor: Duration::ZERO,
        }
    }

    /// An operation ended well; `since_begin` is when, from the beginning of what is measured.
    pub(crate) fn record(
        &mut self,
        kind: Kind,
        bytes: u32,
        intended: Duration,
        moments: &Moments,
        since_begin: Duration,
    ) {
        let latency_ns = nanoseconds(moments.done.saturating_sub(intended));
        let counted = if kind == Kind::Read { &mut self.read } else { &mut self.write };
        counted.bytes += u64::from(bytes);
        counted.latency_ns.saturating_record(latency_ns);
        let split = &mut self.split;
        if moments.queued > intended {
            split.schedule.saturating_record(nanoseconds(moments.queued - intended));
        }
        if let (Some(sent), Some(first)) = (moments.sent, moments.first_byte) {
            split.window.saturating_record(nanoseconds(sent.saturating_sub(moments.queued)));
            split.away.saturating_record(nanoseconds(first.saturating_sub(sent)));
            split.reply.saturating_record(nanoseconds(moments.done.saturating_sub(first)));
        }
        let own = Step {
            operations: 1,
            bytes: u64::from(bytes),
            latency_sum_ns: latency_ns,
            latency_max_ns: latency_ns,
        };
        self.step(nanoseconds(since_begin)).add(&own);
    }

    /// The step of a time from the beginning of what is measured, with all before it.
    fn step(&mut self, since_begin_ns: u64) -> &mut Step {
        while since_begin_ns / self.interval_ns >= STEPS_MAX {
            self.widen();
        }
        // Less than the most that there are.
        let at = (since_begin_ns / self.interval_ns) as usize;
        if self.steps.len() <= at {
            self.steps.resize(at + 1, Step::default());
        }
        &mut self.steps[at]
    }

    /// Half as many steps, each twice as long.
    fn widen(&mut self) {
        self.interval_ns = self.interval_ns.saturating_mul(2);
        let wide = |pair: &[Step]| {
            let mut sum = Step::default();
            pair.iter().for_each(|step| sum.add(step));
            sum
        };
        self.steps = self.steps.chunks(2).map(wide).collect();
    }

    /// The length of the steps of the time series.
    pub(crate) const fn interval(&self) -> Duration {
        Duration::from_nanos(self.interval_ns)
    }

    /// An operation was under way at the end and does not count; `took` is how long, as far as it was waited for.
    pub(crate) fn leave_out(&mut self, took: Duration) {
        self.under_way += 1;
        self.under_way_longest = self.under_way_longest.max(took);
    }

    /// So many operations that count were given up when they had taken that long from their intended times on, at least.
    pub(crate) fn give_up(&mut self, kind: Kind, took: Duration, count: u64) {
        let counted = if kind == Kind::Read { &mut self.read } else { &mut self.write };
        counted.given_up_ns.saturating_record_n(nanoseconds(took), count);
    }

    /// So long was measured, and the time series is as long at least, whether anything ended in its last steps or not. What counts ended
    /// so much later.
    pub(crate) fn end(&mut self, measured: Duration, drained: Duration) {
        (self.measured, self.drained) = (measured, drained);
        if let Some(last_ns) = nanoseconds(measured).checked_sub(1) {
            self.step(last_ns);
        }
    }

    pub(crate) fn operations(&self) -> u64 {
        self.read.latency_ns.len() + self.write.latency_ns.len()
    }

    /// Adds what another worker counted.
    pub(crate) fn add(&mut self, other: &Self) {
        let pairs = [
            (&mut self.read.latency_ns, &other.read.latency_ns),
            (&mut self.write.latency_ns, &other.write.latency_ns),
            (&mut self.read.given_up_ns, &other.read.given_up_ns),
            (&mut self.write.given_up_ns, &other.write.given_up_ns),
            (&mut self.split.schedule, &other.split.schedule),
            (&mut self.split.window, &other.split.window),
            (&mut self.split.away, &other.split.away),
            (&mut self.split.reply, &other.split.reply),
        ];
        for (sum, part) in pairs {
            // All have the same bounds.
            sum.add(part).expect("equal bounds");
        }
        self.read.bytes += other.read.bytes;
        self.write.bytes += other.write.bytes;
        self.verified_bytes += other.verified_bytes;
        while self.interval_ns < other.interval_ns {
            self.widen();
        }
        for (at, part) in (0..).zip(&other.steps) {
            self.step(other.interval_ns.saturating_mul(at)).add(part);
        }
        self.busy += other.busy;
        self.again += other.again;
        self.unserved += other.unserved;
        self.losses += other.losses;
        self.under_way += other.under_way;
        self.under_way_longest = self.under_way_longest.max(other.under_way_longest);
        self.measured = self.measured.max(other.measured);
        self.drained = self.drained.max(other.drained);
        self.processor += other.processor;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn us(us: u64) -> Duration {
        Duration::from_micros(us)
    }

    #[test]
    fn latency_counts_from_the_intended_time() {
        let mut recorder = Recorder::new(Duration::from_secs(1));
        let moments = Moments {
            queued: us(500),
            sent: Some(us(510)),
            first_byte: Some(us(580)),
            done: us(600),
            tag: None,
        };
        recorder.record(Kind::Read, 4096, us(100), &moments, us(600));
        assert_eq!(recorder.read.latency_ns.max() / 1000, 500);
        let split = &recorder.split;
        let parts = [&split.schedule, &split.window, &split.away, &split.reply].map(|part| part.max() / 1000);
        assert_eq!(parts, [400, 10, 70, 20]);
    }

    #[test]
    fn a_stall_of_hours_is_longer_than_one_of_minutes() {
        let mut recorder = Recorder::new(Duration::from_secs(1));
        for seconds in [900, 1200, 31_536_000] {
            let done = Duration::from_secs(seconds);
            recorder.record(Kind::Read, 512, us(0), &Moments { done, ..Moments::default() }, us(1));
        }
        let seconds = |share| (recorder.read.latency_ns.value_at_quantile(share) as f64 / 1e9).round();
        assert_eq!([seconds(0.3), seconds(0.6)], [900.0, 1200.0]);
        assert!((seconds(1.0) / 31_536_000.0 - 1.0).abs() < 1e-3, "{}", seconds(1.0));
    }

    #[test]
    fn workers_add_up() {
        let mut one = Recorder::new(us(10));
        let mut other = one.clone();
        let moments = |done| Moments { done: us(done), ..Moments::default() };
        one.record(Kind::Read, 512, us(0), &moments(5), us(5));
        other.record(Kind::Write, 1024, us(0), &moments(25), us(25));
        other.end(us(41), us(3));
        other.leave_out(us(7));
        one.leave_out(us(9));
        other.give_up(Kind::Write, us(30), 4);
        one.give_up(Kind::Write, us(20), 3);
        (one.verified_bytes, other.verified_bytes) = (512, 4096);
        one.add(&other);
        assert_eq!((one.operations(), one.read.bytes, one.write.bytes), (2, 512, 1024));
        assert_eq!(one.steps.iter().map(|step| step.operations).collect::<Vec<_>>(), [1, 0, 1, 0, 0]);
        assert_eq!((one.measured, one.drained), (us(41), us(3)));
        assert_eq!((one.under_way, one.under_way_longest, one.verified_bytes), (2, us(9), 4608));
        assert_eq!((one.read.given_up_ns.len(), one.write.given_up_ns.len()), (0, 7));
    }

    #[test]
    fn steps_that_would_be_too_many_become_longer() {
        let ns = Duration::from_nanos;
        let recorded = |times: &[u64]| {
            let mut recorder = Recorder::new(ns(10));
            for &at in times {
                let moments = Moments { done: ns(at), ..Moments::default() };
                recorder.record(Kind::Read, 512, ns(0), &moments, ns(at));
            }
            recorder
        };
        let last = STEPS_MAX * 10;
        let mut whole = recorded(&[5, last - 1]);
        whole.end(ns(last), ns(0));
        assert_eq!((whole.interval(), whole.steps.len() as u64), (ns(10), STEPS_MAX));
        let mut wide = recorded(&[5, 15, 25, 4 * last - 1]);
        wide.end(ns(4 * last), ns(0));
        assert_eq!((wide.interval(), wide.steps.len() as u64), (ns(40), STEPS_MAX));
        let counts = |recorder: &Recorder| (recorder.steps[0].operations, recorder.steps[1].operations);
        assert_eq!((counts(&wide), wide.steps.last().map(|step| step.operations)), ((3, 0), Some(1)));
        let mut sum = recorded(&[35, 45]);
        sum.add(&wide);
        assert_eq!((sum.interval(), counts(&sum)), (ns(40), (4, 1)));
        wide.add(&recorded(&[35, 45]));
        assert_eq!((wide.interval(), counts(&wide)), (ns(40), (4, 1)));
    }
}
