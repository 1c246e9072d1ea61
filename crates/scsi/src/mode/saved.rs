//! Saved mode pages as the unit's saved state keeps them: the values, not the pages.

use super::{ModeFlags, ModeValues};
use crate::bytes::be32;
use crate::space::{THRESHOLDS, Threshold};

const THRESHOLD_BYTES: usize = 5;

impl ModeValues {
    /// Flags, then for each threshold whether it is enabled and its count.
    pub(crate) fn to_bytes(self) -> Vec<u8> {
        let mut bytes = vec![self.flags.bits()];
        for threshold in self.thresholds {
            bytes.push(threshold.enabled.into());
            bytes.extend(threshold.count.to_be_bytes());
        }
        bytes
    }

    /// `None` for what [`Self::to_bytes`] never makes.
    pub(crate) fn from_bytes(bytes: &[u8]) -> Option<ModeValues> {
        let (&flags, rest) = bytes.split_first()?;
        if flags & !ModeFlags::ALL.bits() != 0 || rest.len() != THRESHOLDS * THRESHOLD_BYTES {
            return None;
        }
        let mut values = ModeValues::new(ModeFlags::from_bits(flags));
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
        let values = ModeValues { flags: ModeFlags::new(true), thresholds };
        let bytes = values.to_bytes();
        assert_eq!(ModeValues::from_bytes(&bytes), Some(values));
        for length in 0..bytes.len() {
            assert_eq!(ModeValues::from_bytes(&bytes[..length]), None);
        }
        for (at, value) in [(0, 0x20), (1, 2)] {
            let mut changed = bytes.clone();
            changed[at] = value;
            assert_eq!(ModeValues::from_bytes(&changed), None);
        }
    }
}
