//! Logout (RFC 7143, 11.14 and 11.15): of a connection or of the session, from the request to the end of what belonged to it.

use std::time::Duration;

use lunette_wire::initiator::{LogoutReason, LogoutRequest};
use lunette_wire::target::LogoutResponse;
use lunette_wire::{InitiatorTaskTag, TargetPdu};

use super::connection::Entry;
use super::requests::Kind;
use super::task::Stage;
use super::{ConnectionId, End, Event, Loss, Outbox, Phase, RequestError, RequestHandle, Session, Violation};

/// What is logged out (11.14.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Logout {
    /// All connections, and the session with them.
    Session,
    /// One connection; its tasks are ended. The session is over if it was the last one.
    Connection(ConnectionId),
}

impl Session {
    /// Sends nothing new on a connection; what is under way on it goes on. For the time before a logout.
    pub fn retire(&mut self, connection: ConnectionId) {
        if let Some(connection) = self.connection_mut(connection) {
            connection.is_leaving = true;
        }
    }

    /// Tasks that are under way on a connection.
    #[must_use]
    pub fn tasks_on(&self, connection: ConnectionId) -> usize {
        let is_on = |task: &super::Task| task.stage != Stage::Waiting && task.connection == connection;
        self.tasks.iter().filter(|(_, task)| is_on(task)).count()
    }

    /// Logs out (11.14). What has not ended by the answer ends as [`End::LoggedOut`]; with the session, what waits for the
    /// command window ends at once. [`Event::LoggedOut`] tells which connections to close.
    ///
    /// # Errors
    /// [`RequestError`]; nothing is sent then.
    pub fn logout(
        &mut self,
        now: Duration,
        of: Logout,
        outbox: &mut Outbox,
    ) -> Result<RequestHandle, RequestError> {
        if self.phase != Phase::Open {
            return Err(RequestError::Closed);
        }
        let (id, reason) = match of {
            Logout::Session => {
                let any = self.connections.iter().min_by_key(|connection| connection.is_leaving);
                (any.ok_or(RequestError::Closed)?.id, LogoutReason::CloseSession)
            }
            Logout::Connection(id) => (id, LogoutReason::CloseConnection),
        };
        let connection = self.connection_mut(id).ok_or(RequestError::Closed)?;
        connection.is_leaving = true;
        let cid = connection.cid;
        let cmd_sn = self.cmd_sn;
        let request = self.ask(now, id, Kind::Logout(of), &[], |initiator_task_tag| {
            let request = LogoutRequest {
                immediate: true,
                reason,
                initiator_task_tag,
                cid: if reason == LogoutReason::CloseSession { lunette_wire::Cid(0) } else { cid },
                cmd_sn,
                ..LogoutRequest::default()
            };
            request.encode()
        })?;
        if of == Logout::Session {
            self.phase = Phase::LoggingOut;
            for connection in &mut self.connections {
                connection.is_leaving = true;
            }
            for tag in std::mem::take(&mut self.waiting) {
                self.end_task(tag, End::NotSent, outbox);
            }
        }
        Ok(request)
    }

    /// Whether a PDU answers the logout of the connection that it comes on.
    pub(super) fn is_last_answer(&self, pdu: &TargetPdu) -> bool {
        let TargetPdu::LogoutResponse(pdu) = pdu else { return false };
        // A logout is asked for on what it closes, a removal on another connection.
        let asked = self.requests.get(pdu.initiator_task_tag);
        asked.is_some_and(|request| matches!(request.kind, Kind::Logout(_)))
    }

    pub(super) fn logout_response(
        &mut self,
        now: Duration,
        pdu: &LogoutResponse,
        outbox: &mut Outbox,
    ) -> Result<(), Violation> {
        const PDU: &str = "Logout Response";
        self.count_commands(PDU, pdu.numbers)?;
        let tag = pdu.initiator_task_tag;
        let Some(request) = self.requests.get(tag) else { return self.stray_request(PDU, tag) };
        let of = match request.kind {
            Kind::Logout(of) => of,
            Kind::Removal(lost) => {
                self.requests.remove(tag);
                if is_clean(pdu.response) {
                    self.removed(now, lost, outbox);
                } else {
                    self.not_removed(now, lost, pdu.response, outbox);
                }
                return Ok(());
            }
            _ => {
                return Err(Violation::protocol(PDU, "11.15", "answers a request that is no Logout Request"));
            }
        };
        self.requests.remove(tag);
        match of {
            // One that is lost still belongs to the session (11.14).
            Logout::Connection(id) if self.connections.len() + self.lost.len() > 1 => {
                self.connection_left(id, pdu.response, outbox);
            }
            _ => self.session_left(is_clean(pdu.response), outbox),
        }
        Ok(())
    }

    /// Something has left on a connection that may write.
    pub(super) fn may_write_on(&self, id: ConnectionId) -> bool {
        self.tasks.iter().any(|(_, task)| task.connection == id && task.may_write())
    }

    fn session_left(&mut self, is_clean: bool, outbox: &mut Outbox) {
        self.phase = Phase::Over;
        self.end_everything(outbox, |task| end_by_logout(task.stage, is_clean));
        for connection in std::mem::take(&mut self.connections) {
            outbox.tell(Event::LoggedOut { connection: connection.id });
        }
        outbox.tell(Event::SessionEnded);
    }

    /// Ends what belonged to a connection that was logged out. Numbers of it that the target has not received, and has
    /// discarded (11.14), come on another connection.
    ///
    /// Where the target says that its cleanup has failed (11.15.1), what may write ends with the session, which ends it at the target,
    /// too (6.3.5): sent again in this one, it could be overtaken by its own second time, and by what is written later.
    fn connection_left(&mut self, id: ConnectionId, response: u8, outbox: &mut Outbox) {
        let is_clean = is_clean(response);
        if !is_clean && self.may_write_on(id) {
            return self.fail(Loss::LogoutRefused(response), outbox);
        }
        let Some(at) = self.connections.iter().position(|connection| connection.id == id) else { return };
        let left = self.connections.remove(at);
        let on_it: Vec<_> = (self.tasks.iter())
            .filter(|(_, task)| task.stage != Stage::Waiting && task.connection == id)
            .map(|(tag, task)| (tag, task.stage, task.cmd_sn))
            .collect();
        let mut numbers = left.plugs;
        for (tag, stage, cmd_sn) in on_it {
            self.end_task(tag, end_by_logout(stage, is_clean), outbox);
            numbers.push(cmd_sn);
        }
        numbers.retain(|cmd_sn| !cmd_sn.precedes(self.exp_cmd_sn));
        numbers.sort_by_key(|cmd_sn| cmd_sn.since(self.exp_cmd_sn));
        if let Some(at) = self.least_loaded() {
            let plugs = numbers.into_iter().map(|cmd_sn| Entry::Command(InitiatorTaskTag::RESERVED, cmd_sn));
            self.connections[at].requests.extend(plugs);
        } else if let Some(lost) = self.lost.first_mut() {
            lost.numbers.extend(numbers);
        }
        self.drop_requests_of(id, outbox);
        outbox.tell(Event::LoggedOut { connection: id });
    }
}

/// 0: closed; 1: there is no such connection any more, since the target has removed it already. Otherwise what its tasks do is not known
/// (11.15.1).
const fn is_clean(response: u8) -> bool {
    response <= 1
}

fn end_by_logout(stage: Stage, is_clean: bool) -> End {
    match (stage, is_clean) {
        (Stage::Sent, true) => End::LoggedOut,
        (Stage::Sent, false) => End::Unknown,
        (Stage::Waiting | Stage::Assigned, _) => End::NotSent,
    }
}
