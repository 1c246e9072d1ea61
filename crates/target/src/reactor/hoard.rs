//! Sessions that keep memory which others wait for: initiators that take no answers, or send no data, or leave out what their commands
//! wait for, and are alive otherwise.
//!
//! Nobody is to keep what he does not use while others get nothing (docs/decisions/0006). Who only is slow keeps what he has, as long
//! as he takes, or sends, half as much in the time that all have; and so does who waits for his disk.

use std::time::Duration;

use lunette_wire::CmdSn;

/// How long it may take to move half as many bytes as are kept, while others get nothing. Linux gives a command as long.
pub(super) const HOARD_PATIENCE: Duration = Duration::from_secs(30);

/// Initiators that were told that a target is busy try again some time, but not each second.
const SCARCE_FOR: Duration = Duration::from_secs(15);

/// Others that did not wait for so long begin to wait anew.
const GAP_MAX: Duration = Duration::from_secs(5);

/// Whether there is memory for everybody, as a reactor sees it once a second.
#[derive(Debug, Default)]
pub(super) struct Scarcity {
    starvations: u64,
    noted_at: Option<Duration>,
}

impl Scarcity {
    /// So often has the pool refused those who have little. Answers whether memory is scarce now.
    pub(super) fn note(&mut self, now: Duration, starvations: u64) -> bool {
        if std::mem::replace(&mut self.starvations, starvations) != starvations {
            self.noted_at = Some(now);
        }
        self.noted_at.is_some_and(|noted_at| now.saturating_sub(noted_at) < SCARCE_FOR)
    }
}

/// What a session kept when others began to wait, or when it had moved half of what it kept before.
#[derive(Debug)]
struct Mark {
    since: Duration,
    looked_at: Duration,
    kept_bytes: usize,
    moved: Moved,
}

impl Mark {
    fn holds(&self, now: Duration, moved: Moved) -> bool {
        // Of connections that are gone nothing is known.
        let bytes = moved.bytes.checked_sub(self.moved.bytes);
        let is_stuck = bytes.is_some_and(|bytes| bytes < self.kept_bytes as u64 / 2);
        is_stuck && moved.up_to == self.moved.up_to && now.saturating_sub(self.looked_at) <= GAP_MAX
    }
}

/// How far a session has come.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Moved {
    /// What it has taken and sent so far, of what counts.
    pub(super) bytes: u64,
    /// Where commands in order are what it owes: the first one that has not come.
    pub(super) up_to: Option<CmdSn>,
}

/// What is known of a session that keeps others waiting.
#[derive(Debug, Default)]
pub(super) struct Hoard {
    mark: Option<Mark>,
}

impl Hoard {
    /// Others wait, and so long it is the initiator's turn. Answers whether it has kept for too long what it has, for how far it has come.
    pub(super) fn is_over(&mut self, now: Duration, kept_bytes: usize, moved: Moved) -> bool {
        match &mut self.mark {
            Some(mark) if mark.holds(now, moved) => {
                mark.looked_at = now;
                now.saturating_sub(mark.since) >= HOARD_PATIENCE
            }
            mark => {
                *mark = Some(Mark { since: now, looked_at: now, kept_bytes, moved });
                false
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: fn(u64) -> Duration = Duration::from_secs;

    const fn moved(bytes: u64) -> Moved {
        Moved { bytes, up_to: None }
    }

    #[test]
    fn memory_is_scarce_while_somebody_is_refused() {
        let mut scarcity = Scarcity::default();
        assert!(!scarcity.note(S(1), 0));
        assert!(scarcity.note(S(2), 3) && scarcity.note(S(16), 3));
        assert!(!scarcity.note(S(17), 3) && scarcity.note(S(18), 4));
    }

    /// After how many seconds a session is over that keeps 1000 bytes and moves so many a second, if others wait all the time.
    fn over_after(moved_a_second: u64) -> Option<u64> {
        let mut hoard = Hoard::default();
        (0..600).find(|now| hoard.is_over(S(*now), 1000, moved(now * moved_a_second)))
    }

    #[test]
    fn who_moves_nothing_is_over_and_who_is_slow_is_not() {
        assert_eq!((over_after(0), over_after(1), over_after(16)), (Some(30), Some(30), Some(30)));
        assert_eq!((over_after(17), over_after(1000)), (None, None));
    }

    #[test]
    fn who_keeps_nothing_or_nobody_waiting_is_not_over() {
        let mut hoard = Hoard::default();
        assert!((0..600).all(|now| !hoard.is_over(S(now), 0, moved(0))));
        // Others wait now and then: for 20 s, and then for none of 10.
        let mut hoard = Hoard::default();
        assert!((0..600).filter(|now| now % 30 < 20).all(|now| !hoard.is_over(S(now), 1000, moved(0))));
        // A look that is missed tells nothing, nor does a connection that is gone.
        let mut hoard = Hoard::default();
        let over = (0..60).filter(|now| now % 4 != 3).find(|now| hoard.is_over(S(*now), 1000, moved(0)));
        assert_eq!(over, Some(30));
        let mut hoard = Hoard::default();
        assert!((0..60).all(|now| !hoard.is_over(S(now), 1000, moved(600 - now))));
    }

    #[test]
    fn who_sends_what_its_commands_wait_for_is_not_over() {
        let over_after = |each_s: u64| {
            let mut hoard = Hoard::default();
            let up_to = |now: u64| Some(CmdSn((now / each_s) as u32));
            (0..600).find(|now| hoard.is_over(S(*now), 1000, Moved { bytes: 0, up_to: up_to(*now) }))
        };
        assert_eq!((over_after(1), over_after(29), over_after(40)), (None, None, Some(30)));
    }
}
