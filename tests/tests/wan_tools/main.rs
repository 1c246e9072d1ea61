//! The emulated network as tools find it that know nothing of it: ping, iperf3, and the timestamps of tcpdump.
//!
//! What a link never allows (packets that are early, more than the rate) is asserted always. A figure that is off because the
//! emulator was late, by its own report, is a counted skip.

mod iperf3;
mod ping;
mod tcpdump;

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use lunette_tests::lunette::binary;
use lunette_tests::process::run;
use serde_json::Value;
use tempfile::TempDir;

/// Far more than anything here takes.
const LIMIT: Duration = Duration::from_secs(180);

/// What says that this user may not do it.
const LACKS: [&str; 5] = [
    "there is no emulated network",
    "not permitted",
    "cannot set preload",
    "Couldn't change to",
    "You don't have permission",
];

/// The lateness that a round trip may have, at least: 0.3 ms.
const TOLERANCE_US: f64 = 300.0;

/// What one network has been used for.
struct Used {
    /// What the near command has said, and the emulator after it.
    output: String,
    report: Value,
}

impl Used {
    /// Why the figures may be off; `None` where the emulator kept its times.
    fn late(&self, round_trip_ms: f64) -> Result<Option<String>> {
        if let Some(doubt) = self.report["doubt"].as_str() {
            return Ok(Some(doubt.to_owned()));
        }
        let mut late_us = 0;
        for direction in ["up", "down"] {
            late_us += self.count(direction, "lateness_p99_us")?
                + self.count(direction, "intake_lateness_p99_us")?;
        }
        let is_late = late_us as f64 > TOLERANCE_US.max(round_trip_ms * 20.0);
        Ok(is_late.then(|| format!("1 in 100 packets was {late_us} us late there and back")))
    }

    fn count(&self, direction: &str, what: &str) -> Result<u64> {
        self.report[direction][what].as_u64().with_context(|| format!("{direction}.{what}: {}", self.report))
    }

    /// A figure has to be right, unless the emulator was late.
    fn figure(&self, what: &str, is_right: bool, round_trip_ms: f64) -> Result<()> {
        if is_right {
            return Ok(());
        }
        let late = self.late(round_trip_ms)?;
        let late = late.with_context(|| format!("{what}, and the emulator was not late: {}", self.report))?;
        lunette_skip::record_lacking(&format!("{what}: {late}"));
        Ok(())
    }
}

/// Runs a shell's commands at the near end, and others at the far end; `None` where this user may not.
fn wan_run(directory: &TempDir, link: &str, far: Option<&str>, near: &str) -> Result<Option<Used>> {
    let report = directory.path().join("report.json");
    let mut command = Command::new(binary());
    command.env("LC_ALL", "C").args(["wan", "run", "--link", link, "--seed", "11", "--report"]).arg(&report);
    if let Some(far) = far {
        command.args(["--far", far]);
    }
    let finished = run(command.args(["--", "sh", "-c", near]), LIMIT)?;
    let is_root = rustix::process::geteuid().is_root();
    let lacks = LACKS.iter().take(if is_root { 1 } else { LACKS.len() });
    if lacks.into_iter().any(|lack| finished.output.contains(lack)) {
        lunette_skip::record_lacking(finished.output.trim());
        return Ok(None);
    }
    ensure!(finished.success(), "{}: {}", finished.ending(), finished.output);
    Ok(Some(Used { output: finished.output, report: json(&report)? }))
}

fn json(path: &Path) -> Result<Value> {
    let text = fs::read_to_string(path).with_context(|| path.display().to_string())?;
    serde_json::from_str(&text).with_context(|| text.clone())
}

/// A shell's command that waits until a file holds the text, 30 s at the most.
fn wait_for(file: &Path, text: &str) -> String {
    let file = file.display();
    format!("n=0; until grep -qs '{text}' {file} || test $n -ge 600; do sleep 0.05; n=$((n + 1)); done; ")
}
