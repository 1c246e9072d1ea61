//! The processor time of this process while things count, of which all workers have a part.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// See the module's documentation. It begins with the first worker for which something counts, and ends with the last one for which
/// nothing does any more.
#[derive(Debug)]
pub(super) struct Processor {
    begun: OnceLock<Duration>,
    /// Workers for which it goes on.
    left: AtomicU32,
}

impl Processor {
    pub(super) const fn new(workers: u32) -> Self {
        Self { begun: OnceLock::new(), left: AtomicU32::new(workers) }
    }

    /// From now on things count for a worker.
    pub(super) fn begin(&self) {
        self.begun.get_or_init(now);
    }

    /// Nothing counts any more for a worker, which says so once. The last one has what all of it took.
    pub(super) fn end(&self) -> Duration {
        let is_last = self.left.fetch_sub(1, Ordering::AcqRel) == 1;
        let begun = self.begun.get().filter(|_| is_last);
        begun.map_or(Duration::ZERO, |begun| now().saturating_sub(*begun))
    }
}

/// Of the whole process.
pub(crate) fn now() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::try_from(time).unwrap_or_default()
}
