//! What failed, in words that can be repeated at the end of a run: a log of CI is read from its end, and often only that is kept.

use std::collections::VecDeque;

/// Lines that are kept of what one test or one command said.
const LINES_MAX: usize = 30;

/// Failures of one step that are repeated.
const REPEATED_MAX: usize = 20;

/// What failed in one step.
#[derive(Debug, Default)]
pub(crate) struct Failures(Vec<String>);

impl Failures {
    /// Prints what is wrong, and keeps it.
    pub(crate) fn tell(&mut self, what: String) {
        println!("{what}");
        self.keep(what);
    }

    /// Keeps what is wrong; it has been printed.
    pub(crate) fn keep(&mut self, what: String) {
        self.0.push(what);
    }

    #[cfg(test)]
    pub(crate) fn kept(&self) -> &[String] {
        &self.0
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Prints all under the name of their step.
    pub(crate) fn repeat(&self, step: &str) {
        if self.is_empty() {
            return;
        }
        println!("FAILED in {step}:");
        self.0.iter().take(REPEATED_MAX).for_each(|failure| println!("{failure}\n"));
        if let Some(more @ 1..) = self.0.len().checked_sub(REPEATED_MAX) {
            println!("(and {more} more, above)\n");
        }
    }
}

/// The last lines of an output: why it failed stands there.
#[derive(Debug, Default)]
pub(crate) struct LastLines {
    lines: VecDeque<String>,
    left_out: usize,
}

impl LastLines {
    pub(crate) fn see(&mut self, line: &str) {
        if self.lines.len() == LINES_MAX {
            self.lines.pop_front();
            self.left_out += 1;
        }
        self.lines.push_back(line.to_owned());
    }

    pub(crate) fn text(self) -> String {
        let left_out =
            (self.left_out > 0).then(|| format!("({} lines before these are above)", self.left_out));
        left_out.into_iter().chain(self.lines).collect::<Vec<_>>().join("\n").trim_end().to_owned()
    }
}

/// Finds in the output of `cargo test` what failed tests said: the blocks between "---- NAME stdout ----" and the list of names.
#[derive(Debug, Default)]
pub(crate) struct FailedTests {
    /// The line that a block began with, and what followed.
    block: Option<(String, LastLines)>,
}

impl FailedTests {
    /// Takes the next line of the output.
    pub(crate) fn see(&mut self, line: &str, failures: &mut Failures) {
        if line.starts_with("---- ") && line.ends_with(" stdout ----") {
            self.end(failures);
            self.block = Some((line.to_owned(), LastLines::default()));
        } else if line == "failures:" || line.starts_with("test result: ") {
            self.end(failures);
        } else if let Some((_, lines)) = &mut self.block
            && !is_of_backtrace(line)
        {
            lines.see(line);
        }
    }

    /// Takes the end of the output, which may be in the middle of a block.
    pub(crate) fn end(&mut self, failures: &mut Failures) {
        if let Some((name, lines)) = self.block.take() {
            failures.keep(format!("{name}\n{}", lines.text()));
        }
    }
}

/// A frame, "  12: name" and "at file:1:2" behind it: there are far more of them than of lines that say what was wrong.
fn is_of_backtrace(line: &str) -> bool {
    let Some(frame) = line.strip_prefix("  ").map(str::trim_start) else { return false };
    let is_number = |number: &str| !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
    frame.starts_with("at ") || frame.split_once(": ").is_some_and(|(number, _)| is_number(number))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kept(output: &str) -> Vec<String> {
        let (mut failures, mut tests) = (Failures::default(), FailedTests::default());
        output.lines().for_each(|line| tests.see(line, &mut failures));
        tests.end(&mut failures);
        failures.0
    }

    #[test]
    fn keeps_what_failed_tests_said() {
        let output = "\
test a ... FAILED
test b ... ok

failures:

---- a stdout ----

thread 'a' panicked at src/lib.rs:1:2:
left is not right
stack backtrace:
   0: std::panicking::begin
             at /rustc/library/std/src/panicking.rs:689:5
  10: a::tests::a
   of: this line is none

---- c::d stdout ----
broken


failures:
    a
    c::d

test result: FAILED. 1 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out";
        assert_eq!(
            kept(output),
            [
                "---- a stdout ----\n\nthread 'a' panicked at src/lib.rs:1:2:\nleft is not right\nstack backtrace:\n   of: this line is none",
                "---- c::d stdout ----\nbroken"
            ]
        );
        assert!(kept("test a ... ok\n\ntest result: ok. 1 passed; 0 failed").is_empty());
    }

    #[test]
    fn keeps_the_last_lines_of_a_long_block_though_the_run_ends_in_it() {
        let output =
            std::iter::once("---- a stdout ----".to_owned()).chain((1..100).map(|line| line.to_string()));
        let kept = kept(&output.collect::<Vec<_>>().join("\n"));
        let [text] = &kept[..] else { panic!("{kept:?}") };
        assert!(text.starts_with("---- a stdout ----\n(69 lines before these are above)\n70\n"), "{text}");
        assert!(text.ends_with("\n98\n99"), "{text}");
    }
}
