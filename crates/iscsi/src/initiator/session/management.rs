//! Task management (RFC 7143, 4.2.3 and 11.5): what this side does from a request to its response. Functions are immediate:
//! they act on what has a number before theirs.

use std::time::Duration;

use lunette_wire::initiator::{TaskManagementFunction, TaskManagementRequest};
use lunette_wire::target::{TaskManagementOutcome, TaskManagementResponse};
use lunette_wire::{CmdSn, DataSn, InitiatorTaskTag, LunField, StatSn};

use super::requests::Kind;
use super::respond::TASK_ABORTED;
use super::task::{Stage, Task};
use super::{
    Answer, ConnectionId, End, Event, Outbox, Phase, RequestError, RequestHandle, Session, TaskHandle,
    Violation,
};
use crate::parameters::TaskReporting;

/// A function that is about more than one task, or changes none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Function {
    /// Ends all tasks that this session has for a logical unit.
    AbortTaskSet(LunField),
    /// Clears an auto contingent allegiance.
    ClearAca(LunField),
    /// Ends all tasks for a logical unit, others' too.
    ClearTaskSet(LunField),
    /// Resets a logical unit.
    LogicalUnitReset(LunField),
    /// Resets the target; its sessions stay.
    TargetWarmReset,
    /// Resets the target; its sessions end.
    TargetColdReset,
    /// Whether a task is there (RFC 7144).
    QueryTask(TaskHandle),
    /// Whether this session has any task for a logical unit (RFC 7144).
    QueryTaskSet(LunField),
    /// Resets the I_T nexus (RFC 7144).
    ItNexusReset,
    /// Whether a unit attention or a deferred error waits (RFC 7144).
    QueryAsynchronousEvent(LunField),
}

/// What has become of a task that was to be aborted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Abort {
    /// It had not left: it has ended.
    Done,
    /// The target was asked; the task ends with its answer, or before.
    Requested(RequestHandle),
}

/// Which tasks a function ends.
#[derive(Debug, Clone, Copy)]
enum Reach {
    None,
    Task(InitiatorTaskTag),
    Unit(LunField),
    All,
}

/// A function that is under way.
#[derive(Debug, Clone, Copy)]
pub(super) struct Management {
    function: TaskManagementFunction,
    reach: Reach,
    /// Its number: it acts on what comes before.
    cmd_sn: CmdSn,
}

impl Management {
    /// The task that it is about alone.
    pub(super) const fn aborts(&self) -> Option<InitiatorTaskTag> {
        match self.reach {
            Reach::Task(task) => Some(task),
            _ => None,
        }
    }

    /// It is about one logical unit.
    pub(super) const fn is_of_unit(&self) -> bool {
        matches!(self.reach, Reach::Unit(_))
    }

    fn affects(&self, tag: InitiatorTaskTag, task: &Task) -> bool {
        // One that has its status has ended for the target.
        let is_before =
            task.stage != Stage::Waiting && task.answered.is_none() && task.cmd_sn.precedes(self.cmd_sn);
        is_before
            && match self.reach {
                Reach::None => false,
                Reach::Task(of) => of == tag,
                Reach::Unit(lun) => lun == task.lun,
                Reach::All => true,
            }
    }
}

impl Session {
    /// Ends a task (ABORT TASK).
    ///
    /// # Errors
    /// [`RequestError`]; nothing is done then.
    pub fn abort(
        &mut self,
        now: Duration,
        task: TaskHandle,
        outbox: &mut Outbox,
    ) -> Result<Abort, RequestError> {
        let found = self.tasks.get(task.0).ok_or(RequestError::NoTask)?;
        if found.stage != Stage::Sent {
            self.end_task(task.0, End::Aborted, outbox);
            return Ok(Abort::Done);
        }
        if found.answered.is_some() {
            // The target has ended it; only its data is missing.
            self.give_up_data(task.0, outbox);
            return Ok(Abort::Done);
        }
        if found.abort.is_some() {
            return Err(RequestError::AbortUnderWay);
        }
        self.abort_sent(now, task.0).map(Abort::Requested)
    }

    /// Has the target abort a task that has left, on the connection that carries it (11.5.1).
    pub(super) fn abort_sent(
        &mut self,
        now: Duration,
        tag: InitiatorTaskTag,
    ) -> Result<RequestHandle, RequestError> {
        let task = self.tasks.get(tag).ok_or(RequestError::NoTask)?;
        let (id, lun, ref_cmd_sn) = (task.connection, task.lun, task.cmd_sn);
        let function = TaskManagementFunction::AbortTask;
        let request = self.manage_on(now, id, (function, Reach::Task(tag)), lun, (tag, ref_cmd_sn))?;
        if let Some(task) = self.tasks.get_mut(tag) {
            task.abort = Some(request);
        }
        Ok(request)
    }

    /// Asks for a function. Commands that wait for the command window and that it would end do so at once; all others with
    /// its answer, [`Event::Managed`], or before. A cold reset mostly ends with the connections instead.
    ///
    /// # Errors
    /// [`RequestError`]; nothing is done then.
    pub fn manage(
        &mut self,
        now: Duration,
        function: Function,
        outbox: &mut Outbox,
    ) -> Result<RequestHandle, RequestError> {
        use TaskManagementFunction as Code;
        if self.phase != Phase::Open {
            return Err(RequestError::Closed);
        }
        let none = LunField::default();
        let (code, reach, lun) = match function {
            Function::AbortTaskSet(lun) => (Code::AbortTaskSet, Reach::Unit(lun), lun),
            Function::ClearAca(lun) => (Code::ClearAca, Reach::None, lun),
            Function::ClearTaskSet(lun) => (Code::ClearTaskSet, Reach::Unit(lun), lun),
            Function::LogicalUnitReset(lun) => (Code::LogicalUnitReset, Reach::Unit(lun), lun),
            Function::TargetWarmReset => (Code::TargetWarmReset, Reach::All, none),
            Function::TargetColdReset => (Code::TargetColdReset, Reach::All, none),
            Function::QueryTask(_) => (Code::QueryTask, Reach::None, none),
            Function::QueryTaskSet(lun) => (Code::QueryTaskSet, Reach::None, lun),
            Function::ItNexusReset => (Code::ItNexusReset, Reach::All, none),
            Function::QueryAsynchronousEvent(lun) => (Code::QueryAsynchronousEvent, Reach::None, lun),
        };
        if code.code() > Code::TaskReassign.code() && self.parameters.protocol_level < 2 {
            return Err(RequestError::NotAgreed);
        }
        if let Function::QueryTask(task) = function {
            let found = self.tasks.get(task.0).filter(|task| task.stage == Stage::Sent);
            let found = found.ok_or(RequestError::NoTask)?;
            let (id, about) = (found.connection, (task.0, found.cmd_sn));
            return self.manage_on(now, id, (code, reach), found.lun, about);
        }
        let at = self.least_loaded().ok_or(RequestError::Closed)?;
        let id = self.connections[at].id;
        let about = (InitiatorTaskTag::RESERVED, CmdSn(0));
        let request = self.manage_on(now, id, (code, reach), lun, about)?;
        self.end_waiting(reach, outbox);
        Ok(request)
    }

    fn manage_on(
        &mut self,
        now: Duration,
        id: ConnectionId,
        (function, reach): (TaskManagementFunction, Reach),
        lun: LunField,
        (referenced_task_tag, ref_cmd_sn): (InitiatorTaskTag, CmdSn),
    ) -> Result<RequestHandle, RequestError> {
        let cmd_sn = self.cmd_sn;
        let kind = Kind::Management(Management { function, reach, cmd_sn });
        if self.connection(id).is_none_or(|connection| connection.is_silent) {
            return Err(RequestError::Closed);
        }
        self.ask(now, id, kind, &[], |initiator_task_tag| {
            let request = TaskManagementRequest {
                immediate: true,
                function,
                lun,
                initiator_task_tag,
                referenced_task_tag,
                cmd_sn,
                exp_stat_sn: StatSn(0),
                ref_cmd_sn,
                exp_data_sn: DataSn(0),
            };
            request.encode()
        })
    }

    /// Ends what waits for the window and is within a function's reach.
    fn end_waiting(&mut self, reach: Reach, outbox: &mut Outbox) {
        let is_within = |task: &Task| match reach {
            Reach::Unit(lun) => lun == task.lun,
            Reach::All => true,
            Reach::None | Reach::Task(_) => false,
        };
        let ended: Vec<_> = (self.waiting.iter().copied())
            .filter(|&tag| self.tasks.get(tag).is_some_and(is_within))
            .collect();
        for tag in ended {
            self.end_task(tag, End::Aborted, outbox);
        }
    }

    fn affected(&self, management: &Management) -> Vec<InitiatorTaskTag> {
        let tasks = self.tasks.iter().filter(|(tag, task)| management.affects(*tag, task));
        tasks.map(|(tag, _)| tag).collect()
    }

    /// A function leaves on the connection at `at`. With FastAbort no more data is sent there for what it ends (4.2.3.4);
    /// otherwise all that was asked for is (4.2.3.3).
    pub(super) fn function_leaves(&mut self, at: usize, tag: InitiatorTaskTag) {
        let is_fast = self.parameters.task_reporting == TaskReporting::FastAbort;
        let id = self.connections[at].id;
        let Some(Kind::Management(management)) = self.requests.get(tag).map(|request| &request.kind) else {
            return;
        };
        let management = *management;
        if !is_fast || matches!(management.reach, Reach::None | Reach::Task(_)) {
            return;
        }
        for tag in self.affected(&management) {
            let Some(task) = self.tasks.get_mut(tag) else { continue };
            task.is_cut |= task.connection == id;
        }
        for connection in self.connections.iter_mut().filter(|connection| connection.id != id) {
            connection.expect_termination(management);
        }
    }

    /// All tasks of a logical unit are being ended (event 5, 11.9.1): what is asked for is not sent. If a function of this
    /// side is the reason, what has a number behind it may have overtaken it on this connection, and goes on.
    pub(super) fn cut_terminated(&mut self, id: ConnectionId, lun: LunField) {
        let Some(connection) = self.connections.iter_mut().find(|connection| connection.id == id) else {
            return;
        };
        let own = connection.termination(|function| match function.reach {
            Reach::Unit(of) => of == lun,
            Reach::All => true,
            Reach::None | Reach::Task(_) => false,
        });
        let tasks = &mut self.tasks;
        connection.solicited.retain(|data| {
            let Some(task) = tasks.get_mut(data.task) else { return false };
            let is_ended = task.lun == lun && own.is_none_or(|function| function.affects(data.task, task));
            task.r2ts_open -= u16::from(is_ended);
            !is_ended
        });
    }

    pub(super) fn management_response(
        &mut self,
        now: Duration,
        id: ConnectionId,
        pdu: &TaskManagementResponse,
        outbox: &mut Outbox,
    ) -> Result<(), Violation> {
        const PDU: &str = "Task Management Response";
        self.count_commands(PDU, pdu.numbers)?;
        let tag = pdu.initiator_task_tag;
        let Some(request) = self.requests.get(tag) else { return self.stray_request(PDU, tag) };
        if request.connection != id {
            return Err(Violation::protocol(PDU, "4.2.5.1", "answers a request of another connection"));
        }
        if let Kind::Reassign(reassign) = request.kind {
            self.requests.remove(tag);
            self.reassigned(now, reassign, pdu.response, outbox);
            return Ok(());
        }
        if !matches!(request.kind, Kind::Management(_)) {
            return Err(Violation::protocol(PDU, "11.6", "answers a request that is no function"));
        }
        let Some(Kind::Management(management)) = self.requests.remove(tag).map(|request| request.kind) else {
            return Ok(());
        };
        let is_complete = pdu.response == TaskManagementOutcome::FunctionComplete as u8;
        match management.aborts() {
            Some(task) => self.abort_answered(task, pdu.response, outbox),
            None => {
                // Those whose answers have not come will have none (4.2.3.3 c, 4.2.3.4 d).
                for task in self.affected(&management) {
                    if is_complete {
                        self.end_task(task, End::Aborted, outbox);
                    } else {
                        self.goes_on(task, outbox);
                    }
                }
            }
        }
        outbox.tell(Event::Managed {
            request: RequestHandle(tag),
            function: management.function,
            response: pdu.response,
            additional: pdu.additional,
        });
        Ok(())
    }

    /// A function will have no answer, because its connection has gone. What it was to end is asked for one by one, since it
    /// may have been ended (4.2.3.3 c).
    pub(super) fn function_dropped(
        &mut self,
        now: Duration,
        management: &Management,
        may_have_come: bool,
        outbox: &mut Outbox,
    ) {
        if let Some(task) = management.aborts().and_then(|tag| self.tasks.get_mut(tag)) {
            task.abort = None;
        }
        if self.phase == Phase::Over {
            return;
        }
        if !may_have_come {
            for tag in self.affected(management) {
                self.goes_on(tag, outbox);
            }
            return;
        }
        let is_for_all = matches!(management.reach, Reach::All);
        for tag in self.affected(management) {
            let Some(task) = self.tasks.get_mut(tag) else { continue };
            let (id, is_sent, is_asked) = (task.connection, task.stage == Stage::Sent, task.abort.is_some());
            (task.is_doomed, task.is_cut) = (true, false);
            if task.is_gone {
                self.end_task(tag, End::Unknown, outbox);
            } else if !is_sent && is_for_all {
                // A target reset may have used up its number already.
                self.end_task(tag, End::NotSent, outbox);
            } else if is_sent
                && !is_asked
                && self.connection(id).is_some()
                && self.abort_sent(now, tag).is_err()
            {
                self.end_task(tag, End::Unknown, outbox);
            }
        }
    }

    /// A function has not ended a task.
    fn goes_on(&mut self, tag: InitiatorTaskTag, outbox: &mut Outbox) {
        let Some(task) = self.tasks.get_mut(tag) else { return };
        task.is_cut = false;
        if task.is_gone {
            self.end_task(tag, End::Unknown, outbox);
        }
    }

    fn abort_answered(&mut self, tag: InitiatorTaskTag, response: u8, outbox: &mut Outbox) {
        let is_complete = response == TaskManagementOutcome::FunctionComplete as u8;
        let is_gone = response == TaskManagementOutcome::TaskDoesNotExist as u8;
        let Some(task) = self.tasks.get(tag) else { return };
        let end = match task.fault {
            Some(fault) if is_complete || is_gone => {
                let received = task.came.contiguous();
                End::Faulty(Answer { status: TASK_ABORTED, received, ..Answer::default() }, fault)
            }
            None if is_complete => End::Aborted,
            // Its answer would have come before (11.6.1): nobody knows what it has done.
            None if is_gone && !self.is_ended_by_another(tag, task) => End::Unknown,
            _ => {
                if let Some(task) = self.tasks.get_mut(tag) {
                    (task.abort, task.is_gone) = (None, is_gone);
                }
                return;
            }
        };
        self.end_task(tag, end, outbox);
    }

    /// A function for several tasks is under way that ends this one too.
    fn is_ended_by_another(&self, tag: InitiatorTaskTag, task: &Task) -> bool {
        self.requests.iter().any(|(_, request)| match &request.kind {
            Kind::Management(management) => management.affects(tag, task),
            _ => false,
        })
    }
}
