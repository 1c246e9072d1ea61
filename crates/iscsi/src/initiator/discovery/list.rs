//! What an answer to SendTargets says (RFC 7143, appendix C and 13.8): targets and where they are.

use std::fmt;
use std::str::FromStr;

use lunette_wire::text::pairs_up_to;

use super::DiscoveryError;
use crate::Quoted;
use crate::name::IscsiName;

/// The most targets and addresses that an answer may list.
pub const TARGETS_MAX: usize = 65536;
/// The port that IANA gave to iSCSI (RFC 7143, 13.8).
pub const DEFAULT_PORT: u16 = 3260;
/// The longest host, in bytes: a name of RFC 1035 or an IPv6 address with its zone.
const HOST_LENGTH_MAX: usize = 253;

/// Where a target is: the value of TargetAddress.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Portal {
    /// A name or an IP address, without brackets.
    pub host: String,
    /// The port.
    pub port: u16,
    /// The portal group; only sessions to portals of one group may have several connections (13.9).
    pub portal_group_tag: Option<u16>,
}

/// Why a text is no address.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{} is no address; one is 192.0.2.7, [2001:db8::7]:3260 or storage.example.com:3260", Quoted(.0))]
pub struct PortalError(String);

impl Portal {
    /// A portal without a known group.
    #[must_use]
    pub fn new(host: impl Into<String>, port: u16) -> Self {
        Self { host: host.into(), port, portal_group_tag: None }
    }

    /// True for the same host and port, whatever the group.
    #[must_use]
    pub fn is_at(&self, other: &Self) -> bool {
        self.port == other.port && self.host.eq_ignore_ascii_case(&other.host)
    }

    /// Reads `host[:port][,group]`; an IPv6 address is in brackets, unless it stands alone.
    ///
    /// # Errors
    /// [`PortalError`] for anything else.
    pub fn parse(text: &str, default_port: u16) -> Result<Self, PortalError> {
        let error = || PortalError(text.to_owned());
        let (address, tag) = match text.rsplit_once(',') {
            Some((address, tag)) => (address, Some(tag.parse::<u16>().map_err(|_| error())?)),
            None => (text, None),
        };
        let (host, port) = match address.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
            Some((host, "")) => (host, None),
            Some((host, rest)) => (host, Some(rest.strip_prefix(':').ok_or_else(error)?)),
            None => match address.split_once(':') {
                Some((_, rest)) if rest.contains(':') => (address, None),
                Some((host, port)) => (host, Some(port)),
                None => (address, None),
            },
        };
        let is_digits = |port: &str| !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit());
        let port = match port {
            None => default_port,
            Some(port) if is_digits(port) => port.parse().map_err(|_| error())?,
            Some(_) => return Err(error()),
        };
        let is_host_character = |c: char| {
            !c.is_whitespace() && !c.is_control() && !matches!(c, '[' | ']' | ',' | '/' | '@' | '?')
        };
        let is_host = (1..=HOST_LENGTH_MAX).contains(&host.len()) && host.chars().all(is_host_character);
        if !is_host || port == 0 {
            return Err(error());
        }
        Ok(Self { host: host.to_owned(), port, portal_group_tag: tag })
    }
}

impl FromStr for Portal {
    type Err = PortalError;

    /// [`Self::parse`] with iSCSI's port.
    fn from_str(text: &str) -> Result<Self, PortalError> {
        Self::parse(text, DEFAULT_PORT)
    }
}

impl fmt::Display for Portal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)?;
        } else {
            write!(f, "{}:{}", self.host, self.port)?;
        }
        self.portal_group_tag.map_or(Ok(()), |tag| write!(f, ",{tag}"))
    }
}

/// A target that a discovery has found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DiscoveredTarget {
    /// Its name.
    pub name: IscsiName,
    /// Where it is; empty: at the address that was asked (appendix C).
    pub portals: Vec<Portal>,
}

/// Reads a whole answer. What is not about names and addresses is passed over, as appendix C allows for.
///
/// # Errors
/// [`DiscoveryError::Protocol`] for what is no text of pairs, no name or no address, or an address that belongs to no name;
/// [`DiscoveryError::Endless`] beyond [`TARGETS_MAX`].
pub fn read(text: &[u8]) -> Result<Vec<DiscoveredTarget>, DiscoveryError> {
    let fault = |what: String| DiscoveryError::Protocol(what);
    let mut targets: Vec<DiscoveredTarget> = Vec::new();
    let pairs = pairs_up_to(text, TARGETS_MAX).map_err(|error| match error {
        lunette_wire::text::TextError::TooLong(max) => {
            DiscoveryError::Endless(format!("{max} targets and addresses"))
        }
        other => fault(other.to_string()),
    })?;
    for (key, value) in pairs {
        match key {
            "TargetName" => {
                let name = IscsiName::from_peer(value).map_err(|error| fault(error.to_string()))?;
                targets.push(DiscoveredTarget { name, portals: Vec::new() });
            }
            "TargetAddress" => {
                let portal = value.parse().map_err(|error: PortalError| fault(error.to_string()))?;
                let target = targets
                    .last_mut()
                    .ok_or_else(|| fault("an address comes before the name of its target".into()))?;
                target.portals.push(portal);
            }
            _ => {}
        }
    }
    Ok(targets)
}

#[cfg(test)]
mod tests {
    use super::*;
    use lunette_cases::cases;
    use proptest::prelude::*;

    #[test]
    fn portals_are_read_and_written() {
        for (text, shown) in [
            ("192.0.2.7", "192.0.2.7:3260"),
            ("192.0.2.7:860,1", "192.0.2.7:860,1"),
            ("[2001:db8::7]:3260,65535", "[2001:db8::7]:3260,65535"),
            ("[2001:db8::7]", "[2001:db8::7]:3260"),
            ("2001:db8::7", "[2001:db8::7]:3260"),
            ("[fe80::1%eth0]:3260", "[fe80::1%eth0]:3260"),
            ("storage.example.com:3261", "storage.example.com:3261"),
        ] {
            let portal: Portal = text.parse().unwrap();
            assert_eq!(portal.to_string(), shown);
            assert_eq!(shown.parse::<Portal>().unwrap(), portal);
        }
        for text in
            ["", ":1", "a:", "a:0", "a:65536", "a:+1", "a,", "a,65536", "[a", "[a]b", "a b", "a\n", "a@b"]
        {
            assert!(text.parse::<Portal>().is_err(), "{text:?}");
        }
    }

    #[test]
    fn an_answer_lists_targets_and_their_addresses() {
        let text = b"TargetName=iqn.2026-11.io.lunette:a\0TargetAddress=192.0.2.1:3260,1\0X-y=z\0\
            TargetAddress=[2001:db8::1]:3260,2\0TargetName=iqn.2026-11.io.lunette:b\0";
        let found = read(text).unwrap();
        assert_eq!(found[0].portals.len(), 2);
        assert_eq!(found[0].portals[1].portal_group_tag, Some(2));
        assert_eq!((found[1].name.as_str(), found[1].portals.len()), ("iqn.2026-11.io.lunette:b", 0));
        assert_eq!(read(b"").unwrap(), []);
    }

    #[test]
    fn answers_that_cannot_be_are_errors() {
        for text in [
            &b"TargetAddress=192.0.2.1\0"[..],
            b"TargetName=a b\0",
            b"TargetName=iqn.a\0TargetAddress=\0",
            b"TargetName",
        ] {
            assert!(matches!(read(text), Err(DiscoveryError::Protocol(_))), "{text:?}");
        }
        let many = b"X-a=b\0".repeat(TARGETS_MAX + 1);
        assert!(matches!(read(&many), Err(DiscoveryError::Endless(_))));
    }

    proptest! {
        #![proptest_config(cases(256))]

        #[test]
        fn reading_is_total(text in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = read(&text);
        }

        #[test]
        fn any_portal_is_read_back(host in "[a-z0-9.:%-]{1,40}", port in 1u16.., tag: Option<u16>) {
            let portal = Portal { host, port, portal_group_tag: tag };
            prop_assert_eq!(portal.to_string().parse::<Portal>(), Ok(portal));
        }
    }
}
