//! UNMAP (SBC-3).

use super::{Context, Progress, State, Step, good};
use crate::bytes::{Cdb, be16, be32, be64, cdb16};
use crate::io::{Direction, Io, IoError};
use crate::sense::{AdditionalSense, SenseData};
use crate::task::Event;
use crate::unit::LogicalUnit;

/// The blocks keep their space, or get it.
const ANCHOR: u8 = 0x01;

const HEADER_BYTES: usize = 8;
const DESCRIPTOR_BYTES: usize = 16;

pub(super) fn unmap(context: &Context<'_>, cdb: &Cdb) -> Progress {
    let anchor = cdb[1] & ANCHOR != 0;
    if anchor && !context.unit().config().provisioning.anchors {
        return Err(SenseData::invalid_cdb_field(1, 0));
    }
    let length_bytes = u32::from(cdb16::<7>(cdb));
    if length_bytes == 0 {
        return good();
    }
    if (length_bytes as usize) < HEADER_BYTES {
        return Err(SenseData::illegal(AdditionalSense::PARAMETER_LIST_LENGTH_ERROR));
    }
    Ok((State::Unmap(Unmap::List { anchor, length_bytes }), Step::DataOut(length_bytes)))
}

/// An UNMAP that waits for its list, or for the medium.
#[derive(Debug)]
pub(crate) enum Unmap {
    List { anchor: bool, length_bytes: u32 },
    Ranges { anchor: bool, next: usize, ranges: Vec<Range> },
    Flush,
}

/// What one block descriptor asks for, in bytes; never empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Range {
    offset_bytes: u64,
    length_bytes: u64,
}

impl Unmap {
    pub(super) fn resume(self, context: &Context<'_>, event: Event<'_>) -> Progress {
        match self {
            Unmap::List { anchor, length_bytes } => {
                let list = event.data_out(length_bytes)?;
                if list.len() as u32 != length_bytes {
                    return Err(SenseData::illegal(AdditionalSense::PARAMETER_LIST_LENGTH_ERROR));
                }
                next_range(context, anchor, 0, parse(context.unit(), list)?)
            }
            Unmap::Ranges { anchor, next, ranges } => match event.io_result()? {
                Ok(_) => next_range(context, anchor, next, ranges),
                Err(IoError::Unsupported) => {
                    Err(SenseData::illegal(AdditionalSense::INVALID_COMMAND_OPERATION_CODE))
                }
                Err(error) => Err(error.sense(Direction::Write, context.unit())),
            },
            Unmap::Flush => event.io(Direction::Write, context.unit()).and_then(|_| good()),
        }
    }
}

/// After the last range comes a flush, unless there is a write cache: an answered UNMAP must not be undone by a power
/// loss then, since the blocks have been promised to read as zeros.
fn next_range(context: &Context<'_>, anchor: bool, next: usize, ranges: Vec<Range>) -> Progress {
    match ranges.get(next).copied() {
        None if ranges.is_empty() || context.unit().write_cache_enabled() => good(),
        None => Ok((State::Unmap(Unmap::Flush), Step::Io(Io::Flush))),
        Some(Range { offset_bytes, length_bytes }) => {
            let io = if anchor {
                Io::Zero { offset_bytes, length_bytes, unmap: false, stable: false }
            } else {
                Io::Unmap { offset_bytes, length_bytes }
            };
            Ok((State::Unmap(Unmap::Ranges { anchor, next: next + 1, ranges }), Step::Io(io)))
        }
    }
}

/// Checks the whole list before anything is unmapped. A descriptor that the list cuts off is ignored, as the
/// standard says; what the limits of VPD page B0h forbid is refused.
fn parse(unit: &LogicalUnit, list: &[u8]) -> Result<Vec<Range>, SenseData> {
    let told = usize::from(be16(list, 2).unwrap_or(0));
    let body = list.get(HEADER_BYTES..).unwrap_or_default();
    let body = &body[..told.min(body.len())];
    let descriptors = body.chunks_exact(DESCRIPTOR_BYTES);
    if descriptors.len() > LogicalUnit::UNMAP_DESCRIPTORS_MAX as usize {
        return Err(SenseData::invalid_parameter(2));
    }
    let block_length = u64::from(unit.block_length_bytes());
    let mut total: u64 = 0;
    let mut ranges = Vec::with_capacity(descriptors.len());
    for (index, descriptor) in descriptors.enumerate() {
        let lba = be64(descriptor, 0).unwrap_or(0);
        let blocks = u64::from(be32(descriptor, 8).unwrap_or(0));
        if lba.checked_add(blocks).is_none_or(|end| end > unit.blocks()) {
            return Err(SenseData::illegal(AdditionalSense::LBA_OUT_OF_RANGE));
        }
        total += blocks;
        if total > LogicalUnit::UNMAP_BLOCKS_MAX.into() {
            return Err(SenseData::invalid_parameter((HEADER_BYTES + index * DESCRIPTOR_BYTES + 8) as u16));
        }
        if blocks > 0 {
            ranges.push(Range { offset_bytes: lba * block_length, length_bytes: blocks * block_length });
        }
    }
    Ok(ranges)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::unit::LogicalUnitConfig;
    use crate::unit::tests::{config, unit_of};

    fn list(descriptors: &[(u64, u32)]) -> Vec<u8> {
        let length = (descriptors.len() * DESCRIPTOR_BYTES) as u16;
        let mut list = [&(length + 6).to_be_bytes()[..], &length.to_be_bytes(), &[0; 4]].concat();
        for (lba, blocks) in descriptors {
            list.extend([&lba.to_be_bytes()[..], &blocks.to_be_bytes(), &[0; 4]].concat());
        }
        list
    }

    fn big() -> LogicalUnit {
        unit_of(LogicalUnitConfig { blocks: 1 << 30, ..config() })
    }

    #[test]
    fn descriptors_become_ranges() {
        let ranges = parse(&big(), &list(&[(8, 8), (5, 0), (1 << 29, 1)])).unwrap();
        let expected = [(8 * 512, 8 * 512), (512 << 29, 512)]
            .map(|(offset_bytes, length_bytes)| Range { offset_bytes, length_bytes });
        assert_eq!(ranges, expected);
    }

    #[test]
    fn cut_off_descriptors_are_ignored() {
        let whole = list(&[(0, 1), (1, 1)]);
        assert_eq!(parse(&big(), &whole[..whole.len() - 1]).unwrap().len(), 1);
        let mut short = whole.clone();
        short[3] = 31;
        assert_eq!(parse(&big(), &short).unwrap().len(), 1);
        assert_eq!(parse(&big(), &whole[..8]).unwrap(), []);
    }

    #[test]
    fn limits_are_kept() {
        let max = LogicalUnit::UNMAP_BLOCKS_MAX;
        assert!(parse(&big(), &list(&[(0, max)])).is_ok());
        assert_eq!(parse(&big(), &list(&[(0, max), (0, 1)])), Err(SenseData::invalid_parameter(32)));
        let out_of_range = Err(SenseData::illegal(AdditionalSense::LBA_OUT_OF_RANGE));
        assert_eq!(parse(&big(), &list(&[(0, 1), ((1 << 30) - 1, 2)])), out_of_range);
        assert_eq!(parse(&big(), &list(&[(u64::MAX, u32::MAX)])), out_of_range);
        assert!(parse(&big(), &list(&[(1 << 30, 0)])).is_ok());
        assert!(parse(&big(), &list(&[(0, 0); 256])).is_ok());
        assert_eq!(parse(&big(), &list(&[(0, 0); 257])), Err(SenseData::invalid_parameter(2)));
    }
}
