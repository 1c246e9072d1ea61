//! Foreign programs under a time limit: output is collected line by line, and what overstays is ended as a group.
//!
//! Not a general process library: standard input is always closed, standard output and standard error are one stream.

use std::fs;
use std::io::{self, BufRead, BufReader, PipeReader};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};

/// How often a quiet program is looked at.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// How long the output of an ended program may stay open in a grandchild before the whole group is ended.
const ORPHAN_GRACE: Duration = Duration::from_secs(2);

/// Groups that are running now, for [`end_groups_on_signal`].
static GROUPS: Mutex<Vec<Pid>> = Mutex::new(Vec::new());

/// What a program left behind.
#[derive(Debug)]
pub struct Finished {
    /// The exit status; `None` if the time limit ended the program.
    pub status: Option<ExitStatus>,
    /// Standard output and standard error, in the order in which they came.
    pub output: String,
    /// From start to end.
    pub elapsed: Duration,
}

impl Finished {
    /// True if the program ended by itself with status 0.
    #[must_use]
    pub fn success(&self) -> bool {
        self.status.is_some_and(|status| status.success())
    }

    /// How it ended, in words: "exit status 1", "killed by signal 11", "no end within the time limit".
    #[must_use]
    pub fn ending(&self) -> String {
        match self.status {
            None => format!("no end within the time limit ({} s)", self.elapsed.as_secs()),
            Some(status) => match (status.code(), status.signal()) {
                (Some(code), _) => format!("exit status {code}"),
                (None, Some(signal)) => format!("killed by signal {signal}"),
                (None, None) => status.to_string(),
            },
        }
    }
}

/// Runs `command` for `limit` at the longest and returns its whole output.
///
/// # Errors
/// The program could not be started.
pub fn run(command: &mut Command, limit: Duration) -> io::Result<Finished> {
    run_with(command, limit, |_| ())
}

/// As [`run`], and hands every line (without its end) to `on_line` as it comes.
///
/// # Errors
/// The program could not be started.
pub fn run_with(
    command: &mut Command,
    limit: Duration,
    mut on_line: impl FnMut(&str),
) -> io::Result<Finished> {
    let start = Instant::now();
    // One pipe for both streams keeps their order.
    let (reader, writer) = io::pipe()?;
    command.stdin(Stdio::null()).stdout(writer.try_clone()?).stderr(writer).process_group(0);
    let spawned = command.spawn();
    // The command holds the pipe's writing ends until they are replaced; only then does the pipe end with the program.
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let mut child = spawned.map_err(|error| named(command, &error))?;
    let group = Group::new(&child);
    let lines = read_lines(reader);

    let mut output = String::new();
    let mut ended: Option<(ExitStatus, Instant)> = None;
    loop {
        match lines.recv_timeout(POLL_INTERVAL) {
            Ok(line) => {
                on_line(line.trim_end_matches(['\n', '\r']));
                output.push_str(&line);
            }
            Err(RecvTimeoutError::Disconnected) => break,
            Err(RecvTimeoutError::Timeout) => {
                if ended.is_none() {
                    ended = child.try_wait()?.map(|status| (status, Instant::now()));
                }
                if ended.is_some_and(|(_, when)| when.elapsed() > ORPHAN_GRACE) {
                    break;
                }
            }
        }
        if start.elapsed() > limit {
            break;
        }
    }
    let status = match ended {
        Some((status, _)) => Some(status),
        None => wait_until(&mut child, start + limit)?,
    };
    group.end();
    if status.is_none() {
        child.wait()?;
    }
    Ok(Finished { status, output, elapsed: start.elapsed() })
}

/// Processes that this one has started, directly or not, and their arguments.
///
/// # Errors
/// The system does not say which processes there are.
pub fn started_by(parent: u32) -> io::Result<Vec<(u32, String)>> {
    let mut all = Vec::new();
    for entry in fs::read_dir("/proc")?.flatten() {
        let Ok(id) = entry.file_name().to_string_lossy().parse::<u32>() else { continue };
        let stat = fs::read_to_string(entry.path().join("stat")).unwrap_or_default();
        // State and parent stand behind the name, which is in parentheses (proc(5)).
        let words = stat.rsplit_once(')').map(|pair| pair.1.split_whitespace().collect::<Vec<_>>());
        let of = words.and_then(|words| words.get(1)?.parse::<u32>().ok());
        let arguments =
            fs::read_to_string(entry.path().join("cmdline")).unwrap_or_default().replace('\0', " ");
        all.extend(of.map(|of| (id, of, arguments)));
    }
    let mut found: Vec<(u32, String)> = Vec::new();
    let mut parents = vec![parent];
    while let Some(parent) = parents.pop() {
        for (id, _, arguments) in all.iter().filter(|process| process.1 == parent) {
            parents.push(*id);
            found.push((*id, arguments.clone()));
        }
    }
    Ok(found)
}

/// The first SIGINT or SIGTERM ends every running group, then this process, with the shell's status for that signal.
///
/// # Errors
/// The signal handler could not be set.
pub fn end_groups_on_signal() -> io::Result<()> {
    let mut signals =
        signal_hook::iterator::Signals::new([signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM])?;
    thread::spawn(move || {
        if let Some(signal) = signals.forever().next() {
            for group in GROUPS.lock().unwrap_or_else(PoisonError::into_inner).iter() {
                // A group that has just ended by itself is the only failure, and is what was wanted.
                let _ = kill_process_group(*group, Signal::KILL);
            }
            std::process::exit(128 + signal);
        }
    });
    Ok(())
}

/// A process group that is ended at the latest when this is dropped.
struct Group(Pid);

impl Group {
    fn new(child: &Child) -> Self {
        let pid = Pid::from_child(child);
        GROUPS.lock().unwrap_or_else(PoisonError::into_inner).push(pid);
        Self(pid)
    }

    /// Ends what is left of the group; an empty group is no error.
    fn end(&self) {
        let _ = kill_process_group(self.0, Signal::KILL);
        GROUPS.lock().unwrap_or_else(PoisonError::into_inner).retain(|pid| *pid != self.0);
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.end();
    }
}

fn named(command: &Command, error: &io::Error) -> io::Error {
    let program = command.get_program().to_string_lossy();
    io::Error::new(error.kind(), format!("cannot start {program}: {error}"))
}

fn read_lines(stream: PipeReader) -> Receiver<String> {
    let (sender, receiver) = channel();
    thread::spawn(move || {
        let mut reader = BufReader::new(stream);
        let mut line = Vec::new();
        // A read error on a pipe means that there is nothing more to read.
        while reader.read_until(b'\n', &mut line).is_ok_and(|length| length > 0) {
            if sender.send(String::from_utf8_lossy(&line).into_owned()).is_err() {
                return;
            }
            line.clear();
        }
    });
    receiver
}

fn wait_until(child: &mut Child, deadline: Instant) -> io::Result<Option<ExitStatus>> {
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        if Instant::now() >= deadline {
            return Ok(None);
        }
        thread::sleep(Duration::from_millis(5));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn collects_both_streams_and_the_status() {
        let mut seen = Vec::new();
        let finished = run_with(
            &mut shell("echo out; echo err >&2; printf half; exit 3"),
            Duration::from_secs(20),
            |line| seen.push(line.to_owned()),
        )
        .expect("a shell");
        assert_eq!(finished.ending(), "exit status 3");
        assert_eq!(finished.output, "out\nerr\nhalf");
        assert_eq!(seen, ["out", "err", "half"]);
    }

    #[test]
    fn ends_what_overstays_with_its_children() {
        let start = Instant::now();
        let finished =
            run(&mut shell("echo started; sleep 60 & sleep 60"), Duration::from_secs(5)).expect("a shell");
        assert!(finished.status.is_none());
        assert!(finished.output.starts_with("started"));
        assert!(start.elapsed() < Duration::from_secs(20));
    }

    #[test]
    fn a_grandchild_that_keeps_the_output_open_does_not_hold_us() {
        let finished = run(&mut shell("sleep 60 & exit 0"), Duration::from_secs(30)).expect("a shell");
        assert!(finished.success(), "{}", finished.ending());
        assert!(finished.elapsed < Duration::from_secs(15));
    }

    #[test]
    fn names_the_signal_and_the_missing_program() {
        let finished = run(&mut shell("kill -SEGV $$"), Duration::from_secs(20)).expect("a shell");
        assert_eq!(finished.ending(), "killed by signal 11");
        let error =
            run(&mut Command::new("no-such-program-here"), Duration::from_secs(1)).expect_err("no program");
        assert!(error.to_string().contains("no-such-program-here"));
    }
}
