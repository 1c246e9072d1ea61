//! Memory that hosts have a domain keep for them between commands, and that no pool of buffers counts: a bound for all nexuses together.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// What is left of a bound, in bytes.
#[derive(Debug)]
pub(crate) struct Budget {
    left_bytes: AtomicUsize,
}

impl Budget {
    pub(crate) const fn new(bytes: usize) -> Budget {
        Budget { left_bytes: AtomicUsize::new(bytes) }
    }

    /// Takes so many bytes, until what is answered is dropped. `None`: they are not there.
    pub(crate) fn take(self: &Arc<Self>, bytes: usize) -> Option<Charge> {
        let rest = |left: usize| left.checked_sub(bytes);
        self.left_bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, rest).ok()?;
        Some(Charge { of: Arc::clone(self), bytes })
    }
}

/// A part of a budget that is in use.
#[derive(Debug)]
pub(crate) struct Charge {
    of: Arc<Budget>,
    bytes: usize,
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.of.left_bytes.fetch_add(self.bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_dropped_can_be_taken_again() {
        let budget = Arc::new(Budget::new(100));
        let first = budget.take(60).unwrap();
        assert!(budget.take(41).is_none());
        let second = budget.take(40).unwrap();
        assert!(budget.take(1).is_none() && budget.take(0).is_some());
        drop(first);
        assert!(budget.take(60).is_some());
        drop(second);
        assert!(budget.take(100).is_some());
    }
}
