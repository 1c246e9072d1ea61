//! What is read before anybody asks for it: who reads in order, how far ahead of them it is read, and what of that is there.
//!
//! Each reader is a stream. One that has read enough without leaving much out has more and more read ahead of it: as much as the way
//! to the disk holds ([`Way`]), so that it is busy and nobody else waits long, and less for a reader that is so slow that the data
//! would be old before it gets there. What was read ahead is given out once; what somebody writes to, or is too old, is forgotten.
//!
//! No I/O and no clock: what a chunk holds is the caller's, who also tells how old it is and when it was there.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use lunette_initiator::Way;

/// How old what was read ahead may be: whoever else changes the disk is seen that soon.
const AGE_MAX: Duration = Duration::from_secs(2);
/// How old it is to be at most where a reader goes on at its pace.
const AGE_AIM: Duration = Duration::from_secs(1);
/// How long the way is to be busy with what is read ahead at least, for disks that take their time.
const TIME_MIN: Duration = Duration::from_millis(20);
/// What is read ahead of one reader, in bytes: at first, before anything was measured, and at most. The most is twice what a line of
/// 1 Gb/s and 250 ms holds, or one of 10 Gb/s and 25 ms.
const WINDOW_BYTES_MIN: u64 = 256 << 10;
const WINDOW_BYTES_MAX: u64 = 64 << 20;
/// What is read ahead of a slow reader at least, in bytes.
const WINDOW_BYTES_SLOW: u64 = 64 << 10;
/// What is kept of all, in bytes.
const BYTES_MAX: u64 = 128 << 20;
/// The longest piece that is read at once, and the shortest for the sake of a small window, in bytes.
const CHUNK_BYTES_MAX: u64 = 512 << 10;
const CHUNK_BYTES_MIN: u64 = 64 << 10;
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
    way: Way,
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
            way: Way::default(),
        }
    }

    /// The disk has so many bytes now, no fewer than before.
    pub(super) fn grow(&mut self, size: u64) {
        self.size = size;
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
        stream.window = (stream.window * 2).clamp(WINDOW_BYTES_MIN, self.window_max()).min(stream.window_max);
        let block = self.block;
        let whole = |at: u64| at / block * block;
        let from = whole(stream.asked.max(stream.next));
        let to = whole((stream.next + stream.window).min(self.size));
        if to <= from || !self.make_room(to - from, &(stream.next.saturating_sub(SLACK_BYTES)..to)) {
            return Vec::new();
        }
        stream.asked = to;
        let chunk = self.chunk.min(whole(stream.window / 4).max(whole(CHUNK_BYTES_MIN)).max(block));
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

    /// A piece of so many bytes was asked for and was there at these times.
    pub(super) fn came(&mut self, asked: Duration, came: Duration, bytes: u64) {
        self.way.moved(asked, came, bytes);
    }

    /// What the way suits, in bytes.
    fn window_max(&self) -> u64 {
        let held = self.way.holds(TIME_MIN);
        held.map_or(WINDOW_BYTES_MIN, |bytes| bytes.clamp(WINDOW_BYTES_MIN, WINDOW_BYTES_MAX))
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
mod tests;
