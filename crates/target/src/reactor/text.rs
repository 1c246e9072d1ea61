//! Text in full feature phase (RFC 7143, 6.4, 11.10, appendix C): SendTargets, and lengths that are declared anew.

use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::Ordering;

use lunette_iscsi::session::PendingText;
use lunette_iscsi::text::{TextFacts, TextStep};
use lunette_wire::Cid;
use lunette_wire::target::RejectReason;
use tracing::warn;

use super::Reactor;
use crate::access::Caller;
use crate::portals::own_addresses;

/// What a Text Request counts as at least of the text that one read of a socket may have answered, in bytes: to look at what its
/// initiator may see can mean to ask the system for its addresses, and all of the answer may be empty.
const TEXT_BYTES_MIN: usize = 8 << 10;

impl Reactor {
    /// This side's MaxRecvDataSegmentLength is another than before: all sessions are to be told.
    pub(super) fn declare_anew(&mut self) {
        let bytes = self.shared.segment_max.load(Ordering::Acquire);
        let sessions: Vec<usize> = self.sessions.iter().map(|(index, _)| index).collect();
        for index in sessions {
            if let Some(session) = self.sessions.get_mut(index) {
                session.core.declare_anew(self.now, bytes, &mut self.outbox);
                self.run_session(index);
            }
        }
    }

    /// A connection has logged in to its session: if the length that it was told is another by now, that is told, too.
    pub(super) fn declare_what_is_new(&mut self, connection: usize, session: usize) {
        let bytes = self.shared.segment_max.load(Ordering::Acquire);
        let is_new = self.connections.get(connection).is_some_and(|of| of.segment_max != bytes);
        if is_new && let Some(found) = self.sessions.get_mut(session) {
            found.core.declare_anew(self.now, bytes, &mut self.outbox);
            self.run_session(session);
        }
    }

    /// Takes data segments of up to so many bytes on a connection from now on.
    pub(super) fn set_segment_max(&mut self, session: usize, cid: Cid, bytes: u32) {
        let token = self.sessions.get(session).and_then(|session| session.link(cid)).map(|link| link.token);
        if let Some(connection) = token.and_then(|token| self.connection(token)) {
            connection.segment_max = bytes;
        }
    }

    /// A Text Request of a session (11.10), mostly SendTargets.
    pub(super) fn text(&mut self, index: usize, pending: &PendingText) {
        let PendingText { cid, request, bhs, text } = pending;
        let cid = *cid;
        let token = self.sessions.get(index).and_then(|session| session.link(cid)).map(|link| link.token);
        let Some(token) = token else { return };
        if self.text_left_bytes == 0 {
            // At most one may be under way (RFC 7143, 11.10); what is queued for a connection is looked at between two reads only.
            let reason = if request.immediate {
                RejectReason::ImmediateCommandReject
            } else {
                RejectReason::ProtocolError
            };
            if let Some(session) = self.sessions.get_mut(index) {
                session.core.reject(cid, bhs, reason, &mut self.outbox);
            }
            return;
        }
        self.text_left_bytes = self.text_left_bytes.saturating_sub(TEXT_BYTES_MIN);
        let Some(connection) = self.connection(token) else { return };
        let (local, peer) = (connection.local, connection.peer);
        let Some(session) = self.sessions.get(index) else { return };
        let targets = self.visible_targets(&session.initiator, local, peer.ip());
        let Some(session) = self.sessions.get_mut(index) else { return };
        let facts = TextFacts {
            session_type: session.core.kind(),
            target: session.attachment.as_ref().map(|attachment| attachment.target.name.as_str()),
            targets: &targets,
            max_send_data_segment_length: session.core.max_send_data_segment_length(cid),
            declares: session.core.owed_declaration(cid),
        };
        let Some(link) = session.links.iter_mut().find(|link| link.cid == cid) else { return };
        match link.text.step(request, text, &facts) {
            TextStep::Reply {
                is_final,
                is_continued,
                target_transfer_tag,
                text,
                max_send_data_segment_length,
                declared,
            } => {
                let beyond_bytes = text.len().saturating_sub(TEXT_BYTES_MIN);
                self.text_left_bytes = self.text_left_bytes.saturating_sub(beyond_bytes);
                let flags = (is_final, is_continued, target_transfer_tag);
                session.core.send_text(cid, request.initiator_task_tag, flags, text, &mut self.outbox);
                if let Some(bytes) = max_send_data_segment_length {
                    session.core.set_max_send_data_segment_length(cid, bytes);
                }
                if let Some(bytes) = declared {
                    session.core.has_declared(cid, bytes, &mut self.outbox);
                }
            }
            TextStep::Reject(reason) => session.core.reject(cid, bhs, reason, &mut self.outbox),
        }
    }

    /// The targets that this initiator may log in to, each with the portals through which it may do so, as far as they are told.
    fn visible_targets(
        &self,
        initiator: &str,
        local: SocketAddr,
        address: IpAddr,
    ) -> Vec<(String, Vec<String>)> {
        let own = std::cell::OnceCell::new();
        let own = || own.get_or_init(addresses_of_wildcards).clone();
        let scope = self.shared.discovery.get().scope;
        let portals = self.shared.targets.iter().map(|target| {
            let admission = target.admission.get();
            let may_reach = |portal: IpAddr, group| {
                let caller = Caller { initiator, address, portal, group };
                target.groups.contains(&group) && admission.access.may_admit(&caller)
            };
            let told = self.shared.portals.told((local, scope), may_reach, own);
            let addresses = told.into_iter().map(|(address, group)| format!("{address},{group}"));
            (target.name.clone(), addresses.collect::<Vec<_>>())
        });
        // A target that cannot be reached from there is not named (appendix C).
        portals.filter(|(_, addresses)| !addresses.is_empty()).collect()
    }
}

/// This machine's addresses; none, and a warning, where they cannot be found out: the one that was come to is told anyway.
fn addresses_of_wildcards() -> Vec<SocketAddr> {
    own_addresses().unwrap_or_else(|error| {
        warn!(%error, "cannot tell this machine's addresses to an initiator that asks for them");
        Vec::new()
    })
}
