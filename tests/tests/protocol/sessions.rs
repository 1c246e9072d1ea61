//! Sessions that begin and end: reinstatement (6.3.5), logins that cannot be, logout (11.14, 11.15).

use std::net::SocketAddr;
use std::thread;
use std::time::Duration;

use lunette_block::OperationKind;
use lunette_block::fault::{Effect, Rule, When};
use lunette_target::config::Poll;
use lunette_tests::connection::Connection;
use lunette_tests::in_process::{InProcess, LIMIT, wait_until};
use lunette_tests::initiator::{Initiator, LoginOptions};
use lunette_tests::raw::{BLOCK_BYTES, Raw, plain};
use lunette_wire::initiator::{LoginRequest, LoginStage, LogoutReason};
use lunette_wire::{InitiatorPdu, Isid, TargetPdu, text};

use crate::{A_WHILE, DISK};

const CLOSED: u8 = 0;
const CID_NOT_FOUND: u8 = 1;
const RECOVERY_NOT_SUPPORTED: u8 = 2;

/// `strangers` connections decide which reactor the new login comes to: the one of the old session, or the other.
fn old_writes_land_before_the_new_session(strangers: usize) {
    const WRITES: u64 = 4;
    let target = InProcess::start(&[DISK]);
    let mut old = target.session(1);
    let _strangers: Vec<_> =
        (0..strangers).map(|_| Connection::open(target.portal()).expect("a connection")).collect();
    target.hold(0, OperationKind::Write);
    for lba in 0..WRITES {
        old.write(0, lba, &[0xaa; BLOCK_BYTES]).expect("sent");
    }
    target.wait_for_calls(0, OperationKind::Write, WRITES);
    let (portal, options) = (target.portal(), target.options(1));
    let login = thread::spawn(move || Raw::ready(portal, &options, 0).expect("a login"));
    old.ends().expect("the old connection is closed");
    thread::sleep(A_WHILE);
    assert!(!login.is_finished(), "there is a new session while writes of the old one are on their way");
    target.faults(0).clear();
    let mut new = login.join().expect("a session");
    let written = vec![0xbb; WRITES as usize * BLOCK_BYTES];
    let tag = new.write(0, 0, &written).expect("sent");
    new.good(tag).expect("a write");
    thread::sleep(A_WHILE);
    let tag = new.read(0, 0, WRITES as u32).expect("sent");
    assert!(new.data_in(tag).expect("a read").0 == written, "a write of the old session came last");
}

/// RFC 7143: 6.3.5.
#[test]
fn a_reinstated_session_writes_after_the_old_one_on_either_reactor() {
    old_writes_land_before_the_new_session(0);
    old_writes_land_before_the_new_session(1);
}

/// RFC 7143: 4.2.4, 7.1.4.
#[test]
fn what_comes_before_the_last_answer_of_a_login_ends_it() {
    let target = InProcess::start(&[DISK]);
    let options = target.options(1);
    let mut old = target.session(1);
    target.hold(0, OperationKind::Write);
    old.write(0, 0, &[0xaa; BLOCK_BYTES]).expect("sent");
    target.wait_for_calls(0, OperationKind::Write, 1);
    let mut hasty = Connection::open(target.portal()).expect("a connection");
    let mut keys = Vec::new();
    for (key, value) in [("InitiatorName", options.initiator_name.as_str()), ("TargetName", target.name())] {
        text::push(&mut keys, key, value);
    }
    let login = LoginRequest {
        transit: true,
        current_stage: LoginStage::Operational,
        next_stage: LoginStage::FullFeature,
        isid: Isid([0x80, 0x12, 0x34, 0x56, 0, options.isid_qualifier]),
        ..LoginRequest::default()
    };
    hasty.send(&InitiatorPdu::LoginRequest(login), &keys).expect("sent");
    old.ends().expect("the old connection is closed");
    hasty.send(&InitiatorPdu::ScsiCommand(plain()), &[]).expect("sent");
    match hasty.receive().expect("an answer").0 {
        TargetPdu::LoginResponse(pdu) => assert_eq!((pdu.status_class, pdu.status_detail), (0x02, 0x0b)),
        other => panic!("{other:?}"),
    }
    hasty.drain(LIMIT).expect("a closed connection");
    target.faults(0).clear();
    target.session(1).silent().expect("the identity is free for another login");
}

/// RFC 7143: 7.15.
#[test]
fn a_half_received_write_of_the_old_session_never_lands() {
    let target = InProcess::start(&[DISK]);
    let mut old = target.session(1);
    let command = old.number(&lunette_tests::raw::write(0, 0, 4 * BLOCK_BYTES));
    let pdu = lunette_wire::InitiatorPdu::ScsiCommand(command);
    let bytes = old.connection().encode(&pdu, &[0xaa; 4 * BLOCK_BYTES]);
    old.connection().send_bytes(&bytes[..bytes.len() - 1]).expect("all but a byte");
    let mut new = target.session(1);
    old.ends().expect("the old connection is closed");
    let tag = new.read(0, 0, 4).expect("sent");
    assert!(new.data_in(tag).expect("a read").0.iter().all(|byte| *byte == 0));
    assert_eq!(target.faults(0).calls(OperationKind::Write), 0);
}

/// RFC 7143: 7.14, 7.15.
#[test]
fn of_logins_that_fight_for_one_identity_one_is_left() {
    const LOGINS: usize = 8;
    let target = InProcess::start(&[DISK]);
    let mut first = target.session(1);
    target.hold(0, OperationKind::Write);
    first.write(0, 0, &[0xaa; BLOCK_BYTES]).expect("sent");
    target.wait_for_calls(0, OperationKind::Write, 1);
    let logins: Vec<_> = (0..LOGINS)
        .map(|_| {
            let (portal, options) = (target.portal(), target.options(1));
            thread::spawn(move || Raw::login(portal, &options))
        })
        .collect();
    first.ends().expect("the first one is ended");
    thread::sleep(A_WHILE);
    target.faults(0).clear();
    let sessions: Vec<_> = logins.into_iter().map(|login| login.join().expect("no panic")).collect();
    // Each login waits until the session that it found has ended, so all succeed, one after the other.
    let alive = sessions
        .into_iter()
        .map(|session| session.expect("a login"))
        .filter_map(|mut session| session.silent().ok().map(|()| session))
        .collect::<Vec<_>>();
    assert_eq!(alive.len(), 1);
    let mut another = target.session(2);
    another.silent().expect("another identity is nobody's concern");
}

#[test]
fn another_identity_replaces_nothing() {
    let target = InProcess::start(&[DISK]);
    let mut one = target.session(1);
    let mut other_isid = target.session(2);
    let name = LoginOptions { initiator_name: "iqn.2026-11.io.lunette:other".into(), ..target.options(1) };
    let mut other_name = Raw::ready(target.portal(), &name, 0).expect("a login");
    for session in [&mut one, &mut other_isid, &mut other_name] {
        session.silent().expect("alive");
    }
}

#[test]
fn a_target_that_is_not_there_is_not_found() {
    let target = InProcess::start(&[DISK]);
    let options = LoginOptions { target_name: Some(format!("{}x", target.name())), ..target.options(1) };
    let error = Initiator::login(target.portal(), &options).expect_err("no such target").to_string();
    assert!(error.contains("status 0203"), "{error}");
    target.session(1).silent().expect("the one that is there can be had");
}

/// RFC 7143: 11.15, 11.15.2.
#[test]
fn a_logout_ends_the_session_or_its_connection() {
    let target = InProcess::start(&[DISK]);
    for reason in [LogoutReason::CloseSession, LogoutReason::CloseConnection] {
        let mut session = target.session(1);
        let tag = session.log_out(reason, 0).expect("sent");
        assert_eq!(session.logged_out(tag).expect("an answer"), CLOSED);
        session.ends().expect("a closed connection");
    }
}

#[test]
fn a_logout_that_cannot_be_leaves_the_session() {
    let target = InProcess::start(&[DISK]);
    let mut session = target.session(1);
    let tag = session.log_out(LogoutReason::CloseConnection, 7).expect("sent");
    assert_eq!(session.logged_out(tag).expect("an answer"), CID_NOT_FOUND);
    let tag = session.log_out(LogoutReason::RemoveConnectionForRecovery, 0).expect("sent");
    assert_eq!(session.logged_out(tag).expect("an answer"), RECOVERY_NOT_SUPPORTED);
    assert_eq!(session.test_unit_ready(0).expect("an answer").status, 0);
}

/// RFC 7143: 11.14.
#[test]
fn a_logout_is_answered_when_the_stores_are_done() {
    // One reactor, so that a later ping of another session tells that the logout was taken in.
    let target = InProcess::start_with(&[DISK], |config| config.reactors.count = Some(1));
    let (mut session, mut other) = (target.session(1), target.session(2));
    target.hold(0, OperationKind::Write);
    for lba in 0..3 {
        session.write(0, lba, &[0xaa; BLOCK_BYTES]).expect("sent");
    }
    target.wait_for_calls(0, OperationKind::Write, 3);
    let tag = session.log_out(LogoutReason::CloseSession, 0).expect("sent");
    other.silent().expect("others are served");
    session.is_quiet(A_WHILE).expect("writes are on their way");
    target.faults(0).clear();
    assert_eq!(session.logged_out(tag).expect("the logout is the only thing answered"), CLOSED);
    session.ends().expect("a closed connection");
}

/// RFC 7143: 7.14.
#[test]
fn a_connection_that_breaks_frees_its_identity_when_the_stores_are_done() {
    let target = InProcess::start(&[DISK]);
    let mut session = target.session(1);
    target.hold(0, OperationKind::Write);
    session.write(0, 0, &[0xaa; BLOCK_BYTES]).expect("sent");
    target.wait_for_calls(0, OperationKind::Write, 1);
    drop(session);
    let (portal, options) = (target.portal(), target.options(1));
    let login = thread::spawn(move || Raw::ready(portal, &options, 0).expect("a login"));
    thread::sleep(A_WHILE);
    assert!(!login.is_finished(), "there is a new session while a write of the old one is on its way");
    target.faults(0).clear();
    wait_until("a login", || login.is_finished());
    login.join().expect("a session").silent().expect("alive");
}

/// A session reads what it wrote itself, or is not answered any more: another one of its identity comes after its end.
#[test]
fn sessions_that_replace_each_other_never_see_each_others_writes() {
    const THREADS: u8 = 4;
    const LOGINS: usize = 12;
    let target = InProcess::start(&[DISK]);
    let delay = Effect::Delay(Duration::from_millis(2));
    target.faults(0).add(Rule::new(OperationKind::Write, When::Every, delay));
    let threads: Vec<_> = (1..=THREADS)
        .map(|byte| {
            let (portal, options) = (target.portal(), target.options(1));
            thread::spawn(move || {
                (0..LOGINS).map(|_| write_and_read_until_replaced(portal, &options, byte)).sum::<usize>()
            })
        })
        .collect();
    let rounds: usize = threads.into_iter().map(|thread| thread.join().expect("no other data")).sum();
    assert!(rounds > 0, "no session lived long enough for one round");
    target.session(1).silent().expect("the identity can still be had");
}

/// Returns how many rounds there were before the connection was closed, at most ten.
fn write_and_read_until_replaced(portal: SocketAddr, options: &LoginOptions, byte: u8) -> usize {
    let Ok(mut session) = Raw::ready(portal, options, 0) else { return 0 };
    for round in 0..10 {
        let data = [byte; 4 * BLOCK_BYTES];
        let written = session.write(0, 0, &data).and_then(|tag| session.good(tag));
        let Ok((bytes, _)) =
            written.and_then(|()| session.read(0, 0, 4)).and_then(|tag| session.data_in(tag))
        else {
            return round;
        };
        assert!(bytes == data, "{byte} was written, {:?} was read", bytes.first());
    }
    10
}

#[test]
fn a_reactor_that_stays_on_its_processor_and_never_sleeps_serves() {
    let allowed = rustix::thread::sched_getaffinity(None).expect("the processors of this test");
    let first = (0..1024).find(|core| allowed.is_set(*core)).expect("at least one");
    let target = InProcess::start_with(&[DISK], |config| {
        config.reactors.count = None;
        config.reactors.cores = Some(first.to_string().parse().expect("a list of one"));
        config.reactors.poll = Poll::Always;
    });
    let mut session = target.session(1);
    let tag = session.write(0, 5, &[0xaa; BLOCK_BYTES]).expect("sent");
    session.good(tag).expect("a write");
    drop(session);
    target.drain();
    target.end().expect("in time").expect("a clean end");
}
