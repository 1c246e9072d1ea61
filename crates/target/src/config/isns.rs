//! `[isns]`: name servers that tell initiators of the targets (RFC 4171; RFC 7143, 4.2.7).

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

use lunette_iscsi::login::TargetAddress;
use serde::Deserialize;

use super::value::{Parsed, ValueError};
use super::{Config, Invalid};

/// The longest entity identifier, in bytes, without its null (RFC 4171, 6.2.1).
const ENTITY_LENGTH_MAX: usize = 255;

/// Where the targets are registered, and as what.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IsnsConfig {
    /// The servers; none: nowhere.
    pub servers: Vec<IsnsServer>,
    /// What tells this machine's targets from others' at a server. `None`: the name of this host.
    pub entity: Option<String>,
    /// After how long without a sign of life a server may forget the targets, in seconds, 10 to 86400. Default 300: a machine
    /// that has died is not offered for longer, at a sign of life every 100 seconds.
    pub period_s: u32,
    /// How servers bring notifications and inquiries.
    pub notifications: IsnsNotifications,
    /// The port of the first server's notifications and inquiries at the addresses of the portals; each further server has
    /// the port after it. 0 picks free ones.
    pub notification_port: u16,
}

impl Default for IsnsConfig {
    fn default() -> Self {
        Self {
            servers: Vec::new(),
            entity: None,
            period_s: 300,
            notifications: IsnsNotifications::default(),
            notification_port: 0,
        }
    }
}

impl IsnsConfig {
    /// The port for the notifications of a server, by its place in the list.
    pub(crate) fn port_of(&self, server: usize) -> u16 {
        match self.notification_port {
            0 => 0,
            first => first.saturating_add(u16::try_from(server).unwrap_or(u16::MAX)),
        }
    }
}

/// How a server brings state change notifications and entity status inquiries (RFC 4171, 2.9).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum IsnsNotifications {
    /// Over connections that it makes. The default: nobody else can speak in its name.
    #[default]
    Tcp,
    /// In datagrams.
    Udp,
    /// Not at all: nothing listens, and the server only knows our own signs of life.
    None,
}

impl FromStr for IsnsNotifications {
    type Err = ValueError;

    fn from_str(word: &str) -> Result<Self, ValueError> {
        match word {
            "tcp" => Ok(Self::Tcp),
            "udp" => Ok(Self::Udp),
            "none" => Ok(Self::None),
            _ => Err(ValueError(format!("{word:?} is not known; use tcp, udp or none"))),
        }
    }
}

/// The address of a server: a host's name or IP address, and a port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IsnsServer(String);

impl IsnsServer {
    /// As [`std::net::ToSocketAddrs`] takes it. A name is looked up for each connection.
    #[must_use]
    pub fn address(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for IsnsServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for IsnsServer {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        let port = lunette_isns::DEFAULT_PORT;
        if let Ok(address) = text.parse::<SocketAddr>() {
            return Ok(Self(address.to_string()));
        }
        let bare = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')).unwrap_or(text);
        if let Ok(address) = bare.parse::<IpAddr>() {
            return Ok(Self(SocketAddr::new(address, port).to_string()));
        }
        // A host and a port have one form, whatever listens there.
        if text.parse::<TargetAddress>().is_err() {
            return Err(ValueError(format!(
                "{text:?} is not the address of an iSNS server; write for example 192.0.2.9 or isns.example.com:{port}"
            )));
        }
        Ok(Self(if text.contains(':') { text.to_owned() } else { format!("{text}:{port}") }))
    }
}

/// The table.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawIsns {
    #[serde(default)]
    servers: Vec<Parsed<IsnsServer>>,
    entity: Option<String>,
    period_s: Option<u32>,
    notifications: Option<Parsed<IsnsNotifications>>,
    notification_port: Option<u16>,
}

impl From<RawIsns> for IsnsConfig {
    fn from(raw: RawIsns) -> Self {
        Self {
            servers: raw.servers.into_iter().map(|Parsed(server)| server).collect(),
            entity: raw.entity,
            period_s: raw.period_s.unwrap_or(Self::default().period_s),
            notifications: raw.notifications.map(|Parsed(how)| how).unwrap_or_default(),
            notification_port: raw.notification_port.unwrap_or_default(),
        }
    }
}

impl Config {
    /// The bounds of the values, that no server is given twice, and that there are ports for them.
    pub(super) fn validate_isns(&self) -> Result<(), Invalid> {
        let isns = &self.isns;
        for (index, server) in isns.servers.iter().enumerate() {
            if isns.servers[..index].contains(server) {
                let at = ["isns".into(), "servers".into(), index.into()];
                return Err(Invalid::new(at, format!("the server {server} is given twice")));
            }
        }
        if !(10..=86_400).contains(&isns.period_s) {
            let message = format!("must be 10 to 86400, not {}", isns.period_s);
            return Err(Invalid::new(["isns".into(), "period_s".into()], message));
        }
        let is_good = |entity: &String| {
            (1..=ENTITY_LENGTH_MAX).contains(&entity.len()) && !entity.chars().any(char::is_control)
        };
        if isns.entity.as_ref().is_some_and(|entity| !is_good(entity)) {
            let message =
                format!("an entity has a name of 1 to {ENTITY_LENGTH_MAX} bytes without control characters");
            return Err(Invalid::new(["isns".into(), "entity".into()], message));
        }
        self.validate_notification_port()
    }

    /// Every server has a port, and no portal has it too.
    fn validate_notification_port(&self) -> Result<(), Invalid> {
        let first = usize::from(self.isns.notification_port);
        let ports = first..first + self.isns.servers.len();
        let message = if first == 0 || self.isns.notifications == IsnsNotifications::None {
            return Ok(());
        } else if ports.end > 1 + usize::from(u16::MAX) {
            format!("there is no port for each of {} servers from {first} on", self.isns.servers.len())
        } else {
            let port = |portal: &super::PortalConfig| portal.address.port();
            match self.portals.iter().map(port).find(|&port| ports.contains(&port.into())) {
                Some(port) => format!("the port {port} is that of a portal"),
                None => return Ok(()),
            }
        };
        Err(Invalid::new(["isns".into(), "notification_port".into()], message))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_have_the_port_of_isns_unless_told_otherwise() {
        for (text, address) in [
            ("192.0.2.9", "192.0.2.9:3205"),
            ("192.0.2.9:3206", "192.0.2.9:3206"),
            ("2001:db8::9", "[2001:db8::9]:3205"),
            ("[2001:db8::9]", "[2001:db8::9]:3205"),
            ("isns.example.com", "isns.example.com:3205"),
            ("isns.example.com:1", "isns.example.com:1"),
        ] {
            assert_eq!(text.parse::<IsnsServer>().unwrap().address(), address);
        }
        for text in ["", "a b", "192.0.2.300", "isns:0", "[::1"] {
            assert!(text.parse::<IsnsServer>().is_err(), "{text:?}");
        }
    }

    #[test]
    fn each_server_has_a_port_of_its_own() {
        let config = IsnsConfig { notification_port: 40_000, ..IsnsConfig::default() };
        assert_eq!((config.port_of(0), config.port_of(2)), (40_000, 40_002));
        assert_eq!(IsnsConfig::default().port_of(2), 0);
    }
}
