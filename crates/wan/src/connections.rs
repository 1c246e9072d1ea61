//! What the kernel knows of the TCP connections of a namespace: how much is let under way, and what holds a sender up.
//!
//! It is asked by the netlink protocol of socket monitoring (sock_diag(7)), which answers with `struct tcp_info` (`linux/tcp.h`).

use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::net::{AddressFamily, SocketFlags, SocketType, netlink, socket_with, sockopt};

/// How long the kernel may take to answer; it does so at once.
const PATIENCE: Duration = Duration::from_secs(5);
/// What one answer takes at most.
const ANSWER_BYTES: usize = 64 << 10;

const NETLINK_HEADER_BYTES: usize = 16;
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
/// NLM_F_REQUEST and NLM_F_DUMP.
const ASK_FOR_ALL: u16 = 0x301;
const SOCK_DIAG_BY_FAMILY: u16 = 20;
/// `struct inet_diag_req_v2`.
const REQUEST_BYTES: usize = 56;
/// `struct inet_diag_msg`.
const MESSAGE_BYTES: usize = 72;
const AF_INET: u8 = 2;
const IPPROTO_TCP: u8 = 6;
const TCP_ESTABLISHED: u8 = 1;
/// The first state of congestion control in which losses are repaired; the other one is behind it (`enum tcp_ca_state`, `linux/tcp.h`).
const TCP_CA_RECOVERY: u8 = 3;
/// The attribute with `struct tcp_info`, and its bit in a request.
const INET_DIAG_INFO: u16 = 2;
const WANTS_INFO: u8 = 1 << (INET_DIAG_INFO - 1);

/// An established connection over IPv4, seen from one end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TcpConnection {
    /// This end's port.
    pub local_port: u16,
    /// The other end's port.
    pub remote_port: u16,
    /// What congestion control lets be under way, in bytes (`tcpi_snd_cwnd` segments of `tcpi_snd_mss`).
    pub congestion_window_bytes: u64,
    /// What a round trip takes, smoothed (`tcpi_rtt`); zero where none was measured.
    pub round_trip: Duration,
    /// What this end has made room for of what comes in a round trip, in bytes (`tcpi_rcv_space`).
    pub receive_space_bytes: u64,
    /// What the other end lets be under way, in bytes: the window that it has told last (`tcpi_snd_wnd`); 0 where the kernel (before
    /// Linux 5.4) does not tell.
    pub peer_window_bytes: u64,
    /// It repairs losses: congestion control is in its states Recovery or Loss (`tcpi_ca_state`).
    pub is_recovering: bool,
    /// Segments that this end has sent again, so far.
    pub retransmitted: u32,
    /// Segments of this end's that have come to the other one, so far, also out of order (`tcpi_delivered`); 0 where the kernel
    /// (before Linux 4.18) does not tell.
    pub delivered: u32,
    /// What this end has sent and the other one has not confirmed, in bytes: `tcpi_unacked` segments of `tcpi_snd_mss`.
    pub under_way_bytes: u64,
    /// What of that has come to the other end out of order, in bytes: `tcpi_sacked` segments of `tcpi_snd_mss`.
    pub out_of_order_bytes: u64,
    /// What this end has taken to be sent and has not sent yet, in bytes (`tcpi_notsent_bytes`).
    pub unsent_bytes: u64,
    /// What the other end has confirmed of what this one has sent, in bytes, so far (`tcpi_bytes_acked`); 0 where the kernel
    /// (before Linux 4.1) does not tell.
    pub confirmed_bytes: u64,
    /// What this end has received in order, in bytes, so far (`tcpi_bytes_received`); 0 where the kernel (before Linux 4.1)
    /// does not tell.
    pub received_bytes: u64,
    /// How often nothing came back for so long that this end began anew (`tcpi_total_rto`), so far; 0 where the kernel (before
    /// Linux 6.7) does not tell.
    pub timeouts: u32,
    /// How long this end has had something to send, so far; zero where the kernel (before Linux 4.10) does not tell.
    pub busy: Duration,
    /// How long the other end's window has held it up meanwhile.
    pub held_by_receiver: Duration,
    /// How long its own buffer has.
    pub held_by_buffer: Duration,
}

/// All that there are in the calling thread's namespace.
///
/// # Errors
/// The system has no sockets left, or its kernel is without the module `tcp_diag`.
pub fn tcp_connections() -> io::Result<Vec<TcpConnection>> {
    let socket =
        socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, Some(netlink::SOCK_DIAG))?;
    sockopt::set_socket_timeout(&socket, sockopt::Timeout::Recv, Some(PATIENCE))?;
    rustix::io::write(&socket, &request())?;
    answers(&socket)
}

/// Asks for every established connection.
fn request() -> [u8; NETLINK_HEADER_BYTES + REQUEST_BYTES] {
    let mut request = [0; NETLINK_HEADER_BYTES + REQUEST_BYTES];
    let length = request.len() as u32;
    request[..4].copy_from_slice(&length.to_ne_bytes());
    request[4..6].copy_from_slice(&SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    request[6..8].copy_from_slice(&ASK_FOR_ALL.to_ne_bytes());
    request[16..19].copy_from_slice(&[AF_INET, IPPROTO_TCP, WANTS_INFO]);
    request[20..24].copy_from_slice(&(1_u32 << TCP_ESTABLISHED).to_ne_bytes());
    request
}

fn answers(socket: &OwnedFd) -> io::Result<Vec<TcpConnection>> {
    let mut connections = Vec::new();
    let mut answer = vec![0; ANSWER_BYTES];
    loop {
        let length = rustix::io::read(socket, &mut *answer)?;
        let mut rest = &answer[..length];
        if rest.is_empty() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        while let Some((kind, message, behind)) = message(rest) {
            match kind {
                NLMSG_DONE => return Ok(connections),
                NLMSG_ERROR => {
                    let number = number(message, 0).unwrap_or_default().cast_signed();
                    return Err(io::Error::from_raw_os_error(number.saturating_neg()));
                }
                _ => connections.extend(connection(message)),
            }
            rest = behind;
        }
    }
}

/// The first message: its kind, what is in it, and what comes behind it.
fn message(bytes: &[u8]) -> Option<(u16, &[u8], &[u8])> {
    let length = number(bytes, 0)? as usize;
    let kind = short(bytes, 4)?;
    let content = bytes.get(NETLINK_HEADER_BYTES..length)?;
    Some((kind, content, bytes.get(aligned(length)..).unwrap_or_default()))
}

/// What a message says of a connection; nothing if it says too little.
fn connection(message: &[u8]) -> Option<TcpConnection> {
    let port = |at: usize| message.get(at..at + 2).map(|two| u16::from_be_bytes([two[0], two[1]]));
    let (local_port, remote_port) = (port(4)?, port(6)?);
    let mut attributes = message.get(MESSAGE_BYTES..)?;
    while let (Some(length), Some(kind)) = (short(attributes, 0), short(attributes, 2)) {
        let length = usize::from(length);
        let value = attributes.get(4..length)?;
        if kind == INET_DIAG_INFO {
            return information(value, local_port, remote_port);
        }
        attributes = attributes.get(aligned(length)..)?;
    }
    None
}

/// `struct tcp_info`: eight bytes, then numbers of four, then some of eight.
fn information(info: &[u8], local_port: u16, remote_port: u16) -> Option<TcpConnection> {
    let four = |at: usize| number(info, at);
    let eight = |at: usize| {
        let eight = info.get(at..at + 8).and_then(|eight| eight.try_into().ok());
        eight.map(u64::from_ne_bytes).unwrap_or_default()
    };
    let time = |at| Duration::from_micros(eight(at));
    Some(TcpConnection {
        local_port,
        remote_port,
        congestion_window_bytes: u64::from(four(80)?) * u64::from(four(16)?),
        round_trip: Duration::from_micros(four(68)?.into()),
        receive_space_bytes: u64::from(four(96)?),
        peer_window_bytes: four(228).unwrap_or_default().into(),
        is_recovering: *info.get(1)? >= TCP_CA_RECOVERY,
        retransmitted: four(100)?,
        delivered: four(192).unwrap_or_default(),
        under_way_bytes: u64::from(four(24)?) * u64::from(four(16)?),
        out_of_order_bytes: u64::from(four(28)?) * u64::from(four(16)?),
        unsent_bytes: four(144).unwrap_or_default().into(),
        confirmed_bytes: eight(120),
        received_bytes: eight(128),
        timeouts: short(info, 240).unwrap_or_default().into(),
        busy: time(168),
        held_by_receiver: time(176),
        held_by_buffer: time(184),
    })
}

const fn aligned(length: usize) -> usize {
    (length + 3) & !3
}

fn number(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..at + 4).and_then(|four| four.try_into().ok()).map(u32::from_ne_bytes)
}

fn short(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..at + 2).and_then(|two| two.try_into().ok()).map(u16::from_ne_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};

    #[test]
    fn both_ends_of_a_connection_are_found() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let mut near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut far, from) = listener.accept().unwrap();
        near.write_all(&[1; 100_000]).unwrap();
        far.read_exact(&mut [0; 100_000]).unwrap();
        let all = match tcp_connections() {
            Ok(all) => all,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return lunette_skip::record_lacking("tcp_diag in the kernel");
            }
            Err(error) => panic!("{error}"),
        };
        let find = |local, remote| {
            all.iter().find(|one| (one.local_port, one.remote_port) == (local, remote)).copied()
        };
        let sender = find(from.port(), port).expect("the near end");
        let receiver = find(port, from.port()).expect("the far end");
        // Ten segments at least (RFC 6928).
        assert!(sender.congestion_window_bytes >= 5000 && receiver.receive_space_bytes > 1000, "{all:?}");
        assert_eq!(receiver.received_bytes, 100_000);
        // Confirmations may be on their way, and the one of the connection itself counts as a byte.
        assert!((1..=100_001).contains(&sender.confirmed_bytes), "{sender:?}");
        // One that closes for what nobody has read yet, in part.
        assert!((1000..1 << 30).contains(&sender.peer_window_bytes), "{all:?}");
        assert_eq!(find(1, 1), None);
    }

    #[test]
    fn what_is_cut_off_is_no_connection() {
        let mut whole = vec![0; MESSAGE_BYTES];
        (whole[5], whole[7]) = (10, 20);
        // An attribute that is of no use, with padding, and the one with the facts.
        whole.extend([6_u16, 9].map(u16::to_ne_bytes).concat());
        whole.extend([1, 2, 0, 0]);
        whole.extend([4 + 104, INET_DIAG_INFO].map(u16::to_ne_bytes).concat());
        let mut info = [0; 104];
        (info[1], info[16], info[24], info[28], info[68], info[80], info[96]) = (3, 100, 2, 1, 5, 7, 9);
        whole.extend(info);
        let found = connection(&whole).expect("a connection");
        assert_eq!((found.local_port, found.remote_port), (10, 20));
        assert_eq!((found.congestion_window_bytes, found.receive_space_bytes), (700, 9));
        assert!(found.is_recovering);
        assert_eq!((found.under_way_bytes, found.out_of_order_bytes), (200, 100));
        assert_eq!(found.round_trip, Duration::from_micros(5));
        // An older kernel tells less.
        assert_eq!(found.busy, Duration::ZERO);
        assert_eq!((found.delivered, found.unsent_bytes, found.timeouts), (0, 0, 0));
        assert_eq!((found.confirmed_bytes, found.received_bytes), (0, 0));
        assert_eq!(found.peer_window_bytes, 0);
        for length in 0..whole.len() {
            assert_eq!(connection(&whole[..length]), None, "{length}");
        }
        let mut framed = ((NETLINK_HEADER_BYTES + 5) as u32).to_ne_bytes().to_vec();
        framed.resize(NETLINK_HEADER_BYTES + 5, 0);
        assert!(message(&framed).is_some_and(|(_, content, behind)| content.len() == 5 && behind.is_empty()));
        for length in 0..framed.len() {
            assert!(message(&framed[..length]).is_none());
        }
    }
}
