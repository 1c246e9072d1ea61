//! One write: slices of what is queued, of what stores lend, and of what is read for it.
//!
//! What is in a store may change until the socket has it. So data of a store that has a digest is digested in the write that sends it:
//! while it is lent, or in the room that it was read to, where it is still in the processor's cache. Of what the socket did not take
//! nothing is kept; only the digest of what it took is.

use std::cell::{OnceCell, RefCell};
use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::mem;
use std::net::TcpStream;

use lunette_block::{CachedRange, Lent, LentRange, SendError};
use lunette_wire::digest::Crc32c;
use rustix::io::retry_on_intr;
use rustix::net::{SendAncillaryBuffer, SendFlags, sendmsg};

use super::super::framing::Tail;
use super::super::strip::Strip;
use super::{Queued, QueuedPdu};

/// Slices that go into one write: about 80 PDUs with data, which is more than a socket takes at once.
const SLICES_MAX: usize = 240;

/// Most writes have fewer, and a large array costs some hundred instructions before anything is in it.
const SLICES_FEW: usize = 12;

/// Pieces that stores lend for one write: more than a socket takes at once of long reads.
const LENT_MAX: usize = 80;

/// Who writes to what is lent waits until the write to the socket is done: so much of lent data is some 100 microseconds.
const LENT_BYTES_MAX: usize = 1 << 20;

/// What is read or lent, and digested, for one write: half of the second-level cache of the processors of the day. Of less, each write
/// costs more than it saves (docs/decisions/0011).
pub(super) const DIGESTED_BYTES_MAX: usize = 512 << 10;

/// What may be around that in a write: headers, digests, short answers.
const AROUND_BYTES_MAX: usize = 4 << 10;

/// PDUs that are digested for one write.
const DIGESTED_MAX: usize = 8;

/// Header, data, and what follows the data.
const PARTS: usize = 3;

/// What the room begins at a multiple of, as the page cache's pages do. Where a processor copies string instructions fast (FSRM), but to
/// a place that is 1 to 31 bytes beyond where it copies from, modulo 4096, at a sixth of that speed, the 16 bytes by which a general
/// allocator misses that are just wrong (docs/decisions/0011).
const ROOM_ALIGNMENT: usize = 4096;

thread_local! {
    /// Where data is read to that has a digest. Nothing is in it between two writes.
    static ROOM: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// The part of the room's memory that is used.
fn aligned(memory: &mut Vec<u8>) -> &mut [u8] {
    memory.resize(DIGESTED_BYTES_MAX + ROOM_ALIGNMENT, 0);
    let begin = memory.as_ptr().align_offset(ROOM_ALIGNMENT).min(ROOM_ALIGNMENT);
    &mut memory[begin..][..DIGESTED_BYTES_MAX]
}

/// A PDU's data that is digested as it goes out, as far as one write has it.
struct Digested {
    /// Bytes of the write before it.
    at: usize,
    /// The slice with which it begins.
    first_slice: usize,
    data_bytes: usize,
    /// Bytes of the write up to the PDU's end, if that is in it.
    end: Option<usize>,
    /// Of what had gone out before.
    before: Crc32c,
    /// What follows the data.
    tail: Tail,
}

/// What is digested for one write.
#[derive(Default)]
struct Late<'a> {
    places: &'a [OnceCell<Digested>],
    count: usize,
    /// What is left of the room that data is read to.
    room: &'a mut [u8],
    /// Of what has gone out of the next PDU's data, if anything has.
    digest: Option<Crc32c>,
    /// Why data was not read.
    failure: Option<SendError>,
}

/// What one write is made of: slices of what is queued, and of what stores lend for it.
struct Gathered<'s, 'a, 'q> {
    slices: &'s mut [IoSlice<'a>],
    count: usize,
    offered: usize,
    /// Some more may be offered.
    bytes_max: usize,
    /// Kept until the write is done.
    lent: &'a [OnceCell<Lent<'q>>],
    lent_count: usize,
    lent_bytes: usize,
    late: Late<'a>,
    /// The rest of the last PDU comes next.
    ends_at_data: bool,
}

impl<'s, 'a, 'q: 'a> Gathered<'s, 'a, 'q> {
    fn new(slices: &'s mut [IoSlice<'a>], lent: &'a [OnceCell<Lent<'q>>], bytes_max: usize) -> Self {
        Self {
            slices,
            count: 0,
            offered: 0,
            bytes_max,
            lent,
            lent_count: 0,
            lent_bytes: 0,
            late: Late::default(),
            ends_at_data: false,
        }
    }

    /// Room for the parts of another PDU.
    const fn has_room(&self) -> bool {
        self.count + PARTS <= self.slices.len() && self.offered < self.bytes_max
    }

    fn add(&mut self, bytes: &'a [u8]) {
        if !bytes.is_empty() {
            self.slices[self.count] = IoSlice::new(bytes);
            self.count += 1;
            self.offered += bytes.len();
        }
    }

    /// Adds what comes after the first `skip` bytes; false where the write ends with it, or within it.
    fn add_strip(&mut self, strip: &'q Strip, skip: usize) -> bool {
        let rest = strip.bytes().get(skip..).unwrap_or_default();
        let offered = rest.len().min(self.bytes_max - self.offered);
        self.add(&rest[..offered]);
        offered == rest.len()
    }

    /// The same.
    fn add_pdu(&mut self, pdu: &'q QueuedPdu, skip: usize) -> bool {
        self.add(pdu.head.bytes().get(skip..).unwrap_or_default());
        let skip = skip.saturating_sub(pdu.head.bytes().len());
        if pdu.is_digested_late {
            return self.add_late(pdu, skip);
        }
        let length = pdu.body.length();
        if skip < length {
            if let Some((range, start, end)) = pdu.body.lent() {
                if !self.add_lent(range, start + skip, end) {
                    return false;
                }
            } else if pdu.body.cached().is_some() {
                self.ends_at_data = true;
                return false;
            } else {
                self.add(pdu.body.bytes().get(skip..).unwrap_or_default());
            }
        }
        self.add(pdu.tail.bytes().get(skip.saturating_sub(length)..).unwrap_or_default());
        true
    }

    /// The same of what is digested as it goes out, from its data on.
    fn add_late(&mut self, pdu: &'q QueuedPdu, skip: usize) -> bool {
        let Some(place) = self.late.places.get(self.late.count) else {
            self.ends_at_data = true;
            return false;
        };
        let (at, first_slice) = (self.offered, self.count);
        let before = self.late.digest.take().unwrap_or_default();
        let length = pdu.body.length();
        let is_whole = skip >= length
            || match (pdu.body.lent(), pdu.body.cached()) {
                (Some((range, start, end)), _) => self.add_lent(range, start + skip, end),
                (_, Some((range, start, end))) => self.add_read(range, start + skip, end),
                (None, None) => false,
            };
        let mut digest = before.clone();
        self.slices[first_slice..self.count].iter().for_each(|slice| digest.update(slice));
        let mut tail = pdu.tail;
        tail.set_digest(&digest);
        let data_bytes = self.offered - at;
        let tail_skip = skip.saturating_sub(length);
        let tail_bytes = tail.bytes().len() - tail_skip;
        let end = is_whole.then_some(at + data_bytes + tail_bytes);
        let digested = place.get_or_init(|| Digested { at, first_slice, data_bytes, end, before, tail });
        self.late.count += 1;
        if is_whole {
            self.add(digested.tail.bytes().get(tail_skip..).unwrap_or_default());
        } else {
            self.ends_at_data = true;
        }
        is_whole
    }

    /// Adds the bytes from `start` to `end` of a range, which are read for that; false where they are not all of them.
    fn add_read(&mut self, range: &CachedRange, start: usize, end: usize) -> bool {
        // To read may be to wait for the disk, and who has something that was lent must not wait: the next write begins with this.
        if self.lent_count > 0 {
            return false;
        }
        let has_slice = self.count + 1 < self.slices.len();
        let room = self.late.room.len().min(self.bytes_max.saturating_sub(self.offered));
        let count = (end - start).min(if has_slice { room } else { 0 });
        let (bytes, room) = mem::take(&mut self.late.room).split_at_mut(count);
        self.late.room = room;
        // A range of a volume has a length of 32 bits.
        if let Err(error) = range.read(start as u32, bytes) {
            self.late.failure = Some(error);
            return false;
        }
        self.add(bytes);
        count == end - start
    }

    /// Adds the bytes from `start` to `end` of a range, piece by piece; false where they are not all of them.
    fn add_lent(&mut self, range: &'q LentRange, mut start: usize, end: usize) -> bool {
        while start < end {
            let bytes_left =
                (LENT_BYTES_MAX - self.lent_bytes).min(self.bytes_max.saturating_sub(self.offered));
            let piece_end = end.min(start + bytes_left);
            // The last slice is for what follows the data.
            let has_slice = self.count + 1 < self.slices.len();
            let Some(place) = self.lent.get(self.lent_count).filter(|_| has_slice && bytes_left > 0) else {
                return false;
            };
            // Who has something that was lent must not wait for more: the next write begins with this piece, and may. A range of a volume
            // has a length of 32 bits.
            let waits = self.lent_count == 0;
            let Some(piece) = range.lend(start as u32, piece_end as u32, waits) else { return false };
            self.lent_count += 1;
            let bytes = place.get_or_init(|| piece).bytes();
            self.add(bytes);
            self.lent_bytes += bytes.len();
            start += bytes.len();
        }
        true
    }

    fn gather(&mut self, queue: &'q VecDeque<Queued>, sent: usize) {
        // Only the first can have been sent in part.
        let mut skip = sent;
        for queued in queue {
            let goes_on = self.has_room()
                && match queued {
                    Queued::Pdu(pdu) => self.add_pdu(pdu, skip),
                    Queued::Strip(strip) => self.add_strip(strip, skip),
                };
            if !goes_on {
                return;
            }
            skip = 0;
        }
    }

    /// Writes it; answers how much there is, and how much of it the socket took.
    fn write(&self, socket: &TcpStream) -> (usize, Result<usize, SendError>) {
        // The header and the data behind it are to share segments.
        let flags =
            if self.ends_at_data { SendFlags::NOSIGNAL | SendFlags::MORE } else { SendFlags::NOSIGNAL };
        let slices = &self.slices[..self.count];
        let written = retry_on_intr(|| sendmsg(socket, slices, &mut SendAncillaryBuffer::default(), flags));
        (self.offered, written.map_err(|errno| SendError::Socket(errno.into())))
    }

    /// Of the data that is left of the PDU in which the first `written` bytes end: the digest of what has gone out.
    fn digest_after(&self, written: usize) -> Crc32c {
        let ends_in =
            |digested: &&Digested| digested.at <= written && digested.end.is_none_or(|end| written < end);
        let Some(digested) = self.late.places.iter().filter_map(OnceCell::get).find(ends_in) else {
            return Crc32c::default();
        };
        let mut digest = digested.before.clone();
        let mut left = (written - digested.at).min(digested.data_bytes);
        for slice in &self.slices[digested.first_slice..self.count] {
            let part = &slice[..slice.len().min(left)];
            digest.update(part);
            left -= part.len();
        }
        digest
    }
}

/// Writes what is in memory from the `sent` first bytes on, up to the first PDU whose data is not; answers how much there was, and how
/// much of it the socket took.
pub(super) fn send(
    queue: &VecDeque<Queued>,
    sent: usize,
    socket: &TcpStream,
    bytes_max: usize,
) -> (usize, Result<usize, SendError>) {
    if queue.len() * PARTS <= SLICES_FEW {
        let lent = [const { OnceCell::new() }; SLICES_FEW];
        send_slices(&lent, &mut [IoSlice::new(&[]); SLICES_FEW], queue, sent, socket, bytes_max)
    } else {
        let lent = [const { OnceCell::new() }; LENT_MAX];
        send_slices(&lent, &mut [IoSlice::new(&[]); SLICES_MAX], queue, sent, socket, bytes_max)
    }
}

/// What is lent is given back by the caller, as soon as this is done.
fn send_slices<'a, 'q: 'a>(
    lent: &'a [OnceCell<Lent<'q>>],
    slices: &mut [IoSlice<'a>],
    queue: &'q VecDeque<Queued>,
    sent: usize,
    socket: &TcpStream,
    bytes_max: usize,
) -> (usize, Result<usize, SendError>) {
    let mut gathered = Gathered::new(slices, lent, bytes_max);
    gathered.gather(queue, sent);
    if gathered.offered == 0 { (0, Err(nothing_lent())) } else { gathered.write(socket) }
}

/// The same where data has to be digested as it goes out. `digest` is that of what has gone out of the first PDU's data; answered is that
/// of what has afterwards.
pub(super) fn send_digested(
    queue: &VecDeque<Queued>,
    sent: usize,
    socket: &TcpStream,
    bytes_max: usize,
    digest: Crc32c,
) -> ((usize, Result<usize, SendError>), Crc32c) {
    ROOM.with_borrow_mut(|memory| {
        let lent = [const { OnceCell::new() }; LENT_MAX];
        let places = [const { OnceCell::new() }; DIGESTED_MAX];
        let mut slices = [IoSlice::new(&[]); SLICES_MAX];
        let bytes_max = bytes_max.min(DIGESTED_BYTES_MAX + AROUND_BYTES_MAX);
        let mut gathered = Gathered::new(&mut slices, &lent, bytes_max);
        let room = aligned(memory);
        gathered.late = Late { places: &places, room, digest: Some(digest.clone()), ..Late::default() };
        gathered.gather(queue, sent);
        if gathered.offered == 0 {
            return ((0, Err(gathered.late.failure.unwrap_or_else(nothing_lent))), digest);
        }
        let written = gathered.write(socket);
        let digest = match &written.1 {
            Ok(written) => gathered.digest_after(*written),
            Err(_) => digest,
        };
        (written, digest)
    })
}

fn nothing_lent() -> SendError {
    SendError::Store(io::Error::other("it does not lend what it has offered"))
}
