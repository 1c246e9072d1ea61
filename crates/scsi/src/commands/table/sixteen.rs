//! The rows of commands with sixteen bytes: operation codes 80h to 9Fh.

use super::usage::{
    LONG_BLOCK_16, LONG_CDB, SERVICE_ACTION_IN, THIRD_PARTY_COPY_IN, THIRD_PARTY_COPY_OUT, WRITE_ATOMIC,
};
use super::{COPY_TIMEOUT_S, INSPECTS, PROTECT_FIELD, READS, WRITES, keeps_state};
use crate::commands::row::{Command, MEMORY_TIMEOUT_S, row};
use crate::commands::{
    cache, capacity, copy_results, extended_copy, lba_status, long, read_modify_write, read_write, readiness,
    tokens, verify, write_atomic, write_same,
};

/// In rising order of operation code and service action.
pub(super) const ROWS: &[Command] = &[
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
];
