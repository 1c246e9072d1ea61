//! Long writes to stores that only copy, piece by piece between the other work of a reactor: whoever is beside them would
//! wait for all of the copy otherwise.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use lunette_block::{Buffer, Done, IoCompletion, Operation, Volume, WriteSource};

use super::Reactor;
use super::commands::session_of_tag;

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
    range: Range<usize>,
    buffer: Buffer,
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

    /// Takes a write, whose `range` lies in the buffer, to be copied in pieces of `piece_bytes`.
    pub(super) fn push(
        &mut self,
        (volume, tag, piece_bytes): (&Arc<Volume>, u64, usize),
        (offset, buffer, range): (u64, Buffer, Range<usize>),
        stable: bool,
    ) {
        let volume = Arc::clone(volume);
        self.held.push_back(Held { volume, tag, offset, range, buffer, stable, piece_bytes });
    }
}

impl Held {
    /// Copies the next piece; its length in bytes. `None` where the engine has to do what is left.
    fn copy(&mut self) -> Option<usize> {
        // It ends where a piece of the volume does: see the file store.
        let length = self.piece_bytes - (self.offset % self.piece_bytes as u64) as usize;
        let piece = self.range.start..self.range.end.min(self.range.start + length);
        let is_last = piece.end == self.range.end;
        let data = self.buffer.get(piece.clone())?;
        if !self.volume.write_at_once(self.offset, data, self.stable && is_last) {
            return None;
        }
        self.range.start = piece.end;
        self.offset += piece.len() as u64;
        Some(piece.len())
    }
}

impl Reactor {
    /// Copies as much of the writes that wait as one turn takes.
    pub(super) fn go_on_storing(&mut self) {
        let mut bytes_left = self.storing.came_bytes.max(TURN_BYTES_MIN);
        while bytes_left > 0 {
            let Some(mut held) = self.storing.held.pop_front() else { return };
            let copied = held.copy();
            bytes_left = bytes_left.saturating_sub(copied.unwrap_or(0));
            match copied {
                Some(_) if !held.range.is_empty() => self.storing.held.push_front(held),
                Some(_) => {
                    let index = session_of_tag(held.tag);
                    let result = Ok(Done::Nothing);
                    self.io_finished(
                        index,
                        IoCompletion { tag: held.tag, result, buffer: Some(held.buffer) },
                    );
                    self.run_session(index);
                }
                None => {
                    let Held { volume, tag, offset, range, buffer, stable, .. } = held;
                    let buffer = WriteSource { buffer: buffer.into(), range };
                    self.io.submit(&volume, tag, Operation::Write { offset, buffer, stable });
                }
            }
        }
    }
}
