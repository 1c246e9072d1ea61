//! SANITIZE (SBC-3). What is done to the medium, and what other commands get meanwhile, is in [`crate::work`].
//!
//! There is no cryptographic erase: a volume is not encrypted here, so no key could be thrown away.

use super::{Context, Progress, State, Step, good};
use crate::bytes::{Cdb, be16, cdb16};
use crate::io::{Direction, Io};
use crate::saved::{Section, Taken};
use crate::sense::{AdditionalSense, SenseData, SenseKey};
use crate::task::Event;
use crate::unit::LogicalUnit;
use crate::work::{Method, Occupation, Purpose};

const IMMEDIATE: u8 = 0x80;
/// AUSE. The bit above it, ZNR, is about zones and newer than SBC-3: reserved here.
const UNRESTRICTED_EXIT: u8 = 0x20;
const HEADER_BYTES: u32 = 4;

pub(super) fn overwrite(context: &Context<'_>, cdb: &Cdb) -> Progress {
    let length_bytes = u32::from(cdb16::<7>(cdb));
    if length_bytes <= HEADER_BYTES || length_bytes > HEADER_BYTES + context.unit().block_length_bytes() {
        return Err(SenseData::invalid_cdb_field(7, 7));
    }
    let begin = begin(context, cdb)?;
    Ok((State::Begin(begin), Step::DataOut(length_bytes)))
}

pub(super) fn block_erase(context: &Context<'_>, cdb: &Cdb) -> Progress {
    begin(context, cdb)?.with(context, Method::Erase)
}

/// Ends what a failed SANITIZE has left, if that one allowed it.
pub(super) fn exit_failure_mode(context: &Context<'_>, _: &Cdb) -> Progress {
    let unit = context.unit();
    match unit.work().occupation() {
        Occupation::SanitizeFailed => Err(SenseData::invalid_cdb_field(1, 4)),
        Occupation::SanitizeFailedUnrestricted if unit.saved().is_kept() => {
            unit.work().leave_failure_out(|section| unit.saved().set_section(Section::Work, section));
            Ok((State::ExitFailureMode, Step::Io(Io::SaveState)))
        }
        Occupation::SanitizeFailedUnrestricted => exited(unit),
        _ => good(),
    }
}

/// The medium is free again once no restart can bring the failed work back.
pub(super) fn exit_saved(context: &Context<'_>, event: Event<'_>) -> Progress {
    let unit = context.unit();
    let stored = event.io(Direction::Write, unit);
    if stored.is_err() {
        abandon_exit(unit);
    }
    stored.and_then(|_| exited(unit))
}

/// The failure stays, after a restart, too, whatever was stored meanwhile.
pub(super) fn abandon_exit(unit: &LogicalUnit) {
    unit.work().put_failure_back(|section| unit.saved().set_section(Section::Work, section));
    unit.saved().owe();
}

fn exited(unit: &LogicalUnit) -> Progress {
    unit.work().forget_failure();
    good()
}

fn begin(context: &Context<'_>, cdb: &Cdb) -> Result<Begin, SenseData> {
    let unrestricted_exit = cdb[1] & UNRESTRICTED_EXIT != 0;
    // After a failure in restricted mode the way out must not become an easier one.
    if unrestricted_exit && context.unit().work().occupation() == Occupation::SanitizeFailed {
        return Err(SenseData::invalid_cdb_field(1, 5));
    }
    Ok(Begin {
        purpose: Purpose::Sanitize { unrestricted_exit },
        immediate: cdb[1] & IMMEDIATE != 0,
        waiting: Waiting::List,
    })
}

/// A command that gives the unit work: it waits for its parameter list, then for the work to be saved, and unless it is
/// immediate for the end of it.
#[derive(Debug)]
pub(crate) struct Begin {
    pub(super) purpose: Purpose,
    pub(super) immediate: bool,
    pub(super) waiting: Waiting,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Waiting {
    List,
    /// The work is in no state that was taken by then.
    Saved(Taken),
    Work,
}

impl Begin {
    /// Takes the work on.
    pub(super) fn with(self, context: &Context<'_>, method: Method) -> Progress {
        let unit = context.unit();
        let saved = unit.saved();
        let taken = saved.taken();
        if !unit.work().arm(self.purpose, method, |section| saved.set_section(Section::Work, section)) {
            // Another command was faster.
            return Err(unit.work().sense(unit.medium()).unwrap_or(SenseData::internal()));
        }
        if !saved.is_kept() {
            return Ok(self.launch(unit));
        }
        Ok((State::Begin(Begin { waiting: Waiting::Saved(taken), ..self }), Step::Io(Io::SaveState)))
    }

    fn launch(self, unit: &LogicalUnit) -> (State, Step) {
        // The thread that does the work may be at its first block before this command goes on.
        unit.watch().about_to_change(0..u64::MAX);
        unit.work().launch();
        let step = Step::Work { until_over: !self.immediate };
        (State::Begin(Begin { waiting: Waiting::Work, ..self }), step)
    }

    /// The command ends here. Work that goes on does so without it, and work that it has not begun does not begin.
    pub(super) fn abandon(self, unit: &LogicalUnit) {
        if let Waiting::Saved(taken) = self.waiting {
            withdraw(unit, taken);
        }
    }

    pub(super) fn resume(self, context: &Context<'_>, event: Event<'_>) -> Progress {
        let unit = context.unit();
        match self.waiting {
            Waiting::List => {
                let method = overwrite_method(unit, event.data_out(u32::MAX)?)?;
                self.with(context, method)
            }
            Waiting::Saved(taken) => match event.io(Direction::Write, unit) {
                Ok(_) => Ok(self.launch(unit)),
                Err(sense) => {
                    withdraw(unit, taken);
                    Err(sense)
                }
            },
            Waiting::Work => {
                event.io(Direction::Write, unit)?;
                match unit.work().occupation() {
                    // It begins behind the status.
                    Occupation::None | Occupation::Sanitizing | Occupation::Formatting => good(),
                    _ if self.immediate => good(),
                    _ => Err(failure(self.purpose)),
                }
            }
        }
    }
}

/// What was taken on after those states does not begin.
fn withdraw(unit: &LogicalUnit, taken: Taken) {
    let saved = unit.saved();
    let is_free = unit.work().withdraw(|section| {
        saved.set_section(Section::Work, section);
        // No state that is taken from now on has it.
        saved.may_be_stored_since(taken)
    });
    if is_free {
        saved.owe();
    }
}

fn failure(purpose: Purpose) -> SenseData {
    let code = match purpose {
        Purpose::Sanitize { .. } => AdditionalSense::SANITIZE_COMMAND_FAILED,
        Purpose::Format => AdditionalSense::FORMAT_COMMAND_FAILED,
    };
    SenseData::new(SenseKey::MediumError, code)
}

/// The OVERWRITE parameter list: INVERT, TEST, OVERWRITE COUNT, the pattern's length, the pattern.
fn overwrite_method(unit: &LogicalUnit, list: &[u8]) -> Result<Method, SenseData> {
    const INVERT: u8 = 0x80;
    const TEST: u8 = 0x60;
    let too_short = SenseData::illegal(AdditionalSense::PARAMETER_LIST_LENGTH_ERROR);
    let (&[flags, reserved, ..], pattern) =
        list.split_first_chunk::<{ HEADER_BYTES as usize }>().ok_or(too_short)?;
    let length = usize::from(be16(list, 2).unwrap_or(0));
    if flags & TEST != 0 {
        return Err(SenseData::invalid_parameter_bit(0, 6));
    }
    let passes = flags & 0x1f;
    if passes == 0 {
        return Err(SenseData::invalid_parameter_bit(0, 4));
    }
    if reserved != 0 {
        return Err(SenseData::invalid_parameter(1));
    }
    if length == 0 || length > unit.block_length_bytes() as usize {
        return Err(SenseData::invalid_parameter(2));
    }
    let pattern = pattern.get(..length).ok_or(too_short)?.to_vec();
    Ok(Method::Overwrite { pattern, passes, invert: flags & INVERT != 0 })
}
