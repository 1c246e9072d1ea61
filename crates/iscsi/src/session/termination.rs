//! FastAbort (RFC 7143, 4.2.3.4, 4.2.3.5, 11.9.1 event 5): tasks are ended without waiting for the data that their
//! initiator owes; it is told to send no more, and until it has acknowledged that, what comes late is expected.
//!
//! What is aborted, and when its function is answered, is the affair of `management`.

use lunette_wire::initiator::{NopOut, ScsiDataOut};
use lunette_wire::target::AsynchronousMessage;
use lunette_wire::{Cid, InitiatorTaskTag, LunField, StatSn, TargetTransferTag};

use super::task::TaskId;
use super::{Outbox, Session, Share};
use crate::parameters::TaskReporting;

/// AsyncEvent "task termination" (11.9.1).
const ASYNC_TASK_TERMINATION: u8 = 5;

/// The most transfer tags of a connection that stay valid after their tasks. An initiator that acknowledges nothing has
/// the oldest forgotten, and its late data under them rejected.
const RETIRED_TAGS_MAX: usize = 4096;

/// A message that has not been acknowledged by a NOP-Out.
#[derive(Debug)]
pub(super) struct Termination {
    lun: LunField,
    /// The number behind the message's own.
    stat_sn: StatSn,
    /// What its tasks were asked to send.
    tags: Vec<(InitiatorTaskTag, TargetTransferTag)>,
}

impl<D: Share> Session<D> {
    /// True where multi-task aborts wait for no data.
    pub(super) fn aborts_fast(&self) -> bool {
        self.parameters.task_reporting == TaskReporting::FastAbort
    }

    /// Tells all connections with a task of `affected`, but that of the request, one message for each logical unit
    /// (4.2.3.4, step d). To be called while the tasks are still there.
    pub(super) fn announce_termination(
        &mut self,
        affected: &[TaskId],
        asked_on: Option<Cid>,
        outbox: &mut Outbox<D>,
    ) {
        if !self.aborts_fast() {
            return;
        }
        let mut messages: Vec<(Cid, LunField, Vec<_>)> = Vec::new();
        for task in affected.iter().filter_map(|&id| self.tasks.get(id)) {
            let Some(cid) = task.allegiance.cid() else { continue };
            if asked_on == Some(cid) {
                // The request itself says so there, and nothing comes behind it (step a of the initiator).
                continue;
            }
            let lun = task.command.lun;
            let tags = task.r2ts.iter().map(|r2t| (task.command.initiator_task_tag, r2t.tag));
            let same_unit = self.settings.same_unit;
            match messages.iter_mut().find(|(of, unit, _)| *of == cid && same_unit(*unit, lun)) {
                Some((_, _, known)) => known.extend(tags),
                None => messages.push((cid, lun, tags.collect())),
            }
        }
        for (cid, lun, tags) in messages {
            if self.connection_mut(cid).is_none_or(|connection| !connection.is_open()) {
                continue;
            }
            self.send_status(cid, Vec::new(), outbox, |numbers| {
                let event = ASYNC_TASK_TERMINATION;
                AsynchronousMessage { lun, numbers, event, ..AsynchronousMessage::default() }.encode(0)
            });
            if let Some(connection) = self.connection_mut(cid) {
                let stat_sn = connection.peek_stat_sn();
                connection.terminations.push(Termination { lun, stat_sn, tags });
                let mut held: usize = connection.terminations.iter().map(|of| of.tags.len() + 1).sum();
                while held > RETIRED_TAGS_MAX {
                    held -= connection.terminations.remove(0).tags.len() + 1;
                }
            }
        }
    }

    /// A NOP-Out without any tag and with the LUN of a message acknowledges it (11.9.1): its transfer tags are free.
    pub(super) fn acknowledge_termination(&mut self, cid: Cid, pdu: &NopOut) {
        let same_unit = self.settings.same_unit;
        if let Some(connection) = self.connection_mut(cid) {
            let mut terminations = std::mem::take(&mut connection.terminations);
            terminations.retain(|of| !same_unit(of.lun, pdu.lun) || !connection.has_acknowledged(of.stat_sn));
            connection.terminations = terminations;
        }
    }

    /// Whether data comes late for a task that was terminated: it is thrown away without a word (4.2.3.4, step c).
    pub(super) fn is_terminated(&self, cid: Cid, pdu: &ScsiDataOut) -> bool {
        let tags = (pdu.initiator_task_tag, pdu.target_transfer_tag);
        let connection = self.connections.iter().find(|connection| connection.cid == cid);
        connection.is_some_and(|of| of.terminations.iter().any(|of| of.tags.contains(&tags)))
    }
}
