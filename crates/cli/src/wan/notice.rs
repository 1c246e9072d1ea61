//! How whoever connects to a proxy of this machine learns that it is one, so that nobody takes his figures for those of a
//! network.
//!
//! The proxy listens on a socket with a name that has its address in it, in the network namespace that the address is in: there
//! is nothing in the file system, and the name goes with the process.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs, UdpSocket};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr as UnixAddress, UnixListener, UnixStream};
use std::thread;

use lunette_link::Link;

use super::connections;
use super::witness::{Begun, PATIENCE, receive, send};

/// What stands before the link of a proxy.
const NOTE: &str = "proxy ";

/// What is told of a proxy that does not answer.
const UNKNOWN: &str = "of a link that is not known: it does not answer";

/// The link as results have it.
pub(super) fn note(link: &Link) -> String {
    format!("{NOTE}{link}")
}

/// Whether a link, as results have it, is that of a proxy.
pub(crate) fn is_proxy(link: &str) -> bool {
    link.starts_with(NOTE)
}

fn name(address: SocketAddr) -> io::Result<UnixAddress> {
    UnixAddress::from_abstract_name(format!("lunette-wan-proxy {address}"))
}

/// Tells whoever asks, as long as this process lives, that there is a proxy with this link at the address.
///
/// # Errors
/// There are too many descriptors or threads, or somebody else says so of this address.
pub(super) fn announce(address: SocketAddr, link: &Link) -> io::Result<()> {
    let listener = UnixListener::bind_addr(&name(address)?)?;
    let begun = Begun { link: link.to_string() };
    let answer = move || {
        for stream in connections(&listener) {
            // Whoever does not wait for the answer is no matter; it finds room without being read.
            let _ = send(&stream, &begun);
        }
    };
    thread::Builder::new().name("wan-proxy-notice".to_owned()).spawn(answer).map(drop)
}

/// The link of the proxy that listens at a host's port, as results have it; `None` if there is none on this machine.
pub(crate) fn proxied(host: &str, port: u16) -> Option<String> {
    // A name that nobody knows is found out by whoever connects.
    let addresses = (host, port).to_socket_addrs().ok()?;
    addresses.flat_map(listened).find_map(asked)
}

/// Where somebody may listen who is reached at an address.
fn listened(address: SocketAddr) -> Vec<SocketAddr> {
    // Only an address of this machine can be bound.
    let is_local = UdpSocket::bind((address.ip(), 0)).is_ok();
    let all: [IpAddr; 2] = [Ipv4Addr::UNSPECIFIED.into(), Ipv6Addr::UNSPECIFIED.into()];
    let all = all.into_iter().filter(|_| is_local).map(|all| SocketAddr::new(all, address.port()));
    std::iter::once(address).chain(all).collect()
}

/// What the proxy that listens at an address says, if there is one.
fn asked(address: SocketAddr) -> Option<String> {
    let stream = UnixStream::connect_addr(&name(address).ok()?).ok()?;
    // Any user may have that name: it is a link or nothing.
    let told = stream.set_read_timeout(Some(PATIENCE)).and_then(|()| receive::<Begun>(&stream));
    let link = told.ok().and_then(|begun| begun.link.parse::<Link>().ok());
    Some(link.map_or_else(|| format!("{NOTE}{UNKNOWN}"), |link| note(&link)))
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    /// A port that nobody else has as long as it is listened on.
    fn port(at: &str) -> (TcpListener, SocketAddr) {
        let listener = TcpListener::bind((at, 0)).expect("a port");
        let address = listener.local_addr().expect("an address");
        (listener, address)
    }

    #[test]
    fn a_proxy_is_known_at_its_address_and_at_no_other() {
        let link: Link = "oc3-50".parse().expect("a link");
        let (_one, address) = port("127.0.0.1");
        let (_other, elsewhere) = port("127.0.0.1");
        announce(address, &link).expect("it is free");
        let told = proxied("127.0.0.1", address.port()).expect("a proxy");
        assert!(is_proxy(&told) && told == format!("proxy {link}"), "{told}");
        assert_eq!(proxied("127.0.0.2", address.port()), None);
        assert_eq!(proxied("127.0.0.1", elsewhere.port()), None);
    }

    #[test]
    fn a_proxy_that_listens_everywhere_is_known_at_all_addresses_of_this_machine() {
        let (_one, address) = port("0.0.0.0");
        announce(address, &"oc3-2".parse().expect("a link")).expect("it is free");
        assert!(proxied("127.0.0.1", address.port()).is_some());
        // For documentation (RFC 5737), which no machine has.
        assert_eq!(proxied("192.0.2.1", address.port()), None);
    }

    #[test]
    fn what_is_no_link_is_not_repeated() {
        let (_one, address) = port("127.0.0.1");
        let listener = UnixListener::bind_addr(&name(address).expect("a name")).expect("it is free");
        thread::scope(|scope| {
            scope.spawn(|| {
                let (stream, _) = listener.accept().expect("somebody asks");
                send(&stream, &Begun { link: "\u{1b}[2J".to_owned() }).expect("it is heard");
            });
            assert_eq!(proxied("127.0.0.1", address.port()), Some(format!("{NOTE}{UNKNOWN}")));
        });
    }
}
