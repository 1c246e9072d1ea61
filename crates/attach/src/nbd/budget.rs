//! How much memory the requests of a connection may take.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// Bytes to be taken and given back.
#[derive(Debug)]
pub(super) struct Budget {
    left: Mutex<u64>,
    returned: Condvar,
}

/// Bytes that were taken.
#[derive(Debug)]
pub(super) struct Share<'a> {
    budget: &'a Budget,
    bytes: u64,
}

impl Budget {
    pub(super) const fn new(bytes: u64) -> Budget {
        Budget { left: Mutex::new(bytes), returned: Condvar::new() }
    }

    /// Waits until so much is left, and takes it. It must not be more than all.
    pub(super) fn take(&self, bytes: u64) -> Share<'_> {
        let waited = self.returned.wait_while(self.lock(), |left| *left < bytes);
        *waited.unwrap_or_else(PoisonError::into_inner) -= bytes;
        Share { budget: self, bytes }
    }

    fn lock(&self) -> MutexGuard<'_, u64> {
        self.left.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Share<'_> {
    fn drop(&mut self) {
        *self.budget.lock() += self.bytes;
        self.budget.returned.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_taken_comes_back() {
        let budget = Budget::new(10);
        let shares = [budget.take(4), budget.take(6), budget.take(0)];
        assert_eq!(*budget.lock(), 0);
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| drop(budget.take(10)));
            drop(shares);
            waiting.join().unwrap();
        });
        assert_eq!(*budget.lock(), 10);
    }
}
