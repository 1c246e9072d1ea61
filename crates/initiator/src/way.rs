//! What the way to a disk holds: its rate times its delay, measured by the commands on it as BBR (Cardwell and others, 2016)
//! does it with packets. The rate is what was delivered between the sending of a command and its end, the largest of the last
//! ones; the delay that of the quickest command of the last ten seconds, since a way may become another one.
//!
//! Where the window is full, every command waits behind others, and none shows the delay alone. When the quickest one is too old, the way
//! is therefore said to hold little until a command was sent and answered behind that little: it has waited for nobody.
//!
//! No I/O and no clock: the caller says when commands were sent and when they ended, by one clock.

use std::collections::VecDeque;
use std::time::Duration;

/// How many of the last rates the largest is taken from.
const RATES: usize = 32;

/// Ends that are remembered, to know what had been delivered when a command was sent: more than are under way at once.
const ENDS: usize = 1024;

/// How long the quickest command counts.
const DELAY_AGE_MAX: Duration = Duration::from_secs(10);

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
    /// Of the quickest command of late.
    delay: Option<Delay>,
    /// Since when the delay is measured anew, with little under way.
    probing_since: Option<Duration>,
    /// Bytes per second, of the last commands.
    rates: VecDeque<f64>,
    delivered_bytes: u64,
    /// When commands ended, in this order, and what had been delivered with each.
    ends: VecDeque<(Duration, u64)>,
    /// What had been delivered before all of them.
    forgotten_bytes: u64,
}

/// How long a command took.
#[derive(Debug, Clone, Copy)]
struct Delay {
    time: Duration,
    /// When it ended.
    at: Duration,
}

impl Way {
    /// A command has moved so many bytes. Commands may be told a little later than they ended, and in another order.
    pub fn moved(&mut self, sent: Duration, ended: Duration, bytes: u64) {
        let before = self.ends.partition_point(|(end, _)| *end <= sent);
        let last_before = before.checked_sub(1).and_then(|at| self.ends.get(at));
        let delivered_before = last_before.map_or(self.forgotten_bytes, |(_, bytes)| *bytes);
        self.delivered_bytes += bytes;
        let time = ended.saturating_sub(sent).max(Duration::from_nanos(1));
        self.note_delay(sent, Delay { time, at: ended });
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

    fn note_delay(&mut self, sent: Duration, delay: Delay) {
        let is_quickest = self.delay.is_none_or(|quickest| delay.time <= quickest.time);
        // Whatever was sent since then had little before it.
        if is_quickest || self.probing_since.is_some_and(|since| since <= sent) {
            (self.delay, self.probing_since) = (Some(delay), None);
        } else if self.delay.is_some_and(|quickest| delay.at.saturating_sub(quickest.at) > DELAY_AGE_MAX) {
            self.probing_since.get_or_insert(delay.at);
        }
    }

    /// True for the moment in which the delay is measured: the less is under way, the truer it is.
    pub fn is_measured_now(&self) -> bool {
        self.probing_since.is_some()
    }

    /// What keeps the way busy, in bytes: twice its rate times its delay, or what it moves in `least` if that is more. For a moment
    /// every ten seconds it is half its rate times its delay, so that the delay can be measured. None before anything was measured.
    pub fn holds(&self, least: Duration) -> Option<u64> {
        let rate = self.rates.iter().copied().fold(0.0, f64::max);
        let Delay { time, .. } = self.delay?;
        let time = if self.is_measured_now() { time / 2 } else { (time * 2).max(least) };
        // A float beyond what fits becomes the most that does.
        Some((rate * time.as_secs_f64()) as u64)
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

    /// A line with a rate in bytes per second, and commands of 64 KiB on it, as many as the way holds, or two.
    struct Line {
        now: Duration,
        free_at: Duration,
        under_way: VecDeque<(Duration, Duration)>,
    }

    impl Line {
        const BYTES: u64 = 64 << 10;

        /// Runs for so long with a delay there and back; answers the share of the rate that was used.
        fn run(&mut self, way: &mut Way, rate: f64, delay: Duration, time: Duration) -> f64 {
            let (begin, mut moved) = (self.now, 0);
            while self.now < begin + time {
                let window = way.holds(Duration::ZERO).unwrap_or(0).max(2 * Self::BYTES);
                while (self.under_way.len() as u64) * Self::BYTES < window {
                    self.free_at =
                        self.free_at.max(self.now) + Duration::from_secs_f64(Self::BYTES as f64 / rate);
                    self.under_way.push_back((self.now, self.free_at + delay));
                }
                let (sent, ended) = self.under_way.pop_front().unwrap();
                self.now = self.now.max(ended);
                moved += Self::BYTES;
                way.moved(sent, self.now, Self::BYTES);
            }
            moved as f64 / rate / (self.now - begin).as_secs_f64()
        }
    }

    #[test]
    fn a_way_that_becomes_longer_is_kept_busy_after_a_while() {
        let (mut way, rate) = (Way::default(), 20e6);
        let mut line = Line { now: ms(0), free_at: ms(0), under_way: VecDeque::new() };
        assert!(line.run(&mut way, rate, ms(10), ms(60_000)) > 0.99);
        // The delay of before counts for ten seconds at most.
        line.run(&mut way, rate, ms(200), ms(12_000));
        let share = line.run(&mut way, rate, ms(200), ms(60_000));
        assert!(share > 0.98, "{share:.3} of the rate");
        // What waits on the way hides that it has become shorter; each time half of that goes.
        line.run(&mut way, rate, ms(10), ms(60_000));
        let held = way.holds(Duration::ZERO).unwrap();
        assert!(held < 20_000 * 40, "{held}");
    }

    #[test]
    fn what_waits_on_the_way_is_not_taken_for_its_delay() {
        const SECONDS: u32 = 120;
        for (rate, delay_ms) in [(20e6, 0), (20e6, 10), (20e6, 50), (60e6, 100), (1e6, 50)] {
            let mut way = Way::default();
            let mut line = Line { now: ms(0), free_at: ms(0), under_way: VecDeque::new() };
            let (mut most, mut moved) = (0, 0.0);
            for _ in 0..SECONDS {
                moved += line.run(&mut way, rate, ms(delay_ms), ms(1000)) / f64::from(SECONDS);
                most = most.max(way.holds(Duration::ZERO).unwrap());
            }
            // Each command takes the time that it needs by itself as well, and may have one before it.
            let alone = rate * delay_ms as f64 / 1e3 + 2.0 * Line::BYTES as f64;
            assert!(most as f64 <= 2.2 * alone, "{rate} bytes/s, {delay_ms} ms: {most} of {alone}");
            assert!(moved > 0.97, "{rate} bytes/s, {delay_ms} ms: {moved:.3} of the rate");
        }
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
