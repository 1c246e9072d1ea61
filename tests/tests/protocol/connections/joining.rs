//! Connections that join a session (RFC 7143, 6.3.1, 13.2): who may, how many, with which numbers and keys, and from which
//! reactor.

use std::thread;
use std::time::Duration;

use lunette_tests::connection::Connection;
use lunette_tests::in_process::InProcess;
use lunette_tests::initiator::LoginOptions;
use lunette_tests::raw::{BLOCK_BYTES, Raw, plain};
use lunette_wire::initiator::LoginStage;
use lunette_wire::{Cid, InitiatorPdu, InitiatorTaskTag, TargetPdu, Tsih, text};

use super::{Session, login_request, login_response, names, refusal};
use crate::DISK;

#[test]
fn a_session_has_as_many_connections_as_were_agreed_on() {
    let target = InProcess::start_with(&[DISK], |config| config.limits.max_connections = 3);
    let mut session = Session::open(&target, 1, 3);
    assert!(refusal(session.join(&target, 9)).contains("status 0206"));
    session.all_alive();
    // An initiator that asks for one connection has one, whatever the target would give.
    let single = target.session(2);
    let options = LoginOptions { tsih: single.tsih, cid: Cid(1), ..target.options(2) };
    assert!(refusal(Raw::login(target.portal(), &options)).contains("status 0206"));
}

/// RFC 7143: 4.2.1.
#[test]
fn thirty_two_connections_are_one_session() {
    let target = InProcess::start_with(&[DISK], |config| config.limits.max_connections = 32);
    let mut session = Session::open(&target, 1, 32);
    session.all_alive();
    let tags: Vec<InitiatorTaskTag> =
        (0..32).map(|cid| session.on(cid).read(0, cid as u64, 1).expect("sent")).collect();
    for (cid, tag) in tags.into_iter().enumerate() {
        session.links[cid].data_in(tag).expect("a read");
    }
    session.expect_open_window();
}

/// RFC 7143: 11.12.6.
#[test]
fn a_session_is_joined_by_its_initiator_only() {
    let target = InProcess::start(&[DISK]);
    let mut session = Session::open(&target, 1, 1);
    let good = session.options(1);
    let tsih = |tsih| LoginOptions { tsih: Tsih(tsih), ..good.clone() };
    let strangers = [
        LoginOptions { initiator_name: "iqn.2026-11.io.lunette:stranger".into(), ..good.clone() },
        LoginOptions { isid_qualifier: 77, ..good.clone() },
        LoginOptions { target_name: None, ..good.clone() },
        tsih(good.tsih.0 ^ 0x4000),
        tsih(0xffff),
    ];
    for options in &strangers {
        let cids = [options.cid, Cid(0)];
        for cid in cids {
            let options = LoginOptions { cid, ..options.clone() };
            assert!(refusal(Raw::login(target.portal(), &options)).contains("status 020a"), "{options:?}");
        }
    }
    session.all_alive();
    session.links.push(session.join(&target, 1).expect("who has its identity joins"));
    session.all_alive();
}

/// An initiator takes the numbers of any PDU for its session's: those of a login that joins must be, too.
#[test]
fn a_login_that_joins_is_told_the_sessions_numbers() {
    let target = InProcess::start(&[DISK]);
    let mut session = Session::open(&target, 1, 1);
    // A command that waits for the one before it keeps ExpCmdSN behind what the login says.
    let missing = session.cmd_sn();
    session.on(0).cmd_sn = missing.next();
    let early = session.links[0].command(&plain(), &[]).expect("sent");
    session.links[0].silent().expect("it waits");
    // One of two comes to the session's reactor, the other has to move there.
    let joined: Vec<_> = (1..=2)
        .map(|cid| {
            let mut connection = Connection::open(target.portal()).expect("a connection");
            let stages = [
                (LoginStage::Security, LoginStage::Operational),
                (LoginStage::Operational, LoginStage::FullFeature),
            ];
            for (from, to) in stages {
                let keys = if from == LoginStage::Security { names(&session) } else { Vec::new() };
                connection.send(&login_request(&session, cid, from, to), &keys).expect("sent");
                let (response, _) = login_response(&mut connection);
                assert_eq!((response.status_class, response.tsih), (0, session.options.tsih));
                assert_eq!(response.numbers.exp_cmd_sn, missing);
                assert_eq!(response.numbers.max_cmd_sn, session.links[0].max_cmd_sn());
            }
            connection
        })
        .collect();
    session.links[0].cmd_sn = missing;
    let tag = session.links[0].command(&plain(), &[]).expect("sent");
    session.links[0].good(tag).expect("in order");
    session.links[0].good(early).expect("in order");
    drop(joined);
}

#[test]
fn keys_of_the_leading_login_are_refused_later_and_those_of_the_connection_are_its_own() {
    let target = InProcess::start(&[DISK]);
    let mut session = Session::open(&target, 1, 1);
    let mut connection = Connection::open(target.portal()).expect("a connection");
    let mut keys = names(&session);
    let offers = [
        ("MaxBurstLength", "512"),
        ("ImmediateData", "No"),
        ("MaxConnections", "1"),
        ("DataDigest", "CRC32C"),
    ];
    offers.iter().for_each(|(key, value)| text::push(&mut keys, key, value));
    let request = login_request(&session, 1, LoginStage::Operational, LoginStage::FullFeature);
    connection.send(&request, &keys).expect("sent");
    let (response, answers) = login_response(&mut connection);
    assert_eq!(response.status_class, 0);
    let answers = text::pairs(&answers).expect("text");
    for (key, value) in [
        ("MaxBurstLength", "Reject"),
        ("ImmediateData", "Reject"),
        ("MaxConnections", "Reject"),
        ("DataDigest", "CRC32C"),
    ] {
        assert!(answers.contains(&(key, value)), "{key}: {answers:?}");
    }
    // What was agreed on first still holds, on every connection; digests are this one's.
    let tag = session.on(0).write(0, 0, &[1; BLOCK_BYTES]).expect("sent");
    session.links[0].good(tag).expect("immediate data without a digest");
    let digests = lunette_wire::frame::Digests { header: false, data: true };
    let link = Raw::login(
        target.portal(),
        &LoginOptions { digests, keys: vec![("DataDigest".into(), "CRC32C".into())], ..session.options(2) },
    );
    session.links.push(link.expect("a third connection"));
    let tag = session.on(1).write(0, 1, &[2; BLOCK_BYTES]).expect("sent");
    session.links[1].good(tag).expect("immediate data with a digest");
}

/// The first Login Request decides where a connection lives, however it comes.
#[test]
fn a_connection_that_moves_loses_no_byte() {
    let target = InProcess::start(&[DISK]);
    let session = Session::open(&target, 1, 1);
    for (cid, cuts) in [(1, vec![1, 47, 48, 49]), (2, vec![48]), (3, vec![60]), (4, vec![])] {
        // With each login that stays, the next connection comes to the other reactor.
        let mut connection = Connection::open(target.portal()).expect("a connection");
        let request = login_request(&session, cid, LoginStage::Operational, LoginStage::FullFeature);
        let bytes = connection.encode(&request, &names(&session));
        let mut sent = 0;
        for cut in cuts.into_iter().chain([bytes.len()]) {
            connection.send_bytes(&bytes[sent..cut]).expect("sent");
            thread::sleep(Duration::from_millis(20));
            sent = cut;
        }
        assert_eq!(login_response(&mut connection).0.status_class, 0, "connection {cid}");
        std::mem::forget(connection);
    }
}

/// Strangers that name a session's handle harm neither it nor the logins of others.
#[test]
fn a_flood_of_logins_at_one_session_leaves_it_alone() {
    let target = InProcess::start(&[DISK]);
    let mut session = Session::open(&target, 1, 2);
    let stranger =
        LoginOptions { initiator_name: "iqn.2026-11.io.lunette:stranger".into(), ..session.options(1) };
    let threads: Vec<_> = (0..4)
        .map(|_| {
            let (portal, options) = (target.portal(), stranger.clone());
            thread::spawn(move || (0..50).filter(|_| Raw::login(portal, &options).is_ok()).count())
        })
        .collect();
    let tag = session.on(1).read(0, 0, 1).expect("sent");
    session.links[1].data_in(tag).expect("a read");
    assert_eq!(threads.into_iter().map(|thread| thread.join().expect("no panic")).sum::<usize>(), 0);
    session.all_alive();
}

/// No initiator may do that, but what comes all the same is this session's and nobody else's.
#[test]
fn a_command_right_behind_a_login_that_moves_is_answered() {
    let target = InProcess::start(&[DISK]);
    let mut session = Session::open(&target, 1, 1);
    // Every second connection comes to the other reactor and moves.
    for cid in 1..=4 {
        let mut connection = Connection::open(target.portal()).expect("a connection");
        let login = login_request(&session, cid, LoginStage::Operational, LoginStage::FullFeature);
        let mut bytes = connection.encode(&login, &names(&session));
        let command = session.on(0).number(&plain());
        bytes.extend(connection.encode(&InitiatorPdu::ScsiCommand(command), &[]));
        connection.send_bytes(&bytes).expect("sent");
        assert_eq!(login_response(&mut connection).0.status_class, 0);
        let (answer, _) = connection.receive().expect("an answer to the command");
        let TargetPdu::ScsiResponse(answer) = answer else { panic!("{answer:?}") };
        assert_eq!(answer.initiator_task_tag, command.initiator_task_tag);
        session.links[0].silent().expect("nothing of it comes here");
        // The next one is to find as many connections on either reactor as this one did.
        drop(connection);
        session = Session::open(&target, cid as u8 + 1, 1);
    }
}
