//! Saved mode pages as the unit's saved state keeps them: the values, not the pages, and whether a host has chosen WCE.

use super::{ModeFlags, ModeValues};
use crate::bytes::be32;
use crate::priority;
use crate::space::{THRESHOLDS, Threshold};

const THRESHOLD_BYTES: usize = 5;

/// Mode parameters that are there after a restart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SavedModes {
    pub(crate) values: ModeValues,
    /// WCE is a host's choice. Otherwise it is what the configuration says, which may be another one after the restart.
    pub(crate) has_write_cache: bool,
}

impl SavedModes {
    /// With WCE as the configuration has it, unless a host has chosen.
    pub(crate) fn by_default(mut self, write_cache: bool) -> SavedModes {
        if !self.has_write_cache {
            let flags = self.values.flags;
            self.values.flags =
                if write_cache { flags.with_write_cache() } else { flags.without_write_cache() };
        }
        self
    }

    /// The low half of the flags, then for each threshold whether it is enabled and its count, then the high half, then the
    /// initial priority, then whether WCE is kept.
    pub(crate) fn to_bytes(self) -> Vec<u8> {
        let SavedModes { values, has_write_cache } = self.by_default(false);
        let [high, low] = values.flags.bits().to_be_bytes();
        let mut bytes = vec![low];
        for threshold in values.thresholds {
            bytes.push(threshold.enabled.into());
            bytes.extend(threshold.count.to_be_bytes());
        }
        bytes.extend([high, values.initial_priority, has_write_cache.into()]);
        bytes
    }

    /// `None` for what [`Self::to_bytes`] never makes. What was stored before there were so many flags has no high half, and what was
    /// stored before there were priorities has none. As long as nobody told whose WCE is, it was kept as a host's choice.
    pub(crate) fn from_bytes(bytes: &[u8]) -> Option<SavedModes> {
        let (&low, rest) = bytes.split_first()?;
        let (rest, later) = rest.split_at_checked(THRESHOLDS * THRESHOLD_BYTES)?;
        let (high, initial_priority, has_write_cache) = match *later {
            [] => (0, priority::NONE, 1),
            [high] => (high, priority::NONE, 1),
            [high, initial] => (high, initial, 1),
            [high, initial, has_write_cache] => (high, initial, has_write_cache),
            _ => return None,
        };
        if initial_priority > priority::MAX || has_write_cache > 1 {
            return None;
        }
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
        Some(SavedModes { values, has_write_cache: has_write_cache == 1 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_come_back_and_nothing_else_is_taken() {
        let thresholds = [Threshold { enabled: true, count: 0x0102_0304 }, Threshold::NONE];
        let values = ModeValues { flags: ModeFlags::new(true), thresholds, initial_priority: 15 };
        let saved = SavedModes { values, has_write_cache: true };
        let bytes = saved.to_bytes();
        assert_eq!(SavedModes::from_bytes(&bytes), Some(saved));
        let without_high = bytes.len() - 3;
        let older = SavedModes { values: ModeValues { initial_priority: 0, ..values }, ..saved };
        for (length, older) in [(without_high, older), (without_high + 1, older), (without_high + 2, saved)] {
            assert_eq!(SavedModes::from_bytes(&bytes[..length]), Some(older), "an older version's");
        }
        for length in 0..without_high {
            assert_eq!(SavedModes::from_bytes(&bytes[..length]), None);
        }
        assert_eq!(SavedModes::from_bytes(&[&bytes[..], &[0]].concat()), None);
        let wrong = [(0, 0x20), (1, 2), (without_high, 0x80), (without_high + 1, 16), (without_high + 2, 2)];
        for (at, value) in wrong {
            let mut changed = bytes.clone();
            changed[at] = value;
            assert_eq!(SavedModes::from_bytes(&changed), None);
        }
    }

    #[test]
    fn a_write_cache_that_no_host_has_chosen_is_the_configurations() {
        let values = ModeValues::new(ModeFlags::new(true));
        for (has_write_cache, configured) in [(false, false), (false, true), (true, false), (true, true)] {
            let bytes = SavedModes { values, has_write_cache }.to_bytes();
            let back = SavedModes::from_bytes(&bytes).unwrap().by_default(configured);
            assert_eq!(back.values.flags.write_cache_enabled(), has_write_cache || configured);
        }
    }
}
