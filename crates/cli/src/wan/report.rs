//! What a network has carried, and whether this machine kept up with it.

use std::time::Duration;

use lunette_link::Link;
use lunette_wan::Statistics;
use serde::{Deserialize, Serialize};

/// A round trip is to be right within this, or within a fiftieth of it where that is more.
const ROUND_TRIP_TOLERANCE: Duration = Duration::from_micros(300);

/// Of fewer packets half being late says nothing.
const PACKETS_MIN: u64 = 20;

/// What became of the packets of one direction.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Direction {
    offered: u64,
    dropped: u64,
    lost: u64,
    duplicated: u64,
    corrupted: u64,
    reordered: u64,
    arrived: u64,
    arrived_bytes: u64,
    overrun: u64,
    lateness_median_us: u64,
    lateness_p99_us: u64,
    lateness_max_us: u64,
}

impl From<&Statistics> for Direction {
    fn from(statistics: &Statistics) -> Self {
        let counts = statistics.counts;
        let micros = |time: Duration| time.as_micros().try_into().unwrap_or(u64::MAX);
        Self {
            offered: counts.offered,
            dropped: counts.dropped,
            lost: counts.lost,
            duplicated: counts.duplicated,
            corrupted: counts.corrupted,
            reordered: counts.reordered,
            arrived: counts.arrived,
            arrived_bytes: counts.arrived_bytes,
            overrun: statistics.overrun,
            lateness_median_us: micros(statistics.lateness_median),
            lateness_p99_us: micros(statistics.lateness_p99),
            lateness_max_us: micros(statistics.lateness_max),
        }
    }
}

/// What a network has carried so far.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Report {
    /// Not one of a proxy, which knows no packets.
    mode: String,
    pub(super) link: String,
    pub(super) seed: u64,
    /// Whether the kernel hands over several segments at once.
    pub(super) offload: bool,
    up: Direction,
    down: Direction,
    /// What is wrong with the figures, if anything is.
    pub(super) doubt: Option<String>,
}

impl Report {
    pub(super) fn new(link: &Link, seed: u64, offload: bool, statistics: &[Statistics; 2]) -> Self {
        let [up, down] = statistics.each_ref().map(Direction::from);
        let mode = "network".to_owned();
        Self { mode, link: link.to_string(), seed, offload, up, down, doubt: doubt(link, statistics) }
    }

    /// A line for each direction.
    pub(super) fn lines(&self) -> [String; 2] {
        [("near to far", &self.up), ("far to near", &self.down)].map(|(name, direction)| {
            format!(
                "{name}: {} packets, {} dropped, {} lost, {} doubled, {} damaged, {} held up; {} bytes arrived",
                direction.offered,
                direction.dropped,
                direction.lost,
                direction.duplicated,
                direction.corrupted,
                direction.reordered,
                direction.arrived_bytes
            )
        })
    }
}

/// Whether this machine kept up with the link.
fn doubt(link: &Link, statistics: &[Statistics; 2]) -> Option<String> {
    let overrun: u64 = statistics.iter().map(|direction| direction.overrun).sum();
    if overrun > 0 {
        return Some(format!(
            "this machine is too slow for this link: {overrun} packets were lost before they came to it"
        ));
    }
    if statistics.iter().any(|direction| direction.counts.arrived < PACKETS_MIN) {
        return None;
    }
    let late: Duration = statistics.iter().map(|direction| direction.lateness_median).sum();
    let tolerance = ROUND_TRIP_TOLERANCE.max(link.round_trip() / 50);
    (late > tolerance).then(|| {
        format!(
            "this machine is too busy for this link: half of the packets were more than {} us late there and back",
            late.as_micros()
        )
    })
}
