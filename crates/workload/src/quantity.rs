//! Percentages and sizes as people write them.

use std::fmt;
use std::str::FromStr;

use crate::WorkloadError;

/// A whole percentage, 0 to 100.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Percent(u8);

impl Percent {
    /// Never.
    pub const ZERO: Self = Self(0);
    /// Always.
    pub const ALL: Self = Self(100);

    /// From a number up to 100; more counts as 100.
    #[must_use]
    pub const fn new(percent: u8) -> Self {
        if percent > 100 { Self::ALL } else { Self(percent) }
    }

    /// The number.
    #[must_use]
    pub const fn get(self) -> u8 {
        self.0
    }
}

impl FromStr for Percent {
    type Err = WorkloadError;

    fn from_str(text: &str) -> Result<Self, WorkloadError> {
        let digits = text.strip_suffix('%').unwrap_or(text);
        let percent = whole_number(digits).and_then(|number| u8::try_from(number).ok());
        percent
            .filter(|percent| *percent <= 100)
            .map(Self)
            .ok_or_else(|| WorkloadError::Percent(text.to_owned()))
    }
}

impl fmt::Display for Percent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}%", self.0)
    }
}

/// Digits alone: Rust's own numbers may have a sign.
pub(crate) fn whole_number(text: &str) -> Option<u64> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok()).flatten()
}

/// Bytes, with K or M, or as KiB or MiB, in capitals or not. KB is 1000 to some, so it is not taken.
pub(crate) fn parse_bytes(text: &str) -> Option<u32> {
    let (digits, unit) = text.split_at(text.bytes().take_while(u8::is_ascii_digit).count());
    let shift = match unit.to_ascii_lowercase().as_str() {
        "" => 0,
        "k" | "kib" => 10,
        "m" | "mib" => 20,
        _ => return None,
    };
    let bytes = whole_number(digits)?.checked_mul(1 << shift)?;
    u32::try_from(bytes).ok()
}

/// The shortest text that [`parse_bytes`] reads.
pub(crate) fn show_bytes(bytes: u32) -> String {
    for (shift, unit) in [(20, "M"), (10, "K")] {
        if bytes > 0 && bytes.is_multiple_of(1 << shift) {
            return format!("{}{unit}", bytes >> shift);
        }
    }
    bytes.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentages_and_sizes_are_read_as_they_are_printed() {
        for text in ["0%", "37%", "100%"] {
            assert_eq!(text.parse::<Percent>().unwrap().to_string(), text);
        }
        assert_eq!("66".parse(), Ok(Percent(66)));
        for text in ["", "%", "101", "-1", "+1", "1.5", "50%%"] {
            assert!(text.parse::<Percent>().is_err(), "{text}");
        }
        for (text, bytes) in [("512", 512), ("4K", 4096), ("1M", 1 << 20), ("1536", 1536)] {
            assert_eq!((parse_bytes(text), show_bytes(bytes).as_str()), (Some(bytes), text));
        }
        for (text, bytes) in [("4k", 4096), ("4KiB", 4096), ("1m", 1 << 20), ("2mib", 2 << 20)] {
            assert_eq!(parse_bytes(text), Some(bytes), "{text}");
        }
        for text in ["", "K", "4KB", "4Ki", "4 K", "-1", "4G", "4096M", "99999999999999999999"] {
            assert_eq!(parse_bytes(text), None, "{text}");
        }
    }
}
