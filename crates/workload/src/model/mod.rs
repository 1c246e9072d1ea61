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
//! what congestion control makes of losses; Padhye and others (1998) for what timeouts cost.

pub mod advice;
mod both_ways;
mod by_chance;
mod mixture;
mod path;
mod turns;

use std::fmt;
use std::time::Duration;

use crate::Kind;

pub use both_ways::side_by_side;
pub use mixture::expect_mix;
pub use path::{Bursts, CongestionControl, NetworkPath, TCP_HEADER_BYTES};
pub use turns::in_turns;

use turns::meeting;

/// Bytes of a basic header segment (RFC 7143, 11.2).
pub const HEADER_BYTES: u64 = 48;

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
    /// What is reached of the line or of the window, whichever is less: 1, but for writes with R2Ts where the two meet.
    pub kept: f64,
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

    /// What the data of one command takes of TCP's stream in its direction, in bytes: with the headers of all PDUs that carry it. The
    /// status of a read comes with its last data (RFC 7143, 11.7.3), and a write's command goes the way of its data.
    #[must_use]
    pub fn stream_bytes(&self, kind: Kind, size_bytes: u32) -> u64 {
        match kind {
            Kind::Read => self.carried_bytes(size_bytes),
            Kind::Write => {
                let unasked = self.unasked_bytes(size_bytes);
                self.unasked_stream_bytes(unasked) + self.asked_stream_bytes(size_bytes - unasked)
            }
        }
    }

    /// What goes the other way for it: the command of a read; the response of a write, and an R2T for each burst that it waits for.
    #[must_use]
    pub(crate) fn stream_bytes_back(&self, kind: Kind, size_bytes: u32) -> u64 {
        let bursts = match kind {
            Kind::Read => 0,
            Kind::Write => {
                (size_bytes - self.unasked_bytes(size_bytes)).div_ceil(self.max_burst_length.max(1))
            }
        };
        HEADER_BYTES * (1 + u64::from(bursts))
    }

    /// So much data in PDUs that are as long as they may be.
    fn carried_bytes(&self, data_bytes: u32) -> u64 {
        let pdus = data_bytes.div_ceil(self.max_recv_data_segment_length.max(1));
        u64::from(data_bytes) + HEADER_BYTES * u64::from(pdus)
    }

    /// The command of a write, and what goes unasked in it and behind it.
    fn unasked_stream_bytes(&self, unasked_bytes: u32) -> u64 {
        let immediate =
            if self.immediate_data { unasked_bytes.min(self.max_recv_data_segment_length) } else { 0 };
        HEADER_BYTES + u64::from(immediate) + self.carried_bytes(unasked_bytes - immediate)
    }

    /// What a write waits for, burst by burst.
    fn asked_stream_bytes(&self, asked_bytes: u32) -> u64 {
        let burst_bytes = self.max_burst_length.max(1);
        let whole = u64::from(asked_bytes / burst_bytes) * self.carried_bytes(burst_bytes);
        whole + self.carried_bytes(asked_bytes % burst_bytes)
    }
}

/// What is to be expected of commands of one kind and size.
#[must_use]
pub fn expect(path: &NetworkPath, settings: &Settings, kind: Kind, size_bytes: u32) -> Expected {
    let size_bytes = size_bytes.max(1);
    let stream_bytes = settings.stream_bytes(kind, size_bytes);
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
    let is_asked = kind == Kind::Write && settings.unasked_bytes(size_bytes) < size_bytes;
    let kept = if is_asked {
        let met = meeting(settings.window, command_time_s, path.line_s(stream_bytes)) * f64::from(size_bytes);
        (met / line_or_window(&limits)).min(1.0)
    } else {
        1.0
    };
    let (limit, bytes_per_s) = reached(&limits, kept);
    let command_time = Duration::try_from_secs_f64(command_time_s).unwrap_or(Duration::MAX);
    Expected { bytes_per_s, limit, command_time, round_trips, limits, kept }
}

/// What is reached of all limits, in bytes per second, and the least of them.
fn reached(limits: &[f64; 4], kept: f64) -> (Limit, f64) {
    let (limit, bytes_per_s) = least(limits);
    (limit, bytes_per_s.min(line_or_window(limits) * kept))
}

/// The lesser of the two, in bytes per second.
fn line_or_window(limits: &[f64; 4]) -> f64 {
    limits[0].min(limits[1])
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
        return (round_trip_s + path.line_s(settings.unasked_stream_bytes(size_bytes)), 1);
    }
    let burst_bytes = settings.max_burst_length.clamp(1, asked);
    let bursts = asked.div_ceil(burst_bytes);
    let at_once = u32::from(settings.max_outstanding_r2t.max(1));
    let rounds = bursts.div_ceil(at_once);
    let burst_s = path.line_s(settings.carried_bytes(burst_bytes));
    let busy_s = burst_s * f64::from(at_once);
    let stall_s = (round_trip_s + burst_s - busy_s).max(0.0);
    let asked_s = path.line_s(settings.asked_stream_bytes(asked));
    let unasked_s = path.line_s(settings.unasked_stream_bytes(unasked));
    let time_s = round_trip_s.max(unasked_s) + asked_s + stall_s * f64::from(rounds - 1) + round_trip_s;
    let stalls = if stall_s > 0.0 { rounds - 1 } else { 0 };
    (time_s, 2 + stalls)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The lines of Dalgic and others: 155 Mb/s of packets of 1500 bytes.
    pub(super) fn oc3(round_trip_ms: u64) -> NetworkPath {
        NetworkPath {
            rate_bits_per_s: Some(155e6),
            round_trip: Duration::from_millis(round_trip_ms),
            mtu_bytes: 1500,
            overhead_bytes: 0,
            loss: 0.0,
            losses_together: 1.0,
            bursts: None,
            congestion_control: CongestionControl::Cubic,
            tcp_window_bytes: None,
            queue_bytes: None,
        }
    }

    /// As the paper's: everything is asked for, in bursts of at least the request.
    pub(super) fn solicited(window: u32) -> Settings {
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

    pub(super) fn unsolicited(window: u32) -> Settings {
        Settings { initial_r2t: false, immediate_data: true, ..solicited(window) }
    }

    fn mb_per_s(path: &NetworkPath, settings: &Settings, kind: Kind, kib: u32) -> f64 {
        expect(path, settings, kind, kib << 10).bytes_per_s / 1e6
    }

    pub(super) fn assert_near(value: f64, expected: f64) {
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
    fn a_full_line_is_the_limit() {
        // 1448 bytes of data in a packet of 1500.
        let expected = expect(&oc3(10), &unsolicited(32), Kind::Write, 256 << 10);
        assert_eq!(expected.limit, Limit::Link);
        assert_near(expected.bytes_per_s, 155e6 / 8.0 * 1448.0 / 1500.0);
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
    fn headers_are_those_of_the_pdus_that_go_the_way_of_the_data() {
        let segment = 8192;
        let base = Settings {
            max_recv_data_segment_length: segment,
            first_burst_length: 16 << 10,
            max_burst_length: 20_000,
            ..solicited(1)
        };
        let size = 64 << 10;
        let headers = |initial_r2t, immediate_data, kind, size| {
            let settings = Settings { initial_r2t, immediate_data, ..base };
            let there = settings.stream_bytes(kind, size) - u64::from(size);
            (there / HEADER_BYTES, settings.stream_bytes_back(kind, size) / HEADER_BYTES)
        };
        // A read is asked for by its command, and its status comes with the last data.
        assert_eq!(headers(true, false, Kind::Read, size), (8, 1));
        assert_eq!(headers(false, true, Kind::Read, 512), (1, 1));
        // Its command carries all that a write has.
        assert_eq!(headers(false, true, Kind::Write, 512), (1, 1));
        assert_eq!(headers(false, false, Kind::Write, 512), (2, 1));
        assert_eq!(headers(true, false, Kind::Write, 512), (2, 2));
        // 16 KiB in the command and behind it; then 20,000 bytes in three PDUs, twice, and 9,152 in two.
        assert_eq!(headers(false, true, Kind::Write, size), (2 + 3 + 3 + 2, 1 + 3));
        assert_eq!(headers(false, false, Kind::Write, size), (3 + 3 + 3 + 2, 1 + 3));
        // 20,000 three times, and 5,536; with the command's own, 17,344 are left of the third burst.
        assert_eq!(headers(true, false, Kind::Write, size), (1 + 3 + 3 + 3 + 1, 1 + 4));
        assert_eq!(headers(true, true, Kind::Write, size), (1 + 3 + 3 + 3, 1 + 3));
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
                        losses_together: 1.0,
                        bursts: None,
                        congestion_control,
                        tcp_window_bytes,
                        queue_bytes: None,
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
