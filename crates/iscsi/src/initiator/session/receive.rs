//! What comes from the target: each PDU is checked, numbered and given to what it is about (RFC 7143, 4.2.2, 7.7 to 7.9).

use std::time::Duration;

use lunette_wire::target::{NopIn, Reject, RejectReason};
use lunette_wire::{BHS_LENGTH, Bhs, InitiatorTaskTag, Opcode, StatSn, TargetPdu};

use super::recovery::Order;
use super::{ConnectionId, Event, Loss, Outbox, Place, Segment, Session, Violation};

/// The PDU's name, and its StatSN if it uses one up (4.2.2.2).
fn naming(pdu: &TargetPdu) -> (&'static str, Option<StatSn>) {
    match pdu {
        TargetPdu::ScsiResponse(pdu) => ("SCSI Response", Some(pdu.numbers.stat_sn)),
        TargetPdu::ScsiDataIn(pdu) => ("Data-In", pdu.status.map(|_| pdu.numbers.stat_sn)),
        TargetPdu::ReadyToTransfer(_) => ("R2T", None),
        TargetPdu::NopIn(pdu) => ("NOP-In", is_answer(pdu).then_some(pdu.numbers.stat_sn)),
        TargetPdu::TaskManagementResponse(pdu) => ("Task Management Response", Some(pdu.numbers.stat_sn)),
        TargetPdu::LoginResponse(pdu) => ("Login Response", Some(pdu.numbers.stat_sn)),
        TargetPdu::TextResponse(pdu) => ("Text Response", Some(pdu.numbers.stat_sn)),
        TargetPdu::LogoutResponse(pdu) => ("Logout Response", Some(pdu.numbers.stat_sn)),
        TargetPdu::AsynchronousMessage(pdu) => ("Asynchronous Message", Some(pdu.numbers.stat_sn)),
        TargetPdu::Reject(pdu) => ("Reject", Some(pdu.numbers.stat_sn)),
    }
}

/// A NOP-In that answers a NOP-Out uses up a StatSN, a ping of the target's does not (11.19).
fn is_answer(pdu: &NopIn) -> bool {
    pdu.initiator_task_tag != InitiatorTaskTag::RESERVED
}

impl Session {
    /// Where the data segment of a PDU belongs whose header has come, of `length` bytes (at most what was declared for
    /// the connection, 13.12). To be asked for each PDU, before [`Self::received`].
    #[must_use]
    pub fn place(&self, connection: ConnectionId, pdu: &TargetPdu, length: u32) -> Place {
        match pdu {
            TargetPdu::ScsiDataIn(pdu) => self.place_data_in(connection, pdu, length),
            _ => Place::Core,
        }
    }

    /// A PDU has come whole, and its data segment has been received to its [place](Self::place).
    pub fn received(
        &mut self,
        now: Duration,
        connection: ConnectionId,
        pdu: &TargetPdu,
        segment: &Segment<'_>,
        outbox: &mut Outbox,
    ) {
        let Some(heard) = self.connection_mut(connection) else { return };
        heard.heard_at = now;
        if matches!(pdu, TargetPdu::ScsiDataIn(_)) {
            heard.data_at = now;
        }
        let taken = if self.recovers() {
            self.take_recovering(now, connection, pdu, segment, outbox)
        } else {
            self.take_in_order(now, connection, pdu, segment, outbox)
        };
        if let Err(violation) = taken {
            self.connection_lost(connection, Loss::Violation(violation), outbox);
        }
    }

    /// ErrorRecoveryLevel 0: all comes in order, or the session is over.
    fn take_in_order(
        &mut self,
        now: Duration,
        id: ConnectionId,
        pdu: &TargetPdu,
        segment: &Segment<'_>,
        outbox: &mut Outbox,
    ) -> Result<(), Violation> {
        let (name, stat_sn) = naming(pdu);
        if !segment.is_intact && !matches!(pdu, TargetPdu::ScsiDataIn(_)) {
            // What cannot be asked for again is lost, and the numbers with it (7.8).
            self.connection_lost(id, Loss::DataDigest(name), outbox);
            return Ok(());
        }
        if let (Some(stat_sn), Some(connection)) = (stat_sn, self.connection_mut(id)) {
            let order = &mut connection.order;
            if order.order(stat_sn) != Order::Next {
                return Err(Violation::sequence(name, "4.2.2.2", "has a StatSN out of order")
                    .values(stat_sn.0, order.expected().0));
            }
            order.advance();
        }
        self.take(now, id, pdu, segment, outbox)
    }

    /// Above level 0: data is taken as it comes, a status in its turn.
    fn take_recovering(
        &mut self,
        now: Duration,
        id: ConnectionId,
        pdu: &TargetPdu,
        segment: &Segment<'_>,
        outbox: &mut Outbox,
    ) -> Result<(), Violation> {
        let (name, stat_sn) = naming(pdu);
        if let TargetPdu::ScsiDataIn(data) = pdu {
            self.recovering_data(id, data, segment.length, segment.is_intact)?;
        }
        let Some(stat_sn) = stat_sn else {
            // What has no number and no data in it can be lost (11.19).
            let is_lost = !segment.is_intact && matches!(pdu, TargetPdu::NopIn(_));
            return if is_lost { Ok(()) } else { self.take(now, id, pdu, segment, outbox) };
        };
        if !segment.is_intact {
            self.status_spoilt(id, stat_sn);
            return Ok(());
        }
        let is_last = self.is_last_answer(pdu);
        let Some(connection) = self.connection_mut(id) else { return Ok(()) };
        match connection.order.order(stat_sn) {
            Order::Old => {
                if let TargetPdu::ScsiDataIn(data) = pdu {
                    self.settle_data(data.initiator_task_tag, outbox);
                }
                Ok(())
            }
            // Nothing may be sent behind a Logout Request (11.14), so nobody can ask for what is missing; nor need anybody.
            Order::Early if is_last => self.take(now, id, pdu, segment, outbox),
            Order::Early => {
                let is_reject = matches!(pdu, TargetPdu::Reject(_));
                if let Some(header) = segment.bytes.first_chunk().filter(|_| is_reject)
                    && self.is_refused_status(id, header)
                {
                    // What it waits behind will never come.
                    self.connection_lost(id, Loss::StatusGone, outbox);
                    return Ok(());
                }
                self.hold_status(id, (name, pdu), stat_sn, segment.bytes)
            }
            Order::Next => {
                connection.order.advance();
                self.take(now, id, pdu, segment, outbox)?;
                while let Some((pdu, bytes)) = self.next_held(id) {
                    if let Some(connection) = self.connection_mut(id) {
                        connection.order.advance();
                    }
                    self.take(now, id, &pdu, &Segment::of(&bytes), outbox)?;
                }
                Ok(())
            }
        }
    }

    /// A header came that is no PDU of a target's: a format error (7.7).
    pub fn undecodable(&mut self, connection: ConnectionId, outbox: &mut Outbox) {
        let violation = Violation::format("PDU", "7.7", "has an opcode or a field that none may have");
        self.connection_lost(connection, Loss::Violation(violation), outbox);
    }

    fn take(
        &mut self,
        now: Duration,
        id: ConnectionId,
        pdu: &TargetPdu,
        segment: &Segment<'_>,
        outbox: &mut Outbox,
    ) -> Result<(), Violation> {
        match pdu {
            TargetPdu::ScsiDataIn(pdu) => self.data_in(now, id, pdu, segment, outbox),
            TargetPdu::ScsiResponse(pdu) => self.scsi_response(id, pdu, segment.bytes, outbox),
            TargetPdu::ReadyToTransfer(pdu) => self.ready_to_transfer(id, pdu),
            TargetPdu::NopIn(pdu) => self.nop_in(now, id, pdu, segment.bytes, outbox),
            TargetPdu::TaskManagementResponse(pdu) => self.management_response(now, id, pdu, outbox),
            TargetPdu::TextResponse(pdu) => self.text_response(now, id, pdu, segment.bytes, outbox),
            TargetPdu::LogoutResponse(pdu) => self.logout_response(now, pdu, outbox),
            TargetPdu::AsynchronousMessage(pdu) => {
                self.asynchronous_message(now, id, pdu, segment.bytes, outbox)
            }
            TargetPdu::Reject(pdu) => self.reject(id, pdu, segment.bytes, outbox),
            TargetPdu::LoginResponse(_) => {
                Err(Violation::protocol("Login Response", "4.2.4", "came in full feature phase"))
            }
        }
    }

    /// A PDU is for a task that there is not: what was under way for one that has ended is dropped (4.2.3.3).
    pub(super) fn stray_task(&self, pdu: &'static str, tag: InitiatorTaskTag) -> Result<(), Violation> {
        if self.tasks.has_ended(tag) {
            return Ok(());
        }
        Err(Violation::protocol(pdu, "11.2.1.8", "is for a task that there is not"))
    }

    /// The same for an answer to a request.
    pub(super) fn stray_request(&self, pdu: &'static str, tag: InitiatorTaskTag) -> Result<(), Violation> {
        if self.requests.has_ended(tag) {
            return Ok(());
        }
        Err(Violation::protocol(pdu, "11.2.1.8", "answers a request that there is not"))
    }

    /// A Reject (11.17): of a command, which has never begun then, or of something else, for the log (7.3).
    fn reject(
        &mut self,
        id: ConnectionId,
        pdu: &Reject,
        header: &[u8],
        outbox: &mut Outbox,
    ) -> Result<(), Violation> {
        self.count_commands("Reject", pdu.numbers)?;
        let Some(header) = header.first_chunk::<BHS_LENGTH>() else {
            return Err(Violation::format("Reject", "11.17", "lacks the header of what is rejected"));
        };
        self.rejected(id, pdu.reason, header, outbox);
        Ok(())
    }

    fn rejected(&mut self, id: ConnectionId, reason: u8, header: &Bhs, outbox: &mut Outbox) {
        let tag = InitiatorTaskTag(u32::from_be_bytes([header[16], header[17], header[18], header[19]]));
        let opcode = header[0] & 0x3f;
        let is_command = opcode == Opcode::ScsiCommand as u8;
        let is_of_task = self.tasks.get(tag).is_some_and(|task| task.connection == id);
        let is_spoilt = reason == RejectReason::DataDigestError as u8;
        if is_command && is_of_task && !(is_spoilt && self.retry(tag)) {
            self.reject_command(id, tag, outbox);
        }
        if opcode == Opcode::SnackRequest as u8 {
            self.snack_rejected(id, header, outbox);
        }
        if self.requests.get(tag).is_some_and(|request| request.connection == id) {
            self.drop_request(tag, Some(reason), outbox);
        } else {
            outbox.tell(Event::Rejected { connection: id, reason, opcode });
        }
    }
}
