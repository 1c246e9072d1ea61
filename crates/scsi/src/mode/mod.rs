//! Mode pages and what in them can be changed (SPC-4, SBC-3, mode parameters).
//!
//! What can be changed is few bits and the thresholds, so those are the current values; the pages are made from them.

pub(crate) mod parameters;
mod saved;

use crate::codes::mode_page;
use crate::priority;
use crate::space::{THRESHOLDS, Threshold};
use crate::unit::LogicalUnit;

pub(crate) use saved::SavedModes;

/// The changeable bits of all mode pages: what commands look at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ModeFlags(u16);

impl ModeFlags {
    const NONE: ModeFlags = ModeFlags(0);
    const ALL: ModeFlags = ModeFlags(
        ModeFlags::WRITE_CACHE_ENABLED
            | ModeFlags::SOFTWARE_WRITE_PROTECT
            | ModeFlags::DESCRIPTOR_SENSE
            | ModeFlags::TASK_ABORTED_STATUS
            | ModeFlags::PROVISIONING_REPORTS
            | ModeFlags::SINGLE_INITIATOR
            | ModeFlags::KEEPS_ATTENTIONS
            | ModeFlags::TELLS_REFUSALS
            | ModeFlags::RESTRICTED_REORDERING
            | ModeFlags::ERROR_ABORTS
            | ModeFlags::ERROR_ABORTS_OWN,
    );
    // Saved states have them: a bit is never used again for something else.
    const WRITE_CACHE_ENABLED: u16 = 0x0001;
    const SOFTWARE_WRITE_PROTECT: u16 = 0x0002;
    const DESCRIPTOR_SENSE: u16 = 0x0004;
    const TASK_ABORTED_STATUS: u16 = 0x0008;
    const PROVISIONING_REPORTS: u16 = 0x0040;
    const SINGLE_INITIATOR: u16 = 0x0080;
    const KEEPS_ATTENTIONS: u16 = 0x0100;
    const TELLS_REFUSALS: u16 = 0x0200;
    const RESTRICTED_REORDERING: u16 = 0x0400;
    const ERROR_ABORTS: u16 = 0x0800;
    const ERROR_ABORTS_OWN: u16 = 0x1000;

    pub(crate) fn new(write_cache_enabled: bool) -> ModeFlags {
        ModeFlags(if write_cache_enabled { ModeFlags::WRITE_CACHE_ENABLED } else { 0 })
    }

    pub(crate) fn from_bits(bits: u16) -> ModeFlags {
        ModeFlags(bits)
    }

    /// Those of `bits` that are flags.
    #[cfg(test)]
    pub(crate) fn any_of(bits: u16) -> ModeFlags {
        ModeFlags(bits & ModeFlags::ALL.0)
    }

    pub(crate) fn bits(self) -> u16 {
        self.0
    }

    fn has(self, flag: u16) -> bool {
        self.0 & flag != 0
    }

    /// WCE of the caching page.
    pub(crate) fn write_cache_enabled(self) -> bool {
        self.has(ModeFlags::WRITE_CACHE_ENABLED)
    }

    /// The same with WCE.
    pub(crate) fn with_write_cache(self) -> ModeFlags {
        ModeFlags(self.0 | ModeFlags::WRITE_CACHE_ENABLED)
    }

    /// The same without WCE.
    pub(crate) fn without_write_cache(self) -> ModeFlags {
        ModeFlags(self.0 & !ModeFlags::WRITE_CACHE_ENABLED)
    }

    /// SWP of the control page.
    pub(crate) fn software_write_protect(self) -> bool {
        self.has(ModeFlags::SOFTWARE_WRITE_PROTECT)
    }

    /// D_SENSE of the control page.
    pub(crate) fn descriptor_sense(self) -> bool {
        self.has(ModeFlags::DESCRIPTOR_SENSE)
    }

    /// TAS of the control page: a command that another nexus aborts ends with TASK ABORTED.
    pub(crate) fn task_aborted_status(self) -> bool {
        self.has(ModeFlags::TASK_ABORTED_STATUS)
    }

    /// LBPERE of the read-write error recovery page: thresholds are reported.
    pub(crate) fn provisioning_reports(self) -> bool {
        self.has(ModeFlags::PROVISIONING_REPORTS)
    }

    /// SITUA of the logical block provisioning page: one initiator is told of a threshold, not all.
    pub(crate) fn single_initiator(self) -> bool {
        self.has(ModeFlags::SINGLE_INITIATOR)
    }

    /// UA_INTLCK_CTRL of the control page is 10b or 11b: a unit attention that is told with CHECK CONDITION stays.
    pub(crate) fn keeps_attentions(self) -> bool {
        self.has(ModeFlags::KEEPS_ATTENTIONS)
    }

    /// UA_INTLCK_CTRL is 11b: BUSY, TASK SET FULL and RESERVATION CONFLICT are followed by a unit attention.
    pub(crate) fn tells_refusals(self) -> bool {
        self.has(ModeFlags::TELLS_REFUSALS)
    }

    /// QUEUE ALGORITHM MODIFIER of the control page is 0h: the writes of a nexus take effect in the order in which they came.
    pub(crate) fn restricted_reordering(self) -> bool {
        self.has(ModeFlags::RESTRICTED_REORDERING)
    }

    /// QERR of the control page.
    pub(crate) fn queue_error_management(self) -> QueueErrorManagement {
        match (self.has(ModeFlags::ERROR_ABORTS), self.has(ModeFlags::ERROR_ABORTS_OWN)) {
            (false, _) => QueueErrorManagement::Nobody,
            (true, false) => QueueErrorManagement::Everybody,
            (true, true) => QueueErrorManagement::OwnNexus,
        }
    }

    fn set(&mut self, flag: u16, value: bool) {
        if value {
            self.0 |= flag;
        } else {
            self.0 &= !flag;
        }
    }
}

/// Which other commands of a unit are aborted when one ends with CHECK CONDITION (SPC-4, QERR).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum QueueErrorManagement {
    /// 00b
    Nobody,
    /// 01b: those of all nexuses.
    Everybody,
    /// 11b: those of the same nexus.
    OwnNexus,
}

/// All that can be changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ModeValues {
    pub(crate) flags: ModeFlags,
    pub(crate) thresholds: [Threshold; THRESHOLDS],
    /// INITIAL COMMAND PRIORITY of the control extension page.
    pub(crate) initial_priority: u8,
}

impl ModeValues {
    const NONE: ModeValues = ModeValues {
        flags: ModeFlags::NONE,
        thresholds: [Threshold::NONE; THRESHOLDS],
        initial_priority: priority::NONE,
    };
    const ALL: ModeValues = ModeValues {
        flags: ModeFlags::ALL,
        thresholds: [Threshold::ALL; THRESHOLDS],
        initial_priority: priority::MAX,
    };

    /// What a unit begins with that has nothing saved.
    pub(crate) fn new(flags: ModeFlags) -> ModeValues {
        ModeValues { flags, ..ModeValues::NONE }
    }
}

/// What a MODE SELECT makes of the values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Selected {
    pub(crate) values: ModeValues,
    /// The caching page is among those that were sent.
    pub(crate) has_caching_page: bool,
}

/// Which values MODE SENSE asks for (SPC-4, PC field). The discriminant is the field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageControl {
    /// What holds now.
    Current = 0,
    /// A one for each bit that can be changed.
    Changeable = 1,
    /// What a unit begins with.
    Default = 2,
    /// What is there after a restart: what was saved, or else the default.
    Saved = 3,
}

/// A page code with its subpage code; 0 for a page in the short format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PageId {
    pub(crate) code: u8,
    pub(crate) subpage: u8,
}

const fn id((code, subpage): (u8, u8)) -> PageId {
    PageId { code, subpage }
}

const ERROR_RECOVERY: PageId = id(mode_page::ERROR_RECOVERY);
const CACHING: PageId = id(mode_page::CACHING);
const CONTROL: PageId = id(mode_page::CONTROL);
const CONTROL_EXTENSION: PageId = id(mode_page::CONTROL_EXTENSION);
const INFORMATIONAL_EXCEPTIONS: PageId = id(mode_page::INFORMATIONAL_EXCEPTIONS);
const LOGICAL_BLOCK_PROVISIONING: PageId = id(mode_page::LOGICAL_BLOCK_PROVISIONING);

/// Every page, in the order in which MODE SENSE returns them.
pub(crate) const PAGES: [PageId; 6] = [
    ERROR_RECOVERY,
    CACHING,
    CONTROL,
    CONTROL_EXTENSION,
    INFORMATIONAL_EXCEPTIONS,
    LOGICAL_BLOCK_PROVISIONING,
];

/// A page with its header, or `None` for a page that does not exist.
pub(crate) fn page(id: PageId, control: PageControl, unit: &LogicalUnit) -> Option<Vec<u8>> {
    let mut page = match control {
        PageControl::Current => page_with(id, &unit.mode_told(), unit),
        PageControl::Default => page_with(id, &unit.mode_default(), unit),
        PageControl::Saved => page_with(id, &unit.mode_saved(), unit),
        PageControl::Changeable => {
            let mut mask = page_with(id, &ModeValues::ALL, unit)?;
            let unset = page_with(id, &ModeValues::NONE, unit)?;
            for (byte, other) in mask.iter_mut().zip(unset).skip(header_bytes(id)) {
                *byte ^= other;
            }
            Some(mask)
        }
    }?;
    // PS: the page can be saved.
    page[0] |= u8::from(unit.saved().is_kept()) << 7;
    Some(page)
}

const fn header_bytes(id: PageId) -> usize {
    if id.subpage == 0 { 2 } else { 4 }
}

fn page_with(id: PageId, values: &ModeValues, unit: &LogicalUnit) -> Option<Vec<u8>> {
    let length = match id {
        ERROR_RECOVERY | CONTROL | INFORMATIONAL_EXCEPTIONS => 0x0a,
        CACHING => 0x12,
        CONTROL_EXTENSION => 0x1c,
        LOGICAL_BLOCK_PROVISIONING if unit.space().is_known() => 12 + 8 * THRESHOLDS,
        _ => return None,
    };
    let mut page = vec![id.code, length as u8];
    if id.subpage != 0 {
        page = vec![0x40 | id.code, id.subpage, 0, length as u8];
    }
    page.resize(header_bytes(id) + length, 0);
    let flags = values.flags;
    match id {
        // SBC-3, Read-Write Error Recovery: what the store below recovers it does not tell.
        ERROR_RECOVERY => page[7] = u8::from(flags.provisioning_reports()) << 7,
        // SBC-3, Caching. Reads may be cached (RCD = 0); the store's own cache is not segmented.
        CACHING => page[2] = u8::from(flags.write_cache_enabled()) << 2,
        // SPC-4, Control. One task set for all nexuses (TST = 0).
        CONTROL => {
            page[2] = u8::from(flags.descriptor_sense()) << 2;
            page[3] = u8::from(!flags.restricted_reordering()) << 4
                | u8::from(flags.has(ModeFlags::ERROR_ABORTS_OWN)) << 2
                | u8::from(flags.has(ModeFlags::ERROR_ABORTS)) << 1;
            page[4] = u8::from(flags.keeps_attentions()) << 5
                | u8::from(flags.tells_refusals()) << 4
                | u8::from(flags.software_write_protect()) << 3;
            // ATO: application tags are the application's. Where there are none to be owned it says nothing.
            page[5] = u8::from(flags.task_aborted_status()) << 6 | u8::from(unit.protection().is_some()) << 7;
        }
        // SPC-4, Informational Exceptions Control: DEXCPT = 1, a volume has no failure prediction to report.
        INFORMATIONAL_EXCEPTIONS => page[2] = 0x08,
        LOGICAL_BLOCK_PROVISIONING => {
            page[4] = u8::from(flags.single_initiator());
            for (place, threshold) in
                page[16..].chunks_exact_mut(8).zip(Threshold::describe(&values.thresholds))
            {
                place.copy_from_slice(&threshold);
            }
        }
        // SPC-4, Control Extension: the clock is the driver's (TCMOS) until an initiator sets it, which prevails (SCSIP);
        // access states may change without a command (IALUAE). No limit of sense data is told.
        CONTROL_EXTENSION => (page[4], page[5]) = (0x07, values.initial_priority),
        _ => {}
    }
    Some(page)
}

/// The byte and bit of a page where a changeable field has a value that is reserved.
fn reserved_value(id: PageId, page: &[u8]) -> Option<(usize, u8)> {
    const QUEUE_ERROR: (usize, u8) = (3, 2);
    const INTERLOCK: (usize, u8) = (4, 5);
    let has = |at: usize, mask: u8, value: u8| page.get(at).is_some_and(|byte| byte & mask == value);
    match id {
        CONTROL if has(QUEUE_ERROR.0, 0x06, 0x04) => Some(QUEUE_ERROR),
        CONTROL if has(INTERLOCK.0, 0x30, 0x10) => Some(INTERLOCK),
        _ => None,
    }
}

/// Takes the changeable values out of a whole page.
fn values_from(id: PageId, page: &[u8], mut values: ModeValues) -> ModeValues {
    let bit = |at: usize, mask: u8| page.get(at).is_some_and(|byte| byte & mask != 0);
    let flags = &mut values.flags;
    match id {
        ERROR_RECOVERY => flags.set(ModeFlags::PROVISIONING_REPORTS, bit(7, 0x80)),
        CACHING => flags.set(ModeFlags::WRITE_CACHE_ENABLED, bit(2, 0x04)),
        CONTROL => {
            flags.set(ModeFlags::DESCRIPTOR_SENSE, bit(2, 0x04));
            flags.set(ModeFlags::RESTRICTED_REORDERING, !bit(3, 0x10));
            flags.set(ModeFlags::ERROR_ABORTS_OWN, bit(3, 0x04));
            flags.set(ModeFlags::ERROR_ABORTS, bit(3, 0x02));
            flags.set(ModeFlags::KEEPS_ATTENTIONS, bit(4, 0x20));
            flags.set(ModeFlags::TELLS_REFUSALS, bit(4, 0x10));
            flags.set(ModeFlags::SOFTWARE_WRITE_PROTECT, bit(4, 0x08));
            flags.set(ModeFlags::TASK_ABORTED_STATUS, bit(5, 0x40));
        }
        CONTROL_EXTENSION => {
            values.initial_priority = page.get(5).map_or(priority::NONE, |byte| byte & priority::MAX);
        }
        LOGICAL_BLOCK_PROVISIONING => {
            flags.set(ModeFlags::SINGLE_INITIATOR, bit(4, 0x01));
            for (threshold, bytes) in values.thresholds.iter_mut().zip(page[16..].chunks_exact(8)) {
                *threshold = Threshold::from_descriptor(bytes);
            }
        }
        _ => {}
    }
    values
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::space::Space;
    use crate::unit::tests::{config, unit_of};

    fn thin_unit() -> LogicalUnit {
        let unit = unit_of(config());
        unit.note_space(Space { used_bytes: 0, available_bytes: 1 << 40 });
        unit
    }

    #[test]
    fn pages_have_their_lengths_and_bits() {
        let unit = thin_unit();
        let caching = page(CACHING, PageControl::Current, &unit).unwrap();
        assert_eq!(caching.len(), 20);
        assert_eq!(caching[..4], [0x08, 0x12, 0x04, 0]);
        let control = page(CONTROL, PageControl::Changeable, &unit).unwrap();
        assert_eq!(control, [0x0a, 0x0a, 0x04, 0x16, 0x38, 0x40, 0, 0, 0, 0, 0, 0]);
        let exceptions = page(INFORMATIONAL_EXCEPTIONS, PageControl::Changeable, &unit).unwrap();
        assert_eq!(exceptions, [0x1c, 0x0a, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        let recovery = page(ERROR_RECOVERY, PageControl::Changeable, &unit).unwrap();
        assert_eq!(recovery, [0x01, 0x0a, 0, 0, 0, 0, 0, 0x80, 0, 0, 0, 0]);
        let extension = page(CONTROL_EXTENSION, PageControl::Current, &unit).unwrap();
        assert_eq!((extension.len(), &extension[..6]), (32, &[0x4a, 0x01, 0, 0x1c, 0x07, 0][..]));
        assert_eq!(page(id((0x03, 0)), PageControl::Current, &unit), None);
    }

    /// SBC-3, Logical Block Provisioning mode page.
    #[test]
    fn thresholds_have_a_page_where_the_space_is_known() {
        assert_eq!(page(LOGICAL_BLOCK_PROVISIONING, PageControl::Current, &unit_of(config())), None);
        let unit = thin_unit();
        let current = page(LOGICAL_BLOCK_PROVISIONING, PageControl::Current, &unit).unwrap();
        assert_eq!(current[..5], [0x5c, 0x02, 0, 28, 0]);
        assert_eq!(current[16..], [0, 1, 0, 0, 0, 0, 0, 0, 0x01, 2, 0, 0, 0, 0, 0, 0]);
        let changeable = page(LOGICAL_BLOCK_PROVISIONING, PageControl::Changeable, &unit).unwrap();
        assert_eq!(changeable[4], 1);
        assert_eq!(changeable[16..24], [0x80, 0, 0, 0, 255, 255, 255, 255]);
    }

    #[test]
    fn values_survive_the_pages() {
        let unit = thin_unit();
        for bits in 0..=ModeFlags::ALL.bits() {
            let flags = ModeFlags::from_bits(bits & ModeFlags::ALL.bits());
            let thresholds = [0, 1].map(|index| Threshold { enabled: bits & 1 == index, count: bits.into() });
            let values = ModeValues { flags, thresholds, initial_priority: (bits % 16) as u8 };
            let read = PAGES.iter().fold(ModeValues::NONE, |read, &id| {
                values_from(id, &page_with(id, &values, &unit).unwrap(), read)
            });
            assert_eq!(read, values);
        }
    }

    #[test]
    fn default_values_do_not_follow_the_current_ones() {
        let unit = unit_of(config());
        let selected = Selected { values: ModeValues::NONE, has_caching_page: true };
        unit.change_mode(false, |_| Ok(selected)).unwrap();
        assert_eq!(page(CACHING, PageControl::Default, &unit).unwrap()[2], 0x04);
        assert_eq!(page(CACHING, PageControl::Current, &unit).unwrap()[2], 0);
    }
}
