//! Another host switches the write cache of a disk on that is written to: what was answered before a lost session is not stable for
//! that it had none when it was opened.

use std::io::Write;
use std::process::{Command, Stdio};
use std::time::Duration;

use lunette_block::OperationKind;
use lunette_initiator::{self as initiator, Engine};
use lunette_tests::engine::{execute, lun, make_ready, options, pattern};
use lunette_tests::in_process::InProcess;
use lunette_tests::lunette::binary;
use lunette_tests::relay::Relay;

const PIECE_BYTES: usize = 1 << 20;

/// Sets WCE of the unit, until it is restarted.
fn set_write_cache(engine: &mut Engine, is_on: bool) {
    make_ready(engine, 0);
    let sensed =
        execute(engine, initiator::Command::new(lun(0), [0x1a, 8, 8, 0, 24, 0]).reading(vec![0; 24]));
    assert!(sensed.is_good() && sensed.received == 24, "{:?}", sensed.result);
    let mut list = vec![0; 4];
    list.extend_from_slice(&sensed.buffer[4..]);
    // PS is reserved here.
    list[4] &= 0x3f;
    list[6] = list[6] & !4 | u8::from(is_on) << 2;
    let selected = execute(engine, initiator::Command::new(lun(0), [0x15, 0x10, 0, 0, 24, 0]).writing(list));
    assert!(selected.is_good(), "{:?}", selected.result);
}

/// The session is lost behind writes that were answered when the cache was on; in the second case it is off again by then, as after a
/// restart of a target that does not keep its modes.
#[test]
fn a_cache_that_another_host_has_switched_on_is_taken_to_be_one() {
    for is_left_on in [true, false] {
        let target = InProcess::start(&["mem:64M"]);
        let relay = Relay::to(target.portal());
        let mut other = Engine::connect(options(target.name(), target.portal())).expect("a session");
        let url = format!("iscsi://{}/{}/0", relay.address, target.name());
        let mut command = Command::new(binary());
        command.args(["write", &url, "--input", "-", "--depth", "1"]);
        let piped = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = piped.spawn().expect("the binary runs");
        let mut input = child.stdin.take().expect("a pipe");
        let mut feed = |pieces: usize, calls: u64| {
            input.write_all(&pattern(1, pieces * PIECE_BYTES)).expect("it reads");
            target.wait_for_calls(0, OperationKind::Write, calls);
        };
        feed(1, 1);
        set_write_cache(&mut other, true);
        feed(2, 3);
        if !is_left_on {
            set_write_cache(&mut other, false);
        }
        // The last is answered, if there is time for that.
        std::thread::sleep(Duration::from_millis(200));
        relay.cut();
        drop(input);
        let output = child.wait_with_output().expect("an end");
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(3), "{said}");
        assert!(output.stdout.is_empty(), "it is not called stable");
    }
}
