//! The block device store: a disk, partition, logical volume or loop device, claimed exclusively.

use std::io;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{FileType, Mode, OFlags, SeekFrom};
use rustix::io::Errno;

use super::direct::{self, RawFile};
use super::kernel::{KernelFile, became_shorter};
use super::sysfs::DeviceDirectory;
use super::{Allocation, AtomicWrites, Extent, Features, Opened, Store, check_size};
use crate::engine::choice::{self, Kind};
use crate::error::{OpenError, StoreFailure};
use crate::identity::{self, VolumeIdentity};
use crate::spec::VolumeSpec;

/// A block device.
#[derive(Debug)]
pub(crate) struct DeviceStore {
    file: KernelFile,
    path: PathBuf,
    size_bytes: u64,
    features: Features,
    unmap_refused: AtomicBool,
}

impl DeviceStore {
    /// Makes the range read as zeroes and gives it back if the device keeps what its limits promised.
    ///
    /// The kernel drops what the page cache has of the range before it asks the device. When the device then says
    /// `EOPNOTSUPP`, the range holds neither the new data nor zeroes, so it has to be zeroed all the same.
    fn zero_and_unmap(&self, offset: u64, length: u64) -> io::Result<()> {
        match self.file.punch_hole(offset, length) {
            Err(error) if not_supported(&error) => {
                tracing::warn!(device = %self.path.display(), "the device cannot unmap after all");
                self.unmap_refused.store(true, Ordering::Relaxed);
                self.file.zero_range(offset, length)
            }
            result => result,
        }
    }

    /// Bytes that it has now; none when it has gone.
    fn end_bytes(&self) -> io::Result<u64> {
        // The end of a device is looked up in memory; nothing else uses the descriptor's position.
        Ok(rustix::fs::seek(self.file.as_fd(), SeekFrom::End(0))?)
    }

    /// Why something failed in this range. Of what is written behind the end of a device the kernel says that there is no space, as it
    /// does of a thin pool that is full, or that the range is not valid: which of them it is, the device's present size tells.
    fn explained(&self, range: Range<u64>, error: io::Error) -> io::Error {
        let may_be_end = error.kind() == io::ErrorKind::UnexpectedEof
            || matches!(Errno::from_io_error(&error), Some(Errno::NOSPC | Errno::INVAL));
        if !may_be_end {
            return error;
        }
        match self.end_bytes() {
            Ok(0) => Errno::NODEV.into(),
            Ok(end) if end < range.end => {
                StoreFailure::At { offset: range.start.max(end), source: became_shorter() }.into()
            }
            _ => error,
        }
    }

    fn change(&self, range: Range<u64>, change: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
        change().map_err(|error| self.explained(range, error))
    }

    fn can_unmap(&self) -> bool {
        self.features.unmap && !self.unmap_refused.load(Ordering::Relaxed)
    }
}

/// Claims a device and learns its size, sectors, limits and identity.
pub(crate) fn open(
    path: &Path,
    spec: &VolumeSpec,
    configured: Option<VolumeIdentity>,
) -> Result<Opened, OpenError> {
    if spec.protection.is_some() {
        return Err(OpenError::CannotProtect { what: format!("block device {}", path.display()) });
    }
    let (access, doing) = if spec.read_only {
        (OFlags::RDONLY, "open it")
    } else {
        (OFlags::RDWR, "open it for writing (ro serves it read-only)")
    };
    let file_type = rustix::fs::stat(path).map(|stat| FileType::from_raw_mode(stat.st_mode));
    match file_type {
        Ok(FileType::BlockDevice) => {}
        Ok(_) => {
            return Err(OpenError::NotServable { path: path.to_owned(), why: "is not a block device" });
        }
        Err(errno) => return Err(OpenError::io(path, "look at it", errno)),
    }
    // O_EXCL without O_CREAT claims the device: file systems, swap, LVM and RAID claim theirs the same way.
    let fd = match rustix::fs::open(path, access | OFlags::EXCL | OFlags::CLOEXEC, Mode::empty()) {
        Ok(fd) => fd,
        Err(Errno::BUSY) => {
            let why = "it is mounted, or LVM, RAID, swap or another program holds it";
            return Err(OpenError::InUse { path: path.to_owned(), why });
        }
        Err(errno) => return Err(OpenError::io(path, doing, errno)),
    };
    let failed = |doing| move |errno| OpenError::io(path, doing, errno);
    let size_bytes = rustix::fs::seek(&fd, SeekFrom::End(0)).map_err(failed("learn its size"))?;
    let stat = rustix::fs::fstat(&fd).map_err(failed("learn its number"))?;
    let logical_bytes = rustix::fs::ioctl_blksszget(&fd).map_err(failed("learn its sector size"))?;
    let physical_bytes = rustix::fs::ioctl_blkpbszget(&fd).map_err(failed("learn its sector size"))?;
    let what = format!("block device {}", path.display());
    check_size(&what, size_bytes, spec.block_length_bytes)?;
    if spec.block_length_bytes < logical_bytes {
        let why = format!("the sectors of {} have {logical_bytes} bytes", path.display());
        return Err(OpenError::BadBlockLength { block_length_bytes: spec.block_length_bytes, why });
    }
    let directory = DeviceDirectory::of(stat.st_rdev);
    let identity = configured.map_or_else(|| identity::for_device(&directory, path), Ok)?;
    let mut features = features(&directory.disk(), physical_bytes);
    let (engine, direct) =
        choice::choose(spec.engine, path, Kind::Device, size_bytes, || direct::enter(&fd, path, size_bytes))?;
    features.atomic_writes = direct.as_ref().and_then(|_| AtomicWrites::of(&fd));
    let store = DeviceStore {
        file: KernelFile::new(fd, direct),
        path: path.to_owned(),
        size_bytes,
        features,
        unmap_refused: AtomicBool::new(false),
    };
    Ok(Opened { store: Arc::new(store), identity, engine })
}

/// The logical sector length of a block device in bytes; `None` when `path` is something else or cannot be opened,
/// which [`crate::Volume::open`] will then explain.
pub fn logical_sector_bytes(path: &Path) -> Option<u32> {
    // Merely opening some other devices does something.
    if !super::file::is_block_device(path) {
        return None;
    }
    let fd =
        rustix::fs::open(path, OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC, Mode::empty()).ok()?;
    rustix::fs::ioctl_blksszget(&fd).ok()
}

/// Punching a hole in a device is a write of zeroes that may unmap, so it takes both limits to be non-zero.
fn features(disk: &DeviceDirectory, physical_bytes: u32) -> Features {
    let limit = |name: &str| disk.number(format!("queue/{name}")).unwrap_or(0);
    let granularity_bytes = u32::try_from(limit("discard_granularity")).unwrap_or(0);
    let physical_block_bytes =
        if physical_bytes.is_power_of_two() { physical_bytes.clamp(512, 1 << 20) } else { 512 };
    Features {
        unmap: limit("discard_max_bytes") != 0 && limit("write_zeroes_max_bytes") != 0,
        write_zeroes: true,
        extents: false,
        // A thin device below does not tell whether it has kept the space.
        reserves: false,
        unmap_granularity_bytes: if granularity_bytes.is_power_of_two() {
            granularity_bytes.max(physical_block_bytes)
        } else {
            physical_block_bytes
        },
        physical_block_bytes,
        atomic_writes: None,
        rotational: disk.rotational(),
    }
}

/// What the kernel says where a device, or one below a mapping, lacks what its limits promised.
fn not_supported(error: &io::Error) -> bool {
    matches!(Errno::from_io_error(error), Some(Errno::OPNOTSUPP | Errno::NOSYS))
}

impl Store for DeviceStore {
    fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    fn present_size_bytes(&self) -> io::Result<u64> {
        Ok(self.file.whole_blocks(self.end_bytes()?))
    }

    fn features(&self) -> Features {
        self.features
    }

    fn describe(&self) -> String {
        format!("block device {}", self.path.display())
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
        let range = offset..offset + buffer.len() as u64;
        self.file.read_at(offset, buffer).map_err(|error| self.explained(range, error))
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
        self.change(offset..offset + data.len() as u64, || self.file.write_at(offset, data))
    }

    fn write_atomic_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.change(offset..offset + data.len() as u64, || self.file.write_atomic_at(offset, data))
    }

    fn flush(&self) -> io::Result<()> {
        self.file.flush()
    }

    fn zero(&self, offset: u64, length: u64, unmap: bool) -> io::Result<()> {
        self.change(offset..offset + length, || {
            if unmap && self.can_unmap() {
                self.zero_and_unmap(offset, length)
            } else {
                self.file.zero_range(offset, length)
            }
        })
    }

    fn unmap(&self, offset: u64, length: u64) -> io::Result<()> {
        if !self.can_unmap() {
            return Err(io::ErrorKind::Unsupported.into());
        }
        self.change(offset..offset + length, || self.zero_and_unmap(offset, length))
    }

    /// A device has its own space, and no way to be asked for it.
    fn reserve(&self, _offset: u64, _length: u64) -> io::Result<()> {
        Ok(())
    }

    fn prefetch(&self, offset: u64, length: u64) -> io::Result<()> {
        self.file.prefetch(offset, length)
    }

    fn extents(&self, offset: u64, length: u64) -> io::Result<Vec<Extent>> {
        Ok(vec![Extent { offset, length, allocation: Allocation::Data }])
    }
}
