//! The choice of an authentication method (RFC 7143, 12.1). None is the only one so far; a method with an exchange of
//! its own gets its state here.

use super::{LoginFailure, LoginStatus};
use crate::Quoted;
use crate::parameters::value;

/// What two sides can agree on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Method {
    /// Nobody is authenticated.
    None,
}

impl Method {
    /// Picks the first method of the offer that may be used (6.3.2).
    ///
    /// # Errors
    /// Status 0201 when there is none: the login has failed then (7.12), and a bare Reject would leave the initiator
    /// guessing.
    pub(super) fn choose(offer: &str) -> Result<Self, LoginFailure> {
        match value::first_known(offer, &[Self::None.name()]) {
            Some(_) => Ok(Self::None),
            None => Err(LoginFailure::new(
                LoginStatus::AuthenticationFailure,
                format!("AuthMethod={} has no method that is served here: offer None", Quoted(offer)),
            )),
        }
    }

    /// The method's name as a list value.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::None => value::NONE,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn none_is_taken_wherever_it_stands() {
        for offer in ["None", "CHAP,None", "None,CHAP", "KRB5,SRP,None", "Z-com.example.x,None"] {
            assert_eq!(Method::choose(offer), Ok(Method::None));
        }
    }

    #[test]
    fn an_offer_without_it_is_an_authentication_failure() {
        for offer in ["CHAP", "", "none", "KRB5,CHAP"] {
            assert_eq!(Method::choose(offer).unwrap_err().status, LoginStatus::AuthenticationFailure);
        }
    }
}
