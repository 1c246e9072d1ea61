//! What a study has measured so far, and which runs are worth nothing because this machine, a guest of a host, had to wait for others.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::probe::Run;
use super::result::LinkFacts;
use super::selection::Aimed;
use super::versions::Identity;

/// A run is not what this machine does if its host gave more than this share of the processors to others meanwhile.
const STOLEN_MAX: f64 = 0.01;
/// The part of a study's time that runs may take which are done again for that.
const AGAIN_MAX: f64 = 0.1;

/// What is collected over a study.
pub(super) struct Collected {
    pub(super) runs: Vec<Vec<Run>>,
    pub(super) links: BTreeMap<String, LinkFacts>,
    pub(super) targets: BTreeMap<String, Identity>,
    /// Runs that were done again.
    again: usize,
    /// How long that took.
    again_for: Duration,
    begun: Instant,
}

impl Collected {
    /// Nothing yet of so many cells.
    pub(super) fn of(cells: usize) -> Self {
        Self {
            runs: (0..cells).map(|_| Vec::new()).collect(),
            links: BTreeMap::new(),
            targets: BTreeMap::new(),
            again: 0,
            again_for: Duration::ZERO,
            begun: Instant::now(),
        }
    }

    /// Runs that are over.
    pub(super) fn done(&self) -> usize {
        self.runs.iter().map(Vec::len).sum()
    }

    /// Runs over this link, each as its cell and turn, that are to be done again, those first that most was stolen from.
    pub(super) fn to_do_again(&self, cells: &[Aimed], link: Option<&str>) -> Vec<(usize, usize)> {
        let is_concerned = |aimed: &Aimed| aimed.link() == link && aimed.cell.probe.is_of_its_own();
        let mut found = Vec::new();
        for (at, (aimed, runs)) in cells.iter().zip(&self.runs).enumerate() {
            let stolen = runs.iter().map(|run| run.shares.stolen).enumerate();
            let stolen = stolen.filter(|(_, stolen)| is_concerned(aimed) && *stolen > STOLEN_MAX);
            found.extend(stolen.map(|(turn, stolen)| (at, turn, stolen)));
        }
        found.sort_by(|one, other| other.2.total_cmp(&one.2));
        found.into_iter().map(|(at, turn, _)| (at, turn)).collect()
    }

    /// Whether runs may still be done again.
    pub(super) fn has_time(&self) -> bool {
        self.again_for < self.begun.elapsed().mul_f64(AGAIN_MAX)
    }

    /// Of a run and the one that was done again for it, that one in which others had less counts.
    pub(super) fn choose(&mut self, at: usize, turn: usize, again: Run, took: Duration) {
        let first = &mut self.runs[at][turn];
        if again.shares.stolen < first.shares.stolen {
            *first = again;
        }
        self.again += 1;
        self.again_for += took;
    }

    /// What is to be said of runs that were done again.
    pub(super) fn told_of_again(&self) -> Option<String> {
        let percent = STOLEN_MAX * 100.0;
        (self.again > 0).then(|| {
            format!(
                " {} runs were done twice, for the host had given more than {percent:.0} % of this machine's processors to others meanwhile; of the two, that one counts in \
                 which it was less, whatever its figure.",
                self.again
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::Shares;
    use crate::study::study;

    fn run(measured: f64, stolen: f64) -> Run {
        Run { shares: Shares { stolen, ..Shares::default() }, ..Run::of(measured, None) }
    }

    /// The cells of a study, and runs of the first of them.
    fn collected(name: &str, runs: Vec<Vec<Run>>) -> (Vec<Aimed>, Collected) {
        let cells = (study(name).expect("a study").cells)(1);
        let cells: Vec<Aimed> = cells.into_iter().map(|cell| Aimed { cell, peer: None }).collect();
        let mut collected = Collected::of(cells.len());
        for (of_cell, runs) in collected.runs.iter_mut().zip(runs) {
            *of_cell = runs;
        }
        (cells, collected)
    }

    #[test]
    fn what_most_was_stolen_from_is_done_again_first() {
        let runs =
            vec![vec![run(9.0, 0.02), run(9.0, 0.01)], vec![run(1.0, 0.0), run(5.0, 0.3), run(5.0, 0.011)]];
        let (cells, mut collected) = collected("dalgic-lan", runs);
        let link = cells[0].link();
        assert_eq!(collected.to_do_again(&cells, link), [(1, 1), (0, 0), (1, 2)]);
        assert_eq!(collected.to_do_again(&cells, Some("gige,rtt=1h")), [], "another link's turn");
        assert_eq!((collected.done(), collected.told_of_again()), (5, None));
        // It is not the figure that one is chosen by.
        let took = Duration::from_millis(3);
        collected.choose(1, 1, run(0.1, 0.2), took);
        collected.choose(0, 0, run(99.0, 0.02), took);
        let figure = |at: usize, turn: usize| collected.runs[at][turn].measured;
        assert_eq!([figure(1, 1), figure(0, 0)], [0.1, 9.0]);
        assert_eq!(collected.done(), 5);
        assert!(collected.told_of_again().is_some_and(|told| told.contains("2 runs were done twice")));
    }

    #[test]
    fn a_tenth_of_the_time_is_spent_so() {
        let (_, mut collected) = collected("dalgic-lan", vec![vec![run(9.0, 0.5)]]);
        collected.begun =
            Instant::now().checked_sub(Duration::from_secs(100)).expect("a machine that has run for as long");
        collected.choose(0, 0, run(9.0, 0.4), Duration::from_secs(9));
        assert!(collected.has_time());
        collected.choose(0, 0, run(9.0, 0.3), Duration::from_secs(60));
        assert!(!collected.has_time());
    }

    #[test]
    fn work_that_several_cells_share_is_done_once() {
        let (cells, collected) = collected("lu-login", vec![vec![run(9.0, 0.5)]]);
        assert_eq!(collected.to_do_again(&cells, cells[0].link()), []);
    }
}
