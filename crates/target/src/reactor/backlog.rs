//! Commands whose initiator does not take its answers: they are not begun while so much waits to be sent to it that more would take memory
//! without a bound (docs/decisions/0006).
//!
//! One read of a socket can bring thousands of commands, and some are answered as soon as they are looked at, out of memory or the page
//! cache. So it is not enough to stop reading. They go the way of long reads that let others go first, as do those behind them in their
//! session; but when it is their turn there, they wait in their session and keep nobody else.

use lunette_iscsi::session::TaskId;
use lunette_wire::Cid;

use super::Reactor;
use super::connection::{Connection, Stage};

impl Reactor {
    /// Whether the connection that carries a command's answer has its fill of answers.
    pub(super) fn is_kept_waiting(&self, index: usize, carrier: Option<Cid>) -> bool {
        self.carrier(index, carrier).is_some_and(|connection| connection.transmitter.is_full())
    }

    fn carrier(&self, index: usize, cid: Option<Cid>) -> Option<&Connection> {
        let token = self.sessions.get(index)?.link(cid?)?.token;
        self.connections.get(token.index).filter(|connection| connection.token == token)
    }

    /// Whether a postponed command has to wait on, in its session, until answers are taken: those of the command itself, or of one before
    /// it. One that was aborted waits for nothing.
    pub(super) fn is_withheld(&self, index: usize, id: TaskId) -> bool {
        let Some(session) = self.sessions.get(index) else { return false };
        session.core.task(id).is_some_and(|task| {
            !task.aborted && (!session.withheld.is_empty() || self.is_kept_waiting(index, task.cid))
        })
    }

    /// Has a postponed command wait in its session.
    #[cold]
    pub(super) fn withhold(&mut self, index: usize, id: TaskId) {
        let Some(session) = self.sessions.get_mut(index) else { return };
        session.withheld.push_back(id);
        self.relieved.push(index);
    }

    /// A connection that keeps commands waiting has been sent something.
    #[cold]
    pub(super) fn answers_taken(&mut self, connection: usize) {
        let Some(connection) = self.connections.get_mut(connection) else { return };
        if connection.transmitter.has_drained() {
            connection.withholds = false;
            if let Stage::FullFeature { session, .. } = connection.stage {
                self.relieved.push(session);
            }
        }
    }

    /// Has the withheld commands of sessions begin in turn with the others' long reads if answers were taken. Those that cannot are looked
    /// at again when some are.
    pub(super) fn relieve(&mut self) {
        for index in std::mem::take(&mut self.relieved) {
            let Some(session) = self.sessions.get(index) else { continue };
            // Those behind them are on their way here, and look again.
            if session.withheld.len() < session.postponed {
                continue;
            }
            let Some(&first) = session.withheld.front() else { continue };
            let cid = session.core.task(first).and_then(|task| task.cid);
            let full = self.carrier(index, cid).filter(|connection| connection.transmitter.is_full());
            if let Some(at) = full.map(|connection| connection.token.index) {
                if let Some(connection) = self.connections.get_mut(at) {
                    connection.withholds = true;
                }
            } else if let Some(session) = self.sessions.get_mut(index) {
                self.postponed.extend(session.withheld.drain(..).map(|id| (index, id)));
            }
        }
    }

    /// Ends a withheld command that was aborted; false: it is none.
    pub(super) fn give_up_withheld(&mut self, index: usize, id: TaskId) -> bool {
        let Some(session) = self.sessions.get_mut(index) else { return false };
        let Some(at) = session.withheld.iter().position(|withheld| *withheld == id) else { return false };
        session.withheld.remove(at);
        session.postponed -= 1;
        self.relieved.push(index);
        self.execute(index, id);
        true
    }
}
