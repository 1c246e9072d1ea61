//! Studies: measurements that others have published, repeated.
//!
//! A study is data: cells, each with its varied parameters, what is done there over which link, and the published figure. What
//! carries cells out knows no study, so that another one is one more small file.

mod busy;
mod collected;
mod conclusion;
mod dalgic;
mod disaster;
mod echo;
mod expected;
mod failures;
mod files;
mod fujita;
mod group;
mod guest;
mod image;
mod judgement;
mod lasted;
mod limits;
mod lu;
mod lu_files;
mod memory;
mod orders;
mod peer;
mod probe;
mod published;
mod ready;
mod recorded;
mod result;
mod runner;
mod scratch;
mod selection;
mod service;
mod setting;
mod site;
mod stand;
mod statistics;
mod times;
mod tool;
mod trinkle;
mod versions;
mod why;
mod written;

use serde::Serialize;

pub(crate) use conclusion::UNFINISHED;
pub(crate) use fujita::value_text;
pub use judgement::REACHED;
pub(crate) use judgement::{HELD, OFF, UNEXPLAINED};
pub use peer::Peer;
pub use result::{CellResult, FORM, Failed, Further, Lacking, LinkFacts, StudyResult, Summary};
pub use runner::{Laboratory, Told};
pub use scratch::sweep as remove_left;
pub(crate) use selection::TARGET;
pub(crate) use setting::Ends;
pub use setting::Setting;
pub(crate) use site::{BLOCK_BYTES, RANGE_BYTES, Site};
pub(crate) use statistics::median;
pub use times::{LatencyParts, Times};
pub use versions::Identity;

pub(crate) use probe::{DiskProbe, Keys, Load, Metric, Probe};

/// A study.
#[derive(Debug, Clone, Copy)]
pub struct Study {
    /// How it is asked for.
    pub name: &'static str,
    /// Whose it was.
    pub paper: &'static str,
    /// What it asks.
    pub question: &'static str,
    /// What differs from the paper here, and what stands in for what.
    pub differs: &'static str,
    /// Where figures have curves: the parameter that goes across, and that of which each value is a curve.
    pub axes: Option<(&'static str, &'static str)>,
    /// What is measured, made with a seed where chance has a part in it.
    cells: fn(u64) -> Vec<Cell>,
}

const STUDIES: [Study; 17] = [
    dalgic::TCP,
    dalgic::SWEEP,
    dalgic::LAN,
    dalgic::CONNECTIONS,
    trinkle::BASELINE,
    trinkle::PROFILES,
    lu::LOGIN,
    lu::LIGHT,
    lu::HEAVY,
    lu::TRACE,
    lu_files::FILES,
    disaster::LOCAL,
    disaster::WAN,
    disaster::SHARED,
    fujita::MICRO,
    fujita::POSTMARK,
    fujita::NETSERVER,
];

/// All studies.
#[must_use]
pub const fn studies() -> &'static [Study] {
    &STUDIES
}

/// The study with this name.
#[must_use]
pub fn study(name: &str) -> Option<&'static Study> {
    STUDIES.iter().find(|study| study.name == name)
}

/// Tables beside that of all figures, as a paper has them; most studies have none.
#[must_use]
pub fn summaries(result: &StudyResult) -> Vec<Summary> {
    match &*result.study {
        name if name == trinkle::PROFILES.name => trinkle::tables(&result.cells),
        name if name == lu_files::FILES.name => lu_files::tables(&result.cells),
        name if name.starts_with(fujita::PREFIX) => orders::tables(result),
        _ => Vec::new(),
    }
}

impl Study {
    /// How many cells it has.
    #[must_use]
    pub fn size(&self) -> usize {
        (self.cells)(1).len()
    }

    /// How many of them have an end in a virtual machine, whatever the target.
    #[must_use]
    pub fn virtual_cells(&self) -> usize {
        (self.cells)(1).iter().filter(|cell| matches!(cell.probe, Probe::Virtual(_))).count()
    }

    /// Other targets that it compares with ours, where they are installed and nobody says which.
    fn peers(&self) -> &'static [Peer] {
        if self.name == trinkle::PROFILES.name { &trinkle::PEERS } else { &[] }
    }

    /// What is varied, with all values, in the order of the published table.
    #[must_use]
    pub fn varied(&self) -> Vec<Parameter> {
        varied(self.parameters().iter().map(Vec::as_slice))
    }

    /// What is varied in each cell.
    pub(crate) fn parameters(&self) -> Vec<Vec<(&'static str, String)>> {
        (self.cells)(1).into_iter().map(|cell| cell.parameters).collect()
    }
}

/// What is varied in a study.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Parameter {
    /// Its name.
    pub name: &'static str,
    /// Its values, each once.
    pub values: Vec<String>,
}

/// What is varied in cells with these parameters.
fn varied<'a>(cells: impl Iterator<Item = &'a [(&'static str, String)]>) -> Vec<Parameter> {
    let mut varied: Vec<Parameter> = Vec::new();
    for (name, value) in cells.flatten() {
        let at = varied.iter().position(|parameter| parameter.name == *name).unwrap_or_else(|| {
            varied.push(Parameter { name, values: Vec::new() });
            varied.len() - 1
        });
        let values = &mut varied[at].values;
        if !values.contains(value) {
            values.push(value.clone());
        }
    }
    varied
}

/// One figure to be had.
#[derive(Debug, Clone)]
pub(crate) struct Cell {
    /// What is varied, with its names, in the order of the published table.
    pub(crate) parameters: Vec<(&'static str, String)>,
    /// The link, as `lunette_link` reads it; `None`: no network.
    pub(crate) link: Option<String>,
    pub(crate) probe: Probe,
    pub(crate) published: Option<f64>,
    /// How long single operations took there, where the figure is a time.
    pub(crate) published_times: Option<Times>,
    /// What was published of further figures, by their names.
    pub(crate) beside: Vec<(&'static str, f64)>,
    /// Both of these where the figure is one of another target, by its name.
    pub(crate) of_peers: Vec<OfPeer>,
}

/// What was published of another target than ours.
#[derive(Debug, Clone)]
pub(crate) struct OfPeer {
    pub(crate) peer: &'static str,
    pub(crate) published: Option<f64>,
    pub(crate) beside: Vec<(&'static str, f64)>,
}

/// Parameters of a cell, as results have them.
pub(crate) fn parameters<const N: usize>(pairs: [(&'static str, String); N]) -> Vec<(&'static str, String)> {
    pairs.to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;
    use lunette_link::Link;

    #[test]
    fn every_cell_has_a_link_that_exists_and_parameters_of_its_own() {
        for study in studies() {
            let cells = (study.cells)(1);
            assert_eq!((cells.len(), study.size() > 0), (study.size(), true), "{}", study.name);
            // Results are held against the parameters, whatever their seed.
            let other: Vec<_> = (study.cells)(2).into_iter().map(|cell| cell.parameters).collect();
            assert_eq!(other, study.parameters(), "{}", study.name);
            let mut seen: Vec<_> = cells.iter().map(|cell| &cell.parameters).collect();
            seen.sort();
            seen.dedup();
            assert_eq!(seen.len(), cells.len(), "{}", study.name);
            for cell in &cells {
                if let Some(link) = &cell.link {
                    assert!(link.parse::<Link>().is_ok(), "{link}");
                }
                let names: Vec<_> = cell.parameters.iter().map(|pair| pair.0).collect();
                if let Some((across, curves)) = study.axes {
                    assert!(names.contains(&across) && names.contains(&curves), "{}", study.name);
                }
                assert_eq!(names, cells[0].parameters.iter().map(|pair| pair.0).collect::<Vec<_>>());
            }
        }
    }

    #[test]
    fn published_figures_are_found_for_every_cell_that_has_one() {
        for (name, published) in [
            ("dalgic-tcp", 16),
            ("dalgic-sweep", 96),
            ("dalgic-lan", 24),
            ("dalgic-connections", 0),
            ("trinkle-baseline", 5),
            ("trinkle-profiles", 45),
            ("lu-light", 24),
            ("lu-heavy", 24),
            ("lu-trace", 6),
            ("lu-login", 10),
            ("dr-local", 0),
            ("dr-wan", 0),
            ("dr-shared", 0),
            ("fujita-micro", 0),
            ("lu-files", 120),
            ("fujita-postmark", 0),
            ("fujita-netserver", 4),
        ] {
            let cells = (study(name).expect("a study").cells)(1);
            assert_eq!(cells.iter().filter(|cell| cell.published.is_some()).count(), published, "{name}");
        }
    }
}
