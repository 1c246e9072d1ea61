//! How commands end: SCSI Response, status in a Data-In, and whether they agree with what came and went (RFC 7143, 11.4
//! and 11.7.3).

use lunette_wire::InitiatorTaskTag;
use lunette_wire::target::{Residual, ScsiDataIn, ScsiResponse};

use super::fault::AnswerFault;
use super::task::{Stage, Task};
use super::{Answer, ConnectionId, End, Outbox, Session, Violation};

const PDU: &str = "SCSI Response";

/// SAM-5 status codes (5.3.1) that this layer has to know.
pub(super) const GOOD: u8 = 0x00;
const CHECK_CONDITION: u8 = 0x02;
const CONDITION_MET: u8 = 0x04;
/// What a task has whose answer will not be known.
pub(super) const TASK_ABORTED: u8 = 0x40;

impl Session {
    pub(super) fn scsi_response(
        &mut self,
        id: ConnectionId,
        pdu: &ScsiResponse,
        data: &[u8],
        outbox: &mut Outbox,
    ) -> Result<(), Violation> {
        self.count_commands(PDU, pdu.numbers)?;
        let tag = pdu.initiator_task_tag;
        let Some(task) = self.tasks.get(tag) else { return self.stray_task(PDU, tag) };
        if task.connection != id || task.stage != Stage::Sent {
            return Err(Violation::protocol(PDU, "4.2.5.1", "is for a command of another connection"));
        }
        if pdu.response != 0 {
            self.end_task(tag, End::TargetFailure { response: pdu.response }, outbox);
            return Ok(());
        }
        if pdu.status == CHECK_CONDITION && data.is_empty() {
            return Err(Violation::format(PDU, "7.7", "has CHECK CONDITION and no sense data"));
        }
        let answer = Answer {
            status: pdu.status,
            status_qualifier: pdu.status_qualifier,
            residual: pdu.residual,
            read_residual: pdu.bidirectional_read_residual,
            received: task.came.contiguous(),
            sense: sense_of(PDU, data)?.to_vec(),
        };
        let announced = (task.read_length > 0).then_some(pdu.exp_data_sn.0);
        self.answered(tag, answer, announced, outbox)
    }

    /// The status that came in the last Data-In (11.7.3).
    pub(super) fn collapsed_status(
        &mut self,
        tag: InitiatorTaskTag,
        status: u8,
        pdu: &ScsiDataIn,
        outbox: &mut Outbox,
    ) -> Result<(), Violation> {
        const PDU: &str = "Data-In";
        if status == CHECK_CONDITION {
            return Err(Violation::format(PDU, "11.7.3", "has CHECK CONDITION, which needs sense data"));
        }
        if !pdu.is_final {
            return Err(Violation::format(PDU, "11.7.3", "has a status and no F bit"));
        }
        let received = self.tasks.get(tag).map_or(0, |task| task.came.contiguous());
        let answer = Answer { status, residual: pdu.residual, received, ..Answer::default() };
        // It is the last one.
        self.answered(tag, answer, Some(pdu.data_sn.0.saturating_add(1)), outbox)
    }

    /// A task has its status. `announced` is how many Data-In PDUs the target says that it has sent.
    fn answered(
        &mut self,
        tag: InitiatorTaskTag,
        answer: Answer,
        announced: Option<u32>,
        outbox: &mut Outbox,
    ) -> Result<(), Violation> {
        let Some(task) = self.tasks.get(tag) else { return Ok(()) };
        if let Some(announced) = announced
            && self.recovers()
            && task.fault.is_none()
            && announced > task.data_sns.contiguous()
        {
            return self.wait_for_data(tag, answer, announced);
        }
        self.conclude(tag, answer, announced, outbox);
        Ok(())
    }

    /// Ends a task that the target has answered.
    pub(super) fn conclude(
        &mut self,
        tag: InitiatorTaskTag,
        answer: Answer,
        announced: Option<u32>,
        outbox: &mut Outbox,
    ) {
        let Some(task) = self.tasks.get(tag) else { return };
        let fault = task.fault.or_else(|| disagreement(task, &answer, announced));
        let end = match fault {
            Some(fault) => End::Faulty(answer, fault),
            None => End::Answered(answer),
        };
        self.end_task(tag, end, outbox);
    }

    /// The command was rejected: it has never begun, and its number is still to come (7.3).
    pub(super) fn reject_command(&mut self, id: ConnectionId, tag: InitiatorTaskTag, outbox: &mut Outbox) {
        let Some(task) = self.tasks.get(tag) else { return };
        let cmd_sn = task.cmd_sn;
        self.end_task(tag, End::NotSent, outbox);
        if cmd_sn.precedes(self.exp_cmd_sn) {
            return;
        }
        if let Some(connection) = self.connection_mut(id) {
            // The task has ended: its number goes alone.
            connection.requests.push_front(super::connection::Entry::Command(tag, cmd_sn));
        }
    }
}

/// The sense data in the segment of a SCSI Response or an Asynchronous Message: a length, then so many bytes (11.4.7).
pub(super) fn sense_of<'a>(pdu: &'static str, data: &'a [u8]) -> Result<&'a [u8], Violation> {
    const CLAUSE: &str = "11.4.7";
    match data {
        [] => Ok(&[]),
        [high, low, rest @ ..] => {
            let length = usize::from(u16::from_be_bytes([*high, *low]));
            rest.get(..length).ok_or(Violation::format(pdu, CLAUSE, "has a SenseLength beyond its data"))
        }
        _ => Err(Violation::format(pdu, CLAUSE, "has half a SenseLength")),
    }
}

/// What is wrong with an answer (11.4.5, 11.4.6, 11.4.8). After other statuses than success, how much went is the device
/// server's affair, and the counts only say it.
fn disagreement(task: &Task, answer: &Answer, announced: Option<u32>) -> Option<AnswerFault> {
    if !matches!(answer.status, GOOD | CONDITION_MET) {
        return None;
    }
    let is_bidirectional = task.read_length > 0 && task.write_length > 0;
    let read_residual = if is_bidirectional { answer.read_residual } else { answer.residual };
    let wrong_write = (task.write_length > 0).then(|| disagreement_of_write(task, answer.residual)).flatten();
    wrong_write.or_else(|| {
        let reads = task.read_length > 0 || task.write_length == 0;
        reads.then(|| disagreement_of_read(task, read_residual, announced)).flatten()
    })
}

fn disagreement_of_write(task: &Task, residual: Residual) -> Option<AnswerFault> {
    let transferred = match transferred(task.write_length, residual) {
        Ok(transferred) => transferred,
        Err(fault) => return Some(fault),
    };
    let short = AnswerFault::WriteLength { sent: task.sent, announced: transferred };
    (task.sent < transferred).then_some(short)
}

fn disagreement_of_read(task: &Task, residual: Residual, announced: Option<u32>) -> Option<AnswerFault> {
    let transferred = match transferred(task.read_length, residual) {
        Ok(transferred) => transferred,
        Err(fault) => return Some(fault),
    };
    if let Some(announced) = announced.filter(|&announced| announced > task.data_sns.contiguous()) {
        return Some(AnswerFault::DataMissing { received: task.data_sns.contiguous(), announced });
    }
    let received = task.came.total();
    let is_whole = received == transferred && task.came.contiguous() == transferred;
    (!is_whole).then_some(AnswerFault::ReadLength { received, announced: transferred })
}

/// Bytes that went, by the residual count.
fn transferred(expected: u32, residual: Residual) -> Result<u32, AnswerFault> {
    match residual {
        Residual::None | Residual::Overflow(_) => Ok(expected),
        Residual::Underflow(residual) => {
            expected.checked_sub(residual).ok_or(AnswerFault::Residual { residual, expected })
        }
    }
}
