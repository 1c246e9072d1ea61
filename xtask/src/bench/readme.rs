//! `bench readme`: tables from results into README.md or the guide, between two marks for each benchmark.

use std::path::PathBuf;

use anyhow::{Context, Result, anyhow};

use super::report::Outcome;
use crate::workspace::Workspace;

/// Where marks may be.
const DOCUMENTS: [&str; 2] = ["README.md", "docs/guide/measure.md"];

/// Replaces what stands between the marks of each result's benchmark.
pub(crate) fn write(workspace: &Workspace, results: &[PathBuf]) -> Result<()> {
    for path in results {
        let json = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
        let outcome: Outcome =
            serde_json::from_str(&json).with_context(|| format!("{}: no result", path.display()))?;
        let place = write_one(workspace, &outcome)?;
        println!("{place}: the table of bench {} is that of {}", outcome.bench, path.display());
    }
    Ok(())
}

fn write_one(workspace: &Workspace, outcome: &Outcome) -> Result<&'static str> {
    for document in DOCUMENTS {
        let path = workspace.root().join(document);
        let text = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        if let Some(text) = replaced(&text, &outcome.bench, &outcome.markdown()) {
            std::fs::write(&path, text).with_context(|| path.display().to_string())?;
            return Ok(document);
        }
    }
    let [begin, end] = marks(&outcome.bench);
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
}
