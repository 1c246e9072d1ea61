//! Patterns to write and to compare with: what a byte is depends on its place on the disk alone, so that any part can be
//! checked later.

use std::fmt;
use std::str::FromStr;

/// The longest pattern of bytes.
const BYTES_MAX: usize = 4096;

/// What is written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Pattern {
    /// Bytes, again and again from the start of the disk.
    Bytes(Vec<u8>),
    /// Each eight bytes hold their own offset on the disk, the high byte first.
    Address,
    /// Bytes that look random; the same for the same seed.
    Random(u64),
}

const FORM: &str =
    "a pattern is zeros, ones, address, random, random:SEED (a number), or hex:BYTES, as in hex:dead5a";

impl FromStr for Pattern {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, value) = text.split_once(':').map_or((text, None), |(name, value)| (name, Some(value)));
        match (name, value) {
            ("zeros", None) => Ok(Pattern::Bytes(vec![0])),
            ("ones", None) => Ok(Pattern::Bytes(vec![0xff])),
            ("address", None) => Ok(Pattern::Address),
            ("random", None) => Ok(Pattern::Random(0)),
            ("random", Some(seed)) => seed.parse().map(Pattern::Random).map_err(|_| FORM.to_owned()),
            ("hex", Some(digits)) => hex(digits).map(Pattern::Bytes).ok_or_else(|| FORM.to_owned()),
            _ => Err(FORM.to_owned()),
        }
    }
}

fn hex(digits: &str) -> Option<Vec<u8>> {
    let digits = digits.as_bytes();
    let is_possible = digits.len().is_multiple_of(2) && (1..=BYTES_MAX).contains(&(digits.len() / 2));
    let digit = |byte: u8| char::from(byte).to_digit(16).map(|digit| digit as u8);
    let pairs = digits.chunks_exact(2).map(|pair| Some(digit(pair[0])? << 4 | digit(pair[1])?));
    pairs.collect::<Option<Vec<u8>>>().filter(|_| is_possible)
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Pattern::Bytes(bytes) => {
                f.write_str("hex:").and_then(|()| bytes.iter().try_for_each(|byte| write!(f, "{byte:02x}")))
            }
            Pattern::Address => f.write_str("address"),
            Pattern::Random(seed) => write!(f, "random:{seed}"),
        }
    }
}

impl Pattern {
    /// Fills what lies at `offset_bytes` of the disk, a multiple of eight.
    pub(crate) fn fill(&self, offset_bytes: u64, buffer: &mut [u8]) {
        match self {
            Pattern::Bytes(bytes) if bytes.len() == 1 => buffer.fill(bytes[0]),
            Pattern::Bytes(bytes) => {
                // A pattern has at least one byte.
                let start = (offset_bytes % bytes.len() as u64) as usize;
                for (byte, value) in buffer.iter_mut().zip(bytes.iter().cycle().skip(start)) {
                    *byte = *value;
                }
            }
            Pattern::Address => words(offset_bytes, buffer, |offset| offset),
            Pattern::Random(seed) => {
                words(offset_bytes, buffer, |offset| scrambled(seed ^ scrambled(offset)));
            }
        }
    }
}

/// Fills each eight bytes with what `value` says of their offset.
fn words(offset_bytes: u64, buffer: &mut [u8], value: impl Fn(u64) -> u64) {
    for (index, word) in buffer.chunks_mut(8).enumerate() {
        let bytes = value(offset_bytes + index as u64 * 8).to_be_bytes();
        word.copy_from_slice(&bytes[..word.len()]);
    }
}

/// SplitMix64's output function.
fn scrambled(value: u64) -> u64 {
    let value = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let value = (value ^ value >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ value >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ value >> 31
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filled(pattern: &str, offset: u64, length: usize) -> Vec<u8> {
        let mut buffer = vec![0; length];
        pattern.parse::<Pattern>().unwrap().fill(offset, &mut buffer);
        buffer
    }

    #[test]
    fn patterns_are_read_and_written() {
        for (text, shown) in [
            ("zeros", "hex:00"),
            ("ones", "hex:ff"),
            ("address", "address"),
            ("random", "random:0"),
            ("hex:DEad5a", "hex:dead5a"),
        ] {
            let pattern: Pattern = text.parse().unwrap();
            assert_eq!(pattern.to_string(), shown);
            assert_eq!(shown.parse(), Ok(pattern));
        }
        let long = format!("hex:{}", "00".repeat(BYTES_MAX + 1));
        for text in ["", "zero", "zeros:1", "hex", "hex:", "hex:5", "hex:5g", "random:x", "random:", &long] {
            assert!(text.parse::<Pattern>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_byte_depends_on_its_place_alone() {
        for pattern in ["hex:010203", "address", "random:7", "ones"] {
            let whole = filled(pattern, 512, 4096);
            assert_eq!(filled(pattern, 1024, 512), whole[512..1024], "{pattern}");
        }
        assert_eq!(filled("hex:010203", 512, 4), [3, 1, 2, 3]);
        assert_eq!(filled("address", 0x1234 * 8, 8), [0, 0, 0, 0, 0, 0, 0x91, 0xa0]);
        assert_ne!(filled("random:1", 0, 64), filled("random:2", 0, 64));
    }
}
