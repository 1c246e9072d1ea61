//! `lunette advise` with what it measures: the path to a disk, and the proof on an emulated link.

use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use lunette_tests::lunette::{Lunette, binary};
use lunette_tests::process::run;
use serde_json::Value;

/// Far more than it takes.
const LIMIT: Duration = Duration::from_secs(120);

fn advise(arguments: &[&str]) -> Result<Option<Value>> {
    let finished = run(Command::new(binary()).arg("advise").args(arguments).arg("--json"), LIMIT)?;
    if finished.output.contains("there is no emulated network") {
        lunette_skip::record_lacking(finished.output.trim());
        return Ok(None);
    }
    ensure!(finished.success(), "{}: {}", finished.ending(), finished.output);
    Ok(Some(serde_json::from_str(finished.output.trim()).context("JSON")?))
}

fn positive(value: &Value) -> Result<f64> {
    value
        .as_f64()
        .filter(|value| *value > 0.0 && value.is_finite())
        .with_context(|| format!("{value} is no rate"))
}

#[test]
fn the_path_to_a_disk_is_measured() -> Result<()> {
    let lunette = Lunette::serve().luns(["mem:64M"]).start()?;
    let told =
        advise(&[&lunette.url(0), "--size", "4K", "--depth", "8"])?.context("no network is emulated")?;
    let seen = &told["seen"];
    positive(&seen["one_session_mb_per_s"])?;
    positive(&seen["several_sessions_mb_per_s"])?;
    ensure!(seen["negotiated"]["initial_r2t"] == false && told["settings"]["window"] == 8, "{told}");
    // What was read is what the line carries at least.
    let line = positive(&told["line_mb_per_s"])?;
    ensure!(line >= positive(&seen["one_session_mb_per_s"])? * 0.99, "{told}");
    positive(&told["mb_per_s"])?;
    // What is given takes the place of what was measured.
    let told =
        advise(&[&lunette.url(0), "--rate", "155M", "--rtt", "50ms"])?.context("no network is emulated")?;
    ensure!(told["path"]["rate_bits_per_s"] == 155e6 && told["path"]["round_trip_ms"] == 50.0, "{told}");
    lunette.stop()
}

#[test]
fn an_advice_is_proven_on_an_emulated_link() -> Result<()> {
    let arguments = [
        "--rtt",
        "10ms",
        "--rate",
        "20M",
        "--read",
        "0",
        "--size",
        "16K",
        "--depth",
        "1",
        "--settings",
        "rfc",
        "--prove",
    ];
    let Some(told) = advise(&arguments)? else { return Ok(()) };
    let proof = told["proof"].as_array().context("a proof")?;
    ensure!(proof.len() == 2 && proof[0]["with"] == "before" && proof[1]["with"] == "after", "{told}");
    let measured = |at: usize| positive(&proof[at]["measured_mb_per_s"]);
    positive(&proof[0]["expected_mb_per_s"])?;
    positive(&proof[1]["expected_mb_per_s"])?;
    ensure!(proof[0]["limit"] == "command-window", "{told}");
    // Nothing is faster than its line, whatever the machine does.
    ensure!(measured(0)? < 2.6 && measured(1)? < 2.6, "{told}");
    Ok(())
}
