//! Where the entries of a volume's blocks are: in a sparse file beside the image, or in memory beside memory.
//!
//! The file begins with a page that says what it is; the entries follow in the order of their blocks. It is as long as all entries of
//! its volume take, and its first page says so. Where it ends before that somebody has cut it, and nobody knows what was there: entries
//! of zeroes would say that there is nothing to check.

use std::ffi::OsString;
use std::fs;
use std::io::{self, Write};
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{FallocateFlags, Mode, OFlags};
use rustix::io::{Errno, ReadWriteFlags, retry_on_intr};

use super::entry::ENTRY_BYTES;
use crate::area::Pages;
use crate::error::OpenError;
use crate::store::Store;
use crate::store::file::sync_directory_of;
use crate::store::memory;

const SUFFIX: &str = ".lunette-protection";
const FIRST_LINE: &[u8] = b"lunette protection information 2\n";
/// Of files that end behind the last entry that was written, and do not say how long they are to be.
const FIRST_LINE_OF_OPEN_END: &[u8] = b"lunette protection information 1\n";
const HEADER_BYTES: u64 = 4096;
/// Memory is given back in pieces of this, if all of one is cleared together (`store::memory`).
const CLEARED_BYTES: u64 = 64 << 10;
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

/// The first page of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FirstPage {
    pub(super) header: Header,
    /// The file has room for the entries of so many blocks. `None`: it was made with an open end.
    blocks: Option<u64>,
}

impl FirstPage {
    /// In one sector, so that it is never torn.
    fn to_bytes(self) -> Vec<u8> {
        let FirstPage { header: Header { kind, block_length_bytes }, blocks } = self;
        let mut bytes = if blocks.is_some() { FIRST_LINE } else { FIRST_LINE_OF_OPEN_END }.to_vec();
        bytes.extend(format!("type {kind}\nblock {block_length_bytes}\n").bytes());
        blocks.into_iter().for_each(|blocks| bytes.extend(format!("blocks {blocks}\n").bytes()));
        bytes.resize(HEADER_BYTES as usize, 0);
        bytes
    }

    fn from_bytes(bytes: &[u8]) -> Option<FirstPage> {
        let (rest, has_end) = match bytes.strip_prefix(FIRST_LINE) {
            Some(rest) => (rest, true),
            None => (bytes.strip_prefix(FIRST_LINE_OF_OPEN_END)?, false),
        };
        let mut lines = std::str::from_utf8(rest).ok()?.trim_end_matches('\0').lines();
        let kind = lines.next()?.strip_prefix("type ")?.parse().ok()?;
        let block_length_bytes = lines.next()?.strip_prefix("block ")?.parse().ok()?;
        let blocks = if has_end { Some(lines.next()?.strip_prefix("blocks ")?.parse().ok()?) } else { None };
        lines.next().is_none().then_some(FirstPage { header: Header { kind, block_length_bytes }, blocks })
    }
}

/// The entries of a volume.
#[derive(Debug)]
pub(super) enum Area {
    File(AreaFile),
    Store(Arc<dyn Store>),
}

/// The file with the entries of an image.
#[derive(Debug)]
pub(super) struct AreaFile {
    fd: OwnedFd,
    header: Header,
    is_read_only: bool,
    /// It has room for the entries of so many blocks. Behind them are zeroes: the image has grown, and is served read-only.
    blocks: AtomicU64,
}

/// The file beside an image.
pub(super) fn path_of(image: &Path) -> PathBuf {
    let mut path = OsString::from(image);
    path.push(SUFFIX);
    path.into()
}

/// What the file beside an image says it is; `None`: there is none.
pub(super) fn first_page_of(image: &Path) -> Result<Option<FirstPage>, OpenError> {
    let path = path_of(image);
    let failed = |errno| OpenError::io(path_of(image), "read it", errno);
    let fd = match rustix::fs::open(&path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()) {
        Ok(fd) => fd,
        Err(Errno::NOENT) => return Ok(None),
        Err(errno) => return Err(failed(errno)),
    };
    let mut bytes = [0; HEADER_BYTES as usize];
    read_to_end(&fd, 0, &mut bytes, ReadWriteFlags::empty()).map_err(failed)?;
    let why =
        "is no file of protection information that this version of Lunette knows, though its name says so";
    FirstPage::from_bytes(&bytes).map(Some).ok_or(OpenError::NotServable { path, why })
}

/// Reads as much as there is, and tells how much that was.
fn read_to_end(
    fd: &OwnedFd,
    offset: u64,
    buffer: &mut [u8],
    flags: ReadWriteFlags,
) -> rustix::io::Result<usize> {
    let mut done = 0;
    while done < buffer.len() {
        let mut rest = [io::IoSliceMut::new(&mut buffer[done..])];
        match retry_on_intr(|| rustix::io::preadv2(fd, &mut rest, offset + done as u64, flags))? {
            0 => break,
            count => done += count,
        }
    }
    Ok(done)
}

const fn place(block: u64) -> u64 {
    HEADER_BYTES + block * ENTRY_BYTES as u64
}

/// The file ends where entries were.
fn was_cut() -> io::Error {
    io::Error::new(io::ErrorKind::UnexpectedEof, "the file with its protection information was cut")
}

impl AreaFile {
    fn length(&self) -> io::Result<u64> {
        Ok(u64::try_from(rustix::fs::fstat(&self.fd)?.st_size).unwrap_or(0))
    }

    /// Whether the file has its length still. A write would make it longer again, with a hole where entries were.
    fn check_length(&self) -> io::Result<()> {
        loop {
            let blocks = self.blocks.load(Ordering::Acquire);
            if self.length()? >= place(blocks) {
                return Ok(());
            }
            // It may be on its way to another length just now.
            if self.blocks.load(Ordering::Acquire) == blocks {
                return Err(was_cut());
            }
        }
    }

    fn read(&self, block: u64, bytes: &mut [u8], flags: ReadWriteFlags) -> io::Result<()> {
        let done = read_to_end(&self.fd, place(block), bytes, flags)?;
        let first_missing = block + (done / ENTRY_BYTES) as u64;
        if done < bytes.len() && first_missing < self.blocks.load(Ordering::Relaxed) {
            return Err(was_cut());
        }
        bytes[done..].fill(0);
        Ok(())
    }

    /// Says how long it is from now on, so that a crash does not part that from what it says.
    fn promise(&self, blocks: u64) -> io::Result<()> {
        let page = FirstPage { header: self.header, blocks: Some(blocks) };
        write_all(&self.fd, 0, &page.to_bytes())?;
        rustix::fs::fsync(&self.fd)?;
        self.blocks.store(blocks, Ordering::Release);
        Ok(())
    }

    /// Gives it the length for so many blocks; `before` is for how many it had it, where that is known. Entries behind either
    /// are forgotten: the image was cut there, and what comes there again is another thing.
    fn resize(&self, before: Option<u64>, blocks: u64) -> io::Result<()> {
        let length = self.length()?;
        let kept = place(before.map_or(blocks, |before| before.min(blocks)));
        if before == Some(blocks) && length == kept {
            return Ok(());
        }
        // What is promised is never more than there is.
        if before.is_some_and(|before| before > blocks) {
            self.promise(blocks)?;
        }
        if length > kept {
            rustix::fs::ftruncate(&self.fd, kept)?;
        }
        if length.min(kept) < place(blocks) {
            rustix::fs::ftruncate(&self.fd, place(blocks))?;
        }
        rustix::fs::fsync(&self.fd)?;
        if before.is_none_or(|before| before < blocks) {
            self.promise(blocks)?;
        }
        Ok(())
    }
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

    /// Makes the file for an image of so many blocks anew, whole or not at all, for those to read and write who may read and write the
    /// image.
    pub(super) fn create(image: &Path, header: Header, blocks: u64) -> Result<Self, OpenError> {
        let path = path_of(image);
        let mut temporary = OsString::from(&path);
        temporary.push(".new");
        let temporary = PathBuf::from(temporary);
        let failed = |source| OpenError::Io { path: path.clone(), doing: "create it", source };
        let mut options = fs::OpenOptions::new();
        options.read(true).write(true).create(true).truncate(true).mode(0o600);
        let fill = |mut file: fs::File| {
            file.set_permissions(fs::metadata(image)?.permissions())?;
            file.set_len(place(blocks))?;
            file.write_all(&FirstPage { header, blocks: Some(blocks) }.to_bytes())?;
            file.sync_all()?;
            fs::rename(&temporary, &path)?;
            Ok(file)
        };
        let written = options.open(&temporary).and_then(fill);
        let file = written.inspect_err(|_| drop(fs::remove_file(&temporary))).map_err(failed)?;
        sync_directory_of(&path).map_err(|errno| failed(errno.into()))?;
        let blocks = AtomicU64::new(blocks);
        Ok(Area::File(AreaFile { fd: file.into(), header, is_read_only: false, blocks }))
    }

    /// Opens the file of an image that has so many blocks, and gives it the length for them, unless it is to be read only. A file with
    /// an open end gets it by this, once: nobody can tell whether that one was cut.
    pub(super) fn open(
        image: &Path,
        found: FirstPage,
        blocks: u64,
        is_read_only: bool,
    ) -> Result<Self, OpenError> {
        let path = path_of(image);
        let access = if is_read_only { OFlags::RDONLY } else { OFlags::RDWR };
        let fd = rustix::fs::open(&path, access | OFlags::CLOEXEC, Mode::empty())
            .map_err(|errno| OpenError::io(&path, "open it", errno))?;
        let before = found.blocks;
        let file =
            AreaFile { fd, header: found.header, is_read_only, blocks: AtomicU64::new(before.unwrap_or(0)) };
        if file.check_length().is_err_and(|error| error.kind() == io::ErrorKind::UnexpectedEof) {
            let why = "was cut: it is shorter than the protection information of its image, whose data could no longer be checked; put \
                       it back as it was, or remove it to give the protection up";
            return Err(OpenError::NotServable { path, why });
        }
        if !is_read_only {
            let failed = |source| OpenError::Io { path, doing: "give it its length", source };
            file.resize(before, blocks).map_err(failed)?;
        }
        Ok(Area::File(file))
    }

    /// The file; none in memory.
    pub(super) fn file(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Area::File(file) => Some(file.fd.as_fd()),
            Area::Store(_) => None,
        }
    }

    /// Fills `bytes` with the entries from `block` on.
    pub(super) fn read(&self, block: u64, bytes: &mut [u8]) -> io::Result<()> {
        match self {
            Area::File(file) => file.read(block, bytes, ReadWriteFlags::empty()),
            Area::Store(store) => store.read_at(place(block), bytes),
        }
    }

    /// Does the same if no device has to be waited for; false: what `bytes` has means nothing. Any failure is left to
    /// [`Area::read`], which tells of it.
    pub(super) fn read_cached(&self, block: u64, bytes: &mut [u8]) -> bool {
        match self {
            Area::File(file) => file.read(block, bytes, ReadWriteFlags::NOWAIT).is_ok(),
            Area::Store(store) => {
                store.read_cached(place(block), bytes).is_ok_and(|count| count == bytes.len())
            }
        }
    }

    /// Writes the entries from `block` on.
    pub(super) fn write(&self, block: u64, bytes: &[u8]) -> io::Result<()> {
        match self {
            Area::File(file) => {
                file.check_length()?;
                write_all(&file.fd, place(block), bytes)
            }
            Area::Store(store) => store.write_at(place(block), bytes),
        }
    }

    /// So many blocks have their entries in one piece of memory.
    pub(super) const PIECE_BLOCKS: u64 = CLEARED_BYTES / ENTRY_BYTES as u64;

    /// The first block behind `block` whose entry begins such a piece.
    pub(super) const fn next_piece(block: u64) -> u64 {
        block + Self::PIECE_BLOCKS - place(block) % CLEARED_BYTES / ENTRY_BYTES as u64
    }

    /// Makes zeroes of entries.
    pub(super) fn clear(&self, blocks: &Range<u64>) -> io::Result<()> {
        let (offset, length) = (place(blocks.start), (blocks.end - blocks.start) * ENTRY_BYTES as u64);
        let file = match self {
            Area::Store(store) => return store.unmap(offset, length),
            Area::File(file) => file,
        };
        file.check_length()?;
        let fd = &file.fd;
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

    /// The image has so many blocks now: there is room for their entries, and those behind are forgotten.
    pub(super) fn resize(&self, blocks: u64) -> io::Result<()> {
        match self {
            Area::File(file) if !file.is_read_only => {
                file.check_length()?;
                file.resize(Some(file.blocks.load(Ordering::Relaxed)), blocks)
            }
            _ => Ok(()),
        }
    }

    /// Makes stable what was written.
    pub(super) fn flush(&self) -> io::Result<()> {
        match self {
            Area::File(file) => Ok(retry_on_intr(|| rustix::fs::fdatasync(&file.fd))?),
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

    const HEADER: Header = Header { kind: 1, block_length_bytes: 512 };

    #[test]
    fn first_pages_say_what_they_were_made_from() {
        let header = Header { kind: 3, block_length_bytes: 4096 };
        for page in [FirstPage { header, blocks: Some(77) }, FirstPage { header, blocks: None }] {
            let bytes = page.to_bytes();
            assert_eq!(FirstPage::from_bytes(&bytes), Some(page));
            for at in 0..FIRST_LINE.len() + 10 {
                let mut bytes = bytes.clone();
                bytes[at] = b'~';
                assert_ne!(FirstPage::from_bytes(&bytes), Some(page), "byte {at}");
            }
        }
    }

    /// An image, and the file beside it with room for so many blocks.
    fn create(directory: &tempfile::TempDir, blocks: u64) -> (PathBuf, Area) {
        let image = directory.path().join("a.img");
        fs::write(&image, b"").unwrap();
        assert_eq!(first_page_of(&image).unwrap(), None);
        let area = Area::create(&image, HEADER, blocks).unwrap();
        (image, area)
    }

    fn open(image: &Path, blocks: u64, is_read_only: bool) -> Result<Area, OpenError> {
        let found = first_page_of(image)?.expect("there is one");
        assert_eq!(found.header, HEADER);
        Area::open(image, found, blocks, is_read_only)
    }

    /// The entries of two blocks, by their first bytes.
    fn pair(area: &Area, block: u64) -> io::Result<[u8; 2]> {
        let mut bytes = [1; 64];
        area.read(block, &mut bytes)?;
        // Not every file system has such reads.
        let mut cached = [1; 64];
        assert!(!area.read_cached(block, &mut cached) || cached == bytes);
        Ok([bytes[0], bytes[32]])
    }

    fn cut(image: &Path, blocks: u64) {
        let file = fs::OpenOptions::new().write(true).open(path_of(image)).unwrap();
        file.set_len(place(blocks)).unwrap();
    }

    #[test]
    fn there_are_zeroes_where_nothing_was_written_and_where_the_image_was_cut() {
        let directory = tempfile::tempdir().unwrap();
        let (image, area) = create(&directory, 100);
        area.write(10, &[7; 64]).unwrap();
        assert_eq!([9, 10, 11].map(|block| pair(&area, block).unwrap()), [[0, 7], [7, 7], [7, 0]]);
        area.clear(&(10..11)).unwrap();
        assert_eq!(pair(&area, 10).unwrap(), [0, 7]);
        area.resize(11).unwrap();
        area.resize(50).unwrap();
        assert_eq!(pair(&area, 10).unwrap(), [0, 0]);
        area.write(20, &[8; 32]).unwrap();
        // The same while nobody serves it, for those who may not write it as for others.
        assert_eq!(pair(&open(&image, 60, true).unwrap(), 19).unwrap(), [0, 8]);
        assert_eq!(pair(&open(&image, 60, true).unwrap(), 49).unwrap(), [0, 0]);
        drop(open(&image, 20, false).unwrap());
        assert_eq!(pair(&open(&image, 60, false).unwrap(), 20).unwrap(), [0, 0]);
        assert_eq!(fs::metadata(path_of(&image)).unwrap().len(), place(60));
    }

    #[test]
    fn what_was_behind_the_end_of_a_file_that_was_cut_is_not_taken_for_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let (image, area) = create(&directory, 100);
        for block in [10, 40, 98] {
            area.write(block, &[7; 64]).unwrap();
        }
        cut(&image, 41);
        assert_eq!(pair(&area, 10).unwrap(), [7, 7]);
        for block in [40, 41, 98] {
            assert_eq!(pair(&area, block).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
            assert!(!area.read_cached(block, &mut [0; 64]));
        }
        // Nor does anything make the file longer again.
        assert!(area.write(10, &[8; 32]).is_err() && area.write(98, &[8; 32]).is_err());
        assert!(area.clear(&(60..61)).is_err() && area.resize(200).is_err());
        for is_read_only in [true, false] {
            let error = open(&image, 100, is_read_only).unwrap_err().to_string();
            assert!(error.contains("was cut"), "{error}");
        }
        assert_eq!(fs::metadata(path_of(&image)).unwrap().len(), place(41));
    }

    /// As they were made before their first page told their length.
    #[test]
    fn a_file_with_an_open_end_gets_its_length() {
        let directory = tempfile::tempdir().unwrap();
        let (image, area) = create(&directory, 100);
        area.write(10, &[7; 64]).unwrap();
        let page = FirstPage { header: HEADER, blocks: None };
        write_all(
            &fs::File::options().write(true).open(path_of(&image)).unwrap().into(),
            0,
            &page.to_bytes(),
        )
        .unwrap();
        cut(&image, 12);
        assert_eq!(pair(&open(&image, 100, true).unwrap(), 11).unwrap(), [7, 0]);
        assert_eq!(pair(&open(&image, 100, true).unwrap(), 50).unwrap(), [0, 0]);
        assert_eq!(pair(&open(&image, 100, false).unwrap(), 11).unwrap(), [7, 0]);
        assert_eq!(fs::metadata(path_of(&image)).unwrap().len(), place(100));
        cut(&image, 12);
        assert!(open(&image, 100, true).is_err());
    }

    #[test]
    fn a_cut_that_a_crash_has_ended_early_is_ended() {
        let directory = tempfile::tempdir().unwrap();
        let (image, area) = create(&directory, 100);
        area.write(50, &[7; 32]).unwrap();
        let Area::File(file) = &area else { panic!("a file") };
        file.promise(40).unwrap();
        assert_eq!(pair(&open(&image, 100, false).unwrap(), 49).unwrap(), [0, 0]);
    }

    #[test]
    fn who_may_not_read_the_image_may_not_read_what_is_known_of_it() {
        use std::os::unix::fs::PermissionsExt;
        let directory = tempfile::tempdir().unwrap();
        for mode in [0o600, 0o664] {
            let image = directory.path().join(format!("{mode:o}.img"));
            fs::write(&image, b"").unwrap();
            fs::set_permissions(&image, fs::Permissions::from_mode(mode)).unwrap();
            Area::create(&image, HEADER, 8).unwrap();
            let metadata = fs::metadata(path_of(&image)).unwrap();
            assert_eq!(metadata.permissions().mode() & 0o7777, mode);
        }
    }
}
