//! Whether figures that were taken over a link are the link's, or this machine's.

use std::fmt;
use std::time::Duration;

use lunette_link::Link;

use crate::direction::Statistics;
use crate::watcher::{Keeping, Outpaced};

/// A round trip is to be right within this, or within a fiftieth of it where that is more.
pub(crate) const ROUND_TRIP_TOLERANCE: Duration = Duration::from_micros(300);

/// Of fewer packets half being late says nothing.
const PACKETS_MIN: u64 = 20;

/// Nor does it that fewer took longer than on the link: some turns are no stream.
const OUTPACED_MIN: u64 = 1000;

/// Where more of one direction's packets did than this share of them, what came is what this machine lets through.
pub const OUTPACED_SHARE: f64 = 0.5;

/// Why figures are this machine's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Doubt {
    /// So many packets were lost beside the link.
    Lost(u64),
    /// More than half of one direction's packets, so many in a hundred, took longer than on the link.
    Outpaced {
        /// Rounded.
        percent: u64,
    },
    /// Half of the packets were so late, there and back.
    Late(Duration),
}

impl fmt::Display for Doubt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Lost(packets) => write!(
                f,
                "this machine is too slow for this link: {packets} packets were lost before they came to it or behind it"
            ),
            Self::Outpaced { percent } => write!(
                f,
                "this machine is too slow for this link: {percent} % of the packets of one direction took it longer than the link"
            ),
            Self::Late(late) => write!(
                f,
                "this machine is too busy for this link: half of the packets were more than {} us late there and back",
                late.as_micros()
            ),
        }
    }
}

impl Keeping {
    /// How the link was kept from a network's beginning on.
    #[must_use]
    pub fn of(statistics: &[Statistics; 2]) -> Self {
        let sum = |of: fn(&Statistics) -> u64| statistics.iter().map(of).sum();
        let arrived = statistics.each_ref().map(|direction| direction.counts.arrived + direction.refused);
        let [up, down] = statistics;
        Self {
            lateness_median: up.lateness_median + down.lateness_median,
            intake_lateness_median: up.intake_lateness_median + down.intake_lateness_median,
            overrun: sum(|direction| direction.overrun),
            lost: statistics.each_ref().map(|direction| direction.counts.lost),
            dropped: sum(|direction| direction.counts.dropped),
            passed: statistics
                .each_ref()
                .map(|direction| direction.counts.offered - direction.counts.dropped),
            fewest: arrived[0].min(arrived[1]),
            outpaced: [
                Outpaced { packets: up.outpaced, of: arrived[0] },
                Outpaced { packets: down.outpaced, of: arrived[1] },
            ],
        }
    }

    /// The share of one direction's packets that took this machine longer than the link, of the direction that had more of them; 0
    /// where they were so few that it says nothing.
    #[must_use]
    pub fn outpaced_share(&self) -> f64 {
        let ways = self.outpaced.iter().filter(|way| way.packets >= OUTPACED_MIN);
        ways.map(|way| (way.packets as f64 / way.of as f64).min(1.0)).fold(0.0, f64::max)
    }

    /// Whether this machine kept up with the link, for whoever measures over it.
    #[must_use]
    pub fn doubt(&self, link: &Link) -> Option<Doubt> {
        if self.overrun > 0 {
            return Some(Doubt::Lost(self.overrun));
        }
        // Each by itself: a direction with few packets says nothing of the other.
        let outpaced = self.outpaced_share();
        if outpaced > OUTPACED_SHARE {
            return Some(Doubt::Outpaced { percent: (outpaced * 100.0).round() as u64 });
        }
        let late = self.lateness_median + self.intake_lateness_median;
        let tolerance = ROUND_TRIP_TOLERANCE.max(link.round_trip() / 50);
        (self.fewest >= PACKETS_MIN && late > tolerance).then_some(Doubt::Late(late))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_direction_that_was_slower_tells_unless_it_is_of_few() {
        let share = |ways: [(u64, u64); 2]| {
            let outpaced = ways.map(|(packets, of)| Outpaced { packets, of });
            Keeping { outpaced, ..Keeping::default() }.outpaced_share()
        };
        assert_eq!(share([(1_000, 4_000), (3_000, 4_000)]), 0.75);
        assert_eq!(share([(999, 1_000), (0, 0)]), 0.0);
        // What took longer is told a little later than what went out.
        assert_eq!(share([(2_000, 1_900), (0, 0)]), 1.0);
        assert_eq!(share([(2_000, 0), (0, 0)]), 1.0);
    }
}
