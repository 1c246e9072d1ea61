//! Logging in and finding targets.

use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use lunette_initiator::{
    ChapAlgorithm, ChapCredential, Credentials, Engine, EngineEvent, Error, Options, Reason, Secret, Side,
    TargetUrl, Timing, discover, login_trace,
};
use lunette_iscsi::chap::{ChapNonce, ChapPolicy, ChapUser};
use lunette_iscsi::login::{Login, LoginStep, LookupFailure, TargetDirectory, TargetEntry};
use lunette_iscsi::parameters::{ConnectionParameters, TargetLimits};
use lunette_target::config::ChapConfig;
use lunette_tests::in_process::InProcess;
use lunette_tests::istgt::Istgt;
use lunette_tests::need_programs;
use lunette_tests::tgtd::{TARGET_NAME, Tgtd};
use lunette_wire::initiator::LoginStage;
use lunette_wire::target::LoginResponse;
use lunette_wire::{BHS_LENGTH, InitiatorPdu};

use lunette_tests::engine::{options, portal_of};

use crate::hostile::{Script, receive, send};

#[test]
fn our_target_is_found_and_logged_in_to() {
    let target = InProcess::start(&["mem:16M"]);
    let mut options = options(target.name(), target.portal());
    let found = discover(&options).expect("an answer");
    let ours = found.iter().find(|found| found.name == options.target).expect("it lists itself");
    assert_eq!(ours.portals[0].port, target.portal().port());

    let (record, outcome) = login_trace(&options);
    let outcome = outcome.expect("it lets everybody in");
    assert_eq!(record.attempts.len(), 1);
    let attempt = &record.attempts[0];
    assert!(attempt.resolved <= attempt.connected && attempt.connected < Some(attempt.ended));
    assert_eq!(attempt.trace.pdus.len(), 2, "one exchange, without a security stage");
    assert!(attempt.trace.keys.iter().all(|key| key.reason != Reason::NotAnswered));
    assert!(outcome.portal_group_tag.is_some());

    options.target = "iqn.2026-11.io.lunette:nobody".parse().expect("a good name");
    let (record, outcome) = login_trace(&options);
    let error = outcome.expect_err("there is no such target");
    assert_eq!(error.side(), Some(Side::Initiator));
    assert!(error.to_string().contains("status 0203"), "{error}");
    assert!(record.attempts[0].end.contains("0203"));
}

fn say_refusal(stream: &mut TcpStream, status_class: u8, status_detail: u8) {
    let refused = LoginResponse { status_class, status_detail, ..LoginResponse::default() };
    send(stream, &refused.encode(0), &[], ConnectionParameters::default());
}

/// Takes a connection, and refuses its login.
fn refuse(listener: &TcpListener, status_class: u8, status_detail: u8) {
    let (mut stream, _) = listener.accept().expect("a connection");
    receive(&mut stream, ConnectionParameters::default());
    say_refusal(&mut stream, status_class, status_detail);
}

/// How a target does not take a login that leaves out the security stage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum No {
    Status,
    Close,
    Silence,
}

/// The stage in which the login of a new connection begins, which is looked at and left there.
fn stage_of_next(listener: &TcpListener) -> (TcpStream, LoginStage) {
    let (stream, _) = listener.accept().expect("a connection");
    let mut bhs = [0; BHS_LENGTH];
    while let length = stream.peek(&mut bhs).expect("a login")
        && length < BHS_LENGTH
    {
        assert!(length > 0, "the connection was closed");
    }
    match InitiatorPdu::decode(&bhs) {
        Ok(InitiatorPdu::LoginRequest(request)) => (stream, request.current_stage),
        other => panic!("{other:?}"),
    }
}

/// Takes a connection whose login leaves out the security stage, and not the login. What is answered has to be kept.
pub(super) fn take_no_short_login(listener: &TcpListener, no: No) -> Option<TcpStream> {
    let (mut stream, stage) = stage_of_next(listener);
    assert_eq!(stage, LoginStage::Operational);
    receive(&mut stream, ConnectionParameters::default());
    if no == No::Status {
        say_refusal(&mut stream, 2, 1);
    }
    (no == No::Silence).then_some(stream)
}

/// Logs in whoever comes next, beginning with this stage.
pub(super) fn take(listener: &TcpListener, stage: LoginStage) -> Script {
    let (stream, found) = stage_of_next(listener);
    assert_eq!(found, stage);
    Script::log_in(stream)
}

/// Polls until the session is there again; tells the tries that have failed before.
fn wait_until_back(engine: &mut Engine) -> Vec<String> {
    let mut failed = Vec::new();
    loop {
        engine.poll(None, &mut Vec::new()).expect("the system lets us");
        match engine.event() {
            Some(EngineEvent::TryFailed { reason }) => failed.push(reason),
            Some(EngineEvent::Over { reason }) => panic!("{reason}"),
            Some(EngineEvent::Reconnected { .. }) => return failed,
            _ => {}
        }
    }
}

/// A login that was long enough under way for the target to be silent.
const SILENCE: Duration = Duration::from_secs(2);

/// A target that does not take a login without the security stage gets one with it, and so does it in all further logins of the session.
#[test]
fn a_target_that_wants_the_security_stage_gets_it() {
    for no in [No::Status, No::Close, No::Silence] {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let portal = listener.local_addr().expect("an address");
        let server = std::thread::spawn(move || {
            let kept = take_no_short_login(&listener, no);
            drop(take(&listener, LoginStage::Security));
            drop(kept);
            take(&listener, LoginStage::Security).try_receive()
        });
        let timing = Timing { login: SILENCE, recovery: Duration::from_secs(600), ..Timing::default() };
        let options = Options { timing, ..options("iqn.2026-11.io.lunette:x", portal) };
        let mut engine = Engine::connect(options).expect("the second try");
        let record = engine.login_record();
        let pdus = |at: usize| record.attempts[at].trace.pdus.len();
        assert_eq!((record.attempts.len(), pdus(1)), (2, 4), "{no:?}: both stages");
        wait_until_back(&mut engine);
        assert_eq!(engine.login_record().attempts.len(), 1, "{no:?}: no other way is tried");
        // It says nothing to the farewell.
        let _ = engine.close();
        assert!(matches!(server.join(), Ok(Some(InitiatorPdu::LogoutRequest(_)))), "{no:?}");
    }
}

/// A target that has taken the short login before and is silent now has another reason: nobody waits for it twice as long.
#[test]
fn silence_is_no_reason_for_another_way_where_the_short_one_was_taken() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let portal = listener.local_addr().expect("an address");
    let server = std::thread::spawn(move || {
        drop(take(&listener, LoginStage::Operational));
        let kept = take_no_short_login(&listener, No::Silence);
        let next = take(&listener, LoginStage::Operational).try_receive();
        drop(kept);
        next
    });
    let timing = Timing { login: SILENCE, recovery: Duration::from_secs(600), ..Timing::default() };
    let options = Options { timing, ..options("iqn.2026-11.io.lunette:x", portal) };
    let mut engine = Engine::connect(options).expect("a session");
    let failed = wait_until_back(&mut engine);
    assert!(failed.len() == 1 && failed[0].contains("did not answer within 2 s"), "{failed:?}");
    let _ = engine.close();
    assert!(matches!(server.join(), Ok(Some(InitiatorPdu::LogoutRequest(_)))));
}

/// An engine that loses its session to a target that takes no login then, and for how long it tries.
fn lost_at(listener: &TcpListener, recovery: Duration) -> Engine {
    let portal = listener.local_addr().expect("an address");
    let timing = Timing { recovery, ..Timing::default() };
    let options = Options { timing, ..options("iqn.2026-11.io.lunette:x", portal) };
    Engine::connect(options).expect("a session")
}

/// A target that was restarted listens before it has its units, its users and its names.
#[test]
fn a_session_that_is_refused_at_first_comes_back() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let twin = listener.try_clone().expect("a descriptor");
    let server = std::thread::spawn(move || {
        drop(take(&listener, LoginStage::Operational));
        refuse(&listener, 2, 3);
        // Once more with the security stage, which is kept.
        refuse(&listener, 2, 1);
        refuse(&listener, 2, 1);
        take(&listener, LoginStage::Security).try_receive()
    });
    let mut engine = lost_at(&twin, Duration::from_secs(600));
    let failed = wait_until_back(&mut engine);
    assert_eq!(failed.len(), 2, "{failed:?}");
    assert!(failed[0].contains("0203") && failed[1].contains("0201"), "{failed:?}");
    let _ = engine.close();
    assert!(matches!(server.join(), Ok(Some(InitiatorPdu::LogoutRequest(_)))));
}

#[test]
fn a_session_that_is_refused_to_the_end_says_what_the_last_refusal_was() {
    // What no configuration changes ends the tries at once.
    for (recovery_ms, detail) in [(700, 3), (600_000, 5)] {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let twin = listener.try_clone().expect("a descriptor");
        std::thread::spawn(move || {
            drop(take(&listener, LoginStage::Operational));
            loop {
                refuse(&listener, 2, detail);
            }
        });
        let mut engine = lost_at(&twin, Duration::from_millis(recovery_ms));
        while !engine.is_over() {
            engine.poll(None, &mut Vec::new()).expect("the system lets us");
        }
        let events: Vec<_> = std::iter::from_fn(|| engine.event()).collect();
        let has_failed = events.iter().any(|event| matches!(event, EngineEvent::TryFailed { .. }));
        assert!(detail != 5 || !has_failed, "{events:?}");
        let Some(EngineEvent::Over { reason }) = events.last() else { panic!("{events:?}") };
        assert!(reason.contains("the last try: login at"), "{reason}");
        assert!(reason.contains(&format!("status 020{detail}")), "{reason}");
    }
}

/// Who wants it goes through the security stage from the start.
#[test]
fn the_security_stage_can_be_kept() {
    let target = InProcess::start(&["mem:16M"]);
    let url = format!("iscsi://{}/{}/0?security_stage=always", target.portal(), target.name());
    let url: TargetUrl = url.parse().expect("a good URL");
    let (record, outcome) = login_trace(&url.options());
    outcome.expect("it lets everybody in");
    assert_eq!((record.attempts.len(), record.attempts[0].trace.pdus.len()), (1, 4));
}

/// A target that starts again: it wants the security stage (020Bh), and has no time for it yet (0301h).
#[test]
fn a_second_try_that_fails_for_the_moment_is_not_the_last() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let portal = listener.local_addr().expect("an address");
    let server = std::thread::spawn(move || {
        drop(take(&listener, LoginStage::Operational));
        refuse(&listener, 2, 0x0b);
        refuse(&listener, 3, 1);
        // The refusal is not forgotten.
        take(&listener, LoginStage::Security).try_receive()
    });
    let timing = Timing { recovery: Duration::from_secs(600), ..Timing::default() };
    let options = Options { timing, ..options("iqn.2026-11.io.lunette:x", portal) };
    let mut engine = Engine::connect(options).expect("a session");
    let failed = wait_until_back(&mut engine);
    let [reason] = &failed[..] else { panic!("{failed:?}") };
    assert!(reason.contains("0301") && reason.contains("020b"), "{reason}");
    // It says nothing to the farewell.
    let _ = engine.close();
    assert!(matches!(server.join(), Ok(Some(InitiatorPdu::LogoutRequest(_)))));
}

#[test]
fn nobody_at_the_other_end_is_told_as_such() {
    let free = lunette_tests::tgtd::free_portal().expect("a free port");
    let error = discover(&options("iqn.2026-11.io.lunette:x", free)).expect_err("nobody listens");
    assert!(matches!(error, Error::Connect { .. }) && error.advice().contains("3260"), "{error}");
    let mut options = options("iqn.2026-11.io.lunette:x", free);
    options.portals[0].host = "no-such-host.invalid".to_owned();
    let error = discover(&options).expect_err("no such host");
    assert!(matches!(error, Error::Resolve { .. }), "{error}");
}

#[test]
fn the_second_portal_is_tried_when_nobody_is_at_the_first() {
    let target = InProcess::start(&["mem:16M"]);
    let free = lunette_tests::tgtd::free_portal().expect("a free port");
    let mut options = options(target.name(), free);
    options.portals.push(portal_of(target.portal()));
    let (record, outcome) = login_trace(&options);
    outcome.expect("the second portal");
    assert_eq!(record.attempts.len(), 2);
    assert!(record.attempts[0].end.contains("cannot connect"));
}

#[test]
fn what_is_no_iscsi_portal_is_told_in_time() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let portal = listener.local_addr().expect("an address");
    let mut options = options("iqn.2026-11.io.lunette:x", portal);
    let server = std::thread::spawn(move || {
        use std::io::{Read, Write};
        let mut kept = Vec::new();
        // Silence, twice since it is tried in two ways; a page of the web; the end.
        for answer in
            [&b""[..], b"", b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n                "]
        {
            let (mut stream, _) = listener.accept().expect("a connection");
            let _ = stream.read(&mut [0; 4096]);
            let _ = stream.write_all(answer);
            kept.push(stream);
        }
        let (mut stream, _) = listener.accept().expect("a connection");
        let _ = stream.read(&mut [0; 4096]);
    });
    let patience = options.timing.login;
    let errors = [std::time::Duration::from_millis(200), patience, patience].map(|login| {
        options.timing.login = login;
        discover(&options).expect_err("no portal")
    });
    server.join().expect("it does not fail");
    assert!(matches!(errors[0], Error::Timeout { .. }), "{}", errors[0]);
    assert!(matches!(errors[1], Error::Format { .. } | Error::Login { .. }), "{}", errors[1]);
    assert!(matches!(errors[2], Error::Closed { .. }), "{}", errors[2]);
}

#[test]
fn tgtd_is_found_and_logged_in_to() {
    need_programs!("tgtd", "tgtadm");
    let directory = tempfile::tempdir().expect("a directory");
    let tgtd = Tgtd::start(&directory.path().join("log")).expect("tgtd");
    let options = options(TARGET_NAME, tgtd.portal());
    let found = discover(&options).expect("an answer");
    assert_eq!((found[0].name.as_str(), found[0].portals[0].port), (TARGET_NAME, tgtd.portal().port()));
    expect_short_login(&options);
}

/// At the first try, in one exchange.
fn expect_short_login(options: &Options) {
    let (record, outcome) = login_trace(options);
    outcome.unwrap_or_else(|error| panic!("{error}: {record:#?}"));
    assert_eq!((record.attempts.len(), record.attempts[0].trace.pdus.len()), (1, 2), "{record:#?}");
}

#[test]
fn istgt_is_found_and_logged_in_to() {
    need_programs!("istgt");
    let directory = tempfile::tempdir().expect("a directory");
    let image = directory.path().join("disk.img");
    std::fs::File::create(&image).expect("a file").set_len(16 << 20).expect("room");
    let istgt = Istgt::start(directory.path(), &image).expect("istgt");
    let url: TargetUrl = istgt.url().parse().expect("a good URL");
    let options = url.options();
    let found = discover(&options).expect("an answer");
    assert_eq!(found[0].name, options.target);
    expect_short_login(&options);
}

fn credential(name: &str, secret: &str) -> ChapCredential {
    ChapCredential { name: name.to_owned(), secret: Secret::new(secret) }
}

/// A target that asks for CHAP, and proves itself.
fn guarded() -> InProcess {
    InProcess::start_with(&["mem:16M"], |config| {
        let alice = ChapUser { credential: credential("alice", "alice's own 16 b"), initiators: Vec::new() };
        let mutual = Some(credential("storage", "the target's 16b"));
        config.targets[0].chap = ChapConfig { users: vec![alice], mutual };
    })
}

fn with(target: &InProcess, secret: &str, of_target: Option<&str>) -> Options {
    let mut credentials = Credentials::new(credential("alice", secret));
    credentials.target = of_target.map(|secret| credential("storage", secret));
    Options { credentials: Some(credentials), ..options(target.name(), target.portal()) }
}

#[test]
fn chap_is_required_and_proven_in_both_directions() {
    let target = guarded();
    for of_target in [None, Some("the target's 16b")] {
        let (_, outcome) = login_trace(&with(&target, "alice's own 16 b", of_target));
        outcome.expect("the right secrets");
    }
    let (_, outcome) = login_trace(&with(&target, "alice's own 16 b", Some("not the target's")));
    let error = outcome.expect_err("another secret");
    assert!(error.is_authentication() && error.to_string().contains("prove itself"), "{error}");
    let (record, outcome) = login_trace(&with(&target, "not alice's own.", None));
    let error = outcome.expect_err("a wrong secret");
    assert!(error.is_authentication() && error.to_string().contains("0201"), "{error}");
    let shown = format!("{record:?} {error:?}");
    assert!(!shown.contains("alice's own"), "{shown}");
}

/// Asks for CHAP with SHA-256, and knows another secret.
struct OtherSecret;

impl TargetDirectory for OtherSecret {
    fn find(&self, _: &str, _: &str) -> Result<TargetEntry, LookupFailure> {
        Ok(TargetEntry { portal_group_tag: 1, alias: None, moved: None })
    }

    fn authentication(&self, _: Option<&str>) -> Option<Arc<ChapPolicy>> {
        let alice = ChapUser { credential: credential("alice", "another secret"), initiators: Vec::new() };
        let algorithms = vec![ChapAlgorithm::Sha256];
        Some(Arc::new(ChapPolicy { users: vec![alice], own: None, algorithms }))
    }
}

/// Takes a connection whose login fails at its CHAP response.
fn refuse_response(listener: &TcpListener) {
    let (mut stream, _) = listener.accept().expect("a connection");
    let mut login = Login::new(TargetLimits::default(), 1, ChapNonce::from([7; 33]));
    loop {
        let (bhs, data) = receive(&mut stream, ConnectionParameters::default());
        let Ok(InitiatorPdu::LoginRequest(request)) = InitiatorPdu::decode(&bhs) else { panic!("{bhs:?}") };
        let (reply, is_over) = match login.step(&request, &data, &OtherSecret) {
            LoginStep::Respond(reply) => (reply, false),
            LoginStep::Fail(reply, _) => (reply, true),
            other => panic!("{other:?}"),
        };
        let bhs = reply.pdu.encode(reply.text.len());
        send(&mut stream, &bhs, &reply.text, ConnectionParameters::default());
        if is_over {
            return;
        }
    }
}

/// What SHA-256 has failed with is tried again with MD5. Where that fails for the moment, the whole does.
#[test]
fn a_try_with_another_algorithm_that_fails_for_the_moment_is_not_the_last() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let portal = listener.local_addr().expect("an address");
    let server = std::thread::spawn(move || {
        refuse_response(&listener);
        refuse(&listener, 3, 1);
        refuse_response(&listener);
        refuse(&listener, 2, 3);
    });
    let credentials = Some(Credentials::new(credential("alice", "alice's own 16 b")));
    let options = Options { credentials, ..options("iqn.2026-11.io.lunette:x", portal) };
    let failure = || {
        let (record, outcome) = login_trace(&options);
        assert_eq!(record.attempts.len(), 2);
        outcome.expect_err("a wrong secret")
    };
    let error = failure();
    let text = error.to_string();
    assert!(error.is_temporary() && text.contains("0301") && text.contains("0201"), "{text}");
    // What is final at both says what is wrong with the first.
    let error = failure();
    assert!(error.is_authentication() && !error.is_temporary(), "{error}");
    server.join().expect("all are refused");
}

/// RFC 7143, 9.2: every connection of a session is authenticated, in the same way and under the same name.
#[test]
fn all_connections_of_a_session_have_its_credentials() {
    let target = guarded();
    let options = with(&target, "alice's own 16 b", Some("the target's 16b"));
    let engine = Engine::connect(Options { connections: 3, ..options }).expect("the right secrets");
    assert_eq!(engine.connections().len(), 3);
    let logins = &engine.login_record().attempts;
    let proofs = logins.iter().map(|login| {
        let pairs = login.trace.pdus.iter().flat_map(|pdu| &pdu.pairs);
        pairs.filter(|(key, value)| key == "CHAP_N" && (value == "alice" || value == "storage")).count()
    });
    assert_eq!(proofs.collect::<Vec<_>>(), [2; 3]);
    engine.close().expect("a logout");
}
