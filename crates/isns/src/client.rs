//! The client's state machine: connect, register, show from time to time that it is there, take itself out.
//!
//! Time is the caller's, counted from any moment. A server that cannot be reached, or does not answer, is tried again
//! after longer and longer pauses; one that has forgotten us gets a new registration.

use std::collections::VecDeque;
use std::time::Duration;

use crate::message::{Function, Request, Response, tag};
use crate::registration::Registration;

/// The first pause after a failure, and the longest: a server that restarts is found again soon, one that is gone costs nothing.
const RETRY_FIRST: Duration = Duration::from_secs(1);
const RETRY_LONGEST: Duration = Duration::from_secs(60);
/// How long an answer may take; and when nobody wants to wait any more.
const PATIENCE: Duration = Duration::from_secs(10);
const PATIENCE_LEAVING: Duration = Duration::from_secs(2);
/// Bounds to what a server may make of the registration period.
const PERIOD_MIN_S: u32 = 3;
const PERIOD_MAX_S: u32 = 86_400;

/// What is to be done next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Connect, then say [`Client::connected`] or [`Client::failed`].
    Connect,
    /// Send this.
    Send(Vec<u8>),
    /// Give the connection up, if there is one.
    Disconnect,
    /// Wait for an answer, or until this moment.
    Wait(Duration),
    /// All is over.
    End,
}

/// What an answer has brought, for people.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum News {
    /// Nothing to tell.
    None,
    /// The server knows us now.
    Registered,
    /// The server has forgotten us, and is told again.
    Forgotten,
    /// The server refused the registration with this status (RFC 4171, 5.4).
    Refused(u32),
    /// The server does not know us any more, as we wanted.
    Deregistered,
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

#[derive(Debug)]
struct Session {
    registration: Registration,
    queue: VecDeque<Request>,
    /// The function and transaction that an answer is awaited for, and until when.
    awaited: Option<(Function, u16, Duration)>,
    keep_alive_at: Duration,
}

/// The client of one server.
#[derive(Debug)]
pub struct Client {
    state: State,
    transaction: u16,
    failures: u32,
    is_leaving: bool,
}

impl Default for Client {
    fn default() -> Self {
        let state = State::Down { retry_at: Duration::ZERO };
        Self { state, transaction: 0, failures: 0, is_leaving: false }
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
                if let Some((_, _, until)) = session.awaited {
                    if now < until {
                        return Step::Wait(until);
                    }
                    self.fall(now);
                    return Step::Disconnect;
                }
                if session.queue.is_empty() && now >= session.keep_alive_at {
                    session.queue.push_back(session.registration.keep_alive());
                }
                let Some(request) = session.queue.pop_front() else {
                    return Step::Wait(session.keep_alive_at);
                };
                self.transaction = self.transaction.wrapping_add(1);
                let patience = if self.is_leaving { PATIENCE_LEAVING } else { PATIENCE };
                session.awaited = Some((request.function, self.transaction, now + patience));
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
        let queue = registration.register().into();
        let keep_alive_at = now + pause(registration.period_s);
        self.state = State::Up(Session { registration, queue, awaited: None, keep_alive_at });
    }

    /// There is no connection, or none any more.
    pub fn failed(&mut self, now: Duration) {
        self.fall(now);
    }

    fn fall(&mut self, now: Duration) {
        let longer = RETRY_FIRST.saturating_mul(1 << self.failures.min(16));
        self.failures += 1;
        self.state = match self.state {
            State::Ended => State::Ended,
            _ if self.is_leaving => State::Ended,
            _ => State::Down { retry_at: now + longer.min(RETRY_LONGEST) },
        };
    }

    /// Takes an answer.
    pub fn received(&mut self, response: &Response, now: Duration) -> News {
        let State::Up(session) = &mut self.state else { return News::None };
        let awaited = session.awaited.filter(|&(function, transaction, _)| {
            response.transaction == transaction && response.function == function as u16
        });
        let Some((function, _, _)) = awaited else { return News::None };
        session.awaited = None;
        match (function, response.status) {
            (Function::Deregister, _) => {
                self.state = State::Ended;
                News::Deregistered
            }
            (_, 0) => {
                let told = response.number(tag::REGISTRATION_PERIOD);
                let period_s = told.unwrap_or(session.registration.period_s);
                session.keep_alive_at = now + pause(period_s.min(session.registration.period_s));
                self.failures = 0;
                let is_news = function == Function::Register && session.queue.is_empty();
                if is_news { News::Registered } else { News::None }
            }
            (Function::Query, _) => {
                session.queue = session.registration.register().into();
                News::Forgotten
            }
            (Function::Register, status) => {
                self.state = State::Falling;
                News::Refused(status)
            }
        }
    }

    /// Takes the registration back and ends; at once where there is none.
    pub fn leave(&mut self) {
        if std::mem::replace(&mut self.is_leaving, true) {
            return;
        }
        if let State::Up(session) = &mut self.state {
            session.queue = VecDeque::from([session.registration.deregister()]);
            // Whatever was asked before, its answer does not count any more.
            session.awaited = None;
        }
    }
}

/// How long to stay silent: of three signs of life within a period two may get lost.
fn pause(period_s: u32) -> Duration {
    Duration::from_secs(u64::from(period_s.clamp(PERIOD_MIN_S, PERIOD_MAX_S))) / 3
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Reader;
    use crate::message::tests::answer;
    use crate::registration::tests::registration;

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    /// The function of what is sent next.
    fn sent(client: &mut Client, now: Duration) -> u16 {
        let Step::Send(bytes) = client.next(now) else { panic!("something to send") };
        u16::from_be_bytes([bytes[2], bytes[3]])
    }

    fn answered(client: &mut Client, function: u16, status: u32, now: Duration) -> News {
        let mut reader = Reader::default();
        reader.extend(&answer(function, client.transaction, status, &[]));
        client.received(&reader.response().unwrap().unwrap(), now)
    }

    /// A client that has registered at second 0, with a period of 120 seconds.
    fn registered() -> Client {
        let mut client = Client::default();
        assert_eq!(client.next(seconds(0)), Step::Connect);
        client.connected(registration(2), seconds(0));
        assert_eq!(sent(&mut client, seconds(0)), 1);
        assert_eq!(answered(&mut client, 1, 0, seconds(0)), News::Registered);
        client
    }

    #[test]
    fn it_registers_and_shows_that_it_is_there_and_leaves() {
        let mut client = registered();
        assert_eq!(client.next(seconds(1)), Step::Wait(seconds(40)));
        assert_eq!(sent(&mut client, seconds(40)), 2);
        assert_eq!(answered(&mut client, 2, 0, seconds(41)), News::None);
        assert_eq!(client.next(seconds(41)), Step::Wait(seconds(81)));
        client.leave();
        assert_eq!(sent(&mut client, seconds(50)), 4);
        assert_eq!(answered(&mut client, 4, 0, seconds(50)), News::Deregistered);
        assert_eq!(client.next(seconds(50)), Step::End);
    }

    #[test]
    fn a_server_that_has_forgotten_it_is_told_again() {
        let mut client = registered();
        assert_eq!(sent(&mut client, seconds(40)), 2);
        assert_eq!(answered(&mut client, 2, 9, seconds(40)), News::Forgotten);
        assert_eq!(sent(&mut client, seconds(40)), 1);
        assert_eq!(answered(&mut client, 1, 0, seconds(40)), News::Registered);
    }

    #[test]
    fn failures_are_tried_again_after_longer_pauses() {
        let mut client = Client::default();
        let mut now = seconds(0);
        let mut pauses = Vec::new();
        for _ in 0..9 {
            assert_eq!(client.next(now), Step::Connect);
            client.failed(now);
            let Step::Wait(until) = client.next(now) else { panic!("a pause") };
            pauses.push((until - now).as_secs());
            now = until;
        }
        assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 60, 60, 60]);
        client.leave();
        assert_eq!(client.next(now), Step::End);
    }

    #[test]
    fn a_refusal_and_silence_are_failures() {
        let mut client = Client::default();
        assert_eq!(client.next(seconds(0)), Step::Connect);
        client.connected(registration(1), seconds(0));
        assert_eq!(sent(&mut client, seconds(0)), 1);
        assert_eq!(answered(&mut client, 1, 3, seconds(0)), News::Refused(3));
        assert_eq!(client.next(seconds(0)), Step::Disconnect);
        assert_eq!(client.next(seconds(0)), Step::Wait(seconds(1)));
        let mut silent = registered();
        assert_eq!(sent(&mut silent, seconds(40)), 2);
        assert_eq!(silent.next(seconds(49)), Step::Wait(seconds(50)));
        assert_eq!(silent.next(seconds(50)), Step::Disconnect);
        assert!(matches!(silent.next(seconds(50)), Step::Wait(_)));
    }

    #[test]
    fn an_answer_to_something_else_is_passed_over() {
        let mut client = registered();
        assert_eq!(answered(&mut client, 1, 3, seconds(1)), News::None);
        assert_eq!(sent(&mut client, seconds(40)), 2);
        client.transaction -= 1;
        assert_eq!(answered(&mut client, 2, 9, seconds(40)), News::None);
        client.transaction += 1;
        client.leave();
        assert_eq!(sent(&mut client, seconds(41)), 4);
        assert_eq!(client.next(seconds(43)), Step::Disconnect, "nobody waits long for a server at the end");
        assert_eq!(client.next(seconds(43)), Step::End);
    }
}
