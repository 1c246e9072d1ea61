//! `lunette-bench`: a load generator and the yardsticks that Lunette is measured with. It is not shipped.
//!
//! Each subcommand prints JSON on standard output, one object a line, and says everything else on standard error.
#![allow(clippy::print_stdout, reason = "standard output is what it is for")]

mod chap;
mod floor;
mod idle;
mod limits;
mod link;
mod load;
mod login;
mod outbox;
mod stream;
mod url;
mod wait;

use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};

/// A load generator and yardsticks for iSCSI targets
#[derive(Debug, Parser)]
#[command(version)]
struct Options {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Reads and writes as fast as the target answers, and says how fast that was
    Load(Box<load::Options>),
    /// Serves a disk without a protocol core, as fast as plain code can: the yardstick
    Floor(floor::Options),
    /// Reads a file over TCP by sendfile alone: what large reads cost at least
    Stream(stream::Options),
    /// Logs sessions in and holds them, idle, until standard input ends
    Idle(idle::Options),
}

fn main() -> ExitCode {
    match run(Options::parse().command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(command: Command) -> Result<()> {
    match command {
        Command::Load(options) => println!("{}", load::run(&options)?),
        Command::Floor(options) => floor::run(&options)?,
        Command::Stream(options) => stream::run(&options)?,
        Command::Idle(options) => idle::run(&options)?,
    }
    Ok(())
}
