//! What is asked of a volume and what comes back: owned values that move between threads.

use std::fmt;
use std::ops::{Deref, Range};
use std::sync::Arc;

use crate::buffer::Buffer;
use crate::error::StoreError;
use crate::store::Extent;

/// The memory that a write takes its data from: handed over and given back, or shared.
#[derive(Debug)]
pub enum WriteBuffer {
    /// Comes back in [`IoCompletion::buffer`].
    Owned(Buffer),
    /// Freed as soon as the store has its data, before that is stable; it does not come back.
    Given(Buffer),
    /// Several writes, or the submitter, read the same memory; it does not come back.
    Shared(Arc<Buffer>),
}

impl Deref for WriteBuffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Owned(buffer) | Self::Given(buffer) => buffer,
            Self::Shared(buffer) => buffer,
        }
    }
}

impl From<Buffer> for WriteBuffer {
    fn from(buffer: Buffer) -> Self {
        Self::Owned(buffer)
    }
}

impl From<Arc<Buffer>> for WriteBuffer {
    fn from(buffer: Arc<Buffer>) -> Self {
        Self::Shared(buffer)
    }
}

/// The data of a write: a range of a buffer.
#[derive(Debug)]
pub struct WriteSource {
    /// The memory.
    pub buffer: WriteBuffer,
    /// The bytes of it to write. A range that is not in the buffer fails the write with
    /// [`StoreError::OutOfRange`].
    pub range: Range<usize>,
}

impl WriteSource {
    /// The bytes to write; `None` when the range is not in the buffer.
    pub fn bytes(&self) -> Option<&[u8]> {
        self.buffer.get(self.range.clone())
    }

    /// The buffer, if it goes back to the submitter.
    pub fn into_buffer(self) -> Option<Buffer> {
        match self.buffer {
            WriteBuffer::Owned(buffer) => Some(buffer),
            WriteBuffer::Given(_) | WriteBuffer::Shared(_) => None,
        }
    }
}

/// One thing to do to a volume. Offsets and lengths are bytes; zeroing and unmapping on a block device take multiples
/// of its sector.
#[derive(Debug)]
pub enum Operation {
    /// Fill the buffer from `offset`.
    Read {
        /// First byte.
        offset: u64,
        /// Its length is the length to read. It comes back in the completion; after a failed read its contents are
        /// unspecified.
        buffer: Buffer,
    },
    /// Write the source's bytes at `offset`.
    Write {
        /// First byte.
        offset: u64,
        /// The data.
        buffer: WriteSource,
        /// Complete only when the data is on stable storage.
        stable: bool,
    },
    /// Write the source's bytes at `offset`, all of them or nothing, even if power is lost: see
    /// [`crate::Features::atomic_writes`].
    WriteAtomic {
        /// First byte.
        offset: u64,
        /// The data.
        buffer: WriteSource,
        /// Complete only when the data is on stable storage.
        stable: bool,
    },
    /// Make everything stable that had completed before this was submitted.
    Flush,
    /// Make the range stable, all of which was written before this was submitted ([`crate::Volume::write_at_once`]). It fails as a
    /// stable write does.
    Commit {
        /// First byte.
        offset: u64,
        /// Bytes.
        length: u64,
    },
    /// Make the range read as zeroes.
    Zero {
        /// First byte.
        offset: u64,
        /// Bytes.
        length: u64,
        /// Give the space back where the store can.
        unmap: bool,
        /// Complete only when the zeroes are on stable storage.
        stable: bool,
    },
    /// Give the range's space back; it reads as zeroes then. Volatile until the next flush.
    Unmap {
        /// First byte.
        offset: u64,
        /// Bytes.
        length: u64,
    },
    /// A hint that the range will be read soon.
    Prefetch {
        /// First byte.
        offset: u64,
        /// Bytes.
        length: u64,
    },
    /// Tell what of the range is allocated.
    Extents {
        /// First byte.
        offset: u64,
        /// Bytes.
        length: u64,
    },
}

impl Operation {
    /// Which kind this is.
    pub fn kind(&self) -> OperationKind {
        match self {
            Self::Read { .. } => OperationKind::Read,
            Self::Write { .. } => OperationKind::Write,
            Self::WriteAtomic { .. } => OperationKind::WriteAtomic,
            Self::Flush | Self::Commit { .. } => OperationKind::Flush,
            Self::Zero { .. } => OperationKind::Zero,
            Self::Unmap { .. } => OperationKind::Unmap,
            Self::Prefetch { .. } => OperationKind::Prefetch,
            Self::Extents { .. } => OperationKind::Extents,
        }
    }

    /// Offset and length; a flush has neither. `None` when a write's range is not in its buffer.
    pub(crate) fn range(&self) -> Option<(u64, u64)> {
        match self {
            Self::Read { offset, buffer } => Some((*offset, buffer.len() as u64)),
            Self::Write { offset, buffer, .. } | Self::WriteAtomic { offset, buffer, .. } => {
                Some((*offset, buffer.bytes()?.len() as u64))
            }
            Self::Flush => Some((0, 0)),
            Self::Commit { offset, length }
            | Self::Zero { offset, length, .. }
            | Self::Unmap { offset, length }
            | Self::Prefetch { offset, length }
            | Self::Extents { offset, length } => Some((*offset, *length)),
        }
    }

    /// The buffer that goes back to the submitter.
    pub(crate) fn into_buffer(self) -> Option<Buffer> {
        match self {
            Self::Read { buffer, .. } => Some(buffer),
            Self::Write { buffer, .. } | Self::WriteAtomic { buffer, .. } => buffer.into_buffer(),
            _ => None,
        }
    }
}

/// The kinds of operation, for logs, counters and fault rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum OperationKind {
    /// [`Operation::Read`]
    Read,
    /// [`Operation::Write`]
    Write,
    /// [`Operation::WriteAtomic`]
    WriteAtomic,
    /// [`Operation::Flush`], [`Operation::Commit`], and the flush that makes a write stable
    Flush,
    /// [`Operation::Zero`]
    Zero,
    /// [`Operation::Unmap`]
    Unmap,
    /// [`Operation::Prefetch`]
    Prefetch,
    /// [`Operation::Extents`]
    Extents,
}

impl OperationKind {
    /// All kinds, in the order of their numbers.
    pub(crate) const ALL: [Self; 8] = [
        Self::Read,
        Self::Write,
        Self::WriteAtomic,
        Self::Flush,
        Self::Zero,
        Self::Unmap,
        Self::Prefetch,
        Self::Extents,
    ];

    /// Whether a read-only volume must refuse it.
    pub(crate) fn changes_data(self) -> bool {
        matches!(self, Self::Write | Self::WriteAtomic | Self::Zero | Self::Unmap)
    }
}

impl fmt::Display for OperationKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::WriteAtomic => "atomic write",
            Self::Flush => "flush",
            Self::Zero => "zero",
            Self::Unmap => "unmap",
            Self::Prefetch => "prefetch",
            Self::Extents => "extents",
        })
    }
}

/// What an operation that went well brought.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Done {
    /// Nothing but the fact (and the buffer of a read).
    Nothing,
    /// The answer to [`Operation::Extents`]; see [`crate::Store::extents`] for its order and bound.
    Extents(Vec<Extent>),
}

/// The end of one operation.
#[derive(Debug)]
pub struct IoCompletion {
    /// The tag that the operation was submitted with.
    pub tag: u64,
    /// How it went.
    pub result: Result<Done, StoreError>,
    /// The buffer of a read, or the owned buffer of a write, whatever the result.
    pub buffer: Option<Buffer>,
}
