//! Flushes that were answered while commands before them are not. Over several connections the answers come as they come: a unit that was
//! reset tells so to the first command that it takes then, and the good answer to a flush behind that one may be there first. Nobody may
//! hear of it before what it was to cover is known to be lost or not.

use lunette_iscsi::initiator::session::TaskHandle;

use super::{Engine, replay};
use crate::{CommandError, Status};

/// A flush with its answer.
#[derive(Debug)]
pub(super) struct Held {
    place: u32,
    status: Status,
    /// What was sent to the unit before it and is not answered.
    before: Vec<TaskHandle>,
}

impl Engine {
    /// Holds the good answer to a flush, if it may have overtaken another. True if it does.
    pub(super) fn holds(&mut self, place: u32, status: &Status) -> bool {
        let is_flush = self.table.get(place).is_some_and(|pending| replay::is_flush(&pending.command));
        let connections = self.options.connections.min(self.session.parameters().max_connections);
        if !is_flush || status.code != 0 || connections < 2 {
            return false;
        }
        let before = self.table.sent_before(place);
        let is_held = !before.is_empty();
        if is_held {
            self.held.push(Held { place, status: status.clone(), before });
        }
        is_held
    }

    /// Ends the flushes before which everything is answered now. In a session that is lost nobody knows what the others would have told.
    pub(super) fn release(&mut self) {
        let is_over = self.session.is_over();
        // The end of one may let go the next.
        while let Some(at) = self.held.iter().position(|held| self.is_free(held))
            && !is_over
        {
            let Held { place, status, .. } = self.held.remove(at);
            self.end_good(place, status, 0);
        }
    }

    fn is_free(&self, held: &Held) -> bool {
        held.before.iter().all(|task| self.table.of_task(*task).is_none())
    }

    /// The session is lost: the flushes were answered, and promise nothing.
    pub(super) fn drop_held(&mut self, reason: &str) {
        for held in std::mem::take(&mut self.held) {
            self.end(held.place, (Err(CommandError::Unknown(reason.to_owned())), 0));
        }
    }

    /// Ends a command with GOOD, unless it is a flush beside which a reset came to light: that may have been after writes that it is to
    /// cover.
    pub(super) fn end_good(&mut self, place: u32, status: Status, received: u32) {
        if self.takes_reset(place) {
            self.end(place, (Err(CommandError::ResetSinceFlush), 0));
        } else {
            self.end(place, (Ok(status), received));
        }
    }
}
