//! Listening sockets and the thread that accepts connections and deals them out to the reactors.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use lunette_tcp::Acceptance;
use rustix::event::{PollFd, PollFlags, poll};
use socket2::{Domain, Protocol, Socket, Type};
use tracing::{info, warn};

use crate::failure::StartError;
use crate::mailbox::Mailbox;
use crate::reactor::Message;
use crate::seldom::Seldom;

/// Connections that the kernel completes before we accept them; a login storm of a cluster's hosts fits in.
const BACKLOG: i32 = 1024;

/// How long accepting pauses when the process has run out of descriptors.
pub(crate) const EXHAUSTED_PAUSE: Duration = Duration::from_millis(100);

/// A listening socket of a portal.
pub(crate) struct Door {
    pub(crate) socket: TcpListener,
    acceptance: Acceptance,
}

impl Door {
    /// Binds one portal; port 0 picks a free one.
    pub(crate) fn open(address: SocketAddr) -> Result<Self, StartError> {
        let (socket, acceptance) = listen(address, |socket| Acceptance::prepare(socket))?;
        Ok(Self { socket, acceptance })
    }
}

/// Listens on an address; port 0 picks a free one.
pub(crate) fn bind(address: SocketAddr) -> Result<TcpListener, StartError> {
    listen(address, |_| ()).map(|(socket, ())| socket)
}

/// The same, with a look at the socket before connections come.
fn listen<T>(address: SocketAddr, before: impl FnOnce(&Socket) -> T) -> Result<(TcpListener, T), StartError> {
    let fault = |source: io::Error| StartError::Portal { address, source };
    let socket =
        Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP)).map_err(fault)?;
    // A restarted target must get its port back while old connections are in TIME_WAIT.
    socket.set_reuse_address(true).map_err(fault)?;
    if address.is_ipv6() {
        // Each portal is exactly what was asked for; [::] does not take IPv4 along.
        socket.set_only_v6(true).map_err(fault)?;
    }
    socket.set_nonblocking(true).map_err(fault)?;
    socket.bind(&address.into()).map_err(fault)?;
    let prepared = before(&socket);
    socket.listen(BACKLOG).map_err(fault)?;
    Ok((socket.into(), prepared))
}

/// The accepting thread's state.
pub(crate) struct Listener {
    pub(crate) doors: Vec<Door>,
    /// Woken once, to stop.
    pub(crate) stop: Arc<Mailbox<()>>,
    pub(crate) reactors: Vec<Arc<Mailbox<Message>>>,
    /// Open connections of each reactor; the reactor counts down.
    pub(crate) loads: Vec<Arc<AtomicUsize>>,
    pub(crate) connections_max: usize,
}

impl Listener {
    /// Starts the thread.
    ///
    /// # Errors
    /// When the system refuses a thread.
    pub(crate) fn spawn(self) -> io::Result<JoinHandle<()>> {
        std::thread::Builder::new().name("listener".into()).spawn(move || self.run())
    }

    fn run(self) {
        let mut troubles = Troubles::default();
        loop {
            let mut fds: Vec<PollFd<'_>> =
                self.doors.iter().map(|door| PollFd::new(&door.socket, PollFlags::IN)).collect();
            let stop = self.stop.as_fd();
            fds.push(PollFd::new(&stop, PollFlags::IN));
            match poll(&mut fds, None) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => {
                    warn!(%error, "cannot wait for connections; no new ones are accepted");
                    return;
                }
            }
            if fds.last().is_some_and(|stop| !stop.revents().is_empty()) {
                return;
            }
            for door in &self.doors {
                self.accept_all(door, &mut troubles);
            }
        }
    }

    fn accept_all(&self, door: &Door, troubles: &mut Troubles) {
        // No more than the kernel can have waiting: a flood at one portal must not keep the others, or a stop, waiting.
        for _ in 0..BACKLOG {
            match door.socket.accept() {
                Ok((socket, peer)) => {
                    let load: usize = self.loads.iter().map(|load| load.load(Ordering::Relaxed)).sum();
                    if load >= self.connections_max {
                        if let Some(refused) = troubles.refused.note(Instant::now()) {
                            let limit = self.connections_max;
                            warn!(%peer, refused, "connection refused: limits.connections_max = {limit} is reached");
                        }
                        continue;
                    }
                    door.acceptance.settle(&socket);
                    let least =
                        (0..self.loads.len()).min_by_key(|&at| self.loads[at].load(Ordering::Relaxed));
                    let Some(reactor) = least else { return };
                    self.loads[reactor].fetch_add(1, Ordering::Relaxed);
                    self.reactors[reactor].send(Message::Connection { socket, peer });
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                // The peer gave up between the kernel's handshake and our accept.
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
                Err(error) => {
                    if let Some(attempts) = troubles.failed.note(Instant::now()) {
                        warn!(%error, attempts, "cannot accept a connection; trying again shortly");
                    }
                    std::thread::sleep(EXHAUSTED_PAUSE);
                    return;
                }
            }
        }
    }
}

/// What keeps initiators from connecting.
#[derive(Default)]
struct Troubles {
    /// There are as many connections as there may be.
    refused: Seldom,
    /// The process is out of descriptors, or the system of memory.
    failed: Seldom,
}

impl Drop for Listener {
    fn drop(&mut self) {
        info!("no longer accepting connections");
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use lunette_skip::record_lacking;
    use rustix::event::Timespec;
    use rustix::net::sockopt::tcp_congestion;

    use super::*;
    use crate::portals::own_addresses;

    /// The congestion control that this host gives, if it is one that paces.
    fn pace_of_host() -> Option<String> {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        let own = tcp_congestion(&socket).unwrap();
        if !own.starts_with("bbr") {
            record_lacking("the congestion control of this host is not BBR");
        }
        own.starts_with("bbr").then_some(own)
    }

    /// What a connection has, from one address to another, when it comes to a reactor.
    fn handed_on(from: IpAddr, portal: IpAddr, to: IpAddr) -> String {
        let door = Door::open(SocketAddr::new(portal, 0)).unwrap();
        let port = door.socket.local_addr().unwrap().port();
        let (stop, reactor) = (Arc::new(Mailbox::new().unwrap()), Arc::new(Mailbox::new().unwrap()));
        let listener = Listener {
            doors: vec![door],
            stop: Arc::clone(&stop),
            reactors: vec![Arc::clone(&reactor)],
            loads: vec![Arc::default()],
            connections_max: 1,
        };
        let thread = listener.spawn().unwrap();
        let client = Socket::new(Domain::for_address(SocketAddr::new(to, port)), Type::STREAM, None).unwrap();
        client.bind(&SocketAddr::new(from, 0).into()).unwrap();
        client.connect(&SocketAddr::new(to, port).into()).unwrap();
        let wait = Timespec::try_from(Duration::from_secs(30)).unwrap();
        poll(&mut [PollFd::new(&reactor, PollFlags::IN)], Some(&wait)).unwrap();
        let mut messages = reactor.take();
        let Some(Message::Connection { socket, .. }) = messages.pop() else { panic!("no connection came") };
        stop.send(());
        thread.join().unwrap();
        tcp_congestion(&socket).unwrap()
    }

    #[test]
    fn a_connection_within_the_machine_is_not_paced() {
        if pace_of_host().is_none() {
            return;
        }
        let here = IpAddr::from([127, 0, 0, 1]);
        assert_eq!(handed_on(here, here, here), "reno");
    }

    #[test]
    fn a_connection_from_elsewhere_has_what_the_host_gives() {
        let Some(own) = pace_of_host() else { return };
        let addresses = own_addresses().unwrap();
        let elsewhere = addresses.iter().map(SocketAddr::ip).find(|ip| ip.is_ipv4() && !ip.is_loopback());
        let Some(elsewhere) = elsewhere else {
            return record_lacking("this machine has no address but loopback ones");
        };
        // By what the addresses tell, from another machine.
        assert_eq!(handed_on(elsewhere, [0; 4].into(), [127, 0, 0, 1].into()), own);
    }
}
