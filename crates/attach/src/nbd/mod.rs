//! An NBD server for one disk: a listener, and for each client a connection with threads of its own.
//!
//! What the protocol says is in `lunette_nbd`; here are sockets and threads. Clients may be hostile: their number, the memory
//! of their requests and the time of a handshake are bounded. There is no authentication and no TLS: whoever reaches the
//! address has the disk, so it is listened on only where the caller says.

mod address;
mod budget;
mod connection;

use std::io;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use lunette_nbd::{Export, ExportError, Features};
use lunette_scsi::client::vpd::block::Rotation;
use lunette_tcp::Acceptance;
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::fd::OwnedFd;
use socket2::{Domain, SockAddr, Socket, Type};

pub use address::Address;

use crate::Disk;

/// Clients at the same time: a guest or two with a few connections each.
pub const CONNECTIONS_MAX: usize = 16;
/// Requests of one connection that are carried out at the same time, if nothing else is said.
pub const DEPTH_DEFAULT: usize = 16;
/// The most of them.
pub const DEPTH_MAX: usize = 256;

/// How long connections may take to end when the server ends.
const DRAIN_LIMIT: Duration = Duration::from_secs(10);
/// Connections that wait to be accepted.
const BACKLOG: i32 = 16;
/// How long to wait where the system has no descriptor or memory for another connection.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// What clients see of a disk.
///
/// # Errors
/// [`ExportError`]
pub fn export_of(disk: &Disk, name: &str, description: &str) -> Result<Export, ExportError> {
    let facts = disk.facts();
    let features = Features {
        read_only: disk.is_read_only(),
        rotational: matches!(facts.characteristics.rotation, Rotation::PerMinute(_)),
        trim: facts.provisioning.unmap,
        // All connections are of one session with one unit, and a flush is of what all of them have written.
        multi_connection: true,
    };
    let exponent = facts.capacity.map_or(0, |capacity| capacity.details.physical_block_exponent);
    let physical = disk.block_bytes().checked_shl(exponent.into()).unwrap_or(0);
    // What most systems do I/O in.
    let preferred = physical.max(4096);
    Export::new((name, description), disk.size_bytes(), (disk.block_bytes(), preferred), features)
}

/// A server that listens.
#[derive(Debug)]
pub struct Server {
    listener: Socket,
    acceptance: Acceptance,
    address: Address,
    state: Arc<State>,
}

/// What the listener and its connections share.
#[derive(Debug)]
struct State {
    disk: Arc<Disk>,
    /// What clients that connect are offered.
    export: Mutex<Export>,
    depth: usize,
    stopping: AtomicBool,
    wake: OwnedFd,
    connections: Mutex<Vec<(u64, Socket)>>,
    numbers: AtomicU64,
}

/// Ends a server from another thread, or changes what it offers.
#[derive(Debug, Clone)]
pub struct Stopper(Arc<State>);

impl Server {
    /// Listens. A socket in the file system is removed at the end; one that a process has left there that was killed takes no
    /// connections, and is replaced.
    ///
    /// # Errors
    /// The address cannot be listened on. `AddrInUse`: another process listens there, or the path is something else.
    pub fn listen(disk: Arc<Disk>, export: Export, address: &Address, depth: usize) -> io::Result<Server> {
        let (domain, bound) = match address {
            Address::Internet(address) => (Domain::for_address(*address), SockAddr::from(*address)),
            Address::Unix(path) => (Domain::UNIX, SockAddr::unix(path)?),
        };
        let listener = Socket::new(domain, Type::STREAM, None)?;
        if domain != Domain::UNIX {
            listener.set_reuse_address(true)?;
        }
        match (listener.bind(&bound), address) {
            (Err(error), Address::Unix(path)) if error.kind() == io::ErrorKind::AddrInUse => {
                if !is_left_over(path, &bound)? {
                    return Err(error);
                }
                std::fs::remove_file(path)?;
                listener.bind(&bound)?;
            }
            (bound, _) => bound?,
        }
        let acceptance = Acceptance::prepare(&listener);
        listener.listen(BACKLOG)?;
        listener.set_nonblocking(true)?;
        let address = match address {
            Address::Unix(path) => Address::Unix(path.clone()),
            // Port 0 has become another.
            Address::Internet(_) => {
                let bound = listener.local_addr()?.as_socket();
                Address::Internet(bound.ok_or(io::ErrorKind::Unsupported)?)
            }
        };
        let state = Arc::new(State {
            disk,
            export: Mutex::new(export),
            depth: depth.clamp(1, DEPTH_MAX),
            stopping: AtomicBool::new(false),
            wake: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            connections: Mutex::default(),
            numbers: AtomicU64::new(0),
        });
        Ok(Server { listener, acceptance, address, state })
    }

    /// Where it listens.
    #[must_use]
    pub const fn address(&self) -> &Address {
        &self.address
    }

    /// What ends it.
    #[must_use]
    pub fn stopper(&self) -> Stopper {
        Stopper(Arc::clone(&self.state))
    }

    /// Serves until the stopper is used; then requests that are there are carried out, and connections closed.
    ///
    /// # Errors
    /// The system refuses to wait for connections.
    pub fn run(self) -> io::Result<()> {
        let state = &self.state;
        while !state.stopping.load(Ordering::SeqCst) {
            let mut waited =
                [PollFd::new(&self.listener, PollFlags::IN), PollFd::new(&state.wake, PollFlags::IN)];
            match poll(&mut waited, None) {
                Ok(_) => {}
                Err(rustix::io::Errno::INTR) => continue,
                Err(error) => return Err(error.into()),
            }
            match self.listener.accept() {
                Ok((socket, _)) => {
                    self.acceptance.settle(&socket);
                    Self::begin(state, socket);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a connection");
                    thread::sleep(ACCEPT_PAUSE);
                }
            }
        }
        state.drain();
        Ok(())
    }

    /// Gives a connection its thread.
    fn begin(state: &Arc<State>, socket: Socket) {
        let number = state.numbers.fetch_add(1, Ordering::Relaxed);
        let Ok(handle) = socket.try_clone() else { return };
        {
            let mut connections = state.connections();
            if connections.len() >= CONNECTIONS_MAX {
                return tracing::warn!("a client is refused: there are {CONNECTIONS_MAX}");
            }
            connections.push((number, handle));
        }
        let shared = Arc::clone(state);
        let run = move || {
            let export = shared.export.lock().unwrap_or_else(PoisonError::into_inner).clone();
            let end = connection::serve(&shared.disk, &export, shared.depth, &socket);
            if let Err(error) = end {
                tracing::debug!(%error, "a connection ended");
            }
            let _ = socket.shutdown(std::net::Shutdown::Both);
            shared.connections().retain(|(other, _)| *other != number);
        };
        if let Err(error) = thread::Builder::new().name("nbd".into()).spawn(run) {
            tracing::warn!(%error, "no thread for a connection");
            state.connections().retain(|(other, _)| *other != number);
        }
    }
}

/// A socket is there, and nobody listens.
fn is_left_over(path: &Path, address: &SockAddr) -> io::Result<bool> {
    // A file that is no socket refuses connections as well.
    if !std::fs::symlink_metadata(path)?.file_type().is_socket() {
        return Ok(false);
    }
    let probe = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    // Whoever has no room for connections at the moment is not to be waited for.
    probe.set_nonblocking(true)?;
    let refused = |error: io::Error| error.kind() == io::ErrorKind::ConnectionRefused;
    Ok(probe.connect(address).is_err_and(refused))
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Address::Unix(path) = &self.address {
            let _ = std::fs::remove_file(path);
        }
    }
}

impl Stopper {
    /// Offers another size to clients that connect from now on. The protocol has nothing to tell the others: they keep the old one.
    pub fn resize(&self, size_bytes: u64) {
        self.0.export.lock().unwrap_or_else(PoisonError::into_inner).resize(size_bytes);
    }

    /// Ends the server.
    pub fn stop(&self) {
        self.0.stopping.store(true, Ordering::SeqCst);
        // Only an event counter that is full refuses, and that one wakes anyway.
        let _ = rustix::io::write(&self.0.wake, &1u64.to_ne_bytes());
    }
}

impl State {
    fn connections(&self) -> MutexGuard<'_, Vec<(u64, Socket)>> {
        self.connections.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// No further requests are read; what was read is answered, unless nobody takes the answers.
    fn drain(&self) {
        let deadline = Instant::now() + DRAIN_LIMIT;
        self.shut_down(std::net::Shutdown::Read);
        while !self.connections().is_empty() && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(5));
        }
        self.shut_down(std::net::Shutdown::Both);
    }

    fn shut_down(&self, how: std::net::Shutdown) {
        for (_, socket) in &*self.connections() {
            // One that is closed already is none the worse.
            let _ = socket.shutdown(how);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn only_a_socket_that_nobody_listens_on_is_left_over() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("socket");
        let address = SockAddr::unix(&path).unwrap();
        let listener = UnixListener::bind(&path).unwrap();
        assert!(!is_left_over(&path, &address).unwrap(), "it is served");
        // As by a process that is killed: the socket stays.
        drop(listener);
        assert!(is_left_over(&path, &address).unwrap());
        std::fs::remove_file(&path).unwrap();
        std::fs::write(&path, b"a disk").unwrap();
        assert!(!is_left_over(&path, &address).unwrap(), "no socket");
        let link = directory.path().join("link");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        assert!(!is_left_over(&link, &SockAddr::unix(&link).unwrap()).unwrap());
    }
}
