use super::*;
use std::fs::File;
use std::io::Read;
use std::net::TcpListener;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use lunette_block::BufferPool;
use lunette_block::{EngineKind, IoContext, Operation, StoreSpec, Volume, VolumeSpec, WriteSource};
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
    VolumeSpec { engine: EngineKind::Threads, ..VolumeSpec::new("transmit", store) }
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
        self.context.next_turn();
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
    Segment::Medium(Medium::Lent { range, held: None })
}

fn sockets() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let far = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let near = listener.accept().unwrap().0;
    near.set_nonblocking(true).unwrap();
    (near, far)
}

/// Data as it goes on the wire, with what follows it.
fn extend_with_data(wire: &mut Vec<u8>, data: &[u8], digests: Digests) {
    let start = wire.len();
    wire.extend_from_slice(data);
    wire.resize(wire.len() + padding(data.len()), 0);
    if digests.data && !data.is_empty() {
        let digest = crc32c(&wire[start..]);
        wire.extend_from_slice(&digest);
    }
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

#[test]
fn who_has_much_to_take_gets_no_more_until_half_of_it_is_taken() {
    let none = Digests::default();
    let header = |transmitter: &mut Transmitter| transmitter.push(&[0; BHS_LENGTH], Payload::None, none);
    let mut transmitter = Transmitter::default();
    (1..QUEUED_PDUS_MAX).for_each(|_| header(&mut transmitter));
    assert!(!transmitter.is_full());
    header(&mut transmitter);
    assert!(transmitter.is_full());
    transmitter.advance(BHS_LENGTH * (QUEUED_PDUS_MAX / 2 - 1));
    assert!(!transmitter.is_full() && !transmitter.has_drained());
    transmitter.advance(BHS_LENGTH);
    assert!(transmitter.has_drained());

    // Few, with data that nobody else counts.
    let mut transmitter = Transmitter::default();
    let ping = || Payload::Bytes(vec![0; OWNED_BYTES_MAX / 2]);
    transmitter.push(&[0; BHS_LENGTH], ping(), none);
    assert!(!transmitter.is_full() && transmitter.has_drained());
    transmitter.push(&[0; BHS_LENGTH], ping(), none);
    assert!(transmitter.is_full() && !transmitter.has_drained());
    transmitter.advance(BHS_LENGTH + OWNED_BYTES_MAX / 2);
    assert!(transmitter.has_drained());
}

proptest! {
    #![proptest_config(cases(24))]

    #[test]
    fn what_is_lent_goes_out_as_what_is_copied(
        items in prop::collection::vec(item(), 1..60),
        (header, data) in any::<(bool, bool)>(),
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

        let digests = Digests { header, data };
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
            extend_with_data(&mut expected, data, digests);
        }
        drop(lent);
        let queued: usize = items.iter().map(|item| match item { Item::Parameter(length) => *length, _ => 0 }).sum();
        prop_assert_eq!(transmitter.owned_bytes, queued, "nothing that is lent");
        prop_assert_eq!(transmitter.queued_bytes(), expected.len());

        let reader = std::thread::spawn(move || {
            let mut received = Vec::new();
            far.read_to_end(&mut received).unwrap();
            received
        });
        while transmitter.send(&near, bytes_max).unwrap() != Progress::Everything {
            std::thread::yield_now();
        }
        prop_assert_eq!((transmitter.owned_bytes, transmitter.queued_bytes(), pool.in_use_bytes()), (0, 0, 0));
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
    let (near, mut far) = sockets();
    let (digests, pool) = (Digests { header: false, data: true }, BufferPool::new(1 << 30));
    let mut transmitter = Transmitter::default();
    let mut expected = 0;
    let mut begin = |transmitter: &mut Transmitter| {
        let mut strip = Strip::new(&pool, 1000, 60, digests).unwrap();
        strip.room(1000, digests).unwrap().fill(1);
        expected += strip.close(&[1; BHS_LENGTH], 1000, digests);
        transmitter.push_strip(strip);
        for _ in 0..20 {
            transmitter.room(&pool, 1000, 0, digests).unwrap().fill(2);
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
    // Whose turn is over is as blocked as before.
    assert_eq!(transmitter.send(&near, 0).unwrap(), Progress::Blocked);
    assert!(transmitter.is_blocked());
    for _ in 0..20 {
        transmitter.room(&pool, 1000, 0, digests).unwrap().fill(3);
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
    assert_eq!((transmitter.queue.len(), transmitter.queued_bytes, pool.in_use_bytes()), (0, 0, 0));
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
    for data in [false, true] {
        go_out_in_order(Digests { header: true, data });
    }
}

fn go_out_in_order(digests: Digests) {
    let directory = tempfile::tempdir().unwrap();
    let (volume, bytes) = volume(&directory);
    let Some(range) = volume.cached(0, CACHED_BYTES as u32) else {
        return lunette_skip::record_lacking("this kernel does not tell what its page cache has");
    };
    let (near, mut far) = sockets();

    let mut cached = Segment::Medium(Medium::Cached { range, held: None });
    let in_memory = memory();
    Hand::new(&in_memory).write(0, &bytes);
    let mut lent = lent(&in_memory);
    let mut transmitter = Transmitter::default();
    let mut expected = Vec::new();
    let expect = |expected: &mut Vec<u8>, index: u8, data: &[u8]| {
        let bhs = [index; BHS_LENGTH];
        expected.extend_from_slice(&bhs);
        expected.extend_from_slice(&crc32c(&bhs));
        extend_with_data(expected, data, digests);
    };
    transmitter.push(&[0; BHS_LENGTH], Payload::None, digests);
    expect(&mut expected, 0, &[]);
    let pool = BufferPool::new(1 << 20);
    for (index, (start, length)) in [(0, 100_001), (100_004, 65_538), (0, CACHED_BYTES)].iter().enumerate() {
        let payload = Payload::Buffer { data: cached.share(), start: *start as u32, length: *length as u32 };
        transmitter.push(&[2 * index as u8 + 1; BHS_LENGTH], payload, digests);
        expect(&mut expected, 2 * index as u8 + 1, &bytes[*start..start + length]);
        let payload = Payload::Buffer { data: lent.share(), start: *start as u32, length: *length as u32 };
        transmitter.push(&[50; BHS_LENGTH], payload, digests);
        expect(&mut expected, 50, &bytes[*start..start + length]);
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
            transmitter.room(&pool, part.len(), 0, digests).unwrap().copy_from_slice(part);
            transmitter.close(&[101; BHS_LENGTH], part.len(), digests);
            expect(&mut expected, 101, part);
        }
        let queued = transmitter.queue.len();
        transmitter.push(&[102; BHS_LENGTH], Payload::None, digests);
        expect(&mut expected, 102, &[]);
        assert_eq!(transmitter.queue.len(), queued, "it is in the strip");
    }

    let reader = std::thread::spawn(move || {
        let mut received = Vec::new();
        far.read_to_end(&mut received).unwrap();
        received
    });
    while transmitter.send(&near, 100_000).unwrap() != Progress::Everything {
        std::thread::yield_now();
    }
    assert_eq!((transmitter.queue.len(), transmitter.owned_bytes, transmitter.queued_bytes), (0, 0, 0));
    drop(near);
    assert!(reader.join().unwrap() == expected);
}

/// What a digest covers is what the socket took, whatever becomes of the store meanwhile.
#[test]
fn digests_are_of_what_was_sent_although_the_store_changes() {
    const PDUS: usize = 16;
    const DATA_BYTES: usize = 300_001;
    let digests = Digests { header: false, data: true };
    let directory = tempfile::tempdir().unwrap();
    let (cached, _) = volume(&directory);
    let lent_volume = memory();
    let from_cache = cached.cached(0, DATA_BYTES as u32);
    if from_cache.is_none() {
        lunette_skip::record_lacking("this kernel does not tell what its page cache has");
    }
    let image = File::options().write(true).open(directory.path().join("image")).unwrap();
    let change_file = move |byte| image.write_all_at(&[byte; 100_000], 100_000).unwrap();
    let from_cache = from_cache.map(|range| {
        let change: Box<dyn FnMut(u8) + Send> = Box::new(change_file);
        (change, Segment::Medium(Medium::Cached { range, held: None }))
    });
    let mut hand = Hand::new(&lent_volume);
    let change_memory: Box<dyn FnMut(u8) + Send> =
        Box::new(move |byte| hand.write(100_000, &[byte; 100_000]));
    for (mut change, mut data) in from_cache.into_iter().chain([(change_memory, lent(&lent_volume))]) {
        let (near, mut far) = sockets();
        set_socket_send_buffer_size(&near, 32 << 10).unwrap();
        let (is_over, changes) = (AtomicBool::new(false), AtomicU64::new(0));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let bytes = (0..=u8::MAX).cycle();
                bytes.take_while(|_| !is_over.load(Ordering::Relaxed)).for_each(|byte| {
                    change(byte);
                    changes.fetch_add(1, Ordering::Relaxed);
                });
            });
            let reader = scope.spawn(move || {
                let mut pdu = vec![0; BHS_LENGTH + DATA_BYTES + padding(DATA_BYTES) + 4];
                let mut kinds = std::collections::HashSet::new();
                for _ in 0..PDUS {
                    far.read_exact(&mut pdu).unwrap();
                    let (covered, digest) = pdu[BHS_LENGTH..].split_at(DATA_BYTES + padding(DATA_BYTES));
                    assert_eq!(digest, crc32c(covered));
                    kinds.insert(covered[150_000]);
                }
                kinds.len()
            });
            let mut transmitter = Transmitter::default();
            for _ in 0..2 {
                // However late it runs: one change of all lies between the halves.
                let before = changes.load(Ordering::Relaxed);
                while changes.load(Ordering::Relaxed) < before + 2 {
                    std::thread::yield_now();
                }
                for _ in 0..PDUS / 2 {
                    let payload = Payload::Buffer { data: data.share(), start: 0, length: DATA_BYTES as u32 };
                    transmitter.push(&[1; BHS_LENGTH], payload, digests);
                }
                while transmitter.send(&near, 1 << 20).unwrap() != Progress::Everything {
                    std::thread::yield_now();
                }
            }
            assert!(reader.join().unwrap() > 1, "nothing was changed");
            is_over.store(true, Ordering::Relaxed);
        });
    }
}

#[test]
fn for_a_full_socket_nothing_is_read() {
    let directory = tempfile::tempdir().unwrap();
    let (volume, _) = volume(&directory);
    let Some(range) = volume.cached(0, CACHED_BYTES as u32) else {
        return lunette_skip::record_lacking("this kernel does not tell what its page cache has");
    };
    let (near, mut far) = sockets();
    let mut data = Segment::Medium(Medium::Cached { range, held: None });
    let mut transmitter = Transmitter::default();
    let digests = Digests { header: false, data: true };
    while !transmitter.is_blocked() {
        let payload = Payload::Buffer { data: data.share(), start: 0, length: CACHED_BYTES as u32 };
        transmitter.push(&[1; BHS_LENGTH], payload, digests);
        transmitter.send(&near, usize::MAX).unwrap();
    }
    // Whoever read would see it.
    File::options().write(true).open(directory.path().join("image")).unwrap().set_len(0).unwrap();
    for _ in 0..3 {
        assert_eq!(transmitter.send(&near, usize::MAX).unwrap(), Progress::Blocked);
    }
    let mut taken = vec![0; 1 << 20];
    let error = loop {
        assert!(far.read(&mut taken).unwrap() > 0);
        match transmitter.send(&near, usize::MAX) {
            Ok(progress) => assert_eq!(progress, Progress::Blocked),
            Err(error) => break error,
        }
    };
    assert!(matches!(error, SendError::Store(_)), "{error}");
}

#[test]
fn room_that_nothing_was_brought_to_is_as_if_it_had_not_been_there() {
    let (digests, pool) = (Digests { header: true, data: true }, BufferPool::new(1 << 20));
    let mut transmitter = Transmitter::default();
    assert_eq!(transmitter.room(&pool, 512, 3, digests).unwrap().len(), 512);
    transmitter.withdraw();
    assert_eq!((transmitter.queue.len(), pool.in_use_bytes()), (0, 0));

    transmitter.room(&pool, 512, 3, digests).unwrap().fill(1);
    transmitter.close(&[1; BHS_LENGTH], 512, digests);
    assert!(
        transmitter.has_room(3 * (512 + BHS_LENGTH + 8) - BHS_LENGTH - 8, digests),
        "it has room for the others"
    );
    let queued_bytes = transmitter.queued_bytes();
    transmitter.room(&pool, 512, 3, digests).unwrap().fill(2);
    transmitter.withdraw();
    assert_eq!((transmitter.queue.len(), transmitter.queued_bytes()), (1, queued_bytes));
}

/// What waits for the peer is held until all of it is sent.
#[test]
fn who_takes_nothing_gets_room_for_one_answer_at_a_time() {
    let (digests, pool) = (Digests::default(), BufferPool::new(1 << 20));
    let mut transmitter = Transmitter { is_blocked: true, ..Transmitter::default() };
    transmitter.room(&pool, 4000, 30, digests).unwrap().fill(1);
    transmitter.close(&[1; BHS_LENGTH], 4000, digests);
    assert_eq!(pool.in_use_bytes(), 4096);
}
