//! One command as a state machine: it asks for data and medium operations and ends with a completion.
//!
//! It is not the task set ([`crate::task_set`]), which says when it may go on; the command window is the transport's.

mod allegiance;
mod exchange;
mod mending;
mod piece;
mod unhindered;
mod unsent;
mod waiting;

use std::sync::Arc;

use crate::bytes::Cdb;
use crate::commands::{self, Context, State, Step};
use crate::io::Io;
use crate::lun::Lun;
use crate::marks::Meets;
use crate::nexus::{Nexus, NexusName};
use crate::paths::Path;
use crate::priority;
use crate::sense::SenseData;
use crate::status::Status;
use crate::task_set::{Attribute, Ticket};
use crate::unit::LogicalUnit;
use mending::Mending;
use piece::Piece;

pub use exchange::{Completion, DataIn, Event, Next, Terms};
pub use unhindered::{Ended, Unhindered};
pub use unsent::Unsent;

/// A running command. To abort it is to [abandon](Task::abandon) it: others of its logical unit may wait for its end.
#[derive(Debug)]
pub struct Task {
    path: Option<usize>,
    /// The place of its unit in the device.
    unit: Option<usize>,
    cdb: Cdb,
    state: State,
    attribute: Attribute,
    place: Place,
    /// What it waits for, where it does.
    ticket: Ticket,
    /// It runs alone once its data is there.
    wants_alone: bool,
    /// What it brings along, for the time when it has to wait.
    priority: u8,
    /// What [`crate::Wake`] is told.
    key: u64,
    /// A write to marked blocks is under way.
    mending: Option<Box<Mending>>,
    /// The operation of a copy that is about to be done, or being done.
    piece: Option<Box<Piece>>,
    /// It is a read whose answer is taken from the medium when it has ended.
    sends_later: bool,
    /// What comes next, once something else is over: an auto contingent allegiance, or the end of commands that it aborts.
    held: Option<Box<Next>>,
}

/// Where a command stands in its task set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// It has ended, or was never in one.
    Outside,
    /// Its turn has not come.
    Dormant,
    Running,
    /// It waits for data of its initiator.
    Collecting,
    /// It has begun and waits for the medium.
    Stalled,
    Alone,
    /// It writes marked blocks; where it stands is kept with that.
    Mending,
}

impl Task {
    #[inline]
    fn new(cdb: Cdb, terms: &Terms) -> Task {
        Task {
            path: None,
            unit: None,
            cdb,
            state: State::Finished,
            attribute: terms.attribute,
            place: Place::Outside,
            ticket: 0,
            sends_later: false,
            wants_alone: false,
            priority: terms.priority & priority::MAX,
            key: terms.key,
            mending: None,
            piece: None,
            held: None,
        }
    }

    /// Begins the command `cdb` (16 bytes, as iSCSI pads it; bytes after those are an extended CDB) for `lun`, as a
    /// SIMPLE one.
    pub fn start(nexus: &Nexus, lun: Lun, cdb: &[u8]) -> (Task, Next) {
        Task::start_with(nexus, lun, cdb, &Terms::default())
    }

    /// As [`Task::start`], for a transport that knows more.
    pub fn start_with(nexus: &Nexus, lun: Lun, cdb: &[u8], terms: &Terms) -> (Task, Next) {
        let block = cdb.first_chunk().map_or_else(|| padded(cdb), |block: &Cdb| *block);
        let mut task = Task::new(block, terms);
        let Some((index, path)) = nexus.find(lun) else {
            let progress = commands::start_without_unit(nexus, lun, &block);
            let next = task.advance_outside(progress);
            return (task, next);
        };
        (task.path, task.unit) = (Some(index), Some(path.place));
        if path.unit.tasks().enter(&path.member, terms.attribute) {
            task.place = Place::Running;
        } else if let Some(next) = task.enter_late(nexus, path, &block, terms.data_out_bytes) {
            return (task, next);
        }
        let context = Context { nexus, path, announced_bytes: terms.data_out_bytes };
        let progress = commands::start(&context, &block);
        let next = task.advance(progress, nexus, path);
        (task, next)
    }

    /// Goes on after what [`Next`] asked for. `nexus` is the one the task was started with. An event that was not
    /// asked for ends the command with HARDWARE ERROR.
    pub fn resume(&mut self, nexus: &Nexus, event: Event<'_>) -> Next {
        let Some(path) = self.path.and_then(|index| nexus.path(index)) else {
            return self.advance_outside(Err(SenseData::internal()));
        };
        let event = if self.place == Place::Running && !self.wants_alone {
            event
        } else if self.held.is_some() {
            return self.resume_held(nexus, path, &event);
        } else {
            let event = match self.mend(event) {
                Ok(event) => event,
                Err(next) => return next,
            };
            match self.resume_late(nexus, path, event) {
                Some(event @ Event::DataOut(_)) => {
                    let context = Context { nexus, path, announced_bytes: None };
                    if let Some(refusal) = commands::refused_after_wait(&context, &self.state, &self.cdb) {
                        return self.advance(refusal, nexus, path);
                    }
                    event
                }
                Some(event) => event,
                None => return Next::Wait,
            }
        };
        let state = std::mem::replace(&mut self.state, State::Finished);
        let progress = state.resume(&Context { nexus, path, announced_bytes: None }, event);
        if path.unit.tasks().is_blocking() {
            return self.advance_blocked(progress, nexus, path);
        }
        self.advance(progress, nexus, path)
    }

    /// A write to marked blocks is only over when they are marked no more.
    #[cold]
    fn mend<'a>(&mut self, event: Event<'a>) -> Result<Event<'a>, Next> {
        let Some(mut mending) = self.mending.take() else { return Ok(event) };
        let ended = mending.ended(event);
        if ended.is_ok() {
            self.place = mending.place;
        } else {
            self.mending = Some(mending);
        }
        ended
    }

    /// Ends a command without a completion of its own: it was aborted, or its driver could not go on. Nothing that
    /// it asked for may be under way any more.
    #[cold]
    pub fn abandon(&mut self, nexus: &Nexus) {
        if let Some(path) = self.path.and_then(|index| nexus.path(index)) {
            std::mem::replace(&mut self.state, State::Finished).abandon(&path.unit);
        }
        self.leave(nexus);
    }

    /// True until it has ended or was abandoned, if it ever took part in its unit's task set.
    #[inline]
    pub fn is_open(&self) -> bool {
        self.place != Place::Outside
    }

    /// As [`Unhindered::alone_count`], of the unit that the command is for; zero if there is none.
    pub fn alone_count(&self, nexus: &Nexus) -> u64 {
        let path = self.path.and_then(|index| nexus.path(index));
        path.map_or(0, |path| path.unit.tasks().alone_count())
    }

    /// Its place in the task set, whether it mends or not.
    fn stands(&self) -> Place {
        match &self.mending {
            Some(mending) if self.place == Place::Mending => mending.place,
            _ => self.place,
        }
    }

    #[cold]
    fn leave(&mut self, nexus: &Nexus) {
        self.place = self.stands();
        if let Some(mending) = self.mending.take() {
            mending.abandon();
        }
        if let Some(piece) = self.piece.take() {
            piece.leave();
        }
        let Some(path) = self.path.and_then(|index| nexus.path(index)) else { return };
        let tasks = path.unit.tasks();
        match std::mem::replace(&mut self.place, Place::Outside) {
            // What mends stands where it stood before.
            Place::Outside | Place::Mending => {}
            Place::Running => tasks.leave(&path.member, self.attribute, false),
            Place::Collecting => tasks.leave(&path.member, self.attribute, true),
            Place::Alone => tasks.leave_alone(&path.member, self.attribute),
            Place::Dormant | Place::Stalled => {
                tasks.cancel(self.ticket, &path.member, self.attribute);
            }
        }
    }

    /// Through which nexus a copy reaches the unit that its [`Next::IoOn`] is for, while that is being done; `None` where a token
    /// lets it.
    pub fn copies_through(&self) -> Option<&NexusName> {
        self.piece.as_ref().and_then(|piece| piece.path.as_ref()).map(|path| path.itl.name())
    }

    /// The unit that its last [`Next::IoOn`] is for, while its copy has more to do there.
    pub fn copies_on(&self) -> Option<&Arc<LogicalUnit>> {
        self.piece.as_ref().map(|piece| &piece.unit)
    }

    /// Whether its unit has a volatile write cache, so that nobody takes what the command has changed for stable.
    pub fn has_write_cache(&self, nexus: &Nexus) -> bool {
        let path = self.path.and_then(|index| nexus.path(index));
        path.is_some_and(|path| path.unit.write_cache_enabled())
    }

    /// Whether it looks at its Data-Out buffer again once an [`Io::WriteDataOut`](crate::Io::WriteDataOut) that it has asked for is done.
    pub fn needs_data_again(&self) -> bool {
        !matches!(&self.state, State::Write(write) if write.is_all())
    }

    /// The place of the task's unit in [`crate::Device::units`]; `None` where the LUN names no unit.
    pub fn unit_index(&self) -> Option<usize> {
        self.unit
    }

    #[allow(
        clippy::inline_always,
        reason = "of its callers two are every command's way, the others are cold"
    )]
    #[inline(always)]
    fn advance(&mut self, progress: Result<(State, Step), SenseData>, nexus: &Nexus, path: &Path) -> Next {
        match progress {
            Ok((state, Step::DataOut(length_bytes))) => {
                self.state = state;
                Next::DataOut { length_bytes }
            }
            Ok((state, Step::Io(io))) => {
                self.state = state;
                if path.unit.watch().is_armed() {
                    self.look_at(nexus, &path.unit, io, false)
                } else {
                    Next::Io(io)
                }
            }
            Ok((state, Step::Work { until_over })) => {
                self.state = state;
                self.leave(nexus);
                Next::Io(Io::Work { until_over })
            }
            Ok((state, Step::IoOn { unit, path, io })) => {
                self.state = state;
                self.begin_piece(nexus, unit, path, io)
            }
            Ok((_, Step::Done(data_in))) => {
                self.end(nexus, path);
                Next::Done(Completion { status: Status::Good, sense: None, data_in })
            }
            Ok((state, Step::DataOutThenAlone(length_bytes))) => {
                self.state = state;
                self.wants_alone = true;
                Next::DataOut { length_bytes }
            }
            Ok((state, Step::Alone)) => {
                self.state = state;
                self.wants_alone = true;
                self.resume(nexus, Event::DataOut(&[]))
            }
            Ok((_, Step::End(status))) => {
                self.end(nexus, path);
                path.note_refusal(status);
                Next::Done(Completion::status(status))
            }
            Err(sense) => self.check_condition(sense, nexus, path),
        }
    }

    /// The first time the piece has yet to wait for its turn; then it is asked for again.
    fn begin_piece(&mut self, nexus: &Nexus, unit: Arc<LogicalUnit>, path: Option<Path>, io: Io) -> Next {
        if self.piece.as_ref().is_none_or(|piece| !Arc::ptr_eq(&piece.unit, &unit)) {
            // A copy that ends early flushes another unit than the one where its turn has come.
            if let Some(piece) = self.piece.take() {
                piece.leave();
            }
            // Of its own unit's task set, too, it is at the medium with its pieces only. So two copies that cross each other
            // do not wait for each other's ends.
            self.collects(nexus);
            self.piece = Some(Box::new(Piece { unit, path, place: Place::Outside, ticket: 0 }));
            return Next::Yield;
        }
        self.look_at(nexus, &unit, io, true)
    }

    /// An operation is held against what must be seen to before it is done: tokens that it revokes, marks that it meets.
    #[cold]
    pub(in crate::task) fn look_at(
        &mut self,
        nexus: &Nexus,
        unit: &Arc<LogicalUnit>,
        io: Io,
        elsewhere: bool,
    ) -> Next {
        let lengths = unit.block_lengths();
        unit.watch().about_to(&io, lengths);
        let is_free = self.state.ignores_marks();
        match if is_free { Meets::Nothing } else { unit.marks().meet(&io, lengths) } {
            Meets::Nothing => {}
            Meets::Error(error) => {
                return self.resume(nexus, Event::Io { result: Err(error), data_out: &[], medium: &[] });
            }
            Meets::Change(blocks) => {
                let mending = Mending::new(Arc::clone(unit), blocks, elsewhere, self.place);
                self.mending = Some(Box::new(mending));
                self.place = Place::Mending;
            }
        }
        if elsewhere { Next::IoOn { naa: unit.identity().naa, io } } else { Next::Io(io) }
    }

    #[inline]
    fn end(&mut self, nexus: &Nexus, path: &Path) {
        if self.place != Place::Running {
            return self.leave(nexus);
        }
        self.place = Place::Outside;
        path.unit.tasks().leave(&path.member, self.attribute, false);
    }

    /// What a command without a unit answers comes at once.
    fn advance_outside(&mut self, progress: Result<(State, Step), SenseData>) -> Next {
        Next::Done(match progress {
            Ok((_, Step::Done(data_in))) => Completion { status: Status::Good, sense: None, data_in },
            Ok((_, Step::End(status))) => Completion::status(status),
            Ok(_) => Completion::from_sense(SenseData::internal(), false),
            Err(sense) => Completion::from_sense(sense, false),
        })
    }
}

#[cold]
fn padded(cdb: &[u8]) -> Cdb {
    let mut block: Cdb = [0; 16];
    let length = cdb.len().min(block.len());
    block[..length].copy_from_slice(&cdb[..length]);
    block
}

#[cfg(test)]
mod tests;
