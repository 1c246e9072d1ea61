//! The harness of everything that crosses crates: it starts the `lunette` binary and foreign targets, runs foreign
//! tools under a time limit, and records tests that were skipped.
//!
//! It is not a test itself: the tests stand in `tests/tests/`, the conformance run and the benchmark in `xtask/`.

#![forbid(unsafe_code)]

#[cfg(feature = "initiator")]
pub mod connection;
#[cfg(feature = "initiator")]
pub mod fuzz;
#[cfg(feature = "in-process")]
pub mod in_process;
#[cfg(feature = "initiator")]
pub mod initiator;
pub mod istgt;
pub mod lunette;
pub mod packages;
pub mod process;
pub mod random;
#[cfg(feature = "initiator")]
pub mod raw;
pub mod server;
pub mod skip;
pub mod tgtd;
pub mod tool;
