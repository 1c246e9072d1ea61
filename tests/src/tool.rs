//! Foreign tools as the tests call them: a program, its arguments, its output; what goes wrong names all three.

use std::ffi::OsStr;
use std::process::Command;
use std::time::Duration;

use crate::packages::find_program;
use crate::process::{Finished, run};

/// Longer than any tool in the tests takes.
const LIMIT: Duration = Duration::from_secs(600);

/// Runs a tool to its end, whatever that is.
///
/// # Panics
/// It cannot be started: tests ask with [`need_programs!`](crate::need_programs!) before.
pub fn tool(program: &str, arguments: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Finished {
    let path = find_program(program).unwrap_or_else(|| panic!("{program} is not installed"));
    let mut command = Command::new(path);
    // Tools of Debian print numbers and messages by the language of the user.
    command.args(arguments).env("LC_ALL", "C");
    run(&mut command, LIMIT).unwrap_or_else(|error| panic!("{error}"))
}

/// Runs a tool and returns its output.
///
/// # Panics
/// It cannot be started or does not end with status 0.
pub fn tool_output(program: &str, arguments: impl IntoIterator<Item = impl AsRef<OsStr>>) -> String {
    let finished = tool(program, arguments);
    assert!(finished.success(), "{program}: {}:\n{}", finished.ending(), finished.output);
    finished.output
}
