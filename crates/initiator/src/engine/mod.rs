//! A session that one thread owns and drives: commands in, completions out.
//!
//! The engine is sockets, buffers and a clock around `lunette_iscsi::initiator::session`. Per [`Engine::poll`]: what can be
//! sent is sent with one vectored write a connection, what has come is read until nothing is left, all of it is decoded, and
//! what that allows is sent at once.

mod event;
mod ghost;
pub(crate) mod guard;
mod held;
mod link;
mod overdue;
mod receive;
mod recovery;
pub(crate) mod replay;
mod submit;
mod table;
mod transmit;
mod turn;
mod wake;

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use lunette_iscsi::initiator::login::{Outcome, Purpose};
use lunette_iscsi::initiator::session::{Function, Logout, Outbox, RequestHandle, Session, Settings};
use lunette_iscsi::parameters::SessionParameters;
use lunette_wire::{Isid, LunField, Tsih};
use rustix::event::epoll;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};

pub use event::{ConnectionInfo, EngineEvent, RequestId};
pub use overdue::Remedy;
pub use wake::Waker;

use crate::connect::{Connector, Goal, Learnt, LoginRecord, TargetEnd, no_random};
use crate::identity::random_isid;
use crate::{CommandError, Completion, Error, Options, Phase};
use guard::{Check, Guard};
use held::Held;
use link::Link;
use overdue::Overdue;
use recovery::{Down, Job, Rejoin};
use table::Table;

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

/// A session that its caller's thread drives: commands in, completions out. The fastest face, for many commands at once.
///
/// [`Self::submit`] only takes a command, [`Self::poll`] does all the work: it sends, waits for something to happen, receives, and
/// hands out what is over. Nothing happens between two calls but for logins in the background, so it is to be called as long as
/// the session lives: it also answers the target's pings and sends its own. Commands end in any order;
/// [`CommandId`](crate::CommandId) tells them apart. An engine that is dropped closes its connections without a word;
/// [`Self::close`] takes leave.
///
/// ```no_run
/// use lunette_initiator::{Command, Engine, TargetUrl};
///
/// let url: TargetUrl = "iscsi://192.0.2.10/iqn.2026-11.io.lunette:disk0/0".parse()?;
/// let mut engine = Engine::connect(url.options())?;
/// for lba in 0..32 {
///     // READ(10) of one block.
///     let read = Command::new(url.lun, [0x28, 0, 0, 0, 0, lba, 0, 0, 1, 0]).reading(vec![0; 512]);
///     engine.submit(read);
/// }
/// let mut done = Vec::new();
/// while engine.outstanding() > 0 {
///     engine.poll(None, &mut done)?;
///     for completion in done.drain(..) {
///         let (id, times) = (completion.id, completion.times);
///         match &completion.result {
///             Ok(status) => println!("{id:?}: {status}, {} bytes, sent at {:?}", completion.received, times.sent),
///             Err(error) => println!("{id:?}: {error}"),
///         }
///     }
///     while let Some(event) = engine.event() {
///         println!("{event:?}");
///     }
/// }
/// engine.close()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # In a loop of the caller's
///
/// Whoever waits for other things, too, has a poller of its own watch the engine's descriptor ([`AsFd`]) and waits for no longer than
/// [`Self::idle_for`]. When the descriptor is readable, when that time is over, and after each `submit`, it calls `poll` with a timeout of
/// zero. The example `event_loop` does so.
///
/// # When the session is lost
///
/// The engine logs in again with the same session identifier, so that the target ends what is left of the old session
/// first (RFC 7143, 6.3.5): at once or after the target's Time2Wait, then after 0.5, 1, 2, 4, 8 s and every 10 s, for
/// [`crate::Timing::recovery`]. A refusal does not end that before, unless it is one of the protocol's version: a target that was
/// restarted may listen before it is configured. Commands are then carried out again only where that cannot do harm:
///
/// | command | had not left | may have been carried out |
/// |---|---|---|
/// | reads, inquiries ([`crate::Replay::WhereSafe`]) | again | again |
/// | plain writes | again | [`CommandError::Unknown`] |
/// | SYNCHRONIZE CACHE | [`CommandError::NotSent`] | [`CommandError::Unknown`] |
/// | all others | [`CommandError::NotSent`] | [`CommandError::Unknown`] |
/// | all but SYNCHRONIZE CACHE, [`crate::Replay::Always`] | again | again |
///
/// What may have been carried out may still be, as long as the old session lives, and only a new one in its portal group ends it. Where
/// something was under way that may change anything, there is no new one in another group; in each try the address where the old one was
/// comes first, and then the other portals.
///
/// At ErrorRecoveryLevel 2 a lost connection is replaced and its tasks go on in it (RFC 7143, 7.1.4.3), as long as the target
/// keeps them; only a session that cannot be saved in this way is lost.
///
/// The order in which they were submitted is kept. A unit attention about the loss of the session that meets a replayed
/// command is taken by the engine and told as [`EngineEvent::Attention`]. Nothing is sent to a unit that has become another
/// one since it was guarded ([`Engine::guard`]).
///
/// # When a command is not answered
///
/// A target that is there, and answers pings, may still never answer a command. After [`crate::Timing::command`] (or
/// [`Command::time_limit`](crate::Command::time_limit)) without data having come or gone that its answer may be behind, it is
/// ended: by ABORT TASK; where that is refused or not answered within [`crate::Timing::abort`], by LOGICAL UNIT RESET; where that
/// fails too, within [`crate::Timing::reset`], the session is given up for a new one. [`EngineEvent::Overdue`] tells what is done
/// and [`EngineEvent::Ended`] what has helped. The command goes on by the table above, once; then it ends as
/// [`CommandError::Overdue`].
///
/// # When a unit is reset
///
/// A volatile cache may have lost what was not flushed. Whoever hears of the reset, the engine or a command's caller: if
/// something was written since the last good flush of the unit, its next SYNCHRONIZE CACHE fails with
/// [`CommandError::ResetSinceFlush`], once; of those under way, each. Over several connections the answer to a flush is held until what
/// was submitted for the unit before it is answered, too, which may tell of a reset first. What is answered from then on counts as
/// answered in another session ([`Completion::session`]).
pub struct Engine {
    options: Arc<Options>,
    /// What its logins have shown.
    learnt: Learnt,
    isid: Isid,
    start: Instant,
    /// The time of this turn. All that had come by then is read before anything counts as late.
    now: Duration,
    /// When what was read last had been read, data and all: what ends by it was complete then.
    read_at: Duration,
    epoll: OwnedFd,
    waker: Waker,
    session: Session,
    state: State,
    /// The outcome of the leading login.
    leading: Box<Outcome>,
    /// Where that led to, and which of the portals of the options it began at.
    target_end: TargetEnd,
    way: usize,
    /// Where a lost session may still write; nothing is written before it is ended.
    ghost: Option<TargetEnd>,
    /// How many sessions were lost: what a login for one of them has come to is of no use to the next.
    lost_sessions: u64,
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
    rejoin: Option<Rejoin>,
    /// What the system said about a connection that broke.
    detail: Option<String>,
    /// Requests that abort commands, which end by themselves.
    aborts: Vec<RequestHandle>,
    /// Functions that a caller has asked for, of those that end commands of others, too.
    functions: Vec<RequestHandle>,
    /// One of these, or of the engine's own, has no answer: it may be carried out when the session is lost.
    has_late_function: bool,
    /// Commands that are not answered in time.
    overdue: Overdue,
    /// Units that were reset after something was written to them that was not flushed since.
    resets: Vec<LunField>,
    /// Units that were written to since their last good flush.
    dirty: Vec<LunField>,
    /// Flushes that are answered before others.
    held: Vec<Held>,
    /// Units that must not become others.
    guards: Vec<Guard>,
    /// The look at them in a new session; commands wait for its end.
    check: Option<Check>,
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
        Self::connect_knowing(options, Learnt::default())
    }

    /// The same with what logins of a session before this one have shown.
    ///
    /// # Errors
    /// As above.
    pub(crate) fn connect_knowing(options: Options, learnt: Learnt) -> Result<Self, Error> {
        let isid = options.isid.map_or_else(random_isid, Ok).map_err(no_random)?;
        let options = Arc::new(options);
        let mut record = LoginRecord::default();
        let goal = Goal::leading(Purpose::Normal(options.target.clone()), isid);
        let connected = Connector::new(&options, &learnt, &mut record).log_in(&goal, 0)?;
        let system = |what| move |error: rustix::io::Errno| Error::System { what, source: error.into() };
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(system("an epoll descriptor"))?;
        let waker = Waker::new().map_err(system("an event descriptor"))?;
        let data = epoll::EventData::new_u64(TOKEN_WAKE);
        epoll::add(&epoll, &waker, data, epoll::EventFlags::IN).map_err(system("an epoll registration"))?;
        let leading = Box::new(connected.outcome.clone());
        let mut engine = Self {
            session: new_session(&options, &leading),
            options,
            learnt,
            isid,
            start: Instant::now(),
            now: Duration::ZERO,
            read_at: Duration::ZERO,
            epoll,
            waker,
            state: State::Up,
            leading,
            target_end: connected.target_end(),
            way: connected.way,
            ghost: None,
            lost_sessions: 0,
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
            functions: Vec::new(),
            has_late_function: false,
            overdue: Overdue::default(),
            resets: Vec::new(),
            dirty: Vec::new(),
            held: Vec::new(),
            guards: Vec::new(),
            check: None,
            is_closing: false,
            is_moving: false,
        };
        engine.add_link(connected)?;
        while let Some(goal) = engine.next_join() {
            let (options, learnt, first) =
                (Arc::clone(&engine.options), engine.learnt.clone(), engine.next_way());
            let joined = Connector::new(&options, &learnt, &mut engine.record).log_in(&goal, first);
            if !engine.joined(joined) {
                break;
            }
        }
        Ok(engine)
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

    /// After how long [`Self::poll`] is to be called even if the engine's descriptor does not get readable; none: never. Zero means
    /// now. To be asked anew before each wait.
    #[must_use]
    pub fn idle_for(&self) -> Option<Duration> {
        self.deadline().map(|deadline| deadline.saturating_sub(self.start.elapsed()))
    }

    /// The target's portal group tag, where it has told one.
    pub(crate) fn portal_group_tag(&self) -> Option<u16> {
        self.leading.portal_group_tag
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

    /// How many commands more the target lets in now (RFC 7143, 4.2.2.1): where none is under way, its command window.
    #[must_use]
    pub const fn command_window(&self) -> u32 {
        self.session.window()
    }

    /// The names of the session (RFC 7143, 11.12.5, 11.12.6); the target's changes when the session is lost and had again.
    #[must_use]
    pub const fn session_identity(&self) -> (Isid, Tsih) {
        (self.isid, self.leading.tsih)
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

    /// Asks for a task management function; [`EngineEvent::Managed`] has the answer.
    ///
    /// # Errors
    /// What the session says against it.
    pub fn manage(&mut self, function: Function) -> Result<RequestId, CommandError> {
        let asked = self.session.manage(self.now, function, &mut self.outbox);
        let is_for_all = matches!(
            function,
            Function::ClearTaskSet(_)
                | Function::LogicalUnitReset(_)
                | Function::TargetWarmReset
                | Function::TargetColdReset
        );
        self.functions.extend(asked.ok().filter(|_| is_for_all));
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

    /// Ends the session without a word, and at once: its connections are reset, so that what the system still has of them is not sent.
    /// An engine that is dropped leaves that to the system, which goes on sending for as long as it takes.
    pub fn abandon(mut self) {
        self.silence_all_links();
        self.close_all_links();
    }
}

/// For a poller of the caller's: readable when [`Engine::poll`] has something to do, [`Waker::wake`] included. Never to be read.
impl AsFd for Engine {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
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
        // The engine has its own limits for the functions that it asks for.
        function_timeout: Settings::default().function_timeout.max(timing.abort.saturating_add(timing.reset)),
        time2wait_max: timing.recovery / 2,
        ..Settings::default()
    };
    Session::new(leading.session, leading.cmd_sn, settings)
}
