//! More is asked for than there is memory for: the target narrows its windows, keeps its bounds and lets people in.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::Result;

use super::super::generator::{Idle, Measured, Workload};
use super::super::report::{Bar, Figure, Row, Section, Unit};
use super::super::sample::Samples;
use super::super::{Findings, Stand};
use super::{KIB, configured, login_figures, probe, probes};

const SESSIONS: u32 = 64;
const DEPTH: u32 = 128;
const BUFFER_BYTES: u64 = 64 << 20;
/// What a busy session may hold beside the buffers: its own state, and heap that is not given back at once.
const SESSION_BYTES: u64 = 256 * KIB;

pub(super) fn measure(stand: &Stand<'_>, _: &mut Findings) -> Result<Section> {
    let mut section = Section::new(format!(
        "Overload, {SESSIONS} sessions, depth {DEPTH} each, {} MiB of buffers",
        BUFFER_BYTES >> 20
    ));
    for (name, workload) in [
        ("512 KiB read", Workload::read(512 * KIB, DEPTH)),
        ("512 KiB write", Workload::write(512 * KIB, DEPTH)),
    ] {
        let workload = Workload { sessions: SESSIONS, ..workload };
        let rounds: Vec<Round> =
            (0..stand.rounds()).map(|_| round(stand, &workload)).collect::<Result<_>>()?;
        section.rows.push(row(name, rounds, probes(stand)));
    }
    Ok(section)
}

/// What one round gave.
struct Round {
    measured: Measured,
    /// The most memory at any moment, over that before.
    peak_bytes: f64,
    /// Logins meanwhile; none where they failed.
    logins: Option<Idle>,
}

fn round(stand: &Stand<'_>, workload: &Workload) -> Result<Round> {
    let target = configured(stand, &format!("[limits]\nbuffer_memory_bytes = {BUFFER_BYTES}\n"))?;
    // What the unit holds is not what the load takes.
    target.fill(stand)?;
    probe(stand, &target)?;
    let before = target.resident_bytes()?;
    let is_over = AtomicBool::new(false);
    let (peak, logins, measured) = thread::scope(|scope| {
        let watch = scope.spawn(|| {
            let mut peak = before;
            while !is_over.load(Ordering::Relaxed) {
                peak = target.resident_bytes().map_or(peak, |now| now.max(peak));
                thread::sleep(Duration::from_millis(10));
            }
            peak
        });
        let run = || {
            let background = stand.generator().start(target.url(), workload, stand.seconds() * 3.0 + 2.0)?;
            thread::sleep(Duration::from_millis(500));
            let logins = probe(stand, &target);
            Ok::<_, anyhow::Error>((logins, background.end()?))
        };
        let result = run();
        is_over.store(true, Ordering::Relaxed);
        let peak = watch.join().map_err(|_| anyhow::anyhow!("the watcher of memory panicked"))?;
        result.map(|(logins, measured)| (peak, logins, measured))
    })?;
    target.stop()?;
    let logins = logins.inspect_err(|error| eprintln!("logins under overload: {error:#}")).ok();
    Ok(Round { measured, peak_bytes: peak - before, logins })
}

/// What must hold in every round is taken from the worst of them.
fn row(name: &str, rounds: Vec<Round>, wanted: u64) -> Row {
    let of = |column: &str, unit, value: fn(&Round) -> f64| {
        Figure::new(column, unit, Samples::of(rounds.iter().map(value).collect()))
    };
    let succeeded = rounds.iter().map(|round| round.logins.as_ref().map_or(0, |idle| idle.sessions)).min();
    let largest_peak = rounds.iter().map(|round| round.peak_bytes).fold(0.0, f64::max);
    let bound = BUFFER_BYTES + u64::from(SESSIONS) * SESSION_BYTES;
    let figures = [
        of("all together", Unit::BytesPerSecond, |round| round.measured.bytes_per_s),
        of("refused as busy", Unit::Count, |round| round.measured.busy as f64),
        of("largest window", Unit::Count, |round| round.measured.window.max),
        of("smallest window", Unit::Count, |round| round.measured.window.min)
            .map(|figure| figure.with_bar(Some(Bar::AtMost(f64::from(DEPTH - 1))))),
        Figure::one("memory on top, at most", Unit::Bytes, largest_peak)
            .map(|figure| figure.with_bar(Some(Bar::AtMost(bound as f64)))),
        Figure::one("logins meanwhile, at least", Unit::Count, succeeded.unwrap_or(0) as f64)
            .map(|figure| figure.with_bar(Some(Bar::AtLeast(wanted as f64)))),
    ];
    let logins: Vec<Idle> = rounds.into_iter().filter_map(|round| round.logins).collect();
    Row::new(name, figures.into_iter().chain(login_figures("such a login", &logins, None)))
}

#[cfg(test)]
mod tests {
    use super::super::super::generator::tests::measured;
    use super::super::super::generator::{LoginTimes, Window};
    use super::*;

    #[test]
    fn the_worst_round_counts_for_memory_and_logins() {
        let round = |peak_bytes, logins: Option<u64>| Round {
            measured: Measured { window: Window { min: 1.0, max: 128.0 }, ..measured(1.0) },
            peak_bytes,
            logins: logins.map(|sessions| Idle { sessions, login_us: LoginTimes { median: 1.0, p99: 2.0 } }),
        };
        let mib = |count: f64| count * 1024.0 * 1024.0;
        let cells = |rounds| -> Vec<String> {
            row("x", rounds, 10).figures.iter().map(ToString::to_string).collect()
        };
        let good = cells(vec![round(mib(60.0), Some(10)), round(mib(80.0), Some(10))]);
        assert_eq!(good[3..6], ["1 (0 %) ≤ 127", "80.0 MiB ≤ 80.0 MiB", "10 ≥ 10"]);
        let bad = cells(vec![round(mib(81.0), Some(10)), round(mib(60.0), None), round(0.0, Some(10))]);
        assert_eq!(bad[4..6], ["**81.0 MiB > 80.0 MiB**", "**0 < 10**"]);
    }
}
