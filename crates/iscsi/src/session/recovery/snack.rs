//! SNACK (RFC 7143, 11.16): the initiator asks for what it has lost, or acknowledges what it has.

use std::ops::Range;
use std::time::Duration;

use lunette_wire::initiator::SnackRequest;
use lunette_wire::target::RejectReason;
use lunette_wire::{Bhs, Cid, DataSn, InitiatorTaskTag, StatSn};

use super::super::data_out::r2t_pdu;
use super::super::task::{Phase, TaskId, TransportFault};
use super::super::{CloseReason, Outbox, Session, Share};
use super::Logged;
use super::answers::{AnswerId, ReadData};

/// Types of SNACK (11.16.1).
const DATA_OR_R2T: u8 = 0;
const STATUS: u8 = 1;
const DATA_ACK: u8 = 2;
const R_DATA: u8 = 3;

/// ABORTED COMMAND, READ ERROR - SNACK REJECTED (11.4.7.2).
const SNACK_REJECTED: TransportFault = (0x11, 0x13);

/// PDUs that are sent again on one connection in a second; a request for more is rejected, unless it is the first. A SNACK
/// of 48 bytes can ask for 16 MiB: this is what an initiator can make of them, and far above what a link loses that is
/// of any use.
const RESENDS_PER_S_MAX: u32 = 16384;

/// Bytes that have to be copied to be sent again count as a PDU.
const COPIED_BYTES_PER_PDU: usize = 512;

/// Counts what is sent again on a connection.
#[derive(Debug, Clone, Copy, Default)]
pub(in super::super) struct Resends {
    since: Duration,
    count: u32,
}

impl Resends {
    /// Takes so many from what this second has left.
    fn take(&mut self, now: Duration, count: u32) -> Result<(), Refusal> {
        if now.saturating_sub(self.since) >= Duration::from_secs(1) {
            *self = Self { since: now, count: 0 };
        }
        if self.count > 0 && self.count.saturating_add(count) > RESENDS_PER_S_MAX {
            return Err(Refusal::new(RejectReason::SnackReject));
        }
        self.count = self.count.saturating_add(count);
        Ok(())
    }
}

/// Why a SNACK is rejected.
#[derive(Debug)]
struct Refusal {
    reason: RejectReason,
    /// The next DataSN or R2TSN of the task (11.17.2).
    data_sn: DataSn,
    /// The task that has no status yet, and ends for it (7.8).
    ends: Option<TaskId>,
}

impl Refusal {
    fn new(reason: RejectReason) -> Self {
        Self { reason, data_sn: DataSn(0), ends: None }
    }

    /// What is asked for was never sent, or is acknowledged.
    fn unknown(data_sn: DataSn) -> Self {
        Self { data_sn, ..Self::new(RejectReason::ProtocolError) }
    }
}

/// The run that a SNACK names among the numbers from `first` to before `end` (11.16.6, 11.16.7).
fn run(pdu: &SnackRequest, first: u32, end: u32) -> Result<Range<u32>, Refusal> {
    let kept = end.wrapping_sub(first);
    if pdu.begin_run == 0 && pdu.run_length == 0 {
        return Ok(0..kept);
    }
    let begin = pdu.begin_run.wrapping_sub(first);
    let length = if pdu.run_length == 0 { kept.saturating_sub(begin) } else { pdu.run_length };
    match begin.checked_add(length) {
        Some(until) if length > 0 && until <= kept => Ok(begin..until),
        _ => Err(Refusal::unknown(DataSn(end))),
    }
}

impl<D: Share> Session<D> {
    /// Serves one SNACK.
    pub(in super::super) fn snack(
        &mut self,
        now: Duration,
        cid: Cid,
        (bhs, pdu): (&Bhs, &SnackRequest),
        outbox: &mut Outbox<D>,
    ) {
        let outcome = match pdu.kind {
            // What is not agreed on is not kept.
            _ if !self.recovers() => Err(Refusal::new(RejectReason::SnackReject)),
            DATA_OR_R2T => self.resend_data_or_r2ts(now, cid, pdu, outbox),
            STATUS => self.resend_statuses(now, cid, pdu, outbox),
            DATA_ACK => self.acknowledge_data(cid, pdu),
            R_DATA => self.resegment(now, cid, pdu, outbox),
            other => {
                let reason = CloseReason::Format(format!("SNACK type {other}"));
                return self.close_connection(cid, reason, outbox);
            }
        };
        let Err(refusal) = outcome else { return };
        self.reject_about(cid, bhs, (refusal.reason, refusal.data_sn), outbox);
        if let Some(id) = refusal.ends {
            self.fail(id, SNACK_REJECTED);
            self.advance(id, outbox);
        }
    }

    fn take_resends(&mut self, now: Duration, cid: Cid, count: u32) -> Result<(), Refusal> {
        self.connection_mut(cid).map_or(Ok(()), |connection| connection.resends.take(now, count))
    }

    fn resend_data_or_r2ts(
        &mut self,
        now: Duration,
        cid: Cid,
        pdu: &SnackRequest,
        outbox: &mut Outbox<D>,
    ) -> Result<(), Refusal> {
        if let Some(id) = self.tasks.find(pdu.initiator_task_tag) {
            return self.resend_r2ts(now, cid, (id, pdu), outbox);
        }
        let nothing = || Refusal::unknown(DataSn(0));
        let id = self.recovery.answers.find_on(pdu.initiator_task_tag, cid).ok_or_else(nothing)?;
        let data = self.recovery.answers.get(id).and_then(|answer| answer.data.as_ref());
        let data = data.ok_or_else(nothing)?;
        let run = run(pdu, data.from.data_sn.0, data.end().0)?;
        if data.is_forgotten() {
            return Err(Refusal::new(RejectReason::SnackReject));
        }
        let (from, count) = (data.cut.after(data.from, run.start), run.end - run.start);
        self.take_resends(now, cid, count)?;
        self.send_data(id, from, count, outbox);
        Ok(())
    }

    /// R2Ts that are being answered, as they were first sent but for the numbers (11.16).
    fn resend_r2ts(
        &mut self,
        now: Duration,
        cid: Cid,
        (id, pdu): (TaskId, &SnackRequest),
        outbox: &mut Outbox<D>,
    ) -> Result<(), Refusal> {
        let task = self.tasks.get(id).filter(|task| task.is_of(cid));
        let task = task.ok_or_else(|| Refusal::unknown(DataSn(0)))?;
        // A read's data goes out with its status: before that there is none.
        let end = task.sent_data_sn;
        let first = task.r2ts.first().map_or(end, |r2t| r2t.r2t_sn);
        let run = run(pdu, first.0, end.0)?;
        let wanted: Vec<_> =
            task.r2ts.iter().filter(|r2t| run.contains(&r2t.r2t_sn.since(first))).copied().collect();
        if wanted.len() != run.len() {
            return Err(Refusal::unknown(end));
        }
        let command = task.command;
        self.take_resends(now, cid, wanted.len() as u32)
            .map_err(|refusal| Refusal { ends: Some(id), ..refusal })?;
        let Some(numbers) = self.peek_numbers(cid) else { return Ok(()) };
        for r2t in wanted {
            outbox.send(cid, r2t_pdu(&command, &r2t, numbers).encode());
        }
        Ok(())
    }

    fn resend_statuses(
        &mut self,
        now: Duration,
        cid: Cid,
        pdu: &SnackRequest,
        outbox: &mut Outbox<D>,
    ) -> Result<(), Refusal> {
        let Some(connection) = self.connection_mut(cid) else { return Ok(()) };
        let (acknowledged, kept) = (connection.acknowledged(), connection.log.first());
        let run = run(pdu, acknowledged.0, connection.peek_stat_sn().0)?;
        let forgotten = kept.since(acknowledged);
        // Text and the data of pings have no buffer that they could share.
        let sizes =
            || run.clone().filter_map(|at| connection.log.get(acknowledged.plus(at))).map(Logged::bytes);
        // What is longer than the initiator takes by now cannot be sent any more (13.12).
        let segment_max = connection.parameters.max_send_data_segment_length as usize;
        if run.start < forgotten && !run.is_empty() || sizes().any(|bytes| bytes > segment_max) {
            return Err(Refusal::new(RejectReason::SnackReject));
        }
        let bytes: usize = sizes().sum();
        let count = run.end - run.start + (bytes / COPIED_BYTES_PER_PDU) as u32;
        self.take_resends(now, cid, count)?;
        run.for_each(|at| self.resend_status(cid, acknowledged.plus(at), outbox));
        Ok(())
    }

    fn resend_status(&mut self, cid: Cid, stat_sn: StatSn, outbox: &mut Outbox<D>) {
        let Some(numbers) = self.peek_numbers(cid) else { return };
        let Some(connection) = self.connection_mut(cid) else { return };
        match connection.log.get(stat_sn) {
            Some(Logged::Pdu(bhs, data)) => {
                let mut bhs = **bhs;
                // ExpCmdSN and MaxCmdSN have the same places in all PDUs of a target (11.4 to 11.19).
                bhs[28..32].copy_from_slice(&numbers.exp_cmd_sn.0.to_be_bytes());
                bhs[32..36].copy_from_slice(&numbers.max_cmd_sn.0.to_be_bytes());
                outbox.send_bytes(cid, bhs, data.clone());
            }
            Some(&Logged::Answer(id)) => self.resend_answer_status(id, outbox),
            None => {}
        }
    }

    /// The PDU that had the status; a SCSI Response stands in for a Data-In whose data is gone, or that is longer than the
    /// initiator takes by now (13.12): its data is for R-Data to ask (11.16.3).
    fn resend_answer_status(&mut self, id: AnswerId, outbox: &mut Outbox<D>) {
        let Some(answer) = self.recovery.answers.get(id) else { return };
        let data = answer.data.as_ref().filter(|_| answer.is_collapsed());
        let last = data.map(|data| (data.cut, data.cut.after(data.from, data.cut.count(data.from) - 1)));
        let segment_max = answer.allegiance.cid().map_or(0, |cid| self.max_send_data_segment_length(cid));
        match last.filter(|(cut, last)| cut.segment(*last).length <= segment_max) {
            Some((_, last)) => self.send_data(id, last, 1, outbox),
            None => self.send_response(id, outbox),
        }
    }

    /// DataACK (11.16.2): the memory can be given back.
    fn acknowledge_data(&mut self, cid: Cid, pdu: &SnackRequest) -> Result<(), Refusal> {
        let invalid = || Refusal::new(RejectReason::InvalidDataAck);
        if pdu.run_length != 0 {
            return Err(invalid());
        }
        let id = self.recovery.answers.of_transfer_tag(pdu.target_transfer_tag).ok_or_else(invalid)?;
        // The status may have been acknowledged since the data was sent, and with it all of it.
        let Some(answer) = self.recovery.answers.get_mut(id) else { return Ok(()) };
        let is_on = answer.allegiance.cid() == Some(cid);
        let data = answer.data.as_mut().filter(|_| is_on).ok_or_else(invalid)?;
        let exp_data_sn = DataSn(pdu.begin_run);
        if data.end().precedes(exp_data_sn) {
            return Err(invalid());
        }
        data.acknowledge(exp_data_sn);
        if data.is_acknowledged() {
            self.recovery.answers.drop_data(id);
        }
        Ok(())
    }

    /// R-Data (11.16.3): all unacknowledged data again, cut for the initiator as it is now, then a response that carries
    /// the SNACK Tag.
    fn resegment(
        &mut self,
        now: Duration,
        cid: Cid,
        pdu: &SnackRequest,
        outbox: &mut Outbox<D>,
    ) -> Result<(), Refusal> {
        let snack_tag = pdu.target_transfer_tag.0;
        let is_run_empty = pdu.begin_run == 0 && pdu.run_length == 0;
        if snack_tag == 0 || snack_tag == InitiatorTaskTag::RESERVED.0 || !is_run_empty {
            return Err(Refusal::new(RejectReason::InvalidPduField));
        }
        if let Some(id) = self.tasks.find(pdu.initiator_task_tag) {
            let task = self.tasks.get_mut(id).filter(|task| task.is_of(cid) && task.phase != Phase::Draining);
            // Nothing has been sent: the status that follows carries the tag.
            task.ok_or_else(|| Refusal::unknown(DataSn(0)))?.recovery_mut().snack_tag = snack_tag;
            return Ok(());
        }
        let id = self.recovery.answers.find_on(pdu.initiator_task_tag, cid);
        let id = id.ok_or_else(|| Refusal::unknown(DataSn(0)))?;
        let total = self.recovery.answers.get(id).and_then(|answer| answer.data.as_ref());
        let cut = self.cut(Some(cid), total.map_or(0, |data| data.cut.total));
        let Some(answer) = self.recovery.answers.get_mut(id) else { return Ok(()) };
        if answer.data.as_ref().is_some_and(ReadData::is_forgotten) {
            return Err(Refusal::new(RejectReason::SnackReject));
        }
        let run = answer.data.as_ref().map(|data| (data.from, cut.count(data.from)));
        self.take_resends(now, cid, run.map_or(0, |(_, count)| count).saturating_add(1))?;
        let Some(answer) = self.recovery.answers.get_mut(id) else { return Ok(()) };
        answer.response.snack_tag = snack_tag;
        if let Some(data) = &mut answer.data {
            data.cut = cut;
        }
        if let Some((from, count)) = run {
            self.send_data(id, from, count, outbox);
        }
        self.send_response(id, outbox);
        Ok(())
    }
}
