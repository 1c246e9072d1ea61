//! The portals of a running server: which group a connection came through, and which addresses an initiator is told of
//! (RFC 7143, 4.4.1, 13.8, 13.9, appendix C).

use std::io;
use std::net::{IpAddr, SocketAddr, SocketAddrV6};

use crate::config::DiscoveryScope;

/// A portal with its real port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Portal {
    pub(crate) address: SocketAddr,
    /// The portal group tag.
    pub(crate) group: u16,
}

/// All portals of a server.
#[derive(Debug)]
pub(crate) struct Portals(Vec<Portal>);

impl Portals {
    pub(crate) fn new(portals: Vec<Portal>) -> Self {
        Self(portals)
    }

    /// The group of the portal that a connection came through whose own end is `local`.
    pub(crate) fn group_of(&self, local: SocketAddr) -> Option<u16> {
        let is_same = |portal: &&Portal| has_same_place(portal.address, local);
        let is_wildcard = |portal: &&Portal| stands_for(portal.address, local);
        let found = self.0.iter().find(is_same).or_else(|| self.0.iter().find(is_wildcard));
        found.map(|portal| portal.group)
    }

    /// Every portal that an initiator can and may reach which came to `local`, as far as `scope` goes: that one first, since it
    /// surely works. `may_reach` knows addresses of this machine and groups. `own` tells this machine's addresses, and is asked
    /// only if a wildcard portal makes them count.
    pub(crate) fn told(
        &self,
        (local, scope): (SocketAddr, DiscoveryScope),
        may_reach: impl Fn(IpAddr, u16) -> bool,
        own: impl FnOnce() -> Vec<SocketAddr>,
    ) -> Vec<(SocketAddr, u16)> {
        let here = self.group_of(local);
        let is_in_scope = |address: SocketAddr, group| match scope {
            DiscoveryScope::All => true,
            DiscoveryScope::Family => address.is_ipv4() == local.is_ipv4(),
            DiscoveryScope::Group => here == Some(group),
            DiscoveryScope::Portal => has_same_place(address, local),
        };
        let mut told: Vec<(SocketAddr, u16)> = Vec::new();
        told.extend(
            here.filter(|&group| may_reach(local.ip(), group)).map(|group| (without_scope(local), group)),
        );
        let has_wildcard = self.0.iter().any(|portal| portal.address.ip().is_unspecified());
        let own = if has_wildcard { own() } else { Vec::new() };
        for &Portal { address: named, group } in &self.0 {
            let addresses = if named.ip().is_unspecified() { &own[..] } else { &[named][..] };
            for &address in addresses {
                let mut address = address;
                address.set_port(named.port());
                let entry = (without_scope(address), group);
                if address.is_ipv4() == named.is_ipv4()
                    && is_in_reach(address, local)
                    && is_in_scope(address, group)
                    && may_reach(address.ip(), group)
                    && !told.contains(&entry)
                {
                    told.push(entry);
                }
            }
        }
        told
    }
}

/// The addresses of this machine's interfaces that are up, with port 0; link-local ones with their interface.
///
/// # Errors
/// The system does not tell them.
pub(crate) fn own_addresses() -> io::Result<Vec<SocketAddr>> {
    let address = |interface: if_addrs::Interface| match interface.ip() {
        IpAddr::V6(ip) if ip.is_unicast_link_local() => {
            SocketAddrV6::new(ip, 0, 0, interface.index.unwrap_or(0)).into()
        }
        ip => SocketAddr::new(ip, 0),
    };
    let up = if_addrs::get_if_addrs()?.into_iter().filter(if_addrs::Interface::is_oper_up);
    Ok(up.map(address).collect())
}

/// Equal but for IPv6's flow label.
fn has_same_place(portal: SocketAddr, local: SocketAddr) -> bool {
    portal.ip() == local.ip() && portal.port() == local.port() && scope(portal) == scope(local)
}

fn stands_for(wildcard: SocketAddr, local: SocketAddr) -> bool {
    wildcard.ip().is_unspecified() && wildcard.is_ipv4() == local.is_ipv4() && wildcard.port() == local.port()
}

/// The interface of a link-local address; elsewhere it has no meaning.
fn scope(address: SocketAddr) -> Option<u32> {
    match address {
        SocketAddr::V6(address) if address.ip().is_unicast_link_local() => Some(address.scope_id()),
        _ => None,
    }
}

/// Loopback addresses are of use to this machine alone, link-local ones on their link; others must not be told of them.
fn is_in_reach(address: SocketAddr, local: SocketAddr) -> bool {
    if address.ip().is_loopback() {
        return local.ip().is_loopback();
    }
    scope(address).is_none() || scope(address) == scope(local)
}

/// The number of an interface means nothing to another machine.
fn without_scope(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip(), address.port())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn portals(texts: &[&str]) -> Portals {
        let portal = |text: &&str| {
            let (address, group) = text.split_once(',').unwrap_or((text, "1"));
            Portal { address: address.parse().unwrap(), group: group.parse().unwrap() }
        };
        Portals::new(texts.iter().map(portal).collect())
    }

    /// What is told to an initiator that came to `local` of a target in `groups`, on a machine with some addresses.
    fn told(local: &str, texts: &[&str], groups: &[u16]) -> Vec<String> {
        told_in(DiscoveryScope::All, local, texts, |_, group| groups.contains(&group))
    }

    fn told_in(
        scope: DiscoveryScope,
        local: &str,
        texts: &[&str],
        may_reach: impl Fn(IpAddr, u16) -> bool,
    ) -> Vec<String> {
        let own = ["127.0.0.1", "192.0.2.1", "192.0.2.2", "::1", "2001:db8::1"];
        let own = || {
            let mut own: Vec<SocketAddr> =
                own.iter().map(|ip| SocketAddr::new(ip.parse().unwrap(), 0)).collect();
            own.push("[fe80::1%3]:0".parse().unwrap());
            own
        };
        let told = portals(texts).told((local.parse().unwrap(), scope), may_reach, own);
        told.iter().map(|(address, group)| format!("{address},{group}")).collect()
    }

    #[test]
    fn portals_of_both_ip_versions_are_told_and_the_one_that_works_first() {
        let portals = ["192.0.2.1:3260,1", "[2001:db8::1]:3260,1", "192.0.2.2:3261,1"];
        assert_eq!(told("192.0.2.1:3260", &portals, &[1]), portals);
        assert_eq!(told("[2001:db8::1]:3260", &portals, &[1]), [portals[1], portals[0], portals[2]]);
    }

    #[test]
    fn loopback_portals_are_told_to_those_who_came_through_one() {
        let portals = ["127.0.0.1:3260", "[::1]:3260", "192.0.2.1:3260"];
        assert_eq!(told("192.0.2.1:3260", &portals, &[1]), ["192.0.2.1:3260,1"]);
        assert_eq!(
            told("[::1]:3260", &portals, &[1]),
            ["[::1]:3260,1", "127.0.0.1:3260,1", "192.0.2.1:3260,1"]
        );
    }

    #[test]
    fn a_wildcard_is_all_addresses_of_its_version() {
        let portals = ["0.0.0.0:3260", "[::]:3261"];
        assert_eq!(
            told("192.0.2.2:3260", &portals, &[1]),
            ["192.0.2.2:3260,1", "192.0.2.1:3260,1", "[2001:db8::1]:3261,1"]
        );
        let local = told("127.0.0.1:3260", &portals, &[1]);
        assert!(local.contains(&"[::1]:3261,1".to_owned()), "{local:?}");
    }

    #[test]
    fn link_local_addresses_are_told_on_their_link_without_the_number_of_the_interface() {
        let portals = ["[fe80::1%3]:3260", "[fe80::2%4]:3260", "192.0.2.1:3260"];
        assert_eq!(told("[fe80::1%3]:3260", &portals, &[1]), ["[fe80::1]:3260,1", "192.0.2.1:3260,1"]);
        assert_eq!(told("192.0.2.1:3260", &portals, &[1]), ["192.0.2.1:3260,1"]);
        assert_eq!(told("[fe80::1%3]:3260", &["[::]:3260"], &[1])[0], "[fe80::1]:3260,1");
    }

    #[test]
    fn only_the_groups_of_the_target_are_told() {
        let portals = ["192.0.2.1:3260,1", "192.0.2.2:3260,2", "192.0.2.2:3261,3"];
        assert_eq!(told("192.0.2.1:3260", &portals, &[2, 3]), ["192.0.2.2:3260,2", "192.0.2.2:3261,3"]);
        assert_eq!(told("192.0.2.2:3260", &portals, &[1, 2])[0], "192.0.2.2:3260,2");
        assert_eq!(told("192.0.2.1:3260", &portals, &[]), [""; 0]);
    }

    #[test]
    fn a_scope_leaves_out_what_is_beyond_it() {
        let portals = ["192.0.2.1:3260,1", "192.0.2.2:3260,1", "[2001:db8::1]:3260,1", "192.0.2.1:3261,2"];
        let told = |scope, local| told_in(scope, local, &portals, |_, _| true);
        assert_eq!(told(DiscoveryScope::All, "192.0.2.1:3260"), portals);
        assert_eq!(told(DiscoveryScope::Family, "192.0.2.1:3260"), [portals[0], portals[1], portals[3]]);
        assert_eq!(told(DiscoveryScope::Family, "[2001:db8::1]:3260"), [portals[2]]);
        assert_eq!(told(DiscoveryScope::Group, "192.0.2.2:3260"), [portals[1], portals[0], portals[2]]);
        assert_eq!(told(DiscoveryScope::Group, "192.0.2.1:3261"), [portals[3]]);
        assert_eq!(told(DiscoveryScope::Portal, "192.0.2.1:3261"), [portals[3]]);
        let wild = told_in(DiscoveryScope::Portal, "192.0.2.2:3260", &["0.0.0.0:3260"], |_, _| true);
        assert_eq!(wild, ["192.0.2.2:3260,1"]);
    }

    #[test]
    fn a_portal_that_is_closed_to_who_asks_is_not_told() {
        let portals = ["192.0.2.1:3260,1", "192.0.2.2:3260,1", "0.0.0.0:3261,2"];
        let open: IpAddr = "192.0.2.2".parse().unwrap();
        let told = |scope, local| told_in(scope, local, &portals, |portal, _| portal == open);
        assert_eq!(told(DiscoveryScope::All, "192.0.2.1:3260"), ["192.0.2.2:3260,1", "192.0.2.2:3261,2"]);
        assert_eq!(told(DiscoveryScope::Portal, "192.0.2.1:3260"), [""; 0]);
    }

    #[test]
    fn a_connection_belongs_to_the_group_of_its_portal() {
        let portals = portals(&["192.0.2.1:3260,1", "0.0.0.0:3261,2", "[::]:3261,3", "[fe80::1%3]:3260,4"]);
        let group = |local: &str| portals.group_of(local.parse().unwrap());
        assert_eq!(group("192.0.2.1:3260"), Some(1));
        assert_eq!(group("192.0.2.1:3261"), Some(2));
        assert_eq!(group("[2001:db8::1]:3261"), Some(3));
        assert_eq!(group("[fe80::1%3]:3260"), Some(4));
        assert_eq!((group("[fe80::1%4]:3260"), group("192.0.2.9:3260")), (None, None));
    }

    #[test]
    fn this_machine_has_addresses() {
        let own = own_addresses().unwrap();
        assert!(own.iter().any(|address| address.ip().is_loopback()), "{own:?}");
    }
}
