//! How long packets are at a link's transmitter: they wait for their turn, and are sent.

use std::time::Duration;

/// The time that packets were at the transmitter of a link, from when they came to it until their last bit had left (the sojourn time
/// of RFC 8289, 3.1, with the sending), weighted by their bytes on the line: of data under way each byte counts alike, and
/// acknowledgements hardly do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Sojourn {
    /// Of all packets that were sent, with what the line adds to each.
    bytes: u64,
    /// The sum of each byte's time, in nanoseconds.
    byte_ns: u128,
}

impl Sojourn {
    /// Adds a packet of so many bytes on the line.
    pub(crate) fn add(&mut self, line_bytes: usize, time: Duration) {
        self.bytes = self.bytes.saturating_add(line_bytes as u64);
        self.byte_ns = self.byte_ns.saturating_add(time.as_nanos().saturating_mul(line_bytes as u128));
    }

    /// A packet that was added takes another time for what is left of it.
    pub(crate) fn retime(&mut self, line_bytes: usize, left: Duration, taken: Duration) {
        let of = |time: Duration| time.as_nanos().saturating_mul(line_bytes as u128);
        self.byte_ns = self.byte_ns.saturating_add(of(taken)).saturating_sub(of(left));
    }

    /// The mean over all bytes; zero of none.
    #[must_use]
    pub fn mean(self) -> Duration {
        let ns = self.byte_ns.checked_div(self.bytes.into()).unwrap_or_default();
        Duration::from_nanos(u64::try_from(ns).unwrap_or(u64::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_byte_counts_alike() {
        let mut sojourn = Sojourn::default();
        assert_eq!(sojourn.mean(), Duration::ZERO);
        sojourn.add(1500, Duration::from_micros(20));
        sojourn.add(500, Duration::from_micros(100));
        assert_eq!(sojourn.mean(), Duration::from_micros(40));
        sojourn.add(usize::MAX, Duration::MAX);
        assert!(sojourn.mean() > Duration::from_secs(1), "it does not overflow");
    }
}
