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

/// From where on a figure is told by its power of ten: nothing that is measured is as large.
const LARGE: f64 = 1e12;

/// A figure with three digits that count.
pub(crate) fn figure_text(value: f64) -> String {
    match value.abs() {
        size if size >= 100.0 => fixed(value, 0),
        size if size >= 10.0 => fixed(value, 1),
        size if size >= 1.0 => fixed(value, 2),
        _ => fixed(value, 3),
    }
}

/// A figure with so many decimals, unless it is larger than any that makes sense.
fn fixed(value: f64, decimals: usize) -> String {
    if value.abs() < LARGE { format!("{value:.decimals$}") } else { format!("{value:.2e}") }
}

/// A line in which nothing moves a cursor, or more than that, in the terminal that shows it.
fn shown(text: &str) -> String {
    text.chars().map(shown_character).collect()
}

fn shown_character(character: char) -> char {
    if character.is_control() { char::REPLACEMENT_CHARACTER } else { character }
}

/// Text in which no character has a meaning of its own: results are files, which may come from anywhere.
fn escaped(text: &str, table: &[(char, &str)]) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match table.iter().find(|row| row.0 == character) {
            Some((_, instead)) => escaped.push_str(instead),
            None => escaped.push(shown_character(character)),
        }
    }
    escaped
}

#[cfg(test)]
mod tests;
