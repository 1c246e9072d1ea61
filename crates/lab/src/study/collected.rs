//! What a study has measured so far, and which runs are worth nothing because this machine, a guest of a host, had to wait for others.

use std::collections::BTreeMap;
use std::time::Duration;

use super::probe::Run;
use super::result::LinkFacts;
use super::selection::Aimed;
use super::versions::Identity;
use crate::LabError;

/// A run is not what this machine does if its host gave more than this share of the processor time that it wanted to others meanwhile.
const STOLEN_MAX: f64 = 0.05;
/// What runs may take that are done again for that, as a part of the time of all others so far; one may always.
const AGAIN_MAX: f64 = 0.05;

/// What is collected over a study.
pub(super) struct Collected {
    /// Of each cell, by its turns.
    pub(super) runs: Vec<Vec<Run>>,
    /// How long those took that were done first.
    took: Vec<Vec<Duration>>,
    pub(super) links: BTreeMap<String, LinkFacts>,
    pub(super) targets: BTreeMap<String, Identity>,
    /// Runs that were done again, those of them that count, those for which no time was left, and how long all took.
    again: usize,
    replaced: usize,
    left: usize,
    again_for: Duration,
    /// Why the first of them failed that did.
    failure: Option<String>,
}

impl Collected {
    /// Nothing yet of so many cells.
    pub(super) fn of(cells: usize) -> Self {
        Self {
            runs: (0..cells).map(|_| Vec::new()).collect(),
            took: vec![Vec::new(); cells],
            links: BTreeMap::new(),
            targets: BTreeMap::new(),
            again: 0,
            replaced: 0,
            left: 0,
            again_for: Duration::ZERO,
            failure: None,
        }
    }

    /// Takes the next run of a cell.
    pub(super) fn add(&mut self, at: usize, run: Run, took: Duration) {
        self.runs[at].push(run);
        self.took[at].push(took);
    }

    /// Runs that are over, each once.
    pub(super) fn done(&self) -> usize {
        self.runs.iter().map(Vec::len).sum()
    }

    /// Runs over this link, each as its cell and turn, that are to be done again, those first that most was stolen from.
    pub(super) fn to_do_again(&self, cells: &[Aimed], link: Option<&str>) -> Vec<(usize, usize)> {
        let is_concerned = |aimed: &Aimed| aimed.link() == link && aimed.cell.probe.is_of_its_own();
        let mut found = Vec::new();
        for (at, (aimed, runs)) in cells.iter().zip(&self.runs).enumerate() {
            let stolen = runs.iter().map(|run| run.shares.stolen_for_sure()).enumerate();
            let stolen = stolen.filter(|(_, stolen)| is_concerned(aimed) && *stolen > STOLEN_MAX);
            found.extend(stolen.map(|(turn, stolen)| (at, turn, stolen)));
        }
        found.sort_by(|one, other| other.2.total_cmp(&one.2));
        found.into_iter().map(|(at, turn, _)| (at, turn)).collect()
    }

    /// Whether there is time to do a run again, which may take as long as it did first.
    pub(super) fn has_time_for(&self, at: usize, turn: usize) -> bool {
        let all: Duration = self.took.iter().flatten().sum();
        self.again == 0 || self.again_for + self.took[at][turn] <= all.mul_f64(AGAIN_MAX)
    }

    /// A run that was to be done again is left as it is.
    pub(super) fn leave(&mut self) {
        self.left += 1;
    }

    /// Of a run and the one that was done again for it, that one in which others had less counts; the first one where the second
    /// has failed.
    pub(super) fn choose(&mut self, at: usize, turn: usize, again: Result<Run, LabError>, took: Duration) {
        self.again += 1;
        self.again_for += took;
        let first = &mut self.runs[at][turn];
        match again {
            Ok(again) if again.shares.stolen < first.shares.stolen => {
                *first = again;
                self.replaced += 1;
            }
            Ok(_) => {}
            Err(error) => {
                self.failure.get_or_insert_with(|| error.to_string());
            }
        }
    }

    /// What is to be said of runs that were done again.
    pub(super) fn told_of_again(&self) -> Option<String> {
        let percent = STOLEN_MAX * 100.0;
        let Self { again, replaced, left, failure, .. } = self;
        let failed = failure.as_ref().map(|failure| format!(" A second run failed: {failure}."));
        (again + left > 0).then(|| {
            format!(
                "Runs in which the host gave more than {percent:.0} % of the processor time that this machine wanted to others: {}. Done again behind all others of their \
                 link: {again}; of the two that one counts in which it was less, whatever its figure, which was the second one in {replaced}.{}",
                again + left,
                failed.unwrap_or_default()
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
        let shares = Shares { stolen, is_stolen_sure: true, ..Shares::default() };
        Run { shares, ..Run::of(measured, None) }
    }

    /// The cells of a study, and runs of the first of them.
    fn collected(name: &str, runs: Vec<Vec<Run>>) -> (Vec<Aimed>, Collected) {
        let cells = (study(name).expect("a study").cells)(1);
        let cells: Vec<Aimed> = cells.into_iter().map(|cell| Aimed { cell, peer: None }).collect();
        let mut collected = Collected::of(cells.len());
        for (at, runs) in runs.into_iter().enumerate() {
            runs.into_iter().for_each(|run| collected.add(at, run, Duration::from_secs(10)));
        }
        (cells, collected)
    }

    #[test]
    fn what_most_was_stolen_from_is_done_again_first() {
        let runs =
            vec![vec![run(9.0, 0.06), run(9.0, 0.05)], vec![run(1.0, 0.0), run(5.0, 0.3), run(5.0, 0.051)]];
        let (cells, mut collected) = collected("dalgic-lan", runs);
        let link = cells[0].link();
        assert_eq!(collected.to_do_again(&cells, link), [(1, 1), (0, 0), (1, 2)]);
        assert_eq!(collected.to_do_again(&cells, Some("gige,rtt=1h")), [], "another link's turn");
        assert_eq!((collected.done(), collected.told_of_again()), (5, None));
        // It is not the figure that one is chosen by.
        let took = Duration::from_millis(3);
        collected.choose(1, 1, Ok(run(0.1, 0.2)), took);
        collected.choose(0, 0, Ok(run(99.0, 0.06)), took);
        collected.choose(1, 2, Err(LabError::Panicked), took);
        collected.leave();
        let figure = |at: usize, turn: usize| collected.runs[at][turn].measured;
        assert_eq!([figure(1, 1), figure(0, 0), figure(1, 2)], [0.1, 9.0, 5.0]);
        assert_eq!(collected.done(), 5);
        let told = collected.told_of_again().unwrap_or_default();
        assert!(told.contains("to others: 4.") && told.contains("of their link: 3;"), "{told}");
        assert!(told.contains("the second one in 1. A second run failed: "), "{told}");
    }

    #[test]
    fn a_twentieth_of_the_time_is_spent_so() {
        // 40 runs of 10 s.
        let runs = vec![(0..40).map(|_| run(9.0, 0.5)).collect()];
        let (_, mut collected) = collected("dalgic-lan", runs);
        for _ in 0..2 {
            assert!(collected.has_time_for(0, 0));
            collected.choose(0, 0, Ok(run(9.0, 0.6)), Duration::from_secs(10));
        }
        assert!(!collected.has_time_for(0, 0));
        // And one where there are few.
        let (_, mut few) = self::collected("dalgic-lan", vec![vec![run(9.0, 0.5)]]);
        assert!(few.has_time_for(0, 0));
        few.choose(0, 0, Ok(run(9.0, 0.6)), Duration::from_secs(10));
        assert!(!few.has_time_for(0, 0));
    }

    #[test]
    fn work_that_several_cells_share_is_done_once() {
        let (cells, collected) = collected("lu-login", vec![vec![run(9.0, 0.5)]]);
        assert_eq!(collected.to_do_again(&cells, cells[0].link()), []);
    }
}
