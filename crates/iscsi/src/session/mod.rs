//! The target's side of a session in full feature phase (RFC 7143, clauses 4.2.2, 4.2.3, 4.2.5, 7 and 11).
//!
//! A [`Session`] is a state machine without I/O. The driver brings headers, says how long their data segments are
//! and how commands ended; the session numbers, orders, solicits, aborts and answers. It never sees the bytes of a
//! read or write: the driver puts Data-Out where [`Session::locate_data_out`] says and hands buffers for Data-In
//! through [`Transfer::In`].
//!
//! A session has up to MaxConnections connections, named by their CIDs. State that RFC 7143 gives to a connection is in
//! `connection`, state that it gives to the session here: one command window, one set of tasks, each of which belongs to
//! the connection that brought it (4.2.5.1). What ErrorRecoveryLevel 1 and 2 add is in `recovery`.

mod aborts;
mod at_once;
mod connection;
mod data_in;
mod data_out;
mod declaration;
mod fence;
mod gaps;
mod logout;
mod management;
mod outbox;
mod recovery;
mod requests;
mod segments;
mod task;
mod termination;
mod timers;
mod window;

use std::time::Duration;

use lunette_wire::initiator::ScsiCommand;
use lunette_wire::target::{NopIn, Numbers};
use lunette_wire::{Bhs, Cid, CmdSn, InitiatorTaskTag, LunField, StatSn, TargetTransferTag};

pub use at_once::Deliverable;
pub use data_in::{Completion, Transfer};
pub use data_out::Placement;
pub use management::{FunctionAnswer, MANAGEMENT_MAX, ManagementId};
pub use outbox::{CloseReason, Event, Outbox, Outgoing, Payload, PendingText, Share};
pub use task::{TaskId, TaskView};
pub use window::{Admission, CommandWindow};

use crate::parameters::{
    ConnectionParameters, DEFAULT_MAX_RECV_DATA_SEGMENT_LENGTH, SessionParameters, SessionType,
};
use connection::{Connection, acknowledged_connection, exp_stat_sn};
use fence::Fence;
use logout::PendingLogout;
use management::{Management, PendingManagement};
use recovery::{Logged, Recovery};
use requests::{Parked, Request};
use task::{Phase, TaskTable};

/// The most immediate commands of a session that are open at once; more are rejected with reason 6, unless they are the
/// only one of their connection (4.2.2.1 lets a target limit them, and asks for at least one of each kind a connection).
pub const IMMEDIATE_TASKS_MAX: usize = 32;

/// The most bytes of text and ping data that wait for an earlier command; a request beyond is rejected. They come from
/// no pool, and initiators that spread requests over connections do so with commands.
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
    /// The most data of reads, in bytes, that is kept until it is acknowledged (above ErrorRecoveryLevel 0); the oldest is
    /// forgotten where there is more.
    pub kept_read_bytes_max: u64,
    /// Tells whether two LUN fields name the same logical unit; SCSI has several forms for one number.
    pub same_unit: fn(LunField, LunField) -> bool,
    /// Whether the initiator may reset the whole target (11.5.1); if not, it is told so (11.6.1, function authorization
    /// failed), and nothing is aborted.
    pub may_reset_target: bool,
}

impl Default for SessionSettings {
    fn default() -> Self {
        Self {
            // ESXi and Linux queue up to 128 commands a session by default.
            window_depth: 128,
            // LIO and SCST find a dead initiator in about a minute; so do we.
            nop_interval: Some(Duration::from_secs(30)),
            nop_timeout: Duration::from_secs(30),
            // All that a window of 128 commands of 512 KiB has outstanding.
            kept_read_bytes_max: 64 << 20,
            same_unit: |left, right| left == right,
            may_reset_target: true,
        }
    }
}

/// What a login finds that joins a session (6.3.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Joining {
    /// There is a place for it.
    Free,
    /// A connection of the session has this CID: it is to be reinstated (6.3.4).
    InUse,
    /// The session has as many connections as were agreed on.
    Full,
    /// The session is ending.
    Over,
}

/// A session of a target, from the end of its leading login to its last task. `D` is the driver's handle for data that
/// goes to the initiator.
#[derive(Debug)]
pub struct Session<D> {
    kind: SessionType,
    parameters: SessionParameters,
    settings: SessionSettings,
    window: CommandWindow<(Cid, Request)>,
    parked: Parked,
    /// MaxCmdSN has moved and no PDU has told the initiator.
    window_untold: bool,
    connections: Vec<Connection>,
    tasks: TaskTable,
    immediate_tasks: usize,
    management: Vec<PendingManagement>,
    /// Immediate functions that wait for earlier commands.
    early_functions: Vec<Management>,
    next_management: u32,
    fence: Fence<D>,
    logouts: Vec<PendingLogout>,
    /// Connections that are leaving.
    leaving: usize,
    /// A connection has failed, and with it the session.
    is_failed: bool,
    /// When the session is given up because others wait until its reads have been taken.
    reads_due: Option<Duration>,
    /// No new task is taken; the session ends with its last one.
    closing: bool,
    ended: bool,
    recovery: Recovery<D>,
}

impl<D: Share> Session<D> {
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
            parked: Parked::default(),
            window_untold: false,
            connections: vec![Connection::new(cid, connection, stat_sn, now)],
            tasks: TaskTable::default(),
            immediate_tasks: 0,
            management: Vec::new(),
            early_functions: Vec::new(),
            next_management: 0,
            fence: Fence::default(),
            logouts: Vec::new(),
            leaving: 0,
            is_failed: false,
            reads_due: None,
            closing: false,
            ended: false,
            recovery: Recovery::new(settings.kept_read_bytes_max),
        }
    }

    /// What a login with connection `cid` finds that joins this session (6.3.1).
    #[must_use]
    pub fn joining(&self, cid: Cid) -> Joining {
        let is_staying = |connection: &&Connection| !connection.leaving && !connection.failed;
        let staying = self.connections.iter().filter(is_staying).count();
        // At level 2 one more is taken, so that a connection can be cleaned up whose loss only the initiator knows (6.3.4).
        let spare = usize::from(self.parameters.error_recovery_level > 1);
        if self.closing {
            Joining::Over
        } else if self.connections.iter().any(|connection| connection.cid == cid) {
            Joining::InUse
        } else if self.connections.len() >= 2 * usize::from(self.parameters.max_connections) + spare
            || staying >= usize::from(self.parameters.max_connections) + spare
        {
            Joining::Full
        } else {
            Joining::Free
        }
    }

    /// Adds a connection that has reached full feature phase; [`Self::joining`] has found its CID free. `stat_sn` is its
    /// next status number.
    pub fn join(&mut self, now: Duration, cid: Cid, parameters: ConnectionParameters, stat_sn: StatSn) {
        debug_assert_eq!(self.joining(cid), Joining::Free);
        self.connections.push(Connection::new(cid, parameters, stat_sn, now));
    }

    /// ExpCmdSN and MaxCmdSN as they are now, for the responses of a login that joins (11.13).
    #[must_use]
    pub const fn command_numbers(&self) -> (CmdSn, CmdSn) {
        (self.window.exp_cmd_sn(), self.window.max_cmd_sn())
    }

    /// Whether a task waits for an earlier command to come (4.2.2.1).
    #[must_use]
    pub fn is_parked(&self, id: TaskId) -> bool {
        self.tasks.get(id).is_some_and(|task| task.phase == Phase::Parked)
    }

    /// Whether a request with this number would be kept until an earlier one has come (4.2.2.1).
    #[must_use]
    pub fn is_early(&self, cmd_sn: CmdSn) -> bool {
        self.window.judge(cmd_sn) == Admission::Early
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
            cid: task.allegiance.cid(),
            lun: task.command.lun,
            cdb: &task.command.cdb,
            extended_cdb: &task.extended_cdb,
            attribute: task.command.attribute,
            priority: self.priority_of(&task.command),
            initiator_task_tag: task.command.initiator_task_tag,
            expected_out: task.expected_out(),
            expected_in: task.expected_in(),
            aborted: task.aborted,
        })
    }

    /// The command priority of a request (SAM-5), 0 for none; always 0 below iSCSIProtocolLevel 2.
    #[must_use]
    pub const fn priority_of(&self, pdu: &ScsiCommand) -> u8 {
        if self.parameters.protocol_level >= 2 { pdu.priority } else { 0 }
    }

    /// Tasks that have not ended, parked and aborted ones included.
    #[must_use]
    pub fn open_tasks(&self) -> usize {
        self.tasks.len()
    }

    /// True once the session takes no new task and ends with its last one.
    #[must_use]
    pub const fn is_closing(&self) -> bool {
        self.closing
    }

    /// True after [`Event::Ended`].
    #[must_use]
    pub const fn has_ended(&self) -> bool {
        self.ended
    }

    /// The driver has no room for what the initiator has sent: fewer commands at a time, until all goes well again
    /// (4.2.2.1; what could not be served ends with TASK SET FULL).
    pub fn narrow_window(&mut self) {
        self.window.narrow();
    }

    /// As [`Self::narrow_window`], to so many commands at a time where it is more.
    pub fn narrow_window_to(&mut self, commands: u32) {
        self.window.narrow_to(commands);
    }

    /// True while the initiator is given fewer commands at a time than were agreed on.
    #[must_use]
    pub const fn has_narrow_window(&self) -> bool {
        self.window.is_narrow()
    }

    /// Whether a narrow window stays as it is because the driver has no room for more commands.
    pub const fn hold_window(&mut self, is_held: bool) {
        self.window.hold(is_held);
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

    /// Tells the initiator of a MaxCmdSN that moved without an answer going out, as after another session's reset: it
    /// may be waiting for nothing else (11.4.11).
    fn tell_window(&mut self, outbox: &mut Outbox<D>) {
        if !std::mem::take(&mut self.window_untold) || self.closing {
            return;
        }
        let open = self.connections.iter().find(|connection| connection.is_open());
        let Some(cid) = open.map(|connection| connection.cid) else { return };
        let Some(numbers) = self.peek_numbers(cid) else { return };
        let notice = NopIn {
            lun: LunField::default(),
            initiator_task_tag: InitiatorTaskTag::RESERVED,
            target_transfer_tag: TargetTransferTag::RESERVED,
            numbers,
        };
        outbox.send(cid, notice.encode(0));
    }

    /// Notes that a connection is alive, and what a PDU on it acknowledges; `None` when nothing more is taken from it.
    fn heard(&mut self, now: Duration, cid: Cid, bhs: &Bhs, outbox: &mut Outbox<D>) -> Option<()> {
        let of = acknowledged_connection(cid, bhs);
        let connection = self.connection_mut(cid).filter(|connection| !connection.closing)?;
        let has_declared = connection.declared.is_some();
        connection.heard_at = now;
        if of == cid {
            connection.acknowledge(exp_stat_sn(bhs));
        } else if let Some(other) = self.connection_mut(of) {
            other.acknowledge(exp_stat_sn(bhs));
        }
        if self.recovers() {
            self.release_acknowledged(of);
        }
        if has_declared {
            self.settle_declared(cid, outbox);
        }
        if self.fence.is_up() {
            self.settle_fence(outbox);
        }
        Some(())
    }

    fn connection_mut(&mut self, cid: Cid) -> Option<&mut Connection> {
        self.connections.iter_mut().find(|connection| connection.cid == cid)
    }

    /// Sends a PDU that uses up a StatSN; nothing when the connection is gone. All but the data of reads go out here.
    fn send_status(
        &mut self,
        cid: Cid,
        data: Vec<u8>,
        outbox: &mut Outbox<D>,
        encode: impl FnOnce(Numbers) -> Bhs,
    ) {
        let Some(numbers) = self.status_numbers(cid) else { return };
        let bhs = encode(numbers);
        if self.recovers() {
            self.log_status(cid, Logged::Pdu(Box::new(bhs), data.clone()));
            outbox.send_bytes(cid, bhs, data);
            self.ask_for_acknowledgement(cid, outbox);
        } else {
            outbox.send_bytes(cid, bhs, data);
        }
    }

    /// Numbers for a PDU that uses up a StatSN; `None` when the connection is gone.
    fn status_numbers(&mut self, cid: Cid) -> Option<Numbers> {
        self.window_untold = false;
        let (exp_cmd_sn, max_cmd_sn) = (self.window.exp_cmd_sn(), self.window.max_cmd_sn());
        let connection = self.connection_mut(cid)?;
        Some(Numbers { stat_sn: connection.take_stat_sn(), exp_cmd_sn, max_cmd_sn })
    }

    /// Numbers for a PDU that shows the next StatSN without using it up (R2T, NOP-In ping).
    fn peek_numbers(&mut self, cid: Cid) -> Option<Numbers> {
        self.window_untold = false;
        let (exp_cmd_sn, max_cmd_sn) = (self.window.exp_cmd_sn(), self.window.max_cmd_sn());
        let connection = self.connection_mut(cid)?;
        Some(Numbers { stat_sn: connection.peek_stat_sn(), exp_cmd_sn, max_cmd_sn })
    }
}

#[cfg(test)]
mod tests;
