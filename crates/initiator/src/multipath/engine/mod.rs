//! The engine of a unit with several paths: sessions, threads for logins, a clock, and the core that decides.

mod commands;
mod look;
mod paths;

use std::collections::{HashMap, VecDeque};
use std::mem::MaybeUninit;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use lunette_iscsi::name::IscsiName;
use lunette_iscsi::parameters::SessionParameters;
use lunette_scsi::client::{Ticket, UnitIdentity};
use lunette_wire::LunField;
use rustix::event::epoll;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};

use super::core::{Action, Core, Facts, Failure};
use super::{Options, PathInfo, PathNews, PathOptions, PathState};
use crate::connect::Learnt;
use crate::engine::replay;
use crate::{
    Command, CommandError, CommandId, Completion, ConnectionInfo, Data, EngineEvent, Error, LoginRecord, Lun,
    RequestId, Waker,
};
use commands::{Held, OwnReset};
use look::Look;
use paths::Job;

const EVENTS_MAX: usize = 64;

/// What a command of a path's session is here.
#[derive(Debug, Clone, Copy)]
enum Errand {
    /// The caller's, by its key.
    Command(usize),
    /// Asks for the states of the port groups.
    States,
    /// A question of a look.
    Look(Ticket),
}

/// One path, with its session while there is one.
struct Way {
    options: Arc<PathOptions>,
    /// What logins of its sessions have shown.
    learnt: Learnt,
    session: Option<crate::Engine>,
    /// The session's clock began so much later than this engine's.
    began: Duration,
    /// What the session's commands are here.
    errands: HashMap<CommandId, Errand>,
    is_asked: bool,
    /// The look at what it leads to, while one is under way.
    look: Option<Look>,
    /// Why it carries no data although it is there.
    doubt: Option<String>,
    /// Why its session is being logged out.
    left_for: Option<String>,
    own_reset: OwnReset,
    /// Why it is lost.
    reason: Option<String>,
    lost_at: Option<Duration>,
    /// The target's Time2Wait.
    wait: Duration,
    relative_target_port: Option<u16>,
    group: Option<u16>,
}

/// The sessions of all paths, driven by its caller's thread as [`crate::Engine`] is: see [the module](super). An engine that is dropped
/// closes its connections without a word.
pub struct Engine {
    ways: Vec<Way>,
    core: Core<Held>,
    start: Instant,
    now: Duration,
    epoll: OwnedFd,
    waker: Waker,
    jobs: (Sender<Job>, Receiver<Job>),
    events: VecDeque<EngineEvent>,
    done: Vec<Completion>,
    /// What all paths have to lead to.
    identity: Option<UnitIdentity>,
    /// The target of the first path that was there.
    target: Option<IscsiName>,
    /// What is different at a unit that has changed.
    changed: Option<String>,
    /// That is the medium, of which the unit tells once: no path is to be had before it is guarded anew.
    is_exchanged: bool,
    /// The reset of the unit that is under way: on which path.
    reset: Option<(usize, RequestId)>,
    /// A session has something to send.
    has_asked: bool,
    record: LoginRecord,
    parameters: SessionParameters,
    /// No command is taken any more.
    is_closing: bool,
    /// The sessions are being logged out.
    is_leaving: bool,
    over: Option<String>,
}

impl Engine {
    /// Logs in on all paths, and returns when the first is there; the others join when they are.
    ///
    /// # Errors
    /// [`Error`] of the first path, if none can be had; [`Error::Options`].
    pub fn connect(options: Options) -> Result<Self, Error> {
        let options = options.checked()?;
        let system = |what| move |error: rustix::io::Errno| Error::System { what, source: error.into() };
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(system("an epoll descriptor"))?;
        let waker = Waker::new().map_err(system("an event descriptor"))?;
        let data = epoll::EventData::new_u64(0);
        epoll::add(&epoll, &waker, data, epoll::EventFlags::IN).map_err(system("an epoll registration"))?;
        let mut engine = Self {
            core: Core::new(options.paths.len(), options.policy, options.timing),
            ways: options.paths.into_iter().map(Way::new).collect(),
            start: Instant::now(),
            now: Duration::ZERO,
            epoll,
            waker,
            jobs: channel(),
            events: VecDeque::new(),
            done: Vec::new(),
            identity: None,
            target: None,
            changed: None,
            is_exchanged: false,
            reset: None,
            has_asked: false,
            record: LoginRecord::default(),
            parameters: SessionParameters::default(),
            is_closing: false,
            is_leaving: false,
            over: None,
        };
        let mut failed: Vec<Option<Error>> = engine.ways.iter().map(|_| None).collect();
        loop {
            engine.advance(&mut failed)?;
            if engine.ways.iter().any(|way| way.session.is_some()) {
                return Ok(engine);
            }
            if failed.iter().all(Option::is_some) {
                return Err(failed.into_iter().flatten().next().unwrap_or(Error::Ended));
            }
            engine.wait(None)?;
        }
    }

    /// Takes a command, as [`crate::Engine::submit`]. Its `lun` does not matter.
    pub fn submit(&mut self, command: Command) -> CommandId {
        self.now = self.start.elapsed();
        let kind = replay::kind(command.cdb.bytes());
        let extent = super::core::Extent::of(kind, command.cdb.bytes());
        let facts = Facts { kind, replay: command.replay, extent };
        let held = Held::new(command, self.now);
        if self.is_closing || self.is_over() {
            let reason = self.over.clone().unwrap_or_else(|| "the session is being closed".into());
            let key = self.core.insert(self.now, facts, held);
            let id = self.id_of(key);
            self.complete(key, Err(CommandError::NotSent(reason)));
            return id;
        }
        let key = self.core.submit(self.now, facts, held);
        self.id_of(key)
    }

    /// Sends what waits, waits for something to happen, and adds what is over to `done`, as [`crate::Engine::poll`].
    ///
    /// # Errors
    /// [`Error::System`]. A lost path is no error here.
    pub fn poll(&mut self, timeout: Option<Duration>, done: &mut Vec<Completion>) -> Result<(), Error> {
        self.advance(&mut [])?;
        if self.done.is_empty() && self.events.is_empty() {
            self.wait(timeout)?;
            self.advance(&mut [])?;
        }
        done.append(&mut self.done);
        Ok(())
    }

    /// The next thing that happened beside completions.
    pub fn event(&mut self) -> Option<EngineEvent> {
        self.events.pop_front()
    }

    /// Commands that are not over.
    #[must_use]
    pub fn outstanding(&self) -> usize {
        self.core.entries.len() + self.done.len()
    }

    /// True when no path is there any more, and none will be.
    #[must_use]
    pub const fn is_over(&self) -> bool {
        self.over.is_some()
    }

    /// Says which logical unit this is, as [`crate::Engine::guard`]. Paths are compared with each other in any case.
    pub fn guard(&mut self, _lun: Lun, identity: UnitIdentity) {
        (self.identity, self.changed, self.is_exchanged) = (Some(identity), None, false);
    }

    /// The paths, in the order in which they were given.
    #[must_use]
    pub fn paths(&self) -> Vec<PathInfo> {
        let now = self.start.elapsed();
        let best = self.core.paths.iter().filter_map(super::core::Path::rank).max();
        let info = |(at, way): (usize, &Way)| {
            let path = &self.core.paths[at];
            PathInfo {
                portal: way.options.portal(),
                state: match path.health {
                    super::core::Health::Up => PathState::Up,
                    super::core::Health::Opening => PathState::Opening,
                    super::core::Health::Closed { .. } => PathState::Down,
                },
                reason: if path.is_up() { way.doubt.clone() } else { way.reason.clone() },
                access: path.access,
                is_preferred: path.is_preferred,
                is_in_use: path.rank().is_some() && path.rank() == best,
                relative_target_port: way.relative_target_port,
                target_port_group: way.group,
                since: now.saturating_sub(path.since),
                outstanding: path.outstanding,
                sent: path.sent,
                latency: Some(path.latency).filter(|latency| !latency.is_zero()),
            }
        };
        self.ways.iter().enumerate().map(info).collect()
    }

    /// Wakes a thread that waits in [`Self::poll`].
    #[must_use]
    pub fn waker(&self) -> Waker {
        self.waker.clone()
    }

    /// How the first session was begun.
    #[must_use]
    pub const fn login_record(&self) -> &LoginRecord {
        &self.record
    }

    /// What was agreed for the first session.
    #[must_use]
    pub const fn parameters(&self) -> &SessionParameters {
        &self.parameters
    }

    /// The connections of all sessions.
    #[must_use]
    pub fn connections(&self) -> Vec<ConnectionInfo> {
        self.ways.iter().filter_map(|way| way.session.as_ref()).flat_map(crate::Engine::connections).collect()
    }

    /// The clock of [`crate::Times`]: since the engine's start.
    #[must_use]
    pub fn elapsed(&self) -> Duration {
        self.start.elapsed()
    }

    /// Begins to log out on all paths. Commands that are not over by the target's answer end as [`CommandError::Aborted`], what
    /// waits for a path as [`CommandError::NotSent`], or [`CommandError::Unknown`] where it was on one before.
    ///
    /// While another path is there, what a lost one has left is ended first, which may take as long as [`super::PathTiming::ghost`] and a
    /// little longer: whoever writes next knows nothing of it. Where that could not be done, [`EngineEvent::GhostLeft`] tells so.
    pub fn log_out(&mut self) {
        if self.is_closing || self.is_over() {
            return;
        }
        self.now = self.start.elapsed();
        self.is_closing = true;
        self.end_waiting("the session was closed on this side");
        self.core.settle(self.now);
        self.leave_when_settled();
    }

    /// Logs out on all paths, once nothing that a lost one has left is to be waited for any more.
    fn leave_when_settled(&mut self) {
        if !self.is_closing || self.is_leaving || self.is_over() || self.core.is_settling(self.now) {
            return;
        }
        self.is_leaving = true;
        for way in &mut self.ways {
            if let Some(session) = &mut way.session {
                session.log_out();
                self.has_asked = true;
            }
        }
        self.end_waiting("the session was closed on this side");
        self.close_when_empty();
    }

    /// True while a lost path has left something that its target may still carry out, so that [`Self::close`] takes its time.
    #[must_use]
    pub const fn is_haunted(&self) -> bool {
        !self.core.ghosts.is_empty()
    }

    /// What is to be said where that is so at the end.
    fn ghost_left(&self) -> Option<Error> {
        let path = self.core.ghosts.path()?;
        Some(Error::GhostLeft { portal: self.ways[path].options.portal() })
    }

    /// [Logs out](Self::log_out) and waits for the answers, at most as long as the longest [`crate::Timing::logout`] after what a lost path
    /// has left was ended.
    ///
    /// # Errors
    /// [`Error::GhostLeft`]: it could not be. [`Error::System`].
    pub fn close(mut self) -> Result<(), Error> {
        self.log_out();
        while !self.is_leaving && !self.is_over() {
            self.poll(None, &mut Vec::new())?;
            self.events.clear();
        }
        let limit = self.ways.iter().map(|way| way.options.session.timing.logout).max().unwrap_or_default();
        let until = Instant::now() + limit;
        while !self.is_over() {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            self.poll(Some(left), &mut Vec::new())?;
            self.events.clear();
        }
        self.ghost_left().map_or(Ok(()), Err)
    }

    /// Does all that can be done without waiting. `failed` takes the first error of each path.
    fn advance(&mut self, failed: &mut [Option<Error>]) -> Result<(), Error> {
        loop {
            self.now = self.start.elapsed();
            self.take_jobs(failed);
            for path in 0..self.ways.len() {
                self.poll_path(path)?;
            }
            self.end_changed();
            if !self.is_leaving && !self.is_over() {
                self.core.tick(self.now);
            }
            self.leave_when_settled();
            if self.core.actions.is_empty() && !std::mem::take(&mut self.has_asked) {
                break;
            }
            while let Some(action) = self.core.actions.pop_front() {
                self.act(action);
            }
        }
        self.close_when_empty();
        Ok(())
    }

    fn act(&mut self, action: Action) {
        match action {
            Action::Send { key, path } => self.send(key, path),
            Action::Fail { key, failure } => {
                let error = match failure {
                    Failure::ResetSinceFlush => CommandError::ResetSinceFlush,
                    Failure::NoPath { .. } if self.changed.is_some() => {
                        CommandError::Changed(self.changed.clone().unwrap_or_default())
                    }
                    Failure::NoPath { has_run: true } => CommandError::Unknown(self.why_no_path()),
                    Failure::NoPath { has_run: false } => CommandError::NotSent(self.why_no_path()),
                    Failure::Haunted => CommandError::NotSent(
                        "an older command may still change the same blocks over a path that is lost".into(),
                    ),
                };
                self.complete(key, Err(error));
            }
            Action::Open { path } => self.open(path),
            Action::Fence { path, via } => self.fence(path, via),
            Action::Reset { via } => self.reset_unit(via),
            Action::Check { path } => self.check(path),
            Action::Look { path } => self.look(path),
            Action::GiveUp => {
                let reason = self.why_no_path();
                self.give_up(&reason);
            }
        }
    }

    fn why_no_path(&self) -> String {
        let mut reasons: Vec<String> = Vec::new();
        for (way, path) in self.ways.iter().zip(&self.core.paths) {
            let portal = way.options.portal();
            let reason = if path.is_up() { &way.doubt } else { &way.reason };
            let reason = reason.as_deref().unwrap_or(path.access.name());
            reasons.push(format!("{portal}: {reason}"));
        }
        format!("no path carries data ({})", reasons.join("; "))
    }

    /// Everything is over.
    fn give_up(&mut self, reason: &str) {
        if self.over.is_some() {
            return;
        }
        self.over = Some(reason.to_owned());
        for way in &mut self.ways {
            way.session = None;
        }
        let commands: Vec<_> = self.core.entries.iter().map(|(key, _)| key).collect();
        for key in commands {
            self.end_unsent(key, reason.to_owned());
        }
        if let Some(Error::GhostLeft { portal }) = self.ghost_left() {
            self.events.push_back(EngineEvent::GhostLeft { portal });
        }
        self.events.push_back(EngineEvent::Over { reason: reason.to_owned() });
    }

    /// The logout is through when no session is left.
    fn close_when_empty(&mut self) {
        if self.is_leaving && self.ways.iter().all(|way| way.session.is_none()) {
            self.give_up("the session was logged out");
        }
    }

    /// After how long [`Self::poll`] is to be called even if the engine's descriptor does not get readable, as
    /// [`crate::Engine::idle_for`].
    #[must_use]
    pub fn idle_for(&self) -> Option<Duration> {
        let now = self.start.elapsed();
        let is_on = !self.is_leaving && !self.is_over();
        let core = self.core.next_deadline().filter(|_| is_on).map(|at| at.saturating_sub(now));
        let sessions = self.ways.iter().filter_map(|way| way.session.as_ref());
        sessions.filter_map(crate::Engine::idle_for).chain(core).min()
    }

    /// Waits for something to happen, until something is due at most.
    fn wait(&mut self, timeout: Option<Duration>) -> Result<(), Error> {
        let limit = timeout.into_iter().chain(self.idle_for()).min();
        let limit = limit.and_then(|limit| rustix::event::Timespec::try_from(limit).ok());
        let mut events = [const { MaybeUninit::uninit() }; EVENTS_MAX];
        match epoll::wait(&self.epoll, &mut events, limit.as_ref()) {
            Ok(_) => self.waker.clear(),
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(Error::System { what: "waiting for events", source: error.into() }),
        }
        Ok(())
    }

    /// Has a session's events wake this engine.
    fn watch(&self, path: usize, session: &impl AsFd) -> Result<(), Error> {
        let data = epoll::EventData::new_u64(path as u64 + 1);
        let added = epoll::add(&self.epoll, session, data, epoll::EventFlags::IN);
        added.map_err(|error| Error::System { what: "an epoll registration", source: error.into() })
    }

    /// The unit's number, as the caller has it: that over the first path.
    fn lun(&self) -> LunField {
        self.ways[0].options.lun.field()
    }

    fn tell(&mut self, path: usize, news: PathNews) {
        let portal = self.ways[path].options.portal();
        self.events.push_back(EngineEvent::Path { path, portal, news });
    }
}

/// For a poller of the caller's, as that of [`crate::Engine`].
impl AsFd for Engine {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Engine")
            .field("paths", &self.core.paths)
            .field("outstanding", &self.core.entries.len())
            .finish_non_exhaustive()
    }
}

/// The buffer of a command, taken from it.
fn take_buffer(data: &mut Data) -> Vec<u8> {
    match std::mem::replace(data, Data::None) {
        Data::None => Vec::new(),
        Data::In(buffer) | Data::Out(buffer) => buffer,
    }
}
