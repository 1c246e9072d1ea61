//! Sessions that keep memory which others wait for: initiators that take no answers, or send no data, and are alive otherwise.
//!
//! Nobody is to keep what he does not use while others get nothing (docs/decisions/0006). Who only is slow keeps what he has, as long
//! as he takes, or sends, half as much in the time that all have; and so does who waits for his disk.

use std::time::Duration;

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
    moved_bytes: u64,
}

impl Mark {
    fn holds(&self, now: Duration, moved_bytes: u64) -> bool {
        // Of connections that are gone nothing is known.
        let moved = moved_bytes.checked_sub(self.moved_bytes);
        let is_stuck = moved.is_some_and(|bytes| bytes < self.kept_bytes as u64 / 2);
        is_stuck && now.saturating_sub(self.looked_at) <= GAP_MAX
    }
}

/// What is known of a session that keeps others waiting.
#[derive(Debug, Default)]
pub(super) struct Hoard {
    mark: Option<Mark>,
}

impl Hoard {
    /// Others wait, and so long it is the initiator's turn. Answers whether it has kept for too long what it has, of how much it has taken
    /// or sent so far.
    pub(super) fn is_over(&mut self, now: Duration, kept_bytes: usize, moved_bytes: u64) -> bool {
        match &mut self.mark {
            Some(mark) if mark.holds(now, moved_bytes) => {
                mark.looked_at = now;
                now.saturating_sub(mark.since) >= HOARD_PATIENCE
            }
            mark => {
                *mark = Some(Mark { since: now, looked_at: now, kept_bytes, moved_bytes });
                false
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: fn(u64) -> Duration = Duration::from_secs;

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
        (0..600).find(|now| hoard.is_over(S(*now), 1000, now * moved_a_second))
    }

    #[test]
    fn who_moves_nothing_is_over_and_who_is_slow_is_not() {
        assert_eq!((over_after(0), over_after(1), over_after(16)), (Some(30), Some(30), Some(30)));
        assert_eq!((over_after(17), over_after(1000)), (None, None));
    }

    #[test]
    fn who_keeps_nothing_or_nobody_waiting_is_not_over() {
        let mut hoard = Hoard::default();
        assert!((0..600).all(|now| !hoard.is_over(S(now), 0, 0)));
        // Others wait now and then: for 20 s, and then for none of 10.
        let mut hoard = Hoard::default();
        assert!((0..600).filter(|now| now % 30 < 20).all(|now| !hoard.is_over(S(now), 1000, 0)));
        // A look that is missed tells nothing, nor does a connection that is gone.
        let mut hoard = Hoard::default();
        let over = (0..60).filter(|now| now % 4 != 3).find(|now| hoard.is_over(S(*now), 1000, 0));
        assert_eq!(over, Some(30));
        let mut hoard = Hoard::default();
        assert!((0..60).all(|now| !hoard.is_over(S(now), 1000, 600 - now)));
    }
}
