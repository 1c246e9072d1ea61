//! What a volume does without an [`super::IoContext`]: short reads and writes that cannot wait, for whoever has their bytes.
//!
//! It does nothing that the volume's engine would not do on the submitting thread, and reports nothing: what fails here is
//! submitted, and fails or succeeds there.

use crate::spec::EngineKind;
use crate::volume::{Volume, shielded};

/// A chunk of the memory store, and half of what is written to ext4 at a time: some 12 microseconds (docs/decisions/0045, 0046).
const PIECE_BYTES: usize = 64 << 10;

/// What has become of a write that was tried at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Written {
    /// It is done.
    Done,
    /// The store has it, and an [`Operation::Commit`](crate::Operation::Commit) of its range makes it as stable as is wanted.
    Unflushed,
    /// It is to be submitted. Nothing of it is done, unless the store is memory, of which nothing has to be made stable.
    No,
    /// It is to be submitted; any part of it may be done.
    Partly,
}

impl Volume {
    /// Whether the submitting thread may copy into the page cache: neither has it lately had to wait there, nor does the device hang.
    pub(super) fn copies_inline(&self) -> bool {
        self.pace().inline_allowed() && !self.hangs()
    }

    /// Whether those that wait for the device have had no answer for long.
    pub(crate) fn hangs(&self) -> bool {
        self.durability().waits().are_long()
    }

    /// Whether asking is worth while at all: the store is memory, or its engine uses the page cache without waiting.
    pub fn transfers_at_once(&self) -> bool {
        self.store().in_memory() || self.engine() == EngineKind::Threads
    }

    /// Bytes of a write that are worth a call of [`Self::write_at_once`] of their own, where a write of `length_bytes` would be a copy
    /// on the submitting thread but for what makes it stable. `None` where it would be something else.
    pub fn copied_piece_bytes(&self, length_bytes: usize) -> Option<usize> {
        let is_copied = self.store().in_memory()
            || length_bytes <= super::INLINE_BYTES_MAX
                && self.engine() == EngineKind::Threads
                && self.store().buffers_writes()
                && self.copies_inline();
        is_copied.then_some(PIECE_BYTES)
    }

    /// Reads if that cannot wait, at most [`super::INLINE_BYTES_MAX`]. False: the operation is to be submitted; `buffer` may
    /// hold anything.
    pub fn read_at_once(&self, offset: u64, buffer: &mut [u8]) -> bool {
        if !self.takes_at_once(offset, buffer.len()) {
            return false;
        }
        if self.store().in_memory() {
            return shielded(|| self.store().read_at(offset, buffer)).is_ok();
        }
        self.engine() == EngineKind::Threads
            && self.read_cached(offset, buffer).is_ok_and(|done_bytes| done_bytes == buffer.len())
    }

    /// A short operation on this range, which may be any, is about to be asked for: what it needs of this process's memory comes nearer
    /// meanwhile.
    pub fn expect(&self, offset: u64, length_bytes: u32) {
        self.store().expect(offset, length_bytes.into());
    }

    /// Writes if that is a copy in memory, at most [`super::INLINE_BYTES_MAX`]. Of a write that is to be `stable` the flush may be left.
    pub fn write_at_once(&self, offset: u64, data: &[u8], stable: bool) -> Written {
        if self.read_only() || self.fault().is_some() || !self.takes_at_once(offset, data.len()) {
            return Written::No;
        }
        let write = || shielded(|| self.store().write_at(offset, data)).is_ok();
        if self.store().in_memory() {
            return if write() { Written::Done } else { Written::No };
        }
        if self.engine() != EngineKind::Threads || !self.store().buffers_writes() || !self.copies_inline() {
            return Written::No;
        }
        match (self.pace().watch_copy(write), stable) {
            (false, _) => Written::Partly,
            (true, true) => Written::Unflushed,
            (true, false) => Written::Done,
        }
    }
}
