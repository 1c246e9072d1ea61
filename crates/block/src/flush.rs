//! Durability: the group commit, and what happens when a flush fails.
//!
//! Writes that wait for stable storage gather while one `fdatasync` runs; the next one is shared by all of them. One
//! thread for each volume does it, started when it is needed and ended when it has not been for a while: there may be
//! thousands of volumes. The `sync` engine commits on its own thread, and others do so for a single write where flushes
//! have lately been short.
//!
//! There is never more than one `fdatasync` of a volume at a time. The kernel tells a lost write to one caller only:
//! with two at a time one would fail and the other succeed, though the data of both is lost.

use std::fmt;
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, TryLockError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::buffer::Buffer;
use crate::engine::operation::{Done, IoCompletion};
use crate::engine::queue::CompletionQueue;
use crate::engine::{Average, Waits};
use crate::error::{ErrorClass, StoreError, classify, copy_io_error};
use crate::store::Store;
use crate::store::kernel::became_shorter;
use crate::volume::shielded;

/// A flusher that nobody needs for so long ends.
const IDLE: Duration = if cfg!(test) { Duration::from_millis(20) } else { Duration::from_secs(30) };

/// Why a volume takes no more writes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// The class of the error that the flush ended with.
    pub class: ErrorClass,
    /// What the kernel said.
    pub message: String,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a flush failed: {}", self.message)
    }
}

/// An operation whose data is written and not yet stable.
#[derive(Debug)]
pub(crate) struct Waiter {
    pub(crate) queue: Arc<CompletionQueue>,
    pub(crate) tag: u64,
    /// The bytes that it has changed.
    pub(crate) changed: Range<u64>,
    pub(crate) buffer: Option<Buffer>,
}

impl Waiter {
    fn completion(self, result: Result<(), StoreError>) -> IoCompletion {
        IoCompletion { tag: self.tag, result: result.map(|()| Done::Nothing), buffer: self.buffer }
    }
}

/// A volume's store as far as stable storage is concerned.
#[derive(Debug)]
pub(crate) struct Durability {
    volume_name: String,
    store: Arc<dyn Store>,
    faulted: AtomicBool,
    fault: OnceLock<Fault>,
    /// What flushes have lately taken.
    pace: Average,
    /// Whether those that wait for the device, flushes and others, have lately had an answer.
    waits: Waits,
    turn: Mutex<()>,
    group: Mutex<Group>,
    work: Condvar,
}

#[derive(Debug, Default)]
struct Group {
    waiting: Vec<Waiter>,
    /// A flush is owed that nobody waits for.
    is_owed: bool,
    stopping: bool,
    thread: Option<JoinHandle<()>>,
    /// The thread has ended, or is about to, since it was idle.
    is_thread_over: bool,
}

impl Group {
    /// Waits for a thread that is over, so that there is never more than one.
    fn reap(&mut self) {
        if std::mem::take(&mut self.is_thread_over)
            && let Some(thread) = self.thread.take()
        {
            // It has nothing left to do that could fail.
            let _ = thread.join();
        }
    }
}

impl Durability {
    pub(crate) fn new(volume_name: &str, store: Arc<dyn Store>) -> Self {
        Self {
            volume_name: volume_name.to_owned(),
            store,
            faulted: AtomicBool::new(false),
            fault: OnceLock::new(),
            pace: Average::default(),
            waits: Waits::default(),
            turn: Mutex::new(()),
            group: Mutex::default(),
            work: Condvar::new(),
        }
    }

    pub(crate) fn is_faulted(&self) -> bool {
        self.faulted.load(Ordering::Acquire)
    }

    pub(crate) fn waits(&self) -> &Waits {
        &self.waits
    }

    pub(crate) fn fault(&self) -> Option<&Fault> {
        self.fault.get()
    }

    /// Flushes on the calling thread. `Ok`: what was written before the call is stable.
    pub(crate) fn commit(&self) -> Result<(), StoreError> {
        let turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        self.commit_in(&turn)
    }

    /// The same, and the store still has these bytes, which were changed before.
    pub(crate) fn commit_range(&self, changed: &Range<u64>) -> Result<(), StoreError> {
        self.commit()?;
        self.check_kept(changed, self.store.end_bytes())
    }

    /// Whether bytes that a flush has made stable are still there, by what was then said of the store's end: what lay behind it was cut off
    /// meanwhile, and that is no matter of the flush.
    fn check_kept(&self, changed: &Range<u64>, end_bytes: io::Result<u64>) -> Result<(), StoreError> {
        let source = match end_bytes {
            Ok(end_bytes) if changed.end <= end_bytes => return Ok(()),
            Ok(_) => became_shorter(),
            Err(error) => error,
        };
        Err(StoreError::from_io(changed.start, source))
    }

    /// As [`Self::commit_range`], if a flush is known to be quick and nobody flushes already.
    pub(crate) fn try_commit(&self, changed: &Range<u64>) -> Option<Result<(), StoreError>> {
        if !self.pace.is_quick() || self.store.is_slow() {
            return None;
        }
        let turn = match self.turn.try_lock() {
            Ok(turn) => turn,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        let result = self.commit_in(&turn);
        Some(result.and_then(|()| self.check_kept(changed, self.store.end_bytes())))
    }

    /// Flushes. The guard is of `turn`, so that there is one at a time.
    fn commit_in(&self, _turn: &MutexGuard<'_, ()>) -> Result<(), StoreError> {
        if self.is_faulted() {
            return Err(StoreError::Faulted);
        }
        let began = Instant::now();
        let result = self.waits.flush(|| shielded(|| self.store.flush()));
        self.pace.note(began.elapsed());
        result.map_err(|error| {
            self.fail(&error);
            StoreError::Flush { source: error }
        })
    }

    /// Called with the turn held, so that nobody's later flush can hide this failure, or for a flush inside the store,
    /// which then lets none go well.
    pub(crate) fn fail(&self, error: &io::Error) {
        let fault = Fault { class: classify(error), message: error.to_string() };
        if self.fault.set(fault).is_ok() {
            tracing::error!(
                volume = %self.volume_name, operation = "flush", errno = error.raw_os_error(), %error,
                "acknowledged writes may be lost; the volume takes no writes until it is reopened"
            );
        }
        self.faulted.store(true, Ordering::Release);
    }

    fn lock_group(&self) -> MutexGuard<'_, Group> {
        self.group.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets a waiter take part in the next flush to begin after [`Durability::wake`].
    pub(crate) fn enqueue(self: &Arc<Self>, waiter: Waiter) {
        let mut group = self.lock_group();
        if !self.has_thread(&mut group) {
            drop(group);
            let result = self.commit_range(&waiter.changed);
            let queue = Arc::clone(&waiter.queue);
            queue.push(waiter.completion(result));
            return;
        }
        group.waiting.push(waiter);
    }

    /// Flushes soon what was written before the call. Nobody waits for that; where it fails the volume takes no more writes, as ever.
    pub(crate) fn owe(self: &Arc<Self>) {
        let mut group = self.lock_group();
        if self.has_thread(&mut group) {
            group.is_owed = true;
            drop(group);
            return self.wake();
        }
        drop(group);
        // If it fails the volume has a fault, and the log says so.
        let _ = self.commit();
    }

    /// Whether there is a thread that flushes, after an attempt to begin one.
    fn has_thread(self: &Arc<Self>, group: &mut Group) -> bool {
        group.reap();
        if group.thread.is_none() && !group.stopping {
            let this = Arc::clone(self);
            let spawned = thread::Builder::new().name("block-flush".to_owned()).spawn(move || this.work());
            match spawned {
                Ok(thread) => group.thread = Some(thread),
                Err(error) => tracing::warn!(volume = %self.volume_name, %error, "no thread for flushes"),
            }
        }
        group.thread.is_some()
    }

    /// Has the flusher look for waiters.
    pub(crate) fn wake(&self) {
        self.work.notify_one();
    }

    fn work(&self) {
        let mut batch = Vec::new();
        loop {
            let mut group = self.lock_group();
            while group.waiting.is_empty() && !group.is_owed {
                if group.stopping {
                    return;
                }
                let waited = self.work.wait_timeout(group, IDLE).unwrap_or_else(PoisonError::into_inner);
                group = waited.0;
                let is_idle = group.waiting.is_empty() && !group.is_owed;
                if waited.1.timed_out() && is_idle && !group.stopping {
                    group.is_thread_over = true;
                    return;
                }
            }
            std::mem::swap(&mut batch, &mut group.waiting);
            group.is_owed = false;
            drop(group);
            self.finish_all(&mut batch, &self.commit());
        }
    }

    /// Tells the members of a group how its flush went, each of their threads once: it would wake for the first one otherwise, and find the
    /// others one by one.
    fn finish_all(&self, batch: &mut Vec<Waiter>, result: &Result<(), StoreError>) {
        let end_bytes = self.store.end_bytes();
        batch.sort_by_key(|waiter| Arc::as_ptr(&waiter.queue));
        while let Some(first) = batch.first() {
            let queue = Arc::clone(&first.queue);
            let count = batch.partition_point(|waiter| Arc::as_ptr(&waiter.queue) <= Arc::as_ptr(&queue));
            queue.push_all(batch.drain(..count).map(|waiter| {
                let end_bytes = end_bytes.as_ref().copied().map_err(copy_io_error);
                let is_kept = |()| self.check_kept(&waiter.changed, end_bytes);
                let result = same_for_all(result).and_then(is_kept);
                waiter.completion(result)
            }));
        }
    }

    /// Ends the flusher after everything that waits for it.
    pub(crate) fn stop(&self) {
        let mut group = self.lock_group();
        group.stopping = true;
        let thread = group.thread.take();
        drop(group);
        self.work.notify_one();
        if let Some(thread) = thread
            && thread.join().is_err()
        {
            tracing::error!(volume = %self.volume_name, "the flusher panicked");
        }
    }
}

/// Every member of a group gets the group's result.
fn same_for_all(result: &Result<(), StoreError>) -> Result<(), StoreError> {
    match result {
        Ok(()) => Ok(()),
        Err(StoreError::Flush { source }) => Err(StoreError::Flush { source: copy_io_error(source) }),
        Err(_) => Err(StoreError::Faulted),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::null::NullStore;

    #[test]
    fn who_waits_with_others_finds_all_that_has_ended_at_once() {
        const EACH: u64 = 100;
        let durability = Durability::new("null", Arc::new(NullStore::new(1 << 20)));
        let queues = [(); 3].map(|()| Arc::new(CompletionQueue::new().unwrap()));
        let mut batch: Vec<_> = (0..EACH)
            .flat_map(|tag| queues.each_ref().map(|queue| (tag, Arc::clone(queue))))
            .map(|(tag, queue)| Waiter { queue, tag, changed: 0..512, buffer: None })
            .collect();
        std::thread::scope(|scope| {
            for queue in &queues {
                scope.spawn(|| {
                    let mut found = Vec::new();
                    while queue.take_into(&mut found) == 0 {
                        std::thread::yield_now();
                    }
                    assert!(found.iter().all(|completion| completion.result.is_ok()));
                    assert!(found.iter().map(|completion| completion.tag).eq(0..EACH));
                });
            }
            durability.finish_all(&mut batch, &Ok(()));
        });
        assert!(batch.is_empty());
    }

    #[test]
    fn a_flush_that_nobody_waits_for_is_done_before_the_end() {
        let durability = Arc::new(Durability::new("null", Arc::new(NullStore::new(1 << 20))));
        durability.owe();
        durability.stop();
        let group = durability.lock_group();
        assert!(group.thread.is_none() && !group.is_owed);
    }

    #[test]
    fn a_flusher_that_was_idle_ends_and_another_one_begins() {
        let durability = Arc::new(Durability::new("null", Arc::new(NullStore::new(1 << 20))));
        let queue = Arc::new(CompletionQueue::new().unwrap());
        for tag in 0..3 {
            durability.enqueue(Waiter { queue: Arc::clone(&queue), tag, changed: 0..512, buffer: None });
            durability.wake();
            let mut found = Vec::new();
            while queue.take_into(&mut found) == 0 {
                std::thread::yield_now();
            }
            assert!(found[0].tag == tag && found[0].result.is_ok());
            while !durability.lock_group().is_thread_over {
                std::thread::yield_now();
            }
        }
        durability.stop();
        assert!(durability.lock_group().thread.is_none());
    }
}
