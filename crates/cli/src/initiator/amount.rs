//! Places and lengths on a disk, as people type them: bytes with suffixes, or blocks; and a range checked against a capacity.

use std::fmt;
use std::str::FromStr;

use clap::Args;
use lunette_scsi::client::capacity::Capacity;

use crate::failure::Failure;

/// An amount: bytes, or logical blocks of the unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Amount {
    Bytes(u64),
    Blocks(u64),
}

const FORM: &str =
    "give bytes, a number with K, M, G, T or P (1024 times the one before), or blocks as in 100b";

impl FromStr for Amount {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let digits = text.trim_end_matches(|character: char| character.is_ascii_alphabetic());
        let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
        let number: u64 = digits.parse().ok().filter(|_| is_number).ok_or(FORM)?;
        let power = match &text[digits.len()..] {
            "b" => return Ok(Amount::Blocks(number)),
            "" => 0,
            "K" => 1,
            "M" => 2,
            "G" => 3,
            "T" => 4,
            "P" => 5,
            _ => return Err(FORM.to_owned()),
        };
        number.checked_mul(1 << (10 * power)).map(Amount::Bytes).ok_or_else(|| "it is too large".to_owned())
    }
}

impl fmt::Display for Amount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Amount::Bytes(bytes) => write!(f, "{bytes}"),
            Amount::Blocks(blocks) => write!(f, "{blocks}b"),
        }
    }
}

impl Amount {
    /// The amount in blocks.
    fn blocks(self, flag: &str, block_bytes: u64) -> Result<u64, Failure> {
        match self {
            Amount::Blocks(blocks) => Ok(blocks),
            Amount::Bytes(bytes) if bytes.is_multiple_of(block_bytes) => Ok(bytes / block_bytes),
            Amount::Bytes(bytes) => {
                let below = bytes / block_bytes * block_bytes;
                let next = match below.checked_add(block_bytes) {
                    Some(above) => format!("the next are {below} and {above}"),
                    None => format!("the next is {below}"),
                };
                Err(Failure::usage(format!(
                    "{flag} {bytes} is no multiple of the disk's blocks of {block_bytes} bytes; {next}"
                )))
            }
        }
    }
}

/// Which part of a disk.
#[derive(Debug, Clone, Args)]
pub(crate) struct RangeOptions {
    /// Where to begin: bytes, with K, M, G, T or P if wanted, or blocks as in 100b
    #[arg(long, value_name = "AMOUNT", default_value = "0")]
    pub(crate) offset: Amount,
    /// How much, written as the offset is [default: to the end]
    #[arg(long, value_name = "AMOUNT")]
    pub(crate) length: Option<Amount>,
}

/// Logical blocks in a row, inside the capacity.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Span {
    pub(crate) lba: u64,
    pub(crate) blocks: u64,
    pub(crate) block_bytes: u32,
}

impl Span {
    pub(crate) fn offset_bytes(&self) -> u64 {
        self.lba * u64::from(self.block_bytes)
    }

    pub(crate) fn length_bytes(&self) -> u64 {
        self.blocks * u64::from(self.block_bytes)
    }
}

impl RangeOptions {
    /// The range on a disk of this capacity.
    ///
    /// # Errors
    /// It is not of whole blocks, or goes beyond the end.
    pub(crate) fn resolve(&self, capacity: &Capacity) -> Result<Span, Failure> {
        let block_bytes = u64::from(capacity.block_length_bytes);
        let lba = self.offset.blocks("--offset", block_bytes)?;
        let left = capacity.blocks.checked_sub(lba);
        let wanted = self.length.map(|length| length.blocks("--length", block_bytes)).transpose()?;
        let blocks = match (left, wanted) {
            (Some(left), None) => Some(left),
            (Some(left), Some(wanted)) if wanted <= left => Some(wanted),
            _ => None,
        };
        let blocks = blocks.ok_or_else(|| {
            Failure::usage(format!(
                "the range ends behind the disk, which has {} blocks of {block_bytes} bytes ({} bytes)",
                capacity.blocks,
                capacity.bytes()
            ))
        })?;
        Ok(Span { lba, blocks, block_bytes: capacity.block_length_bytes })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lunette_scsi::client::capacity::CapacityDetails;

    #[test]
    fn amounts() {
        let read = |text: &str| text.parse::<Amount>();
        assert_eq!(read("512"), Ok(Amount::Bytes(512)));
        assert_eq!(read("3G"), Ok(Amount::Bytes(3 << 30)));
        assert_eq!(read("100b"), Ok(Amount::Blocks(100)));
        for text in ["", "K", "1k", "1 K", "-1", "+1", "1KiB", "1.5G", "0x10", "18446744073709551616", "é"] {
            assert!(read(text).is_err(), "{text}");
        }
        assert_eq!(read("16384P"), Err("it is too large".to_owned()));
    }

    fn resolve(offset: &str, length: Option<&str>) -> Result<(u64, u64), String> {
        let capacity =
            Capacity { blocks: 1000, block_length_bytes: 4096, details: CapacityDetails::default() };
        let length = length.map(|length| length.parse().unwrap());
        let range = RangeOptions { offset: offset.parse().unwrap(), length };
        range.resolve(&capacity).map(|span| (span.lba, span.blocks)).map_err(|failure| failure.to_string())
    }

    #[test]
    fn ranges() {
        assert_eq!(resolve("0", None), Ok((0, 1000)));
        assert_eq!(resolve("8K", Some("3b")), Ok((2, 3)));
        assert_eq!(resolve("1000b", None), Ok((1000, 0)));
        assert!(resolve("1001b", None).unwrap_err().contains("ends behind the disk"));
        assert!(resolve("999b", Some("2b")).is_err());
        assert!(resolve("1b", Some("18446744073709551615b")).is_err());
        let message = resolve(&u64::MAX.to_string(), None).unwrap_err();
        assert!(message.ends_with("blocks of 4096 bytes; the next is 18446744073709547520"), "{message}");
        let message = resolve("5000", None).unwrap_err();
        assert!(
            message.contains("--offset 5000 is no multiple") && message.contains("4096 and 8192"),
            "{message}"
        );
        assert!(resolve("0", Some("18446744073709551615")).unwrap_err().contains("--length"));
    }
}
