//! MODE SENSE and MODE SELECT (SPC-4).

use super::{Context, Progress, State, Step, good, parameter_data, save};
use crate::attention::UnitAttention;
use crate::bytes::{Cdb, cdb16};
use crate::codes::mode_page::{ALL_PAGES, ALL_SUBPAGES};
use crate::io::{Direction, Io};
use crate::mode::parameters::{Descriptor, HeaderForm, compose, parse};
use crate::mode::{PAGES, PageControl, page};
use crate::sense::{AdditionalSense, SenseData};
use crate::task::Event;
use crate::unit::LogicalUnit;

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
        _ if context.unit().saved().is_kept() => PageControl::Saved,
        _ => return Err(SenseData::illegal(AdditionalSense::SAVING_PARAMETERS_NOT_SUPPORTED)),
    };
    let unit = context.unit();
    let (code, subpage) = (cdb[2] & 0x3f, cdb[3]);
    let of_code = || PAGES.iter().filter(|id| code == ALL_PAGES || id.code == code);
    if of_code().all(|&id| page(id, control, unit).is_none()) {
        return Err(SenseData::invalid_cdb_field(2, 5));
    }
    let wanted = of_code().filter(|id| subpage == ALL_SUBPAGES || id.subpage == subpage);
    let pages: Vec<_> = wanted.filter_map(|&id| page(id, control, unit)).collect();
    // Neither one subpage of all pages nor a subpage that a page lacks can be asked for.
    if pages.is_empty() || code == ALL_PAGES && !matches!(subpage, 0 | ALL_SUBPAGES) {
        return Err(SenseData::invalid_cdb_field(3, 7));
    }
    let write_protected = context.path.write_protected();
    parameter_data(compose(unit, write_protected, form, descriptor, &pages), allocation_length)
}

pub(super) fn mode_select_6(context: &Context<'_>, cdb: &Cdb) -> Progress {
    mode_select(context, cdb, HeaderForm::Short, cdb[4].into())
}

pub(super) fn mode_select_10(context: &Context<'_>, cdb: &Cdb) -> Progress {
    mode_select(context, cdb, HeaderForm::Long, cdb16::<7>(cdb).into())
}

fn mode_select(context: &Context<'_>, cdb: &Cdb, form: HeaderForm, length_bytes: u32) -> Progress {
    let save = cdb[1] & SAVE_PAGES != 0;
    if save && !context.unit().saved().is_kept() {
        return Err(SenseData::invalid_cdb_field(1, 0));
    }
    if length_bytes == 0 {
        return good();
    }
    if cdb[1] & PAGE_FORMAT == 0 {
        return Err(SenseData::invalid_cdb_field(1, 4));
    }
    let select = ModeSelect { form, length_bytes, save, waiting: Waiting::List };
    Ok((State::ModeSelect(select), Step::DataOut(length_bytes)))
}

/// A MODE SELECT that waits for its list, or for the flush that ends write caching.
#[derive(Debug)]
pub(crate) struct ModeSelect {
    form: HeaderForm,
    length_bytes: u32,
    save: bool,
    waiting: Waiting,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Waiting {
    List,
    /// `turns_off`: its caching page asks for no cache, and so its initiator knows that there is none.
    Flush {
        turns_off: bool,
    },
}

impl ModeSelect {
    pub(super) fn resume(self, context: &Context<'_>, event: Event<'_>) -> Progress {
        match self.waiting {
            Waiting::List => self.list_came(context, event),
            Waiting::Flush { turns_off } => {
                let flushed = event.io(Direction::Write, context.unit());
                match flushed {
                    Ok(_) if turns_off => context.unit().settle_drain(context.itl()),
                    Ok(_) => {}
                    Err(_) => self.abandon(context.unit()),
                }
                flushed.and_then(|_| self.save_or_end(context))
            }
        }
    }

    /// The command ends here. The values that it has changed stay; what was cached, and is not surely stable, is still to become so.
    pub(super) fn abandon(&self, unit: &LogicalUnit) {
        if matches!(self.waiting, Waiting::Flush { .. }) {
            unit.owe_drain();
            if self.save {
                unit.saved().owe();
            }
        }
    }

    fn list_came(self, context: &Context<'_>, event: Event<'_>) -> Progress {
        let unit = context.unit();
        let list = event.data_out(self.length_bytes)?;
        if list.len() as u32 != self.length_bytes {
            return Err(SenseData::illegal(AdditionalSense::PARAMETER_LIST_LENGTH_ERROR));
        }
        let had_cache = unit.cache_may_be_dirty();
        let mut turns_off = false;
        let (before, after) = unit.change_mode(self.save, |current| {
            let selected = parse(unit, current, self.form, list)?;
            turns_off = selected.has_caching_page && !selected.values.flags.write_cache_enabled();
            Ok(selected)
        })?;
        if before != after {
            unit.establish_for_others(context.itl(), UnitAttention::ModeParametersChanged);
        }
        // From here on writes are stable one by one; what was cached before must become so too. A failed flush is told, and the cache
        // stays off, which is the safe side; it is there for who asks until the unit itself has emptied it.
        if had_cache && !after.flags.write_cache_enabled() {
            let select = ModeSelect { waiting: Waiting::Flush { turns_off }, ..self };
            return Ok((State::ModeSelect(select), Step::Io(Io::Flush)));
        }
        self.save_or_end(context)
    }

    fn save_or_end(self, context: &Context<'_>) -> Progress {
        if self.save { save(context.unit()) } else { good() }
    }
}
