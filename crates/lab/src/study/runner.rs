//! A study is run: link by link, each cell as often as it takes, the runs of a link's cells interleaved.

use std::cell::OnceCell;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use lunette_link::Link;

use super::probe::{self, Duty, Place, Run};
use super::result::{CellResult, LinkFacts, StudyResult, median};
use super::site::Site;
use super::{Cell, Study};
use crate::{Host, LabError, Negotiated};

/// Runs of each cell, unless it is to be quick.
const RUNS: usize = 3;

/// How studies are run.
#[derive(Debug, Clone, Copy)]
pub struct Laboratory<'a> {
    /// The program `lunette`, which serves at the far end.
    pub binary: &'a Path,
    /// Where chance begins.
    pub seed: u64,
    /// One short run a cell.
    pub is_quick: bool,
    /// Ends it when it becomes true; what was measured by then is kept.
    pub stops: &'a AtomicBool,
    /// A directory for the files of studies that need some; it is to be on a disk, not in memory.
    pub scratch: &'a Path,
    /// Only cells that have all these parameters with these values; all cells where there is none.
    pub only: &'a [(String, String)],
}

/// What is told while a study runs.
#[derive(Debug, Clone, Copy)]
pub struct Told<'a> {
    /// Runs that are over.
    pub done: usize,
    /// Runs that there are.
    pub of: usize,
    /// The parameters of the cell that was measured last.
    pub parameters: &'a [(&'static str, String)],
}

/// What is collected over a study.
struct Collected {
    runs: Vec<Vec<Run>>,
    links: BTreeMap<String, LinkFacts>,
    done: usize,
}

impl Laboratory<'_> {
    /// Runs a study; `told` hears of each run. The process must have the privileges for a network
    /// ([`lunette_wan::acquire_privileges`]).
    ///
    /// # Errors
    /// A network, a target or a session could not be had, or a cell failed.
    pub fn run(&self, study: &Study, told: &(dyn Fn(Told<'_>) + Sync)) -> Result<StudyResult, LabError> {
        let host = Host::look();
        let cells: Vec<Cell> = (study.cells)().into_iter().filter(|cell| self.wants(cell)).collect();
        if cells.is_empty() {
            return Err(LabError::Plan(format!("{} has no such cell", study.name)));
        }
        let mut collected =
            Collected { runs: cells.iter().map(|_| Vec::new()).collect(), links: BTreeMap::new(), done: 0 };
        let mut links: Vec<Option<&str>> = Vec::new();
        for link in cells.iter().map(|cell| cell.link.as_deref()) {
            if !links.contains(&link) {
                links.push(link);
            }
        }
        for link in links {
            // A thread of its own: it stays in the namespace of the target, which ends with it.
            let group = || self.group(link, &cells, &mut collected, told);
            let joined = thread::scope(|scope| scope.spawn(group).join());
            joined.unwrap_or(Err(LabError::Panicked))?;
        }
        Ok(self.conclude(study, host, &cells, collected))
    }

    fn wants(&self, cell: &Cell) -> bool {
        let has = |name: &str, value: &str| cell.parameters.iter().any(|own| own.0 == name && own.1 == value);
        self.only.iter().all(|(name, value)| has(name, value))
    }

    fn runs(&self, cell: &Cell) -> usize {
        let quick = cell.probe.quick_runs();
        if self.is_quick { quick } else { quick.max(RUNS) }
    }

    /// All cells of one link.
    fn group(
        &self,
        name: Option<&str>,
        cells: &[Cell],
        collected: &mut Collected,
        told: &(dyn Fn(Told<'_>) + Sync),
    ) -> Result<(), LabError> {
        if self.stops.load(Ordering::Relaxed) {
            return Ok(());
        }
        let described = name.map(|name| name.parse::<Link>().map(|link| (name, link))).transpose();
        let described = described.map_err(|error| LabError::Plan(error.to_string()))?;
        let site = match &described {
            Some((_, link)) => Some(Site::open(link, self.seed, self.binary)?),
            None => None,
        };
        let image = OnceCell::new();
        let all_runs = cells.iter().map(|cell| self.runs(cell)).sum();
        let own = |cell: &&Cell| cell.link.as_deref() == name;
        let turns = cells.iter().filter(own).map(|cell| self.runs(cell)).max().unwrap_or_default();
        for turn in 0..turns {
            for (cell, runs) in cells.iter().zip(&mut collected.runs) {
                if !own(&cell) || turn >= self.runs(cell) {
                    continue;
                }
                if self.stops.load(Ordering::Relaxed) {
                    break;
                }
                let seed = self.seed.wrapping_add(turn as u64);
                let over = site.as_ref().zip(described.as_ref().map(|described| &described.1));
                let round_trip = over.map(|(_, link)| link.round_trip()).unwrap_or_default();
                let outstanding_bytes = cell.probe.outstanding_bytes();
                let duty = Duty::on(round_trip, outstanding_bytes, seed, self.is_quick);
                let place = Place { over, binary: self.binary, scratch: self.scratch, image: &image };
                let run = probe::run_once(place, &cell.probe, duty);
                runs.push(run?);
                collected.done += 1;
                told(Told { done: collected.done, of: all_runs, parameters: &cell.parameters });
            }
        }
        if let (Some(site), Some((name, link))) = (site, described) {
            collected.links.insert(name.to_owned(), site.facts(&link)?);
        }
        Ok(())
    }

    fn conclude(&self, study: &Study, host: Host, cells: &[Cell], collected: Collected) -> StudyResult {
        let mut agreements: Vec<Negotiated> = Vec::new();
        let is_partial = collected.runs.iter().zip(cells).any(|(runs, cell)| runs.len() < self.runs(cell));
        let results = cells.iter().zip(collected.runs).filter_map(|(cell, runs)| {
            let is_late = cell
                .link
                .as_ref()
                .and_then(|link| collected.links.get(link))
                .is_some_and(|link| link.is_doubtful);
            result(cell, runs, &mut agreements, is_late)
        });
        let cells = results.collect();
        StudyResult {
            form: 1,
            study: study.name.to_owned(),
            paper: study.paper.to_owned(),
            question: study.question.to_owned(),
            differs: study.differs.to_owned(),
            axes: study.axes.map(|(across, curves)| (across.to_owned(), curves.to_owned())),
            host,
            link: collected.links,
            seed: self.seed,
            is_quick: self.is_quick,
            is_partial,
            negotiated: agreements,
            cells,
        }
    }
}

/// Makes one figure of a cell's runs; nothing without any.
fn result(
    cell: &Cell,
    runs: Vec<Run>,
    agreements: &mut Vec<Negotiated>,
    is_late: bool,
) -> Option<CellResult> {
    let figures: Vec<f64> = runs.iter().map(|run| run.measured).collect();
    let measured = median(figures.clone())?;
    let largest = figures.iter().copied().fold(f64::MIN, f64::max);
    let smallest = figures.iter().copied().fold(f64::MAX, f64::min);
    let models: Vec<f64> = runs.iter().filter_map(|run| run.model.map(|model| model.0)).collect();
    let limit = runs.iter().find_map(|run| run.model).map(|model| model.1);
    let idle = median(runs.iter().map(|run| run.idle).collect()).unwrap_or(1.0);
    let processor = median(runs.iter().map(|run| run.processor).collect()).unwrap_or_default();
    let negotiated = runs.into_iter().find_map(|run| run.negotiated).map(|agreed| {
        let known = agreements.iter().position(|known| known.is_like(&agreed));
        known.unwrap_or_else(|| {
            agreements.push(agreed);
            agreements.len() - 1
        })
    });
    let own = |&(name, ref value): &(&str, String)| (name.to_owned(), value.clone());
    let mut result = CellResult {
        parameters: cell.parameters.iter().map(own).collect(),
        link: cell.link.clone(),
        measured,
        model: median(models),
        published: cell.published,
        unit: cell.probe.unit().to_owned(),
        limit: String::new(),
        runs: figures,
        spread: if measured > 0.0 { (largest - smallest) / measured } else { 0.0 },
        processor,
        idle,
        negotiated,
    };
    result.judge(limit, is_late, cell.probe.beside());
    Some(result)
}
