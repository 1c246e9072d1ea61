//! Commands that a living target does not answer: what is done to end them, and what becomes of them.

use std::net::{SocketAddr, TcpListener};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use lunette_block::OperationKind;
use lunette_initiator::{
    Command, CommandError, CommandId, Completion, Engine, EngineEvent, Options, Remedy, Replay, Timing,
};
use lunette_tests::in_process::InProcess;
use lunette_tests::lunette::binary;
use lunette_wire::initiator::{ScsiCommand, TaskManagementFunction, TaskManagementRequest};
use lunette_wire::target::{NopIn, Numbers, Reject, TaskManagementResponse};
use lunette_wire::{CmdSn, DataSn, InitiatorPdu, InitiatorTaskTag, StatSn, TargetPdu, TargetTransferTag};

use super::hostile::{NAME, Script};
use lunette_tests::engine::{execute, lun, make_ready, options, pattern, read, write};

/// Long enough for an answer that is to come, on a machine that does much else.
const LIMIT: Duration = Duration::from_secs(3);
/// For what is never answered.
const SHORT: Duration = Duration::from_millis(20);
const PATIENT: Duration = Duration::from_secs(600);

/// What a target does with a function.
#[derive(Debug, Clone, Copy)]
enum Reply {
    Code(u8),
    Silence,
    Reject,
}

/// What a target does with a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    Answered,
    Swallowed,
    /// It is answered just before the ABORT TASK is.
    Late,
    /// It is answered, and no other is let in.
    Last,
}

#[derive(Clone, Copy)]
struct Rules {
    /// By the connection, from 0 on, and the command.
    fate: fn(u32, &ScsiCommand) -> Fate,
    abort: Reply,
    reset: Reply,
}

/// What came.
#[derive(Debug, PartialEq, Eq)]
enum Seen {
    Command(u8),
    Function(TaskManagementFunction),
}

fn serve(rules: Rules) -> (SocketAddr, Receiver<Seen>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    let (sender, seen) = channel();
    std::thread::spawn(move || {
        for (connection, stream) in (0..).zip(listener.incoming().map_while(Result::ok)) {
            let seen = sender.clone();
            // Each lives until its initiator closes it.
            std::thread::spawn(move || {
                Target { script: Script::log_in(stream), rules, seen, late: None }.run(connection);
            });
        }
    });
    (address, seen)
}

/// One connection of the target.
struct Target {
    script: Script,
    rules: Rules,
    seen: Sender<Seen>,
    late: Option<ScsiCommand>,
}

impl Target {
    fn run(mut self, connection: u32) {
        while let Some(pdu) = self.script.try_receive() {
            match pdu {
                InitiatorPdu::ScsiCommand(command) => {
                    let _ = self.seen.send(Seen::Command(command.cdb[0]));
                    match (self.rules.fate)(connection, &command) {
                        Fate::Answered => self.answer(&command, 31),
                        Fate::Last => self.answer(&command, u32::MAX),
                        Fate::Late => self.late = Some(command),
                        Fate::Swallowed => {}
                    }
                }
                InitiatorPdu::TaskManagementRequest(request) => self.manage(&request),
                InitiatorPdu::NopOut(nop) if nop.initiator_task_tag != InitiatorTaskTag::RESERVED => {
                    let numbers = self.numbers(nop.cmd_sn);
                    self.script.say(
                        &TargetPdu::NopIn(NopIn {
                            lun: nop.lun,
                            initiator_task_tag: nop.initiator_task_tag,
                            target_transfer_tag: TargetTransferTag::RESERVED,
                            numbers,
                        }),
                        &[],
                    );
                    self.counts();
                }
                _ => {}
            }
        }
    }

    fn numbers(&self, exp_cmd_sn: CmdSn) -> Numbers {
        Numbers { stat_sn: self.script.stat_sn, exp_cmd_sn, max_cmd_sn: CmdSn(exp_cmd_sn.0.wrapping_add(31)) }
    }

    fn counts(&mut self) {
        self.script.stat_sn = StatSn(self.script.stat_sn.0.wrapping_add(1));
    }

    /// GOOD, with the window open for so many more.
    fn answer(&mut self, command: &ScsiCommand, room: u32) {
        let mut response = self.script.response(command);
        let exp_cmd_sn = response.numbers.exp_cmd_sn;
        response.numbers.max_cmd_sn = CmdSn(exp_cmd_sn.0.wrapping_add(room));
        response.exp_data_sn = DataSn(u32::from(command.read));
        if command.read {
            let mut data_in = self.script.data_in(command);
            data_in.numbers.max_cmd_sn = response.numbers.max_cmd_sn;
            let length = command.expected_data_transfer_length as usize;
            self.script.say(&TargetPdu::ScsiDataIn(data_in), &vec![7; length]);
        }
        self.script.say(&TargetPdu::ScsiResponse(response), &[]);
        self.counts();
    }

    fn manage(&mut self, request: &TaskManagementRequest) {
        let _ = self.seen.send(Seen::Function(request.function));
        if let Some(command) = self.late.take() {
            self.answer(&command, 31);
        }
        let is_abort = request.function == TaskManagementFunction::AbortTask;
        let numbers = self.numbers(request.cmd_sn);
        match if is_abort { self.rules.abort } else { self.rules.reset } {
            Reply::Silence => return,
            Reply::Code(response) => {
                let initiator_task_tag = request.initiator_task_tag;
                let additional = [0; 3];
                self.script.say(
                    &TargetPdu::TaskManagementResponse(TaskManagementResponse {
                        response,
                        initiator_task_tag,
                        numbers,
                        additional,
                    }),
                    &[],
                );
            }
            Reply::Reject => {
                let reject = Reject { reason: 5, numbers, data_sn: DataSn(0) };
                self.script.say(&TargetPdu::Reject(reject), &request.encode());
            }
        }
        self.counts();
    }
}

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

#[test]
fn abort_task_ends_a_command_which_goes_on_once_more() {
    // Complete; and a task that the target does not know.
    at_once(&[(Reply::Code(0), PATIENT), (Reply::Code(1), PATIENT)], |abort, limit| {
        let rules = Rules { fate: first_is_swallowed, abort, reset: Reply::Silence };
        let timing = Timing { command: Some(LIMIT), abort: limit, ..Timing::default() };
        let (done, steps, seen) = one_read(rules, timing);
        assert!(done.is_good() && done.attempts == 2 && done.data() == [7; 512], "{:?}", done.result);
        assert_eq!(steps, [(Remedy::AbortTask, false), (Remedy::AbortTask, true)]);
        let abort = Seen::Function(TaskManagementFunction::AbortTask);
        assert_eq!(seen, [Seen::Command(READ_16), abort, Seen::Command(READ_16)]);
    });
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

#[test]
fn a_logical_unit_reset_follows_an_abort_that_does_not_help() {
    let refusals = [
        (Reply::Code(255), PATIENT),
        (Reply::Code(5), PATIENT),
        (Reply::Reject, PATIENT),
        (Reply::Silence, SHORT),
    ];
    at_once(&refusals, |abort, limit| {
        let rules = Rules { fate: first_is_swallowed, abort, reset: Reply::Code(0) };
        let timing = Timing { command: Some(LIMIT), abort: limit, reset: PATIENT, ..Timing::default() };
        let (done, steps, _) = one_read(rules, timing);
        assert!(done.is_good() && done.attempts == 2, "{abort:?}: {:?}", done.result);
        let reset = Remedy::LogicalUnitReset;
        assert_eq!(steps, [(Remedy::AbortTask, false), (reset, false), (reset, true)], "{abort:?}");
    });
}

#[test]
fn a_new_session_follows_a_reset_that_does_not_help() {
    at_once(
        &[(Reply::Code(255), PATIENT), (Reply::Reject, PATIENT), (Reply::Silence, SHORT)],
        |reset, limit| {
            let rules = Rules { fate: first_is_swallowed, abort: Reply::Silence, reset };
            let timing = Timing { command: Some(LIMIT), abort: SHORT, reset: limit, ..Timing::default() };
            let (done, steps, _) = one_read(rules, timing);
            assert!(done.is_good() && done.attempts == 2, "{reset:?}: {:?}", done.result);
            let told = [Remedy::AbortTask, Remedy::LogicalUnitReset, Remedy::Reinstatement];
            let told = told.map(|remedy| (remedy, false));
            assert_eq!(steps, [&told[..], &[(Remedy::Reinstatement, true)]].concat(), "{reset:?}");
        },
    );
}

/// Each case waits for a limit: they wait together.
fn at_once(cases: &[(Reply, Duration)], run: impl Fn(Reply, Duration) + Sync) {
    std::thread::scope(|scope| {
        for &(reply, limit) in cases {
            let run = &run;
            scope.spawn(move || run(reply, limit));
        }
    });
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
        let rules = Rules { fate: writes_are_swallowed, abort, reset: Reply::Silence };
        let (address, _seen) = serve(rules);
        let limit = if remedy == Remedy::AbortTask { PATIENT } else { SHORT };
        let timing = Timing { command: None, abort: limit, reset: SHORT, ..Timing::default() };
        let mut engine = connect(address, timing);
        let doubtful = engine.submit(write(0, 0, 1, pattern(1, 512)).within(SHORT));
        let safe = engine.submit(write(0, 1, 1, pattern(2, 512)).within(SHORT).replaying(Replay::Always));
        let (done, _) = ended(&mut engine, &[doubtful, safe]);
        let Err(CommandError::Overdue { ended_by, .. }) = done[0].result else {
            panic!("{:?}", done[0].result)
        };
        assert_eq!((ended_by, done[0].attempts), (remedy, 1));
        // In the same session it is swallowed again, in the next it is not.
        assert_eq!((done[1].is_good(), done[1].attempts), (remedy == Remedy::Reinstatement, 2));
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

/// The target answers the first command and lets no other in; so it is in the first session alone.
#[test]
fn a_window_that_stays_closed_ends_the_session() {
    fn closing(connection: u32, _: &ScsiCommand) -> Fate {
        if connection == 0 { Fate::Last } else { Fate::Answered }
    }
    let rules = Rules { fate: closing, abort: Reply::Silence, reset: Reply::Silence };
    let (address, seen) = serve(rules);
    let mut engine = connect(address, Timing { command: Some(LIMIT), ..Timing::default() });
    // The login has left room for more than one.
    let ids: Vec<_> = (0..200).map(|lba| engine.submit(write(0, lba, 1, pattern(lba, 512)))).collect();
    let (done, steps) = ended(&mut engine, &ids);
    assert!(done.iter().all(|completion| completion.is_good() && completion.attempts <= 2));
    assert_eq!(steps, [(Remedy::Reinstatement, false), (Remedy::Reinstatement, true)]);
    assert!(seen.try_iter().all(|seen| matches!(seen, Seen::Command(_))), "there is nothing to abort");
}

/// Our target waits for its store before it says that a command is aborted, and the store does not move.
#[test]
fn a_store_that_stands_still_costs_one_session() {
    let target = InProcess::start(&["mem:16M"]);
    let timing = Timing { recovery: PATIENT, abort: SHORT, reset: SHORT, ..Timing::default() };
    let mut engine =
        Engine::connect(Options { timing, ..options(target.name(), target.portal()) }).expect("a session");
    make_ready(&mut engine, 0);
    target.hold(0, OperationKind::Read);
    let id = engine.submit(read(0, 0, 1, 512).within(LIMIT));
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
    assert_eq!(steps, [Remedy::AbortTask, Remedy::LogicalUnitReset]);
    assert!(done[0].id == id && done[0].is_good() && done[0].attempts >= 2, "{:?}", done[0].result);
    engine.close().expect("a logout");
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
