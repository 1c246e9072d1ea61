//! The memory store: a sparse disk in this process's memory. It is gone when the process ends.
//!
//! Memory is taken for 64-KiB chunks when they are first written and given back when they are unmapped. The table
//! of chunks has two levels, so a large disk that is hardly used costs little. Where chunks have their memory from is in [`chunks`].

mod chunk;
mod chunks;

use std::io;
use std::sync::{Arc, OnceLock, RwLockReadGuard};

use rustix::io::Errno;

use chunk::Chunk;
use chunks::Areas;

use super::{Allocation, AtomicWrites, Extent, Features, Store, push_extent};
use crate::area::{Pages, Slot};
use crate::error::OpenError;
use crate::lent::Lent;
use crate::nearer;
use crate::size;

const CHUNK_BYTES: usize = 64 * 1024;
const CHUNKS_IN_GROUP: usize = 1024;
const GROUP_BYTES: u64 = (CHUNK_BYTES * CHUNKS_IN_GROUP) as u64;

/// Bounds the first-level table to 2^20 entries of 16 bytes.
const SIZE_BYTES_MAX: u64 = 64 << 40;

type Group = Box<[Chunk]>;

/// What was never written reads as a part of these.
static ZEROES: [u8; CHUNK_BYTES] = [0; CHUNK_BYTES];

/// A part of a chunk that nobody changes or frees meanwhile.
#[derive(Debug)]
pub(crate) struct LockedPiece<'a> {
    chunk: Option<RwLockReadGuard<'a, Option<Slot>>>,
    start: usize,
    end: usize,
}

impl LockedPiece<'_> {
    pub(crate) fn bytes(&self) -> &[u8] {
        let bytes = self.chunk.as_ref().and_then(|chunk| chunk.as_ref()).map(Slot::bytes);
        bytes.unwrap_or(&ZEROES).get(self.start..self.end).unwrap_or_default()
    }
}

/// A sparse disk in memory.
#[derive(Debug)]
struct MemoryStore {
    size_bytes: u64,
    groups: Vec<OnceLock<Group>>,
    areas: Areas,
}

/// A disk that nothing was written to yet.
///
/// # Errors
/// It is larger than such disks can be.
pub(crate) fn open(size_bytes: u64, pages: Pages) -> Result<Arc<dyn Store>, OpenError> {
    Ok(Arc::new(MemoryStore::new(size_bytes, pages)?))
}

/// The part of a range that lies in one chunk.
#[derive(Clone, Copy)]
struct Piece {
    group: usize,
    chunk: usize,
    start: usize,
    len: usize,
}

/// Splits a range at chunk boundaries.
fn pieces(offset: u64, length: u64) -> impl Iterator<Item = Piece> {
    let end = offset.saturating_add(length);
    let mut at = offset;
    std::iter::from_fn(move || {
        if at >= end {
            return None;
        }
        // Both casts are of values below CHUNK_BYTES.
        let start = (at % CHUNK_BYTES as u64) as usize;
        let len = (end - at).min((CHUNK_BYTES - start) as u64) as usize;
        let piece = Piece {
            group: usize::try_from(at / GROUP_BYTES).ok()?,
            chunk: ((at % GROUP_BYTES) / CHUNK_BYTES as u64) as usize,
            start,
            len,
        };
        at += len as u64;
        Some(piece)
    })
}

impl MemoryStore {
    fn new(size_bytes: u64, pages: Pages) -> Result<Self, OpenError> {
        if size_bytes > SIZE_BYTES_MAX {
            let why = format!("a memory volume has at most {}", size::text(SIZE_BYTES_MAX));
            return Err(OpenError::BadSize { what: "memory".to_owned(), size_bytes, why });
        }
        // At most 2^20 groups by the check above.
        let group_count = size_bytes.div_ceil(GROUP_BYTES) as usize;
        let groups = (0..group_count).map(|_| OnceLock::new()).collect();
        Ok(Self { size_bytes, groups, areas: Areas::new(pages) })
    }

    /// The chunk of a piece, if its group was ever written to.
    fn chunk(&self, piece: Piece) -> Option<&Chunk> {
        self.groups.get(piece.group)?.get()?.get(piece.chunk)
    }

    fn chunk_for_write(&self, piece: Piece) -> io::Result<&Chunk> {
        let group = self.groups.get(piece.group).ok_or(Errno::INVAL)?;
        let chunks = group.get_or_init(|| (0..CHUNKS_IN_GROUP).map(|_| Chunk::default()).collect());
        chunks.get(piece.chunk).ok_or_else(|| Errno::INVAL.into())
    }

    fn clear(&self, offset: u64, length: u64) {
        let mut at = offset;
        let end = offset.saturating_add(length);
        while at < end {
            let in_group = (GROUP_BYTES - at % GROUP_BYTES).min(end - at);
            let written = usize::try_from(at / GROUP_BYTES)
                .ok()
                .and_then(|group| self.groups.get(group))
                .is_some_and(|group| group.get().is_some());
            if written {
                let clear = |piece: Piece| self.chunk(piece)?.clear(piece.start..piece.start + piece.len);
                let free = pieces(at, in_group).filter_map(clear).collect();
                self.areas.give_back(free);
            }
            at += in_group;
        }
    }
}

impl Store for MemoryStore {
    fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    fn features(&self) -> Features {
        Features {
            unmap: true,
            write_zeroes: true,
            extents: true,
            // The kernel hands out more memory than it has.
            reserves: false,
            unmap_granularity_bytes: CHUNK_BYTES as u32,
            physical_block_bytes: 4096,
            // Nothing outlives a loss of power, least of all a part.
            atomic_writes: Some(AtomicWrites { granularity_bytes: 1, length_bytes_max: u32::MAX }),
            rotational: Some(false),
        }
    }

    fn describe(&self) -> String {
        let in_words = match self.areas.pages() {
            Pages::Small => "",
            Pages::Large => " in large pages",
        };
        format!("memory{in_words}, {}", size::text(self.size_bytes))
    }

    fn in_memory(&self) -> bool {
        true
    }

    fn clears_memory(&self) -> bool {
        true
    }

    fn buffers_writes(&self) -> bool {
        true
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        let mut rest = buffer;
        for piece in pieces(offset, rest.len() as u64) {
            let (front, back) = rest.split_at_mut(piece.len);
            rest = back;
            let slot = self.chunk(piece).map(Chunk::read);
            match slot.as_deref() {
                Some(Some(memory)) => {
                    front.copy_from_slice(&memory.bytes()[piece.start..piece.start + piece.len]);
                }
                _ => front.fill(0),
            }
        }
        Ok(())
    }

    fn read_cached(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        self.read_at(offset, buffer)?;
        Ok(buffer.len())
    }

    fn lends(&self) -> bool {
        true
    }

    fn lend(&self, offset: u64, length: u64, waits: bool) -> Option<Lent<'_>> {
        let piece = pieces(offset, length).next()?;
        let chunk = match self.chunk(piece) {
            Some(chunk) if waits => Some(chunk.read()),
            Some(chunk) => Some(chunk.try_read()?),
            None => None,
        };
        Some(Lent::of(LockedPiece { chunk, start: piece.start, end: piece.start + piece.len }))
    }

    fn expect(&self, offset: u64, length: u64) {
        let Some(piece) = pieces(offset, length).next() else { return };
        if let Some(start) = self.chunk(piece).and_then(Chunk::hint) {
            nearer::bring(start.wrapping_add(piece.start), piece.len);
        }
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let mut rest = data;
        for piece in pieces(offset, rest.len() as u64) {
            let (front, back) = rest.split_at(piece.len);
            rest = back;
            let mut slot = self.chunk_for_write(piece)?.write(&self.areas)?;
            let memory = slot.as_mut().ok_or(Errno::NOSPC)?;
            memory.bytes_mut()[piece.start..piece.start + piece.len].copy_from_slice(front);
        }
        Ok(())
    }

    fn write_atomic_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        // All its memory is there before any of it is written.
        for piece in pieces(offset, data.len() as u64) {
            drop(self.chunk_for_write(piece)?.write(&self.areas)?);
        }
        self.write_at(offset, data)
    }

    fn flush(&self) -> io::Result<()> {
        Ok(())
    }

    fn zero(&self, offset: u64, length: u64, _unmap: bool) -> io::Result<()> {
        // Memory cannot be reserved without being used, so both kinds of zeroing free it.
        self.clear(offset, length);
        Ok(())
    }

    fn unmap(&self, offset: u64, length: u64) -> io::Result<()> {
        self.clear(offset, length);
        Ok(())
    }

    fn prefetch(&self, _offset: u64, _length: u64) -> io::Result<()> {
        Ok(())
    }

    fn extents(&self, offset: u64, length: u64) -> io::Result<Vec<Extent>> {
        let mut extents = Vec::new();
        let end = offset.saturating_add(length);
        let mut at = offset;
        while at < end {
            let in_group = (GROUP_BYTES - at % GROUP_BYTES).min(end - at);
            let group = usize::try_from(at / GROUP_BYTES).ok().and_then(|group| self.groups.get(group));
            if group.is_none_or(|group| group.get().is_none()) {
                if !push_extent(
                    &mut extents,
                    Extent { offset: at, length: in_group, allocation: Allocation::Hole },
                ) {
                    break;
                }
                at += in_group;
                continue;
            }
            let Some(piece) = pieces(at, in_group).next() else { break };
            let has_memory = self.chunk(piece).is_some_and(|chunk| chunk.read().is_some());
            let allocation = if has_memory { Allocation::Data } else { Allocation::Hole };
            let next = Extent { offset: at, length: piece.len as u64, allocation };
            if !push_extent(&mut extents, next) {
                break;
            }
            at += piece.len as u64;
        }
        Ok(extents)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOTH: [Pages; 2] = [Pages::Small, Pages::Large];

    #[test]
    fn chunks_come_with_writes_and_go_with_unmap() {
        for pages in BOTH {
            let store = open(1 << 40, pages).unwrap();
            let chunk = CHUNK_BYTES as u64;
            store.write_at(GROUP_BYTES - 10, &[7; 20]).unwrap();
            let extents = store.extents(0, 1 << 40).unwrap();
            assert_eq!(
                extents,
                [
                    Extent { offset: 0, length: GROUP_BYTES - chunk, allocation: Allocation::Hole },
                    Extent { offset: GROUP_BYTES - chunk, length: 2 * chunk, allocation: Allocation::Data },
                    Extent {
                        offset: GROUP_BYTES + chunk,
                        length: (1 << 40) - GROUP_BYTES - chunk,
                        allocation: Allocation::Hole
                    },
                ]
            );
            store.unmap(0, 1 << 40).unwrap();
            assert_eq!(
                store.extents(0, 1 << 40).unwrap(),
                [Extent { offset: 0, length: 1 << 40, allocation: Allocation::Hole }]
            );
        }
    }

    /// It is a hint: whatever is expected, nothing of the disk changes.
    #[test]
    fn what_is_expected_may_be_anything() {
        for pages in BOTH {
            let store = open(2 * GROUP_BYTES, pages).unwrap();
            store.write_at(CHUNK_BYTES as u64 - 10, &[7; 20]).unwrap();
            let before = store.extents(0, 2 * GROUP_BYTES).unwrap();
            let offsets =
                [0, CHUNK_BYTES as u64 - 1, GROUP_BYTES, 2 * GROUP_BYTES - 1, 2 * GROUP_BYTES, u64::MAX];
            for offset in offsets {
                [0, 1, 4096, u64::MAX].into_iter().for_each(|length| store.expect(offset, length));
            }
            assert_eq!(store.extents(0, 2 * GROUP_BYTES).unwrap(), before);
            let lent = store.lend(0, 512, true).unwrap();
            store.expect(0, 512);
            drop(lent);
            store.write_at(0, &[1]).unwrap();
        }
    }

    #[test]
    fn unmapping_goes_past_what_was_never_written() {
        for pages in BOTH {
            let store = open(4 * GROUP_BYTES, pages).unwrap();
            store.write_at(2 * GROUP_BYTES, &[7; 512]).unwrap();
            store.unmap(100, 3 * GROUP_BYTES).unwrap();
            let mut read = [1; 512];
            store.read_at(2 * GROUP_BYTES, &mut read).unwrap();
            assert_eq!(read, [0; 512]);
        }
    }

    #[test]
    fn a_part_of_a_chunk_is_zeroed_and_stays() {
        for pages in BOTH {
            let store = open(1 << 20, pages).unwrap();
            store.write_at(0, &[7; 1024]).unwrap();
            store.unmap(256, 256).unwrap();
            let mut read = [1; 1024];
            store.read_at(0, &mut read).unwrap();
            assert!(read[..256].iter().all(|byte| *byte == 7));
            assert!(read[256..512].iter().all(|byte| *byte == 0));
            assert!(read[512..].iter().all(|byte| *byte == 7));
            assert!(store.extents(0, 512).unwrap()[0].allocation == Allocation::Data);
        }
    }

    #[test]
    fn an_answer_about_a_fragmented_disk_is_bounded() {
        for pages in BOTH {
            let store = open(1 << 30, pages).unwrap();
            for index in (0..4096).step_by(2) {
                store.write_at(index * CHUNK_BYTES as u64, &[1]).unwrap();
            }
            let first = store.extents(0, 1 << 30).unwrap();
            assert_eq!(first.len(), EXTENTS_MAX_IN_TEST);
            let last = first[first.len() - 1];
            let end = last.offset + last.length;
            assert_eq!(end, EXTENTS_MAX_IN_TEST as u64 * CHUNK_BYTES as u64);
            assert!(
                store.extents(end, 1 << 20).unwrap()[0].allocation == Allocation::Data,
                "asking again goes on"
            );
        }
    }

    const EXTENTS_MAX_IN_TEST: usize = super::super::EXTENTS_MAX;

    #[test]
    fn absurd_sizes_are_refused() {
        for pages in BOTH {
            assert!(open(u64::MAX, pages).is_err());
            assert!(open(SIZE_BYTES_MAX + 1, pages).is_err());
        }
    }
}
