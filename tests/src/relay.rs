//! A relay between an initiator and its target, whose connections a test can cut.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use socket2::{Domain, SockRef, Socket, Type};

/// A running relay; it ends with the test.
#[derive(Debug)]
pub struct Relay {
    /// Where it listens.
    pub address: SocketAddr,
    target: Arc<Mutex<SocketAddr>>,
    connections: Arc<Mutex<Vec<Connection>>>,
    is_closed: Arc<AtomicBool>,
    is_frozen: Arc<AtomicBool>,
}

/// The initiator's end and the target's.
#[derive(Debug)]
struct Connection {
    near: TcpStream,
    far: TcpStream,
    is_held: Arc<AtomicBool>,
    carriers: [JoinHandle<()>; 2],
}

impl Connection {
    fn cut(&self) {
        for stream in [&self.near, &self.far] {
            // One end may have closed it already.
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

/// What a slow line takes at a time, and what each of its ends holds.
const SLOW_BYTES: usize = 4 << 10;
const SLOW_BUFFER_BYTES: usize = 16 << 10;
/// Segments as Ethernet has them. Those of the loopback interface are longer than such buffers: a window then opens only when all
/// of a buffer has been taken, and what the sender did not hear of it waits for probes, each after twice as long as the one before.
const SLOW_SEGMENT_BYTES: u32 = 1448;

impl Relay {
    /// Carries connections to this target.
    ///
    /// # Panics
    /// The system has no port.
    #[must_use]
    pub fn to(target: SocketAddr) -> Self {
        Self::with(target, None)
    }

    /// Carries no more than this in each direction of a connection: a slow line.
    ///
    /// # Panics
    /// The system has no port.
    #[must_use]
    pub fn slow(target: SocketAddr, bytes_per_s: usize) -> Self {
        Self::with(target, Some(bytes_per_s))
    }

    fn with(target: SocketAddr, bytes_per_s: Option<usize>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        let connections: Arc<Mutex<Vec<Connection>>> = Arc::default();
        let is_closed = Arc::new(AtomicBool::new(false));
        let is_frozen = Arc::new(AtomicBool::new(false));
        let target = Arc::new(Mutex::new(target));
        let leads_to = Arc::clone(&target);
        let (kept, closed) = (Arc::clone(&connections), Arc::clone(&is_closed));
        let frozen = Arc::clone(&is_frozen);
        if bytes_per_s.is_some() {
            // Those that it accepts take after it.
            make_slow(&SockRef::from(&listener)).expect("a socket option");
        }
        std::thread::spawn(move || {
            for near in listener.incoming().map_while(Result::ok) {
                if closed.load(Ordering::SeqCst) {
                    continue;
                }
                let target = *leads_to.lock().expect("no panic");
                let Ok(far) = connect(target, bytes_per_s.is_some()) else { continue };
                let is_held = Arc::new(AtomicBool::new(false));
                let carrier = |from: &TcpStream, to: &TcpStream| {
                    let [from, to] = [from, to].map(|end| end.try_clone().expect("a descriptor"));
                    let (frozen, held) = (Arc::clone(&frozen), Arc::clone(&is_held));
                    std::thread::spawn(move || carry(from, to, &frozen, &held, bytes_per_s))
                };
                let carriers = [carrier(&near, &far), carrier(&far, &near)];
                kept.lock().expect("no panic").push(Connection { near, far, is_held, carriers });
            }
        });
        Self { address, target, connections, is_closed, is_frozen }
    }

    /// Keeps what is sent on the connections that there are: it is on its way.
    pub fn hold(&self) {
        for connection in self.connections.lock().expect("no panic").iter() {
            connection.is_held.store(true, Ordering::SeqCst);
        }
    }

    /// Cuts all connections from the initiator, whose target does not notice, and carries no others.
    pub fn close_near(&self) {
        self.is_closed.store(true, Ordering::SeqCst);
        for connection in self.connections.lock().expect("no panic").iter() {
            // It may have been closed already.
            let _ = connection.near.shutdown(Shutdown::Both);
        }
    }

    /// Lets arrive what was held, of connections whose initiator is gone, and waits until it has.
    ///
    /// # Panics
    /// A carrier did.
    pub fn release(&self) {
        let mut connections = self.connections.lock().expect("no panic");
        let held = connections.extract_if(.., |connection| connection.is_held.swap(false, Ordering::SeqCst));
        for carrier in held.flat_map(|connection| connection.carriers) {
            carrier.join().expect("no panic");
        }
    }

    /// Cuts all connections that there are; new ones are carried again.
    pub fn cut(&self) {
        self.connections.lock().expect("no panic").drain(..).for_each(|connection| connection.cut());
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
        let mut connections = self.connections.lock().expect("no panic");
        let newer = connections.len().min(1);
        connections.drain(newer..).for_each(|connection| connection.cut());
    }

    /// Cuts all connections, and carries no others.
    pub fn close(&self) {
        self.is_closed.store(true, Ordering::SeqCst);
        self.cut();
    }
}

/// A slow line has small buffers before there is a connection: a window does not shrink.
fn connect(target: SocketAddr, is_slow: bool) -> std::io::Result<TcpStream> {
    if !is_slow {
        return TcpStream::connect(target);
    }
    let socket = Socket::new(Domain::for_address(target), Type::STREAM, None)?;
    make_slow(&socket)?;
    socket.connect(&target.into())?;
    Ok(socket.into())
}

fn make_slow(socket: &Socket) -> std::io::Result<()> {
    socket.set_recv_buffer_size(SLOW_BUFFER_BYTES)?;
    socket.set_send_buffer_size(SLOW_BUFFER_BYTES)?;
    socket.set_tcp_mss(SLOW_SEGMENT_BYTES)
}

fn carry(
    mut from: TcpStream,
    mut to: TcpStream,
    is_frozen: &AtomicBool,
    is_held: &AtomicBool,
    bytes_per_s: Option<usize>,
) {
    let mut bytes = vec![0; if bytes_per_s.is_some() { SLOW_BYTES } else { 65536 }];
    while let Ok(read @ 1..) = from.read(&mut bytes) {
        if let Some(rate) = bytes_per_s {
            std::thread::sleep(Duration::from_secs_f64(read as f64 / rate as f64));
        }
        if is_frozen.load(Ordering::SeqCst) {
            continue;
        }
        while is_held.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_millis(1));
        }
        if to.write_all(&bytes[..read]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Both);
    let _ = from.shutdown(Shutdown::Both);
}
