//! Who may log in: users and secrets of targets and of discovery, and the rules between them (RFC 7143, 9.2.1).
//!
//! Not here: where secrets come from (`secret`), and the exchange itself (`lunette_iscsi::login`).

use std::collections::HashSet;
use std::sync::Arc;

use lunette_iscsi::chap::{ChapAlgorithm, ChapCredential, ChapPolicy, ChapUser, SECRET_LENGTH_SOUND};
use lunette_iscsi::name::IscsiName;

use super::secret::{SecretSource, parse_chap_name};
use super::value::ValueError;
use super::{Config, Invalid, Step};

/// The least length of a secret unless told otherwise, in bytes: 96 bits (RFC 7143, 9.2.1).
pub const SECRET_LENGTH_MIN: usize = SECRET_LENGTH_SOUND;

/// What is asked of those who log in to one target, or to discovery.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ChapConfig {
    /// Who may log in, with different names. None: everybody may, without CHAP.
    pub users: Vec<ChapUser>,
    /// The target's own name and secret, for initiators that want it to prove itself.
    pub mutual: Option<ChapCredential>,
}

/// What holds for CHAP everywhere.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChapRules {
    /// The algorithms that may be used; the initiator's order decides which is. Default: all, since MD5 must be there
    /// (RFC 7143, 12.1.3) and initiators that have better ones name them first.
    pub algorithms: Vec<ChapAlgorithm>,
    /// The least length of a secret, in bytes. Default [`SECRET_LENGTH_MIN`].
    pub secret_length_min_bytes: usize,
}

impl Default for ChapRules {
    fn default() -> Self {
        Self { algorithms: ChapAlgorithm::ALL.to_vec(), secret_length_min_bytes: SECRET_LENGTH_MIN }
    }
}

impl ChapConfig {
    /// What a login needs to know; nothing where everybody may log in.
    pub(crate) fn policy(&self, rules: &ChapRules) -> Option<Arc<ChapPolicy>> {
        (!self.users.is_empty()).then(|| {
            Arc::new(ChapPolicy {
                users: self.users.clone(),
                own: self.mutual.clone(),
                algorithms: rules.algorithms.clone(),
            })
        })
    }

    /// Checks what is between the users of one place.
    fn validate(&self, place: &[Step], what: &str) -> Result<(), Invalid> {
        let mut names = HashSet::new();
        for (index, user) in self.users.iter().enumerate() {
            let name = &user.credential.name;
            if !names.insert(name) {
                let at = place.iter().cloned().chain(["user".into(), index.into(), "name".into()]);
                return Err(Invalid::new(at, format!("{what} has two users named {name}")));
            }
        }
        if self.mutual.is_some() && self.users.is_empty() {
            let at = place.iter().cloned().chain(["mutual".into()]);
            let message = format!(
                "{what} has a secret of its own and no user: a target proves itself only to an initiator that has \
                 proven itself; add a user"
            );
            return Err(Invalid::new(at, message));
        }
        Ok(())
    }
}

/// Reads `NAME=file:PATH` or `NAME=env:VARIABLE`, as flags give users.
///
/// # Errors
/// A sentence without what stands behind the name: it may be the secret itself.
pub fn parse_chap_flag(text: &str) -> Result<(String, SecretSource), ValueError> {
    let form = || ValueError("a user is given as NAME=file:PATH or NAME=env:VARIABLE".into());
    let (name, source) = text.split_once('=').ok_or_else(form)?;
    let name = parse_chap_name(name)?;
    let source =
        SecretSource::parse(source).map_err(|ValueError(why)| ValueError(format!("{name}: {why}")))?;
    Ok((name, source))
}

/// Reads the name of an initiator that a user is bound to; leniently, as initiators name themselves.
///
/// # Errors
/// A sentence with a good name.
pub(super) fn parse_initiator_name(text: &str) -> Result<IscsiName, ValueError> {
    IscsiName::from_peer(text).map_err(|error| ValueError(error.to_string()))
}

impl Config {
    /// Every place that has users, its place in a file, and its name for messages.
    fn chap_places(&self) -> impl Iterator<Item = (Vec<Step>, String, &ChapConfig)> {
        let targets = self.targets.iter().enumerate().map(|(index, target)| {
            (vec!["target".into(), index.into()], format!("target {}", target.name), &target.chap)
        });
        targets.chain(std::iter::once((vec!["discovery".into()], "discovery".to_owned(), &self.discovery)))
    }

    /// The rules of 9.2.1 that hold between all users and targets.
    pub(super) fn validate_chap(&self) -> Result<(), Invalid> {
        for (place, what, chap) in self.chap_places() {
            chap.validate(&place, &what)?;
        }
        for (place, what, own) in
            self.chap_places().filter_map(|(place, what, chap)| Some((place, what, chap.mutual.as_ref()?)))
        {
            let users = self.chap_places().flat_map(|(_, _, chap)| &chap.users);
            if let Some(user) = users.map(|user| &user.credential).find(|user| user.secret == own.secret) {
                let message = format!(
                    "{what} and the user {} have one secret; who knows it could pose as the target (RFC 7143, 9.2.1): \
                     give the target a secret of its own",
                    user.name
                );
                return Err(Invalid::new(place.into_iter().chain(["mutual".into()]), message));
            }
        }
        Ok(())
    }

    /// What is allowed and not wise: sentences for the log.
    #[must_use]
    pub fn warnings(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        let users: Vec<&ChapCredential> =
            self.chap_places().flat_map(|(_, _, chap)| &chap.users).map(|user| &user.credential).collect();
        for (index, user) in users.iter().enumerate() {
            let earlier = &users[..index];
            // One user of several targets is usual (9.2.1), and is told once.
            if earlier.contains(user) {
                continue;
            }
            let twin = earlier.iter().find(|other| other.secret == user.secret && other.name != user.name);
            if let Some(other) = twin {
                warnings.push(format!(
                    "the CHAP users {} and {} have one secret: each can pose as the other",
                    other.name, user.name
                ));
            }
        }
        let own = self.chap_places().filter_map(|(_, _, chap)| chap.mutual.as_ref());
        let mut short: Vec<&ChapCredential> =
            users.into_iter().chain(own).filter(|known| known.secret.is_short()).collect();
        short.sort_by(|one, other| one.name.cmp(&other.name));
        short.dedup_by(|one, other| one.name == other.name);
        warnings.extend(short.into_iter().map(|known| {
            format!(
                "the secret of CHAP name {} has less than {SECRET_LENGTH_SOUND} bytes: it can be guessed from what passes \
                 on the network unless IPsec encrypts it (RFC 7143, 9.2.1)",
                known.name
            )
        }));
        warnings
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Limits, Reactors, TargetConfig, default_portals};
    use lunette_iscsi::chap::Secret;

    fn user(name: &str, secret: &str) -> ChapUser {
        ChapUser { credential: own(name, secret), initiators: Vec::new() }
    }

    fn own(name: &str, secret: &str) -> ChapCredential {
        ChapCredential { name: name.to_owned(), secret: Secret::new(secret) }
    }

    fn config(first: ChapConfig, second: ChapConfig, discovery: ChapConfig) -> Config {
        let target = |name: &str, chap| {
            let units = crate::config::LunFlag::number_all(vec!["mem:1G".parse().unwrap()]).unwrap();
            TargetConfig {
                name: format!("iqn.2026-11.io.lunette:{name}"),
                alias: None,
                units,
                chap,
                access: Vec::new(),
                port_groups: Vec::new(),
                groups: Vec::new(),
                scsi_events: false,
                redirect: None,
            }
        };
        Config {
            portals: default_portals(),
            targets: vec![target("a", first), target("b", second)],
            discovery,
            discovery_scope: Default::default(),
            chap: ChapRules::default(),
            limits: Limits::default(),
            reactors: Reactors::default(),
            large_pages: false,
            state_directory: None,
            trace_directory: None,
            task_times: false,
            isns: crate::config::IsnsConfig::default(),
        }
    }

    fn chap(users: &[(&str, &str)], mutual: Option<(&str, &str)>) -> ChapConfig {
        ChapConfig {
            users: users.iter().map(|(name, secret)| user(name, secret)).collect(),
            mutual: mutual.map(|(name, secret)| own(name, secret)),
        }
    }

    const A: &str = "secret a 12345";
    const B: &str = "secret b 12345";
    const T: &str = "secret t 12345";

    #[test]
    fn users_and_targets_with_secrets_of_their_own_are_fine() {
        let all = config(
            chap(&[("a", A), ("b", B)], Some(("t", T))),
            chap(&[("a", A)], Some(("u", T))),
            chap(&[("a", A)], None),
        );
        assert_eq!(all.validate(), Ok(()));
        assert_eq!(all.warnings(), [""; 0]);
        let policy = all.targets[0].chap.policy(&all.chap).unwrap();
        assert_eq!((policy.users.len(), policy.own.is_some()), (2, true));
        assert_eq!(ChapConfig::default().policy(&all.chap), None);
    }

    #[test]
    fn a_target_never_has_the_secret_of_a_user_not_even_of_another_target() {
        let none = ChapConfig::default;
        for broken in [
            config(chap(&[("a", A)], Some(("t", A))), none(), none()),
            config(chap(&[("a", A)], Some(("t", T))), chap(&[("b", T)], None), none()),
            config(chap(&[("a", A)], Some(("t", T))), none(), chap(&[("d", T)], None)),
            config(chap(&[("a", A)], None), none(), chap(&[("d", B)], Some(("t", A)))),
        ] {
            let message = broken.validate().unwrap_err().to_string();
            assert!(message.contains("have one secret") && !message.contains("12345"), "{message}");
        }
    }

    #[test]
    fn names_differ_and_a_mutual_secret_needs_a_user() {
        let none = ChapConfig::default;
        let twice = config(chap(&[("a", A), ("a", B)], None), none(), none());
        assert!(twice.validate().unwrap_err().to_string().contains("has two users named a"));
        let lonely = config(none(), none(), chap(&[], Some(("t", T))));
        assert!(lonely.validate().unwrap_err().to_string().starts_with("discovery has a secret of its own"));
    }

    #[test]
    fn what_is_not_wise_is_told_once_and_without_secrets() {
        let shared = chap(&[("a", A), ("b", A), ("c", "tiny")], Some(("t", "small")));
        let warnings = config(shared.clone(), shared, ChapConfig::default()).warnings();
        assert_eq!(warnings.len(), 3, "{warnings:#?}");
        assert!(warnings[0].contains("users a and b have one secret"));
        assert!(warnings[1].contains("CHAP name c has less than 12 bytes"));
        assert!(warnings[2].contains("CHAP name t has less than 12 bytes"));
        assert!(!warnings.iter().any(|warning| warning.contains("12345")
            || warning.contains("tiny")
            || warning.contains("small")));
    }

    #[test]
    fn flags_name_a_user_and_a_source() {
        let (name, source) = parse_chap_flag("host-a=file:/etc/lunette/a=b").unwrap();
        assert_eq!((name.as_str(), source), ("host-a", SecretSource::File("/etc/lunette/a=b".into())));
        for text in ["host-a", "host-a=hunter2hunter2", "=env:A", "hunter2hunter2"] {
            let message = parse_chap_flag(text).unwrap_err().to_string();
            assert!(!message.contains("hunter2"), "{message}");
        }
    }
}
