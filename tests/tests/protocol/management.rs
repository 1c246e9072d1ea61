//! Task management across sessions and reactors (4.2.3, 11.5, 11.6): who loses which tasks, who is told, and when the
//! answer goes out.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use lunette_block::OperationKind;
use lunette_block::fault::{Effect, Rule, When};
use lunette_target::config::TargetConfig;
use lunette_tests::in_process::{InProcess, LIMIT, wait_until};
use lunette_tests::initiator::LoginOptions;
use lunette_tests::raw::{Raw, lun_field, plain, write};
use lunette_wire::initiator::{
    ScsiCommand, ScsiDataOut, TaskManagementFunction as Function, TaskManagementRequest,
};
use lunette_wire::target::RejectReason;
use lunette_wire::{CmdSn, DataSn, InitiatorPdu, InitiatorTaskTag, LunField, TargetPdu};

use crate::{
    A_WHILE, BUS_DEVICE_RESET, COMMANDS_CLEARED, COMPLETE, DISK, SECOND_DISK, SESSION_DROP, expect_attention,
    expect_ready, ready_session as session,
};

const TASK_DOES_NOT_EXIST: u8 = 1;
const LUN_DOES_NOT_EXIST: u8 = 2;

const TASK_ABORTED: u8 = 0x40;

/// A function that `asking` has sent is in force on both reactors, and is not answered while a store has a task of it:
/// what one reactor tells another is there before the answer to a later ping.
pub(crate) fn taken_in(asking: &mut Raw, other: &mut Raw) {
    asking.silent().expect("a task is in a store");
    other.silent().expect("a task is in a store");
    asking.waits(A_WHILE).expect("a task is in a store");
}

/// Reads of two sessions on different reactors are in a store when the first one sends `function`. What comes of it
/// besides unit attentions is the same for both functions.
fn held_reads_meet(function: Function) -> (InProcess, Raw, Raw, Raw) {
    let target = InProcess::start(&[DISK, SECOND_DISK]);
    let (mut asking, mut other, idle) = (session(&target, 1), session(&target, 2), session(&target, 3));
    let hold =
        |range| target.faults(0).add(Rule::new(OperationKind::Read, When::Every, Effect::Hold).within(range));
    let (own, _others) = (hold(0..512), hold(512..1 << 20));
    asking.read(0, 0, 1).expect("sent");
    other.read(0, 1, 1).expect("sent");
    other.read(0, 8, 1).expect("sent");
    target.wait_for_calls(0, OperationKind::Read, 3);
    let tag = asking.manage(function, 0).expect("sent");
    taken_in(&mut asking, &mut other);
    target.faults(0).remove(own);
    asking.waits(A_WHILE).expect("tasks of the other session are in a store");
    // Meanwhile others are served, on the other unit and the same connection.
    let elsewhere = other.read(1, 0, 1).expect("sent");
    other.data_in(elsewhere).expect("the other unit is no concern of this");
    target.faults(0).clear();
    assert_eq!(asking.managed(tag).expect("no read is answered before"), COMPLETE);
    (target, asking, other, idle)
}

/// RFC 7143: 4.2.3.3, 11.5.1; SAM-5: 6.3 resets, 7.7 LOGICAL UNIT RESET.
#[test]
fn a_logical_unit_reset_ends_the_tasks_of_all_and_tells_all() {
    let (_target, mut asking, mut other, mut idle) = held_reads_meet(Function::LogicalUnitReset);
    for session in [&mut asking, &mut other, &mut idle] {
        expect_attention(session, 0, BUS_DEVICE_RESET);
        expect_ready(session, 1);
    }
}

/// RFC 7143: 4.2.3.3, 4.2.3.4; SAM-5: 5.6 aborting, 7.5 CLEAR TASK SET.
#[test]
fn clear_task_set_ends_the_tasks_of_all_and_tells_the_others() {
    let (_target, mut asking, mut other, mut idle) = held_reads_meet(Function::ClearTaskSet);
    // Who had no command there has lost none.
    expect_ready(&mut idle, 0);
    expect_ready(&mut asking, 0);
    expect_attention(&mut other, 0, COMMANDS_CLEARED);
    expect_ready(&mut asking, 1);
    expect_ready(&mut other, 1);
}

/// SAM-5, aborting commands; SPC-4, control mode page.
#[test]
fn with_tas_what_another_session_aborts_is_answered() {
    let target = InProcess::start(&[DISK]);
    let keys = [("InitialR2T", "Yes"), ("ImmediateData", "No")];
    let mut asking = target.session(1);
    let mut other = Raw::ready(target.portal(), &target.options_with(2, &keys), 0).expect("a login");
    // MODE SELECT (6) of the control page with TAS and queue algorithm modifier 1.
    let list = [0, 0, 0, 0, 0x0a, 0x0a, 0, 0x10, 0, 0x40, 0, 0, 0, 0, 0, 0];
    let select = ScsiCommand {
        write: true,
        expected_data_transfer_length: 16,
        cdb: [0x15, 0x10, 0, 0, 16, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
        ..plain()
    };
    let tag = asking.command(&select, &list).expect("sent");
    asking.good(tag).expect("a changeable bit");
    expect_attention(&mut other, 0, (6, 0x2a, 1));

    target.hold(0, OperationKind::Read);
    let reading = other.read(0, 0, 1).expect("sent");
    let writing = other.command(&write(0, 0, 512), &[]).expect("sent");
    let r2t = other.r2t(writing).expect("an R2T");
    let own = asking.read(0, 0, 1).expect("sent");
    target.wait_for_calls(0, OperationKind::Read, 2);
    let tag = asking.manage(Function::ClearTaskSet, 0).expect("sent");
    taken_in(&mut asking, &mut other);
    // What it was asked for it sends, and is answered then.
    other.answer_r2t(&r2t, &[0xaa; 512], 512).expect("sent");
    assert_eq!(other.ending(writing).expect("an answer").status, TASK_ABORTED);
    target.faults(0).clear();
    assert_eq!(other.ending(reading).expect("an answer").status, TASK_ABORTED);
    assert_eq!(asking.managed(tag).expect("its own read is not answered"), COMPLETE);
    expect_ready(&mut other, 0);
    let again = asking.command(&ScsiCommand { initiator_task_tag: own, ..plain() }, &[]).expect("sent");
    asking.good(again).expect("the tag is free");
    assert_eq!(target.faults(0).calls(OperationKind::Write), 0);
}

/// RFC 7143: 11.6.2.
#[test]
fn a_warm_reset_reaches_all_units_and_leaves_the_sessions() {
    let target = InProcess::start(&[DISK, SECOND_DISK]);
    let (mut asking, mut other) = (session(&target, 1), session(&target, 2));
    for lun in [0, 1] {
        target.hold(lun, OperationKind::Read);
        other.read(lun as u8, 0, 1).expect("sent");
        target.wait_for_calls(lun, OperationKind::Read, 1);
    }
    let tag = asking.manage(Function::TargetWarmReset, 0).expect("sent");
    taken_in(&mut asking, &mut other);
    target.faults(0).clear();
    asking.waits(A_WHILE).expect("a task is in the second store");
    target.faults(1).clear();
    assert_eq!(asking.managed(tag).expect("an answer"), COMPLETE);
    for session in [&mut asking, &mut other] {
        expect_attention(session, 0, BUS_DEVICE_RESET);
        expect_attention(session, 1, BUS_DEVICE_RESET);
    }
}

/// RFC 7143: 4.2.6, 11.5.1, 11.6.1.
#[test]
fn a_cold_reset_is_answered_and_ends_all_sessions() {
    let target = InProcess::start(&[DISK, SECOND_DISK]);
    let (mut asking, mut other) = (session(&target, 1), session(&target, 2));
    target.hold(0, OperationKind::Read);
    other.read(0, 0, 1).expect("sent");
    target.wait_for_calls(0, OperationKind::Read, 1);
    let tag = asking.manage(Function::TargetColdReset, 0).expect("sent");
    taken_in(&mut asking, &mut other);
    target.faults(0).clear();
    assert_eq!(asking.managed(tag).expect("an answer"), COMPLETE);
    for session in [&mut asking, &mut other] {
        match session.receive().expect("an announcement").0 {
            // Come again after DefaultTime2Wait; no task is kept (11.9.1).
            TargetPdu::AsynchronousMessage(pdu) => {
                assert_eq!((pdu.event, pdu.parameters), (SESSION_DROP, [0, 2, 0]));
            }
            other => panic!("{other:?}"),
        }
        session.ends().expect("a closed connection");
    }
    session(&target, 1).silent().expect("a new session");
}

#[test]
fn a_cold_reset_of_one_target_is_no_concern_of_another() {
    let target = InProcess::start_with(&[DISK, SECOND_DISK], |config| {
        let name = format!("{}-other", config.targets[0].name);
        config.targets.push(TargetConfig { name, ..config.targets[0].clone() });
    });
    let name = format!("{}-other", target.name());
    let options = LoginOptions { target_name: Some(name), ..target.options(1) };
    let mut other = Raw::ready(target.portal(), &options, 0).expect("a login");
    let mut asking = session(&target, 1);
    let tag = asking.manage(Function::TargetColdReset, 0).expect("sent");
    assert_eq!(asking.managed(tag).expect("an answer"), COMPLETE);
    let (announcement, _) = asking.receive().expect("an announcement");
    assert!(matches!(announcement, TargetPdu::AsynchronousMessage(_)), "{announcement:?}");
    asking.ends().expect("a closed connection");
    expect_ready(&mut other, 0);
}

#[test]
fn a_reset_finds_tasks_whatever_form_their_lun_has() {
    let target = InProcess::start(&[DISK, SECOND_DISK]);
    let (mut asking, mut other) = (session(&target, 1), session(&target, 2));
    target.hold(1, OperationKind::Read);
    asking.read(1, 0, 1).expect("sent");
    other.read(1, 0, 1).expect("sent");
    target.wait_for_calls(1, OperationKind::Read, 2);
    // Flat space addressing of LUN 1, where the reads had peripheral addressing (SAM-5, 4.7.7).
    let request = TaskManagementRequest {
        immediate: true,
        function: Function::LogicalUnitReset,
        lun: LunField([0x40, 1, 0, 0, 0, 0, 0, 0]),
        initiator_task_tag: asking.new_tag(),
        referenced_task_tag: InitiatorTaskTag::RESERVED,
        cmd_sn: asking.cmd_sn,
        exp_stat_sn: asking.exp_stat_sn,
        ref_cmd_sn: CmdSn(0),
        exp_data_sn: DataSn(0),
    };
    asking.send(&InitiatorPdu::TaskManagementRequest(request), &[]).expect("sent");
    taken_in(&mut asking, &mut other);
    target.faults(1).clear();
    assert_eq!(asking.managed(request.initiator_task_tag).expect("no read is answered"), COMPLETE);
    expect_attention(&mut asking, 1, BUS_DEVICE_RESET);
    expect_attention(&mut other, 1, BUS_DEVICE_RESET);
}

/// RFC 7143: 4.2.2.1, 4.2.3.3; SAM-5: 7.3 ABORT TASK SET.
#[test]
fn abort_task_set_is_about_one_session_and_one_unit() {
    let target = InProcess::start(&[DISK, SECOND_DISK]);
    let (mut asking, mut other) = (session(&target, 1), session(&target, 2));
    target.hold(0, OperationKind::Read);
    target.hold(1, OperationKind::Read);
    asking.read(0, 0, 1).expect("sent");
    asking.read(0, 8, 1).expect("sent");
    let elsewhere = asking.read(1, 0, 1).expect("sent");
    let others = other.read(0, 0, 1).expect("sent");
    target.wait_for_calls(0, OperationKind::Read, 3);
    target.wait_for_calls(1, OperationKind::Read, 1);
    let tag = asking.manage(Function::AbortTaskSet, 0).expect("sent");
    taken_in(&mut asking, &mut other);
    target.faults(0).clear();
    assert_eq!(asking.managed(tag).expect("an answer"), COMPLETE);
    other.data_in(others).expect("another session's read is answered");
    target.faults(1).clear();
    asking.data_in(elsewhere).expect("another unit's read is answered");
    expect_ready(&mut asking, 0);
    expect_ready(&mut other, 0);
}

/// RFC 7143: 7.11.
#[test]
fn what_is_over_cannot_be_aborted() {
    let target = InProcess::start(&[DISK]);
    let mut session = target.session(1);
    let cmd_sn = session.cmd_sn;
    let tag = session.read(0, 0, 1).expect("sent");
    session.data_in(tag).expect("a read");
    let abort = session.manage_task(Function::AbortTask, 0, tag, cmd_sn).expect("sent");
    assert_eq!(session.managed(abort).expect("an answer"), TASK_DOES_NOT_EXIST);
    let reset = session.manage(Function::LogicalUnitReset, 9).expect("sent");
    assert_eq!(session.managed(reset).expect("an answer"), LUN_DOES_NOT_EXIST);
    expect_ready(&mut session, 0);
}

#[test]
fn a_reset_in_the_middle_of_anothers_data_leaves_its_stream_whole() {
    let target = InProcess::start(&[DISK, SECOND_DISK]);
    let options = target.options_with(2, &[("InitialR2T", "Yes"), ("ImmediateData", "No")]);
    let mut asking = session(&target, 1);
    let mut writing = Raw::ready(target.portal(), &options, 0).expect("a login");
    let data = vec![0xaa; 128 << 10];
    let command = write(0, 0, data.len());
    let tag = writing.command(&command, &[]).expect("sent");
    let r2t = writing.r2t(tag).expect("an R2T");
    let pdu = ScsiDataOut {
        is_final: true,
        initiator_task_tag: tag,
        target_transfer_tag: r2t.target_transfer_tag,
        exp_stat_sn: writing.exp_stat_sn,
        ..ScsiDataOut::default()
    };
    let bytes = writing.connection().encode(&InitiatorPdu::ScsiDataOut(pdu), &data);
    let (half, rest) = bytes.split_at(bytes.len() / 2);
    writing.connection().send_bytes(half).expect("sent");
    let reset = asking.manage(Function::LogicalUnitReset, 0).expect("sent");
    assert_eq!(asking.managed(reset).expect("an answer"), COMPLETE);
    writing.connection().send_bytes(rest).expect("sent");
    writing.silent().expect("no answer to an aborted write");
    expect_attention(&mut writing, 0, BUS_DEVICE_RESET);
    let tag = writing.command(&ScsiCommand { initiator_task_tag: tag, ..command }, &[]).expect("sent");
    let r2t = writing.r2t(tag).expect("an R2T");
    writing.answer_r2t(&r2t, &data, data.len()).expect("sent");
    writing.good(tag).expect("a write under the same tag");
}

#[test]
fn resets_under_load_are_all_answered_and_leave_nothing_behind() {
    const RESETS: usize = 40;
    let target = InProcess::start(&[DISK, SECOND_DISK]);
    let delay = Effect::Delay(Duration::from_millis(1));
    target.faults(0).add(Rule::new(OperationKind::Read, When::Every, delay));
    let stop = Arc::new(AtomicBool::new(false));
    let readers: Vec<_> = (2..=4)
        .map(|port| {
            let (mut reader, told) = (target.session(port), Arc::clone(&stop));
            let window = reader.max_cmd_sn().since(reader.cmd_sn);
            thread::spawn(move || {
                while !told.load(Ordering::Relaxed) {
                    for _ in 0..8 {
                        reader.read(0, 0, 1).expect("sent");
                    }
                    until_whole(&mut reader, window);
                }
            })
        })
        .collect();
    let mut asking = session(&target, 1);
    for _ in 0..RESETS {
        let tag = asking.manage(Function::LogicalUnitReset, 0).expect("sent");
        assert_eq!(asking.managed(tag).expect("an answer"), COMPLETE);
        thread::sleep(Duration::from_millis(1));
    }
    stop.store(true, Ordering::Relaxed);
    readers.into_iter().for_each(|reader| reader.join().expect("its window became whole again each time"));
}

/// Takes what comes, and asks for more, until the command window is as wide as in the beginning.
fn until_whole(session: &mut Raw, window: u32) {
    let deadline = Instant::now() + LIMIT;
    while session.max_cmd_sn().since(session.cmd_sn) != window || session.exp_cmd_sn() != session.cmd_sn {
        assert!(Instant::now() < deadline, "commands are neither answered nor aborted");
        let ping = session.ping(b"").expect("sent");
        while !matches!(session.receive().expect("an answer").0,
            TargetPdu::NopIn(pdu) if pdu.initiator_task_tag == ping)
        {}
    }
}

#[test]
fn the_session_that_asked_may_end_before_the_answer() {
    let target = InProcess::start(&[DISK, SECOND_DISK]);
    let (mut asking, mut other) = (session(&target, 1), session(&target, 2));
    target.hold(0, OperationKind::Read);
    other.read(0, 0, 1).expect("sent");
    target.wait_for_calls(0, OperationKind::Read, 1);
    asking.manage(Function::LogicalUnitReset, 0).expect("sent");
    taken_in(&mut asking, &mut other);
    drop(asking);
    let mut again = session(&target, 1);
    target.faults(0).clear();
    // The read was aborted; whether its unit attention comes is open, but an answer to it must not.
    other.silent().expect("no answer to an aborted read");
    again.silent().expect("and none to a function of another session");
    let reset = again.manage(Function::LogicalUnitReset, 0).expect("sent");
    assert_eq!(again.managed(reset).expect("an answer"), COMPLETE);
    expect_attention(&mut other, 0, BUS_DEVICE_RESET);
}

/// Whoever asks for many and goes leaves little to be done, but not nothing.
#[test]
fn resets_by_sessions_that_have_ended_take_effect() {
    let target = InProcess::start(&[DISK, SECOND_DISK]);
    let (mut victim, mut bystander) = (session(&target, 1), session(&target, 2));
    target.hold(0, OperationKind::Write);
    victim.write(0, 0, &[0xaa; 512]).expect("sent");
    target.wait_for_calls(0, OperationKind::Write, 1);
    for port in 3..8 {
        let mut asking = session(&target, port);
        for _ in 0..32 {
            asking.manage(Function::LogicalUnitReset, 0).expect("sent");
            asking.manage(Function::ClearTaskSet, 0).expect("sent");
        }
        asking.silent().expect("a task is in a store");
    }
    bystander.silent().expect("a task is in a store");
    expect_ready(&mut bystander, 0);
    target.faults(0).clear();
    wait_until("the unit is reset", || {
        bystander.test_unit_ready(0).expect("an answer").codes() == BUS_DEVICE_RESET
    });
}

#[test]
fn a_reset_is_answered_while_the_target_drains() {
    let target = InProcess::start_with(&[DISK, SECOND_DISK], |config| config.limits.drain_timeout_s = 30);
    let mut session = session(&target, 1);
    target.drain();
    assert!(matches!(session.receive().expect("a message").0, TargetPdu::AsynchronousMessage(_)));
    // By now the reactor without sessions has nothing left to do.
    thread::sleep(A_WHILE);
    let tag = session.manage(Function::LogicalUnitReset, 0).expect("sent");
    assert_eq!(session.managed(tag).expect("an answer before the time is up"), COMPLETE);
}

/// RFC 7143: 4.2.2.1, 11.5.1.
#[test]
fn functions_that_wait_are_bounded() {
    const REQUESTS: usize = 1000;
    let target = InProcess::start(&[DISK, SECOND_DISK]);
    let (mut asking, mut other) = (session(&target, 1), session(&target, 2));
    target.hold(0, OperationKind::Read);
    other.read(0, 0, 1).expect("sent");
    target.wait_for_calls(0, OperationKind::Read, 1);
    for _ in 0..REQUESTS {
        asking.manage(Function::LogicalUnitReset, 0).expect("sent");
    }
    let ping = asking.ping(b"all there?").expect("sent");
    let mut refused = 0;
    loop {
        match asking.receive().expect("an answer").0 {
            TargetPdu::Reject(pdu) if pdu.reason == RejectReason::ImmediateCommandReject as u8 => {
                refused += 1;
            }
            TargetPdu::NopIn(pdu) if pdu.initiator_task_tag == ping => break,
            other => panic!("{other:?}"),
        }
    }
    assert!(refused > REQUESTS / 2, "only {refused} of {REQUESTS} were refused");
    target.faults(0).clear();
    for _ in refused..REQUESTS {
        let (pdu, _) = asking.receive().expect("an answer to each that was taken");
        assert!(matches!(pdu, TargetPdu::TaskManagementResponse(pdu) if pdu.response == COMPLETE), "{pdu:?}");
    }
}

#[test]
fn sessions_of_another_name_are_met_by_a_reset_too() {
    let target = InProcess::start(&[DISK, SECOND_DISK]);
    let mut asking = session(&target, 1);
    let options = LoginOptions { initiator_name: "iqn.2026-11.io.lunette:other".into(), ..target.options(1) };
    let mut other = Raw::ready(target.portal(), &options, 0).expect("a login");
    let tag = asking.manage(Function::LogicalUnitReset, 0).expect("sent");
    assert_eq!(asking.managed(tag).expect("an answer"), COMPLETE);
    let sense = other.command(&ScsiCommand { lun: lun_field(0), ..plain() }, &[]);
    assert_eq!(other.ending(sense.expect("sent")).expect("an answer").codes(), BUS_DEVICE_RESET);
}
