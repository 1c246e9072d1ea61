//! What this machine can carry at most.

use std::io;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use super::Way;
use super::source::source;
use crate::bulk::Bulk;
use crate::emulator::Emulator;

/// How long the ceiling is looked for, twice.
const CEILING_TIME: Duration = Duration::from_secs(1);

/// What this machine can carry at most.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Ceiling {
    /// Data of one TCP connection in packets of 1500 bytes, in gigabits per second.
    pub tcp_gbit_per_s: f64,
    /// Packets of 64 bytes of data in a second, one way.
    pub packets_per_s: f64,
    /// Whether the kernel hands over several segments at once.
    pub offload: bool,
}

/// Measures what this machine can carry, by a link that takes no time.
///
/// # Errors
/// There is no such network.
pub fn ceiling(emulator: &Emulator) -> io::Result<Ceiling> {
    let bulk = Bulk::connect(emulator, true, None)?;
    let bytes_per_s = bulk.carry(Duration::ZERO, CEILING_TIME, &AtomicBool::default())?;
    let (source, mut sink) = source(emulator, Way::Up)?;
    let (began, before) = (Instant::now(), sink.arrived()?);
    while began.elapsed() < CEILING_TIME {
        source.send(64);
    }
    let arrived = sink.arrived()? - before;
    let packets_per_s = arrived as f64 / began.elapsed().as_secs_f64();
    Ok(Ceiling { tcp_gbit_per_s: bytes_per_s * 8.0 / 1e9, packets_per_s, offload: emulator.offloads() })
}
