//! The two kinds of ends that a copy has: disks and files.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::ops::Range;
use std::path::Path;
use std::time::Duration;

use lunette_block::{is_block_device, sync_directory_of};
use lunette_scsi::client::UnitIdentity;

use super::super::access::AccessOptions;
use super::super::disk::Disk;
use super::super::options::{CopyOptions, End};
use super::super::stream::Depth;
use super::super::transfer::create;
use super::disk_end::DiskEnd;
use super::file_end::{FileEnd, has_content, not_an_end};
use super::pieces::{Piece, Pieces};
use crate::failure::Failure;

/// A part of an end with one property.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Extent {
    pub(super) length_bytes: u64,
    /// It holds nothing, and reads as zeros.
    pub(super) is_empty: bool,
}

/// Takes what was read, in order.
pub(super) type Taker<'a> = &'a mut dyn FnMut(Piece) -> Result<(), Failure>;

/// One end of a copy. Places are multiples of the block length, but for the end of a file.
pub(super) trait Endpoint: Send {
    /// For messages.
    fn name(&self) -> String;
    /// What tells it from others, for the record of how far a copy is.
    ///
    /// # Errors
    /// Nothing tells it.
    fn identity(&self) -> Result<String, Failure>;
    /// The disk that it is; none for a file.
    fn unit(&self) -> Option<UnitIdentity>;
    /// When its content was changed last, where a file system tells that.
    fn changed_at(&self) -> Option<String>;
    /// Looks whether its content is still that of when it was opened, where a file system tells that.
    ///
    /// # Errors
    /// It is not.
    fn check_unchanged(&self) -> Result<(), Failure>;
    fn size_bytes(&self) -> u64;
    fn block_bytes(&self) -> u32;
    /// The most that is read or written at once.
    fn piece_bytes(&self) -> usize;
    /// Reads a part in order, in pieces of [`Pieces::piece_bytes`], no more than [`Endpoint::piece_bytes`]; the last before something
    /// that holds nothing may be shorter.
    fn read(&mut self, bytes: Range<u64>, pieces: Pieces, take: Taker<'_>) -> Result<(), Failure>;
    /// Writes; it may still be under way afterwards.
    fn write(&mut self, at: u64, data: Vec<u8>) -> Result<(), Failure>;
    /// Makes a part read as zeros.
    fn empty(&mut self, at: u64, length_bytes: u64) -> Result<(), Failure>;
    /// Begins to make stable what was written before; writes may go on meanwhile. What was begun before must be over.
    fn begin_flush(&mut self) -> Result<(), Failure>;
    /// Whether that is over; with `waits` it is.
    fn has_flushed(&mut self, waits: bool) -> Result<bool, Failure>;
    /// Does what has to be done beside what it is told to, and says for how long it may be left alone.
    fn attend(&mut self) -> Result<Duration, Failure>;
    /// Waits for everything that is under way.
    fn settle(&mut self) -> Result<(), Failure>;
    fn close(self: Box<Self>) -> Result<(), Failure>;
}

/// Opens what is copied from.
pub(super) fn open_source(
    end: &End,
    access: &AccessOptions,
    depth: Depth,
) -> Result<Box<dyn Endpoint>, Failure> {
    match end {
        End::Disk(url) => Ok(Box::new(DiskEnd::open(Disk::open(url, access)?, url, depth)?)),
        End::File(path) => {
            refuse_streams(path)?;
            let file = File::open(path)
                .map_err(|error| Failure::new(format!("cannot open {}", path.display()), &error))?;
            FileEnd::open(file, path, false).map(|end| Box::new(end) as Box<dyn Endpoint>)
        }
    }
}

/// Opens what is copied to. A file is made as long as the source; one that an earlier run has begun is taken as it is.
pub(super) fn open_destination(
    end: &End,
    bytes: u64,
    resumed: bool,
    options: &CopyOptions,
) -> Result<Box<dyn Endpoint>, Failure> {
    let path = match end {
        End::Disk(url) => {
            let disk = Disk::open(url, &options.access.of_destination())?;
            if disk.facts.is_write_protected() {
                let message = format!("{} is read-only for this initiator", disk.name);
                return Err(Failure::scsi(message, Some("see the target's configuration".to_owned())));
            }
            return Ok(Box::new(DiskEnd::open(disk, url, options.depth.into())?));
        }
        End::File(path) => path,
    };
    refuse_streams(path)?;
    let failed = |error: io::Error| Failure::new(format!("cannot open {}", path.display()), &error);
    if resumed || is_block_device(path) {
        let file = OpenOptions::new().read(true).write(true).open(path).map_err(failed)?;
        return FileEnd::open(file, path, false).map(|end| Box::new(end) as Box<dyn Endpoint>);
    }
    let file = create(path, options.force)?;
    file.set_len(bytes).map_err(failed)?;
    make_name_stable(path)?;
    FileEnd::open(file, path, true).map(|end| Box::new(end) as Box<dyn Endpoint>)
}

/// Refuses what has no content of its own. To open a pipe would wait for its other end.
fn refuse_streams(path: &Path) -> Result<(), Failure> {
    let is_stream = fs::metadata(path).is_ok_and(|metadata| !has_content(metadata.file_type()));
    if is_stream { Err(not_an_end(path)) } else { Ok(()) }
}

/// A new file is found after a loss of power, like what is flushed to it.
fn make_name_stable(path: &Path) -> Result<(), Failure> {
    // It may be named by a link.
    let synced = fs::canonicalize(path).and_then(|path| Ok(sync_directory_of(&path)?));
    synced.map_err(|error| Failure::new(format!("cannot make the name of {} stable", path.display()), &error))
}
