//! The auto contingent allegiance (SAM-5, 5.9): after a command with NACA has ended with CHECK CONDITION, its I_T nexus alone
//! decides how the unit goes on.
//!
//! There is one task set for all nexuses (TST = 000b), so the commands of all are blocked: those that have not begun wait,
//! and those that have begun neither go on at the medium nor end. What QERR has aborted is the driver's work.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::queue::{Queue, Stalled};
use super::{Attribute, COLLECTING, Entry, Member, RUNNING, TaskSet, Ticket, Turn};
use crate::nexus::NexusName;
use crate::status::Status;

/// A condition that stands.
#[derive(Debug)]
pub(super) struct Allegiance {
    faulted: Arc<Member>,
    name: NexusName,
}

/// What a command says of itself when it comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Manner {
    pub(crate) attribute: Attribute,
    /// NACA of its CONTROL byte.
    pub(crate) naca: bool,
    /// It is a PERSISTENT RESERVE OUT with the service action PREEMPT AND ABORT, which a condition does not keep out.
    pub(crate) preempts: bool,
}

/// Why a command does not get into the task set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// It ends with this status.
    Status(Status),
    /// It has the ACA attribute, and no condition stands.
    NoAllegiance,
}

/// Where a command stands that is blocked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Blocked {
    /// Before its next operation.
    Running,
    /// Before its answer.
    Ended,
    /// The same, and the answer is still to be taken from the medium ([`TaskSet::hold_unsent`]).
    Unsent,
}

impl Queue {
    /// Tables 37 and 38 of SAM-5: what becomes of a new command of the faulted nexus, and of another one.
    pub(super) fn refusal(&self, member: &Arc<Member>, manner: Manner) -> Option<Refusal> {
        let Some(allegiance) = &self.allegiance else {
            return (manner.attribute == Attribute::Aca).then_some(Refusal::NoAllegiance);
        };
        let is_faulted = Arc::ptr_eq(&allegiance.faulted, member);
        let has_turn = is_faulted && manner.attribute == Attribute::Aca && self.aca_commands == 0;
        if manner.preempts || has_turn {
            return None;
        }
        let status = if is_faulted || manner.naca { Status::AcaActive } else { Status::Busy };
        Some(Refusal::Status(status))
    }

    /// Adds a command that is blocked: it is not at the medium, whatever it did there before.
    fn block(&mut self, member: &Arc<Member>, how: Blocked, turn: Turn) -> Ticket {
        // One that has ended was not counted any more.
        member.add(if how == Blocked::Running { COLLECTING } else { RUNNING + COLLECTING });
        let unsent = how == Blocked::Unsent;
        self.stall(Stalled { ticket: 0, member: Arc::clone(member), alone: false, unsent, turn })
    }

    /// The nexus `member` is lost, or has cleared its condition.
    pub(super) fn end_allegiance_of(&mut self, member: &Arc<Member>) {
        self.allegiance.take_if(|allegiance| Arc::ptr_eq(&allegiance.faulted, member));
    }
}

impl TaskSet {
    /// True while a condition stands. Commands that go on look here.
    #[inline]
    pub(crate) fn is_blocking(&self) -> bool {
        self.blocks.load(Ordering::SeqCst)
    }

    /// A command that has left the task set is about to end with CHECK CONDITION. By that a condition begins, or ends if it was
    /// the one that dealt with it. [`Entry::Waits`]: it is itself blocked, and asks again when it is woken.
    #[cold]
    pub(crate) fn fault(&self, member: &Arc<Member>, manner: Manner, name: &NexusName, turn: Turn) -> Entry {
        self.ask(|queue| {
            let is_its_own = manner.attribute == Attribute::Aca;
            if queue.allegiance.is_some() && !turn.passes_allegiance {
                return Entry::Waits(queue.block(member, Blocked::Ended, turn));
            }
            if manner.naca && (is_its_own || queue.allegiance.is_none()) {
                queue.allegiance = Some(Allegiance { faulted: Arc::clone(member), name: name.clone() });
            } else if is_its_own {
                queue.end_allegiance_of(member);
            }
            Entry::Begun
        })
    }

    /// Keeps a command from going on, or from ending, for as long as a condition stands. It counts as running from then on.
    #[cold]
    pub(crate) fn block(&self, member: &Arc<Member>, how: Blocked, turn: Turn) -> Entry {
        self.ask(|queue| Entry::Waits(queue.block(member, how, turn)))
    }

    /// Ends a condition, whosever it is (SAM-5, logical unit reset).
    #[cold]
    pub(crate) fn end_allegiance(&self) {
        self.change(|queue| queue.allegiance = None);
    }

    /// Ends the condition that this nexus has caused, if it has (SAM-5, CLEAR ACA and I_T nexus loss).
    #[cold]
    pub(crate) fn end_allegiance_of(&self, member: &Arc<Member>) {
        self.change(|queue| queue.end_allegiance_of(member));
    }

    /// Ends the condition that one of these nexuses has caused (SPC-4, PREEMPT AND ABORT).
    #[cold]
    pub(crate) fn end_allegiance_of_any(&self, nexuses: &[NexusName]) {
        self.change(|queue| {
            queue.allegiance.take_if(|allegiance| nexuses.contains(&allegiance.name));
        });
    }
}
