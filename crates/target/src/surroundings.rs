//! What the device servers need of the world and do not have themselves: clocks and random numbers.

use std::time::{Duration, Instant, SystemTime};

use lunette_scsi::Environment;

/// The clocks and the random numbers of this machine.
#[derive(Debug)]
pub(crate) struct Surroundings {
    started: Instant,
}

impl Surroundings {
    pub(crate) fn new() -> Self {
        Self { started: Instant::now() }
    }
}

impl Environment for Surroundings {
    fn uptime(&self) -> Duration {
        self.started.elapsed()
    }

    fn since_epoch(&self) -> Duration {
        SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default()
    }

    fn fill_random(&self, bytes: &mut [u8]) -> bool {
        getrandom::fill(bytes).is_ok()
    }
}
