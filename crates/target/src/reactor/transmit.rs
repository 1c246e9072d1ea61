//! The way out: PDUs in order, sent with as few vectored writes as the socket allows.
//!
//! A PDU's data is never copied here: it stays in the command's buffer, in the page cache, or in the strip that it was read to,
//! until the socket has taken it.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::net::TcpStream;

use lunette_block::{CachedRange, SendError};
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
    /// What has to be in memory to be sent; nothing of what the kernel takes from the page cache.
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

    fn length(&self) -> usize {
        match self {
            Self::None => 0,
            Self::Bytes(bytes) => bytes.len(),
            Self::Range { start, end, .. } => end - start,
        }
    }

    /// Bytes that are neither in a buffer of the pool nor in the page cache.
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
        // What is in the page cache is offered to connections without data digests only.
        let tail = match body.cached() {
            Some(_) => Tail::padding(body.length()),
            None => Tail::of(body.bytes(), digests),
        };
        let length = head.bytes().len() + body.length() + tail.bytes().len();
        Self { head, tail, length, body }
    }

    fn parts(&self) -> [&[u8]; PARTS] {
        [self.head.bytes(), self.body.bytes(), self.tail.bytes()]
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

/// What one write is made of.
struct Gathered {
    count: usize,
    offered: usize,
    /// The data of the last PDU comes next, from the page cache.
    ends_at_cached: bool,
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
            self.send_slices(&mut [IoSlice::new(&[]); SLICES_FEW], socket, bytes_max)
        } else {
            self.send_slices(&mut [IoSlice::new(&[]); SLICES_MAX], socket, bytes_max)
        }
    }

    fn send_slices<'a>(
        &'a self,
        slices: &mut [IoSlice<'a>],
        socket: &TcpStream,
        bytes_max: usize,
    ) -> (usize, Result<usize, SendError>) {
        let Gathered { count, offered, ends_at_cached } = self.gather(slices, bytes_max);
        // The header and the data from the page cache are to share segments.
        let flags = if ends_at_cached { SendFlags::NOSIGNAL | SendFlags::MORE } else { SendFlags::NOSIGNAL };
        let written =
            retry_on_intr(|| sendmsg(socket, &slices[..count], &mut SendAncillaryBuffer::default(), flags));
        (offered, written.map_err(|errno| SendError::Socket(errno.into())))
    }

    fn gather<'a>(&'a self, slices: &mut [IoSlice<'a>], bytes_max: usize) -> Gathered {
        let mut gathered = Gathered { count: 0, offered: 0, ends_at_cached: false };
        // Only the first PDU can have been sent in part.
        let mut skip = self.sent;
        for queued in &self.queue {
            let pdu = match queued {
                Queued::Pdu(pdu) => pdu,
                Queued::Strip(strip) => {
                    if gathered.count + PARTS > slices.len() || gathered.offered >= bytes_max {
                        return gathered;
                    }
                    let rest = strip.bytes().get(skip..).unwrap_or_default();
                    skip = 0;
                    let offered = rest.len().min(bytes_max - gathered.offered);
                    slices[gathered.count] = IoSlice::new(&rest[..offered]);
                    gathered.count += 1;
                    gathered.offered += offered;
                    if offered < rest.len() {
                        return gathered;
                    }
                    continue;
                }
            };
            let uncopied = if pdu.body.cached().is_some() { pdu.body.length() } else { 0 };
            let stops_here = uncopied > 0 && skip < pdu.head.bytes().len() + uncopied;
            if !stops_here {
                skip -= skip.min(uncopied);
            }
            if gathered.count + PARTS > slices.len() || gathered.offered >= bytes_max {
                return gathered;
            }
            for part in pdu.parts() {
                let rest = if skip == 0 { part } else { part.get(skip..).unwrap_or_default() };
                skip = skip.saturating_sub(part.len());
                if rest.is_empty() {
                    continue;
                }
                slices[gathered.count] = IoSlice::new(rest);
                gathered.count += 1;
                gathered.offered += rest.len();
                if stops_here {
                    gathered.ends_at_cached = true;
                    return gathered;
                }
            }
        }
        gathered
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
mod tests {
    use super::*;
    use std::io::Read;
    use std::net::TcpListener;
    use std::sync::Arc;

    use lunette_block::BufferPool;
    use lunette_block::{EngineKind, IdentityOverride, StoreSpec, Volume, VolumeSpec};
    use lunette_iscsi::session::Share;
    use lunette_wire::BHS_LENGTH;
    use lunette_wire::digest::crc32c;
    use lunette_wire::frame::padding;

    const CACHED_BYTES: usize = 300_000;

    /// A volume in the page cache, and what it has.
    fn volume(directory: &tempfile::TempDir) -> (Arc<Volume>, Vec<u8>) {
        let path = directory.path().join("image");
        let bytes: Vec<u8> =
            (0..512 * 1024_u32).map(|index| index.wrapping_mul(2_654_435_761).to_le_bytes()[3]).collect();
        std::fs::write(&path, &bytes).unwrap();
        let spec = VolumeSpec {
            name: "transmit".into(),
            store: StoreSpec::File { path, create_bytes: None },
            read_only: false,
            provisioning: lunette_block::Provisioning::Thin,
            engine: EngineKind::Threads,
            identity: IdentityOverride::default(),
            block_length_bytes: 512,
            protection: None,
        };
        (Volume::open(&spec).unwrap(), bytes)
    }

    #[test]
    fn a_strip_that_is_sent_in_part_takes_more() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut far = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let near = listener.accept().unwrap().0;
        near.set_nonblocking(true).unwrap();
        let (digests, pool) = (Digests { header: false, data: true }, BufferPool::new(1 << 30));
        let mut transmitter = Transmitter::default();
        let mut expected = 0;
        let mut begin = |transmitter: &mut Transmitter| {
            let mut strip = Strip::new(&pool, 1000, 60, digests).unwrap();
            strip.room(1000, digests).unwrap().fill(1);
            expected += strip.close(&[1; BHS_LENGTH], 1000, digests);
            transmitter.push_strip(strip);
            for _ in 0..20 {
                transmitter.room(1000, digests).unwrap().fill(2);
                transmitter.close(&[2; BHS_LENGTH], 1000, digests);
                expected += 1052;
            }
        };
        // Until a strip is stuck half-way.
        while transmitter.sent == 0 {
            begin(&mut transmitter);
            transmitter.send(&near, usize::MAX).unwrap();
        }
        assert!(transmitter.is_blocked() && transmitter.has_room(1000, digests));
        for _ in 0..20 {
            transmitter.room(1000, digests).unwrap().fill(3);
            transmitter.close(&[3; BHS_LENGTH], 1000, digests);
            transmitter.push(&[4; BHS_LENGTH], Payload::None, digests);
            expected += 1052 + BHS_LENGTH;
        }
        let reader = std::thread::spawn(move || {
            let mut received = Vec::new();
            far.read_to_end(&mut received).unwrap();
            received
        });
        while transmitter.send(&near, 10_000).unwrap() != Progress::Everything {
            std::thread::yield_now();
        }
        assert_eq!((transmitter.len(), transmitter.queued_bytes, pool.in_use_bytes()), (0, 0, 0));
        drop(near);
        let received = reader.join().unwrap();
        assert_eq!(received.len(), expected);
        let mut at = 0;
        while let Some(&index) = received.get(at) {
            assert!(received[at..at + BHS_LENGTH].iter().all(|byte| *byte == index), "at {at}");
            at += BHS_LENGTH;
            if index < 4 {
                let data = &received[at..at + 1000];
                assert!(data.iter().all(|byte| *byte == index), "at {at}");
                assert_eq!(received[at + 1000..at + 1004], crc32c(data));
                at += 1004;
            }
        }
    }

    #[test]
    fn data_from_memory_and_from_the_page_cache_go_out_in_order() {
        let directory = tempfile::tempdir().unwrap();
        let (volume, bytes) = volume(&directory);
        let Some(range) = volume.cached(0, CACHED_BYTES as u32) else {
            return lunette_skip::record_lacking(
                "this kernel cannot tell what its page cache has (Linux 6.5 can)",
            );
        };
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut far = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let near = listener.accept().unwrap().0;
        near.set_nonblocking(true).unwrap();

        let mut cached = Segment::Medium(Medium::Cached { range, _held: None });
        let digests = Digests { header: true, data: false };
        let mut transmitter = Transmitter::default();
        let mut expected = Vec::new();
        let expect = |expected: &mut Vec<u8>, index: u8, data: &[u8]| {
            let bhs = [index; BHS_LENGTH];
            expected.extend_from_slice(&bhs);
            expected.extend_from_slice(&crc32c(&bhs));
            expected.extend_from_slice(data);
            expected.resize(expected.len() + padding(data.len()), 0);
        };
        transmitter.push(&[0; BHS_LENGTH], Payload::None, digests);
        expect(&mut expected, 0, &[]);
        let pool = BufferPool::new(1 << 20);
        for (index, (start, length)) in
            [(0, 100_001), (100_004, 65_538), (0, CACHED_BYTES)].iter().enumerate()
        {
            let payload =
                Payload::Buffer { data: cached.share(), start: *start as u32, length: *length as u32 };
            transmitter.push(&[2 * index as u8 + 1; BHS_LENGTH], payload, digests);
            expect(&mut expected, 2 * index as u8 + 1, &bytes[*start..start + length]);
            let small = vec![7; 5 + index];
            expect(&mut expected, 2 * index as u8 + 2, &small);
            transmitter.push(&[2 * index as u8 + 2; BHS_LENGTH], Payload::Bytes(small), digests);
            // A strip that is longer than what is sent at a time, and what comes behind it: with data, and without.
            let mut strip = Strip::new(&pool, 30_001, 4, digests).unwrap();
            strip.room(30_001, digests).unwrap().copy_from_slice(&bytes[index..index + 30_001]);
            strip.close(&[100; BHS_LENGTH], 30_001, digests);
            transmitter.push_strip(strip);
            expect(&mut expected, 100, &bytes[index..index + 30_001]);
            for part in [&bytes[..30_001], &bytes[9..700]] {
                assert!(transmitter.has_room(part.len(), digests));
                transmitter.room(part.len(), digests).unwrap().copy_from_slice(part);
                transmitter.close(&[101; BHS_LENGTH], part.len(), digests);
                expect(&mut expected, 101, part);
            }
            let queued = transmitter.len();
            transmitter.push(&[102; BHS_LENGTH], Payload::None, digests);
            expect(&mut expected, 102, &[]);
            assert_eq!(transmitter.len(), queued, "it is in the strip");
        }

        let reader = std::thread::spawn(move || {
            let mut received = Vec::new();
            far.read_to_end(&mut received).unwrap();
            received
        });
        while transmitter.send(&near, 100_000).unwrap() != Progress::Everything {
            std::thread::yield_now();
        }
        assert_eq!((transmitter.len(), transmitter.owned_bytes(), transmitter.queued_bytes), (0, 0, 0));
        drop(near);
        assert!(reader.join().unwrap() == expected);
    }
}
