//! The way in: from bytes of a socket to PDUs (RFC 7143, 11.1, 11.2).
//!
//! One read brings as many PDUs as have come. A PDU that lies whole in the scratch buffer is handled there. For one
//! that does not, a *landing* is prepared as soon as its header is there: see `landing`.

use std::io::{self, IoSliceMut};

use lunette_block::Buffer;
use lunette_wire::digest::{DIGEST_LENGTH, crc32c};
use lunette_wire::frame::{DATA_SEGMENT_LENGTH_MAX, Frame};
use lunette_wire::initiator::ScsiCommand;
use lunette_wire::{BHS_LENGTH, Bhs, Opcode, ahs};

use super::at_once::{AT_ONCE_MAX, Unparsed};
use super::connection::{Connection, Disconnect, Stage};
use super::landing::Landing;
use super::transmit::OWNED_BYTES_MAX;
use super::{Reactor, SCRATCH_BYTES};

/// The longest data segment before full feature phase: the default of MaxRecvDataSegmentLength (RFC 7143, 13.12).
pub(super) const LOGIN_DATA_MAX: u32 = 8192;

/// A data segment as it is handed to the session.
pub(super) enum Arrived<'a> {
    /// In the scratch buffer or in a landing of its own.
    Bytes(&'a [u8]),
    /// In a command's buffer already.
    Command(Buffer),
    /// In a task's buffer or its store already, or thrown away.
    Placed,
}

/// What is kept of a connection's stream between two reads.
#[derive(Default)]
pub(super) struct Receiver {
    /// The beginning of a PDU whose header is not complete, or of data that goes to its store as it comes: never more than the
    /// longest header and its digest, or [`super::cut_through::PART_BYTES_MIN`].
    partial: Vec<u8>,
    landing: Option<Box<Landing>>,
    /// PDUs to come until short ones are thought to be the rule again; see [`LONG_DATA_BYTES`].
    long_left: u8,
}

/// From this length on data is worth landing directly: what comes into the scratch buffer has to be copied once more.
/// While such PDUs come, little more than their headers is read there.
pub(super) const LONG_DATA_BYTES: usize = 32 << 10;

/// Where a header says how many words of additional header segments come behind it (TotalAHSLength).
const AHS_WORDS_AT: usize = 4;

/// Writes up to this length get a buffer for all of their data at once while their session has no more than [`FEW_BYTES`].
const WHOLE_BYTES_MAX: usize = 1 << 20;
const FEW_BYTES: usize = 4 << 20;

/// A connection keeps so much room for what begins, headers mostly: there may be many that do nothing.
const PARTIAL_BYTES_KEPT: usize = 4 << 10;

/// What is read into the scratch buffer between long PDUs: headers, commands without data.
const SCRATCH_BYTES_AMONG_LONG: usize = 8 << 10;

/// Short PDUs in a row after which no long one is expected: a few commands come between the data of others.
const SHORT_AMONG_LONG: u8 = 8;

impl Receiver {
    /// The most that is to be read into the scratch buffer.
    fn scratch_bytes_max(&self) -> usize {
        if self.long_left > 0 { SCRATCH_BYTES_AMONG_LONG } else { SCRATCH_BYTES }
    }

    /// Whether the data of a PDU that has begun is still to come.
    pub(super) const fn has_landing(&self) -> bool {
        self.landing.is_some()
    }

    /// What data that is coming keeps of the pool, in bytes, but for that of tasks.
    pub(super) fn kept_bytes(&self) -> usize {
        self.landing.as_deref().map_or(0, Landing::kept_bytes)
    }

    fn note_length(&mut self, data_length: usize) {
        self.long_left =
            if data_length >= LONG_DATA_BYTES { SHORT_AMONG_LONG } else { self.long_left.saturating_sub(1) };
    }
}

impl Connection {
    /// The lengths of a PDU, checked against what this side declared.
    fn frame(&self, bhs: &Bhs) -> Result<Frame, Disconnect> {
        let (data_max, ahs_max) = if matches!(self.stage, Stage::FullFeature { .. }) {
            (self.segment_max.min(DATA_SEGMENT_LENGTH_MAX), ahs::AHS_LENGTH_MAX)
        } else {
            (LOGIN_DATA_MAX, 0)
        };
        Frame::of(bhs, self.digests, data_max, ahs_max).map_err(Disconnect::Frame)
    }

    /// Whether a header whose lengths cannot be is not what was sent, as its digest tells (RFC 7143, 7.8 before 7.7); `None` until the
    /// digest is there.
    fn is_damaged(&self, bytes: &[u8]) -> Option<bool> {
        if !self.digests.header {
            return Some(false);
        }
        let header_length = BHS_LENGTH + usize::from(*bytes.get(AHS_WORDS_AT)?) * 4;
        let (header, digest) = bytes.get(..header_length + DIGEST_LENGTH)?.split_at(header_length);
        Some(crc32c(header) != digest)
    }

    fn check_header_digest(&self, bytes: &[u8], frame: &Frame) -> Result<(), Disconnect> {
        let (header, rest) = bytes.split_at(BHS_LENGTH + frame.ahs_length);
        if self.digests.header && crc32c(header) != rest[..DIGEST_LENGTH] {
            return Err(Disconnect::HeaderDigest);
        }
        Ok(())
    }
}

impl Reactor {
    /// Reads once from a connection and handles what came.
    pub(super) fn read(&mut self, index: usize) {
        let Some(connection) = self.connections.get_mut(index) else { return };
        if matches!(connection.stage, Stage::Closing) {
            return self.discard_input(index);
        }
        if !self.order.is_empty() && self.order.holds(connection.token) {
            // What came before is taken first, in this turn still.
            return;
        }
        let mut receiver = std::mem::take(&mut connection.receiver);
        let mut scratch = std::mem::take(&mut self.scratch);
        let outcome = self.receive(index, &mut receiver, &mut scratch);
        self.scratch = scratch;
        self.received(index, receiver, outcome);
    }

    /// Keeps what a connection's receiver has for its next read, or ends the connection.
    pub(super) fn received(&mut self, index: usize, receiver: Receiver, outcome: Result<(), Disconnect>) {
        match outcome {
            Ok(()) => {
                if let Some(connection) = self.connections.get_mut(index) {
                    connection.receiver = receiver;
                }
            }
            Err(reason) => self.disconnect(index, &reason),
        }
    }

    /// Reads once from a connection that is closing; what comes is of no interest but for its end.
    fn discard_input(&mut self, index: usize) {
        let Some(connection) = self.connections.get(index) else { return };
        match rustix::io::read(&connection.socket, &mut *self.scratch) {
            Ok(1..) | Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => {}
            Ok(0) => self.disconnect(index, &Disconnect::Closed),
            Err(error) => self.disconnect(index, &Disconnect::Socket(error.into())),
        }
    }

    fn receive(
        &mut self,
        index: usize,
        receiver: &mut Receiver,
        scratch: &mut Vec<u8>,
    ) -> Result<(), Disconnect> {
        let carried = receiver.partial.len();
        scratch[..carried].copy_from_slice(&receiver.partial);
        receiver.partial.clear();
        let Some(read) = self.fill(index, receiver, &mut scratch[carried..])? else {
            // Nothing came after all; what was carried is kept.
            receiver.partial.extend_from_slice(&scratch[..carried]);
            return Ok(());
        };
        let end = carried + read;
        let left = self.parse(index, receiver, &scratch[..end], (AT_ONCE_MAX, true))?;
        if left > 0 {
            let spare = self.order.scratch();
            self.hold(index, std::mem::replace(scratch, spare), end - left..end);
        }
        Ok(())
    }

    /// One read: first into the landing, if there is one, the rest into `scratch`. Answers how much of the latter
    /// was filled; `None` when there was nothing to read.
    fn fill(
        &mut self,
        index: usize,
        receiver: &mut Receiver,
        scratch: &mut [u8],
    ) -> Result<Option<usize>, Disconnect> {
        let scratch_max = receiver.scratch_bytes_max();
        let Some(connection) = self.connections.get_mut(index) else { return Ok(None) };
        let place = match connection.stage {
            Stage::FullFeature { session, .. } => Some(session),
            _ => None,
        };
        let bytes_max = self.company.read_bytes_max(place);
        let session = place.and_then(|session| self.sessions.get_mut(session));
        let mut landing = receiver.landing.as_deref_mut();
        let missing = landing.as_deref().map_or(0, Landing::missing_bytes);
        let direct = landing.as_deref_mut().map_or(&mut [][..], |landing| landing.room(session, bytes_max));
        let direct_length = direct.len();
        // What comes after a landing that is cut short belongs to it, too.
        let is_cut = direct_length > 0 && direct_length < missing;
        let scratch_length = if is_cut { 0 } else { scratch.len().min(bytes_max).min(scratch_max) };
        let scratch = &mut scratch[..scratch_length];
        let result = if direct_length == 0 {
            rustix::io::read(&connection.socket, &mut *scratch)
        } else {
            rustix::io::readv(&connection.socket, &mut [IoSliceMut::new(direct), IoSliceMut::new(scratch)])
        };
        let read = match result {
            Ok(0) => return Err(Disconnect::Closed),
            Ok(read) => read,
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => return Ok(None),
            Err(error) => return Err(Disconnect::Socket(io::Error::from(error))),
        };
        connection.bytes_came(self.now, read);
        self.storing.came(read);
        let landed = read.min(direct_length);
        if let Some(landing) = landing {
            landing.note_received(landed);
            if landing.is_of_task() {
                self.data_out_came(index, landed);
            }
        }
        Ok(Some(read - landed))
    }

    /// Handles all PDUs in `bytes`, ends at most `at_once_left` commands of them at once, carries out what they ask for, and keeps the
    /// beginning of the next one. If they `may_wait`, a complete command that is early is left, and all behind it; answers how many bytes
    /// that is.
    pub(super) fn parse(
        &mut self,
        index: usize,
        receiver: &mut Receiver,
        bytes: &[u8],
        (at_once_left, may_wait): (u16, bool),
    ) -> Result<usize, Disconnect> {
        self.at_once_left = at_once_left;
        self.parts = self.parts_for(index, bytes);
        self.text_left_bytes = OWNED_BYTES_MAX;
        self.has_cut_through = false;
        let shared = if may_wait { self.session_to_wait_for(index) } else { None };
        let outcome = self.take_pdus(index, receiver, bytes, shared);
        self.run_received();
        if self.has_cut_through {
            receiver.long_left = 0;
        }
        outcome
    }

    fn take_pdus(
        &mut self,
        index: usize,
        receiver: &mut Receiver,
        mut bytes: &[u8],
        shared: Option<usize>,
    ) -> Result<usize, Disconnect> {
        loop {
            let Some(connection) = self.connections.get(index) else { return Ok(0) };
            if matches!(connection.stage, Stage::Closing) {
                return Ok(0);
            }
            if let Some(mut landing) = receiver.landing.take() {
                bytes = self.continue_landing(index, &mut landing, bytes);
                if landing.is_complete() {
                    self.unparsed = Unparsed::of(bytes);
                    self.landed(index, *landing)?;
                    continue;
                }
                receiver.landing = Some(landing);
                break;
            }
            let Some(bhs) = bytes.first_chunk::<BHS_LENGTH>() else { break };
            if connection.stage.is_before_login() {
                if Opcode::from_byte(bhs[0]) != Some(Opcode::LoginRequest) {
                    // It ends the connection, so it need not even be measured.
                    return self.other_pdu(index, bhs[0] & 0x3f).map(|()| 0);
                }
                if let Some(reactor) = self.home_of(index, bhs) {
                    self.move_to(index, reactor, bytes);
                    return Ok(0);
                }
            }
            let frame = match connection.frame(bhs) {
                Ok(frame) => frame,
                Err(error) => match connection.is_damaged(bytes) {
                    Some(false) => return Err(error),
                    Some(true) => return Err(Disconnect::HeaderDigest),
                    None => break,
                },
            };
            if bytes.len() < frame.data_offset() {
                break;
            }
            // The rest of a long one is better received where it belongs.
            if let Some(session) = shared
                && bytes.len() >= frame.total_length()
                && self.is_early(session, bhs)
            {
                return Ok(bytes.len());
            }
            connection.check_header_digest(bytes, &frame)?;
            let ahs = &bytes[BHS_LENGTH..BHS_LENGTH + frame.ahs_length];
            receiver.note_length(frame.data_length);
            if let Some((pdu, rest)) = bytes.split_at_checked(frame.total_length()) {
                let segment = &pdu[frame.data_offset()..];
                let intact = frame.data_digest_length == 0 || {
                    let (padded, digest) = segment.split_at(frame.data_length + frame.padding());
                    crc32c(padded) == digest
                };
                self.unparsed = Unparsed::of(rest);
                self.pdu(index, bhs, ahs, Arrived::Bytes(&segment[..frame.data_length]), intact)?;
                bytes = rest;
            } else {
                let landing = self.begin_landing(index, bhs, ahs, frame);
                if self.wants_scratch(index, &landing) {
                    receiver.long_left = 0;
                }
                receiver.landing = Some(Box::new(landing));
                bytes = &bytes[frame.data_offset()..];
            }
        }
        if bytes.is_empty() && receiver.partial.capacity() > PARTIAL_BYTES_KEPT {
            receiver.partial = Vec::new();
        }
        receiver.partial.extend_from_slice(bytes);
        debug_assert!(receiver.partial.len() < SCRATCH_BYTES);
        Ok(0)
    }

    /// One complete PDU.
    pub(super) fn pdu(
        &mut self,
        index: usize,
        bhs: &Bhs,
        ahs: &[u8],
        data: Arrived<'_>,
        intact: bool,
    ) -> Result<(), Disconnect> {
        self.pdus += 1;
        let Some(connection) = self.connections.get(index) else { return Ok(()) };
        match connection.stage {
            Stage::FullFeature { session, cid } => {
                self.full_feature_pdu(index, (session, cid), (bhs, ahs), data, intact);
                Ok(())
            }
            Stage::Login(_) => {
                let Arrived::Bytes(text) = data else { return Ok(()) };
                self.login_pdu(index, bhs, text)
            }
            // The initiator must wait for the answer to its last login PDU.
            Stage::AwaitingReinstatement(_) => self.other_pdu(index, bhs[0] & 0x3f),
            Stage::Closing => Ok(()),
        }
    }

    /// The buffer for a command's immediate data, large enough for all the data that it announces unless that is
    /// more than the store takes at once. `None` when memory is short; the data is then thrown away.
    pub(super) fn command_buffer(
        &self,
        session: usize,
        command: &ScsiCommand,
        data_length: usize,
    ) -> Option<Buffer> {
        let expected = command.expected_data_transfer_length as usize;
        let session = self.sessions.get(session)?;
        let pool = &session.pool;
        // A large write's buffer is only taken once the command itself was found good, and its turn has come; but while the
        // session has few, that would only cost a copy.
        let is_whole = expected <= SCRATCH_BYTES
            || expected <= WHOLE_BYTES_MAX
                && pool.taken_bytes() <= FEW_BYTES
                && pool.has_room_unasked(FEW_BYTES);
        let length = if is_whole { expected } else { session.first_burst() };
        pool.allocate_unasked(length.max(data_length))
    }
}
