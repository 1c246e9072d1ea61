//! Connections within this machine are not paced (docs/decisions/0050).
//!
//! BBR, which is the default of many hosts, finds out what a path carries and sends no faster. Where both ends are in one machine there
//! is no path: what it finds is how the two programs have taken turns, and its timers cost more than what they time. Such connections
//! have Reno instead. Others keep what their host gives them, and so do all where the host does not pace.
//!
//! A connection that was paced once stays so (Linux keeps `sk_pacing_status`), so this has to be settled before it is there: by who
//! connects before that, by who listens on the listening socket, which those that it accepts take after.

#![forbid(unsafe_code)]

use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::AsFd;

use rustix::net::sockopt::{set_tcp_congestion, tcp_congestion};
use socket2::SockRef;

/// What every Linux has, lets every user choose, and does not pace.
const UNPACED: &str = "reno";

/// Of the kernel's, BBR alone paces by itself; it has had several versions ("bbr", "bbr1", "bbr3").
const PACED_PREFIX: &str = "bbr";

/// To be called before `socket` connects to `to`: if that is this machine, the connection will not be paced.
///
/// It may fail to, as in a sandbox that forbids the call; the connection is then what it would have been.
pub fn before_connecting(socket: impl AsFd, to: SocketAddr) {
    if is_paced(&socket).is_some() && is_own(to) {
        // Refused where an administrator allows only others: it is paced then, which is slower and not wrong.
        let _ = set_tcp_congestion(&socket, UNPACED);
    }
}

/// What connections that a listening socket accepts are to have.
#[derive(Debug)]
pub struct Acceptance {
    /// The host's own congestion control, if connections begin without it.
    put_off: Option<String>,
}

impl Acceptance {
    /// To be called before connections come: has them begin without pacing, if this host would pace them.
    ///
    /// Where it may not, they are as they would have been.
    pub fn prepare(listener: impl AsFd) -> Self {
        let prepare = |own: String| {
            set_tcp_congestion(&listener, UNPACED).ok()?;
            // Those from other machines are to have it back. If that may not be, nothing is changed.
            let gives_back = set_tcp_congestion(&listener, &own).is_ok();
            (gives_back && set_tcp_congestion(&listener, UNPACED).is_ok()).then_some(own)
        };
        Self { put_off: is_paced(&listener).and_then(prepare) }
    }

    /// To be called before anything is sent on an accepted connection: one from another machine gets what the host has for it.
    ///
    /// # Errors
    /// The peer's or the own address, or the congestion control, as the system puts it; the connection is not paced.
    pub fn settle(&self, accepted: impl AsFd) -> io::Result<()> {
        if self.put_off.is_none() {
            return Ok(());
        }
        let socket = SockRef::from(&accepted);
        let (here, there) = (socket.local_addr()?.as_socket(), socket.peer_addr()?.as_socket());
        let is_from_here =
            here.zip(there).is_some_and(|(here, there)| are_of_one_machine(here.ip(), there.ip()));
        if is_from_here { Ok(()) } else { self.give_back(&accepted) }
    }

    fn give_back(&self, accepted: impl AsFd) -> io::Result<()> {
        self.put_off.as_ref().map_or(Ok(()), |own| Ok(set_tcp_congestion(accepted, own)?))
    }
}

/// The congestion control of a socket, if it paces.
fn is_paced(socket: impl AsFd) -> Option<String> {
    tcp_congestion(socket).ok().filter(|name| name.starts_with(PACED_PREFIX))
}

/// Who connects to an address of the own machine without choosing another source has that address as its source, too.
fn are_of_one_machine(here: IpAddr, there: IpAddr) -> bool {
    let [here, there] = [here, there].map(|ip| ip.to_canonical());
    there.is_loopback() || here == there
}

/// Whether an address is one of this machine's, in this network namespace.
fn is_own(address: SocketAddr) -> bool {
    if address.ip().to_canonical().is_loopback() {
        return true;
    }
    // The system chooses a source without sending anything.
    let any: SocketAddr = if address.is_ipv4() { ([0; 4], 0).into() } else { ([0u16; 8], 0).into() };
    let source = UdpSocket::bind(any).and_then(|socket| {
        socket.connect(address)?;
        socket.local_addr()
    });
    source.is_ok_and(|source| are_of_one_machine(source.ip(), address.ip()))
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use lunette_skip::skip;
    use socket2::{Domain, Socket, Type};

    use super::*;

    /// Neither may be there, or allowed: "bbr" is a module that many kernels have not.
    fn is_available(name: &str) -> bool {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        set_tcp_congestion(&socket, name).is_ok()
    }

    /// A listener that hands out BBR, as on a host whose default that is.
    fn listener_with_bbr() -> TcpListener {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        set_tcp_congestion(&listener, "bbr").unwrap();
        listener
    }

    #[test]
    fn a_connection_within_the_machine_is_not_paced_at_either_end() {
        if !is_available("bbr") || !is_available(UNPACED) {
            skip!("this kernel has no BBR, or does not let this user choose it and Reno");
        }
        let listener = listener_with_bbr();
        let acceptance = Acceptance::prepare(&listener);
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        set_tcp_congestion(&socket, "bbr").unwrap();
        let to = listener.local_addr().unwrap();
        before_connecting(&socket, to);
        socket.connect(&to.into()).unwrap();
        let (accepted, _) = listener.accept().unwrap();
        acceptance.settle(&accepted).unwrap();
        assert_eq!(tcp_congestion(&accepted).unwrap(), UNPACED);
        assert_eq!(tcp_congestion(&socket).unwrap(), UNPACED);
    }

    #[test]
    fn a_connection_from_elsewhere_gets_what_the_host_has() {
        if !is_available("bbr") || !is_available(UNPACED) {
            skip!("this kernel has no BBR, or does not let this user choose it and Reno");
        }
        let listener = listener_with_bbr();
        let acceptance = Acceptance::prepare(&listener);
        assert_eq!(tcp_congestion(&listener).unwrap(), UNPACED);
        assert_eq!(acceptance.put_off.as_deref(), Some("bbr"));
        // No other machine is at hand: who is one is tested below.
        let _client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (accepted, _) = listener.accept().unwrap();
        assert_eq!(tcp_congestion(&accepted).unwrap(), UNPACED);
        acceptance.give_back(&accepted).unwrap();
        assert_eq!(tcp_congestion(&accepted).unwrap(), "bbr");
    }

    #[test]
    fn what_does_not_pace_is_left_as_it_is() {
        if !is_available(UNPACED) {
            skip!("this system does not let this user choose Reno");
        }
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        set_tcp_congestion(&listener, UNPACED).unwrap();
        assert_eq!(Acceptance::prepare(&listener).put_off, None);
    }

    #[test]
    fn ends_of_one_machine_are_told_from_others() {
        let same =
            |here: &str, there: &str| are_of_one_machine(here.parse().unwrap(), there.parse().unwrap());
        assert!(same("127.0.0.1", "127.0.0.1") && same("127.0.0.1", "127.1.2.3") && same("::1", "::1"));
        assert!(same("192.0.2.1", "192.0.2.1") && same("2001:db8::1", "2001:db8::1"));
        assert!(same("::ffff:127.0.0.1", "::ffff:127.0.0.1"));
        assert!(!same("192.0.2.1", "192.0.2.2") && !same("2001:db8::1", "2001:db8::2"));
        assert!(is_own("127.0.0.9:3260".parse().unwrap()) && is_own("[::1]:3260".parse().unwrap()));
        // Documentation addresses (RFC 5737) are nobody's.
        assert!(!is_own("192.0.2.77:3260".parse().unwrap()));
    }
}
