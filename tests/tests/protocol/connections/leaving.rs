//! Connections that leave a session, are replaced or lost (RFC 7143, 6.3.4, 6.3.5, 7.7, 7.14, 11.9, 11.14), alone or with
//! all others.

use std::thread;

use lunette_block::OperationKind;
use lunette_target::config::LunFlag;
use lunette_tests::connection::Connection;
use lunette_tests::in_process::{InProcess, wait_until};
use lunette_tests::initiator::LoginOptions;
use lunette_tests::raw::{BLOCK_BYTES, Raw, lun_field, plain};
use lunette_wire::InitiatorPdu;
use lunette_wire::initiator::{
    LoginStage, LogoutReason, NopOut, ScsiCommand, TaskManagementFunction as Function,
};
use lunette_wire::target::RejectReason;

use super::{CID_NOT_FOUND, CLOSED, Session, login_request, names, refusal};
use crate::preemption::{LONG_BLOCKS, READS, expect_end_without_news};
use crate::{
    A_WHILE, BUS_DEVICE_RESET, COMPLETE, DISK, SESSION_DROP, event, expect_attention, expect_on_disk,
    expect_ready,
};

/// SOME COMMANDS CLEARED BY ISCSI PROTOCOL EVENT.
const CLEARED_BY_PROTOCOL: (u8, u8, u8) = (6, 0x47, 0x7f);
/// AsyncEvent "logout request" (11.9.1).
const LOGOUT_REQUEST: u8 = 1;

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

/// RFC 7143: 4.2.1, 6.3.4.
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

/// RFC 7143: 11.12.7.
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

/// RFC 7143: 11.14.5.
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
    // Its number is still to come, on another connection (7.3).
    session.links[1].cmd_sn = late.cmd_sn;
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

/// RFC 7143: 11.14.
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

/// RFC 7143: 11.15.
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
    session.links[2].is_quiet(A_WHILE).expect("a write is in the store");
    target.faults(0).clear();
    assert_eq!(session.links[2].logged_out(tag).expect("an answer"), CLOSED);
    session.links[2].ends().expect("closed");
    assert!(refusal(session.join(&target, 1)).contains("status 020a"));
}

/// Docs/decisions/0011: what a connection that has left is still to read ends with the right to, and its session stays.
#[test]
fn who_loses_a_reserve_reads_nothing_more_by_a_connection_that_has_left() {
    let unit = format!("1=mem:{}", LONG_BLOCKS as usize * BLOCK_BYTES).parse();
    let unit = unit.map(|flag| LunFlag::number_all(vec![flag]).expect("a free number"));
    // Without a fault layer, which would look at what is read.
    let target = InProcess::start_with(&[DISK], |config| {
        config.targets[0].units.extend(unit.expect("a good flag"));
    });
    let mut session = Session::open_with(&target, 1, 2, &[("MaxRecvDataSegmentLength", "262144")]);
    let mut other = Raw::ready(target.portal(), &target.options(2), 1).expect("a login");
    session.on(0).make_ready(1).expect("a ready unit");
    // RESERVE(10)
    let reserve = ScsiCommand {
        lun: lun_field(1),
        cdb: [0x56, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
        ..plain()
    };
    let tag = session.on(0).command(&reserve, &[]).expect("sent");
    session.links[0].good(tag).expect("reserved");
    // On loopback it would grow until it holds all.
    session.links[1].connection().set_receive_buffer(65536).expect("a socket option");
    for _ in 0..READS {
        session.on(1).read(1, 0, LONG_BLOCKS).expect("sent");
    }
    session.on(0).silent().expect("they have been taken");
    thread::sleep(A_WHILE);
    let tag = session.on(0).log_out(LogoutReason::CloseConnection, 1).expect("sent");
    assert_eq!(session.links[0].logged_out(tag).expect("an answer"), CLOSED);
    let reset = other.manage(Function::LogicalUnitReset, 1).expect("sent");
    assert_eq!(other.managed(reset).expect("a reset"), COMPLETE);
    expect_attention(&mut other, 1, BUS_DEVICE_RESET);
    let tag = other.write(1, 0, &[0xbb; 65536]).expect("sent");
    other.good(tag).expect("a write");
    expect_end_without_news(&mut session.links[1], (READS, LONG_BLOCKS));
    expect_attention(session.on(0), 1, BUS_DEVICE_RESET);
    session.links[0].silent().expect("alive");
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

/// RFC 7143: 11.9.1.
#[test]
fn a_drain_asks_on_every_connection() {
    let target = InProcess::start_with(&[DISK], |config| config.limits.drain_timeout_s = 30);
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

/// RFC 7143: 11.6.1.
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
