//! A relay between an initiator and its target, whose connections a test can cut.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rustix::net::sockopt::{set_socket_recv_buffer_size, set_socket_send_buffer_size};

/// A running relay; it ends with the test.
#[derive(Debug)]
pub struct Relay {
    /// Where it listens.
    pub address: SocketAddr,
    target: Arc<Mutex<SocketAddr>>,
    streams: Arc<Mutex<Vec<TcpStream>>>,
    is_closed: Arc<AtomicBool>,
    is_frozen: Arc<AtomicBool>,
    /// Bytes a second that each direction of a connection carries; 0: whatever comes.
    bytes_per_s: Arc<AtomicUsize>,
}

/// Who is slow takes so much at a time, and keeps little more.
const SLOW_BYTES: usize = 16 << 10;

impl Relay {
    /// Carries connections to this target.
    ///
    /// # Panics
    /// The system has no port.
    #[must_use]
    pub fn to(target: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        let streams: Arc<Mutex<Vec<TcpStream>>> = Arc::default();
        let is_closed = Arc::new(AtomicBool::new(false));
        let is_frozen = Arc::new(AtomicBool::new(false));
        let target = Arc::new(Mutex::new(target));
        let leads_to = Arc::clone(&target);
        let (kept, closed) = (Arc::clone(&streams), Arc::clone(&is_closed));
        let frozen = Arc::clone(&is_frozen);
        let bytes_per_s = Arc::new(AtomicUsize::new(0));
        let rate = Arc::clone(&bytes_per_s);
        std::thread::spawn(move || {
            for near in listener.incoming().map_while(Result::ok) {
                if closed.load(Ordering::SeqCst) {
                    continue;
                }
                let target = *leads_to.lock().expect("no panic");
                let Ok(far) = TcpStream::connect(target) else { continue };
                let ends = [near.try_clone(), far.try_clone()].map(|end| end.expect("a descriptor"));
                kept.lock().expect("no panic").extend(ends);
                let [near_too, far_too] =
                    [near.try_clone(), far.try_clone()].map(|end| end.expect("a descriptor"));
                for (from, to) in [(near, far), (far_too, near_too)] {
                    let (frozen, rate) = (Arc::clone(&frozen), Arc::clone(&rate));
                    std::thread::spawn(move || carry(from, to, &frozen, &rate));
                }
            }
        });
        Self { address, target, streams, is_closed, is_frozen, bytes_per_s }
    }

    /// Carries no more than this in each direction of each connection, those that there are as well: a slow line.
    ///
    /// # Panics
    /// The system does not take the size of a buffer.
    pub fn slow_down(&self, bytes_per_s: usize) {
        self.bytes_per_s.store(bytes_per_s, Ordering::SeqCst);
        for stream in self.streams.lock().expect("no panic").iter() {
            set_socket_recv_buffer_size(stream, SLOW_BYTES).expect("a socket option");
            set_socket_send_buffer_size(stream, SLOW_BYTES).expect("a socket option");
        }
    }

    /// Cuts all connections that there are; new ones are carried again.
    pub fn cut(&self) {
        for stream in self.streams.lock().expect("no panic").drain(..) {
            // One end may have closed it already.
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    /// Carries new connections to another target.
    pub fn lead_to(&self, target: SocketAddr) {
        *self.target.lock().expect("no panic") = target;
    }

    /// Carries new connections again.
    pub fn open(&self) {
        self.is_closed.store(false, Ordering::SeqCst);
        self.is_frozen.store(false, Ordering::SeqCst);
    }

    /// Swallows what is sent on all connections, and carries no others: a cable that was pulled.
    pub fn freeze(&self) {
        self.is_closed.store(true, Ordering::SeqCst);
        self.is_frozen.store(true, Ordering::SeqCst);
    }

    /// Cuts all connections but the oldest, and carries no others.
    pub fn leave_one(&self) {
        self.is_closed.store(true, Ordering::SeqCst);
        let mut streams = self.streams.lock().expect("no panic");
        let newer = streams.len().min(2);
        for stream in streams.drain(newer..) {
            // One end may have closed it already.
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    /// Cuts all connections, and carries no others.
    pub fn close(&self) {
        self.is_closed.store(true, Ordering::SeqCst);
        self.cut();
    }
}

fn carry(mut from: TcpStream, mut to: TcpStream, is_frozen: &AtomicBool, bytes_per_s: &AtomicUsize) {
    let mut bytes = vec![0; 65536];
    loop {
        let rate = bytes_per_s.load(Ordering::SeqCst);
        let most = if rate > 0 { SLOW_BYTES } else { bytes.len() };
        let Ok(read @ 1..) = from.read(&mut bytes[..most]) else { break };
        if rate > 0 {
            std::thread::sleep(Duration::from_secs_f64(read as f64 / rate as f64));
        }
        if is_frozen.load(Ordering::SeqCst) {
            continue;
        }
        if to.write_all(&bytes[..read]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Both);
    let _ = from.shutdown(Shutdown::Both);
}
