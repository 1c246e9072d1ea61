//! Results of studies as a page that needs nothing else (HTML with its figures), and as text (Markdown).

mod check;
mod curves;
mod figure;
mod grid;
mod html;
mod markdown;
mod notes;
mod table;

pub use check::{Verdict, check};
pub use html::html;
pub use markdown::markdown;
pub use notes::{notes, sections};
pub use table::{LINKS_TITLE, TIMES_TITLE, columns, link_table, row, times};

/// A figure with three digits that count.
pub(crate) fn figure_text(value: f64) -> String {
    match value.abs() {
        size if size >= 100.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        size if size >= 1.0 => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    }
}

/// Text in which no character has a meaning of its own: results are files, which may come from anywhere.
fn escaped(text: &str, table: &[(char, &str)]) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match table.iter().find(|row| row.0 == character) {
            Some((_, instead)) => escaped.push_str(instead),
            None => escaped.push(character),
        }
    }
    escaped
}

#[cfg(test)]
mod tests;
