//! `bench instructions`: how many instructions the target spends on one command, counted by valgrind's callgrind.
//!
//! The counts are kept in `bench/instructions.toml`. Unlike times they do not depend on what else the machine does, so
//! that every test run can compare them. They do depend on the compiler, the C library and on what the processor can;
//! with others than the kept ones were made with, the commit that kept them is built and counted, too.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use clap::Args;
use lunette_tests::lunette::{Launch, TARGET_NAME};
use lunette_tests::packages::{find_program, package_of};
use lunette_tests::skip::is_ci;
use serde::{Deserialize, Serialize};

use super::generator::{Generator, Until, Workload};
use super::host::{file_line, first_line, rustc, version};
use crate::report::{Report, Tally};
use crate::suites;
use crate::workspace::Workspace;

const KEPT: &str = "bench/instructions.toml";

const HEAD: &str = "\
# Instructions of `lunette serve` for one command, by `cargo xtask bench instructions --bless`.
# A rise of more than 3 % needs a reason in the commit that makes it.
";

const KIB: u64 = 1 << 10;

/// What a count may change without anybody saying why.
const TOLERANCE_PERCENT: u64 = 3;

/// What to do about other circumstances that are here to stay.
const BLESS: &str =
    "if these are here to stay, keep their counts with `cargo xtask bench instructions --bless`";

/// Commands at a time: all of them come with one read and are answered together.
const BATCH: u32 = 8;

/// The functions for copying and filling that the C library picks depend on sizes that it reads from the processor;
/// these are the same everywhere.
const TUNABLES: &str = "glibc.cpu.x86_rep_movsb_threshold=1073741824:\
                        glibc.cpu.x86_rep_stosb_threshold=1073741824:\
                        glibc.cpu.x86_non_temporal_threshold=1073741824";

/// How to count.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct Options {
    /// Keep what is counted now
    #[arg(long)]
    bless: bool,
    /// Print JSON instead of a Markdown table
    #[arg(long)]
    json: bool,
    /// Only operations whose name contains this
    #[arg(long, value_name = "TEXT", conflicts_with = "bless")]
    only: Option<String>,
}

/// What the counts depend on besides our own code.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Circumstances {
    rustc: String,
    valgrind: String,
    libc: String,
    processor: String,
}

/// The kept file.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Kept {
    circumstances: Circumstances,
    /// For one command.
    instructions: BTreeMap<String, u64>,
}

/// What is counted.
struct Operation {
    name: &'static str,
    unit: Unit,
    workload: Workload,
    /// Over so many commands, fewer where one is long. Nothing depends on it but the time.
    commands: u64,
    /// Counted so many times; the smallest is taken. A long write comes in as many pieces as the kernel likes, but in no
    /// fewer than there have to be.
    times: usize,
}

/// The units that are served, by their numbers.
#[derive(Debug, Clone, Copy)]
enum Unit {
    Memory = 0,
    /// A file in the page cache, no longer than what is read of it.
    File = 1,
}

fn operations() -> Vec<Operation> {
    let read = |block_bytes| Workload::read(block_bytes, BATCH);
    let write = |block_bytes| Workload::write(block_bytes, BATCH);
    let of = |batch| Workload::read(4 * KIB, batch);
    let with_digests = |workload| Workload { digests: true, ..workload };
    let all = [
        ("512 B read", Unit::Memory, read(512), 800, 1),
        ("4 KiB read", Unit::Memory, read(4 * KIB), 800, 1),
        ("4 KiB read, one at a time", Unit::Memory, of(1), 800, 1),
        ("4 KiB read, 32 at a time", Unit::Memory, of(32), 960, 1),
        ("4 KiB read, digests", Unit::Memory, with_digests(read(4 * KIB)), 800, 1),
        ("4 KiB read, file", Unit::File, read(4 * KIB), 800, 1),
        ("4 KiB write", Unit::Memory, write(4 * KIB), 800, 1),
        ("4 KiB write, digests", Unit::Memory, with_digests(write(4 * KIB)), 800, 1),
        ("4 KiB write, file", Unit::File, write(4 * KIB), 800, 1),
        ("64 KiB read", Unit::Memory, read(64 * KIB), 400, 3),
        ("64 KiB write", Unit::Memory, write(64 * KIB), 400, 3),
        ("512 KiB read", Unit::Memory, read(512 * KIB), 160, 3),
        ("512 KiB read, file", Unit::File, read(512 * KIB), 160, 3),
        ("512 KiB write", Unit::Memory, write(512 * KIB), 160, 5),
    ];
    let complete = |(name, unit, workload, commands, times): (_, _, Workload, _, _)| {
        // Small, so that it is soon filled.
        let span_bytes = workload.block_bytes * u64::from(workload.depth);
        let workload = Workload { burst: true, span_bytes, sequential: true, ..workload };
        Operation { name, unit, workload, commands, times }
    };
    all.map(complete).into()
}

/// The command of its own.
pub(crate) fn run(workspace: &Workspace, options: &Options) -> Result<bool> {
    let (lunette, generator) = suites::build_bench(workspace)?;
    let generator = Generator::new(generator);
    ensure!(find_program("valgrind").is_some(), "valgrind is not installed (Debian package valgrind)");
    let counted = count(&lunette, &generator, options.only.as_deref())?;
    let now = circumstances();
    if options.bless {
        let kept = Kept { circumstances: now, instructions: counted };
        std::fs::write(workspace.root().join(KEPT), format!("{HEAD}{}", toml::to_string(&kept)?))?;
        println!("{KEPT} is written");
        return Ok(true);
    }
    if options.json {
        println!("{}", serde_json::to_string_pretty(&Kept { circumstances: now, instructions: counted })?);
        return Ok(true);
    }
    match before(workspace, &generator, options.only.as_deref())? {
        Before::Counts(before) => Ok(tell(&before, &counted).iter().all(|change| !change.is_failure)),
        Before::Unknown(why) => {
            println!("{why}; nothing is compared\n");
            print!("{}", table(&BTreeMap::new(), &counted));
            Ok(true)
        }
    }
}

/// The step of `cargo xtask test`.
pub(crate) fn step(workspace: &Workspace, report: &mut Report) {
    report.step("instructions for each command, by valgrind", |failures| {
        if find_program("valgrind").is_none() {
            let package = package_of("valgrind").unwrap_or("valgrind");
            ensure!(!is_ci(), "valgrind is not installed (Debian package {package})");
            println!("SKIPPED: valgrind is not installed (Debian package {package})");
            return Ok(Tally::SKIPPED);
        }
        let (lunette, generator) = suites::build_bench(workspace)?;
        let generator = Generator::new(generator);
        let before = match before(workspace, &generator, None)? {
            Before::Counts(before) => before,
            Before::Unknown(why) => {
                println!("SKIPPED: {why}");
                return Ok(Tally::SKIPPED);
            }
        };
        let counted = count(&lunette, &generator, None)?;
        let changes = tell(&before, &counted);
        let mut failed = 0;
        for change in changes.into_iter().filter(|change| change.is_failure) {
            failures.keep(change.text);
            failed += 1;
        }
        Ok(Tally { passed: (counted.len() as u64).saturating_sub(failed), failed, skipped: 0 })
    });
}

/// What there is to compare with.
enum Before {
    Counts(BTreeMap<String, u64>),
    /// Nothing, for this reason.
    Unknown(String),
}

/// The kept counts. Where they were made under other circumstances, those of the commit that kept them, as this machine counts them.
fn before(workspace: &Workspace, generator: &Generator, only: Option<&str>) -> Result<Before> {
    let kept = read(&workspace.root().join(KEPT))?;
    let Some(difference) = difference(&kept.circumstances, &circumstances()) else {
        return Ok(Before::Counts(kept.instructions));
    };
    let commit = match workspace.last_commit_of(KEPT) {
        Ok(commit) => commit,
        Err(error) => {
            let instead = "the commit that kept them is not there to be counted in their place";
            return Ok(Before::Unknown(format!("{difference}, and {instead}: {error:#}; {BLESS}")));
        }
    };
    println!("{difference}: commit {commit}, which kept them, is built and counted in their place; {BLESS}");
    count(&suites::build_at(workspace, &commit)?, generator, only).map(Before::Counts)
}

/// Prints the table, and what has changed so much that it needs a reason.
fn tell(before: &BTreeMap<String, u64>, now: &BTreeMap<String, u64>) -> Vec<Change> {
    print!("{}", table(before, now));
    let changes = changes(before, now);
    changes.iter().for_each(|change| println!("{}", change.text));
    changes
}

fn read(path: &Path) -> Result<Kept> {
    let text = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
    toml::from_str(&text).with_context(|| path.display().to_string())
}

fn circumstances() -> Circumstances {
    // valgrind shows one of two processors, whatever the real one is: with AVX2 or without.
    let has = |flag: &str| file_line("/proc/cpuinfo", "flags").split(' ').any(|found| found == flag);
    let avx2 = if has("avx2") { ", AVX2" } else { "" };
    // A target sends in parts where there are several.
    let is_alone = std::thread::available_parallelism().is_ok_and(|count| count.get() == 1);
    let alone = if is_alone { ", one processor" } else { "" };
    Circumstances {
        rustc: rustc(),
        valgrind: version("valgrind", "--version"),
        libc: first_line(Command::new("getconf").arg("GNU_LIBC_VERSION")),
        processor: [std::env::consts::ARCH, avx2, alone].concat(),
    }
}

/// What is not the same, in words.
fn difference(kept: &Circumstances, now: &Circumstances) -> Option<String> {
    let pairs = [
        (&kept.rustc, &now.rustc),
        (&kept.valgrind, &now.valgrind),
        (&kept.libc, &now.libc),
        (&kept.processor, &now.processor),
    ];
    let (kept, now) = pairs.into_iter().find(|(kept, now)| kept != now)?;
    Some(format!("the counts of {KEPT} were made with {kept}, not with {now}"))
}

fn count(lunette: &Path, generator: &Generator, only: Option<&str>) -> Result<BTreeMap<String, u64>> {
    let directory = tempfile::tempdir()?;
    let mut counted = BTreeMap::new();
    for operation in operations() {
        if only.is_some_and(|only| !operation.name.contains(only)) {
            continue;
        }
        let total = |commands| run_once(lunette, generator, directory.path(), &operation, commands);
        let mut counts = Vec::new();
        for _ in 0..operation.times {
            let (once, thrice) = (total(operation.commands)?, total(operation.commands * 3)?);
            // Start, login and end are in both and drop out.
            counts.push(thrice.saturating_sub(once) / (operation.commands * 2));
            eprint!(".");
        }
        counted.insert(operation.name.to_owned(), counts.into_iter().min().unwrap_or_default());
    }
    eprintln!();
    Ok(counted)
}

/// All instructions of a target from its start to its end.
fn run_once(
    lunette: &Path,
    generator: &Generator,
    directory: &Path,
    Operation { unit, workload, .. }: &Operation,
    commands: u64,
) -> Result<u64> {
    let image = directory.join("image");
    std::fs::File::create(&image)?.set_len(workload.span_bytes)?;
    let output = directory.join("callgrind.out");
    let mut command = Command::new(find_program("valgrind").context("valgrind is not installed")?);
    command.args(["--tool=callgrind", "--quiet"]).arg(out_file(&output)).arg(lunette);
    command.arg("serve").env("GLIBC_TUNABLES", TUNABLES);
    let configuration = format!(
        "[[target.lun]]\nnumber = {}\nstore = \"{}\"\nwrite = \"back\"\n\
         [reactors]\ncount = 1\npoll = \"never\"\n",
        Unit::File as u8,
        image.display()
    );
    let target = Launch::of(command).configuration(&configuration).start()?;
    let url = format!("iscsi://{}/{TARGET_NAME}/{}", target.portal(), *unit as u8);
    // What was never written is zeroes, which costs memory less to read, and a file more.
    let fill = Workload { read_percent: 0, digests: false, ..workload.clone() };
    generator.load(&url, &fill, Until::Count(u64::from(workload.depth) * 2))?;
    generator.load(&url, workload, Until::Count(commands))?;
    target.stop()?;
    let text = std::fs::read_to_string(&output).context("callgrind's result")?;
    read_total(&text).context("callgrind's result has no total")
}

fn out_file(path: &Path) -> String {
    format!("--callgrind-out-file={}", path.display())
}

/// "totals: 43024734"
fn read_total(text: &str) -> Option<u64> {
    text.lines().rev().find_map(|line| line.strip_prefix("totals:"))?.trim().parse().ok()
}

/// Something that is not as it was.
#[derive(Debug, PartialEq, Eq)]
struct Change {
    text: String,
    is_failure: bool,
}

fn changes(kept: &BTreeMap<String, u64>, counted: &BTreeMap<String, u64>) -> Vec<Change> {
    let bless = "`cargo xtask bench instructions --bless` keeps that";
    let mut changes = Vec::new();
    for (name, now) in counted {
        let Some(before) = kept.get(name) else {
            changes.push(Change { text: format!("{name}: {now} is new; {bless}"), is_failure: true });
            continue;
        };
        let percent = percent(*before, *now);
        let change = if now * 100 > before * (100 + TOLERANCE_PERCENT) {
            let text = format!("error: {name}: {now} instructions, {percent:.1} % more than {before}");
            Change { text, is_failure: true }
        } else if now * 100 < before * (100 - TOLERANCE_PERCENT) {
            let text = format!("{name}: {now} instructions, {:.1} % fewer than {before}; {bless}", -percent);
            Change { text, is_failure: false }
        } else {
            continue;
        };
        changes.push(change);
    }
    changes
}

fn percent(before: u64, now: u64) -> f64 {
    (now as f64 / before as f64 - 1.0) * 100.0
}

fn table(kept: &BTreeMap<String, u64>, counted: &BTreeMap<String, u64>) -> String {
    let mut text = "| Command | kept | now | change |\n|---|---:|---:|---:|\n".to_owned();
    for (name, now) in counted {
        let (before, change) = match kept.get(name) {
            Some(before) => (before.to_string(), format!("{:+.1} %", percent(*before, *now))),
            None => ("–".to_owned(), "–".to_owned()),
        };
        text.push_str(&format!("| {name} | {before} | {now} | {change} |\n"));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(pairs: &[(&str, u64)]) -> BTreeMap<String, u64> {
        pairs.iter().map(|(name, count)| ((*name).to_owned(), *count)).collect()
    }

    #[test]
    fn a_rise_fails_and_a_fall_asks() {
        let kept = counts(&[("a", 1000), ("b", 1000), ("c", 1000)]);
        let seen = changes(&kept, &counts(&[("a", 1031), ("b", 1030), ("c", 969), ("d", 1)]));
        let failures: Vec<bool> = seen.iter().map(|change| change.is_failure).collect();
        assert_eq!(failures, [true, false, true]);
        assert_eq!(seen[0].text, "error: a: 1031 instructions, 3.1 % more than 1000");
        assert!(seen[1].text.starts_with("c: 969 instructions, 3.1 % fewer than 1000; "));
        assert!(seen[2].text.starts_with("d: 1 is new; "));
    }

    #[test]
    fn names_what_is_not_the_same() {
        let kept = Circumstances {
            rustc: "rustc 1".to_owned(),
            valgrind: "valgrind-3".to_owned(),
            libc: "glibc 2".to_owned(),
            processor: "x86_64".to_owned(),
        };
        assert_eq!(difference(&kept, &kept.clone()), None);
        let now = Circumstances { libc: "glibc 3".to_owned(), ..kept.clone() };
        let said = difference(&kept, &now).expect("a difference");
        assert!(said.ends_with("were made with glibc 2, not with glibc 3"), "{said}");
    }

    #[test]
    fn the_total_is_read() {
        assert_eq!(read_total("version: 1\nsummary: 5\n\ntotals: 43024734\n"), Some(43_024_734));
        assert_eq!(read_total("version: 1\n"), None);
    }

    #[test]
    fn the_kept_file_names_what_is_counted() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let path = root.parent().expect("the repository's root").join(KEPT);
        let kept = read(&path).expect("the kept counts");
        let names: Vec<String> = kept.instructions.into_keys().collect();
        let mut wanted: Vec<String> =
            operations().iter().map(|operation| operation.name.to_owned()).collect();
        wanted.sort();
        assert_eq!(names, wanted);
    }
}
