//! An advice is tried: the same link, emulated, with Lunette at both ends and the settings in question.

use std::fs;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use lunette_link::Link;
use lunette_wan::tcp_connections;
use lunette_workload::model::advice::Question;
use lunette_workload::model::{CongestionControl, Limit};
use lunette_workload::{Arrivals, Percent, Spread, Workload};
use serde::Serialize;

use crate::bench::plan::REQUESTS_BYTES_MAX;
use crate::study::{BLOCK_BYTES, Ends, RANGE_BYTES, Site, UNEXPLAINED, median};
use crate::{DEPTH_MAX, Disk, Ending, LabError, Monitor, Negotiated, Phase, Plan, Until, Work, bench};

/// How long is measured, and what comes before; both also grow with the round trip, and with what commands take: so many of them are to
/// end, so that one more or less is hardly seen, if they do within [`TIME_MAX`].
const TIME: Duration = Duration::from_millis(2500);
const WARM_UP: Duration = Duration::from_millis(500);
const COMMANDS: f64 = 25.0;
/// Nobody waits for longer.
const TIME_MAX: Duration = Duration::from_secs(60);
/// Losses are few, and each counts for long: so many times as long.
const LOSSY: u32 = 6;
/// How often TCP's windows are looked at.
const LOOK: Duration = Duration::from_millis(100);
/// What the model knows losses of. A system whose own is another one may allow its networks only Reno beside that.
const CONTROLS: [&str; 2] = ["cubic", "reno"];

/// What is off the model by more than this part of it is not limited by what the model says.
const ABOUT: f64 = 0.1;
/// The same of mixes and of links that lose packets, of which runs are up to a quarter apart.
const ABOUT_MIXED: f64 = 0.25;
/// What limits it then.
const MACHINE: &str = "machine";
const COMMAND_ORDER: &str = "command-order";

/// Where advice is tried.
#[derive(Debug, Clone, Copy)]
pub struct Trial<'a> {
    /// The program `lunette`, which serves at the far end.
    pub binary: &'a Path,
    /// The link.
    pub link: &'a Link,
    /// How many of a hundred commands read.
    pub read: Percent,
    /// Where chance begins.
    pub seed: u64,
}

/// What came of one set of settings.
#[derive(Debug, Clone, Serialize)]
pub struct Outcome {
    /// Data per second, in bytes.
    pub measured_bytes_per_s: f64,
    /// What the model expects of what was agreed on, and of the round trip and the TCP windows that were measured.
    pub expected_bytes_per_s: f64,
    /// What the model says the limit is, where about that much came, and else who is: `machine` where this one was late,
    /// `command-order` where writes on several connections waited for each other's losses, and `unexplained`.
    pub limit: &'static str,
    /// The model expects no more than that, and nobody knows how much less.
    pub is_upper_bound: bool,
    /// What initiator and target agreed on.
    pub negotiated: Negotiated,
    /// TCP's congestion control at both ends, whose losses are expected.
    pub congestion_control: String,
    /// The machine was late with packets, or lost some: the figure is of the machine.
    pub is_doubtful: bool,
}

impl Trial<'_> {
    /// Measures a workload with these settings. The process must have the privileges for a network
    /// ([`lunette_wan::acquire_privileges`]).
    ///
    /// # Errors
    /// A network, a target or a session could not be had, or what is under way would not fit in memory.
    pub fn run(&self, question: &Question<'_>) -> Result<Outcome, LabError> {
        let bytes = u64::from(question.settings.window) * u64::from(question.sizes.largest());
        if bytes > REQUESTS_BYTES_MAX || question.settings.window > DEPTH_MAX {
            return Err(LabError::Plan(format!(
                "{} commands of {} bytes are more than can be tried here",
                question.settings.window,
                question.sizes.largest()
            )));
        }
        // A thread of its own: it stays in the namespace of the target, which ends with it.
        let joined = thread::scope(|scope| scope.spawn(|| self.carry_out(question)).join());
        joined.unwrap_or(Err(LabError::Panicked))
    }

    fn carry_out(&self, question: &Question<'_>) -> Result<Outcome, LabError> {
        let ends = Ends { limits: limits(question), ..Ends::default() };
        let site = Site::open(self.link, self.seed, &CONTROLS, self.binary, &ends)?;
        let is_held = match question.paths.map(|path| path.tcp_window_bytes) {
            // Where both ends have them already, nothing need be writable.
            [Some(down), Some(up)] if !(down == up && site.near(tcp_window_bytes)? == Some(down)) => {
                site.near(|| hold_tcp_windows(down, up))?
                    .map_err(LabError::system("TCP buffers at the near end"))?;
                site.far(|| hold_tcp_windows(up, down))?;
                true
            }
            _ => false,
        };
        let plan = self.plan(&site, question)?;
        let monitor = Monitor::default();
        let (carried, seen) = windows_of(&site, &monitor, || site.near(|| bench(&plan, &monitor)));
        let carried = carried??;
        if let Ending::Mismatch(what) | Ending::Refused(what) | Ending::Lost(what) = carried.ending {
            return Err(LabError::NotReady(what));
        }
        let negotiated =
            carried.negotiated.ok_or_else(|| LabError::NotReady("nothing was agreed on".to_owned()))?;
        let mut agreed = *question;
        agreed.settings = negotiated.settings(question.settings.window);
        agreed.read_segment_bytes = negotiated.max_recv_data_segment_length;
        let congestion_control = site.congestion_control()?;
        for (path, seen) in agreed.paths.iter_mut().zip(seen) {
            if is_held {
                path.tcp_window_bytes = path.tcp_window_bytes.max(seen);
            }
            path.round_trip = negotiated.idle_round_trip();
            path.congestion_control = CongestionControl::named(&congestion_control);
        }
        let (expected_bytes_per_s, limit): (f64, Limit) = agreed.expected();
        let (measured_bytes_per_s, is_doubtful) =
            (carried.measured.bytes_per_s, site.facts(self.link)?.is_doubtful);
        let is_in_order = agreed.settings.connections > 1 && agreed.waits_in_order();
        let reached = measured_bytes_per_s / expected_bytes_per_s.max(1e-9);
        Ok(Outcome {
            measured_bytes_per_s,
            expected_bytes_per_s,
            limit: limited_by(reached, self.about(question), limit, is_in_order, is_doubtful),
            is_upper_bound: agreed.is_upper_bound(),
            negotiated,
            congestion_control,
            is_doubtful,
        })
    }

    /// How far off the model a run may be that is limited by what the model says.
    fn about(&self, question: &Question<'_>) -> f64 {
        let is_mixed = ![0, 100].contains(&self.read.get()) || question.sizes.iter().count() > 1;
        if is_mixed || question.paths.iter().any(|path| path.loss > 0.0) { ABOUT_MIXED } else { ABOUT }
    }

    fn plan(&self, site: &Site, question: &Question<'_>) -> Result<Plan, LabError> {
        let (mut options, lun) = site.options()?;
        let wishes = &mut options.wishes;
        wishes.initial_r2t = question.settings.initial_r2t;
        wishes.immediate_data = question.settings.immediate_data;
        wishes.first_burst_length = question.settings.first_burst_length;
        wishes.max_burst_length = question.settings.max_burst_length;
        wishes.max_outstanding_r2t = question.settings.max_outstanding_r2t;
        wishes.max_recv_data_segment_length = question.read_segment_bytes;
        options.connections = question.settings.connections;
        let workload = Workload {
            sizes: question.sizes.clone(),
            read: self.read,
            random: Percent::ZERO,
            spread: Spread::Uniform,
        };
        let round_trip = self.link.round_trip();
        let (bytes_per_s, _) = question.expected();
        let for_bytes = |bytes: f64| Duration::try_from_secs_f64(bytes / bytes_per_s).unwrap_or(TIME_MAX);
        let mean_bytes = question.sizes.mean();
        let turn = for_bytes(mean_bytes * f64::from(question.settings.window)).min(TIME_MAX / 2);
        let time = for_bytes(mean_bytes * COMMANDS).max(TIME);
        let times = if question.paths.iter().any(|path| path.loss > 0.0) { LOSSY } else { 1 };
        Ok(Plan {
            disk: Disk::Unit { options: Box::new(options), lun },
            block_bytes: BLOCK_BYTES,
            transfer_bytes_max: None,
            range: lunette_workload::Range { offset_bytes: 0, length_bytes: RANGE_BYTES },
            work: Work::Workload { workload, arrivals: Arrivals::Closed },
            depth: question.settings.window,
            workers: 1,
            warm_up: WARM_UP.max(turn) + round_trip * 20,
            until: Until::Time(((time + round_trip * 40) * times).min(TIME_MAX)),
            verify: false,
            target_times: None,
            seed: self.seed,
            interval: Duration::from_secs(1),
            patience: None,
        })
    }
}

/// What limits a run that has reached so much of what the model expects.
fn limited_by(reached: f64, about: f64, limit: Limit, is_in_order: bool, is_doubtful: bool) -> &'static str {
    match reached {
        reached if (reached - 1.0).abs() <= about => limit.word(),
        _ if is_doubtful => MACHINE,
        reached if reached < 1.0 && is_in_order => COMMAND_ORDER,
        _ => UNEXPLAINED,
    }
}

/// What the target has to grant, as its configuration says it.
fn limits(question: &Question<'_>) -> String {
    let settings = &question.settings;
    format!(
        "[limits]\nwindow_depth = {}\nmax_connections = {}\nmax_outstanding_r2t = {}\nmax_burst_length_bytes = {}\n\
         first_burst_length_bytes = {}\nmax_recv_data_segment_length_bytes = {}\n",
        settings.window,
        settings.connections,
        settings.max_outstanding_r2t,
        settings.max_burst_length,
        settings.first_burst_length,
        settings.max_recv_data_segment_length
    )
}

/// What TCP of this network namespace may have under way on one connection, in bytes; nothing where the system does not tell. Half of a
/// receive buffer is the system's own, and about a quarter of a send buffer (tcp(7), tcp_rmem, tcp_wmem).
#[must_use]
pub fn tcp_window_bytes() -> Option<u64> {
    let largest = |name: &str| {
        let text = fs::read_to_string(format!("/proc/sys/net/ipv4/{name}")).ok()?;
        text.split_whitespace().nth(2)?.parse::<u64>().ok()
    };
    Some((largest("tcp_rmem")? / 2).min(largest("tcp_wmem")? / 4 * 3))
}

/// The largest buffers that a program may ask for on this machine, in bytes, of a socket that receives and of one that sends (socket(7),
/// rmem_max, wmem_max); nothing where the system does not tell.
#[must_use]
pub fn socket_buffers_bytes_max() -> Option<[u64; 2]> {
    let most = |name: &str| {
        let text = fs::read_to_string(format!("/proc/sys/net/core/{name}")).ok()?;
        text.trim().parse::<u64>().ok()
    };
    Some([most("rmem_max")?, most("wmem_max")?])
}

/// Has TCP of this namespace keep so many bytes under way on a connection, of what it receives and of what it sends. It is the receiver
/// that holds to it, whose window can be seen: the sender's buffer is large enough for all that such a window may become.
fn hold_tcp_windows(receive: u64, send: u64) -> io::Result<()> {
    let (receive, send) = (receive.saturating_mul(2).max(4096), send.saturating_mul(4).max(4096));
    let limit = i32::MAX as u64;
    let write = |name: &str, default: u64, max: u64| {
        let max = max.min(limit);
        fs::write(format!("/proc/sys/net/ipv4/{name}"), format!("4096 {} {max}", default.min(max)))
    };
    write("tcp_rmem", 131_072, receive)?;
    write("tcp_wmem", 16_384, send)
}

/// Does something, and looks what receivers let be under way on a connection while it is measured, down and up, in bytes: the medians,
/// where the kernel tells. A buffer is not yet a window: since Linux 6.6 it is half of its buffer only until packets have shown how much
/// of one is data.
fn windows_of<T>(site: &Site, monitor: &Monitor, work: impl FnOnce() -> T) -> (T, [Option<u64>; 2]) {
    let is_over = AtomicBool::new(false);
    let look = || {
        let mut seen = [Vec::new(), Vec::new()];
        while !is_over.load(Ordering::Relaxed) {
            if monitor.phase() == Phase::Measuring {
                // Each end has what the other one lets it send.
                let senders =
                    [site.far(tcp_connections).ok(), site.near(tcp_connections).ok().and_then(Result::ok)];
                for (seen, all) in seen.iter_mut().zip(senders) {
                    seen.extend(all.into_iter().flatten().map(|one| one.peer_window_bytes));
                }
            }
            thread::sleep(LOOK);
        }
        seen
    };
    thread::scope(|scope| {
        let looking = scope.spawn(look);
        let done = work();
        is_over.store(true, Ordering::Relaxed);
        (done, looking.join().unwrap_or_default().map(window_of))
    })
}

/// The median, where the kernel tells.
fn window_of(seen: Vec<u64>) -> Option<u64> {
    // Far below what a double holds exactly.
    let windows = seen.into_iter().filter(|bytes| *bytes > 0).map(|bytes| bytes as f64);
    median(windows.collect()).map(|bytes| bytes as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_window_counts_where_the_kernel_tells_it() {
        assert_eq!(window_of(vec![65_536, 650_000, 653_920, 0]), Some(650_000));
        assert_eq!((window_of(Vec::new()), window_of(vec![0, 0])), (None, None));
    }

    #[test]
    fn who_misses_by_far_is_not_limited_by_what_was_expected() {
        let word = |reached, is_in_order, is_doubtful| {
            limited_by(reached, ABOUT, Limit::Link, is_in_order, is_doubtful)
        };
        for reached in [0.91, 1.0, 1.09] {
            assert_eq!(word(reached, true, true), "link-rate");
        }
        assert_eq!((word(0.89, false, true), word(1.11, false, false)), ("machine", "unexplained"));
        assert_eq!(limited_by(0.8, ABOUT_MIXED, Limit::Link, true, true), "link-rate");
        assert_eq!((word(0.37, true, false), word(0.37, true, true)), ("command-order", "machine"));
        assert_eq!((word(0.37, false, false), word(1.5, true, false)), ("unexplained", "unexplained"));
    }
}
