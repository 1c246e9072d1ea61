//! How fast data is asked for where the way is long (docs/decisions/0042): hardly faster than it comes.
//!
//! An initiator's commands and their data come one behind the other. Data that was asked for all at once waits on the line for
//! itself, and the next commands wait behind it; so they come all at once, too, and the line is idle until the first data for
//! them is there. Who asks at the rate of the line has the data of one command on it and those of the next one right behind.

use std::time::Duration;

/// Data is asked for so many times as fast as it has come: who asked no faster would never learn that the line carries more.
const GAIN: f64 = 1.1;

/// So many samples of the rate count. While losses are made good, and while others have much on the line, little comes:
const SAMPLES: usize = 16;
/// the rate is that of a good sample, but so many are better: what a lost packet held up comes all at once behind it.
const BETTER: usize = 3;

/// A sample has at least so many bytes,
const SAMPLE_BYTES_MIN: u64 = 128 << 10;
/// and takes so long at least, lest it be a sample of what had waited in the socket.
const SAMPLE_MIN: Duration = Duration::from_millis(10);

/// Where nothing comes for so long, nothing was on the line: that says nothing of its rate.
const GAP_MAX: Duration = Duration::from_millis(2);

/// With less than this asked for, the line may have been waiting for whoever asks.
const ASKED_BYTES_MIN: usize = 64 << 10;

/// With no sample for so long, nothing is known. Who asks for little at a time, and far too slowly, has none.
const VALID: Duration = Duration::from_millis(500);

/// What was asked for once holds up the next for so long at most, in seconds.
const TAKES_S_MAX: f64 = 0.5;

/// So much that was not asked for in time is made up for at once.
const LATE_MAX: Duration = Duration::from_millis(5);

/// See the module's documentation. Times are those of one clock, whichever.
#[derive(Debug, Default)]
pub(super) struct Pace {
    sample: Sample,
    /// In bytes per second, zero where there is none; the oldest is overwritten next.
    rates: [f64; SAMPLES],
    next_rate: usize,
    sampled_at: Duration,
    /// When the next is to be asked for.
    next_at: Duration,
}

/// Bytes that came without gaps between them.
#[derive(Debug, Clone, Copy, Default)]
struct Sample {
    bytes: u64,
    took: Duration,
    /// When the last ones came.
    at: Duration,
    /// They came behind a gap, so nobody knows how long they took.
    is_behind_gap: bool,
}

impl Pace {
    /// So many bytes of Data-Out came on a connection on which `asked_bytes` had been asked for and had not come.
    pub(super) fn came(&mut self, bytes: usize, asked_bytes: usize, now: Duration) {
        if asked_bytes < ASKED_BYTES_MIN {
            return;
        }
        let sample = &mut self.sample;
        let gap = now.saturating_sub(sample.at);
        if !gap.is_zero() {
            (sample.at, sample.is_behind_gap) = (now, gap > GAP_MAX);
        }
        if sample.is_behind_gap {
            return;
        }
        sample.took += gap;
        sample.bytes += bytes as u64;
        if sample.took >= SAMPLE_MIN && sample.bytes >= SAMPLE_BYTES_MIN {
            // Far below what a double holds exactly.
            let rate = sample.bytes as f64 / sample.took.as_secs_f64();
            (sample.bytes, sample.took) = (0, Duration::ZERO);
            self.forget_what_is_old(now);
            self.rates[self.next_rate] = rate;
            self.next_rate = (self.next_rate + 1) % SAMPLES;
            self.sampled_at = now;
        }
    }

    /// Until when nothing more is to be asked for; nothing where it may be now.
    pub(super) fn wait_until(&self, now: Duration) -> Option<Duration> {
        Some(self.next_at).filter(|at| *at > now)
    }

    /// So many bytes were asked for.
    pub(super) fn asked(&mut self, bytes: usize, now: Duration) {
        self.forget_what_is_old(now);
        let mut best = self.rates;
        best.sort_unstable_by(|one, other| other.total_cmp(one));
        let rate = best[BETTER] * GAIN;
        let takes_s = if rate > 0.0 { (bytes as f64 / rate).min(TAKES_S_MAX) } else { 0.0 };
        // Who asks although it is not time is not held up for longer by that.
        self.next_at =
            self.next_at.clamp(now.saturating_sub(LATE_MAX), now) + Duration::from_secs_f64(takes_s);
    }

    fn forget_what_is_old(&mut self, now: Duration) {
        if now.saturating_sub(self.sampled_at) >= VALID {
            self.rates = [0.0; SAMPLES];
        }
    }
}

#[cfg(test)]
mod tests;
