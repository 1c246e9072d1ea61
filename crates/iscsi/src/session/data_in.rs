//! Ends of commands (RFC 7143, 11.4, 11.7): Data-In with phase-collapsed status, responses, residuals.

use lunette_wire::target::{Numbers, Residual, ScsiDataIn, ScsiResponse};
use lunette_wire::{Cid, InitiatorTaskTag, LunField, TargetTransferTag};

use super::fence::Holder;
use super::segments::{Mark, Segment};
use super::task::{HeldOutcome, Phase, Task, TaskId};
use super::{Event, Outbox, Outgoing, Payload, Session, Share};

/// SAM status codes that the transport itself needs.
pub(super) const GOOD: u8 = 0x00;
pub(super) const TASK_ABORTED: u8 = 0x40;
/// Response code "target failure": the command has no SCSI status (11.4.3). Not used here: all tasks get a status.
pub(super) const COMPLETED_AT_TARGET: u8 = 0x00;

/// What a command moved.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Transfer<D> {
    /// Nothing.
    None,
    /// Data for the initiator.
    In {
        /// The driver's buffer; the data starts at its first byte.
        data: D,
        /// Bytes that the command brings, whether the initiator expects them or not.
        length: u32,
    },
    /// Data both ways (11.3.4, bidirectional).
    Both {
        /// The driver's buffer, as of [`Self::In`].
        data: D,
        /// Bytes that the command brings.
        length_in: u32,
        /// Bytes that it calls for.
        length_out: u64,
    },
    /// Data from the initiator.
    Out {
        /// Bytes that the command calls for, whether the initiator has them or not.
        length: u64,
    },
}

/// How a command ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Completion<'a, D> {
    /// SAM status code.
    pub status: u8,
    /// Status qualifier (SAM-5); sent at iSCSIProtocolLevel 2 and above.
    pub status_qualifier: u16,
    /// Sense data, empty without any; at most 252 bytes are sent (SPC's bound).
    pub sense: &'a [u8],
    /// What it moved. Data-In is only sent with status GOOD.
    pub transfer: Transfer<D>,
    /// The response needs a fence (4.2.2.3.4): on a session of several connections nothing overtakes it, nor it anything.
    pub fenced: bool,
}

impl<D> Completion<'_, D> {
    /// A status alone.
    #[must_use]
    pub const fn status(status: u8) -> Self {
        Self { status, status_qualifier: 0, sense: &[], transfer: Transfer::None, fenced: false }
    }
}

/// Bytes of sense data that go into a response.
const SENSE_LENGTH_MAX: usize = 252;

impl<D: Share> Session<D> {
    /// Ends a task that the driver was working on. An aborted task ends without an answer, or with that of its abort.
    pub fn complete(&mut self, id: TaskId, completion: Completion<'_, D>, outbox: &mut Outbox<D>) {
        let Some(task) = self.tasks.get_mut(id) else { return };
        let mut completion = completion;
        if task.aborted {
            if self.closing || !task.abort_is_answered {
                return self.finish_aborted(id, outbox);
            }
            completion = Completion::status(TASK_ABORTED);
        }
        if self.fence.is_up() && task.is_quiet() {
            return self.keep_behind_fence(id, completion, outbox);
        }
        let moved_out = match completion.transfer {
            Transfer::In { data, length } if completion.status == GOOD && task.is_quiet() => {
                return self.finish_with_data(id, (data, length), 0, outbox);
            }
            Transfer::Both { data, length_in, length_out }
                if completion.status == GOOD && task.is_quiet() =>
            {
                return self.finish_with_data(id, (data, length_in), length_out, outbox);
            }
            Transfer::Out { length } | Transfer::Both { length_out: length, .. } => length,
            Transfer::In { .. } | Transfer::None => 0,
        };
        task.held = Some(HeldOutcome {
            status: completion.status,
            status_qualifier: completion.status_qualifier,
            sense: completion.sense[..completion.sense.len().min(SENSE_LENGTH_MAX)].to_vec(),
            moved_out,
            moved_in: 0,
            fenced: completion.fenced,
        });
        task.phase = Phase::Held;
        if task.is_quiet() {
            self.finish_held(id, outbox);
        }
    }

    /// Sends Data-In PDUs of at most the initiator's segment length, each burst closed by an F bit, the last with
    /// the status (11.7.3).
    fn finish_with_data(
        &mut self,
        id: TaskId,
        (data, length): (D, u32),
        moved_out: u64,
        outbox: &mut Outbox<D>,
    ) {
        let Some(task) = self.forget(id) else { return };
        let sent = length.min(task.expected_in());
        if sent == 0 {
            let outcome = HeldOutcome { moved_out, moved_in: length.into(), ..HeldOutcome::default() };
            self.respond(&task, outcome, outbox);
            return self.settle(outbox);
        }
        let (residual, bidirectional_read_residual) = task.residuals(moved_out, length.into());
        if self.recovers() {
            let response = ScsiResponse {
                residual,
                bidirectional_read_residual,
                status: GOOD,
                ..ScsiResponse::default()
            };
            self.conclude(&task, response, Vec::new(), Some((data, sent)), outbox);
            return self.settle(outbox);
        }
        let Some(cid) = task.allegiance.cid() else { return self.settle(outbox) };
        if task.is_bidirectional() {
            return self.finish_both_ways(&task, cid, (data, length, moved_out), outbox);
        }
        self.send_with_status(cid, task.command.initiator_task_tag, (data, sent), residual, outbox);
        self.settle(outbox);
    }

    /// Sends `length` bytes, at least one, as Data-In PDUs, the last with GOOD; nothing when the connection is gone.
    pub(super) fn send_with_status(
        &mut self,
        cid: Cid,
        initiator_task_tag: InitiatorTaskTag,
        (mut data, length): (D, u32),
        residual: Residual,
        outbox: &mut Outbox<D>,
    ) {
        let cut = self.cut(Some(cid), length);
        let Some(mut numbers) = self.status_numbers(cid) else { return };
        let stat_sn = numbers.stat_sn;
        numbers.stat_sn = lunette_wire::StatSn(0);
        let mut at = Mark::default();
        loop {
            let Segment { length, ends_burst, is_last } = cut.segment(at);
            if is_last {
                numbers.stat_sn = stat_sn;
            }
            let pdu = ScsiDataIn {
                is_final: ends_burst,
                acknowledge: false,
                status: is_last.then_some(GOOD),
                residual: if is_last { residual } else { Residual::None },
                lun: LunField::default(),
                initiator_task_tag,
                target_transfer_tag: TargetTransferTag::RESERVED,
                numbers,
                data_sn: at.data_sn,
                buffer_offset: at.offset,
            };
            let bhs = pdu.encode(length as usize);
            if is_last {
                let payload = Payload::Buffer { data, start: at.offset, length };
                outbox.pdus.push(Outgoing { cid, bhs, payload });
                return;
            }
            let payload = Payload::Buffer { data: data.share(), start: at.offset, length };
            outbox.pdus.push(Outgoing { cid, bhs, payload });
            at = at.behind(length);
        }
    }

    /// Sends the data of a bidirectional command, and then its response (11.7.3). Its Data-In PDUs count on from its R2Ts
    /// (4.2.2.4).
    #[cold]
    fn finish_both_ways(
        &mut self,
        task: &Task,
        cid: Cid,
        (mut data, length, moved_out): (D, u32, u64),
        outbox: &mut Outbox<D>,
    ) {
        let cut = self.cut(Some(cid), length.min(task.expected_in()));
        let Some(numbers) = self.peek_numbers(cid) else { return self.settle(outbox) };
        let numbers = Numbers { stat_sn: lunette_wire::StatSn(0), ..numbers };
        let mut at = Mark { data_sn: task.sent_data_sn, offset: 0 };
        while at.offset < cut.total {
            let Segment { length, ends_burst, .. } = cut.segment(at);
            let pdu = ScsiDataIn {
                is_final: ends_burst,
                initiator_task_tag: task.command.initiator_task_tag,
                target_transfer_tag: TargetTransferTag::RESERVED,
                numbers,
                data_sn: at.data_sn,
                buffer_offset: at.offset,
                ..ScsiDataIn::default()
            };
            let payload = Payload::Buffer { data: data.share(), start: at.offset, length };
            outbox.pdus.push(Outgoing { cid, bhs: pdu.encode(length as usize), payload });
            at = at.behind(length);
        }
        let (residual, bidirectional_read_residual) = task.residuals(moved_out, length.into());
        let response = ScsiResponse {
            residual,
            bidirectional_read_residual,
            initiator_task_tag: task.command.initiator_task_tag,
            exp_data_sn: at.data_sn,
            ..ScsiResponse::default()
        };
        self.send_status(cid, Vec::new(), outbox, |numbers| ScsiResponse { numbers, ..response }.encode(0));
        self.settle(outbox);
    }

    /// Answers a task whose outcome was known earlier, now that all its data has come.
    pub(super) fn finish_held(&mut self, id: TaskId, outbox: &mut Outbox<D>) {
        let Some(task) = self.tasks.get(id) else { return };
        // What has not ended well keeps its status: its data was not looked at.
        if task.has_untold_fault() && task.held.as_ref().is_some_and(|held| held.status == GOOD) {
            return self.tell_fault(id, outbox);
        }
        // What ends while its connection is gone goes out later, if at all, and waits for nothing now.
        let cid = task.allegiance.cid().filter(|&cid| self.carries(cid));
        let fenced = cid.is_some() && task.held.as_ref().is_some_and(|held| held.fenced);
        let (holder, cid) = (Holder::Task(id), cid.unwrap_or_default());
        if (fenced || self.fence.is_up()) && !self.passes_fence((holder, cid), fenced, outbox) {
            return self.hold_back(id);
        }
        let Some(mut task) = self.forget(id) else { return };
        if let Some(held) = task.held.take() {
            self.respond(&task, held, outbox);
        }
        if fenced {
            self.fenced_response_sent(holder, cid, outbox);
        }
        self.settle(outbox);
    }

    /// Has the driver end a task that the transport has spoilt: what that does to other tasks is not the transport's affair.
    pub(super) fn tell_fault(&mut self, id: TaskId, outbox: &mut Outbox<D>) {
        if let Some(task) = self.tasks.get_mut(id)
            && let Some((asc, ascq)) = task.fault
        {
            task.fault_is_told = true;
            task.held = None;
            task.phase = Phase::Executing;
            outbox.event(Event::Spoilt { id, asc, ascq });
        }
    }

    /// Frees an aborted task once its store has let go of it.
    fn finish_aborted(&mut self, id: TaskId, outbox: &mut Outbox<D>) {
        let Some(task) = self.tasks.get_mut(id) else { return };
        let cid = task.allegiance.cid();
        // Data for it can only come on its own connection.
        let may_come = !self.closing && self.connections.iter().any(|of| Some(of.cid) == cid && of.is_open());
        if may_come && !task.is_quiet() {
            task.phase = Phase::Draining;
        } else {
            self.forget(id);
        }
        self.settle(outbox);
    }

    fn respond(&mut self, task: &Task, outcome: HeldOutcome, outbox: &mut Outbox<D>) {
        let HeldOutcome { status, status_qualifier, sense, moved_out, moved_in, .. } = outcome;
        let (residual, bidirectional_read_residual) = task.residuals(moved_out, moved_in);
        let segment = if sense.is_empty() {
            sense
        } else {
            // SenseLength (11.4.7), then the sense data; at most 252, so 16 bits hold it.
            [&(sense.len() as u16).to_be_bytes()[..], &sense].concat()
        };
        let response = ScsiResponse {
            residual,
            bidirectional_read_residual,
            response: COMPLETED_AT_TARGET,
            status,
            // Reserved below (RFC 7144).
            status_qualifier: if self.parameters.protocol_level >= 2 { status_qualifier } else { 0 },
            initiator_task_tag: task.command.initiator_task_tag,
            // Data-In of a command always carries its status, so a response follows none (11.4.8).
            ..ScsiResponse::default()
        };
        if self.recovers() {
            return self.conclude(task, response, segment, None, outbox);
        }
        let Some(cid) = task.allegiance.cid() else { return };
        let length = segment.len();
        self.send_status(cid, segment, outbox, |numbers| ScsiResponse { numbers, ..response }.encode(length));
    }

    /// Takes a task out of the table and gives its place in the window back.
    pub(super) fn forget(&mut self, id: TaskId) -> Option<Task> {
        let task = self.tasks.remove(id)?;
        if task.command.immediate {
            self.immediate_tasks -= 1;
        } else if task.phase != Phase::Parked {
            self.window.release();
            self.window_untold = true;
        }
        Some(task)
    }
}
