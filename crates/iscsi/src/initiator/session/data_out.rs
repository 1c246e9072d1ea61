//! Ready To Transfer (RFC 7143, 11.8): what a target may ask for.

use std::ops::Range;

use lunette_wire::target::ReadyToTransfer;
use lunette_wire::{InitiatorTaskTag, TargetTransferTag};

use super::connection::{Connection, DataOut};
use super::task::Task;
use super::{ConnectionId, Session, Violation};

const PDU: &str = "R2T";
/// How far an R2TSN may run ahead of the first that is missing; MaxOutstandingR2T has 16 bits.
const AHEAD_MAX: u32 = 1 << 16;

/// Answers to earlier R2Ts for the same bytes that have not left are not sent any more: the target has given those up.
fn replace_overlapping(
    connections: &mut [Connection],
    id: ConnectionId,
    tag: InitiatorTaskTag,
    task: &mut Task,
    range: Range<u32>,
) {
    let Some(connection) = connections.iter_mut().find(|connection| connection.id == id) else { return };
    connection.solicited.retain(|data| {
        let is_replaced = data.task == tag && data.next < range.end && range.start < data.end;
        task.r2ts_open -= u16::from(is_replaced);
        !is_replaced
    });
}

impl Session {
    /// Takes an R2T: its data is sent as the connection has room for it.
    pub(super) fn ready_to_transfer(
        &mut self,
        id: ConnectionId,
        pdu: &ReadyToTransfer,
    ) -> Result<(), Violation> {
        self.count_commands(PDU, pdu.numbers)?;
        let recovers = self.recovers();
        if recovers {
            // It shows the next StatSN: others before it may be lost (7.1.4.2).
            self.statuses_seen(id, pdu.numbers.stat_sn);
        }
        let tag = pdu.initiator_task_tag;
        self.settle_doubt(tag);
        let limit = self.parameters.max_outstanding_r2t;
        let burst_max = self.parameters.max_burst_length;
        let in_order = self.parameters.data_sequence_in_order;
        let Some(task) = self.tasks.get_mut(tag) else { return self.stray_task(PDU, tag) };
        let wrong = |what| Err(Violation::protocol(PDU, "11.8", what));
        if task.connection != id || task.stage != super::Stage::Sent {
            return Err(Violation::protocol(PDU, "4.2.5.1", "is for a command of another connection"));
        }
        if pdu.lun != task.lun {
            return Err(Violation::protocol(PDU, "4.2.5.3", "names another logical unit than its command"));
        }
        if pdu.target_transfer_tag == TargetTransferTag::RESERVED {
            return Err(Violation::format(PDU, "11.8.5", "has the reserved Target Transfer Tag"));
        }
        let (r2t_sn, expected) = (pdu.r2t_sn.0, task.data_sns.contiguous());
        if recovers && (r2t_sn < expected || task.data_sns.touches(r2t_sn, r2t_sn.saturating_add(1))) {
            // It was sent again before it was asked for (7.9).
            return Ok(());
        }
        if r2t_sn != expected && !(recovers && r2t_sn - expected < AHEAD_MAX) {
            return Err(
                Violation::sequence(PDU, "11.8.1", "has an R2TSN out of order").values(r2t_sn, expected)
            );
        }
        if pdu.desired_length == 0 {
            return Err(Violation::format(PDU, "11.8.4", "asks for no data"));
        }
        if pdu.desired_length > burst_max {
            return Err(Violation::protocol(PDU, "11.8.4", "asks for more than MaxBurstLength")
                .values(pdu.desired_length, burst_max));
        }
        let end = pdu.buffer_offset.checked_add(pdu.desired_length);
        let Some(end) = end.filter(|&end| end <= task.write_length) else {
            return wrong("asks for data beyond the end of the command's");
        };
        // One that asks again begins where the lost data did (11.8).
        if in_order && !recovers && pdu.buffer_offset != task.next_r2t_offset {
            return Err(Violation::sequence(PDU, "13.19", "is out of order")
                .values(pdu.buffer_offset, task.next_r2t_offset));
        }
        if recovers {
            replace_overlapping(&mut self.connections, id, tag, task, pdu.buffer_offset..end);
        }
        if task.r2ts_open >= limit {
            return Err(Violation::protocol(PDU, "13.17", "is one more than MaxOutstandingR2T")
                .values(u32::from(task.r2ts_open) + 1, limit.into()));
        }
        if task.data_sns.take(r2t_sn, r2t_sn.wrapping_add(1)).is_err() {
            return wrong("is one of too many out of order");
        }
        let missing = task.data_seen..r2t_sn;
        task.data_seen = task.data_seen.max(r2t_sn + 1);
        task.next_r2t_offset = end;
        task.r2ts_open += 1;
        if !missing.is_empty() {
            self.snack_data(id, tag, missing.start, missing.end - missing.start);
        }
        if let Some(connection) = self.connection_mut(id) {
            connection.solicited.push_back(DataOut {
                task: tag,
                target_transfer_tag: pdu.target_transfer_tag,
                next: pdu.buffer_offset,
                end,
                data_sn: 0,
            });
        }
        Ok(())
    }
}
