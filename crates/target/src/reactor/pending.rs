//! What waits until tasks have left their stores (docs/decisions/0005): functions and commands for all reactors, and each reactor
//! for its tasks. A store may never answer, so what is kept is bounded.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::Arc;

use lunette_iscsi::session::{ManagementId, TaskId};
use lunette_scsi::{Lun, LunMap, Nexus, TargetPort};
use lunette_wire::LunField;
use lunette_wire::initiator::TaskManagementFunction;
use lunette_wire::target::TaskManagementOutcome;

use super::{Message, Reactor};
use crate::registry::SessionPlace;
use crate::units::ServedTarget;
use crate::upkeep;

/// A function of a session of this reactor that waits for the reactors' answers.
#[derive(Debug)]
pub(super) struct PendingFunction {
    /// Later ones have higher numbers.
    pub(super) request: u64,
    pub(super) reactors_left: usize,
    pub(super) session: usize,
    pub(super) place: SessionPlace,
    pub(super) target: Arc<ServedTarget>,
    /// What the session's initiator sees of the target.
    pub(super) view: Arc<LunMap>,
    pub(super) port: TargetPort,
    pub(super) id: ManagementId,
    pub(super) function: TaskManagementFunction,
    pub(super) lun: LunField,
    /// The place of that unit in the device.
    pub(super) unit: Option<usize>,
    /// Its session has ended.
    pub(super) is_orphan: bool,
}

impl PendingFunction {
    /// What the function does to units once the tasks are gone.
    fn take_effect(&self, nexus: &Nexus) {
        let lun = Lun::from_bytes(self.lun.0);
        match self.function {
            // Who has lost commands by it, or its nexus, knows already.
            TaskManagementFunction::ClearTaskSet | TaskManagementFunction::ItNexusReset => {}
            TaskManagementFunction::LogicalUnitReset => {
                nexus.logical_unit_reset(lun);
            }
            _ => nexus.target_reset(),
        }
    }

    /// Two that are equal here have the same effect; `None`: it has none but its response.
    fn effect(&self) -> Option<impl Eq + Hash + use<>> {
        let (target, view) = (Arc::as_ptr(&self.target), Arc::as_ptr(&self.view));
        match self.function {
            TaskManagementFunction::ClearTaskSet | TaskManagementFunction::ItNexusReset => None,
            TaskManagementFunction::LogicalUnitReset => Some((target, self.unit, None)),
            _ => Some((target, None, Some(view))),
        }
    }
}

/// Which functions of sessions that have ended need not be carried out any more: those without an effect, and of those with the
/// same effect all but the last, which waits for most. In rising order.
fn superfluous<E: Eq + Hash>(orphans: impl IntoIterator<Item = (u64, Option<E>)>) -> Vec<u64> {
    let mut last = HashMap::new();
    let mut superfluous = Vec::new();
    for (request, effect) in orphans {
        let Some(effect) = effect else {
            superfluous.push(request);
            continue;
        };
        let kept = last.entry(effect).or_insert(request);
        if *kept != request {
            superfluous.push(request.min(*kept));
            *kept = request.max(*kept);
        }
    }
    superfluous.sort_unstable();
    superfluous
}

/// A task, by the index and the place of its session.
pub(super) type TaskPlace = (usize, SessionPlace, TaskId);

/// Tasks of this reactor that were aborted and are still in a store.
#[derive(Debug)]
struct PendingAbort<T> {
    tasks: Vec<T>,
    /// Operations of copies on units that are reset or cleared, for commands of other units: those go on, and end where that was a
    /// reset.
    pieces: Vec<T>,
    /// Whom to answer: reactors with their requests.
    askers: Vec<(usize, u64)>,
}

/// What waits for tasks of this reactor.
#[derive(Debug)]
pub(super) struct PendingAborts<T = TaskPlace>(Vec<PendingAbort<T>>);

impl<T> Default for PendingAborts<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<T: PartialEq> PendingAborts<T> {
    /// One more waits. However many wait for the same tasks, those are looked at once.
    pub(super) fn add(&mut self, tasks: Vec<T>, pieces: Vec<T>, asker: (usize, u64)) {
        let known = self.0.iter_mut().find(|known| known.tasks == tasks && known.pieces == pieces);
        match known {
            Some(known) => known.askers.push(asker),
            None => self.0.push(PendingAbort { tasks, pieces, askers: vec![asker] }),
        }
    }

    /// A reactor does not want to hear any more of these requests, which are in rising order.
    pub(super) fn forget(&mut self, reactor: usize, requests: &[u64]) {
        self.0.retain_mut(|pending| {
            pending.askers.retain(|(of, request)| *of != reactor || requests.binary_search(request).is_err());
            !pending.askers.is_empty()
        });
    }

    /// Whom to answer, of those that wait for nothing any more.
    fn settle(&mut self, is_open: impl Fn(&T) -> bool, is_copying: impl Fn(&T) -> bool) -> Vec<(usize, u64)> {
        let mut answered = Vec::new();
        self.0.retain_mut(|pending| {
            pending.tasks.retain(&is_open);
            pending.pieces.retain(&is_copying);
            let is_over = pending.tasks.is_empty() && pending.pieces.is_empty();
            if is_over {
                answered.append(&mut pending.askers);
            }
            !is_over
        });
        answered
    }
}

impl Reactor {
    /// Answers aborts whose last task has left its store.
    pub(super) fn settle_pending(&mut self) {
        if self.pending_aborts.0.is_empty() {
            return;
        }
        let sessions = &self.sessions;
        let session_of =
            |(index, place, _): &TaskPlace| sessions.get(*index).filter(|session| session.place == *place);
        let is_open = |task: &TaskPlace| session_of(task).is_some_and(|of| of.core.is_open(task.2));
        let is_copying = |task: &TaskPlace| {
            session_of(task)
                .and_then(|session| session.contexts.get(task.2.slot())?.as_ref())
                .is_some_and(|context| context.id == task.2 && context.copies_on.is_some())
        };
        for (reactor, request) in self.pending_aborts.settle(is_open, is_copying) {
            self.shared.reactors[reactor].send(Message::TasksGone { request });
        }
    }

    /// One reactor has answered; after the last one the function takes effect and is answered itself.
    pub(super) fn tasks_gone(&mut self, request: u64) {
        if self.preemption_answered(request) {
            return;
        }
        let Some(at) = self.pending_functions.iter().position(|pending| pending.request == request) else {
            return;
        };
        self.pending_functions[at].reactors_left -= 1;
        if self.pending_functions[at].reactors_left > 0 {
            return;
        }
        let pending = self.pending_functions.swap_remove(at);
        let session = self.sessions.get_mut(pending.session).filter(|session| session.place == pending.place);
        let Some((session, attachment)) =
            session.and_then(|session| Some((&mut session.core, session.attachment.as_ref()?)))
        else {
            // Who asked is gone. The tasks of others are gone too, and unit attentions are all that tells them: a nexus
            // for the moment stands in.
            let port = "a session that has ended".to_owned();
            let device = Arc::clone(&pending.target.device);
            pending.take_effect(&Nexus::mapped(device, pending.port, Arc::clone(&pending.view), port));
            return self.shared.upkeep.send(upkeep::Message::Work);
        };
        pending.take_effect(&attachment.nexus);
        // A reset may have left a write cache to be flushed.
        self.shared.upkeep.send(upkeep::Message::Work);
        let target = attachment.target_index;
        let outcome = TaskManagementOutcome::FunctionComplete;
        session.management_done(pending.id, outcome, &mut self.outbox);
        self.run_session(pending.session);
        if pending.function == TaskManagementFunction::TargetColdReset {
            for reactor in &self.shared.reactors {
                reactor.send(Message::EndTarget { target });
            }
        }
    }

    /// A session has ended. Nobody hears of its functions; what they do to units is done all the same, once.
    pub(super) fn orphan_functions(&mut self, place: SessionPlace) {
        let mut is_news = false;
        for function in self.pending_functions.iter_mut().filter(|function| function.place == place) {
            (function.is_orphan, is_news) = (true, true);
        }
        if !is_news {
            return;
        }
        let orphans = self.pending_functions.iter().filter(|function| function.is_orphan);
        let superfluous = superfluous(orphans.map(|function| (function.request, function.effect())));
        self.pending_functions.retain(|function| superfluous.binary_search(&function.request).is_err());
        self.forget_requests(superfluous);
    }

    /// Requests of this reactor, in rising order, that nobody waits for any more.
    pub(super) fn forget_requests(&self, requests: Vec<u64>) {
        if requests.is_empty() {
            return;
        }
        let requests: Arc<[u64]> = requests.into();
        for reactor in &self.shared.reactors {
            reactor.send(Message::ForgetAborts { reactor: self.index, requests: Arc::clone(&requests) });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_functions_that_nobody_hears_of_the_last_with_each_effect_is_left() {
        let orphans = [(3, Some('a')), (9, None), (1, Some('a')), (2, Some('b')), (7, Some('a')), (4, None)];
        assert_eq!(superfluous(orphans), [1, 3, 4, 9]);
        assert_eq!(superfluous([(1, Some('a')), (2, Some('b'))]), [0; 0]);
    }

    #[test]
    fn what_is_waited_for_by_many_is_looked_at_once() {
        let mut aborts = PendingAborts::default();
        for request in 0..100 {
            aborts.add(vec![1, 2], vec![], (0, request));
            aborts.add(vec![1], vec![2], (1, request));
        }
        aborts.add(vec![], vec![], (2, 5));
        assert_eq!(aborts.0.len(), 3);
        let settle = |aborts: &mut PendingAborts<i32>, open: &[i32]| {
            aborts.settle(|task| open.contains(task), |piece| open.contains(piece))
        };
        assert_eq!(settle(&mut aborts, &[1, 2]), [(2, 5)], "it waits for nothing");
        aborts.forget(0, &(1..100).collect::<Vec<u64>>());
        aborts.forget(1, &(0..100).collect::<Vec<u64>>());
        assert_eq!(aborts.0.len(), 1, "nobody waits for the piece");
        assert_eq!(settle(&mut aborts, &[2]), []);
        // The first task is gone: these wait for the same now.
        aborts.add(vec![2], vec![], (3, 1));
        assert_eq!(aborts.0.len(), 1);
        assert_eq!(settle(&mut aborts, &[]), [(0, 0), (3, 1)]);
        assert!(aborts.0.is_empty());
    }
}
