//! A file or a block device of this machine as an end of a copy.

use std::fs::{File, FileType, Metadata};
use std::io;
use std::ops::Range;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use lunette_scsi::client::UnitIdentity;
use rustix::fs::{FallocateFlags, SeekFrom, fallocate, seek};
use rustix::io::Errno;

use super::endpoint::{Endpoint, Extent, Taker};
use super::identity;
use super::pieces::{Piece, Pieces};
use crate::failure::Failure;

/// What a file is read and written by.
const FILE_PIECE_BYTES: usize = 1 << 20;

/// What to do about a source that did not stay as it was.
const CHANGED_HELP: &str = "copy it again while nothing writes to it, or copy a snapshot of it";

/// Whether it can be copied, or copied to.
pub(super) fn has_content(kind: FileType) -> bool {
    kind.is_file() || kind.is_block_device()
}

/// What has no content of its own.
pub(super) fn not_an_end(path: &Path) -> Failure {
    Failure::usage(format!("{} is neither a file nor a block device", path.display()))
        .with_help("`lunette read` writes to a pipe, and `lunette write` reads from one")
}

/// When its content was changed last. That of a device's node says nothing of its content.
fn changed_at(metadata: &Metadata) -> Option<String> {
    metadata.is_file().then(|| format!("{}.{:09}", metadata.mtime(), metadata.mtime_nsec()))
}

pub(super) struct FileEnd {
    file: File,
    path: PathBuf,
    bytes: u64,
    /// Where something tells it.
    identity: Option<String>,
    changed_at: Option<String>,
    /// Nothing has been written to it: it reads as zeros.
    is_new: bool,
    /// The flush that is under way.
    flush: Option<JoinHandle<io::Result<()>>>,
}

/// Its length; that of a block device is where its end is.
fn length_bytes(file: &File) -> io::Result<u64> {
    Ok(seek(file, SeekFrom::End(0))?)
}

impl FileEnd {
    pub(super) fn open(file: File, path: &Path, is_new: bool) -> Result<FileEnd, Failure> {
        let failed = |error: io::Error| Failure::new(format!("cannot look at {}", path.display()), &error);
        let metadata = file.metadata().map_err(failed)?;
        if !has_content(metadata.file_type()) {
            return Err(not_an_end(path));
        }
        let bytes = length_bytes(&file).map_err(failed)?;
        let (identity, changed_at) = (identity::of(&metadata), changed_at(&metadata));
        Ok(FileEnd { file, path: path.to_owned(), bytes, identity, changed_at, is_new, flush: None })
    }

    /// What lies at `at`, at most up to `end`; never nothing. Holes as the file system tells them; one that tells none has none.
    ///
    /// # Errors
    /// The file has become shorter.
    fn extent(&self, at: u64, end: u64) -> Result<Extent, Failure> {
        let rest = Extent { length_bytes: end - at, is_empty: false };
        Ok(match seek(&self.file, SeekFrom::Data(at)) {
            Ok(data) if data > at => Extent { length_bytes: data.min(end) - at, is_empty: true },
            Ok(_) => match seek(&self.file, SeekFrom::Hole(at)) {
                Ok(hole) if hole > at => Extent { length_bytes: hole.min(end) - at, is_empty: false },
                _ => rest,
            },
            // Only a hole comes after this, or nothing any more.
            Err(Errno::NXIO) => {
                self.check_length()?;
                Extent { is_empty: true, ..rest }
            }
            Err(_) => rest,
        })
    }

    /// What it had when it was opened is still there.
    fn check_length(&self) -> Result<(), Failure> {
        let length = length_bytes(&self.file).map_err(|error| self.failed("look at", &error))?;
        if length >= self.bytes {
            return Ok(());
        }
        let message = format!(
            "{} became shorter while it was copied: it had {} bytes, and ends after {length}",
            self.path.display(),
            self.bytes
        );
        Err(Failure::local(message).with_help(CHANGED_HELP))
    }

    fn failed_read(&self, error: &io::Error) -> Failure {
        match self.check_length() {
            Err(shorter) if error.kind() == io::ErrorKind::UnexpectedEof => shorter,
            _ => self.failed("read", error),
        }
    }

    fn failed(&self, what: &str, error: &io::Error) -> Failure {
        Failure::new(format!("cannot {what} {}", self.path.display()), error)
    }
}

impl Endpoint for FileEnd {
    fn name(&self) -> String {
        self.path.display().to_string()
    }

    fn identity(&self) -> Result<String, Failure> {
        self.identity.clone().ok_or_else(|| {
            let message = format!(
                "nothing tells which medium {} has, and --resume could go on with another one",
                self.path.display()
            );
            Failure::usage(message).with_help("leave out --resume")
        })
    }

    fn unit(&self) -> Option<UnitIdentity> {
        None
    }

    fn changed_at(&self) -> Option<String> {
        self.changed_at.clone()
    }

    fn check_unchanged(&self) -> Result<(), Failure> {
        if self.changed_at.is_none() {
            return Ok(());
        }
        self.check_length()?;
        let metadata = self.file.metadata().map_err(|error| self.failed("look at", &error))?;
        if (metadata.len(), changed_at(&metadata)) == (self.bytes, self.changed_at.clone()) {
            return Ok(());
        }
        let name = self.path.display();
        let message = format!(
            "{name} was changed while it was copied: the copy may be partly of before that, and partly of after"
        );
        Err(Failure::local(message).with_help(CHANGED_HELP))
    }

    fn size_bytes(&self) -> u64 {
        self.bytes
    }

    fn block_bytes(&self) -> u32 {
        1
    }

    fn piece_bytes(&self) -> usize {
        FILE_PIECE_BYTES
    }

    fn read(&mut self, bytes: Range<u64>, pieces: Pieces, take: Taker<'_>) -> Result<(), Failure> {
        let mut at = bytes.start;
        while at < bytes.end {
            let rest = Extent { length_bytes: bytes.end - at, is_empty: false };
            let extent =
                if pieces.sparse { pieces.cut(self.extent(at, bytes.end)?, at, bytes.end) } else { rest };
            let end = at + extent.length_bytes;
            if extent.is_empty {
                take(Piece::Empty { offset_bytes: at, length_bytes: extent.length_bytes })?;
                at = end;
            }
            while at < end {
                let mut data = vec![0; (end - at).min(pieces.piece_bytes as u64) as usize];
                self.file.read_exact_at(&mut data, at).map_err(|error| self.failed_read(&error))?;
                let length = data.len() as u64;
                take(Piece::Data { offset_bytes: at, data })?;
                at += length;
            }
        }
        Ok(())
    }

    fn write(&mut self, at: u64, data: Vec<u8>) -> Result<(), Failure> {
        self.file.write_all_at(&data, at).map_err(|error| self.failed("write", &error))
    }

    fn empty(&mut self, at: u64, length_bytes: u64) -> Result<(), Failure> {
        if self.is_new {
            return Ok(());
        }
        let punched =
            fallocate(&self.file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, at, length_bytes);
        if punched.is_ok() {
            return Ok(());
        }
        let zeros = vec![0; FILE_PIECE_BYTES];
        let end = at + length_bytes;
        let mut at = at;
        while at < end {
            let length = (end - at).min(zeros.len() as u64) as usize;
            self.file.write_all_at(&zeros[..length], at).map_err(|error| self.failed("write", &error))?;
            at += length as u64;
        }
        Ok(())
    }

    fn begin_flush(&mut self) -> Result<(), Failure> {
        let file = self.file.try_clone().map_err(|error| self.failed("flush", &error))?;
        let flush = thread::Builder::new().name("flush".into()).spawn(move || file.sync_data());
        self.flush = Some(flush.map_err(|error| self.failed("flush", &error))?);
        Ok(())
    }

    fn has_flushed(&mut self, waits: bool) -> Result<bool, Failure> {
        if let Some(flush) = self.flush.take_if(|flush| waits || flush.is_finished()) {
            let ended = flush.join().unwrap_or_else(|_| Err(io::Error::other("the flush ended early")));
            ended.map_err(|error| self.failed("flush", &error))?;
        }
        Ok(self.flush.is_none())
    }

    fn attend(&mut self) -> Result<Duration, Failure> {
        Ok(Duration::MAX)
    }

    fn settle(&mut self) -> Result<(), Failure> {
        self.has_flushed(true).map(drop)
    }

    fn close(self: Box<Self>) -> Result<(), Failure> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::time::{Duration, SystemTime};

    use super::*;

    /// Data and a hole of 1 MiB each; open to be copied.
    fn half_empty(path: &Path) -> FileEnd {
        fs::write(path, vec![7; 1 << 20]).unwrap();
        let file = File::options().read(true).write(true).open(path).unwrap();
        file.set_len(2 << 20).unwrap();
        FileEnd::open(file, path, false).unwrap()
    }

    fn read(end: &mut FileEnd) -> Result<u64, Failure> {
        let (size, mut length) = (end.size_bytes(), 0);
        end.read(0..size, Pieces::of(512, 1 << 20), &mut |piece| {
            length += match piece {
                Piece::Data { data, .. } => data.len() as u64,
                Piece::Empty { length_bytes, .. } => length_bytes,
            };
            Ok(())
        })?;
        Ok(length)
    }

    #[test]
    fn what_was_cut_off_is_no_hole() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("image");
        let mut end = half_empty(&path);
        assert_eq!(read(&mut end).unwrap(), 2 << 20);
        // In the hole, at its beginning, and in the data.
        for length in [3 << 19, 1 << 20, 1 << 19] {
            end.file.set_len(length).unwrap();
            let failure = read(&mut end).unwrap_err();
            let expected =
                format!("became shorter while it was copied: it had 2097152 bytes, and ends after {length}");
            assert!(failure.to_string().contains(&expected), "{failure}");
        }
        assert!(end.check_unchanged().is_err());
    }

    #[test]
    fn a_change_is_told_by_the_time_and_the_length() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("image");
        let end = half_empty(&path);
        end.check_unchanged().unwrap();
        let opened = end.file.metadata().unwrap().modified().unwrap();
        end.file.set_modified(opened + Duration::from_secs(1)).unwrap();
        let failure = end.check_unchanged().unwrap_err();
        assert!(failure.to_string().contains("image was changed while it was copied"), "{failure}");
        end.file.set_modified(opened).unwrap();
        end.check_unchanged().unwrap();
        end.file.set_len(3 << 20).unwrap();
        end.file.set_modified(opened).unwrap();
        assert!(end.check_unchanged().is_err());
        // Who reads it changes nothing.
        let end = half_empty(&directory.path().join("another"));
        end.file.set_times(fs::FileTimes::new().set_accessed(SystemTime::UNIX_EPOCH)).unwrap();
        end.check_unchanged().unwrap();
    }
}
