//! What image files and block devices have in common: blocking calls on one file descriptor, through the page cache
//! or past it. Not here: opening, locking and sizing.

use std::io;
use std::num::NonZeroU64;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Instant;

use rustix::fs::{Advice, FallocateFlags, FileType};
use rustix::io::{Errno, ReadWriteFlags, retry_on_intr};

use super::direct::{Direct, RawFile};
use super::mapped::{Mapping, is_of_this_machine};
use super::residency;

/// What is written where the kernel cannot zero a range itself. It lies in `.bss`, so it costs no room on disk.
static ZEROES: Zeroes = Zeroes([0; 1 << 20]);

/// Aligned like a buffer, for writing past the page cache.
#[repr(align(4096))]
struct Zeroes([u8; 1 << 20]);

/// A read-ahead hint covers at most this much, so that one command cannot fill the page cache.
const PREFETCH_BYTES_MAX: u64 = 16 << 20;

/// What one call writes into the page cache of a file of ext4: see [`write_bytes_max`].
const EXT4_WRITE_BYTES_MAX: usize = 128 << 10;

/// For how long it is believed where a file ends: ten short writes and more share the question then, which alone is a tenth of each
/// (docs/decisions/0004).
const END_BELIEVED_NS: u64 = 100_000;

/// Where a file ended, and when that was asked: so long after it was opened.
#[derive(Debug, Default)]
struct KnownEnd {
    bytes: AtomicU64,
    asked_ns: AtomicU64,
    /// One asks at a time, so that no answer takes the place of a newer one.
    asking: Mutex<()>,
}

/// A file or a device, and what its file system was found not to do.
#[derive(Debug)]
pub(crate) struct KernelFile {
    fd: Arc<OwnedFd>,
    direct: Option<Direct>,
    /// It is an image, which others may cut, and a write behind its end would make longer again.
    has_movable_end: bool,
    /// To ask for its end waits for nobody: some file systems of other machines write all back for that.
    tells_its_end: bool,
    known_end: KnownEnd,
    opened_at: Instant,
    /// Bytes that one call writes into the page cache, if they are to be few.
    write_bytes_max: Option<usize>,
    /// Made by the first read that the page cache may have.
    mapping: OnceLock<Option<Mapping>>,
    nowait_refused: AtomicBool,
    zero_range_refused: AtomicBool,
}

/// Since Linux 6.16 ext4 keeps what comes with one write in one piece of the page cache, up to 2 MiB, and looks at all blocks of that
/// piece whenever a part of it is written: what a 512-KiB write leaves makes each later short write two to three times as dear
/// (docs/decisions/0046).
fn write_bytes_max(file: &OwnedFd) -> Option<usize> {
    const EXT4_MAGIC: u32 = 0xef53;
    let is_ext4 = rustix::fs::fstatfs(file).is_ok_and(|stat| stat.f_type as u32 == EXT4_MAGIC);
    is_ext4.then_some(EXT4_WRITE_BYTES_MAX)
}

/// An image is as long as when it was opened unless somebody truncated it, and a device unless it has shrunk.
pub(crate) fn became_shorter() -> io::Error {
    io::Error::new(io::ErrorKind::UnexpectedEof, "it became shorter than it was when it was opened")
}

impl KernelFile {
    /// Takes a descriptor; with `direct` it is one that goes past the page cache.
    pub(crate) fn new(fd: OwnedFd, direct: Option<Direct>) -> Self {
        let (nowait_refused, zero_range_refused) = (AtomicBool::new(false), AtomicBool::new(false));
        let has_movable_end = rustix::fs::fstat(&fd)
            .is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile);
        let tells_its_end = has_movable_end && is_of_this_machine(fd.as_fd());
        let (write_bytes_max, fd, mapping) = (write_bytes_max(&fd), Arc::new(fd), OnceLock::new());
        let (known_end, opened_at) = (KnownEnd::default(), Instant::now());
        Self {
            fd,
            direct,
            has_movable_end,
            tells_its_end,
            known_end,
            opened_at,
            write_bytes_max,
            mapping,
            nowait_refused,
            zero_range_refused,
        }
    }

    pub(crate) fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// The part of a size that can be read and written.
    pub(crate) fn whole_blocks(&self, size_bytes: u64) -> u64 {
        self.direct.as_ref().map_or(size_bytes, |direct| direct.whole_blocks(size_bytes))
    }

    /// Whether writes are copies into the page cache.
    pub(crate) fn is_cached(&self) -> bool {
        self.direct.is_none()
    }

    /// What an engine may use by itself: only past the page cache, where nothing but alignment has to be looked at.
    pub(crate) fn raw(&self) -> Option<RawFile<'_>> {
        self.direct.as_ref().map(|direct| RawFile::new(self.as_fd(), direct))
    }

    /// Fills `buffer`. Zeroes are never made up: an image that ends early was truncated by somebody.
    pub(crate) fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        if let Some(direct) = &self.direct {
            return direct.read_at(self.as_fd(), offset, buffer);
        }
        let mut done = 0;
        while done < buffer.len() {
            let at = offset + done as u64;
            let count = retry_on_intr(|| rustix::io::pread(&self.fd, &mut buffer[done..], at))?;
            if count == 0 {
                return Err(became_shorter());
            }
            done += count;
        }
        Ok(())
    }

    /// Reads what the page cache has. 0 also when the file system does not know such reads: ext4, xfs, btrfs,
    /// tmpfs and block devices do, some network file systems do not.
    pub(crate) fn read_cached(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        if self.direct.is_some() || self.nowait_refused.load(Ordering::Relaxed) {
            return Ok(0);
        }
        // Behind a cut a mapping has zeroes up to the end of the page.
        let is_whole = |mapping: &Mapping, read: &[u8]| {
            !mapping.may_be_cut(offset, read) || self.check_end(offset + read.len() as u64).is_ok()
        };
        if self.mapping().is_some_and(|mapping| mapping.read(offset, buffer) && is_whole(mapping, buffer)) {
            return Ok(buffer.len());
        }
        let mut parts = [io::IoSliceMut::new(buffer)];
        match rustix::io::preadv2(&self.fd, &mut parts, offset, ReadWriteFlags::NOWAIT) {
            Ok(count) => Ok(count),
            Err(Errno::AGAIN | Errno::INTR) => Ok(0),
            Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) => {
                self.nowait_refused.store(true, Ordering::Relaxed);
                Ok(0)
            }
            Err(errno) => Err(errno.into()),
        }
    }

    /// See [`super::Store::expect`].
    pub(crate) fn expect(&self, offset: u64, length: u64) {
        if let Some(Some(mapping)) = self.mapping.get() {
            mapping.expect(offset, length);
        }
    }

    fn mapping(&self) -> Option<&Mapping> {
        self.mapping.get_or_init(|| Mapping::of(self.fd.as_fd())).as_ref()
    }

    /// The descriptor, if the page cache has all of the range, or had it within the last second.
    pub(crate) fn cached_file(&self, offset: u64, length: u64) -> Option<Arc<OwnedFd>> {
        (self.direct.is_none() && self.is_range_cached(offset, length)).then(|| Arc::clone(&self.fd))
    }

    fn is_range_cached(&self, offset: u64, length: u64) -> bool {
        // What was cut is not sent, whatever is believed, or counted of a page that is larger than what was cut of it: whoever reads
        // it is to hear of that.
        if self.check_end(offset.saturating_add(length)).is_err() {
            return false;
        }
        let mapping = self.mapping();
        if mapping.is_some_and(|mapping| mapping.was_counted(offset, length)) {
            return true;
        }
        let Some(is_cached) = residency::is_cached(self.fd.as_fd(), offset, length) else {
            return mapping.is_some_and(|mapping| mapping.is_cached(offset, length));
        };
        if let Some(mapping) = mapping.filter(|_| is_cached) {
            mapping.note_counted(offset, length);
        }
        is_cached
    }

    /// See [`super::Store::end_bytes`].
    pub(crate) fn end_bytes(&self) -> io::Result<u64> {
        if !self.has_movable_end {
            return Ok(u64::MAX);
        }
        Ok(u64::try_from(rustix::fs::fstat(&self.fd)?.st_size).unwrap_or(0))
    }

    /// Refuses a change that would end behind the file's end, as that was less than [`END_BELIEVED_NS`] ago. A write there would make the
    /// file as long as it was before it was cut, with zeroes in place of what is lost, and nobody would ever hear of it.
    pub(crate) fn check_end(&self, end: u64) -> io::Result<()> {
        if !self.tells_its_end {
            return Ok(());
        }
        if self.is_believed_to_reach(end) {
            return Ok(());
        }
        let KnownEnd { bytes, asked_ns, asking } = &self.known_end;
        let _alone = asking.lock().unwrap_or_else(PoisonError::into_inner);
        // Somebody may have asked meanwhile.
        if self.is_believed_to_reach(end) {
            return Ok(());
        }
        let now_ns = self.age_ns();
        let end_bytes = self.end_bytes()?;
        bytes.store(end_bytes, Ordering::Relaxed);
        asked_ns.store(now_ns, Ordering::Release);
        if end > end_bytes { Err(became_shorter()) } else { Ok(()) }
    }

    fn is_believed_to_reach(&self, end: u64) -> bool {
        let KnownEnd { bytes, asked_ns, .. } = &self.known_end;
        let asked_ns = asked_ns.load(Ordering::Acquire);
        self.age_ns().saturating_sub(asked_ns) < END_BELIEVED_NS && end <= bytes.load(Ordering::Relaxed)
    }

    fn age_ns(&self) -> u64 {
        u64::try_from(self.opened_at.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    pub(crate) fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        if let Some(direct) = &self.direct {
            self.check_end(offset + data.len() as u64)?;
            return direct.write_at(self.as_fd(), offset, data);
        }
        let mut done = 0;
        while done < data.len() {
            let at = offset + done as u64;
            let piece = &data[done..data.len().min(done + self.write_bytes(at))];
            self.check_end(at + piece.len() as u64)?;
            let count = retry_on_intr(|| rustix::io::pwrite(&self.fd, piece, at))?;
            if count == 0 {
                return Err(Errno::IO.into());
            }
            done += count;
        }
        Ok(())
    }

    /// What one call writes from `offset` on. It ends where blocks do: the kernel would have to read one of which only a part is written.
    fn write_bytes(&self, offset: u64) -> usize {
        match self.write_bytes_max {
            Some(bytes_max) => bytes_max - (offset % bytes_max as u64) as usize,
            None => usize::MAX >> 1,
        }
    }

    /// Only past the page cache, where the kernel does such writes.
    pub(crate) fn write_atomic_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let direct = self.direct.as_ref().ok_or(io::ErrorKind::Unsupported)?;
        self.check_end(offset + data.len() as u64)?;
        direct.write_atomic_at(self.as_fd(), offset, data)
    }

    /// The size is set before an image is served, so data and the block map are all there is to be made stable.
    pub(crate) fn flush(&self) -> io::Result<()> {
        Ok(retry_on_intr(|| rustix::fs::fdatasync(&self.fd))?)
    }

    /// Gives the range back; it reads as zeroes then, exactly to the byte on files.
    pub(crate) fn punch_hole(&self, offset: u64, length: u64) -> io::Result<()> {
        if length == 0 {
            return Ok(());
        }
        self.allocate(FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, offset, length)?;
        Ok(())
    }

    /// `fallocate`, kept apart from read-modify-writes like every other change: one would bring back what this takes
    /// away. The kernel itself keeps it apart from direct writes in flight.
    fn allocate(&self, mode: FallocateFlags, offset: u64, length: u64) -> rustix::io::Result<()> {
        let _shared = self.direct.as_ref().map(|direct| direct.gate().share());
        let forget = || {
            if let Some(Some(mapping)) = self.mapping.get() {
                mapping.forget(offset, length);
            }
        };
        forget();
        let result = retry_on_intr(|| rustix::fs::fallocate(&self.fd, mode, offset, length));
        // Somebody may have asked meanwhile.
        forget();
        result
    }

    /// Has space for all of the range; what is there stays.
    pub(crate) fn reserve(&self, offset: u64, length: u64) -> io::Result<()> {
        if length == 0 {
            return Ok(());
        }
        Ok(self.allocate(FallocateFlags::KEEP_SIZE, offset, length)?)
    }

    /// Makes the range read as zeroes without giving its space back; writes them where nothing better is known.
    pub(crate) fn zero_range(&self, offset: u64, length: u64) -> io::Result<()> {
        if length == 0 {
            return Ok(());
        }
        if !self.zero_range_refused.load(Ordering::Relaxed) {
            let mode = FallocateFlags::ZERO_RANGE | FallocateFlags::KEEP_SIZE;
            match self.allocate(mode, offset, length) {
                Ok(()) => return Ok(()),
                Err(Errno::OPNOTSUPP | Errno::NOSYS) => {
                    self.zero_range_refused.store(true, Ordering::Relaxed);
                }
                Err(errno) => return Err(errno.into()),
            }
        }
        self.write_zeroes(offset, length)
    }

    fn write_zeroes(&self, offset: u64, length: u64) -> io::Result<()> {
        let mut done = 0;
        while done < length {
            let count = (length - done).min(ZEROES.0.len() as u64);
            // At most the length of ZEROES, so the cast keeps the value.
            self.write_at(offset + done, &ZEROES.0[..count as usize])?;
            done += count;
        }
        Ok(())
    }

    pub(crate) fn prefetch(&self, offset: u64, length: u64) -> io::Result<()> {
        if self.direct.is_some() {
            return Ok(());
        }
        let Some(length) = NonZeroU64::new(length.min(PREFETCH_BYTES_MAX)) else { return Ok(()) };
        Ok(rustix::fs::fadvise(&self.fd, offset, Some(length), Advice::WillNeed)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file_of(data: &[u8]) -> KernelFile {
        let file = tempfile::tempfile().unwrap();
        file.set_len(data.len() as u64).unwrap();
        let kernel = KernelFile::new(file.into(), None);
        kernel.write_at(0, data).unwrap();
        kernel
    }

    #[test]
    fn zeroes_are_written_where_the_file_system_cannot_zero() {
        let file = file_of(&vec![9; 3 << 20]);
        file.zero_range_refused.store(true, Ordering::Relaxed);
        file.zero_range(100, (2 << 20) + 5).unwrap();
        let mut read = vec![1; 3 << 20];
        file.read_at(0, &mut read).unwrap();
        let end = 100 + (2 << 20) + 5;
        assert!(read[..100].iter().all(|byte| *byte == 9));
        assert!(read[100..end].iter().all(|byte| *byte == 0));
        assert!(read[end..].iter().all(|byte| *byte == 9));
    }

    #[test]
    fn reading_past_the_end_is_an_error_not_zeroes() {
        let file = file_of(&[9; 1000]);
        let error = file.read_at(500, &mut [0; 1000]).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
    }

    #[test]
    fn what_was_just_written_is_in_the_page_cache() {
        let file = file_of(&[9; 8192]);
        let mut read = [0; 4096];
        let count = file.read_cached(4096, &mut read).unwrap();
        // A file system without such reads says 0 and must have been remembered.
        assert!(count == 4096 || file.nowait_refused.load(Ordering::Relaxed), "{count}");
        assert!(read[..count].iter().all(|byte| *byte == 9));
    }

    #[test]
    fn short_reads_come_from_the_mapping_and_long_ones_do_not() {
        let file = file_of(&[9; 256 << 10]);
        let Some(mapping) = file.mapping() else {
            return lunette_skip::record_lacking("files of this file system are not mapped");
        };
        let read = |length| file.read_cached(4096, &mut vec![0; length]).unwrap();
        assert_eq!((read(128 << 10), mapping.was_read()), (128 << 10, false));
        // Whatever is expected, nothing of it is read.
        for offset in [0, 4096, 256 << 10, u64::MAX] {
            [0, 1, 4096, u64::MAX].into_iter().for_each(|length| file.expect(offset, length));
        }
        assert!(!mapping.was_read());
        assert_eq!((read(4096), mapping.was_read()), (4096, true));
    }

    #[test]
    fn calls_that_write_end_where_blocks_do() {
        let mut file = file_of(&[9; 4096]);
        file.write_bytes_max = Some(EXT4_WRITE_BYTES_MAX);
        let max = EXT4_WRITE_BYTES_MAX as u64;
        rustix::fs::ftruncate(file.as_fd(), 4 * max).unwrap();
        let bytes = [0, 512, max - 1, max, 5 * max + 4096].map(|offset| file.write_bytes(offset) as u64);
        assert_eq!(bytes, [max, max - 512, 1, max, max - 4096]);
        let data: Vec<u8> = (0..3 * max as u32 + 77)
            .map(|index| index.wrapping_mul(2_654_435_761).to_le_bytes()[3])
            .collect();
        file.write_at(1000, &data).unwrap();
        let mut read = vec![0; data.len()];
        file.read_at(1000, &mut read).unwrap();
        assert!(read == data);
    }

    /// As before Linux 6.5, and in containers whose filter does not know the call.
    #[test]
    fn where_cachestat_is_missing_the_mapping_says_what_is_cached() {
        let file = file_of(&[9; 256 << 10]);
        rustix::fs::ftruncate(file.as_fd(), 512 << 10).unwrap();
        if file.mapping().is_none() {
            return lunette_skip::record_lacking("files of this file system are not mapped");
        }
        std::thread::scope(|scope| {
            let look = || {
                if !residency::forbid() {
                    return lunette_skip::record_lacking("this system lets nobody filter system calls");
                }
                assert_eq!(residency::is_cached(file.as_fd(), 0, 4096), None);
                assert!(file.cached_file(1000, 200 << 10).is_some());
                assert!(file.cached_file(1000, 300 << 10).is_none(), "part of it is a hole");
            };
            scope.spawn(look).join().unwrap();
        });
    }

    #[test]
    fn what_was_cut_is_not_sent_whatever_was_counted() {
        let file = file_of(&[9; 512 << 10]);
        if residency::is_refused() || file.mapping().is_none() {
            return lunette_skip::record_lacking(
                "this system does not tell what its page cache has, or maps no such files",
            );
        }
        let has = |offset| file.cached_file(offset, 128 << 10).is_some();
        assert!(has(0) && has(0) && has(384 << 10));
        rustix::fs::ftruncate(file.as_fd(), 448 << 10).unwrap();
        std::thread::sleep(std::time::Duration::from_nanos(END_BELIEVED_NS));
        assert!(has(0) && !has(384 << 10), "it was cut");
    }

    #[test]
    fn what_was_cut_within_a_page_is_an_error_not_zeroes() {
        let file = file_of(&[9; 64 << 10]);
        let (end, wait) = (8192 + 512, std::time::Duration::from_nanos(END_BELIEVED_NS));
        let read = |offset, length| file.read_cached(offset, &mut vec![0; length]).unwrap();
        assert_eq!(read(0, 16 << 10), 16 << 10);
        rustix::fs::ftruncate(file.as_fd(), end).unwrap();
        std::thread::sleep(wait);
        for (offset, length) in [(8192, 4096), (0, 16 << 10), (4096, 8192), (8192, 1024), (8192 + 100, 500)] {
            assert_eq!(read(offset, length) as u64, end - offset, "{length} at {offset}");
            let error = file.read_at(offset, &mut vec![0; length]).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
        }
        assert_eq!((read(8192, 512), read(4096, 4096)), (512, 4096), "the rest is still read");
    }

    #[test]
    fn what_was_mapped_and_then_cut_is_an_error_not_zeroes() {
        let file = file_of(&[9; 256 << 10]);
        let mut read = [0; 4096];
        assert!(file.read_cached(128 << 10, &mut read).is_ok());
        rustix::fs::ftruncate(file.as_fd(), 4096).unwrap();
        assert_eq!(file.read_cached(128 << 10, &mut read).unwrap(), 0);
        assert_eq!(file.read_at(128 << 10, &mut read).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
        file.read_at(0, &mut read).unwrap();
        assert_eq!(read, [9; 4096], "the rest is still read");
    }
}
