//! The harness of everything that crosses crates: it starts the `lunette` binary and foreign targets, runs foreign
//! tools under a time limit. Skips are recorded by `tests/skip`.
//!
//! It is not a test itself: the tests stand in `tests/tests/`, the conformance run and the benchmark in `xtask/`.

#![forbid(unsafe_code)]

pub mod attach;
#[cfg(feature = "initiator")]
pub mod commands;
#[cfg(feature = "initiator")]
pub mod connection;
#[cfg(feature = "initiator")]
pub mod engine;
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
pub mod relay;
#[cfg(feature = "initiator")]
pub mod reservations;
pub mod server;
pub mod tgtd;
pub mod tool;
pub mod vm;

pub use lunette_skip as skip;
pub use lunette_skip::skip;

/// Skips the running test unless every named program is there; the reason names the Debian package.
#[macro_export]
macro_rules! need_programs {
    ($($program:expr),+ $(,)?) => {
        $(if $crate::packages::find_program($program).is_none() {
            $crate::skip!(
                "{} is not installed (Debian package {})",
                $program,
                $crate::packages::package_of($program).unwrap_or("unknown")
            );
        })+
    };
}
