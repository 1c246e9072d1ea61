//! How long a login takes, and which part of it. One login tells all its parts, so that they add up to it.

use std::cell::RefCell;
use std::fs;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use lunette_initiator::{
    Attempt, ChapCredential, Command, Credentials, DigestWish, LoginRecord, Lun, Options, Secret, Side,
    TracedPdu, blocking, discover_trace,
};
use lunette_scsi::client::medium::{self, BlockRange, Caching};
use lunette_scsi::client::{capacity, inquiry};
use lunette_wire::initiator::LoginStage;

use super::seen::{Observer, Seen};
use super::{Further, Place, Run};
use crate::LabError;
use crate::study::echo::{Echo, Exchanged, Payload, handshake};
use crate::study::scratch::Directory;
use crate::study::service::{Service, quoted};
use crate::study::site::{BLOCK_BYTES, TARGET};

/// Times of one login are told; so many are made.
pub(crate) const LOGINS: usize = 5;
const SECRET: (&str, &str) = ("LAB_INITIATOR_SECRET", "a secret of the lab");
const TARGET_SECRET: (&str, &str) = ("LAB_TARGET_SECRET", "another one of the lab");

/// Which session is had how, and what of it is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LoginProbe {
    /// A discovery session; else a normal one, with the first target.
    pub(crate) discovers: bool,
    /// So many the target has.
    pub(crate) targets: u32,
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

/// Parts of a session's beginning. Waiting and initiator split all of it another way.
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
    /// What is between these, and before and behind them: the initiator.
    Rest,
    /// From each request to its answer, and TCP's handshake: the network and the target. Of a command, until its end is told.
    Waiting,
    /// All but that.
    Initiator,
    /// Of the waiting in both stages, the target's own part, as it tells: from when each Login Request had come until its answer was ready.
    Target,
}

/// What a target writes of its logins, in its trace directory (docs/guide/bench.md).
const LOGINS_FILE: &str = "logins";
/// How long it may take to write that down, and how often is looked.
const PATIENCE: Duration = Duration::from_secs(10);
const STEP: Duration = Duration::from_millis(1);

/// How often something was sent and answered in a part of a login.
pub(crate) const EXCHANGES: &str = "exchanges";
/// What the target took of the whole login's two stages, and the initiator between all its exchanges.
pub(crate) const TARGET_TOOK: &str = "target took";
pub(crate) const INITIATOR_TOOK: &str = "initiator took";

/// What a connection by plain TCP took before it, of a part that begins one.
pub(crate) const HANDSHAKE: &str = "plain handshake";

/// Of which login, in which turn: its seed. The probe has the phase of whoever came first.
pub(super) type Kept = RefCell<Vec<(LoginProbe, u64, Logged)>>;

/// A login's parts, and what was seen meanwhile.
#[derive(Debug, Clone)]
pub(super) struct Logged {
    parts: Vec<Part>,
    seen: Seen,
    /// What 48 bytes took by plain TCP before it.
    exchanged: Option<Exchanged>,
    /// What a connection took.
    handshake: Option<Duration>,
}

impl Logged {
    fn part(&self, phase: LoginPhase) -> Option<&Part> {
        self.parts.iter().find(|part| part.phase == phase)
    }
}

/// A part: how long it was, and how often something was sent and answered in it, by count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Part {
    phase: LoginPhase,
    time: Duration,
    exchanges: usize,
}

/// Logs in once, unless that was done in this turn, and tells a part of it.
pub(super) fn run(place: Place<'_>, probe: &LoginProbe, seed: u64) -> Result<Run, LabError> {
    let is_same = |known: &&(LoginProbe, u64, Logged)| {
        LoginProbe { phase: probe.phase, ..known.0 } == *probe && known.1 == seed
    };
    let known = place.kept.logins.borrow().iter().find(is_same).map(|known| known.2.clone());
    let logged = match known {
        Some(logged) => logged,
        None => {
            let logged = log_in(place, probe)?;
            place.kept.logins.borrow_mut().push((*probe, seed, logged.clone()));
            logged
        }
    };
    let Some(part) = logged.part(probe.phase) else {
        return Err(LabError::Plan("a cell asks for what its login does not have".to_owned()));
    };
    let Seen { shares, processor, busy, keeping, .. } = logged.seen;
    let mut further = vec![Further::new(EXCHANGES, part.exchanges as f64, "")];
    for (name, phase) in [(TARGET_TOOK, LoginPhase::Target), (INITIATOR_TOOK, LoginPhase::Initiator)] {
        further.extend(logged.part(phase).map(|part| Further::new(name, milliseconds(part), "ms")));
    }
    if has_handshake(probe.phase) {
        let told = |time: Duration| Further::new(HANDSHAKE, time.as_secs_f64() * 1e3, "ms");
        further.extend(logged.handshake.map(told));
    }
    let exchanged = logged.exchanged;
    Ok(Run { shares, processor, busy, keeping, further, exchanged, ..Run::of(milliseconds(part), None) })
}

/// Whether a part begins the connection.
const fn has_handshake(phase: LoginPhase) -> bool {
    matches!(phase, LoginPhase::TcpConnect | LoginPhase::Total | LoginPhase::Waiting)
}

fn milliseconds(part: &Part) -> f64 {
    part.time.as_secs_f64() * 1e3
}

fn log_in(place: Place<'_>, probe: &LoginProbe) -> Result<Logged, LabError> {
    let Some((site, link)) = place.over else {
        return Err(LabError::Plan("there is no login without a network".to_owned()));
    };
    let traces = Directory::make(place.scratch);
    let traces = traces.map_err(LabError::system("a directory for the times of logins"))?;
    let directory = quoted(&traces.path().to_string_lossy());
    let configuration = format!("trace_directory = {directory}\ntask_times = true\n\n{}", targets(probe));
    let service = Service::start(site, place.binary, &configuration, &[SECRET, TARGET_SECRET])?;
    let options = options(probe)?;
    let payload =
        Payload { size_bytes: 0, round_trip: link.round_trip(), reads: None, writes: None, is_asked: false };
    let exchanged = Echo::before(site, payload)?.behind(false);
    let handshake = handshake(site)?;
    let timed = || site.near(|| if probe.discovers { discover(&options) } else { begin(&options) })?;
    let (parts, seen) = Observer::at(place).watch(timed)?;
    let mut parts = parts?;
    parts.push(targets_part(&traces.path().join(LOGINS_FILE))?);
    drop(service);
    Ok(Logged { parts, seen, exchanged, handshake })
}

/// What the target took of the only login that it has had.
fn targets_part(file: &Path) -> Result<Part, LabError> {
    let began = Instant::now();
    loop {
        let text = fs::read_to_string(file).map_err(LabError::system("the times of logins"))?;
        if let Some((time, exchanges)) = text.strip_suffix('\n').and_then(told) {
            return Ok(Part { phase: LoginPhase::Target, time, exchanges });
        }
        if began.elapsed() > PATIENCE {
            return Err(LabError::NotReady(format!("the target does not tell of one login, but: {text}")));
        }
        thread::sleep(STEP);
    }
}

/// The target's time, and its answers: `ISID TSIH CID ANSWERS OWN ns`.
fn told(line: &str) -> Option<(Duration, usize)> {
    let [_, _, _, answers, own, "ns"] = line.split(' ').collect::<Vec<_>>()[..] else { return None };
    Some((Duration::from_nanos(own.parse().ok()?), answers.parse().ok()?))
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
        if !probe.discovers {
            text += &user;
            if !mutual.is_empty() {
                text += &format!("[target.mutual]\n{mutual}");
            }
        }
        text
    };
    let mut text: String = (0..probe.targets).map(of_target).collect();
    if probe.discovers {
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

/// A discovery session, to its end.
fn discover(options: &Options) -> Result<Vec<Part>, LabError> {
    let began = Instant::now();
    let (record, found) = discover_trace(options);
    let all = began.elapsed();
    found?;
    let login = last(&record)?;
    let waits = record.exchanges.iter().filter_map(|one| Some(one.answered?.saturating_sub(one.sent)));
    let behind = Behind {
        phase: LoginPhase::SendTargets,
        // From the end of the login: the initiator's own part of it is in it as well.
        time: all.saturating_sub(login.ended),
        waiting: waits.clone().sum(),
        exchanges: waits.count(),
    };
    Ok(parts(login, all, behind))
}

/// A normal session, to the end of its first I/O.
fn begin(options: &Options) -> Result<Vec<Part>, LabError> {
    let began = Instant::now();
    let session = blocking::Session::connect(options.clone())?;
    let logged_in = Instant::now();
    let (waiting, exchanges) = first_io(&session)?;
    let done = Instant::now();
    let record = session.handle().login_record().clone();
    session.log_out();
    let behind = Behind { phase: LoginPhase::FirstIo, time: done - logged_in, waiting, exchanges };
    Ok(parts(last(&record)?, done - began, behind))
}

fn last(record: &LoginRecord) -> Result<&Attempt, LabError> {
    record.attempts.last().ok_or_else(|| LabError::NotReady("nobody tried to log in".to_owned()))
}

/// What comes behind a login.
struct Behind {
    phase: LoginPhase,
    time: Duration,
    /// Of it, from requests to answers.
    waiting: Duration,
    exchanges: usize,
}

/// All parts of a login that went well, and of what came behind it.
fn parts(login: &Attempt, all: Duration, behind: Behind) -> Vec<Part> {
    let connected = login.connected.unwrap_or(login.ended);
    // The first request is made before there is a connection, and sent when there is one.
    let sent = |pdu: &TracedPdu| TracedPdu { at: pdu.at.max(connected), ..pdu.clone() };
    let pdus: &[TracedPdu] = &login.trace.pdus.iter().map(sent).collect::<Vec<_>>();
    let handshake = connected.saturating_sub(login.began);
    let stage = |phase, wanted: LoginStage| {
        let of_stage: Vec<&TracedPdu> = pdus.iter().filter(|pdu| pdu.stage == wanted).collect();
        let ends = of_stage.first().zip(of_stage.last());
        let time = ends.map_or(Duration::ZERO, |(first, last)| last.at.saturating_sub(first.at));
        Part { phase, time, exchanges: awaited(of_stage).1 }
    };
    let mut parts = vec![
        Part { phase: LoginPhase::TcpConnect, time: handshake, exchanges: 1 },
        stage(LoginPhase::Security, LoginStage::Security),
        stage(LoginPhase::Operational, LoginStage::Operational),
        Part { phase: behind.phase, time: behind.time, exchanges: behind.exchanges },
    ];
    let told: Duration = parts.iter().map(|part| part.time).sum();
    parts.push(Part { phase: LoginPhase::Rest, time: all.saturating_sub(told), exchanges: 0 });
    let (login_waiting, login_exchanges) = awaited(pdus);
    let waiting = (handshake + login_waiting + behind.waiting).min(all);
    let exchanges = 1 + login_exchanges + behind.exchanges;
    parts.push(Part { phase: LoginPhase::Total, time: all, exchanges });
    parts.push(Part { phase: LoginPhase::Waiting, time: waiting, exchanges });
    parts.push(Part { phase: LoginPhase::Initiator, time: all.saturating_sub(waiting), exchanges: 0 });
    let steps = [LoginPhase::ChapMethod, LoginPhase::ChapChallenge, LoginPhase::ChapAnswer];
    for (phase, (time, exchanges)) in steps.into_iter().zip(steps_of(pdus)) {
        parts.push(Part { phase, time, exchanges });
    }
    parts
}

/// The steps of CHAP, one after the other, with their exchanges: they add up to the security stage. What there is not takes no time.
fn steps_of(pdus: &[TracedPdu]) -> [(Duration, usize); 3] {
    let security: Vec<&TracedPdu> = pdus.iter().filter(|pdu| pdu.stage == LoginStage::Security).collect();
    // Behind the answer that tells a key; without one, where the step before has ended.
    let behind = |key: &str, before: usize| {
        let tells = |pdu: &&TracedPdu| pdu.from == Side::Target && pdu.pairs.iter().any(|pair| pair.0 == key);
        security.iter().position(tells).map_or(before, |place| place + 1)
    };
    let chosen = behind("AuthMethod", 0);
    let challenged = behind("CHAP_C", chosen).max(chosen);
    [(0, chosen), (chosen, challenged), (challenged, security.len())].map(|(from, to)| {
        // A step begins with the end of the one before.
        let (begun, ended) = (security.get(from.saturating_sub(1)), security[..to].last());
        let time =
            begun.zip(ended).map_or(Duration::ZERO, |(begun, ended)| ended.at.saturating_sub(begun.at));
        (time, awaited(security[from..to].iter().copied()).1)
    })
}

/// The time in which a request was under way and its answer had not come, and how often one came.
fn awaited<'a>(pdus: impl IntoIterator<Item = &'a TracedPdu>) -> (Duration, usize) {
    let mut asked_at = None;
    let (mut sum, mut exchanges) = (Duration::ZERO, 0);
    for pdu in pdus {
        if pdu.from == Side::Initiator {
            asked_at.get_or_insert(pdu.at);
        } else if let Some(asked_at) = asked_at.take() {
            sum += pdu.at.saturating_sub(asked_at);
            exchanges += 1;
        }
    }
    (sum, exchanges)
}

/// What a host asks a disk before it uses it, each command after the other: how long they were under way, and how many there were.
fn first_io(session: &blocking::Session) -> Result<(Duration, usize), LabError> {
    let (mut waiting, mut exchanges) = (Duration::ZERO, 0);
    let block = BlockRange { lba: 0, blocks: 1, block_length_bytes: BLOCK_BYTES };
    let read = medium::read(block.form(), block, Caching::default())
        .map_err(|error| LabError::Plan(error.to_string()))?;
    let (inquiry, capacity) = (inquiry::standard(), capacity::read_capacity_16());
    for command in [inquiry.command(), capacity.command(), &read] {
        let length_bytes = command.data_in_bytes() as usize;
        // A new nexus has a unit attention to tell first (SAM-5, 5.14).
        let ended_well = (0..3).any(|_| {
            let command = Command::new(Lun::default(), command.cdb()).reading(vec![0; length_bytes]);
            let asked = Instant::now();
            let completion = session.execute(command);
            waiting += asked.elapsed();
            exchanges += 1;
            completion.result.is_ok_and(|status| status.is_good())
        });
        if !ended_well {
            return Err(LabError::NotReady("the first commands are refused".to_owned()));
        }
    }
    Ok((waiting, exchanges))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pdu(at_ms: u64, from: Side, keys: &[&str], stage: LoginStage) -> TracedPdu {
        TracedPdu {
            at: Duration::from_millis(at_ms),
            from,
            stage,
            next_stage: None,
            is_continued: false,
            status: 0,
            text_length: 0,
            pairs: keys.iter().map(|&key| (key.to_owned(), "x".to_owned())).collect(),
        }
    }

    #[test]
    fn only_what_the_initiator_waits_for_is_waiting() {
        let pdu = |at_ms, from| pdu(at_ms, from, &[], LoginStage::Security);
        let pdus = [
            pdu(10, Side::Initiator),
            pdu(13, Side::Target),
            // 20 ms in which the initiator thinks.
            pdu(33, Side::Initiator),
            pdu(38, Side::Target),
            // The last request was never answered.
            pdu(40, Side::Initiator),
        ];
        assert_eq!(awaited(&pdus), (Duration::from_millis(3 + 5), 2));
        assert_eq!(awaited(&[]), (Duration::ZERO, 0));
    }

    #[test]
    fn a_target_tells_of_one_login() {
        assert_eq!(told("4000013700ff 0007 0001 2 34567 ns"), Some((Duration::from_nanos(34_567), 2)));
        for other in [
            "",
            "4000013700ff 0007 0001 2 34567",
            "4000013700ff 0007 0001 2 x ns",
            "4000013700ff 0007 0001 2 1 ns\n4000013700ff 0008 0001 2 1 ns",
        ] {
            assert_eq!(told(other), None, "{other}");
        }
    }

    #[test]
    fn the_steps_of_chap_add_up_to_the_security_stage() {
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
        let ms =
            |times: [(u64, usize); 3]| times.map(|(ms, exchanges)| (Duration::from_millis(ms), exchanges));
        assert_eq!(steps_of(&pdus), ms([(2, 1), (5, 1), (9, 1)]));
        // Without CHAP all of it is the choice, and what follows.
        assert_eq!(steps_of(&pdus[..2]), ms([(2, 1), (0, 0), (0, 0)]));
        assert_eq!(steps_of(&[]), ms([(0, 0); 3]));
    }

    #[test]
    fn the_parts_of_a_login_add_up_to_all_of_it() {
        let pdu = |at_ms, from, stage| pdu(at_ms, from, &[], stage);
        let (ours, theirs) = (Side::Initiator, Side::Target);
        let (security, operational) = (LoginStage::Security, LoginStage::Operational);
        let ms = Duration::from_millis;
        let mut login = Attempt {
            portal: "192.0.2.1".parse().expect("a portal"),
            address: None,
            began: ms(1),
            resolved: Some(ms(1)),
            connected: Some(ms(4)),
            ended: ms(20),
            trace: lunette_initiator::Trace::default(),
            end: String::new(),
        };
        login.trace.pdus = vec![
            // Made before there was a connection.
            pdu(1, ours, security),
            pdu(8, theirs, security),
            pdu(10, ours, operational),
            pdu(16, theirs, operational),
        ];
        let behind = Behind { phase: LoginPhase::FirstIo, time: ms(12), waiting: ms(9), exchanges: 4 };
        let parts = parts(&login, ms(40), behind);
        let of =
            |phase| parts.iter().find(|part| part.phase == phase).map(|part| (part.time, part.exchanges));
        let told = [
            (LoginPhase::TcpConnect, 3, 1),
            (LoginPhase::Security, 4, 1),
            (LoginPhase::Operational, 6, 1),
            (LoginPhase::FirstIo, 12, 4),
            (LoginPhase::Rest, 15, 0),
        ];
        for (phase, time_ms, exchanges) in told {
            assert_eq!(of(phase), Some((ms(time_ms), exchanges)), "{phase:?}");
        }
        assert_eq!(of(LoginPhase::Total), Some((ms(told.iter().map(|part| part.1).sum()), 7)));
        assert_eq!(of(LoginPhase::Waiting), Some((ms(3 + 4 + 6 + 9), 7)));
        assert_eq!(of(LoginPhase::Initiator), Some((ms(40 - 22), 0)));
    }
}
