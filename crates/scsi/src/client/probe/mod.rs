//! Opening a unit: everything that an initiator has to know before it reads the first block, as a state machine.
//!
//! It sends no command itself. It hands out every question that can be asked now, and takes the answers in any order, so that
//! a unit at the end of a long line is open after a few round trips: first INQUIRY, the list of VPD pages and TEST UNIT READY,
//! then everything that makes sense after them. Nothing is asked that could offend an old unit: VPD pages only where they are
//! listed, capacity and mode pages only of disks, the younger form of a command once the older one is refused.
//!
//! Unit attentions are drained on the way and kept; what a target does not know is left out, since much of it is optional; a
//! unit that is not ready is told as such, not as an error.

mod facts;
mod question;
#[cfg(test)]
mod tests;

use super::answer::Malformed;
use super::capacity;
use super::command::{Command, Query};
use super::inquiry::{self, PeripheralQualifier};
use super::mode::ModeForm;
use super::port_groups;
use super::sense::Sense;
use super::vpd::block;
use super::vpd::{self, identification};
use crate::status::Status;

pub use facts::{ProbeError, Reply, UnitFacts};
use question::{Question, all_pages, sized, write_same_16};

/// How many unit attentions are taken before the unit is given up: a queue of them has one of each kind.
const ATTENTIONS_MAX: usize = 64;
/// How often a command is sent again that was refused for the moment (BUSY, TASK SET FULL) before that is the answer.
const RETRIES_MAX: u32 = 30;

/// What the driver has to do next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Next {
    /// Send this command, and bring its end to [`Probe::answered`] with the ticket. Others may be under way meanwhile.
    Send(Ticket, Command),
    /// Nothing can be asked before one of those under way has ended.
    Wait,
    /// The unit is busy and nothing is under way: leave it alone for a moment, then call [`Probe::rested`].
    Pause,
    /// It is over, and nothing is under way: see [`Probe::into_facts`].
    Done,
}

/// Which of the commands under way it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ticket(Question);

/// How far a question is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    /// It was not asked.
    #[default]
    Unasked,
    UnderWay,
    /// It is to be asked again.
    Again,
    /// It is to be asked again after a moment.
    Later,
    /// There is an answer.
    Known,
    /// The unit does not answer it.
    Refused,
}

#[derive(Clone, Copy, Debug, Default)]
struct Asking {
    state: State,
    /// Allocation length that is asked for instead of the usual one, after an answer that was cut off.
    asked_bytes: Option<u32>,
    retries: u32,
}

/// Opens a unit.
///
/// ```
/// use lunette_scsi::client::{Next, Probe, ProbeError, Reply};
/// use lunette_scsi::Status;
///
/// let mut probe = Probe::new();
/// let mut under_way = Vec::new();
/// while let Next::Send(ticket, command) = probe.proceed() {
///     under_way.push((ticket, command.name()));
/// }
/// assert_eq!(under_way.iter().map(|(_, name)| *name).collect::<Vec<_>>(), ["INQUIRY", "INQUIRY", "TEST UNIT READY"]);
/// // This target has no such unit: PERIPHERAL QUALIFIER 011b. Whatever it says to the others, that is the answer.
/// let mut data = [0; 36];
/// data[0] = 0x7f;
/// data[4] = 31;
/// for (ticket, _) in under_way.into_iter().rev() {
///     assert_eq!(probe.proceed(), Next::Wait);
///     probe.answered(ticket, Reply { status: Some(Status::Good), sense: &[], data: &data });
/// }
/// assert_eq!(probe.proceed(), Next::Done);
/// assert_eq!(probe.into_facts(), Err(ProbeError::NoUnit));
/// ```
#[derive(Clone, Debug, Default)]
pub struct Probe {
    asking: [Asking; Question::ALL.len()],
    asks_write_same: bool,
    asks_port_groups: bool,
    facts: UnitFacts,
    /// Why the unit cannot be opened, and which question told it: of several the first question's.
    failure: Option<(Question, ProbeError)>,
    /// How READ CAPACITY(10) was refused.
    no_capacity: Option<ProbeError>,
}

impl Probe {
    /// A probe that has asked nothing yet.
    pub fn new() -> Probe {
        Probe::default()
    }

    /// One that asks, too, whether a disk has WRITE SAME(16): [`UnitFacts::has_write_same`].
    #[must_use]
    pub fn with_write_same(self) -> Probe {
        Probe { asks_write_same: true, ..self }
    }

    /// One that asks, too, for the target port groups: [`UnitFacts::port_groups`].
    #[must_use]
    pub fn with_port_groups(self) -> Probe {
        Probe { asks_port_groups: true, ..self }
    }

    /// What to do next. To be called until it does not say [`Next::Send`].
    pub fn proceed(&mut self) -> Next {
        let goes_on = self.failure.is_none();
        if goes_on && let Some(question) = Question::ALL.into_iter().find(|&question| self.is_due(question)) {
            self.at(question).state = State::UnderWay;
            let command = question.command(self.at(question).asked_bytes);
            return Next::Send(Ticket(question), command);
        }
        let has = |state| self.asking.iter().any(|asking| asking.state == state);
        match () {
            () if has(State::UnderWay) => Next::Wait,
            () if goes_on && has(State::Later) => Next::Pause,
            () => Next::Done,
        }
    }

    /// A busy unit was left alone for a moment.
    pub fn rested(&mut self) {
        for asking in &mut self.asking {
            if asking.state == State::Later {
                asking.state = State::Again;
            }
        }
    }

    /// What is known so far; everything once [`Probe::proceed`] says [`Next::Done`].
    pub fn facts(&self) -> &UnitFacts {
        &self.facts
    }

    /// What is known, at the end.
    ///
    /// # Errors
    /// [`ProbeError`]: the unit cannot be opened.
    pub fn into_facts(self) -> Result<UnitFacts, ProbeError> {
        self.check().map(|()| self.facts)
    }

    /// Whether the unit can be opened, once all is known.
    ///
    /// # Errors
    /// [`ProbeError`]: it cannot.
    pub fn check(&self) -> Result<(), ProbeError> {
        if let Some((_, error)) = &self.failure {
            return Err(error.clone());
        }
        match &self.no_capacity {
            // A unit that is not ready need not know it.
            Some(error) if self.facts.not_ready.is_none() => Err(error.clone()),
            _ => Ok(()),
        }
    }

    /// A command that [`Probe::proceed`] told has ended. A ticket whose command is not under way changes nothing.
    pub fn answered(&mut self, ticket: Ticket, reply: Reply<'_>) {
        let Ticket(question) = ticket;
        if self.state(question) != State::UnderWay {
            return;
        }
        let sense = Sense::decode(reply.sense);
        match reply.status {
            Some(Status::Good) => {
                self.at(question).state = State::Known;
                self.good(question, reply.data);
            }
            Some(Status::CheckCondition) if sense.as_ref().is_some_and(Sense::is_unit_attention) => {
                self.at(question).state = State::Again;
                if self.facts.attentions.len() == ATTENTIONS_MAX {
                    return self.fail(question, ProbeError::EndlessAttentions);
                }
                self.facts.attentions.extend(sense);
            }
            Some(Status::Busy | Status::TaskSetFull) if self.at(question).retries < RETRIES_MAX => {
                let asking = self.at(question);
                (asking.state, asking.retries) = (State::Later, asking.retries + 1);
            }
            status => {
                self.at(question).state = State::Refused;
                self.refused(question, status, sense);
            }
        }
    }

    /// A command that [`Probe::proceed`] told has ended without an answer that can be used (it was rejected, came too late, or
    /// what came cannot be trusted), in a session that goes on. What is optional is left out as if it were refused. False: the
    /// unit cannot be opened without it, and why is the driver's to tell; that is so of what tells that it is there, what it is
    /// called, and how large it is.
    #[must_use]
    pub fn failed(&mut self, ticket: Ticket) -> bool {
        let Ticket(question) = ticket;
        if self.state(question) == State::UnderWay {
            self.at(question).state = State::Refused;
        }
        !question.is_needed()
    }

    /// A command that [`Probe::proceed`] told was ended by another one's failure (SPC-4, QERR): it is asked again. False: it has been so
    /// too often, and [`Probe::failed`] is to be told.
    #[must_use]
    pub fn again(&mut self, ticket: Ticket) -> bool {
        let Ticket(question) = ticket;
        if self.state(question) != State::UnderWay || self.at(question).retries >= RETRIES_MAX {
            return false;
        }
        let asking = self.at(question);
        (asking.state, asking.retries) = (State::Again, asking.retries + 1);
        true
    }

    fn at(&mut self, question: Question) -> &mut Asking {
        &mut self.asking[question as usize]
    }

    fn state(&self, question: Question) -> State {
        self.asking[question as usize].state
    }

    fn has_ended(&self, question: Question) -> bool {
        matches!(self.state(question), State::Known | State::Refused)
    }

    /// It is to be sent now.
    fn is_due(&self, question: Question) -> bool {
        match self.state(question) {
            State::Unasked => self.is_wanted(question),
            state => state == State::Again,
        }
    }

    /// What is known so far makes it worth asking.
    fn is_wanted(&self, question: Question) -> bool {
        let is_there = self.state(Question::Inquiry) == State::Known;
        let is_disk = is_there && self.facts.inquiry.is_disk();
        match question {
            Question::Inquiry | Question::Pages | Question::Ready => true,
            Question::Capacity16 | Question::Mode6 => is_disk,
            Question::Capacity10 => self.state(Question::Capacity16) == State::Refused,
            Question::Mode10 => self.state(Question::Mode6) == State::Refused,
            Question::WriteSame => is_disk && self.asks_write_same,
            Question::PortGroups => is_there && self.asks_port_groups,
            Question::Serial
            | Question::Identification
            | Question::Extended
            | Question::Limits
            | Question::Characteristics
            | Question::Provisioning => {
                let is_listed = question.page().is_some_and(|page| self.facts.pages.contains(&page));
                is_there && self.has_ended(Question::Pages) && is_listed
            }
        }
    }

    fn fail(&mut self, question: Question, error: ProbeError) {
        if self.failure.as_ref().is_none_or(|(first, _)| question < *first) {
            self.failure = Some((question, error));
        }
    }

    /// The command did not work: what is optional is left out.
    fn refused(&mut self, question: Question, status: Option<Status>, sense: Option<Sense>) {
        let error = |command, sense: Option<Sense>| ProbeError::Refused {
            command,
            status,
            sense: sense.map(Box::new),
        };
        match question {
            Question::Inquiry => self.fail(question, error("INQUIRY", sense)),
            // Without sense data there is still to be told that something is wrong: it is another's reservation.
            Question::Ready if sense.is_none() && status != Some(Status::ReservationConflict) => {
                self.fail(question, error("TEST UNIT READY", None));
            }
            Question::Ready => self.facts.not_ready = sense,
            Question::Capacity10 => self.no_capacity = Some(error("READ CAPACITY(10)", sense)),
            _ => {}
        }
    }

    /// Reads an answer; `None`: it is left out, or was cut off and is asked for again, longer.
    ///
    /// # Errors
    /// It cannot be read.
    fn read<T>(&mut self, question: Question, query: Query<T>, data: &[u8]) -> Result<Option<T>, Malformed> {
        let asked_bytes = self.at(question).asked_bytes;
        let query = sized(query, asked_bytes);
        match query.decode(data) {
            Ok(answer) => Ok(Some(answer)),
            // Once: a target that says another length each time is not followed.
            Err(malformed) => match query.longer(&malformed).filter(|_| asked_bytes.is_none()) {
                Some(longer) => {
                    let asked_bytes = Some(longer.command().data_in_bytes());
                    *self.at(question) = Asking { state: State::Again, asked_bytes, retries: 0 };
                    Ok(None)
                }
                None => Err(malformed),
            },
        }
    }

    /// The same for what every unit has to tell.
    fn need<T>(&mut self, question: Question, query: Query<T>, data: &[u8]) -> Option<T> {
        self.read(question, query, data).unwrap_or_else(|malformed| {
            self.fail(question, ProbeError::Malformed(malformed));
            None
        })
    }

    /// The same for what is left out where it cannot be read.
    fn may<T>(&mut self, question: Question, query: Query<T>, data: &[u8]) -> Option<T> {
        self.read(question, query, data).unwrap_or_else(|_| {
            self.at(question).state = State::Refused;
            None
        })
    }

    fn good(&mut self, question: Question, data: &[u8]) {
        match question {
            Question::Ready => {}
            Question::Inquiry => {
                let Some(answer) = self.need(question, inquiry::standard(), data) else { return };
                if answer.qualifier != PeripheralQualifier::Connected {
                    return self.fail(question, ProbeError::NoUnit);
                }
                self.facts.inquiry = answer;
            }
            Question::Capacity16 => {
                self.facts.capacity = self.need(question, capacity::read_capacity_16(), data);
            }
            Question::Capacity10 => {
                self.facts.capacity = self.need(question, capacity::read_capacity_10(), data).flatten();
            }
            Question::Mode6 => self.facts.mode = self.may(question, all_pages(ModeForm::Six), data),
            Question::Mode10 => self.facts.mode = self.may(question, all_pages(ModeForm::Ten), data),
            Question::WriteSame => {
                self.facts.has_write_same = self.may(question, write_same_16(), data).unwrap_or(false);
            }
            Question::PortGroups => {
                let groups = self.may(question, port_groups::report_target_port_groups(), data);
                self.facts.port_groups = groups.unwrap_or_default();
            }
            Question::Pages => {
                // SPC-2 lets a unit have none.
                self.facts.pages = self.may(question, vpd::supported_pages(), data).unwrap_or_default();
            }
            Question::Serial => {
                self.facts.serial = self.may(question, vpd::unit_serial_number(), data).unwrap_or_default();
            }
            Question::Identification => {
                let names = self.may(question, identification::device_identification(), data);
                self.facts.designations = names.unwrap_or_default();
            }
            Question::Extended => self.facts.extended = self.may(question, vpd::extended_inquiry(), data),
            Question::Limits => {
                self.facts.limits = self.may(question, block::limits(), data).unwrap_or_default();
            }
            Question::Characteristics => {
                let read = self.may(question, block::characteristics(), data);
                self.facts.characteristics = read.unwrap_or_default();
            }
            Question::Provisioning => {
                self.facts.provisioning = self.may(question, block::provisioning(), data).unwrap_or_default();
            }
        }
    }
}
