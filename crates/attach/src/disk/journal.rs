//! What was answered and not flushed since. A target with a volatile cache that is restarted loses some of it; from here it is
//! written again before anybody can notice. A disk without such a cache leaves the journal empty.
//!
//! Each change is kept with the session that it was answered in. A flush that is answered in the same session proves it
//! stable if it was sent after that answer; one in a later session proves nothing about it, and a read in a later session may
//! miss it.

use std::collections::VecDeque;

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
}

impl Change {
    fn cost(&self) -> usize {
        match self {
            Change::Data { data, .. } => data.len() + COST_BYTES,
            Change::Zeros { .. } => COST_BYTES,
        }
    }
}

/// When something was answered. Nothing that is in doubt has a session.
type Session = Option<u32>;

#[derive(Debug)]
struct Entry {
    /// Its place in the order of changes.
    serial: u64,
    /// When it was answered last: what [`Journal::mark`] tells from then on is more.
    answered: u64,
    session: Session,
    change: Change,
}

/// See the module's documentation.
#[derive(Debug, Default)]
pub(super) struct Journal {
    entries: VecDeque<Entry>,
    /// Answers so far.
    answers: u64,
    bytes: usize,
    /// The oldest session among the entries.
    oldest: Session,
}

impl Journal {
    /// Keeps a change that was answered in this session. True if it is time for a flush.
    pub(super) fn push(&mut self, session: u32, change: Change) -> bool {
        self.bytes += change.cost();
        self.oldest = if self.entries.is_empty() { Some(session) } else { self.oldest.min(Some(session)) };
        let serial = self.count();
        self.entries.push_back(Entry { serial, answered: serial, session: Some(session), change });
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
        if covered.clone().any(|entry| entry.session != Some(session) || entry.answered >= mark) {
            return false;
        }
        for entry in self.entries.drain(..covered.count()) {
            self.bytes -= entry.change.cost();
        }
        self.find_oldest();
        true
    }

    /// Whether what is read in this session may miss something.
    pub(super) fn is_in_doubt(&self, session: u32) -> bool {
        !self.entries.is_empty() && self.oldest < Some(session)
    }

    /// The unit was reset: nothing of it need be there.
    pub(super) fn doubt_all(&mut self) {
        for entry in &mut self.entries {
            entry.session = None;
        }
        self.oldest = None;
    }

    /// The first change from this one on, to be made again.
    pub(super) fn from(&self, serial: u64) -> Option<(u64, Change)> {
        let at = self.entries.partition_point(|entry| entry.serial < serial);
        self.entries.get(at).map(|entry| (entry.serial, entry.change.clone()))
    }

    /// This change was made again.
    pub(super) fn made_again(&mut self, serial: u64, session: u32) {
        let at = self.entries.partition_point(|entry| entry.serial < serial);
        let answered = self.count();
        // It may have been flushed meanwhile.
        if let Some(entry) = self.entries.get_mut(at).filter(|entry| entry.serial == serial) {
            (entry.session, entry.answered) = (Some(session), answered);
        }
        if self.oldest != Some(session) {
            self.find_oldest();
        }
    }

    fn find_oldest(&mut self) {
        self.oldest = self.entries.iter().map(|entry| entry.session).min().flatten();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        assert_eq!(journal.from(0), Some((2, data(3))));
        assert!(journal.flushed(journal.mark(), 0));
        assert_eq!((journal.from(0), journal.bytes), (None, 0));
    }

    #[test]
    fn a_flush_of_a_later_session_proves_nothing_until_all_is_made_again() {
        let mut journal = Journal::default();
        journal.push(0, data(1));
        journal.push(1, data(2));
        let mark = journal.mark();
        assert!(journal.is_in_doubt(1) && !journal.is_in_doubt(0));
        assert!(!journal.flushed(mark, 1));
        journal.made_again(0, 1);
        assert!(!journal.is_in_doubt(1));
        assert!(!journal.flushed(mark, 1), "the flush may have been there before what was made again");
        assert!(journal.flushed(journal.mark(), 1));
        assert!(!journal.is_in_doubt(7), "there is nothing to doubt");
    }

    #[test]
    fn a_reset_puts_everything_in_doubt() {
        let mut journal = Journal::default();
        journal.push(3, data(1));
        journal.doubt_all();
        assert!(journal.is_in_doubt(3) && !journal.flushed(journal.mark(), 3));
        journal.made_again(0, 3);
        assert!(!journal.is_in_doubt(3) && journal.flushed(journal.mark(), 3));
    }

    #[test]
    fn it_says_when_it_is_full() {
        let mut journal = Journal::default();
        let large = |lba| Change::Data { lba, data: vec![0; BYTES_MAX / 2] };
        assert!(!journal.push(0, large(0)));
        assert!(journal.push(0, large(1)));
        assert!(journal.flushed(journal.mark(), 0));
        assert!(!journal.push(0, large(0)));
    }
}
