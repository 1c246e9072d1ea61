//! The registration of the targets with iSNS servers (RFC 4171): one thread for each server, which lets
//! `lunette_isns::Client` say what to do.
//!
//! Nothing waits for it: a server that cannot be reached is tried again, and the targets are served all the same.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use lunette_isns::{Client, News, Node, Reader, Registration, Step};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tracing::{debug, error, info, warn};

use crate::config::IsnsServer;
use crate::mailbox::Mailbox;
use crate::portals::own_addresses;
use crate::server::Shared;

/// How long a connection may take to come up, or to take a request. A drain waits as long at most.
const CONNECT_LIMIT: Duration = Duration::from_secs(3);

/// The threads; dropping this has them take the registration back, and waits for them.
#[derive(Debug)]
pub(crate) struct Registrars {
    stops: Arc<[Mailbox<()>]>,
    threads: Vec<JoinHandle<()>>,
}

impl Registrars {
    /// Starts a thread for each server of the configuration.
    ///
    /// # Errors
    /// When the system refuses a thread or a descriptor. Those that did start end with `shared`'s next [`leave`].
    pub(crate) fn spawn(shared: &Arc<Shared>) -> io::Result<Self> {
        let mut registrars = Self { stops: Arc::clone(&shared.isns_stops), threads: Vec::new() };
        for (index, server) in shared.config.isns.servers.iter().enumerate() {
            let (shared, server) = (Arc::clone(shared), server.clone());
            let name = format!("isns-{index}");
            let run = move || Registrar::new(&shared, &server, index).run();
            registrars.threads.push(std::thread::Builder::new().name(name).spawn(run)?);
        }
        Ok(registrars)
    }
}

impl Drop for Registrars {
    fn drop(&mut self) {
        leave(&self.stops);
        for thread in self.threads.drain(..) {
            if thread.join().is_err() {
                error!("a thread that registers with an iSNS server panicked");
            }
        }
    }
}

/// Lets the targets be taken out of all servers. Returns at once.
pub(crate) fn leave(stops: &[Mailbox<()>]) {
    stops.iter().for_each(|stop| stop.send(()));
}

/// One thread's state.
struct Registrar<'a> {
    shared: &'a Shared,
    server: &'a IsnsServer,
    stop: &'a Mailbox<()>,
    started: Instant,
    client: Client,
    connection: Option<(TcpStream, Reader)>,
    /// The last failure was told; the next ones are the same story.
    has_complained: bool,
}

impl<'a> Registrar<'a> {
    fn new(shared: &'a Shared, server: &'a IsnsServer, index: usize) -> Self {
        Self {
            shared,
            server,
            stop: &shared.isns_stops[index],
            started: Instant::now(),
            client: Client::default(),
            connection: None,
            has_complained: false,
        }
    }

    fn now(&self) -> Duration {
        self.started.elapsed()
    }

    fn run(mut self) {
        loop {
            let now = self.now();
            let outcome = match self.client.next(now) {
                Step::End => return,
                Step::Connect => self.connect(),
                Step::Send(bytes) => self.send(&bytes),
                Step::Wait(until) => self.wait(until.saturating_sub(now)),
                Step::Disconnect => {
                    self.connection = None;
                    Ok(())
                }
            };
            if let Err(error) = outcome {
                self.complain(&error.to_string());
                self.connection = None;
                self.client.failed(self.now());
            }
        }
    }

    fn complain(&mut self, reason: &str) {
        if !std::mem::replace(&mut self.has_complained, true) {
            warn!(server = %self.server, reason, "cannot register with the iSNS server; trying again from time to time");
        }
    }

    fn connect(&mut self) -> io::Result<()> {
        let mut failure = io::Error::other("the name of the server has no address");
        for address in self.server.address().to_socket_addrs()? {
            match TcpStream::connect_timeout(&address, CONNECT_LIMIT) {
                Ok(socket) => {
                    socket.set_write_timeout(Some(CONNECT_LIMIT))?;
                    let registration = registration(self.shared, socket.local_addr()?);
                    self.connection = Some((socket, Reader::default()));
                    self.client.connected(registration, self.now());
                    return Ok(());
                }
                Err(error) => failure = error,
            }
        }
        Err(failure)
    }

    fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.connection.as_mut().map_or(Ok(()), |(socket, _)| socket.write_all(bytes))
    }

    /// Waits for an answer, for the end of the server, or for the time to pass.
    fn wait(&mut self, time: Duration) -> io::Result<()> {
        let socket = self.connection.as_ref().map(|(socket, _)| socket);
        let stop = self.stop.as_fd();
        let mut fds = vec![PollFd::new(&stop, PollFlags::IN)];
        fds.extend(socket.map(|socket| PollFd::new(socket, PollFlags::IN)));
        // A little longer, so that the moment has come when the wait is over.
        let limit = Timespec::try_from(time + Duration::from_millis(1)).map_err(io::Error::other)?;
        match poll(&mut fds, Some(&limit)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let is_ready: Vec<bool> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
        if is_ready[0] {
            self.stop.take();
            self.client.leave();
        }
        if is_ready.get(1) == Some(&true) { self.receive() } else { Ok(()) }
    }

    fn receive(&mut self) -> io::Result<()> {
        let now = self.now();
        let Some((socket, reader)) = &mut self.connection else { return Ok(()) };
        let mut bytes = [0; 4096];
        match socket.read(&mut bytes)? {
            0 => return Err(io::Error::other("the server closed the connection")),
            count => reader.extend(&bytes[..count]),
        }
        while let Some(response) = reader.response().map_err(io::Error::other)? {
            match self.client.received(&response, now) {
                News::None => {}
                News::Registered => {
                    self.has_complained = false;
                    info!(server = %self.server, "registered with the iSNS server");
                }
                News::Forgotten => debug!(server = %self.server, "registering again with the iSNS server"),
                News::Refused(status) => {
                    error!(server = %self.server, status, "the iSNS server refuses the registration");
                }
                News::Deregistered => info!(server = %self.server, "taken out of the iSNS server"),
            }
        }
        Ok(())
    }
}

/// What is told to a server that was reached from `local`: the portals that others can reach from there.
fn registration(shared: &Shared, local: SocketAddr) -> Registration {
    let own = own_addresses().unwrap_or_default();
    let node = |target: &Arc<crate::units::ServedTarget>| Node {
        name: target.name.clone(),
        alias: target.alias.clone(),
        portals: shared.portals.told(local, |group| target.groups.contains(&group), || own.clone()),
    };
    let config = &shared.config.isns;
    let host = || rustix::system::uname().nodename().to_string_lossy().into_owned();
    let entity = config.entity.clone().unwrap_or_else(host);
    let nodes = shared.targets.iter().map(node).filter(|node| !node.portals.is_empty());
    Registration { entity, period_s: config.period_s, nodes: nodes.collect() }
}
