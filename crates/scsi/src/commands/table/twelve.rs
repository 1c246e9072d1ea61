//! The rows of commands with twelve bytes: operation codes A0h to BFh.

use super::{FREE, INSPECTS, PROTECT_FIELD, READS, WRITES};
use crate::codes::opcode::REPORT_LUNS;
use crate::commands::row::{Command, MEMORY_TIMEOUT_S, row};
use crate::commands::{
    diagnostic, identifying, priority, read_write, report_luns, report_support, target_port_groups,
    timestamp, verify,
};

/// In rising order of operation code and service action.
pub(super) const ROWS: &[Command] = &[
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
    .in_every_state()
    .when_lost(|_| true),
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
    row(
        "REPORT PRIORITY",
        INSPECTS,
        priority::report,
        &[0xa3, 0x0e, 0xc0, 0, 0, 0, 255, 255, 255, 255, 0, 0],
    )
    .service_action()
    .any_readiness(),
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
    row("SET PRIORITY", WRITES, priority::set, &[0xa4, 0x0e, 0xc0, 0, 0, 0, 255, 255, 255, 255, 0, 0])
        .changes_for_others()
        .service_action()
        .any_readiness(),
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
