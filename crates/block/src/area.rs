//! Memory for buffers and for disks in memory, mapped for them alone. What a general allocator is given back it may keep, and a place
//! between two that are in use is of no use for a longer buffer: with buffers of several lengths a process then holds more than its pool
//! counts. A page that was given back here is the system's.
//!
//! An area may be in large pages, of which the first byte that is used brings memory for all slots of the area. As soon as one of
//! them gives its memory back the kernel is told to use small pages there, for it would fill the gap again; once there is no gap
//! left, large ones again.

#![allow(unsafe_code)]

use std::collections::BTreeSet;
use std::io;
use std::ptr::{self, NonNull};
use std::slice;
use std::sync::{Arc, Mutex, Once, PoisonError};

use crate::store::residency::page_bytes;

/// What is mapped at a time where a slot is no longer.
const AREA_BYTES: usize = 1 << 20;

/// The length of a large page, and what it is aligned to, where pages are of 4 KiB. Kernels with others do not make large pages of it.
pub(crate) const LARGE_PAGE_BYTES: usize = 2 << 20;

/// The pages that the kernel is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Pages {
    /// Each comes when it is first used.
    #[default]
    Small,
    /// Transparent large pages, where the kernel has them.
    Large,
}

impl Pages {
    /// What is mapped at a time where a slot is no longer.
    pub(crate) const fn area_bytes(self) -> usize {
        match self {
            Self::Small => AREA_BYTES,
            Self::Large => LARGE_PAGE_BYTES,
        }
    }
}

/// One mapping. It is there as long as one of its slots is.
#[derive(Debug)]
struct Area {
    at: NonNull<u8>,
    bytes: usize,
    /// Of one in large pages, the addresses of the slots that have given their memory back.
    gaps: Option<Mutex<BTreeSet<usize>>>,
}

// SAFETY: the memory belongs to the process; only the slots, which do not overlap, reach it.
unsafe impl Send for Area {}
// SAFETY: as above.
unsafe impl Sync for Area {}

impl Drop for Area {
    fn drop(&mut self) {
        // SAFETY: this is the mapping that `Area::map` made, and no slot of it is left.
        unsafe { unmap(self.at, self.bytes) };
    }
}

/// Ends a mapping, or a part of one. The kernel refuses a part where the process has as many mappings as it may have: then the
/// memory goes and the addresses stay.
///
/// # Safety
/// Nobody may use that memory any more.
unsafe fn unmap(at: NonNull<u8>, bytes: usize) {
    static TOLD: Once = Once::new();
    // SAFETY: as the caller says.
    if unsafe { libc::munmap(at.as_ptr().cast(), bytes) } == 0 {
        return;
    }
    let error = io::Error::last_os_error();
    // SAFETY: as above.
    let keeps = unsafe { libc::madvise(at.as_ptr().cast(), bytes, libc::MADV_DONTNEED) } != 0;
    TOLD.call_once(|| {
        let what = if keeps { "memory" } else { "addresses" };
        tracing::warn!(%error, "{what} cannot be given back to the system, and this is not told again; {MAPPINGS}");
    });
}

/// What can be done where the kernel refuses to divide a mapping.
const MAPPINGS: &str = "the process may have too many mappings (sysctl vm.max_map_count)";

impl Area {
    /// Maps so many bytes, whole pages.
    fn map(bytes: usize, pages: Pages) -> io::Result<Self> {
        let spare_bytes = if pages == Pages::Large { LARGE_PAGE_BYTES } else { 0 };
        let mapped_bytes = bytes.checked_add(spare_bytes).ok_or(io::ErrorKind::OutOfMemory)?;
        // SAFETY: a mapping of its own touches no other memory.
        let mapped = unsafe {
            libc::mmap(
                ptr::null_mut(),
                mapped_bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        if mapped == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let mapped = NonNull::new(mapped.cast::<u8>()).ok_or(io::ErrorKind::OutOfMemory)?;
        let front_bytes = match pages {
            Pages::Small => 0,
            Pages::Large => mapped.addr().get().next_multiple_of(LARGE_PAGE_BYTES) - mapped.addr().get(),
        };
        // SAFETY: it is no more than what was mapped beyond `bytes`.
        let at = unsafe { mapped.add(front_bytes) };
        // SAFETY: as above, and `bytes` of the mapping lie behind it.
        let back = unsafe { at.add(bytes) };
        for (spare, bytes) in [(mapped, front_bytes), (back, spare_bytes - front_bytes)] {
            if bytes > 0 {
                // SAFETY: a part of the mapping that nobody has.
                unsafe { unmap(spare, bytes) };
            }
        }
        let gaps = (pages == Pages::Large).then(Mutex::default);
        let area = Self { at, bytes, gaps };
        // Neighbouring areas are one to the kernel: a large page would bring memory for slots that nobody has.
        area.advise(pages);
        Ok(area)
    }

    /// Says which pages are to be used from now on. A kernel that knows no large ones refuses that, and nothing is lost.
    fn advise(&self, pages: Pages) {
        static TOLD: Once = Once::new();
        let advice = match pages {
            Pages::Small => libc::MADV_NOHUGEPAGE,
            Pages::Large => libc::MADV_HUGEPAGE,
        };
        // SAFETY: advice about a mapping of our own, which changes none of its bytes.
        if unsafe { libc::madvise(self.at.as_ptr().cast(), self.bytes, advice) } == 0 {
            return;
        }
        let error = io::Error::last_os_error();
        if error.raw_os_error() != Some(libc::EINVAL) {
            TOLD.call_once(|| {
                tracing::warn!(%error, "the kernel cannot be told where large pages suit, and this is not told again; {MAPPINGS}");
            });
        }
    }

    /// Before slots give their memory back.
    fn open_gaps(&self, slots: &[Slot]) {
        let Some(gaps) = &self.gaps else { return };
        let mut gaps = gaps.lock().unwrap_or_else(PoisonError::into_inner);
        let had_none = gaps.is_empty();
        gaps.extend(slots.iter().map(|slot| slot.at.addr().get()));
        if had_none {
            self.advise(Pages::Small);
        }
    }

    /// Before a slot is used, which may have done so.
    fn close_gap(&self, address: usize) {
        let Some(gaps) = &self.gaps else { return };
        let mut gaps = gaps.lock().unwrap_or_else(PoisonError::into_inner);
        if gaps.remove(&address) && gaps.is_empty() {
            self.advise(Pages::Large);
        }
    }
}

/// A part of a mapping that nobody else has: whole pages, which hold something, whatever that is.
#[derive(Debug)]
pub(crate) struct Slot {
    at: NonNull<u8>,
    bytes: usize,
    area: Arc<Area>,
}

// SAFETY: a slot is the only one that reaches its memory, as a box is.
unsafe impl Send for Slot {}
// SAFETY: as above; a shared slot can only be read.
unsafe impl Sync for Slot {}

impl Slot {
    /// As many slots of `bytes` each, whole pages, as are mapped at a time; at least one. They are zeroes. Large pages need more
    /// addresses than they have bytes, for the alignment: where there are too few of them, small ones come instead.
    ///
    /// # Errors
    /// When the system has no memory.
    pub(crate) fn several(bytes: usize, pages: Pages) -> io::Result<Vec<Self>> {
        let count = (pages.area_bytes() / bytes).max(1);
        let length = count.checked_mul(bytes).ok_or(io::ErrorKind::OutOfMemory)?;
        let in_small_pages = |error| match pages {
            Pages::Small => Err(error),
            Pages::Large => Area::map(length, Pages::Small),
        };
        let area = Arc::new(Area::map(length, pages).or_else(in_small_pages)?);
        // SAFETY: `index * bytes` is less than the area's length.
        let place = |index: usize| unsafe { area.at.add(index * bytes) };
        let slot = |index| Self { at: place(index), bytes, area: Arc::clone(&area) };
        // The first ones are taken first.
        Ok((0..count).rev().map(slot).collect())
    }

    /// Its length in bytes.
    pub(crate) const fn length(&self) -> usize {
        self.bytes
    }

    /// Where its area begins: the same for all slots of one area, and for no other as long as one of them is there.
    pub(crate) fn area_address(&self) -> usize {
        self.area.at.addr().get()
    }

    pub(crate) const fn bytes(&self) -> &[u8] {
        // SAFETY: the range is mapped as long as the slot is there, no other slot has any of it, and the system has filled it with zeroes.
        unsafe { slice::from_raw_parts(self.at.as_ptr(), self.bytes) }
    }

    pub(crate) const fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and nobody else has this slot.
        unsafe { slice::from_raw_parts_mut(self.at.as_ptr(), self.bytes) }
    }

    /// Gives the memory back to the system, and keeps the place, which is zeroes. Where the kernel has larger pages, and
    /// others have a part of this one's, there is nothing to give back. Who uses the place again [says so](Self::reuse).
    pub(crate) fn empty(&mut self) {
        Self::empty_all(slice::from_mut(self));
    }

    /// The same of several: neighbours go together. Puts them in the order of their addresses.
    pub(crate) fn empty_all(slots: &mut [Self]) {
        slots.sort_unstable_by_key(|slot| slot.at);
        for slots in slots.chunk_by_mut(|slot, next| Arc::ptr_eq(&slot.area, &next.area)) {
            let Some(Self { area, bytes, .. }) = slots.first() else { continue };
            if !bytes.is_multiple_of(page_bytes()) {
                slots.iter_mut().for_each(|slot| slot.bytes_mut().fill(0));
                continue;
            }
            area.open_gaps(slots);
            Self::neighbours(slots).for_each(Self::empty_neighbours);
        }
    }

    /// Slots of an area, in the order of their addresses: those together that have nothing between them.
    fn neighbours(slots: &mut [Self]) -> impl Iterator<Item = &mut [Self]> {
        slots.chunk_by_mut(|slot, next| slot.at.addr().get() + slot.bytes == next.at.addr().get())
    }

    /// Slots without anything between them.
    fn empty_neighbours(slots: &mut [Self]) {
        static TOLD: Once = Once::new();
        let Some(Self { at, .. }) = slots.first() else { return };
        let bytes = slots.iter().map(|slot| slot.bytes).sum();
        // SAFETY: the range is these slots', and they are exclusive; afterwards it reads as zeroes.
        let result = unsafe { libc::madvise(at.as_ptr().cast(), bytes, libc::MADV_DONTNEED) };
        if result != 0 {
            let error = io::Error::last_os_error();
            TOLD.call_once(|| {
                let why = "the process may have locked its memory";
                tracing::warn!(%error, "memory that is free is kept, and this is not told again; {why}");
            });
            slots.iter_mut().for_each(|slot| slot.bytes_mut().fill(0));
        }
    }

    /// It is going to be used again.
    pub(crate) fn reuse(&mut self) {
        self.area.close_gap(self.at.addr().get());
    }

    /// How much of it has memory; `None` where the kernel does not tell.
    pub(crate) fn resident_bytes(&self) -> Option<usize> {
        let mut pages = vec![0; self.bytes.div_ceil(page_bytes())];
        // SAFETY: the range is mapped, and there is a byte for each of its pages.
        let result = unsafe { libc::mincore(self.at.as_ptr().cast(), self.bytes, pages.as_mut_ptr()) };
        (result == 0).then(|| pages.iter().filter(|page| **page & 1 == 1).count() * page_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_do_not_overlap_and_outlive_one_another() {
        for pages in [Pages::Small, Pages::Large] {
            let mut slots = Slot::several(64 << 10, pages).unwrap();
            let count = slots.len();
            assert_eq!(count, pages.area_bytes() / (64 << 10));
            for (number, slot) in (1..).zip(&mut slots) {
                assert_eq!((slot.length(), slot.bytes().as_ptr().addr() % 4096), (64 << 10, 0));
                assert!(slot.bytes().iter().all(|byte| *byte == 0));
                slot.bytes_mut().fill(number);
            }
            let last = slots.pop().unwrap();
            let first = slots.swap_remove(0);
            drop(slots);
            assert!(first.bytes().iter().all(|byte| *byte == 1));
            assert!(last.bytes().iter().all(|byte| usize::from(*byte) == count));
            assert_eq!(Slot::several(4 << 20, pages).unwrap().len(), 1);
        }
    }

    #[test]
    fn areas_in_large_pages_are_aligned_to_them() {
        for bytes in [4096, 64 << 10, 2 << 20, 16 << 20] {
            let slots = Slot::several(bytes, Pages::Large).unwrap();
            let first = slots.iter().map(|slot| slot.bytes().as_ptr().addr()).min();
            assert!(first.is_some_and(|first| first % LARGE_PAGE_BYTES == 0));
            assert!(slots.iter().all(|slot| Some(slot.area_address()) == first));
            assert_eq!(slots.len() * bytes % LARGE_PAGE_BYTES, 0);
        }
    }

    /// What was not used comes with what was, where the kernel has large pages; what is emptied is given back, and is not filled again.
    #[test]
    fn a_large_page_is_split_by_the_first_slot_that_goes_and_asked_for_again_after_the_last() {
        let mut slots = Slot::several(512 << 10, Pages::Large).unwrap();
        slots[0].bytes_mut()[0] = 1;
        let resident = |slots: &[Slot]| slots.iter().filter_map(Slot::resident_bytes).sum::<usize>();
        let is_large = resident(&slots) == LARGE_PAGE_BYTES;
        let gaps = |slots: &[Slot]| slots[0].area.gaps.as_ref().unwrap().lock().unwrap().len();
        slots[1].empty();
        slots[2].empty();
        slots[2].empty();
        assert_eq!(gaps(&slots), 2);
        assert_eq!(slots[1..3].iter().filter_map(Slot::resident_bytes).sum::<usize>(), 0);
        assert!(!is_large || resident(&slots) == LARGE_PAGE_BYTES / 2);
        slots[1].reuse();
        slots[1].bytes_mut()[0] = 1;
        assert!(slots[1].resident_bytes() < Some(512 << 10), "a small page: there is a gap yet");
        slots[2].reuse();
        slots[2].reuse();
        assert_eq!(gaps(&slots), 0);
        assert_eq!(slots[0].bytes()[0], 1);
    }

    #[test]
    fn slots_that_go_together_leave_the_others_as_they_were() {
        for pages in [Pages::Small, Pages::Large] {
            let (mut slots, mut others) =
                (Slot::several(64 << 10, pages).unwrap(), Slot::several(64 << 10, pages).unwrap());
            slots.iter_mut().chain(&mut others).for_each(|slot| slot.bytes_mut().fill(7));
            let kept = [slots.remove(3), slots.remove(8), others.remove(0)];
            slots.append(&mut others);
            let area = Arc::clone(&kept[0].area);
            Slot::empty_all(&mut slots);
            let neighbours: Vec<usize> = Slot::neighbours(&mut slots).map(|slots| slots.len()).collect();
            assert_eq!(neighbours.iter().sum::<usize>(), slots.len());
            assert!(neighbours.len() <= 2 + 3, "{neighbours:?}");
            assert!(slots.iter().all(|slot| slot.resident_bytes() == Some(0)));
            assert!(slots.iter().all(|slot| slot.bytes().iter().all(|byte| *byte == 0)));
            assert!(kept.iter().all(|slot| slot.bytes().iter().all(|byte| *byte == 7)));
            let gaps = area.gaps.as_ref().map(|gaps| gaps.lock().unwrap().len());
            assert_eq!(gaps, (pages == Pages::Large).then_some(32 - 2));
        }
    }

    /// The kernel refuses at once what is more than the machine has, unless it is told to give out anything, or no more than that.
    #[test]
    fn small_pages_come_where_addresses_for_large_ones_are_missing() {
        let told = std::fs::read_to_string("/proc/meminfo").unwrap();
        let bytes_of = |name: &str| -> usize {
            let line = told.lines().find(|line| line.starts_with(name)).unwrap();
            line.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() << 10
        };
        let all = bytes_of("MemTotal:") + bytes_of("SwapTotal:");
        let is_given = |pages| Slot::several(all, pages).is_ok();
        assert_eq!(is_given(Pages::Large), is_given(Pages::Small));
    }

    #[test]
    fn an_empty_slot_is_zero_and_its_neighbour_as_it_was() {
        for pages in [Pages::Small, Pages::Large] {
            let mut slots = Slot::several(8192, pages).unwrap();
            slots.iter_mut().for_each(|slot| slot.bytes_mut().fill(7));
            slots[0].empty();
            assert!(slots[0].bytes().iter().all(|byte| *byte == 0));
            assert!(slots[1].bytes().iter().all(|byte| *byte == 7));
            slots[0].bytes_mut().fill(9);
            assert!(slots[0].bytes().iter().all(|byte| *byte == 9));
        }
    }

    #[test]
    fn the_system_may_have_no_memory() {
        assert!(Slot::several(1 << 62, Pages::Small).is_err());
        assert!(Slot::several(1 << 62, Pages::Large).is_err());
    }
}
