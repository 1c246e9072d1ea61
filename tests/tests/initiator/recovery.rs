//! Sessions that are lost: commands that go on in the next one, and commands that must not.

use std::net::{Shutdown, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use lunette_block::OperationKind;
use lunette_initiator::{
    Command, CommandError, CommandId, Engine, EngineEvent, Options, Replay, Timing, Wishes,
};
use lunette_tests::in_process::InProcess;
use lunette_tests::lunette::{Lunette, TARGET_NAME};

use lunette_tests::engine::{
    execute, lun, make_ready, options, pattern, portal_of, read, wait_for_all, write,
};
use lunette_tests::relay::Relay;

/// Tests wait for an end, never for a time.
fn patient(options: Options) -> Options {
    Options { timing: Timing { recovery: Duration::from_secs(600), ..Timing::default() }, ..options }
}

fn connect(options: Options) -> Engine {
    Engine::connect(options).unwrap_or_else(|error| panic!("{error}"))
}

/// A session at ErrorRecoveryLevel 2 over a relay.
fn at_level_two(target: &InProcess, relay: &Relay, connections: u16) -> Engine {
    let wishes = Wishes { error_recovery_level: 2, ..Wishes::default() };
    let engine = connect(Options { wishes, connections, ..patient(options(target.name(), relay.address)) });
    assert_eq!(engine.parameters().error_recovery_level, 2);
    engine
}

#[test]
fn at_level_two_tasks_outlive_their_connections() {
    let target = InProcess::start_with(&["mem:64M"], |config| config.limits.error_recovery_level = 2);
    let relay = Relay::to(target.portal());
    for connections in [1, 2] {
        let mut engine = at_level_two(&target, &relay, connections);
        make_ready(&mut engine, 0);
        let data = |lba: u64| pattern(300 + lba, 512);
        target.hold(0, OperationKind::Write);
        let calls = target.faults(0).calls(OperationKind::Write);
        let writes: Vec<_> = (0..16).map(|lba| engine.submit(write(0, lba, 1, data(lba)))).collect();
        send(&mut engine);
        target.wait_for_calls(0, OperationKind::Write, calls + 1);
        relay.cut();
        target.faults(0).clear();
        let all = wait_for_all(&mut engine);
        for id in &writes {
            assert!(all[id].is_good() && all[id].attempts == 1, "{:?}", all[id].result);
        }
        for lba in 0..16 {
            assert!(execute(&mut engine, read(0, lba, 1, 512)).data() == data(lba));
        }
        engine.close().expect("a logout");
    }
}

/// It may be away for good.
#[test]
fn at_level_two_a_connection_that_cannot_be_had_again_is_tried_less_and_less_often() {
    let target = InProcess::start_with(&["mem:64M"], |config| config.limits.error_recovery_level = 2);
    let relay = Relay::to(target.portal());
    let mut engine = at_level_two(&target, &relay, 2);
    make_ready(&mut engine, 0);
    relay.leave_one();
    let since = Instant::now();
    let (mut tries, mut seen, mut told) = (0, engine.login_record().attempts.len(), 0);
    let turn = |engine: &mut Engine| {
        engine.poll(Some(Duration::from_millis(20)), &mut Vec::new()).expect("the system lets us");
        let events = std::iter::from_fn(|| engine.event());
        events.filter(|event| matches!(event, EngineEvent::ConnectionMissing { .. })).count()
    };
    while tries < 4 {
        told += turn(&mut engine);
        let recorded = engine.login_record().attempts.len();
        tries += usize::from(recorded > seen);
        seen = recorded;
    }
    // After half a second, one, and two.
    assert!(since.elapsed() >= Duration::from_millis(3500), "{:?}", since.elapsed());
    assert_eq!(told, 1);
    relay.open();
    while engine.connections().len() < 2 {
        assert_eq!(turn(&mut engine), 0);
    }
    for lba in 0..4 {
        assert!(execute(&mut engine, write(0, lba, 1, pattern(lba, 512))).is_good());
    }
    engine.close().expect("a logout");
}

/// Sends what was submitted.
fn send(engine: &mut Engine) {
    engine.poll(Some(Duration::ZERO), &mut Vec::new()).expect("the system lets us");
}

#[test]
fn reads_go_on_in_the_next_session() {
    let target = InProcess::start(&["mem:64M"]);
    let relay = Relay::to(target.portal());
    for connections in [1, 3] {
        let options = Options { connections, ..patient(options(target.name(), relay.address)) };
        let mut engine = connect(options);
        make_ready(&mut engine, 0);
        let data = pattern(5, 32 * 512);
        assert!(execute(&mut engine, write(0, 0, 32, data.clone())).is_good());
        target.hold(0, OperationKind::Read);
        let calls = target.faults(0).calls(OperationKind::Read);
        let reads: Vec<_> = (0..32u64).map(|lba| engine.submit(read(0, lba, 1, 512))).collect();
        send(&mut engine);
        target.wait_for_calls(0, OperationKind::Read, calls + 1);
        relay.cut();
        target.faults(0).clear();
        let mut all = wait_for_all(&mut engine);
        for (lba, id) in reads.into_iter().enumerate() {
            let completion = all.remove(&id).expect("each ends");
            assert!(completion.is_good(), "{:?}", completion.result);
            // Once in each session, and once more behind the unit attention that the second begins with.
            assert!(completion.attempts <= 3 && completion.data() == &data[lba * 512..][..512]);
        }
        assert!(execute(&mut engine, read(0, 0, 8, 512)).is_good());
        engine.close().expect("a logout");
    }
}

#[test]
fn writes_that_may_have_run_go_on_only_when_they_are_said_to_be_safe() {
    let target = InProcess::start(&["mem:64M"]);
    let relay = Relay::to(target.portal());
    let mut engine = connect(patient(options(target.name(), relay.address)));
    make_ready(&mut engine, 0);
    target.hold(0, OperationKind::Write);
    let calls = target.faults(0).calls(OperationKind::Write);
    let data = |lba: u64| pattern(100 + lba, 512);
    let doubtful: Vec<_> = (0..8).map(|lba| engine.submit(write(0, lba, 1, data(lba)))).collect();
    let safe: Vec<_> =
        (8..16).map(|lba| engine.submit(write(0, lba, 1, data(lba)).replaying(Replay::Always))).collect();
    let flush = engine.submit(flush().replaying(Replay::Always));
    send(&mut engine);
    target.wait_for_calls(0, OperationKind::Write, calls + 1);
    relay.cut();
    target.faults(0).clear();
    let all = wait_for_all(&mut engine);
    assert_eq!(all[&flush].attempts, 1, "{:?}", all[&flush].result);
    for id in &doubtful {
        assert!(matches!(all[id].result, Err(CommandError::Unknown(_))), "{:?}", all[id].result);
    }
    for id in &safe {
        assert!(all[id].is_good() && all[id].attempts >= 2, "{:?}", all[id].result);
    }
    for lba in 8..16 {
        assert!(execute(&mut engine, read(0, lba, 1, 512)).data() == data(lba));
    }
    engine.close().expect("a logout");
}

#[test]
fn a_target_that_is_killed_in_the_middle_loses_and_doubles_nothing() {
    let directory = tempfile::tempdir().expect("a directory");
    let image = format!("0={},size=64M", directory.path().join("disk.img").display());
    let serve = || Lunette::serve().luns([&image]).start().expect("a target");
    let target = serve();
    let relay = Relay::to(target.portal());
    let mut engine = connect(patient(options(TARGET_NAME, relay.address)));
    make_ready(&mut engine, 0);
    let data = |lba: u64| pattern(7 + lba, 4096);
    for lba in 0..64 {
        engine.submit(write(0, lba * 8, 8, data(lba)).replaying(Replay::Always));
    }
    // Some may be answered before the target is dead.
    let mut early = Vec::new();
    engine.poll(Some(Duration::ZERO), &mut early).expect("the system lets us");
    target.kill().expect("killed");
    let target = serve();
    relay.lead_to(target.portal());
    let all = wait_for_all(&mut engine);
    assert_eq!(early.len() + all.len(), 64);
    for completion in early.iter().chain(all.values()) {
        assert!(completion.is_good(), "{:?}", completion.result);
    }
    // Where all were answered before, none is replayed that would take the new target's unit attention.
    make_ready(&mut engine, 0);
    for lba in 0..64 {
        let read = execute(&mut engine, read(0, lba * 8, 8, 512));
        assert!(read.is_good(), "{:?}", read.result);
        assert!(read.data() == data(lba), "block {}", lba * 8);
    }
    engine.close().expect("a logout");
    drop(target);
}

fn serve_memory(name: &str) -> InProcess {
    InProcess::start_with(&["mem:16M"], |config| config.targets[0].name = name.to_owned())
}

fn flush() -> Command {
    let mut cdb = [0; 10];
    cdb[0] = 0x35;
    Command::new(lun(0), cdb)
}

/// An engine whose target is gone, with a write in it that may be repeated.
fn gone_in_a_write(name: &str) -> (Engine, Relay, CommandId) {
    let target = serve_memory(name);
    let relay = Relay::to(target.portal());
    let mut engine = connect(patient(options(name, relay.address)));
    make_ready(&mut engine, 0);
    target.hold(0, OperationKind::Write);
    let id = engine.submit(write(0, 0, 8, pattern(1, 4096)).replaying(Replay::Always));
    send(&mut engine);
    target.wait_for_calls(0, OperationKind::Write, 1);
    relay.cut();
    drop(target);
    (engine, relay, id)
}

#[test]
fn a_flush_after_a_reset_that_nobody_saw_fails_once() {
    let name = "iqn.2026-11.io.lunette:flushed";
    let (mut engine, relay, id) = gone_in_a_write(name);
    let target = serve_memory(name);
    relay.lead_to(target.portal());
    let (mut done, mut has_attention) = (Vec::new(), false);
    while engine.outstanding() > 0 {
        engine.poll(None, &mut done).expect("the system lets us");
        while let Some(event) = engine.event() {
            has_attention |= matches!(event, EngineEvent::Attention { .. });
        }
    }
    assert!(done.iter().any(|completion| completion.id == id && completion.is_good()));
    assert!(has_attention, "the restart is told");
    assert_eq!(execute(&mut engine, flush()).result, Err(CommandError::ResetSinceFlush));
    assert!(execute(&mut engine, flush()).is_good());
    engine.close().expect("a logout");
    drop(target);
}

/// It goes out beside the write that takes the unit attention, and is good in the target's eyes.
#[test]
fn a_flush_beside_the_write_that_hears_of_a_reset_fails_too() {
    let name = "iqn.2026-11.io.lunette:beside";
    let (mut engine, relay, id) = gone_in_a_write(name);
    let mut done = Vec::new();
    while !matches!(engine.event(), Some(EngineEvent::Lost { .. })) {
        engine.poll(None, &mut done).expect("the system lets us");
    }
    let flushed = engine.submit(flush());
    let target = serve_memory(name);
    relay.lead_to(target.portal());
    let all = wait_for_all(&mut engine);
    assert!(all[&id].is_good(), "{:?}", all[&id].result);
    assert_eq!(all[&flushed].result, Err(CommandError::ResetSinceFlush));
    assert!(execute(&mut engine, flush()).is_good());
    engine.close().expect("a logout");
    drop(target);
}

#[test]
fn without_recovery_everything_ends_at_once() {
    let target = InProcess::start(&["mem:16M"]);
    let relay = Relay::to(target.portal());
    let timing = Timing { recovery: Duration::ZERO, ..Timing::default() };
    let mut engine = connect(Options { timing, ..options(target.name(), relay.address) });
    make_ready(&mut engine, 0);
    target.hold(0, OperationKind::Read);
    let calls = target.faults(0).calls(OperationKind::Read);
    let id = engine.submit(read(0, 0, 1, 512));
    send(&mut engine);
    target.wait_for_calls(0, OperationKind::Read, calls + 1);
    relay.cut();
    let mut done = Vec::new();
    while engine.outstanding() > 0 {
        engine.poll(None, &mut done).expect("the system lets us");
    }
    let ended = done.iter().find(|completion| completion.id == id).expect("it ends");
    let Err(CommandError::Unknown(reason)) = &ended.result else { panic!("{:?}", ended.result) };
    assert!(reason.contains(&relay.address.to_string()), "{reason}");
    assert!(engine.is_over());
    let later = engine.submit(read(0, 0, 1, 512));
    engine.poll(None, &mut done).expect("the system lets us");
    let ended = done.iter().find(|completion| completion.id == later).expect("it ends");
    assert!(matches!(ended.result, Err(CommandError::NotSent(_))), "{:?}", ended.result);
    target.faults(0).clear();
}

#[test]
fn a_target_that_does_not_come_back_is_given_up() {
    let target = InProcess::start(&["mem:16M"]);
    let relay = Relay::to(target.portal());
    let timing = Timing { recovery: Duration::from_millis(700), ..Timing::default() };
    let mut engine = connect(Options { timing, ..patient(options(target.name(), relay.address)) });
    make_ready(&mut engine, 0);
    target.hold(0, OperationKind::Read);
    let calls = target.faults(0).calls(OperationKind::Read);
    let read = engine.submit(read(0, 0, 1, 512));
    send(&mut engine);
    target.wait_for_calls(0, OperationKind::Read, calls + 1);
    relay.close();
    // It waits for the next session, which never comes; so does one that never left.
    while engine.is_up() {
        engine.poll(None, &mut Vec::new()).expect("the system lets us");
    }
    let unsent = engine.submit(Command::new(lun(0), [0; 6]));
    let (mut done, mut events): (Vec<lunette_initiator::Completion>, Vec<_>) = Default::default();
    while !engine.is_over() {
        engine.poll(None, &mut done).expect("the system lets us");
        events.extend(std::iter::from_fn(|| engine.event()));
    }
    events.extend(std::iter::from_fn(|| engine.event()));
    assert!(events.iter().any(|event| matches!(event, EngineEvent::Lost { .. })), "{events:?}");
    let Some(EngineEvent::Over { reason }) = events.last() else { panic!("{events:?}") };
    assert!(reason.contains("during login") || reason.contains("closed"), "{reason}");
    assert_eq!(engine.outstanding(), 0);
    let result = |id| &done.iter().find(|completion| completion.id == id).expect("it ends").result;
    assert!(matches!(result(read), Err(CommandError::Unknown(_))), "it had left: {:?}", result(read));
    assert!(matches!(result(unsent), Err(CommandError::NotSent(_))), "{:?}", result(unsent));
    target.faults(0).clear();
}

/// The first join hangs while its session is lost, and ends while that of the next session is under way.
#[test]
fn a_join_of_a_lost_session_is_not_taken_for_that_of_the_next() {
    let target = InProcess::start(&["mem:16M"]);
    let [first, second] = [0, 1].map(|_| Relay::to(target.portal()));
    let portals = [&first, &second].map(|relay| portal_of(relay.address)).to_vec();
    let options = patient(options(target.name(), first.address));
    let mut engine = connect(Options { portals, connections: 2, ..options });
    assert_eq!(engine.connections().len(), 2);
    let listen = || TcpListener::bind("127.0.0.1:0").expect("a port");
    let (silent, late) = (listen(), listen());
    let lead_to = |listener: &TcpListener| second.lead_to(listener.local_addr().expect("an address"));
    let reconnect = |engine: &mut Engine| {
        while !events(engine).iter().any(|event| matches!(event, EngineEvent::Reconnected { .. })) {}
    };
    lead_to(&silent);
    second.cut();
    reconnect(&mut engine);
    let (hanging, _) = silent.accept().expect("the first join");
    lead_to(&late);
    first.cut();
    reconnect(&mut engine);
    let (waiting, _) = late.accept().expect("the join of the next session");
    // Nor does a second try of the first join find anybody.
    lead_to(&silent);
    let known = engine.login_record().attempts.len();
    drop((hanging, silent));
    while engine.login_record().attempts.len() == known {
        assert_eq!(turn(&mut engine), []);
    }
    std::thread::spawn(move || {
        let far = TcpStream::connect(target.portal()).expect("the target");
        let both = [(&waiting, &far), (&far, &waiting)];
        std::thread::scope(|scope| {
            for (mut from, mut to) in both {
                scope.spawn(move || {
                    // Either end may end it.
                    let _ = std::io::copy(&mut from, &mut to);
                    let _ = to.shutdown(Shutdown::Write);
                });
            }
        });
    });
    while engine.connections().len() < 2 {
        assert_eq!(turn(&mut engine), []);
    }
    make_ready(&mut engine, 0);
    engine.close().expect("a logout");
}

/// What happens in the next moment.
fn turn(engine: &mut Engine) -> Vec<EngineEvent> {
    engine.poll(Some(Duration::from_millis(10)), &mut Vec::new()).expect("the system lets us");
    std::iter::from_fn(|| engine.event()).collect()
}

/// What happens next.
fn events(engine: &mut Engine) -> Vec<EngineEvent> {
    engine.poll(None, &mut Vec::new()).expect("the system lets us");
    std::iter::from_fn(|| engine.event()).collect()
}
