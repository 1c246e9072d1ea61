//! `lunette bench` as a child: the initiator that users have, which costs more for each command than the generator.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use lunette_tests::process::run;
use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::TOOL_LIMIT;
use super::generator::Workload;

/// The part of its result that is looked at.
#[derive(Debug, Deserialize)]
struct Told<T> {
    measured: T,
}

/// What it measured.
#[derive(Debug, Deserialize)]
pub(crate) struct Measured {
    pub(crate) operations: f64,
    pub(crate) operations_per_s: f64,
}

/// Of reads at equal distances: their latency in microseconds, from when each was to begin.
#[derive(Debug, Clone, Copy, Deserialize)]
pub(crate) struct Paced {
    /// The median.
    pub(crate) p50: f64,
}

/// Loads a unit for so many seconds with the sizes, order, depth and connections of a workload of one session, reads or writes.
///
/// # Errors
/// It could not, and says why.
pub(crate) fn load(lunette: &Path, url: &str, workload: &Workload, seconds: f64) -> Result<Measured> {
    let Workload { read_percent, block_bytes, sequential, depth, connections, .. } = workload;
    let random = if *sequential { 0 } else { 100 };
    run_bench(
        lunette,
        url,
        seconds,
        &[
            ("--random", random.to_string()),
            ("--read", read_percent.to_string()),
            ("--size", block_bytes.to_string()),
            ("--depth", depth.to_string()),
            ("--connections", connections.to_string()),
        ],
    )
}

/// Reads 4 KiB somewhere so many times a second, at equal distances, whether the ones before have ended or not.
///
/// # Errors
/// As [`load`].
pub(crate) fn paced(lunette: &Path, url: &str, per_second: f64, seconds: f64) -> Result<Paced> {
    #[derive(Deserialize)]
    struct Reads {
        read: Paced,
    }
    let pace = [("--rate", per_second.to_string()), ("--arrivals", "even".to_owned())];
    run_bench(lunette, url, seconds, &pace).map(|reads: Reads| reads.read)
}

fn run_bench<T: DeserializeOwned>(
    lunette: &Path,
    url: &str,
    seconds: f64,
    options: &[(&str, String)],
) -> Result<T> {
    let mut command = Command::new(lunette);
    command.args(["bench", url, "--json", "--warm-up", "0", "--write-destroys-data"]);
    command.args(["--time", &seconds.to_string()]);
    for (option, value) in options {
        command.args([option, &**value]);
    }
    let finished = run(&mut command, TOOL_LIMIT)?;
    ensure!(finished.success(), "lunette bench: {}: {}", finished.ending(), finished.output);
    let told: Told<T> = serde_json::from_str(finished.output.trim()).context("lunette bench's result")?;
    Ok(told.measured)
}
