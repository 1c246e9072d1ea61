//! Data-In (RFC 7143, 11.7): where it belongs, and whether it is what may come now.

use std::time::Duration;

use lunette_wire::target::ScsiDataIn;

use super::coverage::Refused;
use super::fault::AnswerFault;
use super::recovery::check_recovering;
use super::task::{Sequence, Stage, Task};
use super::{ConnectionId, Outbox, Place, Segment, Session, TaskHandle, Violation};
use crate::parameters::SessionParameters;

const PDU: &str = "Data-In";

impl Session {
    /// Where the data of a Data-In belongs.
    pub(super) fn place_data_in(&self, id: ConnectionId, pdu: &ScsiDataIn, length: u32) -> Place {
        let tag = pdu.initiator_task_tag;
        match self.tasks.get(tag) {
            Some(task) if task.connection == id && task.stage == Stage::Sent => {
                let is_new = if self.recovers() {
                    check_recovering(task, pdu, length) == Ok(true)
                } else {
                    check(task, &self.parameters, pdu, length).is_ok()
                };
                let place = Place::Task { task: TaskHandle(tag), offset: pdu.buffer_offset };
                if is_new { place } else { Place::Discard }
            }
            _ => Place::Discard,
        }
    }

    pub(super) fn data_in(
        &mut self,
        now: Duration,
        id: ConnectionId,
        pdu: &ScsiDataIn,
        segment: &Segment<'_>,
        outbox: &mut Outbox,
    ) -> Result<(), Violation> {
        self.count_commands(PDU, pdu.numbers)?;
        let recovers = self.recovers();
        let tag = pdu.initiator_task_tag;
        let Some(task) = self.tasks.get_mut(tag) else { return self.stray_task(PDU, tag) };
        if task.connection != id || task.stage != Stage::Sent {
            return Err(Violation::protocol(PDU, "4.2.5.1", "is for a command of another connection"));
        }
        if recovers {
            // Its data was taken before.
            return match pdu.status {
                Some(status) => self.collapsed_status(tag, status, pdu, outbox),
                None => {
                    self.settle_data(tag, outbox);
                    Ok(())
                }
            };
        }
        check(task, &self.parameters, pdu, segment.length)?;
        take(task, pdu, segment.length)?;
        if !segment.is_intact {
            task.fault = Some(AnswerFault::DataDigest);
        }
        let is_spoilt = task.fault.is_some() && task.abort.is_none();
        if let Some(status) = pdu.status {
            return self.collapsed_status(tag, status, pdu, outbox);
        }
        if is_spoilt {
            // It ends with an error (7.8). Without room for one more request its own end is waited for.
            let _ = self.abort_sent(now, tag);
        }
        Ok(())
    }
}

/// Whether a PDU may come now (4.2.2.4, 11.7, 13.13, 13.18, 13.19). Nothing is changed.
fn check(task: &Task, agreed: &SessionParameters, pdu: &ScsiDataIn, length: u32) -> Result<(), Violation> {
    let expected = task.data_sns.contiguous();
    if pdu.data_sn.0 != expected || expected == u32::MAX {
        return Err(
            Violation::sequence(PDU, "11.7.5", "has a DataSN out of order").values(pdu.data_sn.0, expected)
        );
    }
    let (start, end) = (pdu.buffer_offset, pdu.buffer_offset.checked_add(length));
    let Some(end) = end.filter(|&end| end <= task.read_length) else {
        return Err(Violation::protocol(PDU, "11.7.6", "goes beyond the end of the command's data")
            .values(start.saturating_add(length), task.read_length));
    };
    let bytes = task.sequence.map_or(0, |sequence| sequence.bytes);
    // Where PDUs come in order, tgtd ends no sequence before the command's data, and that harms nobody. The sum is at most
    // twice a command's data.
    let is_bounded = !agreed.data_pdu_in_order;
    if is_bounded && u64::from(bytes) + u64::from(length) > u64::from(agreed.max_burst_length) {
        return Err(Violation::protocol(PDU, "13.13", "makes its sequence longer than MaxBurstLength")
            .values(bytes.saturating_add(length), agreed.max_burst_length));
    }
    let expected = match (task.sequence, agreed.data_sequence_in_order, agreed.data_pdu_in_order) {
        (_, true, true) => Some(task.came.contiguous()),
        (Some(sequence), false, true) => Some(sequence.end),
        _ => None,
    };
    if let Some(expected) = expected.filter(|&expected| expected != start && length > 0) {
        return Err(
            Violation::sequence(PDU, "13.18", "is not where the data before it ends").values(start, expected)
        );
    }
    let first = task.sequence.map_or(task.came.contiguous(), |sequence| sequence.start);
    let behind = u64::from(first) + u64::from(agreed.max_burst_length);
    if agreed.data_sequence_in_order && length > 0 && (start < first || is_bounded && u64::from(end) > behind)
    {
        return Err(Violation::sequence(PDU, "13.19", "is outside the sequence that is under way")
            .values(start, first));
    }
    if task.came.touches(start, end) {
        return Err(Violation::protocol(PDU, "11.7.6", "brings bytes that came before"));
    }
    Ok(())
}

/// Notes what a PDU has brought, which [`check`] has found right.
fn take(task: &mut Task, pdu: &ScsiDataIn, length: u32) -> Result<(), Violation> {
    let (start, end) = (pdu.buffer_offset, pdu.buffer_offset + length);
    if length > 0 {
        let first = task.came.contiguous();
        task.came.take(start, end).map_err(|refused| match refused {
            Refused::Overlap => Violation::protocol(PDU, "11.7.6", "brings bytes that came before"),
            Refused::Scattered => Violation::protocol(PDU, "13.18", "scatters its data in too many pieces"),
        })?;
        let sequence = task.sequence.get_or_insert(Sequence { start: first, end: start, bytes: 0 });
        sequence.end = end;
        sequence.bytes += length;
    }
    let data_sn = pdu.data_sn.0;
    task.data_seen = data_sn + 1;
    let _ = task.data_sns.take(data_sn, data_sn + 1);
    if pdu.is_final {
        task.sequence = None;
    }
    Ok(())
}
