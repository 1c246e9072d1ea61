//! Commands that other commands of their logical unit keep waiting (SAM-5, task set management).
//!
//! Who waits for whom is the device server's matter. It tells a command's reactor, by a message, when it may go on.

use lunette_iscsi::session::TaskId;
use lunette_scsi::{Attribute, Lun, Status, Wake, asks_for_allegiance};
use lunette_wire::initiator::TaskAttribute;

use super::commands::{present, session_of_tag, slot_of_tag};
use super::ending::hardware_error;
use super::{Message, Reactor};
use crate::mailbox::Mailbox;
use crate::saver::WaitingCommand;

impl Wake for Mailbox<Message> {
    fn wake(&self, key: u64) {
        self.send(Message::Turn { key });
    }
}

impl Reactor {
    /// The device server will say when a command may go on.
    pub(super) fn wait_for_turn(&mut self, index: usize, id: TaskId) {
        if let Some(context) = self.sessions.get_mut(index).and_then(|session| session.context(id)) {
            context.is_waiting = true;
        }
    }

    /// A command that other commands of its unit kept waiting may go on; or one has its place that knows nothing of it.
    pub(super) fn go_on(&mut self, key: u64) {
        let (index, slot) = (session_of_tag(key), slot_of_tag(key));
        let Some(session) = self.sessions.get_mut(index) else { return };
        let Some(context) = session.contexts.get_mut(slot).and_then(Option::as_mut) else { return };
        if !std::mem::take(&mut context.is_waiting) {
            return;
        }
        let id = context.id;
        self.resume_turn(index, id);
        self.run_session(index);
    }

    /// Tells a command that it may go on.
    pub(super) fn resume_turn(&mut self, index: usize, id: TaskId) {
        let Some(session) = self.sessions.get_mut(index) else { return };
        let Some(context) = session.contexts.get_mut(id.slot()).and_then(Option::as_mut) else { return };
        let Some(data_out) = present(context.data_out.as_ref(), context.out_present) else {
            return self.finish(index, id, &hardware_error());
        };
        let (Some(command), Some(attachment)) = (&mut context.command, &session.attachment) else { return };
        let next = command.resume(&attachment.nexus, lunette_scsi::Event::Turn { data_out });
        self.drive(index, id, next);
    }

    /// A command was aborted. In a store it stays until that is done with it, and one that has yet to be looked at ends
    /// then; but others may keep it waiting for ever, those that it aborts itself among them, and so may what comes before
    /// its data.
    pub(super) fn aborted(&mut self, index: usize, id: TaskId) {
        if self.give_up_withheld(index, id) {
            return;
        }
        let Some(session) = self.sessions.get_mut(index) else { return };
        let waiter = WaitingCommand { session: index, place: session.place, task: id };
        if session.context(id).is_some_and(|context| context.is_waiting || context.is_unasked) {
            self.finish(index, id, &lunette_scsi::Completion::status(Status::TaskAborted));
        } else if self.end_preemption(waiter) {
            // It may be one that has failed, and whose failure has yet to be told.
            let view = self.sessions.get(index).and_then(|session| session.core.task(id));
            let command = view.map(|view| (Lun::from_bytes(view.lun.0), *view.cdb));
            self.finish(index, id, &lunette_scsi::Completion::status(Status::TaskAborted));
            if let Some((lun, cdb)) = command {
                self.untold(index, lun, (&cdb, Status::CheckCondition as u8));
            }
        }
    }

    /// A command has ended, and was aborted before its initiator was told. Who does not hear of a failure cannot know of the auto
    /// contingent allegiance that it has brought about, nor clear it.
    pub(super) fn untold(&mut self, index: usize, lun: Lun, (cdb, status): (&[u8; 16], u8)) {
        if status == Status::CheckCondition as u8
            && asks_for_allegiance(cdb)
            && let Some(attachment) = self.sessions.get(index).and_then(|of| of.attachment.as_ref())
        {
            attachment.nexus.clear_aca(lun);
        }
    }
}

/// The device server's word for a task attribute (11.3.1.2): what is untagged is taken for SIMPLE.
pub(super) const fn attribute(attribute: TaskAttribute) -> Attribute {
    match attribute {
        TaskAttribute::Untagged | TaskAttribute::Simple => Attribute::Simple,
        TaskAttribute::Ordered => Attribute::Ordered,
        TaskAttribute::HeadOfQueue => Attribute::HeadOfQueue,
        TaskAttribute::Aca => Attribute::Aca,
    }
}
