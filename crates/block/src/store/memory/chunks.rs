//! Where the chunks of a disk in memory have their memory from: areas, in small pages or in large ones. So each chunk begins with
//! a page, and a block of it lies in no more of them than it must.
//!
//! A chunk takes the first place that is free, wherever on the disk it is, and only where there is none a new area; an area whose
//! chunks have all gone goes, too. What a gap between chunks holds is kept for the next one, until half of the area is free: then
//! all that is free there is given back. So a disk never holds more than twice its chunks and one area, and what is being given
//! back. What goes together is given back area by area, for each call of the system takes longer than a small page is worth.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::CHUNK_BYTES;
use crate::area::{Pages, Slot};

/// Areas of one disk.
#[derive(Debug)]
pub(super) struct Areas {
    pages: Pages,
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

    fn add(&mut self, slots: impl IntoIterator<Item = Slot>, places: usize) {
        self.used.extend(slots);
        // An area that goes as a whole need not be split before.
        if self.count() == places || (self.count() < places / 2 && !self.is_sparse) {
            return;
        }
        if !self.is_sparse {
            self.is_sparse = true;
            // A large page has memory for what was never written, too.
            self.used.append(&mut self.zeroes);
        }
        Slot::empty_all(&mut self.used);
        self.zeroes.append(&mut self.used);
    }
}

impl Areas {
    pub(super) fn new(pages: Pages) -> Self {
        Self { pages, free: Mutex::default() }
    }

    pub(super) const fn pages(&self) -> Pages {
        self.pages
    }

    /// The chunks of an area.
    const fn places(&self) -> usize {
        self.pages.area_bytes() / CHUNK_BYTES
    }

    /// The state is whole between any two statements that could panic.
    fn lock(&self) -> MutexGuard<'_, BTreeMap<usize, FreePlaces>> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Zeroes for one chunk. `None` when the system has no memory.
    pub(super) fn take(&self) -> Option<Slot> {
        let mut free = self.lock();
        if let Some(mut area) = free.first_entry() {
            let slot = area.get_mut().take();
            if area.get().count() == 0 {
                area.remove();
            }
            return slot;
        }
        let mut zeroes = Slot::several(CHUNK_BYTES, self.pages).ok()?;
        let slot = zeroes.pop()?;
        free.insert(slot.area_address(), FreePlaces { zeroes, ..FreePlaces::default() });
        Some(slot)
    }

    /// Takes back what was taken here.
    pub(super) fn give_back(&self, mut slots: Vec<Slot>) {
        slots.sort_unstable_by_key(Slot::area_address);
        let mut slots = slots.into_iter().peekable();
        while let Some(address) = slots.peek().map(Slot::area_address) {
            let of_area = std::iter::from_fn(|| slots.next_if(|slot| slot.area_address() == address));
            let mut free = self.lock();
            let area = free.entry(address).or_default();
            area.add(of_area, self.places());
            let gone = if area.count() == self.places() { free.remove(&address) } else { None };
            drop(free);
            drop(gone);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Areas of both kinds, and how many chunks one of them has.
    fn both() -> [(Areas, usize); 2] {
        [Pages::Small, Pages::Large].map(|pages| (Areas::new(pages), pages.area_bytes() / CHUNK_BYTES))
    }

    fn resident_bytes<'a>(slots: impl IntoIterator<Item = &'a Slot>) -> usize {
        slots.into_iter().filter_map(Slot::resident_bytes).sum()
    }

    /// What free places hold.
    fn held_bytes(areas: &Areas) -> usize {
        areas.lock().values().map(|area| resident_bytes(area.zeroes.iter().chain(&area.used))).sum()
    }

    fn filled(areas: &Areas, count: usize) -> Vec<Slot> {
        let mut slots: Vec<Slot> = std::iter::from_fn(|| areas.take()).take(count).collect();
        assert!(slots.iter().all(|slot| slot.bytes().iter().all(|byte| *byte == 0)));
        slots.iter_mut().for_each(|slot| slot.bytes_mut().fill(7));
        slots
    }

    #[test]
    fn a_chunk_takes_a_free_place_before_a_new_area() {
        for (areas, places) in both() {
            let mut slots = filled(&areas, 3 * places);
            assert!(areas.lock().is_empty(), "all places are taken");
            let second = slots.remove(places + 5);
            let place = second.bytes().as_ptr().addr();
            areas.give_back(vec![second]);
            let again = areas.take().unwrap();
            assert_eq!(again.bytes().as_ptr().addr(), place);
            assert!(again.bytes().iter().all(|byte| *byte == 0));
            assert!(areas.lock().is_empty());
            let next = areas.take().unwrap();
            assert_eq!(next.bytes().as_ptr().addr(), next.area_address(), "a new area's first place");
            assert_eq!(areas.lock().values().map(FreePlaces::count).sum::<usize>(), places - 1);
        }
    }

    #[test]
    fn an_area_goes_with_its_last_chunk() {
        for (areas, places) in both() {
            let mut slots = filled(&areas, 2 * places);
            let second = slots.split_off(places);
            slots.into_iter().for_each(|slot| areas.give_back(vec![slot]));
            assert!(areas.lock().is_empty());
            assert!(second.iter().all(|slot| slot.bytes().iter().all(|byte| *byte == 7)));
        }
    }

    /// What goes with its last chunk is not emptied before, and where chunks stay, what is free is emptied once.
    #[test]
    fn chunks_that_go_together_go_area_by_area() {
        for (areas, places) in both() {
            let mut slots = filled(&areas, 3 * places);
            let kept = [slots.remove(places + 3), slots.remove(0)];
            slots.swap(1, 2 * places);
            areas.give_back(slots);
            let (kept_areas, held) = {
                let free = areas.lock();
                (
                    free.len(),
                    free.values().map(|area| (area.zeroes.len(), area.used.len())).collect::<Vec<_>>(),
                )
            };
            assert_eq!((kept_areas, held), (2, vec![(places - 1, 0); 2]));
            assert_eq!(held_bytes(&areas), 0);
            assert!(kept.iter().all(|slot| slot.bytes().iter().all(|byte| *byte == 7)));
        }
    }

    #[test]
    fn less_than_half_is_held_for_nobody() {
        for (areas, places) in both() {
            let mut slots = filled(&areas, places);
            for slot in slots.drain(..places / 2 - 1) {
                areas.give_back(vec![slot]);
            }
            assert_eq!(held_bytes(&areas), (places / 2 - 1) * CHUNK_BYTES);
            areas.give_back(vec![slots.remove(0)]);
            assert_eq!(held_bytes(&areas), 0);
            areas.give_back(vec![slots.remove(0)]);
            assert_eq!(held_bytes(&areas), 0);
            let mut more = filled(&areas, places / 2 + 1);
            assert!(areas.lock().is_empty(), "all places are taken again");
            areas.give_back(vec![more.remove(0)]);
            assert_eq!(held_bytes(&areas), CHUNK_BYTES, "and it is as it was at first");
            assert!(slots.iter().chain(&more).all(|slot| slot.bytes().iter().all(|byte| *byte == 7)));
        }
    }

    /// A large page has all of an area, also what nobody has used of it.
    #[test]
    fn what_came_with_a_chunk_goes_when_it_is_half_of_an_area() {
        for (areas, places) in both() {
            let mut slots = filled(&areas, 4);
            areas.give_back(vec![slots.remove(0)]);
            assert_eq!(held_bytes(&areas), 0);
            areas.give_back(vec![slots.remove(0)]);
            assert_eq!(areas.lock().values().map(FreePlaces::count).sum::<usize>(), places - 2);
        }
    }
}
