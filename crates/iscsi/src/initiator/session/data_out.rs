//! Ready To Transfer (RFC 7143, 11.8): what a target may ask for.

use lunette_wire::TargetTransferTag;
use lunette_wire::target::ReadyToTransfer;

use super::connection::DataOut;
use super::{ConnectionId, Session, Violation};

const PDU: &str = "R2T";

impl Session {
    /// Takes an R2T: its data is sent as the connection has room for it.
    pub(super) fn ready_to_transfer(
        &mut self,
        id: ConnectionId,
        pdu: &ReadyToTransfer,
    ) -> Result<(), Violation> {
        self.count_commands(PDU, pdu.numbers)?;
        let tag = pdu.initiator_task_tag;
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
        if pdu.r2t_sn.0 != task.next_r2t_sn {
            return Err(Violation::sequence(PDU, "11.8.1", "has an R2TSN out of order")
                .values(pdu.r2t_sn.0, task.next_r2t_sn));
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
        if in_order && pdu.buffer_offset != task.next_r2t_offset {
            return Err(Violation::sequence(PDU, "13.19", "is out of order")
                .values(pdu.buffer_offset, task.next_r2t_offset));
        }
        if task.r2ts_open >= limit {
            return Err(Violation::protocol(PDU, "13.17", "is one more than MaxOutstandingR2T")
                .values(u32::from(task.r2ts_open) + 1, limit.into()));
        }
        task.next_r2t_sn = task.next_r2t_sn.wrapping_add(1);
        task.next_r2t_offset = end;
        task.r2ts_open += 1;
        let is_cut = task.is_cut;
        if let Some(connection) = self.connection_mut(id).filter(|_| !is_cut) {
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

    /// Stops answering R2Ts of a task; what is under way is not sent any more (4.2.3.4, 11.9.1).
    pub(super) fn cut_data(&mut self, tags: &[lunette_wire::InitiatorTaskTag]) {
        for &tag in tags {
            let Some(task) = self.tasks.get_mut(tag) else { continue };
            task.is_cut = true;
            let id = task.connection;
            if let Some(connection) = self.connection_mut(id) {
                connection.solicited.retain(|data| data.task != tag);
            }
        }
    }
}
