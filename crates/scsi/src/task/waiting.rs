//! A command that has to wait in its task set: for its turn to begin, for the medium, or for its initiator's data.
//!
//! Who waits for whom is [`crate::task_set`]'s matter.

use std::sync::Arc;

use super::{Completion, Event, Next, Piece, Place, Task};
use crate::bytes::Cdb;
use crate::commands::{self, State};
use crate::nexus::Nexus;
use crate::paths::Path;
use crate::priority::{self, Rank};
use crate::status::Status;
use crate::task_set::{Attribute, Entry, Turn};

impl Task {
    /// The command is ordered, or something of its task set keeps it from beginning at once; `None`: it may after all.
    #[cold]
    pub(super) fn enter_late(
        &mut self,
        nexus: &Nexus,
        path: &Path,
        cdb: &Cdb,
        announced_bytes: Option<u32>,
    ) -> Option<Next> {
        let tasks = path.unit.tasks();
        // It is not in the task set, and nothing of it is left there.
        if commands::touches_nothing(cdb) && self.attribute != Attribute::Aca {
            return match tasks.pass(&path.member, self.manner(path)) {
                Entry::Refused(refusal) => Some(self.refused(refusal, nexus, path)),
                _ => None,
            };
        }
        if self.manner(path).preempts && tasks.is_blocking() {
            // It could not wait for what is blocked.
            self.attribute = Attribute::Simple;
        }
        // All older writes of the nexus before it, all newer ones after it: more than is asked for, and simple.
        if self.attribute == Attribute::Simple
            && path.unit.mode().restricted_reordering()
            && commands::writes_medium(cdb)
        {
            self.attribute = Attribute::Ordered;
        }
        match tasks.enter_late(&path.member, self.manner(path), self.turn(nexus)) {
            Entry::Begun => {
                self.place = Place::Running;
                None
            }
            Entry::Waits(ticket) => {
                (self.place, self.ticket) = (Place::Dormant, ticket);
                self.state = State::Dormant { cdb: *cdb, announced_bytes };
                Some(Next::Wait)
            }
            Entry::Full => {
                path.note_refusal(Status::TaskSetFull);
                Some(Next::Done(Completion::status(Status::TaskSetFull)))
            }
            Entry::Refused(refusal) => Some(self.refused(refusal, nexus, path)),
        }
    }

    /// What a command that waited, or may have to, goes on with; `None`: it waits.
    #[cold]
    pub(super) fn resume_late<'a>(
        &mut self,
        nexus: &Nexus,
        path: &Path,
        event: Event<'a>,
    ) -> Option<Event<'a>> {
        if let Some(piece) = self.piece.take() {
            return self.resume_piece(nexus, piece, event);
        }
        let tasks = path.unit.tasks();
        match (self.place, event) {
            (Place::Dormant | Place::Stalled, Event::Turn { .. }) if !tasks.take_turn(self.ticket) => None,
            (Place::Dormant, event @ Event::Turn { .. }) => {
                self.place = Place::Running;
                Some(event)
            }
            (Place::Stalled, Event::Turn { data_out }) => {
                self.reaches_medium();
                Some(Event::DataOut(data_out))
            }
            (Place::Running | Place::Collecting, event @ Event::DataOut(_)) => {
                let entry = if self.wants_alone {
                    tasks.be_alone(&path.member, self.place == Place::Collecting, self.turn(nexus))
                } else {
                    tasks.go_on(&path.member, self.turn(nexus))
                };
                if let Entry::Waits(ticket) = entry {
                    (self.place, self.ticket) = (Place::Stalled, ticket);
                    return None;
                }
                self.reaches_medium();
                Some(event)
            }
            // What was not asked for is for the command's own state to refuse.
            (_, event) => Some(event),
        }
    }

    /// A piece of a copy goes into the task set of its unit before it is done, and leaves it afterwards. Only when it is
    /// there does the command look, once more, whether it may be done.
    fn resume_piece<'a>(
        &mut self,
        nexus: &Nexus,
        mut piece: Box<Piece>,
        event: Event<'a>,
    ) -> Option<Event<'a>> {
        let may_go_on = match event {
            Event::Turn { .. } => {
                // What lets the command pass an allegiance of its own unit says nothing of another one.
                let is_own = self.path_of(nexus).is_some_and(|path| Arc::ptr_eq(&path.unit, &piece.unit));
                piece.enter(|| {
                    let turn = self.turn(nexus);
                    Turn { passes_allegiance: is_own && turn.passes_allegiance, ..turn }
                })
            }
            _ => {
                piece.leave();
                return Some(event);
            }
        };
        self.piece = Some(piece);
        may_go_on.then_some(event)
    }

    fn path_of<'a>(&self, nexus: &'a Nexus) -> Option<&'a Path> {
        self.path.and_then(|index| nexus.path(index))
    }

    fn reaches_medium(&mut self) {
        self.place = if self.wants_alone { Place::Alone } else { Place::Running };
        self.wants_alone = false;
    }

    pub(super) fn turn(&self, nexus: &Nexus) -> Turn {
        let passes_allegiance = self.attribute == Attribute::Aca || commands::is_preempt_and_abort(&self.cdb);
        Turn { waker: nexus.waker(), key: self.key, passes_allegiance, rank: self.rank(nexus) }
    }

    /// Where it stands among those that wait.
    fn rank(&self, nexus: &Nexus) -> Rank {
        if self.attribute != Attribute::Simple {
            return priority::FIRST;
        }
        let path = self.path_of(nexus);
        priority::rank(self.priority, path.map_or(priority::NONE, |path| path.itl.priority()))
    }

    /// The data that [`Next::DataOut`] asked for is not there yet, and the initiator may take its time: others need not
    /// wait for it to be alone at the medium.
    pub fn collects(&mut self, nexus: &Nexus) {
        if self.place == Place::Running
            && let Some(path) = self.path.and_then(|index| nexus.path(index))
        {
            self.place = Place::Collecting;
            path.unit.tasks().collect(&path.member);
        }
    }

    /// Whether it waits for its initiator's data while other initiators' commands of its unit wait for it to end: the driver is to
    /// give the initiator so much time and no more.
    pub fn keeps_others_waiting(&self, nexus: &Nexus) -> bool {
        self.place == Place::Collecting
            && self
                .path
                .and_then(|index| nexus.path(index))
                .is_some_and(|path| path.unit.tasks().waits_for_data(&path.member, self.attribute))
    }
}
