//! The PDUs of connections in full feature phase, on their way to the session core (RFC 7143, 11.3, 11.7).
//!
//! How bytes become PDUs is in `receive`; what the core makes of them, in `events`.

use lunette_iscsi::session::{Placement, TaskId};
use lunette_wire::initiator::{ScsiCommand, ScsiDataOut};
use lunette_wire::target::RejectReason;
use lunette_wire::{Bhs, Cid, InitiatorPdu};

use super::Reactor;
use super::at_once::{AtOnce, is_short_command};
use super::connection::Stage;
use super::cut_through::{Part, SEGMENT_BYTES_MIN};
use super::landing::uses_data;
use super::receive::Arrived;
use super::session::TargetSession;

impl Reactor {
    /// The session of a connection in full feature phase.
    pub(super) fn session_of(&mut self, connection: usize) -> Option<&mut TargetSession> {
        match self.connections.get(connection)?.stage {
            Stage::FullFeature { session, .. } => self.sessions.get_mut(session),
            _ => None,
        }
    }

    pub(super) fn locate(&self, connection: usize, pdu: &ScsiDataOut, length: usize) -> Placement {
        let Some(Stage::FullFeature { session, cid }) = self.connections.get(connection).map(|of| &of.stage)
        else {
            return Placement::Discard;
        };
        // A frame's length has 24 bits.
        self.sessions
            .get(*session)
            .map_or(Placement::Discard, |session| session.core.locate_data_out(*cid, pdu, length as u32))
    }

    pub(super) fn copy_to_task(&mut self, connection: usize, id: TaskId, offset: usize, data: &[u8]) {
        let Some(session) = self.session_of(connection) else { return };
        let buffer = session.data_out_buffer(id);
        match buffer.and_then(|buffer| buffer.get_mut(offset..offset + data.len())) {
            Some(place) => place.copy_from_slice(data),
            None if data.is_empty() => {}
            None => session.core.data_out_lost(id),
        }
    }

    /// Data-Out that has come whole, and is right, goes to its task's store or to its buffer; whether any went to the store.
    pub(super) fn take_data_out(
        &mut self,
        connection: usize,
        id: TaskId,
        offset: usize,
        data: &[u8],
    ) -> bool {
        let part = Part { data, offset, end: offset + data.len() };
        let stored = match self.connections.get(connection).map(|of| &of.stage) {
            Some(&Stage::FullFeature { session, .. }) if data.len() >= SEGMENT_BYTES_MIN => {
                self.cut_through(session, id, part)
            }
            _ => None,
        };
        if stored.is_none() {
            self.copy_to_task(connection, id, offset, data);
        }
        stored.is_some_and(|stored| stored > 0)
    }

    /// So many bytes of Data-Out came, of PDUs that may not be all there.
    pub(super) fn data_out_came(&mut self, index: usize, bytes: usize) {
        let Some(connection) = self.connections.get_mut(index) else { return };
        if let Some(pace) = &mut connection.pace
            && let Stage::FullFeature { session, cid } = connection.stage
            && let Some(link) = self.sessions.get(session).and_then(|session| session.link(cid))
        {
            pace.came(bytes, link.asked_bytes, self.now);
        }
    }

    pub(super) fn some_data_came(&mut self, connection: usize, id: TaskId, bytes: usize) {
        if let Some(session) = self.session_of(connection) {
            session.some_data_came(id, bytes);
        }
    }

    /// One complete PDU of a session.
    pub(super) fn full_feature_pdu(
        &mut self,
        connection: usize,
        (index, cid): (usize, Cid),
        (bhs, ahs): (&Bhs, &[u8]),
        data: Arrived<'_>,
        intact: bool,
    ) {
        let mut is_alone = false;
        // Of each read of a busy socket the last PDU is cut. If it took the long way, all of the next read would go behind it.
        let bytes_here = match &data {
            Arrived::Bytes(bytes) => Some(*bytes),
            Arrived::Command(buffer) => buffer.get(..data_segment_length(bhs) as usize),
            Arrived::Placed => None,
        };
        if is_short_command(bhs)
            && intact
            && ahs.is_empty()
            && let Some(bytes) = bytes_here
            && let Ok(pdu) = ScsiCommand::decode(bhs)
        {
            match self.end_at_once((connection, index, cid), (bhs, &pdu), bytes) {
                AtOnce::Taken => {
                    self.to_run = Some(index);
                    return;
                }
                AtOnce::Left => {}
                AtOnce::LeftAlone => is_alone = true,
            }
        }
        match InitiatorPdu::decode(bhs) {
            Ok(InitiatorPdu::ScsiDataOut(pdu)) => {
                let length = data_segment_length(bhs);
                if let Arrived::Bytes(bytes) = data
                    && intact
                    && let Placement::Task { id, offset } = self.locate(connection, &pdu, bytes.len())
                {
                    self.has_cut_through |= self.take_data_out(connection, id, offset as usize, bytes);
                    self.data_out_came(connection, bytes.len());
                    self.some_data_came(connection, id, bytes.len());
                }
                let Some(session) = self.sessions.get_mut(index) else { return };
                session.core.data_out_arrived(self.now, cid, (bhs, &pdu), length, intact, &mut self.outbox);
            }
            // The PDU is as if it had never come; its sender may try again (RFC 7143, 7.8).
            Ok(_) if !intact => {
                let Some(session) = self.sessions.get_mut(index) else { return };
                session.core.reject(cid, bhs, RejectReason::DataDigestError, &mut self.outbox);
            }
            Ok(InitiatorPdu::ScsiCommand(pdu)) => {
                let length = data_segment_length(bhs);
                let buffer = match data {
                    Arrived::Command(buffer) => Some(buffer),
                    Arrived::Bytes(bytes) if !bytes.is_empty() => {
                        self.command_buffer(index, &pdu, bytes.len()).map(|mut buffer| {
                            buffer[..bytes.len()].copy_from_slice(bytes);
                            buffer
                        })
                    }
                    // Unsolicited data follows: it needs a place before the command's turn comes.
                    Arrived::Bytes(_) if pdu.write && !pdu.is_final => self.command_buffer(index, &pdu, 0),
                    Arrived::Bytes(_) | Arrived::Placed => None,
                };
                let Some(session) = self.sessions.get_mut(index) else { return };
                let command = (bhs, &pdu, ahs);
                let id = session.core.command(self.now, cid, command, length, &mut self.outbox);
                if let Some(id) = id {
                    let is_starved = buffer.is_none() && (length > 0 || (pdu.write && !pdu.is_final));
                    session.attach(id, buffer, is_starved);
                    if let Some(context) = session.context(id) {
                        context.immediate_bytes = length;
                    }
                    self.time_task(index, id);
                }
            }
            // There was no memory for its data.
            Ok(pdu) if matches!(data, Arrived::Placed) && uses_data(bhs) => {
                let is_immediate = match pdu {
                    InitiatorPdu::NopOut(pdu) => pdu.immediate,
                    InitiatorPdu::TextRequest(pdu) => pdu.immediate,
                    _ => false,
                };
                let reason = if is_immediate {
                    RejectReason::ImmediateCommandReject
                } else {
                    RejectReason::LongOperationReject
                };
                let Some(session) = self.sessions.get_mut(index) else { return };
                session.core.reject(cid, bhs, reason, &mut self.outbox);
            }
            _ => {
                // What came before it is done before it.
                self.run_session(index);
                let bytes = if let Arrived::Bytes(bytes) = data { bytes } else { &[] };
                let Some(session) = self.sessions.get_mut(index) else { return };
                session.core.request(self.now, cid, bhs, bytes, &mut self.outbox);
                self.run_session(index);
            }
        }
        if is_alone {
            // Those behind it are not to wait for the end of the read.
            self.run_session(index);
        }
        self.to_run = Some(index);
    }

    /// Carries out what the PDUs of one read have left in the outbox.
    pub(super) fn run_received(&mut self) {
        if let Some(index) = self.to_run.take() {
            self.run_session(index);
        }
    }
}

fn data_segment_length(bhs: &Bhs) -> u32 {
    u32::from_be_bytes([0, bhs[5], bhs[6], bhs[7]])
}
