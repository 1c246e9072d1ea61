//! Single values, each checked the same way whether a flag or a file gives it.
//!
//! Not here: rules between values (`super::Config::validate`), sizes (`size`) and stores (`store`).

use std::fmt;
use std::marker::PhantomData;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

use lunette_iscsi::name::IscsiName;
use lunette_iscsi::parameters::DigestPolicy;
use lunette_scsi::ProtectionType;
use serde::de::{self, Deserialize, Deserializer, Visitor};

use super::portal::{PortalConfig, parse_scoped};

/// The port that is registered for iSCSI (RFC 7143, 13.8).
pub const DEFAULT_PORT: u16 = 3260;

/// The largest LUN that may be configured: 14 bits, as much as the flat space addressing method can say (SAM-5,
/// 4.7.7.3). Initiators often look at fewer: Windows at 255, ESXi at 1024.
pub const LUN_MAX: u16 = 0x3fff;

/// What all targets of Lunette are called that were not given a name, up to what tells them apart.
const NAME_PREFIX: &str = "iqn.2026-11.io.lunette:";

/// The longest TargetAlias, in bytes: as RFC 7143, 6.1 bounds text values.
const ALIAS_LENGTH_MAX: usize = 255;

/// Why a value is not taken: a sentence that says what would be.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ValueError(pub(super) String);

/// When a write is answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum WriteMode {
    /// When its data is stable. Safe with initiators that never send SYNCHRONIZE CACHE, such as ESXi.
    #[default]
    Through,
    /// When its data is in the page cache. The write cache is declared, SYNCHRONIZE CACHE and FUA are honoured.
    Back,
}

impl FromStr for WriteMode {
    type Err = ValueError;

    fn from_str(word: &str) -> Result<Self, ValueError> {
        match word {
            "through" => Ok(Self::Through),
            "back" => Ok(Self::Back),
            _ => Err(ValueError(format!(
                "write={word} is not known; use through (a write is answered when it is stable) or back (sooner, \
                 and stable after a flush)"
            ))),
        }
    }
}

impl fmt::Display for WriteMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Through => "through",
            Self::Back => "back",
        })
    }
}

/// A logical block length: 512 or 4096 bytes, the two that operating systems' disk drivers take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct BlockLength(pub(super) u32);

impl FromStr for BlockLength {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        match text {
            "512" => Ok(Self(512)),
            "4096" => Ok(Self(4096)),
            _ => Err(ValueError(format!(
                "block={text} is not possible; a logical block has 512 or 4096 bytes"
            ))),
        }
    }
}

/// The type of protection information: 1 or 3.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Protection(pub(super) ProtectionType);

impl FromStr for Protection {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        let kind = match text {
            "1" => ProtectionType::from_number(1),
            "3" => ProtectionType::from_number(3),
            _ => None,
        };
        kind.map(Self).ok_or_else(|| {
            ValueError(format!("protection={text} is not possible; protection information has type 1 or 3"))
        })
    }
}

/// A logical unit's number, 0 to [`LUN_MAX`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct LunNumber(pub(super) u16);

impl FromStr for LunNumber {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        match text.parse() {
            Ok(number) if number <= LUN_MAX => Ok(Self(number)),
            _ => Err(ValueError(format!("{text} is not a LUN; they are numbered 0 to {LUN_MAX}"))),
        }
    }
}

/// A text that INQUIRY tells: up to `MAX` printable ASCII characters (SPC-4, 4.3.1).
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct InquiryText<const MAX: usize>(pub(super) String);

impl<const MAX: usize> FromStr for InquiryText<MAX> {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        let printable = text.bytes().all(|byte| (0x20..0x7f).contains(&byte));
        // Initiators strip the spaces that fields are padded with, so these would not come back.
        if printable && (1..=MAX).contains(&text.len()) && text.trim() == text {
            return Ok(Self(text.to_owned()));
        }
        Err(ValueError(format!(
            "{text:?} is not usable here; give 1 to {MAX} printable ASCII characters without spaces at the ends"
        )))
    }
}

/// A target's name for people (RFC 7143, 13.6).
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Alias(pub(super) String);

impl FromStr for Alias {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        if (1..=ALIAS_LENGTH_MAX).contains(&text.len()) && !text.chars().any(char::is_control) {
            return Ok(Self(text.to_owned()));
        }
        Err(ValueError(format!(
            "an alias has 1 to {ALIAS_LENGTH_MAX} bytes and no control characters; {text:?} does not fit"
        )))
    }
}

/// Reads a portal: an IP address, with a port or for port 3260. IPv6 addresses with a port are in brackets, link-local ones
/// have their interface behind them (`fe80::1%eth0`).
///
/// # Errors
/// A sentence with an example. Host names are not looked up: what they stand for may change unseen.
pub fn parse_portal(text: &str) -> Result<SocketAddr, ValueError> {
    if let Ok(address) = text.parse::<SocketAddr>() {
        return Ok(address);
    }
    let bare = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')).unwrap_or(text);
    if let Some(scoped) = parse_scoped_portal(text) {
        return scoped;
    }
    if let Ok(address) = bare.parse::<IpAddr>() {
        return Ok(SocketAddr::new(address, DEFAULT_PORT));
    }
    let advice = match text.rsplit_once(':') {
        Some(("" | "*", port)) if port.parse::<u16>().is_ok() => {
            format!("for all addresses of this machine write 0.0.0.0:{port} or [::]:{port}")
        }
        Some(("localhost", port)) if port.parse::<u16>().is_ok() => {
            format!("for this machine alone write 127.0.0.1:{port}")
        }
        _ => "write for example 127.0.0.1:3260, 0.0.0.0 or [::1]:3260".to_owned(),
    };
    Err(ValueError(format!("{text:?} is not an IP address with a port; {advice}")))
}

/// `fe80::1%eth0`, or `[fe80::1%eth0]` with or without a port.
fn parse_scoped_portal(text: &str) -> Option<Result<SocketAddr, ValueError>> {
    let (address, port) = match text.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((address, "")) => (address, DEFAULT_PORT),
        Some((address, port)) => (address, port.strip_prefix(':')?.parse().ok()?),
        None => (text, DEFAULT_PORT),
    };
    Some(parse_scoped(address)?.map(|scoped| scoped.with_port(port)))
}

/// The portals that are listened on when none is given: port 3260 of the loopback address, because there is no
/// authentication and nothing should be reachable from elsewhere without having been asked for.
#[must_use]
pub fn default_portals() -> Vec<PortalConfig> {
    vec![SocketAddr::from(([127, 0, 0, 1], DEFAULT_PORT)).into()]
}

/// Reads a target's name and brings it to its one spelling.
///
/// # Errors
/// A sentence with a good name.
pub fn parse_target_name(text: &str) -> Result<String, ValueError> {
    IscsiName::parse(text).map(|name| name.as_str().to_owned()).map_err(|error| ValueError(error.to_string()))
}

/// The name of the target when none is given: `iqn.2026-11.io.lunette:` and the host's name, which is as stable as
/// the host and tells two of them apart. Characters that a name cannot have become `-`.
#[must_use]
pub fn default_target_name(host: &str) -> String {
    // 63 is as long as a label of a domain name can be; the whole stays far below the 223 bytes of a name.
    let suitable = |character: char| match character.to_ascii_lowercase() {
        lower @ ('a'..='z' | '0'..='9' | '.' | '-') => lower,
        _ => '-',
    };
    let host: String = host.chars().take(63).map(suitable).collect();
    match host.trim_matches(['.', '-']) {
        "" => format!("{NAME_PREFIX}target"),
        host => format!("{NAME_PREFIX}{host}"),
    }
}

/// Reads what is done about a digest (RFC 7143, 13.1): `allow`, `require` or `refuse`.
pub(super) fn parse_digest_policy(word: &str) -> Result<DigestPolicy, ValueError> {
    match word {
        "allow" => Ok(DigestPolicy::Allowed),
        "require" => Ok(DigestPolicy::Required),
        "refuse" => Ok(DigestPolicy::Refused),
        _ => Err(ValueError(format!(
            "{word:?} is not known; use allow (the initiator decides), require or refuse"
        ))),
    }
}

/// A value of a file that is read from its text. A whole number counts as its digits, so that `size = 512` and
/// `serial = 4711` need no quotes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Parsed<T>(pub(super) T);

impl<'de, T: FromStr<Err: fmt::Display>> Deserialize<'de> for Parsed<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Text(PhantomData)).map(Self)
    }
}

struct Text<T>(PhantomData<T>);

impl<T: FromStr<Err: fmt::Display>> Visitor<'_> for Text<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string or a whole number")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<T, E> {
        text.parse().map_err(E::custom)
    }

    fn visit_i64<E: de::Error>(self, number: i64) -> Result<T, E> {
        self.visit_str(&number.to_string())
    }

    fn visit_u64<E: de::Error>(self, number: u64) -> Result<T, E> {
        self.visit_str(&number.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lunette_cases::cases;
    use proptest::prelude::*;

    /// RFC 7143, 9: who wants others to reach it says so.
    #[test]
    fn nothing_but_loopback_is_listened_on_by_default() {
        assert_eq!(default_portals(), ["127.0.0.1:3260".parse().unwrap()]);
    }

    #[test]
    fn portals_are_addresses() {
        for (text, address) in [
            ("127.0.0.1:3260", "127.0.0.1:3260"),
            ("0.0.0.0", "0.0.0.0:3260"),
            ("10.0.0.7:0", "10.0.0.7:0"),
            ("::1", "[::1]:3260"),
            ("[::1]", "[::1]:3260"),
            ("[2001:db8::1]:860", "[2001:db8::1]:860"),
        ] {
            assert_eq!(parse_portal(text).unwrap(), address.parse().unwrap(), "{text}");
        }
    }

    #[test]
    fn what_is_no_portal_gets_advice() {
        let error = |text: &str| parse_portal(text).unwrap_err().0;
        assert!(error(":3260").contains("write 0.0.0.0:3260 or [::]:3260"));
        assert!(error("*:3261").contains("write 0.0.0.0:3261"));
        assert!(error("localhost:3260").contains("write 127.0.0.1:3260"));
        for text in ["", "localhost", "127.0.0.1:", "127.0.0.1:70000", "1.2.3", "[::1", "store.example:3260"]
        {
            assert!(error(text).contains("for example 127.0.0.1:3260"), "{text}");
        }
    }

    #[test]
    fn names_are_checked_and_spelled_one_way() {
        assert_eq!(parse_target_name("iqn.2026-11.io.Lunette:VM").unwrap(), "iqn.2026-11.io.lunette:vm");
        assert!(parse_target_name("disk0").unwrap_err().0.contains("iqn.2026-11.io.lunette:disk0"));
    }

    #[test]
    fn the_host_names_the_target() {
        assert_eq!(default_target_name("Store1.example"), "iqn.2026-11.io.lunette:store1.example");
        assert_eq!(default_target_name("my_host."), "iqn.2026-11.io.lunette:my-host");
        assert_eq!(default_target_name(""), "iqn.2026-11.io.lunette:target");
        assert_eq!(default_target_name("\u{e9}"), "iqn.2026-11.io.lunette:target");
    }

    #[test]
    fn inquiry_texts_are_bounded() {
        let vendor = |text: &str| text.parse::<InquiryText<8>>().map(|InquiryText(text)| text);
        assert_eq!(vendor("ACME 1").unwrap(), "ACME 1");
        for text in ["", "123456789", " A", "A ", "a\tb", "\u{e9}"] {
            let message = vendor(text).unwrap_err().0;
            assert!(message.contains("1 to 8 printable ASCII characters"), "{message}");
        }
    }

    #[test]
    fn words_and_numbers_say_what_is_allowed() {
        assert_eq!("through".parse(), Ok(WriteMode::default()));
        assert_eq!(WriteMode::Back.to_string().parse(), Ok(WriteMode::Back));
        assert!("behind".parse::<WriteMode>().unwrap_err().0.contains("use through"));
        assert_eq!("4096".parse(), Ok(BlockLength(4096)));
        assert!("1024".parse::<BlockLength>().unwrap_err().0.contains("512 or 4096"));
        assert_eq!("16383".parse(), Ok(LunNumber(LUN_MAX)));
        for text in ["16384", "-1", "", "99999999"] {
            assert!(text.parse::<LunNumber>().unwrap_err().0.contains("0 to 16383"), "{text}");
        }
        assert_eq!(parse_digest_policy("require"), Ok(DigestPolicy::Required));
        assert!(parse_digest_policy("yes").unwrap_err().0.contains("allow"));
        assert!("two\nlines".parse::<Alias>().is_err());
        assert!("".parse::<Alias>().is_err());
        assert!("x".repeat(256).parse::<Alias>().is_err());
        assert_eq!("Disks of host 3".parse(), Ok(Alias("Disks of host 3".into())));
    }

    proptest! {
        #![proptest_config(cases(256))]

        #[test]
        fn every_host_gives_a_good_name(host in "\\PC{0,80}") {
            let name = default_target_name(&host);
            prop_assert_eq!(parse_target_name(&name).unwrap(), name);
        }

        #[test]
        fn portals_are_parsed_or_refused(text in "[0-9a-f.:*\\[\\]]{0,24}") {
            if let Ok(portal) = parse_portal(&text) {
                prop_assert_eq!(parse_portal(&portal.to_string()), Ok(portal));
            }
        }
    }
}
