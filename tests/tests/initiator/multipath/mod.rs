//! One unit over several paths to our target: which path takes what, what a dying path costs, and that nothing old comes after
//! something newer.

mod command_line;
mod foreign;
mod said;

use std::collections::HashMap;
use std::io::Write as _;
use std::time::{Duration, Instant};

use lunette_block::OperationKind;
use lunette_block::fault::{Effect, Rule, When};
use lunette_initiator::multipath::{
    Access, Engine, Options, PathNews, PathOptions, PathState, PathTiming, Policy,
};
use lunette_initiator::{
    Command, CommandError, CommandId, Completion, EngineEvent, Error, Portal, Replay, Session, blocking,
    isid_from_hex,
};
use lunette_scsi::client::Transfer;
use lunette_scsi::client::port_groups::set_target_port_groups;
use lunette_target::config::{AccessState, PortalConfig};
use lunette_tests::engine::{execute, lun, make_ready, options, pattern, read, write};
use lunette_tests::in_process::InProcess;
use lunette_tests::relay::Relay;
use lunette_wire::Isid;

/// How long something that must happen may take. Generous: tests share the machine.
const LIMIT: Duration = Duration::from_secs(60);

/// A target with a portal in each of these groups, and a relay to each.
struct World {
    target: InProcess,
    relays: Vec<Relay>,
}

impl World {
    fn new(units: &[&str], groups: &[u16]) -> Self {
        let target = InProcess::start_with(units, |config| {
            let portal = |group: &u16| PortalConfig {
                address: "127.0.0.1:0".parse().expect("an address"),
                group: *group,
            };
            config.portals = groups.iter().map(portal).collect();
        });
        let relays = target.portals().iter().map(|portal| Relay::to(*portal)).collect();
        Self { target, relays }
    }

    fn path(&self, at: usize, unit: u16) -> PathOptions {
        PathOptions::new(options(self.target.name(), self.relays[at].address), lun(unit))
    }

    /// All paths; one that has come back is used at once.
    fn options(&self, policy: Policy) -> Options {
        let paths = (0..self.relays.len()).map(|at| self.path(at, 0)).collect();
        let timing = PathTiming { failback: Duration::ZERO, recovery: 10 * LIMIT, ..PathTiming::default() };
        Options { policy, timing, ..Options::new(paths) }
    }

    fn connect(&self, options: Options) -> Paths {
        Paths::connect(options)
    }

    /// Block 7 is written over the first path, which dies while the target's store holds that, and again over the other.
    fn leave_a_write(&self, paths: &mut Paths) {
        // The next command goes over the first path.
        while paths.execute(read(0, 9, 1, 512)).is_good() && paths.sent()[0] != paths.sent()[1] {}
        self.target.faults(0).add(Rule::new(OperationKind::Write, When::First(1), Effect::Hold));
        let calls = self.target.faults(0).calls(OperationKind::Write);
        let old = paths.engine.submit(safe(7, block(1)));
        paths.engine.poll(Some(Duration::ZERO), &mut Vec::new()).expect("the system lets us");
        self.target.wait_for_calls(0, OperationKind::Write, calls + 1);
        self.relays[0].close();
        let old = paths.wait_for(old);
        assert!(old.is_good() && old.attempts == 2, "{:?}", old.result);
    }
}

/// An engine, and what it has told.
struct Paths {
    engine: Engine,
    done: HashMap<CommandId, Completion>,
    news: Vec<(usize, PathNews)>,
}

impl Paths {
    /// An engine whose paths are all there.
    fn connect(options: Options) -> Self {
        let engine = Engine::connect(options).unwrap_or_else(|error| panic!("{error}"));
        let mut paths = Self { engine, done: HashMap::new(), news: Vec::new() };
        paths.wait_until("all paths", |paths| {
            paths.engine.paths().iter().all(|path| path.state == PathState::Up)
        });
        paths
    }

    /// Polls until something is so.
    fn wait_until(&mut self, what: &str, mut is_so: impl FnMut(&mut Self) -> bool) {
        let deadline = Instant::now() + LIMIT;
        let mut done = Vec::new();
        while !is_so(self) {
            assert!(Instant::now() < deadline, "{what}: {:?}", self.engine.paths());
            self.engine.poll(Some(Duration::from_millis(200)), &mut done).expect("the system lets us");
            self.done.extend(done.drain(..).map(|completion| (completion.id, completion)));
            while let Some(event) = self.engine.event() {
                if let EngineEvent::Path { path, news, .. } = event {
                    self.news.push((path, news));
                }
            }
        }
    }

    fn wait_for(&mut self, id: CommandId) -> Completion {
        self.wait_until("a command's end", |paths| paths.done.contains_key(&id));
        self.done.remove(&id).expect("it is there")
    }

    fn execute(&mut self, command: Command) -> Completion {
        let id = self.engine.submit(command);
        self.wait_for(id)
    }

    fn wait_for_all(&mut self) {
        self.wait_until("all commands' ends", |paths| paths.engine.outstanding() == 0);
    }

    fn is_lost(&self, path: usize) -> bool {
        self.news.iter().any(|(of, news)| *of == path && matches!(news, PathNews::Lost { .. }))
    }

    /// How many commands each path was given.
    fn sent(&self) -> Vec<u64> {
        self.engine.paths().iter().map(|path| path.sent).collect()
    }

    fn accesses(&self) -> Vec<Access> {
        self.engine.paths().iter().map(|path| path.access).collect()
    }
}

fn safe(lba: u64, data: Vec<u8>) -> Command {
    write(0, lba, 1, data).replaying(Replay::Always)
}

fn block(seed: u64) -> Vec<u8> {
    pattern(seed, 512)
}

#[test]
fn commands_are_spread_over_equal_paths() {
    let world = World::new(&["mem:64M"], &[1, 2]);
    for policy in [Policy::RoundRobin, Policy::LeastQueue, Policy::LowestLatency] {
        let mut paths = world.connect(world.options(policy));
        let writes: Vec<_> = (0..64).map(|lba| paths.engine.submit(safe(lba, block(lba)))).collect();
        paths.wait_for_all();
        assert!(writes.iter().all(|id| paths.done[id].is_good() && paths.done[id].attempts == 1));
        for lba in 0..64 {
            assert!(paths.execute(read(0, lba, 1, 512)).data() == block(lba));
        }
        let sent = paths.sent();
        assert_eq!(sent.iter().sum::<u64>(), 128, "{policy:?}");
        assert!(sent.iter().all(|sent| *sent > 0), "{policy:?}: {sent:?}");
        let infos = paths.engine.paths();
        let ports: Vec<_> = infos.iter().map(|path| path.relative_target_port).collect();
        assert_eq!(ports, [Some(1), Some(2)], "different target ports");
        assert!(infos.iter().all(|path| path.is_in_use && path.latency.is_some()));
        paths.engine.close().expect("a logout");
    }
}

/// In the same port group another portal ends what the dead path has left; in another one the path itself, when it is back.
#[test]
fn a_path_that_dies_under_64_writes_loses_and_doubles_nothing() {
    for groups in [[1, 1], [1, 2]] {
        let world = World::new(&["mem:64M"], &groups);
        let mut paths = world.connect(world.options(Policy::RoundRobin));
        world.target.hold(0, OperationKind::Write);
        let calls = world.target.faults(0).calls(OperationKind::Write);
        let writes: Vec<_> = (0..64).map(|lba| paths.engine.submit(safe(lba, block(lba)))).collect();
        paths.engine.poll(Some(Duration::ZERO), &mut Vec::new()).expect("the system lets us");
        world.target.wait_for_calls(0, OperationKind::Write, calls + 1);
        world.relays[0].close();
        paths.wait_until("the loss", |paths| paths.is_lost(0));
        world.target.faults(0).clear();
        paths.wait_for_all();
        let mut again = 0;
        for id in &writes {
            let completion = &paths.done[id];
            assert!(completion.is_good(), "{groups:?}: {:?}", completion.result);
            again += usize::from(completion.attempts > 1);
        }
        assert!((1..=32).contains(&again), "those of one path: {again}");
        for lba in 0..64 {
            assert!(paths.execute(read(0, lba, 1, 512)).data() == block(lba), "{groups:?}: block {lba}");
        }
        // What is newer has its place, as soon as nothing old can come any more.
        let newer: Vec<_> = (0..64).map(|lba| paths.engine.submit(safe(lba, block(1000 + lba)))).collect();
        world.relays[0].open();
        paths.wait_until("the path's return", |paths| {
            paths
                .news
                .iter()
                .any(|(path, news)| *path == 0 && matches!(news, PathNews::Up { after: Some(_) }))
        });
        paths.wait_for_all();
        assert!(newer.iter().all(|id| paths.done[id].is_good()));
        // Until the other one has said that the unit was not reset meanwhile.
        paths.wait_until("its use", |paths| paths.engine.paths()[0].is_in_use);
        let before = paths.sent();
        for lba in 0..64 {
            assert!(
                paths.execute(read(0, lba, 1, 512)).data() == block(1000 + lba),
                "{groups:?}: block {lba}"
            );
        }
        let after = paths.sent();
        assert_eq!((after[0] - before[0], after[1] - before[1]), (32, 32), "both paths are used again");
        paths.engine.close().expect("a logout");
    }
}

/// The first write stands still in the target's store when its path dies, and would be carried out after a newer one.
#[test]
fn an_old_write_never_comes_after_a_newer_one() {
    for groups in [[1, 1], [1, 2]] {
        let world = World::new(&["mem:64M"], &groups);
        let mut paths = world.connect(world.options(Policy::RoundRobin));
        world.leave_a_write(&mut paths);
        let newer = paths.engine.submit(safe(7, block(2)));
        let elsewhere = paths.execute(safe(8, block(3)));
        assert!(elsewhere.is_good(), "{:?}", elsewhere.result);
        assert!(paths.execute(read(0, 7, 1, 512)).data() == block(1));
        assert!(!paths.done.contains_key(&newer), "{groups:?}: the old one may still come");
        world.relays[0].open();
        world.target.faults(0).clear();
        let newer = paths.wait_for(newer);
        assert!(newer.is_good() && newer.attempts == 1, "{groups:?}: {:?}", newer.result);
        paths.wait_until("the path's return", |paths| paths.engine.paths()[0].state == PathState::Up);
        assert!(paths.execute(read(0, 7, 1, 512)).data() == block(2), "{groups:?}");
        paths.engine.close().expect("a logout");
    }
}

/// The path does not come back; so the unit is reset when nothing can be on its way any more.
#[test]
fn without_the_path_a_reset_ends_what_it_has_left() {
    let world = World::new(&["mem:64M"], &[1, 2]);
    let mut options = world.options(Policy::RoundRobin);
    options.timing.ghost = Duration::from_millis(300);
    let mut paths = world.connect(options);
    world.leave_a_write(&mut paths);
    let newer = paths.engine.submit(safe(7, block(2)));
    world.target.faults(0).clear();
    let newer = paths.wait_for(newer);
    assert!(newer.is_good() && newer.session > 0, "{:?}", newer.result);
    let back = paths.execute(read(0, 7, 1, 512));
    assert!(back.data() == block(2));
    paths.engine.close().expect("a logout");
}

#[test]
fn a_write_that_has_left_a_lost_path_does_not_end_as_never_sent() {
    let world = World::new(&["mem:16M"], &[1, 2]);
    let mut paths = world.connect(world.options(Policy::RoundRobin));
    world.target.hold(0, OperationKind::Write);
    let calls = world.target.faults(0).calls(OperationKind::Write);
    let id = paths.engine.submit(safe(7, block(1)));
    paths.engine.poll(Some(Duration::ZERO), &mut Vec::new()).expect("the system lets us");
    world.target.wait_for_calls(0, OperationKind::Write, calls + 1);
    world.relays.iter().for_each(Relay::close);
    paths.wait_until("the loss", |paths| paths.is_lost(0) && paths.is_lost(1));
    assert!(!paths.done.contains_key(&id), "it waits for a path");
    paths.engine.log_out();
    let ended = paths.wait_for(id);
    assert!(matches!(ended.result, Err(CommandError::Unknown(_))), "{:?}", ended.result);
    world.target.faults(0).clear();
}

/// Whoever writes next has another nexus, and knows nothing of what a dead path has left.
#[test]
fn the_end_waits_for_what_a_dead_path_has_left() {
    for groups in [[1, 1], [1, 2]] {
        let world = World::new(&["mem:64M"], &groups);
        let mut wanted = world.options(Policy::RoundRobin);
        wanted.timing.ghost = Duration::from_millis(300);
        let mut paths = world.connect(wanted);
        world.leave_a_write(&mut paths);
        let engine = paths.engine;
        assert!(engine.is_haunted());
        std::thread::scope(|scope| {
            let closing = scope.spawn(move || engine.close());
            std::thread::sleep(Duration::from_secs(1));
            assert!(!closing.is_finished(), "{groups:?}: the target still has it");
            world.target.faults(0).clear();
            closing.join().expect("no panic").expect("a logout");
        });
        let portal = world.relays[1].address;
        let mut next =
            lunette_initiator::Engine::connect(options(world.target.name(), portal)).expect("a session");
        make_ready(&mut next, 0);
        assert!(execute(&mut next, safe(7, block(2))).is_good());
        assert!(execute(&mut next, read(0, 7, 1, 512)).data() == block(2), "{groups:?}");
        next.close().expect("a logout");
    }
}

#[test]
fn what_a_dead_path_has_left_and_nothing_can_end_is_told() {
    let world = World::new(&["mem:64M"], &[1, 2]);
    let mut paths = world.connect(world.options(Policy::RoundRobin));
    world.leave_a_write(&mut paths);
    world.relays[1].close();
    paths.wait_until("the loss", |paths| paths.is_lost(1));
    let error = paths.engine.close().expect_err("no path is left");
    let old = world.relays[0].address;
    assert!(matches!(&error, Error::GhostLeft { portal } if portal.port == old.port()), "{error}");
    world.target.faults(0).clear();
    world.relays.iter().for_each(Relay::open);

    let session = blocking::Session::connect_paths(world.options(Policy::LeastQueue)).expect("a session");
    world.target.hold(0, OperationKind::Write);
    let calls = world.target.faults(0).calls(OperationKind::Write);
    let write = session.handle().submit(safe(7, block(1)).replaying(Replay::Never));
    world.target.wait_for_calls(0, OperationKind::Write, calls + 1);
    world.relays.iter().for_each(Relay::close);
    assert!(matches!(blocking::wait(write).result, Err(CommandError::Unknown(_))));
    assert_eq!(session.handle().ghost_left(), None, "it may be ended yet");
    session.log_out();
    assert!(session.handle().ghost_left().is_some());
    world.target.faults(0).clear();
}

#[test]
fn access_states_are_followed_while_commands_run() {
    let world = World::new(&["mem:64M"], &[1, 2]);
    world.target.set_access_state(2, AccessState::ActiveNonOptimized);
    let mut paths = world.connect(world.options(Policy::LeastQueue));
    assert_eq!(paths.accesses(), [Access::Optimized, Access::NonOptimized]);
    for lba in 0..8 {
        assert!(paths.execute(safe(lba, block(lba))).is_good());
    }
    assert_eq!(paths.sent(), [8, 0], "the better one alone");
    let mut other =
        lunette_initiator::Engine::connect(options(world.target.name(), world.target.portals()[1]))
            .expect("a session");
    make_ready(&mut other, 0);
    let mut set = |states: [AccessState; 2]| {
        let command = set_target_port_groups(&[(1, states[0]), (2, states[1])]).expect("a good command");
        let Transfer::List(list) = command.transfer() else { panic!("{command:?}") };
        loop {
            let sent = Command::new(lun(0), command.cdb()).writing(list.clone());
            if execute(&mut other, sent).is_good() {
                return;
            }
        }
    };
    let mut seed = 0;
    for (states, accesses, by) in [
        ([AccessState::Standby, AccessState::ActiveOptimized], [Access::Standby, Access::Optimized], 1),
        (
            [AccessState::ActiveOptimized, AccessState::Unavailable],
            [Access::Optimized, Access::Unavailable],
            0,
        ),
        (
            [AccessState::ActiveNonOptimized, AccessState::ActiveOptimized],
            [Access::NonOptimized, Access::Optimized],
            1,
        ),
    ] {
        seed += 100;
        let mut all: Vec<_> = (0..32).map(|lba| paths.engine.submit(safe(lba, block(seed + lba)))).collect();
        set(states);
        all.extend((32..64).map(|lba| paths.engine.submit(safe(lba, block(seed + lba)))));
        paths.wait_for_all();
        assert!(all.iter().all(|id| paths.done[id].is_good()), "{states:?}");
        paths.wait_until("the states", |paths| paths.accesses() == accesses);
        let before = paths.sent();
        for lba in 0..64 {
            assert!(
                paths.execute(read(0, lba, 1, 512)).data() == block(seed + lba),
                "{states:?}: block {lba}"
            );
        }
        let after = paths.sent();
        // One may have had to hear of the change first.
        let by_it = after[by] - before[by];
        assert!(by_it >= 64 && after[1 - by] == before[1 - by], "{states:?}: {before:?} {after:?}");
    }
    other.close().expect("a logout");
    paths.engine.close().expect("a logout");
}

#[test]
fn a_path_to_another_unit_is_not_used() {
    let world = World::new(&["mem:16M", "mem:16M"], &[1, 2]);
    let engine =
        Engine::connect(Options::new(vec![world.path(0, 0), world.path(1, 1)])).expect("the first path");
    let mut paths = Paths { engine, done: HashMap::new(), news: Vec::new() };
    paths.wait_until("a word on both", |paths| {
        paths.news.iter().any(|(_, news)| matches!(news, PathNews::Failed { .. }))
    });
    let states: Vec<_> = paths.engine.paths().into_iter().map(|path| (path.state, path.reason)).collect();
    let refused = states.iter().find(|(state, _)| *state == PathState::Down).expect("one of them");
    assert!(refused.1.as_ref().is_some_and(|reason| reason.contains("another logical unit")), "{states:?}");
    for lba in 0..8 {
        assert!(paths.execute(read(0, lba, 1, 512)).is_good());
    }
    paths.engine.close().expect("a logout");
}

#[test]
fn wrong_paths_are_refused_and_one_that_is_there_is_enough() {
    let world = World::new(&["mem:16M"], &[1, 2]);
    let refused = |paths| Engine::connect(Options::new(paths)).expect_err("it is wrong");
    assert!(matches!(refused(Vec::new()), Error::Options(_)));
    let twice = refused(vec![world.path(0, 0), world.path(0, 0)]);
    assert!(twice.to_string().contains("given twice"), "{twice}");
    let mut more = world.path(0, 0);
    more.session.portals.push(Portal::new("127.0.0.1", 1));
    assert!(matches!(refused(vec![more]), Error::Options(_)));
    let mut same = vec![world.path(0, 0), world.path(1, 0)];
    same.iter_mut().for_each(|path| path.session.isid = isid_from_hex("1"));
    let same = refused(same);
    assert!(same.to_string().contains("isid"), "{same}");
    world.relays[0].close();
    let nobody = refused(vec![world.path(0, 0)]);
    assert!(matches!(nobody, Error::Closed { .. } | Error::Connect { .. }), "{nobody}");
    let session =
        blocking::Session::connect_paths(world.options(Policy::LeastQueue)).expect("the second path");
    assert!(session.execute(safe(0, block(1))).is_good());
    let handle: &Session = session.handle();
    let reset = session.manage(lunette_initiator::Function::TargetWarmReset);
    assert!(matches!(reset, Err(CommandError::Invalid(_))), "{reset:?}");
    assert_eq!(handle.paths().len(), 2);
    session.log_out();
    assert!(handle.is_over() && !session.execute(read(0, 0, 1, 512)).is_good());
}

#[test]
fn without_time_for_recovery_the_loss_of_all_paths_is_the_end() {
    let world = World::new(&["mem:16M"], &[1, 2]);
    let mut options = world.options(Policy::LeastQueue);
    options.timing.recovery = Duration::ZERO;
    let mut paths = world.connect(options);
    assert!(paths.execute(safe(0, block(1))).is_good());
    world.relays.iter().for_each(Relay::close);
    paths.wait_until("the end", |paths| paths.engine.is_over());
    assert!(matches!(paths.execute(read(0, 0, 1, 512)).result, Err(CommandError::NotSent(_))));
}

#[test]
fn the_paths_of_a_target_are_found() {
    let world = World::new(&["mem:16M"], &[1, 2]);
    let mut first = PathOptions::new(options(world.target.name(), world.target.portals()[0]), lun(0));
    first.session.isid = isid_from_hex("8000000000ff");
    let found = Options::discover(first).expect("an answer");
    let isids: Vec<_> = found.paths.iter().filter_map(|path| path.session.isid).collect();
    assert_eq!(isids, [Isid([0x80, 0, 0, 0, 0, 0xff]), Isid([0x80, 0, 0, 0, 1, 0])]);
    let mut paths = world.connect(found);
    assert!(paths.execute(safe(0, block(1))).is_good());
    paths.engine.close().expect("a logout");
}

/// Prints how long it takes to notice that a path has died, and to use it again.
#[test]
fn failover_and_failback_are_measured() {
    for (how, groups) in [("closed", [1, 2]), ("silent", [1, 2])] {
        let world = World::new(&["mem:64M"], &groups);
        let mut options = world.options(Policy::RoundRobin);
        options.timing.failback = PathTiming::default().failback;
        let mut paths = world.connect(options);
        let began = Instant::now();
        match how {
            "closed" => world.relays[0].close(),
            _ => world.relays[0].freeze(),
        }
        let ids: Vec<_> = (0..64).map(|lba| paths.engine.submit(safe(lba, block(lba)))).collect();
        paths.wait_for_all();
        let failover = began.elapsed();
        assert!(ids.iter().all(|id| paths.done[id].is_good()));
        let began = Instant::now();
        world.relays[0].open();
        paths.wait_until("the path's return", |paths| paths.engine.paths()[0].state == PathState::Up);
        let back = began.elapsed();
        let before = paths.sent()[0];
        paths.wait_until("its use", |paths| {
            paths.engine.submit(read(0, 0, 1, 512));
            paths.sent()[0] > before
        });
        let used = began.elapsed();
        let told = format!(
            "{how}: 64 writes over after {failover:.2?}; back after {back:.2?}, used after {used:.2?}"
        );
        // Who runs the test wants to see it; nobody depends on it.
        let _ = writeln!(std::io::stdout(), "{told}");
        paths.wait_for_all();
        paths.engine.close().expect("a logout");
    }
}
