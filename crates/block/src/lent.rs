//! Reads that need no copy: the store has the data in this process's memory, and lends it for one write to a socket.
//!
//! A range is not frozen while nothing of it is lent. A write to the same blocks that begins before the socket has taken all of it may
//! show in what the initiator receives, as SAM allows for tasks that run at the same time.

use std::sync::Arc;

use crate::store::memory::LockedPiece;
use crate::volume::Volume;

/// A range of a volume whose store lends its memory.
#[derive(Debug)]
pub struct LentRange {
    volume: Arc<Volume>,
    offset: u64,
    length: u32,
}

impl LentRange {
    pub(crate) fn new(volume: &Arc<Volume>, offset: u64, length: u32) -> Self {
        Self { volume: Arc::clone(volume), offset, length }
    }

    /// The bytes from `start` on, counted from the range's first and before `end`, as far as they lie together. `None` where there are
    /// none, and, unless it `waits`, while somebody changes them, or is about to.
    ///
    /// Writers wait until all that was lent is given back, so it is to be had for what does not block. Who has something that was lent
    /// must not wait for more: two who have what the other one wants, with a writer behind each, would wait for ever.
    pub fn lend(&self, start: u32, end: u32, waits: bool) -> Option<Lent<'_>> {
        let length = end.min(self.length).checked_sub(start)?;
        self.volume.store().lend(self.offset + u64::from(start), length.into(), waits)
    }
}

/// Bytes of a store where they lie. Nobody changes them until this is dropped.
#[derive(Debug)]
pub struct Lent<'a> {
    piece: LockedPiece<'a>,
}

impl<'a> Lent<'a> {
    pub(crate) fn of(piece: LockedPiece<'a>) -> Self {
        Self { piece }
    }

    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        self.piece.bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fault::Faults;
    use crate::{EngineKind, StoreSpec, VolumeSpec};

    const CHUNK: u32 = 64 << 10;

    fn spec() -> VolumeSpec {
        VolumeSpec {
            engine: EngineKind::Threads,
            ..VolumeSpec::new("lent", StoreSpec::Memory { size_bytes: 1 << 20 })
        }
    }

    #[test]
    fn what_is_lent_is_what_was_written_piece_by_piece() {
        let volume = Volume::open(&spec()).unwrap();
        volume.store().write_at(CHUNK.into(), &[7; CHUNK as usize]).unwrap();
        let range = volume.lendable(100, 3 * CHUNK).unwrap();
        let lend = |start, end| range.lend(start, end, true).map(|lent| lent.bytes().to_vec());
        assert_eq!(lend(0, 3 * CHUNK), Some(vec![0; CHUNK as usize - 100]), "never written");
        assert_eq!(lend(CHUNK - 100, 3 * CHUNK), Some(vec![7; CHUNK as usize]));
        assert_eq!(lend(CHUNK, CHUNK + 9), Some(vec![7; 9]));
        assert_eq!(
            lend(3 * CHUNK - 1, u32::MAX).map(|bytes| bytes.len()),
            Some(1),
            "no more than was asked for"
        );
        assert_eq!(lend(3 * CHUNK, u32::MAX), None);
        assert_eq!(lend(9, 8), None);
    }

    #[test]
    fn only_open_memory_within_its_bounds_that_nobody_looks_at_is_lent() {
        let volume = Volume::open(&spec()).unwrap();
        assert!(volume.lends() && volume.lendable((1 << 20) - 512, 512).is_some());
        assert!(volume.lendable((1 << 20) - 512, 513).is_none());
        assert!(volume.lendable(u64::MAX, 1).is_none());
        volume.close().unwrap();
        assert!(volume.lendable(0, 512).is_none());
        let (watched, _faults) = Faults::open(&spec()).unwrap();
        assert!(!watched.lends() && watched.lendable(0, 512).is_none());
        let protected = VolumeSpec { protection: Some(1), ..spec() };
        assert!(!Volume::open(&protected).unwrap().lends());
        let null = VolumeSpec { store: StoreSpec::Null { size_bytes: 1 << 20 }, ..spec() };
        assert!(Volume::open(&null).unwrap().lendable(0, 512).is_none());
    }

    /// Whatever changes the store waits; and whoever wants to have some lent has to know that, so as not to wait for it in turn.
    #[test]
    fn what_is_lent_stays_as_it_is_until_it_is_given_back() {
        type Change = fn(&Volume);
        let changes: [(Change, u8); 3] = [
            (|volume| volume.store().write_at(0, &[9; CHUNK as usize]).unwrap(), 9),
            (|volume| volume.store().unmap(0, CHUNK.into()).unwrap(), 0),
            (|volume| volume.store().zero(0, 512, false).unwrap(), 0),
        ];
        for (change, byte) in changes {
            let volume = Volume::open(&spec()).unwrap();
            volume.store().write_at(0, &[7; CHUNK as usize]).unwrap();
            let range = volume.lendable(0, CHUNK).unwrap();
            std::thread::scope(|scope| {
                let lent = range.lend(0, CHUNK, true).unwrap();
                let changing = scope.spawn(|| change(&volume));
                while range.lend(0, CHUNK, false).is_some() {
                    std::thread::yield_now();
                }
                assert!(lent.bytes() == [7; CHUNK as usize]);
                assert!(!changing.is_finished());
                drop(lent);
                changing.join().unwrap();
                assert_eq!(range.lend(0, 512, false).unwrap().bytes(), [byte; 512]);
            });
        }
    }
}
