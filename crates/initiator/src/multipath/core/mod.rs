//! What is decided about paths and commands, without I/O and without a clock: which path takes a command, what goes on after a
//! path has died, and what has to wait until the dead path can do nothing any more (`docs/decisions/0029`).
//!
//! The driver tells what has happened and carries out the [`Action`]s. Each command that was submitted is ended once, by the
//! driver when [`Core::ended`] says so, or by [`Action::Fail`].

mod ghosts;
mod path;
#[cfg(test)]
mod tests;
mod timers;

use std::collections::VecDeque;
use std::time::Duration;

use slab::Slab;

pub(crate) use ghosts::{Extent, Ghosts, Nexus};
pub use path::{Access, Policy};
pub(crate) use path::{Chooser, Health, Path};

use super::PathTiming;
use crate::Replay;
use crate::engine::replay::{self, Kind};

/// How often a command may be refused by paths that say that they are not the right one.
const BOUNCES_MAX: u32 = 16;
/// How often a command may lose its path, or be stopped: it may be what does it.
const LOSSES_MAX: u32 = 8;
/// How often a command is sent again that was ended at the target since it was not answered.
const STOPS_MAX: u32 = 2;
/// How long others are preferred to a path that answers pings, but has not answered a command.
const SUSPICION: Duration = Duration::from_secs(60);

/// What has to be known of a command.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Facts {
    pub(crate) kind: Kind,
    pub(crate) replay: Replay,
    pub(crate) extent: Extent,
}

/// Where a command is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    Waiting,
    Sent { path: usize, at: Duration },
}

/// A command that is not over, with what the driver keeps of it.
#[derive(Debug)]
pub(crate) struct Entry<T> {
    pub(crate) payload: T,
    facts: Facts,
    pub(crate) serial: u64,
    pub(crate) place: Place,
    /// The session that it was sent in last.
    session: u32,
    /// Since when it waits, whatever was tried in between.
    waits_since: Duration,
    /// It may have been carried out.
    pub(crate) has_run: bool,
    /// An older one may still change what it changes.
    is_haunted: bool,
    /// A reset came to light beside this flush.
    is_void: bool,
    bounces: u32,
    losses: u32,
    stops: u32,
    pub(crate) attempts: u32,
}

/// How a command ended on its path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    Good,
    /// With anything else that its caller is to hear.
    Other,
    /// The path is not the right one; it was not carried out.
    Refused(Access),
    /// The unit had something to tell first: that states have changed, or that it was reset from here. It was not carried out.
    NotYet,
    /// The path died before it had left.
    NotSent,
    /// The path died, and nobody knows.
    Unknown,
    /// It was not answered, and was ended at the target: it may have been carried out, and does nothing any more.
    Stopped,
    /// A reset, of ours or as the target tells (TASK ABORTED), or another initiator has ended it: the same, and the path is as good as
    /// any.
    Aborted,
}

/// What becomes of a command that ended on its path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// It is over, and its caller hears what was said.
    Over,
    /// It is over: the flush cannot promise what was written before a reset.
    ResetSinceFlush,
    /// It goes on, and is kept.
    Kept,
}

/// Why a command ends without a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Failure {
    /// No path came in time.
    NoPath {
        has_run: bool,
    },
    /// An older one of a dead path may still change the same.
    Haunted,
    ResetSinceFlush,
}

/// For the driver to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Action {
    /// Send a command on a path.
    Send { key: usize, path: usize },
    /// End a command.
    Fail { key: usize, failure: Failure },
    /// Log in; [`Core::opened`] or [`Core::open_failed`] follows.
    Open { path: usize },
    /// Log in as this path at another's portal, which ends its old session, and out again; [`Core::fenced`] follows.
    Fence { path: usize, via: usize },
    /// Reset the unit; [`Core::reset`] follows.
    Reset { via: usize },
    /// Ask for the states of the port groups.
    Check { path: usize },
    /// Ask what a path leads to; [`Core::looked`] follows.
    Look { path: usize },
    /// No path came back in time: nothing goes on.
    GiveUp,
}

/// See the module's documentation.
#[derive(Debug)]
pub(crate) struct Core<T> {
    timing: PathTiming,
    pub(crate) paths: Vec<Path>,
    chooser: Chooser,
    pub(crate) entries: Slab<Entry<T>>,
    waiting: VecDeque<usize>,
    serials: u64,
    pub(crate) ghosts: Ghosts,
    /// When the reset that is under way was sent.
    resetting: Option<Duration>,
    reset_at: Duration,
    /// See [`crate::Completion::session`].
    session: u32,
    /// Something was written that no good flush has covered.
    is_dirty: bool,
    /// The unit was reset after that.
    is_reset: bool,
    /// Since when there has been no path, after there was one. Until then the logins have their own time.
    alone_since: Option<Duration>,
    /// Until when dead paths' commands are being ended before the end of it all.
    settles_until: Option<Duration>,
    has_given_up: bool,
    pub(crate) actions: VecDeque<Action>,
}

impl<T> Core<T> {
    pub(crate) fn new(paths: usize, policy: Policy, timing: PathTiming) -> Self {
        Self {
            timing,
            paths: (0..paths).map(|_| Path::new()).collect(),
            chooser: Chooser::new(policy),
            entries: Slab::new(),
            waiting: VecDeque::new(),
            serials: 0,
            ghosts: Ghosts::default(),
            resetting: None,
            reset_at: Duration::ZERO,
            session: 0,
            is_dirty: false,
            is_reset: false,
            alone_since: None,
            settles_until: None,
            has_given_up: false,
            actions: VecDeque::new(),
        }
    }

    /// Takes a command.
    pub(crate) fn submit(&mut self, now: Duration, facts: Facts, payload: T) -> usize {
        let key = self.insert(now, facts, payload);
        self.waiting.push_back(key);
        self.pump(now);
        key
    }

    /// A place for a command that is not sent.
    pub(crate) fn insert(&mut self, now: Duration, facts: Facts, payload: T) -> usize {
        self.serials += 1;
        self.entries.insert(Entry {
            payload,
            facts,
            serial: self.serials,
            place: Place::Waiting,
            session: self.session,
            waits_since: now,
            has_run: false,
            is_haunted: false,
            is_void: false,
            bounces: 0,
            losses: 0,
            stops: 0,
            attempts: 0,
        })
    }

    /// The command is over; its payload is the driver's again.
    pub(crate) fn take(&mut self, key: usize) -> Option<T> {
        self.waiting.retain(|waiting| *waiting != key);
        self.entries.try_remove(key).map(|entry| entry.payload)
    }

    /// Gives paths to commands that wait.
    fn pump(&mut self, now: Duration) {
        if self.paths.iter().all(|path| path.rank().is_none()) {
            return;
        }
        for _ in 0..self.waiting.len() {
            let Some(key) = self.waiting.pop_front() else { return };
            if !self.try_send(now, key) {
                self.waiting.push_back(key);
            }
        }
    }

    /// Sends a command, or fails it; false if it has to wait.
    fn try_send(&mut self, now: Duration, key: usize) -> bool {
        let Some(entry) = self.entries.get_mut(key) else { return true };
        entry.is_haunted = self.ghosts.haunt(entry.facts.extent, entry.serial);
        if entry.is_haunted {
            return false;
        }
        let is_flush = entry.facts.kind == Kind::Flushes;
        if is_flush && std::mem::take(&mut self.is_reset) {
            self.actions.push_back(Action::Fail { key, failure: Failure::ResetSinceFlush });
            return true;
        }
        let Some(path) = self.chooser.choose(now, &self.paths) else { return false };
        if is_flush {
            self.is_dirty = false;
        }
        (entry.place, entry.attempts) = (Place::Sent { path, at: now }, entry.attempts + 1);
        entry.session = self.session;
        self.paths[path].outstanding += 1;
        self.paths[path].sent += 1;
        self.actions.push_back(Action::Send { key, path });
        true
    }

    /// A command has ended on its path.
    pub(crate) fn ended(&mut self, now: Duration, key: usize, outcome: Outcome) -> Verdict {
        let Some(entry) = self.entries.get_mut(key) else { return Verdict::Over };
        let Place::Sent { path, at } = entry.place else { return Verdict::Over };
        let on = &mut self.paths[path];
        on.outstanding = on.outstanding.saturating_sub(1);
        let facts = entry.facts;
        if facts.kind == Kind::Flushes && outcome != Outcome::Good {
            // What it was to cover is not covered, whether it goes on or not.
            self.is_dirty = true;
        }
        match outcome {
            Outcome::Good | Outcome::Other => {
                on.measured(now.saturating_sub(at));
                self.has_answered(path, at);
                return self.answered(key, outcome == Outcome::Good);
            }
            Outcome::Refused(access) => {
                on.check_at = now;
                if on.believes(at) {
                    (on.access, on.since) = (access, now);
                }
                entry.bounces += 1;
            }
            Outcome::NotYet => {
                on.check_at = now;
                entry.bounces += 1;
            }
            Outcome::NotSent => entry.losses += 1,
            Outcome::Unknown | Outcome::Stopped | Outcome::Aborted => {
                (entry.losses, entry.has_run) = (entry.losses + 1, true);
                if outcome == Outcome::Stopped {
                    entry.stops += 1;
                    on.eligible_at = on.eligible_at.max(now.saturating_add(SUSPICION));
                }
                self.is_dirty |= replay::kind_leaves_dirty(facts.kind, false);
                if outcome == Outcome::Unknown {
                    let nexus = Nexus { path, portal_group_tag: on.portal_group_tag };
                    self.ghosts.note(now, nexus, entry.serial, facts.extent);
                }
            }
        }
        let is_of_reset = outcome == Outcome::Aborted && (entry.is_void || self.resetting.is_some());
        if facts.kind == Kind::Flushes && is_of_reset {
            // It was no fault of the flush: its caller makes sure of what it was to cover, and sends another one.
            return Verdict::ResetSinceFlush;
        }
        let may_go_on = match outcome {
            Outcome::Unknown | Outcome::Stopped | Outcome::Aborted => {
                replay::kind_may_go_on(facts.replay, facts.kind, true)
            }
            // It has never begun; but a flush speaks of what was before, which only another path is a witness of.
            Outcome::NotSent if facts.kind == Kind::Flushes => {
                self.paths.iter().enumerate().any(|(at, other)| at != path && other.is_up())
            }
            Outcome::NotSent => facts.replay != Replay::Never,
            _ => true,
        };
        let is_too_often =
            entry.bounces > BOUNCES_MAX || entry.losses > LOSSES_MAX || entry.stops > STOPS_MAX;
        if !may_go_on || is_too_often || self.has_given_up {
            return Verdict::Over;
        }
        (entry.place, entry.waits_since) = (Place::Waiting, now);
        self.waiting.push_back(key);
        Verdict::Kept
    }

    /// See [`crate::Completion::session`].
    pub(crate) fn session_of(&self, key: usize) -> u32 {
        self.entries
            .get(key)
            .map_or(self.session, |entry| replay::session_told(entry.facts.kind, entry.session, self.session))
    }

    /// The unit has answered a command.
    fn answered(&mut self, key: usize, is_good: bool) -> Verdict {
        let Some(entry) = self.entries.get(key) else { return Verdict::Over };
        self.is_dirty |= replay::kind_leaves_dirty(entry.facts.kind, is_good);
        let is_flush = entry.facts.kind == Kind::Flushes;
        if is_flush && is_good && (entry.is_void || std::mem::take(&mut self.is_reset)) {
            return Verdict::ResetSinceFlush;
        }
        Verdict::Over
    }

    /// A unit attention has told of a reset: what was written and not flushed may be lost.
    pub(crate) fn note_reset(&mut self) {
        self.paths.iter_mut().for_each(|path| path.unproven_since = None);
        self.session = self.session.saturating_add(1);
        if self.has_unflushed() {
            self.is_reset = true;
            for (_, entry) in &mut self.entries {
                entry.is_void |= entry.place != Place::Waiting && entry.facts.kind == Kind::Flushes;
            }
        }
    }

    /// Something may have been written that no good flush has covered.
    fn has_unflushed(&self) -> bool {
        let is_sent = |entry: &Entry<T>| entry.place != Place::Waiting;
        let has_begun = |entry: &Entry<T>| is_sent(entry) && entry.facts.kind != Kind::Reads;
        self.is_dirty || self.entries.iter().any(|(_, entry)| has_begun(entry))
    }

    /// A login has ended well, and the unit behind it is the right one. What ended there before does so for good. `is_reset`:
    /// the unit told of a reset at the beginning.
    pub(crate) fn opened(
        &mut self,
        now: Duration,
        path: usize,
        portal_group_tag: Option<u16>,
        is_reset: bool,
    ) {
        if let Some(since) = self.alone_since.take() {
            let has_been = self.paths.iter().any(|path| path.was_lost);
            tracing::debug!(alone = ?now.saturating_sub(since), "there is a path");
            // With another path there, that one would have been told of a reset.
            if has_been && is_reset {
                self.note_reset();
            } else if has_been {
                self.session = self.session.saturating_add(1);
            }
        }
        let others_are_up = self.paths.iter().enumerate().any(|(at, other)| at != path && other.is_up());
        // A target that was restarted need not tell so, and the others may be dead without anybody knowing. To a path that was never
        // there that does not matter as long as nothing can have been lost.
        if others_are_up && (self.paths[path].was_lost || self.has_unflushed()) {
            self.paths[path].unproven_since = Some(now);
            self.ask_others(now, path);
        }
        // The target has ended the old session of the same name first (RFC 7143, 6.3.5).
        self.ghosts.laid(Nexus { path, portal_group_tag });
        let failback = self.timing.failback;
        let opened = &mut self.paths[path];
        (opened.health, opened.tries, opened.since, opened.opened_at) = (Health::Up, 0, now, now);
        opened.portal_group_tag = portal_group_tag;
        opened.outstanding = 0;
        opened.eligible_at = if opened.was_lost { now.saturating_add(failback) } else { now };
        // What its state has said may want a look before that.
        opened.check_at = opened.check_at.min(now.saturating_add(self.timing.check));
        self.pump(now);
    }

    /// An answer tells the state of a path's port group, to a question that was sent then.
    pub(crate) fn has_access(
        &mut self,
        now: Duration,
        asked_at: Duration,
        path: usize,
        state: (Access, bool),
    ) {
        let failback = self.timing.failback;
        let of = &mut self.paths[path];
        if !of.believes(asked_at) {
            if state != (of.access, of.is_preferred) {
                of.check_at = now;
            }
            return;
        }
        let (before, (access, is_preferred)) = (of.rank(), state);
        if of.access != access {
            of.since = now;
        }
        (of.access, of.is_preferred) = (access, is_preferred);
        if of.is_up() && of.rank() > before {
            of.eligible_at = of.eligible_at.max(now.saturating_add(failback));
        }
        if access == Access::Transitioning {
            of.check_at = of.check_at.min(now + timers::TRANSITION);
        }
        self.pump(now);
    }

    /// A path may lead to another unit: it carries no data until it is known that it does not.
    pub(crate) fn doubted(&mut self, now: Duration, path: usize) {
        let of = &mut self.paths[path];
        if !std::mem::replace(&mut of.is_doubted, true) {
            of.look_at = now;
        }
    }

    /// It was looked at: it leads to the unit, or does not say now where it leads.
    pub(crate) fn looked(&mut self, now: Duration, path: usize, leads_there: bool) {
        let of = &mut self.paths[path];
        (of.is_doubted, of.look_at) = (!leads_there, now.saturating_add(timers::LOOK));
        self.pump(now);
    }

    /// A path has answered something that was sent then: a reset before that would have been told to it.
    pub(crate) fn has_answered(&mut self, path: usize, sent_at: Duration) {
        let (opened_at, is_unproven) =
            (self.paths[path].opened_at, self.paths[path].unproven_since.is_some());
        for other in self.paths.iter_mut().filter(|_| !is_unproven) {
            // One that came later is no witness.
            other.unproven_since =
                other.unproven_since.filter(|since| sent_at < *since || opened_at > *since);
        }
    }

    /// That a path was lost, or tells of a reset, counts as a reset when no other path is left that was there all the time: none will say
    /// that the target goes on, and that it was only a new session's greeting.
    pub(super) fn judge_resets(&mut self) {
        let is_witness = |path: &Path, since: Duration| {
            path.is_up() && path.unproven_since.is_none() && path.opened_at <= since
        };
        let mut told = self.paths.iter().filter_map(|path| path.unproven_since);
        if told.any(|since| !self.paths.iter().any(|path| is_witness(path, since))) {
            self.note_reset();
        }
    }

    /// Has the paths that are there say what they know, but for this one.
    pub(super) fn ask_others(&mut self, now: Duration, path: usize) {
        let others = self.paths.iter_mut().enumerate().filter(|(at, other)| *at != path && other.is_up());
        others.for_each(|(_, other)| other.check_at = now);
    }

    /// A path is lost, after all its commands have [ended](Self::ended). The target wants to be left alone for `wait` (Time2Wait).
    pub(crate) fn lost(&mut self, now: Duration, path: usize, wait: Duration) {
        let of = &mut self.paths[path];
        // No longer than commands wait for it.
        let next_try = now.saturating_add(wait.min(self.timing.recovery / 2));
        (of.health, of.since, of.was_lost, of.outstanding) = (Health::Closed { next_try }, now, true, 0);
        (of.fence_at, of.check_at) = (next_try, Duration::MAX);
        // The login looks, too.
        of.is_doubted = false;
        self.judge_resets();
        if self.paths.iter().all(|path| !path.is_up()) {
            self.alone_since.get_or_insert(now);
        }
        self.pump(now);
    }
}
