//! Writes that are done whole or not at all, even if power is lost: what the kernel promises of a file or device
//! (statx(2), STATX_WRITE_ATOMIC) and how it is asked for (pwritev2(2), RWF_ATOMIC).
//!
//! Not here: what other readers and writers see meanwhile. The kernel promises them nothing, so who needs more keeps
//! them away.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::fs::{AtFlags, StatxFlags};
use rustix::io::{Errno, ReadWriteFlags, retry_on_intr};

/// STATX_WRITE_ATOMIC of `linux/stat.h`.
const WRITE_ATOMIC: StatxFlags = StatxFlags::from_bits_retain(0x0001_0000);
/// RWF_ATOMIC of `linux/fs.h`.
const ATOMIC: ReadWriteFlags = ReadWriteFlags::from_bits_retain(0x40);

/// The unit that is offered where the kernel offers this and longer ones: a page of InnoDB, two of PostgreSQL. See
/// [`AtomicWrites`] for why there can be one only.
const UNIT_BYTES: u32 = 16 << 10;

/// Which writes a store does whole or not at all.
///
/// The kernel takes lengths that are powers of two, at offsets that are multiples of their own length. Who can only tell
/// of an alignment, a granularity and a largest length, as SCSI does, must tell the same number for all three: with any
/// others there would be writes that are within the limits and that the kernel does not take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AtomicWrites {
    /// Offsets and lengths are multiples of this: a power of two.
    pub granularity_bytes: u32,
    /// The longest; a multiple of the granularity.
    pub length_bytes_max: u32,
}

impl AtomicWrites {
    /// Of a file or device that is open past the page cache: other descriptors cannot do it.
    pub(super) fn of(fd: &OwnedFd) -> Option<Self> {
        let stat = rustix::fs::statx(fd, "", AtFlags::EMPTY_PATH, WRITE_ATOMIC).ok()?;
        let is_told = stat.stx_mask & WRITE_ATOMIC.bits() != 0;
        is_told
            .then(|| Self::within(stat.stx_atomic_write_unit_min, stat.stx_atomic_write_unit_max))
            .flatten()
    }

    /// Whether a write of this range is one of them.
    pub(crate) fn takes(self, offset: u64, length: u64) -> bool {
        let granularity = u64::from(self.granularity_bytes.max(1));
        let is_whole = offset.is_multiple_of(granularity) && length.is_multiple_of(granularity);
        is_whole && length <= self.length_bytes_max.into()
    }

    /// The one unit between the kernel's shortest and longest; both are 0 where it has none.
    fn within(min_bytes: u32, max_bytes: u32) -> Option<Self> {
        if !min_bytes.is_power_of_two() || !max_bytes.is_power_of_two() || max_bytes < min_bytes {
            return None;
        }
        let unit_bytes = UNIT_BYTES.clamp(min_bytes, max_bytes);
        Some(Self { granularity_bytes: unit_bytes, length_bytes_max: unit_bytes })
    }
}

/// Writes `data` whole or not at all. It must meet the device's alignment.
pub(super) fn write(fd: BorrowedFd<'_>, offset: u64, data: &[u8]) -> io::Result<()> {
    let parts = [io::IoSlice::new(data)];
    let count = retry_on_intr(|| rustix::io::pwritev2(fd, &parts, offset, ATOMIC))?;
    // Part of it is against the kernel's promise.
    if count == data.len() { Ok(()) } else { Err(Errno::IO.into()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_one_unit_or_none() {
        let unit = |min, max| AtomicWrites::within(min, max).map(|atomic| atomic.granularity_bytes);
        assert_eq!(unit(512, 4096), Some(4096));
        assert_eq!(unit(4096, 2 << 20), Some(16 << 10));
        assert_eq!(unit(64 << 10, 64 << 10), Some(64 << 10));
        for (min, max) in [(0, 0), (0, 4096), (4096, 512), (3000, 4096), (512, 5000)] {
            assert_eq!(unit(min, max), None, "{min} {max}");
        }
    }
}
