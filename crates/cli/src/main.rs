//! The binary `lunette`: the command line of the whole system. What it serves and how is in `lunette_target`.

mod advise;
mod banner;
mod bench;
mod connect;
mod device;
mod failure;
mod heap;
mod initiator;
mod lab;
mod log;
mod options;
mod output;
mod pages;
mod ready;
mod runtime;
mod secret;
mod serve;
mod signals;
mod wan;

use std::process::ExitCode;

use options::{Command, Options};

fn main() -> ExitCode {
    let command = Options::of_process().command;
    // A target's buffers are its own affair (`lunette_block`), and who attaches a disk stays.
    let ends_by_itself = match &command {
        Command::Initiator(command) => !command.stays(),
        Command::Bench(_) | Command::Advise(_) | Command::Lab { .. } => true,
        _ => false,
    };
    if ends_by_itself {
        heap::keep_long_buffers();
    }
    let result = match command {
        Command::Serve(options) => serve::serve(*options),
        Command::Secret(options) => secret::secret(&options),
        Command::Initiator(command) => initiator::run(&command),
        Command::Bench(options) => bench::run(&options),
        Command::Advise(options) => advise::run(&options),
        Command::Lab { command } => lab::run(&command),
        Command::Man(options) => pages::man(&options),
        Command::Completions { shell } => pages::completions(shell),
        Command::Wan { command } => {
            return wan::run(&command).unwrap_or_else(|failure| failure.report());
        }
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    }
}
