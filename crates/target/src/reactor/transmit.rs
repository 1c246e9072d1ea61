//! The way out: PDUs in order, sent with as few vectored writes as the socket allows.
//!
//! A PDU's data is never copied here: it stays in the command's buffer, in the page cache, in the memory of its store, or in the strip
//! that it was read to, until the socket has taken it.

use std::cell::OnceCell;
use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::net::TcpStream;

use lunette_block::{CachedRange, Lent, LentRange, SendError};
use lunette_iscsi::session::Payload;
use lunette_wire::Bhs;
use lunette_wire::frame::Digests;
use rustix::io::retry_on_intr;
use rustix::net::{SendAncillaryBuffer, SendFlags, sendmsg};

use super::framing::{Head, Tail};
use super::session::{Medium, Segment};
use super::strip::Strip;

/// Slices that go into one write: about 80 PDUs with data, which is more than a socket takes at once.
const SLICES_MAX: usize = 240;

/// Most writes have fewer, and a large array costs some hundred instructions before anything is in it.
const SLICES_FEW: usize = 12;

/// Pieces that stores lend for one write: more than a socket takes at once of long reads.
const LENT_MAX: usize = 80;

/// Who writes to what is lent waits until the write to the socket is done: so much of lent data is some 100 microseconds.
const LENT_BYTES_MAX: usize = 1 << 20;

/// A quarter of the second-level cache of the processors of the day.
const EAGER_SEND_BYTES: usize = 256 << 10;

/// Header, data, and what follows the data.
const PARTS: usize = 3;

enum Body {
    None,
    Bytes(Vec<u8>),
    Range { data: Segment, start: usize, end: usize },
}

impl Body {
    /// What has to be in a buffer to be sent; nothing of what the kernel takes from the page cache, or a store lends.
    fn bytes(&self) -> &[u8] {
        match self {
            Self::None => &[],
            Self::Bytes(bytes) => bytes,
            Self::Range { data, start, end } => data.bytes().get(*start..*end).unwrap_or_default(),
        }
    }

    /// The range of a volume, and the bytes of it, that the kernel takes from the page cache.
    fn cached(&self) -> Option<(&CachedRange, usize, usize)> {
        match self {
            Self::Range { data, start, end } => match data.medium() {
                Some(Medium::Cached { range, .. }) => Some((range, *start, *end)),
                _ => None,
            },
            _ => None,
        }
    }

    /// The range of a volume, and the bytes of it, that its store lends.
    fn lent(&self) -> Option<(&LentRange, usize, usize)> {
        match self {
            Self::Range { data, start, end } => match data.medium() {
                Some(Medium::Lent { range, .. }) => Some((range, *start, *end)),
                _ => None,
            },
            _ => None,
        }
    }

    fn length(&self) -> usize {
        match self {
            Self::None => 0,
            Self::Bytes(bytes) => bytes.len(),
            Self::Range { start, end, .. } => end - start,
        }
    }

    /// Bytes that are neither in a buffer of the pool nor in a store or the page cache.
    fn owned_length(&self) -> usize {
        match self {
            Self::Range { data, .. } if data.medium().is_some() => 0,
            _ => self.length(),
        }
    }
}

/// One PDU as it goes on the wire: header and header digest, data, padding and data digest.
struct QueuedPdu {
    head: Head,
    tail: Tail,
    /// Bytes of all parts.
    length: usize,
    body: Body,
}

impl QueuedPdu {
    fn new(bhs: &Bhs, payload: Payload<Segment>, digests: Digests) -> Self {
        let body = match payload {
            Payload::None => Body::None,
            Payload::Bytes(bytes) => Body::Bytes(bytes),
            Payload::Buffer { data, start, length } => {
                let start = start as usize;
                Body::Range { data, start, end: start + length as usize }
            }
        };
        let head = Head::of(bhs, digests);
        // What is not in a buffer is offered to connections without data digests only.
        let tail = if body.cached().is_some() || body.lent().is_some() {
            Tail::padding(body.length())
        } else {
            Tail::of(body.bytes(), digests)
        };
        let length = head.bytes().len() + body.length() + tail.bytes().len();
        Self { head, tail, length, body }
    }

    /// Where the bytes lie that come after the first `sent` ones, if that is the page cache.
    fn cached_after(&self, sent: usize) -> Option<(&CachedRange, usize, usize)> {
        let (range, start, end) = self.body.cached()?;
        let start = start + sent.checked_sub(self.head.bytes().len())?;
        (start < end).then_some((range, start, end))
    }
}

/// What goes out next.
enum Queued {
    Pdu(QueuedPdu),
    /// Several, short ones.
    Strip(Strip),
}

impl Queued {
    /// Bytes on the wire.
    const fn length(&self) -> usize {
        match self {
            Self::Pdu(pdu) => pdu.length,
            Self::Strip(strip) => strip.length(),
        }
    }

    fn owned_length(&self) -> usize {
        match self {
            Self::Pdu(pdu) => pdu.body.owned_length(),
            Self::Strip(_) => 0,
        }
    }

    fn cached_after(&self, sent: usize) -> Option<(&CachedRange, usize, usize)> {
        match self {
            Self::Pdu(pdu) => pdu.cached_after(sent),
            Self::Strip(_) => None,
        }
    }
}

/// How far sending came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Progress {
    /// Nothing is left.
    Everything,
    /// The socket takes no more for now.
    Blocked,
    /// It may take more; others are to have their turn first.
    Partial,
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
    /// The data of the last PDU comes next, from the page cache.
    ends_at_cached: bool,
}

impl<'a, 'q: 'a> Gathered<'_, 'a, 'q> {
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
        let length = pdu.body.length();
        if skip < length {
            if let Some((range, start, end)) = pdu.body.lent() {
                if !self.add_lent(range, start + skip, end) {
                    return false;
                }
            } else if pdu.body.cached().is_some() {
                self.ends_at_cached = true;
                return false;
            } else {
                self.add(pdu.body.bytes().get(skip..).unwrap_or_default());
            }
        }
        self.add(pdu.tail.bytes().get(skip.saturating_sub(length)..).unwrap_or_default());
        true
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
}

/// What is queued for one connection.
#[derive(Default)]
pub(super) struct Transmitter {
    queue: VecDeque<Queued>,
    /// Bytes of the first in the queue that have gone out.
    sent: usize,
    /// Bytes of all in the queue.
    queued_bytes: usize,
    /// Bytes of data segments in the queue that no buffer pool counts.
    owned_bytes: usize,
    /// The socket took less than it was offered when it was last tried.
    is_blocked: bool,
    /// The socket has since taken bytes after it had been blocked: the peer has taken what was before them.
    was_drained: bool,
}

impl Transmitter {
    pub(super) fn push(&mut self, bhs: &Bhs, payload: Payload<Segment>, digests: Digests) {
        if matches!(payload, Payload::None)
            && let Some(strip) = self.strip()
            && strip.has_room(0, digests)
        {
            let closed = strip.close(bhs, 0, digests);
            return self.queued_bytes += closed;
        }
        let pdu = QueuedPdu::new(bhs, payload, digests);
        self.queued_bytes += pdu.length;
        self.owned_bytes += pdu.body.owned_length();
        self.queue.push_back(Queued::Pdu(pdu));
    }

    /// The strip that ends the queue: what is closed in it comes next.
    fn strip(&mut self) -> Option<&mut Strip> {
        match self.queue.back_mut() {
            Some(Queued::Strip(strip)) => Some(strip),
            _ => None,
        }
    }

    /// Whether the queue ends with a strip that has room for another PDU with so much data.
    pub(super) fn has_room(&self, data_length: usize, digests: Digests) -> bool {
        matches!(self.queue.back(), Some(Queued::Strip(strip)) if strip.has_room(data_length, digests))
    }

    /// Where the data of the next PDU can be brought to, in the strip that ends the queue. [`Self::close`] makes it a PDU; until then
    /// nothing is in the queue, and another PDU may come in its place.
    pub(super) fn room(&mut self, data_length: usize, digests: Digests) -> Option<&mut [u8]> {
        self.strip()?.room(data_length, digests)
    }

    /// Queues a PDU with what is in the [`Self::room`].
    pub(super) fn close(&mut self, bhs: &Bhs, data_length: usize, digests: Digests) {
        debug_assert!(self.has_room(data_length, digests), "something is in its room");
        if let Some(strip) = self.strip() {
            let closed = strip.close(bhs, data_length, digests);
            self.queued_bytes += closed;
        }
    }

    /// Ends the queue by a strip, which has at least one PDU.
    pub(super) fn push_strip(&mut self, strip: Strip) {
        self.queued_bytes += strip.length();
        self.queue.push_back(Queued::Strip(strip));
    }

    /// True when so much is queued that it should go out before the turn ends: the buffers that it frees are still
    /// in the processor's cache when the next command takes them.
    pub(super) const fn is_eager(&self) -> bool {
        self.queued_bytes >= EAGER_SEND_BYTES && !self.is_blocked
    }

    /// Bytes that are still to be sent.
    pub(super) const fn queued_bytes(&self) -> usize {
        self.queued_bytes
    }

    /// True while the socket takes no more: the peer has not taken what was sent to it before.
    pub(super) const fn is_blocked(&self) -> bool {
        self.is_blocked
    }

    pub(super) fn len(&self) -> usize {
        self.queue.len()
    }

    pub(super) const fn owned_bytes(&self) -> usize {
        self.owned_bytes
    }

    /// Tells once whether the peer has taken bytes that it had kept waiting.
    pub(super) const fn take_was_drained(&mut self) -> bool {
        std::mem::replace(&mut self.was_drained, false)
    }

    /// Writes until nothing is left, the socket takes no more, or `bytes_max` and perhaps the rest of a write is sent.
    pub(super) fn send(&mut self, socket: &TcpStream, bytes_max: usize) -> Result<Progress, SendError> {
        if bytes_max == 0 && !self.queue.is_empty() {
            return Ok(if self.is_blocked { Progress::Blocked } else { Progress::Partial });
        }
        let was_blocked = std::mem::replace(&mut self.is_blocked, true);
        let mut sent = 0;
        while let Some(first) = self.queue.front() {
            if sent >= bytes_max {
                self.is_blocked = false;
                return Ok(Progress::Partial);
            }
            let (offered, written) = match first.cached_after(self.sent) {
                // A range of a volume has a length of 32 bits.
                Some((range, start, end)) => {
                    let end = end.min(start.saturating_add(bytes_max - sent));
                    (end - start, range.send(socket, start as u32, end as u32))
                }
                None => self.send_gathered(socket, bytes_max - sent),
            };
            match written {
                Ok(written) => {
                    sent += written;
                    self.advance(written);
                    self.was_drained |= was_blocked && written > 0;
                    if written < offered {
                        return Ok(Progress::Blocked);
                    }
                }
                Err(SendError::Socket(error)) if error.kind() == io::ErrorKind::WouldBlock => {
                    return Ok(Progress::Blocked);
                }
                Err(error) => return Err(error),
            }
        }
        self.is_blocked = false;
        Ok(Progress::Everything)
    }

    /// Writes what is in memory, up to the first PDU whose data is not; answers how much there was, and how much of it
    /// the socket took.
    fn send_gathered(&self, socket: &TcpStream, bytes_max: usize) -> (usize, Result<usize, SendError>) {
        if self.queue.len() * PARTS <= SLICES_FEW {
            let lent = [const { OnceCell::new() }; SLICES_FEW];
            self.send_slices(&lent, &mut [IoSlice::new(&[]); SLICES_FEW], socket, bytes_max)
        } else {
            let lent = [const { OnceCell::new() }; LENT_MAX];
            self.send_slices(&lent, &mut [IoSlice::new(&[]); SLICES_MAX], socket, bytes_max)
        }
    }

    /// What is lent is given back by the caller, as soon as this is done.
    fn send_slices<'a, 'q: 'a>(
        &'q self,
        lent: &'a [OnceCell<Lent<'q>>],
        slices: &mut [IoSlice<'a>],
        socket: &TcpStream,
        bytes_max: usize,
    ) -> (usize, Result<usize, SendError>) {
        let mut gathered = Gathered {
            slices,
            count: 0,
            offered: 0,
            bytes_max,
            lent,
            lent_count: 0,
            lent_bytes: 0,
            ends_at_cached: false,
        };
        self.gather(&mut gathered);
        let Gathered { slices, count, offered, ends_at_cached, .. } = gathered;
        if offered == 0 {
            let error = io::Error::other("it does not lend what it has offered");
            return (0, Err(SendError::Store(error)));
        }
        // The header and the data from the page cache are to share segments.
        let flags = if ends_at_cached { SendFlags::NOSIGNAL | SendFlags::MORE } else { SendFlags::NOSIGNAL };
        let written =
            retry_on_intr(|| sendmsg(socket, &slices[..count], &mut SendAncillaryBuffer::default(), flags));
        (offered, written.map_err(|errno| SendError::Socket(errno.into())))
    }

    fn gather<'a, 'q: 'a>(&'q self, gathered: &mut Gathered<'_, 'a, 'q>) {
        // Only the first can have been sent in part.
        let mut skip = self.sent;
        for queued in &self.queue {
            let goes_on = gathered.has_room()
                && match queued {
                    Queued::Pdu(pdu) => gathered.add_pdu(pdu, skip),
                    Queued::Strip(strip) => gathered.add_strip(strip, skip),
                };
            if !goes_on {
                return;
            }
            skip = 0;
        }
    }

    fn advance(&mut self, written: usize) {
        let mut left = self.sent + written;
        while let Some(first) = self.queue.front() {
            let length = first.length();
            if left < length {
                break;
            }
            left -= length;
            self.queued_bytes -= length;
            self.owned_bytes -= first.owned_length();
            self.queue.pop_front();
        }
        self.sent = left;
    }
}

#[cfg(test)]
mod tests;
