//! Who may log in to a target or to discovery, and how the target proves itself in return (RFC 7143, 9.2, 9.2.1).

use super::{ChapAlgorithm, ChapResponse, Secret};
use crate::Quoted;
use crate::name::IscsiName;

/// A name and the secret that belongs to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChapCredential {
    /// CHAP_N: 1 to [`super::CHAP_NAME_LENGTH_MAX`] bytes, compared byte by byte.
    pub name: String,
    /// The secret.
    pub secret: Secret,
}

/// One who may log in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChapUser {
    /// Name and secret.
    pub credential: ChapCredential,
    /// The initiator names that may use them; empty: any (9.2, the relation of names and identities).
    pub initiators: Vec<IscsiName>,
}

impl ChapUser {
    /// Whether this is the user `name`, and `initiator` may be it.
    #[must_use]
    pub fn is(&self, name: &str, initiator: &str) -> bool {
        self.credential.name == name
            && (self.initiators.is_empty() || self.initiators.iter().any(|bound| bound.as_str() == initiator))
    }
}

/// What is asked of those who log in. At least one user, with different names; no user has the target's own secret.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChapPolicy {
    /// Who may log in.
    pub users: Vec<ChapUser>,
    /// The target's own name and secret, for initiators that want the target to prove itself.
    pub own: Option<ChapCredential>,
    /// The algorithms that may be used; which of them is used, the initiator's order decides.
    pub algorithms: Vec<ChapAlgorithm>,
}

/// Why a response does not let its sender in. For the log: the peer is told that authentication failed, and no more.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ChapRefusal {
    /// Nobody has this name.
    #[error("there is no CHAP user {} here", Quoted(.0))]
    UnknownUser(String),
    /// The name is known, the response is not that of its secret.
    #[error("CHAP user {} gave a wrong response: the secrets of the two sides differ", Quoted(.0))]
    WrongResponse(String),
    /// The response is that of the target's own secret (9.2.1).
    #[error("CHAP user {} gave the response that this target would give: one secret for both directions", Quoted(.0))]
    OwnResponse(String),
    /// The name is bound to other initiators.
    #[error("CHAP user {} is not for the initiator {}", Quoted(user), Quoted(initiator))]
    OtherInitiator {
        /// The user.
        user: String,
        /// Who came with its name.
        initiator: String,
    },
}

impl ChapPolicy {
    /// The user with this name.
    #[must_use]
    pub fn user(&self, name: &str) -> Option<&ChapUser> {
        self.users.iter().find(|user| user.credential.name == name)
    }

    /// Holds the response of `name` to a challenge against what is known. An unknown name costs the same hashes.
    ///
    /// # Errors
    /// [`ChapRefusal`] says why it does not fit.
    pub fn verify(
        &self,
        name: &str,
        initiator: &IscsiName,
        received: &[u8],
        respond: impl Fn(&Secret) -> ChapResponse,
    ) -> Result<(), ChapRefusal> {
        let nobody = Secret::new([0; 16]);
        let user = self.user(name);
        let is_right = respond(user.map_or(&nobody, |user| &user.credential.secret)).is(received);
        let is_own = self.own.as_ref().is_some_and(|own| respond(&own.secret).is(received));
        let name = name.to_owned();
        match user {
            None => Err(ChapRefusal::UnknownUser(name)),
            Some(_) if is_own => Err(ChapRefusal::OwnResponse(name)),
            Some(_) if !is_right => Err(ChapRefusal::WrongResponse(name)),
            Some(user) if !user.initiators.is_empty() && !user.initiators.contains(initiator) => {
                Err(ChapRefusal::OtherInitiator { user: name, initiator: initiator.as_str().to_owned() })
            }
            Some(_) => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn credential(name: &str, secret: &str) -> ChapCredential {
        ChapCredential { name: name.to_owned(), secret: Secret::new(secret) }
    }

    fn name(text: &str) -> IscsiName {
        IscsiName::from_peer(text).unwrap()
    }

    fn policy() -> ChapPolicy {
        let bound = ChapUser {
            credential: credential("bound", "secret of bound"),
            initiators: vec![name("iqn.2026-11.io.lunette:b")],
        };
        let free = ChapUser { credential: credential("free", "secret of free"), initiators: vec![] };
        ChapPolicy {
            users: vec![bound, free],
            own: Some(credential("target", "secret of target")),
            algorithms: ChapAlgorithm::ALL.to_vec(),
        }
    }

    /// The verdict on what somebody with this name and secret answers.
    fn verdict(user: &str, secret: &str, initiator: &str) -> Result<(), ChapRefusal> {
        let respond = |secret: &Secret| ChapAlgorithm::Sha256.respond(7, secret, b"challenge");
        let response = respond(&Secret::new(secret));
        policy().verify(user, &name(initiator), response.bytes(), respond)
    }

    const B: &str = "iqn.2026-11.io.lunette:b";
    const C: &str = "iqn.2026-11.io.lunette:c";

    #[test]
    fn several_users_have_secrets_of_their_own() {
        assert_eq!(verdict("free", "secret of free", C), Ok(()));
        assert_eq!(verdict("bound", "secret of bound", B), Ok(()));
        assert_eq!(verdict("free", "secret of bound", B), Err(ChapRefusal::WrongResponse("free".into())));
        assert_eq!(verdict("Free", "secret of free", B), Err(ChapRefusal::UnknownUser("Free".into())));
        assert_eq!(verdict("", "", B), Err(ChapRefusal::UnknownUser(String::new())));
    }

    #[test]
    fn a_user_may_be_bound_to_initiators() {
        let refusal = ChapRefusal::OtherInitiator { user: "bound".into(), initiator: C.into() };
        assert_eq!(verdict("bound", "secret of bound", C), Err(refusal));
        // Who does not know the secret is not told that it would have been of no use.
        assert_eq!(verdict("bound", "guess", C), Err(ChapRefusal::WrongResponse("bound".into())));
    }

    #[test]
    fn the_targets_own_response_lets_nobody_in() {
        assert_eq!(verdict("free", "secret of target", C), Err(ChapRefusal::OwnResponse("free".into())));
        let mut careless = policy();
        careless.own = Some(credential("target", "secret of free"));
        let respond = |secret: &Secret| ChapAlgorithm::Md5.respond(7, secret, b"challenge");
        let response = respond(&Secret::new("secret of free"));
        assert_eq!(
            careless.verify("free", &name(C), response.bytes(), respond),
            Err(ChapRefusal::OwnResponse("free".into()))
        );
    }

    #[test]
    fn nothing_shows_a_secret() {
        let shown = format!("{:?}", policy());
        assert!(shown.contains("bound") && !shown.contains("secret of"), "{shown}");
    }
}
