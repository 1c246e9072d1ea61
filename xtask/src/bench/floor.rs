//! `bench floor`: Lunette beside a bare loop that knows just enough iSCSI to move bytes, and digests beside none.
//!
//! The loop is the yardstick: what it reaches is what sockets and page cache allow one thread. For large reads there is
//! another, `sendfile` over TCP without iSCSI.

use std::path::Path;

use anyhow::Result;

use super::generator::Workload;
use super::report::{Bar, Figure, Row, Section, Unit};
use super::sample::{Run, Samples, interleave_turns};
use super::stream::Stream;
use super::targets::{Floor, Target};
use super::{Findings, Stand};

/// What stands under the tables.
pub(crate) const SETTING: &str = "`write=back`, one session over loopback.";

const KIB: u64 = 1 << 10;

/// Of the bare loop's operations or bytes a second.
const RATE_BAR: Bar = Bar::AtLeast(0.95);
/// Of the bare loop's processor time for a 4-KiB read at depth 32.
const PROCESSOR_BAR: Bar = Bar::AtMost(1.15);
/// Of the processor time of `sendfile` over TCP for a 512-KiB read.
const SENDFILE_BAR: Bar = Bar::AtMost(1.1);
/// What digests may leave of small operations, and of bandwidth.
const DIGESTS_SMALL_BAR: Bar = Bar::AtLeast(0.90);
const DIGESTS_LARGE_BAR: Bar = Bar::AtLeast(0.85);

pub(crate) fn measure(stand: &Stand<'_>, findings: &mut Findings) -> Result<()> {
    // One for all: how the pages of a file lie in memory alone makes up to a fifth of a difference between two.
    let image = stand.file("image")?;
    let lunette = Target::lunette(stand, &format!("file:{},write=back", image.display()))?;
    let yardsticks = Yardsticks::on_file(stand, &image)?;
    let compared = compare(stand, "File in the page cache", &lunette, &yardsticks)?;
    drop(yardsticks);
    findings.sections.extend([compared, digests(stand, "a file in the page cache", &lunette)?]);
    lunette.stop()?;

    let memory = format!("mem:{}", stand.file_bytes());
    let lunette = Target::lunette(stand, &memory)?;
    lunette.fill(stand)?;
    let yardsticks = Yardsticks::in_memory(stand, &memory, &image)?;
    findings.sections.insert(1, compare(stand, "Memory", &lunette, &yardsticks)?);
    drop(yardsticks);
    findings.sections.push(digests(stand, "memory", &lunette)?);
    lunette.stop()
}

/// Who answers in a row; the order is that of their samples.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Side {
    Lunette,
    /// The loop, which sleeps whenever there is nothing to do.
    Plain,
    /// The loop that stays awake between the commands of a shallow queue, as Lunette does.
    Awake,
    /// The loop with `sendfile`.
    Sendfile,
    /// Beside Lunette with memory: the loop on a file. The one on memory sends without copying what it has.
    OnFile,
    /// `sendfile` over TCP, without iSCSI.
    Stream,
}

const SIDES: [Side; 6] =
    [Side::Lunette, Side::Plain, Side::Awake, Side::Sendfile, Side::OnFile, Side::Stream];

impl Side {
    /// Where it has something to say: awake matters one command at a time, sendfile where bytes cost.
    fn is_asked(self, workload: &Workload) -> bool {
        match self {
            Self::Lunette | Self::Plain | Self::OnFile => true,
            Self::Awake => workload.depth == 1,
            Self::Sendfile => workload.read_percent == 100 && workload.block_bytes == 512 * KIB,
            // Who asks it throws the bytes away.
            Self::Stream => Self::Sendfile.is_asked(workload) && !workload.takes,
        }
    }
}

/// What Lunette is beside.
struct Yardsticks {
    loops: Vec<(Side, Target)>,
    stream: Option<Stream>,
}

impl Yardsticks {
    fn on_file(stand: &Stand<'_>, file: &Path) -> Result<Self> {
        let on_file = |kind| Target::floor(stand, &file.display().to_string(), kind);
        let loops = vec![
            (Side::Plain, on_file(Floor::Plain)?),
            (Side::Awake, on_file(Floor::Awake)?),
            (Side::Sendfile, on_file(Floor::Sendfile)?),
        ];
        Ok(Self { loops, stream: Some(Stream::start(stand, file)?) })
    }

    fn in_memory(stand: &Stand<'_>, memory: &str, file: &Path) -> Result<Self> {
        let mut loops = Vec::new();
        for (side, kind) in [(Side::Plain, Floor::Plain), (Side::Awake, Floor::Awake)] {
            let target = Target::floor(stand, memory, kind)?;
            // Memory that was never written is one page of zeroes, which the processor's cache has.
            target.fill(stand)?;
            loops.push((side, target));
        }
        loops.push((Side::OnFile, Target::floor(stand, &file.display().to_string(), Floor::Plain)?));
        Ok(Self { loops, stream: None })
    }
}

fn compare(stand: &Stand<'_>, title: &str, lunette: &Target, yardsticks: &Yardsticks) -> Result<Section> {
    let mut workloads = rows();
    workloads.retain(|workload| stand.wants(&row_title(workload)));
    let run = |row: usize, side: usize| -> Result<Option<Run>> {
        let (workload, side) = (&workloads[row], SIDES[side]);
        if !side.is_asked(workload) {
            return Ok(None);
        }
        let target = match side {
            Side::Lunette => Some(lunette),
            Side::Stream => {
                let streamed = yardsticks
                    .stream
                    .as_ref()
                    .map(|stream| stream.read(stand, workload.depth, stand.turn_seconds()))
                    .transpose()?;
                return Ok(streamed.map(|it| Run { rate: it.bytes_per_s, processor_us: it.processor_us }));
            }
            _ => yardsticks.loops.iter().find(|(found, _)| *found == side).map(|(_, target)| target),
        };
        let Some(target) = target else { return Ok(None) };
        Ok(Some(target.load(stand, workload, stand.turn())?.run(workload.block_bytes)))
    };
    let runs = interleave_turns(stand.rounds(), stand.turns(), workloads.len(), SIDES.len(), run)?;
    let mut section = Section::new(title);
    for (workload, sides) in workloads.iter().zip(runs) {
        section.rows.push(row(workload, &sides));
    }
    Ok(section)
}

/// What an initiator takes, and the long ones of it thrown away as well.
fn rows() -> Vec<Workload> {
    let thrown_away = Workload::compared().into_iter().filter_map(Workload::thrown_away);
    Workload::compared().into_iter().chain(thrown_away).collect()
}

fn row_title(workload: &Workload) -> String {
    let manner = if workload.takes { "" } else { ", thrown away" };
    format!("{}{manner}", workload.title())
}

/// `sides` in the order of [`SIDES`]; without a run where one was not asked.
fn row(workload: &Workload, sides: &[Vec<Run>]) -> Row {
    let unit = Unit::of_rate(workload.block_bytes);
    let of = |side: Side| sides.get(side as usize).map(Vec::as_slice).unwrap_or_default();
    let rates = |side: Side| Run::rates(of(side));
    let processor = |side: Side| Run::processor_us(of(side));
    let is_small_read =
        workload.read_percent == 100 && workload.block_bytes == 4 * KIB && workload.depth == 32;
    let rate = |name: &str, side: Side| Figure::new(name, unit, Samples::of(rates(side)));
    let spent = |name: &str, side: Side| Figure::new(name, Unit::Microseconds, Samples::of(processor(side)));
    let of_rate = |name: &str, side: Side, bar: Option<Bar>| {
        Figure::ratio(name, &rates(Side::Lunette), &rates(side)).map(|figure| figure.with_bar(bar))
    };
    let of_spent = |name: &str, side: Side, bar: Option<Bar>| {
        Figure::ratio(name, &processor(Side::Lunette), &processor(side)).map(|figure| figure.with_bar(bar))
    };
    Row::new(
        row_title(workload),
        [
            rate("Lunette", Side::Lunette),
            rate("floor", Side::Plain),
            of_rate("ratio", Side::Plain, Some(RATE_BAR)),
            of_rate("to a floor that stays awake", Side::Awake, Some(RATE_BAR)),
            of_rate("to a floor on a file", Side::OnFile, None),
            spent("Lunette, processor time", Side::Lunette),
            spent("floor, processor time", Side::Plain),
            of_spent("ratio of processor time", Side::Plain, is_small_read.then_some(PROCESSOR_BAR)),
            of_spent("to a floor's with sendfile", Side::Sendfile, None),
            rate("sendfile over TCP", Side::Stream),
            spent("sendfile over TCP, processor time", Side::Stream),
            of_spent("to that of sendfile over TCP", Side::Stream, Some(SENDFILE_BAR)),
        ],
    )
}

/// Lunette with header and data digests beside Lunette without. Who checks a digest has to take the data into memory, so it does
/// that without one, too, where the bar stands.
fn digests(stand: &Stand<'_>, store: &str, lunette: &Target) -> Result<Section> {
    let plain: Vec<Workload> = [
        Workload::read(4 * KIB, 32),
        Workload::write(4 * KIB, 32),
        Workload::read(512 * KIB, 8),
        Workload::write(512 * KIB, 8),
    ]
    .into_iter()
    .map(Workload::taken)
    .filter(|workload| stand.wants(&format!("digests {}", workload.title())))
    .collect();
    let runs = interleave_turns(stand.rounds(), stand.turns(), plain.len(), 3, |row, side| {
        let workload = match side {
            0 => Workload { takes: false, ..plain[row].clone() },
            1 => plain[row].clone(),
            _ => Workload { digests: true, ..plain[row].clone() },
        };
        Ok(Some(lunette.load(stand, &workload, stand.turn())?.run(workload.block_bytes)))
    })?;
    let mut section = Section::new(format!("Header and data digests, {store}"));
    for (workload, sides) in plain.iter().zip(runs) {
        let unit = Unit::of_rate(workload.block_bytes);
        let bar = if unit == Unit::PerSecond { DIGESTS_SMALL_BAR } else { DIGESTS_LARGE_BAR };
        let [thrown, taken, digested] = [0, 1, 2].map(|side| Run::rates(&sides[side]));
        let ratio = Figure::ratio("CRC32C / none", &digested, &taken);
        section.rows.push(Row::new(
            workload.title(),
            [
                Figure::new("none, reads thrown away", unit, Samples::of(thrown.clone())),
                Figure::new("none", unit, Samples::of(taken)),
                Figure::new("CRC32C", unit, Samples::of(digested.clone())),
                ratio.map(|figure| figure.with_bar(Some(bar))),
                Figure::ratio("CRC32C / thrown away", &digested, &thrown),
            ],
        ));
    }
    Ok(section)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_side_has_its_place_and_is_asked_where_it_has_something_to_say() {
        assert!(SIDES.iter().enumerate().all(|(place, side)| *side as usize == place));
        let asked = |side: Side, workload: Workload| side.is_asked(&workload);
        assert!(asked(Side::Awake, Workload::write(4 * KIB, 1)));
        assert!(!asked(Side::Awake, Workload::read(4 * KIB, 32)));
        for side in [Side::Sendfile, Side::Stream] {
            assert!(asked(side, Workload::read(512 * KIB, 8)) && asked(side, Workload::read(512 * KIB, 32)));
            assert!(!asked(side, Workload::write(512 * KIB, 8)) && !asked(side, Workload::read(4 * KIB, 32)));
        }
        let taken = || Workload::read(512 * KIB, 8).taken();
        assert!(asked(Side::Sendfile, taken()) && !asked(Side::Stream, taken()));
    }

    #[test]
    fn each_row_has_a_title_of_its_own() {
        let mut titles: Vec<String> = rows().iter().map(row_title).collect();
        let thrown_away = titles.iter().filter(|title| title.ends_with(", thrown away")).count();
        titles.sort();
        titles.dedup();
        assert_eq!((titles.len(), thrown_away), (15, 3), "{titles:?}");
    }

    fn runs(rate: f64, processor_us: f64) -> Vec<Run> {
        vec![Run { rate, processor_us: Some(processor_us) }]
    }

    fn cells(workload: &Workload, sides: &[Vec<Run>]) -> Vec<String> {
        row(workload, sides).figures.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn only_a_4_kib_read_at_depth_32_has_a_bar_for_processor_time() {
        let sides = [runs(95.0, 12.0), runs(100.0, 10.0)];
        let start = ["95/s", "100/s", "0.95 ≥ 0.95", "12.0 µs", "10.0 µs"];
        assert_eq!(cells(&Workload::read(4 * KIB, 32), &sides), [&start[..], &["**1.20 > 1.15**"]].concat());
        assert_eq!(cells(&Workload::write(4 * KIB, 32), &sides), [&start[..], &["1.20"]].concat());
    }

    #[test]
    fn who_stays_awake_has_the_same_bar_and_sendfile_over_tcp_the_one_of_large_reads() {
        let awake = [runs(90.0, 1.0), runs(50.0, 1.0), runs(100.0, 1.0), vec![], runs(60.0, 1.0)];
        let cells_awake = cells(&Workload::read(4 * KIB, 1), &awake);
        assert_eq!(cells_awake[2..5], ["1.80 ≥ 0.95", "**0.90 < 0.95**", "1.50"]);
        let large = [runs(9e8, 12.0), runs(9e8, 40.0), vec![], runs(9e8, 16.0), vec![], runs(9e8, 10.0)];
        let cells_large = cells(&Workload::read(512 * KIB, 8), &large);
        assert_eq!(cells_large[5..], ["0.30", "0.75", "900 MB/s", "10.0 µs", "**1.20 > 1.10**"]);
    }
}
