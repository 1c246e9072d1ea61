//! From a portal's name to a connection in full feature phase: addresses, TCP, login, redirections; with a record of each
//! step for people.

use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};

use lunette_iscsi::chap::{ChapAlgorithm, ChapNonce};
use lunette_iscsi::initiator::discovery::Portal;
use lunette_iscsi::initiator::login::{
    Credentials, Login, LoginError, LoginSettings, Moved, Outcome, Purpose, Step, Trace, TracedPdu, Trail,
    Wishes,
};
use lunette_wire::initiator::{LogoutReason, LogoutRequest};
use lunette_wire::{BHS_LENGTH, Cid, CmdSn, InitiatorTaskTag, Isid, StatSn, TargetPdu, Tsih};

use crate::identity::random_isid;
use crate::wire::{Wire, connect, resolve};
use crate::{Error, Options, Phase};

/// What was done to log in, for people: each portal that was tried.
#[derive(Debug, Clone, Default)]
pub struct LoginRecord {
    /// The tries in their order; redirections lead from one to the next. Of those for further connections of a session that goes on
    /// the last 32.
    pub attempts: Vec<Attempt>,
    /// What was asked behind the login where that was a discovery: for targets, and to log out.
    pub exchanges: Vec<Exchange>,
}

/// As many tries are kept as a session may have connections.
const ATTEMPTS_KEPT: usize = 32;

impl LoginRecord {
    /// Adds a later login; of all tries the last are kept.
    pub(crate) fn add(&mut self, later: LoginRecord) {
        self.attempts.extend(later.attempts);
        self.attempts.drain(..self.attempts.len().saturating_sub(ATTEMPTS_KEPT));
    }
}

/// A request and its answer. Times are from the beginning of the first try.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Exchange {
    /// When the request was sent.
    pub sent: Duration,
    /// When the last PDU of its answer was there; none where it was not answered.
    pub answered: Option<Duration>,
}

/// One try. Times are from the beginning of the first.
#[derive(Debug, Clone)]
pub struct Attempt {
    /// The portal.
    pub portal: Portal,
    /// Its address, once a connection was there.
    pub address: Option<SocketAddr>,
    /// When it began.
    pub began: Duration,
    /// When the host's addresses were known.
    pub resolved: Option<Duration>,
    /// When the TCP connection was there.
    pub connected: Option<Duration>,
    /// When it was over.
    pub ended: Duration,
    /// What was said.
    pub trace: Trace,
    /// How it ended, in a sentence.
    pub end: String,
}

/// What a login is for.
#[derive(Debug, Clone)]
pub(crate) struct Goal {
    pub(crate) purpose: Purpose,
    pub(crate) isid: Isid,
    /// Zero for a new session.
    pub(crate) tsih: Tsih,
    pub(crate) cid: Cid,
    pub(crate) cmd_sn: CmdSn,
    /// Of the connection that this one takes the place of.
    pub(crate) exp_stat_sn: Option<StatSn>,
}

impl Goal {
    /// A new session's first connection.
    pub(crate) const fn leading(purpose: Purpose, isid: Isid) -> Self {
        Self { purpose, isid, tsih: Tsih(0), cid: Cid(0), cmd_sn: CmdSn(1), exp_stat_sn: None }
    }

    /// Whether a portal that refuses this says nothing for others: it is in another group than the session (RFC 7143, 13.9).
    fn may_be_elsewhere(&self, error: &Error) -> bool {
        self.tsih != Tsih(0) && error.is_of_another_session()
    }
}

/// The target's end of a session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TargetEnd {
    portal: Portal,
    /// A name may lead to several.
    address: Option<SocketAddr>,
    /// Where the target has told one.
    portal_group_tag: Option<u16>,
}

impl TargetEnd {
    /// The portal by its address, where that is known.
    pub(crate) fn at(&self) -> Portal {
        match self.address {
            // An address with a zone is known by that alone.
            Some(SocketAddr::V6(address)) if address.scope_id() != 0 => self.portal.clone(),
            Some(address) => Portal::new(address.ip().to_string(), address.port()),
            None => self.portal.clone(),
        }
    }

    /// Whether a login here ends what is left of a session there first: both have the same I_T nexus (RFC 7143, 6.3.5), which is the
    /// same portal group. A portal is in one group only: where the old one tells another tag, or none, the target behind it is
    /// another, or was configured anew.
    pub(crate) fn ends(&self, ghost: &Self) -> bool {
        let is_same_group =
            self.portal_group_tag.is_some() && self.portal_group_tag == ghost.portal_group_tag;
        is_same_group || self.at().is_at(&ghost.at())
    }
}

/// A connection in full feature phase.
#[derive(Debug)]
pub(crate) struct Connected {
    pub(crate) stream: TcpStream,
    pub(crate) portal: Portal,
    pub(crate) address: Option<SocketAddr>,
    pub(crate) outcome: Outcome,
    /// Which of the portals of its options has led there.
    pub(crate) way: usize,
}

impl Connected {
    pub(crate) fn target_end(&self) -> TargetEnd {
        TargetEnd {
            portal: self.portal.clone(),
            address: self.address,
            portal_group_tag: self.outcome.portal_group_tag,
        }
    }
}

/// Logs in for a trace, and out again: each step with its time, each key with its result.
///
/// # Errors
/// What the login failed with is the second part; the record has what was said until then.
pub fn login_trace(options: &Options) -> (LoginRecord, Result<Outcome, Error>) {
    let mut record = LoginRecord::default();
    let isid = match options.isid.map_or_else(random_isid, Ok) {
        Ok(isid) => isid,
        Err(error) => return (record, Err(no_random(error))),
    };
    let goal = Goal::leading(Purpose::Normal(options.target.clone()), isid);
    let result = Connector::new(options, &Learnt::default(), &mut record).log_in(&goal, 0);
    let result = result.map(|connected| {
        let outcome = connected.outcome.clone();
        // What the target says to the farewell does not matter to the trace.
        let _ = say_goodbye(connected, options.timing.logout);
        outcome
    });
    (record, result)
}

pub(crate) fn no_random(error: getrandom::Error) -> Error {
    Error::System { what: "random numbers", source: error.into() }
}

/// Ends the session that these options have had at a portal group, by a login with its name at another portal of that group
/// (RFC 7143, 6.3.5), and logs out again. Answers the group that it was.
///
/// # Errors
/// The login's.
pub(crate) fn end_session_at(options: &Options, learnt: &Learnt, isid: Isid) -> Result<Option<u16>, Error> {
    let goal = Goal::leading(Purpose::Normal(options.target.clone()), isid);
    let connected = Connector::new(options, learnt, &mut LoginRecord::default()).log_in(&goal, 0)?;
    let group = connected.outcome.portal_group_tag;
    // The old session is gone, whatever becomes of the new one.
    let _ = say_goodbye(connected, options.timing.logout);
    Ok(group)
}

/// Logs out a session that has done nothing.
///
/// # Errors
/// The target does not answer.
pub(crate) fn say_goodbye(connected: Connected, limit: Duration) -> Result<(), Error> {
    let outcome = &connected.outcome;
    let mut wire = Wire::new(connected.stream, connected.portal, limit);
    wire.phase = Phase::Logout;
    wire.digests = outcome.connection.digests;
    wire.data_segment_length_max = outcome.connection.max_recv_data_segment_length;
    let request = LogoutRequest {
        immediate: true,
        reason: LogoutReason::CloseSession,
        initiator_task_tag: InitiatorTaskTag(1),
        cmd_sn: outcome.cmd_sn,
        exp_stat_sn: outcome.exp_stat_sn,
        ..LogoutRequest::default()
    };
    wire.send(&request.encode(), &[])?;
    wire.receive().map(|_| ())
}

/// What a session's logins have shown of its target: shared by all of them, from its first connection to its last new try.
#[derive(Debug, Clone, Default)]
pub(crate) struct Learnt(Arc<AtomicU8>);

impl Learnt {
    /// It has taken a login without the security stage.
    const SHORT: u8 = 1;
    /// It has not.
    const BOTH: u8 = 2;

    fn is(&self, what: u8) -> bool {
        self.0.load(Ordering::Relaxed) == what
    }

    fn note(&self, what: u8) {
        self.0.store(what, Ordering::Relaxed);
    }
}

/// Logs in as options say.
pub(crate) struct Connector<'a> {
    options: &'a Options,
    learnt: &'a Learnt,
    record: &'a mut LoginRecord,
    start: Instant,
}

/// The stage that a login begins with.
#[derive(Debug, Clone, Copy)]
enum Start<'a> {
    /// SecurityNegotiation, with these credentials.
    Security(Option<&'a Credentials>),
    /// LoginOperationalNegotiation, without any.
    Operational,
}

/// How a try at one portal ended.
enum Tried {
    There(Box<Connected>),
    Moved(Moved),
}

impl<'a> Connector<'a> {
    pub(crate) fn new(options: &'a Options, learnt: &'a Learnt, record: &'a mut LoginRecord) -> Self {
        Self { options, learnt, record, start: Instant::now() }
    }

    /// Logs in at the first portal that takes the login, beginning with the one at `first` (modulo their number).
    ///
    /// # Errors
    /// What the first portal said; another one is tried only where that may help.
    pub(crate) fn log_in(&mut self, goal: &Goal, first: usize) -> Result<Connected, Error> {
        let portals = &self.options.portals;
        if portals.is_empty() {
            return Err(Error::Options("there is no portal to log in to".into()));
        }
        let mut failed = None;
        for offset in 0..portals.len() {
            let way = (first + offset) % portals.len();
            match self.follow(goal, &portals[way]) {
                Ok(connected) => return Ok(Connected { way, ..connected }),
                Err(error) if error.is_temporary() || goal.may_be_elsewhere(&error) => {
                    failed = failed.or(Some(error));
                }
                Err(error) => return Err(error),
            }
        }
        Err(failed.unwrap_or(Error::Ended))
    }

    /// Logs in at a portal, or where it leads to.
    fn follow(&mut self, goal: &Goal, portal: &Portal) -> Result<Connected, Error> {
        let mut trail = Trail::new(portal.clone());
        let mut portal = portal.clone();
        loop {
            match self.try_stages(goal, &portal)? {
                Tried::There(connected) => return Ok(*connected),
                Tried::Moved(moved) => {
                    let next = trail.follow(&moved);
                    portal = next.map_err(|error| Error::Login { portal: portal.clone(), error })?;
                }
            }
        }
    }

    /// Without credentials there is nothing to say in the security stage: it is left out, which saves a round trip, and a target
    /// that does not take that is tried once more with it (RFC 7143, 6.3). What it says then is its answer: see [`Error::of_both`].
    /// The session's later logins go through it from the start.
    fn try_stages(&mut self, goal: &Goal, portal: &Portal) -> Result<Tried, Error> {
        if !self.options.leaves_out_security() || self.learnt.is(Learnt::BOTH) {
            return self.try_algorithms(goal, portal);
        }
        let first = match self.attempt(goal, portal, Start::Operational) {
            Err(first) if first.may_miss_security(self.learnt.is(Learnt::SHORT)) => first,
            ended => {
                if matches!(ended, Ok(Tried::There(_))) {
                    self.learnt.note(Learnt::SHORT);
                }
                return ended;
            }
        };
        let second = self.attempt(goal, portal, Start::Security(None));
        // A connection that is closed may say nothing but that the target is ending; a refusal is about this login.
        if second.is_ok() || !first.is_temporary() {
            self.learnt.note(Learnt::BOTH);
        }
        second.map_err(|second| Error::of_both(first, second))
    }

    /// tgtd computes SHA-1 where SHA-256 is meant. Whoever fails with SHA-256 and has offered MD5 anyway tries that alone,
    /// once: nobody who could listen or change what is said gains by it.
    fn try_algorithms(&mut self, goal: &Goal, portal: &Portal) -> Result<Tried, Error> {
        let credentials = self.options.credentials.as_ref();
        let first = match (self.attempt(goal, portal, Start::Security(credentials)), credentials) {
            (Err(first), Some(credentials))
                if is_of_sha_256(&first, self.record)
                    && credentials.algorithms.contains(&ChapAlgorithm::Md5) =>
            {
                let only = Credentials { algorithms: vec![ChapAlgorithm::Md5], ..credentials.clone() };
                match self.attempt(goal, portal, Start::Security(Some(&only))) {
                    Err(second) if second.is_temporary() => return Err(Error::of_both(first, second)),
                    // What SHA-256 failed with says more than what MD5 does, unless that names the reason.
                    Err(second) if !second.is_authentication() => first,
                    ended => return ended,
                }
            }
            (ended, _) => return ended,
        };
        Err(first)
    }

    /// One connection, one login; it is noted in the record.
    fn attempt(&mut self, goal: &Goal, portal: &Portal, start: Start<'_>) -> Result<Tried, Error> {
        let mut attempt = Attempt {
            portal: portal.clone(),
            address: None,
            began: self.start.elapsed(),
            resolved: None,
            connected: None,
            ended: Duration::ZERO,
            trace: Trace::default(),
            end: String::new(),
        };
        let result = self.connect_and_log_in(goal, portal, start, &mut attempt);
        attempt.ended = self.start.elapsed();
        attempt.end = match &result {
            Ok(Tried::There(_)) => "logged in".to_owned(),
            Ok(Tried::Moved(moved)) => {
                let how = if moved.is_permanent { "permanently" } else { "for now" };
                format!("sent elsewhere, {how}")
            }
            Err(error) => error.to_string(),
        };
        self.record.attempts.push(attempt);
        result
    }

    fn connect_and_log_in(
        &self,
        goal: &Goal,
        portal: &Portal,
        start: Start<'_>,
        attempt: &mut Attempt,
    ) -> Result<Tried, Error> {
        let options = self.options;
        let (credentials, skips_security) = match start {
            Start::Security(credentials) => (credentials, false),
            Start::Operational => (None, true),
        };
        let settings = LoginSettings {
            initiator_name: options.initiator_name.clone(),
            initiator_alias: options.initiator_alias.clone(),
            purpose: goal.purpose.clone(),
            isid: goal.isid,
            tsih: goal.tsih,
            cid: goal.cid,
            cmd_sn: goal.cmd_sn,
            exp_stat_sn: goal.exp_stat_sn,
            wishes: Wishes { max_connections: options.connections.max(1), ..options.wishes.clone() },
            credentials: credentials.cloned(),
            skips_security,
        };
        let mut random = [0; 33];
        getrandom::fill(&mut random).map_err(no_random)?;
        let failed = |error| Error::Login { portal: portal.clone(), error };
        // What cannot be offered is found out before anybody is bothered.
        let began = Login::begin(settings, ChapNonce::from(random), self.start.elapsed());
        let (mut login, first) = began.map_err(failed)?;

        let addresses = resolve(portal)?;
        attempt.resolved = Some(self.start.elapsed());
        let stream = connect(portal, &addresses, options.timing.connect)?;
        attempt.connected = Some(self.start.elapsed());
        let mut wire = Wire::new(stream, portal.clone(), options.timing.login);
        attempt.address = wire.address();
        let end = self.exchange(&mut login, first, &mut wire);
        attempt.trace = login.trace().clone();
        match end? {
            Step::Done(outcome) => Ok(Tried::There(Box::new(Connected {
                address: wire.address(),
                stream: wire.stream,
                portal: portal.clone(),
                outcome: *outcome,
                way: 0,
            }))),
            Step::Moved(moved) => Ok(Tried::Moved(moved)),
            Step::Failed(error) => Err(failed(error)),
            Step::Send(_) => Err(wire.format("the login does not end".into())),
        }
    }

    /// Carries PDUs until the login is over.
    fn exchange(
        &self,
        login: &mut Login,
        first: lunette_iscsi::initiator::login::LoginPdu,
        wire: &mut Wire,
    ) -> Result<Step, Error> {
        let mut next = first;
        loop {
            wire.send(&next.pdu.encode(next.text.len()), &next.text)?;
            let (bhs, data) = wire.receive()?;
            let step = match decoded(&bhs) {
                Some(response) => login.received(self.start.elapsed(), &response, &data),
                None => login.other_pdu(bhs[0] & 0x3f),
            };
            match step {
                Step::Send(pdu) => next = pdu,
                end => return Ok(end),
            }
        }
    }
}

fn decoded(bhs: &[u8; BHS_LENGTH]) -> Option<lunette_wire::target::LoginResponse> {
    match TargetPdu::decode(bhs) {
        Ok(TargetPdu::LoginResponse(response)) => Some(response),
        _ => None,
    }
}

/// Whether a login failed on a response that was computed with SHA-256. tgtd calls that an error of the initiator's.
fn is_of_sha_256(error: &Error, record: &LoginRecord) -> bool {
    let Error::Login { error, .. } = error else { return false };
    let Some(attempt) = record.attempts.last() else { return false };
    let pdus = &attempt.trace.pdus;
    let has = |pdu: &TracedPdu, wanted: &str| pdu.pairs.iter().any(|(name, _)| name == wanted);
    let has_chosen = || {
        let number = ChapAlgorithm::Sha256.number().to_string();
        let mut said = pdus.iter().flat_map(|pdu| &pdu.pairs);
        said.rfind(|(name, _)| name == "CHAP_A").is_some_and(|(_, value)| *value == number)
    };
    let is_refusal = matches!(error, LoginError::Refused { refusal } if refusal.class() == 2);
    let is_of_response = || pdus.iter().rev().nth(1).is_some_and(|pdu| has(pdu, "CHAP_R"));
    (error.is_authentication() || is_refusal && is_of_response()) && has_chosen()
}
