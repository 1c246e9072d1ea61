//! FORMAT UNIT (SBC-3). What is done to the medium, and what other commands get meanwhile, is in [`crate::work`].
//!
//! A volume has no defects, so defect lists are empty or refused, and certification is nothing to be disabled.

use super::sanitize::{Begin, Waiting};
use super::{Context, Progress, State, Step};
use crate::bytes::{Cdb, be16, be32};
use crate::sense::{AdditionalSense, SenseData};
use crate::task::Event;
use crate::unit::LogicalUnit;
use crate::work::{Method, Purpose};

const LONG_LIST: u8 = 0x20;
const FORMAT_DATA: u8 = 0x10;

/// Long header, pattern descriptor: what comes before a pattern of at most a block.
const LIST_BYTES_BEFORE_PATTERN: u32 = 12;

pub(super) fn format_unit(context: &Context<'_>, cdb: &Cdb) -> Progress {
    let (information, usage) = format_fields(context.unit());
    if cdb[1] >> 6 != information || cdb[1] & FORMAT_DATA == 0 && usage != 0 {
        // Another type of protection is another volume. Type 3 needs a list to ask for.
        return Err(SenseData::invalid_cdb_field(1, if cdb[1] >> 6 == information { 4 } else { 7 }));
    }
    if cdb[1] & FORMAT_DATA == 0 {
        // Nothing else of the byte means anything without a list.
        if cdb[1] & 0x2f != 0 {
            return Err(SenseData::invalid_cdb_field(1, 7 - (cdb[1] & 0x2f).leading_zeros() as u8));
        }
        return Ok((State::Deferred { handler: format_without_list, cdb: *cdb }, Step::Alone));
    }
    // The CDB does not tell how long the list is; the initiator does.
    let length_max = LIST_BYTES_BEFORE_PATTERN + context.unit().block_length_bytes();
    let length_bytes = context.announced_bytes.map_or(length_max, |bytes| bytes.min(length_max));
    let form = if cdb[1] & LONG_LIST != 0 { Form::Long } else { Form::Short };
    if length_bytes < form.header_bytes() as u32 {
        return Err(SenseData::illegal(AdditionalSense::PARAMETER_LIST_LENGTH_ERROR));
    }
    let begin = Begin { purpose: Purpose::Format, immediate: false, waiting: Waiting::List };
    Ok((State::Format(Format { form, begin }), Step::DataOut(length_bytes)))
}

/// FMTPINFO and PROTECTION FIELD USAGE of the protection that the unit has. A volume is created with it or without, so
/// that formatting changes nothing about it: those who want another type hear so.
fn format_fields(unit: &LogicalUnit) -> (u8, u8) {
    unit.protection().map_or((0, 0), |protection| protection.kind.format_fields())
}

/// FORMAT UNIT without a parameter list, once no other command is at the medium.
fn format_without_list(context: &Context<'_>, _: &Cdb) -> Progress {
    let begin = Begin { purpose: Purpose::Format, immediate: false, waiting: Waiting::List };
    begin.with(context, default_method())
}

/// Zeros, whose space is given back where that is possible.
fn default_method() -> Method {
    Method::Erase
}

/// A FORMAT UNIT that waits for its parameter list.
#[derive(Debug)]
pub(crate) struct Format {
    form: Form,
    begin: Begin,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    Short,
    Long,
}

impl Form {
    fn header_bytes(self) -> usize {
        match self {
            Form::Short => 4,
            Form::Long => 8,
        }
    }
}

impl Format {
    pub(super) fn resume(self, context: &Context<'_>, event: Event<'_>) -> Progress {
        let (method, immediate) = parse(context.unit(), self.form, event.data_out(u32::MAX)?)?;
        Begin { immediate, ..self.begin }.with(context, method)
    }
}

/// FOV: the other options mean what they say.
const OPTIONS_VALID: u8 = 0x80;
const DISABLE_PRIMARY: u8 = 0x40;
const STOP_FORMAT: u8 = 0x10;
const INITIALIZATION_PATTERN: u8 = 0x08;
const IMMEDIATE: u8 = 0x02;

fn parse(unit: &LogicalUnit, form: Form, list: &[u8]) -> Result<(Method, bool), SenseData> {
    let too_short = SenseData::illegal(AdditionalSense::PARAMETER_LIST_LENGTH_ERROR);
    let (header, rest) = list.split_at_checked(form.header_bytes()).ok_or(too_short)?;
    let options = header[1];
    let wrong = header[0] ^ format_fields(unit).1;
    if wrong != 0 {
        // PROTECTION FIELD USAGE has three bits.
        return Err(SenseData::invalid_parameter_bit(0, (7 - wrong.leading_zeros() as u8).max(2)));
    }
    let refused = if options & OPTIONS_VALID == 0 { 0x7d } else { DISABLE_PRIMARY | STOP_FORMAT | 0x05 };
    if options & refused != 0 {
        return Err(SenseData::invalid_parameter_bit(1, 7 - (options & refused).leading_zeros() as u8));
    }
    if form == Form::Long && header[3] != 0 {
        return Err(SenseData::invalid_parameter(3));
    }
    let (defects, defects_at) = match form {
        Form::Short => (be16(header, 2).map(u32::from), 2),
        Form::Long => (be32(header, 4), 4),
    };
    if defects != Some(0) {
        return Err(SenseData::invalid_parameter(defects_at));
    }
    let method = if options & INITIALIZATION_PATTERN != 0 {
        pattern_method(unit, rest, header.len() as u16)?
    } else {
        default_method()
    };
    Ok((method, options & IMMEDIATE != 0))
}

/// The initialization pattern descriptor, which begins at byte `at` of the list.
fn pattern_method(unit: &LogicalUnit, bytes: &[u8], at: u16) -> Result<Method, SenseData> {
    const DEFAULT: u8 = 0;
    const REPEAT: u8 = 1;
    let too_short = SenseData::illegal(AdditionalSense::PARAMETER_LIST_LENGTH_ERROR);
    let (&[modifiers, pattern_type, ..], pattern) = bytes.split_first_chunk::<4>().ok_or(too_short)?;
    let length = usize::from(be16(bytes, 2).unwrap_or(0));
    if modifiers != 0 {
        return Err(SenseData::invalid_parameter_bit(at, 7 - modifiers.leading_zeros() as u8));
    }
    match pattern_type {
        DEFAULT if length == 0 => Ok(default_method()),
        REPEAT if (1..=unit.block_length_bytes() as usize).contains(&length) => {
            let pattern = pattern.get(..length).ok_or(too_short)?.to_vec();
            Ok(Method::Overwrite { pattern, passes: 1, invert: false })
        }
        DEFAULT | REPEAT => Err(SenseData::invalid_parameter(at + 2)),
        _ => Err(SenseData::invalid_parameter(at + 1)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::unit::tests::{config, unit_of};

    fn method(form: Form, list: &[u8]) -> Result<(Method, bool), SenseData> {
        parse(&unit_of(config()), form, list)
    }

    fn pattern(bytes: &[u8]) -> Method {
        Method::Overwrite { pattern: bytes.to_vec(), passes: 1, invert: false }
    }

    #[test]
    fn lists_of_both_forms() {
        assert_eq!(method(Form::Short, &[0, 0, 0, 0]), Ok((Method::Erase, false)));
        assert_eq!(method(Form::Short, &[0, 0x82, 0, 0]), Ok((Method::Erase, true)));
        assert_eq!(method(Form::Short, &[0, 0xa0, 0, 0]), Ok((Method::Erase, false)), "DCRT");
        assert_eq!(method(Form::Long, &[0; 8]), Ok((Method::Erase, false)));
        assert_eq!(method(Form::Short, &[0, 0x88, 0, 0, 0, 0, 0, 0]), Ok((Method::Erase, false)));
        let short = [0, 0x88, 0, 0, 0, 1, 0, 2, 0xab, 0xcd, 9];
        assert_eq!(method(Form::Short, &short), Ok((pattern(&[0xab, 0xcd]), false)));
        let long = [0, 0x8a, 0, 0, 0, 0, 0, 0, 0, 1, 0, 1, 0xab];
        assert_eq!(method(Form::Long, &long), Ok((pattern(&[0xab]), true)));
    }

    #[test]
    fn what_is_not_offered_is_pointed_at() {
        let bit = |byte, bit| Err(SenseData::invalid_parameter_bit(byte, bit));
        assert_eq!(method(Form::Short, &[1, 0, 0, 0]), bit(0, 2), "PROTECTION FIELD USAGE");
        assert_eq!(method(Form::Short, &[0, 0x20, 0, 0]), bit(1, 5), "DCRT without FOV");
        assert_eq!(method(Form::Short, &[0, 0xc0, 0, 0]), bit(1, 6), "DPRY");
        assert_eq!(method(Form::Short, &[0, 0x90, 0, 0]), bit(1, 4), "STPF");
        assert_eq!(method(Form::Short, &[0, 0, 0, 8]), Err(SenseData::invalid_parameter(2)), "defects");
        assert_eq!(method(Form::Long, &[0, 0, 0, 1, 0, 0, 0, 0]), Err(SenseData::invalid_parameter(3)));
        assert_eq!(method(Form::Long, &[0, 0, 0, 0, 0, 0, 0, 8]), Err(SenseData::invalid_parameter(4)));
        assert_eq!(method(Form::Short, &[0, 0x88, 0, 0, 0x20, 0, 0, 0]), bit(4, 5), "SI");
        assert_eq!(method(Form::Short, &[0, 0x88, 0, 0, 0, 2, 0, 0]), Err(SenseData::invalid_parameter(5)));
        for length in [0, 513u16] {
            let [high, low] = length.to_be_bytes();
            let list = [0, 0x88, 0, 0, 0, 1, high, low];
            assert_eq!(method(Form::Short, &list), Err(SenseData::invalid_parameter(6)), "{length}");
        }
        let too_short = Err(SenseData::illegal(AdditionalSense::PARAMETER_LIST_LENGTH_ERROR));
        assert_eq!(method(Form::Short, &[0, 0, 0]), too_short);
        assert_eq!(method(Form::Short, &[0, 0x88, 0, 0, 0, 1]), too_short);
        assert_eq!(method(Form::Short, &[0, 0x88, 0, 0, 0, 1, 0, 2, 0xab]), too_short);
    }
}
