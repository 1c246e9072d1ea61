//! How much of a stream is under way at once: a stated number of commands, or what the way is found to hold.
//!
//! What a way holds is measured by the commands themselves ([`Way`]); twice its rate times its delay keeps it busy. A quarter of a
//! second's worth is under way in any case: for disks with a depth of their own, whose quickest answer says little. So no command
//! waits long behind others, on slow lines either, and none of them runs into a time limit for that.
//!
//! No I/O and no clock: the caller says what time it is.

use std::time::Duration;

use lunette_initiator::Way;

/// What is under way before anything was measured, in bytes.
const BEGIN_BYTES: u64 = 256 << 10;

/// The most that is under way, whatever the way could hold, in bytes.
const BYTES_MAX: u64 = 64 << 20;

/// As many commands at once, if nobody has asked for a number.
const COMMANDS_MAX: usize = 64;

/// The shortest piece that the data is cut into for the sake of the way, in bytes.
const PIECE_BYTES_MIN: u64 = 64 << 10;

/// Pieces under way, so that the end of one does not stop the others.
const PIECES: u64 = 8;

/// What is under way in any case, measured in time.
const TIME_MIN: Duration = Duration::from_millis(250);

/// How many commands are under way at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Depth {
    /// So many.
    Commands(u32),
    /// As many as the way holds.
    Measured,
}

impl From<Option<u32>> for Depth {
    fn from(commands: Option<u32>) -> Self {
        commands.map_or(Self::Measured, Self::Commands)
    }
}

/// A command that was sent, for [`Flow::done`].
#[derive(Debug, Clone, Copy)]
pub(super) struct Sent {
    at: Duration,
    bytes: u64,
}

/// What is known of the way to a disk.
#[derive(Debug, Clone)]
pub(crate) struct Flow {
    depth: Depth,
    under_way_bytes: u64,
    way: Way,
}

impl Flow {
    pub(crate) fn new(depth: Depth) -> Self {
        Self { depth, under_way_bytes: 0, way: Way::default() }
    }

    /// As many commands as are ever under way.
    pub(super) fn commands_max(&self) -> usize {
        match self.depth {
            Depth::Commands(commands) => commands.max(1) as usize,
            Depth::Measured => COMMANDS_MAX,
        }
    }

    /// Whether the way has room for more.
    pub(super) fn has_room(&self) -> bool {
        self.under_way_bytes == 0 || self.under_way_bytes < self.window_bytes()
    }

    /// How long a piece should be, in bytes: a power of two.
    pub(super) fn piece_bytes(&self) -> u64 {
        match self.depth {
            Depth::Commands(_) => u64::MAX,
            Depth::Measured => {
                let share = (self.window_bytes() / PIECES).max(PIECE_BYTES_MIN);
                1 << share.ilog2()
            }
        }
    }

    /// As much data as is under way at once, in bytes.
    pub(super) fn window_bytes(&self) -> u64 {
        if self.depth != Depth::Measured {
            return u64::MAX;
        }
        let pieces = if self.way.is_measured_now() { 1 } else { 2 };
        let held = self.way.holds(TIME_MIN);
        held.map_or(BEGIN_BYTES, |bytes| bytes.clamp(pieces * PIECE_BYTES_MIN, BYTES_MAX))
    }

    /// A command with so much data is sent.
    pub(super) fn sent(&mut self, now: Duration, bytes: u64) -> Sent {
        self.under_way_bytes += bytes;
        Sent { at: now, bytes }
    }

    /// It has ended without having moved its data.
    pub(super) fn refused(&mut self, sent: Sent) {
        self.under_way_bytes = self.under_way_bytes.saturating_sub(sent.bytes);
    }

    /// It has moved its data.
    pub(super) fn done(&mut self, now: Duration, sent: Sent) {
        self.refused(sent);
        self.way.moved(sent.at, now, sent.bytes);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use super::*;

    /// A stream over a line with a rate in bytes per second and a delay there and back, for as long as `bytes` take: how long it took,
    /// and the longest that a command took.
    fn run(rate: f64, delay: Duration, bytes: u64, flow: &mut Flow) -> (Duration, Duration) {
        let (mut now, mut free_at) = (Duration::ZERO, Duration::ZERO);
        let mut under_way: VecDeque<(Duration, Sent)> = VecDeque::new();
        let (mut left, mut longest) = (bytes, Duration::ZERO);
        while left > 0 || !under_way.is_empty() {
            while left > 0 && flow.has_room() && under_way.len() < flow.commands_max() {
                let piece = left.min(flow.piece_bytes()).min(1 << 20);
                free_at = free_at.max(now) + Duration::from_secs_f64(piece as f64 / rate);
                under_way.push_back((free_at + delay, flow.sent(now, piece)));
                left -= piece;
            }
            let Some((end, sent)) = under_way.pop_front() else { break };
            now = end;
            longest = longest.max(now - sent.at);
            flow.done(now, sent);
        }
        (now, longest)
    }

    #[test]
    fn the_way_is_kept_busy_and_nobody_waits_long() {
        for megabits in [0.5, 2.0, 15.0, 100.0, 155.0, 1000.0, 2500.0] {
            for delay_ms in [0, 1, 10, 50, 100] {
                let (rate, delay) = (megabits * 1e6 / 8.0, Duration::from_millis(delay_ms));
                // A minute of data.
                let bytes = (rate * 60.0) as u64;
                let (took, longest) = run(rate, delay, bytes, &mut Flow::new(Depth::Measured));
                let share = 60.0 / took.as_secs_f64();
                assert!(share > 0.98, "{megabits} Mb/s, {delay_ms} ms: {share:.3} of the rate");
                // What was sent before anything was known, or the least that may be under way.
                let least = Duration::from_secs_f64(BEGIN_BYTES as f64 * 2.0 / rate);
                let bound = (delay * 4 + Duration::from_millis(600)).max(least + delay);
                assert!(longest <= bound, "{megabits} Mb/s, {delay_ms} ms: {longest:?} of {bound:?}");
            }
        }
    }

    #[test]
    fn a_line_that_becomes_slow_has_less_under_way() {
        let mut flow = Flow::new(Depth::Measured);
        run(125e6, Duration::from_millis(20), 1 << 30, &mut flow);
        assert_eq!(flow.piece_bytes(), 2 << 20, "31 MB in eight pieces");
        run(125e3, Duration::from_millis(20), 1 << 27, &mut flow);
        assert_eq!(flow.piece_bytes(), PIECE_BYTES_MIN);
        assert!(flow.window_bytes() < 3 * PIECE_BYTES_MIN, "{}", flow.window_bytes());
    }

    #[test]
    fn a_stated_depth_is_kept_whatever_the_way_is() {
        let mut flow = Flow::new(Depth::Commands(3));
        run(1e6, Duration::from_millis(500), 10 << 20, &mut flow);
        assert_eq!((flow.commands_max(), flow.piece_bytes()), (3, u64::MAX));
        let sent = flow.sent(Duration::ZERO, 1 << 30);
        assert!(flow.has_room());
        flow.refused(sent);
        assert_eq!(Flow::new(Depth::Commands(0)).commands_max(), 1);
    }

    #[test]
    fn what_is_refused_says_nothing_of_the_way() {
        let mut flow = Flow::new(Depth::Measured);
        for _ in 0..100 {
            let sent = flow.sent(Duration::ZERO, 1 << 20);
            assert!(!flow.has_room());
            flow.refused(sent);
        }
        assert!(flow.has_room() && flow.way.holds(TIME_MIN).is_none());
    }
}
