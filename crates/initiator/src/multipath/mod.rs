//! One logical unit over several paths: a session for each, of which any may die while commands are under way.
//!
//! [`Engine`] has the face of [`crate::Engine`], and [`crate::Session::connect_paths`] (or that of [`crate::blocking`]) that of every other
//! session: commands go in and come out as over one path.
//!
//! ```no_run
//! use lunette_initiator::multipath::{Engine, Options, PathOptions, Policy};
//! use lunette_initiator::{Command, EngineEvent, TargetUrl};
//!
//! let url: TargetUrl = "iscsi://192.0.2.10/iqn.2026-11.io.lunette:disk0/0".parse()?;
//! // Over all portals that the target says it has; `Options::new` takes paths that are chosen by hand.
//! let mut options = Options::discover(PathOptions::new(url.options(), url.lun))?;
//! options.policy = Policy::LeastQueue;
//! let mut engine = Engine::connect(options)?;
//! // READ(10) of block 0.
//! engine.submit(Command::new(url.lun, [0x28, 0, 0, 0, 0, 0, 0, 0, 1, 0]).reading(vec![0; 512]));
//! let mut done = Vec::new();
//! while done.is_empty() {
//!     engine.poll(None, &mut done)?;
//!     while let Some(event) = engine.event() {
//!         if let EngineEvent::Path { portal, news, .. } = event {
//!             println!("{portal}: {news:?}");
//!         }
//!     }
//! }
//! for path in engine.paths() {
//!     println!("{}: {}, {} commands", path.portal, path.state.name(), path.sent);
//! }
//! engine.close()?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! [`Options`] says which paths there are and how long things may take, [`Engine::paths`] how they are, and
//! [`crate::EngineEvent::Path`] what happens to them. The example `multipath` reads a disk while paths come and go.
//!
//! Which path takes a command is decided by the states of the target port groups (asymmetric
//! access, SPC-4) and then by a [`Policy`].
//!
//! # When a path dies
//!
//! Its commands go on over the others at once, by the table of [`crate::Engine`]. But what had left may still be carried out by
//! the target, however late, as long as the session of the dead path is there; sessions over other paths do not end it. So
//! **nothing newer is written where such a command may still write, until it cannot any more**:
//!
//! - a login of the same name and identifier in the same portal group has ended the session: at the path's own portal, or at once
//!   at another one of the group;
//! - or, where there is none, [`PathTiming::ghost`] has passed since the connection was broken off on this side, so that nothing is
//!   on its way any more, and then LOGICAL UNIT RESET has ended what the target had taken.
//!
//! Until then, what would change the same blocks waits; what reads, and what writes elsewhere, does not. The command itself is
//! sent again, since it writes the same. This holds for a disk that no other host writes to meanwhile: `docs/decisions/0029`.

mod core;
mod engine;
mod info;
mod open;

use std::time::Duration;

pub use self::core::{Access, Policy};
pub use engine::Engine;
pub use info::{PathInfo, PathNews, PathState};

use crate::{Error, Lun, Portal};

/// More paths than anybody has.
pub const PATHS_MAX: usize = 64;

/// How long things of paths may take; what a single session may take is in the [`crate::Timing`] of each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PathTiming {
    /// How long a path that has come back, or has got a better state, has to stay so before it is used again while another one
    /// is. Default 5 s.
    pub failback: Duration,
    /// How often each path is asked for the states of the port groups, besides when the unit tells that they have changed. Default
    /// 5 s, as multipath-tools has it.
    pub check: Duration,
    /// How long commands wait while no path is there any more. Zero: the loss of the last one is the end. Default 120 s.
    pub recovery: Duration,
    /// How long something may be on its way to the target after a connection was broken off on this side. Default 120 s, which
    /// TCP itself reckons with (RFC 9293, 3.4.2: the maximum segment lifetime).
    pub ghost: Duration,
}

impl Default for PathTiming {
    fn default() -> Self {
        Self {
            failback: Duration::from_secs(5),
            check: Duration::from_secs(5),
            recovery: Duration::from_secs(120),
            ghost: Duration::from_secs(120),
        }
    }
}

/// After how much silence a path is pinged, and how long it may take to answer: with another path at hand, there is no reason
/// to wait for long.
const NOP_INTERVAL: Duration = Duration::from_secs(2);
const NOP_TIMEOUT: Duration = Duration::from_secs(3);

/// One path.
#[derive(Debug, Clone)]
pub struct PathOptions {
    /// Its session. The path is lost with its session, and logged in again by this module: `timing.recovery` is not used, and an
    /// ErrorRecoveryLevel of 2 is not offered.
    pub session: crate::Options,
    /// The logical unit's number there.
    pub lun: Lun,
}

impl PathOptions {
    /// With a keepalive that finds a dead path within 5 s: a ping after 2 s of silence, and 3 s for its answer.
    #[must_use]
    pub fn new(session: crate::Options, lun: Lun) -> Self {
        let mut path = Self { session, lun };
        path.session.timing.nop_interval = Some(NOP_INTERVAL);
        path.session.timing.nop_timeout = NOP_TIMEOUT;
        path
    }

    fn portal(&self) -> Portal {
        self.session.portals.first().cloned().unwrap_or_else(|| Portal::new("", 0))
    }
}

/// All paths to a logical unit.
#[derive(Debug, Clone)]
pub struct Options {
    /// The paths: 1 to [`PATHS_MAX`], each with another portal.
    pub paths: Vec<PathOptions>,
    /// Which of several equally good ones takes a command.
    pub policy: Policy,
    /// How long things may take.
    pub timing: PathTiming,
}

impl Options {
    /// These paths, with the defaults for all else.
    #[must_use]
    pub fn new(paths: Vec<PathOptions>) -> Self {
        Self { paths, policy: Policy::default(), timing: PathTiming::default() }
    }

    /// A path to each portal that the target of `path` says it has (SendTargets), the given one first. A session identifier
    /// that it has counts on from path to path ([`crate::Options::beside`]).
    ///
    /// # Errors
    /// As [`crate::discover()`]; or the target does not list itself.
    pub fn discover(path: PathOptions) -> Result<Self, Error> {
        let found = crate::discover(&path.session)?;
        let target = found.into_iter().find(|target| target.name == path.session.target);
        let what = "the target is not among those that this portal lists".to_owned();
        let target = target.ok_or_else(|| Error::Path { portal: path.portal(), what })?;
        let mut paths = vec![path];
        for portal in target.portals {
            if paths.len() < PATHS_MAX && !paths.iter().any(|path| path.portal().is_at(&portal)) {
                // No more than PATHS_MAX.
                let (first, place) = (&paths[0], paths.len() as u16);
                let session = crate::Options { portals: vec![portal], ..first.session.beside(place) };
                paths.push(PathOptions { session, lun: first.lun });
            }
        }
        Ok(Self::new(paths))
    }

    /// The same as they are used: each path with one portal and an identifier of its own.
    ///
    /// # Errors
    /// [`Error::Options`]
    fn checked(mut self) -> Result<Self, Error> {
        if self.paths.is_empty() || self.paths.len() > PATHS_MAX {
            return Err(Error::Options(format!(
                "there may be 1 to {PATHS_MAX} paths, not {}",
                self.paths.len()
            )));
        }
        for at in 0..self.paths.len() {
            let (before, rest) = self.paths.split_at_mut(at);
            let path = &mut rest[0];
            let portal = path.portal();
            if path.session.portals.len() != 1 {
                return Err(Error::Options("each path has one portal".into()));
            }
            if before
                .iter()
                .any(|other| other.portal().is_at(&portal) && other.session.target == path.session.target)
            {
                return Err(Error::Options(format!("the path over {portal} is given twice")));
            }
            let isid = crate::identity::random_isid().map_err(crate::connect::no_random)?;
            path.session.isid.get_or_insert(isid);
            if before.iter().any(|other| other.session.isid == path.session.isid) {
                return Err(Error::Options(
                    "two paths have the same session identifier (isid), and each needs its own".into(),
                ));
            }
            path.session.timing.recovery = Duration::ZERO;
            path.session.wishes.error_recovery_level = path.session.wishes.error_recovery_level.min(1);
        }
        Ok(self)
    }
}
