//! How many sessions wait for their initiators without a connection (RFC 7143, 6.3.6), over all reactors: each keeps its
//! tasks and its place in the registry for as long as Time2Wait and Time2Retain say, so their number needs a bound.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// See the module's documentation.
#[derive(Debug)]
pub(crate) struct RetainedSessions {
    max: usize,
    count: Arc<AtomicUsize>,
}

/// One session's place, given back when it is dropped.
#[derive(Debug)]
pub(crate) struct Retained(Arc<AtomicUsize>);

impl RetainedSessions {
    /// Up to `max` sessions may wait at a time.
    pub(crate) fn new(max: usize) -> Self {
        Self { max, count: Arc::default() }
    }

    /// A place, if one is left.
    pub(crate) fn take(&self) -> Option<Retained> {
        let free = |count| (count < self.max).then_some(count + 1);
        let taken = self.count.fetch_update(Ordering::Relaxed, Ordering::Relaxed, free);
        taken.ok().map(|_| Retained(Arc::clone(&self.count)))
    }
}

impl Drop for Retained {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_few_and_come_back() {
        let sessions = RetainedSessions::new(2);
        let (first, second) = (sessions.take(), sessions.take());
        assert!(first.is_some() && second.is_some() && sessions.take().is_none());
        drop(first);
        assert!(sessions.take().is_some());
    }
}
