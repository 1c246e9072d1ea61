//! `cargo fuzz` over every target of `fuzz/`, each for a set time. On their committed corpus the same functions run as
//! ordinary tests; this looks for new inputs.

use std::process::Command;
use std::time::Duration;

use anyhow::{Result, bail};
use lunette_tests::process::run;

use crate::cargo::check;
use crate::failures::Failures;
use crate::report::{Report, Tally};
use crate::workspace::Workspace;

/// Time for the first build of all targets.
const BUILD_LIMIT: Duration = Duration::from_secs(20 * 60);

/// The step: one a target.
pub(crate) fn step(workspace: &Workspace, report: &mut Report, seconds: u32, only: Option<&str>) {
    let targets = match targets(workspace, only) {
        Ok(targets) => targets,
        Err(error) => {
            report.step("fuzz", |_| Err(error));
            return;
        }
    };
    for target in targets {
        report.step(&format!("fuzz {target} for {seconds} s"), |failures| {
            fuzz(workspace, &target, seconds, failures)
        });
    }
}

fn targets(workspace: &Workspace, only: Option<&str>) -> Result<Vec<String>> {
    require_tools()?;
    let mut command = cargo_fuzz(workspace, &["list"]);
    let finished = run(&mut command, BUILD_LIMIT)?;
    if !finished.success() {
        bail!("cargo fuzz list: {}: {}", finished.ending(), finished.output);
    }
    let targets = finished.output.lines().map(str::trim).filter(|line| !line.is_empty());
    let targets: Vec<String> =
        targets.filter(|target| only.is_none_or(|only| *target == only)).map(str::to_owned).collect();
    if targets.is_empty() {
        bail!("no such fuzz target; there are:\n{}", finished.output);
    }
    Ok(targets)
}

fn require_tools() -> Result<()> {
    let answers = |program: &str, arguments: &[&str]| {
        run(Command::new(program).args(arguments), Duration::from_secs(60))
            .is_ok_and(|finished| finished.success())
    };
    if !answers("cargo", &["+nightly", "--version"]) {
        bail!("fuzzing needs a nightly toolchain; install one with:  rustup toolchain install nightly");
    }
    if !answers("cargo", &["fuzz", "--version"]) {
        bail!("cargo-fuzz is not installed; install it with:  cargo install cargo-fuzz");
    }
    Ok(())
}

/// `cargo +nightly fuzz`: the environment must not carry the toolchain that runs xtask.
fn cargo_fuzz(workspace: &Workspace, arguments: &[&str]) -> Command {
    let mut command = Command::new("cargo");
    command.args(["+nightly", "fuzz"]).args(arguments).current_dir(workspace.root());
    for variable in ["CARGO", "RUSTC", "RUSTUP_TOOLCHAIN"] {
        command.env_remove(variable);
    }
    command
}

fn fuzz(workspace: &Workspace, target: &str, seconds: u32, failures: &mut Failures) -> Result<Tally> {
    let limit = format!("-max_total_time={seconds}");
    // New inputs go to a directory that is not committed; the committed corpus is read only.
    let found = workspace.target_directory()?.join("fuzz-corpus").join(target);
    std::fs::create_dir_all(&found)?;
    let found = found.to_string_lossy().into_owned();
    let committed = format!("fuzz/corpus/{target}");
    let arguments = ["run", target, &found, &committed, "--", &limit, "-timeout=10", "-rss_limit_mb=2048"];
    let mut command = cargo_fuzz(workspace, &arguments);
    check(&mut command, BUILD_LIMIT + Duration::from_secs(u64::from(seconds)), failures)
}
