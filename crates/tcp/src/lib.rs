//! What Lunette asks of TCP: connections within this machine that are not paced (docs/decisions/0050), and what the kernel knows of a
//! connection ([`Facts`]).
//!
//! BBR, which is the default of many hosts, finds out what a path carries and sends no faster. Where both ends are in one machine there
//! is no path: what it finds is how the two programs have taken turns, and its timers cost more than what they time. Such connections
//! have Reno instead. Others keep what their host gives them, and so do all where the host does not pace.
//!
//! A connection that was paced once stays so (Linux keeps `sk_pacing_status`), so this has to be settled before it is there: by who
//! connects before that, by who listens on the listening socket, which those that it accepts take after.

mod facts;

use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::AsFd;

use rustix::net::sockopt::{set_tcp_congestion, tcp_congestion};
use socket2::{Domain, Protocol, SockRef, Socket, Type};

pub use facts::Facts;

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

/// The congestion control that a connection to `to` has which was prepared so, for who tells of it. Nothing is sent.
///
/// # Errors
/// There is no socket of that family, or the kernel does not tell.
pub fn congestion_control_to(to: SocketAddr) -> io::Result<String> {
    let socket = Socket::new(Domain::for_address(to), Type::STREAM, Some(Protocol::TCP))?;
    prepared_control(&socket, to)
}

fn prepared_control(socket: &Socket, to: SocketAddr) -> io::Result<String> {
    before_connecting(socket, to);
    Ok(tcp_congestion(socket)?)
}

/// What connections that a listening socket accepts are to have.
#[derive(Debug)]
pub struct Acceptance {
    /// The host's own congestion control, if connections begin without it.
    put_off: Option<String>,
}

impl Acceptance {
    /// To be called before connections come, best before the socket listens: has them begin without pacing, if this host would pace them.
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

    /// To be called before anything is sent on an accepted connection: one from another machine gets what the host had for it when the
    /// listening socket was prepared, unless its route has chosen something else.
    pub fn settle(&self, accepted: impl AsFd) {
        let Some(own) = &self.put_off else { return };
        if is_from_elsewhere(&accepted) && tcp_congestion(&accepted).is_ok_and(|name| name == UNPACED) {
            // It was allowed on the listening socket. Refused after all, the connection is not paced.
            let _ = set_tcp_congestion(accepted, own);
        }
    }
}

/// A connection that is gone already is not.
fn is_from_elsewhere(accepted: impl AsFd) -> bool {
    let socket = SockRef::from(&accepted);
    let ends = socket.local_addr().and_then(|here| Ok((here.as_socket(), socket.peer_addr()?.as_socket())));
    matches!(ends, Ok((Some(here), Some(there))) if !are_of_one_machine(here.ip(), there.ip()))
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
    let ends = UdpSocket::bind(any).and_then(|socket| {
        socket.connect(address)?;
        Ok((socket.local_addr()?, socket.peer_addr()?))
    });
    ends.is_ok_and(|(here, there)| are_of_one_machine(here.ip(), there.ip()))
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use lunette_skip::record_lacking;

    use super::*;

    /// A socket of a host that has BBR. It may not be there, or not be allowed: "bbr" is a module that many kernels have not loaded.
    fn paced_socket() -> Option<Socket> {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        let has_both = [UNPACED, "bbr"].iter().all(|name| set_tcp_congestion(&socket, name).is_ok());
        if !has_both {
            record_lacking("this kernel has no BBR, or does not let this user choose it and Reno");
        }
        has_both.then_some(socket)
    }

    /// A prepared listener on an address, and where it listens.
    fn listener(at: SocketAddr) -> Option<(TcpListener, Acceptance, SocketAddr)> {
        let socket = paced_socket()?;
        socket.bind(&at.into()).unwrap();
        let acceptance = Acceptance::prepare(&socket);
        assert_eq!(acceptance.put_off.as_deref(), Some("bbr"));
        socket.listen(1).unwrap();
        let listener = TcpListener::from(socket);
        let address = listener.local_addr().unwrap();
        Some((listener, acceptance, address))
    }

    /// An address of this machine's that is not a loopback one, if it has any.
    fn own_address() -> Option<IpAddr> {
        let own = if_addrs::get_if_addrs().unwrap();
        own.into_iter().map(|interface| interface.ip()).find(|ip| ip.is_ipv4() && !ip.is_loopback())
    }

    #[test]
    fn a_connection_within_the_machine_is_not_paced_at_either_end() {
        let Some((listener, acceptance, to)) = listener(([127, 0, 0, 1], 0).into()) else { return };
        let socket = paced_socket().unwrap();
        before_connecting(&socket, to);
        socket.connect(&to.into()).unwrap();
        let (accepted, _) = listener.accept().unwrap();
        acceptance.settle(&accepted);
        assert_eq!(tcp_congestion(&accepted).unwrap(), UNPACED);
        assert_eq!(tcp_congestion(&socket).unwrap(), UNPACED);
        assert_eq!(prepared_control(&paced_socket().unwrap(), to).unwrap(), UNPACED, "what is told of it");
        let own = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        assert_eq!(congestion_control_to(to).unwrap(), prepared_control(&own, to).unwrap());
    }

    #[test]
    fn a_connection_from_elsewhere_gets_what_the_host_has() {
        let Some(own) = own_address() else {
            return record_lacking("this machine has no address but loopback ones");
        };
        let Some((listener, acceptance, to)) = listener(([0; 4], 0).into()) else { return };
        // From one address of this machine to another one, which is as from another machine by what the addresses tell.
        let client = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        client.bind(&SocketAddr::new(own, 0).into()).unwrap();
        client.connect(&SocketAddr::new([127, 0, 0, 1].into(), to.port()).into()).unwrap();
        let (accepted, _) = listener.accept().unwrap();
        assert_eq!(tcp_congestion(&accepted).unwrap(), UNPACED);
        acceptance.settle(&accepted);
        assert_eq!(tcp_congestion(&accepted).unwrap(), "bbr");
    }

    #[test]
    fn what_does_not_pace_is_left_as_it_is() {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        if set_tcp_congestion(&socket, UNPACED).is_err() {
            return record_lacking("this system does not let this user choose Reno");
        }
        assert_eq!(Acceptance::prepare(&socket).put_off, None);
    }

    #[test]
    fn ends_of_one_machine_are_told_from_others() {
        let same =
            |here: &str, there: &str| are_of_one_machine(here.parse().unwrap(), there.parse().unwrap());
        assert!(same("127.0.0.1", "127.0.0.1") && same("127.0.0.1", "127.1.2.3") && same("::1", "::1"));
        assert!(same("192.0.2.1", "192.0.2.1") && same("2001:db8::1", "2001:db8::1"));
        assert!(same("::ffff:127.0.0.1", "::ffff:127.0.0.1"));
        assert!(!same("192.0.2.1", "192.0.2.2") && !same("2001:db8::1", "2001:db8::2"));
    }

    #[test]
    fn own_addresses_are_known() {
        let is_own_text = |text: &str| is_own(text.parse().unwrap());
        assert!(is_own_text("127.0.0.9:3260") && is_own_text("[::1]:3260") && is_own_text("0.0.0.0:3260"));
        // Documentation addresses (RFC 5737) are nobody's.
        assert!(!is_own_text("192.0.2.77:3260"));
        assert!(own_address().is_none_or(|own| is_own(SocketAddr::new(own, 3260))));
    }
}
