//! One operation of a third-party copy, as the task set of its unit sees it.
//!
//! The copy itself is a command of another unit, or of the same: see [`crate::commands`].

use std::sync::Arc;

use super::Place;
use crate::paths::Path;
use crate::task_set::{Attribute, Entry, Ticket, Turn};
use crate::unit::LogicalUnit;

/// One read or write of a copy. In its unit's task set it counts as a SIMPLE command that has begun before all that wait.
#[derive(Debug)]
pub(super) struct Piece {
    pub(super) unit: Arc<LogicalUnit>,
    /// Through whose nexus; nobody's is not counted.
    pub(super) path: Option<Path>,
    pub(super) place: Place,
    /// What it waits for, where it does.
    pub(super) ticket: Ticket,
}

impl Piece {
    /// Its turn has come, or may have. False: it has to wait.
    pub(super) fn enter(&mut self, turn: impl FnOnce() -> Turn) -> bool {
        let Some(Path { member, .. }) = &self.path else { return true };
        let tasks = self.unit.tasks();
        self.place = match self.place {
            Place::Stalled if !tasks.take_turn(self.ticket) => Place::Stalled,
            Place::Outside => match tasks.enter_begun(member, turn()) {
                Entry::Waits(ticket) => {
                    self.ticket = ticket;
                    Place::Stalled
                }
                Entry::Begun | Entry::Full | Entry::Refused(_) => Place::Running,
            },
            _ => Place::Running,
        };
        self.place == Place::Running
    }

    /// It is over, or will not be done.
    pub(super) fn leave(self) {
        let Some(Path { member, .. }) = &self.path else { return };
        match self.place {
            Place::Running => self.unit.tasks().leave(member, Attribute::Simple, false),
            Place::Stalled => self.unit.tasks().cancel(self.ticket, member, Attribute::Simple),
            _ => {}
        }
    }
}
