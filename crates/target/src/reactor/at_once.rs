//! Short reads, and writes whose data is here as soon as their PDU is, that need not wait for anything: carried out and answered as
//! soon as their PDU has come.
//!
//! The session and the device server have their say in them as in all others. What is left out is what a command needs that outlives
//! its PDU: a task, a context, the way through an engine (docs/decisions/0041). A command that turns out to be of another kind
//! goes the way of all: see `commands`.

use std::sync::Arc;

use lunette_block::{Volume, Written};
use lunette_iscsi::session::{self, Payload};
use lunette_scsi::{Ended, Io, Lun, Next, Task, Terms, Unhindered};
use lunette_wire::initiator::ScsiCommand;
use lunette_wire::{BHS_LENGTH, Bhs, Cid, LunField, Opcode};

use super::Reactor;
use super::commands::store_tag;
use super::connection::{Connection, Stage};
use super::cut_through::SEGMENT_BYTES_MIN;
use super::parts::Parts;
use super::session::{Medium, Segment};
use super::waiting::attribute;
use crate::crowd::LOOK_EVERY;
use crate::task_times::{SessionName, TaskName, Watch};

/// Longer transfers take the long way: beside their bytes a task costs nothing, and reads are sent from the page cache there
/// (docs/decisions/0011).
const READ_AT_ONCE_BYTES_MAX: u32 = 32 << 10;

/// A store lends reads of this kind from this length on: of less a copy costs less than what keeps the data's place until it is sent.
const LENT_AT_ONCE_BYTES_MIN: u32 = 8 << 10;

/// Writes up to this length lie whole in the scratch buffer: nothing is gained by keeping their data for later.
const WRITTEN_AT_ONCE_BYTES_MAX: u32 = super::SCRATCH_BYTES as u32;

/// So many commands are ended at once from one read of a socket, the window's worth by default: those who keep to the window send no
/// more, and nobody else is to keep the reactor.
pub(super) const AT_ONCE_MAX: u16 = 128;

/// What has become of a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AtOnce {
    /// It is answered, or has become a task that is under way.
    Taken,
    /// Nothing was done for it: it goes the way of all others.
    Left,
    /// The same; but for it, the ones behind it may be of this kind.
    LeftAlone,
}

/// What was tried of a command that goes on as a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Tried {
    Nothing,
    /// All of its data is in the store.
    Stored,
    /// Any part of its data may be in the store.
    Partly,
    /// To read, which has to wait.
    Missed,
}

/// Whether a PDU is a command for which [`Reactor::end_at_once`] is there; most others are told so here.
pub(super) fn is_short_command(bhs: &Bhs) -> bool {
    let expected = u32::from_be_bytes([bhs[20], bhs[21], bhs[22], bhs[23]]);
    // The W bit (RFC 7143, 11.3.1).
    let bytes_max = if bhs[1] & 0x20 == 0 { READ_AT_ONCE_BYTES_MAX } else { WRITTEN_AT_ONCE_BYTES_MAX };
    bhs[0] == Opcode::ScsiCommand as u8 && (1..bytes_max).contains(&expected)
}

/// What has come behind a PDU and is not looked at yet.
#[derive(Debug, Default)]
pub(super) struct Unparsed {
    bytes: usize,
    /// The header of the next PDU.
    bhs: Option<Bhs>,
}

impl Unparsed {
    pub(super) fn of(bytes: &[u8]) -> Self {
        Self { bytes: bytes.len(), bhs: bytes.first_chunk().copied() }
    }

    /// The CDB of the next PDU if that is a short command for this unit.
    fn short_command(&self, lun: LunField) -> Option<&[u8; 16]> {
        let bhs = self.bhs.as_ref().filter(|bhs| is_short_command(bhs) && bhs[8..16] == lun.0)?;
        bhs.last_chunk()
    }
}

impl Reactor {
    /// Carries out a [short command](is_short_command) that has come whole, with all its data, and answers it.
    pub(super) fn end_at_once(
        &mut self,
        (connection, index, cid): (usize, usize, Cid),
        (bhs, pdu): (&Bhs, &ScsiCommand),
        data: &[u8],
    ) -> AtOnce {
        // What came earlier is done earlier.
        if self.at_once_left == 0 || !self.outbox.events.is_empty() {
            return AtOnce::Left;
        }
        // Its answer goes behind what the connection has, so what it is going to have comes first.
        self.queue_pdus(index);
        let Some(session) = self.sessions.get_mut(index) else { return AtOnce::Left };
        let Some(connection) = self.connections.get_mut(connection) else { return AtOnce::Left };
        let Some(attachment) = &session.attachment else { return AtOnce::Left };
        let lun = Lun::from_bytes(pdu.lun.0);
        let Some(way) = attachment.nexus.way_to(lun) else { return AtOnce::Left };
        let volume = attachment.target.volumes.get(way.place());
        let Some(volume) = volume.filter(|volume| volume.transfers_at_once()) else { return AtOnce::Left };
        let is_put_off = session.postponed > 0 || connection.transmitter.is_full();
        if is_put_off || self.company.wants_pieces(index, data.len()) {
            return AtOnce::Left;
        }
        // A data segment's length has 24 bits.
        let deliverable = session.core.takes_at_once(cid, pdu, data.len() as u32);
        let Some(deliverable) = deliverable else { return AtOnce::Left };

        let mut watch = self.shared.recorder.as_ref().map(Watch::begin);
        let terms = Terms {
            attribute: attribute(pdu.attribute),
            priority: session.core.priority_of(pdu),
            data_out_bytes: Some(data.len() as u32),
            key: store_tag(index, session.core.next_task()),
        };
        let Some(command) = Unhindered::begin(way, &pdu.cdb, &terms) else { return AtOnce::LeftAlone };
        // A CDB may ask for more than its initiator expects, or for the other direction.
        let length = command.length_bytes();
        let is_plain = command.writes() == pdu.write
            && (pdu.write || length < READ_AT_ONCE_BYTES_MAX)
            && (pdu.read || data.len() == length as usize)
            && volume.stored_bytes(length.into()) == length.into();
        if !is_plain {
            return AtOnce::LeftAlone;
        }

        if let Some(watch) = &mut watch {
            watch.enters_store(command.io());
        }
        self.has_cut_through |= data.len() >= SEGMENT_BYTES_MIN;
        // Commands that may follow this one.
        let others = (self.unparsed.bytes / BHS_LENGTH).min(usize::from(self.at_once_left) - 1);
        let Connection { transmitter, digests, .. } = connection;
        let may_be_lent = pdu.read && length >= LENT_AT_ONCE_BYTES_MIN && !digests.data;
        let lent = if may_be_lent { lend(volume, &command) } else { None };
        let (is_done, tried) = if lent.is_some() {
            (true, Tried::Nothing)
        } else if pdu.write {
            match volume.write_at_once(command.offset_bytes(), data, command.stable()) {
                Written::Done => (true, Tried::Stored),
                Written::Unflushed => (false, Tried::Stored),
                Written::No => (false, Tried::Nothing),
                Written::Partly => (false, Tried::Partly),
            }
        } else {
            match transmitter.room(&session.pool, length as usize, others, *digests) {
                Some(room) => (volume.read_at_once(command.offset_bytes(), room), Tried::Missed),
                None => (false, Tried::Nothing),
            }
        };
        if !is_done {
            let task = command.wait();
            transmitter.withdraw();
            self.go_on_as_task((index, cid), (bhs, pdu), data, (tried, task));
            return AtOnce::Taken;
        }
        let next = self.unparsed.short_command(pdu.lun).and_then(|cdb| command.range_of(cdb));
        match command.end() {
            Ended::Good => {}
            Ended::Again => {
                transmitter.withdraw();
                return AtOnce::LeftAlone;
            }
            Ended::Later(later) => {
                transmitter.withdraw();
                self.go_on_as_task((index, cid), (bhs, pdu), data, (tried, *later));
                return AtOnce::Taken;
            }
        }
        // While this one is answered, what the next one needs comes from memory.
        if let Some((offset, length)) = next.filter(|_| lent.is_none()) {
            volume.expect(offset, length);
        }
        if let Some(watch) = watch {
            let name = SessionName { isid: session.key.isid, tsih: session.place.tsih };
            let name = TaskName { session: name, tag: pdu.initiator_task_tag };
            watch.end(volume.identity().naa, name);
        }

        self.at_once_left -= 1;
        self.company.note_command(index, length as usize);
        let Some(bhs) = session.core.answer_at_once(self.now, deliverable, (bhs, pdu), length) else {
            transmitter.withdraw();
            return AtOnce::Taken;
        };
        let sent = length.min(pdu.expected_data_transfer_length);
        if let Some(medium) = lent {
            let payload = Payload::Buffer { data: Segment::Medium(medium), start: 0, length: sent };
            transmitter.push(&bhs, payload, *digests);
        } else if pdu.read {
            transmitter.close(&bhs, sent as usize, *digests);
        } else if others > 0 {
            connection.push_header(&bhs, &session.pool);
        } else {
            transmitter.push(&bhs, Payload::None, *digests);
        }
        if !std::mem::replace(&mut connection.is_dirty, true) {
            self.dirty.push(connection.token.index);
        }
        if pdu.read && self.parts.is_full(self.unparsed.bytes) {
            connection.send_part(self.company.send_limit());
        } else {
            connection.send_early(self.company.send_limit());
        }
        AtOnce::Taken
    }

    /// Parts of the answers to what a connection has brought.
    pub(super) fn parts_for(&mut self, index: usize, bytes: &[u8]) -> Parts {
        let (leaves_a_processor, seen) = &mut self.leaves_a_processor;
        if self.now.saturating_sub(*seen) >= LOOK_EVERY {
            (*leaves_a_processor, *seen) = (self.shared.crowd.leaves_a_processor(self.index), self.now);
        }
        if bytes.len() < Parts::BYTES_MIN || !*leaves_a_processor {
            return Parts::default();
        }
        let Some(connection) = self.connections.get(index) else { return Parts::default() };
        let Stage::FullFeature { session, cid } = connection.stage else { return Parts::default() };
        let Some(session) = self.sessions.get(session) else { return Parts::default() };
        // Of several each is answered while the others wait anyway.
        let is_alone = session.links.len() == 1 && !self.company.is_shared();
        let under_way = session.core.unacknowledged_statuses(cid) as usize;
        Parts::of(is_alone, under_way)
    }

    /// A command has to wait for its store, which may have some of its data; or it is a write that has been done, and what happened
    /// meanwhile holds its answer back.
    fn go_on_as_task(
        &mut self,
        (index, cid): (usize, Cid),
        (bhs, pdu): (&Bhs, &ScsiCommand),
        data: &[u8],
        (tried, (command, next)): (Tried, (Task, Next)),
    ) {
        let needs_data = tried != Tried::Stored && matches!(next, Next::Io(Io::WriteDataOut { .. }));
        let buffer = if needs_data { self.command_buffer(index, pdu, data.len()) } else { None };
        let Some(session) = self.sessions.get_mut(index) else { return };
        let (id, length) = (session.core.next_task(), data.len() as u32);
        let taken = session.core.command(self.now, cid, (bhs, pdu, &[]), length, &mut self.outbox);
        let told = self.outbox.events.pop();
        debug_assert_eq!(
            (taken, told),
            (Some(id), Some(session::Event::Execute(id))),
            "the session allowed it"
        );
        let is_starved = needs_data && buffer.is_none();
        let buffer = buffer.map(|mut buffer| {
            buffer[..data.len()].copy_from_slice(data);
            buffer
        });
        session.attach(id, buffer, is_starved);
        self.time_task(index, id);
        if let Some(session) = self.sessions.get_mut(index)
            && let Some(attachment) = &session.attachment
            && let Some(context) = session.contexts.get_mut(id.slot()).and_then(Option::as_mut)
        {
            // It is at the medium, so nobody has been alone there since its data was stored.
            context.out_stored = if tried == Tried::Stored { length } else { 0 };
            context.alone_count = command.alone_count(&attachment.nexus);
            (context.out_length, context.out_present) = (length, if needs_data { length } else { 0 });
            context.command = Some(command);
            context.is_missed = tried == Tried::Missed;
            context.is_unstable = pdu.write && matches!(tried, Tried::Stored | Tried::Partly);
        }
        if is_starved {
            return self.finish_starved(index, id);
        }
        self.drive(index, id, next);
    }
}

/// The data of a read where it lies, if its store lends it.
fn lend(volume: &Arc<Volume>, command: &Unhindered<'_>) -> Option<Medium> {
    let range = volume.lendable(command.offset_bytes(), command.length_bytes())?;
    Some(Medium::Lent { range, held: Some(command.send_later()?) })
}

#[cfg(test)]
mod tests {
    use super::*;

    const LUN: LunField = LunField([0, 3, 0, 0, 0, 0, 0, 0]);

    fn read(expected_data_transfer_length: u32) -> Bhs {
        let (lun, cdb) = (LUN, [0x28; 16]);
        ScsiCommand { read: true, lun, expected_data_transfer_length, cdb, ..ScsiCommand::default() }
            .encode(0)
    }

    #[test]
    fn what_follows_is_a_short_command_of_the_unit_or_nothing_is_told() {
        let of = |bytes: &[u8], lun| Unparsed::of(bytes).short_command(lun).copied();
        assert_eq!(of(&read(512), LUN), Some([0x28; 16]));
        assert_eq!(of(&[&read(512)[..], &[0xff; 48]].concat(), LUN), Some([0x28; 16]));
        assert_eq!(of(&read(512), LunField::default()), None, "another unit");
        assert_eq!(of(&read(READ_AT_ONCE_BYTES_MAX), LUN), None, "it is long");
        assert_eq!(of(&read(512)[..47], LUN), None, "its header has not come");
        assert_eq!(of(&[0xff; 96], LUN), None);
        assert_eq!(of(&[], LUN), None);
    }
}
