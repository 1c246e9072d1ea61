//! Several connections of one session (RFC 7143, 4.2.2.1, 4.2.5.1, 6.3.1, 6.3.4, 7.14, 11.14): they join, share the
//! numbers, keep their tasks to themselves, and go. With two reactors every second one has to move to its session's.

use std::thread;
use std::time::Duration;

use lunette_block::OperationKind;
use lunette_tests::connection::Connection;
use lunette_tests::in_process::{InProcess, wait_until};
use lunette_tests::initiator::LoginOptions;
use lunette_tests::raw::{BLOCK_BYTES, Raw, plain, read, write};
use lunette_wire::initiator::{
    LoginRequest, LoginStage, LogoutReason, NopOut, ScsiDataOut, TaskManagementFunction as Function,
};
use lunette_wire::target::{LoginResponse, RejectReason};
use lunette_wire::{
    Cid, CmdSn, DataSn, InitiatorPdu, InitiatorTaskTag, Isid, TargetPdu, TargetTransferTag, Tsih, text,
};

use crate::{
    A_WHILE, BUS_DEVICE_RESET, COMPLETE, DISK, SECOND_DISK, SESSION_DROP, event, expect_attention,
    expect_on_disk, expect_ready, pattern,
};

/// SOME COMMANDS CLEARED BY ISCSI PROTOCOL EVENT.
const CLEARED_BY_PROTOCOL: (u8, u8, u8) = (6, 0x47, 0x7f);
/// Response "connection or session closed successfully", and "CID not found" (11.15.1).
const CLOSED: u8 = 0;
const CID_NOT_FOUND: u8 = 1;
/// AsyncEvent "logout request" (11.9.1).
const LOGOUT_REQUEST: u8 = 1;

/// One session; its connections have their place for a CID.
struct Session {
    options: LoginOptions,
    links: Vec<Raw>,
}

impl Session {
    /// A session that is ready, with so many connections.
    fn open(target: &InProcess, port: u8, connections: u16) -> Self {
        let options = target.options_with(port, &[("MaxConnections", "32"), ("InitialR2T", "No")]);
        let leading = Raw::ready(target.portal(), &options, 0).expect("a leading login");
        let options = LoginOptions { tsih: leading.tsih, keys: Vec::new(), ..options };
        let mut session = Self { options, links: vec![leading] };
        for cid in 1..connections {
            let link = session.join(target, cid).expect("a login that joins");
            session.links.push(link);
        }
        session
    }

    /// The number of the session's next command.
    fn cmd_sn(&self) -> CmdSn {
        let numbers = self.links.iter().map(|link| link.cmd_sn);
        numbers.reduce(|newest, other| if newest.precedes(other) { other } else { newest }).expect("a link")
    }

    fn options(&self, cid: u16) -> LoginOptions {
        LoginOptions { cid: Cid(cid), first_cmd_sn: self.cmd_sn(), ..self.options.clone() }
    }

    fn join(&self, target: &InProcess, cid: u16) -> anyhow::Result<Raw> {
        Raw::login(target.portal(), &self.options(cid))
    }

    /// A connection, which goes on with the session's numbers.
    fn on(&mut self, cid: usize) -> &mut Raw {
        self.links[cid].cmd_sn = self.cmd_sn();
        &mut self.links[cid]
    }

    /// Every connection answers, and has nothing else to say.
    fn all_alive(&mut self) {
        for cid in 0..self.links.len() {
            self.on(cid).silent().expect("alive");
        }
    }

    /// All that was sent has been taken in order, and the whole window is open.
    fn expect_open_window(&mut self) {
        self.on(0).silent().expect("alive");
        let (next, link) = (self.cmd_sn(), &self.links[0]);
        assert_eq!(link.exp_cmd_sn(), next, "a number is missing");
        assert_eq!(link.max_cmd_sn(), next.plus(127), "the window has leaked");
    }
}

fn refusal(login: anyhow::Result<Raw>) -> String {
    login.expect_err("a login that must be refused").to_string()
}

/// The next PDU must be a ping of the target's, whose answer acknowledges all that came before it.
fn acknowledge(link: &mut Raw) {
    let (TargetPdu::NopIn(ping), _) = link.receive().expect("a ping") else { panic!("no ping") };
    assert_ne!(ping.target_transfer_tag, TargetTransferTag::RESERVED);
    let answer = NopOut {
        immediate: true,
        lun: ping.lun,
        initiator_task_tag: InitiatorTaskTag::RESERVED,
        target_transfer_tag: ping.target_transfer_tag,
        cmd_sn: link.cmd_sn,
        exp_stat_sn: link.exp_stat_sn,
    };
    link.send(&InitiatorPdu::NopOut(answer), &[]).expect("sent");
}

#[test]
fn any_command_goes_on_any_connection_and_is_answered_there() {
    let target = InProcess::start(&[DISK]);
    let mut session = Session::open(&target, 1, 5);
    let data = pattern(5 * 4 * BLOCK_BYTES);
    for (cid, chunk) in data.chunks(4 * BLOCK_BYTES).enumerate() {
        let tag = session.on(cid).write(0, 4 * cid as u64, chunk).expect("sent");
        session.links[cid].good(tag).expect("a write");
    }
    session.all_alive();
    for cid in (0..5).rev() {
        expect_on_disk(session.on(cid), 0, &data);
    }
    session.all_alive();
    session.expect_open_window();
}

#[test]
fn commands_run_in_the_order_of_their_numbers_over_all_connections() {
    let target = InProcess::start(&[DISK]);
    let mut session = Session::open(&target, 1, 3);
    let first = session.cmd_sn();
    let mut tags = Vec::new();
    for cid in [2, 1, 0] {
        assert_eq!(target.faults(0).calls(OperationKind::Write), 0, "an earlier number is missing");
        let link = &mut session.links[cid];
        link.cmd_sn = first.plus(cid as u32);
        tags.push(link.write(0, cid as u64, &[cid as u8 + 1; BLOCK_BYTES]).expect("sent"));
        if cid > 0 {
            link.waits(A_WHILE).expect("an earlier number is missing");
        }
    }
    for (cid, tag) in tags.into_iter().rev().enumerate() {
        session.links[cid].good(tag).expect("a write");
    }
    expect_on_disk(session.on(0), 0, &[[1; BLOCK_BYTES], [2; BLOCK_BYTES], [3; BLOCK_BYTES]].concat());
    session.expect_open_window();
}

#[test]
fn data_is_taken_on_the_connection_of_its_command_only() {
    let target = InProcess::start(&[DISK]);
    let mut session = Session::open(&target, 1, 2);
    let data = pattern(4 * BLOCK_BYTES);
    let tag = session.on(0).command(&write(0, 0, data.len()), &[]).expect("sent");
    let r2t = session.links[0].r2t(tag).expect("an R2T on the connection of the command");
    let stray = ScsiDataOut {
        is_final: true,
        initiator_task_tag: tag,
        target_transfer_tag: r2t.target_transfer_tag,
        exp_stat_sn: session.links[1].exp_stat_sn,
        data_sn: DataSn(0),
        ..ScsiDataOut::default()
    };
    let stray = InitiatorPdu::ScsiDataOut(stray);
    let other = vec![0xee; data.len()];
    session.links[1].send(&stray, &other).expect("sent");
    let reason = session.links[1].rejected(&stray.encode(other.len())).expect("a Reject");
    assert_eq!(reason, RejectReason::ProtocolError as u8);
    session.links[0].answer_r2t(&r2t, &data, data.len()).expect("sent");
    session.links[0].good(tag).expect("the stray data has harmed nothing");
    expect_on_disk(session.on(1), 0, &data);
    session.expect_open_window();
}

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

fn login_request(session: &Session, cid: u16, from: LoginStage, to: LoginStage) -> InitiatorPdu {
    InitiatorPdu::LoginRequest(LoginRequest {
        transit: true,
        current_stage: from,
        next_stage: to,
        isid: Isid([0x80, 0x12, 0x34, 0x56, 0, session.options.isid_qualifier]),
        tsih: session.options.tsih,
        cid: Cid(cid),
        cmd_sn: session.cmd_sn(),
        ..LoginRequest::default()
    })
}

fn names(session: &Session) -> Vec<u8> {
    let mut keys = Vec::new();
    text::push(&mut keys, "InitiatorName", &session.options.initiator_name);
    text::push(&mut keys, "TargetName", session.options.target_name.as_deref().expect("a target"));
    keys
}

fn login_response(connection: &mut Connection) -> (LoginResponse, Vec<u8>) {
    match connection.receive().expect("an answer") {
        (TargetPdu::LoginResponse(pdu), data) => (pdu, data),
        (other, _) => panic!("{other:?}"),
    }
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

/// 6.3.4: the new connection is there once nothing of the old one is left in a store.
#[test]
fn a_connection_is_reinstated_when_its_stores_are_done() {
    let target = InProcess::start(&[DISK]);
    let mut session = Session::open(&target, 1, 2);
    target.hold(0, OperationKind::Write);
    session.on(1).write(0, 0, &[0xaa; BLOCK_BYTES]).expect("sent");
    target.wait_for_calls(0, OperationKind::Write, 1);
    let (portal, options) = (target.portal(), session.options(1));
    let login = thread::spawn(move || Raw::login(portal, &options));
    session.links[1].ends().expect("the old connection is closed without a word");
    let tag = session.on(0).read(0, 8, 1).expect("sent");
    session.links[0].data_in(tag).expect("the other connection is served meanwhile");
    thread::sleep(A_WHILE);
    assert!(!login.is_finished(), "there is a new connection while a write of the old one is on its way");
    target.faults(0).clear();
    let cmd_sn = session.cmd_sn();
    session.links[1] = login.join().expect("no panic").expect("a login");
    session.links[1].cmd_sn = cmd_sn;
    // The nexus is told once, on whichever connection its next command comes (11.14.5).
    expect_attention(session.on(1), 0, CLEARED_BY_PROTOCOL);
    expect_ready(session.on(0), 0);
    let tag = session.on(1).write(0, 0, &[0xbb; BLOCK_BYTES]).expect("sent");
    session.links[1].good(tag).expect("a write");
    expect_on_disk(session.on(0), 0, &[0xbb; BLOCK_BYTES]);
    session.expect_open_window();
}

#[test]
fn the_only_connection_is_reinstated_even_where_one_is_all_there_may_be() {
    let target = InProcess::start(&[DISK]);
    let mut old = target.session(1);
    for _ in 0..3 {
        let options = LoginOptions { tsih: old.tsih, first_cmd_sn: old.cmd_sn, ..target.options(1) };
        let mut new = Raw::login(target.portal(), &options).expect("a login");
        assert_eq!(new.tsih, old.tsih);
        old.ends().expect("the old connection is closed");
        expect_ready(&mut new, 0);
        old = new;
    }
}

#[test]
fn of_logins_that_fight_for_one_connection_one_is_left() {
    const LOGINS: usize = 8;
    let target = InProcess::start(&[DISK]);
    let mut session = Session::open(&target, 1, 2);
    target.hold(0, OperationKind::Write);
    session.on(1).write(0, 0, &[0xaa; BLOCK_BYTES]).expect("sent");
    target.wait_for_calls(0, OperationKind::Write, 1);
    let logins: Vec<_> = (0..LOGINS)
        .map(|_| {
            let (portal, options) = (target.portal(), session.options(1));
            thread::spawn(move || Raw::login(portal, &options))
        })
        .collect();
    session.links[1].ends().expect("the first one is ended");
    thread::sleep(A_WHILE);
    target.faults(0).clear();
    let logins: Vec<_> = logins.into_iter().map(|login| login.join().expect("no panic")).collect();
    session.links.truncate(1);
    session.links.extend(logins.into_iter().filter_map(|login| {
        let mut link = login.ok()?;
        link.silent().ok().map(|()| link)
    }));
    assert_eq!(session.links.len(), 2, "one is left");
    session.all_alive();
}

/// A login that is to take a connection's place breaks off: the session is not left behind without a connection.
#[test]
fn a_session_whose_new_connection_never_comes_ends() {
    let target = InProcess::start(&[DISK]);
    let mut session = Session::open(&target, 1, 1);
    target.hold(0, OperationKind::Write);
    session.on(0).write(0, 0, &[0xaa; BLOCK_BYTES]).expect("sent");
    target.wait_for_calls(0, OperationKind::Write, 1);
    let mut hasty = Connection::open(target.portal()).expect("a connection");
    let request = login_request(&session, 0, LoginStage::Operational, LoginStage::FullFeature);
    hasty.send(&request, &names(&session)).expect("sent");
    session.links[0].ends().expect("the old connection is closed");
    drop(hasty);
    thread::sleep(A_WHILE);
    target.faults(0).clear();
    wait_until("the end of the session", || {
        session.join(&target, 7).is_err_and(|error| error.to_string().contains("status 020a"))
    });
    target.session(1).silent().expect("the identity is free");
}

#[test]
fn a_connection_is_logged_out_by_itself_and_the_session_goes_on() {
    let target = InProcess::start(&[DISK]);
    let mut session = Session::open(&target, 1, 3);
    target.hold(0, OperationKind::Write);
    session.on(1).write(0, 0, &[0xaa; BLOCK_BYTES]).expect("sent");
    let kept = session.on(2).write(0, 1, &[0xbb; BLOCK_BYTES]).expect("sent");
    target.wait_for_calls(0, OperationKind::Write, 2);
    let tag = session.on(1).log_out(LogoutReason::CloseConnection, 1).expect("sent");
    session.links[1].waits(A_WHILE).expect("its write is in the store");
    let late = session.on(1).number(&plain());
    session.links[1].send(&InitiatorPdu::ScsiCommand(late), &[]).expect("sent");
    let header = InitiatorPdu::ScsiCommand(late).encode(0);
    let reason = session.links[1].rejected(&header).expect("nothing may come behind a logout");
    assert_eq!(reason, RejectReason::WaitingForLogout as u8);
    target.faults(0).clear();
    assert_eq!(session.links[1].logged_out(tag).expect("the only answer"), CLOSED);
    session.links[1].ends().expect("a closed connection");
    session.links[2].good(kept).expect("tasks of others go on");
    expect_attention(session.on(2), 0, CLEARED_BY_PROTOCOL);
    expect_ready(session.on(0), 0);
    session.expect_open_window();
    // Its CID is free.
    let cmd_sn = session.cmd_sn();
    session.links[1] = session.join(&target, 1).expect("a login");
    session.links[1].cmd_sn = cmd_sn;
    session.all_alive();
}

#[test]
fn a_connection_is_logged_out_by_another() {
    let target = InProcess::start(&[DISK]);
    let mut session = Session::open(&target, 1, 2);
    target.hold(0, OperationKind::Write);
    session.on(1).write(0, 0, &[0xaa; BLOCK_BYTES]).expect("sent");
    target.wait_for_calls(0, OperationKind::Write, 1);
    let tag = session.on(0).log_out(LogoutReason::CloseConnection, 9).expect("sent");
    assert_eq!(session.links[0].logged_out(tag).expect("an answer"), CID_NOT_FOUND);
    let tag = session.on(0).log_out(LogoutReason::CloseConnection, 1).expect("sent");
    session.links[1].ends().expect("a closed connection");
    session.links[0].waits(A_WHILE).expect("a write of that connection is in the store");
    target.faults(0).clear();
    assert_eq!(session.links[0].logged_out(tag).expect("an answer"), CLOSED);
    expect_attention(session.on(0), 0, CLEARED_BY_PROTOCOL);
    session.expect_open_window();
    let tag = session.on(0).log_out(LogoutReason::CloseConnection, 1).expect("sent");
    assert_eq!(session.links[0].logged_out(tag).expect("an answer"), CID_NOT_FOUND);
}

/// 11.14: what a logged-out connection brought before its turn is as if it had not come, and may come on another.
#[test]
fn requests_that_waited_on_a_logged_out_connection_may_come_again() {
    let target = InProcess::start(&[DISK]);
    let mut session = Session::open(&target, 1, 2);
    let missing = session.cmd_sn();
    session.on(1).cmd_sn = missing.next();
    let command = session.links[1].number(&plain());
    session.links[1].send(&InitiatorPdu::ScsiCommand(command), &[]).expect("sent");
    session.links[1].silent().expect("it waits");
    session.links[0].cmd_sn = missing;
    let tag = session.links[0].log_out(LogoutReason::CloseConnection, 1).expect("sent");
    assert_eq!(session.links[0].logged_out(tag).expect("an answer"), CLOSED);
    let first = session.links[0].command(&plain(), &[]).expect("sent");
    session.links[0].good(first).expect("in order");
    session.links[0].waits(A_WHILE).expect("the other number is missing again");
    session.links[0].send(&InitiatorPdu::ScsiCommand(command), &[]).expect("sent");
    session.links[0].good(command.initiator_task_tag).expect("a retry on another connection");
    session.links.truncate(1);
    session.links[0].cmd_sn = missing.plus(2);
    session.expect_open_window();
}

#[test]
fn a_session_logout_closes_all_connections() {
    let target = InProcess::start(&[DISK]);
    let mut session = Session::open(&target, 1, 3);
    target.hold(0, OperationKind::Write);
    session.on(1).write(0, 0, &[0xaa; BLOCK_BYTES]).expect("sent");
    target.wait_for_calls(0, OperationKind::Write, 1);
    let tag = session.on(2).log_out(LogoutReason::CloseSession, 0).expect("sent");
    session.links[0].ends().expect("closed");
    session.links[1].ends().expect("closed");
    session.links[2].waits(A_WHILE).expect("a write is in the store");
    target.faults(0).clear();
    assert_eq!(session.links[2].logged_out(tag).expect("an answer"), CLOSED);
    session.links[2].ends().expect("closed");
    assert!(refusal(session.join(&target, 1)).contains("status 020a"));
}

#[test]
fn the_last_connection_takes_its_session_along() {
    let target = InProcess::start(&[DISK]);
    let mut session = Session::open(&target, 1, 2);
    for cid in 0..2 {
        let tag = session.on(cid).log_out(LogoutReason::CloseConnection, cid as u16).expect("sent");
        assert_eq!(session.links[cid].logged_out(tag).expect("an answer"), CLOSED);
        session.links[cid].ends().expect("closed");
    }
    assert!(refusal(session.join(&target, 1)).contains("status 020a"));
}

/// 7.14: at ErrorRecoveryLevel 0 the loss of one connection is the loss of the session.
#[test]
fn a_lost_connection_ends_the_session_and_the_others_are_told() {
    let target = InProcess::start(&[DISK]);
    let mut session = Session::open(&target, 1, 3);
    target.hold(0, OperationKind::Write);
    session.on(0).write(0, 0, &[0xaa; BLOCK_BYTES]).expect("sent");
    target.wait_for_calls(0, OperationKind::Write, 1);
    drop(session.links.remove(1));
    for link in &mut session.links {
        assert_eq!(event(link), SESSION_DROP);
        link.ends().expect("closed");
    }
    assert!(
        refusal(session.join(&target, 9)).contains("status 020a"),
        "an ending session takes no connection"
    );
    let (portal, options) = (target.portal(), target.options(1));
    let login = thread::spawn(move || Raw::ready(portal, &options, 0).expect("a login"));
    thread::sleep(A_WHILE);
    assert!(!login.is_finished(), "there is a new session while a write of the old one is on its way");
    target.faults(0).clear();
    login.join().expect("a session").silent().expect("alive");
}

/// 7.7: whoever breaks the layout of a PDU loses all connections of the session.
#[test]
fn a_format_error_ends_all_connections() {
    let target = InProcess::start(&[DISK]);
    let mut session = Session::open(&target, 1, 3);
    let mut header = InitiatorPdu::NopOut(NopOut { immediate: true, ..NopOut::default() }).encode(0);
    header[5..8].fill(0xff);
    session.links[1].connection().send_bytes(&header).expect("sent");
    session.links[1].ends().expect("closed");
    for cid in [0, 2] {
        assert_eq!(event(&mut session.links[cid]), SESSION_DROP);
        session.links[cid].ends().expect("closed");
    }
}

#[test]
fn session_reinstatement_closes_all_connections() {
    let target = InProcess::start(&[DISK]);
    let mut session = Session::open(&target, 1, 4);
    let mut new = target.session(1);
    for link in &mut session.links {
        link.ends().expect("closed");
    }
    new.silent().expect("alive");
    assert!(refusal(session.join(&target, 1)).contains("status 020a"), "the handle was the old session's");
}

#[test]
fn a_task_is_aborted_from_another_connection() {
    let target = InProcess::start(&[DISK]);
    let mut session = Session::open(&target, 1, 2);
    target.hold(0, OperationKind::Read);
    let task = session.on(0).read(0, 0, 1).expect("sent");
    target.wait_for_calls(0, OperationKind::Read, 1);
    let ref_cmd_sn = CmdSn(session.cmd_sn().0.wrapping_sub(1));
    let tag = session.on(1).manage_task(Function::AbortTask, 0, task, ref_cmd_sn).expect("sent");
    session.links[1].waits(A_WHILE).expect("the task is in the store");
    target.faults(0).clear();
    assert_eq!(session.links[1].managed(tag).expect("an answer"), COMPLETE);
    session.all_alive();
    session.expect_open_window();
}

#[test]
fn a_reset_ends_the_tasks_of_all_connections() {
    let target = InProcess::start(&[DISK, SECOND_DISK]);
    let mut session = Session::open(&target, 1, 3);
    session.on(0).make_ready(1).expect("a ready unit");
    target.hold(0, OperationKind::Read);
    for cid in 0..3 {
        session.on(cid).read(0, cid as u64, 1).expect("sent");
    }
    target.wait_for_calls(0, OperationKind::Read, 3);
    let other = session.on(2).read(1, 0, 1).expect("sent");
    session.links[2].data_in(other).expect("the other unit is no concern of this");
    let tag = session.on(1).manage(Function::LogicalUnitReset, 0).expect("sent");
    session.links[1].waits(A_WHILE).expect("tasks are in the store");
    target.faults(0).clear();
    // It has the answer of the other unit, and has not said so; the first one has nothing to acknowledge.
    acknowledge(&mut session.links[2]);
    assert_eq!(session.links[1].managed(tag).expect("an answer"), COMPLETE);
    session.all_alive();
    expect_attention(session.on(2), 0, BUS_DEVICE_RESET);
    expect_ready(session.on(0), 0);
    session.expect_open_window();
}

/// 4.2.3.3, step b, over all connections: a function waits for commands before it wherever they come.
#[test]
fn a_function_waits_for_commands_of_other_connections() {
    let target = InProcess::start(&[DISK]);
    let mut session = Session::open(&target, 1, 2);
    let missing = session.cmd_sn();
    session.links[1].cmd_sn = missing.next();
    let tag = session.links[1].manage(Function::AbortTaskSet, 0).expect("sent");
    session.links[1].waits(A_WHILE).expect("a command before it is missing");
    session.links[0].cmd_sn = missing;
    session.links[0].read(0, 0, 1).expect("sent");
    assert_eq!(session.links[1].managed(tag).expect("an answer"), COMPLETE);
    session.all_alive();
    assert_eq!(target.faults(0).calls(OperationKind::Read), 0);
    session.expect_open_window();
}

/// 4.2.3.3, step d, and 11.6.1: who is told that a task set is gone has all the answers that were sent before.
#[test]
fn the_response_to_a_function_on_many_tasks_overtakes_no_answer_of_another_connection() {
    let target = InProcess::start(&[DISK]);
    let mut session = Session::open(&target, 1, 3);
    for cid in [0, 2] {
        let tag = session.on(cid).read(0, 0, 1).expect("sent");
        session.links[cid].data_in(tag).expect("a read");
    }
    let tag = session.on(1).manage(Function::AbortTaskSet, 0).expect("sent");
    session.links[1].waits(A_WHILE).expect("two connections have acknowledged nothing");
    acknowledge(&mut session.links[2]);
    session.links[1].waits(A_WHILE).expect("one connection has acknowledged nothing");
    acknowledge(&mut session.links[0]);
    assert_eq!(session.links[1].managed(tag).expect("an answer"), COMPLETE);
    // A connection that leaves will never acknowledge, and is not waited for.
    session.on(2).silent().expect("alive");
    session.on(0).silent().expect("alive");
    let tag = session.on(1).manage(Function::AbortTaskSet, 0).expect("sent");
    acknowledge(&mut session.links[0]);
    session.links[1].waits(A_WHILE).expect("one connection has acknowledged nothing");
    let logout = session.on(1).log_out(LogoutReason::CloseConnection, 2).expect("sent");
    assert_eq!(session.links[1].managed(tag).expect("an answer"), COMPLETE);
    assert_eq!(session.links[1].logged_out(logout).expect("an answer"), CLOSED);
}

#[test]
fn every_connection_may_have_an_immediate_command_open() {
    let target = InProcess::start(&[DISK]);
    let mut session = Session::open(&target, 1, 2);
    target.hold(0, OperationKind::Read);
    let immediate = lunette_wire::initiator::ScsiCommand { immediate: true, ..read(0, 0, 1) };
    let first: Vec<_> = (0..32).map(|_| session.on(0).command(&immediate, &[]).expect("sent")).collect();
    session.links[0].silent().expect("they are taken");
    let second = session.on(1).command(&immediate, &[]).expect("sent");
    session.links[1].silent().expect("it is taken, though the session has its 32");
    let command = session.on(1).number(&immediate);
    session.links[1].send(&InitiatorPdu::ScsiCommand(command), &[]).expect("sent");
    let reason = session.links[1].rejected(&InitiatorPdu::ScsiCommand(command).encode(0)).expect("a Reject");
    assert_eq!(reason, RejectReason::ImmediateCommandReject as u8);
    target.faults(0).clear();
    session.links[1].data_in(second).expect("a read");
    for _ in first {
        let (TargetPdu::ScsiDataIn(pdu), _) = session.links[0].receive().expect("a read") else {
            panic!("no data")
        };
        assert_eq!(pdu.status, Some(0));
    }
}

#[test]
fn a_drain_asks_on_every_connection() {
    let target = InProcess::start(&[DISK]);
    let mut session = Session::open(&target, 1, 3);
    target.drain();
    for link in &mut session.links {
        assert_eq!(event(link), LOGOUT_REQUEST);
    }
    for cid in 0..3 {
        let tag = session.on(cid).log_out(LogoutReason::CloseConnection, cid as u16).expect("sent");
        assert_eq!(session.links[cid].logged_out(tag).expect("an answer"), CLOSED);
    }
    drop(session);
    target.end().expect("an end").expect("a clean one");
}

#[test]
fn a_cold_reset_ends_all_connections() {
    let target = InProcess::start(&[DISK]);
    let mut session = Session::open(&target, 1, 3);
    let tag = session.on(1).manage(Function::TargetColdReset, 0).expect("sent");
    assert_eq!(session.links[1].managed(tag).expect("an answer"), COMPLETE);
    for link in &mut session.links {
        assert_eq!(event(link), SESSION_DROP);
        link.ends().expect("closed");
    }
    target.session(1).silent().expect("the target serves on");
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
