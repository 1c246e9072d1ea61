//! Requests of an initiator as they arrive (RFC 7143, 4.2.2.1): checked, put in order, delivered at their turn.

use std::time::Duration;

use lunette_wire::initiator::{InitiatorPdu, LogoutReason, LogoutRequest, NopOut, ScsiCommand, TextRequest};
use lunette_wire::target::{NopIn, Reject, RejectReason, TextResponse};
use lunette_wire::{
    AhsList, Bhs, Cid, CmdSn, DataSn, DecodeError, InitiatorTaskTag, LunField, TargetTransferTag,
};

use super::management::Management;
use super::task::{Phase, Task, TaskId};
use super::{
    Admission, CloseReason, Event, IMMEDIATE_TASKS_MAX, Outbox, PARKED_BYTES_MAX, PendingText, Session, Share,
};
use crate::parameters::SessionType;

/// A request other than a SCSI command, kept until its CmdSN's turn comes.
#[derive(Debug)]
pub(super) enum Request {
    Command(TaskId),
    Nop(NopOut, Vec<u8>),
    Text(TextRequest, Box<Bhs>, Vec<u8>),
    Management(Management),
    Logout(LogoutRequest),
    /// A number whose command was aborted before its turn.
    Plugged,
}

/// What requests hold that wait for an earlier command.
#[derive(Debug, Default)]
pub(super) struct Parked {
    /// Text and ping data.
    bytes: usize,
    pub(super) functions: usize,
}

impl Parked {
    fn add(&mut self, request: &Request) {
        self.bytes += request.held_bytes();
        self.functions += usize::from(matches!(request, Request::Management(_)));
    }

    pub(super) fn remove(&mut self, request: &Request) {
        self.bytes = self.bytes.saturating_sub(request.held_bytes());
        let functions = usize::from(matches!(request, Request::Management(_)));
        self.functions = self.functions.saturating_sub(functions);
    }
}

impl Request {
    /// Bytes that it holds while it waits.
    fn held_bytes(&self) -> usize {
        match self {
            Self::Nop(_, data) | Self::Text(_, _, data) => data.len(),
            Self::Command(_) | Self::Management(_) | Self::Logout(_) | Self::Plugged => 0,
        }
    }
}

impl<D: Share> Session<D> {
    /// Takes a SCSI Command (11.3) with `data_length` bytes of immediate data, whose bytes the driver keeps for the
    /// task that is returned. `None` when the command is not taken; its data is then to be thrown away.
    pub fn command(
        &mut self,
        now: Duration,
        cid: Cid,
        (bhs, pdu, ahs): (&Bhs, &ScsiCommand, &[u8]),
        data_length: u32,
        outbox: &mut Outbox<D>,
    ) -> Option<TaskId> {
        self.heard(now, cid, bhs, outbox)?;
        if !pdu.immediate && self.window.judge(pdu.cmd_sn) == Admission::Ignore {
            return None;
        }
        if self.recovers() {
            // A new command under a tag says that the answer to the one before has arrived, acknowledged or not.
            self.recovery.answers.remove_tag(pdu.initiator_task_tag);
        }
        if let Err(reason) = self.command_fault(cid, pdu, data_length) {
            self.reject(cid, bhs, reason, outbox);
            return None;
        }
        let Ok(ahs) = AhsList::decode(ahs) else {
            self.reject(cid, bhs, RejectReason::InvalidPduField, outbox);
            return None;
        };
        let mut task = Task::new(cid, *pdu, &ahs, data_length);
        task.fault = self.unsolicited_fault(pdu, data_length);
        let is_awaiting_data = task.unsolicited_open;
        let id = self.tasks.insert(task);
        if is_awaiting_data {
            self.expect_unsolicited(id, cid);
        }
        if pdu.immediate {
            self.immediate_tasks += 1;
            self.deliver(cid, Request::Command(id), outbox);
        } else {
            self.order(cid, pdu.cmd_sn, Request::Command(id), outbox);
        }
        Some(id)
    }

    pub(super) fn command_fault(
        &self,
        cid: Cid,
        pdu: &ScsiCommand,
        data_length: u32,
    ) -> Result<(), RejectReason> {
        if self.kind == SessionType::Discovery {
            return Err(RejectReason::CommandNotSupported);
        }
        if self.is_logging_out(cid) {
            return Err(RejectReason::WaitingForLogout);
        }
        if pdu.immediate
            && self.immediate_tasks >= IMMEDIATE_TASKS_MAX
            && self.tasks.any(|task| task.command.immediate && task.is_of(cid))
        {
            return Err(RejectReason::ImmediateCommandReject);
        }
        let tag_taken = self.tasks.find(pdu.initiator_task_tag).is_some();
        if tag_taken || pdu.initiator_task_tag == InitiatorTaskTag::RESERVED {
            return Err(RejectReason::InvalidPduField);
        }
        // More immediate data than the command moves, or than was negotiated (11.3.4, 13.14), cannot be placed.
        let out = if pdu.write { pdu.expected_data_transfer_length } else { 0 };
        if data_length > out.min(self.parameters.first_burst_length) {
            return Err(RejectReason::ProtocolError);
        }
        Ok(())
    }

    /// Takes any other PDU of an initiator, its data segment in `data`. A SCSI Command or Data-Out must go to
    /// [`Self::command`] or [`Self::data_out_arrived`]; here they are protocol errors.
    ///
    /// A request or command that is rejected counts as never received: its number is still to come, with another command or
    /// by an abort of this one (7.3).
    pub fn request(&mut self, now: Duration, cid: Cid, bhs: &Bhs, data: &[u8], outbox: &mut Outbox<D>) {
        if self.heard(now, cid, bhs, outbox).is_none() {
            return;
        }
        let (immediate, cmd_sn, request) = match InitiatorPdu::decode(bhs) {
            Ok(InitiatorPdu::NopOut(pdu)) => {
                self.answer_to_ping(cid, &pdu);
                if pdu.initiator_task_tag == InitiatorTaskTag::RESERVED {
                    self.acknowledge_termination(cid, &pdu);
                    // Not a ping, and always immediate (11.18): it takes no number and wants no answer.
                    return;
                }
                (pdu.immediate, pdu.cmd_sn, Request::Nop(pdu, data.to_vec()))
            }
            Ok(InitiatorPdu::TextRequest(pdu)) => {
                (pdu.immediate, pdu.cmd_sn, Request::Text(pdu, Box::new(*bhs), data.to_vec()))
            }
            Ok(InitiatorPdu::TaskManagementRequest(pdu)) => {
                (pdu.immediate, pdu.cmd_sn, Request::Management(Management { request: pdu, cid }))
            }
            Ok(InitiatorPdu::LogoutRequest(pdu)) => (pdu.immediate, pdu.cmd_sn, Request::Logout(pdu)),
            Ok(InitiatorPdu::SnackRequest(pdu)) => return self.snack(now, cid, (bhs, &pdu), outbox),
            Ok(InitiatorPdu::LoginRequest(_)) => {
                return self.reject(cid, bhs, RejectReason::ProtocolError, outbox);
            }
            Ok(InitiatorPdu::ScsiCommand(_) | InitiatorPdu::ScsiDataOut(_)) => {
                return self.reject(cid, bhs, RejectReason::ProtocolError, outbox);
            }
            Err(DecodeError::Opcode(_)) => {
                return self.reject(cid, bhs, RejectReason::CommandNotSupported, outbox);
            }
            Err(fault) => {
                let reason = CloseReason::Format(fault.to_string());
                return self.close_connection(cid, reason, outbox);
            }
        };
        if immediate {
            if let Some(reason) = self.refusal(cid, &request) {
                return self.reject(cid, bhs, reason, outbox);
            }
            self.deliver(cid, request, outbox);
            return;
        }
        let admission = self.window.judge(cmd_sn);
        if admission == Admission::Ignore {
            return;
        }
        let no_room =
            admission == Admission::Early && self.parked.bytes + request.held_bytes() > PARKED_BYTES_MAX;
        let too_many = Some(RejectReason::LongOperationReject);
        // Where all functions that there may be wait for this number, nothing else would let them go on.
        let is_awaited = admission == Admission::Next && self.functions_wait_for_numbers();
        let refusal = if no_room {
            too_many
        } else {
            self.refusal(cid, &request).filter(|reason| !(is_awaited && Some(*reason) == too_many))
        };
        let Some(reason) = refusal else { return self.order(cid, cmd_sn, request, outbox) };
        self.reject(cid, bhs, reason, outbox);
    }

    /// True when the initiator has logged the connection out, or the session, and must not ask for more (11.14).
    pub(super) fn is_logging_out(&self, cid: Cid) -> bool {
        self.closing || self.leaving > 0 && self.connections.iter().any(|of| of.cid == cid && of.leaving)
    }

    /// Why a request is not taken: a discovery session is for text and its end (4.3), after a logout nothing is, and so many
    /// functions are all that there may be.
    fn refusal(&self, cid: Cid, request: &Request) -> Option<RejectReason> {
        if matches!(request, Request::Text(..) | Request::Management(_)) && self.is_logging_out(cid) {
            return Some(RejectReason::WaitingForLogout);
        }
        let is_taken = match request {
            Request::Logout(logout) => logout.reason == LogoutReason::CloseSession,
            Request::Nop(..) | Request::Management(_) => false,
            Request::Command(_) | Request::Text(..) | Request::Plugged => true,
        };
        if self.kind == SessionType::Discovery && !is_taken {
            return Some(RejectReason::CommandNotSupported);
        }
        match request {
            Request::Management(management) => self.function_refusal(management),
            _ => None,
        }
    }

    /// Judges a request's number and delivers all that is in order now.
    pub(super) fn order(&mut self, cid: Cid, cmd_sn: CmdSn, request: Request, outbox: &mut Outbox<D>) {
        match self.window.admit(cmd_sn) {
            Admission::Ignore => {
                debug_assert!(!matches!(request, Request::Command(_)), "judged before it became a task");
            }
            Admission::Early => {
                self.parked.add(&request);
                self.window.park(cmd_sn, (cid, request));
            }
            Admission::Next => {
                self.deliver_in_order(cid, request, outbox);
                self.begin_early_functions(outbox);
                while let Some((cid, request)) = self.window.next_parked() {
                    self.parked.remove(&request);
                    self.deliver_in_order(cid, request, outbox);
                    self.begin_early_functions(outbox);
                }
            }
        }
    }

    fn deliver_in_order(&mut self, cid: Cid, request: Request, outbox: &mut Outbox<D>) {
        // Only SCSI commands hold their place in the window until they end.
        if !matches!(request, Request::Command(_)) {
            self.window.release();
        }
        self.deliver(cid, request, outbox);
    }

    fn deliver(&mut self, cid: Cid, request: Request, outbox: &mut Outbox<D>) {
        match request {
            Request::Command(id) => {
                if let Some(task) = self.tasks.get_mut(id) {
                    task.phase = Phase::Executing;
                    outbox.event(Event::Execute(id));
                } else {
                    // Aborted while it was parked: its number is used up and its place is free again.
                    self.window.release();
                }
            }
            Request::Nop(pdu, data) => self.answer_nop(cid, &pdu, data, outbox),
            Request::Text(request, bhs, text) => {
                outbox.event(Event::Text(Box::new(PendingText { cid, request, bhs: *bhs, text })));
            }
            Request::Management(request) => self.manage(&request, outbox),
            Request::Logout(pdu) => self.log_out(cid, &pdu, outbox),
            Request::Plugged => {}
        }
    }

    /// Echoes a ping (11.18, 11.19); an echo longer than the initiator takes is cut.
    fn answer_nop(&mut self, cid: Cid, pdu: &NopOut, mut data: Vec<u8>, outbox: &mut Outbox<D>) {
        data.truncate(self.max_send_data_segment_length(cid) as usize);
        let (lun, initiator_task_tag, length) = (pdu.lun, pdu.initiator_task_tag, data.len());
        let target_transfer_tag = TargetTransferTag::RESERVED;
        self.send_status(cid, data, outbox, |numbers| {
            NopIn { lun, initiator_task_tag, target_transfer_tag, numbers }.encode(length)
        });
    }

    /// Answers a PDU with a Reject (11.17), which carries the PDU's header back.
    pub fn reject(&mut self, cid: Cid, bhs: &Bhs, reason: RejectReason, outbox: &mut Outbox<D>) {
        self.reject_about(cid, bhs, (reason, DataSn(0)), outbox);
    }

    /// As [`Self::reject`], with the number that 11.17.2 asks for.
    pub(super) fn reject_about(
        &mut self,
        cid: Cid,
        bhs: &Bhs,
        (reason, data_sn): (RejectReason, DataSn),
        outbox: &mut Outbox<D>,
    ) {
        let reject = Reject { reason: reason as u8, data_sn, ..Reject::default() };
        self.send_status(cid, bhs.to_vec(), outbox, |numbers| Reject { numbers, ..reject }.encode(bhs.len()));
    }

    /// Sends a Text Response (11.11); the driver has run the negotiation.
    pub fn send_text(
        &mut self,
        cid: Cid,
        initiator_task_tag: InitiatorTaskTag,
        (is_final, is_continued, target_transfer_tag): (bool, bool, TargetTransferTag),
        text: Vec<u8>,
        outbox: &mut Outbox<D>,
    ) {
        if let Some(connection) = self.connection_mut(cid) {
            connection.text = (!is_final).then_some(initiator_task_tag);
        }
        let (lun, length) = (LunField::default(), text.len());
        self.send_status(cid, text, outbox, |numbers| {
            TextResponse { is_final, is_continued, lun, initiator_task_tag, target_transfer_tag, numbers }
                .encode(length)
        });
    }
}
