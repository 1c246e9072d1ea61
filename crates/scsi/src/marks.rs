//! Blocks that initiators have marked as unreadable with WRITE LONG (SBC-3, pseudo unrecovered errors).
//!
//! A mark is part of the unit's saved state, and goes when its block is written: first from what is to be saved, and from
//! here when that is stable, so that until then every command meets it. [`crate::task`] holds every operation against the
//! marks before the store gets it, so that reads, comparisons and copies of whatever command meet them; the unit's
//! [`crate::rod::Watch`] says whether there are any, which costs a unit without marks nothing.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::bytes::be64;
use crate::io::{BlockLengths, Io, IoError};

/// Marked blocks of one unit: they are for tests and for RAID software that has lost a block, and few.
pub(crate) const MARKS_MAX: usize = 1024;

/// What as many are after they were marked in blocks of 4096 bytes, and the unit is served with blocks of 512.
const RESTORED_MAX: usize = 8 * MARKS_MAX;

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

/// Marks that are released: these, and all that were before, are gone when a state that is stored afterwards is stable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Release(u64);

#[derive(Debug)]
struct Marked {
    mark: Mark,
    /// The block is written: the mark is not saved any more.
    released: Option<Release>,
}

#[derive(Debug, Default)]
struct Table {
    /// By LBA.
    blocks: BTreeMap<u64, Marked>,
    last: Release,
}

/// See the module's documentation.
#[derive(Debug, Default)]
pub(crate) struct Marks {
    table: Mutex<Table>,
}

/// LBA and kind of one mark, as they are saved.
const SAVED_BYTES: usize = 9;

impl Marks {
    /// From what was to be kept in blocks of the first length, for blocks of the second, and what is to be kept from now on; `None`
    /// for anything that was never kept. Every block that has a byte of a marked one is marked.
    pub(crate) fn restore(bytes: &[u8], (before, now): (u32, u32)) -> Option<(Marks, Vec<u8>)> {
        let mut blocks = BTreeMap::new();
        for (lba, mark) in saved_marks(bytes)? {
            let first = lba.checked_mul(before.into())?;
            let end = first.checked_add(before.into())?.div_ceil(now.into());
            for lba in first / u64::from(now)..end {
                blocks.entry(lba).or_insert(Marked { mark, released: None });
            }
        }
        let table = Table { blocks, last: Release::default() };
        let kept = table.to_bytes();
        Some((Marks { table: Mutex::new(table) }, kept))
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.lock().blocks.is_empty()
    }

    /// Marks all of `blocks`, or none where there is no room. `keep` gets what is to be saved before anybody else changes
    /// a mark.
    pub(crate) fn set(&self, blocks: Range<u64>, mark: Mark, keep: impl FnOnce(Vec<u8>)) -> Result<(), Full> {
        let mut table = self.lock();
        if !table.has_room(&blocks) {
            return Err(Full);
        }
        table.blocks.extend(blocks.map(|lba| (lba, Marked { mark, released: None })));
        keep(table.to_bytes());
        Ok(())
    }

    /// Whether all of `blocks` could be marked now.
    pub(crate) fn has_room(&self, blocks: &Range<u64>) -> bool {
        self.lock().has_room(blocks)
    }

    /// `blocks` are written and stable: their marks are to go. `None`: there are none. Otherwise they stand until
    /// [`Self::forget`], and `keep` gets what is to be saved.
    pub(crate) fn release(&self, blocks: &Range<u64>, keep: impl FnOnce(Vec<u8>)) -> Option<Release> {
        let mut table = self.lock();
        let release = Release(table.last.0 + 1);
        let mut found = table.blocks.range_mut(blocks.clone()).peekable();
        found.peek()?;
        // Whoever has released one before waits for no later state.
        found.for_each(|(_, marked)| _ = marked.released.get_or_insert(release));
        table.last = release;
        keep(table.to_bytes());
        Some(release)
    }

    /// All that are released by now.
    pub(crate) fn released(&self) -> Release {
        self.lock().last
    }

    /// A state that was stored after `release` is stable. `none_left` is called before anybody marks a block again.
    pub(crate) fn forget(&self, release: Release, none_left: impl FnOnce()) {
        let mut table = self.lock();
        table.blocks.retain(|_, marked| marked.released.is_none_or(|released| released > release));
        if table.blocks.is_empty() {
            none_left();
        }
    }

    /// The first marked block of a range.
    pub(crate) fn first(&self, blocks: Range<u64>) -> Option<(u64, Mark)> {
        if blocks.is_empty() {
            return None;
        }
        self.lock().blocks.range(blocks).next().map(|(&lba, marked)| (lba, marked.mark))
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

impl Table {
    fn has_room(&self, blocks: &Range<u64>) -> bool {
        let new = blocks.clone().filter(|lba| !self.blocks.contains_key(lba)).count();
        self.blocks.len() + new <= MARKS_MAX
    }

    /// What is to be saved, in rising order of LBA; empty without marks.
    fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        for (lba, marked) in self.blocks.iter().filter(|(_, marked)| marked.released.is_none()) {
            bytes.extend(lba.to_be_bytes());
            bytes.push(marked.mark as u8);
        }
        bytes
    }
}

/// The inverse of [`Table::to_bytes`]; `None` for anything else.
fn saved_marks(bytes: &[u8]) -> Option<Vec<(u64, Mark)>> {
    let entries = bytes.chunks_exact(SAVED_BYTES);
    if !entries.remainder().is_empty() || entries.len() > RESTORED_MAX {
        return None;
    }
    let mut marks: Vec<(u64, Mark)> = Vec::new();
    for entry in entries {
        let mark = match entry[SAVED_BYTES - 1] {
            1 => Mark::Uncorrectable,
            2 => Mark::ByClient,
            _ => return None,
        };
        let lba = be64(entry, 0)?;
        if marks.last().is_some_and(|&(last, _)| last >= lba) {
            return None;
        }
        marks.push((lba, mark));
    }
    Some(marks)
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
        let restore = |bytes: &[u8]| Marks::restore(bytes, (512, 512));
        let bytes = marks().lock().to_bytes();
        let (restored, kept) = restore(&bytes).unwrap();
        assert_eq!((restored.lock().to_bytes(), &kept), (bytes.clone(), &bytes));
        assert_eq!(restored.first(11..100), Some((11, Mark::Uncorrectable)));
        for length in (1..bytes.len()).filter(|length| !length.is_multiple_of(SAVED_BYTES)) {
            assert!(restore(&bytes[..length]).is_none(), "{length}");
        }
        for (at, value) in [(8, 0), (8, 3), (7, 11), (7, 200)] {
            let mut changed = bytes.clone();
            changed[at] = value;
            assert!(restore(&changed).is_none(), "{at}");
        }
        assert!(restore(&[]).unwrap().0.is_empty());
        let many: Vec<u8> =
            (0..=RESTORED_MAX as u64).flat_map(|lba| [&lba.to_be_bytes()[..], &[1]].concat()).collect();
        assert!(restore(&many).is_none());
        assert!(restore(&many[SAVED_BYTES..]).is_some());
    }

    /// No byte that could not be read can be read by serving the volume with blocks of another length.
    #[test]
    fn marks_cover_the_same_bytes_in_blocks_of_another_length() {
        let lbas = |marks: &Marks| marks.lock().blocks.keys().copied().collect::<Vec<_>>();
        let bytes = marks().lock().to_bytes();
        let (long, kept) = Marks::restore(&bytes, (512, 4096)).unwrap();
        assert_eq!(lbas(&long), [1, 2]);
        assert_eq!(long.first(2..3), Some((2, Mark::ByClient)));
        let (short, _) = Marks::restore(&kept, (4096, 512)).unwrap();
        assert_eq!(lbas(&short), (8..24).collect::<Vec<_>>());
        let full = Marks::default();
        full.set(0..MARKS_MAX as u64, Mark::ByClient, drop).unwrap();
        let (_, kept) = Marks::restore(&full.lock().to_bytes(), (4096, 512)).unwrap();
        assert_eq!(lbas(&Marks::restore(&kept, (512, 512)).unwrap().0).len(), RESTORED_MAX);
        assert!(Marks::restore(&[&[0xff; 8][..], &[1]].concat(), (4096, 512)).is_none(), "no such block");
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
        let release = marks.release(&(20..21), drop).unwrap();
        let room = 100..100 + MARKS_MAX as u64 - 2;
        assert_eq!(marks.set(room.clone(), Mark::ByClient, drop), Err(Full), "it has not gone yet");
        marks.forget(release, || panic!("two are left"));
        marks.set(room, Mark::ByClient, drop).unwrap();
        marks.set(10..12, Mark::ByClient, drop).unwrap();
        assert_eq!(marks.first(10..11), Some((10, Mark::ByClient)), "marked anew");
    }

    #[test]
    fn marks_stand_until_a_state_without_them_is_stable() {
        let marks = marks();
        assert_eq!(marks.release(&(12..20), |_| panic!("nothing has changed")), None);
        let mut kept = Vec::new();
        let first = marks.release(&(0..11), |bytes| kept = bytes).unwrap();
        assert_eq!(kept.len(), 2 * SAVED_BYTES);
        assert_eq!(marks.first(0..100), Some((10, Mark::Uncorrectable)));
        let second = marks.release(&(10..12), |bytes| kept = bytes).unwrap();
        assert_eq!(kept.len(), SAVED_BYTES);
        assert_eq!(marks.released(), second);
        marks.forget(first, || panic!("two are left"));
        assert_eq!(marks.first(0..100), Some((11, Mark::Uncorrectable)), "the first has waited for no more");
        marks.set(11..12, Mark::ByClient, drop).unwrap();
        marks.forget(second, || panic!("two are left"));
        assert_eq!(marks.first(0..100), Some((11, Mark::ByClient)), "marked anew");
        let last = marks.release(&(0..100), |bytes| kept = bytes).unwrap();
        assert!(kept.is_empty() && !marks.is_empty());
        let mut none_left = false;
        marks.forget(last, || none_left = true);
        assert!(none_left && marks.is_empty());
    }
}
