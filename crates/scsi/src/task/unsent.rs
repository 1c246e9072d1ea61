//! A read that has ended before its data was taken from the medium.

use std::sync::Arc;

use super::Task;
use crate::nexus::Nexus;
use crate::paths::Path;
use crate::task_set::Member;
use crate::unit::LogicalUnit;

impl Task {
    /// Whether the answer to a read may be taken from the medium after the command has ended: while commands come that are
    /// not SIMPLE, or are alone at the medium, they would have to wait for an initiator that does not take its data. To
    /// be asked once a read: the answer is yes again after many of them without such a command.
    pub fn may_send_later(&self, nexus: &Nexus) -> bool {
        self.path.and_then(|index| nexus.path(index)).is_some_and(|path| path.unit.tasks().may_send_later())
    }

    /// Holds up ORDERED commands, and those that are to be alone at the medium, until the answer to this read, which ends now,
    /// has been taken from the medium.
    pub fn send_later(&mut self, nexus: &Nexus) -> Option<Unsent> {
        let path = self.path.and_then(|index| nexus.path(index))?;
        self.sends_later = true;
        Some(Unsent::of(path))
    }
}

/// The answer to a read whose command has ended, while the transport has yet to take it from the medium. An ORDERED
/// command waits until it is dropped, and so does one that is to be alone at the medium.
#[derive(Debug)]
pub struct Unsent {
    unit: Arc<LogicalUnit>,
    member: Arc<Member>,
}

impl Unsent {
    /// Of a read by this path.
    pub(super) fn of(path: &Path) -> Self {
        path.unit.tasks().hold_unsent(&path.member);
        Self { unit: Arc::clone(&path.unit), member: Arc::clone(&path.member) }
    }

    /// Whether the read was of this unit.
    pub fn is_of(&self, unit: &LogicalUnit) -> bool {
        std::ptr::eq(&*self.unit, unit)
    }
}

impl Drop for Unsent {
    fn drop(&mut self) {
        self.unit.tasks().release_unsent(&self.member);
    }
}
