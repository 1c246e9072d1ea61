//! What a network path does to TCP.

use std::time::Duration;

/// Bytes of a packet that are not data: IPv4 20, TCP 20, and the timestamps that all of today's systems send, 12 (RFC 7323).
pub const TCP_HEADER_BYTES: u16 = 52;

/// CUBIC's constants: the factor that a window keeps after a loss, and how fast it grows (RFC 9438, 4.1.2, 5).
const CUBIC_BETA: f64 = 0.7;
const CUBIC_C: f64 = 0.4;

/// What a sender makes of losses.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum CongestionControl {
    /// Half of the window goes with each loss, and a segment comes back with each round trip (RFC 5681).
    Reno,
    /// Linux's, unless it is told otherwise (RFC 9438); on short paths it is no slower than Reno.
    #[default]
    Cubic,
    /// As BBR: a loss is no sign of a full line, and costs what was lost.
    ByRate,
}

impl CongestionControl {
    /// By the name that Linux has for it. What is not known counts as CUBIC, of whose kind most of the others are.
    #[must_use]
    pub fn named(name: &str) -> Self {
        match name {
            "reno" => Self::Reno,
            "bbr" => Self::ByRate,
            _ => Self::Cubic,
        }
    }
}

/// What Linux waits beside a round trip, at least, before it takes all that is under way for lost, in seconds. RFC 6298 would have a
/// whole second (2.4).
const TIMEOUT_S: f64 = 0.2;
/// How often the time is doubled at most while nothing comes (Padhye and others, 1998).
const TIMEOUT_DOUBLINGS_MAX: u32 = 6;
/// Timeouts that take a greater share of the time make the response function wrong: it is a tenth off without them.
const TIMEOUTS_SHARE_MAX: f64 = 0.1;

/// Losses that follow each other, for each packet.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Bursts {
    /// That they begin with it.
    pub begin: f64,
    /// That the next one is lost, too.
    pub go_on: f64,
}

/// A path between initiator and target.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct NetworkPath {
    /// Bits per second of its narrowest line; `None`: no limit.
    pub rate_bits_per_s: Option<f64>,
    /// There and back, with what it takes programs at both ends to be woken.
    pub round_trip: Duration,
    /// The longest packet.
    pub mtu_bytes: u16,
    /// Bytes on the line beside each packet: 38 for Ethernet.
    pub overhead_bytes: u16,
    /// The share of packets that are lost, 0 to 1.
    pub loss: f64,
    /// How many of them are lost together on average, within a round trip, so that TCP slows down once for all (RFC 6675); 1: each by
    /// itself.
    pub losses_together: f64,
    /// How they follow each other; `None`: each packet is lost whatever became of the others.
    pub bursts: Option<Bursts>,
    /// Of whom it is that sends.
    pub congestion_control: CongestionControl,
    /// The most data of one connection that may be under way; `None`: the system finds it out and it is large enough.
    pub tcp_window_bytes: Option<u64>,
    /// What waits in front of its line before packets are dropped; `None`: nobody knows, and it is large enough.
    pub queue_bytes: Option<u64>,
}

impl NetworkPath {
    pub(super) fn round_trip_s(&self) -> f64 {
        self.round_trip.as_secs_f64()
    }

    /// Data bytes of a full packet.
    fn segment_bytes(&self) -> u64 {
        u64::from(self.mtu_bytes.saturating_sub(TCP_HEADER_BYTES).max(1))
    }

    /// How long the line is busy with so many bytes of one connection's stream, in seconds; 0 without a limit of its rate.
    #[must_use]
    pub fn line_s(&self, stream_bytes: u64) -> f64 {
        let Some(rate) = self.rate_bits_per_s else { return 0.0 };
        let packets = stream_bytes.div_ceil(self.segment_bytes());
        let beside = u64::from(TCP_HEADER_BYTES) + u64::from(self.overhead_bytes);
        (stream_bytes + packets * beside) as f64 * 8.0 / rate
    }

    /// What full packets carry of a connection's stream, in bytes per second; `None` without a limit. Who does not slow down for
    /// losses fills the line, and they are missing at its end.
    #[must_use]
    pub fn payload_bytes_per_s(&self) -> Option<f64> {
        let segment = self.segment_bytes() as f64;
        let on_line = segment + f64::from(TCP_HEADER_BYTES) + f64::from(self.overhead_bytes);
        let arriving = match self.congestion_control {
            CongestionControl::ByRate => 1.0 - self.loss,
            CongestionControl::Reno | CongestionControl::Cubic => 1.0,
        };
        self.rate_bits_per_s.map(|rate| rate / 8.0 * segment / on_line * arriving)
    }

    /// What TCP's window lets through on one connection, in bytes per second: a window for each round trip.
    #[must_use]
    pub fn tcp_window_limit(&self) -> Option<f64> {
        let window = self.tcp_window_bytes? as f64;
        (!self.round_trip.is_zero()).then(|| window / self.round_trip_s())
    }

    /// What losses leave of one connection, in bytes per second: Reno's response function (Mathis and others, 1997), or CUBIC's where
    /// that is larger (RFC 9438, 5.1). None where there is no such limit: without losses, and where nobody slows down for them.
    #[must_use]
    pub fn loss_limit(&self) -> Option<f64> {
        if self.loss <= 0.0 || self.round_trip.is_zero() {
            return None;
        }
        let events = self.loss / self.losses_together.max(1.0);
        let reno = (1.5 / events).sqrt();
        let cubic = || cubic_growth().powf(0.25) * self.round_trip_s().powf(0.75) / events.powf(0.75);
        let window = match self.congestion_control {
            CongestionControl::Reno => reno,
            CongestionControl::Cubic => reno.max(cubic()),
            CongestionControl::ByRate => return None,
        };
        Some(window * self.segment_bytes() as f64 / self.round_trip_s())
    }

    /// The most that one connection may have under way where so much is asked for, in packets of its stream.
    pub(super) fn packets_under_way(&self, asked_bytes: f64) -> f64 {
        let left_by_losses = self.loss_limit().map(|rate| rate * self.round_trip_s());
        let held = self.rate_bits_per_s.zip(self.queue_bytes);
        let held = held.map(|(rate, queue)| rate / 8.0 * self.round_trip_s() + queue as f64);
        let window = self.tcp_window_bytes.map(|bytes| bytes as f64);
        let limits = [left_by_losses, held, window].into_iter().flatten();
        limits.fold(asked_bytes, f64::min) / self.segment_bytes() as f64
    }

    /// How many packets so many bytes of a stream are.
    pub(super) fn packets(&self, stream_bytes: f64) -> f64 {
        stream_bytes / self.segment_bytes() as f64
    }

    /// Whether TCP spends much of its time in timeouts: with that many packets of a connection under way, and in each second.
    ///
    /// A burst that leaves one of them is answered by whoever has received it, and repaired at once. One that takes them all is only
    /// seen by a timeout. Then one packet is sent after twice the time each, and the burst, which is as long as ever (it has no
    /// memory), takes those, too: `T f(q) / (1 - q)` with `f(q) = 1 + q + 2 q^2 + 4 q^3 + ...` (Padhye and others, 1998).
    pub(super) fn is_in_timeouts(&self, under_way: f64, per_s: f64) -> bool {
        let Bursts { begin, go_on } = self.bursts.unwrap_or(Bursts { begin: self.loss, go_on: self.loss });
        let takes_all = go_on.powf((under_way - 1.0).max(0.0));
        let doubled = (1..=TIMEOUT_DOUBLINGS_MAX).map(|times| (2.0 * go_on).powf(times.into()) / 2.0);
        let timeouts = (1.0 + doubled.sum::<f64>()) / (1.0 - go_on).max(f64::MIN_POSITIVE);
        let of_each_s = begin * per_s * takes_all * timeouts * (TIMEOUT_S + self.round_trip_s());
        of_each_s > TIMEOUTS_SHARE_MAX
    }

    /// The share of lost packets that would leave one connection so many bytes per second: the other way around. 0 where the
    /// path has no round trip, and where losses are no limit.
    #[must_use]
    pub fn loss_for(&self, bytes_per_s: f64) -> f64 {
        let window = bytes_per_s * self.round_trip_s() / self.segment_bytes() as f64;
        if window <= 0.0 {
            return 0.0;
        }
        let reno = 1.5 / (window * window);
        let cubic = || (cubic_growth().powf(0.25) * self.round_trip_s().powf(0.75) / window).powf(4.0 / 3.0);
        let loss = match self.congestion_control {
            CongestionControl::Reno => reno,
            CongestionControl::Cubic => reno.max(cubic()),
            CongestionControl::ByRate => 0.0,
        };
        (loss * self.losses_together.max(1.0)).min(1.0)
    }
}

/// The constant of CUBIC's response function (RFC 9438, 5.1).
fn cubic_growth() -> f64 {
    CUBIC_C * (3.0 + CUBIC_BETA) / (4.0 * (1.0 - CUBIC_BETA))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATH: NetworkPath = NetworkPath {
        rate_bits_per_s: Some(1e9),
        round_trip: Duration::from_millis(100),
        mtu_bytes: 1500,
        overhead_bytes: 38,
        loss: 0.0,
        losses_together: 1.0,
        bursts: None,
        congestion_control: CongestionControl::Cubic,
        tcp_window_bytes: None,
        queue_bytes: None,
    };

    #[test]
    fn gigabit_ethernet_carries_what_it_is_known_to() {
        // 1448 of 1538 bytes on the line: 941.5 Mb/s.
        let payload = PATH.payload_bytes_per_s().unwrap();
        assert!((payload * 8.0 / 1e6 - 941.48).abs() < 0.01, "{payload}");
        assert!((PATH.line_s(1448) * 1e9 - 1538.0 * 8.0).abs() < 1e-3);
        assert!((PATH.line_s(1449) * 1e9 - (1539.0 + 90.0) * 8.0).abs() < 1e-3);
    }

    #[test]
    fn losses_follow_the_tables_of_rfc_9438() {
        // Average windows in segments at a round trip of 0.1 s, with CUBIC's constant of 0.4.
        for (loss, segments) in [(1e-3, 38.7), (1e-4, 187.0), (1e-5, 1054.0), (1e-6, 5926.0)] {
            let limit = NetworkPath { loss, ..PATH }.loss_limit().unwrap();
            let window = limit * 0.1 / 1448.0;
            assert!((window / segments - 1.0).abs() < 0.01, "{window} instead of {segments}");
        }
        // On a short path Reno's is the larger one.
        let limit =
            NetworkPath { loss: 0.02, round_trip: Duration::from_millis(1), ..PATH }.loss_limit().unwrap();
        assert!((limit * 0.001 / 1448.0 - 75.0_f64.sqrt()).abs() < 0.01);
        assert_eq!(PATH.loss_limit(), None);
    }

    #[test]
    fn who_sends_decides_what_losses_cost() {
        let lossy = |congestion_control| NetworkPath { loss: 1e-4, congestion_control, ..PATH };
        let window = |control| lossy(control).loss_limit().map(|limit| (limit * 0.1 / 1448.0).round());
        let controls = [CongestionControl::Reno, CongestionControl::Cubic, CongestionControl::ByRate];
        // Of RFC 9438's tables, 5.2.
        assert_eq!(controls.map(window), [Some(122.0), Some(187.0), None]);
        let payload = |control| lossy(control).payload_bytes_per_s().unwrap();
        assert!(
            (payload(CongestionControl::ByRate) / payload(CongestionControl::Reno) - 0.9999).abs() < 1e-9
        );
        let names = ["reno", "cubic", "bbr", "another"].map(CongestionControl::named);
        assert_eq!((&names[..3], names[3]), (&[controls[0], controls[1], controls[2]][..], controls[1]));
    }

    #[test]
    fn bursts_that_leave_nothing_of_a_window_are_timeouts() {
        // Over 155 Mb/s and 50 ms, with what losses leave.
        let is_in_timeouts = |to_bad: f64, to_good: f64| {
            let loss = to_bad / (to_bad + to_good);
            let bursts = Some(Bursts { begin: to_bad, go_on: 1.0 - to_good });
            let round_trip = Duration::from_millis(50);
            let path = NetworkPath { loss, losses_together: 1.0 / to_good, bursts, round_trip, ..PATH };
            let under_way = path.packets_under_way(f64::INFINITY);
            (path.is_in_timeouts(under_way, under_way / 0.05), under_way.round())
        };
        assert_eq!(is_in_timeouts(2e-4, 0.2), (false, 87.0));
        assert_eq!(is_in_timeouts(1e-4, 0.1), (false, 123.0));
        assert_eq!(is_in_timeouts(1e-3, 0.2), (false, 39.0));
        // Ten and a hundred in a row.
        assert_eq!(is_in_timeouts(1e-3, 0.1), (true, 39.0));
        assert_eq!(is_in_timeouts(1e-4, 0.01), (true, 123.0));
        // Each by itself has to be much more often.
        let alone = |loss| {
            let path = NetworkPath { loss, ..PATH };
            let under_way = path.packets_under_way(f64::INFINITY);
            path.is_in_timeouts(under_way, under_way / 0.1)
        };
        assert_eq!([0.0, 1e-6, 1e-3, 0.05, 0.3, 1.0].map(alone), [false, false, false, false, true, true]);
        // Of three packets many bursts leave none.
        let few = NetworkPath { loss: 1e-3, bursts: Some(Bursts { begin: 2e-4, go_on: 0.8 }), ..PATH };
        assert_eq!([3.0, 60.0].map(|under_way| few.is_in_timeouts(under_way, 100.0)), [true, false]);
    }

    #[test]
    fn losses_are_found_from_what_they_leave() {
        let controls = [CongestionControl::Reno, CongestionControl::Cubic];
        for (loss, congestion_control) in [1e-6, 1e-4, 0.02].into_iter().zip(controls.into_iter().cycle()) {
            for round_trip_ms in [1, 100] {
                let round_trip = Duration::from_millis(round_trip_ms);
                let path = NetworkPath { loss, congestion_control, round_trip, ..PATH };
                let found = path.loss_for(path.loss_limit().unwrap());
                assert!((found / loss - 1.0).abs() < 1e-6, "{found} instead of {loss}");
                // Four packets in each burst are as one that is lost a fourth as often.
                let bursts = NetworkPath { losses_together: 4.0, ..path };
                assert_eq!(
                    bursts.loss_limit(),
                    NetworkPath { loss: loss / 4.0, ..path }.loss_limit(),
                    "at {loss}"
                );
                let found = bursts.loss_for(bursts.loss_limit().unwrap());
                assert!((found / loss - 1.0).abs() < 1e-6, "{found} instead of {loss}");
            }
        }
        assert_eq!(
            (PATH.loss_for(0.0), NetworkPath { round_trip: Duration::ZERO, ..PATH }.loss_for(1e6)),
            (0.0, 0.0)
        );
        assert_eq!(PATH.loss_for(1e-3), 1.0);
    }
}
