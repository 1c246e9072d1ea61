//! The tables of a result as rows of text: all its cells, how long operations took, the links.

use super::notes::command_us;
use super::{figure_text, fixed};
use crate::study::{CellResult, LinkFacts, StudyResult, Times, value_text};

/// The names of the columns of [`row`].
#[must_use]
pub fn columns(result: &StudyResult) -> Vec<String> {
    let parameters = result.cells.first().map(|cell| cell.parameters.as_slice()).unwrap_or_default();
    let unit = if result.cells.windows(2).all(|pair| pair[0].unit == pair[1].unit) {
        result.cells.first().map(|cell| format!(" {}", cell.unit)).unwrap_or_default()
    } else {
        String::new()
    };
    let mut names: Vec<String> = parameters.iter().map(|pair| pair.0.clone()).collect();
    names.extend([
        format!("measured{unit}"),
        "model".into(),
        "published".into(),
        "to model".into(),
        "to published".into(),
    ]);
    names.extend(["limit".to_owned(), "spread".to_owned()]);
    for (name, unit, is_published) in further(result) {
        names.push(if unit.is_empty() { name.to_owned() } else { format!("{name} {unit}") });
        if is_published {
            names.push(format!("{name} published"));
        }
    }
    names
}

/// What further figures there are, of which unit, and whether any was published.
fn further(result: &StudyResult) -> Vec<(&str, &str, bool)> {
    let mut all: Vec<(&str, &str, bool)> = Vec::new();
    for one in result.cells.iter().flat_map(|cell| &cell.further) {
        match all.iter_mut().find(|known| known.0 == one.name) {
            Some(known) => known.2 |= one.published.is_some(),
            None => all.push((&one.name, &one.unit, one.published.is_some())),
        }
    }
    all
}

/// One cell of a result as a row of its table.
#[must_use]
pub fn row(result: &StudyResult, cell: &CellResult) -> Vec<String> {
    let or_dash = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), figure_text);
    let ratio = |to: Option<f64>| {
        let to = to.filter(|to| *to > 0.0);
        to.map_or_else(|| "-".to_owned(), |to| fixed(cell.measured / to, 2))
    };
    let mut row: Vec<String> = cell.parameters.iter().map(|pair| value_text(&pair.0, &pair.1)).collect();
    row.extend([figure_text(cell.measured), or_dash(cell.model), or_dash(cell.published)]);
    let above = if cell.above.is_some() { ", above-model" } else { "" };
    row.extend([ratio(cell.model), ratio(cell.published), format!("{}{above}", cell.limit)]);
    let spread = cell.spread.filter(|_| cell.runs.len() > 1);
    row.push(spread.map_or_else(|| "-".to_owned(), |spread| format!("{} %", fixed(spread * 100.0, 0))));
    for (name, _, is_published) in further(result) {
        let own = cell.further.iter().find(|own| own.name == name);
        row.push(or_dash(own.map(|own| own.measured)));
        if is_published {
            row.push(or_dash(own.and_then(|own| own.published)));
        }
    }
    row
}

/// What stands above [`times`].
pub const TIMES_TITLE: &str = "How long single operations took, in ms (published in parentheses)";

/// How long single operations took in those cells whose figures are times: the names of the columns, then a row for each cell.
/// Empty where there is none.
#[must_use]
pub fn times(result: &StudyResult) -> Vec<Vec<String>> {
    let cells = || result.cells.iter().filter_map(|cell| Some((cell, cell.times?)));
    let Some((first, _)) = cells().next() else { return Vec::new() };
    let is_told = |at: usize| {
        cells().any(|(cell, times)| {
            let published = cell.published_times.unwrap_or_default();
            times.named()[at].1.is_some() || published.named()[at].1.is_some()
        })
    };
    let columns: Vec<usize> = (0..Times::default().named().len()).filter(|&at| is_told(at)).collect();
    let mut header: Vec<String> = first.parameters.iter().map(|pair| pair.0.clone()).collect();
    header.push("operations".to_owned());
    header.extend(columns.iter().map(|&at| Times::default().named()[at].0.to_owned()));
    let row = |(cell, times): (&CellResult, Times)| {
        let published = cell.published_times.unwrap_or_default();
        let mut row: Vec<String> = cell.parameters.iter().map(|pair| pair.1.clone()).collect();
        row.push(times.of.map_or_else(|| "-".to_owned(), |of| of.to_string()));
        row.extend(columns.iter().map(|&at| {
            let measured = times.named()[at].1.map_or_else(|| "-".to_owned(), figure_text);
            let published = published.named()[at].1.map(|figure| format!(" ({})", figure_text(figure)));
            measured + &published.unwrap_or_default()
        }));
        row
    };
    let rows: Vec<Vec<String>> = cells().map(row).collect();
    std::iter::once(header).chain(rows).collect()
}

/// More links than these have a table ([`link_table`]) instead of a sentence each.
pub(super) const LINKS_MAX: usize = 4;

/// What stands above [`link_table`].
pub const LINKS_TITLE: &str = "Links";

/// Where there are too many links for a sentence each: the names of the columns, then a row for each of them. Empty where there are few.
#[must_use]
pub fn link_table(result: &StudyResult) -> Vec<Vec<String>> {
    if result.link.len() <= LINKS_MAX {
        return Vec::new();
    }
    let header =
        ["link", "properties", "congestion control", "late us", "lost here", "48 bytes us", "command us"];
    let or_dash = |time: Option<f64>| time.map_or_else(|| "-".to_owned(), figure_text);
    let row = |(name, link): (&String, &LinkFacts)| {
        let told = |text: String| if link.proxy { "-".to_owned() } else { text };
        vec![
            name.clone(),
            if link.proxy { format!("{} (proxy)", link.description) } else { link.description.clone() },
            told(link.congestion_control.clone()),
            // Older proxies did not tell it.
            if link.proxy && link.late_us == 0 { "-".to_owned() } else { link.late_us.to_string() },
            told(link.overrun.to_string()),
            or_dash(link.echo_us),
            or_dash(command_us(result, name)),
        ]
    };
    std::iter::once(header.map(str::to_owned).to_vec()).chain(result.link.iter().map(row)).collect()
}
