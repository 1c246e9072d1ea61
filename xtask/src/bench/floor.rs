//! `bench floor`: Lunette beside a bare loop that knows just enough iSCSI to move bytes, and digests beside none.
//!
//! The loop is the yardstick: what it reaches is what sockets and page cache allow one thread.

use anyhow::Result;

use super::generator::Workload;
use super::report::{Bar, Figure, Row, Section, Unit};
use super::sample::{Samples, interleave};
use super::targets::{Floor, Sample, Target, processor_us, rates};
use super::{Findings, Stand};

/// What stands under the tables.
pub(crate) const SETTING: &str = "`write=back`, one session over loopback.";

const KIB: u64 = 1 << 10;

/// Of the bare loop's operations or bytes a second.
const RATE_BAR: Bar = Bar::AtLeast(0.95);
/// Of the bare loop's processor time for a 4-KiB read at depth 32.
const PROCESSOR_BAR: Bar = Bar::AtMost(1.15);
/// Of sendfile's processor time for a 512-KiB read.
const SENDFILE_BAR: Bar = Bar::AtMost(1.1);
/// What digests may leave of small operations, and of bandwidth.
const DIGESTS_SMALL_BAR: Bar = Bar::AtLeast(0.90);
const DIGESTS_LARGE_BAR: Bar = Bar::AtLeast(0.85);

fn workloads() -> Vec<Workload> {
    let mix = |kibibytes: u64| Workload { read_percent: 70, ..Workload::read(kibibytes * KIB, 32) };
    vec![
        Workload::read(4 * KIB, 1),
        Workload::write(4 * KIB, 1),
        Workload::read(4 * KIB, 32),
        Workload::write(4 * KIB, 32),
        Workload::read(512, 32),
        mix(8),
        mix(16),
        mix(64),
        Workload::read(512 * KIB, 8),
        Workload::write(512 * KIB, 8),
    ]
}

pub(crate) fn measure(stand: &Stand<'_>, findings: &mut Findings) -> Result<()> {
    let ours = stand.file("lunette.img")?;
    let theirs = stand.file("floor.img")?.display().to_string();
    let lunette = Target::lunette(stand, &format!("file:{},write=back", ours.display()))?;
    let compared = compare(stand, "File in the page cache", &lunette, &theirs)?;
    findings.sections.extend([compared, digests(stand, &lunette)?]);
    lunette.stop()?;

    let memory = format!("mem:{}", stand.file_bytes());
    let lunette = Target::lunette(stand, &memory)?;
    lunette.fill(stand)?;
    findings.sections.insert(1, compare(stand, "Memory", &lunette, &memory)?);
    lunette.stop()
}

/// Lunette is side 0, these follow.
const FLOORS: [Floor; 3] = [Floor::Plain, Floor::Awake, Floor::Sendfile];
const PLAIN: usize = 1;
const AWAKE: usize = 2;
const SENDFILE: usize = 3;

fn compare(stand: &Stand<'_>, title: &str, lunette: &Target, store: &str) -> Result<Section> {
    let workloads: Vec<Workload> =
        workloads().into_iter().filter(|workload| stand.wants(&workload.title())).collect();
    let is_memory = store.starts_with("mem:");
    let mut floors = Vec::new();
    for kind in FLOORS {
        // There is no file to send.
        if !(is_memory && kind == Floor::Sendfile) {
            let floor = Target::floor(stand, store, kind)?;
            if is_memory {
                // Memory that was never written is one page of zeroes, which the processor's cache has.
                floor.fill(stand)?;
            }
            floors.push((kind, floor));
        }
    }
    let run = |row: usize, side: usize| -> Result<Option<Sample>> {
        let workload: &Workload = &workloads[row];
        let target = match side.checked_sub(1) {
            None => lunette,
            Some(index) if is_asked(floors[index].0, workload) => &floors[index].1,
            Some(_) => return Ok(None),
        };
        target.load(stand, workload, stand.until()).map(Some)
    };
    let sides = floors.len() + 1;
    for row in 0..workloads.len() {
        for side in 0..sides {
            run(row, side)?;
        }
    }
    let samples = interleave(stand.rounds(), workloads.len(), sides, run)?;
    let mut section = Section::new(title);
    for (workload, sides) in workloads.iter().zip(samples) {
        let sides: Vec<Vec<Sample>> =
            sides.into_iter().map(|samples| samples.into_iter().flatten().collect()).collect();
        section.rows.push(row(workload, &sides));
    }
    Ok(section)
}

/// Where a kind of the loop has something to say: awake matters one command at a time, sendfile where bytes cost.
fn is_asked(kind: Floor, workload: &Workload) -> bool {
    match kind {
        Floor::Plain => true,
        Floor::Awake => workload.depth == 1,
        Floor::Sendfile => workload.read_percent == 100 && workload.block_bytes == 512 * KIB,
    }
}

/// `sides`: Lunette, then the floors; without a sample where one was not asked.
fn row(workload: &Workload, sides: &[Vec<Sample>]) -> Row {
    let block_bytes = workload.block_bytes;
    let unit = Unit::of_rate(block_bytes);
    let rate = |side: usize| rates(&sides[side], block_bytes);
    let processor = |side: usize| sides.get(side).map(|samples| processor_us(samples)).unwrap_or_default();
    let is_small_read = workload.read_percent == 100 && block_bytes == 4 * KIB && workload.depth == 32;
    let figure = |name: &str, side: usize| Figure::new(name, unit, Samples::of(rate(side)));
    let spent = |name: &str, side: usize| Figure::new(name, Unit::Microseconds, Samples::of(processor(side)));
    Row::new(
        workload.title(),
        [
            figure("Lunette", 0),
            figure("floor", PLAIN),
            Figure::ratio("ratio", &rate(0), &rate(PLAIN)).map(|figure| figure.with_bar(Some(RATE_BAR))),
            Figure::ratio("to a floor that stays awake", &rate(0), &rate(AWAKE)),
            spent("Lunette, processor time", 0),
            spent("floor, processor time", PLAIN),
            Figure::ratio("ratio of processor time", &processor(0), &processor(PLAIN))
                .map(|figure| figure.with_bar(is_small_read.then_some(PROCESSOR_BAR))),
            Figure::ratio("to sendfile's", &processor(0), &processor(SENDFILE))
                .map(|figure| figure.with_bar(Some(SENDFILE_BAR))),
        ],
    )
}

/// Lunette with header and data digests beside Lunette without.
fn digests(stand: &Stand<'_>, lunette: &Target) -> Result<Section> {
    let plain: Vec<Workload> = [
        Workload::read(4 * KIB, 32),
        Workload::write(4 * KIB, 32),
        Workload::read(512 * KIB, 8),
        Workload::write(512 * KIB, 8),
    ]
    .into_iter()
    .filter(|workload| stand.wants(&format!("digests {}", workload.title())))
    .collect();
    let samples = interleave(stand.rounds(), plain.len(), 2, |row, side| {
        let workload = Workload { digests: side == 1, ..plain[row].clone() };
        lunette.load(stand, &workload, stand.until())
    })?;
    let mut section = Section::new("Header and data digests");
    for (workload, sides) in plain.iter().zip(samples) {
        let block_bytes = workload.block_bytes;
        let unit = Unit::of_rate(block_bytes);
        let bar = if unit == Unit::PerSecond { DIGESTS_SMALL_BAR } else { DIGESTS_LARGE_BAR };
        let ratio = Figure::ratio("ratio", &rates(&sides[1], block_bytes), &rates(&sides[0], block_bytes));
        section.rows.push(Row::new(
            workload.title(),
            [
                Figure::new("none", unit, Samples::of(rates(&sides[0], block_bytes))),
                Figure::new("CRC32C", unit, Samples::of(rates(&sides[1], block_bytes))),
                ratio.map(|figure| figure.with_bar(Some(bar))),
            ],
        ));
    }
    Ok(section)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_floor_is_asked_where_it_has_something_to_say() {
        let asked = |kind, workload: Workload| is_asked(kind, &workload);
        assert!(asked(Floor::Awake, Workload::write(4 * KIB, 1)));
        assert!(!asked(Floor::Awake, Workload::read(4 * KIB, 32)));
        assert!(asked(Floor::Sendfile, Workload::read(512 * KIB, 8)));
        assert!(!asked(Floor::Sendfile, Workload::write(512 * KIB, 8)));
    }

    #[test]
    fn only_a_4_kib_read_at_depth_32_has_a_bar_for_processor_time() {
        let sample = |operations_per_s: f64, processor_us: f64| {
            let measured = super::super::generator::tests::measured(operations_per_s);
            vec![Sample { measured, processor_us: Some(processor_us) }]
        };
        let sides = [sample(95.0, 12.0), sample(100.0, 10.0), Vec::new()];
        let cells = |workload: Workload| -> Vec<String> {
            row(&workload, &sides).figures.iter().map(ToString::to_string).collect()
        };
        let start = ["95/s", "100/s", "0.95 ≥ 0.95", "12.0 µs", "10.0 µs"];
        assert_eq!(cells(Workload::read(4 * KIB, 32)), [&start[..], &["**1.20 > 1.15**"]].concat());
        assert_eq!(cells(Workload::write(4 * KIB, 32)), [&start[..], &["1.20"]].concat());
    }
}
