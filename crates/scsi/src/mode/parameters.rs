//! The mode parameter list: header, block descriptor, pages (SPC-4, SBC-3).

use super::{ModeFlags, PageControl, flags_from, page, page_with};
use crate::bytes::{be16, be32, be64, saturate_u32};
use crate::sense::{AdditionalSense, SenseData};
use crate::unit::LogicalUnit;

/// The two forms of the header: MODE SENSE and SELECT (6) have four bytes, (10) have eight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HeaderForm {
    Short,
    Long,
}

/// The block descriptor, if any is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Descriptor {
    None,
    /// Eight bytes, 32-bit number of blocks.
    Short,
    /// Sixteen bytes, 64-bit number of blocks.
    Long,
}

/// The whole list for MODE SENSE, with its length field right. `write_protected` is what holds for who asks.
pub(crate) fn compose(
    unit: &LogicalUnit,
    write_protected: bool,
    form: HeaderForm,
    descriptor: Descriptor,
    pages: &[Vec<u8>],
) -> Vec<u8> {
    // WP of what is written to, and DPOFUA: both bits are honoured.
    let device_specific = u8::from(write_protected) << 7 | 0x10;
    let descriptor_bytes = compose_descriptor(unit, descriptor);
    let descriptor_length = descriptor_bytes.len() as u8;
    let mut list = match form {
        HeaderForm::Short => vec![0, 0, device_specific, descriptor_length],
        HeaderForm::Long => {
            let long_lba = u8::from(descriptor == Descriptor::Long);
            vec![0, 0, 0, device_specific, long_lba, 0, 0, descriptor_length]
        }
    };
    list.extend(descriptor_bytes);
    list.extend(pages.iter().flatten());
    match form {
        HeaderForm::Short => list[0] = (list.len() - 1) as u8,
        HeaderForm::Long => {
            let length = ((list.len() - 2) as u16).to_be_bytes();
            list[..2].copy_from_slice(&length);
        }
    }
    list
}

fn compose_descriptor(unit: &LogicalUnit, descriptor: Descriptor) -> Vec<u8> {
    let (blocks, block_length) = (unit.blocks(), unit.block_length_bytes().to_be_bytes());
    match descriptor {
        Descriptor::None => Vec::new(),
        // Byte 4 is reserved; the block length has three bytes.
        Descriptor::Short => [saturate_u32(blocks).to_be_bytes(), block_length].concat(),
        Descriptor::Long => [&blocks.to_be_bytes()[..], &[0; 4], &block_length].concat(),
    }
}

/// Checks a MODE SELECT parameter list against the `current` values and tells those it asks for. Nothing is changed here: a list that is
/// wrong anywhere changes nothing (SPC-4, MODE SELECT).
///
/// # Errors
/// PARAMETER LIST LENGTH ERROR where the list ends inside a part of it, INVALID FIELD IN PARAMETER LIST with a field
/// pointer where a value cannot be.
pub(crate) fn parse(
    unit: &LogicalUnit,
    current: ModeFlags,
    form: HeaderForm,
    list: &[u8],
) -> Result<ModeFlags, SenseData> {
    let too_short = SenseData::illegal(AdditionalSense::PARAMETER_LIST_LENGTH_ERROR);
    let (header_length, long_lba, descriptor_length) = match form {
        HeaderForm::Short => (4, false, list.get(3).map(|&length| u16::from(length))),
        HeaderForm::Long => (8, list.get(4).is_some_and(|byte| byte & 1 != 0), be16(list, 6)),
    };
    let descriptor_length = usize::from(descriptor_length.ok_or(too_short)?);
    let pages_at = header_length + descriptor_length;
    let descriptor = list.get(header_length..pages_at).ok_or(too_short)?;
    check_descriptor(unit, descriptor, long_lba, header_length)?;

    let mut flags = current;
    let mut at = pages_at;
    while let Some(&first) = list.get(at) {
        // PS is reserved here, SPF names a subpage, and there are none.
        let code = first & 0x3f;
        let page_now = if first & 0x40 == 0 { page_with(code, current) } else { None };
        let page_now = page_now.ok_or(SenseData::invalid_parameter(at as u16))?;
        let length = usize::from(*list.get(at + 1).ok_or(too_short)?) + 2;
        if length != page_now.len() {
            return Err(SenseData::invalid_parameter(at as u16 + 1));
        }
        let mut wanted = list.get(at..at + length).ok_or(too_short)?.to_vec();
        wanted[0] = code;
        let changeable = page(code, PageControl::Changeable, unit).unwrap_or_default();
        for (index, mask) in changeable.iter().enumerate().skip(2) {
            if (wanted[index] ^ page_now[index]) & !mask != 0 {
                return Err(SenseData::invalid_parameter((at + index) as u16));
            }
        }
        flags = flags_from(&wanted, flags);
        at += length;
    }
    Ok(flags)
}

/// The capacity and the block length cannot be changed: only the present values, or the number of blocks that means
/// "leave it" (SBC-3, block descriptor), are taken.
fn check_descriptor(unit: &LogicalUnit, bytes: &[u8], long_lba: bool, at: usize) -> Result<(), SenseData> {
    let (blocks, blocks_max, block_length, block_length_at) = match (bytes.len(), long_lba) {
        (0, _) => return Ok(()),
        (8, false) => {
            let length = be32(bytes, 4).map(|word| word & 0x00ff_ffff);
            (be32(bytes, 0).map(u64::from), u64::from(u32::MAX), length, 5)
        }
        (16, true) => (be64(bytes, 0), u64::MAX, be32(bytes, 12), 12),
        _ => return Err(SenseData::invalid_parameter(at as u16 - 1)),
    };
    if !blocks.is_some_and(|blocks| blocks == 0 || blocks == unit.blocks() || blocks == blocks_max) {
        return Err(SenseData::invalid_parameter(at as u16));
    }
    if block_length != Some(unit.block_length_bytes()) {
        return Err(SenseData::invalid_parameter((at + block_length_at) as u16));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mode::PAGES;
    use crate::unit::LogicalUnitConfig;
    use crate::unit::tests::{config, unit_of};

    fn unit() -> LogicalUnit {
        unit_of(config())
    }

    fn parse(unit: &LogicalUnit, form: HeaderForm, list: &[u8]) -> Result<ModeFlags, SenseData> {
        super::parse(unit, unit.mode(), form, list)
    }

    fn all_pages(unit: &LogicalUnit) -> Vec<Vec<u8>> {
        PAGES.iter().map(|&code| page(code, PageControl::Current, unit).unwrap()).collect()
    }

    #[test]
    fn what_sense_tells_select_takes() {
        let unit = unit();
        for form in [HeaderForm::Short, HeaderForm::Long] {
            for descriptor in [Descriptor::None, Descriptor::Short, Descriptor::Long] {
                if (form, descriptor) == (HeaderForm::Short, Descriptor::Long) {
                    continue;
                }
                let list = compose(&unit, false, form, descriptor, &all_pages(&unit));
                assert_eq!(parse(&unit, form, &list), Ok(unit.mode()), "{form:?} {descriptor:?}");
            }
        }
    }

    #[test]
    fn header_fields() {
        let unit = unit();
        let short = compose(&unit, false, HeaderForm::Short, Descriptor::Short, &[]);
        assert_eq!(short, [11, 0, 0x10, 8, 0, 0, 8, 0, 0, 0, 2, 0]);
        let long = compose(&unit, false, HeaderForm::Long, Descriptor::Long, &[]);
        assert_eq!(long[..8], [0, 22, 0, 0x10, 1, 0, 0, 16]);
        assert_eq!(long[8..], [0, 0, 0, 0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0, 2, 0]);
        let protected = unit_of(LogicalUnitConfig { read_only: true, ..config() });
        assert_eq!(
            compose(&protected, protected.write_protected(), HeaderForm::Short, Descriptor::None, &[]),
            [3, 0, 0x90, 0]
        );
    }

    #[test]
    fn truncated_lists_change_nothing() {
        let unit = unit();
        let list = compose(&unit, false, HeaderForm::Short, Descriptor::Short, &all_pages(&unit));
        let whole = [4, 12, 32, 44, list.len()];
        for length in 0..list.len() {
            let result = parse(&unit, HeaderForm::Short, &list[..length]);
            if whole.contains(&length) && length != 4 {
                assert_eq!(result, Ok(unit.mode()), "{length}");
            } else {
                assert_eq!(
                    result,
                    Err(SenseData::illegal(AdditionalSense::PARAMETER_LIST_LENGTH_ERROR)),
                    "{length}"
                );
            }
        }
    }

    #[test]
    fn values_that_cannot_be_changed_are_pointed_at() {
        let unit = unit();
        let list = compose(&unit, false, HeaderForm::Short, Descriptor::Short, &all_pages(&unit));
        let with = |at: usize, value: u8| {
            let mut changed = list.clone();
            changed[at] = value;
            parse(&unit, HeaderForm::Short, &changed)
        };
        assert_eq!(with(12 + 2, 0), Ok(ModeFlags::NONE), "WCE");
        assert_eq!(with(12 + 3, 1), Err(SenseData::invalid_parameter(15)), "retention priority");
        assert_eq!(with(12 + 1, 0x11), Err(SenseData::invalid_parameter(13)), "page length");
        assert_eq!(with(12, 0x48), Err(SenseData::invalid_parameter(12)), "subpage format");
        assert_eq!(with(12, 0x01), Err(SenseData::invalid_parameter(12)), "no such page");
        assert_eq!(with(4 + 3, 9), Err(SenseData::invalid_parameter(4)), "number of blocks");
        assert_eq!(with(4 + 6, 4), Err(SenseData::invalid_parameter(9)), "block length");
        assert_eq!(with(12, 0x88), Ok(unit.mode()), "PS is reserved");
    }
}
