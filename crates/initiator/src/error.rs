//! What goes wrong with a session: where, which side it was, and what to try.

use std::io;
use std::time::Duration;

use lunette_iscsi::Quoted;
use lunette_iscsi::initiator::discovery::{DiscoveryError, Portal};
use lunette_iscsi::initiator::login::LoginError;

pub use lunette_iscsi::initiator::login::Side;

/// What to try, as a clause.
pub type Advice = &'static str;

/// How far a connection had come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// TCP.
    Connect,
    /// The login (RFC 7143, 6.3).
    Login,
    /// Commands.
    FullFeature,
    /// SendTargets (appendix C).
    Discovery,
    /// The logout (11.14).
    Logout,
}

impl std::fmt::Display for Phase {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Connect => "connecting",
            Self::Login => "login",
            Self::FullFeature => "the session",
            Self::Discovery => "discovery",
            Self::Logout => "logout",
        })
    }
}

/// Why there is no session, or no longer. Secrets are in none of them; text of a peer's is escaped and cut.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Options that cannot be.
    #[error("{0}")]
    Options(String),
    /// The host's name leads nowhere.
    #[error("cannot find the address of {}: {source}", Quoted(&portal.host))]
    Resolve {
        /// The portal.
        portal: Portal,
        /// Why.
        source: io::Error,
    },
    /// Nobody answers there.
    #[error("cannot connect to {portal}: {source}")]
    Connect {
        /// The portal.
        portal: Portal,
        /// Why.
        source: io::Error,
    },
    /// The target closed the connection, or the network did.
    #[error("{portal} closed the connection during {phase}{}", because(source.as_ref()))]
    Closed {
        /// The portal.
        portal: Portal,
        /// How far it had come.
        phase: Phase,
        /// More about it, where it is known.
        source: Option<io::Error>,
    },
    /// No answer came in time.
    #[error("{portal} did not answer within {} s during {phase}", after.as_secs_f32())]
    Timeout {
        /// The portal.
        portal: Portal,
        /// How far it had come.
        phase: Phase,
        /// How long it was waited for.
        after: Duration,
    },
    /// The login failed.
    #[error("login at {portal}: {error}")]
    Login {
        /// The portal.
        portal: Portal,
        /// Why.
        error: LoginError,
    },
    /// A login was tried in another way after a refusal, and has failed for the moment.
    #[error("{second}; the try before it, in another way: {first}")]
    TriedAgain {
        /// What the refusal was.
        first: Box<Error>,
        /// What came of the second try, which counts.
        second: Box<Error>,
    },
    /// SendTargets failed.
    #[error("discovery at {portal}: {error}")]
    Discovery {
        /// The portal.
        portal: Portal,
        /// Why.
        error: DiscoveryError,
    },
    /// A name service cannot be asked.
    #[error("the iSNS server {server} {reason}")]
    NameService {
        /// Where it is.
        server: Portal,
        /// What it does, as a clause.
        reason: String,
    },
    /// What came is no PDU that may come.
    #[error("{portal} sent something that is no iSCSI during {phase}: {what}")]
    Format {
        /// The portal.
        portal: Portal,
        /// How far it had come.
        phase: Phase,
        /// What it was.
        what: String,
    },
    /// The session is over, and could not be had again.
    #[error("the session with {portal} was lost: {reason}")]
    Lost {
        /// The last portal.
        portal: Portal,
        /// Why.
        reason: String,
    },
    /// A lost session may still carry out writes, and the new one is with another portal group, which does not end it (RFC 7143, 6.3.5).
    #[error(
        "{portal} is in another portal group than {old}, and what the lost session may still write there could not be ended: {reason}"
    )]
    Haunted {
        /// Where the new session was.
        portal: Portal,
        /// Where the lost one was.
        old: Portal,
        /// Why.
        reason: String,
    },
    /// Everything was closed while the commands of a lost path may still be carried out, and could not be ended.
    #[error(
        "what was under way when the path over {portal} was lost could not be ended: the target may still carry it out, and so bring old blocks back over whatever is written from now on"
    )]
    GhostLeft {
        /// The portal of the path.
        portal: Portal,
    },
    /// A path leads elsewhere than the others, or its unit does not say where it leads.
    #[error("the path over {portal}: {what}")]
    Path {
        /// The portal.
        portal: Portal,
        /// What is wrong with it.
        what: String,
    },
    /// The session was ended on this side.
    #[error("the session was closed on this side")]
    Ended,
    /// The system refuses something that a session needs.
    #[error("the system refuses {what}: {source}")]
    System {
        /// What.
        what: &'static str,
        /// Why.
        source: io::Error,
    },
}

fn because(source: Option<&io::Error>) -> String {
    source.map_or_else(String::new, |source| format!(": {source}"))
}

impl Error {
    /// Whose doing it is; neither side's where nobody can be reached.
    #[must_use]
    pub fn side(&self) -> Option<Side> {
        match self {
            Self::Options(_) | Self::Ended | Self::System { .. } | Self::Resolve { .. } => {
                Some(Side::Initiator)
            }
            Self::Connect { .. } | Self::Lost { .. } | Self::Haunted { .. } | Self::GhostLeft { .. } => None,
            Self::Closed { .. }
            | Self::Timeout { .. }
            | Self::Discovery { .. }
            | Self::NameService { .. }
            | Self::Format { .. }
            | Self::Path { .. } => Some(Side::Target),
            Self::Login { error, .. } => Some(error.side()),
            Self::TriedAgain { second, .. } => second.side(),
        }
    }

    /// What to try.
    #[must_use]
    pub fn advice(&self) -> Advice {
        match self {
            Self::Options(_) => "change the options",
            Self::Resolve { .. } => "check the host's name, or use its address",
            Self::Connect { source, .. } if source.kind() == io::ErrorKind::ConnectionRefused => {
                "check the port (iSCSI's is 3260) and whether the target runs"
            }
            Self::Connect { .. } => "check the address, the network, and firewalls on the way",
            Self::Closed { phase: Phase::Login, .. } => {
                "look at the target's log; targets close without a word where too many logins wait, or an address is \
                 not let in"
            }
            Self::Closed { .. } => "look at the target's log and at the network",
            Self::Timeout { .. } => {
                "check whether the target is overloaded, and whether this is an iSCSI portal"
            }
            // A login's error says it itself.
            Self::Login { .. } => "`lunette login-trace URL` tells every step of the login",
            Self::TriedAgain { second, .. } => second.advice(),
            Self::Discovery { .. } => "name the target in place of asking for all",
            Self::NameService { .. } => {
                "check whether an iSNS server listens there (its port is 3205), and whether it lets this initiator ask"
            }
            Self::Format { .. } => "check whether this is an iSCSI portal",
            Self::Lost { .. } => "look at the target's log and at the network, then connect again",
            Self::Haunted { .. } => {
                "bring back the portal where the lost session was; a disk that several paths lead to goes on without it"
            }
            Self::GhostLeft { .. } => {
                "write nothing to the disk before the target has ended the old session, as a restart of the target does"
            }
            Self::Path { .. } => "check that all paths name the same logical unit of the same target",
            Self::Ended => "connect again",
            Self::System { .. } => "check the limits of this process (open files, memory)",
        }
    }

    /// True where authentication is what failed.
    #[must_use]
    pub fn is_authentication(&self) -> bool {
        matches!(self, Self::Login { error, .. } if error.is_authentication())
    }

    /// What two tries in different ways have come to. A refusal is the last word only where the second try says so too: one that
    /// fails for the moment may go through a little later.
    pub(crate) fn of_both(first: Error, second: Error) -> Error {
        match (first.is_temporary(), second.is_temporary()) {
            (false, true) => Self::TriedAgain { first: Box::new(first), second: Box::new(second) },
            (true, true) => first,
            (_, false) => second,
        }
    }

    /// True where a login that has left out the security stage may succeed with it. `has_taken`: the session's target has taken
    /// such a login before, so that its silence has another reason.
    pub(crate) fn may_miss_security(&self, has_taken: bool) -> bool {
        match self {
            Self::Login { error, .. } => error.may_miss_security(),
            // Some do not say what they miss.
            Self::Closed { phase: Phase::Login, .. } => true,
            Self::Timeout { phase: Phase::Login, .. } => !has_taken,
            _ => false,
        }
    }

    /// True where a session that was lost cannot be had again, however long it is tried.
    pub(crate) fn is_for_good(&self) -> bool {
        match self {
            Self::Options(_) | Self::Ended => true,
            Self::Login { error, .. } => error.is_for_good(),
            Self::TriedAgain { second, .. } => second.is_for_good(),
            _ => false,
        }
    }

    /// True where a portal knows nothing of the session that a login is for, as those of other groups do.
    pub(crate) fn is_of_another_session(&self) -> bool {
        match self {
            Self::Login { error, .. } => error.is_of_another_session(),
            Self::TriedAgain { second, .. } => second.is_of_another_session(),
            _ => false,
        }
    }

    /// True where the same may succeed a little later.
    #[must_use]
    pub fn is_temporary(&self) -> bool {
        match self {
            Self::Connect { .. } | Self::Closed { .. } | Self::Timeout { .. } | Self::Resolve { .. } => true,
            Self::Login { error, .. } => error.is_temporary(),
            Self::TriedAgain { second, .. } => second.is_temporary(),
            _ => false,
        }
    }
}
