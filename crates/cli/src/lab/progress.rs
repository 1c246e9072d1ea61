//! How far a study is: a bar on a terminal, and anywhere else, as in a log, a line now and then.

use std::io::{self, IsTerminal};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use indicatif::{HumanDuration, ProgressBar, ProgressDrawTarget, ProgressStyle};
use lunette_lab::Told;

use crate::failure::say;

/// Between two lines.
const TOLD_EVERY: Duration = Duration::from_mins(1);

pub(super) struct Progress {
    study: &'static str,
    bar: ProgressBar,
    began: Instant,
    /// Where there is no terminal for the bar.
    lines: Option<Mutex<Lines>>,
}

impl Progress {
    pub(super) fn new(study: &'static str, is_quiet: bool) -> Self {
        let target = if is_quiet { ProgressDrawTarget::hidden() } else { ProgressDrawTarget::stderr() };
        let bar = ProgressBar::with_draw_target(None, target);
        if let Ok(style) = ProgressStyle::with_template("{prefix} {wide_bar} {pos}/{len} {eta} {msg}") {
            bar.set_style(style);
        }
        bar.set_prefix(study);
        let lines = (!is_quiet && !io::stderr().is_terminal()).then(Mutex::default);
        Self { study, bar, began: Instant::now(), lines }
    }

    /// A run is over; one that has failed is told even to who wants no progress.
    pub(super) fn tell(&self, told: Told<'_>) {
        self.bar.set_length(told.of as u64);
        self.bar.set_position(told.done as u64);
        let values = told.parameters.iter().map(|pair| pair.1.as_str()).collect::<Vec<_>>();
        self.bar.set_message(values.join(" "));
        if let Some(why) = told.failed {
            let pairs = told.parameters.iter().map(|(name, value)| format!("{name} {value}"));
            let words: Vec<String> = [self.study.to_owned()].into_iter().chain(pairs).collect();
            self.bar.suspend(|| say(&format!("lunette: {} has failed: {why}", words.join(", "))));
        }
        let Some(lines) = &self.lines else { return };
        let line = lines.lock().unwrap_or_else(PoisonError::into_inner).take(
            self.began.elapsed(),
            told.done,
            told.of,
        );
        if let Some(line) = line {
            say(&format!("lunette: {}: {line}", self.study));
        }
    }

    pub(super) fn end(self) {
        self.bar.finish_and_clear();
    }
}

/// When the last line was told: so long after the study began.
#[derive(Default)]
struct Lines {
    told_at: Duration,
}

impl Lines {
    /// So many of so many runs are over after so long: what is to be told now, if anything is.
    fn take(&mut self, after: Duration, done: usize, of: usize) -> Option<String> {
        if after - self.told_at < TOLD_EVERY || done == 0 {
            return None;
        }
        self.told_at = after;
        let left = after.mul_f64(of.saturating_sub(done) as f64 / done as f64);
        let so_far = format!("{done} of {of} runs in {}", HumanDuration(after));
        Some(if left.is_zero() { so_far } else { format!("{so_far}, about {} left", HumanDuration(left)) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_told_once_a_minute_and_says_what_is_left() {
        let mut lines = Lines::default();
        let mut at = |seconds, done| lines.take(Duration::from_secs(seconds), done, 40);
        assert_eq!([at(1, 0), at(59, 5), at(60, 0)], [const { None }; 3]);
        let told = at(61, 10).expect("a minute is over");
        assert_eq!(told, "10 of 40 runs in 61 seconds, about 3 minutes left");
        assert_eq!(at(120, 12), None, "less than a minute ago");
        assert_eq!(at(600, 40).as_deref(), Some("40 of 40 runs in 10 minutes"));
    }
}
