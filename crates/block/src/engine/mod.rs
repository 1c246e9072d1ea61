//! Engines: who does a store's blocking calls, behind one interface of owned buffers.
//!
//! An [`IoContext`] belongs to one thread. Whatever an engine needs once per thread lives in it, and its `complete`
//! is the place where a gathered batch would be handed to the kernel; the two engines of today gather nothing.

pub(crate) mod operation;
mod pool;
pub(crate) mod queue;
mod sync;
mod threads;

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use crate::spec::EngineKind;
use crate::volume::Volume;
use operation::{IoCompletion, Operation};
use queue::CompletionQueue;

pub(crate) use pool::Share;
pub(crate) use threads::Pace;

/// The `threads` engine does operations up to this length on the submitting thread when they need not wait.
/// Copying 1 MiB takes some 100 microseconds; more would hold up the other connections of the thread.
pub const INLINE_BYTES_MAX: usize = 1 << 20;

/// One thread's way to all volumes.
#[derive(Debug)]
pub struct IoContext {
    finished: Vec<IoCompletion>,
    elsewhere: usize,
    queue: Arc<CompletionQueue>,
}

impl IoContext {
    /// A context for the calling thread.
    ///
    /// # Errors
    ///
    /// When the process has no file descriptor left for the event descriptor.
    pub fn new() -> io::Result<Self> {
        let queue = Arc::new(CompletionQueue::new()?);
        Ok(Self { finished: Vec::new(), elsewhere: 0, queue })
    }

    /// An event descriptor: readable when another thread finished an operation of this context. It says nothing
    /// about operations that finished in [`Self::submit`], so call [`Self::complete`] after each batch as well.
    pub fn as_fd(&self) -> BorrowedFd<'_> {
        self.queue.as_fd()
    }

    /// Starts an operation. `tag` comes back unchanged in its completion. Everything wrong with it is told in the
    /// completion, too. Operations are not ordered among each other.
    pub fn submit(&mut self, volume: &Arc<Volume>, tag: u64, operation: Operation) {
        let finished = match volume.check(&operation) {
            Err(error) => Some(IoCompletion { tag, result: Err(error), buffer: operation.into_buffer() }),
            Ok(()) => match volume.engine() {
                EngineKind::Sync => Some(sync::run(volume, tag, operation)),
                EngineKind::Threads => threads::submit(volume, &self.queue, tag, operation),
            },
        };
        match finished {
            Some(completion) => self.finished.push(completion),
            None => self.elsewhere += 1,
        }
    }

    /// Moves everything that is finished to the end of `out`. Never waits.
    pub fn complete(&mut self, out: &mut Vec<IoCompletion>) {
        out.append(&mut self.finished);
        if self.elsewhere > 0 {
            self.elsewhere -= self.queue.take_into(out);
        }
    }

    /// Operations that were submitted and not yet handed out by [`Self::complete`].
    pub fn in_flight(&self) -> usize {
        self.finished.len() + self.elsewhere
    }
}

impl AsFd for IoContext {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.queue.as_fd()
    }
}
