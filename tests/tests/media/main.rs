//! Logical units whose medium is managed while they are served: its size, its space, its erasure and its mode pages, over
//! real sockets (SBC-3, SPC-4).
//!
//! Not here: what the device server does with a medium in memory (`crates/scsi/tests/disk`).

mod anchored;
mod erasure;
mod marks;
mod mode;
mod resize;
mod saving;
mod thick;

use std::time::Duration;

use lunette_tests::in_process::InProcess;
use lunette_tests::initiator::{Command, Completion, Initiator};

/// A session that has taken the first unit attention of unit 0.
fn session(target: &InProcess, port: u8) -> Initiator {
    let mut session = Initiator::login(target.portal(), &target.options(port)).expect("a session");
    session.make_ready(0).expect("a ready unit");
    session
}

fn padded(bytes: &[u8]) -> [u8; 16] {
    let mut cdb = [0; 16];
    cdb[..bytes.len()].copy_from_slice(bytes);
    cdb
}

/// Runs a command of unit 0 that brings at most `data_in_bytes`.
fn run(session: &mut Initiator, cdb: &[u8], data_in_bytes: u32) -> Completion {
    let command = Command { cdb: padded(cdb), data_in_bytes, ..Command::default() };
    session.execute(command).expect("an answer")
}

/// Sense key, additional sense code and qualifier of fixed format sense data; zeros for GOOD.
fn code(completion: &Completion) -> (u8, u8, u8) {
    let byte = |at: usize| completion.sense.get(at).copied().unwrap_or(0);
    (byte(2) & 0x0f, byte(12), byte(13))
}

/// Long enough for a target that does not wait to have answered.
const A_WHILE: Duration = Duration::from_millis(100);

/// Task management response "function complete" (RFC 7143, 11.6.1).
const FUNCTION_COMPLETE: u8 = 0;

const TEST_UNIT_READY: [u8; 6] = [0; 6];
