//! The null store: for measuring what is above it. It keeps nothing.

use std::io;

use super::{Allocation, Extent, Features, Store};
use crate::size;

/// Reads zeroes and drops what is written.
#[derive(Debug)]
pub(crate) struct NullStore {
    size_bytes: u64,
}

impl NullStore {
    pub(crate) fn new(size_bytes: u64) -> Self {
        Self { size_bytes }
    }
}

impl Store for NullStore {
    fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    fn features(&self) -> Features {
        Features {
            unmap: true,
            write_zeroes: true,
            extents: true,
            reserves: false,
            unmap_granularity_bytes: 4096,
            physical_block_bytes: 4096,
            atomic_writes: None,
            rotational: Some(false),
        }
    }

    fn describe(&self) -> String {
        format!("null, {} (reads zeroes, drops every write)", size::text(self.size_bytes))
    }

    fn in_memory(&self) -> bool {
        true
    }

    fn buffers_writes(&self) -> bool {
        true
    }

    fn read_at(&self, _offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        buffer.fill(0);
        Ok(())
    }

    fn read_cached(&self, _offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        buffer.fill(0);
        Ok(buffer.len())
    }

    fn write_at(&self, _offset: u64, _data: &[u8]) -> io::Result<()> {
        Ok(())
    }

    fn flush(&self) -> io::Result<()> {
        Ok(())
    }

    fn zero(&self, _offset: u64, _length: u64, _unmap: bool) -> io::Result<()> {
        Ok(())
    }

    fn unmap(&self, _offset: u64, _length: u64) -> io::Result<()> {
        Ok(())
    }

    fn prefetch(&self, _offset: u64, _length: u64) -> io::Result<()> {
        Ok(())
    }

    fn extents(&self, offset: u64, length: u64) -> io::Result<Vec<Extent>> {
        Ok(vec![Extent { offset, length, allocation: Allocation::Hole }])
    }
}
