//! A session over two ways of which one is slower: it carries what it can, and the other one the rest.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use lunette_initiator::{Completion, Engine, Options, Portal, Wishes};
use lunette_tests::engine::{make_ready, options, pattern, wait_for_all, write};
use lunette_tests::in_process::InProcess;

const WRITE: u32 = 64 << 10;
const DEPTH: u64 = 32;
const ROUNDS: u64 = 8;

/// Carries connections to a target, and pauses behind each piece of what goes there; counts its bytes.
fn way(target: SocketAddr, pause: Duration) -> (SocketAddr, Arc<AtomicU64>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    let carried = Arc::new(AtomicU64::new(0));
    let counter = Arc::clone(&carried);
    thread::spawn(move || {
        for near in listener.incoming().map_while(Result::ok) {
            let Ok(far) = TcpStream::connect(target) else { continue };
            let [near_too, far_too] = [&near, &far].map(|end| end.try_clone().expect("a descriptor"));
            let counter = Arc::clone(&counter);
            thread::spawn(move || carry(near, far, pause, &counter));
            thread::spawn(move || carry(far_too, near_too, Duration::ZERO, &AtomicU64::new(0)));
        }
    });
    (address, carried)
}

fn carry(mut from: TcpStream, mut to: TcpStream, pause: Duration, carried: &AtomicU64) {
    let mut piece = [0; 16 << 10];
    while let Ok(length @ 1..) = from.read(&mut piece) {
        if to.write_all(&piece[..length]).is_err() {
            break;
        }
        carried.fetch_add(length as u64, Ordering::SeqCst);
        thread::sleep(pause);
    }
    // The other end may be gone already.
    let _ = to.shutdown(Shutdown::Write);
}

/// RFC 7143, 4.2.2.1: the target takes commands in their order, so that each one on the slower way holds up all behind it.
#[test]
fn writes_go_where_they_leave_at_once() {
    let target = InProcess::start(&["mem:64M"]);
    let (quick, by_quick) = way(target.portal(), Duration::ZERO);
    let (slow, by_slow) = way(target.portal(), Duration::from_millis(50));
    let portals = [quick, slow].map(|address| Portal::new(address.ip().to_string(), address.port()));
    let wishes = Wishes { first_burst_length: WRITE, ..Wishes::default() };
    let plain = options(target.name(), target.portal());
    let mut engine = Engine::connect(Options { portals: portals.to_vec(), connections: 2, wishes, ..plain })
        .expect("a session");
    assert_eq!(engine.connections().len(), 2);
    make_ready(&mut engine, 0);
    let blocks = WRITE / 512;
    for round in 0..ROUNDS {
        for number in round * DEPTH..(round + 1) * DEPTH {
            let data = pattern(number, WRITE as usize);
            engine.submit(write(0, number * u64::from(blocks), blocks, data));
        }
        assert!(wait_for_all(&mut engine).values().all(Completion::is_good));
    }
    engine.close().expect("a logout");
    let [quick, slow] = [by_quick, by_slow].map(|carried| carried.load(Ordering::SeqCst));
    assert!(quick + slow > ROUNDS * DEPTH * u64::from(WRITE));
    assert!(slow < quick / 2, "{slow} bytes on the slower way, {quick} on the other");
}
