//! Traces: what some system once read and wrote, with the times.

mod reader;

use std::fmt;
use std::time::Duration;

use crate::generator::Generator;
use crate::{Kind, Operation, Percent, Range, Sizes, Spread, Workload, WorkloadError};

use reader::SECTOR_BYTES;
pub use reader::{TRACE_LINE_BYTES_MAX, TRACE_OPERATIONS_MAX, TraceError, TraceReader};

/// One operation of a trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Record {
    /// When it began, from the beginning of the trace.
    pub at: Duration,
    /// What it was.
    pub operation: Operation,
}

impl fmt::Display for Record {
    /// A line of our own form.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let letter = if self.operation.kind == Kind::Read { 'R' } else { 'W' };
        let Operation { offset_bytes, length_bytes, .. } = self.operation;
        write!(f, "{} {letter} {offset_bytes} {length_bytes}", self.at.as_micros())
    }
}

/// Operations in the order of their times.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Trace {
    records: Vec<Record>,
}

/// The database trace of Lu and Du was never published, but its shape was: so many requests, reads among them, and blocks of 512
/// bytes. Their figures for it give the mean size by Little's law: 32 under way, 9.2 MB/s and 42 ms are 12 KB each.
const LU_DU_REQUESTS: usize = 8626;
const LU_DU_READ: Percent = Percent::new(70);
const LU_DU_BLOCKS: (u64, u64) = (9840, 2_012_792);
const LU_DU_SIZES: &str = "8K:1,16K:1";

impl Trace {
    /// A trace of the shape of Lu's and Du's, without times.
    ///
    /// # Errors
    /// None, in fact: its sizes fit its blocks.
    pub fn lu_du(seed: u64) -> Result<Self, WorkloadError> {
        let workload = Workload {
            sizes: LU_DU_SIZES.parse::<Sizes>()?,
            read: LU_DU_READ,
            random: Percent::ALL,
            spread: Spread::Uniform,
        };
        let (first, end) = LU_DU_BLOCKS;
        let range = Range { offset_bytes: first * SECTOR_BYTES, length_bytes: (end - first) * SECTOR_BYTES };
        let mut generator = Generator::new(&workload, range, SECTOR_BYTES as u32, seed, (0, 1))?;
        let record = |_| Record { at: Duration::ZERO, operation: generator.generate() };
        Ok(Self { records: (0..LU_DU_REQUESTS).map(record).collect() })
    }

    /// The operations, in the order of their times.
    #[must_use]
    pub fn records(&self) -> &[Record] {
        &self.records
    }

    /// The longest operation in bytes.
    #[must_use]
    pub fn longest_bytes(&self) -> u32 {
        self.records.iter().map(|record| record.operation.length_bytes).max().unwrap_or(0)
    }

    /// Where the furthest operation ends, in bytes.
    #[must_use]
    pub fn end_bytes(&self) -> u64 {
        let end = |record: &Record| record.operation.offset_bytes + u64::from(record.operation.length_bytes);
        self.records.iter().map(end).max().unwrap_or(0)
    }

    /// Whether something is written.
    #[must_use]
    pub fn writes(&self) -> bool {
        self.records.iter().any(|record| record.operation.kind == Kind::Write)
    }

    /// The same on another disk: operations are widened to whole blocks, and those that do not lie in the range come into it by the
    /// remainder of their block by its length. Answers how many those are.
    ///
    /// # Errors
    /// The range has no room for the longest one.
    pub fn fit(&mut self, range: Range, block_bytes: u32) -> Result<u64, WorkloadError> {
        let block = u64::from(block_bytes.max(1));
        let length = range.length_bytes / block * block;
        let mut moved = 0;
        for Record { operation, .. } in &mut self.records {
            let first = operation.offset_bytes / block * block;
            let end = (operation.offset_bytes + u64::from(operation.length_bytes)).next_multiple_of(block);
            let bytes = end - first;
            let fits = u32::try_from(bytes).ok().filter(|_| bytes <= length);
            let no_room = WorkloadError::Room { range_bytes: length, size_bytes: operation.length_bytes };
            operation.length_bytes = fits.ok_or(no_room)?;
            let mut offset = first;
            if end > length {
                moved += 1;
                offset = (first % length).min(length - bytes);
            }
            operation.offset_bytes = range.offset_bytes + offset;
        }
        Ok(moved)
    }
}

/// When the operations of a trace begin.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Pace {
    /// Without think time: as soon as another one has ended.
    None,
    /// At their times, so many times as fast as they were; above 0, at most 1,000,000.
    Times(f64),
}

const PACE_MAX: f64 = 1e6;

impl std::str::FromStr for Pace {
    type Err = WorkloadError;

    fn from_str(text: &str) -> Result<Self, WorkloadError> {
        let wrong = || WorkloadError::Pace(text.to_owned());
        match text {
            "none" => return Ok(Self::None),
            "original" => return Ok(Self::Times(1.0)),
            _ => {}
        }
        let number = text.strip_suffix('x').ok_or_else(wrong)?;
        let is_plain = number.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
        let times = number.parse::<f64>().ok().filter(|times| is_plain && *times > 0.0 && *times <= PACE_MAX);
        times.map(Self::Times).ok_or_else(wrong)
    }
}

impl fmt::Display for Pace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.write_str("none"),
            Self::Times(times) => write!(f, "{times}x"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_shape_of_lu_and_du_is_theirs() {
        let trace = Trace::lu_du(1).unwrap();
        let records = trace.records();
        let reads = records.iter().filter(|record| record.operation.kind == Kind::Read).count();
        assert_eq!(records.len(), 8626);
        // 70 % within six standard deviations.
        assert!((5783..=6294).contains(&reads), "{reads}");
        assert!(trace.end_bytes() <= 2_012_792 * 512);
        assert!(records.iter().all(|record| record.operation.offset_bytes >= 9840 * 512));
    }

    #[test]
    fn paces_are_read_as_they_are_printed() {
        for text in ["none", "1x", "0.5x", "100x"] {
            assert_eq!(text.parse::<Pace>().unwrap().to_string(), text);
        }
        assert_eq!("original".parse(), Ok(Pace::Times(1.0)));
        for text in ["", "x", "0x", "-1x", "2", "infx", "nanx", "1000001x"] {
            assert!(text.parse::<Pace>().is_err(), "{text}");
        }
    }

    proptest! {
        #![proptest_config(lunette_cases::cases(300))]

        #[test]
        fn a_trace_fits_every_disk_with_room(
            operations in prop::collection::vec((0_u64..1 << 32, 1_u32..70_000), 1..50),
            offset_blocks in 0_u64..100,
            length_blocks in 40_u64..100_000,
        ) {
            let record = |&(offset_bytes, length_bytes): &(u64, u32)| Record {
                at: Duration::ZERO,
                operation: Operation { kind: Kind::Read, offset_bytes, length_bytes },
            };
            let before = Trace { records: operations.iter().map(record).collect() };
            let range = Range { offset_bytes: offset_blocks * 4096, length_bytes: length_blocks * 4096 };
            let mut after = before.clone();
            let moved = after.fit(range, 4096).unwrap();
            let mut away = 0;
            for (before, after) in before.records().iter().zip(after.records()) {
                let (was, is) = (before.operation, after.operation);
                prop_assert!(is.offset_bytes % 4096 == 0 && is.length_bytes % 4096 == 0);
                prop_assert!(is.offset_bytes >= range.offset_bytes && is.length_bytes >= was.length_bytes);
                let end = is.offset_bytes + u64::from(is.length_bytes);
                prop_assert!(end <= range.offset_bytes + range.length_bytes);
                let was_end = was.offset_bytes + u64::from(was.length_bytes);
                if was_end > range.length_bytes {
                    away += 1;
                } else {
                    prop_assert_eq!(is.offset_bytes, range.offset_bytes + was.offset_bytes / 4096 * 4096);
                }
            }
            prop_assert_eq!(moved, away);
        }
    }
}
