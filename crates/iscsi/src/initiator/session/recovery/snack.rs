//! SNACK Requests (RFC 7143, 11.16), as they are sent and when one is rejected.
//!
//! R-Data is not among them: this side never changes its MaxRecvDataSegmentLength during a connection (11.16.3).

use lunette_wire::initiator::SnackRequest;
use lunette_wire::{Bhs, InitiatorPdu, InitiatorTaskTag, LunField, StatSn, TargetTransferTag};

use super::super::connection::Meaning;
use super::super::fault::AnswerFault;
use super::super::{ConnectionId, Loss, Outbox, Session};

/// SNACKs that may wait to be sent; what is beyond is asked for by the clock.
const SNACKS_MAX: usize = 64;

const DATA_OR_R2T: u8 = 0;
const STATUS: u8 = 1;
const DATA_ACK: u8 = 2;

impl Session {
    fn snack(&mut self, id: ConnectionId, request: SnackRequest) {
        let Some(connection) = self.connection_mut(id) else { return };
        if connection.snacks < SNACKS_MAX {
            connection.snacks += 1;
            connection.queue(request.encode(), Box::default(), Meaning::Snack);
        }
    }

    /// Asks for Data-In PDUs of a read, or for R2Ts of a write: so many from `begin_run` on.
    pub(in super::super) fn snack_data(
        &mut self,
        id: ConnectionId,
        task: InitiatorTaskTag,
        begin_run: u32,
        run: u32,
    ) {
        let request = SnackRequest {
            kind: DATA_OR_R2T,
            initiator_task_tag: task,
            target_transfer_tag: TargetTransferTag::RESERVED,
            begin_run,
            run_length: run,
            ..SnackRequest::default()
        };
        self.snack(id, request);
    }

    pub(super) fn snack_statuses(&mut self, id: ConnectionId, begin_run: u32, run: u32) {
        let request = SnackRequest {
            kind: STATUS,
            initiator_task_tag: InitiatorTaskTag::RESERVED,
            target_transfer_tag: TargetTransferTag::RESERVED,
            begin_run,
            run_length: run,
            ..SnackRequest::default()
        };
        self.snack(id, request);
    }

    pub(super) fn acknowledge_data(
        &mut self,
        id: ConnectionId,
        target_transfer_tag: TargetTransferTag,
        lun: LunField,
        exp_data_sn: u32,
    ) {
        let request = SnackRequest {
            kind: DATA_ACK,
            lun,
            initiator_task_tag: InitiatorTaskTag::RESERVED,
            target_transfer_tag,
            begin_run: exp_data_sn,
            ..SnackRequest::default()
        };
        self.snack(id, request);
    }

    /// A header that was rejected asks for a status, and that is still missing.
    pub(in super::super) fn is_refused_status(&self, id: ConnectionId, header: &Bhs) -> bool {
        match InitiatorPdu::decode(header) {
            Ok(InitiatorPdu::SnackRequest(request)) if request.kind == STATUS => self
                .connection(id)
                .is_some_and(|connection| connection.order.lacks(StatSn(request.begin_run))),
            _ => false,
        }
    }

    /// A SNACK was rejected: a status that cannot be had again costs the connection, data its task (7.8, a.1 and a.2).
    pub(in super::super) fn snack_rejected(&mut self, id: ConnectionId, header: &Bhs, outbox: &mut Outbox) {
        let Ok(InitiatorPdu::SnackRequest(request)) = InitiatorPdu::decode(header) else { return };
        match request.kind {
            STATUS if self.is_refused_status(id, header) => {
                self.connection_lost(id, Loss::StatusGone, outbox);
            }
            DATA_OR_R2T => {
                let tag = request.initiator_task_tag;
                let Some(task) = self.tasks.get_mut(tag).filter(|task| task.connection == id) else { return };
                let begin = request.begin_run;
                if task.read_length == 0 || task.data_sns.touches(begin, begin.saturating_add(1)) {
                    return;
                }
                task.fault = Some(AnswerFault::DataDigest);
                self.give_up_data(tag, outbox);
            }
            _ => {}
        }
    }
}
