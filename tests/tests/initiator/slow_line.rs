//! Lines on which one PDU takes longer than a dead target is given.

use std::time::{Duration, Instant};

use lunette_initiator::{Engine, Options, Timing};
use lunette_tests::engine::{execute, make_ready, options, pattern, read, write};
use lunette_tests::in_process::InProcess;
use lunette_tests::relay::Relay;

/// Silence before a ping, and what its answer may take.
const PATIENCE: Duration = Duration::from_secs(2);

/// A megabyte takes eight seconds.
const BYTES_PER_S: usize = 128 << 10;
const BLOCKS: u32 = 2048;

fn connect(target: &InProcess, relay: &Relay) -> Engine {
    let timing = Timing {
        nop_interval: Some(PATIENCE),
        nop_timeout: PATIENCE,
        recovery: Duration::ZERO,
        ..Timing::default()
    };
    let mut options = Options { timing, ..options(target.name(), relay.address) };
    // One PDU each, or one sequence of them without a word from the target.
    options.wishes.max_recv_data_segment_length = 1 << 20;
    options.wishes.max_burst_length = 1 << 20;
    let mut engine = Engine::connect(options).expect("a session");
    make_ready(&mut engine, 0);
    engine
}

#[test]
fn who_sends_and_takes_little_at_a_time_is_not_dead() {
    let target = InProcess::start(&["mem:16M"]);
    let relay = Relay::slow(target.portal(), BYTES_PER_S);
    let mut engine = connect(&target, &relay);
    let data = pattern(7, BLOCKS as usize * 512);
    let began = Instant::now();
    let written = execute(&mut engine, write(0, 0, BLOCKS, data.clone()));
    assert!(written.is_good(), "{:?}", written.result);
    let back = execute(&mut engine, read(0, 0, BLOCKS, 512));
    assert!(back.is_good() && back.buffer == data, "{:?}", back.result);
    assert!(began.elapsed() > PATIENCE * 4, "the line is not slow");
}

/// The target asks for the rest after two seconds; six of them have passed when the last bytes are acknowledged, and with them what the
/// answer to a ping may take. One of these lengths has that moment between its last bytes and its answer.
#[test]
fn who_has_just_taken_the_last_bytes_in_front_of_a_ping_is_not_dead() {
    std::thread::scope(|scope| {
        for blocks in (1400..1700).step_by(16) {
            scope.spawn(move || {
                let target = InProcess::start(&["mem:16M"]);
                let relay = Relay::slow(target.portal(), BYTES_PER_S);
                let mut engine = connect(&target, &relay);
                let written = execute(&mut engine, write(0, 0, blocks, pattern(7, blocks as usize * 512)));
                assert!(written.is_good(), "{blocks} blocks: {:?}", written.result);
            });
        }
    });
}

/// What a machine between acknowledges says nothing of the target.
#[test]
fn who_says_nothing_while_all_is_acknowledged_is_dead() {
    let target = InProcess::start(&["mem:16M"]);
    let relay = Relay::to(target.portal());
    let mut engine = connect(&target, &relay);
    relay.freeze();
    let began = Instant::now();
    let written = execute(&mut engine, write(0, 0, 8, pattern(7, 4096)));
    assert!(
        !written.is_good() && began.elapsed() < PATIENCE * 20,
        "{:?} after {:?}",
        written.result,
        began.elapsed()
    );
}
