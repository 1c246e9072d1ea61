//! The asynchronous face of a session: an [`Engine`] on a thread of its own, and a handle that any thread may have.
//!
//! It needs no runtime: a command's future is a channel that the engine's thread fills, and any executor can wait for it.

mod drive;
mod shared;

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use futures_channel::oneshot;
use lunette_iscsi::initiator::session::Function;
use lunette_iscsi::parameters::SessionParameters;
use lunette_scsi::client::UnitIdentity;
use lunette_wire::LunField;

use crate::engine::{ConnectionInfo, Engine, EngineEvent, RequestId};
use crate::merge::{Again, Merging, Owners, attention_of, merge};
use crate::multipath::{self, PathInfo};
use crate::{Command, CommandError, CommandId, Completion, Error, LoginRecord, Lun, Options, Portal, Times};
use drive::Drive;
use shared::{Asker, Closing, Facts, Request, Shared, lock};

/// Events that are kept for [`Session::events`]; of more, the oldest are forgotten.
const EVENTS_MAX: usize = 256;

/// How old [`Session::connections`] may be while something goes on.
const TELL_INTERVAL: Duration = Duration::from_secs(1);

/// Handles of one session; the session is logged out when the last one goes.
struct Handles(Arc<Shared>);

/// A session. It can be cloned and sent to other threads; all clones are one session.
///
/// ```no_run
/// use lunette_initiator::{Command, Session, TargetUrl};
///
/// async fn first_block(url: &TargetUrl) -> Result<Vec<u8>, Box<dyn std::error::Error>> {
///     let session = Session::connect(url.options()).await?;
///     // READ(10) of block 0.
///     let read = Command::new(url.lun, [0x28, 0, 0, 0, 0, 0, 0, 0, 1, 0]).reading(vec![0; 512]);
///     let completion = session.submit(read).await;
///     let data = completion.data().to_vec();
///     println!("{:?} after {:?}", completion.result?, completion.times.done);
///     session.log_out().await;
///     Ok(data)
/// }
/// ```
#[derive(Clone)]
pub struct Session {
    handles: Arc<Handles>,
    record: Arc<LoginRecord>,
}

/// A command that is under way: the future of its [`Completion`]. Whoever drops it does not wait for the answer; the
/// command goes on.
#[derive(Debug)]
#[must_use = "the answer comes to who waits for it"]
pub struct Submitted(oneshot::Receiver<Completion>);

impl Future for Submitted {
    type Output = Completion;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Completion> {
        Pin::new(&mut self.0).poll(context).map(|answer| {
            // The engine's thread has ended without an answer, which only its own failure can do.
            answer.unwrap_or_else(|_| Completion {
                id: CommandId { place: 0, serial: 0 },
                result: Err(CommandError::Unknown("the session's thread has ended".into())),
                buffer: Vec::new(),
                received: 0,
                times: Times::default(),
                attempts: 0,
                session: 0,
            })
        })
    }
}

impl Session {
    /// Logs in. The login runs on the session's own thread.
    ///
    /// # Errors
    /// As [`Engine::connect`].
    pub async fn connect(options: Options) -> Result<Self, Error> {
        Self::start(move || Engine::connect(options)).await
    }

    /// Logs in over several paths to one logical unit, which takes all commands, whatever their `lun` says. Returns when the
    /// first path is there.
    ///
    /// # Errors
    /// As [`multipath::Engine::connect`].
    pub async fn connect_paths(options: multipath::Options) -> Result<Self, Error> {
        Self::start(move || multipath::Engine::connect(options)).await
    }

    async fn start<E: Drive>(
        connect: impl FnOnce() -> Result<E, Error> + Send + 'static,
    ) -> Result<Self, Error> {
        let (sender, receiver) = oneshot::channel();
        let run = move || {
            let engine = match connect() {
                Ok(engine) => engine,
                Err(error) => return drop(sender.send(Err(error))),
            };
            let (session, shared) = Self::around(&engine);
            // Who waited has gone: so has the only handle, and the engine says so.
            drop(sender.send(Ok(session)));
            drive(engine, &shared);
        };
        let thread = std::thread::Builder::new()
            .name("iscsi-session".into())
            .spawn(run)
            .map_err(|source| Error::System { what: "a thread", source })?;
        let session = receiver.await.unwrap_or(Err(Error::Ended))?;
        *lock(&session.handles.0.thread) = Some(thread);
        Ok(session)
    }

    fn around(engine: &impl Drive) -> (Self, Arc<Shared>) {
        let facts = Facts {
            parameters: engine.parameters(),
            connections: engine.connections(),
            paths: engine.paths(),
            events: Vec::new(),
            ghost_left: None,
            is_over: false,
        };
        let shared = Arc::new(Shared {
            requests: Mutex::default(),
            waker: engine.waker(),
            facts: Mutex::new(facts),
            thread: Mutex::default(),
        });
        let record = Arc::new(engine.login_record());
        (Self { handles: Arc::new(Handles(Arc::clone(&shared))), record }, shared)
    }

    /// Sends a command; the future has its completion. Commands of one thread are sent in their order.
    pub fn submit(&self, command: Command) -> Submitted {
        let (sender, receiver) = oneshot::channel();
        let asker = Asker { answer: sender, asked_at: Instant::now(), lun: command.lun };
        self.ask(Request::Command(command, asker));
        Submitted(receiver)
    }

    /// Says which logical unit this is: see [`Engine::guard`].
    pub fn guard(&self, lun: Lun, identity: UnitIdentity) {
        self.ask(Request::Guard(lun, Box::new(identity)));
    }

    /// Has small reads and writes of a unit that wait to be sent at the same moment and lie beside each other sent as one
    /// command, or not any longer. Off by default; an [`Engine`] never does it, so that what is measured is what was asked for.
    ///
    /// FUA, flushes and other commands are not merged, and nothing that overlaps passes another. If a merged command fails,
    /// reads are tried one by one; of writes each ends as the merged one did. The length of blocks must be the unit's.
    pub fn merge(&self, lun: Lun, merging: Option<Merging>) {
        self.ask(Request::Merge(lun, merging));
    }

    /// Asks for a task management function; answers the response code (RFC 7143, 11.6.1), 0 is "function complete". Not over
    /// several paths: a function belongs to one session.
    ///
    /// # Errors
    /// [`CommandError`] where the function cannot be asked for, or nobody answers.
    pub async fn manage(&self, function: Function) -> Result<u8, CommandError> {
        let (sender, receiver) = oneshot::channel();
        self.ask(Request::Manage(function, sender));
        let gone = || CommandError::Unknown("the session's thread has ended".into());
        receiver.await.unwrap_or_else(|_| Err(gone()))
    }

    /// Logs out; later commands fail. Returns when the session is over, or the target has not answered in time. Over several paths what a
    /// lost one has left is ended first ([`multipath::Engine::log_out`]), or [`Self::ghost_left`] tells which.
    pub async fn log_out(&self) {
        let (sender, receiver) = oneshot::channel();
        self.ask(Request::LogOut(sender));
        // The thread's end is the session's, too.
        let _ = receiver.await;
    }

    /// What has happened to the session since the last call, at most 256 events.
    #[must_use]
    pub fn events(&self) -> Vec<EngineEvent> {
        std::mem::take(&mut self.facts().events)
    }

    /// What was agreed for the session.
    #[must_use]
    pub fn parameters(&self) -> SessionParameters {
        self.facts().parameters
    }

    /// The connections that there are, as of about a second ago.
    #[must_use]
    pub fn connections(&self) -> Vec<ConnectionInfo> {
        self.facts().connections.clone()
    }

    /// The paths, as of about a second ago; none of a session that has just one.
    #[must_use]
    pub fn paths(&self) -> Vec<PathInfo> {
        self.facts().paths.clone()
    }

    /// The portal of a lost path, once the session is over and the path's commands may still be carried out
    /// ([`EngineEvent::GhostLeft`]).
    #[must_use]
    pub fn ghost_left(&self) -> Option<Portal> {
        self.facts().ghost_left.clone()
    }

    /// True when the session is over for good.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.facts().is_over
    }

    /// How the session was begun.
    #[must_use]
    pub fn login_record(&self) -> &LoginRecord {
        &self.record
    }

    fn facts(&self) -> std::sync::MutexGuard<'_, Facts> {
        lock(&self.handles.0.facts)
    }

    fn ask(&self, request: Request) {
        self.handles.0.ask(request);
    }
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Session").field("facts", &*self.facts()).finish_non_exhaustive()
    }
}

impl Drop for Handles {
    /// Nobody can ask for anything any more.
    fn drop(&mut self) {
        self.0.ask(Request::Abandon);
        let thread = lock(&self.0.thread).take();
        // A handle may be dropped on the engine's own thread, which cannot wait for itself.
        if let Some(thread) = thread.filter(|thread| thread.thread().id() != std::thread::current().id()) {
            let _ = thread.join();
        }
    }
}

/// Who waits for a command.
type Waiter = Owners<Asker>;

/// The engine's thread: asks go in, completions go out.
struct Driver<'a, E> {
    engine: E,
    /// When the engine's clock began.
    began: Instant,
    shared: &'a Shared,
    /// Who waits for a command, by its place.
    waiting: Vec<Option<(CommandId, Waiter)>>,
    /// What may be merged, by unit.
    merging: Vec<(LunField, Merging)>,
    functions: Vec<(RequestId, oneshot::Sender<Result<u8, CommandError>>)>,
    leaving: Vec<oneshot::Sender<()>>,
    is_abandoned: bool,
    /// When the facts were last brought up to date.
    told_at: Duration,
}

fn drive(engine: impl Drive, shared: &Shared) {
    let _closing = Closing(shared);
    let mut driver = Driver::of(engine, shared);
    let mut done = Vec::new();
    loop {
        driver.take_requests();
        driver.tell_leavers();
        if driver.is_through() {
            break;
        }
        if let Err(error) = driver.engine.poll(&mut done) {
            tracing::error!(%error, "the session's thread ends");
            break;
        }
        driver.answer_all(&mut done);
        driver.tell_events();
    }
}

impl<'a, E: Drive> Driver<'a, E> {
    fn of(engine: E, shared: &'a Shared) -> Self {
        let now = Instant::now();
        Self {
            began: now.checked_sub(engine.elapsed()).unwrap_or(now),
            engine,
            shared,
            waiting: Vec::new(),
            merging: Vec::new(),
            functions: Vec::new(),
            leaving: Vec::new(),
            is_abandoned: false,
            told_at: Duration::ZERO,
        }
    }

    /// True when nobody can want anything any more.
    fn is_through(&self) -> bool {
        self.is_abandoned && self.engine.is_over() && self.engine.outstanding() == 0
    }

    fn take_requests(&mut self) {
        let mut commands = Vec::new();
        for request in std::mem::take(&mut lock(&self.shared.requests).waiting) {
            if !matches!(request, Request::Command(..)) {
                self.submit_all(std::mem::take(&mut commands));
            }
            match request {
                Request::Command(command, asker) => commands.push((command, asker)),
                Request::Guard(lun, identity) => self.engine.guard(lun, *identity),
                Request::Merge(lun, merging) => {
                    self.merging.retain(|(other, _)| *other != lun.field());
                    self.merging.extend(merging.map(|merging| (lun.field(), merging)));
                }
                Request::Manage(function, sender) => match self.engine.manage(function) {
                    Ok(request) => self.functions.push((request, sender)),
                    Err(error) => drop(sender.send(Err(error))),
                },
                Request::LogOut(sender) => {
                    self.engine.log_out();
                    self.leaving.push(sender);
                }
                Request::Abandon => {
                    self.is_abandoned = true;
                    self.engine.log_out();
                }
            }
        }
        self.submit_all(commands);
    }

    /// Sends commands, merged where that was asked for.
    fn submit_all(&mut self, commands: Vec<(Command, Asker)>) {
        // Other lengths may be agreed in a new session.
        let burst_bytes_max = self.engine.parameters().max_burst_length;
        let rule = |lun| {
            let (_, merging) = self.merging.iter().find(|(other, _)| *other == lun)?;
            let command_bytes_max = merging.command_bytes_max.min(burst_bytes_max);
            Some(Merging { command_bytes_max, ..*merging })
        };
        for merged in merge(commands, rule) {
            let (command, owners) = merged.into_parts();
            self.submit(command, owners);
        }
    }

    fn submit(&mut self, command: Command, waiter: Waiter) {
        let id = self.engine.submit(command);
        if self.waiting.len() <= id.place() {
            self.waiting.resize_with(id.place() + 1, || None);
        }
        self.waiting[id.place()] = Some((id, waiter));
    }

    fn answer_all(&mut self, done: &mut Vec<Completion>) {
        // A read that is tried again may get the place of any of them: who waits is known before the first is.
        let waiters: Vec<Option<Waiter>> =
            done.iter().map(|completion| self.waiter_of(completion.id)).collect();
        for (completion, waiter) in done.drain(..).zip(waiters) {
            if let Some(waiter) = waiter {
                self.answer(completion, waiter);
            }
        }
    }

    fn waiter_of(&mut self, id: CommandId) -> Option<Waiter> {
        let waiting = self.waiting.get_mut(id.place())?;
        waiting.take_if(|(waiting, _)| *waiting == id).map(|(_, waiter)| waiter)
    }

    fn answer(&mut self, completion: Completion, waiter: Waiter) {
        let answers = match waiter.again(&completion) {
            Ok(Again { told, commands }) => {
                commands.into_iter().for_each(|(command, asker)| self.submit(command, Owners::one(asker)));
                told.into_iter().collect()
            }
            Err(waiter) => waiter.answers(completion),
        };
        for (asker, mut answer) in answers {
            // It was submitted before the engine had it.
            let queued = asker.asked_at.saturating_duration_since(self.began);
            answer.times.queued = queued.min(answer.times.queued);
            // Who waited may have gone; what a unit has told nobody tells again.
            if let Err(unheard) = asker.answer.send(answer)
                && let Some(sense) = attention_of(&unheard)
            {
                let event = EngineEvent::Attention { lun: asker.lun, sense: sense.to_vec() };
                lock(&self.shared.facts).events.push(event);
            }
        }
    }

    fn tell_events(&mut self) {
        let mut kept = Vec::new();
        while let Some(event) = self.engine.event() {
            let (request, result) = match &event {
                EngineEvent::Managed { request, response } => (*request, Ok(*response)),
                EngineEvent::Unanswered { request } => {
                    (*request, Err(CommandError::Unknown("the function was not answered".into())))
                }
                _ => {
                    kept.push(event);
                    continue;
                }
            };
            if let Some(at) = self.functions.iter().position(|(waiting, _)| *waiting == request) {
                let _ = self.functions.swap_remove(at).1.send(result);
            }
        }
        let now = self.engine.elapsed();
        if kept.is_empty() && now < self.told_at + TELL_INTERVAL {
            return;
        }
        self.told_at = now;
        let mut facts = lock(&self.shared.facts);
        let ghost_left = kept.iter().find_map(|event| match event {
            EngineEvent::GhostLeft { portal } => Some(portal.clone()),
            _ => None,
        });
        facts.ghost_left = facts.ghost_left.take().or(ghost_left);
        facts.events.append(&mut kept);
        let surplus = facts.events.len().saturating_sub(EVENTS_MAX);
        facts.events.drain(..surplus);
        facts.connections = self.engine.connections();
        facts.paths = self.engine.paths();
        facts.parameters = self.engine.parameters();
        facts.is_over = self.engine.is_over();
    }

    /// Tells those who wait for the logout that it is through.
    fn tell_leavers(&mut self) {
        if self.engine.is_over() && !self.leaving.is_empty() {
            // They may ask for what the end has left.
            self.tell_events();
            for sender in self.leaving.drain(..) {
                let _ = sender.send(());
            }
        }
    }
}

#[cfg(test)]
mod tests;
