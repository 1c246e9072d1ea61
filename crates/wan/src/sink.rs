//! A socket that counts what arrives at it, and leaves it unread: the kernel's word, and not the emulator's.

use std::fs;
use std::io;
use std::net::{SocketAddr, UdpSocket};

use crate::emulator::End;
use crate::namespace::Namespace;

/// The kernel's sockets of UDP over IPv4 in the namespace of whoever reads it.
const TABLE: &str = "/proc/thread-self/net/udp";

/// A UDP socket in a namespace. It never has anything to do: when its room is full the kernel counts what comes and drops it.
pub(crate) struct Sink<'a> {
    namespace: &'a Namespace,
    socket: UdpSocket,
    address: SocketAddr,
    taken: u64,
}

impl<'a> Sink<'a> {
    /// # Errors
    /// There are no sockets.
    pub(crate) fn new(namespace: &'a Namespace, end: End) -> io::Result<Self> {
        let socket = namespace.within(|| UdpSocket::bind((end.ipv4, 0)))?;
        socket.set_nonblocking(true)?;
        let address = socket.local_addr()?;
        Ok(Self { namespace, socket, address, taken: 0 })
    }

    /// Where to send to.
    pub(crate) const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Datagrams that have arrived so far.
    ///
    /// # Errors
    /// The kernel does not say how many it has dropped.
    pub(crate) fn arrived(&mut self) -> io::Result<u64> {
        // What had room is taken out; what comes meanwhile is in the next count.
        loop {
            match self.socket.recv(&mut [0]) {
                Ok(_) => self.taken += 1,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
        }
        let table = self.namespace.within(|| fs::read_to_string(TABLE))?;
        let dropped = dropped(&table, self.address.port());
        let dropped =
            dropped.ok_or_else(|| io::Error::other(format!("{TABLE} does not say what was dropped")))?;
        Ok(self.taken + dropped)
    }
}

/// What the kernel has dropped for want of room of the socket that has this port: the last column.
fn dropped(table: &str, port: u16) -> Option<u64> {
    let local = format!(":{port:04X}");
    let row = table
        .lines()
        .find(|line| line.split_ascii_whitespace().nth(1).is_some_and(|address| address.ends_with(&local)))?;
    row.split_ascii_whitespace().next_back()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "   sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode ref pointer drops            
 1180: 010012C6:9C41 00000000:0000 07 00000000:00000000 00:00000000 00000000     0        0 20341 2 0000000000000000 7         
 1181: 020012C6:0035 00000000:9C41 07 00000000:00034B00 00:00000000 00000000     0        0 20342 2 0000000000000000 88131     
";

    #[test]
    fn drops_are_those_of_the_socket() {
        assert_eq!(dropped(TEXT, 0x9c41), Some(7));
        assert_eq!(dropped(TEXT, 53), Some(88131));
        assert_eq!(dropped(TEXT, 54), None);
        for length in 0..TEXT.len() {
            let _ = dropped(&TEXT[..length], 53);
        }
    }

    #[test]
    fn what_is_read_and_what_had_no_room_count_together() {
        let namespace = match Namespace::new() {
            Ok(namespace) => namespace,
            Err(error) => return lunette_skip::record_lacking(&error.to_string()),
        };
        let local = End { ipv4: std::net::Ipv4Addr::LOCALHOST, ..crate::emulator::NEAR };
        let mut sink = Sink::new(&namespace, local).expect("a socket");
        let source = namespace.within(|| UdpSocket::bind((local.ipv4, 0))).expect("a socket");
        source.connect(sink.address()).expect("a socket");
        let mut sent = 0;
        // Fewer than there is room for, and many times as many.
        for more in [5, 5000, 3] {
            for _ in 0..more {
                source.send(&[0; 1000]).expect("loopback takes it");
            }
            sent += more;
            assert_eq!(sink.arrived().expect("counted"), sent);
        }
        assert!(sink.taken < sent, "some had no room");
    }
}
