//! What the kernel has lately said of the regions of a mapping.

use std::ops::Range;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};

use zerocopy::FromZeros;

use super::REGION_BYTES;

/// How long an answer is believed.
const BELIEVED_MS: u32 = 1000;

/// As many regions as the machine's memory has room for, and 64 GiB at most.
static COUNT_MAX: LazyLock<usize> = LazyLock::new(|| {
    let regions = super::memory_bytes() / REGION_BYTES;
    regions.max(1).next_power_of_two().min(1 << 20)
});

/// A table in which regions of a large file share places: what is not in it is asked again.
#[derive(Debug)]
pub(super) struct Answers(Box<[AtomicU64]>);

/// One place: a region, an answer about it, and when it came. Its clock goes around in twelve days; what is believed once too long for that costs
/// a wait at worst.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Answer(u64);

impl Answer {
    const NONE: Self = Self(0);

    /// Tells an answer from none.
    const WAS_GIVEN: u32 = 2;

    const fn new(region: usize, now_ms: u64, is_resident: bool) -> Self {
        let answer = ((now_ms as u32) << 2) | Self::WAS_GIVEN | is_resident as u32;
        Self((region as u64) << 32 | answer as u64)
    }

    /// Whether the region is there, if that is still believed.
    fn about(self, region: usize, now_ms: u64) -> Option<bool> {
        // No address space has more regions than fit.
        let is_of_it = self.0 >> 32 == region as u64;
        let answer = self.0 as u32;
        let age_ms = ((now_ms as u32) << 2).wrapping_sub(answer & !3) >> 2;
        (is_of_it && answer & Self::WAS_GIVEN != 0 && age_ms < BELIEVED_MS).then_some(answer & 1 == 1)
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

    /// Whether the region is there; `None` if nothing is believed of it.
    pub(super) fn about(&self, region: usize, now_ms: u64) -> Option<bool> {
        Answer(self.place(region)?.load(Ordering::Relaxed)).about(region, now_ms)
    }

    pub(super) fn note(&self, region: usize, now_ms: u64, is_resident: bool) {
        if let Some(place) = self.place(region) {
            place.store(Answer::new(region, now_ms, is_resident).0, Ordering::Relaxed);
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

    #[test]
    fn answers_are_believed_for_a_second() {
        for began_ms in [0, 1, 5000, (1 << 30) - 3, (1 << 32) + 17] {
            for (region, is_resident) in [(0, true), (0, false), ((1 << 32) - 1, true)] {
                let answer = Answer::new(region, began_ms, is_resident);
                assert_eq!(answer.about(region, began_ms), Some(is_resident));
                assert_eq!(answer.about(region, began_ms + 999), Some(is_resident));
                assert_eq!(answer.about(region, began_ms + 1000), None);
                assert_eq!(answer.about(region, began_ms + 100_000_000), None);
                assert_eq!(answer.about(region ^ 1, began_ms), None, "it is about another one");
            }
        }
        assert_eq!(Answer::NONE.about(0, 0), None);
    }

    #[test]
    fn regions_share_places_and_take_no_others_answer() {
        let answers = Answers::with_places(8).unwrap();
        answers.note(3, 100, true);
        assert_eq!((answers.about(3, 100), answers.about(11, 100)), (Some(true), None));
        answers.note(11, 200, false);
        assert_eq!((answers.about(3, 200), answers.about(11, 200)), (None, Some(false)));
        answers.note(4, 200, true);
        answers.forget(3..4);
        assert_eq!((answers.about(11, 200), answers.about(4, 200)), (None, Some(true)));
        answers.forget(100..usize::MAX);
        assert_eq!(answers.about(4, 200), None);
        answers.forget(7..7);
    }
}
