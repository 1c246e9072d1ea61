//! What a session does by the clock: pings (RFC 7143, 11.19), overdue logouts (11.9.1), aborted tasks whose
//! initiator sends no more data, and data that others wait for.

use std::time::Duration;

use lunette_wire::initiator::NopOut;
use lunette_wire::target::{AsynchronousMessage, NopIn};
use lunette_wire::{Cid, InitiatorTaskTag, LunField, TargetTransferTag};

use super::connection::{Connection, LogoutDue, Ping};
use super::management::DRAIN_TIMEOUT;
use super::task::{Phase, Task, TaskId};
use super::{CloseReason, Outbox, Session, Share};
use crate::parameters::SessionType;

/// AsyncEvent "SCSI async event" (11.9.1).
const ASYNC_SCSI_EVENT: u8 = 0;
/// AsyncEvent "logout request" (11.9.1).
const ASYNC_LOGOUT_REQUEST: u8 = 1;
/// AsyncEvent "session drop notification" (11.9.1).
const ASYNC_SESSION_DROP: u8 = 3;

/// How long others wait for a command whose initiator owes it data. Linux gives a command as long from its beginning, so
/// who needs more has mostly given it up itself.
const DATA_TIMEOUT: Duration = Duration::from_secs(30);

/// How long a fence waits for an acknowledgement while none at all comes. Whoever sends something else is alive, and would let it
/// stand for ever. Twice the time for data: a long answer may have to be taken first, and nobody but the session itself waits.
const ACKNOWLEDGEMENT_TIMEOUT: Duration = Duration::from_secs(60);

impl<D: Share> Session<D> {
    /// Says whether other initiators' commands wait for a task that has been [solicited](Self::solicit) and whose data has not
    /// come; the driver calls this about once a second for each such task. Once that has been so for thirty seconds the session
    /// ends (session recovery, 7.1.4.4): the task alone cannot, since its status may not go out before the end of the
    /// sequences that were asked for (7.8), and a task whose connection is gone has nobody to hear of it.
    pub fn others_wait(&mut self, now: Duration, id: TaskId, do_wait: bool, outbox: &mut Outbox<D>) {
        let Some(task) = self.tasks.get_mut(id).filter(|task| task.phase == Phase::Collecting) else {
            return;
        };
        if !do_wait {
            task.data_due = None;
            return;
        }
        if now < *task.data_due.get_or_insert(now + DATA_TIMEOUT) {
            return;
        }
        match task.allegiance.cid().filter(|&cid| self.carries(cid)) {
            Some(cid) => {
                let overdue = CloseReason::DataOverdue(DATA_TIMEOUT.as_millis());
                self.close_connection(cid, overdue, outbox);
            }
            // It is kept for an initiator that may come back; a reassignment finds no such task then (7.2.2).
            None => {
                self.abort(id, None, outbox);
                self.settle(outbox);
            }
        }
    }

    /// Says whether other initiators' commands wait until answers to reads of this session have been taken; the driver calls this
    /// about once a second. Once that has been so for thirty seconds the session ends (session recovery, 7.1.4.4).
    pub fn others_wait_for_reads(&mut self, now: Duration, do_wait: bool, outbox: &mut Outbox<D>) {
        if !do_wait || self.closing {
            self.reads_due = None;
        } else if now >= *self.reads_due.get_or_insert(now + DATA_TIMEOUT) {
            self.give_up(CloseReason::ReadsOverdue(DATA_TIMEOUT.as_millis()), outbox);
        }
    }

    /// Whether data of a task that was [solicited](Self::solicit) has not come, or comes for one that is over.
    pub fn owes_data(&self) -> bool {
        let owes = |task: &Task| matches!(task.phase, Phase::Collecting | Phase::Held | Phase::Draining);
        !self.tasks.ids(owes).is_empty()
    }

    /// Ends the session (session recovery, 7.1.4.4), which has kept memory for so long that others wait for.
    pub fn give_up_hoard(&mut self, kept_for: Duration, outbox: &mut Outbox<D>) {
        if !self.closing {
            self.give_up(CloseReason::MemoryKept(kept_for.as_millis()), outbox);
        }
    }

    /// Looks at the clock; the driver calls this about once a second.
    pub fn tick(&mut self, now: Duration, outbox: &mut Outbox<D>) {
        for index in 0..self.connections.len() {
            self.tick_connection(now, index, outbox);
        }
        self.tick_declarations(now, outbox);
        self.tick_draining(now, outbox);
        self.tick_recovery(now, outbox);
    }

    /// Asks the initiator to log out within `within` (11.9.1); after that the connection is dropped.
    pub fn request_logout(&mut self, now: Duration, within: Duration, outbox: &mut Outbox<D>) {
        self.end_retention(outbox);
        for index in 0..self.connections.len() {
            let connection = &mut self.connections[index];
            if !connection.is_open() || connection.logout_due.is_some() {
                continue;
            }
            let cid = connection.cid;
            if self.kind == SessionType::Discovery {
                // Nothing but answers is sent to a discovery session; its connection may simply be dropped (7.4.3).
                self.close_connection(cid, CloseReason::DiscoveryOver, outbox);
                continue;
            }
            connection.logout_due = Some(LogoutDue { at: now + within, within });
            let seconds = u16::try_from(within.as_secs().max(1)).unwrap_or(u16::MAX);
            self.send_event(cid, ASYNC_LOGOUT_REQUEST, [0, 0, seconds], outbox);
        }
    }

    /// Tells the initiator that all connections of this session are about to be dropped (4.2.6, 11.9.1). It may come
    /// back after DefaultTime2Wait; no task is kept for it.
    pub fn announce_drop(&mut self, outbox: &mut Outbox<D>) {
        let time2wait_s = self.parameters.default_time2wait_s;
        for index in 0..self.connections.len() {
            let connection = &self.connections[index];
            if connection.closing {
                continue;
            }
            let cid = connection.cid;
            self.send_event(cid, ASYNC_SESSION_DROP, [0, time2wait_s, 0], outbox);
        }
    }

    /// The connection on which [`Self::report_scsi_event`] tells, if there is one now.
    pub fn event_connection(&self) -> Option<Cid> {
        let is_open = |connection: &&Connection| connection.is_open() && connection.logout_due.is_none();
        self.connections.iter().find(is_open).map(|connection| connection.cid)
    }

    /// Tells the initiator of something that has happened to a logical unit, by sense data (11.9.1, event 0; 11.9.4), on one
    /// of its connections. Whether it wants that is the driver's to know.
    pub fn report_scsi_event(&mut self, lun: LunField, sense: &[u8], outbox: &mut Outbox<D>) {
        let Some(cid) = self.event_connection() else { return };
        let Ok(length) = u16::try_from(sense.len()) else { return };
        if self.closing {
            return;
        }
        let data = [&length.to_be_bytes()[..], sense].concat();
        let message = AsynchronousMessage { lun, event: ASYNC_SCSI_EVENT, ..AsynchronousMessage::default() };
        let data_length = data.len();
        self.send_status(cid, data, outbox, |numbers| {
            AsynchronousMessage { numbers, ..message }.encode(data_length)
        });
    }

    /// An Asynchronous Message (11.9) without data.
    pub(super) fn send_event(&mut self, cid: Cid, event: u8, parameters: [u16; 3], outbox: &mut Outbox<D>) {
        let message = AsynchronousMessage { event, parameters, ..AsynchronousMessage::default() };
        self.send_status(cid, Vec::new(), outbox, |numbers| {
            AsynchronousMessage { numbers, ..message }.encode(0)
        });
    }

    fn tick_connection(&mut self, now: Duration, index: usize, outbox: &mut Outbox<D>) {
        let connection = &mut self.connections[index];
        if connection.closing {
            return;
        }
        let cid = connection.cid;
        if let Some(due) = connection.logout_due.filter(|due| now >= due.at) {
            let late = CloseReason::LogoutOverdue(due.within.as_millis());
            return self.close_connection(cid, late, outbox);
        }
        let is_awaited = self.fence.waits_for(cid);
        if connection.stuck_for(now, is_awaited) >= ACKNOWLEDGEMENT_TIMEOUT {
            let stuck = CloseReason::Unacknowledged(ACKNOWLEDGEMENT_TIMEOUT.as_millis());
            return self.close_connection(cid, stuck, outbox);
        }
        if let Some(ping) = connection.ping {
            // Any PDU shows that the initiator lives, even when it leaves the ping unanswered.
            if connection.heard_at >= ping.sent_at {
                connection.ping = None;
            } else if now.saturating_sub(ping.sent_at) >= self.settings.nop_timeout {
                let silent = CloseReason::Silent(self.settings.nop_timeout.as_millis());
                return self.close_connection(cid, silent, outbox);
            }
            return;
        }
        if is_awaited {
            // The fence has asked, whether or not there is a keepalive: an initiator that is dead must not hold it up.
            connection.ping = Some(Ping { tag: connection.latest_ping_tag(), sent_at: now });
            return;
        }
        if connection.leaving {
            // Its initiator has nothing more to say (11.14).
            return;
        }
        let silence = now.saturating_sub(connection.heard_at);
        let Some(interval) = self.settings.nop_interval.filter(|&interval| silence >= interval) else {
            return;
        };
        if self.kind == SessionType::Normal {
            self.ping(now, index, outbox);
        } else if silence >= interval + self.settings.nop_timeout {
            // A discovery session is not pinged (7.4.3): it has as long as a ping and its answer would have.
            let idle = CloseReason::DiscoveryIdle(silence.as_millis());
            self.close_connection(cid, idle, outbox);
        }
    }

    /// Notes that bytes moved on a connection at `at`, though no whole PDU has come: on a slow link a PDU, or the way of
    /// a ping through what is queued before it, can take longer than a dead initiator is given.
    pub fn saw_progress(&mut self, at: Duration, cid: Cid) {
        if let Some(connection) = self.connection_mut(cid) {
            connection.heard_at = connection.heard_at.max(at);
        }
    }

    fn ping(&mut self, now: Duration, index: usize, outbox: &mut Outbox<D>) {
        let cid = self.connections[index].cid;
        if let Some(tag) = self.send_ping(cid, outbox) {
            self.connections[index].ping = Some(Ping { tag, sent_at: now });
        }
    }

    /// Sends a ping, whose answer brings an ExpStatSN.
    pub(super) fn send_ping(&mut self, cid: Cid, outbox: &mut Outbox<D>) -> Option<TargetTransferTag> {
        let numbers = self.peek_numbers(cid)?;
        let tag = self.connection_mut(cid)?.ping_tag();
        let ping = NopIn {
            lun: LunField::default(),
            initiator_task_tag: InitiatorTaskTag::RESERVED,
            target_transfer_tag: tag,
            numbers,
        };
        outbox.send(cid, ping.encode(0));
        Some(tag)
    }

    /// A NOP-Out that answers a ping of ours ends it.
    pub(super) fn answer_to_ping(&mut self, cid: Cid, pdu: &NopOut) {
        if pdu.target_transfer_tag != TargetTransferTag::RESERVED
            && let Some(connection) = self.connection_mut(cid)
            && connection.ping.is_some_and(|ping| ping.tag == pdu.target_transfer_tag)
        {
            connection.ping = None;
        }
    }

    fn tick_draining(&mut self, now: Duration, outbox: &mut Outbox<D>) {
        let draining = self.tasks.ids(|task| task.phase == Phase::Draining);
        let mut gave_up = false;
        for id in draining {
            let Some(task) = self.tasks.get_mut(id) else { continue };
            if now >= *task.drain_due.get_or_insert(now + DRAIN_TIMEOUT) {
                self.forget(id);
                gave_up = true;
            }
        }
        if gave_up {
            self.settle(outbox);
        }
    }
}
