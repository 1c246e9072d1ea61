//! A copy under way: one side reads, the other writes, and neither waits for a flush. Only a range of zeros
//! that is longer than all before it goes alone ([`super::disk_end`]), behind everything that is under way.
//!
//! Every few seconds the destination is asked to make stable what was written until then, while the copy goes on. What is stable
//! is noted in the record. If the destination was reset on the way, it may have lost what it had in its cache: then everything
//! behind the last stable place is copied again.

use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use indicatif::ProgressBar;

use super::endpoint::Endpoint;
use super::pieces::{Piece, Pieces, WAITING_MAX};
use super::record::Record;
use crate::banner::size;
use crate::failure::{Failure, say};

/// How long after a flush was begun the next one is, if that is through: what a copy that is broken off has to do again at most,
/// and seldom enough to cost the target nothing.
const FLUSH_INTERVAL: Duration = Duration::from_secs(5);
/// The next flush comes earlier when so much was written, in bytes: a cache that is flushed late is flushed slowly.
const FLUSH_BYTES_MAX: u64 = 1 << 30;

/// How often in a row something is copied again without that more of it becomes stable.
const REPEATS_MAX: u32 = 4;

/// How far a copy is.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Progress {
    /// The place before which everything was handed to the destination, or is stable.
    pub(super) at_bytes: u64,
    /// What of it held nothing.
    pub(super) empty_bytes: u64,
    /// What of it was transferred.
    pub(super) moved_bytes: u64,
}

/// See the module's documentation.
pub(super) struct Job<'a> {
    pub(super) pieces: Pieces,
    pub(super) record: Option<&'a mut Record>,
    pub(super) bar: &'a ProgressBar,
    pub(super) stable: Progress,
}

impl Job<'_> {
    /// Copies everything from what is stable to `end_bytes`, and has it stable.
    ///
    /// # Errors
    /// What one of the ends failed with.
    pub(super) fn run(
        &mut self,
        source: &mut dyn Endpoint,
        destination: &mut dyn Endpoint,
        end_bytes: u64,
    ) -> Result<(), Failure> {
        let mut repeats = 0;
        loop {
            let before = self.stable.at_bytes;
            match self.pass(source, destination, end_bytes) {
                Err(failure) if failure.is_unflushed() => {
                    repeats = if self.stable.at_bytes > before { 1 } else { repeats + 1 };
                    if repeats > REPEATS_MAX {
                        return Err(failure);
                    }
                    let left = size(end_bytes - self.stable.at_bytes);
                    say(&format!("lunette: {failure}; copying the last {left} again"));
                    destination.settle()?;
                    self.bar.set_position(self.stable.at_bytes);
                }
                ended => return ended,
            }
        }
    }

    /// Copies once.
    fn pass(
        &mut self,
        source: &mut dyn Endpoint,
        destination: &mut dyn Endpoint,
        end_bytes: u64,
    ) -> Result<(), Failure> {
        let (sender, receiver) = sync_channel(WAITING_MAX);
        let (pieces, begin_bytes) = (self.pieces, self.stable.at_bytes);
        thread::scope(|scope| {
            let reader = scope.spawn(move || {
                let gone = |_| Failure::internal("the writing side has ended");
                source.read(begin_bytes..end_bytes, pieces, &mut |piece| sender.send(piece).map_err(gone))
            });
            let written = self.write(destination, &receiver);
            drop(receiver);
            let read = reader.join().unwrap_or_else(|_| Err(Failure::internal("the reading side failed")));
            match (written, read) {
                // What is to be copied again cannot be read.
                (Err(written), Err(read)) if written.is_unflushed() && !read.is_internal() => Err(read),
                // A reader whose pieces nobody takes says so, too: the reason is with the writer.
                (written, read) => written.and(read),
            }
        })
    }

    fn write(&mut self, destination: &mut dyn Endpoint, pieces: &Receiver<Piece>) -> Result<(), Failure> {
        let mut here = self.stable;
        let mut flush = (here, Instant::now());
        loop {
            let piece = match pieces.recv_timeout(destination.attend()?) {
                Ok(piece) => piece,
                Err(RecvTimeoutError::Timeout) => continue,
                Err(RecvTimeoutError::Disconnected) => break,
            };
            match piece {
                Piece::Data { offset_bytes, data } => {
                    let length = data.len() as u64;
                    destination.write(offset_bytes, data)?;
                    here.at_bytes = offset_bytes + length;
                    here.moved_bytes += length;
                }
                Piece::Empty { offset_bytes, length_bytes } => {
                    destination.empty(offset_bytes, length_bytes)?;
                    here.at_bytes = offset_bytes + length_bytes;
                    here.empty_bytes += length_bytes;
                }
            }
            self.bar.set_position(here.at_bytes);
            if !destination.has_flushed(false)? {
                continue;
            }
            self.note(flush.0)?;
            let (begun, at) = flush;
            if at.elapsed() > FLUSH_INTERVAL || here.at_bytes - begun.at_bytes > FLUSH_BYTES_MAX {
                flush = (here, Instant::now());
                destination.begin_flush()?;
            }
        }
        destination.has_flushed(true)?;
        destination.begin_flush()?;
        destination.has_flushed(true)?;
        self.note(here)
    }

    /// Everything up to here is stable.
    fn note(&mut self, stable: Progress) -> Result<(), Failure> {
        if stable.at_bytes == self.stable.at_bytes {
            return Ok(());
        }
        self.stable = stable;
        self.record.as_mut().map_or(Ok(()), |record| record.note(stable.at_bytes))
    }
}
