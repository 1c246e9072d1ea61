//! The target's side of a session in full feature phase (RFC 7143, clauses 4.2.2, 4.2.3, 4.2.5, 7 and 11).
//!
//! A [`Session`] is a state machine without I/O. The driver brings headers, says how long their data segments are
//! and how commands ended; the session numbers, orders, solicits, aborts and answers. It never sees the bytes of a
//! read or write: the driver puts Data-Out where [`Session::locate_data_out`] says and hands buffers for Data-In
//! through [`Transfer::In`].
//!
//! One connection and ErrorRecoveryLevel 0 are negotiated at present. State that RFC 7143 gives to a connection is
//! in `connection`, state that it gives to the session here, so that more connections fit in.

mod connection;
mod data_in;
mod data_out;
mod management;
mod outbox;
mod task;
mod timers;
mod window;

use std::time::Duration;

use lunette_wire::initiator::{InitiatorPdu, LogoutReason, LogoutRequest, NopOut, ScsiCommand, TextRequest};
use lunette_wire::target::{LogoutResponse, NopIn, Numbers, Reject, RejectReason, TextResponse};
use lunette_wire::{
    AhsList, Bhs, Cid, CmdSn, DecodeError, InitiatorTaskTag, LunField, StatSn, TargetTransferTag,
};

pub use data_in::{Completion, Transfer};
pub use data_out::Placement;
pub use management::{MANAGEMENT_MAX, ManagementId};
pub use outbox::{CloseReason, Event, Outbox, Outgoing, Payload};
pub use task::{TaskId, TaskView};
pub use window::{Admission, CommandWindow};

use crate::parameters::{
    ConnectionParameters, DEFAULT_MAX_RECV_DATA_SEGMENT_LENGTH, SessionParameters, SessionType,
};
use connection::Connection;
use management::{Management, PendingManagement};
use task::{Phase, Task, TaskTable};

/// The most immediate commands of a session that are open at once; more are rejected with reason 6 (4.2.2.1 lets a
/// target limit them, and asks for at least one of each kind a connection).
pub const IMMEDIATE_TASKS_MAX: usize = 32;

/// The most bytes of text and ping data that wait for an earlier command; a request beyond is rejected. They come from
/// no pool, and no initiator sends requests with data ahead of their turn on a single connection.
pub const PARKED_BYTES_MAX: usize = 1 << 20;

/// What the two sides did not negotiate: this side's own settings.
#[derive(Debug, Clone, Copy)]
pub struct SessionSettings {
    /// Commands that the initiator may have outstanding, 1 to 4096.
    pub window_depth: u16,
    /// Silence after which the target pings; `None` never pings.
    pub nop_interval: Option<Duration>,
    /// How long a ping may stay unanswered.
    pub nop_timeout: Duration,
    /// Tells whether two LUN fields name the same logical unit; SCSI has several forms for one number.
    pub same_unit: fn(LunField, LunField) -> bool,
}

impl Default for SessionSettings {
    fn default() -> Self {
        Self {
            // ESXi and Linux queue up to 128 commands a session by default.
            window_depth: 128,
            // LIO and SCST find a dead initiator in about a minute; so do we.
            nop_interval: Some(Duration::from_secs(30)),
            nop_timeout: Duration::from_secs(30),
            same_unit: |left, right| left == right,
        }
    }
}

/// A request other than a SCSI command, kept until its CmdSN's turn comes.
#[derive(Debug)]
enum Request {
    Command(TaskId),
    Nop(NopOut, Vec<u8>),
    Text(TextRequest, Box<Bhs>, Vec<u8>),
    Management(Management),
    Logout(LogoutRequest),
    /// A number whose command was aborted or refused before its turn.
    Plugged,
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

/// A logout that is answered once no task of the session is left in a store.
#[derive(Debug, Clone, Copy)]
struct PendingLogout {
    cid: Cid,
    initiator_task_tag: InitiatorTaskTag,
}

/// A session of a target, from the end of its leading login to its last task.
#[derive(Debug)]
pub struct Session {
    kind: SessionType,
    parameters: SessionParameters,
    settings: SessionSettings,
    window: CommandWindow<(Cid, Request)>,
    parked_bytes: usize,
    connections: Vec<Connection>,
    tasks: TaskTable,
    immediate_tasks: usize,
    management: Vec<PendingManagement>,
    next_management: u32,
    logout: Option<PendingLogout>,
    /// No new task is taken; the session ends with its last one.
    closing: bool,
    ended: bool,
}

impl Session {
    /// A session that has just reached full feature phase on its leading connection.
    ///
    /// `cmd_sn` is the number that the next non-immediate request will carry, `stat_sn` the next status number of
    /// the connection; `now` is any monotonic time, the same for all calls.
    #[must_use]
    pub fn new(
        kind: SessionType,
        parameters: SessionParameters,
        settings: SessionSettings,
        (cid, connection, stat_sn): (Cid, ConnectionParameters, StatSn),
        cmd_sn: CmdSn,
        now: Duration,
    ) -> Self {
        Self {
            kind,
            parameters,
            settings,
            window: CommandWindow::new(cmd_sn, settings.window_depth),
            parked_bytes: 0,
            connections: vec![Connection::new(cid, connection, stat_sn, now)],
            tasks: TaskTable::default(),
            immediate_tasks: 0,
            management: Vec::new(),
            next_management: 0,
            logout: None,
            closing: false,
            ended: false,
        }
    }

    /// What the session is for.
    #[must_use]
    pub const fn kind(&self) -> SessionType {
        self.kind
    }

    /// What was negotiated for the session.
    #[must_use]
    pub const fn parameters(&self) -> &SessionParameters {
        &self.parameters
    }

    /// A look at a task that has not ended.
    #[must_use]
    pub fn task(&self, id: TaskId) -> Option<TaskView<'_>> {
        self.tasks.get(id).map(|task| TaskView {
            lun: task.command.lun,
            cdb: &task.command.cdb,
            extended_cdb: &task.extended_cdb,
            attribute: task.command.attribute,
            initiator_task_tag: task.command.initiator_task_tag,
            expected_out: task.expected_out(),
            expected_in: task.expected_in(),
            aborted: task.aborted,
        })
    }

    /// Tasks that have not ended, parked and aborted ones included.
    #[must_use]
    pub fn open_tasks(&self) -> usize {
        self.tasks.len()
    }

    /// True after [`Event::Ended`].
    #[must_use]
    pub const fn has_ended(&self) -> bool {
        self.ended
    }

    /// Takes a SCSI Command (11.3) with `data_length` bytes of immediate data, whose bytes the driver keeps for the
    /// task that is returned. `None` when the command is not taken; its data is then to be thrown away.
    pub fn command<D>(
        &mut self,
        now: Duration,
        cid: Cid,
        (bhs, pdu, ahs): (&Bhs, &ScsiCommand, &[u8]),
        data_length: u32,
        outbox: &mut Outbox<D>,
    ) -> Option<TaskId> {
        self.heard(now, cid)?;
        if !pdu.immediate && self.window.judge(pdu.cmd_sn) == Admission::Ignore {
            return None;
        }
        if let Err(reason) = self.command_fault(pdu, data_length) {
            return self.refuse_command(cid, (bhs, pdu), reason, outbox);
        }
        let Ok(ahs) = AhsList::decode(ahs) else {
            return self.refuse_command(cid, (bhs, pdu), RejectReason::InvalidPduField, outbox);
        };
        let mut task = Task::new(cid, *pdu, ahs.extended_cdb, data_length);
        task.fault = self.unsolicited_fault(&task, data_length);
        let id = self.tasks.insert(task);
        if pdu.immediate {
            self.immediate_tasks += 1;
            self.deliver(cid, Request::Command(id), outbox);
        } else {
            self.order(cid, pdu.cmd_sn, Request::Command(id), outbox);
        }
        Some(id)
    }

    fn command_fault(&self, pdu: &ScsiCommand, data_length: u32) -> Result<(), RejectReason> {
        if self.kind == SessionType::Discovery {
            return Err(RejectReason::CommandNotSupported);
        }
        if self.closing {
            return Err(RejectReason::WaitingForLogout);
        }
        if pdu.immediate && self.immediate_tasks >= IMMEDIATE_TASKS_MAX {
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

    /// A refused command still uses up its number, or every later one would wait for it.
    fn refuse_command<D>(
        &mut self,
        cid: Cid,
        (bhs, pdu): (&Bhs, &ScsiCommand),
        reason: RejectReason,
        outbox: &mut Outbox<D>,
    ) -> Option<TaskId> {
        self.reject(cid, bhs, reason, outbox);
        if !pdu.immediate {
            self.order(cid, pdu.cmd_sn, Request::Plugged, outbox);
        }
        None
    }

    /// Takes any other PDU of an initiator, its data segment in `data`. A SCSI Command or Data-Out must go to
    /// [`Self::command`] or [`Self::data_out_arrived`]; here they are protocol errors.
    pub fn request<D>(&mut self, now: Duration, cid: Cid, bhs: &Bhs, data: &[u8], outbox: &mut Outbox<D>) {
        if self.heard(now, cid).is_none() {
            return;
        }
        let (immediate, cmd_sn, request) = match InitiatorPdu::decode(bhs) {
            Ok(InitiatorPdu::NopOut(pdu)) => {
                self.answer_to_ping(cid, &pdu);
                if pdu.initiator_task_tag == InitiatorTaskTag::RESERVED {
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
            // ErrorRecoveryLevel 0 has no SNACK (11.16).
            Ok(InitiatorPdu::SnackRequest(_)) => {
                return self.reject(cid, bhs, RejectReason::SnackReject, outbox);
            }
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
            if let Some(reason) = self.refusal(&request) {
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
            admission == Admission::Early && self.parked_bytes + request.held_bytes() > PARKED_BYTES_MAX;
        let refusal = if no_room { Some(RejectReason::LongOperationReject) } else { self.refusal(&request) };
        // What is refused still uses up its number.
        let request = match refusal {
            Some(reason) => {
                self.reject(cid, bhs, reason, outbox);
                Request::Plugged
            }
            None => request,
        };
        self.order(cid, cmd_sn, request, outbox);
    }

    /// Why a session of this kind does not take a request: a discovery session is for text and its end (4.3).
    fn refusal(&self, request: &Request) -> Option<RejectReason> {
        let is_taken = match request {
            Request::Logout(logout) => logout.reason == LogoutReason::CloseSession,
            Request::Nop(..) | Request::Management(_) => false,
            Request::Command(_) | Request::Text(..) | Request::Plugged => true,
        };
        (self.kind == SessionType::Discovery && !is_taken).then_some(RejectReason::CommandNotSupported)
    }

    /// Answers a PDU with a Reject (11.17), which carries the PDU's header back.
    pub fn reject<D>(&mut self, cid: Cid, bhs: &Bhs, reason: RejectReason, outbox: &mut Outbox<D>) {
        let Some(numbers) = self.status_numbers(cid) else { return };
        let reject = Reject { reason: reason as u8, numbers, ..Reject::default() };
        outbox.send_bytes(cid, reject.encode(bhs.len()), bhs.to_vec());
    }

    /// Sends a Text Response (11.11); the driver has run the negotiation.
    pub fn send_text<D>(
        &mut self,
        cid: Cid,
        initiator_task_tag: InitiatorTaskTag,
        (is_final, is_continued, target_transfer_tag): (bool, bool, TargetTransferTag),
        text: Vec<u8>,
        outbox: &mut Outbox<D>,
    ) {
        let Some(numbers) = self.status_numbers(cid) else { return };
        let response = TextResponse {
            is_final,
            is_continued,
            lun: LunField::default(),
            initiator_task_tag,
            target_transfer_tag,
            numbers,
        };
        outbox.send_bytes(cid, response.encode(text.len()), text);
    }

    /// The longest data segment that the initiator takes on a connection, in bytes (13.12).
    #[must_use]
    pub fn max_send_data_segment_length(&self, cid: Cid) -> u32 {
        self.connections
            .iter()
            .find(|connection| connection.cid == cid)
            .map_or(DEFAULT_MAX_RECV_DATA_SEGMENT_LENGTH, |connection| {
                connection.parameters.max_send_data_segment_length
            })
    }

    /// A new declaration of the initiator's MaxRecvDataSegmentLength in full feature phase (13.12).
    pub fn set_max_send_data_segment_length(&mut self, cid: Cid, bytes: u32) {
        if let Some(connection) = self.connection_mut(cid) {
            connection.parameters.max_send_data_segment_length = bytes;
        }
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

    fn close_connection<D>(&mut self, cid: Cid, reason: CloseReason, outbox: &mut Outbox<D>) {
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
        self.window.drain().for_each(drop);
        self.parked_bytes = 0;
        for id in self.tasks.ids(|_| true) {
            self.abort(id, None, outbox);
        }
    }

    /// Judges a request's number and delivers all that is in order now.
    fn order<D>(&mut self, cid: Cid, cmd_sn: CmdSn, request: Request, outbox: &mut Outbox<D>) {
        match self.window.admit(cmd_sn) {
            Admission::Ignore => {
                debug_assert!(!matches!(request, Request::Command(_)), "judged before it became a task");
            }
            Admission::Early => {
                self.parked_bytes += request.held_bytes();
                self.window.park(cmd_sn, (cid, request));
            }
            Admission::Next => {
                self.deliver_in_order(cid, request, outbox);
                while let Some((cid, request)) = self.window.next_parked() {
                    self.parked_bytes = self.parked_bytes.saturating_sub(request.held_bytes());
                    self.deliver_in_order(cid, request, outbox);
                }
            }
        }
    }

    fn deliver_in_order<D>(&mut self, cid: Cid, request: Request, outbox: &mut Outbox<D>) {
        // Only SCSI commands hold their place in the window until they end.
        if !matches!(request, Request::Command(_)) {
            self.window.release();
        }
        self.deliver(cid, request, outbox);
    }

    fn deliver<D>(&mut self, cid: Cid, request: Request, outbox: &mut Outbox<D>) {
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
                outbox.event(Event::Text { cid, request, bhs: *bhs, text });
            }
            Request::Management(request) => self.manage(&request, outbox),
            Request::Logout(pdu) => self.log_out(cid, &pdu, outbox),
            Request::Plugged => {}
        }
    }

    /// Echoes a ping (11.18, 11.19); an echo longer than the initiator takes is cut.
    fn answer_nop<D>(&mut self, cid: Cid, pdu: &NopOut, mut data: Vec<u8>, outbox: &mut Outbox<D>) {
        let Some(numbers) = self.status_numbers(cid) else { return };
        let Some(connection) = self.connection_mut(cid) else { return };
        data.truncate(connection.parameters.max_send_data_segment_length as usize);
        let answer = NopIn {
            lun: pdu.lun,
            initiator_task_tag: pdu.initiator_task_tag,
            target_transfer_tag: TargetTransferTag::RESERVED,
            numbers,
        };
        outbox.send_bytes(cid, answer.encode(data.len()), data);
    }

    /// Logout (11.14, 11.15). The answer waits until no task is left in a store, so that nothing of this session
    /// can overtake what a later session writes.
    fn log_out<D>(&mut self, cid: Cid, pdu: &LogoutRequest, outbox: &mut Outbox<D>) {
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
            self.logout = Some(PendingLogout { cid, initiator_task_tag: pdu.initiator_task_tag });
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

    /// After anything that may have ended a task: sends what was waiting for that.
    fn settle<D>(&mut self, outbox: &mut Outbox<D>) {
        self.settle_management(outbox);
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

    /// Notes that a connection is alive; `None` when nothing more is taken from it.
    fn heard(&mut self, now: Duration, cid: Cid) -> Option<()> {
        let connection = self.connection_mut(cid).filter(|connection| !connection.closing)?;
        connection.heard_at = now;
        Some(())
    }

    fn connection_mut(&mut self, cid: Cid) -> Option<&mut Connection> {
        self.connections.iter_mut().find(|connection| connection.cid == cid)
    }

    /// Numbers for a PDU that uses up a StatSN; `None` when the connection is gone.
    fn status_numbers(&mut self, cid: Cid) -> Option<Numbers> {
        let (exp_cmd_sn, max_cmd_sn) = (self.window.exp_cmd_sn(), self.window.max_cmd_sn());
        let connection = self.connection_mut(cid)?;
        Some(Numbers { stat_sn: connection.take_stat_sn(), exp_cmd_sn, max_cmd_sn })
    }

    /// Numbers for a PDU that shows the next StatSN without using it up (R2T, NOP-In ping).
    fn peek_numbers(&mut self, cid: Cid) -> Option<Numbers> {
        let (exp_cmd_sn, max_cmd_sn) = (self.window.exp_cmd_sn(), self.window.max_cmd_sn());
        let connection = self.connection_mut(cid)?;
        Some(Numbers { stat_sn: connection.peek_stat_sn(), exp_cmd_sn, max_cmd_sn })
    }
}

#[cfg(test)]
mod tests;
