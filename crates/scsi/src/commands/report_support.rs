//! REPORT SUPPORTED OPERATION CODES and REPORT SUPPORTED TASK MANAGEMENT FUNCTIONS (SPC-4).

use super::row::Command;
use super::table::{COMMANDS, rows};
use super::{Context, Progress, parameter_data};
use crate::bytes::{Cdb, cdb16, cdb32};
use crate::sense::SenseData;
use crate::unit::LogicalUnit;

/// RCTD: the initiator wants command timeouts descriptors.
const TIMEOUTS: u8 = 0x80;

pub(super) fn operation_codes(context: &Context<'_>, cdb: &Cdb) -> Progress {
    let timeouts = cdb[2] & TIMEOUTS != 0;
    let data = match cdb[2] & 0x07 {
        0 => all_commands(context.unit(), timeouts),
        option @ 1..=3 => one_command(context.unit(), option, cdb[3], cdb16::<4>(cdb), timeouts)?,
        _ => return Err(SenseData::invalid_cdb_field(2, 2)),
    };
    parameter_data(data, cdb32::<6>(cdb))
}

fn all_commands(unit: &LogicalUnit, timeouts: bool) -> Vec<u8> {
    let mut data = vec![0; 4];
    for row in COMMANDS.iter().filter(|row| row.supported_by(unit)) {
        let [action_high, action_low] = u16::from(row.service_action.unwrap_or(0)).to_be_bytes();
        // CTDP and SERVACTV
        let flags = u8::from(timeouts) << 1 | u8::from(row.service_action.is_some());
        data.extend([row.opcode, 0, action_high, action_low, 0, flags, 0, row.usage.len() as u8]);
        if timeouts {
            data.extend(timeouts_descriptor(row));
        }
    }
    let length = (data.len() - 4) as u32;
    data[..4].copy_from_slice(&length.to_be_bytes());
    data
}

/// Options 1 and 2 refuse a question in the wrong form: with or without a service action. Option 3 takes both.
fn one_command(
    unit: &LogicalUnit,
    option: u8,
    opcode: u8,
    service_action: u16,
    timeouts: bool,
) -> Result<Vec<u8>, SenseData> {
    let mut with_actions = false;
    let mut found = None;
    for row in rows(opcode) {
        with_actions |= row.service_action.is_some();
        let asked = row.service_action.map_or(0, u16::from) == service_action;
        if (asked || option == 1) && row.supported_by(unit) {
            found = found.or(Some(row));
        }
    }
    let known = rows(opcode).next().is_some();
    if known && (option == 1 && with_actions || option == 2 && !with_actions) {
        return Err(SenseData::invalid_cdb_field(2, 2));
    }
    Ok(found.map_or_else(|| vec![0, 0x01, 0, 0], |row| describe(unit, row, timeouts)))
}

/// SUPPORT 011b: as the standard says.
fn describe(unit: &LogicalUnit, row: &Command, timeouts: bool) -> Vec<u8> {
    let mut data = vec![0, u8::from(timeouts) << 7 | 0x03, 0, row.usage.len() as u8];
    data.extend(row.usage_data(unit));
    if timeouts {
        data.extend(timeouts_descriptor(row));
    }
    data
}

/// The nominal time depends on the store, so it is not told.
fn timeouts_descriptor(row: &Command) -> [u8; 12] {
    let mut descriptor = [0; 12];
    descriptor[1] = 0x0a;
    descriptor[8..].copy_from_slice(&row.timeout_s.to_be_bytes());
    descriptor
}

/// What an iSCSI target can be asked for (RFC 7143 11.5.1, RFC 7144) and does.
pub(super) fn task_management_functions(_: &Context<'_>, cdb: &Cdb) -> Progress {
    const EXTENDED: u8 = 0x80;
    let allocation_length = cdb32::<6>(cdb);
    // SPC-4: at least the four bytes of the short form.
    if allocation_length < 4 {
        return Err(SenseData::invalid_cdb_field(6, 7));
    }
    // ABORT TASK, ABORT TASK SET, CLEAR ACA, CLEAR TASK SET, LOGICAL UNIT RESET, QUERY TASK, TARGET RESET; then QUERY ASYNCHRONOUS
    // EVENT, QUERY TASK SET, I_T NEXUS RESET.
    let mut data = vec![0xfe, 0x07, 0, 0];
    if cdb[2] & EXTENDED != 0 {
        data[3] = 0x0c;
        data.resize(16, 0);
    }
    parameter_data(data, allocation_length)
}
