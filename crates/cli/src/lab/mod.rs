//! `lunette lab`: studies that others have published, repeated on emulated links.

mod kept;
mod progress;
mod text;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use clap::{Args, Subcommand};
use lunette_lab::{
    FORM, LabError, Laboratory, Parameter, Peer, Setting, Study, StudyResult, report, studies, study,
};
use lunette_wan::acquire_privileges;
use serde::{Deserialize, Serialize};

use crate::banner::printable;
use crate::bench::{Interrupts, parse_seconds};
use crate::failure::{Failure, say};
use crate::initiator::{print, tell};
use crate::output;
use progress::Progress;

const PRIVILEGES_HELP: &str = "run it as root, or let users make namespaces and open /dev/net/tun, as for `lunette wan run`; `--proxy` measures what can be \
     measured without a network";
/// The longest result that is read for a report, in bytes.
const RESULT_BYTES_MAX: u64 = 16 << 20;

const RUN_EXAMPLES: &str = "\
Examples:
  lunette lab run dalgic-tcp --quick
  lunette lab run trinkle-profiles --peers tgtd,istgt
  lunette lab run dalgic-sweep --only rtt_ms=10 --set DataDigest=CRC32C --set FirstBurstLength=8192
  lunette lab run dalgic-lan --only window=32 --set request_bytes=4096 --set mtu=9000
  lunette lab run dalgic-sweep --patience 600
  lunette lab run dalgic-sweep --proxy
  lunette lab run --all --quick --output results && lunette lab report results

Exit status: 0 when all figures are there, 1 when runs have failed, Ctrl-C has ended a study or left one out, or something else went wrong on this machine, 2 when the command line is wrong, 125 when \
there is no emulated network.";

const CHECK_EXAMPLES: &str = "\
Examples:
  lunette lab run dalgic-tcp dalgic-sweep --output results && lunette lab check results

Exit status: 0 when both hold, 1 when one of them does not or results are missing, 2 when the command line is wrong.";

/// What `lunette lab` does.
#[derive(Debug, Subcommand)]
pub(crate) enum LabCommand {
    /// List the studies, and what each of them varies
    List {
        /// Print one JSON array
        #[arg(long)]
        json: bool,
    },
    /// Run studies, each figure beside the published one and what the model expects
    ///
    /// Each link of a study is a network of its own on this machine, with `lunette serve` at its far end; nothing else is reached.
    /// As `lunette wan run`, it needs no privilege where users may make namespaces. A run that fails is told, and the others go on.
    /// Ctrl-C or a closed terminal ends it and keeps what was measured.
    #[command(after_help = RUN_EXAMPLES)]
    Run(RunOptions),
    /// Make a page (HTML) and a text (Markdown) of the results in a directory
    Report {
        /// The directory that `lab run --output` wrote to; report.html and report.md are written there
        #[arg(value_name = "DIRECTORY")]
        directory: PathBuf,
    },
    /// Tell how many cells of the results in a directory reach 95 % of what link and model let through, and which do not
    ///
    /// Of dalgic-tcp and dalgic-sweep each cell is to reach it. In every study no run may have failed, and each published figure that is
    /// off by more than 10 % is to have the reason beside it.
    #[command(after_help = CHECK_EXAMPLES)]
    Check {
        /// The directory that `lab run --output` wrote to
        #[arg(value_name = "DIRECTORY")]
        directory: PathBuf,
        /// Print one JSON array, with an object for each study
        #[arg(long)]
        json: bool,
    },
}

/// What `lunette lab run` is told.
#[derive(Debug, Args)]
pub(crate) struct RunOptions {
    /// The studies (`lunette lab list`)
    #[arg(value_name = "STUDY", required_unless_present = "all", value_parser = parse_study)]
    studies: Vec<Named>,
    /// All of them
    #[arg(long, conflicts_with = "studies")]
    all: bool,
    /// One short run of each cell: shows that everything works, and roughly what comes of it
    #[arg(long)]
    quick: bool,
    /// A directory on a disk, for images that studies need, 2.3 GiB at most; they go with the command
    #[arg(long, value_name = "DIRECTORY", default_value = "/var/tmp")]
    scratch: PathBuf,
    /// Only cells with this parameter, as rtt_ms=50; several together (`lunette lab list` has them)
    #[arg(long, value_name = "NAME=VALUE", conflicts_with = "all", value_parser = parse_parameter)]
    only: Vec<(String, String)>,
    /// What all cells over a link are to have, as DataDigest=CRC32C, FirstBurstLength=65536, depth=8, request_bytes=4096,
    /// tcp_buffer_bytes=65536, mtu=9000 or write=through; several together
    #[arg(long, value_name = "KEY=VALUE", conflicts_with = "all")]
    set: Vec<Setting>,
    /// TCP's congestion control at both ends of each link, as cubic or bbr [default: reno, as when the papers were written, or this
    /// system's own where it does not let a network have that]
    #[arg(long, value_name = "NAME")]
    congestion_control: Option<String>,
    /// Other targets beside ours, in turns: tgtd, istgt (Debian's packages tgt and istgt), and lio, the kernel's, in a virtual machine
    /// whose image LUNETTE_VM names [default: of trinkle-profiles tgtd and istgt, where they are installed]
    #[arg(long, value_name = "TARGETS", value_delimiter = ',')]
    peers: Vec<Peer>,
    /// Without a network, where nobody may make one: a TCP proxy with the delay and the rate of each link. TCP does not see them, cells
    /// that need more than that are left out, and every result says so
    #[arg(long, conflicts_with_all = ["peers", "congestion_control"])]
    proxy: bool,
    /// Do runs in which the host of this virtual machine gave more than 5 % of the processor time that was wanted to others again until
    /// there are none, and give cells that nobody can explain two more, for so many seconds at most for each link [default: each of
    /// them once, in a twentieth of the study's time, and a tenth of it for more runs]
    #[arg(long, value_name = "SECONDS", value_parser = parse_seconds)]
    patience: Option<Duration>,
    /// Where all that is left to chance begins
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Write each result into this directory, as STUDY.json
    #[arg(long, short, value_name = "DIRECTORY")]
    output: Option<PathBuf>,
    /// Replace results there also where they have cells that this run does not measure, or where they are whole and it is quick
    #[arg(long, requires = "output")]
    force: bool,
    /// Tell each result as one line of JSON
    #[arg(long)]
    json: bool,
    /// No progress on the standard error
    #[arg(long, short)]
    quiet: bool,
}

/// A study by its name.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Named(&'static Study);

fn parse_study(name: &str) -> Result<Named, String> {
    let names = || studies().iter().map(|study| study.name).collect::<Vec<_>>().join(", ");
    study(name).map(Named).ok_or_else(|| format!("there are {}", names()))
}

fn parse_parameter(text: &str) -> Result<(String, String), String> {
    let pair = text.split_once('=').map(|(name, value)| (name.to_owned(), value.to_owned()));
    pair.ok_or_else(|| "give a parameter and its value, as rtt_ms=50".to_owned())
}

/// Does it.
pub(crate) fn run(command: &LabCommand) -> Result<(), Failure> {
    match command {
        LabCommand::List { json } => list(*json),
        LabCommand::Run(options) => {
            let result = run_studies(options);
            result.map_err(|failure| if options.json { failure.told_as_json() } else { failure })
        }
        LabCommand::Report { directory } => make_report(directory),
        LabCommand::Check { directory, json } => {
            check(directory, *json).map_err(|failure| if *json { failure.told_as_json() } else { failure })
        }
    }
}

#[derive(Serialize)]
struct Row {
    name: &'static str,
    paper: &'static str,
    question: &'static str,
    cells: usize,
    /// Those that need a virtual machine.
    virtual_cells: usize,
    /// What is varied, which `--only` takes.
    parameters: Vec<Parameter>,
}

fn list(json: bool) -> Result<(), Failure> {
    let row = |study: &Study| Row {
        name: study.name,
        paper: study.paper,
        question: study.question,
        cells: study.size(),
        virtual_cells: study.virtual_cells(),
        parameters: study.varied(),
    };
    let rows: Vec<Row> = studies().iter().map(row).collect();
    tell(json, &rows, |rows| {
        let line = |row: &Row| {
            let varied = |parameter: &Parameter| {
                format!("{:18} {}: {}\n", "", parameter.name, parameter.values.join(", "))
            };
            let head =
                format!("{:<18} {} cells: {}\n{:18} {}\n", row.name, row.cells, row.question, "", row.paper);
            head + &row.parameters.iter().map(varied).collect::<String>()
        };
        rows.iter().map(line).collect()
    })
}

fn run_studies(options: &RunOptions) -> Result<(), Failure> {
    if let Some(directory) = &options.output {
        let failed = |error| Failure::new(format!("cannot make {}", directory.display()), &error);
        fs::create_dir_all(directory).map_err(failed)?;
    }
    let binary = std::env::current_exe().map_err(|error| Failure::new("cannot find this program", &error))?;
    let scratch = std::path::absolute(&options.scratch)
        .map_err(|error| Failure::new(format!("--scratch {}", options.scratch.display()), &error))?;
    let chosen = chosen(options.all, &options.studies);
    let stops = AtomicBool::new(false);
    let laboratory = Laboratory {
        binary: &binary,
        seed: options.seed,
        is_quick: options.quick,
        stops: &stops,
        scratch: &scratch,
        only: &options.only,
        set: &options.set,
        peers: &options.peers,
        congestion_control: options.congestion_control.as_deref(),
        is_proxied: options.proxy,
        patience: options.patience,
    };
    if !options.all {
        check_all(&laboratory, &chosen)?;
    }
    if !options.force {
        chosen.iter().try_for_each(|study| check_kept(options, &laboratory, study))?;
    }
    // Before any thread: a process with threads cannot move into a user namespace.
    if !options.proxy {
        acquire_privileges().map_err(|error| {
            Failure::network("there is no emulated network", &error).with_help(PRIVILEGES_HELP)
        })?;
    }
    let interrupts = Interrupts::watch()?;
    let (mut first, mut lost) = (None, Vec::new());
    let stops = interrupts.flag();
    for (at, &study) in chosen.iter().enumerate() {
        // Also behind the last run of a study, which has all its figures then.
        if stops.load(Ordering::Relaxed) {
            let names: Vec<&str> = chosen[at..].iter().map(|study| study.name).collect();
            lost.extend(text::not_run(&names));
            break;
        }
        let laboratory = Laboratory { stops: &stops, ..laboratory };
        let path = options.output.as_deref().map(|directory| path_of(directory, study));
        match path.as_deref().map_or(Ok(()), |path| output::check(path, &[])) {
            Err(failure) if at == 0 => return Err(failure),
            Err(failure) => {
                lost.push(format!("{} was not measured: {failure}", study.name));
                continue;
            }
            Ok(()) => {}
        }
        let result = match run_one(options, &laboratory, study) {
            Ok(result) => result,
            // Of all studies, those that this machine can run.
            Err(LabError::Needs(what)) if options.all => {
                say(&format!("lunette: {} is left out: it needs {what}", study.name));
                continue;
            }
            Err(error) => {
                if chosen.len() > 1 {
                    say(&format!("lunette: {} has failed: {error}", study.name));
                }
                // Who asks for all asks for nothing that only some can have.
                first.get_or_insert_with(|| match &error {
                    LabError::Plan(_) if options.all => Failure::new(study.name, &error),
                    _ => failure(study, &error),
                });
                // Without a network there is none for the others; what else goes wrong in one is not their fault.
                if matches!(error, LabError::Network(_)) {
                    let names: Vec<&str> = chosen[at + 1..].iter().map(|study| study.name).collect();
                    lost.extend(text::not_run(&names));
                    break;
                }
                continue;
            }
        };
        let written = path.map_or(Ok(None), |path| kept::write(&path, &result, options.force));
        tell(options.json, &result, text::text)?;
        // Other studies are measured all the same, and theirs may find room: somebody may make some.
        let written = written.unwrap_or_else(|failure| {
            say(&format!("lunette: {failure}"));
            Some(failure.to_string())
        });
        lost.extend([text::missing(&result), text::lost(&result), written].into_iter().flatten());
    }
    if stops.load(Ordering::Relaxed) {
        say("lunette: ended early, on request");
    }
    match first {
        Some(failure) => {
            // The failure says nothing of them.
            lost.iter().for_each(|lost| say(&format!("lunette: {lost}")));
            Err(failure)
        }
        None if lost.is_empty() => Ok(()),
        None => Err(Failure::local(lost.join("; "))),
    }
}

/// Refuses studies of which one cannot be run here, before anything is measured; each of these is said.
fn check_all(laboratory: &Laboratory<'_>, chosen: &[&Study]) -> Result<(), Failure> {
    let refused = |study: &&Study| laboratory.check(study).err().map(|error| failure(study, &error));
    let refused: Vec<Failure> = chosen.iter().filter_map(refused).collect();
    let Some((last, others)) = refused.split_last() else { return Ok(()) };
    others.iter().for_each(|other| say(&format!("lunette: {other}")));
    if chosen.len() > 1 {
        say("lunette: nothing is measured, for not all of these studies can be run");
    }
    Err(last.clone())
}

/// Which studies are run: those that are named, in their order and each once, or all.
fn chosen(all: bool, named: &[Named]) -> Vec<&'static Study> {
    let mut chosen: Vec<&Study> = Vec::new();
    for study in named.iter().map(|named| named.0).chain(studies().iter().filter(|_| all)) {
        if !chosen.iter().any(|one| one.name == study.name) {
            chosen.push(study);
        }
    }
    chosen
}

fn path_of(directory: &Path, study: &Study) -> PathBuf {
    directory.join(format!("{}.json", study.name))
}

/// Refuses what would have less than a result that is there. What else cannot be had is told when the study is run.
fn check_kept(options: &RunOptions, laboratory: &Laboratory<'_>, study: &Study) -> Result<(), Failure> {
    let Some(directory) = &options.output else { return Ok(()) };
    let Ok(planned) = laboratory.planned(study) else { return Ok(()) };
    let own = |(name, value): (&str, String)| (name.to_owned(), value);
    let planned: Vec<_> = planned.into_iter().map(|cell| cell.into_iter().map(own).collect()).collect();
    kept::check(&path_of(directory, study), &planned, options.quick)
}

fn run_one(
    options: &RunOptions,
    laboratory: &Laboratory<'_>,
    study: &Study,
) -> Result<StudyResult, LabError> {
    let progress = Progress::new(study.name, options.quiet);
    let result = laboratory.run(study, &|told| progress.tell(told));
    progress.end();
    result
}

fn failure(study: &Study, error: &LabError) -> Failure {
    match error {
        LabError::Network(_) => Failure::network(study.name, error).with_help(PRIVILEGES_HELP),
        LabError::Plan(_) => Failure::usage(format!("{}: {error}", study.name)),
        _ => Failure::new(study.name, error),
    }
}

/// What tells the form of a result, whatever else is in it.
#[derive(Deserialize)]
struct Form {
    form: u32,
    host: Option<Writer>,
}

#[derive(Deserialize)]
struct Writer {
    /// Its version.
    lunette: Option<String>,
}

impl Form {
    fn refused(self, path: &Path) -> Failure {
        let version = self.host.and_then(|host| host.lunette);
        let version = version.map(|version| format!(", {}", printable(&version))).unwrap_or_default();
        let (path, form) = (path.display(), self.form);
        Failure::local(format!(
            "{path} was written by another version{version}: its form is {form}, and here {FORM}"
        ))
        .with_help("use that version, or run the study again")
    }
}

/// Reads all results of a directory, in the order of the list.
fn read(directory: &Path) -> Result<Vec<StudyResult>, Failure> {
    let mut results: Vec<StudyResult> = Vec::new();
    for study in studies() {
        let path = path_of(directory, study);
        let failed = |error: &dyn std::error::Error| {
            Failure::new(format!("{} is no result of a study", path.display()), error)
        };
        match fs::metadata(&path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
            Err(error) => return Err(failed(&error)),
            // To open a pipe would be to wait for who writes there.
            Ok(metadata) if !metadata.is_file() => {
                return Err(Failure::local(format!("{} is no regular file", path.display())));
            }
            Ok(metadata) if metadata.len() > RESULT_BYTES_MAX => {
                return Err(Failure::local(format!("{} is too long for a result", path.display())));
            }
            Ok(_) => {}
        }
        let text = fs::read_to_string(&path).map_err(|error| failed(&error))?;
        let form: Form = serde_json::from_str(&text).map_err(|error| failed(&error))?;
        if form.form != FORM {
            return Err(form.refused(&path));
        }
        let result: StudyResult = serde_json::from_str(&text).map_err(|error| failed(&error))?;
        if result.study != study.name {
            let (path, name) = (path.display(), printable(&result.study));
            return Err(Failure::local(format!("{path} is the result of another study, {name}"))
                .with_help("a result stands in STUDY.json"));
        }
        results.push(result);
    }
    if results.is_empty() {
        return Err(Failure::usage(format!("{} has no results of studies", directory.display()))
            .with_help("`lunette lab run STUDY --output DIRECTORY` writes some"));
    }
    Ok(results)
}

fn check(directory: &Path, json: bool) -> Result<(), Failure> {
    let verdicts = report::check(&read(directory)?);
    tell(json, &verdicts, |verdicts| verdicts.iter().map(|verdict| format!("{verdict}\n")).collect())?;
    let missed: Vec<&str> =
        verdicts.iter().filter(|verdict| !verdict.is_met()).map(|verdict| &*verdict.study).collect();
    if missed.is_empty() {
        return Ok(());
    }
    Err(Failure::local(format!("the results are not what they are to be: {}", missed.join(", "))))
}

fn make_report(directory: &Path) -> Result<(), Failure> {
    let results = read(directory)?;
    for result in results.iter().filter(|result| result.cells.is_empty()) {
        say(&format!("lunette: {} has no cells: nothing of it was measured", result.study));
    }
    let paths: Vec<PathBuf> = studies().iter().map(|study| path_of(directory, study)).collect();
    let inputs: Vec<output::Input<'_>> = paths.iter().map(|path| ("the result", path.as_path())).collect();
    let written = [("report.html", report::html(&results)), ("report.md", report::markdown(&results))];
    let written = written.map(|(name, text)| (directory.join(name), text));
    written.iter().try_for_each(|(path, _)| output::refuse(path, &inputs))?;
    for (path, text) in written {
        fs::write(&path, text)
            .map_err(|error| Failure::new(format!("cannot write {}", path.display()), &error))?;
        print(&format!("{}\n", path.display()))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_study_that_is_named_twice_is_run_once() {
        let named = ["lu-light", "dr-wan", "lu-light"].map(|name| parse_study(name).expect("a study"));
        let names: Vec<&str> = chosen(false, &named).into_iter().map(|study| study.name).collect();
        assert_eq!(names, ["lu-light", "dr-wan"]);
        assert_eq!(chosen(true, &[]).len(), studies().len());
    }
}
