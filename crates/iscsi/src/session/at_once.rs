//! Commands that end before the next PDU is looked at: they never become tasks.
//!
//! Most reads and writes of a disk that has its data in memory are of this kind. Nobody can abort such a command, and at
//! ErrorRecoveryLevel 0 nobody can ask for its answer again, so what a task is kept for would be thrown away unseen. The
//! rules are those of `requests` and `data_in`, which take every command that this module does not.

use std::time::Duration;

use lunette_wire::initiator::ScsiCommand;
use lunette_wire::target::{Numbers, Residual, ScsiDataIn, ScsiResponse};
use lunette_wire::{Bhs, Cid, TargetTransferTag};

use super::data_in::{COMPLETED_AT_TARGET, GOOD};
use super::task::TaskId;
use super::{Session, Share};

/// A command could be delivered now and end at once. It holds until the session is next changed.
#[derive(Debug)]
pub struct Deliverable {
    /// The place of the connection that has brought it.
    connection: usize,
}

impl<D: Share> Session<D> {
    /// Whether a command that has come whole, with `data_length` bytes of immediate data, could end now: its number is the
    /// next one (4.2.2.1), nothing waits for that, nothing is wrong with its PDU, and what it may read goes out in one. Nothing
    /// changes. Who begins it then ends it by [`Self::answer_at_once`], or brings it to [`Self::command`] before anything else
    /// happens.
    #[must_use]
    pub fn takes_at_once(&self, cid: Cid, pdu: &ScsiCommand, data_length: u32) -> Option<Deliverable> {
        let at = self.connections.iter().position(|of| of.cid == cid)?;
        let connection = &self.connections[at];
        let is_one_way = pdu.read != pdu.write;
        let expected = pdu.expected_data_transfer_length;
        let segment_max = connection.parameters.max_send_data_segment_length & !3;
        let is_whole = if pdu.read {
            expected <= segment_max.min(self.parameters.max_burst_length)
        } else {
            data_length == expected
        };
        let is_deliverable = is_one_way
            && is_whole
            && pdu.is_final
            && !pdu.immediate
            && !connection.closing
            && connection.declared.is_none()
            && !self.recovers()
            && !self.fence.is_up()
            && self.early_functions.is_empty()
            && self.window.is_next_alone(pdu.cmd_sn)
            && self.command_fault(cid, pdu, data_length).is_ok()
            && self.unsolicited_fault(pdu, data_length).is_none();
        is_deliverable.then_some(Deliverable { connection: at })
    }

    /// Statuses that a connection was sent and has not acknowledged (ExpStatSN, RFC 7143, 11.4.5): while its commands end as they come,
    /// as many as its initiator had under way when it sent the last one. 0 if it is gone.
    #[must_use]
    pub fn unacknowledged_statuses(&self, cid: Cid) -> u32 {
        let connection = self.connections.iter().find(|of| of.cid == cid);
        connection.map_or(0, |of| of.peek_stat_sn().since(of.acknowledged()))
    }

    /// What the next task will be called: for what has to be named before it is one.
    #[must_use]
    pub fn next_task(&self) -> TaskId {
        self.tasks.next_id()
    }

    /// Answers a command with GOOD that [`Self::takes_at_once`] has just allowed and that called for so many bytes, at least one: the
    /// header of its Data-In PDU, whose data segment is as much of them as the initiator expects, or of its response. `None`: its
    /// connection is gone.
    pub fn answer_at_once(
        &mut self,
        now: Duration,
        deliverable: Deliverable,
        (bhs, pdu): (&Bhs, &ScsiCommand),
        length: u32,
    ) -> Option<Bhs> {
        let connection = self.connections.get_mut(deliverable.connection)?;
        connection.hear(now, bhs);
        debug_assert!(self.window.is_next_alone(pdu.cmd_sn), "nothing has changed");
        self.window.take_next_alone();
        self.window.release();
        self.window_untold = false;
        let numbers = Numbers {
            stat_sn: connection.take_stat_sn(),
            exp_cmd_sn: self.window.exp_cmd_sn(),
            max_cmd_sn: self.window.max_cmd_sn(),
        };
        let (expected, initiator_task_tag) = (pdu.expected_data_transfer_length, pdu.initiator_task_tag);
        let residual = Residual::between(expected, length.into());
        if pdu.read {
            let answer = ScsiDataIn {
                is_final: true,
                status: Some(GOOD),
                residual,
                initiator_task_tag,
                target_transfer_tag: TargetTransferTag::RESERVED,
                numbers,
                ..ScsiDataIn::default()
            };
            return Some(answer.encode(length.min(expected) as usize));
        }
        let (response, status) = (COMPLETED_AT_TARGET, GOOD);
        let answer = ScsiResponse {
            residual,
            response,
            status,
            initiator_task_tag,
            numbers,
            ..ScsiResponse::default()
        };
        Some(answer.encode(0))
    }
}
