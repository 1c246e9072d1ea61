//! Which reactors are busy, so that one knows whether a processor is left for its initiator.

use std::num::NonZero;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// A reactor is busy for so long after a command.
const LATELY: Duration = Duration::from_millis(10);
/// How often a busy reactor looks at the others: each look reads what they write.
pub(crate) const LOOK_EVERY: Duration = Duration::from_millis(1);

/// When each reactor last had something to do.
#[derive(Debug)]
pub(crate) struct Crowd {
    started: Instant,
    /// Milliseconds since the start, of reactors by index; 0 before the first command.
    busy_at_ms: Vec<AtomicU64>,
    processors: usize,
}

impl Crowd {
    pub(crate) fn of(reactors: usize) -> Self {
        Self {
            started: Instant::now(),
            busy_at_ms: (0..reactors).map(|_| AtomicU64::new(0)).collect(),
            processors: thread::available_parallelism().map_or(1, NonZero::get),
        }
    }

    /// A reactor has something to do. Says whether there are more processors than busy reactors: one for an initiator on this machine.
    pub(crate) fn leaves_a_processor(&self, reactor: usize) -> bool {
        // From 1 on: 0 is for never.
        let now = self.started.elapsed().as_millis() as u64 + 1;
        self.leaves_a_processor_at(reactor, now)
    }

    fn leaves_a_processor_at(&self, reactor: usize, now_ms: u64) -> bool {
        if let Some(own) = self.busy_at_ms.get(reactor) {
            own.store(now_ms, Ordering::Relaxed);
        }
        let is_busy = |at: &AtomicU64| {
            let at = at.load(Ordering::Relaxed);
            at > 0 && now_ms.saturating_sub(at) <= LATELY.as_millis() as u64
        };
        self.busy_at_ms.iter().filter(|at| is_busy(at)).count() < self.processors
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_processor_is_left_while_fewer_reactors_are_busy_than_there_are() {
        let crowd = Crowd { processors: 2, ..Crowd::of(2) };
        assert!(crowd.leaves_a_processor_at(0, 1), "the other one has never had anything to do");
        assert!(!crowd.leaves_a_processor_at(1, 11), "both have");
        assert!(crowd.leaves_a_processor_at(1, 12), "the other one had, a while ago");
        assert!(!crowd.leaves_a_processor_at(0, 22));
        let alone = Crowd { processors: 1, ..Crowd::of(1) };
        assert!(!alone.leaves_a_processor_at(0, 1));
        assert!(Crowd { processors: 3, ..crowd }.leaves_a_processor_at(0, 22));
    }
}
