//! Commands that the target has not received come again (RFC 7143, 7.2.1, 7.3), and what is missing is asked for again by
//! the clock (7.1.4.1, 7.1.4.2).

use std::time::Duration;

use lunette_wire::{CmdSn, InitiatorTaskTag};

use super::super::connection::Entry;
use super::super::task::Stage;
use super::super::{ConnectionId, Session};

/// How often a command is sent again whose data the target gets spoilt each time.
const RETRIES_MAX: u8 = 8;

impl Session {
    /// Sends a command again, with its number and on its connection (7.2.1); false when that was done often enough.
    pub(in super::super) fn retry(&mut self, tag: InitiatorTaskTag) -> bool {
        let Some(task) = self.tasks.get_mut(tag).filter(|task| task.retries < RETRIES_MAX) else {
            return false;
        };
        let (id, cmd_sn) = (task.connection, task.cmd_sn);
        task.retries += 1;
        task.begin_anew();
        let Some(connection) = self.connection_mut(id) else { return false };
        connection.requests.retain(|entry| !matches!(entry, Entry::Data(data) if data.task == tag));
        connection.solicited.retain(|data| data.task != tag);
        connection.requests.push_back(Entry::Command(tag, cmd_sn));
        true
    }

    /// A ping that was sent at `sent` was answered, and the number that the target waits for belongs to a command that left
    /// before it on the same connection: that was lost (7.2.1).
    pub(in super::super) fn retry_lost(&mut self, id: ConnectionId, exp_cmd_sn: CmdSn, sent: Duration) {
        let lost = self.tasks.iter().find(|(_, task)| {
            task.connection == id
                && task.cmd_sn == exp_cmd_sn
                && task.stage == Stage::Sent
                && task.sent_at < sent
        });
        if let Some((tag, _)) = lost {
            self.retry(tag);
        }
    }

    pub(in super::super) fn lacks_something(&self, id: ConnectionId) -> bool {
        self.recovers() && (self.lacks_statuses(id) || self.lacks_data(id))
    }

    /// Asks again for what has been missing for a while.
    pub(in super::super) fn ask_again(&mut self, now: Duration, id: ConnectionId) {
        let lacks = self.lacks_something(id);
        let interval = self.settings.recovery_interval;
        let Some(connection) = self.connection_mut(id) else { return };
        if !lacks {
            connection.ask_at = None;
        } else if now >= *connection.ask_at.get_or_insert(now.saturating_add(interval)) {
            connection.ask_at = Some(now.saturating_add(interval));
            self.ask_for_statuses(id);
            self.ask_for_data(id);
        }
    }
}
