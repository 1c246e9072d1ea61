//! How long the way to an initiator is, as the kernel has measured it.

use std::net::TcpStream;
use std::time::Duration;

use lunette_tcp::Facts;

/// On a way with a longer round trip, how much is on it at a time is for TCP to decide.
const SHORT_MAX: Duration = Duration::from_micros(100);

/// On a way with a shorter round trip, commands that come together cost little.
const LONG_MIN: Duration = Duration::from_millis(5);

/// How long a measurement is taken for true: the way may be another one meanwhile.
const VALID: Duration = Duration::from_secs(1);

/// See the module's documentation.
#[derive(Debug, Default)]
pub(super) struct Way {
    /// The shortest round trip; none where nobody knows it.
    round_trip: Option<Duration>,
    measured_at: Option<Duration>,
}

impl Way {
    /// Whether it is so short that little needs to be on it at a time; false where nobody knows.
    pub(super) fn is_short(&mut self, socket: &TcpStream, now: Duration) -> bool {
        self.round_trip(socket, now).is_some_and(|time| time <= SHORT_MAX)
    }

    /// Whether it is so long that what comes at once waits for itself; false where nobody knows.
    pub(super) fn is_long(&mut self, socket: &TcpStream, now: Duration) -> bool {
        self.round_trip(socket, now).is_some_and(|time| time >= LONG_MIN)
    }

    fn round_trip(&mut self, socket: &TcpStream, now: Duration) -> Option<Duration> {
        if self.measured_at.is_none_or(|at| now.saturating_sub(at) >= VALID) {
            self.measured_at = Some(now);
            self.round_trip = Facts::of(socket).and_then(|facts| facts.round_trip);
        }
        self.round_trip
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    #[test]
    fn what_was_measured_holds_for_a_while() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let socket = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let mut way = Way { round_trip: Some(SHORT_MAX), measured_at: Some(Duration::from_secs(5)) };
        assert!(way.is_short(&socket, Duration::from_millis(5999)));
        way.is_short(&socket, Duration::from_secs(6));
        assert_eq!(way.measured_at, Some(Duration::from_secs(6)));
    }
}
