//! Where operations go: a session with a target, or a volume of this machine.

mod local;
mod session;

use std::ops::DerefMut;
use std::time::Duration;

use lunette_wire::InitiatorTaskTag;
use lunette_workload::Operation;

use crate::bench::split::SessionName;
use crate::{Ending, LabError, Negotiated};

pub(crate) use local::Local;
pub use local::WriteMode;
pub(crate) use session::{Session, SessionDisk};

/// How often who waits for a flush looks whether that is to stop.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);

/// How an operation ended.
#[derive(Debug)]
pub(crate) enum End {
    Good,
    /// Not now: it is sent again at once.
    Again,
    /// There is no room for it (BUSY, TASK SET FULL), or the unit becomes ready only now: it is sent again when others have ended.
    Busy,
    Failed(Fault),
}

/// Why an operation failed for good, in words.
#[derive(Debug)]
pub(crate) enum Fault {
    /// The target or the store refused it.
    Refused(String),
    /// Nobody answered it.
    Lost(String),
}

impl Fault {
    pub(crate) fn reason(&self) -> &str {
        match self {
            Self::Refused(reason) | Self::Lost(reason) => reason,
        }
    }

    /// How the measurement ends because of it.
    pub(crate) fn ending(&self, of: &str) -> Ending {
        let text = format!("{of}: {}", self.reason());
        match self {
            Self::Refused(_) => Ending::Refused(text),
            Self::Lost(_) => Ending::Lost(text),
        }
    }
}

/// When it was where, since the endpoint's start.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Moments {
    pub(crate) queued: Duration,
    /// The system took its first byte.
    pub(crate) sent: Option<Duration>,
    /// The first byte of the answer came.
    pub(crate) first_byte: Option<Duration>,
    pub(crate) done: Duration,
    /// By which its target knew it.
    pub(crate) tag: Option<InitiatorTaskTag>,
}

/// An operation that is over.
#[derive(Debug)]
pub(crate) struct Ended<B> {
    pub(crate) slot: u32,
    pub(crate) end: End,
    /// Nothing where the endpoint has lost it.
    pub(crate) buffer: Option<B>,
    pub(crate) moments: Moments,
}

/// One worker's way to a disk.
pub(crate) trait Endpoint {
    /// Memory that operations read into and write from.
    type Buffer: DerefMut<Target = [u8]>;

    /// Since the endpoint's start.
    fn now(&self) -> Duration;

    /// Whether what is written from now on only fills the disk, behind which there is a flush: then single writes need not be stable.
    fn fills(&mut self, _is_filling: bool) {}

    /// A buffer of this length. Its content is left to chance, and may have been read from the disk: who writes fills it.
    ///
    /// # Errors
    /// There is no memory.
    fn buffer(&mut self, length_bytes: u32) -> Result<Self::Buffer, LabError>;

    /// Takes a buffer back.
    fn recycle(&mut self, buffer: Self::Buffer);

    /// Begins an operation; `slot` comes back with its end.
    fn submit(&mut self, slot: u32, operation: &Operation, buffer: Self::Buffer);

    /// Waits until something has ended or the time is up, and adds what has ended.
    ///
    /// # Errors
    /// The system.
    fn poll(&mut self, timeout: Duration, ended: &mut Vec<Ended<Self::Buffer>>) -> Result<(), LabError>;

    /// Has all that was written made stable, however long it takes, unless that is to stop: it is looked at again and again. False if it
    /// was stopped, and something may be under way.
    ///
    /// # Errors
    /// It cannot be.
    fn flush_unless(&mut self, stops: &dyn Fn() -> bool) -> Result<bool, LabError>;

    /// The same, which nobody stops.
    ///
    /// # Errors
    /// It cannot be.
    fn flush(&mut self) -> Result<(), LabError> {
        self.flush_unless(&|| false).map(drop)
    }

    /// What was agreed with the target, where there is one.
    fn negotiated(&self) -> Option<Negotiated> {
        None
    }

    /// The names of its session, if it has one and has never had another.
    fn session_name(&self) -> Option<SessionName> {
        None
    }

    /// How often the session was lost.
    fn losses(&self) -> u64 {
        0
    }

    /// Takes leave, of whom there is one.
    fn close(self)
    where
        Self: Sized,
    {
    }

    /// Ends without a word, where nobody waits for what is under way.
    fn abandon(self)
    where
        Self: Sized,
    {
    }
}
