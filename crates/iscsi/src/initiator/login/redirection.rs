//! A target that sends its initiators elsewhere (RFC 7143, 11.13.5, status class 1; 13.8): where to, and how often one
//! follows.

use lunette_wire::text::pairs;

use super::LoginError;
use crate::Quoted;
use crate::initiator::discovery::Portal;

/// The most redirections in a row that are followed. One is usual, two happen when the second portal balances load.
pub const REDIRECTIONS_MAX: usize = 8;

/// Where a target is to be had instead.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Moved {
    /// True: the old address should be forgotten.
    pub is_permanent: bool,
    /// The addresses, at least one, in the target's order.
    pub portals: Vec<Portal>,
}

impl Moved {
    /// Reads the text of a redirection. Some targets add a portal group tag to the address (13.8 has none here); it is
    /// taken and means nothing.
    pub(super) fn read(is_permanent: bool, text: &[u8]) -> Result<Self, LoginError> {
        let mut portals = Vec::new();
        for (_, value) in pairs(text)?.into_iter().filter(|(key, _)| *key == "TargetAddress") {
            let portal: Portal = value.parse().map_err(|_| {
                LoginError::key("TargetAddress", value, "is no address where a target could be")
            })?;
            portals.push(portal);
        }
        if portals.is_empty() {
            return Err(LoginError::protocol(
                "it sends us elsewhere and does not say where (11.13.5)".into(),
            ));
        }
        Ok(Self { is_permanent, portals })
    }
}

/// The way that redirections have led so far.
#[derive(Debug, Clone, Default)]
pub struct Trail(Vec<Portal>);

impl Trail {
    /// A way that begins at this portal.
    #[must_use]
    pub fn new(start: Portal) -> Self {
        Self(vec![start])
    }

    /// The next portal to try: the first one that has not been visited.
    ///
    /// # Errors
    /// [`LoginError::Endless`] where the way goes in circles, or after [`REDIRECTIONS_MAX`] steps.
    pub fn follow(&mut self, moved: &Moved) -> Result<Portal, LoginError> {
        if self.0.len() > REDIRECTIONS_MAX {
            return Err(LoginError::Endless(format!("sent us on more than {REDIRECTIONS_MAX} times")));
        }
        let next = moved.portals.iter().find(|next| !self.0.iter().any(|seen| seen.is_at(next))).ok_or_else(
            || {
                let shown = moved.portals[0].to_string();
                LoginError::Endless(format!("sends us in circles, back to {}", Quoted(&shown)))
            },
        )?;
        self.0.push(next.clone());
        Ok(next.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn moved(addresses: &[&str]) -> Moved {
        let text: Vec<u8> =
            addresses.iter().flat_map(|address| format!("TargetAddress={address}\0").into_bytes()).collect();
        Moved::read(false, &text).unwrap()
    }

    #[test]
    fn addresses_are_read_with_and_without_a_group() {
        let found = moved(&["192.0.2.7", "[2001:db8::7]:3261", "storage:3260,1"]);
        let shown: Vec<String> = found.portals.iter().map(ToString::to_string).collect();
        assert_eq!(shown, ["192.0.2.7:3260", "[2001:db8::7]:3261", "storage:3260,1"]);
        for bad in [&b""[..], b"X=1\0", b"TargetAddress=\0", b"TargetAddress=a b\0"] {
            assert!(Moved::read(true, bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn circles_and_endless_ways_are_left() {
        let mut trail = Trail::new("192.0.2.1".parse().unwrap());
        assert_eq!(trail.follow(&moved(&["192.0.2.1", "192.0.2.2"])).unwrap().host, "192.0.2.2");
        assert!(trail.follow(&moved(&["192.0.2.1"])).unwrap_err().to_string().contains("circles"));
        let mut trail = Trail::new("192.0.2.1".parse().unwrap());
        for step in 0..REDIRECTIONS_MAX {
            trail.follow(&moved(&[&format!("198.51.100.{step}")])).unwrap();
        }
        assert!(trail.follow(&moved(&["203.0.113.1"])).is_err());
    }
}
