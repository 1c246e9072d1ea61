//! Which responses need a fence (RFC 7143, 4.2.2.3.4), as far as they answer commands. What a fence does is the session's
//! affair; functions know by themselves.

use lunette_scsi::{Completion, EncodedSense, SenseKey, Status, asks_for_allegiance};

/// PERSISTENT RESERVE OUT, and its service action PREEMPT AND ABORT (SPC-4).
const PERSISTENT_RESERVE_OUT: u8 = 0x5f;
const PREEMPT_AND_ABORT: u8 = 0x05;

/// ADDITIONAL SENSE CODEs of unit attentions behind a multi-task abort: a reset, or commands cleared by another initiator.
const RESET: u8 = 0x29;
const CLEARED: u8 = 0x2f;

/// Whether the response to this CDB of at most 16 bytes needs a fence: it tells that tasks were ended, or that an auto
/// contingent allegiance begins or stands. Every unit attention of these kinds counts, the first one after an abort among
/// them.
pub(super) fn needs_fence(completion: &Completion, cdb: &[u8; 16]) -> bool {
    match completion.status {
        Status::AcaActive => true,
        Status::CheckCondition => {
            let tells_of_end = |sense: &EncodedSense| {
                sense.key() == SenseKey::UnitAttention as u8 && [RESET, CLEARED].contains(&sense.asc())
            };
            completion.sense.as_ref().is_some_and(tells_of_end) || asks_for_allegiance(cdb)
        }
        Status::Good => cdb[0] == PERSISTENT_RESERVE_OUT && cdb[1] & 0x1f == PREEMPT_AND_ABORT,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cdb(bytes: &[u8]) -> [u8; 16] {
        let mut cdb = [0; 16];
        cdb[..bytes.len()].copy_from_slice(bytes);
        cdb
    }

    /// The list of 4.2.2.3.4, and what is not on it.
    #[test]
    fn what_ends_or_blocks_the_tasks_of_others_is_fenced() {
        let attention = Completion::check_condition(SenseKey::UnitAttention, 0x2f, 0);
        let reset = Completion::check_condition(SenseKey::UnitAttention, 0x29, 3);
        let changed = Completion::check_condition(SenseKey::UnitAttention, 0x2a, 1);
        let error = Completion::check_condition(SenseKey::MediumError, 0x11, 0);
        let good = Completion::status(Status::Good);
        let ready = cdb(&[0; 6]);
        assert!(needs_fence(&attention, &ready) && needs_fence(&reset, &ready));
        assert!(needs_fence(&Completion::status(Status::AcaActive), &ready));
        assert!(needs_fence(&good, &cdb(&[0x5f, 0x05])));
        for (completion, cdb) in [
            (&error, ready),
            (&changed, ready),
            (&good, ready),
            (&good, cdb(&[0x5f, 0x04])),
            (&Completion::status(Status::TaskAborted), ready),
        ] {
            assert!(!needs_fence(completion, &cdb), "{completion:?}");
        }
    }

    /// NACA of the CONTROL byte (SAM-5).
    const NACA: u8 = 0x04;

    #[test]
    fn a_condition_begins_where_the_cdb_asks_for_it() {
        let error = Completion::check_condition(SenseKey::MediumError, 0x11, 0);
        for (operation, at) in [(0x08, 5), (0x28, 9), (0x4d, 9), (0x88, 15), (0xa8, 11), (0x7f, 1)] {
            let mut asking = cdb(&[operation]);
            assert!(!needs_fence(&error, &asking));
            asking[at] = NACA;
            assert!(needs_fence(&error, &asking), "{operation:#04x}");
            assert!(!needs_fence(&Completion::status(Status::Good), &asking));
        }
    }
}
