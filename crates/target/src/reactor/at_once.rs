//! Short reads and writes that need not wait for anything: carried out and answered as soon as their PDU has come.
//!
//! The session and the device server have their say in them as in all others. What is left out is what a command needs that outlives
//! its PDU: a task, a context, the way through an engine (docs/decisions/0041). A command that turns out to be of another kind
//! goes the way of all, from the beginning: see `commands`.

use lunette_block::BufferPool;
use lunette_iscsi::session;
use lunette_scsi::{Ended, Lun, Next, Task, Terms, Unhindered};
use lunette_wire::initiator::ScsiCommand;
use lunette_wire::{BHS_LENGTH, Bhs, Cid, Opcode};

use super::Reactor;
use super::commands::store_tag;
use super::connection::Connection;
use super::strip::Strip;
use super::waiting::attribute;
use crate::task_times::{TaskName, Watch};

/// Longer transfers take the long way: beside their bytes a task costs nothing, and reads are sent from the page cache there
/// (docs/decisions/0011).
const AT_ONCE_BYTES_MAX: u32 = 32 << 10;

/// So many commands are ended at once from one read of a socket, the window's worth by default: those who keep to the window send no
/// more, and nobody else is to keep the reactor.
pub(super) const AT_ONCE_MAX: u16 = 128;

/// Whether a PDU is a command for which [`Reactor::end_at_once`] is there; most others are told so here.
pub(super) fn is_short_command(bhs: &Bhs) -> bool {
    let expected = u32::from_be_bytes([bhs[20], bhs[21], bhs[22], bhs[23]]);
    bhs[0] == Opcode::ScsiCommand as u8 && (1..AT_ONCE_BYTES_MAX).contains(&expected)
}

impl Reactor {
    /// Carries out a [short command](is_short_command) that has come whole, with all its data, and answers it. False: it goes the way of all others; nothing was
    /// done for it.
    pub(super) fn end_at_once(
        &mut self,
        (connection, index, cid): (usize, usize, Cid),
        (bhs, pdu): (&Bhs, &ScsiCommand),
        data: &[u8],
    ) -> bool {
        // What came earlier is done earlier.
        if self.at_once_left == 0 || !self.outbox.events.is_empty() {
            return false;
        }
        // Its answer goes behind what the connection has, so what it is going to have comes first.
        self.queue_pdus(index);
        let Some(session) = self.sessions.get_mut(index) else { return false };
        let Some(connection) = self.connections.get_mut(connection) else { return false };
        let Some(attachment) = &session.attachment else { return false };
        // A data segment's length has 24 bits.
        if session.postponed > 0 || !session.core.takes_at_once(cid, pdu, data.len() as u32) {
            return false;
        }

        let terms = Terms {
            attribute: attribute(pdu.attribute),
            priority: session.core.priority_of(pdu),
            data_out_bytes: Some(data.len() as u32),
            key: store_tag(index, session.core.next_task()),
        };
        let lun = Lun::from_bytes(pdu.lun.0);
        let Some(command) = Unhindered::begin(&attachment.nexus, lun, &pdu.cdb, &terms) else { return false };
        let Some(volume) = attachment.target.volumes.get(command.unit_index()) else { return false };
        let (length, expected) = (command.length_bytes(), pdu.expected_data_transfer_length);
        // A CDB may ask for more than its initiator expects.
        let is_plain = length < AT_ONCE_BYTES_MAX
            && command.writes() == pdu.write
            && volume.stored_bytes(length.into()) == length.into()
            && volume.transfers_at_once();
        if !is_plain {
            return false;
        }

        let mut watch = self.shared.recorder.as_ref().map(Watch::begin);
        if let Some(watch) = &mut watch {
            watch.enters_store();
        }
        // Commands that may follow this one.
        let others = (self.unparsed_bytes / BHS_LENGTH).min(usize::from(self.at_once_left) - 1);
        let mut place = None;
        let is_done = if pdu.write {
            data.len() == length as usize
                && volume.write_at_once(command.offset_bytes(), data, command.stable())
        } else {
            if session.core.sends_in_one(cid, length.min(expected)) {
                place = Place::new(connection, &session.pool, length as usize, others);
            }
            let room = place.as_mut().and_then(|place| place.room(connection, length as usize));
            room.is_some_and(|room| volume.read_at_once(command.offset_bytes(), room))
        };
        if !is_done {
            return false;
        }
        let (naa, io) = (volume.identity().naa, watch.is_some().then(|| command.io()));
        let ended = command.end();
        if matches!(ended, Ended::Again) {
            return false;
        }
        if let (Some(watch), Some(io)) = (&mut watch, io) {
            watch.leaves_store(naa, &io);
        }
        if let Ended::Later(later) = ended {
            self.go_on_as_task((index, cid), (bhs, pdu), data.len() as u32, *later);
            return true;
        }

        if let Some(watch) = watch {
            let (isid, tsih) = (session.key.isid, session.place.tsih);
            watch.end(TaskName { isid, tsih, tag: pdu.initiator_task_tag });
        }
        self.at_once_left -= 1;
        let Some(bhs) = session.core.answer_at_once(self.now, cid, (bhs, pdu), length) else { return true };
        match place {
            Some(place) => place.close(connection, &bhs, length.min(expected) as usize),
            None if others > 0 => connection.push_header(&bhs, &session.pool),
            None => connection.transmitter.push(&bhs, session::Payload::None, connection.digests),
        }
        if !std::mem::replace(&mut connection.is_dirty, true) {
            self.dirty.push(connection.token.index);
        }
        connection.send_early(self.company.send_bytes_max());
        true
    }

    /// A write has been done, and something that has happened meanwhile holds its answer back.
    #[cold]
    fn go_on_as_task(
        &mut self,
        (index, cid): (usize, Cid),
        (bhs, pdu): (&Bhs, &ScsiCommand),
        data_length: u32,
        (command, next): (Task, Next),
    ) {
        let Some(session) = self.sessions.get_mut(index) else { return };
        let id = session.core.next_task();
        let taken = session.core.command(self.now, cid, (bhs, pdu, &[]), data_length, &mut self.outbox);
        let told = self.outbox.events.pop();
        debug_assert_eq!(
            (taken, told),
            (Some(id), Some(session::Event::Execute(id))),
            "the session allowed it"
        );
        session.attach(id, None, false);
        self.time_task(index, id);
        let context = self.sessions.get_mut(index).and_then(|session| session.context(id));
        if let Some(context) = context {
            context.command = Some(command);
            (context.out_length, context.out_present) = (data_length, data_length);
        }
        self.drive(index, id, next);
    }
}

/// Where the answer of a read is made ready: in the strip that ends what the connection has to send, or in a new one.
struct Place {
    new: Option<Strip>,
}

impl Place {
    /// `None` where there is no memory, and where a new strip would wait for the peer: it is kept until all of it is sent.
    fn new(connection: &Connection, pool: &BufferPool, length: usize, others: usize) -> Option<Self> {
        if connection.transmitter.has_room(length, connection.digests) {
            return Some(Self { new: None });
        }
        if connection.transmitter.is_blocked() {
            return None;
        }
        Some(Self { new: Some(Strip::new(pool, length, others + 1, connection.digests)?) })
    }

    fn room<'a>(&'a mut self, connection: &'a mut Connection, length: usize) -> Option<&'a mut [u8]> {
        match &mut self.new {
            Some(strip) => strip.room(length, connection.digests),
            None => connection.transmitter.room(length, connection.digests),
        }
    }

    fn close(self, connection: &mut Connection, bhs: &Bhs, length: usize) {
        match self.new {
            Some(mut strip) => {
                strip.close(bhs, length, connection.digests);
                connection.transmitter.push_strip(strip);
            }
            None => connection.transmitter.close(bhs, length, connection.digests),
        }
    }
}
