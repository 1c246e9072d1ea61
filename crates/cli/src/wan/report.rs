//! What a network has carried, and whether this machine kept up with it.

use std::time::Duration;

use lunette_link::Link;
use lunette_wan::{Keeping, Statistics};
use serde::{Deserialize, Serialize};

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
    refused: u64,
    outpaced: u64,
    /// How long packets waited for the transmitter and were sent by it: the mean over all their bytes.
    #[serde(default)]
    sojourn_us: u64,
    lateness_median_us: u64,
    lateness_p99_us: u64,
    lateness_max_us: u64,
    intake_lateness_median_us: u64,
    intake_lateness_p99_us: u64,
    intake_lateness_max_us: u64,
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
            refused: statistics.refused,
            outpaced: statistics.outpaced,
            sojourn_us: micros(counts.sojourn.mean()),
            lateness_median_us: micros(statistics.lateness_median),
            lateness_p99_us: micros(statistics.lateness_p99),
            lateness_max_us: micros(statistics.lateness_max),
            intake_lateness_median_us: micros(statistics.intake_lateness_median),
            intake_lateness_p99_us: micros(statistics.intake_lateness_p99),
            intake_lateness_max_us: micros(statistics.intake_lateness_max),
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
        let doubt = Keeping::of(statistics).doubt(link).map(|doubt| doubt.to_string());
        Self { mode, link: link.to_string(), seed, offload, up, down, doubt }
    }

    /// A line for each direction.
    pub(super) fn lines(&self) -> [String; 2] {
        [("near to far", &self.up), ("far to near", &self.down)].map(|(name, direction)| {
            let beside = match (direction.overrun, direction.refused) {
                (0, _) => String::new(),
                (overrun, 0) => format!(", {overrun} dropped by this machine"),
                (overrun, refused) => {
                    format!(", {overrun} dropped by this machine ({refused} at the end where they arrive)")
                }
            };
            format!(
                "{name}: {} packets, {} dropped, {} lost, {} doubled, {} damaged, {} held up{beside}; {} bytes arrived, in the queue and the transmitter for {} us on average",
                direction.offered,
                direction.dropped,
                direction.lost,
                direction.duplicated,
                direction.corrupted,
                direction.reordered,
                direction.arrived_bytes,
                direction.sojourn_us
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use lunette_link::Counts;

    use super::*;

    fn statistics(arrived: u64, late_us: u64) -> Statistics {
        Statistics {
            counts: Counts { offered: arrived, arrived, arrived_bytes: 100 * arrived, ..Counts::default() },
            lateness_median: Duration::from_micros(late_us),
            lateness_p99: Duration::from_micros(2 * late_us),
            lateness_max: Duration::from_micros(3 * late_us),
            intake_lateness_median: Duration::ZERO,
            intake_lateness_p99: Duration::ZERO,
            intake_lateness_max: Duration::ZERO,
            overrun: 0,
            refused: 0,
            outpaced: 0,
        }
    }

    fn report(link: &str, statistics: [Statistics; 2]) -> Report {
        Report::new(&link.parse().expect("a link"), 1, true, &statistics)
    }

    #[test]
    fn a_machine_that_is_late_is_doubted() {
        let doubt =
            |link, up_us, down_us| report(link, [statistics(1000, up_us), statistics(20, down_us)]).doubt;
        // 0.3 ms there and back, or a fiftieth of the round trip.
        assert_eq!(doubt("rtt=2ms", 150, 150), None);
        let says = doubt("rtt=2ms", 150, 151).expect("a doubt");
        assert!(says.contains("half of the packets were more than 301 us late there and back"), "{says}");
        assert_eq!(doubt("rtt=50ms", 500, 500), None);
        assert!(doubt("rtt=50ms", 500, 501).is_some());
    }

    #[test]
    fn what_waits_to_be_taken_in_is_late_too() {
        let waited = |up_us| Statistics {
            intake_lateness_median: Duration::from_micros(up_us),
            intake_lateness_max: Duration::from_millis(280),
            ..statistics(20, 100)
        };
        let of = |up_us| report("rtt=2ms", [waited(up_us), statistics(20, 100)]);
        assert_eq!(of(100).doubt, None);
        assert!(of(101).doubt.is_some_and(|doubt| doubt.contains("more than 301 us late")));
        let json = serde_json::to_value(of(100)).expect("JSON");
        assert_eq!(json["up"]["intake_lateness_max_us"], 280_000);
    }

    /// No packet was late by much: what came is this machine's all the same.
    #[test]
    fn a_machine_that_is_slower_than_the_link_is_doubted() {
        let of = |arrived, outpaced| {
            let slow = Statistics { outpaced, ..statistics(arrived, 10) };
            report("rate=400G", [statistics(20, 10), slow])
        };
        assert_eq!((of(2000, 1000).doubt, of(999, 999).doubt), (None, None));
        let doubted = of(1980, 1010);
        let says = doubted.doubt.as_deref().unwrap_or_default();
        assert_eq!(
            says,
            "this machine is too slow for this link: 51 % of the packets of one direction took it longer than the link"
        );
        // Nearly all of a few acknowledgements hide nothing of the data that goes the other way.
        let few = Statistics { outpaced: 500, ..statistics(520, 10) };
        let many = Statistics { outpaced: 1_800_000, ..statistics(2_000_000, 10) };
        let says = report("rate=400G", [few, many]).doubt;
        assert!(says.is_some_and(|says| says.contains("90 % of the packets of one direction")));
        let json = serde_json::to_value(&doubted).expect("JSON");
        assert_eq!((&json["up"]["outpaced"], &json["down"]["outpaced"]), (&0.into(), &1010.into()));
    }

    #[test]
    fn a_few_late_packets_say_nothing() {
        assert_eq!(report("local", [statistics(19, 5000), statistics(1000, 5000)]).doubt, None);
        assert!(report("local", [statistics(20, 5000), statistics(1000, 5000)]).doubt.is_some());
    }

    #[test]
    fn what_this_machine_loses_is_doubted_and_told() {
        for (refused, told) in [
            (0, "0 held up, 3 dropped by this machine; "),
            (2, "0 held up, 3 dropped by this machine (2 at the end where they arrive); "),
        ] {
            let lossy = Statistics { overrun: 3, refused, ..statistics(1, 0) };
            let report = report("oc3-50", [statistics(1, 0), lossy]);
            let says = report.doubt.as_deref().unwrap_or_default();
            assert!(says.contains("too slow for this link: 3 packets were lost"), "{says}");
            let [up, down] = report.lines();
            assert!(up.contains("0 held up; 100 bytes") && down.contains(told), "{up} {down}");
            let json = serde_json::to_value(&report).expect("JSON");
            assert_eq!((&json["down"]["overrun"], &json["down"]["refused"]), (&3.into(), &refused.into()));
        }
    }
}
