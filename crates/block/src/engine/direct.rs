//! The `direct` engine: every read and write waits for the device, past the page cache, as the diskio target does.
//!
//! Opening with O_DIRECT and its alignment are the store's matter.

use std::sync::Arc;

use super::operation::Operation;
use super::step::{Outcome, Step};
use crate::volume::Volume;

/// Nothing can be had without waiting. A flush has nothing to do but to be flushed.
pub(super) fn submit(volume: &Arc<Volume>, tag: u64, operation: Operation) -> Step {
    match operation {
        Operation::Flush | Operation::Commit { .. } => {
            Outcome::of(volume, tag, volume.execute(operation, 0)).into()
        }
        operation => Step::call(volume, tag, operation),
    }
}
