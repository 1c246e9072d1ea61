//! Opening a unit: everything that an initiator has to know before it reads the first block, as a state machine.
//!
//! It sends no command itself. The driver asks for the next one, runs it, and brings what came of it, until the probe is
//! done. Unit attentions are drained on the way and kept; what a target does not know is left out, since much of it is
//! optional; a unit that is not ready is told as such, not as an error.

mod facts;
#[cfg(test)]
mod tests;

use super::answer::Malformed;
use super::capacity;
use super::command::{Command, Query};
use super::inquiry::{self, PeripheralQualifier};
use super::mode::{self, ModeForm, PageControl};
use super::sense::Sense;
use super::unit;
use super::vpd::block;
use super::vpd::{self, identification};
use crate::codes::vpd_page;
use crate::status::Status;

pub use facts::{Next, ProbeError, Reply, UnitFacts};

/// How many unit attentions are taken before the unit is given up: a queue of them has one of each kind.
const ATTENTIONS_MAX: usize = 64;
/// How often a command is sent again that was refused for the moment (BUSY, TASK SET FULL) before that is the answer.
const RETRIES_MAX: u32 = 30;

/// The steps, in their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Inquiry,
    Ready,
    Pages,
    /// One of [`WANTED_PAGES`].
    Page(usize),
    Capacity16,
    Capacity10,
    /// Caching and control page of all pages, in one form or the other.
    Mode(ModeForm),
    Done,
}

/// The pages that are asked for, if the target lists them.
const WANTED_PAGES: [u8; 6] = [
    vpd_page::UNIT_SERIAL_NUMBER,
    vpd_page::DEVICE_IDENTIFICATION,
    vpd_page::EXTENDED_INQUIRY,
    vpd_page::BLOCK_LIMITS,
    vpd_page::BLOCK_DEVICE_CHARACTERISTICS,
    vpd_page::LOGICAL_BLOCK_PROVISIONING,
];

/// Opens a unit.
///
/// ```
/// use lunette_scsi::client::{Next, Probe, ProbeError, Reply};
/// use lunette_scsi::Status;
///
/// let mut probe = Probe::new();
/// // The first command is INQUIRY. This target has no such unit: PERIPHERAL QUALIFIER 011b.
/// assert!(matches!(probe.next(), Next::Send(command) if command.name() == "INQUIRY"));
/// let mut data = [0; 36];
/// data[0] = 0x7f;
/// data[4] = 31;
/// let reply = Reply { status: Some(Status::Good), sense: &[], data: &data };
/// assert_eq!(probe.answered(reply), Err(ProbeError::NoUnit));
/// ```
#[derive(Clone, Debug)]
pub struct Probe {
    step: Step,
    /// Allocation length that is asked for instead of the usual one, after an answer that was cut off.
    asked_bytes: Option<u32>,
    /// The last command was refused for the moment.
    later: bool,
    retries: u32,
    facts: UnitFacts,
}

impl Default for Probe {
    fn default() -> Probe {
        Probe::new()
    }
}

impl Probe {
    /// A probe that has asked nothing yet.
    pub fn new() -> Probe {
        Probe {
            step: Step::Inquiry,
            asked_bytes: None,
            later: false,
            retries: 0,
            facts: UnitFacts::default(),
        }
    }

    /// What to do next. Asking twice gives the same answer.
    pub fn next(&self) -> Next {
        let command = match self.step {
            Step::Inquiry => self.command(inquiry::standard()),
            Step::Ready => unit::test_unit_ready(),
            Step::Pages => self.command(vpd::supported_pages()),
            Step::Page(index) => self.command(vpd::page(WANTED_PAGES[index])),
            Step::Capacity16 => self.command(capacity::read_capacity_16()),
            Step::Capacity10 => self.command(capacity::read_capacity_10()),
            Step::Mode(form) => self.command(mode::mode_sense(form, mode::ALL, PageControl::Current)),
            Step::Done => return Next::Done,
        };
        if self.later { Next::SendLater(command) } else { Next::Send(command) }
    }

    fn sized<T>(&self, query: Query<T>) -> Query<T> {
        match self.asked_bytes {
            Some(length_bytes) => query.asking_for(length_bytes),
            None => query,
        }
    }

    fn command<T>(&self, query: Query<T>) -> Command {
        self.sized(query).command().clone()
    }

    /// What is known so far; everything once [`Probe::next`] says [`Next::Done`].
    pub fn facts(&self) -> &UnitFacts {
        &self.facts
    }

    /// What is known, at the end.
    pub fn into_facts(self) -> UnitFacts {
        self.facts
    }

    /// The command that [`Probe::next`] told has ended.
    ///
    /// # Errors
    /// [`ProbeError`]: the unit cannot be opened. The probe must not be used further.
    pub fn answered(&mut self, reply: Reply<'_>) -> Result<(), ProbeError> {
        self.later = false;
        let sense = Sense::decode(reply.sense);
        match reply.status {
            Some(Status::Good) => return self.good(reply.data),
            Some(Status::CheckCondition) if sense.as_ref().is_some_and(Sense::is_unit_attention) => {
                if self.facts.attentions.len() == ATTENTIONS_MAX {
                    return Err(ProbeError::EndlessAttentions);
                }
                self.facts.attentions.extend(sense);
                return Ok(());
            }
            Some(Status::Busy | Status::TaskSetFull) if self.retries < RETRIES_MAX => {
                self.retries += 1;
                self.later = true;
                return Ok(());
            }
            _ => {}
        }
        self.refused(reply.status, sense)
    }

    /// The command did not work: what is optional is left out.
    fn refused(&mut self, status: Option<Status>, sense: Option<Sense>) -> Result<(), ProbeError> {
        let next = match self.step {
            Step::Inquiry => {
                let command = "INQUIRY";
                return Err(ProbeError::Refused { command, status, sense: sense.map(Box::new) });
            }
            Step::Ready => {
                // Without sense data there is still to be told that something is wrong: it is another's reservation.
                if sense.is_none() && status != Some(Status::ReservationConflict) {
                    let command = "TEST UNIT READY";
                    return Err(ProbeError::Refused { command, status, sense: None });
                }
                self.facts.not_ready = sense;
                Step::Pages
            }
            Step::Pages => self.page_from(0),
            Step::Page(index) => self.page_from(index + 1),
            Step::Capacity16 => Step::Capacity10,
            Step::Capacity10 if self.facts.not_ready.is_some() => Step::Mode(ModeForm::Six),
            Step::Capacity10 => {
                let command = "READ CAPACITY(10)";
                return Err(ProbeError::Refused { command, status, sense: sense.map(Box::new) });
            }
            Step::Mode(ModeForm::Six) => Step::Mode(ModeForm::Ten),
            Step::Mode(ModeForm::Ten) | Step::Done => Step::Done,
        };
        self.go(next);
        Ok(())
    }

    fn go(&mut self, step: Step) {
        self.step = step;
        self.asked_bytes = None;
        self.retries = 0;
    }

    /// Reads an answer. One that was cut off is asked for again, longer; an optional one that cannot be read is left out.
    fn read<T>(&mut self, query: Query<T>, data: &[u8]) -> Result<Option<T>, Malformed> {
        let query = self.sized(query);
        match query.decode(data) {
            Ok(answer) => Ok(Some(answer)),
            // Once: a target that says another length each time is not followed.
            Err(malformed) => match query.longer(&malformed).filter(|_| self.asked_bytes.is_none()) {
                Some(longer) => {
                    self.asked_bytes = Some(longer.command().data_in_bytes());
                    Ok(None)
                }
                None => Err(malformed),
            },
        }
    }

    fn good(&mut self, data: &[u8]) -> Result<(), ProbeError> {
        match self.step {
            Step::Inquiry => {
                let Some(answer) = self.read(inquiry::standard(), data).map_err(ProbeError::Malformed)?
                else {
                    return Ok(());
                };
                if answer.qualifier != PeripheralQualifier::Connected {
                    return Err(ProbeError::NoUnit);
                }
                self.facts.inquiry = answer;
                self.go(Step::Ready);
            }
            Step::Ready => self.go(Step::Pages),
            Step::Pages => match self.read(vpd::supported_pages(), data) {
                Ok(None) => {}
                // SPC-2 lets a unit have none.
                read => {
                    self.facts.pages = read.ok().flatten().unwrap_or_default();
                    let next = self.page_from(0);
                    self.go(next);
                }
            },
            Step::Page(index) => self.page_came(index, data),
            Step::Capacity16 => match self.read(capacity::read_capacity_16(), data) {
                Ok(None) => {}
                Ok(Some(capacity)) => {
                    self.facts.capacity = Some(capacity);
                    self.go(Step::Mode(ModeForm::Six));
                }
                Err(malformed) => return Err(ProbeError::Malformed(malformed)),
            },
            Step::Capacity10 => {
                let capacity = capacity::read_capacity_10().decode(data).map_err(ProbeError::Malformed)?;
                self.facts.capacity = capacity;
                self.go(Step::Mode(ModeForm::Six));
            }
            Step::Mode(form) => {
                match self.read(mode::mode_sense(form, mode::ALL, PageControl::Current), data) {
                    Ok(None) => {}
                    Ok(Some(parameters)) => {
                        self.facts.mode = Some(parameters);
                        self.go(Step::Done);
                    }
                    Err(_) if form == ModeForm::Six => self.go(Step::Mode(ModeForm::Ten)),
                    Err(_) => self.go(Step::Done),
                }
            }
            Step::Done => {}
        }
        Ok(())
    }

    fn page_came(&mut self, index: usize, data: &[u8]) {
        /// Keeps what was read; false where it is asked for again.
        fn keep<T>(place: &mut T, read: Result<Option<T>, Malformed>) -> bool {
            match read {
                Ok(None) => false,
                Ok(Some(answer)) => {
                    *place = answer;
                    true
                }
                Err(_) => true,
            }
        }
        let is_over = match WANTED_PAGES[index] {
            vpd_page::UNIT_SERIAL_NUMBER => {
                let read = self.read(vpd::unit_serial_number(), data);
                keep(&mut self.facts.serial, read)
            }
            vpd_page::DEVICE_IDENTIFICATION => {
                let read = self.read(identification::device_identification(), data);
                keep(&mut self.facts.designations, read)
            }
            vpd_page::EXTENDED_INQUIRY => {
                let read = self.read(vpd::extended_inquiry(), data).map(|answer| answer.map(Some));
                keep(&mut self.facts.extended, read)
            }
            vpd_page::BLOCK_LIMITS => {
                let read = self.read(block::limits(), data);
                keep(&mut self.facts.limits, read)
            }
            vpd_page::BLOCK_DEVICE_CHARACTERISTICS => {
                let read = self.read(block::characteristics(), data);
                keep(&mut self.facts.characteristics, read)
            }
            _ => {
                let read = self.read(block::provisioning(), data);
                keep(&mut self.facts.provisioning, read)
            }
        };
        if is_over {
            let next = self.page_from(index + 1);
            self.go(next);
        }
    }

    /// The next page from `index` on that the target has, or what comes after the pages.
    fn page_from(&self, index: usize) -> Step {
        let mut wanted = index..WANTED_PAGES.len();
        match wanted.find(|&index| self.facts.pages.contains(&WANTED_PAGES[index])) {
            Some(index) => Step::Page(index),
            None if self.facts.inquiry.is_disk() => Step::Capacity16,
            None => Step::Done,
        }
    }
}
