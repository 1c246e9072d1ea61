//! `lunette advise` with what it measures: the path to a disk, and the proof on an emulated link.

use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use lunette_tests::lunette::{Lunette, TARGET_NAME, binary};
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
    let narrow = "[limits]\nwindow_depth = 6\n";
    let lunette = Lunette::serve().configuration(narrow).start()?;
    // A line of 50 MB/s and 10 ms.
    let (program, to) = (binary().display(), lunette.portal().to_string());
    let near = format!("{program} advise iscsi://$LUNETTE_PROXY/{TARGET_NAME}/0 --size 4K --depth 8 --json");
    let mut wan = Command::new(binary());
    let proxy = ["wan", "proxy", "--link", "rate=400M,rtt=10ms", "--to", &to, "--", "sh", "-c", &near];
    let finished = run(wan.args(proxy), LIMIT)?;
    ensure!(finished.success(), "{}: {}", finished.ending(), finished.output);
    let told = finished.output.lines().find(|line| line.starts_with('{')).context("no advice")?;
    let told: Value = serde_json::from_str(told)?;
    let seen = &told["seen"];
    ensure!(seen["several_sessions_mb_per_s"].is_number(), "{told}");
    ensure!(seen["negotiated"]["initial_r2t"] == false && told["settings"]["window"] == 6, "{told}");
    ensure!(told["workload"]["depth"] == 8 && seen["negotiated"]["command_window"] == 6, "{told}");
    // Nothing is faster than its line, or sooner there, whatever the machine does; without the line it is much more.
    ensure!(positive(&told["path"]["down"]["line_mb_per_s"])? < 100.0, "{told}");
    ensure!(positive(&told["path"]["round_trip_ms"])? > 9.0, "{told}");
    ensure!(told["line_from"] != "given", "{told}");
    positive(&told["mb_per_s"])?;
    // What is given takes the place of what was measured.
    let told =
        advise(&[&lunette.url(0), "--rate", "155M", "--rtt", "50ms"])?.context("no network is emulated")?;
    ensure!(told["line_from"] == "given", "{told}");
    let path = &told["path"];
    ensure!(path["up"]["rate_bits_per_s"] == 155e6 && path["round_trip_ms"] == 50.0, "{told}");
    lunette.stop()
}

/// Tries of a proof, where it says itself that the machine did not keep the link.
const TRIES: u32 = 3;

/// Over so long a way that what processors take of a command is a hundredth of it.
#[test]
fn an_advice_is_proven_on_an_emulated_link() -> Result<()> {
    let link = ["--rtt", "100ms", "--rate", "20M"];
    let load = ["--read", "0", "--size", "16K", "--depth", "1", "--settings", "rfc", "--prove"];
    for _ in 0..TRIES {
        let Some(told) = advise(&[&link[..], &load].concat())? else { return Ok(()) };
        if is_proven(&told)? {
            return Ok(());
        }
        eprintln!("the machine was late: {told}");
    }
    lunette_skip::record_lacking("a machine that keeps the link for some seconds");
    Ok(())
}

/// Holds what is proven to what is expected; false where the proof says that it is the machine's. What holds on any is ensured.
fn is_proven(told: &Value) -> Result<bool> {
    let proof = told["proof"].as_array().context("a proof")?;
    ensure!(proof.len() == 2 && proof[0]["with"] == "before" && proof[1]["with"] == "after", "{told}");
    let measured = |at: usize| positive(&proof[at]["measured_mb_per_s"]);
    // Nothing is faster than its line, whatever the machine does.
    ensure!(measured(0)? < 2.6 && measured(1)? < 2.6, "{told}");
    // What was advised is what the second session has agreed on, and what it is for.
    let agreed =
        |at: usize| (&proof[at]["negotiated"]["initial_r2t"], &proof[at]["negotiated"]["immediate_data"]);
    ensure!(agreed(0).0 == true && agreed(1) == (&Value::Bool(false), &Value::Bool(true)), "{told}");
    if proof.iter().any(|outcome| outcome["is_doubtful"] == true) {
        return Ok(false);
    }
    for (outcome, limit) in proof.iter().zip(["command-window", "link-rate"]) {
        let reached = positive(&outcome["measured_mb_per_s"])? / positive(&outcome["expected_mb_per_s"])?;
        ensure!((reached - 1.0).abs() < 0.1 && outcome["limit"] == limit, "{reached} of {limit}: {told}");
    }
    // One command has two round trips before, and so many are under way after that the line is full: what is advised lifts it.
    ensure!(measured(0)? * 20.0 < measured(1)?, "{told}");
    Ok(true)
}
