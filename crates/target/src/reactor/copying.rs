//! Third-party copies between the other work of a reactor: a copy between stores that answer at once would otherwise
//! hold up everybody until it is over.

use std::collections::VecDeque;

use lunette_iscsi::session::TaskId;
use lunette_scsi::{Io, Status};

use super::Reactor;

/// Pieces of copies that may be begun in one turn: one read or one write of some hundred microseconds. Stores that do
/// not answer at once take a turn for each anyway.
const OPERATIONS_A_TURN: usize = 1;

/// Copies that wait for their turn.
#[derive(Debug, Default)]
pub(super) struct Copying {
    held: VecDeque<Held>,
    begun: usize,
}

/// An operation of a copy that has not been given to its store. Its task counts as being in one.
#[derive(Debug)]
struct Held {
    session: usize,
    id: TaskId,
    naa: u64,
    io: Io,
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

impl Reactor {
    /// Begins an operation of a copy on the medium of unit `naa`, now or in another turn.
    pub(super) fn copy(&mut self, session: usize, id: TaskId, naa: u64, io: Io) {
        if self.copying.is_empty() && self.copying.may_begin() {
            return self.submit(session, id, Some(naa), io);
        }
        if let Some(context) = self.sessions.get_mut(session).and_then(|session| session.context(id)) {
            context.in_store = true;
            self.copying.held.push_back(Held { session, id, naa, io });
        }
    }

    /// Begins what was held back, as much as one turn takes.
    pub(super) fn go_on_copying(&mut self) {
        while !self.copying.is_empty() && self.copying.may_begin() {
            let Some(Held { session: index, id, naa, io }) = self.copying.held.pop_front() else { return };
            let Some(session) = self.sessions.get_mut(index) else { continue };
            let is_aborted = session.core.task(id).is_none_or(|view| view.aborted);
            let Some(context) = session.context(id) else { continue };
            context.in_store = false;
            if is_aborted {
                self.finish(index, id, &lunette_scsi::Completion::status(Status::TaskAborted));
            } else {
                self.submit(index, id, Some(naa), io);
            }
            self.run_session(index);
        }
    }
}
