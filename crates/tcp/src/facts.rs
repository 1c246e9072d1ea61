//! What the kernel knows of a connection: `struct tcp_info` (linux/tcp.h).

#![allow(unsafe_code)]

use std::os::fd::{AsFd, AsRawFd};
use std::time::Duration;

/// Of one connection, now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Facts {
    /// Bytes that the other end's kernel has ever acknowledged (tcpi_bytes_acked).
    pub acknowledged_bytes: u64,
    /// Bytes that have ever come in their order (tcpi_bytes_received).
    pub received_bytes: u64,
    /// Since bytes last came (tcpi_last_data_recv).
    pub received_ago: Duration,
    /// Since an acknowledgement last came, of anything or of nothing new (tcpi_last_ack_recv).
    pub acknowledged_ago: Duration,
    /// Something that was handed to the kernel has not been acknowledged (tcpi_unacked, tcpi_notsent_bytes).
    pub has_unacknowledged: bool,
    /// The shortest round trip of the last minutes (tcpi_min_rtt); `None` where it is not known.
    pub round_trip: Option<Duration>,
}

impl Facts {
    /// `None`: it is no TCP connection, the kernel is older than Linux 4.6, or a sandbox forbids the call.
    pub fn of(socket: impl AsFd) -> Option<Self> {
        const UNACKED_AT: usize = 24;
        const LAST_DATA_RECV_AT: usize = 52;
        const LAST_ACK_RECV_AT: usize = 56;
        const BYTES_ACKED_AT: usize = 120;
        const BYTES_RECEIVED_AT: usize = 128;
        const NOTSENT_BYTES_AT: usize = 144;
        const MIN_RTT_AT: usize = 148;
        let mut info = [0_u8; MIN_RTT_AT + 4];
        let mut length = info.len() as libc::socklen_t;
        // SAFETY: the kernel writes at most `length` bytes to `info`, and how many they are to `length`; both outlive the call.
        let result = unsafe {
            libc::getsockopt(
                socket.as_fd().as_raw_fd(),
                libc::IPPROTO_TCP,
                libc::TCP_INFO,
                info.as_mut_ptr().cast(),
                &raw mut length,
            )
        };
        if result != 0 || length as usize != info.len() {
            return None;
        }
        let word = |at: usize| Some(u32::from_ne_bytes(*info.get(at..)?.first_chunk()?));
        let long = |at: usize| Some(u64::from_ne_bytes(*info.get(at..)?.first_chunk()?));
        // All ones where it is not known.
        let min_rtt_us = word(MIN_RTT_AT).filter(|us| *us != 0 && *us != u32::MAX);
        Some(Self {
            acknowledged_bytes: long(BYTES_ACKED_AT)?,
            received_bytes: long(BYTES_RECEIVED_AT)?,
            received_ago: Duration::from_millis(word(LAST_DATA_RECV_AT)?.into()),
            acknowledged_ago: Duration::from_millis(word(LAST_ACK_RECV_AT)?.into()),
            has_unacknowledged: word(UNACKED_AT)? > 0 || word(NOTSENT_BYTES_AT)? > 0,
            round_trip: min_rtt_us.map(|us| Duration::from_micros(us.into())),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream, UdpSocket};

    use super::*;

    #[test]
    fn what_has_come_and_gone_is_told() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut far, _) = listener.accept().unwrap();
        let before = Facts::of(&near).unwrap();
        for _ in 0..100 {
            near.write_all(&[1; 3]).unwrap();
            far.read_exact(&mut [0; 3]).unwrap();
            far.write_all(&[1]).unwrap();
            near.read_exact(&mut [0]).unwrap();
        }
        let after = Facts::of(&near).unwrap();
        assert_eq!(after.acknowledged_bytes - before.acknowledged_bytes, 300);
        assert_eq!(after.received_bytes - before.received_bytes, 100);
        assert!(!after.has_unacknowledged);
        std::thread::sleep(Duration::from_millis(60));
        let later = Facts::of(&near).unwrap();
        assert!(
            later.received_ago >= Duration::from_millis(50)
                && later.acknowledged_ago >= Duration::from_millis(50)
        );
        assert!(
            later.received_ago < Duration::from_secs(10) && later.acknowledged_ago < Duration::from_secs(10)
        );
        let time = after.round_trip.unwrap();
        assert!(time > Duration::ZERO && time < Duration::from_secs(1), "{time:?}");
        // More than both ends hold, which nobody takes.
        near.set_nonblocking(true).unwrap();
        while near.write(&[0; 65536]).is_ok() {}
        assert!(Facts::of(&near).unwrap().has_unacknowledged);
        assert_eq!(Facts::of(UdpSocket::bind("127.0.0.1:0").unwrap()), None);
    }
}
