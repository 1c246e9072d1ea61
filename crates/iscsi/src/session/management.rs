//! Task management (RFC 7143, 4.2.3, 11.5, 11.6): what is aborted, and when the answer may go out.

use std::time::Duration;

use lunette_wire::initiator::{TaskAttribute, TaskManagementFunction, TaskManagementRequest};
use lunette_wire::target::{RejectReason, TaskManagementOutcome, TaskManagementResponse};
use lunette_wire::{Cid, InitiatorTaskTag};

use super::fence::Holder;
use super::requests::Request;
use super::task::{Phase, Task, TaskId, is_covered};
use super::window::Admission;
use super::{Event, Outbox, Session, Share};

/// How long an aborted task waits for data that the initiator still owes. 4.2.3.3 has the target wait for it, yet
/// Linux' initiator sends none after it asked for an abort (its FastAbort setting), and must not hang for it.
pub(super) const DRAIN_TIMEOUT: Duration = Duration::from_secs(2);

/// The most functions of a session that are open at once, whatever they wait for: their number, a store that takes its time,
/// a fence. A further one is rejected, unless it is the only immediate one of its connection (4.2.2.1). An initiator has one
/// or two open.
pub const MANAGEMENT_MAX: usize = 64;

/// Names a function that the driver carries out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ManagementId(u32);

/// A request whose turn has come or will come.
#[derive(Debug, Clone, Copy)]
pub(super) struct Management {
    pub(super) request: TaskManagementRequest,
    pub(super) cid: Cid,
}

/// A function that has begun; answered when the tasks are gone and the driver has done its part.
#[derive(Debug)]
pub(super) struct PendingManagement {
    id: ManagementId,
    pub(super) cid: Cid,
    pub(super) initiator_task_tag: InitiatorTaskTag,
    is_immediate: bool,
    /// Tasks of this session that it aborted and that have not ended.
    waiting_for: Vec<TaskId>,
    /// `None` while the driver works on it.
    answer: Option<FunctionAnswer>,
    /// A query that found what it asks for.
    is_found: bool,
    order: Order,
}

/// What a function's response may overtake (4.2.2.3.4, 4.2.3.3).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Order {
    /// It is a response like others.
    Plain,
    /// It is fenced: an initiator takes all affected tasks for over, and may use their tags again.
    Fenced,
    /// Nothing comes behind it: a cold reset ends all connections.
    LastWord,
}

impl Order {
    const fn of(function: TaskManagementFunction) -> Self {
        use TaskManagementFunction as Function;
        match function {
            Function::AbortTaskSet
            | Function::ClearTaskSet
            | Function::LogicalUnitReset
            | Function::TargetWarmReset
            | Function::ItNexusReset
            | Function::ClearAca => Self::Fenced,
            Function::TargetColdReset => Self::LastWord,
            Function::AbortTask
            | Function::TaskReassign
            | Function::QueryTask
            | Function::QueryTaskSet
            | Function::QueryAsynchronousEvent
            | Function::Other(_) => Self::Plain,
        }
    }
}

/// What the driver says about a function that it has carried out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FunctionAnswer {
    /// How it went.
    pub outcome: TaskManagementOutcome,
    /// Additional Response Information (SAM-5) of a query; zeros otherwise.
    pub additional: [u8; 3],
}

impl From<TaskManagementOutcome> for FunctionAnswer {
    fn from(outcome: TaskManagementOutcome) -> Self {
        Self { outcome, additional: [0; 3] }
    }
}

impl<D: Share> Session<D> {
    /// Begins a function at its turn in the command order.
    pub(super) fn manage(&mut self, management: &Management, outbox: &mut Outbox<D>) {
        use TaskManagementFunction as Function;
        use TaskManagementOutcome as Outcome;
        let request = management.request;
        match request.function {
            Function::QueryTask
            | Function::QueryTaskSet
            | Function::ItNexusReset
            | Function::QueryAsynchronousEvent
                if self.parameters.protocol_level < 2 =>
            {
                self.pend(management, Vec::new(), Some(Outcome::FunctionNotSupported), outbox);
            }
            Function::AbortTask => self.abort_one(management, outbox),
            Function::TargetWarmReset | Function::TargetColdReset if !self.settings.may_reset_target => {
                self.pend(management, Vec::new(), Some(Outcome::AuthorizationFailed), outbox);
            }
            // It covers commands that have not come yet: they are waited for (4.2.3.3, step b).
            Function::AbortTaskSet
            | Function::ClearTaskSet
            | Function::LogicalUnitReset
            | Function::ItNexusReset
            | Function::QueryTaskSet
                if self.window.exp_cmd_sn().precedes(request.cmd_sn) =>
            {
                self.early_functions.push(*management);
            }
            Function::AbortTaskSet
            | Function::ClearTaskSet
            | Function::LogicalUnitReset
            | Function::TargetWarmReset
            | Function::TargetColdReset => {
                self.plug_before(management, outbox);
                if self.is_logging_out(management.cid) {
                    // A Logout was waiting before it.
                    return;
                }
                let affected = self.affected(management);
                let id = self.pend(management, affected, None, outbox);
                outbox.event(Event::Manage { id, function: request.function, lun: request.lun });
            }
            Function::ItNexusReset | Function::ClearAca => {
                let affected = self.affected(management);
                let id = self.pend(management, affected, None, outbox);
                outbox.event(Event::Manage { id, function: request.function, lun: request.lun });
            }
            Function::QueryTask | Function::QueryTaskSet | Function::QueryAsynchronousEvent => {
                let is_found = self.query(&request);
                let id = self.pend(management, Vec::new(), None, outbox);
                if let Some(pending) = self.management.last_mut() {
                    pending.is_found = is_found;
                }
                outbox.event(Event::Manage { id, function: request.function, lun: request.lun });
            }
            Function::TaskReassign => return self.reassign(management, outbox),
            Function::Other(_) => {
                self.pend(management, Vec::new(), Some(Outcome::FunctionNotSupported), outbox);
            }
        }
        self.settle(outbox);
    }

    /// Functions that were taken and have not been answered.
    #[must_use]
    pub fn open_functions(&self) -> usize {
        self.management.len() + self.early_functions.len() + self.parked.functions
    }

    /// Whether functions wait for a number that has not come.
    pub(super) fn functions_wait_for_numbers(&self) -> bool {
        self.parked.functions > 0 || !self.early_functions.is_empty()
    }

    /// Why a function is not taken. It gets a Reject, which no fence holds back as it would a response (4.2.2.3), so that
    /// nothing of it is kept; either reason lets it be sent again (11.17.1).
    pub(super) fn function_refusal(&self, &Management { request, cid }: &Management) -> Option<RejectReason> {
        if self.open_functions() < MANAGEMENT_MAX {
            return None;
        }
        if !request.immediate {
            return Some(RejectReason::LongOperationReject);
        }
        let has_another = self.management.iter().any(|pending| pending.cid == cid && pending.is_immediate)
            || self.early_functions.iter().any(|early| early.cid == cid && early.request.immediate);
        has_another.then_some(RejectReason::ImmediateCommandReject)
    }

    /// Commands that have not come before a reset of the target count as received (4.2.3.3, step b), as far as the
    /// initiator may have sent them: each number that is used up moves the window on, and would let the next one in.
    fn plug_before(&mut self, management: &Management, outbox: &mut Outbox<D>) {
        let limit = management.request.cmd_sn;
        let last = self.window.max_cmd_sn();
        let mut missing = self.window.exp_cmd_sn();
        while missing.precedes(limit) && !last.precedes(missing) {
            match self.window.judge(missing) {
                Admission::Next | Admission::Early => {
                    self.order(management.cid, missing, Request::Plugged, outbox);
                    missing = missing.next();
                }
                // Parked already, or beyond what the initiator may send.
                Admission::Ignore if missing.precedes(self.window.max_cmd_sn()) => missing = missing.next(),
                Admission::Ignore => return,
            }
        }
    }

    /// Begins the functions whose last earlier command has come.
    pub(super) fn begin_early_functions(&mut self, outbox: &mut Outbox<D>) {
        let exp_cmd_sn = self.window.exp_cmd_sn();
        while let Some(at) =
            self.early_functions.iter().position(|early| !exp_cmd_sn.precedes(early.request.cmd_sn))
        {
            let management = self.early_functions.remove(at);
            self.manage(&management, outbox);
        }
    }

    /// The driver's answer to [`Event::Manage`].
    pub fn management_done(
        &mut self,
        id: ManagementId,
        answer: impl Into<FunctionAnswer>,
        outbox: &mut Outbox<D>,
    ) {
        let mut answer = answer.into();
        if let Some(pending) = self.management.iter_mut().find(|pending| pending.id == id) {
            if pending.is_found && answer.outcome == TaskManagementOutcome::FunctionComplete {
                answer.outcome = TaskManagementOutcome::FunctionSucceeded;
            }
            pending.answer = Some(answer);
        }
        self.settle(outbox);
    }

    fn abort_one(&mut self, management: &Management, outbox: &mut Outbox<D>) {
        use TaskManagementOutcome as Outcome;
        let request = management.request;
        let tag = request.referenced_task_tag;
        // A task management request cannot be aborted (11.5.1).
        if self.is_function(tag) {
            self.pend(management, Vec::new(), Some(Outcome::FunctionRejected), outbox);
            return;
        }
        let covered = |task: &Task| {
            is_covered(task.command.cmd_sn, request.cmd_sn, task.command.immediate)
                && task.phase != Phase::Draining
        };
        if let Some(id) = self.tasks.find(tag).filter(|&id| self.tasks.get(id).is_some_and(covered)) {
            let is_of_its_unit = |task: &Task| (self.settings.same_unit)(task.command.lun, request.lun);
            if !self.tasks.get(id).is_some_and(is_of_its_unit) {
                // The tag of one task with the LUN of another: nobody knows which of the two is meant (4.2.5.3).
                self.pend(management, Vec::new(), Some(Outcome::FunctionRejected), outbox);
                return;
            }
            self.pend(management, vec![id], Some(Outcome::FunctionComplete), outbox);
            return;
        }
        if self.abort_answer(tag, management.cid, outbox) {
            self.pend(management, Vec::new(), Some(Outcome::FunctionComplete), outbox);
            return;
        }
        // A command that has not come yet counts as received and will be ignored when it does (11.6.1).
        let missing = request.ref_cmd_sn;
        let outcome = if missing.precedes(request.cmd_sn)
            && matches!(self.window.judge(missing), Admission::Next | Admission::Early)
        {
            self.order(management.cid, missing, Request::Plugged, outbox);
            Outcome::FunctionComplete
        } else {
            Outcome::TaskDoesNotExist
        };
        self.pend(management, Vec::new(), Some(outcome), outbox);
    }

    /// Whether the task, or any task of the nexus and unit, that a query asks for is there (SAM-5, QUERY TASK and QUERY TASK
    /// SET). An event is the driver's to look for.
    fn query(&self, request: &TaskManagementRequest) -> bool {
        let is_meant = |task: &Task| {
            is_covered(task.command.cmd_sn, request.cmd_sn, task.command.immediate)
                && (self.settings.same_unit)(task.command.lun, request.lun)
                && !task.aborted
                && task.phase != Phase::Draining
        };
        match request.function {
            TaskManagementFunction::QueryTask => {
                let task = self.tasks.find(request.referenced_task_tag).and_then(|id| self.tasks.get(id));
                task.is_some_and(is_meant)
            }
            TaskManagementFunction::QueryTaskSet => self.tasks.any(is_meant),
            _ => false,
        }
    }

    /// True while any function has not been answered.
    pub(super) fn has_functions(&self) -> bool {
        !self.management.is_empty()
    }

    /// True while a function has not been answered.
    pub(super) fn is_pending(&self, id: ManagementId) -> bool {
        self.management.iter().any(|pending| pending.id == id)
    }

    /// True while a function with this tag waits for its answer.
    pub(super) fn is_function(&self, tag: InitiatorTaskTag) -> bool {
        self.management.iter().any(|pending| pending.initiator_task_tag == tag)
            || self.early_functions.iter().any(|early| early.request.initiator_task_tag == tag)
    }

    /// Tasks of this session that a function on several tasks aborts (4.2.3.2).
    fn affected(&self, &Management { request, cid }: &Management) -> Vec<TaskId> {
        use TaskManagementFunction as Function;
        self.tasks.ids(|task| {
            let same_unit = (self.settings.same_unit)(task.command.lun, request.lun);
            let earlier = is_covered(task.command.cmd_sn, request.cmd_sn, task.command.immediate);
            // Commands behind the request are none of the reset's and must be answered, though another connection may have
            // brought them sooner; on its own connection what has begun came before it.
            let has_begun = earlier || (task.phase != Phase::Parked && task.is_of(cid));
            match request.function {
                Function::AbortTaskSet | Function::ClearTaskSet => same_unit && earlier,
                Function::LogicalUnitReset => same_unit && has_begun,
                // For those it is what ABORT TASK is (SAM-5, CLEAR ACA).
                Function::ClearAca => same_unit && has_begun && task.command.attribute == TaskAttribute::Aca,
                _ => has_begun,
            }
        })
    }

    /// Aborts `affected` and remembers that an answer is due.
    fn pend(
        &mut self,
        management: &Management,
        affected: Vec<TaskId>,
        outcome: Option<TaskManagementOutcome>,
        outbox: &mut Outbox<D>,
    ) -> ManagementId {
        self.next_management = self.next_management.wrapping_add(1);
        let id = ManagementId(self.next_management);
        let cid = management.cid;
        let function = management.request.function;
        let is_fast = self.aborts_fast() && function != TaskManagementFunction::AbortTask;
        if is_fast {
            self.announce_termination(&affected, Some(cid), outbox);
        }
        let asked_on = (!is_fast).then_some(cid);
        let waiting_for = affected.into_iter().filter(|&task| self.abort(task, asked_on, outbox)).collect();
        self.management.push(PendingManagement {
            id,
            cid,
            initiator_task_tag: management.request.initiator_task_tag,
            is_immediate: management.request.immediate,
            waiting_for,
            answer: outcome.map(FunctionAnswer::from),
            is_found: false,
            order: Order::of(function),
        });
        id
    }

    /// Answers every function whose tasks are gone and whose outcome is known, in their order.
    pub(super) fn settle_management(&mut self, outbox: &mut Outbox<D>) {
        let mut functions = std::mem::take(&mut self.management);
        // One whose response is before the others'.
        let mut fenced = None;
        functions.retain_mut(|pending| {
            if fenced.is_some() {
                return true;
            }
            pending.waiting_for.retain(|&id| self.tasks.get(id).is_some());
            let (Some(answer), true) = (pending.answer, pending.waiting_for.is_empty()) else { return true };
            let (holder, cid) = (Holder::Function(pending.id), pending.cid);
            let is_fenced = pending.order == Order::Fenced;
            if pending.order != Order::LastWord && !self.passes_fence((holder, cid), is_fenced, outbox) {
                return true;
            }
            let FunctionAnswer { outcome, additional } = answer;
            let (response, initiator_task_tag) = (outcome as u8, pending.initiator_task_tag);
            self.send_status(cid, Vec::new(), outbox, |numbers| {
                TaskManagementResponse { response, additional, initiator_task_tag, numbers }.encode()
            });
            fenced = (is_fenced && self.fence.is_up()).then_some((holder, cid));
            false
        });
        self.management = functions;
        if let Some((holder, cid)) = fenced {
            self.fenced_response_sent(holder, cid, outbox);
            // What goes before a fence has not been looked at.
            self.settle_management(outbox);
        }
    }
}
