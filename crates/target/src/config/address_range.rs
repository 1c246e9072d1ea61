//! Networks and addresses in access rules.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use ipnet::{IpNet, Ipv4Net};

use super::value::ValueError;

/// A network in CIDR notation, or one address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AddressRange(IpNet);

impl AddressRange {
    /// Whether an address is in it.
    pub(super) fn has(&self, address: IpAddr) -> bool {
        self.0.contains(&address.to_canonical())
    }
}

impl FromStr for AddressRange {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        let network = match text.parse::<IpAddr>() {
            Ok(address) => IpNet::from(address),
            Err(_) => text.parse().map_err(|_| {
                ValueError(format!(
                    "{text:?} is neither an IP address nor a network; write for example 192.0.2.7, 192.0.2.0/24 or \
                     2001:db8::/64"
                ))
            })?,
        };
        // Most likely one of the two was meant, and it is not ours to guess which.
        if network.trunc() != network {
            return Err(ValueError(format!(
                "{text} has bits set beyond its prefix; write {} for the network, or {} for the one address",
                network.trunc(),
                network.addr()
            )));
        }
        Ok(Self(as_peers_come(network)))
    }
}

/// IPv4 addresses in IPv6 clothes (`::ffff:192.0.2.0/120`) as the IPv4 addresses that they are: initiators come with those.
fn as_peers_come(network: IpNet) -> IpNet {
    const MAPPED_PREFIX: u8 = 96;
    let IpNet::V6(mapped) = network else { return network };
    let length = mapped.prefix_len().checked_sub(MAPPED_PREFIX);
    let plain = mapped.addr().to_ipv4_mapped().zip(length);
    plain.and_then(|(address, length)| Ipv4Net::new(address, length).ok()).map_or(network, IpNet::V4)
}

impl fmt::Display for AddressRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.prefix_len() == self.0.max_prefix_len() {
            return self.0.addr().fmt(f);
        }
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lunette_cases::cases;
    use proptest::prelude::*;

    #[test]
    fn ipv4_addresses_may_be_written_in_ipv6_clothes() {
        let range = |text: &str| text.parse::<AddressRange>().unwrap();
        assert_eq!(range("::ffff:192.0.2.0/120"), range("192.0.2.0/24"));
        assert_eq!(range("::ffff:192.0.2.7"), range("192.0.2.7"));
        assert_eq!(range("::ffff:0:0/96"), range("0.0.0.0/0"));
        assert!(range("::/0").has("2001:db8::1".parse().unwrap()));
    }

    #[test]
    fn what_is_wrong_is_said_with_what_would_be_right() {
        let range = |text: &str| text.parse::<AddressRange>().unwrap_err().0;
        assert!(range("192.0.2.7/24").contains("write 192.0.2.0/24 for the network, or 192.0.2.7 for"));
        assert!(range("192.0.2.0/33").contains("neither an IP address nor a network"));
        assert!(range("host").contains("2001:db8::/64"));
    }

    proptest! {
        #![proptest_config(cases(256))]

        #[test]
        fn a_network_has_the_addresses_that_begin_like_it(
            network: u32, length in 0u8..=32, address: u32
        ) {
            let mask = u32::MAX.checked_shl(32 - u32::from(length)).unwrap_or(0);
            let first = network & mask;
            let range: AddressRange =
                format!("{}/{length}", std::net::Ipv4Addr::from_bits(first)).parse().unwrap();
            let inside = address & !mask | first;
            prop_assert!(range.has(std::net::Ipv4Addr::from_bits(inside).into()));
            prop_assert_eq!(
                range.has(std::net::Ipv4Addr::from_bits(address).into()),
                address & mask == first
            );
            prop_assert_eq!(range.to_string().parse::<AddressRange>().unwrap(), range);
        }

        #[test]
        fn an_ipv6_network_has_the_addresses_that_begin_like_it(
            network: u128, length in 0u8..=128, address: u128
        ) {
            let mask = u128::MAX.checked_shl(128 - u32::from(length)).unwrap_or(0);
            let first = std::net::Ipv6Addr::from_bits(network & mask);
            let range: AddressRange = format!("{first}/{length}").parse().unwrap();
            prop_assert_eq!(
                range.has(std::net::Ipv6Addr::from_bits(address).into()),
                address & mask == network & mask
            );
        }
    }
}
