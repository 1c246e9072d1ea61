//! The command table: dispatch and REPORT SUPPORTED OPERATION CODES read the same rows (SPC-4, SBC-3).
//!
//! A new command is a new row in one of the parts here, and a handler in its module.

mod short;
mod sixteen;
mod twelve;
mod usage;

use super::row::Command;
use crate::bytes::Cdb;
pub(super) use crate::codes::opcode::{INQUIRY, REPORT_LUNS, REQUEST_SENSE, TEST_UNIT_READY};
use crate::reservations::access::Access;
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
pub(crate) static COMMANDS: [Command; short::ROWS.len() + sixteen::ROWS.len() + twelve::ROWS.len()] =
    joined([short::ROWS, sixteen::ROWS, twelve::ROWS]);

const fn joined<const COUNT: usize>(parts: [&[Command]; 3]) -> [Command; COUNT] {
    let mut rows = [parts[0][0]; COUNT];
    let (mut count, mut part) = (0, 0);
    while part < parts.len() {
        let mut at = 0;
        while at < parts[part].len() {
            rows[count] = parts[part][at];
            (count, at) = (count + 1, at + 1);
        }
        part += 1;
    }
    rows
}

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
