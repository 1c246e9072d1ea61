//! What TCP let be under way while something was measured, by the kernels of both ends: the setting of a buffer is not yet a window.

use std::collections::BTreeSet;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use lunette_wan::{TcpConnection, tcp_connections};

use crate::study::Further;
use crate::study::site::Site;
use crate::study::statistics::{mean, median};

/// How often is looked.
const STEP: Duration = Duration::from_millis(20);

/// What the senders' congestion windows let be under way, all together, in 10^3 bytes.
pub(crate) const CONGESTION_WINDOW: &str = "snd_cwnd";
/// What the receivers' windows let be under way, all together, in 10^3 bytes.
pub(crate) const PEER_WINDOW: &str = "snd_wnd";
/// What TCP lets through, in 10^6 bytes per second: on average what its congestion windows let be under way in a round trip, as
/// TCP measures those, and no more than the line carries. A connection that stands still carries nothing.
pub(crate) const WINDOWS_CARRY: &str = "windows carry";
/// The same of the receivers' windows, of senders that always have something to send.
pub(crate) const PEER_WINDOWS_CARRY: &str = "receivers carry";
/// The share of the time in which a connection stood still: for longer than a round trip nothing of what was under way had come.
pub(crate) const STOOD_STILL: &str = "stood still";
/// The same of several connections, of which others carry no more than they have while one repairs losses, stands still or has
/// more to send than its window lets go: the commands of a session are taken in their order, so that those behind wait for that
/// one's.
pub(crate) const ORDER_CARRIES: &str = "order carries";
/// The share of the time in which one of several connections did that, and another one had nothing to send.
pub(crate) const HELD_UP: &str = "held up";

/// A round trip is one measurement of many; who waits for less than so many of them is late, and no more.
const LATE: f64 = 1.5;

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

/// What was seen at one moment.
#[derive(Debug, Clone, PartialEq)]
struct Seen {
    /// Since a beginning.
    at: Duration,
    senders: Vec<TcpConnection>,
    receive_space_bytes: u64,
    /// What has gone through, as the near end counts it, which is looked at first, and what has come out of order.
    through_bytes: u64,
}

impl Seen {
    fn of(at: Duration, near: Vec<TcpConnection>, far: Vec<TcpConnection>, to_target: bool) -> Option<Self> {
        if near.is_empty() || far.is_empty() {
            return None;
        }
        let through = |one: &TcpConnection| if to_target { one.confirmed_bytes } else { one.received_bytes };
        let in_order: u64 = near.iter().map(through).sum();
        let (senders, receivers) = if to_target { (near, far) } else { (far, near) };
        let through_bytes = in_order + senders.iter().map(|one| one.out_of_order_bytes).sum::<u64>();
        let receive_space_bytes = receivers.iter().map(|one| one.receive_space_bytes).sum();
        Some(Self { at, senders, receive_space_bytes, through_bytes })
    }

    fn congestion_window_bytes(&self) -> u64 {
        self.senders.iter().map(|one| one.congestion_window_bytes).sum()
    }

    fn peer_window_bytes(&self) -> u64 {
        self.senders.iter().map(|one| one.peer_window_bytes).sum()
    }

    fn time(&self, of: fn(&TcpConnection) -> Duration) -> Duration {
        self.senders.iter().map(of).sum()
    }

    fn sender(&self, port: u16) -> Option<&TcpConnection> {
        self.senders.iter().find(|one| one.local_port == port)
    }
}

/// What a connection was doing at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Doing {
    /// It sends what it has.
    Goes,
    /// It has more than its window lets go.
    Waits,
    /// It repairs losses, and sends meanwhile.
    Repairs,
    /// Nothing of what is under way comes.
    StandsStill,
}

impl Watched {
    /// What TCP has measured, and the link's at least; no window is let through in no time.
    fn round_trip(&self, one: &TcpConnection) -> Duration {
        one.round_trip.max(self.round_trip).max(Duration::from_micros(1))
    }

    /// What each sender was doing at each of these moments.
    fn doing(&self, seen: &[Seen]) -> Vec<Vec<Doing>> {
        let of = |at: usize, one: &TcpConnection| match one.is_recovering {
            _ if self.stands_still(seen, at, one) => Doing::StandsStill,
            true => Doing::Repairs,
            false if one.unsent_bytes > 0 && one.under_way_bytes >= one.congestion_window_bytes => {
                Doing::Waits
            }
            false => Doing::Goes,
        };
        let looks = seen.iter().enumerate();
        looks.map(|(at, seen)| seen.senders.iter().map(|one| of(at, one)).collect()).collect()
    }

    /// Whether nothing comes of what a connection has under way at this moment, though a round trip has gone by.
    fn stands_still(&self, seen: &[Seen], at: usize, one: &TcpConnection) -> bool {
        let is_alike = |other: &Seen| {
            let other = other.sender(one.local_port);
            other.is_some_and(|other| other.under_way_bytes > 0 && other.delivered == one.delivered)
        };
        if one.under_way_bytes == 0 {
            return false;
        }
        let first = seen[..at].iter().rev().take_while(|other| is_alike(other)).last().unwrap_or(&seen[at]);
        let last = seen[at..].iter().take_while(|other| is_alike(other)).last().unwrap_or(&seen[at]);
        let round_trip = self.round_trip(one);
        last.at - first.at > round_trip.mul_f64(LATE) && seen[at].at >= first.at + round_trip
    }

    /// What goes through as long as it is like that, in bytes per second; none where the line has no limit. `in_order`: who is
    /// held up has no more than it has.
    fn carries(&self, seen: &Seen, doing: &[Doing], in_order: bool) -> Option<f64> {
        let line = self.line_bytes_per_s?;
        let rate = |at: usize, one: &TcpConnection| {
            let has_bytes = one.under_way_bytes + one.unsent_bytes;
            let window_bytes = match doing[at] {
                Doing::StandsStill => 0,
                _ if in_order && is_held_up(doing, at) => one.congestion_window_bytes.min(has_bytes),
                _ => one.congestion_window_bytes,
            };
            // Far below what a double holds exactly.
            window_bytes as f64 / self.round_trip(one).as_secs_f64()
        };
        Some(line.min(seen.senders.iter().enumerate().map(|(at, one)| rate(at, one)).sum()))
    }

    /// What receivers' windows let through at a moment, in bytes per second; none where the line has no limit, or the kernel does not
    /// tell.
    fn receivers_carry(&self, seen: &Seen) -> Option<f64> {
        // Far below what a double holds exactly.
        let rate = |one: &TcpConnection| one.peer_window_bytes as f64 / self.round_trip(one).as_secs_f64();
        let all: f64 = seen.senders.iter().map(rate).sum();
        self.line_bytes_per_s.map(|line| line.min(all)).filter(|carried| *carried > 0.0)
    }
}

/// Whether another one than this has what does not go on, so that commands behind it wait.
fn is_held_up(doing: &[Doing], at: usize) -> bool {
    doing.iter().enumerate().any(|(other, doing)| other != at && *doing != Doing::Goes)
}

/// What was seen of connections while something was measured: nothing where the kernel does not say.
#[derive(Debug)]
pub(super) struct Looks {
    watched: Watched,
    seen: Vec<Seen>,
}

/// Does something, and looks what TCP does while it is measured.
pub(super) fn watch<T>(
    site: &Site,
    watched: Watched,
    is_measuring: &(dyn Fn() -> bool + Sync),
    work: impl FnOnce() -> T,
) -> (T, Looks) {
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let watching = scope.spawn(|| {
            let (mut seen, begun) = (Vec::new(), Instant::now());
            while !is_over.load(Ordering::Relaxed) {
                if is_measuring() {
                    match look(site, watched, begun) {
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
        (done, Looks { watched, seen: watching.join().unwrap_or_default() })
    })
}

fn look(site: &Site, watched: Watched, begun: Instant) -> io::Result<Option<Seen>> {
    let failed = |_| io::Error::from(io::ErrorKind::Other);
    let is_near = |one: &TcpConnection| one.remote_port == watched.port;
    let is_far = |one: &TcpConnection| one.local_port == watched.port;
    let mut near = site.near(tcp_connections).map_err(failed)??;
    let at = begun.elapsed();
    let mut far = site.far(tcp_connections).map_err(failed)?;
    near.retain(is_near);
    far.retain(is_far);
    Ok(Seen::of(at, near, far, watched.to_target))
}

impl Looks {
    /// What went through from the first look to the last one, headers of PDUs and all, in bytes per second. Commands count when they have
    /// ended, many at once; bytes come one after the other. Nothing where these are not the same connections, or the kernel does not tell.
    pub(super) fn bytes_per_s(&self) -> Option<f64> {
        let (first, last) = (self.seen.first()?, self.seen.last()?);
        let ports = |seen: &Seen| -> BTreeSet<(u16, u16)> {
            seen.senders.iter().map(|one| (one.local_port, one.remote_port)).collect()
        };
        let bytes = last.through_bytes.checked_sub(first.through_bytes).filter(|bytes| *bytes > 0)?;
        let time = last.at.checked_sub(first.at).filter(|time| !time.is_zero())?;
        // Far below what a double holds exactly.
        (ports(first) == ports(last)).then(|| bytes as f64 / time.as_secs_f64())
    }

    /// See [`told`].
    pub(super) fn told(&self) -> Vec<Further> {
        told(&self.watched, &self.seen)
    }
}

/// The windows by their medians, and which share of the time in which there was something to send it was held up by what.
fn told(watched: &Watched, seen: &[Seen]) -> Vec<Further> {
    let (Some(first), Some(last)) = (seen.first(), seen.last()) else { return Vec::new() };
    let window = |name, of: fn(&Seen) -> u64| {
        let kilobytes = median(seen.iter().map(|seen| of(seen) as f64 / 1e3).collect());
        Some(Further::new(name, kilobytes?, "KB"))
    };
    let since =
        |of: fn(&TcpConnection) -> Duration| last.time(of).saturating_sub(first.time(of)).as_secs_f64();
    let busy = since(|one| one.busy);
    let share = |name, of: fn(&TcpConnection) -> Duration| {
        (busy > 0.0).then(|| Further::new(name, (since(of) / busy * 100.0).min(100.0), "%"))
    };
    let doing = watched.doing(seen);
    let looks = || seen.iter().zip(&doing);
    let carried = |in_order| -> Option<Vec<f64>> {
        looks().map(|(seen, doing)| watched.carries(seen, doing, in_order)).collect()
    };
    let carried = |name, in_order| Some(Further::new(name, mean(&carried(in_order)?) / 1e6, "MB/s"));
    let receivers: Option<Vec<f64>> = seen.iter().map(|seen| watched.receivers_carry(seen)).collect();
    let recovering = |seen: &Seen| {
        let recovering = seen.senders.iter().filter(|one| one.is_recovering).count();
        recovering as f64 / seen.senders.len() as f64
    };
    let recovering: Vec<f64> = seen.iter().map(|seen| recovering(seen) * 100.0).collect();
    let of_time = |name, is_it: &dyn Fn(&Seen, &[Doing]) -> bool| {
        let count = looks().filter(|(seen, doing)| is_it(seen, doing)).count();
        Further::new(name, count as f64 / seen.len() as f64 * 100.0, "%")
    };
    let has_nothing = |one: &TcpConnection| one.under_way_bytes + one.unsent_bytes == 0;
    let holds_up = |seen: &Seen, doing: &[Doing]| {
        seen.senders.iter().enumerate().any(|(at, one)| has_nothing(one) && is_held_up(doing, at))
    };
    let are_several = seen.iter().any(|seen| seen.senders.len() > 1);
    [
        window(CONGESTION_WINDOW, Seen::congestion_window_bytes),
        // Older kernels do not tell it.
        window(PEER_WINDOW, Seen::peer_window_bytes).filter(|window| window.measured > 0.0),
        window("rcv_space", |seen| seen.receive_space_bytes),
        share("rwnd_limited", |one| one.held_by_receiver),
        share("sndbuf_limited", |one| one.held_by_buffer),
        Some(Further::new("recovering", mean(&recovering), "%")),
        Some(of_time(STOOD_STILL, &|_, doing| doing.contains(&Doing::StandsStill))),
        are_several.then(|| of_time(HELD_UP, &holds_up)),
        carried(WINDOWS_CARRY, false),
        are_several.then(|| carried(ORDER_CARRIES, true)).flatten(),
        receivers.map(|carried| Further::new(PEER_WINDOWS_CARRY, mean(&carried) / 1e6, "MB/s")),
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

    /// A connection with as much under way as its window lets through.
    fn connection(local_port: u16, window: u64, delivered: u32) -> TcpConnection {
        TcpConnection {
            local_port,
            remote_port: 1,
            congestion_window_bytes: window,
            round_trip: Duration::from_millis(10),
            receive_space_bytes: 2 * window,
            peer_window_bytes: 3 * window,
            is_recovering: false,
            retransmitted: 0,
            delivered,
            under_way_bytes: window,
            unsent_bytes: 0,
            out_of_order_bytes: 0,
            confirmed_bytes: 0,
            received_bytes: 0,
            timeouts: 0,
            busy: Duration::ZERO,
            held_by_receiver: Duration::ZERO,
            held_by_buffer: Duration::ZERO,
        }
    }

    fn seen(at_ms: u64, senders: &[TcpConnection]) -> Seen {
        Seen::of(Duration::from_millis(at_ms), senders.to_vec(), senders[..1].to_vec(), true)
            .expect("both ends")
    }

    /// Of one connection, 20 ms after each other.
    fn one_by_one(connections: &[TcpConnection]) -> Vec<Seen> {
        connections.iter().zip(0..).map(|(one, number)| seen(number * 20, &[*one])).collect()
    }

    fn figure(told: &[Further], name: &str) -> Option<f64> {
        told.iter().find(|one| one.name == name).map(|one| one.measured)
    }

    #[test]
    fn windows_are_medians_and_times_are_those_of_the_measurement() {
        assert_eq!(told(&OVER_10_MS, &[]), []);
        let busy = |window, delivered, busy_ms, held_ms| TcpConnection {
            busy: Duration::from_millis(busy_ms),
            held_by_receiver: Duration::from_millis(held_ms),
            ..connection(2, window, delivered)
        };
        let looks = [busy(10_000, 1, 1000, 100), busy(90_000, 2, 1100, 150), busy(20_000, 3, 1400, 300)];
        let told = told(&OVER_10_MS, &one_by_one(&looks));
        let figures: Vec<_> = told.iter().map(|one| (&*one.name, one.measured.round(), &*one.unit)).collect();
        let expected = [
            ("snd_cwnd", 20.0, "KB"),
            (PEER_WINDOW, 60.0, "KB"),
            ("rcv_space", 40.0, "KB"),
            ("rwnd_limited", 50.0, "%"),
            ("sndbuf_limited", 0.0, "%"),
            ("recovering", 0.0, "%"),
            (STOOD_STILL, 0.0, "%"),
            // 1, 5 (of 9) and 2 MB/s.
            (WINDOWS_CARRY, 3.0, "MB/s"),
            // 3, 5 (of 27) and 5 (of 6) MB/s.
            (PEER_WINDOWS_CARRY, 4.0, "MB/s"),
        ];
        assert_eq!(figures, expected);
        // Who had nothing to send was held up by nothing, and of a line without a limit nobody knows what it carries.
        let endless = Watched { line_bytes_per_s: None, ..OVER_10_MS };
        let names: Vec<String> =
            super::told(&endless, &one_by_one(&looks[..1])).into_iter().map(|one| one.name).collect();
        assert_eq!(names, ["snd_cwnd", PEER_WINDOW, "rcv_space", "recovering", STOOD_STILL]);
        let old = looks.map(|one| TcpConnection { peer_window_bytes: 0, ..one });
        let told = super::told(&OVER_10_MS, &one_by_one(&old));
        assert_eq!([PEER_WINDOW, PEER_WINDOWS_CARRY].map(|name| figure(&told, name)), [None; 2]);
    }

    #[test]
    fn who_waits_for_a_timeout_carries_nothing() {
        // Four looks at the same one: it stood still from a round trip after the first one on, and is seen at the end of that, too.
        let looks = [1, 2, 2, 2, 2, 3].map(|delivered| connection(2, 50_000, delivered));
        let told = told(&OVER_10_MS, &one_by_one(&looks));
        assert_eq!(figure(&told, STOOD_STILL).map(f64::round), Some(50.0));
        assert_eq!(figure(&told, WINDOWS_CARRY), Some(2.5));
        assert_eq!(figure(&told, HELD_UP), None, "it is alone");
        // With nothing under way it waits for nobody.
        let idle = looks.map(|one| TcpConnection { under_way_bytes: 0, ..one });
        assert_eq!(figure(&super::told(&OVER_10_MS, &one_by_one(&idle)), STOOD_STILL), Some(0.0));
        // Two looks are within a long round trip.
        let far = Watched { round_trip: Duration::from_millis(50), ..OVER_10_MS };
        assert_eq!(figure(&super::told(&far, &one_by_one(&looks)), STOOD_STILL), Some(0.0));
    }

    #[test]
    fn who_does_not_go_on_holds_up_the_others() {
        let repairing = |delivered| TcpConnection { is_recovering: true, ..connection(2, 10_000, delivered) };
        let without_work = TcpConnection { under_way_bytes: 0, unsent_bytes: 0, ..connection(3, 30_000, 7) };
        let with_some = TcpConnection { unsent_bytes: 4000, ..without_work };
        let of = |of: &[[TcpConnection; 2]]| {
            let looks: Vec<Seen> = of.iter().zip(0..).map(|(pair, number)| seen(number * 20, pair)).collect();
            let told = told(&OVER_10_MS, &looks);
            assert_eq!(figure(&told, WINDOWS_CARRY), Some(4.0));
            (figure(&told, HELD_UP), figure(&told, ORDER_CARRIES))
        };
        // 1 MB/s of the one, and what the other one has.
        assert_eq!(of(&[[repairing(1), without_work]]), (Some(100.0), Some(1.0)));
        assert_eq!(of(&[[repairing(1), with_some]]), (Some(0.0), Some(1.4)));
        let full = TcpConnection { unsent_bytes: 60_000, ..connection(2, 10_000, 1) };
        assert_eq!(of(&[[full, without_work]]), (Some(100.0), Some(1.0)));
        // While nothing stays behind, it could send.
        assert_eq!(of(&[[connection(2, 10_000, 1), without_work]]), (Some(0.0), Some(4.0)));
    }

    #[test]
    fn only_what_has_both_ends_is_seen() {
        let one = || vec![connection(2, 1, 1)];
        for (near, far) in [(Vec::new(), Vec::new()), (one(), Vec::new()), (Vec::new(), one())] {
            assert_eq!(Seen::of(Duration::ZERO, near, far, true), None);
        }
    }

    #[test]
    fn what_goes_through_is_what_the_near_end_has_counted_of_the_same_connections() {
        let counted = |local_port, confirmed_bytes, received_bytes| TcpConnection {
            confirmed_bytes,
            received_bytes,
            ..connection(local_port, 1, 1)
        };
        let rate = |to_target, looks: &[(u64, &[TcpConnection])]| {
            let seen = |(at_ms, near): &(u64, &[TcpConnection])| {
                Seen::of(Duration::from_millis(*at_ms), near.to_vec(), vec![counted(1, 7, 7)], to_target)
            };
            let seen = looks.iter().filter_map(seen).collect();
            Looks { watched: Watched { to_target, ..OVER_10_MS }, seen }.bytes_per_s()
        };
        let (begin, end) =
            ([counted(2, 100, 10), counted(3, 100, 20)], [counted(2, 400, 15), counted(3, 300, 35)]);
        assert_eq!(rate(true, &[(500, &begin), (1500, &begin), (2500, &end)]), Some(250.0));
        assert_eq!(rate(false, &[(500, &begin), (1500, &end)]), Some(20.0));
        // What has come behind a hole has come.
        let behind = TcpConnection { out_of_order_bytes: 50, ..end[0] };
        assert_eq!(rate(true, &[(500, &begin), (1500, &[behind, end[1]])]), Some(550.0));
        // A connection is gone, a new one has come, the kernel tells nothing, or there was one look.
        assert_eq!(rate(true, &[(500, &begin), (1500, &end[..1])]), None);
        assert_eq!(rate(true, &[(500, &begin), (1500, &[end[0], counted(4, 300, 35)])]), None);
        assert_eq!(rate(true, &[(500, &[counted(2, 0, 0)]), (1500, &[counted(2, 0, 0)])]), None);
        assert_eq!(rate(true, &[(500, &begin)]), None);
    }

    #[test]
    fn a_window_takes_the_round_trip_that_its_own_connection_has() {
        let slow = TcpConnection { round_trip: Duration::from_millis(20), ..connection(2, 40_000, 1) };
        // What the second one has measured is less than the link's, as before it has sent anything.
        let new = TcpConnection { round_trip: Duration::ZERO, ..connection(3, 10_000, 1) };
        let told = told(&OVER_10_MS, &[seen(0, &[slow, new])]);
        assert_eq!(figure(&told, WINDOWS_CARRY), Some(3.0));
    }
}
