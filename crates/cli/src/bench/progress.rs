//! How far a measurement is, and what ends it early.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use lunette_lab::{Monitor, Phase, Plan};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag;

use super::BenchOptions;
use crate::banner::size;
use crate::failure::Failure;
use crate::signals::ignores_hangup;

/// How often is looked.
const INTERVAL: Duration = Duration::from_millis(50);
/// How often it is told.
const TOLD_EVERY: u32 = 10;

/// The first signal ends the measurement and keeps what was measured, the second SIGINT or SIGTERM ends the process. SIGHUP counts for
/// that neither way: who closes a terminal may send it twice, and SIGTERM behind it.
pub(crate) struct Interrupts(Arc<AtomicBool>);

impl Interrupts {
    /// Becomes true with the first signal.
    pub(crate) fn flag(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.0)
    }

    pub(crate) fn watch() -> Result<Interrupts, Failure> {
        let failed = |error| Failure::new("signals cannot be received", &error);
        let seen = Arc::new(AtomicBool::new(false));
        if !ignores_hangup() {
            flag::register(SIGHUP, Arc::clone(&seen)).map_err(failed)?;
        }
        let seen_to_end = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM] {
            // In this order: only a second signal finds the flag set.
            flag::register_conditional_shutdown(signal, 128 + signal, Arc::clone(&seen_to_end))
                .and_then(|_| flag::register(signal, Arc::clone(&seen_to_end)))
                .and_then(|_| flag::register(signal, Arc::clone(&seen)))
                .map_err(failed)?;
        }
        Ok(Interrupts(seen))
    }
}

/// Looks at a measurement until it has ended.
pub(crate) fn show(
    options: &BenchOptions,
    plan: &Plan,
    monitor: &Monitor,
    interrupts: &Interrupts,
    has_ended: &dyn Fn() -> bool,
) {
    let is_quiet = options.quiet || options.json;
    let target = if is_quiet { ProgressDrawTarget::hidden() } else { ProgressDrawTarget::stderr() };
    let bar = ProgressBar::with_draw_target(None, target);
    if let Ok(style) = ProgressStyle::with_template("{spinner} {elapsed} {msg}") {
        bar.set_style(style);
    }
    let (mut before, mut since) = ((0, 0), Instant::now());
    for turn in 1_u32.. {
        if has_ended() {
            break;
        }
        if interrupts.0.load(Ordering::Relaxed) {
            monitor.stop();
        }
        if turn.is_multiple_of(TOLD_EVERY) {
            let now = (monitor.operations(), monitor.bytes());
            let seconds = since.elapsed().as_secs_f64();
            let per_s = |now: u64, before: u64| (now - before) as f64 / seconds;
            let rates = (per_s(now.0, before.0), per_s(now.1, before.1));
            bar.set_message(message(plan, monitor, rates));
            (before, since) = (now, Instant::now());
        }
        bar.tick();
        sleep(INTERVAL);
    }
    bar.finish_and_clear();
}

fn message(plan: &Plan, monitor: &Monitor, (operations_per_s, bytes_per_s): (f64, f64)) -> String {
    let going = || format!("{operations_per_s:.0}/s, {:.1} MiB/s", bytes_per_s / f64::from(1 << 20));
    match monitor.phase() {
        Phase::Connecting => "connecting".to_owned(),
        Phase::Filling => {
            format!("writing {} of {}", size(monitor.filled_bytes()), size(plan.range.length_bytes))
        }
        Phase::WarmingUp => format!("warming up: {}", going()),
        Phase::Measuring => format!("measuring: {}", going()),
        Phase::Ending => format!("ending: {}", going()),
    }
}
