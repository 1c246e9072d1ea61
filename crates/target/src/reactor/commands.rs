//! Commands between the session core, the device server and the stores. How they end is in `ending`.
//!
//! The core says when a command's turn has come and when its data is there; the device server says what it needs
//! next; the store does it. Each function here carries one answer to the next of the three.

use std::sync::Arc;

use lunette_block::{
    Buffer, Done, ErrorClass, IoCompletion, Operation, StoreError, Volume, WriteBuffer, WriteSource,
};
use lunette_iscsi::session::TaskId;
use lunette_scsi::{Io, IoOutcome, Lun, Next, Status, Terms};

use super::Reactor;
use super::ending::hardware_error;
use super::events::PDUS_GATHERED_MAX;
use super::session::{Attachment, Medium, TaskContext};
use super::transmit::QUEUED_PDUS_MAX;
use super::waiting::attribute;
use crate::server::Shared;
use crate::store_io::{NoOperation, Stability, io_error, io_outcome, operation_of, stability};
use crate::task_times::Stage;

/// Reads from this length on, in segments from this length on, are sent from the page cache where that is possible: below it the system
/// calls cost more than the copy (docs/decisions/0011).
const CACHED_SEND_BYTES_MIN: u32 = 32 << 10;

/// Reads from this length on are sent from a store's memory, where a copy would cost more than slices of their own.
const LENT_BYTES_MIN: u32 = 4 << 10;

/// Reads from the first length on, in segments from the second one on, are digested as they are sent: below it short ones that share a
/// write cost less.
const DIGESTED_SEND_BYTES_MIN: (u32, u32) = (128 << 10, 64 << 10);

/// Steps that commands go on by in one turn: the write, flush or comparison that follows a read or write, and some more.
const STEPS_MAX: usize = 4;

/// Data segments of a connection.
struct Segments {
    bytes_max: u32,
    are_digested: bool,
}

impl Reactor {
    /// Lets the stores' results go through the device server until nothing more is finished at once. A command of many
    /// steps, each of which is done at once, is not to keep the reactor: what is left has to wait for another turn.
    pub(super) fn collect_completions(&mut self) {
        let mut finished = std::mem::take(&mut self.finished);
        self.is_collecting = true;
        for _ in 0..STEPS_MAX {
            // What is answered already, other sessions, and the rest of a queue do not wait for a disk.
            let is_alone = !self.company.is_shared() && self.vigil.is_shallow(self.pdus);
            self.io.set_may_wait(self.dirty.is_empty() && is_alone);
            self.io.complete(&mut finished);
            if finished.is_empty() {
                self.is_collecting = false;
                break;
            }
            for completion in finished.drain(..) {
                let index = session_of_tag(completion.tag);
                if self.to_run.is_some_and(|other| other != index) {
                    self.run_received();
                }
                self.to_run = Some(index);
                self.io_finished(index, completion);
                if self.outbox.pdus.len() >= PDUS_GATHERED_MAX {
                    self.queue_pdus(index);
                }
            }
            self.run_received();
        }
        self.finished = finished;
    }

    /// A command's turn in its session has come. A long read lets the short ones of other sessions go first, and nothing is begun whose
    /// answer its initiator does not take.
    pub(super) fn begin(&mut self, index: usize, id: TaskId) {
        let task = self.sessions.get(index).and_then(|session| session.core.task(id));
        let task = task.map_or((0, 0, None), |task| (task.expected_in, task.expected_out, task.cid));
        let (data_in, data_out, cid) = task;
        self.company.note_command(index, data_in.max(data_out) as usize);
        let is_put_off = self.company.is_long(data_in as usize) || self.is_kept_waiting(index, cid);
        match self.sessions.get_mut(index) {
            // The commands of one session keep their order.
            Some(session) if is_put_off || session.postponed > 0 => {
                session.postponed += 1;
                self.postponed.push_back((index, id));
            }
            _ => self.execute(index, id),
        }
    }

    fn data_in_bytes(&self, index: usize, id: TaskId) -> usize {
        let task = self.sessions.get(index).and_then(|session| session.core.task(id));
        task.map_or(0, |task| task.expected_in as usize)
    }

    /// Begins long reads that let others go first, as many as one turn takes, and whatever is behind them. A session stays in its place
    /// until the last of them has ended.
    pub(super) fn begin_postponed(&mut self) {
        while let Some(&(index, id)) = self.postponed.front() {
            if self.is_withheld(index, id) {
                self.postponed.pop_front();
                self.withhold(index, id);
                continue;
            }
            if !self.company.may_begin(self.data_in_bytes(index, id)) {
                return;
            }
            self.postponed.pop_front();
            if let Some(session) = self.sessions.get_mut(index) {
                session.postponed -= 1;
                // Those before it may have waited for it to look again.
                if !session.withheld.is_empty() {
                    self.relieved.push(index);
                }
            }
            self.execute(index, id);
            self.run_session(index);
        }
    }

    /// A command may be given to its device server.
    pub(super) fn execute(&mut self, index: usize, id: TaskId) {
        let Some(session) = self.sessions.get_mut(index) else { return };
        let (Some(view), Some(attachment)) = (session.core.task(id), &session.attachment) else {
            return session.detach(id);
        };
        let starved = session
            .contexts
            .get(id.slot())
            .and_then(Option::as_ref)
            .is_none_or(|context| context.id == id && context.is_starved);
        if starved && !view.aborted {
            return self.finish_dropped(index, id);
        }
        if view.aborted {
            // It must not reach its store, and nobody sees how it ends.
            return self.finish(index, id, &lunette_scsi::Completion::status(Status::TaskAborted));
        }
        let lun = Lun::from_bytes(view.lun.0);
        let terms = Terms {
            attribute: attribute(view.attribute),
            priority: view.priority,
            data_out_bytes: Some(view.expected_out),
            key: store_tag(index, id),
        };
        let (command, next) = if view.extended_cdb.is_empty() {
            lunette_scsi::Task::start_with(&attachment.nexus, lun, view.cdb, &terms)
        } else {
            let cdb = [&view.cdb[..], view.extended_cdb].concat();
            lunette_scsi::Task::start_with(&attachment.nexus, lun, &cdb, &terms)
        };
        if let Some(context) = session.context(id) {
            context.command = Some(command);
        }
        self.drive(index, id, next);
    }

    /// Does what the device server asks for.
    pub(super) fn drive(&mut self, index: usize, id: TaskId, next: Next) {
        match next {
            Next::DataOut { length_bytes } => self.collect_data_out(index, id, length_bytes),
            Next::Io(io) => self.submit(index, id, None, io),
            Next::IoOn { naa, io } => self.copy(index, id, naa, io),
            Next::Yield => self.yielded(index, id),
            Next::Wait => self.wait_for_turn(index, id),
            Next::Done(completion) => self.finish(index, id, &completion),
        }
    }

    /// All data of a command is there.
    pub(super) fn data_out_complete(&mut self, index: usize, id: TaskId) {
        let Some(session) = self.sessions.get_mut(index) else { return };
        session.data_came(id);
        // The initiator sends on while the store has this.
        self.ask_on(index);
        let Some(session) = self.sessions.get_mut(index) else { return };
        let Some(attachment) = &session.attachment else { return };
        let Some(context) = session.contexts.get_mut(id.slot()).and_then(Option::as_mut) else { return };
        if let Some(times) = &mut context.times {
            times.enter(self.started.elapsed(), Stage::Rest);
        }
        let Some(data) = present(context.data_out.as_ref(), context.out_present) else {
            return self.finish(index, id, &hardware_error());
        };
        let Some(command) = context.command.as_mut() else { return };
        let next = command.resume(&attachment.nexus, lunette_scsi::Event::DataOut(data));
        self.drive(index, id, next);
    }

    /// Answers a read without reading: from the page cache if it is long, or from where its store has it in memory, and where nobody has
    /// to look at the data. False: it must be read.
    fn answer_uncopied(&mut self, index: usize, id: TaskId, io: &Io) -> bool {
        let Io::Read { offset_bytes, length_bytes, inspected: false } = *io else { return false };
        // No read that is shorter is worth the questions.
        if length_bytes < LENT_BYTES_MIN {
            return false;
        }
        let Some(segments) = self.uncopied_segments(index, id) else { return false };
        let Some(session) = self.sessions.get_mut(index) else { return false };
        let Some(attachment) = &session.attachment else { return false };
        let Some(context) = session.contexts.get_mut(id.slot()).and_then(Option::as_mut) else {
            return false;
        };
        let Some(command) = context.command.as_mut() else { return false };
        let volume = command.unit_index().and_then(|unit| attachment.target.volumes.get(unit));
        let Some(volume) = volume else { return false };
        let is_lent = volume.lends();
        let (length_min, segment_min) = match (segments.are_digested, is_lent) {
            (true, _) => DIGESTED_SEND_BYTES_MIN,
            (false, false) => (CACHED_SEND_BYTES_MIN, CACHED_SEND_BYTES_MIN),
            // Of more there would be so many that the pool has to bound them.
            (false, true) => (LENT_BYTES_MIN, length_bytes.div_ceil(QUEUED_PDUS_MAX as u32)),
        };
        if length_bytes < length_min
            || segments.bytes_max < segment_min
            || !command.may_send_later(&attachment.nexus)
        {
            return false;
        }
        let medium = if is_lent {
            let range = volume.lendable(offset_bytes, length_bytes);
            range.map(|range| Medium::Lent { range, held: command.send_later(&attachment.nexus) })
        } else {
            let range = volume.cached(offset_bytes, length_bytes);
            range.map(|range| Medium::Cached { range, held: command.send_later(&attachment.nexus) })
        };
        if medium.is_none() {
            return false;
        }
        context.medium = medium;
        let event = lunette_scsi::Event::Io { result: Ok(IoOutcome::Done), data_out: &[], medium: &[] };
        let next = command.resume(&attachment.nexus, event);
        self.drive(index, id, next);
        true
    }

    /// The data segments of the connection to which a command's data may go as it lies in its store. `None` where that must not be: what
    /// is kept to be sent again must not change meanwhile (docs/decisions/0017), and answers that nobody takes must be bounded by the
    /// pool where their connection's queue is full.
    fn uncopied_segments(&self, index: usize, id: TaskId) -> Option<Segments> {
        let session = self.sessions.get(index)?;
        if session.core.parameters().error_recovery_level > 0 {
            return None;
        }
        let link = session.link(session.core.task(id)?.cid?)?;
        let connection = self.connections.get(link.token.index)?;
        (connection.token == link.token && !connection.transmitter.is_full()).then(|| Segments {
            bytes_max: session
                .core
                .max_send_data_segment_length(link.cid)
                .min(session.core.parameters().max_burst_length),
            are_digested: connection.digests.data,
        })
    }

    /// Hands an operation to the engine of the task's volume, or of the volume of unit `naa`.
    pub(super) fn submit(&mut self, index: usize, id: TaskId, naa: Option<u64>, io: Io) {
        if self.shared.recorder.is_some() {
            self.record(index, id, naa, &io);
        }
        if self.answer_uncopied(index, id, &io) {
            return;
        }
        let Some(session) = self.sessions.get_mut(index) else { return };
        let Some(attachment) = &session.attachment else { return };
        let Some(context) = session.contexts.get_mut(id.slot()).and_then(Option::as_mut) else { return };
        let Some(volume) = volume_of(&self.shared, attachment, context, naa) else {
            return self.finish(index, id, &hardware_error());
        };
        context.stability = stability(&io);
        let operation = match io {
            Io::Read { offset_bytes, length_bytes, .. } => {
                // What was read before has been looked at; its buffer may serve again.
                context.medium = None;
                // The longest transfer counts what is stored with the data.
                let length = volume.stored_bytes(length_bytes.into()) as usize;
                let offset = volume.stored_bytes(offset_bytes);
                session.pool.allocate(length).map(|buffer| Operation::Read { offset, buffer })
            }
            Io::WriteMedium { offset_bytes, length_bytes, stable } => {
                let range = 0..length_bytes as usize;
                let source = context.medium.take().and_then(Medium::into_buffer);
                source.map(|buffer| Operation::Write {
                    offset: volume.stored_bytes(offset_bytes),
                    buffer: WriteSource { buffer: buffer.into(), range },
                    stable,
                })
            }
            Io::WriteDataOut { offset_bytes, start, length_bytes, stable } => {
                let alone_count = context.command.as_ref().map(|task| task.alone_count(&attachment.nexus));
                if context.out_stored > 0 && alone_count != Some(context.alone_count) {
                    // Somebody came between its parts who was to be alone (docs/decisions/0047).
                    return self.refuse(index, id, Status::Busy);
                }
                let stored_bytes =
                    std::mem::take(&mut context.out_stored).saturating_sub(start).min(length_bytes);
                let range = (start + stored_bytes) as usize..(start + length_bytes) as usize;
                let offset = volume.stored_bytes(offset_bytes + u64::from(stored_bytes));
                let is_needed = context.command.as_ref().is_none_or(|task| task.needs_data_again());
                if !is_needed {
                    context.out_present = 0;
                }
                if range.is_empty() {
                    if !is_needed {
                        context.data_out = None;
                    }
                    let tag = store_tag(index, id);
                    if !stable && volume.fault().is_none() {
                        let result = Ok(Done::Nothing);
                        return self.io_finished(index, IoCompletion { tag, result, buffer: None });
                    }
                    let length = volume.stored_bytes(length_bytes.into());
                    let offset = volume.stored_bytes(offset_bytes);
                    context.enters_store(self.started);
                    return self.io.submit(volume, tag, Operation::Commit { offset, length });
                }
                // Nobody looks at the data of a plain write again; others may have its memory while it becomes stable.
                let source =
                    |buffer| if is_needed { WriteBuffer::Owned(buffer) } else { WriteBuffer::Given(buffer) };
                if self.company.wants_pieces(index, range.len())
                    && let Some(piece_bytes) = volume.copied_piece_bytes(range.len())
                    && range.len() > piece_bytes
                    && let Some(buffer) = context.data_out.take()
                {
                    context.enters_store(self.started);
                    let write = (offset, WriteSource { buffer: source(buffer), range });
                    return self.storing.push((volume, store_tag(index, id), piece_bytes), write, stable);
                }
                context.data_out.take().map(|buffer| Operation::Write {
                    offset,
                    buffer: WriteSource { buffer: source(buffer), range },
                    stable,
                })
            }
            Io::WriteAtomic { offset_bytes, length_bytes, stable } => {
                let range = 0..length_bytes as usize;
                context.data_out.take().map(|buffer| Operation::WriteAtomic {
                    offset: volume.stored_bytes(offset_bytes),
                    buffer: WriteSource { buffer: buffer.into(), range },
                    stable,
                })
            }
            Io::SaveState => return self.store_state(index, id, naa),
            Io::AbortTasks { nexuses, is_told } => return self.abort_by(index, id, nexuses, is_told),
            Io::Work { until_over } => return self.begin_work(index, id, until_over),
            io => match operation_of(volume, io, &session.pool) {
                Ok(operation) => Some(operation),
                Err(NoOperation::Memory) => None,
                Err(NoOperation::CommandBuffers) => return self.finish(index, id, &hardware_error()),
            },
        };
        match operation {
            Some(operation) => {
                context.has_copied |= naa.is_some() && !matches!(operation, Operation::Read { .. });
                context.enters_store(self.started);
                if std::mem::take(&mut context.is_missed) {
                    self.io.submit_missed(volume, store_tag(index, id), operation);
                } else {
                    self.io.submit(volume, store_tag(index, id), operation);
                }
            }
            None if context.has_copied => {
                let tag = store_tag(index, id);
                let source = std::io::ErrorKind::OutOfMemory.into();
                let error = StoreError::Io { kind: ErrorClass::Busy, offset: 0, source };
                self.io_finished(index, IoCompletion { tag, result: Err(error), buffer: None });
            }
            None => self.finish_starved(index, id),
        }
    }

    /// Has an operation recorded.
    #[cold]
    fn record(&mut self, index: usize, id: TaskId, naa: Option<u64>, io: &Io) {
        let Some(session) = self.sessions.get_mut(index) else { return };
        let context = session.contexts.get_mut(id.slot()).and_then(Option::as_mut);
        let (Some(attachment), Some(context)) = (&session.attachment, context) else { return };
        let naa = volume_of(&self.shared, attachment, context, naa).map(|volume| volume.identity().naa);
        if let (Some(recorder), Some(naa)) = (&self.shared.recorder, naa) {
            recorder.record(naa, io);
            if let Some(times) = &mut context.times {
                times.reaches(naa);
            }
        }
    }

    /// A store has finished an operation.
    pub(super) fn io_finished(&mut self, index: usize, completion: IoCompletion) {
        let slot = slot_of_tag(completion.tag);
        let Some(session) = self.sessions.get_mut(index) else { return };
        let Some(context) = session.contexts.get_mut(slot).and_then(Option::as_mut) else { return };
        context.in_store = false;
        if let Some(times) = &mut context.times {
            times.enter(self.started.elapsed(), Stage::Rest);
        }
        let copies_on = context.copies_on.take();
        let Stability { changes, settles } = std::mem::take(&mut context.stability);
        let attachment = session.attachment.as_ref().filter(|_| changes || settles);
        let volume = attachment.and_then(|of| volume_of(&self.shared, of, context, copies_on));
        let is_unstable = match &completion.result {
            Ok(_) if settles => Some(false),
            Ok(_) => changes.then_some(true),
            // Of what goes through the page cache a part may be there. Nothing else waits for a flush, and one that failed with a device
            // that is away for a while would end all writes.
            Err(_) => volume.filter(|volume| changes && volume.engine().uses_page_cache()).map(|_| true),
        };
        if let (Some(is_unstable), Some(volume)) = (is_unstable, volume) {
            if copies_on.is_none() && context.unstable_copies.is_empty() {
                context.is_unstable = is_unstable;
            } else {
                let volume = Arc::clone(volume);
                context.note_stability(volume, is_unstable, copies_on.is_some());
            }
        }
        let id = context.id;
        let is_aborted = session.core.task(id).is_none_or(|view| view.aborted);
        if is_aborted {
            return self.finish(index, id, &lunette_scsi::Completion::status(Status::TaskAborted));
        }
        // Short of memory or descriptors: the same command may succeed later. A copy says how far it has come, and is not begun anew.
        if !context.has_copied
            && completion.result.as_ref().is_err_and(|error| error.class() == ErrorClass::Busy)
        {
            return self.refuse(index, id, Status::Busy);
        }
        // A read gives its own buffer back, a write the one with the initiator's data.
        if let Some(buffer) = completion.buffer {
            let is_write = context.data_out.is_none() && context.out_length > 0;
            if is_write {
                context.data_out = Some(buffer);
            } else {
                context.medium = Some(Medium::Read(buffer));
            }
        }
        let Some(attachment) = &session.attachment else { return };
        let result = match completion.result {
            Ok(Done::Nothing) => Ok(IoOutcome::Done),
            result => {
                let Some(volume) = volume_of(&self.shared, attachment, context, copies_on) else { return };
                result.map(|done| io_outcome(volume, done)).map_err(|error| io_error(volume, &error))
            }
        };
        let Some(data_out) = present(context.data_out.as_ref(), context.out_present) else {
            return self.finish(index, id, &hardware_error());
        };
        let Some(command) = context.command.as_mut() else { return };
        let event = lunette_scsi::Event::Io {
            result,
            data_out,
            medium: context.medium.as_ref().map_or(&[], Medium::bytes),
        };
        let next = command.resume(&attachment.nexus, event);
        self.drive(index, id, next);
    }
}

/// The volume that a task's operation goes to: that of unit `naa`, or that of its own unit.
fn volume_of<'a>(
    shared: &'a Shared,
    attachment: &'a Attachment,
    context: &TaskContext,
    naa: Option<u64>,
) -> Option<&'a Arc<Volume>> {
    match naa {
        Some(naa) => shared.volumes.get(&naa),
        None => attachment.target.volumes.get(context.command.as_ref()?.unit_index()?),
    }
}

/// What is there of a command's data. `None`, which is a defect, where its buffer is gone: to go on with none would end a WRITE with GOOD.
pub(super) fn present(buffer: Option<&Buffer>, length: u32) -> Option<&[u8]> {
    if length == 0 { Some(&[]) } else { buffer?.get(..length as usize) }
}

/// A tag that finds the task again. A session stays in its place until its last task has left the stores.
pub(super) const fn store_tag(session: usize, id: TaskId) -> u64 {
    (session as u64) << 32 | id.slot() as u64
}

pub(super) const fn session_of_tag(tag: u64) -> usize {
    (tag >> 32) as usize
}

pub(super) const fn slot_of_tag(tag: u64) -> usize {
    (tag & 0xffff_ffff) as usize
}

#[cfg(test)]
mod tests {
    use super::*;
    use lunette_block::BufferPool;

    #[test]
    fn data_whose_buffer_is_gone_is_not_taken_for_none() {
        let buffer = BufferPool::new(1 << 20).allocate(512).expect("memory");
        assert_eq!(present(None, 0), Some(&[][..]), "none has come");
        assert_eq!(present(Some(&buffer), 512).map(<[u8]>::len), Some(512));
        assert_eq!(present(Some(&buffer), 513), None);
        assert_eq!(present(None, 512), None);
    }
}
