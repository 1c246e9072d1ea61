//! `lunette wan exec`: a command at an end of a network that is up.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

use clap::Args;

use super::addressed;
use super::control::{Directory, Line, NetworkName};
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
    let mut line = Line::call(&Directory::open()?, &options.name)?;
    let entrance = line.ask_entrance(&options.name, options.far)?;
    entrance.enter().map_err(|error| {
        Failure::network(format!("the network {} cannot be entered", options.name), &error)
    })?;
    let mut command = Command::new(&options.command[0]);
    let error = addressed(command.args(&options.command[1..])).exec();
    Err(Failure::network(format!("cannot run {}", options.command[0].display()), &error))
}
