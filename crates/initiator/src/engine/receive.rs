//! The way in of one connection: bytes become PDUs, and their data goes where it belongs (RFC 7143, 11.1, 11.2).
//!
//! One read brings as many PDUs as have come. One that lies whole in the scratch buffer is handled there, and its data is
//! copied to its place. For one that does not, a *landing* is prepared: the rest of its data is received straight into the
//! command's buffer.

use std::io::{self, IoSliceMut};
use std::os::fd::AsFd;
use std::time::Duration;

use lunette_iscsi::initiator::session::{ConnectionId, Loss, Outbox, Place, Segment, Session, TaskHandle};
use lunette_wire::ahs::AHS_LENGTH_MAX;
use lunette_wire::digest::{DIGEST_LENGTH, crc32c, crc32c_of};
use lunette_wire::frame::{Digests, Frame, padding};
use lunette_wire::{BHS_LENGTH, Bhs, TargetPdu};
use rustix::io::Errno;

use super::table::Table;

/// Bytes that one read brings at most, beside what lands directly.
pub(super) const SCRATCH_BYTES: usize = 256 << 10;
/// The same while long data comes: a few headers, so that the data between them lands directly.
const SCRATCH_BYTES_AMONG_LONG: usize = 8 << 10;
/// From this length on data is worth landing directly.
const LONG_DATA_BYTES: usize = 32 << 10;
/// Short PDUs in a row after which no long one is expected.
const SHORT_AMONG_LONG: u8 = 8;

/// What a receiver works on besides its own bytes.
pub(super) struct Context<'a> {
    /// The time of the turn.
    pub(super) now: Duration,
    /// When what is read now had come, as far as is known: at the beginning of the turn, or when the read before it was over.
    pub(super) came_at: Duration,
    pub(super) session: &'a mut Session,
    pub(super) table: &'a mut Table,
    pub(super) outbox: &'a mut Outbox,
}

/// Why a connection is given up.
#[derive(Debug)]
pub(super) enum Failure {
    /// The target closed it.
    Closed,
    /// The system says so.
    Socket(io::Error),
    /// A rule was broken; the session has been told, and says what.
    Told,
}

/// Where a landing's data goes.
#[derive(Debug)]
enum Target {
    Task { task: TaskHandle, place: u32, offset: usize },
    Bytes(Vec<u8>),
    Discard,
}

/// A PDU whose header has come and whose data is still coming.
#[derive(Debug)]
struct Landing {
    pdu: TargetPdu,
    frame: Frame,
    target: Target,
    /// Bytes of the data segment that are there.
    filled: usize,
    tail: [u8; 3 + DIGEST_LENGTH],
    tail_filled: usize,
}

impl Landing {
    fn tail_length(&self) -> usize {
        self.frame.padding() + self.frame.data_digest_length
    }
}

/// What is kept of a connection's stream between two reads.
#[derive(Debug)]
pub(super) struct Receiver {
    connection: ConnectionId,
    digests: Digests,
    data_segment_length_max: u32,
    /// The beginning of a PDU whose headers are not complete.
    partial: Vec<u8>,
    landing: Option<Box<Landing>>,
    long_left: u8,
}

impl Receiver {
    pub(super) fn new(connection: ConnectionId, digests: Digests, data_segment_length_max: u32) -> Self {
        Self {
            connection,
            digests,
            data_segment_length_max,
            partial: Vec::new(),
            landing: None,
            long_left: 0,
        }
    }

    /// Reads once and handles what came; true when there may be more.
    ///
    /// # Errors
    /// [`Failure`].
    pub(super) fn read(
        &mut self,
        socket: &impl AsFd,
        scratch: &mut [u8],
        context: &mut Context<'_>,
    ) -> Result<bool, Failure> {
        let carried = self.partial.len();
        scratch[..carried].copy_from_slice(&self.partial);
        let Some((read, is_full)) = self.fill(socket, &mut scratch[carried..], context)? else {
            return Ok(false);
        };
        self.partial.clear();
        self.parse(&scratch[..carried + read], context)?;
        Ok(is_full)
    }

    /// One read: first into the landing, if there is one, the rest into `scratch`. Answers how much of the latter was
    /// filled, and whether all of what was asked for came.
    fn fill(
        &mut self,
        socket: &impl AsFd,
        scratch: &mut [u8],
        context: &mut Context<'_>,
    ) -> Result<Option<(usize, bool)>, Failure> {
        let limit = if self.long_left > 0 { SCRATCH_BYTES_AMONG_LONG } else { SCRATCH_BYTES };
        let length = scratch.len().min(limit);
        let scratch = &mut scratch[..length];
        let mut nowhere: [u8; 0] = [];
        let mut landing = self.landing.as_deref_mut();
        let direct: &mut [u8] = match landing.as_deref_mut() {
            None => &mut nowhere,
            Some(Landing { frame, target, filled, .. }) => {
                let rest = *filled..frame.data_length;
                match target {
                    Target::Bytes(bytes) => &mut bytes[rest],
                    Target::Task { task, place, offset } => context
                        .table
                        .read_buffer(*place, *task)
                        .and_then(|buffer| buffer.get_mut(*offset + rest.start..*offset + rest.end))
                        .unwrap_or(&mut nowhere),
                    Target::Discard => &mut nowhere,
                }
            }
        };
        let direct_length = direct.len();
        let asked = direct_length + scratch.len();
        let result = if direct_length == 0 {
            rustix::io::read(socket, &mut *scratch)
        } else {
            rustix::io::readv(socket, &mut [IoSliceMut::new(direct), IoSliceMut::new(scratch)])
        };
        let read = match result {
            Ok(0) => return Err(Failure::Closed),
            Ok(read) => read,
            Err(Errno::AGAIN | Errno::INTR) => return Ok(None),
            Err(error) => return Err(Failure::Socket(error.into())),
        };
        let landed = read.min(direct_length);
        if let Some(landing) = landing {
            landing.filled += landed;
            if landed > 0 && matches!(landing.target, Target::Task { .. }) {
                context.table.note_data(context.came_at);
            }
        }
        Ok(Some((read - landed, read == asked)))
    }

    /// Handles all PDUs in `bytes`, and keeps the beginning of the next one.
    fn parse(&mut self, mut bytes: &[u8], context: &mut Context<'_>) -> Result<(), Failure> {
        loop {
            if self.landing.is_some() {
                bytes = self.land(bytes, context);
                if self.landing.is_some() {
                    return Ok(());
                }
            }
            if context.session.is_over() {
                return Err(Failure::Told);
            }
            let Some((pdu, frame)) = self.header(bytes, context)? else {
                self.partial.extend_from_slice(bytes);
                return Ok(());
            };
            self.long_left = if frame.data_length >= LONG_DATA_BYTES {
                SHORT_AMONG_LONG
            } else {
                self.long_left.saturating_sub(1)
            };
            let place = context.session.place(self.connection, &pdu, frame.data_length as u32);
            if bytes.len() >= frame.total_length() {
                let segment = &bytes[frame.data_offset()..frame.total_length()];
                self.whole(&pdu, &frame, place, segment, context);
                bytes = &bytes[frame.total_length()..];
                continue;
            }
            let target = match place {
                Place::Task { task, offset } => match context.table.of_task(task) {
                    Some(place) => Target::Task { task, place, offset: offset as usize },
                    None => Target::Discard,
                },
                // No more than was declared for the connection.
                Place::Core => Target::Bytes(vec![0; frame.data_length]),
                Place::Discard => Target::Discard,
            };
            let tail = [0; 3 + DIGEST_LENGTH];
            self.landing = Some(Box::new(Landing { pdu, frame, target, filled: 0, tail, tail_filled: 0 }));
            bytes = &bytes[frame.data_offset()..];
        }
    }

    /// The header at the beginning of `bytes`, once it is complete with its additional headers and digest.
    fn header(&self, bytes: &[u8], context: &mut Context<'_>) -> Result<Option<(TargetPdu, Frame)>, Failure> {
        let Some(bhs) = bytes.first_chunk::<BHS_LENGTH>() else { return Ok(None) };
        let bhs: &Bhs = bhs;
        let Ok(frame) = Frame::of(bhs, self.digests, self.data_segment_length_max, AHS_LENGTH_MAX) else {
            context.session.undecodable(self.connection, context.outbox);
            return Err(Failure::Told);
        };
        if bytes.len() < frame.data_offset() {
            return Ok(None);
        }
        let (headers, digest) = bytes[..frame.data_offset()].split_at(BHS_LENGTH + frame.ahs_length);
        if !digest.is_empty() && digest != crc32c(headers) {
            context.session.connection_lost(self.connection, Loss::HeaderDigest, context.outbox);
            return Err(Failure::Told);
        }
        match TargetPdu::decode(bhs) {
            Ok(pdu) => Ok(Some((pdu, frame))),
            Err(_) => {
                context.session.undecodable(self.connection, context.outbox);
                Err(Failure::Told)
            }
        }
    }

    /// A PDU that has come whole; `bytes` is its data segment with padding and digest.
    fn whole(&self, pdu: &TargetPdu, frame: &Frame, place: Place, bytes: &[u8], context: &mut Context<'_>) {
        let (padded, digest) = bytes.split_at(frame.data_length + padding(frame.data_length));
        let is_intact = digest.is_empty() || digest == crc32c(padded);
        let data = &padded[..frame.data_length];
        let mut kept: &[u8] = &[];
        match place {
            Place::Core => kept = data,
            Place::Task { task, offset } => {
                let offset = offset as usize;
                let found = context.table.of_task(task);
                if let Some(buffer) = found.and_then(|place| context.table.read_buffer(place, task))
                    && let Some(room) = buffer.get_mut(offset..offset + data.len())
                {
                    room.copy_from_slice(data);
                }
            }
            Place::Discard => {}
        }
        // No more than 24 bits can say.
        let segment = Segment { length: frame.data_length as u32, bytes: kept, is_intact };
        self.deliver(pdu, &segment, context);
    }

    /// Goes on with the landing; answers what is left of `bytes`.
    fn land<'b>(&mut self, bytes: &'b [u8], context: &mut Context<'_>) -> &'b [u8] {
        let Some(mut landing) = self.landing.take() else { return bytes };
        let missing = (landing.frame.data_length - landing.filled).min(bytes.len());
        let (data, rest) = bytes.split_at(missing);
        let range = landing.filled..landing.filled + missing;
        match &mut landing.target {
            Target::Bytes(kept) => kept[range].copy_from_slice(data),
            Target::Task { task, place, offset } => {
                let range = *offset + range.start..*offset + range.end;
                let buffer = context.table.read_buffer(*place, *task);
                if let Some(room) = buffer.and_then(|buffer| buffer.get_mut(range)) {
                    room.copy_from_slice(data);
                }
            }
            Target::Discard => {}
        }
        landing.filled += missing;
        let tail_missing = (landing.tail_length() - landing.tail_filled).min(rest.len());
        let (tail, rest) = rest.split_at(tail_missing);
        landing.tail[landing.tail_filled..][..tail_missing].copy_from_slice(tail);
        landing.tail_filled += tail_missing;
        if landing.filled < landing.frame.data_length || landing.tail_filled < landing.tail_length() {
            self.landing = Some(landing);
            return rest;
        }
        self.landed(&landing, context);
        rest
    }

    /// A landing is complete.
    fn landed(&self, landing: &Landing, context: &mut Context<'_>) {
        let (pad, digest) = landing.tail[..landing.tail_length()].split_at(landing.frame.padding());
        let length = landing.frame.data_length;
        let (kept, landed): (&[u8], Option<&[u8]>) = match &landing.target {
            Target::Bytes(bytes) => (bytes, Some(bytes)),
            Target::Task { task, place, offset } => {
                let buffer = context.table.read_buffer(*place, *task);
                (&[], buffer.and_then(|buffer| buffer.get(*offset..*offset + length)))
            }
            Target::Discard => (&[], None),
        };
        // What went nowhere has no digest to be wrong.
        let is_intact = digest.is_empty() || landed.is_none_or(|landed| digest == crc32c_of(&[landed, pad]));
        let segment = Segment { length: length as u32, bytes: kept, is_intact };
        self.deliver(&landing.pdu, &segment, context);
    }

    fn deliver(&self, pdu: &TargetPdu, segment: &Segment<'_>, context: &mut Context<'_>) {
        let task = match pdu {
            TargetPdu::ScsiDataIn(pdu) => Some(pdu.initiator_task_tag),
            TargetPdu::ScsiResponse(pdu) => Some(pdu.initiator_task_tag),
            _ => None,
        };
        if let Some(tag) = task {
            context.table.note_answer(context.came_at, tag, segment.length as usize);
        }
        context.session.received(context.now, self.connection, pdu, segment, context.outbox);
    }
}
