//! Holds docs/compliance.md and the pages of docs/compliance to what they say: every cell has one of the agreed forms, every
//! path exists, every named test is a function in its file, and the summary line agrees with the rows.

use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::report::{Report, Tally};
use crate::workspace::Workspace;

/// The transport's page, with a column for each role, and the directory of the pages that have one role.
const PAGE: &str = "docs/compliance.md";
const PAGES: &str = "docs/compliance";

/// The step.
pub(crate) fn step(workspace: &Workspace, report: &mut Report) {
    report.step("the pages on compliance against the repository", |failures| {
        let mut is_right = true;
        for page in pages(workspace.root())? {
            let name = page.display();
            let text = fs::read_to_string(workspace.root().join(&page)).with_context(|| name.to_string())?;
            let faults = check(&text, workspace.root());
            faults.iter().for_each(|fault| failures.tell(format!("{name}: {fault}")));
            is_right &= faults.is_empty();
        }
        Ok(if is_right { Tally::PASSED } else { Tally::FAILED })
    });
}

/// Every page, as a path from the root.
fn pages(root: &Path) -> Result<Vec<PathBuf>> {
    let mut pages = vec![PathBuf::from(PAGE)];
    for entry in fs::read_dir(root.join(PAGES)).context(PAGES)? {
        pages.push(Path::new(PAGES).join(entry?.file_name()));
    }
    pages.sort();
    Ok(pages)
}

/// How many cells of one role are in each state; the order is that of the summary line.
#[derive(Debug, Default, PartialEq, Eq)]
struct Counts {
    tested: usize,
    done: usize,
    not_yet: usize,
    not_applicable: usize,
}

impl Counts {
    fn requirements(&self) -> usize {
        self.tested + self.done + self.not_yet + self.not_applicable
    }

    fn describe(&self, role: &str) -> String {
        format!(
            "{role}: {} requirements, {} tested, {} done, {} not yet, {} n/a",
            self.requirements(),
            self.tested,
            self.done,
            self.not_yet,
            self.not_applicable
        )
    }
}

fn check(text: &str, root: &Path) -> Vec<String> {
    let mut faults = Vec::new();
    let (mut rows, mut target, mut initiator) = (0, Counts::default(), Counts::default());
    let mut has_initiator = false;
    for (index, line) in text.lines().enumerate() {
        let Some((clause, cells)) = row(line) else { continue };
        rows += 1;
        has_initiator |= cells.len() > 1;
        for (cell, counts) in cells.into_iter().zip([&mut target, &mut initiator]) {
            if let Err(error) = check_cell(cell, counts, root) {
                faults.push(format!("line {}: {clause}: {error:#}", index + 1));
            }
        }
    }
    let mut summary = format!("Summary: {rows} rows; {}", target.describe("target"));
    if has_initiator {
        summary = format!("{summary}; {}", initiator.describe("initiator"));
    }
    summary.push('.');
    if !text.lines().any(|line| line == summary) {
        faults.push(format!("the summary line should be: {summary}"));
    }
    faults
}

/// The clause and the role cells of a table row, two or only the target's; nothing for headings, rulers and prose.
fn row(line: &str) -> Option<(&str, Vec<&str>)> {
    let cells: Vec<&str> = line.strip_prefix("| ")?.strip_suffix(" |")?.split(" | ").collect();
    let (clause, roles) = match cells[..] {
        [clause, _who, _level, _requirement, target, initiator] => (clause, vec![target, initiator]),
        [clause, _requirement, target] => (clause, vec![target]),
        _ => return None,
    };
    (clause != "Clause").then_some((clause, roles))
}

fn check_cell(cell: &str, counts: &mut Counts, root: &Path) -> Result<()> {
    if cell == "-" {
        return Ok(());
    }
    if let Some(reason) = cell.strip_prefix("not yet:") {
        counts.not_yet += 1;
        anyhow::ensure!(!reason.trim().is_empty(), "\"not yet:\" without a reason");
        return Ok(());
    }
    if let Some(reason) = cell.strip_prefix("n/a:") {
        counts.not_applicable += 1;
        anyhow::ensure!(!reason.trim().is_empty(), "\"n/a:\" without a reason");
        return Ok(());
    }
    let (state, rest) = cell.split_once(' ').unwrap_or((cell, ""));
    let tests = check_references(rest, root)?;
    match state.trim_matches(['`', ':', ',']) {
        "tested" => {
            counts.tested += 1;
            anyhow::ensure!(tests > 0, "\"tested\" names no path::test_name");
        }
        "done" => counts.done += 1,
        _ => anyhow::bail!("{cell:?} has none of the agreed forms"),
    }
    Ok(())
}

/// Looks up everything in backticks; returns how many tests were named.
fn check_references(text: &str, root: &Path) -> Result<usize> {
    let (mut references, mut tests, mut missing) = (0, 0, String::new());
    for reference in text.split('`').skip(1).step_by(2) {
        references += 1;
        let (path, test) = match reference.split_once("::") {
            Some((path, test)) => (path, Some(test.rsplit("::").next().unwrap_or(test))),
            None => (reference, None),
        };
        let full = root.join(path);
        if !full.exists() {
            write!(missing, "; {path} does not exist")?;
        } else if let Some(test) = test {
            tests += 1;
            // Property tests stand inside a macro, with the same form of head.
            let head = format!("fn {test}(");
            if !std::fs::read_to_string(&full).is_ok_and(|source| source.contains(&head)) {
                write!(missing, "; {path} has no test {test}")?;
            }
        }
    }
    anyhow::ensure!(references > 0, "no path in backticks");
    anyhow::ensure!(missing.is_empty(), "{}", missing.trim_start_matches("; "));
    Ok(tests)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str =
        "| Clause | Who | Level | Requirement | Target | Initiator |\n|---|---|---|---|---|---|\n";

    fn repository() -> tempfile::TempDir {
        let root = tempfile::tempdir().expect("a directory");
        std::fs::write(root.path().join("code.rs"), "#[test]\nfn holds_it() {}\n").expect("a file");
        root
    }

    #[test]
    fn accepts_a_page_that_agrees_with_itself() {
        let root = repository();
        let text = format!(
            "Summary: 3 rows; target: 2 requirements, 1 tested, 1 done, 0 not yet, 0 n/a; \
             initiator: 2 requirements, 0 tested, 0 done, 1 not yet, 1 n/a.\n{HEAD}\
             | 1/1 | both | MUST | A. | tested `code.rs` `code.rs::holds_it` | not yet: initiator role |\n\
             | 1/2 | both | MUST | B. | done `code.rs` | n/a: no such thing |\n\
             | 1/3 | both | MUST | C. | - | - |\n"
        );
        assert_eq!(check(&text, root.path()), Vec::<String>::new());
    }

    #[test]
    fn accepts_a_page_of_one_role() {
        let root = repository();
        let text = "Summary: 2 rows; target: 2 requirements, 1 tested, 0 done, 0 not yet, 1 n/a.\n\
                    | Clause | Requirement | Target |\n|---|---|---|\n\
                    | 1/1 | A. | tested `code.rs` `code.rs::holds_it` |\n\
                    | 1/2 | B. | n/a: no such thing |\n";
        assert_eq!(check(text, root.path()), Vec::<String>::new());
    }

    #[test]
    fn finds_what_is_not_true() {
        let root = repository();
        let text = format!(
            "Summary: all is well.\n{HEAD}\
             | 1/1 | both | MUST | A. | tested `code.rs` | done `gone.rs` |\n\
             | 1/2 | both | MUST | B. | tested `code.rs::other` | perhaps |\n\
             | 1/3 | both | MUST | C. | not yet: | done code.rs |\n"
        );
        let faults = check(&text, root.path());
        for (index, expected) in [
            "names no path::test_name",
            "gone.rs does not exist",
            "code.rs has no test other",
            "no path in backticks",
            "without a reason",
            "no path in backticks",
            "the summary line should be",
        ]
        .iter()
        .enumerate()
        {
            assert!(faults[index].contains(expected), "{index}: {faults:#?}");
        }
    }
}
