//! A session that one thread owns and drives: commands in, completions out.
//!
//! The engine is sockets, buffers and a clock around `lunette_iscsi::initiator::session`. Per [`Engine::poll`]: what can be
//! sent is sent with one vectored write a connection, what has come is read until nothing is left, all of it is decoded, and
//! what that allows is sent at once.

mod event;
mod link;
mod receive;
mod recovery;
mod replay;
mod table;
mod transmit;
mod turn;
mod wake;

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use lunette_iscsi::initiator::login::{Outcome, Purpose};
use lunette_iscsi::initiator::session::{
    Abort, Command as CoreCommand, Function, Logout, Outbox, RequestHandle, Session, Settings, SubmitError,
};
use lunette_iscsi::parameters::SessionParameters;
use lunette_wire::{Cid, Isid, LunField};
use rustix::event::epoll;
use rustix::fd::OwnedFd;

pub use event::{ConnectionInfo, EngineEvent, RequestId};
pub use wake::Waker;

use crate::connect::{Connector, Goal, LoginRecord, no_random};
use crate::identity::random_isid;
use crate::{Command, CommandError, CommandId, Completion, Data, Error, Options, Phase};
use link::Link;
use recovery::{Down, Job};
use table::{Ending, Table};

/// Connections are found by their numbers, which begin behind this one.
const TOKEN_WAKE: u64 = 0;
/// Commands that the session holds at once; more wait in front of it.
const TASKS_MAX: usize = 4096;
/// Reads from one connection before the others have their turn.
const READS_MAX: usize = 16;
const EVENTS_MAX: usize = 64;

/// Where the session stands.
#[derive(Debug)]
enum State {
    Up,
    /// It was lost, and is tried to be had again.
    Down(Down),
    /// It is over, for this reason.
    Over(String),
}

/// See the module's documentation. An engine that is dropped closes its connections without a word; [`Engine::close`] takes
/// leave.
///
/// # When the session is lost
///
/// The engine logs in again with the same session identifier, so that the target ends what is left of the old session
/// first (RFC 7143, 6.3.5): at once or after the target's Time2Wait, then after 0.5, 1, 2, 4, 8 s and every 10 s, for
/// [`crate::Timing::recovery`]. Commands are then carried out again only where that cannot do harm:
///
/// | command | had not left | may have been carried out |
/// |---|---|---|
/// | reads, inquiries ([`crate::Replay::WhereSafe`]) | again | again |
/// | plain writes | again | [`CommandError::Unknown`] |
/// | plain writes, [`crate::Replay::Always`] | again | again, if the new session is in the same portal group |
/// | SYNCHRONIZE CACHE | [`CommandError::NotSent`] | [`CommandError::Unknown`] |
/// | all others | [`CommandError::NotSent`] | [`CommandError::Unknown`] |
///
/// At ErrorRecoveryLevel 2 a lost connection is replaced and its tasks go on in it (RFC 7143, 7.1.4.3), as long as the target
/// keeps them; only a session that cannot be saved in this way is lost.
///
/// The order in which they were submitted is kept. A unit attention about the loss of the session that meets a replayed
/// command is taken by the engine and told as [`EngineEvent::Attention`]. If it tells of a reset, a volatile cache may have
/// lost what was not flushed: the next SYNCHRONIZE CACHE of that unit fails with [`CommandError::ResetSinceFlush`], once.
pub struct Engine {
    options: Arc<Options>,
    isid: Isid,
    start: Instant,
    /// The time of this turn.
    now: Duration,
    epoll: OwnedFd,
    waker: Waker,
    session: Session,
    state: State,
    /// The outcome of the leading login.
    leading: Box<Outcome>,
    links: Vec<Link>,
    tokens: u64,
    table: Table,
    /// Commands without a task, in their order.
    backlog: VecDeque<u32>,
    outbox: Outbox,
    scratch: Box<[u8]>,
    /// Tokens of what is ready, and for what.
    ready: Vec<(u64, epoll::EventFlags)>,
    events: VecDeque<EngineEvent>,
    record: LoginRecord,
    jobs: (Sender<Job>, Receiver<Job>),
    is_joining: bool,
    /// When a connection is to take the place of one that was lost, at ErrorRecoveryLevel 2; and that one's name.
    rejoin: Option<(Duration, Cid)>,
    /// What the system said about a connection that broke.
    detail: Option<String>,
    /// Requests that abort commands, which end by themselves.
    aborts: Vec<RequestHandle>,
    /// Units that were reset while their commands were replayed.
    resets: Vec<LunField>,
    /// A logout was asked for on this side.
    is_closing: bool,
    /// The target wants the session to log out, and it is to go on in a new one.
    is_moving: bool,
}

impl Engine {
    /// Logs in, with as many connections as the options want and the target allows. A further connection that fails is told
    /// as an event, and the session goes on without it.
    ///
    /// # Errors
    /// [`Error`] of the first connection.
    pub fn connect(options: Options) -> Result<Self, Error> {
        let isid = options.isid.map_or_else(random_isid, Ok).map_err(no_random)?;
        let options = Arc::new(options);
        let mut record = LoginRecord::default();
        let goal = Goal::leading(Purpose::Normal(options.target.clone()), isid);
        let connected = Connector::new(&options, &mut record).log_in(&goal, 0)?;
        let system = |what| move |error: rustix::io::Errno| Error::System { what, source: error.into() };
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(system("an epoll descriptor"))?;
        let waker = Waker::new().map_err(system("an event descriptor"))?;
        let data = epoll::EventData::new_u64(TOKEN_WAKE);
        epoll::add(&epoll, &waker, data, epoll::EventFlags::IN).map_err(system("an epoll registration"))?;
        let leading = Box::new(connected.outcome.clone());
        let mut engine = Self {
            session: new_session(&options, &leading),
            options,
            isid,
            start: Instant::now(),
            now: Duration::ZERO,
            epoll,
            waker,
            state: State::Up,
            leading,
            links: Vec::new(),
            tokens: TOKEN_WAKE,
            table: Table::default(),
            backlog: VecDeque::new(),
            outbox: Outbox::default(),
            scratch: vec![0; receive::SCRATCH_BYTES].into(),
            ready: Vec::with_capacity(EVENTS_MAX),
            events: VecDeque::new(),
            record,
            jobs: channel(),
            is_joining: false,
            rejoin: None,
            detail: None,
            aborts: Vec::new(),
            resets: Vec::new(),
            is_closing: false,
            is_moving: false,
        };
        engine.add_link(connected)?;
        while let Some(goal) = engine.next_join() {
            let (options, first) = (Arc::clone(&engine.options), engine.links.len());
            let joined = Connector::new(&options, &mut engine.record).log_in(&goal, first);
            if !engine.joined(joined) {
                break;
            }
        }
        Ok(engine)
    }

    /// Takes a command. Nothing is sent before the next [`Self::poll`]; each command is answered by one completion, whatever
    /// happens.
    pub fn submit(&mut self, command: Command) -> CommandId {
        let id = self.table.insert(self.start.elapsed(), command);
        if let State::Over(reason) = &self.state {
            let ending = Err(CommandError::NotSent(reason.clone()));
            self.end(id.place, (ending, 0));
        } else if self.is_closing {
            self.end(id.place, (Err(CommandError::NotSent("the session is being closed".into())), 0));
        } else if self.is_up() && self.backlog.is_empty() {
            self.begin(id.place);
        } else {
            self.backlog.push_back(id.place);
        }
        id
    }

    /// Sends what waits, waits for something to happen, and adds what is over to `done`. Returns early when something is
    /// over, when an event is there, or when [`Waker::wake`] was called; `timeout` none waits for as long as it takes. An
    /// engine that [is over](Self::is_over) waits for its waker and the timeout alone.
    ///
    /// # Errors
    /// [`Error::System`]. A lost session is no error here: it is told by events and by what becomes of its commands.
    pub fn poll(&mut self, timeout: Option<Duration>, done: &mut Vec<Completion>) -> Result<(), Error> {
        self.now = self.start.elapsed();
        self.send();
        self.settle();
        let has_news = !self.table.done.is_empty() || !self.events.is_empty();
        self.wait(if has_news { Some(Duration::ZERO) } else { timeout })?;
        self.now = self.start.elapsed();
        self.receive();
        self.settle();
        self.tick();
        self.settle();
        self.send();
        self.settle();
        done.append(&mut self.table.done);
        Ok(())
    }

    /// The next thing that happened beside completions.
    pub fn event(&mut self) -> Option<EngineEvent> {
        self.events.pop_front()
    }

    /// Commands that are not over.
    #[must_use]
    pub fn outstanding(&self) -> usize {
        self.table.len()
    }

    /// True while the session is there.
    #[must_use]
    pub const fn is_up(&self) -> bool {
        matches!(self.state, State::Up)
    }

    /// True when the session is over for good.
    #[must_use]
    pub const fn is_over(&self) -> bool {
        matches!(self.state, State::Over(_))
    }

    /// Wakes a thread that waits in [`Self::poll`].
    #[must_use]
    pub fn waker(&self) -> Waker {
        self.waker.clone()
    }

    /// How the session was begun: each portal, PDU and key.
    #[must_use]
    pub const fn login_record(&self) -> &LoginRecord {
        &self.record
    }

    /// What was agreed for the session.
    #[must_use]
    pub const fn parameters(&self) -> &SessionParameters {
        self.session.parameters()
    }

    /// The target's name for people, where it has told one.
    #[must_use]
    pub fn target_alias(&self) -> Option<&str> {
        self.leading.target_alias.as_deref()
    }

    /// The connections that there are.
    #[must_use]
    pub fn connections(&self) -> Vec<ConnectionInfo> {
        self.links.iter().map(|link| link.info(self.session.round_trip(link.id))).collect()
    }

    /// The clock of [`crate::Times`]: since the engine's start.
    #[must_use]
    pub fn elapsed(&self) -> Duration {
        self.start.elapsed()
    }

    /// Aborts a command that is not over: it ends as [`CommandError::Aborted`], or with the answer that came before.
    pub fn abort(&mut self, id: CommandId) {
        let Some(place) = self.table.find(id) else { return };
        let Some(pending) = self.table.get(place).filter(|pending| !pending.has_ended()) else { return };
        match pending.task {
            // A second abort of the same, or one without room for the request: its end comes in any case.
            Some(task) => {
                if let Ok(Abort::Requested(request)) = self.session.abort(self.now, task, &mut self.outbox) {
                    self.aborts.push(request);
                }
            }
            None => {
                self.backlog.retain(|waiting| *waiting != place);
                self.end(place, (Err(CommandError::Aborted), 0));
            }
        }
        self.settle();
    }

    /// Asks for a task management function; [`EngineEvent::Managed`] has the answer.
    ///
    /// # Errors
    /// What the session says against it.
    pub fn manage(&mut self, function: Function) -> Result<RequestId, CommandError> {
        let asked = self.session.manage(self.now, function, &mut self.outbox);
        self.settle();
        asked.map(RequestId).map_err(|error| CommandError::Invalid(error.to_string()))
    }

    /// Pings the target on each connection, besides what the keepalive does; the answers improve
    /// [`ConnectionInfo::round_trip`].
    pub fn ping(&mut self) {
        for link in &self.links {
            // A connection that is being logged out is not pinged.
            let _ = self.session.nop(self.now, link.id, &[]);
        }
    }

    /// Begins to log out. Commands that are not over by the target's answer end as [`CommandError::Aborted`]. The caller
    /// goes on polling until [`Self::is_over`].
    pub fn log_out(&mut self) {
        if self.is_closing || self.is_over() {
            return;
        }
        self.is_closing = true;
        if self.session.logout(self.now, Logout::Session, &mut self.outbox).is_err() {
            self.over("the session was closed on this side".into());
        }
        self.settle();
    }

    /// Logs out and waits for the answer, at most as long as [`crate::Timing::logout`].
    ///
    /// # Errors
    /// [`Error::Timeout`] where the target does not answer; the connections are closed then.
    pub fn close(mut self) -> Result<(), Error> {
        self.log_out();
        let deadline = Instant::now() + self.options.timing.logout;
        let mut done = Vec::new();
        while !self.is_over() {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                let portal = self.options.portals[0].clone();
                return Err(Error::Timeout {
                    portal,
                    phase: Phase::Logout,
                    after: self.options.timing.logout,
                });
            }
            self.poll(Some(left), &mut done)?;
            self.events.clear();
        }
        Ok(())
    }

    /// A flush takes note of a reset of its unit: what was written before it may be lost, and the flush must not promise it.
    fn takes_reset(&mut self, place: u32) -> bool {
        let flushed =
            self.table.get(place).map(|pending| &pending.command).filter(|command| replay::is_flush(command));
        let Some(lun) = flushed.map(|command| command.lun) else { return false };
        let Some(at) = self.resets.iter().position(|reset| *reset == lun) else { return false };
        self.resets.swap_remove(at);
        true
    }

    /// Makes a command a task.
    fn begin(&mut self, place: u32) {
        if self.takes_reset(place) {
            return self.end(place, (Err(CommandError::ResetSinceFlush), 0));
        }
        let Some(pending) = self.table.get(place) else { return };
        let command = &pending.command;
        let (read, write) = match &command.data {
            Data::None => (0, 0),
            Data::In(buffer) => (buffer.len(), 0),
            Data::Out(buffer) => (0, buffer.len()),
        };
        let (Ok(read_length), Ok(write_length)) = (u32::try_from(read), u32::try_from(write)) else {
            let reason = "a command transfers less than 4 GiB".to_owned();
            return self.end(place, (Err(CommandError::Invalid(reason)), 0));
        };
        let task = self.session.submit(&CoreCommand {
            lun: command.lun,
            cdb: command.cdb.bytes(),
            attribute: command.attribute,
            read_length,
            write_length,
            ..CoreCommand::default()
        });
        match task {
            Ok(task) => {
                self.table.begin(place, task);
                if let Some(pending) = self.table.get_mut(place) {
                    pending.attempts += 1;
                    pending.times.first_byte = None;
                }
            }
            Err(SubmitError::Full | SubmitError::Closed) => self.backlog.push_back(place),
            Err(error) => self.end(place, (Err(CommandError::Invalid(error.to_string())), 0)),
        }
    }

    /// Makes tasks of commands that waited, as far as there is room. Not while ends of tasks are still to be handled: the
    /// session may give the place of one that has ended to the next.
    fn begin_waiting(&mut self) {
        while self.is_up()
            && self.outbox.events.is_empty()
            && self.session.open_tasks() < TASKS_MAX
            && !self.session.is_over()
            && let Some(place) = self.backlog.pop_front()
        {
            let waiting = self.backlog.len();
            self.begin(place);
            if self.backlog.len() > waiting {
                // It was put back at the end; its place is at the front.
                self.backlog.rotate_right(1);
                return;
            }
        }
    }

    fn end(&mut self, place: u32, ending: Ending) {
        self.table.end(self.now, place, ending);
    }
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Engine")
            .field("target", &self.options.target)
            .field("state", &self.state)
            .field("connections", &self.links.len())
            .field("outstanding", &self.table.len())
            .finish_non_exhaustive()
    }
}

fn new_session(options: &Options, leading: &Outcome) -> Session {
    let timing = &options.timing;
    let settings = Settings {
        tasks_max: TASKS_MAX,
        nop_interval: timing.nop_interval,
        nop_timeout: timing.nop_timeout,
        logout_timeout: timing.logout,
        ..Settings::default()
    };
    Session::new(leading.session, leading.cmd_sn, settings)
}
