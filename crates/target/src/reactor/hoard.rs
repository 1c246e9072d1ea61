//! Sessions that keep memory which others wait for: initiators that take no answers, or send no data, and are alive otherwise.
//!
//! Nobody is to keep what he does not use while others get nothing (docs/decisions/0006). Who only is slow keeps what he has, as long
//! as he gives back half of it in the time that all have; and so does who waits for his disk.

use std::time::Duration;

use lunette_block::BufferPool;

/// How long it may take to give back half of what is kept, while others get nothing. Linux gives a command as long.
pub(super) const HOARD_PATIENCE: Duration = Duration::from_secs(30);

/// Who keeps less than this part of all memory takes none away from others.
const HOARD_PART: usize = 256;

/// Initiators that were told that a target is busy try again some time, but not each second.
const SCARCE_FOR: Duration = Duration::from_secs(5);

/// Whether there is memory for everybody, as a reactor sees it once a second.
#[derive(Debug, Default)]
pub(super) struct Scarcity {
    starvations: u64,
    noted_at: Option<Duration>,
}

impl Scarcity {
    /// So often have sessions that had nothing got nothing. Answers whether memory is scarce now.
    pub(super) fn note(&mut self, now: Duration, starvations: u64) -> bool {
        if std::mem::replace(&mut self.starvations, starvations) != starvations {
            self.noted_at = Some(now);
        }
        self.noted_at.is_some_and(|noted_at| now.saturating_sub(noted_at) < SCARCE_FOR)
    }
}

/// What a session has, and has given back, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Holding {
    held: usize,
    returned: u64,
}

/// What a session held when it was looked at first, or had given back half of it.
#[derive(Debug, Default)]
pub(super) struct Hoard {
    mark: Option<(Duration, Holding)>,
}

impl Hoard {
    /// Whether the session of this share has kept for too long what others wait for.
    pub(super) fn is_over(&mut self, now: Duration, do_others_wait: bool, pool: &BufferPool) -> bool {
        let holding = Holding { held: pool.taken_bytes(), returned: pool.returned_bytes() };
        self.look(now, do_others_wait && holding.held >= pool.limit_bytes() / HOARD_PART, holding)
    }

    fn look(&mut self, now: Duration, do_others_wait: bool, holding: Holding) -> bool {
        let moves = |mark: &Holding| holding.returned - mark.returned >= mark.held as u64 / 2;
        match &self.mark {
            _ if !do_others_wait => self.mark = None,
            Some((since, mark)) if !moves(mark) => return now.saturating_sub(*since) >= HOARD_PATIENCE,
            _ => self.mark = Some((now, holding)),
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: fn(u64) -> Duration = Duration::from_secs;

    #[test]
    fn memory_is_scarce_while_somebody_gets_nothing() {
        let mut scarcity = Scarcity::default();
        assert!(!scarcity.note(S(1), 0));
        assert!(scarcity.note(S(2), 3) && scarcity.note(S(6), 3));
        assert!(!scarcity.note(S(7), 3) && scarcity.note(S(8), 4));
    }

    /// After how many seconds a session is over that gives back so much of 1000 bytes a second, if others wait all the time.
    fn over_after(returned_a_second: u64) -> Option<u64> {
        let mut hoard = Hoard::default();
        (0..600)
            .find(|now| hoard.look(S(*now), true, Holding { held: 1000, returned: now * returned_a_second }))
    }

    #[test]
    fn who_gives_back_nothing_is_over_and_who_is_slow_is_not() {
        assert_eq!((over_after(0), over_after(1), over_after(16)), (Some(30), Some(30), Some(30)));
        assert_eq!((over_after(17), over_after(1000)), (None, None));
    }

    #[test]
    fn nobody_is_over_who_keeps_no_others_waiting() {
        let mut hoard = Hoard::default();
        let holding = Holding { held: 1000, returned: 0 };
        for now in 0..600 {
            assert!(!hoard.look(S(now), now % 30 != 0, holding), "{now}");
        }
        let (pool, mut hoard) = (BufferPool::new(4 << 20).share(), Hoard::default());
        let short = pool.allocate((4 << 20) / HOARD_PART / 2);
        assert!(short.is_some() && !hoard.is_over(S(0), true, &pool) && !hoard.is_over(S(60), true, &pool));
        let long = pool.allocate((4 << 20) / HOARD_PART);
        assert!(long.is_some() && !hoard.is_over(S(61), true, &pool) && hoard.is_over(S(91), true, &pool));
        drop(long);
        assert!(!hoard.is_over(S(92), true, &pool));
    }
}
