//! Connections that still send what sessions, or their place in one, have left: no abort finds that among the sessions, and what of it is
//! taken from the medium goes only to who may still read it (docs/decisions/0011).

use std::sync::Arc;

use lunette_scsi::{LunMap, NexusName};

use super::Reactor;
use super::connection::{Connection, Disconnect, Token};
use super::management::{AbortScope, Taken};
use super::session::TargetSession;
use crate::registry::SessionPlace;
use crate::units::ServedTarget;

/// Whose answers a connection sends, and what let them read.
#[derive(Debug)]
pub(super) struct Reader {
    place: SessionPlace,
    nexus: NexusName,
    target: Arc<ServedTarget>,
    target_index: usize,
    view: Arc<LunMap>,
    initiator: String,
    user: Option<String>,
}

impl Reader {
    /// `None` for a discovery session.
    pub(super) fn of(session: &TargetSession) -> Option<Arc<Self>> {
        let attachment = session.attachment.as_ref()?;
        Some(Arc::new(Self {
            place: session.place,
            nexus: attachment.nexus.name().clone(),
            target: Arc::clone(&attachment.target),
            target_index: attachment.target_index,
            view: Arc::clone(&attachment.view),
            initiator: session.initiator.clone(),
            user: session.user.clone(),
        }))
    }

    fn is_in(&self, scope: &AbortScope) -> bool {
        self.place != scope.except
            && self.target_index == scope.target
            && scope.only.as_deref().is_none_or(|only| only.contains(&self.nexus))
    }

    /// It would get in again by this connection, and see the same.
    fn is_admitted(&self, connection: &Connection) -> bool {
        let caller = connection.caller(&self.initiator);
        let view = self.target.admission.get().admit(&caller, self.user.as_deref());
        view.is_some_and(|view| view == self.view)
    }
}

impl Reactor {
    /// Has a connection closed when all that is queued for it has gone out; at once where that has yet to be taken from the medium, and
    /// who would get it may not read any more.
    pub(super) fn close_after_sending(
        &mut self,
        token: Token,
        reason: Disconnect,
        reader: Option<Arc<Reader>>,
    ) {
        let Some(connection) = self.connection(token) else { return };
        if matches!(reason, Disconnect::NotAdmitted) && connection.transmitter.has_unsent(None) {
            return self.disconnect(token.index, &reason);
        }
        connection.close_after_sending(reason, reader);
        if !std::mem::replace(&mut connection.is_dirty, true) {
            self.dirty.push(token.index);
        }
    }

    /// As [`Reactor::end_reads`], of what ended sessions have left.
    pub(super) fn end_reads_left(&mut self, scope: &AbortScope) {
        // A RESERVE has ended with its session, as by a RELEASE.
        if scope.taken == Taken::Unit {
            self.end_unit_readers(scope, |reader| reader.is_in(scope));
        }
    }

    /// The same of what a living session's former connections have.
    pub(super) fn end_reads_left_by(&mut self, session: usize, scope: &AbortScope) {
        let Some(place) = self.sessions.get(session).map(|session| session.place) else { return };
        self.end_unit_readers(scope, |reader| reader.place == place);
    }

    fn end_unit_readers(&mut self, scope: &AbortScope, is_meant: impl Fn(&Reader) -> bool) {
        let units = self.shared.targets.get(scope.target).map(|target| target.units_at(scope.unit));
        let Some(units) = units.map(|units| units.map(Arc::clone).collect::<Vec<_>>()) else { return };
        self.end_readers(&Disconnect::Fenced, |reader, connection| {
            is_meant(reader) && units.iter().any(|unit| connection.transmitter.has_unsent(Some(unit)))
        });
    }

    /// Of those that would not get in again as they were, what they have left is not sent from the medium.
    pub(super) fn reconsider_readers(&mut self) {
        self.end_readers(&Disconnect::NotAdmitted, |reader, connection| {
            connection.transmitter.has_unsent(None) && !reader.is_admitted(connection)
        });
    }

    fn end_readers(&mut self, reason: &Disconnect, is_over: impl Fn(&Reader, &Connection) -> bool) {
        let ended: Vec<usize> = self
            .connections
            .iter()
            .filter(|(_, connection)| {
                connection.reader.as_deref().is_some_and(|reader| is_over(reader, connection))
            })
            .map(|(index, _)| index)
            .collect();
        for index in ended {
            self.disconnect(index, reason);
        }
    }
}
