//! Skips as data. Rust's test runner has no "skipped": a test that cannot run here says so with [`skip!`]
//! or [`record_lacking`]; the reason goes to standard error past the runner's capture and, under `cargo xtask test`, to
//! the file that [`SKIP_FILE`] names, so that xtask takes the test out of the passed ones.
//!
//! A crate of its own without dependencies, so that the tests of every crate can use it.

#![forbid(unsafe_code)]

use std::env;
use std::fs::OpenOptions;
use std::io::{self, Write};

/// The environment variable with the path of the file to which skips are appended, one a line.
pub const SKIP_FILE: &str = "LUNETTE_SKIPS";

/// Records that the running test was skipped, with its reason; prefer [`skip!`], which also returns.
///
/// # Panics
/// Under `CI=true`: there, what is missing is an error, not a reason to look away. And when the file cannot be written.
pub fn record(reason: &str) {
    assert!(!is_ci(), "this test cannot be skipped under CI=true: {reason}");
    record_lacking(reason);
}

/// Records that the running test, or a part of it, was skipped because the machine lacks what nobody can install: a
/// newer kernel, a privilege, a file system. Also under `CI=true`.
///
/// # Panics
/// When the file of skips cannot be written.
pub fn record_lacking(reason: &str) {
    let test = std::thread::current().name().unwrap_or("unnamed").to_owned();
    let line = format!("SKIPPED {test}: {}\n", reason.replace('\n', " "));
    // Straight to the stream: the runner captures only what the print macros write.
    let _ = io::stderr().write_all(line.as_bytes());
    if let Some(path) = env::var_os(SKIP_FILE) {
        OpenOptions::new()
            .create(true)
            .append(true)
            .open(&path)
            .and_then(|mut file| file.write_all(line.as_bytes()))
            .unwrap_or_else(|error| panic!("cannot record a skip in {}: {error}", path.display()));
    }
}

/// True under `CI=true`, as CI services set it.
#[must_use]
pub fn is_ci() -> bool {
    env::var_os("CI").is_some_and(|value| value == "true" || value == "1")
}

/// Ends the running test as skipped, with a reason in `format!`'s form.
#[macro_export]
macro_rules! skip {
    ($($reason:tt)+) => {{
        $crate::record(&format!($($reason)+));
        return;
    }};
}
