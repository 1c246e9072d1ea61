//! The TCP ports by which a link knows iSCSI.

use std::fmt;
use std::str::FromStr;

/// The port that iSCSI targets listen on (RFC 7143, 14).
const ISCSI_PORT: u16 = 3260;

/// So many differ at most.
const PORTS_MAX: usize = 16;

/// TCP ports of iSCSI targets, 3260 if nothing else is said. They read and print with strokes between them: `3260/3261`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IscsiPorts(Vec<u16>);

impl Default for IscsiPorts {
    fn default() -> Self {
        Self(vec![ISCSI_PORT])
    }
}

impl IscsiPorts {
    /// Whether a target listens on it.
    #[must_use]
    pub fn has(&self, port: u16) -> bool {
        self.0.contains(&port)
    }
}

/// Why a text is no list of ports.
pub(crate) const PORTS_FORM: &str = "1 to 16 different TCP ports with strokes between them (3260/3261)";

impl FromStr for IscsiPorts {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut ports = Vec::new();
        for part in text.split('/') {
            // What a number of Rust's may be besides digits, a port is not.
            let is_plain = part.bytes().all(|byte| byte.is_ascii_digit());
            let port = part.parse().ok().filter(|port| is_plain && *port > 0 && !ports.contains(port));
            ports.push(port.ok_or(PORTS_FORM)?);
        }
        if ports.len() <= PORTS_MAX { Ok(Self(ports)) } else { Err(PORTS_FORM) }
    }
}

impl fmt::Display for IscsiPorts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, port) in self.0.iter().enumerate() {
            let stroke = if index > 0 { "/" } else { "" };
            write!(f, "{stroke}{port}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_read_as_they_are_printed() {
        for text in ["3260", "3261/3260", "1/65535"] {
            assert_eq!(text.parse::<IscsiPorts>().unwrap().to_string(), text);
        }
        let many = (1..=17).map(|port| port.to_string()).collect::<Vec<_>>().join("/");
        assert!(many.strip_suffix("/17").unwrap().parse::<IscsiPorts>().is_ok());
        for wrong in ["", "0", "+1", "65536", "3260/", "3260/3260", "1-2", many.as_str()] {
            assert_eq!(wrong.parse::<IscsiPorts>(), Err(PORTS_FORM), "{wrong}");
        }
    }
}
