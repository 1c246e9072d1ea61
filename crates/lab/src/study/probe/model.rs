//! What the model expects of a cell.

use std::time::Duration;

use lunette_link::{Link, Shape};
use lunette_workload::Kind;
use lunette_workload::model::{self, CongestionControl, Limit, NetworkPath, Settings};

use super::Metric;
use super::disk::{DiskProbe, Mix};
use crate::Negotiated;
use crate::advise::{line_path, lost};
use crate::study::echo::{Exchanged, Payload};

/// Whose data goes down, and whose up.
const KINDS: [Kind; 2] = [Kind::Read, Kind::Write];

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
    NetworkPath {
        round_trip,
        congestion_control: CongestionControl::named(driven.congestion_control),
        tcp_window_bytes,
        ..line_path(driven.link, shape)
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

/// Down and up, the ways of the data of a disk's reads and writes, with what a round trip takes in them, of writes by whether they wait to
/// be asked for data; and what counts for each.
fn both(
    driven: Driven<'_>,
    probe: &DiskProbe,
    agreed: &Negotiated,
    round_trip: &dyn Fn(Kind, bool) -> Duration,
) -> ([NetworkPath; 2], [Settings; 2]) {
    let Mix { size_bytes, .. } = probe.mix();
    let window = probe.tcp_buffer_bytes.map(|bytes| bytes as u64);
    let settings = KINDS.map(|kind| settings(probe, agreed, kind));
    let shapes = [&driven.link.down, &driven.link.up];
    let paths = [0, 1].map(|way| {
        let is_asked = settings[way].unasked_bytes(size_bytes) < size_bytes;
        path(driven, shapes[way], round_trip(KINDS[way], is_asked), window)
    });
    (paths, settings)
}

/// What is to be expected of reads and of writes alone.
fn each(paths: &[NetworkPath; 2], settings: &[Settings; 2], size_bytes: u32) -> [model::Expected; 2] {
    [0, 1].map(|way| model::expect(&paths[way], &settings[way], KINDS[way], size_bytes))
}

/// What counts for commands of one kind.
fn settings(probe: &DiskProbe, agreed: &Negotiated, kind: Kind) -> Settings {
    Settings {
        initial_r2t: agreed.initial_r2t,
        immediate_data: agreed.immediate_data,
        first_burst_length: agreed.first_burst_length,
        max_burst_length: agreed.max_burst_length,
        max_outstanding_r2t: agreed.max_outstanding_r2t,
        max_recv_data_segment_length: match kind {
            Kind::Read => agreed.max_recv_data_segment_length,
            Kind::Write => agreed.target_max_recv_data_segment_length,
        },
        connections: u16::try_from(agreed.connections).unwrap_or(u16::MAX),
        window: probe.depth,
    }
}

/// How much of the bytes on the way of its data is data: the rest are headers. Of a disk that is only read or only written.
pub(super) fn data_share(probe: &DiskProbe, agreed: &Negotiated) -> f64 {
    let Mix { size_bytes, read_share } = probe.mix();
    let kind = if read_share > 0.0 { Kind::Read } else { Kind::Write };
    // Far below what a double holds exactly.
    f64::from(size_bytes) / settings(probe, agreed, kind).stream_bytes(kind, size_bytes) as f64
}

/// How many round trips a command of a disk takes by what was agreed on: of reads and writes, the mean.
pub(super) fn round_trips(driven: Driven<'_>, probe: &DiskProbe, agreed: &Negotiated) -> f64 {
    let Mix { size_bytes, read_share } = probe.mix();
    let of_the_link = |_, _| driven.link.round_trip();
    let (paths, settings) = both(driven, probe, agreed, &of_the_link);
    let [read, write] = each(&paths, &settings, size_bytes).map(|one| one.round_trips);
    f64::from(read) * read_share + f64::from(write) * (1.0 - read_share)
}

/// What a round trip of a command takes, on the average of several where the first one is for being asked for data: what as many
/// bytes take, which nothing of ours has a part in.
fn round_trip(command: Duration, exchanged: Option<Exchanged>, kind: Kind, is_asked: bool) -> Duration {
    let Some(exchanged) = exchanged else { return command };
    let Exchanged { header, read, write, asked, .. } = exchanged;
    let with_data = match kind {
        Kind::Read => read,
        Kind::Write if is_asked => asked.map(|both| both / 2).or_else(|| Some((header + write?) / 2)),
        Kind::Write => write,
    };
    with_data.unwrap_or(header)
}

/// What is to be exchanged beside the commands of a disk: as much data as theirs, but for what a buffer that is set would hold up, and
/// none where losses would.
pub(super) fn payload(driven: Driven<'_>, probe: &DiskProbe) -> Payload {
    let Mix { size_bytes, read_share } = probe.mix();
    let buffer_bytes =
        probe.tcp_buffer_bytes.map_or(u32::MAX, |bytes| u32::try_from(bytes).unwrap_or(u32::MAX));
    let is_whole = lost(&driven.link.up) + lost(&driven.link.down) <= 0.0;
    let path = |shape| path(driven, shape, Duration::ZERO, None);
    Payload {
        size_bytes: size_bytes.min(buffer_bytes / 2),
        round_trip: driven.link.round_trip(),
        reads: (read_share > 0.0 && is_whole).then(|| path(&driven.link.down)),
        writes: (read_share < 1.0 && is_whole).then(|| path(&driven.link.up)),
        is_asked: probe.asks_for_all(),
    }
}

/// What the model says of a disk.
pub(super) struct Modelled {
    /// What is to be expected of its reads and writes by their shares, and what limits it.
    pub(super) expected: (f64, Limit),
    /// The round trip that it has, of both the mean.
    pub(super) round_trip: Duration,
}

/// What is to be expected of a disk. `exchanged` is what its bytes take there and back by plain TCP, if that is known.
pub(super) fn disk(
    driven: Driven<'_>,
    probe: &DiskProbe,
    agreed: &Negotiated,
    exchanged: Option<Exchanged>,
) -> Option<Modelled> {
    let Mix { size_bytes, read_share } = probe.mix();
    let command = Duration::try_from_secs_f64(agreed.idle_round_trip_us? / 1e6).ok()?;
    // Less than the link has is nothing but scatter of one of the measurements.
    let least = driven.link.round_trip();
    let round_trip = |kind, is_asked| round_trip(command, exchanged, kind, is_asked).max(least);
    let (paths, settings) = both(driven, probe, agreed, &round_trip);
    let each = each(&paths, &settings, size_bytes);
    let (bytes_per_s, limit) = model::side_by_side(&paths, &each, &settings, size_bytes, read_share);
    let [read, write] = each;
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
    let trip_s = |kind, one: &model::Expected| round_trip(kind, one.round_trips > 1).as_secs_f64();
    let mean_s = trip_s(Kind::Read, &read) * read_share + trip_s(Kind::Write, &write) * (1.0 - read_share);
    Some(Modelled { expected: (figure, limit), round_trip: Duration::try_from_secs_f64(mean_s).ok()? })
}

#[cfg(test)]
mod tests {
    use lunette_workload::{Percent, Sizes, Spread, Workload};

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

    #[test]
    fn the_round_trip_is_that_of_as_many_bytes() {
        let us = Duration::from_micros;
        let exchanged = Exchanged {
            header: us(150),
            read: Some(us(270)),
            write: Some(us(190)),
            asked: None,
            stolen: 0.0,
        };
        let of =
            |command, kind, is_asked| round_trip(us(command), Some(exchanged), kind, is_asked).as_micros();
        // Whatever a command without data takes: a target that is awake for it sleeps while it waits for data.
        for command in [250, 130] {
            assert_eq!([of(command, Kind::Read, false), of(command, Kind::Write, false)], [270, 190]);
            assert_eq!(of(command, Kind::Write, true), 170, "a header each way, and then data");
        }
        let asked = Exchanged { asked: Some(us(360)), ..exchanged };
        assert_eq!(round_trip(us(250), Some(asked), Kind::Write, true), us(180), "one behind the other");
        assert_eq!(round_trip(us(250), Some(asked), Kind::Write, false), us(190));
        let header = Exchanged { read: None, ..exchanged };
        assert_eq!(round_trip(us(250), Some(header), Kind::Read, false), us(150));
        assert_eq!(round_trip(us(250), None, Kind::Read, false), us(250));
    }

    #[test]
    fn what_is_exchanged_is_what_a_command_has() {
        let of = |link: &str, read: u8, change: &dyn Fn(&mut DiskProbe)| {
            let link: Link = link.parse().expect("a link");
            let sizes = Sizes::one(64 << 10);
            let read = Percent::new(read);
            let mut probe = DiskProbe::new(
                Workload { sizes, read, random: Percent::ZERO, spread: Spread::Uniform },
                1,
                Metric::MegabytesPerSecond,
            );
            change(&mut probe);
            let payload = payload(Driven { link: &link, congestion_control: "reno" }, &probe);
            (payload.size_bytes, payload.reads.is_some(), payload.writes.is_some())
        };
        assert_eq!(of("oc3-10", 100, &|_| ()), (64 << 10, true, false));
        assert_eq!(of("oc3-10", 0, &|_| ()), (64 << 10, false, true));
        assert_eq!(of("oc3-10", 50, &|probe| probe.tcp_buffer_bytes = Some(4096)), (2048, true, true));
        assert_eq!(of("oc3-10,loss=0.1%", 50, &|_| ()), (64 << 10, false, false));
    }

    #[test]
    fn of_the_bytes_of_a_command_the_headers_are_no_data() {
        let probe = |read, size_bytes| {
            let (sizes, read) = (Sizes::one(size_bytes), Percent::new(read));
            let workload = Workload { sizes, read, random: Percent::ZERO, spread: Spread::Uniform };
            DiskProbe::new(workload, 1, Metric::MegabytesPerSecond)
        };
        let agreed = Negotiated {
            max_recv_data_segment_length: 64 << 10,
            target_max_recv_data_segment_length: 8 << 10,
            ..Negotiated::of_tests()
        };
        // One Data-In PDU; a command with data, and seven PDUs behind it.
        assert_eq!(data_share(&probe(100, 64 << 10), &agreed), 65_536.0 / (65_536.0 + 48.0));
        assert_eq!(data_share(&probe(0, 64 << 10), &agreed), 65_536.0 / (65_536.0 + 8.0 * 48.0));
    }

    #[test]
    fn round_trips_are_those_of_the_keys_that_were_agreed_on() {
        let probe = |read| {
            let sizes = Sizes::one(64 << 10);
            let read = Percent::new(read);
            let workload = Workload { sizes, read, random: Percent::ZERO, spread: Spread::Uniform };
            DiskProbe::new(workload, 1, Metric::MegabytesPerSecond)
        };
        let unasked = Negotiated::of_tests();
        let link: Link = "oc3-50".parse().expect("a link");
        let count = |probe: &DiskProbe, agreed: &Negotiated| {
            round_trips(Driven { link: &link, congestion_control: "reno" }, probe, agreed)
        };
        assert_eq!(count(&probe(0), &unasked), 1.0);
        // What the study asks for is the same in all of these.
        for (agreed, expected) in [
            (Negotiated { initial_r2t: true, ..unasked.clone() }, 2.0),
            (Negotiated { first_burst_length: 8192, ..unasked.clone() }, 2.0),
            (
                Negotiated {
                    initial_r2t: true,
                    immediate_data: false,
                    max_burst_length: 16 << 10,
                    ..unasked
                },
                5.0,
            ),
        ] {
            assert_eq!(count(&probe(0), &agreed), expected, "{agreed:?}");
            assert_eq!(count(&probe(100), &agreed), 1.0);
            assert_eq!(count(&probe(50), &agreed), (1.0 + expected) / 2.0);
        }
    }
}
