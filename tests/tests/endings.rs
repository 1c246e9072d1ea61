//! How connections end, and which do not: last answers that must arrive, slow links that are not dead ones, discovery
//! sessions that replace one another (RFC 7143, 7.4.2, 11.15, 11.19).

use std::thread;
use std::time::Duration;

use lunette_tests::connection::Connection;
use lunette_tests::in_process::{InProcess, LIMIT};
use lunette_tests::initiator::LoginOptions;
use lunette_tests::raw::{BLOCK_BYTES, Raw, read, write};
use lunette_wire::initiator::{LoginRequest, LoginStage, LogoutRequest, NopOut, TextRequest};
use lunette_wire::{InitiatorPdu, InitiatorTaskTag, Isid, TargetPdu, TargetTransferTag, text};

const DISK: &str = "0=mem:32M,write=back";

/// More than the target reads at once, so that some of it is unread when the target has said its last word.
const SURPLUS_BYTES: usize = 512 << 10;

/// The connection ends, and not by a reset, which lets some systems forget what they have received.
fn expect_orderly_end(connection: &mut Connection) {
    assert!(connection.peek().expect("no reset"), "an end");
    assert_eq!(connection.drain(LIMIT).expect("an end"), 0);
}

#[test]
fn a_logout_is_answered_though_more_comes_behind_it() {
    let target = InProcess::start(&[DISK]);
    let mut session = target.session(1);
    let logout = LogoutRequest {
        immediate: true,
        initiator_task_tag: session.new_tag(),
        cmd_sn: session.cmd_sn,
        exp_stat_sn: session.exp_stat_sn,
        ..LogoutRequest::default()
    };
    let mut bytes = session.connection().encode(&InitiatorPdu::LogoutRequest(logout), &[]);
    bytes.resize(bytes.len() + SURPLUS_BYTES, 0);
    session.connection().send_bytes(&bytes).expect("sent");
    thread::sleep(Duration::from_millis(200));
    let tag = logout.initiator_task_tag;
    assert_eq!(session.logged_out(tag).expect("the answer outlives the connection"), 0);
    expect_orderly_end(session.connection());
}

#[test]
fn a_failed_login_says_why_though_more_comes_behind_it() {
    let target = InProcess::start(&[DISK]);
    let mut connection = Connection::open(target.portal()).expect("a connection");
    let request = login_request(LoginStage::Security, LoginStage::Operational);
    let mut keys = Vec::new();
    text::push(&mut keys, "InitiatorName", "iqn.2026-11.io.lunette:tests");
    text::push(&mut keys, "TargetName", "iqn.2026-11.io.lunette:nowhere");
    let mut bytes = connection.encode(&InitiatorPdu::LoginRequest(request), &keys);
    bytes.resize(bytes.len() + SURPLUS_BYTES, 0);
    connection.send_bytes(&bytes).expect("sent");
    thread::sleep(Duration::from_millis(200));
    let (TargetPdu::LoginResponse(response), _) = connection.receive().expect("an answer") else {
        panic!("no login response")
    };
    assert_eq!((response.status_class, response.status_detail), (2, 3), "not found");
    expect_orderly_end(&mut connection);
}

fn login_request(current_stage: LoginStage, next_stage: LoginStage) -> LoginRequest {
    let isid = Isid([0x80, 0, 0, 0, 0, 1]);
    LoginRequest { transit: true, current_stage, next_stage, isid, ..LoginRequest::default() }
}

/// A target that drops who was silent for four seconds.
fn impatient() -> InProcess {
    with_limits_of(2)
}

/// A target that drops who was silent for twice as many seconds.
fn with_limits_of(seconds: u32) -> InProcess {
    InProcess::start_with(&[DISK], |config| {
        config.limits.nop_interval_s = seconds;
        config.limits.nop_timeout_s = seconds;
    })
}

#[test]
fn an_initiator_that_takes_long_over_one_pdu_is_not_dropped() {
    let target = with_limits_of(3);
    let mut session = target.session(1);
    let data = [0x5a; 8 * BLOCK_BYTES];
    let command = session.number(&write(0, 0, data.len()));
    let bytes = session.connection().encode(&InitiatorPdu::ScsiCommand(command), &data);
    // Nine seconds, longer than a silent initiator is given with two ticks of a second.
    for piece in bytes.chunks(bytes.len() / 9) {
        session.connection().send_bytes(piece).expect("still connected");
        thread::sleep(Duration::from_secs(1));
    }
    loop {
        match session.receive().expect("still connected").0 {
            // One that was held up for so long is asked whether it lives.
            TargetPdu::NopIn(_) => {}
            TargetPdu::ScsiResponse(response) => break assert_eq!(response.status, 0),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn an_initiator_that_takes_long_to_take_its_data_is_not_dropped() {
    const BLOCKS: u32 = 8192;
    let target = impatient();
    let mut session = target.session(1);
    // 24 MiB: more than both sockets hold, so that the pings wait behind it.
    for at in 0..6 {
        session.command(&read(0, at * u64::from(BLOCKS), BLOCKS), &[]).expect("sent");
    }
    let mut received = 0;
    while received < 6 * BLOCKS as usize * BLOCK_BYTES {
        // 256 KiB in 50 ms: all takes 5 s, longer than a silent initiator is given.
        let (pdu, data) = session.connection().receive().expect("still connected");
        received += data.len();
        match pdu {
            TargetPdu::ScsiDataIn(_) => thread::sleep(Duration::from_millis(50)),
            TargetPdu::NopIn(_) => {}
            other => panic!("{other:?}"),
        }
    }
    let tag = session.command(&read(0, 0, 1), &[]).expect("sent");
    loop {
        let (pdu, _) = session.connection().receive().expect("the session goes on");
        if matches!(pdu, TargetPdu::ScsiDataIn(pdu) if pdu.initiator_task_tag == tag) {
            break;
        }
    }
}

#[test]
fn a_silent_initiator_is_dropped() {
    let target = impatient();
    let mut session = target.session(1);
    let peer = session.connection().local_address().expect("an address");
    let (pdu, _) = session.connection().receive().expect("a ping");
    assert!(matches!(pdu, TargetPdu::NopIn(_)));
    let (pdu, _) = session.connection().receive().expect("it is told that it is being dropped");
    assert!(matches!(pdu, TargetPdu::AsynchronousMessage(message) if message.event == 3), "{pdu:?}");
    assert_eq!(session.connection().drain(LIMIT).expect("closed"), 0);
    assert!(target.log_about(peer, "NOP-In").starts_with("WARN"));
}

#[test]
fn a_discovery_session_is_replaced_by_one_of_the_same_port_only() {
    let target = InProcess::start(&[DISK]);
    let discovery = |port| {
        let options = LoginOptions { target_name: None, ..target.options(port) };
        Raw::login(target.portal(), &options).expect("a discovery session")
    };
    let (mut first, mut other) = (discovery(1), discovery(2));
    let _normal = target.session(1);
    let _second = discovery(1);
    assert_eq!(first.connection().drain(LIMIT).expect("the first is closed"), 0);
    // Neither the session of another port nor the normal one has gone; and pings are not for discovery sessions.
    let nop = NopOut {
        immediate: true,
        initiator_task_tag: other.new_tag(),
        cmd_sn: other.cmd_sn,
        ..NopOut::default()
    };
    other.send(&InitiatorPdu::NopOut(nop), &[]).expect("sent");
    assert!(matches!(other.receive().expect("an answer").0, TargetPdu::Reject(_)));
}

/// 7.4.2.2: one that names a target has that target's end, as a normal session has, whatever portal it came through.
#[test]
fn a_named_discovery_session_is_replaced_by_any_of_the_same_identity() {
    let target = InProcess::start(&[DISK]);
    let named = |port: u8| {
        let mut connection = Connection::open(target.portal()).expect("a connection");
        let mut keys = Vec::new();
        text::push(&mut keys, "InitiatorName", &target.options(port).initiator_name);
        text::push(&mut keys, "SessionType", "Discovery");
        text::push(&mut keys, "TargetName", target.name());
        let login = LoginRequest {
            isid: Isid([0x80, 0x12, 0x34, 0x56, 0, port]),
            ..login_request(LoginStage::Operational, LoginStage::FullFeature)
        };
        connection.send(&InitiatorPdu::LoginRequest(login), &keys).expect("sent");
        let (pdu, _) = connection.receive().expect("an answer");
        assert!(matches!(pdu, TargetPdu::LoginResponse(pdu) if pdu.status_class == 0), "{pdu:?}");
        connection
    };
    let mut normal = target.session(2);
    let (mut first, mut other) = (named(1), named(3));
    let mut second = named(1);
    assert_eq!(first.drain(LIMIT).expect("it is replaced by its like"), 0);
    let _normal = target.session(1);
    assert_eq!(second.drain(LIMIT).expect("it is replaced by a normal session"), 0);
    let _named = named(2);
    normal.ends().expect("a normal session is replaced as well");
    other.drain(Duration::from_millis(200)).expect_err("another initiator port is another session");
}

#[test]
fn a_named_discovery_session_is_told_of_targets() {
    let target = InProcess::start(&[DISK]);
    let mut connection = Connection::open(target.portal()).expect("a connection");
    let mut keys = Vec::new();
    text::push(&mut keys, "InitiatorName", "iqn.2026-11.io.lunette:tests");
    text::push(&mut keys, "SessionType", "Discovery");
    text::push(&mut keys, "TargetName", target.name());
    let login = login_request(LoginStage::Operational, LoginStage::FullFeature);
    connection.send(&InitiatorPdu::LoginRequest(login), &keys).expect("sent");
    let (TargetPdu::LoginResponse(response), _) = connection.receive().expect("an answer") else {
        panic!("no login response")
    };
    assert_eq!(response.status_class, 0);
    let request = TextRequest {
        immediate: true,
        is_final: true,
        initiator_task_tag: InitiatorTaskTag(1),
        target_transfer_tag: TargetTransferTag::RESERVED,
        ..TextRequest::default()
    };
    let mut wish = Vec::new();
    text::push(&mut wish, "SendTargets", "All");
    connection.send(&InitiatorPdu::TextRequest(request), &wish).expect("sent");
    let (pdu, answer) = connection.receive().expect("an answer");
    assert!(matches!(pdu, TargetPdu::TextResponse(_)), "{pdu:?}");
    let pairs = text::pairs(&answer).expect("text");
    assert!(pairs.contains(&("TargetName", target.name())), "{pairs:?}");
}
