//! Reading and writing past the page cache: O_DIRECT, its alignment, and what is done for requests without it.
//!
//! A request that meets the device's alignment goes to the kernel as it is. Any other goes through a bounce buffer: a
//! read reads the blocks around it, a write reads the blocks at its ends, changes them and writes all back with the
//! volume's [`Gate`] to itself. A second descriptor through the page cache is not used for them: a dirty page holds
//! neighbours' bytes as they were when it was read, and its write-back would undo a direct write beside it.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

use rustix::fs::{AtFlags, FileType, OFlags, StatxFlags};
use rustix::io::{Errno, retry_on_intr};

use super::atomic;
use super::gate::{Gate, Shared};
use crate::buffer::Scratch;
use crate::error::OpenError;

/// A bounce buffer is at most this large. The pool's limit does not count it: there is one for each thread that works
/// on an unaligned request, so its own bound is the number of threads.
const BOUNCE_BYTES: usize = 256 << 10;

/// The strictest alignment that is tried where the kernel does not tell it, and the strictest memory alignment that
/// buffers have.
const ALIGNMENT_MAX_BYTES: u32 = 4096;

/// What a device wants of requests that go past the page cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Alignment {
    /// Offsets and lengths are multiples of this: a power of two.
    pub(crate) offset_bytes: u32,
    /// Addresses are multiples of this: a power of two, at most the alignment of a [`crate::Buffer`].
    pub(crate) memory_bytes: u32,
}

impl Alignment {
    /// Whether the kernel takes a request as it is.
    fn fits(self, offset: u64, data: &[u8]) -> bool {
        self.covers_blocks(offset, data.len())
            && data.as_ptr().addr().is_multiple_of(self.memory_bytes as usize)
    }

    fn covers_blocks(self, offset: u64, len: usize) -> bool {
        offset.is_multiple_of(self.offset_bytes.into()) && len.is_multiple_of(self.offset_bytes as usize)
    }

    /// The front of a range, at most a bounce buffer long, and the blocks that it touches: start, length, the bytes
    /// of the first block that are before the range, the bytes of the range.
    fn piece(self, offset: u64, len: usize) -> Piece {
        let block = u64::from(self.offset_bytes);
        let start = offset - offset % block;
        // Less than a block, which fits an usize.
        let skip = (offset - start) as usize;
        let len = len.min(BOUNCE_BYTES.max(self.offset_bytes as usize) - skip);
        Piece { start, skip, len, blocks_len: (skip + len).next_multiple_of(self.offset_bytes as usize) }
    }
}

struct Piece {
    start: u64,
    skip: usize,
    len: usize,
    blocks_len: usize,
}

/// How to get past the page cache on one file descriptor that has O_DIRECT.
#[derive(Debug)]
pub(crate) struct Direct {
    alignment: Alignment,
    gate: Arc<Gate>,
}

impl Direct {
    pub(crate) fn gate(&self) -> &Arc<Gate> {
        &self.gate
    }

    /// The part of a size that whole blocks of the device make up.
    pub(crate) fn whole_blocks(&self, size_bytes: u64) -> u64 {
        size_bytes - size_bytes % u64::from(self.alignment.offset_bytes)
    }

    /// Fills `buffer`, or fails.
    pub(crate) fn read_at(&self, fd: BorrowedFd<'_>, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        if self.alignment.fits(offset, buffer) {
            return self.read_blocks(fd, offset, buffer);
        }
        let mut bounce = self.bounce_for(buffer.len())?;
        let mut done = 0;
        while done < buffer.len() {
            let piece = self.alignment.piece(offset + done as u64, buffer.len() - done);
            let blocks = &mut bounce[..piece.blocks_len];
            self.read_blocks(fd, piece.start, blocks)?;
            buffer[done..done + piece.len].copy_from_slice(&blocks[piece.skip..piece.skip + piece.len]);
            done += piece.len;
        }
        Ok(())
    }

    /// Writes all of `data`, waiting for its turn at the gate.
    pub(crate) fn write_at(&self, fd: BorrowedFd<'_>, offset: u64, data: &[u8]) -> io::Result<()> {
        if self.alignment.fits(offset, data) {
            let _shared = self.gate.share();
            return self.write_blocks(fd, offset, data);
        }
        if self.alignment.covers_blocks(offset, data.len()) {
            let _shared = self.gate.share();
            return self.write_bounced(fd, offset, data);
        }
        let _alone = self.gate.alone();
        self.write_bounced(fd, offset, data)
    }

    /// Writes all of `data`, whole blocks of the device, or nothing of it.
    pub(crate) fn write_atomic_at(&self, fd: BorrowedFd<'_>, offset: u64, data: &[u8]) -> io::Result<()> {
        if !self.alignment.covers_blocks(offset, data.len()) {
            return Err(io::ErrorKind::Unsupported.into());
        }
        let _shared = self.gate.share();
        if self.alignment.fits(offset, data) {
            return atomic::write(fd, offset, data);
        }
        let mut aligned = Scratch::new(data.len())?;
        aligned.copy_from_slice(data);
        atomic::write(fd, offset, &aligned)
    }

    /// The caller has the gate, alone if blocks at the ends are not written whole.
    fn write_bounced(&self, fd: BorrowedFd<'_>, offset: u64, data: &[u8]) -> io::Result<()> {
        let block = self.alignment.offset_bytes as usize;
        let mut bounce = self.bounce_for(data.len())?;
        let mut done = 0;
        while done < data.len() {
            let piece = self.alignment.piece(offset + done as u64, data.len() - done);
            let blocks = &mut bounce[..piece.blocks_len];
            let end = piece.skip + piece.len;
            let last = piece.blocks_len - block;
            if piece.skip > 0 {
                self.read_blocks(fd, piece.start, &mut blocks[..block])?;
            }
            if end < piece.blocks_len && (last > 0 || piece.skip == 0) {
                self.read_blocks(fd, piece.start + last as u64, &mut blocks[last..])?;
            }
            blocks[piece.skip..end].copy_from_slice(&data[done..done + piece.len]);
            self.write_blocks(fd, piece.start, blocks)?;
            done += piece.len;
        }
        Ok(())
    }

    /// A block more than the data, because it may begin and end within blocks.
    fn bounce_for(&self, len: usize) -> io::Result<Scratch> {
        let block = self.alignment.offset_bytes as usize;
        Scratch::new(len.saturating_add(2 * block).min(BOUNCE_BYTES.max(block)))
    }

    /// The kernel may stop early, also within a block, where a file ends: what is left is asked for again from the
    /// last whole block on.
    fn read_blocks(&self, fd: BorrowedFd<'_>, offset: u64, blocks: &mut [u8]) -> io::Result<()> {
        let mut done = 0;
        while done < blocks.len() {
            let count = retry_on_intr(|| rustix::io::pread(fd, &mut blocks[done..], offset + done as u64))?;
            let whole = count - count % self.alignment.offset_bytes as usize;
            if whole == 0 {
                return Err(super::kernel::became_shorter());
            }
            done += whole;
        }
        Ok(())
    }

    fn write_blocks(&self, fd: BorrowedFd<'_>, offset: u64, blocks: &[u8]) -> io::Result<()> {
        let mut done = 0;
        while done < blocks.len() {
            let count = retry_on_intr(|| rustix::io::pwrite(fd, &blocks[done..], offset + done as u64))?;
            let whole = count - count % self.alignment.offset_bytes as usize;
            if whole == 0 {
                return Err(Errno::IO.into());
            }
            done += whole;
        }
        Ok(())
    }
}

/// A file descriptor on which an engine may read and write by itself, past its store's calls.
#[derive(Debug, Clone, Copy)]
pub struct RawFile<'a> {
    fd: BorrowedFd<'a>,
    direct: &'a Direct,
}

impl<'a> RawFile<'a> {
    pub(crate) fn new(fd: BorrowedFd<'a>, direct: &'a Direct) -> Self {
        Self { fd, direct }
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'a> {
        self.fd
    }

    /// Whether the kernel takes this request as it is.
    pub(crate) fn takes(&self, offset: u64, data: &[u8]) -> bool {
        self.direct.alignment.fits(offset, data)
    }

    /// The right to write whole blocks, to be kept until the write has ended; `None` while it would have to wait.
    pub(crate) fn try_share(&self) -> Option<Shared> {
        self.direct.gate.try_share()
    }
}

/// Takes an open image or device past the page cache.
///
/// # Errors
/// [`OpenError::NoDirect`] where its file system cannot do that, or not for an image of this size.
pub(crate) fn enter(fd: &OwnedFd, path: &Path, size_bytes: u64) -> Result<Direct, OpenError> {
    let refused = |why: String| OpenError::NoDirect { path: path.to_owned(), why };
    if lives_in_memory(fd) {
        return Err(refused("its file system keeps it in memory".to_owned()));
    }
    let stated = alignment_of(fd);
    if stated == Some(None) {
        return Err(refused("its file system reads and writes it through the page cache only".to_owned()));
    }
    let flags = rustix::fs::fcntl_getfl(fd).map_err(|errno| OpenError::io(path, "read its flags", errno))?;
    rustix::fs::fcntl_setfl(fd, flags | OFlags::DIRECT)
        .map_err(|errno| refused(format!("its file system has no O_DIRECT ({errno})")))?;
    let found = match stated.flatten() {
        Some(alignment) => Ok(alignment),
        None => probe(fd).ok_or_else(|| "no alignment was found that O_DIRECT works with".to_owned()),
    };
    let checked = found.and_then(|alignment| {
        if alignment.memory_bytes > ALIGNMENT_MAX_BYTES {
            Err(format!("it wants memory aligned to {} bytes", alignment.memory_bytes))
        } else if !size_bytes.is_multiple_of(alignment.offset_bytes.into()) {
            Err(format!("its size is not a multiple of {} bytes", alignment.offset_bytes))
        } else {
            Ok(alignment)
        }
    });
    match checked {
        Ok(alignment) => Ok(Direct { alignment, gate: Arc::default() }),
        Err(why) => {
            // The caller may go on through the page cache.
            rustix::fs::fcntl_setfl(fd, flags)
                .map_err(|errno| OpenError::io(path, "give up O_DIRECT", errno))?;
            Err(refused(why))
        }
    }
}

/// tmpfs accepts O_DIRECT and then copies as ever.
fn lives_in_memory(fd: &OwnedFd) -> bool {
    const TMPFS_MAGIC: u32 = 0x0102_1994;
    const RAMFS_MAGIC: u32 = 0x8584_58f6;
    let is_device = rustix::fs::fstat(fd)
        .is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::BlockDevice);
    // Device nodes live on a file system in memory; what they lead to does not.
    !is_device
        && rustix::fs::fstatfs(fd)
            .is_ok_and(|stat| [TMPFS_MAGIC, RAMFS_MAGIC].contains(&(stat.f_type as u32)))
}

/// What the kernel says: `None` if it does not, `Some(None)` if the file cannot go past the page cache.
fn alignment_of(fd: &OwnedFd) -> Option<Option<Alignment>> {
    if let Ok(sector_bytes) = rustix::fs::ioctl_blksszget(fd) {
        // Linux 6.0 and later want less of memory, but buffers have it anyway.
        return Some(Some(Alignment { offset_bytes: sector_bytes, memory_bytes: sector_bytes }));
    }
    let stat = rustix::fs::statx(fd, "", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN).ok()?;
    if stat.stx_mask & StatxFlags::DIOALIGN.bits() == 0 {
        return None;
    }
    let (offset_bytes, memory_bytes) = (stat.stx_dio_offset_align, stat.stx_dio_mem_align);
    let usable = offset_bytes.is_power_of_two() && memory_bytes.is_power_of_two();
    Some(usable.then_some(Alignment { offset_bytes, memory_bytes }))
}

/// The least alignment with which a read at the start works: for kernels before 6.1, and file systems that do not tell.
fn probe(fd: &OwnedFd) -> Option<Alignment> {
    let mut scratch = Scratch::new(ALIGNMENT_MAX_BYTES as usize).ok()?;
    let lengths = std::iter::successors(Some(512), |bytes| Some(bytes * 2));
    lengths
        .take_while(|bytes| *bytes <= ALIGNMENT_MAX_BYTES)
        .find(|bytes| {
            // From the second block on where there is one: an offset of 0 is a multiple of everything.
            let at = u64::from(*bytes);
            retry_on_intr(|| rustix::io::pread(fd, &mut scratch[..*bytes as usize], at)).is_ok()
        })
        .map(|bytes| Alignment { offset_bytes: bytes, memory_bytes: bytes })
}
