//! Ends of commands above ErrorRecoveryLevel 0, sent for the first time and again (RFC 7143, 11.4, 11.7, 11.16): from the
//! same state, so that what goes out again is the same.

use lunette_wire::target::{Residual, ScsiDataIn, ScsiResponse};
use lunette_wire::{Cid, LunField, TargetTransferTag};

use super::super::segments::{Cut, Mark};
use super::super::task::Task;
use super::super::{Outbox, Outgoing, Payload, Session, Share};
use super::Logged;
use super::answers::{Answer, AnswerId, Answers, ReadData};

impl<D: Share> Session<D> {
    /// Keeps how a command has ended, and sends it unless its connection is gone. `read` is the data of a read that ended
    /// well, and how much of it the initiator takes; `sense` is the response's data segment.
    pub(in super::super) fn conclude(
        &mut self,
        task: &Task,
        response: ScsiResponse,
        sense: Vec<u8>,
        read: Option<(D, u32)>,
        outbox: &mut Outbox<D>,
    ) {
        let cid = task.allegiance.cid();
        let data = read.map(|(handle, total)| ReadData::new(handle, self.cut(cid, total), task.sent_data_sn));
        let answer = Answer {
            allegiance: task.allegiance,
            stat_sn: None,
            was_sent: false,
            lun: task.command.lun,
            response: ScsiResponse {
                initiator_task_tag: task.command.initiator_task_tag,
                snack_tag: task.recovery.as_ref().map_or(0, |recovery| recovery.snack_tag),
                ..response
            },
            sense,
            is_bidirectional: task.is_bidirectional(),
            data,
        };
        let id = self.recovery.answers.insert(answer);
        if cid.is_none() {
            self.forget_waiting_answers();
        }
        self.send_answer(id, outbox);
    }

    /// How so many bytes are cut for a connection as it is now.
    pub(in super::super) fn cut(&self, cid: Option<Cid>, total: u32) -> Cut {
        let segment_max = cid.map_or(super::super::DEFAULT_MAX_RECV_DATA_SEGMENT_LENGTH, |cid| {
            self.max_send_data_segment_length(cid)
        });
        Cut { total, segment_max: segment_max & !3, burst_max: self.parameters.max_burst_length }
    }

    /// Sends an answer on the connection that it belongs to, under a new status number.
    pub(super) fn send_answer(&mut self, id: AnswerId, outbox: &mut Outbox<D>) {
        let Some(cid) = self.recovery.answers.get(id).and_then(|answer| answer.allegiance.cid()) else {
            return;
        };
        // What ends on a connection that has failed waits for another one.
        if !self.carries(cid) {
            return;
        }
        let Some(numbers) = self.status_numbers(cid) else { return };
        self.log_status(cid, Logged::Answer(id));
        let Some(answer) = self.recovery.answers.get_mut(id) else { return };
        answer.stat_sn = Some(numbers.stat_sn);
        answer.was_sent = true;
        let mut is_complete = false;
        if let Some(data) = &mut answer.data {
            data.is_sent = true;
            let (from, count) = (data.from, data.cut.count(data.from));
            is_complete = answer.is_collapsed();
            self.send_data(id, from, count, outbox);
        }
        if !is_complete {
            self.send_response(id, outbox);
        }
        self.ask_for_acknowledgement(cid, outbox);
    }

    /// Sends `count` Data-In PDUs of an answer, from the one at `from`. Nothing where the data is gone.
    pub(super) fn send_data(&mut self, id: AnswerId, from: Mark, count: u32, outbox: &mut Outbox<D>) {
        let Some(cid) = self.recovery.answers.get(id).and_then(|answer| answer.allegiance.cid()) else {
            return;
        };
        let Some(mut numbers) = self.peek_numbers(cid) else { return };
        let Some(answer) = self.recovery.answers.get_mut(id) else { return };
        let is_collapsed = answer.is_collapsed();
        let Some(data) = &mut answer.data else { return };
        let Some(handle) = &mut data.handle else { return };
        let mut at = from;
        for _ in 0..count {
            let segment = data.cut.segment(at);
            let has_status = segment.is_last && is_collapsed;
            numbers.stat_sn = answer.stat_sn.filter(|_| has_status).unwrap_or_default();
            // Once every MaxBurstLength, and at the end where memory is dear (11.7.2).
            let asks = if segment.is_last { data.asks } else { segment.ends_burst };
            let pdu = ScsiDataIn {
                is_final: segment.ends_burst,
                acknowledge: asks,
                status: has_status.then_some(answer.response.status),
                residual: if has_status { answer.response.residual } else { Residual::None },
                lun: if asks { answer.lun } else { LunField::default() },
                initiator_task_tag: answer.response.initiator_task_tag,
                target_transfer_tag: if asks {
                    Answers::<D>::transfer_tag(id)
                } else {
                    TargetTransferTag::RESERVED
                },
                numbers,
                data_sn: at.data_sn,
                buffer_offset: at.offset,
            };
            let payload = Payload::Buffer { data: handle.share(), start: at.offset, length: segment.length };
            outbox.pdus.push(Outgoing { cid, bhs: pdu.encode(segment.length as usize), payload });
            at = at.behind(segment.length);
        }
    }

    /// Sends the SCSI Response of an answer under the number that it has.
    pub(super) fn send_response(&mut self, id: AnswerId, outbox: &mut Outbox<D>) {
        let Some(cid) = self.recovery.answers.get(id).and_then(|answer| answer.allegiance.cid()) else {
            return;
        };
        let Some(mut numbers) = self.peek_numbers(cid) else { return };
        let Some(answer) = self.recovery.answers.get(id) else { return };
        let Some(stat_sn) = answer.stat_sn else { return };
        numbers.stat_sn = stat_sn;
        let exp_data_sn = answer.data.as_ref().map(ReadData::end).unwrap_or_default();
        let response = ScsiResponse { numbers, exp_data_sn, ..answer.response };
        outbox.send_bytes(cid, response.encode(answer.sense.len()), answer.sense.clone());
    }
}
