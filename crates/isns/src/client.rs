//! The client's state machine: connect, register, show from time to time that it is there, answer what the server asks, take
//! itself out.
//!
//! Time is the caller's, counted from any moment. A server that cannot be reached, or does not answer, is tried again
//! after longer and longer pauses; one that has forgotten us gets a new registration.
//!
//! What a server tells of our own nodes is no proof: it tells as much of a registration that replaces an older one, and a
//! notification may be forged. So the server is asked, and told anew only if it does not know the node. Servers differ in what
//! they let a node see, even of itself: that a node is missing counts only where it was seen since its registration.

#[cfg(test)]
mod tests;

use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

use crate::attributes::tag;
use crate::message::{Request, Response, ServerRequest, status};
use crate::notification::{Change, Event, Notice};
use crate::registration::{Registration, SIGNS_OF_LIFE, Service};

/// The first pause after a failure, and the longest: a server that restarts is found again soon, one that is gone costs nothing.
/// So long, too, are the pauses between questions whether the server still knows us, however many notifications come.
const RETRY_FIRST: Duration = Duration::from_secs(1);
const RETRY_LONGEST: Duration = Duration::from_secs(60);
/// How long an answer may take; and when nobody wants to wait any more.
const PATIENCE: Duration = Duration::from_secs(10);
const PATIENCE_LEAVING: Duration = Duration::from_secs(2);
/// Bounds to what a server may make of the registration period.
const PERIOD_MIN_S: u32 = 3;
const PERIOD_MAX_S: u32 = 86_400;
/// The most nodes of others that one notification brings to people's eyes.
const OTHERS_MAX: usize = 16;

/// What is to be done next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Connect, then say [`Client::connected`] or [`Client::failed`].
    Connect,
    /// Send this.
    Send(Vec<u8>),
    /// Give the connection up, if there is one.
    Disconnect,
    /// Wait for a message, or until this moment.
    Wait(Duration),
    /// All is over.
    End,
}

/// What a message has brought, for people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum News {
    /// The server knows us now.
    Registered {
        /// It is to inquire whether we are there.
        with_inquiries: bool,
    },
    /// The server has forgotten us, and is told again.
    Forgotten,
    /// As [`News::Forgotten`]; none of its inquiries had come, so that it is asked for none any more.
    OutOfReach,
    /// The server refused to inquire or to notify with this status (RFC 4171, 5.4), and is asked for less.
    Reduced(u32),
    /// The server refused the registration with this status (RFC 4171, 5.4).
    Refused(u32),
    /// The server does not know us any more, as we wanted.
    Deregistered,
    /// The server asked whether we are there, and was told so.
    Inquired,
    /// Something has become of another node that one of ours can see.
    Changed {
        /// Its iSCSI name, without control characters.
        node: String,
        /// What.
        event: Event,
    },
    /// Something has become of a node of ours, which the server is asked about.
    Doubted,
    /// So many more changes came in the same message.
    More(usize),
    /// The server asked or told what was refused with this status (RFC 4171, 5.4).
    Unexpected(u32),
}

#[derive(Debug)]
enum State {
    Down {
        retry_at: Duration,
    },
    /// Waits for the caller to connect.
    Connecting,
    Up(Session),
    /// The connection is to be given up.
    Falling,
    Ended,
}

/// Why a request is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Purpose {
    Register,
    RegisterNotifications,
    KeepAlive,
    /// The node's number.
    Check(usize),
    Deregister,
}

#[derive(Debug)]
struct Awaited {
    purpose: Purpose,
    function: u16,
    transaction: u16,
    until: Duration,
}

#[derive(Debug)]
struct Session {
    service: Service,
    queue: VecDeque<(Purpose, Request)>,
    awaited: Option<Awaited>,
    /// The registration period that the server grants.
    period_s: u32,
    keep_alive_at: Duration,
    /// When the first inquiry should have come, unless one has.
    inquiry_due: Option<Duration>,
    /// Numbers of nodes that the server has shown to themselves.
    shown: BTreeSet<usize>,
    /// Numbers of nodes that the server may have forgotten, and when it may be asked again.
    doubts: BTreeSet<usize>,
    check_at: Duration,
    /// Registrations because of doubts, one after the other.
    repeats: u32,
}

impl Session {
    /// Has everything registered, as if nothing had been.
    fn register(&mut self, registration: &Registration, now: Duration) {
        let requests = registration.register(self.service);
        self.queue = requests.into_iter().map(|request| (Purpose::Register, request)).collect();
        if self.service != Service::Plain {
            let requests = registration.register_notifications();
            self.queue.extend(requests.map(|request| (Purpose::RegisterNotifications, request)));
        }
        let seen = if self.service == Service::Plain { 1 } else { usize::MAX };
        self.check(registration, 0..seen.min(registration.nodes.len()));
        let interval = Duration::from_secs(registration.inquiry_interval_s().into());
        self.inquiry_due = (self.service == Service::Inquiries).then_some(now + interval);
        self.doubts.clear();
        self.shown.clear();
    }

    fn check(&mut self, registration: &Registration, nodes: impl IntoIterator<Item = usize>) {
        self.queue.extend(nodes.into_iter().map(|node| (Purpose::Check(node), registration.check(node))));
    }

    /// What is asked when there is nothing else to ask.
    fn idle(&mut self, registration: &Registration, now: Duration) {
        if !self.doubts.is_empty() && now >= self.check_at {
            let nodes = std::mem::take(&mut self.doubts);
            self.check(registration, nodes);
            self.check_at = now + RETRY_FIRST;
        }
        if self.queue.is_empty() && now >= self.keep_alive_at {
            self.queue.push_back((Purpose::KeepAlive, registration.check(0)));
        }
    }

    fn wake_at(&self) -> Duration {
        if self.doubts.is_empty() { self.keep_alive_at } else { self.keep_alive_at.min(self.check_at) }
    }

    /// Tells a server that has forgotten us; after longer and longer pauses if that does not last.
    fn forgotten(&mut self, registration: &Registration, now: Duration) -> News {
        let is_out_of_reach = self.inquiry_due.is_some_and(|due| now >= due);
        if is_out_of_reach {
            self.service = Service::Notifications;
        }
        self.register(registration, now);
        self.check_at = now + doubled(self.repeats);
        self.repeats += 1;
        if is_out_of_reach { News::OutOfReach } else { News::Forgotten }
    }
}

/// The client of one server.
#[derive(Debug)]
pub struct Client {
    state: State,
    registration: Registration,
    transaction: u16,
    failures: u32,
    is_leaving: bool,
}

impl Default for Client {
    fn default() -> Self {
        let state = State::Down { retry_at: Duration::ZERO };
        let registration = Registration::default();
        Self { state, registration, transaction: 0, failures: 0, is_leaving: false }
    }
}

impl Client {
    /// What is to be done now.
    pub fn next(&mut self, now: Duration) -> Step {
        match &mut self.state {
            State::Ended => Step::End,
            State::Down { .. } | State::Connecting if self.is_leaving => {
                self.state = State::Ended;
                Step::End
            }
            State::Down { retry_at } if now < *retry_at => Step::Wait(*retry_at),
            State::Down { .. } | State::Connecting => {
                self.state = State::Connecting;
                Step::Connect
            }
            State::Falling => {
                self.fall(now);
                Step::Disconnect
            }
            State::Up(session) => {
                if let Some(Awaited { until, .. }) = session.awaited {
                    if now < until {
                        return Step::Wait(until);
                    }
                    self.fall(now);
                    return Step::Disconnect;
                }
                if session.queue.is_empty() {
                    session.idle(&self.registration, now);
                }
                let Some((purpose, request)) = session.queue.pop_front() else {
                    return Step::Wait(session.wake_at());
                };
                self.transaction = self.transaction.wrapping_add(1);
                let until = now + if self.is_leaving { PATIENCE_LEAVING } else { PATIENCE };
                let (function, transaction) = (request.function, self.transaction);
                session.awaited = Some(Awaited { purpose, function, transaction, until });
                Step::Send(request.encode(self.transaction))
            }
        }
    }

    /// There is a connection, and this is to be registered.
    pub fn connected(&mut self, registration: Registration, now: Duration) {
        if self.is_leaving {
            self.state = State::Ended;
            return;
        }
        self.registration = registration;
        let mut session = Session {
            service: self.registration.service(),
            queue: VecDeque::new(),
            awaited: None,
            period_s: self.registration.period_s,
            keep_alive_at: now + pause(self.registration.period_s),
            inquiry_due: None,
            shown: BTreeSet::new(),
            doubts: BTreeSet::new(),
            check_at: now,
            repeats: 0,
        };
        session.register(&self.registration, now);
        self.state = State::Up(session);
    }

    /// There is no connection, or none any more.
    pub fn failed(&mut self, now: Duration) {
        self.fall(now);
    }

    fn fall(&mut self, now: Duration) {
        let retry_at = now + doubled(self.failures);
        self.failures += 1;
        self.state = match self.state {
            State::Ended => State::Ended,
            _ if self.is_leaving => State::Ended,
            _ => State::Down { retry_at },
        };
    }

    /// Takes an answer.
    pub fn received(&mut self, response: &Response, now: Duration) -> Option<News> {
        let State::Up(session) = &mut self.state else { return None };
        let is_awaited = |awaited: &mut Awaited| {
            (response.transaction, response.function) == (awaited.transaction, awaited.function)
        };
        let purpose = session.awaited.take_if(is_awaited)?.purpose;
        let is_good = response.status == status::SUCCESSFUL;
        match purpose {
            Purpose::Deregister => {
                self.state = State::Ended;
                Some(News::Deregistered)
            }
            Purpose::Register if is_good => {
                let told = response.number(tag::REGISTRATION_PERIOD);
                session.period_s = session.period_s.min(told.unwrap_or(session.period_s));
                session.keep_alive_at = now + pause(session.period_s);
                self.failures = 0;
                let is_last = session.queue.front().is_none_or(|(next, _)| *next != Purpose::Register);
                let with_inquiries = session.service == Service::Inquiries;
                is_last.then_some(News::Registered { with_inquiries })
            }
            Purpose::KeepAlive => {
                session.keep_alive_at = now + pause(session.period_s);
                let is_there = is_good && (response.tells(tag::ISCSI_NAME) || !session.shown.contains(&0));
                if is_there {
                    session.repeats = 0;
                    return None;
                }
                Some(session.forgotten(&self.registration, now))
            }
            Purpose::Check(node) if is_good && response.tells(tag::ISCSI_NAME) => {
                session.shown.insert(node);
                None
            }
            Purpose::Check(node) if !session.shown.contains(&node) => None,
            Purpose::Check(_) => Some(session.forgotten(&self.registration, now)),
            Purpose::Register if session.service != Service::Plain => {
                session.service = match (session.service, response.status) {
                    (Service::Inquiries, status::INQUIRY_NOT_AVAILABLE) => Service::Notifications,
                    _ => Service::Plain,
                };
                session.register(&self.registration, now);
                Some(News::Reduced(response.status))
            }
            Purpose::Register => {
                self.state = State::Falling;
                Some(News::Refused(response.status))
            }
            Purpose::RegisterNotifications if is_good => None,
            Purpose::RegisterNotifications => {
                session.queue.retain(|(purpose, _)| *purpose != Purpose::RegisterNotifications);
                Some(News::Reduced(response.status))
            }
        }
    }

    /// Takes what the server asks or tells, by whichever way it came. The answer goes back the same way.
    pub fn asked(&mut self, request: &ServerRequest) -> (Option<Vec<u8>>, Vec<News>) {
        let status = match request.notice() {
            Ok(Notice::Heartbeat) => return (None, Vec::new()),
            Ok(Notice::Inquiry { entity }) if self.registration.entity.eq_ignore_ascii_case(&entity) => {
                if let State::Up(session) = &mut self.state {
                    session.inquiry_due = None;
                }
                return (Some(request.inquiry_answer()), vec![News::Inquired]);
            }
            Ok(Notice::Notification { destination, changes }) if self.own(&destination).is_some() => {
                return (Some(request.notification_answer(&destination)), self.notified(changes));
            }
            Ok(_) => status::NO_SUCH_ENTRY,
            Err(status) => status,
        };
        (Some(request.answer(status, &[])), vec![News::Unexpected(status)])
    }

    /// The number of our node of this name.
    fn own(&self, name: &str) -> Option<usize> {
        self.registration.nodes.iter().position(|node| node.name.eq_ignore_ascii_case(name))
    }

    fn notified(&mut self, changes: Vec<Change>) -> Vec<News> {
        let mut news = Vec::new();
        let mut left_out = 0;
        let mut doubts = BTreeSet::new();
        for Change { event, node } in changes {
            match self.own(&node) {
                Some(node) => {
                    doubts.insert(node);
                }
                None if news.len() < OTHERS_MAX => news.push(News::Changed { node, event }),
                None => left_out += 1,
            }
        }
        if left_out > 0 {
            news.push(News::More(left_out));
        }
        if !doubts.is_empty() {
            news.push(News::Doubted);
        }
        if let State::Up(session) = &mut self.state {
            session.doubts.append(&mut doubts);
        }
        news
    }

    /// Takes the registration back and ends; at once where there is none.
    pub fn leave(&mut self) {
        if std::mem::replace(&mut self.is_leaving, true) {
            return;
        }
        if let State::Up(session) = &mut self.state {
            session.queue = VecDeque::from([(Purpose::Deregister, self.registration.deregister())]);
            // Whatever was asked before, its answer does not count any more.
            session.awaited = None;
        }
    }
}

/// How long to stay silent: of three signs of life within a period two may get lost.
fn pause(period_s: u32) -> Duration {
    Duration::from_secs(u64::from(period_s.clamp(PERIOD_MIN_S, PERIOD_MAX_S))) / SIGNS_OF_LIFE
}

/// The pause after so many failures.
fn doubled(failures: u32) -> Duration {
    RETRY_FIRST.saturating_mul(1 << failures.min(16)).min(RETRY_LONGEST)
}
