//! What a disk has told of its space (GET LBA STATUS), and what it is to be asked next.
//!
//! An answer ends where the unit likes, and the next question would begin there: on a long line that is one answer for each round trip.
//! So further questions are asked before, at the places where answers as long as those before would end. What no answer was
//! about is asked for again, and what two are about is taken from one of them.
//!
//! No I/O: blocks and answers come in.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;

use lunette_scsi::client::lba_status::LbaExtent;

/// Blocks in a row of which all hold nothing, or which have to be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Run {
    pub(super) blocks: Range<u64>,
    pub(super) is_empty: bool,
}

/// See the module's documentation.
#[derive(Debug)]
pub(super) struct SpaceMap {
    /// Behind the last block that matters.
    end: u64,
    /// What is known and not used up, in order; each begins where the last one ends.
    known: VecDeque<Run>,
    known_end: u64,
    /// Answers that begin behind a gap, by their first block.
    apart: BTreeMap<u64, Vec<Run>>,
    /// Questions that are under way: where they begin, and where their answers are expected to end.
    asked: BTreeMap<u64, u64>,
    /// How many blocks an answer is about and how many of them have to be read, as the last ones were.
    usual: Option<(u64, u64)>,
    /// The unit does not tell.
    is_silent: bool,
}

impl SpaceMap {
    /// Of blocks of which nothing is known.
    pub(super) fn new(blocks: &Range<u64>) -> SpaceMap {
        SpaceMap {
            end: blocks.end,
            known: VecDeque::new(),
            known_end: blocks.start,
            apart: BTreeMap::new(),
            asked: BTreeMap::new(),
            usual: None,
            is_silent: false,
        }
    }

    /// Where to ask next, if so many blocks more are wanted that have to be read.
    pub(super) fn question(&self, wanted_blocks: u64) -> Option<u64> {
        let expected = match self.usual {
            Some((_, data)) => (self.asked.len() as u64).saturating_mul(data),
            // The first answer shows how far they reach.
            None if self.asked.is_empty() => 0,
            None => return None,
        };
        if self.is_silent || expected >= wanted_blocks {
            return None;
        }
        let mut at = self.known_end;
        while at < self.end {
            let apart = self.apart.iter().filter_map(|(start, runs)| Some((*start, runs.last()?.blocks.end)));
            let asked = self.asked.iter().map(|(start, end)| (*start, *end));
            match apart.chain(asked).find(|(start, end)| (*start..*end).contains(&at)) {
                Some((_, end)) => at = end,
                None => return Some(at),
            }
        }
        None
    }

    /// It was asked there.
    pub(super) fn asked(&mut self, lba: u64) {
        let blocks = self.usual.map_or(1, |(blocks, _)| blocks);
        self.asked.insert(lba, lba.saturating_add(blocks.max(1)));
    }

    /// It has answered that: with extents that begin where it was asked, and join.
    pub(super) fn answered(&mut self, lba: u64, extents: &[LbaExtent]) {
        self.asked.remove(&lba);
        if self.is_silent {
            return;
        }
        let mut runs: Vec<Run> = Vec::new();
        for extent in extents {
            let (blocks, is_empty) = (extent.lba..extent.end().min(self.end), extent.status.holds_nothing());
            match runs.last_mut() {
                _ if blocks.is_empty() => break,
                Some(last) if last.is_empty == is_empty => last.blocks.end = blocks.end,
                _ => runs.push(Run { blocks, is_empty }),
            }
        }
        let length = |run: &Run| run.blocks.end - run.blocks.start;
        let all: u64 = runs.iter().map(length).sum();
        let data: u64 = runs.iter().filter(|run| !run.is_empty).map(length).sum();
        let (all_before, data_before) = self.usual.unwrap_or((all, data));
        self.usual = Some((all.midpoint(all_before), data.midpoint(data_before)));
        self.apart.insert(lba, runs);
        self.join();
    }

    /// It does not answer that: everything of which nothing is known has to be read.
    pub(super) fn is_not_told(&mut self) {
        if !self.is_silent {
            self.is_silent = true;
            self.apart.clear();
            self.add(Run { blocks: self.known_end..self.end, is_empty: false });
        }
    }

    /// Whether the unit tells, as far as is known.
    pub(super) fn is_told(&self) -> bool {
        !self.is_silent
    }

    /// What lies at this block, which is not before any that was asked for here before. `None` as long as that is not known.
    pub(super) fn run(&mut self, lba: u64) -> Option<&Run> {
        while self.known.pop_front_if(|run| run.blocks.end <= lba).is_some() {}
        self.known.front()
    }

    /// Takes answers that begin no later than what is known ends.
    fn join(&mut self) {
        while let Some(entry) = self.apart.first_entry()
            && *entry.key() <= self.known_end
        {
            for run in entry.remove() {
                let start = run.blocks.start.max(self.known_end);
                self.add(Run { blocks: start..run.blocks.end, ..run });
            }
        }
    }

    fn add(&mut self, run: Run) {
        let Run { blocks, is_empty } = run;
        if blocks.is_empty() {
            return;
        }
        self.known_end = blocks.end;
        match self.known.back_mut() {
            Some(last) if last.is_empty == is_empty => last.blocks.end = blocks.end,
            _ => self.known.push_back(Run { blocks, is_empty }),
        }
    }
}

#[cfg(test)]
mod tests {
    use lunette_cases::cases;
    use lunette_scsi::client::lba_status::BlockStatus;
    use proptest::prelude::*;

    use super::*;

    /// What a disk answers: at most so many extents, from anywhere.
    fn answer(truth: &[bool], from: u64, most: usize) -> Vec<LbaExtent> {
        let mut extents: Vec<LbaExtent> = Vec::new();
        for (lba, &is_empty) in truth.iter().enumerate().skip(from as usize) {
            let status = if is_empty { BlockStatus::Deallocated } else { BlockStatus::Mapped };
            let is_full = extents.len() == most;
            match extents.last_mut() {
                Some(last) if last.status == status => last.blocks += 1,
                _ if is_full => break,
                _ => extents.push(LbaExtent { lba: lba as u64, blocks: 1, status }),
            }
        }
        extents
    }

    /// Asks until all is known, with so many questions under way, which are answered in the order that `next` picks; tells what was
    /// found and how many questions that took.
    fn explore(
        truth: &[bool],
        begin: u64,
        most: usize,
        questions: usize,
        mut next: impl FnMut(usize) -> usize,
    ) -> (Vec<bool>, usize) {
        let end = truth.len() as u64;
        let mut map = SpaceMap::new(&(begin..end));
        let (mut under_way, mut found, mut count) = (Vec::new(), Vec::new(), 0);
        let mut at = begin;
        loop {
            while under_way.len() < questions
                && let Some(lba) = map.question(u64::MAX)
            {
                assert!(!under_way.contains(&lba) && (begin..end).contains(&lba));
                map.asked(lba);
                under_way.push(lba);
                count += 1;
            }
            while let Some(run) = map.run(at) {
                assert!(run.blocks.contains(&at));
                found.extend(std::iter::repeat_n(run.is_empty, (run.blocks.end - at) as usize));
                at = run.blocks.end;
            }
            if under_way.is_empty() {
                assert_eq!(at, end);
                return (found, count);
            }
            let lba = under_way.remove(next(under_way.len()));
            map.answered(lba, &answer(truth, lba, most));
        }
    }

    proptest! {
        #![proptest_config(cases(256))]

        #[test]
        fn all_of_it_is_found(
            runs in prop::collection::vec((any::<bool>(), 1..40_usize), 1..60),
            (most, questions) in (1..9_usize, 1..9_usize),
            begin in 0..20_u64,
            order in prop::collection::vec(any::<usize>(), 64),
        ) {
            let truth: Vec<bool> =
                runs.iter().flat_map(|(is_empty, blocks)| std::iter::repeat_n(*is_empty, *blocks)).collect();
            let begin = begin.min(truth.len() as u64);
            let mut order = order.into_iter().cycle();
            let pick = |count: usize| order.next().unwrap_or(0) % count;
            let (found, _) = explore(&truth, begin, most, questions, pick);
            prop_assert_eq!(&found[..], &truth[begin as usize..]);
        }
    }

    #[test]
    fn questions_are_asked_ahead_and_few_in_vain() {
        // A thousand extents, eight in each answer, with three questions under way.
        let truth: Vec<bool> = (0..8000).map(|lba| lba / 8 % 2 == 1).collect();
        let (found, questions) = explore(&truth, 0, 8, 3, |_| 0);
        assert_eq!((found == truth, questions), (true, 125));
        // Others of any length: some places are asked for that an answer has reached already, or not yet.
        let mut truth = Vec::new();
        for run in 0..1000_u64 {
            truth.extend(std::iter::repeat_n(run % 2 == 1, (run * 7919 % 31 + 1) as usize));
        }
        let (found, questions) = explore(&truth, 0, 8, 3, |_| 0);
        assert!(found == truth && questions < 250, "{questions}");
    }

    #[test]
    fn no_more_is_asked_than_is_wanted() {
        let truth = [false; 1000];
        let mut map = SpaceMap::new(&(0..1000));
        assert_eq!(map.question(0), None);
        assert_eq!(map.question(1), Some(0));
        map.asked(0);
        assert_eq!(map.question(1000), None, "nothing is known of how far an answer reaches");
        map.answered(0, &answer(&truth[..100], 0, 1));
        assert_eq!(map.question(150), Some(100));
        map.asked(100);
        assert_eq!(map.question(150), Some(200));
        map.asked(200);
        assert_eq!(map.question(150), None, "two answers will do");
    }

    #[test]
    fn what_is_not_told_is_to_be_read() {
        let mut map = SpaceMap::new(&(0..100));
        map.asked(0);
        map.answered(0, &answer(&[true; 10], 0, 1));
        map.asked(10);
        map.asked(20);
        map.answered(20, &answer(&[true; 30], 20, 1));
        map.is_not_told();
        assert_eq!(map.run(0), Some(&Run { blocks: 0..10, is_empty: true }));
        assert_eq!(map.run(10), Some(&Run { blocks: 10..100, is_empty: false }));
        assert_eq!(map.run(100), None);
        assert_eq!((map.question(u64::MAX), map.is_told()), (None, false));
    }
}
