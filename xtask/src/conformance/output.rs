//! Reads what `iscsi-test-cu -V` prints for one test.
//!
//! The tool counts a test that it skipped as passed. Mostly it prints `[SKIPPED]`, some only when verbose, and some
//! skips leave no word at all; a test that sent nothing and asserted nothing is therefore taken for skipped, too.

/// How one test ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// It ran and every assertion held.
    Passed,
    /// It did not run, wholly or in part; the tool's words for it.
    Skipped(String),
    /// An assertion failed, or the tool crashed or hung; what is known about it.
    Failed(String),
}

/// The test named `name` (without family) in `output`. `ending` says how the tool ended if it did not end by itself.
pub(crate) fn parse(output: &str, name: &str, ending: Option<&str>) -> Outcome {
    let head = format!("  Test: {name} ...");
    let Some(body) = output.find(&head).map(|start| &output[start + head.len()..]) else {
        let why = ending.unwrap_or("the tool did not come to the test");
        return Outcome::Failed(format!("{why}; its last words: {}", last_lines(output)));
    };
    // CUnit's verdict is behind the dots or, where the test printed something, at the start of a later line. What
    // follows it is the tool's own cleaning up, which also prints "[SKIPPED]".
    let is_verdict = |line: &str| line.starts_with("passed") || line.starts_with("FAILED");
    let mut position = 0;
    let verdict = body.split_inclusive('\n').find(|line| {
        let found = is_verdict(line);
        position += if found { 0 } else { line.len() };
        found
    });
    let Some(verdict) = verdict else {
        let why = ending.unwrap_or("no verdict");
        return Outcome::Failed(format!("{why}; last words: {}", last_lines(body)));
    };
    let (body, rest) = body.split_at(position);
    if verdict.starts_with("FAILED") {
        return Outcome::Failed(failures(body, rest));
    }
    let Some(assertions) = assertions(rest) else {
        let why = ending.unwrap_or("no summary");
        return Outcome::Failed(format!("{why} behind the test; last words: {}", last_lines(rest)));
    };
    if let Some((_, reason)) = body.split_once("[SKIPPED]") {
        return Outcome::Skipped(reason.lines().next().unwrap_or_default().trim().to_owned());
    }
    let acted = body.lines().any(|line| line.contains("Send ") || line.contains("dispatch"));
    if !acted && assertions <= 1 {
        return Outcome::Skipped("it sent nothing and asserted nothing".to_owned());
    }
    Outcome::Passed
}

/// How many assertions were made, from the summary's "asserts TOTAL RAN PASSED FAILED n/a".
fn assertions(body: &str) -> Option<u64> {
    let (_, summary) = body.split_once("Run Summary:")?;
    let line = summary.lines().find(|line| line.trim_start().starts_with("asserts"))?;
    line.split_whitespace().nth(2)?.parse().ok()
}

/// The tool's own `[FAILED]` lines and CUnit's numbered list behind the verdict ("1. file.c:98  - CU_ASSERT...").
fn failures(body: &str, rest: &str) -> String {
    let said = body.lines().map(str::trim).filter(|line| line.starts_with("[FAILED]"));
    let listed = rest
        .lines()
        .map(str::trim)
        .filter(|line| line.starts_with(|first: char| first.is_ascii_digit()) && line.contains(" - "));
    said.take(3).chain(listed.take(3)).collect::<Vec<_>>().join(" / ")
}

fn last_lines(text: &str) -> String {
    let lines: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    lines[lines.len().saturating_sub(3)..].join(" / ")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the tool prints around `body`, with the number of assertions in its summary.
    fn output(body: &str, asserts: u64) -> String {
        format!(
            "    Send INQUIRY (Expecting SUCCESS)\n\nSuite: Read10\n  Test: Simple ...{body}\n\nRun Summary:    \
             Type  Total    Ran Passed Failed Inactive\n              suites      1      1    n/a      0        \
             0\n               tests      1      1      1      0        0\n             asserts   {asserts:>4}   \
             {asserts:>4}   {asserts:>4}      0      n/a\n\nElapsed time =    0.096 seconds\n"
        )
    }

    #[test]
    fn passed_on_the_same_or_a_later_line() {
        let sends = "\n    Send READ10 (Expecting SUCCESS)\n    [OK] READ10 returned SUCCESS\npassed";
        assert_eq!(parse(&output(sends, 4), "Simple", None), Outcome::Passed);
        assert_eq!(parse(&output("passed", 6593), "Simple", None), Outcome::Passed);
        let cleaning = "\n    Send READ10\npassed    Send PRIN/READ_KEYS\n    [SKIPPED] PERSISTENT RESERVE IN is not implemented.";
        assert_eq!(parse(&output(cleaning, 1), "Simple", None), Outcome::Passed);
        let one = "\n    Send TESTUNITREADY (Expecting SUCCESS)\npassed";
        assert_eq!(parse(&output(one, 1), "Simple", None), Outcome::Passed);
    }

    #[test]
    fn skipped_is_not_passed() {
        let said = "    [SKIPPED] Logical unit is fully provisioned. Skipping test\npassed";
        let expected = Outcome::Skipped("Logical unit is fully provisioned. Skipping test".to_owned());
        assert_eq!(parse(&output(said, 1), "Simple", None), expected);
        // Some skips say nothing.
        assert!(matches!(parse(&output("passed", 1), "Simple", None), Outcome::Skipped(_)));
    }

    #[test]
    fn failed_carries_the_assertions() {
        let body = "FAILED\n    1. test_iscsi_datasn_invalid.c:98  - CU_ASSERT_NOT_EQUAL(ret,0)";
        let Outcome::Failed(why) = parse(&output(body, 4), "Simple", None) else { panic!("a failure") };
        assert!(why.contains("datasn_invalid.c:98"), "{why}");
        // A failure counts as one even if a part of the test was skipped.
        let both = "    [SKIPPED] a part\nFAILED\n    1. x.c:1  - CU_FAIL(\"y\")";
        assert!(matches!(parse(&output(both, 2), "Simple", None), Outcome::Failed(_)));
    }

    #[test]
    fn crashes_hangs_and_silence_are_failures() {
        let started = "Suite: Read10\n  Test: Simple ...\n    Send READ10\n";
        let Outcome::Failed(why) = parse(started, "Simple", Some("killed by signal 11")) else {
            panic!("a failure")
        };
        assert!(why.contains("signal 11") && why.contains("Send READ10"), "{why}");
        assert!(matches!(parse(started, "Simple", None), Outcome::Failed(_)));
        assert!(matches!(parse("Failed to log in\n", "Simple", None), Outcome::Failed(_)));
    }
}
