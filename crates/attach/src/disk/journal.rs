//! What was answered and not flushed since. A target with a volatile cache that is restarted loses some of it; from here it is
//! written again before anybody can notice. A disk that has no such cache may get one at any time, so it makes no difference. What
//! was written with FUA is stable whatever happens: of that only the place is kept, so that nothing older comes over it.
//!
//! Each change is kept with the session that it was sent in, as `Completion::session` counts them: resets are counted too. A
//! flush that is answered in the same session proves it stable if it was sent after that answer; one in a later session proves
//! nothing about it, and a read of its blocks in a later session may miss it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;

/// How much is kept before it is flushed, in bytes.
pub(super) const BYTES_MAX: usize = 64 << 20;

/// What a change costs beside its data, in bytes, about.
const COST_BYTES: usize = 64;

/// A change of the disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Change {
    /// Data of whole blocks.
    Data { lba: u64, data: Vec<u8> },
    /// Zeros.
    Zeros { lba: u64, blocks: u32, may_unmap: bool },
    /// Data of whole blocks that is stable.
    Stable { lba: u64, blocks: u64 },
}

impl Change {
    /// The blocks that it changes.
    fn blocks(&self, block_bytes: u32) -> Range<u64> {
        match self {
            Change::Data { lba, data } => *lba..lba + data.len() as u64 / u64::from(block_bytes),
            Change::Zeros { lba, blocks, .. } => *lba..lba + u64::from(*blocks),
            Change::Stable { lba, blocks } => *lba..lba + blocks,
        }
    }

    const fn is_stable(&self) -> bool {
        matches!(self, Change::Stable { .. })
    }

    /// The part of it that changes these blocks, which are some of its own.
    fn part(&self, blocks: &Range<u64>, block_bytes: u32) -> Option<Change> {
        match self {
            Change::Data { lba, data } => {
                let at = |block: u64| Some(block.checked_sub(*lba)? as usize * block_bytes as usize);
                let data = data.get(at(blocks.start)?..at(blocks.end)?)?.to_vec();
                Some(Change::Data { lba: blocks.start, data })
            }
            Change::Zeros { may_unmap, .. } => {
                let count = u32::try_from(blocks.end - blocks.start).ok()?;
                Some(Change::Zeros { lba: blocks.start, blocks: count, may_unmap: *may_unmap })
            }
            Change::Stable { .. } => None,
        }
    }

    fn cost(&self) -> usize {
        match self {
            Change::Data { data, .. } => data.len() + COST_BYTES,
            Change::Zeros { .. } | Change::Stable { .. } => COST_BYTES,
        }
    }
}

#[derive(Debug)]
struct Entry {
    /// Its place in the order of changes.
    serial: u64,
    /// When it was answered last: what [`Journal::mark`] tells from then on is more.
    answered: u64,
    session: u32,
    change: Change,
}

impl Entry {
    /// Whether it may be lost where this session answers.
    const fn is_lost_before(&self, session: u32) -> bool {
        self.session < session && !self.change.is_stable()
    }
}

/// See the module's documentation.
#[derive(Debug, Default)]
pub(super) struct Journal {
    entries: VecDeque<Entry>,
    /// Answers so far.
    answers: u64,
    bytes: usize,
    /// The oldest session among the entries that can be lost, if there are any.
    oldest: Option<u32>,
}

impl Journal {
    /// Keeps a change that was answered, and counts as of this session.
    pub(super) fn push(&mut self, session: u32, change: Change) {
        let covers_nothing = change.is_stable() && self.oldest.is_none();
        if change.blocks(1).is_empty() || covers_nothing {
            return;
        }
        self.bytes += change.cost();
        if !change.is_stable() {
            self.oldest = Some(self.oldest.map_or(session, |oldest| oldest.min(session)));
        }
        let serial = self.count();
        self.entries.push_back(Entry { serial, answered: serial, session, change });
    }

    /// So much is kept that it is time for a flush.
    pub(super) fn is_full(&self) -> bool {
        self.bytes > BYTES_MAX
    }

    fn count(&mut self) -> u64 {
        self.answers += 1;
        self.answers - 1
    }

    /// Where the journal is now: a flush that is sent after this covers what was answered before it.
    pub(super) fn mark(&self) -> u64 {
        self.answers
    }

    /// A flush was answered in this session. False if it does not cover everything before the mark; else that is forgotten.
    pub(super) fn flushed(&mut self, mark: u64, session: u32) -> bool {
        let covered = self.entries.iter().take_while(|entry| entry.serial < mark);
        // What was made again while the flush was on its way may have come too late for it.
        let is_missed = |entry: &Entry| entry.session != session || entry.answered >= mark;
        if covered.clone().any(|entry| !entry.change.is_stable() && is_missed(entry)) {
            return false;
        }
        for entry in self.entries.drain(..covered.count()) {
            self.bytes -= entry.change.cost();
        }
        self.find_oldest();
        true
    }

    /// Whether something may be lost of what was answered before this session.
    pub(super) fn is_in_doubt(&self, session: u32) -> bool {
        self.oldest.is_some_and(|oldest| oldest < session)
    }

    /// Whether what is read of these blocks in this session may miss something.
    pub(super) fn is_doubtful(&self, session: u32, blocks: &Range<u64>, block_bytes: u32) -> bool {
        let overlaps = |entry: &Entry| {
            let own = entry.change.blocks(block_bytes);
            own.start < blocks.end && blocks.start < own.end
        };
        self.is_in_doubt(session)
            && self.entries.iter().any(|entry| entry.is_lost_before(session) && overlaps(entry))
    }

    /// What has to be made again where this session answers, in its order: of each change that may be lost the blocks that no later one
    /// changes. Something newer may be stable already; nothing older comes over it.
    pub(super) fn uncovered(&self, session: u32, block_bytes: u32) -> Vec<(u64, Range<u64>)> {
        let (mut covered, mut found) = (Blocks::default(), Vec::new());
        for entry in self.entries.iter().rev() {
            let gaps = covered.add(entry.change.blocks(block_bytes)).into_iter().rev();
            let gaps = gaps.filter(|_| entry.is_lost_before(session));
            found.extend(gaps.map(|gap| (entry.serial, gap)));
        }
        found.reverse();
        found
    }

    /// These blocks of a change; `None` if it was flushed meanwhile.
    pub(super) fn part(&self, serial: u64, blocks: &Range<u64>, block_bytes: u32) -> Option<Change> {
        let at = self.entries.partition_point(|entry| entry.serial < serial);
        let entry = self.entries.get(at).filter(|entry| entry.serial == serial)?;
        entry.change.part(blocks, block_bytes)
    }

    /// Everything that may be lost where `session` answers was made again in the session `in_session`, but for these changes, and
    /// nothing was changed meanwhile.
    pub(super) fn made_again(&mut self, session: u32, in_session: u32, but: &BTreeSet<u64>) {
        let answered = self.count();
        let made = |entry: &&mut Entry| entry.is_lost_before(session) && !but.contains(&entry.serial);
        for entry in self.entries.iter_mut().filter(made) {
            (entry.session, entry.answered) = (in_session, answered);
        }
        self.find_oldest();
    }

    fn find_oldest(&mut self) {
        let entries = self.entries.iter().filter(|entry| !entry.change.is_stable());
        self.oldest = entries.map(|entry| entry.session).min();
    }
}

/// A set of blocks: ranges that do not touch, by their beginnings.
#[derive(Debug, Default)]
struct Blocks(BTreeMap<u64, u64>);

impl Blocks {
    /// Adds a range; tells what of it was not there, in order.
    fn add(&mut self, range: Range<u64>) -> Vec<Range<u64>> {
        let (mut gaps, mut at, mut joined) = (Vec::new(), range.start, range.clone());
        let touching: Vec<(u64, u64)> = self
            .0
            .range(..=range.end)
            .rev()
            .map(|(start, end)| (*start, *end))
            .take_while(|(_, end)| *end >= range.start)
            .collect();
        for (start, end) in touching.into_iter().rev() {
            self.0.remove(&start);
            if at < start {
                gaps.push(at..start);
            }
            at = at.max(end);
            joined = joined.start.min(start)..joined.end.max(end);
        }
        if at < range.end {
            gaps.push(at..range.end);
        }
        if !joined.is_empty() {
            self.0.insert(joined.start, joined.end);
        }
        gaps
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use lunette_cases::cases;
    use proptest::prelude::*;

    const BLOCK_BYTES: u32 = 512;

    /// What is left, with its first byte.
    fn left(journal: &Journal) -> Vec<(u64, Range<u64>)> {
        journal.uncovered(u32::MAX, BLOCK_BYTES)
    }

    fn is_doubtful(journal: &Journal, session: u32, blocks: Range<u64>) -> bool {
        journal.is_doubtful(session, &blocks, BLOCK_BYTES)
    }

    fn data(lba: u64) -> Change {
        Change::Data { lba, data: vec![lba as u8; 512] }
    }

    #[test]
    fn a_flush_of_the_same_session_covers_what_came_before_it() {
        let mut journal = Journal::default();
        journal.push(0, data(1));
        journal.push(0, Change::Zeros { lba: 2, blocks: 9, may_unmap: true });
        let mark = journal.mark();
        journal.push(0, data(3));
        assert!(journal.flushed(mark, 0));
        assert_eq!(left(&journal), [(2, 3..4)]);
        assert_eq!(journal.part(2, &(3..4), BLOCK_BYTES), Some(data(3)));
        assert!(journal.flushed(journal.mark(), 0));
        assert_eq!((left(&journal), journal.bytes), (Vec::new(), 0));
        assert_eq!(journal.part(2, &(3..4), BLOCK_BYTES), None);
    }

    #[test]
    fn a_flush_of_a_later_session_proves_nothing_until_all_is_made_again() {
        let mut journal = Journal::default();
        journal.push(0, data(1));
        journal.push(1, data(2));
        let mark = journal.mark();
        assert!(journal.is_in_doubt(1) && !journal.is_in_doubt(0));
        assert!(!journal.flushed(mark, 1));
        journal.made_again(1, 1, &BTreeSet::new());
        assert!(!journal.is_in_doubt(1));
        assert!(!journal.flushed(mark, 1), "the flush may have been there before what was made again");
        assert!(journal.flushed(journal.mark(), 1));
        assert!(!journal.is_in_doubt(7), "there is nothing to doubt");
    }

    #[test]
    fn what_cannot_be_made_again_is_missed_where_it_is() {
        let mut journal = Journal::default();
        (0..3).for_each(|lba| journal.push(0, data(lba)));
        journal.push(2, data(9));
        assert_eq!(journal.uncovered(2, BLOCK_BYTES), [(0, 0..1), (1, 1..2), (2, 2..3)], "9 is not lost");
        journal.made_again(2, 2, &BTreeSet::from([1]));
        assert_eq!(journal.uncovered(2, BLOCK_BYTES), [(1, 1..2)]);
        assert!(is_doubtful(&journal, 2, 0..2) && is_doubtful(&journal, 2, 1..9));
        assert!(!is_doubtful(&journal, 2, 0..1) && !is_doubtful(&journal, 2, 2..99));
        assert!(!journal.flushed(journal.mark(), 2), "it is not stable");
        // What is written there anew takes its place.
        journal.push(2, data(1));
        assert_eq!(journal.uncovered(2, BLOCK_BYTES), []);
        journal.made_again(2, 2, &BTreeSet::new());
        assert!(!is_doubtful(&journal, 2, 0..99) && journal.flushed(journal.mark(), 2));
    }

    #[test]
    fn what_is_stable_is_not_made_again_and_nothing_older_over_it() {
        let mut journal = Journal::default();
        let stable = |lba, blocks| Change::Stable { lba, blocks };
        journal.push(0, stable(0, 100));
        assert!(journal.entries.is_empty(), "there is nothing for it to cover");
        journal.push(0, Change::Zeros { lba: 0, blocks: 10, may_unmap: false });
        journal.push(0, stable(4, 2));
        assert_eq!(left(&journal), [(0, 0..4), (0, 6..10)]);
        assert!(is_doubtful(&journal, 1, 0..1) && !is_doubtful(&journal, 1, 10..100));
        journal.made_again(1, 1, &BTreeSet::new());
        assert!(!journal.is_in_doubt(1) && journal.flushed(journal.mark(), 1));
        assert_eq!((journal.entries.len(), journal.bytes), (0, 0));
    }

    #[test]
    fn it_says_when_it_is_full() {
        let mut journal = Journal::default();
        let large = |lba| Change::Data { lba, data: vec![0; BYTES_MAX / 2] };
        journal.push(0, large(0));
        assert!(!journal.is_full());
        journal.push(0, large(1));
        assert!(journal.is_full());
        assert!(journal.flushed(journal.mark(), 0));
        assert!(!journal.is_full());
    }

    proptest! {
        #![proptest_config(cases(300))]

        #[test]
        fn what_is_made_again_is_each_block_once_as_it_was_last(
            changes in prop::collection::vec((0u64..40, 0u32..12, 0..3), 0..40),
        ) {
            let mut journal = Journal::default();
            // By block, the number of the change that was there last, unless it is stable; a byte of data says it too.
            let mut last = BTreeMap::new();
            for (lba, blocks, kind) in changes.into_iter().filter(|(_, blocks, _)| *blocks > 0) {
                let serial = journal.mark();
                journal.push(0, match kind {
                    0 => Change::Data { lba, data: vec![serial as u8; (blocks * BLOCK_BYTES) as usize] },
                    1 => Change::Zeros { lba, blocks, may_unmap: false },
                    _ => Change::Stable { lba, blocks: u64::from(blocks) },
                });
                for block in lba..lba + u64::from(blocks) {
                    if kind < 2 { last.insert(block, serial) } else { last.remove(&block) };
                }
            }
            let mut made = BTreeMap::new();
            for (serial, blocks) in left(&journal) {
                let part = journal.part(serial, &blocks, BLOCK_BYTES).unwrap();
                prop_assert_eq!(part.blocks(BLOCK_BYTES), blocks.clone());
                if let Change::Data { data, .. } = part {
                    prop_assert!(data.iter().all(|byte| *byte == serial as u8));
                }
                for block in blocks {
                    prop_assert_eq!(made.insert(block, serial), None);
                }
            }
            prop_assert_eq!(made, last);
        }
    }
}
