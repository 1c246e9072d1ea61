//! Requests other than SCSI commands: pings, text, logout (RFC 7143, 11.10, 11.14, 11.18). All are immediate, so that a
//! closed command window holds up none of them (4.2.2.1).

use std::time::Duration;

use lunette_wire::initiator::{LogoutReason, LogoutRequest, NopOut, TextRequest};
use lunette_wire::target::{LogoutResponse, NopIn, TextResponse};
use lunette_wire::{Bhs, InitiatorTaskTag, TargetTransferTag};

use super::management::Management;
use super::task::Stage;
use super::{ConnectionId, End, Event, Loss, Outbox, Phase, REQUESTS_MAX, RequestHandle, Session, Violation};

/// Why a request is not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    /// The session or the connection is over or is being logged out.
    #[error("the session or the connection is over or is being logged out")]
    Closed,
    /// There is no such task, or it has ended.
    #[error("the task has ended")]
    NoTask,
    /// Too many requests wait for their answers.
    #[error("{REQUESTS_MAX} requests wait for their answers")]
    Full,
    /// The data does not fit one PDU of the connection (11.10.5, 11.18.3).
    #[error("{length} bytes are more than the target takes in one PDU, {max}")]
    TooLong {
        /// In bytes.
        length: usize,
        /// In bytes.
        max: u32,
    },
    /// A text exchange is under way on the connection (11.10).
    #[error("a text exchange is under way on the connection")]
    TextUnderWay,
    /// The function needs iSCSIProtocolLevel 2 (RFC 7144), which was not agreed on.
    #[error("the function needs iSCSIProtocolLevel 2, which was not agreed on")]
    NotAgreed,
    /// The task is on its way to an end by another function.
    #[error("the task is being aborted")]
    AbortUnderWay,
}

/// What is logged out (11.14.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Logout {
    /// All connections, and the session with them.
    Session,
    /// One connection; its tasks are ended. The session is over if it was the last one.
    Connection(ConnectionId),
}

#[derive(Debug)]
pub(super) enum Kind {
    Ping { data: Box<[u8]>, is_keepalive: bool },
    Text { collected: Vec<u8> },
    Logout(Logout),
    Management(Management),
}

/// A request that waits for its answer.
#[derive(Debug)]
pub(super) struct Request {
    pub(super) connection: ConnectionId,
    pub(super) kind: Kind,
    pub(super) begun_at: Duration,
    /// When it was given to the driver.
    sent_at: Option<Duration>,
}

impl Session {
    /// Pings the target with up to a PDU of data; [`Event::Pong`] follows, and [`Self::round_trip`] has one measurement more.
    ///
    /// # Errors
    /// [`RequestError`]; nothing is sent then.
    pub fn nop(
        &mut self,
        now: Duration,
        connection: ConnectionId,
        data: &[u8],
    ) -> Result<RequestHandle, RequestError> {
        self.ping(now, connection, data, false)
    }

    pub(super) fn ping(
        &mut self,
        now: Duration,
        id: ConnectionId,
        data: &[u8],
        is_keepalive: bool,
    ) -> Result<RequestHandle, RequestError> {
        self.check_fits(id, data)?;
        let kind = Kind::Ping { data: data.into(), is_keepalive };
        let cmd_sn = self.cmd_sn;
        self.ask(now, id, kind, data, |initiator_task_tag| {
            NopOut {
                immediate: true,
                initiator_task_tag,
                target_transfer_tag: TargetTransferTag::RESERVED,
                cmd_sn,
                ..NopOut::default()
            }
            .encode(data.len())
        })
    }

    /// Begins a text exchange: SendTargets, or a negotiation (C, 6.2). All that the target says comes in [`Event::Text`].
    ///
    /// # Errors
    /// [`RequestError`]; nothing is sent then.
    pub fn text(
        &mut self,
        now: Duration,
        connection: ConnectionId,
        text: &[u8],
    ) -> Result<RequestHandle, RequestError> {
        self.check_fits(connection, text)?;
        if self.connection(connection).is_some_and(|connection| connection.has_text) {
            return Err(RequestError::TextUnderWay);
        }
        let cmd_sn = self.cmd_sn;
        let request =
            self.ask(now, connection, Kind::Text { collected: Vec::new() }, text, |initiator_task_tag| {
                TextRequest {
                    immediate: true,
                    is_final: true,
                    initiator_task_tag,
                    target_transfer_tag: TargetTransferTag::RESERVED,
                    cmd_sn,
                    ..TextRequest::default()
                }
                .encode(text.len())
            })?;
        if let Some(connection) = self.connection_mut(connection) {
            connection.has_text = true;
        }
        Ok(request)
    }

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

    /// Logs out (11.14). What has not ended by the answer ends as [`End::Aborted`]; with the session, what waits for the
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

    fn check_fits(&self, id: ConnectionId, data: &[u8]) -> Result<(), RequestError> {
        let connection = self.connection(id).filter(|connection| !connection.is_silent);
        let max = connection.ok_or(RequestError::Closed)?.parameters.max_send_data_segment_length;
        if data.len() > max as usize {
            return Err(RequestError::TooLong { length: data.len(), max });
        }
        Ok(())
    }

    /// Queues a request that is to be answered.
    pub(super) fn ask(
        &mut self,
        now: Duration,
        id: ConnectionId,
        kind: Kind,
        data: &[u8],
        encode: impl FnOnce(InitiatorTaskTag) -> Bhs,
    ) -> Result<RequestHandle, RequestError> {
        let Some(at) = self.connections.iter().position(|connection| connection.id == id) else {
            return Err(RequestError::Closed);
        };
        let request = Request { connection: id, kind, begun_at: now, sent_at: None };
        let tag = self.requests.insert(request, REQUESTS_MAX).ok_or(RequestError::Full)?;
        self.connections[at].queue(encode(tag), data.into(), Some(tag));
        Ok(RequestHandle(tag))
    }

    /// A request leaves now on the connection at `at`.
    pub(super) fn request_leaves(&mut self, now: Duration, at: usize, tag: InitiatorTaskTag) {
        let Some(request) = self.requests.get_mut(tag) else { return };
        request.sent_at = Some(now);
        match &request.kind {
            Kind::Logout(Logout::Session) => {
                for connection in &mut self.connections {
                    connection.is_silent = true;
                }
            }
            Kind::Logout(Logout::Connection(of)) => {
                let of = *of;
                if let Some(connection) = self.connection_mut(of) {
                    connection.is_silent = true;
                }
            }
            Kind::Management(_) => self.function_leaves(at, tag),
            Kind::Ping { .. } | Kind::Text { .. } => {}
        }
    }

    pub(super) fn nop_in(
        &mut self,
        now: Duration,
        id: ConnectionId,
        pdu: &NopIn,
        data: &[u8],
        outbox: &mut Outbox,
    ) -> Result<(), Violation> {
        const PDU: &str = "NOP-In";
        self.count_commands(PDU, pdu.numbers)?;
        let wants_answer = pdu.target_transfer_tag != TargetTransferTag::RESERVED;
        if pdu.initiator_task_tag == InitiatorTaskTag::RESERVED {
            return if wants_answer { self.answer_ping(id, pdu) } else { Ok(()) };
        }
        if wants_answer {
            return Err(Violation::format(PDU, "7.7", "has both an Initiator and a Target Transfer Tag"));
        }
        let tag = pdu.initiator_task_tag;
        let Some(request) = self.requests.get(tag) else { return self.stray_request(PDU, tag) };
        let Kind::Ping { data: sent, is_keepalive } = &request.kind else {
            return Err(Violation::protocol(PDU, "11.19.1", "answers a request that is no NOP-Out"));
        };
        let (is_keepalive, begun) = (*is_keepalive, request.sent_at);
        let Some(connection) = self.connections.iter_mut().find(|connection| connection.id == id) else {
            return Ok(());
        };
        let back = sent.len().min(connection.parameters.max_recv_data_segment_length as usize);
        let is_true = sent[..back] == *data;
        if let Some(begun) = begun {
            connection.round_trip.measured(now.saturating_sub(begun));
        }
        if is_keepalive {
            connection.keepalive = None;
        }
        self.requests.remove(tag);
        if !is_keepalive {
            outbox.tell(Event::Pong { request: RequestHandle(tag), is_true });
        }
        Ok(())
    }

    /// The target pings (11.18): its tag and its logical unit come back.
    fn answer_ping(&mut self, id: ConnectionId, pdu: &NopIn) -> Result<(), Violation> {
        let cmd_sn = self.cmd_sn;
        let Some(connection) = self.connection_mut(id) else { return Ok(()) };
        if !connection.owes_another_answer() {
            return Err(Violation::protocol(
                "NOP-In",
                "11.19",
                "is one more than it has read the answers of",
            ));
        }
        let answer = NopOut {
            immediate: true,
            lun: pdu.lun,
            initiator_task_tag: InitiatorTaskTag::RESERVED,
            target_transfer_tag: pdu.target_transfer_tag,
            cmd_sn,
            ..NopOut::default()
        };
        connection.queue(answer.encode(0), Box::default(), None);
        Ok(())
    }

    pub(super) fn text_response(
        &mut self,
        id: ConnectionId,
        pdu: &TextResponse,
        text: &[u8],
        outbox: &mut Outbox,
    ) -> Result<(), Violation> {
        const PDU: &str = "Text Response";
        self.count_commands(PDU, pdu.numbers)?;
        let tag = pdu.initiator_task_tag;
        let text_length_max = self.settings.text_length_max;
        let cmd_sn = self.cmd_sn;
        let Some(request) = self.requests.get_mut(tag) else { return self.stray_request(PDU, tag) };
        let Kind::Text { collected } = &mut request.kind else {
            return Err(Violation::protocol(PDU, "11.11", "answers a request that is no Text Request"));
        };
        if collected.len() + text.len() > text_length_max {
            return Err(Violation::protocol(PDU, "11.11", "makes the text longer than this side takes"));
        }
        if pdu.is_final && pdu.is_continued {
            return Err(Violation::format(PDU, "11.11.2", "has both the F and the C bit"));
        }
        if !pdu.is_final && text.is_empty() {
            return Err(Violation::protocol(PDU, "6.2", "has neither text nor the F bit"));
        }
        collected.extend_from_slice(text);
        let whole = pdu.is_final.then(|| std::mem::take(collected));
        let Some(connection) = self.connections.iter_mut().find(|connection| connection.id == id) else {
            return Ok(());
        };
        if let Some(text) = whole {
            connection.has_text = false;
            self.requests.remove(tag);
            outbox.tell(Event::Text { request: RequestHandle(tag), text });
            return Ok(());
        }
        if pdu.target_transfer_tag == TargetTransferTag::RESERVED {
            return Err(Violation::format(PDU, "11.11.4", "is not the last and has no Target Transfer Tag"));
        }
        // An empty request asks for the rest (6.2, 11.10.4).
        let next = TextRequest {
            immediate: true,
            is_final: true,
            lun: pdu.lun,
            initiator_task_tag: tag,
            target_transfer_tag: pdu.target_transfer_tag,
            cmd_sn,
            ..TextRequest::default()
        };
        connection.queue(next.encode(0), Box::default(), Some(tag));
        Ok(())
    }

    pub(super) fn logout_response(
        &mut self,
        pdu: &LogoutResponse,
        outbox: &mut Outbox,
    ) -> Result<(), Violation> {
        const PDU: &str = "Logout Response";
        self.count_commands(PDU, pdu.numbers)?;
        let tag = pdu.initiator_task_tag;
        let Some(request) = self.requests.get(tag) else { return self.stray_request(PDU, tag) };
        let Kind::Logout(of) = request.kind else {
            return Err(Violation::protocol(PDU, "11.15", "answers a request that is no Logout Request"));
        };
        self.requests.remove(tag);
        // 0: closed; 1: there is no such connection any more. Otherwise what the tasks do is not known (11.15.1).
        let is_clean = pdu.response <= 1;
        match of {
            Logout::Connection(id) if self.connections.len() > 1 => {
                self.connection_left(id, is_clean, outbox);
            }
            _ => self.session_left(is_clean, outbox),
        }
        Ok(())
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
    fn connection_left(&mut self, id: ConnectionId, is_clean: bool, outbox: &mut Outbox) {
        self.connections.retain(|connection| connection.id != id);
        let on_it: Vec<_> = (self.tasks.iter())
            .filter(|(_, task)| task.stage != Stage::Waiting && task.connection == id)
            .map(|(tag, task)| (tag, task.stage, task.cmd_sn))
            .collect();
        let plug_at = self.least_loaded().unwrap_or(0);
        for (tag, stage, cmd_sn) in on_it {
            self.end_task(tag, end_by_logout(stage, is_clean), outbox);
            if !cmd_sn.precedes(self.exp_cmd_sn) {
                self.connections[plug_at].requests.push_back(super::connection::Entry::Command(tag, cmd_sn));
            }
        }
        let requests: Vec<_> = (self.requests.iter())
            .filter(|(_, request)| request.connection == id)
            .map(|(tag, _)| tag)
            .collect();
        for tag in requests {
            self.drop_request(tag, None, outbox);
        }
        outbox.tell(Event::LoggedOut { connection: id });
    }

    /// Ends a request that has no answer.
    pub(super) fn drop_request(&mut self, tag: InitiatorTaskTag, reject: Option<u8>, outbox: &mut Outbox) {
        let Some(request) = self.requests.remove(tag) else { return };
        let told = match &request.kind {
            Kind::Ping { is_keepalive, .. } => {
                if *is_keepalive && let Some(connection) = self.connection_mut(request.connection) {
                    connection.keepalive = None;
                }
                !is_keepalive
            }
            Kind::Text { .. } => {
                if let Some(connection) = self.connection_mut(request.connection) {
                    connection.has_text = false;
                }
                true
            }
            Kind::Logout(_) => {
                // Nothing can be sent on the connection any more.
                if reject.is_some() {
                    let violation =
                        Violation::protocol("Reject", "11.14", "refuses a logout, which no target may");
                    self.connection_lost(request.connection, Loss::Violation(violation), outbox);
                }
                true
            }
            Kind::Management(management) => {
                let of = management.aborts();
                if let Some(task) = of.and_then(|task| self.tasks.get_mut(task)) {
                    task.abort = None;
                }
                true
            }
        };
        if told {
            outbox.tell(Event::Unanswered { request: RequestHandle(tag), reject });
        }
    }
}

fn end_by_logout(stage: Stage, is_clean: bool) -> End {
    match (stage, is_clean) {
        (Stage::Sent, true) => End::Aborted,
        (Stage::Sent, false) => End::Unknown,
        (Stage::Waiting | Stage::Assigned, _) => End::NotSent,
    }
}
