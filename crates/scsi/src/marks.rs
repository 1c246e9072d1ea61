//! Blocks that initiators have marked as unreadable with WRITE LONG (SBC-3, pseudo unrecovered errors).
//!
//! A mark is part of the unit's saved state, and goes when its block is written. [`crate::task`] holds every operation
//! against the marks before the store gets it, so that reads, comparisons and copies of whatever command meet them; the
//! unit's [`crate::rod::Watch`] says whether there are any, which costs a unit without marks nothing.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::bytes::be64;
use crate::io::{BlockLengths, Io, IoError};

/// Marked blocks of one unit: they are for tests and for RAID software that has lost a block, and few.
pub(crate) const MARKS_MAX: usize = 1024;

/// How a marked block fails (SBC-3, COR_DIS and WR_UNCOR).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Mark {
    /// Pseudo unrecovered error with correction enabled: like any other error of the medium.
    Uncorrectable = 1,
    /// Pseudo unrecovered error with correction disabled: the error says who made it.
    ByClient = 2,
}

/// There is no room for another mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Full;

/// What an operation meets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Meets {
    /// No marked block, or it does not matter to it.
    Nothing,
    /// It would read a marked block.
    Error(IoError),
    /// It changes these blocks, some of which are marked.
    Change(Range<u64>),
}

/// See the module's documentation.
#[derive(Debug, Default)]
pub(crate) struct Marks {
    blocks: Mutex<BTreeMap<u64, Mark>>,
}

/// LBA and kind of one mark, as they are saved.
const SAVED_BYTES: usize = 9;

impl Marks {
    /// From what was to be kept; `None` for anything else.
    pub(crate) fn from_bytes(bytes: &[u8]) -> Option<Marks> {
        let entries = bytes.chunks_exact(SAVED_BYTES);
        let is_whole = entries.remainder().is_empty() && entries.len() <= MARKS_MAX;
        let mut blocks = BTreeMap::new();
        for entry in entries {
            let mark = match entry[SAVED_BYTES - 1] {
                1 => Mark::Uncorrectable,
                2 => Mark::ByClient,
                _ => return None,
            };
            let lba = be64(entry, 0)?;
            if blocks.last_key_value().is_some_and(|(&last, _)| last >= lba) {
                return None;
            }
            blocks.insert(lba, mark);
        }
        is_whole.then(|| Marks { blocks: Mutex::new(blocks) })
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<u64, Mark>> {
        self.blocks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.lock().is_empty()
    }

    /// Marks all of `blocks`, or none where there is no room. `keep` gets what is to be saved before anybody else changes
    /// a mark.
    pub(crate) fn set(&self, blocks: Range<u64>, mark: Mark, keep: impl FnOnce(Vec<u8>)) -> Result<(), Full> {
        let mut marks = self.lock();
        let new = blocks.clone().filter(|lba| !marks.contains_key(lba)).count();
        if marks.len() + new > MARKS_MAX {
            return Err(Full);
        }
        marks.extend(blocks.map(|lba| (lba, mark)));
        keep(bytes_of(&marks));
        Ok(())
    }

    /// Takes the marks of `blocks` away. True if there were some; then `keep` gets what is to be saved.
    pub(crate) fn clear(&self, blocks: &Range<u64>, keep: impl FnOnce(Vec<u8>)) -> bool {
        let mut marks = self.lock();
        let before = marks.len();
        marks.retain(|lba, _| !blocks.contains(lba));
        let has_changed = marks.len() != before;
        if has_changed {
            keep(bytes_of(&marks));
        }
        has_changed
    }

    /// The first marked block of a range.
    pub(crate) fn first(&self, blocks: Range<u64>) -> Option<(u64, Mark)> {
        if blocks.is_empty() {
            return None;
        }
        self.lock().range(blocks).next().map(|(&lba, &mark)| (lba, mark))
    }

    /// What `io` meets on a medium with blocks of these lengths.
    pub(crate) fn meet(&self, io: &Io, lengths: BlockLengths) -> Meets {
        if let Io::Read { offset_bytes, length_bytes, .. } = *io {
            let found = self.first(lengths.of_data(offset_bytes, length_bytes.into()));
            return found.map_or(Meets::Nothing, |(lba, mark)| Meets::Error(mark.error(lba * lengths.data)));
        }
        match io.changes(lengths) {
            Some(changed) if self.first(changed.clone()).is_some() => Meets::Change(changed),
            _ => Meets::Nothing,
        }
    }
}

/// In rising order of LBA; empty without marks.
fn bytes_of(marks: &BTreeMap<u64, Mark>) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (lba, &mark) in marks {
        bytes.extend(lba.to_be_bytes());
        bytes.push(mark as u8);
    }
    bytes
}

impl Mark {
    fn error(self, offset_bytes: u64) -> IoError {
        match self {
            Mark::Uncorrectable => IoError::Medium { offset_bytes: Some(offset_bytes) },
            Mark::ByClient => IoError::MarkedBad { offset_bytes },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LENGTHS: BlockLengths = BlockLengths { data: 512, stored: 512 };

    fn marks() -> Marks {
        let marks = Marks::default();
        marks.set(10..12, Mark::Uncorrectable, drop).unwrap();
        marks.set(20..21, Mark::ByClient, drop).unwrap();
        marks
    }

    #[test]
    fn marks_come_back_and_nothing_else_is_taken() {
        let bytes = bytes_of(&marks().lock());
        let restored = Marks::from_bytes(&bytes).unwrap();
        assert_eq!(bytes_of(&restored.lock()), bytes);
        assert_eq!(restored.first(11..100), Some((11, Mark::Uncorrectable)));
        for length in (1..bytes.len()).filter(|length| !length.is_multiple_of(SAVED_BYTES)) {
            assert!(Marks::from_bytes(&bytes[..length]).is_none(), "{length}");
        }
        for (at, value) in [(8, 0), (8, 3), (7, 11), (7, 200)] {
            let mut changed = bytes.clone();
            changed[at] = value;
            assert!(Marks::from_bytes(&changed).is_none(), "{at}");
        }
        assert!(Marks::from_bytes(&[]).unwrap().is_empty());
        let many: Vec<u8> =
            (0..=MARKS_MAX as u64).flat_map(|lba| [&lba.to_be_bytes()[..], &[1]].concat()).collect();
        assert!(Marks::from_bytes(&many).is_none());
        assert!(Marks::from_bytes(&many[SAVED_BYTES..]).is_some());
    }

    #[test]
    fn operations_meet_marks_block_by_block() {
        let marks = marks();
        let read = |lba: u64, blocks: u32| {
            let io = Io::Read { offset_bytes: lba * 512, length_bytes: blocks * 512, inspected: true };
            marks.meet(&io, LENGTHS)
        };
        assert_eq!(read(0, 10), Meets::Nothing);
        assert_eq!(read(12, 8), Meets::Nothing);
        assert_eq!(read(0, 11), Meets::Error(IoError::Medium { offset_bytes: Some(10 * 512) }));
        assert_eq!(read(12, 9), Meets::Error(IoError::MarkedBad { offset_bytes: 20 * 512 }));
        let zero = |lba: u64, blocks: u64| {
            let (offset_bytes, length_bytes) = (lba * 512, blocks * 512);
            marks.meet(&Io::Zero { offset_bytes, length_bytes, unmap: false, stable: false }, LENGTHS)
        };
        assert_eq!(zero(12, 8), Meets::Nothing);
        assert_eq!(zero(11, 1), Meets::Change(11..12));
        assert_eq!(marks.meet(&Io::Flush, LENGTHS), Meets::Nothing);
    }

    #[test]
    fn there_is_room_for_so_many() {
        let marks = marks();
        assert_eq!(marks.set(100..100 + MARKS_MAX as u64, Mark::ByClient, drop), Err(Full));
        assert_eq!(marks.first(100..u64::MAX), None, "none of them");
        marks.set(0..MARKS_MAX as u64 + 1, Mark::ByClient, drop).unwrap_err();
        let mut kept = Vec::new();
        assert!(marks.clear(&(20..21), |bytes| kept = bytes));
        assert_eq!(kept.len(), 2 * SAVED_BYTES);
        assert!(!marks.clear(&(20..21), |_| panic!("nothing has changed")));
        marks.set(0..MARKS_MAX as u64, Mark::ByClient, drop).unwrap();
        assert_eq!(marks.first(10..11), Some((10, Mark::ByClient)), "marked anew");
    }
}
