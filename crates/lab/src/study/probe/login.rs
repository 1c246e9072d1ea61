//! How long a login takes, and which part of it.

use std::time::{Duration, Instant};

use lunette_initiator::{
    Attempt, ChapCredential, Command, Credentials, DigestWish, LoginRecord, Lun, Options, Secret, Side,
    TracedPdu, blocking, discover_trace, login_trace,
};
use lunette_scsi::client::medium::{self, BlockRange, Caching};
use lunette_scsi::client::{capacity, inquiry};
use lunette_wire::initiator::LoginStage;

use super::{Place, Run};
use crate::LabError;
use crate::study::service::Service;
use crate::study::site::{BLOCK_BYTES, TARGET};

/// Times of one login are told; so many are made.
pub(crate) const LOGINS: usize = 5;
const SECRET: (&str, &str) = ("LAB_INITIATOR_SECRET", "a secret of the lab");
const TARGET_SECRET: (&str, &str) = ("LAB_TARGET_SECRET", "another one of the lab");

/// Which session is had how, and what of it is told.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LoginProbe {
    /// A discovery session, of so many targets; else a normal one.
    pub(crate) discovers: Option<u32>,
    pub(crate) authentication: Authentication,
    pub(crate) digests: bool,
    pub(crate) phase: LoginPhase,
}

/// Who proves who he is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Authentication {
    None,
    /// The initiator, by CHAP.
    Chap,
    /// Both.
    Mutual,
}

/// Parts of a session's beginning. The last two split the time of the login another way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LoginPhase {
    Total,
    TcpConnect,
    /// SecurityNegotiation, from its first request to its last response.
    Security,
    /// Of that stage, until the target has chosen the method (AuthMethod; RFC 7143, 12.1).
    ChapMethod,
    /// From there until its challenge has come (CHAP_A, then CHAP_I and CHAP_C; RFC 7143, 12.1.3).
    ChapChallenge,
    /// From there until it has taken the answer (CHAP_N and CHAP_R), and proven itself if it was asked to.
    ChapAnswer,
    /// LoginOperationalNegotiation.
    Operational,
    /// INQUIRY, READ CAPACITY and the first block.
    FirstIo,
    /// SendTargets and the logout.
    SendTargets,
    /// From each request to its answer, and TCP's handshake: the network and the target.
    Waiting,
    /// The rest: the initiator.
    Initiator,
}

/// Logs in once.
pub(super) fn run(place: Place<'_>, probe: &LoginProbe) -> Result<Run, LabError> {
    let Some((site, _)) = place.over else {
        return Err(LabError::Plan("there is no login without a network".to_owned()));
    };
    let service = Service::start(site, place.binary, &targets(probe), &[SECRET, TARGET_SECRET])?;
    let options = options(probe)?;
    let time = site.near(|| time(probe, &options))??;
    drop(service);
    Ok(Run::of(time.as_secs_f64() * 1e3, None))
}

fn targets(probe: &LoginProbe) -> String {
    let (user, mutual) = match probe.authentication {
        Authentication::None => (String::new(), String::new()),
        Authentication::Chap => (user(""), String::new()),
        Authentication::Mutual => (user(""), format!("secret_env = \"{}\"\n\n", TARGET_SECRET.0)),
    };
    let of_target = |number: u32| {
        let name = if number == 0 { TARGET.to_owned() } else { format!("{TARGET}-{number}") };
        let mut text = Service::target(&name, "mem:16M", "write = \"back\"\n");
        if probe.discovers.is_none() {
            text += &user;
            if !mutual.is_empty() {
                text += &format!("[target.mutual]\n{mutual}");
            }
        }
        text
    };
    let mut text: String = (0..probe.discovers.unwrap_or(1)).map(of_target).collect();
    if probe.discovers.is_some() {
        text += &user.replace("[[target.user]]", "[[discovery.user]]");
        if !mutual.is_empty() {
            text += &format!("[discovery.mutual]\nname = \"{TARGET}\"\n{mutual}");
        }
    }
    text
}

fn user(more: &str) -> String {
    format!("[[target.user]]\nname = \"lab\"\nsecret_env = \"{}\"\n{more}\n", SECRET.0)
}

fn options(probe: &LoginProbe) -> Result<Options, LabError> {
    let (mut options, _) = Service::options()?;
    // The published logins have both stages.
    options.skips_security = false;
    let credential =
        |name: &str, secret: &str| ChapCredential { name: name.to_owned(), secret: Secret::new(secret) };
    if probe.authentication != Authentication::None {
        let mut credentials = Credentials::new(credential("lab", SECRET.1));
        if probe.authentication == Authentication::Mutual {
            credentials.target = Some(credential(TARGET, TARGET_SECRET.1));
        }
        options.credentials = Some(credentials);
    }
    if probe.digests {
        options.wishes.header_digest = DigestWish::Required;
        options.wishes.data_digest = DigestWish::Required;
    }
    Ok(options)
}

/// One login, and the time of the part that is asked for.
fn time(probe: &LoginProbe, options: &Options) -> Result<Duration, LabError> {
    let began = Instant::now();
    if probe.discovers.is_some() {
        let (record, found) = discover_trace(options);
        let took = began.elapsed();
        found?;
        let login = last(&record)?;
        return Ok(match probe.phase {
            LoginPhase::Total => took,
            LoginPhase::SendTargets => took.saturating_sub(login.ended),
            phase => part(login, phase),
        });
    }
    if probe.phase == LoginPhase::FirstIo || probe.phase == LoginPhase::Total {
        let session = blocking::Session::connect(options.clone())?;
        let logged_in = Instant::now();
        first_io(&session)?;
        let done = Instant::now();
        session.log_out();
        return Ok(done - if probe.phase == LoginPhase::Total { began } else { logged_in });
    }
    let (record, outcome) = login_trace(options);
    outcome?;
    Ok(part(last(&record)?, probe.phase))
}

fn last(record: &LoginRecord) -> Result<&Attempt, LabError> {
    record.attempts.last().ok_or_else(|| LabError::NotReady("nobody tried to log in".to_owned()))
}

/// A part of a login that went well.
fn part(login: &Attempt, phase: LoginPhase) -> Duration {
    let connected = login.connected.unwrap_or(login.ended);
    let pdus = &login.trace.pdus;
    let stage = |wanted: LoginStage| {
        let mut of_stage = pdus.iter().filter(|pdu| pdu.stage == wanted);
        let first = of_stage.next();
        let last = of_stage.next_back().or(first);
        first.zip(last).map_or(Duration::ZERO, |(first, last)| last.at.saturating_sub(first.at))
    };
    let all = login.ended.saturating_sub(login.began);
    let handshake = connected.saturating_sub(login.began);
    let waiting = handshake + awaited(pdus);
    match phase {
        LoginPhase::TcpConnect => handshake,
        LoginPhase::Security => stage(LoginStage::Security),
        LoginPhase::ChapMethod => steps(pdus)[0],
        LoginPhase::ChapChallenge => steps(pdus)[1],
        LoginPhase::ChapAnswer => steps(pdus)[2],
        LoginPhase::Operational => stage(LoginStage::Operational),
        LoginPhase::Waiting => waiting,
        LoginPhase::Initiator => all.saturating_sub(waiting),
        LoginPhase::Total | LoginPhase::FirstIo | LoginPhase::SendTargets => all,
    }
}

/// The steps of CHAP, one after the other: they add up to the security stage. What there is not takes no time.
fn steps(pdus: &[TracedPdu]) -> [Duration; 3] {
    let security = || pdus.iter().filter(|pdu| pdu.stage == LoginStage::Security);
    let begun = security().next().map_or(Duration::ZERO, |pdu| pdu.at);
    let told = |key: &str| {
        let has_key = |pdu: &&TracedPdu| pdu.pairs.iter().any(|pair| pair.0 == key);
        security().find(|pdu| pdu.from == Side::Target && has_key(pdu)).map(|pdu| pdu.at)
    };
    let chosen = told("AuthMethod").unwrap_or(begun);
    let challenged = told("CHAP_C").unwrap_or(chosen);
    let over = security().next_back().map_or(challenged, |pdu| pdu.at);
    [chosen.saturating_sub(begun), challenged.saturating_sub(chosen), over.saturating_sub(challenged)]
}

/// The time in which a request was under way and its answer had not come.
fn awaited(pdus: &[TracedPdu]) -> Duration {
    let mut asked_at = None;
    let mut sum = Duration::ZERO;
    for pdu in pdus {
        if pdu.from == Side::Initiator {
            asked_at.get_or_insert(pdu.at);
        } else if let Some(asked_at) = asked_at.take() {
            sum += pdu.at.saturating_sub(asked_at);
        }
    }
    sum
}

/// What a host asks a disk before it uses it, each command after the other.
fn first_io(session: &blocking::Session) -> Result<(), LabError> {
    let block = BlockRange { lba: 0, blocks: 1, block_length_bytes: BLOCK_BYTES };
    let read = medium::read(block.form(), block, Caching::default())
        .map_err(|error| LabError::Plan(error.to_string()))?;
    let (inquiry, capacity) = (inquiry::standard(), capacity::read_capacity_16());
    for command in [inquiry.command(), capacity.command(), &read] {
        let length_bytes = command.data_in_bytes() as usize;
        // A new nexus has a unit attention to tell first (SAM-5, 5.14).
        let ended_well = (0..3).any(|_| {
            let command = Command::new(Lun::default(), command.cdb()).reading(vec![0; length_bytes]);
            session.execute(command).result.is_ok_and(|status| status.is_good())
        });
        if !ended_well {
            return Err(LabError::NotReady("the first commands are refused".to_owned()));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_the_initiator_waits_for_is_waiting() {
        let pdu = |at_ms, from| TracedPdu {
            at: Duration::from_millis(at_ms),
            from,
            stage: LoginStage::Security,
            next_stage: None,
            is_continued: false,
            status: 0,
            text_length: 0,
            pairs: Vec::new(),
        };
        let pdus = [
            pdu(10, Side::Initiator),
            pdu(13, Side::Target),
            // 20 ms in which the initiator thinks.
            pdu(33, Side::Initiator),
            pdu(38, Side::Target),
            // The last request was never answered.
            pdu(40, Side::Initiator),
        ];
        assert_eq!(awaited(&pdus), Duration::from_millis(3 + 5));
        assert_eq!(awaited(&[]), Duration::ZERO);
    }

    #[test]
    fn the_steps_of_chap_add_up_to_the_security_stage() {
        let pdu = |at_ms, from, keys: &[&str], stage| TracedPdu {
            at: Duration::from_millis(at_ms),
            from,
            stage,
            next_stage: None,
            is_continued: false,
            status: 0,
            text_length: 0,
            pairs: keys.iter().map(|&key| (key.to_owned(), "x".to_owned())).collect(),
        };
        let (ours, theirs, stage) = (Side::Initiator, Side::Target, LoginStage::Security);
        let pdus = [
            pdu(10, ours, &["InitiatorName", "AuthMethod"], stage),
            pdu(12, theirs, &["TargetPortalGroupTag", "AuthMethod"], stage),
            pdu(13, ours, &["CHAP_A"], stage),
            pdu(17, theirs, &["CHAP_A", "CHAP_I", "CHAP_C"], stage),
            // Mutual CHAP has a challenge of ours, which is not the target's.
            pdu(18, ours, &["CHAP_N", "CHAP_R", "CHAP_I", "CHAP_C"], stage),
            pdu(26, theirs, &["CHAP_N", "CHAP_R"], stage),
            pdu(27, ours, &["HeaderDigest"], LoginStage::Operational),
        ];
        let ms = |times: [u64; 3]| times.map(Duration::from_millis);
        assert_eq!(steps(&pdus), ms([2, 5, 9]));
        // Without CHAP all of it is the choice, and what follows.
        assert_eq!(steps(&pdus[..2]), ms([2, 0, 0]));
        assert_eq!(steps(&[]), ms([0, 0, 0]));
    }
}
