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
