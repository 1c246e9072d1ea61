//! A reactor: one thread with its connections, its sessions and its way to the volumes.
//!
//! Each turn of the loop reads what has come, steps the sessions, lets the stores work, and sends all answers of a
//! connection with one vectored write. A command's way is
//! `receive` -> `requests` -> `events` -> `commands` -> `ending` -> `transmit`; that of a short one that waits for nothing,
//! `receive` -> `requests` -> `at_once` -> `transmit`.

mod accepting;
mod at_once;
mod backlog;
mod commands;
mod company;
mod connection;
mod copying;
mod cut_through;
mod ending;
mod events;
mod fenced;
mod framing;
mod gaps;
mod held;
mod heralds;
mod hoard;
mod joining;
mod landing;
mod leaving;
mod login;
mod management;
mod pace;
mod parts;
mod pending;
mod preempt;
mod probe;
mod receive;
mod requests;
mod session;
mod soliciting;
mod spoilt;
mod state;
mod storing;
mod strip;
mod text;
mod timing;
mod transmit;
mod trial;
mod visitor;
mod wait;
mod waiting;
mod way;
mod work;

use std::collections::VecDeque;
use std::io;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::panic::{self, AssertUnwindSafe};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use lunette_block::{IoCompletion, IoContext};
use lunette_iscsi::session::{Event, Outbox, TaskId};
use rustix::event::epoll;
use rustix::thread::{CpuSet, sched_setaffinity};
use slab::Slab;
use tracing::{debug, error, info, warn};

use crate::mailbox::Mailbox;
use crate::registry::SessionPlace;
use crate::saver::WaitingCommand;
use crate::seldom::Ration;
use crate::server::Shared;
use company::{Company, Unanswered};
use connection::{Connection, Disconnect, Token};
use hoard::Scarcity;
use session::{Segment, TargetSession};
use soliciting::{Paced, Short};
use wait::Vigil;

pub(crate) use heralds::Untold;
pub(crate) use joining::Moved;
pub(crate) use management::AbortScope;

/// Bytes that are read from one connection at a time; also bounds how long one connection keeps the others waiting.
const SCRATCH_BYTES: usize = 256 << 10;

/// Events that are taken from the kernel at once.
const EVENTS_MAX: usize = 256;

/// Timers are looked at this often; all of them are counted in seconds.
const TICK: Duration = Duration::from_secs(1);

/// epoll tokens below the connections' own.
const TOKEN_MAILBOX: u64 = u64::MAX;
const TOKEN_IO: u64 = u64::MAX - 1;

/// What other threads tell a reactor.
#[derive(Debug)]
pub(crate) enum Message {
    /// A connection was accepted.
    Connection {
        /// The socket.
        socket: TcpStream,
        /// Who is at the other end.
        peer: SocketAddr,
    },
    /// A connection of another reactor begins to log in to a session of this one.
    Moved(Box<Moved>),
    /// End a session: another login has its identity. Answered with [`Message::SessionGone`].
    EndSession {
        /// Which.
        place: SessionPlace,
        /// The login that waits.
        waiter: Waiter,
    },
    /// The session that a login was waiting for is gone.
    SessionGone(Token),
    /// Abort tasks for a task management function of another session. Answered with [`Message::TasksGone`].
    AbortTasks(AbortScope),
    /// One reactor has no task of the scope any more.
    TasksGone {
        /// The function, as its reactor named it.
        request: u64,
    },
    /// Nobody waits any more for the tasks that these were to abort: they need no answer.
    ForgetAborts {
        /// Whose they are.
        reactor: usize,
        /// As that reactor named them, in rising order.
        requests: Arc<[u64]>,
    },
    /// The state of a unit was stored for a command of this reactor, or could not be.
    StateStored {
        /// The command.
        waiter: WaitingCommand,
        /// False: it failed.
        is_stable: bool,
    },
    /// The work of some unit has ended.
    WorkEnded,
    /// A command of this reactor that waited for others of its unit may go on.
    Turn {
        /// As the device server was told it.
        key: u64,
    },
    /// Units have unit attentions for a session whose initiator is told of such things at once.
    UnitAttentions {
        /// The session.
        place: SessionPlace,
        /// Which, of which units.
        untold: Arc<Untold>,
    },
    /// End all sessions of a target (TARGET COLD RESET).
    EndTarget {
        /// Index of the target.
        target: usize,
    },
    /// Who may log in, or what they see, is another than before: end the sessions that this concerns.
    Reconsider,
    /// This side has another MaxRecvDataSegmentLength than before: tell the sessions.
    DeclareAnew,
    /// No new logins; end when the sessions of all reactors have ended.
    Drain,
    /// End: nothing is left to wait for, or nobody wants to wait.
    End,
}

/// A login that waits for a session on another reactor to end.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Waiter {
    pub(crate) reactor: usize,
    pub(crate) connection: Token,
}

/// See the module's documentation.
pub(crate) struct Reactor {
    shared: Arc<Shared>,
    index: usize,
    load: Arc<AtomicUsize>,
    mailbox: Arc<Mailbox<Message>>,
    epoll: OwnedFd,
    vigil: Vigil,
    company: Company,
    /// Commands that have to wait for another turn, of sessions by place.
    postponed: VecDeque<(usize, TaskId)>,
    /// Sessions whose withheld commands may go on, by place.
    relieved: Vec<usize>,
    copying: copying::Copying,
    storing: storing::Storing,
    short: Short,
    scarcity: Scarcity,
    paced: Paced,
    /// PDUs that this turn has brought so far.
    pdus: usize,
    /// Commands of the bytes being parsed that may still be ended at once.
    at_once_left: u16,
    /// When, while these bytes are parsed, the answers so far go out.
    parts: parts::Parts,
    /// A processor is left for an initiator on this machine, as was seen then.
    leaves_a_processor: (bool, Duration),
    /// How much text the bytes being parsed may still have answered, in bytes.
    text_left_bytes: usize,
    /// Of these bytes, those behind the PDU that is looked at.
    unparsed: at_once::Unparsed,
    io: IoContext,
    started: Instant,
    now: Duration,
    ticked_at: Duration,
    connections: Slab<Connection>,
    next_generation: u32,
    /// Connections that have not logged in, oldest first; may hold tokens of closed ones.
    half_open: VecDeque<Token>,
    sessions: Slab<TargetSession>,
    outbox: Outbox<Segment>,
    spare_events: Vec<Event>,
    /// The session whose PDUs or completions have left something in the outbox.
    to_run: Option<usize>,
    /// Connections with something to send.
    dirty: Vec<usize>,
    unsent: Unanswered,
    /// Connections on which more has come of the data of a long PDU in this turn.
    long_data: Vec<Token>,
    scratch: Vec<u8>,
    /// Data went to its store out of that.
    has_cut_through: bool,
    /// What came on connections before its turn.
    order: held::Order,
    finished: Vec<IoCompletion>,
    /// The stores may have finished more than the last turn has looked at.
    is_collecting: bool,
    pending_functions: Vec<pending::PendingFunction>,
    pending_aborts: pending::PendingAborts,
    pending_preemptions: Vec<preempt::PendingPreemption>,
    at_work: Vec<WaitingCommand>,
    next_request: u64,
    /// Task management functions of all sessions that are logged.
    told_functions: Ration,
    draining: bool,
    /// Drained, and counted as such.
    idle: bool,
    stopped: bool,
}

impl Reactor {
    /// Starts the thread of reactor `index`, on processor `home` if one is given.
    ///
    /// # Errors
    /// When the system refuses a thread or a descriptor.
    pub(crate) fn spawn(
        shared: Arc<Shared>,
        index: usize,
        load: Arc<AtomicUsize>,
        home: Option<usize>,
    ) -> io::Result<JoinHandle<io::Result<()>>> {
        let mailbox = Arc::clone(&shared.reactors[index]);
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let io = IoContext::new()?;
        epoll::add(&epoll, &*mailbox, epoll::EventData::new_u64(TOKEN_MAILBOX), epoll::EventFlags::IN)?;
        epoll::add(&epoll, io.as_fd(), epoll::EventData::new_u64(TOKEN_IO), epoll::EventFlags::IN)?;
        let vigil = Vigil::new(shared.config.reactors.poll);
        let reactor = Self {
            shared,
            index,
            load,
            mailbox,
            epoll,
            vigil,
            company: Company::default(),
            postponed: VecDeque::new(),
            relieved: Vec::new(),
            copying: copying::Copying::default(),
            storing: storing::Storing::default(),
            short: Short::default(),
            scarcity: Scarcity::default(),
            paced: Paced::default(),
            pdus: 0,
            at_once_left: 0,
            parts: parts::Parts::default(),
            leaves_a_processor: (false, Duration::ZERO),
            text_left_bytes: 0,
            unparsed: at_once::Unparsed::default(),
            io,
            started: Instant::now(),
            now: Duration::ZERO,
            ticked_at: Duration::ZERO,
            connections: Slab::new(),
            next_generation: 0,
            half_open: VecDeque::new(),
            sessions: Slab::new(),
            outbox: Outbox::default(),
            spare_events: Vec::new(),
            to_run: None,
            dirty: Vec::new(),
            unsent: Unanswered::default(),
            long_data: Vec::new(),
            scratch: vec![0; SCRATCH_BYTES],
            has_cut_through: false,
            order: held::Order::default(),
            finished: Vec::new(),
            is_collecting: false,
            pending_functions: Vec::new(),
            pending_aborts: pending::PendingAborts::default(),
            pending_preemptions: Vec::new(),
            at_work: Vec::new(),
            next_request: 0,
            told_functions: Ration::large(),
            draining: false,
            idle: false,
            stopped: false,
        };
        std::thread::Builder::new().name(format!("reactor-{index}")).spawn(move || {
            if let Some(core) = home {
                stay_on(core);
            }
            reactor.run_shielded()
        })
    }

    /// Runs to the end. A reactor that fails takes the others along: its sessions are gone, its peers wait for answers
    /// that it owes them, and a server that is half dead is not noticed, let alone started again.
    fn run_shielded(self) -> io::Result<()> {
        let (shared, index) = (Arc::clone(&self.shared), self.index);
        let outcome = panic::catch_unwind(AssertUnwindSafe(|| self.run()))
            .unwrap_or_else(|_| Err(io::Error::other("it panicked; this is a defect")));
        match &outcome {
            Ok(()) => debug!(reactor = index, "reactor ends"),
            Err(error) => {
                error!(%error, reactor = index, "a reactor failed; the server ends");
                shared.reactors.iter().for_each(|reactor| reactor.send(Message::End));
            }
        }
        outcome
    }

    fn run(mut self) -> io::Result<()> {
        let mut events = Vec::with_capacity(EVENTS_MAX);
        while !self.stopped {
            self.turn(&mut events)?;
        }
        Ok(())
    }

    /// One wakeup: all that has come is read, all that can be answered is answered.
    fn turn(&mut self, events: &mut Vec<epoll::Event>) -> io::Result<()> {
        let has_work =
            self.is_collecting || self.has_put_off() || !self.copying.is_empty() || !self.order.is_empty();
        // Other reactors' tasks give memory back without a word.
        let idle_limit = self.short.poll(self.now).unwrap_or(TICK);
        let idle_limit = idle_limit.min(self.paced.due_in(self.started));
        let limit = if has_work { Duration::ZERO } else { idle_limit };
        self.vigil.wait(&self.epoll, events, limit, std::mem::take(&mut self.pdus))?;
        self.company.next_turn();
        self.copying.next_turn();
        self.storing.next_turn();
        self.order.next_turn();
        self.io.next_turn();
        self.now = self.started.elapsed();
        let mut has_mail = false;
        for event in events.iter() {
            match event.data.u64() {
                TOKEN_MAILBOX => has_mail = true,
                // Completions are collected below, whoever finished them.
                TOKEN_IO => {}
                token => self.socket_event(Token::from_u64(token), event.flags),
            }
        }
        self.read_long_data();
        self.take_due();
        if has_mail {
            for message in self.mailbox.take() {
                self.message(message);
            }
        }
        self.settle_work();
        self.go_on_copying();
        self.collect_completions();
        self.ask_where_memory_was_short();
        self.ask_at_their_pace();
        self.send_answers();
        if self.has_put_off() {
            self.relieve();
            self.begin_postponed();
            self.go_on_storing();
            self.collect_completions();
            self.send_answers();
        }
        if self.now - self.ticked_at >= TICK {
            self.ticked_at = self.now;
            self.tick();
            self.send_answers();
        }
        self.settle_pending();
        if self.draining && !self.idle && self.sessions.is_empty() && self.connections.is_empty() {
            self.idle = true;
            self.end_after_the_last();
        }
        Ok(())
    }

    /// Whether long transfers wait for those who have had less, or commands may go on for which answers have been taken.
    fn has_put_off(&self) -> bool {
        !self.postponed.is_empty() || !self.storing.is_empty() || !self.relieved.is_empty()
    }

    /// Reactors end together: while one has a session, its task management functions need the others' answers.
    fn end_after_the_last(&self) {
        let idle = self.shared.reactors_idle.fetch_add(1, Ordering::AcqRel) + 1;
        if idle == self.shared.reactors.len() {
            self.shared.reactors.iter().for_each(|reactor| reactor.send(Message::End));
        }
    }

    fn socket_event(&mut self, token: Token, flags: epoll::EventFlags) {
        // A token of an earlier connection in the same place: its event comes too late.
        let Some(connection) = self.connection(token) else { return };
        let has_landing = connection.receiver.has_landing();
        let queued_bytes = connection.transmitter.queued_bytes();
        if flags.contains(epoll::EventFlags::OUT) {
            self.dirty.push(token.index);
        }
        if flags.intersects(epoll::EventFlags::IN | epoll::EventFlags::HUP | epoll::EventFlags::ERR) {
            // Who has little to say does not wait for who has much.
            if has_landing {
                self.long_data.push(token);
            } else {
                self.read(token.index);
            }
            self.take_in_order();
        }
        let queued_after = self.connection(token).map_or(0, |after| after.transmitter.queued_bytes());
        if self.unsent.note(queued_after.saturating_sub(queued_bytes)) {
            self.send_answers();
        }
    }

    /// Reads from the connections on which the data of a long PDU comes.
    fn read_long_data(&mut self) {
        let mut tokens = std::mem::take(&mut self.long_data);
        for token in tokens.drain(..) {
            if self.connection(token).is_some() {
                self.read(token.index);
            }
        }
        self.long_data = tokens;
    }

    fn message(&mut self, message: Message) {
        match message {
            Message::Connection { socket, peer } => drop(self.adopt(socket, peer)),
            Message::Moved(moved) => self.adopt_moved(*moved),
            Message::EndSession { place, waiter } => self.end_session(place, waiter),
            Message::SessionGone(token) => self.retry_login(token),
            Message::AbortTasks(scope) => self.abort_for(scope),
            Message::Turn { key } => self.go_on(key),
            Message::TasksGone { request } => self.tasks_gone(request),
            Message::ForgetAborts { reactor, requests } => self.pending_aborts.forget(reactor, &requests),
            Message::StateStored { waiter, is_stable } => self.state_stored(waiter, is_stable),
            // Who waits for it is answered at the end of the turn.
            Message::WorkEnded => {}
            Message::EndTarget { target } => self.end_target(target),
            Message::Reconsider => self.reconsider(),
            Message::DeclareAnew => self.declare_anew(),
            Message::UnitAttentions { place, untold } => self.tell_attentions(place, &untold),
            Message::Drain => self.drain(),
            Message::End => self.stopped = true,
        }
    }

    /// Sends what is left of the answers that the turn has brought, with one vectored write a connection.
    fn send_answers(&mut self) {
        self.unsent = Unanswered::default();
        let mut dirty = std::mem::take(&mut self.dirty);
        // Who has little to get does not wait for who has much.
        dirty.sort_by_key(|index| {
            self.connections.get(*index).map_or(0, |connection| connection.transmitter.queued_bytes())
        });
        for index in dirty.drain(..) {
            let Some(connection) = self.connections.get_mut(index) else { continue };
            match connection.flush(&self.epoll, self.company.send_limit()) {
                Ok(()) => {
                    if connection.withholds {
                        self.answers_taken(index);
                    }
                }
                Err(reason) => self.disconnect(index, &reason),
            }
        }
        // Closing a connection may have made others dirty; they keep their place.
        dirty.append(&mut self.dirty);
        self.dirty = dirty;
    }

    fn tick(&mut self) {
        let sessions: Vec<usize> = self.sessions.iter().map(|(index, _)| index).collect();
        let is_scarce = self.scarcity.note(self.now, self.shared.pool.starvations());
        for index in sessions {
            if let Some(session) = self.sessions.get_mut(index) {
                let (mut keeps_answers, mut moved_bytes) = (false, session.unasked.came_bytes);
                let (mut received_bytes, mut landing_bytes) = (0, 0);
                for link in &session.links {
                    if let Some(connection) = self.connections.get_mut(link.token.index)
                        && connection.token == link.token
                    {
                        keeps_answers |= connection.transmitter.is_blocked();
                        moved_bytes += connection.transmitter.drained_bytes();
                        received_bytes += connection.received_bytes;
                        landing_bytes += connection.receiver.kept_bytes();
                        session.core.saw_progress(connection.active_at(self.now), link.cid);
                    }
                }
                // Their connection may have gone.
                if !session.withheld.is_empty() {
                    self.relieved.push(index);
                }
                session.core.tick(self.now, &mut self.outbox);
                session.bound_waiting(self.now, &mut self.outbox);
                session.bound_kept_reads(&self.shared.kept_reads);
                if is_scarce && (keeps_answers || session.core.owes_data()) {
                    session.bound_hoard(self.now, moved_bytes, &mut self.outbox);
                }
                if is_scarce {
                    session.bound_unbegun(self.now, landing_bytes, received_bytes, &mut self.outbox);
                }
                self.bound_unasked(index);
                self.run_session(index);
                self.bound_retained(index);
            }
        }
        let timeout = Duration::from_secs(self.shared.config.limits.login_timeout_s.into());
        let now = self.now;
        let late: Vec<usize> = self
            .connections
            .iter()
            .filter(|(_, connection)| connection.is_login_overdue(now, timeout))
            .map(|(index, _)| index)
            .collect();
        for index in late {
            self.disconnect(index, &Disconnect::LoginTimeout(timeout));
        }
        self.close_stalled();
    }

    fn drain(&mut self) {
        if std::mem::replace(&mut self.draining, true) {
            return;
        }
        let within = Duration::from_secs(self.shared.config.limits.drain_timeout_s.into());
        let before_login: Vec<usize> = self
            .connections
            .iter()
            .filter(|(_, connection)| connection.stage.is_before_login())
            .map(|(index, _)| index)
            .collect();
        for index in before_login {
            self.disconnect(index, &Disconnect::Draining);
        }
        let sessions: Vec<usize> = self.sessions.iter().map(|(index, _)| index).collect();
        if !sessions.is_empty() {
            info!(reactor = self.index, sessions = sessions.len(), "asking initiators to log out");
        }
        for index in sessions {
            if let Some(session) = self.sessions.get_mut(index) {
                session.core.request_logout(self.now, within, &mut self.outbox);
                self.run_session(index);
            }
        }
    }
}

/// Keeps the calling thread on one processor. Where that fails it only costs speed.
fn stay_on(core: usize) {
    let mut cores = CpuSet::new();
    cores.set(core);
    if let Err(error) = sched_setaffinity(None, &cores) {
        warn!(core, %error, "a reactor does not stay on its processor");
    }
}
