//! The mode parameter list: header, block descriptor, pages (SPC-4, SBC-3).

use super::{
    CACHING, ModeValues, PAGES, PageControl, PageId, Selected, header_bytes, page, page_with, reserved_value,
    values_from,
};
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
    current: &ModeValues,
    form: HeaderForm,
    list: &[u8],
) -> Result<Selected, SenseData> {
    let too_short = SenseData::illegal(AdditionalSense::PARAMETER_LIST_LENGTH_ERROR);
    let (header_length, long_lba, descriptor_length) = match form {
        HeaderForm::Short => (4, false, list.get(3).map(|&length| u16::from(length))),
        HeaderForm::Long => (8, list.get(4).is_some_and(|byte| byte & 1 != 0), be16(list, 6)),
    };
    let descriptor_length = usize::from(descriptor_length.ok_or(too_short)?);
    let pages_at = header_length + descriptor_length;
    let descriptor = list.get(header_length..pages_at).ok_or(too_short)?;
    check_descriptor(unit, descriptor, long_lba, header_length)?;

    let mut selected = Selected { values: *current, has_caching_page: false };
    let mut at = pages_at;
    while at < list.len() {
        let id = page_id(list, at)?;
        let page_now = page_with(id, current, unit).ok_or(SenseData::invalid_parameter(at as u16))?;
        let header = header_bytes(id);
        let told = match header {
            2 => list.get(at + 1).map(|&length| usize::from(length)),
            _ => be16(list, at + 2).map(usize::from),
        };
        if told.ok_or(too_short)? != page_now.len() - header {
            return Err(SenseData::invalid_parameter((at + header - if header == 2 { 1 } else { 2 }) as u16));
        }
        let wanted = list.get(at..at + page_now.len()).ok_or(too_short)?;
        let changeable = page(id, PageControl::Changeable, unit).unwrap_or_default();
        for index in header..page_now.len() {
            let fixed = (wanted[index] ^ page_now[index]) & !changeable.get(index).copied().unwrap_or(0);
            if fixed != 0 {
                let bit = 7 - fixed.leading_zeros() as u8;
                return Err(SenseData::invalid_parameter_bit((at + index) as u16, bit));
            }
        }
        if let Some((byte, bit)) = reserved_value(id, wanted) {
            return Err(SenseData::invalid_parameter_bit((at + byte) as u16, bit));
        }
        selected.values = values_from(id, wanted, selected.values);
        selected.has_caching_page |= id == CACHING;
        at += page_now.len();
    }
    Ok(selected)
}

/// Which page begins at byte `at` of the list. PS is reserved there; SPF says that a subpage code follows.
fn page_id(list: &[u8], at: usize) -> Result<PageId, SenseData> {
    const SUBPAGE_FORMAT: u8 = 0x40;
    let too_short = SenseData::illegal(AdditionalSense::PARAMETER_LIST_LENGTH_ERROR);
    let first = *list.get(at).ok_or(too_short)?;
    let has_subpage = first & SUBPAGE_FORMAT != 0;
    let subpage = if has_subpage { *list.get(at + 1).ok_or(too_short)? } else { 0 };
    let id = PageId { code: first & 0x3f, subpage };
    // The short format names no page in the long one.
    if (has_subpage && subpage == 0) || !PAGES.contains(&id) {
        return Err(SenseData::invalid_parameter(at as u16));
    }
    Ok(id)
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
    use crate::mode::ModeFlags;
    use crate::space::Space;
    use crate::unit::LogicalUnitConfig;
    use crate::unit::tests::{config, unit_of};

    /// A unit that has all pages.
    fn unit() -> LogicalUnit {
        let unit = unit_of(config());
        unit.note_space(Space { used_bytes: 0, available_bytes: 0 });
        unit
    }

    fn parse(unit: &LogicalUnit, form: HeaderForm, list: &[u8]) -> Result<ModeValues, SenseData> {
        super::parse(unit, &unit.mode_values(), form, list).map(|selected| selected.values)
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
                assert_eq!(parse(&unit, form, &list), Ok(unit.mode_values()), "{form:?} {descriptor:?}");
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
        let whole = [4, 12, 24, 44, 56, 88, 100, list.len()];
        for length in 0..list.len() {
            let result = parse(&unit, HeaderForm::Short, &list[..length]);
            if whole.contains(&length) && length != 4 {
                assert_eq!(result, Ok(unit.mode_values()), "{length}");
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
        // The pages begin at 12, 24, 44, 56, 88 and 100.
        let without_cache = ModeValues { flags: ModeFlags::new(false), ..unit.mode_values() };
        assert_eq!(with(24 + 2, 0), Ok(without_cache), "WCE");
        assert_eq!(with(24 + 3, 1), Err(SenseData::invalid_parameter_bit(27, 0)), "retention priority");
        assert_eq!(with(24 + 1, 0x11), Err(SenseData::invalid_parameter(25)), "page length");
        assert_eq!(with(24, 0x48), Err(SenseData::invalid_parameter(24)), "no such subpage");
        assert_eq!(with(24, 0x03), Err(SenseData::invalid_parameter(24)), "no such page");
        assert_eq!(with(44 + 4, 0x10), Err(SenseData::invalid_parameter_bit(48, 5)), "UA_INTLCK_CTRL 01b");
        assert_eq!(with(44 + 3, 0x14), Err(SenseData::invalid_parameter_bit(47, 2)), "QERR 10b");
        assert_eq!(
            with(44 + 3, 0x20),
            Err(SenseData::invalid_parameter_bit(47, 5)),
            "queue algorithm modifier"
        );
        assert_eq!(with(56 + 1, 0x02), Err(SenseData::invalid_parameter(56)), "no such subpage");
        assert_eq!(
            with(56 + 1, 0x00),
            Err(SenseData::invalid_parameter(56)),
            "a short page in the long format"
        );
        assert_eq!(with(56 + 3, 0x1d), Err(SenseData::invalid_parameter(58)), "subpage length");
        assert_eq!(with(100 + 17, 3), Err(SenseData::invalid_parameter_bit(117, 1)), "threshold resource");
        assert_eq!(with(4 + 3, 9), Err(SenseData::invalid_parameter(4)), "number of blocks");
        assert_eq!(with(4 + 6, 4), Err(SenseData::invalid_parameter(9)), "block length");
        assert_eq!(with(24, 0x88), Ok(unit.mode_values()), "PS is reserved");
        let armed = with(100 + 16, 0x80).unwrap();
        assert!(armed.thresholds[0].enabled && !armed.thresholds[1].enabled);
    }
}
