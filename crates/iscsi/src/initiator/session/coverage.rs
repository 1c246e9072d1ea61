//! Which bytes of a read have come, or which PDUs by their numbers. With data in order that is one number; with DataPDUInOrder=No or
//! DataSequenceInOrder=No (RFC 7143, 13.18 and 13.19), or where PDUs were lost, there are islands behind it.

/// Islands that one task may have; a target that makes more breaks 512-byte segments apart for spite.
const ISLANDS_MAX: usize = 16_384;

/// Why a range cannot be taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Refused {
    /// Bytes of it came before.
    Overlap,
    /// There are too many islands.
    Scattered,
}

/// Bytes from the start, and islands behind them, in order and apart from one another.
#[derive(Debug, Default)]
pub(super) struct Coverage {
    contiguous: u32,
    islands: Vec<(u32, u32)>,
}

impl Coverage {
    /// Bytes that came from the start without a hole.
    pub(super) const fn contiguous(&self) -> u32 {
        self.contiguous
    }

    /// All that came.
    pub(super) fn total(&self) -> u32 {
        self.contiguous + self.islands.iter().map(|(start, end)| end - start).sum::<u32>()
    }

    /// Where the first island begins.
    pub(super) fn first_island(&self) -> Option<u32> {
        self.islands.first().map(|island| island.0)
    }

    /// Forgets the islands.
    pub(super) fn truncate(&mut self) {
        self.islands.clear();
    }

    /// Whether bytes of a range have come.
    pub(super) fn touches(&self, start: u32, end: u32) -> bool {
        if start == end {
            return false;
        }
        let at = self.islands.partition_point(|island| island.1 <= start);
        start < self.contiguous || self.islands.get(at).is_some_and(|island| island.0 < end)
    }

    /// Takes a range in; `end` is not before `start`.
    pub(super) fn take(&mut self, start: u32, end: u32) -> Result<(), Refused> {
        if start == end {
            return Ok(());
        }
        if start == self.contiguous && self.islands.is_empty() {
            self.contiguous = end;
            return Ok(());
        }
        if self.touches(start, end) {
            return Err(Refused::Overlap);
        }
        let at = self.islands.partition_point(|island| island.1 <= start);
        let joins_before = at > 0 && self.islands[at - 1].1 == start;
        let joins_behind = self.islands.get(at).is_some_and(|island| island.0 == end);
        match (joins_before, joins_behind) {
            (true, true) => {
                self.islands[at - 1].1 = self.islands[at].1;
                self.islands.remove(at);
            }
            (true, false) => self.islands[at - 1].1 = end,
            (false, true) => self.islands[at].0 = start,
            (false, false) if self.islands.len() >= ISLANDS_MAX => return Err(Refused::Scattered),
            (false, false) => self.islands.insert(at, (start, end)),
        }
        if self.islands[0].0 == self.contiguous {
            self.contiguous = self.islands.remove(0).1;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// A map of single bytes is the model.
        #[test]
        fn agrees_with_a_map_of_bytes(ranges in proptest::collection::vec((0u32..60, 0u32..9), 0..40)) {
            let mut coverage = Coverage::default();
            let mut bytes = [false; 80];
            for (start, length) in ranges {
                let range = start as usize..(start + length) as usize;
                let is_free = !bytes[range.clone()].contains(&true);
                prop_assert_eq!(coverage.touches(start, start + length), !is_free);
                prop_assert_eq!(coverage.take(start, start + length).is_ok(), is_free);
                bytes[range].fill(true);
                if !is_free {
                    break;
                }
                let contiguous = bytes.iter().take_while(|came| **came).count();
                prop_assert_eq!(coverage.contiguous() as usize, contiguous);
                prop_assert_eq!(coverage.total() as usize, bytes.iter().filter(|came| **came).count());
            }
        }
    }

    #[test]
    fn islands_are_bounded() {
        let mut coverage = Coverage::default();
        let mut taken = 0;
        let refused = (0..).find_map(|index| {
            taken = index;
            coverage.take(2 * index + 1, 2 * index + 2).err()
        });
        assert_eq!((refused, taken as usize), (Some(Refused::Scattered), ISLANDS_MAX));
    }
}
