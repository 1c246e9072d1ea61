//! What a session's core has left in the outbox: PDUs go to their connections, events to who carries them out.

use lunette_iscsi::session::{Event, Payload};
use lunette_scsi::Lun;

use super::Reactor;
use super::connection::Disconnect;
use super::leaving::Reader;

/// PDUs that gather before they are queued: enough to share the work, few enough that large ones are sent early.
pub(super) const PDUS_GATHERED_MAX: usize = 8;

impl Reactor {
    /// Carries out what the core left in the outbox, until it leaves nothing more.
    pub(super) fn run_session(&mut self, index: usize) {
        loop {
            if self.outbox.events.is_empty() {
                self.ask_on(index);
            }
            self.queue_pdus(index);
            if self.outbox.events.is_empty() {
                return;
            }
            let mut events =
                std::mem::replace(&mut self.outbox.events, std::mem::take(&mut self.spare_events));
            for event in events.drain(..) {
                self.session_event(index, event);
                if self.outbox.pdus.len() >= PDUS_GATHERED_MAX {
                    self.queue_pdus(index);
                }
            }
            self.spare_events = events;
        }
    }

    #[inline]
    pub(super) fn queue_pdus(&mut self, index: usize) {
        if !self.outbox.pdus.is_empty() {
            self.queue_each(index);
        }
    }

    #[inline(never)]
    fn queue_each(&mut self, index: usize) {
        let Some(session) = self.sessions.get(index) else {
            self.outbox.pdus.clear();
            return;
        };
        let are_several = self.outbox.pdus.len() > 1;
        for pdu in self.outbox.pdus.drain(..) {
            // What was meant for a connection that has gone goes nowhere.
            let Some(token) = session.link(pdu.cid).map(|link| link.token) else { continue };
            let connection =
                self.connections.get_mut(token.index).filter(|connection| connection.token == token);
            let Some(connection) = connection else { continue };
            if are_several && matches!(pdu.payload, Payload::None) {
                connection.push_header(&pdu.bhs, &session.pool);
            } else {
                connection.transmitter.push(&pdu.bhs, pdu.payload, connection.digests);
            }
            if !std::mem::replace(&mut connection.is_dirty, true) {
                self.dirty.push(token.index);
            }
        }
        for link in &session.links {
            if let Some(connection) = self.connections.get_mut(link.token.index)
                && connection.token == link.token
            {
                connection.send_early(self.company.send_limit());
            }
        }
    }

    fn session_event(&mut self, index: usize, event: Event) {
        match event {
            Event::Execute(id) => self.begin(index, id),
            Event::DataOutComplete(id) => self.data_out_complete(index, id),
            Event::Aborted(id) => self.aborted(index, id),
            Event::Spoilt { id, asc, ascq } => self.spoilt(index, id, (asc, ascq)),
            Event::Untold { lun, cdb, status } => self.untold(index, Lun::from_bytes(lun.0), (&cdb, status)),
            Event::Dropped(id) => {
                if let Some(session) = self.sessions.get_mut(index) {
                    session.detach(id);
                }
            }
            Event::Manage { id, function, lun } => self.manage(index, id, function, lun),
            Event::Text(pending) => self.text(index, &pending),
            Event::SegmentLength { cid, bytes } => self.set_segment_max(index, cid, bytes),
            Event::Close { cid, reason } => {
                // What the core had to say before it must still go out.
                self.queue_pdus(index);
                let Some(session) = self.sessions.get_mut(index) else { return };
                if let Some(token) = session.unlink(cid) {
                    let reader = Reader::of(session);
                    self.close_after_sending(token, Disconnect::Session(reason), reader);
                }
            }
            Event::Cleared { lun } => {
                if let Some(attachment) = self.sessions.get(index).and_then(|of| of.attachment.as_ref()) {
                    attachment.nexus.commands_cleared_by_protocol(Lun::from_bytes(lun.0));
                }
            }
            Event::ConnectionEnded { cid } => self.connection_ended(index, cid),
            Event::Ended => self.session_ended(index),
        }
    }
}
