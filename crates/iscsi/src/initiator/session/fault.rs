//! What goes wrong, classified once: what a target does against RFC 7143, why a connection is lost, and what is wrong with
//! an answer. Each names the clause and the PDU.

use std::fmt;

/// How bad it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ViolationKind {
    /// Contents that no PDU may have (7.7).
    Format,
    /// Numbers that are out of order, without a recovery that could mend it (7.9).
    Sequence,
    /// A PDU that may not come now, or against what was agreed on (7.13).
    Protocol,
}

/// Something that a target did and that RFC 7143 does not allow. It ends the session: the two have no common state any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Violation {
    /// How bad it is.
    pub kind: ViolationKind,
    /// The PDU that came.
    pub pdu: &'static str,
    /// The clause of RFC 7143.
    pub clause: &'static str,
    /// What is wrong with it.
    pub what: &'static str,
    /// What was found and what would have been right, where numbers say it.
    pub values: Option<(u32, u32)>,
}

impl Violation {
    pub(super) const fn new(
        kind: ViolationKind,
        pdu: &'static str,
        clause: &'static str,
        what: &'static str,
    ) -> Self {
        Self { kind, pdu, clause, what, values: None }
    }

    pub(super) const fn format(pdu: &'static str, clause: &'static str, what: &'static str) -> Self {
        Self::new(ViolationKind::Format, pdu, clause, what)
    }

    pub(super) const fn sequence(pdu: &'static str, clause: &'static str, what: &'static str) -> Self {
        Self::new(ViolationKind::Sequence, pdu, clause, what)
    }

    pub(super) const fn protocol(pdu: &'static str, clause: &'static str, what: &'static str) -> Self {
        Self::new(ViolationKind::Protocol, pdu, clause, what)
    }

    /// With what was found, and what would have been right.
    pub(super) const fn values(mut self, found: u32, right: u32) -> Self {
        self.values = Some((found, right));
        self
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the target's {} {}", self.pdu, self.what)?;
        if let Some((found, right)) = self.values {
            write!(f, " ({found} instead of {right})")?;
        }
        write!(f, " (RFC 7143, {})", self.clause)
    }
}

impl std::error::Error for Violation {}

/// Why a connection or a session is lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Loss {
    /// The target broke the protocol.
    #[error("{0}")]
    Violation(#[from] Violation),
    /// The transport failed, or the target closed it; the driver knows more.
    #[error("the connection was closed or broke")]
    Transport,
    /// A header's digest was wrong: where the next PDU begins cannot be known (7.8).
    #[error("a header digest was wrong")]
    HeaderDigest,
    /// A data digest was wrong in a PDU whose loss cannot be mended at this ErrorRecoveryLevel (7.8).
    #[error("the data digest of a {0} was wrong")]
    DataDigest(&'static str),
    /// A status was lost, and the target does not have it any more (11.16).
    #[error("a status was lost that the target does not have any more")]
    StatusGone,
    /// Nothing came for so many milliseconds, not even an answer to a ping.
    #[error("the target has said nothing for {0} ms, a ping included")]
    Silent(u64),
    /// The target announced that it drops the connection or the session (11.9.1, events 2 and 3).
    #[error("the target announced that it drops the connection")]
    Dropped,
    /// A logout was not answered for so many milliseconds.
    #[error("the target has not answered a logout for {0} ms")]
    LogoutOverdue(u64),
    /// A task management function, or a request that was to recover a connection, was not answered for so many milliseconds.
    #[error("the target has not answered a task management function for {0} ms")]
    FunctionOverdue(u64),
    /// The target refused a logout that was to recover a connection, or did not end what had left on it; with the Logout Response's
    /// code (11.15.1).
    #[error("the target refused a logout (response {0})")]
    LogoutRefused(u8),
    /// No connection came back within Time2Wait and Time2Retain (7.5).
    #[error("no connection came back while the target keeps tasks")]
    NotRecovered,
    /// A command that may write was not taken to another connection, nor did the target say that it has ended (7.2.2).
    #[error("the target does not go on with a command on another connection")]
    NotReassigned,
    /// The session was logged out while this was under way.
    #[error("the session was logged out")]
    LoggedOut,
    /// The driver has given the session up ([`super::Session::give_up`]); it knows more.
    #[error("this side has given the session up")]
    GivenUp,
}

/// What is wrong with an answer that was well formed: its data must not be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum AnswerFault {
    /// Other bytes came than the residual count leaves (11.4.5).
    #[error("{received} bytes came, and by the residual count it should be {announced} (RFC 7143, 11.4.5)")]
    ReadLength {
        /// Bytes that came.
        received: u32,
        /// Bytes that should have come.
        announced: u32,
    },
    /// The target reports more written than it has been sent (11.4.5).
    #[error("{announced} bytes are reported written, and {sent} were sent (RFC 7143, 11.4.5)")]
    WriteLength {
        /// Bytes that were sent.
        sent: u32,
        /// Bytes that the target reports as taken.
        announced: u32,
    },
    /// A residual count above the expected length (11.4.5.2).
    #[error("the residual count {residual} is above the expected length {expected} (RFC 7143, 11.4.5)")]
    Residual {
        /// The count.
        residual: u32,
        /// Expected Data Transfer Length.
        expected: u32,
    },
    /// Fewer Data-In PDUs came than the target says that it has sent (11.4.8).
    #[error("{received} Data-In PDUs came, and the target has sent {announced} (RFC 7143, 11.4.8)")]
    DataMissing {
        /// PDUs that came.
        received: u32,
        /// ExpDataSN.
        announced: u32,
    },
    /// A data digest was wrong, and the data could not be had again (7.8).
    #[error("the data digest was wrong (RFC 7143, 7.8)")]
    DataDigest,
}
