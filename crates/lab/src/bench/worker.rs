//! One worker: operations of a generator go to an endpoint, and their ends are counted.

use std::collections::VecDeque;
use std::time::Duration;

use lunette_workload::model::Settings;
use lunette_workload::{Kind, Ledger, Noise, Operation, content};

use super::monitor::{Monitor, Phase};
use super::plan::{Plan, Until};
use super::processor::Processor;
use super::recorder::Recorder;
use super::source::{Arrival, Source};
use super::split::{Log, Own};
use crate::endpoint::{End, Ended, Endpoint, Fault, Moments};
use crate::{Ending, LabError, Negotiated};

/// How long nothing may happen before the worker looks whether it is to end.
const PATIENCE: Duration = Duration::from_millis(100);
/// How often one operation is sent again that the unit did not take for another reason than that it is busy.
pub(crate) const AGAIN_MAX: u32 = 64;
/// How long after the end arrivals of an open loop still begin that had their time before.
const GRACE: Duration = Duration::from_secs(1);
/// How long operations under way are waited for when the measurement is stopped.
pub(crate) const STOP_PATIENCE: Duration = Duration::from_secs(2);
/// How long a busy unit is left alone while nothing of this worker's ends well there.
pub(crate) const BUSY_PAUSE: Duration = Duration::from_millis(1);

/// An operation under way.
#[derive(Debug, Clone, Copy)]
struct Slot {
    operation: Operation,
    /// When it was to begin.
    intended: Duration,
    /// When it was queued for the first time, where that try is over and another one has begun.
    queued: Option<Duration>,
    /// How often it was sent again because the unit had something else to tell.
    again: u32,
}

/// What a worker has at its end.
pub(crate) struct Done<E> {
    pub(crate) endpoint: E,
    pub(crate) recorder: Recorder,
    pub(crate) log: Option<Log>,
    /// Something is under way that was not waited for.
    pub(crate) is_abandoned: bool,
}

/// What all workers of a plan have together.
#[derive(Clone, Copy)]
pub(crate) struct Shared<'a> {
    pub(crate) monitor: &'a Monitor,
    pub(crate) processor: &'a Processor,
    /// What is written follows from it.
    pub(crate) content_seed: u64,
}

/// See the module's documentation. All times are of the endpoint's clock.
pub(crate) struct Worker<'a, E: Endpoint> {
    endpoint: E,
    plan: &'a Plan,
    monitor: &'a Monitor,
    content_seed: u64,
    /// What is written where nothing is verified.
    noise: Noise,
    source: Source,
    /// The source begins operations at times of its own.
    is_open: bool,
    ledger: Option<Ledger>,
    slots: Vec<Option<Slot>>,
    free: Vec<u32>,
    /// How many of those under way are of an open loop's warm-up, and will not count.
    of_warm_up: usize,
    /// One that waits for another that touches the same blocks.
    held: Option<(Operation, Duration)>,
    /// What a busy unit did not take, with its buffer, in the order in which it is sent again.
    refused: VecDeque<(u32, E::Buffer)>,
    /// How many operations have ended well since some of it was sent last.
    ended_well: usize,
    /// When one of it is sent again although none has.
    again_at: Duration,
    recorder: Recorder,
    /// What is to be joined with the target's times, and what decides whether a write needs R2Ts.
    log: Option<(Log, Settings)>,
    processor: &'a Processor,
    /// Things have begun to count.
    is_begun: bool,
    /// Nothing counts any more but what is under way.
    is_over: bool,
    /// When the workload starts.
    start: Duration,
    /// From when on things count.
    begin: Duration,
    /// Until when, where that is a time.
    end: Option<Duration>,
    count: Option<u64>,
    /// When the last one began of those that count in an open loop.
    last_begun: Duration,
    last_done: Duration,
}

impl<'a, E: Endpoint> Worker<'a, E> {
    pub(crate) fn new(
        plan: &'a Plan,
        shared: Shared<'a>,
        number: u32,
        endpoint: E,
        ledger: Option<Ledger>,
        agreed: Option<&Negotiated>,
    ) -> Result<Self, LabError> {
        let joins = plan.target_times.is_some();
        let log = agreed.filter(|_| joins).map(|agreed| (Log::default(), agreed.settings(plan.depth)));
        let source = plan.source(number)?;
        let start = endpoint.now();
        let begin = start + plan.warm_up;
        let end = match plan.until {
            Until::Time(time) => Some(begin.saturating_add(time)),
            Until::Count(_) => None,
        };
        Ok(Self {
            is_open: source.is_open(),
            source,
            ledger,
            slots: vec![None; plan.depth as usize],
            free: (0..plan.depth).rev().collect(),
            of_warm_up: 0,
            held: None,
            refused: VecDeque::new(),
            ended_well: 0,
            again_at: start,
            recorder: Recorder::new(plan.interval),
            log,
            processor: shared.processor,
            is_begun: false,
            is_over: false,
            start,
            begin,
            end,
            count: plan.count(number),
            last_begun: begin,
            last_done: begin,
            endpoint,
            plan,
            monitor: shared.monitor,
            content_seed: shared.content_seed,
            noise: Noise::new(shared.content_seed, number),
        })
    }

    /// Carries the workload out. What goes wrong on the way is told to the monitor, and ends it for all.
    pub(crate) fn run(mut self) -> Done<E> {
        let mut ended = Vec::new();
        while let Some(timeout) = self.turn() {
            if let Err(error) = self.endpoint.poll(timeout, &mut ended) {
                self.monitor.fail(Ending::Lost(error.to_string()));
                break;
            }
            let (mut operations, mut bytes) = (0, 0);
            for ended in ended.drain(..) {
                if let Some(length) = self.ended(ended) {
                    operations += 1;
                    bytes += u64::from(length);
                }
            }
            self.monitor.add(operations, bytes);
        }
        self.conclude()
    }

    /// Begins what can be begun; answers how long may be waited for ends, or nothing when all is done.
    fn turn(&mut self) -> Option<Duration> {
        let now = self.endpoint.now();
        let mut patience = self.plan.patience;
        if self.monitor.is_stopped() {
            // As if this had been the end from the beginning.
            let end = self.end.map_or(now, |end| end.min(now));
            (self.end, self.count) = (Some(end), None);
            patience = Some(patience.map_or(STOP_PATIENCE, |patience| patience.min(STOP_PATIENCE)));
        }
        if let Some(end) = self.end.filter(|end| now >= *end) {
            self.monitor.enter(Phase::Ending);
            if patience.is_some_and(|patience| now > end.saturating_add(patience)) {
                return None;
            }
        }
        if !self.is_begun && now >= self.begin {
            self.monitor.enter(Phase::Measuring);
            self.is_begun = true;
            // What the warm-up has not begun would keep the disk busy, and not count.
            self.source.skip_before(self.begin.saturating_sub(self.start));
            self.processor.begin();
        }
        self.send_refused(now);
        let mut timeout = PATIENCE;
        while let Some(slot) = self.free.last().copied() {
            match self.next(now) {
                Next::Begin(operation, intended) => {
                    self.free.pop();
                    // In a closed loop an operation was to begin when it does.
                    let intended = if self.is_open { intended } else { now };
                    if intended >= self.begin {
                        self.last_begun = now;
                    }
                    if let Err(error) = self.submit(slot, operation, intended) {
                        self.monitor.fail(Ending::Lost(error.to_string()));
                        return None;
                    }
                }
                Next::NotBefore(time) => {
                    timeout = timeout.min(time.saturating_sub(now));
                    break;
                }
                Next::Wait => break,
                Next::Never if self.free.len() == self.slots.len() => return None,
                Next::Never => break,
            }
        }
        let begins_more = self.intended(now).is_some_and(|intended| !self.is_enough(now, intended));
        if self.end.is_some_and(|end| now >= end) && !begins_more {
            self.be_over();
        }
        if !self.is_begun {
            timeout = timeout.min(self.begin.saturating_sub(now));
        }
        if let Some(end) = self.end.filter(|end| *end > now) {
            timeout = timeout.min(end - now);
        }
        if !self.refused.is_empty() {
            // Nobody has to be awake to send it in time.
            timeout = timeout.min(BUSY_PAUSE * 2);
        }
        Some(timeout)
    }

    /// What is to begin now.
    fn next(&mut self, now: Duration) -> Next {
        let Some(intended) = self.intended(now).filter(|intended| !self.is_enough(now, *intended)) else {
            return Next::Never;
        };
        if intended > now {
            return Next::NotBefore(intended);
        }
        let next = self.held.take().or_else(|| Some((self.source.take()?, intended)));
        next.map_or(Next::Never, |(operation, intended)| self.unless_in_the_way(operation, intended))
    }

    /// When the next one is to begin, if there is one.
    fn intended(&self, now: Duration) -> Option<Duration> {
        match (&self.held, self.source.arrival()) {
            (Some((_, intended)), _) => Some(*intended),
            (None, Arrival::Now) => Some(now),
            (None, Arrival::At(arrival)) => Some(self.start.saturating_add(arrival)),
            (None, Arrival::Never) => None,
        }
    }

    /// Whether the next one, which was to begin then, is no longer to begin now.
    fn is_enough(&self, now: Duration, intended: Duration) -> bool {
        let to_count = (self.slots.len() - self.free.len() - self.of_warm_up) as u64;
        match (self.end, self.count) {
            // What was to begin before the end is not left out because the disk is slow, for a while.
            (Some(end), _) if self.is_open => intended >= end || now >= end.saturating_add(GRACE),
            (Some(end), _) => now >= end,
            (None, Some(count)) => self.recorder.operations() + to_count >= count && now >= self.begin,
            (None, None) => false,
        }
    }

    fn unless_in_the_way(&mut self, operation: Operation, intended: Duration) -> Next {
        if self.ledger.as_mut().is_none_or(|ledger| ledger.begin(&operation)) {
            return Next::Begin(operation, intended);
        }
        self.held = Some((operation, intended));
        Next::Wait
    }

    fn submit(&mut self, slot: u32, operation: Operation, intended: Duration) -> Result<(), LabError> {
        let mut buffer = self.endpoint.buffer(operation.length_bytes)?;
        match &self.ledger {
            _ if operation.kind == Kind::Read => {}
            Some(ledger) => {
                let grains = buffer.chunks_exact_mut(ledger.grain_bytes());
                for (grain, (offset_bytes, generation)) in grains.zip(ledger.generations(&operation)) {
                    content::fill(self.content_seed, offset_bytes, generation, grain);
                }
            }
            None => self.noise.fill(&mut buffer),
        }
        self.of_warm_up += usize::from(self.is_of_warm_up(intended));
        self.slots[slot as usize] = Some(Slot { operation, intended, queued: None, again: 0 });
        self.endpoint.submit(slot, &operation, buffer);
        Ok(())
    }

    /// Sends again what a busy unit did not take, the first one first: as many as have left room there, or one after a pause. So the way
    /// stays narrow while it is busy, and nobody waits for ever. What is not taken by the end is not waited for.
    fn send_refused(&mut self, now: Duration) {
        let ended_well = std::mem::take(&mut self.ended_well);
        if self.refused.is_empty() {
            return;
        }
        if self.takes_no_more(now) {
            return self.leave_refused(now);
        }
        let count = ended_well.max(usize::from(now >= self.again_at)).min(self.refused.len());
        for (slot, buffer) in self.refused.drain(..count) {
            self.again_at = now + BUSY_PAUSE;
            if let Some(Slot { operation, .. }) = self.slots[slot as usize] {
                self.endpoint.submit(slot, &operation, buffer);
            }
        }
    }

    /// Whether what a busy unit does not take now comes too late.
    fn takes_no_more(&self, now: Duration) -> bool {
        // As long as those of an open loop still begin.
        let more = if self.is_open { GRACE } else { Duration::ZERO };
        self.is_full() || self.end.is_some_and(|end| now >= end.saturating_add(more))
    }

    fn leave_refused(&mut self, now: Duration) {
        for (slot, buffer) in std::mem::take(&mut self.refused) {
            self.endpoint.recycle(buffer);
            if let Some(Slot { operation, intended, queued, .. }) = self.slots[slot as usize] {
                self.leave_out(
                    operation.kind,
                    if self.is_open { intended } else { queued.unwrap_or(intended) },
                    now,
                );
                self.leave(slot, &operation, intended);
            }
        }
    }

    /// An operation does not count that was to begin then and has not ended by now; those of an open loop take longer than that.
    fn leave_out(&mut self, kind: Kind, since: Duration, now: Duration) {
        let took = now.saturating_sub(since);
        self.recorder.leave_out(took);
        if self.is_open && self.counts(since, now) {
            self.recorder.give_up(kind, took, 1);
        }
    }

    /// An operation has ended; answers how many bytes it moved, if it ended well.
    fn ended(&mut self, ended: Ended<E::Buffer>) -> Option<u32> {
        let slot = self.slots.get_mut(ended.slot as usize)?.as_mut()?;
        let Slot { operation, intended, .. } = *slot;
        // Each try is queued anew, and what those before it took is waiting, too: as if for a narrow command window.
        let queued = *slot.queued.get_or_insert(ended.moments.queued);
        let fault = match (ended.end, ended.buffer) {
            (End::Good, Some(buffer)) => {
                self.ended_well += 1;
                self.leave(ended.slot, &operation, intended);
                return self.good(&operation, intended, &Moments { queued, ..ended.moments }, buffer);
            }
            (End::Busy, Some(buffer)) => {
                self.recorder.busy += 1;
                if self.refused.is_empty() {
                    self.again_at = ended.moments.done + BUSY_PAUSE;
                }
                self.refused.push_back((ended.slot, buffer));
                return None;
            }
            (End::Again, Some(buffer)) if slot.again < AGAIN_MAX => {
                slot.again += 1;
                self.recorder.again += 1;
                self.endpoint.submit(ended.slot, &operation, buffer);
                return None;
            }
            (End::Failed(fault), _) => fault,
            (_, Some(_)) => Fault::Refused("the unit has something else to tell each time".into()),
            (_, None) => Fault::Lost("its buffer did not come back".into()),
        };
        self.leave(ended.slot, &operation, intended);
        self.monitor.fail(fault.ending(&describe(&operation)));
        None
    }

    /// The place of an operation that is over is free.
    fn leave(&mut self, slot: u32, operation: &Operation, intended: Duration) {
        if let Some(ledger) = &mut self.ledger {
            ledger.end(operation);
        }
        self.of_warm_up -= usize::from(self.is_of_warm_up(intended));
        self.slots[slot as usize] = None;
        self.free.push(slot);
    }

    /// Of a closed loop all that is under way at the begin counts when it ends.
    fn is_of_warm_up(&self, intended: Duration) -> bool {
        self.is_open && intended < self.begin
    }

    /// An operation ended well.
    fn good(
        &mut self,
        operation: &Operation,
        intended: Duration,
        moments: &Moments,
        buffer: E::Buffer,
    ) -> Option<u32> {
        let mismatch = self.verify(operation, &buffer);
        self.endpoint.recycle(buffer);
        if let Some(mismatch) = mismatch {
            self.monitor.fail(Ending::Mismatch(mismatch.to_string()));
            return None;
        }
        if self.ledger.is_some() && operation.kind == Kind::Read {
            self.recorder.verified_bytes += u64::from(operation.length_bytes);
        }
        let counts = self.counts(intended, moments.done);
        let intended = if self.is_open { intended } else { moments.queued };
        if let (Some((log, settings)), Some(tag), Some(own)) = (&mut self.log, moments.tag, Own::of(moments))
        {
            let length = operation.length_bytes;
            let needs_r2t = operation.kind == Kind::Write && settings.unasked_bytes(length) < length;
            log.add(tag, own, needs_r2t, counts);
        }
        if counts {
            self.last_done = self.last_done.max(moments.done);
            let since_begin = moments.done.saturating_sub(self.begin);
            self.recorder.record(operation.kind, operation.length_bytes, intended, moments, since_begin);
            if self.is_full() {
                self.be_over();
            }
        } else if moments.done >= self.begin
            && (self.is_full() || self.end.is_some_and(|end| moments.queued < end && moments.done >= end))
        {
            self.recorder.leave_out(moments.done.saturating_sub(intended));
        }
        Some(operation.length_bytes)
    }

    /// What is measured ends here; the processor time is not of what is waited for after it.
    fn be_over(&mut self) {
        if !std::mem::replace(&mut self.is_over, true) {
            self.recorder.processor = self.processor.end();
        }
    }

    /// A closed loop is measured by what ends meanwhile, an open one by what was to begin meanwhile.
    fn counts(&self, intended: Duration, done: Duration) -> bool {
        let moment = if self.is_open { intended } else { done };
        moment >= self.begin && self.end.is_none_or(|end| moment < end) && !self.is_full()
    }

    fn is_full(&self) -> bool {
        self.count.is_some_and(|count| self.recorder.operations() >= count)
    }

    fn verify(&self, operation: &Operation, buffer: &[u8]) -> Option<content::Mismatch> {
        let ledger = self.ledger.as_ref().filter(|_| operation.kind == Kind::Read)?;
        let mut grains = buffer.chunks_exact(ledger.grain_bytes()).zip(ledger.generations(operation));
        grains.find_map(|(grain, (offset_bytes, generation))| {
            content::check(self.content_seed, offset_bytes, generation, grain).err()
        })
    }

    /// Arrivals that had their time until `limit` and no room by `now` never begin. They count with what they have waited: who left them
    /// out would tell how fast those were that came early, and not how long who comes has to wait.
    fn give_up(&mut self, limit: Duration, now: Duration) {
        let recorder = &mut self.recorder;
        let mut tell = |kind, intended, count| {
            recorder.unserved += count;
            recorder.give_up(kind, now.saturating_sub(intended), count);
        };
        let times = self.begin..limit;
        if let Some((operation, intended)) = self.held.filter(|(_, intended)| times.contains(intended)) {
            tell(operation.kind, intended, 1);
        }
        let start = self.start;
        let times = times.start.saturating_sub(start)..limit.saturating_sub(start);
        self.source.left(times, |kind, at, count| tell(kind, start + at, count));
    }

    /// Sums up how long was measured and what was left undone.
    fn conclude(mut self) -> Done<E> {
        let now = self.endpoint.now();
        let until = match self.end {
            // What began late for want of room was no longer in time, and a disk that is asked for too much has no higher rate for it.
            Some(end) if self.is_open => end.max(self.last_begun),
            Some(end) => end,
            None => self.last_done,
        };
        // A trace may be over before its time, if nothing of it was under way then.
        let has_run_out = self.intended(now).is_none() && self.free.len() == self.slots.len();
        let has_run_out = has_run_out && self.recorder.under_way == 0;
        let until = if has_run_out { until.min(self.last_done) } else { until };
        if let Some(end) = self.end.filter(|_| self.is_open) {
            self.give_up(end.min(now), now.min(end.saturating_add(GRACE)));
        }
        let is_abandoned = self.free.len() < self.slots.len();
        for Slot { operation, intended, .. } in std::mem::take(&mut self.slots).into_iter().flatten() {
            self.leave_out(operation.kind, intended, now);
        }
        let drained = self.last_done.saturating_sub(until.max(self.begin));
        self.recorder.end(until.saturating_sub(self.begin), drained);
        self.be_over();
        self.recorder.losses = self.endpoint.losses();
        Done {
            endpoint: self.endpoint,
            recorder: self.recorder,
            log: self.log.map(|(log, _)| log),
            is_abandoned,
        }
    }
}

/// What a worker does next.
enum Next {
    Begin(Operation, Duration),
    NotBefore(Duration),
    /// Something else has to end first.
    Wait,
    /// Nothing more.
    Never,
}

fn describe(operation: &Operation) -> String {
    let verb = match operation.kind {
        Kind::Read => "read",
        Kind::Write => "write",
    };
    format!("a {verb} of {} bytes at byte {}", operation.length_bytes, operation.offset_bytes)
}

#[cfg(test)]
mod tests;
