//! Listening sockets and the thread that accepts connections and deals them out to the reactors.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use socket2::{Domain, Protocol, Socket, Type};
use tracing::{info, warn};

use crate::mailbox::Mailbox;
use crate::reactor::Message;
use crate::server::StartError;

/// Connections that the kernel completes before we accept them; a login storm of a cluster's hosts fits in.
const BACKLOG: i32 = 1024;

/// How long accepting pauses when the process has run out of descriptors.
const EXHAUSTED_PAUSE: Duration = Duration::from_millis(100);

/// Refusals are logged at most this often, with their number; a flood must not become a flood of log lines.
const REFUSAL_LOG_INTERVAL: Duration = Duration::from_secs(1);

/// Binds one portal; port 0 picks a free one.
pub(crate) fn bind(address: SocketAddr) -> Result<TcpListener, StartError> {
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
    socket.listen(BACKLOG).map_err(fault)?;
    Ok(socket.into())
}

/// The accepting thread's state.
pub(crate) struct Listener {
    pub(crate) sockets: Vec<TcpListener>,
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
        let mut refusals = Refusals::default();
        loop {
            let mut fds: Vec<PollFd<'_>> =
                self.sockets.iter().map(|socket| PollFd::new(socket, PollFlags::IN)).collect();
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
            for socket in &self.sockets {
                self.accept_all(socket, &mut refusals);
            }
        }
    }

    fn accept_all(&self, listener: &TcpListener, refusals: &mut Refusals) {
        // No more than the kernel can have waiting: a flood at one portal must not keep the others, or a stop, waiting.
        for _ in 0..BACKLOG {
            match listener.accept() {
                Ok((socket, peer)) => {
                    let load: usize = self.loads.iter().map(|load| load.load(Ordering::Relaxed)).sum();
                    if load >= self.connections_max {
                        refusals.note(peer, self.connections_max);
                        continue;
                    }
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
                    warn!(%error, "cannot accept a connection; trying again shortly");
                    std::thread::sleep(EXHAUSTED_PAUSE);
                    return;
                }
            }
        }
    }
}

/// Counts connections that were turned away, and logs them now and then.
#[derive(Default)]
struct Refusals {
    logged_at: Option<Instant>,
    unlogged: u64,
}

impl Refusals {
    fn note(&mut self, peer: SocketAddr, limit: usize) {
        self.unlogged += 1;
        if self.logged_at.is_none_or(|at| at.elapsed() >= REFUSAL_LOG_INTERVAL) {
            warn!(%peer, refused = self.unlogged, "connection refused: limits.connections_max = {limit} is reached");
            self.logged_at = Some(Instant::now());
            self.unlogged = 0;
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        info!("no longer accepting connections");
    }
}
