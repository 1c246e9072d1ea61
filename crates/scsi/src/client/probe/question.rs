//! The questions of a probe, and the commands that ask them.

use super::super::capacity;
use super::super::command::{Command, Query};
use super::super::inquiry;
use super::super::mode::{self, ModeForm, ModeParameters, PageControl};
use super::super::port_groups;
use super::super::unit;
use super::super::vpd::block;
use super::super::vpd::{self, identification};
use crate::codes::{opcode, vpd_page};

/// What is asked, in the order in which it is sent where several are due.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Question {
    /// INQUIRY
    Inquiry,
    /// The VPD pages that the unit has.
    Pages,
    /// Unit Serial Number
    Serial,
    /// Device Identification
    Identification,
    /// Extended INQUIRY data
    Extended,
    /// Block Limits
    Limits,
    /// Block Device Characteristics
    Characteristics,
    /// Logical Block Provisioning
    Provisioning,
    /// READ CAPACITY(16)
    Capacity16,
    /// READ CAPACITY(10)
    Capacity10,
    /// All mode pages by MODE SENSE(6)
    Mode6,
    /// All mode pages by MODE SENSE(10)
    Mode10,
    /// Whether there is a WRITE SAME(16).
    WriteSame,
    /// REPORT TARGET PORT GROUPS
    PortGroups,
    /// TEST UNIT READY. The last one, since it is the likeliest to fail: a unit that aborts whatever is behind a failure
    /// (SPC-4, QERR) has been asked the others by then.
    Ready,
}

impl Question {
    pub(super) const ALL: [Question; 15] = [
        Question::Inquiry,
        Question::Pages,
        Question::Serial,
        Question::Identification,
        Question::Extended,
        Question::Limits,
        Question::Characteristics,
        Question::Provisioning,
        Question::Capacity16,
        Question::Capacity10,
        Question::Mode6,
        Question::Mode10,
        Question::WriteSame,
        Question::PortGroups,
        Question::Ready,
    ];

    /// The VPD page that it is about; asked for if the unit lists it.
    pub(super) const fn page(self) -> Option<u8> {
        Some(match self {
            Question::Serial => vpd_page::UNIT_SERIAL_NUMBER,
            Question::Identification => vpd_page::DEVICE_IDENTIFICATION,
            Question::Extended => vpd_page::EXTENDED_INQUIRY,
            Question::Limits => vpd_page::BLOCK_LIMITS,
            Question::Characteristics => vpd_page::BLOCK_DEVICE_CHARACTERISTICS,
            Question::Provisioning => vpd_page::LOGICAL_BLOCK_PROVISIONING,
            _ => return None,
        })
    }

    /// Without an answer, if only a refusal, nobody should open the unit: another could pass for it, or its size would be a guess.
    pub(super) const fn is_needed(self) -> bool {
        matches!(
            self,
            Question::Inquiry
                | Question::Pages
                | Question::Serial
                | Question::Identification
                | Question::Capacity10
                | Question::Ready
        )
    }

    /// The command that asks it; `asked_bytes` is the allocation length, where it is another than the usual one.
    pub(super) fn command(self, asked_bytes: Option<u32>) -> Command {
        match self {
            Question::Inquiry => of(inquiry::standard(), asked_bytes),
            Question::Pages => of(vpd::supported_pages(), asked_bytes),
            Question::Serial => of(vpd::unit_serial_number(), asked_bytes),
            Question::Identification => of(identification::device_identification(), asked_bytes),
            Question::Extended => of(vpd::extended_inquiry(), asked_bytes),
            Question::Limits => of(block::limits(), asked_bytes),
            Question::Characteristics => of(block::characteristics(), asked_bytes),
            Question::Provisioning => of(block::provisioning(), asked_bytes),
            Question::Capacity16 => of(capacity::read_capacity_16(), asked_bytes),
            Question::Capacity10 => of(capacity::read_capacity_10(), asked_bytes),
            Question::Mode6 => of(all_pages(ModeForm::Six), asked_bytes),
            Question::Mode10 => of(all_pages(ModeForm::Ten), asked_bytes),
            Question::WriteSame => of(write_same_16(), asked_bytes),
            Question::PortGroups => of(port_groups::report_target_port_groups(), asked_bytes),
            Question::Ready => unit::test_unit_ready(),
        }
    }
}

fn of<T>(query: Query<T>, asked_bytes: Option<u32>) -> Command {
    sized(query, asked_bytes).command().clone()
}

/// The query with another allocation length, if one is told.
pub(super) fn sized<T>(query: Query<T>, asked_bytes: Option<u32>) -> Query<T> {
    match asked_bytes {
        Some(length_bytes) => query.asking_for(length_bytes),
        None => query,
    }
}

/// All mode pages without subpages, as they are now.
pub(super) fn all_pages(form: ModeForm) -> Query<ModeParameters> {
    mode::mode_sense(form, mode::ALL, PageControl::Current)
}

/// Whether there is a WRITE SAME(16).
pub(super) fn write_same_16() -> Query<bool> {
    unit::is_supported(opcode::WRITE_SAME_16, None)
}
