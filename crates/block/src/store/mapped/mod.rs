//! Short reads of what the page cache has, without a system call for each: from a mapping of the file.
//!
//! A page that the page cache does not have would make its reader wait for the disk. So before the first read of a region, and again
//! whenever a second has gone by, the kernel is asked which of its pages it has (`mincore(2)`). What it throws out meanwhile costs a
//! wait, which is noticed as a major fault of the thread: then there are calls again for some time. See docs/decisions/0043.

#![allow(unsafe_code)]

mod answers;
mod bus_error;
mod faults;
mod memory;
mod page_tables;

use std::ffi::c_void;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::{self, NonNull};
use std::sync::atomic::{Ordering, fence};

use rustix::fs::{FileType, SeekFrom};

use self::answers::{Answers, Pages};
use self::bus_error::Place;
use self::page_tables::{PAGE_TABLES, PageTables, WINDOW_BYTES, Windows};
use super::residency::page_bytes;
use crate::nearer;
use crate::pauses::Pauses;

/// Longer reads are copied in the kernel: beside their bytes a call costs nothing.
pub(super) const READ_BYTES_MAX: usize = 64 << 10;

/// What is asked about at once: as much as the kernel maps by one fault, and at most as many pages as an answer has bits.
const REGION_BYTES: usize = 64 << 10;

const REGIONS_OF_WINDOW: usize = WINDOW_BYTES / REGION_BYTES;

/// File systems of this machine alone, whose files are what their page cache says (linux/magic.h): ext2 to ext4, xfs, btrfs, f2fs
/// and tmpfs. A file of others may change elsewhere, or be another one below, and only calls notice.
const FILE_SYSTEMS: [u32; 5] = [0xef53, 0x5846_5342, 0x9123_683e, 0xf2f5_2010, 0x0102_1994];

/// A file, or block device, in this process's memory, read-only and shared with whoever writes it.
#[derive(Debug)]
pub(super) struct Mapping {
    start: NonNull<u8>,
    /// Bytes of address space: at least a page more than the file.
    length: usize,
    /// Bytes that the file had.
    file_bytes: usize,
    /// The binary logarithm of the page size.
    page_shift: u32,
    answers: Answers,
    /// What [`super::residency`] has counted for long reads. That counts pages whose reading has only begun, for which a short one is
    /// not to wait.
    counted: Answers,
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
    pub(super) fn of(file: BorrowedFd<'_>) -> Option<Self> {
        if is_of_this_machine(file) { Self::with_page_tables(file, &PAGE_TABLES) } else { None }
    }

    fn with_page_tables(file: BorrowedFd<'_>, page_tables: &'static PageTables) -> Option<Self> {
        let file_bytes = usize::try_from(rustix::fs::seek(file, SeekFrom::End(0)).ok()?).ok()?;
        // A page behind the end, which nobody can have: see `tells_the_truth`.
        let length = file_bytes.checked_next_multiple_of(page_bytes())?.checked_add(page_bytes())?;
        let regions = length.div_ceil(REGION_BYTES);
        let (answers, counted) = (Answers::new(regions)?, Answers::new(regions)?);
        let windows = Windows::new(length.div_ceil(WINDOW_BYTES), page_tables)?;
        let start = map(file, length)?;
        let place = Place::take(start.addr().get(), length);
        let mapping = Self {
            start,
            length,
            file_bytes,
            page_shift: page_bytes().ilog2(),
            answers,
            counted,
            windows,
            place,
            pauses: Pauses::default(),
        };
        mapping.tells_the_truth().then_some(mapping)
    }

    /// Fills the buffer if the page cache has all of it. False: it says nothing, and `buffer` may hold anything. The range is within the
    /// file, as far as is known.
    pub(super) fn read(&self, offset: u64, buffer: &mut [u8]) -> bool {
        let now_ms = coarse_ms();
        let may_read =
            buffer.len() <= READ_BYTES_MAX && !self.place.is_broken() && self.pauses.are_over(now_ms);
        if !may_read || !self.is_ready(offset, buffer.len(), now_ms) {
            return false;
        }
        // SAFETY: the range is within the mapping, which is as long as `length`, and the buffer is this thread's own. Nothing here looks at
        // what lies in the mapping, which others may be changing: it is bytes for an initiator. If it cannot be read, see `bus_error`.
        unsafe {
            let from = self.start.as_ptr().add(offset as usize);
            ptr::copy_nonoverlapping(from, buffer.as_mut_ptr(), buffer.len());
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

    /// Whether a page of what was read at this offset may have been cut: then it ends in a zero. Of other data this spares the question
    /// for the file's end.
    pub(super) fn may_be_cut(&self, offset: u64, read: &[u8]) -> bool {
        ends_in_a_zero(1 << self.page_shift, offset, read)
    }

    /// See [`crate::store::Store::expect`].
    pub(super) fn expect(&self, offset: u64, length: u64) {
        let range = usize::try_from(offset).ok().zip(usize::try_from(length).ok());
        if let Some((offset, length)) = range.filter(|(offset, _)| *offset < self.file_bytes) {
            nearer::bring(self.start.as_ptr().wrapping_add(offset), length);
        }
    }

    /// Whether anything was.
    #[cfg(test)]
    pub(super) fn was_read(&self) -> bool {
        self.windows.count() > 0
    }

    /// Whether the page cache has all of the range, and it may be read.
    fn is_ready(&self, offset: u64, length: usize, now_ms: u64) -> bool {
        let regions = self.regions_of(offset, length);
        regions.is_some_and(|mut regions| {
            regions.all(|(region, wanted)| {
                self.has(region, wanted, now_ms) && self.windows.take(region / REGIONS_OF_WINDOW)
            })
        })
    }

    /// Whether the page cache has all of the range, as far as is believed.
    pub(super) fn is_cached(&self, offset: u64, length: u64) -> bool {
        let regions = self.long_regions_of(offset, length);
        let now_ms = coarse_ms();
        regions.is_some_and(|mut regions| regions.all(|(region, wanted)| self.has(region, wanted, now_ms)))
    }

    /// Whether the page cache had all of the range when it was counted within the last second.
    pub(super) fn was_counted(&self, offset: u64, length: u64) -> bool {
        let now_ms = coarse_ms();
        let has = |(region, wanted): (usize, Pages)| {
            self.counted.about(region, now_ms).is_some_and(|pages| pages & wanted == wanted)
        };
        self.long_regions_of(offset, length).is_some_and(|mut regions| regions.all(has))
    }

    /// The page cache has all of the range.
    pub(super) fn note_counted(&self, offset: u64, length: u64) {
        let now_ms = coarse_ms();
        for (region, pages) in self.long_regions_of(offset, length).into_iter().flatten() {
            self.counted.note(region, now_ms, pages, pages);
        }
    }

    fn long_regions_of(
        &self,
        offset: u64,
        length: u64,
    ) -> Option<impl Iterator<Item = (usize, Pages)> + use<>> {
        self.regions_of(offset, usize::try_from(length).ok()?)
    }

    /// Whether the wanted pages of a region are there, as far as is believed.
    fn has(&self, region: usize, wanted: Pages, now_ms: u64) -> bool {
        let pages = self.answers.about(region, now_ms).unwrap_or_else(|| {
            let pages = self.ask(region * REGION_BYTES, REGION_BYTES);
            self.answers.note(region, now_ms, pages, wanted);
            pages
        });
        pages & wanted == wanted
    }

    /// The kernel's answer about the pages of a range, no more than a region; none where it gives none.
    fn ask(&self, start: usize, length: usize) -> Pages {
        let Some(rest) = self.length.checked_sub(start) else { return 0 };
        let mut pages = [0_u8; Pages::BITS as usize];
        // SAFETY: the kernel looks at a range of the mapping, and writes a byte for each of its pages: no more than 16, for pages
        // are not smaller than 4096 bytes anywhere.
        let result = unsafe {
            let at = self.start.as_ptr().add(start).cast::<c_void>();
            libc::mincore(at, length.min(REGION_BYTES).min(rest), pages.as_mut_ptr())
        };
        if result != 0 {
            return 0;
        }
        pages.iter().enumerate().fold(0, |found, (nth, page)| found | Pages::from(page & 1) << nth)
    }

    /// Whether `mincore` tells of this file what is. To whoever may not write a file, and does not own it, it says that
    /// everything is there, behind its end, too; and a filter of system calls may refuse to say anything.
    fn tells_the_truth(&self) -> bool {
        let mut page = 0_u8;
        let behind = self.length - page_bytes();
        // SAFETY: the kernel looks at the mapping's last page, and writes a byte.
        let result = unsafe {
            let at = self.start.as_ptr().add(behind).cast::<c_void>();
            libc::mincore(at, page_bytes(), &raw mut page)
        };
        result == 0 && page & 1 == 0
    }

    /// The range has lost its pages, or is about to: what is believed of it is wrong.
    pub(super) fn forget(&self, offset: u64, length: u64) {
        let region = |at: u64| usize::try_from(at / REGION_BYTES as u64).unwrap_or(usize::MAX);
        let end = region(offset.saturating_add(length).saturating_sub(1)).saturating_add(1);
        let regions = region(offset)..end.min(self.length.div_ceil(REGION_BYTES));
        self.answers.forget(regions.clone());
        self.counted.forget(regions);
    }

    /// The regions of a range and the pages of each that are in it; `None` for one that is empty, or goes behind the file's end.
    fn regions_of(&self, offset: u64, length: usize) -> Option<impl Iterator<Item = (usize, Pages)> + use<>> {
        let start = usize::try_from(offset).ok()?;
        let end = start.checked_add(length)?;
        if length == 0 || end > self.file_bytes {
            return None;
        }
        let page_shift = self.page_shift;
        Some((start / REGION_BYTES..=(end - 1) / REGION_BYTES).map(move |region| {
            let first = start.saturating_sub(region * REGION_BYTES) >> page_shift;
            let last = (end - 1 - region * REGION_BYTES).min(REGION_BYTES - 1) >> page_shift;
            (region, (Pages::MAX >> (Pages::BITS as usize - 1 - last)) & (Pages::MAX << first))
        }))
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        self.place.leave();
        // SAFETY: nobody has a reference to this, and what was read was copied.
        unsafe { libc::munmap(self.start.as_ptr().cast::<c_void>(), self.length) };
    }
}

/// Whether any page's part of what lies at this offset does.
fn ends_in_a_zero(page_bytes: usize, offset: u64, data: &[u8]) -> bool {
    let in_first = page_bytes - (offset as usize & (page_bytes - 1));
    let (first, others) = data.split_at(in_first.min(data.len()));
    std::iter::once(first).chain(others.chunks(page_bytes)).any(|part| part.last() == Some(&0))
}

fn map(file: BorrowedFd<'_>, length: usize) -> Option<NonNull<u8>> {
    // SAFETY: a new mapping at an address that the kernel chooses; and advice about it, since a core dump needs no disks.
    unsafe {
        let start =
            libc::mmap(ptr::null_mut(), length, libc::PROT_READ, libc::MAP_SHARED, file.as_raw_fd(), 0);
        if start == libc::MAP_FAILED {
            return None;
        }
        libc::madvise(start, length, libc::MADV_DONTDUMP);
        NonNull::new(start.cast())
    }
}

/// A block device, or a file of a file system that asks no other machine.
pub(super) fn is_of_this_machine(file: BorrowedFd<'_>) -> bool {
    let is_device = rustix::fs::fstat(file)
        .is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::BlockDevice);
    is_device || rustix::fs::fstatfs(file).is_ok_and(|stat| FILE_SYSTEMS.contains(&(stat.f_type as u32)))
}

/// The kernel's clock of its last tick, in milliseconds: a few late, and read in no time. Through the
/// C library, since rustix looks for what valgrind hides (the vDSO).
pub(crate) fn coarse_ms() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the call writes one `timespec`, which outlives it.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC_COARSE, &raw mut now) };
    now.tv_sec.unsigned_abs() * 1000 + now.tv_nsec.unsigned_abs() / 1_000_000
}

#[cfg(test)]
mod tests;
