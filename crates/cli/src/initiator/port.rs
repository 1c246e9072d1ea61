//! What the commands here need of a session: commands out, completions in.

use std::time::Duration;

use lunette_initiator::multipath::PathInfo;
use lunette_scsi::client::{Command, UnitIdentity};
use lunette_scsi::{Lun, Status};

use crate::failure::Failure;

/// How a command ended.
#[derive(Debug)]
pub(crate) struct Done {
    /// What [`Port::start`] was given.
    pub(crate) tag: u64,
    /// The status, where it is one that is known.
    pub(crate) status: Option<Status>,
    /// Sense data as it came.
    pub(crate) sense: Vec<u8>,
    /// What was received; of a command that writes, the buffer that was sent.
    pub(crate) data: Vec<u8>,
    /// The session that it counts as of, as [`lunette_initiator::Completion::session`] has it.
    pub(crate) session: u32,
}

/// How often a session of which nothing is under way is to be [attended](Port::attend): targets are content with an answer to a ping within
/// a few seconds.
pub(crate) const IDLE_INTERVAL: Duration = Duration::from_millis(500);
/// The same while commands are under way, whose data is to go on.
pub(crate) const BUSY_INTERVAL: Duration = Duration::from_millis(5);

/// A session with a target, for one thread.
pub(crate) trait Port: Send {
    /// Sends a command. `data` is the Data-Out that it announces, or a buffer with room for the Data-In.
    ///
    /// # Errors
    /// The session is over.
    fn start(&mut self, lun: Lun, tag: u64, command: &Command, data: Vec<u8>) -> Result<(), Failure>;

    /// Waits for a command to end. One must be under way.
    ///
    /// # Errors
    /// The session is over, or what a command did is not known.
    fn finish(&mut self) -> Result<Done, Failure>;

    /// Does what a session has to do while nobody waits for a command, if it is time for that, and waits for nothing: a target whose pings
    /// are not answered ends it, and with it what is known of writes that were not flushed. Says for how long it may be left alone.
    ///
    /// # Errors
    /// The session is over, or what a command did is not known.
    fn attend(&mut self) -> Result<Duration, Failure> {
        Ok(IDLE_INTERVAL)
    }

    /// The time by a clock of its own, which never goes back.
    fn now(&self) -> Duration;

    /// Says which unit this is: if it is another one after the session was lost, its commands fail.
    fn guard(&mut self, lun: Lun, identity: UnitIdentity);

    /// Whether a unit has said that its modes were changed, and so perhaps its write cache.
    fn has_other_modes(&self) -> bool {
        false
    }

    /// The paths, once each of them has been tried; none where there is just one.
    ///
    /// # Errors
    /// The session is over.
    fn paths(&mut self) -> Result<Vec<PathInfo>, Failure> {
        Ok(Vec::new())
    }

    /// Logs out.
    ///
    /// # Errors
    /// What was under way over a lost path may still be carried out, over whatever is written next.
    fn close(self: Box<Self>) -> Result<(), Failure>;
}
