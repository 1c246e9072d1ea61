//! `iscsi://host[:port]/target-name/lun`: where a logical unit is found, as libiscsi's tools write it.

use std::net::{SocketAddr, ToSocketAddrs};
use std::str::FromStr;

use anyhow::{Context, Result, ensure};
use lunette_wire::LunField;

/// The port of iSCSI (RFC 7143, 14).
const PORT: u16 = 3260;

/// The largest number that flat space addressing can say (SAM-5, 4.7.7.3).
const LUN_MAX: u16 = 0x3fff;

/// A logical unit behind a portal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Url {
    pub(crate) portal: SocketAddr,
    pub(crate) target_name: String,
    pub(crate) lun: LunField,
}

impl FromStr for Url {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        let shape = || format!("{text:?} is not iscsi://host[:port]/target-name/lun");
        let parts = text.strip_prefix("iscsi://").with_context(shape)?;
        let (portal, rest) = parts.split_once('/').with_context(shape)?;
        let (target_name, lun) = rest.rsplit_once('/').with_context(shape)?;
        ensure!(!target_name.is_empty() && !target_name.contains('\0'), shape());
        let lun: u16 = lun.parse().with_context(shape)?;
        ensure!(lun <= LUN_MAX, "logical unit numbers end at {LUN_MAX}");
        Ok(Self { portal: resolve(portal)?, target_name: target_name.to_owned(), lun: lun_field(lun) })
    }
}

fn resolve(portal: &str) -> Result<SocketAddr> {
    let has_port = portal.rsplit_once(':').is_some_and(|(host, port)| {
        (!host.contains(':') || host.ends_with(']')) && port.parse::<u16>().is_ok()
    });
    let found = if has_port {
        portal.to_socket_addrs()
    } else {
        (portal.trim_matches(['[', ']']), PORT).to_socket_addrs()
    };
    let mut addresses = found.with_context(|| format!("cannot resolve {portal:?}"))?;
    addresses.next().with_context(|| format!("{portal:?} has no address"))
}

/// Peripheral addressing below 256, flat space addressing from there on (SAM-5, 4.7.7).
fn lun_field(lun: u16) -> LunField {
    let [high, low] = lun.to_be_bytes();
    let method = if lun < 256 { 0 } else { 0x40 };
    LunField([method | high, low, 0, 0, 0, 0, 0, 0])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Url {
        text.parse().unwrap()
    }

    #[test]
    fn portals_with_and_without_port() {
        let url = parse("iscsi://127.0.0.1:4321/iqn.2026-11.io.lunette:test/7");
        assert_eq!(url.portal, "127.0.0.1:4321".parse().unwrap());
        assert_eq!(url.target_name, "iqn.2026-11.io.lunette:test");
        assert_eq!(url.lun, LunField([0, 7, 0, 0, 0, 0, 0, 0]));
        assert_eq!(parse("iscsi://127.0.0.1/x/0").portal, "127.0.0.1:3260".parse().unwrap());
        assert_eq!(parse("iscsi://[::1]/x/0").portal, "[::1]:3260".parse().unwrap());
        assert_eq!(parse("iscsi://[::1]:99/x/0").portal, "[::1]:99".parse().unwrap());
    }

    #[test]
    fn large_numbers_use_flat_space_addressing() {
        assert_eq!(parse("iscsi://127.0.0.1/x/4095").lun, LunField([0x4f, 0xff, 0, 0, 0, 0, 0, 0]));
        assert!("iscsi://127.0.0.1/x/16384".parse::<Url>().is_err());
    }

    #[test]
    fn what_is_no_url_is_refused() {
        for text in
            ["", "iscsi://", "iscsi://h/", "iscsi://127.0.0.1//0", "iscsi://127.0.0.1/x/y", "http://a/b/0"]
        {
            assert!(text.parse::<Url>().is_err(), "{text}");
        }
    }
}
