//! How a login ends badly at the initiator: which side did what, and what to try (RFC 7143, 11.13.5 for what a target
//! may say).

use lunette_wire::text::TextError;

use crate::Quoted;
use crate::chap::ChapAlgorithm;
use crate::login::LoginStatus;

/// Whose doing a failure is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// Ours.
    Initiator,
    /// The peer's.
    Target,
}

impl std::fmt::Display for Side {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Initiator => "initiator",
            Self::Target => "target",
        })
    }
}

/// Why a login failed. No variant holds a secret, a challenge or a response; text of the peer's is escaped and cut.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LoginError {
    /// What was to be offered cannot be.
    #[error("the login cannot be tried as it was asked for: {0}")]
    Settings(String),
    /// The target said no.
    #[error("{refusal}; {}", refusal.advice())]
    Refused {
        /// What it said.
        refusal: Refusal,
    },
    /// The two sides have no authentication method in common.
    #[error("{}", method(answer.as_deref(), *has_credentials))]
    Method {
        /// What the target answered to AuthMethod, quoted.
        answer: Option<String>,
        /// Whether this side had a name and a secret.
        has_credentials: bool,
    },
    /// The target did not prove to be the one that it should be.
    #[error(
        "the target did not prove itself: {0}; check the target's CHAP name and secret on both sides, and that this is \
         the right portal"
    )]
    TargetNotProven(String),
    /// The target broke a rule of the login.
    #[error("the target broke the login's rules: {0}")]
    Protocol(String),
    /// The target said something about a key that cannot be.
    #[error("the target broke the login's rules: {key}={value} {what}")]
    Key {
        /// The key, quoted.
        key: String,
        /// The value, quoted.
        value: String,
        /// What is wrong with it.
        what: &'static str,
    },
    /// The target does not come to an end.
    #[error("the login was given up: the target {0}")]
    Endless(String),
}

impl LoginError {
    pub(super) fn protocol(what: String) -> Self {
        Self::Protocol(what)
    }

    pub(super) fn key(key: &str, value: &str, what: &'static str) -> Self {
        // Authentication keys come here only with values that tell nothing.
        Self::Key { key: Quoted(key).to_string(), value: Quoted(value).to_string(), what }
    }

    /// Whose doing it is.
    #[must_use]
    pub const fn side(&self) -> Side {
        match self {
            Self::Settings(_) => Side::Initiator,
            Self::Refused { refusal } if refusal.class() == 2 => Side::Initiator,
            Self::Method { has_credentials: false, .. } => Side::Initiator,
            _ => Side::Target,
        }
    }

    /// True where the same login may succeed a little later (11.13.5, class 3).
    #[must_use]
    pub const fn is_temporary(&self) -> bool {
        matches!(self, Self::Refused { refusal } if refusal.class() == 3)
    }

    /// True where the same login cannot succeed at this target either when it has been configured anew. Any other refusal may be of a
    /// target that has been started and not configured yet.
    #[must_use]
    pub fn is_for_good(&self) -> bool {
        match self {
            Self::Settings(_) => true,
            Self::Refused { refusal } => refusal.known() == Some(LoginStatus::UnsupportedVersion),
            _ => false,
        }
    }

    /// True where the portal that was asked to take a connection into a session knows nothing of that one (11.13.5, 0208h and 020ah).
    #[must_use]
    pub fn is_of_another_session(&self) -> bool {
        let Self::Refused { refusal } = self else { return false };
        matches!(
            refusal.known(),
            Some(LoginStatus::CannotIncludeInSession | LoginStatus::SessionDoesNotExist)
        )
    }

    /// True where a login that has left out the security stage may succeed with it: the target may have missed it (6.3), or
    /// have lost its way.
    #[must_use]
    pub fn may_miss_security(&self) -> bool {
        match self {
            Self::Refused { refusal } => match refusal.known() {
                Some(status) => matches!(
                    status,
                    LoginStatus::InitiatorError
                        | LoginStatus::AuthenticationFailure
                        | LoginStatus::MissingParameter
                        | LoginStatus::InvalidDuringLogin
                ),
                None => refusal.class() == 2,
            },
            Self::Protocol(_) => true,
            _ => false,
        }
    }

    /// True where authentication is what failed, on either side.
    #[must_use]
    pub fn is_authentication(&self) -> bool {
        match self {
            Self::Method { .. } | Self::TargetNotProven(_) => true,
            Self::Refused { refusal } => refusal.known() == Some(LoginStatus::AuthenticationFailure),
            _ => false,
        }
    }
}

impl From<TextError> for LoginError {
    fn from(error: TextError) -> Self {
        Self::Protocol(error.to_string())
    }
}

fn method(answer: Option<&str>, has_credentials: bool) -> String {
    match (answer, has_credentials) {
        (None, _) => "the target did not answer to AuthMethod, and CHAP is required here; take the requirement back, or \
                      set up CHAP at the target"
            .to_owned(),
        (Some(answer), true) => format!(
            "the target answered AuthMethod with {answer} where CHAP is required here; set up CHAP at the target, or \
             log in without requiring it"
        ),
        (Some(answer), false) => format!(
            "the target answered AuthMethod with {answer} where we have neither a name nor a secret; give both"
        ),
    }
}

/// A target's no: its status, and what is known about the moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Refusal {
    /// Status-Class in the high byte, Status-Detail in the low one.
    pub code: u16,
    /// The CHAP algorithm, when a response had gone out.
    pub algorithm: Option<ChapAlgorithm>,
    /// Whether we offered CHAP.
    pub has_credentials: bool,
}

impl Refusal {
    /// Status-Class (11.13.5).
    #[must_use]
    pub const fn class(&self) -> u8 {
        (self.code >> 8) as u8
    }

    /// The status, if RFC 7143 defines it.
    #[must_use]
    pub fn known(&self) -> Option<LoginStatus> {
        LoginStatus::from_code(self.code)
    }

    /// What to try, as a clause.
    #[must_use]
    pub fn advice(&self) -> &'static str {
        use LoginStatus as Status;
        match self.known() {
            Some(Status::AuthenticationFailure) => match (self.has_credentials, self.algorithm) {
                (false, _) => "give a CHAP name and secret; the target asks for them",
                (true, None) => "check whether the target asks for CHAP, and which algorithms it has",
                (true, Some(ChapAlgorithm::Sha256)) => {
                    "check the CHAP name and secret on both sides; tgtd computes SHA-1 where SHA-256 is meant: offer \
                     MD5 alone to it"
                }
                (true, Some(_)) => "check the CHAP name and secret on both sides",
            },
            Some(Status::AuthorizationFailure) => {
                "let this initiator's name (or address) in at the target, or log in under another name"
            }
            Some(Status::NotFound) => {
                "check the target's name and the portal; discovery lists what is served there"
            }
            Some(Status::TargetRemoved) => {
                "ask who runs the target; discovery lists what is served there now"
            }
            Some(Status::UnsupportedVersion) => {
                "the target does not speak RFC 7143's version 0; nothing helps here"
            }
            Some(Status::TooManyConnections) => {
                "use fewer connections, or let the target have more in a session"
            }
            Some(Status::MissingParameter) => "the target misses a key; look at the trace of the login",
            Some(Status::CannotIncludeInSession) => {
                "this portal takes no further connection of the session; use one of the same portal group"
            }
            Some(Status::SessionTypeNotSupported) => {
                "this portal has no sessions of this type for us; try a normal session instead of discovery, or reverse"
            }
            Some(Status::SessionDoesNotExist) => "the session has ended at the target; log in anew",
            Some(Status::InvalidDuringLogin) => {
                "the two sides do not agree on the login's steps; look at its trace"
            }
            Some(Status::TargetError) => "look at the target's log, then try again",
            Some(Status::ServiceUnavailable) => {
                "try again later; the target is starting, draining, or puts off logins that failed too often"
            }
            Some(Status::OutOfResources) => "end other sessions, or raise the target's limits",
            _ if self.class() == 2 => "look at the target's log and at the trace of the login",
            _ => "look at the target's log, then try again",
        }
    }
}

impl std::fmt::Display for Refusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        use LoginStatus as Status;
        let meaning = match self.known() {
            Some(Status::InitiatorError) => "an error of the initiator's",
            Some(Status::AuthenticationFailure) => "authentication failed",
            Some(Status::AuthorizationFailure) => "this initiator may not use the target",
            Some(Status::NotFound) => "there is no such target at this portal",
            Some(Status::TargetRemoved) => "the target was removed",
            Some(Status::UnsupportedVersion) => "unsupported version",
            Some(Status::TooManyConnections) => "too many connections in this session",
            Some(Status::MissingParameter) => "a parameter is missing",
            Some(Status::CannotIncludeInSession) => "the session cannot have a connection at this address",
            Some(Status::SessionTypeNotSupported) => "no sessions of this type",
            Some(Status::SessionDoesNotExist) => "the session to join does not exist",
            Some(Status::InvalidDuringLogin) => "a request was not one for this point of the login",
            Some(Status::TargetError) => "an error of the target's hardware or software",
            Some(Status::ServiceUnavailable) => "the target does not serve at the moment",
            Some(Status::OutOfResources) => "the target has no room for another session or connection",
            _ => match self.class() {
                2 => "an error of the initiator's, of a kind that RFC 7143 does not know",
                3 => "an error of the target's, of a kind that RFC 7143 does not know",
                _ => "a status that RFC 7143 does not know",
            },
        };
        write!(f, "the target refused the login with status {:04x} ({meaning})", self.code)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_status_has_a_meaning_and_advice_of_its_own() {
        let mut shown: Vec<String> = (0x0200..=0x020b)
            .chain(0x0300..=0x0302)
            .map(|code| {
                let refusal = Refusal { code, algorithm: None, has_credentials: false };
                assert!(refusal.known().is_some(), "{code:04x}");
                LoginError::Refused { refusal }.to_string()
            })
            .collect();
        assert!(
            shown[3].starts_with("the target refused the login with status 0203 (there is no such target")
        );
        shown.sort();
        shown.dedup();
        assert_eq!(shown.len(), 15);
    }

    #[test]
    fn unknown_statuses_are_judged_by_their_class() {
        let error =
            |code| LoginError::Refused { refusal: Refusal { code, algorithm: None, has_credentials: false } };
        assert_eq!((error(0x02ff).side(), error(0x0399).side()), (Side::Initiator, Side::Target));
        assert!(error(0x0399).is_temporary() && !error(0x02ff).is_temporary());
        assert!(error(0x0700).to_string().contains("0700 (a status that RFC 7143 does not know)"));
    }

    #[test]
    fn only_a_version_is_refused_for_good() {
        let for_good = |code| {
            let refusal = Refusal { code, algorithm: None, has_credentials: false };
            LoginError::Refused { refusal }.is_for_good()
        };
        let codes = (0x0200..=0x020b).chain(0x0300..=0x0302).filter(|code| for_good(*code));
        assert_eq!(codes.collect::<Vec<_>>(), [0x0205]);
        assert!(LoginError::Settings(String::new()).is_for_good());
    }

    #[test]
    fn advice_knows_what_was_tried() {
        let advice = |has_credentials, algorithm| {
            Refusal { code: 0x0201, algorithm, has_credentials }.advice().to_owned()
        };
        assert!(advice(false, None).contains("give a CHAP name"));
        assert!(advice(true, None).contains("algorithms"));
        assert!(advice(true, Some(ChapAlgorithm::Md5)).contains("check the CHAP name and secret"));
        assert!(advice(true, Some(ChapAlgorithm::Sha256)).contains("tgtd"));
    }
}
