//! A way to wake a thread that waits for its engine.

use std::sync::Arc;

use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};

/// Wakes [`crate::Engine::poll`], from any thread.
#[derive(Debug, Clone)]
pub struct Waker(Arc<OwnedFd>);

impl Waker {
    pub(crate) fn new() -> rustix::io::Result<Self> {
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self(Arc::new(event)))
    }

    /// Has the next or present call of `poll` return.
    pub fn wake(&self) {
        // The only failure is a counter at its maximum, and then the thread is awake already.
        let _ = rustix::io::write(&*self.0, &1u64.to_ne_bytes());
    }

    /// What woke the thread is known.
    pub(crate) fn clear(&self) {
        let mut counter = [0; 8];
        // Nothing to read means that nobody woke us.
        let _ = rustix::io::read(&*self.0, &mut counter);
    }
}

impl AsFd for Waker {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
