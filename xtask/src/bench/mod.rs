//! `cargo xtask bench`: what the issue "Speed" asks for, measured as ratios. All sides of a comparison run in one
//! process, rounds interleaved, so that a change of the machine's mood meets all. docs/guide/measure.md is for its users.

mod copy;
mod durability;
mod engines;
mod fio;
mod floor;
mod generator;
mod host;
mod initiator;
pub(crate) mod instructions;
mod line;
mod loop_device;
mod own;
mod peers;
mod readme;
mod report;
mod sample;
mod scale;
mod stream;
mod targets;
mod tools;

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use clap::{Args, Subcommand};
use tempfile::TempDir;

use crate::suites;
use crate::workspace::Workspace;
use generator::{Generator, Until};
use host::Facts;
use report::{Outcome, Section};

/// Longer than any single measurement of a foreign tool takes, however slow the machine.
const TOOL_LIMIT: Duration = Duration::from_secs(120);

/// A host's mood may change within a second: one measurement is so many short ones, which meet it as those of the other sides do.
const TURNS: usize = 5;

/// A few such files stay in the page cache of any machine that builds this.
const FILE_BYTES: u64 = 512 << 20;
const QUICK_FILE_BYTES: u64 = 64 << 20;

/// What to measure.
#[derive(Debug, Subcommand)]
pub(crate) enum Bench {
    /// Lunette beside tgtd, istgt and others: iscsi-perf, qemu-img, fio and our own generator, as ratios
    Peers(peers::Options),
    /// Lunette beside a bare loop without a protocol core, with processor time; and what digests cost
    Floor(Options),
    /// `lunette bench` beside iscsi-perf on one target: operations for the same processor time
    Initiator(Options),
    /// `lunette copy` beside qemu-img over emulated lines, and beside what the line carries
    Copy(Options),
    /// I/O engines beside local fio, and what durability costs
    Engines(Options),
    /// Sessions, idle sessions, units, logins, the tail, a stream beside a reader, overload
    Scale(Options),
    /// Instructions for each command, by valgrind, compared with bench/instructions.toml
    Instructions(instructions::Options),
    /// Write the tables of results (--save) between their marks in README.md or docs/guide/measure.md
    Readme {
        /// Files that --save wrote
        #[arg(required = true, value_name = "FILE")]
        results: Vec<PathBuf>,
    },
}

/// How to measure.
#[derive(Debug, Clone, Args)]
pub(crate) struct Options {
    /// One short round: shows that everything works, measures nothing
    #[arg(long)]
    quick: bool,
    /// How many rounds; the table has their median
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// How long one measurement takes
    #[arg(long, value_name = "SECONDS", default_value_t = 1.0)]
    seconds: f64,
    /// Only rows whose name contains this
    #[arg(long, value_name = "TEXT")]
    only: Option<String>,
    /// Print JSON instead of Markdown tables
    #[arg(long)]
    json: bool,
    /// Also write the JSON to this file
    #[arg(long, value_name = "FILE")]
    save: Option<PathBuf>,
    /// A missed bar is a failure
    #[arg(long)]
    strict: bool,
    /// Where the disk files are made; without it, below Cargo's target directory
    #[arg(long, value_name = "DIRECTORY")]
    directory: Option<PathBuf>,
    /// Further options of `--lun` for Lunette, such as "engine=sync"
    #[arg(long, value_name = "OPTIONS")]
    lun_options: Option<String>,
}

/// What a benchmark has found so far.
#[derive(Debug, Default)]
struct Findings {
    sections: Vec<Section>,
    skipped: Vec<String>,
    /// Bars that have nothing to stand on for one of these reasons.
    bars_skipped: usize,
    /// Others' programs that ran, with their versions.
    programs: Vec<String>,
}

impl Findings {
    /// Says at once and in the report that something could not be measured.
    fn skip(&mut self, what: &str, error: &anyhow::Error) {
        let line = format!("{what}: {}", reason(&format!("{error:#}")));
        eprintln!("skipped: {line}");
        self.skipped.push(line);
    }

    /// The same of something that has so many bars, which the report counts.
    fn skip_bars(&mut self, what: &str, bars: usize, error: &anyhow::Error) {
        let noun = if bars == 1 { "bar" } else { "bars" };
        self.skip(&format!("{what}, {bars} {noun}"), error);
        self.bars_skipped += bars;
    }

    /// Notes a program and its version, once.
    fn ran(&mut self, program: &str) {
        if !self.programs.iter().any(|known| known == program) {
            self.programs.push(program.to_owned());
        }
    }
}

/// What a program that ended gave as its error, if its log has that; otherwise all, in one line.
fn reason(text: &str) -> String {
    let error = text.lines().find_map(|line| line.strip_prefix("error: "));
    error.map_or_else(|| text.trim().replace('\n', " "), str::to_owned)
}

/// Everything that a benchmark stands on: the programs, a directory, the options.
#[derive(Debug)]
struct Stand<'a> {
    options: &'a Options,
    lunette: PathBuf,
    generator: Generator,
    directory: TempDir,
}

impl<'a> Stand<'a> {
    fn build(workspace: &Workspace, options: &'a Options) -> Result<Self> {
        let (lunette, generator) = suites::build_bench(workspace)?;
        let parent = match &options.directory {
            Some(directory) => directory.clone(),
            None => workspace.target_directory()?,
        };
        let directory = tempfile::Builder::new().prefix("bench-").tempdir_in(parent)?;
        Ok(Self { options, lunette, generator: Generator::new(generator), directory })
    }

    fn lunette(&self) -> &Path {
        &self.lunette
    }

    fn generator(&self) -> &Generator {
        &self.generator
    }

    fn lun_options(&self) -> Option<&str> {
        self.options.lun_options.as_deref()
    }

    fn rounds(&self) -> usize {
        if self.options.quick { 1 } else { self.options.rounds.max(1) }
    }

    fn seconds(&self) -> f64 {
        if self.options.quick { 0.2 } else { self.options.seconds }
    }

    fn until(&self) -> Until {
        Until::Seconds(self.seconds())
    }

    /// So many short measurements make one, in turn with those of the other sides.
    fn turns(&self) -> usize {
        if self.options.quick { 1 } else { TURNS }
    }

    /// How long one of these takes.
    fn turn_seconds(&self) -> f64 {
        self.seconds() / self.turns() as f64
    }

    fn turn(&self) -> Until {
        Until::Seconds(self.turn_seconds())
    }

    fn wants(&self, row: &str) -> bool {
        self.options.only.as_ref().is_none_or(|only| row.contains(only))
    }

    /// A number for the real run, and a small one for `--quick`.
    fn or_quick(&self, number: u64, quick: u64) -> u64 {
        if self.options.quick { quick } else { number }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn file_bytes(&self) -> u64 {
        self.or_quick(FILE_BYTES, QUICK_FILE_BYTES)
    }

    /// A file without holes, in the page cache, with nothing left to write back.
    fn file(&self, name: &str) -> Result<PathBuf> {
        self.file_of(name, self.file_bytes())
    }

    /// The same of so many bytes, whole pieces. ext4 keeps what one call has written together, and from 1 MiB a short write later takes
    /// 21 µs where it takes 4 from these (docs/decisions/0046): the file system would be what is measured.
    fn file_of(&self, name: &str, bytes: u64) -> Result<PathBuf> {
        let path = self.path(name);
        let mut file = File::create(&path).with_context(|| path.display().to_string())?;
        let block: Vec<u8> =
            (0..64_u32 << 10).map(|index| index.wrapping_mul(2_654_435_761).to_le_bytes()[3]).collect();
        for _ in 0..bytes / block.len() as u64 {
            file.write_all(&block)?;
        }
        file.sync_all()?;
        Ok(path)
    }
}

/// Builds, measures and prints. Returns false if bars were missed and that is to count.
pub(crate) fn run(workspace: &Workspace, bench: &Bench) -> Result<bool> {
    type Body = fn(&Stand<'_>, &mut Findings) -> Result<()>;
    let (name, setting, options, body): (_, _, _, Body) = match bench {
        Bench::Peers(peers::Options { memory: false, common }) => {
            ("peers", peers::SETTING, common, peers::measure_file)
        }
        Bench::Peers(peers::Options { memory: true, common }) => {
            ("peers-memory", peers::SETTING_MEMORY, common, peers::measure_memory)
        }
        Bench::Floor(options) => ("floor", floor::SETTING, options, floor::measure),
        Bench::Initiator(options) => ("initiator", initiator::SETTING, options, initiator::measure),
        Bench::Copy(options) => ("copy", copy::SETTING, options, copy::measure),
        Bench::Engines(options) => ("engines", engines::SETTING, options, engines::measure),
        Bench::Scale(options) => ("scale", scale::SETTING, options, scale::measure),
        Bench::Instructions(options) => return instructions::run(workspace, options),
        Bench::Readme { results } => return readme::write(workspace, results).map(|()| true),
    };
    let stand = Stand::build(workspace, options)?;
    // Before the load, so that the load average tells what else was going on.
    let host = Facts::collect(workspace, stand.lunette());
    let mut findings = Findings::default();
    body(&stand, &mut findings)?;
    let outcome = Outcome::new(name, setting, host, stand.rounds(), findings);
    let json = serde_json::to_string_pretty(&outcome)?;
    if let Some(path) = &options.save {
        std::fs::write(path, format!("{json}\n")).with_context(|| path.display().to_string())?;
    }
    if options.json {
        println!("{json}");
    } else {
        print!("{}", outcome.markdown());
    }
    Ok(!options.strict || outcome.bars_met == outcome.bars)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_is_one_line() {
        assert_eq!(reason("ended before; its log:\nerror: no such engine\n  more\n"), "no such engine");
        assert_eq!(reason("one\ntwo\n"), "one two");
    }
}
