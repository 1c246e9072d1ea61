//! Commands that the transport has spoilt (RFC 7143, 11.4.7.2): data that was not agreed on, or is too little or too much, or
//! came with a wrong digest.
//!
//! The session core says which, and with which codes. What the CHECK CONDITION does to other commands is the device
//! server's affair, as with any other (SAM-5, 5.9; SPC-4, QERR).

use lunette_iscsi::session::TaskId;
use lunette_scsi::{Completion, Lun, SenseKey, Status, Task, Terms};

use super::Reactor;
use super::commands::store_tag;
use super::waiting::attribute;

impl Reactor {
    /// Ends a command that waits for its data, or has ended well as far as its device server knows.
    pub(super) fn spoilt(&mut self, index: usize, id: TaskId, (asc, ascq): (u8, u8)) {
        let Some(session) = self.sessions.get_mut(index) else { return };
        let Some(view) = session.core.task(id) else { return };
        if view.aborted {
            return self.finish(index, id, &Completion::status(Status::TaskAborted));
        }
        let (lun, cdb) = (Lun::from_bytes(view.lun.0), *view.cdb);
        let terms =
            Terms { attribute: attribute(view.attribute), key: store_tag(index, id), ..Terms::default() };
        if session.contexts.get(id.slot()).is_none_or(Option::is_none) {
            session.attach(id, None, false);
        }
        let Some(attachment) = &session.attachment else { return };
        let Some(context) = session.contexts.get_mut(id.slot()).and_then(Option::as_mut) else { return };
        // Nothing of it counts as moved.
        (context.data_out, context.out_length, context.out_present) = (None, 0, 0);
        let cause = (SenseKey::AbortedCommand, asc, ascq);
        let next = match &mut context.command {
            Some(command) => command.fail(&attachment.nexus, cause),
            None => {
                let (command, next) = Task::failed(&attachment.nexus, lun, &cdb, &terms, cause);
                context.command = Some(command);
                next
            }
        };
        self.drive(index, id, next);
    }
}
