//! Memory for buffers, mapped for them alone. What a general allocator is given back it may keep, and a place between two that are in
//! use is of no use for a longer buffer: with buffers of several lengths a process then holds more than its pool counts. A page
//! that was given back here is the system's.

#![allow(unsafe_code)]

use std::io;
use std::ptr::{self, NonNull};
use std::slice;
use std::sync::Arc;

use crate::store::residency::page_bytes;

/// What is mapped at a time where a slot is no longer.
const AREA_BYTES: usize = 1 << 20;

/// One mapping. It is there as long as one of its slots is.
struct Area {
    at: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the memory belongs to the process; only the slots, which do not overlap, reach it.
unsafe impl Send for Area {}
// SAFETY: as above.
unsafe impl Sync for Area {}

impl Drop for Area {
    fn drop(&mut self) {
        // SAFETY: this is the mapping that `Slot::several` made, and no slot of it is left.
        unsafe { libc::munmap(self.at.as_ptr().cast(), self.bytes) };
    }
}

/// A part of a mapping that nobody else has: whole pages, which hold something, whatever that is.
pub(super) struct Slot {
    at: NonNull<u8>,
    bytes: usize,
    _area: Arc<Area>,
}

// SAFETY: a slot is the only one that reaches its memory, as a box is.
unsafe impl Send for Slot {}
// SAFETY: as above; a shared slot can only be read.
unsafe impl Sync for Slot {}

impl Slot {
    /// As many slots of `bytes` each, whole pages, as are mapped at a time; at least one.
    ///
    /// # Errors
    /// When the system has no memory.
    pub(super) fn several(bytes: usize) -> io::Result<Vec<Self>> {
        let count = (AREA_BYTES / bytes).max(1);
        let area_bytes = count * bytes;
        // SAFETY: a mapping of its own touches no other memory.
        let at = unsafe {
            libc::mmap(
                ptr::null_mut(),
                area_bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        if at == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        // Neighbouring areas are one to the kernel: a large page would bring memory for slots that nobody has.
        // SAFETY: advice about a mapping of our own.
        unsafe { libc::madvise(at, area_bytes, libc::MADV_NOHUGEPAGE) };
        let at = NonNull::new(at.cast::<u8>()).ok_or(io::ErrorKind::OutOfMemory)?;
        let area = Arc::new(Area { at, bytes: area_bytes });
        // SAFETY: `index * bytes` is less than the area's length.
        let place = |index: usize| unsafe { at.add(index * bytes) };
        // The first ones are taken first.
        Ok((0..count).rev().map(|index| Self { at: place(index), bytes, _area: Arc::clone(&area) }).collect())
    }

    /// Its length in bytes.
    pub(super) const fn length(&self) -> usize {
        self.bytes
    }

    pub(super) const fn bytes(&self) -> &[u8] {
        // SAFETY: the range is mapped as long as the slot is there, no other slot has any of it, and the system has filled it with zeroes.
        unsafe { slice::from_raw_parts(self.at.as_ptr(), self.bytes) }
    }

    pub(super) const fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and nobody else has this slot.
        unsafe { slice::from_raw_parts_mut(self.at.as_ptr(), self.bytes) }
    }

    /// Gives the memory back to the system, and keeps the place: who uses it again finds zeroes. Where the kernel has larger pages, and
    /// others have a part of this one's, there is nothing to give back.
    pub(super) fn empty(&mut self) {
        if !self.bytes.is_multiple_of(page_bytes()) {
            return self.bytes_mut().fill(0);
        }
        // SAFETY: the range is this slot's, and it is exclusive; afterwards it reads as zeroes. Where the process has locked its memory
        // that is refused, and nothing changes.
        unsafe { libc::madvise(self.at.as_ptr().cast(), self.bytes, libc::MADV_DONTNEED) };
    }
}

#[cfg(test)]
impl Slot {
    /// How much of it has memory.
    pub(super) fn resident_bytes(&self) -> usize {
        const PAGE_BYTES: usize = 4096;
        let mut pages = vec![0; self.bytes / PAGE_BYTES];
        // SAFETY: the range is mapped, and there is a byte for each of its pages.
        let result = unsafe { libc::mincore(self.at.as_ptr().cast(), self.bytes, pages.as_mut_ptr()) };
        assert_eq!(result, 0, "{}", io::Error::last_os_error());
        pages.iter().filter(|page| **page & 1 == 1).count() * PAGE_BYTES
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_do_not_overlap_and_outlive_one_another() {
        let mut slots = Slot::several(64 << 10).unwrap();
        assert_eq!(slots.len(), AREA_BYTES / (64 << 10));
        for (number, slot) in (1..).zip(&mut slots) {
            assert_eq!((slot.length(), slot.bytes().as_ptr().addr() % 4096), (64 << 10, 0));
            slot.bytes_mut().fill(number);
        }
        let last = slots.pop().unwrap();
        let first = slots.swap_remove(0);
        drop(slots);
        assert!(first.bytes().iter().all(|byte| *byte == 1) && last.bytes().iter().all(|byte| *byte == 16));
        assert_eq!(Slot::several(4 << 20).unwrap().len(), 1);
    }

    #[test]
    fn an_empty_slot_is_zero_and_its_neighbour_as_it_was() {
        let mut slots = Slot::several(8192).unwrap();
        slots.iter_mut().for_each(|slot| slot.bytes_mut().fill(7));
        slots[0].empty();
        assert!(slots[0].bytes().iter().all(|byte| *byte == 0));
        assert!(slots[1].bytes().iter().all(|byte| *byte == 7));
        slots[0].bytes_mut().fill(9);
        assert!(slots[0].bytes().iter().all(|byte| *byte == 9));
    }

    #[test]
    fn the_system_may_have_no_memory() {
        assert!(Slot::several(1 << 62).is_err());
    }
}
