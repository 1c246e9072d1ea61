//! Our initiator against the kernel's target (LIO): every way of transferring data, two connections, connections that are cut in
//! the middle of writes, one of two paths that is, and the commands.
//!
//! What LIO does wrong, and what comes of it here: docs/decisions/0033.

use std::time::Duration;

use crate::again_if_a_guest_hangs;
use lunette_initiator::multipath::{self, PathNews, PathOptions, PathState, Policy};
use lunette_initiator::{Engine, EngineEvent, Function, Options, Replay, Timing, Wishes};
use lunette_tests::attach::{Attached, command};
use lunette_tests::commands::exercise_commands;
use lunette_tests::engine::{
    execute, exercise, lun, make_ready, options, pattern, read, wait_for_all, ways, write,
};
use lunette_tests::lunette::TARGET_NAME;
use lunette_tests::need_guest;
use lunette_tests::vm::{GUEST, Guest, IMAGE_OLD, Network, Passage};
use lunette_wire::target::TaskManagementOutcome;

use crate::portal;

/// LIO's units, with the lengths of their blocks.
const UNITS: [(u16, u32); 2] = [(0, 512), (1, 4096)];

/// Its other portal.
const SECOND_PORT: u16 = 3261;

/// A guest that serves the units, and the way to it.
struct Lio {
    guest: Option<Guest>,
    passage: Passage,
}

/// The guest is slow, and may be slower.
fn timing() -> Timing {
    Timing {
        login: Duration::from_secs(120),
        nop_timeout: Duration::from_secs(120),
        recovery: Duration::from_secs(600),
        ..Timing::default()
    }
}

impl Lio {
    fn start(network: &Network) -> Self {
        let script = include_str!("../../vm/scripts/lio.sh");
        let mut guest = Guest::start(network, &[("TARGET", TARGET_NAME)], script).expect("a guest");
        guest.wait_for("serving").unwrap_or_else(|error| panic!("{error:#}"));
        let passage = Passage::open(network, portal(GUEST)).expect("a passage");
        Self { guest: Some(guest), passage }
    }

    fn connect(&self, connections: u16, wishes: Wishes) -> Engine {
        let options = options(TARGET_NAME, self.passage.address());
        let level = wishes.error_recovery_level;
        let options = Options { wishes, connections, timing: timing(), ..options };
        let engine = Engine::connect(options).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(engine.connections().len(), usize::from(connections));
        assert_eq!(engine.parameters().error_recovery_level, level);
        engine
    }

    /// Cuts all connections in the middle of writes: with immediate data alone, with unsolicited data, and with R2Ts. Each has
    /// to end well, and what it wrote has to be there; answers how often each was sent.
    fn cut_in_the_middle(&self, mut engine: Engine, (unit, block_bytes): (u16, u32)) -> Vec<u32> {
        make_ready(&mut engine, unit);
        let lengths = [4096u32, 65536, 1 << 20];
        let writes: Vec<_> = (0..24u32)
            .map(|index| {
                let length = lengths[index as usize % lengths.len()];
                let lba = u64::from(index) * u64::from((1 << 20) / block_bytes);
                let data = pattern(u64::from(index), length as usize);
                let command = write(unit, lba, length / block_bytes, data.clone());
                (engine.submit(command.replaying(Replay::Always)), lba, data)
            })
            .collect();
        let mut done = Vec::new();
        while done.is_empty() {
            engine.poll(None, &mut done).expect("the system lets us");
        }
        self.passage.cut();
        let all = wait_for_all(&mut engine);
        let attempts = writes.iter().map(|(id, ..)| {
            let completion = done.iter().find(|done| done.id == *id).unwrap_or_else(|| &all[id]);
            assert!(completion.is_good(), "{:?}", completion.result);
            completion.attempts
        });
        let attempts = attempts.collect();
        for (_, lba, data) in &writes {
            let back = execute(&mut engine, read(unit, *lba, data.len() as u32 / block_bytes, block_bytes));
            assert!(back.is_good() && back.data() == data.as_slice(), "block {lba}: {:?}", back.result);
        }
        engine.close().expect("a logout");
        attempts
    }

    /// The kernel must have nothing to complain of.
    fn stop(mut self) {
        let guest = self.guest.take().expect("it runs");
        guest.tell("done").expect("told");
        guest.finish().unwrap_or_else(|error| panic!("{error:#}"));
    }
}

impl Drop for Lio {
    /// What the kernel has to say of a failure.
    fn drop(&mut self) {
        if let Some(guest) = self.guest.take().filter(|_| std::thread::panicking()) {
            eprintln!("{}", guest.ended());
        }
    }
}

/// RFC 7143, 11.6.1: "task management function not supported". Sequences of data that are under way are not ended early for a
/// function that may end so (decision 0033).
fn refuses_functions_on_task_sets(engine: &mut Engine) {
    let unit = lun(0).field();
    for function in [Function::AbortTaskSet(unit), Function::ClearTaskSet(unit)] {
        let asked = engine.manage(function).expect("room for a function");
        let response = loop {
            engine.poll(None, &mut Vec::new()).expect("the system lets us");
            match engine.event() {
                Some(EngineEvent::Managed { request, response }) if request == asked => break response,
                Some(EngineEvent::Over { reason } | EngineEvent::Lost { reason }) => panic!("{reason}"),
                _ => {}
            }
        };
        assert_eq!(response, TaskManagementOutcome::FunctionNotSupported as u8, "{function:?}");
    }
}

#[test]
fn every_way_of_transferring_data_works_with_lio() {
    again_if_a_guest_hangs(|| {
        let network = need_guest!();
        let lio = Lio::start(&network);
        for (seed, wishes) in ways().into_iter().enumerate() {
            let (connections, error_recovery_level) = [(1, 0), (2, 2), (2, 0), (1, 2)][seed % 4];
            let mut engine = lio.connect(connections, Wishes { error_recovery_level, ..wishes });
            for (unit, block_bytes) in UNITS {
                exercise(&mut engine, unit, block_bytes, seed as u64);
            }
            if seed == 0 {
                refuses_functions_on_task_sets(&mut engine);
            }
            engine.close().expect("a logout");
        }
        // Over one connection: of several, LIO may walk a list of connections that are gone (decision 0033), and the kernel with it.
        for unit in UNITS {
            lio.cut_in_the_middle(lio.connect(1, Wishes::default()), unit);
        }
        lio.stop();
    });
}

#[test]
fn at_level_two_writes_outlive_their_connections_to_lio() {
    again_if_a_guest_hangs(|| {
        let network = need_guest!(IMAGE_OLD);
        let lio = Lio::start(&network);
        for (connections, unit) in [(1, UNITS[0]), (2, UNITS[1]), (2, UNITS[0])] {
            let wishes = Wishes { error_recovery_level: 2, ..Wishes::default() };
            let attempts = lio.cut_in_the_middle(lio.connect(connections, wishes), unit);
            assert!(attempts.iter().all(|attempts| *attempts == 1), "{attempts:?}: they were sent anew");
        }
        lio.stop();
    });
}

/// At level 0, over one connection each: what LIO does to other sessions that are cut is in decision 0033.
fn lose_a_path(passages: &[Passage; 2], (unit, block_bytes): (u16, u32)) {
    const WRITES: u64 = 64;
    const LENGTH: u32 = 65536;
    let path = |passage: &Passage| {
        let session = Options { timing: timing(), ..options(TARGET_NAME, passage.address()) };
        PathOptions { session, lun: lun(unit) }
    };
    let mut options = multipath::Options::new(passages.iter().map(path).collect());
    options.policy = Policy::RoundRobin;
    options.timing.failback = Duration::ZERO;
    let mut engine = multipath::Engine::connect(options).unwrap_or_else(|error| panic!("{error}"));
    let is_up = |engine: &multipath::Engine| engine.paths().iter().all(|path| path.state == PathState::Up);
    let mut done = Vec::new();
    while !is_up(&engine) {
        engine.poll(Some(Duration::from_secs(1)), &mut done).expect("the system lets us");
    }
    for (turn, passage) in passages.iter().enumerate() {
        let data = |number: u64| pattern(1000 * turn as u64 + number, LENGTH as usize);
        let blocks = LENGTH / block_bytes;
        let command = |number: u64| write(unit, number * u64::from(blocks), blocks, data(number));
        let ids: Vec<_> =
            (0..WRITES).map(|number| engine.submit(command(number).replaying(Replay::Always))).collect();
        while done.is_empty() {
            engine.poll(None, &mut done).expect("the system lets us");
        }
        passage.cut();
        let mut is_lost = false;
        while engine.outstanding() > 0 || !is_lost || !is_up(&engine) {
            engine.poll(Some(Duration::from_secs(1)), &mut done).expect("the system lets us");
            while let Some(event) = engine.event() {
                is_lost |= matches!(event, EngineEvent::Path { path, news: PathNews::Lost { .. }, .. } if path == turn);
            }
        }
        for id in &ids {
            let completion = done.iter().find(|done| done.id == *id).expect("each ends");
            assert!(completion.is_good(), "{:?}", completion.result);
        }
        done.clear();
        for number in 0..WRITES {
            let id = engine.submit(read(unit, number * u64::from(blocks), blocks, block_bytes));
            while done.is_empty() {
                engine.poll(None, &mut done).expect("the system lets us");
            }
            let back = done.pop().expect("one");
            assert!(
                back.id == id && back.data() == data(number),
                "turn {turn}, write {number}: {:?}",
                back.result
            );
        }
    }
    engine.close().expect("a logout");
}

#[test]
fn one_of_two_paths_to_lio_is_cut_under_64_writes() {
    again_if_a_guest_hangs(|| {
        let network = need_guest!();
        let lio = Lio::start(&network);
        let second = std::net::SocketAddr::new(portal(GUEST).ip(), SECOND_PORT);
        let open = |to| Passage::open(&network, to).expect("a passage");
        let passages = [open(portal(GUEST)), open(second)];
        for unit in UNITS {
            lose_a_path(&passages, unit);
        }
        lio.stop();
    });
}

/// More than LIO takes in one WRITE SAME, which it does not tell (decision 0033).
fn zeroes_an_attached_disk(url: &str) {
    const LENGTH: u32 = 24 << 20;
    let attached = Attached::start(url, &[]).expect("attached");
    let mut client = attached.client().expect("a client");
    let data = pattern(9, 1 << 20);
    for at in [0, u64::from(LENGTH) - (1 << 20), LENGTH.into()] {
        assert_eq!(client.write(at, &data).expect("an answer"), 0);
    }
    assert_eq!(client.request((command::WRITE_ZEROES, 0), 0, LENGTH).expect("an answer"), 0);
    for at in [0, u64::from(LENGTH) - (1 << 20)] {
        assert!(client.read(at, 1 << 20).expect("data").iter().all(|byte| *byte == 0));
    }
    assert!(client.read(LENGTH.into(), 1 << 20).expect("data") == data);
    drop(client);
    attached.detach().expect("all is stable");
}

#[test]
fn all_commands_work_with_lio() {
    again_if_a_guest_hangs(|| {
        let network = need_guest!();
        let lio = Lio::start(&network);
        for (unit, block_bytes) in UNITS {
            let url = format!("iscsi://{}/{TARGET_NAME}/{unit}", lio.passage.address());
            exercise_commands(&url, block_bytes);
            zeroes_an_attached_disk(&url);
        }
        lio.stop();
    });
}
