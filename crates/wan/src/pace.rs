//! Whether the thread that carries packets is slower with them than the link's transmitter would be.
//!
//! Lateness does not tell: TCP sends no more than comes back, and where that is slow no packet waits for long.

use std::time::Duration;

use lunette_link::Rate;

/// So many packets that are due at once have waited for the thread, or came together.
const MANY: usize = 32;

/// How long turns are looked at together, at least.
const LOOK: Duration = Duration::from_millis(5);

/// Who is at work for less than this part of the time, a quarter, has soon made up for what a burst has cost.
const PARTS_AT_WORK: u32 = 4;

/// What a thread did since it was last looked at.
#[derive(Debug, Default)]
pub(crate) struct Pace {
    began: Duration,
    worked: Duration,
    outpaced: u64,
}

impl Pace {
    /// In a turn from one moment of any clock to another so many packets went out, which have so many bytes on the line. Gives how many
    /// of some milliseconds took longer than they take on the link, as soon as that is known.
    pub(crate) fn take(
        &mut self,
        [woken, now]: [Duration; 2],
        packets: usize,
        line_bytes: usize,
        rate: Option<Rate>,
    ) -> u64 {
        let took = now.saturating_sub(woken);
        self.worked += took;
        if packets >= MANY && rate.is_some_and(|rate| rate.time_for(line_bytes) < took) {
            self.outpaced += packets as u64;
        }
        let looked = now.saturating_sub(self.began);
        if looked < LOOK {
            return 0;
        }
        let outpaced = if self.worked * PARTS_AT_WORK >= looked { self.outpaced } else { 0 };
        *self = Self { began: now, ..Self::default() };
        outpaced
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const US: fn(u64) -> Duration = Duration::from_micros;

    /// Turns of so many packets of 1500 bytes, each so long after the one before, for 50 ms: how many packets are outpaced by a
    /// gigabit, on which one takes 12 us.
    fn outpaced(packets: usize, took_us: u64, apart_us: u64) -> u64 {
        let rate = Some("1G".parse().expect("a rate"));
        let mut pace = Pace::default();
        let ends = (1..).map(|turn| US(turn * apart_us)).take_while(|end| *end <= US(50_000));
        ends.map(|end| pace.take([end - US(took_us), end], packets, packets * 1500, rate)).sum()
    }

    #[test]
    fn streams_that_take_longer_than_on_the_link_are_outpaced() {
        // 32 packets take 384 us on the link.
        assert_eq!(outpaced(32, 384, 1000), 0, "as long as there");
        assert_eq!(outpaced(32, 400, 1000), 50 * 32);
        assert_eq!(outpaced(31, 400, 1000), 0, "a few");
        assert_eq!(outpaced(32, 400, 1600), 31 / 4 * 4 * 32, "four in each look, at work for a quarter");
        assert_eq!(outpaced(32, 400, 1700), 0, "there is time between them");
        assert_eq!(outpaced(64, 800, 10_000), 0, "bursts");
    }

    #[test]
    fn a_link_without_a_rate_outpaces_nobody_and_a_pause_is_no_work() {
        let mut pace = Pace::default();
        assert_eq!(pace.take([Duration::ZERO, US(9000)], 64, 96_000, None), 0);
        let rate = Some("1G".parse().expect("a rate"));
        assert_eq!(
            pace.take([US(999_000), US(1_000_000)], 64, 96_000, rate),
            0,
            "behind a second of nothing"
        );
        assert_eq!(pace.take([US(1_000_000), US(1_006_000)], 64, 96_000, rate), 64);
    }
}
