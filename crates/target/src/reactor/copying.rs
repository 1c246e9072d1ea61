//! Third-party copies between the other work of a reactor: a copy between stores that answer at once would otherwise
//! hold up everybody until it is over.

use std::collections::VecDeque;

use lunette_iscsi::session::TaskId;
use lunette_scsi::{Io, NexusName, Status, Task};

use super::Reactor;
use super::management::AbortScope;
use super::session::TaskContext;
use crate::registry::SessionPlace;

/// Pieces of copies that may be begun in one turn: one read or one write of some hundred microseconds. Stores that do
/// not answer at once take a turn for each anyway.
const OPERATIONS_A_TURN: usize = 1;

/// Copies that wait for their turn.
#[derive(Debug, Default)]
pub(super) struct Copying {
    held: VecDeque<Held>,
    begun: usize,
}

/// A copy that may not begin its next operation yet. Its task counts as being in a store.
#[derive(Debug)]
struct Held {
    session: usize,
    id: TaskId,
}

impl Copying {
    /// A new turn of the reactor.
    pub(super) const fn next_turn(&mut self) {
        self.begun = 0;
    }

    /// True while nothing is held.
    pub(super) fn is_empty(&self) -> bool {
        self.held.is_empty()
    }

    fn may_begin(&mut self) -> bool {
        let may = self.begun < OPERATIONS_A_TURN;
        self.begun += usize::from(may);
        may
    }
}

fn goes_through(context: &TaskContext, nexuses: &[NexusName]) -> bool {
    let through = context.command.as_ref().and_then(Task::copies_through);
    through.is_some_and(|nexus| nexuses.contains(nexus))
}

impl Reactor {
    /// A copy goes on with its next operation, now or in another turn. What it may do is looked at only then.
    pub(super) fn yielded(&mut self, session: usize, id: TaskId) {
        if self.copying.is_empty() && self.copying.may_begin() {
            return self.resume_turn(session, id);
        }
        if let Some(context) = self.sessions.get_mut(session).and_then(|session| session.context(id)) {
            context.in_store = true;
            self.copying.held.push_back(Held { session, id });
        }
    }

    /// Does an operation of a copy on the medium of unit `naa`.
    pub(super) fn copy(&mut self, session: usize, id: TaskId, naa: u64, io: Io) {
        if let Some(context) = self.sessions.get_mut(session).and_then(|session| session.context(id)) {
            context.copies_on = Some(naa);
            self.submit(session, id, Some(naa), io);
        }
    }

    /// The copies of this reactor, whosever commands they are, that read or write a unit of `scope` just now, through a
    /// nexus of it.
    pub(super) fn copies_on_units_of(&self, scope: &AbortScope) -> Vec<(usize, SessionPlace, TaskId)> {
        let Some(target) = self.shared.targets.get(scope.target) else { return Vec::new() };
        let units: Vec<u64> = target.units_at(scope.unit).map(|unit| unit.identity().naa).collect();
        let mut copies = Vec::new();
        for (index, session) in self.sessions.iter() {
            let is_meant = |context: &&TaskContext| {
                let is_there = context.copies_on.is_some_and(|naa| units.contains(&naa));
                is_there && scope.only.as_deref().is_none_or(|only| goes_through(context, only))
            };
            let meant = session.contexts.iter().flatten().filter(is_meant);
            copies.extend(meant.map(|context| (index, session.place, context.id)));
        }
        copies
    }

    /// Begins what was held back, as much as one turn takes.
    pub(super) fn go_on_copying(&mut self) {
        while !self.copying.is_empty() && self.copying.may_begin() {
            let Some(Held { session: index, id }) = self.copying.held.pop_front() else { return };
            let Some(session) = self.sessions.get_mut(index) else { continue };
            let is_aborted = session.core.task(id).is_none_or(|view| view.aborted);
            let Some(context) = session.context(id) else { continue };
            context.in_store = false;
            if is_aborted {
                self.finish(index, id, &lunette_scsi::Completion::status(Status::TaskAborted));
            } else {
                self.resume_turn(index, id);
            }
            self.run_session(index);
        }
    }
}
