//! Numbered responses in their order (RFC 7143, 4.2.2.2, 7.9): those that come behind a missing one are kept until it has
//! come, and none is acknowledged before all of its command's data is there.

use lunette_wire::{StatSn, TargetPdu};

use super::super::fault::Violation;
use super::super::{ConnectionId, Session};

/// Responses that are kept; more than a command window has, twice.
const HELD_MAX: usize = 4096;
/// Bytes in their data segments.
const HELD_BYTES_MAX: usize = 1 << 20;
/// How far StatSN may run ahead (4.2.2.2).
const AHEAD_MAX: u32 = 1 << 16;

/// What a status number says about its PDU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in super::super) enum Order {
    /// It is the next one.
    Next,
    /// It came before.
    Old,
    /// Others are missing before it.
    Early,
}

/// The status numbers of a connection.
#[derive(Debug)]
pub(in super::super) struct StatusOrder {
    /// The next one to be handled.
    next: StatSn,
    /// Behind the last one that came or was asked for.
    seen: StatSn,
    held: Vec<(StatSn, TargetPdu, Vec<u8>)>,
    held_bytes: usize,
    /// Handled, and their commands' data has not all come.
    incomplete: Vec<StatSn>,
}

impl StatusOrder {
    pub(in super::super) const fn new(next: StatSn) -> Self {
        Self { next, seen: next, held: Vec::new(), held_bytes: 0, incomplete: Vec::new() }
    }

    /// ExpStatSN: all before it needs not be kept by the target.
    pub(in super::super) fn exp_stat_sn(&self) -> StatSn {
        // Without recovery the list is empty.
        self.incomplete.iter().fold(
            self.next,
            |first, &stat_sn| {
                if stat_sn.precedes(first) { stat_sn } else { first }
            },
        )
    }

    pub(in super::super) fn order(&self, stat_sn: StatSn) -> Order {
        if stat_sn == self.next {
            Order::Next
        } else if stat_sn.precedes(self.next) {
            Order::Old
        } else {
            Order::Early
        }
    }

    pub(in super::super) const fn expected(&self) -> StatSn {
        self.next
    }

    /// The next one is handled now.
    pub(in super::super) fn advance(&mut self) {
        self.next = self.next.next();
        if self.seen.precedes(self.next) {
            self.seen = self.next;
        }
    }

    /// True for a number that has not come.
    pub(super) fn lacks(&self, stat_sn: StatSn) -> bool {
        self.order(stat_sn) != Order::Old && !self.holds(stat_sn)
    }

    fn holds(&self, stat_sn: StatSn) -> bool {
        self.held.iter().any(|(held, ..)| *held == stat_sn)
    }

    /// Keeps a PDU that is early.
    fn hold(
        &mut self,
        name: &'static str,
        stat_sn: StatSn,
        pdu: &TargetPdu,
        data: &[u8],
    ) -> Result<(), Violation> {
        let ahead = stat_sn.since(self.next);
        if ahead > AHEAD_MAX || self.held.len() >= HELD_MAX || self.held_bytes + data.len() > HELD_BYTES_MAX {
            return Err(Violation::sequence(name, "4.2.2.2", "has a StatSN too far ahead")
                .values(stat_sn.0, self.next.0));
        }
        if !self.holds(stat_sn) {
            self.held_bytes += data.len();
            self.held.push((stat_sn, *pdu, data.to_vec()));
        }
        Ok(())
    }

    /// The PDU whose turn has come.
    fn take(&mut self) -> Option<(TargetPdu, Vec<u8>)> {
        let at = self.held.iter().position(|(stat_sn, ..)| *stat_sn == self.next)?;
        let (_, pdu, data) = self.held.swap_remove(at);
        self.held_bytes -= data.len();
        Some((pdu, data))
    }

    /// The numbers that are missing before `end`, from what was seen on: first and count.
    fn unseen(&mut self, end: StatSn) -> Option<(u32, u32)> {
        let from = self.seen;
        if !from.precedes(end) {
            return None;
        }
        self.seen = end;
        Some((from.0, end.since(from)))
    }

    /// The first run that is missing, of all that were seen.
    fn missing(&self) -> Option<(u32, u32)> {
        let first_held = self.held.iter().map(|(stat_sn, ..)| stat_sn.since(self.next)).min();
        let run = first_held.unwrap_or(self.seen.since(self.next));
        (run > 0).then_some((self.next.0, run))
    }

    pub(super) fn is_incomplete(&mut self, stat_sn: StatSn) {
        self.incomplete.push(stat_sn);
    }

    pub(in super::super) fn completed(&mut self, stat_sn: StatSn) {
        self.incomplete.retain(|of| *of != stat_sn);
    }
}

impl Session {
    /// Keeps a PDU until those before it have come, and asks for them.
    pub(in super::super) fn hold_status(
        &mut self,
        id: ConnectionId,
        (name, pdu): (&'static str, &TargetPdu),
        stat_sn: StatSn,
        data: &[u8],
    ) -> Result<(), Violation> {
        let Some(connection) = self.connection_mut(id) else { return Ok(()) };
        connection.order.hold(name, stat_sn, pdu, data)?;
        self.statuses_seen(id, stat_sn);
        if let Some(connection) = self.connection_mut(id) {
            // Its own number needs no request.
            connection.order.unseen(stat_sn.next());
        }
        Ok(())
    }

    /// The PDU whose turn has come after another one.
    pub(in super::super) fn next_held(&mut self, id: ConnectionId) -> Option<(TargetPdu, Vec<u8>)> {
        self.connection_mut(id)?.order.take()
    }

    /// The target has used up all numbers before `end`: those that have not come are asked for, once.
    pub(in super::super) fn statuses_seen(&mut self, id: ConnectionId, end: StatSn) {
        let Some(connection) = self.connection_mut(id) else { return };
        // Numbers that cannot be are found when a PDU comes that has one.
        if end.since(connection.order.next) <= AHEAD_MAX
            && let Some((first, count)) = connection.order.unseen(end)
        {
            self.snack_statuses(id, first, count);
        }
    }

    /// A PDU with this number was spoilt: it is asked for, with all that are missing before it.
    pub(in super::super) fn status_spoilt(&mut self, id: ConnectionId, stat_sn: StatSn) {
        let Some(connection) = self.connection(id) else { return };
        if !connection.order.lacks(stat_sn) || stat_sn.since(connection.order.next) > AHEAD_MAX {
            return;
        }
        if stat_sn.precedes(connection.order.seen) {
            self.snack_statuses(id, stat_sn.0, 1);
        } else {
            self.statuses_seen(id, stat_sn.next());
        }
    }

    /// Asks again for the statuses that are missing.
    pub(super) fn ask_for_statuses(&mut self, id: ConnectionId) {
        let missing = self.connection(id).and_then(|connection| connection.order.missing());
        if let Some((first, count)) = missing {
            self.snack_statuses(id, first, count);
        }
    }

    pub(super) fn lacks_statuses(&self, id: ConnectionId) -> bool {
        self.connection(id).is_some_and(|connection| connection.order.missing().is_some())
    }
}
