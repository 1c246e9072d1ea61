//! Volumes: bytes at offsets, with an identity, a durability contract and an engine that does the blocking calls.
//!
//! This crate knows neither SCSI nor iSCSI. A [`Volume`] is opened from a [`VolumeSpec`]; each reactor thread has
//! one [`IoContext`], submits [`Operation`]s to it and collects [`IoCompletion`]s from it.
//!
//! # What is promised
//!
//! - A write with `stable: true` completes only after an `fdatasync` that began after the data was written.
//! - A flush covers every write that had completed when the flush was submitted.
//! - After a failed `fdatasync` nobody knows what is on the disk. All operations that waited for it fail, and the
//!   volume is *faulted*: writes and flushes fail until it is opened again. Reads go on.
//! - Memory and null volumes do not outlive the process; there is nothing to make stable.
//!
//! ```
//! use lunette_block::*;
//!
//! let spec = VolumeSpec {
//!     engine: EngineKind::Threads,
//!     ..VolumeSpec::new("scratch", StoreSpec::Memory { size_bytes: 1 << 20 })
//! };
//! let volume = Volume::open(&spec)?;
//! let pool = BufferPool::new(1 << 20);
//! let mut context = IoContext::new()?;
//! let mut done = Vec::new();
//!
//! let mut buffer = pool.allocate(512).expect("within the limit");
//! buffer.fill(0xa5);
//! let source = WriteSource { buffer: buffer.into(), range: 0..512 };
//! context.submit(&volume, 1, Operation::Write { offset: 512, buffer: source, stable: true });
//! context.complete(&mut done);
//! assert!(done.pop().expect("memory is never waited for").result.is_ok());
//!
//! let buffer = pool.allocate(512).expect("within the limit");
//! context.submit(&volume, 2, Operation::Read { offset: 512, buffer });
//! context.complete(&mut done);
//! let read = done.pop().expect("memory is never waited for");
//! assert!(read.buffer.expect("a read gives its buffer back").iter().all(|byte| *byte == 0xa5));
//! volume.close()?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod area;
mod buffer;
mod cached;
mod engine;
mod error;
mod flush;
mod identity;
mod large_pages;
mod layer;
mod lent;
mod log;
mod nearer;
mod pauses;
mod size;
mod spec;
mod state;
mod store;
mod uncopied;
pub mod usage;
mod volume;

pub use buffer::{Buffer, BufferPool};
pub use cached::{CachedRange, SendError};
pub use engine::operation::{Done, IoCompletion, Operation, OperationKind, WriteBuffer, WriteSource};
pub use engine::{INLINE_BYTES_MAX, IoContext, Written};
pub use error::{CloseError, ErrorClass, OpenError, StoreError};
pub use flush::Fault;
pub use identity::VolumeIdentity;
pub use large_pages::{LargePages, Refusal};
pub use layer::fault;
pub use lent::{Lent, LentRange};
pub use spec::{
    EngineError, EngineKind, IdentityOverride, Provisioning, ProvisioningError, StoreSpec, VolumeSpec,
};
pub use state::{ReplaceError, STATE_BYTES_MAX, StateContent, StateError, StateFile, StateLock};
pub use store::device::logical_sector_bytes;
pub use store::file::{is_block_device, sync_directory_of};
pub use store::residency::cached_bytes;
pub use store::{Allocation, Astray, AtomicWrites, EXTENTS_MAX, Extent, Features, RawFile, Space, Store};
pub use volume::Volume;
