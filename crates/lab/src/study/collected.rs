//! What a study has measured so far, and which runs are worth nothing because this machine, a guest of a host, had to wait for others.

use std::collections::BTreeMap;
use std::time::Duration;

use super::probe::Run;
use super::result::LinkFacts;
use super::selection::Aimed;
use super::versions::Identity;

/// A run is not what this machine does if its host gave more than this share of the processor time that it wanted to others meanwhile.
const STOLEN_MAX: f64 = 0.05;
/// What runs may take that are done again for that, as a part of the time of all others.
const AGAIN_MAX: f64 = 0.05;

/// What is collected over a study.
pub(super) struct Collected {
    /// Of each cell, by its turns.
    pub(super) runs: Vec<Vec<Run>>,
    /// How long those took that were done first.
    took: Vec<Vec<Duration>>,
    pub(super) links: BTreeMap<String, LinkFacts>,
    pub(super) targets: BTreeMap<String, Identity>,
    /// Runs that were done again, those of them that count, and how long all took.
    again: usize,
    replaced: usize,
    again_for: Duration,
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
            again_for: Duration::ZERO,
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
            let stolen = runs.iter().map(|run| run.shares.stolen).enumerate();
            let stolen = stolen.filter(|(_, stolen)| is_concerned(aimed) && *stolen > STOLEN_MAX);
            found.extend(stolen.map(|(turn, stolen)| (at, turn, stolen)));
        }
        found.sort_by(|one, other| other.2.total_cmp(&one.2));
        found.into_iter().map(|(at, turn, _)| (at, turn)).collect()
    }

    /// Whether there is time to do a run again, which may take as long as it did first.
    pub(super) fn has_time_for(&self, at: usize, turn: usize) -> bool {
        let all: Duration = self.took.iter().flatten().sum();
        self.again_for + self.took[at][turn] <= all.mul_f64(AGAIN_MAX)
    }

    /// Of a run and the one that was done again for it, that one in which others had less counts; nothing of one that failed.
    pub(super) fn choose(&mut self, at: usize, turn: usize, again: Option<Run>, took: Duration) {
        let first = &mut self.runs[at][turn];
        if let Some(again) = again.filter(|again| again.shares.stolen < first.shares.stolen) {
            *first = again;
            self.replaced += 1;
        }
        self.again += 1;
        self.again_for += took;
    }

    /// What is to be said of runs that were done again.
    pub(super) fn told_of_again(&self) -> Option<String> {
        let percent = STOLEN_MAX * 100.0;
        (self.again > 0).then(|| {
            format!(
                "Runs done again behind all others of their link: {}, since the host had given more than {percent:.0} % of the processor time that this machine wanted to \
                 others meanwhile. Of the two that one counts in which it was less, whatever its figure, which was the second one in {}.",
                self.again, self.replaced
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
        collected.choose(1, 1, Some(run(0.1, 0.2)), took);
        collected.choose(0, 0, Some(run(99.0, 0.06)), took);
        collected.choose(1, 2, None, took);
        let figure = |at: usize, turn: usize| collected.runs[at][turn].measured;
        assert_eq!([figure(1, 1), figure(0, 0), figure(1, 2)], [0.1, 9.0, 5.0]);
        assert_eq!(collected.done(), 5);
        let told = collected.told_of_again().unwrap_or_default();
        assert!(told.contains("of their link: 3,") && told.ends_with("the second one in 1."), "{told}");
    }

    #[test]
    fn a_twentieth_of_the_time_is_spent_so() {
        // 40 runs of 10 s.
        let runs = vec![(0..40).map(|_| run(9.0, 0.5)).collect()];
        let (_, mut collected) = collected("dalgic-lan", runs);
        for _ in 0..2 {
            assert!(collected.has_time_for(0, 0));
            collected.choose(0, 0, None, Duration::from_secs(10));
        }
        assert!(!collected.has_time_for(0, 0));
    }

    #[test]
    fn work_that_several_cells_share_is_done_once() {
        let (cells, collected) = collected("lu-login", vec![vec![run(9.0, 0.5)]]);
        assert_eq!(collected.to_do_again(&cells, cells[0].link()), []);
    }
}
