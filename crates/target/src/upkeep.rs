//! What a server does for its logical units without a command that waits for it: one thread that looks after their sizes
//! and carries out the work that they have taken on (SANITIZE, FORMAT UNIT), with the storing of what no command waits for.
//!
//! It is no part of the data path. Work goes in pieces, one of a unit at a time, so that others of the same disk get their
//! turns; when the server ends, it ends with the piece at hand and goes on after the next start.

use std::io;
use std::os::fd::AsFd;
use std::panic::{self, AssertUnwindSafe};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use lunette_block::{ErrorClass, IoCompletion, IoContext, StateFile, StoreError, Volume};
use lunette_scsi::{Io, IoError, LogicalUnit};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tracing::{error, info, warn};

use crate::mailbox::Mailbox;
use crate::reactor;
use crate::saver::{Save, Told};
use crate::server::Shared;
use crate::store_io::{NoOperation, io_error, operation_of, unit_space};

/// Volumes are looked at this often. It is how late an initiator may hear of a larger disk; a look costs a few system calls
/// that read memory.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// What other threads tell this one.
#[derive(Debug)]
pub(crate) enum Message {
    /// A unit may have taken work on.
    Work,
    /// The state of a unit was stored for its work, or could not be.
    Saved {
        /// Its place in the list of all units.
        unit: usize,
        is_stable: bool,
    },
    End,
}

/// The thread; dropping this ends it.
#[derive(Debug)]
pub(crate) struct Upkeep {
    mailbox: Arc<Mailbox<Message>>,
    /// Answers whether it ended as it should.
    thread: Option<JoinHandle<bool>>,
}

impl Upkeep {
    /// Starts the thread.
    ///
    /// # Errors
    /// When the system refuses a thread or a descriptor.
    pub(crate) fn spawn(shared: &Arc<Shared>) -> io::Result<Self> {
        let keeper = Keeper::new(Arc::clone(shared))?;
        let shared = Arc::clone(shared);
        let mailbox = Arc::clone(&shared.upkeep);
        let run = move || shielded(&shared.reactors, || keeper.run());
        let thread = std::thread::Builder::new().name("upkeep".to_owned()).spawn(run)?;
        Ok(Self { mailbox, thread: Some(thread) })
    }

    /// Ends the thread; false: it had failed before.
    pub(crate) fn end(mut self) -> bool {
        self.join()
    }

    fn join(&mut self) -> bool {
        self.mailbox.send(Message::End);
        self.thread.take().is_none_or(|thread| thread.join().unwrap_or(false))
    }
}

impl Drop for Upkeep {
    fn drop(&mut self) {
        self.join();
    }
}

/// Runs to the end; false: it panicked. Commands would wait for ever then for work that nobody does, so the server ends, as
/// it does with a reactor.
fn shielded(reactors: &[Arc<Mailbox<reactor::Message>>], run: impl FnOnce()) -> bool {
    let ended = panic::catch_unwind(AssertUnwindSafe(run)).is_ok();
    if !ended {
        error!("the thread that looks after logical units panicked; this is a defect; the server ends");
        reactors.iter().for_each(|reactor| reactor.send(reactor::Message::End));
    }
    ended
}

/// A logical unit with what is behind it.
struct Ward {
    unit: Arc<LogicalUnit>,
    volume: Arc<Volume>,
    state: Option<Arc<StateFile>>,
    /// An operation of its work has not ended.
    is_busy: bool,
    /// Its work was begun or taken up, and has not ended.
    is_at_work: bool,
    /// Short of memory, or its state could not be stored: its work goes on after the next look.
    pauses: bool,
    /// The last operation of its work has failed, and the log tells so. What fails each time is told once.
    failure_is_told: bool,
}

struct Keeper {
    shared: Arc<Shared>,
    io: IoContext,
    wards: Vec<Ward>,
    finished: Vec<IoCompletion>,
    next_look: Instant,
    ends: bool,
}

impl Keeper {
    fn new(shared: Arc<Shared>) -> io::Result<Self> {
        let mut wards = Vec::new();
        for target in &shared.targets {
            for ((_, unit), (volume, state)) in
                target.device.units().zip(target.volumes.iter().zip(&target.states))
            {
                wards.push(Ward {
                    unit: Arc::clone(unit),
                    volume: Arc::clone(volume),
                    state: state.clone(),
                    is_busy: false,
                    is_at_work: false,
                    pauses: false,
                    failure_is_told: false,
                });
            }
        }
        let next_look = Instant::now() + LOOK_INTERVAL;
        Ok(Self { shared, io: IoContext::new()?, wards, finished: Vec::new(), next_look, ends: false })
    }

    fn run(mut self) {
        // Work that was left by the last run is taken up at once.
        self.work();
        while !self.ends || self.wards.iter().any(|ward| ward.is_busy) {
            self.wait();
            for message in self.shared.upkeep.take() {
                match message {
                    Message::Work => {}
                    Message::Saved { unit, is_stable } => self.saved(unit, is_stable),
                    Message::End => {
                        // What the last commands have left to be stored gets its chance.
                        self.work();
                        self.ends = true;
                    }
                }
            }
            if Instant::now() >= self.next_look {
                self.next_look = Instant::now() + LOOK_INTERVAL;
                self.wards.iter_mut().for_each(Ward::look);
                self.shared.domain.forget_expired_tokens();
            }
            self.collect();
            if !self.ends {
                self.work();
            }
        }
    }

    /// Waits for a message, a store, or the time of the next look.
    fn wait(&self) {
        let left = self.next_look.saturating_duration_since(Instant::now());
        let limit = if self.finished.is_empty() { left } else { Duration::ZERO };
        let limit = Timespec { tv_sec: limit.as_secs() as i64, tv_nsec: limit.subsec_nanos().into() };
        let mut watched = [
            PollFd::from_borrowed_fd(self.shared.upkeep.as_fd(), PollFlags::IN),
            PollFd::from_borrowed_fd(self.io.as_fd(), PollFlags::IN),
        ];
        // Failing, as an interrupted wait does, only makes the next turn come early.
        let _ = poll(&mut watched, Some(&limit));
    }

    /// Takes in what stores have finished.
    fn collect(&mut self) {
        self.io.complete(&mut self.finished);
        for IoCompletion { tag, result, .. } in std::mem::take(&mut self.finished) {
            // Tags are places in the list.
            let unit = tag as usize;
            match result {
                Ok(_) => self.done(unit, Ok(())),
                Err(error) if error.class() == ErrorClass::Busy => self.wards[unit].pause(),
                Err(error) => self.failed(unit, &error),
            }
        }
    }

    fn failed(&mut self, unit: usize, error: &StoreError) {
        let ward = &mut self.wards[unit];
        if !std::mem::replace(&mut ward.failure_is_told, true) {
            warn!(volume = ward.volume.name(), %error, "work on a logical unit failed");
        }
        let error = io_error(&ward.volume, error);
        self.done(unit, Err(error));
        // What is tried again is not tried all the time.
        self.wards[unit].pause();
    }

    /// What cannot be stored is tried again, but not all the time.
    fn saved(&mut self, unit: usize, is_stable: bool) {
        self.done(unit, if is_stable { Ok(()) } else { Err(IoError::Hardware) });
        if !is_stable && let Some(ward) = self.wards.get_mut(unit) {
            ward.pause();
        }
    }

    /// An operation has ended, and with it the work perhaps.
    fn done(&mut self, unit: usize, result: Result<(), IoError>) {
        let Some(ward) = self.wards.get_mut(unit) else { return };
        ward.is_busy = false;
        ward.failure_is_told &= result.is_err();
        ward.unit.work_done(result);
        if ward.is_at_work && !ward.unit.is_at_work() {
            ward.is_at_work = false;
            info!(volume = ward.volume.name(), "work on a logical unit has ended");
            for reactor in &self.shared.reactors {
                reactor.send(reactor::Message::WorkEnded);
            }
        }
    }

    /// Begins the next operation of every unit that has work.
    fn work(&mut self) {
        for index in 0..self.wards.len() {
            let ward = &mut self.wards[index];
            if ward.is_busy || ward.pauses {
                continue;
            }
            let Some(io) = ward.unit.next_work() else { continue };
            if ward.unit.is_at_work() && !std::mem::replace(&mut ward.is_at_work, true) {
                info!(volume = ward.volume.name(), "work on a logical unit begins");
            }
            self.begin(index, io);
        }
        self.io.complete(&mut self.finished);
    }

    fn begin(&mut self, unit: usize, io: Io) {
        let ward = &mut self.wards[unit];
        if io == Io::SaveState {
            return self.save(unit);
        }
        let operation = match operation_of(&ward.volume, io, &self.shared.pool) {
            Ok(operation) => operation,
            Err(NoOperation::Memory) => return ward.pause(),
            // Work is made of no such thing.
            Err(NoOperation::CommandBuffers) => return self.done(unit, Err(IoError::Unsupported)),
        };
        ward.is_busy = true;
        self.io.submit(&ward.volume, unit as u64, operation);
    }

    fn save(&mut self, unit: usize) {
        let ward = &mut self.wards[unit];
        ward.is_busy = true;
        let told = Told::Upkeep { mailbox: Arc::clone(&self.shared.upkeep), unit };
        match ward.state.clone() {
            Some(file) => self.shared.saver.store(Save { unit: Arc::clone(&ward.unit), file, told }),
            None => self.saved(unit, false),
        }
    }
}

impl Ward {
    /// Its work goes on when there may be memory again.
    fn pause(&mut self) {
        (self.is_busy, self.pauses) = (false, true);
    }

    /// Tells the unit how much space its volume has, gives it the size that the volume has come to have, and has the log tell what
    /// has become of an image.
    fn look(&mut self) {
        self.pauses = false;
        self.volume.look_at_name();
        if let Some(space) = self.volume.space() {
            self.unit.note_space(unit_space(space));
        }
        let Some(size_bytes) = self.volume.look_at_size() else { return };
        let size_bytes = self.volume.data_bytes(size_bytes);
        if let Err(error) = self.unit.resize(size_bytes / u64::from(self.unit.block_length_bytes())) {
            warn!(volume = self.volume.name(), %error, "the volume's new size is not served");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_ends_the_server() {
        let reactors: Vec<_> = (0..2).map(|_| Arc::new(Mailbox::new().unwrap())).collect();
        let told = || reactors.iter().map(|reactor| reactor.take()).collect::<Vec<_>>();
        assert!(shielded(&reactors, || {}));
        assert!(told().iter().all(Vec::is_empty));
        assert!(!shielded(&reactors, || panic!("on purpose")));
        assert!(told().iter().all(|messages| matches!(messages[..], [reactor::Message::End])));
    }
}
