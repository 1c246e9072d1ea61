//! What the kernel has lately said of the regions of a mapping.

use std::ops::Range;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};

use zerocopy::FromZeros;

use super::REGION_BYTES;

/// A bit for each page of a region: whether the page cache has it.
pub(super) type Pages = u16;

/// The clock of answers: it goes around in 70 minutes, and what is believed once too long for that costs a wait at worst.
const TICK_MS: u64 = 64;

/// For so many ticks an answer is believed: about a second.
const BELIEVED_TICKS: i16 = 16;

/// An answer that was of no use is believed for longer, since asking costs as much as a call.
const USELESS_TICKS: u16 = 64;

/// As many regions as the machine's memory has room for, and 64 GiB at most.
static COUNT_MAX: LazyLock<usize> = LazyLock::new(|| {
    let regions = super::memory::machine_bytes() / REGION_BYTES;
    regions.max(1).next_power_of_two().min(1 << 20)
});

/// A table in which regions of a large file share places: what is not in it is asked again.
#[derive(Debug)]
pub(super) struct Answers(Box<[AtomicU64]>);

/// One place: a region, its pages, and the tick of the answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Answer(u64);

/// Never zero, which tells an answer from none.
const fn tick(ms: u64) -> u16 {
    (ms / TICK_MS) as u16 | 1
}

impl Answer {
    const NONE: Self = Self(0);

    const fn new(region: usize, tick: u16, pages: Pages) -> Self {
        // No address space has more regions than 32 bits count.
        Self((region as u64) << 32 | (pages as u64) << 16 | tick as u64)
    }

    /// The region's pages, if that is still believed.
    fn about(self, region: usize, now_ms: u64) -> Option<Pages> {
        let given = self.0 as u16;
        // What is believed for longer was given in the future.
        let age = tick(now_ms).wrapping_sub(given) as i16;
        let is_believed = given != 0 && self.0 >> 32 == region as u64 && age < BELIEVED_TICKS;
        is_believed.then_some((self.0 >> 16) as Pages)
    }
}

impl Answers {
    /// `None` where there is no memory for them.
    pub(super) fn new(regions: usize) -> Option<Self> {
        Self::with_places(regions.next_power_of_two().min(*COUNT_MAX))
    }

    fn with_places(count: usize) -> Option<Self> {
        <[AtomicU64]>::new_box_zeroed_with_elems(count).ok().map(Self)
    }

    fn place(&self, region: usize) -> Option<&AtomicU64> {
        self.0.get(region & (self.0.len() - 1))
    }

    /// The pages of a region that are there; `None` if nothing is believed of it.
    pub(super) fn about(&self, region: usize, now_ms: u64) -> Option<Pages> {
        Answer(self.place(region)?.load(Ordering::Relaxed)).about(region, now_ms)
    }

    /// Notes the pages of a region, of which `wanted` were asked about.
    pub(super) fn note(&self, region: usize, now_ms: u64, pages: Pages, wanted: Pages) {
        let given = tick(now_ms);
        let given = if pages & wanted == wanted { given } else { given.wrapping_add(USELESS_TICKS) };
        if let Some(place) = self.place(region) {
            place.store(Answer::new(region, given, pages).0, Ordering::Relaxed);
        }
    }

    /// Nothing is believed of these any more, nor of others that share their places.
    pub(super) fn forget(&self, regions: Range<usize>) {
        for region in regions.take(self.0.len()) {
            if let Some(place) = self.place(region) {
                place.store(Answer::NONE.0, Ordering::Relaxed);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BELIEVED_MS: u64 = BELIEVED_TICKS as u64 * TICK_MS;

    #[test]
    fn answers_are_believed_for_a_second_and_for_longer_if_they_were_of_no_use() {
        for began_ms in [0, 100, 5000, (TICK_MS << 16) - 3, (1 << 32) + 17] {
            for region in [0, (1 << 32) - 8] {
                let answers = Answers::with_places(8).unwrap();
                answers.note(region, began_ms, 0b101, 0b1);
                assert_eq!(answers.about(region, began_ms), Some(0b101));
                assert_eq!(answers.about(region, began_ms + BELIEVED_MS - 2 * TICK_MS), Some(0b101));
                assert_eq!(answers.about(region, began_ms + BELIEVED_MS + TICK_MS), None);
                assert_eq!(answers.about(region ^ 8, began_ms), None, "it is about another one");
                answers.note(region, began_ms, 0b101, 0b11);
                assert_eq!(answers.about(region, began_ms + 4 * BELIEVED_MS), Some(0b101));
                assert_eq!(answers.about(region, began_ms + 5 * BELIEVED_MS + TICK_MS), None);
            }
        }
        assert_eq!(Answer::NONE.about(0, 0), None);
    }

    #[test]
    fn regions_share_places_and_take_no_others_answer() {
        let answers = Answers::with_places(8).unwrap();
        answers.note(3, 100, 1, 1);
        assert_eq!((answers.about(3, 100), answers.about(11, 100)), (Some(1), None));
        answers.note(11, 200, 2, 2);
        assert_eq!((answers.about(3, 200), answers.about(11, 200)), (None, Some(2)));
        answers.note(4, 200, 3, 3);
        answers.forget(3..4);
        assert_eq!((answers.about(11, 200), answers.about(4, 200)), (None, Some(3)));
        answers.forget(100..usize::MAX);
        assert_eq!(answers.about(4, 200), None);
    }
}
