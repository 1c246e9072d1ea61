//! The `threads` engine: what the page cache can do at once is done on the submitting thread, the rest by a pool.
//!
//! A read asks the page cache first (`RWF_NOWAIT`) and goes to the pool for what is missing. A buffered write is a
//! copy into the page cache and done inline, unless the kernel makes writers wait (see [`Pace`]). The durable part
//! of a write is waited for by the volume's flusher, never by the submitting thread.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::INLINE_BYTES_MAX;
use super::operation::{Done, IoCompletion, Operation};
use super::pool::{self, Job};
use super::queue::CompletionQueue;
use super::sync;
use crate::flush::Waiter;
use crate::volume::{Executed, Volume};

/// An inline write that took longer than this did not just copy.
const SLOW_WRITE: Duration = Duration::from_millis(2);

/// How long writes go to the pool after a slow one: half of the 200 ms for which the kernel pauses a writer at most
/// each time that too many pages are dirty.
const DETOUR: Duration = Duration::from_millis(100);

/// Decides whether a volume's buffered writes may be done inline.
///
/// Once the share of dirty pages passes `vm.dirty_ratio`, the kernel lets writers sleep until the disk has caught
/// up. A reactor that sleeps holds up every session on its core, so the pool's threads do the sleeping for a while.
#[derive(Debug)]
pub(crate) struct Pace {
    created: Instant,
    detour_until_us: AtomicU64,
}

impl Pace {
    pub(crate) fn new() -> Self {
        Self { created: Instant::now(), detour_until_us: AtomicU64::new(0) }
    }

    /// Microseconds since the volume was opened; 2^64 of them are half a million years.
    fn us(&self, now: Instant) -> u64 {
        now.duration_since(self.created).as_micros() as u64
    }

    fn inline_allowed(&self, now: Instant) -> bool {
        self.us(now) >= self.detour_until_us.load(Ordering::Relaxed)
    }

    fn note(&self, began: Instant, ended: Instant) {
        if ended.duration_since(began) > SLOW_WRITE {
            self.detour_until_us.store(self.us(ended + DETOUR), Ordering::Relaxed);
        }
    }
}

/// Starts an operation. `Some` if it is finished already, `None` if the queue will bring it.
pub(super) fn submit(
    volume: &Arc<Volume>,
    queue: &Arc<CompletionQueue>,
    tag: u64,
    operation: Operation,
) -> Option<IoCompletion> {
    if volume.store().in_memory() {
        return Some(sync::run(volume, tag, operation));
    }
    match operation {
        Operation::Read { offset, mut buffer } if buffer.len() <= INLINE_BYTES_MAX => {
            // A failure here is left to the blocking read, which reports it.
            let done_bytes = volume.read_cached(offset, &mut buffer).unwrap_or(0).min(buffer.len());
            if done_bytes == buffer.len() {
                return Some(IoCompletion { tag, result: Ok(Done::Nothing), buffer: Some(buffer) });
            }
            let operation = Operation::Read { offset, buffer };
            to_pool(volume, queue, tag, operation, done_bytes);
            None
        }
        Operation::Write { ref buffer, .. } if buffer.range.len() <= INLINE_BYTES_MAX => {
            let began = Instant::now();
            if !volume.store().buffers_writes() || !volume.pace().inline_allowed(began) {
                to_pool(volume, queue, tag, operation, 0);
                return None;
            }
            let executed = volume.execute(operation, 0);
            volume.pace().note(began, Instant::now());
            finish(volume, queue, tag, executed)
        }
        Operation::Flush => finish(volume, queue, tag, volume.execute(operation, 0)),
        operation => {
            to_pool(volume, queue, tag, operation, 0);
            None
        }
    }
}

fn to_pool(
    volume: &Arc<Volume>,
    queue: &Arc<CompletionQueue>,
    tag: u64,
    operation: Operation,
    done_bytes: usize,
) {
    let (volume, queue) = (Arc::clone(volume), Arc::clone(queue));
    pool::submit(Job { volume, queue, tag, operation, done_bytes });
}

/// Hands a written operation to the flusher if it waits for stable storage.
fn finish(
    volume: &Volume,
    queue: &Arc<CompletionQueue>,
    tag: u64,
    executed: Executed,
) -> Option<IoCompletion> {
    if executed.needs_flush {
        let waiter = Waiter { queue: Arc::clone(queue), tag, buffer: executed.buffer };
        volume.durability().enqueue(waiter);
        return None;
    }
    Some(IoCompletion { tag, result: executed.result, buffer: executed.buffer })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slow_write_sends_the_next_ones_to_the_pool_for_a_while() {
        let pace = Pace::new();
        let start = Instant::now();
        assert!(pace.inline_allowed(start));
        pace.note(start, start + Duration::from_micros(1900));
        assert!(pace.inline_allowed(start + Duration::from_millis(2)));
        let ended = start + Duration::from_millis(3);
        pace.note(start, ended);
        assert!(!pace.inline_allowed(ended + Duration::from_millis(99)));
        assert!(pace.inline_allowed(ended + Duration::from_millis(101)));
    }
}
