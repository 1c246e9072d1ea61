//! Targets that ask for a logout (RFC 7143, 11.9.1): what is under way ends, or goes on in the next session.

use std::io::{ErrorKind, Read};
use std::net::{SocketAddr, TcpListener};
use std::time::Duration;

use lunette_block::OperationKind;
use lunette_initiator::{Command, CommandError, Engine, EngineEvent, Options, Replay, Timing};
use lunette_tests::in_process::InProcess;
use lunette_wire::target::{AsynchronousMessage, LogoutResponse};
use lunette_wire::{InitiatorPdu, InitiatorTaskTag, LunField, StatSn, TargetPdu};

use super::hostile::{NAME, Script};
use lunette_tests::engine::{lun, make_ready, options, pattern, read, wait_for_all, write};
use lunette_tests::relay::Relay;

fn connect(target: &str, address: SocketAddr) -> Engine {
    let timing = Timing { recovery: Duration::from_secs(600), ..Timing::default() };
    Engine::connect(Options { timing, ..options(target, address) }).expect("a session")
}

const MOVED: &str = "iqn.2026-11.io.lunette:moved";

fn serve() -> InProcess {
    InProcess::start_with(&["mem:16M,serial=moved"], |config| {
        config.targets[0].name = MOVED.to_owned();
        config.limits.drain_timeout_s = 600;
    })
}

#[test]
fn what_is_under_way_is_finished_before_the_session_moves() {
    let target = serve();
    let relay = Relay::to(target.portal());
    let mut engine = connect(MOVED, relay.address);
    make_ready(&mut engine, 0);
    target.hold(0, OperationKind::Write);
    let calls = target.faults(0).calls(OperationKind::Write);
    let writes: Vec<_> = (0..8).map(|lba| engine.submit(write(0, lba, 1, pattern(lba, 512)))).collect();
    let mut done = Vec::new();
    engine.poll(Some(Duration::ZERO), &mut done).expect("the system lets us");
    target.wait_for_calls(0, OperationKind::Write, calls + 1);
    let next = serve();
    relay.lead_to(next.portal());
    target.drain();
    while !matches!(engine.event(), Some(EngineEvent::LogoutRequested { .. })) {
        engine.poll(None, &mut done).expect("the system lets us");
    }
    let later = engine.submit(Command::new(lun(0), [0; 6]));
    target.faults(0).clear();
    while engine.outstanding() > 0 {
        engine.poll(None, &mut done).expect("the system lets us");
    }
    for id in writes {
        let completion = done.iter().find(|completion| completion.id == id).expect("it ends");
        assert!(completion.is_good() && completion.attempts == 1, "{:?}", completion.result);
    }
    assert!(done.iter().any(|completion| completion.id == later));
    assert!(target.end().expect("an end").is_ok(), "it was left by a logout");
    make_ready(&mut engine, 0);
    engine.close().expect("a logout");
}

/// The second is asked for while the answer to the first is on its way.
#[test]
fn a_session_whose_connections_are_all_logged_out_goes_on_in_the_next_one() {
    let target = serve();
    let relay = Relay::slow(target.portal(), 64 << 10);
    let timing = Timing { recovery: Duration::from_secs(600), ..Timing::default() };
    let options = Options { timing, connections: 2, ..options(MOVED, relay.address) };
    let mut engine = Engine::connect(options).expect("a session");
    make_ready(&mut engine, 0);
    assert_eq!(engine.connections().len(), 2);
    let next = serve();
    relay.lead_to(next.portal());
    target.drain();
    loop {
        engine.poll(Some(Duration::ZERO), &mut Vec::new()).expect("the system lets us");
        assert!(!engine.is_over(), "{:?}", engine.event());
        if matches!(engine.event(), Some(EngineEvent::Reconnected { .. })) {
            break;
        }
    }
    make_ready(&mut engine, 0);
    engine.close().expect("a logout");
}

/// Asks for a logout at once, when a command is under way, and answers it; the next session is a good one.
fn impatient(commands: usize) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    std::thread::spawn(move || {
        let mut target = Script::log_in(listener.accept().expect("a connection").0);
        let mut last = target.command();
        for _ in 1..commands {
            last = target.command();
        }
        let message = AsynchronousMessage {
            lun: LunField::default(),
            numbers: target.numbers(&last),
            event: 1,
            vendor_code: 0,
            parameters: [0; 3],
        };
        target.say(&TargetPdu::AsynchronousMessage(message), &[]);
        target.stat_sn = StatSn(target.stat_sn.0.wrapping_add(1));
        let initiator_task_tag = logout_of(&mut target);
        let response = LogoutResponse {
            initiator_task_tag,
            numbers: target.numbers(&last),
            ..LogoutResponse::default()
        };
        target.say(&TargetPdu::LogoutResponse(response), &[]);
        assert!(target.try_receive().is_none(), "a connection that is logged out is closed");
        let mut target = Script::log_in(listener.accept().expect("a connection").0);
        loop {
            let command = target.command();
            let mut response = target.response(&command);
            if command.read {
                target.say(&TargetPdu::ScsiDataIn(target.data_in(&command)), &[7; 512]);
            } else {
                response.exp_data_sn.0 = 0;
            }
            target.say(&TargetPdu::ScsiResponse(response), &[]);
            target.stat_sn = StatSn(target.stat_sn.0.wrapping_add(1));
        }
    });
    address
}

fn logout_of(target: &mut Script) -> InitiatorTaskTag {
    loop {
        if let InitiatorPdu::LogoutRequest(request) = target.receive() {
            return request.initiator_task_tag;
        }
    }
}

#[test]
fn what_is_not_finished_in_time_goes_on_in_the_next_session() {
    let mut engine = connect(NAME, impatient(3));
    let again = engine.submit(read(0, 0, 1, 512));
    let safe = engine.submit(write(0, 1, 1, pattern(1, 512)).replaying(Replay::Always));
    let doubtful = engine.submit(write(0, 2, 1, pattern(2, 512)));
    let all = wait_for_all(&mut engine);
    assert!(all[&again].is_good() && all[&again].data() == [7; 512], "{:?}", all[&again].result);
    assert!(all[&safe].is_good() && all[&safe].attempts == 2, "{:?}", all[&safe].result);
    let Err(CommandError::Unknown(reason)) = &all[&doubtful].result else {
        panic!("{:?}", all[&doubtful].result)
    };
    assert!(reason.contains("the target asked for a logout"), "{reason}");
}

#[test]
fn what_is_aborted_by_a_logout_of_this_side_says_so() {
    let target = InProcess::start(&["mem:16M"]);
    let mut engine = connect(target.name(), target.portal());
    make_ready(&mut engine, 0);
    target.hold(0, OperationKind::Read);
    let calls = target.faults(0).calls(OperationKind::Read);
    let id = engine.submit(read(0, 0, 1, 512));
    engine.poll(Some(Duration::ZERO), &mut Vec::new()).expect("the system lets us");
    target.wait_for_calls(0, OperationKind::Read, calls + 1);
    engine.log_out();
    engine.poll(Some(Duration::ZERO), &mut Vec::new()).expect("the system lets us");
    target.faults(0).clear();
    let all = wait_for_all(&mut engine);
    let result = &all[&id].result;
    assert!(matches!(result, Err(CommandError::Aborted) | Ok(_)), "{result:?}");
    assert!(engine.event().is_none_or(|event| matches!(event, EngineEvent::Over { .. })));
}

/// What the system still has of an abandoned session would go on over a slow line for as long as that takes.
#[test]
fn an_abandoned_session_sends_nothing_more() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    let (abandon, abandoned) = std::sync::mpsc::channel();
    let target = std::thread::spawn(move || {
        let mut target = Script::log_in(listener.accept().expect("a connection").0);
        abandoned.recv().expect("a word");
        let end = target.stream.read_to_end(&mut Vec::new());
        assert!(end.as_ref().is_err_and(|error| error.kind() == ErrorKind::ConnectionReset), "{end:?}");
    });
    let mut engine = connect(NAME, address);
    engine.submit(write(0, 0, 8, pattern(0, 4096)));
    engine.poll(Some(Duration::ZERO), &mut Vec::new()).expect("the system lets us");
    engine.abandon();
    abandon.send(()).expect("a target");
    target.join().expect("a reset");
}
