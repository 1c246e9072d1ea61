//! Units that are others, or larger, after their session was lost: nothing is written to them.

use std::net::{SocketAddr, TcpListener};
use std::time::Duration;

use lunette_block::OperationKind;
use lunette_initiator::{
    Command, CommandError, CommandId, Completion, Data, Engine, EngineEvent, Options, Replay, Timing,
};
use lunette_scsi::client::{Next, Probe, Reply, Transfer, UnitIdentity};
use lunette_tests::in_process::InProcess;
use lunette_wire::target::{Residual, ScsiResponse};
use lunette_wire::{DataSn, StatSn, TargetPdu};

use super::hostile::Script;
use lunette_tests::engine::{
    execute, lun, make_ready, options, pattern, read, wait_for, wait_for_all, write,
};
use lunette_tests::relay::Relay;

const NAME: &str = "iqn.2026-11.io.lunette:guarded";

/// The unit is known by its serial number.
fn serve(unit: &str) -> InProcess {
    InProcess::start_with(&[unit], |config| config.targets[0].name = NAME.to_owned())
}

const DISK: &str = "mem:16M,serial=first";

/// Asks a unit what it is.
pub(super) fn identity(engine: &mut Engine, unit: u16) -> UnitIdentity {
    let mut probe = Probe::new();
    loop {
        let Next::Send(ticket, command) = probe.proceed() else {
            return UnitIdentity::of(&probe.into_facts().expect("a disk"));
        };
        let data = match command.transfer() {
            Transfer::In { length_bytes } => Data::In(vec![0; *length_bytes as usize]),
            _ => Data::None,
        };
        let asked = Command { data, ..Command::new(lun(unit), command.cdb()) };
        let completion = execute(engine, asked);
        let status = completion.result.clone().expect("an answer");
        let code = lunette_scsi::Status::from_code(status.code);
        probe.answered(ticket, Reply { status: code, sense: &status.sense, data: completion.data() });
    }
}

/// An engine with a guarded unit, and a write in it whose target is gone.
fn gone() -> (Engine, Relay, CommandId) {
    let target = serve(DISK);
    let relay = Relay::to(target.portal());
    let timing = Timing { recovery: Duration::from_secs(600), ..Timing::default() };
    let mut engine = Engine::connect(Options { timing, ..options(NAME, relay.address) }).expect("a session");
    make_ready(&mut engine, 0);
    let identity = identity(&mut engine, 0);
    engine.guard(lun(0), identity);
    target.hold(0, OperationKind::Write);
    let id = engine.submit(write(0, 0, 8, pattern(1, 4096)).replaying(Replay::Always));
    engine.poll(Some(Duration::ZERO), &mut Vec::new()).expect("the system lets us");
    target.wait_for_calls(0, OperationKind::Write, 1);
    relay.close();
    drop(target);
    (engine, relay, id)
}

/// Waits until nothing is under way any more; what has ended, and what was told.
fn all_of(engine: &mut Engine) -> (Vec<Completion>, Vec<EngineEvent>) {
    let (mut done, mut events) = (Vec::new(), Vec::new());
    while engine.outstanding() > 0 {
        engine.poll(None, &mut done).expect("the system lets us");
        events.extend(std::iter::from_fn(|| engine.event()));
    }
    (done, events)
}

/// What becomes of the write once this unit is behind the same number; and what was told.
fn comes_back(unit: &str) -> (Result<bool, CommandError>, Vec<EngineEvent>) {
    let (mut engine, relay, id) = gone();
    let target = serve(unit);
    relay.lead_to(target.portal());
    relay.open();
    let (done, events) = all_of(&mut engine);
    let write = done.iter().find(|completion| completion.id == id).expect("it ends");
    let result = write.result.as_ref().map(lunette_initiator::Status::is_good).map_err(Clone::clone);
    if result.is_err() {
        let later = execute(&mut engine, read(0, 0, 8, 512));
        assert!(matches!(later.result, Err(CommandError::Changed(_))), "{:?}", later.result);
        // Whoever looks at it and says that it is the right one may go on.
        let mut other = Engine::connect(options(NAME, target.portal())).expect("a session");
        make_ready(&mut other, 0);
        let identity = identity(&mut other, 0);
        other.close().expect("a logout");
        engine.guard(lun(0), identity);
    }
    let content = execute(&mut engine, read(0, 0, 8, 512));
    let expected = if result.is_ok() { pattern(1, 4096) } else { vec![0; 4096] };
    assert!(content.is_good() && content.data() == expected, "{:?}", content.result);
    engine.close().expect("a logout");
    (result, events)
}

#[test]
fn another_unit_gets_none_of_the_writes() {
    let (result, events) = comes_back("mem:16M,serial=other");
    let Err(CommandError::Changed(what)) = &result else { panic!("{result:?}") };
    assert!(what.starts_with("it was ") && what.contains(", and is "), "{what}");
    assert!(events.iter().any(|event| matches!(event, EngineEvent::UnitChanged { .. })), "{events:?}");
}

/// What an engine asks of a unit at first: INQUIRY, the list of VPD pages, TEST UNIT READY.
const QUESTIONS: usize = 3;

/// A target that is asked three times what a unit is, has none the first time, refuses to say the second, and breaks off.
fn start_slowly() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    std::thread::spawn(move || {
        let mut target = Script::log_in(listener.accept().expect("a connection").0);
        let inquiry = target.command();
        // PERIPHERAL QUALIFIER 011b: nothing is configured at this number.
        let mut data = [0; 36];
        (data[0], data[4]) = (0x7f, 31);
        target.say(&TargetPdu::ScsiDataIn(target.data_in(&inquiry)), &data);
        let residual = Residual::Underflow(inquiry.expected_data_transfer_length - 36);
        target.say(&TargetPdu::ScsiResponse(ScsiResponse { residual, ..target.response(&inquiry) }), &[]);
        target.stat_sn = StatSn(target.stat_sn.0.wrapping_add(1));
        for _ in 1..2 * QUESTIONS {
            let asked = target.command();
            let residual = match asked.expected_data_transfer_length {
                0 => Residual::None,
                length => Residual::Underflow(length),
            };
            let (status, exp_data_sn) = (0x18, DataSn(0));
            let refused = ScsiResponse { status, residual, exp_data_sn, ..target.response(&asked) };
            target.say(&TargetPdu::ScsiResponse(refused), &[]);
            target.stat_sn = StatSn(target.stat_sn.0.wrapping_add(1));
        }
        target.command();
    });
    address
}

#[test]
fn a_unit_that_does_not_say_what_it_is_is_asked_again() {
    let (mut engine, relay, id) = gone();
    relay.lead_to(start_slowly());
    relay.open();
    let mut done = Vec::new();
    for awaited in ["the slow target", "its end"] {
        loop {
            engine.poll(None, &mut done).expect("the system lets us");
            assert!(done.is_empty(), "{:?}", done[0].result);
            match engine.event() {
                Some(EngineEvent::Reconnected { .. }) if awaited == "the slow target" => break,
                Some(EngineEvent::Lost { .. }) if awaited == "its end" => break,
                _ => {}
            }
        }
    }
    let target = serve(DISK);
    relay.lead_to(target.portal());
    let written = wait_for(&mut engine, id);
    assert!(written.is_good(), "{:?}", written.result);
    engine.close().expect("a logout");
}

#[test]
fn a_unit_of_another_size_gets_none_of_the_writes() {
    let (result, _) = comes_back("mem:32M,serial=first");
    let Err(CommandError::Changed(what)) = &result else { panic!("{result:?}") };
    assert!(what.contains("had 32768 blocks of 512 bytes, and has 65536"), "{what}");
}

#[test]
fn a_unit_that_may_grow_goes_on_when_it_has() {
    let (mut engine, relay, id) = gone();
    let before = serve(DISK);
    let mut other = Engine::connect(options(NAME, before.portal())).expect("a session");
    let known = identity(&mut other, 0);
    drop(before);
    engine.guard(lun(0), known.growing());
    let target = serve("mem:32M,serial=first");
    relay.lead_to(target.portal());
    relay.open();
    let (done, events) = all_of(&mut engine);
    assert!(done.iter().any(|completion| completion.id == id && completion.is_good()), "{done:?}");
    let has_grown = |event: &&EngineEvent| matches!(event, EngineEvent::UnitGrown { .. });
    assert_eq!(events.iter().filter(has_grown).count(), 1, "{events:?}");
    assert!(execute(&mut engine, read(0, (16 << 20) / 512, 8, 512)).is_good(), "behind the old end");
    engine.close().expect("a logout");
}

#[test]
fn the_same_unit_goes_on() {
    let (result, events) = comes_back(DISK);
    assert_eq!(result, Ok(true), "{events:?}");
}

/// The connection breaks again and again while the unit is looked at.
#[test]
fn a_session_that_is_lost_again_while_the_unit_is_looked_at_looks_again() {
    let (mut engine, relay, id) = gone();
    let target = serve(DISK);
    relay.lead_to(target.portal());
    relay.open();
    for _ in 0..3 {
        while !engine.is_up() {
            engine.poll(None, &mut Vec::new()).expect("the system lets us");
        }
        relay.cut();
        while engine.is_up() && engine.outstanding() > 0 {
            engine.poll(None, &mut Vec::new()).expect("the system lets us");
            assert!(engine.outstanding() <= 16, "the write, and what the engine asks: each question once");
        }
        while engine.event().is_some() {}
    }
    let later = engine.submit(read(0, 8, 8, 512));
    let all = wait_for_all(&mut engine);
    assert!(all.keys().all(|of| *of == id || *of == later), "{all:?}");
    assert!(all[&later].is_good());
    engine.close().expect("a logout");
}

/// It is not asked again, and nobody else has to wait for an answer that it will not give.
#[test]
fn a_unit_that_has_changed_does_not_stop_the_sessions_that_follow() {
    let (mut engine, relay, id) = gone();
    let target = InProcess::start_with(&["mem:16M,serial=other", "mem:16M"], |config| {
        config.targets[0].name = NAME.to_owned();
    });
    relay.lead_to(target.portal());
    relay.open();
    let ended = wait_for(&mut engine, id);
    assert!(matches!(ended.result, Err(CommandError::Changed(_))), "{:?}", ended.result);
    for _ in 0..3 {
        relay.cut();
        while !matches!(engine.event(), Some(EngineEvent::Reconnected { .. })) {
            let mut done = Vec::new();
            engine.poll(None, &mut done).expect("the system lets us");
            assert!(done.is_empty(), "nobody has asked for {done:?}");
        }
        make_ready(&mut engine, 1);
        let there = execute(&mut engine, read(0, 0, 1, 512)).result;
        assert!(matches!(there, Err(CommandError::Changed(_))), "{there:?}");
    }
    engine.close().expect("a logout");
}

#[test]
fn a_reset_that_a_caller_hears_of_fails_the_next_flush_if_something_was_written() {
    let target = InProcess::start(&["mem:16M"]);
    let session = || Engine::connect(options(target.name(), target.portal())).expect("a session");
    let (mut engine, mut other) = (session(), session());
    make_ready(&mut engine, 0);
    make_ready(&mut other, 0);
    let flush = || Command::new(lun(0), [0x35, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    for has_written in [true, false] {
        if has_written {
            assert!(execute(&mut engine, write(0, 0, 1, pattern(1, 512))).is_good());
        }
        let reset = lunette_initiator::Function::LogicalUnitReset(lun(0).field());
        other.manage(reset).expect("a session");
        while !matches!(other.event(), Some(EngineEvent::Managed { response: 0, .. })) {
            other.poll(None, &mut Vec::new()).expect("the system lets us");
        }
        let heard = execute(&mut engine, read(0, 0, 1, 512)).result.expect("an answer");
        assert!(heard.is_check_condition(), "the caller hears of it: {heard:?}");
        let flushed = execute(&mut engine, flush());
        if has_written {
            assert_eq!(flushed.result, Err(CommandError::ResetSinceFlush));
        }
        assert!(execute(&mut engine, flush()).is_good(), "once");
        assert!(has_written || flushed.is_good(), "nothing was written since: {:?}", flushed.result);
    }
    engine.close().expect("a logout");
    other.close().expect("a logout");
}
