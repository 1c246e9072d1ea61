//! Little memory, initiators that do not read, and the end of the server while they are there (RFC 7143, 4.2.2.1, 7.5.2, 11.9.1;
//! SAM-5, TASK SET FULL).

use std::collections::BTreeSet;
use std::time::Duration;

use lunette_block::OperationKind;
use lunette_block::fault::{Effect, Rule, When};
use lunette_tests::in_process::InProcess;
use lunette_tests::raw::{BLOCK_BYTES, Raw, lun_field, plain, read, write};
use lunette_wire::initiator::{LogoutReason, ScsiCommand, TaskManagementFunction};
use lunette_wire::{InitiatorPdu, TargetPdu, TargetTransferTag};

use crate::{A_WHILE, DISK, SESSION_DROP, TASK_SET_FULL, event, ready_session};

/// AsyncEvent 1: the target asks for a logout (11.9.1).
const LOGOUT_REQUEST: u8 = 1;

fn expect_logout_request(session: &mut Raw, seconds: u16) {
    let (pdu, _) = session.receive().expect("a message");
    let TargetPdu::AsynchronousMessage(message) = pdu else { panic!("{pdu:?}") };
    assert_eq!((message.event, message.parameters[2]), (LOGOUT_REQUEST, seconds));
}

/// AsyncEvent 1 asks for a logout within so many seconds (11.9.1, 7.5.2).
#[test]
fn while_it_drains_sessions_are_served_until_they_log_out() {
    let target = InProcess::start_with(&[DISK], |config| config.limits.drain_timeout_s = 30);
    let mut sessions = [target.session(1), target.session(2), target.session(3)];
    target.hold(0, OperationKind::Write);
    let held = sessions[0].write(0, 0, &[0xaa; BLOCK_BYTES]).expect("sent");
    target.wait_for_calls(0, OperationKind::Write, 1);
    target.drain();
    for session in &mut sessions {
        expect_logout_request(session, 30);
        let tag = session.read(0, 8, 1).expect("sent");
        session.data_in(tag).expect("commands are served");
    }
    assert!(Raw::login(target.portal(), &target.options(4)).is_err(), "nobody new is let in");
    target.faults(0).clear();
    sessions[0].good(held).expect("running commands end");
    for mut session in sessions {
        let tag = session.log_out(LogoutReason::CloseSession, 0).expect("sent");
        assert_eq!(session.logged_out(tag).expect("an answer"), 0);
    }
    target.end().expect("an end").expect("a clean one");
}

/// AsyncEvent 1, and 3 when nobody has logged out (11.9.1).
#[test]
fn who_ignores_the_logout_request_is_dropped_in_the_end() {
    let target = InProcess::start_with(&[DISK], |config| config.limits.drain_timeout_s = 1);
    let mut session = target.session(1);
    let peer = session.connection().local_address().expect("an address");
    target.drain();
    expect_logout_request(&mut session, 1);
    assert_eq!(event(&mut session), SESSION_DROP);
    session.ends().expect("a closed connection");
    assert!(target.log_about(peer, "no logout").starts_with("WARN"));
    target.end().expect("an end").expect("a clean one");
}

/// The tasks of a lost connection are terminated (7.6), but what a store has begun is waited for.
#[test]
fn a_drain_waits_for_the_store_of_a_session_that_is_gone() {
    let target = InProcess::start(&[DISK]);
    let mut session = target.session(1);
    target.hold(0, OperationKind::Write);
    session.write(0, 0, &[0xaa; BLOCK_BYTES]).expect("sent");
    target.wait_for_calls(0, OperationKind::Write, 1);
    drop(session);
    let faults = target.faults(0).clone();
    target.drain();
    let end = std::thread::spawn(move || target.end().expect("an end"));
    std::thread::sleep(A_WHILE);
    assert!(!end.is_finished(), "it ended while a write was on its way");
    faults.clear();
    end.join().expect("no panic").expect("a clean end");
}

/// TASK SET FULL (SAM-5), after all its unsolicited data (4.2.5.2); the window may narrow, but not backwards (4.2.2.1).
#[test]
fn without_memory_a_command_is_to_be_tried_again() {
    let target = InProcess::start_with(&[DISK], |config| config.limits.buffer_memory_bytes = 128 << 10);
    let keys = [("InitialR2T", "No"), ("FirstBurstLength", "16384")];
    let mut session = Raw::ready(target.portal(), &target.options_with(1, &keys), 0).expect("a login");
    target.hold(0, OperationKind::Read);
    let mut held = BTreeSet::from([0, 64].map(|lba| session.read(0, lba, 64).expect("sent").0));
    target.wait_for_calls(0, OperationKind::Read, 2);
    // Both reads together have what one session alone may have: half.
    let data = [0xaa; 8192];
    let full = |session: &mut Raw, tag| {
        assert_eq!(session.ending(tag).expect("an answer").status, TASK_SET_FULL);
    };
    let last = session.max_cmd_sn();
    let tag = session.read(0, 0, 16).expect("sent");
    full(&mut session, tag);
    let tag = session.write(0, 0, &data).expect("sent");
    full(&mut session, tag);
    assert_eq!(session.max_cmd_sn(), last, "the window narrows");
    // Data that was announced comes all the same, and the answer waits for it.
    let command = ScsiCommand { is_final: false, ..write(0, 0, data.len()) };
    let tag = session.command(&command, &data[..1024]).expect("sent");
    session.silent().expect("the rest of the data is on its way");
    session.sequence((tag, TargetTransferTag::RESERVED), 1024, &data[1024..], 4096).expect("sent");
    full(&mut session, tag);
    // Nothing is asked for that has no place: it waits.
    let waiting = session.command(&write(0, 0, data.len()), &[]).expect("sent");
    session.waits(A_WHILE).expect("there is no memory");
    assert_eq!(session.test_unit_ready(0).expect("an answer").status, 0);
    target.faults(0).clear();
    let mut asked = None;
    while !held.is_empty() || asked.is_none() {
        match session.receive().expect("data or an R2T").0 {
            TargetPdu::ScsiDataIn(pdu) if pdu.status.is_some() => {
                assert!(held.remove(&pdu.initiator_task_tag.0));
            }
            TargetPdu::ScsiDataIn(_) => {}
            TargetPdu::ReadyToTransfer(r2t) => asked = Some(r2t),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(target.faults(0).calls(OperationKind::Write), 0);
    session.answer_r2t(&asked.expect("an R2T"), &data, 4096).expect("sent");
    session.good(waiting).expect("a write");
    let tag = session.write(0, 0, &data).expect("sent");
    session.good(tag).expect("there is memory again");
    let tag = session.read(0, 0, 16).expect("sent");
    assert!(session.data_in(tag).expect("a read").0 == data);
}

/// TASK SET FULL (SAM-5).
#[test]
fn a_command_larger_than_all_memory_is_refused_not_waited_for() {
    let target = InProcess::start_with(&[DISK], |config| config.limits.buffer_memory_bytes = 64 << 10);
    let mut session = target.session(1);
    let tag = session.read(0, 0, 1024).expect("sent");
    assert_eq!(session.ending(tag).expect("an answer").status, TASK_SET_FULL);
    let tag = session.command(&write(0, 0, 512 << 10), &[]).expect("sent");
    assert_eq!(session.ending(tag).expect("an answer").status, TASK_SET_FULL);
    let tag = session.read(0, 0, 8).expect("sent");
    session.data_in(tag).expect("nothing is lost");
}

/// No clause asks for it: what one leaves unread is no loss of the others.
#[test]
fn who_does_not_read_keeps_nobody_from_being_served() {
    const READS: u32 = 64;
    const BLOCKS: u32 = 2048;
    let target = InProcess::start_with(&["0=mem:64M,write=back"], |config| {
        config.limits.buffer_memory_bytes = 192 << 20;
        // Both on one thread.
        config.reactors.count = Some(1);
    });
    let (mut slow, mut other) = (target.session(1), target.session(2));
    let data: Vec<u8> = (0..64 << 10_u32).map(|index| (index / 5) as u8).collect();
    let tag = slow.command(&write(0, u64::from(BLOCKS), data.len()), &data).expect("sent");
    slow.good(tag).expect("a write");
    let tags: Vec<_> =
        (0..READS).map(|index| slow.read(0, u64::from(index % 32 * BLOCKS), BLOCKS).expect("sent")).collect();
    for _ in 0..100 {
        let tag = other.read(0, u64::from(BLOCKS), 128).expect("sent");
        assert!(other.data_in(tag).expect("the other is served").0 == data);
    }
    // And when it reads at last, all is there and right.
    for (index, tag) in tags.into_iter().enumerate() {
        let (bytes, _) = slow.data_in(tag).expect("data");
        assert_eq!(bytes.len(), BLOCKS as usize * BLOCK_BYTES);
        let expected = if index % 32 == 1 { &data[..] } else { &[0; 64 << 10] };
        assert!(bytes[..64 << 10] == *expected, "read {index}");
    }
}

/// Ping data is to be returned (11.18), within bounds.
#[test]
fn pings_of_one_who_does_not_read_are_not_kept_without_bound() {
    const BOUND_BYTES: usize = 128 << 20;
    let target = InProcess::start(&[DISK]);
    let (mut slow, mut other) = (target.session(1), target.session(2));
    // The target must stop reading at some time; then the sockets' buffers fill up and sending blocks.
    slow.connection().set_write_patience(Duration::from_millis(500)).expect("a limit");
    let data = vec![0x55; 256 << 10];
    let mut sent = 0;
    while sent < BOUND_BYTES && slow.ping(&data).is_ok() {
        sent += data.len();
    }
    assert!(sent < BOUND_BYTES, "{sent} bytes of pings are kept for one who does not read");
    other.silent().expect("the other is served");
}

/// The window from ExpCmdSN to MaxCmdSN (4.2.2.1) after ends, Rejects (7.3) and aborts of all kinds (11.5, 11.6.1).
#[test]
fn the_window_is_whole_again_after_all_that_can_happen_to_a_command() {
    const DEPTH: u32 = 16;
    let target = InProcess::start_with(&[DISK], |config| config.limits.window_depth = DEPTH as u16);
    let keys = [("InitialR2T", "Yes"), ("ImmediateData", "Yes")];
    let mut session = Raw::ready(target.portal(), &target.options_with(1, &keys), 0).expect("a login");
    for _ in 0..3 {
        // Good ones, failed ones, rejected ones.
        let tag = session.read(0, 0, 1).expect("sent");
        session.data_in(tag).expect("a read");
        let tag = session.read(0, 1 << 40, 1).expect("sent");
        assert_eq!(session.ending(tag).expect("an answer").codes(), (5, 0x21, 0));
        let command = session.number(&read(0, 0, 1));
        session.send(&InitiatorPdu::ScsiCommand(command), &[1; 4]).expect("sent");
        session.rejected(&command.encode(4)).expect("a Reject");
        session.cmd_sn = command.cmd_sn;
        // Aborted ones: in a store, while collecting, before their turn, before they came.
        let reads = target.faults(0).calls(OperationKind::Read);
        target.hold(0, OperationKind::Read);
        let in_store = session.number(&read(0, 0, 1));
        session.send(&InitiatorPdu::ScsiCommand(in_store), &[]).expect("sent");
        target.wait_for_calls(0, OperationKind::Read, reads + 1);
        let collecting = session.number(&write(0, 0, 4096));
        session.send(&InitiatorPdu::ScsiCommand(collecting), &[]).expect("sent");
        let r2t = session.r2t(collecting.initiator_task_tag).expect("an R2T");
        let missing = session.number(&plain());
        let parked = session.number(&plain());
        session.send(&InitiatorPdu::ScsiCommand(parked), &[]).expect("sent");
        let aborts = [in_store, collecting, parked, missing].map(|command| {
            let tags = (command.initiator_task_tag, command.cmd_sn);
            session.manage_task(TaskManagementFunction::AbortTask, 0, tags.0, tags.1).expect("sent")
        });
        session.answer_r2t(&r2t, &[0; 4096], 4096).expect("sent");
        let ping = session.ping(b"").expect("sent");
        let mut answered = BTreeSet::new();
        for _ in 0..=aborts.len() {
            match session.receive().expect("an answer").0 {
                TargetPdu::TaskManagementResponse(pdu) => {
                    assert_eq!(pdu.response, 0);
                    answered.insert(pdu.initiator_task_tag.0);
                }
                // All of it has been taken in.
                TargetPdu::NopIn(pdu) if pdu.initiator_task_tag == ping => target.faults(0).clear(),
                pdu => panic!("{pdu:?}"),
            }
        }
        assert_eq!(answered, BTreeSet::from(aborts.map(|tag| tag.0)));
        // Immediate ones.
        let tag = session.command(&ScsiCommand { immediate: true, ..read(0, 0, 1) }, &[]).expect("sent");
        session.data_in(tag).expect("a read");
        session.silent().expect("nothing is left");
        assert_eq!(session.exp_cmd_sn(), session.cmd_sn);
        assert_eq!(session.max_cmd_sn(), session.cmd_sn.plus(DEPTH - 1));
    }
}

/// No clause asks for it: what one leaves unread is no loss of the others.
#[test]
fn who_does_not_read_cannot_take_all_memory() {
    let target = InProcess::start_with(&["0=mem:64M,write=back"], |config| {
        config.limits.buffer_memory_bytes = 32 << 20;
    });
    let (mut slow, mut other) = (target.session(1), target.session(2));
    for index in 0..64 {
        slow.read(0, index % 32 * 2048, 2048).expect("sent");
    }
    std::thread::sleep(A_WHILE);
    for _ in 0..10 {
        let tag = other.read(0, 0, 128).expect("sent");
        other.data_in(tag).expect("the other is served");
    }
    let tag = other.write(0, 0, &[0xaa; 8192]).expect("sent");
    other.good(tag).expect("the other is served");
}

/// A command of many pieces, each of which is done at once, lets others go in between.
#[test]
fn a_long_command_of_short_steps_does_not_keep_its_reactor() {
    // This engine does each piece on the reactor itself.
    let target = InProcess::start_with(&["0=mem:32M,engine=sync", "1=mem:8M"], |config| {
        config.reactors.count = Some(1);
    });
    let (mut long, mut short) = (target.session(1), ready_session(&target, 2));
    let nth = |call| target.faults(0).add(Rule::new(OperationKind::Write, When::Nth(call), Effect::Hold));
    let (first, twentieth) = (nth(1), nth(20));
    // WRITE SAME (10) of 30 MiB that are not zero.
    let mut cdb = [0; 16];
    (cdb[0], cdb[7]) = (0x41, 0xf0);
    let command = ScsiCommand { cdb, ..write(0, 0, BLOCK_BYTES) };
    let tag = long.command(&command, &[0xaa; BLOCK_BYTES]).expect("sent");
    target.wait_for_calls(0, OperationKind::Write, 1);
    let other = short.command(&ScsiCommand { lun: lun_field(1), ..plain() }, &[]).expect("sent");
    std::thread::sleep(A_WHILE);
    target.faults(0).remove(first);
    short.good(other).expect("an answer while the other command still has to do the rest");
    target.faults(0).remove(twentieth);
    long.good(tag).expect("the end");
    assert_eq!(target.faults(0).calls(OperationKind::Write), 30);
}
