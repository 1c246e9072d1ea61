//! Failures of volumes, and the one place that sorts them.
//!
//! Not here: sense data or login statuses. The caller maps [`ErrorClass`] to its own protocol.

use std::io;
use std::path::PathBuf;

use rustix::io::Errno;

use crate::size;

/// What went wrong, as coarse as a caller's protocol can tell apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ErrorClass {
    /// The data at this place cannot be read or written (`EIO`, `ENODATA`, an image or a device that became shorter).
    Medium,
    /// The device, or the way to it, is broken (`ENODEV`, `ENXIO`, `EREMOTEIO`, `ENOLINK`, ...).
    Hardware,
    /// No room is left to allocate blocks (`ENOSPC`, `EDQUOT`, `EFBIG`).
    NoSpace,
    /// Short of memory or of another passing resource: the same command may succeed later.
    Busy,
    /// The volume, or what holds it, refuses writes.
    ReadOnly,
    /// The range does not lie within the volume, or within the buffer that was handed in.
    OutOfRange,
    /// A flush failed, this one or an earlier one, so nothing can be promised any more until the volume is reopened.
    Faulted,
    /// The volume was closed.
    Closed,
    /// The store cannot do this operation.
    Unsupported,
}

/// Why an operation failed.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The store failed.
    #[error("{source} (at byte {offset})")]
    Io {
        /// The class of `source`.
        kind: ErrorClass,
        /// Byte that could not be had where that is known, or else at which the operation began.
        offset: u64,
        /// What the kernel said.
        source: io::Error,
    },
    /// The flush that this operation needed failed. What was lost may lie anywhere, so there is no place to name, and
    /// the volume is faulted whatever the kernel said.
    #[error("a flush failed: {source}")]
    Flush {
        /// What the kernel said.
        source: io::Error,
    },
    /// A change was asked of a read-only volume.
    #[error("the volume is read-only")]
    ReadOnly,
    /// The range does not lie within the volume, or a write's range not within its buffer.
    #[error("the range does not lie within the volume")]
    OutOfRange,
    /// A flush failed earlier: writes and flushes are refused until the volume is reopened.
    #[error("an earlier flush failed; the volume takes no writes until it is reopened")]
    Faulted,
    /// The volume was closed.
    #[error("the volume is closed")]
    Closed,
    /// The store cannot do this operation.
    #[error("the store cannot do this operation")]
    Unsupported,
}

impl StoreError {
    /// Wraps what a store said about an operation that began at byte `offset`.
    pub(crate) fn from_io(offset: u64, error: io::Error) -> Self {
        match error.downcast() {
            Ok(StoreFailure::Flush(source)) => Self::Flush { source },
            Ok(StoreFailure::At { offset, source }) => Self::Io { kind: classify(&source), offset, source },
            Err(source) => Self::Io { kind: classify(&source), offset, source },
        }
    }

    /// The class that a caller maps to its protocol's error.
    pub fn class(&self) -> ErrorClass {
        match self {
            Self::Io { kind, .. } => *kind,
            Self::ReadOnly => ErrorClass::ReadOnly,
            Self::OutOfRange => ErrorClass::OutOfRange,
            Self::Flush { .. } | Self::Faulted => ErrorClass::Faulted,
            Self::Closed => ErrorClass::Closed,
            Self::Unsupported => ErrorClass::Unsupported,
        }
    }
}

/// What a store knows of a failure beyond the kernel's word. It travels in the [`io::Error`] that the store returns.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StoreFailure {
    /// A flush that the call needed failed, now or earlier.
    #[error("a flush failed: {0}")]
    Flush(io::Error),
    /// It is what is at this byte, which need not be where the call began.
    #[error("{source} (at byte {offset})")]
    At { offset: u64, source: io::Error },
}

impl From<StoreFailure> for io::Error {
    fn from(failure: StoreFailure) -> Self {
        io::Error::other(failure)
    }
}

/// Sorts what the kernel said. The block layer's own codes (`ENODATA` for a medium error, `EREMOTEIO` for a
/// target failure, `ENOLINK` for a lost transport, `EBADE` for a reservation) arrive here through a block device.
pub(crate) fn classify(error: &io::Error) -> ErrorClass {
    let Some(errno) = Errno::from_io_error(error) else {
        return match error.kind() {
            io::ErrorKind::UnexpectedEof => ErrorClass::Medium,
            io::ErrorKind::Unsupported => ErrorClass::Unsupported,
            _ => ErrorClass::Hardware,
        };
    };
    match errno {
        Errno::IO | Errno::NODATA | Errno::ILSEQ | Errno::BADMSG | Errno::UCLEAN => ErrorClass::Medium,
        Errno::NOSPC | Errno::DQUOT | Errno::FBIG => ErrorClass::NoSpace,
        Errno::NOMEM | Errno::NOBUFS | Errno::AGAIN | Errno::MFILE | Errno::NFILE => ErrorClass::Busy,
        Errno::ROFS | Errno::PERM | Errno::ACCESS => ErrorClass::ReadOnly,
        Errno::OPNOTSUPP | Errno::NOSYS => ErrorClass::Unsupported,
        _ => ErrorClass::Hardware,
    }
}

/// A second copy of an I/O error, for the other operations that the same flush failed.
pub(crate) fn copy_io_error(error: &io::Error) -> io::Error {
    match error.raw_os_error() {
        Some(errno) => io::Error::from_raw_os_error(errno),
        None => io::Error::new(error.kind(), error.to_string()),
    }
}

/// Why a volume could not be opened. Each message says what to do where something can be done.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The image does not exist and no size was given to create it with.
    #[error("{} does not exist; to create it, give its size, for example size=10G", path.display())]
    Missing {
        /// The image.
        path: PathBuf,
    },
    /// The image exists with another size than asked for. Nothing was changed.
    #[error(
        "{} is {} long, not {}; an existing image is never resized: leave the size out or give the right one",
        path.display(), size::text(*found_bytes), size::text(*wanted_bytes)
    )]
    SizeDiffers {
        /// The image.
        path: PathBuf,
        /// Its size.
        found_bytes: u64,
        /// The size that was asked for.
        wanted_bytes: u64,
    },
    /// The size is zero, or not a whole number of blocks, or larger than the store can hold.
    #[error("{what} is {} long: {why}", size::text(*size_bytes))]
    BadSize {
        /// The store, as [`crate::Volume::describe`] would say it.
        what: String,
        /// Its size.
        size_bytes: u64,
        /// What is wrong with it.
        why: String,
    },
    /// The block length is not a power of two from 512 to 65536 bytes, or smaller than the device's sector.
    #[error("a block length of {block_length_bytes} bytes is not possible: {why}")]
    BadBlockLength {
        /// The length asked for.
        block_length_bytes: u32,
        /// What is wrong with it.
        why: String,
    },
    /// Somebody else uses it.
    #[error("{} is in use: {why}", path.display())]
    InUse {
        /// The image or device.
        path: PathBuf,
        /// By whom, as far as it is known.
        why: &'static str,
    },
    /// The path is something that cannot be served, for example a directory.
    #[error("{} {why}", path.display())]
    NotServable {
        /// The path.
        path: PathBuf,
        /// What it is, as the rest of the sentence.
        why: &'static str,
    },
    /// The engine goes past the page cache, and that is not possible there.
    #[error("{} cannot be served past the page cache: {why}; use engine=threads, or auto", path.display())]
    NoDirect {
        /// The image or device.
        path: PathBuf,
        /// Why not.
        why: String,
    },
    /// The engine needs io_uring, and the kernel refuses it.
    #[error(
        "{} cannot be served with engine=uring: {why}; use engine=direct, threads or auto", path.display()
    )]
    NoUring {
        /// The image or device.
        path: PathBuf,
        /// What the kernel said and where it is allowed.
        why: String,
    },
    /// The volume was created with protection information, and is to be opened without, or as if it had another.
    #[error(
        "{} has protection information of type {kind} for blocks of {block_length_bytes} bytes, in {}; serve it with \
         protection={kind},block={block_length_bytes}, or remove that file to give the protection up",
        path.display(), beside.display()
    )]
    Protected {
        /// The image.
        path: PathBuf,
        /// The file with its protection information.
        beside: PathBuf,
        /// The type that it was created with.
        kind: u8,
        /// The block length that it was created with.
        block_length_bytes: u32,
    },
    /// The volume has data and no protection information.
    #[error(
        "{} has data, and no protection information was kept with it; a volume gets protection= when it is created, \
         for example with size=10G, and its data is copied into it",
        path.display()
    )]
    NotProtected {
        /// The image.
        path: PathBuf,
    },
    /// The store has no place for protection information.
    #[error("{what} has no place for protection information; image files and memory have")]
    CannotProtect {
        /// The store.
        what: String,
    },
    /// No stable identity could be found or stored.
    #[error("{} has no stable identity ({why}); give it one with serial=NAME", path.display())]
    NoIdentity {
        /// The image or device.
        path: PathBuf,
        /// Why there is none.
        why: String,
    },
    /// The serial number given is not usable.
    #[error(
        "serial={serial:?} is not usable: it must be 1 to 64 printable ASCII characters without spaces at its ends"
    )]
    BadSerial {
        /// The serial number given.
        serial: String,
    },
    /// The kernel refused a step.
    #[error("{}: cannot {doing}: {source}", path.display())]
    Io {
        /// The image or device.
        path: PathBuf,
        /// The step, as an infinitive.
        doing: &'static str,
        /// What the kernel said.
        source: io::Error,
    },
    /// The kernel gave no random bytes for an identity.
    #[error("no random bytes for a new identity: {0}")]
    Random(getrandom::Error),
}

impl OpenError {
    /// An [`OpenError::Io`] from what `rustix` returned.
    pub(crate) fn io(path: impl Into<PathBuf>, doing: &'static str, errno: Errno) -> Self {
        Self::Io { path: path.into(), doing, source: errno.into() }
    }
}

/// Why [`crate::Volume::close`] cannot vouch for what was acknowledged.
#[derive(Debug, thiserror::Error)]
pub enum CloseError {
    /// A flush had failed while the volume was open.
    #[error("volume {name}: {fault}; acknowledged writes may be lost")]
    Faulted {
        /// The volume.
        name: String,
        /// What failed.
        fault: crate::Fault,
    },
    /// The last flush failed.
    #[error("volume {name}: the final flush failed: {source}; acknowledged writes may be lost")]
    Flush {
        /// The volume.
        name: String,
        /// What failed.
        source: StoreError,
    },
    /// All is stable, but in a file that is not found where it was.
    #[error("volume {name}: {astray}")]
    Astray {
        /// The volume.
        name: String,
        /// What has become of its image.
        astray: crate::Astray,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_codes_are_sorted() {
        let class = |errno: Errno| classify(&errno.into());
        assert_eq!(class(Errno::IO), ErrorClass::Medium);
        assert_eq!(class(Errno::NODATA), ErrorClass::Medium);
        assert_eq!(class(Errno::NOSPC), ErrorClass::NoSpace);
        assert_eq!(class(Errno::NXIO), ErrorClass::Hardware);
        assert_eq!(class(Errno::NOMEM), ErrorClass::Busy);
        assert_eq!(class(Errno::ROFS), ErrorClass::ReadOnly);
        assert_eq!(class(Errno::OPNOTSUPP), ErrorClass::Unsupported);
        assert_eq!(classify(&io::Error::new(io::ErrorKind::UnexpectedEof, "short")), ErrorClass::Medium);
    }

    #[test]
    fn a_copied_error_says_the_same() {
        let first = io::Error::from_raw_os_error(Errno::NOSPC.raw_os_error());
        assert_eq!(copy_io_error(&first).raw_os_error(), first.raw_os_error());
        let second = io::Error::new(io::ErrorKind::UnexpectedEof, "short");
        assert_eq!(copy_io_error(&second).to_string(), "short");
    }

    #[test]
    fn open_errors_say_what_to_do() {
        let missing = OpenError::Missing { path: "/srv/vm.img".into() };
        assert_eq!(
            missing.to_string(),
            "/srv/vm.img does not exist; to create it, give its size, for example size=10G"
        );
        let differs =
            OpenError::SizeDiffers { path: "a.img".into(), found_bytes: 1 << 30, wanted_bytes: 1536 };
        let text = differs.to_string();
        assert!(text.contains("1 GiB") && text.contains("1536 bytes"), "{text}");
    }
}
