//! A disk of the initiator's for programs that know no iSCSI: [`Disk`] makes bytes of its blocks, [`mod@file`] shows it as a
//! file, [`nbd`] to NBD clients. None of it needs root or a module that the kernel does not have.
//!
//! Little is cached: what a reader in order will want next, and what was answered and not sent yet (`docs/decisions/0036`).
//! `docs/decisions/0028` says what is kept of writes that were not flushed, and why.

#![forbid(unsafe_code)]

mod disk;
pub mod file;
pub mod nbd;

pub use disk::{Disk, DiskError, DiskOptions, Extent, OpenError, Resize, Space};
