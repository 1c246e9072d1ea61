//! Figures with a curve for each value of one parameter over the values of another one, as papers draw them. What the model expects is
//! dashed.

use std::fmt::Write;

use super::{figure_text, html_text};
use crate::study::{CellResult, StudyResult};

const LEFT: f64 = 60.0;
const TOP: f64 = 26.0;
const WIDTH: f64 = 460.0;
const HEIGHT: f64 = 240.0;
const RIGHT: f64 = 170.0;
const BOTTOM: f64 = 40.0;
/// Lines across, at most.
const STEPS_MAX: f64 = 6.0;
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
    let drawn = cells.iter().flat_map(|cell| [Some(cell.measured), cell.model]).flatten();
    let step = step(drawn.filter(|value| value.is_finite()).fold(f64::MIN_POSITIVE, f64::max));
    let steps = cells.iter().flat_map(|cell| [cell.measured, cell.model.unwrap_or_default()]);
    let steps = steps.fold(1.0, |most: f64, value| most.max((value / step).ceil().min(STEPS_MAX)));
    let high = step * steps;
    let x = |place: usize| LEFT + WIDTH * (place as f64 + 0.5) / places.len().max(1) as f64;
    let y = |figure: f64| TOP + HEIGHT * (1.0 - (figure / high).clamp(0.0, 1.0));
    let mut body = String::new();
    let unit = cells.first().map_or("", |cell| &cell.unit);
    let _ =
        writeln!(body, "<text x=\"{}\" y=\"14\" text-anchor=\"end\">{}</text>", LEFT - 6.0, html_text(unit));
    // At most six.
    for line in 0..=steps as u32 {
        let figure = step * f64::from(line);
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
        let of_curve: Vec<&&CellResult> = of_curve.collect();
        let points = |figure: fn(&CellResult) -> Option<f64>| {
            let point = |cell: &&&CellResult| {
                let place = places.iter().position(|place| *place == value(cell, across))?;
                Some((x(place), y(figure(cell)?)))
            };
            of_curve.iter().filter_map(point).collect::<Vec<(f64, f64)>>()
        };
        let mut draw = |points: &[(f64, f64)], more: &str| {
            let line: Vec<String> = points.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
            let line = line.join(" ");
            let _ = writeln!(body, "<polyline fill=\"none\" stroke=\"{colour}\" {more} points=\"{line}\"/>");
        };
        let measured = points(|cell| Some(cell.measured));
        draw(&measured, "stroke-width=\"2\"");
        let expected = points(|cell| cell.model);
        if !expected.is_empty() {
            draw(&expected, "stroke-width=\"1\" stroke-dasharray=\"5 4\"");
        }
        for (x, y) in measured {
            let _ = writeln!(body, "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\" fill=\"{colour}\"/>");
        }
        let legend = TOP + 10.0 + at as f64 * 18.0;
        let _ = writeln!(
            body,
            "<rect x=\"{}\" y=\"{legend}\" width=\"10\" height=\"10\" fill=\"{colour}\"/><text x=\"{}\" y=\"{}\">{}</text>",
            LEFT + WIDTH + 14.0,
            LEFT + WIDTH + 30.0,
            legend + 9.0,
            html_text(&format!("{curves} {curve}"))
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

/// A round distance of lines: 1, 2 or 5 times a power of ten, of which the largest figure takes six at most.
fn step(largest: f64) -> f64 {
    let power = 10_f64.powf((largest / STEPS_MAX).log10().floor());
    let times = [1.0, 2.0, 5.0].into_iter().find(|times| times * power * STEPS_MAX >= largest);
    times.unwrap_or(10.0) * power
}

#[cfg(test)]
mod tests {
    use super::*;

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
