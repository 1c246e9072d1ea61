//! Every developer and CI command of Lunette. `cargo xtask test` is the whole test run; the other commands are its
//! steps alone, and what is too long for it.
//!
//! Not shipped with the product. It never needs the network but for `apt-get` and Cargo's own downloads.

#![forbid(unsafe_code)]
// A program for people at a terminal: printing is what it does.
#![allow(clippy::print_stdout)]

mod bench;
mod cargo;
mod conformance;
mod deny;
mod doc_paths;
mod failures;
mod fuzz;
mod lab;
mod layers;
mod lint;
mod packages;
mod prose;
mod report;
mod suites;
mod vm;
mod workspace;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};

use crate::report::Report;
use crate::workspace::Workspace;

/// Lunette's developer and CI commands.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask", about, arg_required_else_help = true)]
struct Options {
    #[command(subcommand)]
    command: Task,
}

#[derive(Debug, Subcommand)]
enum Task {
    /// Everything that must be green before a merge: the steps below up to `conformance`, in that order, `bench instructions`,
    /// and a last line "N passed, N failed, N skipped"
    Test,
    /// Check that the Debian packages that the tests use are there; as root, install the missing ones
    Packages,
    /// rustfmt (check only), clippy and rustdoc, each with warnings denied
    Lint,
    /// Check which crate depends on which, and that PURE crates stay without I/O
    Layers,
    /// Check licences, sources and versions of the dependencies against deny.toml
    Deny,
    /// Check that the files and tests that docs/compliance.md and docs/compliance name exist, and how long lines of prose are
    Docs,
    /// Build the release binary and run the unit, property and fuzz corpus tests
    Unit,
    /// Build the release binary and run the tests that cross crates: foreign peers, crashes, hostile input, drain, README
    Peers {
        /// Only tests whose name contains this
        filter: Option<String>,
    },
    /// Build the images of virtual machines with Debian kernels, unless they are there, and run the tests that boot them
    Vm,
    /// Run libiscsi's iscsi-test-cu against the release binary and compare its skips with tests/conformance/libiscsi.toml
    Conformance(conformance::Options),
    /// Run every fuzz target for a while (needs a nightly toolchain and cargo-fuzz)
    Fuzz {
        /// How long each target runs, in seconds
        #[arg(long, value_name = "SECONDS", default_value_t = 60)]
        seconds: u32,
        /// Only this target
        target: Option<String>,
    },
    /// Measure speed: beside other targets, a bare loop and local disks, at scale, in instructions (docs/guide/measure.md)
    #[command(subcommand)]
    Bench(bench::Bench),
    /// Run the lab's studies with the release binary under a clock, check the results and print a table (docs/guide/measure.md)
    Lab(lab::Options),
    /// Kill the target at random moments under load and check that what it acknowledged is there
    Crash {
        /// How many rounds, in each of the two durability modes
        #[arg(long, value_name = "N", default_value_t = 5)]
        rounds: u32,
        /// Replay this seed
        #[arg(long, value_name = "NUMBER")]
        seed: Option<u64>,
    },
    /// What a night has time for: `test`, then every property with 100 times its cases, 100 crash rounds and every fuzz target
    /// for five minutes
    Nightly,
}

fn main() -> ExitCode {
    let options = Options::parse();
    match lunette_tests::process::end_groups_on_signal()
        .map_err(Into::into)
        .and_then(|()| run(options.command))
    {
        Ok(true) => ExitCode::SUCCESS,
        // Said already, in the counts.
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Returns true if nothing failed.
fn run(task: Task) -> Result<bool> {
    let workspace = Workspace::find()?;
    let mut report = Report::new();
    match task {
        Task::Bench(what) => return bench::run(&workspace, &what),
        Task::Lab(options) => return lab::run_all(&workspace, &options),
        Task::Test => test(&workspace, &mut report),
        Task::Packages => packages::step(&mut report),
        Task::Lint => lint::steps(&workspace, &mut report),
        Task::Layers => layers::step(&workspace, &mut report),
        Task::Deny => deny::step(&workspace, &mut report),
        Task::Docs => {
            doc_paths::step(&workspace, &mut report);
            prose::step(&workspace, &mut report);
        }
        Task::Unit => {
            if let Some(binary) = suites::build(&workspace, &mut report) {
                suites::unit(&workspace, &mut report, &binary);
            }
        }
        Task::Peers { filter } => with_binary(&workspace, &mut report, |report, binary| {
            let images = vm::images(&workspace, report);
            suites::peers(&workspace, report, binary, &images, filter.as_deref());
        }),
        Task::Vm => with_binary(&workspace, &mut report, |report, binary| {
            let images = vm::images(&workspace, report);
            if !images.is_empty() {
                suites::vm(&workspace, report, binary, &images);
            }
        }),
        Task::Conformance(options) if options.is_foreign() => {
            conformance::step(&workspace, &mut report, None, &options);
        }
        Task::Conformance(options) => with_binary(&workspace, &mut report, |report, binary| {
            conformance::step(&workspace, report, Some(binary), &options);
        }),
        Task::Fuzz { seconds, target } => fuzz::step(&workspace, &mut report, seconds, target.as_deref()),
        Task::Crash { rounds, seed } => with_binary(&workspace, &mut report, |report, binary| {
            suites::crash(&workspace, report, binary, rounds, seed);
        }),
        Task::Nightly => nightly(&workspace, &mut report),
    }
    report.finish()
}

fn with_binary(workspace: &Workspace, report: &mut Report, then: impl FnOnce(&mut Report, &PathBuf)) {
    if let Some(binary) = suites::build(workspace, report) {
        then(report, &binary);
    }
}

fn test(workspace: &Workspace, report: &mut Report) {
    packages::step(report);
    lint::format(workspace, report);
    layers::step(workspace, report);
    deny::step(workspace, report);
    doc_paths::step(workspace, report);
    prose::step(workspace, report);
    lint::clippy(workspace, report);
    lint::documentation(workspace, report);
    with_binary(workspace, report, |report, binary| {
        suites::unit(workspace, report, binary);
        let images = vm::images(workspace, report);
        suites::peers(workspace, report, binary, &images, None);
        conformance::step(workspace, report, Some(binary), &conformance::Options::default());
        bench::instructions::step(workspace, report);
    });
}

fn nightly(workspace: &Workspace, report: &mut Report) {
    test(workspace, report);
    with_binary(workspace, report, |report, binary| {
        suites::properties(workspace, report, binary, 100);
        suites::crash(workspace, report, binary, 100, None);
    });
    fuzz::step(workspace, report, 300, None);
}
