//! What may be carried out a second time (SPC-4, SBC-3): the judgement behind [`crate::Replay`].
//!
//! A command that was not answered may have been carried out. Whoever only reads can do so again. A write can, if what it
//! wrote is still to be there; that nothing else has changed it since, only the caller knows. A flush never can: it speaks
//! of writes before it, which a reset in between may have lost.

use crate::{Command, Replay};

/// What a command is, for this purpose.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Changes nothing, and depends on nothing that a session has.
    Reads,
    /// Puts given bytes at given blocks.
    Writes,
    /// Makes what was written before it durable.
    Flushes,
    /// Anything else: reservations, parameters, operations on the medium.
    Other,
}

pub(crate) const REQUEST_SENSE: u8 = 0x03;
const SYNCHRONIZE_CACHE_10: u8 = 0x35;
const SYNCHRONIZE_CACHE_16: u8 = 0x91;
const SERVICE_ACTION_IN_16: u8 = 0x9e;
/// READ CAPACITY(16), GET LBA STATUS, REPORT REFERRALS.
const READING_ACTIONS: [u8; 3] = [0x10, 0x12, 0x13];

/// What a CDB asks for.
pub(crate) fn kind(cdb: &[u8]) -> Kind {
    match cdb.first().copied().unwrap_or(0) {
        // TEST UNIT READY, READ(6), INQUIRY, MODE SENSE(6), READ CAPACITY(10), READ(10), VERIFY(10), READ DEFECT DATA,
        // LOG SENSE, MODE SENSE(10), PERSISTENT RESERVE IN, READ(16), VERIFY(16), REPORT LUNS, MAINTENANCE IN, READ(12).
        0x00 | 0x08 | 0x12 | 0x1a | 0x25 | 0x28 | 0x2f | 0x37 | 0x4d | 0x5a | 0x5e | 0x88 | 0x8f | 0xa0
        | 0xa3 | 0xa8 | 0xaf => Kind::Reads,
        SERVICE_ACTION_IN_16
            if cdb.get(1).is_some_and(|action| READING_ACTIONS.contains(&(action & 0x1f))) =>
        {
            Kind::Reads
        }
        // WRITE(6), (10), (16), (12), and the same with VERIFY.
        0x0a | 0x2a | 0x8a | 0xaa | 0x2e | 0x8e | 0xae => Kind::Writes,
        SYNCHRONIZE_CACHE_10 | SYNCHRONIZE_CACHE_16 => Kind::Flushes,
        _ => Kind::Other,
    }
}

/// True for SYNCHRONIZE CACHE.
pub(super) fn is_flush(command: &Command) -> bool {
    kind(command.cdb.bytes()) == Kind::Flushes
}

/// True for what changes nothing.
pub(super) fn is_read(command: &Command) -> bool {
    kind(command.cdb.bytes()) == Kind::Reads
}

/// True for what may change something that another command may have changed since. A flush only keeps what is there, and REQUEST SENSE
/// takes what is told once.
pub(super) fn may_change(command: &Command) -> bool {
    let cdb = command.cdb.bytes();
    matches!(kind(cdb), Kind::Writes | Kind::Other) && cdb.first() != Some(&REQUEST_SENSE)
}

/// True for what may work on more than it transfers, and so longer than a read or a write.
pub(super) fn may_take_long(command: &Command) -> bool {
    matches!(kind(command.cdb.bytes()), Kind::Flushes | Kind::Other)
}

/// Whether something may be in the unit's cache after a command that no good flush has covered.
pub(super) fn leaves_dirty(command: &Command, is_good: bool) -> bool {
    kind_leaves_dirty(kind(command.cdb.bytes()), is_good)
}

/// The same of a kind of commands.
pub(crate) const fn kind_leaves_dirty(kind: Kind, is_good: bool) -> bool {
    match kind {
        Kind::Reads => false,
        Kind::Flushes => !is_good,
        Kind::Writes | Kind::Other => true,
    }
}

/// The session that the completion of a command tells. A change may have been answered before a reset that came to light before
/// the answer: it counts as of the session that it was sent in. What was read or made stable is of the session of its answer.
pub(crate) const fn session_told(kind: Kind, sent_in: u32, answered_in: u32) -> u32 {
    match kind {
        Kind::Writes | Kind::Other => sent_in,
        Kind::Reads | Kind::Flushes => answered_in,
    }
}

/// Whether a command goes on in the next session. `may_have_run`: it had left.
pub(super) fn may_go_on(command: &Command, may_have_run: bool) -> bool {
    kind_may_go_on(command.replay, kind(command.cdb.bytes()), may_have_run)
}

/// The same of a kind of commands.
pub(crate) const fn kind_may_go_on(replay: Replay, kind: Kind, may_have_run: bool) -> bool {
    match (replay, kind) {
        (Replay::Never, _) | (_, Kind::Flushes) => false,
        (Replay::Always, _) | (Replay::WhereSafe, Kind::Reads) => true,
        (Replay::WhereSafe, Kind::Writes) => !may_have_run,
        (Replay::WhereSafe, Kind::Other) => false,
    }
}

/// What a unit says about the time since the last command (SPC-4, additional sense codes 28h and 29h).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Attention {
    /// The nexus was lost, and nothing else: the session before ended.
    NexusLoss,
    /// A reset or a restart: a volatile cache may have lost what was in it.
    Reset,
    /// The medium may be another one.
    Medium,
    /// No unit attention, but a deferred error: a command that was answered before has failed since (SPC-4, 4.5.7), and what it
    /// wrote may be lost. The unit tells it once.
    Deferred,
}

impl Attention {
    /// What was answered and not flushed may be lost.
    pub(crate) const fn tells_loss(self) -> bool {
        matches!(self, Self::Reset | Self::Deferred)
    }
}

/// Reads sense data of a command that was not carried out because of a reset, the loss of its nexus, another medium or a deferred error.
pub(crate) fn attention(sense: &[u8]) -> Option<Attention> {
    const DEFERRED: [u8; 2] = [0x71, 0x73];
    const UNIT_ATTENTION: u8 = 6;
    const MEDIUM: u8 = 0x28;
    const RESET: u8 = 0x29;
    const NEXUS_LOSS: u8 = 0x07;
    if DEFERRED.contains(&(sense.first()? & 0x7f)) {
        return Some(Attention::Deferred);
    }
    let (key, code, qualifier) = match sense.first()? & 0x7f {
        0x70 => (*sense.get(2)?, *sense.get(12)?, *sense.get(13)?),
        0x72 => (*sense.get(1)?, *sense.get(2)?, *sense.get(3)?),
        _ => return None,
    };
    match (key & 0x0f, code, qualifier) {
        (UNIT_ATTENTION, RESET, NEXUS_LOSS) => Some(Attention::NexusLoss),
        (UNIT_ATTENTION, RESET, _) => Some(Attention::Reset),
        (UNIT_ATTENTION, MEDIUM, 0) => Some(Attention::Medium),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Lun;

    fn command(cdb: &[u8], replay: Replay) -> Command {
        Command::new(Lun::default(), cdb).replaying(replay)
    }

    #[test]
    fn reads_go_on_and_writes_only_if_they_had_not_left() {
        let read = command(&[0x28], Replay::WhereSafe);
        let write = command(&[0x8a], Replay::WhereSafe);
        let capacity = command(&[0x9e, 0x10], Replay::WhereSafe);
        assert!(may_go_on(&read, true) && may_go_on(&capacity, true));
        assert!(may_go_on(&write, false) && !may_go_on(&write, true));
        assert!(!may_go_on(&command(&[0x9e, 0x01], Replay::WhereSafe), true));
    }

    #[test]
    fn what_the_caller_says_holds_but_for_flushes() {
        let unmap = |replay| command(&[0x42], replay);
        assert!(!may_go_on(&unmap(Replay::WhereSafe), false));
        assert!(may_go_on(&unmap(Replay::Always), true));
        assert!(!may_go_on(&command(&[0x28], Replay::Never), false));
        for opcode in [0x35, 0x91] {
            let flush = command(&[opcode], Replay::Always);
            assert!(is_flush(&flush) && !may_go_on(&flush, false));
        }
    }

    #[test]
    fn ghosts_are_feared_where_something_may_change() {
        let may_change = |cdb: &[u8]| may_change(&command(cdb, Replay::Always));
        assert!([0x2a, 0x42, 0x5f, 0x89].iter().all(|opcode| may_change(&[*opcode])));
        assert!(![0x28, 0x35, 0x91, 0x03, 0x00].iter().any(|opcode| may_change(&[*opcode])));
    }

    #[test]
    fn resets_are_told_from_the_loss_of_a_nexus() {
        let mut fixed = [0; 18];
        (fixed[0], fixed[2], fixed[12], fixed[13]) = (0x70, 6, 0x29, 7);
        assert_eq!(attention(&fixed), Some(Attention::NexusLoss));
        fixed[13] = 0;
        assert_eq!(attention(&fixed), Some(Attention::Reset));
        fixed[12] = 0x2a;
        assert_eq!(attention(&fixed), None);
        assert_eq!(attention(&[0x72, 6, 0x29, 1]), Some(Attention::Reset));
        assert_eq!(attention(&[0x72, 6, 0x28, 0]), Some(Attention::Medium));
        for bytes in [&[][..], &[0x70], &[0x72, 6], &[0x74, 0, 6, 0], &[0x72, 5, 0x29, 0]] {
            assert_eq!(attention(bytes), None);
        }
    }

    #[test]
    fn a_deferred_error_tells_a_loss_whatever_else_it_says() {
        for bytes in [&[0x71][..], &[0xf1, 0, 6, 0, 0], &[0x73, 6, 0x29, 7], &[0x73, 3, 0x0c, 0]] {
            assert_eq!(attention(bytes), Some(Attention::Deferred));
        }
        assert!(Attention::Deferred.tells_loss() && !Attention::NexusLoss.tells_loss());
    }
}
