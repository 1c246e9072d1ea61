//! Where an iSNS server's notifications and inquiries arrive: sockets at the addresses of our portals (RFC 4171, 2.9, 6.3.5,
//! 6.3.7).
//!
//! Nothing is read of whoever is not the server; what is said is `super::talk`.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};

use lunette_isns::{Message, Reader, Transport};
use rustix::event::{PollFd, PollFlags};

use super::talk::Talk;
use crate::listener;

/// Connections that a server may have to us at one time, besides one for each of our nodes, as Open-iSNS has them; with more, it
/// loses the oldest one.
const CALLERS_MAX: usize = 16;
/// Connections or datagrams that are taken at a time; a flood must not keep a stop waiting.
const TURN_MAX: usize = 64;
/// The longest datagram of UDP.
const DATAGRAM_MAX: usize = 65_536;

/// The sockets for one server.
#[derive(Debug)]
pub(super) struct Listeners {
    transport: Transport,
    sockets: Vec<(SocketAddr, Socket)>,
    callers: VecDeque<Caller>,
    callers_max: usize,
}

#[derive(Debug)]
enum Socket {
    Stream(TcpListener),
    Datagrams(UdpSocket),
}

impl Socket {
    /// Binds without blocking; port 0 picks a free one.
    fn bind(transport: Transport, address: SocketAddr) -> io::Result<Self> {
        match transport {
            Transport::Tcp => listener::bind(address).map(Self::Stream).map_err(io::Error::other),
            Transport::Udp => {
                let socket = UdpSocket::bind(address)?;
                socket.set_nonblocking(true)?;
                Ok(Self::Datagrams(socket))
            }
        }
    }

    fn address(&self) -> io::Result<SocketAddr> {
        match self {
            Self::Stream(socket) => socket.local_addr(),
            Self::Datagrams(socket) => socket.local_addr(),
        }
    }
}

/// A connection that the server has made.
#[derive(Debug)]
struct Caller {
    stream: TcpStream,
    peer: SocketAddr,
    reader: Reader,
}

impl Listeners {
    pub(super) fn new(transport: Transport) -> Self {
        Self { transport, sockets: Vec::new(), callers: VecDeque::new(), callers_max: CALLERS_MAX }
    }

    pub(super) fn transport(&self) -> Transport {
        self.transport
    }

    /// Listens at these addresses and no others, on behalf of so many nodes; the errors of those where that does not work.
    pub(super) fn listen(&mut self, addresses: &[SocketAddr], nodes: usize) -> Vec<(SocketAddr, io::Error)> {
        self.callers_max = CALLERS_MAX + nodes;
        self.sockets.retain(|(address, _)| addresses.contains(address));
        let mut errors = Vec::new();
        for &address in addresses {
            if self.sockets.iter().any(|(known, _)| *known == address) {
                continue;
            }
            match Socket::bind(self.transport, address) {
                Ok(socket) => self.sockets.push((address, socket)),
                Err(error) => errors.push((address, error)),
            }
        }
        errors
    }

    /// Where it listens, with the real ports.
    pub(super) fn addresses(&self) -> Vec<SocketAddr> {
        self.sockets.iter().filter_map(|(_, socket)| socket.address().ok()).collect()
    }

    /// What is to be waited for, in the order that [`Self::receive`] takes.
    pub(super) fn poll_fds(&self) -> impl Iterator<Item = PollFd<'_>> {
        let sockets = self.sockets.iter().map(|(_, socket)| match socket {
            Socket::Stream(socket) => PollFd::new(socket, PollFlags::IN),
            Socket::Datagrams(socket) => PollFd::new(socket, PollFlags::IN),
        });
        sockets.chain(self.callers.iter().map(|caller| PollFd::new(&caller.stream, PollFlags::IN)))
    }

    /// Takes and answers what came where `is_ready` says so.
    pub(super) fn receive(&mut self, is_ready: &[bool], talk: &mut Talk<'_>) {
        let (at_sockets, at_callers) = is_ready.split_at(self.sockets.len().min(is_ready.len()));
        let mut at_callers = at_callers.iter();
        self.callers.retain_mut(|caller| at_callers.next() != Some(&true) || caller.receive(talk));
        for ((_, socket), _) in self.sockets.iter().zip(at_sockets).filter(|(_, is_ready)| **is_ready) {
            match socket {
                Socket::Stream(listener) => self.callers.extend(accept(listener, talk)),
                Socket::Datagrams(socket) => take_datagrams(socket, talk),
            }
        }
        let surplus = self.callers.len().saturating_sub(self.callers_max);
        self.callers.drain(..surplus);
    }
}

fn accept(listener: &TcpListener, talk: &mut Talk<'_>) -> Vec<Caller> {
    let mut callers = Vec::new();
    for _ in 0..TURN_MAX {
        let (stream, peer) = match listener.accept() {
            Ok(accepted) => accepted,
            Err(error)
                if matches!(error.kind(), io::ErrorKind::ConnectionAborted | io::ErrorKind::Interrupted) =>
            {
                continue;
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
            // Without a descriptor for it, the connection goes on being there.
            Err(_) => {
                std::thread::sleep(listener::EXHAUSTED_PAUSE);
                break;
            }
        };
        let own = stream.local_addr().map(|own| own.ip());
        if !own.is_ok_and(|own| talk.is_server(peer.ip(), own)) {
            talk.stray(peer, "not the server");
        } else if stream.set_nonblocking(true).is_ok() {
            callers.push(Caller { stream, peer, reader: Reader::default() });
        }
    }
    callers
}

fn take_datagrams(socket: &UdpSocket, talk: &mut Talk<'_>) {
    let Ok(own) = socket.local_addr() else { return };
    let mut bytes = vec![0; DATAGRAM_MAX];
    for _ in 0..TURN_MAX {
        let Ok((length, peer)) = socket.recv_from(&mut bytes) else { return };
        if !talk.is_server(peer.ip(), own.ip()) {
            talk.stray(peer, "not the server");
            continue;
        }
        match Message::from_datagram(&bytes[..length]) {
            Ok(Message::Request(request)) => {
                if let Some(answer) = talk.answer(&request) {
                    // A datagram may get lost in any case; the server asks again.
                    let _ = socket.send_to(&answer, peer);
                }
            }
            Ok(Message::Response(_)) => talk.stray(peer, "an answer to no question"),
            Err(fault) => talk.stray(peer, &fault.to_string()),
        }
    }
}

impl Caller {
    /// Takes what came; whether more may come.
    fn receive(&mut self, talk: &mut Talk<'_>) -> bool {
        let mut bytes = [0; 4096];
        match self.stream.read(&mut bytes) {
            Ok(0) => return false,
            Ok(length) => self.reader.extend(&bytes[..length]),
            Err(error) => return error.kind() == io::ErrorKind::WouldBlock,
        }
        loop {
            match self.reader.message() {
                Ok(None) => return true,
                Ok(Some(Message::Request(request))) => {
                    // Answers are short. Who lets them pile up is not waited for.
                    let answer = talk.answer(&request).unwrap_or_default();
                    if self.stream.write_all(&answer).is_err() {
                        return false;
                    }
                }
                Ok(Some(Message::Response(_))) => talk.stray(self.peer, "an answer to no question"),
                Err(fault) => {
                    talk.stray(self.peer, &fault.to_string());
                    return false;
                }
            }
        }
    }
}
