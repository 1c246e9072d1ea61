//! `bench readme`: tables from results into README.md, between two marks for each benchmark.

use std::path::PathBuf;

use anyhow::{Context, Result};

use super::report::Outcome;
use crate::workspace::Workspace;

/// Replaces what stands between the marks of each result's benchmark.
pub(crate) fn write(workspace: &Workspace, results: &[PathBuf]) -> Result<()> {
    let readme = workspace.root().join("README.md");
    let mut text = std::fs::read_to_string(&readme)?;
    for path in results {
        let json = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
        let outcome: Outcome =
            serde_json::from_str(&json).with_context(|| format!("{}: no result", path.display()))?;
        text = replaced(&text, &outcome.bench, &outcome.markdown())?;
        println!("README.md: the table of bench {} is that of {}", outcome.bench, path.display());
    }
    std::fs::write(readme, text)?;
    Ok(())
}

fn replaced(text: &str, bench: &str, table: &str) -> Result<String> {
    let (begin, end) = (format!("<!-- bench {bench}: begin -->\n"), format!("<!-- bench {bench}: end -->"));
    let missing = || format!("README.md has no {} ... {end}", begin.trim_end());
    let (before, rest) = text.split_once(&begin).with_context(missing)?;
    let (_, after) = rest.split_once(&end).with_context(missing)?;
    Ok(format!("{before}{begin}{table}{end}{after}"))
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
        assert!(replaced(text, "floor", "new\n").is_err());
    }
}
