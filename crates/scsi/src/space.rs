//! How much space a thin unit takes and could take, and the thresholds that tell initiators in time (SBC-3, logical block
//! provisioning thresholds).
//!
//! The driver brings the numbers; what they are compared with is in the logical block provisioning mode page.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::bytes::{be32, saturate_u32};

/// THRESHOLD EXPONENT: space is told in units of two to this power blocks, 1 MiB or 8 MiB.
pub(crate) const THRESHOLD_EXPONENT: u8 = 11;

/// One on the available space, armed as it falls, and one on the used space, armed as it grows.
pub(crate) const THRESHOLDS: usize = 2;

/// Of a volume: what the store says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Space {
    /// Bytes that have space allocated.
    pub used_bytes: u64,
    /// Bytes that could be allocated yet, by this volume or by others of the same store.
    pub available_bytes: u64,
}

/// A threshold as initiators set it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Threshold {
    pub(crate) enabled: bool,
    /// In units of [`THRESHOLD_EXPONENT`].
    pub(crate) count: u32,
}

impl Threshold {
    pub(crate) const NONE: Threshold = Threshold { enabled: false, count: 0 };
    pub(crate) const ALL: Threshold = Threshold { enabled: true, count: u32::MAX };

    /// The threshold descriptors: ENABLED, type 0 (soft), arming; the resource; the count.
    pub(crate) fn describe(thresholds: &[Threshold; THRESHOLDS]) -> [[u8; 8]; THRESHOLDS] {
        const ARMING_DECREASING: u8 = 0;
        const ARMING_INCREASING: u8 = 1;
        let kinds = [(ARMING_DECREASING, AVAILABLE), (ARMING_INCREASING, USED)];
        std::array::from_fn(|index| {
            let ((arming, resource), threshold) = (kinds[index], thresholds[index]);
            let [a, b, c, d] = threshold.count.to_be_bytes();
            [u8::from(threshold.enabled) << 7 | arming, resource, 0, 0, a, b, c, d]
        })
    }

    pub(crate) fn from_descriptor(bytes: &[u8]) -> Threshold {
        let enabled = bytes.first().is_some_and(|first| first & 0x80 != 0);
        Threshold { enabled, count: be32(bytes, 4).unwrap_or(0) }
    }
}

/// AVAILABLE LBA MAPPING RESOURCE COUNT and USED LBA MAPPING RESOURCE COUNT, as thresholds and the log page name them.
const AVAILABLE: u8 = 1;
const USED: u8 = 2;

/// What a unit knows of its space.
#[derive(Debug, Default)]
pub(crate) struct SpaceWatch {
    is_known: AtomicBool,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    space: Option<Space>,
    /// The thresholds that have been reached: each is told once, and again when it was left and is reached anew, or is another one.
    reached: [Option<Threshold>; THRESHOLDS],
}

impl SpaceWatch {
    /// True once the driver has told something: the unit can watch its space.
    pub(crate) fn is_known(&self) -> bool {
        self.is_known.load(Ordering::Acquire)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The available and the used space, in units of so many bytes; `None` where they are not known.
    pub(crate) fn counts(&self, unit_bytes: u64) -> Option<[u32; THRESHOLDS]> {
        let space = self.state().space?;
        Some([space.available_bytes, space.used_bytes].map(|bytes| saturate_u32(bytes / unit_bytes)))
    }

    /// Whether an enabled threshold was reached by the last numbers.
    pub(crate) fn is_reached(&self) -> bool {
        self.state().reached.iter().any(Option::is_some)
    }

    /// Nobody knows of what was reached: with the next numbers it is reached anew.
    pub(crate) fn forget_reached(&self) {
        self.state().reached = [None; THRESHOLDS];
    }

    /// Takes new numbers. True: an enabled threshold has just been reached.
    pub(crate) fn note(&self, space: Space, thresholds: &[Threshold; THRESHOLDS], unit_bytes: u64) -> bool {
        let mut state = self.state();
        state.space = Some(space);
        self.is_known.store(true, Ordering::Release);
        let count = |bytes: u64| saturate_u32(bytes / unit_bytes);
        let [available, used] = *thresholds;
        let reached = [
            Some(available).filter(|low| low.enabled && count(space.available_bytes) <= low.count),
            Some(used).filter(|high| high.enabled && count(space.used_bytes) >= high.count),
        ];
        let is_new = reached.iter().zip(state.reached).any(|(now, before)| now.is_some() && *now != before);
        state.reached = reached;
        is_new
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_threshold_is_told_each_time_it_is_reached() {
        const MIB: u64 = 1 << 20;
        let watch = SpaceWatch::default();
        assert!(!watch.is_known());
        let note = |available: u64, used: u64, thresholds| {
            let space = Space { available_bytes: available * MIB, used_bytes: used * MIB };
            watch.note(space, thresholds, MIB)
        };
        let off = [Threshold { enabled: false, count: 100 }; 2];
        assert!(!note(1, 1000, &off));
        assert!(watch.is_known());
        let low = [Threshold { enabled: true, count: 100 }, Threshold::NONE];
        assert!(!note(101, 1000, &low));
        assert!(note(100, 1000, &low));
        assert!(!note(50, 1000, &low), "once");
        assert!(!note(101, 1000, &low));
        assert!(note(99, 1000, &low), "again");
        let high = [low[0], Threshold { enabled: true, count: 2000 }];
        assert!(!note(99, 1999, &high));
        assert!(note(99, 2000, &high));
    }

    #[test]
    fn another_threshold_is_told_even_where_one_was_reached() {
        let watch = SpaceWatch::default();
        let note = |count| {
            let low = [Threshold { enabled: true, count }, Threshold::NONE];
            watch.note(Space { available_bytes: 50, used_bytes: 0 }, &low, 1)
        };
        assert!(note(100) && note(90) && !note(90));
        assert!(!note(40) && !watch.is_reached());
        assert!(note(90) && watch.is_reached());
        watch.forget_reached();
        assert!(!watch.is_reached() && note(90));
    }
}
