//! Commands that a living target does not answer: what is done to end them, and what becomes of them.

mod target;

use std::net::{SocketAddr, TcpListener};
use std::time::Duration;

use lunette_block::OperationKind;
use lunette_initiator::{
    Command, CommandError, CommandId, Completion, Engine, EngineEvent, Options, Remedy, Replay, Timing,
};
use lunette_tests::in_process::InProcess;
use lunette_tests::lunette::binary;
use lunette_wire::CmdSn;
use lunette_wire::initiator::{ScsiCommand, TaskManagementFunction};

use super::hostile::{NAME, Script};
use lunette_tests::engine::{execute, lun, make_ready, options, pattern, read, write};
use target::{Fate, Reply, Rules, Seen, serve};

/// For what is never answered.
const SHORT: Duration = Duration::from_millis(20);
const PATIENT: Duration = Duration::from_secs(600);

fn connect(address: SocketAddr, timing: Timing) -> Engine {
    let timing = Timing { recovery: PATIENT, ..timing };
    Engine::connect(Options { timing, ..options(NAME, address) }).expect("a session")
}

/// What came of these commands, and the steps that were told.
fn ended(engine: &mut Engine, ids: &[CommandId]) -> (Vec<Completion>, Vec<(Remedy, bool)>) {
    let (mut done, mut steps) = (Vec::new(), Vec::new());
    while done.len() < ids.len() {
        engine.poll(None, &mut done).expect("the system lets us");
        while let Some(event) = engine.event() {
            match event {
                EngineEvent::Overdue { remedy, .. } => steps.push((remedy, false)),
                EngineEvent::Ended { remedy, .. } => steps.push((remedy, true)),
                EngineEvent::Lost { .. } => steps.push((Remedy::Reinstatement, false)),
                EngineEvent::Reconnected { .. } => steps.push((Remedy::Reinstatement, true)),
                _ => {}
            }
        }
    }
    let of = |id: &CommandId, done: &mut Vec<Completion>| {
        let at = done.iter().position(|completion| completion.id == *id).expect("it ends");
        done.swap_remove(at)
    };
    (ids.iter().map(|id| of(id, &mut done)).collect(), steps)
}

/// One read against these rules, and what the target saw.
fn one_read(rules: Rules, timing: Timing) -> (Completion, Vec<(Remedy, bool)>, Vec<Seen>) {
    let (address, seen) = serve(rules);
    let mut engine = connect(address, timing);
    let id = engine.submit(read(0, 0, 1, 512));
    let (mut done, steps) = ended(&mut engine, &[id]);
    drop(engine);
    (done.remove(0), steps, seen.try_iter().collect())
}

/// The first command of the first connection is lost, every other answered.
fn first_is_swallowed(connection: u32, command: &ScsiCommand) -> Fate {
    if connection == 0 && command.cmd_sn == CmdSn(1) { Fate::Swallowed } else { Fate::Answered }
}

fn all_are_swallowed(_: u32, _: &ScsiCommand) -> Fate {
    Fate::Swallowed
}

const READ_16: u8 = 0x88;

/// Runs a case with a limit for each command, which is to be over for one that is never answered, and not before an answer that
/// comes. Where the machine stood still for so long, the case says what is wrong, and has another try with more time.
fn with_some_limit(case: impl Fn(Duration) -> Result<(), String>) {
    let mut wrong = String::new();
    for limit in [SHORT, SHORT * 10, SHORT * 100, SHORT * 1000] {
        match case(limit) {
            Ok(()) => return,
            Err(what) => wrong = what,
        }
    }
    panic!("{wrong}");
}

/// A command was ended once by these steps, and was answered then.
fn went_on(done: &Completion, steps: &[(Remedy, bool)], expected: &[(Remedy, bool)]) -> Result<(), String> {
    let is_it = done.is_good() && done.attempts == 2 && done.data() == [7; 512] && steps == expected;
    if is_it { Ok(()) } else { Err(format!("{:?} after {steps:?}", done.result)) }
}

#[test]
fn abort_task_ends_a_command_which_goes_on_once_more() {
    // Complete; and a task that the target does not know.
    for abort in [Reply::Code(0), Reply::Code(1)] {
        with_some_limit(|limit| {
            let rules = Rules { fate: first_is_swallowed, abort, reset: Reply::Silence };
            let timing = Timing { command: Some(limit), abort: PATIENT, ..Timing::default() };
            let (done, steps, seen) = one_read(rules, timing);
            went_on(&done, &steps, &[(Remedy::AbortTask, false), (Remedy::AbortTask, true)])?;
            let abort = Seen::Function(TaskManagementFunction::AbortTask);
            assert_eq!(seen, [Seen::Command(READ_16), abort, Seen::Command(READ_16)]);
            Ok(())
        });
    }
}

/// Commands of which each is late, against a target that answers none.
fn many_late(abort: Reply, limit: Duration) -> (Vec<Completion>, Vec<Seen>) {
    let (address, seen) = serve(Rules { fate: all_are_swallowed, abort, reset: Reply::Code(0) });
    let timing = Timing { command: Some(SHORT), abort: limit, reset: PATIENT, ..Timing::default() };
    let mut engine = connect(address, timing);
    let late = |lba| read(0, lba, 1, 512).replaying(Replay::Never);
    let ids: Vec<_> = (0..24).map(|lba| engine.submit(late(lba))).collect();
    let (done, _) = ended(&mut engine, &ids);
    drop(engine);
    (done, seen.try_iter().collect())
}

#[test]
fn a_target_without_room_for_a_function_is_asked_again() {
    let (done, seen) = many_late(Reply::LaterThan(3), PATIENT);
    for completion in &done {
        let ended_by = Remedy::AbortTask;
        assert!(
            matches!(&completion.result, Err(CommandError::Overdue { ended_by: by, .. }) if *by == ended_by)
        );
    }
    let of = |function| seen.iter().filter(|seen| **seen == Seen::Function(function)).count();
    assert_eq!(
        of(TaskManagementFunction::AbortTask),
        24 + 3,
        "each once, and those that were rejected again"
    );
    assert_eq!(of(TaskManagementFunction::LogicalUnitReset), 0);
}

#[test]
fn few_aborts_are_asked_for_at_the_same_time() {
    // None is answered, so that those that have come are those that were asked for together.
    let (done, seen) = many_late(Reply::Silence, SHORT);
    let reset = Seen::Function(TaskManagementFunction::LogicalUnitReset);
    let aborts = seen.iter().take_while(|seen| **seen != reset);
    let aborts = aborts.filter(|seen| **seen == Seen::Function(TaskManagementFunction::AbortTask));
    assert!((1..=4).contains(&aborts.count()), "{seen:?}");
    assert!(done.iter().all(|completion| completion.attempts == 1 && completion.result.is_err()));
}

#[test]
fn a_target_that_never_has_room_has_its_unit_reset() {
    let (done, seen) = many_late(Reply::LaterThan(u32::MAX), SHORT);
    assert!(seen.contains(&Seen::Function(TaskManagementFunction::LogicalUnitReset)));
    assert!(done.iter().all(|completion| completion.attempts == 1 && completion.result.is_err()));
}

#[test]
fn times_without_end_are_taken() {
    let rules = Rules { fate: all_are_swallowed, abort: Reply::Code(255), reset: Reply::Code(0) };
    let without_end = Duration::MAX;
    let timing = Timing { abort: without_end, reset: without_end, ..Timing::default() };
    let (address, _seen) = serve(rules);
    let mut engine = connect(address, timing);
    let id = engine.submit(read(0, 0, 1, 512).replaying(Replay::Never).within(SHORT));
    let (done, _) = ended(&mut engine, &[id]);
    let ended_by = Remedy::LogicalUnitReset;
    assert!(matches!(done[0].result, Err(CommandError::Overdue { ended_by: by, .. }) if by == ended_by));
}

#[test]
fn a_command_that_is_never_answered_ends_and_says_what_ended_it() {
    let rules = Rules { fate: all_are_swallowed, abort: Reply::Code(0), reset: Reply::Silence };
    let timing = Timing { command: Some(SHORT), abort: PATIENT, ..Timing::default() };
    let (done, _, seen) = one_read(rules, timing);
    let Err(CommandError::Overdue { waited, ended_by: Remedy::AbortTask }) = &done.result else {
        panic!("{:?}", done.result)
    };
    assert!(*waited >= SHORT && done.attempts == 2);
    assert!(done.result.as_ref().is_err_and(|error| error.to_string().contains("ABORT TASK ended it")));
    assert_eq!(seen.iter().filter(|seen| **seen == Seen::Command(READ_16)).count(), 2);
}

#[test]
fn an_answer_that_comes_before_the_abort_counts() {
    fn late(_: u32, _: &ScsiCommand) -> Fate {
        Fate::Late
    }
    let rules = Rules { fate: late, abort: Reply::Code(1), reset: Reply::Silence };
    let timing = Timing { command: Some(SHORT), abort: PATIENT, ..Timing::default() };
    let (done, _, _) = one_read(rules, timing);
    assert!(done.is_good() && done.attempts == 1, "{:?}", done.result);
}

/// The first command is answered last, as on a narrow link: that takes twice its limit, during which data comes for another.
#[test]
fn an_answer_that_may_be_behind_data_is_waited_for() {
    fn first_is_last(_: u32, command: &ScsiCommand) -> Fate {
        // The block says how many milliseconds.
        let pause_ms = u64::from(command.cdb[8]) << 8 | u64::from(command.cdb[9]);
        if command.cmd_sn == CmdSn(1) { Fate::Late } else { Fate::Slow(Duration::from_millis(pause_ms)) }
    }
    with_some_limit(|limit| {
        let rules = Rules { fate: first_is_last, abort: Reply::Silence, reset: Reply::Silence };
        let (address, seen) = serve(rules);
        let mut engine = connect(address, Timing { command: None, ..Timing::default() });
        let first = engine.submit(read(0, 0, 1, 512).within(limit));
        let other = engine.submit(read(0, (limit / 4).as_millis() as u64, 8, 512));
        let (done, steps) = ended(&mut engine, &[first, other]);
        if !steps.is_empty() {
            return Err(format!("{steps:?}"));
        }
        assert!(done.iter().all(|completion| completion.is_good() && completion.attempts == 1));
        assert_eq!(seen.try_iter().count(), 2);
        Ok(())
    });
}

#[test]
fn a_logical_unit_reset_follows_an_abort_that_does_not_help() {
    let refusals = [
        (Reply::Code(255), PATIENT),
        (Reply::Code(5), PATIENT),
        (Reply::Reject, PATIENT),
        (Reply::Silence, SHORT),
    ];
    for (abort, patience) in refusals {
        with_some_limit(|limit| {
            let rules = Rules { fate: first_is_swallowed, abort, reset: Reply::Code(0) };
            let timing =
                Timing { command: Some(limit), abort: patience, reset: PATIENT, ..Timing::default() };
            let (done, steps, _) = one_read(rules, timing);
            let reset = Remedy::LogicalUnitReset;
            went_on(&done, &steps, &[(Remedy::AbortTask, false), (reset, false), (reset, true)])
        });
    }
}

#[test]
fn a_new_session_follows_a_reset_that_does_not_help() {
    for (reset, patience) in [(Reply::Code(255), PATIENT), (Reply::Reject, PATIENT), (Reply::Silence, SHORT)]
    {
        with_some_limit(|limit| {
            let rules = Rules { fate: first_is_swallowed, abort: Reply::Silence, reset };
            let timing = Timing { command: Some(limit), abort: SHORT, reset: patience, ..Timing::default() };
            let (done, steps, _) = one_read(rules, timing);
            let told = [Remedy::AbortTask, Remedy::LogicalUnitReset, Remedy::Reinstatement];
            let told = told.map(|remedy| (remedy, false));
            went_on(&done, &steps, &[&told[..], &[(Remedy::Reinstatement, true)]].concat())
        });
    }
}

#[test]
fn nothing_is_waited_for_without_end() {
    let rules = Rules { fate: all_are_swallowed, abort: Reply::Silence, reset: Reply::Silence };
    let timing = Timing { command: Some(SHORT), abort: SHORT, reset: SHORT, ..Timing::default() };
    let (done, _, _) = one_read(rules, timing);
    let is_it = matches!(done.result, Err(CommandError::Overdue { ended_by: Remedy::Reinstatement, .. }));
    assert!(is_it && done.attempts == 2, "{:?}", done.result);
}

#[test]
fn writes_go_on_only_when_they_are_said_to_be_safe() {
    fn writes_are_swallowed(connection: u32, command: &ScsiCommand) -> Fate {
        if connection == 0 && command.write { Fate::Swallowed } else { Fate::Answered }
    }
    for (abort, remedy) in [(Reply::Code(0), Remedy::AbortTask), (Reply::Silence, Remedy::Reinstatement)] {
        // In the same session the safe one is swallowed again, in the next it is not.
        let goes_on = remedy == Remedy::Reinstatement;
        with_some_limit(|limit| {
            let rules = Rules { fate: writes_are_swallowed, abort, reset: Reply::Silence };
            let (address, _seen) = serve(rules);
            let patience = if goes_on { SHORT } else { PATIENT };
            let timing = Timing { command: None, abort: patience, reset: SHORT, ..Timing::default() };
            let mut engine = connect(address, timing);
            let doubtful = engine.submit(write(0, 0, 1, pattern(1, 512)).within(limit));
            let safe = engine.submit(write(0, 1, 1, pattern(2, 512)).within(limit).replaying(Replay::Always));
            let (done, _) = ended(&mut engine, &[doubtful, safe]);
            let Err(CommandError::Overdue { ended_by, .. }) = done[0].result else {
                panic!("{:?}", done[0].result)
            };
            assert_eq!((ended_by, done[0].attempts), (remedy, 1));
            if goes_on && !done[1].is_good() {
                return Err(format!("{:?}", done[1].result));
            }
            assert_eq!((done[1].is_good(), done[1].attempts), (goes_on, 2));
            Ok(())
        });
    }
}

/// A reset ends what other commands of the unit there are, not those of another unit; and it may cost what is in a cache.
#[test]
fn what_a_reset_costs_is_told() {
    fn of_unit_0(_: u32, command: &ScsiCommand) -> Fate {
        let is_held = command.lun.0[1] == 0 && (command.read || command.cdb[9] == 9);
        if is_held { Fate::Swallowed } else { Fate::Answered }
    }
    let rules = Rules { fate: of_unit_0, abort: Reply::Code(255), reset: Reply::Code(0) };
    let (address, seen) = serve(rules);
    let timing = Timing { command: None, abort: PATIENT, reset: PATIENT, ..Timing::default() };
    let mut engine = connect(address, timing);
    assert!(execute(&mut engine, write(0, 0, 1, pattern(1, 512))).is_good());
    let other = engine.submit(read(1, 0, 1, 512));
    let innocent = engine.submit(write(0, 9, 1, pattern(1, 512)));
    let late = engine.submit(read(0, 0, 1, 512).replaying(Replay::Never).within(SHORT));
    let (done, _) = ended(&mut engine, &[other, innocent, late]);
    assert!(done[0].is_good(), "{:?}", done[0].result);
    let Err(CommandError::Unknown(reason)) = &done[1].result else { panic!("{:?}", done[1].result) };
    assert!(reason.starts_with("LOGICAL UNIT RESET ended it"), "{reason}");
    let ended_by = Remedy::LogicalUnitReset;
    assert!(matches!(done[2].result, Err(CommandError::Overdue { ended_by: by, .. }) if by == ended_by));
    let flush = || Command::new(lun(0), [0x35, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(execute(&mut engine, flush()).result, Err(CommandError::ResetSinceFlush));
    assert!(execute(&mut engine, flush()).is_good());
    let resets =
        seen.try_iter().filter(|seen| *seen == Seen::Function(TaskManagementFunction::LogicalUnitReset));
    assert_eq!(resets.count(), 1);
}

/// The target has no room for the reset at first. What comes until it has is ended by it as well, and goes on.
#[test]
fn what_comes_before_a_reset_that_was_put_off_goes_on_behind_it() {
    fn first_two_are_swallowed(_: u32, command: &ScsiCommand) -> Fate {
        if command.cmd_sn.0 <= 2 { Fate::Swallowed } else { Fate::Answered }
    }
    // The abort and the first reset are rejected.
    let rules = Rules { fate: first_two_are_swallowed, abort: Reply::Code(255), reset: Reply::LaterThan(2) };
    let (address, _seen) = serve(rules);
    let timing = Timing { command: None, abort: PATIENT, reset: PATIENT, ..Timing::default() };
    let mut engine = connect(address, timing);
    let late = engine.submit(read(0, 0, 1, 512).replaying(Replay::Never).within(SHORT));
    let reset = Remedy::LogicalUnitReset;
    while !matches!(engine.event(), Some(EngineEvent::Overdue { remedy, .. }) if remedy == reset) {
        engine.poll(None, &mut Vec::new()).expect("the system lets us");
    }
    let innocent = engine.submit(read(0, 1, 1, 512));
    let (done, _) = ended(&mut engine, &[late, innocent]);
    assert!(matches!(done[0].result, Err(CommandError::Overdue { ended_by, .. }) if ended_by == reset));
    assert!(done[1].is_good() && done[1].attempts == 2, "{:?}", done[1].result);
}

/// A target that carries a reset out and does not answer it has lost its cache all the same.
#[test]
fn a_reset_that_is_not_answered_counts() {
    fn reads_are_swallowed(_: u32, command: &ScsiCommand) -> Fate {
        if command.read { Fate::Swallowed } else { Fate::Answered }
    }
    for reset in [Reply::Silence, Reply::Code(255)] {
        let (address, _seen) = serve(Rules { fate: reads_are_swallowed, abort: Reply::Silence, reset });
        let timing = Timing { command: None, abort: SHORT, reset: SHORT, ..Timing::default() };
        let mut engine = connect(address, timing);
        assert!(execute(&mut engine, write(0, 0, 1, pattern(1, 512))).is_good());
        let late = engine.submit(read(0, 0, 1, 512).replaying(Replay::Never).within(SHORT));
        let (done, _) = ended(&mut engine, &[late]);
        let ended_by = Remedy::Reinstatement;
        assert!(matches!(done[0].result, Err(CommandError::Overdue { ended_by: by, .. }) if by == ended_by));
        let flush = || Command::new(lun(0), [0x35, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(execute(&mut engine, flush()).result, Err(CommandError::ResetSinceFlush), "{reset:?}");
        assert!(execute(&mut engine, flush()).is_good());
    }
}

/// Whether the target has ended it, or never heard of it.
#[test]
fn what_its_caller_aborts_is_not_sent_again() {
    for abort in [Reply::Code(0), Reply::Code(1)] {
        let rules = Rules { fate: first_is_swallowed, abort, reset: Reply::Silence };
        let (address, seen) = serve(rules);
        let mut engine = connect(address, Timing { command: None, ..Timing::default() });
        let id = engine.submit(read(0, 0, 1, 512));
        engine.poll(Some(Duration::ZERO), &mut Vec::new()).expect("the system lets us");
        engine.abort(id);
        let (done, _) = ended(&mut engine, &[id]);
        assert_eq!((&done[0].result, done[0].attempts), (&Err(CommandError::Aborted), 1));
        let abort = Seen::Function(TaskManagementFunction::AbortTask);
        assert_eq!(seen.try_iter().collect::<Vec<_>>(), [Seen::Command(READ_16), abort]);
    }
}

#[test]
fn what_its_caller_aborts_does_not_go_on_in_the_next_session() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    std::thread::spawn(move || {
        let mut target = Script::log_in(listener.accept().expect("a connection").0);
        // The command, and its abort.
        target.receive();
        target.receive();
        drop(target);
        Script::log_in(listener.accept().expect("a connection").0).try_receive();
    });
    let mut engine = connect(address, Timing { nop_interval: None, ..Timing::default() });
    let id = engine.submit(read(0, 0, 1, 512));
    engine.poll(Some(Duration::ZERO), &mut Vec::new()).expect("the system lets us");
    engine.abort(id);
    let (done, _) = ended(&mut engine, &[id]);
    assert!(matches!(done[0].result, Err(CommandError::Unknown(_))), "{:?}", done[0].result);
    assert_eq!(done[0].attempts, 1);
}

/// The target answers the first command and lets no other in; so it is in the first session alone.
#[test]
fn a_window_that_stays_closed_ends_the_session() {
    fn closing(connection: u32, _: &ScsiCommand) -> Fate {
        if connection == 0 { Fate::Last } else { Fate::Answered }
    }
    with_some_limit(|limit| {
        let rules = Rules { fate: closing, abort: Reply::Silence, reset: Reply::Silence };
        let (address, seen) = serve(rules);
        let mut engine = connect(address, Timing { command: Some(limit), ..Timing::default() });
        // The login has left room for more than one.
        let ids: Vec<_> = (0..200).map(|lba| engine.submit(write(0, lba, 1, pattern(lba, 512)))).collect();
        let (done, steps) = ended(&mut engine, &ids);
        let is_good = done.iter().all(|completion| completion.is_good() && completion.attempts <= 2);
        if !is_good || steps != [(Remedy::Reinstatement, false), (Remedy::Reinstatement, true)] {
            return Err(format!("all is good: {is_good}, after {steps:?}"));
        }
        assert!(seen.try_iter().all(|seen| matches!(seen, Seen::Command(_))), "there is nothing to abort");
        Ok(())
    });
}

/// Our target waits for its store before it says that a command is aborted, and the store does not move.
#[test]
fn a_store_that_stands_still_costs_one_session() {
    with_some_limit(|limit| {
        let target = InProcess::start(&["mem:16M"]);
        let timing = Timing { recovery: PATIENT, abort: SHORT, reset: SHORT, ..Timing::default() };
        let mut engine = Engine::connect(Options { timing, ..options(target.name(), target.portal()) })
            .expect("a session");
        make_ready(&mut engine, 0);
        target.hold(0, OperationKind::Read);
        let id = engine.submit(read(0, 0, 1, 512).within(limit));
        let (mut done, mut steps) = (Vec::new(), Vec::new());
        while done.is_empty() {
            engine.poll(None, &mut done).expect("the system lets us");
            while let Some(event) = engine.event() {
                match event {
                    EngineEvent::Overdue { remedy, .. } => steps.push(remedy),
                    EngineEvent::Lost { reason } => {
                        assert!(reason.contains("LUN 0"), "{reason}");
                        target.faults(0).clear();
                    }
                    _ => {}
                }
            }
        }
        let is_good = done[0].id == id && done[0].is_good() && done[0].attempts >= 2;
        if !is_good || steps != [Remedy::AbortTask, Remedy::LogicalUnitReset] {
            return Err(format!("{:?} after {steps:?}", done[0].result));
        }
        engine.close().expect("a logout");
        Ok(())
    });
}

#[test]
fn the_command_line_says_what_was_tried() {
    let rules = Rules { fate: all_are_swallowed, abort: Reply::Code(0), reset: Reply::Silence };
    let (address, _seen) = serve(rules);
    let url = format!("iscsi://{address}/{NAME}/0");
    let output = std::process::Command::new(binary())
        .args(["info", &url, "--timeout", "1"])
        .output()
        .expect("it runs");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(5), "{said}");
    for line in [
        "trying ABORT TASK",
        "ABORT TASK has ended what was not answered",
        "error: the target has not answered",
    ] {
        assert!(said.contains(line), "{said}");
    }
}
