//! Figures: for each cell bars for what was measured, expected and published, on a scale from small to large where they differ much.

use std::fmt::Write;

use super::{figure_text, html_text};
use crate::study::{CellResult, StudyResult};

const BAR: f64 = 9.0;
const GAP: f64 = 7.0;
const LEFT: f64 = 230.0;
const WIDTH: f64 = 640.0;
const RIGHT: f64 = 70.0;
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

fn figure(title: &str, cells: &[&CellResult]) -> String {
    let scale = Scale::of(cells);
    let mut body = String::new();
    let mut y = TOP;
    for cell in cells {
        let named = if cell.parameters.len() > 1 { &cell.parameters[1..] } else { &cell.parameters[..] };
        let label: Vec<String> = named.iter().map(|(name, value)| format!("{name} {value}")).collect();
        let label = html_text(&label.join(", "));
        let _ = writeln!(
            body,
            "<text x=\"{:.0}\" y=\"{:.0}\" text-anchor=\"end\">{label}</text>",
            LEFT - 8.0,
            y + 9.0
        );
        for (class, value) in bars(cell) {
            let width = (scale.length(value) * WIDTH).max(1.0);
            let text = LEFT + width + 4.0;
            let _ = writeln!(
                body,
                "<rect class=\"{class}\" x=\"{LEFT}\" y=\"{y:.0}\" width=\"{width:.1}\" height=\"{:.0}\"/><text x=\"{text:.1}\" \
                 y=\"{:.0}\">{}</text>",
                BAR - 1.0,
                y + 8.0,
                figure_text(value)
            );
            y += BAR;
        }
        y += GAP;
    }
    let kind = if scale.is_logarithmic { ", logarithmic" } else { "" };
    let mut legend = String::new();
    for (at, class) in ["measured", "model", "published"].into_iter().enumerate() {
        let x = LEFT + at as f64 * 90.0;
        let _ = write!(
            legend,
            "<rect class=\"{class}\" x=\"{x}\" y=\"4\" width=\"9\" height=\"9\"/><text x=\"{}\" y=\"13\">{class}</text>",
            x + 13.0
        );
    }
    format!(
        "<h3>{}{kind}</h3>\n<svg viewBox=\"0 0 {:.0} {y:.0}\" width=\"{:.0}\" role=\"img\" xmlns=\"http://www.w3.org/2000/svg\">\n{legend}\n{body}</svg>\n",
        html_text(title),
        LEFT + WIDTH + RIGHT,
        LEFT + WIDTH + RIGHT
    )
}
