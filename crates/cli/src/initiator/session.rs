//! A [`Port`] that is a session of `lunette_initiator`.

mod compare;

use std::collections::HashMap;
use std::time::{Duration, Instant};

use lunette_initiator::multipath::{self, PathInfo, PathNews, PathState};
use lunette_initiator::{
    Command as Sent, CommandError, CommandId, Completion, Data, Engine, EngineEvent, Notice, Options, Portal,
    Remedy, Replay,
};
use lunette_scsi::client::{Command, Sense, Transfer, UnitIdentity};
use lunette_scsi::{Lun, Status};
use lunette_wire::LunField;
use lunette_wire::target::Residual;

use super::disk::{broken_promise, changed, is_of_modes};
use super::port::{BUSY_INTERVAL, Done, IDLE_INTERVAL, Port};
use crate::failure::{Failure, say};

const REQUEST_SENSE: u8 = 0x03;
/// How often a session may be lost and had again without any command being answered: what a target does to the first try it
/// does to all of them.
const LOSSES_MAX: u32 = 8;
/// A session that was there for so long was not lost for what its login, or a question behind that, has met.
const SETTLED: Duration = Duration::from_secs(5);
/// How long paths that are being logged in are waited for, where all are to be told of: a connection and a login.
const PATHS_LIMIT: Duration = Duration::from_secs(25);

/// Logs in.
///
/// # Errors
/// Why there is no session, and what to try.
pub(crate) fn connect(options: &Options) -> Result<Box<dyn Port>, Failure> {
    let engine = Engine::connect(options.clone()).map_err(|error| Failure::initiator(&error))?;
    Ok(SessionPort::of(AnyEngine::One(Box::new(engine))))
}

/// Logs in over several paths.
///
/// # Errors
/// As above.
pub(crate) fn connect_paths(options: multipath::Options) -> Result<Box<dyn Port>, Failure> {
    let engine = multipath::Engine::connect(options).map_err(|error| Failure::initiator(&error))?;
    Ok(SessionPort::of(AnyEngine::Several(Box::new(engine))))
}

/// An engine of one path or of several.
enum AnyEngine {
    One(Box<Engine>),
    Several(Box<multipath::Engine>),
}

impl AnyEngine {
    fn submit(&mut self, command: Sent) -> CommandId {
        match self {
            AnyEngine::One(engine) => engine.submit(command),
            AnyEngine::Several(engine) => engine.submit(command),
        }
    }

    fn poll(&mut self, timeout: Option<Duration>, done: &mut Vec<Completion>) -> Result<(), Failure> {
        let polled = match self {
            AnyEngine::One(engine) => engine.poll(timeout, done),
            AnyEngine::Several(engine) => engine.poll(timeout, done),
        };
        polled.map_err(|error| Failure::initiator(&error))
    }

    fn event(&mut self) -> Option<EngineEvent> {
        match self {
            AnyEngine::One(engine) => engine.event(),
            AnyEngine::Several(engine) => engine.event(),
        }
    }

    fn is_over(&self) -> bool {
        match self {
            AnyEngine::One(engine) => engine.is_over(),
            AnyEngine::Several(engine) => engine.is_over(),
        }
    }

    fn guard(&mut self, lun: lunette_initiator::Lun, identity: UnitIdentity) {
        match self {
            AnyEngine::One(engine) => engine.guard(lun, identity),
            AnyEngine::Several(engine) => engine.guard(lun, identity),
        }
    }

    /// Takes leave, if somebody is there to hear it; what the target says to the farewell changes nothing.
    fn close(self) -> Result<(), Failure> {
        match self {
            AnyEngine::One(engine) => {
                if engine.is_up() {
                    let _ = engine.close();
                }
                Ok(())
            }
            AnyEngine::Several(engine) => {
                if engine.is_haunted() && !engine.is_over() {
                    say("lunette: ending what a lost path has left; that may take minutes");
                }
                engine.close().map_err(|error| Failure::initiator(&error))
            }
        }
    }
}

/// Which way the blocks of a command go.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Moves {
    #[default]
    Nothing,
    In,
    Out,
    /// None, but it speaks of those before it.
    Flushes,
}

impl Moves {
    fn of(command: &Command) -> Self {
        match command.transfer() {
            Transfer::None if command.is_flush() => Self::Flushes,
            Transfer::None | Transfer::List(_) => Self::Nothing,
            Transfer::In { .. } => Self::In,
            Transfer::Out { .. } => Self::Out,
        }
    }
}

struct SessionPort {
    /// Until it is closed.
    engine: Option<AnyEngine>,
    /// What each command under way is to its caller.
    tags: HashMap<CommandId, (u64, Moves)>,
    done: Vec<Completion>,
    /// How often the session was lost since a command was answered.
    losses: u32,
    /// The unit that must not become another one.
    guarded: Option<(lunette_initiator::Lun, UnitIdentity)>,
    /// It has.
    exchanged: Option<Failure>,
    /// It may have by what was said beside the ends of commands, and was not asked since.
    is_doubted: bool,
    /// It has said that its modes were changed.
    has_other_modes: bool,
    /// Why there is no session any more.
    over: Option<String>,
    began: Instant,
    polled_at: Instant,
    up_since: Instant,
    /// Why the last try to have the session again has failed, where there is none yet.
    refusal: Option<String>,
}

impl Port for SessionPort {
    fn start(&mut self, lun: Lun, tag: u64, command: &Command, data: Vec<u8>) -> Result<(), Failure> {
        if let Some(failure) = &self.exchanged {
            return Err(failure.clone());
        }
        let sent = Sent {
            lun: LunField(lun.to_bytes()),
            cdb: command.cdb().into(),
            data: match command.transfer() {
                Transfer::None => Data::None,
                Transfer::In { .. } => Data::In(data),
                Transfer::Out { .. } | Transfer::List(_) => Data::Out(data),
            },
            // Each block is written once in a run, so that to write it again after a lost session changes nothing. Who asks for sense
            // data wants to know how far a unit is, and may ask again.
            replay: if matches!(command.transfer(), Transfer::Out { .. })
                || command.cdb().first() == Some(&REQUEST_SENSE)
            {
                Replay::Always
            } else {
                Replay::WhereSafe
            },
            ..Sent::new(lunette_initiator::Lun::default(), command.cdb())
        };
        let id = self.engine()?.submit(sent);
        self.tags.insert(id, (tag, Moves::of(command)));
        Ok(())
    }

    fn finish(&mut self) -> Result<Done, Failure> {
        while self.done.is_empty() {
            // Not `outstanding`: a command may be over when it is submitted, and its end is told by the next poll.
            if self.tags.is_empty() {
                return Err(Failure::internal("no command is under way"));
            }
            self.poll(None)?;
        }
        let completion = self.done.remove(0);
        if completion.result.is_ok() {
            self.losses = 0;
        }
        let Some((tag, moves)) = self.tags.remove(&completion.id) else {
            // A question of the port's own that nobody waits for any more.
            return self.finish();
        };
        let (is_over, session) = (self.engine()?.is_over(), completion.session);
        let status = completion.result.map_err(|error| {
            let failure = match &error {
                // It has changed nothing, whether it was carried out or not.
                CommandError::Unknown(why) if moves == Moves::In => Failure::unanswered(why),
                _ => Failure::command(&error),
            };
            // A flush whose session was lost says nothing of what was before it.
            let is_lost = matches!(error, CommandError::NotSent(_) | CommandError::Unknown(_));
            let failure = if moves == Moves::Flushes && is_lost { failure.of_flush() } else { failure };
            if is_over { failure } else { failure.of_tag(tag) }
        })?;
        if moves == Moves::Out && status.code == 0 && status.residual != Residual::None {
            let message = format!("the target did not take a write as it was sent ({:?})", status.residual);
            return Err(Failure::scsi(message, None));
        }
        let sense = Sense::decode(&status.sense);
        self.has_other_modes |= sense.as_ref().is_some_and(is_of_modes);
        if sense.is_some_and(|sense| sense.is_unit_attention() && sense.may_be_of_another()) {
            self.compare()?;
        }
        let mut data = completion.buffer;
        if moves == Moves::In {
            data.truncate(completion.received as usize);
        }
        Ok(Done { tag, status: Status::from_code(status.code), sense: status.sense, data, session })
    }

    fn attend(&mut self) -> Result<Duration, Failure> {
        let interval = if self.is_busy() { BUSY_INTERVAL } else { IDLE_INTERVAL };
        if self.polled_at.elapsed() < interval {
            return Ok(interval);
        }
        self.poll(Some(Duration::ZERO))?;
        if let Some(reason) = &self.over {
            // What failed by that says more of it.
            let is_failed = |one: &Completion| one.result.is_err() && self.tags.contains_key(&one.id);
            if let Some(failed) = self.done.iter().position(is_failed) {
                self.done.swap(0, failed);
                self.finish()?;
            } else if self.done.iter().all(Completion::is_good) {
                return Err(Failure::session(format!("the session is over: {reason}")));
            }
        }
        Ok(interval)
    }

    fn now(&self) -> Duration {
        self.began.elapsed()
    }

    fn guard(&mut self, lun: Lun, identity: UnitIdentity) {
        // Only numbers come from URLs; a unit with another form of address is not guarded.
        let lun = lun.number().and_then(lunette_initiator::Lun::new);
        if let (Some(lun), Some(engine)) = (lun, &mut self.engine) {
            engine.guard(lun, identity.clone());
            self.guarded = Some((lun, identity));
        }
    }

    fn has_other_modes(&self) -> bool {
        self.has_other_modes
    }

    fn paths(&mut self) -> Result<Vec<PathInfo>, Failure> {
        let until = Instant::now() + PATHS_LIMIT;
        loop {
            let Some(AnyEngine::Several(engine)) = &self.engine else { return Ok(Vec::new()) };
            let paths = engine.paths();
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() || paths.iter().all(|path| path.state != PathState::Opening) {
                return Ok(paths);
            }
            self.poll(Some(left))?;
        }
    }

    fn close(mut self: Box<Self>) -> Result<(), Failure> {
        self.engine.take().map_or(Ok(()), AnyEngine::close)
    }
}

impl Drop for SessionPort {
    /// A command that fails takes leave, too: the target need not find out by itself that nobody is there any more.
    fn drop(&mut self) {
        if let Some(Err(failure)) = self.engine.take().map(AnyEngine::close) {
            say(&format!("lunette: {failure}"));
        }
    }
}

/// Commands are not answered in time.
pub(crate) fn overdue(lun: LunField, commands: usize, waited: Duration, remedy: Remedy) -> String {
    let (what, seconds) = (if commands == 1 { "command" } else { "commands" }, waited.as_secs_f32());
    let lun = Lun::from_bytes(lun.0);
    format!("lunette: {commands} {what} to LUN {lun} not answered for {seconds:.1} s: trying {remedy}")
}

/// Says what has happened to a path. That one is there at the beginning is nothing new.
pub(crate) fn say_of_path(portal: &Portal, news: &PathNews) {
    let what = match news {
        PathNews::Up { after: None } => return,
        PathNews::Up { after: Some(after) } => format!("is there again after {:.1} s", after.as_secs_f64()),
        PathNews::Lost { reason, left } => format!("is lost: {reason}; {left} left"),
        PathNews::Failed { reason } => format!("cannot be had: {reason}; trying again"),
        PathNews::Access(access) => format!("is {}", access.name()),
    };
    say(&format!("lunette: the path over {portal} {what}"));
}

/// This has ended them.
pub(crate) fn helped(remedy: Remedy) -> String {
    format!("lunette: {remedy} has ended what was not answered")
}

impl SessionPort {
    fn of(engine: AnyEngine) -> Box<dyn Port> {
        let (tags, done, losses, guarded, exchanged, is_doubted, has_other_modes, over) = Default::default();
        let (engine, began) = (Some(engine), Instant::now());
        let (polled_at, up_since) = (began, began);
        Box::new(SessionPort {
            engine,
            tags,
            done,
            losses,
            guarded,
            exchanged,
            is_doubted,
            has_other_modes,
            over,
            began,
            polled_at,
            up_since,
            refusal: None,
        })
    }

    fn engine(&mut self) -> Result<&mut AnyEngine, Failure> {
        self.engine.as_mut().ok_or_else(|| Failure::internal("the session was closed"))
    }

    /// Commands are under way.
    fn is_busy(&self) -> bool {
        self.tags.len() > self.done.len()
    }

    fn poll(&mut self, timeout: Option<Duration>) -> Result<(), Failure> {
        let mut done = std::mem::take(&mut self.done);
        let before = done.len();
        let polled = self.engine()?.poll(timeout, &mut done);
        // One that has no answer may have ended by the loss itself.
        if done[before..].iter().any(|ended| ended.result.is_ok()) {
            self.losses = 0;
        }
        (self.done, self.polled_at) = (done, Instant::now());
        polled?;
        self.tell_events()?;
        if self.is_doubted { self.compare() } else { Ok(()) }
    }

    /// What happens to the session is told.
    fn tell_events(&mut self) -> Result<(), Failure> {
        while let Some(event) = self.engine.as_mut().and_then(AnyEngine::event) {
            match event {
                EngineEvent::Lost { reason } => {
                    // Of nothing that is under way there is no answer.
                    let was_idle = !self.is_busy() && self.up_since.elapsed() >= SETTLED;
                    self.losses = if was_idle { 0 } else { self.losses + 1 };
                    if self.losses > LOSSES_MAX {
                        let message =
                            format!("the session is lost each time before a command is answered: {reason}");
                        return Err(Failure::session(message));
                    }
                    say(&format!("lunette: the session was lost: {reason}; logging in again"));
                }
                // The next tries may say the same for two minutes.
                EngineEvent::TryFailed { reason } if self.refusal.as_ref() != Some(&reason) => {
                    say(&format!("lunette: not yet: {reason}"));
                    self.refusal = Some(reason);
                }
                EngineEvent::Over { reason } => self.over = Some(reason),
                EngineEvent::Reconnected { portal, after } => {
                    self.up_since = Instant::now();
                    self.refusal = None;
                    say(&format!("lunette: logged in again at {portal} after {:.1} s", after.as_secs_f64()));
                }
                EngineEvent::ConnectionMissing { reason } => {
                    say(&format!("lunette: one connection of the session is missing: {reason}"));
                }
                EngineEvent::Overdue { lun, commands, waited, remedy } => {
                    say(&overdue(lun, commands, waited, remedy));
                }
                EngineEvent::Ended { remedy, .. } => say(&helped(remedy)),
                EngineEvent::Path { portal, news, .. } => say_of_path(&portal, &news),
                // It met a question of the engine's own.
                EngineEvent::Attention { lun, sense }
                | EngineEvent::Notice(Notice::ScsiEvent { lun, sense }) => {
                    if let Some(sense) = Sense::decode(&sense) {
                        self.hear(lun, &sense)?;
                    }
                }
                // Over one path its commands say so.
                EngineEvent::UnitChanged { what, .. }
                    if matches!(self.engine, Some(AnyEngine::Several(_))) =>
                {
                    return Err(self.exchange(&what));
                }
                EngineEvent::LogoutRequested { portal, .. } => {
                    say(&format!("lunette: {portal} asks for a logout"));
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// A unit has said this, and tells it to no command any more.
    fn hear(&mut self, lun: LunField, sense: &Sense) -> Result<(), Failure> {
        if sense.deferred {
            return Err(Failure::scsi(broken_promise(sense), None));
        }
        if !self.guarded.as_ref().is_some_and(|(guarded, _)| guarded.field() == lun) {
            return Ok(());
        }
        if let Some(what) = changed(sense.code).filter(|_| sense.is_unit_attention()) {
            return Err(self.exchange(what));
        }
        self.is_doubted |= sense.may_be_of_another();
        self.has_other_modes |= is_of_modes(sense);
        Ok(())
    }
}
