//! Lunette and tgtd side by side in one run: the same files, the same tools, rounds interleaved, so that a change of the
//! machine's mood meets both. A smoke test of speed, not a study: the lab does those.

mod host;
mod tools;

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clap::Args;
use lunette_tests::lunette::Lunette;
use lunette_tests::tgtd::Tgtd;
use serde::Serialize;

use crate::suites;
use crate::workspace::Workspace;
use tools::{Row, rows};

/// Both files together stay in the page cache of any machine that builds this.
const FILE_BYTES: u64 = 512 << 20;

/// How to measure.
#[derive(Debug, Args)]
pub(crate) struct Options {
    /// One short round: shows that everything works, measures nothing
    #[arg(long)]
    quick: bool,
    /// How many rounds; the table has their median
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Only rows whose tool or workload contains this
    #[arg(long, value_name = "TEXT")]
    only: Option<String>,
    /// Print JSON instead of a Markdown table
    #[arg(long)]
    json: bool,
    /// Where the two disk files are made; without it, below Cargo's target directory
    #[arg(long, value_name = "DIRECTORY")]
    directory: Option<PathBuf>,
    /// Further options of `--lun` for Lunette, such as "engine=sync"
    #[arg(long, value_name = "OPTIONS")]
    lun_options: Option<String>,
}

/// What one target did in one row, in operations a second.
#[derive(Debug, Serialize)]
struct Samples {
    median: f64,
    /// (largest - smallest) / median.
    spread: f64,
    samples: Vec<f64>,
}

#[derive(Debug, Serialize)]
struct Measured {
    tool: &'static str,
    workload: String,
    block_bytes: u64,
    lunette: Samples,
    tgtd: Samples,
    ratio: f64,
}

#[derive(Debug, Serialize)]
struct Outcome {
    host: host::Facts,
    options: String,
    rounds: usize,
    rows: Vec<Measured>,
}

/// Builds, measures and prints.
pub(crate) fn smoke(workspace: &Workspace, options: &Options) -> Result<()> {
    let binary = suites::build_quietly(workspace)?;
    let parent = match &options.directory {
        Some(directory) => directory.clone(),
        None => workspace.target_directory()?,
    };
    let directory = tempfile::Builder::new().prefix("bench-smoke").tempdir_in(parent)?;
    let rows = chosen(options)?;
    let outcome = measure(workspace, &binary, directory.path(), options, rows)?;
    if options.json {
        println!("{}", serde_json::to_string_pretty(&outcome)?);
    } else {
        println!("{}", markdown(&outcome));
    }
    Ok(())
}

fn chosen(options: &Options) -> Result<Vec<Row>> {
    let mut rows = rows(if options.quick { 0.3 } else { 1.0 });
    if let Some(only) = &options.only {
        rows.retain(|row| row.tool_name().contains(only) || row.workload().contains(only));
    }
    ensure!(!rows.is_empty(), "no row to measure: is libiscsi-bin or qemu-utils installed?");
    Ok(rows)
}

fn measure(
    workspace: &Workspace,
    binary: &Path,
    directory: &Path,
    options: &Options,
    rows: Vec<Row>,
) -> Result<Outcome> {
    let host = host::Facts::collect(workspace, binary);
    let (ours, theirs) = (directory.join("lunette.img"), directory.join("tgtd.img"));
    fill(&ours)?;
    fill(&theirs)?;
    // tgtd declares a write cache and answers from the page cache by default: the same contract as write=back.
    let mut lun = format!("0=file:{},write=back", ours.display());
    if let Some(more) = &options.lun_options {
        lun.push(',');
        lun.push_str(more);
    }
    let lunette = Lunette::command(binary).luns([&lun]).start()?;
    let mut tgtd = Tgtd::start(&directory.join("tgtd.log"))?;
    let urls = [lunette.url(0), tgtd.add_file(&theirs)?];

    let rounds = if options.quick { 1 } else { options.rounds.max(1) };
    let mut counts = Vec::new();
    for row in &rows {
        counts.push([row.calibrate(&urls[0])?, row.calibrate(&urls[1])?]);
    }
    let mut samples = vec![[Vec::new(), Vec::new()]; rows.len()];
    for round in 0..rounds {
        for (index, row) in rows.iter().enumerate() {
            // Each goes first in every other round.
            for side in if round % 2 == 0 { [0, 1] } else { [1, 0] } {
                samples[index][side].push(row.run(&urls[side], counts[index][side])?);
            }
            eprint!(".");
        }
    }
    eprintln!();
    lunette.stop()?;
    let rows = rows.iter().zip(samples).map(|(row, [ours, theirs])| measured(row, ours, theirs)).collect();
    Ok(Outcome { host, options: lun_words(&lun), rounds, rows })
}

/// The options of a `--lun`, without the path, which says nothing about speed.
fn lun_words(lun: &str) -> String {
    lun.split(',').skip(1).collect::<Vec<_>>().join(",")
}

fn measured(row: &Row, ours: Vec<f64>, theirs: Vec<f64>) -> Measured {
    let (lunette, tgtd) = (summarize(ours), summarize(theirs));
    let ratio = lunette.median / tgtd.median;
    Measured {
        tool: row.tool_name(),
        workload: row.workload(),
        block_bytes: row.block_bytes(),
        lunette,
        tgtd,
        ratio,
    }
}

fn summarize(samples: Vec<f64>) -> Samples {
    let mut sorted = samples.clone();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    let median = if sorted.len() % 2 == 1 {
        sorted[middle]
    } else {
        f64::midpoint(sorted[middle - 1], sorted[middle])
    };
    let spread = (sorted[sorted.len() - 1] - sorted[0]) / median;
    Samples { median, spread, samples }
}

/// A file without holes, in the page cache, with nothing left to write back.
fn fill(path: &Path) -> Result<()> {
    let mut file = File::create(path).with_context(|| path.display().to_string())?;
    let block: Vec<u8> =
        (0..1_u32 << 20).map(|index| index.wrapping_mul(2_654_435_761).to_le_bytes()[3]).collect();
    for _ in 0..FILE_BYTES / block.len() as u64 {
        file.write_all(&block)?;
    }
    file.sync_all()?;
    Ok(())
}

fn markdown(outcome: &Outcome) -> String {
    let mut text = outcome.host.markdown();
    text.push_str(&format!(
        "Lunette's unit: {}. Median of {} rounds, and (largest - smallest) / median.\n\n",
        outcome.options, outcome.rounds
    ));
    text.push_str("| Tool | Workload | Lunette | spread | tgtd | spread | Lunette / tgtd |\n");
    text.push_str("|---|---|---:|---:|---:|---:|---:|\n");
    for row in &outcome.rows {
        let cell = |samples: &Samples| {
            format!("{} | {:.0} %", rate(samples.median, row.block_bytes), samples.spread * 100.0)
        };
        text.push_str(&format!(
            "| {} | {} | {} | {} | {:.2} |\n",
            row.tool,
            row.workload,
            cell(&row.lunette),
            cell(&row.tgtd),
            row.ratio
        ));
    }
    let behind = outcome.rows.iter().filter(|row| row.ratio < 1.0).count();
    text.push_str(&format!("\nBehind tgtd in {behind} of {} rows.\n", outcome.rows.len()));
    text
}

/// Operations a second for small blocks, bytes a second for large ones.
fn rate(operations_per_s: f64, block_bytes: u64) -> String {
    if block_bytes < 64 << 10 {
        format!("{operations_per_s:.0}/s")
    } else {
        format!("{:.0} MB/s", operations_per_s * block_bytes as f64 / 1e6)
    }
}

/// Longer than any single measurement takes, however slow the machine.
const TOOL_LIMIT: Duration = Duration::from_secs(120);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn median_and_spread() {
        let odd = summarize(vec![30.0, 10.0, 20.0]);
        assert!((odd.median - 20.0).abs() < 1e-9 && (odd.spread - 1.0).abs() < 1e-9);
        let even = summarize(vec![10.0, 20.0]);
        assert!((even.median - 15.0).abs() < 1e-9);
    }

    #[test]
    fn rates_in_their_units() {
        assert_eq!(rate(1234.4, 4096), "1234/s");
        assert_eq!(rate(1000.0, 524_288), "524 MB/s");
        assert_eq!(lun_words("0=file:/a/b,write=back,engine=sync"), "write=back,engine=sync");
    }
}
