//! Studies: measurements that others have published, repeated.
//!
//! A study is data: cells, each with its varied parameters, what is done there over which link, and the published figure. What
//! carries cells out knows no study, so that another one is one more small file.

mod dalgic;
mod lu;
mod probe;
mod published;
mod result;
mod runner;
mod site;
mod tcp;
mod trinkle;

use lunette_workload::Workload;

pub use result::{CellResult, LinkFacts, StudyResult};
pub use runner::{Laboratory, Told};
pub(crate) use site::{BLOCK_BYTES, RANGE_BYTES, Site};

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
    cells: fn() -> Vec<Cell>,
}

const STUDIES: [Study; 5] = [dalgic::TCP, dalgic::SWEEP, dalgic::LAN, trinkle::PROFILES, lu::LIGHT];

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

impl Study {
    /// How many cells it has.
    #[must_use]
    pub fn size(&self) -> usize {
        (self.cells)().len()
    }
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
}

/// What is done in a cell.
#[derive(Debug, Clone)]
pub(crate) enum Probe {
    /// Plain TCP, with so much buffer at each end; none: what the system finds out.
    Tcp { to_target: bool, buffer_bytes: Option<usize> },
    /// A workload on a disk.
    Disk { workload: Workload, depth: u32, keys: Keys, metric: Metric },
}

/// What a session is to agree on, where that is not up to both sides' defaults.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Keys {
    /// Whatever is best.
    #[default]
    Defaults,
    /// Each write waits for an R2T: InitialR2T=Yes, ImmediateData=No.
    Solicited,
    /// A write's data goes with it: FirstBurstLength is at least this request.
    Unsolicited { request_bytes: u32 },
}

/// What is told of a workload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Metric {
    /// Data, in 10^6 bytes per second.
    MegabytesPerSecond,
    /// Data, in 2^20 bytes per second.
    MebibytesPerSecond,
    /// Operations per second.
    OperationsPerSecond,
    /// The mean latency, in milliseconds.
    MeanMilliseconds,
}

impl Metric {
    pub(crate) const fn unit(self) -> &'static str {
        match self {
            Self::MegabytesPerSecond => "MB/s",
            Self::MebibytesPerSecond => "MiB/s",
            Self::OperationsPerSecond => "IOPS",
            Self::MeanMilliseconds => "ms",
        }
    }
}

impl Probe {
    pub(crate) const fn unit(&self) -> &'static str {
        match self {
            Self::Tcp { .. } => Metric::MegabytesPerSecond.unit(),
            Self::Disk { metric, .. } => metric.unit(),
        }
    }
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
            let cells = (study.cells)();
            assert_eq!((cells.len(), study.size() > 0), (study.size(), true), "{}", study.name);
            let mut seen: Vec<_> = cells.iter().map(|cell| &cell.parameters).collect();
            seen.sort();
            seen.dedup();
            assert_eq!(seen.len(), cells.len(), "{}", study.name);
            for cell in &cells {
                if let Some(link) = &cell.link {
                    assert!(link.parse::<Link>().is_ok(), "{link}");
                }
                let names: Vec<_> = cell.parameters.iter().map(|pair| pair.0).collect();
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
            ("trinkle-profiles", 20),
            ("lu-light", 24),
        ] {
            let cells = (study(name).expect("a study").cells)();
            assert_eq!(cells.iter().filter(|cell| cell.published.is_some()).count(), published, "{name}");
        }
    }
}
