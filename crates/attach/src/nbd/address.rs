//! Where NBD clients come in: an IP address and a port, or a path.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;

use lunette_nbd::DEFAULT_PORT;

/// An address to listen on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Address {
    /// TCP.
    Internet(SocketAddr),
    /// A socket in the file system.
    Unix(PathBuf),
}

impl FromStr for Address {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Some(path) = text.strip_prefix("unix:") {
            if path.is_empty() {
                return Err("give a path behind unix:".to_owned());
            }
            return Ok(Address::Unix(path.into()));
        }
        let with_port = text.parse::<SocketAddr>().ok();
        let bare = text.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
        let address = with_port.or_else(|| Some(SocketAddr::new(bare.ok()?, DEFAULT_PORT)));
        address
            .map(Address::Internet)
            .ok_or_else(|| "give an IP address with a port, as in 127.0.0.1:10809, or unix:PATH".to_owned())
    }
}

impl fmt::Display for Address {
    /// As a client is told it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Internet(address) => address.fmt(f),
            Address::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

impl Address {
    /// The URI that clients connect to (the NBD project's `doc/uri.md`); a path may need quotes in a shell.
    #[must_use]
    pub fn uri(&self) -> String {
        match self {
            Address::Internet(address) => format!("nbd://{address}"),
            Address::Unix(path) => format!("nbd+unix:///?socket={}", path.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_and_paths() {
        let read = |text: &str| text.parse::<Address>();
        for (text, told) in [
            ("127.0.0.1:7", "127.0.0.1:7"),
            ("127.0.0.1", "127.0.0.1:10809"),
            ("::1", "[::1]:10809"),
            ("[::1]", "[::1]:10809"),
            ("[::1]:0", "[::1]:0"),
            ("unix:/run/disk0", "unix:/run/disk0"),
        ] {
            assert_eq!(read(text).unwrap().to_string(), told);
        }
        for text in ["", "unix:", "localhost:1", "1.2.3.4:99999", "10809"] {
            assert!(read(text).is_err(), "{text:?}");
        }
        assert_eq!(read("unix:/a").unwrap().uri(), "nbd+unix:///?socket=/a");
    }
}
