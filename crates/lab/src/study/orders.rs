//! Which design was ahead of which, as Fujita and Ogawara say in words where they have no numbers, and what came of that here.

use super::fujita::{MICRO, NETSERVER, POSTMARK, value_text};
use super::result::{CellResult, StudyResult, Summary};

/// One sentence of the paper.
struct Order {
    study: &'static str,
    said: &'static str,
    /// The cells that it is of: a parameter, and the values of it.
    of: &'static [(&'static str, &'static [&'static str])],
    design: &'static str,
    others: &'static [&'static str],
    /// The design has more than each of the others; else less.
    is_ahead: bool,
}

const ORDERS: [Order; 5] = [
    Order {
        study: MICRO.name,
        said: "sequential writes: fileio-sync is very poor (figure 3)",
        of: &[("access", &["sequential-write"])],
        design: "fileio-sync",
        others: &["fileio", "diskio", "threads"],
        is_ahead: false,
    },
    Order {
        study: MICRO.name,
        said: "sequential writes of less than 8 KiB: fileio is ahead (figure 3)",
        of: &[("access", &["sequential-write"]), ("size_kib", &["2", "4"])],
        design: "fileio",
        others: &["diskio", "threads"],
        is_ahead: true,
    },
    Order {
        study: MICRO.name,
        said: "sequential reads: fileio is behind (figure 4)",
        of: &[("access", &["sequential-read"])],
        design: "fileio",
        others: &["diskio", "threads"],
        is_ahead: false,
    },
    Order {
        study: POSTMARK.name,
        said: "fileio-sync is the worst (figure 7)",
        of: &[],
        design: "fileio-sync",
        others: &["fileio", "diskio", "threads"],
        is_ahead: false,
    },
    Order {
        study: NETSERVER.name,
        said: "512 files: what has the page cache is far ahead of diskio (figure 8)",
        of: &[("figure", &["rate"]), ("files", &["512"])],
        design: "diskio",
        others: &["fileio", "threads"],
        is_ahead: false,
    },
];

/// A row for each sentence and all cells that it is of; no table where nothing of that was measured.
pub(super) fn tables(result: &StudyResult) -> Vec<Summary> {
    let of_study = ORDERS.iter().filter(|order| order.study == result.study);
    let rows: Vec<Vec<String>> = of_study.flat_map(|order| order.rows(&result.cells)).collect();
    if rows.is_empty() {
        return Vec::new();
    }
    let title = "Which design was ahead, as the paper says, and here".to_owned();
    vec![Summary { title, columns: ["the paper says", "of", "here", "so"].map(str::to_owned).into(), rows }]
}

fn value<'a>(cell: &'a CellResult, name: &str) -> &'a str {
    cell.parameters.iter().find(|pair| pair.0 == name).map_or("", |pair| &pair.1)
}

impl Order {
    fn rows(&self, cells: &[CellResult]) -> Vec<Vec<String>> {
        let is_meant = |cell: &&CellResult| {
            cell.is_ours() && self.of.iter().all(|(name, values)| values.contains(&value(cell, name)))
        };
        let meant: Vec<&CellResult> = cells.iter().filter(is_meant).collect();
        meant
            .iter()
            .filter(|cell| value(cell, "design") == self.design)
            .filter_map(|cell| self.row(cell, &meant))
            .collect()
    }

    /// The cells that are as this one but for their design; nothing without any.
    fn row(&self, cell: &CellResult, cells: &[&CellResult]) -> Option<Vec<String>> {
        let apart = |cell: &CellResult| -> Vec<(String, String)> {
            cell.parameters.iter().filter(|pair| pair.0 != "design").cloned().collect()
        };
        let beside = cells
            .iter()
            .filter(|other| self.others.contains(&value(other, "design")) && apart(other) == apart(cell));
        let beside: Vec<&&CellResult> = beside.collect();
        let is_so = |other: &&&CellResult| {
            if self.is_ahead { cell.measured > other.measured } else { cell.measured < other.measured }
        };
        let told = |cell: &CellResult| {
            format!(
                "{} {}",
                value_text("design", value(cell, "design")),
                crate::report::figure_text(cell.measured)
            )
        };
        let others: Vec<String> = beside.iter().map(|other| told(other)).collect();
        let of: Vec<String> = apart(cell).iter().map(|(name, value)| format!("{name} {value}")).collect();
        let so = if beside.iter().all(is_so) { "yes" } else { "no" };
        (!beside.is_empty()).then(|| {
            vec![
                self.said.to_owned(),
                of.join(", "),
                format!("{} beside {}", told(cell), others.join(", ")),
                so.to_owned(),
            ]
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::study::study;

    #[test]
    fn what_the_paper_says_in_words_stands_beside_what_came() {
        let name = POSTMARK.name;
        let parameters = study(name).expect("a study").parameters().into_iter();
        let cells: Vec<CellResult> = parameters
            .map(|pairs| CellResult {
                parameters: pairs.into_iter().map(|(name, value)| (name.to_owned(), value)).collect(),
                ..CellResult::of(vec![5.0], 5.0, "MB/s")
            })
            .collect();
        let order = ORDERS.iter().find(|order| order.study == name).expect("one");
        let so = |worst: f64, other: f64| {
            let mut cells = cells.clone();
            for cell in &mut cells {
                cell.measured = if value(cell, "design") == "fileio-sync" { worst } else { other };
            }
            order.rows(&cells)
        };
        assert_eq!(so(3.0, 4.0).iter().map(|row| row[3].as_str()).collect::<Vec<_>>(), ["yes"; 3]);
        let rows = so(4.0, 3.0);
        assert!(rows.len() == 3 && rows.iter().all(|row| row[3] == "no"), "{rows:?}");
        assert_eq!(
            rows[0][1..3],
            [
                "figure transactions",
                "fileio-sync (cached) 4.00 beside fileio (cached) 3.00, diskio (direct) 3.00, threads (cached) 3.00"
            ]
        );
        assert!(order.rows(&[]).is_empty());
    }

    /// A sentence that is of no cell would never be seen to be wrong.
    #[test]
    fn each_sentence_is_of_cells_that_there_are() {
        for order in &ORDERS {
            let all = study(order.study).expect("a study").parameters();
            let cells: Vec<CellResult> = all
                .into_iter()
                .map(|pairs| CellResult {
                    parameters: pairs.into_iter().map(|(name, value)| (name.to_owned(), value)).collect(),
                    ..CellResult::of(vec![5.0], 5.0, "MB/s")
                })
                .collect();
            let rows = order.rows(&cells);
            assert!(!rows.is_empty(), "{}", order.said);
            for row in rows {
                assert!(order.others.iter().all(|other| row[2].contains(&format!("{other} ("))), "{row:?}");
            }
        }
    }
}
