//! How a disk is reached: how patiently, and over which paths.

use std::time::Duration;

use clap::{Args, ValueEnum};
use lunette_initiator::multipath::{self, PathOptions};
use lunette_initiator::{Options, TargetUrl};

use super::credentials;
use super::port::Port;
use super::session;
use crate::failure::Failure;

/// How long a command may take.
#[derive(Debug, Clone, Args)]
pub(crate) struct TimeOptions {
    /// How long a command may go unanswered before it is ended, by ABORT TASK, LOGICAL UNIT RESET or a new session; ten times
    /// that for other commands than reads and writes; 0 is for ever [default: 60]
    #[arg(long, value_name = "SECONDS")]
    timeout: Option<u32>,
    /// How long a lost session is tried to be had again before its commands fail; 0: not at all [default: 120]
    #[arg(long, value_name = "SECONDS")]
    recovery: Option<u32>,
}

/// In seconds, where nothing is said.
const TIMEOUT_S: u32 = 60;
const RECOVERY_S: u32 = 120;

impl TimeOptions {
    /// Of a session with this disk. Short secrets are told.
    pub(crate) fn session(&self, url: &TargetUrl) -> Options {
        let mut options = url.options();
        credentials::warn_of_short_secrets(options.credentials.as_ref());
        let timeout_s = self.timeout.unwrap_or(TIMEOUT_S);
        options.timing.command = (timeout_s > 0).then(|| Duration::from_secs(timeout_s.into()));
        options.timing.recovery = self.recovery();
        options
    }

    fn recovery(&self) -> Duration {
        Duration::from_secs(self.recovery.unwrap_or(RECOVERY_S).into())
    }

    /// Whether one of them was given, which only a session has a use for.
    pub(crate) const fn is_given(&self) -> bool {
        self.timeout.is_some() || self.recovery.is_some()
    }
}

/// Which of several paths in the same state takes a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Policy {
    /// Each in its turn
    RoundRobin,
    /// The one with the fewest commands under way
    LeastQueue,
    /// The one that answers first, by what it took before and what is under way
    LowestLatency,
}

impl From<Policy> for multipath::Policy {
    fn from(policy: Policy) -> Self {
        match policy {
            Policy::RoundRobin => Self::RoundRobin,
            Policy::LeastQueue => Self::LeastQueue,
            Policy::LowestLatency => Self::LowestLatency,
        }
    }
}

/// What several paths have in common.
#[derive(Debug, Clone, Args)]
pub(crate) struct MultipathOptions {
    /// Find the other portals of the target by asking it (SendTargets), and use all as paths
    #[arg(long)]
    pub(crate) multipath: bool,
    /// Which of several paths in the same state takes a command
    #[arg(long, value_enum, value_name = "POLICY", default_value = "least-queue")]
    pub(crate) policy: Policy,
    /// How long a path that has come back has to stay before it is used again beside others
    #[arg(long, value_name = "SECONDS", default_value = "5")]
    pub(crate) failback: u32,
}

/// How a disk is reached.
#[derive(Debug, Clone, Args)]
pub(crate) struct AccessOptions {
    #[command(flatten)]
    pub(crate) time: TimeOptions,
    /// Another path to the same disk, as a URL; may be repeated
    #[arg(long = "path", value_name = "URL", long_help = super::options::URL_HELP, conflicts_with = "multipath")]
    pub(crate) paths: Vec<TargetUrl>,
    #[command(flatten)]
    pub(crate) several: MultipathOptions,
}

/// The same of both ends of a copy.
#[derive(Debug, Clone, Args)]
pub(crate) struct CopyAccess {
    #[command(flatten)]
    time: TimeOptions,
    /// Another path to the source, as a URL; may be repeated
    #[arg(long = "source-path", value_name = "URL", conflicts_with = "multipath")]
    source_paths: Vec<TargetUrl>,
    /// Another path to the destination, as a URL; may be repeated
    #[arg(long = "destination-path", value_name = "URL", conflicts_with = "multipath")]
    destination_paths: Vec<TargetUrl>,
    #[command(flatten)]
    several: MultipathOptions,
}

impl CopyAccess {
    pub(crate) fn of_source(&self) -> AccessOptions {
        self.of(&self.source_paths)
    }

    pub(crate) fn of_destination(&self) -> AccessOptions {
        self.of(&self.destination_paths)
    }

    fn of(&self, paths: &[TargetUrl]) -> AccessOptions {
        AccessOptions { time: self.time.clone(), paths: paths.to_vec(), several: self.several.clone() }
    }
}

/// What to log in to.
#[derive(Debug)]
pub(crate) enum Ways {
    One(Box<Options>),
    Several(multipath::Options),
}

impl AccessOptions {
    /// The ways to this disk.
    ///
    /// # Errors
    /// The target does not say which portals it has.
    pub(crate) fn ways(&self, url: &TargetUrl) -> Result<Ways, Failure> {
        let path = |url: &TargetUrl| PathOptions::new(self.time.session(url), url.lun);
        let mut options = if self.several.multipath {
            multipath::Options::discover(path(url)).map_err(|error| Failure::initiator(&error))?
        } else if self.paths.is_empty() {
            return Ok(Ways::One(Box::new(self.time.session(url))));
        } else {
            multipath::Options::new(std::iter::once(url).chain(&self.paths).map(path).collect())
        };
        options.policy = self.several.policy.into();
        options.timing.recovery = self.time.recovery();
        options.timing.failback = Duration::from_secs(self.several.failback.into());
        Ok(Ways::Several(options))
    }

    /// Logs in.
    ///
    /// # Errors
    /// Why there is no session, and what to try.
    pub(crate) fn connect(&self, url: &TargetUrl) -> Result<Box<dyn Port>, Failure> {
        match self.ways(url)? {
            Ways::One(options) => session::connect(&options),
            Ways::Several(options) => session::connect_paths(options),
        }
    }
}
