//! Unit attentions that are told to initiators as they come up (RFC 7143, 11.9.1, event 0), for targets with `scsi_events`.
//!
//! A condition stays until a command reports it, told or not; who hears of it early can ask early.

use std::sync::Arc;

use lunette_scsi::{AdditionalSense, Herald, Lun};
use lunette_wire::LunField;

use super::{Message, Reactor};
use crate::mailbox::Mailbox;
use crate::registry::SessionPlace;

/// Tells the reactor of a session.
#[derive(Debug)]
pub(super) struct SessionHerald {
    pub(super) reactor: Arc<Mailbox<Message>>,
    pub(super) place: SessionPlace,
}

impl Herald for SessionHerald {
    fn unit_attention(&self, lun: Lun, code: AdditionalSense) {
        self.reactor.send(Message::UnitAttention { place: self.place, lun, code });
    }
}

impl Reactor {
    /// A session that may have ended meanwhile is told of a unit attention.
    pub(super) fn tell_attention(&mut self, place: SessionPlace, lun: Lun, code: AdditionalSense) {
        let Some((index, session)) = self.sessions.iter_mut().find(|(_, session)| session.place == place)
        else {
            return;
        };
        let Some(attachment) = &session.attachment else { return };
        if let Some(sense) = attachment.nexus.attention_sense(lun, code) {
            session.core.report_scsi_event(LunField(lun.to_bytes()), sense.as_bytes(), &mut self.outbox);
            self.run_session(index);
        }
    }
}
