//! A study's result for people.

use lunette_lab::{StudyResult, report, summaries};

use crate::initiator::table;

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
    text
}
