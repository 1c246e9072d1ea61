//! Which parts of a file have space that nothing was written to: the FIEMAP call of Linux.
//!
//! Not here: telling data from holes where nothing is reserved, which SEEK_DATA and SEEK_HOLE do for all file systems and
//! without writing anything back.

#![allow(unsafe_code)]

use std::io;
use std::mem;
use std::ops::Range;
use std::os::fd::{AsRawFd, BorrowedFd};

use super::{Allocation, Extent, push_extent};

/// `_IOWR('f', 11, struct fiemap)`
const FS_IOC_FIEMAP: libc::c_ulong = 0xc020_660b;

/// FIEMAP_FLAG_SYNC: write back first what the page cache has of the file.
const SYNC: u32 = 0x01;
/// FIEMAP_EXTENT_UNWRITTEN: it has space, and reads as zeros.
const UNWRITTEN: u32 = 0x800;

/// The kernel's extents that one call brings; an answer ends where they do.
const EXTENTS: usize = 256;

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
/// Data that is still in the page cache alone does not show in the map of a file. So where something seems to be reserved, the
/// file is written back and looked at again; where nothing is, a look costs no write.
pub(super) fn look(fd: BorrowedFd<'_>, range: Range<u64>) -> io::Result<Found> {
    let (found, until) = map(fd, range.clone(), 0)?;
    if found.iter().all(|extent| extent.flags & UNWRITTEN == 0) {
        return Ok(Found::NothingReserved { until });
    }
    let (found, until) = map(fd, range.clone(), SYNC)?;
    let mut extents = Vec::new();
    let mut at = range.start;
    for extent in found {
        let start = extent.logical.clamp(at, until);
        let end = extent.logical.saturating_add(extent.length).clamp(start, until);
        let allocation = if extent.flags & UNWRITTEN == 0 { Allocation::Data } else { Allocation::Reserved };
        let hole = Extent { offset: at, length: start - at, allocation: Allocation::Hole };
        let part = Extent { offset: start, length: end - start, allocation };
        if !push_extent(&mut extents, hole) || !push_extent(&mut extents, part) {
            return Ok(Found::Extents(extents));
        }
        at = end;
    }
    // A full list stays as it is: the rest is told with the next call.
    push_extent(&mut extents, Extent { offset: at, length: until - at, allocation: Allocation::Hole });
    Ok(Found::Extents(extents))
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
