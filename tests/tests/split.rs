//! Latencies told apart: a store and a network of known delays are found where they are.

use std::fs;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use lunette_block::OperationKind;
use lunette_block::fault::{Effect, Rule, When};
use lunette_tests::in_process::InProcess;
use lunette_tests::lunette::binary;
use lunette_tests::process::run;
use serde_json::Value;

/// One way of the network, in milliseconds.
const DELAY_MS: u64 = 15;
/// What the store takes for each write, in milliseconds.
const STORE_MS: u64 = 40;
/// Less than a write has, so that there are R2Ts.
const FIRST_BURST_BYTES: u32 = 4096;

#[test]
fn each_delay_is_found_in_its_part() -> Result<()> {
    let traces = tempfile::tempdir()?;
    let target = InProcess::start_with(&["mem:8M"], |config| {
        config.trace_directory = Some(traces.path().to_owned());
        config.task_times = true;
        config.limits.first_burst_length_bytes = FIRST_BURST_BYTES;
    });
    let delay = Effect::Delay(Duration::from_millis(STORE_MS));
    target.faults(0).add(Rule::new(OperationKind::Write, When::Every, delay));

    let output = traces.path().join("result");
    let times = traces.path().join(format!("{}.0.times", target.name()));
    let bench = format!(
        "exec {} bench iscsi://$LUNETTE_PROXY/{}/0 --size 64K --read 0 --depth 1 --count 12 --warm-up 0 --write-destroys-data \
         --quiet --target-times {} --output {}",
        binary().display(),
        target.name(),
        times.display(),
        output.display()
    );
    let mut proxy = Command::new(binary());
    proxy.args([
        "wan",
        "proxy",
        "--link",
        &format!("delay={DELAY_MS}ms"),
        "--to",
        &target.portal().to_string(),
    ]);
    let finished = run(proxy.args(["--", "sh", "-c", &bench]), Duration::from_secs(120))?;
    ensure!(finished.success(), "{}: {}", finished.ending(), finished.output);

    let result: Value = serde_json::from_str(&fs::read_to_string(output)?)?;
    let told = &result["measured"]["stages"]["told_apart"];
    let part = |name: &str| told[name]["mean"].as_f64().map(|us| us / 1e3).context("a mean");
    assert_eq!((&told["operations"], &told["of"]), (&12.into(), &12.into()), "{told}");
    let round_trip_ms = 2.0 * DELAY_MS as f64;
    ensure!(part("network")? >= round_trip_ms, "{told}");
    ensure!(part("r2t_wait")? >= round_trip_ms, "{told}");
    ensure!(part("store")? >= STORE_MS as f64, "{told}");
    let parts = ["command_window", "network", "r2t_wait", "target_queue", "store", "reply"];
    let sum = parts.into_iter().map(part).sum::<Result<f64>>()?;
    ensure!((sum / part("whole")? - 1.0).abs() < 1e-6, "{sum}: {told}");
    Ok(())
}
