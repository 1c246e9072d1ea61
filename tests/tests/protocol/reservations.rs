//! Reservations over sessions and reactors: who is kept out, and whose commands a PREEMPT AND ABORT ends (SPC-4, persistent
//! reservations).

use lunette_block::OperationKind;
use lunette_tests::in_process::InProcess;
use lunette_tests::raw::{BLOCK_BYTES, Raw};
use lunette_tests::reservations::{Action, persistent_reserve_out};
use lunette_wire::TargetPdu;
use lunette_wire::initiator::TaskManagementFunction as Function;

use crate::{
    A_WHILE, COMPLETE, DISK, SECOND_DISK, expect_attention, expect_ready, pattern, ready_session as session,
};

const RESERVATION_CONFLICT: u8 = 0x18;
const REGISTRATIONS_PREEMPTED: (u8, u8, u8) = (6, 0x2a, 5);
const RESERVATIONS_RELEASED: (u8, u8, u8) = (6, 0x2a, 4);

const WRITE_EXCLUSIVE: u8 = 1;
const WRITE_EXCLUSIVE_REGISTRANTS_ONLY: u8 = 5;
const WRITE_EXCLUSIVE_ALL_REGISTRANTS: u8 = 7;

fn register(session: &mut Raw, key: u64) {
    reserve_out(session, Action::Register, 0, (0, key));
}

/// The command must be good.
fn reserve_out(session: &mut Raw, action: Action, kind: u8, keys: (u64, u64)) {
    let ending = persistent_reserve_out(session, 0, action, kind, keys).expect("an answer");
    assert_eq!(ending.status, 0, "{action:?}: {:?}", ending.codes());
}

fn write_status(session: &mut Raw) -> u8 {
    let data = pattern(BLOCK_BYTES);
    let tag = session.write(0, 9, &data).expect("sent");
    session.ending(tag).expect("an answer").status
}

#[test]
fn a_reservation_keeps_other_sessions_out_until_it_is_released() {
    let target = InProcess::start(&[DISK, SECOND_DISK]);
    let (mut holder, mut other) = (session(&target, 1), session(&target, 2));
    register(&mut holder, 1);
    register(&mut other, 2);
    reserve_out(&mut holder, Action::Reserve, WRITE_EXCLUSIVE, (1, 0));
    assert_eq!(write_status(&mut holder), 0);
    assert_eq!(write_status(&mut other), RESERVATION_CONFLICT);
    let tag = other.read(0, 9, 1).expect("sent");
    other.data_in(tag).expect("write exclusive lets others read");
    let elsewhere = other.write(1, 0, &pattern(BLOCK_BYTES)).expect("sent");
    other.good(elsewhere).expect("the other unit is not reserved");
    // A session that comes later is held to it at once.
    let mut late = session(&target, 3);
    assert_eq!(write_status(&mut late), RESERVATION_CONFLICT);
    reserve_out(&mut holder, Action::Release, WRITE_EXCLUSIVE, (1, 0));
    assert_eq!(write_status(&mut other), 0);
    reserve_out(&mut holder, Action::Reserve, WRITE_EXCLUSIVE_REGISTRANTS_ONLY, (1, 0));
    assert_eq!((write_status(&mut other), write_status(&mut late)), (0, RESERVATION_CONFLICT));
    reserve_out(&mut holder, Action::Release, WRITE_EXCLUSIVE_REGISTRANTS_ONLY, (1, 0));
    expect_attention(&mut other, 0, RESERVATIONS_RELEASED);
    expect_ready(&mut late, 0);
}

/// SPC-4: a registration outlives its nexus, by name; a RESERVE of SPC-2 does not.
#[test]
fn registrations_outlive_their_session() {
    let target = InProcess::start(&[DISK, SECOND_DISK]);
    let mut other = session(&target, 2);
    {
        let mut holder = session(&target, 1);
        register(&mut holder, 1);
        reserve_out(&mut holder, Action::Reserve, WRITE_EXCLUSIVE, (1, 0));
    }
    let mut again = session(&target, 1);
    assert_eq!(write_status(&mut other), RESERVATION_CONFLICT);
    assert_eq!(write_status(&mut again), 0, "the same initiator port");
}

/// Both sessions are registered, and two reads of the second one, one for each unit, are in their stores.
fn reads_are_held() -> (InProcess, Raw, Raw) {
    let target = InProcess::start(&[DISK, SECOND_DISK]);
    let (mut preempting, mut victim) = (session(&target, 1), session(&target, 2));
    register(&mut preempting, 1);
    register(&mut victim, 2);
    reserve_out(&mut victim, Action::Reserve, WRITE_EXCLUSIVE, (2, 0));
    target.hold(0, OperationKind::Read);
    target.hold(1, OperationKind::Read);
    (target, preempting, victim)
}

#[test]
fn preempt_and_abort_waits_for_the_commands_of_the_preempted() {
    let (target, mut preempting, mut victim) = reads_are_held();
    victim.read(0, 0, 1).expect("sent");
    let elsewhere = victim.read(1, 0, 1).expect("sent");
    let own = preempting.read(0, 4, 1).expect("sent");
    target.wait_for_calls(0, OperationKind::Read, 2);
    target.wait_for_calls(1, OperationKind::Read, 1);
    let tag = Action::PreemptAndAbort.send(&mut preempting, 0, WRITE_EXCLUSIVE, (1, 2)).expect("sent");
    preempting.waits(A_WHILE).expect("a command of the preempted session is in a store");
    // The reservation has changed hands already.
    assert_eq!(write_status_after_attention(&mut victim), RESERVATION_CONFLICT);
    target.faults(0).clear();
    // One was in its store first; the order of the two answers is not laid down.
    let mut answered = [(); 2].map(|()| match preempting.receive().expect("an answer").0 {
        TargetPdu::ScsiDataIn(pdu) if pdu.status == Some(0) => pdu.initiator_task_tag,
        TargetPdu::ScsiResponse(pdu) if pdu.status == 0 => pdu.initiator_task_tag,
        other => panic!("{other:?}"),
    });
    answered.sort_by_key(|tag| *tag != own);
    assert_eq!(answered, [own, tag]);
    target.faults(1).clear();
    victim
        .data_in(elsewhere)
        .expect("the other unit is no concern of this, and the aborted read is not answered");
    victim.silent().expect("nothing more");
    assert_eq!(write_status(&mut preempting), 0);
}

fn write_status_after_attention(session: &mut Raw) -> u8 {
    expect_attention(session, 0, REGISTRATIONS_PREEMPTED);
    write_status(session)
}

/// Who asked goes away while commands are still being aborted: they are, nobody waits for ever, and the target ends.
#[test]
fn a_preempting_session_may_end_in_the_middle() {
    let (target, mut preempting, mut victim) = reads_are_held();
    victim.read(0, 0, 1).expect("sent");
    target.wait_for_calls(0, OperationKind::Read, 1);
    Action::PreemptAndAbort.send(&mut preempting, 0, WRITE_EXCLUSIVE, (1, 2)).expect("sent");
    preempting.waits(A_WHILE).expect("a command is in a store");
    drop(preempting);
    expect_attention(&mut victim, 0, REGISTRATIONS_PREEMPTED);
    target.faults(0).clear();
    victim.silent().expect("the read was aborted");
    let mut again = session(&target, 1);
    assert_eq!(write_status(&mut again), 0, "the reservation is its own");
    drop((again, victim));
    target.drain();
    target.end().expect("in time").expect("a clean end");
}

/// Who was cut off while it waited, and asks again, is answered when nothing of the preempted is left: its registration, which is gone,
/// does not tell whom it is about. Without that it would be taken for fenced with a write in its store.
#[test]
fn a_preemption_that_was_cut_off_waits_when_it_is_asked_for_again() {
    // Key 0 is all who hold a reservation together; afterwards nobody does, and it is none.
    for (is_session_lost, key, third_status) in
        [(false, 2, RESERVATION_CONFLICT), (true, 2, RESERVATION_CONFLICT), (false, 0, 2)]
    {
        let (target, mut preempting, mut victim) = reads_are_held();
        if key == 0 {
            reserve_out(&mut victim, Action::Release, WRITE_EXCLUSIVE, (2, 0));
            reserve_out(&mut victim, Action::Reserve, WRITE_EXCLUSIVE_ALL_REGISTRANTS, (2, 0));
        }
        target.hold(0, OperationKind::Write);
        victim.write(0, 9, &pattern(BLOCK_BYTES)).expect("sent");
        target.wait_for_calls(0, OperationKind::Write, 1);
        let preempt =
            |by: &mut Raw| Action::PreemptAndAbort.send(by, 0, WRITE_EXCLUSIVE, (1, key)).expect("sent");
        let cmd_sn = preempting.cmd_sn;
        let tag = preempt(&mut preempting);
        preempting.waits(A_WHILE).expect("a command is in a store");
        if is_session_lost {
            drop(preempting);
            preempting = session(&target, 1);
        } else {
            let abort = preempting.manage_task(Function::AbortTask, 0, tag, cmd_sn).expect("sent");
            assert_eq!(preempting.managed(abort).expect("an answer"), COMPLETE);
        }
        let again = preempt(&mut preempting);
        preempting.waits(A_WHILE).expect("the same command is in its store");
        target.faults(0).clear();
        preempting.good(again).expect("nothing is left of it");
        let third = preempt(&mut preempting);
        let ending = preempting.ending(third).expect("an answer");
        assert_eq!(ending.status, third_status, "nobody is registered with that key");
    }
}

/// Who has registered again since then is another, whatever its key is.
#[test]
fn a_preemption_that_was_cut_off_does_not_go_on_with_those_who_came_back() {
    let (target, mut preempting, mut victim) = reads_are_held();
    victim.read(0, 0, 1).expect("sent");
    target.wait_for_calls(0, OperationKind::Read, 1);
    let preempt = |by: &mut Raw| Action::PreemptAndAbort.send(by, 0, WRITE_EXCLUSIVE, (1, 2)).expect("sent");
    let cmd_sn = preempting.cmd_sn;
    let tag = preempt(&mut preempting);
    preempting.waits(A_WHILE).expect("a command is in a store");
    let abort = preempting.manage_task(Function::AbortTask, 0, tag, cmd_sn).expect("sent");
    assert_eq!(preempting.managed(abort).expect("an answer"), COMPLETE);
    expect_attention(&mut victim, 0, REGISTRATIONS_PREEMPTED);
    register(&mut victim, 3);
    let again = preempt(&mut preempting);
    assert_eq!(preempting.ending(again).expect("an answer").status, RESERVATION_CONFLICT);
    target.faults(0).clear();
}

#[test]
fn a_target_that_drains_waits_for_a_preemption() {
    let (target, mut preempting, mut victim) = reads_are_held();
    victim.read(0, 0, 1).expect("sent");
    target.wait_for_calls(0, OperationKind::Read, 1);
    Action::PreemptAndAbort.send(&mut preempting, 0, WRITE_EXCLUSIVE, (1, 2)).expect("sent");
    preempting.waits(A_WHILE).expect("a command is in a store");
    drop((preempting, victim));
    target.drain();
    target.faults(0).clear();
    target.end().expect("in time").expect("a clean end");
}
