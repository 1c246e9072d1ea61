//! A target and the commands that use it, both of the binary under test.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// The target's name.
pub(crate) const TARGET: &str = "iqn.2026-11.io.lunette:cli";

/// `lunette serve`, ended with the test.
pub(crate) struct Served {
    child: Child,
    portal: String,
}

impl Served {
    /// Serves these units, and takes further flags.
    pub(crate) fn start(units: &[&str], flags: &[&str]) -> Served {
        let mut command = Command::new(env!("CARGO_BIN_EXE_lunette"));
        command.args(["serve", "--portal", "127.0.0.1:0", "--target", TARGET, "--log", "off", "--json"]);
        for unit in units {
            command.args(["--lun", unit]);
        }
        let mut child = command.args(flags).stdout(Stdio::piped()).spawn().expect("the binary runs");
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("piped")).read_line(&mut line).expect("a line");
        let ready: Value = serde_json::from_str(&line).expect("JSON");
        let portal = ready["portals"][0].as_str().expect("a portal").to_owned();
        Served { child, portal }
    }

    /// Ends it as an operator would.
    pub(crate) fn terminate(mut self) {
        let pid = Pid::from_raw(self.child.id() as i32).expect("a process");
        kill_process(pid, Signal::TERM).expect("it is there");
        assert!(self.child.wait().expect("it ends").success());
    }

    /// Ends it as a loss of power would.
    pub(crate) fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    pub(crate) fn portal(&self) -> &str {
        &self.portal
    }

    pub(crate) fn url(&self, lun: u16) -> String {
        format!("iscsi://{}/{TARGET}/{lun}", self.portal)
    }

    /// With a user in front, and keys behind.
    pub(crate) fn url_with(&self, user: &str, lun: u16, keys: &str) -> String {
        format!("iscsi://{user}{}/{TARGET}/{lun}?{keys}", self.portal)
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.kill();
    }
}

/// What a command said, and how it ended.
#[derive(Debug)]
pub(crate) struct Said {
    pub(crate) status: Option<i32>,
    pub(crate) out: Vec<u8>,
    pub(crate) err: String,
}

impl Said {
    pub(crate) fn text(&self) -> String {
        String::from_utf8(self.out.clone()).expect("text")
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.out).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }
}

impl From<Output> for Said {
    fn from(output: Output) -> Said {
        let err = String::from_utf8(output.stderr).expect("text");
        Said { status: output.status.code(), out: output.stdout, err }
    }
}

/// Runs a command with these variables in its environment, beside those of the test.
pub(crate) fn run_in(variables: &[(&str, &str)], arguments: &[&str]) -> Said {
    let mut command = Command::new(env!("CARGO_BIN_EXE_lunette"));
    command.args(arguments).envs(variables.iter().copied()).stdin(Stdio::null());
    command.output().expect("the binary runs").into()
}

/// Runs a command with this on its standard input.
pub(crate) fn run_with(input: &[u8], arguments: &[&str]) -> Said {
    let mut child = Command::new(env!("CARGO_BIN_EXE_lunette"))
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary runs");
    let mut stdin = child.stdin.take().expect("piped");
    let input = input.to_vec();
    // On a thread of its own: the command may write before it has read all. It may also end before.
    let writer = std::thread::spawn(move || drop(stdin.write_all(&input)));
    let output = child.wait_with_output().expect("it ends");
    writer.join().expect("the input is written");
    output.into()
}

pub(crate) fn run(arguments: &[&str]) -> Said {
    run_with(&[], arguments)
}

/// Runs a command that must end well.
pub(crate) fn good(arguments: &[&str]) -> Said {
    let said = run(arguments);
    assert_eq!(said.status, Some(0), "{arguments:?}: {said:?}");
    said
}

/// Runs a command that must fail with this status, and gives what it says.
pub(crate) fn refused(status: i32, arguments: &[&str]) -> String {
    let said = run(arguments);
    assert_eq!(said.status, Some(status), "{arguments:?}: {said:?}");
    assert!(said.err.starts_with("error: ") || said.err.starts_with('{'), "{said:?}");
    said.err
}

pub(crate) fn path(path: &Path) -> &str {
    path.to_str().expect("text")
}
