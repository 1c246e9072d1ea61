//! Programs that say on their first line that they are ready, and then run until they are ended.
//!
//! Not here: what the line says, which is each program's own.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};

/// A program that runs beside us; killed when dropped.
#[derive(Debug)]
pub struct Server {
    child: Child,
    first_line: String,
    // Open as long as the program is to run: some end with their input.
    _stdin: Option<ChildStdin>,
}

impl Server {
    /// Starts it and waits for its first line, `limit` at the longest. Its standard error goes to `log`.
    ///
    /// # Errors
    /// It cannot be started, ended, or said nothing; the text has its log.
    pub fn start(command: &mut Command, log: &Path, limit: Duration) -> Result<Self> {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(File::create(log)?)
            .spawn()
            .with_context(|| format!("cannot start {:?}", command.get_program()))?;
        let stdin = child.stdin.take();
        let stdout = child.stdout.take().context("the child's standard output")?;
        let mut server = Self { child, first_line: String::new(), _stdin: stdin };
        server.first_line = first_line(stdout, limit).map_err(|error| {
            let log = std::fs::read_to_string(log).unwrap_or_default();
            anyhow!("{:?}: {error:#}: {}", command.get_program(), log.trim())
        })?;
        Ok(server)
    }

    /// What it said first.
    #[must_use]
    pub fn first_line(&self) -> &str {
        &self.first_line
    }

    /// The process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended already; either way nothing is left afterwards.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The first line; what follows is read and dropped, so that the child never waits for us.
pub(crate) fn first_line(stdout: ChildStdout, limit: Duration) -> Result<String> {
    next_line(&lines(stdout), limit)
}

/// All lines, read as they come, whether somebody waits for them or not.
pub(crate) fn lines(stdout: ChildStdout) -> Receiver<String> {
    let (sender, receiver) = channel();
    thread::spawn(move || {
        for line in BufReader::new(stdout).lines().map_while(std::result::Result::ok) {
            // Nobody may be there any more.
            let _ = sender.send(line);
        }
    });
    receiver
}

pub(crate) fn next_line(lines: &Receiver<String>, limit: Duration) -> Result<String> {
    match lines.recv_timeout(limit) {
        Ok(line) => Ok(line),
        Err(RecvTimeoutError::Timeout) => bail!("not ready within {} s", limit.as_secs()),
        Err(RecvTimeoutError::Disconnected) => bail!("ended before it was ready"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hears_the_first_line_or_what_went_wrong() {
        let directory = tempfile::tempdir().expect("a directory");
        let log = directory.path().join("log");
        let shell = |script: &str| {
            let mut command = Command::new("sh");
            command.args(["-c", script]);
            Server::start(&mut command, &log, Duration::from_secs(30))
        };
        assert_eq!(shell("echo ready; echo more; cat").expect("ready").first_line(), "ready");
        let error = shell("echo refused >&2; exit 1").expect_err("not ready").to_string();
        assert!(error.contains("ended before it was ready") && error.contains("refused"), "{error}");
    }
}
