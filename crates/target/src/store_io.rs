//! What device servers ask of stores, and what stores answer, each in the other's words.

use std::sync::Arc;

use lunette_block::{BufferPool, Done, ErrorClass, Operation, StoreError, WriteSource};
use lunette_scsi::{Io, IoError, IoOutcome};

/// Why an [`Io`] is no operation by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NoOperation {
    /// There is no memory for its bytes.
    Memory,
    /// It moves the buffers of a command, or is not for the store at all.
    CommandBuffers,
}

/// The operation of a store that `io` asks for, where it brings all with it; its bytes get a buffer of `pool`.
pub(crate) fn operation_of(io: Io, pool: &BufferPool) -> Result<Operation, NoOperation> {
    Ok(match io {
        Io::WriteOwned { offset_bytes, bytes, stable } => {
            let mut buffer = pool.allocate(bytes.len()).ok_or(NoOperation::Memory)?;
            buffer.copy_from_slice(&bytes);
            let buffer = WriteSource { buffer: Arc::new(buffer).into(), range: 0..bytes.len() };
            Operation::Write { offset: offset_bytes, buffer, stable }
        }
        Io::Flush => Operation::Flush,
        Io::Zero { offset_bytes, length_bytes, unmap, stable } => {
            Operation::Zero { offset: offset_bytes, length: length_bytes, unmap, stable }
        }
        Io::Unmap { offset_bytes, length_bytes } => {
            Operation::Unmap { offset: offset_bytes, length: length_bytes }
        }
        Io::Prefetch { offset_bytes, length_bytes } => {
            Operation::Prefetch { offset: offset_bytes, length: length_bytes }
        }
        Io::Extents { offset_bytes, length_bytes } => {
            Operation::Extents { offset: offset_bytes, length: length_bytes }
        }
        Io::Read { .. }
        | Io::WriteMedium { .. }
        | Io::WriteDataOut { .. }
        | Io::SaveState
        | Io::AbortTasks { .. }
        | Io::Work { .. } => return Err(NoOperation::CommandBuffers),
    })
}

/// What a store brought.
pub(crate) fn io_outcome(done: Done) -> IoOutcome {
    match done {
        Done::Nothing => IoOutcome::Done,
        Done::Extents(extents) => IoOutcome::Extents(
            extents
                .into_iter()
                .map(|extent| lunette_scsi::Extent {
                    offset_bytes: extent.offset,
                    length_bytes: extent.length,
                    allocated: extent.allocated,
                })
                .collect(),
        ),
    }
}

/// Why a store failed.
pub(crate) fn io_error(error: &StoreError) -> IoError {
    match error.class() {
        ErrorClass::Medium => IoError::Medium {
            offset_bytes: match error {
                StoreError::Io { offset, .. } => Some(*offset),
                _ => None,
            },
        },
        ErrorClass::NoSpace => IoError::NoSpace,
        ErrorClass::ReadOnly => IoError::WriteProtected,
        ErrorClass::Faulted => IoError::Faulted,
        ErrorClass::Unsupported => IoError::Unsupported,
        ErrorClass::OutOfRange => IoError::OutOfRange,
        ErrorClass::Hardware | ErrorClass::Busy | ErrorClass::Closed => IoError::Hardware,
    }
}

/// The space that a store takes and has.
pub(crate) fn unit_space(space: lunette_block::Space) -> lunette_scsi::Space {
    lunette_scsi::Space { used_bytes: space.used_bytes, available_bytes: space.available_bytes }
}
