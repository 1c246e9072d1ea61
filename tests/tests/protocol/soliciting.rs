//! When data is asked for that does not come by itself (RFC 7143, 4.2.5.2, 11.8): a little at a time where the way is short, in
//! order, when there is memory for it; and what comes of those who wait.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use lunette_block::OperationKind;
use lunette_tests::in_process::{InProcess, wait_until};
use lunette_tests::raw::{Raw, write};
use lunette_wire::InitiatorTaskTag;
use lunette_wire::initiator::TaskManagementFunction;
use lunette_wire::target::ReadyToTransfer;

use crate::{A_WHILE, BUS_DEVICE_RESET, COMPLETE, DISK, TASK_SET_FULL};

/// Half of what is asked for at a time.
const LENGTH: usize = 256 << 10;

/// What has not come so long after it was asked for does not count any more.
const ASKED_PATIENCE: Duration = Duration::from_secs(1);

/// Two sessions of this target whose writes bring nothing unasked, and to which the way is known to be short.
fn sessions(target: &InProcess) -> [Raw; 2] {
    let keys = [("InitialR2T", "Yes"), ("ImmediateData", "No")];
    [1, 2].map(|port| {
        let mut session = Raw::ready(target.portal(), &target.options_with(port, &keys), 0).expect("a login");
        for _ in 0..200 {
            assert_eq!(session.test_unit_ready(0).expect("an answer").status, 0);
        }
        session
    })
}

fn data(number: usize) -> Vec<u8> {
    vec![number as u8 + 1; LENGTH]
}

/// Sends so many writes, one behind the other on the disk.
fn send(session: &mut Raw, count: usize) -> Vec<InitiatorTaskTag> {
    let lba = |number: usize| (number * LENGTH / 512) as u64;
    (0..count).map(|number| session.command(&write(0, lba(number), LENGTH), &[]).expect("sent")).collect()
}

fn asked(session: &mut Raw, tag: InitiatorTaskTag) -> ReadyToTransfer {
    try_asked(session, tag).expect("an R2T")
}

fn try_asked(session: &mut Raw, tag: InitiatorTaskTag) -> Result<ReadyToTransfer> {
    let r2t = session.r2t(tag)?;
    assert_eq!((r2t.buffer_offset, r2t.desired_length as usize), (0, LENGTH));
    Ok(r2t)
}

fn answer(session: &mut Raw, r2t: &ReadyToTransfer, number: usize) {
    session.answer_r2t(r2t, &data(number), 64 << 10).expect("sent");
}

#[test]
fn on_a_short_way_data_is_asked_for_in_order_and_a_little_at_a_time() {
    const TRIES: usize = 5;
    for left in (0..TRIES).rev() {
        let target = InProcess::start(&[DISK]);
        let sessions = sessions(&target);
        let start = Instant::now();
        match a_little_at_a_time(&target, sessions, start) {
            Ok(()) => return,
            // Others may have been asked for by then.
            Err(_) if left > 0 && start.elapsed() >= ASKED_PATIENCE => {}
            Err(error) => panic!("{error:#}"),
        }
    }
}

/// Fails where others are asked for, and where they may be: see [`ASKED_PATIENCE`].
fn a_little_at_a_time(target: &InProcess, [mut session, mut other]: [Raw; 2], start: Instant) -> Result<()> {
    let tags = send(&mut session, 5);
    let mut r2ts = vec![try_asked(&mut session, tags[0])?, try_asked(&mut session, tags[1])?];
    session.waits(A_WHILE).context("two are enough")?;
    let has_two = || target.buffer_bytes_in_use() == 2 * LENGTH;
    wait_until("those who wait have no buffers", || has_two() || start.elapsed() >= ASKED_PATIENCE);
    ensure!(has_two(), "those who wait have buffers");
    // Another session has its own two.
    let others = send(&mut other, 1);
    let r2t = asked(&mut other, others[0]);
    answer(&mut other, &r2t, 0);
    other.good(others[0]).expect("a write");
    for number in 0..5 {
        answer(&mut session, &r2ts[number], number);
        if let Some(&next) = tags.get(number + 2) {
            r2ts.push(try_asked(&mut session, next)?);
        }
        session.good(tags[number])?;
    }
    let tag = session.read(0, 0, (5 * LENGTH / 512) as u32).expect("sent");
    let (read, _) = session.data_in(tag).expect("a read");
    assert!(read == (0..5).flat_map(data).collect::<Vec<u8>>());
    Ok(())
}

/// ABORT TASK and LOGICAL UNIT RESET (11.5.1).
#[test]
fn who_waits_to_be_asked_can_be_aborted_and_keeps_nobody_waiting() {
    let target = InProcess::start(&[DISK]);
    let [mut session, mut other] = sessions(&target);
    let first_cmd_sn = session.cmd_sn;
    let tags = send(&mut session, 6);
    let first = asked(&mut session, tags[0]);
    asked(&mut session, tags[1]);
    let abort = session
        .manage_task(TaskManagementFunction::AbortTask, 0, tags[2], first_cmd_sn.plus(2))
        .expect("sent");
    assert_eq!(session.managed(abort).expect("an answer"), COMPLETE);
    answer(&mut session, &first, 0);
    asked(&mut session, tags[3]);
    session.good(tags[0]).expect("a write");
    let reset = other.manage(TaskManagementFunction::LogicalUnitReset, 0).expect("sent");
    assert_eq!(other.managed(reset).expect("an answer"), COMPLETE);
    target.wait_for_its_buffers();
    let ending = session.test_unit_ready(0).expect("an answer");
    assert_eq!(ending.codes(), BUS_DEVICE_RESET);
    // The places of what was reset are free.
    for _ in 0..2 {
        let tags = send(&mut session, 2);
        let r2ts = [asked(&mut session, tags[0]), asked(&mut session, tags[1])];
        for number in 0..2 {
            answer(&mut session, &r2ts[number], number);
            session.good(tags[number]).expect("a write");
        }
    }
}

/// No clause asks for it: what one R2T does not bring is no loss of other commands.
#[test]
fn who_leaves_an_r2t_unanswered_is_sent_the_others_all_the_same() {
    let target = InProcess::start(&[DISK]);
    let [mut session, mut other] = sessions(&target);
    let tags = send(&mut session, 5);
    let r2ts: Vec<_> = tags.iter().map(|&tag| asked(&mut session, tag)).collect();
    let others = send(&mut other, 1);
    let r2t = asked(&mut other, others[0]);
    answer(&mut other, &r2t, 0);
    other.good(others[0]).expect("a write");
    for number in (0..5).rev() {
        answer(&mut session, &r2ts[number], number);
        session.good(tags[number]).expect("a write");
    }
}

#[test]
fn a_session_that_ends_leaves_nothing_of_those_who_wait() {
    let target = InProcess::start(&[DISK]);
    let [mut session, other] = sessions(&target);
    send(&mut session, 8);
    let in_use = || target.buffer_bytes_in_use();
    wait_until("two are asked for", || in_use() >= 2 * LENGTH);
    drop(session);
    target.wait_for_its_buffers();
    drop(other);
}

/// TASK SET FULL (SAM-5) is for what brings its data unasked; what is asked for can wait.
#[test]
fn data_is_asked_for_when_there_is_memory() {
    let target =
        InProcess::start_with(&[DISK], |config| config.limits.buffer_memory_bytes = 2 * LENGTH as u64);
    let [mut first, mut second] = sessions(&target);
    let mut third = target.session(3);
    target.hold(0, OperationKind::Write);
    let held = send(&mut first, 1);
    let r2t = asked(&mut first, held[0]);
    answer(&mut first, &r2t, 0);
    target.wait_for_calls(0, OperationKind::Write, 1);
    // The session's first buffer: with the one that is in the store that is all there is.
    let tags = send(&mut second, 3);
    let r2t = asked(&mut second, tags[0]);
    let late = third.command(&write(0, 0, LENGTH), &[]).expect("sent");
    third.waits(A_WHILE).expect("there is no memory");
    second.waits(A_WHILE).expect("there is no memory");
    assert_eq!(third.test_unit_ready(0).expect("what needs none is served").status, 0);
    target.faults(0).clear();
    first.good(held[0]).expect("a write");
    let late_r2t = asked(&mut third, late);
    answer(&mut third, &late_r2t, 7);
    third.good(late).expect("a write");
    answer(&mut second, &r2t, 0);
    for number in 0..3 {
        second.good(tags[number]).expect("a write");
        if let Some(&next) = tags.get(number + 1) {
            let r2t = asked(&mut second, next);
            answer(&mut second, &r2t, number + 1);
        }
    }
}

/// Short commands that are answered at once say nothing about memory, but their window opens again all the same.
#[test]
fn a_window_opens_again_while_only_short_commands_come() {
    const DEPTH: u32 = 8;
    let target = InProcess::start_with(&[DISK], |config| {
        config.limits.buffer_memory_bytes = LENGTH as u64;
        config.limits.window_depth = DEPTH as u16;
    });
    let [mut first, mut second] = sessions(&target);
    let held = send(&mut first, 1);
    let r2t = asked(&mut first, held[0]);
    let width = |session: &Raw| session.max_cmd_sn().since(session.cmd_sn);
    let whole = width(&second);
    let waiting = send(&mut second, 1);
    second.waits(A_WHILE).expect("there is no memory");
    let cmd_sn = second.cmd_sn.plus(u32::MAX);
    let abort = second.manage_task(TaskManagementFunction::AbortTask, 0, waiting[0], cmd_sn).expect("sent");
    assert_eq!(second.managed(abort).expect("an answer"), COMPLETE);
    answer(&mut first, &r2t, 0);
    first.good(held[0]).expect("a write");
    let mut read = || {
        let tag = second.read(0, 0, 1).expect("sent");
        second.data_in(tag).expect("a block");
        width(&second)
    };
    let narrow = (0..3 * DEPTH).map(|_| read()).min();
    assert!(narrow < Some(whole), "{narrow:?} of {whole}");
    wait_until("the window is whole again", || read() == whole);
}

/// TASK SET FULL (SAM-5).
#[test]
fn who_gets_no_memory_for_long_is_told() {
    let target = InProcess::start_with(&[DISK], |config| config.limits.buffer_memory_bytes = LENGTH as u64);
    let [mut first, mut second] = sessions(&target);
    let tags = send(&mut first, 2);
    let r2t = asked(&mut first, tags[0]);
    // Whoever leaves the one R2T unanswered has all the memory, and keeps it.
    let late = send(&mut second, 2);
    for &tag in &late {
        assert_eq!(second.ending(tag).expect("an answer").status, TASK_SET_FULL);
    }
    assert_eq!(first.ending(tags[1]).expect("an answer").status, TASK_SET_FULL);
    answer(&mut first, &r2t, 0);
    first.good(tags[0]).expect("a write");
    let tags = send(&mut second, 1);
    let r2t = asked(&mut second, tags[0]);
    answer(&mut second, &r2t, 0);
    second.good(tags[0]).expect("a write");
}
