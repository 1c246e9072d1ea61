//! Tables as papers have them: one parameter goes across, the others go down, and each place has what was measured, what the
//! model expects, what was published and what sets the limit.

use super::figure_text;
use crate::study::{CellResult, StudyResult, value_text};

/// With more rows than these there is a table for each value of the first parameter.
const ROWS_MAX: usize = 8;

/// A table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Grid {
    /// What it is of, and what its places have.
    pub(super) title: String,
    /// The names of the parameters that go down, then the values of the one that goes across.
    pub(super) columns: Vec<String>,
    /// The values of the parameters that go down, and the places, some of which may be empty.
    pub(super) rows: Vec<(Vec<String>, Vec<Option<Place>>)>,
}

/// A place of a table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Place {
    /// Measured, and as far as the table has them: the model's and published.
    pub(super) figures: String,
    pub(super) limit: String,
    /// It is off the model by more than 10 %.
    pub(super) is_off: bool,
}

/// All tables of a result; none where nothing goes across.
pub(super) fn grids(result: &StudyResult) -> Vec<Grid> {
    let Some(across) = across(result) else { return Vec::new() };
    let cells: Vec<&CellResult> = result.cells.iter().collect();
    let rows = distinct(cells.iter().map(|cell| down(cell, across)));
    let has_one_unit = cells.windows(2).all(|pair| pair[0].unit == pair[1].unit);
    let first = result.cells.first().and_then(|cell| cell.parameters.first()).map(|pair| pair.0.as_str());
    let Some(first) = first.filter(|first| *first != across && (rows.len() > ROWS_MAX || !has_one_unit))
    else {
        return vec![grid(None, &cells, across)];
    };
    let each = |of: String| {
        let own: Vec<&CellResult> = cells.iter().filter(|cell| value(cell, first) == of).copied().collect();
        grid(Some((first, &of)), &own, across)
    };
    distinct(cells.iter().map(|cell| value(cell, first).to_owned())).into_iter().map(each).collect()
}

/// What goes across: what the paper's figure has there, and else the last parameter that is varied.
fn across(result: &StudyResult) -> Option<&str> {
    let is_varied =
        |name: &str| result.cells.windows(2).any(|pair| value(&pair[0], name) != value(&pair[1], name));
    let of_figure = result.axes.as_ref().map(|axes| axes.0.as_str());
    let last = || {
        let names = result.cells.first()?.parameters.iter().rev().map(|pair| pair.0.as_str());
        names.into_iter().find(|name| is_varied(name))
    };
    of_figure.filter(|name| is_varied(name)).or_else(last)
}

fn value<'a>(cell: &'a CellResult, name: &str) -> &'a str {
    cell.parameters.iter().find(|pair| pair.0 == name).map_or("", |pair| &pair.1)
}

/// Each value once, in the order in which they come.
fn distinct<T: PartialEq>(all: impl Iterator<Item = T>) -> Vec<T> {
    let mut distinct = Vec::new();
    for one in all {
        if !distinct.contains(&one) {
            distinct.push(one);
        }
    }
    distinct
}

/// The parameters that go down.
fn down<'a>(cell: &'a CellResult, across: &str) -> Vec<&'a (String, String)> {
    cell.parameters.iter().filter(|pair| pair.0 != across).collect()
}

fn grid(of: Option<(&str, &str)>, cells: &[&CellResult], across: &str) -> Grid {
    let places = distinct(cells.iter().map(|cell| value(cell, across)));
    let own = |cell: &CellResult| -> Vec<(String, String)> {
        let pairs = down(cell, across).into_iter();
        pairs.filter(|pair| Some(pair.0.as_str()) != of.map(|of| of.0)).cloned().collect()
    };
    let keys = distinct(cells.iter().map(|cell| own(cell)));
    let (has_model, has_published) =
        (cells.iter().any(|cell| cell.model.is_some()), cells.iter().any(|cell| cell.published.is_some()));
    let place = |cell: &CellResult| {
        let or_dash = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), figure_text);
        let mut figures = figure_text(cell.measured);
        for (_, figure) in
            [(has_model, cell.model), (has_published, cell.published)].iter().filter(|one| one.0)
        {
            figures += &format!(" / {}", or_dash(*figure));
        }
        Place { figures, limit: cell.limit.clone(), is_off: cell.is_off_model() == Some(true) }
    };
    let row = |key: &Vec<(String, String)>| {
        let at = |across_value: &&str| {
            let is_it = |cell: &&&CellResult| own(cell) == *key && value(cell, across) == *across_value;
            cells.iter().find(is_it).map(|cell| place(cell))
        };
        (key.iter().map(|pair| value_text(&pair.0, &pair.1)).collect(), places.iter().map(at).collect())
    };
    let names = keys.first().map(|key| key.iter().map(|pair| pair.0.clone()).collect::<Vec<_>>());
    let mut columns = names.unwrap_or_default();
    columns.extend(places.iter().map(|place| format!("{across} {}", value_text(across, place))));
    let of = of.map(|(name, value)| format!("{name} {value}: ")).unwrap_or_default();
    let unit = cells.first().map_or("", |cell| &cell.unit);
    let told = [(true, "measured"), (has_model, "model"), (has_published, "published")];
    let told: Vec<&str> = told.iter().filter(|one| one.0).map(|one| one.1).collect();
    Grid {
        title: format!("{of}{} in {unit}", told.join(" / ")),
        columns,
        rows: keys.iter().map(row).collect(),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::{FORM, Host};

    fn result(axes: Option<(&str, &str)>, cells: Vec<CellResult>) -> StudyResult {
        StudyResult {
            form: FORM,
            study: "made-up".into(),
            paper: "Nobody".into(),
            question: "what comes".into(),
            differs: String::new(),
            axes: axes.map(|(across, curves)| (across.into(), curves.into())),
            host: Host::look(),
            versions: BTreeMap::new(),
            targets: BTreeMap::new(),
            link: BTreeMap::new(),
            seed: 1,
            is_quick: false,
            cells_with_more_runs: 0,
            is_partial: false,
            only: Vec::new(),
            cells_in_study: 3,
            lacking: Vec::new(),
            altered: None,
            negotiated: Vec::new(),
            cells,
            failed: Vec::new(),
        }
    }

    fn cell(
        parameters: &[(&str, &str)],
        measured: f64,
        model: Option<f64>,
        published: Option<f64>,
    ) -> CellResult {
        CellResult {
            parameters: parameters.iter().map(|&(name, value)| (name.into(), value.into())).collect(),
            model,
            published,
            limit: "link-rate".into(),
            ..CellResult::of(vec![measured], measured, "MB/s")
        }
    }

    #[test]
    fn one_parameter_goes_across_and_the_others_down() {
        let all = |mode, window, rtt, measured, published| {
            cell(&[("mode", mode), ("window", window), ("rtt_ms", rtt)], measured, Some(18.7), published)
        };
        let cells = vec![
            all("read", "1", "0", 18.5, Some(19.3)),
            all("read", "1", "50", 1.25, None),
            all("read", "32", "50", 18.6, Some(19.2)),
            all("write", "1", "0", 18.4, Some(19.1)),
        ];
        let grids = grids(&result(Some(("rtt_ms", "mode")), cells));
        assert_eq!(grids.len(), 1);
        let grid = &grids[0];
        assert_eq!(grid.title, "measured / model / published in MB/s");
        assert_eq!(grid.columns, ["mode", "window", "rtt_ms 0", "rtt_ms 50"]);
        let told: Vec<String> = grid
            .rows
            .iter()
            .map(|(key, places)| {
                let places = places.iter().map(|place| place.as_ref().map_or("", |place| &place.figures));
                format!("{}: {}", key.join(" "), places.collect::<Vec<_>>().join(" | "))
            })
            .collect();
        let expected = [
            "read 1: 18.5 / 18.7 / 19.3 | 1.25 / 18.7 / -",
            "read 32:  | 18.6 / 18.7 / 19.2",
            "write 1: 18.4 / 18.7 / 19.1 | ",
        ];
        assert_eq!(told, expected);
        let off: Vec<bool> = grid.rows[0].1.iter().flatten().map(|place| place.is_off).collect();
        assert_eq!(off, [false, true]);
    }

    #[test]
    fn many_rows_and_other_units_have_tables_of_their_own() {
        let mut cells: Vec<CellResult> = Vec::new();
        for figure in ["rate", "latency"] {
            for flows in ["0", "1"] {
                cells.push(cell(&[("figure", figure), ("flows", flows)], 1.0, None, None));
            }
        }
        assert_eq!(grids(&result(None, cells.clone())).len(), 1);
        for cell in &mut cells[2..] {
            cell.unit = "ms".into();
        }
        let apart = grids(&result(None, cells));
        let titles: Vec<&str> = apart.iter().map(|grid| &*grid.title).collect();
        assert_eq!(titles, ["figure rate: measured in MB/s", "figure latency: measured in ms"]);
        assert_eq!(apart[0].columns, ["flows 0", "flows 1"]);
        let sizes: Vec<CellResult> = (0..20)
            .map(|at| {
                let (size, network) = ((at / 2).to_string(), if at % 2 == 0 { "near" } else { "far" });
                cell(
                    &[("op", if at < 10 { "read" } else { "write" }), ("size", &size), ("network", network)],
                    1.0,
                    None,
                    None,
                )
            })
            .collect();
        let many = grids(&result(None, sizes));
        assert_eq!(many.iter().map(|grid| grid.rows.len()).collect::<Vec<_>>(), [5, 5]);
        // A figure alone has no table of its own beside its row.
        assert!(grids(&result(None, vec![cell(&[("op", "read")], 1.0, None, None)])).is_empty());
        assert!(grids(&result(None, Vec::new())).is_empty());
    }

    #[test]
    fn no_cell_of_a_study_is_missing_in_its_tables() {
        for study in crate::study::studies() {
            let parameters = study.parameters();
            let cells: Vec<CellResult> = parameters
                .iter()
                .map(|own| {
                    let own: Vec<(&str, &str)> = own.iter().map(|pair| (pair.0, &*pair.1)).collect();
                    cell(&own, 1.0, None, None)
                })
                .collect();
            let axes = study.axes;
            let grids = grids(&result(axes, cells));
            let places =
                grids.iter().flat_map(|grid| &grid.rows).flat_map(|row| row.1.iter().flatten()).count();
            assert_eq!(places, study.size(), "{}", study.name);
        }
    }
}
