//! When the data of writes is asked for (docs/decisions/0042): in the order of the commands, and no more at a time than what
//! keeps the way busy and the processor's caches warm. A task's buffer is taken when its turn comes.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use lunette_block::BufferPool;
use lunette_iscsi::session::TaskId;
use lunette_wire::Cid;

use super::Reactor;
use super::session::TargetSession;
use crate::registry::SessionPlace;
use crate::task_times::Stage;

/// With so much asked for on one connection, in bytes, and not come, nothing more is asked for there where the
/// [way](super::way) is short: half of a second-level cache. 100 microseconds at 40 Gbit/s.
const ASKED_BYTES_MAX: usize = 512 << 10;

/// What has not come so long after it was asked for does not count any more: an initiator that leaves one R2T unanswered
/// gets the others all the same.
const ASKED_PATIENCE: Duration = Duration::from_secs(1);

/// How long a session whose tasks wait for memory may get none; then they end with TASK SET FULL. A third of what
/// Linux gives a command.
const MEMORY_PATIENCE: Duration = Duration::from_secs(10);

/// How often is looked for memory that others give back: at first, and when the first has waited for long.
const MEMORY_POLLS: [Duration; 2] = [Duration::from_millis(1), Duration::from_millis(10)];

/// How long the first of those who wait is waited for by all who come later. Commands that end at all have mostly ended by then: what
/// it needs is kept by somebody who does nothing, and may not come before its patience is over.
const QUEUE_PATIENCE: Duration = Duration::from_secs(1);

/// How much more memory there has to be than one takes who passes the first.
const PASSING_SPARE: usize = 2;

/// Data that was asked for.
#[derive(Debug, Clone, Copy)]
pub(super) struct Asked {
    cid: Cid,
    /// So much of it has not come.
    bytes: usize,
    at: Duration,
}

/// The tasks of a session whose data is still to be asked for.
#[derive(Debug, Default)]
pub(super) struct Unasked {
    /// In the order in which that is to be done. Those that have ended are not among them.
    tasks: VecDeque<TaskId>,
    /// Something has changed since the tasks were looked at.
    is_news: bool,
    /// Since when there has been no memory for one of them that needs so many bytes, and for none behind it.
    short: Option<(Duration, usize)>,
    /// Data of tasks that has ever come, in bytes.
    pub(super) came_bytes: u64,
    /// It is among the reactor's [`Short`].
    is_listed: bool,
    /// It is among the reactor's [`Paced`].
    is_paced: bool,
    /// What one command brought unasked when there was no memory for it; 0 if that has never been.
    pub(super) dropped_bytes: usize,
}

impl Unasked {
    /// A task has ended before its turn came.
    #[cold]
    pub(super) fn remove(&mut self, id: TaskId) {
        self.tasks.retain(|task| *task != id);
    }

    #[cfg(test)]
    pub(super) fn are_tasks(&self, ids: &[TaskId]) -> bool {
        self.tasks == ids
    }
}

/// The sessions of a reactor that wait for memory, in the order in which they get it.
#[derive(Debug, Default)]
pub(super) struct Short {
    sessions: VecDeque<(usize, SessionPlace)>,
    /// Since when the first has waited in vain.
    first_since: Option<Duration>,
}

impl Short {
    /// How long nobody need look for memory; `None` where nobody waits for it.
    pub(super) fn poll(&self, now: Duration) -> Option<Duration> {
        let is_late = self.first_since.is_some_and(|since| now.saturating_sub(since) >= QUEUE_PATIENCE);
        (!self.sessions.is_empty()).then(|| MEMORY_POLLS[usize::from(is_late)])
    }

    fn remove(&mut self, at: usize) {
        self.sessions.remove(at);
        if at == 0 {
            self.first_since = None;
        }
    }

    /// What memory there is for whoever comes now.
    fn memory(&self, now: Duration) -> Memory {
        match self.first_since {
            _ if self.sessions.is_empty() => Memory::Free,
            Some(since) if now.saturating_sub(since) >= QUEUE_PATIENCE => Memory::Spare,
            _ => Memory::None,
        }
    }
}

/// What memory a task may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Memory {
    Free,
    /// As long as there is much more than it needs: others have waited for longer.
    Spare,
    None,
}

impl Memory {
    fn allows(self, pool: &BufferPool, bytes: usize) -> bool {
        match self {
            Self::Free => true,
            Self::Spare => pool.has_room(bytes.saturating_mul(PASSING_SPARE)),
            Self::None => false,
        }
    }
}

/// The sessions of a reactor that have data to ask for when it is time on some connection.
#[derive(Debug, Default)]
pub(super) struct Paced {
    sessions: Vec<(usize, SessionPlace)>,
    /// When the first of them is to be looked at.
    due: Duration,
}

impl Paced {
    /// How long nobody need look at them, from now on; reactors count their time from when they `started`.
    pub(super) fn due_in(&self, started: Instant) -> Duration {
        if self.sessions.is_empty() {
            return Duration::MAX;
        }
        self.due.saturating_sub(started.elapsed())
    }
}

/// What has become of a task whose turn has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Turn {
    /// Its data was asked for, or it has ended.
    Over { took_memory: bool },
    /// Enough has been asked for on its connection.
    NoPlace,
    /// Not before then on its connection.
    NotBefore(Duration),
    /// There is no memory for so many bytes.
    NoMemory(usize),
}

impl Turn {
    const OVER: Self = Self::Over { took_memory: false };
}

impl TargetSession {
    /// The data of a task is to be asked for when its turn has come.
    pub(super) fn has_to_ask(&mut self, id: TaskId) {
        let Some(context) = self.context(id) else { return };
        context.is_unasked = true;
        self.unasked.tasks.push_back(id);
        self.unasked.is_news = true;
    }

    /// The data of a task is there.
    pub(super) fn data_came(&mut self, id: TaskId) {
        if let Some(asked) = self.context(id).and_then(|context| context.asked.take()) {
            self.came(asked);
        }
    }

    /// So much of the data of a task has come.
    pub(super) fn some_data_came(&mut self, id: TaskId, bytes: usize) {
        self.unasked.came_bytes += bytes as u64;
        let Some(asked) = self.context(id).and_then(|context| context.asked.as_mut()) else { return };
        let came = Asked { bytes: bytes.min(asked.bytes), ..*asked };
        asked.bytes -= came.bytes;
        self.came(came);
    }

    /// What was asked for has come, or is not waited for any more.
    pub(super) fn came(&mut self, asked: Asked) {
        self.unasked.is_news = true;
        if let Some(link) = self.links.iter_mut().find(|link| link.cid == asked.cid) {
            link.asked_bytes = link.asked_bytes.saturating_sub(asked.bytes);
        }
    }

    /// Whether a task waits for its turn, and there is no buffer for its data.
    fn is_short_of_memory(&mut self, id: TaskId) -> bool {
        let expected = self.core.task(id).map_or(0, |view| view.expected_out);
        self.context(id).filter(|context| context.is_unasked).is_some_and(|context| {
            let present = context.data_out.as_ref().map_or(0, |buffer| buffer.len());
            context.out_length.min(expected) as usize > present
        })
    }

    /// Whether there is no room for more commands than the initiator has now.
    fn is_crowded(&self) -> bool {
        let Unasked { short, dropped_bytes, .. } = self.unasked;
        short.is_some() || dropped_bytes > 0 && !self.pool.has_room_unasked(2 * dropped_bytes)
    }

    /// Lets a narrow window open, or keeps it as it is while there is no room for more.
    pub(super) fn relax_window(&mut self) {
        if self.core.has_narrow_window() {
            self.core.hold_window(self.is_crowded());
        }
    }
}

impl Reactor {
    /// A command wants its data: what does not come by itself is asked for when its turn has come.
    pub(super) fn collect_data_out(&mut self, index: usize, id: TaskId, length: u32) {
        let Some(session) = self.sessions.get_mut(index) else { return };
        let is_asked_for = session.core.bytes_to_solicit(id, length) > 0;
        let Some(context) = session.contexts.get_mut(id.slot()).and_then(Option::as_mut) else { return };
        context.out_length = length;
        if !is_asked_for {
            self.cut_through_immediate(index, id);
            return self.solicit(index, id);
        }
        if let (Some(command), Some(attachment)) = (&mut context.command, &session.attachment) {
            command.collects(&attachment.nexus);
        }
        session.has_to_ask(id);
        self.ask_on(index);
    }

    /// Asks for the data of a session's next tasks, as much as there is room for.
    pub(super) fn ask_on(&mut self, index: usize) {
        let Some(session) = self.sessions.get_mut(index) else { return };
        if std::mem::take(&mut session.unasked.is_news) && !session.unasked.tasks.is_empty() {
            // Those who have waited for memory are served first.
            let memory = self.short.memory(self.now);
            self.ask_in_turn(index, memory, usize::MAX);
        }
    }

    /// As [`Self::ask_on`], with buffers for so many tasks at most; answers whether a task got one.
    fn ask_in_turn(&mut self, index: usize, memory: Memory, mut buffers_max: usize) -> bool {
        let mut short_bytes = None;
        let (mut has_got, mut is_paced) = (false, false);
        let mut at = 0;
        while let Some(session) = self.sessions.get(index)
            && let Some(&id) = session.unasked.tasks.get(at)
        {
            let are_several = session.links.len() > 1;
            match self.take_turn(index, id, if buffers_max > 0 { memory } else { Memory::None }) {
                Turn::Over { took_memory } => {
                    has_got |= took_memory;
                    buffers_max -= usize::from(took_memory);
                    if let Some(session) = self.sessions.get_mut(index) {
                        session.unasked.tasks.remove(at);
                    }
                }
                Turn::NotBefore(due) => {
                    is_paced = true;
                    self.look_again(index, due);
                    if !are_several {
                        break;
                    }
                    at += 1;
                }
                Turn::NoPlace if are_several => at += 1,
                Turn::NoPlace => break,
                Turn::NoMemory(bytes) => {
                    // Those behind it that need none may go on.
                    buffers_max = 0;
                    short_bytes.get_or_insert(bytes);
                    at += 1;
                }
            }
        }
        let now = self.now;
        let Some(session) = self.sessions.get_mut(index) else { return has_got };
        let since = session.unasked.short.map_or(now, |(since, _)| if has_got { now } else { since });
        // Behind one whose time has not come may be others that wait for memory.
        let before = session.unasked.short.filter(|_| is_paced && !has_got).map(|(_, bytes)| bytes);
        let short_bytes = short_bytes.or(before);
        session.unasked.short = short_bytes.map(|bytes| (since, bytes));
        if short_bytes.is_some() {
            session.core.narrow_window();
            session.core.hold_window(true);
            if !std::mem::replace(&mut session.unasked.is_listed, true) {
                self.short.sessions.push_back((index, session.place));
            }
        }
        has_got
    }

    fn take_turn(&mut self, index: usize, id: TaskId, memory: Memory) -> Turn {
        let now = self.now;
        let Some(session) = self.sessions.get_mut(index) else { return Turn::OVER };
        let Some(view) = session.core.task(id).filter(|view| !view.aborted) else { return Turn::OVER };
        let (cid, expected) = (view.cid, view.expected_out);
        let Some(context) = session.contexts.get_mut(id.slot()).and_then(Option::as_mut) else {
            return Turn::OVER;
        };
        if context.id != id || !context.is_unasked {
            return Turn::OVER;
        }
        let length = context.out_length;
        let bytes = session.core.bytes_to_solicit(id, length) as usize;
        // Without a connection it is asked for when it has one, and counts nowhere.
        let mut link = cid.and_then(|cid| session.links.iter_mut().find(|link| link.cid == cid));
        let token = link.as_ref().map(|link| link.token);
        let mut connection = token.and_then(|token| {
            self.connections.get_mut(token.index).filter(|connection| connection.token == token)
        });
        if let (Some(link), Some(connection)) = (&mut link, &mut connection)
            && link.asked_bytes > 0
        {
            if link.asked_bytes >= ASKED_BYTES_MAX && link.way.is_short(&connection.socket, now) {
                return Turn::NoPlace;
            }
            if !link.way.is_long(&connection.socket, now) {
                connection.pace = None;
            } else if connection.pace.is_none() {
                connection.pace = Some(Box::default());
            }
            if let Some(due) = connection.pace.as_ref().and_then(|pace| pace.wait_until(now)) {
                return Turn::NotBefore(due);
            }
        }
        let needed = length.min(expected) as usize;
        let present = context.data_out.as_ref().map_or(0, |buffer| buffer.len());
        let mut is_of_reserve = false;
        let mut larger = None;
        if needed > present {
            let pool = &session.pool;
            let smaller = context.data_out.as_ref();
            larger = match smaller {
                _ if !memory.allows(pool, needed) => {
                    is_of_reserve = true;
                    pool.allocate_reserved(needed, smaller)
                }
                Some(smaller) => pool.allocate_instead(needed, smaller),
                None => pool.allocate(needed),
            };
            if larger.is_none() {
                if pool.is_possible(needed) {
                    return Turn::NoMemory(needed);
                }
                context.is_unasked = false;
                self.finish_starved(index, id);
                return Turn::OVER;
            }
        }
        // It will not be told to come again for lack of memory, so something of it may be stored.
        context.is_unasked = false;
        self.cut_through_immediate(index, id);
        let Some(session) = self.sessions.get_mut(index) else { return Turn::OVER };
        let Some(context) = session.contexts.get_mut(id.slot()).and_then(Option::as_mut) else {
            return Turn::OVER;
        };
        if let Some(mut larger) = larger {
            if let Some(smaller) = &context.data_out {
                let held = (context.out_stored as usize).min(present)..present;
                larger[held.clone()].copy_from_slice(&smaller[held]);
            }
            context.data_out = Some(larger);
        }
        let connection = token.and_then(|token| {
            self.connections.get_mut(token.index).filter(|connection| connection.token == token)
        });
        if let Some(pace) = connection.and_then(|connection| connection.pace.as_mut()) {
            pace.asked(bytes.min(session.core.solicited_at_once() as usize), now);
        }
        let link = token.and_then(|token| session.links.iter_mut().find(|link| link.token == token));
        if let Some(link) = link {
            link.asked_bytes += bytes;
            context.asked = Some(Asked { cid: link.cid, bytes, at: now });
        }
        self.solicit(index, id);
        // What is of the reserve is none of what its session waits for.
        Turn::Over { took_memory: needed > present && !is_of_reserve }
    }

    /// Has the core ask the initiator for a command's data; the buffer has room for it.
    fn solicit(&mut self, index: usize, id: TaskId) {
        let Some(session) = self.sessions.get_mut(index) else { return };
        let Some(context) = session.contexts.get_mut(id.slot()).and_then(Option::as_mut) else { return };
        let present = session.core.solicit(id, context.out_length, &mut self.outbox);
        context.out_present = present;
        if self.outbox.events.last() == Some(&lunette_iscsi::session::Event::DataOutComplete(id)) {
            return;
        }
        if let Some(times) = &mut context.times {
            times.enter(self.started.elapsed(), Stage::Data);
        }
        if let (Some(command), Some(attachment)) = (&mut context.command, &session.attachment) {
            command.collects(&attachment.nexus);
        }
    }

    fn look_again(&mut self, index: usize, due: Duration) {
        let Some(session) = self.sessions.get_mut(index) else { return };
        let Paced { sessions, due: first } = &mut self.paced;
        *first = if sessions.is_empty() { due } else { due.min(*first) };
        if !std::mem::replace(&mut session.unasked.is_paced, true) {
            sessions.push((index, session.place));
        }
    }

    /// Asks for the data that it is time for now.
    pub(super) fn ask_at_their_pace(&mut self) {
        if self.paced.sessions.is_empty() || self.now < self.paced.due {
            return;
        }
        for (index, place) in std::mem::take(&mut self.paced.sessions) {
            let session = self.sessions.get_mut(index).filter(|session| session.place == place);
            let Some(session) = session else { continue };
            (session.unasked.is_paced, session.unasked.is_news) = (false, true);
            self.run_session(index);
        }
    }

    /// Looks whether there is memory now for those who wait for it, each in turn.
    pub(super) fn ask_where_memory_was_short(&mut self) {
        let now = self.now;
        // Those before it have waited in vain for so long that others may pass them.
        let mut at = 0;
        for _ in 0..self.short.sessions.len() {
            let Some(&(index, place)) = self.short.sessions.get(at) else { return };
            if self.sessions.get(index).is_none_or(|session| session.place != place) {
                self.short.remove(at);
                continue;
            }
            let memory = if at == 0 { Memory::Free } else { Memory::Spare };
            let are_others = self.short.sessions.len() > 1;
            let has_got = self.ask_in_turn(index, memory, if are_others { 1 } else { usize::MAX });
            self.run_session(index);
            let Some(session) = self.sessions.get_mut(index).filter(|session| session.place == place) else {
                continue;
            };
            match session.unasked.short {
                // Nobody takes away from under the first what it waits for.
                Some((_, bytes)) if !has_got && (at > 0 || !session.pool.has_room(bytes)) => {
                    let since = *self.short.first_since.get_or_insert(now);
                    if now.saturating_sub(since) < QUEUE_PATIENCE {
                        return;
                    }
                    at += 1;
                    continue;
                }
                Some(_) => self.short.sessions.push_back((index, place)),
                None => session.unasked.is_listed = false,
            }
            self.short.remove(at);
        }
    }

    /// Once a second: what has not come for long does not count any more, who has waited for memory for long is told, and a window
    /// that was kept narrow may open.
    pub(super) fn bound_unasked(&mut self, index: usize) {
        let now = self.now;
        let Some(session) = self.sessions.get_mut(index) else { return };
        // Commands that end at once do not look.
        session.relax_window();
        if session.unasked.tasks.is_empty() {
            return;
        }
        let is_late = |asked: &mut Asked| now.saturating_sub(asked.at) >= ASKED_PATIENCE;
        let contexts = session.contexts.iter_mut().flatten();
        let late: Vec<Asked> = contexts.filter_map(|context| context.asked.take_if(is_late)).collect();
        late.into_iter().for_each(|asked| session.came(asked));
        let is_over = |since| now.saturating_sub(since) >= MEMORY_PATIENCE;
        if session.unasked.short.take_if(|(since, _)| is_over(*since)).is_none() {
            return;
        }
        for id in session.unasked.tasks.clone() {
            if self.sessions.get_mut(index).is_some_and(|session| session.is_short_of_memory(id)) {
                self.finish_starved(index, id);
            }
        }
    }
}
