//! What is done by the clock: logins, fences, resets, looks at the states, and commands that have waited for too long.

use std::time::Duration;

use super::{Action, Core, Failure, Health, Path, Place};

/// How long a state that changes is left alone.
pub(super) const TRANSITION: Duration = Duration::from_secs(1);
/// The first wait between logins of a path, which doubles from one to the next.
const WAIT_MIN: Duration = Duration::from_millis(500);
/// The longest, and that after a refusal that will hardly change.
const WAIT_MAX: Duration = Duration::from_secs(10);
const WAIT_REFUSED: Duration = Duration::from_secs(60);
/// How long a path that does not say where it leads is left alone.
pub(super) const LOOK: Duration = Duration::from_millis(500);
/// Between two tries to end a session from another path, and between two resets.
const AGAIN: Duration = Duration::from_secs(1);

impl<T> Core<T> {
    /// Looks at the clock.
    pub(crate) fn tick(&mut self, now: Duration) {
        if self.has_given_up {
            return;
        }
        let is_hopeless = self.is_hopeless(now);
        if !is_hopeless {
            for path in 0..self.paths.len() {
                self.tick_path(now, path);
            }
            self.pump(now);
            self.tick_reset(now);
        }
        let overdue: Vec<_> = (self.waiting.iter().copied())
            .filter(|key| self.deadline_of(*key).is_some_and(|deadline| now >= deadline))
            .collect();
        for key in overdue {
            self.waiting.retain(|waiting| *waiting != key);
            let failure = match self.entries.get(key) {
                Some(entry) if entry.is_haunted && !entry.has_run => Failure::Haunted,
                Some(entry) => Failure::NoPath { has_run: entry.has_run },
                None => continue,
            };
            self.actions.push_back(Action::Fail { key, failure });
        }
        if is_hopeless {
            self.has_given_up = true;
            self.actions.push_back(Action::GiveUp);
        }
    }

    fn is_hopeless(&self, now: Duration) -> bool {
        self.alone_since
            .and_then(|since| since.checked_add(self.timing.recovery))
            .is_some_and(|until| now >= until)
    }

    fn tick_path(&mut self, now: Duration, path: usize) {
        let of = &self.paths[path];
        match of.health {
            Health::Up if now >= of.check_at => {
                self.paths[path].check_at = now.saturating_add(self.timing.check);
                self.actions.push_back(Action::Check { path });
            }
            Health::Up if of.look_due().is_some_and(|at| now >= at) => {
                self.paths[path].look_at = Duration::MAX;
                self.actions.push_back(Action::Look { path });
            }
            // What it has left behind is ended first, where another portal of its group can do that.
            Health::Closed { .. }
                if !of.is_fencing && now >= of.fence_at && self.fence_of(path).is_some() =>
            {
                let Some(via) = self.fence_of(path) else { return };
                self.paths[path].is_fencing = true;
                self.actions.push_back(Action::Fence { path, via });
            }
            // Both at once would end each other.
            Health::Closed { next_try } if !of.is_fencing && now >= next_try && self.is_wanted(path) => {
                let of = &mut self.paths[path];
                (of.health, of.tries) = (Health::Opening, of.tries.saturating_add(1));
                self.actions.push_back(Action::Open { path });
            }
            _ => {}
        }
    }

    /// Whether there is a use for a path: at the end only where its login ends something.
    fn is_wanted(&self, path: usize) -> bool {
        self.settles_until.is_none() || self.ghosts.nexus_of(path).is_some()
    }

    /// No command comes any more. What dead paths have left is ended all the same, since whoever writes next knows nothing of it.
    pub(crate) fn settle(&mut self, now: Duration) {
        // Where a reset ends nothing, a path may be back as soon as for a command.
        let patience = self.timing.ghost.checked_add(WAIT_MAX).unwrap_or(self.timing.recovery);
        self.settles_until = Some(now.saturating_add(patience));
    }

    /// Something of dead paths is left, and may still be ended in time.
    pub(crate) fn is_settling(&self, now: Duration) -> bool {
        let has_time = self.resetting.is_some() || self.settles_until.is_some_and(|until| now < until);
        has_time && !self.ghosts.is_empty() && self.paths.iter().any(Path::is_up)
    }

    /// A path that is there, at a portal of the group in which a lost one has something under way.
    fn fence_of(&self, path: usize) -> Option<usize> {
        let nexus = self.ghosts.nexus_of(path)?;
        self.paths.iter().position(|other| other.is_up() && other.portal_group_tag == nexus.portal_group_tag)
    }

    /// A login for a path has failed; `is_final`: trying again hardly helps. `reset_told_at`: the unit told of a reset before it
    /// did, which it will not tell the next login.
    pub(crate) fn open_failed(
        &mut self,
        now: Duration,
        path: usize,
        is_final: bool,
        reset_told_at: Option<Duration>,
    ) {
        // Before any path was there, nothing was written.
        let has_been = self.paths.iter().any(|path| path.is_up() || path.was_lost);
        if let Some(told_at) = reset_told_at.filter(|_| has_been) {
            self.paths[path].unproven_since = Some(told_at);
            self.ask_others(now, path);
            self.judge_resets();
        }
        let of = &mut self.paths[path];
        let wait = WAIT_MIN.saturating_mul(1 << of.tries.saturating_sub(1).min(10)).min(WAIT_MAX);
        let wait = if is_final { WAIT_REFUSED } else { wait };
        of.health = Health::Closed { next_try: now.saturating_add(wait) };
    }

    /// The login that was to end the old session of a path has come to an end.
    pub(crate) fn fenced(&mut self, now: Duration, path: usize, is_done: bool) {
        self.paths[path].is_fencing = false;
        self.paths[path].fence_at = now.saturating_add(AGAIN);
        if let Some(nexus) = self.ghosts.nexus_of(path).filter(|_| is_done) {
            self.ghosts.laid(nexus);
        }
        self.pump(now);
    }

    /// Where no login has ended the session of a dead path, a reset of the unit ends what the target has of it; what was on its
    /// way has gone by then.
    fn tick_reset(&mut self, now: Duration) {
        let is_time = self.reset_due().is_some_and(|at| now >= at);
        if let Some(via) = self.paths.iter().position(|path| path.rank().is_some()).filter(|_| is_time) {
            self.resetting = Some(now);
            self.actions.push_back(Action::Reset { via });
        }
    }

    /// When a reset lets go a command that waits, or this side. What haunts nobody is no reason for one before, however old it is.
    fn reset_due(&self) -> Option<Duration> {
        if self.resetting.is_some() || self.ghosts.is_empty() {
            return None;
        }
        let waiting = self.waiting.iter().filter_map(|key| self.entries.get(*key));
        let ends = waiting
            .filter_map(|entry| self.ghosts.outlived_at(entry.facts.extent, entry.serial, self.timing.ghost));
        let all = self.settles_until.and_then(|_| self.ghosts.all_outlived_at(self.timing.ghost));
        ends.chain(all).min().map(|at| at.max(self.reset_at))
    }

    /// The reset is over.
    pub(crate) fn reset(&mut self, now: Duration, is_done: bool) {
        let Some(sent) = self.resetting.take() else { return };
        self.reset_at = now.saturating_add(AGAIN);
        if is_done {
            self.ghosts.reset(sent, self.timing.ghost);
            self.note_reset();
        }
        self.pump(now);
    }

    /// When a command that waits has waited for long enough.
    fn deadline_of(&self, key: usize) -> Option<Duration> {
        let entry = self.entries.get(key).filter(|entry| entry.place == Place::Waiting)?;
        // What a reset will let go waits for that, and a little longer.
        let patience =
            self.timing.recovery.max(if entry.is_haunted { self.timing.ghost } else { Duration::ZERO });
        entry.waits_since.checked_add(patience.saturating_add(if entry.is_haunted {
            WAIT_MAX
        } else {
            Duration::ZERO
        }))
    }

    /// When [`Self::tick`] has something to do next.
    pub(crate) fn next_deadline(&self) -> Option<Duration> {
        if self.has_given_up {
            return None;
        }
        let of_paths = self.paths.iter().enumerate().filter_map(|(at, path)| match path.health {
            Health::Up => Some(path.look_due().map_or(path.check_at, |look| look.min(path.check_at))),
            Health::Closed { .. } if path.is_fencing => None,
            Health::Closed { next_try } => {
                let fence = self.fence_of(at).map(|_| path.fence_at);
                fence.into_iter().chain(Some(next_try).filter(|_| self.is_wanted(at))).min()
            }
            Health::Opening => None,
        });
        let of_commands = self.waiting.iter().filter_map(|key| self.deadline_of(*key));
        // Without a path that carries data there is none to reset over, until one has news.
        let reset = self.reset_due().filter(|_| self.paths.iter().any(|path| path.rank().is_some()));
        let settled = self.settles_until.filter(|_| self.resetting.is_none());
        let hopeless = self.alone_since.and_then(|since| since.checked_add(self.timing.recovery));
        of_paths.chain(of_commands).chain(reset).chain(hopeless).chain(settled).min()
    }
}
