//! The task set of a logical unit: which of its commands may run together (SAM-5, task set management).
//!
//! A SIMPLE command that meets no other kind pays for it with one atomic addition and one look at the gate when it
//! begins, and the same when it ends. Everything else shuts the gate, and goes through a lock: see [`queue`] for the
//! rules and `docs/decisions/0018` for the mechanism. It is not the order of a session's commands, which is the
//! transport's, and it starts nothing by itself: who has to wait is woken through [`Wake`].

mod allegiance;
mod queue;

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use queue::{Dormant, Queue, Stalled};

use crate::priority::Rank;

pub(crate) use allegiance::{Blocked, Manner, Refusal};

/// How a command is ordered among those of its logical unit (SAM-5, task attributes).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Attribute {
    /// In any order with other SIMPLE commands. What comes untagged is taken for it.
    #[default]
    Simple,
    /// After all older commands, before all newer ones.
    Ordered,
    /// Before everything that has not begun.
    HeadOfQueue,
    /// While an auto contingent allegiance stands, and only then.
    Aca,
}

/// Tells a driver that one of its waiting commands may go on.
pub trait Wake: fmt::Debug + Send + Sync {
    /// The command with this key is to be resumed with [`crate::Event::Turn`]. Called on any thread, with no lock held;
    /// the command may have ended meanwhile.
    fn wake(&self, key: u64);
}

/// For who never has two commands at a time.
#[derive(Debug)]
pub(crate) struct NobodyWaits;

impl Wake for NobodyWaits {
    fn wake(&self, _: u64) {}
}

/// Whom to wake.
#[derive(Clone, Debug)]
pub(crate) struct Turn {
    pub(crate) waker: Arc<dyn Wake>,
    pub(crate) key: u64,
    /// An auto contingent allegiance does not block it.
    pub(crate) passes_allegiance: bool,
    /// Of those that may go on, the one with the lowest does so first.
    pub(crate) rank: Rank,
}

/// What one I_T nexus has in the task set. Its counts are its own cache line: a nexus lives on one thread.
#[derive(Debug, Default)]
#[repr(align(64))]
pub(crate) struct Member {
    /// The low half counts commands that have begun, the high half those of them that wait for the initiator's data.
    tally: AtomicU64,
    /// Reads that have ended and whose data the transport has yet to take from the medium.
    unsent: AtomicU32,
}

/// Something that is not done for a while after somebody came who had to wait for it, or met with it.
#[derive(Debug, Default)]
struct Restraint(AtomicU32);

impl Restraint {
    /// So many times: half a minute of a fast unit's long reads, so that somebody who comes every few seconds, as a cluster's
    /// heartbeat, finds none of it after the first time.
    const TIMES: u32 = 1 << 20;

    fn begin(&self) {
        self.0.store(Self::TIMES, Ordering::Relaxed);
    }

    /// Whether it may be done, for what comes too often to count.
    fn is_not_set(&self) -> bool {
        self.0.load(Ordering::Relaxed) == 0
    }

    /// Whether it may be done; counts if not.
    fn is_over(&self) -> bool {
        let left = self.0.load(Ordering::Relaxed);
        if left > 0 {
            // Of two that count at once, one may be lost; that is no matter.
            self.0.store(left - 1, Ordering::Relaxed);
        }
        left == 0
    }
}

const RUNNING: u64 = 1;
const COLLECTING: u64 = 1 << 32;

impl Member {
    fn running(&self) -> u64 {
        self.tally.load(Ordering::SeqCst) % COLLECTING
    }

    /// Commands that may reach the medium at any moment.
    fn in_medium(&self) -> u64 {
        let tally = self.tally.load(Ordering::SeqCst);
        tally % COLLECTING - tally / COLLECTING
    }

    fn add(&self, count: u64) {
        self.tally.fetch_add(count, Ordering::SeqCst);
    }

    fn remove(&self, count: u64) {
        self.tally.fetch_sub(count, Ordering::SeqCst);
    }
}

/// Names a command that waits.
pub(crate) type Ticket = u64;

/// What became of a wish to begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Entry {
    Begun,
    Waits(Ticket),
    Full,
    Refused(Refusal),
}

/// See the module's documentation.
#[derive(Debug, Default)]
pub(crate) struct TaskSet {
    /// Shut while anything but SIMPLE commands without a wish to be alone is there. A command counts itself first and
    /// looks at the gate then; who shuts it looks at the counts afterwards. So one of the two sees the other.
    is_shut: AtomicBool,
    /// Whether an auto contingent allegiance stands. Then the gate is shut too.
    blocks: AtomicBool,
    /// How many commands have been alone at the medium.
    alone_count: AtomicU64,
    /// Sending reads from the medium after they have ended: what is still to be sent must not change.
    sends_later: Restraint,
    /// Storing parts of long writes before the rest of them has come.
    stores_early: Restraint,
    queue: Mutex<Queue>,
}

impl TaskSet {
    /// Whether SIMPLE commands come one by one too, so that each can be given an order (SPC-4, QUEUE ALGORITHM MODIFIER).
    pub(crate) fn restrict(&self, is_restricted: bool) {
        self.change(|queue| queue.is_restricted = is_restricted);
    }

    /// No command is there, and none would be stopped at the gate.
    #[cfg(test)]
    pub(crate) fn is_at_rest(&self) -> bool {
        !self.is_blocking() && !self.is_shut.load(Ordering::SeqCst) && self.lock().is_at_rest()
    }

    /// A new I_T nexus.
    pub(crate) fn join(&self) -> Arc<Member> {
        let member = Arc::new(Member::default());
        self.lock().join(Arc::clone(&member));
        member
    }

    /// An I_T nexus is lost; its commands have ended.
    pub(crate) fn part(&self, member: &Arc<Member>) {
        self.change(|queue| queue.part(member));
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether no command begins without a look at the others.
    #[inline]
    pub(crate) fn is_shut(&self) -> bool {
        self.is_shut.load(Ordering::SeqCst)
    }

    /// Begins a command; false sends it to [`Self::enter_late`].
    #[inline]
    pub(crate) fn enter(&self, member: &Member, attribute: Attribute) -> bool {
        if attribute != Attribute::Simple {
            return false;
        }
        member.add(RUNNING);
        if !self.is_shut.load(Ordering::SeqCst) {
            return true;
        }
        member.remove(RUNNING);
        false
    }

    /// Begins a command that is ordered, or that has found the gate shut.
    #[cold]
    pub(crate) fn enter_late(&self, member: &Arc<Member>, manner: Manner, turn: Turn) -> Entry {
        let attribute = manner.attribute;
        if attribute != Attribute::Simple {
            self.sends_later.begin();
        }
        self.ask(|queue| match queue.refusal(member, manner) {
            Some(refusal) => Entry::Refused(refusal),
            None => queue.enter(Dormant { ticket: 0, member: Arc::clone(member), attribute, turn }),
        })
    }

    /// After a command that has found the gate shut begins without being counted, because it touches nothing.
    #[cold]
    pub(crate) fn pass(&self, member: &Arc<Member>, manner: Manner) -> Entry {
        // Its count, though it was taken back, may have kept somebody waiting.
        self.ask(|queue| queue.refusal(member, manner).map_or(Entry::Begun, Entry::Refused))
    }

    /// After a command that has found the gate shut, and asks again later.
    #[cold]
    pub(crate) fn gone(&self) {
        // Its count, though it was taken back, may have kept somebody waiting.
        self.change(|_| ());
    }

    /// Ends a command that has begun. `was_collecting`: it was aborted while its data was waited for.
    #[inline]
    pub(crate) fn leave(&self, member: &Member, attribute: Attribute, was_collecting: bool) {
        if attribute != Attribute::Simple {
            return self.change(|queue| {
                member.remove(weight(was_collecting));
                queue.ended(attribute);
            });
        }
        member.remove(weight(was_collecting));
        if self.is_shut.load(Ordering::SeqCst) {
            self.change(|_| ());
        }
    }

    /// As [`Self::leave`], for a command that was alone.
    #[cold]
    pub(crate) fn leave_alone(&self, member: &Member, attribute: Attribute) {
        self.change(|queue| {
            member.remove(RUNNING);
            // Before anybody else goes on.
            self.alone_count.fetch_add(1, Ordering::SeqCst);
            queue.alone_ended();
            queue.ended(attribute);
        });
    }

    /// How many commands have been alone at the medium so far. Nobody is while another runs.
    pub(crate) fn alone_count(&self) -> u64 {
        self.alone_count.load(Ordering::SeqCst)
    }

    /// A command begins to wait for data: until [`Self::go_on`] or [`Self::be_alone`] it stays away from the medium, but for what is stored
    /// of its data beside it ([`crate::Unhindered`]).
    pub(crate) fn collect(&self, member: &Member) {
        member.add(COLLECTING);
        if self.is_shut.load(Ordering::SeqCst) {
            self.change(|_| ());
        }
    }

    /// The data of a command has come.
    pub(crate) fn go_on(&self, member: &Arc<Member>, turn: Turn) -> Entry {
        member.remove(COLLECTING);
        if !self.is_shut.load(Ordering::SeqCst) {
            return Entry::Begun;
        }
        member.add(COLLECTING);
        let stalled = Stalled { ticket: 0, member: Arc::clone(member), alone: false, unsent: false, turn };
        self.ask(|queue| Entry::Waits(queue.stall(stalled)))
    }

    /// Begins an operation of a command that has begun elsewhere. It waits for commands that are alone, and for nothing else:
    /// what waits for the command's own end must not keep it from that.
    pub(crate) fn enter_begun(&self, member: &Arc<Member>, turn: Turn) -> Entry {
        member.add(RUNNING);
        if !self.is_shut.load(Ordering::SeqCst) {
            return Entry::Begun;
        }
        member.add(COLLECTING);
        let stalled = Stalled { ticket: 0, member: Arc::clone(member), alone: false, unsent: false, turn };
        self.ask(|queue| Entry::Waits(queue.stall(stalled)))
    }

    /// A command wants to go on when no other is at the medium, and then alone.
    #[cold]
    pub(crate) fn be_alone(&self, member: &Arc<Member>, was_collecting: bool, turn: Turn) -> Entry {
        self.sends_later.begin();
        self.stores_early.begin();
        let stalled = Stalled { ticket: 0, member: Arc::clone(member), alone: true, unsent: false, turn };
        self.ask(|queue| {
            if was_collecting {
                stalled.member.remove(COLLECTING);
            }
            Entry::Waits(queue.stall(stalled))
        })
    }

    /// Whether commands of others wait to begin until this member's command ends, which has begun and collects data.
    pub(crate) fn waits_for_data(&self, member: &Member, attribute: Attribute) -> bool {
        self.is_shut.load(Ordering::SeqCst) && self.lock().has_dormant_beside(member, attribute)
    }

    /// Whether commands of others wait while answers to this member's reads have yet to be taken.
    pub(crate) fn waits_for_unsent(&self, member: &Member) -> bool {
        member.unsent.load(Ordering::SeqCst) > 0
            && self.is_shut.load(Ordering::SeqCst)
            && self.lock().has_waiting_beside(member)
    }

    /// Whether answers to this member's reads have yet to be taken.
    pub(crate) fn has_unsent(&self, member: &Member) -> bool {
        member.unsent.load(Ordering::SeqCst) > 0
    }

    /// Whether a command that waits may go on. It is told so once.
    pub(crate) fn take_turn(&self, ticket: Ticket) -> bool {
        self.lock().take_grant(ticket)
    }

    /// Gives up a command that waits.
    pub(crate) fn cancel(&self, ticket: Ticket, member: &Member, attribute: Attribute) {
        self.change(|queue| queue.cancel(ticket, member, attribute));
    }

    /// Whether a read may be sent from the medium after it has ended. Not while commands come that would have to wait for
    /// that; they are taken to have ceased after [`Restraint::TIMES`] reads without one.
    pub(crate) fn may_send_later(&self) -> bool {
        self.sends_later.is_over()
    }

    /// The same of a short read, of which far more come in the same time: none of them is counted.
    pub(crate) fn may_send_short_later(&self) -> bool {
        self.sends_later.is_not_set()
    }

    /// Whether a part of a write may be stored before the rest of its data has come: who is alone would fall into the middle of it.
    pub(crate) fn may_store_early(&self) -> bool {
        self.stores_early.is_over()
    }

    /// The answer to a read that ends now is still to be taken from the medium.
    pub(crate) fn hold_unsent(&self, member: &Member) {
        member.unsent.fetch_add(1, Ordering::SeqCst);
    }

    /// It was taken.
    pub(crate) fn release_unsent(&self, member: &Member) {
        member.unsent.fetch_sub(1, Ordering::SeqCst);
        if self.is_shut.load(Ordering::SeqCst) {
            self.change(|_| ());
        }
    }

    /// Changes something, then lets go on who may.
    #[cold]
    fn change(&self, change: impl FnOnce(&mut Queue)) {
        let mut queue = self.lock();
        self.is_shut.store(true, Ordering::SeqCst);
        change(&mut queue);
        queue.settle();
        self.unlock(queue);
    }

    /// Adds a command that waits, unless it need not.
    fn ask(&self, add: impl FnOnce(&mut Queue) -> Entry) -> Entry {
        let mut queue = self.lock();
        // Before the counts are looked at, and so before anything is decided by them.
        self.is_shut.store(true, Ordering::SeqCst);
        let mut entry = add(&mut queue);
        queue.settle();
        if let Entry::Waits(ticket) = entry
            && queue.take_grant(ticket)
        {
            entry = Entry::Begun;
        }
        self.unlock(queue);
        entry
    }

    fn unlock(&self, mut queue: MutexGuard<'_, Queue>) {
        let turns = queue.turns();
        self.blocks.store(queue.allegiance.is_some(), Ordering::SeqCst);
        if queue.is_plain() {
            self.is_shut.store(false, Ordering::SeqCst);
        }
        drop(queue);
        for turn in turns {
            turn.waker.wake(turn.key);
        }
    }
}

const fn weight(was_collecting: bool) -> u64 {
    if was_collecting { RUNNING + COLLECTING } else { RUNNING }
}

#[cfg(test)]
mod tests;
