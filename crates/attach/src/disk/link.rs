//! Commands to the unit, each until it ends well or cannot: what a unit has to tell first is heard, a busy one is waited for,
//! and what can safely be sent again is.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use lunette_initiator::blocking::Session;
use lunette_initiator::{Command as Sent, CommandError, Completion, Data, Lun, Replay, Submitted};
use lunette_scsi::client::{Command, Malformed, Query, Sense, Transfer};
use lunette_scsi::{AdditionalSense, Status};
use lunette_wire::target::Residual;

use super::error::DiskError;
use super::journal::Journal;

/// How often a command is sent again: for a busy unit that is a minute.
pub(super) const TRIES_MAX: u32 = 240;
/// How often data that comes spoilt is asked for again: a bad way spoils some of it, a broken one or a broken target all.
const SPOILT_MAX: u32 = 8;
/// How long a busy unit is left alone.
const PAUSE: Duration = Duration::from_millis(250);

/// A unit through a session, and what is owed to it.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) session: Session,
    pub(super) lun: Lun,
    journal: Mutex<Journal>,
    /// Behind this unit is not what there was.
    is_other: AtomicBool,
    /// The unit has said that its capacity has changed, and was not asked since.
    is_resized: AtomicBool,
    /// The unit may be another one by what it or its target has said ([`Sense::may_be_of_another`]), and was not asked since.
    is_renamed: AtomicBool,
}

/// A command that ended with GOOD.
#[derive(Debug)]
pub(super) struct Done {
    /// The command's buffer.
    pub(super) data: Vec<u8>,
    /// The session in which it was answered.
    pub(super) session: u32,
}

/// How much of its data a command has to transfer.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Amount {
    Whole,
    /// What the target has.
    Some,
}

/// What becomes of a command that has ended.
enum Verdict {
    Good,
    /// Send it again.
    Again,
    /// Send it again after a moment.
    Later,
    Failed(DiskError),
}

impl Link {
    pub(super) fn new(session: Session, lun: Lun) -> Link {
        let (is_other, is_resized, is_renamed) = Default::default();
        Link { session, lun, journal: Mutex::default(), is_other, is_resized, is_renamed }
    }

    pub(super) fn journal(&self) -> MutexGuard<'_, Journal> {
        self.journal.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn is_exchanged(&self) -> bool {
        self.is_other.load(Ordering::Relaxed)
    }

    pub(super) fn note_exchange(&self) {
        self.is_other.store(true, Ordering::Relaxed);
    }

    /// Whether the unit has said that its capacity has changed, since this was asked last.
    pub(super) fn take_resize(&self) -> bool {
        self.is_resized.swap(false, Ordering::SeqCst)
    }

    pub(super) fn note_resize(&self) {
        self.is_resized.store(true, Ordering::SeqCst);
    }

    /// Whether there was a sign that the unit may be another one, since this was asked last.
    pub(super) fn take_renaming(&self) -> bool {
        self.is_renamed.swap(false, Ordering::SeqCst)
    }

    pub(super) fn note_renaming(&self) {
        self.is_renamed.store(true, Ordering::SeqCst);
    }

    /// Takes note of what a command that is not sent again has brought up.
    pub(super) fn overhear(&self, ended: &Completion) {
        if let Ok(status) = &ended.result
            && let Some(sense) = Sense::decode(&status.sense).filter(is_attention)
        {
            self.heard(&sense);
        }
    }

    /// Takes note of sense data that came unasked (RFC 7143, 11.9.1), or to a question of the session's own.
    pub(super) fn told(&self, sense: &[u8]) {
        match Sense::decode(sense) {
            Some(sense) if is_attention(&sense) => {
                self.heard(&sense);
            }
            Some(sense) if sense.may_be_of_another() && !sense.deferred => self.note_renaming(),
            _ => {}
        }
    }

    /// Sends a command as it is, and tells how it ended.
    pub(super) fn once(&self, command: &Command, data: Vec<u8>) -> Completion {
        self.session.execute(self.sent(command, data))
    }

    /// Sends a command, and leaves it to the caller to wait for its end.
    pub(super) fn begin(&self, command: &Command, data: Vec<u8>) -> Submitted {
        self.session.handle().submit(self.sent(command, data))
    }

    /// Runs a command.
    pub(super) fn run(&self, command: &Command, data: Vec<u8>) -> Result<Done, DiskError> {
        let ended = self.judged(command, self.once(command, data), Amount::Whole)?;
        Ok(done(ended))
    }

    /// Asks something, and tells in which session it was answered.
    pub(super) fn ask<T>(&self, query: &Query<T>) -> Result<(Result<T, Malformed>, u32), DiskError> {
        let command = query.command();
        // A few kilobytes.
        let buffer = vec![0; command.data_in_bytes() as usize];
        let ended = self.judged(command, self.once(command, buffer), Amount::Some)?;
        Ok((query.decode(ended.data()), ended.session))
    }

    /// Runs commands together; what they bring is in their order. One that fails leaves the others to their end.
    pub(super) fn run_all(&self, commands: Vec<(Command, Vec<u8>)>) -> Result<Vec<Done>, DiskError> {
        let (commands, buffers): (Vec<_>, Vec<_>) = commands.into_iter().unzip();
        let sent = commands.iter().zip(buffers).map(|(command, data)| self.sent(command, data));
        let ended = self.session.execute_all(sent);
        let judged = |(command, ended)| self.judged(command, ended, Amount::Whole).map(done);
        let all: Vec<_> = commands.iter().zip(ended).map(judged).collect();
        all.into_iter().collect()
    }

    fn sent(&self, command: &Command, data: Vec<u8>) -> Sent {
        let data = match command.transfer() {
            Transfer::None => Data::None,
            Transfer::In { .. } => Data::In(data),
            Transfer::Out { .. } => Data::Out(data),
            Transfer::List(list) => Data::Out(list.clone()),
        };
        // Changes of the same blocks are never under way together: to make one again undoes none.
        Sent { data, ..Sent::new(self.lun, command.cdb()).replaying(Replay::Always) }
    }

    /// Sends a command that has ended again until it ends well.
    fn judged(&self, command: &Command, ended: Completion, amount: Amount) -> Result<Completion, DiskError> {
        let (mut ended, mut spoilt) = (ended, 0);
        for _ in 0..TRIES_MAX {
            if spoilt < SPOILT_MAX && is_spoilt(command, &ended) {
                tracing::warn!(command = command.name(), "data came spoilt: it is asked for again");
                spoilt += 1;
            } else if self.is_answered(command, &ended, amount)? {
                return Ok(ended);
            }
            ended = self.once(command, ended.buffer);
        }
        Err(DiskError::Unanswered(format!("{}: the unit is busy all the time", command.name())))
    }

    /// True if a command ended well; false if it may be sent again, now that the unit was given the time that it wants.
    pub(super) fn is_good(&self, command: &Command, ended: &Completion) -> Result<bool, DiskError> {
        self.is_answered(command, ended, Amount::Whole)
    }

    fn is_answered(&self, command: &Command, ended: &Completion, amount: Amount) -> Result<bool, DiskError> {
        match self.judge(command, ended, amount) {
            Verdict::Good => return Ok(true),
            Verdict::Again => {}
            Verdict::Later => thread::sleep(PAUSE),
            Verdict::Failed(error) => {
                tracing::warn!(%error, "a command failed");
                return Err(error);
            }
        }
        Ok(false)
    }

    fn judge(&self, command: &Command, ended: &Completion, amount: Amount) -> Verdict {
        if self.is_exchanged() {
            return Verdict::Failed(DiskError::Io("the disk was exchanged for another".into()));
        }
        let status = match &ended.result {
            Ok(status) => status,
            Err(CommandError::NotSent(_)) if !self.session.handle().is_over() => return Verdict::Later,
            Err(error) => return Verdict::Failed(DiskError::of_command(command.name(), error)),
        };
        let sense = Sense::decode(&status.sense);
        match (Status::from_code(status.code), &sense) {
            (Some(Status::Good), _) if amount == Amount::Some => Verdict::Good,
            (Some(Status::Good), _) if is_whole(command, ended, status.residual) => Verdict::Good,
            (Some(Status::Good), _) => {
                Verdict::Failed(DiskError::Io(format!("{} was carried out in part", command.name())))
            }
            // An earlier command has failed after its answer, and this one was not carried out. That is counted as a reset is, and what is
            // kept is written again.
            (Some(Status::CheckCondition), Some(sense)) if sense.deferred => {
                tracing::warn!(%sense, "the unit reports");
                Verdict::Again
            }
            (Some(Status::CheckCondition), Some(sense)) if sense.is_unit_attention() => self.heard(sense),
            (Some(Status::Busy | Status::TaskSetFull), _) => Verdict::Later,
            (Some(Status::CheckCondition), Some(sense)) if sense.becomes_ready() => Verdict::Later,
            // Another initiator's reset, or what the target could not finish. All that is sent here may be carried out twice.
            (Some(Status::TaskAborted), _) => Verdict::Later,
            (Some(Status::CheckCondition), Some(sense)) if sense.is_aborted() => Verdict::Later,
            (status, sense) => {
                if sense.as_ref().is_some_and(Sense::may_be_of_another) {
                    self.note_renaming();
                }
                Verdict::Failed(DiskError::refused(command.name(), status, sense.as_ref()))
            }
        }
    }

    /// The unit had something to tell.
    fn heard(&self, sense: &Sense) -> Verdict {
        tracing::info!(%sense, "the unit reports");
        match sense.code {
            AdditionalSense::MEDIUM_MAY_HAVE_CHANGED => {
                self.note_exchange();
                Verdict::Failed(DiskError::Io(format!("the disk was exchanged for another: {sense}")))
            }
            AdditionalSense::CAPACITY_CHANGED => {
                self.note_resize();
                Verdict::Again
            }
            _ if sense.may_be_of_another() => {
                self.note_renaming();
                Verdict::Again
            }
            // A reset is counted as the loss of a session is: the completions tell of both.
            _ => Verdict::Again,
        }
    }
}

/// It says something of the unit as it is now. A deferred error is of a command before; the completions count it.
fn is_attention(sense: &Sense) -> bool {
    sense.is_unit_attention() && !sense.deferred
}

fn done(ended: Completion) -> Done {
    Done { data: ended.buffer, session: ended.session }
}

/// What was to be read has come otherwise than it was sent, as its digest shows, or not as it could be. It may be read again.
fn is_spoilt(command: &Command, ended: &Completion) -> bool {
    let reads = matches!(command.transfer(), Transfer::In { .. });
    reads && matches!(ended.result, Err(CommandError::Faulty { .. }))
}

/// Everything was transferred that should be.
fn is_whole(command: &Command, ended: &Completion, residual: Residual) -> bool {
    match command.transfer() {
        Transfer::None | Transfer::List(_) => true,
        Transfer::In { length_bytes } => ended.received == *length_bytes,
        Transfer::Out { .. } => residual == Residual::None,
    }
}
