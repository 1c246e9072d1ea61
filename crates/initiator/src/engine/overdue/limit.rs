//! How long a command of each kind may take (SPC-4, SBC-3): what only transfers data has the usual limit, what works on more than
//! it transfers has longer.

use crate::Command;
use crate::engine::replay;

/// How many times the usual limit a command has that may work on more than it transfers: ten minutes of a full cache are many
/// gigabytes.
const LONG: u32 = 10;
/// The same for what works on a whole medium: a day.
const MEDIUM: u32 = 1440;

const FORMAT_UNIT: u8 = 0x04;
/// Its self-tests read the whole medium.
const SEND_DIAGNOSTIC: u8 = 0x1d;
const SANITIZE: u8 = 0x48;
const VERIFY_10: u8 = 0x2f;
const VERIFY_16: u8 = 0x8f;
const VERIFY_12: u8 = 0xaf;

/// How many times the usual limit a command has.
pub(super) fn factor(command: &Command) -> u32 {
    match command.cdb.bytes().first().copied() {
        Some(FORMAT_UNIT | SEND_DIAGNOSTIC | SANITIZE) => MEDIUM,
        Some(VERIFY_10 | VERIFY_16 | VERIFY_12) => LONG,
        _ if replay::may_take_long(command) => LONG,
        _ => 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Lun;

    #[test]
    fn what_works_on_more_than_it_transfers_has_longer() {
        let of = |cdb: &[u8]| factor(&Command::new(Lun::default(), cdb));
        for opcode in [0x00, 0x12, 0x28, 0x2a, 0x88, 0x8a] {
            assert_eq!(of(&[opcode]), 1, "{opcode:#x}");
        }
        // SYNCHRONIZE CACHE, VERIFY, WRITE SAME, UNMAP.
        for opcode in [0x35, 0x91, 0x2f, 0x8f, 0xaf, 0x41, 0x93, 0x42] {
            assert_eq!(of(&[opcode]), LONG, "{opcode:#x}");
        }
        for opcode in [0x04, 0x48, 0x1d] {
            assert_eq!(of(&[opcode]), MEDIUM, "{opcode:#x}");
        }
    }
}
