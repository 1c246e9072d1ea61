//! iSCSI names (RFC 7143, 4.2.7): the three forms iqn., eui. and naa., checked and brought to one spelling.
//!
//! Names are compared byte for byte, so they are lower-cased here, as RFC 3722 maps them. Of its character table the
//! ASCII part is enforced in full; beyond ASCII any letter or digit is taken, and Normalization Form C is expected of
//! the input, not made.

use std::fmt;
use std::str::FromStr;

use crate::Quoted;

/// The longest name that everybody has to take (4.2.7.1), in bytes.
pub const NAME_LENGTH_MAX: usize = 223;

/// A name that is shown where somebody needs to see how one looks.
const EXAMPLE: &str = "iqn.2026-11.io.lunette:disk0";

/// Why a text is not an iSCSI name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// No bytes, or more than 223.
    #[error("an iSCSI name has 1 to {NAME_LENGTH_MAX} bytes, not {0}; a good one is {EXAMPLE}")]
    Length(usize),
    /// A character that a name may not have.
    #[error(
        "{} has the character {character:?}; an iSCSI name is made of letters, digits, '-', '.' and ':', like \
         {EXAMPLE}",
        Quoted(name)
    )]
    Character {
        /// The text.
        name: String,
        /// Its first character that does not belong there.
        character: char,
    },
    /// None of the three type designators.
    #[error("{} begins with none of iqn., eui. and naa.; a good name is {EXAMPLE}", Quoted(.0))]
    Designator(String),
    /// An iqn. name without the year and month of its domain name (4.2.7.4).
    #[error("{} needs a year and a month behind iqn., as in {EXAMPLE}", Quoted(.0))]
    Date(String),
    /// An iqn. name without a reversed domain name (4.2.7.4).
    #[error("{} needs a reversed domain name behind the date, as in {EXAMPLE}", Quoted(.0))]
    Domain(String),
    /// An eui. or naa. name without the right number of hexadecimal digits (4.2.7.5, 4.2.7.6).
    #[error(
        "{} needs hexadecimal digits: 16 behind eui., 16 or 32 behind naa., as in naa.52004567ba64678d", Quoted(.0)
    )]
    Hexadecimal(String),
}

/// The name of an iSCSI node, in its one spelling for comparison.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct IscsiName(String);

impl IscsiName {
    /// Takes a name that this side is to carry, and holds it to the letter of 4.2.7.
    ///
    /// # Errors
    /// [`NameError`] says what is wrong and shows a good name.
    pub fn parse(text: &str) -> Result<Self, NameError> {
        let name = lower(text)?;
        if let Some(character) = name.chars().find(|&c| !is_allowed(c)) {
            return Err(NameError::Character { name, character });
        }
        match name.get(..4) {
            Some("iqn.") => qualified(&name)?,
            Some("eui.") if is_hexadecimal(&name[4..], &[16]) => {}
            Some("naa.") if is_hexadecimal(&name[4..], &[16, 32]) => {}
            Some("eui." | "naa.") => return Err(NameError::Hexadecimal(name)),
            _ => return Err(NameError::Designator(name)),
        }
        Ok(Self(name))
    }

    /// Takes the name that a peer says it has. Underscores and home-made forms are in use (a virtual machine's name in
    /// QEMU's initiator name, for one) and harm nobody, so only what could is refused.
    ///
    /// # Errors
    /// [`NameError::Length`]; [`NameError::Character`] for white space, control and format characters.
    pub fn from_peer(text: &str) -> Result<Self, NameError> {
        let name = lower(text)?;
        match name.chars().find(|&c| c.is_whitespace() || c.is_control() || is_format(c)) {
            Some(character) => Err(NameError::Character { name, character }),
            None => Ok(Self(name)),
        }
    }

    /// The name as it goes on the wire.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

fn lower(text: &str) -> Result<String, NameError> {
    // Lower-casing can lengthen a text, but not without bound: three characters for one at most.
    if text.is_empty() || text.len() > NAME_LENGTH_MAX {
        return Err(NameError::Length(text.len()));
    }
    let name = text.to_lowercase();
    if name.len() > NAME_LENGTH_MAX {
        return Err(NameError::Length(name.len()));
    }
    Ok(name)
}

fn is_allowed(character: char) -> bool {
    match character {
        'a'..='z' | '0'..='9' | '-' | '.' | ':' => true,
        other => !other.is_ascii() && other.is_alphanumeric(),
    }
}

fn is_hexadecimal(digits: &str, lengths: &[usize]) -> bool {
    lengths.contains(&digits.len()) && digits.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// Characters of Unicode's category Cf. They are not seen, but two names can look alike because of them, and those that
/// turn the direction of writing rearrange whatever they are shown in. RFC 3722 lets none of them through.
const fn is_format(character: char) -> bool {
    matches!(
        character,
        '\u{ad}'
            | '\u{600}'..='\u{605}'
            | '\u{61c}'
            | '\u{6dd}'
            | '\u{70f}'
            | '\u{890}'..='\u{891}'
            | '\u{8e2}'
            | '\u{180e}'
            | '\u{200b}'..='\u{200f}'
            | '\u{202a}'..='\u{202e}'
            | '\u{2060}'..='\u{2064}'
            | '\u{2066}'..='\u{206f}'
            | '\u{feff}'
            | '\u{fff9}'..='\u{fffb}'
            | '\u{110bd}'
            | '\u{110cd}'
            | '\u{13430}'..='\u{1343f}'
            | '\u{1bca0}'..='\u{1bca3}'
            | '\u{1d173}'..='\u{1d17a}'
            | '\u{e0001}'
            | '\u{e0020}'..='\u{e007f}'
    )
}

/// Checks `iqn.yyyy-mm.reversed.domain[:anything]`.
fn qualified(name: &str) -> Result<(), NameError> {
    let authority = name[4..].split(':').next().unwrap_or_default();
    let (date, domain) = match authority.split_once('.') {
        Some((date, domain)) => (date, Some(domain)),
        None => (authority, None),
    };
    let is_date = match date.split_once('-') {
        Some((year, month)) => {
            let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
            year.len() == 4
                && month.len() == 2
                && digits(year)
                && digits(month)
                && ("01"..="12").contains(&month)
        }
        None => false,
    };
    if !is_date {
        return Err(NameError::Date(name.to_owned()));
    }
    if domain.is_none_or(|domain| domain.split('.').any(str::is_empty)) {
        return Err(NameError::Domain(name.to_owned()));
    }
    Ok(())
}

impl FromStr for IscsiName {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        Self::parse(text)
    }
}

impl fmt::Display for IscsiName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl AsRef<str> for IscsiName {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_forms_of_the_rfc_are_names() {
        for name in [
            "iqn.2001-04.com.example:storage:diskarrays-sn-a8675309",
            "iqn.2001-04.com.example",
            "eui.02004567a425678d",
            "naa.52004567ba64678d",
            "naa.62004567ba64678d0123456789abcdef",
            "iqn.2005-01.de.b\u{fc}cher:platte",
        ] {
            assert_eq!(IscsiName::parse(name).unwrap().as_str(), name);
        }
    }

    #[test]
    fn upper_case_is_mapped_to_lower_case() {
        assert_eq!(IscsiName::parse("eui.02004567A425678D").unwrap().as_str(), "eui.02004567a425678d");
        assert_eq!(
            IscsiName::from_peer("IQN.2001-04.com.Example").unwrap().as_str(),
            "iqn.2001-04.com.example"
        );
    }

    #[test]
    fn each_fault_is_named() {
        let error = |name: &str| IscsiName::parse(name).unwrap_err();
        assert_eq!(error(""), NameError::Length(0));
        assert_eq!(error(&"x".repeat(224)), NameError::Length(224));
        assert!(matches!(error("iqn.2001-04.com.example:a b"), NameError::Character { character: ' ', .. }));
        assert!(matches!(error("iqn.2001-04.com.example:a_b"), NameError::Character { character: '_', .. }));
        assert!(matches!(error("disk0"), NameError::Designator(_)));
        assert!(matches!(error("iq"), NameError::Designator(_)));
        for name in
            ["iqn.", "iqn.com.example", "iqn.01-04.com.example", "iqn.2001-13.com.example", "iqn.2001-00.a"]
        {
            assert!(matches!(error(name), NameError::Date(_)), "{name}");
        }
        for name in
            ["iqn.2001-04", "iqn.2001-04.", "iqn.2001-04:a", "iqn.2001-04.com..example", "iqn.2001-04.com."]
        {
            assert!(matches!(error(name), NameError::Domain(_)), "{name}");
        }
        for name in ["eui.1", "eui.02004567a425678g", "naa.", "naa.62004567ba64678d0123"] {
            assert!(matches!(error(name), NameError::Hexadecimal(_)), "{name}");
        }
    }

    #[test]
    fn every_error_shows_a_good_name() {
        for name in ["", "a b", "disk0", "iqn.x", "iqn.2001-04", "eui.1"] {
            let shown = IscsiName::parse(name).unwrap_err().to_string();
            let good = shown.rsplit(' ').next().unwrap();
            assert!(IscsiName::parse(good).is_ok(), "{shown}");
        }
    }

    #[test]
    fn a_peer_may_have_a_home_made_name_but_no_blank_in_it() {
        assert!(IscsiName::from_peer("iqn.2008-11.org.linux-kvm:my_vm").is_ok());
        assert!(IscsiName::from_peer("my_host").is_ok());
        assert!(matches!(IscsiName::from_peer("a\tb"), Err(NameError::Character { character: '\t', .. })));
        assert!(matches!(IscsiName::from_peer("a\u{3000}b"), Err(NameError::Character { .. })));
        assert_eq!(IscsiName::from_peer(&"x".repeat(224)), Err(NameError::Length(224)));
        assert!(IscsiName::from_peer(&"x".repeat(223)).is_ok());
    }

    #[test]
    fn no_format_character_gets_into_a_name() {
        for character in ['\u{ad}', '\u{200b}', '\u{200d}', '\u{202e}', '\u{2066}', '\u{feff}', '\u{e0041}'] {
            let name = format!("iqn.2001-04.com.example:a{character}b");
            let refused = Err(NameError::Character { name: name.clone(), character });
            assert_eq!(IscsiName::from_peer(&name), refused, "{character:?}");
            assert_eq!(IscsiName::parse(&name), refused, "{character:?}");
        }
        // Marks and letters of any script stay: they are seen.
        for name in ["iqn.2001-04.com.example:\u{e01}\u{e34}", "iqn.2001-04.com.example:\u{5d0}\u{5d1}"] {
            assert!(IscsiName::from_peer(name).is_ok(), "{name:?}");
        }
    }

    proptest! {
        #[test]
        fn parsing_is_total_and_stable(text in "\\PC{0,240}") {
            if let Ok(name) = IscsiName::from_peer(&text) {
                prop_assert!(name.as_str().len() <= NAME_LENGTH_MAX);
            }
            if let Ok(name) = IscsiName::parse(&text) {
                prop_assert_eq!(IscsiName::parse(name.as_str()).unwrap(), name);
            }
        }
    }
}
