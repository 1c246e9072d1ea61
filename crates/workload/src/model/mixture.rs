//! Commands of several sizes, and reads beside writes: what is to be expected of them together.

use std::time::Duration;

use super::{Expected, Limit, NetworkPath, Settings, expect, reached};
use crate::{Kind, Sizes};

/// What is to be expected of commands of one kind and several sizes, in the share that their weights say.
///
/// They share one window and one line: each command has its own time, so that times add up by their weights, and each byte has its own
/// part of a limit. A command's round trips are those of the size that has most.
#[must_use]
pub fn expect_mix(path: &NetworkPath, settings: &Settings, kind: Kind, sizes: &Sizes) -> Expected {
    let each: Vec<(f64, f64, Expected)> = sizes
        .weighted()
        .map(|(size, share)| (share, share * f64::from(size), expect(path, settings, kind, size)))
        .collect();
    if let [(_, _, only)] = each[..] {
        return only;
    }
    let bytes = sizes.mean();
    let limits: [f64; 4] = std::array::from_fn(|at| {
        let spent: f64 = each.iter().map(|(_, part, expected)| part / expected.limits[at]).sum();
        if spent > 0.0 { bytes / spent } else { f64::INFINITY }
    });
    let kept: f64 = each.iter().map(|(_, part, expected)| part / bytes * expected.kept).sum();
    let (limit, bytes_per_s) = reached(&limits, kept);
    let time_s: f64 =
        each.iter().map(|(share, _, expected)| share * expected.command_time.as_secs_f64()).sum();
    Expected {
        bytes_per_s,
        limit,
        command_time: Duration::try_from_secs_f64(time_s).unwrap_or(Duration::MAX),
        round_trips: each.iter().map(|(_, _, expected)| expected.round_trips).max().unwrap_or(1),
        limits,
        kept,
    }
}

/// What is to be expected of reads and writes side by side, of which this share reads; and the limit.
///
/// The two directions of a line are taken not to disturb each other, so that each kind may use its own up to its limits;
/// commands are shared. Where one direction is much narrower they do ([`super::advice::Question::expected`]). What writes with
/// R2Ts lose where two limits meet they lose by their share.
#[must_use]
pub fn mixed(read: &Expected, write: &Expected, read_share: f64) -> (f64, Limit) {
    if read_share >= 1.0 {
        return (read.bytes_per_s, read.limit);
    }
    if read_share <= 0.0 {
        return (write.bytes_per_s, write.limit);
    }
    let write_share = 1.0 - read_share;
    // With one command after the other, times add up; each other limit holds for its own share of the whole.
    let limits: [f64; 4] = std::array::from_fn(|at| match Limit::ALL[at] {
        Limit::Window => 1.0 / (read_share / read.limits[at] + write_share / write.limits[at]),
        _ => (read.limits[at] / read_share).min(write.limits[at] / write_share),
    });
    let (limit, bytes_per_s) = reached(&limits, read_share * read.kept + write_share * write.kept);
    (bytes_per_s, limit)
}

#[cfg(test)]
mod tests {
    use super::super::CongestionControl;
    use super::super::tests::{assert_near, oc3, solicited, unsolicited};
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn sizes_share_a_window_and_a_line() {
        let mix = |text: &str| -> Sizes { text.parse().unwrap() };
        let expected =
            |text: &str, settings: &Settings, kind| expect_mix(&oc3(50), settings, kind, &mix(text));
        // One size is what it is alone, also with a weight, and twice.
        let alone = expect(&oc3(50), &solicited(8), Kind::Write, 64 << 10);
        assert_eq!(expected("64K:7", &solicited(8), Kind::Write), alone);
        assert_near(expected("64K:7,64K:1", &solicited(8), Kind::Write).bytes_per_s, alone.bytes_per_s);
        // One after the other: nine of 4 KiB in 50.2 ms each, and one of 1 MiB in 106 ms.
        let (few, large) = (expected("4K:9,1M:1", &unsolicited(1), Kind::Read), f64::from(1 << 20));
        let time_s = 9.0 * (0.05 + 4096.0 / 18.70e6) + 0.05 + large / 18.70e6;
        assert_near(few.bytes_per_s, (9.0 * 4096.0 + large) / time_s);
        assert_near(few.command_time.as_secs_f64(), time_s / 10.0);
        assert_eq!((few.limit, few.round_trips), (Limit::Window, 1));
        // Of a full line sizes are no matter.
        let full = expected("4K:9,1M:1", &unsolicited(64), Kind::Read);
        assert_eq!(full.limit, Limit::Link);
        assert_near(full.bytes_per_s, 18.70e6);
        assert_eq!(expected("4K:9,1M:1", &solicited(1), Kind::Write).round_trips, 5);
    }

    #[test]
    fn reads_and_writes_share_commands_and_not_the_line() {
        let both = |window, size: u32, share| {
            let [read, write] =
                [Kind::Read, Kind::Write].map(|kind| expect(&oc3(10), &solicited(window), kind, size));
            mixed(&read, &write, share)
        };
        // Half of the time goes to one round trip each, half of it to two.
        let (bytes_per_s, limit) = both(1, 1024, 0.5);
        assert_near(bytes_per_s, 1024.0 / 0.015);
        assert_eq!(limit, Limit::Window);
        // Both directions are full.
        let (bytes_per_s, limit) = both(512, 256 << 10, 0.5);
        assert_near(bytes_per_s, 2.0 * 155e6 / 8.0 * 1448.0 / 1500.0);
        assert_eq!(limit, Limit::Link);
    }

    #[test]
    fn writes_among_reads_lose_what_they_lose_alone() {
        let [read, write] =
            [Kind::Read, Kind::Write].map(|kind| expect(&oc3(50), &solicited(32), kind, 64 << 10));
        let of = |share| mixed(&read, &write, share).0 / 1e6;
        assert_near(of(0.0), 17.30);
        // The reads take no room from the writes' line, and as many commands as their share.
        assert_near(of(0.01), 17.49);
        assert_near(of(0.99), 18.88);
        assert_near(of(1.0), 18.70);
    }

    proptest! {
        #![proptest_config(lunette_cases::cases(500))]

        #[test]
        fn one_in_a_hundred_of_the_other_kind_makes_no_jump(
            mbit in 1.0_f64..10_000.0,
            round_trip_us in 0_u64..300_000,
            (window, size_kib, is_asked) in (1_u32..300, 1_u32..256, any::<bool>()),
            loss in prop::sample::select(vec![0.0, 1e-5, 1e-3]),
            tcp_window_bytes in prop::option::of(1_u64 << 14..1 << 26),
        ) {
            let path = NetworkPath {
                rate_bits_per_s: Some(mbit * 1e6),
                round_trip: Duration::from_micros(round_trip_us),
                loss,
                congestion_control: CongestionControl::Cubic,
                tcp_window_bytes,
                ..oc3(0)
            };
            let settings = if is_asked { solicited(window) } else { unsolicited(window) };
            let [read, write] =
                [Kind::Read, Kind::Write].map(|kind| expect(&path, &settings, kind, size_kib << 10));
            for (alone, little) in [(0.0, 0.01), (1.0, 0.99)] {
                let jump = mixed(&read, &write, little).0 / mixed(&read, &write, alone).0 - 1.0;
                prop_assert!(jump.abs() < 0.015, "{jump} at {alone}");
            }
        }
    }
}
