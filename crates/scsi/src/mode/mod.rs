//! Mode pages and what in them can be changed (SPC-4, SBC-3, mode parameters).
//!
//! Only three bits can be changed, so the current values are three bits; the pages are made from them.

pub(crate) mod parameters;

use crate::unit::LogicalUnit;

/// The changeable bits of all mode pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ModeFlags(u8);

impl ModeFlags {
    const NONE: ModeFlags = ModeFlags(0);
    const ALL: ModeFlags = ModeFlags(0x07);
    const WRITE_CACHE_ENABLED: u8 = 0x01;
    const SOFTWARE_WRITE_PROTECT: u8 = 0x02;
    const DESCRIPTOR_SENSE: u8 = 0x04;

    pub(crate) fn new(write_cache_enabled: bool) -> ModeFlags {
        ModeFlags(if write_cache_enabled { ModeFlags::WRITE_CACHE_ENABLED } else { 0 })
    }

    pub(crate) fn from_bits(bits: u8) -> ModeFlags {
        ModeFlags(bits)
    }

    pub(crate) fn bits(self) -> u8 {
        self.0
    }

    /// WCE of the caching page.
    pub(crate) fn write_cache_enabled(self) -> bool {
        self.0 & ModeFlags::WRITE_CACHE_ENABLED != 0
    }

    /// SWP of the control page.
    pub(crate) fn software_write_protect(self) -> bool {
        self.0 & ModeFlags::SOFTWARE_WRITE_PROTECT != 0
    }

    /// D_SENSE of the control page.
    pub(crate) fn descriptor_sense(self) -> bool {
        self.0 & ModeFlags::DESCRIPTOR_SENSE != 0
    }

    fn set(&mut self, flag: u8, value: bool) {
        if value {
            self.0 |= flag;
        } else {
            self.0 &= !flag;
        }
    }
}

/// Which values MODE SENSE asks for (SPC-4, PC field). Saved values do not exist here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PageControl {
    Current,
    Changeable,
    Default,
}

const CACHING: u8 = 0x08;
const CONTROL: u8 = 0x0a;
const INFORMATIONAL_EXCEPTIONS: u8 = 0x1c;

/// Every page, in the order in which MODE SENSE returns them.
pub(crate) const PAGES: [u8; 3] = [CACHING, CONTROL, INFORMATIONAL_EXCEPTIONS];

/// A page with its two-byte header, or `None` for a page that does not exist.
pub(crate) fn page(code: u8, control: PageControl, unit: &LogicalUnit) -> Option<Vec<u8>> {
    match control {
        PageControl::Current => page_with(code, unit.mode()),
        PageControl::Default => page_with(code, unit.mode_default()),
        PageControl::Changeable => {
            let mut mask = page_with(code, ModeFlags::ALL)?;
            let unset = page_with(code, ModeFlags::NONE)?;
            for (byte, other) in mask.iter_mut().zip(unset).skip(2) {
                *byte ^= other;
            }
            Some(mask)
        }
    }
}

fn page_with(code: u8, flags: ModeFlags) -> Option<Vec<u8>> {
    let length = match code {
        CACHING => 0x12,
        CONTROL | INFORMATIONAL_EXCEPTIONS => 0x0a,
        _ => return None,
    };
    let mut page = vec![0; 2 + length];
    page[0] = code;
    page[1] = length as u8;
    match code {
        // SBC-3, Caching mode page. Reads may be cached (RCD = 0); the store's own cache is not segmented.
        CACHING => page[2] = u8::from(flags.write_cache_enabled()) << 2,
        // SPC-4, Control mode page. One task set for all nexuses (TST = 0); commands may be reordered (queue algorithm modifier 1).
        CONTROL => {
            page[2] = u8::from(flags.descriptor_sense()) << 2;
            page[3] = 0x10;
            page[4] = u8::from(flags.software_write_protect()) << 3;
        }
        // SPC-4, Informational Exceptions Control mode page: DEXCPT = 1, a volume has no failure prediction to report.
        _ => page[2] = 0x08,
    }
    Some(page)
}

/// Takes the changeable bits out of a whole page.
fn flags_from(page: &[u8], mut flags: ModeFlags) -> ModeFlags {
    match page {
        [CACHING, _, third, ..] => flags.set(ModeFlags::WRITE_CACHE_ENABLED, third & 0x04 != 0),
        [CONTROL, _, third, _, fifth, ..] => {
            flags.set(ModeFlags::DESCRIPTOR_SENSE, third & 0x04 != 0);
            flags.set(ModeFlags::SOFTWARE_WRITE_PROTECT, fifth & 0x08 != 0);
        }
        _ => {}
    }
    flags
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::unit::tests::{config, unit_of};

    #[test]
    fn pages_have_their_lengths_and_bits() {
        let unit = unit_of(config());
        let caching = page(CACHING, PageControl::Current, &unit).unwrap();
        assert_eq!(caching.len(), 20);
        assert_eq!(caching[..4], [0x08, 0x12, 0x04, 0]);
        let control = page(CONTROL, PageControl::Changeable, &unit).unwrap();
        assert_eq!(control, [0x0a, 0x0a, 0x04, 0, 0x08, 0, 0, 0, 0, 0, 0, 0]);
        let exceptions = page(INFORMATIONAL_EXCEPTIONS, PageControl::Changeable, &unit).unwrap();
        assert_eq!(exceptions, [0x1c, 0x0a, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(page(0x01, PageControl::Current, &unit), None);
    }

    #[test]
    fn flags_survive_the_pages() {
        for bits in 0..8 {
            let flags = ModeFlags::from_bits(bits);
            let read = PAGES
                .iter()
                .fold(ModeFlags::NONE, |read, &code| flags_from(&page_with(code, flags).unwrap(), read));
            assert_eq!(read, flags);
        }
    }

    #[test]
    fn default_values_do_not_follow_the_current_ones() {
        let unit = unit_of(config());
        unit.set_mode(ModeFlags::NONE);
        assert_eq!(page(CACHING, PageControl::Default, &unit).unwrap()[2], 0x04);
        assert_eq!(page(CACHING, PageControl::Current, &unit).unwrap()[2], 0);
    }
}
