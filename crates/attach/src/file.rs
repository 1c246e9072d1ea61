//! A disk as a file, by FUSE: a directory with that one file in it, which mkfs, loop devices and whatever else opens files take.
//!
//! The kernel keeps none of its pages (`FOPEN_DIRECT_IO`), so that nothing is there twice or old. The file has the disk's size, like a
//! block device, and becomes longer only where the disk does.

use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use fuser::{
    BsdFileFlags, Config, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo,
    KernelConfig, LockOwner, MountOption, Notifier, OpenAccMode, OpenFlags, ReplyAttr, ReplyData,
    ReplyDirectory, ReplyEmpty, ReplyEntry, ReplyLseek, ReplyOpen, ReplyWrite, Request, Session,
    SessionUnmounter, TimeOrNow, WriteFlags,
};
use rustix::fs::{FallocateFlags, OFlags};
use rustix::mount::{UnmountFlags, unmount};

use crate::{Disk, DiskError, Extent};

/// The name of the file.
pub const NAME: &str = "disk";

const FILE: INodeNo = INodeNo(2);
/// How long the kernel may believe what it was told: it is told when something changes ([`Refresher`]).
const BELIEVED: Duration = Duration::from_secs(3600);
/// The longest write that the kernel sends at once, in bytes.
const WRITE_BYTES_MAX: u32 = 1 << 20;
/// Of `lseek`, as Linux numbers them.
const SEEK_DATA: i32 = 3;
const SEEK_HOLE: i32 = 4;
/// How often a unit is asked for one `lseek`, while the kernel lets nobody else at the file: within a second at the end of a line of
/// 50 ms. A usual unit tells of some gigabytes at once.
const ASKED_MAX: usize = 16;

/// A disk that is mounted.
#[derive(Debug)]
pub struct Mount {
    session: Session<Directory>,
    directory: PathBuf,
}

/// Unmounts it from another thread.
#[derive(Debug)]
pub struct Unmounter {
    session: SessionUnmounter,
    directory: PathBuf,
}

/// Has the kernel ask for the file's size again, from another thread.
#[derive(Debug)]
pub struct Refresher(Notifier);

impl Refresher {
    /// The disk has another size.
    ///
    /// # Errors
    /// The kernel does not take it; it believes the old size for an hour then.
    pub fn size_changed(&self) -> io::Result<()> {
        // An offset below 0: nothing but the attributes.
        match self.0.inval_inode(FILE, -1, 0) {
            // Nobody has looked at it yet.
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            result => result,
        }
    }
}

impl Mount {
    /// Mounts the disk at a directory; `depth` requests are carried out at the same time.
    ///
    /// # Errors
    /// It cannot be mounted there. Who is not root needs `fusermount3`.
    pub fn new(disk: Arc<Disk>, directory: &Path, depth: usize) -> io::Result<Mount> {
        let mut config = Config::default();
        config.mount_options =
            vec![MountOption::FSName("lunette".into()), MountOption::NoSuid, MountOption::NoDev];
        if disk.is_read_only() {
            config.mount_options.push(MountOption::RO);
        }
        config.n_threads = Some(depth.max(1));
        let depth = u16::try_from(depth).unwrap_or(u16::MAX);
        let directory = directory.canonicalize()?;
        Ok(Mount { session: Session::new(Directory { disk, depth }, &directory, &config)?, directory })
    }

    /// What ends it.
    pub fn unmounter(&mut self) -> Unmounter {
        Unmounter { session: self.session.unmount_callable(), directory: self.directory.clone() }
    }

    /// What tells the kernel of another size.
    #[must_use]
    pub fn refresher(&self) -> Refresher {
        Refresher(self.session.notifier())
    }

    /// Serves until it is unmounted by the unmounter or anybody else, and nobody has the file open any more.
    ///
    /// # Errors
    /// The kernel breaks it off.
    pub fn run(self) -> io::Result<()> {
        self.session.run()
    }
}

impl Unmounter {
    /// Takes it out of the tree; who has the file open keeps it until he closes it.
    ///
    /// # Errors
    /// The system refuses.
    pub fn unmount(&mut self) -> io::Result<()> {
        match self.session.unmount() {
            // The library tries once, and not so that who uses it keeps it; a file that was closed is in use for another moment.
            Err(error) if error.kind() == io::ErrorKind::ResourceBusy => {
                Ok(unmount(&self.directory, UnmountFlags::DETACH)?)
            }
            result => result,
        }
    }
}

/// The file system: a directory and the file.
#[derive(Debug)]
struct Directory {
    disk: Arc<Disk>,
    depth: u16,
}

/// The number of an error for the kernel.
fn errno(error: &DiskError) -> Errno {
    match error {
        DiskError::NotPermitted(_) => Errno::EPERM,
        DiskError::NoSpace(_) | DiskError::Beyond => Errno::ENOSPC,
        DiskError::Unfit(..) | DiskError::Unanswered(_) | DiskError::GhostLeft(_) | DiskError::Io(_) => {
            Errno::EIO
        }
    }
}

fn answer(result: Result<(), DiskError>, reply: ReplyEmpty) {
    match result {
        Ok(()) => reply.ok(),
        Err(error) => reply.error(errno(&error)),
    }
}

impl Directory {
    fn attributes(&self, inode: INodeNo) -> Option<FileAttr> {
        let writable = if self.disk.is_read_only() { 0 } else { 0o200 };
        let (kind, perm, nlink, size) = match inode {
            INodeNo::ROOT => (FileType::Directory, 0o500, 2, 0),
            FILE => (FileType::RegularFile, 0o400 | writable, 1, self.disk.size_bytes()),
            _ => return None,
        };
        Some(FileAttr {
            ino: inode,
            size,
            blocks: size.div_ceil(512),
            atime: UNIX_EPOCH,
            mtime: UNIX_EPOCH,
            ctime: UNIX_EPOCH,
            crtime: UNIX_EPOCH,
            kind,
            perm,
            nlink,
            uid: rustix::process::getuid().as_raw(),
            gid: rustix::process::getgid().as_raw(),
            rdev: 0,
            blksize: self.disk.block_bytes().max(4096),
            flags: 0,
        })
    }

    /// What `fallocate` does with a range of the disk.
    fn allocate(&self, offset: u64, length: u64, mode: i32) -> Result<(), Errno> {
        let mode = u32::try_from(mode).map(FallocateFlags::from_bits_retain).map_err(|_| Errno::EINVAL)?;
        let kind = mode.difference(FallocateFlags::KEEP_SIZE);
        let may_unmap = if kind == FallocateFlags::PUNCH_HOLE {
            true
        } else if kind == FallocateFlags::ZERO_RANGE {
            false
        } else {
            // To reserve space is nothing that can be asked of a disk.
            return Err(Errno::EOPNOTSUPP);
        };
        self.disk.zero(offset, length, may_unmap, false).map_err(|error| errno(&error))
    }

    fn seek(&self, offset: i64, whence: i32) -> Result<u64, Errno> {
        let size = self.disk.size_bytes();
        let extents = |at| self.disk.extents(at, size - at).map_err(|error| errno(&error));
        seek(size, offset, whence, extents)
    }
}

/// Where data begins (SEEK_DATA) or a hole does (SEEK_HOLE; one is behind the end in any case) from there on. `extents` tells what is from
/// a place on, as far as one question to the unit tells it. A hole that is found only by asking again and again counts as data, which
/// POSIX leaves to the file system.
fn seek(
    size: u64,
    offset: i64,
    whence: i32,
    mut extents: impl FnMut(u64) -> Result<Vec<Extent>, Errno>,
) -> Result<u64, Errno> {
    let wants_data = match whence {
        SEEK_DATA => true,
        SEEK_HOLE => false,
        _ => return Err(Errno::EINVAL),
    };
    let mut at = u64::try_from(offset).ok().filter(|at| *at < size).ok_or(Errno::ENXIO)?;
    for _ in 0..ASKED_MAX {
        let extents = extents(at)?;
        let is_found = |extent: &&Extent| extent.space.is_zero() != wants_data;
        if let Some(found) = extents.iter().find(is_found) {
            return Ok(found.bytes.start);
        }
        at = extents.last().map_or(size, |extent| extent.bytes.end);
        if at >= size {
            return if wants_data { Err(Errno::ENXIO) } else { Ok(size) };
        }
    }
    Ok(if wants_data { at } else { size })
}

impl Filesystem for Directory {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> io::Result<()> {
        // What the kernel cannot have it says itself.
        let _ = config.set_max_write(WRITE_BYTES_MAX);
        let _ = config.set_max_background(self.depth);
        Ok(())
    }

    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        match self.attributes(FILE).filter(|_| parent == INodeNo::ROOT && name == NAME) {
            Some(attributes) => reply.entry(&BELIEVED, &attributes, Generation(0)),
            None => reply.error(Errno::ENOENT),
        }
    }

    fn getattr(&self, _: &Request, inode: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        match self.attributes(inode) {
            Some(attributes) => reply.attr(&BELIEVED, &attributes),
            None => reply.error(Errno::ENOENT),
        }
    }

    /// Times are not kept, which nobody minds; everything else stays as it is.
    fn setattr(
        &self,
        _: &Request,
        inode: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        _: Option<TimeOrNow>,
        _: Option<TimeOrNow>,
        _: Option<std::time::SystemTime>,
        _: Option<FileHandle>,
        _: Option<std::time::SystemTime>,
        _: Option<std::time::SystemTime>,
        _: Option<std::time::SystemTime>,
        _: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let Some(attributes) = self.attributes(inode) else { return reply.error(Errno::ENOENT) };
        if mode.is_some()
            || uid.is_some()
            || gid.is_some()
            || size.is_some_and(|size| size != attributes.size)
        {
            return reply.error(Errno::EPERM);
        }
        reply.attr(&BELIEVED, &attributes);
    }

    fn readdir(&self, _: &Request, inode: INodeNo, _: FileHandle, offset: u64, mut reply: ReplyDirectory) {
        if inode != INodeNo::ROOT {
            return reply.error(Errno::ENOTDIR);
        }
        let entries = [
            (INodeNo::ROOT, FileType::Directory, "."),
            (INodeNo::ROOT, FileType::Directory, ".."),
            (FILE, FileType::RegularFile, NAME),
        ];
        for (place, (inode, kind, name)) in
            (1..).zip(entries).skip(usize::try_from(offset).unwrap_or(usize::MAX))
        {
            if reply.add(inode, place, kind, name) {
                break;
            }
        }
        reply.ok();
    }

    fn open(&self, _: &Request, inode: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        if inode != FILE {
            return reply.error(Errno::EISDIR);
        }
        if self.disk.is_read_only() && flags.acc_mode() != OpenAccMode::O_RDONLY {
            return reply.error(Errno::EROFS);
        }
        reply.opened(FileHandle(0), FopenFlags::FOPEN_DIRECT_IO | FopenFlags::FOPEN_PARALLEL_DIRECT_WRITES);
    }

    fn read(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let left = self.disk.size_bytes().saturating_sub(offset);
        // No more than 32 bits.
        let length = left.min(size.into()) as usize;
        if length == 0 {
            return reply.data(&[]);
        }
        match self.disk.read(offset, length) {
            Ok(data) => reply.data(&data),
            Err(error) => reply.error(errno(&error)),
        }
    }

    fn write(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        offset: u64,
        data: &[u8],
        _: WriteFlags,
        flags: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        // O_SYNC has this flag, too.
        let fua = flags.0 & OFlags::DSYNC.bits().cast_signed() != 0;
        match self.disk.write(offset, data.to_vec(), fua) {
            // One request has no more than 16 MiB.
            Ok(()) => reply.written(data.len() as u32),
            Err(error) => reply.error(errno(&error)),
        }
    }

    /// Somebody closes the file, which promises nothing.
    fn flush(&self, _: &Request, _: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        reply.ok();
    }

    fn fsync(&self, _: &Request, _: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        answer(if self.disk.is_read_only() { Ok(()) } else { self.disk.flush() }, reply);
    }

    fn fsyncdir(&self, _: &Request, _: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        reply.ok();
    }

    fn fallocate(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        match self.allocate(offset, length, mode) {
            Ok(()) => reply.ok(),
            Err(error) => reply.error(error),
        }
    }

    fn lseek(&self, _: &Request, inode: INodeNo, _: FileHandle, offset: i64, whence: i32, reply: ReplyLseek) {
        if inode != FILE {
            return reply.error(Errno::EINVAL);
        }
        match self.seek(offset, whence) {
            // A disk has no more bytes than such a number can tell.
            Ok(place) => reply.offset(place.cast_signed()),
            Err(error) => reply.error(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Space;

    /// A unit that tells of one block at a time, all of them alike: what `lseek` answers, and how often it asks.
    fn seek_in(blocks: u64, space: Space, whence: i32) -> (Option<u64>, usize) {
        let mut asked = 0;
        let found = seek(blocks * 512, 0, whence, |at| {
            asked += 1;
            Ok(vec![Extent { bytes: at..at + 512, space }])
        });
        (found.ok(), asked)
    }

    #[test]
    fn a_unit_that_tells_little_at_a_time_is_not_asked_for_ever() {
        assert_eq!(
            seek_in(1000, Space::Empty, SEEK_DATA),
            (Some(16 * 512), 16),
            "what is not known counts as data"
        );
        assert_eq!(seek_in(1000, Space::Data, SEEK_HOLE), (Some(1000 * 512), 16));
        assert_eq!(seek_in(10, Space::Empty, SEEK_DATA), (None, 10));
        assert_eq!(seek_in(10, Space::Data, SEEK_HOLE), (Some(10 * 512), 10));
        assert_eq!(seek_in(10, Space::Data, SEEK_DATA), (Some(0), 1));
    }
}
