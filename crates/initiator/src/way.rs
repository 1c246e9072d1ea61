//! What the way to a disk holds: its rate times its delay, measured by the commands on it as BBR (Cardwell and others, 2016)
//! does it with packets. The rate is what was delivered between the sending of a command and its end, the largest of the last
//! ones; the delay that of the quickest command so far.
//!
//! No I/O and no clock: the caller says when commands were sent and when they ended, by one clock.

use std::collections::VecDeque;
use std::time::Duration;

/// How many of the last rates the largest is taken from.
const RATES: usize = 32;

/// Ends that are remembered, to know what had been delivered when a command was sent: more than are under way at once.
const ENDS: usize = 1024;

/// A way to a disk, in one direction.
///
/// ```
/// use std::time::Duration;
/// use lunette_initiator::Way;
///
/// let ms = Duration::from_millis;
/// let mut way = Way::default();
/// assert_eq!(way.holds(Duration::ZERO), None, "nothing is known yet");
/// // Two commands that were sent together, on a line of 10 MB/s and 50 ms.
/// way.moved(ms(0), ms(60), 100_000);
/// way.moved(ms(0), ms(70), 100_000);
/// assert_eq!(way.holds(Duration::ZERO), Some(342_857), "200,000 bytes in 70 ms, for twice 60 ms");
/// ```
#[derive(Debug, Clone, Default)]
pub struct Way {
    /// Of the quickest command.
    delay: Option<Duration>,
    /// Bytes per second, of the last commands.
    rates: VecDeque<f64>,
    delivered_bytes: u64,
    /// When commands ended, in this order, and what had been delivered with each.
    ends: VecDeque<(Duration, u64)>,
    /// What had been delivered before all of them.
    forgotten_bytes: u64,
}

impl Way {
    /// A command has moved so many bytes. Commands may be told a little later than they ended, and in another order.
    pub fn moved(&mut self, sent: Duration, ended: Duration, bytes: u64) {
        let before = self.ends.partition_point(|(end, _)| *end <= sent);
        let last_before = before.checked_sub(1).and_then(|at| self.ends.get(at));
        let delivered_before = last_before.map_or(self.forgotten_bytes, |(_, bytes)| *bytes);
        self.delivered_bytes += bytes;
        let time = ended.saturating_sub(sent).max(Duration::from_nanos(1));
        self.delay = Some(self.delay.map_or(time, |delay| delay.min(time)));
        if self.rates.len() == RATES {
            self.rates.pop_front();
        }
        self.rates.push_back((self.delivered_bytes - delivered_before) as f64 / time.as_secs_f64());
        if self.ends.len() == ENDS
            && let Some((_, bytes)) = self.ends.pop_front()
        {
            self.forgotten_bytes = bytes;
        }
        let last = self.ends.back().map_or(Duration::ZERO, |(end, _)| *end);
        self.ends.push_back((ended.max(last), self.delivered_bytes));
    }

    /// What keeps the way busy, in bytes: twice its rate times its delay, or what it moves in `least` if that is more. None before
    /// anything was measured.
    pub fn holds(&self, least: Duration) -> Option<u64> {
        let rate = self.rates.iter().copied().fold(0.0, f64::max);
        // A float beyond what fits becomes the most that does.
        self.delay.map(|delay| (rate * (delay * 2).max(least).as_secs_f64()) as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(time: u64) -> Duration {
        Duration::from_millis(time)
    }

    #[test]
    fn a_rate_is_what_came_while_a_command_was_under_way() {
        let mut way = Way::default();
        // One command of 1000 bytes ends each millisecond, fifty after it was sent.
        for at in 0..2000 {
            way.moved(ms(at), ms(at + 50), 1000);
        }
        let held = way.holds(Duration::ZERO).unwrap();
        assert!((98_000..=102_000).contains(&held), "twice 50 ms at 1 MB/s: {held}");
        assert_eq!(way.holds(ms(1000)).unwrap() / 100_000, 10, "a second's worth");
    }

    #[test]
    fn the_last_rates_count_and_not_the_order_in_which_ends_are_told() {
        let mut way = Way::default();
        way.moved(ms(0), ms(10), 1_000_000);
        for at in 1..=RATES as u64 {
            way.moved(ms(1000 * at), ms(1000 * at + 10), 1000);
        }
        assert_eq!(way.holds(Duration::ZERO), Some(2000));
        for (sent, ended) in [(100_000, 100_020), (100_001, 100_010), (99_000, 100_005)] {
            way.moved(ms(sent), ms(ended), 1000);
        }
        let held = way.holds(Duration::ZERO).unwrap();
        assert!((2000..=6000).contains(&held), "{held}");
    }

    #[test]
    fn more_is_remembered_than_is_under_way() {
        let mut way = Way::default();
        for at in 0..3 * ENDS as u64 {
            way.moved(ms(at), ms(at + 100), 1000);
        }
        assert!(way.ends.len() == ENDS && way.holds(Duration::ZERO) < Some(220_000));
    }
}
