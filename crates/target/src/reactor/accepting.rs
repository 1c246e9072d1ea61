//! Connections as they come to a reactor and as they go.
//!
//! What happens on them in between is in `receive`, `transmit` and `login`.

use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::Ordering;
use std::time::Duration;

use rustix::event::epoll;
use rustix::net::sockopt::set_socket_linger;
use tracing::{debug, warn};

use super::Reactor;
use super::connection::{Connection, Disconnect, Stage, Token};

impl Reactor {
    /// Takes a connection that the listener accepted; answers where it is kept.
    pub(super) fn adopt(&mut self, socket: TcpStream, peer: SocketAddr) -> Option<usize> {
        if self.draining {
            self.load.fetch_sub(1, Ordering::Relaxed);
            return None;
        }
        self.make_room_for_login();
        self.next_generation = self.next_generation.wrapping_add(1);
        let place = self.connections.vacant_entry();
        let token = Token { index: place.key(), generation: self.next_generation };
        let registered =
            Connection::new(token, socket, peer, &self.shared, self.now).and_then(|connection| {
                let data = epoll::EventData::new_u64(token.to_u64());
                epoll::add(&self.epoll, &connection.socket, data, epoll::EventFlags::IN)?;
                Ok(connection)
            });
        match registered {
            Ok(connection) => {
                place.insert(connection);
                self.half_open.push_back(token);
                debug!(%peer, reactor = self.index, "connection accepted");
                Some(token.index)
            }
            Err(error) => {
                self.load.fetch_sub(1, Ordering::Relaxed);
                warn!(%peer, %error, "connection given up before its login");
                None
            }
        }
    }

    /// Closes the oldest connection without a login when there are too many: a login takes milliseconds, so the
    /// oldest is the least likely to be one.
    pub(super) fn make_room_for_login(&mut self) {
        let limit = (self.shared.config.limits.half_open_max / self.shared.reactors.len()).max(1);
        self.half_open.retain(|token| {
            self.connections
                .get(token.index)
                .is_some_and(|connection| connection.token == *token && !connection.has_logged_in)
        });
        while self.half_open.len() >= limit {
            let Some(oldest) = self.half_open.pop_front() else { return };
            self.disconnect(
                oldest.index,
                &Disconnect::HalfOpenLimit(self.shared.config.limits.half_open_max),
            );
        }
    }

    pub(super) fn connection(&mut self, token: Token) -> Option<&mut Connection> {
        self.connections.get_mut(token.index).filter(|connection| connection.token == token)
    }

    /// Connections that are closing but whose peer does not take the last bytes.
    pub(super) fn close_stalled(&mut self) {
        let now = self.now;
        let stalled: Vec<usize> = self
            .connections
            .iter_mut()
            .filter_map(|(index, connection)| connection.is_stalled(now).then_some(index))
            .collect();
        for index in stalled {
            // Who has all answers and does not close has told nothing new.
            let reason = self.connections.get_mut(index).and_then(Connection::take_reason);
            self.disconnect(index, &reason.unwrap_or(Disconnect::Closed));
        }
    }

    /// Ends a connection. The session decides what that means for it.
    pub(super) fn disconnect(&mut self, index: usize, reason: &Disconnect) {
        let Some(connection) = self.connections.try_remove(index) else { return };
        if !connection.is_lingering() {
            reason.log(&connection);
        }
        // Closing the descriptor would do it too, but only once no duplicate is left.
        let _ = epoll::delete(&self.epoll, &connection.socket);
        self.load.fetch_sub(1, Ordering::Relaxed);
        let leaves_reads = || connection.reader.is_some() && connection.transmitter.has_unsent(None);
        if matches!(reason, Disconnect::Fenced | Disconnect::NotAdmitted) || leaves_reads() {
            // What the socket has is thrown away: it may be the page cache's. If that fails it goes out.
            let _ = set_socket_linger(&connection.socket, Some(Duration::ZERO));
        }
        if let Stage::FullFeature { session, cid } = connection.stage
            && let Some(found) = self.sessions.get_mut(session)
            && found.link(cid).is_some_and(|link| link.token == connection.token)
        {
            found.unlink(cid);
            found.core.connection_lost(cid, reason.is_recoverable(), &mut self.outbox);
            self.run_session(session);
            self.bound_retained(session);
        }
    }
}
