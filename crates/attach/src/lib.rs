//! A disk of the initiator's for programs that know no iSCSI: [`Disk`] makes bytes of its blocks, [`mod@file`] shows it as a
//! file, [`nbd`] to NBD clients. None of it needs root or a module that the kernel does not have.
//!
//! Nothing is cached: what is read was read from the target, and what is written went there. `docs/decisions/0028` says what is
//! kept of writes that were not flushed, and why.

#![forbid(unsafe_code)]

mod disk;
pub mod file;
pub mod nbd;

pub use disk::{Disk, DiskError, OpenError};
