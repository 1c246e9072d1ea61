//! One chunk of a disk in memory: what was written to it, and who may look at it.

use std::io;
use std::ops::Range;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard, TryLockError};

use rustix::io::Errno;

use super::CHUNK_BYTES;
use super::chunks::Areas;
use crate::area::Slot;

/// A chunk's memory, once something was written to it.
#[derive(Debug, Default)]
pub(super) struct Chunk {
    slot: RwLock<Option<Slot>>,
    /// Where its memory begins, or lately did; null where it has none.
    start: AtomicPtr<u8>,
}

impl Chunk {
    // Nothing is half changed between two statements that could panic, so a poisoned lock is still good.
    pub(super) fn read(&self) -> RwLockReadGuard<'_, Option<Slot>> {
        self.slot.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// The same if it need not be waited for.
    pub(super) fn try_read(&self) -> Option<RwLockReadGuard<'_, Option<Slot>>> {
        match self.slot.try_read() {
            Ok(slot) => Some(slot),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Where its memory begins, as a hint for who does not wait for anybody: it may have gone.
    pub(super) fn hint(&self) -> Option<*const u8> {
        let start = self.start.load(Ordering::Relaxed);
        (!start.is_null()).then_some(start.cast_const())
    }

    /// To be written to. Zeroes are taken where it has no memory.
    #[inline]
    pub(super) fn write(&self, areas: &Areas) -> io::Result<RwLockWriteGuard<'_, Option<Slot>>> {
        let mut slot = self.slot.write().unwrap_or_else(PoisonError::into_inner);
        if slot.is_none() {
            let memory = areas.take().ok_or(Errno::NOSPC)?;
            self.start.store(memory.bytes().as_ptr().cast_mut(), Ordering::Relaxed);
            *slot = Some(memory);
        }
        Ok(slot)
    }

    /// What is to be given back once a part of it is to read as zeroes: its memory, if that part is all of it.
    pub(super) fn clear(&self, part: Range<usize>) -> Option<Slot> {
        let mut slot = self.slot.write().unwrap_or_else(PoisonError::into_inner);
        if part.len() == CHUNK_BYTES {
            self.start.store(ptr::null_mut(), Ordering::Relaxed);
            return slot.take();
        }
        if let Some(memory) = slot.as_mut() {
            memory.bytes_mut()[part].fill(0);
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::area::Pages;

    #[test]
    fn its_hint_is_where_its_memory_is_while_it_has_any() {
        let areas = Areas::new(Pages::Small);
        let chunk = Chunk::default();
        assert_eq!(chunk.hint(), None);
        let start = chunk.write(&areas).unwrap().as_ref().map(|slot| slot.bytes().as_ptr());
        assert!(start.is_some() && chunk.hint() == start);
        assert!(chunk.clear(0..512).is_none() && chunk.hint() == start);
        let slot = chunk.clear(0..CHUNK_BYTES);
        assert_eq!((slot.is_some(), chunk.hint()), (true, None));
        areas.give_back(slot.into_iter().collect());
    }
}
