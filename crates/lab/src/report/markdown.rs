//! Results as text (Markdown).

use std::fmt::Write;

use super::escaped;
use super::grid::{self, Grid, Place};
use super::notes::{counted, notes, sections};
use super::table::{LINKS_TITLE, TIMES_TITLE, columns, link_table, row, times};
use crate::study::{StudyResult, Summary, summaries};

/// All results as text.
#[must_use]
pub fn markdown(results: &[StudyResult]) -> String {
    let mut text = String::from("# Studies repeated\n");
    for result in results {
        let _ = write!(
            text,
            "\n## {}\n\n{}: {}.\n\n",
            escaped(&result.study, MARKDOWN),
            escaped(&result.paper, MARKDOWN),
            escaped(&result.question, MARKDOWN)
        );
        let line = |cells: &[String]| {
            let cells: Vec<String> = cells.iter().map(|cell| escaped(cell, MARKDOWN)).collect();
            format!("| {} |\n", cells.join(" | "))
        };
        let table = |rows: &[Vec<String>]| {
            let [header, rows @ ..] = rows else { return String::new() };
            let rows: String = rows.iter().map(|row| line(row)).collect();
            format!("{}|{}\n{rows}\n", line(header), "---|".repeat(header.len()))
        };
        for grid in grid::grids(result) {
            text += &format!("### {}\n\n{}", escaped(&grid.title, MARKDOWN), table(&grid_rows(&grid)));
        }
        let _ = write!(text, "### {}\n\n", counted(result));
        text += &line(&columns(result));
        text += &format!("|{}\n", "---|".repeat(columns(result).len()));
        for cell in &result.cells {
            text += &line(&row(result, cell));
        }
        for Summary { title, columns, rows } in summaries(result) {
            text += &format!("\n### {title}\n\n{}|{}\n", line(&columns), "---|".repeat(columns.len()));
            text.extend(rows.iter().map(|row| line(row)));
        }
        for note in notes(result) {
            let _ = write!(text, "\n- {}", escaped(&note, MARKDOWN));
        }
        text.push('\n');
        for (title, rows) in [(LINKS_TITLE, link_table(result)), (TIMES_TITLE, times(result))] {
            if !rows.is_empty() {
                let _ = write!(text, "\n### {title}\n\n{}", table(&rows));
            }
        }
        for (title, lines) in sections(result) {
            let _ = write!(text, "\n### {title}\n");
            for line in lines {
                let _ = write!(text, "\n- {}", escaped(&line, MARKDOWN));
            }
            text.push('\n');
        }
    }
    text
}

/// A table as rows of text, of which the first has the names of its columns.
fn grid_rows(grid: &Grid) -> Vec<Vec<String>> {
    let place = |place: &Option<Place>| {
        place.as_ref().map_or_else(String::new, |place| format!("{} ({})", place.figures, place.limit))
    };
    let row = |(key, places): &(Vec<String>, Vec<Option<Place>>)| {
        key.iter().cloned().chain(places.iter().map(place)).collect()
    };
    std::iter::once(grid.columns.clone()).chain(grid.rows.iter().map(row)).collect()
}

const MARKDOWN: &[(char, &str)] = &[('|', "\\|"), ('<', "&lt;"), ('\n', " ")];
