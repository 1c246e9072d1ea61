//! The command line: one definition, from which help, man pages and shell completions come.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::error::{ContextValue, Error};
use clap::{Args, CommandFactory, Parser, Subcommand};
use clap_complete::Shell;
use lunette_initiator::without_secrets;
use lunette_target::config::{
    AccessRule, Cores, LunFlag, Poll, parse_allow_flag, parse_portal, parse_target_name,
};

use crate::advise::{AdviseOptions, EXAMPLES as ADVISE_EXAMPLES};
use crate::bench::{BenchOptions, after_help};
use crate::initiator::InitiatorCommand;
use crate::lab::LabCommand;
use crate::log::LogFilter;
use crate::wan::WanCommand;

const EXAMPLES: &str = "\
Examples:
  lunette serve --lun disk0.img,size=10G
  lunette serve --portal 0.0.0.0:3260 --target iqn.2026-11.io.lunette:vm \\
                --lun 0=file:vm.img,size=20G,write=back --lun 1=mem:1G --lun 2=/dev/loop0,ro
  lunette serve --lun disk0.img --chap-user host-a=file:host-a.secret
  lunette serve --config lunette.toml";

const ALL_EXAMPLES: &str = "\
Examples:
  lunette serve --lun disk0.img,size=10G
  lunette serve --config lunette.toml
  lunette discover 192.0.2.10
  lunette info iscsi://192.0.2.10/iqn.2026-11.io.lunette:vm/0
  lunette copy iscsi://192.0.2.10/iqn.2026-11.io.lunette:vm/0 vm.img";

const LUN_HELP: &str = "\
A logical unit: [N=]STORE[,OPTION...]

STORE is
  PATH or file:PATH    an image file; below /dev/ a block device
  device:PATH          a block device
  mem:SIZE             memory; gone when the process ends
  null:SIZE            reads zeroes, drops writes: to measure

OPTION is
  size=SIZE            create a missing image, sparse
  ro                   refuse every change
  removable            a removable medium: initiators may eject, load and lock it
  block=512|4096       logical block length
  protection=1|3       keep protection information with each block (T10 DIF)
  provisioning=thin|thick
                       take space when blocks are written, or all of it from the start
  write=through|back   answer a write when it is stable, or sooner
  engine=auto|sync|threads|direct|uring
                       who waits for the disk; direct and uring go past the page cache
  serial=TEXT          serial number, and with it the identity
  vendor=TEXT          up to 8 characters
  product=TEXT         up to 16 characters

The first is the default; a block device has its own block length. SIZE is bytes, or a number with K, M, G, T \
or P (1024 times the one before). Without N the lowest free number is taken. A comma in a path \
or value is written \\, and a backslash \\\\.";

/// An iSCSI target and initiator in user space: serves disks, and reads, writes and copies them
#[derive(Debug, Parser)]
#[command(name = "lunette", version, after_help = ALL_EXAMPLES, arg_required_else_help = true)]
pub(crate) struct Options {
    #[command(subcommand)]
    pub(crate) command: Command,
}

impl Options {
    /// Reads the command line of this process, and ends it where there is nothing to be done: help was asked for, or something is
    /// wrong. What is shown then of an argument has no secrets, which a URL may have.
    pub(crate) fn of_process() -> Self {
        Self::try_parse().unwrap_or_else(|error| told_without_secrets(error).exit())
    }
}

/// The same error with what was typed as [`without_secrets`] shows it.
fn told_without_secrets(mut error: Error) -> Error {
    let shown = |value: &ContextValue| match value {
        ContextValue::String(text) => Some(ContextValue::String(without_secrets(text))),
        ContextValue::Strings(texts) => {
            Some(ContextValue::Strings(texts.iter().map(|text| without_secrets(text)).collect()))
        }
        _ => None,
    };
    let told: Vec<_> = error.context().filter_map(|(kind, value)| Some((kind, shown(value)?))).collect();
    for (kind, value) in told {
        error.insert(kind, value);
    }
    error
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Serve files, block devices and memory as SCSI disks
    ///
    /// Runs until SIGTERM or SIGINT (ctrl-C), then drains: no new logins, running commands end, initiators are asked
    /// to log out, volumes are flushed. A second signal ends it at once. SIGHUP reads the file of --config again.
    ///
    /// Exit status: 0 when everything that was acknowledged is stable, 1 when it may not be or when serving failed,
    /// 2 when the command line or the configuration is wrong.
    #[command(
        after_help = EXAMPLES,
        override_usage = "lunette serve [OPTIONS] --lun <LUN>...\n       lunette serve [OPTIONS] --config <FILE>"
    )]
    Serve(Box<ServeOptions>),
    /// Make a random secret for CHAP
    ///
    /// 16 characters, which carry 96 random bits: as many as RFC 7143 asks for, and as many characters as Windows
    /// takes. It is printed, or written to a new file that only its owner can read.
    Secret(SecretOptions),
    #[command(flatten)]
    Initiator(Box<InitiatorCommand>),
    /// Measure a disk under a workload: rates, latencies, where the time goes
    ///
    /// Ctrl-C ends it and tells what was measured by then; a second one ends it at once. A closed terminal ends it, too.
    #[command(after_help = after_help())]
    Bench(Box<BenchOptions>),
    /// Predict what a network lets through, and which settings lift it
    ///
    /// The path is described by flags, or measured by reading a disk. The model says what is to be expected of a workload, which
    /// parameter limits it, and which settings lift that, as commands to paste.
    #[command(after_help = ADVISE_EXAMPLES)]
    Advise(Box<AdviseOptions>),
    /// Repeat published studies on emulated networks
    Lab {
        #[command(subcommand)]
        command: Box<LabCommand>,
    },
    /// Emulate a network on this machine
    Wan {
        #[command(subcommand)]
        command: Box<WanCommand>,
    },
    /// Print a manual page, or write all of them
    Man(ManOptions),
    /// Print the completions for a shell
    Completions {
        /// For which shell
        shell: Shell,
    },
}

#[derive(Debug, Args)]
pub(crate) struct ServeOptions {
    /// A logical unit: [N=]STORE[,OPTION...], for example disk0.img,size=10G; may be repeated
    #[arg(
        long,
        value_name = "LUN",
        required_unless_present = "config",
        conflicts_with = "config",
        long_help = LUN_HELP
    )]
    pub(crate) lun: Vec<LunFlag>,
    /// Serve what this file says (lunette.toml); it takes the place of --lun, --portal and --target
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Listen on this IP address and port; may be repeated [default: 127.0.0.1:3260]
    ///
    /// Without a port it is 3260; port 0 picks a free one. 0.0.0.0 and :: are all addresses of this machine. Without
    /// --chap-user, whoever reaches a portal can read and write its disks.
    #[arg(long, value_name = "ADDRESS", value_parser = parse_portal, conflicts_with = "config")]
    pub(crate) portal: Vec<SocketAddr>,
    /// The target's iSCSI name [default: iqn.2026-11.io.lunette: and the name of this host]
    #[arg(long, value_name = "NAME", value_parser = parse_target_name, conflicts_with = "config")]
    pub(crate) target: Option<String>,
    /// Serve connections on these processors only, one thread on each, for example 0-3,6, or those of a NUMA node: node0
    /// [default: one thread for each processor, wherever the system puts them]
    #[arg(long, value_name = "LIST", conflicts_with = "config")]
    pub(crate) cores: Option<Cores>,
    /// When threads that serve connections stay awake while they wait: adaptive, while that pays; always: each takes a whole
    /// processor, and answers without being woken; never: asleep at once [default: adaptive; --poll alone: always]
    #[arg(
        long,
        value_name = "WHEN",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "always",
        conflicts_with = "config"
    )]
    pub(crate) poll: Option<Poll>,
    /// Have buffers and disks in memory in large pages, if the kernel lets programs ask for them; the log says what came of it
    #[arg(long, conflicts_with = "config")]
    pub(crate) large_pages: bool,
    /// Keep the state of the logical units in this directory, which is made if it is missing: reservations that outlive
    /// a restart, and settings [default: beside each image; for block devices nowhere]
    #[arg(long, value_name = "DIRECTORY", conflicts_with = "config")]
    pub(crate) state_directory: Option<PathBuf>,
    /// Record what initiators read and write in this directory, which is made if it is missing, a file for each logical unit: a
    /// trace that `lunette bench --trace` replays
    #[arg(long, value_name = "DIRECTORY", conflicts_with = "config")]
    pub(crate) trace_directory: Option<PathBuf>,
    /// Also record there where the time of each task goes, for `lunette bench --target-times`
    #[arg(long, requires = "trace_directory", conflicts_with = "config")]
    pub(crate) task_times: bool,
    /// Let in only who proves by CHAP to be this user: NAME=file:PATH or NAME=env:VARIABLE; may be repeated
    ///
    /// The secret is the one line of the file, or the value of the environment variable: 12 bytes at least, see
    /// `lunette secret`. Others must not be able to read the file, nor its group to write it.
    #[arg(long, value_name = "USER", conflicts_with = "config")]
    pub(crate) chap_user: Vec<String>,
    /// Prove the target to initiators that ask for it (mutual CHAP): NAME=file:PATH or NAME=env:VARIABLE
    #[arg(long, value_name = "NAME", conflicts_with = "config", requires = "chap_user")]
    pub(crate) chap_mutual: Option<String>,
    /// Let only this user discover targets; as --chap-user [default: everybody]
    #[arg(long, value_name = "USER", conflicts_with = "config")]
    pub(crate) discovery_user: Vec<String>,
    /// Let in only initiators from this IP address or network, or with this name, in which * and ? are wildcards; may be
    /// repeated, and one that fits is enough [default: everybody]
    ///
    /// A name is what an initiator says of itself: --chap-user has it proven.
    #[arg(long, value_name = "WHO", value_parser = parse_allow_flag, conflicts_with = "config")]
    pub(crate) allow: Vec<AccessRule>,
    /// Say what is served as one line of JSON on the standard output, instead of in words
    #[arg(long)]
    pub(crate) json: bool,
    /// Write the same line of JSON to this inherited file descriptor when all is ready, and close it
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(i32).range(3..))]
    pub(crate) ready_fd: Option<i32>,
    /// What to log on the standard error: off, error, warn, info, debug, trace, or a filter such as
    /// info,lunette_target=debug
    #[arg(long, value_name = "LEVEL", default_value_t)]
    pub(crate) log: LogFilter,
}

#[derive(Debug, Args)]
pub(crate) struct SecretOptions {
    /// Random bits: 96 or 128. 128 take 22 characters, more than Windows takes
    #[arg(long, value_name = "BITS", default_value_t = 96, value_parser = parse_bits)]
    pub(crate) bits: u16,
    /// Write it to this file, which must not exist, instead of the standard output
    #[arg(long, value_name = "FILE")]
    pub(crate) out: Option<PathBuf>,
}

fn parse_bits(text: &str) -> Result<u16, String> {
    match text {
        "96" => Ok(96),
        "128" => Ok(128),
        _ => Err("use 96 or 128".to_owned()),
    }
}

#[derive(Debug, Args)]
pub(crate) struct ManOptions {
    /// Which page: a subcommand's name (wan-run for one of another), or nothing for the overview
    #[arg(value_name = "COMMAND")]
    pub(crate) page: Option<String>,
    /// Write all pages into this directory, which is created if it is missing
    #[arg(long, value_name = "DIRECTORY", conflicts_with = "page")]
    pub(crate) out: Option<PathBuf>,
}

/// The definition of the command line, complete with the names of the subcommands' pages.
pub(crate) fn definition() -> clap::Command {
    let mut command = Options::command();
    command.build();
    command
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::error::ErrorKind;

    fn refused(arguments: &[&str]) -> ErrorKind {
        Options::try_parse_from(std::iter::once("lunette").chain(arguments.iter().copied()))
            .unwrap_err()
            .kind()
    }

    #[test]
    fn the_definition_is_consistent() {
        Options::command().debug_assert();
    }

    #[test]
    fn flags_and_a_file_exclude_each_other() {
        for flag in [
            ["--lun", "a"],
            ["--portal", "::1"],
            ["--target", "iqn.2026-11.io.lunette:a"],
            ["--chap-user", "a=env:A"],
            ["--discovery-user", "a=env:A"],
            ["--allow", "::1"],
        ] {
            let arguments = ["serve", "--config", "l.toml", flag[0], flag[1]];
            assert_eq!(refused(&arguments), ErrorKind::ArgumentConflict, "{flag:?}");
        }
        for flag in ["--poll", "--poll=never", "--large-pages"] {
            let arguments = ["serve", "--config", "l.toml", flag];
            assert_eq!(refused(&arguments), ErrorKind::ArgumentConflict, "{flag}");
        }
        assert_eq!(refused(&["serve"]), ErrorKind::MissingRequiredArgument);
        let lonely = ["serve", "--lun", "a", "--chap-mutual", "t=env:T"];
        assert_eq!(refused(&lonely), ErrorKind::MissingRequiredArgument);
    }

    #[test]
    fn poll_alone_is_always() {
        let poll = |arguments: &[&str]| {
            let options =
                Options::try_parse_from(["lunette", "serve", "--lun", "a"].iter().chain(arguments).copied());
            match options.map(|options| options.command) {
                Ok(Command::Serve(serve)) => serve.poll,
                other => panic!("{arguments:?}: {other:?}"),
            }
        };
        assert_eq!(poll(&[]), None);
        assert_eq!(poll(&["--poll", "--cores", "0"]), Some(Poll::Always));
        assert_eq!(poll(&["--poll=never"]), Some(Poll::Never));
        assert_eq!(refused(&["serve", "--lun", "a", "--poll=true"]), ErrorKind::ValueValidation);
    }

    #[test]
    fn standard_streams_are_no_ready_descriptors() {
        assert_eq!(refused(&["serve", "--lun", "a", "--ready-fd", "2"]), ErrorKind::ValueValidation);
    }

    /// The commands of a page's shell blocks that begin with `lunette`, up to a comment, pipe or redirection.
    fn commands(page: &str) -> Vec<Vec<String>> {
        let mut inside = false;
        let joined = page.replace("\\\n", " ");
        let lines = joined.lines().filter(|line| {
            if line.starts_with("```") {
                inside = *line == "```sh";
            }
            inside && line.starts_with("lunette ")
        });
        let ends = |word: &&str| ["#", "|", "&"].contains(word) || word.contains('>');
        let words = |line: &str| {
            line.split_whitespace()
                .take_while(|word| !ends(word))
                .map(|word| word.trim_matches('\'').to_owned())
                .collect()
        };
        lines.map(words).collect()
    }

    #[test]
    fn the_commands_of_the_guide_are_good() {
        let directory = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let mut seen = 0;
        for page in [
            "README.md",
            "docs/guide/serve.md",
            "docs/guide/connect.md",
            "docs/guide/authentication.md",
            "docs/guide/access.md",
            "docs/guide/initiator.md",
            "docs/guide/attach.md",
            "docs/guide/bench.md",
            "docs/guide/advise.md",
        ] {
            let text = std::fs::read_to_string(directory.join(page)).unwrap();
            for command in commands(&text) {
                match Options::try_parse_from(&command) {
                    Ok(_) => {}
                    Err(error) if error.kind() == ErrorKind::DisplayHelp => {}
                    Err(error) => panic!("{page}: {command:?}: {error}"),
                }
                seen += 1;
            }
        }
        assert!(seen >= 12, "only {seen} commands were found");
    }

    #[test]
    fn every_lun_option_is_in_the_help() {
        for option in [
            "size=",
            "ro",
            "removable",
            "block=",
            "protection=",
            "write=",
            "engine=",
            "serial=",
            "vendor=",
            "product=",
        ] {
            assert!(LUN_HELP.contains(&format!("\n  {option}")), "{option}");
        }
    }
}
