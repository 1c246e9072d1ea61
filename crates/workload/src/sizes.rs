//! The sizes of operations, with their weights.

use std::fmt;
use std::str::FromStr;

use crate::WorkloadError;
use crate::quantity::{parse_bytes, show_bytes, whole_number};
use crate::random::Random;

/// The largest operation in bytes: 16 MiB, which is about what one MaxBurstLength may be (RFC 7143, 13.13).
pub const SIZE_BYTES_MAX: u32 = 16 << 20;
/// More different sizes than anybody mixes.
const SIZES_MAX: usize = 64;

/// Sizes in bytes with their weights: `4K`, or `4K:60,64K:40`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sizes {
    /// Each size, its weight, and the sum of the weights up to and with it.
    rows: Vec<(u32, u32, u64)>,
}

impl Sizes {
    /// One size; it is cut to 1 to [`SIZE_BYTES_MAX`].
    #[must_use]
    pub fn one(size_bytes: u32) -> Self {
        Self { rows: vec![(size_bytes.clamp(1, SIZE_BYTES_MAX), 1, 1)] }
    }

    /// The sizes.
    pub fn iter(&self) -> impl Iterator<Item = u32> {
        self.rows.iter().map(|row| row.0)
    }

    /// The sizes, each with its share of all operations, 0 to 1.
    pub fn weighted(&self) -> impl Iterator<Item = (u32, f64)> {
        let total = self.rows.last().map_or(1, |row| row.2).max(1) as f64;
        self.rows.iter().map(move |row| (row.0, f64::from(row.1) / total))
    }

    /// The mean of one operation, in bytes, at least 1.
    #[must_use]
    pub fn mean(&self) -> f64 {
        self.weighted().map(|(size, share)| f64::from(size) * share).sum::<f64>().max(1.0)
    }

    /// The largest in bytes.
    #[must_use]
    pub fn largest(&self) -> u32 {
        self.iter().max().unwrap_or(1)
    }

    /// The greatest number of bytes that all sizes are a multiple of.
    #[must_use]
    pub fn grain_bytes(&self) -> u32 {
        self.iter().fold(0, greatest_common_divisor).max(1)
    }

    /// The place of one of them, by the weights.
    pub(crate) fn pick(&self, random: &mut Random) -> usize {
        if self.rows.len() < 2 {
            return 0;
        }
        let total = self.rows.last().map_or(0, |row| row.2);
        let point = random.below(total);
        self.rows.iter().position(|row| point < row.2).unwrap_or(0)
    }
}

fn greatest_common_divisor(one: u32, other: u32) -> u32 {
    let (mut one, mut other) = (one, other);
    while other > 0 {
        (one, other) = (other, one % other);
    }
    one
}

impl FromStr for Sizes {
    type Err = WorkloadError;

    fn from_str(text: &str) -> Result<Self, WorkloadError> {
        let wrong = || WorkloadError::Sizes(text.to_owned());
        let mut rows = Vec::new();
        let mut total = 0_u64;
        for part in text.split(',') {
            let (size, weight) = part.split_once(':').unwrap_or((part, "1"));
            let size = parse_bytes(size).filter(|size| (1..=SIZE_BYTES_MAX).contains(size));
            let weight = whole_number(weight).and_then(|weight| u32::try_from(weight).ok());
            let (size, weight) = size.zip(weight.filter(|weight| *weight > 0)).ok_or_else(wrong)?;
            total += u64::from(weight);
            rows.push((size, weight, total));
            if rows.len() > SIZES_MAX {
                return Err(wrong());
            }
        }
        Ok(Self { rows })
    }
}

impl fmt::Display for Sizes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, (size, weight, _)) in self.rows.iter().enumerate() {
            let comma = if at > 0 { "," } else { "" };
            write!(f, "{comma}{}", show_bytes(*size))?;
            if self.rows.len() > 1 {
                write!(f, ":{weight}")?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mixes_are_read_as_they_are_printed() {
        for text in ["4K", "512", "4K:60,64K:40", "16M"] {
            assert_eq!(text.parse::<Sizes>().unwrap().to_string(), text);
        }
        assert_eq!("4K,8K".parse::<Sizes>().unwrap().to_string(), "4K:1,8K:1");
        for text in ["", "0", "17M", "4K:", "4K:0", "4K:-1", "4K,", "x", "4K:1:1"] {
            assert!(text.parse::<Sizes>().is_err(), "{text}");
        }
        assert!(vec!["4K"; SIZES_MAX + 1].join(",").parse::<Sizes>().is_err());
    }

    #[test]
    fn a_mean_is_by_weights() {
        for (text, mean) in [("4K", 4096.0), ("4K:3,8K:1", 5120.0), ("1,3", 2.0)] {
            let sizes: Sizes = text.parse().unwrap();
            assert!((sizes.mean() - mean).abs() < 1e-9, "{text}");
            assert!((sizes.weighted().map(|row| row.1).sum::<f64>() - 1.0).abs() < 1e-9, "{text}");
        }
    }

    #[test]
    fn the_grain_divides_every_size() {
        for (text, grain) in [("4K", 4096), ("4K:1,6K:1", 2048), ("512,1M", 512), ("7,3", 1)] {
            assert_eq!(text.parse::<Sizes>().unwrap().grain_bytes(), grain, "{text}");
        }
    }
}
