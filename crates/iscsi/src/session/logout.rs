//! Ends of connections and sessions (RFC 7143, 6.3.4, 6.3.5, 7.1.4.4, 7.14, 11.14, 11.15): logout, reinstatement, lost
//! connections, and what waits for the last task.
//!
//! A connection that is logged out, or whose CID another login takes, *leaves*: its tasks end without an answer, and the
//! session goes on. One that fails takes the session along, since below ErrorRecoveryLevel 2 nobody would send again
//! what was lost with it (7.14); at level 2 see `recovery/connections`.

use lunette_wire::initiator::{LogoutReason, LogoutRequest};
use lunette_wire::target::LogoutResponse;
use lunette_wire::{Cid, InitiatorTaskTag, LunField, StatSn};

use super::fence::Fence;
use super::requests::{Parked, Request};
use super::task::{Phase, TaskId};
use super::{CloseReason, Event, Outbox, Session, Share};
use crate::parameters::SessionType;

/// The most logouts of a session that wait for stores at once: one for each connection that may be logged out.
const LOGOUTS_MAX: usize = crate::parameters::CONNECTIONS_MAX as usize;

/// AsyncEvent "connection drop notification" (11.9.1).
pub(super) const ASYNC_CONNECTION_DROP: u8 = 2;

/// A logout that is answered once no task of what it closes is left in a store.
#[derive(Debug, Clone, Copy)]
pub(super) struct PendingLogout {
    /// The connection that it came on.
    on: Cid,
    initiator_task_tag: InitiatorTaskTag,
    /// The connection that it closes; `None` for the session.
    of: Option<Cid>,
}

impl<D: Share> Session<D> {
    /// Logout (11.14, 11.15). The answer waits until no task is left in a store, so that nothing of the connection or
    /// session can overtake what is written later.
    pub(super) fn log_out(&mut self, cid: Cid, pdu: &LogoutRequest, outbox: &mut Outbox<D>) {
        const CID_NOT_FOUND: u8 = 1;
        const RECOVERY_NOT_SUPPORTED: u8 = 2;
        const CLEANUP_FAILED: u8 = 3;
        if self.logouts.iter().any(|logout| logout.on == cid && logout.of.is_none_or(|of| of == cid)) {
            // An initiator has nothing to say after its Logout; a second one changes nothing.
            return;
        }
        let for_recovery = pdu.reason == LogoutReason::RemoveConnectionForRecovery;
        let refusal = match self.connection_mut(pdu.cid).map(|connection| connection.leaving) {
            _ if for_recovery && self.parameters.error_recovery_level < 2 => Some(RECOVERY_NOT_SUPPORTED),
            None if pdu.reason != LogoutReason::CloseSession => Some(CID_NOT_FOUND),
            Some(true) if for_recovery => Some(CLEANUP_FAILED),
            _ => (self.logouts.len() >= LOGOUTS_MAX).then_some(CLEANUP_FAILED),
        };
        if let Some(response) = refusal {
            return self.send_logout_response(cid, pdu.initiator_task_tag, response, outbox);
        }
        if for_recovery && self.retains() {
            // Nothing is waited for: what is in a store is answered on another connection.
            self.send_logout_response(cid, pdu.initiator_task_tag, 0, outbox);
            return self.remove_for_recovery(pdu.cid, outbox);
        }
        self.settle_removed(outbox);
        // The last connection's end is the session's, unless something waits for recovery (6.3.5).
        let is_last = self.connections.iter().all(|other| other.cid == pdu.cid || other.leaving)
            && self.recovery.removed.is_empty();
        let of = (pdu.reason != LogoutReason::CloseSession && !is_last).then_some(pdu.cid);
        self.logouts.push(PendingLogout { on: cid, initiator_task_tag: pdu.initiator_task_tag, of });
        match of {
            Some(of) => {
                self.retire(of, outbox);
                if of != cid {
                    self.emit_close(of, CloseReason::Logout, outbox);
                }
            }
            None => {
                self.close_others(cid, &CloseReason::Logout, outbox);
                self.begin_closing(outbox);
            }
        }
        self.settle(outbox);
    }

    fn send_logout_response(
        &mut self,
        cid: Cid,
        initiator_task_tag: InitiatorTaskTag,
        response: u8,
        outbox: &mut Outbox<D>,
    ) {
        // Who has gone meanwhile gets no answer.
        if self.connection_mut(cid).is_none_or(|connection| connection.closing) {
            return;
        }
        let answer = LogoutResponse {
            response,
            initiator_task_tag,
            time2wait_s: self.parameters.default_time2wait_s,
            time2retain_s: self.parameters.default_time2retain_s,
            ..LogoutResponse::default()
        };
        self.send_status(cid, Vec::new(), outbox, |numbers| LogoutResponse { numbers, ..answer }.encode());
    }

    /// True while a logout with this tag waits for its answer.
    pub(super) fn is_logout(&self, tag: InitiatorTaskTag) -> bool {
        self.logouts.iter().any(|logout| logout.initiator_task_tag == tag)
    }

    /// Begins the implicit logout of a connection whose CID a login brings again (6.3.4). The driver has closed it, or
    /// does so now; [`Event::ConnectionEnded`] follows when its last task has left its store. The login says which
    /// statuses have arrived, those before `exp_stat_sn` (11.12.9).
    pub fn reinstate(&mut self, cid: Cid, exp_stat_sn: StatSn, outbox: &mut Outbox<D>) {
        let retains = self.retains();
        let Some(connection) = self.connection_mut(cid) else { return };
        connection.closing = true;
        if retains && !connection.leaving {
            connection.acknowledge(exp_stat_sn);
            self.release_acknowledged(cid);
            self.remove_for_recovery(cid, outbox);
        } else {
            self.retire(cid, outbox);
            self.settle(outbox);
        }
    }

    /// The driver has lost a connection. Unless that was leaving, the session ends (7.1.4.4, 7.14): the initiator is
    /// told on the others, which are closed; tasks are dropped without an answer. [`Event::Ended`] follows.
    ///
    /// Where the session retains what a connection leaves ([`Self::retains`]), it goes on, unless the stream was
    /// broken by something that session recovery has to follow (`is_recoverable` is false): a format error (7.7).
    pub fn connection_lost(&mut self, cid: Cid, is_recoverable: bool, outbox: &mut Outbox<D>) {
        let retains = self.retains() && is_recoverable;
        let Some(connection) = self.connection_mut(cid) else { return };
        if connection.closing || connection.leaving {
            connection.closing = true;
        } else if retains {
            self.retain(cid, outbox);
        } else {
            connection.closing = true;
            self.recover_session(cid, outbox);
        }
    }

    /// Ends the session because it is being replaced or its target reset (6.3.5, 11.5.1): tasks are dropped without an
    /// answer. [`Event::Ended`] follows when the last one has left its store. The driver closes the connections.
    pub fn close(&mut self, outbox: &mut Outbox<D>) {
        for connection in &mut self.connections {
            connection.closing = true;
        }
        self.begin_closing(outbox);
        self.settle(outbox);
    }

    /// Gives a connection up, and the session with it unless that connection was leaving (11.14) or is kept for recovery.
    pub(super) fn close_connection(&mut self, cid: Cid, reason: CloseReason, outbox: &mut Outbox<D>) {
        if self.connection_mut(cid).is_some_and(|connection| connection.leaving) {
            return self.emit_close(cid, reason, outbox);
        }
        let has_died = matches!(reason, CloseReason::Silent(_) | CloseReason::Unacknowledged(_));
        if has_died && self.retains() {
            self.emit_close(cid, reason, outbox);
            return self.retain(cid, outbox);
        }
        self.close_all(cid, reason, outbox);
    }

    /// Gives a connection up, and the session with it.
    fn close_all(&mut self, cid: Cid, reason: CloseReason, outbox: &mut Outbox<D>) {
        if let CloseReason::Silent(_)
        | CloseReason::Unacknowledged(_)
        | CloseReason::LogoutOverdue(_)
        | CloseReason::DataOverdue(_)
        | CloseReason::ReadsOverdue(_)
        | CloseReason::MemoryKept(_) = reason
        {
            // Nothing is wrong with its stream: it is told, too (4.2.6).
            self.announce_failure(outbox);
        }
        self.emit_close(cid, reason, outbox);
        self.recover_session(cid, outbox);
    }

    /// Gives all connections up, and the session with them, whether it has one or not.
    pub(super) fn give_up(&mut self, reason: CloseReason, outbox: &mut Outbox<D>) {
        match self.connections.iter().find(|connection| !connection.closing).map(|connection| connection.cid)
        {
            Some(cid) => self.close_all(cid, reason, outbox),
            None => {
                self.begin_closing(outbox);
                self.settle(outbox);
            }
        }
    }

    /// Session recovery (7.1.4.4) after `cid` has failed.
    fn recover_session(&mut self, cid: Cid, outbox: &mut Outbox<D>) {
        self.announce_failure(outbox);
        self.close_others(cid, &CloseReason::SessionFailed, outbox);
        self.begin_closing(outbox);
        self.settle(outbox);
    }

    /// Once, on all connections that can still be told.
    fn announce_failure(&mut self, outbox: &mut Outbox<D>) {
        if self.kind == SessionType::Normal && !std::mem::replace(&mut self.is_failed, true) {
            self.announce_drop(outbox);
        }
    }

    fn close_others(&mut self, cid: Cid, reason: &CloseReason, outbox: &mut Outbox<D>) {
        for index in 0..self.connections.len() {
            let other = self.connections[index].cid;
            if other != cid {
                self.emit_close(other, reason.clone(), outbox);
            }
        }
    }

    pub(super) fn emit_close(&mut self, cid: Cid, reason: CloseReason, outbox: &mut Outbox<D>) {
        if let Some(connection) = self.connection_mut(cid)
            && !std::mem::replace(&mut connection.closing, true)
        {
            outbox.event(Event::Close { cid, reason });
        }
    }

    /// Ends all that belongs to a connection while the session goes on (11.14, 11.14.5).
    pub(super) fn retire(&mut self, cid: Cid, outbox: &mut Outbox<D>) {
        let Some(connection) = self.connection_mut(cid).filter(|connection| !connection.leaving) else {
            return;
        };
        connection.leaving = true;
        self.leaving += 1;
        self.drop_requests(cid);
        let mut cleared = Vec::new();
        for id in self.tasks.ids(|task| task.is_of(cid)) {
            self.note_cleared(id, &mut cleared);
            self.abort(id, None, outbox);
        }
        self.recovery.answers.retain(|answer| !answer.is_of(cid));
        if let Some(connection) = self.connection_mut(cid) {
            connection.cleared = cleared;
        }
    }

    /// A task is about to end without an answer: its unit is to tell the initiator, unless the command never began.
    pub(super) fn note_cleared(&self, id: TaskId, cleared: &mut Vec<LunField>) {
        if let Some(task) = self.tasks.get(id)
            && task.phase != Phase::Parked
            && !cleared.iter().any(|&lun| (self.settings.same_unit)(lun, task.command.lun))
        {
            cleared.push(task.command.lun);
        }
    }

    /// Forgets what a connection has asked for and has not begun, or is nobody's to answer any more.
    pub(super) fn drop_requests(&mut self, cid: Cid) {
        self.management.retain(|pending| pending.cid != cid);
        self.early_functions.retain(|early| early.cid != cid);
        let tasks = &self.tasks;
        // Requests whose turn had not come are as if they had never been sent: another connection may bring them again.
        // What was refused or aborted has used up its number.
        let unwanted = self.window.discard(|(of, request)| {
            *of == cid
                && match request {
                    Request::Plugged => false,
                    Request::Command(id) => tasks.get(*id).is_some(),
                    _ => true,
                }
        });
        for (_, request) in unwanted {
            self.parked.remove(&request);
        }
    }

    /// Lets connections go that are leaving and have no task any more.
    fn settle_leaving(&mut self, outbox: &mut Outbox<D>) {
        while let Some(index) = self
            .connections
            .iter()
            .position(|connection| connection.leaving && !self.tasks.any(|task| task.is_of(connection.cid)))
        {
            let cid = self.connections[index].cid;
            let is_answered = |logout: &PendingLogout| logout.of == Some(cid);
            for logout in self.logouts.extract_if(.., |logout| is_answered(logout)).collect::<Vec<_>>() {
                self.send_logout_response(logout.on, logout.initiator_task_tag, 0, outbox);
            }
            self.emit_close(cid, CloseReason::Logout, outbox);
            let gone = self.connections.remove(index);
            self.leaving -= 1;
            gone.cleared.into_iter().for_each(|lun| outbox.event(Event::Cleared { lun }));
            outbox.event(Event::ConnectionEnded { cid });
        }
    }

    pub(super) fn begin_closing(&mut self, outbox: &mut Outbox<D>) {
        self.closing = true;
        self.management.clear();
        self.early_functions.clear();
        self.window.drain().for_each(drop);
        self.parked = Parked::default();
        self.recovery.answers.retain(|_| false);
        self.recovery.removed.clear();
        for id in self.tasks.ids(|_| true) {
            self.abort(id, None, outbox);
        }
        self.fence = Fence::default();
    }

    /// After anything that may have ended a task: sends what was waiting for that.
    pub(super) fn settle(&mut self, outbox: &mut Outbox<D>) {
        if self.fence.is_up() {
            self.settle_fence(outbox);
        }
        self.settle_management(outbox);
        if self.leaving > 0 && !self.closing {
            self.settle_leaving(outbox);
        }
        self.tell_window(outbox);
        if !self.closing || self.tasks.len() > 0 || self.ended {
            return;
        }
        for logout in std::mem::take(&mut self.logouts) {
            self.send_logout_response(logout.on, logout.initiator_task_tag, 0, outbox);
            self.emit_close(logout.on, CloseReason::Logout, outbox);
        }
        self.ended = true;
        outbox.event(Event::Ended);
    }
}
