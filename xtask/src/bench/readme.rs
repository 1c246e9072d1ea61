//! `bench readme`: tables from results into README.md or the guide, between two marks for each benchmark. The guide gets
//! the marks with the first table.

use std::path::PathBuf;

use anyhow::{Context, Result, anyhow};

use super::report::Outcome;
use crate::lab;
use crate::workspace::Workspace;

/// Where marks may be.
const DOCUMENTS: [&str; 2] = ["README.md", GUIDE];
const GUIDE: &str = "docs/guide/measure.md";

/// Benchmarks whose tables stand at the end of the guide, each under a heading of its own.
const OF_GUIDE: [&str; 4] = ["floor", "engines", "scale", "peers-memory"];

/// Replaces what stands between the marks of each result's benchmark.
pub(crate) fn write(workspace: &Workspace, results: &[PathBuf]) -> Result<()> {
    for path in results {
        let json = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
        let (bench, table) = table(&json).with_context(|| format!("{}: no result", path.display()))?;
        let place = write_one(workspace, &bench, &table)?;
        println!("{place}: the table of bench {bench} is that of {}", path.display());
    }
    Ok(())
}

/// A result's name and table: of a benchmark, or of the lab.
fn table(json: &str) -> Result<(String, String)> {
    if let Ok(outcome) = serde_json::from_str::<lab::Outcome>(json) {
        return Ok((lab::NAME.to_owned(), outcome.markdown()));
    }
    let outcome: Outcome = serde_json::from_str(json)?;
    let table = outcome.markdown();
    Ok((outcome.bench, table))
}

fn write_one(workspace: &Workspace, bench: &str, table: &str) -> Result<&'static str> {
    for document in DOCUMENTS {
        let path = workspace.root().join(document);
        let text = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        if let Some(text) = replaced(&text, bench, table) {
            std::fs::write(&path, text).with_context(|| path.display().to_string())?;
            return Ok(document);
        }
    }
    if OF_GUIDE.contains(&bench) {
        let path = workspace.root().join(GUIDE);
        let text = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        let text = appended(&text, bench, table);
        std::fs::write(&path, text).with_context(|| path.display().to_string())?;
        return Ok(GUIDE);
    }
    let [begin, end] = marks(bench);
    Err(anyhow!("neither {} has {begin} ... {end}", DOCUMENTS.join(" nor ")))
}

fn marks(bench: &str) -> [String; 2] {
    ["begin", "end"].map(|which| format!("<!-- bench {bench}: {which} -->"))
}

/// Nothing where there are no marks.
fn replaced(text: &str, bench: &str, table: &str) -> Option<String> {
    let [begin, end] = marks(bench);
    let begin = format!("{begin}\n");
    let (before, rest) = text.split_once(&begin)?;
    let (_, after) = rest.split_once(&end)?;
    Some(format!("{before}{begin}{table}{end}{after}"))
}

/// With marks and the table at the end.
fn appended(text: &str, bench: &str, table: &str) -> String {
    let [begin, end] = marks(bench);
    format!("{text}\n## What bench {bench} has given\n\n{begin}\n{table}{end}\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_between_the_marks_changes() {
        let text = "a\n<!-- bench peers: begin -->\nold\n<!-- bench peers: end -->\nb\n";
        let once = replaced(text, "peers", "new\n").expect("marks");
        assert_eq!(once, "a\n<!-- bench peers: begin -->\nnew\n<!-- bench peers: end -->\nb\n");
        assert_eq!(replaced(&once, "peers", "new\n").expect("marks"), once);
        assert!(replaced(text, "floor", "new\n").is_none());
    }

    #[test]
    fn a_first_table_brings_its_marks() {
        let text = appended("# Guide\n", "floor", "| a |\n");
        let end = "# Guide\n\n## What bench floor has given\n\n<!-- bench floor: begin -->\n| a |\n<!-- bench floor: end -->\n";
        assert_eq!(text, end);
        // From then on it is replaced.
        assert_eq!(replaced(&text, "floor", "| a |\n").expect("marks"), text);
    }
}
