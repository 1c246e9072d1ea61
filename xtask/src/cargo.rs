//! Cargo as a child: its output goes through, and the counts of `cargo test` are read from it.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Result, bail};
use lunette_tests::process::run_with;

use crate::failures::{FailedTests, Failures, LastLines};
use crate::report::Tally;
use crate::workspace::Workspace;

/// A `cargo` command in the repository's root; coloured output is off, because it is parsed.
pub(crate) fn cargo(workspace: &Workspace, arguments: &[&str]) -> Command {
    // CARGO is the same cargo that runs us; without it (xtask started by hand) the one on the PATH.
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(arguments).current_dir(workspace.root()).env("CARGO_TERM_COLOR", "never");
    command
}

/// Runs a command that has no counts of its own: one check, passed or failed.
pub(crate) fn check(command: &mut Command, limit: Duration, failures: &mut Failures) -> Result<Tally> {
    let mut last = LastLines::default();
    let finished = run_with(command, limit, |line| {
        last.see(line);
        println!("{line}");
    })?;
    if !finished.success() {
        failures.keep(last.text());
        bail!("{}: {}", describe(command), finished.ending());
    }
    Ok(Tally::PASSED)
}

/// Runs a `cargo test` command. `skips` is the file to which tests append what they skipped.
pub(crate) fn test(
    command: &mut Command,
    limit: Duration,
    skips: &Path,
    failures: &mut Failures,
) -> Result<Tally> {
    command.env(lunette_tests::skip::SKIP_FILE, skips);
    let mut tally = Tally::default();
    let (mut failed, mut last) = (FailedTests::default(), LastLines::default());
    let finished = run_with(command, limit, |line| {
        failed.see(line, failures);
        last.see(line);
        if let Some(counts) = parse_result(line) {
            tally.add(counts);
        }
        println!("{line}");
    })?;
    failed.end(failures);
    let skipped = skip_lines(skips)?;
    for line in &skipped {
        println!("{line}");
    }
    // A test may lack several things, and is one test all the same.
    let tests: BTreeSet<_> =
        skipped.iter().map(|line| line.split_once(": ").map_or(&**line, |(test, _)| test)).collect();
    let skipped = tests.len() as u64;
    tally.passed = tally.passed.saturating_sub(skipped);
    tally.skipped += skipped;
    if !finished.success() {
        if failures.is_empty() {
            // It did not compile, it crashed, or tests said themselves what was wrong.
            failures.keep(last.text());
        }
        failures.tell(format!("error: {}: {}", describe(command), finished.ending()));
        // A crash or a failed build ends cargo without counts; it is a failure all the same.
        tally.failed = tally.failed.max(1);
    }
    Ok(tally)
}

/// Reads "test result: ok. 5 passed; 0 failed; 1 ignored; 0 measured; ...". Ignored tests count as skipped.
fn parse_result(line: &str) -> Option<Tally> {
    let (_, counts) = line.strip_prefix("test result: ")?.split_once(". ")?;
    let mut tally = Tally::default();
    for part in counts.split("; ") {
        let Some((number, what)) = part.split_once(' ') else { continue };
        let Ok(number) = number.parse::<u64>() else { continue };
        match what {
            "passed" => tally.passed = number,
            "failed" => tally.failed = number,
            "ignored" => tally.skipped = number,
            _ => {}
        }
    }
    Some(tally)
}

fn skip_lines(path: &Path) -> Result<Vec<String>> {
    match std::fs::read_to_string(path) {
        Ok(text) => Ok(text.lines().map(str::to_owned).collect()),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(error.into()),
    }
}

fn describe(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_counts_of_a_test_run() {
        let line = "test result: FAILED. 5 passed; 2 failed; 1 ignored; 0 measured; 3 filtered out; finished in 0.01s";
        assert_eq!(parse_result(line), Some(Tally { passed: 5, failed: 2, skipped: 1 }));
        assert_eq!(parse_result("test some::name ... ok"), None);
    }

    #[test]
    fn takes_skips_out_of_the_passed_and_a_crash_for_a_failure() {
        let directory = tempfile::tempdir().expect("a directory");
        let skips = directory.path().join("skips");
        std::fs::write(&skips, "SKIPPED a: no tool\nSKIPPED a: no file system\n").expect("a file");
        let mut shell = Command::new("sh");
        shell.args(["-c", "echo 'test result: ok. 3 passed; 0 failed; 0 ignored; 0 measured'; exit 101"]);
        let mut failures = Failures::default();
        let tally = test(&mut shell, Duration::from_secs(20), &skips, &mut failures).expect("a shell");
        assert_eq!(tally, Tally { passed: 2, failed: 1, skipped: 1 });
        assert_eq!(
            failures.kept()[0],
            "test result: ok. 3 passed; 0 failed; 0 ignored; 0 measured",
            "no test said what"
        );
        assert!(failures.kept()[1].starts_with("error: sh -c"), "{failures:?}");
    }
}
