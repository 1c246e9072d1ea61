//! A study's result for people.

use lunette_lab::{Failed, StudyResult, report, summaries};

use crate::banner::printable;
use crate::initiator::table;

/// So many cells are named that have lost runs; their result has all.
const NAMED_MAX: usize = 5;

/// A cell by what it varies.
pub(crate) fn cell(parameters: &[(String, String)]) -> String {
    let pairs: Vec<String> = parameters.iter().map(|(name, value)| format!("{name} {value}")).collect();
    printable(&pairs.join(", "))
}

/// Which cells of a study have lost runs, if any has.
pub(crate) fn lost(result: &StudyResult) -> Option<String> {
    let name = |failed: &Failed| {
        let words: Vec<&str> = failed.parameters.iter().map(|pair| pair.1.as_str()).collect();
        words.join(" ")
    };
    let mut names: Vec<String> = result.failed.iter().take(NAMED_MAX).map(name).collect();
    let count = result.failed.len();
    if count > NAMED_MAX {
        names.push(format!("{} more", count - NAMED_MAX));
    }
    let cells = if count == 1 { "a cell" } else { &format!("{count} cells") };
    (count > 0).then(|| format!("{}: runs of {cells} have failed: {}", result.study, names.join(", ")))
}

/// That a study was ended early, if it was.
pub(crate) fn missing(result: &StudyResult) -> Option<String> {
    let told = || format!("{} was ended early, with {} cells", result.study, result.cells.len());
    result.is_partial.then(told)
}

/// Which studies were not begun, if any was not.
pub(crate) fn not_run(names: &[&str]) -> Option<String> {
    let were = if names.len() == 1 { "was" } else { "were" };
    (!names.is_empty()).then(|| format!("{} {were} not run", names.join(", ")))
}

/// The table, and what is to be said about it.
pub(crate) fn text(result: &StudyResult) -> String {
    let mut rows = vec![report::columns(result)];
    rows.extend(result.cells.iter().map(|cell| report::row(result, cell)));
    let mut text = format!("{}: {}\n{}\n\n", result.study, result.question, result.paper);
    text += &table(0, &rows);
    for summary in summaries(result) {
        let rows: Vec<Vec<String>> = std::iter::once(summary.columns).chain(summary.rows).collect();
        text += &format!("\n{}\n{}", summary.title, table(0, &rows));
    }
    for note in report::notes(result) {
        text += &format!("\n{note}\n");
    }
    let links = report::link_table(result);
    if !links.is_empty() {
        text += &format!("\n{}:\n{}", report::LINKS_TITLE, table(2, &links));
    }
    let times = report::times(result);
    if !times.is_empty() {
        text += &format!("\n{}:\n{}", report::TIMES_TITLE, table(2, &times));
    }
    for (title, lines) in report::sections(result) {
        text += &format!("\n{title}:\n");
        for line in lines {
            text += &format!("  {line}\n");
        }
    }
    // What other programs have said stands in it.
    text.split('\n').map(printable).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn studies_that_were_not_begun_are_named() {
        assert_eq!(not_run(&[]), None);
        assert_eq!(not_run(&["dr-wan"]).as_deref(), Some("dr-wan was not run"));
        assert_eq!(not_run(&["dr-wan", "lu-light"]).as_deref(), Some("dr-wan, lu-light were not run"));
    }
}
