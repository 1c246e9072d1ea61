//! Data segments that come in parts: where what has come of them is put, until all of it is there.
//!
//! The data of short commands, and whatever lies whole in the scratch buffer, needs none of this. A long write's data is received straight
//! into its command's buffer; or it goes to its store as it comes (`cut_through`), out of the scratch buffer or, with a digest, out of a
//! buffer in which it waits to be checked.

use lunette_block::{Buffer, INLINE_BYTES_MAX};
use lunette_iscsi::session::{Placement, TaskId};
use lunette_wire::digest::{DIGEST_LENGTH, crc32c_of};
use lunette_wire::frame::{Frame, padding};
use lunette_wire::initiator::{ScsiCommand, ScsiDataOut};
use lunette_wire::{Bhs, DecodeError, InitiatorPdu, InitiatorTaskTag, Opcode};

use super::connection::{Disconnect, Stage};
use super::cut_through::{Part, SEGMENT_BYTES_MIN};
use super::receive::{Arrived, LOGIN_DATA_MAX};
use super::session::TargetSession;
use super::transmit::OWNED_BYTES_MAX;
use super::{Reactor, SCRATCH_BYTES};

/// A waiting room is taken where there is memory for so many.
const WAITING_ROOM_SPARE: usize = 8;

/// Data segments up to this length mostly lie whole in the scratch buffer, if that is read into.
const SHORT_BYTES_MAX: usize = SCRATCH_BYTES / 4;

/// A PDU whose header has come and whose data is still coming.
pub(super) struct Landing {
    bhs: Bhs,
    ahs: Vec<u8>,
    frame: Frame,
    place: Place,
    /// In place of that until its digest is found right, for data that goes to its store then: one buffer for all that come, and so in the
    /// processor's caches.
    waiting_room: Option<Buffer>,
    /// Bytes of the data segment that are there.
    filled: usize,
    /// All of them are in their store and nowhere else, and so shall be what comes.
    cuts_through: bool,
    /// Padding and data digest.
    tail: [u8; 3 + DIGEST_LENGTH],
    tail_filled: usize,
}

/// Where a landing's data goes.
enum Place {
    /// The buffer of a command that becomes a task when its PDU is complete.
    Command(Buffer),
    /// The buffer of a task, from this byte on.
    Task { id: TaskId, offset: usize },
    /// Long text and ping data of a session.
    Loose(Buffer),
    /// What is short of these, and the text of a login, which is short.
    Bytes(Vec<u8>),
    /// Nowhere.
    Discard,
}

impl Landing {
    /// Bytes of the data segment that have not come.
    pub(super) const fn missing_bytes(&self) -> usize {
        self.frame.data_length - self.filled
    }

    /// Where the next bytes are to be received, at most `bytes_max`. Nowhere if they are to come into the scratch buffer.
    pub(super) fn room<'a>(
        &'a mut self,
        session: Option<&'a mut TargetSession>,
        bytes_max: usize,
    ) -> &'a mut [u8] {
        if self.cuts_through {
            return &mut [];
        }
        let rest = self.filled..self.filled + self.missing_bytes().min(bytes_max);
        match (&mut self.waiting_room, &mut self.place) {
            (Some(buffer), _) | (None, Place::Command(buffer) | Place::Loose(buffer)) => &mut buffer[rest],
            (None, Place::Bytes(bytes)) => &mut bytes[rest],
            (None, Place::Task { id, offset }) => session
                .and_then(|session| session.data_out_buffer(*id))
                .and_then(|buffer| buffer.get_mut(*offset + rest.start..*offset + rest.end))
                .unwrap_or(&mut []),
            (None, Place::Discard) => &mut [],
        }
    }

    /// So many bytes have been received into [`Self::room`].
    pub(super) const fn note_received(&mut self, bytes: usize) {
        self.filled += bytes;
    }

    /// What it keeps of the pool, in bytes, that is no task's.
    pub(super) fn kept_bytes(&self) -> usize {
        let room = self.waiting_room.as_ref().map_or(0, Buffer::taken_bytes);
        match &self.place {
            Place::Command(buffer) | Place::Loose(buffer) => buffer.taken_bytes(),
            Place::Task { .. } | Place::Bytes(_) | Place::Discard => room,
        }
    }

    /// Whether it is Data-Out that a task waits for.
    pub(super) const fn is_of_task(&self) -> bool {
        matches!(self.place, Place::Task { .. })
    }

    pub(super) const fn is_complete(&self) -> bool {
        self.filled == self.frame.data_length && self.tail_filled == self.tail_length()
    }

    const fn tail_length(&self) -> usize {
        padding(self.frame.data_length) + self.frame.data_digest_length
    }

    fn is_intact(&self, data: &[u8]) -> bool {
        let (pad, digest) =
            self.tail[..self.frame.padding() + self.frame.data_digest_length].split_at(self.frame.padding());
        digest.is_empty() || crc32c_of(&[data, pad]) == digest
    }
}

impl Reactor {
    /// Whether what follows this landing is best received into the scratch buffer, and be it much: stores take from there what needs
    /// no digest, and what is so short that most of it comes whole.
    pub(super) fn wants_scratch(&self, index: usize, landing: &Landing) -> bool {
        let is_short = landing.frame.data_length <= SHORT_BYTES_MAX;
        match &landing.place {
            Place::Task { .. } => landing.cuts_through || is_short && landing.waiting_room.is_some(),
            Place::Command(_) => is_short && self.takes_whole(index, landing),
            Place::Loose(_) | Place::Bytes(_) | Place::Discard => false,
        }
    }

    fn takes_whole(&self, index: usize, landing: &Landing) -> bool {
        let Some(Stage::FullFeature { session, .. }) = self.connections.get(index).map(|of| &of.stage) else {
            return false;
        };
        let length = landing.frame.data_length;
        decode_command(&landing.bhs).is_ok_and(|command| self.is_copied(*session, command.lun, length))
    }

    /// Decides where the data of a PDU will go that is not all there.
    pub(super) fn begin_landing(&mut self, index: usize, bhs: &Bhs, ahs: &[u8], frame: Frame) -> Landing {
        let place = match Opcode::from_byte(bhs[0]) {
            Some(Opcode::ScsiCommand) => {
                self.landing_buffer(index, bhs, frame.data_length).map_or(Place::Discard, Place::Command)
            }
            Some(Opcode::ScsiDataOut) => {
                let pdu = ScsiDataOut::decode(bhs);
                match self.locate(index, &pdu, frame.data_length) {
                    Placement::Task { id, offset } => Place::Task { id, offset: offset as usize },
                    Placement::Discard => Place::Discard,
                }
            }
            _ => self.place_of_request(index, bhs, frame.data_length),
        };
        let mut landing = Landing {
            bhs: *bhs,
            ahs: ahs.to_vec(),
            frame,
            place,
            waiting_room: None,
            filled: 0,
            cuts_through: false,
            tail: [0; 3 + DIGEST_LENGTH],
            tail_filled: 0,
        };
        if self.store_part(index, &landing, &[]).is_none() {
            return landing;
        }
        if frame.data_digest_length == 0 {
            landing.cuts_through = true;
        } else if frame.data_length <= INLINE_BYTES_MAX
            && let Some(session) = self.session_of(index)
            && session.pool.has_room_unasked(WAITING_ROOM_SPARE * frame.data_length)
        {
            landing.waiting_room = session.pool.allocate_unasked(frame.data_length);
        }
        landing
    }

    /// Where the data of any other PDU goes. As much as a login may have is always taken; longer data of a session is from its pool, as a
    /// header alone would otherwise hold memory of any length. Where there is none the PDU is rejected.
    fn place_of_request(&mut self, index: usize, bhs: &Bhs, length: usize) -> Place {
        if length <= LOGIN_DATA_MAX as usize {
            return Place::Bytes(vec![0; length]);
        }
        let Some(session) = self.session_of(index) else { return Place::Bytes(vec![0; length]) };
        // The echo of a ping waits for its peer to read it, in no pool.
        let is_too_long = session.attachment.is_none() || length > OWNED_BYTES_MAX;
        if is_too_long || !uses_data(bhs) {
            return Place::Discard;
        }
        // A session's first buffer is granted whatever others have, which is meant for commands.
        let pool = &session.pool;
        let buffer = if pool.has_room_unasked(length) { pool.allocate_unasked(length) } else { None };
        buffer.map_or(Place::Discard, Place::Loose)
    }

    /// Stores the next data of a landing; answers how many bytes of it. `None`: it is to be in the landing's place.
    fn store_part(&mut self, index: usize, landing: &Landing, data: &[u8]) -> Option<usize> {
        let Place::Task { id, offset } = landing.place else { return None };
        let Stage::FullFeature { session, .. } = self.connections.get(index)?.stage else { return None };
        let length = landing.frame.data_length;
        if length < SEGMENT_BYTES_MIN {
            return None;
        }
        // What waits comes into its room as a whole.
        let at = if landing.waiting_room.is_some() { 0 } else { landing.filled };
        self.cut_through(session, id, Part { data, offset: offset + at, end: offset + length })
    }

    /// Adds what has come to a landing; answers what is left of `bytes`. If the landing is not complete, that is so little
    /// of its data that it goes to its store with what follows.
    pub(super) fn continue_landing<'a>(
        &mut self,
        index: usize,
        landing: &mut Landing,
        bytes: &'a [u8],
    ) -> &'a [u8] {
        let (data, rest) = bytes.split_at(landing.missing_bytes().min(bytes.len()));
        let filled = landing.filled;
        if landing.cuts_through && !data.is_empty() {
            let stored = self.store_part(index, landing, data);
            landing.filled += stored.unwrap_or(0);
            landing.cuts_through = stored.is_some();
            self.has_cut_through |= stored.is_some_and(|stored| stored > 0);
            if let Some(stored) = stored.filter(|&stored| stored < data.len()) {
                self.data_out_came(index, stored);
                return &bytes[stored..];
            }
        }
        if !landing.cuts_through && !data.is_empty() {
            self.put_down(index, landing, landing.filled, data);
            landing.filled += data.len();
        }
        if landing.is_of_task() {
            self.data_out_came(index, landing.filled - filled);
        }
        if landing.missing_bytes() > 0 {
            return rest;
        }
        let wanted = landing.tail_length() - landing.tail_filled;
        let (tail, rest) = rest.split_at(wanted.min(rest.len()));
        landing.tail[landing.tail_filled..landing.tail_filled + tail.len()].copy_from_slice(tail);
        landing.tail_filled += tail.len();
        rest
    }

    /// Copies data to where it waits, or is wanted.
    fn put_down(&mut self, index: usize, landing: &mut Landing, at: usize, data: &[u8]) {
        let range = at..at + data.len();
        match (&mut landing.waiting_room, &mut landing.place) {
            (Some(buffer), _) | (None, Place::Command(buffer) | Place::Loose(buffer)) => {
                buffer[range].copy_from_slice(data);
            }
            (None, Place::Bytes(bytes)) => bytes[range].copy_from_slice(data),
            (None, Place::Task { id, offset }) => self.copy_to_task(index, *id, *offset + at, data),
            (None, Place::Discard) => {}
        }
    }

    /// A landing is complete: its digest is checked where its data lies.
    pub(super) fn landed(&mut self, index: usize, mut landing: Landing) -> Result<(), Disconnect> {
        let length = landing.frame.data_length;
        let intact = match landing.waiting_room.take() {
            Some(buffer) => self.leave_waiting_room(index, &mut landing, &buffer[..length]),
            None => self.is_intact_in_place(index, &landing),
        };
        let Landing { bhs, ahs, place, .. } = landing;
        match place {
            Place::Command(buffer) => self.pdu(index, &bhs, &ahs, Arrived::Command(buffer), intact),
            Place::Loose(buffer) => self.pdu(index, &bhs, &ahs, Arrived::Bytes(&buffer[..length]), intact),
            Place::Bytes(bytes) => self.pdu(index, &bhs, &ahs, Arrived::Bytes(&bytes), intact),
            Place::Task { id, .. } => {
                self.some_data_came(index, id, length);
                self.pdu(index, &bhs, &ahs, Arrived::Placed, intact)
            }
            Place::Discard => self.pdu(index, &bhs, &ahs, Arrived::Placed, intact),
        }
    }

    /// Data whose digest is right goes to its store, or to its place.
    fn leave_waiting_room(&mut self, index: usize, landing: &mut Landing, data: &[u8]) -> bool {
        let intact = landing.is_intact(data);
        if intact {
            let Place::Task { id, offset } = landing.place else { return intact };
            self.take_data_out(index, id, offset, data);
        }
        intact
    }

    fn is_intact_in_place(&mut self, index: usize, landing: &Landing) -> bool {
        let length = landing.frame.data_length;
        match &landing.place {
            Place::Command(buffer) | Place::Loose(buffer) => landing.is_intact(&buffer[..length]),
            Place::Task { id, offset } => {
                let session = self.session_of(index);
                let buffer = session.and_then(|session| session.data_out_buffer(*id));
                let data = buffer.and_then(|buffer| buffer.get(*offset..offset + length));
                // Without a buffer the task is gone, and with it the interest in its data.
                data.is_none_or(|data| landing.is_intact(data))
            }
            Place::Bytes(bytes) => landing.is_intact(bytes),
            // A task that came to want this data after its header had come must not take it for arrived.
            Place::Discard => {
                Opcode::from_byte(landing.bhs[0]) != Some(Opcode::ScsiDataOut)
                    || self.locate(index, &ScsiDataOut::decode(&landing.bhs), length) == Placement::Discard
            }
        }
    }

    fn landing_buffer(&mut self, index: usize, bhs: &Bhs, data_length: usize) -> Option<Buffer> {
        let Stage::FullFeature { session, .. } = self.connections.get(index)?.stage else { return None };
        let command = decode_command(bhs).ok()?;
        // What goes to its store when the command begins needs no room for what comes later.
        if command.is_final && self.is_copied(session, command.lun, data_length) {
            // That of the command before it is free then, and in the processor's caches.
            self.run_received();
            return self.sessions.get(session)?.pool.allocate_unasked(data_length);
        }
        self.command_buffer(session, &command, data_length)
    }
}

/// Whether a request does something with its data: text, and pings but for answers to ours.
pub(super) fn uses_data(bhs: &Bhs) -> bool {
    match InitiatorPdu::decode(bhs) {
        Ok(InitiatorPdu::NopOut(ping)) => ping.initiator_task_tag != InitiatorTaskTag::RESERVED,
        Ok(InitiatorPdu::TextRequest(_)) => true,
        _ => false,
    }
}

fn decode_command(bhs: &Bhs) -> Result<ScsiCommand, DecodeError> {
    match InitiatorPdu::decode(bhs)? {
        InitiatorPdu::ScsiCommand(command) => Ok(command),
        _ => Err(DecodeError::Opcode(bhs[0] & 0x3f)),
    }
}
