//! The registration of the targets with iSNS servers (RFC 4171): one thread for each server, which lets
//! `lunette_isns::Client` say what to do.
//!
//! Nothing waits for it: a server that cannot be reached is tried again, and the targets are served all the same. Nor does
//! anything that a server says change who may log in, or to what.

mod listeners;
mod talk;

use std::io::{self, Read, Write};
use std::net::{SocketAddr, SocketAddrV6, TcpStream, ToSocketAddrs};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use lunette_isns::{Message, Node, Reader, Registration, Step, Transport};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tracing::error;

use crate::config::{DiscoveryScope, IsnsNotifications, IsnsServer};
use crate::mailbox::Mailbox;
use crate::portals::own_addresses;
use crate::server::Shared;
use listeners::Listeners;
use talk::Talk;

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
    index: usize,
    talk: Talk<'a>,
    connection: Option<(TcpStream, Reader)>,
    listeners: Listeners,
}

impl<'a> Registrar<'a> {
    fn new(shared: &'a Shared, server: &'a IsnsServer, index: usize) -> Self {
        let transport = match shared.config.isns.notifications {
            IsnsNotifications::Udp => Transport::Udp,
            IsnsNotifications::Tcp | IsnsNotifications::None => Transport::Tcp,
        };
        let (talk, listeners) = (Talk::new(server), Listeners::new(transport));
        Self { shared, server, index, talk, connection: None, listeners }
    }

    fn run(mut self) {
        loop {
            let now = self.talk.now();
            let outcome = match self.talk.client.next(now) {
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
                self.talk.complain(&error.to_string());
                self.connection = None;
                self.talk.client.failed(self.talk.now());
            }
        }
    }

    fn connect(&mut self) -> io::Result<()> {
        let mut failure = io::Error::other("the name of the server has no address");
        let addresses: Vec<SocketAddr> = self.server.address().to_socket_addrs()?.collect();
        for address in &addresses {
            match TcpStream::connect_timeout(address, CONNECT_LIMIT) {
                Ok(socket) => {
                    socket.set_write_timeout(Some(CONNECT_LIMIT))?;
                    let local = socket.local_addr()?;
                    self.talk.meet(&addresses, address.ip(), local.ip());
                    let registration = self.registration(local);
                    self.connection = Some((socket, Reader::default()));
                    self.talk.client.connected(registration, self.talk.now());
                    return Ok(());
                }
                Err(error) => failure = error,
            }
        }
        Err(failure)
    }

    /// What is told to a server that was reached from `local`, with the ports that are listened on from now on.
    fn registration(&mut self, local: SocketAddr) -> Registration {
        let mut registration = registration(self.shared, local);
        let config = &self.shared.config.isns;
        let mut addresses = Vec::new();
        if config.notifications != IsnsNotifications::None {
            let portals = registration.nodes.iter().flat_map(|node| &node.portals);
            addresses
                .extend(portals.map(|(portal, _)| listening_at(*portal, local, config.port_of(self.index))));
            addresses.sort_unstable();
            addresses.dedup();
        }
        for (address, error) in self.listeners.listen(&addresses, registration.nodes.len()) {
            self.talk.deaf(address, &error);
        }
        registration.transport = self.listeners.transport();
        registration.listeners = self.listeners.addresses();
        registration
    }

    fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.connection.as_mut().map_or(Ok(()), |(socket, _)| socket.write_all(bytes))
    }

    /// Waits for a message, for the end of the server, or for the time to pass.
    fn wait(&mut self, time: Duration) -> io::Result<()> {
        let socket = self.connection.as_ref().map(|(socket, _)| socket);
        let stop = &self.shared.isns_stops[self.index];
        let stop_fd = stop.as_fd();
        let mut fds = vec![PollFd::new(&stop_fd, PollFlags::IN)];
        fds.extend(socket.map(|socket| PollFd::new(socket, PollFlags::IN)));
        fds.extend(self.listeners.poll_fds());
        // A little longer, so that the moment has come when the wait is over.
        let limit = Timespec::try_from(time + Duration::from_millis(1)).map_err(io::Error::other)?;
        match poll(&mut fds, Some(&limit)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let is_ready: Vec<bool> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
        let (own, at_listeners) = is_ready.split_at(1 + usize::from(socket.is_some()));
        if own[0] {
            stop.take();
            self.talk.client.leave();
        }
        self.listeners.receive(at_listeners, &mut self.talk);
        if own.get(1) == Some(&true) { self.receive() } else { Ok(()) }
    }

    fn receive(&mut self) -> io::Result<()> {
        let now = self.talk.now();
        let Some((socket, reader)) = &mut self.connection else { return Ok(()) };
        let mut bytes = [0; 4096];
        match socket.read(&mut bytes)? {
            0 => return Err(io::Error::other("the server closed the connection")),
            count => reader.extend(&bytes[..count]),
        }
        while let Some(message) = reader.message().map_err(io::Error::other)? {
            match message {
                Message::Response(response) => {
                    let news = self.talk.client.received(&response, now);
                    news.into_iter().for_each(|news| self.talk.tell(news));
                }
                Message::Request(request) => {
                    socket.write_all(&self.talk.answer(&request).unwrap_or_default())?;
                }
            }
        }
        Ok(())
    }
}

/// Where to listen for a portal that was told without its interface; that of a link-local one is the one to the server.
fn listening_at(portal: SocketAddr, local: SocketAddr, port: u16) -> SocketAddr {
    match (portal, local) {
        (SocketAddr::V6(portal), SocketAddr::V6(local)) if portal.ip().is_unicast_link_local() => {
            SocketAddrV6::new(*portal.ip(), port, 0, local.scope_id()).into()
        }
        _ => SocketAddr::new(portal.ip(), port),
    }
}

/// What is told to a server that was reached from `local`: the portals that others can reach from there.
fn registration(shared: &Shared, local: SocketAddr) -> Registration {
    let own = own_addresses().unwrap_or_default();
    let node = |target: &Arc<crate::units::ServedTarget>| Node {
        name: target.name.clone(),
        alias: target.alias.clone(),
        portals: shared.portals.told(
            (local, DiscoveryScope::All),
            |_, group| target.groups.contains(&group),
            || own.clone(),
        ),
    };
    let config = &shared.config.isns;
    let host = || rustix::system::uname().nodename().to_string_lossy().into_owned();
    let entity = config.entity.clone().unwrap_or_else(host);
    let nodes = shared.targets.iter().map(node).filter(|node| !node.portals.is_empty()).collect();
    Registration { entity, period_s: config.period_s, nodes, ..Registration::default() }
}
