//! Answers go out in parts while more commands are looked at, so that both ends work at once.
//!
//! Who answers all that one read has brought with one write has a convoy: the initiator sleeps until all is answered, and then the target
//! until all is asked for anew. What goes out early keeps the initiator busy meanwhile; each part costs a write
//! (docs/decisions/0049).

use lunette_wire::BHS_LENGTH;

/// Of what is under way a part is one in so many.
const PARTS: usize = 3;
/// Answers of a part at least: each costs a write, and often a waking of the initiator.
const PART_MIN: usize = 4;
/// And at most.
const PART_MAX: usize = 32;

/// How many short reads are answered before their answers are sent.
#[derive(Debug, Default)]
pub(super) struct Parts {
    /// Answers of a part; `None`: all go out at the end.
    length: Option<usize>,
    ready: usize,
}

impl Parts {
    /// Of less that has come no part is sent before the end, however many are under way.
    pub(super) const BYTES_MIN: usize = (PART_MIN + PART_MIN.div_ceil(2)) * BHS_LENGTH;

    /// For an initiator with so many commands under way; none if both ends would not work at once by them.
    pub(super) fn of(pays: bool, under_way: usize) -> Self {
        let length =
            (pays && under_way >= 2 * PART_MIN).then(|| (under_way / PARTS).clamp(PART_MIN, PART_MAX));
        Self { length, ready: 0 }
    }

    /// A read is answered, and so many bytes have come behind it. Says whether the answers are to go out now.
    pub(super) fn is_full(&mut self, unparsed_bytes: usize) -> bool {
        self.ready += 1;
        // What little is left goes out with them. Data that came with writes makes it look like more, which costs a write.
        let is_full = self
            .length
            .is_some_and(|length| self.ready >= length && unparsed_bytes / BHS_LENGTH >= length.div_ceil(2));
        if is_full {
            self.ready = 0;
        }
        is_full
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// After which of so many reads that come together the answers are sent, the end aside.
    fn sent_after(under_way: usize, come: usize) -> Vec<usize> {
        let mut parts = Parts::of(true, under_way);
        (1..=come).filter(|answered| parts.is_full((come - answered) * BHS_LENGTH)).collect()
    }

    #[test]
    fn a_third_of_what_is_under_way_goes_out_at_a_time() {
        assert_eq!(sent_after(32, 32), [10, 20]);
        assert_eq!(sent_after(128, 128), [32, 64, 96]);
        assert_eq!(sent_after(32, 15), [10]);
        assert_eq!(
            sent_after(32, 14),
            [] as [usize; 0],
            "less than half of a part is left, and goes out with it"
        );
        assert_eq!(sent_after(8, 8), [4]);
        let come = Parts::BYTES_MIN / BHS_LENGTH;
        assert_eq!((sent_after(8, come), sent_after(8, come - 1)), (vec![4], vec![]));
    }

    #[test]
    fn few_go_out_together() {
        assert_eq!(sent_after(7, 7), [] as [usize; 0]);
        assert_eq!(sent_after(0, 100), [] as [usize; 0]);
        let mut parts = Parts::of(false, 32);
        assert!((0..32).all(|answered| !parts.is_full((31 - answered) * BHS_LENGTH)), "it does not pay");
    }
}
