//! The two kinds of ends that a copy has: disks and files.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use lunette_scsi::client::medium::{self, BlockRange, Caching, CdbForm, SameBlock};
use lunette_scsi::client::{UnitIdentity, lba_status};
use rustix::fs::{FallocateFlags, SeekFrom, fallocate, seek};
use rustix::io::Errno;

use super::super::access::AccessOptions;
use super::super::amount::Span;
use super::super::disk::Disk;
use super::super::options::{CopyOptions, End};
use super::super::stream::{Depth, Flow, ReadStream, WriteStream, flush};
use super::super::transfer::create;
use crate::failure::Failure;

/// What a file is read and written by.
const FILE_PIECE_BYTES: usize = 1 << 20;
/// The most that one WRITE SAME makes empty, in blocks.
const EMPTY_BLOCKS_MAX: u32 = 1 << 20;

/// A part of an end with one property.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Extent {
    pub(super) length_bytes: u64,
    /// It holds nothing, and reads as zeros.
    pub(super) is_empty: bool,
}

/// Takes what was read: its place and the bytes.
pub(super) type Taker<'a> = &'a mut dyn FnMut(u64, Vec<u8>) -> Result<(), Failure>;

/// One end of a copy. Places are multiples of the block length, but for the end of a file.
pub(super) trait Endpoint: Send {
    /// For messages.
    fn name(&self) -> String;
    /// What tells it from others, for the record of how far a copy is.
    fn identity(&self) -> String;
    /// The disk that it is; none for a file.
    fn unit(&self) -> Option<UnitIdentity>;
    /// When its content was changed last, where a file system tells that.
    fn changed_at(&self) -> Option<String>;
    fn size_bytes(&self) -> u64;
    fn block_bytes(&self) -> u32;
    /// The most that is read or written at once.
    fn piece_bytes(&self) -> usize;
    /// What lies at `at`, at most up to `end`; never nothing.
    fn extent(&mut self, at: u64, end: u64) -> Result<Extent, Failure>;
    /// Reads a part in order, in pieces of `piece_bytes` (no more than [`Endpoint::piece_bytes`]); the last may be shorter.
    fn read(
        &mut self,
        at: u64,
        length_bytes: u64,
        piece_bytes: usize,
        take: Taker<'_>,
    ) -> Result<(), Failure>;
    /// Writes; it may still be under way afterwards.
    fn write(&mut self, at: u64, data: Vec<u8>) -> Result<(), Failure>;
    /// Makes a part read as zeros.
    fn empty(&mut self, at: u64, length_bytes: u64) -> Result<(), Failure>;
    /// Waits for all writes.
    fn drain(&mut self) -> Result<(), Failure>;
    /// Makes all writes stable.
    fn flush(&mut self) -> Result<(), Failure>;
    fn close(self: Box<Self>);
}

/// Opens what is copied from.
pub(super) fn open_source(
    end: &End,
    access: &AccessOptions,
    depth: Depth,
) -> Result<Box<dyn Endpoint>, Failure> {
    match end {
        End::Disk(url) => Ok(Box::new(DiskEnd::open(Disk::open(url, access)?, depth)?)),
        End::File(path) => {
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
            return Ok(Box::new(DiskEnd::open(disk, options.depth.into())?));
        }
        End::File(path) => path,
    };
    let failed = |error: io::Error| Failure::new(format!("cannot open {}", path.display()), &error);
    let is_device = std::fs::metadata(path).is_ok_and(|metadata| metadata.file_type().is_block_device());
    if resumed || is_device {
        let file = OpenOptions::new().read(true).write(true).open(path).map_err(failed)?;
        return FileEnd::open(file, path, false).map(|end| Box::new(end) as Box<dyn Endpoint>);
    }
    let file = create(path, options.force)?;
    file.set_len(bytes).map_err(failed)?;
    FileEnd::open(file, path, true).map(|end| Box::new(end) as Box<dyn Endpoint>)
}

struct DiskEnd {
    disk: Disk,
    whole: Span,
    /// What is known of the way from it.
    reads: Flow,
    writes: WriteStream,
    /// What GET LBA STATUS told last, to be used up.
    known: Vec<lba_status::LbaExtent>,
    /// The unit tells which blocks have space, and the others read as zeros.
    tells_space: bool,
    /// Until it says otherwise.
    knows_write_same: bool,
}

impl DiskEnd {
    fn open(disk: Disk, depth: Depth) -> Result<DiskEnd, Failure> {
        let capacity = disk.capacity()?;
        let block_bytes = capacity.block_length_bytes;
        let writes = WriteStream::new(&disk, block_bytes, Flow::new(depth), Caching::default());
        let tells_space = capacity.details.provisioning_managed && capacity.details.reads_zeros;
        let whole = Span { lba: 0, blocks: capacity.blocks, block_bytes };
        let (reads, known) = (Flow::new(depth), Vec::new());
        Ok(DiskEnd { disk, whole, reads, writes, known, tells_space, knows_write_same: true })
    }

    fn block(&self) -> u64 {
        self.whole.block_bytes.into()
    }
}

impl Endpoint for DiskEnd {
    fn name(&self) -> String {
        self.disk.name.clone()
    }

    fn identity(&self) -> String {
        let facts = &self.disk.facts;
        let world_wide = facts.designations.iter().find(|name| name.is_world_wide());
        world_wide.map_or_else(
            || format!("{} {} {}", facts.inquiry.vendor, facts.inquiry.product, facts.serial),
            |name| name.designator.to_string(),
        )
    }

    fn unit(&self) -> Option<UnitIdentity> {
        Some(UnitIdentity::of(&self.disk.facts))
    }

    fn changed_at(&self) -> Option<String> {
        None
    }

    fn size_bytes(&self) -> u64 {
        self.whole.length_bytes()
    }

    fn block_bytes(&self) -> u32 {
        self.whole.block_bytes
    }

    fn piece_bytes(&self) -> usize {
        self.writes.piece_bytes()
    }

    fn extent(&mut self, at: u64, end: u64) -> Result<Extent, Failure> {
        let rest = Extent { length_bytes: end - at, is_empty: false };
        if !self.tells_space {
            return Ok(rest);
        }
        let lba = at / self.block();
        let covers = |extent: &&lba_status::LbaExtent| extent.lba <= lba && lba < extent.end();
        if self.known.iter().find(covers).is_none() {
            match self.disk.ask_optional(&lba_status::get_lba_status(lba))? {
                Some(extents) => self.known = extents,
                None => {
                    self.tells_space = false;
                    return Ok(rest);
                }
            }
        }
        // The answer begins at the LBA that was asked.
        let Some(extent) = self.known.iter().find(covers) else { return Ok(rest) };
        let extent_end = extent.end().saturating_mul(self.block()).min(end);
        Ok(Extent { length_bytes: extent_end - at, is_empty: extent.status.holds_nothing() })
    }

    fn read(
        &mut self,
        at: u64,
        length_bytes: u64,
        piece_bytes: usize,
        take: Taker<'_>,
    ) -> Result<(), Failure> {
        let block = self.block();
        let span =
            Span { lba: at / block, blocks: length_bytes / block, block_bytes: self.whole.block_bytes };
        let mut stream = ReadStream::new(&self.disk, span, self.reads.clone());
        // What came in other pieces than were asked for.
        let (mut rest_at, mut rest) = (at, Vec::new());
        while let Some((offset_bytes, data)) = stream.next(&mut self.disk)? {
            if rest.is_empty() && data.len() == piece_bytes {
                take(offset_bytes, data)?;
                rest_at = offset_bytes + piece_bytes as u64;
                continue;
            }
            rest.extend_from_slice(&data);
            stream.recycle(data);
            while rest.len() >= piece_bytes {
                let more = rest.split_off(piece_bytes);
                take(rest_at, std::mem::replace(&mut rest, more))?;
                rest_at += piece_bytes as u64;
            }
        }
        if !rest.is_empty() {
            take(rest_at, rest)?;
        }
        self.reads = stream.into_flow();
        Ok(())
    }

    fn write(&mut self, at: u64, data: Vec<u8>) -> Result<(), Failure> {
        let lba = at / self.block();
        self.writes.write(&mut self.disk, lba, data)
    }

    fn empty(&mut self, at: u64, length_bytes: u64) -> Result<(), Failure> {
        if !self.knows_write_same {
            let block = self.block();
            return self.writes.write_zeros(&mut self.disk, at / block, length_bytes / block);
        }
        // Commands one at a time share the port with nothing else.
        self.writes.drain(&mut self.disk)?;
        let limits = self.disk.facts.limits;
        let limit = u32::try_from(limits.write_same_blocks_max).unwrap_or(u32::MAX);
        let blocks_max = if limit == 0 { u32::from(u16::MAX) } else { limit.min(EMPTY_BLOCKS_MAX) };
        let provisioning = self.disk.facts.provisioning;
        let unmaps = provisioning.write_same_16 && provisioning.reads_zeros;
        let same = if unmaps { SameBlock::DataOrUnmap } else { SameBlock::Data };
        let zeros = vec![0; self.whole.block_bytes as usize];
        let (mut lba, end) = (at / self.block(), (at + length_bytes) / self.block());
        while lba < end {
            let blocks = (end - lba).min(blocks_max.into()) as u32;
            let range = BlockRange { lba, blocks, block_length_bytes: self.whole.block_bytes };
            let command = medium::write_same(CdbForm::Sixteen, range, same)
                .map_err(|error| Failure::internal(&error.to_string()))?;
            match self.disk.run(&command, &zeros) {
                Err(failure) if failure.is_unknown_command() => {
                    self.knows_write_same = false;
                    return self.writes.write_zeros(&mut self.disk, lba, end - lba);
                }
                done => drop(done?),
            }
            lba += u64::from(blocks);
        }
        Ok(())
    }

    fn drain(&mut self) -> Result<(), Failure> {
        self.writes.drain(&mut self.disk)
    }

    fn flush(&mut self) -> Result<(), Failure> {
        self.drain()?;
        flush(&mut self.disk)
    }

    fn close(self: Box<Self>) {
        self.disk.close();
    }
}

struct FileEnd {
    file: File,
    path: PathBuf,
    bytes: u64,
    identity: String,
    changed_at: Option<String>,
    /// Nothing has been written to it: it reads as zeros.
    is_new: bool,
}

impl FileEnd {
    fn open(file: File, path: &Path, is_new: bool) -> Result<FileEnd, Failure> {
        let failed = |error: io::Error| Failure::new(format!("cannot look at {}", path.display()), &error);
        let metadata = file.metadata().map_err(failed)?;
        let kind = metadata.file_type();
        if !kind.is_file() && !kind.is_block_device() {
            return Err(Failure::usage(format!("{} is neither a file nor a block device", path.display())));
        }
        // The size of a block device is where its end is.
        let bytes = seek(&file, SeekFrom::End(0)).map_err(|errno| failed(errno.into()))?;
        let identity = format!("file {}:{}", metadata.dev(), metadata.ino());
        // That of a device's node says nothing of its content.
        let changed_at = kind.is_file().then(|| format!("{}.{:09}", metadata.mtime(), metadata.mtime_nsec()));
        Ok(FileEnd { file, path: path.to_owned(), bytes, identity, changed_at, is_new })
    }

    fn failed(&self, what: &str, error: &io::Error) -> Failure {
        Failure::new(format!("cannot {what} {}", self.path.display()), error)
    }
}

impl Endpoint for FileEnd {
    fn name(&self) -> String {
        self.path.display().to_string()
    }

    fn identity(&self) -> String {
        self.identity.clone()
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

    /// Holes as the file system tells them; one that tells none has none.
    fn extent(&mut self, at: u64, end: u64) -> Result<Extent, Failure> {
        let rest = Extent { length_bytes: end - at, is_empty: false };
        match seek(&self.file, SeekFrom::Data(at)) {
            Ok(data) if data > at => Ok(Extent { length_bytes: data.min(end) - at, is_empty: true }),
            Ok(_) => match seek(&self.file, SeekFrom::Hole(at)) {
                Ok(hole) if hole > at => Ok(Extent { length_bytes: hole.min(end) - at, is_empty: false }),
                _ => Ok(rest),
            },
            // Only a hole comes after this.
            Err(Errno::NXIO) => Ok(Extent { is_empty: true, ..rest }),
            Err(_) => Ok(rest),
        }
    }

    fn read(
        &mut self,
        at: u64,
        length_bytes: u64,
        piece_bytes: usize,
        take: Taker<'_>,
    ) -> Result<(), Failure> {
        let end = at + length_bytes;
        let mut at = at;
        while at < end {
            let mut data = vec![0; (end - at).min(piece_bytes as u64) as usize];
            self.file.read_exact_at(&mut data, at).map_err(|error| self.failed("read", &error))?;
            let length = data.len() as u64;
            take(at, data)?;
            at += length;
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

    fn drain(&mut self) -> Result<(), Failure> {
        Ok(())
    }

    fn flush(&mut self) -> Result<(), Failure> {
        self.file.sync_data().map_err(|error| self.failed("flush", &error))
    }

    fn close(self: Box<Self>) {}
}

#[cfg(test)]
mod tests {
    use super::super::super::stream::tests::disk_without;
    use super::*;

    #[test]
    fn holes_are_written_where_the_unit_does_not_know_write_same() {
        const WRITE_SAME_16: u8 = 0x93;
        let (disk, seen) = disk_without(WRITE_SAME_16);
        let mut end = DiskEnd::open(disk, Depth::Commands(4)).unwrap();
        end.empty(0, 1 << 20).unwrap();
        end.empty(4 << 20, 3 << 20).unwrap();
        end.drain().unwrap();
        let seen = seen.lock().unwrap();
        assert_eq!((seen.refused, seen.good), (1, 4), "it is asked once, and then written to");
    }
}
