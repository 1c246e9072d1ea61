//! The path to a disk: its round trip, its rate, and what one connection gets of it.

use std::fs;
use std::time::Duration;

use lunette_initiator::{Lun, Options};
use lunette_workload::model::{CongestionControl, NetworkPath};
use lunette_workload::{Arrivals, Percent, Range, Sizes, Spread, Workload};

use crate::{Disk, Ending, LabError, Monitor, Negotiated, Plan, Until, Work, bench};

/// Sessions that show what one does not get.
const SESSIONS: u32 = 4;
/// Commands under way of each.
const DEPTH: u32 = 64;
/// The size of each, in bytes, where the disk takes that.
const SIZE_BYTES: u32 = 256 << 10;
/// How long is read, and what comes before, until TCP has found its way.
const TIME: Duration = Duration::from_secs(2);
const WARM_UP: Duration = Duration::from_secs(1);
/// How much more several sessions have to get, before one is held to be limited by itself.
const MUCH_MORE: f64 = 1.25;
/// The packets of Ethernet, which cannot be seen from here.
const MTU_BYTES: u16 = 1500;

/// What was measured of a path by reading.
#[derive(Debug, Clone)]
pub struct MeasuredPath {
    /// What was agreed on, and the round trip of a command without data.
    pub negotiated: Negotiated,
    /// Data per second of one session, in bytes: of all its connections together.
    pub alone_bytes_per_s: f64,
    /// Data per second of several sessions, in bytes; `None` where the target takes only one.
    pub together_bytes_per_s: Option<f64>,
    /// Segments that came to this machine out of order meanwhile, on any connection: where there are some, packets are lost.
    pub out_of_order: u64,
    /// How many bytes of the commands were under way at once.
    window_bytes: f64,
}

/// Measures a path by reading a part of the disk. It takes some seconds, and uses all of the line.
///
/// # Errors
/// There is no session, or the disk cannot be read.
pub fn measure_path(
    options: &Options,
    lun: Lun,
    block_bytes: u32,
    range: Range,
    size_bytes_max: u32,
) -> Result<MeasuredPath, LabError> {
    let room = u32::try_from(range.length_bytes).unwrap_or(u32::MAX);
    let size_bytes = SIZE_BYTES.min(size_bytes_max).min(room);
    let mut plan = Plan {
        disk: Disk::Unit { options: Box::new(options.clone()), lun },
        block_bytes,
        range,
        work: reading(size_bytes),
        depth: DEPTH,
        workers: 1,
        warm_up: WARM_UP,
        until: Until::Time(TIME),
        verify: false,
        target_times: None,
        seed: 1,
        interval: TIME,
        patience: None,
    };
    let before = out_of_order();
    let alone = bench(&plan, &Monitor::default())?;
    check(&alone.ending)?;
    let negotiated = alone.negotiated.ok_or_else(|| LabError::NotReady("it agreed on nothing".to_owned()))?;
    let after = out_of_order();
    plan.workers = SESSIONS;
    let together = bench(&plan, &Monitor::default()).ok();
    let together =
        together.filter(|carried| check(&carried.ending).is_ok()).map(|carried| carried.measured.bytes_per_s);
    Ok(MeasuredPath {
        negotiated,
        alone_bytes_per_s: alone.measured.bytes_per_s,
        together_bytes_per_s: together,
        out_of_order: after.saturating_sub(before),
        window_bytes: f64::from(DEPTH) * f64::from(size_bytes),
    })
}

fn reading(size_bytes: u32) -> Work {
    let workload = Workload {
        sizes: Sizes::one(size_bytes),
        read: Percent::ALL,
        random: Percent::ZERO,
        spread: Spread::Uniform,
    };
    Work::Workload { workload, arrivals: Arrivals::Closed }
}

fn check(ending: &Ending) -> Result<(), LabError> {
    match ending {
        Ending::Complete | Ending::Interrupted | Ending::InterruptedFilling => Ok(()),
        Ending::Mismatch(what) | Ending::Refused(what) | Ending::Lost(what) => {
            Err(LabError::NotReady(what.clone()))
        }
    }
}

impl MeasuredPath {
    /// Who got what is taken for the line: one session, or several.
    #[must_use]
    pub fn line_from(&self) -> &'static str {
        if self.together_bytes_per_s > Some(self.alone_bytes_per_s) {
            "several sessions"
        } else {
            "one session"
        }
    }

    /// What the model makes of it. What several sessions get together is the line; where one gets much less, and neither its
    /// commands nor the line were the limit, TCP was: by losses if segments came out of order, else by its windows.
    #[must_use]
    pub fn network_path(&self) -> NetworkPath {
        let round_trip = self.negotiated.idle_round_trip();
        let line = self.together_bytes_per_s.unwrap_or_default().max(self.alone_bytes_per_s).max(1.0);
        let mut path = NetworkPath {
            rate_bits_per_s: Some(line * 8.0),
            round_trip,
            mtu_bytes: MTU_BYTES,
            overhead_bytes: 0,
            loss: 0.0,
            losses_together: 1.0,
            bursts: None,
            // The target's, which cannot be seen from here.
            congestion_control: CongestionControl::default(),
            tcp_window_bytes: None,
            queue_bytes: None,
        };
        // The line carries headers beside the data.
        let payload = path.payload_bytes_per_s().unwrap_or(line);
        path.rate_bits_per_s = Some(line * 8.0 * line / payload);
        let commands_allow = self.window_bytes / round_trip.as_secs_f64().max(1e-9);
        if line > self.alone_bytes_per_s * MUCH_MORE && self.alone_bytes_per_s * MUCH_MORE < commands_allow {
            // The model's limits are those of each connection. There are at most 32.
            let each_bytes_per_s = self.alone_bytes_per_s / self.negotiated.connections.max(1) as f64;
            if self.out_of_order > 0 {
                path.loss = path.loss_for(each_bytes_per_s);
            } else {
                // Whole bytes of a positive number.
                path.tcp_window_bytes = Some((each_bytes_per_s * round_trip.as_secs_f64()) as u64);
            }
        }
        path
    }
}

/// TCP segments of this network namespace that came out of order (proc_pid_net(5), netstat); 0 where the system does not tell.
fn out_of_order() -> u64 {
    let text = fs::read_to_string("/proc/self/net/netstat").unwrap_or_default();
    counter(&text, "TcpExt:", "TCPOFOQueue").unwrap_or(0)
}

/// A counter from pairs of lines, the first of which has the names.
fn counter(text: &str, group: &str, name: &str) -> Option<u64> {
    let mut lines = text.lines().filter(|line| line.starts_with(group));
    let (names, values) = (lines.next()?, lines.next()?);
    let at = names.split(' ').position(|word| word == name)?;
    values.split(' ').nth(at)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use lunette_workload::Kind;
    use lunette_workload::model::{Limit, expect};

    use super::*;

    fn measured(alone: f64, together: Option<f64>, out_of_order: u64) -> MeasuredPath {
        let negotiated = Negotiated {
            first_burst_length: 262_144,
            max_burst_length: 262_144,
            max_recv_data_segment_length: 262_144,
            target_max_recv_data_segment_length: 262_144,
            idle_round_trip_us: Some(50_000.0),
            ..Negotiated::of_tests()
        };
        MeasuredPath {
            negotiated,
            alone_bytes_per_s: alone,
            together_bytes_per_s: together,
            out_of_order,
            window_bytes: 16e6,
        }
    }

    #[test]
    fn what_one_session_fills_is_the_line() {
        for together in [None, Some(18.7e6), Some(12e6)] {
            let path = measured(18.7e6, together, 3).network_path();
            assert!((path.rate_bits_per_s.unwrap() / 155e6 - 1.0).abs() < 0.01, "{path:?}");
            assert!((path.payload_bytes_per_s().unwrap() - 18.7e6).abs() < 1.0);
            assert_eq!((path.loss, path.tcp_window_bytes), (0.0, None));
        }
        assert_eq!(measured(18e6, None, 0).line_from(), "one session");
        assert_eq!(measured(18e6, Some(12e6), 0).line_from(), "one session");
        assert_eq!(measured(18e6, Some(19e6), 0).line_from(), "several sessions");
    }

    #[test]
    fn what_one_connection_does_not_get_is_for_losses_or_windows() {
        let lossy = measured(2e6, Some(8e6), 100).network_path();
        assert!((lossy.loss_limit().unwrap() / 2e6 - 1.0).abs() < 0.01, "{lossy:?}");
        assert_eq!(lossy.tcp_window_bytes, None);
        let narrow = measured(2e6, Some(8e6), 0).network_path();
        assert_eq!((narrow.loss, narrow.tcp_window_bytes), (0.0, Some(100_000)));
        // 16 MB in 50 ms are all that the commands allow.
        let commands = measured(310e6, Some(900e6), 7).network_path();
        assert_eq!((commands.loss, commands.tcp_window_bytes), (0.0, None));
    }

    #[test]
    fn what_several_connections_got_is_expected_of_as_many() {
        for (out_of_order, limit) in [(100, Limit::Loss), (0, Limit::TcpWindow)] {
            let mut measured = measured(2e6, Some(8e6), out_of_order);
            measured.negotiated.connections = 4;
            let expected = expect(
                &measured.network_path(),
                &measured.negotiated.settings(DEPTH),
                Kind::Read,
                SIZE_BYTES,
            );
            assert_eq!(expected.limit, limit);
            assert!((expected.bytes_per_s / 2e6 - 1.0).abs() < 0.01, "{expected:?}");
        }
    }

    #[test]
    fn counters_are_found_by_their_names() {
        let text = "TcpExt: SyncookiesSent TCPOFOQueue\nTcpExt: 3 17\nIpExt: A B\nIpExt: 1 2\n";
        assert_eq!(counter(text, "TcpExt:", "TCPOFOQueue"), Some(17));
        assert_eq!(counter(text, "TcpExt:", "Other"), None);
        assert_eq!(counter("TcpExt: A\n", "TcpExt:", "A"), None);
    }
}
