//! Engines: who does a store's blocking calls, behind one interface of owned buffers.
//!
//! An [`IoContext`] belongs to one thread. Engines do at once what need not wait and say what else there is to do
//! ([`step::Step`]); the context gathers that during a turn and begins it in `complete`: on the submitting thread, if
//! it is the only thing there is to do and lately was short, otherwise on others, or through its ring.

mod at_once;
pub(crate) mod choice;
mod direct;
pub(crate) mod operation;
mod pace;
mod pool;
pub(crate) mod queue;
mod ring;
mod step;
mod sync;
mod threads;
mod uring;
mod waits;

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::event::epoll;

use crate::flush::{Durability, Waiter};
use crate::spec::EngineKind;
use crate::volume::Volume;
use operation::{IoCompletion, Operation};
use queue::CompletionQueue;
use ring::Flight;
use step::{Call, Commit, Step};
use uring::Uring;

pub use at_once::Written;
pub(crate) use pace::{Average, Pace};
pub(crate) use pool::Share;
pub(crate) use waits::Waits;

/// Operations up to this length may be done on the submitting thread. Copying 1 MiB takes some 100 microseconds; more
/// would hold up the other connections of the thread.
pub const INLINE_BYTES_MAX: usize = 1 << 20;

/// So much memory is given back on the submitting thread in a turn: some 85 microseconds for each MiB (docs/decisions/0015).
const CLEARED_INLINE_BYTES_MAX: u64 = 4 << 20;

/// Operations up to this length do not wait behind long ones that others have begun: when that is used up, too, they are
/// done on the submitting thread, so many bytes of them in a turn.
const CLEARED_SHORT_BYTES: u64 = 64 << 10;
const CLEARED_SHORT_BYTES_MAX: u64 = 1 << 20;

/// One thread's way to all volumes.
#[derive(Debug)]
pub struct IoContext {
    /// Operations submitted since the last [`IoContext::complete`].
    submitted: usize,
    /// Nobody else waits while a store is waited for.
    may_wait: bool,
    /// What was given back of memory in this turn, and by short operations beyond what is for all.
    cleared_bytes: u64,
    cleared_short_bytes: u64,
    finished: Vec<IoCompletion>,
    calls: Vec<Call>,
    commits: Vec<Commit>,
    /// Operations in the hands of other threads.
    elsewhere: usize,
    queue: Arc<CompletionQueue>,
    ring: RingState,
    /// Watches the queue's event descriptor and the ring.
    epoll: OwnedFd,
}

/// A ring is made when the first operation wants it.
#[derive(Debug)]
enum RingState {
    Unused,
    Open(Box<Uring>),
    Refused,
}

impl IoContext {
    /// A context for the calling thread.
    ///
    /// # Errors
    ///
    /// When the process has no file descriptor left for the two that it takes.
    pub fn new() -> io::Result<Self> {
        let queue = Arc::new(CompletionQueue::new()?);
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, queue.as_fd(), epoll::EventData::new_u64(0), epoll::EventFlags::IN)?;
        Ok(Self {
            submitted: 0,
            may_wait: true,
            cleared_bytes: 0,
            cleared_short_bytes: 0,
            finished: Vec::new(),
            calls: Vec::new(),
            commits: Vec::new(),
            elsewhere: 0,
            queue,
            ring: RingState::Unused,
            epoll,
        })
    }

    /// A descriptor that is readable when operations of this context were finished elsewhere. It says nothing about
    /// operations that [`Self::complete`] begins or finishes, so call that after each batch as well.
    pub fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    /// For who does other work between turns: what came back through a ring is then handed out in parts, one for each call of this, and
    /// [`Self::as_fd`] stays readable until the last. Who never calls it gets all at once. Of memory that is
    /// given back, what is more than 4 MiB since the last call of this, and 1 MiB by short operations, is done elsewhere.
    pub fn next_turn(&mut self) {
        (self.cleared_bytes, self.cleared_short_bytes) = (0, 0);
        if let RingState::Open(ring) = &mut self.ring {
            ring.allow_more();
        }
    }

    /// Takes an operation, which begins at the latest in the next [`Self::complete`]. `tag` comes back unchanged in
    /// its completion. Everything wrong with it is told in the completion, too. Operations are not ordered among each
    /// other.
    pub fn submit(&mut self, volume: &Arc<Volume>, tag: u64, operation: Operation) {
        self.submit_as(volume, tag, operation, false);
    }

    /// The same for a read of which [`Volume::read_at_once`] has just found that it has to wait: the page cache is not asked again.
    pub fn submit_missed(&mut self, volume: &Arc<Volume>, tag: u64, operation: Operation) {
        self.submit_as(volume, tag, operation, true);
    }

    fn submit_as(&mut self, volume: &Arc<Volume>, tag: u64, operation: Operation, is_missed: bool) {
        self.submitted += 1;
        let step = match volume.check(&operation) {
            Err(error) => {
                Step::Done(IoCompletion { tag, result: Err(error), buffer: operation.into_buffer() })
            }
            Ok(()) if volume.store().clears_memory() && self.clears_much(&operation) => {
                Step::call(volume, tag, operation)
            }
            Ok(()) if volume.store().in_memory() => Step::Done(sync::run(volume, tag, operation)),
            Ok(()) => match volume.engine() {
                EngineKind::Sync => Step::Done(sync::run(volume, tag, operation)),
                EngineKind::Threads | EngineKind::Auto if is_missed => Step::call(volume, tag, operation),
                EngineKind::Threads | EngineKind::Auto => threads::submit(volume, tag, operation),
                EngineKind::Direct => direct::submit(volume, tag, operation),
                EngineKind::Uring => match uring::prepare(volume, tag, operation) {
                    Ok(flight) => return self.fly(flight),
                    Err(step) => step,
                },
            },
        };
        self.take(step);
    }

    /// Whether [`Self::complete`] may wait for a store, which it may from the beginning: not while the thread has others to serve, of whom
    /// this context knows nothing.
    pub fn set_may_wait(&mut self, may_wait: bool) {
        self.may_wait = may_wait;
    }

    /// Begins what was submitted and moves everything that is finished to the end of `out`. Waits for a store only
    /// for a single operation beside which nothing is in flight, where the store's calls have lately been short, and only if it may
    /// ([`Self::set_may_wait`]).
    pub fn complete(&mut self, out: &mut Vec<IoCompletion>) {
        self.turn_ring();
        if !self.calls.is_empty() || !self.commits.is_empty() {
            if self.waits_for_one() {
                self.try_inline();
            }
            self.hand_out();
        }
        self.submitted = 0;
        out.append(&mut self.finished);
        if self.elsewhere > 0 {
            self.elsewhere -= self.queue.take_into(out);
        }
    }

    /// There is one operation, and nobody else to serve.
    fn waits_for_one(&self) -> bool {
        self.may_wait && self.submitted <= 1 && self.in_flight() == 1
    }

    /// Whether this gives more memory back than the thread is to do itself in this turn.
    fn clears_much(&mut self, operation: &Operation) -> bool {
        let (Operation::Zero { length, .. } | Operation::Unmap { length, .. }) = operation else {
            return false;
        };
        let takes = |cleared_bytes: &mut u64, most: u64| {
            let sum = cleared_bytes.saturating_add(*length);
            let has_room = sum <= most;
            if has_room {
                *cleared_bytes = sum;
            }
            has_room
        };
        let is_short = *length <= CLEARED_SHORT_BYTES;
        let has_room = takes(&mut self.cleared_bytes, CLEARED_INLINE_BYTES_MAX)
            || is_short && takes(&mut self.cleared_short_bytes, CLEARED_SHORT_BYTES_MAX);
        !has_room
    }

    /// Operations that were submitted and not yet handed out by [`Self::complete`].
    pub fn in_flight(&self) -> usize {
        let flying = if let RingState::Open(ring) = &self.ring { ring.in_flight() } else { 0 };
        self.finished.len() + self.calls.len() + self.commits.len() + self.elsewhere + flying
    }

    /// Gives the ring's operations to the kernel, and takes those that came back.
    fn turn_ring(&mut self) {
        let Self { ring: RingState::Open(ring), finished, calls, commits, .. } = self else { return };
        ring.turn(|step| match step {
            Step::Done(completion) => finished.push(completion),
            Step::Call(call) => calls.push(call),
            Step::Commit(commit) => commits.push(commit),
        });
    }

    fn take(&mut self, step: Step) {
        match step {
            Step::Done(completion) => self.finished.push(completion),
            Step::Call(call) => self.calls.push(call),
            Step::Commit(commit) => self.commits.push(commit),
        }
    }

    /// Gives an operation to the ring, or to the pool where there is none after all.
    fn fly(&mut self, flight: Flight) {
        if matches!(self.ring, RingState::Unused) {
            self.ring = self.open_ring();
        }
        match &mut self.ring {
            RingState::Open(ring) => {
                if let Err(step) = ring.push(flight) {
                    self.take(step);
                }
            }
            RingState::Unused | RingState::Refused => {
                let Flight { volume, tag, operation, .. } = flight;
                self.calls.push(Call { volume, tag, operation, done_bytes: 0 });
            }
        }
    }

    fn open_ring(&self) -> RingState {
        let opened = Uring::new().and_then(|ring| {
            epoll::add(&self.epoll, ring.as_fd(), epoll::EventData::new_u64(1), epoll::EventFlags::IN)?;
            Ok(ring)
        });
        match opened {
            Ok(ring) => RingState::Open(Box::new(ring)),
            Err(error) => {
                // It worked when the volume was opened: a limit was met meanwhile.
                tracing::warn!(%error, "no io_uring for this thread; a pool of threads does its work");
                RingState::Refused
            }
        }
    }

    /// Two switches of threads cost as much as a short call, so the only operation that there is may be done here.
    fn try_inline(&mut self) {
        if let Some(call) = self.calls.pop_if(|call| call.is_quick()) {
            self.take(call.execute().into());
        }
        if let Some(commit) = self.commits.pop() {
            match commit.volume.durability().try_commit(&commit.changed) {
                Some(result) => {
                    let result = result.map(|()| operation::Done::Nothing);
                    self.finished.push(IoCompletion { tag: commit.tag, result, buffer: commit.buffer });
                }
                None => self.commits.push(commit),
            }
        }
    }

    /// Lets others do what is left of the turn. Writes that become stable are all there before a flusher is woken, so
    /// that they share a flush.
    fn hand_out(&mut self) {
        self.elsewhere += self.calls.len() + self.commits.len();
        for call in self.calls.drain(..) {
            pool::submit(call, &self.queue);
        }
        let mut last: Option<Arc<Durability>> = None;
        for Commit { volume, tag, changed, buffer } in self.commits.drain(..) {
            let durability = volume.durability();
            durability.enqueue(Waiter { queue: Arc::clone(&self.queue), tag, changed, buffer });
            if last.as_ref().is_none_or(|last| !Arc::ptr_eq(last, durability))
                && let Some(before) = last.replace(Arc::clone(durability))
            {
                before.wake();
            }
        }
        if let Some(last) = last {
            last.wake();
        }
    }
}

impl Drop for IoContext {
    fn drop(&mut self) {
        // What was submitted is done, though nobody hears of it. The ring waits for its own.
        if let RingState::Open(ring) = &mut self.ring {
            ring.allow_all();
        }
        self.turn_ring();
        if let RingState::Open(ring) = &mut self.ring {
            let calls = ring.take_waiting().map(|Flight { volume, tag, operation, .. }| Call {
                volume,
                tag,
                operation,
                done_bytes: 0,
            });
            self.calls.extend(calls);
        }
        self.hand_out();
    }
}

impl AsFd for IoContext {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{StoreSpec, VolumeSpec};

    #[test]
    fn who_gives_much_memory_back_does_not_keep_others_waiting() {
        let spec = VolumeSpec::new("memory", StoreSpec::Memory { size_bytes: 64 << 20 });
        give_much_back(&spec, 512);
        give_much_back(&VolumeSpec { protection: Some(1), ..spec }, 520);
    }

    fn give_much_back(spec: &VolumeSpec, block: u64) {
        let volume = Volume::open(spec).expect("a volume");
        let mut context = IoContext::new().expect("a context");
        let is_done_at_once = |context: &mut IoContext, operation| {
            context.submit(&volume, 0, operation);
            let is_done = (context.finished.len(), context.calls.len()) == (1, 0);
            let mut done = Vec::new();
            while context.in_flight() > 0 {
                context.complete(&mut done);
            }
            assert!(done.iter().all(|done| done.result.is_ok()) && done.len() == 1, "{done:?}");
            is_done
        };
        let whole = |bytes: u64| bytes / block * block;
        let most = whole(CLEARED_INLINE_BYTES_MAX);
        for length in [most, most + block] {
            let zero = Operation::Zero { offset: 0, length, unmap: false, stable: true };
            for operation in [Operation::Unmap { offset: 0, length }, zero] {
                context.next_turn();
                assert_eq!(is_done_at_once(&mut context, operation), length == most, "{length}");
            }
        }
        // All of a turn counts, and what others do does not.
        context.next_turn();
        let unmap = |length| Operation::Unmap { offset: 0, length };
        let (short, longer) = (whole(CLEARED_SHORT_BYTES), whole(CLEARED_SHORT_BYTES) + block);
        let at_once =
            [most - longer, block, longer, short].map(|length| is_done_at_once(&mut context, unmap(length)));
        assert_eq!(at_once, [true, true, false, true]);
        // Short ones have something of their own, but not for ever.
        for _ in 0..CLEARED_SHORT_BYTES_MAX / short {
            assert!(!is_done_at_once(&mut context, unmap(longer)));
            assert!(is_done_at_once(&mut context, unmap(short)));
        }
        assert!(!is_done_at_once(&mut context, unmap(short)));
        context.next_turn();
        assert!(is_done_at_once(&mut context, unmap(most)) && is_done_at_once(&mut context, unmap(short)));
        volume.close().expect("nothing is under way");
    }

    #[test]
    fn what_the_page_cache_was_just_asked_for_is_not_asked_for_again() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("disk");
        let spec = VolumeSpec::new("file", StoreSpec::File { path, create_bytes: Some(1 << 20) });
        let volume = Volume::open(&spec).expect("a volume");
        assert_eq!(volume.write_at_once(0, &[7; 4096], false), Written::Done);
        let pool = crate::BufferPool::new(1 << 20);
        let mut context = IoContext::new().expect("a context");
        let read = || Operation::Read { offset: 0, buffer: pool.allocate(4096).expect("memory") };
        context.submit_missed(&volume, 1, read());
        assert_eq!((context.finished.len(), context.calls.len()), (0, 1), "it would be there by now");
        let mut done = Vec::new();
        while context.in_flight() > 0 {
            context.complete(&mut done);
        }
        let buffer = done.pop().and_then(|completion| completion.buffer).expect("what was read");
        assert_eq!(*buffer, [7; 4096]);
        volume.close().expect("nothing is under way");
    }

    #[test]
    fn beside_a_flush_that_hangs_nothing_is_copied_on_the_submitting_thread() {
        const LONG: std::time::Duration = std::time::Duration::from_millis(200);
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("disk");
        let spec = VolumeSpec::new("file", StoreSpec::File { path, create_bytes: Some(1 << 20) });
        let volume = Volume::open(&spec).expect("a volume");
        let pool = crate::BufferPool::new(1 << 20);
        let mut context = IoContext::new().expect("a context");
        let mut write = || {
            let buffer = pool.allocate(4096).expect("memory").into();
            let buffer = crate::WriteSource { buffer, range: 0..4096 };
            context.submit(&volume, 0, Operation::Write { offset: 0, buffer, stable: false });
            let is_copied = (context.finished.len(), context.calls.len()) == (1, 0);
            let mut done = Vec::new();
            while context.in_flight() > 0 {
                context.complete(&mut done);
            }
            assert!(done.iter().all(|done| done.result.is_ok()) && done.len() == 1, "{done:?}");
            is_copied
        };
        // A thread that is kept from running may have been slow, and takes a detour; not each time.
        let is_copied = (0..20).any(|_| {
            std::thread::sleep(LONG);
            write() && volume.write_at_once(0, &[7; 4096], false) == Written::Done
        });
        assert!(is_copied && volume.copied_piece_bytes(4096).is_some());
        volume.durability().waits().flush(|| {
            std::thread::sleep(LONG);
            assert!(!write());
            assert_eq!(volume.write_at_once(0, &[7; 4096], false), Written::No);
            assert_eq!(volume.copied_piece_bytes(4096), None);
            assert!(volume.cached(0, 4096).is_none());
        });
        volume.close().expect("nothing is under way");
    }

    #[test]
    fn a_thread_with_others_to_serve_waits_for_no_store() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("disk");
        let spec = VolumeSpec::new("file", StoreSpec::File { path, create_bytes: Some(1 << 20) });
        let volume = Volume::open(&spec).expect("a volume");
        let mut context = IoContext::new().expect("a context");
        for may_wait in [true, false, true] {
            context.set_may_wait(may_wait);
            context.submit(&volume, 0, Operation::Unmap { offset: 0, length: 4096 });
            assert_eq!(context.waits_for_one(), may_wait);
            let mut done = Vec::new();
            while context.in_flight() > 0 {
                context.complete(&mut done);
            }
        }
        volume.close().expect("nothing is under way");
    }
}
