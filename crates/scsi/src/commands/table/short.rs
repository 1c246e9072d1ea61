//! The rows of commands with six and ten bytes: operation codes 00h to 5Fh.

use super::usage::{LONG_BLOCK, RESERVE_OUT};
use super::{
    FORMAT_PROTECTION_INFORMATION, FREE, INSPECTS, PROTECT_FIELD, READS, WHOLE_MEDIUM_TIMEOUT_S, WRITES,
    keeps_state,
};
use crate::codes::opcode::{FORMAT_UNIT, INQUIRY, REQUEST_SENSE, SANITIZE, TEST_UNIT_READY};
use crate::commands::persistent_reserve::report;
use crate::commands::row::{Command, MEDIUM_TIMEOUT_S, MEMORY_TIMEOUT_S, row};
use crate::commands::{
    buffer, cache, capacity, diagnostic, format, inquiry, log_pages, long, mode_pages, persistent_reserve,
    read_write, readiness, reserve, sanitize, start_stop, unmap, verify, write_same,
};
use crate::reservations::access::{Access, of_prevent_allow, of_start_stop, starts};

/// In rising order of operation code and service action.
pub(super) const ROWS: &[Command] = &[
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
    .when_lost(starts)
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
    .any_readiness()
    .when_lost(|_| true),
    row("READ BUFFER(10)", READS, buffer::read_buffer, &[0x3c, 0x1f, 255, 255, 255, 255, 255, 255, 255, 0])
        .in_standby()
        .any_readiness()
        .when_lost(|_| true),
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
        .any_readiness()
        .when_lost(|_| true),
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
    row("PERSISTENT RESERVE OUT, REPLACE LOST RESERVATION", FREE, persistent_reserve::out, &RESERVE_OUT[8])
        .changes_for_others()
        .in_standby()
        .service_action()
        .any_readiness()
        .when_lost(|_| true),
];
