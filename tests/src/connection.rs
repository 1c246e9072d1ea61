//! One iSCSI connection at the level of PDUs and bytes, for the tests' initiator and for tests that misbehave on purpose.
//!
//! It frames, pads, checks and makes digests (RFC 7143, 11.1 and 13.1) and blocks with a time limit. It negotiates
//! nothing and keeps no sequence numbers.

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use lunette_wire::digest::crc32c_of;
use lunette_wire::frame::{Digests, Frame, assemble};
use lunette_wire::{BHS_LENGTH, InitiatorPdu, TargetPdu};
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, connect, socket_with, sockopt};

/// How long one read or write may block: an answer later than this is no answer.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// More than any target may send after what the tests' initiator declares.
const RECEIVE_MAX_BYTES: u32 = (1 << 24) - 1;

/// A TCP connection that speaks PDUs.
#[derive(Debug)]
pub struct Connection {
    stream: TcpStream,
    digests: Digests,
}

impl Connection {
    /// Connects; digests are off until [`Self::use_digests`].
    ///
    /// # Errors
    /// Nobody listens.
    pub fn open(portal: SocketAddr) -> Result<Self> {
        let stream = TcpStream::connect_timeout(&portal, PATIENCE)
            .with_context(|| format!("cannot connect to {portal}"))?;
        Self::over(stream)
    }

    /// As [`Self::open`], from another address of this machine. IPv4 alone has several that need no preparation.
    ///
    /// # Errors
    /// Nobody listens, or the address is not this machine's.
    pub fn open_from(address: IpAddr, portal: SocketAddr) -> Result<Self> {
        let socket = socket_with(AddressFamily::INET, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
        bind(&socket, &SocketAddr::new(address, 0))?;
        connect(&socket, &portal).with_context(|| format!("cannot connect to {portal} from {address}"))?;
        Self::over(socket.into())
    }

    fn over(stream: TcpStream) -> Result<Self> {
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        Ok(Self { stream, digests: Digests::default() })
    }

    /// From the next PDU on, both ways, these digests are carried.
    pub fn use_digests(&mut self, digests: Digests) {
        self.digests = digests;
    }

    /// The digests in use.
    #[must_use]
    pub fn digests(&self) -> Digests {
        self.digests
    }

    /// Another limit than [`PATIENCE`] for reading.
    ///
    /// # Errors
    /// The system call failed.
    pub fn set_patience(&self, limit: Duration) -> Result<()> {
        Ok(self.stream.set_read_timeout(Some(limit))?)
    }

    /// Another limit than [`PATIENCE`] for writing.
    ///
    /// # Errors
    /// The system call failed.
    pub fn set_write_patience(&self, limit: Duration) -> Result<()> {
        Ok(self.stream.set_write_timeout(Some(limit))?)
    }

    /// Has the socket hold no more than about `bytes` that have not been read, so that the target's own has to.
    ///
    /// # Errors
    /// The system call failed.
    pub fn set_receive_buffer(&self, bytes: usize) -> Result<()> {
        Ok(sockopt::set_socket_recv_buffer_size(&self.stream, bytes)?)
    }

    /// Ends both directions, as a broken connection does.
    ///
    /// # Errors
    /// It has ended already.
    pub fn shut(&self) -> Result<()> {
        Ok(self.stream.shutdown(std::net::Shutdown::Both)?)
    }

    /// Sends a PDU with its data segment.
    ///
    /// # Errors
    /// The peer is gone or takes nothing.
    pub fn send(&mut self, pdu: &InitiatorPdu, data: &[u8]) -> Result<()> {
        let bytes = self.encode(pdu, data);
        self.send_bytes(&bytes)
    }

    /// The bytes that [`Self::send`] would send.
    #[must_use]
    pub fn encode(&self, pdu: &InitiatorPdu, data: &[u8]) -> Vec<u8> {
        assemble(&pdu.encode(data.len()), data, self.digests)
    }

    /// Sends whatever it is given.
    ///
    /// # Errors
    /// The peer is gone or takes nothing.
    pub fn send_bytes(&mut self, bytes: &[u8]) -> Result<()> {
        Ok(self.stream.write_all(bytes)?)
    }

    /// Receives one PDU with its data segment; digests are checked.
    ///
    /// # Errors
    /// The peer closed, sent nothing in time, or sent what is no PDU.
    pub fn receive(&mut self) -> Result<(TargetPdu, Vec<u8>)> {
        let mut header = [0; BHS_LENGTH];
        self.stream.read_exact(&mut header).context("waiting for a PDU")?;
        let frame = Frame::of(&header, self.digests, RECEIVE_MAX_BYTES, 0)?;
        if self.digests.header {
            let digest = self.receive_digest()?;
            ensure!(digest == crc32c_of(&[&header]), "wrong header digest on {header:02x?}");
        }
        let mut data = vec![0; frame.data_length + frame.padding()];
        self.stream.read_exact(&mut data).context("waiting for a data segment")?;
        if frame.data_digest_length > 0 {
            let digest = self.receive_digest()?;
            ensure!(digest == crc32c_of(&[&data]), "wrong data digest after {header:02x?}");
        }
        let padding = data.split_off(frame.data_length);
        ensure!(padding.iter().all(|&byte| byte == 0), "padding that is not zero (RFC 7143, 11.1)");
        Ok((TargetPdu::decode(&header)?, data))
    }

    /// Waits until there is something to read, or the peer has closed; false when neither is so within the patience.
    ///
    /// # Errors
    /// The connection broke.
    pub fn peek(&self) -> Result<bool> {
        loop {
            return match self.stream.peek(&mut [0]) {
                Ok(_) => Ok(true),
                // Whoever was stopped for a moment waits again.
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                    Ok(false)
                }
                Err(error) => Err(error.into()),
            };
        }
    }

    /// Reads until the peer closes and returns how many bytes came; a reset counts as a close.
    ///
    /// # Errors
    /// The peer keeps the connection open for longer than `limit` without a byte.
    pub fn drain(&mut self, limit: Duration) -> Result<usize> {
        self.stream.set_read_timeout(Some(limit))?;
        let (mut total, mut buffer) = (0, [0; 4096]);
        loop {
            match self.stream.read(&mut buffer) {
                Ok(0) => return Ok(total),
                Ok(length) => total += length,
                Err(error) if error.kind() == ErrorKind::ConnectionReset => return Ok(total),
                Err(error) => return Err(error).context("the peer keeps the connection open"),
            }
        }
    }

    /// Our end's address: what the target's log calls this peer.
    ///
    /// # Errors
    /// The system call failed.
    pub fn local_address(&self) -> Result<SocketAddr> {
        Ok(self.stream.local_addr()?)
    }

    fn receive_digest(&mut self) -> Result<[u8; 4]> {
        let mut digest = [0; 4];
        self.stream.read_exact(&mut digest).context("waiting for a digest")?;
        Ok(digest)
    }
}

/// To wait on several at a time. Nothing is kept here that was read before it was asked for.
impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}
