//! What a study has measured so far, which runs are worth nothing because this machine, a guest of a host, had to wait for others, and
//! which cells are to have more of them.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::failures::Failures;
use super::probe::Run;
use super::result::LinkFacts;
use super::selection::Aimed;
use super::versions::Identity;

/// A run is not what this machine does if its host gave more than this share of the processor time that it wanted to others meanwhile.
pub(super) const STOLEN_MAX: f64 = 0.05;
/// What runs may take that are done again for that, as a part of the time of all others so far, where nobody says how long; one may always.
const AGAIN_MAX: f64 = 0.05;

/// So many more runs has a cell that nobody can explain by those it has: one that was held up for a moment, or whose echo was, is then
/// not in the middle any more.
const MORE: usize = 2;
/// What these may take, as a part of the time of all runs so far, where nobody says how long; those of one cell may always.
const MORE_MAX: f64 = 0.1;

/// What is collected over a study.
pub(super) struct Collected {
    /// Of each cell, in order.
    pub(super) runs: Vec<Vec<Run>>,
    /// In which turn each of them was done: some turns may have failed.
    turns: Vec<Vec<usize>>,
    /// How long those took that were done first.
    took: Vec<Vec<Duration>>,
    pub(super) links: BTreeMap<String, LinkFacts>,
    pub(super) targets: BTreeMap<String, Identity>,
    /// Runs that did not come.
    pub(super) failures: Failures,
    /// Of what took part in virtual machines.
    pub(super) guest_versions: BTreeMap<String, String>,
    /// What each link may have for runs that are done again; none: [`AGAIN_MAX`].
    patience: Option<Duration>,
    /// Runs that were done again, each as its cell, its place and how long it took.
    again: Vec<(usize, usize, Duration)>,
    /// Cells that have had more runs, and how long these took of each.
    more: BTreeMap<usize, Vec<Duration>>,
    /// The runs of which not the first time counts.
    replaced: BTreeSet<(usize, usize)>,
}

impl Collected {
    /// Nothing yet of cells that are to have so many runs.
    pub(super) fn of(planned: Vec<usize>, patience: Option<Duration>) -> Self {
        let cells = planned.len();
        Self {
            runs: (0..cells).map(|_| Vec::new()).collect(),
            turns: vec![Vec::new(); cells],
            took: vec![Vec::new(); cells],
            links: BTreeMap::new(),
            targets: BTreeMap::new(),
            failures: Failures::of(planned),
            guest_versions: BTreeMap::new(),
            patience,
            again: Vec::new(),
            more: BTreeMap::new(),
            replaced: BTreeSet::new(),
        }
    }

    /// Takes the run of a cell in a turn.
    pub(super) fn add(&mut self, at: usize, turn: usize, run: Run, took: Duration) {
        self.runs[at].push(run);
        self.turns[at].push(turn);
        self.took[at].push(took);
    }

    /// Nothing was measured, and nothing has failed.
    pub(super) fn is_untouched(&self) -> bool {
        self.failures.is_empty() && self.runs.iter().all(Vec::is_empty)
    }

    /// Runs that are over, each once, and those that will not come.
    pub(super) fn done(&self, cells: &[Aimed]) -> usize {
        let done = |(at, runs): (usize, &Vec<Run>)| self.failures.done(at, cells[at].peer, runs.len());
        self.runs.iter().enumerate().map(done).sum()
    }

    /// Whether a cell is to have more runs by the plan.
    pub(super) fn is_short(&self, at: usize) -> bool {
        self.failures.is_short(at, self.runs[at].len())
    }

    /// In which turn a cell has had a run.
    pub(super) fn turn(&self, at: usize, place: usize) -> usize {
        self.turns[at][place]
    }

    /// A turn in which a cell has had no run.
    pub(super) fn next_turn(&self, at: usize) -> usize {
        self.turns[at].iter().max().map_or(0, |turn| turn + 1)
    }

    /// Gives up what cells have not had of their runs by the plan.
    pub(super) fn give_up(&mut self, cells: impl Iterator<Item = usize>, reason: &str) {
        cells.for_each(|at| self.failures.give_up(at, self.runs[at].len(), reason));
    }

    /// Of the runs over this link that are worth nothing, the one that is to be done again next, as its cell and place, where there is time
    /// for it: the one that was most seldom, and of those the one that most was stolen from.
    pub(super) fn next_again(&self, cells: &[Aimed], link: Option<&str>) -> Option<(usize, usize)> {
        let own: BTreeSet<usize> = (0..cells.len()).filter(|at| cells[*at].link() == link).collect();
        let spent = self.spent(cells, link);
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

    /// The cell of this link that is to have one more run next, where there is time for it: of those of which `wants_more` tells how much
    /// they want it, the one that does most. Whoever has had one more has all of [`MORE`].
    pub(super) fn next_more(
        &self,
        cells: &[Aimed],
        link: Option<&str>,
        wants_more: impl Fn(&Aimed, &[Run]) -> Option<f64>,
    ) -> Option<usize> {
        let is_own = |at: &usize| cells[*at].link() == link && cells[*at].cell.probe.is_of_its_own();
        let begun = self.more.iter().find(|(at, took)| is_own(at) && took.len() < MORE);
        if let Some((at, _)) = begun {
            return Some(*at);
        }
        let longest = |at: usize| self.took[at].iter().max().copied().unwrap_or_default();
        let has_time = |at: &usize| {
            let next = longest(*at) * MORE as u32;
            match self.patience {
                Some(patience) => self.spent(cells, link) + next <= patience,
                None => {
                    let all: Duration = self.took.iter().flatten().sum();
                    let more: Duration = self.more.values().flatten().sum();
                    self.more.is_empty() || more + next <= all.mul_f64(MORE_MAX)
                }
            }
        };
        let may = |at: &usize| {
            let is_left_out = self.failures.is_left_out(cells[*at].peer);
            is_own(at)
                && !is_left_out
                && !self.more.contains_key(at)
                && !self.runs[*at].is_empty()
                && has_time(at)
        };
        let wanting =
            (0..cells.len()).filter(may).filter_map(|at| Some((at, wants_more(&cells[at], &self.runs[at])?)));
        wanting.max_by(|one, other| one.1.total_cmp(&other.1)).map(|(at, _)| at)
    }

    /// What went into runs of this link that were done again or were more.
    fn spent(&self, cells: &[Aimed], link: Option<&str>) -> Duration {
        let is_own = |at: usize| cells[at].link() == link;
        let again = self.again.iter().filter(|again| is_own(again.0)).map(|again| again.2);
        let more = self.more.iter().filter(|more| is_own(*more.0)).flat_map(|more| more.1.iter().copied());
        again.chain(more).sum()
    }

    /// Takes one more run of a cell, which counts as all others; where it has failed, the cell keeps what it has.
    pub(super) fn add_more(&mut self, at: usize, turn: usize, run: Option<Run>, took: Duration) {
        // What fails at once takes its share of the time all the same.
        let first = self.took[at].first().copied().unwrap_or_default();
        self.more.entry(at).or_default().push(if run.is_some() { took } else { took.max(first) });
        if let Some(run) = run {
            self.add(at, turn, run, took);
        }
    }

    /// How often a run was done again.
    fn times(&self, at: usize, turn: usize) -> usize {
        self.again.iter().filter(|again| (again.0, again.1) == (at, turn)).count()
    }

    /// Runs that count as it is and are worth nothing, each as its cell, its place and what was stolen.
    fn worthless(&self, cells: &[Aimed]) -> Vec<(usize, usize, f64)> {
        let mut found = Vec::new();
        for (at, (aimed, runs)) in cells.iter().zip(&self.runs).enumerate() {
            if self.failures.is_left_out(aimed.peer) {
                continue;
            }
            let stolen = runs.iter().map(Run::stolen_for_sure).enumerate();
            let is_worthless = |stolen: f64| aimed.cell.probe.is_of_its_own() && stolen > STOLEN_MAX;
            found.extend(stolen.filter(|run| is_worthless(run.1)).map(|(turn, stolen)| (at, turn, stolen)));
        }
        found
    }

    /// Of a run and the one that was done again for it, that one in which others had less counts; the first one where the second
    /// has failed.
    pub(super) fn choose(&mut self, at: usize, place: usize, again: Option<Run>, took: Duration) {
        // What fails at once takes its share of the patience all the same.
        let counted = if again.is_some() { took } else { took.max(self.took[at][place]) };
        self.again.push((at, place, counted));
        let first = &mut self.runs[at][place];
        if let Some(again) = again.filter(|again| less_was_stolen(again, first)) {
            *first = again;
            self.replaced.insert((at, place));
        }
    }

    /// How many cells had more runs than others.
    pub(super) fn with_more_runs(&self) -> usize {
        self.more.len()
    }

    /// What is to be said of runs that cells had more than others.
    pub(super) fn told_of_more(&self) -> Option<String> {
        let of = self.with_more_runs();
        (of > 0).then(|| {
            format!(
                "As far as there was time, up to {MORE} more runs were given to what nobody could explain by its first ones but by an echo that was held up, and to what fell short of the model in \
                 studies that are held to it, and not to what was as near to it on the other side: {of} of all cells; the median of all runs of a cell counts."
            )
        })
    }

    /// What is to be said of runs that were done again.
    pub(super) fn told_of_again(&self, cells: &[Aimed]) -> Option<String> {
        let percent = STOLEN_MAX * 100.0;
        let worthless = self.worthless(cells).len();
        if self.again.is_empty() && worthless == 0 {
            return None;
        }
        let runs: BTreeSet<(usize, usize)> = self.again.iter().map(|again| (again.0, again.1)).collect();
        Some(format!(
            "Runs in which, or in whose echo, the host gave more than {percent:.0} % of the processor time that this machine wanted to others: {} were done again behind all others \
             of their link, {} times in all; of all times that one counts in which it was least, whatever its figure, which was not the first in {}. \
             {worthless} of those that count are such runs.",
            runs.len(),
            self.again.len(),
            self.replaced.len()
        ))
    }
}

/// Whether less was stolen from one than from the other: what is sure first, and the rest where that is the same.
fn less_was_stolen(one: &Run, other: &Run) -> bool {
    let stolen = |run: &Run| (run.stolen_for_sure(), run.stolen());
    stolen(one) < stolen(other)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::Shares;
    use crate::study::echo::Exchanged;
    use crate::study::study;

    fn run(measured: f64, stolen: f64) -> Run {
        let shares = Shares { stolen, is_stolen_sure: true, ..Shares::default() };
        Run { shares, ..Run::of(measured, None) }
    }

    /// The cells of a study, and runs of the first of them.
    fn collected(name: &str, runs: Vec<Vec<Run>>, patience: Option<Duration>) -> (Vec<Aimed>, Collected) {
        let cells = (study(name).expect("a study").cells)(1);
        let cells: Vec<Aimed> = cells.into_iter().map(|cell| Aimed { cell, peer: None }).collect();
        let mut collected = Collected::of(vec![3; cells.len()], patience);
        for (at, runs) in runs.into_iter().enumerate() {
            runs.into_iter().enumerate().for_each(|(turn, run)| collected.add(at, turn, run, TOOK));
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
            ((1, 1), Some(run(0.1, 0.2))),
            ((0, 0), Some(run(99.0, 0.07))),
            ((1, 2), None),
            ((1, 1), Some(run(0.2, 0.01))),
        ];
        for (expected, again) in again {
            assert_eq!(collected.next_again(&cells, link), Some(expected));
            collected.choose(expected.0, expected.1, again, TOOK);
        }
        assert_eq!(collected.next_again(&cells, link), None, "there is no time left");
        let figure = |at: usize, turn: usize| collected.runs[at][turn].measured;
        assert_eq!([figure(1, 1), figure(0, 0), figure(1, 2)], [0.2, 9.0, 5.0]);
        assert_eq!(collected.done(&cells), 5);
        let told = collected.told_of_again(&cells).unwrap_or_default();
        assert!(told.contains(": 3 were done again") && told.contains(" 4 times in all"), "{told}");
        assert!(told.contains("not the first in 1. 2 of those that count"), "{told}");
    }

    #[test]
    fn who_wants_more_has_two_more_and_all_of_them_count() {
        let runs = vec![vec![run(9.0, 0.0)], vec![run(1.0, 0.0)], vec![run(2.0, 0.0)], vec![run(3.0, 0.0)]];
        let (cells, mut collected) = collected("dalgic-lan", runs, Some(TOOK * 4));
        let link = cells[0].link();
        // The worst one first.
        let is_low = |_: &Aimed, runs: &[Run]| (runs[0].measured < 5.0).then(|| -runs[0].measured);
        assert_eq!(collected.next_more(&cells, Some("gige,rtt=1h"), is_low), None, "another link's turn");
        assert_eq!(collected.told_of_more(), None);
        // Who has begun goes on, whatever comes, and who has failed keeps what there is.
        for (expected, more) in
            [(1, Some(run(9.0, 0.0))), (1, Some(run(8.0, 0.0))), (2, None), (2, Some(run(7.0, 0.0)))]
        {
            assert_eq!(collected.next_more(&cells, link, is_low), Some(expected));
            collected.add_more(expected, 3, more, TOOK);
        }
        assert_eq!(collected.next_more(&cells, link, is_low), None, "there is no time left");
        let figures = |at: usize| collected.runs[at].iter().map(|run| run.measured).collect::<Vec<_>>();
        assert_eq!((figures(1), figures(2), figures(3)), (vec![1.0, 9.0, 8.0], vec![2.0, 7.0], vec![3.0]));
        let told = collected.told_of_more().unwrap_or_default();
        assert!(told.contains("on the other side: 2 of all cells"), "{told}");
        assert_eq!(collected.with_more_runs(), 2);
        // One that was held up is done again as all others.
        let (cells, mut collected) = self::collected("dalgic-lan", vec![vec![run(1.0, 0.0)]], None);
        assert_eq!(collected.next_more(&cells, cells[0].link(), is_low), Some(0), "one always may");
        collected.add_more(0, 3, Some(run(1.0, 0.5)), TOOK);
        assert_eq!(collected.next_again(&cells, cells[0].link()), Some((0, 1)));
        let shared = self::collected("lu-login", vec![vec![run(1.0, 0.0)]], None);
        assert_eq!(shared.1.next_more(&shared.0, shared.0[0].link(), is_low), None, "work of several cells");
    }

    #[test]
    fn more_runs_take_a_tenth_of_the_time_where_nobody_says_how_much() {
        // 480 s: 40 of 500 are not more than a tenth, and 60 of 520 are.
        let first = (0..24).map(|_| vec![run(1.0, 0.0), run(1.0, 0.0)]).collect();
        let (cells, mut collected) = collected("dalgic-lan", first, None);
        let mut had = BTreeSet::new();
        while let Some(at) = collected.next_more(&cells, cells[0].link(), |_, _| Some(0.0)) {
            collected.add_more(at, 3, Some(run(1.0, 0.0)), TOOK);
            had.insert(at);
        }
        assert_eq!((had.len(), collected.done(&cells)), (2, 48 + 2 * MORE));
    }

    #[test]
    fn a_run_whose_echo_was_held_up_is_done_again() {
        let exchanged = Exchanged { header: TOOK, read: None, write: None, asked: None, stolen: 0.3 };
        let held_up = Run { exchanged: Some(exchanged), ..run(9.0, 0.0) };
        let (cells, mut collected) = collected("dalgic-lan", vec![vec![held_up]], None);
        assert_eq!(collected.next_again(&cells, cells[0].link()), Some((0, 0)));
        collected.choose(0, 0, Some(run(1.0, 0.2)), TOOK);
        assert_eq!(collected.runs[0][0].measured, 1.0, "less was stolen of all together");
    }

    #[test]
    fn a_good_run_is_not_done_again() {
        let (cells, mut collected) =
            collected("dalgic-lan", vec![vec![run(9.0, 0.5), run(9.0, 0.05)]], Some(TOOK * 100));
        collected.choose(0, 0, Some(run(9.0, 0.04)), TOOK);
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
            collected.choose(0, turn, Some(run(9.0, 0.6)), TOOK);
        }
        assert_eq!(collected.next_again(&cells, cells[0].link()), None);
        // And one where there are few, but that once.
        let (cells, mut few) = self::collected("dalgic-lan", vec![vec![run(9.0, 0.5)]], None);
        assert_eq!(few.next_again(&cells, cells[0].link()), Some((0, 0)));
        few.choose(0, 0, Some(run(9.0, 0.6)), Duration::ZERO);
        assert_eq!(few.next_again(&cells, cells[0].link()), None);
        // What fails at once is not tried for ever.
        let (cells, mut failing) = self::collected("dalgic-lan", vec![vec![run(9.0, 0.5)]], Some(TOOK * 3));
        for _ in 0..3 {
            assert_eq!(failing.next_again(&cells, cells[0].link()), Some((0, 0)));
            failing.choose(0, 0, None, Duration::ZERO);
        }
        assert_eq!(failing.next_again(&cells, cells[0].link()), None);
    }

    #[test]
    fn work_that_several_cells_share_is_done_once() {
        let (cells, collected) = collected("lu-login", vec![vec![run(9.0, 0.5)]], Some(TOOK * 100));
        assert_eq!(collected.next_again(&cells, cells[0].link()), None);
    }
}
