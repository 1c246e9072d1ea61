//! How much of a target's portals discovery tells (RFC 7143, appendix C).

use std::fmt;
use std::str::FromStr;

use super::value::ValueError;

/// Which portals an initiator is told of that asks for targets through one of them. A target that has none of these is not told of at
/// all. Whatever it says, portals that access rules keep the initiator from are left out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum DiscoveryScope {
    /// All that the target has, as appendix C wants it.
    #[default]
    All,
    /// Those of the same version of IP.
    Family,
    /// Those of the portal group that it came to.
    Group,
    /// The one that it came to.
    Portal,
}

const WORDS: [(&str, DiscoveryScope); 4] = [
    ("all", DiscoveryScope::All),
    ("family", DiscoveryScope::Family),
    ("group", DiscoveryScope::Group),
    ("portal", DiscoveryScope::Portal),
];

impl FromStr for DiscoveryScope {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        let found = WORDS.iter().find(|(word, _)| *word == text).map(|(_, scope)| *scope);
        found.ok_or_else(|| {
            ValueError(format!(
                "{text:?} is not known; use all (the portals of a target), family (those of the same IP version), group \
                 (those of the same portal group) or portal (the one that was asked)"
            ))
        })
    }
}

impl fmt::Display for DiscoveryScope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(WORDS.iter().find(|(_, scope)| scope == self).map_or("", |(word, _)| word))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_word_is_one_scope() {
        for (word, scope) in WORDS {
            assert_eq!((word.parse(), scope.to_string()), (Ok(scope), word.to_owned()));
        }
        assert!("some".parse::<DiscoveryScope>().unwrap_err().0.contains("group (those of"));
    }
}
