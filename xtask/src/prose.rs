//! Holds Markdown and comments to lines that a change of one word does not hide in.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::report::{Report, Tally};
use crate::workspace::Workspace;

/// The longest line of prose, in characters. Tables, code, summaries of tables and what a bench has written are not prose.
const COLUMNS_MAX: usize = 140;
/// What begins a comment of Rust.
const COMMENTS: [&str; 3] = ["//! ", "/// ", "// "];
/// What marks a directory that holds what was built.
const BUILT: &str = "CACHEDIR.TAG";

/// The step.
pub(crate) fn step(workspace: &Workspace, report: &mut Report) {
    report.step("lines of prose", |failures| {
        let mut is_right = true;
        for path in files(workspace.root())? {
            let name = path.strip_prefix(workspace.root()).unwrap_or(&path).display();
            let text = fs::read_to_string(&path).with_context(|| name.to_string())?;
            let is_markdown = path.extension().is_some_and(|extension| extension == "md");
            let long = if is_markdown { of_markdown(&text) } else { of_rust(&text) };
            for line in &long {
                failures.tell(format!("{name}:{line}: longer than {COLUMNS_MAX} columns: break it"));
            }
            is_right &= long.is_empty();
        }
        Ok(if is_right { Tally::PASSED } else { Tally::FAILED })
    });
}

/// All Markdown and Rust below a directory, but for hidden directories and what is built.
fn files(root: &Path) -> Result<Vec<PathBuf>> {
    let (mut found, mut directories) = (Vec::new(), vec![root.to_owned()]);
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(&directory).with_context(|| directory.display().to_string())? {
            let entry = entry?;
            let (path, name) = (entry.path(), entry.file_name());
            let is_ours = !name.as_encoded_bytes().starts_with(b".") && !path.join(BUILT).exists();
            if entry.file_type()?.is_dir() && is_ours {
                directories.push(path);
            } else if path.extension().is_some_and(|extension| extension == "md" || extension == "rs") {
                found.push(path);
            }
        }
    }
    found.sort();
    Ok(found)
}

fn is_long(line: &str) -> bool {
    line.chars().count() > COLUMNS_MAX
}

/// The numbers of lines that are too long.
fn of_markdown(text: &str) -> Vec<usize> {
    let (mut is_code, mut is_written) = (false, false);
    let is_fault = |line: &str| {
        let trimmed = line.trim_start();
        is_code ^= trimmed.starts_with("```");
        is_written |= trimmed.starts_with("<!--") && trimmed.ends_with(": begin -->");
        is_written &= !(trimmed.starts_with("<!--") && trimmed.ends_with(": end -->"));
        let is_tabular = trimmed.starts_with('|') || trimmed.starts_with("Summary: ");
        !is_code && !is_written && !is_tabular && is_long(line)
    };
    numbers(text, is_fault)
}

fn of_rust(text: &str) -> Vec<usize> {
    let comment = |line: &str| {
        COMMENTS.iter().find_map(|begin| line.trim_start().strip_prefix(begin).map(str::to_owned))
    };
    numbers(text, |line| is_long(line) && comment(line).is_some_and(|comment| !comment.starts_with('|')))
}

fn numbers(text: &str, mut is_fault: impl FnMut(&str) -> bool) -> Vec<usize> {
    text.lines().enumerate().filter(|(_, line)| is_fault(line)).map(|(index, _)| index + 1).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_code_and_what_a_bench_wrote_are_no_prose() {
        let long = "x".repeat(COLUMNS_MAX + 1);
        let text = format!(
            "{long}\n| {long}\n```text\n{long}\n```\n{long}\n<!-- bench lab: begin -->\n{long}\n<!-- bench lab: end -->\n{long}\n"
        );
        assert_eq!(of_markdown(&text), [1, 6, 10]);
        assert_eq!(of_markdown(&"ü".repeat(COLUMNS_MAX)), [0; 0], "characters, and not bytes");
    }

    #[test]
    fn of_rust_comments_are_prose() {
        let long = "x".repeat(COLUMNS_MAX + 1);
        let text =
            format!("/// {long}\n    // {long}\nlet name = \"{long}\";\n/// | {long}\n//! short\n//! {long}");
        assert_eq!(of_rust(&text), [1, 2, 6]);
    }
}
