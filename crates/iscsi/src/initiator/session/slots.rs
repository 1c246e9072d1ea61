//! Where tasks and requests are kept: found by the Initiator Task Tag that names them on the wire (RFC 7143, 11.2.1.8),
//! without a search and without an allocation for each.
//!
//! A tag is a place and how often the place has been used, so that what a target says about a task that has ended is told
//! from what it says about the one that has its place now.

use lunette_wire::InitiatorTaskTag;

/// Places that one table may have. Behind them are one for tags that nothing is kept under, and the reserved tag's, all ones.
pub(super) const PLACES_MAX: usize = 0xfffe;

/// The place of tags that nothing is kept under.
const PASSING: u32 = PLACES_MAX as u32;
const PLACE_BITS: u32 = 16;
const PLACE: u32 = 0xffff;
/// Uses are counted in 15 bits; the highest bit of a tag tells the two tables of a session apart.
const USES: u32 = 0x7fff;
const TABLE: u32 = 1 << 31;

#[derive(Debug)]
struct Slot<T> {
    uses: u32,
    value: Option<T>,
}

/// A table of values with tags.
#[derive(Debug)]
pub(super) struct Slots<T> {
    slots: Vec<Slot<T>>,
    free: Vec<u16>,
    table: u32,
    passing: u32,
}

impl<T> Slots<T> {
    /// The table of SCSI commands.
    pub(super) const fn of_tasks() -> Self {
        Self { slots: Vec::new(), free: Vec::new(), table: 0, passing: 0 }
    }

    /// The table of all other requests.
    pub(super) const fn of_requests() -> Self {
        Self { slots: Vec::new(), free: Vec::new(), table: TABLE, passing: 0 }
    }

    pub(super) const fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Keeps a value; `None` when `max` values are kept.
    pub(super) fn insert(&mut self, value: T, max: usize) -> Option<InitiatorTaskTag> {
        if self.len() >= max.min(PLACES_MAX) {
            return None;
        }
        let place = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot { uses: 0, value: None });
            // No more than PLACES_MAX, which 16 bits can say.
            (self.slots.len() - 1) as u16
        });
        let slot = &mut self.slots[usize::from(place)];
        slot.value = Some(value);
        Some(InitiatorTaskTag(self.table | slot.uses << PLACE_BITS | u32::from(place)))
    }

    fn slot(&self, tag: InitiatorTaskTag) -> Option<&Slot<T>> {
        (tag.0 & TABLE == self.table).then(|| self.slots.get((tag.0 & PLACE) as usize)).flatten()
    }

    pub(super) fn get(&self, tag: InitiatorTaskTag) -> Option<&T> {
        let slot = self.slot(tag)?;
        if slot.uses == tag.0 >> PLACE_BITS & USES { slot.value.as_ref() } else { None }
    }

    pub(super) fn get_mut(&mut self, tag: InitiatorTaskTag) -> Option<&mut T> {
        if tag.0 & TABLE != self.table {
            return None;
        }
        let slot = self.slots.get_mut((tag.0 & PLACE) as usize)?;
        if slot.uses == tag.0 >> PLACE_BITS & USES { slot.value.as_mut() } else { None }
    }

    pub(super) fn remove(&mut self, tag: InitiatorTaskTag) -> Option<T> {
        self.get(tag)?;
        let slot = &mut self.slots[(tag.0 & PLACE) as usize];
        slot.uses = (slot.uses + 1) & USES;
        self.free.push((tag.0 & PLACE) as u16);
        slot.value.take()
    }

    /// A tag for something whose answer nobody waits for.
    pub(super) const fn passing_tag(&mut self) -> InitiatorTaskTag {
        self.passing = (self.passing + 1) & USES;
        InitiatorTaskTag(self.table | self.passing << PLACE_BITS | PASSING)
    }

    /// True for a tag that something had which has ended.
    pub(super) fn has_ended(&self, tag: InitiatorTaskTag) -> bool {
        if tag.0 & TABLE == self.table && tag.0 & PLACE == PASSING {
            return true;
        }
        self.slot(tag).is_some_and(|slot| {
            let behind = slot.uses.wrapping_sub(tag.0 >> PLACE_BITS) & USES;
            behind != 0 && behind <= USES / 2
        })
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (InitiatorTaskTag, &T)> {
        self.slots.iter().enumerate().filter_map(|(place, slot)| {
            let tag = InitiatorTaskTag(self.table | slot.uses << PLACE_BITS | place as u32);
            slot.value.as_ref().map(|value| (tag, value))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_used_again_under_another_tag() {
        let mut slots = Slots::of_tasks();
        let first = slots.insert('a', 9).unwrap();
        assert!(!slots.has_ended(first));
        assert_eq!(slots.remove(first), Some('a'));
        let second = slots.insert('b', 9).unwrap();
        assert_ne!(first, second);
        assert_eq!((slots.get(first), slots.get(second)), (None, Some(&'b')));
        assert!(slots.has_ended(first) && !slots.has_ended(second));
        assert_eq!(slots.remove(first), None);
        assert_eq!(slots.iter().collect::<Vec<_>>(), [(second, &'b')]);
    }

    #[test]
    fn a_tag_that_nobody_had_has_not_ended() {
        let mut slots = Slots::of_requests();
        let tag = slots.insert((), 9).unwrap();
        assert!(!slots.has_ended(InitiatorTaskTag(tag.0 + 1)));
        assert!(!slots.has_ended(InitiatorTaskTag(tag.0 + (1 << PLACE_BITS))));
        assert!(!slots.has_ended(InitiatorTaskTag(tag.0 & !TABLE)), "a task's tag");
        assert!(!slots.has_ended(InitiatorTaskTag::RESERVED));
        assert_eq!(slots.get(InitiatorTaskTag::RESERVED), None);
    }

    #[test]
    fn uses_are_counted_for_ever_and_never_give_the_reserved_tag() {
        let mut slots = Slots::of_requests();
        for _ in 0..=USES + 3 {
            let tag = slots.insert((), 1).unwrap();
            assert_ne!(tag, InitiatorTaskTag::RESERVED);
            assert_eq!(slots.insert((), 1), None, "no more than there may be");
            slots.remove(tag).unwrap();
            assert!(slots.has_ended(tag));
        }
    }
}
