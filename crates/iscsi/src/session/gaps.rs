//! Data-Out PDUs of a sequence in any order (RFC 7143, 13.18, DataPDUInOrder=No): which bytes the PDUs so far have passed
//! over.
//!
//! At ErrorRecoveryLevel 0 only. What is lost above it, and asked for again, is the affair of `recovery`.

/// The most gaps of one task. Segments of the size that everybody takes leave few; with this many, an initiator scatters
/// single bytes.
const GAPS_MAX: usize = 1024;

/// Ranges of a task's buffer that are still to come although later ones have come, each from its first byte to one behind
/// its last.
#[derive(Debug, Default)]
pub(super) struct Gaps(Vec<(u32, u32)>);

impl Gaps {
    /// Notes that nothing has come from `start` to `end`. False, and nothing is noted, when there are too many.
    pub(super) fn pass_over(&mut self, start: u32, end: u32) -> bool {
        if start >= end {
            return true;
        }
        let has_room = self.0.len() < GAPS_MAX;
        if has_room {
            self.0.push((start, end));
        }
        has_room
    }

    /// Whether all of a range is still to come.
    pub(super) fn contain(&self, start: u32, end: u32) -> bool {
        self.0.iter().any(|gap| gap.0 <= start && end <= gap.1)
    }

    /// A range that [`Self::contain`] has found has come. False when there are too many gaps: one of them is forgotten.
    pub(super) fn fill(&mut self, start: u32, end: u32) -> bool {
        let Some(at) = self.0.iter().position(|gap| gap.0 <= start && end <= gap.1) else { return true };
        let (first, last) = self.0.swap_remove(at);
        self.pass_over(first, start) && self.pass_over(end, last)
    }

    /// Whether a byte of a range is still to come; of such gaps nothing more is known afterwards.
    pub(super) fn close(&mut self, start: u32, end: u32) -> bool {
        let before = self.0.len();
        self.0.retain(|gap| gap.1 <= start || end <= gap.0);
        self.0.len() != before
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lunette_cases::cases;
    use proptest::prelude::*;

    #[test]
    fn gaps_are_bounded() {
        let mut gaps = Gaps::default();
        assert!((0..GAPS_MAX as u32).all(|at| gaps.pass_over(2 * at, 2 * at + 1)));
        assert!((0..9).all(|at| !gaps.pass_over((1 << 20) + at, (1 << 20) + 9)));
        let mut wide = Gaps::default();
        assert!(wide.pass_over(0, 1 << 20));
        assert!((0..GAPS_MAX as u32 - 1).all(|at| wide.fill(2 * at + 1, 2 * at + 2)));
        assert!(!wide.fill(1 << 19, (1 << 19) + 1));
        assert_eq!((gaps.0.len(), wide.0.len()), (GAPS_MAX, GAPS_MAX));
    }

    proptest! {
        #![proptest_config(cases(256))]

        /// The pieces of a range in any order leave nothing; without one of them, that is missing.
        #[test]
        fn pieces_in_any_order_fill_a_range(
            cuts in proptest::collection::btree_set(1u32..1000, 1..20),
            order in any::<prop::sample::Index>(), seed: u64,
        ) {
            let mut ends: Vec<u32> = cuts.into_iter().collect();
            ends.push(1000);
            let starts = std::iter::once(0).chain(ends.iter().copied());
            let mut pieces: Vec<(u32, u32)> = starts.zip(ends.iter().copied()).collect();
            let mut state = seed;
            for index in (1..pieces.len()).rev() {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                pieces.swap(index, (state >> 33) as usize % (index + 1));
            }
            let missing = order.index(pieces.len());
            for skipped in [None, Some(missing)] {
                let (mut gaps, mut next) = (Gaps::default(), 0);
                for (index, &(start, end)) in pieces.iter().enumerate() {
                    if Some(index) == skipped {
                        continue;
                    }
                    if start >= next {
                        prop_assert!(gaps.pass_over(next, start));
                        next = end;
                    } else {
                        prop_assert!(gaps.contain(start, end));
                        prop_assert!(gaps.fill(start, end));
                    }
                    prop_assert!(!gaps.contain(start, end), "it has come");
                }
                let is_whole = next == 1000 && !gaps.close(0, 1000);
                prop_assert_eq!(is_whole, skipped.is_none());
                prop_assert!(!gaps.close(0, 1000));
            }
        }
    }
}
