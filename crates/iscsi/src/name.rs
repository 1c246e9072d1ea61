//! iSCSI names (RFC 7143, 4.2.7): the three forms iqn., eui. and naa., checked and brought to one spelling.
//!
//! Names are compared byte for byte, so each is brought to one spelling first, by the stringprep profile of RFC 3722
//! (`prep`): lower case, Normalization Form KC.

mod prep;

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
        let name = mapped(text)?;
        let unfit = text.chars().find(|&c| prep::is_unfit_to_keep(c));
        if let Some(character) = unfit.or_else(|| name.chars().find(|&c| !is_allowed(c))) {
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
    /// [`NameError::Length`]; [`NameError::Character`] for white space, control characters, and what RFC 3722 lets none of
    /// through.
    pub fn from_peer(text: &str) -> Result<Self, NameError> {
        let name = mapped(text)?;
        let is_refused = |c: &char| c.is_whitespace() || c.is_control() || prep::is_prohibited(*c);
        let unseen = text.chars().find(|&c| prep::is_unseen(c));
        match unseen.or_else(|| name.chars().find(is_refused)) {
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

fn mapped(text: &str) -> Result<String, NameError> {
    // Mapping can lengthen a text, but not without bound: eighteen characters for one at most.
    if text.is_empty() || text.len() > NAME_LENGTH_MAX {
        return Err(NameError::Length(text.len()));
    }
    let name = prep::map(text);
    if name.is_empty() || name.len() > NAME_LENGTH_MAX {
        return Err(NameError::Length(name.len()));
    }
    Ok(name)
}

fn is_allowed(character: char) -> bool {
    match character {
        'a'..='z' | '0'..='9' | '-' | '.' | ':' => true,
        other => !other.is_ascii() && !prep::is_prohibited(other) && !prep::is_unseen(other),
    }
}

fn is_hexadecimal(digits: &str, lengths: &[usize]) -> bool {
    lengths.contains(&digits.len()) && digits.bytes().all(|byte| byte.is_ascii_hexdigit())
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
    use lunette_cases::cases;
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

    /// RFC 3722, clauses 3 and 4: what people type is brought to one spelling.
    #[test]
    fn spellings_that_look_alike_are_one_name() {
        let name = |end: &str| IscsiName::parse(&format!("iqn.2001-04.com.example:{end}")).unwrap();
        for (one, other) in [
            // Composed and decomposed.
            ("b\u{fc}cher", "bu\u{308}cher"),
            ("\u{c5}ngstr\u{f6}m", "\u{212b}ngstro\u{308}m"),
            // Case, where lower-casing alone would not do.
            ("strasse", "STRA\u{df}E"),
            ("\u{3c3}", "\u{3c2}"),
            // Full and half width, ligatures, circled digits.
            ("disk1", "\u{ff24}\u{ff29}\u{ff33}\u{ff2b}\u{2460}"),
            ("file", "\u{fb01}le"),
            ("\u{30ac}", "\u{ff76}\u{ff9e}"),
            // Not seen.
            ("diskarray", "disk\u{ad}array"),
            ("disk", "di\u{200b}sk\u{fe0f}"),
        ] {
            assert_eq!(name(one), name(other), "{other:?}");
        }
        let from_peer = |end: &str| IscsiName::from_peer(&format!("iqn.2001-04.com.example:{end}")).unwrap();
        assert_eq!(from_peer("bu\u{308}cher"), name("b\u{fc}cher"));
    }

    /// RFC 3722, clauses 5 to 7.
    #[test]
    fn what_the_profile_forbids_is_in_no_name() {
        for (character, is_for_peers) in [
            ('\u{3002}', true),
            ('\u{e000}', true),
            ('\u{fdd0}', true),
            ('\u{fffd}', true),
            ('\u{2ff0}', true),
            ('\u{206a}', true),
            // What it maps to may not stand there: a space and a diaeresis, a slash.
            ('\u{a8}', true),
            ('\u{ff0f}', false),
            // Right to left, and younger than Unicode 3.2.
            ('\u{5d0}', false),
            ('\u{1f4be}', false),
        ] {
            let text = format!("iqn.2001-04.com.example:a{character}b");
            assert!(matches!(IscsiName::parse(&text), Err(NameError::Character { .. })), "{character:?}");
            assert_eq!(IscsiName::from_peer(&text).is_err(), is_for_peers, "{character:?}");
        }
    }

    #[test]
    fn mapping_is_bounded_by_the_length_of_a_name() {
        // One character of three bytes that stands for eighteen.
        let text = format!("iqn.2001-04.com.example:{}", "\u{fdfa}".repeat(10));
        assert!(matches!(
            IscsiName::from_peer(&text),
            Err(NameError::Length(300..)) | Err(NameError::Character { .. })
        ));
        assert_eq!(IscsiName::parse("\u{ad}"), Err(NameError::Length(0)));
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
            let found = |name: Result<_, _>| match name {
                Err(NameError::Character { character, .. }) => Some(character),
                _ => None,
            };
            assert_eq!(found(IscsiName::from_peer(&name)), Some(character), "{character:?}");
            // What people type is mapped first, and comes out without it or not at all.
            let typed = IscsiName::parse(&name);
            assert!(typed.is_err() || !typed.unwrap().as_str().contains(character), "{character:?}");
        }
        // Marks and letters of any script stay: they are seen.
        for name in ["iqn.2001-04.com.example:\u{e01}\u{e34}", "iqn.2001-04.com.example:\u{5d0}\u{5d1}"] {
            assert!(IscsiName::from_peer(name).is_ok(), "{name:?}");
        }
    }

    proptest! {
        #![proptest_config(cases(256))]

        #[test]
        fn parsing_is_total_and_stable(text in "\\PC{0,240}") {
            if let Ok(name) = IscsiName::from_peer(&text) {
                prop_assert!(name.as_str().len() <= NAME_LENGTH_MAX);
                prop_assert!(!name.as_str().is_empty());
            }
            if let Ok(name) = IscsiName::parse(&text) {
                prop_assert_eq!(IscsiName::parse(name.as_str()).unwrap(), name.clone());
                prop_assert_eq!(IscsiName::from_peer(name.as_str()).unwrap(), name);
            }
        }

        /// A name that people typed is the same for its peer, whatever they typed.
        #[test]
        fn a_good_name_has_one_spelling(end in "[^\\x00-\\x7f]{1,20}") {
            if let Ok(name) = IscsiName::parse(&format!("iqn.2001-04.com.example:{end}")) {
                prop_assert_eq!(IscsiName::parse(name.as_str()).unwrap(), name.clone());
                prop_assert_eq!(IscsiName::from_peer(name.as_str()).unwrap(), name);
            }
        }
    }
}
