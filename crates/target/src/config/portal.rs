//! Where the target listens: portals and their groups (RFC 7143, 4.4.1, 13.9), and where targets have moved to.
//!
//! Not here: whether an address can be listened on (`crate::listener`), and what initiators are told of (`crate::portals`).

use std::fmt;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV6, ToSocketAddrs};
use std::str::FromStr;

use lunette_iscsi::login::{REDIRECTION_ADDRESSES_MAX, Redirection, TargetAddress};
use serde::Deserialize;
use toml::Spanned;

use super::file::Fault;
use super::value::{DEFAULT_PORT, Parsed, ValueError, parse_portal};
use super::{Config, Invalid, Step, TargetConfig};

/// The group of portals that are not given one.
pub const DEFAULT_GROUP: u16 = 1;

/// One address to listen on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PortalConfig {
    /// The address; port 0 picks a free one.
    pub address: SocketAddr,
    /// The portal group tag, 1 to 65535. The connections of one session come through one group.
    pub group: u16,
}

impl From<SocketAddr> for PortalConfig {
    fn from(address: SocketAddr) -> Self {
        Self { address, group: DEFAULT_GROUP }
    }
}

impl FromStr for PortalConfig {
    type Err = ValueError;

    /// Reads an address as [`parse_portal`] does; the group is [`DEFAULT_GROUP`].
    fn from_str(text: &str) -> Result<Self, ValueError> {
        parse_portal(text).map(Self::from)
    }
}

/// Reads a link-local IPv6 address with the interface that it belongs to: `fe80::1%eth0`. `None`: it has none.
///
/// # Errors
/// There is no such interface here.
pub(super) fn parse_scoped(text: &str) -> Option<Result<Ipv6Scoped, ValueError>> {
    let (address, interface) = text.split_once('%')?;
    let address: Ipv6Addr = address.parse().ok()?;
    let scope = interface_index(interface).ok_or_else(|| {
        ValueError(format!(
            "this machine has no network interface {interface:?}; `ip link` shows those that it has"
        ))
    });
    Some(scope.map(|scope| Ipv6Scoped { address, scope }))
}

/// An IPv6 address on one link.
pub(super) struct Ipv6Scoped {
    address: Ipv6Addr,
    scope: u32,
}

impl Ipv6Scoped {
    pub(super) fn with_port(&self, port: u16) -> SocketAddr {
        SocketAddrV6::new(self.address, port, 0, self.scope).into()
    }
}

fn interface_index(name: &str) -> Option<u32> {
    use rustix::net::{AddressFamily, SocketType, netdevice, socket};
    if let Ok(index) = name.parse() {
        return Some(index);
    }
    // Any socket will do; it only says whom to ask.
    let socket = socket(AddressFamily::INET6, SocketType::DGRAM, None)
        .or_else(|_| socket(AddressFamily::UNIX, SocketType::DGRAM, None))
        .ok()?;
    netdevice::name_to_index(&socket, name).ok()
}

/// `[[portal]]`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawPortal {
    address: Spanned<String>,
    port: Option<u16>,
    group: Option<Parsed<Group>>,
}

/// A portal group tag (13.9).
#[derive(Debug, Clone, Copy)]
pub(super) struct Group(pub(super) u16);

impl FromStr for Group {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        match text.parse() {
            Ok(0) | Err(_) => {
                Err(ValueError(format!("{text:?} is not a portal group; they are numbered 1 to 65535")))
            }
            Ok(group) => Ok(Self(group)),
        }
    }
}

impl RawPortal {
    /// The portals that a table stands for: one, or one for each address of a host's name, which is looked up now and not again.
    pub(super) fn resolve(self) -> Result<Vec<PortalConfig>, Fault> {
        let at = self.address.span();
        let (text, port) = (self.address.into_inner(), self.port.unwrap_or(DEFAULT_PORT));
        let group = self.group.map_or(DEFAULT_GROUP, |Parsed(Group(group))| group);
        let addresses = addresses(&text, port).map_err(|ValueError(message)| Fault { at, message })?;
        Ok(addresses.into_iter().map(|address| PortalConfig { address, group }).collect())
    }
}

fn addresses(text: &str, port: u16) -> Result<Vec<SocketAddr>, ValueError> {
    if let Some(scoped) = parse_scoped(text) {
        return Ok(vec![scoped?.with_port(port)]);
    }
    if let Ok(address) = text.parse::<IpAddr>() {
        return Ok(vec![SocketAddr::new(address, port)]);
    }
    let advice = "write an IP address, fe80::1%eth0 with its interface, or the name of a host; the port is a key of its own";
    if text.is_empty()
        || text.contains(|character: char| character.is_whitespace() || ":[]/%*".contains(character))
    {
        return Err(ValueError(format!("{text:?} is no address; {advice}")));
    }
    let found = (text, port).to_socket_addrs();
    let mut found: Vec<SocketAddr> = found
        .map_err(|error| ValueError(format!("the host {text:?} is not found: {error}; {advice}")))?
        .collect();
    found.sort_unstable();
    found.dedup();
    Ok(found)
}

/// `[target.redirect]`: where the target is now.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawRedirect {
    to: Vec<Parsed<TargetAddress>>,
    #[serde(default)]
    permanent: bool,
}

impl RawRedirect {
    pub(super) fn into_redirection(raw: Spanned<Self>) -> Result<Redirection, Fault> {
        let at = raw.span();
        let Self { to, permanent } = raw.into_inner();
        let addresses = to.into_iter().map(|Parsed(address)| address).collect();
        Redirection::new(permanent, addresses).ok_or_else(|| Fault {
            at,
            message: format!("a redirection goes to 1 to {REDIRECTION_ADDRESSES_MAX} addresses"),
        })
    }
}

impl Config {
    /// The rules between portals.
    pub(super) fn validate_portals(&self) -> Result<(), Invalid> {
        if self.portals.is_empty() {
            return Err(Invalid::new(["portals".into()], "there is no portal to listen on"));
        }
        for (index, portal) in self.portals.iter().enumerate() {
            let address = portal.address;
            let at = || [Step::from("portals"), index.into()];
            // Port 0 is another port each time.
            if address.port() != 0 && self.portals[..index].iter().any(|other| other.address == address) {
                return Err(Invalid::new(at(), format!("portal {address} is given twice")));
            }
            if let Some(other) = self.portals[..index].iter().find(|other| overlap(other.address, address)) {
                let all = if address.ip().is_unspecified() { address.ip() } else { other.address.ip() };
                let message = format!(
                    "portals {} and {address} overlap: {all} is all addresses of its family; leave one of them out, or give it \
                     another port",
                    other.address
                );
                return Err(Invalid::new(at(), message));
            }
            if let SocketAddr::V6(address) = address
                && address.ip().is_unicast_link_local()
                && address.scope_id() == 0
            {
                let message = format!(
                    "{} is link-local: say on which interface, as in {}%eth0",
                    address.ip(),
                    address.ip()
                );
                return Err(Invalid::new(at(), message));
            }
        }
        Ok(())
    }
}

/// Whether the kernel refuses to listen on both, since one is all addresses. Those of IPv6 are of IPv6 alone here.
fn overlap(one: SocketAddr, other: SocketAddr) -> bool {
    one.is_ipv4() == other.is_ipv4()
        && one.port() == other.port()
        && one.port() != 0
        && (one.ip().is_unspecified() || other.ip().is_unspecified())
}

impl TargetConfig {
    /// Whether the target is reached through a portal group.
    #[must_use]
    pub fn is_in(&self, group: u16) -> bool {
        self.groups.is_empty() || self.groups.contains(&group)
    }

    /// That there are the groups that the target is bound to.
    pub(super) fn validate_groups(&self, place: &[Step], portals: &[PortalConfig]) -> Result<(), Invalid> {
        let missing = self.groups.iter().find(|&&group| portals.iter().all(|portal| portal.group != group));
        let Some(group) = missing else { return Ok(()) };
        let at = place.iter().cloned().chain(["groups".into()]);
        let message = format!("there is no portal in group {group}; add a [[portal]] with group = {group}");
        Err(Invalid::new(at, message))
    }
}

impl fmt::Display for PortalConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{},{}", self.address, self.group)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_one_portal_and_a_name_may_be_several() {
        assert_eq!(addresses("192.0.2.7", 1).unwrap(), ["192.0.2.7:1".parse().unwrap()]);
        assert_eq!(addresses("2001:db8::7", 1).unwrap(), ["[2001:db8::7]:1".parse().unwrap()]);
        let local = addresses("localhost", 7).unwrap();
        assert!(!local.is_empty() && local.iter().all(|at| at.ip().is_loopback() && at.port() == 7));
    }

    #[test]
    fn an_interface_is_named_or_numbered() {
        let SocketAddr::V6(by_name) = addresses("fe80::1%lo", 3260).unwrap()[0] else { panic!("IPv6") };
        let number = format!("fe80::1%{}", by_name.scope_id());
        assert_eq!(addresses(&number, 3260).unwrap(), [SocketAddr::V6(by_name)]);
        assert!(addresses("fe80::1%no-such-one", 3260).unwrap_err().0.contains("no network interface"));
        assert_eq!(parse_portal("fe80::1%lo").unwrap(), SocketAddr::V6(by_name));
        assert_eq!(parse_portal("[fe80::1%lo]:3260").unwrap(), SocketAddr::V6(by_name));
    }

    #[test]
    fn what_is_no_address_is_not_looked_up() {
        for text in ["", "192.0.2.7:3260", "[::1]", "a b", "*", "192.0.2.0/24"] {
            assert!(addresses(text, 1).unwrap_err().0.contains("is no address"), "{text:?}");
        }
        assert!("0".parse::<Group>().is_err() && "65536".parse::<Group>().is_err());
    }
}
