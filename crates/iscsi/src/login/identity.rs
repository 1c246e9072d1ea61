//! Who logs in, and to what: the names of the first Login Request (RFC 7143, 6.3.1, 13.4 to 13.7, 13.21).

use super::{LoginFailure, LoginStatus, Redirection, TargetDirectory, TargetEntry};
use crate::Quoted;
use crate::name::IscsiName;
use crate::parameters::keys::Key;
use crate::parameters::{KeyError, SessionType};

/// The longest alias or architecture text that is kept (6.1: 255), in bytes. Neither has a function, so a longer one
/// is forgotten rather than refused.
const DESCRIPTION_LENGTH_MAX: usize = 255;

/// The parties of a login, as its first request named them.
#[derive(Debug, Clone)]
pub(super) struct Identity {
    pub(super) initiator_name: IscsiName,
    pub(super) initiator_alias: Option<String>,
    pub(super) initiator_architecture: Option<String>,
    pub(super) session_type: SessionType,
    /// None in a discovery session that named none (7.4.2.1).
    pub(super) target: Option<(IscsiName, TargetEntry)>,
    /// The CHAP name that was proven.
    pub(super) user: Option<String>,
}

impl Identity {
    /// Reads the names in the first complete text, and looks the target up.
    ///
    /// # Errors
    /// Status 0207 without InitiatorName, or without TargetName in a normal session; 0209 for another session type;
    /// 0200 for a text that is no name; what the directory says about the target.
    pub(super) fn read(
        pairs: &[(&str, &str)],
        directory: &dyn TargetDirectory,
    ) -> Result<Self, LoginFailure> {
        let value_of = |name: &str| pairs.iter().find(|(key, _)| *key == name).map(|(_, value)| *value);
        let missing = |name: &str| {
            let reason = format!("the first request has no {name}");
            LoginFailure::new(LoginStatus::MissingParameter, reason)
        };
        let initiator = value_of("InitiatorName").ok_or_else(|| missing("InitiatorName"))?;
        let initiator_name = IscsiName::from_peer(initiator)?;
        let session_type = session_type(value_of("SessionType").unwrap_or("Normal"))?;
        let target = match session_type {
            // A name is not needed here (13.4); one makes it a named discovery session (7.4.2.2).
            SessionType::Discovery => value_of("TargetName"),
            SessionType::Normal => Some(value_of("TargetName").ok_or_else(|| missing("TargetName"))?),
        };
        let find = |name: &str| {
            let name = IscsiName::from_peer(name)?;
            let found = directory.find(name.as_str(), initiator_name.as_str());
            let entry = found.map_err(|failure| LoginFailure::lookup(failure, &name))?;
            Ok::<_, LoginFailure>((name, entry))
        };
        let target = target.map(find).transpose()?;
        Ok(Self {
            initiator_name,
            initiator_alias: None,
            initiator_architecture: None,
            session_type,
            target,
            user: None,
        })
    }

    /// The target that is logged in to; a discovery session only names one.
    pub(super) fn entry(&self) -> Option<(&IscsiName, &TargetEntry)> {
        let (name, entry) = self.target.as_ref().filter(|_| self.session_type == SessionType::Normal)?;
        Some((name, entry))
    }

    /// Where the initiator has to go instead.
    pub(super) fn redirection(&self) -> Option<&Redirection> {
        self.entry().and_then(|(_, entry)| entry.moved.as_ref())
    }

    /// Takes a declaration. What `read` has used already may come once in each stage, and must not have changed:
    /// every stage is a negotiation of its own (6.2), and libiscsi repeats its names in the second.
    ///
    /// # Errors
    /// [`KeyError::Redeclared`] for another value than before.
    pub(super) fn declare(&mut self, key: Key, name: &'static str, value: &str) -> Result<(), LoginFailure> {
        let is_same = match key {
            Key::InitiatorName => IscsiName::from_peer(value).as_ref() == Ok(&self.initiator_name),
            Key::TargetName => match &self.target {
                Some((target, _)) => IscsiName::from_peer(value).as_ref() == Ok(target),
                None => true,
            },
            Key::SessionType => session_type(value)? == self.session_type,
            Key::InitiatorAlias => describe(&mut self.initiator_alias, value),
            Key::NodeArchitecture => describe(&mut self.initiator_architecture, value),
            _ => true,
        };
        if is_same { Ok(()) } else { Err(KeyError::Redeclared(name).into()) }
    }
}

fn session_type(value: &str) -> Result<SessionType, LoginFailure> {
    match value {
        "Normal" => Ok(SessionType::Normal),
        "Discovery" => Ok(SessionType::Discovery),
        other => Err(LoginFailure::new(
            LoginStatus::SessionTypeNotSupported,
            format!("SessionType={} is neither Normal nor Discovery", Quoted(other)),
        )),
    }
}

/// Keeps the first description; true unless another one was there.
fn describe(kept: &mut Option<String>, value: &str) -> bool {
    match kept {
        Some(before) => before == value,
        None => {
            *kept = (value.len() <= DESCRIPTION_LENGTH_MAX).then(|| value.to_owned());
            true
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::LookupFailure;
    use super::*;
    use crate::chap::ChapPolicy;

    struct Nothing;

    impl TargetDirectory for Nothing {
        fn find(&self, _: &str, _: &str) -> Result<TargetEntry, LookupFailure> {
            Err(LookupFailure::NotFound)
        }

        fn authentication(&self, _: Option<&str>) -> Option<Arc<ChapPolicy>> {
            None
        }
    }

    fn discovery() -> Identity {
        let pairs = [("InitiatorName", "iqn.2026-11.io.lunette:i"), ("SessionType", "Discovery")];
        Identity::read(&pairs, &Nothing).unwrap()
    }

    #[test]
    fn a_description_is_kept_once_and_up_to_a_length() {
        let mut identity = discovery();
        identity.declare(Key::InitiatorAlias, "InitiatorAlias", "Web Server 4").unwrap();
        identity.declare(Key::InitiatorAlias, "InitiatorAlias", "Web Server 4").unwrap();
        assert_eq!(identity.initiator_alias.as_deref(), Some("Web Server 4"));
        assert!(identity.declare(Key::InitiatorAlias, "InitiatorAlias", "Web Server 5").is_err());
        let long = "x".repeat(256);
        identity.declare(Key::NodeArchitecture, "X#NodeArchitecture", &long).unwrap();
        assert_eq!(identity.initiator_architecture, None);
    }

    #[test]
    fn the_parties_cannot_change_under_way() {
        let mut identity = discovery();
        let mut declare = |key, value: &str| identity.declare(key, "key", value).is_ok();
        assert!(declare(Key::InitiatorName, "iqn.2026-11.io.lunette:I"));
        assert!(!declare(Key::InitiatorName, "iqn.2026-11.io.lunette:other"));
        assert!(declare(Key::SessionType, "Discovery"));
        assert!(!declare(Key::SessionType, "Normal"));
        assert!(declare(Key::TargetName, "iqn.2026-11.io.lunette:late"), "nothing was named before");
    }
}
