//! Another MaxRecvDataSegmentLength of this side's while the session runs (RFC 7143, 6.4, 11.9.1 event 4, 13.12).
//!
//! The initiator alone begins a negotiation, so it is asked for a Text Request, whose response brings the declaration. What the
//! text says is the affair of [`crate::text`].

use std::time::Duration;

use lunette_wire::{Cid, StatSn};

use super::{Event, Outbox, Session, Share};
use crate::parameters::SessionType;

/// AsyncEvent "negotiation request" (11.9.1).
const ASYNC_NEGOTIATION_REQUEST: u8 = 4;

/// Parameter3: how long the initiator has for its Text Request. Nothing is held up by it meanwhile.
const NEGOTIATION_TIMEOUT: Duration = Duration::from_secs(30);

/// How often a connection is asked; 11.9.1 lets a target ask again. Who does not answer then keeps what it was told at its
/// login, which goes on to hold.
const REQUESTS_MAX: u8 = 2;

/// A declaration that waits for a Text Request.
#[derive(Debug, Clone, Copy)]
pub(super) struct DeclarationDue {
    bytes: u32,
    /// When the time for the Text Request is over.
    at: Duration,
    /// How often it was asked for.
    requests: u8,
}

/// A declaration that may not have arrived.
#[derive(Debug, Clone, Copy)]
pub(super) struct Declared {
    bytes: u32,
    /// What holds until it has.
    longest_bytes: u32,
    /// The number behind that of the response which brings it.
    stat_sn: StatSn,
}

impl<D: Share> Session<D> {
    /// Has this side declare `bytes` as its MaxRecvDataSegmentLength (13.12) on each connection where it has declared
    /// another: the initiator is asked for a Text Request (11.9.1), and [`Self::owed_declaration`] is for the response. Discovery
    /// sessions, to which nothing but answers is sent (7.4.3), keep what they have.
    pub fn declare_anew(&mut self, now: Duration, bytes: u32, outbox: &mut Outbox<D>) {
        if self.kind == SessionType::Discovery {
            return;
        }
        for connection in &mut self.connections {
            let is_new = connection.declaration.is_none_or(|due| due.bytes != bytes);
            if connection.parameters.max_recv_data_segment_length == bytes {
                connection.declaration = None;
            } else if is_new && connection.is_open() {
                connection.declaration = Some(DeclarationDue { bytes, at: now, requests: 0 });
            }
        }
        self.tick_declarations(now, outbox);
    }

    /// What the next Text Response on a connection has to declare, in bytes.
    #[must_use]
    pub fn owed_declaration(&self, cid: Cid) -> Option<u32> {
        let connection = self.connections.iter().find(|connection| connection.cid == cid)?;
        connection.declaration.map(|due| due.bytes)
    }

    /// The final Text Response that has just been sent on a connection declares `bytes`. The longer of the new and the old length
    /// holds until the initiator has acknowledged the response, since what it sends before that is made by the old one.
    pub fn has_declared(&mut self, cid: Cid, bytes: u32, outbox: &mut Outbox<D>) {
        let Some(connection) = self.connection_mut(cid) else { return };
        let told = connection.parameters.max_recv_data_segment_length;
        let longest_bytes = connection.declared.map_or(told, |before| before.longest_bytes).max(bytes);
        connection.parameters.max_recv_data_segment_length = bytes;
        connection.declared = Some(Declared { bytes, longest_bytes, stat_sn: connection.peek_stat_sn() });
        connection.declaration = connection.declaration.filter(|due| due.bytes != bytes);
        outbox.event(Event::SegmentLength { cid, bytes: longest_bytes });
    }

    /// The initiator has acknowledged something on a connection that has declared another length.
    #[cold]
    pub(super) fn settle_declared(&mut self, cid: Cid, outbox: &mut Outbox<D>) {
        if let Some(connection) = self.connection_mut(cid)
            && let Some(Declared { bytes, stat_sn, .. }) = connection.declared
            && connection.has_acknowledged(stat_sn)
        {
            connection.declared = None;
            outbox.event(Event::SegmentLength { cid, bytes });
        }
    }

    /// Asks for the Text Requests that declarations wait for and whose time has come.
    pub(super) fn tick_declarations(&mut self, now: Duration, outbox: &mut Outbox<D>) {
        for index in 0..self.connections.len() {
            let connection = &mut self.connections[index];
            if !connection.is_open() || connection.logout_due.is_some() {
                continue;
            }
            let Some(due) = connection.declaration.as_mut().filter(|due| now >= due.at) else { continue };
            if due.requests >= REQUESTS_MAX {
                connection.declaration = None;
                continue;
            }
            due.requests += 1;
            due.at = now + NEGOTIATION_TIMEOUT;
            let cid = connection.cid;
            let within_s = NEGOTIATION_TIMEOUT.as_secs() as u16;
            self.send_event(cid, ASYNC_NEGOTIATION_REQUEST, [0, 0, within_s], outbox);
        }
    }
}
