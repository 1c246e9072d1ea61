//! `lunette bench` as a child: the initiator that users have, which costs more for each command than the generator.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use lunette_tests::process::run;
use serde::Deserialize;

use super::TOOL_LIMIT;
use super::generator::Workload;

/// The part of its result that is looked at.
#[derive(Debug, Deserialize)]
struct Told {
    measured: Measured,
}

/// What it measured.
#[derive(Debug, Deserialize)]
pub(crate) struct Measured {
    pub(crate) operations: f64,
    pub(crate) operations_per_s: f64,
}

/// Loads a unit for so many seconds with the sizes, order, depth and connections of a workload of one session, reads or writes.
///
/// # Errors
/// It could not, and says why.
pub(crate) fn load(lunette: &Path, url: &str, workload: &Workload, seconds: f64) -> Result<Measured> {
    let Workload { read_percent, block_bytes, sequential, depth, connections, .. } = workload;
    let random = if *sequential { 0 } else { 100 };
    let mut command = Command::new(lunette);
    command.args(["bench", url, "--json", "--warm-up", "0", "--write-destroys-data"]);
    for (option, value) in [
        ("--random", random.to_string()),
        ("--read", read_percent.to_string()),
        ("--size", block_bytes.to_string()),
        ("--depth", depth.to_string()),
        ("--connections", connections.to_string()),
        ("--time", seconds.to_string()),
    ] {
        command.args([option, &value]);
    }
    let finished = run(&mut command, TOOL_LIMIT)?;
    ensure!(finished.success(), "lunette bench: {}: {}", finished.ending(), finished.output);
    let told: Told = serde_json::from_str(finished.output.trim()).context("lunette bench's result")?;
    Ok(told.measured)
}
