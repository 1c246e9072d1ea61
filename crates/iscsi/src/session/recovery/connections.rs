//! Connections that are lost at ErrorRecoveryLevel 2 (RFC 7143, 6.3.6, 7.1.4.3, 7.5, 7.6, 8.2, 11.14): their tasks are
//! kept, first until the connection is removed for recovery, then until a task is given to another connection, and not
//! longer than Time2Wait and Time2Retain together.

use std::time::Duration;

use lunette_wire::{Cid, LunField};

use super::super::logout::ASYNC_CONNECTION_DROP;
use super::super::task::{Allegiance, Phase, RemovalId};
use super::super::{CloseReason, Event, Outbox, Session, Share};

/// Tasks whose connection was removed for recovery.
#[derive(Debug)]
pub(in super::super) struct Removed {
    id: RemovalId,
    /// When they end without an answer; set by the next look at the clock.
    due: Option<Duration>,
    /// That time has come; what is left is in a store.
    is_over: bool,
    /// Units that had commands among them then (11.14.5).
    cleared: Vec<LunField>,
}

impl<D: Share> Session<D> {
    /// Time2Wait and Time2Retain together: so long is the state of a lost connection kept (7.5).
    const fn retention(&self) -> Duration {
        let seconds =
            self.parameters.default_time2wait_s as u64 + self.parameters.default_time2retain_s as u64;
        Duration::from_secs(seconds)
    }

    /// True when no connection is left that carries anything, and the session waits for one.
    #[must_use]
    pub fn is_alone(&self) -> bool {
        !self.closing && self.connections.iter().all(|connection| connection.failed || connection.leaving)
    }

    /// A connection is lost and its tasks are kept. The initiator is told on another one (7.1.4.3).
    pub(in super::super) fn retain(&mut self, cid: Cid, outbox: &mut Outbox<D>) {
        let Some(connection) = self.connection_mut(cid).filter(|connection| !connection.failed) else {
            return;
        };
        connection.closing = true;
        connection.failed = true;
        self.suspend(cid, outbox);
        let other = self.connections.iter().find(|connection| connection.is_open());
        if let Some(other) = other.map(|connection| connection.cid) {
            let (wait, retain) = (self.parameters.default_time2wait_s, self.parameters.default_time2retain_s);
            self.send_event(other, ASYNC_CONNECTION_DROP, [cid.0, wait, retain], outbox);
        }
        self.settle(outbox);
    }

    /// Ends what cannot be continued elsewhere, and holds the rest (7.14, 11.14).
    fn suspend(&mut self, cid: Cid, outbox: &mut Outbox<D>) {
        self.drop_requests(cid);
        for id in self.tasks.ids(|task| task.is_of(cid)) {
            let Some(task) = self.tasks.get_mut(id) else { continue };
            let is_over = task.aborted || task.command.immediate;
            if is_over || matches!(task.phase, Phase::Parked | Phase::Draining) {
                self.abort(id, None, outbox);
            } else {
                task.cut_off();
                self.advance(id, outbox);
            }
        }
    }

    /// Removes a connection for recovery, by a Logout or a login that takes its CID (11.14): its tasks wait for TASK
    /// REASSIGN, its CID is free.
    pub(in super::super) fn remove_for_recovery(&mut self, cid: Cid, outbox: &mut Outbox<D>) {
        if let Some(connection) = self.connection_mut(cid) {
            connection.failed = true;
        }
        self.suspend(cid, outbox);
        let id = RemovalId(self.recovery.next_removal);
        self.recovery.next_removal = id.0.wrapping_add(1);
        for task in self.tasks.ids(|task| task.is_of(cid)) {
            if let Some(task) = self.tasks.get_mut(task) {
                task.allegiance = Allegiance::Waiting(id);
            }
        }
        for answer in self.recovery.answers.iter_mut() {
            if answer.allegiance == Allegiance::To(cid) {
                answer.allegiance = Allegiance::Waiting(id);
                answer.stat_sn = None;
            }
        }
        self.forget_waiting_answers();
        self.recovery.removed.push(Removed { id, due: None, is_over: false, cleared: Vec::new() });
        self.emit_close(cid, CloseReason::Logout, outbox);
        self.connections.retain(|connection| connection.cid != cid);
        outbox.event(Event::ConnectionEnded { cid });
        self.settle(outbox);
    }

    /// Only for a bound: of connections that come and go, answers wait for as many commands as a few windows have.
    pub(super) fn forget_waiting_answers(&mut self) {
        let most = 4 * usize::from(self.settings.window_depth) + 256;
        while let (count, Some(oldest)) = self.recovery.answers.waiting()
            && count > most
        {
            self.recovery.answers.remove(oldest);
        }
    }

    /// Looks at the clock: what has waited long enough ends.
    pub(in super::super) fn tick_recovery(&mut self, now: Duration, outbox: &mut Outbox<D>) {
        if !self.recovers() || self.closing {
            return;
        }
        self.tick_sequences(now, outbox);
        let until = now + self.retention();
        for index in (0..self.connections.len()).rev() {
            let connection = &mut self.connections[index];
            if connection.failed && now >= *connection.failed_until.get_or_insert(until) {
                let cid = connection.cid;
                self.retire(cid, outbox);
            }
        }
        for index in 0..self.recovery.removed.len() {
            if now >= *self.recovery.removed[index].due.get_or_insert(until) {
                self.expire(index, outbox);
            }
        }
        if !self.is_alone() {
            self.recovery.alone_due = None;
        } else if now >= *self.recovery.alone_due.get_or_insert(until) {
            self.begin_closing(outbox);
        }
        self.settle_removed(outbox);
        self.settle(outbox);
    }

    /// Ends the tasks of a group without an answer (7.6, c).
    fn expire(&mut self, index: usize, outbox: &mut Outbox<D>) {
        let removed = &mut self.recovery.removed[index];
        if std::mem::replace(&mut removed.is_over, true) {
            return;
        }
        let waiting = Allegiance::Waiting(removed.id);
        let mut cleared = Vec::new();
        for id in self.tasks.ids(|task| task.allegiance == waiting) {
            self.note_cleared(id, &mut cleared);
            self.abort(id, None, outbox);
        }
        self.recovery.removed[index].cleared = cleared;
        self.recovery.answers.retain(|answer| answer.allegiance != waiting);
    }

    /// Forgets groups that nothing belongs to any more. It looks at all that is kept, so once a second is often enough.
    pub(in super::super) fn settle_removed(&mut self, outbox: &mut Outbox<D>) {
        let (tasks, answers) = (&self.tasks, &mut self.recovery.answers);
        self.recovery.removed.retain_mut(|removed| {
            let waiting = Allegiance::Waiting(removed.id);
            let is_empty = !tasks.any(|task| task.allegiance == waiting)
                && !answers.iter_mut().any(|answer| answer.allegiance == waiting);
            if is_empty {
                removed.cleared.drain(..).for_each(|lun| outbox.event(Event::Cleared { lun }));
            }
            !is_empty
        });
    }

    /// The target is about to stop: nothing is kept for an initiator that is not there.
    pub(in super::super) fn end_retention(&mut self, outbox: &mut Outbox<D>) {
        self.recovery.is_draining = true;
        for index in (0..self.connections.len()).rev() {
            if self.connections[index].failed {
                let cid = self.connections[index].cid;
                self.retire(cid, outbox);
            }
        }
        for index in 0..self.recovery.removed.len() {
            self.expire(index, outbox);
        }
        if self.recovers() && self.is_alone() {
            self.begin_closing(outbox);
        }
        self.settle(outbox);
    }
}
