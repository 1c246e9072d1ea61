//! Figures with a curve for each value of one parameter over the values of another one, as papers draw them. Each curve is there up to
//! three times in its colour: what was measured, what the model expects (dashed), and what was published (dotted, with squares).

use std::fmt::Write;

use super::figure_text;
use super::html::html_text;
use crate::study::{CellResult, StudyResult, value_text};

const LEFT: f64 = 60.0;
const TOP: f64 = 26.0;
const WIDTH: f64 = 460.0;
const HEIGHT: f64 = 240.0;
/// What a letter takes on average, with some to spare.
const LETTER: f64 = 7.0;
const BOTTOM: f64 = 40.0;
/// Lines across, at most.
const STEPS_MAX: f64 = 6.0;
/// From this ratio of the largest to the smallest figure on, the scale is logarithmic.
const WIDE: f64 = 50.0;
/// The height of a line of the legend.
const LINE: f64 = 18.0;
/// Colours that can be told apart, also by those who see fewer (Okabe and Ito).
const COLOURS: [&str; 7] = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000"];

/// One figure for each combination of the parameters that are neither.
pub(super) fn figures(result: &StudyResult, across: &str, curves: &str) -> String {
    let mut panels: Vec<(String, Vec<&CellResult>)> = Vec::new();
    for cell in &result.cells {
        let others = cell.parameters.iter().filter(|pair| pair.0 != across && pair.0 != curves);
        let named: Vec<String> = others.map(|(name, value)| format!("{name}: {value}")).collect();
        let title = format!("{} ({})", named.join(", "), cell.unit);
        match panels.iter_mut().find(|panel| panel.0 == title) {
            Some(panel) => panel.1.push(cell),
            None => panels.push((title, vec![cell])),
        }
    }
    panels.iter().map(|(title, cells)| figure(title, cells, across, curves)).collect()
}

fn value<'a>(cell: &'a CellResult, name: &str) -> &'a str {
    cell.parameters.iter().find(|pair| pair.0 == name).map_or("", |pair| &pair.1)
}

/// What a parameter is in these cells, each value once.
fn values<'a>(cells: &[&'a CellResult], name: &str) -> Vec<&'a str> {
    let mut values = Vec::new();
    for value in cells.iter().map(|cell| value(cell, name)) {
        if !values.contains(&value) {
            values.push(value);
        }
    }
    values
}

/// One of the curves of a colour.
#[derive(Clone, Copy)]
struct Series {
    name: &'static str,
    /// How its line is drawn.
    stroke: &'static str,
    figure: fn(&CellResult) -> Option<f64>,
    marker: fn(f64, f64, &str) -> String,
}

const SERIES: [Series; 3] = [
    Series {
        name: "measured",
        stroke: "stroke-width=\"2\"",
        figure: |cell| Some(cell.measured),
        marker: |x, y, colour| format!("<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\" fill=\"{colour}\"/>"),
    },
    Series {
        name: "model",
        stroke: "stroke-width=\"1\" stroke-dasharray=\"5 4\"",
        figure: |cell| cell.model,
        marker: |x, y, colour| {
            let (left, right) = (x - 6.0, x + 6.0);
            format!(
                "<line x1=\"{left:.1}\" x2=\"{right:.1}\" y1=\"{y:.1}\" y2=\"{y:.1}\" stroke=\"{colour}\"/>"
            )
        },
    },
    Series {
        name: "published",
        stroke: "stroke-width=\"1.5\" stroke-dasharray=\"1 3\"",
        figure: |cell| cell.published,
        marker: |x, y, colour| {
            let (x, y) = (x - 3.0, y - 3.0);
            format!(
                "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"6\" height=\"6\" fill=\"none\" stroke=\"{colour}\"/>"
            )
        },
    },
];

/// Where figures are between the bottom, 0, and the top, 1.
struct Scale {
    low: f64,
    high: f64,
    is_logarithmic: bool,
    /// The figures with a line across.
    lines: Vec<f64>,
}

impl Scale {
    fn of(cells: &[&CellResult]) -> Self {
        let figures = || {
            let all = cells.iter().flat_map(|cell| SERIES.iter().filter_map(|series| (series.figure)(cell)));
            all.filter(|figure| figure.is_finite() && *figure > 0.0)
        };
        let largest = figures().fold(f64::MIN_POSITIVE, f64::max);
        let smallest = figures().fold(largest, f64::min);
        if largest / smallest <= WIDE {
            let step = step(largest);
            let steps = (largest / step).ceil().clamp(1.0, STEPS_MAX);
            // At most six.
            let lines = (0..=steps as u32).map(|line| step * f64::from(line)).collect();
            return Self { low: 0.0, high: step * steps, is_logarithmic: false, lines };
        }
        // Exponents of a double are small.
        let powers = smallest.log10().floor() as i32..=largest.log10().ceil() as i32;
        let lines: Vec<f64> = powers.map(|power| 10_f64.powi(power)).collect();
        let ends = lines.first().zip(lines.last()).map_or((smallest, largest), |(low, high)| (*low, *high));
        Self { low: ends.0, high: ends.1, is_logarithmic: true, lines }
    }

    fn height(&self, figure: f64) -> f64 {
        let height = if self.is_logarithmic {
            (figure.max(self.low) / self.low).log10() / (self.high / self.low).log10()
        } else {
            figure / self.high
        };
        if height.is_finite() { height.clamp(0.0, 1.0) } else { 0.0 }
    }
}

fn figure(title: &str, cells: &[&CellResult], across: &str, curves: &str) -> String {
    let places = values(cells, across);
    let scale = Scale::of(cells);
    let x = |place: usize| LEFT + WIDTH * (place as f64 + 0.5) / places.len().max(1) as f64;
    let y = |figure: f64| TOP + HEIGHT * (1.0 - scale.height(figure));
    let mut body = String::new();
    let unit = cells.first().map_or("", |cell| &cell.unit);
    let _ =
        writeln!(body, "<text x=\"{}\" y=\"14\" text-anchor=\"end\">{}</text>", LEFT - 6.0, html_text(unit));
    for &figure in &scale.lines {
        let _ = writeln!(
            body,
            "<line class=\"grid\" x1=\"{LEFT}\" x2=\"{}\" y1=\"{:.1}\" y2=\"{:.1}\"/><text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
            LEFT + WIDTH,
            y(figure),
            y(figure),
            LEFT - 6.0,
            y(figure) + 4.0,
            if figure > 0.0 { figure_text(figure) } else { "0".to_owned() }
        );
    }
    for (place, name) in places.iter().enumerate() {
        let _ = writeln!(
            body,
            "<text x=\"{:.1}\" y=\"{}\" text-anchor=\"middle\">{}</text>",
            x(place),
            TOP + HEIGHT + 16.0,
            html_text(name)
        );
    }
    let mut legend = Legend::default();
    let named = values(cells, curves);
    for (curve, colour) in named.iter().zip(COLOURS.iter().cycle()) {
        let of_curve: Vec<&&CellResult> = cells.iter().filter(|cell| value(cell, curves) == *curve).collect();
        for series in SERIES {
            let point = |cell: &&&CellResult| {
                let place = places.iter().position(|place| *place == value(cell, across))?;
                Some((x(place), y((series.figure)(cell)?)))
            };
            let points: Vec<(f64, f64)> = of_curve.iter().filter_map(point).collect();
            if !points.is_empty() {
                let line: Vec<String> = points.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
                let (stroke, line) = (series.stroke, line.join(" "));
                let _ = writeln!(
                    body,
                    "<polyline fill=\"none\" stroke=\"{colour}\" {stroke} points=\"{line}\"/>"
                );
                for (x, y) in points {
                    let _ = writeln!(body, "{}", (series.marker)(x, y, colour));
                }
            }
        }
        legend.colour(colour, &format!("{curves} {}", value_text(curves, curve)));
    }
    for series in SERIES {
        if cells.iter().any(|cell| (series.figure)(cell).is_some()) {
            legend.series(&series);
        }
    }
    let (width, height) = (Legend::X + legend.width, (TOP + HEIGHT + BOTTOM).max(legend.y));
    let kind = if scale.is_logarithmic { ", logarithmic" } else { "" };
    format!(
        "<h3>{}{kind}</h3>\n<svg viewBox=\"0 0 {width} {height}\" width=\"{width}\" role=\"img\" xmlns=\"http://www.w3.org/2000/svg\">\n\
         {body}{}<text x=\"{}\" y=\"{}\" text-anchor=\"middle\">{}</text></svg>\n",
        html_text(title),
        legend.text,
        LEFT + WIDTH / 2.0,
        TOP + HEIGHT + BOTTOM - 6.0,
        html_text(across)
    )
}

/// What colours and lines mean, to the right of the curves.
struct Legend {
    text: String,
    width: f64,
    y: f64,
}

impl Default for Legend {
    fn default() -> Self {
        Self { text: String::new(), width: 0.0, y: TOP + 10.0 }
    }
}

impl Legend {
    const X: f64 = LEFT + WIDTH + 14.0;
    /// Room for a swatch before the name.
    const INDENT: f64 = 32.0;

    fn colour(&mut self, colour: &str, name: &str) {
        let (x, y) = (Self::X, self.y);
        let swatch = format!("<rect x=\"{x}\" y=\"{y}\" width=\"10\" height=\"10\" fill=\"{colour}\"/>");
        self.line(&swatch, name);
    }

    fn series(&mut self, series: &Series) {
        let (x, y) = (Self::X, self.y + 5.0);
        let swatch = format!(
            "<polyline class=\"legend\" fill=\"none\" stroke=\"#222\" {} points=\"{x},{y} {},{y}\"/>{}",
            series.stroke,
            x + 26.0,
            (series.marker)(x + 13.0, y, "#222")
        );
        self.line(&swatch, series.name);
    }

    fn line(&mut self, swatch: &str, name: &str) {
        let _ = writeln!(
            self.text,
            "{swatch}<text x=\"{}\" y=\"{}\">{}</text>",
            Self::X + Self::INDENT,
            self.y + 9.0,
            html_text(name)
        );
        // As many letters as a line has, far fewer than a double counts.
        self.width = self.width.max(Self::INDENT + LETTER * (name.chars().count() + 1) as f64);
        self.y += LINE;
    }
}

/// A round distance of lines: 1, 2 or 5 times a power of ten, of which the largest figure takes six at most.
fn step(largest: f64) -> f64 {
    let power = 10_f64.powf((largest / STEPS_MAX).log10().floor());
    let times = [1.0, 2.0, 5.0].into_iter().find(|times| times * power * STEPS_MAX >= largest);
    times.unwrap_or(10.0) * power
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cell(measured: f64, published: Option<f64>) -> CellResult {
        CellResult { published, ..CellResult::of(vec![measured], measured, "MB/s") }
    }

    #[test]
    fn figures_that_differ_much_are_on_a_logarithmic_scale() {
        let (small, large) = (cell(0.03, None), cell(1.0, Some(19.0)));
        let near = Scale::of(&[&large]);
        assert!(!near.is_logarithmic && near.lines == [0.0, 5.0, 10.0, 15.0, 20.0], "{:?}", near.lines);
        let wide = Scale::of(&[&small, &large]);
        assert!(wide.is_logarithmic && wide.lines.len() == 5, "0.01 to 100: {:?}", wide.lines);
        assert!((wide.height(1.0) - 0.5).abs() < 1e-9 && wide.height(0.0).abs() < 1e-9);
        for cells in [&[][..], &[&cell(0.0, Some(f64::NAN))]] {
            assert!((0.0..=1.0).contains(&Scale::of(cells).height(7.0)));
        }
    }

    #[test]
    fn lines_are_at_round_figures() {
        for (largest, expected) in
            [(66.0, 20.0), (6.0, 1.0), (0.9, 0.2), (18.7, 5.0), (59.0, 10.0), (61.0, 20.0)]
        {
            assert!((step(largest) / expected - 1.0).abs() < 1e-9, "{largest}: {}", step(largest));
        }
        for largest in [f64::MIN_POSITIVE, 1e-9, 1.0, 7.3e9] {
            assert!(step(largest) * STEPS_MAX >= largest * (1.0 - 1e-9) && step(largest) > 0.0, "{largest}");
        }
    }
}
