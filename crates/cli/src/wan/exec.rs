//! `lunette wan exec`: a command at an end of a network that is up.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

use clap::Args;
use lunette_wan::mark;

use super::addressed;
use super::control::{Answer, Directory, Line, NetworkName, Request};
use crate::bench::LINK_VARIABLE;
use crate::failure::Failure;

/// What `lunette wan exec` is told.
#[derive(Debug, Args)]
pub(crate) struct ExecOptions {
    /// The network's name
    name: NetworkName,
    /// At the far end instead of the near one
    #[arg(long)]
    far: bool,
    /// The command and its arguments
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// Becomes the command; only a failure returns.
pub(super) fn exec(options: &ExecOptions) -> Result<ExitCode, Failure> {
    let directory = Directory::open()?;
    let Answer::State(state) = Line::call(&directory, &options.name)?.ask(&options.name, &Request::Show)?
    else {
        return Err(Failure::internal("a network does not say what it is"));
    };
    let mut line = Line::call(&directory, &options.name)?;
    let entrance = line.ask_entrance(&options.name, options.far)?;
    entrance.enter().map_err(|error| {
        Failure::network(format!("the network {} cannot be entered", options.name), &error)
    })?;
    let mut command = Command::new(&options.command[0]);
    let command = addressed(command.args(&options.command[1..])).env(LINK_VARIABLE, &state.report.link);
    mark(command, state.pid)
        .map_err(|error| Failure::network(format!("the network {} is gone", options.name), &error))?;
    let error = command.exec();
    Err(Failure::network(format!("cannot run {}", options.command[0].display()), &error))
}
