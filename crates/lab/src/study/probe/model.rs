//! What the model expects of a cell.

use std::time::Duration;

use lunette_link::{Link, Shape};
use lunette_workload::Kind;
use lunette_workload::model::{self, CongestionControl, Limit, NetworkPath, Settings};

use super::Metric;
use super::disk::{DiskProbe, Mix};
use crate::Negotiated;

/// A link, and what drives it.
#[derive(Clone, Copy)]
pub(super) struct Driven<'a> {
    pub(super) link: &'a Link,
    pub(super) congestion_control: &'a str,
}

/// What one direction of a link does to TCP.
pub(super) fn path(
    driven: Driven<'_>,
    shape: &Shape,
    round_trip: Duration,
    tcp_window_bytes: Option<u64>,
) -> NetworkPath {
    let link = driven.link;
    NetworkPath {
        // Bits per second are far below what a double holds exactly.
        rate_bits_per_s: shape.rate.map(|rate| rate.bits_per_s() as f64),
        round_trip,
        mtu_bytes: link.mtu,
        overhead_bytes: shape.overhead_bytes,
        loss: shape.loss.mean(),
        congestion_control: CongestionControl::named(driven.congestion_control),
        tcp_window_bytes,
    }
}

/// What is to be expected of one TCP connection in one direction, in 10^6 bytes per second.
pub(super) fn plain(path: &NetworkPath) -> Option<(f64, Limit)> {
    let limits = [
        (path.payload_bytes_per_s(), Limit::Link),
        (path.tcp_window_limit(), Limit::TcpWindow),
        (path.loss_limit(), Limit::Loss),
    ];
    let limits = limits.into_iter().filter_map(|(value, limit)| value.map(|value| (value / 1e6, limit)));
    limits.min_by(|one, other| one.0.total_cmp(&other.0))
}

/// What is to be expected of a disk: of its reads and writes by their shares, each with a direction of the line of its own.
pub(super) fn disk(driven: Driven<'_>, probe: &DiskProbe, agreed: &Negotiated) -> Option<(f64, Limit)> {
    let Mix { size_bytes, read_share } = probe.mix();
    let link = driven.link;
    let window = probe.tcp_buffer_bytes.map(|bytes| bytes as u64);
    let round_trip = Duration::try_from_secs_f64(agreed.idle_round_trip_us? / 1e6).ok()?;
    let expect = |kind, shape, max_recv_data_segment_length| {
        let settings = Settings {
            initial_r2t: agreed.initial_r2t,
            immediate_data: agreed.immediate_data,
            first_burst_length: agreed.first_burst_length,
            max_burst_length: agreed.max_burst_length,
            max_outstanding_r2t: agreed.max_outstanding_r2t,
            max_recv_data_segment_length,
            connections: u16::try_from(agreed.connections).unwrap_or(u16::MAX),
            window: probe.depth,
        };
        model::expect(&path(driven, shape, round_trip, window), &settings, kind, size_bytes)
    };
    let read = expect(Kind::Read, &link.down, agreed.max_recv_data_segment_length);
    let write = expect(Kind::Write, &link.up, agreed.target_max_recv_data_segment_length);
    let (bytes_per_s, limit) = model::mixed(&read, &write, read_share);
    let figure = match probe.metric {
        Metric::MegabytesPerSecond => bytes_per_s / 1e6,
        Metric::MebibytesPerSecond => bytes_per_s / f64::from(1 << 20),
        Metric::OperationsPerSecond => bytes_per_s / f64::from(size_bytes),
        // A command that is alone takes its own time; of several, Little's law gives what each of them takes.
        Metric::MeanMilliseconds if probe.depth == 1 => {
            let (read_s, write_s) = (read.command_time.as_secs_f64(), write.command_time.as_secs_f64());
            (read_s * read_share + write_s * (1.0 - read_share)) * 1e3
        }
        Metric::MeanMilliseconds => {
            f64::from(probe.depth) * f64::from(size_bytes) / bytes_per_s.max(1e-9) * 1e3
        }
    };
    Some((figure, limit))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn losses_limit_only_who_takes_them_for_congestion() {
        let link: Link = "oc3-50,loss=1%".parse().expect("a link");
        let limit = |congestion_control| {
            let driven = Driven { link: &link, congestion_control };
            plain(&path(driven, &link.up, link.round_trip(), None)).expect("a limit")
        };
        let (reno, of_reno) = limit("reno");
        let (cubic, of_cubic) = limit("cubic");
        let (bbr, of_bbr) = limit("bbr");
        assert_eq!((of_reno, of_cubic, of_bbr), (Limit::Loss, Limit::Loss, Limit::Link));
        assert!(reno <= cubic && cubic < 1.0 && (18.0..19.0).contains(&bbr), "{cubic}, {bbr}");
    }
}
