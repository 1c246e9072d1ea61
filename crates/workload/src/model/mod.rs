//! What a link lets through of a workload: the model that stands beside each measured figure.
//!
//! A command costs round trips and the time that its bytes take on the line. So many of them are under way at once; the line, the
//! TCP windows and losses set limits of their own, and the smallest limit is what is to be expected. Nothing here is fitted to
//! measurements.
//!
//! | command | round trips |
//! |---|---|
//! | a read, a write whose data goes unasked | one |
//! | a write with R2Ts | one more, and one for each further round of MaxOutstandingR2T bursts that the line is not busy with |
//!
//! Where a full line and too few commands are about the same limit, writes with R2Ts reach neither: each of them takes the line twice, and
//! its command, which is short, waits behind the data of others, while nothing comes of what it would have asked for.
//!
//! Sources: RFC 7143, 13.10 to 13.17 (what goes unasked, bursts, R2Ts); RFC 9438, 5.1 and 5.2, and Mathis and others (1997) for
//! what congestion control makes of losses.

pub mod advice;
mod path;

use std::fmt;
use std::time::Duration;

use crate::{Kind, Sizes};

pub use path::{CongestionControl, NetworkPath, TCP_HEADER_BYTES};

/// Bytes of a basic header segment (RFC 7143, 11.2).
const HEADER_BYTES: u64 = 48;

/// What both sides have agreed on, and how many commands are under way. Lengths are in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settings {
    /// InitialR2T
    pub initial_r2t: bool,
    /// ImmediateData
    pub immediate_data: bool,
    /// FirstBurstLength
    pub first_burst_length: u32,
    /// MaxBurstLength
    pub max_burst_length: u32,
    /// MaxOutstandingR2T
    pub max_outstanding_r2t: u16,
    /// MaxRecvDataSegmentLength of who receives the data.
    pub max_recv_data_segment_length: u32,
    /// Connections of the session.
    pub connections: u16,
    /// Commands under way at once: the initiator's depth, or the command window if that is smaller.
    pub window: u32,
}

/// What is to be expected.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Expected {
    /// Data per second, in bytes.
    pub bytes_per_s: f64,
    /// What sets the limit.
    pub limit: Limit,
    /// How long one command takes when it is alone.
    pub command_time: Duration,
    /// Its round trips.
    pub round_trips: u32,
    /// All limits, in bytes per second, in the order of [`Limit::ALL`]; infinite where there is none.
    pub limits: [f64; 4],
}

/// What throughput is limited by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Limit {
    /// The rate of the line.
    Link,
    /// Too little is under way: request size times commands, over the time of one.
    Window,
    /// TCP's windows.
    TcpWindow,
    /// Losses.
    Loss,
}

impl Limit {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Link, Self::Window, Self::TcpWindow, Self::Loss];

    /// The word for it in results.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Link => "link-rate",
            Self::Window => "command-window",
            Self::TcpWindow => "tcp-window",
            Self::Loss => "loss",
        }
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

impl Settings {
    /// Data of one write that goes unasked, in bytes: in the command's own PDU, and behind it where no R2T is needed
    /// (RFC 7143, 13.10 to 13.14).
    #[must_use]
    pub fn unasked_bytes(&self, size_bytes: u32) -> u32 {
        let immediate = if self.immediate_data { self.max_recv_data_segment_length } else { 0 };
        let allowed = if self.initial_r2t { immediate } else { u32::MAX };
        size_bytes.min(self.first_burst_length).min(allowed)
    }

    /// Bytes of all PDUs that carry so much data of one command.
    fn stream_bytes(&self, size_bytes: u32) -> u64 {
        let pdus = size_bytes.div_ceil(self.max_recv_data_segment_length.max(1));
        u64::from(size_bytes) + HEADER_BYTES * u64::from(pdus + 1)
    }
}

/// What is to be expected of commands of one kind and size.
#[must_use]
pub fn expect(path: &NetworkPath, settings: &Settings, kind: Kind, size_bytes: u32) -> Expected {
    let size_bytes = size_bytes.max(1);
    let stream_bytes = settings.stream_bytes(size_bytes);
    let (command_time_s, round_trips) = match kind {
        Kind::Read => (path.round_trip_s() + path.line_s(stream_bytes), 1),
        Kind::Write => write_time(path, settings, size_bytes),
    };
    let share = f64::from(size_bytes) / stream_bytes as f64;
    let connections = f64::from(settings.connections.max(1));
    let per_connection =
        |limit: Option<f64>| limit.map_or(f64::INFINITY, |limit| limit * connections * share);
    // Of many small commands a segment carries several; of a single one at a time, it carries that one.
    let link = if settings.window > 1 {
        path.payload_bytes_per_s().map_or(f64::INFINITY, |rate| rate * share)
    } else {
        let line_s = path.line_s(stream_bytes);
        if line_s > 0.0 { f64::from(size_bytes) / line_s } else { f64::INFINITY }
    };
    let limits = [
        link,
        f64::from(settings.window) * f64::from(size_bytes) / command_time_s.max(1e-9),
        per_connection(path.tcp_window_limit()),
        per_connection(path.loss_limit()),
    ];
    let (limit, mut bytes_per_s) = least(&limits);
    if kind == Kind::Write && settings.unasked_bytes(size_bytes) < size_bytes {
        let met = meeting(settings.window, command_time_s, path.line_s(stream_bytes));
        bytes_per_s = bytes_per_s.min(met * f64::from(size_bytes));
    }
    let command_time = Duration::try_from_secs_f64(command_time_s).unwrap_or(Duration::MAX);
    Expected { bytes_per_s, limit, command_time, round_trips, limits }
}

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
    let (limit, bytes_per_s) = least(&limits);
    // What writes with R2Ts lose where two limits meet.
    let kept = |expected: &Expected| expected.bytes_per_s / least(&expected.limits).1;
    let kept: f64 = each.iter().map(|(_, part, expected)| part / bytes * kept(expected)).sum();
    let time_s: f64 =
        each.iter().map(|(share, _, expected)| share * expected.command_time.as_secs_f64()).sum();
    Expected {
        bytes_per_s: bytes_per_s * kept,
        limit,
        command_time: Duration::try_from_secs_f64(time_s).unwrap_or(Duration::MAX),
        round_trips: each.iter().map(|(_, _, expected)| expected.round_trips).max().unwrap_or(1),
        limits,
    }
}

/// The least of all limits, in bytes per second; the first one of several.
fn least(limits: &[f64; 4]) -> (Limit, f64) {
    let mut least = (Limit::Link, limits[0]);
    for (candidate, value) in Limit::ALL.into_iter().zip(*limits) {
        if value < least.1 {
            least = (candidate, value);
        }
    }
    least
}

/// What is to be expected of reads and writes side by side, of which this share reads; and the limit.
///
/// The two directions of a line do not disturb each other, so each kind may use its own up to its limits; commands are shared.
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
    let mut lowest = (1.0 / (read_share / read.limits[1] + write_share / write.limits[1]), Limit::Window);
    for (at, limit) in Limit::ALL.into_iter().enumerate() {
        if limit != Limit::Window {
            let whole = (read.limits[at] / read_share).min(write.limits[at] / write_share);
            if whole < lowest.0 {
                lowest = (whole, limit);
            }
        }
    }
    lowest
}

/// Commands per second of so many that take turns at stations, each of which serves one command at a time for as long as is said here, in seconds; and
/// each command is besides on its own for `alone_s`. Infinite where none of it takes any time.
///
/// By mean value analysis, as for writes with R2Ts: who comes to a station finds there what is there on average with one command
/// fewer, of which the part that is being served is half done.
#[must_use]
pub fn in_turns(commands: u32, alone_s: f64, stations_s: &[f64]) -> f64 {
    let mut queues = vec![0.0_f64; stations_s.len()];
    let slowest = stations_s.iter().copied().fold(0.0, f64::max);
    let mut rate = 0.0_f64;
    for present in 1..=commands.max(1) {
        let wait =
            |(queue, service): (&f64, &f64)| ((queue - (rate * service).min(1.0) / 2.0) * service).max(0.0);
        let waits: Vec<f64> = queues.iter().zip(stations_s).map(wait).collect();
        let turn_s = alone_s + stations_s.iter().sum::<f64>() + waits.iter().sum::<f64>();
        rate = (f64::from(present) / turn_s).min(1.0 / slowest);
        if rate.is_infinite() {
            return rate;
        }
        for (queue, (service, wait)) in queues.iter_mut().zip(stations_s.iter().zip(&waits)) {
            *queue = rate * (service + wait);
        }
    }
    rate
}

/// Commands per second of so many that take turns on a line, each of which takes it twice: for a moment with its header, and for `line_s`
/// with its data; infinite without a line. `command_time_s` is the time of one that is alone.
///
/// Who comes to the line finds there what is there on average with one command fewer (mean value analysis; Reiser and Lavenberg,
/// 1980), of which the part that is on its way is half done.
fn meeting(window: u32, command_time_s: f64, line_s: f64) -> f64 {
    if line_s <= 0.0 {
        return f64::INFINITY;
    }
    let (mut rate, mut queue) = (0.0, 0.0);
    for commands in 1..=window.max(1) {
        let busy = (rate * line_s).min(1.0);
        let wait_s = ((queue - busy / 2.0) * line_s).max(0.0);
        rate = (f64::from(commands) / (command_time_s + 2.0 * wait_s)).min(1.0 / line_s);
        queue = rate * (line_s + wait_s);
    }
    rate
}

/// The time of one write that is alone, in seconds, and its round trips.
///
/// The last round trip is that of the last data and the status. What is not unasked waits one for the first R2T, while the unasked
/// part is on its way. Then rounds of bursts follow: the next R2T comes a round trip after its predecessor's burst has left, unless
/// the line is still busy with the other bursts of the round.
fn write_time(path: &NetworkPath, settings: &Settings, size_bytes: u32) -> (f64, u32) {
    let round_trip_s = path.round_trip_s();
    let unasked = settings.unasked_bytes(size_bytes);
    let asked = size_bytes - unasked;
    if asked == 0 {
        return (round_trip_s + path.line_s(settings.stream_bytes(size_bytes)), 1);
    }
    let burst_bytes = settings.max_burst_length.clamp(1, asked);
    let bursts = asked.div_ceil(burst_bytes);
    let at_once = u32::from(settings.max_outstanding_r2t.max(1));
    let rounds = bursts.div_ceil(at_once);
    let burst_s = path.line_s(settings.stream_bytes(burst_bytes));
    let busy_s = burst_s * f64::from(at_once);
    let stall_s = (round_trip_s + burst_s - busy_s).max(0.0);
    let asked_s = path.line_s(settings.stream_bytes(asked));
    let unasked_s = path.line_s(settings.stream_bytes(unasked));
    let time_s = round_trip_s.max(unasked_s) + asked_s + stall_s * f64::from(rounds - 1) + round_trip_s;
    let stalls = if stall_s > 0.0 { rounds - 1 } else { 0 };
    (time_s, 2 + stalls)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The lines of Dalgic and others: 155 Mb/s of packets of 1500 bytes.
    fn oc3(round_trip_ms: u64) -> NetworkPath {
        NetworkPath {
            rate_bits_per_s: Some(155e6),
            round_trip: Duration::from_millis(round_trip_ms),
            mtu_bytes: 1500,
            overhead_bytes: 0,
            loss: 0.0,
            congestion_control: CongestionControl::Cubic,
            tcp_window_bytes: None,
        }
    }

    /// As the paper's: everything is asked for, in bursts of at least the request.
    fn solicited(window: u32) -> Settings {
        Settings {
            initial_r2t: true,
            immediate_data: false,
            first_burst_length: 262_144,
            max_burst_length: 262_144,
            max_outstanding_r2t: 1,
            max_recv_data_segment_length: 262_144,
            connections: 1,
            window,
        }
    }

    fn unsolicited(window: u32) -> Settings {
        Settings { initial_r2t: false, immediate_data: true, ..solicited(window) }
    }

    fn mb_per_s(path: &NetworkPath, settings: &Settings, kind: Kind, kib: u32) -> f64 {
        expect(path, settings, kind, kib << 10).bytes_per_s / 1e6
    }

    fn assert_near(value: f64, expected: f64) {
        assert!((value / expected - 1.0).abs() < 0.01, "{value} instead of {expected}");
    }

    #[test]
    fn small_commands_cost_round_trips() {
        for (settings, kind, round_trips) in
            [(solicited(1), Kind::Write, 2), (unsolicited(1), Kind::Write, 1), (solicited(1), Kind::Read, 1)]
        {
            let expected = expect(&oc3(50), &settings, kind, 1024);
            assert_eq!((expected.round_trips, expected.limit), (round_trips, Limit::Window));
            assert_near(expected.bytes_per_s, 1024.0 / (0.05 * f64::from(round_trips)));
        }
    }

    #[test]
    fn who_takes_turns_waits_for_others_where_stations_are_busy() {
        let near =
            |value: f64, wanted: f64| assert!((value / wanted - 1.0).abs() < 1e-9, "{value}, {wanted}");
        near(in_turns(1, 0.002, &[0.001, 0.001]), 250.0);
        // Far more than a station serves, and far fewer.
        near(in_turns(500, 0.002, &[0.001, 0.0001]), 1000.0);
        let few = in_turns(2, 1.0, &[0.001]);
        assert!(few < 2.0 / 1.001 + 1e-9 && few > 1.99, "{few}");
        // Where two limits meet, neither is reached.
        let met = in_turns(8, 0.006, &[0.001, 0.001]);
        assert!((600.0..1000.0).contains(&met), "{met}");
        assert!(in_turns(3, 0.0, &[0.0]).is_infinite() && in_turns(3, 0.0, &[]).is_infinite());
    }

    #[test]
    fn a_full_line_is_the_limit() {
        // 1448 bytes of data in a packet of 1500.
        let expected = expect(&oc3(10), &unsolicited(32), Kind::Write, 256 << 10);
        assert_eq!(expected.limit, Limit::Link);
        assert_near(expected.bytes_per_s, 155e6 / 8.0 * 1448.0 / 1500.0);
    }

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
    fn the_paper_s_rows_where_only_round_trips_count() {
        // Table 3: 64 KiB, 32 commands, 50 ms: two round trips each; the paper's 4.5 MB/s are a quarter of it, so that something
        // else had been its limit.
        assert_near(mb_per_s(&oc3(50), &solicited(32), Kind::Write, 64), 17.3);
        // Table 4, 8 KiB, one command, 10 ms: 0.7 MB/s; table 3: 0.4 MB/s.
        assert!((mb_per_s(&oc3(10), &unsolicited(1), Kind::Write, 8) - 0.7).abs() < 0.1);
        assert!((mb_per_s(&oc3(10), &solicited(1), Kind::Write, 8) - 0.4).abs() < 0.05);
    }

    #[test]
    fn commands_wait_behind_the_data_of_others() {
        let line_s = 0.0035;
        let rate = |window| meeting(window, 0.1035, line_s);
        // Alone nobody waits; with many the line is full; in between neither limit is reached.
        assert_near(rate(1), 1.0 / 0.1035);
        assert_near(rate(200), 1.0 / line_s);
        let bound = (32.0 / 0.1035_f64).min(1.0 / line_s);
        // If all go together, the line has nothing to do for one of the two round trips.
        let together = 32.0 / (32.0 * line_s + 0.05);
        assert!(rate(32) < 0.95 * bound && rate(32) > 1.25 * together, "{} of {bound}", rate(32));
        assert_eq!(meeting(32, 0.1, 0.0), f64::INFINITY);
    }

    #[test]
    fn rounds_of_r2ts_cost_what_the_line_does_not_hide() {
        let one = Settings { max_burst_length: 16 << 10, ..solicited(1) };
        let expected = expect(&oc3(10), &one, Kind::Write, 64 << 10);
        assert_eq!(expected.round_trips, 5, "one for the status, four for the bursts");
        let four = Settings { max_outstanding_r2t: 4, ..one };
        assert_eq!(expect(&oc3(10), &four, Kind::Write, 64 << 10).round_trips, 2);
        // Without delay the line is always busy.
        assert_eq!(expect(&oc3(0), &four, Kind::Write, 1 << 20).round_trips, 2);
    }

    #[test]
    fn unasked_data_follows_the_keys() {
        let base = Settings { max_recv_data_segment_length: 8192, first_burst_length: 65536, ..solicited(1) };
        let unasked = |initial_r2t, immediate_data| {
            Settings { initial_r2t, immediate_data, ..base }.unasked_bytes(262_144)
        };
        assert_eq!(unasked(true, false), 0);
        assert_eq!(unasked(true, true), 8192);
        assert_eq!(unasked(false, false), 65536);
        assert_eq!(unasked(false, true), 65536);
    }

    #[test]
    fn tcp_windows_and_losses_limit_each_connection() {
        let narrow = NetworkPath { tcp_window_bytes: Some(65536), ..oc3(50) };
        let expected = expect(&narrow, &unsolicited(32), Kind::Write, 256 << 10);
        assert_eq!(expected.limit, Limit::TcpWindow);
        assert_near(expected.bytes_per_s, 65536.0 / 0.05);
        let lossy = NetworkPath { loss: 0.01, ..oc3(50) };
        let one = expect(&lossy, &unsolicited(32), Kind::Read, 256 << 10);
        let four = expect(&lossy, &Settings { connections: 4, ..unsolicited(32) }, Kind::Read, 256 << 10);
        assert_eq!((one.limit, four.limit), (Limit::Loss, Limit::Loss));
        assert_near(four.bytes_per_s, 4.0 * one.bytes_per_s);
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

    fn any_settings() -> impl Strategy<Value = Settings> {
        (
            any::<(bool, bool)>(),
            512_u32..1 << 24,
            512_u32..1 << 24,
            1_u16..100,
            512_u32..1 << 24,
            1_u16..33,
            1_u32..5000,
        )
            .prop_map(|(flags, first, burst, r2ts, segment, connections, window)| Settings {
                initial_r2t: flags.0,
                immediate_data: flags.1,
                first_burst_length: first.min(burst),
                max_burst_length: burst,
                max_outstanding_r2t: r2ts,
                max_recv_data_segment_length: segment,
                connections,
                window,
            })
    }

    fn any_path() -> impl Strategy<Value = NetworkPath> {
        (
            prop::option::of(1e3_f64..1e12),
            0_u64..60_000_000,
            576_u16..65535,
            0_u16..200,
            0.0_f64..=1.0,
            prop::option::of(1_u64..1 << 40),
            prop::sample::select(vec![
                CongestionControl::Reno,
                CongestionControl::Cubic,
                CongestionControl::ByRate,
            ]),
        )
            .prop_map(
                |(
                    rate_bits_per_s,
                    us,
                    mtu_bytes,
                    overhead_bytes,
                    loss,
                    tcp_window_bytes,
                    congestion_control,
                )| {
                    NetworkPath {
                        rate_bits_per_s,
                        round_trip: Duration::from_micros(us),
                        mtu_bytes,
                        overhead_bytes,
                        loss,
                        congestion_control,
                        tcp_window_bytes,
                    }
                },
            )
    }

    proptest! {
        #![proptest_config(lunette_cases::cases(500))]

        #[test]
        fn more_never_makes_it_slower(path in any_path(), settings in any_settings(), size in 1_u32..1 << 24) {
            for kind in [Kind::Read, Kind::Write] {
                let expected = expect(&path, &settings, kind, size);
                prop_assert!(expected.bytes_per_s > 0.0 && !expected.bytes_per_s.is_nan());
                prop_assert!(expected.limits.iter().all(|limit| expected.bytes_per_s <= *limit));
                let at_least = |settings: &Settings| {
                    let other = expect(&path, settings, kind, size).bytes_per_s;
                    other >= expected.bytes_per_s * 0.999_999
                };
                let wider = Settings { window: settings.window.max(2) * 2, ..settings };
                let wide = Settings { window: settings.window.max(2), ..settings };
                prop_assert!(expect(&path, &wider, kind, size).bytes_per_s >= expect(&path, &wide, kind, size).bytes_per_s * 0.999_999);
                let more = Settings { connections: settings.connections + 1, ..settings };
                prop_assert!(at_least(&more));
                let more = Settings { max_outstanding_r2t: settings.max_outstanding_r2t + 1, ..settings };
                prop_assert!(at_least(&more));
            }
        }

        #[test]
        fn reads_do_not_know_r2ts(path in any_path(), settings in any_settings(), size in 1_u32..1 << 24) {
            let asked = Settings { initial_r2t: true, immediate_data: false, ..settings };
            let reads = |settings| expect(&path, &settings, Kind::Read, size);
            prop_assert_eq!(reads(settings), reads(asked));
            let write = expect(&path, &settings, Kind::Write, size);
            prop_assert!(reads(settings).command_time <= write.command_time + Duration::from_nanos(1));
        }
    }
}
