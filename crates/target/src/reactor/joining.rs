//! Logins that add a connection to a session, or bring one of its connections again (RFC 7143, 6.3.1, 6.3.4).
//!
//! All connections of a session live on its reactor. A connection that the listener gave to another one moves when the
//! header of its first Login Request has come and names a session: before anything of it is handled.

use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use lunette_iscsi::login::{LoginFailure, LoginOutcome, LoginStatus};
use lunette_iscsi::session::Joining;
use lunette_wire::initiator::LoginRequest;
use lunette_wire::target::Numbers;
use lunette_wire::{Bhs, CmdSn, Tsih};
use rustix::event::epoll;
use tracing::{debug, info};

use super::at_once::AT_ONCE_MAX;
use super::connection::{Disconnect, Stage, Token};
use super::login::View;
use super::receive::Receiver;
use super::session::{Link, TargetSession};
use super::{Message, Reactor};
use crate::registry::{SessionEnd, SessionKey};

/// A connection on its way to the reactor of the session that it wants to join.
#[derive(Debug)]
pub(crate) struct Moved {
    socket: TcpStream,
    peer: SocketAddr,
    /// What was read from it: its first Login Request, as far as that has come.
    bytes: Vec<u8>,
    /// How long ago it was accepted.
    age: Duration,
}

impl Reactor {
    /// The other reactor where a connection belongs whose first Login Request has this header.
    pub(super) fn home_of(&self, index: usize, bhs: &Bhs) -> Option<usize> {
        let connection = self.connections.get(index)?;
        let Stage::Login(login) = &connection.stage else { return None };
        if login.has_begun() || connection.has_moved {
            return None;
        }
        let tsih = LoginRequest::decode(bhs).ok()?.tsih;
        if tsih == Tsih(0) {
            return None;
        }
        self.shared.registry.reactor_of(tsih).filter(|&reactor| reactor != self.index)
    }

    /// Gives a connection to another reactor, with `bytes` that were read from it and not handled.
    pub(super) fn move_to(&mut self, index: usize, reactor: usize, bytes: &[u8]) {
        let Some(connection) = self.connections.try_remove(index) else { return };
        let _ = epoll::delete(&self.epoll, &connection.socket);
        self.load.fetch_sub(1, Ordering::Relaxed);
        debug!(peer = %connection.peer, from = self.index, to = reactor, "connection moves to the session it names");
        let age = connection.age(self.now);
        let moved = Moved { socket: connection.socket, peer: connection.peer, bytes: bytes.to_vec(), age };
        self.shared.reactors[reactor].send(Message::Moved(Box::new(moved)));
    }

    /// Takes a connection from another reactor, and goes on where that one stopped.
    pub(super) fn adopt_moved(&mut self, moved: Moved) {
        self.load.fetch_add(1, Ordering::Relaxed);
        let Some(index) = self.adopt(moved.socket, moved.peer) else { return };
        if let Some(connection) = self.connections.get_mut(index) {
            connection.moved(self.now, moved.age);
        }
        let mut receiver = Receiver::default();
        let outcome = self.parse(index, &mut receiver, &moved.bytes, (AT_ONCE_MAX, false)).map(|_| ());
        self.received(index, receiver, outcome);
    }

    /// ExpCmdSN and MaxCmdSN are the session's, also in the replies to a login that wants to join it (4.2.2.1): an
    /// initiator takes them for news of its other connections. Who gives another name has no such session.
    pub(super) fn numbers_to_join(&self, index: usize, request: &LoginRequest) -> Option<(CmdSn, CmdSn)> {
        if request.tsih == Tsih(0) {
            return None;
        }
        let Stage::Login(login) = &self.connections.get(index)?.stage else { return None };
        let name = login.initiator_name()?.as_str();
        let mut sessions = self.sessions.iter().map(|(_, session)| session);
        let is_named = |of: &&TargetSession| {
            of.place.tsih == request.tsih && of.key.isid == request.isid && of.key.initiator == name
        };
        sessions.find(is_named).map(|session| session.core.command_numbers())
    }

    /// A login that names a session is through: finds out what it finds there.
    pub(super) fn join(
        &mut self,
        index: usize,
        outcome: Box<LoginOutcome>,
        key: &SessionKey,
        view: Option<&View>,
    ) {
        let tsih = outcome.tsih;
        let place = self.shared.registry.find(key, tsih);
        let found = self.sessions.iter().find(|(_, session)| Some(session.place) == place);
        let at = found.map(|(at, _)| at);
        if found.is_some_and(|(_, session)| session.user != outcome.user) {
            let reason = format!("another CHAP user has begun session {}", tsih.0);
            let failure = LoginFailure::new(LoginStatus::AuthenticationFailure, reason);
            return self.fail_login(index, outcome.refuse(&failure), &failure);
        }
        let sees = |session: &TargetSession| {
            session.attachment.as_ref().map(|attachment| Arc::clone(&attachment.view))
        };
        if found.is_some_and(|(_, session)| sees(session) != view.map(|view| Arc::clone(&view.units))) {
            let reason = format!("session {} sees other units than this connection would", tsih.0);
            let failure = LoginFailure::new(LoginStatus::CannotIncludeInSession, reason);
            return self.fail_login(index, outcome.refuse(&failure), &failure);
        }
        let joining = found.map_or(Joining::Over, |(_, session)| session.core.joining(outcome.cid));
        let (status, reason) = match (joining, at) {
            (Joining::Free, Some(at)) => return self.add_connection(index, at, &outcome),
            (Joining::InUse, Some(at)) => return self.reinstate_connection(index, at, outcome),
            (Joining::Full, _) => {
                (LoginStatus::TooManyConnections, format!("session {} has all its connections", tsih.0))
            }
            // Its session has its connections through another portal group (6.3.1).
            (Joining::Over, None) if self.has_session_elsewhere(key, tsih) => (
                LoginStatus::CannotIncludeInSession,
                format!("session {} belongs to another portal group", tsih.0),
            ),
            _ => (LoginStatus::SessionDoesNotExist, format!("this initiator has no session {}", tsih.0)),
        };
        let failure = LoginFailure::new(status, reason);
        self.fail_login(index, outcome.refuse(&failure), &failure);
    }

    /// Whether the session that a login names is the initiator's, and at another port of the target.
    fn has_session_elsewhere(&self, key: &SessionKey, tsih: Tsih) -> bool {
        let target = |key: &SessionKey| match &key.at {
            SessionEnd::Target { name, .. } => Some(name.clone()),
            SessionEnd::Portal(_) => None,
        };
        self.sessions.iter().any(|(_, session)| {
            let own = &session.key;
            session.place.tsih == tsih
                && (&own.initiator, own.isid) == (&key.initiator, key.isid)
                && target(own).is_some()
                && target(own) == target(key)
        })
    }

    fn add_connection(&mut self, index: usize, at: usize, outcome: &LoginOutcome) {
        let Some(token) = self.connections.get(index).map(|connection| connection.token) else { return };
        let Some(session) = self.sessions.get_mut(at) else { return };
        session.core.join(self.now, outcome.cid, outcome.connection, outcome.next_stat_sn);
        session.links.push(Link::new(outcome.cid, token));
        session.retained = None;
        let (exp_cmd_sn, max_cmd_sn) = session.core.command_numbers();
        let numbers = Numbers { exp_cmd_sn, max_cmd_sn, ..outcome.numbers };
        let (tsih, count) = (session.place.tsih, session.links.len());
        let Some(peer) = self.begin_full_feature(index, at, outcome, (tsih, numbers)) else { return };
        let initiator = outcome.initiator_name.as_str();
        info!(%peer, %initiator, cid = outcome.cid.0, connections = count, "joined its session");
    }

    /// Ends the connection that has the CID; the login goes on when the last of its tasks has left its store.
    fn reinstate_connection(&mut self, index: usize, at: usize, outcome: Box<LoginOutcome>) {
        let connections = &mut self.connections;
        let Some(session) = self.sessions.get_mut(at) else { return };
        session
            .joiners
            .retain(|waiting| connections.get(waiting.index).is_some_and(|of| of.token == *waiting));
        let Some(connection) = connections.get_mut(index) else { return };
        let (cid, exp_stat_sn) = (outcome.cid, outcome.exp_stat_sn);
        session.joiners.push(connection.token);
        connection.stage = Stage::AwaitingReinstatement(outcome);
        info!(initiator = %session.initiator, cid = cid.0, "connection is being replaced by a new login");
        let old: Option<Token> = session.unlink(cid);
        session.core.reinstate(cid, exp_stat_sn, &mut self.outbox);
        if let Some(old) = old.filter(|&old| self.connection(old).is_some()) {
            self.disconnect(old.index, &Disconnect::Reinstated);
        }
        self.run_session(at);
    }
}
