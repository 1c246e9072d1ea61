//! What the link does to real packets, as who receives them sees it. The emulator's own counters are asked for nothing but when all
//! is over.
//!
//! All packets wait for the line from the beginning on, so in the link's time they are as far apart as its rate says, and what becomes
//! of them does not depend on the machine. The links are too narrow for IPv6, so no packets of the kernel are among them.

mod ends;

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use lunette_wan::{Emulator, FAR, NEAR};
use socket2::{Domain, SockRef, Socket, Type};

use self::ends::{LIMIT, network, sockets};

/// Data of a datagram in bytes: with the headers of IP and UDP a packet has 256, and takes a millisecond of 2.048 Mb/s.
const DATA_BYTES: usize = 228;
/// What may come to the link before it has been seen there, in packets: less than the kernel holds.
const AHEAD: u64 = 64;
/// How many standard deviations a count may be off: one in 150,000 is.
const DEVIATIONS: f64 = 4.5;
/// Datagrams of which shares are looked at.
const COUNT: u32 = 2000;

fn datagram(number: u32) -> [u8; DATA_BYTES] {
    let mut data = [0; DATA_BYTES];
    for (at, word) in (0_u32..).zip(data.chunks_exact_mut(4)) {
        word.copy_from_slice(&number.wrapping_add(2_654_435_761_u32.wrapping_mul(at)).to_be_bytes());
    }
    data
}

/// The numbers of what comes until it is over, and when.
fn receive(far: &UdpSocket, is_over: &AtomicBool) -> Vec<(u32, Instant)> {
    let (mut came, began) = (Vec::new(), Instant::now());
    let mut data = [0; 2 * DATA_BYTES];
    loop {
        // Looked at before: what came by then is read.
        let was_over = is_over.load(Ordering::SeqCst) || began.elapsed() > LIMIT;
        match far.recv(&mut data) {
            Ok(length) => {
                let number = u32::from_be_bytes([data[0], data[1], data[2], data[3]]);
                assert!(data[..length] == datagram(number), "nobody has damaged what UDP lets through");
                came.push((number, Instant::now()));
            }
            Err(_) if was_over => return came,
            Err(error) => {
                assert!(matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut), "{error}");
            }
        }
    }
}

/// Sends so many datagrams from the near end, the line's queue full of them from the beginning on. What comes, in its order, and when.
fn carry(emulator: &Emulator, count: u32) -> Vec<(u32, Instant)> {
    let (near, far) = sockets(emulator);
    // As much as the system allows.
    SockRef::from(&far).set_recv_buffer_size(1 << 20).expect("a socket");
    far.set_read_timeout(Some(Duration::from_millis(100))).expect("a socket");
    let is_over = AtomicBool::new(false);
    let counts = || emulator.statistics().expect("counters")[0].counts;
    let began = Instant::now();
    let wait_until = |is_so: &dyn Fn() -> bool| {
        while !is_so() && began.elapsed() < LIMIT {
            thread::sleep(Duration::from_millis(1));
        }
    };
    let came = thread::scope(|scope| {
        let receiver = scope.spawn(|| receive(&far, &is_over));
        for number in 0..count {
            near.send(&datagram(number)).expect("a socket");
            if u64::from(number + 1).is_multiple_of(AHEAD) {
                wait_until(&|| counts().offered > u64::from(number));
            }
        }
        wait_until(&|| {
            let counts = counts();
            counts.offered >= count.into() && counts.arrived == counts.offered + counts.duplicated
        });
        is_over.store(true, Ordering::SeqCst);
        receiver.join().expect("a thread")
    });
    // The shares are of these, and nothing else is missing.
    let statistics = emulator.statistics().expect("counters")[0];
    assert_eq!((statistics.counts.offered, statistics.overrun), (count.into(), 0), "{statistics:?}");
    assert_eq!(udp_counter(emulator, "RcvbufErrors"), 0, "the receiver has read too late");
    came
}

/// A count of the far end's kernel about UDP.
fn udp_counter(emulator: &Emulator, name: &str) -> u64 {
    let counters = emulator.far().within(|| std::fs::read_to_string("/proc/thread-self/net/snmp"));
    let counters = counters.expect("counters");
    let mut lines = counters.lines().filter(|line| line.starts_with("Udp:")).map(str::split_ascii_whitespace);
    let (mut names, mut values) = (lines.next().expect("names"), lines.next().expect("values"));
    let at = names.position(|of| of == name).expect("the name");
    values.nth(at).and_then(|value| value.parse().ok()).expect("a number")
}

/// So many of those sent have had bad luck with this share.
fn assert_share(count: usize, share: f64) {
    let (expected, variance) = (f64::from(COUNT) * share, f64::from(COUNT) * share * (1.0 - share));
    let off = (count as f64 - expected).abs() / variance.sqrt();
    assert!(
        off < DEVIATIONS,
        "{count} of {COUNT}, where {share} of them should be: {off} standard deviations"
    );
}

#[test]
fn so_many_arrive_twice_as_the_link_says() {
    let Some(emulator) = network("rate=2.048M,delay=1ms,queue=1M,mtu=1200,duplicate=20%") else { return };
    let came = carry(&emulator, COUNT);
    let mut copies = vec![0; COUNT as usize];
    came.iter().for_each(|(number, _)| copies[*number as usize] += 1);
    assert!(copies.iter().all(|copies| (1..=2).contains(copies)), "each arrives, and none three times");
    assert!(came.is_sorted_by_key(|(number, _)| *number), "a copy comes beside its packet");
    assert_share(came.len() - COUNT as usize, 0.2);
}

#[test]
fn so_many_are_damaged_as_the_link_says() {
    let Some(emulator) = network("rate=2.048M,delay=1ms,queue=1M,mtu=1200,corrupt=20%") else { return };
    let came = carry(&emulator, COUNT);
    // One turned bit, wherever it is, makes one of the sums wrong, and the kernel drops the packet.
    assert!(came.is_sorted_by(|one, next| one.0 < next.0), "none comes twice, or out of order");
    let missing = COUNT as usize - came.len();
    assert_share(missing, 0.2);
    // It says so of what UDP's sum covers: all but the 20 bytes of IP's header. Where the length is wrong it does not come to the sum.
    let damaged = udp_counter(&emulator, "InCsumErrors") as usize;
    assert!(damaged <= missing, "{damaged} of {missing}");
    assert_share(damaged, 0.2 * (236.0 - 1.0) / 256.0);
}

/// A sum of zero would be that of a datagram without one, at whose damage nobody looks (RFC 768).
#[test]
fn damage_is_seen_where_the_sum_is_zero() {
    let Some(emulator) = network("delay=1ms,mtu=1200,corrupt=100%") else { return };
    let (near, far) = sockets(&emulator);
    let ports = [&near, &far].map(|socket| u64::from(socket.local_addr().expect("a socket").port()));
    let addresses = [NEAR.ipv4, FAR.ipv4].map(|address| u64::from(address.to_bits()));
    let (protocol, length) = (17, 8 + DATA_BYTES as u64);
    // All that the sum is of but two bytes of data, which make it 0xffff, whose complement is zero.
    let of_addresses: u64 = addresses.iter().map(|address| (address >> 16) + (address & 0xffff)).sum();
    let mut sum = of_addresses + ports.iter().sum::<u64>() + protocol + 2 * length;
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    let mut data = [0; DATA_BYTES];
    data[..2].copy_from_slice(&(0xffff - sum as u16).to_be_bytes());
    let count = 100;
    for _ in 0..count {
        near.send(&data).expect("a socket");
    }
    let began = Instant::now();
    while emulator.statistics().expect("counters")[0].counts.arrived < count && began.elapsed() < LIMIT {
        thread::sleep(Duration::from_millis(1));
    }
    far.set_read_timeout(Some(Duration::from_millis(200))).expect("a socket");
    assert!(far.recv(&mut data).is_err(), "each had a bit turned");
    assert!(udp_counter(&emulator, "InCsumErrors") > 70, "most of them where UDP's sum is of");
}

#[test]
fn so_many_are_overtaken_as_the_link_says() {
    let Some(emulator) = network("rate=2.048M,delay=1ms,queue=1M,mtu=1200,reorder=20%/10.5ms") else {
        return;
    };
    let came = carry(&emulator, COUNT);
    let mut numbers: Vec<u32> = came.iter().map(|(number, _)| *number).collect();
    let mut newest = 0;
    let mut overtaken = 0;
    for (at, number) in (0..).zip(&numbers) {
        newest = newest.max(*number);
        if *number < newest {
            overtaken += 1;
            // As many come before it as did when it was sent, without those that are held up themselves, and ten that were behind it.
            assert!(newest - number <= 10, "{number} comes behind {newest}");
            assert!(at <= number + 10, "{number} is the {at}th to come");
        }
    }
    // But for the last ten, whom nobody may be left to overtake.
    assert_share(overtaken, 0.2);
    numbers.sort_unstable();
    assert!(numbers.into_iter().eq(0..COUNT), "all arrive, and once");
}

/// How much later each came than if all had taken as long as the one that was fastest; one is this much behind the one before it.
fn delays_ms(came: &[(u32, Instant)], distance_ms: f64) -> Vec<f64> {
    let (_, first) = came[0];
    let of =
        |(number, at): &(u32, Instant)| (*at - first).as_secs_f64() * 1e3 - f64::from(*number) * distance_ms;
    let mut delays: Vec<f64> = came.iter().map(of).collect();
    let least = delays.iter().copied().fold(f64::INFINITY, f64::min);
    delays.iter_mut().for_each(|delay| *delay -= least);
    delays.sort_unstable_by(f64::total_cmp);
    delays
}

/// Delays are even over twice the jitter. What the machine adds is seen on a link beside it that has none.
#[test]
fn delays_differ_as_the_link_says() {
    const PACKETS: u32 = 400;
    // 22 ms each: none is kept from overtaking, which would change its delay.
    let line = "rate=93.1K,delay=20ms,queue=1M,mtu=1200";
    let distance_ms = 256.0 * 8.0 / 93.1;
    let jitter_ms = 10.0;
    let Some(steady) = network(line) else { return };
    let Some(varying) = network(&format!("{line},jitter={jitter_ms}ms")) else { return };
    let [steady, varying] = thread::scope(|scope| {
        let carried = [steady, varying].map(|emulator| scope.spawn(move || carry(&emulator, PACKETS)));
        carried.map(|carried| delays_ms(&carried.join().expect("a thread"), distance_ms))
    });
    assert_eq!([steady.len(), varying.len()], [PACKETS as usize; 2]);
    let at = |delays: &[f64], share: f64| delays[(share * f64::from(PACKETS)) as usize];
    let machine_ms = at(&steady, 0.9);
    for tenth in 1..10 {
        let share = f64::from(tenth) / 10.0;
        let (seen, expected) = (at(&varying, share), 2.0 * jitter_ms * share);
        let chance = 2.0 * jitter_ms * (share * (1.0 - share) / f64::from(PACKETS)).sqrt();
        let most = DEVIATIONS * chance + machine_ms;
        assert!(
            (seen - expected).abs() < most,
            "{share} of the delays are up to {seen} ms, where {expected} are right, and {most} may be missing"
        );
    }
}

/// A connection to this port of the far end, on which so much may be under way, and a thread that counts what comes.
fn flow<'scope>(
    scope: &'scope thread::Scope<'scope, '_>,
    emulator: &Emulator,
    port: u16,
    came: &'scope AtomicU64,
    is_over: &'scope AtomicBool,
) {
    let listen = || {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
        // The kernel makes it twice as much, half of which is the window: neither line of the queue is ever full, or empty.
        socket.set_recv_buffer_size(64 << 10)?;
        socket.bind(&SocketAddr::from((FAR.ipv4, port)).into())?;
        socket.listen(1)?;
        Ok(TcpListener::from(socket))
    };
    let listener = emulator.far().within(listen).expect("a socket");
    let accepted = thread::spawn(move || listener.accept().expect("a connection").0);
    let address = SocketAddr::from((FAR.ipv4, port));
    let mut near =
        emulator.near().within(|| TcpStream::connect_timeout(&address, LIMIT)).expect("a connection");
    let mut far = accepted.join().expect("a thread");
    far.set_read_timeout(Some(LIMIT)).expect("a socket");
    near.set_write_timeout(Some(LIMIT)).expect("a socket");
    let goes_on = || !is_over.load(Ordering::SeqCst);
    scope.spawn(move || while goes_on() && near.write_all(&[7; 4096]).is_ok() {});
    scope.spawn(move || {
        let mut bytes = [0; 4096];
        while let Ok(length @ 1..) = far.read(&mut bytes) {
            came.fetch_add(length as u64, Ordering::SeqCst);
        }
    });
}

#[test]
fn iscsi_has_the_share_of_the_line_that_is_reserved_for_it() {
    let Some(emulator) = network("rate=4M,rtt=4ms,queue=512K,mtu=1200,reserve=60%") else { return };
    let (came, is_over) = ([AtomicU64::new(0), AtomicU64::new(0)], AtomicBool::new(false));
    let counts = || [&came[0], &came[1]].map(|came| came.load(Ordering::SeqCst));
    let began = Instant::now();
    let wait_for = |bytes: u64| {
        while counts().iter().sum::<u64>() < bytes && began.elapsed() < LIMIT {
            thread::sleep(Duration::from_millis(1));
        }
        counts()
    };
    // Two seconds of the line, in which both begin, and then seven.
    let [before, after] = thread::scope(|scope| {
        for (port, came) in [3260, 5001].into_iter().zip(&came) {
            flow(scope, &emulator, port, came, &is_over);
        }
        let seen = [1_000_000, 4_500_000].map(wait_for);
        is_over.store(true, Ordering::SeqCst);
        seen
    });
    let [iscsi, other] = [0, 1].map(|at| (after[at] - before[at]) as f64);
    let share = iscsi / (iscsi + other);
    assert!((share / 0.6 - 1.0).abs() < 0.05, "{iscsi} and {other}: a share of {share}");
    let counts = emulator.statistics().expect("counters")[0].counts;
    assert_eq!(counts.dropped, 0, "the queue has room for both");
}
