//! Which parts of a file have space that nothing was written to: the FIEMAP call of Linux.
//!
//! Not here: telling data from holes where nothing is reserved, which SEEK_DATA and SEEK_HOLE do for all file systems.

#![allow(unsafe_code)]

use std::io;
use std::iter;
use std::mem;
use std::ops::Range;
use std::os::fd::{AsRawFd, BorrowedFd};

use super::residency::{self, PAGE_BYTES, Pending};
use super::{Allocation, EXTENTS_MAX, Extent, push_extent};

/// `_IOWR('f', 11, struct fiemap)`
const FS_IOC_FIEMAP: libc::c_ulong = 0xc020_660b;

/// FIEMAP_FLAG_SYNC: write back first what the page cache has of the file, all of it.
const SYNC: u32 = 0x01;
/// FIEMAP_EXTENT_UNWRITTEN: it has space, and reads as zeros.
const UNWRITTEN: u32 = 0x800;

/// The kernel's extents that one call brings; an answer ends where they do.
const EXTENTS: usize = 256;

/// How far a look goes where there is such space: the page cache is searched for data there.
const LOOK_BYTES_MAX: u64 = 4 << 30;

/// `struct fiemap_extent` of the kernel's interface.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct FiemapExtent {
    logical: u64,
    physical: u64,
    length: u64,
    reserved64: [u64; 2],
    flags: u32,
    reserved: [u32; 3],
}

impl FiemapExtent {
    fn is_unwritten(&self) -> bool {
        self.flags & UNWRITTEN != 0
    }

    /// What of it is in a range; empty if nothing is.
    fn within(&self, range: Range<u64>) -> Range<u64> {
        let end = self.logical.saturating_add(self.length);
        self.logical.clamp(range.start, range.end)..end.clamp(range.start, range.end)
    }
}

/// `struct fiemap` of the kernel's interface, with room for its extents.
#[repr(C)]
struct Fiemap {
    start: u64,
    length: u64,
    flags: u32,
    mapped_extents: u32,
    extent_count: u32,
    reserved: u32,
    extents: [FiemapExtent; EXTENTS],
}

const _: () = assert!(mem::size_of::<Fiemap>() == 32 + EXTENTS * 56);

/// What a look at a range found.
pub(super) enum Found {
    /// Nothing before this offset is reserved: SEEK_DATA and SEEK_HOLE know all about it.
    NothingReserved {
        /// At most the end of the range, and beyond its start.
        until: u64,
    },
    /// The first parts of the range, in order and without gaps.
    Extents(Vec<Extent>),
}

/// Whether the file system of a file answers such a call.
pub(super) fn is_told(fd: BorrowedFd<'_>) -> bool {
    map(fd, 0..1, 0).is_ok()
}

/// Looks for space that nothing was written to, in a range that is not empty.
///
/// Data that is still in the page cache alone does not show in the map of a file. So the page cache is asked what it has still to
/// write back where the map shows none, and the map is looked at once more: what was written back before the page cache was asked
/// shows then. Nothing is written for it. Only kernels that cannot be asked (before 6.5) have the file written back.
pub(super) fn look(fd: BorrowedFd<'_>, range: Range<u64>) -> io::Result<Found> {
    let (found, until) = map(fd, range.clone(), 0)?;
    if !found.iter().any(FiemapExtent::is_unwritten) {
        return Ok(Found::NothingReserved { until });
    }
    let until = until.min(range.start.saturating_add(LOOK_BYTES_MAX));
    let (pending, until, flags) = find_pending(fd, &found, range.start..until)
        .map_or((Vec::new(), until, SYNC), |(pending, until)| (pending, until, 0));
    let (found, told) = map(fd, range.start..until, flags)?;
    Ok(Found::Extents(merge(&found, &pending, range.start..until.min(told))))
}

/// The parts of a range that the page cache has still to write back, where the kernel's extents show no data, and up to where
/// these are all. `None` where the kernel cannot tell.
fn find_pending(
    fd: BorrowedFd<'_>,
    found: &[FiemapExtent],
    range: Range<u64>,
) -> Option<(Vec<Range<u64>>, u64)> {
    let mut pending: Vec<Range<u64>> = Vec::new();
    let mut at = range.start;
    let data =
        found.iter().filter(|extent| !extent.is_unwritten()).map(|extent| extent.within(range.clone()));
    for Range { start, end } in data.chain(iter::once(range.end..range.end)) {
        if at < start && !add_pending(fd, at..start, &mut pending)? {
            let until = pending.last().map_or(range.end, |last| last.end);
            return Some((pending, until));
        }
        at = end;
    }
    Some((pending, range.end))
}

/// Adds the parts of a range that the page cache has still to write back, in order, until there are [`EXTENTS_MAX`]: false if there
/// may be more then, and `None` where the kernel cannot tell.
fn add_pending(fd: BorrowedFd<'_>, range: Range<u64>, pending: &mut Vec<Range<u64>>) -> Option<bool> {
    let length = range.end - range.start;
    let found = residency::pending(fd, range.start, length)?;
    if found == Pending::Nothing {
        return Some(true);
    }
    if found == Pending::Everything || length <= PAGE_BYTES {
        match pending.last_mut() {
            Some(last) if last.end == range.start => last.end = range.end,
            _ => pending.push(range),
        }
        return Some(pending.len() < EXTENTS_MAX);
    }
    let second_page = (range.start + 1).next_multiple_of(PAGE_BYTES);
    let middle = ((range.start + length / 2) / PAGE_BYTES * PAGE_BYTES).max(second_page);
    Some(add_pending(fd, range.start..middle, pending)? && add_pending(fd, middle..range.end, pending)?)
}

/// The extents of a range as the kernel has found them, but for the parts that are data in the page cache alone.
fn merge(found: &[FiemapExtent], pending: &[Range<u64>], range: Range<u64>) -> Vec<Extent> {
    let mut merged = Merged { extents: Vec::new(), at: range.start };
    for extent in found {
        let Range { start, end } = extent.within(range.clone());
        let allocation = if extent.is_unwritten() { Allocation::Reserved } else { Allocation::Data };
        // A full list stays as it is: the rest is told with the next call.
        if !merged.go_on(start, Allocation::Hole, pending) || !merged.go_on(end, allocation, pending) {
            return merged.extents;
        }
    }
    merged.go_on(range.end, Allocation::Hole, pending);
    merged.extents
}

/// Extents in order and without gaps.
struct Merged {
    extents: Vec<Extent>,
    /// Where the next one begins.
    at: u64,
}

impl Merged {
    /// Goes on to an offset by what has `allocation`, or data where it is pending. False once the list is full.
    fn go_on(&mut self, until: u64, allocation: Allocation, pending: &[Range<u64>]) -> bool {
        let first = pending.partition_point(|data| data.end <= self.at);
        pending[first..]
            .iter()
            .take_while(|data| data.start < until)
            .all(|data| self.push(data.start, allocation) && self.push(data.end.min(until), Allocation::Data))
            && self.push(until, allocation)
    }

    fn push(&mut self, until: u64, allocation: Allocation) -> bool {
        let end = until.max(self.at);
        let fits =
            push_extent(&mut self.extents, Extent { offset: self.at, length: end - self.at, allocation });
        self.at = end;
        fits
    }
}

/// The kernel's extents of a range in order, and up to where they tell all.
fn map(fd: BorrowedFd<'_>, range: Range<u64>, flags: u32) -> io::Result<(Vec<FiemapExtent>, u64)> {
    let mut fiemap = Fiemap {
        start: range.start,
        length: range.end - range.start,
        flags,
        mapped_extents: 0,
        extent_count: EXTENTS as u32,
        reserved: 0,
        extents: [FiemapExtent::default(); EXTENTS],
    };
    // SAFETY: the descriptor is open for the time of the call, and the kernel reads and writes one `fiemap` with room for
    // `extent_count` extents, which the structure is; it outlives the call.
    let result = unsafe { libc::ioctl(fd.as_raw_fd(), FS_IOC_FIEMAP as _, &raw mut fiemap) };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    let found = &fiemap.extents[..EXTENTS.min(fiemap.mapped_extents as usize)];
    let until = match found.last() {
        Some(last) if found.len() == EXTENTS => {
            // A part that is not beyond the start would never end.
            last.logical.saturating_add(last.length).clamp(range.start + 1, range.end)
        }
        _ => range.end,
    };
    Ok((found.to_vec(), until))
}
