//! What device servers ask of stores, and what stores answer, each in the other's words.

use std::num::NonZeroU16;
use std::sync::Arc;

use crate::units::MAX_TRANSFER_BYTES;
use lunette_block::{BufferPool, Done, ErrorClass, Operation, StoreError, Volume, WriteSource};
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
pub(crate) fn operation_of(volume: &Volume, io: Io, pool: &BufferPool) -> Result<Operation, NoOperation> {
    let stored = |data_bytes| volume.stored_bytes(data_bytes);
    Ok(match io {
        Io::WriteOwned { offset_bytes, bytes, stable } => {
            let mut buffer = pool.allocate(bytes.len()).ok_or(NoOperation::Memory)?;
            buffer.copy_from_slice(&bytes);
            let buffer = WriteSource { buffer: Arc::new(buffer).into(), range: 0..bytes.len() };
            Operation::Write { offset: stored(offset_bytes), buffer, stable }
        }
        Io::Flush => Operation::Flush,
        Io::Zero { offset_bytes, length_bytes, unmap, stable } => {
            Operation::Zero { offset: stored(offset_bytes), length: stored(length_bytes), unmap, stable }
        }
        Io::Unmap { offset_bytes, length_bytes } => {
            Operation::Unmap { offset: stored(offset_bytes), length: stored(length_bytes) }
        }
        Io::Prefetch { offset_bytes, length_bytes } => {
            Operation::Prefetch { offset: stored(offset_bytes), length: stored(length_bytes) }
        }
        Io::Extents { offset_bytes, length_bytes } => {
            Operation::Extents { offset: stored(offset_bytes), length: stored(length_bytes) }
        }
        Io::Read { .. }
        | Io::WriteMedium { .. }
        | Io::WriteDataOut { .. }
        | Io::WriteAtomic { .. }
        | Io::SaveState
        | Io::AbortTasks { .. }
        | Io::Work { .. } => return Err(NoOperation::CommandBuffers),
    })
}

/// What an operation means for what its command has changed on the same medium.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Stability {
    /// It changes the medium.
    pub(crate) changes: bool,
    /// All is stable when it has gone well.
    pub(crate) settles: bool,
}

/// See [`Stability`].
pub(crate) const fn stability(io: &Io) -> Stability {
    let (changes, settles) = match *io {
        Io::WriteDataOut { stable, .. }
        | Io::WriteAtomic { stable, .. }
        | Io::WriteOwned { stable, .. }
        | Io::WriteMedium { stable, .. }
        | Io::Zero { stable, .. } => (true, stable),
        Io::Unmap { .. } => (true, false),
        Io::Flush => (false, true),
        Io::Read { .. }
        | Io::Prefetch { .. }
        | Io::SaveState
        | Io::AbortTasks { .. }
        | Io::Work { .. }
        | Io::Extents { .. } => (false, false),
    };
    Stability { changes, settles }
}

/// What a store brought.
pub(crate) fn io_outcome(volume: &Volume, done: Done) -> IoOutcome {
    match done {
        Done::Nothing => IoOutcome::Done,
        Done::Extents(extents) => IoOutcome::Extents(
            extents
                .into_iter()
                .map(|extent| lunette_scsi::Extent {
                    offset_bytes: volume.data_bytes(extent.offset),
                    length_bytes: volume.data_bytes(extent.length),
                    allocation: unit_allocation(extent.allocation),
                })
                .collect(),
        ),
    }
}

/// What space a part of a store has.
fn unit_allocation(allocation: lunette_block::Allocation) -> lunette_scsi::Allocation {
    match allocation {
        lunette_block::Allocation::Data => lunette_scsi::Allocation::Mapped,
        lunette_block::Allocation::Reserved => lunette_scsi::Allocation::Anchored,
        lunette_block::Allocation::Hole => lunette_scsi::Allocation::Deallocated,
    }
}

/// Why a store failed.
pub(crate) fn io_error(volume: &Volume, error: &StoreError) -> IoError {
    match error.class() {
        ErrorClass::Medium => IoError::Medium {
            offset_bytes: match error {
                StoreError::Io { offset, .. } => Some(volume.data_bytes(*offset)),
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

/// The atomic writes of a store in blocks; `None` where not one whole block is such a write.
pub(crate) fn unit_atomic_writes(
    atomic: lunette_block::AtomicWrites,
    block_length_bytes: u32,
) -> Option<lunette_scsi::AtomicWrites> {
    // Both are powers of two, so one is a multiple of the other.
    let granularity = (atomic.granularity_bytes / block_length_bytes).max(1);
    let longest = atomic.length_bytes_max.min(MAX_TRANSFER_BYTES) / block_length_bytes;
    // The command has sixteen bits for its length.
    let longest = longest.min(u16::MAX.into());
    let blocks_max = u16::try_from(longest - longest % granularity).ok().filter(|&blocks| blocks > 0)?;
    let granularity_blocks = NonZeroU16::new(u16::try_from(granularity).ok()?)?;
    Some(lunette_scsi::AtomicWrites { granularity_blocks, blocks_max })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn atomic_writes_are_told_in_blocks() {
        let told = |granularity_bytes, length_bytes_max, block_length_bytes| {
            let atomic = lunette_block::AtomicWrites { granularity_bytes, length_bytes_max };
            let told = unit_atomic_writes(atomic, block_length_bytes);
            told.map(|atomic| (atomic.granularity_blocks.get(), atomic.blocks_max))
        };
        assert_eq!(told(16 << 10, 16 << 10, 512), Some((32, 32)));
        assert_eq!(told(16 << 10, 16 << 10, 4096), Some((4, 4)));
        assert_eq!(told(1, u32::MAX, 512), Some((1, 32768)));
        assert_eq!(told(1, u32::MAX, 4096), Some((1, 4096)));
        assert_eq!(told(512, 512, 4096), None, "less than a block");
    }
}
