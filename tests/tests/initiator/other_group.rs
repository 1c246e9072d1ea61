//! Sessions that are lost while portals of several groups lead to their target: a login in another group leaves the old session alone.

use std::time::{Duration, Instant};

use lunette_initiator::{Command, CommandError, Engine, EngineEvent, Options, Replay, Timing, Wishes};
use lunette_target::config::{Config, PortalConfig};
use lunette_tests::engine::{
    execute, lun, make_ready, options, pattern, portal_of, read, wait_for_all, write,
};
use lunette_tests::in_process::InProcess;
use lunette_tests::relay::Relay;

/// A target with a portal in each of two groups, a relay to each, and the options of a session that knows both.
fn two_groups(change: impl FnOnce(&mut Config)) -> (InProcess, [Relay; 2], Options) {
    let target = InProcess::start_with(&["mem:16M"], |config| {
        let portal = |group| PortalConfig { address: "127.0.0.1:0".parse().expect("an address"), group };
        config.portals = vec![portal(1), portal(2)];
        change(config);
    });
    let relays = [0, 1].map(|at| Relay::to(target.portals()[at]));
    let both = relays.iter().map(|relay| portal_of(relay.address)).collect();
    let timing = Timing { recovery: Duration::from_secs(600), ..Timing::default() };
    let options = Options { portals: both, timing, ..options(target.name(), relays[0].address) };
    (target, relays, options)
}

/// Generous: tests share the machine.
const LIMIT: Duration = Duration::from_secs(60);

/// The events of this turn.
fn turn(engine: &mut Engine) -> Vec<EngineEvent> {
    let began = Instant::now();
    engine.poll(Some(LIMIT), &mut Vec::new()).expect("the system lets us");
    assert!(began.elapsed() < LIMIT, "nothing happens");
    std::iter::from_fn(|| engine.event()).collect()
}

fn portals_of(engine: &Engine) -> Vec<u16> {
    engine.connections().iter().map(|connection| connection.portal.port).collect()
}

#[test]
fn what_a_lost_session_may_still_write_is_ended_before_anything_newer_is_written() {
    let (_target, [first, _second], options) = two_groups(|_| ());
    let mut engine = Engine::connect(options).unwrap_or_else(|error| panic!("{error}"));
    make_ready(&mut engine, 0);
    first.hold();
    let old = engine.submit(write(0, 0, 1, pattern(1, 512)));
    engine.poll(Some(Duration::ZERO), &mut Vec::new()).expect("the system lets us");
    first.close_near();
    let done = wait_for_all(&mut engine);
    assert!(matches!(done[&old].result, Err(CommandError::Unknown(_))), "{:?}", done[&old].result);
    // The other group would have it, and the write is on its way in the first one.
    let refused = loop {
        let tried = turn(&mut engine).into_iter().find_map(|event| match event {
            EngineEvent::TryFailed { reason } => Some(reason),
            EngineEvent::Reconnected { portal, .. } => panic!("{portal} has it"),
            _ => None,
        });
        if let Some(reason) = tried {
            break reason;
        }
    };
    assert!(refused.contains("is in another portal group"), "{refused}");
    // It is ended as soon as its portal can be reached.
    first.open();
    while !turn(&mut engine).iter().any(|event| matches!(event, EngineEvent::Reconnected { .. })) {}
    assert_eq!(portals_of(&engine), [first.address.port()]);
    let newer = pattern(2, 512);
    make_ready(&mut engine, 0);
    assert!(execute(&mut engine, write(0, 0, 1, newer.clone())).is_good());
    first.release();
    assert!(execute(&mut engine, read(0, 0, 1, 512)).data() == newer);
    engine.close().expect("a logout");
}

/// What changes nothing is no danger to anybody.
#[test]
fn a_session_that_changed_nothing_goes_on_in_another_group() {
    let flush = Command::new(lun(0), [0x35, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    for (command, is_again) in [(read(0, 0, 1, 512), true), (flush, false)] {
        let (_target, [first, second], options) = two_groups(|_| ());
        let mut engine = Engine::connect(options).unwrap_or_else(|error| panic!("{error}"));
        make_ready(&mut engine, 0);
        first.hold();
        let id = engine.submit(command);
        engine.poll(Some(Duration::ZERO), &mut Vec::new()).expect("the system lets us");
        first.close_near();
        assert_eq!(wait_for_all(&mut engine)[&id].is_good(), is_again);
        while portals_of(&engine) != [second.address.port()] {
            turn(&mut engine);
        }
        make_ready(&mut engine, 0);
        engine.close().expect("a logout");
    }
}

/// It is the address that counts, and who is there now: the old group is there no more.
#[test]
fn a_target_that_comes_back_in_another_group_at_the_same_place_is_taken() {
    let (target, [first, _], options) = two_groups(|_| ());
    let portals = vec![portal_of(first.address)];
    let mut engine =
        Engine::connect(Options { portals, ..options }).unwrap_or_else(|error| panic!("{error}"));
    make_ready(&mut engine, 0);
    first.hold();
    let old = engine.submit(write(0, 0, 1, pattern(1, 512)).replaying(Replay::Always));
    engine.poll(Some(Duration::ZERO), &mut Vec::new()).expect("the system lets us");
    first.lead_to(target.portals()[1]);
    first.cut();
    assert!(wait_for_all(&mut engine)[&old].is_good());
    engine.close().expect("a logout");
}

/// The first portal is away while the session begins and there when its connection breaks.
#[test]
fn a_lost_connection_is_replaced_in_the_group_of_its_session() {
    for (level, connections) in [(0, 1), (2, 1), (2, 2)] {
        let (_target, [first, second], options) =
            two_groups(|config| config.limits.error_recovery_level = level);
        let wishes = Wishes { error_recovery_level: level, ..Wishes::default() };
        first.close();
        let mut engine = Engine::connect(Options { wishes, connections, ..options })
            .unwrap_or_else(|error| panic!("{error}"));
        let there = vec![second.address.port(); usize::from(connections)];
        assert_eq!(portals_of(&engine), there);
        first.open();
        make_ready(&mut engine, 0);
        second.cut();
        let written = engine.submit(write(0, 0, 1, pattern(3, 512)));
        let done = wait_for_all(&mut engine);
        assert!(level == 0 || done[&written].is_good(), "{:?}", done[&written].result);
        while portals_of(&engine) != there {
            for event in turn(&mut engine) {
                assert!(level == 0 || !matches!(event, EngineEvent::Lost { .. }), "{event:?}");
            }
        }
        engine.close().expect("a logout");
    }
}
