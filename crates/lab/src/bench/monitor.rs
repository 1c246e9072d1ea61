//! What can be seen and done from outside while a measurement runs.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::Ending;

/// How far a measurement is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    /// Sessions are being had.
    Connecting,
    /// The range is being written, to be verified later.
    Filling,
    /// The workload runs, and nothing counts yet.
    WarmingUp,
    /// The workload runs and counts.
    Measuring,
    /// Its time is over, and what is under way is waited for.
    Ending,
}

const PHASES: [Phase; 5] =
    [Phase::Connecting, Phase::Filling, Phase::WarmingUp, Phase::Measuring, Phase::Ending];

/// Shared by a measurement and who looks at it.
#[derive(Debug, Default)]
pub struct Monitor {
    stops: AtomicBool,
    phase: AtomicU8,
    operations: AtomicU64,
    bytes: AtomicU64,
    filled_bytes: AtomicU64,
    ending: Mutex<Option<Ending>>,
}

impl Monitor {
    /// Ends the measurement now; what was measured is kept.
    pub fn stop(&self) {
        self.stops.store(true, Ordering::Relaxed);
    }

    /// Whether it is to end.
    #[must_use]
    pub fn is_stopped(&self) -> bool {
        self.stops.load(Ordering::Relaxed)
    }

    /// How far it is.
    #[must_use]
    pub fn phase(&self) -> Phase {
        PHASES[usize::from(self.phase.load(Ordering::Relaxed)).min(PHASES.len() - 1)]
    }

    /// Operations that have ended, those of the warm-up among them.
    #[must_use]
    pub fn operations(&self) -> u64 {
        self.operations.load(Ordering::Relaxed)
    }

    /// The bytes that they read and wrote.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// The bytes that were written before the workload.
    #[must_use]
    pub fn filled_bytes(&self) -> u64 {
        self.filled_bytes.load(Ordering::Relaxed)
    }

    /// Another measurement begins, with what was counted before.
    pub(crate) fn begin(&self) {
        self.phase.store(Phase::Connecting as u8, Ordering::Relaxed);
    }

    pub(crate) fn enter(&self, phase: Phase) {
        self.phase.fetch_max(phase as u8, Ordering::Relaxed);
    }

    pub(crate) fn add(&self, operations: u64, bytes: u64) {
        self.operations.fetch_add(operations, Ordering::Relaxed);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn add_filled(&self, bytes: u64) {
        self.filled_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Ends it because something went wrong; the first reason is kept.
    pub(crate) fn fail(&self, ending: Ending) {
        self.ending.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(ending);
        self.stop();
    }

    /// How it ended, when it has.
    pub(crate) fn ending(&self) -> Ending {
        let failed = self.ending.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let otherwise = if self.is_stopped() { Ending::Interrupted } else { Ending::Complete };
        failed.unwrap_or(otherwise)
    }
}
