//! Where the chunks of a disk in memory have their memory from: the general allocator, or areas in large pages.
//!
//! An area is as many chunks as one large page has. A chunk takes the first place that is free, wherever on the disk it is, and only where
//! there is none a new area; an area whose chunks have all gone goes, too. What a gap between chunks holds is kept for the next one, until half of
//! the area is free: then all that is free there is given back. So a disk never holds more than twice its chunks and one large page.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::{Mutex, MutexGuard, PoisonError, RwLockReadGuard};

use zerocopy::FromZeros;

use super::{CHUNK_BYTES, Locked};
use crate::area::{LARGE_PAGE_BYTES, Pages, Slot};

/// The chunks of an area.
const PLACES: usize = LARGE_PAGE_BYTES / CHUNK_BYTES;

/// The memory of one chunk.
pub(super) trait Bytes: Debug + Send + Sync {
    fn bytes(&self) -> &[u8];

    fn bytes_mut(&mut self) -> &mut [u8];
}

impl Bytes for Box<[u8; CHUNK_BYTES]> {
    fn bytes(&self) -> &[u8] {
        &**self
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        &mut **self
    }
}

impl Bytes for Slot {
    fn bytes(&self) -> &[u8] {
        self.bytes()
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        self.bytes_mut()
    }
}

/// What gives chunks their memory.
pub(super) trait Source: Debug + Send + Sync {
    type Memory: Bytes;

    /// What is added to the store's name for people.
    const IN_WORDS: &'static str;

    /// Zeroes for one chunk. `None` when the system has no memory.
    fn take(&self) -> Option<Self::Memory>;

    /// Takes back what was taken here.
    fn give_back(&self, memory: Self::Memory);

    fn locked(chunk: RwLockReadGuard<'_, Option<Self::Memory>>) -> Locked<'_>;
}

/// The general allocator.
#[derive(Debug)]
pub(super) struct Allocator;

impl Source for Allocator {
    type Memory = Box<[u8; CHUNK_BYTES]>;

    const IN_WORDS: &'static str = "";

    fn take(&self) -> Option<Self::Memory> {
        <[u8; CHUNK_BYTES]>::new_box_zeroed().ok()
    }

    fn give_back(&self, memory: Self::Memory) {
        drop(memory);
    }

    fn locked(chunk: RwLockReadGuard<'_, Option<Self::Memory>>) -> Locked<'_> {
        Locked::Allocated(chunk)
    }
}

/// Areas of one disk in large pages.
#[derive(Debug, Default)]
pub(super) struct LargeAreas {
    /// Those with free places, by their addresses.
    free: Mutex<BTreeMap<usize, FreePlaces>>,
}

/// The free places of an area.
#[derive(Debug, Default)]
struct FreePlaces {
    /// Nothing was written to these, or their memory was given back.
    zeroes: Vec<Slot>,
    /// These have what a chunk had.
    used: Vec<Slot>,
    /// Half of it was free since all of it was in use: what is free has no memory.
    is_sparse: bool,
}

impl FreePlaces {
    fn count(&self) -> usize {
        self.zeroes.len() + self.used.len()
    }

    fn take(&mut self) -> Option<Slot> {
        if let Some(mut slot) = self.used.pop() {
            slot.bytes_mut().fill(0);
            return Some(slot);
        }
        let mut slot = self.zeroes.pop()?;
        slot.reuse();
        Some(slot)
    }

    fn add(&mut self, slot: Slot) {
        self.used.push(slot);
        // An area that goes as a whole need not be split before.
        if self.count() == PLACES || (self.count() < PLACES / 2 && !self.is_sparse) {
            return;
        }
        if !self.is_sparse {
            self.is_sparse = true;
            // A large page has memory for what was never written, too.
            self.zeroes.iter_mut().for_each(Slot::empty);
        }
        self.used.iter_mut().for_each(Slot::empty);
        self.zeroes.append(&mut self.used);
    }
}

impl LargeAreas {
    /// The state is whole between any two statements that could panic.
    fn lock(&self) -> MutexGuard<'_, BTreeMap<usize, FreePlaces>> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Source for LargeAreas {
    type Memory = Slot;

    const IN_WORDS: &'static str = " in large pages";

    fn take(&self) -> Option<Slot> {
        let mut free = self.lock();
        if let Some(mut area) = free.first_entry() {
            let slot = area.get_mut().take();
            if area.get().count() == 0 {
                area.remove();
            }
            return slot;
        }
        let mut zeroes = Slot::several(CHUNK_BYTES, Pages::Large).ok()?;
        let slot = zeroes.pop()?;
        free.insert(slot.area_address(), FreePlaces { zeroes, ..FreePlaces::default() });
        Some(slot)
    }

    fn give_back(&self, slot: Slot) {
        let address = slot.area_address();
        let mut free = self.lock();
        let area = free.entry(address).or_default();
        area.add(slot);
        let gone = if area.count() == PLACES { free.remove(&address) } else { None };
        drop(free);
        drop(gone);
    }

    fn locked(chunk: RwLockReadGuard<'_, Option<Slot>>) -> Locked<'_> {
        Locked::Large(chunk)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resident_bytes<'a>(slots: impl IntoIterator<Item = &'a Slot>) -> usize {
        slots.into_iter().filter_map(Slot::resident_bytes).sum()
    }

    /// What free places hold.
    fn held_bytes(areas: &LargeAreas) -> usize {
        areas.lock().values().map(|area| resident_bytes(area.zeroes.iter().chain(&area.used))).sum()
    }

    fn filled(areas: &LargeAreas, count: usize) -> Vec<Slot> {
        let mut slots: Vec<Slot> = std::iter::from_fn(|| areas.take()).take(count).collect();
        assert!(slots.iter().all(|slot| slot.bytes().iter().all(|byte| *byte == 0)));
        slots.iter_mut().for_each(|slot| slot.bytes_mut().fill(7));
        slots
    }

    #[test]
    fn a_chunk_takes_a_free_place_before_a_new_area() {
        let areas = LargeAreas::default();
        let mut slots = filled(&areas, 3 * PLACES);
        assert!(areas.lock().is_empty(), "all places are taken");
        let second = slots.remove(PLACES + 5);
        let place = second.bytes().as_ptr().addr();
        areas.give_back(second);
        let again = areas.take().unwrap();
        assert_eq!(again.bytes().as_ptr().addr(), place);
        assert!(again.bytes().iter().all(|byte| *byte == 0));
        assert!(areas.lock().is_empty());
        let next = areas.take().unwrap();
        assert_eq!(next.bytes().as_ptr().addr() % LARGE_PAGE_BYTES, 0, "a new area's first place");
        assert_eq!(areas.lock().values().map(FreePlaces::count).sum::<usize>(), PLACES - 1);
    }

    #[test]
    fn an_area_goes_with_its_last_chunk() {
        let areas = LargeAreas::default();
        let mut slots = filled(&areas, 2 * PLACES);
        let second = slots.split_off(PLACES);
        slots.into_iter().for_each(|slot| areas.give_back(slot));
        assert!(areas.lock().is_empty());
        assert!(second.iter().all(|slot| slot.bytes().iter().all(|byte| *byte == 7)));
    }

    #[test]
    fn less_than_half_is_held_for_nobody() {
        let areas = LargeAreas::default();
        let mut slots = filled(&areas, PLACES);
        for slot in slots.drain(..PLACES / 2 - 1) {
            areas.give_back(slot);
        }
        assert_eq!(held_bytes(&areas), LARGE_PAGE_BYTES / 2 - CHUNK_BYTES);
        areas.give_back(slots.remove(0));
        assert_eq!(held_bytes(&areas), 0);
        areas.give_back(slots.remove(0));
        assert_eq!(held_bytes(&areas), 0);
        let mut more = filled(&areas, PLACES / 2 + 1);
        assert!(areas.lock().is_empty(), "all places are taken again");
        areas.give_back(more.remove(0));
        assert_eq!(held_bytes(&areas), CHUNK_BYTES, "and it is as it was at first");
        assert!(slots.iter().chain(&more).all(|slot| slot.bytes().iter().all(|byte| *byte == 7)));
    }

    /// A large page has all of an area, also what nobody has used of it.
    #[test]
    fn what_came_with_a_chunk_goes_when_it_is_half_of_an_area() {
        let areas = LargeAreas::default();
        let mut slots = filled(&areas, 4);
        areas.give_back(slots.remove(0));
        assert_eq!(held_bytes(&areas), 0);
        areas.give_back(slots.remove(0));
        assert_eq!(areas.lock().values().map(FreePlaces::count).sum::<usize>(), PLACES - 2);
    }
}
