//! Real packets of the kernel over emulated links. Upper bounds of time are not tested here: they would test the machine.

mod ends;

use std::io::{Read, Write};
use std::net::{Ipv6Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::thread;
use std::time::{Duration, Instant};

use lunette_wan::{Emulator, FAR, NEAR, Namespace, Statistics};
use socket2::{Domain, Socket, Type};

use self::ends::{LIMIT, network, sockets};

/// A TCP connection from the near end to the far one.
fn connection(emulator: &Emulator) -> (TcpStream, TcpStream) {
    let listener = emulator.far().within(|| TcpListener::bind((FAR.ipv4, 0))).expect("a socket");
    let address = listener.local_addr().expect("a socket");
    let accepted = thread::spawn(move || listener.accept().expect("a socket").0);
    let near = emulator.near().within(|| TcpStream::connect_timeout(&address, LIMIT)).expect("a socket");
    let far = accepted.join().expect("a thread");
    for stream in [&near, &far] {
        stream.set_read_timeout(Some(LIMIT)).expect("a socket");
    }
    (near, far)
}

fn pattern(length: usize) -> Vec<u8> {
    (0..length as u32).map(|index| index.wrapping_mul(2_654_435_761).to_le_bytes()[3]).collect()
}

/// Sends bytes from the near end to the far one by TCP; how long it took.
fn transfer(emulator: &Emulator, bytes: &[u8]) -> Duration {
    let (mut near, mut far) = connection(emulator);
    let began = Instant::now();
    let received = thread::spawn(move || {
        let mut received = Vec::new();
        far.read_to_end(&mut received).expect("a socket");
        received
    });
    near.write_all(bytes).expect("a socket");
    drop(near);
    assert!(received.join().expect("a thread") == bytes, "TCP brings what was sent");
    began.elapsed()
}

#[test]
fn a_round_trip_takes_the_delay_of_both_directions() {
    let Some(emulator) = network("up.delay=10ms,down.delay=30ms") else { return };
    let (near, far) = sockets(&emulator);
    let began = Instant::now();
    near.send(b"there").unwrap();
    let mut bytes = [0; 16];
    assert_eq!(far.recv(&mut bytes).unwrap(), 5);
    assert!(began.elapsed() >= Duration::from_millis(10));
    far.send(b"and back").unwrap();
    assert_eq!(near.recv(&mut bytes).unwrap(), 8);
    assert!(began.elapsed() >= Duration::from_millis(40));
    // Who carries tells of a packet behind its way out.
    let have_come = |[up, down]: &[Statistics; 2]| {
        up.counts.arrived_bytes >= 5 + 28 && down.counts.arrived_bytes >= 8 + 28
    };
    while !have_come(&emulator.statistics().unwrap()) && began.elapsed() < LIMIT {
        thread::sleep(Duration::from_millis(1));
    }
    let [up, down] = emulator.statistics().unwrap();
    assert!(up.counts.arrived_bytes >= 5 + 28 && down.counts.arrived_bytes >= 8 + 28, "{up:?} {down:?}");
    assert_eq!((up.overrun, down.overrun), (0, 0));
    emulator.end().unwrap();
}

#[test]
fn no_more_gets_through_than_the_rate_lets() {
    let Some(emulator) = network("rate=40M,rtt=1ms") else { return };
    let bytes = pattern(1_000_000);
    // The bits of the data alone; what stays in the first queue has been sent as well by the time that the last byte arrives.
    assert!(transfer(&emulator, &bytes) >= Duration::from_millis(200));
    emulator.end().unwrap();
}

#[test]
fn tcp_mends_what_the_link_does_to_packets() {
    let link = "rate=200M,rtt=2ms,loss=1%,duplicate=1%,corrupt=1%,reorder=2%/1ms,jitter=0.5ms";
    let Some(emulator) = network(link) else { return };
    transfer(&emulator, &pattern(3_000_000));
    let [up, _] = emulator.statistics().unwrap();
    let counts = up.counts;
    let each = [counts.lost, counts.duplicated, counts.corrupted, counts.reordered];
    assert!(each.iter().all(|count| *count > 0), "{counts:?}");
    emulator.end().unwrap();
}

#[test]
fn a_link_without_a_way_through_lets_nothing_through() {
    let Some(emulator) = network("loss=100%") else { return };
    let (near, far) = sockets(&emulator);
    for _ in 0..20 {
        near.send(b"lost").unwrap();
    }
    far.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
    assert!(far.recv(&mut [0; 16]).is_err());
    let began = Instant::now();
    let mut up = emulator.statistics().unwrap()[0];
    while up.counts.lost < 20 && began.elapsed() < LIMIT {
        thread::sleep(Duration::from_millis(10));
        [up, _] = emulator.statistics().unwrap();
    }
    assert!(up.counts.lost >= 20 && up.counts.arrived == 0, "{up:?}");
}

#[test]
fn what_the_link_takes_is_told_from_one_moment_to_another() {
    // One direction loses each packet on the wire, and the other has room for few long ones.
    let Some(emulator) = network("up.loss=100%,down.rate=1M,down.queue=3K") else { return };
    let (near, far) = sockets(&emulator);
    let before = emulator.mark().expect("counters");
    near.send(b"lost").expect("a socket");
    for _ in 0..20 {
        far.send(&[0; 1400]).expect("a socket");
    }
    let began = Instant::now();
    loop {
        let keeping = emulator.since(&before).expect("counters");
        // The kernel has packets of its own.
        if keeping.lost[0] >= 1 && keeping.dropped >= 10 {
            assert_eq!(keeping.lost[1], 0, "nothing is lost on the way back");
            break;
        }
        assert!(began.elapsed() < LIMIT, "{keeping:?}");
        thread::sleep(Duration::from_millis(1));
    }
    // Of all of them before no more are told than there were.
    let [up, down] = emulator.statistics().expect("counters");
    let keeping = emulator.since(&emulator.mark().expect("counters")).expect("counters");
    assert!(keeping.lost[0] < up.counts.lost && keeping.dropped < down.counts.dropped, "{keeping:?}");
}

#[test]
fn the_longest_packet_is_as_long_as_the_link_says() {
    let Some(emulator) = network("mtu=1400") else { return };
    let (near, far) = sockets(&emulator);
    // With the headers of IP and UDP: just one packet, and just two.
    for (length, packets) in [(1372, 1), (1373, 2)] {
        let before = emulator.statistics().unwrap()[0].counts.offered;
        near.send(&vec![7; length]).unwrap();
        assert_eq!(far.recv(&mut vec![0; 2000]).unwrap(), length);
        // It is counted when it has been let out, and the kernel speaks to its IPv6 neighbours now and then.
        let counted = || emulator.statistics().unwrap()[0].counts.offered;
        let began = Instant::now();
        while counted() < before + packets {
            assert!(began.elapsed() < LIMIT, "{length}: {before} to {}", counted());
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// However the kernel hands them over: on the link none is longer than the MTU.
#[test]
fn segments_that_come_together_are_packets_of_their_own() {
    let Some(emulator) = network("mtu=1500") else { return };
    let bytes = pattern(1_000_000);
    transfer(&emulator, &bytes);
    // Headers of IPv4 and TCP, without which no segment goes.
    let least = bytes.len() as u64 / (1500 - 40);
    // They are counted when they have been let out.
    let counts = || emulator.statistics().unwrap()[0].counts;
    let began = Instant::now();
    while counts().arrived < least {
        assert!(began.elapsed() < LIMIT, "{least} segments in {:?}", counts());
        thread::sleep(Duration::from_millis(1));
    }
    emulator.end().unwrap();
}

#[test]
fn the_ends_have_each_other_and_nothing_else() {
    let Some(emulator) = network("mtu=1500") else { return };
    let outside = TcpListener::bind("127.0.0.1:0").unwrap();
    let outside = outside.local_addr().unwrap();
    let refused = |address: SocketAddr| TcpStream::connect_timeout(&address, Duration::from_secs(5)).is_err();
    assert!(emulator.near().within(|| Ok(refused(outside))).unwrap());
    // Each has a loopback of its own.
    let own = emulator.near().within(|| TcpListener::bind("127.0.0.1:0")).unwrap();
    let own = own.local_addr().unwrap();
    assert!(emulator.near().within(|| TcpStream::connect_timeout(&own, LIMIT).map(drop)).is_ok());
    assert!(emulator.far().within(|| Ok(refused(own))).unwrap());
    // Addresses of documentation: there is no way to anywhere else.
    let elsewhere = SocketAddr::from(([192, 0, 2, 1], 80));
    let error = emulator.near().within(|| TcpStream::connect_timeout(&elsewhere, LIMIT)).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::NetworkUnreachable);
}

#[test]
fn ipv6_goes_over_it_too() {
    let Some(emulator) = network("delay=1ms") else { return };
    // An address is tentative until nobody else is found to have it (RFC 4862, 5.4).
    let began = Instant::now();
    let listener = loop {
        match emulator.far().within(|| TcpListener::bind((FAR.ipv6, 0))) {
            Ok(listener) => break listener,
            Err(error) => assert!(began.elapsed() < LIMIT, "{error}"),
        }
        thread::sleep(Duration::from_millis(50));
    };
    let address = listener.local_addr().unwrap();
    emulator.near().within(|| TcpStream::connect_timeout(&address, LIMIT).map(drop)).unwrap();
}

#[test]
fn a_link_that_is_changed_is_another_one_for_what_comes_then() {
    let Some(emulator) = network("delay=1ms") else { return };
    let (near, far) = sockets(&emulator);
    near.send(b"before").unwrap();
    assert_eq!(far.recv(&mut [0; 16]).unwrap(), 6);
    emulator.reshape(&"delay=40ms,mtu=1400".parse().unwrap()).unwrap();
    let began = Instant::now();
    let offered = emulator.statistics().unwrap()[0].counts.offered;
    near.send(&[7; 1373]).unwrap();
    assert_eq!(far.recv(&mut [0; 2000]).unwrap(), 1373);
    assert!(began.elapsed() >= Duration::from_millis(40));
    assert!(emulator.statistics().unwrap()[0].counts.offered >= offered + 2, "longer than the MTU now");
    assert!(emulator.carries());
    emulator.end().unwrap();
}

/// The kernel hands over as many segments at once as fit into 64 KiB, however short they are.
#[test]
fn segments_may_be_as_short_as_tcp_has_them() {
    let Some(emulator) = network("delay=1ms") else { return };
    let listener = emulator.far().within(|| TcpListener::bind((FAR.ipv4, 0))).expect("a socket");
    let address = listener.local_addr().expect("a socket");
    let accepted = thread::spawn(move || listener.accept().expect("a socket").0);
    let connect = || {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
        socket.set_tcp_mss(90)?;
        socket.connect_timeout(&address.into(), LIMIT)?;
        Ok(TcpStream::from(socket))
    };
    let mut near = emulator.near().within(connect).expect("a connection");
    let mut far = accepted.join().expect("a thread");
    let bytes = pattern(2 << 20);
    let received = thread::spawn(move || {
        far.set_read_timeout(Some(LIMIT)).expect("a socket");
        let mut received = Vec::new();
        far.read_to_end(&mut received).expect("a socket");
        received
    });
    near.write_all(&bytes).expect("a socket");
    drop(near);
    assert!(received.join().expect("a thread") == bytes);
    assert!(emulator.carries());
}

/// IPv6 needs 1280 bytes; a shorter link has none, and a longer one has it again.
#[test]
fn packets_may_be_shorter_than_ipv6_has_them() {
    let Some(emulator) = network("mtu=576") else { return };
    assert!(transfer(&emulator, &pattern(100_000)) < LIMIT);
    let has_ipv6 = || {
        let bind = |end: lunette_wan::End| move || UdpSocket::bind((end.ipv6, 0));
        let ends = [emulator.near().within(bind(NEAR)), emulator.far().within(bind(FAR))];
        ends.map(|bound| bound.is_ok())
    };
    // The kernel makes an address one that can be used in a moment of its own.
    let gets_ipv6 = || {
        let began = Instant::now();
        while has_ipv6() != [true; 2] && began.elapsed() < LIMIT {
            thread::sleep(Duration::from_millis(10));
        }
        has_ipv6() == [true; 2]
    };
    let set = |link: &str| emulator.reshape(&link.parse().expect("a link")).expect("a network");
    assert_eq!(has_ipv6(), [false; 2]);
    set("mtu=1500");
    if !gets_ipv6() {
        // Without IPv6 at all nothing else can be seen.
        let is_there = std::fs::exists("/proc/net/if_inet6").unwrap_or_default();
        assert!(!is_there, "the addresses are there");
        return lunette_skip::record_lacking("a kernel with IPv6");
    }
    set("mtu=600");
    set("mtu=9000");
    assert!(gets_ipv6());
    assert!(transfer(&emulator, &pattern(100_000)) < LIMIT);
}

/// Packets that the far end's device has received, by the kernel's count; segments that were joined are one.
fn received(emulator: &Emulator) -> u64 {
    let devices =
        emulator.far().within(|| std::fs::read_to_string("/proc/thread-self/net/dev")).expect("counters");
    let device = devices.lines().find_map(|line| line.trim().strip_prefix("far:")).expect("the device");
    device.split_ascii_whitespace().nth(1).and_then(|packets| packets.parse().ok()).expect("a number")
}

#[test]
fn segments_that_are_due_together_go_out_joined() {
    let Some(emulator) = network("rtt=4ms") else { return };
    if !emulator.offloads() {
        return lunette_skip::record_lacking("the kernel has no segmentation offload for network devices");
    }
    let before = received(&emulator);
    transfer(&emulator, &pattern(8_000_000));
    let [up, _] = emulator.statistics().expect("counters");
    let (arrived, joined) = (up.counts.arrived, received(&emulator) - before);
    assert!(arrived > 5000, "on the link each is a packet of its own: {arrived}");
    assert!(joined < arrived / 4, "{joined} for {arrived}");
    // Where the link puts segments out of order they stay as they are.
    let Some(emulator) = network("rtt=20ms,reorder=1%/1ms") else { return };
    let before = received(&emulator);
    transfer(&emulator, &pattern(1_000_000));
    let [up, _] = emulator.statistics().expect("counters");
    // Both are read while the kernel sends packets of its own.
    let (apart, arrived) = (received(&emulator) - before, up.counts.arrived);
    assert!(apart > arrived * 9 / 10, "{apart} for {arrived}");
}

#[test]
fn a_datagram_whose_checksum_is_zero_comes_through() {
    let Some(emulator) = network("rtt=2ms") else { return };
    let bound = |end: &Namespace, address: Ipv6Addr| {
        let began = Instant::now();
        loop {
            match end.within(|| UdpSocket::bind((address, 0))) {
                Ok(socket) => return socket,
                // The kernel makes an address one that can be used in a moment of its own.
                Err(error) => assert!(began.elapsed() < LIMIT, "{error}"),
            }
            thread::sleep(Duration::from_millis(10));
        }
    };
    let (near, far) = (bound(emulator.near(), NEAR.ipv6), bound(emulator.far(), FAR.ipv6));
    near.connect(far.local_addr().expect("a socket")).expect("a socket");
    far.set_read_timeout(Some(LIMIT)).expect("a socket");
    // All of RFC 8200, 8.1 but the data: what that has to be for a sum of 0xffff, whose complement is zero.
    let ports = [&near, &far].map(|socket| u64::from(socket.local_addr().expect("a socket").port()));
    let addresses =
        [NEAR.ipv6, FAR.ipv6].map(|address| address.segments().map(u64::from).iter().sum::<u64>());
    let (protocol, length) = (17, 8 + 2);
    let mut sum = addresses.iter().chain(&ports).sum::<u64>() + protocol + 2 * length;
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    let data = (0xffff - sum as u16).to_be_bytes();
    near.send(&data).expect("a socket");
    let mut bytes = [0; 16];
    assert_eq!(far.recv(&mut bytes).expect("the datagram"), 2);
    assert_eq!(bytes[..2], data);
}
