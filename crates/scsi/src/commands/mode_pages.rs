//! MODE SENSE and MODE SELECT (SPC-4).

use super::{Context, Progress, State, Step, good, parameter_data};
use crate::attention::UnitAttention;
use crate::bytes::{Cdb, cdb16};
use crate::io::{Direction, Io};
use crate::mode::parameters::{Descriptor, HeaderForm, compose, parse};
use crate::mode::{PAGES, PageControl, page};
use crate::sense::{AdditionalSense, SenseData};
use crate::task::Event;

const ALL_PAGES: u8 = 0x3f;
const ALL_SUBPAGES: u8 = 0xff;
const DISABLE_BLOCK_DESCRIPTORS: u8 = 0x08;
const LONG_LBA_ACCEPTED: u8 = 0x10;
/// PF: the pages have the format of the standard. Without it their format would be the vendor's.
const PAGE_FORMAT: u8 = 0x10;
const SAVE_PAGES: u8 = 0x01;

pub(super) fn mode_sense_6(context: &Context<'_>, cdb: &Cdb) -> Progress {
    let descriptor =
        if cdb[1] & DISABLE_BLOCK_DESCRIPTORS != 0 { Descriptor::None } else { Descriptor::Short };
    mode_sense(context, cdb, HeaderForm::Short, descriptor, cdb[4].into())
}

pub(super) fn mode_sense_10(context: &Context<'_>, cdb: &Cdb) -> Progress {
    let descriptor = if cdb[1] & DISABLE_BLOCK_DESCRIPTORS != 0 {
        Descriptor::None
    } else if cdb[1] & LONG_LBA_ACCEPTED != 0 {
        Descriptor::Long
    } else {
        Descriptor::Short
    };
    mode_sense(context, cdb, HeaderForm::Long, descriptor, cdb16::<7>(cdb).into())
}

fn mode_sense(
    context: &Context<'_>,
    cdb: &Cdb,
    form: HeaderForm,
    descriptor: Descriptor,
    allocation_length: u32,
) -> Progress {
    let control = match cdb[2] >> 6 {
        0 => PageControl::Current,
        1 => PageControl::Changeable,
        2 => PageControl::Default,
        _ => return Err(SenseData::illegal(AdditionalSense::SAVING_PARAMETERS_NOT_SUPPORTED)),
    };
    // No page has subpages, so "all subpages" is the page itself.
    if !matches!(cdb[3], 0 | ALL_SUBPAGES) {
        return Err(SenseData::invalid_cdb_field(3, 7));
    }
    let unit = context.unit();
    let pages: Vec<_> = match cdb[2] & 0x3f {
        ALL_PAGES => PAGES.iter().filter_map(|&code| page(code, control, unit)).collect(),
        code => vec![page(code, control, unit).ok_or(SenseData::invalid_cdb_field(2, 5))?],
    };
    let write_protected = context.path.write_protected();
    parameter_data(compose(unit, write_protected, form, descriptor, &pages), allocation_length)
}

pub(super) fn mode_select_6(_: &Context<'_>, cdb: &Cdb) -> Progress {
    mode_select(cdb, HeaderForm::Short, cdb[4].into())
}

pub(super) fn mode_select_10(_: &Context<'_>, cdb: &Cdb) -> Progress {
    mode_select(cdb, HeaderForm::Long, cdb16::<7>(cdb).into())
}

fn mode_select(cdb: &Cdb, form: HeaderForm, length_bytes: u32) -> Progress {
    if cdb[1] & SAVE_PAGES != 0 {
        return Err(SenseData::invalid_cdb_field(1, 0));
    }
    if length_bytes == 0 {
        return good();
    }
    if cdb[1] & PAGE_FORMAT == 0 {
        return Err(SenseData::invalid_cdb_field(1, 4));
    }
    Ok((State::ModeSelect(ModeSelect { form, length_bytes, flushing: false }), Step::DataOut(length_bytes)))
}

/// A MODE SELECT that waits for its list, or for the flush that ends write caching.
#[derive(Debug)]
pub(crate) struct ModeSelect {
    form: HeaderForm,
    length_bytes: u32,
    flushing: bool,
}

impl ModeSelect {
    pub(super) fn resume(self, context: &Context<'_>, event: Event<'_>) -> Progress {
        let unit = context.unit();
        if self.flushing {
            event.io(Direction::Write, unit)?;
            return good();
        }
        let list = event.data_out(self.length_bytes)?;
        if list.len() as u32 != self.length_bytes {
            return Err(SenseData::illegal(AdditionalSense::PARAMETER_LIST_LENGTH_ERROR));
        }
        let (current, wanted) = loop {
            let current = unit.mode();
            let wanted = parse(unit, current, self.form, list)?;
            if wanted == current {
                return good();
            }
            if unit.change_mode(current, wanted) {
                break (current, wanted);
            }
        };
        unit.establish_for_others(context.itl(), UnitAttention::ModeParametersChanged);
        // From here on writes are stable one by one; what was cached before must become so too. A failed flush is told,
        // and the cache stays off, which is the safe side.
        if current.write_cache_enabled() && !wanted.write_cache_enabled() && !unit.config().read_only {
            return Ok((State::ModeSelect(ModeSelect { flushing: true, ..self }), Step::Io(Io::Flush)));
        }
        good()
    }
}
