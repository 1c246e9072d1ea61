//! One connection while PDUs go one at a time and this thread waits for each: login and discovery. A deadline holds for
//! all of it.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

use lunette_iscsi::initiator::discovery::Portal;
use lunette_wire::ahs::AHS_LENGTH_MAX;
use lunette_wire::digest::crc32c;
use lunette_wire::frame::{Digests, Frame, assemble};
use lunette_wire::{BHS_LENGTH, Bhs};
use socket2::{Domain, Protocol, SockRef, Socket, Type};

use crate::{Error, Phase};

/// See the module's documentation.
#[derive(Debug)]
pub(crate) struct Wire {
    pub(crate) stream: TcpStream,
    pub(crate) portal: Portal,
    pub(crate) phase: Phase,
    pub(crate) digests: Digests,
    pub(crate) data_segment_length_max: u32,
    deadline: Instant,
    limit: Duration,
}

/// The addresses of a portal's host.
///
/// # Errors
/// [`Error::Resolve`].
pub(crate) fn resolve(portal: &Portal) -> Result<Vec<SocketAddr>, Error> {
    let fault = |source| Error::Resolve { portal: portal.clone(), source };
    let found: Vec<_> = (portal.host.as_str(), portal.port).to_socket_addrs().map_err(fault)?.collect();
    if found.is_empty() {
        return Err(fault(std::io::Error::new(ErrorKind::NotFound, "the name has no address")));
    }
    Ok(found)
}

/// Connects to the first address that answers.
///
/// # Errors
/// [`Error::Connect`] with what the last of them said.
pub(crate) fn connect(
    portal: &Portal,
    addresses: &[SocketAddr],
    limit: Duration,
) -> Result<TcpStream, Error> {
    let mut last = std::io::Error::new(ErrorKind::NotFound, "the name has no address");
    for &address in addresses {
        match connect_to(address, limit) {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(Error::Connect { portal: portal.clone(), source: last })
}

fn connect_to(address: SocketAddr, limit: Duration) -> std::io::Result<TcpStream> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    lunette_tcp::before_connecting(&socket, address);
    socket.connect_timeout(&address.into(), limit)?;
    // Each write has all that there is to say.
    socket.set_tcp_nodelay(true)?;
    Ok(socket.into())
}

impl Wire {
    pub(crate) fn new(stream: TcpStream, portal: Portal, limit: Duration) -> Self {
        Self {
            stream,
            portal,
            phase: Phase::Login,
            digests: Digests::default(),
            data_segment_length_max: lunette_iscsi::login::LOGIN_SEGMENT_MAX as u32,
            deadline: Instant::now() + limit,
            limit,
        }
    }

    /// Sends a PDU whose header says `data`'s length.
    pub(crate) fn send(&mut self, bhs: &Bhs, data: &[u8]) -> Result<(), Error> {
        let bytes = assemble(bhs, data, self.digests);
        let left = self.left()?;
        let result = self.stream.set_write_timeout(Some(left)).and_then(|()| self.stream.write_all(&bytes));
        result.map_err(|error| self.failed(error))
    }

    /// Waits for the next PDU.
    pub(crate) fn receive(&mut self) -> Result<(Bhs, Vec<u8>), Error> {
        let mut bhs = [0; BHS_LENGTH];
        self.read(&mut bhs)?;
        // Additional headers are read and not looked at (11.2.2); none is defined for what comes here.
        let frame = Frame::of(&bhs, self.digests, self.data_segment_length_max, AHS_LENGTH_MAX)
            .map_err(|error| self.format(error.to_string()))?;
        let mut rest = vec![0; frame.total_length() - BHS_LENGTH];
        self.read(&mut rest)?;
        let headers = frame.ahs_length;
        let (ahs, segment) = rest.split_at(headers);
        let (header_digest, segment) = segment.split_at(frame.header_digest_length);
        let whole = [&bhs[..], ahs].concat();
        if !header_digest.is_empty() && header_digest != crc32c(&whole) {
            return Err(self.format("a header digest is wrong".into()));
        }
        let (data, data_digest) = segment.split_at(segment.len() - frame.data_digest_length);
        if !data_digest.is_empty() && data_digest != crc32c(data) {
            return Err(self.format("a data digest is wrong".into()));
        }
        Ok((bhs, data[..frame.data_length].to_vec()))
    }

    fn read(&mut self, bytes: &mut [u8]) -> Result<(), Error> {
        let mut filled = 0;
        while filled < bytes.len() {
            let left = self.left()?;
            let result = self
                .stream
                .set_read_timeout(Some(left))
                .and_then(|()| self.stream.read(&mut bytes[filled..]));
            match result {
                Ok(0) => return Err(self.closed(None)),
                Ok(read) => filled += read,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(self.failed(error)),
            }
        }
        Ok(())
    }

    /// What is left of the time; never zero, which would mean "for ever".
    fn left(&self) -> Result<Duration, Error> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        if left.is_zero() { Err(self.timeout()) } else { Ok(left.max(Duration::from_millis(1))) }
    }

    fn failed(&self, error: std::io::Error) -> Error {
        match error.kind() {
            ErrorKind::WouldBlock | ErrorKind::TimedOut => self.timeout(),
            _ => self.closed(Some(error)),
        }
    }

    fn timeout(&self) -> Error {
        Error::Timeout { portal: self.portal.clone(), phase: self.phase, after: self.limit }
    }

    fn closed(&self, source: Option<std::io::Error>) -> Error {
        Error::Closed { portal: self.portal.clone(), phase: self.phase, source }
    }

    pub(crate) fn format(&self, what: String) -> Error {
        Error::Format { portal: self.portal.clone(), phase: self.phase, what }
    }

    /// The address at the other end.
    pub(crate) fn address(&self) -> Option<SocketAddr> {
        SockRef::from(&self.stream).peer_addr().ok().and_then(|address| address.as_socket())
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use lunette_skip::record_lacking;
    use rustix::net::sockopt::tcp_congestion;

    use super::*;

    #[test]
    fn a_connection_within_the_machine_is_not_paced() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        if !tcp_congestion(&listener).unwrap().starts_with("bbr") {
            return record_lacking("the congestion control of this host is not BBR");
        }
        let stream = connect_to(listener.local_addr().unwrap(), Duration::from_secs(30)).unwrap();
        assert_eq!(tcp_congestion(&stream).unwrap(), "reno");
    }
}
