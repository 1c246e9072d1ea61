//! Long writes to stores that only copy, piece by piece between the other work of a reactor: whoever is beside them would
//! wait for all of the copy otherwise.

use std::collections::VecDeque;
use std::sync::Arc;

use lunette_block::{Done, IoCompletion, Operation, Volume, WriteSource, Written};

use super::Reactor;
use super::commands::{session_of_tag, slot_of_tag};

/// A turn copies so many bytes, or as many as have come in it from all connections, and the rest of a piece: with less, what waits would
/// become more and more.
const TURN_BYTES_MIN: usize = 64 << 10;

/// The writes that are being copied, in the order in which their data was there.
#[derive(Debug, Default)]
pub(super) struct Storing {
    held: VecDeque<Held>,
    /// What this turn has brought, in bytes, whatever it was.
    came_bytes: usize,
}

/// A write whose data is all there. Its task counts as being in a store.
#[derive(Debug)]
struct Held {
    volume: Arc<Volume>,
    tag: u64,
    /// What is left of it, and where in the volume that begins.
    offset: u64,
    source: WriteSource,
    stable: bool,
    /// What is copied in one go.
    piece_bytes: usize,
}

impl Storing {
    /// A new turn of the reactor.
    pub(super) const fn next_turn(&mut self) {
        self.came_bytes = 0;
    }

    /// Notes that so many bytes have come in this turn.
    pub(super) const fn came(&mut self, bytes: usize) {
        self.came_bytes += bytes;
    }

    /// True while nothing waits.
    pub(super) fn is_empty(&self) -> bool {
        self.held.is_empty()
    }

    /// Takes a write to be copied in pieces of `piece_bytes`.
    pub(super) fn push(
        &mut self,
        (volume, tag, piece_bytes): (&Arc<Volume>, u64, usize),
        (offset, source): (u64, WriteSource),
        stable: bool,
    ) {
        let volume = Arc::clone(volume);
        self.held.push_back(Held { volume, tag, offset, source, stable, piece_bytes });
    }
}

/// What became of a piece.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Copied {
    Piece(usize),
    /// It was the last one, with so many bytes, and nothing or a flush is left.
    Last(usize, Written),
    /// The engine has to do what is left.
    No,
}

impl Held {
    /// Copies the next piece.
    fn copy(&mut self) -> Copied {
        // It ends where a piece of the volume does: see the file store.
        let length = self.piece_bytes - (self.offset % self.piece_bytes as u64) as usize;
        let range = &mut self.source.range;
        let piece = range.start..range.end.min(range.start + length);
        let is_last = piece.end == range.end;
        let Some(data) = self.source.buffer.get(piece.clone()) else { return Copied::No };
        match self.volume.write_at_once(self.offset, data, self.stable && is_last) {
            Written::No | Written::Partly => return Copied::No,
            written if is_last => return Copied::Last(piece.len(), written),
            _ => {}
        }
        range.start = piece.end;
        self.offset += piece.len() as u64;
        Copied::Piece(piece.len())
    }

    /// Whoever has aborted it waits for it, and is not to wait for all of it; but what was copied can be read, so it is made stable.
    const fn give_up(&self) -> Copied {
        Copied::Last(0, if self.stable { Written::Unflushed } else { Written::Done })
    }
}

impl Reactor {
    /// Copies as much of the writes that wait as one turn takes.
    pub(super) fn go_on_storing(&mut self) {
        let mut bytes_left = self.storing.came_bytes.max(TURN_BYTES_MIN);
        while bytes_left > 0 {
            let Some(mut held) = self.storing.held.pop_front() else { return };
            let copied = if self.is_aborted(held.tag) { held.give_up() } else { held.copy() };
            let Held { volume, tag, offset, source, stable, .. } = match copied {
                Copied::Piece(bytes) => {
                    bytes_left = bytes_left.saturating_sub(bytes);
                    self.storing.held.push_front(held);
                    continue;
                }
                Copied::Last(..) | Copied::No => held,
            };
            let Copied::Last(bytes, written) = copied else {
                self.io.submit(&volume, tag, Operation::Write { offset, buffer: source, stable });
                continue;
            };
            bytes_left = bytes_left.saturating_sub(bytes);
            if written == Written::Unflushed {
                self.give_back(tag, source);
                self.io.submit(&volume, tag, Operation::Commit { offset, length: bytes as u64 });
                continue;
            }
            let index = session_of_tag(tag);
            let result = Ok(Done::Nothing);
            self.io_finished(index, IoCompletion { tag, result, buffer: source.into_buffer() });
            self.run_session(index);
        }
    }

    fn is_aborted(&self, tag: u64) -> bool {
        let Some(session) = self.sessions.get(session_of_tag(tag)) else { return true };
        let context = session.contexts.get(slot_of_tag(tag)).and_then(Option::as_ref);
        let task = context.and_then(|context| session.core.task(context.id));
        task.is_none_or(|task| task.aborted)
    }

    /// The data of a write is in its store and goes back to its task, if anybody looks at it again.
    fn give_back(&mut self, tag: u64, source: WriteSource) {
        let session = self.sessions.get_mut(session_of_tag(tag));
        let context = session.and_then(|session| session.contexts.get_mut(slot_of_tag(tag))?.as_mut());
        if let Some(context) = context {
            context.data_out = source.into_buffer();
        }
    }
}

#[cfg(test)]
mod tests {
    use lunette_block::{BufferPool, StoreSpec, VolumeSpec, WriteBuffer};

    use super::*;

    #[test]
    fn what_was_copied_of_a_write_that_is_given_up_is_made_stable() {
        let volume = Volume::open(&VolumeSpec::new("storing", StoreSpec::Memory { size_bytes: 1 << 20 }));
        let volume = Arc::new(volume.expect("a volume"));
        for (stable, left) in [(true, Written::Unflushed), (false, Written::Done)] {
            let mut storing = Storing::default();
            let buffer = WriteBuffer::Owned(BufferPool::new(1 << 20).allocate(8192).expect("memory"));
            storing.push((&volume, 7, 4096), (0, WriteSource { buffer, range: 0..8192 }), stable);
            let mut held = storing.held.pop_front().expect("what was pushed");
            assert_eq!(held.copy(), Copied::Piece(4096));
            assert_eq!(held.give_up(), Copied::Last(0, left));
        }
    }
}
