//! Many writers, one flush: whoever needs what was written to be stable waits for a flush that begins after that.

use std::io;
use std::sync::{Condvar, Mutex, PoisonError};

use crate::error::copy_io_error;

/// The flushes of one file.
#[derive(Debug, Default)]
pub(super) struct Barrier {
    state: Mutex<State>,
    ended: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// Flushes that were begun, and those of them that have ended.
    begun: u64,
    over: u64,
    /// The kernel tells a lost write once. What it was is not known, so no later flush can be believed.
    failure: Option<io::Error>,
}

impl Barrier {
    /// Returns when a `flush` that began after this call has ended; of calls at the same time one does it for all.
    ///
    /// # Errors
    /// That of the first flush that failed, from then on.
    pub(super) fn pass(&self, flush: impl Fn() -> io::Result<()>) -> io::Result<()> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let needed = state.begun + 1;
        loop {
            if let Some(error) = &state.failure {
                return Err(copy_io_error(error));
            }
            if state.over >= needed {
                return Ok(());
            }
            if state.begun > state.over {
                state = self.ended.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            state.begun += 1;
            drop(state);
            let result = flush();
            state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            state.over = state.begun;
            state.failure = result.err();
            self.ended.notify_all();
        }
    }

    /// Whether every flush so far went well.
    ///
    /// # Errors
    /// That of the first one that did not.
    pub(super) fn check(&self) -> io::Result<()> {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.failure.as_ref().map_or(Ok(()), |error| Err(copy_io_error(error)))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    #[test]
    fn every_pass_is_covered_by_a_flush_that_began_after_it() {
        let (barrier, written, flushed) = (Barrier::default(), AtomicU64::new(0), AtomicU64::new(0));
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..500 {
                        let mine = written.fetch_add(1, Ordering::SeqCst) + 1;
                        let flush = || {
                            let seen = written.load(Ordering::SeqCst);
                            std::thread::yield_now();
                            flushed.fetch_max(seen, Ordering::SeqCst);
                            Ok(())
                        };
                        barrier.pass(flush).unwrap();
                        assert!(flushed.load(Ordering::SeqCst) >= mine);
                    }
                });
            }
        });
    }

    #[test]
    fn a_failure_stays() {
        let barrier = Barrier::default();
        barrier.pass(|| Ok(())).unwrap();
        assert!(barrier.pass(|| Err(io::Error::from_raw_os_error(5))).is_err());
        assert!(barrier.check().is_err());
        assert_eq!(barrier.pass(|| Ok(())).unwrap_err().raw_os_error(), Some(5));
    }
}
