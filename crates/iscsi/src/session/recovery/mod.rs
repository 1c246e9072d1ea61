//! Error recovery above level 0 (RFC 7143, chapter 7): what is kept for it, and how it is used.
//!
//! Level 1 sends again what digest errors have spoilt: numbered responses are in each connection's [`StatusLog`], the ends
//! of commands with the data of reads in [`Answers`], until the initiator acknowledges them; `snack` serves its requests.
//! Data-Out is asked for again in `data_out`. Level 2 keeps the tasks of a connection that is lost, in `connections`, and
//! gives them to another one, in `reassign`. At level 0 nothing of this is kept.

mod answers;
mod connections;
mod log;
mod reassign;
mod send;
mod snack;
#[cfg(test)]
mod tests;

use std::time::Duration;

use lunette_wire::Cid;

pub(super) use answers::Answers;
pub(super) use connections::Removed;
pub(super) use log::{Logged, StatusLog};
pub(super) use snack::Resends;

use super::connection::Connection;
use super::{Outbox, Session, Share};

/// What a session keeps beyond its connections.
#[derive(Debug)]
pub(super) struct Recovery<D> {
    pub(super) answers: Answers<D>,
    /// Groups of tasks that wait for a new allegiance.
    pub(super) removed: Vec<Removed>,
    next_removal: u32,
    /// When the session ends that has no connection.
    alone_due: Option<Duration>,
    /// Nothing is retained any more: the target is about to stop.
    pub(super) is_draining: bool,
}

impl<D> Recovery<D> {
    pub(super) fn new(read_bytes_max: u64) -> Self {
        Self {
            answers: Answers::new(read_bytes_max),
            removed: Vec::new(),
            next_removal: 0,
            alone_due: None,
            is_draining: false,
        }
    }
}

impl<D: Share> Session<D> {
    /// What goes out is kept until it is acknowledged (ErrorRecoveryLevel 1 and 2).
    pub(super) const fn recovers(&self) -> bool {
        self.parameters.error_recovery_level > 0
    }

    /// Bytes of memory that answered reads keep until they are acknowledged, in case they are to be sent again.
    #[must_use]
    pub const fn kept_read_bytes(&self) -> u64 {
        self.recovery.answers.data_bytes()
    }

    /// Bounds [`Self::kept_read_bytes`] from now on, in place of what its [settings](super::SessionSettings) have. What is too much is
    /// forgotten, the oldest first.
    pub fn bound_kept_reads(&mut self, bytes_max: u64) {
        self.recovery.answers.bound_data(bytes_max);
    }

    /// True while tasks of a connection that fails are kept for another one (ErrorRecoveryLevel 2, 7.1.4.3).
    #[must_use]
    pub const fn retains(&self) -> bool {
        self.parameters.error_recovery_level > 1
            && self.parameters.default_time2retain_s > 0
            && !self.recovery.is_draining
            && !self.closing
    }

    /// True while something can be sent on a connection.
    pub(super) fn carries(&self, cid: Cid) -> bool {
        let is_fit = |connection: &Connection| !connection.closing && !connection.failed;
        self.connections.iter().any(|connection| connection.cid == cid && is_fit(connection))
    }

    /// Keeps a numbered response that goes out now, within bounds.
    pub(super) fn log_status(&mut self, cid: Cid, logged: Logged) {
        let entries_max = self.statuses_kept_max();
        let Some(connection) = self.connections.iter_mut().find(|connection| connection.cid == cid) else {
            return;
        };
        connection.log.push(logged);
        while let Some(excess) = connection.log.take_excess(entries_max) {
            if let Logged::Answer(id) = excess {
                self.recovery.answers.remove(id);
            }
        }
    }

    /// An initiator that lets half of what is kept pile up is asked to acknowledge it: by a ping, whose answer does.
    pub(super) fn ask_for_acknowledgement(&mut self, cid: Cid, outbox: &mut Outbox<D>) {
        let half = self.statuses_kept_max() / 2;
        if self.connection_mut(cid).is_some_and(|connection| connection.log.len() == half) {
            self.send_ping(cid, outbox);
        }
    }

    /// Twice what an initiator can have outstanding, and some of its own requests' answers.
    fn statuses_kept_max(&self) -> usize {
        2 * usize::from(self.settings.window_depth) + 256
    }

    /// Gives back what a connection's initiator has acknowledged.
    pub(super) fn release_acknowledged(&mut self, cid: Cid) {
        let Some(connection) = self.connections.iter_mut().find(|connection| connection.cid == cid) else {
            return;
        };
        while let Some(logged) = connection.log.take_before(connection.acknowledged()) {
            if let Logged::Answer(id) = logged {
                self.recovery.answers.remove(id);
            }
        }
    }
}
