//! What TCP let be under way while something was measured, by the kernels of both ends: the setting of a buffer is not yet a window.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use lunette_wan::{TcpConnection, tcp_connections};

use crate::study::Further;
use crate::study::site::Site;
use crate::study::statistics::{mean, median};

/// How often is looked.
const STEP: Duration = Duration::from_millis(20);

/// What TCP lets through, in 10^6 bytes per second: on average what its congestion windows let be under way in a round trip, as TCP measures those, and no
/// more than the line carries; of a link without delay, the line's in the share of the time in which no losses are repaired.
pub(crate) const WINDOWS_CARRY: &str = "windows carry";

/// Whose connections, and which end sends the data.
#[derive(Debug, Clone, Copy)]
pub(super) struct Watched {
    /// The far end's port.
    pub(super) port: u16,
    /// The data goes from the near end to the far one.
    pub(super) to_target: bool,
    /// What the line carries of data, in bytes per second; none without a limit.
    pub(super) line_bytes_per_s: Option<f64>,
    /// The link's, there and back.
    pub(super) round_trip: Duration,
}

impl Watched {
    /// What goes through as long as it is like that, in bytes per second.
    fn carries(&self, seen: &Seen) -> Option<f64> {
        let line = self.line_bytes_per_s?;
        if self.round_trip.is_zero() {
            return Some(line * (1.0 - seen.recovering));
        }
        Some(line.min(seen.windows_bytes_per_s))
    }
}

/// What was seen at one moment: sums over the connections.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Seen {
    /// The share of the senders that repair losses.
    recovering: f64,
    congestion_window_bytes: u64,
    /// Each window in a round trip of its own connection.
    windows_bytes_per_s: f64,
    receive_space_bytes: u64,
    busy: Duration,
    held_by_receiver: Duration,
    held_by_buffer: Duration,
}

impl Seen {
    /// A round trip is at least the link's, whatever TCP has measured so far.
    fn of(round_trip: Duration, senders: &[TcpConnection], receivers: &[TcpConnection]) -> Option<Self> {
        if senders.is_empty() || receivers.is_empty() {
            return None;
        }
        let time = |of: fn(&TcpConnection) -> Duration| senders.iter().map(of).sum();
        // Far below what a double holds exactly; no window is let through in no time.
        let rate = |one: &TcpConnection| {
            let round_trip = one.round_trip.max(round_trip).max(Duration::from_micros(1));
            one.congestion_window_bytes as f64 / round_trip.as_secs_f64()
        };
        let recovering = senders.iter().filter(|one| one.is_recovering).count();
        Some(Self {
            recovering: recovering as f64 / senders.len() as f64,
            congestion_window_bytes: senders.iter().map(|one| one.congestion_window_bytes).sum(),
            windows_bytes_per_s: senders.iter().map(rate).sum(),
            receive_space_bytes: receivers.iter().map(|one| one.receive_space_bytes).sum(),
            busy: time(|one| one.busy),
            held_by_receiver: time(|one| one.held_by_receiver),
            held_by_buffer: time(|one| one.held_by_buffer),
        })
    }
}

/// Does something, and tells what TCP did while it was measured: nothing where the kernel does not say, or nothing was seen.
pub(super) fn watch<T>(
    site: &Site,
    watched: Watched,
    is_measuring: &(dyn Fn() -> bool + Sync),
    work: impl FnOnce() -> T,
) -> (T, Vec<Further>) {
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let watching = scope.spawn(|| {
            let mut seen = Vec::new();
            while !is_over.load(Ordering::Relaxed) {
                if is_measuring() {
                    match look(site, watched) {
                        Ok(now) => seen.extend(now),
                        // It says nothing now, and will not later.
                        Err(_) => break,
                    }
                }
                thread::sleep(STEP);
            }
            seen
        });
        let done = work();
        is_over.store(true, Ordering::Relaxed);
        (done, told(&watched, &watching.join().unwrap_or_default()))
    })
}

fn look(site: &Site, watched: Watched) -> io::Result<Option<Seen>> {
    let failed = |_| io::Error::from(io::ErrorKind::Other);
    let is_near = |one: &TcpConnection| one.remote_port == watched.port;
    let is_far = |one: &TcpConnection| one.local_port == watched.port;
    let mut near = site.near(tcp_connections).map_err(failed)??;
    let mut far = site.far(tcp_connections).map_err(failed)?;
    near.retain(is_near);
    far.retain(is_far);
    let (senders, receivers) = if watched.to_target { (near, far) } else { (far, near) };
    Ok(Seen::of(watched.round_trip, &senders, &receivers))
}

/// The windows by their medians, and which share of the time in which there was something to send it was held up by what.
fn told(watched: &Watched, seen: &[Seen]) -> Vec<Further> {
    let (Some(first), Some(last)) = (seen.first(), seen.last()) else { return Vec::new() };
    let window = |name, of: fn(&Seen) -> u64| {
        let kilobytes = median(seen.iter().map(|seen| of(seen) as f64 / 1e3).collect());
        Some(Further::new(name, kilobytes?, "KB"))
    };
    let busy = last.busy.saturating_sub(first.busy).as_secs_f64();
    let share = |name, of: fn(&Seen) -> Duration| {
        let held = of(last).saturating_sub(of(first)).as_secs_f64();
        (busy > 0.0).then(|| Further::new(name, (held / busy * 100.0).min(100.0), "%"))
    };
    let carried: Option<Vec<f64>> = seen.iter().map(|seen| watched.carries(seen)).collect();
    let recovering: Vec<f64> = seen.iter().map(|seen| seen.recovering * 100.0).collect();
    [
        window("snd_cwnd", |seen| seen.congestion_window_bytes),
        window("rcv_space", |seen| seen.receive_space_bytes),
        share("rwnd_limited", |seen| seen.held_by_receiver),
        share("sndbuf_limited", |seen| seen.held_by_buffer),
        Some(Further::new("recovering", mean(&recovering), "%")),
        carried.map(|carried| Further::new(WINDOWS_CARRY, mean(&carried) / 1e6, "MB/s")),
    ]
    .into_iter()
    .flatten()
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const OVER_10_MS: Watched = Watched {
        port: 1,
        to_target: true,
        line_bytes_per_s: Some(5e6),
        round_trip: Duration::from_millis(10),
    };

    fn seen(window: u64, busy_ms: u64, held_ms: u64) -> Seen {
        Seen {
            recovering: 0.0,
            congestion_window_bytes: window,
            windows_bytes_per_s: window as f64 * 100.0,
            receive_space_bytes: 2 * window,
            busy: Duration::from_millis(busy_ms),
            held_by_receiver: Duration::from_millis(held_ms),
            held_by_buffer: Duration::ZERO,
        }
    }

    #[test]
    fn windows_are_medians_and_times_are_those_of_the_measurement() {
        assert_eq!(told(&OVER_10_MS, &[]), []);
        let told =
            told(&OVER_10_MS, &[seen(10_000, 1000, 100), seen(90_000, 1100, 150), seen(20_000, 1400, 300)]);
        let figures: Vec<_> = told.iter().map(|one| (&*one.name, one.measured.round(), &*one.unit)).collect();
        let expected = [
            ("snd_cwnd", 20.0, "KB"),
            ("rcv_space", 40.0, "KB"),
            ("rwnd_limited", 50.0, "%"),
            ("sndbuf_limited", 0.0, "%"),
            ("recovering", 0.0, "%"),
            // 1, 5 (of 9) and 2 MB/s.
            (WINDOWS_CARRY, 3.0, "MB/s"),
        ];
        assert_eq!(figures, expected);
        // Who had nothing to send was held up by nothing.
        assert_eq!(super::told(&OVER_10_MS, &[seen(10, 7, 7)]).len(), 4);
    }

    #[test]
    fn without_delay_it_is_the_repair_of_losses_that_costs_time() {
        let at_once = Watched { round_trip: Duration::ZERO, ..OVER_10_MS };
        let repairing = Seen { recovering: 0.5, ..seen(9, 7, 7) };
        let of = |seen: &[Seen]| told(&at_once, seen).pop().map(|last| last.measured);
        assert_eq!((of(&[repairing]), of(&[seen(9, 7, 7)])), (Some(2.5), Some(5.0)));
        let endless = Watched { line_bytes_per_s: None, ..at_once };
        assert!(told(&endless, &[repairing]).iter().all(|one| one.name != WINDOWS_CARRY));
    }

    #[test]
    fn only_what_has_both_ends_is_seen() {
        assert_eq!(Seen::of(Duration::ZERO, &[], &[]), None);
    }

    #[test]
    fn a_window_takes_the_round_trip_that_its_own_connection_has() {
        let connection = |window, round_trip_ms| TcpConnection {
            local_port: 2,
            remote_port: 1,
            congestion_window_bytes: window,
            round_trip: Duration::from_millis(round_trip_ms),
            receive_space_bytes: 0,
            is_recovering: false,
            retransmitted: 0,
            busy: Duration::ZERO,
            held_by_receiver: Duration::ZERO,
            held_by_buffer: Duration::ZERO,
        };
        // What the second one has measured is less than the link's, as before it has sent anything.
        let senders = [connection(40_000, 20), connection(10_000, 0)];
        let seen = Seen::of(OVER_10_MS.round_trip, &senders, &senders[..1]).expect("both ends");
        assert_eq!(seen.windows_bytes_per_s.round(), 3e6);
    }
}
