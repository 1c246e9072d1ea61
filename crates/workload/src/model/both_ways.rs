//! What one direction of a line does to the other: acknowledgements and commands go where the data of the others goes.
//!
//! Whoever receives acknowledges every second full segment (RFC 5681, 4.2), so that data in one direction takes a part of the line in
//! the other one. RFC 3449 has what comes of that where the way back is much narrower: acknowledgements alone may fill it (3.1), and
//! behind the data of others they wait and then come all together (3.3).
//!
//! | | commands per second at most |
//! |---|---|
//! | either direction is full, of data, acknowledgements and commands | one over the mean time that a command takes of it |
//! | so many commands are under way | those of a closed network of both directions ([`Line::residual_s`], mean value analysis) |
//! | a window of TCP's is under way, and acknowledgements wait | the window over the round trip with that wait ([`BothWays::by_window`]) |
//! | acknowledgements come together, and what they release has to fit into a queue | the same, of that window ([`BothWays::burst_bytes`]) |
//!
//! Waiting is for want of evenness alone: commands of one kind and size that come evenly wait for nobody before the line is full. So
//! what differs between commands, the variance of their times on the line, is all that is in it, and of one kind and size nothing is
//! left but the least of the limits.

use super::by_chance::{Class, by_chance};
use super::{CongestionControl, Expected, HEADER_BYTES, Limit, NetworkPath, Settings, TCP_HEADER_BYTES};
use crate::{Kind, Sizes};

/// Whose data goes down, and whose up.
const KINDS: [Kind; 2] = [Kind::Read, Kind::Write];
/// Segments for each acknowledgement (RFC 5681, 4.2).
const SEGMENTS_ACKNOWLEDGED: f64 = 2.0;
/// A command window that leaves this share of what the other limits let through is no limit: the rest takes very many commands.
const ENOUGH: f64 = 0.95;
/// What a sender has under way on average, of what it has when packets are dropped. CUBIC begins with 0.7 of that and comes back by a
/// cubic (RFC 9438, 4.1), of which the mean is a quarter of the 0.3 below; Reno goes from a half to all of it evenly (RFC 5681).
const MEAN_OF_CUBIC: f64 = 1.0 - 0.3 / 4.0;
const MEAN_OF_RENO: f64 = 0.75;

/// Data per second, in bytes, of reads and writes of one size side by side, of which this share reads; and what limits it. Down and up
/// are the paths of their data, what is expected of each alone, and what counts for each.
///
/// Commands are shared, and which way the data of the next one goes is left to chance: so now one direction waits and now the other one,
/// and where few are under way neither is full. That is simulated (`by_chance`); all else is as `BothWays` has it.
#[must_use]
pub fn side_by_side(
    paths: &[NetworkPath; 2],
    each: &[Expected; 2],
    settings: &[Settings; 2],
    size_bytes: u32,
    read_share: f64,
) -> (f64, Limit) {
    let alone = |expected: &Expected| (expected.bytes_per_s, expected.limit);
    if read_share >= 1.0 {
        return alone(&each[0]);
    }
    if read_share <= 0.0 {
        return alone(&each[1]);
    }
    let both = BothWays::of(paths, each, settings, &Sizes::one(size_bytes), read_share);
    let classes = [(0, read_share), (1, 1.0 - read_share)]
        .map(|(kind, share)| class(paths, &each[kind], settings, (kind, size_bytes), share));
    let commands = by_chance(both.commands, &classes) * both.bytes;
    let (others, limit) = both.without_commands();
    if commands >= others {
        return (others, limit);
    }
    let is_line = limit == Limit::Link && commands >= others * ENOUGH;
    (commands, if is_line { Limit::Link } else { Limit::Window })
}

/// The commands of one kind and size, as they take both directions.
fn class(
    paths: &[NetworkPath; 2],
    expected: &Expected,
    settings: &[Settings; 2],
    (kind, size_bytes): (usize, u32),
    share: f64,
) -> Class {
    let (down, up) = (0, 1);
    let header_s = |way: usize| on_line(&paths[way], HEADER_BYTES);
    // A write's data goes up, behind the exchanges in which it is asked for; a read's comes down.
    let exchanges = expected.round_trips.saturating_sub(1) as usize;
    let asked_s = |way: usize| header_s(way) * exchanges as f64;
    let [there_s, back_s] = if KINDS[kind] == Kind::Read {
        [beside_s(paths, settings, up, size_bytes), data_s(paths, settings, down, size_bytes)]
    } else {
        [data_s(paths, settings, up, size_bytes), beside_s(paths, settings, down, size_bytes)]
    };
    let last = [(up, (there_s - asked_s(up)).max(0.0)), (down, (back_s - asked_s(down)).max(0.0))];
    let before = [(up, header_s(up)), (down, header_s(down))].repeat(exchanges);
    let hops = [before, last.to_vec()].concat();
    let on_lines_s: f64 = hops.iter().map(|hop| hop.1).sum();
    let alone_s = (expected.command_time.as_secs_f64() - on_lines_s).max(0.0);
    Class { share, pause_s: alone_s / hops.len() as f64, hops }
}

/// The time on a direction of data that goes there.
fn data_s(paths: &[NetworkPath; 2], settings: &[Settings; 2], way: usize, size: u32) -> f64 {
    on_line(&paths[way], settings[way].stream_bytes(KINDS[way], size))
}

/// That of what goes there for data of the other one: acknowledgements and headers.
fn beside_s(paths: &[NetworkPath; 2], settings: &[Settings; 2], way: usize, size: u32) -> f64 {
    let (other, kind) = (&settings[1 - way], KINDS[1 - way]);
    let packets = other.stream_bytes(kind, size) as f64 / segment_bytes(&paths[1 - way]);
    packets / SEGMENTS_ACKNOWLEDGED * acknowledgement_s(&paths[way])
        + on_line(&paths[way], other.stream_bytes_back(kind, size))
}

/// What a direction of the line has to carry for a command of a mix: its time, in seconds, and how much that varies.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Line {
    mean_s: f64,
    variance_s2: f64,
}

impl Line {
    /// Of commands by their shares.
    fn of(each: &[(f64, f64)]) -> Self {
        let mean_s: f64 = each.iter().map(|(share, time_s)| share * time_s).sum();
        let variance_s2 = each.iter().map(|(share, time_s)| share * (time_s - mean_s).powi(2)).sum();
        Self { mean_s, variance_s2 }
    }

    /// How much longer whoever comes waits for the command that has the line, where these are not all alike.
    fn residual_s(self) -> f64 {
        if self.mean_s > 0.0 { self.variance_s2 / (2.0 * self.mean_s) } else { 0.0 }
    }

    /// What a packet waits for the line where so many commands take it in a second: Kingman's formula (1961), with arrivals that are even.
    fn wait_s(self, commands_per_s: f64) -> f64 {
        let idle = (1.0 - commands_per_s * self.mean_s).max(f64::MIN_POSITIVE);
        commands_per_s * self.variance_s2 / (2.0 * idle)
    }
}

/// Reads and writes on a path, of which each has a direction.
#[derive(Debug, Clone)]
pub(super) struct BothWays {
    /// The way down, where the data of reads comes, and the way up.
    lines: [Line; 2],
    /// The shares of commands whose data goes there.
    shares: [f64; 2],
    /// Of each direction: round trips, in seconds, and what TCP, losses and a queue let be under way, in bytes of data.
    round_trips_s: [f64; 2],
    windows: [[(Limit, f64); 3]; 2],
    /// How long the queue of each direction holds a packet up, in seconds, where it is full; infinite where nobody knows.
    queues_s: [f64; 2],
    /// What a command takes beside its time on both lines, in seconds.
    alone_s: f64,
    /// Commands per second where none is under way beside another.
    one_after_the_other: f64,
    commands: u32,
    /// Data of a command.
    bytes: f64,
    /// What is left of commands where writes with R2Ts wait behind the data of others.
    kept: f64,
    /// What its own kind alone is limited to, in bytes per second, where there is only one.
    only: Option<(f64, Limit)>,
}

impl BothWays {
    /// Of the paths down and up, what is expected of reads and writes alone, what both have agreed on, and the share of commands that read.
    pub(super) fn of(
        paths: &[NetworkPath; 2],
        each: &[Expected; 2],
        settings: &[Settings; 2],
        sizes: &Sizes,
        read_share: f64,
    ) -> Self {
        let shares = [read_share, 1.0 - read_share];
        let data_s = |way, size| data_s(paths, settings, way, size);
        let beside_s = |way, size| beside_s(paths, settings, way, size);
        let line = |way: usize| {
            let data = sizes.weighted().map(move |(size, share)| (shares[way] * share, data_s(way, size)));
            let beside =
                sizes.weighted().map(move |(size, share)| (shares[1 - way] * share, beside_s(way, size)));
            Line::of(&data.chain(beside).collect::<Vec<_>>())
        };
        let lines = [line(0), line(1)];
        let mut both = Self {
            lines,
            shares,
            round_trips_s: [0, 1].map(|way| paths[way].round_trip_s()),
            windows: [[(Limit::Link, f64::INFINITY); 3]; 2],
            queues_s: [0, 1].map(|way| queue_s(&paths[way])),
            alone_s: 0.0,
            one_after_the_other: 0.0,
            commands: settings[0].window,
            bytes: sizes.mean(),
            kept: (0..2).map(|way| shares[way] * each[way].kept).sum(),
            only: None,
        };
        let mean_s: f64 = (0..2).map(|way| shares[way] * each[way].command_time.as_secs_f64()).sum();
        both.alone_s = (mean_s - lines[0].mean_s - lines[1].mean_s).max(0.0);
        let one_s = |way: usize| {
            let [_, _, tcp, loss] = each[way].limits;
            (both.bytes / tcp.min(loss)).max(each[way].command_time.as_secs_f64())
        };
        both.one_after_the_other = 1.0 / (0..2).map(|way| shares[way] * one_s(way)).sum::<f64>();
        let is_mix = shares.iter().all(|share| *share > 0.0);
        for (way, expected) in each.iter().enumerate() {
            let [_, _, tcp, loss] = expected.limits.map(|limit| limit * both.round_trips_s[way]);
            let longest_s = sizes.weighted().map(|(size, _)| data_s(1 - way, size)).fold(0.0, f64::max);
            let held_up_s = longest_s.min(both.queues_s[1 - way]);
            let burst = if is_mix { burst_bytes(paths, way, held_up_s) } else { f64::INFINITY };
            // Without a round trip there is no window, and what there is is no number.
            let known = |bytes: f64| if bytes.is_nan() { f64::INFINITY } else { bytes };
            both.windows[way] =
                [(Limit::TcpWindow, known(tcp)), (Limit::Loss, known(loss)), (Limit::Link, burst)];
        }
        if !is_mix {
            let own = &each[usize::from(read_share <= 0.0)];
            // Where it keeps less than nearly all of the line, more commands bring the rest.
            let is_short = own.limit == Limit::Link && own.kept < ENOUGH;
            both.only = Some((own.bytes_per_s, if is_short { Limit::Window } else { own.limit }));
        }
        both
    }

    /// Data per second, in bytes, and what limits it.
    pub(super) fn expected(&self) -> (f64, Limit) {
        let (rate, limit) = self.side_by_side();
        // Nobody waits for others that are not there, however many there may be.
        let one = self.one_after_the_other * self.bytes;
        if self.only.is_none() && one > rate {
            (one, if self.commands == 1 { Limit::Window } else { limit })
        } else {
            (rate, limit)
        }
    }

    fn side_by_side(&self) -> (f64, Limit) {
        let (others, limit) = self.without_commands();
        if let Some((alone, of_alone)) = self.only {
            return if others < alone { (others, limit) } else { (alone, of_alone) };
        }
        let commands = self.by_commands(self.commands) * self.bytes * self.kept;
        if commands >= others {
            return (others, limit);
        }
        let is_line = limit == Limit::Link && commands >= others * ENOUGH;
        (commands, if is_line { Limit::Link } else { Limit::Window })
    }

    /// The same with as many commands as it takes.
    fn without_commands(&self) -> (f64, Limit) {
        let mut least = (self.line(), Limit::Link);
        for way in 0..2 {
            for (limit, bytes) in self.windows[way] {
                let rate = self.by_window(way, bytes);
                // A window that the other direction lets be used up is none of its own.
                if rate < least.0 * (1.0 - 1e-9) {
                    least = (rate, limit);
                }
            }
        }
        (least.0 * self.bytes, least.1)
    }

    /// Commands per second that both lines and their queues let through.
    fn line(&self) -> f64 {
        let full = self.lines.iter().map(|line| 1.0 / line.mean_s);
        let bursts = (0..2).flat_map(|way| {
            let of_line = self.windows[way].into_iter().filter(|window| window.0 == Limit::Link);
            of_line.map(move |(_, bytes)| self.by_window(way, bytes))
        });
        full.chain(bursts).fold(f64::INFINITY, f64::min)
    }

    /// Whether the commands leave nearly all of what the lines let through, if no write waited with its R2Ts behind the data of others.
    pub(super) fn has_commands_for_all(&self) -> bool {
        self.by_commands(self.commands) >= self.line() * ENOUGH
    }

    /// Whether they leave nearly all of it, and writes keep it.
    pub(super) fn keeps_the_lines_full(&self) -> bool {
        self.by_commands(self.commands) * self.kept >= self.line() * ENOUGH
    }

    /// How much longer the round trip of data in a direction is for its acknowledgements wait in the other one, where nearly all comes that
    /// the lines let through.
    pub(super) fn stretch(&self, way: usize) -> f64 {
        let (round_trip_s, full) = (self.round_trips_s[way], self.line());
        if round_trip_s <= 0.0 || !full.is_finite() {
            return 1.0;
        }
        1.0 + self.lines[1 - way].wait_s(full * ENOUGH).min(self.queues_s[1 - way]) / round_trip_s
    }

    /// Commands per second where so many are under way: mean value analysis of both directions, as in [`super::in_turns`], but that
    /// whoever comes finds half of a command's time on the line gone only where not all are alike.
    fn by_commands(&self, commands: u32) -> f64 {
        let slowest = self.lines.iter().map(|line| line.mean_s).fold(0.0, f64::max);
        let (mut queues, mut rate) = ([0.0_f64; 2], 0.0_f64);
        for present in 1..=commands.max(1) {
            let took_s: [f64; 2] = std::array::from_fn(|way| {
                let line = self.lines[way];
                let busy = (rate * line.mean_s).min(1.0);
                line.mean_s + (queues[way] - busy).max(0.0) * line.mean_s + busy * line.residual_s()
            });
            rate = (f64::from(present) / (self.alone_s + took_s[0] + took_s[1])).min(1.0 / slowest);
            if rate.is_infinite() {
                return rate;
            }
            queues = took_s.map(|took_s| rate * took_s);
        }
        rate
    }

    /// Commands per second where so many bytes of data that goes in this direction may be under way until their acknowledgements have
    /// come back.
    ///
    /// It is the x of `share * bytes * x * (round trip + wait(x)) = window`, which with Kingman's wait is a quadratic equation: without
    /// variance its root is the least of the window's rate and what fills the other direction. Nobody waits longer than a full queue
    /// takes.
    fn by_window(&self, way: usize, window_bytes: f64) -> f64 {
        let share_bytes = self.shares[way] * self.bytes;
        if !window_bytes.is_finite() || share_bytes <= 0.0 {
            return f64::INFINITY;
        }
        let Line { mean_s, variance_s2 } = self.lines[1 - way];
        let (trip, full) = (share_bytes * self.round_trips_s[way], window_bytes * mean_s);
        let beyond = (trip - full).powi(2) + 2.0 * share_bytes * window_bytes * variance_s2;
        let evenly = 2.0 * window_bytes / (trip + full + beyond.sqrt());
        let behind_a_full_queue = window_bytes / (trip + share_bytes * self.queues_s[1 - way]);
        evenly.max(behind_a_full_queue.min(1.0 / mean_s))
    }
}

/// How long a full queue takes the line, in seconds.
fn queue_s(path: &NetworkPath) -> f64 {
    let (Some(queue), Some(line)) = (path.queue_bytes, path.payload_bytes_per_s()) else {
        return f64::INFINITY;
    };
    queue as f64 / line
}

/// Data of a full packet.
fn segment_bytes(path: &NetworkPath) -> f64 {
    f64::from(path.mtu_bytes.saturating_sub(TCP_HEADER_BYTES).max(1))
}

/// How long so much of a stream has a line, of which a segment may have the ends of several commands.
fn on_line(path: &NetworkPath, stream_bytes: u64) -> f64 {
    path.payload_bytes_per_s().map_or(0.0, |rate| stream_bytes as f64 / rate)
}

/// How long an acknowledgement without data has a line.
fn acknowledgement_s(path: &NetworkPath) -> f64 {
    let bytes = f64::from(TCP_HEADER_BYTES) + f64::from(path.overhead_bytes);
    path.rate_bits_per_s.map_or(0.0, |rate| bytes * 8.0 / rate)
}

/// What may be under way in a direction where acknowledgements are held up for so long by a command that has the other one, in bytes;
/// infinite where nothing is known of the queue, or nobody takes drops for congestion.
///
/// Those that have waited come one behind the other, each of which lets two segments go: much faster than the line carries them. Of that
/// burst the line takes its part meanwhile, and the rest has to find room in the queue. A round trip that is longer than what holds them
/// up has the rest of its data on the way, which comes evenly.
fn burst_bytes(paths: &[NetworkPath; 2], way: usize, held_up_s: f64) -> f64 {
    let (path, back) = (&paths[way], &paths[1 - way]);
    let (Some(queue), Some(line)) = (path.queue_bytes, path.payload_bytes_per_s()) else {
        return f64::INFINITY;
    };
    let mean = match path.congestion_control {
        CongestionControl::Cubic => MEAN_OF_CUBIC,
        CongestionControl::Reno => MEAN_OF_RENO,
        CongestionControl::ByRate => return f64::INFINITY,
    };
    let released = SEGMENTS_ACKNOWLEDGED * segment_bytes(path) / acknowledgement_s(back);
    if released <= line {
        return f64::INFINITY;
    }
    let evenly = line * (path.round_trip_s() - held_up_s).max(0.0);
    (queue as f64 / (1.0 - line / released) + evenly) * mean
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

    use super::super::expect_mix;
    use super::super::tests::{assert_near, oc3, solicited, unsolicited};
    use super::*;

    fn paths(down_mbit: f64, up_mbit: f64, round_trip_ms: u64, queue_bytes: Option<u64>) -> [NetworkPath; 2] {
        [down_mbit, up_mbit].map(|mbit| NetworkPath {
            rate_bits_per_s: Some(mbit * 1e6),
            queue_bytes,
            ..oc3(round_trip_ms)
        })
    }

    fn both(paths: &[NetworkPath; 2], settings: &Settings, sizes: &str, read_share: f64) -> BothWays {
        let sizes: Sizes = sizes.parse().expect("sizes");
        let each = [0, 1].map(|way| expect_mix(&paths[way], settings, KINDS[way], &sizes));
        BothWays::of(paths, &each, &[*settings; 2], &sizes, read_share)
    }

    fn mb_per_s(both: &BothWays) -> f64 {
        both.expected().0 / 1e6
    }

    #[test]
    fn acknowledgements_alone_fill_a_way_that_is_narrow_enough() {
        // RFC 3449, 3.1: 1 Mb/s are 2404 acknowledgements of 52 bytes, and each is of two segments of 1448.
        let narrow = both(&paths(100.0, 1.0, 20, None), &unsolicited(64), "1M", 1.0);
        let (bytes_per_s, limit) = narrow.expected();
        assert_eq!(limit, Limit::Link);
        assert!((bytes_per_s / (1e6 / 8.0 / 52.0 * 2.0 * 1448.0) - 1.0).abs() < 0.005, "{bytes_per_s}");
        // Twice as wide it is no limit any more, and neither is one of that width for writes.
        assert_near(mb_per_s(&both(&paths(100.0, 2.0, 20, None), &unsolicited(64), "1M", 1.0)), 12.07);
        assert_near(mb_per_s(&both(&paths(1.0, 1.0, 20, None), &unsolicited(64), "64K", 0.0)), 0.12);
    }

    #[test]
    fn one_kind_and_size_is_what_it_is_alone() {
        for (settings, read_share) in
            [(unsolicited(4), 1.0), (solicited(4), 0.0), (solicited(64), 0.0), (unsolicited(64), 1.0)]
        {
            let paths = paths(155.0, 155.0, 50, Some(1 << 20));
            let own = both(&paths, &settings, "64K", read_share);
            let kind = if read_share > 0.0 { Kind::Read } else { Kind::Write };
            let alone = expect_mix(&paths[0], &settings, kind, &Sizes::one(64 << 10));
            assert_eq!(own.expected(), (alone.bytes_per_s, alone.limit));
        }
        // Without a difference between commands a closed network is the least of both bounds.
        let even = Line { mean_s: 0.002, variance_s2: 0.0 };
        let network = |commands| BothWays {
            lines: [even, Line::default()],
            alone_s: 0.018,
            ..both(&paths(155.0, 155.0, 50, None), &unsolicited(commands), "64K", 0.5)
        };
        for commands in [1, 5, 9, 10, 11, 100] {
            let rate = network(commands).by_commands(commands);
            assert!((rate - f64::from(commands.min(10)) / 0.02).abs() < 1e-6, "{commands}: {rate}");
        }
    }

    #[test]
    fn a_window_has_the_round_trip_and_what_acknowledgements_wait() {
        let mut both = both(&paths(155.0, 155.0, 50, None), &unsolicited(32), "64K", 0.5);
        both.lines[1] = Line { mean_s: 0.004, variance_s2: 0.0 };
        let window = |rate: f64| 0.5 * 65_536.0 * rate * 0.05;
        // Evenly: as many round trips as there are, until the way back is full.
        assert_near(both.by_window(0, window(100.0)), 100.0);
        assert_near(both.by_window(0, window(1e6)), 250.0);
        both.lines[1].variance_s2 = 0.004 * 0.004;
        for rate in [10.0, 100.0, 240.0] {
            let wait_s = both.lines[1].wait_s(rate);
            assert_near(wait_s, rate * 16e-6 / 2.0 / (1.0 - rate * 0.004));
            assert_near(both.by_window(0, window(rate) * (1.0 + wait_s / 0.05)), rate);
        }
        assert!(both.by_window(0, f64::INFINITY).is_infinite());
        assert!(BothWays { shares: [0.0, 1.0], ..both }.by_window(0, 1.0).is_infinite());
    }

    #[test]
    fn a_burst_has_to_fit_into_the_queue() {
        let with = |queue, round_trip_ms, held_up_s| {
            burst_bytes(&paths(100.0, 10.0, round_trip_ms, queue), 0, held_up_s)
        };
        // Acknowledgements of 52 bytes over 10 Mb/s let 69.6 MB/s go, of which the line carries 12.07.
        let room = f64::from(1 << 18) / (1.0 - 12.0667 / 69.615);
        assert_near(with(Some(1 << 18), 20, 0.054), room * 0.925);
        // Of a longer round trip as much is on its way as fits into what is left of it.
        assert_near(with(Some(1 << 18), 100, 0.054), (room + 0.046 * 12.0667e6) * 0.925);
        assert!(with(None, 20, 0.054).is_infinite());
        let mut by_rate = paths(100.0, 10.0, 20, Some(1 << 18));
        by_rate[0].congestion_control = CongestionControl::ByRate;
        assert!(burst_bytes(&by_rate, 0, 0.054).is_infinite());
        by_rate[0].congestion_control = CongestionControl::Reno;
        assert_near(burst_bytes(&by_rate, 0, 0.054), room * 0.75);
        // As many as fill the line come evenly.
        assert!(burst_bytes(&paths(100.0, 1.0, 20, Some(1 << 18)), 0, 0.5).is_infinite());
    }

    #[test]
    fn a_mix_gets_less_where_one_way_is_narrow() {
        let of = |queue, window, read_share| {
            both(&paths(100.0, 10.0, 20, queue), &unsolicited(window), "64K", read_share)
        };
        // What both ways carry of their own data alone is 12.05 MB/s; 9.8 and 6.1 were measured.
        let wide = mb_per_s(&of(Some(16 << 20), 32, 0.9));
        let usual = mb_per_s(&of(Some(1 << 18), 32, 0.9));
        assert!((9.0..10.4).contains(&wide) && (5.5..6.5).contains(&usual), "{wide}, {usual}");
        assert_eq!(
            (of(Some(1 << 18), 32, 0.9).expected().1, of(None, 4, 0.9).expected().1),
            (Limit::Link, Limit::Window)
        );
        // A wider queue and more commands never make it slower.
        let mut before = 0.0;
        for queue in [1 << 16, 1 << 17, 1 << 18, 1 << 20, 1 << 24] {
            let rate = mb_per_s(&of(Some(queue), 32, 0.9));
            assert!(rate >= before, "{queue}: {rate}");
            before = rate;
        }
        let keeps_full = |window: &u32| of(None, *window, 0.9).keeps_the_lines_full();
        let enough = (1..4096).find(keeps_full).unwrap();
        let reached = of(None, enough, 0.9);
        assert!(reached.expected().0 >= reached.without_commands().0 * ENOUGH);
        assert!(of(None, enough - 1, 0.9).expected().1 == Limit::Window);
        // Lines that are as wide both ways carry nearly what each kind has alone.
        let alike = paths(155.0, 155.0, 50, Some(969_000));
        let each =
            [0, 1].map(|way| expect_mix(&alike[way], &unsolicited(64), KINDS[way], &Sizes::one(64 << 10)));
        let apart = (each[0].bytes_per_s / 0.66).min(each[1].bytes_per_s / 0.34);
        let together = both(&alike, &unsolicited(64), "64K", 0.66).expected().0;
        assert!(together < apart && together > apart * 0.9, "{together} of {apart}");
    }

    #[test]
    fn few_commands_that_go_either_way_by_chance_fill_neither() {
        // Exchange 2003 of Trinkle's profiles over Gigabit Ethernet with jumbo frames: both directions evenly at work would carry
        // 203.9 MB/s, for which the way down is full.
        let gige = NetworkPath {
            rate_bits_per_s: Some(1e9),
            round_trip: Duration::from_micros(150),
            mtu_bytes: 9000,
            overhead_bytes: 38,
            ..oc3(0)
        };
        let sizes = Sizes::one(4 << 10);
        let of = |commands, read_share| {
            let settings = [unsolicited(commands); 2];
            let each = [0, 1].map(|way| expect_mix(&gige, &settings[way], KINDS[way], &sizes));
            let (bytes_per_s, limit) = side_by_side(&[gige; 2], &each, &settings, 4 << 10, read_share);
            (bytes_per_s / 1e6, limit, each.map(|one| one.bytes_per_s / 1e6))
        };
        let (few, limit, [down, up]) = of(12, 0.6);
        let evenly = (down / 0.6).min(up / 0.4);
        assert!((0.85..0.91).contains(&(few / evenly)), "{few} of {evenly}");
        assert_eq!(limit, Limit::Window);
        assert!(of(256, 0.6).0 > evenly * 0.97, "many fill the way down");
        for (share, alone) in [(1.0, down), (0.0, up)] {
            assert_near(of(12, share).0, alone);
        }
    }

    #[test]
    fn long_commands_wait_for_what_a_queue_holds_and_not_for_each_other() {
        let bursts = 1 << 24;
        let of = |size, window| {
            let settings =
                Settings { first_burst_length: bursts, max_burst_length: bursts, ..unsolicited(window) };
            both(&paths(155.0, 155.0, 50, Some(969_000)), &settings, size, 0.5)
        };
        // One at a time: a round trip and its own time on the line. 17.6 were measured.
        let one = |bytes: f64| bytes / (0.05 + bytes / 18.70e6) / 1e6;
        assert_near(mb_per_s(&of("15M", 1)), one(15.0 * 1048576.0));
        assert_near(mb_per_s(&of("8M", 1)), one(8.0 * 1048576.0));
        // More of them are never slower.
        let rates = [1, 2, 4, 32].map(|window| mb_per_s(&of("15M", window)));
        assert!(rates.is_sorted() && rates[0] < rates[2], "{rates:?}");
    }

    #[test]
    fn writes_with_r2ts_lose_among_reads_what_they_lose_alone() {
        let of =
            |read_share| mb_per_s(&both(&paths(155.0, 155.0, 50, None), &solicited(32), "64K", read_share));
        // The line's 18.70 MB/s are not reached where its limit and that of 32 commands meet.
        assert_near(of(0.0), 17.30);
        assert_near(of(0.01), 17.45);
        // More commands bring the rest.
        let limit =
            |commands| both(&paths(155.0, 155.0, 50, None), &solicited(commands), "64K", 0.0).expected().1;
        assert_eq!((limit(32), limit(64)), (Limit::Window, Limit::Link));
    }

    #[test]
    fn whatever_has_no_rate_is_no_limit() {
        let mut free = paths(155.0, 155.0, 10, None);
        free[1].rate_bits_per_s = None;
        let (bytes_per_s, limit) = both(&free, &unsolicited(512), "64K", 0.5).expected();
        assert_eq!(limit, Limit::Link);
        assert!((36e6..37.5e6).contains(&bytes_per_s), "{bytes_per_s}");
        for path in &mut free {
            (path.rate_bits_per_s, path.round_trip) = (None, Duration::ZERO);
        }
        assert!(both(&free, &unsolicited(4), "64K", 0.5).expected().0 > 0.0);
    }

    proptest! {
        #![proptest_config(lunette_cases::cases(500))]

        #[test]
        fn one_in_a_hundred_of_the_other_kind_makes_no_jump(
            mbit in 1.0_f64..10_000.0,
            round_trip_ms in 0_u64..300,
            (window, size_kib, is_asked) in (1_u32..300, 1_u32..256, any::<bool>()),
            tcp_window_bytes in prop::option::of(1_u64 << 14..1 << 26),
        ) {
            let paths = paths(mbit, mbit, round_trip_ms, None)
                .map(|path| NetworkPath { tcp_window_bytes, ..path });
            let settings = if is_asked { solicited(window) } else { unsolicited(window) };
            let of = |read_share| both(&paths, &settings, &format!("{size_kib}K"), read_share).expected().0;
            for (alone, little) in [(0.0, 0.01), (1.0, 0.99)] {
                let jump = of(little) / of(alone) - 1.0;
                prop_assert!(jump.abs() < 0.05, "{jump} at {alone}");
            }
        }
    }
}
