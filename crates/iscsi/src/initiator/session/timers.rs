//! What a session does by the clock: pings over silent connections (RFC 7143, 7.14 and 11.18), and logouts that nobody answers.

use std::time::Duration;

use super::requests::Kind;
use super::{ConnectionId, Logout, Loss, Outbox, REQUESTS_MAX, RequestError, Session};

/// How many times its time limit the answer to a function is waited for at most while data comes before it.
const DATA_PATIENCE: u32 = 10;
/// The same of the answer to a ping while bytes are acknowledged that were sent before it: as much as a socket holds has gone by then over
/// a line of 0.7 Mb/s, with the default of 5 s.
const ACKNOWLEDGED_PATIENCE: u32 = 10;

impl Session {
    /// When [`Self::tick`] has something to do next, if nothing comes before; `None`: nothing.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Duration> {
        let keepalives = self.connections.iter().filter_map(|connection| match connection.keepalive {
            Some((_, begun)) => {
                Some(connection.heard_at.max(begun).saturating_add(self.settings.nop_timeout))
            }
            None if connection.is_silent => None,
            // Without room for a ping the silence is all there is to go by.
            None if self.requests.len() >= REQUESTS_MAX => {
                let interval = self.nop_interval(connection.id);
                interval.map(|interval| {
                    connection.heard_at.saturating_add(interval).saturating_add(self.settings.nop_timeout)
                })
            }
            None => {
                let interval = self.nop_interval(connection.id);
                interval.map(|interval| connection.heard_at.saturating_add(interval))
            }
        });
        // What has no time yet gets one by the next look at the clock.
        let missing = self.connections.iter().filter_map(|connection| {
            let asks = self.lacks_something(connection.id);
            asks.then(|| connection.ask_at.unwrap_or(Duration::ZERO))
        });
        let lost = self.lost.iter().filter_map(|lost| match lost.period {
            _ if lost.is_removed && self.can_remove(lost) => Some(Duration::ZERO),
            Some((from, _)) if self.can_remove(lost) => Some(from),
            Some((_, until)) if !lost.is_asked => Some(until),
            Some(_) => None,
            None => Some(Duration::ZERO),
        });
        let logouts = self.logouts().map(|(_, begun)| self.logout_due(begun));
        let functions = self.functions().map(|(id, sent)| self.function_due(id, sent));
        let doubted = self.doubted.iter().map(|(_, until)| *until);
        keepalives.chain(doubted).chain(missing).chain(lost).chain(logouts).chain(functions).min()
    }

    fn logouts(&self) -> impl Iterator<Item = (Logout, Duration)> {
        self.requests.iter().filter_map(|(_, request)| match request.kind {
            Kind::Logout(of) => Some((of, request.begun_at)),
            _ => None,
        })
    }

    /// Task management functions, and what recovers connections: when each left, and on which connection.
    fn functions(&self) -> impl Iterator<Item = (ConnectionId, Duration)> {
        self.requests.iter().filter_map(|(_, request)| match request.kind {
            Kind::Management(_) | Kind::Removal(_) | Kind::Reassign(_) => {
                request.sent_at.map(|sent| (request.connection, sent))
            }
            Kind::Ping { .. } | Kind::Text { .. } | Kind::Logout(_) => None,
        })
    }

    const fn logout_due(&self, begun: Duration) -> Duration {
        begun.saturating_add(self.settings.logout_timeout)
    }

    /// When the answer to a function is late. Data that comes may be before it, but not without end.
    pub(super) fn function_due(&self, id: ConnectionId, sent: Duration) -> Duration {
        let timeout = self.settings.function_timeout;
        let data_at = self.connection(id).map_or(sent, |connection| connection.data_at.max(sent));
        let at_most = sent.saturating_add(timeout.saturating_mul(DATA_PATIENCE));
        data_at.saturating_add(timeout).min(at_most)
    }

    /// Looks at the clock.
    pub fn tick(&mut self, now: Duration, outbox: &mut Outbox) {
        for id in self.connections().collect::<Vec<_>>() {
            self.keep_alive(now, id, outbox);
            if self.recovers() {
                self.ask_again(now, id);
            }
        }
        self.tick_lost(now, outbox);
        self.tick_doubted(now, outbox);
        let overdue: Vec<_> =
            (self.logouts()).filter(|(_, begun)| now >= self.logout_due(*begun)).map(|(of, _)| of).collect();
        let unanswered: Vec<_> =
            (self.functions()).filter(|(id, sent)| now >= self.function_due(*id, *sent)).collect();
        for (id, sent) in unanswered {
            let waited_ms = now.saturating_sub(sent).as_millis() as u64;
            self.connection_lost(id, Loss::FunctionOverdue(waited_ms), outbox);
        }
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

    /// After how much silence a connection is pinged. Where recovery is possible, sooner while tasks wait: the answer
    /// shows which statuses and commands were lost (7.1.4.2).
    fn nop_interval(&self, id: ConnectionId) -> Option<Duration> {
        let usual = self.settings.nop_interval;
        let waits = self.recovers() && self.connection(id).is_some_and(|connection| connection.load > 0);
        if !waits {
            return usual;
        }
        let sooner = self.settings.recovery_interval;
        Some(usual.map_or(sooner, |usual| usual.min(sooner)))
    }

    /// Notes when bytes last came on a connection, though no whole PDU may have, and when some were acknowledged with more behind them:
    /// on a slow line a long PDU, or the way of a ping through what is queued before it, takes longer than a dead target is given.
    ///
    /// Whoever acknowledges need not be the target; so that counts while an answer to a ping is waited for, and not without end.
    pub fn saw_progress(
        &mut self,
        id: ConnectionId,
        received_at: Option<Duration>,
        acknowledged_at: Option<Duration>,
    ) {
        let patience = self.settings.nop_timeout.saturating_mul(ACKNOWLEDGED_PATIENCE);
        let Some(connection) = self.connection_mut(id) else { return };
        connection.heard_at = connection.heard_at.max(received_at.unwrap_or_default());
        if let (Some((_, begun)), Some(at)) = (connection.keepalive, acknowledged_at) {
            connection.heard_at = connection.heard_at.max(at.min(begun.saturating_add(patience)));
        }
    }

    fn keep_alive(&mut self, now: Duration, id: ConnectionId, outbox: &mut Outbox) {
        let (interval, timeout) = (self.nop_interval(id), self.settings.nop_timeout);
        let Some(connection) = self.connection(id) else { return };
        if let Some((_, begun)) = connection.keepalive {
            // Whatever comes shows that the way is open; an answer may be queued behind much data.
            if now >= connection.heard_at.max(begun).saturating_add(timeout) {
                let silent_ms = (now - connection.heard_at.min(now)).as_millis() as u64;
                self.connection_lost(id, Loss::Silent(silent_ms), outbox);
            }
            return;
        }
        let heard_at = connection.heard_at;
        let Some(interval) = interval.filter(|interval| now >= heard_at.saturating_add(*interval)) else {
            return;
        };
        match self.ping(now, id, &[], true) {
            Ok(request) => {
                if let Some(connection) = self.connection_mut(id) {
                    connection.keepalive = Some((request, now));
                }
            }
            Err(RequestError::Full) if now >= heard_at.saturating_add(interval).saturating_add(timeout) => {
                let silent_ms = (now - heard_at).as_millis() as u64;
                self.connection_lost(id, Loss::Silent(silent_ms), outbox);
            }
            Err(_) => {}
        }
    }
}
