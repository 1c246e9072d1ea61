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
mod tests {
    use super::*;
    use std::io::Read;
    use std::net::TcpListener;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    use lunette_block::BufferPool;
    use lunette_block::{
        EngineKind, IdentityOverride, IoContext, Operation, StoreSpec, Volume, VolumeSpec, WriteSource,
    };
    use lunette_cases::cases;
    use lunette_iscsi::session::Share;
    use lunette_wire::BHS_LENGTH;
    use lunette_wire::digest::crc32c;
    use lunette_wire::frame::padding;
    use proptest::prelude::*;
    use rustix::net::sockopt::set_socket_send_buffer_size;

    const CACHED_BYTES: usize = 300_000;
    const MEMORY_BYTES: usize = 512 << 10;

    /// A volume in the page cache, and what it has.
    fn volume(directory: &tempfile::TempDir) -> (Arc<Volume>, Vec<u8>) {
        let path = directory.path().join("image");
        let bytes: Vec<u8> =
            (0..512 * 1024_u32).map(|index| index.wrapping_mul(2_654_435_761).to_le_bytes()[3]).collect();
        std::fs::write(&path, &bytes).unwrap();
        (Volume::open(&spec(StoreSpec::File { path, create_bytes: None })).unwrap(), bytes)
    }

    fn spec(store: StoreSpec) -> VolumeSpec {
        VolumeSpec {
            name: "transmit".into(),
            store,
            read_only: false,
            provisioning: lunette_block::Provisioning::Thin,
            engine: EngineKind::Threads,
            identity: IdentityOverride::default(),
            block_length_bytes: 512,
            protection: None,
        }
    }

    /// One thread's hand on a volume in memory, which does everything at once.
    struct Hand {
        volume: Arc<Volume>,
        context: IoContext,
        pool: BufferPool,
    }

    impl Hand {
        fn new(volume: &Arc<Volume>) -> Self {
            let context = IoContext::new().unwrap();
            Self { volume: Arc::clone(volume), context, pool: BufferPool::new(1 << 30) }
        }

        fn run(&mut self, operation: Operation) {
            self.context.submit(&self.volume, 0, operation);
            let mut finished = Vec::new();
            self.context.complete(&mut finished);
            assert!(finished.pop().unwrap().result.is_ok());
        }

        fn write(&mut self, offset: u64, bytes: &[u8]) {
            let mut buffer = self.pool.allocate(bytes.len()).unwrap();
            buffer.copy_from_slice(bytes);
            let buffer = WriteSource { buffer: buffer.into(), range: 0..bytes.len() };
            self.run(Operation::Write { offset, buffer, stable: false });
        }
    }

    fn memory() -> Arc<Volume> {
        Volume::open(&spec(StoreSpec::Memory { size_bytes: MEMORY_BYTES as u64 })).unwrap()
    }

    fn lent(volume: &Arc<Volume>) -> Segment {
        let range = volume.lendable(0, MEMORY_BYTES as u32).unwrap();
        Segment::Medium(Medium::Lent { range, _held: None })
    }

    fn sockets() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let far = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let near = listener.accept().unwrap().0;
        near.set_nonblocking(true).unwrap();
        (near, far)
    }

    /// What is queued for a connection.
    #[derive(Debug, Clone)]
    enum Item {
        Header,
        Parameter(usize),
        Lent(usize, usize),
        Copied(usize, usize),
        Strip(usize),
    }

    fn item() -> impl Strategy<Value = Item> {
        // In a chunk, over the ends of some, and at odd places.
        let range = || (0..MEMORY_BYTES, prop_oneof![1..5000_usize, 1..400_000_usize]);
        let within = |(start, length): (usize, usize)| (start, length.min(MEMORY_BYTES - start));
        prop_oneof![
            1 => Just(Item::Header),
            1 => (1..3000_usize).prop_map(Item::Parameter),
            6 => range().prop_map(within).prop_map(|(start, length)| Item::Lent(start, length)),
            2 => range().prop_map(within).prop_map(|(start, length)| Item::Copied(start, length)),
            1 => (1..9000_usize).prop_map(Item::Strip),
        ]
    }

    proptest! {
        #![proptest_config(cases(24))]

        #[test]
        fn what_is_lent_goes_out_as_what_is_copied(
            items in prop::collection::vec(item(), 1..60),
            header in any::<bool>(),
            bytes_max in prop_oneof![Just(usize::MAX), 1..300_000_usize],
            send_buffer in prop_oneof![Just(4096_usize), Just(1 << 20)],
        ) {
            let (volume, pool) = (memory(), BufferPool::new(1 << 30));
            let mut bytes = vec![0; MEMORY_BYTES];
            // A chunk that was never written, one of which only a part was, and one that was unmapped.
            let written = [0..196_608, 300_000..390_000, 458_752..MEMORY_BYTES];
            let mut hand = Hand::new(&volume);
            for range in written {
                for at in range.clone() {
                    bytes[at] = (at as u32).wrapping_mul(2_654_435_761).to_le_bytes()[3];
                }
                hand.write(range.start as u64, &bytes[range]);
            }
            hand.run(Operation::Unmap { offset: 65_536, length: 65_536 });
            bytes[65_536..131_072].fill(0);

            let digests = Digests { header, data: false };
            let (near, mut far) = sockets();
            set_socket_send_buffer_size(&near, send_buffer).unwrap();
            let mut transmitter = Transmitter::default();
            let mut lent = lent(&volume);
            let mut expected = Vec::new();
            for (index, item) in items.iter().enumerate() {
                let bhs = [index as u8; BHS_LENGTH];
                let range = |start: &usize, length: &usize| *start..*start + *length;
                let (payload, data) = match item {
                    Item::Header | Item::Strip(_) => (Payload::None, &[][..]),
                    Item::Parameter(length) => {
                        (Payload::Bytes(bytes[..*length].to_vec()), &bytes[..*length])
                    }
                    Item::Lent(start, length) => {
                        let data = lent.share();
                        (Payload::Buffer { data, start: *start as u32, length: *length as u32 }, &bytes[range(start, length)])
                    }
                    Item::Copied(start, length) => {
                        let data = &bytes[range(start, length)];
                        let mut buffer = pool.allocate(*length).unwrap();
                        buffer.copy_from_slice(data);
                        let payload = Payload::Buffer {
                            data: Segment::Medium(Medium::Read(buffer)), start: 0, length: *length as u32,
                        };
                        (payload, data)
                    }
                };
                let data = if let Item::Strip(length) = item {
                    let data = &bytes[..*length];
                    let mut strip = Strip::new(&pool, *length, 1, digests).unwrap();
                    strip.room(*length, digests).unwrap().copy_from_slice(data);
                    strip.close(&bhs, *length, digests);
                    transmitter.push_strip(strip);
                    data
                } else {
                    transmitter.push(&bhs, payload, digests);
                    data
                };
                expected.extend_from_slice(&bhs);
                if header {
                    expected.extend_from_slice(&crc32c(&bhs));
                }
                expected.extend_from_slice(data);
                expected.resize(expected.len() + padding(data.len()), 0);
            }
            drop(lent);
            let queued: usize = items.iter().map(|item| match item { Item::Parameter(length) => *length, _ => 0 }).sum();
            prop_assert_eq!(transmitter.owned_bytes(), queued, "nothing that is lent");
            prop_assert_eq!(transmitter.queued_bytes(), expected.len());

            let reader = std::thread::spawn(move || {
                let mut received = Vec::new();
                far.read_to_end(&mut received).unwrap();
                received
            });
            while transmitter.send(&near, bytes_max).unwrap() != Progress::Everything {
                std::thread::yield_now();
            }
            prop_assert_eq!((transmitter.owned_bytes(), transmitter.queued_bytes(), pool.in_use_bytes()), (0, 0, 0));
            drop(near);
            prop_assert!(reader.join().unwrap() == expected);
            // Nothing is locked any more.
            hand.write(0, &[1; MEMORY_BYTES]);
        }
    }

    /// Each of two has what the other one wants next, and writers wait for both.
    #[test]
    fn two_who_send_the_same_memory_and_its_writers_do_not_wait_for_one_another() {
        const ROUNDS: usize = 200;
        const CHUNKS: usize = 8;
        const CHUNK_BYTES: usize = MEMORY_BYTES / CHUNKS;
        let (volume, is_over) = (memory(), AtomicBool::new(false));
        std::thread::scope(|scope| {
            let senders = [false, true].map(|is_reversed| {
                let mut lent = lent(&volume);
                let (near, mut far) = sockets();
                let reader = scope.spawn(move || {
                    let (mut buffer, mut count) = (vec![0; 1 << 20], 0);
                    loop {
                        let received = far.read(&mut buffer).unwrap();
                        if received == 0 {
                            return count;
                        }
                        assert!(
                            buffer[..received].iter().all(|byte| matches!(byte, 0 | 7 | 9)),
                            "what nobody wrote"
                        );
                        count += received;
                    }
                });
                let sender = scope.spawn(move || {
                    let mut transmitter = Transmitter::default();
                    for _ in 0..ROUNDS {
                        for index in 0..CHUNKS {
                            let chunk = if is_reversed { CHUNKS - 1 - index } else { index };
                            let (start, length) = ((chunk * CHUNK_BYTES) as u32, CHUNK_BYTES as u32);
                            let payload = Payload::Buffer { data: lent.share(), start, length };
                            transmitter.push(&[0; BHS_LENGTH], payload, Digests::default());
                        }
                        while transmitter.send(&near, usize::MAX).unwrap() != Progress::Everything {
                            std::thread::yield_now();
                        }
                    }
                });
                (sender, reader)
            });
            for byte in [7, 9] {
                let (volume, is_over) = (&volume, &is_over);
                scope.spawn(move || {
                    let mut hand = Hand::new(volume);
                    while !is_over.load(Ordering::Relaxed) {
                        hand.write(0, &[byte; MEMORY_BYTES]);
                        hand.run(Operation::Unmap { offset: 0, length: (MEMORY_BYTES / 2) as u64 });
                    }
                });
            }
            for (sender, reader) in senders {
                sender.join().unwrap();
                assert_eq!(reader.join().unwrap(), ROUNDS * (MEMORY_BYTES + CHUNKS * BHS_LENGTH));
            }
            is_over.store(true, Ordering::Relaxed);
        });
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
