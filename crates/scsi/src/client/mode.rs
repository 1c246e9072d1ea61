//! MODE SENSE and MODE SELECT: what can be set on a unit (SPC-4, SBC-3).

use super::answer::{Fields, Malformed};
use super::command::{Allocation, Command, DoesNotFit, Query, Transfer};
use crate::codes::{mode_page, opcode};
pub use crate::mode::PageControl;

/// The most pages that are read of one answer: one byte could tell of two each.
const PAGES_MAX: usize = 512;

/// A mode page as it came: its bytes can be changed and sent back with MODE SELECT.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModePage {
    /// PAGE CODE
    pub code: u8,
    /// SUBPAGE CODE; 0 in the short format.
    pub subpage: u8,
    /// PS: the target can save it.
    pub savable: bool,
    /// The whole page with its header of two or four bytes.
    pub bytes: Vec<u8>,
}

impl ModePage {
    /// The bit `mask` of byte `at`, counted from the start of the page; false behind its end.
    pub fn bit(&self, at: usize, mask: u8) -> bool {
        self.bytes.get(at).is_some_and(|byte| byte & mask != 0)
    }

    /// Sets or clears a bit; false if the page has no such byte.
    pub fn set_bit(&mut self, at: usize, mask: u8, value: bool) -> bool {
        let Some(byte) = self.bytes.get_mut(at) else { return false };
        *byte = if value { *byte | mask } else { *byte & !mask };
        true
    }
}

/// What MODE SENSE tells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModeParameters {
    /// WP: the medium cannot be written by this initiator.
    pub write_protected: bool,
    /// DPOFUA: both bits of READ and WRITE are honoured.
    pub dpo_fua: bool,
    /// Number of blocks and block length of the block descriptor, if one came.
    pub block_descriptor: Option<(u64, u32)>,
    /// The pages, in the order in which they came.
    pub pages: Vec<ModePage>,
}

impl ModeParameters {
    /// A page, if it came.
    pub fn page(&self, (code, subpage): (u8, u8)) -> Option<&ModePage> {
        self.pages.iter().find(|page| (page.code, page.subpage) == (code, subpage))
    }

    /// WCE of the caching page: writes may be answered before they are stable. `None`: the page did not come.
    pub fn write_cache_enabled(&self) -> Option<bool> {
        self.page(CACHING).map(|page| page.bit(2, 0x04))
    }

    /// SWP of the control page: the unit was told to refuse writes.
    pub fn software_write_protect(&self) -> Option<bool> {
        self.page(CONTROL).map(|page| page.bit(4, 0x08))
    }

    /// D_SENSE of the control page: sense data comes in descriptor format.
    pub fn descriptor_sense(&self) -> Option<bool> {
        self.page(CONTROL).map(|page| page.bit(2, 0x04))
    }
}

/// Page and subpage of the caching page.
pub const CACHING: (u8, u8) = mode_page::CACHING;
/// Page and subpage of the control page.
pub const CONTROL: (u8, u8) = mode_page::CONTROL;
/// All pages, without subpages.
pub const ALL: (u8, u8) = (mode_page::ALL_PAGES, 0);
/// All pages with all subpages.
pub const ALL_WITH_SUBPAGES: (u8, u8) = (mode_page::ALL_PAGES, mode_page::ALL_SUBPAGES);

/// Which CDB, and with it which header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ModeForm {
    /// Six bytes: at most 255 bytes of parameters. What old targets know.
    Six,
    /// Ten bytes.
    Ten,
}

/// MODE SENSE of a page, with the block descriptor (the long one, if the form can tell it).
pub fn mode_sense(form: ModeForm, (code, subpage): (u8, u8), control: PageControl) -> Query<ModeParameters> {
    let (opcode, allocation) = match form {
        ModeForm::Six => (opcode::MODE_SENSE_6, Allocation { at: 4, width: 1 }),
        ModeForm::Ten => (opcode::MODE_SENSE_10, Allocation { at: 7, width: 2 }),
    };
    // LLBAA
    let command = Command::new(opcode).flag(1, 0x10, form == ModeForm::Ten);
    let command = command.bits(2, (control as u8) << 6 | code & 0x3f).bits(3, subpage);
    let asked = if form == ModeForm::Six { 0xff } else { 1024 };
    Query::new(command, allocation, asked, decode)
}

fn decode(command: &Command, data: &[u8]) -> Result<ModeParameters, Malformed> {
    if command.cdb().len() == 6 {
        let fields = Fields::new("MODE SENSE(6)", data);
        let told = usize::from(fields.u8(0, "MODE DATA LENGTH")?) + 1;
        let fields = fields.part(0, told, "MODE DATA LENGTH")?;
        let descriptor = usize::from(fields.u8(3, "BLOCK DESCRIPTOR LENGTH")?);
        return parameters(fields, fields.u8_told(2), 4, descriptor, false);
    }
    let fields = Fields::new("MODE SENSE(10)", data);
    let told = usize::from(fields.be16(0, "MODE DATA LENGTH")?) + 2;
    let fields = fields.part(0, told, "MODE DATA LENGTH")?;
    let descriptor = usize::from(fields.be16(6, "BLOCK DESCRIPTOR LENGTH")?);
    parameters(fields, fields.u8_told(3), 8, descriptor, fields.bit_told(4, 0x01))
}

fn parameters(
    fields: Fields<'_>,
    device_specific: u8,
    header: usize,
    descriptor_length: usize,
    long_lba: bool,
) -> Result<ModeParameters, Malformed> {
    let descriptor = fields.part(header, descriptor_length, "the block descriptor")?;
    let block_descriptor = match (descriptor_length, long_lba) {
        (0, _) => None,
        (16.., true) => Some((descriptor.be64_told(0), descriptor.be32_told(12))),
        (8.., false) => Some((descriptor.be32_told(0).into(), descriptor.be32_told(4) & 0x00ff_ffff)),
        _ => return Err(fields.wrong("BLOCK DESCRIPTOR LENGTH", "no block descriptor is so short")),
    };
    let (_, mut rest) = fields.split(header + descriptor_length, "the block descriptor")?;
    let mut pages = Vec::new();
    while !rest.is_empty() && pages.len() < PAGES_MAX {
        let first = rest.u8(0, "PAGE CODE")?;
        let is_long = first & 0x40 != 0;
        let length = if is_long {
            usize::from(rest.be16(2, "PAGE LENGTH")?) + 4
        } else {
            usize::from(rest.u8(1, "PAGE LENGTH")?) + 2
        };
        let (page, after) = rest.split(length, "the mode page")?;
        pages.push(ModePage {
            code: first & 0x3f,
            subpage: if is_long { page.u8_told(1) } else { 0 },
            savable: first & 0x80 != 0,
            bytes: page.bytes().to_vec(),
        });
        rest = after;
    }
    Ok(ModeParameters {
        write_protected: device_specific & 0x80 != 0,
        dpo_fua: device_specific & 0x10 != 0,
        block_descriptor,
        pages,
    })
}

/// MODE SELECT of whole pages; with `save` they hold after a restart too.
///
/// # Errors
/// The pages do not fit the form.
pub fn mode_select(form: ModeForm, pages: &[ModePage], save: bool) -> Result<Command, DoesNotFit> {
    let (opcode, header): (u8, &[u8]) = match form {
        ModeForm::Six => (opcode::MODE_SELECT_6, &[0; 4]),
        ModeForm::Ten => (opcode::MODE_SELECT_10, &[0; 8]),
    };
    let mut list = header.to_vec();
    for page in pages {
        let start = list.len();
        list.extend(&page.bytes);
        // PS is reserved on this way.
        if let Some(first) = list.get_mut(start) {
            *first &= 0x7f;
        }
    }
    let too_long = DoesNotFit { field: "PARAMETER LIST LENGTH" };
    // PF: the pages have the standard's format.
    let command = Command::new(opcode).bits(1, 0x10).flag(1, 0x01, save);
    let command = match form {
        ModeForm::Six => command.bits(4, u8::try_from(list.len()).map_err(|_| too_long)?),
        ModeForm::Ten => command.field(7, u16::try_from(list.len()).map_err(|_| too_long)?.to_be_bytes()),
    };
    Ok(command.transferring(Transfer::List(list)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: [u8; 4] = [0x88, 2, 0x04, 0];
    const SUBPAGE: [u8; 6] = [0x4a, 0x01, 0, 2, 7, 8];

    #[test]
    fn both_forms() {
        let six = mode_sense(ModeForm::Six, CACHING, PageControl::Current);
        assert_eq!(six.command().cdb(), [0x1a, 0, 0x08, 0, 255, 0]);
        let data = [&[3 + 8 + 4 + 6, 0, 0x90, 8, 0, 0, 8, 0, 0, 0, 2, 0][..], &PAGE, &SUBPAGE].concat();
        let told = six.decode(&data).unwrap();
        assert!(told.write_protected && told.dpo_fua);
        assert_eq!(told.block_descriptor, Some((2048, 512)));
        assert_eq!(told.write_cache_enabled(), Some(true));
        assert!(told.page(CACHING).unwrap().savable);
        assert_eq!(told.page((0x0a, 1)).unwrap().bytes, SUBPAGE);
        assert_eq!((told.page(CONTROL), told.descriptor_sense()), (None, None));

        let ten = mode_sense(ModeForm::Ten, ALL, PageControl::Saved);
        assert_eq!(ten.command().cdb(), [0x5a, 0x10, 0xff, 0, 0, 0, 0, 4, 0, 0]);
        let header = [0, 6 + 16 + 4, 0, 0, 1, 0, 0, 16];
        let data = [&header[..], &[0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 16, 0], &PAGE].concat();
        let told = ten.decode(&data).unwrap();
        assert_eq!((told.block_descriptor, told.pages.len()), (Some((1 << 32, 4096)), 1));
    }

    #[test]
    fn answers_that_are_cut_off() {
        let query = mode_sense(ModeForm::Ten, ALL, PageControl::Current);
        let data = [&[0, 10, 0, 0, 0, 0, 0, 0][..], &PAGE].concat();
        assert_eq!(query.decode(&data).map(|told| told.pages.len()), Ok(1));
        for length in 0..data.len() {
            assert!(query.decode(&data[..length]).unwrap_err().needed_bytes().is_some(), "{length}");
        }
        let mut inside = data.clone();
        inside[1] = 9;
        assert!(query.decode(&inside).is_err(), "the page ends behind the data");
        inside[7] = 3;
        assert!(query.decode(&inside).is_err(), "no block descriptor has three bytes");
    }

    #[test]
    fn pages_are_changed_and_sent_back() {
        let mut page = ModePage { code: 8, subpage: 0, savable: true, bytes: PAGE.to_vec() };
        assert!(page.set_bit(2, 0x04, false) && !page.bit(2, 0x04));
        assert!(!page.set_bit(4, 0x04, true));
        let command = mode_select(ModeForm::Six, std::slice::from_ref(&page), true).unwrap();
        assert_eq!(command.cdb(), [0x15, 0x11, 0, 0, 8, 0]);
        assert_eq!(command.transfer(), &Transfer::List(vec![0, 0, 0, 0, 0x08, 2, 0, 0]));
        page.bytes = vec![0; 300];
        assert!(mode_select(ModeForm::Six, std::slice::from_ref(&page), false).is_err());
        assert_eq!(mode_select(ModeForm::Ten, &[page], false).unwrap().data_out_bytes(), 308);
    }
}
