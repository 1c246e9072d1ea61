//! Messages between threads: a queue and an event descriptor that wakes the receiver's epoll.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Mutex, PoisonError};

use rustix::event::{EventfdFlags, eventfd};

/// A queue that any thread may fill and one thread empties.
#[derive(Debug)]
pub(crate) struct Mailbox<T> {
    messages: Mutex<Vec<T>>,
    wake: OwnedFd,
}

impl<T> Mailbox<T> {
    /// An empty queue.
    ///
    /// # Errors
    /// When the process has no descriptor left.
    pub(crate) fn new() -> io::Result<Self> {
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { messages: Mutex::default(), wake })
    }

    /// Adds a message and wakes the receiver.
    pub(crate) fn send(&self, message: T) {
        let mut messages = self.messages.lock().unwrap_or_else(PoisonError::into_inner);
        let was_empty = messages.is_empty();
        messages.push(message);
        drop(messages);
        if was_empty {
            // The only failure is a counter at its maximum, and then the receiver is awake already.
            let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
        }
    }

    /// Takes all messages, in order.
    pub(crate) fn take(&self) -> Vec<T> {
        let mut counter = [0; 8];
        // Nothing to read means that nobody woke us; the queue is looked at all the same.
        let _ = rustix::io::read(&self.wake, &mut counter);
        std::mem::take(&mut *self.messages.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl<T> AsFd for Mailbox<T> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }
}
