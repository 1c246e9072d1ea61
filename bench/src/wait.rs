//! Waiting for sockets with epoll: asleep, or awake for a moment where the last gaps were short.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use clap::ValueEnum;
use rustix::buffer::spare_capacity;
use rustix::event::{Timespec, epoll};
use rustix::io::Errno;
use rustix::thread::sched_yield;

/// The longest gap that is spent awake, as in the target (`crates/target/src/reactor/wait.rs`): longer gaps cost less
/// asleep.
const AWAKE_MAX: Duration = Duration::from_micros(150);

/// Short gaps in a row after which the next one is spent awake.
const EXPERIENCE_NEEDED: u8 = 4;

/// How long a wait lasts at most, so that limits are looked at even when nothing comes.
const SLEEP_MAX: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };

const EVENTS_MAX: usize = 256;

/// How to wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Wait {
    /// Sleep in epoll
    Block,
    /// Stay awake for at most 150 µs after short gaps
    Adaptive,
}

/// An epoll instance with its way to wait.
pub(crate) struct Waiter {
    epoll: OwnedFd,
    wait: Wait,
    experience: u8,
    events: Vec<epoll::Event>,
}

impl Waiter {
    /// # Errors
    /// The system has no descriptor left.
    pub(crate) fn new(wait: Wait) -> io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        Ok(Self { epoll, wait, experience: 0, events: Vec::with_capacity(EVENTS_MAX) })
    }

    /// Watches a socket for input from now on.
    ///
    /// # Errors
    /// The kernel has no memory for it.
    pub(crate) fn add(&self, socket: &impl AsFd, key: u64) -> io::Result<()> {
        Ok(epoll::add(&self.epoll, socket, epoll::EventData::new_u64(key), epoll::EventFlags::IN)?)
    }

    /// Chooses what a socket is watched for: input, room for output, or both.
    ///
    /// # Errors
    /// It is not watched.
    pub(crate) fn watch(&self, socket: &impl AsFd, key: u64, input: bool, output: bool) -> io::Result<()> {
        let mut flags = epoll::EventFlags::empty();
        flags.set(epoll::EventFlags::IN, input);
        flags.set(epoll::EventFlags::OUT, output);
        Ok(epoll::modify(&self.epoll, socket, epoll::EventData::new_u64(key), flags)?)
    }

    /// Waits for a second at most; answers how many sockets [`Self::ready`] tells.
    ///
    /// # Errors
    /// The kernel refuses to wait.
    pub(crate) fn wait(&mut self) -> io::Result<usize> {
        if self.wait == Wait::Block {
            return self.poll(&SLEEP_MAX);
        }
        let began = Instant::now();
        if self.experience >= EXPERIENCE_NEEDED {
            while began.elapsed() < AWAKE_MAX {
                let count = self.poll(&Timespec::default())?;
                if count > 0 {
                    return Ok(count);
                }
                // Whoever else wants this core gets it.
                sched_yield();
            }
            self.experience /= 2;
        }
        let count = self.poll(&SLEEP_MAX)?;
        if began.elapsed() <= AWAKE_MAX {
            self.experience = EXPERIENCE_NEEDED.min(self.experience + 1);
        }
        Ok(count)
    }

    /// What one of the sockets that the last wait found was added as.
    pub(crate) fn ready(&self, index: usize) -> Option<u64> {
        self.events.get(index).map(|event| event.data.u64())
    }

    fn poll(&mut self, limit: &Timespec) -> io::Result<usize> {
        self.events.clear();
        match epoll::wait(&self.epoll, spare_capacity(&mut self.events), Some(limit)) {
            Ok(_) | Err(Errno::INTR) => Ok(self.events.len()),
            Err(error) => Err(error.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn tells_what_is_ready_in_either_way_of_waiting() {
        for wait in [Wait::Block, Wait::Adaptive] {
            let mut waiter = Waiter::new(wait).unwrap();
            let (ours, mut theirs) = UnixStream::pair().unwrap();
            waiter.add(&ours, 7).unwrap();
            theirs.write_all(b"x").unwrap();
            for _ in 0..2 * EXPERIENCE_NEEDED {
                assert_eq!(waiter.wait().unwrap(), 1);
                assert_eq!(waiter.ready(0), Some(7));
                assert_eq!(waiter.ready(1), None);
            }
            waiter.watch(&ours, 8, false, true).unwrap();
            assert_eq!(waiter.wait().unwrap(), 1);
            assert_eq!(waiter.ready(0), Some(8));
        }
    }
}
