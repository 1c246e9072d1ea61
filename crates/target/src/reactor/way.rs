//! How long the way to an initiator is, as the kernel has measured it.

#![allow(unsafe_code)]

use std::net::TcpStream;
use std::os::fd::AsRawFd;
use std::time::Duration;

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
            self.round_trip = round_trip(socket);
        }
        self.round_trip
    }
}

/// The shortest round trip of the last minutes.
fn round_trip(socket: &TcpStream) -> Option<Duration> {
    // `struct tcp_info` (linux/tcp.h): tcpi_min_rtt, in microseconds, all ones where it is not known. Since Linux 4.6.
    const MIN_RTT_AT: usize = 148;
    let mut info = [0_u8; MIN_RTT_AT + 4];
    let mut length = info.len() as libc::socklen_t;
    // SAFETY: the kernel writes at most `length` bytes to `info`, and how many they are to `length`; both outlive the call.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            info.as_mut_ptr().cast(),
            &raw mut length,
        )
    };
    let (_, min_rtt) = info.split_last_chunk::<4>()?;
    let micros = u32::from_ne_bytes(*min_rtt);
    (result == 0 && length as usize == info.len() && micros != 0 && micros != u32::MAX)
        .then(|| Duration::from_micros(micros.into()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::TcpListener;

    #[test]
    fn the_way_through_this_machine_is_short() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut far, _) = listener.accept().unwrap();
        for _ in 0..100 {
            near.write_all(&[1]).unwrap();
            far.read_exact(&mut [0]).unwrap();
            far.write_all(&[1]).unwrap();
            near.read_exact(&mut [0]).unwrap();
        }
        let time = round_trip(&near).unwrap();
        assert!(time > Duration::ZERO && time < Duration::from_secs(1), "{time:?}");
    }

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
