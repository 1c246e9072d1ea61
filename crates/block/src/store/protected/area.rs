//! Where the entries of a volume's blocks are: in a sparse file beside the image, or in memory beside memory.
//!
//! The file begins with a page that says what it is; the entries follow in the order of their blocks. Where it ends,
//! entries of zeroes follow without end.

use std::ffi::OsString;
use std::fs;
use std::io::{self, Write};
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{FallocateFlags, Mode, OFlags};
use rustix::io::{Errno, ReadWriteFlags, retry_on_intr};

use super::entry::ENTRY_BYTES;
use crate::area::Pages;
use crate::error::OpenError;
use crate::store::Store;
use crate::store::file::sync_directory_of;
use crate::store::memory;

const SUFFIX: &str = ".lunette-protection";
const FIRST_LINE: &[u8] = b"lunette protection information 1\n";
const HEADER_BYTES: u64 = 4096;
/// Zeroes that are written at once where the file system makes no holes.
const ZEROES_BYTES: usize = 64 << 10;

/// What the first page says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    /// The kind of protection information.
    pub(super) kind: u8,
    /// Of the blocks that it protects.
    pub(super) block_length_bytes: u32,
}

impl Header {
    fn to_bytes(self) -> Vec<u8> {
        let mut bytes = FIRST_LINE.to_vec();
        bytes.extend(format!("type {}\nblock {}\n", self.kind, self.block_length_bytes).bytes());
        bytes.resize(HEADER_BYTES as usize, 0);
        bytes
    }

    fn from_bytes(bytes: &[u8]) -> Option<Header> {
        let text = std::str::from_utf8(bytes.strip_prefix(FIRST_LINE)?).ok()?;
        let mut lines = text.trim_end_matches('\0').lines();
        let kind = lines.next()?.strip_prefix("type ")?.parse().ok()?;
        let block_length_bytes = lines.next()?.strip_prefix("block ")?.parse().ok()?;
        lines.next().is_none().then_some(Header { kind, block_length_bytes })
    }
}

/// The entries of a volume.
#[derive(Debug)]
pub(super) enum Area {
    File(OwnedFd),
    Store(Arc<dyn Store>),
}

/// The file beside an image.
pub(super) fn path_of(image: &Path) -> PathBuf {
    let mut path = OsString::from(image);
    path.push(SUFFIX);
    path.into()
}

/// What the file beside an image says it is; `None`: there is none.
pub(super) fn header_of(image: &Path) -> Result<Option<Header>, OpenError> {
    let path = path_of(image);
    let failed = |errno| OpenError::io(path_of(image), "read it", errno);
    let fd = match rustix::fs::open(&path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()) {
        Ok(fd) => fd,
        Err(Errno::NOENT) => return Ok(None),
        Err(errno) => return Err(failed(errno)),
    };
    let mut bytes = [0; HEADER_BYTES as usize];
    read_to_zeroes(&fd, 0, &mut bytes, ReadWriteFlags::empty()).map_err(failed)?;
    let why = "is no file of protection information of Lunette, though its name says so";
    Header::from_bytes(&bytes).map(Some).ok_or(OpenError::NotServable { path, why })
}

/// Reads as much as there is; the rest is zeroes.
fn read_to_zeroes(
    fd: &OwnedFd,
    offset: u64,
    buffer: &mut [u8],
    flags: ReadWriteFlags,
) -> rustix::io::Result<()> {
    let mut done = 0;
    while done < buffer.len() {
        let mut rest = [io::IoSliceMut::new(&mut buffer[done..])];
        match retry_on_intr(|| rustix::io::preadv2(fd, &mut rest, offset + done as u64, flags))? {
            0 => break,
            count => done += count,
        }
    }
    buffer[done..].fill(0);
    Ok(())
}

const fn place(block: u64) -> u64 {
    HEADER_BYTES + block * ENTRY_BYTES as u64
}

impl Area {
    /// Entries for so many blocks in memory.
    pub(super) fn memory(blocks: u64, pages: Pages) -> Result<Self, OpenError> {
        memory::open(Self::bytes_for(blocks), pages).map(Area::Store)
    }

    /// What the entries of so many blocks take.
    pub(super) const fn bytes_for(blocks: u64) -> u64 {
        place(blocks)
    }

    /// Makes the file for an image anew, whole or not at all, for those to read and write who may read and write the image.
    pub(super) fn create(image: &Path, header: Header) -> Result<Self, OpenError> {
        let path = path_of(image);
        let mut temporary = OsString::from(&path);
        temporary.push(".new");
        let temporary = PathBuf::from(temporary);
        let failed = |source| OpenError::Io { path: path.clone(), doing: "create it", source };
        let mut options = fs::OpenOptions::new();
        options.read(true).write(true).create(true).truncate(true).mode(0o600);
        let fill = |mut file: fs::File| {
            file.set_permissions(fs::metadata(image)?.permissions())?;
            file.write_all(&header.to_bytes())?;
            file.sync_all()?;
            fs::rename(&temporary, &path)?;
            Ok(file)
        };
        let written = options.open(&temporary).and_then(fill);
        let file = written.inspect_err(|_| drop(fs::remove_file(&temporary))).map_err(failed)?;
        sync_directory_of(&path).map_err(|errno| failed(errno.into()))?;
        Ok(Area::File(file.into()))
    }

    /// Opens the file of an image.
    pub(super) fn open(image: &Path, read_only: bool) -> Result<Self, OpenError> {
        let path = path_of(image);
        let access = if read_only { OFlags::RDONLY } else { OFlags::RDWR };
        rustix::fs::open(&path, access | OFlags::CLOEXEC, Mode::empty())
            .map(Area::File)
            .map_err(|errno| OpenError::io(path, "open it", errno))
    }

    /// The file; none in memory.
    pub(super) fn file(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Area::File(fd) => Some(fd.as_fd()),
            Area::Store(_) => None,
        }
    }

    /// Fills `bytes` with the entries from `block` on.
    pub(super) fn read(&self, block: u64, bytes: &mut [u8]) -> io::Result<()> {
        match self {
            Area::File(fd) => Ok(read_to_zeroes(fd, place(block), bytes, ReadWriteFlags::empty())?),
            Area::Store(store) => store.read_at(place(block), bytes),
        }
    }

    /// Does the same if no device has to be waited for; false: what `bytes` has means nothing. Any failure is left to
    /// [`Area::read`], which tells of it.
    pub(super) fn read_cached(&self, block: u64, bytes: &mut [u8]) -> bool {
        match self {
            Area::File(fd) => read_to_zeroes(fd, place(block), bytes, ReadWriteFlags::NOWAIT).is_ok(),
            Area::Store(store) => {
                store.read_cached(place(block), bytes).is_ok_and(|count| count == bytes.len())
            }
        }
    }

    /// Writes the entries from `block` on.
    pub(super) fn write(&self, block: u64, bytes: &[u8]) -> io::Result<()> {
        match self {
            Area::File(fd) => write_all(fd, place(block), bytes),
            Area::Store(store) => store.write_at(place(block), bytes),
        }
    }

    /// Makes zeroes of entries.
    pub(super) fn clear(&self, blocks: &Range<u64>) -> io::Result<()> {
        let (offset, length) = (place(blocks.start), (blocks.end - blocks.start) * ENTRY_BYTES as u64);
        let fd = match self {
            Area::Store(store) => return store.unmap(offset, length),
            Area::File(fd) => fd,
        };
        let mode = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        match retry_on_intr(|| rustix::fs::fallocate(fd, mode, offset, length)) {
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => {}
            result => return Ok(result?),
        }
        let zeroes = vec![0; ZEROES_BYTES];
        let mut done = 0;
        while done < length {
            let count = (length - done).min(ZEROES_BYTES as u64);
            write_all(fd, offset + done, &zeroes[..count as usize])?;
            done += count;
        }
        Ok(())
    }

    /// Forgets the entries from `blocks` on: the image was cut there, and what may come there again is another thing.
    pub(super) fn cut(&self, blocks: u64) -> io::Result<()> {
        let Area::File(fd) = self else { return Ok(()) };
        let length = u64::try_from(rustix::fs::fstat(fd)?.st_size).unwrap_or(0);
        if length > place(blocks) {
            rustix::fs::ftruncate(fd, place(blocks))?;
            rustix::fs::fsync(fd)?;
        }
        Ok(())
    }

    /// Makes stable what was written.
    pub(super) fn flush(&self) -> io::Result<()> {
        match self {
            Area::File(fd) => Ok(retry_on_intr(|| rustix::fs::fdatasync(fd))?),
            Area::Store(store) => store.flush(),
        }
    }
}

fn write_all(fd: &OwnedFd, offset: u64, bytes: &[u8]) -> io::Result<()> {
    let mut done = 0;
    while done < bytes.len() {
        match retry_on_intr(|| rustix::io::pwrite(fd, &bytes[done..], offset + done as u64))? {
            0 => return Err(io::ErrorKind::WriteZero.into()),
            count => done += count,
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_say_what_they_were_made_from() {
        let header = Header { kind: 3, block_length_bytes: 4096 };
        let bytes = header.to_bytes();
        assert_eq!(Header::from_bytes(&bytes), Some(header));
        for at in 0..FIRST_LINE.len() + 10 {
            let mut bytes = bytes.clone();
            bytes[at] = b'~';
            assert_ne!(Header::from_bytes(&bytes), Some(header), "byte {at}");
        }
    }

    #[test]
    fn there_are_zeroes_behind_the_end_and_where_it_was_cut() {
        let directory = tempfile::tempdir().unwrap();
        let image = directory.path().join("a.img");
        fs::write(&image, b"").unwrap();
        assert_eq!(header_of(&image).unwrap(), None);
        let header = Header { kind: 1, block_length_bytes: 512 };
        let area = Area::create(&image, header).unwrap();
        assert_eq!(header_of(&image).unwrap(), Some(header));
        area.write(10, &[7; 64]).unwrap();
        let mut bytes = [1; 96];
        area.read(10, &mut bytes).unwrap();
        assert_eq!((&bytes[..64], &bytes[64..]), (&[7; 64][..], &[0; 32][..]));
        // Not every file system has such reads.
        let mut cached = [1; 96];
        assert!(!area.read_cached(10, &mut cached) || cached == bytes);
        area.clear(&(10..11)).unwrap();
        area.read(10, &mut bytes).unwrap();
        assert_eq!((&bytes[..32], &bytes[32..64]), (&[0; 32][..], &[7; 32][..]));
        area.cut(11).unwrap();
        Area::open(&image, true).unwrap().read(10, &mut bytes).unwrap();
        assert_eq!(bytes, [0; 96]);
    }

    #[test]
    fn who_may_not_read_the_image_may_not_read_what_is_known_of_it() {
        use std::os::unix::fs::PermissionsExt;
        let directory = tempfile::tempdir().unwrap();
        for mode in [0o600, 0o664] {
            let image = directory.path().join(format!("{mode:o}.img"));
            fs::write(&image, b"").unwrap();
            fs::set_permissions(&image, fs::Permissions::from_mode(mode)).unwrap();
            Area::create(&image, Header { kind: 1, block_length_bytes: 512 }).unwrap();
            let metadata = fs::metadata(path_of(&image)).unwrap();
            assert_eq!(metadata.permissions().mode() & 0o7777, mode);
        }
    }
}
