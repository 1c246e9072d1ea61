//! Task management functions that reach beyond one session, and the ends of sessions (RFC 7143, 4.2.3.2, 6.3.5).

use std::sync::Arc;
use std::time::Instant;

use lunette_iscsi::session::{CloseReason, FunctionAnswer, ManagementId, TaskId};
use lunette_scsi::{Lun, Nexus, NexusName};
use lunette_wire::initiator::TaskManagementFunction;
use lunette_wire::target::TaskManagementOutcome;
use lunette_wire::{Cid, LunField};
use tracing::{debug, info, warn};

use super::connection::{Disconnect, Token};
use super::leaving::Reader;
use super::pending::PendingFunction;
use super::preempt::settled_failures;
use super::session::Attachment;
use super::session::TargetSession;
use super::{Message, Reactor, Waiter};
use crate::registry::SessionPlace;

/// What may not be read any more by those whose tasks are aborted (docs/decisions/0011).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Taken {
    Nothing,
    /// The unit (PREEMPT AND ABORT).
    Unit,
    /// What they hold by a RESERVE (a reset).
    Reserved,
}

/// Which tasks a function aborts on all reactors.
#[derive(Debug, Clone)]
pub(crate) struct AbortScope {
    /// Index of the target.
    pub(super) target: usize,
    /// One logical unit, by its place in the device, or all: sessions may know it by different numbers.
    pub(super) unit: Option<usize>,
    /// Sessions of these I_T nexuses only; `None`: of all.
    pub(super) only: Option<Arc<[NexusName]>>,
    /// Who loses commands of the unit is told by a unit attention (CLEAR TASK SET).
    pub(super) is_told: bool,
    /// What is taken from them besides.
    pub(super) taken: Taken,
    /// The session that asked. It has aborted its own tasks, or has to keep them, unless one is `spared`.
    pub(super) except: SessionPlace,
    /// Of the session that asked all tasks are aborted but this one, which has failed. Nobody is told there.
    pub(super) spared: Option<TaskId>,
    /// Whom to answer.
    pub(super) reactor: usize,
    pub(super) request: u64,
}

impl AbortScope {
    /// A command has failed, and the others are aborted for it (SPC-4, QERR).
    pub(super) fn has_failed(&self) -> bool {
        self.is_told && self.spared.is_some()
    }
}

/// Carries out a function that concerns nobody but the session that asks. The session itself has aborted its tasks, and
/// knows them when it is asked for them.
fn answer_alone(nexus: &Nexus, function: TaskManagementFunction, lun: LunField) -> Option<FunctionAnswer> {
    use TaskManagementFunction as Function;
    match function {
        Function::AbortTaskSet | Function::QueryTask | Function::QueryTaskSet => {}
        Function::ClearAca => nexus.clear_aca(Lun::from_bytes(lun.0)),
        Function::QueryAsynchronousEvent => {
            if let Some(additional) = nexus.query_asynchronous_event(Lun::from_bytes(lun.0)) {
                let outcome = TaskManagementOutcome::FunctionSucceeded;
                return Some(FunctionAnswer { outcome, additional });
            }
        }
        _ => return None,
    }
    Some(TaskManagementOutcome::FunctionComplete.into())
}

impl Reactor {
    /// Carries out a function for a session that has aborted its own tasks.
    pub(super) fn manage(
        &mut self,
        index: usize,
        id: ManagementId,
        function: TaskManagementFunction,
        lun: LunField,
    ) {
        use TaskManagementFunction as Function;
        let Some(session) = self.sessions.get_mut(index) else { return };
        let Some(attachment) = &session.attachment else {
            let outcome = TaskManagementOutcome::FunctionNotSupported;
            return session.core.management_done(id, outcome, &mut self.outbox);
        };
        let of_one_unit = !matches!(
            function,
            Function::TargetWarmReset | Function::TargetColdReset | Function::ItNexusReset
        );
        let unit = attachment.nexus.place_of(Lun::from_bytes(lun.0)).filter(|_| of_one_unit);
        if of_one_unit && unit.is_none() {
            let outcome = TaskManagementOutcome::LunDoesNotExist;
            return session.core.management_done(id, outcome, &mut self.outbox);
        }
        let now = Instant::now();
        let of_session = session.told_functions.take(now);
        // Whoever begins session after session has a new one each time.
        if let Some(left_out) = of_session.and_then(|left_out| self.told_functions.take_after(now, left_out))
        {
            let lun = Lun::from_bytes(lun.0).number();
            info!(initiator = %session.initiator, ?function, ?lun, left_out, "task management");
        }
        if let Some(answer) = answer_alone(&attachment.nexus, function, lun) {
            return session.core.management_done(id, answer, &mut self.outbox);
        }
        self.next_request += 1;
        let request = self.next_request;
        // Its own tasks are gone, but not what copies of other sessions of the same initiator do through its nexus.
        let own_nexus =
            (function == Function::ItNexusReset).then(|| [attachment.nexus.name().clone()].into());
        let scope = AbortScope {
            target: attachment.target_index,
            unit,
            only: own_nexus,
            is_told: function == Function::ClearTaskSet,
            taken: match function {
                Function::ClearTaskSet | Function::ItNexusReset => Taken::Nothing,
                _ => Taken::Reserved,
            },
            except: session.place,
            spared: None,
            reactor: self.index,
            request,
        };
        // Before the reactors look for what is under way, so that nothing of a copy follows.
        match function {
            // What follows it in its session finds the nexus reset.
            Function::ItNexusReset => attachment.nexus.reset(),
            _ => attachment.target.units_at(unit).for_each(|unit| unit.end_copies()),
        }
        self.pending_functions.push(PendingFunction {
            request,
            reactors_left: self.shared.reactors.len(),
            session: index,
            place: session.place,
            target: Arc::clone(&attachment.target),
            view: Arc::clone(&attachment.view),
            port: attachment.nexus.target_port(),
            id,
            function,
            lun,
            unit,
            is_orphan: false,
        });
        for reactor in &self.shared.reactors {
            reactor.send(Message::AbortTasks(scope.clone()));
        }
    }

    /// Aborts this reactor's tasks in `scope`; the answer follows when none is left in a store.
    pub(super) fn abort_for(&mut self, scope: AbortScope) {
        let affected: Vec<usize> = self
            .sessions
            .iter()
            .filter(|(_, session)| session.place != scope.except || scope.spared.is_some())
            .filter(|(_, session)| {
                session.attachment.as_ref().is_some_and(|attachment| {
                    let is_meant = |only: &[NexusName]| only.contains(attachment.nexus.name());
                    attachment.target_index == scope.target && scope.only.as_deref().is_none_or(is_meant)
                })
            })
            .map(|(index, _)| index)
            .collect();
        let mut tasks = Vec::new();
        for index in affected {
            let Some(session) = self.sessions.get_mut(index) else { continue };
            let place = session.place;
            let lun = match (scope.unit, &session.attachment) {
                (Some(unit), Some(attachment)) => match attachment.nexus.lun_at(unit) {
                    Some(lun) => Some(LunField(lun.to_bytes())),
                    // A unit that the session does not see has no tasks of it.
                    None => continue,
                },
                _ => None,
            };
            let is_own = place == scope.except;
            let mut spared: Vec<_> = scope.spared.filter(|_| is_own).into_iter().collect();
            if scope.has_failed() {
                spared.extend(settled_failures(&self.pending_preemptions, place));
            }
            let is_answered = |attachment: &Attachment| {
                !is_own && lun.is_some_and(|lun| attachment.nexus.answers_aborted(Lun::from_bytes(lun.0)))
            };
            if let (Some(lun), Some(attachment)) = (lun, &session.attachment)
                && scope.is_told
                && !is_own
                && session.core.has_tasks(lun, &spared)
            {
                attachment.nexus.commands_cleared(Lun::from_bytes(lun.0));
            }
            let answered = session.attachment.as_ref().is_some_and(is_answered);
            let left = session.core.abort_tasks(lun, &spared, answered, &mut self.outbox);
            tasks.extend(left.into_iter().map(|id| (index, place, id)));
            self.run_session(index);
            if !is_own {
                self.end_reads(index, &scope);
            }
        }
        self.end_reads_left(&scope);
        let pieces = self.copies_on_units_of(&scope);
        self.pending_aborts.add(tasks, pieces, (scope.reactor, scope.request));
    }

    /// Ends a session that has lost the right to read, if anything that it has read is still to be taken from the medium: what others write
    /// from now on is not for it. Where only connections that have left it have such data, those end, and it does not.
    fn end_reads(&mut self, index: usize, scope: &AbortScope) {
        let is_reserved = match scope.taken {
            Taken::Nothing => return,
            Taken::Unit => false,
            Taken::Reserved => true,
        };
        let has_unsent = |reactor: &Self| {
            let attachment = reactor.sessions.get(index).and_then(|session| session.attachment.as_ref());
            attachment.is_some_and(|of| of.nexus.has_unsent(scope.unit, is_reserved))
        };
        if has_unsent(self) {
            self.end_reads_left_by(index, scope);
        }
        if has_unsent(self) {
            self.drop_session(index, &Disconnect::Fenced);
        }
    }

    /// TARGET COLD RESET ends all sessions of the target (11.5.1) and tells them (4.2.6); what is queued, its response
    /// too, goes out.
    pub(super) fn end_target(&mut self, target: usize) {
        let ended: Vec<usize> = self
            .sessions
            .iter()
            .filter(|(_, session)| {
                session.attachment.as_ref().is_some_and(|attachment| attachment.target_index == target)
            })
            .map(|(index, _)| index)
            .collect();
        for index in ended {
            self.dismiss(index, || Disconnect::Reset);
        }
    }

    /// Ends the sessions whose initiators would not get in again as they are; those log in again, where they may, and
    /// see what they may see now. What they have read is sent only as far as it needs nothing more of the medium.
    pub(super) fn reconsider(&mut self) {
        self.reconsider_readers();
        let connections = &self.connections;
        let is_as_before = |session: &TargetSession| {
            let Some(attachment) = &session.attachment else { return true };
            let admission = attachment.target.admission.get();
            let mut peers = session.links.iter().filter_map(|link| connections.get(link.token.index));
            // One that is without a connection is looked at when it gets one.
            peers.all(|connection| {
                let view = admission.admit(&connection.caller(&session.initiator), session.user.as_deref());
                view.is_some_and(|view| view == attachment.view)
            })
        };
        let ended: Vec<usize> =
            self.sessions.iter().filter(|(_, of)| !is_as_before(of)).map(|(index, _)| index).collect();
        for index in ended {
            self.dismiss(index, || Disconnect::NotAdmitted);
        }
    }

    /// Tells an initiator that its session ends (4.2.6), and ends it; what is queued for it goes out, if it may still read.
    fn dismiss(&mut self, index: usize, reason: impl Fn() -> Disconnect) {
        let Some(session) = self.sessions.get_mut(index) else { return };
        session.core.announce_drop(&mut self.outbox);
        let reader = Reader::of(session);
        self.queue_pdus(index);
        for token in self.close_session(index) {
            self.close_after_sending(token, reason(), reader.clone());
        }
    }

    /// Ends a session and closes its connections at once.
    fn drop_session(&mut self, index: usize, reason: &Disconnect) {
        for token in self.close_session(index) {
            if self.connection(token).is_some() {
                self.disconnect(token.index, reason);
            }
        }
    }

    /// Ends a session whose connections, which are returned, the caller closes: to the reactor they are still those of the session at this
    /// index, which may be another one soon.
    #[must_use]
    fn close_session(&mut self, index: usize) -> Vec<Token> {
        let Some(session) = self.sessions.get_mut(index) else { return Vec::new() };
        let links = std::mem::take(&mut session.links);
        session.core.close(&mut self.outbox);
        self.run_session(index);
        links.into_iter().map(|link| link.token).collect()
    }

    /// A connection was logged out or lost its CID to a login (6.3.4), and its last task has gone.
    pub(super) fn connection_ended(&mut self, index: usize, cid: Cid) {
        let Some(session) = self.sessions.get_mut(index) else { return };
        debug!(initiator = %session.initiator, cid = cid.0, "connection left its session");
        for token in std::mem::take(&mut session.joiners) {
            self.retry_login(token);
        }
        // The login that was to take its place may have gone.
        let is_deserted =
            |of: &TargetSession| of.links.is_empty() && !of.core.is_closing() && !of.core.retains();
        if self.sessions.get(index).is_some_and(is_deserted) {
            self.drop_session(index, &Disconnect::Session(CloseReason::SessionFailed));
        }
        self.bound_retained(index);
    }

    /// Counts a session that is left without a connection and waits for one (6.3.6); ends it where too many do.
    pub(super) fn bound_retained(&mut self, index: usize) {
        let Some(session) = self.sessions.get_mut(index) else { return };
        if !session.core.is_alone() || !session.core.retains() {
            session.retained = None;
            return;
        }
        if session.retained.is_some() {
            return;
        }
        session.retained = self.shared.retained.take();
        if session.retained.is_some() {
            info!(initiator = %session.initiator, "session waits for its initiator to come back");
        } else {
            warn!(initiator = %session.initiator, "too many sessions wait for their initiators; this one ends");
            // One that has logged out may still wait for a store, and for its answer.
            self.drop_session(index, &Disconnect::Session(CloseReason::SessionFailed));
        }
    }

    /// Ends a session because another login has its identity (6.3.5).
    pub(super) fn end_session(&mut self, place: SessionPlace, waiter: Waiter) {
        let found = self.sessions.iter_mut().find(|(_, session)| session.place == place);
        let Some((index, session)) = found else {
            // It ended while the message was on its way.
            return self.shared.reactors[waiter.reactor].send(Message::SessionGone(waiter.connection));
        };
        session.waiters.push(waiter);
        info!(initiator = %session.initiator, "session is being replaced by a new login");
        self.drop_session(index, &Disconnect::Reinstated);
    }

    /// The last task of a session has gone: its identity is free.
    pub(super) fn session_ended(&mut self, index: usize) {
        self.queue_pdus(index);
        let Some(session) = self.sessions.try_remove(index) else { return };
        debug!(initiator = %session.initiator, reactor = self.index, "session ended");
        self.orphan_functions(session.place);
        // First the nexus, so that a new session of the same name starts with clean unit attentions.
        drop(session.attachment);
        self.shared.registry.release(&session.key, session.place);
        for waiter in session.waiters {
            self.shared.reactors[waiter.reactor].send(Message::SessionGone(waiter.connection));
        }
        for token in session.joiners {
            self.retry_login(token);
        }
    }
}
