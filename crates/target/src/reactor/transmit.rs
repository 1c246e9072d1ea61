//! The way out: PDUs in order, sent with as few vectored writes as the socket allows.
//!
//! A PDU's data is never copied here: it stays in the command's buffer, in the page cache, in the memory of its store, or in the strip
//! that it was read to, until the socket has taken it. Only what lies in the page cache and has a digest is read when its turn comes.

use std::collections::VecDeque;
use std::io;
use std::net::TcpStream;

use lunette_block::{BufferPool, CachedRange, LentRange, SendError};
use lunette_iscsi::session::Payload;
use lunette_scsi::LogicalUnit;
use lunette_wire::Bhs;
use lunette_wire::digest::Crc32c;
use lunette_wire::frame::Digests;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::retry_on_intr;

use super::framing::{Head, Tail};
use super::session::{Medium, Segment};
use super::strip::Strip;

/// A quarter of the second-level cache of the processors of the day.
const EAGER_SEND_BYTES: usize = 256 << 10;

/// With this much queued, no more answers are made for the connection, and nothing more is read from it, until the initiator has taken
/// some. Answers in a strip count as one, and the pool bounds those.
pub(super) const QUEUED_PDUS_MAX: usize = 4096;

/// The same for bytes that no buffer pool bounds: echoed pings, text, parameter data. As much as one ping may have.
pub(super) const OWNED_BYTES_MAX: usize = 256 << 10;

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

    fn is_unsent(&self, unit: Option<&LogicalUnit>) -> bool {
        match self {
            Self::Range { data, .. } => data.medium().is_some_and(|medium| medium.is_unsent(unit)),
            _ => false,
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
    /// Its data is digested as it goes out.
    is_digested_late: bool,
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
        let is_uncopied = body.cached().is_some() || body.lent().is_some();
        let tail =
            if is_uncopied { Tail::awaited(body.length(), digests) } else { Tail::of(body.bytes(), digests) };
        let length = head.bytes().len() + body.length() + tail.bytes().len();
        let is_digested_late = is_uncopied && digests.data && body.length() > 0;
        Self { head, tail, length, body, is_digested_late }
    }

    /// Where the bytes lie that come after the first `sent` ones, if the kernel takes them from the page cache.
    fn cached_after(&self, sent: usize) -> Option<(&CachedRange, usize, usize)> {
        if self.is_digested_late {
            return None;
        }
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

    fn is_digested_late(&self) -> bool {
        matches!(self, Self::Pdu(pdu) if pdu.is_digested_late)
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
    /// How many in the queue are digested as they go out.
    digested_late: usize,
    /// Of what has gone out of the data of the first one, if it is one of those.
    digest: Crc32c,
    /// What the socket last took of a write with such data, if that was less than it was offered.
    digested_bytes_taken: Option<usize>,
    /// The socket took less than it was offered when it was last tried.
    is_blocked: bool,
    /// Bytes that the socket has ever taken after it had been blocked: the peer has taken what was before them.
    drained_bytes: u64,
}

impl Transmitter {
    pub(super) fn push(&mut self, bhs: &Bhs, payload: Payload<Segment>, digests: Digests) {
        if matches!(payload, Payload::None) && self.push_to_strip(bhs, digests) {
            return;
        }
        let pdu = QueuedPdu::new(bhs, payload, digests);
        self.queued_bytes += pdu.length;
        self.owned_bytes += pdu.body.owned_length();
        self.digested_late += usize::from(pdu.is_digested_late);
        self.queue.push_back(Queued::Pdu(pdu));
    }

    /// Queues a PDU without data if the queue ends with a strip that has room for it.
    pub(super) fn push_to_strip(&mut self, bhs: &Bhs, digests: Digests) -> bool {
        let Some(strip) = self.strip().filter(|strip| strip.has_room(0, digests)) else { return false };
        let closed = strip.close(bhs, 0, digests);
        self.queued_bytes += closed;
        true
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

    /// Where the data of the next PDU can be brought to: in the strip that ends the queue, or else in a new one, with room for `others`
    /// like it. What was brought there becomes a PDU by [`Self::close`]; before anything else is queued it is that, or
    /// [withdrawn](Self::withdraw). `None` where there is no memory.
    pub(super) fn room(
        &mut self,
        pool: &BufferPool,
        data_length: usize,
        others: usize,
        digests: Digests,
    ) -> Option<&mut [u8]> {
        if !self.has_room(data_length, digests) {
            // One that has to wait for the peer is kept until all of it is sent, so it has one place.
            let others = if self.is_blocked { 0 } else { others };
            self.queue.push_back(Queued::Strip(Strip::new(pool, data_length, others + 1, digests)?));
        }
        self.strip()?.room(data_length, digests)
    }

    /// Nothing comes of the [`Self::room`].
    #[cold]
    pub(super) fn withdraw(&mut self) {
        if self.strip().is_some_and(|strip| strip.length() == 0) {
            self.queue.pop_back();
        }
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

    /// Whether anything that is queued has yet to be taken from the medium, of this unit if one is given.
    pub(super) fn has_unsent(&self, unit: Option<&LogicalUnit>) -> bool {
        self.queue.iter().any(|queued| matches!(queued, Queued::Pdu(pdu) if pdu.body.is_unsent(unit)))
    }

    /// True while the socket takes no more: the peer has not taken what was sent to it before.
    pub(super) const fn is_blocked(&self) -> bool {
        self.is_blocked
    }

    /// True when so much is queued that the initiator has to take some before it gets more.
    pub(super) fn is_full(&self) -> bool {
        self.queue.len() >= QUEUED_PDUS_MAX || self.owned_bytes >= OWNED_BYTES_MAX
    }

    /// True when it has taken so much that it is worth while to go on with what had to wait.
    pub(super) fn has_drained(&self) -> bool {
        self.queue.len() <= QUEUED_PDUS_MAX / 2 && self.owned_bytes <= OWNED_BYTES_MAX / 2
    }

    /// Bytes that the peer has ever had of those that it had kept waiting.
    pub(super) const fn drained_bytes(&self) -> u64 {
        self.drained_bytes
    }

    /// Writes until nothing is left, the socket takes no more, or `bytes_max` and perhaps the rest of a write is sent.
    pub(super) fn send(&mut self, socket: &TcpStream, bytes_max: usize) -> Result<Progress, SendError> {
        if bytes_max == 0 && !self.queue.is_empty() {
            return Ok(if self.is_blocked { Progress::Blocked } else { Progress::Partial });
        }
        let was_blocked = std::mem::replace(&mut self.is_blocked, true);
        // To read and digest for nothing costs more than to ask.
        if was_blocked && self.digested_late > 0 && !has_room(socket) {
            return Ok(Progress::Blocked);
        }
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
                    self.drained_bytes += if was_blocked { written as u64 } else { 0 };
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
    fn send_gathered(&mut self, socket: &TcpStream, bytes_max: usize) -> (usize, Result<usize, SendError>) {
        if self.digested_late == 0 {
            return gathered::send(&self.queue, self.sent, socket, bytes_max);
        }
        // What it does not take is read anew, so it is not offered much more than it took.
        let likely =
            self.digested_bytes_taken.map_or(usize::MAX, |taken| (2 * taken).max(EAGER_SEND_BYTES / 4));
        let digest = std::mem::take(&mut self.digest);
        let ((offered, written), digest) =
            gathered::send_digested(&self.queue, self.sent, socket, bytes_max.min(likely), digest);
        self.digest = digest;
        if let Ok(written) = written {
            let is_cut = written < offered;
            self.digested_bytes_taken = (is_cut || likely < gathered::DIGESTED_BYTES_MAX).then_some(written);
        }
        (offered, written)
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
            self.digested_late -= usize::from(first.is_digested_late());
            self.queue.pop_front();
        }
        self.sent = left;
    }
}

/// Whether a socket that was full takes something again.
fn has_room(socket: &TcpStream) -> bool {
    let mut events = [PollFd::new(socket, PollFlags::OUT)];
    // Where that cannot be told, the write tells it.
    retry_on_intr(|| poll(&mut events, Some(&Timespec::default()))).map_or(true, |ready| ready > 0)
}

mod gathered;
#[cfg(test)]
mod tests;
