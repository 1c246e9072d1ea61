//! The path to a disk: its round trip, its rate, and what one connection gets of it.

use std::fs;
use std::time::Duration;

use lunette_initiator::{Lun, Options};
use lunette_workload::model::{CongestionControl, NetworkPath};
use lunette_workload::{Arrivals, Percent, Range, Sizes, Spread, Workload};

use crate::{Disk, Ending, LabError, Monitor, Negotiated, Plan, Until, Work, bench};

/// Sessions that show what one does not get.
const SESSIONS: u32 = 4;
/// What is under way of each: commands, and the size of each in bytes, where the disk takes that. It becomes more as long as the path
/// carries all of it in [`TURN`] and some round trips, so that a slow path is not given minutes of work.
const LOADS: [(u32, u32); 4] = [(4, 4 << 10), (16, 16 << 10), (64, 64 << 10), (64, 256 << 10)];
const TURN: Duration = Duration::from_millis(250);
const TURN_ROUND_TRIPS: u32 = 4;
/// How long each of them is tried, so that TCP finds some of its way.
const LOOK: Duration = Duration::from_millis(300);
const LOOK_ROUND_TRIPS: u32 = 10;
/// How long is read, and what comes before, until TCP has found its way; on a slow path so many turns.
const TIME: Duration = Duration::from_secs(2);
const WARM_UP: Duration = Duration::from_secs(1);
const TURNS: u32 = 4;
/// How long the last commands are waited for: a path that carries nothing for so long is none.
const PATIENCE: Duration = Duration::from_secs(30);
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

/// Measures a path by reading a part of the disk. It takes some seconds, on a path of some kilobytes a second a minute, and uses
/// all of the line.
///
/// # Errors
/// There is no session, the disk cannot be read, or nothing comes of it in half a minute.
pub fn measure_path(
    options: &Options,
    lun: Lun,
    block_bytes: u32,
    range: Range,
    size_bytes_max: u32,
) -> Result<MeasuredPath, LabError> {
    let room = u32::try_from(range.length_bytes).unwrap_or(u32::MAX);
    let disk = Disk::Unit { options: Box::new(options.clone()), lun };
    let plan = |(depth, size_bytes): (u32, u32), [warm_up, time]: [Duration; 2], workers| Plan {
        disk: disk.clone(),
        block_bytes,
        transfer_bytes_max: None,
        range,
        work: reading(size_bytes),
        depth,
        workers,
        warm_up,
        until: Until::Time(time),
        verify: false,
        target_times: None,
        seed: 1,
        interval: TIME,
        patience: Some(PATIENCE),
    };
    let as_far_as_the_disk_takes =
        |(depth, size_bytes): (u32, u32)| (depth, size_bytes.max(block_bytes).min(size_bytes_max).min(room));
    let (mut load, mut turn, mut round_trip) = (LOADS[0], Duration::ZERO, Duration::ZERO);
    for larger in LOADS.map(as_far_as_the_disk_takes) {
        let time = LOOK + round_trip * LOOK_ROUND_TRIPS;
        let looked = bench(&plan(larger, [Duration::ZERO, time], 1), &Monitor::default())?;
        check(&looked.ending)?;
        round_trip = looked.negotiated.as_ref().map(Negotiated::idle_round_trip).unwrap_or_default();
        let longest_s = looked.measured.under_way_longest_us / 1e6;
        (load, turn) = (larger, turn_of(bytes_of(larger), looked.measured.bytes_per_s, longest_s));
        if turn > TURN + round_trip * TURN_ROUND_TRIPS {
            break;
        }
    }
    let times = [WARM_UP.max(turn), TIME.max(turn * TURNS)];
    let before = out_of_order();
    let alone = bench(&plan(load, times, 1), &Monitor::default())?;
    check(&alone.ending)?;
    if alone.measured.operations == 0 {
        let waited_s = (times[0] + times[1] + PATIENCE).as_secs();
        return Err(LabError::NotReady(format!(
            "nothing of the disk came in {waited_s} s: the path is too slow, or carries nothing at all"
        )));
    }
    let negotiated = alone.negotiated.ok_or_else(|| LabError::NotReady("it agreed on nothing".to_owned()))?;
    let after = out_of_order();
    let together = bench(&plan(load, times, SESSIONS), &Monitor::default()).ok();
    let together =
        together.filter(|carried| check(&carried.ending).is_ok()).map(|carried| carried.measured.bytes_per_s);
    let window_bytes = bytes_of((negotiated.at_once(load.0), load.1));
    Ok(MeasuredPath {
        negotiated,
        alone_bytes_per_s: alone.measured.bytes_per_s,
        together_bytes_per_s: together,
        out_of_order: after.saturating_sub(before),
        window_bytes,
    })
}

fn bytes_of((depth, size_bytes): (u32, u32)) -> f64 {
    f64::from(depth) * f64::from(size_bytes)
}

/// How long the path takes for so many bytes, of which it has carried some at this rate, or none before the longest of them was over.
fn turn_of(load_bytes: f64, bytes_per_s: f64, longest_s: f64) -> Duration {
    let seconds = if bytes_per_s > 0.0 { load_bytes / bytes_per_s } else { longest_s };
    Duration::try_from_secs_f64(seconds).unwrap_or(PATIENCE)
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
        Ending::Mismatch(what)
        | Ending::Refused(what)
        | Ending::Lost(what)
        | Ending::NothingMeasured(what) => Err(LabError::NotReady(what.clone())),
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
    fn a_turn_is_of_what_came_in_time_or_behind_it() {
        let ms = Duration::from_millis;
        assert_eq!((turn_of(1e6, 4e6, 0.0), turn_of(1e6, 0.0, 7.5)), (ms(250), ms(7500)));
        assert_eq!(turn_of(1e6, 1e-300, 0.0), PATIENCE);
        // The first takes a line of 64 kb/s two seconds, the last one of 1 Gb/s less than a turn.
        assert!(
            turn_of(bytes_of(LOADS[0]), 8e3, 0.0) > TURN && turn_of(bytes_of(LOADS[3]), 118e6, 0.0) < TURN
        );
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
            let expected =
                expect(&measured.network_path(), &measured.negotiated.settings(64), Kind::Read, 256 << 10);
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
