//! The way back: completions from other threads to the one thread that owns an [`crate::IoContext`].

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use rustix::event::EventfdFlags;

use super::operation::IoCompletion;

/// Completions and the event descriptor that says there are some.
#[derive(Debug)]
pub(crate) struct CompletionQueue {
    finished: Mutex<Vec<IoCompletion>>,
    /// True while the event descriptor is readable. Written under the lock only, together with the descriptor, so
    /// that the two never disagree: a descriptor left readable would make the reactor spin.
    signalled: AtomicBool,
    event: OwnedFd,
}

impl CompletionQueue {
    pub(crate) fn new() -> io::Result<Self> {
        let event = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { finished: Mutex::default(), signalled: AtomicBool::new(false), event })
    }

    pub(crate) fn as_fd(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }

    /// Adds a completion; wakes the owner if nothing else has since it last looked.
    pub(crate) fn push(&self, completion: IoCompletion) {
        self.push_all([completion]);
    }

    /// Adds completions, at least one, all of which the owner finds when it looks.
    pub(crate) fn push_all(&self, completions: impl IntoIterator<Item = IoCompletion>) {
        let mut finished = self.finished.lock().unwrap_or_else(PoisonError::into_inner);
        finished.extend(completions);
        if !self.signalled.swap(true, Ordering::Relaxed)
            && let Err(errno) = rustix::io::write(&self.event, &1_u64.to_ne_bytes())
        {
            tracing::error!(%errno, "an I/O completion could not be signalled");
        }
    }

    /// Moves what has come into `out`; returns how much that was. Costs one load while nothing has come.
    pub(crate) fn take_into(&self, out: &mut Vec<IoCompletion>) -> usize {
        if !self.signalled.load(Ordering::Relaxed) {
            return 0;
        }
        let mut finished = self.finished.lock().unwrap_or_else(PoisonError::into_inner);
        let count = finished.len();
        out.append(&mut finished);
        // Cannot fail: the descriptor is readable while `signalled` is set.
        let _ = rustix::io::read(&self.event, &mut [0_u8; 8]);
        self.signalled.store(false, Ordering::Relaxed);
        count
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::operation::Done;
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    use std::sync::Arc;

    fn readable(queue: &CompletionQueue) -> bool {
        let mut fds = [PollFd::new(&queue.event, PollFlags::IN)];
        poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap() == 1
    }

    fn completion(tag: u64) -> IoCompletion {
        IoCompletion { tag, result: Ok(Done::Nothing), buffer: None }
    }

    #[test]
    fn the_descriptor_is_readable_exactly_while_something_waits() {
        let queue = CompletionQueue::new().unwrap();
        let mut out = Vec::new();
        assert!(!readable(&queue));
        assert_eq!(queue.take_into(&mut out), 0);
        queue.push(completion(1));
        queue.push(completion(2));
        assert!(readable(&queue));
        assert_eq!(queue.take_into(&mut out), 2);
        assert!(!readable(&queue));
        assert_eq!(out.iter().map(|completion| completion.tag).collect::<Vec<_>>(), [1, 2]);
    }

    #[test]
    fn nothing_is_lost_between_threads() {
        const EACH: u64 = 5000;
        let queue = Arc::new(CompletionQueue::new().unwrap());
        let threads: Vec<_> = (0..2)
            .map(|_| {
                let queue = Arc::clone(&queue);
                std::thread::spawn(move || (0..EACH).for_each(|tag| queue.push(completion(tag))))
            })
            .collect();
        let mut out = Vec::new();
        while out.len() < 2 * EACH as usize {
            let mut fds = [PollFd::new(&queue.event, PollFlags::IN)];
            let ready = poll(&mut fds, Some(&Timespec { tv_sec: 10, tv_nsec: 0 })).unwrap();
            assert_eq!(ready, 1, "a wake-up was lost after {} completions", out.len());
            queue.take_into(&mut out);
        }
        for thread in threads {
            thread.join().unwrap();
        }
        assert!(!readable(&queue));
    }
}
