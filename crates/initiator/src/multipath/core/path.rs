//! One path: whether it is there, how well it reaches the unit, and which of several takes the next command.

use std::time::Duration;

/// How a unit can be reached through a path: the asymmetric access state of its target port group (SPC-4, 5.11.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Active/optimized; also where the target knows no such states.
    Optimized,
    /// Active/non-optimized: everything works, another way may be faster.
    NonOptimized,
    /// Logical block dependent: some blocks are better reached through another.
    Dependent,
    /// On the way from one state to another.
    Transitioning,
    /// The medium cannot be reached this way, but the unit can.
    Standby,
    /// Unavailable, offline, or a state that is not known.
    Unavailable,
}

impl Access {
    /// The state with this code (ASYMMETRIC ACCESS STATE).
    #[must_use]
    pub const fn from_code(code: u8) -> Self {
        match code & 0x0f {
            0x0 => Self::Optimized,
            0x1 => Self::NonOptimized,
            0x2 => Self::Standby,
            0x4 => Self::Dependent,
            0xf => Self::Transitioning,
            _ => Self::Unavailable,
        }
    }

    /// For people.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Optimized => "active/optimized",
            Self::NonOptimized => "active/non-optimized",
            Self::Dependent => "logical block dependent",
            Self::Transitioning => "transitioning",
            Self::Standby => "standby",
            Self::Unavailable => "unavailable",
        }
    }

    /// How good it is; none: no data goes this way.
    const fn rank(self) -> Option<u8> {
        match self {
            Self::Optimized => Some(3),
            Self::NonOptimized => Some(2),
            Self::Dependent => Some(1),
            Self::Transitioning | Self::Standby | Self::Unavailable => None,
        }
    }
}

/// Which of several equally good paths takes a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Policy {
    /// Each in its turn.
    RoundRobin,
    /// The one with the fewest commands under way.
    #[default]
    LeastQueue,
    /// The one that will answer first: the time that its commands take, as often as there are commands before it.
    LowestLatency,
}

/// Whether a path is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Health {
    /// It is not, and is tried again then.
    Closed {
        next_try: Duration,
    },
    /// A login is under way.
    Opening,
    Up,
}

/// A path as the core knows it.
#[derive(Debug)]
pub(crate) struct Path {
    pub(crate) health: Health,
    /// Tries since it was there.
    pub(crate) tries: u32,
    pub(crate) portal_group_tag: Option<u16>,
    pub(crate) access: Access,
    pub(crate) is_preferred: bool,
    /// When that was sent whose answer says so.
    pub(crate) access_asked_at: Duration,
    /// It is used from then on, if another is there until then.
    pub(crate) eligible_at: Duration,
    /// When its state is asked for, once it is there.
    pub(crate) check_at: Duration,
    /// Since when it is as it is.
    pub(crate) since: Duration,
    pub(crate) was_lost: bool,
    pub(crate) opened_at: Duration,
    /// The path came back beside others, came first when something was written and not flushed, or the unit told of a reset when it was
    /// tried, as many do to each new session. It is used when another path that was there all the time has answered since: that one would
    /// have been told of a true reset, and would be gone with a target that was restarted. This outlasts the session, since the next one
    /// is not told again.
    pub(crate) unproven_since: Option<Duration>,
    /// It may lead to another unit by what was said over it, and carries no data before that was looked at.
    pub(crate) is_doubted: bool,
    /// When to look; never while a look is under way.
    pub(crate) look_at: Duration,
    /// A login elsewhere that ends its old session: under way, or when to begin it.
    pub(crate) is_fencing: bool,
    pub(crate) fence_at: Duration,
    pub(crate) outstanding: usize,
    pub(crate) sent: u64,
    /// How long a command takes, smoothed; zero: not known.
    pub(crate) latency: Duration,
}

impl Path {
    pub(crate) const fn new() -> Self {
        Self {
            health: Health::Closed { next_try: Duration::ZERO },
            tries: 0,
            portal_group_tag: None,
            access: Access::Optimized,
            is_preferred: false,
            access_asked_at: Duration::ZERO,
            eligible_at: Duration::ZERO,
            check_at: Duration::MAX,
            since: Duration::ZERO,
            was_lost: false,
            opened_at: Duration::ZERO,
            unproven_since: None,
            is_doubted: false,
            look_at: Duration::MAX,
            is_fencing: false,
            fence_at: Duration::ZERO,
            outstanding: 0,
            sent: 0,
            latency: Duration::ZERO,
        }
    }

    pub(crate) const fn is_up(&self) -> bool {
        matches!(self.health, Health::Up)
    }

    /// How good it is; none: no data goes this way.
    pub(crate) fn rank(&self) -> Option<(u8, bool)> {
        let is_usable = self.is_up() && self.unproven_since.is_none() && !self.is_doubted;
        if is_usable { self.access.rank().map(|rank| (rank, self.is_preferred)) } else { None }
    }

    /// When to look at what it leads to. One that carries no data in any case has time, and may not tell everything.
    pub(crate) fn look_due(&self) -> Option<Duration> {
        Some(self.look_at).filter(|_| self.is_up() && self.is_doubted && self.access.rank().is_some())
    }

    /// Whether the answer to what was sent then is believed. One to something older than what is believed already may have been on
    /// its way for longer: where both differ, nobody knows which is the newer one, and the path is asked again.
    pub(crate) fn believes(&mut self, asked_at: Duration) -> bool {
        let is_taken = asked_at >= self.access_asked_at;
        self.access_asked_at = self.access_asked_at.max(asked_at);
        is_taken
    }

    /// A command has taken so long.
    pub(crate) fn measured(&mut self, took: Duration) {
        // An eighth of each new one, as TCP smooths its round trips (RFC 6298).
        self.latency = if self.latency.is_zero() { took } else { (self.latency * 7 + took) / 8 };
    }
}

/// Chooses paths.
#[derive(Debug, Default)]
pub(crate) struct Chooser {
    pub(crate) policy: Policy,
    /// The one after the last that was chosen.
    next: usize,
}

impl Chooser {
    pub(crate) const fn new(policy: Policy) -> Self {
        Self { policy, next: 0 }
    }

    /// The path that takes the next command: of those that have been good for long enough, or of all if there is no such, one
    /// of the best.
    pub(crate) fn choose(&mut self, now: Duration, paths: &[Path]) -> Option<usize> {
        let usable = |path: &Path| path.rank().is_some();
        let has_proven = |path: &Path| usable(path) && now >= path.eligible_at;
        let any_proven = paths.iter().any(has_proven);
        let is_candidate = |path: &Path| if any_proven { has_proven(path) } else { usable(path) };
        let best = paths.iter().filter(|path| is_candidate(path)).filter_map(Path::rank).max()?;
        let turn = |at: usize| (at + paths.len() - self.next % paths.len()) % paths.len();
        let candidates =
            (0..paths.len()).filter(|at| is_candidate(&paths[*at]) && paths[*at].rank() == Some(best));
        let chosen = candidates.min_by_key(|&at| {
            let path = &paths[at];
            let queue = path.outstanding as u128;
            let cost = match self.policy {
                Policy::RoundRobin => 0,
                Policy::LeastQueue => queue,
                Policy::LowestLatency => path.latency.as_nanos() * (queue + 1),
            };
            (cost, turn(at))
        })?;
        self.next = chosen + 1;
        Some(chosen)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn up(access: Access, outstanding: usize, latency_ms: u64) -> Path {
        let latency = Duration::from_millis(latency_ms);
        Path { health: Health::Up, access, outstanding, latency, ..Path::new() }
    }

    fn choices(policy: Policy, paths: &[Path], count: usize) -> Vec<Option<usize>> {
        let mut chooser = Chooser::new(policy);
        (0..count).map(|_| chooser.choose(Duration::ZERO, paths)).collect()
    }

    #[test]
    fn the_best_state_is_used_and_among_equals_the_policy_decides() {
        let paths =
            [up(Access::NonOptimized, 0, 1), up(Access::Optimized, 9, 3), up(Access::Optimized, 4, 9)];
        assert_eq!(choices(Policy::RoundRobin, &paths, 4), [Some(1), Some(2), Some(1), Some(2)]);
        assert_eq!(choices(Policy::LeastQueue, &paths, 2), [Some(2), Some(2)]);
        assert_eq!(choices(Policy::LowestLatency, &paths, 1), [Some(1)], "30 ms and 45 ms");
        let down = [Path::new(), up(Access::Standby, 0, 1), up(Access::Transitioning, 0, 1)];
        assert_eq!(choices(Policy::LeastQueue, &down, 1), [None]);
    }

    #[test]
    fn a_path_that_is_preferred_comes_before_its_equals_and_after_its_betters() {
        let preferred = |access| Path { is_preferred: true, ..up(access, 5, 1) };
        let equals = [up(Access::Optimized, 0, 1), preferred(Access::Optimized)];
        assert_eq!(choices(Policy::LeastQueue, &equals, 1), [Some(1)]);
        let betters = [up(Access::Optimized, 0, 1), preferred(Access::NonOptimized)];
        assert_eq!(choices(Policy::LeastQueue, &betters, 1), [Some(0)]);
    }

    #[test]
    fn a_path_that_has_come_back_waits_unless_there_is_no_other() {
        let s = Duration::from_secs;
        let back = || Path { eligible_at: s(10), ..up(Access::Optimized, 0, 1) };
        let mut chooser = Chooser::new(Policy::LeastQueue);
        let paths = [back(), up(Access::NonOptimized, 0, 1)];
        assert_eq!(chooser.choose(s(9), &paths), Some(1));
        assert_eq!(chooser.choose(s(10), &paths), Some(0));
        let paths = [back(), up(Access::Standby, 0, 1)];
        assert_eq!(chooser.choose(s(1), &paths), Some(0));
    }

    #[test]
    fn all_codes_are_states() {
        let usable: Vec<u8> = (0..16).filter(|code| Access::from_code(*code).rank().is_some()).collect();
        assert_eq!(usable, [0, 1, 4]);
        assert_eq!(Access::from_code(0xf).name(), "transitioning");
    }
}
