//! The command table: dispatch and REPORT SUPPORTED OPERATION CODES read the same rows (SPC-4, SBC-3).
//!
//! A new command is a new row here and a handler in its module.

mod usage;

use usage::{
    LONG_BLOCK, LONG_BLOCK_16, LONG_CDB, RESERVE_OUT, SERVICE_ACTION_IN, THIRD_PARTY_COPY_IN,
    THIRD_PARTY_COPY_OUT, WRITE_ATOMIC,
};

use super::persistent_reserve::report;
use super::row::{Command, MEDIUM_TIMEOUT_S, MEMORY_TIMEOUT_S, row};
use super::{
    buffer, cache, capacity, copy_results, diagnostic, extended_copy, format, identifying, inquiry,
    lba_status, log_pages, long, mode_pages, persistent_reserve, read_modify_write, read_write, readiness,
    report_luns, report_support, reserve, sanitize, start_stop, target_port_groups, timestamp, tokens, unmap,
    verify, write_atomic, write_same,
};
use crate::bytes::Cdb;
use crate::codes::opcode::{FORMAT_UNIT, SANITIZE};
pub(super) use crate::codes::opcode::{INQUIRY, REPORT_LUNS, REQUEST_SENSE, TEST_UNIT_READY};
use crate::reservations::access::{Access, of_prevent_allow, of_start_stop};
use crate::sense::{AdditionalSense, SenseData};
use crate::unit::LogicalUnit;

/// What it should give one that writes the whole medium.
const WHOLE_MEDIUM_TIMEOUT_S: u32 = 7 * 24 * 60 * 60;
/// What it should give one that copies as much as a parameter list can ask for.
const COPY_TIMEOUT_S: u32 = 600;

const FREE: Access = Access::Free;
const INSPECTS: Access = Access::Inspects;
const READS: Access = Access::Reads;
const WRITES: Access = Access::Writes;

/// What WRITE LONG marks must be there after a restart.
fn keeps_state(unit: &LogicalUnit) -> bool {
    unit.saved().is_kept()
}

/// RDPROTECT, WRPROTECT, VRPROTECT and ORPROTECT.
const PROTECT_FIELD: u8 = 0xe0;
/// FMTPINFO
const FORMAT_PROTECTION_INFORMATION: u8 = 0xc0;

/// Every command, in rising order of operation code and service action.
pub(crate) static COMMANDS: [Command; 89] = [
    row("TEST UNIT READY", INSPECTS, readiness::test_unit_ready, &[TEST_UNIT_READY, 0, 0, 0, 0, 0])
        .timeout_s(MEMORY_TIMEOUT_S),
    row("REQUEST SENSE", FREE, readiness::request_sense, &[REQUEST_SENSE, 0x01, 0, 0, 0xff, 0])
        .passes_attention(),
    row("FORMAT UNIT", WRITES, format::format_unit, &[FORMAT_UNIT, 0x3f, 0, 0, 0, 0])
        .protect_bits(FORMAT_PROTECTION_INFORMATION)
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
    row("READ(10)", READS, read_write::read_10, &[0x28, 0x1a, 0xff, 0xff, 0xff, 0xff, 0x1f, 0xff, 0xff, 0])
        .protect_bits(PROTECT_FIELD),
    row(
        "WRITE(10)",
        WRITES,
        read_write::write_10,
        &[0x2a, 0x1a, 0xff, 0xff, 0xff, 0xff, 0x1f, 0xff, 0xff, 0],
    )
    .protect_bits(PROTECT_FIELD)
    .writes(),
    row(
        "WRITE AND VERIFY(10)",
        WRITES,
        verify::write_10,
        &[0x2e, 0x16, 0xff, 0xff, 0xff, 0xff, 0x1f, 0xff, 0xff, 0],
    )
    .protect_bits(PROTECT_FIELD)
    .writes(),
    row("VERIFY(10)", READS, verify::verify_10, &[0x2f, 0x16, 0xff, 0xff, 0xff, 0xff, 0x1f, 0xff, 0xff, 0])
        .protect_bits(PROTECT_FIELD),
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
    row("READ LONG(10)", READS, long::read_10, &LONG_BLOCK[0]),
    row("WRITE LONG(10)", WRITES, long::write_10, &LONG_BLOCK[1]).writes().exists_on(keeps_state),
    row(
        "WRITE SAME(10)",
        WRITES,
        write_same::write_same_10,
        &[0x41, 0x18, 0xff, 0xff, 0xff, 0xff, 0x1f, 0xff, 0xff, 0],
    )
    .protect_bits(PROTECT_FIELD)
    .writes(),
    row("UNMAP", WRITES, unmap::unmap, &[0x42, 0x01, 0, 0, 0, 0, 0x1f, 0xff, 0xff, 0]).writes().needs_unmap(),
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
    row("READ(16)", READS, read_write::read_16, &LONG_CDB[0]).protect_bits(PROTECT_FIELD),
    row(
        "COMPARE AND WRITE",
        WRITES,
        read_modify_write::compare_and_write,
        &[0x89, 0x1a, 255, 255, 255, 255, 255, 255, 255, 255, 0, 0, 0, 255, 0x1f, 0],
    )
    .protect_bits(PROTECT_FIELD)
    .writes()
    .alone_after_data(),
    row("WRITE(16)", WRITES, read_write::write_16, &LONG_CDB[1]).protect_bits(PROTECT_FIELD).writes(),
    row("ORWRITE(16)", WRITES, read_modify_write::or_write, &LONG_CDB[7])
        .protect_bits(PROTECT_FIELD)
        .writes()
        .alone_after_data(),
    row("WRITE AND VERIFY(16)", WRITES, verify::write_16, &LONG_CDB[2]).protect_bits(PROTECT_FIELD).writes(),
    row("VERIFY(16)", READS, verify::verify_16, &LONG_CDB[3]).protect_bits(PROTECT_FIELD),
    row("PRE-FETCH(16)", READS, cache::prefetch_16, &LONG_CDB[4]),
    row("SYNCHRONIZE CACHE(16)", WRITES, cache::synchronize_16, &LONG_CDB[5]),
    row("WRITE SAME(16)", WRITES, write_same::write_same_16, &LONG_CDB[6])
        .protect_bits(PROTECT_FIELD)
        .writes(),
    row("WRITE ATOMIC(16)", WRITES, write_atomic::write_atomic_16, &WRITE_ATOMIC)
        .writes()
        .exists_on(|unit| unit.config().atomic_writes.is_some())
        .alone_after_data(),
    row("READ CAPACITY(16)", INSPECTS, capacity::read_capacity_16, &SERVICE_ACTION_IN[0])
        .in_standby()
        .service_action()
        .timeout_s(MEMORY_TIMEOUT_S),
    row("READ LONG(16)", READS, long::read_16, &LONG_BLOCK_16[0]).service_action(),
    row("GET LBA STATUS", READS, lba_status::get_lba_status, &SERVICE_ACTION_IN[1]).service_action(),
    row("BACKGROUND CONTROL", WRITES, readiness::background_control, &SERVICE_ACTION_IN[2])
        .service_action()
        .any_readiness(),
    row("WRITE LONG(16)", WRITES, long::write_16, &LONG_BLOCK_16[1])
        .service_action()
        .writes()
        .exists_on(keeps_state),
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
    )
    .protect_bits(PROTECT_FIELD),
    row(
        "WRITE(12)",
        WRITES,
        read_write::write_12,
        &[0xaa, 0x1a, 255, 255, 255, 255, 255, 255, 255, 255, 0x1f, 0],
    )
    .protect_bits(PROTECT_FIELD)
    .writes(),
    row(
        "WRITE AND VERIFY(12)",
        WRITES,
        verify::write_12,
        &[0xae, 0x16, 255, 255, 255, 255, 255, 255, 255, 255, 0x1f, 0],
    )
    .protect_bits(PROTECT_FIELD)
    .writes(),
    row(
        "VERIFY(12)",
        READS,
        verify::verify_12,
        &[0xaf, 0x16, 255, 255, 255, 255, 255, 255, 255, 255, 0x1f, 0],
    )
    .protect_bits(PROTECT_FIELD),
    row(
        "READ DEFECT DATA(12)",
        READS,
        diagnostic::read_defect_data_12,
        &[0xb7, 0x1f, 255, 255, 255, 255, 255, 255, 255, 255, 0, 0],
    )
    .timeout_s(MEMORY_TIMEOUT_S),
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
mod tests;
