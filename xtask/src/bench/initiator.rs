//! `bench initiator`: `lunette bench` beside libiscsi's `iscsi-perf` and fio's libiscsi engine on the same target: operations for the
//! same processor time of the initiator.

use std::path::Path;

use anyhow::{Context, Result, anyhow, ensure};
use lunette_tests::packages::find_program;

use super::generator::Workload;
use super::report::{Bar, Figure, Row, Section, Unit};
use super::sample::{Samples, interleave};
use super::targets::Target;
use super::{Findings, Stand, own, tools};

/// What stands under the table.
pub(crate) const SETTING: &str = "Both beside one Lunette with a memory unit, one session over loopback, random 4-KiB and sequential 512-KiB \
                                  operations; processor time is that of the whole initiator process, login included.";

const SMALL_BYTES: u64 = 4 << 10;
const DEEP: u32 = 32;
/// Times libiscsi's operations for the same processor time, 4 KiB at depth 32.
const BAR: Bar = Bar::AtLeast(1.5);

/// The kernel's clock ticks of /proc, which are hundredths of a second on every system that Linux runs on today.
const TICKS_PER_S: f64 = 100.0;

/// As the tools are called in tables.
const ISCSI_PERF: &str = "iscsi-perf";
const FIO: &str = "fio libiscsi";

const OURS: usize = 0;
const LIBISCSI: usize = 1;

/// What one run gave.
#[derive(Debug, Clone, Copy)]
struct Run {
    operations_per_s: f64,
    processor_us: f64,
}

pub(crate) fn measure(stand: &Stand<'_>, findings: &mut Findings) -> Result<()> {
    ensure!(find_program("iscsi-perf").is_some(), "iscsi-perf is missing: install libiscsi-bin");
    let target = Target::lunette(stand, &format!("mem:{}", stand.file_bytes()))?;
    // Or whoever writes first waits for the target's memory to be made.
    target.fill(stand)?;
    for tool in [ISCSI_PERF, FIO] {
        let mut rows = tools::rows(stand.seconds());
        rows.retain(|row| row.tool_name() == tool);
        if rows.is_empty() {
            let reason = anyhow!("no fio with this engine: Debian's has none; FIO names another");
            findings.skip(tool, &reason);
        }
        rows.retain(|row| stand.wants(&row.workload()));
        if let Some(row) = rows.first() {
            findings.ran(&row.program());
        }
        let results = interleave(stand.rounds(), rows.len(), 2, |row, side| match side {
            OURS => ours(stand.lunette(), target.url(), &rows[row], stand.seconds()),
            _ => libiscsi(&rows[row], target.url()),
        })?;
        let mut section = Section::new(format!("Initiators: {tool}"));
        section.rows.extend(rows.iter().zip(&results).map(|(row, results)| table_row(row, results)));
        if !section.rows.is_empty() {
            findings.sections.push(section);
        }
    }
    target.stop()
}

fn table_row(row: &tools::Row, results: &[Vec<Run>]) -> Row {
    let (block_bytes, depth, _) = row.shape();
    let rates = |side: usize| -> Vec<f64> {
        let scale = if Unit::of_rate(block_bytes) == Unit::PerSecond { 1.0 } else { block_bytes as f64 };
        results[side].iter().map(|run| run.operations_per_s * scale).collect()
    };
    let costs = |side: usize| -> Vec<f64> { results[side].iter().map(|run| run.processor_us).collect() };
    let bar = (block_bytes == SMALL_BYTES && depth == DEEP).then_some(BAR);
    let (unit, tool) = (Unit::of_rate(block_bytes), row.tool_name());
    Row::new(
        row.workload(),
        [
            Figure::new("lunette bench", unit, Samples::of(rates(OURS))),
            Figure::new(tool, unit, Samples::of(rates(LIBISCSI))),
            Figure::new("processor, lunette bench", Unit::Microseconds, Samples::of(costs(OURS))),
            Figure::new(format!("processor, {tool}"), Unit::Microseconds, Samples::of(costs(LIBISCSI))),
            Figure::ratio("rate / rate", &rates(OURS), &rates(LIBISCSI)),
            // As many operations more as each costs less.
            Figure::ratio("for the same processor time", &costs(LIBISCSI), &costs(OURS))
                .map(|figure| figure.with_bar(bar)),
        ],
    )
}

/// Processor time of all children that have been waited for, in seconds: fields 16 and 17 of /proc/self/stat (proc(5)).
fn children_s() -> Result<f64> {
    let stat = std::fs::read_to_string("/proc/self/stat")?;
    let (_, rest) = stat.rsplit_once(')').context("no name in /proc/self/stat")?;
    let ticks: Vec<f64> = rest.split_whitespace().skip(13).take(2).flat_map(str::parse).collect();
    ensure!(ticks.len() == 2, "/proc/self/stat ends early");
    Ok((ticks[0] + ticks[1]) / TICKS_PER_S)
}

fn ours(lunette: &Path, url: &str, row: &tools::Row, seconds: f64) -> Result<Run> {
    let (block_bytes, depth, is_write) = row.shape();
    let workload =
        if is_write { Workload::write(block_bytes, depth) } else { Workload::read(block_bytes, depth) };
    let before = children_s()?;
    // As long as iscsi-perf, which counts whole seconds.
    let measured = own::load(lunette, url, &workload, seconds.ceil().max(1.0) * 2.0)?;
    let processor_s = children_s()? - before;
    let own::Measured { operations, operations_per_s } = measured;
    Ok(Run { operations_per_s, processor_us: processor_s * 1e6 / operations.max(1.0) })
}

fn libiscsi(row: &tools::Row, url: &str) -> Result<Run> {
    let before = children_s()?;
    let began = std::time::Instant::now();
    let operations_per_s = row.run(url, 0)?;
    let operations = row.operations(operations_per_s, began.elapsed().as_secs_f64());
    let processor_s = children_s()? - before;
    Ok(Run { operations_per_s, processor_us: processor_s * 1e6 / operations.max(1.0) })
}
