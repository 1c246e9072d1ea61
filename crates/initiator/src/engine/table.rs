//! The commands that were submitted and are not over, with their buffers.
//!
//! A command stays here as long as a PDU that sends a part of its buffer waits in a queue, even if the target has answered
//! before (RFC 7143, 11.4: it may, with an error).

use std::time::Duration;

use lunette_iscsi::initiator::session::TaskHandle;
use lunette_wire::LunField;
use slab::Slab;

use super::overdue::{Flow, Remedy};
use super::replay;
use crate::{Command, CommandError, CommandId, Completion, Data, Status, Times};

/// How a command ended.
pub(super) type Ending = (Result<Status, CommandError>, u32);

/// A command that is not over.
#[derive(Debug)]
pub(super) struct Pending {
    pub(super) command: Command,
    pub(super) serial: u64,
    /// Its task in the present session.
    pub(super) task: Option<TaskHandle>,
    /// The session that it was sent in last, counted as in [`Completion::session`].
    session: u32,
    /// PDUs in queues that refer to its buffer.
    queued: u32,
    /// How it ended, while PDUs are still queued.
    ending: Option<Ending>,
    /// It was under way in a session that was lost.
    pub(super) may_have_run: bool,
    /// Unit attentions that were taken for it.
    pub(super) attentions: u32,
    pub(super) times: Times,
    pub(super) attempts: u32,
    /// A flush beside which a reset of its unit came to light: it may have been too late.
    pub(super) is_void: bool,
    /// When it became a task in the present session.
    pub(super) begun_at: Duration,
    /// When it last got on in the present session: left, sent data or got data; none: it has not left.
    pub(super) moved_at: Option<Duration>,
    /// Bytes of data that have gone; what goes a second time does not count as getting on.
    moved_bytes: usize,
    /// How often it was not answered in time, and how long it was waited for the last time.
    pub(super) overdue: u32,
    pub(super) waited: Duration,
    /// Its caller does not want it any more, so that it is not sent again.
    pub(super) is_aborted: bool,
    /// What is under way to end it.
    pub(super) remedy: Option<Remedy>,
    /// When another command failed that may have ended this one, in the present session.
    pub(super) doubted_at: Option<Duration>,
    /// It had not left when its unit was reset: it is sent behind the reset.
    pub(super) is_withdrawn: bool,
}

impl Pending {
    /// It becomes a task.
    pub(super) fn begin(&mut self, now: Duration) {
        self.attempts += 1;
        self.times.first_byte = None;
        (self.begun_at, self.moved_at, self.moved_bytes) = (now.max(self.times.queued), None, 0);
        (self.remedy, self.doubted_at, self.is_withdrawn) = (None, None, false);
    }

    /// Data has gone.
    fn moved(&mut self, now: Duration, bytes: usize) -> bool {
        let is_new = bytes > 0 && self.moved_bytes < self.buffer().len();
        if is_new {
            (self.moved_at, self.moved_bytes) = (Some(now), self.moved_bytes.saturating_add(bytes));
        }
        is_new
    }

    /// What its caller hears when it was not answered in time.
    pub(super) fn overdue_error(&self, ended_by: Remedy) -> Option<CommandError> {
        (self.overdue > 0).then_some(CommandError::Overdue { waited: self.waited, ended_by })
    }

    /// The bytes of its buffer.
    pub(super) fn buffer(&self) -> &[u8] {
        match &self.command.data {
            Data::None => &[],
            Data::In(buffer) | Data::Out(buffer) => buffer,
        }
    }

    /// Its end is known, and waits for PDUs that are still queued.
    pub(super) fn has_ended(&self) -> bool {
        self.ending.is_some()
    }
}

/// See the module's documentation.
#[derive(Debug, Default)]
pub(super) struct Table {
    slots: Slab<Pending>,
    /// The place here of each task of the session, by its own place there.
    of_tasks: Vec<u32>,
    serials: u64,
    /// See [`Completion::session`].
    session: u32,
    /// When anything last left, or brought data.
    pub(super) moved_at: Duration,
    /// What has come and gone of data and answers.
    pub(super) flow: Flow,
    pub(super) done: Vec<Completion>,
}

impl Table {
    pub(super) fn insert(&mut self, now: Duration, command: Command) -> CommandId {
        self.serials += 1;
        let serial = self.serials;
        let place = self.slots.insert(Pending {
            command,
            serial,
            task: None,
            session: self.session,
            queued: 0,
            ending: None,
            may_have_run: false,
            attentions: 0,
            times: Times { queued: now, ..Times::default() },
            attempts: 0,
            is_void: false,
            begun_at: now,
            moved_at: None,
            moved_bytes: 0,
            overdue: 0,
            waited: Duration::ZERO,
            is_aborted: false,
            remedy: None,
            doubted_at: None,
            is_withdrawn: false,
        });
        // Nobody has 2^32 commands.
        CommandId { place: place as u32, serial }
    }

    pub(super) fn len(&self) -> usize {
        self.slots.len()
    }

    pub(super) fn get(&self, place: u32) -> Option<&Pending> {
        self.slots.get(place as usize)
    }

    pub(super) fn get_mut(&mut self, place: u32) -> Option<&mut Pending> {
        self.slots.get_mut(place as usize)
    }

    /// What is sent or answered from now on is so in another session, or after a reset.
    pub(super) fn next_session(&mut self) {
        self.session = self.session.saturating_add(1);
    }

    /// The place of a command that is not over.
    pub(super) fn find(&self, id: CommandId) -> Option<u32> {
        self.get(id.place).filter(|pending| pending.serial == id.serial).map(|_| id.place)
    }

    /// Notes which task a command is in the present session.
    pub(super) fn begin(&mut self, place: u32, task: TaskHandle) {
        if let Some(pending) = self.slots.get_mut(place as usize) {
            (pending.task, pending.session) = (Some(task), self.session);
            pending.times.tag = Some(task.initiator_task_tag());
            if self.of_tasks.len() <= task.place() {
                self.of_tasks.resize(task.place() + 1, u32::MAX);
            }
            self.of_tasks[task.place()] = place;
        }
    }

    /// The place of a task's command.
    pub(super) fn of_task(&self, task: TaskHandle) -> Option<u32> {
        let place = *self.of_tasks.get(task.place())?;
        self.get(place).filter(|pending| pending.task == Some(task)).map(|_| place)
    }

    /// A PDU that refers to a buffer waits to be sent.
    pub(super) fn hold(&mut self, place: u32) {
        if let Some(pending) = self.get_mut(place) {
            pending.queued += 1;
        }
    }

    /// A command has left.
    pub(super) fn note_sent(&mut self, now: Duration, place: u32) {
        if let Some(pending) = self.get_mut(place) {
            (pending.times.sent, pending.moved_at) = (Some(now), Some(now));
            self.moved_at = now;
        }
    }

    /// A command's data has left.
    pub(super) fn note_data_sent(&mut self, now: Duration, place: u32, bytes: usize) {
        if self.get_mut(place).is_some_and(|pending| pending.moved(now, bytes)) {
            (self.moved_at, self.flow.moved_at) = (now, now);
        }
    }

    /// Such a PDU has been sent, or never will be.
    pub(super) fn release(&mut self, now: Duration, place: u32) {
        let Some(pending) = self.get_mut(place) else { return };
        pending.queued = pending.queued.saturating_sub(1);
        if pending.queued == 0
            && let Some(ending) = pending.ending.take()
        {
            self.complete(now, place, ending);
        }
    }

    /// A command is over, as soon as nothing refers to its buffer any more.
    pub(super) fn end(&mut self, now: Duration, place: u32, ending: Ending) {
        let Some(pending) = self.get_mut(place) else { return };
        pending.task = None;
        if pending.queued > 0 {
            pending.ending = Some(ending);
        } else {
            self.complete(now, place, ending);
        }
    }

    fn complete(&mut self, now: Duration, place: u32, (result, received): Ending) {
        let Some(pending) = self.slots.try_remove(place as usize) else { return };
        let session =
            replay::session_told(replay::kind(pending.command.cdb.bytes()), pending.session, self.session);
        let buffer = match pending.command.data {
            Data::None => Vec::new(),
            Data::In(buffer) | Data::Out(buffer) => buffer,
        };
        let id = CommandId { place, serial: pending.serial };
        let times = Times { done: now, ..pending.times };
        self.done.push(Completion {
            id,
            result,
            buffer,
            received,
            times,
            attempts: pending.attempts,
            session,
        });
    }

    /// Forgets a command that is the engine's own, and gives its buffer. No PDU refers to it: it does not write.
    pub(super) fn remove(&mut self, place: u32) -> Vec<u8> {
        match self.slots.try_remove(place as usize).map(|pending| pending.command.data) {
            Some(Data::In(buffer) | Data::Out(buffer)) => buffer,
            Some(Data::None) | None => Vec::new(),
        }
    }

    /// Where a task's command reads into, if it is still to be read into.
    pub(super) fn read_buffer(&mut self, place: u32, task: TaskHandle) -> Option<&mut [u8]> {
        let pending = self.get_mut(place).filter(|pending| pending.task == Some(task))?;
        match &mut pending.command.data {
            Data::In(buffer) => Some(buffer),
            Data::None | Data::Out(_) => None,
        }
    }

    /// The tasks of the same unit that are not answered and were submitted before this command.
    pub(super) fn sent_before(&self, place: u32) -> Vec<TaskHandle> {
        let Some(last) = self.get(place) else { return Vec::new() };
        let is_before = |other: &Pending| other.serial < last.serial && other.command.lun == last.command.lun;
        let before = self.slots.iter().filter(|(_, pending)| is_before(pending));
        before.filter_map(|(_, pending)| pending.task).collect()
    }

    /// Whether a command of this kind is not over and may have left.
    pub(super) fn has_begun(&self, is_such: impl Fn(&Command) -> bool) -> bool {
        self.slots.iter().any(|(_, pending)| pending.attempts > 0 && is_such(&pending.command))
    }

    /// Notes that such commands may never be answered, of those that have left. False: there is none.
    pub(super) fn doubt(&mut self, now: Duration, is_such: impl Fn(u32, &Pending) -> bool) -> bool {
        let mut is_any = false;
        for (place, pending) in &mut self.slots {
            // Nobody has 2^32 commands.
            let is_open =
                pending.moved_at.is_some() && pending.task.is_some() && pending.doubted_at.is_none();
            if is_open && is_such(place as u32, pending) {
                (pending.doubted_at, is_any) = (Some(now), true);
            }
        }
        is_any
    }

    /// Of all flushes of this unit that have begun, none can be trusted.
    pub(super) fn void_flushes(&mut self, lun: LunField) {
        for (_, pending) in &mut self.slots {
            pending.is_void |=
                pending.attempts > 0 && pending.command.lun == lun && replay::is_flush(&pending.command);
        }
    }

    /// The commands that are not over, by their age.
    pub(super) fn places(&self) -> Vec<u32> {
        let mut places: Vec<_> = self.slots.iter().map(|(place, pending)| (pending.serial, place)).collect();
        places.sort_unstable();
        places.into_iter().map(|(_, place)| place as u32).collect()
    }
}

impl Table {
    /// A part of an answer to the task with this tag has come, with so many bytes of data.
    pub(super) fn note_answer(&mut self, now: Duration, tag: lunette_wire::InitiatorTaskTag, bytes: usize) {
        // The task's place is in the low half of its tag; who it is, is compared.
        let Some(&place) = self.of_tasks.get((tag.0 & 0xffff) as usize) else { return };
        if let Some(pending) = self.get_mut(place)
            && pending.task.is_some_and(|task| task.initiator_task_tag() == tag)
        {
            let is_first = pending.times.first_byte.is_none();
            pending.times.first_byte.get_or_insert(now);
            let sent = pending.times.sent.unwrap_or_default();
            let has_moved = pending.moved(now, bytes);
            if has_moved {
                self.moved_at = now;
            }
            if has_moved || is_first {
                self.flow.moved_at = now;
                self.flow.answered_sent_at = self.flow.answered_sent_at.max(sent);
            }
        }
    }

    /// A part of a PDU's data has come.
    pub(super) const fn note_data(&mut self, now: Duration) {
        self.flow.moved_at = now;
    }
}
