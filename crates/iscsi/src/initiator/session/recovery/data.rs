//! The data of reads and the R2Ts of writes where PDUs get lost (RFC 7143, 7.8, 7.9, 11.16): taken in any order, each once,
//! and what is missing is asked for.

use lunette_wire::InitiatorTaskTag;
use lunette_wire::target::ScsiDataIn;

use super::super::coverage::Refused;
use super::super::task::{Acknowledge, Answered, Task};
use super::super::{Answer, ConnectionId, Outbox, Session, Violation};

const PDU: &str = "Data-In";
/// How far a DataSN may run ahead of the first that is missing.
const AHEAD_MAX: u32 = 1 << 16;

/// Whether a Data-In brings something new and may come: `Ok(false)` for one that came before.
pub(in super::super) fn check_recovering(
    task: &Task,
    pdu: &ScsiDataIn,
    length: u32,
) -> Result<bool, Violation> {
    let (data_sn, contiguous) = (pdu.data_sn.0, task.data_sns.contiguous());
    if data_sn < contiguous || task.data_sns.touches(data_sn, data_sn.saturating_add(1)) {
        return Ok(false);
    }
    if data_sn - contiguous > AHEAD_MAX {
        return Err(
            Violation::sequence(PDU, "4.2.2.4", "has a DataSN too far ahead").values(data_sn, contiguous)
        );
    }
    let end = pdu.buffer_offset.checked_add(length);
    let Some(end) = end.filter(|&end| end <= task.read_length) else {
        return Err(Violation::protocol(PDU, "11.7.6", "goes beyond the end of the command's data")
            .values(pdu.buffer_offset.saturating_add(length), task.read_length));
    };
    if task.came.touches(pdu.buffer_offset, end) {
        return Err(Violation::protocol(PDU, "11.7.6", "brings bytes that came before"));
    }
    Ok(true)
}

impl Session {
    /// Takes the data of a Data-In, whatever its status says; what is missing before it is asked for.
    pub(in super::super) fn recovering_data(
        &mut self,
        id: ConnectionId,
        pdu: &ScsiDataIn,
        length: u32,
        is_intact: bool,
    ) -> Result<(), Violation> {
        let tag = pdu.initiator_task_tag;
        let Some(task) = self.tasks.get_mut(tag) else { return self.stray_task(PDU, tag) };
        if task.connection != id || !check_recovering(task, pdu, length)? {
            return Ok(());
        }
        self.settle_doubt(tag);
        let Some(task) = self.tasks.get_mut(tag) else { return Ok(()) };
        let data_sn = pdu.data_sn.0;
        let (seen, end) = (task.data_seen, pdu.buffer_offset + length);
        // One that has the status comes again with that.
        let comes_again = !is_intact && pdu.status.is_some();
        task.data_seen = seen.max(data_sn + u32::from(!comes_again));
        let missing = seen..data_sn + u32::from(!is_intact && !comes_again);
        if is_intact {
            let scattered =
                |_: Refused| Violation::protocol(PDU, "13.18", "scatters its data in too many pieces");
            task.data_sns.take(data_sn, data_sn + 1).map_err(scattered)?;
            task.came.take(pdu.buffer_offset, end).map_err(scattered)?;
            if pdu.acknowledge {
                let (target_transfer_tag, lun) = (pdu.target_transfer_tag, pdu.lun);
                task.acknowledge = Some(Acknowledge { target_transfer_tag, lun, data_sn });
            }
        }
        if !missing.is_empty() {
            self.snack_data(id, tag, missing.start, missing.end - missing.start);
        } else if !is_intact && !comes_again {
            // It was asked for before, and is spoilt again.
            self.snack_data(id, tag, data_sn, 1);
        }
        self.acknowledge_if_whole(id, tag);
        Ok(())
    }

    /// Answers an A bit once nothing is missing before it (11.16.2).
    fn acknowledge_if_whole(&mut self, id: ConnectionId, tag: InitiatorTaskTag) {
        let Some(task) = self.tasks.get_mut(tag) else { return };
        let exp_data_sn = task.data_sns.contiguous();
        if let Some(wanted) = task.acknowledge.take_if(|wanted| wanted.data_sn < exp_data_sn) {
            self.acknowledge_data(id, wanted.target_transfer_tag, wanted.lun, exp_data_sn);
        }
    }

    /// A status has come whose command lacks data: it waits for that, unacknowledged (7.9).
    pub(in super::super) fn wait_for_data(
        &mut self,
        tag: InitiatorTaskTag,
        answer: Answer,
        announced: u32,
    ) -> Result<(), Violation> {
        let Some(task) = self.tasks.get_mut(tag) else { return Ok(()) };
        let (id, seen) = (task.connection, task.data_seen);
        if announced - task.data_sns.contiguous() > AHEAD_MAX {
            return Err(Violation::sequence("SCSI Response", "11.4.8", "has an ExpDataSN too far ahead")
                .values(announced, task.data_sns.contiguous()));
        }
        task.data_seen = seen.max(announced);
        let Some(connection) = self.connection_mut(id) else { return Ok(()) };
        // The status is being handled: its number was the last.
        let stat_sn = lunette_wire::StatSn(connection.order.expected().0.wrapping_sub(1));
        connection.order.is_incomplete(stat_sn);
        if let Some(task) = self.tasks.get_mut(tag) {
            task.answered = Some(Box::new(Answered { answer, announced, stat_sn }));
        }
        if seen < announced {
            self.snack_data(id, tag, seen, announced - seen);
        }
        Ok(())
    }

    /// Ends a task whose status has come before the last of its data.
    pub(in super::super) fn settle_data(&mut self, tag: InitiatorTaskTag, outbox: &mut Outbox) {
        let Some(task) = self.tasks.get_mut(tag) else { return };
        let contiguous = task.data_sns.contiguous();
        if task.answered.as_ref().is_some_and(|answered| contiguous >= answered.announced) {
            self.give_up_data(tag, outbox);
        }
    }

    /// Ends a task that has its status with the data that it has; if that is not all, its end says so.
    pub(in super::super) fn give_up_data(&mut self, tag: InitiatorTaskTag, outbox: &mut Outbox) {
        let Some(task) = self.tasks.get_mut(tag) else { return };
        let (id, received) = (task.connection, task.came.contiguous());
        let Some(answered) = task.answered.take() else { return };
        if let Some(connection) = self.connection_mut(id) {
            connection.order.completed(answered.stat_sn);
        }
        let Answered { answer, announced, .. } = *answered;
        self.conclude(tag, Answer { received, ..answer }, Some(announced), outbox);
    }

    /// Asks again for the data that tasks of a connection lack.
    pub(super) fn ask_for_data(&mut self, id: ConnectionId) {
        let missing: Vec<_> = (self.tasks.iter())
            .filter(|(_, task)| task.connection == id && task.read_length > 0)
            .filter_map(|(tag, task)| {
                let first = task.data_sns.contiguous();
                let end = task.data_sns.first_island().unwrap_or(task.data_seen);
                (first < end).then_some((tag, first, end - first))
            })
            .collect();
        for (tag, first, count) in missing {
            self.snack_data(id, tag, first, count);
        }
    }

    pub(super) fn lacks_data(&self, id: ConnectionId) -> bool {
        // Lost R2Ts are the target's affair, which asks again by its own clock (7.1.4.1).
        let lacks = |task: &Task| {
            task.connection == id && task.read_length > 0 && task.data_sns.contiguous() < task.data_seen
        };
        self.tasks.iter().any(|(_, task)| lacks(task))
    }
}
