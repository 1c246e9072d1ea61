//! Bulk TCP over a network: one connection whose sender always has more.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::io::ioctl_fionread;
use socket2::{Domain, Socket, Type};

use crate::emulator::{Emulator, FAR};

/// Bytes that one call sends or takes at most.
const PIECE_BYTES: usize = 256 << 10;

/// How long connecting may take, and how long nothing may come: far longer than on any link that is of use.
const PATIENCE: Duration = Duration::from_secs(30);

/// A connection from the near end to the far one, which carries data one way.
#[derive(Debug)]
pub struct Bulk {
    sender: TcpStream,
    receiver: TcpStream,
    port: u16,
}

impl Bulk {
    /// Connects the two ends. Data is to go to the far end or to the near one. Where `buffer_bytes` is given, both ends have
    /// buffers of so many bytes, for sending and for receiving, from before they connect, so that the window is scaled to them
    /// (RFC 7323); else the kernel sees to them.
    ///
    /// # Errors
    /// There are no sockets, or no connection comes about.
    pub fn connect(emulator: &Emulator, to_far: bool, buffer_bytes: Option<usize>) -> io::Result<Self> {
        let listener = emulator.far().within(|| listen(buffer_bytes))?;
        let address = listener.local_addr()?;
        let near = emulator.near().within(|| connect(address, buffer_bytes))?;
        // It is on its way.
        let (far, _) = listener.accept()?;
        let (sender, receiver) = if to_far { (near, far) } else { (far, near) };
        receiver.set_read_timeout(Some(PATIENCE))?;
        Ok(Self { sender, receiver, port: address.port() })
    }

    /// The port at the far end.
    #[must_use]
    pub const fn port(&self) -> u16 {
        self.port
    }

    /// Bytes per second that come for a time after a warm-up; `is_measuring` is true meanwhile. The connection ends with it.
    ///
    /// # Errors
    /// The connection is lost, or nothing comes for half a minute.
    pub fn carry(&self, warm_up: Duration, time: Duration, is_measuring: &AtomicBool) -> io::Result<f64> {
        let began = Instant::now();
        let mut counted: Option<Counted> = None;
        self.run(|taken| match &mut counted {
            None => {
                if began.elapsed() >= warm_up {
                    match self.waiting() {
                        Ok((since, early)) => counted = Some(Counted { since, early, taken: 0 }),
                        Err(error) => return ControlFlow::Break(Err(error)),
                    }
                    is_measuring.store(true, Ordering::Relaxed);
                }
                ControlFlow::Continue(())
            }
            Some(counted) => {
                counted.taken += taken;
                if counted.since.elapsed() < time {
                    return ControlFlow::Continue(());
                }
                is_measuring.store(false, Ordering::Relaxed);
                ControlFlow::Break(self.waiting().map(|(ended, late)| counted.bytes_per_s(ended, late)))
            }
        })?
    }

    /// How much has come and was not read, and when that was so.
    fn waiting(&self) -> io::Result<(Instant, u64)> {
        let bytes = ioctl_fionread(&self.receiver)?;
        Ok((Instant::now(), bytes))
    }

    /// Carries until [`Self::end`] is called, or the connection is lost, and adds the bytes that come to a sum.
    pub fn carry_on(&self, carried: &AtomicU64) {
        // That it is lost is its end, too.
        let _ = self.run(|taken| {
            carried.fetch_add(taken, Ordering::Relaxed);
            ControlFlow::<()>::Continue(())
        });
    }

    /// Ends the connection; whoever waits in it is told.
    pub fn end(&self) {
        let _ = self.receiver.shutdown(Shutdown::Both);
        let _ = self.sender.shutdown(Shutdown::Both);
    }

    /// Sends all the time, and tells how many bytes came of each piece until that is enough.
    fn run<T>(&self, mut came: impl FnMut(u64) -> ControlFlow<T>) -> io::Result<T> {
        thread::scope(|scope| {
            let sending = scope.spawn(|| send(&self.sender));
            let enough = receive(&self.receiver, &mut came);
            // The sender's next call fails, which is its end.
            self.end();
            sending.join().map_err(|_| io::Error::other("a sender panicked"))?;
            enough
        })
    }
}

/// What came since then: who is kept from reading for a while finds what came before, and leaves what has come.
struct Counted {
    since: Instant,
    /// What waited then.
    early: u64,
    taken: u64,
}

impl Counted {
    /// Up to now, where so many bytes still wait.
    fn bytes_per_s(&self, now: Instant, late: u64) -> f64 {
        let came = (self.taken + late).saturating_sub(self.early);
        came as f64 / (now - self.since).as_secs_f64().max(f64::MIN_POSITIVE)
    }
}

fn send(mut stream: &TcpStream) {
    let piece = vec![0x5a; PIECE_BYTES];
    while stream.write(&piece).is_ok_and(|sent| sent > 0) {}
}

fn receive<T>(mut stream: &TcpStream, came: &mut impl FnMut(u64) -> ControlFlow<T>) -> io::Result<T> {
    let mut piece = vec![0; PIECE_BYTES];
    loop {
        let taken = stream.read(&mut piece)? as u64;
        if taken == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        if let ControlFlow::Break(enough) = came(taken) {
            return Ok(enough);
        }
    }
}

fn socket(buffer_bytes: Option<usize>) -> io::Result<Socket> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
    if let Some(bytes) = buffer_bytes {
        socket.set_recv_buffer_size(bytes)?;
        socket.set_send_buffer_size(bytes)?;
    }
    Ok(socket)
}

fn listen(buffer_bytes: Option<usize>) -> io::Result<TcpListener> {
    let socket = socket(buffer_bytes)?;
    socket.bind(&SocketAddr::from((FAR.ipv4, 0)).into())?;
    socket.listen(1)?;
    Ok(socket.into())
}

fn connect(address: SocketAddr, buffer_bytes: Option<usize>) -> io::Result<TcpStream> {
    let socket = socket(buffer_bytes)?;
    socket.connect_timeout(&address.into(), PATIENCE)?;
    Ok(socket.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A network, where this machine lets somebody have one.
    fn network(link: &str) -> Option<Emulator> {
        let link = link.parse().expect("a link");
        Emulator::start(&link, 1).map_err(|error| lunette_skip::record_lacking(&error.to_string())).ok()
    }

    #[test]
    fn what_waited_before_and_what_waits_behind_are_told_apart() {
        let since = Instant::now();
        let counted = Counted { since, early: 700, taken: 1000 };
        let rate = |ms, late| counted.bytes_per_s(since + Duration::from_millis(ms), late);
        assert!((rate(500, 0) - 600.0).abs() < 1e-9 && (rate(2000, 100) - 200.0).abs() < 1e-9);
        assert_eq!(Counted { since, early: 9, taken: 1 }.bytes_per_s(since, 0), 0.0);
    }

    #[test]
    fn data_goes_the_way_that_was_asked_for() {
        for to_far in [true, false] {
            // One each: what the one before has left would count.
            let Some(emulator) = network("rate=80M") else { return };
            let bulk = Bulk::connect(&emulator, to_far, None).expect("a connection");
            let is_measuring = AtomicBool::default();
            let (warm_up, time) = (Duration::from_millis(50), Duration::from_millis(200));
            let rate = bulk.carry(warm_up, time, &is_measuring).expect("data");
            assert!(rate > 0.0 && bulk.port() > 0 && !is_measuring.into_inner());
            let arrived = emulator.statistics().expect("counters").map(|way| way.counts.arrived_bytes);
            let [up, down] = arrived;
            // The other way go acknowledgements alone.
            assert_eq!(up > down, to_far, "{up} there, {down} back");
        }
    }

    #[test]
    fn what_goes_on_ends_when_it_is_told() {
        let Some(emulator) = network("rate=80M") else { return };
        let bulk = Bulk::connect(&emulator, true, Some(64 << 10)).expect("a connection");
        let carried = AtomicU64::new(0);
        thread::scope(|scope| {
            scope.spawn(|| bulk.carry_on(&carried));
            while carried.load(Ordering::Relaxed) < 100_000 {
                thread::yield_now();
            }
            bulk.end();
        });
        let sum = carried.load(Ordering::Relaxed);
        assert!(sum >= 100_000, "{sum}");
        assert!(bulk.carry(Duration::ZERO, Duration::ZERO, &AtomicBool::new(false)).is_err(), "it has ended");
    }
}
