//! Keeps a dead disk from filling the log: so many lines in so much time, and a count of what was left out.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Enough to see what fails and where; ten seconds is what a person reading along can follow.
const LINES_MAX: u32 = 10;
const WINDOW: Duration = Duration::from_secs(10);

/// Decides which error lines are written.
#[derive(Debug, Default)]
pub(crate) struct LogLimiter {
    window: Mutex<Option<Window>>,
}

#[derive(Debug)]
struct Window {
    began: Instant,
    lines: u32,
    left_out: u64,
}

impl LogLimiter {
    /// `None`: write nothing. `Some(n)`: write the line, and that `n` were left out before it.
    pub(crate) fn admit(&self, now: Instant) -> Option<u64> {
        let mut window = self.window.lock().unwrap_or_else(PoisonError::into_inner);
        match window.as_mut() {
            Some(window) if now.duration_since(window.began) < WINDOW => {
                if window.lines == LINES_MAX {
                    window.left_out += 1;
                    return None;
                }
                window.lines += 1;
                Some(0)
            }
            _ => {
                let left_out = window.as_ref().map_or(0, |window| window.left_out);
                *window = Some(Window { began: now, lines: 1, left_out: 0 });
                Some(left_out)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_is_counted_not_written() {
        let limiter = LogLimiter::default();
        let start = Instant::now();
        let written = (0..1000).filter(|_| limiter.admit(start).is_some()).count();
        assert_eq!(written, 10);
        assert_eq!(limiter.admit(start + WINDOW), Some(990));
        assert_eq!(limiter.admit(start + WINDOW), Some(0));
        assert_eq!(limiter.admit(start + 3 * WINDOW), Some(0));
    }
}
