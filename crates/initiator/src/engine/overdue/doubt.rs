//! Questions that may have been ended by another command's failure. A unit whose QERR is 01b or 11b aborts what else it has of a
//! session when a command ends with CHECK CONDITION, and tells nobody (SPC-4, control mode page; SAM-5, 5.9.2). What it was asked
//! beside that command is then never answered; and since it only asks, it can be ended and asked again much earlier than other commands.

use std::time::Duration;

use lunette_wire::LunField;

use super::super::Engine;
use super::super::table::Pending;

/// How long a question is waited for once another command of its unit has ended with CHECK CONDITION. A unit that takes longer to answer is
/// asked a second time, and has as long as ever then.
const PATIENCE: Duration = Duration::from_secs(2);

const SERVICE_ACTION_IN_16: u8 = 0x9e;
const READ_CAPACITY_16: u8 = 0x10;

/// True for what only asks about a unit, and not for what is on its medium.
const fn is_question(cdb: &[u8]) -> bool {
    match cdb {
        // TEST UNIT READY, INQUIRY, MODE SENSE(6), READ CAPACITY(10), MODE SENSE(10), REPORT LUNS, MAINTENANCE IN.
        [0x00 | 0x12 | 0x1a | 0x25 | 0x5a | 0xa0 | 0xa3, ..] => true,
        [SERVICE_ACTION_IN_16, action, ..] => *action & 0x1f == READ_CAPACITY_16,
        _ => false,
    }
}

impl Engine {
    /// A command of a unit, the one at this place, has ended with CHECK CONDITION: who has asked beside it may wait for nothing.
    pub(in super::super) fn doubt_questions(&mut self, lun: LunField, failed: u32) {
        let now = self.now;
        if self.table.doubt(now, |place, pending| {
            place != failed && pending.command.lun == lun && is_question(pending.command.cdb.bytes())
        }) {
            let due = now.saturating_add(PATIENCE);
            self.overdue.look_at = Some(self.overdue.look_at.map_or(due, |look_at| look_at.min(due)));
        }
    }

    /// How long a command may take that has left, as it is known by now; none: as long as it wants.
    pub(super) fn limit_by_now(&self, pending: &Pending) -> Option<Duration> {
        let limit = self.limit_of(&pending.command)?;
        match (pending.doubted_at, pending.moved_at) {
            // Its time is counted from when it last got on. What may take for ever may do so now, too.
            (Some(doubted_at), Some(moved_at)) if limit != Duration::MAX => {
                Some(limit.min(doubted_at.saturating_sub(moved_at).saturating_add(PATIENCE)))
            }
            _ => Some(limit),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_questions_are_doubted() {
        for cdb in [&[0x00][..], &[0x12], &[0x1a], &[0x25], &[0x9e, 0x10], &[0x5a], &[0xa0], &[0xa3]] {
            assert!(is_question(cdb), "{cdb:x?}");
        }
        // GET LBA STATUS looks at all of a thin unit's map; nothing of the medium is asked for again so early.
        for cdb in [&[0x28][..], &[0x2a], &[0x35], &[0x9e, 0x12], &[0x9e], &[0x2f], &[]] {
            assert!(!is_question(cdb), "{cdb:x?}");
        }
    }
}
