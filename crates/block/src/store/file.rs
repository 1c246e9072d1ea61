//! The file store: an image, sparse where its file system can be sparse, locked against being served twice.
//!
//! Not here: image formats. Every byte of the file is a byte of the disk.

use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{FallocateFlags, FlockOperation, Mode, OFlags, SeekFrom};
use rustix::io::{Errno, retry_on_intr};

use super::direct::{self, RawFile};
use super::kernel::KernelFile;
use super::sysfs::DeviceDirectory;
use super::{
    Allocation, Astray, AtomicWrites, Extent, Features, Opened, Space, Store, check_size, extent_map, name,
    protected, push_extent,
};
use crate::engine::choice::{self, Kind};
use crate::error::OpenError;
use crate::identity::{self, VolumeIdentity};
use crate::spec::{Provisioning, VolumeSpec};

/// An image file.
#[derive(Debug)]
pub(crate) struct FileStore {
    file: KernelFile,
    path: PathBuf,
    size_bytes: u64,
    features: Features,
    /// Its path led to it when it was opened, so that it can be told when it no longer does.
    is_found: bool,
}

/// Whether the path is (or links to) a block device.
pub fn is_block_device(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|metadata| metadata.file_type().is_block_device())
}

/// Opens or creates an image, takes its lock and finds its identity.
pub(crate) fn open(
    path: &Path,
    create_bytes: Option<u64>,
    spec: &VolumeSpec,
    configured: Option<VolumeIdentity>,
) -> Result<Opened, OpenError> {
    protected::check(spec, path)?;
    let Image { fd, is_new } = open_or_create(path, create_bytes, spec)?;
    // The place itself, not a link to it, is where a sidecar belongs and what the log should name.
    let path = fs::canonicalize(path).map_err(|source| OpenError::Io {
        path: path.to_owned(),
        doing: "find its full path",
        source,
    })?;
    let stat = rustix::fs::fstat(&fd).map_err(|errno| OpenError::io(&path, "learn its size", errno))?;
    let size_bytes = u64::try_from(stat.st_size).unwrap_or(0);
    if let Some(wanted_bytes) = create_bytes
        && wanted_bytes != size_bytes
    {
        return Err(OpenError::SizeDiffers { path, found_bytes: size_bytes, wanted_bytes });
    }
    let what = format!("file {}", path.display());
    if size_bytes == 0 {
        let why = "there is nothing to serve; remove it and give its size to have it created".to_owned();
        return Err(OpenError::BadSize { what, size_bytes, why });
    }
    check_size(&what, size_bytes, spec.block_length_bytes)?;
    let identity = configured.map_or_else(|| identity::for_file(fd.as_fd(), &path), Ok)?;
    let mut features = probe(&fd, stat.st_dev, size_bytes, spec.read_only);
    if spec.provisioning == Provisioning::Thick && !spec.read_only {
        (features.unmap, features.reserves) = (false, false);
        if let Err(error) = reserve_all(&fd, size_bytes) {
            if is_new {
                let _ = fs::remove_file(&path);
            }
            return Err(OpenError::io(&path, "allocate all of its space (provisioning=thick)", error));
        }
    }
    let enter = || direct::enter(&fd, &path, size_bytes);
    let chosen = choice::choose(spec.engine, &path, Kind::File, size_bytes, enter);
    if chosen.is_err() && is_new {
        // An image that nobody has used would only look as if it had been.
        let _ = fs::remove_file(&path);
    }
    if chosen.is_err() {
        // The lock would stay until a process that is just being started has closed its copy of the descriptor.
        let _ = rustix::fs::flock(&fd, FlockOperation::Unlock);
    }
    let (engine, direct) = chosen?;
    features.atomic_writes = direct.as_ref().and_then(|_| AtomicWrites::of(&fd));
    let is_found = name::leads_to(fd.as_fd(), &path);
    let file = KernelFile::new(fd, direct);
    let store = Arc::new(FileStore { file, path: path.clone(), size_bytes, features, is_found });
    let protected = protected::for_file(Arc::clone(&store) as Arc<dyn Store>, &path, is_new, spec);
    Ok(Opened { store: protected.inspect_err(|_| store.release())?, identity, engine })
}

/// Allocates what is not, without changing a byte, and makes that stable.
fn reserve_all(fd: &OwnedFd, size_bytes: u64) -> rustix::io::Result<()> {
    retry_on_intr(|| rustix::fs::fallocate(fd, FallocateFlags::KEEP_SIZE, 0, size_bytes))?;
    retry_on_intr(|| rustix::fs::fsync(fd))
}

/// An open image.
struct Image {
    fd: OwnedFd,
    /// It was created by this very call.
    is_new: bool,
}

fn open_or_create(path: &Path, create_bytes: Option<u64>, spec: &VolumeSpec) -> Result<Image, OpenError> {
    let metadata = match fs::metadata(path) {
        Ok(metadata) => metadata,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let size_bytes = create_bytes.ok_or_else(|| OpenError::Missing { path: path.to_owned() })?;
            return create(path, size_bytes, spec).map(|fd| Image { fd, is_new: true });
        }
        Err(source) => return Err(OpenError::Io { path: path.to_owned(), doing: "look at it", source }),
    };
    // Opening a FIFO would wait for its other end, so what is no file is never opened.
    if !metadata.file_type().is_file() {
        let why = if metadata.is_dir() { "is a directory" } else { "is neither a file nor a block device" };
        return Err(OpenError::NotServable { path: path.to_owned(), why });
    }
    let (access, doing) = if spec.read_only {
        (OFlags::RDONLY, "open it")
    } else {
        (OFlags::RDWR, "open it for writing (ro serves it read-only)")
    };
    let fd = rustix::fs::open(path, access | OFlags::CLOEXEC, Mode::empty())
        .map_err(|errno| OpenError::io(path, doing, errno))?;
    lock(&fd, path, spec.read_only)?;
    Ok(Image { fd, is_new: false })
}

/// Creates a sparse image and makes its existence stable, so that a crash cannot take a served disk away.
fn create(path: &Path, size_bytes: u64, spec: &VolumeSpec) -> Result<OwnedFd, OpenError> {
    if spec.read_only {
        let why = "does not exist, and a new image cannot be read-only";
        return Err(OpenError::NotServable { path: path.to_owned(), why });
    }
    check_size(&format!("file {}", path.display()), size_bytes, spec.block_length_bytes)?;
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    let fd = rustix::fs::open(path, flags, Mode::RUSR | Mode::WUSR)
        .map_err(|errno| OpenError::io(path, "create it", errno))?;
    let made = lock(&fd, path, false).and_then(|()| {
        rustix::fs::ftruncate(&fd, size_bytes)
            .and_then(|()| rustix::fs::fsync(&fd))
            .map_err(|errno| OpenError::io(path, "give it its size", errno))?;
        sync_directory_of(path).map_err(|errno| OpenError::io(path, "make its name stable", errno))
    });
    if let Err(error) = made {
        // An image of the wrong size left behind would only be in the way of the next attempt.
        let _ = fs::remove_file(path);
        return Err(error);
    }
    Ok(fd)
}

/// Makes the names in a file's directory stable. Some file systems have nothing to do there and say `EINVAL`. Where the directory may not
/// be read, all of the file system is made stable through the file.
///
/// # Errors
/// Neither the directory nor the file can be opened for reading, or it cannot be synced.
pub fn sync_directory_of(path: &Path) -> rustix::io::Result<()> {
    let directory = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let fd = match rustix::fs::open(directory, flags, Mode::empty()) {
        Err(Errno::ACCESS) => {
            let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
            let file = rustix::fs::open(path, flags, Mode::empty()).map_err(|_| Errno::ACCESS)?;
            return rustix::fs::syncfs(&file);
        }
        opened => opened?,
    };
    match retry_on_intr(|| rustix::fs::fsync(&fd)) {
        Err(Errno::INVAL) => Ok(()),
        result => result,
    }
}

fn lock(fd: &OwnedFd, path: &Path, shared: bool) -> Result<(), OpenError> {
    let operation =
        if shared { FlockOperation::NonBlockingLockShared } else { FlockOperation::NonBlockingLockExclusive };
    match rustix::fs::flock(fd, operation) {
        Ok(()) => Ok(()),
        Err(Errno::WOULDBLOCK) => {
            let why = "another volume, of this program or of another one, serves it";
            Err(OpenError::InUse { path: path.to_owned(), why })
        }
        Err(errno) => Err(OpenError::io(path, "lock it", errno)),
    }
}

/// Learns what the file system can do, without changing the image.
fn probe(fd: &OwnedFd, device: u64, size_bytes: u64, read_only: bool) -> Features {
    let block_bytes = rustix::fs::fstatvfs(fd)
        .ok()
        .and_then(|stat| u32::try_from(stat.f_frsize).ok())
        .filter(|bytes| bytes.is_power_of_two())
        .map_or(4096, |bytes| bytes.clamp(512, 1 << 20));
    let extents = rustix::fs::seek(fd, SeekFrom::Hole(0)).is_ok();
    // A hole past the end changes nothing, but is refused where holes cannot be made at all. Through a descriptor that is not for
    // writing none can be made: there a file counts as thin whose holes can be seen.
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    let probe_at = size_bytes.next_multiple_of(u64::from(block_bytes));
    let make_hole = || rustix::fs::fallocate(fd, punch, probe_at, u64::from(block_bytes));
    let unmap = if read_only { extents } else { retry_on_intr(make_hole).is_ok() };
    Features {
        unmap,
        write_zeroes: true,
        extents,
        reserves: unmap && !read_only && extent_map::is_told(fd.as_fd()),
        unmap_granularity_bytes: block_bytes,
        physical_block_bytes: block_bytes.min(4096),
        atomic_writes: None,
        rotational: DeviceDirectory::of(device).rotational(),
    }
}

impl FileStore {
    /// The next data at or after `at`, and where it ends; both at most `end`.
    fn next_data(&self, at: u64, end: u64) -> rustix::io::Result<(u64, u64)> {
        let start = match rustix::fs::seek(self.file.as_fd(), SeekFrom::Data(at)) {
            Ok(start) => start.min(end),
            Err(Errno::NXIO) => return Ok((end, end)),
            Err(errno) => return Err(errno),
        };
        if start == end {
            return Ok((end, end));
        }
        let stop = match rustix::fs::seek(self.file.as_fd(), SeekFrom::Hole(start)) {
            Ok(stop) => stop.min(end),
            Err(Errno::NXIO) => end,
            Err(errno) => return Err(errno),
        };
        // Data that is punched out between the two calls would stop the walk: "allocated" is the safe answer.
        Ok((start, if stop > start { stop } else { (start + 4096).min(end) }))
    }
}

impl Store for FileStore {
    fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    fn present_size_bytes(&self) -> io::Result<u64> {
        let stat = rustix::fs::fstat(self.file.as_fd())?;
        Ok(self.file.whole_blocks(u64::try_from(stat.st_size).unwrap_or(0)))
    }

    fn space(&self) -> io::Result<Option<Space>> {
        // Of a size in blocks of 512 bytes, whatever the file system's own are (stat(2)).
        const STAT_BLOCK_BYTES: u64 = 512;
        if !self.features.unmap {
            return Ok(None);
        }
        let stat = rustix::fs::fstat(self.file.as_fd())?;
        let system = rustix::fs::fstatvfs(self.file.as_fd())?;
        Ok(Some(Space {
            used_bytes: u64::try_from(stat.st_blocks).unwrap_or(0).saturating_mul(STAT_BLOCK_BYTES),
            available_bytes: system.f_bavail.saturating_mul(system.f_frsize),
        }))
    }

    fn astray(&self) -> Option<Astray> {
        if self.is_found { name::astray(self.file.as_fd(), &self.path) } else { None }
    }

    fn features(&self) -> Features {
        self.features
    }

    fn describe(&self) -> String {
        format!("file {}", self.path.display())
    }

    fn in_memory(&self) -> bool {
        false
    }

    fn buffers_writes(&self) -> bool {
        self.file.is_cached()
    }

    fn raw(&self) -> Option<RawFile<'_>> {
        self.file.raw()
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        self.file.read_at(offset, buffer)
    }

    fn read_cached(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        self.file.read_cached(offset, buffer)
    }

    fn cached_file(&self, offset: u64, length: u64) -> Option<Arc<OwnedFd>> {
        self.file.cached_file(offset, length)
    }

    fn expect(&self, offset: u64, length: u64) {
        self.file.expect(offset, length);
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.file.write_at(offset, data)
    }

    fn end_bytes(&self) -> io::Result<u64> {
        self.file.end_bytes()
    }

    fn check_end(&self, end: u64) -> io::Result<()> {
        self.file.check_end(end)
    }

    fn write_atomic_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.file.write_atomic_at(offset, data)
    }

    fn flush(&self) -> io::Result<()> {
        self.file.flush()
    }

    fn zero(&self, offset: u64, length: u64, unmap: bool) -> io::Result<()> {
        self.file.check_end(offset.saturating_add(length))?;
        if unmap && self.features.unmap {
            self.file.punch_hole(offset, length)
        } else {
            self.file.zero_range(offset, length)
        }
    }

    fn unmap(&self, offset: u64, length: u64) -> io::Result<()> {
        if !self.features.unmap {
            return Err(io::ErrorKind::Unsupported.into());
        }
        self.file.punch_hole(offset, length)
    }

    fn reserve(&self, offset: u64, length: u64) -> io::Result<()> {
        self.file.reserve(offset, length)
    }

    fn prefetch(&self, offset: u64, length: u64) -> io::Result<()> {
        self.file.prefetch(offset, length)
    }

    fn extents(&self, offset: u64, length: u64) -> io::Result<Vec<Extent>> {
        let mut end = offset.saturating_add(length);
        let mut extents = Vec::new();
        if !self.features.extents {
            push_extent(&mut extents, Extent { offset, length, allocation: Allocation::Data });
            return Ok(extents);
        }
        if self.features.reserves && length > 0 {
            match extent_map::look(self.file.as_fd(), offset..end)? {
                extent_map::Found::Extents(extents) => return Ok(extents),
                extent_map::Found::NothingReserved { until } => end = until,
            }
        }
        let mut at = offset;
        while at < end {
            let (start, stop) = self.next_data(at, end)?;
            let hole = Extent { offset: at, length: start - at, allocation: Allocation::Hole };
            let data = Extent { offset: start, length: stop - start, allocation: Allocation::Data };
            if !push_extent(&mut extents, hole) || !push_extent(&mut extents, data) {
                break;
            }
            at = stop;
        }
        Ok(extents)
    }

    fn release(&self) {
        // The lock also goes with the descriptor; an error could only say that there is no lock.
        let _ = rustix::fs::flock(self.file.as_fd(), FlockOperation::Unlock);
    }
}
