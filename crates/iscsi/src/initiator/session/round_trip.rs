//! How long the way to the target and back is: a smoothed estimate with its variance, from pings (RFC 7143, 11.18), by the
//! rule of RFC 6298, clause 2.

use std::time::Duration;

/// A connection's round trip, as its pings have shown it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RoundTrip {
    estimate: Option<Estimate>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Estimate {
    last: Duration,
    smoothed: Duration,
    variation: Duration,
    least: Duration,
}

impl RoundTrip {
    /// The newest measurement.
    #[must_use]
    pub fn last(&self) -> Option<Duration> {
        self.estimate.map(|estimate| estimate.last)
    }

    /// The smoothed mean.
    #[must_use]
    pub fn smoothed(&self) -> Option<Duration> {
        self.estimate.map(|estimate| estimate.smoothed)
    }

    /// The smoothed mean deviation.
    #[must_use]
    pub fn variation(&self) -> Option<Duration> {
        self.estimate.map(|estimate| estimate.variation)
    }

    /// The shortest of all: the way itself, without waiting in queues.
    #[must_use]
    pub fn least(&self) -> Option<Duration> {
        self.estimate.map(|estimate| estimate.least)
    }

    pub(super) fn measured(&mut self, sample: Duration) {
        self.estimate = Some(match self.estimate {
            None => Estimate { last: sample, smoothed: sample, variation: sample / 2, least: sample },
            Some(before) => Estimate {
                last: sample,
                variation: before.variation * 3 / 4 + before.smoothed.abs_diff(sample) / 4,
                smoothed: before.smoothed * 7 / 8 + sample / 8,
                least: before.least.min(sample),
            },
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn follows_rfc_6298() {
        let mut round_trip = RoundTrip::default();
        assert_eq!(round_trip.smoothed(), None);
        round_trip.measured(Duration::from_micros(800));
        assert_eq!(round_trip.smoothed(), Some(Duration::from_micros(800)));
        assert_eq!(round_trip.variation(), Some(Duration::from_micros(400)));
        round_trip.measured(Duration::from_micros(1600));
        assert_eq!(round_trip.smoothed(), Some(Duration::from_micros(900)));
        assert_eq!(round_trip.variation(), Some(Duration::from_micros(500)));
        assert_eq!(round_trip.least(), Some(Duration::from_micros(800)));
        assert_eq!(round_trip.last(), Some(Duration::from_micros(1600)));
    }
}
