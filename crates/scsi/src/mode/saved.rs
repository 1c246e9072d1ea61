//! Saved mode pages as the unit's saved state keeps them: the values, not the pages.

use super::{ModeFlags, ModeValues};
use crate::bytes::be32;
use crate::priority;
use crate::space::{THRESHOLDS, Threshold};

const THRESHOLD_BYTES: usize = 5;

impl ModeValues {
    /// The low half of the flags, then for each threshold whether it is enabled and its count, then the high half, then the
    /// initial priority.
    pub(crate) fn to_bytes(self) -> Vec<u8> {
        let [high, low] = self.flags.bits().to_be_bytes();
        let mut bytes = vec![low];
        for threshold in self.thresholds {
            bytes.push(threshold.enabled.into());
            bytes.extend(threshold.count.to_be_bytes());
        }
        bytes.extend([high, self.initial_priority]);
        bytes
    }

    /// `None` for what [`Self::to_bytes`] never makes. What was stored before there were so many
    /// flags has no high half, and what was stored before there were priorities has none.
    pub(crate) fn from_bytes(bytes: &[u8]) -> Option<ModeValues> {
        let (&low, rest) = bytes.split_first()?;
        let (rest, later) = rest.split_at_checked(THRESHOLDS * THRESHOLD_BYTES)?;
        let (high, initial_priority) = match *later {
            [] => (0, priority::NONE),
            [high] => (high, priority::NONE),
            [high, initial] if initial <= priority::MAX => (high, initial),
            _ => return None,
        };
        let flags = u16::from_be_bytes([high, low]);
        if flags & !ModeFlags::ALL.bits() != 0 {
            return None;
        }
        let mut values = ModeValues { initial_priority, ..ModeValues::new(ModeFlags::from_bits(flags)) };
        for (threshold, bytes) in values.thresholds.iter_mut().zip(rest.chunks_exact(THRESHOLD_BYTES)) {
            let enabled = match bytes[0] {
                0 => false,
                1 => true,
                _ => return None,
            };
            *threshold = Threshold { enabled, count: be32(bytes, 1)? };
        }
        Some(values)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_come_back_and_nothing_else_is_taken() {
        let thresholds = [Threshold { enabled: true, count: 0x0102_0304 }, Threshold::NONE];
        let values = ModeValues { flags: ModeFlags::new(true), thresholds, initial_priority: 15 };
        let bytes = values.to_bytes();
        assert_eq!(ModeValues::from_bytes(&bytes), Some(values));
        let without_high = bytes.len() - 2;
        let older = Some(ModeValues { initial_priority: 0, ..values });
        for length in [without_high, without_high + 1] {
            assert_eq!(ModeValues::from_bytes(&bytes[..length]), older, "an older version's");
        }
        for length in 0..without_high {
            assert_eq!(ModeValues::from_bytes(&bytes[..length]), None);
        }
        assert_eq!(ModeValues::from_bytes(&[&bytes[..], &[0]].concat()), None);
        for (at, value) in [(0, 0x20), (1, 2), (without_high, 0x80), (without_high + 1, 16)] {
            let mut changed = bytes.clone();
            changed[at] = value;
            assert_eq!(ModeValues::from_bytes(&changed), None);
        }
    }
}
