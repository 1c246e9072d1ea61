//! A logical unit that has been opened: what is known of it, and commands one at a time.

use std::thread;
use std::time::Duration;

use lunette_initiator::TargetUrl;
use lunette_scsi::client::capacity::Capacity;
use lunette_scsi::client::mode::{self, ModeForm, PageControl};
use lunette_scsi::client::{
    Command, Malformed, Next, Probe, ProbeError, Query, Reply, Sense, Transfer, UnitFacts, UnitIdentity,
};
use lunette_scsi::{AdditionalSense, Lun, SenseKey, Status};

use super::access::{AccessOptions, TimeOptions};
use super::port::{Done, Port};
use super::session;
use crate::failure::Failure;

/// How often a command is sent again that the unit refused for the moment.
const TRIES_MAX: u32 = 60;
/// How long is waited before that, in milliseconds.
const PAUSE_MS: u64 = 250;
/// The most that one command transfers, in bytes, whatever the unit allows: what most targets and links do best with.
const TRANSFER_BYTES_MAX: u32 = 1 << 20;

const RESERVATION_LOST_HELP: &str = "the target has lost who had reserved the unit: once you know who may use it, say so with \
     `lunette reserve URL --replace-lost`";

/// What does not fit its protection information.
const PROTECTION_CODES: [AdditionalSense; 3] = [
    AdditionalSense::GUARD_CHECK_FAILED,
    AdditionalSense::APPLICATION_TAG_CHECK_FAILED,
    AdditionalSense::REFERENCE_TAG_CHECK_FAILED,
];

/// PERSISTENT RESERVE OUT
const RESERVE_OUT: u8 = 0x5f;

/// Where another unit is meant.
const UNITS_HELP: &str = "`lunette discover` lists the units that there are";

/// A logical unit.
pub(crate) struct Disk {
    pub(crate) port: Box<dyn Port>,
    pub(crate) lun: Lun,
    /// The URL without secrets.
    pub(crate) name: String,
    pub(crate) facts: UnitFacts,
    /// The tag of the next command that is not sent alone: none is used twice, so that no command is taken for a later one.
    pub(crate) next_tag: u64,
}

/// What is to be done about a command that has ended.
pub(crate) enum Verdict {
    Good,
    /// The unit had something to tell first: send it again.
    Again,
    /// It is busy: send it again after a moment.
    Later,
    Failed(Failure),
}

impl Disk {
    /// Logs in and asks the unit everything that has to be known.
    ///
    /// # Errors
    /// [`Failure`] with the status that says what kind it is.
    pub(crate) fn open(url: &TargetUrl, access: &AccessOptions) -> Result<Disk, Failure> {
        let port = access.connect(url)?;
        Disk::on(port, Lun::from_number(url.lun.number()), url.to_string())
    }

    /// The same over one path.
    ///
    /// # Errors
    /// As above.
    pub(crate) fn open_alone(url: &TargetUrl, time: &TimeOptions) -> Result<Disk, Failure> {
        let port = session::connect(&time.session(url))?;
        Disk::on(port, Lun::from_number(url.lun.number()), url.to_string())
    }

    /// The same through a port that is there.
    ///
    /// # Errors
    /// As above.
    pub(crate) fn on(mut port: Box<dyn Port>, lun: Lun, name: String) -> Result<Disk, Failure> {
        let facts = probe(&mut *port, lun, &name)?;
        port.guard(lun, UnitIdentity::of(&facts));
        Ok(Disk { port, lun, name, facts, next_tag: 0 })
    }

    /// Whether it has said when it was opened that it has no write cache.
    pub(crate) fn has_no_cache(&self) -> bool {
        !self.facts.has_write_cache()
    }

    /// The same, and not since that its modes were changed.
    pub(crate) fn told_no_cache(&self) -> bool {
        self.has_no_cache() && !self.port.has_other_modes()
    }

    /// Whether a disk that had no write cache when it was opened says the same now, while it has nothing else to do. If so, what it
    /// has answered meanwhile is stable, in whichever session. False where it does not tell, or where its modes were changed meanwhile:
    /// a restart may have taken the cache with what was in it.
    ///
    /// # Errors
    /// The session, or what the target said.
    pub(crate) fn still_has_no_cache(&mut self) -> Result<bool, Failure> {
        if !self.told_no_cache() {
            return Ok(false);
        }
        for form in [ModeForm::Six, ModeForm::Ten] {
            match self.ask(&mode::mode_sense(form, mode::ALL, PageControl::Current)) {
                Ok(modes) => return Ok(modes.write_cache_enabled() == Some(false) && self.told_no_cache()),
                // It was lost, or is not known.
                Err(failure) if failure.tag().is_some() || failure.unfit().is_some() => {}
                Err(failure) => return Err(failure),
            }
        }
        Ok(false)
    }

    /// The capacity of a disk that can be read.
    ///
    /// # Errors
    /// It is no disk, or not ready.
    pub(crate) fn capacity(&self) -> Result<Capacity, Failure> {
        if let Some(sense) = &self.facts.not_ready {
            return Err(Failure::scsi(format!("{} is not ready: {sense}", self.name), not_ready_help(sense)));
        }
        self.facts.capacity.ok_or_else(|| {
            let kind = self.facts.inquiry.device_type.name();
            Failure::scsi(format!("{} has no capacity; it is a {kind}", self.name), None)
                .with_help(UNITS_HELP)
        })
    }

    /// The longest transfer of one command in blocks.
    pub(crate) fn transfer_blocks_max(&self) -> u32 {
        self.facts.transfer_blocks_max(TRANSFER_BYTES_MAX)
    }

    /// Runs a command to its good end and gives its Data-In.
    ///
    /// # Errors
    /// The session, or what the target said.
    pub(crate) fn run(&mut self, command: &Command, data_out: &[u8]) -> Result<Vec<u8>, Failure> {
        run(&mut *self.port, self.lun, &self.name, command, data_out)
    }

    /// The same, with the session in which that was.
    ///
    /// # Errors
    /// As above.
    pub(crate) fn run_to_end(&mut self, command: &Command, data_out: &[u8]) -> Result<Done, Failure> {
        run_to_end(&mut *self.port, self.lun, &self.name, command, data_out)
    }

    /// Sends a command once, and tells how it ended.
    ///
    /// # Errors
    /// The session.
    pub(crate) fn run_once(&mut self, command: &Command, data_out: &[u8]) -> Result<Done, Failure> {
        start(&mut *self.port, self.lun, 0, command, data_out)?;
        self.port.finish()
    }

    /// Asks, and asks again where the answer was longer than what was asked for.
    ///
    /// # Errors
    /// The session, what the target said, or an answer that cannot be read.
    pub(crate) fn ask<T>(&mut self, query: &Query<T>) -> Result<T, Failure> {
        ask(&mut *self.port, self.lun, &self.name, query)
    }

    /// The same, `None` where the target does not know the command or says something that cannot be read.
    ///
    /// # Errors
    /// The session.
    pub(crate) fn ask_optional<T>(&mut self, query: &Query<T>) -> Result<Option<T>, Failure> {
        match self.ask(query) {
            Ok(answer) => Ok(Some(answer)),
            Err(failure) if failure.is_of_scsi() => Ok(None),
            Err(failure) => Err(failure),
        }
    }

    /// Logs out.
    ///
    /// # Errors
    /// As [`Port::close`].
    pub(crate) fn close(self) -> Result<(), Failure> {
        self.port.close()
    }
}

/// Waits a moment for a unit that is busy.
pub(crate) fn pause() {
    thread::sleep(Duration::from_millis(PAUSE_MS));
}

/// Sends a command.
fn start(port: &mut dyn Port, lun: Lun, tag: u64, command: &Command, data_out: &[u8]) -> Result<(), Failure> {
    let data = match command.transfer() {
        Transfer::List(list) => list.clone(),
        Transfer::Out { .. } => data_out.to_vec(),
        Transfer::In { length_bytes } => vec![0; *length_bytes as usize],
        Transfer::None => Vec::new(),
    };
    port.start(lun, tag, command, data)
}

/// [`Disk::run`] through a port that has no other command under way.
pub(crate) fn run(
    port: &mut dyn Port,
    lun: Lun,
    name: &str,
    command: &Command,
    data_out: &[u8],
) -> Result<Vec<u8>, Failure> {
    run_to_end(port, lun, name, command, data_out).map(|done| done.data)
}

fn run_to_end(
    port: &mut dyn Port,
    lun: Lun,
    name: &str,
    command: &Command,
    data_out: &[u8],
) -> Result<Done, Failure> {
    let mut tries = 0;
    loop {
        start(port, lun, 0, command, data_out)?;
        let done = port.finish()?;
        match judge(name, command, &done, tries) {
            Verdict::Good => return Ok(done),
            Verdict::Again => {}
            Verdict::Later => pause(),
            Verdict::Failed(failure) => return Err(failure),
        }
        tries += 1;
    }
}

/// [`Disk::ask`] through such a port.
pub(crate) fn ask<T>(port: &mut dyn Port, lun: Lun, name: &str, query: &Query<T>) -> Result<T, Failure> {
    let malformed = |error: Malformed| {
        Failure::scsi(format!("{name}: {error}"), Some("the target does not follow the standard here".into()))
    };
    let data = run(port, lun, name, query.command(), &[])?;
    match query.decode(&data) {
        Ok(answer) => Ok(answer),
        Err(error) => {
            let longer = query.longer(&error).ok_or_else(|| malformed(error))?;
            let data = run(port, lun, name, longer.command(), &[])?;
            longer.decode(&data).map_err(malformed)
        }
    }
}

/// Asks a unit everything that has to be known, through a port that has no command under way.
pub(crate) fn probe(port: &mut dyn Port, lun: Lun, name: &str) -> Result<UnitFacts, Failure> {
    let mut probe = Probe::new();
    // Each question's place is its tag.
    let mut tickets = Vec::new();
    let mut ended = 0;
    loop {
        match probe.proceed() {
            Next::Send(ticket, command) => {
                start(port, lun, tickets.len() as u64, &command, &[])?;
                tickets.push(ticket);
            }
            Next::Wait => {
                let finished = port.finish();
                ended += 1;
                let ticket_of = |tag| usize::try_from(tag).ok().and_then(|place| tickets.get(place)).copied();
                if let Err(failure) = &finished
                    && failure.tag().and_then(ticket_of).is_some_and(|ticket| probe.failed(ticket))
                {
                    continue;
                }
                let done = finished.or_else(|failure| abandon(port, failure, tickets.len() - ended))?;
                let ticket = ticket_of(done.tag);
                let ticket = ticket.ok_or_else(|| Failure::internal("a command ended that was not sent"))?;
                let reply = Reply { status: done.status, sense: &done.sense, data: &done.data };
                probe.answered(ticket, reply);
            }
            Next::Pause => {
                pause();
                probe.rested();
            }
            Next::Done => break,
        }
    }
    probe.into_facts().map_err(|error| {
        let help = match error {
            ProbeError::NoUnit => Some(UNITS_HELP.to_owned()),
            _ => None,
        };
        Failure::scsi(format!("{name}: {error}"), help)
    })
}

/// One command has failed for good: the others are waited for, so that nobody takes their ends for those of commands of its own.
/// Answers that failure, or the one of the session.
fn abandon(port: &mut dyn Port, failure: Failure, under_way: usize) -> Result<Done, Failure> {
    if failure.is_of_scsi() {
        for _ in 0..under_way {
            match port.finish() {
                Err(other) if !other.is_of_scsi() => return Err(other),
                _ => {}
            }
        }
    }
    Err(failure)
}

/// Judges how a command ended. `tries` says how often it has been sent again.
pub(crate) fn judge(name: &str, command: &Command, done: &Done, tries: u32) -> Verdict {
    let sense = Sense::decode(&done.sense);
    match (done.status, &sense) {
        (Some(Status::Good), _) => Verdict::Good,
        // The unit tells once that an earlier command, which it had answered, has failed.
        (Some(Status::CheckCondition), Some(sense)) if sense.deferred => {
            Verdict::Failed(Failure::scsi(format!("{name}: {}", broken_promise(sense)), help_for(sense)))
        }
        (Some(Status::CheckCondition), Some(sense)) if sense.is_unit_attention() && tries < TRIES_MAX => {
            match changed(sense.code) {
                Some(what) => Verdict::Failed(Failure::scsi(
                    format!("{name}: {what} while it was in use ({sense})"),
                    Some("look whether this is still the disk that it was, then begin anew".to_owned()),
                )),
                None => Verdict::Again,
            }
        }
        (Some(Status::Busy | Status::TaskSetFull), _) if tries < TRIES_MAX => Verdict::Later,
        (Some(Status::CheckCondition), Some(sense)) if sense.becomes_ready() && tries < TRIES_MAX => {
            Verdict::Later
        }
        // Another initiator's reset, or what the target could not finish.
        (status, sense)
            if (status == Some(Status::TaskAborted) || sense.as_ref().is_some_and(Sense::is_aborted))
                && command.is_idempotent()
                && tries < TRIES_MAX =>
        {
            Verdict::Later
        }
        _ => Verdict::Failed(refused(name, command, done.status, sense.as_ref())),
    }
}

/// What a deferred error says.
pub(crate) fn broken_promise(sense: &Sense) -> String {
    format!("the target tells that a command has failed after it was answered: {sense}")
}

/// What a unit attention says of a medium that is not what it was.
pub(super) fn changed(code: AdditionalSense) -> Option<&'static str> {
    match code {
        AdditionalSense::CAPACITY_CHANGED => Some("the capacity changed"),
        AdditionalSense::MEDIUM_MAY_HAVE_CHANGED => Some("the medium may have been changed"),
        _ => None,
    }
}

/// Its modes were changed, by another initiator or by the unit itself.
pub(super) fn is_of_modes(sense: &Sense) -> bool {
    const PARAMETERS_CHANGED: AdditionalSense = AdditionalSense::new(0x2a, 0);
    sense.is_unit_attention()
        && matches!(sense.code, PARAMETERS_CHANGED | AdditionalSense::MODE_PARAMETERS_CHANGED)
}

fn refused(name: &str, command: &Command, status: Option<Status>, sense: Option<&Sense>) -> Failure {
    let command_name = command.name();
    let said = match (sense, status) {
        (Some(sense), _) => sense.to_string(),
        (None, Some(status)) => status.name().to_owned(),
        (None, None) => "a status that is not known".to_owned(),
    };
    let help = match (sense, status) {
        (_, Some(Status::ReservationConflict)) => Some(conflict_help(command)),
        (Some(sense), _) => help_for(sense),
        _ => None,
    };
    let failure = Failure::scsi(format!("{name}: the target refused {command_name}: {said}"), help);
    failure.of_unfit(sense.and_then(Sense::unfit))
}

fn conflict_help(command: &Command) -> String {
    let mut text = "another initiator has reserved the unit".to_owned();
    // Only this command has a key, which must be the one that was registered (SPC-4, PERSISTENT RESERVE OUT).
    if command.cdb().first() == Some(&RESERVE_OUT) {
        text +=
            ", or this initiator is not registered with that key (`--register --param-sark KEY` comes first)";
    }
    text + ": `lunette reserve URL --read-full-status` tells who"
}

fn help_for(sense: &Sense) -> Option<String> {
    let text = match sense.key()? {
        SenseKey::DataProtect if sense.code == AdditionalSense::SPACE_ALLOCATION_FAILED => {
            "the target's store is full: make room there"
        }
        SenseKey::DataProtect if sense.code == AdditionalSense::RESERVATION_INFORMATION_LOST => {
            RESERVATION_LOST_HELP
        }
        SenseKey::DataProtect => "the disk is read-only for this initiator: see the target's configuration",
        SenseKey::MediumError | SenseKey::HardwareError => {
            "the target's store has an error: look at the target's log"
        }
        SenseKey::NotReady => return not_ready_help(sense),
        SenseKey::AbortedCommand if PROTECTION_CODES.contains(&sense.code) => {
            "the data does not fit its protection information: the target's log says whether what it has stored is damaged; \
             writing the block anew, from a copy of it, makes it good again"
        }
        SenseKey::IllegalRequest if sense.is_unknown_command() => "the target does not have this command",
        _ => return None,
    };
    Some(text.to_owned())
}

fn not_ready_help(sense: &Sense) -> Option<String> {
    let text = match sense.code {
        AdditionalSense::MEDIUM_NOT_PRESENT => "load the medium at the target",
        AdditionalSense::INITIALIZING_COMMAND_REQUIRED => "the unit was stopped; START STOP UNIT starts it",
        AdditionalSense::TARGET_PORT_IN_STANDBY | AdditionalSense::TARGET_PORT_UNAVAILABLE => {
            "this path is not the active one: `lunette info URL` lists the states of all port groups"
        }
        AdditionalSense::RESERVATION_INFORMATION_LOST => RESERVATION_LOST_HELP,
        AdditionalSense::FORMAT_IN_PROGRESS | AdditionalSense::SANITIZE_IN_PROGRESS => "wait for its end",
        _ => return None,
    };
    Some(text.to_owned())
}

#[cfg(test)]
mod tests {
    use lunette_scsi::SenseData;
    use lunette_scsi::client::capacity::read_capacity_16;
    use lunette_scsi::client::medium::{self, BlockRange, Caching, CdbForm};

    use super::*;

    #[test]
    fn what_was_aborted_is_sent_again_if_it_may_be() {
        let range = BlockRange { lba: 0, blocks: 1, block_length_bytes: 512 };
        let write = medium::write(CdbForm::Ten, range, Caching::default()).expect("it fits");
        let flush = medium::synchronize_cache(CdbForm::Ten, range).expect("it fits");
        let is_later = |command: &Command, status, sense: &[u8], tries| {
            let done =
                Done { tag: 0, status: Some(status), sense: sense.to_vec(), data: Vec::new(), session: 0 };
            matches!(judge("a", command, &done, tries), Verdict::Later)
        };
        assert!(is_later(&write, Status::TaskAborted, &[], 0));
        assert!(!is_later(&write, Status::TaskAborted, &[], TRIES_MAX), "not for ever");
        assert!(!is_later(&flush, Status::TaskAborted, &[], 0), "it speaks of what a reset may have taken");
        assert!(!is_later(read_capacity_16().command(), Status::TaskAborted, &[], 0));
        let aborted = SenseData::new(SenseKey::AbortedCommand, AdditionalSense::new(0x44, 0)).encode(false);
        assert!(is_later(&write, Status::CheckCondition, aborted.as_bytes(), 0));
    }

    #[test]
    fn what_has_failed_after_its_answer_is_never_passed_over() {
        let range = BlockRange { lba: 0, blocks: 1, block_length_bytes: 512 };
        let write = medium::write(CdbForm::Ten, range, Caching::default()).expect("it fits");
        // Of the command itself, some of these would have it sent again, or in another form.
        for (key, code) in [
            (SenseKey::UnitAttention, AdditionalSense::new(0x29, 0)),
            (SenseKey::AbortedCommand, AdditionalSense::new(0x44, 0)),
            (SenseKey::IllegalRequest, AdditionalSense::INVALID_FIELD_IN_CDB),
            (SenseKey::MediumError, AdditionalSense::new(0x0c, 0)),
        ] {
            let mut sense = SenseData::new(key, code).encode(false).as_bytes().to_vec();
            sense[0] = sense[0] & 0x80 | 0x71;
            let done =
                Done { tag: 0, status: Some(Status::CheckCondition), sense, data: Vec::new(), session: 0 };
            let Verdict::Failed(failure) = judge("a", &write, &done, 0) else { panic!("{key:?}") };
            assert!(failure.is_of_scsi() && failure.unfit().is_none(), "{failure}");
            assert!(failure.to_string().contains("failed after it was answered"), "{failure}");
        }
    }
}
