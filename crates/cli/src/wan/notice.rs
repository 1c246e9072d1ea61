//! How whoever connects to a proxy of this machine learns that it is one, so that nobody takes his figures for those of a
//! network.
//!
//! The proxy listens on a socket with a name that has its address in it, in the network namespace that the address is in: there
//! is nothing in the file system, and the name goes with the process. Who measures stays connected, and is told at the end what is
//! wrong with his figures ([`super::witness`]).

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs, UdpSocket};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr as UnixAddress, UnixListener, UnixStream};
use std::sync::Arc;

use lunette_link::Link;
use lunette_wan::Watcher;

use super::witness::{SharedLink, Witness, answer, unheard};

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

/// Tells whoever asks, as long as this process lives, that there is a proxy with this link at the address, and how it was kept.
///
/// # Errors
/// There are too many descriptors or threads, or somebody else says so of this address.
pub(super) fn announce(address: SocketAddr, link: &Link, watcher: Watcher) -> io::Result<()> {
    answer(UnixListener::bind_addr(&name(address)?)?, &Arc::new(watcher), &SharedLink::new(link))
}

/// The link of the proxy that listens at a host's port, as results have it; `None` if there is none on this machine.
pub(crate) fn proxied(host: &str, port: u16) -> Option<String> {
    // A name that nobody knows is found out by whoever connects.
    let addresses = (host, port).to_socket_addrs().ok()?;
    let stream = addresses.flat_map(listened).find_map(connected)?;
    Some(told(Witness::begin(stream).ok().as_ref()))
}

/// Begins a measurement over the proxy that listens at a host's port.
///
/// # Errors
/// There is none on this machine, or it does not answer: a sentence that stands for the doubt, which then is not known.
pub(crate) fn call_proxy(host: &str, port: u16) -> Result<Witness, String> {
    let addresses = (host, port).to_socket_addrs().into_iter().flatten();
    let stream = addresses.flat_map(listened).find_map(connected);
    let stream = stream.ok_or_else(|| unheard(&io::Error::other("no proxy of this machine is there")))?;
    let witness = Witness::begin(stream).map_err(|error| unheard(&error))?;
    let link = told(Some(&witness));
    Ok(witness.named(link))
}

/// Where somebody may listen who is reached at an address.
fn listened(address: SocketAddr) -> Vec<SocketAddr> {
    // Only an address of this machine can be bound.
    let is_local = UdpSocket::bind((address.ip(), 0)).is_ok();
    let all: [IpAddr; 2] = [Ipv4Addr::UNSPECIFIED.into(), Ipv6Addr::UNSPECIFIED.into()];
    let all = all.into_iter().filter(|_| is_local).map(|all| SocketAddr::new(all, address.port()));
    std::iter::once(address).chain(all).collect()
}

/// The proxy that listens at an address, if there is one.
fn connected(address: SocketAddr) -> Option<UnixStream> {
    UnixStream::connect_addr(&name(address).ok()?).ok()
}

/// What a proxy says. Any user may have its name: it is a link or nothing.
fn told(witness: Option<&Witness>) -> String {
    let link = witness.and_then(|witness| witness.link().parse::<Link>().ok());
    link.map_or_else(|| format!("{NOTE}{UNKNOWN}"), |link| note(&link))
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::thread;

    use lunette_wan::Proxy;

    use super::super::witness::{Begun, send};
    use super::*;

    /// A port that nobody else has as long as it is listened on.
    fn port(at: &str) -> (TcpListener, SocketAddr) {
        let listener = TcpListener::bind((at, 0)).expect("a port");
        let address = listener.local_addr().expect("an address");
        (listener, address)
    }

    /// Of a proxy that carries nothing.
    fn watcher() -> Watcher {
        let anywhere = (Ipv4Addr::LOCALHOST, 0).into();
        let link = "local".parse().expect("a link");
        Proxy::start(anywhere, anywhere, &link, 1).expect("a proxy").watcher()
    }

    #[test]
    fn who_measures_over_a_proxy_is_told_whether_it_was_kept() {
        let link: Link = "oc3-50".parse().expect("a link");
        let (_one, address) = port("127.0.0.1");
        let unheard = call_proxy("127.0.0.1", address.port()).err().unwrap_or_default();
        assert!(unheard.contains("nobody says how the link was kept: no proxy"), "{unheard}");
        announce(address, &link, watcher()).expect("it is free");
        let witness = call_proxy("127.0.0.1", address.port()).unwrap_or_else(|why| panic!("{why}"));
        assert_eq!(witness.end(), (note(&link), None));
    }

    #[test]
    fn a_proxy_is_known_at_its_address_and_at_no_other() {
        let link: Link = "oc3-50".parse().expect("a link");
        let (_one, address) = port("127.0.0.1");
        let (_other, elsewhere) = port("127.0.0.1");
        announce(address, &link, watcher()).expect("it is free");
        let told = proxied("127.0.0.1", address.port()).expect("a proxy");
        assert!(is_proxy(&told) && told == format!("proxy {link}"), "{told}");
        assert_eq!(proxied("127.0.0.2", address.port()), None);
        assert_eq!(proxied("127.0.0.1", elsewhere.port()), None);
    }

    #[test]
    fn a_proxy_that_listens_everywhere_is_known_at_all_addresses_of_this_machine() {
        let (_one, address) = port("0.0.0.0");
        announce(address, &"oc3-2".parse().expect("a link"), watcher()).expect("it is free");
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
                for _ in 0..2 {
                    let (stream, _) = listener.accept().expect("somebody asks");
                    send(&stream, &Begun { link: "\u{1b}[2J".to_owned() }).expect("it is heard");
                }
            });
            assert_eq!(proxied("127.0.0.1", address.port()), Some(format!("{NOTE}{UNKNOWN}")));
            let witness = call_proxy("127.0.0.1", address.port()).unwrap_or_else(|why| panic!("{why}"));
            let (link, doubt) = witness.end();
            assert_eq!(link, format!("{NOTE}{UNKNOWN}"));
            assert!(doubt.is_some_and(|doubt| doubt.starts_with("nobody says how the link was kept")));
        });
    }
}
