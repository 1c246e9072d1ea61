//! Login redirection (RFC 7143, 11.13.5, status class 1): a target that tells an initiator to go elsewhere.
//!
//! Whom to send where is the directory's affair; here is what may be told, and how it is written.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};
use std::str::FromStr;

use lunette_wire::text::push;

use super::LoginStatus;
use crate::Quoted;

/// The most addresses that one redirection tells: all of them fit into one Login Response.
pub const REDIRECTION_ADDRESSES_MAX: usize = 16;

/// The longest name of a host, in bytes (RFC 1035, 2.3.4, without the root's empty label).
const HOST_LENGTH_MAX: usize = 253;
/// The longest label of a name, in bytes (RFC 1035, 2.3.4).
const LABEL_LENGTH_MAX: usize = 63;

/// An address of a target as the value of TargetAddress in a redirection: a host, and a port or none for 3260. It has no
/// portal group tag (13.8).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TargetAddress(String);

/// Why a text is no address to redirect to.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{} is not an address to log in to; write a host's name or IP address, with a port if it is not 3260, as in \
     192.0.2.7, [2001:db8::7]:3260 or storage2.example.com:3260",
    Quoted(.0)
)]
pub struct TargetAddressError(String);

impl FromStr for TargetAddress {
    type Err = TargetAddressError;

    fn from_str(text: &str) -> Result<Self, TargetAddressError> {
        let error = || TargetAddressError(text.to_owned());
        let (host, port) = match text.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
            Some((host, rest)) => {
                host.parse::<Ipv6Addr>().map_err(|_| error())?;
                (host, rest.strip_prefix(':').or_else(|| rest.is_empty().then_some("3260")))
            }
            None if text.parse::<Ipv6Addr>().is_ok() => return Ok(Self(format!("[{text}]"))),
            None => match text.split_once(':') {
                Some((host, port)) => (host, Some(port)),
                None => (text, Some("3260")),
            },
        };
        let port: u16 = port.and_then(|port| port.parse().ok()).ok_or_else(error)?;
        let is_host = host.parse::<IpAddr>().is_ok_and(|ip| !ip.is_unspecified()) || is_host_name(host);
        if port == 0 || !is_host {
            return Err(error());
        }
        Ok(Self(text.to_owned()))
    }
}

impl fmt::Display for TargetAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Labels of letters, digits and hyphens. One that ends in digits alone is a failed attempt at an IPv4 address.
fn is_host_name(host: &str) -> bool {
    let is_label = |label: &str| {
        (1..=LABEL_LENGTH_MAX).contains(&label.len())
            && !label.starts_with('-')
            && !label.ends_with('-')
            && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
    };
    let last = host.rsplit('.').next().unwrap_or_default();
    host.len() <= HOST_LENGTH_MAX
        && host.split('.').all(is_label)
        && !last.bytes().all(|byte| byte.is_ascii_digit())
}

/// Where a target is to be had instead.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Redirection {
    is_permanent: bool,
    addresses: Vec<TargetAddress>,
}

impl Redirection {
    /// Sends initiators to any of `addresses`; permanently, or for this login only. None without an address (11.13.5), or
    /// with more than [`REDIRECTION_ADDRESSES_MAX`].
    #[must_use]
    pub fn new(is_permanent: bool, addresses: Vec<TargetAddress>) -> Option<Self> {
        (1..=REDIRECTION_ADDRESSES_MAX).contains(&addresses.len()).then_some(Self { is_permanent, addresses })
    }

    /// Whether the initiator should forget the old address.
    #[must_use]
    pub const fn is_permanent(&self) -> bool {
        self.is_permanent
    }

    /// The addresses, at least one.
    #[must_use]
    pub fn addresses(&self) -> &[TargetAddress] {
        &self.addresses
    }

    pub(super) const fn status(&self) -> LoginStatus {
        if self.is_permanent { LoginStatus::MovedPermanently } else { LoginStatus::MovedTemporarily }
    }

    /// The text of the response.
    pub(super) fn text(&self) -> Vec<u8> {
        let mut text = Vec::new();
        for address in &self.addresses {
            push(&mut text, "TargetAddress", &address.0);
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::super::LOGIN_SEGMENT_MAX;
    use super::*;

    #[test]
    fn hosts_with_and_without_a_port_are_addresses() {
        for text in [
            "192.0.2.7",
            "192.0.2.7:3261",
            "[2001:db8::7]",
            "[2001:db8::7]:3260",
            "storage2",
            "storage2.example.com:860",
            "7up.example",
        ] {
            assert_eq!(text.parse::<TargetAddress>().unwrap().to_string(), text);
        }
        assert_eq!("2001:db8::7".parse::<TargetAddress>().unwrap().to_string(), "[2001:db8::7]");
    }

    #[test]
    fn anything_else_is_none() {
        let long = format!("{}.example", "x".repeat(64));
        for text in [
            "",
            ":3260",
            "192.0.2.7:",
            "192.0.2.7:0",
            "192.0.2.7:65536",
            // 13.8: no portal group tag.
            "192.0.2.7:3260,1",
            "192.0.2.300",
            "0.0.0.0",
            "[::]:3260",
            "[192.0.2.7]:3260",
            "[2001:db8::7",
            "[2001:db8::7]x",
            "a b",
            "a..b",
            "-a",
            "a\0b",
            &long,
        ] {
            assert!(text.parse::<TargetAddress>().is_err(), "{text:?}");
        }
    }

    #[test]
    fn a_redirection_has_addresses_and_they_fit_into_one_response() {
        let label = "x".repeat(LABEL_LENGTH_MAX);
        let longest: TargetAddress =
            format!("{label}.{label}.{label}.{}:65535", "x".repeat(61)).parse().unwrap();
        assert!(Redirection::new(true, Vec::new()).is_none());
        assert!(Redirection::new(true, vec![longest.clone(); REDIRECTION_ADDRESSES_MAX + 1]).is_none());
        let full = Redirection::new(true, vec![longest; REDIRECTION_ADDRESSES_MAX]).unwrap();
        assert!(full.text().len() <= LOGIN_SEGMENT_MAX);
    }
}
