//! Figures with a curve for each value of one parameter over the values of another one, as papers draw them.

use std::fmt::Write;

use super::{figure_text, html_text};
use crate::study::{CellResult, StudyResult};

const LEFT: f64 = 60.0;
const TOP: f64 = 14.0;
const WIDTH: f64 = 460.0;
const HEIGHT: f64 = 240.0;
const RIGHT: f64 = 170.0;
const BOTTOM: f64 = 40.0;
/// Lines across.
const STEPS: u32 = 4;
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

fn figure(title: &str, cells: &[&CellResult], across: &str, curves: &str) -> String {
    let places = values(cells, across);
    let high = cells.iter().map(|cell| cell.measured).fold(f64::MIN_POSITIVE, f64::max) * 1.05;
    let x = |place: usize| LEFT + WIDTH * (place as f64 + 0.5) / places.len().max(1) as f64;
    let y = |figure: f64| TOP + HEIGHT * (1.0 - (figure / high).clamp(0.0, 1.0));
    let mut body = String::new();
    for step in 0..=STEPS {
        let figure = high * f64::from(step) / f64::from(STEPS);
        let _ = writeln!(
            body,
            "<line class=\"grid\" x1=\"{LEFT}\" x2=\"{}\" y1=\"{:.1}\" y2=\"{:.1}\"/><text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
            LEFT + WIDTH,
            y(figure),
            y(figure),
            LEFT - 6.0,
            y(figure) + 4.0,
            figure_text(figure)
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
    for (at, curve) in values(cells, curves).into_iter().enumerate() {
        let colour = COLOURS[at % COLOURS.len()];
        let of_curve = cells.iter().filter(|cell| value(cell, curves) == curve);
        let points = of_curve.filter_map(|cell| {
            let place = places.iter().position(|place| *place == value(cell, across))?;
            Some((x(place), y(cell.measured)))
        });
        let points: Vec<(f64, f64)> = points.collect();
        let line: Vec<String> = points.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
        let _ = writeln!(
            body,
            "<polyline fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\" points=\"{}\"/>",
            line.join(" ")
        );
        for (x, y) in points {
            let _ = writeln!(body, "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\" fill=\"{colour}\"/>");
        }
        let legend = TOP + 10.0 + at as f64 * 18.0;
        let _ = writeln!(
            body,
            "<rect x=\"{}\" y=\"{legend}\" width=\"10\" height=\"10\" fill=\"{colour}\"/><text x=\"{}\" y=\"{}\">{}</text>",
            LEFT + WIDTH + 14.0,
            LEFT + WIDTH + 30.0,
            legend + 9.0,
            html_text(curve)
        );
    }
    let (width, height) = (LEFT + WIDTH + RIGHT, TOP + HEIGHT + BOTTOM);
    format!(
        "<h3>{}</h3>\n<svg viewBox=\"0 0 {width} {height}\" width=\"{width}\" role=\"img\" xmlns=\"http://www.w3.org/2000/svg\">\n{body}\
         <text x=\"{}\" y=\"{}\" text-anchor=\"middle\">{}</text></svg>\n",
        html_text(title),
        LEFT + WIDTH / 2.0,
        height - 6.0,
        html_text(across)
    )
}
