//! How a login ends badly: the status that the peer is told (RFC 7143, 11.13.5) and the sentence for the log.

use std::fmt;

use lunette_wire::text::TextError;

use super::{LookupFailure, Redirection};
use crate::Quoted;
use crate::name::{IscsiName, NameError};
use crate::parameters::KeyError;

/// Status-Class and Status-Detail of a Login Response (11.13.5).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u16)]
pub enum LoginStatus {
    /// The login goes on, or is accepted.
    Success = 0x0000,
    /// The target is elsewhere for the moment; TargetAddress says where.
    MovedTemporarily = 0x0101,
    /// The target is elsewhere from now on; TargetAddress says where.
    MovedPermanently = 0x0102,
    /// An initiator's error without a code of its own.
    InitiatorError = 0x0200,
    /// The initiator could not be authenticated, or the two sides have no method in common.
    AuthenticationFailure = 0x0201,
    /// The initiator may not use this target.
    AuthorizationFailure = 0x0202,
    /// No such target here.
    NotFound = 0x0203,
    /// The target was here and is gone.
    TargetRemoved = 0x0204,
    /// No version in common.
    UnsupportedVersion = 0x0205,
    /// The session may not have another connection.
    TooManyConnections = 0x0206,
    /// InitiatorName or TargetName is missing.
    MissingParameter = 0x0207,
    /// The session may not have a connection at this address.
    CannotIncludeInSession = 0x0208,
    /// A session of this type is not offered.
    SessionTypeNotSupported = 0x0209,
    /// The session to join does not exist.
    SessionDoesNotExist = 0x020a,
    /// Not a request that may be sent at this point of a login.
    InvalidDuringLogin = 0x020b,
    /// Something at the target broke.
    TargetError = 0x0300,
    /// The target does not serve at the moment.
    ServiceUnavailable = 0x0301,
    /// The target has no room for another session or connection.
    OutOfResources = 0x0302,
}

impl LoginStatus {
    /// All of them.
    const ALL: [Self; 18] = [
        Self::Success,
        Self::MovedTemporarily,
        Self::MovedPermanently,
        Self::InitiatorError,
        Self::AuthenticationFailure,
        Self::AuthorizationFailure,
        Self::NotFound,
        Self::TargetRemoved,
        Self::UnsupportedVersion,
        Self::TooManyConnections,
        Self::MissingParameter,
        Self::CannotIncludeInSession,
        Self::SessionTypeNotSupported,
        Self::SessionDoesNotExist,
        Self::InvalidDuringLogin,
        Self::TargetError,
        Self::ServiceUnavailable,
        Self::OutOfResources,
    ];

    /// The class in the high byte, the detail in the low one.
    #[must_use]
    pub const fn code(self) -> u16 {
        self as u16
    }

    /// The status with this class and detail, if RFC 7143 has one.
    #[must_use]
    pub fn from_code(code: u16) -> Option<Self> {
        Self::ALL.into_iter().find(|status| status.code() == code)
    }

    /// Status-Class: 0 success, 1 redirection, 2 the initiator's error, 3 the target's.
    #[must_use]
    pub const fn class(self) -> u8 {
        (self.code() >> 8) as u8
    }

    /// Status-Detail.
    #[must_use]
    pub const fn detail(self) -> u8 {
        self.code() as u8
    }
}

/// Why a login failed: what the peer is told, and what the log says. Text of the peer's is escaped and cut in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoginFailure {
    /// What the peer is told, if it is told anything.
    pub status: LoginStatus,
    reason: String,
    /// What a redirection tells the peer.
    text: Vec<u8>,
}

impl LoginFailure {
    /// A failure with this status; `reason` is a clause for the log, with any text of a peer's in it [`Quoted`].
    #[must_use]
    pub fn new(status: LoginStatus, reason: impl Into<String>) -> Self {
        Self { status, reason: reason.into(), text: Vec::new() }
    }

    /// The target is to be had elsewhere.
    pub(super) fn moved(to: &Redirection) -> Self {
        let mut reason = String::from("the target is served elsewhere, at");
        for address in to.addresses() {
            reason.push(' ');
            reason.push_str(&address.to_string());
        }
        Self { text: to.text(), ..Self::new(to.status(), reason) }
    }

    /// The data segment of the response that tells the peer.
    pub(super) fn text(&self) -> &[u8] {
        &self.text
    }

    /// An initiator's error without a code of its own.
    pub(super) fn initiator(reason: impl Into<String>) -> Self {
        Self::new(LoginStatus::InitiatorError, reason)
    }

    /// The directory's answer, as a status.
    pub(super) fn lookup(failure: LookupFailure, target: &IscsiName) -> Self {
        let (status, reason) = match failure {
            LookupFailure::NotFound => (LoginStatus::NotFound, "is not served here"),
            LookupFailure::Removed => (LoginStatus::TargetRemoved, "has been removed"),
            LookupFailure::Forbidden => (LoginStatus::AuthorizationFailure, "is closed to this initiator"),
            LookupFailure::Busy => (LoginStatus::ServiceUnavailable, "takes no logins at the moment"),
        };
        Self::new(status, format!("target {} {reason}", Quoted(target.as_str())))
    }
}

impl fmt::Display for LoginFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "login refused with status {:04x}: {}", self.status.code(), self.reason)
    }
}

impl std::error::Error for LoginFailure {}

impl From<TextError> for LoginFailure {
    fn from(error: TextError) -> Self {
        Self::initiator(error.to_string())
    }
}

impl From<KeyError> for LoginFailure {
    fn from(error: KeyError) -> Self {
        Self::initiator(error.to_string())
    }
}

impl From<NameError> for LoginFailure {
    fn from(error: NameError) -> Self {
        Self::initiator(error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_is_class_and_detail() {
        assert_eq!((LoginStatus::MissingParameter.class(), LoginStatus::MissingParameter.detail()), (2, 7));
        assert_eq!((LoginStatus::OutOfResources.class(), LoginStatus::OutOfResources.detail()), (3, 2));
    }

    #[test]
    fn the_sentence_has_no_raw_text_of_a_peer() {
        let name = IscsiName::from_peer("iqn.evil\"\\").unwrap();
        let shown = LoginFailure::lookup(LookupFailure::NotFound, &name).to_string();
        assert_eq!(shown, "login refused with status 0203: target \"iqn.evil\\\"\\\\\" is not served here");
    }
}
