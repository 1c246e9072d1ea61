//! Network namespaces without names: each lives as long as somebody is in it or has it open.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};
use std::thread;

use rustix::process::{Signal, set_parent_process_death_signal};
use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space, unshare_unsafe};

use crate::error::WanError;
use crate::leftover::{mark, unmark};
use crate::loopback;

/// The namespace of the calling thread.
const OWN: &str = "/proc/thread-self/ns/net";

/// The user namespace of this process.
const OWN_USER: &str = "/proc/self/ns/user";

/// The way into a network namespace of another process: two descriptors, which that process hands over.
#[derive(Debug)]
pub struct Entrance {
    /// The user namespace that it belongs to.
    pub user: OwnedFd,
    /// Itself.
    pub network: OwnedFd,
}

impl Entrance {
    /// Moves this process there. It stays who it is, and what it executes has no privileges that it did not have before.
    ///
    /// # Errors
    /// It is another user's, or this process has more than one thread.
    pub fn enter(self) -> io::Result<()> {
        let identity = |status: rustix::fs::Stat| (status.st_dev, status.st_ino);
        let own = identity(rustix::fs::stat(OWN_USER)?);
        // Nobody may enter the one that he is in.
        if identity(rustix::fs::fstat(&self.user)?) != own {
            move_into_link_name_space(self.user.as_fd(), Some(LinkNameSpaceType::User))?;
        }
        move_into_link_name_space(self.network.as_fd(), Some(LinkNameSpaceType::Network))?;
        Ok(())
    }
}

/// A network namespace.
#[derive(Debug)]
pub struct Namespace {
    entrance: OwnedFd,
}

impl Namespace {
    /// Makes one whose loopback device is up, and which has no other.
    ///
    /// # Errors
    /// The process may not ([`crate::acquire_privileges`]).
    pub fn new() -> Result<Self, WanError> {
        let made = thread::scope(|scope| scope.spawn(Self::make).join());
        made.unwrap_or_else(|_| Err(WanError::of("a thread in a namespace")(io::Error::other("it panicked"))))
    }

    /// In a thread of its own, which is in the new namespace ever after.
    fn make() -> Result<Self, WanError> {
        unshare_network().map_err(WanError::of("a network namespace"))?;
        loopback::bring_up().map_err(WanError::of("the loopback device of a namespace"))?;
        let entrance = File::open(OWN).map_err(WanError::of(OWN))?;
        Ok(Self { entrance: entrance.into() })
    }

    /// What another process enters it by.
    ///
    /// # Errors
    /// There are too many descriptors, or no `/proc`.
    pub fn entrance(&self) -> io::Result<Entrance> {
        let user = File::open(OWN_USER)?.into();
        Ok(Entrance { user, network: self.entrance.try_clone()? })
    }

    /// What it is held open by.
    pub(crate) fn descriptor(&self) -> BorrowedFd<'_> {
        self.entrance.as_fd()
    }

    /// Another handle of it.
    ///
    /// # Errors
    /// There are too many descriptors.
    pub(crate) fn try_clone(&self) -> io::Result<Self> {
        Ok(Self { entrance: self.entrance.try_clone()? })
    }

    /// What `work` answers when a thread in the namespace does it. Sockets and devices that it opens belong to the namespace
    /// wherever they are used later.
    ///
    /// # Errors
    /// The namespace cannot be entered, or what `work` says.
    pub fn within<T: Send>(&self, work: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
        let enter = || {
            move_into_link_name_space(self.entrance.as_fd(), Some(LinkNameSpaceType::Network))?;
            work()
        };
        let done = thread::scope(|scope| scope.spawn(enter).join());
        done.unwrap_or_else(|_| Err(io::Error::other("a thread in a namespace panicked")))
    }

    /// Starts a command in the namespace, where the calling thread stays from then on: without privileges outside of its user
    /// namespace it could not go back. The command is terminated when the calling thread ends, however that happens, and it has the
    /// network's mark ([`crate::leftovers`]).
    ///
    /// # Errors
    /// It cannot be started.
    pub fn spawn(&self, command: &mut Command) -> io::Result<Child> {
        self.spawn_bound(command, Signal::TERM)
    }

    /// The same with a command that is killed then, and gets no time to end in order: one that would wait for a network that has
    /// gone with the same thread.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn spawn_mortal(&self, command: &mut Command) -> io::Result<Child> {
        self.spawn_bound(command, Signal::KILL)
    }

    fn spawn_bound(&self, command: &mut Command, end: Signal) -> io::Result<Child> {
        end_with_parent(command, end);
        mark(command, std::process::id())?;
        // The parent whose end counts is the thread that starts the command, so it has to be this one.
        move_into_link_name_space(self.entrance.as_fd(), Some(LinkNameSpaceType::Network))?;
        command.spawn()
    }
}

/// Starts a command where the calling thread is. It is terminated when that thread ends, however that happens.
///
/// # Errors
/// It cannot be started.
pub fn spawn_here(command: &mut Command) -> io::Result<Child> {
    end_with_parent(command, Signal::TERM);
    command.spawn()
}

/// Starts a command in a network namespace of its own, where it is at the end of no link and has no mark. It is not ended with
/// this process.
///
/// # Errors
/// It cannot be started, or this process may make no namespace.
pub fn spawn_apart(command: &mut Command) -> io::Result<Child> {
    unmark(command);
    let start = || {
        unshare_network()?;
        command.spawn()
    };
    let started = thread::scope(|scope| scope.spawn(start).join());
    started.unwrap_or_else(|_| Err(io::Error::other("a thread panicked")))
}

/// Moves the calling thread into a network namespace of its own.
///
/// # Errors
/// The process may not.
#[expect(unsafe_code, reason = "rustix cannot know that the flag has nothing to do with file descriptors")]
fn unshare_network() -> rustix::io::Result<()> {
    // SAFETY: what makes the call unsafe is a table of descriptors that threads stop sharing; NEWNET leaves it alone.
    unsafe { unshare_unsafe(UnshareFlags::NEWNET) }
}

#[expect(unsafe_code, reason = "the standard library has no safe way to say this of a child")]
fn end_with_parent(command: &mut Command, end: Signal) {
    // SAFETY: between fork and exec the closure makes one system call, and neither allocates nor locks.
    unsafe {
        command.pre_exec(move || set_parent_process_death_signal(Some(end)).map_err(io::Error::from));
    }
}
