//! A sample of what was written is read back, so that who answers fast with something else has no figure.

use std::time::Duration;

use lunette_workload::{Kind, Operation, Range, content};

use super::Transfers;
use super::worker::{AGAIN_MAX, BUSY_PAUSE};
use crate::LabError;
use crate::endpoint::{End, Endpoint};

/// So many places of each range are read, its first and its last bytes among them.
const PLACES: u64 = 8;
/// The most ranges of which places are read: those of a trace are thousands.
const RANGES: usize = 32;
/// So much is read at each in bytes, or less where the range is shorter or the disk takes less.
const PIECE_BYTES: u64 = 64 << 10;
/// Places are apart by a multiple of this in bytes, which is one of every block.
const STEP_BYTES: u64 = 4096;
const PATIENCE: Duration = Duration::from_millis(100);

/// Reads some of what [`super::fill`] has written in these ranges, one read after the other; answers how many bytes were right.
///
/// # Errors
/// A read fails, or brings something else.
pub(crate) fn read_back<E: Endpoint>(
    endpoint: &mut E,
    ranges: &[Range],
    transfers: Transfers,
    seed: u64,
) -> Result<u64, LabError> {
    let (mut bytes, piece_bytes) = (0, transfers.at_most(PIECE_BYTES));
    for range in ranges.iter().step_by(ranges.len().div_ceil(RANGES).max(1)) {
        for operation in places(*range, piece_bytes) {
            let buffer = read(endpoint, &operation)?;
            content::check(seed, operation.offset_bytes, 1, &buffer).map_err(|mismatch| {
                LabError::NotReady(format!("what was written there is not what is read: {mismatch}"))
            })?;
            bytes += u64::from(operation.length_bytes);
            endpoint.recycle(buffer);
        }
    }
    Ok(bytes)
}

/// What is read of a range, at most so many bytes at once. Its begin and its length are of whole blocks, as these are.
fn places(range: Range, piece_bytes: u64) -> impl Iterator<Item = Operation> {
    let length = piece_bytes.min(range.length_bytes);
    let room = range.length_bytes - length;
    let step = (room / (PLACES - 1)).next_multiple_of(STEP_BYTES);
    let count = if room == 0 { 1 } else { PLACES };
    (0..count).map(move |place| Operation {
        kind: Kind::Read,
        offset_bytes: range.offset_bytes + (place * step).min(room),
        length_bytes: length as u32,
    })
}

fn read<E: Endpoint>(endpoint: &mut E, operation: &Operation) -> Result<E::Buffer, LabError> {
    let failed =
        |reason: &str| LabError::NotReady(format!("reading at byte {}: {reason}", operation.offset_bytes));
    let (mut again, mut ended) = (0, Vec::new());
    let buffer = endpoint.buffer(operation.length_bytes)?;
    endpoint.submit(0, operation, buffer);
    loop {
        endpoint.poll(PATIENCE, &mut ended)?;
        let Some(over) = ended.pop() else { continue };
        let buffer = over.buffer.ok_or_else(|| failed("its buffer did not come back"));
        match over.end {
            End::Good => return buffer,
            End::Busy => std::thread::sleep(BUSY_PAUSE),
            End::Again if again < AGAIN_MAX => again += 1,
            End::Again => return Err(failed("the unit has something else to tell each time")),
            End::Failed(fault) => return Err(failed(fault.reason())),
        }
        endpoint.submit(0, operation, buffer?);
    }
}

#[cfg(test)]
mod tests {
    use lunette_block::{StoreSpec, Volume, VolumeSpec};

    use super::super::fill;
    use super::*;
    use crate::endpoint::Local;
    use crate::{Monitor, WriteMode};

    #[test]
    fn begin_and_end_of_each_range_are_read() {
        let range = |offset_bytes, length_bytes| Range { offset_bytes, length_bytes };
        for (of, count) in [(range(512, 512), 1), (range(1 << 20, 64 << 20), 8), (range(4096, 100 << 10), 8)]
        {
            let read: Vec<_> = places(of, PIECE_BYTES).collect();
            let end = |read: &Operation| read.offset_bytes + u64::from(read.length_bytes);
            assert_eq!((read.len(), read[0].offset_bytes), (count, of.offset_bytes));
            assert_eq!(read.last().map(end), Some(of.offset_bytes + of.length_bytes));
            assert!(read.iter().all(|read| read.offset_bytes % 512 == 0));
        }
    }

    #[test]
    fn who_reads_something_else_is_found_out() {
        let store = StoreSpec::Memory { size_bytes: 8 << 20 };
        let volume = Volume::open(&VolumeSpec::new("memory", store)).expect("a volume");
        let mut disk = Local::open(&volume, WriteMode::Back).expect("a disk");
        let ranges = [
            Range { offset_bytes: 0, length_bytes: 1 << 20 },
            Range { offset_bytes: 4 << 20, length_bytes: 4096 },
        ];
        let any = Transfers { block_bytes: 512, longest_bytes: None };
        fill(&mut disk, &ranges, any, 1, &Monitor::default()).expect("a filling");
        assert_eq!(read_back(&mut disk, &ranges, any, 1).ok(), Some(8 * (64 << 10) + 4096));
        let short = Transfers { longest_bytes: Some(16 << 10), ..any };
        assert_eq!(read_back(&mut disk, &ranges, short, 1).ok(), Some(8 * (16 << 10) + 4096));
        // What somebody else has written, what lies elsewhere, and what was never written.
        let wrong = read_back(&mut disk, &ranges, any, 2);
        assert!(wrong.is_err_and(|error| error.to_string().contains("is not what is read")));
        let elsewhere = [Range { offset_bytes: 6 << 20, length_bytes: 4096 }];
        assert!(read_back(&mut disk, &elsewhere, any, 1).is_err());
    }
}
