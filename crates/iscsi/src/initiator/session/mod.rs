//! A session of an initiator in full feature phase (RFC 7143, clauses 4.2, 4.6 and 11): its command window, tasks,
//! transfers, task management and connections. The target's side is [`crate::session`].
//!
//! A state machine without I/O, clock or threads. The driver
//!
//! - makes a [`Session`] when the leading login is through, and [adds](Session::add_connection) each connection;
//! - [submits](Session::submit) commands, whose buffers it keeps: the session says which bytes of a task's buffer a PDU
//!   sends ([`DataRange`]) and where those that come belong ([`Place`]), and sees none of them;
//! - gives each header that comes to [`Session::place`], receives the data segment to the place that it names, and then
//!   calls [`Session::received`];
//! - calls [`Session::transmit`] for each connection that can take more: PDUs are made when they can leave, so that what
//!   waits costs no memory, a task that ends leaves nothing in a queue, and each PDU acknowledges all that came before it;
//! - calls [`Session::tick`] at [`Session::next_deadline`], and [`Session::connection_lost`] when the transport fails.
//!
//! Each task ends exactly once, by [`Event::Ended`]. The target is not trusted: every PDU is checked against what was agreed
//! on and what has been before, and what it keeps is bounded by the commands that were submitted.

mod asynchronous;
mod connection;
mod coverage;
mod data_in;
mod data_out;
mod fault;
mod logout;
mod management;
mod negotiation;
mod outbox;
mod receive;
mod recovery;
mod requests;
mod respond;
mod round_trip;
mod slots;
mod task;
mod timers;
mod transmit;

use std::collections::VecDeque;
use std::time::Duration;

use lunette_wire::target::Numbers;
use lunette_wire::{Cid, CmdSn, InitiatorTaskTag};

use crate::parameters::{CONNECTIONS_MAX, SessionParameters};

pub use connection::LoggedIn;
pub use fault::{AnswerFault, Loss, Violation, ViolationKind};
pub use logout::Logout;
pub use management::{Abort, Function};
pub use outbox::{Answer, DataRange, End, Event, Notice, Outbox, Outgoing, Payload, Place, Segment};
pub use requests::RequestError;
pub use round_trip::RoundTrip;
pub use task::{CDB_LENGTH_MAX, Command};

use connection::{Connection, Entry};
use recovery::Lost;
use requests::Request;
use slots::Slots;
use task::{Stage, Task};

/// Requests other than commands that may wait for their answers. A driver needs a few; the pings and logouts of 32
/// connections fit many times.
const REQUESTS_MAX: usize = 1024;

/// Of several connections, the one whose turn it is takes no further command while so many requests, or so many bytes with them,
/// have not been moved out: what it takes beyond waits there for longer than on one that is quicker. The requests are few enough
/// to be counted each time.
const AHEAD_MAX: usize = 16;
const AHEAD_BYTES_MAX: u64 = 64 << 10;

/// A task: a command that was submitted and has not ended. It is the Initiator Task Tag that the command has on the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct TaskHandle(InitiatorTaskTag);

impl TaskHandle {
    /// The Initiator Task Tag.
    #[must_use]
    pub const fn initiator_task_tag(self) -> InitiatorTaskTag {
        self.0
    }

    /// A place among the tasks that are there at the same time, from 0 on and below [`Settings::tasks_max`]: for a
    /// driver that keeps its own things beside them.
    #[must_use]
    pub const fn place(self) -> usize {
        (self.0.0 & 0xffff) as usize
    }
}

/// A request other than a SCSI command that waits for its answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RequestHandle(InitiatorTaskTag);

/// A connection of a session. Unlike a CID it is never used again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct ConnectionId(u32);

/// What the driver chooses. Times and sizes are within what a `Duration` and memory can hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settings {
    /// Commands that are under way or wait for the command window, at most 65534. Default 4096: many times what targets
    /// let be under way at once.
    pub tasks_max: usize,
    /// After how much silence a connection is pinged; `None`: never. Default 5 s, as the Linux initiator does.
    pub nop_interval: Option<Duration>,
    /// How long the answer may take before the connection counts as lost. Default 5 s, as the Linux initiator has it.
    pub nop_timeout: Duration,
    /// Above ErrorRecoveryLevel 0: how long something that is missing is waited for before it is asked for again, and after how
    /// much silence a connection with tasks is pinged, which shows what was lost. Default 2 s: longer than any way round.
    pub recovery_interval: Duration,
    /// How long the answer to a task management function may take, and to what recovers a connection, before the connection
    /// that was asked counts as lost. Default 60 s: a target may have to wait for its store before it may answer.
    pub function_timeout: Duration,
    /// The longest Time2Wait that is waited at ErrorRecoveryLevel 2 (13.15): where the target wants more, a lost connection ends
    /// the session instead. Default 60 s; RFC 7143 lets a target say an hour.
    pub time2wait_max: Duration,
    /// How long a Logout Response may take. Default 15 s, as the Linux initiator has it.
    pub logout_timeout: Duration,
    /// The longest answer to a text request, in bytes. Default 1 MiB: some 10,000 targets of a SendTargets.
    pub text_length_max: usize,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            tasks_max: 4096,
            nop_interval: Some(Duration::from_secs(5)),
            nop_timeout: Duration::from_secs(5),
            recovery_interval: Duration::from_secs(2),
            function_timeout: Duration::from_secs(60),
            time2wait_max: Duration::from_secs(60),
            logout_timeout: Duration::from_secs(15),
            text_length_max: 1 << 20,
        }
    }
}

/// Why a command is not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SubmitError {
    /// The session is over or is being logged out.
    #[error("the session is over or is being logged out")]
    Closed,
    /// As many tasks as the settings allow.
    #[error("as many commands as may wait are waiting")]
    Full,
    /// A CDB without a byte, or longer than [`CDB_LENGTH_MAX`].
    #[error("a CDB has 1 to {CDB_LENGTH_MAX} bytes, not {0}")]
    CdbLength(usize),
}

/// Why a connection is not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum JoinError {
    /// The session is over or is being logged out.
    #[error("the session is over or is being logged out")]
    Closed,
    /// As many connections as were agreed on (13.2).
    #[error("the session has as many connections as were agreed on")]
    Full,
    /// A connection of the session has this CID.
    #[error("a connection of the session has the CID {}", .0.0)]
    CidInUse(Cid),
}

/// How far a session is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Open,
    /// Its logout was asked for.
    LoggingOut,
    Over,
}

/// A session of an initiator, from the end of its leading login on.
#[derive(Debug)]
pub struct Session {
    parameters: SessionParameters,
    settings: Settings,
    phase: Phase,
    /// The number of the next non-immediate request.
    cmd_sn: CmdSn,
    /// The newest that the target told (4.2.2.1).
    exp_cmd_sn: CmdSn,
    max_cmd_sn: CmdSn,
    connections: Vec<Connection>,
    next_connection: u32,
    tasks: Slots<Task>,
    requests: Slots<Request>,
    /// Commands that wait for the window; some may have ended.
    waiting: VecDeque<InitiatorTaskTag>,
    /// Connections that are lost and not yet removed for recovery (ErrorRecoveryLevel 2).
    lost: Vec<Lost>,
    /// Tasks that the target has refused to take to another connection, each with the time until which it may go on with it
    /// all the same.
    doubted: Vec<(InitiatorTaskTag, Duration)>,
}

impl Session {
    /// A session whose leading login is through, without a connection yet. `cmd_sn` is the number that the login had,
    /// which is that of the first command (4.2.2.1).
    #[must_use]
    pub const fn new(parameters: SessionParameters, cmd_sn: CmdSn, settings: Settings) -> Self {
        Self {
            parameters,
            settings,
            phase: Phase::Open,
            cmd_sn,
            exp_cmd_sn: cmd_sn,
            // Nothing may be sent before a connection has told more.
            max_cmd_sn: CmdSn(cmd_sn.0.wrapping_sub(1)),
            connections: Vec::new(),
            next_connection: 0,
            tasks: Slots::of_tasks(),
            requests: Slots::of_requests(),
            waiting: VecDeque::new(),
            lost: Vec::new(),
            doubted: Vec::new(),
        }
    }

    /// Adds a connection that has reached full feature phase; with the CID of a lost one it takes that one's place (6.3.4), and
    /// [`Self::tick`] has something to do at once. `now` is any monotonic time, the same for all calls.
    ///
    /// # Errors
    /// [`JoinError`]; the connection is not used then.
    pub fn add_connection(&mut self, now: Duration, login: &LoggedIn) -> Result<ConnectionId, JoinError> {
        if self.phase != Phase::Open {
            return Err(JoinError::Closed);
        }
        if self.connections.len() >= usize::from(self.parameters.max_connections.min(CONNECTIONS_MAX)) {
            return Err(JoinError::Full);
        }
        if self.connections.iter().any(|connection| connection.cid == login.cid) {
            return Err(JoinError::CidInUse(login.cid));
        }
        let id = ConnectionId(self.next_connection);
        self.next_connection += 1;
        self.connections.push(Connection::new(now, id, login));
        // Numbers that make no sense are none; those of the next PDU will be looked at.
        let (stat_sn, exp_cmd_sn, max_cmd_sn) = (login.exp_stat_sn, login.exp_cmd_sn, login.max_cmd_sn);
        let _ = self.count_commands("Login Response", Numbers { stat_sn, exp_cmd_sn, max_cmd_sn });
        if let Some(lost) = self.lost.iter_mut().find(|lost| lost.cid == login.cid) {
            lost.is_removed = true;
        }
        self.assign_waiting();
        Ok(id)
    }

    /// A CID that no connection has, for another login.
    #[must_use]
    pub fn free_cid(&self) -> Cid {
        let is_free = |cid: &Cid| {
            !self.connections.iter().any(|connection| connection.cid == *cid)
                && !self.lost.iter().any(|lost| lost.cid == *cid)
        };
        (0..=u16::MAX).map(Cid).find(is_free).unwrap_or_default()
    }

    /// The present CmdSN, which a login that joins the session carries (11.12.8).
    #[must_use]
    pub const fn cmd_sn(&self) -> CmdSn {
        self.cmd_sn
    }

    /// What was agreed for the session.
    #[must_use]
    pub const fn parameters(&self) -> &SessionParameters {
        &self.parameters
    }

    /// The connections that there are.
    pub fn connections(&self) -> impl Iterator<Item = ConnectionId> {
        self.connections.iter().map(|connection| connection.id)
    }

    /// Tasks that have not ended.
    #[must_use]
    pub const fn open_tasks(&self) -> usize {
        self.tasks.len()
    }

    /// Commands that the window has room for now.
    #[must_use]
    pub const fn window(&self) -> u32 {
        let ahead = self.max_cmd_sn.next().since(self.cmd_sn);
        if self.max_cmd_sn.precedes(self.cmd_sn) { 0 } else { ahead }
    }

    /// True while a command waits for room in the command window and has no number yet.
    #[must_use]
    pub fn is_waiting(&self, task: TaskHandle) -> bool {
        self.tasks.get(task.0).is_some_and(|task| task.stage == Stage::Waiting)
    }

    /// The round trip of a connection, as its pings have shown it.
    #[must_use]
    pub fn round_trip(&self, connection: ConnectionId) -> Option<RoundTrip> {
        self.connection(connection).map(|connection| connection.round_trip)
    }

    /// True once the session is over.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.phase == Phase::Over
    }

    /// Takes a command. It gets a number and a connection when the command window has room for it (4.2.2.1): the one with
    /// the fewest bytes under way. [`Session::transmit`] sends it. Of several connections, one that is full or has much to send
    /// takes none: the target executes commands in the order of their numbers (4.2.2.1), so all behind one that comes late wait for it.
    ///
    /// # Errors
    /// [`SubmitError`]; the command is not taken then.
    pub fn submit(&mut self, command: &Command<'_>) -> Result<TaskHandle, SubmitError> {
        if self.phase != Phase::Open {
            return Err(SubmitError::Closed);
        }
        if command.cdb.is_empty() || command.cdb.len() > CDB_LENGTH_MAX {
            return Err(SubmitError::CdbLength(command.cdb.len()));
        }
        let priority = if self.parameters.protocol_level >= 2 { command.priority & 15 } else { 0 };
        let task = Task::new(&Command { priority, ..*command });
        let tag = self.tasks.insert(task, self.settings.tasks_max).ok_or(SubmitError::Full)?;
        self.waiting.push_back(tag);
        self.assign_waiting();
        Ok(TaskHandle(tag))
    }

    /// Gives numbers and connections to commands that wait, as far as the window goes.
    fn assign_waiting(&mut self) {
        while let Some(&tag) = self.waiting.front() {
            if self.max_cmd_sn.precedes(self.cmd_sn) {
                return;
            }
            let Some(at) = self.next_taker() else { return };
            self.waiting.pop_front();
            let Some(task) = self.tasks.get_mut(tag) else { continue };
            let connection = &mut self.connections[at];
            task.stage = Stage::Assigned;
            task.cmd_sn = self.cmd_sn;
            task.connection = connection.id;
            connection.load += task.load();
            connection.requests.push_back(Entry::Command(tag, self.cmd_sn));
            self.cmd_sn = self.cmd_sn.next();
        }
    }

    /// Says whether a connection takes nothing more for now, because what was sent on it waits for the network. Of several
    /// connections, others have the next commands meanwhile, or the commands wait. One that is alone has them all the same.
    pub fn set_full(&mut self, connection: ConnectionId, is_full: bool) {
        let Some(connection) = self.connection_mut(connection) else { return };
        if std::mem::replace(&mut connection.is_full, is_full) && !is_full {
            self.assign_waiting();
        }
    }

    /// The place of the connection that takes the next command; nothing while commands are to wait.
    fn next_taker(&self) -> Option<usize> {
        let open = || self.connections.iter().enumerate().filter(|(_, connection)| !connection.is_leaving);
        if open().nth(1).is_none() {
            return self.least_loaded();
        }
        let able = open().filter(|(_, connection)| !connection.is_full);
        // It is this one's turn, and nobody else's.
        let (at, _) = able.min_by_key(|(_, connection)| connection.load)?;
        (!self.has_much_to_send(at)).then_some(at)
    }

    /// Whether what has not left a connection is as much as is made ahead.
    fn has_much_to_send(&self, at: usize) -> bool {
        let length = |entry: &Entry| match entry {
            Entry::Command(tag, _) => {
                self.tasks.get(*tag).map_or(0, |task| self.unsolicited(at, task.write_length).1)
            }
            Entry::Data(data) => data.end - data.next,
            Entry::Pdu(..) => 0,
        };
        let requests = &self.connections[at].requests;
        requests.len() >= AHEAD_MAX
            || requests.iter().map(|entry| u64::from(length(entry))).sum::<u64>() >= AHEAD_BYTES_MAX
    }

    /// The place of the connection with the fewest bytes under way.
    fn least_loaded(&self) -> Option<usize> {
        let open = self.connections.iter().enumerate().filter(|(_, connection)| !connection.is_leaving);
        open.min_by_key(|(_, connection)| connection.load).map(|(at, _)| at)
    }

    fn connection(&self, id: ConnectionId) -> Option<&Connection> {
        self.connections.iter().find(|connection| connection.id == id)
    }

    fn connection_mut(&mut self, id: ConnectionId) -> Option<&mut Connection> {
        self.connections.iter_mut().find(|connection| connection.id == id)
    }

    /// Takes the command numbers of a PDU (4.2.2.1).
    fn count_commands(&mut self, pdu: &'static str, numbers: Numbers) -> Result<(), Violation> {
        const CLAUSE: &str = "4.2.2.1";
        let (exp_cmd_sn, max_cmd_sn) = (numbers.exp_cmd_sn, numbers.max_cmd_sn);
        if self.cmd_sn.precedes(exp_cmd_sn) {
            let ahead = Violation::sequence(pdu, CLAUSE, "expects a CmdSN beyond what was sent");
            return Err(ahead.values(exp_cmd_sn.0, self.cmd_sn.0));
        }
        // Below ExpCmdSN - 1 neither counts.
        if !max_cmd_sn.next().precedes(exp_cmd_sn) {
            if self.exp_cmd_sn.precedes(exp_cmd_sn) {
                self.exp_cmd_sn = exp_cmd_sn;
            }
            if self.max_cmd_sn.precedes(max_cmd_sn) {
                self.max_cmd_sn = max_cmd_sn;
                self.assign_waiting();
            }
        }
        Ok(())
    }

    /// Ends a task.
    fn end_task(&mut self, tag: InitiatorTaskTag, end: End, outbox: &mut Outbox) {
        let Some(task) = self.tasks.remove(tag) else { return };
        let exp_cmd_sn = self.exp_cmd_sn;
        if task.stage != Stage::Waiting
            && let Some(connection) = self.connection_mut(task.connection)
        {
            connection.load -= task.load();
            if task.stage == Stage::Sent && !end.was_answered() && !task.cmd_sn.precedes(exp_cmd_sn) {
                // As one whose connection was lost, it may never have come, and its number not either.
                connection.note_plug(task.cmd_sn, exp_cmd_sn);
            }
            if let Some(answered) = &task.answered {
                connection.order.completed(answered.stat_sn);
            }
        }
        if task.stage != Stage::Waiting
            && let Some(lost) = self.lost.iter_mut().find(|lost| lost.id == task.connection)
        {
            lost.numbers.push(task.cmd_sn);
        }
        outbox.tell(Event::Ended { task: TaskHandle(tag), end });
    }

    /// Ends the session, because of something that no recovery can mend (7.1.4.4).
    fn fail(&mut self, loss: Loss, outbox: &mut Outbox) {
        if self.phase == Phase::Over {
            return;
        }
        self.phase = Phase::Over;
        self.connections.clear();
        self.lost.clear();
        self.end_everything(outbox, |task| match task.stage {
            Stage::Sent => End::Unknown,
            Stage::Waiting | Stage::Assigned => End::NotSent,
        });
        outbox.tell(Event::SessionLost { loss });
    }

    /// Ends all tasks and requests that there are.
    fn end_everything(&mut self, outbox: &mut Outbox, end: impl Fn(&Task) -> End) {
        let tasks: Vec<_> = self.tasks.iter().map(|(tag, task)| (tag, end(task))).collect();
        for (tag, end) in tasks {
            self.end_task(tag, end, outbox);
        }
        self.waiting.clear();
        let requests: Vec<_> = self.requests.iter().map(|(tag, _)| tag).collect();
        for tag in requests {
            self.drop_request(tag, None, outbox);
        }
    }

    /// Ends the session as if it were lost, whatever could be recovered: what has left ends as [`End::Unknown`]. For a driver that
    /// has tried all else to have an answer.
    pub fn give_up(&mut self, outbox: &mut Outbox) {
        self.fail(Loss::GivenUp, outbox);
    }

    /// The transport of a connection has failed, or the driver gives it up. At ErrorRecoveryLevel 0 and 1 that ends the
    /// session (7.1.4.4). At level 2 the tasks wait for another connection: one that there is, or one that the driver logs in,
    /// not before Time2Wait and within Time2Retain after it; see [`Self::lost_connections`]. A Time2Wait above
    /// [`Settings::time2wait_max`] is not waited: the session ends.
    pub fn connection_lost(&mut self, connection: ConnectionId, loss: Loss, outbox: &mut Outbox) {
        let Some(at) = self.connections.iter().position(|of| of.id == connection) else { return };
        outbox.tell(Event::ConnectionFailed { connection, loss });
        let time2wait = Duration::from_secs(self.parameters.default_time2wait_s.into());
        let can_recover = self.retains() && time2wait <= self.settings.time2wait_max;
        if !can_recover || self.phase != Phase::Open || matches!(loss, Loss::Violation(_)) {
            return self.fail(loss, outbox);
        }
        let lost = self.connections.remove(at);
        self.retain(lost, outbox);
    }
}

#[cfg(test)]
mod tests;
