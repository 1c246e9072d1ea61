//! Commands that wait until others have been aborted for them (SPC-4, PREEMPT AND ABORT and QERR).
//!
//! How tasks are aborted on all reactors is in `management`; this is who waits for it.

use lunette_iscsi::session::TaskId;
use lunette_scsi::NexusName;

use super::management::{AbortScope, Taken};
use super::{Message, Reactor};
use crate::registry::SessionPlace;
use crate::saver::WaitingCommand;

/// A command of this reactor that waits for the reactors' answers.
#[derive(Debug)]
pub(super) struct PendingPreemption {
    request: u64,
    reactors_left: usize,
    waiter: WaitingCommand,
    /// Its status is settled, and told once the others are gone (SPC-4, QERR).
    has_failed: bool,
}

/// The commands of a session that have failed as well when another one has others aborted: each of them is told as failed,
/// for if they aborted each other, none would be.
pub(super) fn settled_failures(
    pending: &[PendingPreemption],
    place: SessionPlace,
) -> impl Iterator<Item = TaskId> {
    pending
        .iter()
        .filter(move |pending| pending.has_failed && pending.waiter.place == place)
        .map(|pending| pending.waiter.task)
}

impl Reactor {
    /// Has the commands of `nexuses` for a command's unit aborted on all reactors, the command itself excepted. It is in a
    /// store until none is left.
    pub(super) fn abort_by(&mut self, index: usize, id: TaskId, nexuses: Vec<NexusName>, is_told: bool) {
        let Some(session) = self.sessions.get_mut(index) else { return };
        let place = session.place;
        let Some(attachment) = &session.attachment else { return };
        let (target, is_meant) = (attachment.target_index, nexuses.contains(attachment.nexus.name()));
        let Some(context) = session.contexts.get_mut(id.slot()).and_then(Option::as_mut) else { return };
        context.in_store = true;
        self.next_request += 1;
        let scope = AbortScope {
            target,
            unit: context.command.as_ref().and_then(lunette_scsi::Task::unit_index),
            only: Some(nexuses.into()),
            is_told,
            // Who is told has lost commands to a failure of another one, and nothing else.
            taken: if is_told { Taken::Nothing } else { Taken::Unit },
            except: place,
            spared: is_meant.then_some(id),
            reactor: self.index,
            request: self.next_request,
        };
        self.pending_preemptions.push(PendingPreemption {
            request: self.next_request,
            reactors_left: self.shared.reactors.len(),
            waiter: WaitingCommand { session: index, place, task: id },
            has_failed: scope.has_failed(),
        });
        for reactor in &self.shared.reactors {
            reactor.send(Message::AbortTasks(scope.clone()));
        }
    }

    /// A command that is itself aborted waits no longer: whom it waits for may wait for it, and what it has done to the
    /// reservations is done. False: it waits for nobody.
    pub(super) fn end_preemption(&mut self, waiter: WaitingCommand) -> bool {
        let found = self.pending_preemptions.iter().position(|pending| pending.waiter == waiter);
        let Some(at) = found else { return false };
        let request = self.pending_preemptions.swap_remove(at).request;
        self.forget_requests(vec![request]);
        true
    }

    /// One reactor has answered `request`; after the last one the command goes on. False: no command waits for it.
    pub(super) fn preemption_answered(&mut self, request: u64) -> bool {
        let Some(at) = self.pending_preemptions.iter().position(|pending| pending.request == request) else {
            return false;
        };
        self.pending_preemptions[at].reactors_left -= 1;
        if self.pending_preemptions[at].reactors_left == 0 {
            let waiter = self.pending_preemptions.swap_remove(at).waiter;
            self.wait_over(waiter, true);
        }
        true
    }
}
