//! What a study has measured so far, and which runs are worth nothing because this machine, a guest of a host, had to wait for others.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::probe::Run;
use super::result::LinkFacts;
use super::selection::Aimed;
use super::versions::Identity;
use crate::LabError;

/// A run is not what this machine does if its host gave more than this share of the processor time that it wanted to others meanwhile.
const STOLEN_MAX: f64 = 0.05;
/// What runs may take that are done again for that, as a part of the time of all others so far, where nobody says how long; one may always.
const AGAIN_MAX: f64 = 0.05;

/// What is collected over a study.
pub(super) struct Collected {
    /// Of each cell, by its turns.
    pub(super) runs: Vec<Vec<Run>>,
    /// How long those took that were done first.
    took: Vec<Vec<Duration>>,
    pub(super) links: BTreeMap<String, LinkFacts>,
    pub(super) targets: BTreeMap<String, Identity>,
    /// What each link may have for runs that are done again; none: [`AGAIN_MAX`].
    patience: Option<Duration>,
    /// Runs that were done again, each as its cell, its turn and how long it took.
    again: Vec<(usize, usize, Duration)>,
    /// The runs of which not the first time counts.
    replaced: BTreeSet<(usize, usize)>,
    /// Why the first of them failed that did.
    failure: Option<String>,
}

impl Collected {
    /// Nothing yet of so many cells.
    pub(super) fn of(cells: usize, patience: Option<Duration>) -> Self {
        Self {
            runs: (0..cells).map(|_| Vec::new()).collect(),
            took: vec![Vec::new(); cells],
            links: BTreeMap::new(),
            targets: BTreeMap::new(),
            patience,
            again: Vec::new(),
            replaced: BTreeSet::new(),
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

    /// Of the runs over this link that are worth nothing, the one that is to be done again next, as its cell and turn, where there is time
    /// for it: the one that was most seldom, and of those the one that most was stolen from.
    pub(super) fn next_again(&self, cells: &[Aimed], link: Option<&str>) -> Option<(usize, usize)> {
        let own: BTreeSet<usize> = (0..cells.len()).filter(|at| cells[*at].link() == link).collect();
        let spent: Duration =
            self.again.iter().filter(|(at, ..)| own.contains(at)).map(|again| again.2).sum();
        let has_time = |(at, turn, _): &(usize, usize, f64)| match self.patience {
            Some(patience) => spent + self.took[*at][*turn] <= patience,
            None => {
                let all: Duration = self.took.iter().flatten().sum();
                let again: Duration = self.again.iter().map(|again| again.2).sum();
                let is_first = self.times(*at, *turn) == 0;
                is_first && (self.again.is_empty() || again + self.took[*at][*turn] <= all.mul_f64(AGAIN_MAX))
            }
        };
        let worthless = self.worthless(cells).into_iter().filter(|run| own.contains(&run.0) && has_time(run));
        let next = worthless.min_by(|one, other| {
            let times = |run: &(usize, usize, f64)| self.times(run.0, run.1);
            times(one).cmp(&times(other)).then(other.2.total_cmp(&one.2))
        });
        next.map(|(at, turn, _)| (at, turn))
    }

    /// How often a run was done again.
    fn times(&self, at: usize, turn: usize) -> usize {
        self.again.iter().filter(|again| (again.0, again.1) == (at, turn)).count()
    }

    /// Runs that count as it is and are worth nothing, each as its cell, its turn and what was stolen.
    fn worthless(&self, cells: &[Aimed]) -> Vec<(usize, usize, f64)> {
        let mut found = Vec::new();
        for (at, (aimed, runs)) in cells.iter().zip(&self.runs).enumerate() {
            let stolen = runs.iter().map(|run| run.shares.stolen_for_sure()).enumerate();
            let is_worthless = |stolen: f64| aimed.cell.probe.is_of_its_own() && stolen > STOLEN_MAX;
            found.extend(stolen.filter(|run| is_worthless(run.1)).map(|(turn, stolen)| (at, turn, stolen)));
        }
        found
    }

    /// Of a run and the one that was done again for it, that one in which others had less counts; the first one where the second
    /// has failed.
    pub(super) fn choose(&mut self, at: usize, turn: usize, again: Result<Run, LabError>, took: Duration) {
        // What fails at once takes its share of the patience all the same.
        let counted = if again.is_ok() { took } else { took.max(self.took[at][turn]) };
        self.again.push((at, turn, counted));
        let first = &mut self.runs[at][turn];
        match again {
            Ok(again) if again.shares.stolen < first.shares.stolen => {
                *first = again;
                self.replaced.insert((at, turn));
            }
            Ok(_) => {}
            Err(error) => {
                self.failure.get_or_insert_with(|| error.to_string());
            }
        }
    }

    /// What is to be said of runs that were done again.
    pub(super) fn told_of_again(&self, cells: &[Aimed]) -> Option<String> {
        let percent = STOLEN_MAX * 100.0;
        let worthless = self.worthless(cells).len();
        if self.again.is_empty() && worthless == 0 {
            return None;
        }
        let runs: BTreeSet<(usize, usize)> = self.again.iter().map(|again| (again.0, again.1)).collect();
        let failed =
            self.failure.as_ref().map(|failure| format!(" One that was done again failed: {failure}."));
        Some(format!(
            "Runs in which the host gave more than {percent:.0} % of the processor time that this machine wanted to others: {} were done again behind all others \
             of their link, {} times in all; of all times that one counts in which it was least, whatever its figure, which was not the first in {}. \
             {worthless} of those that count are such runs.{}",
            runs.len(),
            self.again.len(),
            self.replaced.len(),
            failed.unwrap_or_default()
        ))
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
    fn collected(name: &str, runs: Vec<Vec<Run>>, patience: Option<Duration>) -> (Vec<Aimed>, Collected) {
        let cells = (study(name).expect("a study").cells)(1);
        let cells: Vec<Aimed> = cells.into_iter().map(|cell| Aimed { cell, peer: None }).collect();
        let mut collected = Collected::of(cells.len(), patience);
        for (at, runs) in runs.into_iter().enumerate() {
            runs.into_iter().for_each(|run| collected.add(at, run, TOOK));
        }
        (cells, collected)
    }

    const TOOK: Duration = Duration::from_secs(10);

    #[test]
    fn what_most_was_stolen_from_is_done_again_first() {
        let runs =
            vec![vec![run(9.0, 0.06), run(9.0, 0.05)], vec![run(1.0, 0.0), run(5.0, 0.3), run(5.0, 0.051)]];
        let (cells, mut collected) = collected("dalgic-lan", runs, Some(TOOK * 4));
        let link = cells[0].link();
        assert_eq!(collected.next_again(&cells, Some("gige,rtt=1h")), None, "another link's turn");
        let told = collected.told_of_again(&cells).unwrap_or_default();
        assert!(told.contains(": 0 were done again") && told.contains(" 3 of those that count"), "{told}");
        // It is not the figure that one is chosen by; who has had a turn is behind the others.
        let again = [
            ((1, 1), Ok(run(0.1, 0.2))),
            ((0, 0), Ok(run(99.0, 0.07))),
            ((1, 2), Err(LabError::Panicked)),
            ((1, 1), Ok(run(0.2, 0.01))),
        ];
        for (expected, again) in again {
            assert_eq!(collected.next_again(&cells, link), Some(expected));
            collected.choose(expected.0, expected.1, again, TOOK);
        }
        assert_eq!(collected.next_again(&cells, link), None, "there is no time left");
        let figure = |at: usize, turn: usize| collected.runs[at][turn].measured;
        assert_eq!([figure(1, 1), figure(0, 0), figure(1, 2)], [0.2, 9.0, 5.0]);
        assert_eq!(collected.done(), 5);
        let told = collected.told_of_again(&cells).unwrap_or_default();
        assert!(told.contains(": 3 were done again") && told.contains(" 4 times in all"), "{told}");
        assert!(told.contains("not the first in 1. 2 of those that count"), "{told}");
        assert!(told.contains("done again failed: "), "{told}");
    }

    #[test]
    fn a_good_run_is_not_done_again() {
        let (cells, mut collected) =
            collected("dalgic-lan", vec![vec![run(9.0, 0.5), run(9.0, 0.05)]], Some(TOOK * 100));
        collected.choose(0, 0, Ok(run(9.0, 0.04)), TOOK);
        assert_eq!(collected.next_again(&cells, cells[0].link()), None);
        let (cells, collected) = self::collected("dalgic-lan", vec![vec![run(9.0, 0.05)]], None);
        assert_eq!(collected.told_of_again(&cells), None);
    }

    #[test]
    fn a_twentieth_of_the_time_is_spent_so_where_nobody_says_how_much_and_once_on_each() {
        // 40 runs of 10 s.
        let runs = vec![(0..40).map(|_| run(9.0, 0.5)).collect()];
        let (cells, mut collected) = collected("dalgic-lan", runs, None);
        for turn in 0..2 {
            assert_eq!(collected.next_again(&cells, cells[0].link()), Some((0, turn)));
            collected.choose(0, turn, Ok(run(9.0, 0.6)), TOOK);
        }
        assert_eq!(collected.next_again(&cells, cells[0].link()), None);
        // And one where there are few, but that once.
        let (cells, mut few) = self::collected("dalgic-lan", vec![vec![run(9.0, 0.5)]], None);
        assert_eq!(few.next_again(&cells, cells[0].link()), Some((0, 0)));
        few.choose(0, 0, Ok(run(9.0, 0.6)), Duration::ZERO);
        assert_eq!(few.next_again(&cells, cells[0].link()), None);
        // What fails at once is not tried for ever.
        let (cells, mut failing) = self::collected("dalgic-lan", vec![vec![run(9.0, 0.5)]], Some(TOOK * 3));
        for _ in 0..3 {
            assert_eq!(failing.next_again(&cells, cells[0].link()), Some((0, 0)));
            failing.choose(0, 0, Err(LabError::Panicked), Duration::ZERO);
        }
        assert_eq!(failing.next_again(&cells, cells[0].link()), None);
    }

    #[test]
    fn work_that_several_cells_share_is_done_once() {
        let (cells, collected) = collected("lu-login", vec![vec![run(9.0, 0.5)]], Some(TOOK * 100));
        assert_eq!(collected.next_again(&cells, cells[0].link()), None);
    }
}
