//! The command table: dispatch and REPORT SUPPORTED OPERATION CODES read the same rows (SPC-4, SBC-3).
//!
//! A new command is a new row here and a handler in its module.

use super::persistent_reserve::report;
use super::{
    Handler, buffer, cache, capacity, copy_results, diagnostic, extended_copy, format, identifying, inquiry,
    lba_status, log_pages, mode_pages, persistent_reserve, read_modify_write, read_write, readiness,
    report_luns, report_support, reserve, sanitize, start_stop, target_port_groups, timestamp, tokens, unmap,
    verify, write_same,
};
use crate::alua::WorksIn;
use crate::bytes::Cdb;
use crate::reservations::access::{Access, of_prevent_allow, of_start_stop};
use crate::sense::{AdditionalSense, SenseData};
use crate::unit::LogicalUnit;
use crate::work::Occupation;

/// Which other commands of the unit may be at the medium while this one is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Company {
    /// Any that want company too.
    Any,
    /// None from the moment when its Data-Out is there. It has one, or does nothing.
    NoneAfterData,
    /// None, and it has no Data-Out to wait for.
    None,
}

/// One command.
pub(crate) struct Command {
    pub(crate) opcode: u8,
    pub(crate) service_action: Option<u8>,
    pub(crate) name: &'static str,
    pub(super) handler: Handler,
    /// What it does to a unit that is reserved.
    pub(crate) access: Access,
    /// In which asymmetric access states it works.
    pub(crate) works_in: WorksIn,
    /// CDB USAGE DATA: the operation code, then a one for every bit that is looked at. Its length is the CDB's.
    pub(crate) usage: &'static [u8],
    /// The bits that may be set, in the order of the CDB; all ones after the CDB's end.
    allowed: u128,
    /// Runs and keeps pending unit attentions (SAM-5).
    pub(crate) passes_unit_attention: bool,
    /// Runs while the unit is stopped or has no medium.
    pub(crate) runs_when_not_ready: bool,
    /// Runs while the unit sanitizes or formats itself, or has failed to (SBC-3, SANITIZE).
    pub(crate) runs_when_occupied: bool,
    /// Refused while the unit is write-protected.
    pub(crate) writes_medium: bool,
    /// Refused to a nexus that may only read, whatever the unit allows: it would decide for others.
    pub(crate) changes_for_others: bool,
    /// Exists only where the store can unmap.
    needs_unmap: bool,
    pub(super) company: Company,
    /// RECOMMENDED COMMAND TIMEOUT in seconds.
    pub(crate) timeout_s: u32,
}

/// Operation codes that are asked for by name outside the table.
pub(super) const TEST_UNIT_READY: u8 = 0x00;
pub(super) const REQUEST_SENSE: u8 = 0x03;
const FORMAT_UNIT: u8 = 0x04;
pub(super) const INQUIRY: u8 = 0x12;
const SANITIZE: u8 = 0x48;
pub(super) const REPORT_LUNS: u8 = 0xa0;

/// What an initiator should give a command that touches the medium.
const MEDIUM_TIMEOUT_S: u32 = 60;
/// What it should give one that writes the whole medium.
const WHOLE_MEDIUM_TIMEOUT_S: u32 = 7 * 24 * 60 * 60;
/// What it should give one that copies as much as a parameter list can ask for.
const COPY_TIMEOUT_S: u32 = 600;
/// What it should give one that is answered from memory.
const MEMORY_TIMEOUT_S: u32 = 10;

const FREE: Access = Access::Free;
const INSPECTS: Access = Access::Inspects;
const READS: Access = Access::Reads;
const WRITES: Access = Access::Writes;

/// A row for a command of the medium: it reports unit attentions, needs a ready unit that is active, and reads.
const fn row(name: &'static str, access: Access, handler: Handler, usage: &'static [u8]) -> Command {
    let mut allowed = 0;
    let mut index = 0;
    while index < 16 {
        let byte = if index == 0 || index >= usage.len() { 0xff } else { usage[index] };
        allowed = allowed << 8 | byte as u128;
        index += 1;
    }
    Command {
        opcode: usage[0],
        service_action: None,
        name,
        handler,
        access,
        works_in: WorksIn::Active,
        usage,
        allowed,
        passes_unit_attention: false,
        runs_when_not_ready: false,
        runs_when_occupied: false,
        writes_medium: false,
        changes_for_others: false,
        needs_unmap: false,
        company: Company::Any,
        timeout_s: MEDIUM_TIMEOUT_S,
    }
}

impl Command {
    /// The second byte's low five bits are a service action with this row's value.
    const fn service_action(mut self) -> Command {
        self.service_action = Some(self.usage[1] & 0x1f);
        self.allowed |= 0x1f << 112;
        self
    }

    const fn writes(mut self) -> Command {
        self.writes_medium = true;
        self
    }

    const fn changes_for_others(mut self) -> Command {
        self.changes_for_others = true;
        self
    }

    const fn any_readiness(mut self) -> Command {
        self.runs_when_not_ready = true;
        self.timeout_s = MEMORY_TIMEOUT_S;
        self
    }

    const fn any_occupation(mut self) -> Command {
        self.runs_when_occupied = true;
        self.any_readiness()
    }

    /// Works in standby too (SPC-4, standby state).
    const fn in_standby(mut self) -> Command {
        self.works_in = WorksIn::Standby;
        self
    }

    /// Works however badly the unit can be reached (SPC-4, unavailable state).
    const fn in_every_state(mut self) -> Command {
        self.works_in = WorksIn::EveryState;
        self
    }

    const fn passes_attention(mut self) -> Command {
        self.passes_unit_attention = true;
        self.in_every_state().any_occupation()
    }

    const fn needs_unmap(mut self) -> Command {
        self.needs_unmap = true;
        self
    }

    /// Others see either all of it or nothing; it takes its Data-Out before.
    const fn alone_after_data(mut self) -> Command {
        self.company = Company::NoneAfterData;
        self
    }

    /// Others see either all of it or nothing; it has no Data-Out.
    const fn alone(mut self) -> Command {
        self.company = Company::None;
        self
    }

    const fn timeout_s(mut self, timeout_s: u32) -> Command {
        self.timeout_s = timeout_s;
        self
    }

    /// Runs although such a failure keeps others from the medium, because it may end that.
    pub(super) fn mends(&self, occupation: Occupation) -> bool {
        match occupation {
            Occupation::SanitizeFailed | Occupation::SanitizeFailedUnrestricted => self.opcode == SANITIZE,
            Occupation::FormatFailed => matches!(self.opcode, SANITIZE | FORMAT_UNIT),
            Occupation::None | Occupation::Sanitizing | Occupation::Formatting => false,
        }
    }

    pub(crate) fn supported_by(&self, unit: &LogicalUnit) -> bool {
        !self.needs_unmap || unit.config().provisioning.unmap
    }

    /// Refuses set bits that the command does not define. The field pointer shows the first of them; NACA in the
    /// CONTROL byte is one, because normal ACA is not supported (SAM-5, CONTROL byte).
    pub(crate) fn check_usage(&self, cdb: &Cdb) -> Result<(), SenseData> {
        let wrong = u128::from_be_bytes(*cdb) & !self.allowed;
        if wrong == 0 {
            return Ok(());
        }
        let place = wrong.leading_zeros();
        Err(SenseData::invalid_cdb_field((place / 8) as u16, 7 - (place % 8) as u8))
    }
}

/// Every command, in rising order of operation code and service action.
pub(crate) static COMMANDS: [Command; 84] = [
    row("TEST UNIT READY", INSPECTS, readiness::test_unit_ready, &[TEST_UNIT_READY, 0, 0, 0, 0, 0])
        .timeout_s(MEMORY_TIMEOUT_S),
    row("REQUEST SENSE", FREE, readiness::request_sense, &[REQUEST_SENSE, 0x01, 0, 0, 0xff, 0])
        .passes_attention(),
    row("FORMAT UNIT", WRITES, format::format_unit, &[FORMAT_UNIT, 0x3f, 0, 0, 0, 0])
        .writes()
        .alone_after_data()
        .timeout_s(WHOLE_MEDIUM_TIMEOUT_S),
    row("READ(6)", READS, read_write::read_6, &[0x08, 0x1f, 0xff, 0xff, 0xff, 0]),
    row("WRITE(6)", WRITES, read_write::write_6, &[0x0a, 0x1f, 0xff, 0xff, 0xff, 0]).writes(),
    row("INQUIRY", FREE, inquiry::inquiry, &[INQUIRY, 0x01, 0xff, 0xff, 0xff, 0]).passes_attention(),
    row("MODE SELECT(6)", WRITES, mode_pages::mode_select_6, &[0x15, 0x11, 0, 0, 0xff, 0])
        .changes_for_others()
        .in_standby()
        .any_readiness()
        .alone_after_data(),
    row("RESERVE(6)", FREE, reserve::reserve, &[0x16, 0, 0, 0, 0, 0]).changes_for_others().any_readiness(),
    row("RELEASE(6)", FREE, reserve::release, &[0x17, 0, 0, 0, 0, 0]).any_readiness(),
    row("MODE SENSE(6)", READS, mode_pages::mode_sense_6, &[0x1a, 0x08, 0xff, 0xff, 0xff, 0])
        .in_standby()
        .any_readiness(),
    row(
        "START STOP UNIT",
        Access::Cdb(of_start_stop),
        start_stop::start_stop_unit,
        &[0x1b, 0x01, 0, 0x0f, 0xf7, 0],
    )
    .changes_for_others()
    .any_readiness()
    .alone()
    .timeout_s(MEDIUM_TIMEOUT_S),
    row("SEND DIAGNOSTIC", WRITES, diagnostic::send_diagnostic, &[0x1d, 0x17, 0, 0, 0, 0])
        .in_standby()
        .any_readiness(),
    row(
        "PREVENT ALLOW MEDIUM REMOVAL",
        Access::Cdb(of_prevent_allow),
        readiness::prevent_allow,
        &[0x1e, 0, 0, 0, 0x01, 0],
    )
    .any_readiness(),
    row("READ CAPACITY(10)", INSPECTS, capacity::read_capacity_10, &[0x25, 0, 0, 0, 0, 0, 0, 0, 0, 0])
        .in_standby()
        .timeout_s(MEMORY_TIMEOUT_S),
    row("READ(10)", READS, read_write::read_10, &[0x28, 0x1a, 0xff, 0xff, 0xff, 0xff, 0x1f, 0xff, 0xff, 0]),
    row(
        "WRITE(10)",
        WRITES,
        read_write::write_10,
        &[0x2a, 0x1a, 0xff, 0xff, 0xff, 0xff, 0x1f, 0xff, 0xff, 0],
    )
    .writes(),
    row(
        "WRITE AND VERIFY(10)",
        WRITES,
        verify::write_10,
        &[0x2e, 0x16, 0xff, 0xff, 0xff, 0xff, 0x1f, 0xff, 0xff, 0],
    )
    .writes(),
    row("VERIFY(10)", READS, verify::verify_10, &[0x2f, 0x16, 0xff, 0xff, 0xff, 0xff, 0x1f, 0xff, 0xff, 0]),
    row(
        "PRE-FETCH(10)",
        READS,
        cache::prefetch_10,
        &[0x34, 0x02, 0xff, 0xff, 0xff, 0xff, 0x1f, 0xff, 0xff, 0],
    ),
    row(
        "SYNCHRONIZE CACHE(10)",
        WRITES,
        cache::synchronize_10,
        &[0x35, 0x06, 0xff, 0xff, 0xff, 0xff, 0x1f, 0xff, 0xff, 0],
    ),
    row(
        "READ DEFECT DATA(10)",
        READS,
        diagnostic::read_defect_data_10,
        &[0x37, 0, 0x1f, 0, 0, 0, 0, 0xff, 0xff, 0],
    )
    .timeout_s(MEMORY_TIMEOUT_S),
    row(
        "WRITE BUFFER(10)",
        WRITES,
        buffer::write_buffer,
        &[0x3b, 0x1f, 255, 255, 255, 255, 255, 255, 255, 0],
    )
    .in_standby()
    .any_readiness(),
    row("READ BUFFER(10)", READS, buffer::read_buffer, &[0x3c, 0x1f, 255, 255, 255, 255, 255, 255, 255, 0])
        .in_standby()
        .any_readiness(),
    row(
        "WRITE SAME(10)",
        WRITES,
        write_same::write_same_10,
        &[0x41, 0x08, 0xff, 0xff, 0xff, 0xff, 0x1f, 0xff, 0xff, 0],
    )
    .writes(),
    row("UNMAP", WRITES, unmap::unmap, &[0x42, 0, 0, 0, 0, 0, 0x1f, 0xff, 0xff, 0]).writes().needs_unmap(),
    row("SANITIZE, OVERWRITE", WRITES, sanitize::overwrite, &[SANITIZE, 0xa1, 0, 0, 0, 0, 0, 0xff, 0xff, 0])
        .service_action()
        .writes()
        .alone_after_data()
        .timeout_s(WHOLE_MEDIUM_TIMEOUT_S),
    row("SANITIZE, BLOCK ERASE", WRITES, sanitize::block_erase, &[SANITIZE, 0xa2, 0, 0, 0, 0, 0, 0, 0, 0])
        .service_action()
        .writes()
        .needs_unmap()
        .alone()
        .timeout_s(WHOLE_MEDIUM_TIMEOUT_S),
    row(
        "SANITIZE, EXIT FAILURE MODE",
        WRITES,
        sanitize::exit_failure_mode,
        &[SANITIZE, 0xbf, 0, 0, 0, 0, 0, 0, 0, 0],
    )
    .service_action()
    .writes()
    .alone(),
    row("LOG SELECT", WRITES, log_pages::log_select, &[0x4c, 0x02, 0xc0, 0, 0, 0, 0, 255, 255, 0])
        .in_standby()
        .changes_for_others()
        .any_readiness(),
    row("LOG SENSE", FREE, log_pages::log_sense, &[0x4d, 0, 255, 255, 0, 255, 255, 255, 255, 0])
        .in_standby()
        .any_readiness(),
    row("MODE SELECT(10)", WRITES, mode_pages::mode_select_10, &[0x55, 0x11, 0, 0, 0, 0, 0, 0xff, 0xff, 0])
        .changes_for_others()
        .in_standby()
        .any_readiness()
        .alone_after_data(),
    row("RESERVE(10)", FREE, reserve::reserve, &[0x56, 0, 0, 0, 0, 0, 0, 0, 0, 0])
        .changes_for_others()
        .any_readiness(),
    row("RELEASE(10)", FREE, reserve::release, &[0x57, 0, 0, 0, 0, 0, 0, 0, 0, 0]).any_readiness(),
    row(
        "MODE SENSE(10)",
        READS,
        mode_pages::mode_sense_10,
        &[0x5a, 0x18, 0xff, 0xff, 0, 0, 0, 0xff, 0xff, 0],
    )
    .in_standby()
    .any_readiness(),
    row("PERSISTENT RESERVE IN, READ KEYS", FREE, report::read_keys, &[0x5e, 0, 0, 0, 0, 0, 0, 255, 255, 0])
        .in_standby()
        .service_action()
        .any_readiness(),
    row(
        "PERSISTENT RESERVE IN, READ RESERVATION",
        FREE,
        report::read_reservation,
        &[0x5e, 1, 0, 0, 0, 0, 0, 255, 255, 0],
    )
    .in_standby()
    .service_action()
    .any_readiness(),
    row(
        "PERSISTENT RESERVE IN, REPORT CAPABILITIES",
        FREE,
        report::report_capabilities,
        &[0x5e, 2, 0, 0, 0, 0, 0, 255, 255, 0],
    )
    .in_standby()
    .service_action()
    .any_readiness(),
    row(
        "PERSISTENT RESERVE IN, READ FULL STATUS",
        FREE,
        report::read_full_status,
        &[0x5e, 3, 0, 0, 0, 0, 0, 255, 255, 0],
    )
    .in_standby()
    .service_action()
    .any_readiness(),
    row("PERSISTENT RESERVE OUT, REGISTER", FREE, persistent_reserve::out, &RESERVE_OUT[0])
        .changes_for_others()
        .in_standby()
        .service_action()
        .any_readiness(),
    row("PERSISTENT RESERVE OUT, RESERVE", FREE, persistent_reserve::out, &RESERVE_OUT[1])
        .changes_for_others()
        .in_standby()
        .service_action()
        .any_readiness(),
    row("PERSISTENT RESERVE OUT, RELEASE", FREE, persistent_reserve::out, &RESERVE_OUT[2])
        .changes_for_others()
        .in_standby()
        .service_action()
        .any_readiness(),
    row("PERSISTENT RESERVE OUT, CLEAR", FREE, persistent_reserve::out, &RESERVE_OUT[3])
        .changes_for_others()
        .in_standby()
        .service_action()
        .any_readiness(),
    row("PERSISTENT RESERVE OUT, PREEMPT", FREE, persistent_reserve::out, &RESERVE_OUT[4])
        .changes_for_others()
        .in_standby()
        .service_action()
        .any_readiness(),
    row("PERSISTENT RESERVE OUT, PREEMPT AND ABORT", FREE, persistent_reserve::out, &RESERVE_OUT[5])
        .changes_for_others()
        .in_standby()
        .service_action()
        .any_readiness(),
    row(
        "PERSISTENT RESERVE OUT, REGISTER AND IGNORE EXISTING KEY",
        FREE,
        persistent_reserve::out,
        &RESERVE_OUT[6],
    )
    .changes_for_others()
    .in_standby()
    .service_action()
    .any_readiness(),
    row("PERSISTENT RESERVE OUT, REGISTER AND MOVE", FREE, persistent_reserve::out, &RESERVE_OUT[7])
        .changes_for_others()
        .in_standby()
        .service_action()
        .any_readiness(),
    row("EXTENDED COPY(LID1)", WRITES, extended_copy::extended_copy_lid1, &THIRD_PARTY_COPY_OUT[0])
        .service_action()
        .timeout_s(COPY_TIMEOUT_S),
    row("EXTENDED COPY(LID4)", WRITES, extended_copy::extended_copy_lid4, &THIRD_PARTY_COPY_OUT[1])
        .service_action()
        .timeout_s(COPY_TIMEOUT_S),
    row("POPULATE TOKEN", READS, tokens::populate_token, &THIRD_PARTY_COPY_OUT[2]).service_action(),
    row("WRITE USING TOKEN", WRITES, tokens::write_using_token, &THIRD_PARTY_COPY_OUT[3])
        .service_action()
        .writes(),
    row("COPY OPERATION ABORT", WRITES, extended_copy::copy_operation_abort, &THIRD_PARTY_COPY_OUT[4])
        .service_action()
        .any_readiness(),
    row("RECEIVE COPY STATUS(LID1)", WRITES, copy_results::status_lid1, &THIRD_PARTY_COPY_IN[0])
        .service_action()
        .any_readiness(),
    row("RECEIVE COPY DATA(LID1)", WRITES, copy_results::data_lid1, &THIRD_PARTY_COPY_IN[1])
        .service_action()
        .any_readiness(),
    row(
        "RECEIVE COPY OPERATING PARAMETERS",
        WRITES,
        copy_results::operating_parameters,
        &THIRD_PARTY_COPY_IN[2],
    )
    .service_action()
    .any_readiness(),
    row(
        "RECEIVE COPY FAILURE DETAILS(LID1)",
        WRITES,
        copy_results::failure_details_lid1,
        &THIRD_PARTY_COPY_IN[3],
    )
    .service_action()
    .any_readiness(),
    row("RECEIVE COPY STATUS(LID4)", WRITES, copy_results::status_lid4, &THIRD_PARTY_COPY_IN[4])
        .service_action()
        .any_readiness(),
    row(
        "RECEIVE ROD TOKEN INFORMATION",
        READS,
        tokens::receive_rod_token_information,
        &THIRD_PARTY_COPY_IN[5],
    )
    .service_action()
    .any_readiness(),
    row("REPORT ALL ROD TOKENS", READS, tokens::report_all_rod_tokens, &THIRD_PARTY_COPY_IN[6])
        .service_action()
        .any_readiness(),
    row("READ(16)", READS, read_write::read_16, &LONG_CDB[0]),
    row(
        "COMPARE AND WRITE",
        WRITES,
        read_modify_write::compare_and_write,
        &[0x89, 0x1a, 255, 255, 255, 255, 255, 255, 255, 255, 0, 0, 0, 255, 0x1f, 0],
    )
    .writes()
    .alone_after_data(),
    row("WRITE(16)", WRITES, read_write::write_16, &LONG_CDB[1]).writes(),
    row("ORWRITE(16)", WRITES, read_modify_write::or_write, &LONG_CDB[7]).writes().alone_after_data(),
    row("WRITE AND VERIFY(16)", WRITES, verify::write_16, &LONG_CDB[2]).writes(),
    row("VERIFY(16)", READS, verify::verify_16, &LONG_CDB[3]),
    row("PRE-FETCH(16)", READS, cache::prefetch_16, &LONG_CDB[4]),
    row("SYNCHRONIZE CACHE(16)", WRITES, cache::synchronize_16, &LONG_CDB[5]),
    row("WRITE SAME(16)", WRITES, write_same::write_same_16, &LONG_CDB[6]).writes(),
    row("READ CAPACITY(16)", INSPECTS, capacity::read_capacity_16, &SERVICE_ACTION_IN[0])
        .in_standby()
        .service_action()
        .timeout_s(MEMORY_TIMEOUT_S),
    row("GET LBA STATUS", READS, lba_status::get_lba_status, &SERVICE_ACTION_IN[1]).service_action(),
    row("BACKGROUND CONTROL", WRITES, readiness::background_control, &SERVICE_ACTION_IN[2])
        .service_action()
        .any_readiness(),
    row(
        "REPORT LUNS",
        FREE,
        report_luns::report_luns,
        &[REPORT_LUNS, 0, 0xff, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0, 0],
    )
    .passes_attention(),
    row(
        "REPORT IDENTIFYING INFORMATION",
        INSPECTS,
        identifying::report,
        &[0xa3, 0x05, 0, 0, 0, 0, 255, 255, 255, 255, 0xfe, 0],
    )
    .service_action()
    .any_readiness(),
    row(
        "REPORT TARGET PORT GROUPS",
        INSPECTS,
        target_port_groups::report,
        &[0xa3, 0xea, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0, 0],
    )
    .service_action()
    .any_readiness()
    .in_every_state(),
    row(
        "REPORT SUPPORTED OPERATION CODES",
        READS,
        report_support::operation_codes,
        &[0xa3, 0x0c, 0x87, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0, 0],
    )
    .service_action()
    .any_occupation(),
    row(
        "REPORT SUPPORTED TASK MANAGEMENT FUNCTIONS",
        READS,
        report_support::task_management_functions,
        &[0xa3, 0x0d, 0x80, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0, 0],
    )
    .service_action()
    .any_occupation(),
    row("REPORT TIMESTAMP", INSPECTS, timestamp::report, &[0xa3, 0x0f, 0, 0, 0, 0, 255, 255, 255, 255, 0, 0])
        .service_action()
        .any_readiness(),
    row(
        "SET IDENTIFYING INFORMATION",
        WRITES,
        identifying::set,
        &[0xa4, 0x06, 0, 0, 0, 0, 255, 255, 255, 255, 0xfe, 0],
    )
    .changes_for_others()
    .service_action()
    .any_readiness(),
    row(
        "SET TARGET PORT GROUPS",
        WRITES,
        target_port_groups::set,
        &[0xa4, 0x0a, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0, 0],
    )
    .changes_for_others()
    .service_action()
    .any_readiness()
    .in_every_state(),
    row("SET TIMESTAMP", WRITES, timestamp::set, &[0xa4, 0x0f, 0, 0, 0, 0, 255, 255, 255, 255, 0, 0])
        .changes_for_others()
        .service_action()
        .any_readiness(),
    row(
        "READ(12)",
        READS,
        read_write::read_12,
        &[0xa8, 0x1a, 255, 255, 255, 255, 255, 255, 255, 255, 0x1f, 0],
    ),
    row(
        "WRITE(12)",
        WRITES,
        read_write::write_12,
        &[0xaa, 0x1a, 255, 255, 255, 255, 255, 255, 255, 255, 0x1f, 0],
    )
    .writes(),
    row(
        "WRITE AND VERIFY(12)",
        WRITES,
        verify::write_12,
        &[0xae, 0x16, 255, 255, 255, 255, 255, 255, 255, 255, 0x1f, 0],
    )
    .writes(),
    row(
        "VERIFY(12)",
        READS,
        verify::verify_12,
        &[0xaf, 0x16, 255, 255, 255, 255, 255, 255, 255, 255, 0x1f, 0],
    ),
    row(
        "READ DEFECT DATA(12)",
        READS,
        diagnostic::read_defect_data_12,
        &[0xb7, 0x1f, 255, 255, 255, 255, 255, 255, 255, 255, 0, 0],
    )
    .timeout_s(MEMORY_TIMEOUT_S),
];

/// Usage of PERSISTENT RESERVE OUT by service action: scope and type, which some ignore, and the list's length.
const RESERVE_OUT: [[u8; 10]; 8] = {
    let mut usage = [[0x5f, 0, 0xff, 0, 0, 0xff, 0xff, 0xff, 0xff, 0]; 8];
    let mut action = 0;
    while action < usage.len() {
        usage[action][1] = action as u8;
        action += 1;
    }
    usage
};

/// Usage of the sixteen-byte commands: flags, 64-bit LBA, 32-bit length, group number.
const LONG_CDB: [[u8; 16]; 8] = [
    long(0x88, 0x1a),
    long(0x8a, 0x1a),
    long(0x8e, 0x16),
    long(0x8f, 0x16),
    long(0x90, 0x02),
    long(0x91, 0x06),
    long(0x93, 0x09),
    long(0x8b, 0x1a),
];

const fn long(opcode: u8, flags: u8) -> [u8; 16] {
    [opcode, flags, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 0x1f, 0]
}

/// Usage of the third-party copy commands: a list identifier of one or four bytes, if any, and a length.
const THIRD_PARTY_COPY_OUT: [[u8; 16]; 5] = [
    [0x83, 0x00, 0, 0, 0, 0, 0, 0, 0, 0, 255, 255, 255, 255, 0, 0],
    [0x83, 0x01, 0, 0, 0, 0, 0, 0, 0, 0, 255, 255, 255, 255, 0, 0],
    [0x83, 0x10, 0, 0, 0, 0, 255, 255, 255, 255, 255, 255, 255, 255, 0x1f, 0],
    [0x83, 0x11, 0, 0, 0, 0, 255, 255, 255, 255, 255, 255, 255, 255, 0x1f, 0],
    [0x83, 0x1c, 255, 255, 255, 255, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
];

const THIRD_PARTY_COPY_IN: [[u8; 16]; 7] = [
    [0x84, 0x00, 255, 0, 0, 0, 0, 0, 0, 0, 255, 255, 255, 255, 0, 0],
    [0x84, 0x01, 255, 0, 0, 0, 0, 0, 0, 0, 255, 255, 255, 255, 0, 0],
    [0x84, 0x03, 0, 0, 0, 0, 0, 0, 0, 0, 255, 255, 255, 255, 0, 0],
    [0x84, 0x04, 255, 0, 0, 0, 0, 0, 0, 0, 255, 255, 255, 255, 0, 0],
    [0x84, 0x05, 255, 255, 255, 255, 0, 0, 0, 0, 255, 255, 255, 255, 0, 0],
    [0x84, 0x07, 255, 255, 255, 255, 0, 0, 0, 0, 255, 255, 255, 255, 0, 0],
    [0x84, 0x08, 0, 0, 0, 0, 0, 0, 0, 0, 255, 255, 255, 255, 0, 0],
];

const SERVICE_ACTION_IN: [[u8; 16]; 3] = [
    [0x9e, 0x10, 0, 0, 0, 0, 0, 0, 0, 0, 255, 255, 255, 255, 0, 0],
    [0x9e, 0x12, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 0, 0],
    [0x9e, 0x15, 0xc0, 0xff, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
];

/// The first row of each operation code; `NO_ROW` where there is none.
static FIRST_ROW: [u8; 256] = {
    let mut first = [NO_ROW; 256];
    let mut index = COMMANDS.len();
    while index > 0 {
        index -= 1;
        first[COMMANDS[index].opcode as usize] = index as u8;
    }
    first
};

const NO_ROW: u8 = u8::MAX;

/// Every row of an operation code: one, or one for each service action.
pub(crate) fn rows(opcode: u8) -> impl Iterator<Item = &'static Command> {
    let first = usize::from(FIRST_ROW[usize::from(opcode)]);
    let rest = COMMANDS.get(first..).unwrap_or_default();
    rest.iter().take_while(move |row| row.opcode == opcode)
}

/// The row of a CDB.
///
/// # Errors
/// INVALID COMMAND OPERATION CODE; for an unknown service action INVALID FIELD IN CDB (SPC-4, service action).
pub(crate) fn find(cdb: &Cdb) -> Result<&'static Command, SenseData> {
    let mut known_opcode = false;
    for row in rows(cdb[0]) {
        match row.service_action {
            Some(action) if action != cdb[1] & 0x1f => known_opcode = true,
            _ => return Ok(row),
        }
    }
    if known_opcode {
        Err(SenseData::invalid_cdb_field(1, 4))
    } else {
        Err(SenseData::illegal(AdditionalSense::INVALID_COMMAND_OPERATION_CODE))
    }
}

/// The name of the command that `cdb` begins with, for logs; `None` for a command that is not supported.
pub fn command_name(cdb: &[u8]) -> Option<&'static str> {
    let mut block: Cdb = [0; 16];
    let length = cdb.len().min(block.len());
    block[..length].copy_from_slice(&cdb[..length]);
    if length == 0 {
        return None;
    }
    find(&block).ok().map(|row| row.name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_in_order_and_unique() {
        let keys: Vec<_> = COMMANDS.iter().map(|row| (row.opcode, row.service_action)).collect();
        assert!(keys.is_sorted());
        assert!(keys.windows(2).all(|pair| pair[0] != pair[1]));
        assert!(COMMANDS.len() < usize::from(NO_ROW));
    }

    #[test]
    fn every_row_is_found_by_its_own_usage() {
        for row in &COMMANDS {
            let mut cdb: Cdb = [0; 16];
            cdb[0] = row.opcode;
            cdb[1] = row.service_action.unwrap_or(0);
            let found = find(&cdb).unwrap_or_else(|_| panic!("{}", row.name));
            assert_eq!(found.name, row.name);
            assert_eq!(row.check_usage(&cdb), Ok(()), "{}", row.name);
        }
    }

    /// SPC-4, operation code: the group code, the top three bits of the operation code, gives the length of the CDB.
    #[test]
    fn lengths_follow_the_group_code() {
        for row in &COMMANDS {
            let expected = match row.opcode >> 5 {
                0 => 6,
                1 | 2 => 10,
                4 => 16,
                5 => 12,
                group => panic!("group {group}"),
            };
            assert_eq!(row.usage.len(), expected, "{}", row.name);
            assert_eq!(row.usage.last(), Some(&0), "CONTROL of {}", row.name);
        }
    }

    /// A handler must not read what its row does not tell: the row would refuse it before.
    #[test]
    fn usage_covers_the_fields_that_handlers_read() {
        // A # for each byte that belongs to an LBA or a length.
        let fields = |row: &Command| match (row.opcode, row.usage.len()) {
            (TEST_UNIT_READY | FORMAT_UNIT | 0x16 | 0x17 | 0x1b | 0x1d | 0x1e, 6)
            | (0x25 | 0x56 | 0x57, 10) => "",
            (0x08 | 0x0a, 6) => "..###.",
            (REQUEST_SENSE | 0x15 | 0x1a, 6) => "....#.",
            (INQUIRY, 6) => "..###.",
            (0x28 | 0x2a | 0x2e | 0x2f | 0x34 | 0x35 | 0x41, 10) => "..####.##.",
            (0x5f, 10) => "..#..####.",
            (0x37 | 0x42 | 0x55 | 0x5a | 0x5e, 10) => ".......##.",
            (0xa8 | 0xaa | 0xae | 0xaf, 12) => "..########..",
            (REPORT_LUNS | 0xa3 | 0xa4 | 0xb7, 12) => "......####..",
            (0x88 | 0x8a | 0x8b | 0x8e | 0x8f | 0x90 | 0x91 | 0x93, 16) => "..############..",
            (0x3b | 0x3c, 10) => "..#######.",
            (0x4c, 10) => ".......##.",
            (0x4d, 10) => "..##.####.",
            (SANITIZE, 10) if row.service_action == Some(1) => ".......##.",
            (SANITIZE, 10) => "",
            (0x89, 16) => "..########...#..",
            (0x9e, 16) if row.service_action == Some(0x15) => "...#............",
            (0x83, 16) if row.service_action == Some(0x1c) => "..####..........",
            (0x83, 16) if matches!(row.service_action, Some(0x10 | 0x11)) => "......########..",
            (0x84, 16) if matches!(row.service_action, Some(0x05 | 0x07)) => "..####....####..",
            (0x84, 16) if !matches!(row.service_action, Some(0x03 | 0x08)) => "..#.......####..",
            (0x83 | 0x84 | 0x9e, 16) => "..........####..",
            other => panic!("say which fields {other:02x?} has"),
        };
        for row in &COMMANDS {
            for (byte, _) in fields(row).char_indices().filter(|&(_, mark)| mark == '#') {
                assert_eq!(row.usage[byte], 0xff, "byte {byte} of {}", row.name);
            }
        }
    }

    #[test]
    fn undefined_bits_are_pointed_at() {
        let mut cdb: Cdb = [0; 16];
        cdb[0] = 0x28;
        cdb[1] = 0x20;
        let row = find(&cdb).unwrap();
        assert_eq!(row.check_usage(&cdb), Err(SenseData::invalid_cdb_field(1, 5)), "RDPROTECT");
        cdb[1] = 0;
        cdb[9] = 0x04;
        assert_eq!(row.check_usage(&cdb), Err(SenseData::invalid_cdb_field(9, 2)), "NACA");
        cdb[9] = 0;
        cdb[10] = 0xff;
        assert_eq!(row.check_usage(&cdb), Ok(()), "bytes after the CDB");
    }

    #[test]
    fn names_for_logs() {
        assert_eq!(command_name(&[0x9e, 0x12]), Some("GET LBA STATUS"));
        assert_eq!(command_name(&[0x9e, 0x1f]), None);
        assert_eq!(command_name(&[0xff; 16]), None);
        assert_eq!(command_name(&[]), None);
    }
}
