//! Commands of several sizes: what is to be expected of them together.

use std::time::Duration;

use super::{Expected, NetworkPath, Settings, expect, reached};
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

#[cfg(test)]
mod tests {
    use super::super::Limit;
    use super::super::tests::{assert_near, oc3, solicited, unsolicited};
    use super::*;

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
}
