//! The one place where the kernel is given pointers: a ring of io_uring, and the buffers that it works on.
//!
//! Not here: what to ask for and what an answer means (`uring`).
//!
//! # Who owns a buffer
//!
//! From [`Ring::push`] until its completion is reaped, a [`Flight`] stays in its slot: it is neither moved, looked at
//! nor dropped, so the memory that the kernel was told of stays where it is and belongs to the kernel alone. A ring
//! that is dropped, also by a panic, waits for all of them first. Those that do not come back even then are leaked.
#![expect(unsafe_code, reason = "io_uring works on memory that the kernel is given pointers to")]

use std::fmt;
use std::io;
use std::mem;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use io_uring::types::{Fd, SubmitArgs, Timespec};
use io_uring::{IoUring, opcode, squeue};
use rustix::io::Errno;

use super::operation::Operation;
use crate::store::gate::Shared;
use crate::volume::Volume;

/// Operations in the kernel's hands at a time: those of some volumes that have as many as they may.
pub(super) const SLOTS: usize = 4 * super::uring::VOLUME_FLIGHTS_MAX;

/// Entries that wait for one another: with the first ones the disk begins while the turn that brings the others goes on.
const QUEUED_MAX: usize = 4;

/// How often entries are offered to a kernel that is short of memory before they wait for the next turn.
const ATTEMPTS: usize = 100;

/// How long a ring that is dropped waits for what is in flight. Disks give up after 30 seconds or less.
const DRAIN: Duration = Duration::from_secs(40);

/// A read or write in the kernel's hands.
pub(super) struct Flight {
    /// Keeps the file descriptor open.
    pub(super) volume: Arc<Volume>,
    pub(super) tag: u64,
    /// A read or a write with at least one byte and fewer than 2^31.
    pub(super) operation: Operation,
    /// Where: of the volume's store.
    pub(super) fd: RawFd,
    /// The right to write, for a write that is in the kernel's hands.
    pub(super) shared: Option<Shared>,
}

impl fmt::Debug for Flight {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Flight").field("tag", &self.tag).finish_non_exhaustive()
    }
}

/// See the module's documentation.
pub(super) struct Ring {
    io: IoUring,
    slots: Box<[Option<Flight>]>,
    free: Vec<usize>,
    /// Entries that the kernel has not taken yet.
    queued: usize,
    refused: bool,
}

impl fmt::Debug for Ring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ring").field("in_flight", &self.in_flight()).finish_non_exhaustive()
    }
}

impl Ring {
    /// A ring that can read and write.
    ///
    /// # Errors
    /// When the kernel has no io_uring, refuses it to this process, or is older than 5.6.
    pub(super) fn new() -> io::Result<Self> {
        // The second flag is of Linux 5.19: completions wait until this thread enters the kernel anyway.
        let io = IoUring::builder().setup_coop_taskrun().setup_taskrun_flag().build(SLOTS as u32).or_else(
            |error| match Errno::from_io_error(&error) {
                Some(Errno::INVAL) => IoUring::new(SLOTS as u32),
                _ => Err(error),
            },
        )?;
        let mut probe = io_uring::Probe::new();
        io.submitter().register_probe(&mut probe)?;
        if !probe.is_supported(opcode::Read::CODE) || !probe.is_supported(opcode::Write::CODE) {
            return Err(Errno::NOSYS.into());
        }
        let slots = (0..SLOTS).map(|_| None).collect();
        Ok(Self { io, slots, free: (0..SLOTS).rev().collect(), queued: 0, refused: false })
    }

    /// The ring itself: readable while completions wait to be reaped.
    pub(super) fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the ring keeps its descriptor open for as long as `self` lives, which the result borrows.
        unsafe { BorrowedFd::borrow_raw(self.io.as_raw_fd()) }
    }

    pub(super) fn in_flight(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    pub(super) fn is_full(&self) -> bool {
        self.free.is_empty()
    }

    /// Queues an operation for the next [`Ring::submit`], which some of them together do not wait for; gives it back while all
    /// slots are taken, or if it is neither a read nor a write.
    #[expect(clippy::result_large_err, reason = "what has no place is done in another way, as it is")]
    pub(super) fn push(&mut self, flight: Flight) -> Result<(), Flight> {
        let Some(index) = self.free.pop() else { return Err(flight) };
        // First into its slot, then the pointer: whatever moves afterwards is not what the pointer came from.
        let Some(entry) = entry(self.slots[index].insert(flight)) else {
            self.free.push(index);
            return self.slots[index].take().map_or(Ok(()), Err);
        };
        let entry = entry.user_data(index as u64);
        // SAFETY: the entry's descriptor is open while the slot holds the flight with its volume; its memory is the
        // flight's own buffer, as long as the entry says. `reap` and `drop` empty the slot only after the kernel's
        // last word on it. Nothing else touches the buffer meanwhile: of a read it is owned by the flight; of a
        // write it is only read by the kernel, and those who share it can only read it as well.
        let pushed = unsafe { self.io.submission().push(&entry) };
        if pushed.is_err() {
            // There are as many entries as slots, so this does not come; nothing was queued then.
            self.free.push(index);
            return self.slots[index].take().map_or(Ok(()), Err);
        }
        self.queued += 1;
        if self.queued >= QUEUED_MAX {
            self.submit();
        }
        Ok(())
    }

    /// Hands queued entries to the kernel, and lets it finish what it only has to account for. Never waits.
    pub(super) fn submit(&mut self) {
        let wants_entry = self.io.submission().taskrun();
        if self.queued == 0 && !wants_entry {
            return;
        }
        for _ in 0..ATTEMPTS {
            match self.io.submit() {
                Ok(taken) => self.queued = self.queued.saturating_sub(taken),
                Err(error) if self.is_passing(&error) => {}
                Err(error) => return self.complain(&error),
            }
            // Entries that were not taken have to wait for completions, or for memory when there are none to come.
            if self.queued == 0 || self.in_flight() > self.queued {
                return;
            }
            thread::yield_now();
        }
    }

    fn is_passing(&self, error: &io::Error) -> bool {
        matches!(Errno::from_io_error(error), Some(Errno::AGAIN | Errno::BUSY | Errno::INTR | Errno::NOMEM))
    }

    fn complain(&mut self, error: &io::Error) {
        if !mem::replace(&mut self.refused, true) {
            tracing::error!(%error, "io_uring takes no more operations; this is a defect");
        }
    }

    /// The next operation that came back, with the kernel's result: bytes, or a negative error number.
    pub(super) fn reap(&mut self) -> Option<(Flight, i32)> {
        loop {
            let completion = self.io.completion().next()?;
            let index = usize::try_from(completion.user_data()).unwrap_or(usize::MAX);
            if let Some(flight) = self.slots.get_mut(index).and_then(Option::take) {
                self.free.push(index);
                return Some((flight, completion.result()));
            }
        }
    }

    /// Waits at most `limit` for one completion. False if none came.
    fn wait(&mut self, limit: Duration) -> bool {
        let limit = Timespec::new().sec(limit.as_secs()).nsec(limit.subsec_nanos());
        let waited = self.io.submitter().submit_with_args(1, &SubmitArgs::new().timespec(&limit));
        match waited {
            Ok(_) => true,
            Err(error) => self.is_passing(&error),
        }
    }
}

/// What the kernel is told of an operation.
fn entry(flight: &mut Flight) -> Option<squeue::Entry> {
    let fd = Fd(flight.fd);
    match &mut flight.operation {
        Operation::Read { offset, buffer } => {
            let len = u32::try_from(buffer.len()).ok()?;
            Some(opcode::Read::new(fd, buffer.as_mut_ptr(), len).offset(*offset).build())
        }
        Operation::Write { offset, buffer, .. } => {
            let bytes = buffer.bytes()?;
            let len = u32::try_from(bytes.len()).ok()?;
            Some(opcode::Write::new(fd, bytes.as_ptr(), len).offset(*offset).build())
        }
        _ => None,
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        let deadline = Instant::now() + DRAIN;
        while self.in_flight() > 0 {
            while self.reap().is_some() {}
            let left = deadline.saturating_duration_since(Instant::now());
            if self.in_flight() > 0 && (left.is_zero() || !self.wait(left)) {
                break;
            }
        }
        if self.in_flight() > 0 {
            tracing::error!(
                operations = self.in_flight(),
                "a store does not return them; their memory is lost"
            );
            // The kernel may still use it.
            mem::forget(mem::take(&mut self.slots));
        }
    }
}
