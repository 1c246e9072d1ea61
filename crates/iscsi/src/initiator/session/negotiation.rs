//! Text that negotiates in full feature phase (RFC 7143, 6.4): the request that a target asks for (11.9.1, event 4), and what it
//! may declare or bring up in its answer.
//!
//! This side offers nothing. Of what a target may say there, its MaxRecvDataSegmentLength alone changes anything (13.12).

use std::time::Duration;

use lunette_wire::text::{pairs, push};

use super::requests::RequestError;
use super::{ConnectionId, Event, Notice, Outbox, Session, Violation};
use crate::parameters::keys::{Key, Rule, Use, by_name};
use crate::parameters::negotiation::in_range;
use crate::parameters::value::{NOT_UNDERSTOOD, REJECT, is_reserved};

const PDU: &str = "Text Response";

impl Session {
    /// The target wants a negotiation: it gets an empty Text Request, behind the exchange that is under way if there is one.
    pub(super) fn negotiate(&mut self, now: Duration, id: ConnectionId) {
        let asked = self.begin_text(now, id, b"", true);
        if let Some(connection) = self.connection_mut(id) {
            connection.owes_negotiation = asked == Err(RequestError::TextUnderWay);
        }
    }

    /// A text exchange has ended; another may have been waiting for that.
    pub(super) fn text_over(&mut self, now: Duration, id: ConnectionId) {
        let Some(connection) = self.connection_mut(id) else { return };
        connection.has_text = false;
        if connection.owes_negotiation {
            self.negotiate(now, id);
        }
    }

    /// The target has declared another MaxRecvDataSegmentLength: what is made from now on keeps to it.
    pub(super) fn declared(&mut self, id: ConnectionId, bytes: u32, outbox: &mut Outbox) {
        if let Some(connection) = self.connection_mut(id) {
            connection.parameters.max_send_data_segment_length = bytes;
            outbox.tell(Event::Notice { connection: id, notice: Notice::SegmentLength { bytes } });
        }
    }
}

/// The MaxRecvDataSegmentLength that the target declares in a text, if it does.
pub(super) fn declared_length(text: &[u8]) -> Result<Option<u32>, Violation> {
    let mut found = None;
    for (name, value) in read(text)? {
        let Some(row) = by_name(name).filter(|row| row.key == Key::MaxRecvDataSegmentLength) else {
            continue;
        };
        let Rule::DeclaredNumber { range, .. } = row.rule else { continue };
        let length = in_range(value, range).ok_or(Violation::protocol(
            PDU,
            "13.12",
            "declares a length that is none",
        ))?;
        if found.replace(length).is_some() {
            return Err(Violation::protocol(PDU, "6.2", "has a key twice"));
        }
    }
    Ok(found)
}

/// What this side answers to a part of an exchange that is not the last (6.2): nothing that a target may bring up there is for this
/// side to agree to.
pub(super) fn answers(text: &[u8], length_max: u32) -> Result<Box<[u8]>, Violation> {
    let mut answers = Vec::new();
    for (name, value) in read(text)? {
        if is_reserved(value) {
            return Err(Violation::protocol(PDU, "6.2", "answers a key that was not offered"));
        }
        match by_name(name) {
            None => push(&mut answers, name, NOT_UNDERSTOOD),
            Some(row) if row.when != Use::Always => push(&mut answers, name, REJECT),
            // What can be said at any time is declared, and has no answer.
            Some(_) => {}
        }
    }
    if answers.len() > length_max as usize {
        return Err(Violation::protocol(PDU, "6.2", "brings up more keys than it takes the answers of"));
    }
    Ok(answers.into())
}

fn read(text: &[u8]) -> Result<Vec<(&str, &str)>, Violation> {
    pairs(text).map_err(|_| Violation::format(PDU, "6.1", "has text that is not made of keys and values"))
}
