//! The part of a task set that its lock covers: who waits, and for what.
//!
//! A command that has not begun is dormant. It begins in the order of arrival, where SAM-5 lets it: an ORDERED one when no older
//! command is left, a newer one when no ORDERED and no HEAD OF QUEUE command is left before it, a HEAD OF QUEUE one at once. A
//! command that has begun may be stalled on its way to the medium: it wants to be alone there, or another is or wants to be.
//! Stalled commands go on before any dormant one, the more urgent first (command priority), but each is passed by so many and no
//! more, so that none of them waits for ever. Commands that may begin together are told so in that order. While an auto
//! contingent allegiance stands, only those go on that it does not block. A command that collects data from its initiator, who
//! may take long or never send it, is older than the ones that come after it, but does not keep anybody from being alone. A read
//! whose answer is still to be taken from the medium does: it must not be sent half old and half new.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::allegiance::Allegiance;
use super::{Attribute, COLLECTING, Entry, Member, RUNNING, Ticket, Turn};

/// The most commands of a unit that have not begun: those of 32 initiators with 128 each. Further ones get TASK SET FULL.
pub(super) const DORMANT_MAX: usize = 4096;

/// A command that waits for the medium is passed by newer ones that are more urgent, but by no more than so many.
pub(super) const PASSED_MAX: Ticket = 256;

/// A command that has not begun.
#[derive(Debug)]
pub(super) struct Dormant {
    pub(super) ticket: Ticket,
    pub(super) member: Arc<Member>,
    pub(super) attribute: Attribute,
    pub(super) turn: Turn,
}

impl Dormant {
    fn is_head(&self) -> bool {
        self.attribute == Attribute::HeadOfQueue
    }
}

/// A command that has begun and waits for the medium. It counts as running; and as collecting, unless it is to be alone.
#[derive(Debug)]
pub(super) struct Stalled {
    pub(super) ticket: Ticket,
    pub(super) member: Arc<Member>,
    pub(super) alone: bool,
    /// It is a read that is blocked with its answer, which nobody takes from the medium before it goes on.
    pub(super) unsent: bool,
    pub(super) turn: Turn,
}

/// A command that may go on and has not been resumed.
#[derive(Debug)]
struct Grant {
    ticket: Ticket,
    alone: bool,
    /// Until it has been woken.
    turn: Option<Turn>,
}

/// See the module's documentation.
#[derive(Debug, Default)]
pub(super) struct Queue {
    members: Vec<Arc<Member>>,
    last_ticket: Ticket,
    dormant: VecDeque<Dormant>,
    /// How many of them are HEAD OF QUEUE ones.
    dormant_heads: usize,
    stalled: VecDeque<Stalled>,
    grants: Vec<Grant>,
    /// A command is alone at the medium.
    is_taken: bool,
    /// SIMPLE commands do not pass the gate unseen.
    pub(super) is_restricted: bool,
    ordered_running: bool,
    heads_running: usize,
    pub(super) allegiance: Option<Allegiance>,
    /// Commands with the ACA attribute, whether they have begun or not.
    pub(super) aca_commands: usize,
}

impl Queue {
    pub(super) fn join(&mut self, member: Arc<Member>) {
        // Of those that have parted, what was still to be sent has been.
        self.members.retain(|other| Arc::strong_count(other) > 1);
        self.members.push(member);
    }

    /// A member of whose reads something is still unsent, or through which a copy is at the medium, stays until that is
    /// over.
    pub(super) fn part(&mut self, member: &Arc<Member>) {
        self.end_allegiance_of(member);
        let is_busy = member.unsent.load(Ordering::SeqCst) > 0 || member.running() > 0;
        self.members.retain(|other| is_busy || !Arc::ptr_eq(other, member));
    }

    /// True while only SIMPLE commands are there, none of which waits or is alone.
    pub(super) fn is_plain(&self) -> bool {
        self.dormant.is_empty()
            && self.stalled.is_empty()
            && !self.is_taken
            && !self.ordered_running
            && self.heads_running == 0
            && !self.is_restricted
            && self.allegiance.is_none()
            && self.aca_commands == 0
    }

    #[cfg(test)]
    pub(super) fn is_at_rest(&self) -> bool {
        self.is_plain() && self.is_idle() && self.members.iter().all(|member| member.in_medium() == 0)
    }

    fn new_ticket(&mut self) -> Ticket {
        self.last_ticket += 1;
        self.last_ticket
    }

    /// Adds a command that has not begun, if there are not too many. No nexus has more than there is room left for others.
    pub(super) fn enter(&mut self, mut dormant: Dormant) -> Entry {
        let room = DORMANT_MAX.saturating_sub(self.dormant.len());
        // Before half of the room is taken nobody can have more than that.
        if room <= DORMANT_MAX / 2 && self.dormant_of(&dormant.member) >= room {
            return Entry::Full;
        }
        // Those that would be blocked are refused.
        dormant.turn.passes_allegiance = self.allegiance.is_some();
        self.aca_commands += usize::from(dormant.attribute == Attribute::Aca);
        let ticket = self.new_ticket();
        self.dormant_heads += usize::from(dormant.is_head());
        self.dormant.push_back(Dormant { ticket, ..dormant });
        Entry::Waits(ticket)
    }

    #[cold]
    fn dormant_of(&self, member: &Arc<Member>) -> usize {
        self.dormant.iter().filter(|other| Arc::ptr_eq(&other.member, member)).count()
    }

    fn take_dormant(&mut self, at: usize) -> Option<Dormant> {
        let dormant = self.dormant.remove(at)?;
        self.dormant_heads -= usize::from(dormant.is_head());
        Some(dormant)
    }

    /// Adds a command that has begun and waits for the medium.
    pub(super) fn stall(&mut self, stalled: Stalled) -> Ticket {
        let ticket = self.new_ticket();
        self.stalled.push_back(Stalled { ticket, ..stalled });
        ticket
    }

    pub(super) fn ended(&mut self, attribute: Attribute) {
        match attribute {
            Attribute::Simple => {}
            Attribute::Ordered => self.ordered_running = false,
            Attribute::HeadOfQueue => self.heads_running -= 1,
            Attribute::Aca => self.aca_commands -= 1,
        }
    }

    pub(super) fn alone_ended(&mut self) {
        self.is_taken = false;
    }

    /// Takes a grant; false: there is none yet.
    pub(super) fn take_grant(&mut self, ticket: Ticket) -> bool {
        let found = self.grants.iter().position(|grant| grant.ticket == ticket);
        found.map(|at| self.grants.swap_remove(at)).is_some()
    }

    /// Whom to wake: commands that have a grant since the last call, the more urgent first.
    pub(super) fn turns(&mut self) -> Vec<Turn> {
        let mut turns: Vec<Turn> = self.grants.iter_mut().filter_map(|grant| grant.turn.take()).collect();
        turns.sort_by_key(|turn| turn.rank);
        turns
    }

    /// Takes a command out that waits, or that may go on and does not know it yet.
    pub(super) fn cancel(&mut self, ticket: Ticket, member: &Member, attribute: Attribute) {
        if let Some(at) = self.dormant.iter().position(|dormant| dormant.ticket == ticket) {
            self.take_dormant(at);
            self.aca_commands -= usize::from(attribute == Attribute::Aca);
        } else if let Some(at) = self.stalled.iter().position(|stalled| stalled.ticket == ticket) {
            let stalled = self.stalled.remove(at);
            let is_alone = stalled.is_some_and(|stalled| stalled.alone);
            member.remove(if is_alone { RUNNING } else { RUNNING + COLLECTING });
            self.ended(attribute);
        } else if let Some(at) = self.grants.iter().position(|grant| grant.ticket == ticket) {
            if self.grants.swap_remove(at).alone {
                self.alone_ended();
            }
            member.remove(RUNNING);
            self.ended(attribute);
        }
    }

    /// Lets everything go on that may. Called with the gate shut.
    pub(super) fn settle(&mut self) {
        while !self.is_taken && (self.resume_stalled() || self.begin_dormant()) {}
    }

    fn grant(&mut self, ticket: Ticket, alone: bool, turn: Turn) {
        self.grants.push(Grant { ticket, alone, turn: Some(turn) });
    }

    fn resume_stalled(&mut self) -> bool {
        let at = match self.allegiance {
            Some(_) => self.stalled.iter().position(|stalled| stalled.turn.passes_allegiance),
            None => self.next_stalled(),
        };
        let Some(at) = at else { return false };
        let Some(first) = self.stalled.get(at) else { return false };
        if first.alone {
            let waiting = self.stalled.iter().filter(|stalled| stalled.alone).count() as u64;
            let in_medium: u64 = self.members.iter().map(|member| member.in_medium()).sum();
            if in_medium > waiting || self.has_unsent() {
                return false;
            }
            self.is_taken = true;
        } else {
            first.member.remove(COLLECTING);
        }
        let Some(Stalled { ticket, alone, turn, .. }) = self.stalled.remove(at) else { return false };
        self.grant(ticket, alone, turn);
        true
    }

    /// The most urgent of those that came not long after the oldest, and of equals the oldest.
    fn next_stalled(&self) -> Option<usize> {
        let last = self.stalled.front()?.ticket + PASSED_MAX;
        let near = self.stalled.iter().take_while(|stalled| stalled.ticket <= last).enumerate();
        near.min_by_key(|(_, stalled)| stalled.turn.rank).map(|(at, _)| at)
    }

    fn begin_dormant(&mut self) -> bool {
        let Some(at) = self.next_dormant() else { return false };
        let Some(next) = self.dormant.get(at) else { return false };
        match next.attribute {
            Attribute::Ordered if !self.is_idle() => return false,
            Attribute::Ordered => self.ordered_running = true,
            Attribute::HeadOfQueue => self.heads_running += 1,
            Attribute::Simple | Attribute::Aca => {}
        }
        next.member.add(RUNNING);
        let Some(Dormant { ticket, turn, .. }) = self.take_dormant(at) else { return false };
        self.grant(ticket, false, turn);
        true
    }

    /// Which command is the next to begin, if none has to be waited for that has begun.
    fn next_dormant(&self) -> Option<usize> {
        if self.allegiance.is_some() {
            // An ORDERED one would wait for commands that are blocked.
            let may_begin =
                |dormant: &Dormant| dormant.turn.passes_allegiance && dormant.attribute != Attribute::Ordered;
            return self.dormant.iter().position(may_begin);
        }
        match self.dormant_heads {
            1.. => self.dormant.iter().position(Dormant::is_head),
            0 if self.stalled.is_empty() && !self.ordered_running && self.heads_running == 0 => Some(0),
            0 => None,
        }
    }

    /// No command has begun and not ended, its answer included.
    fn is_idle(&self) -> bool {
        self.members.iter().all(|member| member.running() == 0) && !self.has_unsent()
    }

    /// The answer to a read that has ended is still to be taken from the medium. Of one that is blocked nothing is on its way.
    fn has_unsent(&self) -> bool {
        let unsent = self.members.iter().map(|member| member.unsent.load(Ordering::SeqCst) as usize);
        let blocked = self.stalled.iter().filter(|stalled| stalled.unsent).count();
        unsent.sum::<usize>() > blocked
    }

    /// Commands of others than `member` wait to begin, or to be at the medium, and not for the end of an allegiance.
    pub(super) fn has_waiting_beside(&self, member: &Member) -> bool {
        let mut dormant = self.dormant.iter().map(|command| (&command.member, &command.turn));
        let mut stalled = self.stalled.iter().map(|command| (&command.member, &command.turn));
        let is_other = |(waiting, turn): (&Arc<Member>, &Turn)| {
            !std::ptr::eq(&**waiting, member) && (self.allegiance.is_none() || turn.passes_allegiance)
        };
        dormant.any(is_other) || stalled.any(is_other)
    }

    /// Commands of others than `member` wait to begin until one of its commands ends that has begun, or do so once nobody is alone
    /// at the medium, and not for the end of an allegiance.
    pub(super) fn has_dormant_beside(&self, member: &Member, attribute: Attribute) -> bool {
        // An ORDERED one waits for all that have begun, and what is newer waits for it.
        let mut does_wait = matches!(attribute, Attribute::Ordered | Attribute::HeadOfQueue);
        self.allegiance.is_none()
            && self.dormant.iter().any(|dormant| {
                does_wait |= dormant.attribute == Attribute::Ordered;
                does_wait && !dormant.is_head() && !std::ptr::eq(&*dormant.member, member)
            })
    }
}
