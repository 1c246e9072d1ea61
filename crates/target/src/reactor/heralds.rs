//! Unit attentions that are told to initiators as they come up (RFC 7143, 11.9.1, event 0), for targets with `scsi_events`.
//!
//! A condition stays until a command reports it, told or not; who hears of it early can ask early. One initiator can make conditions
//! for all others as fast as it likes, so what waits to be told is bounded: each condition of a unit once, and nothing for who
//! does not take what it was sent.

use std::sync::{Arc, Mutex, PoisonError};

use lunette_scsi::{AdditionalSense, Herald, Lun};
use lunette_wire::LunField;

use super::{Message, Reactor};
use crate::mailbox::Mailbox;
use crate::registry::SessionPlace;

/// The conditions that a session is still to be told of, in the order in which they came up; each of a unit once.
#[derive(Debug, Default)]
pub(crate) struct Untold(Mutex<Vec<(Lun, AdditionalSense)>>);

impl Untold {
    /// Adds a condition. True: it is the first, for which the reactor is to be called.
    fn add(&self, lun: Lun, code: AdditionalSense) -> bool {
        let mut conditions = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let was_empty = conditions.is_empty();
        if !conditions.contains(&(lun, code)) {
            conditions.push((lun, code));
        }
        was_empty
    }

    fn take(&self) -> Vec<(Lun, AdditionalSense)> {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Tells the reactor of a session.
#[derive(Debug)]
pub(super) struct SessionHerald {
    reactor: Arc<Mailbox<Message>>,
    place: SessionPlace,
    untold: Arc<Untold>,
}

impl SessionHerald {
    pub(super) fn new(reactor: Arc<Mailbox<Message>>, place: SessionPlace) -> Self {
        Self { reactor, place, untold: Arc::default() }
    }
}

impl Herald for SessionHerald {
    fn unit_attention(&self, lun: Lun, code: AdditionalSense) {
        if self.untold.add(lun, code) {
            let untold = Arc::clone(&self.untold);
            self.reactor.send(Message::UnitAttentions { place: self.place, untold });
        }
    }
}

impl Reactor {
    /// A session that may have ended meanwhile is told of unit attentions.
    pub(super) fn tell_attentions(&mut self, place: SessionPlace, untold: &Untold) {
        let conditions = untold.take();
        let Some((index, _)) = self.sessions.iter().find(|(_, session)| session.place == place) else {
            return;
        };
        if self.is_deaf(index) {
            return;
        }
        for (lun, code) in conditions {
            let Some(session) = self.sessions.get_mut(index) else { return };
            let Some(attachment) = &session.attachment else { return };
            if let Some(sense) = attachment.nexus.attention_sense(lun, code) {
                session.core.report_scsi_event(LunField(lun.to_bytes()), sense.as_bytes(), &mut self.outbox);
                self.run_session(index);
            }
        }
    }

    /// Whether the initiator leaves what it was sent in the socket: then it is busy, or dead, and hears of conditions by its
    /// next commands.
    fn is_deaf(&self, index: usize) -> bool {
        let session = self.sessions.get(index);
        let link = session.and_then(|session| session.link(session.core.event_connection()?));
        let connection = link.and_then(|link| self.connections.get(link.token.index));
        connection.is_none_or(|connection| connection.transmitter.is_blocked())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lunette_wire::Tsih;

    /// However often conditions come up while the reactor does something else, it is called once, and told each of them once.
    #[test]
    fn a_storm_of_conditions_is_one_message() {
        let reactor = Arc::new(Mailbox::new().unwrap());
        let place = SessionPlace { reactor: 0, serial: 1, tsih: Tsih(1) };
        let herald = SessionHerald::new(Arc::clone(&reactor), place);
        let [zero, one] = [0, 1].map(Lun::from_number);
        let codes = [AdditionalSense::MODE_PARAMETERS_CHANGED, AdditionalSense::BUS_DEVICE_RESET];
        for _ in 0..2 {
            for _ in 0..1000 {
                for code in codes {
                    herald.unit_attention(one, code);
                }
                herald.unit_attention(zero, codes[0]);
            }
            let messages = reactor.take();
            let [Message::UnitAttentions { untold, .. }] = &messages[..] else { panic!("{messages:?}") };
            assert_eq!(untold.take(), [(one, codes[0]), (one, codes[1]), (zero, codes[0])]);
        }
    }
}
