//! One connection of an engine: socket, receiver, transmitter, and how they are driven.

use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use lunette_iscsi::initiator::session::{ConnectionId, LoggedIn, Logout, Loss, RoundTrip};
use lunette_iscsi::parameters::ConnectionParameters;
use lunette_tcp::Facts;
use lunette_wire::Cid;
use rustix::event::epoll;

use super::receive::{Context, Failure, Receiver};
use super::transmit::Transmitter;
use super::{ConnectionInfo, Engine, EngineEvent, READS_MAX, TOKEN_WAKE};
use crate::connect::Connected;
use crate::{Error, Portal};

/// What waits in front of a socket at most, so that PDUs are made as late as they can be: what a socket takes at once.
const SEND_AHEAD_BYTES: usize = 512 << 10;

/// Of several connections of a session, a socket is full when so many bytes have not been sent by TCP: the congestion window of a
/// slow one would else be waited for with megabytes in front of it, and by all commands behind (docs/decisions/0044). 100
/// microseconds at 5 Gbit/s.
const UNSENT_BYTES_MAX: u32 = 64 << 10;

/// How long a full socket is left alone: a tenth of what a line of 50 ms holds has gone by then.
const REFILL_INTERVAL: Duration = Duration::from_millis(5);
/// How long that goes on while it takes nothing.
const REFILL_LIMIT: Duration = Duration::from_millis(250);

#[derive(Debug)]
pub(super) struct Link {
    pub(super) id: ConnectionId,
    token: u64,
    cid: Cid,
    socket: TcpStream,
    portal: Portal,
    address: Option<SocketAddr>,
    parameters: ConnectionParameters,
    receiver: Receiver,
    transmitter: Transmitter,
    /// The socket took no more when it was last tried; epoll tells when it has much room again.
    is_blocked: bool,
    /// When the socket took something last.
    took_at: Duration,
    /// What had come and gone when that was last looked at.
    moved: Option<Facts>,
    /// The target wants this connection to be logged out by then.
    pub(super) leave_by: Option<Duration>,
}

impl Link {
    pub(super) fn info(&self, round_trip: Option<RoundTrip>) -> ConnectionInfo {
        let info = ConnectionInfo {
            cid: self.cid,
            portal: self.portal.clone(),
            address: self.address,
            parameters: self.parameters,
            round_trip: None,
            round_trip_variation: None,
        };
        info.measured(round_trip)
    }

    /// [`moved_ago`] since this was last asked; nothing where the kernel does not tell.
    fn moved_ago(&mut self) -> [Option<Duration>; 2] {
        let now = Facts::of(&self.socket);
        let before = std::mem::replace(&mut self.moved, now);
        before.zip(now).map_or([None; 2], |(before, now)| moved_ago(before, now))
    }

    /// Has the system forget what it still has to send, and reset the connection when it is closed.
    fn silence(&self) {
        if let Err(error) = socket2::SockRef::from(&self.socket).set_linger(Some(Duration::ZERO)) {
            tracing::warn!(%error, "a lost connection is closed in the usual way");
        }
    }
}

/// How long ago bytes last came, and were last acknowledged that were not the last ones: those may be acknowledged by a machine whose
/// target is dead. Who had some on the way before waits for an answer that is behind them, though by now nothing may be.
fn moved_ago(before: Facts, now: Facts) -> [Option<Duration>; 2] {
    let has_come = now.received_bytes > before.received_bytes;
    let had_more = before.has_unacknowledged || now.has_unacknowledged;
    let has_gone = had_more && now.acknowledged_bytes > before.acknowledged_bytes;
    [has_come.then_some(now.received_ago), has_gone.then_some(now.acknowledged_ago)]
}

impl Engine {
    /// The target takes data segments of another length on a connection (13.12).
    pub(super) fn segment_length_declared(&mut self, id: ConnectionId, bytes: u32) {
        if let Some(link) = self.links.iter_mut().find(|link| link.id == id) {
            link.parameters.max_send_data_segment_length = bytes;
        }
    }

    /// Gives a connection that has logged in to the session.
    pub(super) fn add_link(&mut self, connected: Connected) -> Result<(), Error> {
        let system = |what| move |source| Error::System { what, source };
        connected.stream.set_nonblocking(true).map_err(system("a nonblocking socket"))?;
        if self.options.connections.min(self.session.parameters().max_connections) > 1 {
            let socket = socket2::SockRef::from(&connected.stream);
            // Where that is refused, connections have more equal shares than they should.
            let _ = socket.set_tcp_notsent_lowat(UNSENT_BYTES_MAX);
        }
        let joined = self.session.add_connection(self.now, &LoggedIn::from(&connected.outcome));
        let id = joined.map_err(|error| Error::Options(error.to_string()))?;
        self.tokens += 1;
        let data = epoll::EventData::new_u64(self.tokens);
        let added = epoll::add(&self.epoll, &connected.stream, data, epoll::EventFlags::IN);
        let parameters = connected.outcome.connection;
        let moved = Facts::of(&connected.stream);
        self.links.push(Link {
            id,
            token: self.tokens,
            cid: connected.outcome.cid,
            socket: connected.stream,
            portal: connected.portal,
            address: connected.address,
            parameters,
            receiver: Receiver::new(id, parameters.digests, parameters.max_recv_data_segment_length),
            transmitter: Transmitter::default(),
            is_blocked: false,
            took_at: Duration::ZERO,
            moved,
            leave_by: None,
        });
        added.map_err(|error| Error::System { what: "an epoll registration", source: error.into() })
    }

    /// Closes a connection and answers its name; what waited to be sent on it is forgotten.
    pub(super) fn close_link(&mut self, id: ConnectionId) -> Option<Cid> {
        let at = self.links.iter().position(|link| link.id == id)?;
        let mut link = self.links.swap_remove(at);
        link.transmitter.clear(self.last_time(), &mut self.table);
        Some(link.cid)
    }

    pub(super) fn close_all_links(&mut self) {
        let now = self.last_time();
        for mut link in std::mem::take(&mut self.links) {
            link.transmitter.clear(now, &mut self.table);
        }
    }

    /// Closes a connection that has failed, as [`Self::close_link`], and has nothing more leave on it: what the system still has
    /// of it would otherwise be sent whenever the network is there again.
    pub(super) fn reset_link(&mut self, id: ConnectionId) -> Option<Cid> {
        self.links.iter().filter(|link| link.id == id).for_each(Link::silence);
        self.close_link(id)
    }

    /// The same of all connections, which stay until they are closed.
    pub(super) fn silence_all_links(&self) {
        self.links.iter().for_each(Link::silence);
    }

    /// Has the session know which connections are slow, and not dead.
    pub(super) fn look_for_progress(&mut self) {
        for link in &mut self.links {
            let [received, acknowledged] =
                link.moved_ago().map(|ago| ago.map(|ago| self.now.saturating_sub(ago)));
            self.session.saw_progress(link.id, received, acknowledged);
        }
    }

    /// Sends on all connections what can be sent. A full socket is tried again in each turn (see [`Engine::refill_at`]).
    pub(super) fn send(&mut self) {
        loop {
            for at in 0..self.links.len() {
                if let Some(link) = self.links.get(at) {
                    let id = link.id;
                    if let Err(error) = self.send_on(at) {
                        self.broke(id, &Failure::Socket(error));
                    }
                }
            }
            // Commands that waited have found a connection meanwhile.
            let has_work = |link: &Link| !link.is_blocked && self.session.has_work(link.id);
            if !self.links.iter().any(has_work) {
                return;
            }
        }
    }

    /// When full sockets are to be tried again. Epoll calls one writable only once a third of it is free, and by then it may have
    /// nothing left that TCP has not sent. TCP takes that for an application without data, and BBR (Cardwell and others, 2016)
    /// does not end its beginning then, in which it sends at three times the line's rate.
    pub(super) fn refill_at(&self) -> Option<Duration> {
        let is_moving = |link: &Link| link.is_blocked && self.now < link.took_at + REFILL_LIMIT;
        self.links.iter().any(is_moving).then(|| self.now + REFILL_INTERVAL)
    }

    fn send_on(&mut self, at: usize) -> std::io::Result<()> {
        loop {
            let link = &mut self.links[at];
            let room = SEND_AHEAD_BYTES.saturating_sub(link.transmitter.queued_bytes());
            self.session.transmit(self.now, link.id, room, &mut self.outbox);
            for pdu in self.outbox.pdus.drain(..) {
                link.transmitter.push(pdu, link.parameters.digests, &mut self.table);
            }
            if link.transmitter.queued_bytes() == 0 {
                self.session.set_full(link.id, false);
                return self.watch(at, false).map_err(Into::into);
            }
            let now = self.start.elapsed();
            let queued_bytes = link.transmitter.queued_bytes();
            let is_everything = link.transmitter.send(&link.socket, now, &mut self.table)?;
            if link.transmitter.queued_bytes() < queued_bytes {
                link.took_at = now;
            }
            if !is_everything {
                self.session.set_full(link.id, true);
                return self.watch(at, true).map_err(Into::into);
            }
        }
    }

    /// Has epoll tell when a socket takes more, or not any longer.
    fn watch(&mut self, at: usize, is_blocked: bool) -> rustix::io::Result<()> {
        let link = &mut self.links[at];
        if link.is_blocked == is_blocked {
            return Ok(());
        }
        link.is_blocked = is_blocked;
        let out = if is_blocked { epoll::EventFlags::OUT } else { epoll::EventFlags::empty() };
        epoll::modify(
            &self.epoll,
            &link.socket,
            epoll::EventData::new_u64(link.token),
            epoll::EventFlags::IN | out,
        )
    }

    /// Handles all that epoll has told.
    pub(super) fn receive(&mut self) {
        for event in 0..self.ready.len() {
            let (token, flags) = self.ready[event];
            if token == TOKEN_WAKE {
                self.waker.clear();
                continue;
            }
            let Some(at) = self.links.iter().position(|link| link.token == token) else { continue };
            if flags.contains(epoll::EventFlags::OUT) && self.watch(at, false).is_err() {
                continue;
            }
            if flags.intersects(epoll::EventFlags::IN | epoll::EventFlags::HUP | epoll::EventFlags::ERR) {
                self.read_from(token);
            }
            self.settle();
        }
    }

    /// Reads what has come on a connection. What ends by one read ends before the next one: it was complete then, and not before.
    fn read_from(&mut self, token: u64) {
        for _ in 0..READS_MAX {
            let came_at = self.last_time();
            // What came may have closed it.
            let Some(link) = self.links.iter_mut().find(|link| link.token == token) else { return };
            let id = link.id;
            let mut context = Context {
                now: self.now,
                came_at,
                session: &mut self.session,
                table: &mut self.table,
                outbox: &mut self.outbox,
            };
            let read = link.receiver.read(&link.socket, &mut self.scratch, &mut context);
            self.read_at = self.start.elapsed();
            match read {
                Ok(true) => self.settle(),
                Ok(false) => return,
                Err(failure) => return self.broke(id, &failure),
            }
        }
    }

    /// A connection is of no use any more.
    fn broke(&mut self, id: ConnectionId, failure: &Failure) {
        let portal = self.links.iter().find(|link| link.id == id).map(|link| link.portal.to_string());
        let portal = portal.unwrap_or_default();
        self.detail = match failure {
            Failure::Closed => Some(format!("{portal} closed the connection")),
            Failure::Socket(error) => Some(format!("the connection to {portal} broke: {error}")),
            Failure::Told => None,
        };
        // Where the session knows better, it has said so already and this says nothing more.
        self.session.connection_lost(id, Loss::Transport, &mut self.outbox);
        self.settle();
        self.detail = None;
    }

    /// The target wants a connection to be logged out (11.9.1, event 1).
    pub(super) fn asked_to_leave(&mut self, id: ConnectionId, within_s: u16) {
        // Half of the time is for what is under way; the logout needs some, too.
        let by = self.now + Duration::from_millis(u64::from(within_s) * 500);
        if let Some(link) = self.links.iter_mut().find(|link| link.id == id) {
            link.leave_by = Some(by);
            let portal = link.portal.clone();
            self.events.push_back(EngineEvent::LogoutRequested { portal, within_s });
        }
    }

    /// Logs out connections that the target wants to be rid of, once nothing is under way on them or the time is up. A
    /// session that loses its last one in this way goes on in a new one.
    pub(super) fn leave_when_asked(&mut self) {
        let now = self.now;
        let session = &self.session;
        let is_due =
            |link: &&Link| link.leave_by.is_some_and(|by| now >= by || session.tasks_on(link.id) == 0);
        let Some(link) = self.links.iter().find(is_due) else { return };
        let (id, is_last) = (link.id, self.links.len() == 1);
        self.is_moving |= is_last && !self.is_closing;
        let what = if is_last { Logout::Session } else { Logout::Connection(id) };
        // Where that cannot be asked for, the target closes it when its time is up.
        let _ = self.session.logout(now, what, &mut self.outbox);
        if let Some(link) = self.links.iter_mut().find(|link| link.id == id) {
            link.leave_by = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AGO: Duration = Duration::from_millis(30);

    fn facts(received_bytes: u64, acknowledged_bytes: u64, has_unacknowledged: bool) -> Facts {
        Facts {
            acknowledged_bytes,
            received_bytes,
            received_ago: AGO * 2,
            acknowledged_ago: AGO,
            has_unacknowledged,
            round_trip: None,
        }
    }

    #[test]
    fn what_was_on_its_way_counts_up_to_its_last_byte_and_no_further() {
        let [full, all_gone] = [facts(0, 100, true), facts(0, 500, false)];
        assert_eq!(moved_ago(full, facts(0, 200, true)), [None, Some(AGO)]);
        assert_eq!(moved_ago(full, full), [None; 2]);
        // The answer is behind what a slow line had yet to carry.
        assert_eq!(moved_ago(full, all_gone), [None, Some(AGO)]);
        assert_eq!(moved_ago(all_gone, all_gone), [None; 2]);
        // A ping, or a command, that a machine took whose target is dead.
        assert_eq!(moved_ago(all_gone, facts(0, 548, false)), [None; 2]);
        assert_eq!(moved_ago(all_gone, facts(1, 500, false)), [Some(AGO * 2), None]);
    }
}
