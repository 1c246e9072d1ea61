//! `bench scale`: many sessions, many units, logins, the tail, a stream beside a small reader, and overload.

use std::fmt::Write as _;
use std::fs::OpenOptions;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::Result;
use lunette_tests::lunette::Lunette;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::generator::{Background, Idle, MutualChap, Until, Workload};
use super::report::{Bar, Figure, Row, Section, Unit};
use super::sample::{Samples, interleave};
use super::targets::{Target, rates};
use super::{Findings, Stand};

/// What stands under the tables.
pub(crate) const SETTING: &str = "Memory units over loopback.";

const KIB: u64 = 1 << 10;

const SESSIONS: &[u32] = &[1, 8, 64, 256];
/// What 256 sessions must reach of the best, and the slowest of the mean.
const TOTAL_BAR: Bar = Bar::AtLeast(0.9);
const FAIR_BAR: Bar = Bar::AtLeast(0.5);

/// A session with so many connections must not be slower than with one.
const CONNECTIONS: u32 = 4;
const CONNECTIONS_BAR: Bar = Bar::AtLeast(1.0);

const IDLE_SESSIONS: u64 = 10_000;
const IDLE_SESSIONS_QUICK: u64 = 100;
/// Resident memory for each of them.
const IDLE_BAR: Bar = Bar::AtMost(65_536.0);
/// Logins while they are there.
const PROBES: u64 = 200;
const PROBES_QUICK: u64 = 10;
const LOGIN_BAR: Bar = Bar::AtMost(5_000.0);
const FIRST_BLOCK_BAR: Bar = Bar::AtMost(3_000.0);
const FIRST_BLOCK_CHAP_BAR: Bar = Bar::AtMost(5_000.0);

const UNITS: u64 = 4_096;
const UNITS_QUICK: u64 = 64;

/// The 99.9th percentile over the median, at depth 1.
const TAIL_BAR: Bar = Bar::AtMost(5.0);
/// A reader's median beside a stream over the one without.
const BESIDE_BAR: Bar = Bar::AtMost(3.0);

const OVERLOAD_SESSIONS: u32 = 64;
const OVERLOAD_DEPTH: u32 = 128;
const OVERLOAD_BUFFER_BYTES: u64 = 64 << 20;
/// What a busy session may hold beside the buffers: its own state, and heap that is not given back at once.
const OVERLOAD_SESSION_BYTES: u64 = 256 * KIB;

/// Descriptors for a connection on each side, and some.
const SPARE_DESCRIPTORS: u64 = 200;

type Part = fn(&Stand<'_>, &mut Findings) -> Result<Section>;

const PARTS: &[(&str, Part)] = &[
    ("sessions", sessions),
    ("connections", connections),
    ("idle sessions", idle_sessions),
    ("units", units),
    ("latency", latency),
    ("overload", overload),
];

pub(crate) fn measure(stand: &Stand<'_>, findings: &mut Findings) -> Result<()> {
    for (name, part) in PARTS {
        if stand.wants(name) {
            eprintln!("{name}");
            match part(stand, findings) {
                Ok(section) => findings.sections.push(section),
                // One part that fails says so and does not take the others with it.
                Err(error) => findings.skip(name, &error),
            }
        }
    }
    Ok(())
}

/// Lunette with memory as unit 0, and what else a configuration file says behind that.
fn configured(stand: &Stand<'_>, more: &str) -> Result<Target> {
    Target::launched(Lunette::command(stand.lunette()).configuration(more))
}

fn sessions(stand: &Stand<'_>, _: &mut Findings) -> Result<Section> {
    let target = Target::lunette(stand, "mem:256M")?;
    let workload = |sessions: u32| Workload { sessions, ..Workload::read(4 * KIB, 4) };
    let samples = interleave(stand.rounds(), 1, SESSIONS.len(), |_, side| {
        Ok(target.load(stand, &workload(SESSIONS[side]), stand.until())?.measured)
    })?;
    let totals: Vec<Vec<f64>> = samples
        .iter()
        .flatten()
        .map(|rounds| rounds.iter().map(|measured| measured.operations_per_s).collect())
        .collect();
    let best = best(&totals);
    let mut section = Section::new("Sessions, 4 KiB random read, depth 4 each");
    for (rounds, (count, totals)) in samples.iter().flatten().zip(SESSIONS.iter().zip(&totals)) {
        let per_session = rounds.iter().map(|measured| &measured.per_session);
        let fair = per_session.map(|all| all.slowest_operations_per_s / all.mean_operations_per_s).collect();
        let is_last = SESSIONS.last() == Some(count);
        section.rows.push(Row::new(
            count.to_string(),
            [
                Figure::new("all together", Unit::PerSecond, Samples::of(totals.clone())),
                Figure::ratio("of the best", totals, &best)
                    .map(|figure| figure.with_bar(is_last.then_some(TOTAL_BAR))),
                Figure::new("slowest / mean", Unit::Ratio, Samples::of(fair))
                    .map(|figure| figure.with_bar(Some(FAIR_BAR))),
            ],
        ));
    }
    target.stop()?;
    Ok(section)
}

/// The rounds of the side with the largest median.
fn best(totals: &[Vec<f64>]) -> Vec<f64> {
    let median = |rounds: &Vec<f64>| Samples::of(rounds.clone()).map_or(0.0, |samples| samples.median);
    totals.iter().max_by(|a, b| median(a).total_cmp(&median(b))).cloned().unwrap_or_default()
}

fn connections(stand: &Stand<'_>, _: &mut Findings) -> Result<Section> {
    let target = Target::lunette(stand, "mem:256M")?;
    let workloads = [Workload::read(4 * KIB, 32), Workload::write(4 * KIB, 32), Workload::read(512 * KIB, 8)];
    let samples = interleave(stand.rounds(), workloads.len(), 2, |row, side| {
        let connections = if side == 0 { 1 } else { CONNECTIONS };
        target.load(stand, &Workload { connections, ..workloads[row].clone() }, stand.until())
    })?;
    let mut section = Section::new("Connections of one session");
    for (workload, sides) in workloads.iter().zip(samples) {
        let unit = Unit::of_rate(workload.block_bytes);
        let [one, several] = [0, 1].map(|side: usize| rates(&sides[side], workload.block_bytes));
        let ratio = Figure::ratio("ratio", &several, &one);
        section.rows.push(Row::new(
            workload.title(),
            [
                Figure::new("one", unit, Samples::of(one)),
                Figure::new(CONNECTIONS.to_string(), unit, Samples::of(several)),
                ratio.map(|figure| figure.with_bar(Some(CONNECTIONS_BAR))),
            ],
        ));
    }
    target.stop()?;
    Ok(section)
}

/// So many descriptors as there may be; returns how many sessions that lets one process hold.
fn sessions_max() -> u64 {
    let limit = getrlimit(Resource::Nofile);
    // Children inherit it. Where even that is refused the old limit stays, and is what counts.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX).saturating_sub(SPARE_DESCRIPTORS)
}

fn idle_sessions(stand: &Stand<'_>, findings: &mut Findings) -> Result<Section> {
    let wanted = stand.or_quick(IDLE_SESSIONS, IDLE_SESSIONS_QUICK);
    let count = wanted.min(sessions_max());
    if count < wanted {
        findings.skipped.push(format!("{} of {wanted} idle sessions: no more descriptors", wanted - count));
    }
    let limits = "[limits]\nconnections_max = 20000\nhalf_open_max = 20000\n";
    let target = configured(stand, limits)?;
    // Whoever comes first pays for what all share.
    probe(stand, &target)?;
    let before = target.resident_bytes()?;
    let (holder, all) = stand.generator().idle(target.url(), count, &stand.path("idle.log"))?;
    let after = target.resident_bytes()?;
    let fresh = probe(stand, &target)?;
    drop(holder);
    target.stop()?;
    let mut section = Section::new("Idle sessions");
    section.rows.push(Row::new(
        all.sessions.to_string(),
        [
            Figure::one("memory each", Unit::Bytes, (after - before) / all.sessions.max(1) as f64)
                .map(|figure| figure.with_bar(Some(IDLE_BAR))),
            Figure::one("their logins, median", Unit::Microseconds, all.login_us.median),
            Figure::one("their logins, 99 %", Unit::Microseconds, all.login_us.p99),
            Figure::one("a login beside them, median", Unit::Microseconds, fresh.login_us.median)
                .map(|figure| figure.with_bar(Some(LOGIN_BAR))),
            Figure::one("a login beside them, 99 %", Unit::Microseconds, fresh.login_us.p99),
        ],
    ));
    Ok(section)
}

/// Some logins, one after the other, and out again.
fn probe(stand: &Stand<'_>, target: &Target) -> Result<Idle> {
    let count = stand.or_quick(PROBES, PROBES_QUICK);
    let (holder, idle) = stand.generator().idle(target.url(), count, &stand.path("probe.log"))?;
    drop(holder);
    Ok(idle)
}

fn units(stand: &Stand<'_>, _: &mut Findings) -> Result<Section> {
    let count = stand.or_quick(UNITS, UNITS_QUICK);
    let mut text = String::new();
    for number in 1..count {
        let _ = write!(text, "[[target.lun]]\nnumber = {number}\nstore = \"null:1G\"\n");
    }
    let one = configured(stand, "")?;
    let all = configured(stand, &text)?;
    let each = (all.resident_bytes()? - one.resident_bytes()?) / (count - 1) as f64;
    let login = probe(stand, &all)?.login_us;
    one.stop()?;
    all.stop()?;
    let mut section = Section::new("Logical units");
    section.rows.push(Row::new(
        count.to_string(),
        [
            Figure::one("memory each", Unit::Bytes, each),
            Figure::one("login, median", Unit::Microseconds, login.median)
                .map(|figure| figure.with_bar(Some(LOGIN_BAR))),
            Figure::one("login, 99 %", Unit::Microseconds, login.p99),
        ],
    ));
    Ok(section)
}

fn latency(stand: &Stand<'_>, _: &mut Findings) -> Result<Section> {
    let mut section = Section::new("Latency");
    let target = Target::lunette(stand, "mem:256M")?;
    let workload = Workload::default();
    section.rows.push(first_block(stand, &target, &workload, "", FIRST_BLOCK_BAR)?);
    let (authenticating, workload) = authenticating(stand)?;
    let row = first_block(stand, &authenticating, &workload, ", mutual CHAP", FIRST_BLOCK_CHAP_BAR)?;
    section.rows.push(row);
    authenticating.stop()?;
    section.rows.push(tail(stand, &target)?);
    target.stop()?;
    // One reactor has both; two may have one each.
    for (name, limits) in [("", ""), (", one reactor", "[reactors]\ncount = 1\n")] {
        let target = configured(stand, limits)?;
        section.rows.push(beside_a_stream(stand, &target, name)?);
        target.stop()?;
    }
    Ok(section)
}

/// From `connect` to the data of a first read, one new session after the other.
fn first_block(stand: &Stand<'_>, target: &Target, workload: &Workload, name: &str, bar: Bar) -> Result<Row> {
    let mut times = Vec::new();
    for _ in 0..stand.rounds() * 4 {
        times.push(target.load(stand, workload, Until::Count(1))?.measured.first_block_us.median);
    }
    let figure = Figure::new("time", Unit::Microseconds, Samples::of(times));
    Ok(Row::new(
        format!("from login to the first block{name}"),
        [figure.map(|figure| figure.with_bar(Some(bar)))],
    ))
}

/// Lunette with one user and a secret of its own, and the workload that logs in there with mutual CHAP.
fn authenticating(stand: &Stand<'_>) -> Result<(Target, Workload)> {
    let secret = |name: &'static str, secret: &str| {
        let path = stand.path(&format!("{name}.secret"));
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path)?;
        file.write_all(secret.as_bytes())?;
        Ok::<_, anyhow::Error>((name, path))
    };
    let chap = MutualChap {
        user: secret("host", "only for this measurement")?,
        target: secret("disk", "and this one as well")?,
    };
    let flag = |(name, path): &(&str, PathBuf)| format!("{name}=file:{}", path.display());
    let launch = Lunette::command(stand.lunette()).luns(["0=mem:256M"]).args([
        "--chap-user",
        &flag(&chap.user),
        "--chap-mutual",
        &flag(&chap.target),
    ]);
    Ok((Target::launched(launch)?, Workload { chap: Some(chap), ..Workload::default() }))
}

fn tail(stand: &Stand<'_>, target: &Target) -> Result<Row> {
    let mut latencies = Vec::new();
    for _ in 0..stand.rounds() {
        let until = Until::Seconds(stand.seconds() * 3.0);
        latencies.push(target.load(stand, &Workload::default(), until)?.measured.latency_us);
    }
    let medians: Vec<f64> = latencies.iter().map(|latency| latency.median).collect();
    let tails: Vec<f64> = latencies.iter().map(|latency| latency.p999).collect();
    Ok(Row::new(
        "4 KiB read, depth 1: 99.9 % beside the median",
        [
            Figure::new("time", Unit::Microseconds, Samples::of(tails.clone())),
            Figure::new("beside", Unit::Microseconds, Samples::of(medians.clone())),
            Figure::ratio("ratio", &tails, &medians).map(|figure| figure.with_bar(Some(TAIL_BAR))),
        ],
    ))
}

/// The median of a small reader with a stream of large reads beside it, and without.
fn beside_a_stream(stand: &Stand<'_>, target: &Target, name: &str) -> Result<Row> {
    let reader = Workload::default();
    let stream = Workload::read(512 * KIB, 8);
    let medians = interleave(stand.rounds(), 1, 2, |_, side| {
        let background = (side == 1)
            .then(|| stand.generator().start(target.url(), &stream, stand.seconds() * 2.0 + 1.0))
            .transpose()?;
        if background.is_some() {
            thread::sleep(Duration::from_millis(300));
        }
        let median = target.load(stand, &reader, stand.until())?.measured.latency_us.median;
        background.map(Background::end).transpose()?;
        Ok(median)
    })?;
    let [alone, beside] = &medians[0][..] else { anyhow::bail!("two sides") };
    Ok(Row::new(
        format!("4 KiB read, depth 1, with a stream of 512-KiB reads{name}"),
        [
            Figure::new("time", Unit::Microseconds, Samples::of(beside.clone())),
            Figure::new("beside", Unit::Microseconds, Samples::of(alone.clone())),
            Figure::ratio("ratio", beside, alone).map(|figure| figure.with_bar(Some(BESIDE_BAR))),
        ],
    ))
}

/// More is asked for than there is memory for.
fn overload(stand: &Stand<'_>, _: &mut Findings) -> Result<Section> {
    let target = configured(stand, &format!("[limits]\nbuffer_memory_bytes = {OVERLOAD_BUFFER_BYTES}\n"))?;
    let workload = Workload { sessions: OVERLOAD_SESSIONS, ..Workload::read(512 * KIB, OVERLOAD_DEPTH) };
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
            let background = stand.generator().start(target.url(), &workload, stand.seconds() * 3.0 + 1.0)?;
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
    let wanted = stand.or_quick(PROBES, PROBES_QUICK) as f64;
    let (succeeded, login) = logins.map_or((0, None), |idle| (idle.sessions, Some(idle.login_us.median)));
    let bound = OVERLOAD_BUFFER_BYTES + u64::from(OVERLOAD_SESSIONS) * OVERLOAD_SESSION_BYTES;
    let mut section = Section::new("Overload, 512-KiB reads");
    section.rows.push(Row::new(
        format!("{OVERLOAD_SESSIONS} sessions, depth {OVERLOAD_DEPTH} each, 64 MiB of buffers"),
        [
            Figure::one("all together", Unit::BytesPerSecond, measured.bytes_per_s),
            Figure::one("refused as busy", Unit::Count, measured.busy as f64),
            Figure::one("largest window", Unit::Count, measured.window.max),
            Figure::one("smallest window", Unit::Count, measured.window.min)
                .map(|figure| figure.with_bar(Some(Bar::AtMost(f64::from(OVERLOAD_DEPTH - 1))))),
            Figure::one("memory on top", Unit::Bytes, peak - before)
                .map(|figure| figure.with_bar(Some(Bar::AtMost(bound as f64)))),
            Figure::one("logins meanwhile", Unit::Count, succeeded as f64)
                .map(|figure| figure.with_bar(Some(Bar::AtLeast(wanted)))),
            login.and_then(|login| Figure::one("such a login, median", Unit::Microseconds, login)),
        ],
    ));
    Ok(section)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_side_has_the_largest_median() {
        assert_eq!(best(&[vec![1.0, 9.0, 2.0], vec![5.0, 3.0, 4.0]]), [5.0, 3.0, 4.0]);
        assert!(best(&[]).is_empty());
    }
}
