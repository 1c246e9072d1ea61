//! A store that keeps protection information with its blocks (docs/decisions/0019). To those above each block is its
//! data with 8 bytes behind; below, the image has the data alone and [`area::Area`] the rest.
//!
//! What the 8 bytes mean is not known here. What is promised: a block is read with the information that it was written
//! with, whatever crash came between. So every change is stable when it is done.

mod area;
mod barrier;
mod entry;
mod locks;

use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::{Allocation, Astray, Extent, Features, Space, Store, name, push_extent};
use crate::error::{OpenError, StoreFailure};
use crate::spec::{EngineKind, VolumeSpec};
use area::{Area, FirstPage, Header};
use barrier::Barrier;
pub(crate) use entry::INFORMATION_BYTES;
use entry::{ENTRY_BYTES, Entry, Information};
use locks::RangeLocks;

/// The data that is moved at once. A multiple of every block length.
const CHUNK_BYTES: usize = 256 << 10;

/// At most so much data is cleared in memory while its blocks are locked: some 700 microseconds (docs/decisions/0019).
const CLEARED_BYTES_MAX: u64 = 8 << 20;

/// A store of data with the information beside it.
#[derive(Debug)]
pub(crate) struct ProtectedStore {
    data: Arc<dyn Store>,
    area: Area,
    /// The path of the area's file, where that led to it when it was opened.
    area_path: Option<PathBuf>,
    block_bytes: usize,
    /// As many blocks as the data was last seen to have.
    blocks: AtomicU64,
    locks: RangeLocks,
    data_barrier: Barrier,
    area_barrier: Barrier,
}

/// Refuses what protection information cannot be had with.
pub(crate) fn check(spec: &VolumeSpec, path: &Path) -> Result<(), OpenError> {
    match spec.engine {
        EngineKind::Direct | EngineKind::Uring if spec.protection.is_some() => {
            let why = "protection information is kept through it".to_owned();
            Err(OpenError::NoDirect { path: path.to_owned(), why })
        }
        _ => Ok(()),
    }
}

/// Finds, or makes for an image that has nothing yet, what belongs to an image.
pub(crate) fn for_file(
    data: Arc<dyn Store>,
    image: &Path,
    is_new: bool,
    spec: &VolumeSpec,
) -> Result<Arc<dyn Store>, OpenError> {
    let wanted = spec.protection.map(|kind| Header { kind, block_length_bytes: spec.block_length_bytes });
    let found = if is_new && wanted.is_some() { None } else { area::first_page_of(image)? };
    let blocks = data.size_bytes() / u64::from(spec.block_length_bytes);
    let area = match (wanted, found) {
        (None, None) => return Ok(data),
        (Some(wanted), Some(found)) if wanted == found.header => {
            Area::open(image, found, blocks, spec.read_only)?
        }
        (Some(wanted), None) if !spec.read_only && (is_new || is_blank(&*data)) => {
            Area::create(image, wanted, blocks)?
        }
        (Some(_), None) => return Err(OpenError::NotProtected { path: image.to_owned() }),
        (_, Some(FirstPage { header: Header { kind, block_length_bytes }, .. })) => {
            let (path, beside) = (image.to_owned(), area::path_of(image));
            return Err(OpenError::Protected { path, beside, kind, block_length_bytes });
        }
    };
    let path = area::path_of(image);
    let area_path = area.file().is_some_and(|fd| name::leads_to(fd, &path)).then_some(path);
    Ok(Arc::new(ProtectedStore { area_path, ..ProtectedStore::new(data, area, spec) }))
}

/// Memory with the information in memory.
pub(crate) fn for_memory(data: Arc<dyn Store>, spec: &VolumeSpec) -> Result<Arc<dyn Store>, OpenError> {
    if spec.protection.is_none() {
        return Ok(data);
    }
    let area = Area::memory(data.size_bytes() / u64::from(spec.block_length_bytes), spec.pages())?;
    Ok(Arc::new(ProtectedStore::new(data, area, spec)))
}

/// Nothing was ever written, as far as the file system can tell.
fn is_blank(data: &dyn Store) -> bool {
    let mut at = 0;
    while at < data.size_bytes() {
        let Ok(extents) = data.extents(at, data.size_bytes() - at) else { return false };
        if extents.iter().any(|extent| extent.allocation == Allocation::Data) {
            return false;
        }
        match extents.last() {
            Some(last) if last.length > 0 => at = last.offset + last.length,
            _ => return false,
        }
    }
    true
}

impl ProtectedStore {
    fn new(data: Arc<dyn Store>, area: Area, spec: &VolumeSpec) -> Self {
        let block_bytes = spec.block_length_bytes as usize;
        Self {
            blocks: AtomicU64::new(data.size_bytes() / block_bytes as u64),
            data,
            area,
            area_path: None,
            block_bytes,
            locks: RangeLocks::new(),
            data_barrier: Barrier::default(),
            area_barrier: Barrier::default(),
        }
    }

    /// The length of a block as those above see it.
    fn stored_bytes(&self) -> usize {
        self.block_bytes + INFORMATION_BYTES
    }

    /// The blocks of a range as those above see it. A part of a block cannot be changed or checked.
    fn blocks_of(&self, offset: u64, length: u64) -> io::Result<Range<u64>> {
        let stored = self.stored_bytes() as u64;
        if !offset.is_multiple_of(stored) || !length.is_multiple_of(stored) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        Ok(offset / stored..(offset + length) / stored)
    }

    /// Where the data of a block begins.
    fn data_at(&self, block: u64) -> u64 {
        block * self.block_bytes as u64
    }

    /// The range of the data of some blocks: offset and length.
    fn data_of(&self, blocks: &Range<u64>) -> (u64, u64) {
        (self.data_at(blocks.start), self.data_at(blocks.end - blocks.start))
    }

    fn entry_bytes(&self, blocks: &Range<u64>) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; (blocks.end - blocks.start) as usize * ENTRY_BYTES];
        self.area.read(blocks.start, &mut bytes)?;
        Ok(bytes)
    }

    fn write_entries(&self, first: u64, entries: impl Iterator<Item = Entry>) -> io::Result<()> {
        let bytes: Vec<u8> = entries.flat_map(Entry::to_bytes).collect();
        self.area.write(first, &bytes)
    }

    /// What blocks that are about to be written have. Where a crash or a failure has left that open the data is looked
    /// at, because an entry has room for one write, and written and flushed as it was seen: it may have been in the page
    /// cache alone. A damaged entry is mended by the write; before that its block is right with nothing.
    fn information(&self, blocks: &Range<u64>) -> io::Result<Vec<Information>> {
        const OF_NOTHING: Information = [0; INFORMATION_BYTES];
        let bytes = self.entry_bytes(blocks)?;
        let mut data = vec![0; self.block_bytes];
        let mut was_open = false;
        let of_block = |(bytes, block)| match Entry::from_bytes(bytes) {
            Ok(Entry::Settled(information)) => Ok(information),
            Ok(entry) => {
                self.data.read_at(self.data_at(block), &mut data)?;
                self.data.write_at(self.data_at(block), &data)?;
                was_open = true;
                Ok(entry.of_data(&data))
            }
            Err(_) => Ok(OF_NOTHING),
        };
        let of_blocks = bytes.as_chunks::<ENTRY_BYTES>().0.iter().zip(blocks.start..).map(of_block);
        let information = of_blocks.collect::<io::Result<_>>()?;
        if was_open {
            self.flush_data()?;
        }
        Ok(information)
    }

    /// Blocks of a buffer of those above: data and information.
    fn parts<'a>(&self, buffer: &'a [u8]) -> impl Iterator<Item = (&'a [u8], Information)> {
        buffer.chunks_exact(self.stored_bytes()).filter_map(|block| {
            let (data, information) = block.split_last_chunk()?;
            Some((data, *information))
        })
    }

    /// Writes entries that are right before and after the data is there, then the data, then final entries.
    fn write_locked(&self, blocks: &Range<u64>, buffer: &[u8]) -> io::Result<()> {
        if !self.in_memory() {
            let before = self.information(blocks)?.into_iter().zip(self.parts(buffer));
            let entries = before.map(|(old, (data, new))| Entry::being_written(old, new, data));
            self.write_entries(blocks.start, entries)?;
            self.flush_area()?;
        }
        let chunk_blocks = CHUNK_BYTES / self.block_bytes;
        let mut plain = Vec::with_capacity(CHUNK_BYTES.min(buffer.len()));
        let chunks = buffer.chunks(chunk_blocks * self.stored_bytes());
        for (chunk, first) in chunks.zip((blocks.start..).step_by(chunk_blocks)) {
            plain.clear();
            self.parts(chunk).for_each(|(data, _)| plain.extend_from_slice(data));
            self.data.write_at(self.data_at(first), &plain)?;
        }
        if !self.in_memory() {
            self.flush_data()?;
        }
        self.write_entries(blocks.start, self.parts(buffer).map(|(_, new)| Entry::Settled(new)))
    }

    fn read_locked(
        &self,
        blocks: &Range<u64>,
        buffer: &mut [u8],
        read_data: impl Fn(u64, &mut [u8]) -> io::Result<bool>,
        read_entries: impl Fn(u64, &mut [u8]) -> io::Result<bool>,
    ) -> io::Result<bool> {
        let chunk_blocks = CHUNK_BYTES / self.block_bytes;
        let stored = self.stored_bytes();
        let mut plain = vec![0; CHUNK_BYTES.min(buffer.len() / stored * self.block_bytes)];
        let chunks = buffer.chunks_mut(chunk_blocks * stored);
        for (chunk, first) in chunks.zip((blocks.start..).step_by(chunk_blocks)) {
            let count = chunk.len() / stored;
            let plain = &mut plain[..count * self.block_bytes];
            let mut entries = vec![0; count * ENTRY_BYTES];
            if !read_data(self.data_at(first), plain)? || !read_entries(first, &mut entries)? {
                return Ok(false);
            }
            let parts = plain.chunks_exact(self.block_bytes).zip(entries.as_chunks::<ENTRY_BYTES>().0);
            for ((place, (data, entry)), block) in chunk.chunks_exact_mut(stored).zip(parts).zip(first..) {
                let damaged = |source| StoreFailure::At { offset: block * stored as u64, source };
                let entry = Entry::from_bytes(entry).map_err(damaged)?;
                place[..data.len()].copy_from_slice(data);
                place[data.len()..].copy_from_slice(&entry.of_data(data));
            }
        }
        Ok(true)
    }

    /// Takes information and data of blocks away, in this order: what a crash leaves in between is not checked.
    fn clear(&self, blocks: &Range<u64>, clear_data: impl Fn(u64, u64) -> io::Result<()>) -> io::Result<()> {
        if self.in_memory() {
            return self.clear_in_pieces(blocks, clear_data);
        }
        let _taken = self.locks.take(blocks);
        self.check_barriers().map_err(StoreFailure::Flush)?;
        // Else blocks that are not cut off keep their data and lose what it is checked by.
        self.data.check_end(blocks.end * self.block_bytes as u64)?;
        self.area.clear(blocks)?;
        self.flush_area()?;
        let (offset, length) = self.data_of(blocks);
        clear_data(offset, length)?;
        self.flush_data()
    }

    /// The same in memory, where those who read and write wait for the locks on threads that have others to serve. Of
    /// each block data and information go together all the same.
    fn clear_in_pieces(
        &self,
        blocks: &Range<u64>,
        clear_data: impl Fn(u64, u64) -> io::Result<()>,
    ) -> io::Result<()> {
        let blocks_max = CLEARED_BYTES_MAX / self.block_bytes as u64;
        let mut first = blocks.start;
        while first < blocks.end {
            // Memory is given back if all that lies in one piece of it is cleared together; entries of long blocks are not worth it.
            let end = if Area::PIECE_BLOCKS <= blocks_max {
                Area::next_piece(first)
            } else {
                (first / blocks_max + 1) * blocks_max
            };
            let piece = first..end.min(blocks.end);
            let _taken = self.locks.take(&piece);
            self.area.clear(&piece)?;
            let (offset, length) = self.data_of(&piece);
            clear_data(offset, length)?;
            first = piece.end;
        }
        Ok(())
    }

    fn flush_area(&self) -> io::Result<()> {
        Ok(self.area_barrier.pass(|| self.area.flush()).map_err(StoreFailure::Flush)?)
    }

    fn flush_data(&self) -> io::Result<()> {
        Ok(self.data_barrier.pass(|| self.data.flush()).map_err(StoreFailure::Flush)?)
    }

    fn check_barriers(&self) -> io::Result<()> {
        self.area_barrier.check().and_then(|()| self.data_barrier.check())
    }
}

impl Store for ProtectedStore {
    fn size_bytes(&self) -> u64 {
        self.data.size_bytes() / self.block_bytes as u64 * self.stored_bytes() as u64
    }

    fn present_size_bytes(&self) -> io::Result<u64> {
        let blocks = self.data.present_size_bytes()? / self.block_bytes as u64;
        if blocks != self.blocks.load(Ordering::Relaxed) {
            self.area.resize(blocks)?;
            self.blocks.store(blocks, Ordering::Relaxed);
        }
        Ok(blocks.saturating_mul(self.stored_bytes() as u64))
    }

    fn space(&self) -> io::Result<Option<Space>> {
        self.data.space()
    }

    fn astray(&self) -> Option<Astray> {
        let of_area = || name::astray(self.area.file()?, self.area_path.as_deref()?);
        self.data.astray().or_else(of_area)
    }

    /// Of the data: granularities count its bytes. Several blocks are not written all or none, and the file with the
    /// information is sparse, whatever space the data has.
    fn features(&self) -> Features {
        Features { atomic_writes: None, reserves: false, ..self.data.features() }
    }

    fn describe(&self) -> String {
        format!("{} with protection information", self.data.describe())
    }

    fn in_memory(&self) -> bool {
        self.data.in_memory()
    }

    fn clears_memory(&self) -> bool {
        self.data.clears_memory()
    }

    /// Where there is a device, every write waits for it, twice.
    fn buffers_writes(&self) -> bool {
        self.in_memory()
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        let blocks = self.blocks_of(offset, buffer.len() as u64)?;
        let _shared = self.locks.share(&blocks);
        let data = |offset, data: &mut [u8]| self.data.read_at(offset, data).map(|()| true);
        let entries = |first, entries: &mut [u8]| self.area.read(first, entries).map(|()| true);
        self.read_locked(&blocks, buffer, data, entries).map(drop)
    }

    /// All or nothing.
    fn read_cached(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        let blocks = self.blocks_of(offset, buffer.len() as u64)?;
        let Some(_shared) = self.locks.try_share(&blocks) else { return Ok(0) };
        let data = |offset, data: &mut [u8]| Ok(self.data.read_cached(offset, data)? == data.len());
        let entries = |first, entries: &mut [u8]| Ok(self.area.read_cached(first, entries));
        let is_complete = self.read_locked(&blocks, buffer, data, entries)?;
        Ok(if is_complete { buffer.len() } else { 0 })
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let blocks = self.blocks_of(offset, data.len() as u64)?;
        let _taken = self.locks.take(&blocks);
        self.check_barriers().map_err(StoreFailure::Flush)?;
        self.write_locked(&blocks, data)
    }

    fn end_bytes(&self) -> io::Result<u64> {
        Ok((self.data.end_bytes()? / self.block_bytes as u64).saturating_mul(self.stored_bytes() as u64))
    }

    /// All is stable already, unless a flush has failed.
    fn flush(&self) -> io::Result<()> {
        self.check_barriers()
    }

    fn zero(&self, offset: u64, length: u64, unmap: bool) -> io::Result<()> {
        let blocks = self.blocks_of(offset, length)?;
        self.clear(&blocks, |offset, length| self.data.zero(offset, length, unmap))
    }

    fn unmap(&self, offset: u64, length: u64) -> io::Result<()> {
        if !self.features().unmap {
            return Err(io::ErrorKind::Unsupported.into());
        }
        let blocks = self.blocks_of(offset, length)?;
        self.clear(&blocks, |offset, length| self.data.unmap(offset, length))
    }

    fn prefetch(&self, offset: u64, length: u64) -> io::Result<()> {
        let (offset, length) = self.data_of(&self.blocks_of(offset, length)?);
        self.data.prefetch(offset, length)
    }

    /// A block has space where any byte of its data has.
    fn extents(&self, offset: u64, length: u64) -> io::Result<Vec<Extent>> {
        let blocks = self.blocks_of(offset, length)?;
        let (block, stored) = (self.block_bytes as u64, self.stored_bytes() as u64);
        let (data_offset, data_length) = self.data_of(&blocks);
        let mut extents = Vec::new();
        let mut at = blocks.start;
        for extent in self.data.extents(data_offset, data_length)? {
            let end = extent.offset + extent.length;
            let is_hole = extent.allocation == Allocation::Hole;
            let end = if is_hole { end / block } else { end.div_ceil(block) };
            let length = end.saturating_sub(at) * stored;
            let allocation = if is_hole { Allocation::Hole } else { Allocation::Data };
            push_extent(&mut extents, Extent { offset: at * stored, length, allocation });
            at = at.max(end);
        }
        Ok(extents)
    }

    fn release(&self) {
        self.data.release();
    }
}

#[cfg(test)]
mod tests;
