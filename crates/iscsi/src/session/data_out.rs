//! Data from the initiator (RFC 7143, 4.2.5.2, 11.7, 11.8): immediate, unsolicited, and solicited by R2T.
//!
//! With DataPDUInOrder=Yes each sequence fills its range from front to back; with No, which is for ErrorRecoveryLevel 0, its PDUs
//! fill it in any order. A command's ranges follow one another: DataSequenceInOrder=No would be ours to use. Above
//! ErrorRecoveryLevel 0 what a sequence has lost is asked for again when it is over, by a recovery R2T (7.8, 7.9); at level 0 the
//! command fails.

use std::time::Duration;

use lunette_wire::initiator::{ScsiCommand, ScsiDataOut};
use lunette_wire::target::{Numbers, ReadyToTransfer, RejectReason};
use lunette_wire::{Bhs, Cid, DataSn, TargetTransferTag};

use super::task::{OutstandingR2t, Phase, Task, TaskId, TaskRecovery, TransportFault};
use super::{Event, Outbox, Session, Share};

/// ABORTED COMMAND, WRITE ERROR - UNEXPECTED UNSOLICITED DATA (11.4.7.2).
const UNEXPECTED_UNSOLICITED_DATA: TransportFault = (0x0c, 0x0c);
/// ABORTED COMMAND, WRITE ERROR - NOT ENOUGH UNSOLICITED DATA (11.4.7.2, "incorrect amount of data").
const INCORRECT_AMOUNT_OF_DATA: TransportFault = (0x0c, 0x0d);
/// ABORTED COMMAND, PROTOCOL SERVICE CRC ERROR (11.4.7.2).
const PROTOCOL_SERVICE_CRC_ERROR: TransportFault = (0x47, 0x05);
/// ABORTED COMMAND, INTERNAL TARGET FAILURE (SPC-4).
const INTERNAL_TARGET_FAILURE: TransportFault = (0x44, 0x00);

/// How often data of one task is asked for again; then it fails, as at ErrorRecoveryLevel 0.
const LOSSES_MAX: u32 = 256;

/// How long an R2T may stay without an answer, above ErrorRecoveryLevel 0: then it, or what answered it, was lost (7.1.4.1).
const SEQUENCE_TIMEOUT: Duration = Duration::from_secs(30);

/// Where the data segment of a Data-Out PDU belongs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Placement {
    /// Into the task's buffer.
    Task {
        /// The task.
        id: TaskId,
        /// First byte, in bytes from the start of the buffer.
        offset: u32,
    },
    /// Nowhere: the task is gone or at fault. The bytes must be read all the same.
    Discard,
}

/// What a Data-Out PDU is, after its fields have been checked against the task.
enum Sequence {
    Unsolicited,
    Solicited(usize),
}

impl<D: Share> Session<D> {
    /// Says where the segment of `length` bytes of a Data-Out on connection `cid` belongs. Nothing changes until
    /// [`Self::data_out_arrived`] reports the whole PDU.
    #[must_use]
    pub fn locate_data_out(&self, cid: Cid, pdu: &ScsiDataOut, length: u32) -> Placement {
        let Some(id) = self.tasks.find(pdu.initiator_task_tag) else { return Placement::Discard };
        let Some(task) = self.tasks.get(id) else { return Placement::Discard };
        let takes_data = matches!(task.phase, Phase::Executing | Phase::Collecting | Phase::Parked);
        if !task.is_of(cid)
            || !takes_data
            || task.aborted
            || task.fault.is_some()
            || self.check(id, task, pdu, length).is_err()
        {
            return Placement::Discard;
        }
        Placement::Task { id, offset: pdu.buffer_offset }
    }

    /// Counts a Data-Out whose segment of `length` bytes has been read completely.
    ///
    /// `intact` is false when its data digest was wrong; the segment is then as good as lost (7.8).
    pub fn data_out_arrived(
        &mut self,
        now: Duration,
        cid: Cid,
        (bhs, pdu): (&Bhs, &ScsiDataOut),
        length: u32,
        intact: bool,
        outbox: &mut Outbox<D>,
    ) {
        if self.heard(now, cid, bhs, outbox).is_none() {
            return;
        }
        if !intact {
            self.reject(cid, bhs, RejectReason::DataDigestError, outbox);
        }
        // Data for a task that has ended is thrown away: its answer and this PDU have crossed.
        let Some(id) = self.tasks.find(pdu.initiator_task_tag) else { return };
        let Some(task) = self.tasks.get(id) else { return };
        if !task.is_of(cid) {
            // A command's data comes on its own connection (4.2.5.1); this is none of the task's, and does not harm it.
            if self.is_terminated(cid, pdu) {
                return;
            }
            return self.reject(cid, bhs, RejectReason::ProtocolError, outbox);
        }
        let sequence = match self.check(id, task, pdu, length) {
            Ok(sequence) => sequence,
            Err(_) if self.is_terminated(cid, pdu) => return,
            Err((reason, fault)) => {
                let is_late = self.recovers() && !task.has_sequence(pdu.target_transfer_tag);
                self.reject(cid, bhs, reason, outbox);
                // What was given up and asked for again may come after all.
                if !is_late {
                    self.lost(id, pdu, fault, outbox);
                }
                return;
            }
        };
        let recovers = self.recovers();
        if !intact && !recovers {
            self.fail(id, PROTOCOL_SERVICE_CRC_ERROR);
        }
        let Some(task) = self.tasks.get_mut(id) else { return };
        let end = pdu.buffer_offset + length;
        let expected = match sequence {
            Sequence::Unsolicited => task.received,
            Sequence::Solicited(index) => task.r2ts[index].next_offset,
        };
        if !self.parameters.data_pdu_in_order
            && task.fault.is_none()
            && !task.takes_in_any_order((pdu.buffer_offset, end), expected)
        {
            task.fault = Some(INCORRECT_AMOUNT_OF_DATA);
        }
        if recovers {
            task.lose(expected, if intact { pdu.buffer_offset } else { end });
            if !intact || expected < pdu.buffer_offset {
                task.count_loss();
            }
        }
        task.received = task.received.max(end);
        match sequence {
            Sequence::Unsolicited => {
                task.unsolicited_data_sn = pdu.data_sn.next();
                if pdu.is_final {
                    task.unsolicited_open = false;
                    let first_burst = self.parameters.first_burst_length;
                    let is_short = task.expected_out() > first_burst && task.received != first_burst;
                    if is_short || task.gaps.close(0, task.received) {
                        task.fault.get_or_insert(INCORRECT_AMOUNT_OF_DATA);
                    }
                }
            }
            Sequence::Solicited(index) => {
                let r2t = &mut task.r2ts[index];
                r2t.next_offset = end.max(expected);
                r2t.next_data_sn = pdu.data_sn.next();
                r2t.due = None;
                if pdu.is_final {
                    let is_short = r2t.next_offset != r2t.end_offset;
                    if is_short || task.gaps.close(r2t.start_offset, r2t.end_offset) {
                        task.fault.get_or_insert(INCORRECT_AMOUNT_OF_DATA);
                    }
                    task.r2ts.remove(index);
                }
            }
        }
        self.advance(id, outbox);
    }

    /// The driver had no room for data that [`Self::locate_data_out`] has placed: its task must not end well without it.
    pub fn data_out_lost(&mut self, id: TaskId) {
        self.fail(id, INTERNAL_TARGET_FAILURE);
    }

    /// Of the first `wanted` bytes of a command's data, those that come only when [they are asked for](Self::solicit).
    #[must_use]
    pub fn bytes_to_solicit(&self, id: TaskId, wanted: u32) -> u32 {
        let Some(task) = self.tasks.get(id) else { return 0 };
        let unasked = if task.unsolicited_open { self.parameters.first_burst_length } else { task.received };
        wanted.min(task.expected_out()).saturating_sub(unasked)
    }

    /// So many bytes of one command's data are asked for at a time: one burst for each R2T that may be outstanding (13.13, 13.17).
    #[must_use]
    pub const fn solicited_at_once(&self) -> u32 {
        self.parameters.max_burst_length.saturating_mul(self.parameters.max_outstanding_r2t as u32)
    }

    /// Asks for the first `wanted` bytes of the command's data; [`Event::DataOutComplete`] follows. The initiator
    /// may have less to send than that: the answer says how much will be there.
    pub fn solicit(&mut self, id: TaskId, wanted: u32, outbox: &mut Outbox<D>) -> u32 {
        let Some(task) = self.tasks.get_mut(id) else { return 0 };
        task.wanted = wanted.min(task.expected_out());
        let wanted = task.wanted;
        if !task.aborted {
            task.phase = Phase::Collecting;
            self.advance(id, outbox);
        }
        wanted
    }

    /// Moves a task on after data came in, or after it was asked to collect.
    pub(super) fn advance(&mut self, id: TaskId, outbox: &mut Outbox<D>) {
        let Some(task) = self.tasks.get_mut(id) else { return };
        match task.phase {
            Phase::Parked | Phase::Executing => {}
            Phase::Held if task.is_quiet() => self.finish_held(id, outbox),
            Phase::Draining if task.is_quiet() => {
                self.forget(id);
                self.settle(outbox);
            }
            Phase::Held | Phase::Draining => {}
            Phase::Collecting if task.unsolicited_open => {}
            Phase::Collecting if task.fault.is_some() => {
                if task.is_quiet() {
                    self.tell_fault(id, outbox);
                }
            }
            Phase::Collecting
                if task.received >= task.wanted && task.r2ts.is_empty() && !task.has_holes() =>
            {
                task.phase = Phase::Executing;
                outbox.event(Event::DataOutComplete(id));
            }
            Phase::Collecting => self.send_r2ts(id, outbox),
        }
    }

    /// Sends as many R2Ts as may be outstanding (13.17), each for at most MaxBurstLength (13.13).
    fn send_r2ts(&mut self, id: TaskId, outbox: &mut Outbox<D>) {
        let burst = self.parameters.max_burst_length;
        let outstanding_max = usize::from(self.parameters.max_outstanding_r2t);
        // A task that waits for a new allegiance asks when it has one.
        let Some(cid) = self.tasks.get(id).and_then(|task| task.allegiance.cid()) else { return };
        if !self.carries(cid) {
            return;
        }
        let Some(numbers) = self.peek_numbers(cid) else { return };
        let Some(task) = self.tasks.get_mut(id) else { return };
        task.next_r2t_offset = task.next_r2t_offset.max(task.received);
        while task.r2ts.len() < outstanding_max
            && let Some((offset, length)) = task.next_to_ask_for(burst)
        {
            let r2t = OutstandingR2t {
                tag: task.r2t_tag(),
                r2t_sn: task.sent_data_sn,
                start_offset: offset,
                next_offset: offset,
                end_offset: offset + length,
                next_data_sn: DataSn(0),
                due: None,
            };
            task.sent_data_sn = task.sent_data_sn.next();
            task.r2ts.push(r2t);
            outbox.send(cid, r2t_pdu(&task.command, &r2t, numbers).encode());
        }
    }

    /// Gives up R2Ts that have gone unanswered for long: they are sent anew, under the next number.
    pub(super) fn tick_sequences(&mut self, now: Duration, outbox: &mut Outbox<D>) {
        for id in self.tasks.ids(|task| task.phase == Phase::Collecting && !task.r2ts.is_empty()) {
            let Some(task) = self.tasks.get_mut(id) else { continue };
            let late: Vec<OutstandingR2t> = task
                .r2ts
                .extract_if(.., |r2t| now >= *r2t.due.get_or_insert(now + SEQUENCE_TIMEOUT))
                .collect();
            for r2t in &late {
                task.lose(r2t.next_offset, r2t.end_offset);
                task.count_loss();
            }
            if !late.is_empty() {
                self.advance(id, outbox);
            }
        }
    }

    /// Compares a PDU with what its task expects next.
    fn check(
        &self,
        id: TaskId,
        task: &Task,
        pdu: &ScsiDataOut,
        length: u32,
    ) -> Result<Sequence, (RejectReason, TransportFault)> {
        const MISPLACED: (RejectReason, TransportFault) =
            (RejectReason::InvalidPduField, INCORRECT_AMOUNT_OF_DATA);
        /// A number out of order means that a PDU before it was lost, as by a digest error (7.9).
        const PDU_MISSING: (RejectReason, TransportFault) =
            (RejectReason::InvalidPduField, PROTOCOL_SERVICE_CRC_ERROR);
        let end = pdu.buffer_offset.checked_add(length).ok_or(MISPLACED)?;
        // Above level 0 what is missing before this PDU is asked for again.
        let skips = |expected: DataSn, offset: u32| {
            self.recovers() && expected.precedes(pdu.data_sn) && pdu.buffer_offset >= offset
        };
        // Where PDUs may come in any order, each fills a place that is still free. Of a task that has failed nobody counts them any more.
        let fits = |offset: u32| {
            pdu.buffer_offset == offset
                || !self.parameters.data_pdu_in_order
                    && (pdu.buffer_offset > offset
                        || task.fault.is_some()
                        || task.gaps.contain(pdu.buffer_offset, end))
        };
        if pdu.target_transfer_tag == TargetTransferTag::RESERVED {
            let limit = task.expected_out().min(self.parameters.first_burst_length);
            return if !task.unsolicited_open {
                Err((RejectReason::ProtocolError, INCORRECT_AMOUNT_OF_DATA))
            } else if !self.is_first_unsolicited(id, task) {
                // Data of a command before it is missing, or comes later than it may (4.2.5.2).
                Err((RejectReason::ProtocolError, INCORRECT_AMOUNT_OF_DATA))
            } else if skips(task.unsolicited_data_sn, task.received) && end <= limit {
                Ok(Sequence::Unsolicited)
            } else if pdu.data_sn != task.unsolicited_data_sn {
                Err(PDU_MISSING)
            } else if fits(task.received) && end <= limit {
                Ok(Sequence::Unsolicited)
            } else {
                Err(MISPLACED)
            };
        }
        let index = task.r2ts.iter().position(|r2t| r2t.tag == pdu.target_transfer_tag).ok_or(MISPLACED)?;
        let r2t = &task.r2ts[index];
        if !(self.settings.same_unit)(pdu.lun, task.command.lun) {
            // With a transfer tag the LUN is the command's (4.2.5.3, 11.7.4).
            return Err((RejectReason::ProtocolError, INCORRECT_AMOUNT_OF_DATA));
        }
        if skips(r2t.next_data_sn, r2t.next_offset) && end <= r2t.end_offset {
            Ok(Sequence::Solicited(index))
        } else if pdu.data_sn != r2t.next_data_sn {
            Err(PDU_MISSING)
        } else if fits(r2t.next_offset) && pdu.buffer_offset >= r2t.start_offset && end <= r2t.end_offset {
            Ok(Sequence::Solicited(index))
        } else {
            Err(MISPLACED)
        }
    }

    /// Whether no command before it on its connection still has unsolicited data to come: data comes in the order of the
    /// commands (4.2.5.2). What was aborted does not count: Linux sends nothing more for it.
    fn is_first_unsolicited(&self, id: TaskId, task: &Task) -> bool {
        let Some(connection) = self.connections.iter().find(|connection| task.is_of(connection.cid)) else {
            return false;
        };
        if !self.awaits_unsolicited(id) {
            // What was aborted is waited for by no other, and its data may still be on the way (4.2.3.3, 11.6).
            return true;
        }
        let mut expected = connection.unsolicited.iter().filter(|&&of| self.awaits_unsolicited(of));
        expected.next() == Some(&id)
    }

    fn awaits_unsolicited(&self, id: TaskId) -> bool {
        let awaits = |task: &Task| task.unsolicited_open && !task.aborted && task.phase != Phase::Draining;
        self.tasks.get(id).is_some_and(awaits)
    }

    /// Notes that unsolicited data follows a command, behind that of the commands before it.
    pub(super) fn expect_unsolicited(&mut self, id: TaskId, cid: Cid) {
        let Some(connection) = self.connection_mut(cid) else { return };
        let mut expected = std::mem::take(&mut connection.unsolicited);
        expected.retain(|&of| self.awaits_unsolicited(of));
        expected.push_back(id);
        if let Some(connection) = self.connection_mut(cid) {
            connection.unsolicited = expected;
        }
    }

    /// A PDU of this task could not be used: the task fails, and its sequences end with their F bits all the same.
    fn lost(&mut self, id: TaskId, pdu: &ScsiDataOut, fault: TransportFault, outbox: &mut Outbox<D>) {
        self.fail(id, fault);
        if let Some(task) = self.tasks.get_mut(id)
            && pdu.is_final
        {
            if pdu.target_transfer_tag == TargetTransferTag::RESERVED {
                task.unsolicited_open = false;
            } else {
                task.r2ts.retain(|r2t| r2t.tag != pdu.target_transfer_tag);
            }
        }
        self.advance(id, outbox);
    }

    pub(super) fn fail(&mut self, id: TaskId, fault: TransportFault) {
        if let Some(task) = self.tasks.get_mut(id) {
            task.fault.get_or_insert(fault);
        }
    }

    /// The fault of a command that brings or announces unsolicited data which was not agreed on (13.10, 13.11).
    pub(super) fn unsolicited_fault(&self, pdu: &ScsiCommand, immediate_data: u32) -> Option<TransportFault> {
        let immediate_refused = immediate_data > 0 && !self.parameters.immediate_data;
        let unsolicited_refused = pdu.write && !pdu.is_final && self.parameters.initial_r2t;
        (immediate_refused || unsolicited_refused).then_some(UNEXPECTED_UNSOLICITED_DATA)
    }
}

/// An R2T as it goes out, the first time and again.
pub(super) fn r2t_pdu(command: &ScsiCommand, r2t: &OutstandingR2t, numbers: Numbers) -> ReadyToTransfer {
    ReadyToTransfer {
        lun: command.lun,
        initiator_task_tag: command.initiator_task_tag,
        target_transfer_tag: r2t.tag,
        numbers,
        r2t_sn: r2t.r2t_sn,
        buffer_offset: r2t.start_offset,
        desired_length: r2t.end_offset - r2t.start_offset,
    }
}

impl Task {
    /// A sequence with this tag is open.
    fn has_sequence(&self, tag: TargetTransferTag) -> bool {
        if tag == TargetTransferTag::RESERVED {
            self.unsolicited_open
        } else {
            self.r2ts.iter().any(|r2t| r2t.tag == tag)
        }
    }

    /// Data that is wanted was lost and has not been asked for again.
    fn has_holes(&self) -> bool {
        let is_wanted = |&(start, _): &(u32, u32)| start < self.wanted;
        self.recovery.as_ref().is_some_and(|recovery| recovery.holes.iter().any(is_wanted))
    }

    /// Counts a range that came where `expected` would have been next. False when it leaves too many gaps.
    fn takes_in_any_order(&mut self, (start, end): (u32, u32), expected: u32) -> bool {
        if start >= expected { self.gaps.pass_over(expected, start) } else { self.gaps.fill(start, end) }
    }

    fn count_loss(&mut self) {
        let losses = &mut self.recovery_mut().losses;
        *losses += 1;
        if *losses > LOSSES_MAX {
            self.fault.get_or_insert(PROTOCOL_SERVICE_CRC_ERROR);
        }
    }

    /// Offset and length of the next range to ask for, of at most `burst` bytes: first what was lost.
    fn next_to_ask_for(&mut self, burst: u32) -> Option<(u32, u32)> {
        let wanted = self.wanted;
        if let Some(TaskRecovery { holes, .. }) = self.recovery.as_deref_mut()
            && let Some(at) = holes.iter().position(|&(start, _)| start < wanted)
        {
            let (start, end) = holes[at];
            let length = (end.min(wanted) - start).min(burst);
            if start + length < end {
                holes[at].0 = start + length;
            } else {
                holes.remove(at);
            }
            return Some((start, length));
        }
        let offset = self.next_r2t_offset;
        let length = wanted.saturating_sub(offset).min(burst);
        self.next_r2t_offset = offset + length;
        (length > 0).then_some((offset, length))
    }
}
