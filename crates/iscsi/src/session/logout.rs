//! Ends of sessions (RFC 7143, 6.3.5, 7.1.4.4, 11.14, 11.15): logout, lost connections, and what waits for the last task.

use lunette_wire::initiator::{LogoutReason, LogoutRequest};
use lunette_wire::target::LogoutResponse;
use lunette_wire::{Cid, InitiatorTaskTag};

use super::{CloseReason, Event, Outbox, Session};

/// A logout that is answered once no task of the session is left in a store.
#[derive(Debug, Clone, Copy)]
pub(super) struct PendingLogout {
    cid: Cid,
    initiator_task_tag: InitiatorTaskTag,
}

impl Session {
    /// Logout (11.14, 11.15). The answer waits until no task is left in a store, so that nothing of this session
    /// can overtake what a later session writes.
    pub(super) fn log_out<D>(&mut self, cid: Cid, pdu: &LogoutRequest, outbox: &mut Outbox<D>) {
        const CID_NOT_FOUND: u8 = 1;
        const RECOVERY_NOT_SUPPORTED: u8 = 2;
        let refusal = match pdu.reason {
            LogoutReason::CloseSession => None,
            LogoutReason::CloseConnection => (pdu.cid != cid).then_some(CID_NOT_FOUND),
            LogoutReason::RemoveConnectionForRecovery => Some(RECOVERY_NOT_SUPPORTED),
        };
        if let Some(response) = refusal {
            self.send_logout_response(cid, pdu.initiator_task_tag, response, outbox);
        } else {
            // An initiator has nothing to say after its Logout; a second one changes nothing.
            self.logout.get_or_insert(PendingLogout { cid, initiator_task_tag: pdu.initiator_task_tag });
            self.begin_closing(outbox);
            self.settle(outbox);
        }
    }

    fn send_logout_response<D>(
        &mut self,
        cid: Cid,
        initiator_task_tag: InitiatorTaskTag,
        response: u8,
        outbox: &mut Outbox<D>,
    ) {
        let Some(numbers) = self.status_numbers(cid) else { return };
        let answer = LogoutResponse {
            response,
            initiator_task_tag,
            numbers,
            time2wait_s: self.parameters.default_time2wait_s,
            time2retain_s: self.parameters.default_time2retain_s,
        };
        outbox.send(cid, answer.encode());
    }

    /// Ends the session because its connection is gone or it is being replaced (6.3.5, 7.1.4.4): tasks are
    /// dropped without an answer. [`Event::Ended`] follows when the last one has left its store.
    pub fn close<D>(&mut self, outbox: &mut Outbox<D>) {
        for connection in &mut self.connections {
            connection.closing = true;
        }
        self.begin_closing(outbox);
        self.settle(outbox);
    }

    pub(super) fn close_connection<D>(&mut self, cid: Cid, reason: CloseReason, outbox: &mut Outbox<D>) {
        let Some(connection) = self.connection_mut(cid) else { return };
        if !std::mem::replace(&mut connection.closing, true) {
            outbox.event(Event::Close { cid, reason });
        }
        // With ErrorRecoveryLevel 0 a lost connection takes its session along (7.1.4.4).
        self.begin_closing(outbox);
        self.settle(outbox);
    }

    fn begin_closing<D>(&mut self, outbox: &mut Outbox<D>) {
        self.closing = true;
        self.management.clear();
        self.early_functions.clear();
        self.window.drain().for_each(drop);
        self.parked_bytes = 0;
        for id in self.tasks.ids(|_| true) {
            self.abort(id, None, outbox);
        }
    }

    /// After anything that may have ended a task: sends what was waiting for that.
    pub(super) fn settle<D>(&mut self, outbox: &mut Outbox<D>) {
        self.settle_management(outbox);
        self.tell_window(outbox);
        if !self.closing || self.tasks.len() > 0 || self.ended {
            return;
        }
        if let Some(logout) = self.logout.take() {
            self.send_logout_response(logout.cid, logout.initiator_task_tag, 0, outbox);
            if let Some(connection) = self.connection_mut(logout.cid)
                && !std::mem::replace(&mut connection.closing, true)
            {
                outbox.event(Event::Close { cid: logout.cid, reason: CloseReason::Logout });
            }
        }
        self.ended = true;
        outbox.event(Event::Ended);
    }
}
