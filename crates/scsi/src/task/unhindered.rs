//! A READ or WRITE that nothing stands in the way of, for a driver that carries it out before it does anything else.
//!
//! It is looked at by the rules of [`Task`], and has its place in the task set; what it does without is the state between two steps.

use super::{Event, Next, Place, Task, Terms, Unsent};
use crate::bytes::Cdb;
use crate::commands::{self, Context, Transfer, Wanted};
use crate::io::{Io, IoOutcome};
use crate::nexus::Way;
use crate::task_set::Attribute;

/// A READ or WRITE that may go to the medium at once. It is in its unit's task set until it [ends](Self::end), or is dropped: it
/// can then be begun anew as a [`Task`], if it has not been on the medium.
#[derive(Debug)]
pub struct Unhindered<'a> {
    way: Way<'a>,
    cdb: &'a Cdb,
    terms: &'a Terms,
    transfer: Transfer,
}

/// How a command ended that was on the medium.
#[derive(Debug)]
pub enum Ended {
    /// With GOOD.
    Good,
    /// Its answer has to wait for something that has happened meanwhile. A write has been done, and goes on with this.
    Later(Box<(Task, Next)>),
    /// As [`Ended::Later`]; what a read has brought is of no use, and it is to be begun anew as a [`Task`].
    Again,
}

impl<'a> Unhindered<'a> {
    /// Begins the READ or WRITE `cdb` on the `way` to its unit if it is SIMPLE and nothing keeps it from its medium: no unit attention, no
    /// reservation, no other command, nothing about its unit or its CDB, no protection information, no mark, no token that a WRITE could
    /// revoke. `None`: it is another command, or is to be begun as a [`Task`], which tells what the matter is; nothing has changed.
    pub fn begin(way: Way<'a>, cdb: &'a Cdb, terms: &'a Terms) -> Option<Self> {
        let Way { nexus, path, .. } = way;
        let wanted = Wanted::of(cdb)?;
        let tasks = path.unit.tasks();
        if terms.attribute != Attribute::Simple || tasks.is_shut() {
            return None;
        }
        if !tasks.enter(&path.member, Attribute::Simple) {
            tasks.gone();
            return None;
        }
        let context = Context { nexus, path, announced_bytes: terms.data_out_bytes };
        match commands::unhindered(&context, cdb, &wanted) {
            Some(transfer) if !path.unit.watch().is_armed_for(transfer.writes) => {
                Some(Self { way, cdb, terms, transfer })
            }
            _ => {
                tasks.leave(&path.member, Attribute::Simple, false);
                None
            }
        }
    }

    /// Where another READ or WRITE of this unit would go on the medium, and how much it would move, in bytes; not whether it may.
    pub fn range_of(&self, cdb: &Cdb) -> Option<(u64, u32)> {
        let range = Wanted::of(cdb)?.range(&self.way.path.unit)?;
        Some((range.offset_bytes, range.length_bytes))
    }

    /// True for a WRITE.
    pub fn writes(&self) -> bool {
        self.transfer.writes
    }

    /// Where on the medium, in bytes.
    pub fn offset_bytes(&self) -> u64 {
        self.transfer.range.offset_bytes
    }

    /// How much, in bytes; not zero. Of a WRITE the driver must have exactly so much.
    pub fn length_bytes(&self) -> u32 {
        self.transfer.range.length_bytes
    }

    /// What is written has to be stable before the command ends.
    pub fn stable(&self) -> bool {
        self.transfer.stable
    }

    /// How many commands have been alone at the medium of its unit: if it is another number than before, somebody was there in between.
    pub fn alone_count(&self) -> u64 {
        self.way.path.unit.tasks().alone_count()
    }

    /// Whether a part of its data may be stored before the rest has come; counts as one part if not.
    pub fn may_store_early(&self) -> bool {
        self.way.path.unit.tasks().may_store_early()
    }

    /// The same as a task asks for it.
    pub fn io(&self) -> Io {
        let (offset_bytes, length_bytes) = (self.offset_bytes(), self.length_bytes());
        if self.writes() {
            Io::WriteDataOut { offset_bytes, start: 0, length_bytes, stable: self.stable() }
        } else {
            Io::Read { offset_bytes, length_bytes, inspected: false }
        }
    }

    /// As [`Task::send_later`]; `None` while commands come that would have to wait for that, and until as many reads as
    /// [`Task::may_send_later`] counts have come without one.
    pub fn send_later(&self) -> Option<Unsent> {
        let path = self.way.path;
        path.unit.tasks().may_send_short_later().then(|| Unsent::of(path))
    }

    /// All of it has been read or written.
    pub fn end(self) -> Ended {
        let unit = &self.way.path.unit;
        // A reset may have turned off the write cache, which is then flushed first.
        let is_kept = !self.writes() || self.stable() || unit.write_cache_enabled();
        if is_kept && !unit.tasks().is_blocking() {
            return Ended::Good;
        }
        if !self.writes() {
            return Ended::Again;
        }
        let nexus = self.way.nexus;
        let mut task = self.into_task();
        let next = task.resume(nexus, Event::Io { result: Ok(IoOutcome::Done), data_out: &[], medium: &[] });
        Ended::Later(Box::new((task, next)))
    }

    /// The medium takes longer, or has failed: a task in the same place, which asks for the same. Part of it may have been done.
    #[cold]
    pub fn wait(self) -> (Task, Next) {
        let io = self.io();
        (self.into_task(), Next::Io(io))
    }

    /// A task that is on the medium.
    fn into_task(self) -> Task {
        let mut task = Task::new(*self.cdb, self.terms);
        (task.path, task.unit) = (Some(self.way.index), Some(self.way.path.place));
        task.state = self.transfer.under_way();
        task.place = Place::Running;
        // It takes the place in the task set over.
        std::mem::forget(self);
        task
    }
}

impl Drop for Unhindered<'_> {
    fn drop(&mut self) {
        let path = self.way.path;
        path.unit.tasks().leave(&path.member, Attribute::Simple, false);
    }
}
