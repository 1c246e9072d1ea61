//! The process's pool of threads for blocking calls. Threads start when they are needed and stay.
//!
//! A volume has at most [`VOLUME_JOBS_MAX`] jobs in the pool's hands; further ones wait in the volume's own
//! [`Share`]. So it takes many stuck disks to take all threads, and volumes take turns when all threads are busy. Queues
//! have no bound of their own, because every job comes from a command that the caller has admitted.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;

use super::queue::CompletionQueue;
use super::step::{Call, Commit, Outcome};
use crate::flush::Waiter;

/// Threads of the process: what sixteen volumes can use. The disks of an enclosure get stuck together, and must leave
/// something to those of another. A thread that waits costs little more than its stack's first pages.
const THREADS_MAX: usize = 16 * VOLUME_JOBS_MAX;

/// Jobs of one volume that run at a time: enough to come near what a fast disk does with 128 (docs/decisions/0009).
const VOLUME_JOBS_MAX: usize = 32;

/// The same of a disk in memory, whose jobs wait for nothing and would only take processors from who serves.
const MEMORY_JOBS_MAX: usize = 1;

/// One operation for a thread of the pool.
#[derive(Debug)]
struct Job {
    call: Call,
    queue: Arc<CompletionQueue>,
}

/// A volume's share of the pool.
#[derive(Debug, Default)]
pub(crate) struct Share {
    state: Mutex<ShareState>,
}

#[derive(Debug, Default)]
struct ShareState {
    running: usize,
    waiting: VecDeque<Job>,
}

impl Share {
    fn lock(&self) -> MutexGuard<'_, ShareState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives the job back if it may run now; keeps it otherwise.
    fn enter(&self, job: Job) -> Option<Job> {
        let is_of_memory = job.call.volume.store().in_memory();
        let most = if is_of_memory { MEMORY_JOBS_MAX } else { VOLUME_JOBS_MAX };
        let mut state = self.lock();
        if state.running >= most {
            state.waiting.push_back(job);
            return None;
        }
        state.running += 1;
        Some(job)
    }

    /// A job has ended: the one that takes its place, if any.
    fn leave(&self) -> Option<Job> {
        let mut state = self.lock();
        let next = state.waiting.pop_front();
        if next.is_none() {
            state.running -= 1;
        }
        next
    }
}

struct Pool {
    state: Mutex<PoolState>,
    work: Condvar,
}

struct PoolState {
    jobs: VecDeque<Job>,
    threads: usize,
    idle: usize,
    /// The system gave no thread when one was last asked for; said once.
    is_refused: bool,
}

static POOL: Pool = Pool {
    state: Mutex::new(PoolState { jobs: VecDeque::new(), threads: 0, idle: 0, is_refused: false }),
    work: Condvar::new(),
};

/// Has an operation done; its completion comes through the queue.
pub(super) fn submit(call: Call, queue: &Arc<CompletionQueue>) {
    let volume = Arc::clone(&call.volume);
    if let Some(job) = volume.share().enter(Job { call, queue: Arc::clone(queue) }) {
        POOL.push(job);
    }
}

impl Pool {
    fn lock(&self) -> MutexGuard<'_, PoolState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn push(&'static self, job: Job) {
        let mut state = self.lock();
        state.jobs.push_back(job);
        let spawn = state.jobs.len() > state.idle && state.threads < THREADS_MAX;
        if spawn {
            state.threads += 1;
        }
        drop(state);
        self.work.notify_one();
        if spawn {
            self.spawn();
        }
    }

    fn spawn(&'static self) {
        let spawned = thread::Builder::new().name("block-pool".to_owned()).spawn(move || self.work());
        if let Err(error) = spawned {
            let mut state = self.lock();
            state.threads -= 1;
            // The threads that exist will come to it; without any, this thread has to do what it asked for.
            let orphan = if state.threads == 0 { state.jobs.pop_front() } else { None };
            let is_news = !std::mem::replace(&mut state.is_refused, true);
            let threads = state.threads;
            drop(state);
            if is_news {
                tracing::warn!(%error, threads, "no further thread for blocking I/O");
            }
            if let Some(job) = orphan {
                self.run(job);
            }
        }
    }

    fn work(&'static self) {
        let mut state = self.lock();
        loop {
            match state.jobs.pop_front() {
                Some(job) => {
                    drop(state);
                    self.run(job);
                    state = self.lock();
                }
                None => {
                    state.idle += 1;
                    state = self.work.wait(state).unwrap_or_else(PoisonError::into_inner);
                    state.idle -= 1;
                }
            }
        }
    }

    fn run(&'static self, job: Job) {
        let Job { call, queue } = job;
        let volume = Arc::clone(&call.volume);
        let outcome = call.execute();
        let next = volume.share().leave();
        // The submitter may close the volume and open it again once it has the completion, so this thread must not
        // be the one that still holds it.
        drop(volume);
        match outcome {
            Outcome::Done(completion) => queue.push(completion),
            Outcome::Commit(Commit { volume, tag, changed, buffer }) => {
                let durability = Arc::clone(volume.durability());
                drop(volume);
                durability.enqueue(Waiter { queue, tag, changed, buffer });
                durability.wake();
            }
        }
        if let Some(next) = next {
            self.push(next);
        }
    }
}
