//! Commands on their way out and back: how what a path says of one is told to the core, and to its caller.

use std::time::Duration;

use lunette_scsi::client::Sense;
use lunette_scsi::client::port_groups::report_target_port_groups;
use lunette_scsi::{AdditionalSense, SenseKey};
use lunette_wire::LunField;

use super::super::core::{Access, Outcome, Path, Place, Verdict};
use super::super::open::{question, tells_loss, tells_reset};
use super::{Engine, Errand, take_buffer};
use crate::engine::replay::{self, Attention};
use crate::{
    Command, CommandError, CommandId, Completion, Data, EngineEvent, Function, Notice, Remedy, Status, Times,
};

/// What the driver keeps of a command.
#[derive(Debug)]
pub(in super::super) struct Held {
    /// The buffer is here while the command waits, else with its session.
    command: Command,
    is_read: bool,
    queued: Duration,
    /// What it is on its path.
    inner: Option<CommandId>,
    times: Times,
    received: u32,
}

impl Held {
    pub(super) fn new(command: Command, now: Duration) -> Self {
        let is_read = matches!(command.data, Data::In(_));
        let times = Times { queued: now, ..Times::default() };
        Self { command, is_read, queued: now, inner: None, times, received: 0 }
    }
}

/// When the unit was reset from here, as long as a path's nexus may still have to tell so, which is no news.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct OwnReset(Option<Duration>);

impl OwnReset {
    /// Takes note of an answer to what was sent then, a question of this engine's own or a command. True: it tells of this reset. Each
    /// nexus is told of it once (SAM-5, 5.14), so that it is over then, and also if something that came later was answered.
    fn is_told(&mut self, sent_at: Option<Duration>, completion: &Completion) -> bool {
        let Some(reset_at) = self.0 else { return false };
        let is_told = tells_reset(completion);
        if is_told || (completion.is_good() && sent_at.is_some_and(|sent_at| sent_at >= reset_at)) {
            self.0 = None;
        }
        is_told
    }
}

/// What the caller is told of an error: a path that is given up has ended nothing, and what was not sent over the last path may
/// have been over one before.
fn honest(result: Result<Status, CommandError>, has_run: bool) -> Result<Status, CommandError> {
    match result {
        Err(CommandError::NotSent(reason)) if has_run => Err(CommandError::Unknown(reason)),
        Err(CommandError::Overdue { waited, ended_by: Remedy::Reinstatement }) => {
            let seconds = waited.as_secs_f32();
            let reason = format!("the target has not answered for {seconds} s, and its path was given up");
            Err(CommandError::Unknown(reason))
        }
        other => other,
    }
}

/// What a status says of its path or of others, and not of the command.
fn refusal(status: &Status) -> Option<Outcome> {
    if status.code == lunette_scsi::Status::TaskAborted.code() {
        return Some(Outcome::Aborted);
    }
    let sense = Sense::decode(&status.sense).filter(|_| status.is_check_condition())?;
    match (sense.key()?, sense.code) {
        (SenseKey::NotReady, AdditionalSense::ACCESS_STATE_TRANSITION) => {
            Some(Outcome::Refused(Access::Transitioning))
        }
        (SenseKey::NotReady, AdditionalSense::TARGET_PORT_IN_STANDBY) => {
            Some(Outcome::Refused(Access::Standby))
        }
        (SenseKey::NotReady, AdditionalSense::TARGET_PORT_UNAVAILABLE) => {
            Some(Outcome::Refused(Access::Unavailable))
        }
        // ASYMMETRIC ACCESS STATE CHANGED, IMPLICIT ASYMMETRIC ACCESS STATE TRANSITION FAILED
        (SenseKey::UnitAttention, code) if code.asc() == 0x2a && matches!(code.ascq(), 6 | 7) => {
            Some(Outcome::NotYet)
        }
        _ => None,
    }
}

/// What a command has come to that has no status. `is_over`: its session is lost.
const fn unanswered(error: &CommandError, is_over: bool) -> Outcome {
    match error {
        CommandError::NotSent(_) if is_over => Outcome::NotSent,
        CommandError::Overdue { ended_by: Remedy::Reinstatement, .. } => Outcome::Unknown,
        CommandError::Unknown(_) if is_over => Outcome::Unknown,
        // Nobody here aborts a command but by a reset of the unit.
        CommandError::Aborted => Outcome::Aborted,
        // In a session that goes on, the target has ended it, or does not know it.
        CommandError::Overdue { .. } | CommandError::Unknown(_) => Outcome::Stopped,
        _ => Outcome::Other,
    }
}

impl Engine {
    pub(super) fn id_of(&self, key: usize) -> CommandId {
        let serial = self.core.entries.get(key).map_or(0, |entry| entry.serial);
        // Nobody has 2^32 commands.
        CommandId { place: key as u32, serial }
    }

    /// Sends a command on its path.
    pub(super) fn send(&mut self, key: usize, path: usize) {
        let is_doubted = self.core.paths[path].is_doubted;
        let way = &mut self.ways[path];
        let Some(entry) = self.core.entries.get_mut(key) else { return };
        let Some(session) = way.session.as_mut().filter(|_| !is_doubted) else {
            // It has gone since, or may lead elsewhere; the core had not heard of it yet.
            let outcome = if is_doubted { Outcome::NotYet } else { Outcome::NotSent };
            if self.core.ended(self.now, key, outcome) != Verdict::Kept {
                self.end_unsent(key, self.why_no_path());
            }
            return;
        };
        let held = &mut entry.payload;
        let data = std::mem::replace(&mut held.command.data, Data::None);
        let command = Command { data, lun: way.options.lun.field(), ..held.command.clone() };
        let id = session.submit(command);
        held.inner = Some(id);
        way.errands.insert(id, Errand::Command(key));
    }

    /// Asks for the states of the port groups.
    pub(super) fn check(&mut self, path: usize) {
        let way = &mut self.ways[path];
        let Some(session) = way.session.as_mut().filter(|_| !way.is_asked) else { return };
        // It is no reason to end anything if nobody answers; commands have their own time.
        let asked = question(report_target_port_groups().command(), &way.options).within(Duration::MAX);
        way.errands.insert(session.submit(asked), Errand::States);
        way.is_asked = true;
    }

    /// Takes what a path's session has to say.
    pub(super) fn poll_path(&mut self, path: usize) -> Result<(), crate::Error> {
        let Some(session) = &mut self.ways[path].session else { return Ok(()) };
        let mut done = Vec::new();
        session.poll(Some(Duration::ZERO), &mut done)?;
        let mut news = Vec::new();
        while let Some(event) = session.event() {
            news.push(event);
        }
        for event in news {
            self.path_event(path, event);
        }
        let way = &mut self.ways[path];
        let mut is_own = |completion: &Completion| {
            let sent_at = completion.times.sent.map(|sent| sent + way.began);
            way.own_reset.is_told(sent_at, completion)
        };
        let own = done.iter().position(&mut is_own);
        // Before anybody hears of what was answered after it.
        if done.iter().enumerate().any(|(at, completion)| Some(at) != own && tells_loss(completion)) {
            self.core.note_reset();
        }
        for (_, completion) in done.iter().enumerate().filter(|(at, _)| Some(*at) != own) {
            self.hear(path, completion);
        }
        for (at, completion) in done.into_iter().enumerate() {
            self.path_completion(path, completion, Some(at) == own);
        }
        let is_lost = self.ways[path]
            .session
            .as_ref()
            .is_some_and(|session| session.is_over() && session.outstanding() == 0);
        if is_lost {
            self.path_lost(path);
        }
        Ok(())
    }

    fn path_event(&mut self, path: usize, event: EngineEvent) {
        match event {
            EngineEvent::Over { reason } => {
                let way = &mut self.ways[path];
                way.reason = way.left_for.take().or(Some(reason));
            }
            EngineEvent::Managed { request, response } if self.reset == Some((path, request)) => {
                self.unit_reset(response == 0);
            }
            EngineEvent::Unanswered { request } if self.reset == Some((path, request)) => {
                self.unit_reset(false);
            }
            EngineEvent::Ended { remedy: Remedy::LogicalUnitReset, .. } => {
                self.core.note_reset();
                self.events.push_back(event);
            }
            EngineEvent::Attention { lun, sense } if self.is_ours(path, lun) => {
                self.overheard(path, &sense);
                self.events.push_back(EngineEvent::Attention { lun: self.lun(), sense });
            }
            EngineEvent::Notice(Notice::ScsiEvent { lun, sense }) if self.is_ours(path, lun) => {
                self.overheard(path, &sense);
                let event = Notice::ScsiEvent { lun: self.lun(), sense };
                self.events.push_back(EngineEvent::Notice(event));
            }
            // Of another unit; its number over this path may be that of ours over another one.
            EngineEvent::Attention { .. } | EngineEvent::Notice(Notice::ScsiEvent { .. }) => {}
            // What becomes of the session is told as news of the path.
            EngineEvent::Lost { .. } | EngineEvent::Reconnected { .. } | EngineEvent::TryFailed { .. } => {}
            other => self.events.push_back(other),
        }
    }

    fn is_ours(&self, path: usize, lun: LunField) -> bool {
        lun == self.ways[path].options.lun.field()
    }

    /// What the unit has said over a path beside the ends of commands.
    fn overheard(&mut self, path: usize, sense: &[u8]) {
        if replay::attention(sense).is_some_and(Attention::tells_loss) {
            self.core.note_reset();
        }
        if let Some(sense) = Sense::decode(sense) {
            self.doubt(path, &sense);
        }
    }

    /// `is_own_reset`: it was not carried out, since the unit told first of a reset that is known.
    fn path_completion(&mut self, path: usize, mut completion: Completion, is_own_reset: bool) {
        let way = &mut self.ways[path];
        let key = match way.errands.remove(&completion.id) {
            None => return,
            Some(Errand::States) => {
                way.is_asked = false;
                return self.checked(path, &completion);
            }
            Some(Errand::Look(ticket)) => return self.look_answered(path, ticket, &completion),
            Some(Errand::Command(key)) => key,
        };
        let (began, is_over) = (way.began, way.session.as_ref().is_none_or(crate::Engine::is_over));
        let Some(entry) = self.core.entries.get_mut(key) else { return };
        let held = &mut entry.payload;
        let buffer = std::mem::take(&mut completion.buffer);
        held.command.data = match (buffer.is_empty(), held.is_read) {
            (true, _) => Data::None,
            (false, true) => Data::In(buffer),
            (false, false) => Data::Out(buffer),
        };
        held.inner = None;
        held.received = completion.received;
        held.times = Times {
            queued: held.queued,
            sent: completion.times.sent.map(|sent| sent + began),
            first_byte: completion.times.first_byte.map(|first| first + began),
            done: completion.times.done + began,
            tag: completion.times.tag,
        };
        let outcome = match &completion.result {
            Ok(status) if status.is_good() => Outcome::Good,
            Ok(_) if is_own_reset => Outcome::NotYet,
            Ok(status) => refusal(status).unwrap_or(Outcome::Other),
            // The session was closed by the caller.
            Err(_) if self.is_leaving => Outcome::Other,
            Err(error) => unanswered(error, is_over),
        };
        match self.core.ended(self.now, key, outcome) {
            Verdict::Over => {
                let has_run = self.core.entries.get(key).is_some_and(|entry| entry.has_run);
                self.complete(key, honest(completion.result, has_run));
            }
            Verdict::ResetSinceFlush => self.complete(key, Err(CommandError::ResetSinceFlush)),
            Verdict::Kept => {}
        }
    }

    /// A command is over.
    pub(super) fn complete(&mut self, key: usize, result: Result<Status, CommandError>) {
        let id = self.id_of(key);
        let attempts = self.core.entries.get(key).map_or(0, |entry| entry.attempts);
        let session = self.core.session_of(key);
        let Some(mut held) = self.core.take(key) else { return };
        let buffer = take_buffer(&mut held.command.data);
        let received = if result.is_ok() { held.received } else { 0 };
        let times = Times { done: self.now.max(held.times.done), ..held.times };
        self.done.push(Completion { id, result, buffer, received, times, attempts, session });
    }

    /// Ends what waits for a path.
    pub(super) fn end_waiting(&mut self, reason: &str) {
        for key in self.waiting() {
            self.end_unsent(key, reason.to_owned());
        }
    }

    /// Where there is no other unit any more than another one, nothing is worth waiting for ([`EngineEvent::UnitChanged`]).
    pub(super) fn end_changed(&mut self) {
        let is_there = |path: &Path| path.is_up() && !path.is_doubted;
        if let Some(what) = self.changed.clone().filter(|_| !self.core.paths.iter().any(is_there)) {
            for key in self.waiting() {
                self.complete(key, Err(CommandError::Changed(what.clone())));
            }
        }
    }

    fn waiting(&self) -> Vec<usize> {
        let waiting = self.core.entries.iter().filter(|(_, entry)| entry.place == Place::Waiting);
        waiting.map(|(key, _)| key).collect()
    }

    /// Ends a command that is on no path. Over one before, it may have been carried out.
    pub(super) fn end_unsent(&mut self, key: usize, reason: String) {
        let has_run = self.core.entries.get(key).is_some_and(|entry| entry.has_run);
        self.complete(key, honest(Err(CommandError::NotSent(reason)), has_run));
    }

    /// The states of the port groups were asked for.
    fn checked(&mut self, path: usize, completion: &Completion) {
        let Ok(status) = &completion.result else { return };
        let sent = completion.times.sent.unwrap_or(completion.times.queued);
        let asked_at = self.ways[path].began + sent;
        if !tells_reset(completion) {
            self.core.has_answered(path, asked_at);
        }
        if !status.is_good() {
            // A unit attention comes once: it is asked again at once, and otherwise in its turn.
            let sense = Sense::decode(&status.sense);
            if sense.is_some_and(|sense| sense.is_unit_attention()) {
                self.core.paths[path].check_at = self.now;
            }
            return;
        }
        self.core.paths[path].measured(completion.times.done.saturating_sub(sent));
        if let Ok(groups) = report_target_port_groups().decode(completion.data()) {
            self.take_groups(&groups, asked_at);
        }
    }

    /// Resets the unit, which ends what the target has of dead paths.
    pub(super) fn reset_unit(&mut self, via: usize) {
        let way = &mut self.ways[via];
        let lun = way.options.lun.field();
        let asked = way.session.as_mut().map(|session| session.manage(Function::LogicalUnitReset(lun)));
        match asked {
            Some(Ok(request)) => self.reset = Some((via, request)),
            _ => self.core.reset(self.now, false),
        }
    }

    /// The reset has ended. It has ended commands over other paths, too, whose sessions do not know: they ask.
    fn unit_reset(&mut self, is_done: bool) {
        let Some((via, _)) = self.reset.take() else { return };
        if is_done {
            self.ways.iter_mut().for_each(|way| way.own_reset = OwnReset(Some(self.now)));
            for (at, way) in self.ways.iter_mut().enumerate().filter(|(at, _)| *at != via) {
                let Some(session) = &mut way.session else { continue };
                tracing::debug!(path = at, commands = way.errands.len(), "asking what a reset has ended");
                way.errands.keys().for_each(|id| session.abort(*id));
            }
        }
        self.core.reset(self.now, is_done);
    }

    /// The path of the reset that is under way is lost.
    pub(super) fn forget_reset(&mut self, path: usize) {
        if self.reset.is_some_and(|(via, _)| via == path) {
            self.unit_reset(false);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ended(code: u8, sense: &[u8]) -> Completion {
        let status = Status { code, sense: sense.to_vec(), ..Status::default() };
        Completion {
            id: CommandId { place: 0, serial: 1 },
            result: Ok(status),
            buffer: Vec::new(),
            received: 0,
            times: Times::default(),
            attempts: 1,
            session: 0,
        }
    }

    #[test]
    fn a_task_that_was_aborted_by_others_did_not_fail() {
        let said = |code| refusal(&Status { code, ..Status::default() });
        assert_eq!(said(0x40), Some(Outcome::Aborted));
        assert!([0x00, 0x02, 0x08, 0x18, 0x28].into_iter().all(|code| said(code).is_none()));
    }

    #[test]
    fn what_a_reset_of_ours_has_ended_is_told_from_what_is_not_answered() {
        let late = |ended_by| CommandError::Overdue { waited: Duration::from_secs(600), ended_by };
        let unknown = CommandError::Unknown(String::new());
        for (error, is_over, outcome) in [
            (CommandError::Aborted, false, Outcome::Aborted),
            (late(Remedy::LogicalUnitReset), false, Outcome::Stopped),
            (late(Remedy::Reinstatement), true, Outcome::Unknown),
            (unknown.clone(), false, Outcome::Stopped),
            (unknown, true, Outcome::Unknown),
            (CommandError::NotSent(String::new()), true, Outcome::NotSent),
            (CommandError::NotSent(String::new()), false, Outcome::Other),
        ] {
            assert_eq!(unanswered(&error, is_over), outcome, "{error:?}");
        }
    }

    /// Commands do not go over a path in standby; what it tells of our reset, it tells to a question for states.
    #[test]
    fn a_reset_of_ours_is_told_once_and_the_next_one_is_news() {
        let s = Duration::from_secs;
        let (good, reset) = (ended(0, &[]), ended(2, &[0x72, 6, 0x29, 3, 0, 0, 0, 0]));
        let mut own = OwnReset(Some(s(10)));
        assert!(!own.is_told(Some(s(9)), &good), "it was sent before");
        assert!(own.is_told(Some(s(9)), &reset));
        assert!(!own.is_told(Some(s(11)), &reset), "another one");
        let mut own = OwnReset(Some(s(10)));
        assert!(!own.is_told(Some(s(10)), &good) && !own.is_told(Some(s(11)), &reset), "it told nothing");
    }
}
