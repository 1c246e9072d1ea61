//! What is read before anybody asks for it: who reads in order, how far ahead of them it is read, and what of that is there.
//!
//! Each reader is a stream. One that has read enough without leaving much out has more and more read ahead of it, up to
//! [`WINDOW_BYTES_MAX`], or less on a line that is so slow that others would wait for it, and less for a reader that is so slow that the data
//! would be old before it gets there. What was read ahead is given out once; what somebody writes to, or is too old, is forgotten.
//!
//! No I/O and no clock: what a chunk holds is the caller's, who also tells how old it is.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

/// How old what was read ahead may be: whoever else changes the disk is seen that soon.
const AGE_MAX: Duration = Duration::from_secs(2);
/// How old it is to be at most where a reader goes on at its pace.
const AGE_AIM: Duration = Duration::from_secs(1);
/// How long others may have to wait behind what is read ahead.
const WAIT_MAX: Duration = Duration::from_millis(500);
/// What is read ahead of one reader, in bytes: at first and at most. The most is what a line of 1 Gb/s and 60 ms holds.
const WINDOW_BYTES_MIN: u64 = 256 << 10;
const WINDOW_BYTES_MAX: u64 = 8 << 20;
/// What is read ahead of a slow reader at least, in bytes.
const WINDOW_BYTES_SLOW: u64 = 64 << 10;
/// What is kept of all, in bytes.
const BYTES_MAX: u64 = 32 << 20;
/// The longest piece that is read at once, in bytes.
const CHUNK_BYTES_MAX: u64 = 512 << 10;
/// Readers that are known at the same time.
const STREAMS_MAX: usize = 8;
/// How much a reader has read before it counts as one that reads in order, in bytes.
const BEGIN_BYTES: u64 = 64 << 10;
/// How far its requests may overtake each other, in bytes: those that the kernel makes of one long read come in any order.
const SLACK_BYTES: u64 = 1 << 20;

/// A reader.
#[derive(Debug)]
struct Stream {
    start: u64,
    /// Behind the last byte of all requests.
    next: u64,
    requests: u32,
    /// The lengths of all requests.
    read: u64,
    /// Up to where was read ahead.
    asked: u64,
    window: u64,
    /// What its pace suits, in bytes.
    window_max: u64,
}

impl Stream {
    fn takes(&self, offset: u64) -> bool {
        offset + SLACK_BYTES >= self.next && offset <= self.next + SLACK_BYTES
    }

    const fn has_asked(&self, at: u64) -> bool {
        self.start <= at && at < self.asked
    }

    /// It went so many bytes in this time, or was away for a while: data is not to be old when it gets there.
    fn keep_pace(&mut self, bytes: u64, time: Duration) {
        self.window_max = if time > AGE_AIM {
            (bytes * 1000 / time.as_millis() as u64).max(WINDOW_BYTES_SLOW)
        } else {
            self.window_max.max(bytes / 2 * 3).min(WINDOW_BYTES_MAX)
        };
    }

    /// It leaves out no more than a quarter.
    fn is_in_order(&self) -> bool {
        self.requests > 1 && self.read >= BEGIN_BYTES && self.read >= (self.next - self.start) / 4 * 3
    }
}

/// A part of the disk that was asked for.
#[derive(Debug)]
struct Chunk<T> {
    end: u64,
    /// How many bytes were given out.
    used: u64,
    /// How far its end was ahead of the reader when it was asked for, in bytes.
    lead: u64,
    content: Arc<T>,
}

/// See the module's documentation.
#[derive(Debug)]
pub(super) struct Ahead<T> {
    size: u64,
    block: u64,
    /// The longest piece.
    chunk: u64,
    /// Who has read last is last.
    streams: VecDeque<Stream>,
    /// By their first byte; they do not overlap.
    chunks: BTreeMap<u64, Chunk<T>>,
    bytes: u64,
    /// What the line suits, in bytes.
    window_max: u64,
}

impl<T> Ahead<T> {
    /// For a disk of so many bytes in such blocks, of which one command has so many bytes at most.
    pub(super) fn new(size: u64, block: u64, transfer: u64) -> Self {
        let chunk = (CHUNK_BYTES_MAX.min(transfer) / block).max(1) * block;
        Self {
            size,
            block,
            chunk,
            streams: VecDeque::new(),
            chunks: BTreeMap::new(),
            bytes: 0,
            window_max: WINDOW_BYTES_MAX,
        }
    }

    /// Somebody reads this. Answers what is to be read ahead now, in pieces of whole blocks, each for [`Self::insert`].
    pub(super) fn read(&mut self, range: &Range<u64>) -> Vec<Range<u64>> {
        let found = self.streams.iter().rposition(|stream| stream.takes(range.start));
        let Some(mut stream) = found.and_then(|at| self.streams.remove(at)) else {
            if self.streams.len() == STREAMS_MAX {
                self.streams.pop_front();
            }
            let (start, next) = (range.start, range.end);
            let (read, asked, window_max) = (next - start, next, WINDOW_BYTES_MAX);
            let reader = Stream { start, next, requests: 1, read, asked, window: 0, window_max };
            self.streams.push_back(reader);
            return Vec::new();
        };
        stream.requests = stream.requests.saturating_add(1);
        stream.read += range.end - range.start;
        (stream.start, stream.next) = (stream.start.min(range.start), stream.next.max(range.end));
        let wanted = self.wanted(&mut stream);
        self.streams.push_back(stream);
        wanted
    }

    fn wanted(&mut self, stream: &mut Stream) -> Vec<Range<u64>> {
        // By half windows, so that the pieces do not become small.
        if !stream.is_in_order() || stream.asked > stream.next + stream.window / 2 {
            return Vec::new();
        }
        stream.window = (stream.window * 2).clamp(WINDOW_BYTES_MIN, self.window_max).min(stream.window_max);
        let whole = |at: u64| at / self.block * self.block;
        let from = whole(stream.asked.max(stream.next));
        let to = whole((stream.next + stream.window).min(self.size));
        if to <= from || !self.make_room(to - from, &(stream.next.saturating_sub(SLACK_BYTES)..to)) {
            return Vec::new();
        }
        stream.asked = to;
        let chunk = self.chunk;
        let starts = std::iter::successors(Some(from), |at| Some(at + chunk)).take_while(|at| *at < to);
        let pieces = starts.map(|at| at..to.min(at + chunk));
        pieces.filter(|piece| self.overlapping(piece).next().is_none()).collect()
    }

    /// Forgets what others have asked for, but nothing of this range, if that makes room for so many bytes.
    fn make_room(&mut self, bytes: u64, keep: &Range<u64>) -> bool {
        if self.bytes + bytes > BYTES_MAX {
            let kept = |start: &u64, chunk: &mut Chunk<T>| *start < keep.end && keep.start < chunk.end;
            self.chunks.retain(kept);
            self.count();
        }
        self.bytes + bytes <= BYTES_MAX
    }

    fn count(&mut self) {
        self.bytes = self.chunks.iter().map(|(start, chunk)| chunk.end - start).sum();
    }

    /// The first bytes of chunks that hold some of these.
    fn overlapping(&self, range: &Range<u64>) -> impl Iterator<Item = u64> {
        let (start, end) = (range.start, range.end);
        let below = self.chunks.range(..end).rev().take_while(move |(_, chunk)| chunk.end > start);
        below.map(|(start, _)| *start)
    }

    /// A piece that [`Self::read`] has just wanted is being read.
    pub(super) fn insert(&mut self, range: Range<u64>, content: Arc<T>) {
        let lead = self.streams.back().map_or(0, |stream| range.end.saturating_sub(stream.next));
        self.bytes += range.end - range.start;
        self.chunks.insert(range.start, Chunk { end: range.end, used: 0, lead, content });
    }

    /// The byte at `at` is wanted, so long after its piece was asked for. False if that is too long: the piece is forgotten then, and
    /// what was asked for behind it, which is read ahead again.
    pub(super) fn may_use(&mut self, at: u64, age: Duration) -> bool {
        let is_young = age < AGE_MAX;
        let found = self.chunks.range(..=at).next_back().filter(|(_, chunk)| chunk.end > at);
        let Some((start, chunk)) = found else { return is_young };
        let gone = chunk.lead.saturating_sub(chunk.end - at);
        let mut old = *start..chunk.end;
        if let Some(stream) = self.streams.iter_mut().rev().find(|stream| stream.has_asked(at)) {
            stream.keep_pace(gone, age);
            if !is_young {
                old.end = stream.asked.max(old.end);
                stream.asked = old.start;
            }
        }
        if !is_young {
            self.forget(&old);
        }
        is_young
    }

    /// What holds the byte at `at`: its range and its content; or else where the next begins before `end`, or that.
    pub(super) fn find(&self, at: u64, end: u64) -> Result<(Range<u64>, Arc<T>), u64> {
        if let Some((start, chunk)) = self.chunks.range(..=at).next_back().filter(|(_, chunk)| chunk.end > at)
        {
            return Ok((*start..chunk.end, Arc::clone(&chunk.content)));
        }
        Err(self.chunks.range(at..end).next().map_or(end, |(start, _)| *start))
    }

    /// A piece came so long after it was asked for.
    pub(super) fn came_after(&mut self, time: Duration) {
        let window = if time > WAIT_MAX { self.window_max / 2 } else { self.window_max + WINDOW_BYTES_MIN };
        self.window_max = window.clamp(WINDOW_BYTES_MIN, WINDOW_BYTES_MAX);
    }

    /// So much of the chunk that begins at `start` was given out; once all of it was, it is forgotten.
    pub(super) fn used(&mut self, start: u64, bytes: u64) {
        if let Some(chunk) = self.chunks.get_mut(&start) {
            chunk.used += bytes;
            if chunk.used >= chunk.end - start {
                self.forget(&(start..start + 1));
            }
        }
    }

    /// These bytes were changed, or cannot be believed.
    pub(super) fn forget(&mut self, range: &Range<u64>) {
        let starts: Vec<u64> = self.overlapping(range).collect();
        for start in starts {
            if let Some(chunk) = self.chunks.remove(&start) {
                self.bytes -= chunk.end - start;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use lunette_cases::cases;
    use proptest::prelude::*;

    use super::*;

    const KIB: u64 = 1 << 10;
    const MIB: u64 = 1 << 20;

    /// Reads so much from `start` in requests of `length`; answers how far was read ahead.
    fn read(ahead: &mut Ahead<()>, start: u64, length: u64, requests: u64) -> Option<u64> {
        let mut reached = None;
        for at in 0..requests {
            let from = start + at * length;
            for piece in ahead.read(&(from..from + length)) {
                assert!(piece.end - piece.start <= CHUNK_BYTES_MAX && piece.start % 512 == 0);
                reached = Some(piece.end);
                ahead.insert(piece, Arc::new(()));
            }
        }
        reached
    }

    #[test]
    fn who_reads_in_order_is_read_ahead_of_further_and_further() {
        let mut ahead: Ahead<()> = Ahead::new(1 << 40, 512, MIB);
        assert_eq!(read(&mut ahead, 0, 4 * KIB, 15), None, "it may be chance");
        assert_eq!(read(&mut ahead, 60 * KIB, 4 * KIB, 1), Some(64 * KIB + WINDOW_BYTES_MIN));
        let reached = read(&mut ahead, 64 * KIB, 4 * KIB, 16 << 10).unwrap();
        assert!(
            reached > 64 * MIB + WINDOW_BYTES_MAX / 2 && reached <= 64 * MIB + 64 * KIB + WINDOW_BYTES_MAX
        );
    }

    #[test]
    fn requests_of_one_reader_may_overtake_each_other() {
        let mut ahead: Ahead<()> = Ahead::new(1 << 40, 4096, MIB);
        let mut pieces = Vec::new();
        for at in [1, 0, 3, 2, 5, 7, 6, 4] {
            pieces.extend(ahead.read(&((8 + at) * 128 * KIB..(9 + at) * 128 * KIB)));
        }
        assert_eq!(pieces.first().map(|piece| piece.start), Some(10 * 128 * KIB));
    }

    #[test]
    fn who_leaps_is_not_read_ahead_of() {
        let mut ahead: Ahead<()> = Ahead::new(1 << 40, 512, MIB);
        for at in 0..1000 {
            assert!(ahead.read(&(at * 40 * KIB..at * 40 * KIB + 4 * KIB)).is_empty());
            let far = (at * 7919 % 1000 + 64) * 16 * MIB;
            assert!(ahead.read(&(far..far + 64 * KIB)).is_empty());
        }
    }

    #[test]
    fn on_a_slow_line_less_is_read_ahead() {
        let mut ahead: Ahead<()> = Ahead::new(1 << 40, 512, MIB);
        (0..20).for_each(|_| ahead.came_after(Duration::from_secs(2)));
        let reached = read(&mut ahead, 0, 4 * KIB, 1024).unwrap();
        assert!(reached <= 4 * MIB + WINDOW_BYTES_MIN, "{reached}");
        (0..40).for_each(|_| ahead.came_after(Duration::from_millis(60)));
        assert_eq!(ahead.window_max, WINDOW_BYTES_MAX);
    }

    /// Reads 64 KiB so many times, with a pause before each; tells how many pieces were too old.
    fn read_slowly(
        ahead: &mut Ahead<Duration>,
        now: &mut Duration,
        from: u64,
        times: u64,
        pause: Duration,
    ) -> u64 {
        let mut old = 0;
        for at in (from..).step_by(64 << 10).take(times as usize) {
            *now += pause;
            let end = at + 64 * KIB;
            for piece in ahead.read(&(at..end)) {
                ahead.insert(piece, Arc::new(*now));
            }
            let mut next = at;
            while next < end {
                match ahead.find(next, end) {
                    Ok((piece, asked_at)) if ahead.may_use(next, *now - *asked_at) => {
                        let to = piece.end.min(end);
                        ahead.used(piece.start, to - next);
                        next = to;
                    }
                    Ok(_) => old += 1,
                    Err(stop) => next = stop,
                }
            }
        }
        old
    }

    #[test]
    fn nothing_is_read_so_far_ahead_of_a_slow_reader_that_it_becomes_old() {
        let mut ahead: Ahead<Duration> = Ahead::new(1 << 40, 512, MIB);
        let mut now = Duration::ZERO;
        let slow = Duration::from_millis(125);
        assert!(read_slowly(&mut ahead, &mut now, 0, 100, slow) < 4);
        assert_eq!(read_slowly(&mut ahead, &mut now, 100 * 64 * KIB, 1000, slow), 0);
        let quick = Duration::from_millis(1);
        assert_eq!(read_slowly(&mut ahead, &mut now, 1100 * 64 * KIB, 1000, quick), 0);
        assert_eq!(ahead.streams.back().unwrap().window_max, WINDOW_BYTES_MAX);
    }

    #[test]
    fn what_is_old_is_forgotten_with_what_is_behind_it_and_read_ahead_again() {
        let mut ahead: Ahead<()> = Ahead::new(1 << 40, 512, 64 * KIB);
        assert_eq!(read(&mut ahead, 0, 4 * KIB, 16), Some(320 * KIB));
        assert!(ahead.may_use(64 * KIB, AGE_MAX - Duration::from_nanos(1)));
        assert!(ahead.may_use(256 * KIB, Duration::ZERO));
        assert!(!ahead.may_use(128 * KIB, AGE_MAX));
        assert!(ahead.find(64 * KIB, MIB).is_ok(), "what is before it is told of when it is wanted");
        assert_eq!((ahead.find(128 * KIB, MIB).err(), ahead.bytes), (Some(MIB), 64 * KIB));
        assert!(!ahead.may_use(64 * KIB, Duration::from_secs(3600)));
        assert_eq!((ahead.chunks.len(), ahead.bytes), (0, 0));
        assert!(read(&mut ahead, 64 * KIB, 4 * KIB, 1).unwrap() > 68 * KIB);
        assert!(ahead.find(68 * KIB, MIB).is_ok());
    }

    #[test]
    fn nothing_is_read_behind_the_end() {
        let mut ahead: Ahead<()> = Ahead::new(300 * KIB, 512, MIB);
        assert_eq!(read(&mut ahead, 0, 100 * KIB, 3), Some(300 * KIB));
        assert!(ahead.find(300 * KIB, 301 * KIB).is_err());
    }

    proptest! {
        #![proptest_config(cases(300))]

        #[test]
        fn chunks_never_overlap_and_are_bounded_and_what_is_forgotten_is_gone(
            steps in prop::collection::vec((0u64..64, 1u64..64, 0u8..3, 0u64..2500), 1..200),
        ) {
            let mut ahead: Ahead<()> = Ahead::new(40 * MIB + 512, 512, MIB);
            let mut at = 0;
            for (place, length, what, age) in steps {
                let range = match what {
                    // On from where the last one was.
                    0 => at..at + length * 4 * KIB,
                    _ => place * MIB / 2..place * MIB / 2 + length * 16 * KIB,
                };
                let range = range.start.min(ahead.size)..range.end.min(ahead.size);
                if what == 2 {
                    ahead.forget(&range);
                    prop_assert!(ahead.overlapping(&range).next().is_none());
                } else {
                    for piece in ahead.read(&range) {
                        prop_assert!(piece.end <= ahead.size && piece.start < piece.end);
                        ahead.insert(piece, Arc::new(()));
                    }
                    if let Ok((chunk, _)) = ahead.find(range.start, range.end) {
                        prop_assert!(chunk.contains(&range.start));
                        if ahead.may_use(range.start, Duration::from_millis(age)) {
                            ahead.used(chunk.start, chunk.end.min(range.end) - range.start);
                        } else {
                            prop_assert!(ahead.overlapping(&chunk).next().is_none());
                        }
                    }
                    at = range.end;
                }
                let mut end = 0;
                for (start, chunk) in &ahead.chunks {
                    prop_assert!(*start >= end && *start < chunk.end);
                    end = chunk.end;
                }
                let bytes: u64 = ahead.chunks.iter().map(|(start, chunk)| chunk.end - start).sum();
                prop_assert_eq!(bytes, ahead.bytes);
                prop_assert!(bytes <= BYTES_MAX);
            }
        }
    }
}
