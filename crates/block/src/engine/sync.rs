//! The `sync` engine: one blocking operation at a time on the submitting thread, as the UNH file I/O target does.
//!
//! It is the simplest thing that is right, and what the other engines are measured against.

use crate::engine::operation::{IoCompletion, Operation};
use crate::volume::Volume;

/// Does the whole operation, its flush included, before it returns.
pub(super) fn run(volume: &Volume, tag: u64, operation: Operation) -> IoCompletion {
    let executed = volume.execute(operation, 0);
    let result = match executed.result {
        Ok(done) => match &executed.to_flush {
            Some(changed) => volume.durability().commit_range(changed).map(|()| done),
            None => Ok(done),
        },
        failed => failed,
    };
    IoCompletion { tag, result, buffer: executed.buffer }
}
