//! The `uring` engine: reads and writes past the page cache through the kernel's own queue.
//!
//! One [`Ring`] serves all such volumes of a thread. What a turn submits goes to the kernel in one call. What does not
//! meet the device's alignment, and everything that is neither read nor write, goes the way of the `direct` engine;
//! stable storage is the flusher's matter as everywhere, because there is one rule about failed flushes.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::{Arc, OnceLock};

use rustix::io::Errno;

use super::direct;
use super::operation::{Done, IoCompletion, Operation};
use super::ring::{Flight, Ring};
use super::step::{Call, Commit, Step};
use crate::volume::Volume;

/// Why io_uring cannot be had; found out once for the process.
pub(crate) fn refusal() -> Option<&'static str> {
    static REFUSAL: OnceLock<Option<String>> = OnceLock::new();
    let found = REFUSAL.get_or_init(|| Ring::new().err().map(|error| explain(&error)));
    found.as_deref()
}

fn explain(error: &io::Error) -> String {
    let cause = match Errno::from_io_error(error) {
        Some(Errno::PERM | Errno::ACCESS) => {
            "the sysctl kernel.io_uring_disabled or a container's seccomp filter"
        }
        Some(Errno::NOSYS) => "an old kernel or a container's seccomp filter",
        Some(Errno::NOMEM) => "a limit of locked memory (ulimit -l)",
        _ => "the kernel",
    };
    format!("io_uring is refused by {cause} ({error})")
}

/// A virtual disk answers all that it has at once. One part in so many of what is under way is taken in a turn, so that the next commands
/// are on their way to the disk while the other answers are sent (docs/decisions/0048).
const LANDING_SHARE: usize = 4;

/// At least so many: a turn has its price.
const LANDING_MIN: usize = 4;

/// A thread's ring and what does not fit into it at the moment.
#[derive(Debug)]
pub(super) struct Uring {
    ring: Ring,
    backlog: VecDeque<Flight>,
    /// How many more operations that came back finished may be taken before [`Uring::allow_more`].
    may_land: usize,
}

impl Uring {
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self { ring: Ring::new()?, backlog: VecDeque::new(), may_land: usize::MAX })
    }

    /// Readable while something has come back.
    pub(super) fn as_fd(&self) -> BorrowedFd<'_> {
        self.ring.as_fd()
    }

    pub(super) fn in_flight(&self) -> usize {
        self.ring.in_flight() + self.backlog.len()
    }

    /// Takes an operation for the next [`Uring::turn`].
    pub(super) fn push(&mut self, flight: Flight) {
        if !self.backlog.is_empty() {
            self.backlog.push_back(flight);
        } else if let Err(flight) = self.ring.push(flight) {
            self.backlog.push_back(flight);
        }
    }

    /// Takes back what the kernel has not been asked for.
    pub(super) fn take_backlog(&mut self) -> impl Iterator<Item = Flight> {
        self.backlog.drain(..)
    }

    /// Lets [`Uring::turn`] take more: see [`IoContext::next_turn`](super::IoContext::next_turn).
    pub(super) fn allow_more(&mut self) {
        self.may_land = (self.in_flight() / LANDING_SHARE).max(LANDING_MIN);
    }

    /// Lets [`Uring::turn`] take whatever there is.
    pub(super) fn allow_all(&mut self) {
        self.may_land = usize::MAX;
    }

    /// Hands what has gathered to the kernel and takes what has come back, as much as is still allowed.
    pub(super) fn turn(&mut self, mut landed: impl FnMut(Step)) {
        if self.in_flight() == 0 {
            return;
        }
        self.ring.submit();
        while self.may_land > 0
            && let Some((flight, result)) = self.ring.reap()
        {
            let step = land(flight, result);
            // Writes that are to become stable want a flush in common.
            self.may_land -= usize::from(matches!(step, Step::Done(_)));
            landed(step);
            if let Some(next) = self.backlog.pop_front()
                && let Err(next) = self.ring.push(next)
            {
                self.backlog.push_front(next);
            }
        }
        self.ring.submit();
    }
}

/// What the kernel can be asked to do by itself; everything else is a step of the `direct` engine.
pub(super) fn prepare(volume: &Arc<Volume>, tag: u64, operation: Operation) -> Result<Flight, Step> {
    let otherwise = |operation| Err(direct::submit(volume, tag, operation));
    let Some(raw) = volume.store().raw() else { return otherwise(operation) };
    let (takes, shared) = match &operation {
        Operation::Read { offset, buffer } => (raw.takes(*offset, buffer), None),
        Operation::Write { offset, buffer, .. } => {
            let Some(shared) = raw.try_share() else { return otherwise(operation) };
            // A file that was cut would become longer again; the blocking call says what the matter is.
            let end = operation.range().map_or(0, |(offset, length)| offset + length);
            if volume.store().check_end(end).is_err() {
                drop(shared);
                return otherwise(operation);
            }
            (raw.takes(*offset, buffer.bytes().unwrap_or_default()), Some(shared))
        }
        _ => (false, None),
    };
    if !takes || operation.range().is_none_or(|(_, length)| length == 0 || length > i32::MAX as u64) {
        drop(shared);
        return otherwise(operation);
    }
    let fd = raw.fd().as_raw_fd();
    Ok(Flight { volume: Arc::clone(volume), tag, operation, fd, shared })
}

/// What is left of an operation that came back with the kernel's `result`: bytes, or a negative error number.
fn land(flight: Flight, result: i32) -> Step {
    let Flight { volume, tag, operation, shared, .. } = flight;
    drop(shared);
    let (offset, length) = operation.range().unwrap_or_default();
    let errno = u32::try_from(result).is_err().then(|| Errno::from_raw_os_error(result.saturating_neg()));
    match errno {
        None if result as u64 == length => {
            let stable = matches!(operation, Operation::Write { stable: true, .. });
            let buffer = operation.into_buffer();
            if stable {
                Step::Commit(Commit { volume, tag, changed: offset..offset + length, buffer })
            } else {
                Step::Done(IoCompletion { tag, result: Ok(Done::Nothing), buffer })
            }
        }
        // Part of it, or not now: the blocking calls know how to go on and what to say.
        None | Some(Errno::AGAIN | Errno::INTR | Errno::OPNOTSUPP | Errno::INVAL) => {
            Step::Call(Call { volume, tag, operation, done_bytes: 0 })
        }
        Some(errno) => {
            let error = volume.failed(operation.kind(), offset, length, errno.into());
            Step::Done(IoCompletion { tag, result: Err(error), buffer: operation.into_buffer() })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_names_who_refuses() {
        let said = |errno: Errno| explain(&errno.into());
        assert!(said(Errno::PERM).contains("kernel.io_uring_disabled"));
        assert!(said(Errno::NOSYS).contains("old kernel"));
        assert!(said(Errno::NOMEM).contains("ulimit -l"));
    }
}
