//! What is no data: pings, keepalive, text, immediate requests, the command window, tags, PDUs that cannot be (RFC 7143,
//! 4.2.2.1, 6.4, 7.3, 11.10, 11.18, 11.19, appendix C).

use std::net::TcpListener;
use std::thread;
use std::time::{Duration, Instant};

use lunette_block::{EngineKind, OperationKind};
use lunette_iscsi::session::IMMEDIATE_TASKS_MAX;
use lunette_target::config::{ChapConfig, Config, LunFlag, TargetConfig};
use lunette_tests::in_process::{InProcess, LIMIT, wait_until};
use lunette_tests::initiator::{Command, Initiator, LoginOptions, cdb};
use lunette_tests::raw::{BLOCK_BYTES, Raw, plain, read, write};
use lunette_tests::skip;
use lunette_wire::initiator::{
    LoginRequest, LogoutReason, NopOut, ScsiCommand, SnackRequest, TaskAttribute, TextRequest,
};
use lunette_wire::target::{NopIn, RejectReason};
use lunette_wire::{CmdSn, InitiatorPdu, InitiatorTaskTag, TargetPdu, TargetTransferTag, text};

use crate::DISK;

/// NOP-Out as a ping request, in its turn or at once, and as no request (11.18, 11.19).
#[test]
fn a_ping_is_echoed_and_cut_to_what_the_initiator_takes() {
    let target = InProcess::start(&[DISK]);
    let options = target.options_with(1, &[("MaxRecvDataSegmentLength", "512")]);
    let mut session = Raw::ready(target.portal(), &options, 0).expect("a login");
    let data: Vec<u8> = (0..8192_u32).map(|index| (index / 3) as u8).collect();
    for length in [0, 1, 2, 3, 511, 512, 513, 8192] {
        let tag = session.ping(&data[..length]).expect("sent");
        session.pinged(tag, &data[..length.min(512)]).unwrap_or_else(|error| panic!("{length}: {error:#}"));
    }
    let ordered = NopOut {
        initiator_task_tag: session.new_tag(),
        target_transfer_tag: TargetTransferTag::RESERVED,
        cmd_sn: session.cmd_sn,
        exp_stat_sn: session.exp_stat_sn,
        ..NopOut::default()
    };
    session.cmd_sn = session.cmd_sn.next();
    session.send(&InitiatorPdu::NopOut(ordered), b"in its turn").expect("sent");
    session.pinged(ordered.initiator_task_tag, b"in its turn").expect("an echo");
    // One that wants no answer has none.
    let mute = NopOut { immediate: true, initiator_task_tag: InitiatorTaskTag::RESERVED, ..ordered };
    session.send(&InitiatorPdu::NopOut(mute), b"").expect("sent");
    session.silent().expect("no answer");
    assert_eq!(session.test_unit_ready(0).expect("the next number").status, 0);
}

/// Whoever announces much data and does not send it holds no more memory by that than the pool has (docs/decisions/0006): there a
/// ping is rejected, and may be sent again (11.17.1).
#[test]
fn what_pings_announce_is_bounded() {
    const PINGS: u8 = 16;
    // As much as may wait to be read by its peer.
    const LENGTH: usize = 256 << 10;
    const POOL_BYTES: usize = 4 << 20;
    let target = InProcess::start_with(&[DISK], |config| {
        config.limits.buffer_memory_bytes = POOL_BYTES as u64;
        config.limits.max_recv_data_segment_length_bytes = 2 * LENGTH as u32;
    });
    let mut sessions: Vec<Raw> = (0..PINGS).map(|port| target.session(port)).collect();
    let mut rests = Vec::new();
    let encoded = |session: &mut Raw, length: usize| {
        let ping = NopOut {
            immediate: true,
            initiator_task_tag: session.new_tag(),
            target_transfer_tag: TargetTransferTag::RESERVED,
            cmd_sn: session.cmd_sn,
            exp_stat_sn: session.exp_stat_sn,
            ..NopOut::default()
        };
        session.connection().encode(&InitiatorPdu::NopOut(ping), &vec![7; length])
    };
    for session in &mut sessions {
        let bytes = encoded(session, LENGTH);
        session.connection().send_bytes(&bytes[..1024]).expect("sent");
        rests.push(bytes[1024..].to_vec());
    }
    wait_until("some have memory", || target.buffer_bytes_in_use() > 0);
    thread::sleep(Duration::from_millis(200));
    let held = target.buffer_bytes_in_use();
    assert!((LENGTH..=POOL_BYTES / 2).contains(&held), "{held}");
    let mut rejected = 0;
    for (session, rest) in sessions.iter_mut().zip(rests) {
        session.connection().send_bytes(&rest).expect("sent");
        match session.receive().expect("an answer") {
            (TargetPdu::NopIn(_), echo) => assert!(!echo.is_empty() && echo.iter().all(|byte| *byte == 7)),
            (TargetPdu::Reject(reject), _) => {
                assert_eq!(reject.reason, RejectReason::ImmediateCommandReject as u8);
                rejected += 1;
            }
            (other, _) => panic!("{other:?}"),
        }
        let tag = session.ping(b"short").expect("sent");
        session.pinged(tag, b"short").expect("the session goes on");
    }
    assert!((1..PINGS).contains(&rejected), "{rejected}");
    target.wait_for_its_buffers();
    let too_long = encoded(&mut sessions[0], LENGTH + 512);
    sessions[0].connection().send_bytes(&too_long).expect("sent");
    match sessions[0].receive().expect("an answer") {
        (TargetPdu::Reject(reject), _) => {
            assert_eq!(reject.reason, RejectReason::ImmediateCommandReject as u8);
        }
        (other, _) => panic!("{other:?}"),
    }
}

/// A failing NOP tells of a failing connection (7.14, 11.19).
#[test]
fn a_mute_initiator_is_dropped_and_one_that_answers_stays() {
    let target = InProcess::start_with(&[DISK], |config| {
        config.limits.nop_interval_s = 1;
        config.limits.nop_timeout_s = 5;
    });
    let (mut mute, mut answering) = (target.session(1), target.session(2));
    let peer = mute.connection().local_address().expect("an address");
    let closed = thread::spawn(move || mute.connection().drain(LIMIT).expect("the mute one is dropped"));
    let mut pings = 0;
    while !closed.is_finished() || pings < 2 {
        let ping = nop_in(&mut answering);
        answer_ping(&mut answering, &ping);
        pings += 1;
    }
    assert_eq!(
        closed.join().expect("closed"),
        2 * lunette_wire::BHS_LENGTH,
        "one ping, and the notice of the end"
    );
    assert!(target.log_about(peer, "no answer to a NOP-In").starts_with("WARN"));
    let tag = answering.ping(b"alive").expect("sent");
    loop {
        let pdu = nop_in(&mut answering);
        if pdu.initiator_task_tag == tag {
            break;
        }
        answer_ping(&mut answering, &pdu);
    }
}

/// A ping waits behind all that was read before it: who takes that is alive, however slowly, and says nothing else.
#[test]
fn who_takes_answers_slowly_and_says_nothing_stays() {
    const READ_BLOCKS: u32 = 4096;
    const READS: usize = 60;
    let target = InProcess::start_with(&["mem:64M"], |config| {
        config.limits.nop_interval_s = 1;
        config.limits.nop_timeout_s = 4;
    });
    let mut reader = Initiator::login(target.portal(), &target.options(1)).expect("a login");
    reader.make_ready(0).expect("a ready unit");
    // Much more than the buffers of both sockets have.
    let data_in_bytes = READ_BLOCKS * BLOCK_BYTES as u32;
    for _ in 0..READS {
        let read = Command { cdb: cdb::read(0, READ_BLOCKS), data_in_bytes, ..Command::default() };
        reader.submit(read).expect("a place in the window");
    }
    let (began, mut missing) = (Instant::now(), READS * data_in_bytes as usize);
    while missing > 0 {
        match reader.connection().receive().expect("it is not dropped") {
            (TargetPdu::ScsiDataIn(_), data) => missing -= data.len(),
            // Its pings come behind what was read before them.
            (TargetPdu::NopIn(_), _) => {}
            (other, _) => panic!("{missing} bytes before the end: {other:?}"),
        }
        if began.elapsed() < Duration::from_secs(8) {
            thread::sleep(Duration::from_millis(150));
        }
    }
    // What was read goes out in any case; a session that had been given up would end behind it.
    reader.ping(b"still here").expect("the session goes on");
}

fn nop_in(session: &mut Raw) -> NopIn {
    let (pdu, _) = session.receive().expect("a NOP-In");
    let TargetPdu::NopIn(pdu) = pdu else { panic!("{pdu:?}") };
    pdu
}

fn answer_ping(session: &mut Raw, ping: &NopIn) {
    assert_ne!(ping.target_transfer_tag, TargetTransferTag::RESERVED, "it wants an answer");
    assert_eq!(ping.initiator_task_tag, InitiatorTaskTag::RESERVED);
    assert_eq!(ping.lun, lunette_wire::LunField::default(), "LUN 0 goes with the tag (11.19.3)");
    let answer = NopOut {
        immediate: true,
        lun: ping.lun,
        initiator_task_tag: InitiatorTaskTag::RESERVED,
        target_transfer_tag: ping.target_transfer_tag,
        cmd_sn: session.cmd_sn,
        exp_stat_sn: session.exp_stat_sn,
    };
    session.send(&InitiatorPdu::NopOut(answer), &[]).expect("sent");
}

/// One text negotiation to its end; the answers' PDUs are counted.
fn text_of(session: &mut Raw, request: &[(&str, &str)]) -> (Vec<(String, String)>, usize) {
    let mut data = Vec::new();
    request.iter().for_each(|(key, value)| text::push(&mut data, key, value));
    let initiator_task_tag = session.new_tag();
    let mut target_transfer_tag = TargetTransferTag::RESERVED;
    let (mut whole, mut count) = (Vec::new(), 0);
    loop {
        let pdu = TextRequest {
            immediate: true,
            is_final: true,
            initiator_task_tag,
            target_transfer_tag,
            cmd_sn: session.cmd_sn,
            exp_stat_sn: session.exp_stat_sn,
            ..TextRequest::default()
        };
        session.send(&InitiatorPdu::TextRequest(pdu), &data).expect("sent");
        let (TargetPdu::TextResponse(answer), bytes) = session.receive().expect("an answer") else {
            panic!("no text");
        };
        assert!(bytes.len() <= 512, "{} bytes where the initiator takes 512", bytes.len());
        assert_eq!(answer.initiator_task_tag, initiator_task_tag);
        whole.extend(bytes);
        count += 1;
        if answer.is_final {
            assert!(!answer.is_continued);
            assert_eq!(answer.target_transfer_tag, TargetTransferTag::RESERVED);
            break;
        }
        assert!(answer.is_continued && answer.target_transfer_tag != TargetTransferTag::RESERVED);
        target_transfer_tag = answer.target_transfer_tag;
        data.clear();
    }
    let pairs = text::pairs(&whole).expect("a text");
    (pairs.into_iter().map(|(key, value)| (key.to_owned(), value.to_owned())).collect(), count)
}

const OTHER_TARGETS: usize = 20;

fn other_name(index: usize) -> String {
    format!("iqn.2026-11.io.lunette:one-of-many-{index}-{}", "x".repeat(100))
}

/// Many targets and several portals, so that their list does not fit into one PDU.
fn many_targets(portals: usize) -> InProcess {
    InProcess::start_with(&[DISK], |config: &mut Config| {
        config.portals = vec![config.portals[0]; portals];
        config.targets.extend((0..OTHER_TARGETS).map(|index| {
            let flag: LunFlag = "mem:1M".parse().expect("a good flag");
            let units = LunFlag::number_all(vec![flag]).expect("a free number");
            assert_eq!(units[0].engine, EngineKind::Auto);
            let (chap, access) = (ChapConfig::default(), Vec::new());
            TargetConfig {
                name: other_name(index),
                alias: None,
                units,
                chap,
                access,
                port_groups: Vec::new(),
                groups: Vec::new(),
                scsi_events: false,
                redirect: None,
            }
        }));
    })
}

/// SendTargets=All (appendix C), and a text in several PDUs (6.1, 11.10.2, 11.11).
#[test]
fn discovery_lists_all_targets_however_long_that_is() {
    const PORTALS: usize = 4;
    let target = many_targets(PORTALS);
    let options =
        LoginOptions { target_name: None, ..target.options_with(1, &[("MaxRecvDataSegmentLength", "512")]) };
    let mut session = Raw::login(target.portal(), &options).expect("a discovery session");
    let (pairs, count) = text_of(&mut session, &[("SendTargets", "All")]);
    assert!(count > 10, "{count} PDUs");
    let mut names: Vec<_> =
        pairs.iter().filter(|(key, _)| key == "TargetName").map(|(_, value)| value.clone()).collect();
    names.sort();
    let mut wanted: Vec<_> = (0..OTHER_TARGETS).map(other_name).chain([target.name().to_owned()]).collect();
    wanted.sort();
    assert_eq!(names, wanted);
    let addresses = pairs.iter().filter(|(key, _)| key == "TargetAddress").count();
    assert_eq!(addresses, PORTALS * wanted.len());
    let first = format!("{},1", target.portal());
    assert_eq!(
        (pairs[1].0.as_str(), &pairs[1].1),
        ("TargetAddress", &first),
        "the portal that works comes first"
    );
    // Nothing but SendTargets and a logout has a place here (4.3).
    let command = session.number(&plain());
    session.send(&InitiatorPdu::ScsiCommand(command), &[]).expect("sent");
    session.rejected(&command.encode(0)).expect("a Reject");
    assert_eq!(text_of(&mut session, &[("SendTargets", "All")]).0, pairs, "it goes on");
    let tag = session.log_out(LogoutReason::CloseSession, 0).expect("sent");
    assert_eq!(session.logged_out(tag).expect("an answer"), 0);
}

/// TargetAddress with addresses of both versions (appendix C, 13.8).
#[test]
fn discovery_lists_portals_of_both_ip_versions() {
    if TcpListener::bind("[::1]:0").is_err() {
        skip!("this machine has no IPv6 loopback address");
    }
    let target = InProcess::start_with(&[DISK], |config: &mut Config| {
        config.portals.push("[::1]:0".parse().expect("an address"));
    });
    let mut wanted: Vec<_> = target.portals().iter().map(|portal| format!("{portal},1")).collect();
    for &portal in target.portals() {
        let options = LoginOptions { target_name: None, ..target.options(1) };
        let mut session = Raw::login(portal, &options).expect("a discovery session");
        let (pairs, _) = text_of(&mut session, &[("SendTargets", "All")]);
        let addresses: Vec<_> = pairs.into_iter().skip(1).map(|(_, address)| address).collect();
        assert_eq!(addresses, wanted);
        wanted.reverse();
    }
}

/// SendTargets in a normal session (appendix C); a key that is not understood (6.2).
#[test]
fn a_normal_session_is_told_of_its_own_target_only() {
    const PORTALS: usize = 24;
    let target = many_targets(PORTALS);
    let options = target.options_with(1, &[("MaxRecvDataSegmentLength", "512")]);
    let mut session = Raw::ready(target.portal(), &options, 0).expect("a login");
    let (pairs, count) = text_of(&mut session, &[("SendTargets", "")]);
    assert!(count > 1, "{count} PDUs");
    assert_eq!(pairs[0], ("TargetName".to_owned(), target.name().to_owned()));
    assert_eq!(pairs.len(), 1 + PORTALS);
    assert_eq!(text_of(&mut session, &[("SendTargets", target.name())]).0, pairs);
    assert_eq!(text_of(&mut session, &[("SendTargets", &other_name(3))]).0, []);
    assert_eq!(text_of(&mut session, &[("SendTargets", "All")]).0, []);
    let (pairs, _) = text_of(&mut session, &[("X-io.lunette.test", "1")]);
    assert_eq!(pairs, [("X-io.lunette.test".to_owned(), "NotUnderstood".to_owned())]);
}

/// What is sent for immediate delivery may be rejected for want of room (4.2.2.1, 11.17.1).
#[test]
fn immediate_commands_are_bounded() {
    const MORE: usize = 5;
    let target = InProcess::start(&[DISK]);
    let mut session = target.session(1);
    target.hold(0, OperationKind::Read);
    let immediate = ScsiCommand { immediate: true, ..read(0, 0, 1) };
    let mut taken: Vec<_> =
        (0..IMMEDIATE_TASKS_MAX).map(|_| session.command(&immediate, &[]).expect("sent")).collect();
    for _ in 0..MORE {
        let command = session.number(&immediate);
        session.send(&InitiatorPdu::ScsiCommand(command), &[]).expect("sent");
        let reason = session.rejected(&command.encode(0)).expect("a Reject");
        assert_eq!(reason, RejectReason::ImmediateCommandReject as u8);
    }
    // Those with a number have their own bound.
    taken.push(session.read(0, 0, 1).expect("sent"));
    session.silent().expect("all are in the store");
    target.faults(0).clear();
    for _ in 0..taken.len() {
        let (TargetPdu::ScsiDataIn(pdu), _) = session.receive().expect("data") else { panic!("no data") };
        assert_eq!(pdu.status, Some(0));
        let index = taken.iter().position(|tag| *tag == pdu.initiator_task_tag).expect("one of ours, once");
        taken.swap_remove(index);
    }
    let tag = session.command(&immediate, &[]).expect("sent");
    session.data_in(tag).expect("there is room again");
}

/// What is outside the range from ExpCmdSN to MaxCmdSN is ignored (4.2.2.1).
#[test]
fn commands_outside_the_window_are_ignored_until_it_has_moved() {
    const DEPTH: usize = 4;
    let target = InProcess::start_with(&[DISK], |config| config.limits.window_depth = DEPTH as u16);
    let mut session = target.session(1);
    target.hold(0, OperationKind::Read);
    let mut tags: Vec<_> = (0..DEPTH).map(|_| session.read(0, 0, 1).expect("sent")).collect();
    let beyond = session.number(&write(0, 0, BLOCK_BYTES));
    session.send(&InitiatorPdu::ScsiCommand(beyond), &[0xaa; BLOCK_BYTES]).expect("sent");
    session.silent().expect("not a word about it");
    assert_eq!(session.max_cmd_sn().next(), session.exp_cmd_sn(), "the window is closed");
    // Numbers that were there already.
    let old = ScsiCommand { initiator_task_tag: InitiatorTaskTag(0x99), ..beyond };
    for back in 1..=DEPTH as u32 + 1 {
        let old = ScsiCommand { cmd_sn: CmdSn(beyond.cmd_sn.0.wrapping_sub(back)), ..old };
        session.send(&InitiatorPdu::ScsiCommand(old), &[0xaa; BLOCK_BYTES]).expect("sent");
    }
    session.silent().expect("not a word about them");
    target.faults(0).clear();
    while !tags.is_empty() {
        let (TargetPdu::ScsiDataIn(pdu), _) = session.receive().expect("data") else { panic!("no data") };
        tags.retain(|tag| *tag != pdu.initiator_task_tag);
    }
    session.silent().expect("what was ignored is not remembered");
    assert_eq!(target.faults(0).calls(OperationKind::Write), 0);
    session.send(&InitiatorPdu::ScsiCommand(beyond), &[0xaa; BLOCK_BYTES]).expect("sent");
    session.good(beyond.initiator_task_tag).expect("now it is taken");
}

/// Initiator Task Tags are unique among those in use (11.2.1.8); what is rejected has not been received (7.3).
#[test]
fn a_tag_in_use_cannot_be_used_and_a_free_one_can() {
    let target = InProcess::start(&[DISK]);
    let mut session = target.session(1);
    target.hold(0, OperationKind::Read);
    let first = session.number(&read(0, 0, 1));
    session.send(&InitiatorPdu::ScsiCommand(first), &[]).expect("sent");
    let second = session
        .number(&ScsiCommand { initiator_task_tag: first.initiator_task_tag, ..write(0, 0, BLOCK_BYTES) });
    session.send(&InitiatorPdu::ScsiCommand(second), &[0xaa; BLOCK_BYTES]).expect("sent");
    let reason = session.rejected(&second.encode(BLOCK_BYTES)).expect("a Reject");
    assert_eq!(reason, RejectReason::InvalidPduField as u8);
    // Its number is still to come (7.3).
    session.cmd_sn = second.cmd_sn;
    target.faults(0).clear();
    session.data_in(first.initiator_task_tag).expect("the first is not harmed");
    let again =
        session.number(&ScsiCommand { initiator_task_tag: first.initiator_task_tag, ..read(0, 0, 1) });
    session.send(&InitiatorPdu::ScsiCommand(again), &[]).expect("sent");
    session.data_in(again.initiator_task_tag).expect("the tag is free");
    let reserved = session.number(&ScsiCommand { initiator_task_tag: InitiatorTaskTag::RESERVED, ..plain() });
    session.send(&InitiatorPdu::ScsiCommand(reserved), &[]).expect("sent");
    let reason = session.rejected(&reserved.encode(0)).expect("a Reject");
    assert_eq!(reason, RejectReason::InvalidPduField as u8);
    session.cmd_sn = reserved.cmd_sn;
    assert_eq!(session.test_unit_ready(0).expect("the same number").status, 0);
}

/// Reject, and its reasons (7.3, 11.17.1); a Login Request in full feature phase (7.13).
#[test]
fn what_no_target_understands_is_rejected() {
    let target = InProcess::start(&[DISK]);
    let mut session = target.session(1);
    // An opcode without a meaning, one of the vendors' range, and one that only targets send.
    for opcode in [0x07, 0x1c, 0x21] {
        let mut header = [0; lunette_wire::BHS_LENGTH];
        header[..2].copy_from_slice(&[0x40 | opcode, 0x80]);
        header[24..28].copy_from_slice(&session.cmd_sn.0.to_be_bytes());
        session.connection().send_bytes(&header).expect("sent");
        let reason = session.rejected(&header).expect("a Reject");
        assert_eq!(reason, RejectReason::CommandNotSupported as u8, "{opcode:#x}");
    }
    let snack = SnackRequest {
        kind: 1,
        lun: lunette_wire::LunField::default(),
        initiator_task_tag: InitiatorTaskTag::RESERVED,
        target_transfer_tag: TargetTransferTag::RESERVED,
        exp_stat_sn: session.exp_stat_sn,
        begin_run: 0,
        run_length: 0,
    };
    session.send(&InitiatorPdu::SnackRequest(snack), &[]).expect("sent");
    assert_eq!(session.rejected(&snack.encode()).expect("a Reject"), RejectReason::SnackReject as u8);
    let login = LoginRequest { transit: true, ..LoginRequest::default() };
    session.send(&InitiatorPdu::LoginRequest(login), &[]).expect("sent");
    assert_eq!(session.rejected(&login.encode(0)).expect("a Reject"), RejectReason::ProtocolError as u8);
    assert_eq!(session.test_unit_ready(0).expect("the session goes on").status, 0);
}

/// Commands are delivered in the order of CmdSN, however they arrive (4.2.2.1).
#[test]
fn commands_run_in_the_order_of_their_numbers() {
    let target = InProcess::start(&[DISK]);
    let mut session = target.session(1);
    let commands: Vec<_> = (0..16)
        .map(|_| session.number(&ScsiCommand { attribute: TaskAttribute::Ordered, ..plain() }))
        .collect();
    for command in commands.iter().rev() {
        session.send(&InitiatorPdu::ScsiCommand(*command), &[]).expect("sent");
    }
    for command in &commands {
        session.good(command.initiator_task_tag).expect("the next one");
    }
}

/// Serial Number Arithmetic (4.2.2.1).
#[test]
fn command_numbers_wrap() {
    let target = InProcess::start(&[DISK]);
    let options = LoginOptions { first_cmd_sn: CmdSn(u32::MAX - 4), ..target.options(1) };
    let mut session = Raw::ready(target.portal(), &options, 0).expect("a login");
    let mut commands: Vec<_> = (0..8).map(|_| session.number(&plain())).collect();
    assert!(commands[0].cmd_sn.0 > commands[7].cmd_sn.0);
    // Those behind the wrap first.
    commands.rotate_left(4);
    for command in &commands {
        session.send(&InitiatorPdu::ScsiCommand(*command), &[]).expect("sent");
    }
    commands.rotate_right(4);
    for command in &commands {
        session.good(command.initiator_task_tag).expect("the next one");
    }
}
