//! The `uring` engine: reads and writes past the page cache through the kernel's own queue.
//!
//! One [`Ring`] serves all such volumes of a thread. What a turn submits goes to the kernel in one call. What does not
//! meet the device's alignment, and everything that is neither read nor write, goes the way of the `direct` engine;
//! stable storage is the flusher's matter as everywhere, because there is one rule about failed flushes.
//!
//! A disk that does not answer keeps what it has of the ring. So each volume has a bound there, and what is beyond it waits for
//! operations of its own volume alone; where several such disks have taken all, the pool does what others want. Whatever waits holds
//! nothing that a write on another thread might want.

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

/// Operations of one volume in the kernel's hands at a time, for each thread: as many as the deepest queue that a session asks for.
pub(super) const VOLUME_FLIGHTS_MAX: usize = 128;

/// What one volume has in the ring.
#[derive(Debug)]
struct Lane {
    /// Its address, which is its own while anything of it flies.
    volume: usize,
    /// Never zero between two calls.
    flying: usize,
    /// What is beyond its bound.
    waiting: VecDeque<Flight>,
}

/// A thread's ring and what does not fit into it at the moment.
#[derive(Debug)]
pub(super) struct Uring {
    ring: Ring,
    /// Of the volumes that have something in the ring. Few, so that looking through them costs less than an index.
    lanes: Vec<Lane>,
    /// What all of them let wait.
    waiting: usize,
    /// How many more operations that came back finished may be taken before [`Uring::allow_more`].
    may_land: usize,
}

impl Uring {
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self { ring: Ring::new()?, lanes: Vec::new(), waiting: 0, may_land: usize::MAX })
    }

    /// Readable while something has come back.
    pub(super) fn as_fd(&self) -> BorrowedFd<'_> {
        self.ring.as_fd()
    }

    pub(super) fn in_flight(&self) -> usize {
        self.ring.in_flight() + self.waiting
    }

    /// Takes an operation for the next [`Uring::turn`], or says in what other way it is to be done.
    pub(super) fn push(&mut self, flight: Flight) -> Result<(), Step> {
        let volume = address(&flight.volume);
        match self.lanes.iter_mut().find(|lane| lane.volume == volume) {
            Some(lane) if lane.flying >= VOLUME_FLIGHTS_MAX => {
                lane.waiting.push_back(flight);
                self.waiting += 1;
            }
            Some(lane) => {
                take_off(&mut self.ring, flight)?;
                lane.flying += 1;
            }
            None => {
                take_off(&mut self.ring, flight)?;
                self.lanes.push(Lane { volume, flying: 1, waiting: VecDeque::new() });
            }
        }
        Ok(())
    }

    /// Takes back what the kernel has not been asked for.
    pub(super) fn take_waiting(&mut self) -> impl Iterator<Item = Flight> {
        self.waiting = 0;
        self.lanes.iter_mut().flat_map(|lane| lane.waiting.drain(..))
    }

    /// An operation of this volume has left the ring; the next one of those that wait takes its place.
    fn left(&mut self, volume: usize, landed: &mut impl FnMut(Step)) {
        let Some(at) = self.lanes.iter().position(|lane| lane.volume == volume) else { return };
        let lane = &mut self.lanes[at];
        lane.flying -= 1;
        while lane.flying < VOLUME_FLIGHTS_MAX
            && let Some(next) = lane.waiting.pop_front()
        {
            self.waiting -= 1;
            match take_off(&mut self.ring, next) {
                Ok(()) => lane.flying += 1,
                Err(step) => landed(step),
            }
        }
        if lane.flying == 0 {
            self.lanes.swap_remove(at);
        }
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
            let volume = address(&flight.volume);
            let step = land(flight, result);
            // Writes that are to become stable want a flush in common.
            self.may_land -= usize::from(matches!(step, Step::Done(_)));
            landed(step);
            self.left(volume, &mut landed);
        }
        self.ring.submit();
    }
}

/// What the kernel can be asked to do by itself; everything else is a step of the `direct` engine.
pub(super) fn prepare(volume: &Arc<Volume>, tag: u64, operation: Operation) -> Result<Flight, Step> {
    let otherwise = |operation| Err(direct::submit(volume, tag, operation));
    let Some(raw) = volume.store().raw() else { return otherwise(operation) };
    let takes = match &operation {
        Operation::Read { offset, buffer } => raw.takes(*offset, buffer),
        Operation::Write { offset, buffer, .. } => raw.takes(*offset, buffer.bytes().unwrap_or_default()),
        _ => false,
    };
    if !takes || operation.range().is_none_or(|(_, length)| length == 0 || length > i32::MAX as u64) {
        return otherwise(operation);
    }
    let fd = raw.fd().as_raw_fd();
    Ok(Flight { volume: Arc::clone(volume), tag, operation, fd, shared: None })
}

fn address(volume: &Arc<Volume>) -> usize {
    Arc::as_ptr(volume).addr()
}

/// Gives an operation to the ring, or says in what other way it is to be done: there is no slot, or it may not be done just now.
fn take_off(ring: &mut Ring, mut flight: Flight) -> Result<(), Step> {
    if !ring.is_full() && takes_the_gate(&mut flight) {
        match ring.push(flight) {
            Ok(()) => return Ok(()),
            Err(back) => flight = back,
        }
    }
    let Flight { volume, tag, operation, .. } = flight;
    Err(Step::Call(Call { volume, tag, operation, done_bytes: 0 }))
}

/// A write gets the right to write only now: who waits for a disk that does not answer must not keep those from it who want to be alone.
fn takes_the_gate(flight: &mut Flight) -> bool {
    if !matches!(flight.operation, Operation::Write { .. }) {
        return true;
    }
    let store = flight.volume.store();
    flight.shared = store.raw().and_then(|raw| raw.try_share());
    // A file that was cut would become longer again; the blocking call says what the matter is.
    let end = flight.operation.range().map_or(0, |(offset, length)| offset + length);
    flight.shared.is_some() && store.check_end(end).is_ok()
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
        // Part of it, or not now, or not without another question: the blocking calls know how to go on and what to say.
        None | Some(Errno::AGAIN | Errno::INTR | Errno::OPNOTSUPP | Errno::INVAL | Errno::NOSPC) => {
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
    use std::os::fd::RawFd;
    use std::time::{Duration, Instant};

    use rustix::pipe::{PipeFlags, pipe_with};

    use super::*;
    use crate::spec::EngineKind;
    use crate::{BufferPool, OpenError, StoreSpec, VolumeSpec, WriteSource};

    #[test]
    fn a_refusal_names_who_refuses() {
        let said = |errno: Errno| explain(&errno.into());
        assert!(said(Errno::PERM).contains("kernel.io_uring_disabled"));
        assert!(said(Errno::NOSYS).contains("old kernel"));
        assert!(said(Errno::NOMEM).contains("ulimit -l"));
    }

    fn volume(directory: &tempfile::TempDir, name: &str) -> Option<Arc<Volume>> {
        let store = StoreSpec::File { path: directory.path().join(name), create_bytes: Some(1 << 20) };
        let spec = VolumeSpec { engine: EngineKind::Uring, ..VolumeSpec::new(name, store) };
        match Volume::open(&spec) {
            Ok(volume) => Some(volume),
            Err(error @ (OpenError::NoDirect { .. } | OpenError::NoUring { .. })) => {
                lunette_skip::record_lacking(&error.to_string());
                None
            }
            Err(error) => panic!("{error}"),
        }
    }

    /// A read of the first block.
    fn read(pool: &BufferPool) -> Operation {
        Operation::Read { offset: 0, buffer: pool.allocate(4096).expect("memory") }
    }

    /// A read of what never answers, as if it were of this volume.
    fn held(volume: &Arc<Volume>, pool: &BufferPool, fd: RawFd) -> Flight {
        Flight { volume: Arc::clone(volume), tag: 0, operation: read(pool), fd, shared: None }
    }

    /// What comes back of so many operations, which come soon.
    fn landed(uring: &mut Uring, count: usize) -> Vec<Step> {
        let began = Instant::now();
        let mut steps = Vec::new();
        while steps.len() < count {
            assert!(began.elapsed() < Duration::from_secs(30), "they wait for others");
            uring.turn(|step| steps.push(step));
        }
        steps
    }

    #[test]
    fn disks_that_do_not_answer_leave_the_others_theirs() {
        let directory = tempfile::tempdir().expect("a directory");
        let pool = BufferPool::new(64 << 20);
        let (silent, end) = pipe_with(PipeFlags::CLOEXEC).expect("a pipe");
        let Some(healthy) = volume(&directory, "healthy") else { return };
        let mut uring = Uring::new().expect("a ring");
        let stuck = super::super::ring::SLOTS / VOLUME_FLIGHTS_MAX;
        let stuck: Vec<_> =
            (0..stuck).map(|index| volume(&directory, &index.to_string()).expect("a volume")).collect();
        for (index, volume) in stuck.iter().enumerate() {
            for _ in 0..VOLUME_FLIGHTS_MAX + 10 {
                uring.push(held(volume, &pool, silent.as_raw_fd())).expect("it flies, or waits");
            }
            uring.turn(|step| panic!("{step:?}"));
            let flight = prepare(&healthy, 7, read(&pool)).expect("the ring's");
            if index + 1 < stuck.len() {
                uring.push(flight).expect("it flies");
                let steps = landed(&mut uring, 1);
                assert!(
                    matches!(steps[..], [Step::Done(IoCompletion { tag: 7, result: Ok(_), .. })]),
                    "{steps:?}"
                );
            } else {
                assert!(matches!(uring.push(flight), Err(Step::Call(Call { tag: 7, .. }))));
            }
        }
        let in_flight = stuck.len() * (VOLUME_FLIGHTS_MAX + 10);
        assert_eq!((uring.in_flight(), uring.lanes.len()), (in_flight, stuck.len()));
        // At the end of the pipe all come back, those that have waited too.
        drop(end);
        assert!(landed(&mut uring, in_flight).iter().all(|step| matches!(step, Step::Call(_))));
        assert_eq!((uring.in_flight(), uring.lanes.len()), (0, 0));
    }

    #[test]
    fn a_write_that_waits_for_the_ring_keeps_nobody_from_being_alone() {
        let directory = tempfile::tempdir().expect("a directory");
        let pool = BufferPool::new(64 << 20);
        let (silent, end) = pipe_with(PipeFlags::CLOEXEC).expect("a pipe");
        let Some(volume) = volume(&directory, "disk") else { return };
        let mut uring = Uring::new().expect("a ring");
        for _ in 0..VOLUME_FLIGHTS_MAX {
            uring.push(held(&volume, &pool, silent.as_raw_fd())).expect("it flies");
        }
        let buffer = WriteSource { buffer: pool.allocate(4096).expect("memory").into(), range: 0..4096 };
        let write = Operation::Write { offset: 0, buffer, stable: false };
        uring.push(prepare(&volume, 7, write).expect("the ring's")).expect("it waits");
        uring.turn(|step| panic!("{step:?}"));
        let (done, is_done) = std::sync::mpsc::channel();
        let other = Arc::clone(&volume);
        let part = std::thread::spawn(move || done.send(other.store().write_at(5, &[7; 10])));
        let ended = is_done.recv_timeout(Duration::from_secs(30));
        drop(end);
        landed(&mut uring, VOLUME_FLIGHTS_MAX + 1);
        part.join().expect("no panic").expect("somebody listens");
        ended.expect("part of a block is written beside a disk that does not answer").expect("it is written");
    }
}
