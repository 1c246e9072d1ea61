//! The commands that connect an initiator, for each of the usual ones.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};

/// What stands in a command where this machine's address is not known.
pub(crate) const PLACEHOLDER: &str = "ADDRESS";

/// The portal as an initiator has to name it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Portal {
    /// An IP address, or [`PLACEHOLDER`].
    address: String,
    port: u16,
}

impl Portal {
    /// The portal that others can best be told: a real address before a wildcard, which becomes this machine's own
    /// address, and loopback last.
    pub(crate) fn best_of(
        portals: &[SocketAddr],
        own_address: impl Fn(IpAddr) -> Option<IpAddr>,
    ) -> Option<Self> {
        let rank = |portal: &&SocketAddr| (portal.ip().is_loopback(), portal.ip().is_unspecified());
        let portal = portals.iter().min_by_key(rank)?;
        let address = match portal.ip() {
            wildcard if wildcard.is_unspecified() => own_address(wildcard),
            address => Some(address),
        };
        let address = address.map_or_else(|| PLACEHOLDER.to_owned(), |address| address.to_string());
        Some(Self { address, port: portal.port() })
    }

    /// Whether the address has to be filled in by hand.
    pub(crate) fn is_incomplete(&self) -> bool {
        self.address == PLACEHOLDER
    }

    /// `address:port`, IPv6 addresses in brackets.
    fn text(&self) -> String {
        if self.address.contains(':') {
            format!("[{}]:{}", self.address, self.port)
        } else {
            format!("{}:{}", self.address, self.port)
        }
    }
}

/// The address that this machine would use to reach others in the wildcard's family. Nothing is sent for it: a UDP
/// socket that is connected to an address for documentation (RFC 5737, RFC 3849) only has its route looked up.
pub(crate) fn own_address(wildcard: IpAddr) -> Option<IpAddr> {
    let elsewhere = match wildcard {
        IpAddr::V4(_) => IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)),
        IpAddr::V6(_) => IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1)),
    };
    let socket = UdpSocket::bind((wildcard, 0)).ok()?;
    socket.connect((elsewhere, 9)).ok()?;
    let own = socket.local_addr().ok()?.ip();
    (!own.is_unspecified() && !own.is_loopback()).then_some(own)
}

/// Commands for one kind of initiator.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Recipe {
    /// Whose commands these are.
    pub(crate) initiator: &'static str,
    /// One after the other.
    pub(crate) commands: Vec<String>,
}

/// The commands for a target and one of its logical units.
pub(crate) fn recipes(portal: &Portal, target: &str, lun: u16) -> Vec<Recipe> {
    let (at, address, port) = (portal.text(), &portal.address, portal.port);
    let recipe = |initiator, commands: &[String]| Recipe { initiator, commands: commands.to_vec() };
    vec![
        recipe(
            "Linux",
            &[
                format!("iscsiadm --mode discovery --type sendtargets --portal {at}"),
                format!("iscsiadm --mode node --targetname {target} --portal {at} --login"),
            ],
        ),
        recipe(
            "Windows",
            &[
                format!(
                    "Start-Service MSiSCSI; New-IscsiTargetPortal -TargetPortalAddress {address} \
                     -TargetPortalPortNumber {port}"
                ),
                format!(
                    "Connect-IscsiTarget -NodeAddress {target} -TargetPortalAddress {address} \
                     -TargetPortalPortNumber {port}"
                ),
            ],
        ),
        recipe(
            "ESXi",
            &[
                "esxcli iscsi software set --enabled=true".to_owned(),
                "HBA=$(esxcli iscsi adapter list | awk '/iscsi_vmk/ {print $1; exit}')".to_owned(),
                format!("esxcli iscsi adapter discovery sendtarget add --adapter=$HBA --address={at}"),
                "esxcli storage core adapter rescan --adapter=$HBA".to_owned(),
            ],
        ),
        recipe(
            "QEMU",
            &[format!("qemu-system-x86_64 -drive file=iscsi://{at}/{target}/{lun},format=raw,if=virtio")],
        ),
        recipe(
            "libiscsi",
            &[format!("iscsi-ls --show-luns iscsi://{at}"), format!("iscsi-inq iscsi://{at}/{target}/{lun}")],
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn best(portals: &[&str], own: Option<&str>) -> String {
        let portals: Vec<SocketAddr> = portals.iter().map(|portal| portal.parse().unwrap()).collect();
        let own = own.map(|own| own.parse().unwrap());
        Portal::best_of(&portals, |_| own).unwrap().text()
    }

    #[test]
    fn the_most_useful_portal_is_told() {
        assert_eq!(best(&["127.0.0.1:3260"], None), "127.0.0.1:3260");
        assert_eq!(best(&["127.0.0.1:3260", "0.0.0.0:3261", "10.0.0.7:3262"], None), "10.0.0.7:3262");
        assert_eq!(best(&["[::1]:3260", "[2001:db8::7]:3262"], None), "[2001:db8::7]:3262");
        assert!(Portal::best_of(&[], |_| None).is_none());
    }

    #[test]
    fn a_wildcard_becomes_an_address_or_a_placeholder() {
        assert_eq!(best(&["127.0.0.1:3260", "0.0.0.0:3261"], Some("10.0.0.7")), "10.0.0.7:3261");
        assert_eq!(best(&["[::]:3260"], Some("2001:db8::7")), "[2001:db8::7]:3260");
        assert_eq!(best(&["0.0.0.0:3261"], None), "ADDRESS:3261");
        let portal = Portal::best_of(&["0.0.0.0:3261".parse().unwrap()], |_| None).unwrap();
        assert!(portal.is_incomplete());
    }

    #[test]
    fn an_own_address_is_never_a_wildcard_or_loopback() {
        for wildcard in [IpAddr::V4(Ipv4Addr::UNSPECIFIED), IpAddr::V6(Ipv6Addr::UNSPECIFIED)] {
            if let Some(own) = own_address(wildcard) {
                assert!(!own.is_unspecified() && !own.is_loopback() && own.is_ipv4() == wildcard.is_ipv4());
            }
        }
    }

    #[test]
    fn commands_name_address_port_target_and_unit() {
        let portal = Portal { address: "2001:db8::7".into(), port: 3261 };
        let commands: Vec<String> = recipes(&portal, "iqn.2026-11.io.lunette:vm", 3)
            .into_iter()
            .flat_map(|recipe| recipe.commands)
            .collect();
        for wanted in [
            "iscsiadm --mode discovery --type sendtargets --portal [2001:db8::7]:3261",
            "iscsiadm --mode node --targetname iqn.2026-11.io.lunette:vm --portal [2001:db8::7]:3261 --login",
            "Start-Service MSiSCSI; New-IscsiTargetPortal -TargetPortalAddress 2001:db8::7 \
             -TargetPortalPortNumber 3261",
            "Connect-IscsiTarget -NodeAddress iqn.2026-11.io.lunette:vm -TargetPortalAddress 2001:db8::7 \
             -TargetPortalPortNumber 3261",
            "esxcli iscsi adapter discovery sendtarget add --adapter=$HBA --address=[2001:db8::7]:3261",
            "qemu-system-x86_64 -drive \
             file=iscsi://[2001:db8::7]:3261/iqn.2026-11.io.lunette:vm/3,format=raw,if=virtio",
            "iscsi-ls --show-luns iscsi://[2001:db8::7]:3261",
            "iscsi-inq iscsi://[2001:db8::7]:3261/iqn.2026-11.io.lunette:vm/3",
        ] {
            assert!(commands.iter().any(|command| command == wanted), "{wanted}\n{commands:#?}");
        }
    }
}
