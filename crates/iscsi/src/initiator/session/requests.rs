//! Requests other than SCSI commands: pings and text (RFC 7143, 11.10, 11.18), and how any of them waits for its answer.
//! All are immediate, so that a closed command window holds up none of them (4.2.2.1).

use std::time::Duration;

use lunette_wire::initiator::{NopOut, TextRequest};
use lunette_wire::target::{NopIn, TextResponse};
use lunette_wire::{Bhs, InitiatorTaskTag, TargetTransferTag};

use super::connection::Meaning;
use super::management::Management;
use super::negotiation;
use super::recovery::Reassign;
use super::{ConnectionId, Event, Logout, Loss, Outbox, REQUESTS_MAX, RequestHandle, Session, Violation};

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

#[derive(Debug)]
pub(super) enum Kind {
    Ping {
        data: Box<[u8]>,
        is_keepalive: bool,
    },
    Text {
        collected: Vec<u8>,
        /// The target has asked for it: nobody waits for its text.
        is_own: bool,
        /// Bytes of the text whose keys were answered.
        answered: usize,
    },
    Logout(Logout),
    Management(Management),
    /// Removes a lost connection for recovery.
    Removal(ConnectionId),
    Reassign(Reassign),
}

/// A request that waits for its answer.
#[derive(Debug)]
pub(super) struct Request {
    pub(super) connection: ConnectionId,
    pub(super) kind: Kind,
    pub(super) begun_at: Duration,
    /// When it was given to the driver.
    pub(super) sent_at: Option<Duration>,
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
        self.begin_text(now, connection, text, false)
    }

    pub(super) fn begin_text(
        &mut self,
        now: Duration,
        connection: ConnectionId,
        text: &[u8],
        is_own: bool,
    ) -> Result<RequestHandle, RequestError> {
        self.check_fits(connection, text)?;
        if self.connection(connection).is_some_and(|connection| connection.has_text) {
            return Err(RequestError::TextUnderWay);
        }
        let cmd_sn = self.cmd_sn;
        let kind = Kind::Text { collected: Vec::new(), is_own, answered: 0 };
        let request = self.ask(now, connection, kind, text, |initiator_task_tag| {
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
        self.connections[at].queue(encode(tag), data.into(), Meaning::Request(tag));
        Ok(RequestHandle(tag))
    }

    /// A request leaves now on the connection at `at`. True if its ExpStatSN is that of this connection.
    pub(super) fn request_leaves(&mut self, now: Duration, at: usize, tag: InitiatorTaskTag) -> bool {
        let Some(request) = self.requests.get_mut(tag) else { return true };
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
            // It has the number of the connection that it is about (11.14.4).
            Kind::Removal(_) => return false,
            Kind::Ping { .. } | Kind::Text { .. } | Kind::Reassign(_) => {}
        }
        true
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
            if self.recovers() {
                // It shows the next StatSN: others before it may be lost (7.1.4.2).
                self.statuses_seen(id, pdu.numbers.stat_sn);
            }
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
        if let Some(sent) = begun.filter(|_| self.recovers()) {
            self.retry_lost(id, pdu.numbers.exp_cmd_sn, sent);
        }
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
        connection.queue(answer.encode(0), Box::default(), Meaning::Answer);
        Ok(())
    }

    pub(super) fn text_response(
        &mut self,
        now: Duration,
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
        let Kind::Text { collected, is_own, answered } = &mut request.kind else {
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
        let is_own = *is_own;
        if pdu.is_final {
            let text = std::mem::take(collected);
            self.requests.remove(tag);
            self.text_over(now, id);
            // Elsewhere the driver judges the text; a list of targets may be longer than what is read here.
            let declared = negotiation::declared_length(&text);
            let declared = if is_own { declared? } else { declared.unwrap_or(None) };
            if !is_own {
                outbox.tell(Event::Text { request: RequestHandle(tag), text });
            }
            if let Some(bytes) = declared {
                self.declared(id, bytes, outbox);
            }
            return Ok(());
        }
        let Some(connection) = self.connections.iter_mut().find(|connection| connection.id == id) else {
            return Ok(());
        };
        if pdu.target_transfer_tag == TargetTransferTag::RESERVED {
            return Err(Violation::format(PDU, "11.11.4", "is not the last and has no Target Transfer Tag"));
        }
        // An empty request asks for the rest (6.2, 11.10.4); what a whole part brings up in a negotiation is answered.
        let answers = if is_own && !pdu.is_continued {
            let part = std::mem::replace(answered, collected.len());
            negotiation::answers(&collected[part..], connection.parameters.max_send_data_segment_length)?
        } else {
            Box::default()
        };
        let next = TextRequest {
            immediate: true,
            is_final: true,
            lun: pdu.lun,
            initiator_task_tag: tag,
            target_transfer_tag: pdu.target_transfer_tag,
            cmd_sn,
            ..TextRequest::default()
        };
        connection.queue(next.encode(answers.len()), answers, Meaning::Request(tag));
        Ok(())
    }

    /// Ends the requests of a connection that has gone.
    pub(super) fn drop_requests_of(&mut self, id: ConnectionId, outbox: &mut Outbox) {
        let requests: Vec<_> = (self.requests.iter())
            .filter(|(_, request)| request.connection == id)
            .map(|(tag, _)| tag)
            .collect();
        for tag in requests {
            self.drop_request(tag, None, outbox);
        }
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
            Kind::Text { is_own, .. } => {
                // The target may ask again.
                if let Some(connection) = self.connection_mut(request.connection) {
                    connection.has_text = false;
                    connection.owes_negotiation = false;
                }
                !is_own
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
            Kind::Removal(lost) => {
                let lost = *lost;
                self.removal_failed(lost);
                false
            }
            Kind::Reassign(reassign) => {
                if let Some(reason) = reject {
                    self.reassign_rejected(request.begun_at, *reassign, reason, outbox);
                }
                false
            }
            Kind::Management(management) => {
                let may_have_come = request.sent_at.is_some() && reject.is_none();
                self.function_dropped(request.begun_at, management, may_have_come, outbox);
                true
            }
        };
        if told {
            outbox.tell(Event::Unanswered { request: RequestHandle(tag), reject });
        }
    }
}
