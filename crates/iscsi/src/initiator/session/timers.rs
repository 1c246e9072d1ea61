//! What a session does by the clock: pings over silent connections (RFC 7143, 7.14 and 11.18), and logouts that nobody answers.

use std::time::Duration;

use super::requests::{Kind, Logout};
use super::{ConnectionId, Loss, Outbox, Session};

impl Session {
    /// When [`Self::tick`] has something to do next, if nothing comes before; `None`: nothing.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Duration> {
        let keepalives = self.connections.iter().filter_map(|connection| match connection.keepalive {
            Some((_, begun)) => Some(connection.heard_at.max(begun) + self.settings.nop_timeout),
            None if connection.is_silent => None,
            None => self.settings.nop_interval.map(|interval| connection.heard_at + interval),
        });
        let logouts = self.logouts().map(|(_, begun)| begun + self.settings.logout_timeout);
        keepalives.chain(logouts).min()
    }

    fn logouts(&self) -> impl Iterator<Item = (Logout, Duration)> {
        self.requests.iter().filter_map(|(_, request)| match request.kind {
            Kind::Logout(of) => Some((of, request.begun_at)),
            _ => None,
        })
    }

    /// Looks at the clock.
    pub fn tick(&mut self, now: Duration, outbox: &mut Outbox) {
        for id in self.connections().collect::<Vec<_>>() {
            self.keep_alive(now, id, outbox);
        }
        let overdue: Vec<_> = (self.logouts())
            .filter(|(_, begun)| now >= *begun + self.settings.logout_timeout)
            .map(|(of, _)| of)
            .collect();
        let waited_ms = self.settings.logout_timeout.as_millis() as u64;
        for of in overdue {
            let id = match of {
                Logout::Connection(id) => Some(id),
                Logout::Session => self.connections().next(),
            };
            if let Some(id) = id {
                self.connection_lost(id, Loss::LogoutOverdue(waited_ms), outbox);
            }
        }
    }

    fn keep_alive(&mut self, now: Duration, id: ConnectionId, outbox: &mut Outbox) {
        let (interval, timeout) = (self.settings.nop_interval, self.settings.nop_timeout);
        let Some(connection) = self.connection(id) else { return };
        if let Some((_, begun)) = connection.keepalive {
            // Whatever comes shows that the way is open; an answer may be queued behind much data.
            if now >= connection.heard_at.max(begun) + timeout {
                let silent_ms = (now - connection.heard_at.min(now)).as_millis() as u64;
                self.connection_lost(id, Loss::Silent(silent_ms), outbox);
            }
            return;
        }
        if interval.is_some_and(|interval| now >= connection.heard_at + interval)
            && let Ok(request) = self.ping(now, id, &[], true)
            && let Some(connection) = self.connection_mut(id)
        {
            connection.keepalive = Some((request, now));
        }
    }
}
