//! REPORT IDENTIFYING INFORMATION and SET IDENTIFYING INFORMATION (SPC-4): what the unit's owner has written on it.
//!
//! It is kept in the unit's saved state. It has nothing to do with the unit's identity, which nobody can change.

use super::{Context, Progress, State, Step, parameter_data, save};
use crate::attention::UnitAttention;
use crate::bytes::{Cdb, be16, cdb32};
use crate::saved::Section;
use crate::sense::{AdditionalSense, SenseData};
use crate::task::Event;
use crate::unit::LogicalUnit;

/// IDENTIFYING INFORMATION TYPE: bytes, text, and the list of both.
const BYTES: u8 = 0;
const TEXT: u8 = 2;
const SUPPORTED: u8 = 127;

const BYTES_MAX: usize = 64;
const TEXT_BYTES_MAX: usize = 256;

fn length_max(kind: u8) -> Option<usize> {
    match kind {
        BYTES => Some(BYTES_MAX),
        TEXT => Some(TEXT_BYTES_MAX),
        _ => None,
    }
}

/// Both as they are saved: the length of the bytes in two bytes, the bytes, the text.
pub(crate) fn parse(saved: &[u8]) -> Option<(&[u8], &[u8])> {
    if saved.is_empty() {
        return Some((&[], &[]));
    }
    let length = usize::from(be16(saved, 0)?);
    let (bytes, text) = saved[2..].split_at_checked(length)?;
    (bytes.len() <= BYTES_MAX && is_text(text)).then_some((bytes, text))
}

/// UTF-8 that ends with a null character and has no other, or nothing.
fn is_text(text: &[u8]) -> bool {
    let ends_well = text.iter().position(|&byte| byte == 0).is_none_or(|at| at + 1 == text.len());
    let has_end = text.last().is_none_or(|&last| last == 0);
    text.len() <= TEXT_BYTES_MAX && ends_well && has_end && std::str::from_utf8(text).is_ok()
}

fn saved(unit: &LogicalUnit) -> Vec<u8> {
    unit.saved().section(Section::IdentifyingInformation).unwrap_or_default()
}

pub(super) fn report(context: &Context<'_>, cdb: &Cdb) -> Progress {
    let saved = saved(context.unit());
    let (bytes, text) = parse(&saved).unwrap_or_default();
    let body = match cdb[10] >> 1 {
        BYTES => bytes.to_vec(),
        TEXT => text.to_vec(),
        SUPPORTED => [(BYTES, BYTES_MAX), (TEXT, TEXT_BYTES_MAX)]
            .map(|(kind, length)| [[kind << 1, 0], (length as u16).to_be_bytes()].concat())
            .concat(),
        _ => return Err(SenseData::invalid_cdb_field(10, 7)),
    };
    let data = [&[0, 0][..], &(body.len() as u16).to_be_bytes(), &body].concat();
    parameter_data(data, cdb32::<6>(cdb))
}

pub(super) fn set(_: &Context<'_>, cdb: &Cdb) -> Progress {
    let (kind, length) = (cdb[10] >> 1, cdb32::<6>(cdb));
    let length_max = length_max(kind).ok_or(SenseData::invalid_cdb_field(10, 7))?;
    if length as usize > length_max {
        return Err(SenseData::invalid_cdb_field(6, 7));
    }
    let set = SetIdentifyingInformation { kind, length };
    if length == 0 {
        return Ok((State::SetIdentifyingInformation(set), Step::Alone));
    }
    Ok((State::SetIdentifyingInformation(set), Step::DataOutThenAlone(length)))
}

/// A SET IDENTIFYING INFORMATION that waits for its list, and to be alone, so that two do not undo each other.
#[derive(Debug)]
pub(crate) struct SetIdentifyingInformation {
    kind: u8,
    length: u32,
}

impl SetIdentifyingInformation {
    pub(super) fn resume(self, context: &Context<'_>, event: Event<'_>) -> Progress {
        let unit = context.unit();
        let list = event.data_out(self.length)?;
        if list.len() < self.length as usize {
            return Err(SenseData::illegal(AdditionalSense::PARAMETER_LIST_LENGTH_ERROR));
        }
        if self.kind == TEXT && !is_text(list) {
            return Err(SenseData::invalid_parameter(0));
        }
        let before = saved(unit);
        let (bytes, text) = parse(&before).unwrap_or_default();
        let (bytes, text) = if self.kind == TEXT { (bytes, list) } else { (list, text) };
        let section = if bytes.is_empty() && text.is_empty() {
            Vec::new()
        } else {
            [&(bytes.len() as u16).to_be_bytes()[..], bytes, text].concat()
        };
        unit.saved().set_section(Section::IdentifyingInformation, section);
        unit.establish_for_others(context.itl(), UnitAttention::IdentifyingInformationChanged);
        save(unit)
    }
}
