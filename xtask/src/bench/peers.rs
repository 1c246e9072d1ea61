//! `bench peers`: Lunette beside other targets, by foreign tools and by our own generator.
//!
//! tgtd and istgt come from Debian packages; any other is a URL in the environment (`targets::Target::foreign`).

use anyhow::{Result, anyhow, ensure};
use clap::Args;

use super::generator::Workload;
use super::report::{Bar, Figure, Row, Section, Unit};
use super::sample::{Samples, interleave};
use super::targets::{PEER_PREFIX, Target};
use super::{Findings, Stand, tools};

/// What stands under the tables.
pub(crate) const SETTING: &str =
    "Each with a file in the page cache and a write cache (`write=back`), one session over loopback.";

/// The same with `--memory`.
pub(crate) const SETTING_MEMORY: &str = "Lunette with a memory unit, tgtd and istgt with a file in the page cache, others with what they \
                                         were given; one session over loopback.";

/// The issue asks for "a fraction" of SPDK's processor time; a half is the largest that the word allows.
const SPDK_PROCESSOR_BAR: Bar = Bar::AtMost(0.5);

/// How to measure.
#[derive(Debug, Clone, Args)]
#[group(skip)]
pub(crate) struct Options {
    /// Lunette serves memory instead of a file, for a comparison with peers that do
    #[arg(long)]
    pub(crate) memory: bool,
    #[command(flatten)]
    pub(crate) common: super::Options,
}

/// A tool and what it does.
enum Job {
    Tool(tools::Row),
    Load(Workload),
}

/// What one run gave.
#[derive(Debug, Clone)]
struct Run {
    operations_per_s: f64,
    /// The target's, for each operation.
    processor_us: Option<f64>,
}

impl Job {
    fn title(&self) -> String {
        match self {
            Self::Tool(row) => format!("{}: {}", row.tool_name(), row.workload()),
            Self::Load(workload) => format!("lunette-bench: {}", workload.title()),
        }
    }

    /// (bytes a block, depth, true for writes)
    fn shape(&self) -> (u64, u32, bool) {
        match self {
            Self::Tool(row) => row.shape(),
            Self::Load(workload) => (workload.block_bytes, workload.depth, workload.read_percent == 0),
        }
    }

    /// How many operations the tool is to do, where it counts them.
    fn calibrate(&self, target: &Target) -> Result<u64> {
        let _awake = target.awake();
        match self {
            Self::Tool(row) => row.calibrate(target.url()),
            Self::Load(_) => Ok(0),
        }
    }

    /// What does it, with its version; our own generator is of the same commit as Lunette.
    fn program(&self) -> Option<String> {
        match self {
            Self::Tool(row) => Some(row.program()),
            Self::Load(_) => None,
        }
    }

    fn run(&self, stand: &Stand<'_>, target: &Target, count: u64) -> Result<Run> {
        let _awake = target.awake();
        match self {
            Self::Tool(row) => {
                row.run(target.url(), count).map(|rate| Run { operations_per_s: rate, processor_us: None })
            }
            Self::Load(workload) => {
                let sample = target.load(stand, workload, stand.until())?;
                let operations_per_s = sample.measured.operations_per_s;
                Ok(Run { operations_per_s, processor_us: sample.processor_us })
            }
        }
    }
}

/// `LUNETTE_BENCH_PEER_SPDK`, `_spdk`, `_SPDK_AIO`: its name in any case, and what else tells two of them apart.
fn is_spdk(peer: &str) -> bool {
    peer.get(..4).is_some_and(|start| start.eq_ignore_ascii_case("spdk"))
}

/// What Lunette should reach beside a target: the issue's table for tgtd, level with SPDK.
fn bar(peer: &str, (block_bytes, depth, is_write): (u64, u32, bool)) -> Option<Bar> {
    let times = match (peer, block_bytes, depth, is_write) {
        (peer, ..) if is_spdk(peer) => 1.0,
        ("tgtd", 4096, 1, _) => 2.0,
        ("tgtd", 4096, 32, false) => 3.0,
        ("tgtd", 4096, 32, true) => 2.5,
        ("tgtd", 524_288, _, false) => 1.6,
        ("tgtd", 524_288, _, true) => 5.0,
        _ => return None,
    };
    Some(Bar::AtLeast(times))
}

/// Of a target's processor time for an operation.
fn processor_bar(peer: &str) -> Option<Bar> {
    is_spdk(peer).then_some(SPDK_PROCESSOR_BAR)
}

/// How many bars stand on the figures of this target in this row.
fn bars(peer: &str, has_process: bool, job: &Job) -> usize {
    let has_processor_bar = has_process && matches!(job, Job::Load(_)) && processor_bar(peer).is_some();
    usize::from(bar(peer, job.shape()).is_some()) + usize::from(has_processor_bar)
}

fn jobs(stand: &Stand<'_>) -> Result<Vec<Job>> {
    let mut jobs: Vec<Job> = tools::rows(stand.seconds()).into_iter().map(Job::Tool).collect();
    jobs.extend(Workload::compared().into_iter().map(Job::Load));
    jobs.retain(|job| stand.wants(&job.title()));
    ensure!(!jobs.is_empty(), "no row has that name");
    Ok(jobs)
}

fn targets(stand: &Stand<'_>, jobs: &[Job], lunette: Target, findings: &mut Findings) -> Result<Vec<Target>> {
    let bars = |peer: &str, has_process| jobs.iter().map(|job| bars(peer, has_process, job)).sum::<usize>();
    let mut targets = vec![lunette];
    let directory = stand.directory.path();
    match Target::tgtd(directory, &stand.file("tgtd.img")?) {
        Ok(tgtd) => targets.push(tgtd),
        Err(error) => findings.skip_bars("tgtd", bars("tgtd", true), &error),
    }
    match Target::istgt(directory, &stand.file("istgt.img")?) {
        Ok(istgt) => targets.push(istgt),
        Err(error) => findings.skip("istgt", &error),
    }
    targets.extend(Target::foreign());
    if !targets.iter().any(|target| is_spdk(target.name())) {
        let how = anyhow!(
            "none is given; start its iscsi_tgt, and name it with {PEER_PREFIX}SPDK=iscsi://HOST:PORT/NAME/LUN and \
             {PEER_PREFIX}SPDK_PID=PID (docs/guide/measure.md, \"Other targets\")"
        );
        findings.skip_bars(&format!("SPDK in {} rows", jobs.len()), bars("SPDK", true), &how);
    }
    for target in targets.iter().filter(|target| is_spdk(target.name()) && !target.has_process()) {
        let how = anyhow!("its process is not known; {PEER_PREFIX}{}_PID=PID names it", target.name());
        let count = bars(target.name(), true) - bars(target.name(), false);
        findings.skip_bars(&format!("{}'s processor time", target.name()), count, &how);
    }
    Ok(targets)
}

pub(crate) fn measure_file(stand: &Stand<'_>, findings: &mut Findings) -> Result<()> {
    // tgtd declares a write cache and answers from the page cache by default: the same contract as write=back.
    let lunette =
        Target::lunette(stand, &format!("file:{},write=back", stand.file("lunette.img")?.display()))?;
    measure(stand, lunette, findings)
}

pub(crate) fn measure_memory(stand: &Stand<'_>, findings: &mut Findings) -> Result<()> {
    let lunette = Target::lunette(stand, &format!("mem:{}", stand.file_bytes()))?;
    lunette.fill(stand)?;
    measure(stand, lunette, findings)
}

fn measure(stand: &Stand<'_>, lunette: Target, findings: &mut Findings) -> Result<()> {
    let jobs = jobs(stand)?;
    let targets = targets(stand, &jobs, lunette, findings)?;
    jobs.iter().filter_map(Job::program).for_each(|program| findings.ran(&program));
    targets.iter().filter_map(Target::version).for_each(|version| findings.ran(&version));
    let runs = run_all(stand, findings, &jobs, &targets)?;
    let names: Vec<&str> = targets.iter().map(Target::name).collect();
    let mut rates_section = Section::new("Tool and workload");
    let mut processor_section = Section::new("Target's processor time for each operation");
    for (job, sides) in jobs.iter().zip(runs) {
        let sides: Vec<Vec<Run>> =
            sides.into_iter().map(|runs| runs.into_iter().flatten().collect()).collect();
        // What dropped out has told why, but not what that was worth.
        for (target, _) in targets.iter().zip(&sides).filter(|(_, runs)| runs.is_empty()) {
            findings.bars_skipped += bars(target.name(), target.has_process(), job);
        }
        rates_section.rows.push(rates_row(job, &names, &sides));
        if let Job::Load(workload) = job {
            processor_section.rows.push(processor_row(workload, &names, &sides));
        }
    }
    findings.sections.extend([rates_section, processor_section]);
    if let Some(lunette) = targets.into_iter().next() {
        lunette.stop()?;
    }
    Ok(())
}

/// By job, target and round. A target that does not get through a row drops out of it; Lunette must.
fn run_all(
    stand: &Stand<'_>,
    findings: &mut Findings,
    jobs: &[Job],
    targets: &[Target],
) -> Result<Vec<Vec<Vec<Option<Run>>>>> {
    let mut drop_out = |row: usize, side: usize, error: anyhow::Error| {
        let target: &Target = &targets[side];
        if side == 0 {
            return Err(error);
        }
        findings.skip(&format!("{}, {}", target.name(), jobs[row].title()), &error);
        Ok(None)
    };
    // A count for each tool and target, and a run to warm up.
    let mut counts: Vec<Vec<Option<u64>>> = vec![Vec::new(); jobs.len()];
    for (row, job) in jobs.iter().enumerate() {
        for (side, target) in targets.iter().enumerate() {
            let count = job.calibrate(target).and_then(|count| job.run(stand, target, count).map(|_| count));
            counts[row].push(count.map(Some).or_else(|error| drop_out(row, side, error))?);
        }
    }
    interleave(stand.rounds(), jobs.len(), targets.len(), |row, side| {
        let Some(count) = counts[row][side] else { return Ok(None) };
        let run = jobs[row].run(stand, &targets[side], count);
        run.map(Some).or_else(|error| {
            drop_out(row, side, error)?;
            counts[row][side] = None;
            Ok(None)
        })
    })
}

fn rates_row(job: &Job, names: &[&str], sides: &[Vec<Run>]) -> Row {
    let (block_bytes, ..) = job.shape();
    let unit = Unit::of_rate(block_bytes);
    let factor = if unit == Unit::PerSecond { 1.0 } else { block_bytes as f64 };
    let values: Vec<Vec<f64>> =
        sides.iter().map(|runs| runs.iter().map(|run| run.operations_per_s * factor).collect()).collect();
    let mut figures: Vec<Option<Figure>> = names
        .iter()
        .zip(&values)
        .map(|(name, values)| Figure::new(*name, unit, Samples::of(values.clone())))
        .collect();
    for (name, theirs) in names.iter().zip(&values).skip(1) {
        let ratio = Figure::ratio(format!("Lunette / {name}"), &values[0], theirs);
        figures.push(ratio.map(|figure| figure.with_bar(bar(name, job.shape()))));
    }
    Row::new(job.title(), figures)
}

fn processor_row(workload: &Workload, names: &[&str], sides: &[Vec<Run>]) -> Row {
    let spent = |runs: &Vec<Run>| runs.iter().filter_map(|run| run.processor_us).collect();
    let values: Vec<Vec<f64>> = sides.iter().map(spent).collect();
    let mut figures: Vec<Option<Figure>> = names
        .iter()
        .zip(&values)
        .map(|(name, values)| Figure::new(*name, Unit::Microseconds, Samples::of(values.clone())))
        .collect();
    for (name, theirs) in names.iter().zip(&values).skip(1) {
        let ratio = Figure::ratio(format!("Lunette / {name}"), &values[0], theirs);
        figures.push(ratio.map(|figure| figure.with_bar(processor_bar(name))));
    }
    Row::new(workload.title(), figures)
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIB: u64 = 1 << 10;

    #[test]
    fn the_bars_of_the_issue() {
        let read = Job::Load(Workload::read(4 * KIB, 32));
        let write = Job::Load(Workload::write(512 * KIB, 8));
        assert_eq!(bar("tgtd", read.shape()), Some(Bar::AtLeast(3.0)));
        assert_eq!(bar("tgtd", write.shape()), Some(Bar::AtLeast(5.0)));
        for name in ["SPDK", "spdk", "Spdk_aio"] {
            assert_eq!(bar(name, write.shape()), Some(Bar::AtLeast(1.0)));
            assert_eq!(processor_bar(name), Some(Bar::AtMost(0.5)));
            assert_eq!((bars(name, true, &write), bars(name, false, &write)), (2, 1));
        }
        assert_eq!(processor_bar("tgtd"), None);
        assert_eq!((bars("tgtd", true, &read), bars("istgt", true, &read)), (1, 0));
        assert_eq!(bar("istgt", read.shape()), None);
    }

    #[test]
    fn a_row_names_every_side_and_every_ratio() {
        let run = |operations_per_s| Run { operations_per_s, processor_us: None };
        let job = Job::Load(Workload::read(4 * KIB, 1));
        let row = rates_row(&job, &["Lunette", "tgtd", "istgt"], &[vec![run(30.0)], vec![run(10.0)], vec![]]);
        let cells: Vec<String> = row.figures.iter().map(ToString::to_string).collect();
        // istgt did not get through: no figure of it, and no ratio.
        assert_eq!(cells, ["30/s", "10/s", "3.00 ≥ 2.00"]);
        assert_eq!(row.name, "lunette-bench: 4 KiB random read, depth 1");
    }

    #[test]
    fn processor_time_has_a_ratio_and_beside_spdk_a_bar() {
        let run = |processor_us| vec![Run { operations_per_s: 1.0, processor_us }];
        let sides = [run(Some(4.0)), run(Some(16.0)), run(Some(5.0)), run(None)];
        let row = processor_row(&Workload::read(4 * KIB, 1), &["Lunette", "tgtd", "spdk", "gotgt"], &sides);
        let cells: Vec<String> = row.figures.iter().map(ToString::to_string).collect();
        assert_eq!(cells, ["4.0 µs", "16.0 µs", "5.0 µs", "0.25", "**0.80 > 0.50**"]);
    }
}
