//! The blocking face of a session, for programs that do one thing at a time.
//!
//! ```no_run
//! use lunette_initiator::{Command, TargetUrl, blocking::Session};
//!
//! let url: TargetUrl = "iscsi://192.0.2.10/iqn.2026-11.io.lunette:disk0/0".parse()?;
//! let session = Session::connect(url.options())?;
//! // READ(10) of block 0.
//! let read = Command::new(url.lun, [0x28, 0, 0, 0, 0, 0, 0, 0, 1, 0]).reading(vec![0; 512]);
//! let completion = session.execute(read);
//! println!("{:?}: {} bytes", completion.result, completion.received);
//! session.log_out();
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake};
use std::thread::Thread;

use lunette_iscsi::initiator::session::Function;

use crate::{Command, CommandError, Completion, Error, Options, Submitted};

/// A session whose calls wait for their answers. [`Self::handle`] is its other face, for more at once.
#[derive(Debug, Clone)]
pub struct Session(crate::Session);

impl Session {
    /// Logs in.
    ///
    /// # Errors
    /// As [`crate::Engine::connect`].
    pub fn connect(options: Options) -> Result<Self, Error> {
        wait_for(crate::Session::connect(options)).map(Self)
    }

    /// Logs in over several paths to one logical unit.
    ///
    /// # Errors
    /// As [`crate::Session::connect_paths`].
    pub fn connect_paths(options: crate::multipath::Options) -> Result<Self, Error> {
        wait_for(crate::Session::connect_paths(options)).map(Self)
    }

    /// Sends a command and waits until it is over.
    #[must_use]
    pub fn execute(&self, command: Command) -> Completion {
        wait_for(self.0.submit(command))
    }

    /// Sends commands together and waits until all are over; the completions are in the commands' order.
    #[must_use]
    pub fn execute_all(&self, commands: impl IntoIterator<Item = Command>) -> Vec<Completion> {
        let submitted: Vec<_> = commands.into_iter().map(|command| self.0.submit(command)).collect();
        submitted.into_iter().map(wait_for).collect()
    }

    /// Asks for a task management function; answers the response code (RFC 7143, 11.6.1).
    ///
    /// # Errors
    /// As [`crate::Session::manage`].
    pub fn manage(&self, function: Function) -> Result<u8, CommandError> {
        wait_for(self.0.manage(function))
    }

    /// Logs out.
    pub fn log_out(&self) {
        wait_for(self.0.log_out());
    }

    /// The asynchronous face.
    #[must_use]
    pub const fn handle(&self) -> &crate::Session {
        &self.0
    }
}

/// Waits for a command that was sent by [`Session::handle`].
#[must_use]
pub fn wait(submitted: Submitted) -> Completion {
    wait_for(submitted)
}

/// Wakes the thread that waits.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Runs a future on this thread.
fn wait_for<T>(future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    let waker = Arc::new(Unpark(std::thread::current())).into();
    let mut context = Context::from_waker(&waker);
    loop {
        if let Poll::Ready(value) = future.as_mut().poll(&mut context) {
            return value;
        }
        std::thread::park();
    }
}
