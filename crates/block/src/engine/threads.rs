//! The `threads` engine: what the page cache can do at once is done on the submitting thread, the rest by a pool.
//!
//! A read asks the page cache first (`RWF_NOWAIT`) and goes to the pool for what is missing. A buffered write is a
//! copy into the page cache and done inline, unless the kernel makes writers wait (see [`super::Pace`]).

use std::sync::Arc;

use super::INLINE_BYTES_MAX;
use super::operation::{Done, IoCompletion, Operation};
use super::step::{Call, Outcome, Step};
use crate::volume::Volume;

/// Does what need not wait.
pub(super) fn submit(volume: &Arc<Volume>, tag: u64, operation: Operation) -> Step {
    match operation {
        Operation::Read { offset, mut buffer } if buffer.len() <= INLINE_BYTES_MAX => {
            // A failure here is left to the blocking read, which reports it.
            let done_bytes = volume.read_cached(offset, &mut buffer).unwrap_or(0).min(buffer.len());
            if done_bytes == buffer.len() {
                return Step::Done(IoCompletion { tag, result: Ok(Done::Nothing), buffer: Some(buffer) });
            }
            let operation = Operation::Read { offset, buffer };
            Step::Call(Call { volume: Arc::clone(volume), tag, operation, done_bytes })
        }
        Operation::Write { ref buffer, .. } if buffer.range.len() <= INLINE_BYTES_MAX => {
            if !volume.store().buffers_writes() || !volume.copies_inline() {
                return Step::call(volume, tag, operation);
            }
            let executed = volume.pace().watch_copy(|| volume.execute(operation, 0));
            Outcome::of(volume, tag, executed).into()
        }
        Operation::Flush | Operation::Commit { .. } => {
            Outcome::of(volume, tag, volume.execute(operation, 0)).into()
        }
        operation => Step::call(volume, tag, operation),
    }
}
