//! From a command to its task, and its end.

use lunette_iscsi::initiator::session::{Abort, Command as CoreCommand, SubmitError};

use super::table::Ending;
use super::{Engine, State, TASKS_MAX, replay};
use crate::{Command, CommandError, CommandId, Data, Status};

impl Engine {
    /// Takes a command. Nothing is sent before the next [`Self::poll`]; each command is answered by one completion, whatever
    /// happens.
    pub fn submit(&mut self, command: Command) -> CommandId {
        let id = self.table.insert(self.start.elapsed(), command);
        if let State::Over(reason) = &self.state {
            let ending = Err(CommandError::NotSent(reason.clone()));
            self.end(id.place, (ending, 0));
        } else if self.is_closing {
            self.end(id.place, (Err(CommandError::NotSent("the session is being closed".into())), 0));
        } else if self.is_up() && self.check.is_none() && self.backlog.is_empty() {
            self.begin(id.place);
        } else {
            self.backlog.push_back(id.place);
        }
        id
    }

    /// Aborts a command that is not over: it ends as [`CommandError::Aborted`], with the answer that came before, or with the session,
    /// and is not sent again.
    pub fn abort(&mut self, id: CommandId) {
        let Some(place) = self.table.find(id) else { return };
        let Some(pending) = self.table.get_mut(place).filter(|pending| !pending.has_ended()) else { return };
        pending.is_aborted = true;
        match pending.task {
            // A second abort of the same, or one without room for the request: its end comes in any case.
            Some(task) => {
                if let Ok(Abort::Requested(request)) = self.session.abort(self.now, task, &mut self.outbox) {
                    self.aborts.push(request);
                }
            }
            None => {
                self.backlog.retain(|waiting| *waiting != place);
                self.end(place, (Err(CommandError::Aborted), 0));
            }
        }
        self.settle();
    }

    /// A flush takes note of a reset of its unit: what was written before it may be lost, and the flush must not promise it.
    /// The next one may, unless it was under way already.
    pub(super) fn takes_reset(&mut self, place: u32) -> bool {
        let Some(pending) = self.table.get(place).filter(|pending| replay::is_flush(&pending.command)) else {
            return false;
        };
        let (lun, is_void) = (pending.command.lun, pending.is_void);
        let noted = self.resets.iter().position(|reset| *reset == lun);
        if let Some(at) = noted {
            self.resets.swap_remove(at);
        }
        is_void || noted.is_some()
    }

    /// Makes a command a task.
    pub(super) fn begin(&mut self, place: u32) {
        if self.takes_reset(place) {
            return self.end(place, (Err(CommandError::ResetSinceFlush), 0));
        }
        let Some(pending) = self.table.get(place) else { return };
        let command = &pending.command;
        if let Some(change) = self.change_of(command.lun) {
            let changed = CommandError::Changed(change.clone());
            return self.end(place, (Err(changed), 0));
        }
        let (read, write) = match &command.data {
            Data::None => (0, 0),
            Data::In(buffer) => (buffer.len(), 0),
            Data::Out(buffer) => (0, buffer.len()),
        };
        let (Ok(read_length), Ok(write_length)) = (u32::try_from(read), u32::try_from(write)) else {
            let reason = "a command transfers less than 4 GiB".to_owned();
            return self.end(place, (Err(CommandError::Invalid(reason)), 0));
        };
        let task = self.session.submit(&CoreCommand {
            lun: command.lun,
            cdb: command.cdb.bytes(),
            attribute: command.attribute,
            read_length,
            write_length,
            ..CoreCommand::default()
        });
        match task {
            Ok(task) => {
                if replay::is_flush(command) {
                    let lun = command.lun;
                    self.dirty.retain(|dirty| *dirty != lun);
                }
                self.table.begin(place, task);
                if let Some(pending) = self.table.get_mut(place) {
                    pending.begin(self.now);
                }
                self.watch_for_answer(place);
            }
            Err(SubmitError::Full | SubmitError::Closed) => self.backlog.push_back(place),
            Err(error) => self.end(place, (Err(CommandError::Invalid(error.to_string())), 0)),
        }
    }

    /// Makes tasks of commands that waited, as far as there is room. Not while ends of tasks are still to be handled: the
    /// session may give the place of one that has ended to the next.
    pub(super) fn begin_waiting(&mut self) {
        while self.is_up()
            && self.check.is_none()
            && self.outbox.events.is_empty()
            && self.session.open_tasks() < TASKS_MAX
            && !self.session.is_over()
            && let Some(place) = self.backlog.pop_front()
        {
            let waiting = self.backlog.len();
            self.begin(place);
            if self.backlog.len() > waiting {
                // It was put back at the end; its place is at the front.
                self.backlog.rotate_right(1);
                return;
            }
        }
    }

    pub(super) fn end(&mut self, place: u32, ending: Ending) {
        if let Some(pending) = self.table.get(place)
            && replay::leaves_dirty(&pending.command, ending.0.as_ref().is_ok_and(Status::is_good))
            && !self.dirty.contains(&pending.command.lun)
        {
            self.dirty.push(pending.command.lun);
        }
        self.table.end(self.last_time(), place, ending);
    }
}
