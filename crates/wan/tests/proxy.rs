//! The proxy: bytes take their time, and arrive whole.

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

use lunette_wan::Proxy;

const LIMIT: Duration = Duration::from_secs(60);

fn loopback() -> SocketAddr {
    (Ipv4Addr::LOCALHOST, 0).into()
}

fn proxy(link: &str, to: SocketAddr) -> Proxy {
    Proxy::start(loopback(), to, &link.parse().expect("a link"), 1).expect("a proxy")
}

/// Answers each connection with what it has sent, when that has ended.
fn mirror(connections: usize) -> SocketAddr {
    let listener = TcpListener::bind(loopback()).expect("a socket");
    let address = listener.local_addr().expect("a socket");
    thread::spawn(move || {
        for _ in 0..connections {
            let mut stream = listener.accept().expect("a socket").0;
            thread::spawn(move || {
                let mut bytes = Vec::new();
                stream.read_to_end(&mut bytes).expect("a socket");
                // Who has gone does not want it.
                let _ = stream.write_all(&bytes);
            });
        }
    });
    address
}

fn connect(proxy: &Proxy) -> TcpStream {
    let stream = TcpStream::connect(proxy.address()).expect("a socket");
    stream.set_read_timeout(Some(LIMIT)).expect("a socket");
    stream
}

fn pattern(length: usize) -> Vec<u8> {
    (0..length as u32).map(|index| index.wrapping_mul(2_654_435_761).to_le_bytes()[3]).collect()
}

fn exchange(proxy: &Proxy, bytes: &[u8]) -> Vec<u8> {
    let mut stream = connect(proxy);
    let mut reader = stream.try_clone().expect("a socket");
    let read = thread::spawn(move || {
        let mut answer = Vec::new();
        reader.read_to_end(&mut answer).expect("a socket");
        answer
    });
    stream.write_all(bytes).expect("a socket");
    stream.shutdown(Shutdown::Write).expect("a socket");
    read.join().expect("a thread")
}

#[test]
fn bytes_take_their_time_and_arrive_whole() {
    let proxy = proxy("rate=80M,rtt=20ms", mirror(1));
    let bytes = pattern(1_000_000);
    let began = Instant::now();
    assert!(exchange(&proxy, &bytes) == bytes);
    // A handshake, and each way 100 ms in the transmitter and 10 ms on the wire.
    assert!(began.elapsed() >= Duration::from_millis(20 + 2 * 110), "{:?}", began.elapsed());
    let [up, down] = proxy.counts();
    assert!(up.arrived_bytes > 1_000_000 && down.arrived_bytes > 1_000_000, "{up:?} {down:?}");
    assert_eq!((up.dropped, down.dropped), (0, 0));
}

#[test]
fn connections_share_the_rate() {
    let proxy = proxy("rate=80M", mirror(4));
    let bytes = pattern(500_000);
    let began = Instant::now();
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| assert!(exchange(&proxy, &bytes) == bytes));
        }
    });
    assert!(began.elapsed() >= Duration::from_millis(200), "{:?}", began.elapsed());
}

#[test]
fn who_does_not_read_holds_up_nobody_else() {
    let proxy = proxy("delay=1ms", mirror(2));
    let mut deaf = connect(&proxy);
    deaf.write_all(&pattern(16 << 20)).expect("a socket");
    deaf.shutdown(Shutdown::Write).expect("a socket");
    let bytes = pattern(100_000);
    assert!(exchange(&proxy, &bytes) == bytes);
    // What it did not read is still there.
    let mut answer = Vec::new();
    deaf.read_to_end(&mut answer).expect("a socket");
    assert!(answer == pattern(16 << 20));
}

#[test]
fn a_side_that_goes_takes_the_other_with_it() {
    let listener = TcpListener::bind(loopback()).expect("a socket");
    let proxy = proxy("delay=1ms", listener.local_addr().expect("a socket"));
    let near = connect(&proxy);
    let mut far = listener.accept().expect("a socket").0;
    drop(near);
    assert_eq!(far.read(&mut [0; 16]).expect("an end"), 0);

    let mut near = connect(&proxy);
    drop(listener.accept().expect("a socket"));
    assert_eq!(near.read(&mut [0; 16]).expect("an end"), 0);

    // Nobody listens any more.
    drop(listener);
    let mut near = connect(&proxy);
    assert_eq!(near.read(&mut [0; 16]).unwrap_or(0), 0);
}

#[test]
fn the_end_of_the_proxy_is_the_end_of_its_connections() {
    let listener = TcpListener::bind(loopback()).expect("a socket");
    let proxy = proxy("rate=8K", listener.local_addr().expect("a socket"));
    let mut near = connect(&proxy);
    let mut far = listener.accept().expect("a socket").0;
    far.set_read_timeout(Some(LIMIT)).expect("a socket");
    // It would take minutes.
    near.write_all(&pattern(300_000)).expect("a socket");
    let address = proxy.address();
    drop(proxy);
    let mut rest = Vec::new();
    let _ = near.read_to_end(&mut rest);
    let _ = far.read_to_end(&mut rest);
    assert!(rest.len() < 300_000);
    assert!(TcpStream::connect(address).is_err());
}

#[test]
fn what_a_proxy_cannot_do_is_refused() {
    for (link, property) in [
        ("loss=1%", "loss"),
        ("duplicate=1%", "duplicate"),
        ("down.corrupt=1%", "corrupt"),
        ("up.reorder=1%/1ms", "reorder"),
        ("rate=1M,reserve=50%", "reserve"),
    ] {
        let link = link.parse().expect("a link");
        let error = Proxy::start(loopback(), loopback(), &link, 1).expect_err("it cannot");
        let told = format!("the link: a proxy has only delay, jitter and rate, and this link has {property}");
        assert_eq!(error.to_string(), told);
    }
}

#[test]
fn who_cannot_be_reached_is_told_once_and_counted() {
    // Nobody listens there any more.
    let nobody = TcpListener::bind(loopback()).expect("a socket").local_addr().expect("a socket");
    let proxy = proxy("rtt=1ms", nobody);
    let (told, reasons) = channel();
    proxy.tell_unreached(move |error| told.send(error.kind()).expect("somebody listens"));
    for _ in 0..3 {
        assert_eq!(exchange_or_nothing(&proxy), 0);
    }
    assert_eq!(reasons.try_iter().collect::<Vec<_>>(), [ErrorKind::ConnectionRefused]);
    assert_eq!(proxy.unreached(), 3);
}

/// How many bytes come from a connection that is closed.
fn exchange_or_nothing(proxy: &Proxy) -> usize {
    connect(proxy).read(&mut [0; 1]).unwrap_or(0)
}
