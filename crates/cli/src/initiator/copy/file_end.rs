//! A file or a block device of this machine as an end of a copy.

use std::fs::{File, FileType};
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

/// Whether it can be copied, or copied to.
pub(super) fn has_content(kind: FileType) -> bool {
    kind.is_file() || kind.is_block_device()
}

/// What has no content of its own.
pub(super) fn not_an_end(path: &Path) -> Failure {
    Failure::usage(format!("{} is neither a file nor a block device", path.display()))
        .with_help("`lunette read` writes to a pipe, and `lunette write` reads from one")
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

impl FileEnd {
    pub(super) fn open(file: File, path: &Path, is_new: bool) -> Result<FileEnd, Failure> {
        let failed = |error: io::Error| Failure::new(format!("cannot look at {}", path.display()), &error);
        let metadata = file.metadata().map_err(failed)?;
        let kind = metadata.file_type();
        if !has_content(kind) {
            return Err(not_an_end(path));
        }
        // The size of a block device is where its end is.
        let bytes = seek(&file, SeekFrom::End(0)).map_err(|errno| failed(errno.into()))?;
        let identity = identity::of(&metadata);
        // That of a device's node says nothing of its content.
        let changed_at = kind.is_file().then(|| format!("{}.{:09}", metadata.mtime(), metadata.mtime_nsec()));
        Ok(FileEnd { file, path: path.to_owned(), bytes, identity, changed_at, is_new, flush: None })
    }

    /// What lies at `at`, at most up to `end`; never nothing. Holes as the file system tells them; one that tells none has none.
    fn extent(&self, at: u64, end: u64) -> Extent {
        let rest = Extent { length_bytes: end - at, is_empty: false };
        match seek(&self.file, SeekFrom::Data(at)) {
            Ok(data) if data > at => Extent { length_bytes: data.min(end) - at, is_empty: true },
            Ok(_) => match seek(&self.file, SeekFrom::Hole(at)) {
                Ok(hole) if hole > at => Extent { length_bytes: hole.min(end) - at, is_empty: false },
                _ => rest,
            },
            // Only a hole comes after this.
            Err(Errno::NXIO) => Extent { is_empty: true, ..rest },
            Err(_) => rest,
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
                if pieces.sparse { pieces.cut(self.extent(at, bytes.end), at, bytes.end) } else { rest };
            let end = at + extent.length_bytes;
            if extent.is_empty {
                take(Piece::Empty { offset_bytes: at, length_bytes: extent.length_bytes })?;
                at = end;
            }
            while at < end {
                let mut data = vec![0; (end - at).min(pieces.piece_bytes as u64) as usize];
                self.file.read_exact_at(&mut data, at).map_err(|error| self.failed("read", &error))?;
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
