//! Short reads of what the page cache has, without a system call for each: from a mapping of the file.
//!
//! A page that the page cache does not have would make its reader wait for the disk. So before the first read of a region, and again
//! whenever a second has gone by, the kernel is asked whether it has all of it (`mincore(2)`). What it throws out meanwhile costs a
//! wait, which is noticed as a major fault of the thread: then there are calls again for some time. See docs/decisions/0043.

#![allow(unsafe_code)]

mod answers;
mod bus_error;
mod faults;
mod page_tables;

use std::ffi::c_void;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use self::answers::Answers;
use self::bus_error::Place;
use self::page_tables::{PAGE_TABLES, PageTables, WINDOW_BYTES, Windows};
use super::residency::page_bytes;
use crate::pauses::Pauses;
use rustix::fs::OFlags;

/// Longer reads are copied in the kernel: beside their bytes a call costs nothing.
pub(super) const READ_BYTES_MAX: usize = 64 << 10;

/// What is asked about at once: as much as the kernel maps by one fault.
const REGION_BYTES: usize = 64 << 10;

const REGIONS_OF_WINDOW: usize = WINDOW_BYTES / REGION_BYTES;

/// A file, or block device, in this process's memory, read-only and shared with whoever writes it.
#[derive(Debug)]
pub(super) struct Mapping {
    start: NonNull<u8>,
    /// Bytes of address space.
    length: usize,
    /// Bytes that the file had.
    file_bytes: usize,
    answers: Answers,
    file: Arc<OwnedFd>,
    windows: Windows,
    place: &'static Place,
    pauses: Pauses,
}

// SAFETY: the memory is only read, by copying from addresses, and stays mapped until nobody has this any more.
unsafe impl Send for Mapping {}
// SAFETY: the same.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// `None` where it cannot be mapped, or the kernel would not tell what the page cache has of it.
    pub(super) fn of(file: &Arc<OwnedFd>) -> Option<Self> {
        Self::with_page_tables(file, &PAGE_TABLES)
    }

    fn with_page_tables(file: &Arc<OwnedFd>, page_tables: &'static PageTables) -> Option<Self> {
        if !tells_residency(file.as_fd()) {
            return None;
        }
        let file_bytes = rustix::fs::seek(file, rustix::fs::SeekFrom::End(0)).ok()?;
        let file_bytes = usize::try_from(file_bytes).ok()?;
        // It may be enlarged.
        let length = file_bytes.checked_add(1)?.checked_next_power_of_two()?.max(WINDOW_BYTES);
        let answers = Answers::new(length / REGION_BYTES)?;
        let windows = Windows::new(length / WINDOW_BYTES, page_tables)?;
        let start = NonNull::new(map(file.as_fd(), length)?)?;
        let place = Place::take(start.addr().get(), length);
        Some(Self {
            start,
            length,
            file_bytes,
            answers,
            file: Arc::clone(file),
            windows,
            place,
            pauses: Pauses::default(),
        })
    }

    /// Fills the buffer if the page cache has all of it. False: it says nothing, and `buffer` may hold anything. The range is within the
    /// file, as far as is known.
    pub(super) fn read(&self, offset: u64, buffer: &mut [u8]) -> bool {
        let now_ms = coarse_ms();
        let may_read =
            buffer.len() <= READ_BYTES_MAX && !self.place.is_broken() && self.pauses.are_over(now_ms);
        if !may_read || !self.has_range(offset, buffer.len(), now_ms) {
            return false;
        }
        // SAFETY: the range is within the mapping, which is as long as `length`, and the buffer is this thread's own. Nothing here looks at
        // what lies in the mapping, which others may be changing: it is bytes for an initiator. If it cannot be read, see `bus_error`.
        unsafe {
            ptr::copy_nonoverlapping(
                self.start.as_ptr().add(offset as usize),
                buffer.as_mut_ptr(),
                buffer.len(),
            );
        }
        fence(Ordering::Acquire);
        if self.place.is_broken() {
            return false;
        }
        // Such a copy hardly ever sees the clock change, unless the thread has waited.
        let after_ms = coarse_ms();
        if after_ms != now_ms && faults::have_waited() {
            self.pauses.begin(after_ms);
        }
        true
    }

    /// Whether the page cache has all of the range, as far as is believed.
    pub(super) fn is_cached(&self, offset: u64, length: u64) -> bool {
        usize::try_from(length).is_ok_and(|length| self.has_range(offset, length, coarse_ms()))
    }

    fn has_range(&self, offset: u64, length: usize, now_ms: u64) -> bool {
        let regions = self.regions_of(offset, length);
        regions.is_some_and(|(first, last)| (first..=last).all(|region| self.has(region, now_ms)))
    }

    /// Whether all of the region is there, as far as is believed.
    fn has(&self, region: usize, now_ms: u64) -> bool {
        self.answers.about(region, now_ms).unwrap_or_else(|| {
            let lets_go = |window| self.is_idle(window, now_ms) && self.map_anew(window);
            let is_resident = self.ask(region) && self.windows.take(region / REGIONS_OF_WINDOW, lets_go);
            self.answers.note(region, now_ms, is_resident);
            is_resident
        })
    }

    /// The kernel's answer about all of a region.
    fn ask(&self, region: usize) -> bool {
        const PAGES_MAX: usize = REGION_BYTES / 4096;
        let start = region * REGION_BYTES;
        let end = start + REGION_BYTES;
        // Of what lies behind the file's end there is nothing.
        let bytes = if start < self.file_bytes { end.min(self.file_bytes) - start } else { REGION_BYTES };
        let mut pages = [0_u8; PAGES_MAX];
        let count = bytes.div_ceil(page_bytes());
        // SAFETY: the kernel looks at a range of the mapping, and writes a byte for each of its pages: no more than 16, for pages are not smaller
        // than 4096 bytes anywhere.
        let result = unsafe {
            libc::mincore(self.start.as_ptr().add(start).cast::<c_void>(), bytes, pages.as_mut_ptr())
        };
        result == 0 && pages.iter().take(count).all(|page| page & 1 == 1)
    }

    /// Whether nobody has read the window lately.
    fn is_idle(&self, window: usize, now_ms: u64) -> bool {
        let mut regions = window * REGIONS_OF_WINDOW..(window + 1) * REGIONS_OF_WINDOW;
        regions.all(|region| self.answers.about(region, now_ms) != Some(true))
    }

    /// The same bytes at the same addresses, and none of the page tables that there were. Who reads them meanwhile faults once more.
    fn map_anew(&self, window: usize) -> bool {
        let offset = window * WINDOW_BYTES;
        let flags = libc::MAP_SHARED | libc::MAP_FIXED;
        // SAFETY: windows are within the mapping, and what takes the place of this one has the same bytes of the same file.
        unsafe {
            let at = self.start.as_ptr().add(offset).cast::<c_void>();
            let Ok(offset) = libc::off_t::try_from(offset) else { return false };
            let fd = self.file.as_raw_fd();
            if libc::mmap(at, WINDOW_BYTES, libc::PROT_READ, flags, fd, offset) == libc::MAP_FAILED {
                return false;
            }
            advise(at, WINDOW_BYTES);
        }
        true
    }

    /// The range has lost its pages, or is about to: what is believed of it is wrong.
    pub(super) fn forget(&self, offset: u64, length: u64) {
        let region = |at: u64| usize::try_from(at / REGION_BYTES as u64).unwrap_or(usize::MAX);
        let end = region(offset.saturating_add(length).saturating_sub(1)).saturating_add(1);
        self.answers.forget(region(offset)..end.min(self.length / REGION_BYTES));
    }

    /// The regions of a range, from the first to the last; `None` for one that is empty, or not in the mapping.
    fn regions_of(&self, offset: u64, length: usize) -> Option<(usize, usize)> {
        let offset = usize::try_from(offset).ok()?;
        let end = offset.checked_add(length)?;
        (length > 0 && end <= self.length).then(|| (offset / REGION_BYTES, (end - 1) / REGION_BYTES))
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        self.place.leave();
        // SAFETY: nobody has a reference to this, and what was read was copied.
        unsafe { libc::munmap(self.start.as_ptr().cast::<c_void>(), self.length) };
    }
}

/// A mapping of so many bytes, which begins where page tables do.
fn map(file: BorrowedFd<'_>, length: usize) -> Option<*mut u8> {
    let reserved = length.checked_add(WINDOW_BYTES)?;
    let (kind, flags) = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, libc::MAP_SHARED | libc::MAP_FIXED);
    // SAFETY: the first mapping has an address that the kernel chooses and reserves its room alone; the second one is within it, and what is
    // left over of the first is given back.
    unsafe {
        let room = libc::mmap(ptr::null_mut(), reserved, libc::PROT_NONE, kind | libc::MAP_NORESERVE, -1, 0);
        if room == libc::MAP_FAILED {
            return None;
        }
        let before = room.addr().wrapping_neg() % WINDOW_BYTES;
        let start = room.byte_add(before);
        let mapped = libc::mmap(start, length, libc::PROT_READ, flags, file.as_raw_fd(), 0);
        if mapped == libc::MAP_FAILED {
            libc::munmap(room, reserved);
            return None;
        }
        if before > 0 {
            libc::munmap(room, before);
        }
        libc::munmap(start.byte_add(length), reserved - before - length);
        advise(start, length);
        Some(start.cast())
    }
}

/// Nothing is to be read ahead here, and a core dump needs no disks. Without either all is well.
///
/// # Safety
/// The range is mapped.
unsafe fn advise(start: *mut c_void, length: usize) {
    // SAFETY: of what is mapped, as the caller says.
    unsafe {
        libc::madvise(start, length, libc::MADV_RANDOM);
        libc::madvise(start, length, libc::MADV_DONTDUMP);
    }
}

/// The memory of this machine.
fn memory_bytes() -> usize {
    let machine = rustix::system::sysinfo();
    (machine.totalram as usize).saturating_mul(machine.mem_unit as usize)
}

/// Whether `mincore` tells the truth of a file: of one that the process could not write and does not own it says that all is there.
fn tells_residency(file: BorrowedFd<'_>) -> bool {
    let is_writable = rustix::fs::fcntl_getfl(file).is_ok_and(|flags| flags.contains(OFlags::RDWR));
    is_writable
        || rustix::fs::fstat(file).is_ok_and(|stat| stat.st_uid == rustix::process::geteuid().as_raw())
}

/// The kernel's clock of its last tick, in milliseconds: a few late, and read in no time. Through the
/// C library, since rustix looks for what valgrind hides (the vDSO).
fn coarse_ms() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the call writes one `timespec`, which outlives it.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC_COARSE, &raw mut now) };
    now.tv_sec.unsigned_abs() * 1000 + now.tv_nsec.unsigned_abs() / 1_000_000
}

#[cfg(test)]
mod tests;
