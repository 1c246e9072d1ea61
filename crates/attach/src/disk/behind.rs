//! Writes that were answered and are not sent yet, or not answered by the target: write-behind.
//!
//! What continues a write that waits is added to it, so that small writes in a row become long commands. Everything is sent as
//! soon as somebody is free to send it; nothing waits for a clock. A write that fails has been answered well before: so the
//! failure is kept for good and told by every flush and every write that comes later, and what it was about is not read any more.
//!
//! Changes of the same bytes go in the order in which they came, whether they are answered ahead or not, and so does what waits for
//! room. Nobody waits for what came later: others that write all the time hold up no one.
//!
//! No I/O here: threads of [`super::Disk`] take runs and say how they ended.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lunette_initiator::Way;

use super::error::DiskError;

/// The most that is answered and not with the target, in bytes: twice what a line of 1 Gb/s and 125 ms holds. It is half of what the
/// journal keeps until it has a flush.
pub(super) const BYTES_MAX: usize = 32 << 20;
/// How much it is at least, and before anything was measured.
const BYTES_MIN: usize = 256 << 10;
/// How long the way is to be busy with it at least: small writes have the time to become long ones.
const TIME_MIN: Duration = Duration::from_millis(250);
/// The longest write that is gathered, in bytes: what one command transfers.
const RUN_BYTES_MAX: usize = 1 << 20;
/// A longer write is not answered ahead, in bytes.
pub(super) const WRITE_BYTES_MAX: usize = 4 << 20;

/// Data of whole blocks that is to be written.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Run {
    serial: u64,
    pub(super) offset: u64,
    pub(super) data: Vec<u8>,
}

impl Run {
    /// What [`Behind::ended`] is told.
    pub(super) const fn serial(&self) -> u64 {
        self.serial
    }

    fn range(&self) -> Range<u64> {
        self.offset..self.offset + self.data.len() as u64
    }
}

/// A run that is being written.
#[derive(Debug)]
struct Sending {
    serial: u64,
    range: Range<u64>,
}

/// Bytes that somebody is to change: a write that is not taken yet, or what goes past here.
#[derive(Debug)]
struct Claim {
    ticket: u64,
    range: Range<u64>,
}

#[derive(Debug)]
struct State {
    /// In the order in which they came.
    waiting: VecDeque<Run>,
    sending: Vec<Sending>,
    /// Of both.
    bytes: usize,
    serials: u64,
    /// In the order in which they came.
    claims: Vec<Claim>,
    tickets: u64,
    /// The claims that wait for nothing but room.
    for_room: VecDeque<u64>,
    way: Way,
    /// What may be of both, in bytes: what keeps the way busy, and no more, so that neither a flush nor a read waits long.
    bytes_max: usize,
    /// The first failure.
    failed: Option<DiskError>,
    /// What all of them were about: no more than what waited at the first.
    lost: Vec<Range<u64>>,
    is_closed: bool,
}

/// See the module's documentation.
#[derive(Debug, Default)]
pub(super) struct Behind {
    state: Mutex<State>,
    /// For who waits until something is over.
    changed: Condvar,
    /// For who waits for something to do.
    filled: Condvar,
}

impl Default for State {
    fn default() -> Self {
        let (waiting, sending, bytes, serials, claims) = Default::default();
        let (tickets, for_room, way, failed, lost, is_closed) = Default::default();
        let bytes_max = BYTES_MIN;
        Self {
            waiting,
            sending,
            bytes,
            serials,
            claims,
            tickets,
            for_room,
            way,
            bytes_max,
            failed,
            lost,
            is_closed,
        }
    }
}

impl State {
    /// There is room for so many bytes more; for any number where nothing is.
    fn has_room(&self, bytes: usize) -> bool {
        self.bytes == 0 || self.bytes + bytes <= self.bytes_max
    }

    fn overlaps(&self, range: &Range<u64>) -> bool {
        self.overlaps_before(self.serials, range)
    }

    /// Something of these bytes that came before this serial is not through.
    fn overlaps_before(&self, serial: u64, range: &Range<u64>) -> bool {
        let waiting = self.waiting.iter().map(|run| (run.serial, run.range()));
        let sending = self.sending.iter().map(|sending| (sending.serial, sending.range.clone()));
        waiting.chain(sending).any(|(of, at)| of < serial && overlap(&at, range))
    }

    /// Somebody is to change these bytes.
    fn claim(&mut self, range: &Range<u64>) -> u64 {
        self.tickets += 1;
        self.claims.push(Claim { ticket: self.tickets, range: range.clone() });
        self.tickets
    }

    /// Something older of these bytes is left. It becomes no more: whoever comes later waits for the claim.
    fn is_behind(&self, ticket: u64, range: &Range<u64>) -> bool {
        let mut older = self.claims.iter().take_while(|claim| claim.ticket < ticket);
        older.any(|claim| overlap(&claim.range, range)) || self.overlaps(range)
    }

    fn release(&mut self, ticket: u64) {
        self.claims.retain(|claim| claim.ticket != ticket);
        self.for_room.retain(|waits| *waits != ticket);
    }

    /// Something that came before this serial is not through.
    fn has_before(&self, serial: u64) -> bool {
        self.waiting.front().is_some_and(|run| run.serial < serial)
            || self.sending.iter().any(|sending| sending.serial < serial)
    }

    fn check(&self) -> Result<(), DiskError> {
        self.failed.clone().map_or(Ok(()), Err)
    }

    fn measure(&mut self, sent: Duration, ended: Duration, bytes: u64) {
        self.way.moved(sent, ended, bytes);
        let held = self.way.holds(TIME_MIN).unwrap_or(0);
        self.bytes_max = usize::try_from(held).unwrap_or(usize::MAX).clamp(BYTES_MIN, BYTES_MAX);
    }

    /// Adds it to a run that it continues, or makes a run of it.
    fn add(&mut self, offset: u64, data: Vec<u8>) {
        self.bytes += data.len();
        let continues =
            |run: &&mut Run| run.range().end == offset && run.data.len() + data.len() <= RUN_BYTES_MAX;
        match self.waiting.iter_mut().rev().find(continues) {
            Some(run) => run.data.extend_from_slice(&data),
            None => {
                self.waiting.push_back(Run { serial: self.serials, offset, data });
                self.serials += 1;
            }
        }
    }
}

fn overlap(one: &Range<u64>, other: &Range<u64>) -> bool {
    one.start.max(other.start) < one.end.min(other.end)
}

/// Bytes that no later write changes as long as this is there.
#[derive(Debug)]
pub(super) struct Held<'a> {
    behind: &'a Behind,
    ticket: u64,
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.behind.lock().release(self.ticket);
        self.behind.changed.notify_all();
    }
}

impl Behind {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait_while(&self, condition: impl FnMut(&mut State) -> bool) -> MutexGuard<'_, State> {
        self.changed.wait_while(self.lock(), condition).unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits as long as this is so and no write has failed.
    fn wait_on<'a>(
        &self,
        state: MutexGuard<'a, State>,
        condition: impl Fn(&State) -> bool,
    ) -> MutexGuard<'a, State> {
        let waits = |state: &mut State| state.failed.is_none() && condition(state);
        self.changed.wait_while(state, waits).unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes data of whole blocks, no more than [`WRITE_BYTES_MAX`], when nothing older of the same blocks is left, and there is room
    /// for it and for whoever waited for that before.
    ///
    /// # Errors
    /// An earlier write failed.
    pub(super) fn put(&self, offset: u64, data: Vec<u8>) -> Result<(), DiskError> {
        let range = offset..offset + data.len() as u64;
        let mut state = self.lock();
        let ticket = state.claim(&range);
        state = self.wait_on(state, |state| state.is_behind(ticket, &range));
        // From here on: who still waits for older bytes holds up nobody who waits for room.
        state.for_room.push_back(ticket);
        let is_first = |state: &State| state.for_room.front() == Some(&ticket);
        state = self.wait_on(state, |state| !is_first(state) || !state.has_room(data.len()));
        state.release(ticket);
        state.check()?;
        state.add(offset, data);
        let is_waited_for = !state.for_room.is_empty();
        drop(state);
        self.filled.notify_one();
        if is_waited_for {
            self.changed.notify_all();
        }
        Ok(())
    }

    /// Waits until nothing older of these bytes is left, before they are changed past here. Later writes of them wait for the end of
    /// that.
    ///
    /// # Errors
    /// An earlier write failed.
    pub(super) fn hold(&self, range: &Range<u64>) -> Result<Held<'_>, DiskError> {
        let mut state = self.lock();
        let ticket = state.claim(range);
        state = self.wait_on(state, |state| state.is_behind(ticket, range));
        if let Err(error) = state.check() {
            state.release(ticket);
            return Err(error);
        }
        Ok(Held { behind: self, ticket })
    }

    /// Waits until all that was put before of these bytes is written.
    ///
    /// # Errors
    /// A write of some of them failed: what is there is not what was answered.
    pub(super) fn wait_for(&self, range: &Range<u64>) -> Result<(), DiskError> {
        let serial = self.lock().serials;
        let state = self.wait_while(|state| state.overlaps_before(serial, range));
        if state.lost.iter().any(|lost| overlap(lost, range)) { state.check() } else { Ok(()) }
    }

    /// Whether some of these bytes are still to be written.
    pub(super) fn has(&self, range: &Range<u64>) -> bool {
        self.lock().overlaps(range)
    }

    /// Waits until everything is written that was put before.
    ///
    /// # Errors
    /// A write failed, now or ever.
    pub(super) fn drain(&self) -> Result<(), DiskError> {
        let serial = self.lock().serials;
        self.wait_while(|state| state.has_before(serial)).check()
    }

    /// The next run, for whoever writes it; waits for one. `None`: there will be no more.
    pub(super) fn take(&self) -> Option<Run> {
        let is_idle = |state: &mut State| state.waiting.is_empty() && !state.is_closed;
        let mut state = self.filled.wait_while(self.lock(), is_idle).unwrap_or_else(PoisonError::into_inner);
        let run = state.waiting.pop_front()?;
        state.sending.push(Sending { serial: run.serial, range: run.range() });
        Some(run)
    }

    /// What [`Self::take`] gave was written, or was not, and when that was begun and over.
    pub(super) fn ended(&self, serial: u64, result: Result<(), DiskError>, sent: Duration, ended: Duration) {
        let mut state = self.lock();
        if let Some(at) = state.sending.iter().position(|sending| sending.serial == serial) {
            let range = state.sending.swap_remove(at).range;
            let bytes = range.end - range.start;
            state.bytes -= bytes as usize;
            match result {
                Ok(()) => state.measure(sent, ended, bytes),
                Err(error) => {
                    state.failed.get_or_insert(error);
                    state.lost.push(range);
                }
            }
        }
        drop(state);
        self.changed.notify_all();
    }

    /// Nothing comes any more; what waits is still taken.
    pub(super) fn close(&self) {
        self.lock().is_closed = true;
        self.filled.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::thread;
    use std::time::Instant;

    use super::*;

    /// One whose way holds as much as may ever wait.
    fn wide() -> Behind {
        let behind = Behind::default();
        behind.lock().bytes_max = BYTES_MAX;
        behind
    }

    fn io() -> DiskError {
        DiskError::Io("no".into())
    }

    #[test]
    fn what_continues_a_write_that_waits_is_added_to_it() {
        let behind = Behind::default();
        behind.put(0, vec![1; 512]).unwrap();
        behind.put(512, vec![2; 512]).unwrap();
        behind.put(8192, vec![3; 512]).unwrap();
        behind.put(1024, vec![4; 512]).unwrap();
        let run = behind.take().unwrap();
        assert_eq!((run.offset, run.data), (0, [vec![1; 512], vec![2; 512], vec![4; 512]].concat()));
        // One that is being written gets no longer.
        behind.put(1536, vec![5; 512]).unwrap();
        assert_eq!(behind.take().map(|run| run.offset), Some(8192));
        assert_eq!(behind.take().map(|run| (run.offset, run.data.len())), Some((1536, 512)));
        behind.close();
        assert_eq!(behind.take(), None);
    }

    #[test]
    fn a_run_is_no_longer_than_a_command() {
        let behind = wide();
        for at in 0..3 {
            behind.put(at << 19, vec![0; 1 << 19]).unwrap();
        }
        assert_eq!(behind.take().map(|run| run.data.len()), Some(1 << 20));
        assert_eq!(behind.take().map(|run| run.data.len()), Some(1 << 19));
    }

    #[test]
    fn memory_is_bounded_and_nothing_overtakes_an_older_write_of_the_same_bytes() {
        let behind = wide();
        for at in 0..(BYTES_MAX / WRITE_BYTES_MAX) as u64 {
            behind.put(at * WRITE_BYTES_MAX as u64, vec![0; WRITE_BYTES_MAX]).unwrap();
        }
        thread::scope(|scope| {
            let more = scope.spawn(|| behind.put(1 << 40, vec![0; 512]));
            let same = scope.spawn(|| behind.put(0, vec![1; 512]));
            let read = scope.spawn(|| behind.wait_for(&(100..200)));
            let run = behind.take().unwrap();
            assert_eq!(run.offset, 0);
            assert!(behind.has(&(0..1)));
            behind.ended(run.serial(), Ok(()), Duration::ZERO, Duration::ZERO);
            for waiting in [more, same] {
                waiting.join().unwrap().unwrap();
            }
            // The reader may have come before the second write of its bytes or after it: that has to go, too.
            behind.close();
            while let Some(run) = behind.take() {
                behind.ended(run.serial(), Ok(()), Duration::ZERO, Duration::ZERO);
            }
            read.join().unwrap().unwrap();
        });
        assert_eq!(behind.lock().bytes, 0);
    }

    /// Waits until this is so.
    fn wait_until(behind: &Behind, is_so: impl Fn(&State) -> bool) {
        while !is_so(&behind.lock()) {
            thread::yield_now();
        }
    }

    /// Has the oldest run written over a way that holds little, and tells where it was.
    fn write_one(behind: &Behind) -> u64 {
        let run = behind.take().unwrap();
        behind.ended(run.serial(), Ok(()), Duration::ZERO, Duration::from_secs(60));
        run.offset
    }

    #[test]
    fn a_long_write_is_not_passed_by_short_ones_that_find_room() {
        let behind = Behind::default();
        let short = |at: u64| behind.put(at << 20, vec![0; BYTES_MIN / 4]);
        (0..4).for_each(|at| short(at).unwrap());
        let mut written = Vec::new();
        thread::scope(|scope| {
            scope.spawn(|| behind.put(1 << 40, vec![0; 1 << 20]).unwrap());
            wait_until(&behind, |state| state.for_room.len() == 1);
            written.push(write_one(&behind));
            scope.spawn(|| short(4).unwrap());
            wait_until(&behind, |state| state.for_room.len() == 2 || state.waiting.len() == 4);
            written.extend((0..5).map(|_| write_one(&behind)));
        });
        let [.., fifth, sixth] = written[..] else { panic!("six were put") };
        assert_eq!((fifth, sixth), (1 << 40, 4 << 20), "the long one has waited for longer");
    }

    #[test]
    fn who_waits_for_older_bytes_holds_up_nobody_who_waits_for_room() {
        let behind = Behind::default();
        behind.put(0, vec![0; 512]).unwrap();
        thread::scope(|scope| {
            scope.spawn(|| behind.put(0, vec![1; 512]).unwrap());
            wait_until(&behind, |state| state.claims.len() == 1);
            behind.put(4096, vec![2; 512]).unwrap();
            assert_eq!([write_one(&behind), write_one(&behind)], [0, 4096]);
            assert_eq!(behind.take().map(|run| run.data[0]), Some(1));
        });
    }

    /// As of a reader of a long range beside somebody who writes there all the time.
    #[test]
    fn a_reader_waits_for_what_came_before_it_and_for_no_more() {
        let behind = Behind::default();
        behind.put(0, vec![0; 512]).unwrap();
        thread::scope(|scope| {
            let read = scope.spawn(|| behind.wait_for(&(0..1 << 20)));
            let since = Instant::now();
            for at in 1u64.. {
                // There is always one.
                behind.put(at % 64 * 8192, vec![0; 512]).unwrap();
                write_one(&behind);
                if read.is_finished() || since.elapsed() > Duration::from_secs(20) {
                    break;
                }
            }
            assert!(behind.has(&(0..1 << 20)));
            let is_read = read.is_finished();
            write_one(&behind);
            read.join().unwrap().unwrap();
            assert!(is_read, "it waits for those who came later");
        });
    }

    #[test]
    fn what_goes_past_here_has_its_place_among_the_writes_of_the_same_bytes() {
        let behind = Behind::default();
        behind.put(0, vec![0; 512]).unwrap();
        let is_passed = thread::scope(|scope| {
            let (behind, (go, goes)) = (&behind, std::sync::mpsc::channel());
            let zeroed = scope.spawn(move || {
                let _held = behind.hold(&(0..1 << 20)).unwrap();
                goes.recv().unwrap();
                !behind.lock().waiting.is_empty()
            });
            wait_until(behind, |state| state.claims.len() == 1);
            scope.spawn(|| behind.put(4096, vec![1; 512]).unwrap());
            scope.spawn(|| behind.hold(&(4096..8192)).map(drop).unwrap());
            wait_until(behind, |state| state.claims.len() == 3 || state.waiting.len() == 2);
            // Others go on, also those that read there.
            behind.put(1 << 20, vec![2; 512]).unwrap();
            assert_eq!([write_one(behind), write_one(behind)], [0, 1 << 20]);
            behind.wait_for(&(0..1 << 20)).unwrap();
            go.send(()).unwrap();
            let is_passed = zeroed.join().unwrap();
            write_one(behind);
            is_passed
        });
        assert!(!is_passed, "what is newer has to come after it");
        let state = behind.lock();
        assert_eq!((state.claims.len(), state.for_room.len(), state.bytes), (0, 0, 0));
    }

    #[test]
    fn a_failure_ends_the_waiting_of_all_who_want_to_write() {
        let behind = Behind::default();
        behind.put(0, vec![0; BYTES_MIN]).unwrap();
        thread::scope(|scope| {
            let same = scope.spawn(|| behind.put(0, vec![0; 512]));
            let past = scope.spawn(|| behind.hold(&(0..512)).map(drop));
            let room = [1u64, 2].map(|at| {
                let behind = &behind;
                scope.spawn(move || behind.put(at << 30, vec![0; 512]))
            });
            wait_until(&behind, |state| state.claims.len() == 4 && state.for_room.len() == 2);
            let run = behind.take().unwrap();
            behind.ended(run.serial(), Err(io()), Duration::ZERO, Duration::ZERO);
            for waiting in room.into_iter().chain([same, past]) {
                assert_eq!(waiting.join().unwrap(), Err(io()));
            }
        });
        let state = behind.lock();
        assert_eq!((state.claims.len(), state.for_room.len(), state.bytes), (0, 0, 0));
    }

    #[test]
    fn a_failure_is_told_for_good() {
        let behind = Behind::default();
        behind.put(4096, vec![0; 512]).unwrap();
        behind.put(0, vec![0; 512]).unwrap();
        behind.put(1 << 40, vec![0; 512]).unwrap();
        let [first, second, third] = [(); 3].map(|()| behind.take().unwrap());
        behind.ended(first.serial(), Err(io()), Duration::ZERO, Duration::ZERO);
        behind.ended(second.serial(), Ok(()), Duration::ZERO, Duration::ZERO);
        behind.ended(third.serial(), Err(DiskError::Beyond), Duration::ZERO, Duration::ZERO);
        for _ in 0..2 {
            assert_eq!(behind.drain(), Err(io()));
            assert_eq!(behind.put(0, vec![0; 512]), Err(io()));
        }
        for lost in [4096, 1 << 40] {
            assert_eq!(
                behind.wait_for(&(lost..lost + 1)),
                Err(io()),
                "what is there is not what was answered"
            );
        }
        for kept in [0..4096, 4608..1 << 40] {
            assert_eq!(behind.wait_for(&kept), Ok(()));
        }
    }

    /// Has runs written one after the other over a line with a rate in bytes per second and a delay there and back, with as many
    /// under way as it holds; answers what may wait then.
    fn after_writes(rate: u64, delay_ms: u64) -> usize {
        let behind = wide();
        let delay = Duration::from_millis(delay_ms);
        for at in 0..200u64 {
            behind.put(at << 20, vec![0; 64 << 10]).unwrap();
            let run = behind.take().unwrap();
            let sent = Duration::from_nanos((at << 16) * 1_000_000_000 / rate);
            let moved = Duration::from_nanos((1 << 16) * 1_000_000_000 / rate);
            behind.ended(run.serial(), Ok(()), sent, sent + moved + delay);
        }
        behind.lock().bytes_max
    }

    #[test]
    fn as_much_is_answered_ahead_as_the_way_holds() {
        assert_eq!(Behind::default().lock().bytes_max, BYTES_MIN, "before anything is known");
        assert_eq!(after_writes(100 << 10, 50), BYTES_MIN);
        assert!((4 << 20..6 << 20).contains(&after_writes(18 << 20, 50)), "a quarter of a second");
        assert!((10 << 20..12 << 20).contains(&after_writes(18 << 20, 300)), "twice the delay");
        assert_eq!(after_writes(1 << 30, 50), BYTES_MAX);
        let behind = Behind::default();
        behind.put(0, vec![0; WRITE_BYTES_MAX]).unwrap();
        assert!(!behind.lock().has_room(1), "one that is longer goes alone");
    }

    #[test]
    fn a_flush_waits_for_what_came_before_it_and_for_no_more() {
        let behind = Behind::default();
        behind.put(0, vec![0; 512]).unwrap();
        thread::scope(|scope| {
            let drained = scope.spawn(|| behind.drain());
            let run = behind.take().unwrap();
            behind.ended(run.serial(), Ok(()), Duration::ZERO, Duration::ZERO);
            drained.join().unwrap().unwrap();
        });
        behind.drain().unwrap();
    }
}
