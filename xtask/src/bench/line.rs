//! An emulated line with a target at its far end, and a shell at the near one that is told what to run.
//!
//! The network belongs to `lunette wan run`, whose near command is that shell. It reads from this process: when this one ends, however that
//! happens, the shell's input ends, and with the shell the target and the network.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use rustix::process::{Pid, Signal, kill_process};

/// How long the network and the target take to be there at most, or to be gone.
const START_LIMIT: Duration = Duration::from_secs(30);

/// The target's port.
const PORT: &str = "3260";
const FAR: &str = "198.18.0.2";
const TARGET: &str = "iqn.2026-11.io.lunette:far";

/// See the module's documentation.
#[derive(Debug)]
pub(super) struct Line {
    child: Child,
    /// Until the shell is to end.
    input: Option<ChildStdin>,
    /// The status of each command.
    statuses: Receiver<String>,
    output: PathBuf,
    log: PathBuf,
}

impl Line {
    /// Makes the network and starts a target with this `--lun`. Logs go to this directory.
    ///
    /// # Errors
    /// There is no network, or the target does not start.
    pub(super) fn up(lunette: &Path, link: &str, lun: &str, directory: &Path) -> Result<Self> {
        let [log, far_log, output] = ["line.log", "far.log", "near.log"].map(|name| directory.join(name));
        let serve = [&lunette.display().to_string(), "serve", "--portal", &format!("{FAR}:{PORT}")];
        let far = words(serve.into_iter().chain(["--target", TARGET, "--lun", lun]));
        let far = format!("exec {far} >{} 2>&1", quoted(&far_log.display().to_string()));
        let mut command = Command::new(lunette);
        command.args([
            "wan",
            "run",
            "--quiet",
            "--link",
            link,
            "--far",
            &far,
            "--far-port",
            PORT,
            "--",
            "sh",
        ]);
        let stderr = std::fs::File::create(&log)?;
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(stderr);
        let mut child = command.spawn().context("cannot start lunette wan run")?;
        let (input, stdout) = (child.stdin.take(), child.stdout.take().context("its standard output")?);
        let (sender, statuses) = channel();
        thread::spawn(move || {
            // Nobody listens any more when this ends early.
            let lines = BufReader::new(stdout).lines().map_while(Result::ok);
            lines.map(|line| sender.send(line)).find(std::result::Result::is_err)
        });
        let mut line = Self { child, input, statuses, output, log };
        line.run(["true"], START_LIMIT).context(format!("no line {link}"))?;
        Ok(line)
    }

    /// The URL of the target's first unit.
    pub(super) fn url() -> String {
        format!("iscsi://{FAR}:{PORT}/{TARGET}/0")
    }

    /// Runs a command at the near end; answers how long that took.
    ///
    /// # Errors
    /// It fails, or does not end in time; the text has what it said.
    pub(super) fn run<'a>(
        &mut self,
        arguments: impl IntoIterator<Item = &'a str>,
        limit: Duration,
    ) -> Result<Duration> {
        let command = words(arguments);
        let output = quoted(&self.output.display().to_string());
        let input = self.input.as_mut().context("the line has ended")?;
        let began = Instant::now();
        writeln!(input, "{command} </dev/null >{output} 2>&1; echo $?")
            .and_then(|()| input.flush())
            .map_err(|error| anyhow!("{error}: {}", said(&self.log)))?;
        let status = self.statuses.recv_timeout(limit);
        let took = began.elapsed();
        let status = status
            .map_err(|error| anyhow!("{command}: {error}: {}{}", said(&self.log), said(&self.output)))?;
        ensure!(status == "0", "{command}: exit status {status}: {}", said(&self.output));
        Ok(took)
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        self.input = None;
        let began = Instant::now();
        while matches!(self.child.try_wait(), Ok(None)) {
            // A command that does not end is ended with the network.
            if began.elapsed() > START_LIMIT
                && let Some(pid) = Pid::from_raw(self.child.id() as i32)
            {
                let _ = kill_process(pid, Signal::TERM);
                let _ = self.child.wait();
                return;
            }
            thread::sleep(Duration::from_millis(20));
        }
    }
}

fn said(log: &Path) -> String {
    std::fs::read_to_string(log).unwrap_or_default().trim().to_owned()
}

/// As a shell takes them.
fn words<'a>(arguments: impl IntoIterator<Item = &'a str>) -> String {
    arguments.into_iter().map(quoted).collect::<Vec<_>>().join(" ")
}

fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shell_takes_words_as_they_are() {
        let strange = ["printf", "%s|", "a b", "it's", "$HOME", "", "\\"];
        let output = Command::new("sh").args(["-c", &words(strange)]).output().expect("a shell");
        assert_eq!(String::from_utf8_lossy(&output.stdout), "a b|it's|$HOME||\\|");
    }
}
