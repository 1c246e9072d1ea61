//! Short reads and writes that need not wait for anything: carried out and answered as soon as their PDU has come.
//!
//! The device server has its say in them as in all others. What is left out is what a command needs that outlives its
//! PDU: a task of the session, a context, the way through an engine (docs/decisions/0041). A command that turns out to be of
//! another kind goes the way of all from where it is: see `commands`.

use lunette_block::{Buffer, BufferPool, Volume};
use lunette_iscsi::session::{self, Outgoing, Payload, TaskId, Transfer};
use lunette_scsi::{Completion, DataIn, Event, Io, IoOutcome, Lun, Next, Status, Task, Terms};
use lunette_wire::frame::Digests;
use lunette_wire::initiator::ScsiCommand;
use lunette_wire::{BHS_LENGTH, Bhs, Cid};

use super::Reactor;
use super::commands::store_tag;
use super::events::PDUS_GATHERED_MAX;
use super::session::{Medium, Segment, TargetSession};
use super::strip::Strip;
use super::transmit::Transmitter;
use super::waiting::attribute;
use crate::task_times::{TaskName, Watch};

/// Longer transfers take the long way: beside their bytes a task costs nothing, and reads are sent from the page cache there
/// (docs/decisions/0011).
const AT_ONCE_BYTES_MAX: u32 = 32 << 10;

/// So many commands are ended at once from one read of a socket, the window's worth by default: those who keep to the window send no
/// more, and nobody else is to keep the reactor.
pub(super) const AT_ONCE_MAX: u16 = 128;

/// READ and WRITE with 6, 10, 12 and 16 bytes (SBC-3; those with 6 bytes SBC-2).
const READS: [u8; 4] = [0x08, 0x28, 0xa8, 0x88];
const WRITES: [u8; 4] = [0x0a, 0x2a, 0xaa, 0x8a];

/// A command of which the session knows nothing yet.
struct Begun {
    command: Task,
    next: Next,
    brought: Brought,
    /// It was given its data.
    has_data: bool,
}

/// What a command has read.
enum Brought {
    Nothing,
    Buffer(Buffer),
    /// So many bytes, to where they are sent from.
    Placed(usize),
}

/// Where the answer of a read is made ready: in the strip that ends what the connection has to send, or in a new one.
struct Answer<'a> {
    transmitter: &'a mut Transmitter,
    digests: Digests,
    pool: &'a BufferPool,
    /// PDUs that may follow this one.
    may_follow: usize,
    new: Option<Strip>,
}

impl Answer<'_> {
    fn room(&mut self, length: usize) -> Option<&mut [u8]> {
        if self.new.is_none() && !self.transmitter.has_room(length, self.digests) {
            if self.may_follow == 0 || self.transmitter.is_blocked() {
                return None;
            }
            self.new = Strip::new(self.pool, length, self.may_follow + 1, self.digests);
            self.new.as_ref()?;
        }
        match &mut self.new {
            Some(strip) => strip.room(length, self.digests),
            None => self.transmitter.room(length, self.digests),
        }
    }

    fn close(self, bhs: &Bhs, length: usize) {
        match self.new {
            Some(mut strip) => {
                strip.close(bhs, length, self.digests);
                self.transmitter.push_strip(strip);
            }
            None => self.transmitter.close(bhs, length, self.digests),
        }
    }
}

impl Reactor {
    /// Begins a command that has come whole, with all its data, and ends it if it can. False: nothing was done for it.
    pub(super) fn begin_at_once(
        &mut self,
        (connection, index, cid): (usize, usize, Cid),
        (bhs, pdu): (&Bhs, &ScsiCommand),
        data: &[u8],
    ) -> bool {
        let length = pdu.expected_data_transfer_length;
        let is_short = (1..AT_ONCE_BYTES_MAX).contains(&length);
        // What came earlier is done earlier.
        if !is_short
            || !(if pdu.read { READS } else { WRITES }).contains(&pdu.cdb[0])
            || !self.outbox.events.is_empty()
            || self.at_once_left == 0
        {
            return false;
        }
        if pdu.read {
            // What a strip gets is behind what the connection has, and not behind what it is going to have.
            self.queue_pdus(index);
        }
        let Some(session) = self.sessions.get_mut(index) else { return false };
        // A data segment's length has 24 bits.
        if session.postponed > 0 || !session.core.takes_at_once(cid, pdu, data.len() as u32) {
            return false;
        }
        let id = session.core.next_task();
        let mut watch = self.shared.recorder.as_ref().map(Watch::begin);
        let key = store_tag(index, id);
        let Some(connection) = self.connections.get_mut(connection) else { return false };
        let is_placed = pdu.read && session.core.sends_in_one(cid, length);
        let mut answer = is_placed.then(|| Answer {
            transmitter: &mut connection.transmitter,
            digests: connection.digests,
            pool: &session.pool,
            may_follow: (self.unparsed_bytes / BHS_LENGTH).min(self.at_once_left.into()),
            new: None,
        });
        let Some(mut begun) = session.begin(pdu, data, key, answer.as_mut(), watch.as_mut()) else {
            return false;
        };
        self.at_once_left -= 1;
        let Some(transfer) = begun.take_transfer(data.len()) else {
            begun.keep_what_was_placed(answer);
            self.go_on_as_task((index, cid, id), (bhs, pdu), data, begun);
            return true;
        };
        if let Some(watch) = watch {
            let (isid, tsih) = (session.key.isid, session.place.tsih);
            watch.end(TaskName { isid, tsih, tag: pdu.initiator_task_tag });
        }
        session.core.answer_at_once(self.now, cid, (bhs, pdu), transfer, &mut self.outbox);
        if let Some(Outgoing {
            bhs, payload: Payload::Buffer { data: Segment::Placed, length, .. }, ..
        }) = self.outbox.pdus.last()
        {
            if let Some(answer) = answer {
                answer.close(bhs, *length as usize);
            }
            self.outbox.pdus.pop();
            if !std::mem::replace(&mut connection.is_dirty, true) {
                self.dirty.push(connection.token.index);
            }
            connection.send_early(self.company.send_bytes_max());
        } else if self.outbox.pdus.len() >= PDUS_GATHERED_MAX {
            self.queue_pdus(index);
        }
        true
    }

    /// A command that has begun has to wait for something, or has failed.
    #[cold]
    fn go_on_as_task(
        &mut self,
        (index, cid, id): (usize, Cid, TaskId),
        (bhs, pdu): (&Bhs, &ScsiCommand),
        data: &[u8],
        begun: Begun,
    ) {
        let buffer = if data.is_empty() { None } else { self.command_buffer(index, pdu, data.len()) };
        let Some(session) = self.sessions.get_mut(index) else { return };
        let length = data.len() as u32;
        let taken = session.core.command(self.now, cid, (bhs, pdu, &[]), length, &mut self.outbox);
        let told = self.outbox.events.pop();
        debug_assert_eq!(
            (taken, told),
            (Some(id), Some(session::Event::Execute(id))),
            "the session allowed it"
        );
        let is_starved =
            (buffer.is_none() && !data.is_empty()) || matches!(begun.brought, Brought::Placed(_));
        let buffer = buffer.map(|mut buffer| {
            buffer[..data.len()].copy_from_slice(data);
            buffer
        });
        session.attach(id, buffer, is_starved);
        self.time_task(index, id);
        let Some(session) = self.sessions.get_mut(index) else { return };
        let Begun { command, next, brought, has_data } = begun;
        if let Some(context) = session.context(id) {
            context.command = Some(command);
            context.medium = match brought {
                Brought::Buffer(buffer) => Some(Medium::Read(buffer)),
                Brought::Nothing | Brought::Placed(_) => None,
            };
            if has_data {
                (context.out_length, context.out_present) = (length, length);
            }
        }
        // How it ends is known, and must be told: it may have been a unit attention, or have established an allegiance.
        let needs_no_data = matches!(next, Next::Done(_) | Next::Io(Io::AbortTasks { .. }));
        if is_starved && !needs_no_data {
            return self.finish_starved(index, id);
        }
        self.drive(index, id, next);
    }
}

impl Begun {
    /// What a command has moved that has ended with GOOD; it is then not to be used any more.
    fn take_transfer(&mut self, data_length: usize) -> Option<Transfer<Segment>> {
        let Next::Done(Completion { status: Status::Good, data_in, .. }) = &self.next else { return None };
        match data_in {
            DataIn::Medium { length_bytes } => {
                let data = match std::mem::replace(&mut self.brought, Brought::Nothing) {
                    Brought::Nothing => return None,
                    Brought::Buffer(buffer) => Segment::Medium(Medium::Read(buffer)),
                    Brought::Placed(length) if length as u64 == u64::from(*length_bytes) => Segment::Placed,
                    Brought::Placed(_) => return None,
                };
                Some(Transfer::In { data, length: *length_bytes })
            }
            DataIn::None if self.has_data => Some(Transfer::Out { length: data_length as u64 }),
            _ => None,
        }
    }

    /// Others will come to the place of what was read. Where it stays there, there was no memory for it.
    #[cold]
    fn keep_what_was_placed(&mut self, answer: Option<Answer<'_>>) {
        if let Brought::Placed(length) = self.brought
            && let Some(mut answer) = answer
            && let Some(mut buffer) = answer.pool.allocate(length)
            && let Some(data) = answer.room(length)
        {
            buffer.copy_from_slice(data);
            self.brought = Brought::Buffer(buffer);
        }
    }
}

impl TargetSession {
    /// Takes a command as far as it goes without waiting.
    fn begin(
        &self,
        pdu: &ScsiCommand,
        data: &[u8],
        key: u64,
        answer: Option<&mut Answer<'_>>,
        mut watch: Option<&mut Watch<'_>>,
    ) -> Option<Begun> {
        let attachment = self.attachment.as_ref()?;
        let nexus = &attachment.nexus;
        let terms = Terms {
            attribute: attribute(pdu.attribute),
            priority: self.core.priority_of(pdu),
            data_out_bytes: Some(data.len() as u32),
            key,
        };
        let (mut command, mut next) = Task::start_with(nexus, Lun::from_bytes(pdu.lun.0), &pdu.cdb, &terms);
        let mut has_data = false;
        if let Next::DataOut { length_bytes } = next
            && length_bytes as usize == data.len()
        {
            has_data = true;
            next = command.resume(nexus, Event::DataOut(data));
        }
        let mut brought = Brought::Nothing;
        let volume = command.unit_index().and_then(|unit| attachment.target.volumes.get(unit));
        if let (Next::Io(io), Some(volume)) = (&next, volume) {
            if let Some(watch) = &mut watch {
                watch.enters_store();
            }
            let done = self.transfer_at_once(volume, io, data, answer);
            let is_done = done.is_some();
            if let Some(watch) = watch {
                watch.leaves_store(volume.identity().naa, io, is_done);
            }
            if let Some(done) = done {
                brought = done;
                let medium = match &brought {
                    Brought::Buffer(buffer) => &buffer[..],
                    Brought::Placed(_) | Brought::Nothing => &[],
                };
                let event = Event::Io { result: Ok(IoOutcome::Done), data_out: data, medium };
                next = command.resume(nexus, event);
            }
        }
        Some(Begun { command, next, brought, has_data })
    }

    /// Does what a command asks for if that is a read or a write of `data` which waits for nothing, and tells what was read. `None`: it
    /// is still to be done.
    fn transfer_at_once(
        &self,
        volume: &Volume,
        io: &Io,
        data: &[u8],
        answer: Option<&mut Answer<'_>>,
    ) -> Option<Brought> {
        // A CDB may ask for more than its initiator expects.
        let is_plain = |length_bytes: u32| {
            length_bytes < AT_ONCE_BYTES_MAX
                && volume.stored_bytes(length_bytes.into()) == length_bytes.into()
                && volume.transfers_at_once()
        };
        match *io {
            Io::Read { offset_bytes, length_bytes, inspected } if is_plain(length_bytes) => {
                let length = length_bytes as usize;
                if !inspected && let Some(place) = answer.and_then(|answer| answer.room(length)) {
                    return volume.read_at_once(offset_bytes, place).then_some(Brought::Placed(length));
                }
                let mut buffer = self.pool.allocate(length)?;
                volume.read_at_once(offset_bytes, &mut buffer).then_some(Brought::Buffer(buffer))
            }
            Io::WriteDataOut { offset_bytes, start, length_bytes, stable } if is_plain(length_bytes) => {
                let range = start as usize..start as usize + length_bytes as usize;
                let bytes = data.get(range)?;
                volume.write_at_once(offset_bytes, bytes, stable).then_some(Brought::Nothing)
            }
            _ => None,
        }
    }
}
