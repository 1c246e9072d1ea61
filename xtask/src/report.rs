//! Steps with a name, a time and counts, and the one line at the end that sums them up.

use std::fmt;
use std::io::Write;
use std::time::{Duration, Instant};

use anyhow::Result;

use crate::failures::Failures;

/// How many tests passed, failed and were skipped.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    pub(crate) passed: u64,
    pub(crate) failed: u64,
    pub(crate) skipped: u64,
}

impl Tally {
    /// One check that passed: what a step without tests of its own counts as.
    pub(crate) const PASSED: Self = Self { passed: 1, failed: 0, skipped: 0 };
    /// One check that failed.
    pub(crate) const FAILED: Self = Self { passed: 0, failed: 1, skipped: 0 };
    /// One check that was skipped.
    pub(crate) const SKIPPED: Self = Self { passed: 0, failed: 0, skipped: 1 };

    pub(crate) fn add(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.skipped += other.skipped;
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} passed, {} failed, {} skipped", self.passed, self.failed, self.skipped)
    }
}

struct Step {
    name: String,
    elapsed: Duration,
    tally: Tally,
    failures: Failures,
}

/// Runs steps and remembers how each went.
pub(crate) struct Report {
    steps: Vec<Step>,
}

impl Report {
    pub(crate) fn new() -> Self {
        Self { steps: Vec::new() }
    }

    /// Runs one step. An error is printed and counted as one failure; later steps still run, so that one run shows all
    /// that is wrong. Returns true if nothing failed in it.
    pub(crate) fn step(&mut self, name: &str, body: impl FnOnce(&mut Failures) -> Result<Tally>) -> bool {
        println!("\n==> {name}");
        let start = Instant::now();
        let mut failures = Failures::default();
        let tally = body(&mut failures).unwrap_or_else(|error| {
            failures.tell(format!("error: {error:#}"));
            Tally::FAILED
        });
        let elapsed = start.elapsed();
        println!("<== {name}: {tally} ({:.1} s)", elapsed.as_secs_f64());
        self.steps.push(Step { name: name.to_owned(), elapsed, tally, failures });
        tally.failed == 0
    }

    /// The sum over all steps.
    pub(crate) fn total(&self) -> Tally {
        let mut total = Tally::default();
        for step in &self.steps {
            total.add(step.tally);
        }
        total
    }

    /// Prints, if there were several steps, what failed once more and a line for each of them; and last, alone on its line, the sum.
    /// Nothing may be printed after it. Returns true if nothing failed.
    ///
    /// # Errors
    /// Standard output is gone.
    pub(crate) fn finish(&self) -> Result<bool> {
        println!();
        if self.steps.len() > 1 {
            self.steps.iter().for_each(|step| step.failures.repeat(&step.name));
            for step in &self.steps {
                let mark = if step.tally.failed > 0 { "FAILED" } else { "ok" };
                println!("{:>8.1} s  {mark:<6}  {}: {}", step.elapsed.as_secs_f64(), step.name, step.tally);
            }
        }
        let total = self.total();
        println!("{total}");
        std::io::stdout().flush()?;
        Ok(total.failed == 0)
    }
}

#[cfg(test)]
mod tests {
    use anyhow::bail;

    use super::*;

    #[test]
    fn sums_steps_and_counts_an_error_as_one_failure() {
        let mut report = Report::new();
        assert!(report.step("good", |_| Ok(Tally { passed: 3, failed: 0, skipped: 2 })));
        assert!(!report.step("bad", |_| bail!("broken")));
        assert_eq!(report.total(), Tally { passed: 3, failed: 1, skipped: 2 });
        assert!(!report.finish().expect("an open standard output"));
    }

    #[test]
    fn says_the_sum_in_the_agreed_form() {
        assert_eq!(Tally { passed: 10, failed: 0, skipped: 2 }.to_string(), "10 passed, 0 failed, 2 skipped");
    }
}
