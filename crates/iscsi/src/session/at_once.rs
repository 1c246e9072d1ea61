//! Commands that end before the next PDU is looked at: they never become tasks.
//!
//! Most reads and writes of a disk that has its data in memory are of this kind. Nobody can abort such a command, and at
//! ErrorRecoveryLevel 0 nobody can ask for its answer again, so what a task is kept for would be thrown away unseen. The
//! rules are those of `requests` and `data_in`, which take every command that this module does not.

use std::time::Duration;

use lunette_wire::initiator::ScsiCommand;
use lunette_wire::target::{Residual, ScsiDataIn, ScsiResponse};
use lunette_wire::{Bhs, Cid, TargetTransferTag};

use super::data_in::{COMPLETED_AT_TARGET, GOOD};
use super::task::TaskId;
use super::{Admission, Session, Share};

impl<D: Share> Session<D> {
    /// Whether a command that has come whole, with `data_length` bytes of immediate data, could end now: its number is the
    /// next one (4.2.2.1), nothing waits for that, and nothing is wrong with its PDU. Nothing changes. Who begins it
    /// then ends it by [`Self::answer_at_once`], or brings it to [`Self::command`] before anything else happens.
    #[must_use]
    pub fn takes_at_once(&self, cid: Cid, pdu: &ScsiCommand, data_length: u32) -> bool {
        let is_one_way = pdu.read != pdu.write;
        let has_all_data = pdu.is_final && (pdu.read || data_length == pdu.expected_data_transfer_length);
        is_one_way
            && has_all_data
            && !pdu.immediate
            && !self.recovers()
            && !self.fence.is_up()
            && self.early_functions.is_empty()
            && self.window.is_next_alone(pdu.cmd_sn)
            && self.connections.iter().any(|of| of.cid == cid && !of.closing && of.declared.is_none())
            && self.command_fault(cid, pdu, data_length).is_ok()
            && self.unsolicited_fault(pdu, data_length).is_none()
    }

    /// Whether so many bytes of a read go out in one PDU.
    #[must_use]
    pub fn sends_in_one(&self, cid: Cid, length: u32) -> bool {
        let cut = self.cut(Some(cid), length);
        length <= cut.segment_max.min(cut.burst_max)
    }

    /// What the next task will be called: for what has to be named before it is one.
    #[must_use]
    pub fn next_task(&self) -> TaskId {
        self.tasks.next_id()
    }

    /// Answers a command with GOOD that [`Self::takes_at_once`] has just allowed and that called for so many bytes, at least one: the
    /// header of its Data-In PDU, whose data segment is as much of them as the initiator expects, or of its response. A read goes out
    /// in one PDU ([`Self::sends_in_one`]). `None`: its connection is gone.
    pub fn answer_at_once(
        &mut self,
        now: Duration,
        cid: Cid,
        (bhs, pdu): (&Bhs, &ScsiCommand),
        length: u32,
    ) -> Option<Bhs> {
        self.connection_mut(cid)?.hear(now, bhs);
        let admission = self.window.admit(pdu.cmd_sn);
        debug_assert_eq!(admission, Admission::Next);
        self.window.release();
        let (expected, initiator_task_tag) = (pdu.expected_data_transfer_length, pdu.initiator_task_tag);
        let (residual, numbers) = (Residual::between(expected, length.into()), self.status_numbers(cid)?);
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
