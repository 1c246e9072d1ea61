//! The release binary and the test suites that Cargo runs: the crates' own tests, and `tests/`, which drives the binary.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use lunette_tests::process;

use crate::cargo::{cargo, check, test};
use crate::failures::Failures;
use crate::report::{Report, Tally};
use crate::vm::Images;
use crate::workspace::Workspace;

const BUILD_LIMIT: Duration = Duration::from_secs(20 * 60);
const UNPACK_LIMIT: Duration = Duration::from_secs(60);
const TEST_LIMIT: Duration = Duration::from_secs(25 * 60);
/// All tests across crates take 15 to 18 minutes. A test that hangs to its own limit must not take those after it along.
const PEERS_LIMIT: Duration = Duration::from_secs(50 * 60);
/// The properties of a night, with 100 times their cases: without optimisation they take hours.
const PROPERTIES_LIMIT: Duration = Duration::from_secs(2 * 3600);

/// A crash round takes a second or two; this is a generous bound for a hang.
const CRASH_ROUND_LIMIT: Duration = Duration::from_secs(30);

/// Builds the binary as users build it; returns where it is, or nothing after a failure, which the report has.
pub(crate) fn build(workspace: &Workspace, report: &mut Report) -> Option<PathBuf> {
    let mut binary = None;
    report.step("release build", |failures| {
        let tally = check(&mut build_command(workspace), BUILD_LIMIT, failures)?;
        binary = Some(built(workspace, "lunette")?);
        Ok(tally)
    });
    binary
}

/// The binary and the load generator, `lunette-bench`, for a benchmark. Says nothing unless it fails: standard output
/// belongs to the results.
pub(crate) fn build_bench(workspace: &Workspace) -> Result<(PathBuf, PathBuf)> {
    let mut command = build_command(workspace);
    command.args(["--package", "lunette-bench"]);
    let finished = process::run(&mut command, BUILD_LIMIT)?;
    ensure!(finished.success(), "cargo build: {}:\n{}", finished.ending(), finished.output);
    Ok((built(workspace, "lunette")?, built(workspace, "lunette-bench")?))
}

/// The binary that says in results which commit it is of. Says nothing unless it fails.
pub(crate) fn build_of_commit(workspace: &Workspace, commit: &str) -> Result<PathBuf> {
    let finished = process::run(build_command(workspace).env("LUNETTE_COMMIT", commit), BUILD_LIMIT)?;
    ensure!(finished.success(), "cargo build: {}:\n{}", finished.ending(), finished.output);
    built(workspace, "lunette")
}

/// The binary of another commit, built with this machine's tools apart from this one's; what was there of other ones is removed. Says
/// nothing unless it fails.
pub(crate) fn build_at(workspace: &Workspace, commit: &str) -> Result<PathBuf> {
    let others = workspace.target_directory()?.join("at");
    // Each has a folder of its own: Cargo takes files that are older than what it has built for built.
    let directory = others.join(commit);
    let source = directory.join("source");
    std::fs::create_dir_all(&source).with_context(|| source.display().to_string())?;
    for other in std::fs::read_dir(&others)? {
        let other = other?.path();
        if other != directory {
            std::fs::remove_dir_all(&other).with_context(|| other.display().to_string())?;
        }
    }
    let archive = directory.join("source.tar");
    workspace.git(&["archive", "--format=tar", &format!("--output={}", archive.display()), commit])?;
    let mut unpack = Command::new("tar");
    unpack.arg("-xf").arg(&archive).arg("-C").arg(&source);
    let unpacked = process::run(&mut unpack, UNPACK_LIMIT)?;
    ensure!(unpacked.success(), "tar: {}: {}", unpacked.ending(), unpacked.output.trim());
    let mut command = build_command(workspace);
    command.arg("--manifest-path").arg(source.join("Cargo.toml"));
    command.arg("--target-dir").arg(&directory);
    let finished = process::run(&mut command, BUILD_LIMIT)?;
    ensure!(finished.success(), "cargo build of {commit}: {}:\n{}", finished.ending(), finished.output);
    built_in(&directory, "lunette")
}

fn build_command(workspace: &Workspace) -> Command {
    cargo(workspace, &["build", "--release", "--package", "lunette-cli"])
}

fn built(workspace: &Workspace, program: &str) -> Result<PathBuf> {
    built_in(&workspace.target_directory()?, program)
}

fn built_in(target_directory: &Path, program: &str) -> Result<PathBuf> {
    let path = target_directory.join("release").join(program);
    ensure!(path.is_file(), "the build left no {}", path.display());
    Ok(path)
}

/// Unit and property tests of every crate.
pub(crate) fn unit(workspace: &Workspace, report: &mut Report, binary: &Path) {
    report.step("unit and property tests", |failures| {
        run(workspace, binary, &["--workspace", "--exclude", "lunette-tests"], &[], TEST_LIMIT, failures)
    });
}

/// The unit and property tests of every crate once more, optimised, with `times` as many cases of each property.
pub(crate) fn properties(workspace: &Workspace, report: &mut Report, binary: &Path, times: u32) {
    report.step(&format!("property tests, {times} times the cases"), |failures| {
        let arguments = ["--release", "--workspace", "--exclude", "lunette-tests"];
        let environment = [("LUNETTE_CASES_TIMES", times.to_string())];
        run(workspace, binary, &arguments, &environment, PROPERTIES_LIMIT, failures)
    });
}

/// The tests that cross crates, all or those whose name contains `filter`. Those in the virtual machine need its images.
pub(crate) fn peers(
    workspace: &Workspace,
    report: &mut Report,
    binary: &Path,
    images: &Images,
    filter: Option<&str>,
) {
    report.step(
        "tests across crates: peers, crashes, hostile input, fuzz corpus, virtual machine",
        |failures| {
            let mut arguments = vec!["--package", "lunette-tests"];
            arguments.extend(filter);
            run(workspace, binary, &arguments, images, PEERS_LIMIT, failures)
        },
    );
}

/// The tests in the virtual machine.
pub(crate) fn vm(workspace: &Workspace, report: &mut Report, binary: &Path, images: &Images) {
    report.step("tests in the virtual machine", |failures| {
        let arguments = ["--package", "lunette-tests", "--test", "kernel"];
        run(workspace, binary, &arguments, images, TEST_LIMIT, failures)
    });
}

/// The crash test with as many rounds as wanted, and a seed to replay.
pub(crate) fn crash(
    workspace: &Workspace,
    report: &mut Report,
    binary: &Path,
    rounds: u32,
    seed: Option<u64>,
) {
    let seed = seed.map(|seed| ("LUNETTE_CRASH_SEED", seed.to_string()));
    let environment: Vec<_> =
        std::iter::once(("LUNETTE_CRASH_ROUNDS", rounds.to_string())).chain(seed).collect();
    report.step(&format!("crash test, {rounds} rounds in each mode"), |failures| {
        let arguments = ["--package", "lunette-tests", "--test", "crash", "--", "--nocapture"];
        // Two modes, and time to compile.
        run(
            workspace,
            binary,
            &arguments,
            &environment,
            TEST_LIMIT + CRASH_ROUND_LIMIT * rounds * 2,
            failures,
        )
    });
}

/// `cargo test` with these arguments: all of it, whatever fails on the way.
fn run(
    workspace: &Workspace,
    binary: &Path,
    arguments: &[&str],
    environment: &[(&str, String)],
    limit: Duration,
    failures: &mut Failures,
) -> Result<Tally> {
    let scratch = tempfile::tempdir()?;
    let mut command = cargo(workspace, &["test", "--no-fail-fast"]);
    command.args(arguments);
    command.env(lunette_tests::lunette::BINARY, binary);
    command.envs(environment.iter().map(|(name, value)| (name, value)));
    test(&mut command, limit, &scratch.path().join("skips"), failures)
}
