//! What happens to a session beside the ends of its commands, and what the session says of it.

use std::net::SocketAddr;
use std::time::Duration;

use lunette_iscsi::initiator::session::{End, Event, Notice, RequestHandle, RoundTrip, TaskHandle};
use lunette_iscsi::parameters::ConnectionParameters;
use lunette_wire::{Cid, LunField};

use super::overdue::{Remedy, Reply, may_repeat};
use super::recovery::Rejoin;
use super::{Engine, replay};
use crate::multipath::PathNews;
use crate::{CommandError, Portal, Status};

/// How often unit attentions about a reset are taken for one replayed command, before they become its answer.
const ATTENTIONS_MAX: u32 = 8;

/// How often one command is sent: what each session ends with may well be what ends the next one.
const ATTEMPTS_MAX: u32 = 5;

/// Names a task management function until its answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RequestId(pub(super) RequestHandle);

/// Something that happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EngineEvent {
    /// The session was lost; it is tried to be had again unless [`Self::Over`] follows.
    Lost {
        /// Why.
        reason: String,
    },
    /// It is there again.
    Reconnected {
        /// Where.
        portal: Portal,
        /// How long it was away.
        after: Duration,
    },
    /// A try to have it again has failed; the next one follows.
    TryFailed {
        /// Why.
        reason: String,
    },
    /// A further connection of the session could not be had; it goes on without it. Of one that was lost, and is tried again and
    /// again, this is told once.
    ConnectionMissing {
        /// Why.
        reason: String,
    },
    /// The target wants to be rid of a connection. What is under way on it is finished, as far as the target waits for it; what
    /// is not goes on by the rules for lost sessions.
    LogoutRequested {
        /// Where the connection leads.
        portal: Portal,
        /// How long the target waits, in seconds.
        within_s: u16,
    },
    /// The session is over for good.
    Over {
        /// Why.
        reason: String,
    },
    /// A unit attention about a reset, a lost nexus or a changed medium met a command that was replayed, which was then sent
    /// again, or the engine's own look at a unit, or a deferred error met that look; or one of either kind a command that nobody waits for
    /// any more. Over several paths ([`crate::multipath`]) also any other unit attention, or that there is no such unit, that met a
    /// question of the engine's own.
    Attention {
        /// The logical unit.
        lun: LunField,
        /// The sense data.
        sense: Vec<u8>,
    },
    /// A guarded unit is not the one that it was, or did not say in time that it is ([`Engine::guard`]); its commands end.
    UnitChanged {
        /// The logical unit.
        lun: LunField,
        /// What is different.
        what: String,
    },
    /// A guarded unit has become larger while its session was lost, as it may ([`Engine::guard`]); its commands go on.
    UnitGrown {
        /// The logical unit.
        lun: LunField,
    },
    /// Commands of a unit were not answered in time, and this is done now to end them.
    Overdue {
        /// The logical unit.
        lun: LunField,
        /// How many.
        commands: usize,
        /// How long the oldest has been waited for.
        waited: Duration,
        /// What is done.
        remedy: Remedy,
    },
    /// This has ended the commands that were not answered in time. They go on once more where that may be.
    Ended {
        /// The logical unit.
        lun: LunField,
        /// What has helped.
        remedy: Remedy,
    },
    /// Something has happened to one of several paths ([`crate::multipath`]).
    Path {
        /// Which one, in the order in which they were given.
        path: usize,
        /// Where it leads.
        portal: Portal,
        /// What.
        news: PathNews,
    },
    /// The session of several paths is over while the commands of a lost one may still be carried out
    /// ([`crate::Error::GhostLeft`]). [`Self::Over`] follows.
    GhostLeft {
        /// The portal of the path.
        portal: Portal,
    },
    /// A task management function was answered.
    Managed {
        /// Which one.
        request: RequestId,
        /// The response code (RFC 7143, 11.6.1); 0 is "function complete".
        response: u8,
    },
    /// A task management function ended without an answer.
    Unanswered {
        /// Which one.
        request: RequestId,
    },
    /// The target said something unasked (11.9).
    Notice(Notice),
}

/// One connection of a session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConnectionInfo {
    /// Its name in the session.
    pub cid: Cid,
    /// Where it leads.
    pub portal: Portal,
    /// The address there.
    pub address: Option<SocketAddr>,
    /// What was agreed for it.
    pub parameters: ConnectionParameters,
    /// The round trip, as pings have shown it.
    pub round_trip: Option<Duration>,
    /// How much the round trip varies (RFC 6298).
    pub round_trip_variation: Option<Duration>,
}

impl ConnectionInfo {
    pub(super) fn measured(mut self, round_trip: Option<RoundTrip>) -> Self {
        self.round_trip = round_trip.as_ref().and_then(RoundTrip::smoothed);
        self.round_trip_variation = round_trip.as_ref().and_then(RoundTrip::variation);
        self
    }
}

impl Engine {
    /// Carries out what the session has asked for.
    pub(super) fn settle(&mut self) {
        while !self.outbox.events.is_empty() {
            let mut events = std::mem::take(&mut self.outbox.events);
            // Tasks end before the session tells why it is lost; their errors are to say it.
            let lost = events.iter().find_map(|event| match event {
                Event::SessionLost { loss } | Event::ConnectionFailed { loss, .. } => Some(loss.to_string()),
                _ => None,
            });
            let reason = match (lost, self.detail.clone()) {
                (_, Some(detail)) => detail,
                (Some(lost), None) => lost,
                (None, None) if self.session.is_over() => "the session was logged out".to_owned(),
                (None, None) => "the target did not go on with it on another connection".to_owned(),
            };
            for event in events.drain(..) {
                self.handle(event, &reason);
            }
            if self.outbox.events.is_empty() {
                // The memory is used again.
                self.outbox.events = events;
                self.ask_on();
            }
            self.begin_waiting();
        }
    }

    fn handle(&mut self, event: Event, reason: &str) {
        match event {
            Event::Ended { task, end } => {
                self.task_ended(task, end, reason);
                self.release();
            }
            Event::Managed { request, .. } | Event::Unanswered { request, .. }
                if self.aborts.contains(&request) =>
            {
                self.aborts.retain(|abort| *abort != request);
            }
            Event::Managed { request, response, .. } => {
                self.functions.retain(|function| *function != request);
                if !self.is_of_overdue(request, Reply::Response(response)) {
                    self.events.push_back(EngineEvent::Managed { request: RequestId(request), response });
                }
            }
            Event::Unanswered { request, reject } => {
                let is_function = self.functions.contains(&request);
                self.functions.retain(|function| *function != request);
                self.has_late_function |= is_function && self.session.is_over();
                let reply = reject.map_or(Reply::None, Reply::Rejected);
                if !self.is_of_overdue(request, reply) {
                    self.events.push_back(EngineEvent::Unanswered { request: RequestId(request) });
                }
            }
            Event::Notice { connection, notice } => {
                match &notice {
                    Notice::SegmentLength { bytes } => self.segment_length_declared(connection, *bytes),
                    Notice::ScsiEvent { lun, sense }
                        if replay::attention(sense) == Some(replay::Attention::Deferred) =>
                    {
                        self.note_attention(*lun, replay::Attention::Deferred);
                    }
                    _ => {}
                }
                self.events.push_back(EngineEvent::Notice(notice));
            }
            Event::LogoutRequested { connection, within_s } => self.asked_to_leave(connection, within_s),
            Event::LoggedOut { connection } => {
                self.close_link(connection);
            }
            Event::ConnectionFailed { connection, loss } => {
                tracing::warn!(%loss, "a connection failed");
                if let Some(cid) = self.reset_link(connection) {
                    self.rejoin = Some(Rejoin::new(self.now, cid));
                }
            }
            Event::SessionEnded if self.is_closing => self.over("the session was logged out".into()),
            // Of several connections each may have been logged out alone.
            Event::SessionEnded => {
                // What it had is ended.
                self.has_late_function = false;
                self.lost("the target asked for a logout".into());
            }
            Event::SessionLost { .. } => {
                if std::mem::take(&mut self.has_late_function) {
                    self.haunt();
                }
                self.lost(reason.to_owned());
            }
            Event::Rejected { reason, opcode, .. } => {
                tracing::warn!(reason, opcode, "the target rejected a PDU");
            }
            // Pings only serve the round trip, and texts are for discovery.
            other => tracing::debug!(?other, "nothing to do"),
        }
    }

    fn task_ended(&mut self, task: TaskHandle, end: End, reason: &str) {
        let Some(place) = self.table.of_task(task) else { return };
        if let End::Answered(answer) = &end
            && answer.status == lunette_scsi::Status::CheckCondition.code()
            && let Some(lun) = self.table.get(place).map(|pending| pending.command.lun)
        {
            self.doubt_questions(lun, place);
        }
        if self.is_of_check(place, &end) {
            return;
        }
        let pending = self.table.get(place);
        let is_aborted = pending.is_some_and(|pending| pending.is_aborted);
        let remedy = pending.and_then(|pending| pending.remedy);
        match end {
            End::Answered(answer) => {
                let status = Status {
                    code: answer.status,
                    qualifier: answer.status_qualifier,
                    residual: answer.residual,
                    sense: answer.sense,
                };
                if self.holds(place, &status) {
                    return;
                }
                if status.code == 0 {
                    self.end_good(place, status, answer.received);
                } else if !self.is_absorbed(place, &status) {
                    self.end(place, (Ok(status), answer.received));
                }
            }
            End::Faulty(answer, fault) => {
                self.end(place, (Err(CommandError::Faulty { fault, status: answer.status }), 0));
            }
            End::TargetFailure { response } => {
                self.end(place, (Err(CommandError::TargetFailure { response }), 0));
            }
            // Where the target does not know the task, it is not carried out any more either.
            End::Aborted | End::Unknown if is_aborted && !self.session.is_over() => {
                self.end(place, (Err(CommandError::Aborted), 0));
            }
            End::Aborted | End::Unknown if remedy.is_some() && !self.session.is_over() => {
                self.overdue_ended(place, remedy.unwrap_or(Remedy::AbortTask));
            }
            End::Aborted => self.end(place, (Err(CommandError::Aborted), 0)),
            // Whoever closes the session knows what this costs; else it was the target that wanted to be rid of it.
            End::LoggedOut if self.is_closing => self.end(place, (Err(CommandError::Aborted), 0)),
            End::LoggedOut => self.go_on_later(place, true, "the target asked for a logout"),
            End::NotSent if !self.session.is_over() && !self.is_moving && !self.is_closing => {
                let reason = "the target rejected it (RFC 7143, 11.17)".to_owned();
                self.end(place, (Err(CommandError::NotSent(reason)), 0));
            }
            End::NotSent => self.go_on_later(place, false, reason),
            End::Unknown => {
                self.note_ghost(place);
                self.go_on_later(place, true, reason);
            }
        }
    }

    /// The session of a command is lost: it goes on in the next one, or ends.
    fn go_on_later(&mut self, place: u32, has_left: bool, reason: &str) {
        let recovers = !self.is_closing && !self.options.timing.recovery.is_zero();
        let Some(pending) = self.table.get_mut(place) else { return };
        pending.may_have_run |= has_left;
        let may_have_run = pending.may_have_run;
        let is_again = pending.attempts < ATTEMPTS_MAX && may_repeat(pending);
        if recovers && is_again && replay::may_go_on(&pending.command, may_have_run) {
            pending.task = None;
            self.backlog.push_back(place);
            return;
        }
        let given_up = pending.remedy.filter(|remedy| *remedy == Remedy::Reinstatement && has_left);
        let overdue = given_up.and_then(|remedy| pending.overdue_error(remedy));
        self.end(place, (Err(overdue.unwrap_or_else(|| unanswered(may_have_run, reason))), 0));
    }

    /// Takes a unit attention that only says what this side knows: the session was lost.
    fn is_absorbed(&mut self, place: u32, status: &Status) -> bool {
        if !status.is_check_condition() {
            return false;
        }
        let Some(attention) = replay::attention(&status.sense) else { return false };
        let Some(lun) = self.table.get(place).map(|pending| pending.command.lun) else { return false };
        self.note_attention(lun, attention);
        let Some(pending) = self.table.get_mut(place) else { return false };
        let is_replayed = pending.attempts > 1 && pending.attentions < ATTENTIONS_MAX && !pending.is_aborted;
        if !is_replayed || matches!(attention, replay::Attention::Medium | replay::Attention::Deferred) {
            return false;
        }
        pending.attentions += 1;
        // It was not carried out in this session; in the one before it may have been.
        pending.task = None;
        self.events.push_back(EngineEvent::Attention { lun, sense: status.sense.clone() });
        self.backlog.push_front(place);
        true
    }
}

impl Engine {
    /// Takes note of what a unit attention says: after a reset the next flush, and each that is under way, must not promise
    /// what was written before. It is the same after a deferred error, since the unit tells it once.
    pub(super) fn note_attention(&mut self, lun: LunField, attention: replay::Attention) {
        if !attention.tells_loss() {
            return;
        }
        // Before anybody hears of what was answered after it.
        self.table.next_session();
        if self.resets.contains(&lun) {
            return;
        }
        let has_written = self.dirty.contains(&lun)
            || self.table.has_begun(|command| command.lun == lun && !replay::is_read(command));
        if has_written {
            self.table.void_flushes(lun);
            self.resets.push(lun);
        }
    }
}

/// The error of a command whose session was lost.
pub(super) fn unanswered(may_have_run: bool, reason: &str) -> CommandError {
    if may_have_run {
        CommandError::Unknown(reason.to_owned())
    } else {
        CommandError::NotSent(reason.to_owned())
    }
}
