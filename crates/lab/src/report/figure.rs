//! Figures: for each cell bars for what was measured, expected and published, on a scale from small to large where they differ much. What
//! set the limit stands behind what was measured.

use std::fmt::Write;

use super::figure_text;
use super::html::html_text;
use crate::study::{CellResult, StudyResult, value_text};

const BAR: f64 = 13.0;
const GAP: f64 = 7.0;
const WIDTH: f64 = 600.0;
/// For the longest figure and the name of a limit.
const RIGHT: f64 = 180.0;
/// What a letter takes on average, with some to spare.
const LETTER: f64 = 6.4;
const TOP: f64 = 24.0;
/// From this ratio of the largest to the smallest figure on, the scale is logarithmic.
const WIDE: f64 = 50.0;

/// One figure for each value of the first parameter, where there are several parameters; else one for all.
pub(crate) fn figures(result: &StudyResult) -> String {
    let mut panels: Vec<(String, Vec<&CellResult>)> = Vec::new();
    for cell in &result.cells {
        let name = match cell.parameters.as_slice() {
            [(name, value), _, ..] => format!("{name}: {value}"),
            _ => String::new(),
        };
        let title = format!("{name} ({})", cell.unit);
        match panels.iter_mut().find(|panel| panel.0 == title) {
            Some(panel) => panel.1.push(cell),
            None => panels.push((title, vec![cell])),
        }
    }
    panels.iter().map(|(title, cells)| figure(title, cells)).collect()
}

/// The bars of one cell: class and value.
fn bars(cell: &CellResult) -> impl Iterator<Item = (&'static str, f64)> {
    let all = [("measured", Some(cell.measured)), ("model", cell.model), ("published", cell.published)];
    all.into_iter().filter_map(|(class, value)| value.map(|value| (class, value)))
}

/// Lengths from 0 to 1.
struct Scale {
    low: f64,
    high: f64,
    is_logarithmic: bool,
}

impl Scale {
    fn of(cells: &[&CellResult]) -> Self {
        let values =
            || cells.iter().flat_map(|cell| bars(cell)).map(|bar| bar.1).filter(|value| *value > 0.0);
        let high = values().fold(f64::MIN_POSITIVE, f64::max);
        let low = values().fold(high, f64::min);
        // A bar of the smallest figure is to be seen as well.
        Self { low: low / 2.0, high, is_logarithmic: high / low > WIDE }
    }

    fn length(&self, value: f64) -> f64 {
        let length = if self.is_logarithmic {
            (value.max(self.low) / self.low).ln() / (self.high / self.low).ln()
        } else {
            value / self.high
        };
        if length.is_finite() { length.clamp(0.0, 1.0) } else { 0.0 }
    }
}

/// What a cell is called in its figure: the parameters in which the cells differ.
fn label(cell: &CellResult, cells: &[&CellResult]) -> String {
    let differs = |at: usize| cells.iter().any(|other| other.parameters.get(at) != cell.parameters.get(at));
    let named = cell.parameters.iter().enumerate().filter(|(at, _)| differs(*at));
    let words: Vec<String> =
        named.map(|(_, (name, value))| format!("{name} {}", value_text(name, value))).collect();
    words.join(", ")
}

/// What stands behind a bar.
fn figure_and_limit(cell: &CellResult, class: &str, value: f64) -> String {
    let limit = if class == "measured" { cell.limit.as_str() } else { "" };
    html_text(format!("{} {limit}", figure_text(value)).trim_end())
}

fn figure(title: &str, cells: &[&CellResult]) -> String {
    let scale = Scale::of(cells);
    let labels: Vec<String> = cells.iter().map(|cell| label(cell, cells)).collect();
    let letters = labels.iter().map(|label| label.chars().count()).max().unwrap_or_default();
    // As many letters as a line has, far fewer than a double counts.
    let left = 16.0 + LETTER * letters as f64;
    let mut body = String::new();
    let mut y = TOP;
    for (cell, label) in cells.iter().zip(&labels) {
        let _ = writeln!(
            body,
            "<text x=\"{:.0}\" y=\"{:.0}\" text-anchor=\"end\">{}</text>",
            left - 8.0,
            y + 10.0,
            html_text(label)
        );
        for (class, value) in bars(cell) {
            let width = (scale.length(value) * WIDTH).max(1.0);
            let text = left + width + 4.0;
            let _ = writeln!(
                body,
                "<rect class=\"{class}\" x=\"{left:.0}\" y=\"{y:.0}\" width=\"{width:.1}\" height=\"{:.0}\"/><text x=\"{text:.1}\" \
                 y=\"{:.0}\">{}</text>",
                BAR - 1.0,
                y + 10.0,
                figure_and_limit(cell, class, value)
            );
            y += BAR;
        }
        y += GAP;
    }
    let kind = if scale.is_logarithmic { ", logarithmic" } else { "" };
    let mut legend = String::new();
    for (at, class) in ["measured", "model", "published"].into_iter().enumerate() {
        let x = left + at as f64 * 90.0;
        let _ = write!(
            legend,
            "<rect class=\"{class}\" x=\"{x}\" y=\"4\" width=\"9\" height=\"9\"/><text x=\"{}\" y=\"13\">{class}</text>",
            x + 13.0
        );
    }
    format!(
        "<h3>{}{kind}</h3>\n<svg viewBox=\"0 0 {:.0} {y:.0}\" width=\"{:.0}\" role=\"img\" xmlns=\"http://www.w3.org/2000/svg\">\n{legend}\n{body}</svg>\n",
        html_text(title),
        left + WIDTH + RIGHT,
        left + WIDTH + RIGHT
    )
}
