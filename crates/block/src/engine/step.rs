//! What an engine makes of an operation: done, or what has to be waited for and has not been begun.
//!
//! Engines say what is to be done. Where it is done, on the submitting thread or on another, is decided once a turn by
//! the [`super::IoContext`], which knows what else there is to do.

use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use super::INLINE_BYTES_MAX;
use super::operation::{IoCompletion, Operation};
use crate::buffer::Buffer;
use crate::volume::{Executed, Volume};

/// See the module's documentation.
#[derive(Debug)]
pub(super) enum Step {
    /// It is finished.
    Done(IoCompletion),
    /// A call of the store will wait.
    Call(Call),
    /// Its data is written and has to become stable.
    Commit(Commit),
}

/// An operation to be done with calls that wait.
#[derive(Debug)]
pub(super) struct Call {
    pub(super) volume: Arc<Volume>,
    pub(super) tag: u64,
    pub(super) operation: Operation,
    /// Bytes of a read that the page cache has already filled in.
    pub(super) done_bytes: usize,
}

/// A written operation that waits for stable storage.
#[derive(Debug)]
pub(super) struct Commit {
    pub(super) volume: Arc<Volume>,
    pub(super) tag: u64,
    /// The bytes that it has changed.
    pub(super) changed: Range<u64>,
    pub(super) buffer: Option<Buffer>,
}

impl Step {
    /// An operation that has to wait from its beginning on.
    pub(super) fn call(volume: &Arc<Volume>, tag: u64, operation: Operation) -> Self {
        Self::Call(Call { volume: Arc::clone(volume), tag, operation, done_bytes: 0 })
    }
}

/// What is left of an operation whose calls were made.
#[derive(Debug)]
pub(super) enum Outcome {
    /// Nothing.
    Done(IoCompletion),
    /// Its data has to become stable.
    Commit(Commit),
}

impl Outcome {
    pub(super) fn of(volume: &Arc<Volume>, tag: u64, executed: Executed) -> Self {
        let Executed { result, buffer, to_flush } = executed;
        match to_flush {
            Some(changed) => Self::Commit(Commit { volume: Arc::clone(volume), tag, changed, buffer }),
            None => Self::Done(IoCompletion { tag, result, buffer }),
        }
    }
}

impl From<Outcome> for Step {
    fn from(outcome: Outcome) -> Self {
        match outcome {
            Outcome::Done(completion) => Self::Done(completion),
            Outcome::Commit(commit) => Self::Commit(commit),
        }
    }
}

impl Call {
    /// Whether a thread that has nothing else to do may wait for it: a short read or write of a quick store.
    pub(super) fn is_quick(&self) -> bool {
        let (store, pace) = (self.volume.store(), self.volume.pace());
        let short = match &self.operation {
            Operation::Read { buffer, .. } => buffer.len() <= INLINE_BYTES_MAX,
            Operation::Write { buffer, .. } => {
                buffer.range.len() <= INLINE_BYTES_MAX
                    && (!store.buffers_writes() || self.volume.copies_inline())
            }
            _ => false,
        };
        short && pace.calls.is_quick() && !store.is_slow()
    }

    /// Makes the calls, and remembers how long they took.
    pub(super) fn execute(self) -> Outcome {
        let Self { volume, tag, operation, done_bytes } = self;
        let is_transfer = matches!(operation, Operation::Read { .. } | Operation::Write { .. });
        let executed = if is_transfer {
            let began = Instant::now();
            let executed = volume.durability().waits().call(|| volume.execute(operation, done_bytes));
            volume.pace().calls.note(began.elapsed());
            executed
        } else {
            volume.execute(operation, done_bytes)
        };
        Outcome::of(&volume, tag, executed)
    }
}
