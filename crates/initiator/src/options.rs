//! What a session is to be: with whom, as whom, how, and how patiently.

use std::time::Duration;

use lunette_iscsi::initiator::discovery::Portal;
use lunette_iscsi::initiator::login::{Credentials, Wishes};
use lunette_iscsi::name::IscsiName;
use lunette_wire::Isid;

use crate::identity::{default_initiator_name, isid_beside};

/// How long things may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timing {
    /// For a TCP connection to be there. Default 10 s: three tries of TCP's own (RFC 6298: after 1, 3 and 7 s).
    pub connect: Duration,
    /// For a whole login; one that is tried a second time, in another way, has as long again. Default 15 s, as Linux has it.
    pub login: Duration,
    /// After how much silence the target is asked whether it is there; none: never. Default 5 s.
    pub nop_interval: Option<Duration>,
    /// How long it may take to answer. Default 5 s.
    pub nop_timeout: Duration,
    /// For a logout. Default 5 s: what comes after it is the end in any case.
    pub logout: Duration,
    /// How long a command may not get on before it is ended; ten times that for VERIFY and for commands other than reads and
    /// writes, which may work on more than they transfer, and 1440 times for those that work on a whole medium (FORMAT UNIT,
    /// SANITIZE, SEND DIAGNOSTIC); longer while data comes or goes that its answer may be behind; none: for ever. Default 60 s,
    /// as Windows has it (Linux: 30 s). See [`crate::Engine`] for what is done then.
    pub command: Option<Duration>,
    /// How long the ABORT TASK of such a command may take. Default 15 s, as Linux has it.
    pub abort: Duration,
    /// How long the LOGICAL UNIT RESET may take that follows where that does not help. Default 30 s, as Linux has it.
    pub reset: Duration,
    /// How long a lost session is tried to be had again before its commands fail; zero: not at all. Default 120 s, as Linux has
    /// it. Tries begin at once (or after the target's Time2Wait, but after half of this time at the latest), then after 0.5, 1,
    /// 2, 4, 8 s, and so on every 10 s.
    pub recovery: Duration,
}

impl Default for Timing {
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(10),
            login: Duration::from_secs(15),
            nop_interval: Some(Duration::from_secs(5)),
            nop_timeout: Duration::from_secs(5),
            logout: Duration::from_secs(5),
            command: Some(Duration::from_secs(60)),
            abort: Duration::from_secs(15),
            reset: Duration::from_secs(30),
            recovery: Duration::from_secs(120),
        }
    }
}

/// Everything about one session.
#[derive(Debug, Clone)]
pub struct Options {
    /// Who we are. Default: [`crate::default_initiator_name`].
    pub initiator_name: IscsiName,
    /// How people call us.
    pub initiator_alias: Option<String>,
    /// The target.
    pub target: IscsiName,
    /// Where it is: tried in this order; further connections of the session go to the next ones in turn. At least one.
    pub portals: Vec<Portal>,
    /// The session's identifier. Default: random. Two sessions of one name with one identifier end each other in a portal
    /// group (RFC 7143, 6.3.5).
    pub isid: Option<Isid>,
    /// For CHAP.
    pub credentials: Option<Credentials>,
    /// Without credentials, leave out the security stage of the login (RFC 7143, 6.3). A target that refuses such a login, closes the
    /// connection or stays silent is tried once more with the stage; where that helps, or it was a refusal, all further logins of
    /// the session go through the stage at once. False: they do so from the start. Several connections and an
    /// ErrorRecoveryLevel above 0 always go through it: LIO grants one connection otherwise. Default: true.
    pub skips_security: bool,
    /// What is offered at login; `max_connections` is set by `connections`.
    pub wishes: Wishes,
    /// Connections of the session, 1 to 32; the target may want fewer. Default 1.
    pub connections: u16,
    /// How long things may take.
    pub timing: Timing,
}

impl Options {
    /// The defaults for this target at this portal.
    #[must_use]
    pub fn new(target: IscsiName, portal: Portal) -> Self {
        Self {
            initiator_name: default_initiator_name(),
            initiator_alias: None,
            target,
            portals: vec![portal],
            isid: None,
            credentials: None,
            skips_security: true,
            wishes: Wishes::default(),
            connections: 1,
            timing: Timing::default(),
        }
    }

    /// Whether a login begins with the operational stage.
    pub(crate) fn leaves_out_security(&self) -> bool {
        let is_plain = self.connections <= 1 && self.wishes.error_recovery_level == 0;
        self.skips_security && is_plain && self.credentials.is_none()
    }

    /// The same for another session beside this one, the `place`th: an identifier that is given counts on, in its qualifier
    /// (RFC 7143, 11.12.5).
    #[must_use]
    pub fn beside(&self, place: u16) -> Self {
        Self { isid: self.isid.map(|isid| isid_beside(isid, place)), ..self.clone() }
    }
}
