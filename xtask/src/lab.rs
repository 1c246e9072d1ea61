//! `cargo xtask lab`: the lab's studies with the release binary under a clock, and what `lunette lab check` says of them, as one table.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use clap::Args;
use lunette_tests::process::run;
use serde::{Deserialize, Serialize};

use crate::report::Tally;
use crate::suites;
use crate::vm;
use crate::workspace::Workspace;

/// What the short runs of all studies together may take (issue "The lab").
const QUICK_BAR: Duration = Duration::from_secs(900);
/// A study that takes longer hangs: short ones, and whole ones.
const LIMITS: [Duration; 2] = [QUICK_BAR, Duration::from_secs(4 * 3600)];
/// Lists and checks.
const SHORT_LIMIT: Duration = Duration::from_secs(60);
/// Of results and of the marks in the guide.
pub(crate) const NAME: &str = "lab";

/// What is run.
#[derive(Debug, Args)]
pub(crate) struct Options {
    /// One short run of each cell, and few more of some; all studies together are to be over in 900 s
    #[arg(long)]
    quick: bool,
    /// Only these studies (`lunette lab list`)
    #[arg(long, value_name = "STUDY", num_args = 1..)]
    only: Vec<String>,
    /// Other targets beside ours, as `lunette lab run --peers` has them: tgtd, istgt, lio
    #[arg(long, value_name = "TARGETS", value_delimiter = ',', requires = "only")]
    peers: Vec<String>,
    /// Where the results go, with the report; without it, below Cargo's target directory
    #[arg(long, value_name = "DIRECTORY")]
    directory: Option<PathBuf>,
    /// Also write the table as JSON to this file, for `cargo xtask bench readme`
    #[arg(long, value_name = "FILE")]
    save: Option<PathBuf>,
}

/// One study of the list, as `lunette lab list --json` has it.
#[derive(Debug, Deserialize)]
struct Listed {
    name: String,
    /// Cells that need a virtual machine.
    virtual_cells: usize,
}

/// What is read of a result.
#[derive(Debug, Deserialize)]
struct StudyResult {
    host: Host,
    #[serde(default)]
    cells_with_more_runs: usize,
    cells: Vec<Cell>,
    #[serde(default)]
    lacking: Vec<Lacking>,
}

#[derive(Debug, Deserialize)]
struct Cell {
    limit: String,
}

/// What this machine lacks, with what to install, and how many cells are left out for it.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Lacking {
    what: String,
    cells: usize,
}

/// The machine as results have it.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Host {
    time_unix_s: u64,
    lunette: String,
    processor: String,
    cores: usize,
    memory_bytes: u64,
    kernel: String,
    load_average: String,
}

/// What is read of a verdict of `lunette lab check --json`.
#[derive(Debug, Deserialize)]
struct Verdict {
    study: String,
    reached: usize,
    modelled: usize,
    short: Vec<String>,
    /// Cells that nobody can explain.
    defects: Vec<String>,
    /// Cells of which a run was not over in time.
    not_recovered: Vec<String>,
    unexplained: Vec<String>,
}

impl Verdict {
    /// Cells that nobody can explain or that have not recovered, and published figures that are off without a reason.
    const fn unexplained(&self) -> usize {
        self.defects.len() + self.not_recovered.len() + self.unexplained.len()
    }
}

/// One study.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Row {
    study: String,
    seconds: f64,
    /// Why there are no figures.
    failure: Option<String>,
    /// What this machine lacks for it, with what to install, where that is why there are none.
    #[serde(default)]
    lacks: Option<String>,
    /// The same where it is why some cells have none.
    #[serde(default)]
    left_out: Vec<Lacking>,
    cells: usize,
    /// Cells that reach 95 % of what the model expects, and those that have a model.
    reached: usize,
    modelled: usize,
    /// Cells whose limit was this machine.
    machine: usize,
    /// Cells in which processors had the most of the time, though none of them was full.
    #[serde(default)]
    processing: usize,
    /// As [`Verdict::unexplained`] counts them.
    unexplained: usize,
    /// Cells that had more runs than the others, for what came of these.
    #[serde(default)]
    more_runs: usize,
}

/// All of it.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Outcome {
    bench: String,
    commit: String,
    is_quick: bool,
    /// All studies were run.
    is_whole: bool,
    /// `lunette lab check` was content.
    is_met: bool,
    host: Option<Host>,
    rows: Vec<Row>,
}

/// Builds, runs, checks and prints. False if a study has failed, the check is not content, or short runs of all took too long.
pub(crate) fn run_all(workspace: &Workspace, options: &Options) -> Result<bool> {
    let commit = workspace.commit();
    let binary = suites::build_of_commit(workspace, &commit)?;
    let directory = match &options.directory {
        Some(directory) => directory.clone(),
        // What took hours is not replaced by a part of it.
        None => workspace.target_directory()?.join(match (options.quick, options.only.is_empty()) {
            (true, true) => "lab-quick",
            (false, true) => "lab",
            (_, false) => "lab-part",
        }),
    };
    // What an earlier run has left would count as this one's.
    if options.directory.is_none() && directory.exists() {
        std::fs::remove_dir_all(&directory).with_context(|| directory.display().to_string())?;
    }
    std::fs::create_dir_all(&directory).with_context(|| directory.display().to_string())?;
    let listed = first_line(&binary, &["lab", "list", "--json"])?;
    let listed: Vec<Listed> = serde_json::from_str(&listed).context("lunette lab list --json")?;
    let names: Vec<&str> = listed.iter().map(|study| &*study.name).collect();
    for name in &options.only {
        ensure!(names.contains(&&**name), "{name} is no study; there are {}", names.join(", "));
    }
    let is_wanted = |study: &&Listed| options.only.is_empty() || options.only.contains(&study.name);
    let wanted: Vec<&Listed> = listed.iter().filter(is_wanted).collect();
    let image = if wanted.iter().any(|study| options.needs_image(study)) { image(workspace) } else { None };
    let mut outcome = Outcome {
        bench: NAME.to_owned(),
        commit,
        is_quick: options.quick,
        is_whole: options.only.is_empty(),
        is_met: false,
        host: None,
        rows: Vec::new(),
    };
    for listed in wanted {
        let image = image.as_ref().filter(|_| options.needs_image(listed));
        let (row, host) = study(&binary, &listed.name, options, image, &directory)?;
        println!("{}", row.line());
        outcome.host = outcome.host.or(host);
        outcome.rows.push(row);
    }
    outcome.check(&binary, &directory)?;
    // It names its files.
    let report = run(Command::new(&binary).args(["lab", "report"]).arg(&directory), SHORT_LIMIT)?;
    print!("{}", report.output);
    if let Some(path) = &options.save {
        let json = serde_json::to_string_pretty(&outcome)?;
        std::fs::write(path, json + "\n").with_context(|| path.display().to_string())?;
    }
    print!("\n{}\n", outcome.markdown());
    println!("{}", outcome.last_line());
    Ok(outcome.is_good())
}

impl Options {
    /// Whether something of a study is in a virtual machine: its initiator or, beside any study's own, the target of the kernel.
    fn needs_image(&self, study: &Listed) -> bool {
        study.virtual_cells > 0 || self.peers.iter().any(|peer| peer == "lio")
    }
}

/// The image of the virtual machine, unless the environment names one, which the studies then have; its time is no study's. Where there
/// can be none they go on without, and tell which cells that leaves out.
fn image(workspace: &Workspace) -> Option<(&'static str, PathBuf)> {
    if std::env::var_os(lunette_tests::vm::IMAGE).is_some() {
        return None;
    }
    let began = Instant::now();
    let image = vm::usual_image(workspace);
    let told = match &image {
        Ok((_, directory)) => directory.display().to_string(),
        Err(error) => format!("there is none: {error:#}"),
    };
    println!("{:>8.1} s  image of the virtual machine, not counted: {told}", began.elapsed().as_secs_f64());
    image.ok()
}

/// One study, and the machine as its result has it.
fn study(
    binary: &Path,
    name: &str,
    options: &Options,
    image: Option<&(&'static str, PathBuf)>,
    directory: &Path,
) -> Result<(Row, Option<Host>)> {
    let path = directory.join(format!("{name}.json"));
    // Of an earlier run; if this one fails there is to be none.
    if path.exists() {
        std::fs::remove_file(&path).with_context(|| path.display().to_string())?;
    }
    let mut command = Command::new(binary);
    command.args(["lab", "run", name, "--quiet", "--output"]).arg(directory);
    if options.quick {
        command.arg("--quick");
    }
    if !options.peers.is_empty() {
        command.args(["--peers", &options.peers.join(",")]);
    }
    command.envs(image.map(|(variable, directory)| (variable, directory)));
    let began = Instant::now();
    let finished = run(&mut command, LIMITS[usize::from(!options.quick)])?;
    let mut row = Row {
        study: name.to_owned(),
        seconds: began.elapsed().as_secs_f64(),
        failure: None,
        lacks: None,
        cells: 0,
        left_out: Vec::new(),
        reached: 0,
        modelled: 0,
        machine: 0,
        processing: 0,
        unexplained: 0,
        more_runs: 0,
    };
    if !finished.success() {
        let told = finished.output.lines().find_map(|line| line.strip_prefix("error: "));
        let told = told.map_or_else(|| finished.ending(), str::to_owned);
        match lack(name, &told) {
            Some(lack) => row.lacks = Some(lack.to_owned()),
            None => row.failure = Some(told),
        }
        return Ok((row, None));
    }
    let json = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    let result: StudyResult = serde_json::from_str(&json).with_context(|| path.display().to_string())?;
    row.cells = result.cells.len();
    row.left_out = result.lacking;
    row.more_runs = result.cells_with_more_runs;
    let count = |limit: &str| result.cells.iter().filter(|cell| cell.limit == limit).count();
    (row.machine, row.processing) = (count("machine"), count("processing"));
    Ok((row, Some(result.host)))
}

/// What this machine lacks for a study, where that is what `lunette lab run` says of its failure.
fn lack<'a>(study: &str, told: &'a str) -> Option<&'a str> {
    told.strip_prefix(study)?.strip_prefix(": it needs ")
}

/// What a command of this binary says first on its standard output, whatever its status.
fn first_line(binary: &Path, arguments: &[&str]) -> Result<String> {
    let finished = run(Command::new(binary).args(arguments), SHORT_LIMIT)?;
    let line = finished.output.lines().find(|line| line.starts_with('['));
    Ok(line.with_context(|| format!("lunette {}: {}", arguments.join(" "), finished.output))?.to_owned())
}

impl Row {
    /// There are figures.
    const fn is_measured(&self) -> bool {
        self.failure.is_none() && self.lacks.is_none()
    }

    fn line(&self) -> String {
        let told = match (&self.failure, &self.lacks) {
            (Some(failure), _) => failure.clone(),
            (None, Some(lack)) => format!("skipped: it needs {lack}"),
            (None, None) => format!("{} cells{}", self.cells, left_out(self.left_out())),
        };
        format!("{:>8.1} s  {}: {told}", self.seconds, self.study)
    }

    /// How many cells are left out for want of something.
    fn left_out(&self) -> usize {
        self.left_out.iter().map(|lacking| lacking.cells).sum()
    }

    fn markdown(&self) -> String {
        let Self { study, seconds, cells, reached, modelled, .. } = self;
        let Self { machine, processing, unexplained, more_runs, .. } = self;
        if let Some(failure) = &self.failure {
            return format!("| {study} | **{failure}** | – | – | – | – | – | {seconds:.1} |\n");
        }
        if let Some(lack) = &self.lacks {
            return format!("| {study} | skipped: it needs {lack} | – | – | – | – | – | {seconds:.1} |\n");
        }
        let met = if *modelled == 0 { "–".to_owned() } else { format!("{reached} of {modelled}") };
        let left_out = left_out(self.left_out());
        format!(
            "| {study} | {cells}{left_out} | {met} | {machine} | {processing} | {unexplained} | {more_runs} | {seconds:.1} |\n"
        )
    }
}

/// What stands behind a count of cells where others are missing.
fn left_out(cells: usize) -> String {
    if cells > 0 { format!(", {cells} left out") } else { String::new() }
}

impl Outcome {
    /// Puts in what the check says, and prints which cells are short.
    fn check(&mut self, binary: &Path, directory: &Path) -> Result<()> {
        if !self.rows.iter().any(Row::is_measured) {
            return Ok(());
        }
        let directory = directory.to_str().context("a directory in UTF-8")?;
        let verdicts = first_line(binary, &["lab", "check", "--json", directory])?;
        let verdicts: Vec<Verdict> = serde_json::from_str(&verdicts).context("lunette lab check --json")?;
        for verdict in &verdicts {
            let Some(row) = self.rows.iter_mut().find(|row| row.study == verdict.study) else { continue };
            (row.reached, row.modelled) = (verdict.reached, verdict.modelled);
            row.unexplained = verdict.unexplained();
            for (what, lines) in [
                ("less", &verdict.short),
                ("unexplained", &verdict.defects),
                ("not recovered", &verdict.not_recovered),
                ("without a reason", &verdict.unexplained),
            ] {
                for line in lines {
                    println!("{what}: {}: {line}", verdict.study);
                }
            }
        }
        let checked = run(Command::new(binary).args(["lab", "check", directory]), SHORT_LIMIT)?;
        self.is_met = checked.success();
        Ok(())
    }

    fn seconds(&self) -> f64 {
        self.rows.iter().map(|row| row.seconds).sum()
    }

    /// Whether all of it is as it is to be. A part is only to be measured. What this machine lacks programs for is a skip, as of tests.
    fn is_good(&self) -> bool {
        let is_in_time = !self.is_quick || self.seconds() <= QUICK_BAR.as_secs_f64();
        let has_failed = self.rows.iter().any(|row| row.failure.is_some());
        !has_failed && (!self.is_whole || (self.is_met && is_in_time))
    }

    /// How many studies were measured, have failed and were skipped.
    fn tally(&self) -> Tally {
        let count = |is: fn(&Row) -> bool| self.rows.iter().filter(|row| is(row)).count() as u64;
        Tally {
            passed: count(Row::is_measured),
            failed: count(|row| row.failure.is_some()),
            skipped: count(|row| row.lacks.is_some()),
        }
    }

    /// What is counted, and what is missing from it.
    fn last_line(&self) -> String {
        let cells = self.left_out();
        let left_out =
            if cells > 0 { format!("; {cells} cells left out on this machine") } else { String::new() };
        format!("{} studies: {}{left_out}", self.rows.len(), self.tally())
    }

    fn left_out(&self) -> usize {
        self.rows.iter().map(Row::left_out).sum()
    }

    /// The table, and a sentence that says what it is of.
    pub(crate) fn markdown(&self) -> String {
        let mut text = String::from(
            "| study | cells | met | machine | processing | unexplained | more runs | seconds |\n|---|---:|---:|---:|---:|---:|---:|---:|\n",
        );
        for row in &self.rows {
            text += &row.markdown();
        }
        let sum = |of: fn(&Row) -> usize| self.rows.iter().map(of).sum::<usize>();
        let _ = writeln!(
            text,
            "| all | {}{} | {} of {} | {} | {} | {} | {} | {} |\n",
            sum(|row| row.cells),
            left_out(self.left_out()),
            sum(|row| row.reached),
            sum(|row| row.modelled),
            sum(|row| row.machine),
            sum(|row| row.processing),
            sum(|row| row.unexplained),
            sum(|row| row.more_runs),
            self.time()
        );
        let runs = self.runs();
        let check = match (self.is_whole, self.is_met) {
            (false, _) => "some of the studies",
            (true, true) => "`lunette lab check` is content",
            (true, false) => "**`lunette lab check` is not content**",
        };
        let Tally { failed, skipped, .. } = self.tally();
        let counted =
            |count: u64, what: &str| if count > 0 { format!("; {count} {what}") } else { String::new() };
        let (failed, skipped) = (counted(failed, "failed"), counted(skipped, "skipped for want of programs"));
        let _ = write!(text, "{runs}; {check}{failed}{skipped}. ");
        match &self.host {
            Some(host) => {
                let gib = host.memory_bytes as f64 / f64::from(1_u32 << 30);
                let _ = writeln!(
                    text,
                    "{}, {} processors, {gib:.1} GiB, {}, load {} before; lunette {} at {}, {}.",
                    host.processor,
                    host.cores,
                    host.kernel,
                    host.load_average,
                    host.lunette,
                    self.commit,
                    date(host.time_unix_s)
                );
            }
            None => text.push_str("Nothing was measured.\n"),
        }
        for row in &self.rows {
            for Lacking { what, cells } in &row.left_out {
                let _ =
                    writeln!(text, "\nLeft out of {}: {cells}, for this machine lacks {what}.", row.study);
            }
        }
        text
    }

    /// How many runs cells had, and which had more.
    fn runs(&self) -> String {
        let all = if self.is_quick { "One short run of each cell" } else { "Three runs of each cell" };
        let more = self.rows.iter().map(|row| row.more_runs).sum::<usize>();
        let more = if more > 0 {
            format!(
                ", and up to two more of {more} that nobody could explain by theirs but by an echo that was held up, or that were behind 95 % in `dalgic-tcp` and `dalgic-sweep` (none of those just above \
                 it had more)"
            )
        } else {
            String::new()
        };
        format!("{all}, five of a login{more}")
    }

    /// The time of all, beside its bar where there is one.
    fn time(&self) -> String {
        let (seconds, bar) = (self.seconds(), QUICK_BAR.as_secs_f64());
        match (self.is_quick && self.is_whole, seconds <= bar) {
            (false, _) => format!("{seconds:.0}"),
            (true, true) => format!("{seconds:.0} ≤ {bar:.0}"),
            (true, false) => format!("**{seconds:.0} > {bar:.0}**"),
        }
    }
}

/// The day of a time since 1970, by the rules of the Gregorian calendar: 400 years have 146,097 days, and begin in March here.
fn date(unix_s: u64) -> String {
    let days = unix_s / 86_400 + 719_468;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(seconds: f64) -> Outcome {
        let row = Row {
            study: "dalgic-tcp".to_owned(),
            seconds,
            failure: None,
            lacks: None,
            cells: 16,
            left_out: Vec::new(),
            reached: 15,
            modelled: 16,
            machine: 1,
            processing: 3,
            unexplained: 0,
            more_runs: 2,
        };
        let host = Host {
            time_unix_s: 951_782_400,
            lunette: "0.1.0".to_owned(),
            processor: "P".to_owned(),
            cores: 2,
            memory_bytes: 3 << 29,
            kernel: "Linux 6.1".to_owned(),
            load_average: "0.10".to_owned(),
        };
        let (bench, commit) = (NAME.to_owned(), "abc".to_owned());
        Outcome {
            bench,
            commit,
            is_quick: true,
            is_whole: true,
            is_met: true,
            host: Some(host),
            rows: vec![row],
        }
    }

    #[test]
    fn a_table_has_the_time_beside_its_bar() {
        let text = outcome(812.4).markdown();
        assert!(text.contains("| dalgic-tcp | 16 | 15 of 16 | 1 | 3 | 0 | 2 | 812.4 |\n"), "{text}");
        assert!(text.contains("| all | 16 | 15 of 16 | 1 | 3 | 0 | 2 | 812 ≤ 900 |\n"), "{text}");
        assert!(text.contains("1.5 GiB, Linux 6.1, load 0.10 before; lunette 0.1.0 at abc, 2000-02-29.\n"));
        assert!(outcome(812.4).is_good() && !outcome(901.0).is_good());
        assert!(outcome(901.0).markdown().contains("**901 > 900**"));
        let mut part = outcome(901.0);
        (part.is_whole, part.is_met) = (false, false);
        assert!(part.is_good() && part.markdown().contains("| 901 |"));
        part.rows[0].failure = Some("it needs smbd".to_owned());
        assert!(!part.is_good() && part.markdown().contains("| dalgic-tcp | **it needs smbd** | – |"));
        assert!(part.markdown().contains("some of the studies; 1 failed. "), "{}", part.markdown());
    }

    #[test]
    fn a_study_that_lacks_programs_is_skipped_and_no_failure() {
        let told = "fujita-postmark: it needs postmark (Debian: apt-get install postmark)";
        let lacking = lack("fujita-postmark", told).expect("a lack");
        assert_eq!(lacking, "postmark (Debian: apt-get install postmark)");
        for other in ["fujita-postmark: the disk is not ready: it needs time", "lu-files: it needs smbd", ""]
        {
            assert_eq!(lack("fujita-postmark", other), None, "{other}");
        }
        let mut outcome = outcome(10.0);
        let mut row = outcome.rows[0].clone();
        (row.study, row.lacks, row.cells) = ("fujita-postmark".to_owned(), Some(lacking.to_owned()), 0);
        assert!(
            row.line()
                .ends_with("fujita-postmark: skipped: it needs postmark (Debian: apt-get install postmark)")
        );
        outcome.rows.push(row);
        let text = outcome.markdown();
        assert!(
            text.contains(
                "| fujita-postmark | skipped: it needs postmark (Debian: apt-get install postmark) | – |"
            ),
            "{text}"
        );
        assert!(text.contains("content; 1 skipped for want of programs. "), "{text}");
        assert!(outcome.is_good());
        assert_eq!(outcome.tally(), Tally { passed: 1, failed: 0, skipped: 1 });
        outcome.rows[0].failure = Some("hangs".to_owned());
        assert!(!outcome.is_good());
        assert_eq!(outcome.tally(), Tally { passed: 0, failed: 1, skipped: 1 });
    }

    #[test]
    fn cells_that_are_left_out_are_counted_and_no_failure() {
        let mut outcome = outcome(10.0);
        assert_eq!(outcome.last_line(), "1 studies: 1 passed, 0 failed, 0 skipped");
        let lacking = |what: &str, cells| Lacking { what: what.to_owned(), cells };
        outcome.rows[0].left_out =
            vec![lacking("cpio (Debian: apt-get install cpio)", 20), lacking("FUSE", 4)];
        assert!(outcome.rows[0].line().ends_with("dalgic-tcp: 16 cells, 24 left out"));
        let text = outcome.markdown();
        for part in [
            "| dalgic-tcp | 16, 24 left out | 15 of 16 | 1 | 3 | 0 | 2 | 10.0 |\n| all | 16, 24 left out | 15 of 16 |",
            "\nLeft out of dalgic-tcp: 20, for this machine lacks cpio (Debian: apt-get install cpio).\n",
            "\nLeft out of dalgic-tcp: 4, for this machine lacks FUSE.\n",
        ] {
            assert!(text.contains(part), "{text}");
        }
        let told = "1 studies: 1 passed, 0 failed, 0 skipped; 24 cells left out on this machine";
        assert_eq!(outcome.last_line(), told);
        assert!(outcome.is_good());
    }

    #[test]
    fn an_image_is_for_studies_that_have_something_in_a_virtual_machine() {
        let needs = |virtual_cells, peers: &[&str]| {
            let peers = peers.iter().map(|&peer| peer.to_owned()).collect();
            let options = Options { quick: true, only: Vec::new(), peers, directory: None, save: None };
            options.needs_image(&Listed { name: "dalgic-lan".to_owned(), virtual_cells })
        };
        assert!(needs(20, &[]) && needs(0, &["tgtd", "lio"]));
        assert!(!needs(0, &[]) && !needs(0, &["tgtd"]));
    }

    #[test]
    fn what_a_study_says_when_it_lacks_something_is_what_is_looked_for() {
        let source = include_str!("../../crates/lab/src/error.rs");
        assert!(source.contains("#[error(\"it needs {0}\")]"), "{source}");
    }

    #[test]
    fn a_table_says_how_many_cells_had_more_runs_than_one() {
        let mut outcome = outcome(1.0);
        let text = outcome.markdown();
        assert!(
            text.contains("One short run of each cell, five of a login, and up to two more of 2 that nobody"),
            "{text}"
        );
        outcome.rows[0].more_runs = 0;
        assert!(outcome.markdown().contains("One short run of each cell, five of a login; `lunette"));
        outcome.is_quick = false;
        assert!(outcome.markdown().contains("Three runs of each cell, five of a login; "));
    }

    #[test]
    fn what_has_not_recovered_counts_among_the_unexplained() {
        let json = r#"[{"study": "dalgic-connections", "reached": 1, "modelled": 2, "short": ["a"], "defects": ["b"],
                        "not_recovered": ["c", "d"], "unexplained": ["e"]}]"#;
        let verdicts: Vec<Verdict> = serde_json::from_str(json).expect("JSON");
        assert_eq!(verdicts[0].unexplained(), 4);
    }

    #[test]
    fn days_are_those_of_the_calendar() {
        for (unix_s, day) in [
            (0, "1970-01-01"),
            (86_399, "1970-01-01"),
            (951_868_800, "2000-03-01"),
            (1_735_689_599, "2024-12-31"),
            (4_107_542_400, "2100-03-01"),
        ] {
            assert_eq!(date(unix_s), day);
        }
    }

    #[test]
    fn what_is_saved_is_read_again() {
        let json = serde_json::to_string(&outcome(1.0)).expect("JSON");
        let back: Outcome = serde_json::from_str(&json).expect("the same");
        assert_eq!(back.markdown(), outcome(1.0).markdown());
    }
}
