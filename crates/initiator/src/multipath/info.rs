//! What is told of paths.

use std::time::Duration;

use crate::Portal;

use super::Access;

/// Whether a path is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PathState {
    /// There is a session.
    Up,
    /// A login is under way.
    Opening,
    /// It is tried again from time to time.
    Down,
}

impl PathState {
    /// For people.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Up => "up",
            Self::Opening => "opening",
            Self::Down => "down",
        }
    }
}

/// A path as it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PathInfo {
    /// Where it leads.
    pub portal: Portal,
    /// Whether it is there.
    pub state: PathState,
    /// Why it is not, if it is not.
    pub reason: Option<String>,
    /// How well it reaches the unit, as it was last told.
    pub access: Access,
    /// The target prefers its group among those in the same state (PREF).
    pub is_preferred: bool,
    /// Commands go this way now, or would if there were any.
    pub is_in_use: bool,
    /// The relative target port identifier, where it is told.
    pub relative_target_port: Option<u16>,
    /// The target port group, where it is told.
    pub target_port_group: Option<u16>,
    /// How long it has been as it is.
    pub since: Duration,
    /// Commands under way.
    pub outstanding: usize,
    /// Commands that were sent.
    pub sent: u64,
    /// How long a command takes, smoothed; none where none was answered.
    pub latency: Option<Duration>,
}

/// What has happened to a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PathNews {
    /// It is there; after so long, if it had been there before.
    Up {
        /// How long it was away.
        after: Option<Duration>,
    },
    /// It is lost; so many are left that can carry data.
    Lost {
        /// Why.
        reason: String,
        /// Paths that can carry data.
        left: usize,
    },
    /// A login has failed, the first of several.
    Failed {
        /// Why.
        reason: String,
    },
    /// Its port group has another state.
    Access(Access),
}
