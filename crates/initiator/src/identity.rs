//! Who we are where nobody says it: an initiator's name for this host, and the session identifiers of its sessions
//! (RFC 7143, 4.2.7 and 11.12.5).

use lunette_iscsi::name::IscsiName;
use lunette_wire::Isid;

/// What the default name begins with.
const NAME_BASE: &str = "iqn.2026-11.io.lunette:initiator";
/// Characters of the host's name that are kept: all of any real one.
const HOST_LENGTH_MAX: usize = 120;
/// The type of an ISID whose other parts are random (11.12.5: T is 10b).
const ISID_RANDOM: u8 = 0x80;

/// `iqn.2026-11.io.lunette:initiator.` and the host's name, as far as a name may have its characters.
#[must_use]
pub fn default_initiator_name() -> IscsiName {
    let host = rustix::system::uname();
    name_of(&host.nodename().to_string_lossy())
}

fn name_of(host: &str) -> IscsiName {
    let kept: String = host
        .chars()
        .map(|character| character.to_ascii_lowercase())
        .filter(|character| character.is_ascii_alphanumeric() || "-.".contains(*character))
        .take(HOST_LENGTH_MAX)
        .collect();
    let with_host = format!("{NAME_BASE}.{kept}");
    IscsiName::parse(&with_host)
        .or_else(|_| IscsiName::parse(NAME_BASE))
        .expect("letters, digits, '-', '.' and ':' behind a good beginning")
}

/// A session identifier of up to 12 hexadecimal digits, with or without 0x in front; `None` if the text is none.
#[must_use]
pub fn isid_from_hex(text: &str) -> Option<Isid> {
    let digits = text.strip_prefix("0x").unwrap_or(text);
    let is_number = (1..=12).contains(&digits.len()) && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    let number = u64::from_str_radix(digits, 16).ok().filter(|_| is_number)?;
    Some(isid_of(number))
}

/// The identifier of the session so many places beside one: its qualifier, the last two bytes, counts (11.12.5).
pub(crate) fn isid_beside(isid: Isid, places: u16) -> Isid {
    let [a, b, c, d, e, f] = isid.0;
    let [e, f] = u16::from_be_bytes([e, f]).wrapping_add(places).to_be_bytes();
    Isid([a, b, c, d, e, f])
}

/// From the last 48 bits.
fn isid_of(number: u64) -> Isid {
    let [_, _, isid @ ..] = number.to_be_bytes();
    Isid(isid)
}

/// A session identifier that no other session of this host has: with the same one, a second process would end the sessions
/// of the first (6.3.5).
///
/// # Errors
/// The system has no random numbers.
pub(crate) fn random_isid() -> Result<Isid, getrandom::Error> {
    let mut bytes = [0; 6];
    getrandom::fill(&mut bytes)?;
    bytes[0] = ISID_RANDOM;
    Ok(Isid(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use lunette_cases::cases;
    use proptest::prelude::*;

    #[test]
    fn sessions_are_told_apart() {
        let (one, other) = (random_isid().unwrap(), random_isid().unwrap());
        assert_ne!(one, other);
        assert_eq!((one.0[0], other.0[0]), (0x80, 0x80));
    }

    #[test]
    fn identifiers_are_read_and_counted() {
        assert_eq!(isid_from_hex("800000000001"), Some(Isid([0x80, 0, 0, 0, 0, 1])));
        assert_eq!(isid_from_hex("0x80aBcdef1234"), Some(Isid([0x80, 0xab, 0xcd, 0xef, 0x12, 0x34])));
        assert_eq!(isid_from_hex("7"), Some(Isid([0, 0, 0, 0, 0, 7])));
        for text in ["", "0x", "+1", "80 1", "1234567890abc", "0x0x1", "8000000000é"] {
            assert_eq!(isid_from_hex(text), None, "{text:?}");
        }
        let beside = |text: &str, places| isid_beside(isid_from_hex(text).unwrap(), places).to_string();
        assert_eq!(beside("800000000001", 0), "800000000001");
        assert_eq!(beside("8000000001ff", 2), "800000000201");
        assert_eq!(beside("80000000ffff", 1), "800000000000", "the other parts are somebody's");
    }

    #[test]
    fn the_hosts_name_is_in_the_initiators() {
        assert_eq!(
            name_of("Web-4.example.com").as_str(),
            "iqn.2026-11.io.lunette:initiator.web-4.example.com"
        );
    }

    proptest! {
        #![proptest_config(cases(256))]

        #[test]
        fn every_host_gives_a_good_name(host in "\\PC{0,300}") {
            prop_assert!(name_of(&host).as_str().starts_with(NAME_BASE));
        }
    }
}
