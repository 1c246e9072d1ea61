//! The delay and the rate of a link without a network: a proxy of TCP connections, for systems that let nobody make one.
//!
//! It ends each connection and begins another, so that congestion control, windows and losses are those of two local
//! connections: what TCP makes of a long link is not seen, only that bytes take their time. Not here: packets
//! ([`Emulator`](crate::Emulator)).

mod lane;

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::thread::{self, JoinHandle, Scope, ScopedJoinHandle};
use std::time::Duration;

use lunette_link::{Counts, Link, Loss, Shape};
use lunette_tcp::Acceptance;
use socket2::{Domain, Protocol, Socket, Type};

use self::lane::{Lane, Parcel, Segment};
use crate::direction::Statistics;
use crate::error::WanError;
use crate::watcher::Watcher;

/// Connections at one time; more wait to be accepted.
const CONNECTIONS_MAX: usize = 256;

/// How often the listener looks whether it should end.
const LOOK_AFTER: Duration = Duration::from_millis(50);

/// How long the other side may take to accept.
const CONNECT_PATIENCE: Duration = Duration::from_secs(10);

/// Headers of IPv4 and TCP with a time stamp, which each segment has on the line.
const HEADERS: usize = 52;

/// What of one connection is read and not written yet, in bytes: at least, and at most, for it is in memory.
const WINDOW_BYTES_MIN: u64 = 1 << 20;
const WINDOW_BYTES_MAX: u64 = 1 << 30;
/// The same where no rate says what a link holds: 5 Gbit/s over 100 ms.
const WINDOW_BYTES_OF_NO_RATE: u64 = 64 << 20;

/// A running proxy. Dropping it ends it.
#[derive(Debug)]
pub struct Proxy {
    address: SocketAddr,
    lanes: [Arc<Lane>; 2],
    open: Arc<Open>,
    unreached: Arc<Unreached>,
    threads: Vec<JoinHandle<()>>,
}

/// What is told of the first connection that cannot be passed on.
type Teller = Box<dyn Fn(&io::Error) + Send + Sync>;

/// Connections that were closed because the other side could not be reached.
#[derive(Default)]
struct Unreached {
    count: AtomicU64,
    tell: OnceLock<Teller>,
}

impl std::fmt::Debug for Unreached {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Unreached").field(&self.count).finish()
    }
}

impl Unreached {
    fn add(&self, error: &io::Error) {
        if self.count.fetch_add(1, Ordering::Relaxed) == 0
            && let Some(tell) = self.tell.get()
        {
            tell(error);
        }
    }
}

/// What a link has that a proxy cannot do; the first that is found.
fn beyond(shape: &Shape) -> Option<&'static str> {
    let has = [
        (shape.loss != Loss::None, "loss"),
        (shape.duplicate.get() > 0.0, "duplicate"),
        (shape.corrupt.get() > 0.0, "corrupt"),
        (shape.reorder.share.get() > 0.0, "reorder"),
        (shape.reserved.is_some(), "reserve"),
    ];
    has.into_iter().find_map(|(has, name)| has.then_some(name))
}

impl Proxy {
    /// The property of a link that no proxy has, if it has one.
    #[must_use]
    pub fn lacks(link: &Link) -> Option<&'static str> {
        beyond(&link.up).or_else(|| beyond(&link.down))
    }

    /// Listens on one address and passes connections on to another, over the link. All that the link leaves to chance, its
    /// jitter, comes from the seed.
    ///
    /// # Errors
    /// The link does something to packets that a proxy cannot do to bytes, or the address cannot be listened on.
    pub fn start(listen: SocketAddr, to: SocketAddr, link: &Link, seed: u64) -> Result<Self, WanError> {
        if let Some(property) = Self::lacks(link) {
            let message = format!("a proxy has only delay, jitter and rate, and this link has {property}");
            return Err(WanError::of("the link")(io::Error::new(io::ErrorKind::InvalidInput, message)));
        }
        let listener = TcpListener::bind(listen).map_err(WanError::of("the address to listen on"))?;
        let address = listener.local_addr().map_err(WanError::of("the address to listen on"))?;
        listener.set_nonblocking(true).map_err(WanError::of("the address to listen on"))?;
        let acceptance = Acceptance::prepare(&listener);
        let lanes = [Lane::new(&link.up, seed)?, Lane::new(&link.down, !seed)?].map(Arc::new);
        let (open, unreached) = (Arc::default(), Arc::default());
        let mut proxy = Self { address, lanes, open, unreached, threads: Vec::new() };
        for lane in proxy.lanes.clone() {
            proxy.spawn("wan-proxy-lane", move || lane.carry())?;
        }
        let door = Door {
            open: Arc::clone(&proxy.open),
            unreached: Arc::clone(&proxy.unreached),
            acceptance,
            to,
            round_trip: link.round_trip(),
            segment_bytes: usize::from(link.mtu).saturating_sub(HEADERS).max(1),
            window_bytes: [&link.up, &link.down].map(|shape| window(link, shape)),
            lanes: proxy.lanes.clone(),
        };
        proxy.spawn("wan-proxy-door", move || door.keep(&listener))?;
        Ok(proxy)
    }

    fn spawn(&mut self, name: &str, work: impl FnOnce() + Send + 'static) -> Result<(), WanError> {
        let thread = thread::Builder::new().name(name.to_owned()).spawn(work);
        self.threads.push(thread.map_err(WanError::of("a thread"))?);
        Ok(())
    }

    /// Where it listens.
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Has this called with the reason when a connection cannot be passed on for the first time. Only the first call of this counts.
    pub fn tell_unreached(&self, tell: impl Fn(&io::Error) + Send + Sync + 'static) {
        // A second one has nobody to be told to.
        let _ = self.unreached.tell.set(Box::new(tell));
    }

    /// Connections that were closed so far because the other side could not be reached.
    #[must_use]
    pub fn unreached(&self) -> u64 {
        self.unreached.count.load(Ordering::Relaxed)
    }

    /// How the link was kept so far, from the side that connects to the other and back: each segment counts as a packet. How long
    /// bytes waited until they were taken in nobody tells, and that is 0; nothing can be lost beside the link.
    #[must_use]
    pub fn statistics(&self) -> [Statistics; 2] {
        self.lanes
            .each_ref()
            .map(|lane| lane.carried().lock().unwrap_or_else(PoisonError::into_inner).statistics(0))
    }

    /// For whoever looks how the link is kept from one moment to another.
    #[must_use]
    pub fn watcher(&self) -> Watcher {
        Watcher::of_proxy(self.lanes.each_ref().map(|lane| Arc::clone(lane.carried())))
    }

    /// What became of the segments so far, from the side that connects to the other and back.
    #[must_use]
    pub fn counts(&self) -> [Counts; 2] {
        self.lanes.each_ref().map(|lane| lane.counts())
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.open.end();
        for lane in &self.lanes {
            lane.end();
        }
        for thread in self.threads.drain(..) {
            // One that panicked has nothing more to end.
            let _ = thread.join();
        }
    }
}

/// What may be under way of one connection: enough to keep the link busy for two round trips.
fn window(link: &Link, shape: &Shape) -> u64 {
    shape.rate.map_or(WINDOW_BYTES_OF_NO_RATE, |rate| {
        rate.bytes_in(link.round_trip() * 2).clamp(WINDOW_BYTES_MIN, WINDOW_BYTES_MAX)
    })
}

/// Where connections come in.
struct Door {
    acceptance: Acceptance,
    to: SocketAddr,
    round_trip: Duration,
    segment_bytes: usize,
    window_bytes: [u64; 2],
    lanes: [Arc<Lane>; 2],
    open: Arc<Open>,
    unreached: Arc<Unreached>,
}

/// The connections that are open.
#[derive(Debug, Default)]
struct Open {
    is_over: AtomicBool,
    connections: Mutex<Vec<Weak<Connection>>>,
}

impl Open {
    fn connections(&self) -> MutexGuard<'_, Vec<Weak<Connection>>> {
        self.connections.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn has_room(&self) -> bool {
        let mut connections = self.connections();
        connections.retain(|connection| connection.strong_count() > 0);
        connections.len() < CONNECTIONS_MAX
    }

    fn end(&self) {
        self.is_over.store(true, Ordering::Relaxed);
        self.connections().iter().filter_map(Weak::upgrade).for_each(|connection| connection.end());
    }
}

/// A connection, and the one that it is passed on to.
#[derive(Debug)]
struct Connection {
    near: TcpStream,
    far: OnceLock<TcpStream>,
    parcels: [Arc<Parcel>; 2],
}

impl Connection {
    fn end(&self) {
        self.parcels.iter().for_each(|parcel| parcel.end());
        for stream in std::iter::once(&self.near).chain(self.far.get()) {
            // One that is closed already is as it should be.
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

impl Door {
    fn keep(&self, listener: &TcpListener) {
        while !self.open.is_over.load(Ordering::Relaxed) {
            let accepted =
                if self.open.has_room() { listener.accept() } else { Err(io::ErrorKind::WouldBlock.into()) };
            match accepted {
                // One that cannot be served is closed, which its side sees.
                Ok((stream, _)) => drop(self.serve(stream)),
                Err(_) => thread::sleep(LOOK_AFTER),
            }
        }
    }

    fn serve(&self, near: TcpStream) -> io::Result<()> {
        near.set_nonblocking(false)?;
        near.set_nodelay(true)?;
        self.acceptance.settle(&near);
        let [(up_sender, up), (down_sender, down)] = [channel(), channel()];
        let parcels = [up_sender, down_sender].map(|sender| Arc::new(Parcel::new(sender)));
        let connection = Arc::new(Connection { near, far: OnceLock::new(), parcels });
        self.open.connections().push(Arc::downgrade(&connection));
        let (to, round_trip, open) = (self.to, self.round_trip, Arc::clone(&self.open));
        let (lanes, window, segment) = (self.lanes.clone(), self.window_bytes, self.segment_bytes);
        let unreached = Arc::clone(&self.unreached);
        let serve = move || {
            // What the handshake takes on a network.
            thread::sleep(round_trip);
            let far = match connect(to) {
                Ok(far) => far,
                Err(error) => return unreached.add(&error),
            };
            let (near, far) = (&connection.near, connection.far.get_or_init(|| far));
            if open.is_over.load(Ordering::Relaxed) {
                return;
            }
            let [up_parcel, down_parcel] = &connection.parcels;
            thread::scope(|scope| {
                let began = |spawned: io::Result<_>| spawned.is_ok();
                let has_begun = began(spawn(scope, || deliver(up, near, far, up_parcel)))
                    && began(spawn(scope, || deliver(down, far, near, down_parcel)))
                    && began(spawn(scope, || pass_on(near, &lanes[0], up_parcel, window[0], segment)));
                if has_begun {
                    pass_on(far, &lanes[1], down_parcel, window[1], segment);
                } else {
                    // The system gives no more threads: it is closed, and who has begun ends.
                    connection.end();
                }
            });
        };
        thread::Builder::new().name("wan-proxy-connection".to_owned()).spawn(serve).map(drop)
    }
}

fn spawn<'scope>(
    scope: &'scope Scope<'scope, '_>,
    run: impl FnOnce() + Send + 'scope,
) -> io::Result<ScopedJoinHandle<'scope, ()>> {
    thread::Builder::new().name("wan-proxy-connection".to_owned()).spawn_scoped(scope, run)
}

fn connect(to: SocketAddr) -> io::Result<TcpStream> {
    let socket = Socket::new(Domain::for_address(to), Type::STREAM, Some(Protocol::TCP))?;
    lunette_tcp::before_connecting(&socket, to);
    socket.connect_timeout(&to.into(), CONNECT_PATIENCE)?;
    socket.set_tcp_nodelay(true)?;
    Ok(socket.into())
}

/// Puts on the lane what comes from a stream, until it ends.
fn pass_on(mut from: &TcpStream, lane: &Lane, parcel: &Arc<Parcel>, window_bytes: u64, segment_bytes: usize) {
    let mut room = vec![0; 64 << 10];
    while parcel.wait_for_room(window_bytes) {
        let Ok(count @ 1..) = from.read(&mut room) else { break };
        parcel.take(count as u64);
        lane.send(room[..count].chunks(segment_bytes).map(|bytes| Segment::data(parcel, bytes, HEADERS)));
    }
    lane.send(std::iter::once(Segment::end(parcel, HEADERS)));
}

/// Writes what has arrived, until the end of it has.
fn deliver(arrived: Receiver<Vec<u8>>, from: &TcpStream, mut to: &TcpStream, parcel: &Parcel) {
    for bytes in arrived {
        if bytes.is_empty() || to.write_all(&bytes).is_err() {
            break;
        }
        parcel.give_back(bytes.len() as u64);
    }
    parcel.refuse();
    let _ = (from.shutdown(Shutdown::Read), to.shutdown(Shutdown::Write));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_has_under_way_what_the_link_holds_and_no_more_than_memory_should() {
        for (link, bytes) in [
            ("rate=155M,rtt=50ms", 1_937_500),
            ("rate=1M,rtt=1ms", WINDOW_BYTES_MIN),
            ("rate=10G,rtt=10s", WINDOW_BYTES_MAX),
            ("rtt=100ms", WINDOW_BYTES_OF_NO_RATE),
        ] {
            let described: Link = link.parse().expect("a link");
            assert_eq!(window(&described, &described.up), bytes, "{link}");
        }
    }
}
