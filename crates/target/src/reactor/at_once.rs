//! Short reads and writes that need not wait for anything: carried out and answered as soon as their PDU has come.
//!
//! The device server has its say in them as in all others. What is left out is what a command needs that outlives its
//! PDU: a task of the session, a context, the way through an engine (docs/decisions/0041). A command that turns out to be of
//! another kind goes the way of all from where it is: see `commands`.

use lunette_block::Volume;
use lunette_iscsi::session::{self, TaskId, Transfer};
use lunette_scsi::{Completion, DataIn, Event, Io, IoOutcome, Lun, Next, Status, Task, Terms};
use lunette_wire::initiator::ScsiCommand;
use lunette_wire::{Bhs, Cid};

use super::Reactor;
use super::commands::store_tag;
use super::events::PDUS_GATHERED_MAX;
use super::session::{Medium, Segment, TargetSession};
use super::waiting::attribute;
use crate::task_times::{TaskName, Watch};

/// Longer transfers take the long way: beside their bytes a task costs nothing, and reads are sent from the page cache there
/// (docs/decisions/0011).
const AT_ONCE_BYTES_MAX: u32 = 32 << 10;

/// So many commands are ended at once from one read of a socket, the window's worth by default: those who keep to the window send no
/// more, and nobody else is to keep the reactor.
pub(super) const AT_ONCE_MAX: u16 = 128;

/// READ and WRITE with 6, 10, 12 and 16 bytes (SBC-3; those with 6 bytes SBC-2).
const OPERATIONS: [u8; 8] = [0x08, 0x28, 0xa8, 0x88, 0x0a, 0x2a, 0xaa, 0x8a];

/// A command of which the session knows nothing yet.
struct Begun {
    command: Task,
    next: Next,
    /// What it has read.
    medium: Option<Medium>,
    /// It was given its data.
    has_data: bool,
}

impl Reactor {
    /// Begins a command that has come whole, with all its data, and ends it if it can. False: nothing was done.
    pub(super) fn begin_at_once(
        &mut self,
        (index, cid): (usize, Cid),
        (bhs, pdu): (&Bhs, &ScsiCommand),
        data: &[u8],
    ) -> bool {
        let is_short = (1..AT_ONCE_BYTES_MAX).contains(&pdu.expected_data_transfer_length);
        // What came earlier is done earlier.
        if !is_short
            || !OPERATIONS.contains(&pdu.cdb[0])
            || !self.outbox.events.is_empty()
            || self.at_once_left == 0
        {
            return false;
        }
        let Some(session) = self.sessions.get_mut(index) else { return false };
        // A data segment's length has 24 bits.
        if session.postponed > 0 || !session.core.takes_at_once(cid, pdu, data.len() as u32) {
            return false;
        }
        let id = session.core.next_task();
        let mut watch = self.shared.recorder.as_ref().map(Watch::begin);
        let key = store_tag(index, id);
        let Some(mut begun) = session.begin(pdu, data, key, watch.as_mut()) else { return false };
        self.at_once_left -= 1;
        match begun.take_transfer(data.len()) {
            Some(transfer) => {
                if let Some(watch) = watch {
                    let (isid, tsih) = (session.key.isid, session.place.tsih);
                    watch.end(TaskName { isid, tsih, tag: pdu.initiator_task_tag });
                }
                session.core.answer_at_once(self.now, cid, (bhs, pdu), transfer, &mut self.outbox);
                if self.outbox.pdus.len() >= PDUS_GATHERED_MAX {
                    self.queue_pdus(index);
                }
            }
            None => self.go_on_as_task((index, cid, id), (bhs, pdu), data, begun),
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
        let is_starved = buffer.is_none() && !data.is_empty();
        let buffer = buffer.map(|mut buffer| {
            buffer[..data.len()].copy_from_slice(data);
            buffer
        });
        session.attach(id, buffer, is_starved);
        self.time_task(index, id);
        let Some(session) = self.sessions.get_mut(index) else { return };
        let Begun { command, next, medium, has_data } = begun;
        if let Some(context) = session.context(id) {
            context.command = Some(command);
            context.medium = medium;
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
                let data = Segment::Medium(self.medium.take()?);
                Some(Transfer::In { data, length: *length_bytes })
            }
            DataIn::None if self.has_data => Some(Transfer::Out { length: data_length as u64 }),
            _ => None,
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
        let mut medium = None;
        let volume = command.unit_index().and_then(|unit| attachment.target.volumes.get(unit));
        if let (Next::Io(io), Some(volume)) = (&next, volume) {
            if let Some(watch) = &mut watch {
                watch.enters_store();
            }
            let is_done = self.transfer_at_once(volume, io, data, &mut medium);
            if let Some(watch) = watch {
                watch.leaves_store(volume.identity().naa, io, is_done);
            }
            if is_done {
                let bytes = medium.as_ref().map_or(&[][..], Medium::bytes);
                let event = Event::Io { result: Ok(IoOutcome::Done), data_out: data, medium: bytes };
                next = command.resume(nexus, event);
            }
        }
        Some(Begun { command, next, medium, has_data })
    }

    /// Does what a command asks for if that is a read into `medium`, or a write of `data`, which waits for nothing. False: it
    /// is still to be done.
    fn transfer_at_once(&self, volume: &Volume, io: &Io, data: &[u8], medium: &mut Option<Medium>) -> bool {
        // A CDB may ask for more than its initiator expects.
        let is_plain = |length_bytes: u32| {
            length_bytes < AT_ONCE_BYTES_MAX
                && volume.stored_bytes(length_bytes.into()) == length_bytes.into()
                && volume.transfers_at_once()
        };
        match *io {
            Io::Read { offset_bytes, length_bytes, .. } if is_plain(length_bytes) => {
                let Some(mut buffer) = self.pool.allocate(length_bytes as usize) else { return false };
                let is_read = volume.read_at_once(offset_bytes, &mut buffer);
                *medium = is_read.then_some(Medium::Read(buffer));
                is_read
            }
            Io::WriteDataOut { offset_bytes, start, length_bytes, stable } if is_plain(length_bytes) => {
                let range = start as usize..start as usize + length_bytes as usize;
                data.get(range).is_some_and(|bytes| volume.write_at_once(offset_bytes, bytes, stable))
            }
            _ => false,
        }
    }
}
