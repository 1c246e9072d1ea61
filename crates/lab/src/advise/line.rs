//! What the model takes of a link's description, and what it does not.

use lunette_link::{Jitter, Link, Loss, Probability, Reorder, Shape};
use lunette_workload::model::{Bursts, CongestionControl, NetworkPath};

/// A direction of a link as the model has it, without any limit of TCP's windows.
#[must_use]
pub fn line_path(link: &Link, shape: &Shape) -> NetworkPath {
    let mut path = NetworkPath {
        // Bits per second are far below what a double holds exactly.
        rate_bits_per_s: shape.rate.map(|rate| rate.bits_per_s() as f64),
        round_trip: link.round_trip(),
        mtu_bytes: link.mtu,
        overhead_bytes: shape.overhead_bytes,
        loss: lost(shape),
        losses_together: 1.0,
        bursts: bursts(shape),
        congestion_control: CongestionControl::default(),
        tcp_window_bytes: None,
        queue_bytes: shape.rate.map(|_| shape.queue_bytes),
    };
    path.losses_together = lost_together(shape, &path);
    path
}

/// The share of packets that do not come: TCP drops one with a turned bit, by its checksum.
pub(crate) fn lost(shape: &Shape) -> f64 {
    1.0 - (1.0 - shape.loss.mean()) * (1.0 - shape.corrupt.get())
}

/// How many packets are lost together, within a round trip at most.
fn lost_together(shape: &Shape, path: &NetworkPath) -> f64 {
    let Loss::Bursts { to_bad, to_good, bad, good } = shape.loss else { return 1.0 };
    let (to_bad, to_good, bad) = (to_bad.get(), to_good.get(), bad.get());
    let turns = to_bad + to_good;
    let is_good = if turns > 0.0 { to_good / turns } else { 1.0 };
    // A wire that stays bad has no bursts.
    if is_good <= 0.0 {
        return 1.0;
    }
    // That a wire loses something while it is bad, which it is for a geometrically distributed number of packets.
    let lets_through = (1.0 - to_good) * (1.0 - bad);
    let loses = if lets_through < 1.0 { bad / (1.0 - lets_through) } else { 0.0 };
    let events = is_good * (to_bad * loses + good.get()) + shape.corrupt.get();
    let each_round_trip = path.rate_bits_per_s.map_or(f64::INFINITY, |rate| {
        rate / 8.0 * path.round_trip.as_secs_f64() / f64::from(path.mtu_bytes.max(1))
    });
    let together = (path.loss / events).min(each_round_trip);
    if together.is_finite() { together.max(1.0) } else { 1.0 }
}

/// The bursts of a wire that is bad now and then: what is lost while it is good is each by itself.
fn bursts(shape: &Shape) -> Option<Bursts> {
    let Loss::Bursts { to_bad, to_good, bad, good } = shape.loss else { return None };
    let turns = to_bad.get() + to_good.get();
    let is_bursty = bad.get() > good.get() && to_bad.get() > 0.0 && to_good.get() > 0.0;
    is_bursty.then(|| {
        let lost = |probability: f64| 1.0 - (1.0 - probability) * (1.0 - shape.corrupt.get());
        let go_on = (1.0 - to_good.get()) * lost(bad.get()) + to_good.get() * lost(good.get());
        Bursts { begin: to_bad.get() * to_good.get() / turns * lost(bad.get()), go_on }
    })
}

/// The properties of a link that the model does not know, as descriptions call them.
#[must_use]
pub fn unknown_to_model(link: &Link) -> Vec<&'static str> {
    let has = |is: fn(&Shape) -> bool| is(&link.up) || is(&link.down);
    let all = [
        ("jitter", has(|shape| shape.jitter != Jitter::default())),
        ("duplicate", has(|shape| shape.duplicate != Probability::NEVER)),
        ("reorder", has(|shape| shape.reorder != Reorder::default())),
        ("reserve", has(|shape| shape.reserved.is_some())),
    ];
    all.into_iter().filter(|(_, is_there)| *is_there).map(|(name, _)| name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(link: &str) -> NetworkPath {
        let link: Link = link.parse().expect("a link");
        line_path(&link, &link.down)
    }

    #[test]
    fn damaged_packets_are_lost() {
        let path = of("rate=155M,rtt=50ms,loss=1%,corrupt=2%");
        assert!((path.loss - (1.0 - 0.99 * 0.98)).abs() < 1e-12, "{path:?}");
        assert_eq!(path.losses_together, 1.0);
        assert!(of("rate=155M,rtt=50ms,corrupt=0.1%").loss_limit().is_some());
    }

    #[test]
    fn a_burst_is_one_event() {
        // Five packets of a burst on average, each of which is lost.
        let path = of("rate=155M,rtt=50ms,loss=0.02%/20%/100%");
        assert!((path.loss - 0.0002 / 0.2002).abs() < 1e-12 && (path.losses_together - 5.0).abs() < 1e-9);
        let alike = of("rate=155M,rtt=50ms,loss=0.02%");
        let ratio = path.loss_limit().expect("one") / alike.loss_limit().expect("one");
        assert!((ratio - 1.0).abs() < 0.001, "{ratio}");
        // A wire that loses half of what it has while it is bad may lose nothing: 0.5 / (1 - 0.8 * 0.5) of bursts are events.
        let half = of("rate=155M,rtt=50ms,loss=0.02%/20%/50%");
        assert!((half.losses_together - 3.0).abs() < 1e-9, "{half:?}");
        // A round trip of this line has 645 packets, and what is lost for longer is no single event.
        let long = of("rate=155M,rtt=50ms,loss=0.0001%/0.01%/100%");
        assert!((long.losses_together - 155e6 / 8.0 * 0.05 / 1500.0).abs() < 1e-9, "{long:?}");
        for (path, bad, go_on) in [(path, 1.0, 0.8), (half, 0.5, 0.4)] {
            let found = path.bursts.expect("bursts");
            let begin = 0.0002 * 0.2 / 0.2002 * bad;
            assert!((found.begin - begin).abs() < 1e-12 && (found.go_on - go_on).abs() < 1e-12, "{found:?}");
        }
        assert_eq!(alike.bursts, None);
        for link in ["rate=155M,rtt=50ms,loss=1%/0%/100%", "rate=155M,rtt=50ms,loss=1%/0%/50%"] {
            let path = of(link);
            assert_eq!((path.losses_together, path.bursts), (1.0, None), "it is never good: {link}");
        }
        for link in ["rtt=50ms,loss=1%/0%/100%", "rtt=50ms,loss=0%/0%/100%", "rtt=50ms,loss=1%/0%/0%"] {
            assert_eq!(of(link).losses_together, 1.0, "{link}");
        }
    }

    #[test]
    fn what_the_model_does_not_know_is_named() {
        let named = |link: &str| unknown_to_model(&link.parse().expect("a link"));
        assert!(named("rate=155M,rtt=50ms,loss=1%,corrupt=1%").is_empty());
        assert_eq!(
            named("rate=155M,rtt=50ms,up.jitter=1ms,duplicate=1%,down.reorder=1%/5ms,reserve=60%"),
            ["jitter", "duplicate", "reorder", "reserve"]
        );
    }
}
