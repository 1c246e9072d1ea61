//! How long one command takes: the first of a session, the slowest of many, and one beside a stream.

use std::fs::OpenOptions;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use anyhow::Result;
use lunette_tests::lunette::Lunette;

use super::super::generator::{Background, MutualChap, Until, Workload};
use super::super::report::{Bar, Figure, Row, Section, Unit};
use super::super::sample::{Samples, interleave};
use super::super::targets::Target;
use super::super::{Findings, Stand};
use super::{KIB, configured, probes};

const FIRST_BLOCK_BAR: Bar = Bar::AtMost(3_000.0);
const FIRST_BLOCK_CHAP_BAR: Bar = Bar::AtMost(5_000.0);
/// The 99.9th percentile over the median, at depth 1.
const TAIL_BAR: Bar = Bar::AtMost(5.0);
/// A reader's median beside a stream over the one without.
const BESIDE_BAR: Bar = Bar::AtMost(3.0);

pub(super) fn measure(stand: &Stand<'_>, _: &mut Findings) -> Result<Section> {
    let mut section = Section::new("Latency");
    let target = Target::lunette(stand, "mem:256M")?;
    section.rows.push(first_block(stand, &target, &Workload::default(), "", FIRST_BLOCK_BAR)?);
    let (authenticating, workload) = authenticating(stand)?;
    let row = first_block(stand, &authenticating, &workload, ", mutual CHAP", FIRST_BLOCK_CHAP_BAR)?;
    section.rows.push(row);
    authenticating.stop()?;
    section.rows.push(tail(stand, &target)?);
    target.stop()?;
    // Units 1 and 2; unit 0 is memory.
    let file_unit = |number: usize, name: &str, write: &str| {
        let path = stand.file(name)?.display().to_string();
        Ok::<_, anyhow::Error>(format!(
            "[[target.lun]]\nnumber = {number}\nstore = \"file:{path}\"\nwrite = \"{write}\"\n"
        ))
    };
    let units = file_unit(1, "scale.img", "back")? + &file_unit(2, "stable.img", "through")?;
    // One reactor has both; two may have one each.
    for (reactors, limits) in [("", ""), (", one reactor", "[reactors]\ncount = 1\n")] {
        let mut target = configured(stand, &format!("{units}{limits}"))?;
        for (number, store) in [(0, ""), (1, ", on a file")] {
            target = target.unit(number);
            for stream in [Workload::read(512 * KIB, 8), Workload::write(512 * KIB, 8)] {
                let verb = if stream.read_percent == 0 { "writes" } else { "reads" };
                let name = format!("a stream of 512-KiB {verb}{store}{reactors}");
                section.rows.push(beside(stand, &target, (target.url(), &stream), &name)?);
            }
        }
        target = target.unit(2);
        let stable = target.url().to_owned();
        target = target.unit(0);
        let name = format!("4-KiB writes to a file, depth 1, write=through{reactors}");
        section.rows.push(beside(stand, &target, (&stable, &Workload::write(4 * KIB, 1)), &name)?);
        target.stop()?;
    }
    Ok(section)
}

/// From `connect` to the data of a first read, one new session after the other.
fn first_block(stand: &Stand<'_>, target: &Target, workload: &Workload, name: &str, bar: Bar) -> Result<Row> {
    let count = probes(stand);
    let workload = Workload { sessions: u32::try_from(count)?, ..workload.clone() };
    let mut times = Vec::new();
    for _ in 0..stand.rounds() {
        times.push(target.load(stand, &workload, Until::Count(count))?.measured.first_block_us);
    }
    let medians = Samples::of(times.iter().map(|time| time.median).collect());
    let tails = Samples::of(times.iter().map(|time| time.p99).collect());
    let figure = |name: &str, samples| {
        Figure::new(name, Unit::Microseconds, samples).map(|figure| figure.with_bar(Some(bar)))
    };
    Ok(Row::new(
        format!("from login to the first block{name}"),
        [figure("time", medians), figure("time, 99 %", tails)],
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

/// The median of a small reader with a load beside it on some unit of the same target, and without.
fn beside(stand: &Stand<'_>, target: &Target, (url, load): (&str, &Workload), name: &str) -> Result<Row> {
    let reader = Workload::default();
    let medians = interleave(stand.rounds(), 1, 2, |_, side| {
        let background = (side == 1)
            .then(|| stand.generator().start(url, load, stand.seconds() * 2.0 + 1.0))
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
        format!("4 KiB read, depth 1, with {name}"),
        [
            Figure::new("time", Unit::Microseconds, Samples::of(beside.clone())),
            Figure::new("beside", Unit::Microseconds, Samples::of(alone.clone())),
            Figure::ratio("ratio", beside, alone).map(|figure| figure.with_bar(Some(BESIDE_BAR))),
        ],
    ))
}
