//! Runs of a study that did not come: how many of each cell and why, and who is left out of it.

use std::collections::BTreeMap;

use super::peer::Peer;
use super::result::Failed;
use super::selection::Aimed;

/// Of all cells of a study, by their places.
pub(super) struct Failures {
    /// Runs that each is to have.
    planned: Vec<usize>,
    /// Of these, those that will not come.
    missed: Vec<usize>,
    /// How many runs of a cell have failed, also of those beyond the plan, and why the first one did.
    of: BTreeMap<usize, (usize, String)>,
    /// Targets that nobody has asked for, and why each is left out.
    left_out: Vec<(Peer, String)>,
}

impl Failures {
    /// None yet of cells that are to have so many runs.
    pub(super) fn of(planned: Vec<usize>) -> Self {
        Self { missed: vec![0; planned.len()], planned, of: BTreeMap::new(), left_out: Vec::new() }
    }

    /// Nothing has failed.
    pub(super) fn is_empty(&self) -> bool {
        self.of.is_empty() && self.left_out.is_empty()
    }

    /// Counts a run of a cell. The cell keeps what it has, and has one run less where this one was planned.
    pub(super) fn add(&mut self, at: usize, reason: &str, is_planned: bool) {
        self.missed[at] += usize::from(is_planned);
        self.of.entry(at).or_insert_with(|| (0, reason.to_owned())).0 += 1;
    }

    /// Gives up what a cell has not had of its runs, of which it has so many.
    pub(super) fn give_up(&mut self, at: usize, had: usize, reason: &str) {
        let left = self.planned[at].saturating_sub(had + self.missed[at]);
        if left > 0 {
            self.missed[at] += left;
            self.of.entry(at).or_insert_with(|| (0, reason.to_owned())).0 += left;
        }
    }

    /// Leaves a target out that nobody has asked for, with all its cells.
    pub(super) fn leave_out(&mut self, peer: Peer, reason: &str) {
        if !self.is_left_out(Some(peer)) {
            self.left_out.push((peer, reason.to_owned()));
        }
    }

    /// Whether a target is left out; ours never is.
    pub(super) fn is_left_out(&self, peer: Option<Peer>) -> bool {
        self.left_out.iter().any(|left_out| Some(left_out.0) == peer)
    }

    /// Those that are left out, and why.
    pub(super) fn left_out(&self) -> impl Iterator<Item = (Peer, &str)> {
        self.left_out.iter().map(|(peer, reason)| (*peer, reason.as_str()))
    }

    /// How much of a cell's plan is over, of which it has had so many runs: nothing more comes of who is left out.
    pub(super) fn done(&self, at: usize, peer: Option<Peer>, had: usize) -> usize {
        let over = had + self.missed[at];
        if self.is_left_out(peer) { over.max(self.planned[at]) } else { over }
    }

    /// All runs that there were to be.
    pub(super) fn planned(&self) -> usize {
        self.planned.iter().sum()
    }

    /// Whether a cell that has had so many runs was to have more, and nothing but the end of the study is the reason.
    pub(super) fn is_short(&self, at: usize, had: usize) -> bool {
        had + self.missed[at] < self.planned[at]
    }

    /// The cells that have lost runs, as results name them; those without a figure are told apart by their number of runs.
    pub(super) fn told(&self, cells: &[Aimed], had: impl Fn(usize) -> usize) -> Vec<Failed> {
        let failed = self.of.iter().filter(|(at, _)| !self.is_left_out(cells[**at].peer));
        let told = failed.map(|(at, (runs, reason))| {
            let cell = &cells[*at].cell;
            let parameters = cell.parameters.iter().map(|(name, value)| ((*name).to_owned(), value.clone()));
            Failed {
                parameters: parameters.collect(),
                link: cell.link.clone(),
                runs: *runs,
                is_measured: had(*at) > 0,
                reason: reason.clone(),
            }
        });
        told.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::study::study;

    fn cells(peers: &[Option<Peer>]) -> Vec<Aimed> {
        let cells = (study("dalgic-lan").expect("a study").cells)(1).into_iter();
        cells.zip(peers).map(|(cell, peer)| Aimed { cell, peer: *peer }).collect()
    }

    #[test]
    fn a_cell_keeps_the_runs_that_it_has_and_its_first_reason() {
        let cells = cells(&[None, None, None]);
        let mut failures = Failures::of(vec![3, 3, 3]);
        assert!(failures.is_empty() && failures.is_short(0, 2) && !failures.is_short(0, 3));
        failures.add(0, "the session was lost", true);
        failures.add(0, "it is still lost", true);
        failures.add(1, "one more", false);
        // One of three has come, and three of three.
        assert!(!failures.is_short(0, 1) && !failures.is_short(1, 3) && failures.is_short(1, 2));
        assert_eq!((failures.done(0, None, 1), failures.done(1, None, 3), failures.planned()), (3, 3, 9));
        let told = failures.told(&cells, |at| [1, 3, 0][at]);
        let told: Vec<_> = told.iter().map(|one| (one.runs, one.is_measured, &*one.reason)).collect();
        assert_eq!(told, [(2, true, "the session was lost"), (1, true, "one more")]);
    }

    #[test]
    fn what_is_given_up_comes_to_an_end() {
        let cells = cells(&[None, None, None]);
        let mut failures = Failures::of(vec![3, 3, 3]);
        failures.add(0, "lost", true);
        for (at, had) in [(0, 0), (1, 1), (2, 3)] {
            failures.give_up(at, had, "there is no target");
        }
        let told = failures.told(&cells, |at| [0, 1, 3][at]);
        let told: Vec<_> = told.iter().map(|one| (one.runs, one.is_measured, &*one.reason)).collect();
        // The third one has all that it is to have.
        assert_eq!(told, [(3, false, "lost"), (2, true, "there is no target")]);
        let done: usize =
            [0, 1, 3].into_iter().enumerate().map(|(at, had)| failures.done(at, None, had)).sum();
        assert_eq!(done, failures.planned());
    }

    #[test]
    fn who_is_left_out_has_nothing_in_the_result() {
        let cells = cells(&[None, Some(Peer::Tgtd), Some(Peer::Istgt)]);
        let mut failures = Failures::of(vec![3, 3, 3]);
        failures.add(1, "before", true);
        failures.leave_out(Peer::Tgtd, "it has ended");
        failures.leave_out(Peer::Tgtd, "again");
        assert_eq!(failures.left_out().collect::<Vec<_>>(), [(Peer::Tgtd, "it has ended")]);
        assert!(failures.is_left_out(Some(Peer::Tgtd)) && !failures.is_left_out(None));
        assert!(failures.told(&cells, |_| 0).is_empty() && !failures.is_empty());
        assert_eq!(failures.done(1, Some(Peer::Tgtd), 1), 3);
    }
}
